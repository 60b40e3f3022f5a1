use super::*;
use crate::linux::glob::GlobError;

fn symbol(name: &str, offset: u64) -> Location {
    Location::Symbol { name: name.to_owned(), offset }
}

fn module(module: &str, symbol: &str, offset: u64) -> Location {
    Location::Module { module: module.to_owned(), symbol: symbol.to_owned(), offset }
}

fn line(of: LineOf, line: u32) -> Location {
    Location::Line { of, line }
}

#[test]
fn understood_and_given_back_as_written() {
    let cases = [
        ("vfs_read", symbol("vfs_read", 0)),
        ("vfs_read+0", symbol("vfs_read", 0)),
        ("vfs_read+16", symbol("vfs_read", 16)),
        ("vfs_read+0x10", symbol("vfs_read", 16)),
        ("vfs_read+0X1f", symbol("vfs_read", 31)),
        ("do_sys_openat2.constprop.0", symbol("do_sys_openat2.constprop.0", 0)),
        ("_RNvNtCs1_4core3fmt$u20", symbol("_RNvNtCs1_4core3fmt$u20", 0)),
        ("f+0x7fffffffffffffff", symbol("f", i64::MAX as u64)),
        ("show#2", symbol("show#2", 0)),
        ("show#2+0x10", symbol("show#2", 16)),
        ("ext4:show#10+4", module("ext4", "show#10", 4)),
        ("ext4:ext4_readdir", module("ext4", "ext4_readdir", 0)),
        ("kvm_intel:vmx_exit+0x10", module("kvm_intel", "vmx_exit", 16)),
        ("8021q:vlan_init.isra.0", module("8021q", "vlan_init.isra.0", 0)),
        ("vfs_read:460", line(LineOf::Function("vfs_read".to_owned()), 460)),
        ("show#2:7", line(LineOf::Function("show#2".to_owned()), 7)),
        ("open.c:1420", line(LineOf::File("open.c".to_owned()), 1420)),
        ("8250_core.c:1", line(LineOf::File("8250_core.c".to_owned()), 1)),
        ("drivers/gpu-x/a.rs:1", line(LineOf::File("drivers/gpu-x/a.rs".to_owned()), 1)),
        ("0xffffffff81000000", Location::Address(Gva(0xffff_ffff_8100_0000))),
        ("0XFFFFFFFF81000000", Location::Address(Gva(0xffff_ffff_8100_0000))),
        ("vfs_*", Location::Glob(Glob::new("vfs_*").unwrap())),
        ("vfs_rea?", Location::Glob(Glob::new("vfs_rea?").unwrap())),
        ("[a-z]*_read", Location::Glob(Glob::new("[a-z]*_read").unwrap())),
        ("*", Location::Glob(Glob::new("*").unwrap())),
    ];
    for (written, expected) in cases {
        let spec: ProbeSpec = written.parse().unwrap_or_else(|e| panic!("{written}: {e}"));
        assert_eq!(*spec.location(), expected, "{written}");
        assert_eq!(spec.to_string(), written);
        assert!(!spec.returns(), "{written}");
    }
}

#[test]
fn returns_are_asked_for_behind_the_place() {
    let cases = [
        ("vfs_read%return", symbol("vfs_read", 0)),
        ("show#2%return", symbol("show#2", 0)),
        ("ext4:ext4_readdir%return", module("ext4", "ext4_readdir", 0)),
        ("vfs_*%return", Location::Glob(Glob::new("vfs_*").unwrap())),
    ];
    for (written, expected) in cases {
        let spec: ProbeSpec = written.parse().unwrap_or_else(|e| panic!("{written}: {e}"));
        assert_eq!(*spec.location(), expected, "{written}");
        assert_eq!(spec.to_string(), written);
        assert!(spec.returns(), "{written}");
    }
}

