//! The system calls of a kernel by the names that programs know: which function handles each, and its parameters.
//!
//! `SYSCALL_DEFINE` makes an entry of each for 64-bit programs, `__x64_sys_openat`, which takes the registers that the program
//! had and hands them to `__do_sys_openat`. The compiler makes that a part of the entry where it is small. 32-bit programs enter
//! by `__ia32_sys_openat` or `__ia32_compat_sys_openat`.

use super::kernel::Kernel;
use super::nearest::{nearest, suggestion};
use crate::addr::Gva;
use crate::guest_text::is_plain;
use crate::insn::decode::instructions;
use std::collections::BTreeMap;
use std::fmt;
use syscalls::x86_64::Sysno;

/// What an entry for 64-bit programs begins with.
const ENTRY: &str = "__x64_sys_";
/// System calls that the kernel was built without have this entry.
const NOT_THERE: &str = "__x64_sys_ni_syscall";
/// More entries than any kernel's table has.
const MOST_CALLS: usize = 1024;
/// More parameters than the registers hold.
const MOST_PARAMETERS: usize = 6;
/// The longest name of a type or a parameter.
const LONGEST_NAME: usize = 128;

/// The system calls of a kernel.
#[derive(Debug)]
pub struct SystemCalls<'a> {
    kernel: &'a Kernel,
    /// Numbers, where they are known, and entries, by name.
    calls: BTreeMap<String, (Option<u32>, &'a str)>,
    /// The same by the names that the kernel's source has, where programs know others.
    of_source: BTreeMap<&'a str, (Option<u32>, &'a str)>,
}

/// A system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemCall {
    /// Its name, `openat`.
    pub name: String,
    /// Its number for 64-bit programs, where the kernel's table says it.
    pub number: Option<u32>,
    /// The function at which it is probed.
    pub handler: Handler,
    /// By which function 32-bit programs enter, where that is not a way to the handler.
    pub compat: Option<String>,
    /// Its parameters as they were written in the source, where the kernel keeps that: type and name.
    pub parameters: Option<Vec<(String, String)>>,
}

/// The function at which a system call is probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handler {
    /// Its symbol.
    pub symbol: String,
    /// Where it is (link-time address).
    pub at: Gva,
    /// Whether its own parameter is the registers that the program had, of which its parameters are.
    pub takes_registers: bool,
}

/// There is no such system call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoSystemCall {
    /// No kernel has one of that name.
    #[error("the kernel has no system call `{name}`{}", suggestion(.nearest))]
    Unknown {
        /// What was asked for.
        name: String,
        /// Names like it.
        nearest: Vec<String>,
    },
    /// The kernel was built without it.
    #[error("the kernel is built without the system call `{0}`")]
    NotBuilt(String),
}

impl<'a> SystemCalls<'a> {
    /// Those of `kernel`.
    #[must_use]
    pub fn of(kernel: &'a Kernel) -> Self {
        let entries: BTreeMap<Gva, &str> = kernel
            .symbols()
            .text()
            .filter(|symbol| symbol.name.starts_with(ENTRY) && symbol.name != NOT_THERE)
            .map(|symbol| (symbol.at, symbol.name))
            .collect();
        let mut calls = BTreeMap::new();
        for (number, at) in table(kernel) {
            if let Some(entry) = entries.get(&at) {
                let name = Sysno::new(number as usize).map_or_else(|| plain(entry), |known| known.name());
                calls.insert(name.to_owned(), (Some(number), *entry));
            }
        }
        // A kernel may keep no table.
        if calls.is_empty() {
            calls.extend(entries.values().map(|entry| (plain(entry).to_owned(), (None, *entry))));
        }
        let of_source = calls.values().map(|call| (plain(call.1), *call)).collect();
        Self { kernel, calls, of_source }
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.calls.keys().map(String::as_str)
    }

    /// The system call of that name.
    ///
    /// # Errors
    /// [`NoSystemCall`], a sentence for the user.
    pub fn find(&self, name: &str) -> Result<SystemCall, NoSystemCall> {
        const SUGGESTIONS: usize = 3;
        let Some((number, entry)) = self.calls.get(name).or_else(|| self.of_source.get(name)) else {
            if name.parse::<Sysno>().is_ok() {
                return Err(NoSystemCall::NotBuilt(name.to_owned()));
            }
            let nearest = nearest(self.names(), name, SUGGESTIONS).into_iter().map(str::to_owned).collect();
            return Err(NoSystemCall::Unknown { name: name.to_owned(), nearest });
        };
        let of_source = plain(entry);
        let unknown = || NoSystemCall::Unknown { name: name.to_owned(), nearest: Vec::new() };
        let handler = self.handler(entry, of_source).ok_or_else(unknown)?;
        let ways = [format!("__ia32_compat_sys_{of_source}"), format!("__ia32_sys_{of_source}")];
        let compat = ways.into_iter().find_map(|way| Some((self.kernel.symbol(&way)?, way)));
        let compat = compat.filter(|(at, _)| *at != handler.at && !self.leads_to(*at, handler.at));
        Ok(SystemCall {
            name: name.to_owned(),
            number: *number,
            handler,
            compat: compat.map(|(_, way)| way),
            parameters: self.parameters(of_source),
        })
    }

