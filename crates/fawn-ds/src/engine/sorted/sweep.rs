//! A merge of later runs with the oldest ones, one part of ring order at a time.
//!
//! Each part is a job of its own: it replaces some of the oldest runs, which have no keys in common, by their merge with
//! what the later runs have between their keys. The later runs that are left only repeat what the oldest ones have. So a
//! sweep takes as much free space as a part, not as the oldest runs have, and gives back later runs that it has passed.
//! After a crash the next sweep merges the finished parts again.
use super::super::Engine;
use super::job::{LATER_FILTER_BITS, RunInputs, SortJob};
use super::merge_choice::{ChosenMerge, MergeCandidate, choose_at_rest, choose_merge, choose_newer};
use super::pace::MergePace;
use super::space::space_of_pages;
use super::{ListedRun, SortedTier};
use crate::format::run::page::RunPage;
use crate::format::run::{KeyBounds, Space, page_offset};
use crate::sorted::{MergeSource, RunSource};
use core::ops::Range;
use fawn_flash::Device;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_types::{RingKey, TimeMs};

/// Bits per key of the oldest runs' filters.
const OLDEST_FILTER_BITS: u8 = 4;
/// Time between two searches for expired records at least, ms.
const EXPIRY_SEARCH_MS: u64 = 10_000;

const NEVER: TimeMs = TimeMs(u64::MAX);

/// A sweep between two of its parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RunSweep {
    /// Ids of the later runs, ascending.
    pub(super) later: Vec<u64>,
    /// The newest age of these.
    pub(super) age: u64,
    /// The age of the oldest runs. None of them is left once all their records are invalidated.
    pub(super) oldest_age: u64,
    /// The first ring key of the next part.
    pub(super) from: RingKey,
    /// Length of the later runs, bytes.
    pub(super) later_bytes: u64,
    /// Space that a part may take, bytes.
    pub(super) part_bytes: u64,
    /// Credit of the rest that was taken for all of it, and that its failed parts have used, bytes.
    pub(super) paid_bytes: u64,
    pub(super) failed_bytes: u64,
    pub(super) pace: MergePace,
}

/// A part of a sweep.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SweepPart {
    pub(super) from: RingKey,
    /// The first ring key of the next part; `None`: it is the last one.
    pub(super) to: Option<RingKey>,
    /// The oldest runs that it replaces.
    pub(super) oldest: Vec<u64>,
}

impl RunSweep {
    /// The next part: so many of the oldest runs, in the order of their keys, as are not longer than `bytes_max` in all,
    /// and at least one.
    pub(super) fn next_part(&self, runs: &[ListedRun], bytes_max: u64) -> SweepPart {
        let facts = |listed: &ListedRun| (listed.bounds().lowest, listed.file_bytes, listed.id);
        part_of(self.from, runs.iter().filter(|listed| listed.age == self.oldest_age).map(facts).collect(), bytes_max)
    }

    fn has_later(&self, id: u64) -> bool {
        self.later.binary_search(&id).is_ok()
    }

    /// Credit of the rest that it has not used, bytes.
    pub(super) const fn unused_bytes(&self) -> u64 {
        self.paid_bytes.saturating_sub(self.pace.written_bytes + self.failed_bytes)
    }
}

impl ListedRun {
    /// Length of its pages, bytes: what a merge reads of it.
    pub(super) fn pages_bytes(&self) -> u64 {
        u64::from(self.run.footer().pages) * PAGE_BYTES as u64
    }

    /// A merge has read these pages: one that was wrong before, and is right now, is not corrupt.
    pub(super) fn note_read(&mut self, offset: u64, pages: &[u8]) {
        let uuid = self.run.header().uuid;
        let is_right = |at: u64| {
            let page = (at - page_offset(0)) / PAGE_BYTES as u64;
            RunPage::decode(&pages[(at - offset) as usize..], uuid, page as u32).is_ok()
        };
        self.failures.note_read(offset..offset + pages.len() as u64, is_right);
    }

    /// Length of the records that have expired at this time, bytes, estimated.
    pub(super) fn expired_bytes(&self, at: TimeMs) -> u64 {
        self.run.footer().expiries.expired_bytes(at, self.run.facts().latest_expiry_ms)
    }

    /// Bounds of its keys. The engine writes no other space yet.
    pub(super) fn bounds(&self) -> &KeyBounds {
        &self.run.footer().bounds[usize::from(Space::KEYS.get())]
    }

