//! One run: random operations on an engine over a simulated disk with faults, compared with the model.
use crate::model::{FaultedRange, ModelValue};
use crate::tally::FaultTally;
use fawn_ds::internals::index::{IndexOptions, PointerWidth};
use fawn_ds::internals::{Engine, Event, LookupPlan, Options, RecordLayout, View};
use fawn_ds::sim::{Loss, SimDevice, SimDisk, SimOptions};
use fawn_types::random::SplitMix64;
use fawn_types::{Durability, HashSecret, KeyRange, MonoMs, Now, RangeId, RingKey, TimeMs};
use std::collections::BTreeMap;

pub(crate) const SECRET: HashSecret = HashSecret(*b"a secret of test");
/// Iterations within which a store without faults must get anywhere.
pub(crate) const ITERATIONS_MAX: u32 = 20_000;

/// A lookup whose read is in flight while other operations run.
pub(crate) struct HeldLookup {
    pub(crate) tag: u64,
    pub(crate) range: RangeId,
    pub(crate) key: Vec<u8>,
    pub(crate) view: View,
    pub(crate) time: TimeMs,
    /// All that the key held since the lookup began.
    pub(crate) allowed: Vec<Option<ModelValue>>,
    /// A fault of reads was ordered since.
    pub(crate) may_fail: bool,
}

/// Faults that may have been met since the disk was last without them.
#[derive(Default)]
pub(crate) struct OrderedFaults {
    pub(crate) any: bool,
    /// Of reads, or of what reads need.
    pub(crate) reads: bool,
    /// The disk has no free space: a full store may begin no epoch.
    pub(crate) full: bool,
    /// An opening would wait for the end of a hang, as for any disk that hangs.
    pub(crate) hangs: bool,
}

pub(crate) struct FaultDriver {
    pub(crate) rng: SplitMix64,
    pub(crate) keys: u64,
    pub(crate) disk: SimDisk,
    pub(crate) options: Options,
    pub(crate) engine: Option<Engine<SimDevice>>,
    pub(crate) ranges: BTreeMap<RangeId, FaultedRange>,
    /// The ranges as a change of them that failed may have left them.
    pub(crate) undecided: Option<BTreeMap<RangeId, FaultedRange>>,
    pub(crate) next_id: u32,
    pub(crate) now: Now,
    pub(crate) faults: OrderedFaults,
    /// The page cache may have what a misdirected read brought: the first reply from it is an error.
    pub(crate) misdirected: bool,
    /// This engine's scrub may have met faults.
    pub(crate) scrub_may_report: bool,
    pub(crate) held: Vec<HeldLookup>,
    pub(crate) arrived: Vec<(u64, LookupPlan)>,
    pub(crate) next_tag: u64,
    /// The highest time by which a record may have been removed as expired.
    pub(crate) removed_until: u64,
    pub(crate) tally: FaultTally,
}

fn random_options(rng: &mut SplitMix64) -> Options {
    let durability = [Durability::Sync, Durability::EverySecond, Durability::Memory][rng.below(3) as usize];
    Options {
        segment_bytes: 64 << 10,
        memory_bytes: 1 << (20 + rng.below(3)),
        durability,
        secret: Some(SECRET),
        capacity_bytes: rng.chance(2, 3).then(|| (14 + rng.below(30)) * (64 << 10)),
        space_amplification_max_percent: 110 + rng.below(150),
        checkpoint_log_bytes_min: if rng.chance(1, 4) { u64::MAX } else { (8 << 10) << rng.below(5) },
        record_cache_bytes: [None, Some(0), Some(256 << 10)][rng.below(3) as usize],
        pad_frames: rng.chance(1, 5),
        scrub_period_ms: if rng.chance(1, 4) { 0 } else { 5_000 << rng.below(5) },
        pointers_if_new: rng.chance(1, 3).then_some(PointerWidth::Bits40),
        index: IndexOptions { entries_min: 64, page_entries: 8, ..IndexOptions::default() },
        layout: if rng.chance(1, 3) { RecordLayout::Sorted } else { RecordLayout::Log },
        sort_bytes: 1 << (12 + rng.below(8)),
        // A half of the stores sorts a segment in up to 32 batches.
        sort_batch_bytes: if rng.chance(1, 2) { 2 << (10 + rng.below(5)) } else { 0 },
        run_bytes_max: 16 << (10 + rng.below(4)),
        ..Options::default()
    }
}

