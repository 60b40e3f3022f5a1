use super::*;
use gimli::read::{BaseAddresses, CfaRule, RegisterRule, UnwindContext, UnwindSection as _};
use gimli::{DebugFrame as Section, EndianSlice};
use probe_engine::linux::orc::OrcLayout;
use probe_engine::linux::symbols::SymbolTableBuilder;

const TEXT: Gva = Gva(0xffff_ffff_8100_0000);
/// Where the part of the ORC table with the addresses lies.
const IPS: Gva = Gva(0xffff_ffff_8200_0000);

/// ORC_REG_* as 6.12 has them, and the types of rows with the bit of a signal frame (arch/x86/include/asm/orc_types.h).
const SP: u16 = 5;
const BP: u16 = 4;
const SP_INDIRECT: u16 = 9;
const BP_INDIRECT: u16 = 8;
const SAVED_BP: u16 = 1 << 4;
const END: u16 = 1 << 8;
const CALL: u16 = 2 << 8;
const REGS: u16 = 3 << 8 | 8 << 8;
const IRET: u16 = 4 << 8 | 8 << 8;

/// Code with its rows: where each begins, `sp_offset`, `bp_offset`, flags.
struct Code {
    symbols: SymbolTable,
    bytes: Vec<u8>,
    orc: OrcTable,
}

impl Code {
    fn new(symbols: &[(u64, &str)], bytes: &[(usize, &[u8])], rows: &[(u64, i16, i16, u16)]) -> Self {
        let mut table = SymbolTableBuilder::default();
        symbols.iter().for_each(|(at, name)| table.push(TEXT.add(*at), b't', name).unwrap());
        let mut text = vec![0x90; 0x1000];
        bytes.iter().for_each(|(at, bytes)| text[*at..at + bytes.len()].copy_from_slice(bytes));
        let (mut ips, mut entries) = (Vec::new(), Vec::new());
        for (index, (at, sp, bp, flags)) in (0..).zip(rows) {
            let place = IPS.add(4 * index);
            ips.extend((TEXT.add(*at).0.wrapping_sub(place.0) as i32).to_le_bytes());
            entries.extend([sp.to_le_bytes(), bp.to_le_bytes(), flags.to_le_bytes()].concat());
        }
        let orc = OrcTable::from_parts(OrcLayout::SinceSixFour, &ips, IPS, &entries).unwrap();
        Self { symbols: table.finish(), bytes: text, orc }
    }

    /// What a debugger is told of the instruction at `at`: whether its frame is a signal's, the CFA, and where each register
    /// is that is not where the last function had it.
    fn told(&self, at: u64) -> Option<String> {
        let code = |range: &Range<Gva>| {
            let at = |end: Gva| (end.0 - TEXT.0) as usize;
            self.bytes.get(at(range.start)..at(range.end))
        };
        let section = debug_frame(&self.orc, &self.symbols, code).unwrap();
        let mut section = Section::from(EndianSlice::new(&section, LittleEndian));
        section.set_address_size(8);
        let (bases, mut context) = (BaseAddresses::default(), UnwindContext::new());
        let entry = section.fde_for_address(&bases, TEXT.add(at).0, Section::cie_from_offset).ok()?;
        let row = entry.unwind_info_for_address(&section, &bases, &mut context, TEXT.add(at).0).unwrap();
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => format!("{}{offset:+}", name(*register)),
            CfaRule::Expression(place) => format!("{:02x?}", place.get(&section).unwrap().0.slice()),
        };
        let mut registers: Vec<_> = row
            .registers()
            .filter_map(|(register, rule)| {
                let rule = match rule {
                    RegisterRule::SameValue => return None,
                    RegisterRule::Undefined => "?".to_owned(),
                    RegisterRule::Offset(at) => format!("{at:+}"),
                    RegisterRule::Expression(place) => {
                        format!("{:02x?}", place.get(&section).unwrap().0.slice())
                    }
                    rule => panic!("{rule:?}"),
                };
                Some(format!(" {}{rule}", name(*register)))
            })
            .collect();
        registers.sort();
        let signal = if entry.is_signal_trampoline() { "signal " } else { "" };
        Some(format!("{signal}{cfa}{}", registers.concat()))
    }
}

fn name(register: Register) -> &'static str {
    X86_64::register_name(register).unwrap()
}

#[track_caller]
fn check(code: &Code, expected: &[(u64, Option<&str>)]) {
    for (at, expected) in expected {
        assert_eq!(code.told(*at).as_deref(), *expected, "at {at:#x}");
    }
}

