//! What compilers make of the names of functions.

/// What clang puts, before a number, behind the name of a static function or variable that another file of the same kernel
/// uses after all: optimising the whole program (LTO) has moved a caller there. It is the same function, with the same parameters.
pub(super) const PROMOTED: &str = ".llvm.";

/// The name in the source of what clang has [promoted](PROMOTED).
#[must_use]
pub fn promoted_from(name: &str) -> Option<&str> {
    let (source, number) = name.split_once(PROMOTED)?;
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(source)
}

/// Whether the name of a function says that the compiler has changed its parameters: `.isra` removed or split them,
/// `.constprop` fixed one, `.part` is a piece of a function, `.cold` as well.
#[must_use]
pub fn is_changed(function: &str) -> bool {
    [".isra.", ".constprop.", ".part.", ".cold"].iter().any(|suffix| function.contains(suffix))
}

#[cfg(test)]
mod tests {
    use super::super::tests::table;
    use super::*;
    use crate::addr::Gva;

    #[test]
    fn what_clang_has_promoted_has_its_name() {
        let table = table(&[
            (0x1000, b't', "free_module.llvm.17"),
            (0x1010, b't', "free_module.llvm.17.cold"),
            (0x1020, b't', "free_module.part.0"),
            (0x1030, b't', "show.llvm.2"),
            (0x1040, b't', "show"),
        ]);
        assert_eq!(table.address_of("free_module"), Some(Gva(0x1000)));
        assert_eq!(table.address_of("free_module.llvm.17"), Some(Gva(0x1000)));
        assert_eq!(table.address_of("free"), None);
        let found: Vec<_> = table.lookup("show").map(|symbol| symbol.at.0).collect();
        assert_eq!(found, [0x1040, 0x1030]);
        assert!(!table.have_data());
        for none in ["a", "a.llvm.", "a.llvm.1x", "a.llvm.1.cold"] {
            assert_eq!(promoted_from(none), None, "{none}");
        }
    }
}