    /// What `__x64_sys_` leads to, where the compiler has made that a function of its own.
    fn handler(&self, entry: &str, of_source: &str) -> Option<Handler> {
        let symbol = format!("__do_sys_{of_source}");
        let own = self.kernel.symbol(&symbol);
        let at = self.kernel.symbol(entry)?;
        Some(match own.filter(|own| *own == at || self.leads_to(at, *own)) {
            Some(at) => Handler { symbol, at, takes_registers: false },
            None => Handler { symbol: entry.to_owned(), at, takes_registers: true },
        })
    }

    /// Whether the function at `from` calls or jumps to `to`.
    fn leads_to(&self, from: Gva, to: Gva) -> bool {
        let Some(range) = self.kernel.function(from) else { return false };
        let text = self.kernel.image().bytes(&range).unwrap_or_default();
        instructions(text, from).any(|instruction| instruction.near_branch_target() == to.0)
    }

    /// What the kernel's own events of system calls know (CONFIG_FTRACE_SYSCALLS).
    fn parameters(&self, of_source: &str) -> Option<Vec<(String, String)>> {
        let image = self.kernel.image();
        let btf = self.kernel.btf().ok()?;
        let metadata = self.kernel.symbol(&format!("__syscall_meta__{of_source}"))?;
        let offset = |member: &str| Some(btf.member("syscall_metadata", member)?.bit / 8);
        // Newer kernels have a flag above it.
        let count = image.bytes_at(metadata.add(offset("nb_args")?), 1)?.first()? & 0x7f;
        let array = |member: &str| self.word(metadata.add(offset(member)?));
        let (types, names) = (array("types")?, array("args")?);
        let text = |of: u64, n: u64| self.text(Gva(self.word(Gva(of).add(8 * n))?));
        let count = u64::from(count).min(MOST_PARAMETERS as u64);
        (0..count).map(|n| Some((text(types, n)?, text(names, n)?))).collect()
    }

    fn word(&self, at: Gva) -> Option<u64> {
        let bytes = self.kernel.image().bytes_at(at, 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    fn text(&self, at: Gva) -> Option<String> {
        shown(self.kernel.image().bytes_from(at)?)
    }
}

/// The name that `bytes` begin with, if it may be shown as it is: the kernel's file may be anybody's.
fn shown(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().take(LONGEST_NAME).position(|byte| *byte == 0)?;
    String::from_utf8(bytes.get(..end)?.to_vec()).ok().filter(|name| is_plain(name))
}

/// As `SYSCALL_DEFINE` has it.
fn plain(entry: &str) -> &str {
    entry.strip_prefix(ENTRY).unwrap_or(entry)
}

/// The entries of the kernel's table, by number.
fn table(kernel: &Kernel) -> impl Iterator<Item = (u32, Gva)> {
    let table = kernel.symbol("sys_call_table").and_then(|table| {
        let end = kernel.symbols().end_of(table)?;
        kernel.image().bytes(&(table..end))
    });
    let words = table.unwrap_or_default().chunks_exact(8).take(MOST_CALLS);
    (0..).zip(words.map(|word| Gva(u64::from_le_bytes(word.try_into().unwrap_or_default()))))
}

/// As C.
impl fmt::Display for SystemCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "long {}(", self.name)?;
        match self.parameters.as_deref() {
            None => f.write_str("...")?,
            Some([]) => f.write_str("void")?,
            Some(parameters) => {
                for (n, (ty, name)) in parameters.iter().enumerate() {
                    let space = if ty.ends_with('*') { "" } else { " " };
                    write!(f, "{}{ty}{space}{name}", if n == 0 { "" } else { ", " })?;
                }
            }
        }
        f.write_str(")")
    }
}

impl SystemCall {
    /// Which calls are not seen at the handler, in a sentence.
    #[must_use]
    pub fn unseen(&self) -> String {
        let handler = &self.handler.symbol;
        match &self.compat {
            Some(compat) => format!(
                "at {handler}; 32-bit programs enter by {compat}, and requests of io_uring by neither"
            ),
            None => {
                format!("at {handler}, for programs of all sizes; requests of io_uring do not enter there")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_acts_on_a_terminal_is_none() {
        assert_eq!(shown(b"const char *\0x").as_deref(), Some("const char *"));
        for other in [&b"\x1b[2Jab\n\0"[..], b"a\xc2\x9bb\0", b"\xff\0", b"without an end"] {
            assert_eq!(shown(other), None);
        }
    }
}
