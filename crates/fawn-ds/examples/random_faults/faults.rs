//! Faults of a run: what the disk does, losses of process and power, flipped bits, and openings after them.
use crate::driver::{FaultDriver, ITERATIONS_MAX, OrderedFaults, SECRET, key_name};
use crate::model::{FaultedRange, allows};
use fawn_ds::internals::{Engine, EngineError, Event, Lookup, View};
use fawn_ds::sim::{DeviceFault, Loss, OpKind, SimDevice};
use fawn_types::{Epoch, KeyHash, KeyRange, MonoMs, Now, RangeId, Version};
use std::collections::BTreeMap;

/// Iterations in which operations that were in flight complete.
const DRAINING_ITERATIONS_MAX: u32 = 1_000;

/// A range as an opening found it.
struct OpenedRange {
    keys: KeyRange,
    newest: Version,
    epoch: Epoch,
}

impl FaultDriver {
    pub(crate) fn order_fault(&mut self) {
        let (kinds, nth) = (OpKind::ALL, 1 + self.rng.below(40));
        let kind = kinds[self.rng.below(kinds.len() as u64) as usize];
        let is_data = matches!(kind, OpKind::Read | OpKind::Write | OpKind::Sync);
        let fault = match self.rng.below(6) {
            0 if kind == OpKind::Read => DeviceFault::Misdirect { name: None, offset: self.rng.below(16) * 4096 },
            1 if is_data => DeviceFault::Hang,
            2 if is_data => DeviceFault::Delay { ticks: self.rng.below(50) },
            3 if !is_data => DeviceFault::Exhausted,
            4 if !is_data => DeviceFault::Full,
            _ => DeviceFault::Fail,
        };
        self.tally.hangs += u64::from(fault == DeviceFault::Hang);
        self.faults.hangs |= fault == DeviceFault::Hang;
        self.faults.any = true;
        // Descriptors are opened on demand, by reads too.
        let concerns_reads = matches!(kind, OpKind::Read | OpKind::Open | OpKind::Inspect);
        self.faults.reads |= concerns_reads;
        self.scrub_may_report |= concerns_reads;
        self.misdirected |= matches!(fault, DeviceFault::Misdirect { .. });
        self.held.iter_mut().for_each(|held| held.may_fail |= concerns_reads);
        self.disk.fail_nth(kind, nth, fault);
    }

    pub(crate) fn set_full(&mut self, is_full: bool) {
        self.disk.set_full(is_full);
        self.faults.full = is_full;
    }

    fn end_faults(&mut self) {
        self.disk.clear_faults();
        self.disk.release_hung();
        self.set_full(false);
    }

    /// Ends all faults. The store must then get everywhere again.
    pub(crate) fn calm(&mut self) {
        self.end_faults();
        loop {
            if self.is_poisoned() {
                self.tally.poisoned += 1;
                self.lose(Loss::Process);
                self.end_faults();
            }
            self.settle();
            self.drain();
            if !self.is_poisoned() {
                return;
            }
        }
    }

    /// Waits for operations in flight: one that a fault met may fail only now. While the engine always has some, such as
    /// those of a checkpoint, the faults still count.
    fn drain(&mut self) {
        for _ in 0..DRAINING_ITERATIONS_MAX {
            if self.disk.next_due().is_none() {
                self.faults = OrderedFaults::default();
                return;
            }
            self.turn();
        }
    }

    fn settle(&mut self) {
        let durability = self.options.durability;
        for iteration in 0..ITERATIONS_MAX {
            self.turn();
            if self.is_poisoned() {
                return;
            }
            let ids: Vec<RangeId> = self.ranges.keys().copied().collect();
            let engine = self.engine();
            let is_committed = |&id: &RangeId| {
                let progress = engine.progress(id);
                progress.watermark_for(durability) == progress.appended && progress.committed == progress.appended
            };
            let log = engine.log_report();
            if ids.iter().all(is_committed) && log.verifications_queued == 0 && log.keys_apart == 0 {
                return;
            }
            self.now = self.now.plus_ms(if iteration < 1_000 { 20 } else { 1_000 });
        }
        panic!("does not settle: {:?} {:?}", self.engine().log_report(), self.engine);
    }

