//! Puts of a sorted store that wait for less than a merge with the oldest runs, and not for reads that hang or fail.
use crate::sorted_space::segments_taken;
use crate::sorted_tier::sorted;
use crate::support::{TestNode, TestWrite};
use fawn_ds::internals::{EngineError, Options};
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Now};

const SEGMENTS: u64 = 400;
const SEGMENT_BYTES: u64 = 64 << 10;
/// Keys of a store that is half live, with values of 256 B.
const KEYS: u64 = SEGMENTS * SEGMENT_BYTES / 2 / 304;
const PUTS_PER_TURN: u64 = 8;

fn put(key: String, value_bytes: usize) -> TestWrite {
    TestWrite { key: key.into_bytes(), value: Some(vec![2; value_bytes]), expires_at_ms: 0 }
}

fn key_of(at: u64) -> String {
    format!("{:016x}", at.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

struct HeldStore {
    disk: SimDisk,
    node: TestNode,
    rng: Rng,
    puts: u64,
}

impl HeldStore {
    fn open(segments: u64, sort_bytes: u64) -> Self {
        let disk = SimDisk::new(SimOptions::instant(1));
        let options = Options {
            capacity_bytes: Some(segments * SEGMENT_BYTES),
            sort_bytes,
            memory_bytes: 4 << 20,
            ..sorted(Durability::Memory)
        };
        let node = TestNode::open(&disk, options, Now::at(1_000)).unwrap();
        Self { disk, node, rng: Rng::new(1), puts: 0 }
    }

    /// A store with each key, and half of them written again.
    fn filled() -> Self {
        let mut store = Self::open(SEGMENTS, 0);
        for number in 0..3 * KEYS / 2 {
            let at = if number < KEYS { number } else { store.rng.below(KEYS) };
            store.put(&put(key_of(at), 256));
        }
        store
    }

    fn turn(&mut self) {
        self.node.turn();
        self.node.now = self.node.now.plus_ms(1);
    }

    /// Returns the turns that the put waited, of a millisecond each.
    fn put(&mut self, write: &TestWrite) -> u64 {
        let since = self.node.now;
        if let Err(error) = self.node.append(std::slice::from_ref(write)) {
            panic!("put {}: {error}: {:?} {:?}", self.puts, self.node.engine, self.node.engine.stats());
        }
        let turns = self.node.now.mono.ms_since(since.mono);
        self.puts += 1;
        if self.puts.is_multiple_of(PUTS_PER_TURN) {
            self.turn();
        }
        turns
    }

    /// Turns that a put waited at most, while merges with the oldest runs were under way.
    fn longest_wait(&mut self, mut next: impl FnMut(&mut Rng, u64) -> TestWrite) -> u64 {
        let parts = self.node.engine.stats().sweep_parts;
        let mut turns_max = 0;
        for number in 0..3 * KEYS {
            let write = next(&mut self.rng, number);
            turns_max = turns_max.max(self.put(&write));
        }
        assert!(self.node.engine.stats().sweep_parts > parts + 10, "{:?}", self.node.engine.stats());
        turns_max
    }
}

/// Records that were overwritten at once counted as to be sorted. No sort began, for lack of live ones, so puts waited until the
/// sweep's end: 227 turns, and 765 in a store of four times the size.
#[test]
fn puts_of_a_hundred_keys_do_not_wait_for_a_whole_sweep() {
    let next = |rng: &mut Rng, _| put(format!("hot-{}", rng.below(100)), 256);
    assert!(HeldStore::filled().longest_wait(next) < 50);
}

#[test]
fn puts_of_few_and_of_all_keys_do_not_wait_for_a_whole_sweep() {
    let next = |rng: &mut Rng, number: u64| {
        let key = if number.is_multiple_of(8) { key_of(rng.below(KEYS)) } else { format!("hot-{}", rng.below(100)) };
        put(key, 256)
    };
    assert!(HeldStore::filled().longest_wait(next) < 100);
}

#[test]
fn puts_that_are_too_long_for_runs_do_not_wait_for_a_whole_sweep() {
    let next = |rng: &mut Rng, _| put(format!("long-{}", rng.below(800)), 3_000);
    assert!(HeldStore::filled().longest_wait(next) < 100);
}

#[test]
fn a_read_that_hangs_does_not_stop_puts_while_there_is_space() {
    let mut store = HeldStore::filled();
    let (mut held_ms, mut hung) = (0, 0);
    for round in 0..3 {
        store.disk.fail_nth(OpKind::Read, 1, DeviceFault::Hang);
        let mut since = store.node.now;
        for _ in 0..3_000 {
            let write = put(key_of(store.rng.below(KEYS)), 256);
            let version = store.node.next_version();
            let has_space = segments_taken(&store.node, &store.disk) < SEGMENTS * 7 / 8;
            let refused = store.node.put_once(&write, version) == Err(EngineError::Overloaded);
            if !refused || !has_space {
                since = store.node.now;
            }
            let waited_ms = store.node.now.mono.ms_since(since.mono);
            assert!(waited_ms < 1_500, "round {round}: a put waits for {waited_ms} ms, there is space");
            store.turn();
            store.node.now = store.node.now.plus_ms(9);
        }
        hung += store.disk.hung();
        held_ms = store.node.engine.stats().puts_held_ms;
        store.disk.release_hung();
        store.disk.clear_faults();
        store.put(&put(key_of(0), 256));
    }
    assert!(hung > 0 && held_ms > 0, "{hung} hung, held for {held_ms} ms");
}

#[test]
fn any_number_of_bytes_may_be_sorted_at_a_time() {
    for sort_bytes in [1 << 30, 1 << 62, u64::MAX] {
        let mut store = HeldStore::open(40, sort_bytes);
        for number in 0..2_000 {
            store.put(&put(key_of(number % 500), 256));
        }
    }
}

/// Puts all keys again and again, with a fault in reads until one of cleaning or sorting has failed.
fn overwrite_after_failed_read(fault: &DeviceFault) {
    let mut store = HeldStore::open(40, 0);
    let keys = 40 * SEGMENT_BYTES * 4 / 10 / 304;
    for number in 0..60 * keys {
        let at = if number < keys { number } else { store.rng.below(keys) };
        if number > 2 * keys && store.node.engine.stats().cleaning_failed == 0 {
            store.disk.fail_nth(OpKind::Read, 1, fault.clone());
        }
        let (write, since) = (put(key_of(at), 256), store.node.now);
        while let Err(error) = store.node.append(std::slice::from_ref(&write)) {
            store.node.turn();
            store.node.now = store.node.now.plus_ms(100);
            let waited_ms = store.node.now.mono.ms_since(since.mono);
            let kept = store.node.engine.segments_kept();
            assert!(waited_ms < 60_000, "{fault:?}, write {number} of {keys} keys: {error} {kept:?}");
        }
        if number.is_multiple_of(PUTS_PER_TURN) {
            store.turn();
        }
    }
    // The next read may be in flight by then.
    assert!((1..=2).contains(&store.node.engine.stats().cleaning_failed), "{fault:?}: {:?}", store.node.engine.stats());
}

/// The segment stayed as a corrupt one does, until the next opening. Its old records kept all sorted segments that hide them.
#[test]
fn a_segment_whose_read_failed_once_is_cleaned_or_sorted_later() {
    overwrite_after_failed_read(&DeviceFault::Exhausted);
}

/// As before: the device has read another place, without an error.
#[test]
fn a_segment_whose_read_was_wrong_once_is_cleaned_or_sorted_later() {
    overwrite_after_failed_read(&DeviceFault::Misdirect { name: None, offset: 0 });
}
