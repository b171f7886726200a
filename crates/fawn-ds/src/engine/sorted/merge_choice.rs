//! Choice of the runs to merge: the later ones once there are many, and with the oldest ones if those are not much longer.
use super::ListedRun;
use core::ops::Range;
use fawn_types::MonoMs;

/// Ages of later runs at which they are merged into one.
const LATER_AGES_MAX: usize = 4;
/// The later runs are merged with the oldest ones when these are less than so many times as long.
const OLDEST_PER_LATER: u64 = 6;

/// Facts of a listed run.
#[derive(Clone, Copy, Debug)]
pub(super) struct MergeCandidate {
    age: u64,
    file_bytes: u64,
    /// A merge with it would fail.
    is_barred: bool,
}

impl MergeCandidate {
    pub(super) fn of(listed: &ListedRun, now: MonoMs) -> Self {
        Self { age: listed.age, file_bytes: listed.file_bytes, is_barred: listed.failures.is_barred(now) }
    }
}

/// Runs to merge, by their places in the list, and whether the oldest ones are among them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ChosenMerge {
    pub(super) places: Range<usize>,
    pub(super) has_oldest: bool,
}

/// Chooses among all runs, newest first.
///
/// The new run takes its place among the ages of those that it replaces, and lookups stop at the newest record. So a merge
/// has all runs of consecutive ages: those on both sides of a barred run stay apart.
pub(super) fn choose_merge(runs: &[MergeCandidate]) -> Option<ChosenMerge> {
    let oldest = runs.last()?.age;
    let mut start = 0;
    while start < runs.len() {
        let is_barred = |age: u64| runs.iter().any(|run| run.age == age && run.is_barred);
        let len = runs[start..].iter().take_while(|run| !is_barred(run.age)).count();
        if let Some(chosen) = choose_in_group(runs, start..start + len, oldest) {
            return Some(chosen);
        }
        start += len + 1;
    }
    None
}

fn choose_in_group(runs: &[MergeCandidate], group: Range<usize>, oldest: u64) -> Option<ChosenMerge> {
    let later = runs[group.clone()].iter().take_while(|run| run.age > oldest).count();
    let (later, oldest) = runs[group.clone()].split_at(later);
    let ages = later.chunk_by(|a, b| a.age == b.age).count();
    if ages < LATER_AGES_MAX {
        return None;
    }
    let bytes = |of: &[MergeCandidate]| of.iter().map(|run| run.file_bytes).sum::<u64>();
    let has_oldest = !oldest.is_empty() && bytes(later) * OLDEST_PER_LATER >= bytes(oldest);
    let end = if has_oldest { group.end } else { group.start + later.len() };
    Some(ChosenMerge { places: group.start..end, has_oldest })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs of these ages and lengths; those in the list are barred.
    fn choose(runs: &[(u64, u64)], barred: &[usize]) -> Option<(Range<usize>, bool)> {
        let runs = runs.iter().enumerate();
        let facts = |(at, &(age, file_bytes))| MergeCandidate { age, file_bytes, is_barred: barred.contains(&at) };
        let chosen = choose_merge(&runs.map(facts).collect::<Vec<_>>());
        chosen.map(|chosen| (chosen.places, chosen.has_oldest))
    }

    #[test]
    fn later_runs_are_merged_once_there_are_four_ages() {
        assert_eq!(choose(&[], &[]), None);
        assert_eq!(choose(&[(4, 1), (3, 1), (2, 1), (1, 99)], &[]), None, "three later ones");
        assert_eq!(choose(&[(4, 1), (4, 1), (3, 1), (2, 1), (1, 99)], &[]), None, "of one merge: one age");
        assert_eq!(choose(&[(5, 1), (4, 1), (3, 1), (2, 1), (1, 99)], &[]), Some((0..4, false)));
    }

    #[test]
    fn the_oldest_runs_are_merged_unless_they_are_six_times_as_long() {
        assert_eq!(choose(&[(5, 1), (4, 1), (3, 1), (2, 1), (1, 24)], &[]), Some((0..5, true)));
        assert_eq!(choose(&[(5, 1), (4, 1), (3, 1), (2, 1), (1, 25)], &[]), Some((0..4, false)));
        assert_eq!(choose(&[(5, 1), (4, 1), (3, 1), (2, 1), (1, 12), (1, 12)], &[]), Some((0..6, true)));
        assert_eq!(choose(&[(5, 1), (4, 1), (3, 1), (2, 1), (1, 12), (1, 13)], &[]), Some((0..4, false)));
    }

    #[test]
    fn a_barred_run_parts_those_around_it() {
        let runs: Vec<(u64, u64)> = (1..=12).rev().map(|age| (age, 1)).collect();
        assert_eq!(choose(&runs, &[]), Some((0..12, true)));
        assert_eq!(choose(&runs, &[5]), Some((0..5, false)), "the newer ones");
        assert_eq!(choose(&runs, &[2]), Some((3..12, true)), "the older ones, since those before are few");
        assert_eq!(choose(&runs, &[2, 11]), Some((3..11, false)));
        assert_eq!(choose(&runs, &[3, 7]), None);
        assert_eq!(choose(&[(5, 1), (4, 1), (3, 1), (2, 1), (1, 1), (1, 1)], &[5]), Some((0..4, false)));
        let of_two = [(6, 1), (5, 1), (4, 1), (4, 1), (3, 1), (2, 1), (1, 1)];
        assert_eq!(choose(&of_two, &[2]), None, "another run of its age stays with it");
    }
}