    /// Whether the key is between its first and its last one.
    pub(super) fn covers(&self, key: &RingKey) -> bool {
        let KeyBounds { lowest, highest } = self.bounds();
        lowest <= key && key <= highest
    }
}

impl SortedTier {
    /// A part is listed, with runs of so many bytes: the sweep continues behind it, or has ended.
    pub(super) fn end_part(&mut self, part: SweepPart, written_bytes: u64) {
        let replaced = self.runs.iter().filter(|listed| part.oldest.contains(&listed.id));
        let replaced_bytes: u64 = replaced.map(|listed| listed.file_bytes).sum();
        self.sweep = self.sweep.take().and_then(|mut sweep| {
            sweep.pace.written_bytes += written_bytes;
            sweep.pace.replaced_bytes += replaced_bytes;
            // A sweep without later runs has no new keys.
            if part.to.is_none() && sweep.later_bytes > 0 {
                self.growth_percent = sweep.pace.grown_bytes() * 100 / sweep.later_bytes;
            }
            Some(RunSweep { from: part.to?, ..sweep })
        });
    }
}

impl<D: Device> Engine<D> {
    /// Begins a merge if one is due.
    pub(super) fn begin_merge(&mut self) -> bool {
        let now = self.now.mono;
        let has_expired = self.clock.get() >= self.sorted.expires_at;
        if now < self.sorted.retry_at || !(self.sorted.run_search.is_due(now) || has_expired) {
            return false;
        }
        self.stats.sort_searches += 1;
        if self.drop_invalidated_runs() {
            return true;
        }
        let (space, room_bytes) = (self.space_left(), self.room_for_later());
        let run_bytes_max = self.run_bytes_max();
        let fits = |pages| space_of_pages(pages, run_bytes_max) <= room_bytes;
        let expired_by = self.runs_expired_by();
        self.sorted.expires_at = self.next_run_expiry(expired_by);
        let is_full = self.full;
        let SortedTier { runs, run_search, sweep, rest, .. } = &mut self.sorted;
        run_search.begin();
        // At both ends of a bar: writes may wait for space at the first one.
        let ends = runs.iter().flat_map(|listed| [true, false].map(|is_full| listed.failures.barred_until(is_full)));
        ends.flatten().filter(|until| now < *until).for_each(|until| run_search.repeat_by(until));
        let is_barred = |listed: &ListedRun| listed.failures.is_barred(now, is_full);
        let candidates: Vec<MergeCandidate> =
            runs.iter().map(|listed| MergeCandidate::of(listed, expired_by, is_barred(listed))).collect();
        let newer = runs.partition_point(|listed| sweep.as_ref().is_some_and(|sweep| listed.age > sweep.age));
        // A sweep ends early if it cannot read all of its runs.
        let ended = sweep.take_if(|_| runs[newer..].iter().any(is_barred));
        if let Some(sweep) = ended {
            rest.credit(sweep.unused_bytes());
        }
        if sweep.is_some() {
            // Merges of newer ones and parts take turns: a sort may leave many ages, and the next one before their merge has ended.
            // Without space for such a merge, the next part gives some back.
            let part_is_first = core::mem::take(&mut self.sorted.was_newer);
            if part_is_first && self.begin_part() {
                return true;
            }
            let places = choose_newer(&candidates[..newer], &fits);
            self.sorted.was_newer = places.is_some_and(|places| self.merge_later(places));
            return self.sorted.was_newer || (!part_is_first && self.begin_part());
        }
        if let Some(chosen) = choose_merge(&candidates, space, &fits) {
            return self.begin_chosen(chosen);
        }
        let chosen = choose_at_rest(&candidates, self.sorted.rest.bytes_max());
        chosen.is_some_and(|(chosen, bytes)| {
            let has_begun = self.begin_chosen(chosen);
            // A sweep that has no room yet begins later.
            let SortedTier { sweep, job, rest, .. } = &mut self.sorted;
            if let Some(sweep) = sweep {
                sweep.paid_bytes = rest.pay(bytes);
            } else if let Some(job) = job.as_mut().filter(|_| has_begun) {
                job.paid_bytes = rest.pay(bytes);
            }
            has_begun
        })
    }

