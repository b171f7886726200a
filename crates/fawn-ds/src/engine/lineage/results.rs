//! Results of retired ranges: records that the ranges after a split or merge keep for retries of operations.
use super::width;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::format::RangeNumber;
use crate::index::Pointer;
use crate::log::segments::RangeShare;
use crate::range::{RangeState, Retained};
use fawn_flash::Device;
use fawn_types::KeyRange;
use smallvec::SmallVec;
use std::collections::{BTreeSet, VecDeque};

impl<D: Device> Engine<D> {
    /// The records that each heir keeps for retries, unless it could not keep all that are needed.
    pub(super) fn kept_for_heirs(&self, parents: &[usize], heirs: usize) -> Result<VecDeque<Retained>, EngineError> {
        let ranges = self.serving_ranges() - parents.len() + heirs;
        self.check_results_fit(ranges)?;
        let parents = || parents.iter().map(|&at| &self.ranges[at]);
        let needed_max = self.options.needed_max(ranges);
        let mut kept = in_log_order(parents().flat_map(RangeState::kept_for_retries).collect());
        if kept.len() > needed_max {
            kept = in_log_order(parents().flat_map(RangeState::needed_for_retries).collect());
        }
        if kept.len() > needed_max { Err(EngineError::Overloaded) } else { Ok(kept.into()) }
    }

    /// Gives a range the records that the retired ranges before it keep for retries, at an opening with these [`Engine::elders`].
    pub(crate) fn hand_over_results(&mut self, heir: usize, elders: &[SmallVec<[usize; 2]>]) {
        let mut family = self.ranges[heir].inherited.clone();
        if self.ranges[heir].retain_floor.is_none() || family.is_empty() {
            return;
        }
        family.push(heir);
        let results = family.iter().flat_map(|&at| self.ranges[at].copied_results.iter().copied());
        let mut kept = in_log_order(results.collect());
        let histories = self.histories_before(heir, &kept);
        // An opening retains many records that are not needed: these go before any result.
        let records_max = self.needed_max.saturating_sub(kept.len());
        kept.append(&mut self.newest_of_histories(heir, histories, records_max, elders));
        self.ranges[heir].copied_results = in_log_order(kept).into();
        if self.ranges[heir].bound_copied_results(self.needed_max) {
            self.warn_of_dropped_results(heir);
        }
        self.ranges[heir].result_copies.kept = self.result_copies_of(&family);
        self.share_kept_segments(heir);
    }

    /// The records, other than these results, that an opening retains of the retired ranges before this one, in the order of the
    /// ranges' numbers.
    fn histories_before(&self, heir: usize, results: &[Retained]) -> Vec<RetiredHistory> {
        let is_of_history = |record: &&Retained| results.binary_search_by_key(&log_place(record), log_place).is_err();
        let histories = self.ranges[heir].inherited.iter().map(|&at| {
            let history = self.ranges[at].retained.iter().filter(is_of_history);
            (at, history.copied().collect::<Vec<Retained>>())
        });
        let mut histories: Vec<_> = histories.filter(|(_, history)| !history.is_empty()).collect();
        histories.sort_by_key(|&(at, _)| self.ranges[at].number);
        histories
    }

    /// At most so many records of these histories.
    fn newest_of_histories(
        &self,
        heir: usize,
        histories: Vec<RetiredHistory>,
        records_max: usize,
        elders: &[SmallVec<[usize; 2]>],
    ) -> Vec<Retained> {
        let records: usize = histories.iter().map(|(_, history)| history.len()).sum();
        // Of one range, all that are needed fit: its split or merge has seen to that, and they are its newest ones.
        if histories.len() > 1 && records > records_max {
            let number = self.ranges[heir].number;
            tracing::warn!(
                ?number,
                records,
                records_max,
                "too many records of former ranges to keep all of them for retries: retried operations may be applied twice"
            );
        }
        let is_elder = |elder: usize, of: usize| {
            let number = |at: &usize| self.ranges[*at].number;
            elders[of].binary_search_by_key(&number(&elder), number).is_ok()
        };
        newest_of_lines(histories, records_max, is_elder)
    }

