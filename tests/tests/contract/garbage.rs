//! A guest that does whatever it likes to its PCI bus and its devices, on two CPUs at once, with resets in the middle. Then
//! it means well, and is served.

use iced_x86::code_asm::{
    CodeAssembler, al, ax, byte_ptr, dword_ptr, dx, eax, ecx, qword_ptr, r8, r9, rax, rdi, word_ptr,
};
use probe_engine::addr::Gva;
use std::io::Read;
use std::os::unix::net::UnixStream;
use tests::code::{CODE, DATA};
use tests::host::fit;
use tests::rig::{Rig, Start};
use vmm::devices::virtio::console::Port;
use vmm::devices::virtio::{Extras, Folders};

/// What both CPUs carry out, a list each.
const LISTS: [Gva; 2] = [Gva(0x10_0000), Gva(0x18_0000)];
/// A page for each CPU's code.
const CODES: [Gva; 2] = [CODE, Gva(CODE.0 + 0x1000)];
/// What devices are told to write to.
const AREA: u64 = 0x8_8000;
const AREA_END: u64 = 0xf_8000;
/// Each CPU says here that it is done.
const DONE: [Gva; 2] = [DATA, Gva(DATA.0 + 8)];
/// How often the last answer was waited for until it came, u64.
const WAITED: Gva = Gva(DATA.0 + 16);
/// Where the bus puts devices: console, random numbers, folder.
const BASE: u64 = 0xc000_0000;
const DEVICE: u64 = 0x8000;
const RNG: u64 = BASE + DEVICE;
const STEPS: usize = 6000;

/// What a CPU does.
#[derive(Clone, Copy)]
enum Step {
    Store(u64, u64, u64),
    Load(u64),
    Out(u64, u64),
    In(u64),
}

impl Step {
    fn bytes(self) -> Vec<u8> {
        let words = match self {
            Self::Store(at, value, size) => [at, value, size],
            Self::Load(at) => [at, 0, 3],
            Self::Out(port, value) => [port, value, 5],
            Self::In(port) => [port, 0, 6],
        };
        words.map(u64::to_le_bytes).concat()
    }
}

/// Numbers that look random, the same each time (xorshift64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.next() as usize % of.len()]
    }
}

/// Where queue `n` of a device has its descriptors; its rings are a page and two pages on.
fn queue(n: u64) -> u64 {
    AREA + n % 4 * 0x4000
}

/// As a driver sets a device up that means well.
fn start(base: u64, slot: u64, queues: u64) -> Vec<Step> {
    let at = |offset: u64| base + offset;
    let mut steps = vec![
        Step::Store(at(0x14), 0, 1),
        Step::Store(at(0x14), 3, 1),
        Step::Store(at(0x08), 0, 4),
        Step::Store(at(0x0c), 1 << 28, 4),
        Step::Store(at(0x08), 1, 4),
        Step::Store(at(0x0c), 1, 4),
        Step::Store(at(0x14), 11, 1),
        // Messages are sent, to a CPU that has interrupts off.
        Step::Out(0xcf8, 0x8000_0084 | slot << 11),
        Step::Out(0xcfc, 0x8000_0011),
    ];
    for n in 0..queues {
        for (at, word) in (at(0x4000 + 16 * n)..).step_by(4).zip([0xfee0_0000, 0, 0x40 + n, 0]) {
            steps.push(Step::Store(at, word, 4));
        }
        steps.extend([Step::Store(at(0x16), n, 2), Step::Store(at(0x18), 8, 2), Step::Store(at(0x1a), n, 2)]);
        for (register, page) in [(0x20, 0), (0x28, 1), (0x30, 2)] {
            steps.push(Step::Store(at(register), queue(n) + page * 0x1000, 4));
            steps.push(Step::Store(at(register + 4), 0, 4));
        }
        steps.push(Step::Store(at(0x1c), 1, 2));
    }
    steps.push(Step::Store(at(0x14), 15, 1));
    steps
}

