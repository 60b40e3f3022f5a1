//! Names of C++ and Rust as their sources have them.

use cpp_demangle::{DemangleOptions, DemangleWrite, ParseOptions, Symbol};
use std::fmt;

/// No name has so many parts inside each other.
const RECURSION: u32 = 96;

/// What the source calls a function of C++ or Rust, with what it takes where the name says that.
pub(crate) fn demangled(name: &str) -> Option<String> {
    by(name, DemangleOptions::default())
}

/// The same of a place in a program, `PATH:NAME[+OFFSET]`, without what the function takes.
pub(crate) fn demangled_place(place: &str) -> Option<String> {
    let (path, rest) = place.rsplit_once(':')?;
    let (name, offset) = rest.find('+').map_or((rest, ""), |at| rest.split_at(at));
    Some(format!("{path}:{}{offset}", demangled_function(name)?))
}

/// The same of a function, without what it takes.
pub(crate) fn demangled_function(name: &str) -> Option<String> {
    by(name, DemangleOptions::default().no_params().no_return_type())
}

fn by(name: &str, options: DemangleOptions) -> Option<String> {
    if let Ok(demangled) = rustc_demangle::try_demangle(name) {
        return Some(format!("{demangled:#}"));
    }
    if !name.starts_with("_Z") {
        return None;
    }
    let limit = ParseOptions::default().recursion_limit(RECURSION);
    let symbol = Symbol::new_with_options(name, &limit).ok()?;
    let mut bounded = Bounded(String::new());
    symbol.structured_demangle(&mut bounded, &options).ok()?;
    Some(bounded.0)
}

/// A name that may refer to its own parts again and again.
struct Bounded(String);

impl DemangleWrite for Bounded {
    fn write_string(&mut self, text: &str) -> fmt::Result {
        const LONGEST: usize = 16 << 10;
        if self.0.len() + text.len() > LONGEST {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_source() {
        assert_eq!(demangled("main"), None);
        assert_eq!(demangled("_ZN3foo3barEi").as_deref(), Some("foo::bar(int)"));
        assert_eq!(demangled("_ZN4core3fmt5write17h0123456789abcdefE").as_deref(), Some("core::fmt::write"));
        assert_eq!(demangled("_Znonsense"), None);
    }

    #[test]
    fn a_place_keeps_its_path_and_its_offset() {
        assert_eq!(demangled_place("/a:b/c:_ZN3foo3barEi+0x10").as_deref(), Some("/a:b/c:foo::bar+0x10"));
        assert_eq!(demangled_place("/bin/x:_ZNK3foo3barEv").as_deref(), Some("/bin/x:foo::bar"));
        assert_eq!(demangled_place("/bin/ls:main"), None);
        assert_eq!(demangled_place("vfs_read"), None);
    }
}
