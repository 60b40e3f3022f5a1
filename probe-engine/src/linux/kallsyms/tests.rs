use super::*;
use crate::linux::testing::{self, Part, elf};
use proptest::prelude::*;

const TEXT: u64 = 0xffff_ffff_8100_0000;
const RODATA: u64 = TEXT + 0x10_0000;
/// Tokens of more than one character, at codes that are no printable character.
const LONG_TOKENS: [(u8, &str); 3] = [(1, "t__pfx_"), (2, "vfs_"), (0x80, "_read")];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    OffsetsFirst,
    /// As the former, with `seqs_of_names`.
    WithSeqs,
    OffsetsLast,
    /// As the latter, with offsets that count upwards.
    Upwards,
    /// Offsets behind, each from its own place, in tables that are aligned to 4.
    FromPlace,
    /// As the latter, with the offsets first.
    FromPlaceFirst,
}

const LAYOUTS: [Layout; 6] = [
    Layout::OffsetsFirst,
    Layout::WithSeqs,
    Layout::OffsetsLast,
    Layout::Upwards,
    Layout::FromPlace,
    Layout::FromPlaceFirst,
];

impl Layout {
    /// Whether per-CPU symbols are absolute.
    fn has_absolute(self) -> bool {
        matches!(self, Self::OffsetsFirst | Self::WithSeqs | Self::OffsetsLast)
    }

    fn is_from_place(self) -> bool {
        matches!(self, Self::FromPlace | Self::FromPlaceFirst)
    }
}

/// `_text`, a function every 16 bytes, one name that needs a two-byte length, and a per-CPU symbol where the layout
/// has them.
fn sample(layout: Layout) -> Vec<(u64, String)> {
    let mut symbols = Vec::new();
    if layout.has_absolute() {
        symbols.push((0x40, "Acpu_info".to_owned()));
    }
    symbols.push((TEXT, "T_text".to_owned()));
    symbols.extend((0..700).map(|i| (TEXT + i * 16, format!("tvfs_{i}_read"))));
    symbols.push((TEXT + 0x5000, format!("T{}", "long".repeat(50))));
    symbols
}

/// The tables as scripts/kallsyms.c writes them, and where that lies in them by which it is known where `_text` is:
/// `relative_base`, or the offset of `_text`.
fn encode(symbols: &[(u64, String)], layout: Layout) -> (Vec<u8>, usize) {
    let (mut names, mut markers) = (Vec::new(), Vec::new());
    for (number, (_, name)) in symbols.iter().enumerate() {
        if number % 256 == 0 {
            markers.extend((names.len() as u32).to_le_bytes());
        }
        let mut packed = name.clone().into_bytes();
        for (code, token) in LONG_TOKENS {
            while let Some(at) = packed.windows(token.len()).position(|window| window == token.as_bytes()) {
                packed.splice(at..at + token.len(), [code]);
            }
        }
        match packed.len() {
            len @ ..0x80 => names.push(len as u8),
            len => names.extend([0x80 | (len & 0x7f) as u8, (len >> 7) as u8]),
        }
        names.extend(packed);
    }
    let (mut tokens, mut index) = (Vec::new(), Vec::new());
    for code in 0..=255u8 {
        index.extend((tokens.len() as u16).to_le_bytes());
        match LONG_TOKENS.iter().find(|(own, _)| *own == code) {
            Some((_, token)) => tokens.extend(token.bytes()),
            None if code.is_ascii_graphic() => tokens.push(code),
            None => {}
        }
        tokens.push(0);
    }
    let offsets: Vec<u8> = symbols
        .iter()
        .flat_map(|(at, _)| {
            let offset = match at.checked_sub(TEXT) {
                Some(up) if layout.has_absolute() => -1 - up as i32,
                Some(up) => up as i32,
                None => *at as i32,
            };
            offset.to_le_bytes()
        })
        .collect();
    let base = TEXT.to_le_bytes().to_vec();
    let seqs: Vec<u8> = (0..symbols.len()).flat_map(|seq| [0, (seq >> 8) as u8, seq as u8]).collect();
    let mut common = vec![(symbols.len() as u32).to_le_bytes().to_vec(), names, markers, tokens, index];
    if layout == Layout::WithSeqs {
        common.insert(3, seqs);
    }
    let (tables, base_index) = match layout {
        Layout::OffsetsFirst | Layout::WithSeqs => ([vec![offsets, base], common].concat(), 1),
        Layout::OffsetsLast | Layout::Upwards => ([common, vec![offsets, base]].concat(), 6),
        Layout::FromPlace => ([common, vec![offsets]].concat(), 5),
        Layout::FromPlaceFirst => ([vec![offsets], common].concat(), 0),
    };
    // With 12 bytes before them, tables that are aligned to 4 are not all aligned to 8.
    let mut bytes = b"Linux kernel".to_vec();
    let mut base_at = 0;
    for (number, table) in tables.into_iter().enumerate() {
        bytes.resize(bytes.len().next_multiple_of(if layout.is_from_place() { 4 } else { 8 }), 0);
        let at = bytes.len();
        bytes.extend(table);
        if number == base_index {
            base_at = at;
        }
        if number == base_index && layout.is_from_place() {
            for (number, offset) in bytes[at..].as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let place = RODATA as i64 + at as i64 + 4 * number as i64;
                let from_place = TEXT as i64 + i64::from(i32::from_le_bytes(*offset)) - place;
                *offset = (from_place as i32).to_le_bytes();
            }
        }
    }
    (bytes, base_at)
}