    pub(crate) fn close(&mut self) {
        self.calm();
        self.count_engine();
        let mut least = BTreeMap::new();
        for &id in self.ranges.keys() {
            least.extend(self.engine.as_ref().map(|engine| (id, engine.progress(id).appended)));
        }
        let Some(engine) = self.engine.take() else { return };
        if let Err(error) = engine.close() {
            assert!(self.faults.any, "a close without a fault: {error}");
            self.disk.kill(self.rng.next());
            return self.open(&least);
        }
        self.tally.closes += 1;
        if self.rng.coin() {
            self.flip_a_bit();
        }
        self.open(&least);
    }

    /// Flips a bit in a copy of the closed store: no key of it may be missing, or have another value, without an error.
    fn flip_a_bit(&mut self) {
        let image = self.disk.image(Loss::Process, self.rng.next());
        let names = image.names();
        let name = names[self.rng.below(names.len() as u64) as usize].clone();
        let len = image.contents(&name).map_or(0, |bytes| bytes.len() as u64);
        if len == 0 {
            return;
        }
        let offset = self.rng.below(len);
        image.flip_bits(&name, offset, 1 << self.rng.below(8));
        self.tally.flipped_bits += 1;
        let Ok((engine, _)) = Engine::open(SimDevice::attach(&image), self.options.clone(), self.now) else {
            self.tally.flips_refused += 1;
            return;
        };
        self.tally.flips_served += 1;
        self.compare_flipped(engine, &format!("a bit of byte {offset} of {name} flipped"));
    }

    fn compare_flipped(&self, mut engine: Engine<SimDevice>, context: &str) {
        let listed: BTreeMap<RangeId, KeyRange> = engine.ranges().collect();
        assert_eq!(listed, self.ranges.iter().map(|(&id, range)| (id, range.keys)).collect(), "{context}");
        let time = engine.expiry_time();
        for key in (0..self.keys).map(key_name) {
            let Some(id) = self.range_of(&key) else { continue };
            let Ok(found) = get(&mut engine, id, &key, self.now) else { continue };
            let expected = self.ranges[&id].committed.get(&key);
            let is_allowed = allows(expected, found.as_deref(), time.0, self.removed_until);
            assert!(is_allowed, "{context}: {:?} found {}", String::from_utf8_lossy(&key), found.is_some());
        }
    }

    /// Loses the process or the power, with all that is in flight.
    pub(crate) fn lose(&mut self, loss: Loss) {
        self.count_engine();
        let Some(engine) = self.engine.take() else { return };
        let seed = self.rng.next();
        let least = self.ranges.keys().map(|&id| {
            let progress = engine.progress(id);
            (id, if loss == Loss::Process { progress.flushed } else { progress.synced })
        });
        let least: BTreeMap<RangeId, Version> = least.collect();
        match loss {
            Loss::Process => {
                self.disk.kill(seed);
                self.tally.kills += 1;
            }
            Loss::Power => {
                self.disk.crash(seed);
                self.tally.power_losses += 1;
                if self.rng.chance(1, 4) {
                    self.now.mono = MonoMs(self.rng.below(5_000));
                }
            }
        }
        drop(engine);
        if self.rng.coin() || self.faults.hangs {
            self.end_faults();
            self.faults = OrderedFaults::default();
        }
        self.open(&least);
    }

