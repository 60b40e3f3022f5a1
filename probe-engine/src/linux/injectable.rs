//! Functions whose callers cope with their failure, so that a call may be failed without its being made.
//!
//! The kernel has such a list itself where it is built with `CONFIG_FUNCTION_ERROR_INJECTION`. Ours names functions for other
//! kernels, and what they return is compared with the kernel's types.

use super::btf::{Btf, Kind, TypeId};
use super::glob::Glob;
use super::kernel::Kernel;
use super::read::u64_at;
use crate::addr::Gva;
use std::collections::HashSet;

/// struct error_injection_entry {unsigned long addr, int etype} (include/linux/error-injection.h), between these symbols.
const LIST: (&str, &str) = ("__start_error_injection_whitelist", "__stop_error_injection_whitelist");
const ENTRY: usize = 16;
/// More than any kernel's list has, in bytes.
const LONGEST_LIST: u64 = 1 << 20;
/// The largest number of an error (MAX_ERRNO, include/linux/err.h).
const MOST_ERROR: i128 = 4095;

/// System calls whose callers get no value.
const WITHOUT_VALUE: [&str; 3] = ["exit", "exit_group", "rt_sigreturn"];

/// What a function gives when it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// No memory: a null pointer.
    Null,
    /// The negative of an error's number, as an integer or as a pointer.
    Error,
}

/// Functions, or patterns of them, that fail so, in all kernels that have them.
const OURS: &[(&str, Failure)] = &[
    ("kmem_cache_alloc*", Failure::Null),
    ("__kmem_cache_alloc_*", Failure::Null),
    ("kmalloc_*", Failure::Null),
    ("__kmalloc*", Failure::Null),
    ("krealloc*", Failure::Null),
    ("kmemdup*", Failure::Null),
    ("kstrdup*", Failure::Null),
    ("kstrndup*", Failure::Null),
    ("kvmalloc_node*", Failure::Null),
    ("__kvmalloc_node*", Failure::Null),
    ("vmalloc", Failure::Null),
    ("vmalloc_noprof", Failure::Null),
    ("vzalloc", Failure::Null),
    ("vzalloc_noprof", Failure::Null),
    ("__vmalloc", Failure::Null),
    ("__vmalloc_noprof", Failure::Null),
    ("alloc_pages", Failure::Null),
    ("alloc_pages_noprof", Failure::Null),
    ("__alloc_pages*", Failure::Null),
    ("folio_alloc*", Failure::Null),
    ("vm_area_alloc", Failure::Null),
    ("__alloc_skb", Failure::Null),
    ("should_failslab", Failure::Error),
    ("vfs_*", Failure::Error),
    ("kernel_read", Failure::Error),
    ("kernel_write", Failure::Error),
    ("do_sys_openat2", Failure::Error),
    ("do_filp_open", Failure::Error),
    ("filp_open", Failure::Error),
    ("getname_flags", Failure::Error),
    ("alloc_empty_file", Failure::Error),
    ("anon_inode_getfile", Failure::Error),
    ("iterate_dir", Failure::Error),
    ("inode_permission", Failure::Error),
    ("notify_change", Failure::Error),
    ("security_*", Failure::Error),
    ("kernel_clone", Failure::Error),
    ("kthread_create_on_node", Failure::Error),
    ("submit_bio_wait", Failure::Error),
    ("request_firmware", Failure::Error),
    ("pci_enable_device", Failure::Error),
    ("register_netdevice", Failure::Error),
];

