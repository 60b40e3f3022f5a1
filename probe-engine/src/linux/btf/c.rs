//! Types written down in C, as their authors know them.
//!
//! A declaration is put together from the inside out: around the name come `*`, `[3]` and `(int)`, until the walk
//! along the types meets one that has a name of its own. Structures without a name are written out where they are
//! used. Types may be damaged and refer to each other in circles: depth, length of a declaration and number of lines
//! are bounded, and what is beyond is left out as `...`.

use std::fmt::Write;

use super::{Btf, Enumeration, FunctionType, Kind, Member, Modifier, Prototype, Structure, Type, TypeId};

/// Most pointers, qualifiers and dimensions around one name.
const MOST_AROUND: usize = 32;
/// Longest declaration that more is put around, in bytes.
const LONGEST_DECLARATOR: usize = 1 << 12;
/// How deep structures and parameters are written inside others.
const DEEPEST: usize = 8;
/// Most members, enumerators and parameters in all; a type itself has at most 65,535.
const MOST_ENTRIES: usize = 1 << 16;
/// Where the comments begin, counted from 0.
const COMMENT_COLUMN: usize = 48;
/// One more level of indentation.
const INDENT: usize = 4;
/// What stands for what is left out.
const LEFT_OUT: &str = "...";

/// What a type is, in full, as one or several lines without an end of line:
///
/// ```c
/// struct list_head {
///     struct list_head *next;                     /* offset: 0, size: 8 */
///     struct list_head *prev;                     /* offset: 8, size: 8 */
/// };                                              /* size: 16 */
/// ```
///
/// Offsets are bytes from the start of the outermost structure, sizes are bytes, and a bit-field's offset is
/// followed by the bit in that byte where it begins.
#[must_use]
pub fn definition(btf: &Btf<'_>, ty: Type<'_>) -> String {
    let mut writer = Writer { btf, left: MOST_ENTRIES };
    let name = ty.name();
    let text = match ty.kind {
        Kind::Structure(structure) => writer.structure(name, structure, 0, 0),
        Kind::Enumeration(enumeration) => writer.enumeration(name, enumeration, 0),
        Kind::Typedef(to) => format!("typedef {}", writer.declaration(to, name, 0, Some(0))),
        Kind::Variable { ty, .. } => writer.declaration(ty, name, 0, Some(0)),
        Kind::Function { prototype, .. } => writer.declaration(prototype, name, 0, None),
        Kind::Section(section) => {
            let mut text = format!("/* section {name}, size: {} */", section.size);
            for (variable, offset, size) in section.variables() {
                let found = btf.get(variable);
                let Some(Kind::Variable { ty, .. }) = found.map(|found| found.kind) else { continue };
                let line = writer.declaration(ty, found.map_or("", Type::name), 0, None);
                let comment = format!("offset: {offset}, size: {size}");
                let _ = write!(text, "\n{}", commented(&format!("{line};"), &comment));
            }
            return text;
        }
        Kind::Tag { ty, .. } => {
            return format!("/* tag \"{name}\" of {} */", btf.get(ty).map_or("", Type::name));
        }
        _ => writer.declaration(ty.id, "", 0, Some(0)),
    };
    match (ty.kind, btf.size(ty.id)) {
        (Kind::Typedef(_) | Kind::Variable { .. }, _) if !text.contains('\n') => format!("{text};"),
        (_, Some(size)) => commented(&format!("{text};"), &format!("size: {size}")),
        (_, None) => format!("{text};"),
    }
}

/// A type in one line, without what it consists of: `struct list_head`, `typedef gfp_t`, a function's declaration.
#[must_use]
pub fn title(btf: &Btf<'_>, ty: Type<'_>) -> String {
    let name = ty.name();
    match ty.kind {
        Kind::Typedef(_) => tagged("typedef", name),
        Kind::Variable { ty, .. } | Kind::Function { prototype: ty, .. } => declaration(btf, ty, name),
        Kind::Section(_) | Kind::Tag { .. } => {
            definition(btf, ty).lines().next().unwrap_or_default().to_owned()
        }
        _ => declaration(btf, ty.id, ""),
    }
}

