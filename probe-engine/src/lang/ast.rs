//! What a probe definition says, as written: nothing is looked up yet.
//!
//! The syntax is that of `kprobe_events` (Documentation/trace/kprobetrace.rst) with the BTF arguments of
//! `dynamic_events` (fprobetrace.rst), followed by a filter (events.rst) and a histogram (histogram.rst). Casts, `$current`
//! and per-CPU variables are as Linux 7.3 has them. Lines of the source, and names and casts at places that are no function's
//! entry, are not known there.

use crate::linux::program_place::InFile;
use crate::probe::inject::Turns;
use std::ops::Range;

/// Where in the definition something was written, in bytes.
pub type Span = Range<usize>;

/// Something, and where it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spanned<T> {
    /// What.
    pub value: T,
    /// Where.
    pub span: Span,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement {
    /// `p...`, `r...`, `f...`, `t...`, `usdt...`
    Define(Box<Definition>),
    /// `-:[GRP/]EVENT`
    Remove(EventName),
}

/// Calls that are to fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Injection {
    /// `SYM`, of which calls fail.
    pub function: Spanned<WrittenPlace>,
    /// `VALUE`, which the caller gets.
    pub value: Spanned<i128>,
    /// `if FILTER`: which calls count.
    pub filter: Option<Spanned<FilterExpr>>,
    /// `under PLACE`: only those count that are made below a call of this function.
    pub under: Option<Spanned<WrittenPlace>>,
    /// `every N after M times K seed S`: which of them fail.
    pub turns: Turns,
}

/// The name of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventName {
    /// `GRP`, where given.
    pub group: Option<Spanned<String>>,
    /// `EVENT`, where given.
    pub event: Option<Spanned<String>>,
}

/// A probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// Entry, return, or whatever place.
    pub kind: DefinitionKind,
    /// `MAXACTIVE` of a return probe.
    pub max_active: Option<Spanned<u32>>,
    /// `[GRP/][EVENT]`
    pub name: EventName,
    /// Where.
    pub place: Spanned<WrittenPlace>,
    /// What is fetched.
    pub args: Vec<Argument>,
    /// `if FILTER`
    pub filter: Option<Spanned<FilterExpr>>,
    /// `hist:...`
    pub hist: Option<Spanned<Hist>>,
}

/// What kind of probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefinitionKind {
    /// `p`: at an instruction. `usdt`: at one that a program has marked.
    Instruction,
    /// `r`, or `%return`: at a function's returns.
    Return,
    /// `f` without `%return`: at a function's entry.
    Entry,
    /// `t`: at a tracepoint.
    Tracepoint,
}

/// Where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WrittenPlace {
    /// `[MOD:]SYM[#N][+offs]`; the symbol may be a pattern where there is no module and no offset.
    Symbol {
        /// `MOD`
        module: Option<String>,
        /// `SYM`, or `SYM#N` for the `N`th of that name by address.
        symbol: String,
        /// `offs`
        offset: u64,
    },
    /// A link-time address.
    Address(u64),
    /// `SYM[#N]:LINE` or `FILE:LINE`
    Line {
        /// `SYM[#N]` or `FILE`
        of: String,
        /// `LINE`, counted from the start of the file.
        line: u32,
    },
    /// `PATH:SYMBOL[+offs]`, `PATH:OFFSET[(COUNTER)]`, `PATH:PATTERN`; `PATH:PROVIDER:NAME` of a `usdt`
    Program {
        /// `PATH`, from the root on.
        path: String,
        /// `SYMBOL[+offs]`, `OFFSET`, `PATTERN` or `PROVIDER:NAME`
        at: InFile,
        /// `COUNTER`
        counter: Option<u64>,
    },
    /// `[SYSTEM:]NAME`, also with a `/`: both may be patterns.
    Tracepoint {
        /// `SYSTEM`, or the module that has the tracepoint
        system: Option<String>,
        /// `NAME`
        name: String,
    },
}

/// `NAME=FETCH:TYPE`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// `NAME`, where given.
    pub name: Option<Spanned<String>>,
    /// `FETCH`
    pub fetch: Spanned<FetchExpr>,
    /// `TYPE`, where given.
    pub ty: Option<Spanned<FetchType>>,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchExpr {
    /// `%REG`, without the percent sign, in lower case: as the kernel names them (`ax`, `r8`, `ip`, `flags`), and as
    /// the processor does (`rax`, `rip`, `rflags`).
    Register(String),
    /// `$stackN`
    StackSlot(u32),
    /// `$stack`
    StackPointer,
    /// `$argN`, from 1 on.
    Argument(u32),
    /// `$arg*`
    AllArguments,
    /// `$retval`
    ReturnValue,
    /// `$comm`
    Comm,
    /// `$current`: the address of the task's `task_struct`.
    Current,
    /// `$cgroup`: the path of the task's control group; the kernel has no such fetch.
    Cgroup,
    /// `$cmdline`: the words with which the task's program was started; the kernel has no such fetch.
    CommandLine,
    /// `@ADDR`: what lies there.
    Memory(u64),
    /// `@SYM[#N][+|-offs]`: what lies there.
    Symbol {
        /// `SYM`, or `SYM#N`
        symbol: String,
        /// `offs`
        offset: i64,
    },
    /// `@+OFFS`: what lies in a process's memory where this offset of the probed file is.
    FileMemory(i64),
    /// `\IMM`
    Number(i64),
    /// `\"text"`
    Text(String),
    /// `+|-[u]OFFS(FETCH)`: what lies at an offset from the address that `FETCH` gives.
    Dereference {
        /// `OFFS`
        offset: i64,
        /// `u`: in user memory.
        user: bool,
        /// `FETCH`
        of: Box<Spanned<FetchExpr>>,
    },
    /// `this_cpu_ptr(FETCH)`, `this_cpu_read(FETCH)`: the CPU's own one of the per-CPU variable at the address that `FETCH`
    /// gives; `@SYM` stands for the symbol's address here.
    PerCpu {
        /// `read`: what lies there, and not where it is.
        read: bool,
        /// `FETCH`
        of: Box<Spanned<FetchExpr>>,
    },
    /// `(STRUCT)FETCH->FIELD`
    Cast(Box<Cast>),
    /// `NAME`, `NAME->FIELD`, `$retval->FIELD.FIELD`: by the function's own parameters and types, and by its variables.
    Variable {
        /// The name of a parameter or a local variable, `$argN`, `$retval`, or `$current`.
        of: Spanned<Variable>,
        /// The members on the way.
        path: Vec<Step>,
    },
}

