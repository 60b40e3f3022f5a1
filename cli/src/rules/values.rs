//! Types of arguments, as Tetragon calls them (pkg/generictypes), as fetches of the probe language. A type that cannot be read as
//! Tetragon means it is refused.

use super::mistake::Mistake;
use super::policy::{Argument, ValueSource};
use probe_engine::lang::ast::{Span, Spanned};
use probe_engine::linux::nearest::nearest;

/// A value that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) name: String,
    /// What is fetched, with its type.
    pub(super) fetch: String,
    /// The place of what asks for it in the file.
    pub(super) span: Span,
}

/// What values of a type are, and how they are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Number,
    Text,
    /// The last part of a path.
    LastName,
    /// Several fields, which are shown.
    Several,
    /// Nothing is read.
    Nothing,
}

/// How a type is read.
struct Known {
    name: &'static str,
    kind: Kind,
    /// What the names of fields end in, and what is fetched: `@` stands for the value.
    fetches: &'static [(&'static str, &'static str)],
}

const fn known(name: &'static str, kind: Kind, fetches: &'static [(&'static str, &'static str)]) -> Known {
    Known { name, kind, fetches }
}

const NUMBER: Kind = Kind::Number;

const TYPES: &[Known] = &[
    known("auto", NUMBER, &[("", "@")]),
    known("nop", Kind::Nothing, &[]),
    known("int", NUMBER, &[("", "@:s32")]),
    known("int8", NUMBER, &[("", "@:s8")]),
    known("sint8", NUMBER, &[("", "@:s8")]),
    known("uint8", NUMBER, &[("", "@:u8")]),
    known("int16", NUMBER, &[("", "@:s16")]),
    known("sint16", NUMBER, &[("", "@:s16")]),
    known("uint16", NUMBER, &[("", "@:u16")]),
    known("int32", NUMBER, &[("", "@:s32")]),
    known("sint32", NUMBER, &[("", "@:s32")]),
    known("uint32", NUMBER, &[("", "@:u32")]),
    known("int64", NUMBER, &[("", "@:s64")]),
    known("sint64", NUMBER, &[("", "@:s64")]),
    known("long", NUMBER, &[("", "@:s64")]),
    known("uint64", NUMBER, &[("", "@:u64")]),
    known("ulong", NUMBER, &[("", "@:u64")]),
    known("size_t", NUMBER, &[("", "@:u64")]),
    known("syscall64", NUMBER, &[("", "@:s64")]),
    known("capability", NUMBER, &[("", "@:s32")]),
    known("bpf_cmd", NUMBER, &[("", "@:s32")]),
    known("kernel_cap_t", NUMBER, &[("", "+0(@):x64")]),
    known("cap_inheritable", NUMBER, &[("", "+0(@):x64")]),
    known("cap_permitted", NUMBER, &[("", "+0(@):x64")]),
    known("cap_effective", NUMBER, &[("", "+0(@):x64")]),
    known("string", Kind::Text, &[("", "+0(@):string")]),
    known("filename", Kind::Text, &[("", "@->name:string")]),
    known("linux_binprm", Kind::Text, &[("", "@->file->f_path:path")]),
    known("module", Kind::Text, &[("", "@->name:string")]),
    known("load_info", Kind::Text, &[("", "@->name:string")]),
    known("net_device", Kind::Text, &[("", "@->name:string")]),
    known(COMMAND_LINE, Kind::Text, &[("", "$cmdline")]),
    known("file", Kind::Text, &[("", "@->f_path:path")]),
    known("kiocb", Kind::Text, &[("", "@->ki_filp->f_path:path")]),
    known("path", Kind::Text, &[("", "@:path")]),
    known("dentry", Kind::LastName, &[("", "@->d_name.name:string")]),
    known(
        "cred",
        Kind::Several,
        &[
            ("_uid", "@->uid.val"),
            ("_gid", "@->gid.val"),
            ("_euid", "@->euid.val"),
            ("_egid", "@->egid.val"),
            ("_suid", "@->suid.val"),
            ("_sgid", "@->sgid.val"),
        ],
    ),
    known(
        "user_namespace",
        Kind::Several,
        &[
            ("_level", "@->level"),
            ("_owner", "@->owner.val"),
            ("_group", "@->group.val"),
            ("_inum", "@->ns.inum"),
        ],
    ),
    known(
        "sock",
        Kind::Several,
        &[
            ("_family", "@->__sk_common.skc_family"),
            ("_type", "@->sk_type"),
            ("_protocol", "@->sk_protocol"),
            ("_state", "@->__sk_common.skc_state"),
            ("_sport", "@->__sk_common.skc_num"),
            // In the order of the network: the bytes as they are.
            ("_dport", "@->__sk_common.skc_dport:u8[2]"),
            ("_daddr", "@->__sk_common.skc_daddr:u8[4]"),
        ],
    ),
    known("sockaddr", Kind::Several, &[("_family", "@->sa_family")]),
    known(
        "bpf_attr",
        Kind::Several,
        &[("_prog_type", "@->prog_type"), ("_prog_name", "@->prog_name:string")],
    ),
    known(
        "bpf_map",
        Kind::Several,
        &[
            ("_type", "@->map_type:u32"),
            ("_key_size", "@->key_size"),
            ("_value_size", "@->value_size"),
            ("_max_entries", "@->max_entries"),
            ("_name", "@->name:string"),
        ],
    ),
    known(
        "bpf_prog",
        Kind::Several,
        &[("_type", "@->type:u32"), ("_len", "@->len"), ("_name", "@->aux->name:string")],
    ),
];

