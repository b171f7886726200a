//! Reads of a run: lookups, lookups held across other operations, and scans, each compared with the model.
use crate::driver::{FaultDriver, HeldLookup, ITERATIONS_MAX, SECRET, key_name};
use crate::model::{FaultedRange, ModelContent, ModelValue, allows};
use fawn_ds::internals::check::check;
use fawn_ds::internals::{EngineError, Lookup, LookupPlan, RecordLayout, Scan, ScanStep, View};
use fawn_ds::sim::{Loss, SimDevice};
use fawn_types::{KeyHash, RangeId, TimeMs};
use std::collections::BTreeSet;

/// Lookups in flight at a time.
const HELD_MAX: usize = 6;

/// Attempts after which a read of pages that are no longer in the cache must succeed.
const RETRIES_MAX: u32 = 3;

/// The state of a lookup: complete, or in need of a read. A pending record that prevents an answer is `None`.
type Looked = Result<Option<Option<Vec<u8>>>, LookupPlan>;

fn looked(found: Lookup<'_>) -> Looked {
    match found {
        Lookup::Found(entry) => Ok(Some(Some(entry.value.to_vec()))),
        Lookup::Absent => Ok(Some(None)),
        Lookup::Unsettled => Ok(None),
        Lookup::Read(plan) => Err(plan),
    }
}

fn describe(value: Option<&ModelValue>) -> String {
    value.map_or_else(
        || "nothing".to_owned(),
        |(value, expires)| format!("{} bytes {:?}…, expires {expires}", value.len(), &value[..value.len().min(4)]),
    )
}

impl FaultDriver {
    fn content(&self, id: RangeId, view: View) -> Option<&ModelContent> {
        let range = self.ranges.get(&id)?;
        Some(if view == View::Committed { &range.committed } else { &range.latest })
    }

    fn expected(&self, id: RangeId, view: View, key: &[u8]) -> Option<ModelValue> {
        self.content(id, view)?.get(key).cloned()
    }

    pub(crate) fn look_up_any(&mut self) {
        let (key, view) = (self.random_key(), self.random_view());
        self.look_up(&key, view);
    }

    fn random_view(&mut self) -> View {
        if self.rng.coin() { View::Committed } else { View::Latest }
    }

    /// Looks the key up and compares it with the model. `None`: a fault or a pending record prevents an answer.
    pub(crate) fn look_up(&mut self, key: &[u8], view: View) -> Option<Option<Vec<u8>>> {
        let id = self.range_of(key)?;
        self.tally.lookups += 1;
        let time = self.engine().expiry_time();
        let mut tries = 0;
        let found = loop {
            match self.find(id, key, view, time) {
                Ok(found) => break found?,
                Err(error) => {
                    let may_fail = self.faults.reads || (self.misdirected && tries < RETRIES_MAX);
                    assert!(may_fail, "a lookup without a fault: {error}");
                    self.tally.read_errors += 1;
                    tries += 1;
                    if tries > RETRIES_MAX {
                        return None;
                    }
                }
            }
        };
        let expected = self.expected(id, view, key);
        self.judge(id, key, view, time, &[expected], found.as_deref());
        Some(found)
    }

    fn judge(
        &self,
        id: RangeId,
        key: &[u8],
        view: View,
        time: TimeMs,
        expected: &[Option<ModelValue>],
        found: Option<&[u8]>,
    ) {
        let is_allowed = |value: &Option<ModelValue>| allows(value.as_ref(), found, time.0, self.removed_until);
        let all = || expected.iter().map(|value| describe(value.as_ref())).collect::<Vec<_>>().join(" or ");
        assert!(
            expected.iter().any(is_allowed),
            "{view:?} {} of {id:?} at {}: found {}, not {}",
            String::from_utf8_lossy(key),
            time.0,
            describe(found.map(|found| (found.to_vec(), 0)).as_ref()),
            all()
        );
    }

