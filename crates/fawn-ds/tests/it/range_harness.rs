//! Harness of tests whose ranges come and go: one engine, a model per range, and records that are committed in every step.
use crate::support::SECRET;
use fawn_ds::internals::{Engine, EngineError, Event, Lookup, LookupPlan, Options, RecordKind, RecordRef, View};
use fawn_flash::{SimDevice, SimDisk};
use fawn_types::{ClientTag, Epoch, KeyHash, KeyRange, Now, RangeId, RingKey, Version};
use std::collections::BTreeMap;

/// A range as it should be.
#[derive(Clone, Debug)]
pub(crate) struct RangeModel {
    pub(crate) keys: KeyRange,
    pub(crate) content: BTreeMap<Vec<u8>, Vec<u8>>,
    epoch: Epoch,
    seq: u64,
}

pub(crate) struct RangeHarness {
    pub(crate) disk: SimDisk,
    pub(crate) engine: Engine<SimDevice>,
    pub(crate) options: Options,
    pub(crate) models: BTreeMap<RangeId, RangeModel>,
    pub(crate) now: Now,
    /// Whether ranges are in sole epochs. Otherwise each is a member of a chain, with commit marks.
    pub(crate) is_sole: bool,
}

/// The boundary at this 256th part of the ring.
pub(crate) fn ring_at(part: u8) -> RingKey {
    let mut bytes = [0; 20];
    bytes[0] = part;
    RingKey(bytes)
}

impl RangeHarness {
    pub(crate) fn new(disk: SimDisk, options: Options, is_sole: bool) -> Self {
        let now = Now::at(1_000);
        let (engine, _) = Engine::open(SimDevice::attach(&disk), options.clone(), now).unwrap();
        Self { disk, engine, options, models: BTreeMap::new(), now, is_sole }
    }

    pub(crate) fn add(&mut self, id: u32, keys: KeyRange) {
        self.engine.add_range(RangeId(id), keys).unwrap();
        self.enter(RangeId(id), keys, BTreeMap::new());
    }

    /// Begins an epoch of a range that is listed.
    pub(crate) fn enter(&mut self, id: RangeId, keys: KeyRange, content: BTreeMap<Vec<u8>, Vec<u8>>) {
        let epoch = self.engine.next_sole_epoch(id).unwrap();
        if self.is_sole {
            self.engine.begin_sole_epoch(id, epoch, None).unwrap();
        }
        self.models.insert(id, RangeModel { keys, content, epoch, seq: 0 });
    }

    pub(crate) fn drop_range(&mut self, id: u32) {
        self.engine.drop_range(RangeId(id)).unwrap();
        self.models.remove(&RangeId(id));
    }

    /// The range that has the key.
    pub(crate) fn range_of(&self, key: &[u8]) -> Option<RangeId> {
        let ring_key = RingKey::of(&SECRET, key);
        self.models.iter().find(|(_, model)| model.keys.contains(&ring_key)).map(|(&id, _)| id)
    }

    pub(crate) fn next_version(&mut self, id: RangeId) -> Version {
        let model = self.models.get_mut(&id).unwrap();
        model.seq += 1;
        Version::new(model.epoch, model.seq).unwrap()
    }

    pub(crate) fn append(&mut self, id: RangeId, hash: KeyHash, record: &RecordRef<'_>) {
        for _ in 0..10_000 {
            match self.engine.append(id, hash, record) {
                Ok(()) => return,
                Err(EngineError::Overloaded | EngineError::StoreFull) => {
                    self.turn();
                    // A full store asks for space again after a while.
                    self.now = self.now.plus_ms(1);
                }
                Err(error) => panic!("{id:?}: {error}"),
            }
        }
        panic!("the engine stays overloaded: {:?}", self.engine);
    }

    /// Writes to the range that has the key; without a value, deletes.
    pub(crate) fn write(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.write_tagged(key, value, ClientTag::NONE, b"");
    }