fn image(rodata: Vec<u8>) -> Vmlinux {
    let text = Part::text(".text", TEXT, vec![0x90; 64]);
    Vmlinux::parse(elf(&[text, Part::data(".rodata", RODATA, rodata)])).unwrap()
}

#[test]
fn every_layout_decodes() {
    for layout in LAYOUTS {
        let symbols = sample(layout);
        let decoded = decode(&image(encode(&symbols, layout).0)).unwrap();
        let seen: Vec<_> =
            decoded.iter().map(|symbol| (symbol.at.0, format!("{}{}", symbol.kind, symbol.name))).collect();
        let mut expected = symbols;
        expected.sort_by_key(|symbol| symbol.0);
        assert_eq!(seen, expected, "{layout:?}");
    }
}

#[test]
fn few_symbols_decode_too() {
    for layout in LAYOUTS {
        let (tables, _) = encode(&sample(layout)[..5], layout);
        assert_eq!(decode(&image(tables)).unwrap().len(), 5, "{layout:?}");
    }
}

#[test]
fn each_missing_table_is_told() {
    let error = |bytes: Vec<u8>| decode(&image(bytes)).unwrap_err();
    assert_eq!(error(vec![0; 4096]), KallsymsError::NoTokens);
    for layout in LAYOUTS {
        let symbols = sample(layout);
        let (good, base_at) = encode(&symbols, layout);
        let mut no_base = good.clone();
        no_base[base_at] ^= 1;
        assert_eq!(error(no_base), KallsymsError::NoAddresses, "{layout:?}");

        let mut other_text = symbols.clone();
        other_text.iter_mut().for_each(|symbol| symbol.1 = symbol.1.replace("_text", "_txet"));
        assert_eq!(error(encode(&other_text, layout).0), KallsymsError::NoAddresses, "{layout:?}");

        let second_name = good.windows(6).position(|window| window == b"T_text").unwrap();
        let mut no_names = good.clone();
        no_names[second_name - 1] = 0;
        assert_eq!(error(no_names), KallsymsError::NoNames, "{layout:?}");

        // Without a zero before the tokens there is no first marker.
        let mut no_markers = good.clone();
        let tokens_at = no_markers.windows(10).rposition(|window| window == b"\0t__pfx_\0v").unwrap();
        no_markers[..tokens_at - 1].iter_mut().for_each(|byte| *byte = (*byte).max(1));
        assert_eq!(error(no_markers), KallsymsError::NoMarkers, "{layout:?}");
    }
}

#[test]
fn a_truncated_table_is_an_error() {
    for layout in LAYOUTS {
        let (good, _) = encode(&sample(layout), layout);
        for len in (0..good.len()).step_by(97) {
            assert!(decode(&image(good[..len].to_vec())).is_err(), "{layout:?} cut to {len}");
        }
    }
}

#[test]
fn many_false_starts_end_the_search() {
    assert_eq!(decode(&image(DIGITS.repeat(5000))).unwrap_err(), KallsymsError::NoTokens);
}

#[test]
fn seeds_of_the_fuzz_target() {
    for layout in LAYOUTS {
        // More than one marker, and names of two lengths.
        let symbols = sample(layout);
        for (symbols, name) in [(&symbols[..5], "few"), (&symbols[..300], "many")] {
            let text = Part::text(".text", TEXT, vec![0x90; 64]);
            let file = elf(&[text, Part::data(".rodata", RODATA, encode(symbols, layout).0)]);
            testing::seed(&format!("seeds/kallsyms/{name}_{layout:?}"), &file);
        }
    }
}

proptest! {
    #[test]
    fn no_corruption_panics(which in 0usize..LAYOUTS.len(), at in any::<prop::sample::Index>(), bytes in proptest::collection::vec(any::<u8>(), 1..8)) {
        let mut tables = encode(&sample(LAYOUTS[which]), LAYOUTS[which]).0;
        let at = at.index(tables.len());
        for (byte, new) in tables.iter_mut().skip(at).zip(&bytes) {
            *byte = *new;
        }
        if let Ok(decoded) = decode(&image(tables)) {
            let _ = decoded.function_at(Gva(TEXT + 5));
        }
    }
}