    fn find(
        &mut self,
        id: RangeId,
        key: &[u8],
        view: View,
        time: TimeMs,
    ) -> Result<Option<Option<Vec<u8>>>, EngineError> {
        let found = looked(self.engine().lookup(id, KeyHash::of(&SECRET, key), key, view, time)?);
        self.finish(found, time)
    }

    fn finish(&mut self, mut found: Looked, time: TimeMs) -> Result<Option<Option<Vec<u8>>>, EngineError> {
        for _ in 0..100 {
            match found {
                Ok(found) => return Ok(found),
                Err(plan) => {
                    let plan = self.read(plan);
                    found = looked(self.engine().resume(plan, time)?);
                }
            }
        }
        panic!("a lookup does not end");
    }

    fn submit_read(&mut self, plan: LookupPlan) -> u64 {
        self.next_tag += 1;
        let tag = self.next_tag;
        self.engine().read(plan, tag);
        tag
    }

    fn read(&mut self, plan: LookupPlan) -> LookupPlan {
        let tag = self.submit_read(plan);
        for _ in 0..ITERATIONS_MAX {
            self.disk.release_hung();
            self.wait();
            if let Some(at) = self.arrived.iter().position(|(arrived, _)| *arrived == tag) {
                return self.arrived.swap_remove(at).1;
            }
        }
        panic!("a read does not complete: {:?}", self.engine);
    }

    /// Begins a lookup whose read stays in flight, or ends one.
    pub(crate) fn hold_lookup(&mut self) {
        if let Some((tag, plan)) = self.arrived.pop() {
            if let Some(at) = self.held.iter().position(|held| held.tag == tag) {
                let held = self.held.swap_remove(at);
                self.end_held(&held, plan);
            }
            return;
        }
        let (key, view) = (self.random_key(), self.random_view());
        let Some(range) = self.range_of(&key).filter(|_| self.held.len() < HELD_MAX) else { return };
        let time = self.engine().expiry_time();
        let found = self.engine().lookup(range, KeyHash::of(&SECRET, &key), &key, view, time);
        if let Ok(Lookup::Read(plan)) = found {
            let tag = self.submit_read(plan);
            let allowed = vec![self.expected(range, view, &key)];
            let may_fail = self.faults.reads || self.misdirected;
            self.held.push(HeldLookup { tag, range, key, view, time, allowed, may_fail });
        }
    }

    /// Adds the present values of keys whose lookups are held.
    pub(crate) fn note_held(&mut self) {
        let mut held = std::mem::take(&mut self.held);
        for lookup in &mut held {
            let value = self.expected(lookup.range, lookup.view, &lookup.key);
            if lookup.allowed.last() != Some(&value) {
                lookup.allowed.push(value);
            }
        }
        self.held = held;
    }

    fn end_held(&mut self, held: &HeldLookup, plan: LookupPlan) {
        let resumed = self.engine().resume(plan, held.time).map(looked);
        match resumed.and_then(|found| self.finish(found, held.time)) {
            Ok(Some(found)) => {
                self.tally.held_plans += 1;
                self.judge(held.range, &held.key, held.view, held.time, &held.allowed, found.as_deref());
            }
            Ok(None) => {}
            Err(EngineError::UnknownRange { .. }) if !self.ranges.contains_key(&held.range) => {}
            Err(error) => assert!(held.may_fail, "a held lookup without a fault: {error}"),
        }
    }

    /// Scans a range while other operations run: it must meet each key that was there throughout.
    pub(crate) fn scan_meanwhile(&mut self) {
        self.calm();
        let at = self.rng.below(self.ranges.len() as u64) as usize;
        if let Some(&id) = self.ranges.keys().nth(at) {
            self.scan(id, true);
        }
    }

    fn scan(&mut self, id: RangeId, meanwhile: bool) {
        let is_whole = (0..=RETRIES_MAX).any(|_| self.scan_once(id, meanwhile));
        assert!(is_whole, "a scan without a fault passes corrupt records");
    }

