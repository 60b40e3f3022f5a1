//! A small kernel with local variables, as a compiler would describe it.

use gimli::write::{
    Address, AttributeValue, CallFrameInstruction, CommonInformationEntry, DebugFrame, DwarfUnit, EndianVec,
    Expression, FrameDescriptionEntry, FrameTable, Location, LocationList, Range, RangeList, Sections,
    UnitEntryId,
};
use gimli::{DwAt, DwTag, Encoding, Format, LittleEndian, Register, X86_64, constants as dw};

use proptest::sample::Index;

use crate::addr::Gva;
use crate::linux::testing::{Extra, Part, elf_with};

/// Where `open` is, 0x40 bytes, and behind it `close`, 0x20 bytes, which has no frame information.
pub(crate) const OPEN: Gva = Gva(0xffff_ffff_8100_0000);
pub(crate) const CLOSE: Gva = Gva(OPEN.0 + 0x40);
const END: Gva = Gva(OPEN.0 + 0x60);

struct Builder(DwarfUnit);

type Attribute = (DwAt, AttributeValue);

impl Builder {
    fn entry(&mut self, parent: UnitEntryId, tag: DwTag, attributes: Vec<Attribute>) -> UnitEntryId {
        let id = self.0.unit.add(parent, tag);
        let entry = self.0.unit.get_mut(id);
        attributes.into_iter().for_each(|(name, value)| entry.set(name, value));
        id
    }

    fn variable(&mut self, scope: UnitEntryId, variable: &str, ty: UnitEntryId, more: Vec<Attribute>) {
        let attributes = [vec![name(variable), of(ty)], more].concat();
        self.entry(scope, dw::DW_TAG_variable, attributes);
    }

    /// A location for each of these stretches of `open`.
    fn list(&mut self, stretches: Vec<(u64, u64, Expression)>) -> Vec<Attribute> {
        let location = |(begin, end, data)| {
            let [begin, end] = [begin, end].map(|at| Address::Constant(OPEN.add(at).0));
            Location::StartEnd { begin, end, data }
        };
        let list = self.0.unit.locations.add(LocationList(stretches.into_iter().map(location).collect()));
        vec![(dw::DW_AT_location, AttributeValue::LocationListRef(list))]
    }
}

fn name(name: &str) -> Attribute {
    (dw::DW_AT_name, AttributeValue::String(name.as_bytes().to_vec()))
}

fn of(ty: UnitEntryId) -> Attribute {
    (dw::DW_AT_type, AttributeValue::UnitRef(ty))
}

fn size(size: u8) -> Attribute {
    (dw::DW_AT_byte_size, AttributeValue::Data1(size))
}

fn code(at: Gva, len: u64) -> Vec<Attribute> {
    let low = AttributeValue::Address(Address::Constant(at.0));
    vec![(dw::DW_AT_low_pc, low), (dw::DW_AT_high_pc, AttributeValue::Udata(len))]
}

/// What `write` writes.
fn expression(write: impl FnOnce(&mut Expression)) -> Expression {
    let mut expression = Expression::new();
    write(&mut expression);
    expression
}

fn always(write: impl FnOnce(&mut Expression)) -> Vec<Attribute> {
    vec![(dw::DW_AT_location, AttributeValue::Exprloc(expression(write)))]
}

fn in_register(register: Register) -> Expression {
    expression(|e| e.op_reg(register))
}