    /// As [`Self::write`], for an operation whose result may be requested again.
    pub(crate) fn write_tagged(&mut self, key: &[u8], value: Option<&[u8]>, tag: ClientTag, result: &[u8]) {
        let Some(id) = self.range_of(key) else { return };
        let version = self.next_version(id);
        let mut record = match value {
            Some(value) => RecordRef::put(version, key, value),
            None => RecordRef::bare(RecordKind::Tombstone, version, key),
        };
        (record.tag, record.result) = (tag, result);
        self.append(id, KeyHash::of(&SECRET, key), &record);
        let content = &mut self.models.get_mut(&id).unwrap().content;
        match value {
            Some(value) => content.insert(key.to_vec(), value.to_vec()),
            None => content.remove(key),
        };
    }

    /// As [`Self::write`], of a value that expires. The model keeps it until the test removes it.
    pub(crate) fn write_expiring(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) {
        let Some(id) = self.range_of(key) else { return };
        let version = self.next_version(id);
        let record = RecordRef { expires_at_ms, ..RecordRef::put(version, key, value) };
        self.append(id, KeyHash::of(&SECRET, key), &record);
        self.models.get_mut(&id).unwrap().content.insert(key.to_vec(), value.to_vec());
    }

    /// As [`Self::write`], of a value with a client's flags.
    pub(crate) fn write_flagged(&mut self, key: &[u8], value: &[u8], flags: u32) {
        let Some(id) = self.range_of(key) else { return };
        let version = self.next_version(id);
        self.append(id, KeyHash::of(&SECRET, key), &RecordRef { flags, ..RecordRef::put(version, key, value) });
        self.models.get_mut(&id).unwrap().content.insert(key.to_vec(), value.to_vec());
    }

    /// Writes that a chain drops again. Nothing of the range is in flight before.
    pub(crate) fn roll_back(&mut self, id: RangeId, keys: &[Vec<u8>]) {
        let after = self.engine.progress(id).appended;
        for key in keys {
            if self.range_of(key) != Some(id) {
                continue;
            }
            let version = self.next_version(id);
            self.append(id, KeyHash::of(&SECRET, key), &RecordRef::put(version, key, b"rolled back"));
        }
        self.engine.rollback(id, after).unwrap();
    }

    pub(crate) fn clear(&mut self, id: u32) {
        let version = self.next_version(RangeId(id));
        self.append(RangeId(id), KeyHash(0), &RecordRef::bare(RecordKind::Clear, version, &[]));
        self.models.get_mut(&RangeId(id)).unwrap().content.clear();
    }

    /// Splits a range at a boundary, unless that has to wait. The range has nothing in flight.
    pub(crate) fn try_split(&mut self, parent: u32, at: RingKey, left: u32, right: u32) -> bool {
        let (parent, left, right) = (RangeId(parent), RangeId(left), RangeId(right));
        match self.engine.split_range(parent, at, left, right) {
            Ok(()) => {}
            Err(EngineError::Overloaded) => return false,
            Err(error) => panic!("{parent:?}: {error}"),
        }
        let RangeModel { keys, content, .. } = self.models.remove(&parent).unwrap();
        let (low, high): (BTreeMap<_, _>, BTreeMap<_, _>) =
            content.into_iter().partition(|(key, _)| RingKey::of(&SECRET, key) < at);
        self.enter(left, KeyRange { end: Some(at), ..keys }, low);
        self.enter(right, KeyRange { start: at, ..keys }, high);
        true
    }

    pub(crate) fn split(&mut self, parent: u32, at: RingKey, left: u32, right: u32) {
        for _ in 0..1_000 {
            if self.try_split(parent, at, left, right) {
                return;
            }
            self.turn();
        }
        panic!("the split is put off for ever: {:?}", self.engine);
    }

    /// Merges two neighbours, unless that has to wait. They have nothing in flight.
    pub(crate) fn try_merge(&mut self, left: u32, right: u32, into: u32) -> bool {
        let (left, right, into) = (RangeId(left), RangeId(right), RangeId(into));
        match self.engine.merge_ranges(left, right, into) {
            Ok(()) => {}
            Err(EngineError::Overloaded) => return false,
            Err(error) => panic!("{left:?}: {error}"),
        }
        let low = self.models.remove(&left).unwrap();
        let mut high = self.models.remove(&right).unwrap();
        let mut content = low.content;
        content.append(&mut high.content);
        self.enter(into, KeyRange { end: high.keys.end, ..low.keys }, content);
        true
    }