    /// Returns whether the scan met no record that could not be read.
    #[expect(clippy::expect_used, reason = "a scan without faults succeeds, or the run has found a failure")]
    fn scan_once(&mut self, id: RangeId, meanwhile: bool) -> bool {
        self.tally.scans += 1;
        // A value that expires leaves its key absent for a time, also if another one has followed.
        let is_lasting =
            |range: &FaultedRange, key: &Vec<u8>| range.committed.get(key).is_some_and(|(_, expires)| *expires == 0);
        let mut always: BTreeSet<Vec<u8>> = self.ranges[&id].committed.keys().cloned().collect();
        let mut ever = always.clone();
        always.retain(|key| !meanwhile || is_lasting(&self.ranges[&id], key));
        let (mut cursor, mut met) = (0, Vec::new());
        loop {
            let time = self.engine().expiry_time();
            let mut scan = Scan::new(id, cursor, 10);
            while let ScanStep::Read(plan) = self.engine().scan_step(&mut scan, time).expect("no fault") {
                let plan = self.read(plan);
                self.engine().absorb_scan(&mut scan, plan).expect("no fault");
            }
            if let Some(record) = scan.corrupt.first() {
                assert!(self.misdirected, "a scan without a fault: {record:?}");
                return false;
            }
            met.extend(scan.items.into_iter().map(|item| item.key));
            cursor = scan.cursor;
            if cursor == 0 {
                break;
            }
            if meanwhile {
                self.light_step();
                always.retain(|key| is_lasting(&self.ranges[&id], key));
                ever.extend(self.ranges[&id].committed.keys().cloned());
            }
        }
        let removed_until = self.removed_until.max(self.engine().expiry_time().0);
        let expires = |key: &[u8]| self.ranges[&id].committed.get(key).map_or(0, |(_, expires)| *expires);
        for key in &met {
            assert!(ever.contains(key), "a scan returned {:?}", String::from_utf8_lossy(key));
        }
        let distinct: BTreeSet<&Vec<u8>> = met.iter().collect();
        for key in &always {
            let may_miss = (1..=removed_until).contains(&expires(key));
            assert!(distinct.contains(key) || may_miss, "a scan misses {:?}", String::from_utf8_lossy(key));
        }
        // A key that was written after it was sorted may be met in the log and in its run.
        let may_repeat = meanwhile || self.options.layout != RecordLayout::Log;
        assert!(distinct.len() == met.len() || may_repeat, "a scan returned a key twice");
        true
    }

    /// Compares all keys, by lookups and by scans, and lets the offline verification judge the files.
    pub(crate) fn check_all(&mut self) {
        self.calm();
        self.write_without_faults();
        self.calm();
        for key in 0..self.keys {
            let key = key_name(key);
            self.look_up(&key, View::Committed);
            self.look_up(&key, View::Latest);
        }
        let ids: Vec<RangeId> = self.ranges.keys().copied().collect();
        for id in ids {
            self.scan(id, false);
            self.check_len(id);
        }
        let stats = *self.engine().stats();
        assert!(self.scrub_may_report || stats.scrub_corrupt_records == 0, "the scrub found damage: {stats:?}");
        let image = self.disk.image(Loss::Process, self.rng.next());
        match check(&mut SimDevice::attach(&image)) {
            Ok(report) => assert!(report.is_sound(), "{:?}", report.findings),
            Err(error) => panic!("the offline verification of a disk without faults: {error}"),
        }
    }

    /// Keys that have expired may be counted or not.
    fn check_len(&mut self, id: RangeId) {
        let removed_until = self.removed_until;
        let committed = &self.ranges[&id].committed;
        let most = committed.len() as u64;
        let least = committed.values().filter(|(_, expires)| !(1..=removed_until).contains(expires)).count() as u64;
        let engine = self.engine();
        if engine.is_len_exact(id) {
            let len = engine.len(id);
            assert!((least..=most).contains(&len), "{id:?} counts {len} keys, {least} to {most} are there");
        }
    }
}
