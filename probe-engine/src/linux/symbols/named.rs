//! One symbol by the name that a user writes: `show`, or `show#2` for the second of that name.
//!
//! Static functions of several files often share a name. Which file each is from cannot be told: kallsyms has none.

use super::{Symbol, SymbolTable};
use crate::addr::Gva;
use std::fmt;

/// A name, and which of the symbols that share it is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SymbolName<'a> {
    /// The name.
    pub name: &'a str,
    /// Its number among those of that name by address, from 1 on; `None` when there should be one only.
    pub ordinal: Option<u32>,
}

impl<'a> SymbolName<'a> {
    /// Reads `show` or `show#2`; `None` when the part behind the `#` is no number from 1 on.
    #[must_use]
    pub fn parse(written: &'a str) -> Option<Self> {
        let Some((name, ordinal)) = written.split_once('#') else {
            return Some(Self { name: written, ordinal: None });
        };
        // A sign is not a digit, but the standard library would take one.
        let is_number = ordinal.chars().all(|c| c.is_ascii_digit());
        let ordinal = ordinal.parse().ok().filter(|ordinal| is_number && *ordinal > 0)?;
        Some(Self { name, ordinal: Some(ordinal) })
    }
}

/// What a user wrote without its `#2`: the name that the kernel has.
#[must_use]
pub fn plain_name(written: &str) -> &str {
    written.split_once('#').map_or(written, |(name, _)| name)
}

/// A name that does not mean one symbol, displayed as what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotOne {
    /// What was written, without its `#2`.
    pub name: String,
    /// Whether one of several was asked for.
    pub has_ordinal: bool,
    /// Where symbols of that name are; none, or several, or fewer than asked for.
    pub found: Vec<Gva>,
}

impl NotOne {
    /// How many are named. The kernel's most frequent names are those of twenty functions.
    const SHOWN: usize = 8;

    /// Whether there are more than are named.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.found.len() > Self::SHOWN
    }
}

impl fmt::Display for NotOne {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, has_ordinal, found } = self;
        match (found.len(), has_ordinal) {
            (0, _) => return write!(f, "there is no `{name}`"),
            (1, _) => return write!(f, "there is only one `{name}`: leave out what is behind the `#`"),
            (count, true) => write!(f, "there are only {count} `{name}`: ")?,
            (count, false) => write!(
                f,
                "there are {count} `{name}`, and their files are not known (kallsyms has none): choose "
            )?,
        }
        for (index, at) in found.iter().take(Self::SHOWN).enumerate() {
            write!(f, "{}{name}#{} at {at}", if index == 0 { "" } else { ", " }, index + 1)?;
        }
        match found.len().saturating_sub(Self::SHOWN) {
            0 => Ok(()),
            more => write!(f, ", and {more} more"),
        }
    }
}

impl SymbolTable {
    /// The symbol that `written` means, as `show` or `show#2`, among those that are `wanted`. Symbols of one name at
    /// one address are the same.
    ///
    /// # Errors
    /// [`NotOne`] when there is none, several, or none of that number.
    pub fn find(&self, written: &str, wanted: impl Fn(&Symbol<'_>) -> bool) -> Result<Symbol<'_>, NotOne> {
        let named = SymbolName::parse(written).unwrap_or(SymbolName { name: written, ordinal: None });
        let mut found: Vec<Symbol<'_>> = self.lookup(named.name).filter(wanted).collect();
        found.dedup_by_key(|symbol| symbol.at);
        let chosen = match (named.ordinal, found.len()) {
            (None, 1) => found.first(),
            (None, _) => None,
            (Some(ordinal), _) => found.get(ordinal as usize - 1),
        };
        chosen.copied().ok_or_else(|| NotOne {
            name: named.name.to_owned(),
            has_ordinal: named.ordinal.is_some(),
            found: found.iter().map(|symbol| symbol.at).collect(),
        })
    }

    /// The name by which a user can ask for the function at `symbol`: with its number where others share it.
    #[must_use]
    pub fn written(&self, symbol: &Symbol<'_>) -> String {
        let mut same: Vec<Gva> =
            self.lookup(symbol.name).filter(Symbol::is_text).map(|other| other.at).collect();
        same.dedup();
        match same.iter().position(|at| *at == symbol.at) {
            Some(index) if same.len() > 1 => format!("{}#{}", symbol.name, index + 1),
            _ => symbol.name.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::table;
    use super::*;

    #[test]
    fn ordinals_are_numbers_from_1_on() {
        let named = |name, ordinal| Some(SymbolName { name, ordinal });
        for (written, expected) in [
            ("show", named("show", None)),
            ("show#1", named("show", Some(1))),
            ("show#12", named("show", Some(12))),
            ("show#0", None),
            ("show#", None),
            ("show#+1", None),
            ("show#x", None),
            ("show#1#2", None),
            ("show#4294967296", None),
        ] {
            assert_eq!(SymbolName::parse(written), expected, "{written}");
        }
        assert_eq!((plain_name("show#2"), plain_name("show")), ("show", "show"));
    }

    #[test]
    fn one_of_several_is_chosen_by_its_number() {
        let table = table(&[
            (0x1000, b't', "show"),
            (0x1000, b't', "show"),
            (0x1010, b'd', "show"),
            (0x1020, b't', "show"),
            (0x1030, b'T', "once"),
        ]);
        let text = |written| table.find(written, |symbol| symbol.is_text()).map(|symbol| symbol.at.0);
        assert_eq!((text("show#1"), text("show#2")), (Ok(0x1000), Ok(0x1020)));
        assert_eq!(table.find("show#2", |_| true).map(|symbol| symbol.at), Ok(Gva(0x1010)));
        assert_eq!((text("once"), text("once#1")), (Ok(0x1030), Ok(0x1030)));
        let said = |written| text(written).unwrap_err().to_string();
        assert_eq!(
            said("show"),
            "there are 2 `show`, and their files are not known (kallsyms has none): choose show#1 at 0x1000, show#2 at \
             0x1020"
        );
        assert_eq!(said("show#3"), "there are only 2 `show`: show#1 at 0x1000, show#2 at 0x1020");
        assert_eq!(said("once#2"), "there is only one `once`: leave out what is behind the `#`");
        assert_eq!(said("none"), "there is no `none`");
        let written: Vec<_> = table.text().map(|symbol| table.written(&symbol)).collect();
        assert_eq!(written, ["show#1", "show#1", "show#2", "once"]);
    }

    #[test]
    fn a_long_list_is_cut() {
        let symbols: Vec<_> = (0..20).map(|n| (0x1000 + n, b't', "jhash")).collect();
        let said = table(&symbols).find("jhash", |symbol| symbol.is_text()).unwrap_err().to_string();
        assert!(said.ends_with("jhash#8 at 0x1007, and 12 more"), "{said}");
    }
}
