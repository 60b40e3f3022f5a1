use super::*;
use crate::linux::testing::{self, Part, elf};
use proptest::prelude::*;

const IPS: Gva = Gva(0xffff_ffff_8200_0000);
const TEXT: u64 = 0xffff_ffff_8100_0000;

type Row = (i16, i16, u16);

fn table(layout: OrcLayout, rows: &[(u64, Row)]) -> Result<OrcTable, OrcError> {
    let (ips, rows) = parts(rows);
    OrcTable::from_parts(layout, &ips, IPS, &rows)
}

/// Both parts of a table, of rows at these distances from [`TEXT`].
fn parts(rows: &[(u64, Row)]) -> (Vec<u8>, Vec<u8>) {
    let rows: Vec<_> = rows.iter().map(|(at, row)| (Gva(TEXT + at), *row)).collect();
    testing::orc(IPS, &rows)
}

fn returns(sp: SpBase, sp_offset: i16, bp: BpBase, bp_offset: i16) -> OrcRow {
    OrcRow::Frame(OrcFrame { holds: Holds::Return, sp, sp_offset, bp, bp_offset, signal: false })
}

#[test]
fn every_layout_is_read() {
    use OrcLayout::{Renumbered, SinceSixFour, UntilSixTwo};
    let frame = |holds, signal| {
        let (sp, bp) = (SpBase::Sp, BpBase::Unchanged);
        Some(OrcRow::Frame(OrcFrame { holds, sp, sp_offset: 8, bp, bp_offset: 0, signal }))
    };
    for (layout, flags, expected) in [
        (UntilSixTwo, 0x000, Some(OrcRow::Undefined)),
        (UntilSixTwo, 0x400, Some(OrcRow::EndOfStack)),
        (UntilSixTwo, 0x005, frame(Holds::Return, false)),
        (UntilSixTwo, 0x105, frame(Holds::Regs, true)),
        (UntilSixTwo, 0x205, frame(Holds::IretFrame, true)),
        (UntilSixTwo, 0x305, None),
        // A signal frame as 6.3 writes it, and an end.
        (UntilSixTwo, 0x505, None),
        (UntilSixTwo, 0x800, None),
        (SinceSixFour, 0x000, Some(OrcRow::Undefined)),
        (SinceSixFour, 0x100, Some(OrcRow::EndOfStack)),
        (SinceSixFour, 0x205, frame(Holds::Return, false)),
        (SinceSixFour, 0xb05, frame(Holds::Regs, true)),
        (SinceSixFour, 0xc05, frame(Holds::IretFrame, true)),
        (SinceSixFour, 0x405, frame(Holds::IretFrame, false)),
        (SinceSixFour, 0x505, None),
        (SinceSixFour, 0x1205, None),
        // No such bases.
        (SinceSixFour, 0x200, None),
        (SinceSixFour, 0x20a, None),
        (SinceSixFour, 0x255, None),
        (SinceSixFour, 0x2f5, None),
        (Renumbered, 0x000, Some(OrcRow::Undefined)),
        (Renumbered, 0x100, Some(OrcRow::EndOfStack)),
        (Renumbered, 0x203, frame(Holds::Return, false)),
        (Renumbered, 0xb03, frame(Holds::Regs, true)),
        (Renumbered, 0x1203, None),
        // The previous stack pointer is no base of itself, and no other layout's place of RBP is one here.
        (Renumbered, 0x208, None),
        (Renumbered, 0x213, None),
        (SinceSixFour, 0x285, None),
    ] {
        let found = table(layout, &[(0, (8, 0, flags))]);
        let expected = expected.ok_or(OrcError::Unknown(Gva(TEXT)));
        assert_eq!(found.map(|table| table.rows().next().unwrap().1), expected, "{layout:?} {flags:#x}");
    }
}

#[test]
fn every_base_has_its_number() {
    use SpBase::{Ax, Bp, BpIndirect, Di, Dx, R10, R13, Sp, SpIndirect};
    let numbers = |layout| -> Vec<_> {
        let base = |number: u16| match table(layout, &[(0, (8, 0, 0x200 | number))]).ok()?.rows().next()?.1 {
            OrcRow::Frame(frame) => Some((number, frame.sp)),
            _ => None,
        };
        (0..16).filter_map(base).collect()
    };
    let first = [(2, Dx), (3, Di), (4, Bp), (5, Sp), (6, R10), (7, R13), (8, BpIndirect), (9, SpIndirect)];
    assert_eq!(numbers(OrcLayout::SinceSixFour), first);
    let renumbered =
        [(1, Ax), (2, Dx), (3, Sp), (4, Bp), (5, Di), (6, R10), (7, R13), (9, SpIndirect), (10, BpIndirect)];
    assert_eq!(numbers(OrcLayout::Renumbered), renumbered);
}