    /// Time of the expiry clock by which more of the runs' records than at this time will have expired.
    fn next_run_expiry(&self, expired_by: TimeMs) -> TimeMs {
        let next_end =
            |listed: &ListedRun| listed.run.footer().expiries.next_end(expired_by, listed.run.facts().latest_expiry_ms);
        // The time of a chain may be behind the clock: no search follows at once.
        let soon = TimeMs(self.clock.get().0.saturating_add(EXPIRY_SEARCH_MS));
        self.sorted.runs.iter().filter_map(next_end).min().map_or(NEVER, |at| at.max(soon))
    }

    fn begin_chosen(&mut self, chosen: ChosenMerge) -> bool {
        match chosen {
            ChosenMerge::Later(places) => self.merge_later(places),
            ChosenMerge::Sweep(places) => {
                self.begin_sweep(places);
                self.begin_part()
            }
        }
    }

    /// Begins the sweep of these later runs.
    fn begin_sweep(&mut self, later: Range<usize>) {
        let runs = &self.sorted.runs;
        let oldest_age = runs.last().map_or(0, |listed| listed.age);
        let later = &runs[later];
        let age = later.first().map_or(oldest_age, |listed| listed.age);
        let later_bytes = later.iter().map(|listed| listed.file_bytes).sum();
        let mut later: Vec<u64> = later.iter().map(|listed| listed.id).collect();
        later.sort_unstable();
        let part_bytes = self.part_bytes_max();
        let pace = MergePace::default();
        let (from, paid_bytes, failed_bytes) = (RingKey::MIN, 0, 0);
        self.sorted.sweep =
            Some(RunSweep { later, age, oldest_age, from, later_bytes, part_bytes, paid_bytes, failed_bytes, pace });
    }

    /// Space that a merge of later runs may take, bytes: it frees hardly anything. Lookups are slower until there is space.
    fn room_for_later(&self) -> u64 {
        self.room_for_runs(self.reserved_segments()) / 2
    }

    fn merge_later(&mut self, places: Range<usize>) -> bool {
        let runs = &self.sorted.runs[places];
        let age = runs.first().map_or(0, |listed| listed.age);
        let sources = runs.iter().map(|listed| MergeSource::Run(RunSource::all(&listed.run))).collect();
        let ids: Vec<u64> = runs.iter().map(|listed| listed.id).collect();
        let space_bytes = self.space_of_pages(runs.iter().map(|listed| u64::from(listed.run.footer().pages)).sum());
        if space_bytes > self.room_for_later() {
            return false;
        }
        let to_read_bytes = runs.iter().map(ListedRun::pages_bytes).sum();
        let pace = MergePace { to_read_bytes, ..MergePace::default() };
        let inputs = RunInputs { sources: ids.clone(), replaced: ids, part: None };
        self.begin_merge_of(inputs, sources, (age, LATER_FILTER_BITS), space_bytes);
        if let Some(job) = &mut self.sorted.job {
            job.pace = Some(pace);
        }
        true
    }

    /// Begins the next part of the sweep.
    fn begin_part(&mut self) -> bool {
        let Some(RunSweep { oldest_age, part_bytes, .. }) = self.sorted.sweep else { return false };
        let room_bytes = part_bytes.min(self.room_for_part());
        let mut bytes_max = room_bytes;
        loop {
            let Some((inputs, sources, space_bytes)) = self.part_of_at_most(bytes_max) else { return false };
            let is_short = inputs.part.as_ref().is_none_or(|part| part.oldest.len() <= 1);
            // In a full store a single run may have to exceed the capacity: what it takes is given back, and more, at its end.
            if space_bytes <= room_bytes || (is_short && (self.full || space_bytes <= self.room_for_part())) {
                self.expect_return(&inputs);
                self.begin_merge_of(inputs, sources, (oldest_age, OLDEST_FILTER_BITS), space_bytes);
                return true;
            }
            if is_short {
                // The next change of space is a drop of a segment, or the store's being full.
                return false;
            }
            bytes_max -= bytes_max / 4;
        }
    }

    /// The sweep next gives back a later run once it has read the oldest ones up to that run's end, or the part that begins.
    fn expect_return(&mut self, inputs: &RunInputs) {
        let SortedTier { runs, sweep, .. } = &mut self.sorted;
        let (Some(sweep), Some(part)) = (sweep, &inputs.part) else { return };
        let later = runs.iter().filter(|listed| sweep.has_later(listed.id));
        let ends: Vec<RingKey> = later.map(|listed| listed.bounds().highest).collect();
        let oldest = runs.iter().filter(|listed| listed.age == sweep.oldest_age);
        let facts = |listed: &ListedRun| (listed.id, listed.bounds().lowest, listed.pages_bytes());
        let bytes = bytes_until_return(part, &oldest.map(facts).collect::<Vec<_>>(), &ends);
        sweep.pace.to_read_bytes = sweep.pace.read_bytes + bytes;
    }

