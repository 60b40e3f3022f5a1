use super::*;
use crate::linux::btf::record::kind;
use crate::linux::testing::BtfBuilder;
use proptest::prelude::*;

/// Types of every kind that C can write down, and the numbers of a few.
fn section() -> Vec<u8> {
    let mut btf = BtfBuilder::default();
    let int = btf.int("int", 4);
    let char = btf.int("char", 1);
    let word = btf.add("gfp_t", kind::TYPEDEF, 0, false, int, &[]);
    let constant = btf.add("", kind::CONST, 0, false, char, &[]);
    let string = btf.pointer(constant);
    let void = btf.pointer(0);
    let names = ["a", "b", "c", "d", "e", "f", "g", "low", "high", "ONE", "BIG"].map(|name| btf.name(name));
    let [a, b, c, d, e, f, g, low, high, one, big] = names;

    let fixed = btf.add("", kind::CONST, 0, false, string, &[]);
    let row = btf.array(int, 3);
    let grid = btf.array(row, 2);
    let to_grid = btf.pointer(grid);
    let strings = btf.array(string, 4);
    let open = btf.array(int, 0);
    let binary = btf.add("", kind::FUNC_PROTO, 2, false, int, &[0, void, 0, int]);
    let to_binary = btf.pointer(binary);
    let maker = btf.add("", kind::FUNC_PROTO, 0, false, to_binary, &[]);
    let to_maker = btf.pointer(maker);
    let tag = btf.add("user", kind::TYPE_TAG, 0, false, constant, &[]);
    let user = btf.pointer(tag);

    let pair = btf.add("", kind::STRUCT, 2, true, 4, &[low, int, 3 << 24, high, int, 5 << 24 | 3]);
    let choice = btf.add("", kind::UNION, 2, false, 8, &[a, void, 0, 0, pair, 0]);
    let list = btf.add("", kind::ENUM, 1, true, 4, &[one, u32::MAX]);
    let members = [
        [0, choice, 64],
        [b, to_maker, 128],
        [c, strings, 192],
        [d, list, 448],
        [e, pair, 480],
        [f, user, 512],
        [g, open, 576],
    ];
    btf.add("all", kind::STRUCT, 7, false, 72, members.as_flattened());
    btf.add("color", kind::ENUM, 2, true, 4, &[one, 1, big, u32::MAX - 1]);
    btf.add("flags", kind::ENUM64, 2, false, 8, &[one, 1, 0, big, 0, 1 << 31]);
    btf.add("atomic_t", kind::TYPEDEF, 0, false, pair, &[]);
    btf.add("later", kind::FWD, 0, true, 0, &[]);
    let parameters = [[a, fixed], [b, to_grid], [c, to_maker], [d, word], [0, 0]];
    let prototype = btf.add("", kind::FUNC_PROTO, 5, false, to_binary, parameters.as_flattened());
    btf.add("make", kind::FUNC, 0, false, prototype, &[]);
    btf.add("choose", kind::TYPEDEF, 0, false, maker, &[]);
    let variable = btf.add("counter", kind::VAR, 0, false, word, &[1]);
    btf.add(".data", kind::DATASEC, 1, false, 64, &[variable, 8, 4]);
    btf.add("fast", kind::DECL_TAG, 0, false, variable, &[u32::MAX]);
    btf.finish()
}