#[test]
fn a_row_holds_until_the_next() {
    let table = table(
        OrcLayout::SinceSixFour,
        &[
            (0x40, (0, 0, 0x100)),
            (0x10, (8, 0, 0x205)),
            (0x11, (16, -16, 0x215)),
            // The end of the code before 0x20, and what is there.
            (0x20, (-8, 0, 0x248)),
            (0x20, (0, 0, 0)),
        ],
    );
    let table = table.unwrap();
    let entry = Some(returns(SpBase::Sp, 8, BpBase::Unchanged, 0));
    let pushed = Some(returns(SpBase::Sp, 16, BpBase::PrevSp, -16));
    let realigned = Some(returns(SpBase::BpIndirect, -8, BpBase::Bp, 0));
    for (at, expected) in [
        (0x0f, None),
        (0x10, entry),
        (0x11, pushed),
        (0x1f, pushed),
        (0x20, realigned),
        (0x3f, realigned),
        (0x40, Some(OrcRow::EndOfStack)),
        (0x4000_0000, Some(OrcRow::EndOfStack)),
    ] {
        assert_eq!(table.find(Gva(TEXT + at)), expected, "{at:#x}");
    }
    assert_eq!(table.find(Gva(0)), None);
    let at: Vec<u64> = table.rows().map(|(at, _)| at.0 - TEXT).collect();
    assert_eq!(at, [0x10, 0x11, 0x20, 0x20, 0x40]);
}

#[test]
fn an_image_says_which_layout_it_has() {
    let (ips, rows) = parts(&[(0, (8, 0, 0x205))]);
    let mut sections = vec![
        Part::text(".text", TEXT, vec![0x90; 64]),
        Part::data(".orc_unwind_ip", IPS.0, ips),
        Part::data(".orc_unwind", IPS.0 + 0x1000, rows),
    ];
    let parse = |sections: &[Part]| OrcTable::parse(&Vmlinux::parse(elf(sections)).unwrap());
    assert_eq!(parse(&sections[..2]), Err(OrcError::Missing));
    let old = returns(SpBase::Sp, 8, BpBase::Unchanged, 0);
    let old = OrcRow::Frame(OrcFrame { holds: Holds::IretFrame, signal: true, ..frame_of(old) });
    assert_eq!(parse(&sections).unwrap().find(Gva(TEXT)), Some(old));
    sections.push(Part::data(".orc_header", IPS.0 + 0x2000, vec![0; 20]));
    let new = returns(SpBase::Sp, 8, BpBase::Unchanged, 0);
    assert_eq!(parse(&sections).unwrap().find(Gva(TEXT)), Some(new));
    // A function that saves RBP tells the numbers.
    let (ips, rows) = parts(&[(0, (8, 0, 0x203)), (1, (16, -16, 0x283))]);
    sections[1] = Part::data(".orc_unwind_ip", IPS.0, ips);
    sections[2] = Part::data(".orc_unwind", IPS.0 + 0x1000, rows);
    let renumbered = parse(&sections).unwrap();
    assert_eq!(renumbered.layout(), OrcLayout::Renumbered);
    assert_eq!(renumbered.find(Gva(TEXT)), Some(new));
    assert_eq!(renumbered.find(Gva(TEXT + 1)), Some(returns(SpBase::Sp, 16, BpBase::PrevSp, -16)));
    sections[2] =
        Part::data(".orc_unwind", IPS.0 + 0x1000, parts(&[(0, (8, 0, 0x203)), (1, (16, -16, 0x2f3))]).1);
    assert_eq!(parse(&sections), Err(OrcError::Unknown(Gva(TEXT + 1))));
}

