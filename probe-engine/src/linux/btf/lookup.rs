//! Questions that are asked of the types: where a member lies, how large something is, what a function takes.

use super::{Btf, Kind, Member, Prototype, Structure, Type, TypeId};
use crate::linux::symbols::promoted_from;

/// Longest chain of typedefs and qualifiers, and most dimensions of an array.
const LONGEST_CHAIN: usize = 32;
/// Most structures that are searched for one member: it and all the anonymous ones in it.
const MOST_NESTED: usize = 1 << 10;

/// A function and what it takes and returns.
#[derive(Debug, Clone, Copy)]
pub struct FunctionType<'a> {
    /// Its number, by which BPF programs are attached to it.
    pub id: TypeId,
    /// What it takes and returns.
    pub prototype: Prototype<'a>,
    /// How many more functions of that name there are, each with another prototype.
    pub others: usize,
}

impl<'a> Btf<'a> {
    /// The type behind typedefs and qualifiers; `None` when there is none, or it is too far away.
    #[must_use]
    pub fn plain(&self, id: TypeId) -> Option<Type<'a>> {
        let mut id = id;
        for _ in 0..LONGEST_CHAIN {
            let found = self.get(id)?;
            match found.kind {
                Kind::Typedef(ty) | Kind::Modifier { ty, .. } => id = ty,
                _ => return Some(found),
            }
        }
        None
    }

    /// Bytes of a type, or of a variable; `None` for what has no size, such as a function.
    #[must_use]
    pub fn size(&self, id: TypeId) -> Option<u64> {
        let mut elements = 1u64;
        let mut id = id;
        for _ in 0..LONGEST_CHAIN {
            let size = match self.plain(id)?.kind {
                Kind::Array { element, count } => {
                    elements = elements.checked_mul(count.into())?;
                    id = element;
                    continue;
                }
                Kind::Variable { ty, .. } => {
                    id = ty;
                    continue;
                }
                Kind::Pointer(_) => 8,
                Kind::Int(int) => int.bytes,
                Kind::Structure(structure) => structure.size,
                Kind::Enumeration(enumeration) => enumeration.size,
                Kind::Section(section) => section.size,
                Kind::Float { size } => size,
                Kind::Void
                | Kind::Forward { .. }
                | Kind::Typedef(_)
                | Kind::Modifier { .. }
                | Kind::Function { .. }
                | Kind::Prototype(_)
                | Kind::Tag { .. } => return None,
            };
            return elements.checked_mul(size.into());
        }
        None
    }

    /// The type of an array's elements, and how many there are.
    #[must_use]
    pub fn array(&self, id: TypeId) -> Option<(TypeId, u32)> {
        if let Kind::Array { element, count } = self.plain(id)?.kind { Some((element, count)) } else { None }
    }

    /// What a pointer points to.
    #[must_use]
    pub fn pointee(&self, id: TypeId) -> Option<TypeId> {
        if let Kind::Pointer(to) = self.plain(id)?.kind { Some(to) } else { None }
    }

    /// The first function of that name.
    #[must_use]
    pub fn function(&self, name: &str) -> Option<FunctionType<'a>> {
        // Types are of the source.
        let name = promoted_from(name).unwrap_or(name);
        let mut functions = self.named(name).filter_map(|found| {
            let Kind::Function { prototype, .. } = found.kind else { return None };
            let Kind::Prototype(view) = self.get(prototype)?.kind else { return None };
            Some((found.id, prototype, view))
        });
        let (id, first, prototype) = functions.next()?;
        // Whoever made the section keeps one of those that are the same.
        let others = functions.filter(|(_, other, _)| *other != first).count();
        Some(FunctionType { id, prototype, others })
    }

    /// The first structure or union of that name.
    #[must_use]
    pub fn structure(&self, name: &str) -> Option<Structure<'a>> {
        self.named(name).find_map(Type::structure)
    }

    /// Bytes of a structure or union, the first of that name.
    #[must_use]
    pub fn size_of(&self, structure: &str) -> Option<u64> {
        self.structure(structure).map(|found| found.size.into())
    }

    /// The value of an enumerator: `enum_value("mod_mem_type", "MOD_INIT_TEXT")`.
    #[must_use]
    pub fn enum_value(&self, enumeration: &str, name: &str) -> Option<i64> {
        self.named(enumeration).find_map(|found| {
            let Kind::Enumeration(found) = found.kind else { return None };
            found.values().find(|(own, _)| *own == name).map(|(_, value)| value)
        })
    }

    /// The first structure or union of that name that has the member, and where: `list`, `core_layout.base`,
    /// `mem[4].size`. Members of anonymous structures and unions are members of what is around them, as in C.
    #[must_use]
    pub fn member(&self, structure: &str, path: &str) -> Option<Member<'a>> {
        self.named(structure).filter_map(Type::structure).find_map(|found| {
            let mut place = Member { name: "", bit: 0, bits: None, ty: found.id };
            for step in path.split('.') {
                let (name, index) = match step.strip_suffix(']').and_then(|step| step.split_once('[')) {
                    Some((name, index)) => (name, Some(index.parse::<u32>().ok()?)),
                    None => (step, None),
                };
                let inner = self.member_of(place.ty, name)?;
                place = Member { bit: place.bit.checked_add(inner.bit)?, ..inner };
                if let Some(index) = index {
                    let (element, count) = self.array(place.ty)?;
                    let skipped = self.size(element)?.checked_mul(8)?.checked_mul(u64::from(index))?;
                    let bit = place.bit.checked_add(skipped).filter(|_| index < count)?;
                    place = Member { bit, bits: None, ty: element, ..place };
                }
            }
            Some(place)
        })
    }

    /// The member of that name, in the structure or union itself (behind typedefs and qualifiers), or in anonymous
    /// ones inside it. It lies so many bits from the start of `structure`.
    #[must_use]
    pub fn member_of(&self, structure: TypeId, name: &str) -> Option<Member<'a>> {
        self.find_member(structure, |member| (member.name == name).then_some(member))
    }

    /// The names of all members that [`member_of`](Self::member_of) finds in a structure or union.
    #[must_use]
    pub fn member_names(&self, structure: TypeId) -> Vec<&'a str> {
        let mut names = Vec::new();
        self.find_member(structure, |member| {
            names.push(member.name);
            None::<()>
        });
        names
    }

    /// What `of` makes of the first member with a name of which it makes anything.
    fn find_member<T>(&self, structure: TypeId, mut of: impl FnMut(Member<'a>) -> Option<T>) -> Option<T> {
        let mut open = vec![(self.plain(structure)?.structure()?, 0u64)];
        let mut next = 0;
        while let Some((outer, base)) = open.get(next).copied() {
            next += 1;
            for member in outer.members() {
                let bit = base.checked_add(member.bit)?;
                let has_name = !member.name.is_empty();
                if let Some(found) = has_name.then(|| of(Member { bit, ..member })).flatten() {
                    return Some(found);
                }
                if !has_name
                    && open.len() < MOST_NESTED
                    && let Some(inner) = self.plain(member.ty).and_then(Type::structure)
                {
                    open.push((inner, bit));
                }
            }
        }
        None
    }
}
