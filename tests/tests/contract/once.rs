//! One-shot probes: exactly one hit each, whoever comes first, and the text is restored behind it.

use tests::code::{CODE, code, ending, mov, repeat, stack};
use tests::host::fit;
use tests::rig::{Rig, Start};

const RDI: u8 = 7;
/// `xor ebx, ebx`
const CLEAR: [u8; 2] = [0x31, 0xdb];
/// `add rbx, 1`
const SITE: [u8; 4] = [0x48, 0x83, 0xc3, 0x01];
const PUSH_RBX: [u8; 1] = [0x53];

#[test]
fn two_vcpus_at_the_same_sites_make_one_hit_each_and_lose_no_instruction() {
    const SITES: u32 = 200;
    const ROUNDS: u64 = 20;
    let Some(fit) = fit() else { return };
    for _ in 0..ROUNDS {
        let mut rig = Rig::new(fit);
        let body = SITE.repeat(SITES as usize);
        rig.write(CODE, &ending(&[&CLEAR, &body, &PUSH_RBX]));
        let first = CODE.add(CLEAR.len() as u64);
        for probe in 0..SITES {
            rig.arm_once(first.add(u64::from(probe) * SITE.len() as u64), probe);
        }
        let mut running = rig.run(&[Start::at(CODE, stack(0)), Start::at(CODE, stack(1))]);
        running.until_off(2, |_| {});
        let left = running.end();
        assert_eq!(left.counts[..SITES as usize], [1; SITES as usize]);
        assert_eq!(left.hits.len(), SITES as usize, "each counted hit is recorded");
        assert_eq!(left.bytes(first, body.len()), body, "the text is restored");
        for vcpu in 0..2 {
            assert_eq!(left.u64(stack(vcpu).offset(-8)), u64::from(SITES), "each instruction ran once");
        }
    }
}

#[test]
fn a_one_shot_probe_and_another_share_a_site() {
    const PASSES: u64 = 100;
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    let prologue = code(&[&mov(RDI, PASSES), &CLEAR]);
    rig.write(CODE, &ending(&[&prologue, &SITE, &repeat(SITE.len()), &PUSH_RBX]));
    rig.arm_once_and_always(CODE.add(prologue.len() as u64), 3, 5);
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    assert_eq!((left.counts[3], left.counts[5]), (1, PASSES));
    assert_eq!((left.hits[0].probe.0, left.hits[1].probe.0), (3, 5), "in order of registration");
    assert_eq!(left.u64(stack(0).offset(-8)), PASSES);
}
