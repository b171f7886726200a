//! The list of runs, and apart from them what a lookup compares with its key: a few cache lines for hundreds of runs.
use super::ListedRun;
use core::ops::{Deref, DerefMut};
use fawn_types::RingKey;

/// Listed runs, newest first.
#[derive(Debug, Default)]
pub(crate) struct RunList {
    runs: Vec<ListedRun>,
    /// The highest 32 bits of each run's lowest and highest ring key, in the same order.
    ends: Vec<(u32, u32)>,
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
    /// Enters a run in its place by age.
    pub(super) fn insert(&mut self, run: ListedRun) {
        let at = self.runs.partition_point(|other| other.age > run.age);
        let bounds = run.bounds();
        self.ends.insert(at, (bounds.lowest.highest(), bounds.highest.highest()));
        self.runs.insert(at, run);
    }

    /// Takes the runs with these ids out.
    pub(super) fn take(&mut self, ids: &[u64]) -> Vec<ListedRun> {
        let is_taken = |listed: &ListedRun| ids.contains(&listed.id);
        let mut runs = self.runs.iter();
        self.ends.retain(|_| runs.next().is_some_and(|listed| !is_taken(listed)));
        self.runs.extract_if(.., |listed| is_taken(listed)).collect()
    }

    /// Places of the runs between whose lowest and highest key this one is, newest first.
    #[inline]
    pub(super) fn covering<'a>(&'a self, key: &'a RingKey) -> impl Iterator<Item = usize> + 'a {
        let highest = key.highest();
        let is_near = move |&(_, &(first, last)): &(usize, &(u32, u32))| first <= highest && highest <= last;
        self.ends.iter().enumerate().filter(is_near).map(|(at, _)| at).filter(|&at| self.runs[at].covers(key))
    }
}
