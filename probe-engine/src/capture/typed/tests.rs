use super::*;
use crate::linux::testing::BtfBuilder;

/// `int f(struct list *, struct self *)`, where a list leads to a list, and a damaged structure has itself inside.
#[test]
fn types_that_lead_back_to_themselves_come_to_an_end() {
    let mut btf = BtfBuilder::default();
    let int = btf.int("int", 4);
    // Numbers are given in order: the pointer comes right behind its structure.
    let list = btf.structure("list", 16, &[("next", int + 2, 0), ("prev", int + 2, 8)]);
    let pointer = btf.pointer(list);
    let inside = btf.structure("self", 16, &[("self", pointer + 1, 0), ("x", int, 8)]);
    let other = btf.pointer(inside);
    let prototype = [btf.name("l"), pointer, btf.name("s"), other];
    let prototype = btf.add("", 13, 2, false, int, &prototype);
    btf.add("f", 12, 1, false, prototype, &[]);
    let section = btf.finish();
    let btf = Btf::parse(&section).unwrap();
    for expand in [Expand::Small, Expand::All] {
        let fields = Signature::of(&btf, "f").unwrap().arguments(&btf, "f", expand);
        let [list, itself] = fields.try_into().unwrap();
        let Shape::Pointer(Some(to)) = list.shape else { panic!("{list:?}") };
        let Shape::Struct { members, more: false } = *to else { panic!("{to:?}") };
        assert!(members.iter().all(|member| member.shape == Shape::Pointer(None)), "{members:?}");
        assert!(matches!(itself.shape, Shape::Pointer(Some(_))), "{itself:?}");
    }
    assert_eq!(Signature::of(&btf, "g"), Err(NoArguments::Unknown("g".to_owned())));
    assert_eq!(Signature::of(&btf, "f.isra.0"), Err(NoArguments::Changed("f.isra.0".to_owned())));
}