/// A type of ours: the words with which the task's program was started.
pub(super) const COMMAND_LINE: &str = "command_line";

/// Types that are not read, and what to do then.
const REFUSED: &[(&str, &str)] = &[
    ("fd", "the file behind a descriptor is not read here: `int` is its number"),
    ("char_buf", BUFFER),
    ("const_buf", BUFFER),
    ("char_iovec", BUFFER),
    ("iov_iter", BUFFER),
    ("data_loc", BUFFER),
    ("int32_arr", "name a member with `resolve`"),
    ("skb", "packets are not taken apart here: leave it out"),
    ("socket", "hook a function that has a `sock`, or name a member with `resolve`"),
    ("perf_event", "name a member with `resolve`, as `attr.type`"),
];
const BUFFER: &str = "buffers are not read: use `string` where it is text, or leave it out";

/// How values of `argument` are compared.
pub(super) fn kind(argument: &Argument) -> Result<Kind, Mistake> {
    Ok(find(argument)?.kind)
}

fn find(argument: &Argument) -> Result<&'static Known, Mistake> {
    let Spanned { value: name, span } = &argument.ty;
    if let Some(known) = TYPES.iter().find(|known| known.name == name) {
        return Ok(known);
    }
    if let Some((_, hint)) = REFUSED.iter().find(|(own, _)| own == name) {
        return Err(Mistake::new(span.clone(), format!("the type `{name}` is not read here")).hint(*hint));
    }
    let near = nearest(TYPES.iter().map(|known| known.name), name, 2);
    let near: Vec<_> = near.iter().map(|name| format!("`{name}`")).collect();
    let mistake = Mistake::new(span.clone(), format!("there is no type `{name}`"));
    Err(match near.is_empty() {
        true => mistake.hint("docs/rules.md has them all"),
        false => mistake.hint(format!("there is {}", near.join(", "))),
    })
}

/// The name of an argument's field; of several, what their names begin with.
pub(super) fn name(argument: &Argument, number: usize) -> String {
    match (&argument.label, argument.of) {
        // The language has letters, digits and `_`.
        (Some(label), _) => {
            let letters = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
            let name: String = label.value.chars().map(letters).collect();
            if name.starts_with(|c: char| c.is_ascii_digit()) { format!("_{name}") } else { name }
        }
        (None, ValueSource::Argument(index)) => format!("arg{index}"),
        (None, ValueSource::Task) => format!("data{number}"),
        (None, ValueSource::Returned) => "ret".to_owned(),
    }
}

/// What is read of `argument`, which is number `number` of its list.
pub(super) fn fields(argument: &Argument, number: usize) -> Result<Vec<Field>, Mistake> {
    let known = find(argument)?;
    let of = match argument.of {
        ValueSource::Argument(index) => format!("$arg{}", index + 1),
        ValueSource::Task => "$current".to_owned(),
        ValueSource::Returned => "$retval".to_owned(),
    };
    let (of, has_path) = match &argument.resolve {
        None => (of, false),
        Some(path) => (format!("{of}->{}", checked_path(path)?), true),
    };
    let name = name(argument, number);
    let field = |(suffix, fetch): &(&str, &str)| {
        // A member has a type, by which it is known whether it is an array of characters or leads to them.
        let fetch = if has_path && argument.ty.value == "string" { "@:string" } else { fetch };
        let span = argument.resolve.as_ref().map_or(&argument.ty.span, |path| &path.span).clone();
        Field { name: format!("{name}{suffix}"), fetch: fetch.replace('@', &of), span }
    };
    Ok(known.fetches.iter().map(field).collect())
}

/// Members, with dots between them. Where the kernel has a pointer, an arrow is meant.
fn checked_path(path: &Spanned<String>) -> Result<&str, Mistake> {
    let is_name =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    match path.value.split('.').all(is_name) {
        true => Ok(&path.value),
        false => Err(Mistake::new(
            path.span.clone(),
            "`resolve` is names of members with dots between them".to_owned(),
        )),
    }
}