impl FaultDriver {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = SplitMix64::new(seed);
        let options = random_options(&mut rng);
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let is_wide = options.pointers_if_new.is_some();
        let mut driver = Self {
            keys: 60 + rng.below(300),
            rng,
            disk,
            options,
            engine: None,
            ranges: BTreeMap::new(),
            undecided: None,
            next_id: 1,
            now: Now { mono: MonoMs(1000), wall: TimeMs(1_000_000) },
            faults: OrderedFaults::default(),
            misdirected: false,
            scrub_may_report: false,
            held: Vec::new(),
            arrived: Vec::new(),
            next_tag: 0,
            removed_until: 0,
            tally: FaultTally { wide_pointers: u64::from(is_wide), ..FaultTally::default() },
        };
        driver.open(&BTreeMap::new());
        if driver.rng.coin() {
            driver.add(KeyRange::ALL);
        } else {
            let middle = driver.random_boundary();
            driver.add(KeyRange { end: Some(middle), ..KeyRange::ALL });
            driver.add(KeyRange { start: middle, end: None });
        }
        driver
    }

    pub(crate) fn run(mut self, operations: u64) -> FaultTally {
        for _ in 0..operations {
            self.step();
            self.tally.operations += 1;
        }
        self.check_all();
        self.close();
        self.check_all();
        self.count_engine();
        self.tally
    }

    #[expect(clippy::expect_used, reason = "every operation ends with an open store")]
    pub(crate) fn engine(&mut self) -> &mut Engine<SimDevice> {
        self.engine.as_mut().expect("the store is open")
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.poisoned().is_some())
    }

    fn step(&mut self) {
        // Reads go on in a poisoned store.
        if self.is_poisoned() && self.rng.chance(1, 3) {
            self.tally.poisoned += 1;
            let loss = self.random_loss();
            self.lose(loss);
        }
        match self.rng.below(4000) {
            0..=3499 => self.light_step(),
            3500..=3699 => self.pass_time(),
            3700..=3849 => {
                let budget = self.rng.below(20) as usize;
                self.engine().step(budget);
            }
            3850..=3852 => self.clear(),
            3853..=3858 => self.scan_meanwhile(),
            3859..=3869 => self.change_ranges(),
            3870..=3929 => self.order_fault(),
            3930..=3934 => self.set_full(true),
            3935..=3959 => self.set_full(false),
            3960..=3979 => self.calm(),
            3980..=3984 => self.check_all(),
            3985..=3989 => self.close(),
            _ => {
                let loss = self.random_loss();
                self.lose(loss);
            }
        }
    }

    /// An operation after which the engine and its ranges are the same.
    pub(crate) fn light_step(&mut self) {
        match self.rng.below(35) {
            0..=16 => self.write(),
            17..=25 => self.turn(),
            26..=27 => self.hold_lookup(),
            _ => self.look_up_any(),
        }
    }

    pub(crate) fn random_loss(&mut self) -> Loss {
        if self.rng.coin() { Loss::Process } else { Loss::Power }
    }

    pub(crate) fn random_key(&mut self) -> Vec<u8> {
        let hot = self.rng.chance(1, 2);
        let key = self.rng.below(if hot { self.keys / 8 } else { self.keys });
        key_name(key)
    }

    /// The range that has the key.
    pub(crate) fn range_of(&self, key: &[u8]) -> Option<RangeId> {
        let ring_key = RingKey::of(&SECRET, key);
        self.ranges.iter().find(|(_, range)| range.keys.contains(&ring_key)).map(|(&id, _)| id)
    }

    /// One iteration, with what it commits.
    pub(crate) fn turn(&mut self) {
        let now = self.now;
        let engine = self.engine();
        let time = engine.advance_clock(now);
        engine.submit(now);
        self.removed_until = self.removed_until.max(time.0);
        self.wait();
        self.commit();
    }

    /// Takes the events of completed operations.
    pub(crate) fn wait(&mut self) {
        let (now, is_hung) = (self.now, self.disk.hung() > 0);
        let (engine, mut events) = (self.engine(), Vec::new());
        if is_hung {
            engine.poll(now, &mut events)
        } else {
            engine.wait(now, &mut events)
        }
        for event in events {
            if let Event::Lookup { plan, user } = event {
                self.arrived.push((user, plan));
            }
        }
    }

    pub(crate) fn commit(&mut self) {
        let Some(engine) = &mut self.engine else { return };
        for (&id, range) in &mut self.ranges {
            let through = engine.progress(id).watermark_for(self.options.durability);
            engine.commit(id, through);
            let progress = engine.progress(id);
            range.commit(progress.committed);
            range.settle(progress.synced.min(progress.committed));
        }
        self.note_held();
    }

    fn pass_time(&mut self) {
        let ms = if self.rng.chance(1, 20) { self.rng.below(40_000) } else { self.rng.below(300) };
        self.now = self.now.plus_ms(ms);
        if self.rng.chance(1, 20) {
            // The wall clock steps, either way.
            self.tally.clock_steps += 1;
            let step = self.rng.below(200_000);
            let wall = self.now.wall.0;
            self.now.wall = TimeMs(if self.rng.coin() { wall + step } else { wall.saturating_sub(step) });
        }
    }

    pub(crate) fn count_engine(&mut self) {
        let stats = *self.engine().stats();
        self.tally.expired += stats.expired;
        self.tally.segments_cleaned += stats.segments_cleaned;
        self.tally.segments_dropped += stats.segments_dropped;
        self.tally.moved_records += stats.moved_records;
        self.tally.checkpoints += stats.checkpoints;
        self.tally.scrubbed += stats.scrub_segments;
        self.tally.records_filed += stats.filed_records;
        self.tally.runs_listed += stats.runs_listed;
        self.tally.sweep_parts += stats.sweep_parts;
        self.tally.tail_frames += stats.tail_frames;
    }
}

pub(crate) fn key_name(key: u64) -> Vec<u8> {
    format!("key-{key:04}").into_bytes()
}
