//! Choice of the runs to merge: some of the later ones once there are many, and all of them with the oldest ones once
//! those are not much longer.
use super::ListedRun;
use core::ops::Range;
use fawn_types::TimeMs;

/// Ages of later runs above which some are merged: each costs misses a thousandth of a read.
const LATER_AGES_MAX: usize = 16;
/// Ages that are merged at a time at least.
const MERGED_AGES_MIN: usize = 8;
/// Ages of later runs before they are merged with the oldest ones.
const SWEPT_AGES_MIN: usize = 4;
/// Later runs, in percent of the oldest ones, that are merged with these while nothing is written.
const SWEPT_AT_REST_PERCENT: u64 = 6;

/// Space that the store has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SpaceLeft {
    Ample,
    /// Puts have little besides what jobs need.
    Little,
    /// The last attempt to allocate failed.
    None,
}

impl SpaceLeft {
    /// The least number of ages, and the least length of the later runs in percent of the oldest ones'. A sweep writes as much
    /// as the oldest ones have.
    const fn sweep_limits(self) -> (usize, u64) {
        match self {
            Self::Ample => (SWEPT_AGES_MIN, 28),
            Self::Little => (1, 10),
            // Dead records of the oldest runs may be all that takes the space.
            Self::None => (1, 0),
        }
    }

    /// The least part of the runs, in percent, that has expired before a sweep is begun for it.
    const fn expired_percent_min(self) -> u64 {
        match self {
            Self::Ample => 28,
            Self::Little => 10,
            Self::None => 5,
        }
    }
}

/// Whether there is space for a merge of later runs with so many pages.
pub(super) type Fits<'f> = &'f dyn Fn(u64) -> bool;

/// Facts of a listed run.
#[derive(Clone, Copy, Debug)]
pub(super) struct MergeCandidate {
    age: u64,
    file_bytes: u64,
    pages: u64,
    /// Length of the records that a merge would find expired, bytes.
    expired_bytes: u64,
    /// A merge with it would fail.
    is_barred: bool,
}

impl MergeCandidate {
    pub(super) fn of(listed: &ListedRun, expired_by: TimeMs, is_barred: bool) -> Self {
        let (age, file_bytes, pages) = (listed.age, listed.file_bytes, u64::from(listed.run.footer().pages));
        Self { age, file_bytes, pages, expired_bytes: listed.expired_bytes(expired_by), is_barred }
    }
}

/// Runs to merge, by their places in the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ChosenMerge {
    /// These later runs with each other.
    Later(Range<usize>),
    /// These later runs with all of the oldest age.
    Sweep(Range<usize>),
}

/// Chooses among all runs, newest first. For a merge of later ones there is space.
///
/// The new run takes its place among the ages of those that it replaces, and lookups stop at the newest record. So a merge
/// has all runs of consecutive ages: those on both sides of a barred run stay apart.
pub(super) fn choose_merge(runs: &[MergeCandidate], space: SpaceLeft, fits: Fits<'_>) -> Option<ChosenMerge> {
    let oldest = runs.last()?.age;
    groups(runs).find_map(|group| {
        let (later, oldest) = split_off_oldest(runs, &group, oldest);
        let bytes = |of: Range<usize>| runs[of].iter().map(|run| run.file_bytes).sum::<u64>();
        let (ages_min, percent_min) = space.sweep_limits();
        let is_worthwhile = bytes(later.clone()) * 100 >= bytes(oldest.clone()) * percent_min;
        let expired_bytes: u64 = runs[group.clone()].iter().map(|run| run.expired_bytes).sum();
        // Only a merge with the oldest ones leaves no tombstones of what has expired. There may be no later runs.
        let has_expired = expired_bytes > 0 && expired_bytes * 100 >= bytes(group) * space.expired_percent_min();
        let has_later = is_worthwhile && ages(&runs[later.clone()]).count() >= ages_min;
        if !oldest.is_empty() && (has_later || has_expired) {
            return Some(ChosenMerge::Sweep(later));
        }
        choose_later(runs, later, fits).map(ChosenMerge::Later)
    })
}