fn frame_of(row: OrcRow) -> OrcFrame {
    match row {
        OrcRow::Frame(frame) => frame,
        _ => panic!("{row:?}"),
    }
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let layout = OrcLayout::SinceSixFour;
    let (ips, rows) = parts(&[(0, (8, 0, 0x205)), (1, (8, 0, 0x205))]);
    for (ips, rows) in
        [(&ips[..4], &rows[..]), (&ips[..], &rows[..6]), (&ips[..7], &rows[..]), (&ips, &rows[1..])]
    {
        assert_eq!(OrcTable::from_parts(layout, ips, IPS, rows), Err(OrcError::Damaged));
    }
    assert!(OrcTable::from_parts(layout, &[], IPS, &[]).unwrap().is_empty());
    // Around the end of the address space: rows 4 GiB and more apart.
    let ips = [i32::MAX.to_le_bytes(), i32::MIN.to_le_bytes()];
    let wide = OrcTable::from_parts(layout, ips.as_flattened(), Gva(0), &rows);
    assert_eq!(wide, Err(OrcError::Damaged));
}

#[test]
fn a_table_arrives_as_it_was_sent() {
    let rows = [(0x10, (8, 0, 0x205)), (0x12, (16, -16, 0x215)), (0x20, (8, 0, 0x205)), (0x400, (0, 0, 0))];
    let sent = table(OrcLayout::SinceSixFour, &rows).unwrap();
    let json = serde_json::to_value(&sent).unwrap();
    assert_eq!(serde_json::from_value::<OrcTable>(json.clone()).unwrap(), sent);
    let refused = |pointer: &str, value: serde_json::Value| {
        let mut json = json.clone();
        *json.pointer_mut(pointer).unwrap() = value;
        serde_json::from_value::<OrcTable>(json).unwrap_err().to_string()
    };
    for (pointer, value) in
        [("/rows/1", 3.into()), ("/steps/3", u32::MAX.into()), ("/rows", serde_json::json!([0, 0, 0]))]
    {
        assert_eq!(refused(pointer, value), "the ORC table is damaged", "{pointer}");
    }
}

#[test]
fn seeds_of_the_fuzz_target() {
    let rows: Vec<_> = (0..40).map(|n| (n * 3, (8 + n as i16, -16, 0x205 + (n as u16 & 1) * 0x10))).collect();
    for (layout, name, rows) in [
        (0, "until_6_2", &[(0, (8, 0, 0x005)), (0x20, (0, 0, 0x400))][..]),
        (1, "since_6_4", &[(0x40, (0, 0, 0x100)), (0x10, (8, 0, 0x205)), (0x11, (16, -16, 0x215))]),
        (1, "many_rows", &rows),
        (1, "no_rows", &[]),
        (2, "renumbered", &[(0x10, (8, 0, 0x203)), (0x11, (16, -16, 0x283))]),
    ] {
        let (ips, rows) = parts(rows);
        let bytes = [vec![layout], IPS.0.to_le_bytes().to_vec(), ips, rows].concat();
        testing::seed(&format!("seeds/orc/{name}"), &bytes);
    }
    let sent = table(OrcLayout::SinceSixFour, &[(0x10, (8, 0, 0x205)), (0x400, (0, 0, 0))]).unwrap();
    testing::seed("seeds/orc/sent", serde_json::to_string(&sent).unwrap().as_bytes());
}

proptest! {
    #[test]
    fn any_bytes_are_a_table_or_an_error(
        rows in proptest::collection::vec((any::<i32>(), -64..64i16, -64..64i16, 0..0xfffu16), 0..40),
        base: u64,
        layout in proptest::sample::select(vec![OrcLayout::UntilSixTwo, OrcLayout::SinceSixFour, OrcLayout::Renumbered]),
        far: u64,
        near_by in proptest::collection::vec(any::<i32>(), 8),
    ) {
        let near = rows.iter().map(|row| (Gva(base).offset(row.0.into()), (row.1, row.2, row.3)));
        let (ips, bytes) = testing::orc(Gva(base & 0x7fff_ffff_ffff_ffff), &near.collect::<Vec<_>>());
        if let Ok(table) = OrcTable::from_parts(layout, &ips, Gva(base), &bytes) {
            prop_assert_eq!(table.len(), rows.len());
            let sorted: Vec<_> = table.rows().collect();
            prop_assert!(sorted.is_sorted_by_key(|(at, _)| *at));
            let on_rows = sorted.iter().flat_map(|(at, _)| [*at, at.offset(-1)]);
            let between = near_by.iter().map(|offset| Gva(base).offset((*offset).into()));
            for at in on_rows.chain(between).chain([Gva(far)]) {
                let expected = sorted.iter().rev().find(|(row, _)| *row <= at).map(|(_, row)| *row);
                prop_assert_eq!(table.find(at), expected, "{}", at);
            }
        }
    }
}
