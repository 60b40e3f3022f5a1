//! The names that a user may have meant.

/// Longest name that is compared, in bytes: the work for a pair is the product of both lengths.
const LONGEST: usize = 128;

/// Up to `count` of the `names` that are like `name`, the likeliest first: those a few typing errors away, by how
/// many, then those that contain it, the shortest first.
#[must_use]
pub fn nearest<'a>(names: impl Iterator<Item = &'a str>, name: &str, count: usize) -> Vec<&'a str> {
    if name.is_empty() || name.len() > LONGEST {
        return Vec::new();
    }
    let allowed = 1 + name.len() / 4;
    let own_letters = letters(name);
    let mut found: Vec<(usize, usize, &str)> = names
        .filter(|other| other.len() <= LONGEST)
        .filter_map(|other| {
            // One error changes the length by at most one, and the set of letters by at most two.
            let may_be_near = name.len().abs_diff(other.len()) <= allowed
                && (own_letters ^ letters(other)).count_ones() as usize <= 2 * allowed;
            let errors = if may_be_near { strsim::osa_distance(name, other) } else { usize::MAX };
            if errors <= allowed {
                Some((errors, other.len(), other))
            } else {
                other.contains(name).then_some((allowed + 1, other.len(), other))
            }
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found.into_iter().take(count).map(|(_, _, name)| name).collect()
}

/// Which bytes occur, folded into 64 bits.
fn letters(name: &str) -> u64 {
    name.bytes().fold(0, |set, byte| set | 1 << (byte % 64))
}

/// What follows a sentence about a name that there is not.
#[must_use]
pub fn suggestion(nearest: &[String]) -> String {
    match nearest {
        [] => String::new(),
        [one] => format!("; did you mean `{one}`?"),
        several => format!("; did you mean one of `{}`?", several.join("`, `")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        let names = [
            "do_sys_open",
            "do_sys_openat2",
            "do_sys_openat2",
            "vfs_read",
            "vfs_readv",
            "vfs_write",
            "rest_init",
            "x",
        ];
        for (name, expected) in [
            ("vfs_raed", &["vfs_read", "vfs_readv"][..]),
            ("vfs_read", &["vfs_read", "vfs_readv"]),
            ("do_sys_openat", &["do_sys_openat2", "do_sys_open"]),
            ("openat2", &["do_sys_openat2"]),
            ("rest_int", &["rest_init"]),
            ("nothing_like_it_at_all", &[]),
            ("", &[]),
        ] {
            assert_eq!(nearest(names.into_iter(), name, 3), expected, "{name}");
        }
        assert_eq!(nearest(names.into_iter(), &"x".repeat(1000), 3), [""; 0]);
    }
}
