//! Which of a list of kernels may be the first bad one.

use super::outcome::{CandidateVerdict, CandidateVerdicts};

/// Those of `list`, which goes from good to bad, that may be the first bad one: the one in the middle first, the one that is known
/// to be bad last.
pub(crate) fn open(list: &[String], verdicts: &CandidateVerdicts) -> Vec<String> {
    let is = |verdict| move |candidate: &String| verdicts.of(candidate) == Some(verdict);
    let bad = list.iter().position(is(CandidateVerdict::Bad)).unwrap_or(list.len().saturating_sub(1));
    let below = list.get(..bad).unwrap_or_default();
    let good = below.iter().rposition(is(CandidateVerdict::Good)).map_or(0, |good| good + 1);
    let mut between: Vec<(usize, &String)> = below.iter().enumerate().skip(good).collect();
    // Twice the distance from the middle, which may lie between two.
    between.sort_by_key(|(at, _)| (2 * at).abs_diff((good + bad).saturating_sub(1)));
    between.into_iter().map(|(_, candidate)| candidate).chain(list.get(bad)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use CandidateVerdict::{Bad, Good, Skipped};

    #[test]
    fn the_middle_comes_first_and_what_is_bad_last() {
        let list: Vec<String> = (0..8).map(|n| n.to_string()).collect();
        let open = |verdicts: &[(usize, CandidateVerdict)]| {
            let mut all = CandidateVerdicts::default();
            verdicts.iter().for_each(|(at, verdict)| all.add(&list[*at], *verdict));
            self::open(&list, &all).concat()
        };
        assert_eq!(open(&[(7, Bad), (0, Good)]), "3425167");
        assert_eq!(open(&[(7, Bad), (0, Good), (4, Bad)]), "2134");
        assert_eq!(open(&[(7, Bad), (0, Good), (4, Good)]), "567");
        assert_eq!(open(&[(7, Bad), (0, Good), (4, Skipped), (3, Bad)]), "123");
        assert_eq!(open(&[(7, Bad), (0, Good), (1, Bad)]), "1");
    }
}
