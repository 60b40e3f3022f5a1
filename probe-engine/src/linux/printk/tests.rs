use super::*;
use crate::linux::symbols::SymbolTableBuilder;
use crate::linux::testing::{self, BtfBuilder, Ram};

/// Where the ring and its parts are.
const RING: u64 = 0x100;
const DESCS: u64 = 0x1000;
const INFOS: u64 = 0x2000;
const DATA: u64 = 0x4000;
/// 8 descriptors, 256 bytes of text.
const COUNT_BITS: u32 = 3;
const SIZE_BITS: u32 = 8;
/// The number of the first descriptor that is used: `DESC0_ID + 1`.
const FIRST: u64 = (1 << 62) - 8 + 8;

fn layout() -> PrintkLayout {
    let mut symbols = SymbolTableBuilder::default();
    symbols.push(Ram::BASE, b'd', "prb").unwrap();
    let mut btf = BtfBuilder::default();
    let (half, byte) = (btf.int("unsigned short", 2), btf.int("unsigned char", 1));
    let (int, long) = (btf.int("unsigned int", 4), btf.int("unsigned long", 8));
    let positions = btf.structure("prb_data_blk_lpos", 16, &[("begin", long, 0), ("next", long, 8)]);
    btf.structure("prb_desc", 24, &[("state_var", long, 0), ("text_blk_lpos", positions, 8)]);
    let info = [
        ("seq", long, 0),
        ("ts_nsec", long, 8),
        ("text_len", half, 16),
        ("facility", byte, 18),
        ("caller_id", int, 20),
    ];
    btf.structure("printk_info", 88, &info);
    let descs = [("count_bits", int, 0), ("descs", long, 8), ("infos", long, 16), ("tail_id", long, 32)];
    let descs = btf.structure("prb_desc_ring", 48, &descs);
    let data = btf.structure("prb_data_ring", 32, &[("size_bits", int, 0), ("data", long, 8)]);
    btf.structure("printk_ringbuffer", 88, &[("desc_ring", descs, 0), ("text_data_ring", data, 48)]);
    let section = btf.finish();
    PrintkLayout::find(&symbols.finish(), &Btf::parse(&section).unwrap()).unwrap()
}

/// A guest that writes its log.
struct WrittenLog {
    ram: Ram,
    head: u64,
    at: u64,
}

impl WrittenLog {
    fn new() -> Self {
        let ram = Ram::new();
        let word = |at: u64, value: u64| ram.put(Ram::BASE.add(at), &value.to_le_bytes());
        word(0, Ram::BASE.0 + RING);
        for (offset, value) in [(0, COUNT_BITS.into()), (8, Ram::BASE.0 + DESCS), (16, Ram::BASE.0 + INFOS)] {
            word(RING + offset, value);
        }
        word(RING + 32, FIRST - 1);
        word(RING + 48, SIZE_BITS.into());
        word(RING + 56, Ram::BASE.0 + DATA);
        // As it is before the first record.
        word(INFOS, 0u64.wrapping_sub(8));
        word(DESCS + 7 * 24, REUSABLE << STATE_SHIFT | (FIRST - 1) & !(3 << STATE_SHIFT));
        Self { ram, head: 0, at: 0 }
    }

    fn word(&self, at: u64, value: u64) {
        self.ram.put(Ram::BASE.add(at), &value.to_le_bytes());
    }

    fn desc(sequence: u64) -> u64 {
        DESCS + sequence % 8 * 24
    }

    fn set_state(&self, sequence: u64, state: u64) {
        self.word(Self::desc(sequence), state << STATE_SHIFT | (FIRST + sequence) & !(3 << STATE_SHIFT));
    }

    fn write(&mut self, text: &str, facility: u8, caller: u32) {
        let sequence = self.head;
        let len = (HEAD + text.len() as u64).next_multiple_of(8);
        let (mut begin, mut place) = (self.at, self.at % 256);
        // What does not fit before the end begins at the start.
        if place + len > 256 {
            place = 0;
            self.at = self.at.next_multiple_of(256);
        } else {
            begin = self.at;
        }
        self.at += len;
        let next = self.at;
        let info = INFOS + sequence % 8 * 88;
        self.ram.put(Ram::BASE.add(DATA + place + HEAD), text.as_bytes());
        self.word(info, sequence);
        self.word(info + 8, sequence * 1000);
        self.ram.put(Ram::BASE.add(info + 16), &(text.len() as u16).to_le_bytes());
        self.ram.put(Ram::BASE.add(info + 18), &[facility]);
        self.ram.put(Ram::BASE.add(info + 20), &caller.to_le_bytes());
        self.word(Self::desc(sequence) + 8, begin);
        self.word(Self::desc(sequence) + 16, next);
        self.set_state(sequence, FINAL);
        let tail = sequence.saturating_sub(7);
        self.word(RING + 32, FIRST + tail);
        self.head += 1;
    }

