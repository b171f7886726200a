//! Harness of the engine's tests: one engine over a simulated disk with one range, committed as in a chain of one.
use fawn_ds::internals::index::{IndexOptions, PointerWidth};
use fawn_ds::internals::{
    Engine, EngineError, Event, Lookup, OpenError, OpenReport, Options, RecordKind, RecordRef, Scan, ScanStep, View,
};
use fawn_flash::{SimDevice, SimDisk};
use fawn_types::{ClientTag, Durability, Entry, Epoch, HashSecret, KeyHash, KeyRange, Now, RangeId, Version};

pub(crate) const RANGE: RangeId = RangeId(7);
pub(crate) const SECRET: HashSecret = HashSecret(*b"a secret of test");

/// Options so small that every boundary is reached: segments of 64 KiB, no page cache, a checkpoint for every few frames.
/// Pointers have 32 bits in the mode `sync`, 40 in the others, so that many suites meet both.
pub(crate) fn small(durability: Durability) -> Options {
    Options {
        segment_bytes: 64 << 10,
        memory_bytes: 1 << 20,
        durability,
        secret: Some(SECRET),
        checkpoint_log_bytes_min: 16 << 10,
        index: IndexOptions { entries_min: 64, page_entries: 8, ..IndexOptions::default() },
        pointers_if_new: Some(match durability {
            Durability::Sync => PointerWidth::Bits32,
            Durability::EverySecond | Durability::Memory => PointerWidth::Bits40,
        }),
        scrub_period_ms: 0,
        ..Options::default()
    }
}

/// A width for each seed, every third one the longer.
pub(crate) const fn pointers_of(seed: u64) -> PointerWidth {
    if seed.is_multiple_of(3) { PointerWidth::Bits40 } else { PointerWidth::Bits32 }
}

/// As [`small`], without checkpoints: every opening reads the whole log.
pub(crate) fn scanned(durability: Durability) -> Options {
    Options { checkpoint_log_bytes_min: u64::MAX, ..small(durability) }
}

/// [`small`] with a page cache of about 2 MiB, which holds everything that these tests read.
pub(crate) fn cached(durability: Durability) -> Options {
    Options { memory_bytes: 4 << 20, ..small(durability) }
}

/// Start and end of each commit of a manifest.
pub(crate) fn manifest_commits(bytes: &[u8]) -> Vec<(usize, usize)> {
    let (mut commits, mut at) = (Vec::new(), 512);
    while bytes.get(at..at + 4) == Some(b"FwnM") {
        let edit_bytes = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize;
        let end = at + (32 + edit_bytes).next_multiple_of(16);
        commits.push((at, end));
        at = end;
    }
    commits
}

/// Start and end of each frame of a segment.
pub(crate) fn frames(bytes: &[u8]) -> Vec<(usize, usize)> {
    let (mut frames, mut at) = (Vec::new(), 4096);
    while bytes.get(at..at + 4) == Some(b"FwnF") {
        let end = at + u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap()) as usize;
        frames.push((at, end));
        at = end;
    }
    frames
}

/// A put or a delete.
#[derive(Clone, Debug)]
pub(crate) struct TestWrite {
    pub(crate) key: Vec<u8>,
    /// `None` deletes.
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) expires_at_ms: u64,
}

pub(crate) struct TestNode {
    pub(crate) engine: Engine<SimDevice>,
    pub(crate) report: OpenReport,
    pub(crate) now: Now,
    seq: u64,
}

impl TestNode {
    /// As the range's only member, in an epoch of this opening.
    pub(crate) fn open(disk: &SimDisk, options: Options, now: Now) -> Result<Self, OpenError> {
        let mut node = Self::open_in_chain(disk, options, now)?;
        if !node.engine.options().read_only {
            let last = node.engine.progress(RANGE).appended;
            node.engine.commit(RANGE, last);
            node.engine.begin_sole_epoch(RANGE, node.engine.next_sole_epoch(RANGE).unwrap(), None)?;
        }
        Ok(node)
    }

    /// As a member of a chain: what was not marked as committed is pending.
    pub(crate) fn open_in_chain(disk: &SimDisk, options: Options, now: Now) -> Result<Self, OpenError> {
        let (mut engine, report) = Engine::open(SimDevice::attach(disk), options, now)?;
        if !engine.options().read_only {
            engine.add_range(RANGE, KeyRange::ALL)?;
        }
        Ok(Self { engine, report, now, seq: 0 })
    }

    pub(crate) fn next_version(&mut self) -> Version {
        self.seq += 1;
        let epoch = Epoch::new(self.engine.generation()).unwrap();
        Version::new(epoch, self.seq).unwrap()
    }

    pub(crate) fn hash(key: &[u8]) -> KeyHash {
        KeyHash::of(&SECRET, key)
    }

