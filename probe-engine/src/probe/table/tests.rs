use super::*;
use crate::addr::Gpa;

const AT: Gva = Gva(0xffff_ffff_8100_0000);

fn judged(set: &ProbeSet<u32>, byte: Option<u8>) -> &'static str {
    match set.judge(AT, || byte) {
        Verdict::Ours(_) => "ours",
        Verdict::CopyEnd(_) => "copy",
        Verdict::Return(..) => "return",
        Verdict::RingFull => "ring full",
        Verdict::Gate(_) => "gate",
        Verdict::CallGate => "call gate",
        Verdict::Stale => "stale",
        Verdict::Foreign => "foreign",
    }
}

fn site(internal: Internal) -> Site<u32> {
    let step = StepMethod::PutBack(Arc::new(OneShot::new(Gpa(0), 0x90)));
    Site { probes: Vec::new(), internal: Some(internal), step }
}

#[test]
fn an_int3_belongs_to_whoever_put_it_there() {
    let mut set = ProbeSet::default();
    assert_eq!(judged(&set, Some(0xcc)), "foreign");
    assert_eq!(judged(&set, Some(0x90)), "foreign", "int3 as two bytes, or taken out by the guest");
    set.insert(AT, site(Internal::Panic));
    assert_eq!(judged(&set, Some(0xcc)), "ours");
    set.remove(AT);
    assert_eq!(judged(&set, Some(0x55)), "stale", "the hit was on its way while the site was removed");
    assert_eq!(judged(&set, Some(0xcc)), "foreign", "the guest has put its own there since");
    assert_eq!(judged(&set, None), "stale");
    set.insert(AT, site(Internal::Panic));
    set.remove(AT.add(1));
    assert_eq!(judged(&set, Some(0xcc)), "ours");
    set.remove(AT);
    set.retain_removed(|at| at == AT);
    assert_eq!(judged(&set, Some(0x55)), "stale");
    set.retain_removed(|_| false);
    assert_eq!((judged(&set, Some(0x55)), set.was_removed(AT)), ("foreign", false));
}

#[test]
fn a_copy_ends_where_it_did_when_its_site_has_gone() {
    let mut set = ProbeSet::<u32>::default();
    let end = CopyEnd { site: Gva(0x10), next: Gva(0x14) };
    let copy = AT.offset(-4);
    set.add_copy(copy, Gva(0x10), Some((AT, end)));
    set.insert(Gva(0x10), site(Internal::Fault));
    set.remove(Gva(0x10));
    assert!(matches!(set.judge(AT, || None), Verdict::CopyEnd(found) if found == end));
    assert_eq!(set.copied_from(copy), Some(Gva(0x10)));
    set.retain_copies(|at| at < copy);
    assert_eq!(judged(&set, Some(0xcc)), "foreign");
    assert_eq!(set.copied_from(copy), None);
}

#[test]
fn a_detour_may_wait_for_room_when_its_probes_have_gone() {
    let mut set = ProbeSet::<u32>::default();
    set.add_waits([AT]);
    assert_eq!(judged(&set, Some(0xcc)), "ring full");
    set.retain_copies(|at| at == AT);
    assert_eq!(judged(&set, Some(0xcc)), "ring full", "a CPU may be inside");
    set.retain_copies(|_| false);
    assert_eq!(judged(&set, Some(0xcc)), "foreign");
}

#[test]
fn a_trampoline_belongs_to_the_owner_of_its_row() {
    let mut set = ProbeSet::default();
    set.set_trampolines(AT..AT.add(0x1000));
    set.own(16..48, &7);
    let owner = |set: &ProbeSet<u32>, number: u64| match set.judge(AT.add(number), || None) {
        Verdict::Return(n, owner) => Some((n, *owner)),
        _ => None,
    };
    assert_eq!(owner(&set, 15), None);
    assert_eq!(owner(&set, 16), Some((16, 7)));
    assert_eq!(owner(&set, 47), Some((47, 7)));
    assert_eq!(owner(&set, 48), None);
    assert_eq!(owner(&set, 0x1000), None);
    set.disown_all();
    assert_eq!(owner(&set, 16), None);
}

#[test]
fn addresses_that_differ_in_low_bits_spread_over_the_top_bits() {
    let top7 = |address: u64| {
        let mut hasher = AddressHasher::default();
        hasher.write_u64(address);
        hasher.finish() >> 57
    };
    let different: HashSet<u64> = (0..1000).map(|i| top7(AT.0 + i * 16)).collect();
    assert!(different.len() > 100, "{} of 128", different.len());
}
