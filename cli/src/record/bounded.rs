//! What was recorded has no length that can be relied on: what is shown or kept of it has one.

use serde::{Deserialize, Deserializer};
use std::fmt::{self, Display, Write};

/// So much is shown of what one hit has read, in bytes. A hit holds 16 KiB of what was read in the guest.
pub(crate) const MOST_OF_A_HIT: usize = 64 << 10;
/// So much is kept of a name, in bytes: a definition has no more.
const MOST_OF_A_NAME: usize = 4096;

/// Text that goes on to `out` until it has the length that it may have.
struct Bounded<'a> {
    out: &'a mut dyn Write,
    left: usize,
    is_cut: bool,
}

impl Write for Bounded<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let (shown, more) = text.split_at(text.floor_char_boundary(self.left));
        self.left -= shown.len();
        self.out.write_str(shown)?;
        self.is_cut |= !more.is_empty();
        // Whoever writes ends here.
        if self.is_cut { Err(fmt::Error) } else { Ok(()) }
    }
}

/// Writes `shown` to `out`, of which `most` bytes, and three dots where that is not all. What is behind them is not even put
/// into words. Returns how many bytes more there might have been.
pub(crate) fn write_bounded(
    out: &mut dyn Write,
    most: usize,
    shown: &dyn Display,
) -> Result<usize, fmt::Error> {
    let mut bounded = Bounded { out, left: most, is_cut: false };
    match write!(bounded, "{shown}") {
        Err(_) if bounded.is_cut => bounded.out.write_str("...").map(|()| 0),
        written => written.map(|()| bounded.left),
    }
}

/// Reads a name, of which the start is kept.
pub(super) fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer).map(start)
}

/// The same, where there may be none.
pub(super) fn some_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Option::<String>::deserialize(deserializer).map(|name| name.map(start))
}

fn start(mut name: String) -> String {
    name.truncate(name.floor_char_boundary(MOST_OF_A_NAME));
    name.shrink_to_fit();
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goes on for ever.
    struct Endless;

    impl Display for Endless {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            loop {
                f.write_str("aü")?;
            }
        }
    }

    #[test]
    fn what_is_too_long_ends_in_dots() {
        let bounded = |most, shown: &dyn Display| {
            let mut text = String::new();
            let left = write_bounded(&mut text, most, shown).unwrap();
            (text, left)
        };
        assert_eq!(bounded(5, &Endless), ("aüa...".to_owned(), 0));
        assert_eq!(bounded(3, &"aü"), ("aü".to_owned(), 0));
        assert_eq!(bounded(9, &"aü"), ("aü".to_owned(), 6));
        assert_eq!(bounded(0, &"a"), ("...".to_owned(), 0));
    }
}