    /// The next part of the sweep, of oldest runs of so many bytes, with the space that it takes at most.
    fn part_of_at_most(&self, bytes_max: u64) -> Option<(RunInputs, Vec<MergeSource>, u64)> {
        let SortedTier { runs, sweep, .. } = &self.sorted;
        let sweep = sweep.as_ref()?;
        let part = sweep.next_part(runs, bytes_max);
        let mut inputs = RunInputs { replaced: part.oldest.clone(), ..RunInputs::default() };
        let (mut sources, mut pages) = (Vec::new(), 0);
        for listed in runs.iter() {
            let source = if part.oldest.contains(&listed.id) {
                RunSource::all(&listed.run)
            } else if sweep.has_later(listed.id) {
                RunSource::extent(&listed.run, Space::KEYS, part.from, part.to)
            } else {
                continue;
            };
            if source.pages_left() > 0 {
                pages += source.pages_left() as u64;
                inputs.sources.push(listed.id);
                sources.push(MergeSource::Run(source));
            }
        }
        let later = runs.iter().filter(|listed| sweep.has_later(listed.id));
        inputs.replaced.extend(passed(&later.map(LaterRun::of).collect::<Vec<_>>(), part.to));
        inputs.part = Some(part);
        Some((inputs, sources, self.space_of_pages(pages)))
    }

    fn begin_merge_of(
        &mut self,
        inputs: RunInputs,
        sources: Vec<MergeSource>,
        (age, filter_bits): (u64, u8),
        space_bytes: u64,
    ) {
        let id = self.sorted.next_job();
        let mut ids = inputs.sources.clone();
        ids.sort_unstable();
        let read = self.sorted.runs.iter().filter(|listed| ids.binary_search(&listed.id).is_ok());
        let oldest = read.map(|listed| listed.age).min();
        let mut job = SortJob::of_runs(id, inputs, sources, age, filter_bits);
        (job.space_bytes, job.oldest_source_age) = (space_bytes, oldest.unwrap_or(u64::MAX));
        self.sorted.job = Some(Box::new(job));
        self.sorted.was_merge = true;
    }
}

/// Facts of a later run.
#[derive(Clone, Copy, Debug)]
struct LaterRun {
    id: u64,
    age: u64,
    lowest: RingKey,
    highest: RingKey,
}

impl LaterRun {
    fn of(listed: &ListedRun) -> Self {
        let KeyBounds { lowest, highest } = *listed.bounds();
        Self { id: listed.id, age: listed.age, lowest, highest }
    }
}

/// The later runs, newest first, that the oldest ones replace below `to`, the first ring key of the next part.
///
/// A lookup stops at the newest run with its key. So a run stays as long as an older one that overlaps it does: that has older
/// records than the oldest runs have now.
fn passed(later: &[LaterRun], to: Option<RingKey>) -> Vec<u64> {
    let (mut passed, mut limit) = (Vec::new(), to);
    for of_age in later.chunk_by(|a, b| a.age == b.age).rev() {
        let (gone, kept): (Vec<&LaterRun>, Vec<&LaterRun>) =
            of_age.iter().partition(|run| limit.is_none_or(|limit| run.highest < limit));
        passed.extend(gone.iter().map(|run| run.id));
        let lowest_kept = kept.iter().map(|run| run.lowest);
        limit = limit.map(|limit| lowest_kept.fold(limit, RingKey::min));
    }
    passed
}

/// Bytes that are read of the oldest runs, of which each has an id, a lowest key and a length, until the part has ended and the
/// first of the later runs that end at these keys is passed.
fn bytes_until_return(part: &SweepPart, oldest: &[(u64, RingKey, u64)], ends: &[RingKey]) -> u64 {
    // A run that has been passed stays for an older one.
    let end = ends.iter().filter(|end| **end >= part.from).min();
    let is_left = |lowest: RingKey| part.from == RingKey::MIN || lowest >= part.from;
    let is_next = |&&(id, lowest, _): &&(u64, RingKey, u64)| {
        part.oldest.contains(&id) || is_left(lowest) && end.is_none_or(|end| lowest <= *end)
    };
    oldest.iter().filter(is_next).map(|(.., bytes)| bytes).sum()
}