/// Where a path of members begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Variable {
    /// A parameter, or a local variable, which the kernel's own probes do not know.
    Named(String),
    /// `$retval`
    ReturnValue,
    /// `$argN`
    Argument(u32),
    /// `$current`
    Current,
}

/// `(STRUCT[,FIELD.FIELD])FETCH->FIELD`: a value as the address of a structure, or of a member of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cast {
    /// `STRUCT`
    pub structure: Spanned<String>,
    /// The members on the way to the one that the value is the address of; none where it is that of the structure.
    pub container_of: Vec<Spanned<String>>,
    /// The value.
    pub of: Spanned<FetchExpr>,
    /// The members on the way from the structure, one at least.
    pub path: Vec<Step>,
}

/// One step of a path of members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// `->` and not `.`: the value so far is a pointer.
    pub arrow: bool,
    /// The member.
    pub member: Spanned<String>,
}

/// How a value is read and shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchType {
    /// Of one element.
    pub element: Element,
    /// `[N]`, where given.
    pub count: Option<u32>,
}

/// The type of one element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// `u8` to `u64`; the number of bits.
    Unsigned(u8),
    /// `s8` to `s64`.
    Signed(u8),
    /// `x8` to `x64`.
    Hex(u8),
    /// `char`
    Char,
    /// `symbol`: an address, shown as symbol and offset.
    Symbol,
    /// `symstr`: the same as a string, so that filters see it.
    SymbolString,
    /// `string`
    String,
    /// `ustring`
    UserString,
    /// `b<width>@<offset>/<container>`, all in bits.
    BitField {
        /// Bits of the field.
        width: u8,
        /// Bits below it.
        offset: u8,
        /// Bits of what is read.
        container: u8,
    },
    /// `%pd`: the name of a `struct dentry`.
    Dentry,
    /// `%pD`: the name of a `struct file`.
    File,
    /// `path`: the whole path of a `struct path`; the kernel has no such type.
    Path,
}

/// Which hits count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterExpr {
    /// `a && b`
    And(Box<FilterExpr>, Box<FilterExpr>),
    /// `a || b`
    Or(Box<FilterExpr>, Box<FilterExpr>),
    /// `!a`
    Not(Box<FilterExpr>),
    /// `field op value`
    Compare {
        /// A fetched argument's name, or `common_pid`, `common_cpu`, `CPU`, `comm`...
        field: Spanned<String>,
        /// `.ustring`: the field holds the address of a string of the user.
        user_string: bool,
        /// How.
        op: Operator,
        /// With what.
        value: Spanned<Literal>,
    },
}

/// How a field is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the operators'")]
pub enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    /// `&`: any of the bits is set; for `CPUS{}`, the CPU is in the set.
    And,
    /// `~`: the string matches a pattern.
    Glob,
}

/// With what a field is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Literal {
    /// A number, of 64 bits with or without sign.
    Number(i128),
    /// `"text"`, or a word.
    Text(String),
    /// `CPUS{0-3,7}`, sorted.
    Cpus(Vec<Range<u32>>),
}

/// A histogram: `hist:keys=...:values=...:sort=...:size=...`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hist {
    /// By what is counted; one at least.
    pub keys: Vec<KeyExpr>,
    /// What is summed up besides the number of hits.
    pub values: Vec<Spanned<String>>,
    /// In what order the lines come; by hits when empty.
    pub sort: Vec<SortExpr>,
    /// How many different keys are kept, rounded up to a power of two; 2,048 by default.
    pub size: Option<Spanned<u32>>,
    /// `name=...`
    pub name: Option<Spanned<String>>,
}

/// A key of a histogram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyExpr {
    /// A fetched argument's name, or one of the fields that every event has; `common_stacktrace` is one.
    pub field: Spanned<String>,
    /// How it is grouped and shown.
    pub modifier: KeyModifier,
}

/// How a key is grouped and shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyModifier {
    /// As its type says.
    #[default]
    Plain,
    /// `.hex`
    Hex,
    /// `.sym`
    Symbol,
    /// `.sym-offset`
    SymbolOffset,
    /// `.syscall`: the name of a system call.
    SystemCall,
    /// `.execname`: a pid with the name of its process.
    Execname,
    /// `.log2`
    Log2,
    /// `.buckets=N`
    Buckets(u64),
}

/// A key of the order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SortExpr {
    /// `hitcount`, a key or a value.
    pub field: Spanned<String>,
    /// `.descending`
    pub descending: bool,
}