#[test]
fn types_are_written_as_their_authors_know_them() {
    let section = section();
    let btf = Btf::parse(&section).unwrap();
    let all = "\
struct all {
    union {
        void *a;                                /* offset: 8, size: 8 */
        struct {
            int low : 3;                        /* offset: 8, bit: 0 */
            int high : 5;                       /* offset: 8, bit: 3 */
        };                                      /* offset: 8, size: 4 */
    };                                          /* offset: 8, size: 8 */
    int (*(*b)(void))(void *, int);             /* offset: 16, size: 8 */
    const char *c[4];                           /* offset: 24, size: 32 */
    enum {
        ONE = -1,
    } d;                                        /* offset: 56, size: 4 */
    struct {
        int low : 3;                            /* offset: 60, bit: 0 */
        int high : 5;                           /* offset: 60, bit: 3 */
    } e;                                        /* offset: 60, size: 4 */
    const char __user *f;                       /* offset: 64, size: 8 */
    int g[];                                    /* offset: 72, size: 0 */
};                                              /* size: 72 */";
    let typedef = "\
typedef struct {
    int low : 3;                                /* offset: 0, bit: 0 */
    int high : 5;                               /* offset: 0, bit: 3 */
} atomic_t;                                     /* size: 4 */";
    let color = "\
enum color {
    ONE = 1,
    BIG = -2,
};                                              /* size: 4 */";
    let flags = "\
enum flags {
    ONE = 1,
    BIG = 9223372036854775808,
};                                              /* size: 8 */";
    let data = "\
/* section .data, size: 64 */
gfp_t counter;                                  /* offset: 8, size: 4 */";
    let make = "int (*make(const char *const a, int (*b)[2][3], int (*(*c)(void))(void *, int), gfp_t d, ...))\
                (void *, int)";
    for (name, title, definition) in [
        ("all", "struct all", all),
        ("color", "enum color", color),
        ("flags", "enum flags", flags),
        ("atomic_t", "typedef atomic_t", typedef),
        ("gfp_t", "typedef gfp_t", "typedef int gfp_t;"),
        ("later", "union later", "union later;"),
        ("make", make, &format!("{make};")),
        ("choose", "typedef choose", "typedef int (*choose(void))(void *, int);"),
        ("counter", "gfp_t counter", "gfp_t counter;"),
        (".data", "/* section .data, size: 64 */", data),
        ("fast", "/* tag \"fast\" of counter */", "/* tag \"fast\" of counter */"),
        ("int", "int", "int;                                            /* size: 4 */"),
    ] {
        let found = btf.named(name).next().unwrap();
        assert_eq!(self::definition(&btf, found), definition);
        assert_eq!(self::title(&btf, found), title);
    }
    assert_eq!(prototype(&btf, btf.function("make").unwrap()), make);
    assert_eq!(declaration(&btf, TypeId::VOID, ""), "void");
    assert_eq!(declaration(&btf, TypeId(u32::MAX), "x"), "... x");
    assert_eq!(declaration(&btf, btf.member("all", "e").unwrap().ty, "x"), "struct {...} x");
}

#[test]
fn circles_and_depth_end() {
    let mut btf = BtfBuilder::default();
    let own = btf.name("own");
    btf.add("inside", kind::STRUCT, 2, false, 8, &[own, 2, 0, own, 2, 32]);
    btf.add("", kind::STRUCT, 2, false, 8, &[own, 2, 0, own, 2, 32]);
    btf.add("round", kind::TYPEDEF, 0, false, 4, &[]);
    btf.pointer(4);
    btf.add("takes", kind::FUNC, 0, false, 6, &[]);
    btf.add("", kind::FUNC_PROTO, 2, false, 6, &[own, 6, own, 6]);
    let section = btf.finish();
    let btf = Btf::parse(&section).unwrap();
    for found in btf.types() {
        let text = definition(&btf, found);
        assert!(text.len() < 2 << 20, "{}: {} bytes", found.id.0, text.len());
        assert!(text.contains(LEFT_OUT) || text.contains("struct {...}"), "{}", found.id.0);
    }
}

proptest! {
    #[test]
    fn no_corruption_panics(at in any::<prop::sample::Index>(), bytes in proptest::collection::vec(any::<u8>(), 1..8)) {
        let mut section = section();
        let at = at.index(section.len());
        for (byte, new) in section.iter_mut().skip(at).zip(&bytes) {
            *byte = *new;
        }
        if let Ok(btf) = Btf::parse(&section) {
            for found in btf.types() {
                prop_assert!(definition(&btf, found).len() < 1 << 20);
                let _ = title(&btf, found);
            }
        }
    }
}