/// A call of this function cannot be failed, or not so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotInjectable {
    /// A system call of those.
    #[error("`{0}` does not return to its caller with a value")]
    WithoutValue(String),
    /// `void`.
    #[error("`{0}` returns nothing, so that its caller gets no value")]
    Nothing(String),
    /// A structure, for instance.
    #[error("`{0}` returns neither a number nor a pointer")]
    Other(String),
    /// The value does not fit.
    #[error("`{function}` returns {what}, and {value} is none")]
    Value {
        /// The function.
        function: String,
        /// What it returns.
        what: String,
        /// What was wanted.
        value: i128,
    },
    /// Nobody knows what it returns.
    #[error(
        "it is not known what `{0}` returns, or whether it returns anything, as there is no type information of it"
    )]
    Untyped(String),
    /// It is in no list.
    #[error("`{0}` is in no list of functions that may fail, so that its callers may not be prepared")]
    Unlisted(String),
    /// Its callers expect another failure.
    #[error("`{function}` gives {failure} when it fails, and not {value}")]
    Unexpected {
        /// The function.
        function: String,
        /// What it gives.
        failure: &'static str,
        /// What was wanted.
        value: i128,
    },
    /// A pattern, with the reason of the first match.
    #[error("none of the functions that match `{0}` may fail so: {1}")]
    NoMatch(String, Box<NotInjectable>),
}

impl NotInjectable {
    /// Whether who wants it all the same can have it.
    #[must_use]
    pub fn can_be_forced(&self) -> bool {
        match self {
            Self::Untyped(_) | Self::Unlisted(_) | Self::Unexpected { .. } => true,
            Self::NoMatch(_, reason) => {
                matches!(**reason, Self::Untyped(_) | Self::Unlisted(_) | Self::Unexpected { .. })
            }
            Self::WithoutValue(_) | Self::Nothing(_) | Self::Other(_) | Self::Value { .. } => false,
        }
    }
}

/// What a function returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Returned {
    Nothing,
    Pointer,
    Truth,
    /// Of so many bytes, with a sign or without.
    Number(u64, bool),
    Other,
}

/// A function that is to fail.
#[derive(Debug, Clone, Copy)]
pub struct Function<'a> {
    /// As the user calls it.
    pub name: &'a str,
    /// As the kernel calls it, where it is known; of a system call, the name of that.
    pub symbol: Option<&'a str>,
    /// Its entry (link-time address), where it is one of the kernel itself.
    pub at: Option<Gva>,
    /// Whether it handles a system call.
    pub is_system_call: bool,
    /// The type of what it returns, where that is known.
    pub returns: Option<TypeId>,
}

/// The functions of a kernel that may fail.
#[derive(Debug, Default)]
pub struct InjectableFunctions {
    /// Those of the kernel's own list, by their entries (link-time addresses).
    listed: HashSet<Gva>,
}

impl InjectableFunctions {
    /// Those of `kernel`.
    #[must_use]
    pub fn of(kernel: &Kernel) -> Self {
        let table = || {
            let at = kernel.symbol(LIST.0)?;
            let length = kernel.symbol(LIST.1)?.offset_from(at).filter(|length| *length <= LONGEST_LIST)?;
            kernel.image().bytes_at(at, usize::try_from(length).ok()?)
        };
        let entries = table().unwrap_or_default().chunks_exact(ENTRY);
        Self { listed: entries.filter_map(|entry| u64_at(entry, 0)).map(Gva).collect() }
    }

    /// What RAX is when a call of `function` gives `value`. With `force`, only what cannot be is refused.
    ///
    /// # Errors
    /// [`NotInjectable`], a sentence for the user.
    pub fn value(
        &self,
        function: &Function<'_>,
        value: i128,
        btf: Option<&Btf<'_>>,
        force: bool,
    ) -> Result<u64, NotInjectable> {
        let name = || function.name.to_owned();
        if function.is_system_call && function.symbol.is_some_and(|name| WITHOUT_VALUE.contains(&name)) {
            return Err(NotInjectable::WithoutValue(name()));
        }
        let returned = match (function.returns.zip(btf), function.is_system_call) {
            (Some((ty, btf)), _) => Some(returned(btf, ty)),
            (None, true) => Some(Returned::Number(8, true)),
            (None, false) => None,
        };
        let register = match returned {
            None if !force => return Err(NotInjectable::Untyped(name())),
            None => word(value, 8),
            Some(Returned::Nothing) => return Err(NotInjectable::Nothing(name())),
            Some(Returned::Other) => return Err(NotInjectable::Other(name())),
            Some(Returned::Truth) => word(value, 8).filter(|word| *word <= 1),
            Some(Returned::Pointer) => word(value, 8),
            Some(Returned::Number(bytes, _)) => word(value, bytes),
        };
        let what = || match returned {
            Some(Returned::Truth) => "true or false".to_owned(),
            Some(Returned::Pointer) => "a pointer".to_owned(),
            Some(Returned::Number(bytes, _)) => format!("a number of {bytes} bytes"),
            _ => "a number of 8 bytes".to_owned(),
        };
        let Some(register) = register else {
            return Err(NotInjectable::Value { function: name(), what: what(), value });
        };
        let is_listed = function.at.is_some_and(|at| self.listed.contains(&at));
        if force || is_listed {
            return Ok(register);
        }
        let is_error = (-MOST_ERROR..0).contains(&value);
        let failure = match function.is_system_call {
            true => Some(Failure::Error),
            false => function.symbol.and_then(failure),
        };
        let unexpected = |failure| NotInjectable::Unexpected { function: name(), failure, value };
        match (failure, returned) {
            (Some(Failure::Null), Some(Returned::Pointer)) if value == 0 => Ok(register),
            (Some(Failure::Null), Some(Returned::Pointer)) => Err(unexpected("NULL")),
            (Some(Failure::Error), Some(Returned::Pointer | Returned::Number(4 | 8, true))) => match is_error
            {
                true => Ok(register),
                false => Err(unexpected("an error")),
            },
            _ => Err(NotInjectable::Unlisted(name())),
        }
    }
}