/// Chooses among all runs for jobs that write at most so many bytes, while nothing is written and no merge is due: all
/// later runs with the oldest ones, or else with each other. Returns the bytes that the merge writes, too.
pub(super) fn choose_at_rest(runs: &[MergeCandidate], bytes_max: u64) -> Option<(ChosenMerge, u64)> {
    let oldest = runs.last()?.age;
    let bytes = |of: &Range<usize>| runs[of.clone()].iter().map(|run| run.file_bytes).sum::<u64>();
    groups(runs).find_map(|group| {
        let (later, oldest) = split_off_oldest(runs, &group, oldest);
        let (later_bytes, oldest_bytes) = (bytes(&later), bytes(&oldest));
        let is_worthwhile = later_bytes > 0 && later_bytes * 100 >= oldest_bytes * SWEPT_AT_REST_PERCENT;
        let chosen = if !oldest.is_empty() && is_worthwhile && later_bytes + oldest_bytes <= bytes_max {
            (ChosenMerge::Sweep(later), later_bytes + oldest_bytes)
        } else if ages(&runs[later.clone()]).count() > 1 {
            (ChosenMerge::Later(later), later_bytes)
        } else {
            return None;
        };
        (chosen.1 <= bytes_max).then_some(chosen)
    })
}

/// Chooses among runs newer than those that are being merged with the oldest ones.
pub(super) fn choose_newer(runs: &[MergeCandidate], fits: Fits<'_>) -> Option<Range<usize>> {
    groups(runs).find_map(|group| choose_later(runs, group, fits))
}

/// Runs of consecutive ages none of which has a barred run.
fn groups(runs: &[MergeCandidate]) -> impl Iterator<Item = Range<usize>> + '_ {
    let (mut ages, mut end) = (ages(runs), 0);
    core::iter::from_fn(move || {
        let mut group = end..end;
        // The largest store has thousands of runs, most of them of one age.
        for of_age in ages.by_ref() {
            end += of_age.len();
            if of_age.iter().any(|run| run.is_barred) {
                return Some(group);
            }
            group.end = end;
        }
        (!group.is_empty()).then_some(group)
    })
}

fn split_off_oldest(runs: &[MergeCandidate], group: &Range<usize>, oldest: u64) -> (Range<usize>, Range<usize>) {
    let later = runs[group.clone()].iter().take_while(|run| run.age > oldest).count();
    let end = group.start + later;
    (group.start..end, end..group.end)
}

fn ages(runs: &[MergeCandidate]) -> impl Iterator<Item = &[MergeCandidate]> {
    runs.chunk_by(|a, b| a.age == b.age)
}