    fn read(&self, reader: &mut PrintkReader, has_ended: bool) -> Vec<String> {
        let records = reader.read(&layout(), &self.ram.memory(), has_ended);
        records.into_iter().map(|record| String::from_utf8(record.text).unwrap()).collect()
    }
}

#[test]
fn each_record_is_read_once_with_what_it_says_of_itself() {
    let (mut log, mut reader) = (WrittenLog::new(), PrintkReader::default());
    assert!(log.read(&mut reader, true).is_empty());
    log.write("first", 0, 137);
    log.write("of a process", 1, 138);
    let records = reader.read(&layout(), &log.ram.memory(), false);
    let of = |n: usize| (records[n].sequence, records[n].nanos, records[n].facility, records[n].caller);
    assert_eq!((of(0), of(1)), ((0, 0, 0, PrintkCaller::Task(137)), (1, 1000, 1, PrintkCaller::Task(138))));
    assert_eq!(records[0].text, b"first");
    log.write("of an interrupt", 0, 1 << 31 | 3);
    let records = reader.read(&layout(), &log.ram.memory(), false);
    assert_eq!((records.len(), records[0].caller), (1, PrintkCaller::Cpu(3)));
    assert_eq!((log.read(&mut reader, true).len(), reader.lost()), (0, 0));
}

#[test]
fn the_text_goes_round_and_what_is_overwritten_is_counted() {
    let (mut log, mut reader) = (WrittenLog::new(), PrintkReader::default());
    for turn in 0..10 {
        let texts: Vec<String> = (0..3).map(|n| format!("{turn} {n} {}", "x".repeat(20 + n * 7))).collect();
        texts.iter().for_each(|text| log.write(text, 0, 1));
        assert_eq!(log.read(&mut reader, false), texts);
    }
    (0..11).for_each(|n| log.write(&n.to_string(), 0, 1));
    assert_eq!(log.read(&mut reader, false), ["3", "4", "5", "6", "7", "8", "9", "10"]);
    assert_eq!(reader.lost(), 3);
}

#[test]
fn what_is_not_whole_is_read_later_or_at_the_end() {
    let (mut log, mut reader) = (WrittenLog::new(), PrintkReader::default());
    log.write("begun", 0, 1);
    for (state, is_read, at_end) in
        [(0, false, false), (COMMITTED, false, false), (0, true, false), (COMMITTED, true, true)]
    {
        log.set_state(0, state);
        assert_eq!(log.read(&mut reader.clone(), is_read).len(), usize::from(at_end), "{state}");
    }
    log.set_state(0, REUSABLE);
    assert_eq!((log.read(&mut reader, false).len(), reader.lost()), (0, 1));
    log.write("", 0, 1);
    log.word(WrittenLog::desc(1) + 8, NO_TEXT);
    log.word(WrittenLog::desc(1) + 16, NO_TEXT);
    assert_eq!(log.read(&mut reader, false), [""]);
    log.write("lost", 0, 1);
    log.word(WrittenLog::desc(2) + 8, 1);
    log.word(WrittenLog::desc(2) + 16, 1);
    assert_eq!((log.read(&mut reader, false).len(), reader.lost()), (0, 2));
}

#[test]
fn a_ring_that_lies_is_read_in_bounded_time_and_memory() {
    let damaged = |damage: &dyn Fn(&mut WrittenLog)| {
        let (mut log, mut reader) = (WrittenLog::new(), PrintkReader::default());
        (0..3).for_each(|n| log.write(&format!("text {n}"), 0, 1));
        damage(&mut log);
        let records = reader.read(&layout(), &log.ram.memory(), true);
        assert!(records.len() <= MOST && records.iter().all(|record| record.text.len() <= LONGEST));
        records.len()
    };
    assert_eq!(damaged(&|_| {}), 3);
    assert_eq!(damaged(&|log| log.word(0, 0)), 0);
    assert_eq!(damaged(&|log| log.word(RING, 32)), 0);
    assert_eq!(damaged(&|log| log.word(RING + 48, 64)), 0);
    for word in [0, 1, 8, 1 << 31, 1 << 62, u64::MAX - 7, u64::MAX] {
        for at in [RING + 8, RING + 16, RING + 32, RING + 56, DESCS + 8, DESCS + 16, DESCS, INFOS, INFOS + 16]
        {
            damaged(&|log| log.word(at, word));
        }
    }
}

#[test]
fn seeds_of_the_fuzz_targets() {
    let mut log = WrittenLog::new();
    for text in ["------------[ cut here ]------------", "WARNING: CPU: 0 PID: 1 at a/b.c:3 f+0x1/0x2"] {
        log.write(text, 0, 1);
    }
    testing::seed("seeds/printk/two", &log.ram.pieces());
    let mut log = WrittenLog::new();
    (0..12).for_each(|n| log.write(&format!("BUG: KASAN: {n} {}", "x".repeat(n)), 0, n as u32));
    testing::seed("seeds/printk/overwritten", &log.ram.pieces());
    testing::seed("src/printk_layout.json", serde_json::to_string_pretty(&layout()).unwrap().as_bytes());
}
