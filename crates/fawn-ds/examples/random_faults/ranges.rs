//! Ranges of a run: they are added, split, merged and dropped while the store serves.
use crate::driver::{FaultDriver, SECRET};
use crate::model::{FaultedRange, ModelContent};
use fawn_ds::internals::EngineError;
use fawn_types::{KeyRange, RangeId, RingKey, Version};
use std::collections::BTreeMap;

const RANGES_MAX: usize = 5;

impl FaultDriver {
    pub(crate) fn random_boundary(&mut self) -> RingKey {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&self.rng.next().to_be_bytes());
        RingKey(bytes)
    }

    fn fresh_id(&mut self) -> RangeId {
        self.next_id += 1;
        RangeId(self.next_id)
    }

    /// Begins an epoch of the range, if it has none yet.
    pub(crate) fn begin_epoch(&mut self, id: RangeId) -> Result<(), EngineError> {
        if self.ranges.get(&id).is_some_and(|range| range.epoch.is_some()) {
            return Ok(());
        }
        self.end_hangs();
        let engine = self.engine();
        let Some(epoch) = engine.next_sole_epoch(id) else { panic!("no epoch of {id:?} is left") };
        engine.begin_sole_epoch(id, epoch, None)?;
        if let Some(range) = self.ranges.get_mut(&id) {
            (range.epoch, range.seq) = (Some(epoch), 0);
        }
        Ok(())
    }

    /// Changes of ranges block, and would wait for the end of a hang.
    fn end_hangs(&mut self) {
        if self.faults.hangs {
            self.disk.clear_faults();
            self.disk.release_hung();
            self.faults.hangs = false;
        }
    }

    pub(crate) fn add(&mut self, keys: KeyRange) {
        let id = self.fresh_id();
        let mut changed = self.ranges.clone();
        changed.insert(id, FaultedRange::new(keys, ModelContent::new(), Version::ZERO));
        let result = self.engine().add_range(id, keys);
        self.changed(result, changed);
    }

    /// Takes over the ranges after a change of them. If it failed, it may have become durable or not.
    fn changed(&mut self, result: Result<(), EngineError>, ranges: BTreeMap<RangeId, FaultedRange>) -> bool {
        match result {
            Ok(()) => {
                self.ranges = ranges;
                self.commit();
                return true;
            }
            Err(EngineError::Overloaded) => {}
            Err(error) => {
                self.refused(&error);
                if self.is_poisoned() {
                    self.tally.undecided_changes += 1;
                    self.undecided = Some(ranges);
                    let loss = self.random_loss();
                    self.lose(loss);
                }
            }
        }
        false
    }

    pub(crate) fn change_ranges(&mut self) {
        if self.rng.coin() {
            self.calm();
        }
        self.end_hangs();
        if self.ranges.is_empty() {
            return self.add(KeyRange::ALL);
        }
        match self.rng.below(5) {
            0..=1 if self.ranges.len() < RANGES_MAX => self.split(),
            4 => self.drop_one(),
            _ => self.merge(),
        }
    }

    fn appended(&mut self, id: RangeId) -> Version {
        self.engine().progress(id).appended
    }

    fn split(&mut self) {
        let at = self.random_boundary();
        let Some((&parent, range)) = self.ranges.iter().find(|(_, range)| range.keys.contains(&at)) else { return };
        let (keys, content) = (range.keys, range.latest.clone());
        if keys.start == at {
            return;
        }
        let (left, right, base) = (self.fresh_id(), self.fresh_id(), self.appended(parent));
        let (low, high) = content.into_iter().partition(|(key, _)| RingKey::of(&SECRET, key) < at);
        let mut changed = self.ranges.clone();
        changed.remove(&parent);
        changed.insert(left, FaultedRange::new(KeyRange { end: Some(at), ..keys }, low, base));
        changed.insert(right, FaultedRange::new(KeyRange { start: at, ..keys }, high, base));
        let result = self.engine().split_range(parent, at, left, right);
        self.tally.splits += u64::from(self.changed(result, changed));
    }

    fn merge(&mut self) {
        let neighbours = |(&left, range): (&RangeId, &FaultedRange)| {
            let end = range.keys.end?;
            let right = self.ranges.iter().find(|(_, other)| other.keys.start == end)?;
            Some((left, *right.0))
        };
        let pairs: Vec<(RangeId, RangeId)> = self.ranges.iter().filter_map(neighbours).collect();
        if pairs.is_empty() {
            return;
        }
        let (left, right) = pairs[self.rng.below(pairs.len() as u64) as usize];
        let (into, base) = (self.fresh_id(), self.appended(left).max(self.appended(right)));
        let mut changed = self.ranges.clone();
        let (Some(low), Some(high)) = (changed.remove(&left), changed.remove(&right)) else { return };
        let content = low.latest.into_iter().chain(high.latest).collect();
        let keys = KeyRange { end: high.keys.end, ..low.keys };
        changed.insert(into, FaultedRange::new(keys, content, base));
        let result = self.engine().merge_ranges(left, right, into);
        self.tally.merges += u64::from(self.changed(result, changed));
    }

    /// Drops a range; another one takes its place, empty.
    fn drop_one(&mut self) {
        let at = self.rng.below(self.ranges.len() as u64) as usize;
        let Some((&id, range)) = self.ranges.iter().nth(at) else { return };
        let (keys, mut changed) = (range.keys, self.ranges.clone());
        changed.remove(&id);
        let result = self.engine().drop_range(id);
        if self.changed(result, changed) {
            self.tally.drops += 1;
            self.add(keys);
        }
    }
}