/// The part that begins at `from`, of runs with these lowest keys, lengths and ids.
fn part_of(from: RingKey, mut oldest: Vec<(RingKey, u64, u64)>, bytes_max: u64) -> SweepPart {
    oldest.sort_unstable();
    // Keys of the parts that are done are below.
    let left = oldest.iter().filter(|&&(lowest, ..)| from == RingKey::MIN || lowest >= from);
    let (mut part, mut bytes) = (SweepPart { from, to: None, oldest: Vec::new() }, 0);
    for &(lowest, file_bytes, id) in left {
        bytes += file_bytes;
        if bytes > bytes_max && !part.oldest.is_empty() {
            part.to = Some(lowest);
            break;
        }
        part.oldest.push(id);
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(highest: u8) -> RingKey {
        let mut key = RingKey::MIN;
        key.0[0] = highest;
        key
    }

    /// In the order of ages, newest first.
    #[test]
    fn a_later_run_stays_as_long_as_an_older_one_that_overlaps_it() {
        let run = |id, age, from, to| LaterRun { id, age, lowest: key(from), highest: key(to) };
        let aligned = [run(5, 3, 10, 19), run(6, 3, 20, 29), run(3, 2, 11, 18), run(4, 2, 21, 28)];
        assert_eq!(passed(&aligned, Some(key(19))), [3]);
        assert_eq!(passed(&aligned, Some(key(20))), [3, 5]);
        assert_eq!(passed(&aligned, Some(key(29))), [3, 4, 5]);
        assert_eq!(passed(&aligned, None), [3, 4, 5, 6]);
        let overlapping = [run(5, 3, 10, 15), run(6, 3, 16, 22), run(3, 2, 11, 18), run(4, 2, 20, 28)];
        assert_eq!(passed(&overlapping, Some(key(25))), [3, 5], "4 has older records of 6");
        let in_a_row = [run(5, 4, 1, 11), run(4, 3, 10, 21), run(3, 2, 20, 31)];
        assert_eq!(passed(&in_a_row, Some(key(31))), [0; 0], "4 stays for 3, and 5 for 4");
    }

    #[test]
    fn the_next_return_is_where_a_later_run_ends_behind_the_part() {
        let oldest = [(1, key(10), 100), (2, key(20), 200), (3, key(30), 400), (4, key(40), 800)];
        let until = |from, part: &[u64], ends: &[u8]| {
            let part = SweepPart { from: key(from), to: None, oldest: part.to_vec() };
            bytes_until_return(&part, &oldest, &ends.iter().map(|end| key(*end)).collect::<Vec<_>>())
        };
        assert_eq!(until(0, &[1], &[15, 90]), 100);
        assert_eq!(until(0, &[1], &[35, 90]), 700, "the third run has keys of the first later one");
        assert_eq!(until(0, &[1, 2], &[15]), 300, "the part is longer");
        assert_eq!(until(20, &[2], &[15, 35]), 600, "the first one was passed, and stays");
        assert_eq!(until(40, &[4], &[15, 35]), 800);
        assert_eq!(until(20, &[2], &[]), 1_400, "the sweep's end");
    }

    #[test]
    fn parts_cover_all_of_ring_order_once() {
        let runs = vec![(key(60), 5, 3), (key(10), 5, 1), (key(80), 50, 4), (key(30), 5, 2)];
        let parts = |bytes_max| {
            let (mut parts, mut from) = (Vec::new(), RingKey::MIN);
            loop {
                let part = part_of(from, runs.clone(), bytes_max);
                parts.push((part.oldest, part.to));
                match part.to {
                    Some(to) => from = to,
                    None => return parts,
                }
            }
        };
        let (a, b, c, d) = (1, 2, 3, 4);
        assert_eq!(parts(10), [(vec![a, b], Some(key(60))), (vec![c], Some(key(80))), (vec![d], None)]);
        assert_eq!(
            parts(1),
            [(vec![a], Some(key(30))), (vec![b], Some(key(60))), (vec![c], Some(key(80))), (vec![d], None)]
        );
        assert_eq!(parts(100), [(vec![a, b, c, d], None)]);
        assert_eq!(part_of(key(90), runs, 10), SweepPart { from: key(90), to: None, oldest: Vec::new() });
    }
}