/// A function's declaration, on one line and without `;`: `int vfs_fsync(struct file *file, int datasync)`.
#[must_use]
pub fn prototype(btf: &Btf<'_>, function: FunctionType<'_>) -> String {
    let Some(found) = btf.get(function.id) else { return String::new() };
    let Kind::Function { prototype, .. } = found.kind else { return String::new() };
    declaration(btf, prototype, found.name())
}

/// The declaration of something of that type, on one line and without `;`: `const char *name`.
#[must_use]
pub fn declaration(btf: &Btf<'_>, ty: TypeId, name: &str) -> String {
    Writer { btf, left: MOST_ENTRIES }.declaration(ty, name, 0, None)
}

/// A line, or several, and a comment behind it.
fn commented(text: &str, comment: &str) -> String {
    let width = text.rsplit('\n').next().unwrap_or_default().chars().count();
    let gap = COMMENT_COLUMN.saturating_sub(width).max(1);
    format!("{text}{:gap$}/* {comment} */", "")
}

/// `struct name`; only the keyword when it has no name.
fn tagged(keyword: &str, name: &str) -> String {
    if name.is_empty() { keyword.to_owned() } else { format!("{keyword} {name}") }
}

fn keyword(is_union: bool) -> &'static str {
    if is_union { "union" } else { "struct" }
}

struct Writer<'w> {
    btf: &'w Btf<'w>,
    /// How many more members, enumerators and parameters are written.
    left: usize,
}