    /// Opens the store, in the end without faults. Everything through `least` must be there.
    pub(crate) fn open(&mut self, least: &BTreeMap<RangeId, Version>) {
        (self.held, self.arrived) = (Vec::new(), Vec::new());
        (self.misdirected, self.scrub_may_report) = (self.faults.reads, self.faults.reads);
        let mut least = least.clone();
        for attempt in 0..4 {
            if attempt == 3 {
                self.end_faults();
            }
            match self.try_open() {
                Ok((engine, opened)) => {
                    self.engine = Some(engine);
                    self.tally.openings += 1;
                    return self.enter(opened, &least);
                }
                Err(error) => {
                    let may_fail = self.faults.any || self.faults.full;
                    assert!(may_fail && attempt < 3, "an opening: {error}");
                    self.tally.failed_openings += 1;
                    let seed = self.rng.next();
                    if self.rng.coin() {
                        self.disk.kill(seed);
                    } else {
                        // The power loss may also take what a kill had left.
                        self.disk.crash(seed);
                        least.clear();
                    }
                }
            }
        }
        unreachable!("the last attempt has no faults");
    }

    fn try_open(&mut self) -> Result<(Engine<SimDevice>, BTreeMap<RangeId, OpenedRange>), String> {
        let text = |error: EngineError| error.to_string();
        let opened = Engine::open(SimDevice::attach(&self.disk), self.options.clone(), self.now);
        let (mut engine, report) = opened.map_err(|error| error.to_string())?;
        self.tally.tails_applied += u64::from(report.tail_bytes > 0);
        let mut ranges = BTreeMap::new();
        let listed: Vec<(RangeId, KeyRange)> = engine.ranges().collect();
        for (id, keys) in listed {
            let newest = engine.progress(id).appended;
            engine.commit(id, newest);
            let epoch = engine.next_sole_epoch(id).ok_or("no epoch is left")?;
            engine.begin_sole_epoch(id, epoch, None).map_err(text)?;
            ranges.insert(id, OpenedRange { keys, newest, epoch });
        }
        Ok((engine, ranges))
    }

    /// Compares the ranges that an opening found with the model, and continues with them.
    fn enter(&mut self, opened: BTreeMap<RangeId, OpenedRange>, least: &BTreeMap<RangeId, Version>) {
        let is_as_opened = |ranges: &BTreeMap<RangeId, FaultedRange>| {
            ranges.len() == opened.len()
                && ranges.iter().all(|(id, range)| opened.get(id).is_some_and(|opened| opened.keys == range.keys))
        };
        if let Some(changed) = self.undecided.take().filter(&is_as_opened) {
            self.ranges = changed;
        }
        let listed: Vec<_> = opened.iter().map(|(id, range)| (id, range.keys)).collect();
        assert!(is_as_opened(&self.ranges), "ranges after an opening: {listed:?}");
        for (id, OpenedRange { newest, epoch, .. }) in opened {
            let Some(range) = self.ranges.get_mut(&id) else { continue };
            let least = least.get(&id).copied().unwrap_or_default().max(range.durable_version);
            if let Err(why) = range.lose_behind(newest, least) {
                panic!("{id:?} {why}");
            }
            (range.epoch, range.seq) = (Some(epoch), 0);
        }
    }
}

fn get(engine: &mut Engine<SimDevice>, id: RangeId, key: &[u8], now: Now) -> Result<Option<Vec<u8>>, EngineError> {
    let time = engine.expiry_time();
    let mut lookup = engine.lookup(id, KeyHash::of(&SECRET, key), key, View::Committed, time)?;
    for _ in 0..ITERATIONS_MAX {
        let plan = match lookup {
            Lookup::Found(entry) => return Ok(Some(entry.value.to_vec())),
            Lookup::Read(plan) => plan,
            _ => return Ok(None),
        };
        engine.read(plan, 0);
        let mut events = Vec::new();
        let plan = loop {
            engine.wait(now, &mut events);
            let arrived = events.drain(..).find_map(|event| match event {
                Event::Lookup { plan, .. } => Some(plan),
                _ => None,
            });
            if let Some(plan) = arrived {
                break plan;
            }
        };
        lookup = engine.resume(plan, time)?;
    }
    panic!("the lookup of {key:?} does not end");
}