    fn record<'a>(write: &'a TestWrite, version: Version) -> RecordRef<'a> {
        RecordRef {
            kind: if write.value.is_some() { RecordKind::Put } else { RecordKind::Tombstone },
            version,
            key: &write.key,
            value: write.value.as_deref().unwrap_or_default(),
            flags: 0,
            expires_at_ms: write.expires_at_ms,
            tag: ClientTag::NONE,
            result: &[],
        }
    }

    /// Appends one write or an atomic batch; waits while the engine is overloaded. Returns the last version.
    pub(crate) fn append(&mut self, writes: &[TestWrite]) -> Result<Version, EngineError> {
        let before = self.seq;
        let versions: Vec<_> = writes.iter().map(|_| self.next_version()).collect();
        let batch: Vec<_> = writes
            .iter()
            .zip(&versions)
            .map(|(write, &version)| (Self::hash(&write.key), Self::record(write, version)))
            .collect();
        for _ in 0..10_000 {
            let result = match &batch[..] {
                [(hash, record)] => self.engine.append(RANGE, *hash, record),
                _ => self.engine.append_batch(RANGE, &batch),
            };
            match result {
                Err(EngineError::Overloaded) => {
                    self.turn();
                    self.now = self.now.plus_ms(1); // The engine may wait before it asks the device for space again.
                }
                Ok(()) => return Ok(*versions.last().unwrap()),
                Err(error) => {
                    self.seq = before;
                    return Err(error);
                }
            }
        }
        panic!("the engine stays overloaded: {:?}", self.engine);
    }

    /// One attempt to append a write.
    pub(crate) fn put_once(&mut self, write: &TestWrite, version: Version) -> Result<(), EngineError> {
        self.engine.append(RANGE, Self::hash(&write.key), &Self::record(write, version))
    }

    /// One iteration: submit, wait, commit by durability mode. Returns the last acknowledged version.
    pub(crate) fn turn(&mut self) -> Version {
        self.engine.advance_clock(self.now);
        self.engine.submit(self.now);
        let mut events = Vec::new();
        self.engine.wait(self.now, &mut events);
        self.commit()
    }

    /// Lets time pass without a request: the engine is polled only when it asks for that, or operations are in flight.
    pub(crate) fn rest(&mut self, ms: u64) {
        let end = self.now.plus_ms(ms);
        for _ in 0..100_000 {
            let confirm_at = self.engine.is_confirming().then(|| self.now.mono.plus_ms(1));
            let due_at = [self.engine.upkeep_at(), self.engine.log_due_at(), confirm_at].into_iter().flatten().min();
            let due_at = if self.engine.in_flight() > 0 { Some(self.now.mono) } else { due_at };
            match due_at.filter(|at| *at <= end.mono) {
                Some(at) => self.now = self.now.plus_ms(at.ms_since(self.now.mono)),
                None => {
                    self.now = end;
                    return;
                }
            }
            self.turn();
        }
        panic!("does not rest: {:?}", self.engine);
    }

    pub(crate) fn commit(&mut self) -> Version {
        let progress = self.engine.progress(RANGE);
        let through = progress.watermark_for(self.engine.options().durability);
        self.engine.commit(RANGE, through);
        through
    }

    /// Runs iterations until all appended records are acknowledged and no verification waits.
    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            let through = self.turn();
            let progress = self.engine.progress(RANGE);
            if through == progress.appended && self.engine.log_report().overlay_keys == 0 {
                return;
            }
            self.now = self.now.plus_ms(10);
        }
        panic!(
            "does not settle: {:?} {:?} {:?}",
            self.engine.progress(RANGE),
            self.engine.log_report(),
            self.engine.poisoned()
        );
    }

    pub(crate) fn get(&mut self, key: &[u8], view: View) -> Result<Option<Entry>, EngineError> {
        let now = self.now.wall;
        let mut plan = match self.engine.lookup(RANGE, Self::hash(key), key, view, now)? {
            Lookup::Found(entry) => return Ok(Some(entry.to_owned())),
            Lookup::Absent | Lookup::Unsettled => return Ok(None),
            Lookup::Read(plan) => plan,
        };
        for _ in 0..100 {
            self.engine.read(plan, 42);
            plan = self.wait_for_plan();
            plan = match self.engine.resume(plan, now)? {
                Lookup::Found(entry) => return Ok(Some(entry.to_owned())),
                Lookup::Absent | Lookup::Unsettled => return Ok(None),
                Lookup::Read(plan) => plan,
            };
        }
        panic!("the lookup of {key:?} does not end");
    }

    pub(crate) fn wait_for_plan(&mut self) -> fawn_ds::internals::LookupPlan {
        for _ in 0..10_000 {
            let mut events = Vec::new();
            self.engine.wait(self.now, &mut events);
            for event in events {
                if let Event::Lookup { plan, user } = event {
                    assert_eq!(user, 42);
                    return plan;
                }
            }
        }
        panic!("the read does not complete");
    }

    /// All keys that a scan returns, sorted.
    pub(crate) fn keys(&mut self) -> Vec<Vec<u8>> {
        let (mut cursor, mut keys) = (0, Vec::new());
        let (since, mut is_in_runs) = (self.engine.progress(RANGE).committed, false);
        loop {
            let mut scan = match is_in_runs {
                true => Scan::of_runs(RANGE, cursor, 10, since),
                false => Scan::of_log(RANGE, cursor, 10),
            };
            while let ScanStep::Read(plan) = self.engine.scan_step(&mut scan, self.now.wall).unwrap() {
                self.engine.read(plan, 42);
                let plan = self.wait_for_plan();
                self.engine.absorb_scan(&mut scan, plan).unwrap();
            }
            keys.extend(scan.items.into_iter().map(|item| item.key));
            cursor = scan.cursor;
            if cursor == 0 && core::mem::replace(&mut is_in_runs, true) {
                keys.sort();
                // Keys that are sorted meanwhile may be met twice.
                if self.engine.runs() > 0 {
                    keys.dedup();
                }
                return keys;
            }
        }
    }
}