/// The consecutive ages whose merge costs the least for each age less, if there are too many. These are of about one length, so a
/// record is rewritten once for each time that the runs have grown to several times their length. A sort in batches makes many
/// short ages at a time, of which one merge makes one.
///
/// Simulated with 32, 128 and 400 sorts of one age, without sweeps, a byte is rewritten 0.5, 1.0 and 4.1 times. With the shortest
/// eight each time it was 0.8, 2.8 and 9.0, and with sorts of 64 ages 2.8, 4.8 and 11 instead of 1.5, 2.0 and 5.1.
fn choose_later(runs: &[MergeCandidate], later: Range<usize>, fits: Fits<'_>) -> Option<Range<usize>> {
    let mut parts: Vec<(usize, usize, u64)> = Vec::new();
    for part in ages(&runs[later.clone()]) {
        let start = parts.last().map_or(later.start, |&(_, end, _)| end);
        parts.push((start, start + part.len(), part.iter().map(|run| run.pages).sum()));
    }
    if parts.len() <= LATER_AGES_MAX {
        return None;
    }
    let mut best: Option<((u128, u128), Range<usize>)> = None;
    for first in 0..parts.len() {
        let mut pages = 0;
        for (nth, &(_, end, of_part)) in parts[first..].iter().enumerate() {
            pages += of_part;
            if !fits(pages) {
                break;
            }
            if nth + 1 < MERGED_AGES_MIN {
                continue;
            }
            let (cost, fewer) = (u128::from(pages), nth as u128);
            if best.as_ref().is_none_or(|&((least, of), _)| cost * of < least * fewer) {
                best = Some(((cost, fewer), parts[first].0..end));
            }
        }
    }
    best.map(|(_, places)| places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ChosenMerge::{Later, Sweep};

    /// Runs of these ages and lengths; those in the list are barred.
    fn candidates(runs: &[(u64, u64)], barred: &[usize]) -> Vec<MergeCandidate> {
        let facts = |(at, &(age, file_bytes))| MergeCandidate {
            age,
            file_bytes,
            pages: file_bytes,
            expired_bytes: 0,
            is_barred: barred.contains(&at),
        };
        runs.iter().enumerate().map(facts).collect()
    }

    fn choose(runs: &[(u64, u64)], barred: &[usize]) -> Option<ChosenMerge> {
        choose_merge(&candidates(runs, barred), SpaceLeft::Ample, &|_| true)
    }

    fn ages_of(ages: core::ops::RangeInclusive<u64>) -> Vec<(u64, u64)> {
        ages.rev().map(|age| (age, 1)).collect()
    }

    #[test]
    fn later_runs_of_four_ages_are_merged_with_the_oldest_once_they_have_28_percent_of_their_length() {
        assert_eq!(choose(&[], &[]), None);
        assert_eq!(choose(&[(4, 1), (3, 1), (2, 1), (1, 1)], &[]), None, "three later ones");
        assert_eq!(choose(&[(4, 1), (4, 1), (3, 1), (2, 1), (1, 1)], &[]), None, "of one merge: one age");
        assert_eq!(choose(&[(5, 1), (4, 1), (3, 1), (2, 1), (1, 14)], &[]), Some(Sweep(0..4)));
        assert_eq!(choose(&[(5, 1), (4, 1), (3, 1), (2, 1), (1, 15)], &[]), None);
        assert_eq!(choose(&[(5, 1), (4, 1), (3, 1), (2, 1), (1, 7), (1, 7)], &[]), Some(Sweep(0..4)));
        assert_eq!(choose(&[(5, 1), (4, 1), (3, 1), (2, 1), (1, 7), (1, 8)], &[]), None);
    }

    #[test]
    fn a_store_with_little_space_merges_with_the_oldest_earlier() {
        let runs = |oldest| candidates(&[(2, 1), (1, oldest)], &[]);
        assert_eq!(choose_merge(&runs(1), SpaceLeft::Ample, &|_| true), None);
        assert_eq!(choose_merge(&runs(10), SpaceLeft::Little, &|_| true), Some(Sweep(0..1)));
        assert_eq!(choose_merge(&runs(11), SpaceLeft::Little, &|_| true), None);
        assert_eq!(choose_merge(&runs(1 << 40), SpaceLeft::None, &|_| true), Some(Sweep(0..1)));
        assert_eq!(choose_merge(&candidates(&[(1, 1)], &[]), SpaceLeft::None, &|_| true), None, "nothing is newer");
    }

    #[test]
    fn runs_of_which_much_has_expired_are_merged_with_the_oldest() {
        let choose = |runs: &[(u64, u64, u64)], space| {
            let lengths: Vec<_> = runs.iter().map(|&(age, file_bytes, _)| (age, file_bytes)).collect();
            let mut runs_of = candidates(&lengths, &[]);
            runs_of.iter_mut().zip(runs).for_each(|(run, &(.., expired_bytes))| run.expired_bytes = expired_bytes);
            choose_merge(&runs_of, space, &|_| true)
        };
        for (space, percent) in [(SpaceLeft::Ample, 28), (SpaceLeft::Little, 10), (SpaceLeft::None, 5)] {
            assert_eq!(choose(&[(1, 100, percent - 1)], space), None);
            assert_eq!(choose(&[(1, 100, percent)], space), Some(Sweep(0..0)), "nothing is newer");
            assert_eq!(choose(&[(1, 50, percent), (1, 50, 0)], space), Some(Sweep(0..0)));
        }
        assert_eq!(choose(&[(2, 1, 0), (1, 99, 28)], SpaceLeft::Ample), Some(Sweep(0..1)));
        assert_eq!(choose(&[(2, 40, 28), (1, 60, 0)], SpaceLeft::Ample), Some(Sweep(0..1)), "of later runs");
        assert_eq!(choose(&[(1, 100, 0)], SpaceLeft::None), None);
    }

    #[test]
    fn a_rest_merges_all_later_runs_as_far_as_it_may_write() {
        let choose =
            |runs: &[(u64, u64)], barred: &[usize], bytes_max| choose_at_rest(&candidates(runs, barred), bytes_max);
        assert_eq!(choose(&[], &[], 1_000), None);
        assert_eq!(choose(&[(1, 50), (1, 50)], &[], 1_000), None, "nothing is newer");
        assert_eq!(choose(&[(2, 6), (1, 50), (1, 50)], &[], 106), Some((Sweep(0..1), 106)));
        assert_eq!(choose(&[(2, 6), (1, 50), (1, 50)], &[], 105), None, "later runs of one age stay");
        assert_eq!(choose(&[(2, 5), (1, 100)], &[], 1_000), None, "too few");
        assert_eq!(choose(&[(4, 1), (3, 2), (2, 2), (1, 100)], &[], 1_000), Some((Later(0..3), 5)));
        assert_eq!(choose(&[(4, 1), (3, 2), (2, 3), (1, 100)], &[], 1_000), Some((Sweep(0..3), 106)));
        assert_eq!(choose(&[(4, 1), (3, 2), (2, 3), (1, 100)], &[], 105), Some((Later(0..3), 6)));
        assert_eq!(choose(&[(4, 1), (3, 2), (2, 3), (1, 100)], &[], 5), None);
        assert_eq!(
            choose(&[(4, 1), (3, 1), (2, 9), (1, 9)], &[3], 99),
            Some((Later(0..3), 11)),
            "the oldest is barred"
        );
        assert_eq!(choose(&[(4, 1), (3, 1), (2, 9), (1, 9)], &[2], 99), Some((Later(0..2), 2)));
    }

    #[test]
    fn the_shortest_of_too_many_later_runs_are_merged() {
        let mut runs = ages_of(2..=17);
        runs.push((1, 1000));
        assert_eq!(choose(&runs, &[]), None, "sixteen ages");
        runs.insert(0, (18, 9));
        assert_eq!(choose(&runs, &[]), Some(Later(1..17)), "those that are shorter than the newest");
        runs[1].1 = 2;
        assert_eq!(choose(&runs, &[]), Some(Later(2..17)));
        runs.insert(3, (16, 1));
        assert_eq!(choose(&runs, &[]), Some(Later(4..18)), "all runs of an age");
        assert_eq!(choose_newer(&candidates(&ages_of(2..=17), &[]), &|_| true), None);
        assert_eq!(choose_newer(&candidates(&ages_of(2..=18), &[]), &|_| true), Some(0..17));
        assert_eq!(choose_newer(&candidates(&ages_of(2..=80), &[]), &|_| true), Some(0..79));
        assert_eq!(
            choose_newer(&candidates(&ages_of(2..=80), &[]), &|pages| pages <= 20),
            Some(0..20),
            "in the space that there is"
        );
        assert_eq!(choose_newer(&candidates(&ages_of(2..=80), &[]), &|pages| pages <= 7), None);
    }

    /// Sorts of 64 batches each. Were the last merge's result in the next one, each would be longer than all before.
    #[test]
    fn ages_of_batches_are_merged_with_each_other() {
        let (mut runs, mut merged) = (Vec::new(), 0);
        for sort in 1..=400 {
            let newest = runs.first().map_or(1, |&(age, _)| age);
            runs.splice(0..0, (1..=64).rev().map(|batch| (newest + batch, 1)));
            while let Some(places) = choose_newer(&candidates(&runs, &[]), &|_| true) {
                let bytes: u64 = runs[places.clone()].iter().map(|(_, bytes)| bytes).sum();
                let age = runs[places.start].0;
                runs.splice(places, [(age, bytes)]);
                merged += bytes;
            }
            assert!(runs.len() <= 16, "{runs:?}");
            assert!(merged <= sort * 64 * 6, "{merged} after {sort} sorts: {runs:?}");
        }
    }

    /// A search once judged an age again for each of its runs.
    #[test]
    fn runs_of_one_age_are_judged_together() {
        let of_two: Vec<(u64, u64)> = (0..1_000).map(|at| (2 - at / 500, 1)).collect();
        let groups = |barred: &[usize]| {
            groups(&candidates(&of_two, barred)).map(|group| (group.start, group.end)).collect::<Vec<_>>()
        };
        assert_eq!(groups(&[999]), [(0, 500)]);
        assert_eq!(groups(&[499]), [(0, 0), (500, 1_000)]);
        assert_eq!(groups(&[1, 999]), [(0, 0), (500, 500)]);
        assert_eq!(groups(&[]), [(0, 1_000)]);
    }

    #[test]
    fn a_barred_run_parts_those_around_it() {
        let runs = ages_of(1..=12);
        assert_eq!(choose(&runs, &[]), Some(Sweep(0..11)));
        assert_eq!(choose(&runs, &[5]), Some(Sweep(6..11)), "those on the side of the oldest ones");
        assert_eq!(choose(&runs, &[11]), None, "the oldest itself");
        assert_eq!(choose(&[(5, 1), (4, 1), (3, 1), (2, 1), (1, 1), (1, 1)], &[5]), None, "one of the oldest");
        let of_two = [(7, 1), (6, 1), (6, 1), (5, 1), (4, 1), (3, 1), (2, 1), (1, 1)];
        assert_eq!(choose(&of_two, &[2]), Some(Sweep(3..7)), "another run of its age stays with it");
        let mut many = ages_of(1..=40);
        assert_eq!(choose(&many, &[20, 39]), Some(Later(0..20)), "later ones on one side");
        many[0].1 = 5;
        assert_eq!(choose(&many, &[20, 39]), Some(Later(1..20)));
    }
}
