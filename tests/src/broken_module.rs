//! Modules with bugs, and one that spins: the kernel's own `dummy.ko` with other instructions in its init and exit functions.
//!
//! Nothing is built for them, so that they load wherever that module does. A relocation of what was overwritten is made none.

use crate::product::module;
use iced_x86::{Decoder, DecoderOptions};
use object::elf::{R_X86_64_64, R_X86_64_NONE};
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol, RelocationTarget};
use std::ops::Range;

/// What is wrong with a module.
#[derive(Debug, Clone, Copy)]
pub enum Bug {
    /// Its init reads from address 0.
    NullPointer,
    /// Its init never ends.
    Endless,
    /// Its init does nothing, and its exit takes from a list what is not there.
    ListCorruption,
    /// Its init does not take the lock that it needs, where an init of this module has to.
    NoLock,
    /// Its init leaves interrupts disabled, of which the kernel warns.
    InterruptsOff,
}

impl Bug {
    /// What is in the init function's place, if that does not do its own work.
    fn code(self) -> &'static [u8] {
        match self {
            // mov eax, [0]
            Self::NullPointer => &[0x8b, 0x04, 0x25, 0, 0, 0, 0],
            // jmp to itself
            Self::Endless => &[0xeb, 0xfe],
            // xor eax, eax; ret
            Self::ListCorruption => &[0x31, 0xc0, 0xc3],
            Self::NoLock => &[],
            // cli; xor eax, eax; ret
            Self::InterruptsOff => &[0xfa, 0x31, 0xc0, 0xc3],
        }
    }
}

const SIGNED: &[u8] = b"~Module signature appended~\n";
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
const CALL: u8 = 0xe8;
const LONG_NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];

/// A function of a module that is called by its loader.
const INIT: Called = Called { section: ".init.text", symbol: "init_module" };
const EXIT: Called = Called { section: ".exit.text", symbol: "cleanup_module" };

struct Called {
    section: &'static str,
    symbol: &'static str,
}

/// A relocation of such a function: where it is in the section, its symbol, and where its entry is in the file.
struct Relocation {
    at: usize,
    symbol: String,
    entry: usize,
}

/// A module of the kernel under test with this bug, under this name of five letters.
pub fn broken(bug: Bug, name: &[u8; 5]) -> Vec<u8> {
    let mut bytes = module("dummy");
    let (text, _, relocations) = layout(&bytes, &INIT);
    replace(&mut bytes, &INIT, bug.code());
    for relocation in &relocations {
        let is_lock = ["rtnl_lock", "rtnl_unlock"].contains(&relocation.symbol.as_str());
        if matches!(bug, Bug::NoLock) && is_lock {
            bytes[text + relocation.at - 1..][..LONG_NOP.len()].copy_from_slice(&LONG_NOP);
            bytes[relocation.entry + 8..][..4].copy_from_slice(&R_X86_64_NONE.to_le_bytes());
        }
    }
    rename(&mut bytes, name);
    unsigned(bytes)
}

/// The module `dummy`, whose init goes through a loop so often with interrupts off, and whose exit does the same with interrupts
/// on.
pub fn spinning(rounds: u32) -> Vec<u8> {
    const RET: [u8; 1] = [0xc3];
    // mov ecx, rounds; dec ecx; jnz back to that
    let spin = [&[0xb9], &rounds.to_le_bytes()[..], &[0xff, 0xc9, 0x75, 0xfc]].concat();
    // cli .. sti; xor eax, eax
    let init = [&[0xfa], &spin[..], &[0xfb, 0x31, 0xc0], &RET].concat();
    let mut bytes = module("dummy");
    replace(&mut bytes, &INIT, &init);
    replace(&mut bytes, &EXIT, &[&spin[..], &RET].concat());
    unsigned(bytes)
}

/// The module `dummy` under this name of five letters, whose init is this code.
pub fn running(code: &[u8], name: &[u8; 5]) -> Vec<u8> {
    let mut bytes = module("dummy");
    replace(&mut bytes, &INIT, code);
    rename(&mut bytes, name);
    unsigned(bytes)
}

/// The same, whose code has the address of this function of the module's in its 8 bytes from `place` on.
pub fn running_with(code: &[u8], name: &[u8; 5], place: usize, function: &str) -> Vec<u8> {
    let mut bytes = module("dummy");
    let (_, _, relocations) = layout(&bytes, &INIT);
    let start = replace(&mut bytes, &INIT, code);
    let overwritten =
        relocations.iter().find(|Relocation { at, .. }| (start..start + code.len()).contains(at));
    let entry = overwritten.unwrap().entry;
    let symbol = {
        let file = ElfFile64::<LittleEndian>::parse(&*bytes).unwrap();
        file.symbols().find(|symbol| symbol.name() == Ok(function)).unwrap().index().0 as u64
    };
    // Elf64_Rela {u64 offset, u64 info, s64 addend}
    let words = [(start + place) as u64, symbol << 32 | u64::from(R_X86_64_64), 0];
    for (at, word) in (entry..).step_by(8).zip(words) {
        bytes[at..][..8].copy_from_slice(&word.to_le_bytes());
    }
    rename(&mut bytes, name);
    unsigned(bytes)
}

/// This file of the module `dummy` under this name of five letters.
pub fn renamed(mut bytes: Vec<u8>, name: &[u8; 5]) -> Vec<u8> {
    rename(&mut bytes, name);
    unsigned(bytes)
}