/// Garbage. What the guest would do to itself alone is left out: it has no device write over its code, and its interrupts'
/// messages are no INIT.
fn garbage(random: &mut Random) -> Vec<Step> {
    const QUEUES: [u64; 3] = [4, 1, 2];
    let mut steps = Vec::new();
    while steps.len() < STEPS {
        let slot = random.next() % 3;
        let base = BASE + slot * DEVICE;
        let value = random.next();
        match random.next() % 16 {
            0 => steps.extend(start(base, slot + 1, QUEUES[slot as usize])),
            1 => steps.push(Step::Store(base + 0x14, random.one(&[0, 3, 4, 11, 15, 0xff]), 1)),
            2 | 3 => steps.push(Step::Store(base + value % 0x20, random.next(), random.one(&[1, 2, 4]))),
            4 => {
                let area = random.one(&[queue(value), (2 << 20) - 16, 1 << 40 | value, !0xf]);
                steps.push(Step::Store(base + 0x20 + value % 3 * 8, area, 8));
            }
            5 => steps.push(Step::Load(base + value % DEVICE)),
            6 => steps.push(Step::Store(base + 0x4080 + value % 0x3f78, value, random.one(&[1, 2, 4, 8]))),
            7 => steps.push(Step::Out(0xcf8 + value % 5, random.next())),
            8 => steps.push(Step::Out(0xcf8, 0x8000_0000 | slot << 11 | value & 0xff)),
            9 => steps.push(Step::In(0xcf8 + value % 5)),
            10 => steps.push(Step::Out(0xcfc, random.next())),
            // A descriptor: somewhere, of some length, and whatever flags.
            11 | 12 => {
                let at = queue(value >> 8) + value % 8 * 16;
                let inside = AREA + 0x1_0000 + random.next() % 0x4_0000;
                let to = random.one(&[inside, at, (2 << 20) - 8, u64::MAX - 3, 1 << 40]);
                let length = random.one(&[0, 16, 128, 4096, 0xffff_ffff]);
                // What is long leads out of RAM, or is read only.
                let flags = if length > 4096 { 0 } else { random.next() % 8 };
                steps.push(Step::Store(at, to, 8));
                steps.push(Step::Store(at + 8, length | flags << 32 | (random.next() % 9) << 48, 8));
            }
            13 => {
                let ring = queue(value) + 0x1000;
                let index = random.one(&[0, 1, 2, 7, 8, 9, 0x7fff, 0xffff]);
                steps.push(Step::Store(ring, index << 16 | value & 1, 4));
                steps.push(Step::Store(ring + 4 + value % 8 * 2, random.next() % 9, 2));
            }
            _ => steps.push(Step::Store(base + 0x3000 + value % 5 * 4, value, random.one(&[2, 4]))),
        }
    }
    steps
}

/// Behind the garbage: one request for random numbers, in a queue of its own.
fn well_meant() -> Vec<Step> {
    let ring = queue(0) + 0x1000;
    let mut steps: Vec<_> = (0..3).map(|slot| Step::Store(BASE + slot * DEVICE + 0x14, 0, 1)).collect();
    steps.extend((0..8).map(|n| Step::Store(queue(0) + n * 16, 0, 8)));
    steps.extend([Step::Store(ring, 0, 8), Step::Store(queue(0) + 0x2000, 0, 8)]);
    steps.extend(start(RNG, 2, 1));
    steps.extend([
        Step::Store(queue(0), AREA_END - 16, 8),
        Step::Store(queue(0) + 8, 16 | 2 << 32, 8),
        Step::Store(ring + 4, 0, 2),
        Step::Store(ring + 2, 1, 2),
        Step::Store(RNG + 0x3000, 0, 2),
    ]);
    steps
}

/// Code that carries `count` steps out from `list` on.
fn carry_out(asm: &mut CodeAssembler, list: Gva, count: usize) {
    let mut next = asm.create_label();
    let mut done = asm.create_label();
    let labels: Vec<_> = (0..6).map(|_| asm.create_label()).collect();
    asm.mov(r8, list.0).unwrap();
    asm.mov(r9, count as u64).unwrap();
    asm.set_label(&mut next).unwrap();
    asm.mov(rdi, qword_ptr(r8)).unwrap();
    asm.mov(rax, qword_ptr(r8 + 8)).unwrap();
    asm.mov(ecx, dword_ptr(r8 + 16)).unwrap();
    asm.mov(iced_x86::code_asm::edx, iced_x86::code_asm::edi).unwrap();
    for (kind, label) in [1, 2, 4, 8, 3, 5].into_iter().zip(&labels) {
        asm.cmp(ecx, kind).unwrap();
        asm.je(*label).unwrap();
    }
    asm.in_(eax, dx).unwrap();
    asm.jmp(done).unwrap();
    for (n, mut label) in labels.into_iter().enumerate() {
        asm.set_label(&mut label).unwrap();
        match n {
            0 => asm.mov(byte_ptr(rdi), al),
            1 => asm.mov(word_ptr(rdi), ax),
            2 => asm.mov(dword_ptr(rdi), eax),
            3 => asm.mov(qword_ptr(rdi), rax),
            4 => asm.mov(rax, qword_ptr(rdi)),
            _ => asm.out(dx, eax),
        }
        .unwrap();
        asm.jmp(done).unwrap();
    }
    asm.set_label(&mut done).unwrap();
    asm.add(r8, 24).unwrap();
    asm.dec(r9).unwrap();
    asm.jnz(next).unwrap();
}