    /// The range has a part in each segment with a record that it keeps for retries: filing finds none there if the
    /// others have the keys, and a record that is only a result has no key.
    pub(super) fn share_kept_segments(&mut self, at: usize) {
        let RangeState { copied_results, result_copies, .. } = &self.ranges[at];
        let kept = copied_results.iter().chain(result_copies.kept.iter().map(|copy| &copy.record));
        let slots = kept.map(|kept| self.segments.slot_and_offset(kept.pointer).0);
        for slot in slots.collect::<BTreeSet<u32>>() {
            self.segments.expect_mut(slot).add_share(&RangeShare::none(at));
            self.note_share(at, slot);
        }
    }

    /// By place: the retired ranges whose keys this range took over, from each other or at last.
    pub(crate) fn elders(&self) -> Vec<SmallVec<[usize; 2]>> {
        let mut elders = vec![SmallVec::new(); self.ranges.len()];
        let places = self.places_by_number();
        let place_of = |number| places.get(&number).copied();
        for entry in self.manifest.state().ranges.values() {
            let own = entry.beginning.map(|beginning| (beginning.number, entry.keys));
            let lineage = || entry.lineage.iter().map(|ancestor| (ancestor.number, ancestor.keys));
            for (number, keys) in lineage().chain(own) {
                let is_elder =
                    |&(elder, of_elder): &(RangeNumber, KeyRange)| elder < number && width(&keys, &of_elder) > 0;
                let Some(at) = place_of(number) else { continue };
                elders[at].extend(lineage().filter(is_elder).filter_map(|(elder, _)| place_of(elder)));
            }
        }
        elders.iter_mut().for_each(|of_range: &mut SmallVec<[usize; 2]>| {
            // Numbers grow: the oldest history first.
            of_range.sort_by_key(|&place| self.ranges[place].number);
            of_range.dedup();
        });
        elders
    }
}

/// Records that are kept for retries, without those that several ranges keep. The drop rule compares with the first and the last
/// segment of these.
fn in_log_order(mut kept: Vec<Retained>) -> Vec<Retained> {
    kept.sort_by_key(log_place);
    kept.dedup_by_key(|kept| log_place(kept));
    kept
}

/// Records of a retired range that an opening retains, in log order, and the range's place.
type RetiredHistory = (usize, Vec<Retained>);

/// The newest records of these histories, at most so many together. The histories are in the order of their ranges' numbers.
///
/// A range that is no elder of another one begins a line, with its own elders. Each line has an equal share of the places, and more
/// where other lines are shorter. The line's elders divide the places that its first range leaves, in the same way: all of their
/// records are older. Elders of several lines divide the places that these lines leave.
pub(super) fn newest_of_lines(
    histories: Vec<RetiredHistory>,
    records_max: usize,
    is_elder: impl Fn(usize, usize) -> bool,
) -> Vec<Retained> {
    let (mut newest, mut undivided) = (Vec::new(), vec![(histories, records_max)]);
    while let Some((histories, mut places)) = undivided.pop() {
        if histories.is_empty() || places == 0 {
            continue;
        }
        let mut lines: Vec<(usize, Vec<RetiredHistory>)> = Vec::new();
        for &(at, _) in histories.iter().rev() {
            if !lines.iter().any(|&(youngest, _)| is_elder(at, youngest)) {
                lines.push((at, Vec::new()));
            }
        }
        let mut of_several = Vec::new();
        for (at, history) in histories {
            let mut found = lines.iter_mut().filter(|(youngest, _)| at == *youngest || is_elder(at, *youngest));
            match (found.next(), found.next()) {
                (Some((_, line)), None) => line.push((at, history)),
                _ => of_several.push((at, history)),
            }
        }
        let records = |line: &[RetiredHistory]| line.iter().map(|(_, history)| history.len()).sum::<usize>();
        lines.sort_by_key(|(_, line)| records(line));
        let count = lines.len();
        for (at, (_, mut line)) in lines.into_iter().enumerate() {
            let share = records(&line).min(places / (count - at));
            places -= share;
            let (_, history) = line.pop().unwrap_or_default();
            let own = &history[history.len().saturating_sub(share)..];
            newest.extend_from_slice(own);
            undivided.push((line, share - own.len()));
        }
        undivided.push((of_several, places));
    }
    newest
}

fn log_place(record: &Retained) -> (u64, Pointer) {
    (record.sequence, record.pointer)
}