/// The sections with debugging information.
pub(crate) fn sections() -> Vec<Extra> {
    let encoding = Encoding { format: Format::Dwarf32, version: 5, address_size: 8 };
    let mut b = Builder(DwarfUnit::new(encoding));
    let root = b.0.unit.root();
    let ranges = vec![Range::StartEnd { begin: Address::Constant(OPEN.0), end: Address::Constant(END.0) }];
    let ranges = b.0.unit.ranges.add(RangeList(ranges));
    b.0.unit.get_mut(root).set(dw::DW_AT_ranges, AttributeValue::RangeListRef(ranges));

    let number =
        |bytes, encoding| vec![size(bytes), (dw::DW_AT_encoding, AttributeValue::Encoding(encoding))];
    let base = dw::DW_TAG_base_type;
    let int = b.entry(root, base, [vec![name("int")], number(4, dw::DW_ATE_signed)].concat());
    let long = b.entry(root, base, [vec![name("unsigned long")], number(8, dw::DW_ATE_unsigned)].concat());
    let file = b.entry(root, dw::DW_TAG_structure_type, vec![name("file"), size(16)]);
    let pointer = b.entry(root, dw::DW_TAG_pointer_type, vec![size(8), of(file)]);
    for (member, ty, at) in [("mode", int, 0), ("next", pointer, 8)] {
        let at = (dw::DW_AT_data_member_location, AttributeValue::Data1(at));
        b.entry(file, dw::DW_TAG_member, vec![name(member), of(ty), at]);
    }

    let inline = (dw::DW_AT_inline, AttributeValue::Data1(1));
    let check = b.entry(root, dw::DW_TAG_subprogram, vec![name("check"), inline]);
    let limit = b.entry(check, dw::DW_TAG_formal_parameter, vec![name("limit"), of(int)]);
    // It is optimized out where the function is inlined, and has no entry there.
    b.variable(check, "file", int, Vec::new());

    let cfa = expression(|e| e.op(dw::DW_OP_call_frame_cfa));
    let frame_base = (dw::DW_AT_frame_base, AttributeValue::Exprloc(cfa));
    let open = [vec![name("open"), of(int), frame_base.clone()], code(OPEN, 0x40)].concat();
    let open = b.entry(root, dw::DW_TAG_subprogram, open);
    let entered_with = expression(|e| {
        e.op_entry_value(in_register(X86_64::RDI));
        e.op(dw::DW_OP_stack_value);
    });
    let stretches = vec![
        (0, 8, in_register(X86_64::RDI)),
        (8, 0x18, in_register(X86_64::RBX)),
        (0x18, 0x40, entered_with),
    ];
    let parameter = [vec![name("file"), of(pointer)], b.list(stretches)].concat();
    b.entry(open, dw::DW_TAG_formal_parameter, parameter);
    b.variable(open, "count", int, always(|e| e.op_reg(X86_64::RAX)));
    b.variable(open, "copy", file, always(|e| e.op_fbreg(-0x28)));
    b.variable(open, "gone", int, Vec::new());
    let late = b.list(vec![(0x20, 0x30, in_register(X86_64::R12))]);
    b.variable(open, "late", int, late);
    b.variable(open, "three", int, vec![(dw::DW_AT_const_value, AttributeValue::Data1(3))]);
    b.variable(
        open,
        "minus",
        int,
        always(|e| {
            e.op_consts(-2);
            e.op(dw::DW_OP_stack_value);
        }),
    );
    b.variable(
        open,
        "half",
        long,
        always(|e| {
            e.op_reg(X86_64::RAX);
            e.op_piece(4);
            e.op_piece(4);
        }),
    );
    b.variable(
        open,
        "sum",
        long,
        always(|e| {
            e.op_breg(X86_64::RDI, 4);
            e.op(dw::DW_OP_stack_value);
        }),
    );
    b.variable(open, "fixed", int, always(|e| e.op_addr(Address::Constant(END.0))));
    b.variable(
        open,
        "beyond",
        int,
        always(|e| {
            e.op_breg(X86_64::RDI, 4);
            e.op_deref();
        }),
    );
    b.variable(open, "vector", long, always(|e| e.op_reg(X86_64::XMM0)));
    b.variable(open, "pair", file, always(|e| e.op_reg(X86_64::RDX)));
    let declared = (dw::DW_AT_declaration, AttributeValue::Flag(true));
    b.variable(open, "elsewhere", int, vec![declared]);
    let block = b.entry(open, dw::DW_TAG_lexical_block, code(OPEN.add(0x10), 0x10));
    b.variable(block, "count", long, always(|e| e.op_breg(X86_64::RSP, 8)));
    // Without code of its own, as the block around it.
    let inner = b.entry(block, dw::DW_TAG_lexical_block, Vec::new());
    b.variable(inner, "inner", int, always(|e| e.op_reg(X86_64::R8)));
    let origin = |of| (dw::DW_AT_abstract_origin, AttributeValue::UnitRef(of));
    let call = [vec![origin(check)], code(OPEN.add(0x14), 8)].concat();
    let call = b.entry(block, dw::DW_TAG_inlined_subroutine, call);
    let argument = [vec![origin(limit)], always(|e| e.op_reg(X86_64::RSI))].concat();
    b.entry(call, dw::DW_TAG_formal_parameter, argument);

    let close = [vec![name("close"), frame_base], code(CLOSE, 0x20)].concat();
    let close = b.entry(root, dw::DW_TAG_subprogram, close);
    b.variable(close, "slot", int, always(|e| e.op_fbreg(-8)));
    b.variable(close, "below", int, always(|e| e.op_breg(X86_64::RBP, -8)));

    let mut sections = vec![(".debug_frame", 1, 0, 0, frames(encoding))];
    sections.extend(written(&mut b.0));
    sections
}

/// The sections of a unit.
pub(crate) fn written(unit: &mut DwarfUnit) -> Vec<Extra> {
    let (mut written, mut sections) = (Sections::new(EndianVec::new(LittleEndian)), Vec::new());
    unit.write(&mut written).unwrap();
    written
        .for_each(|id, data| -> Result<(), ()> {
            sections.push((id.name(), 1, 0, 0, data.slice().to_vec()));
            Ok(())
        })
        .unwrap();
    sections
}

/// Writes these bytes over a part of one of the sections.
pub(crate) fn damage(sections: &mut [Extra], section: Index, at: Index, bytes: &[u8]) {
    let (_, _, _, _, contents) = section.get_mut(sections);
    if !contents.is_empty() {
        let at = at.index(contents.len());
        contents.iter_mut().skip(at).zip(bytes).for_each(|(byte, new)| *byte = *new);
    }
}

/// `open` pushes a register in its first 4 bytes, and then makes room for 0x30 bytes.
fn frames(encoding: Encoding) -> Vec<u8> {
    let mut table = FrameTable::default();
    let mut cie = CommonInformationEntry::new(Encoding { version: 4, ..encoding }, 1, -8, X86_64::RA);
    cie.add_instruction(CallFrameInstruction::Cfa(X86_64::RSP, 8));
    let cie = table.add_cie(cie);
    let mut fde = FrameDescriptionEntry::new(Address::Constant(OPEN.0), 0x40);
    fde.add_instruction(4, CallFrameInstruction::CfaOffset(16));
    fde.add_instruction(8, CallFrameInstruction::CfaOffset(0x40));
    table.add_fde(cie, fde);
    let mut section = DebugFrame::from(EndianVec::new(LittleEndian));
    table.write_debug_frame(&mut section).unwrap();
    section.slice().to_vec()
}

/// An ELF file with these sections.
pub(crate) fn vmlinux(sections: &[Extra]) -> Vec<u8> {
    elf_with(&[Part::text(".text", OPEN.0, vec![0x90; 0x60])], sections)
}