/// How our list says that a function fails.
fn failure(symbol: &str) -> Option<Failure> {
    let is_named = |pattern: &str| Glob::new(pattern).is_ok_and(|glob| glob.matches(symbol));
    OURS.iter().find(|(pattern, _)| is_named(pattern)).map(|(_, failure)| *failure)
}

fn returned(btf: &Btf<'_>, ty: TypeId) -> Returned {
    match btf.plain(ty).map(|plain| plain.kind) {
        _ if ty == TypeId::VOID => Returned::Nothing,
        Some(Kind::Void) => Returned::Nothing,
        Some(Kind::Pointer(_)) => Returned::Pointer,
        Some(Kind::Int(int)) if int.is_bool => Returned::Truth,
        Some(Kind::Int(int)) if int.bytes <= 8 => Returned::Number(int.bytes.into(), int.is_signed),
        Some(Kind::Enumeration(enumeration)) => Returned::Number(enumeration.size.into(), true),
        _ => Returned::Other,
    }
}

/// `value` as a register has it, if it is a number of so many bytes, with a sign or without.
fn word(value: i128, bytes: u64) -> Option<u64> {
    let bits = u32::try_from(bytes.saturating_mul(8)).ok().filter(|bits| (1..=64).contains(bits))?;
    let (least, most) = (-(1_i128 << (bits - 1)), (1_i128 << bits) - 1);
    (least..=most).contains(&value).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::symbol_file::SymbolFile;
    use crate::linux::testing::{BtfBuilder, Part, elf};

    const AT: Gva = Gva(0xffff_ffff_8100_0000);

    struct Types {
        section: Vec<u8>,
        pointer: TypeId,
        int: TypeId,
        byte: TypeId,
        structure: TypeId,
    }

    fn types() -> Types {
        let mut btf = BtfBuilder::default();
        // With a sign.
        let int = btf.add("int", 1, 0, false, 4, &[1 << 24 | 32]);
        let byte = btf.int("unsigned char", 1);
        let structure = btf.structure("big", 64, &[]);
        let pointer = btf.pointer(structure);
        let [pointer, int, byte, structure] = [pointer, int, byte, structure].map(TypeId);
        Types { section: btf.finish(), pointer, int, byte, structure }
    }

    fn function(symbol: &str, returns: TypeId) -> Function<'_> {
        let symbol = Some(symbol);
        Function { name: "f", symbol, at: Some(AT), is_system_call: false, returns: Some(returns) }
    }

    /// Its list has two functions, of which the one at [`AT`] is the second. What comes behind the list looks like one more.
    fn kernel_with_list() -> Kernel {
        const DATA: Gva = Gva(0xffff_ffff_8200_0000);
        let entries = [AT.add(32), AT, AT.add(16)].map(|at| [at.0, 3]);
        let list = entries.as_flattened().iter().flat_map(|word| word.to_le_bytes()).collect();
        let text = Part::text(".text", AT.0, vec![0x90; 64]);
        let image = elf(&[text, Part::data(".init.data", DATA.0, list)]);
        let at = |address: Gva| format!("{:x}", address.0);
        let (text, etext, start, end) = (at(AT), at(AT.add(64)), at(DATA), at(DATA.add(2 * ENTRY as u64)));
        let map = format!(
            "{text} T _text\n{text} T function\n{etext} T _etext\n{start} D {}\n{end} D {}\n",
            LIST.0, LIST.1
        );
        Kernel::read(&image, Some(&SymbolFile::parse(map.into_bytes()).unwrap())).unwrap()
    }

    #[test]
    fn a_function_of_our_list_fails_as_it_does_by_itself() {
        let types = types();
        let btf = Btf::parse(&types.section).unwrap();
        let none = InjectableFunctions::default();
        let value =
            |symbol, returns, value, force| none.value(&function(symbol, returns), value, Some(&btf), force);
        assert_eq!(value("kmem_cache_alloc_noprof", types.pointer, 0, false), Ok(0));
        assert_eq!(value("vfs_read", types.int, -5, false), Ok(-5_i64 as u64));
        assert_eq!(value("do_filp_open", types.pointer, -5, false), Ok(-5_i64 as u64));
        let refused =
            |symbol, returns, number| value(symbol, returns, number, false).unwrap_err().to_string();
        assert!(
            refused("kmem_cache_alloc", types.pointer, -12)
                .starts_with("`f` gives NULL when it fails, and not -12")
        );
        assert!(refused("kmem_cache_alloc_bulk", types.int, 0).contains("in no list"));
        assert!(refused("vfs_read", types.int, 7).starts_with("`f` gives an error"));
        assert!(refused("schedule_timeout", types.int, 0).contains("in no list"));
    }

    #[test]
    fn what_cannot_be_is_refused_by_force_as_well() {
        let types = types();
        let btf = Btf::parse(&types.section).unwrap();
        let none = InjectableFunctions::default();
        let forced = |returns, value| none.value(&function("other", returns), value, Some(&btf), true);
        assert_eq!(forced(types.byte, 255), Ok(255));
        assert_eq!(forced(types.byte, -1), Ok(u64::MAX));
        assert_eq!(forced(types.pointer, -12), Ok(-12_i64 as u64));
        for (returns, value, words) in [
            (types.byte, 256, "returns a number of 1 bytes, and 256 is none"),
            (types.int, 1 << 32, "a number of 4 bytes"),
            (types.structure, 0, "neither a number nor a pointer"),
            (TypeId::VOID, 0, "returns nothing"),
        ] {
            let error = forced(returns, value).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let untyped = Function { returns: None, ..function("kmem_cache_alloc", types.int) };
        assert!(none.value(&untyped, 0, None, false).unwrap_err().to_string().contains("type information"));
        assert_eq!(none.value(&untyped, 0, None, true), Ok(0));
    }

    #[test]
    fn a_system_call_fails_unless_nobody_gets_its_value() {
        let none = InjectableFunctions::default();
        let call = |name| Function { is_system_call: true, returns: None, ..function(name, TypeId::VOID) };
        assert_eq!(none.value(&call("openat"), -5, None, false), Ok(-5_i64 as u64));
        assert!(none.value(&call("openat"), 3, None, false).is_err());
        assert_eq!(none.value(&call("openat"), 3, None, true), Ok(3));
        for name in WITHOUT_VALUE {
            let error = none.value(&call(name), -5, None, true).unwrap_err();
            assert_eq!(error, NotInjectable::WithoutValue("f".to_owned()));
        }
    }

    #[test]
    fn the_kernels_own_list_counts() {
        let types = types();
        let btf = Btf::parse(&types.section).unwrap();
        let own = InjectableFunctions::of(&kernel_with_list());
        let other = Function { at: Some(AT.add(16)), ..function("other", types.int) };
        assert_eq!(own.value(&function("other", types.int), 1, Some(&btf), false), Ok(1));
        assert!(own.value(&other, 1, Some(&btf), false).is_err());
    }
}