impl Writer<'_> {
    /// Whether one more may be written.
    fn one_more(&mut self) -> bool {
        let more = self.left > 0;
        self.left = self.left.saturating_sub(1);
        more
    }

    /// A declaration of `name`. Structures without a name are written out when it is said at which `bit` they begin,
    /// and the lines of their members are indented `depth` times.
    fn declaration(&mut self, ty: TypeId, name: &str, depth: usize, bit: Option<u64>) -> String {
        let (mut ty, mut bit) = (ty, bit);
        let mut declarator = name.to_owned();
        // What was said of the type that comes next.
        let mut qualifiers = String::new();
        let mut base = LEFT_OUT.to_owned();
        for _ in 0..MOST_AROUND {
            let Some(found) = self.btf.get(ty).filter(|_| declarator.len() <= LONGEST_DECLARATOR) else {
                break;
            };
            // `*` binds less than what is behind a name.
            if matches!(found.kind, Kind::Array { .. } | Kind::Prototype(_)) && declarator.starts_with('*') {
                declarator = format!("({declarator})");
            }
            match found.kind {
                Kind::Pointer(to) => {
                    declarator = format!("*{qualifiers}{declarator}");
                    if declarator.ends_with(' ') {
                        declarator.pop();
                    }
                    qualifiers.clear();
                    // What is pointed to begins somewhere else.
                    bit = bit.map(|_| 0);
                    ty = to;
                }
                Kind::Array { element, count } => {
                    let _ = match count {
                        0 => write!(declarator, "[]"),
                        _ => write!(declarator, "[{count}]"),
                    };
                    ty = element;
                }
                Kind::Prototype(prototype) => {
                    let parameters = self.parameters(prototype, depth);
                    let _ = write!(declarator, "({parameters})");
                    // A function has no qualifiers: they are how GCC notes what it knows of calls.
                    qualifiers.clear();
                    ty = prototype.returns;
                }
                Kind::Modifier { modifier, ty: to } => {
                    let _ = match modifier {
                        Modifier::Const => write!(qualifiers, "const "),
                        Modifier::Volatile => write!(qualifiers, "volatile "),
                        Modifier::Restrict => write!(qualifiers, "restrict "),
                        // As the kernel's sources write it.
                        Modifier::TypeTag => write!(qualifiers, "__{} ", found.name()),
                    };
                    ty = to;
                }
                _ => {
                    base = self.base(found, depth, bit);
                    break;
                }
            }
        }
        // `const char __user *name`: tags stand behind.
        let (tags, mut words): (Vec<&str>, Vec<&str>) =
            qualifiers.split_whitespace().partition(|word| word.starts_with("__"));
        words.push(&base);
        words.extend(tags);
        if !declarator.is_empty() {
            words.push(&declarator);
        }
        words.join(" ")
    }

    /// What a declaration begins with.
    fn base(&mut self, ty: Type<'_>, depth: usize, bit: Option<u64>) -> String {
        let name = ty.name();
        let bit = bit.filter(|_| name.is_empty() && depth < DEEPEST);
        match (ty.kind, bit) {
            (Kind::Void, _) => "void".to_owned(),
            (Kind::Structure(structure), Some(bit)) => self.structure("", structure, depth, bit),
            (Kind::Enumeration(enumeration), Some(_)) => self.enumeration("", enumeration, depth),
            (Kind::Structure(Structure { is_union, .. }) | Kind::Forward { is_union }, _) => {
                let body = if name.is_empty() { " {...}" } else { "" };
                tagged(keyword(is_union), name) + body
            }
            (Kind::Enumeration(_), None) => {
                let body = if name.is_empty() { " {...}" } else { "" };
                tagged("enum", name) + body
            }
            _ if name.is_empty() => LEFT_OUT.to_owned(),
            _ => name.to_owned(),
        }
    }

    /// `int dfd, const char *filename, ...`
    fn parameters(&mut self, prototype: Prototype<'_>, depth: usize) -> String {
        let mut list = Vec::new();
        for (name, ty) in prototype.parameters() {
            if depth == DEEPEST || !self.one_more() {
                list.push(LEFT_OUT.to_owned());
                return list.join(", ");
            }
            list.push(self.declaration(ty, name, depth + 1, None));
        }
        if prototype.is_variadic() {
            list.push("...".to_owned());
        }
        if list.is_empty() { "void".to_owned() } else { list.join(", ") }
    }

    /// `struct name {...}`, in lines. The first has no indentation: something may stand before it.
    fn structure(&mut self, name: &str, structure: Structure<'_>, depth: usize, bit: u64) -> String {
        let mut text = tagged(keyword(structure.is_union), name) + " {\n";
        for member in structure.members() {
            let line =
                if self.one_more() { self.member(member, depth + 1, bit) } else { LEFT_OUT.to_owned() };
            let _ = writeln!(text, "{:1$}{line}", "", INDENT * (depth + 1));
            if self.left == 0 {
                break;
            }
        }
        let _ = write!(text, "{:1$}}}", "", INDENT * depth);
        text
    }

    /// A member, of a structure that begins at `bit`.
    fn member(&mut self, member: Member<'_>, depth: usize, bit: u64) -> String {
        let bit = bit.saturating_add(member.bit);
        let mut line = self.declaration(member.ty, member.name, depth, Some(bit));
        let mut comment = format!("offset: {}", bit / 8);
        match (member.bits, self.btf.size(member.ty)) {
            (Some(bits), _) => {
                let _ = write!(line, " : {bits}");
                let _ = write!(comment, ", bit: {}", bit % 8);
            }
            (None, Some(size)) => {
                let _ = write!(comment, ", size: {size}");
            }
            (None, None) => {}
        }
        line.push(';');
        // The line itself is indented, its last one if there are several has been already.
        let indent = if line.contains('\n') { 0 } else { INDENT * depth };
        let indented = commented(&format!("{:indent$}{line}", ""), &comment);
        indented.get(indent..).unwrap_or_default().to_owned()
    }

    /// `enum name {...}`, in lines.
    fn enumeration(&mut self, name: &str, enumeration: Enumeration<'_>, depth: usize) -> String {
        let mut text = tagged("enum", name) + " {\n";
        for (name, value) in enumeration.values() {
            let indent = INDENT * (depth + 1);
            if !self.one_more() {
                let _ = writeln!(text, "{:indent$}{LEFT_OUT}", "");
                break;
            }
            let _ = match enumeration.is_signed {
                true => writeln!(text, "{:indent$}{name} = {value},", ""),
                false => writeln!(text, "{:indent$}{name} = {},", "", value as u64),
            };
        }
        let _ = write!(text, "{:1$}}}", "", INDENT * depth);
        text
    }
}

#[cfg(test)]
mod tests;
