//! Unit tests of copies of open results: writes of a full store that wait for them.
use super::*;
use crate::options::Options;
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, Epoch, HashSecret, KeyHash, KeyRange, Now};

const RANGE: RangeId = RangeId(1);
const SECRET: HashSecret = HashSecret(*b"a secret of test");
const TAG: ClientTag = ClientTag { session: 9, seq: 1 };

/// A member of a chain, with one result that stays open.
struct Member {
    engine: Engine<SimDevice>,
    now: Now,
    open: Option<Version>,
    copies: usize,
}

impl Member {
    fn open(disk: &SimDisk) -> Self {
        let options = Options {
            segment_bytes: 64 << 10,
            memory_bytes: 1 << 20,
            capacity_bytes: Some(8 * (64 << 10)),
            durability: Durability::Memory,
            secret: Some(SECRET),
            scrub_period_ms: 0,
            ..Options::default()
        };
        let (mut engine, _) = Engine::open(SimDevice::attach(disk), options, Now::at(1)).unwrap();
        engine.add_range(RANGE, KeyRange::ALL).unwrap();
        engine.set_retain_floor(RANGE, Version::ZERO);
        Self { engine, now: Now::at(1), open: None, copies: 0 }
    }

    fn turn(&mut self) {
        self.engine.set_needed_from(RANGE, self.open);
        self.engine.submit(self.now);
        self.engine.wait(self.now, &mut Vec::new());
        let appended = self.engine.progress(RANGE).appended;
        self.engine.commit(RANGE, appended);
        self.now = self.now.plus_ms(5);
        if self.engine.must_copy_results(RANGE) {
            let open: Vec<OpenResult> = self.open.iter().map(|&version| OpenResult::new(version, TAG)).collect();
            let copies = &mut self.copies;
            self.engine.copy_results(RANGE, &open, |_, result| {
                *copies += 1;
                result.push(7);
            });
        }
    }

    /// Writes until the store takes it.
    fn write(&mut self, key: u64, has_result: bool) {
        let seq = self.engine.progress(RANGE).appended.seq() + 1;
        let version = Version::new(Epoch::new(self.engine.generation()).unwrap(), seq).unwrap();
        let key = key.to_be_bytes();
        let mut record = RecordRef::put(version, &key, &[7; 1_500]);
        if has_result {
            self.open = Some(version);
            (record.tag, record.result) = (TAG, &[7]);
        }
        for _ in 0..1_000 {
            match self.engine.append(RANGE, KeyHash::of(&SECRET, &key), &record) {
                Ok(()) => return self.turn(),
                Err(EngineError::StoreFull) => {
                    assert!(!self.engine.results_wait_for_mark(), "the mark is synced soon, and then there is space");
                }
                Err(error) => assert_eq!(error, EngineError::Overloaded),
            }
            self.turn();
        }
        panic!("the store stays full: {:?}", self.engine);
    }
}

/// The active segment of a full store is synced only for the mark.
#[test]
fn a_write_waits_for_the_sync_that_copies_wait_for() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut member = Member::open(&disk);
    (0..180).for_each(|i| member.write(100 + i, false));
    member.write(0, true);
    (0..40).for_each(|i| member.write(i % 5, false));
    (0..20).for_each(|i| member.write(10_000 + i, false));
    assert_eq!(member.copies, 1);
}