    pub(crate) fn merge(&mut self, left: u32, right: u32, into: u32) {
        for _ in 0..1_000 {
            if self.try_merge(left, right, into) {
                return;
            }
            self.turn();
        }
        panic!("the merge is put off for ever: {:?}", self.engine);
    }

    pub(crate) fn turn(&mut self) {
        self.now = self.now.plus_ms(1);
        self.engine.advance_clock(self.now);
        self.engine.submit(self.now);
        self.engine.wait(self.now, &mut Vec::new());
        self.commit();
    }

    pub(crate) fn commit(&mut self) {
        for &id in self.models.keys() {
            let progress = self.engine.progress(id);
            self.engine.commit(id, progress.watermark_for(self.options.durability));
        }
    }

    /// Runs iterations until everything is committed and synced, and no verification waits.
    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            self.turn();
            let is_settled = |id: &RangeId| {
                let progress = self.engine.progress(*id);
                progress.synced == progress.appended && progress.committed == progress.appended
            };
            if self.models.keys().all(is_settled) && self.engine.log_report().overlay_keys == 0 {
                return;
            }
            self.now = self.now.plus_ms(10);
        }
        panic!("does not settle: {:?}", self.engine);
    }

    /// Kills the process, loses what was not synced, and opens the store again.
    pub(crate) fn reopen(&mut self, seed: u64, loses: bool) {
        if loses {
            self.disk.crash(seed);
        } else {
            self.disk.kill(seed);
        }
        self.open_again();
    }

    pub(crate) fn open_again(&mut self) {
        let (engine, _) = Engine::open(SimDevice::attach(&self.disk), self.options.clone(), self.now).unwrap();
        self.engine = engine;
        self.enter_listed();
    }

    /// Closes the store, and opens it again.
    pub(crate) fn close_and_open(self) -> Self {
        let Self { disk, engine, options, models, now, is_sole } = self;
        engine.close().unwrap();
        let mut harness = Self::new(disk, options, is_sole);
        (harness.models, harness.now) = (models, now);
        harness.enter_listed();
        harness
    }

    fn enter_listed(&mut self) {
        let listed: BTreeMap<_, _> = self.engine.ranges().collect();
        let modelled: BTreeMap<_, _> = self.models.iter().map(|(&id, model)| (id, model.keys)).collect();
        assert_eq!(listed, modelled, "ranges after an opening");
        for (id, model) in core::mem::take(&mut self.models) {
            let end = self.engine.progress(id).appended;
            self.engine.commit(id, end);
            self.enter(id, model.keys, model.content);
        }
    }

    pub(crate) fn get(&mut self, id: RangeId, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        let mut lookup = self.engine.lookup(id, KeyHash::of(&SECRET, key), key, View::Committed, self.now.wall)?;
        while let Lookup::Read(plan) = lookup {
            self.engine.read(plan, 0);
            let plan = self.wait_for_plan();
            lookup = self.engine.resume(plan, self.now.wall)?;
        }
        Ok(match lookup {
            Lookup::Found(entry) => Some(entry.value.to_vec()),
            _ => None,
        })
    }

    pub(crate) fn wait_for_plan(&mut self) -> LookupPlan {
        for _ in 0..10_000 {
            let mut events = Vec::new();
            self.engine.wait(self.now, &mut events);
            for event in events {
                if let Event::Lookup { plan, .. } = event {
                    return plan;
                }
            }
        }
        panic!("the read does not complete");
    }

    /// Compares every range with its model, by lookups of these keys.
    pub(crate) fn check(&mut self, keys: &[Vec<u8>], context: &str) {
        for key in keys {
            let Some(id) = self.range_of(key) else { continue };
            let expected = self.models[&id].content.get(key).cloned();
            let found = self.get(id, key).unwrap_or_else(|error| panic!("{context}: {key:?}: {error}"));
            assert_eq!(found.is_some(), expected.is_some(), "{context}: {:?} in {id:?}", String::from_utf8_lossy(key));
            assert!(found == expected, "{context}: another value of {:?} in {id:?}", String::from_utf8_lossy(key));
        }
    }

    /// Compares the exact counts of keys with the models.
    pub(crate) fn check_len(&self, context: &str) {
        for (&id, model) in &self.models {
            assert_eq!(self.engine.len(id), model.content.len() as u64, "{context}: keys of {id:?}");
        }
    }
}