#[test]
fn every_mistake_has_its_own_sentence() {
    let text = str::to_owned;
    let character = |written, character| SpecError::BadCharacter { written: text(written), character };
    let cases = [
        ("", SpecError::Empty),
        ("vfs_read@0xffffffff81000000", SpecError::SymbolAndAddress(text("vfs_read@0xffffffff81000000"))),
        ("0xffffffff81000000 vfs_read", SpecError::SymbolAndAddress(text("0xffffffff81000000 vfs_read"))),
        ("vfs_read+0xffffffff81000000", SpecError::SymbolAndAddress(text("vfs_read+0xffffffff81000000"))),
        ("0xffffffff81000000+4", SpecError::AddressOffset(text("+4"))),
        ("0x", SpecError::BadAddress(text("0x"))),
        ("0xvfs", SpecError::BadAddress(text("0xvfs"))),
        ("0x1ffffffff81000000", SpecError::BadAddress(text("0x1ffffffff81000000"))),
        ("1234", SpecError::BareNumber(text("1234"))),
        ("vfs_*+4", SpecError::PatternOffset(text("+4"))),
        ("vfs_[a", SpecError::Pattern { written: text("vfs_[a"), source: GlobError::OpenClass }),
        ("+4", SpecError::NoSymbol(text("+4"))),
        ("+", SpecError::NoSymbol(text("+"))),
        ("%return", SpecError::NoSymbol(text("%return"))),
        ("vfs_read%", SpecError::UnknownSuffix(text("%"))),
        ("vfs_read%exit", SpecError::UnknownSuffix(text("%exit"))),
        ("vfs_read%return%return", SpecError::UnknownSuffix(text("%return%return"))),
        ("vfs_read%return+4", SpecError::UnknownSuffix(text("%return+4"))),
        ("vfs_read+4%return", SpecError::ReturnOffset(text("+4"))),
        ("vfs_read+0%return", SpecError::ReturnOffset(text("+0"))),
        ("ext4:ext4_readdir+4%return", SpecError::ReturnOffset(text("+4"))),
        ("0xffffffff81000000%return", SpecError::ReturnAddress(text("0xffffffff81000000"))),
        ("ext4:", SpecError::NoModuleSymbol(text("ext4:"))),
        (":ext4_readdir", SpecError::NoModule(text(":ext4_readdir"))),
        (":", SpecError::NoModule(text(":"))),
        ("a:b:c", SpecError::SeveralModules(text("a:b:c"))),
        ("syscall:", SpecError::NoModuleSymbol(text("syscall:"))),
        ("syscall:open*", SpecError::NoSystemCall(text("open*"))),
        ("syscall:openat+4", SpecError::NoSystemCall(text("openat+4"))),
        ("kprobe:vfs_*", SpecError::KindOfProbe { kind: text("kprobe"), here: "p FUNCTION" }),
        ("kretprobe:vfs_read", SpecError::KindOfProbe { kind: text("kretprobe"), here: "r FUNCTION" }),
        (
            "tracepoint:sched:sched_switch",
            SpecError::KindOfProbe { kind: text("tracepoint"), here: TRACEPOINT_HERE },
        ),
        ("t:sched_switch", SpecError::KindOfProbe { kind: text("t"), here: TRACEPOINT_HERE }),
        ("usdt:/bin/sh:main", SpecError::KindOfProbe { kind: text("usdt"), here: USDT_HERE }),
        ("/bin/sh:main", SpecError::InProgram(text("/bin/sh:main"))),
        ("./a.out:main+4", SpecError::InProgram(text("./a.out:main+4"))),
        ("p:opens", SpecError::NoPlace(text("p:opens"))),
        ("r16:opens", SpecError::NoPlace(text("r16:opens"))),
        ("ext4:ext4_*", SpecError::ModulePattern(text("ext4_*"))),
        ("ext*:ext4_readdir", SpecError::BadModule { module: text("ext*"), character: '*' }),
        ("kvm-intel:vmx_exit", SpecError::BadModule { module: text("kvm-intel"), character: '-' }),
        ("ext4:0xffffffffc0000000", SpecError::SymbolAndAddress(text("ext4:0xffffffffc0000000"))),
        ("vfs_read:0", SpecError::BadLine(text("0"))),
        ("open.c:4294967296", SpecError::BadLine(text("4294967296"))),
        ("vfs_read:10%return", SpecError::ReturnLine(text("vfs_read:10"))),
        ("vfs_read+4:10", SpecError::LineOfOther(text("vfs_read+4"))),
        ("vfs_*:10", SpecError::LineOfOther(text("vfs_*"))),
        ("a:b:10", SpecError::SeveralModules(text("a:b:10"))),
        ("a%b/c.c:10", SpecError::UnknownSuffix(text("%b/c.c:10"))),
        ("a b/c.c:10", SpecError::BadCharacter { written: text("a b/c.c"), character: ' ' }),
        ("ext4:+4", SpecError::NoSymbol(text("+4"))),
        ("ext4:a-4", SpecError::NegativeOffset(text("a-4"))),
        ("ext4:a b", character("a b", ' ')),
        ("show#", SpecError::BadOrdinal(text("#"))),
        ("show#0", SpecError::BadOrdinal(text("#0"))),
        ("show#+4", SpecError::BadOrdinal(text("#"))),
        ("ext4:show#x+4", SpecError::BadOrdinal(text("#x"))),
        ("#2", SpecError::NoSymbol(text("#2"))),
        ("vfs_*#2", character("vfs_*#2", '#')),
        ("vfs_read+", SpecError::NoOffset(text("vfs_read+"))),
        ("vfs_read-4", SpecError::NegativeOffset(text("vfs_read-4"))),
        ("vfs_read-0x4", SpecError::NegativeOffset(text("vfs_read-0x4"))),
        ("vfs_read+-4", SpecError::NegativeOffset(text("vfs_read+-4"))),
        ("vfs_read+ten", SpecError::BadOffset(text("ten"))),
        ("vfs_read+0x", SpecError::BadOffset(text("0x"))),
        ("vfs_read+4+4", SpecError::BadOffset(text("4+4"))),
        ("f+18446744073709551616", SpecError::OffsetTooLarge(text("18446744073709551616"))),
        ("vfs-read", character("vfs-read", '-')),
        ("vfs read", character("vfs read", ' ')),
        ("vfs_read()", character("vfs_read()", '(')),
        ("vfs_re\u{e4}d", character("vfs_re\u{e4}d", '\u{e4}')),
        ("vfs_* ", character("vfs_* ", ' ')),
    ];
    for (written, expected) in cases {
        let error = written.parse::<ProbeSpec>().unwrap_err();
        assert_eq!(error, expected, "{written:?}");
        assert!(!error.to_string().contains('\n'), "{written:?}");
    }
}
