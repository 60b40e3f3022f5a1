//! BTF, the kernel's format for types: as much of it as the steps need.
//!
//! The kernel's description is `Documentation/bpf/btf.rst`; all numbers are little endian. Types are numbered from 1
//! in their order.

/// The number of the one integer type of [`nested_arrays`].
pub(crate) const INT: u32 = 1;

const MAGIC_AND_VERSION: u32 = 0x0001_eb9f;
const HEADER: u32 = 24;
/// `kind` in the second word of a type.
const KIND_SHIFT: u32 = 24;
const KIND_INT: u32 = 1;
const KIND_ARRAY: u32 = 3;
const KIND_FUNC: u32 = 12;

/// `int`, which is type [`INT`], and after it `depth` array types: each is one element of the type before it.
pub(crate) fn nested_arrays(depth: u32) -> Vec<u8> {
    const STRINGS: &[u8; 8] = b"\0int\0\0\0\0";
    const NAME: u32 = 1;
    const SIGNED_32_BITS: u32 = 1 << 24 | 32;
    let mut types = vec![NAME, KIND_INT << KIND_SHIFT, 4, SIGNED_32_BITS];
    for element in INT..INT + depth {
        types.extend([0, KIND_ARRAY << KIND_SHIFT, 0, element, INT, 1]);
    }
    let length = 4 * types.len() as u32;
    let mut words = vec![MAGIC_AND_VERSION, HEADER, 0, length, length, STRINGS.len() as u32];
    words.extend(types);
    words.iter().flat_map(|word| word.to_le_bytes()).chain(*STRINGS).collect()
}

/// The number of a function's type.
pub(crate) fn function_id(btf: &[u8], function: &str) -> Option<u32> {
    let word = |at: usize| Some(u32::from_le_bytes(*btf.get(at..)?.first_chunk()?));
    let [header, types, length, strings] =
        [word(4)?, word(8)?, word(12)?, word(16)?].map(|word| word as usize);
    let end = header + types + length;
    let mut at = header + types;
    for id in 1.. {
        if at >= end {
            break;
        }
        let (name, info) = (word(at)? as usize, word(at + 4)?);
        let kind = info >> KIND_SHIFT & 0x1f;
        let text = btf.get(header + strings + name..)?;
        if kind == KIND_FUNC
            && text.strip_prefix(function.as_bytes()).is_some_and(|rest| rest.starts_with(&[0]))
        {
            return Some(id);
        }
        at += 12 + behind(kind, (info & 0xffff) as usize);
    }
    None
}

/// How many bytes follow the three words of a type with `members`.
fn behind(kind: u32, members: usize) -> usize {
    match kind {
        // An integer, a variable, a tag of a declaration.
        KIND_INT | 14 | 17 => 4,
        KIND_ARRAY => 12,
        // Structures, unions, sections, enumerations of 64 bits.
        4 | 5 | 15 | 19 => 12 * members,
        // Enumerations, prototypes.
        6 | 13 => 8 * members,
        _ => 0,
    }
}
