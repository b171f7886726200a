//! The list of runs, and apart from them what a lookup compares with its key.
use super::ListedRun;
use core::cmp::Reverse;
use core::ops::{Deref, DerefMut, Range};
use fawn_types::RingKey;

/// Listed runs, newest first; those of one age by their lowest keys.
#[derive(Debug, Default)]
pub(crate) struct RunList {
    runs: Vec<ListedRun>,
    ends: EndsByAge,
}

/// Ends of the runs, in the same order.
#[derive(Debug, Default)]
struct EndsByAge {
    ends: Vec<RunEnds>,
    /// The place after the last run of each age.
    ages: Vec<u32>,
    /// Runs whose ends were taken, again and again: measures work that grows with the number of runs.
    #[cfg(test)]
    taken: usize,
}

/// The highest 32 bits of ring keys.
#[derive(Debug)]
struct RunEnds {
    lowest: u32,
    highest: u32,
    /// The highest one of its run and those of the same age before it.
    reached: u32,
}

impl Deref for RunList {
    type Target = [ListedRun];

    fn deref(&self) -> &[ListedRun] {
        &self.runs
    }
}

impl DerefMut for RunList {
    fn deref_mut(&mut self) -> &mut [ListedRun] {
        &mut self.runs
    }
}

impl RunList {
    /// Enters runs in their places by age. An opening enters all at once: one by one, each would move those before it.
    pub(super) fn insert(&mut self, runs: impl IntoIterator<Item = ListedRun>) {
        self.runs.extend(runs);
        self.runs.sort_by_key(|run| (Reverse(run.age), run.bounds().lowest));
        self.note_ends();
    }

    /// Runs whose ends were taken.
    #[cfg(test)]
    pub(super) fn ends_taken(&self) -> usize {
        self.ends.taken
    }

    /// Takes the runs with these ids out.
    pub(super) fn take(&mut self, ids: &[u64]) -> Vec<ListedRun> {
        let taken = self.runs.extract_if(.., |listed| ids.contains(&listed.id)).collect();
        self.note_ends();
        taken
    }

    fn note_ends(&mut self) {
        let ends = |listed: &ListedRun| {
            let bounds = listed.bounds();
            (listed.age, bounds.lowest.highest(), bounds.highest.highest())
        };
        self.ends.set(self.runs.iter().map(ends));
    }

    /// Places of the runs between whose lowest and highest key this one is, newest first.
    #[inline]
    pub(super) fn covering<'a>(&'a self, key: &'a RingKey) -> impl Iterator<Item = usize> + 'a {
        let highest = key.highest();
        let places = self.ends.near(highest).flatten();
        places.filter(move |&at| self.ends.ends[at].highest >= highest).filter(|&at| self.runs[at].covers(key))
    }
}

impl EndsByAge {
    /// Takes the age and the ends of each run.
    fn set(&mut self, runs: impl Iterator<Item = (u64, u32, u32)>) {
        self.ends.clear();
        self.ages.clear();
        let mut last: Option<(u64, u32)> = None;
        for (age, lowest, highest) in runs {
            #[cfg(test)]
            (self.taken += 1);
            let of_age = last.filter(|&(of_last, _)| of_last == age);
            if of_age.is_none() && last.is_some() {
                self.ages.push(self.ends.len() as u32);
            }
            let reached = of_age.map_or(highest, |(_, reached)| highest.max(reached));
            self.ends.push(RunEnds { lowest, highest, reached });
            last = Some((age, reached));
        }
        if last.is_some() {
            self.ages.push(self.ends.len() as u32);
        }
    }

    /// Places that have all runs with this key, part by part. Most runs of one age do not overlap: then an age has one such run
    /// at most, or those that end where the next one begins.
    #[inline]
    fn near(&self, key: u32) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut begin = 0;
        self.ages.iter().map(move |&end| {
            let of_age = &self.ends[begin..end as usize];
            let to = of_age.partition_point(|ends| ends.lowest <= key);
            let from = of_age[..to].partition_point(|ends| ends.reached < key);
            let near = begin + from..begin + to;
            begin = end as usize;
            near
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A terabyte has some thousand runs, most of them of the oldest age.
    #[test]
    fn a_lookup_looks_at_runs_near_its_key_only() {
        let width = u32::MAX / 5_000;
        let oldest = (0..5_000).map(|part| (1, part * width, (part + 1) * width));
        // Batches of a sort have the whole ring each.
        let batches = (0..3).map(|part| (2, part, u32::MAX - part));
        let newest = (0..50).map(|part| (3, part * 100 * width, (part * 100 + 90) * width));
        let mut list = EndsByAge::default();
        let runs: Vec<(u64, u32, u32)> = newest.chain(batches).chain(oldest).collect();
        list.set(runs.iter().copied());
        for part in 0..4_999 {
            for key in [part * width, part * width + 1, part * width + width / 2] {
                let places: Vec<usize> = list.near(key).flatten().collect();
                assert!(places.len() <= 6, "{} of {} runs for one key", places.len(), runs.len());
                let covering = (0..runs.len()).filter(|&at| runs[at].1 <= key && key <= runs[at].2);
                assert!(covering.clone().all(|at| places.contains(&at)), "{key}: {places:?}");
                assert!(places.is_sorted(), "newest first");
            }
        }
    }

    /// A long run at the front of its age is found behind many short ones.
    #[test]
    fn runs_of_one_age_may_overlap() {
        let mut list = EndsByAge::default();
        list.set([(5, 0, 100), (5, 10, 20), (5, 30, 40), (4, 0, 9)].into_iter());
        let near = |key| list.near(key).flatten().collect::<Vec<usize>>();
        assert_eq!([near(5), near(35), near(90)], [vec![0, 3], vec![0, 1, 2], vec![0, 1, 2]]);
        assert_eq!(near(101), [] as [usize; 0]);
        list.set([].into_iter());
        assert_eq!(list.near(1).count(), 0);
    }
}