/// The place behind the call of ftrace's at the start of a function of this module.
pub fn behind_call(bytes: &[u8], function: &str) -> String {
    let file = ElfFile64::<LittleEndian>::parse(bytes).unwrap();
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(function)).unwrap();
    let section = file.section_by_index(symbol.section_index().unwrap()).unwrap();
    let code = &section.data().unwrap()[symbol.address() as usize..];
    let before = if code.starts_with(&ENDBR64) { ENDBR64.len() } else { 0 };
    assert_eq!(code[before], CALL);
    format!("{function}+{}", before + LONG_NOP.len())
}

/// Puts `code` in the place of the function's own, behind what it begins with for an indirect call and for ftrace. Returns where in
/// its section.
fn replace(bytes: &mut [u8], function: &Called, code: &[u8]) -> usize {
    let (text, Range { mut start, end }, relocations) = layout(bytes, function);
    if bytes[text + start..].starts_with(&ENDBR64) {
        start += ENDBR64.len();
    }
    // Exits are not traced.
    if bytes[text + start] == CALL {
        start += LONG_NOP.len();
    }
    for (start, code) in around(code, start, &static_calls(bytes, function)) {
        assert!(start + code.len() <= end, "the function is too short");
        bytes[text + start..][..code.len()].copy_from_slice(&code);
        for Relocation { at, entry, .. } in &relocations {
            if *at < start + code.len() && at + 4 > start {
                bytes[entry + 8..][..4].copy_from_slice(&R_X86_64_NONE.to_le_bytes());
            }
        }
    }
    start
}

/// Where in the function's section static calls are: the kernel looks at these instructions when the module comes.
fn static_calls(bytes: &[u8], function: &Called) -> Vec<usize> {
    let file = ElfFile64::<LittleEndian>::parse(bytes).unwrap();
    let section = file.section_by_name(function.section).unwrap().index();
    // struct static_call_site {s32 addr, key}: each is where something is from where it lies.
    let sites = file.section_by_name(".static_call_sites");
    let relocations = sites.iter().flat_map(|sites| sites.relocations()).filter(|(at, _)| at % 8 == 0);
    let places = relocations.filter_map(|(_, relocation)| {
        let RelocationTarget::Symbol(symbol) = relocation.target() else { panic!("no symbol") };
        let symbol = file.symbol_by_index(symbol).unwrap();
        let place = symbol.address() as i64 + relocation.addend();
        (symbol.section_index() == Some(section)).then_some(place as usize)
    });
    places.collect()
}

/// Lays out `code` from `start` on in pieces, each of which but the last jumps over one of these `calls`.
fn around(code: &[u8], start: usize, calls: &[usize]) -> Vec<(usize, Vec<u8>)> {
    const JUMP: usize = 2;
    let mut pieces = vec![(start, Vec::new())];
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    while decoder.can_decode() {
        let from = decoder.position();
        let _ = decoder.decode();
        let instruction = &code[from..decoder.position()];
        let (start, piece) = pieces.last_mut().unwrap();
        let at = *start + piece.len();
        let in_the_way =
            |call: &&usize| at < **call + LONG_NOP.len() && at + instruction.len() + JUMP > **call;
        if let Some(call) = calls.iter().find(in_the_way) {
            let behind = call + LONG_NOP.len();
            piece.extend([0xeb, u8::try_from(behind - (at + JUMP)).unwrap()]);
            pieces.push((behind, Vec::new()));
        }
        pieces.last_mut().unwrap().1.extend_from_slice(instruction);
    }
    pieces
}

/// A signature that does not fit is refused, and one that is not there is not.
fn unsigned(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.strip_suffix(SIGNED).map_or(bytes.len(), <[u8]>::len));
    bytes
}

/// Where the function's section is in the file, where in it the function is, and the section's relocations.
fn layout(bytes: &[u8], function: &Called) -> (usize, Range<usize>, Vec<Relocation>) {
    let file = ElfFile64::<LittleEndian>::parse(bytes).unwrap();
    let text = file.section_by_name(function.section).unwrap();
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(function.symbol)).unwrap();
    let (at, size) = (symbol.address() as usize, symbol.size() as usize);
    let entries = file.section_by_name(&format!(".rela{}", function.section)).unwrap();
    let (entries, _) = entries.file_range().unwrap();
    let relocations = text.relocations().enumerate().map(|(n, (at, relocation))| {
        let RelocationTarget::Symbol(symbol) = relocation.target() else { panic!("no symbol") };
        let symbol = file.symbol_by_index(symbol).unwrap().name().unwrap().to_owned();
        Relocation { at: at as usize, symbol, entry: entries as usize + n * 24 }
    });
    (text.file_range().unwrap().0 as usize, at..at + size, relocations.collect())
}

/// A module that is not freed after its oops keeps its name.
fn rename(bytes: &mut [u8], name: &[u8; 5]) {
    let ranges: Vec<_> = {
        let file = ElfFile64::<LittleEndian>::parse(&*bytes).unwrap();
        let sections = [".modinfo", ".gnu.linkonce.this_module"].map(|name| file.section_by_name(name));
        sections.into_iter().flatten().filter_map(|section| section.file_range()).collect()
    };
    for (start, length) in ranges {
        let section = &mut bytes[start as usize..][..length as usize];
        let places: Vec<_> =
            (0..section.len() - 5).filter(|at| section[*at..].starts_with(b"dummy\0")).collect();
        places.into_iter().for_each(|at| section[at..][..5].copy_from_slice(name));
    }
}