/// The code of a CPU: its garbage, and on the first one, when the other is done, what is well meant.
fn program(cpu: usize, (garbage, good): (usize, usize)) -> Vec<u8> {
    let mut asm = CodeAssembler::new(64).unwrap();
    carry_out(&mut asm, LISTS[cpu], garbage);
    asm.mov(dword_ptr(DONE[cpu].0), 1).unwrap();
    if cpu == 0 {
        let mut other = asm.create_label();
        asm.set_label(&mut other).unwrap();
        asm.pause().unwrap();
        asm.cmp(dword_ptr(DONE[1].0), 0).unwrap();
        asm.je(other).unwrap();
        carry_out(&mut asm, LISTS[0].add(24 * garbage as u64), good);
        // The index of what was answered; a load from a device has its thread run.
        let mut again = asm.create_label();
        let mut over = asm.create_label();
        asm.set_label(&mut again).unwrap();
        asm.inc(qword_ptr(WAITED.0)).unwrap();
        asm.cmp(word_ptr(queue(0) + 0x2002), 1).unwrap();
        asm.je(over).unwrap();
        asm.mov(rdi, RNG).unwrap();
        asm.mov(eax, dword_ptr(rdi)).unwrap();
        asm.cmp(qword_ptr(WAITED.0), 20_000).unwrap();
        asm.jb(again).unwrap();
        asm.set_label(&mut over).unwrap();
        asm.nop().unwrap();
    }
    let code = asm.assemble(CODES[cpu].0).unwrap();
    [code, vmm::selftest::micro::power_off()].concat()
}

#[test]
fn a_guest_that_feeds_garbage_to_its_devices_harms_itself_alone() {
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    // The page directory of the fourth GiB, with the devices in its first page.
    const DIRECTORY: u64 = 0x7000;
    rig.write(Gva(0x2000 + 3 * 8), &(DIRECTORY | 7).to_le_bytes());
    rig.write(Gva(DIRECTORY), &(BASE | 0x87).to_le_bytes());
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for (cpu, list) in LISTS.into_iter().enumerate() {
        let garbage = garbage(&mut random);
        let good = well_meant();
        let bytes: Vec<u8> = garbage.iter().chain(&good).flat_map(|step| step.bytes()).collect();
        assert!(bytes.len() as u64 <= LISTS[1].0 - LISTS[0].0);
        rig.write(list, &bytes);
        let code = program(cpu, (garbage.len(), good.len()));
        assert!(code.len() <= 0x1000);
        rig.write(CODES[cpu], &code);
    }
    let [(port, mut out), (files, server)] = [(); 2].map(|()| UnixStream::pair().unwrap());
    let reading = std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
    // A server of files that takes whatever comes and answers nothing.
    let serving = std::thread::spawn(move || {
        let (mut server, mut bytes) = (server, [0; 4096]);
        while matches!(server.read(&mut bytes), Ok(1..)) {}
    });
    rig.plug(Extras {
        ports: vec![Port { name: "port".to_owned(), socket: port }],
        rng: true,
        folders: Some(Folders {
            tags: vec!["files".to_owned()],
            requests: Box::new(files.try_clone().unwrap()),
            answers: Box::new(files.try_clone().unwrap()),
            lost: Box::new(|| ()),
        }),
    });
    let starts = [0, 1].map(|cpu| Start::at(CODES[cpu], Gva(0x8_0000 - cpu as u64 * 0x4000)));
    let mut running = rig.run(&starts);
    running.until_off(2, |_| {});
    let left = running.end();
    assert_eq!((left.u64(DONE[0]), left.u64(DONE[1])), (1, 1));
    let (index, waited) = (left.u64(Gva(queue(0) + 0x2000)) >> 16 & 0xffff, left.u64(WAITED));
    assert_eq!(index, 1, "no answer, waited {waited} times");
    assert_ne!(left.bytes(Gva(AREA_END - 16), 16), [0; 16]);
    let _ = files.shutdown(std::net::Shutdown::Both);
    serving.join().unwrap();
    reading.join().unwrap().unwrap();
}