#[test]
fn registers_are_where_the_function_has_pushed_them() {
    let code = Code::new(
        &[(0, "one"), (0x40, "same"), (0x80, "one.cold"), (0xc0, "many"), (0x100, "end")],
        &[
            (0, &[0x53, 0x41, 0x54]),
            (0x10, &[0x41, 0x5c, 0x5b, 0xc3]),
            (0xc0, &[0x53, 0x90, 0x5b, 0x41, 0x54]),
        ],
        &[
            (0x00, 8, 0, CALL | SP),
            // push rbx; push r12; then room for variables
            (0x01, 16, 0, CALL | SP),
            (0x03, 24, 0, CALL | SP),
            (0x08, 48, 0, CALL | SP),
            // All is popped, and returned. Somebody jumps behind that.
            (0x10, 24, 0, CALL | SP),
            (0x12, 16, 0, CALL | SP),
            (0x13, 8, 0, CALL | SP),
            (0x14, 48, 0, CALL | SP),
            // Another function begins with the row that the last one ends with.
            (0x20, 8, 0, CALL | SP),
            (0x80, 48, 0, CALL | SP),
            // A function that pushes one register here, and another there.
            (0xc0, 8, 0, CALL | SP),
            (0xc1, 16, 0, CALL | SP),
            (0xc3, 8, 0, CALL | SP),
            (0xc5, 16, 0, CALL | SP),
            (0x100, 0, 0, 0),
        ],
    );
    let all = Some("rsp+48 RA-8 r12-24 rbx-16");
    check(
        &code,
        &[
            (0x00, Some("rsp+8 RA-8")),
            (0x02, Some("rsp+16 RA-8 rbx-16")),
            (0x07, Some("rsp+24 RA-8 r12-24 rbx-16")),
            (0x0f, all),
            (0x12, Some("rsp+16 RA-8 rbx-16")),
            (0x13, Some("rsp+8 RA-8")),
            (0x14, all),
            (0x40, Some("rsp+8 RA-8")),
            (0x90, all),
            (0xc1, Some("rsp+16 RA-8 r12? rbx?")),
            (0x100, None),
        ],
    );
}

#[test]
fn registers_are_found_by_the_frame_pointer() {
    // push rbp; mov rbp, rsp; push r15; mov r13, rdi; push r13; push r10; push rbx; sub rsp, 0x20; push r12
    let prologue = [
        0x55, 0x48, 0x89, 0xe5, 0x41, 0x57, 0x49, 0x89, 0xfd, 0x41, 0x55, 0x41, 0x52, 0x53, 0x48, 0x83, 0xec,
        0x20, 0x41, 0x54,
    ];
    let code = Code::new(
        &[(0, "framed"), (0x40, "aligned"), (0x80, "end")],
        &[(0, &prologue), (0x40, &prologue)],
        &[
            (0x00, 8, 0, CALL | SP),
            (0x01, 16, -16, CALL | SP | SAVED_BP),
            (0x04, 16, -16, CALL | BP | SAVED_BP),
            (0x40, 8, 0, CALL | SP),
            (0x50, -8, 0, CALL | BP_INDIRECT | BP << 4),
            (0x80, 0, 0, 0),
        ],
    );
    check(
        &code,
        &[
            (0x03, Some("rsp+16 RA-8 rbp-16")),
            (0x04, Some("rbp+16 RA-8 rbp-16")),
            (0x06, Some("rbp+16 RA-8 r15-24 rbp-16")),
            (0x0a, Some("rbp+16 RA-8 r15-24 rbp-16")),
            (0x0b, Some("rbp+16 RA-8 r13-32 r15-24 rbp-16")),
            (0x0e, Some("rbp+16 RA-8 r13-32 r15-24 rbp-16 rbx-48")),
            (0x3f, Some("rbp+16 RA-8 r13-32 r15-24 rbp-16 rbx-48")),
            // DW_OP_breg6 N, and for the CFA DW_OP_deref DW_OP_consts 0 DW_OP_plus
            (0x60, Some("[76, 78, 06, 11, 00, 22] RA-8 r13[76, 70] r15[76, 78] rbp[76, 00] rbx[76, 60]")),
        ],
    );
}

#[test]
fn stacks_go_on_behind_interrupts_and_other_stacks() {
    let code = Code::new(
        &[(0, "entry"), (0x40, "end")],
        &[],
        &[
            (0x00, 8, 0, IRET | SP),
            (0x08, 16, 0, REGS | SP),
            (0x10, 8, -16, CALL | SP_INDIRECT | SAVED_BP),
            (0x18, 8, 0, CALL | SP),
            (0x20, 0, 0, END),
            (0x28, 0, 0, 0),
        ],
    );
    let regs = "signal rsp+16 RA+128 r10+56 r11+48 r12+24 r13+16 r14+8 r15+0 r8+72 r9+64 rax+80 rbp+32 rbx+40 rcx+88 \
                rdi+112 rdx+96 rsi+104 rsp+152";
    check(
        &code,
        &[
            (0x00, Some("signal rsp+8 RA+0 rsp+24")),
            (0x08, Some(regs)),
            (0x10, Some("signal [77, 00, 06, 11, 08, 22] RA-8 rbp-16")),
            (0x18, Some("rsp+8 RA-8")),
            (0x20, Some("rsp+8 RA?")),
            (0x28, None),
        ],
    );
}
