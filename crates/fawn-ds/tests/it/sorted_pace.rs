//! Pace of the sorted tier: puts as fast as the store takes them, sorts, and merges with the oldest runs.
use crate::sorted_space::segments_taken;
use crate::sorted_tier::sorted;
use crate::support::{TestNode, TestWrite};
use fawn_ds::internals::Options;
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Now};

const SEGMENTS: u64 = 400;
const SEGMENT_BYTES: u64 = 64 << 10;
/// A record with a key of 16 B and a value of 256 B.
const RECORD_BYTES: u64 = 304;
/// Keys of a store that is 70 % live.
const KEYS: u64 = SEGMENTS * SEGMENT_BYTES * 7 / 10 / RECORD_BYTES;

/// Counts of puts.
#[derive(Debug, Default)]
struct PutPace {
    /// Puts that waited, and the turns that one waited at most.
    waited: u64,
    turns_max: u64,
    taken_max: u64,
}

struct PacedStore {
    disk: SimDisk,
    node: TestNode,
    rng: Rng,
    puts: u64,
}

impl PacedStore {
    /// Puts each key once, then random ones, with a turn after so many. Panics if the store is full.
    fn put(&mut self, puts: u64, per_turn: u64) -> PutPace {
        let mut pace = PutPace::default();
        for _ in 0..puts {
            let at = if self.puts < KEYS { self.puts } else { self.rng.below(KEYS) };
            let key = format!("{:016x}", at.wrapping_mul(0x9E37_79B9_7F4A_7C15)).into_bytes();
            let write = TestWrite { key, value: Some(vec![self.puts as u8; 256]), expires_at_ms: 0 };
            let since = self.node.now;
            if let Err(error) = self.node.append(&[write]) {
                panic!("put {}: {error}: {:?} {:?}", self.puts, self.node.engine, self.node.engine.stats());
            }
            // A turn of a put that waits takes a millisecond.
            let turns = self.node.now.mono.ms_since(since.mono);
            pace.waited += u64::from(turns > 0);
            pace.turns_max = pace.turns_max.max(turns);
            self.puts += 1;
            if self.puts.is_multiple_of(per_turn) {
                self.node.turn();
                self.node.now = self.node.now.plus_ms(1);
            }
            if self.puts.is_multiple_of(256) {
                pace.taken_max = pace.taken_max.max(segments_taken(&self.node, &self.disk));
            }
        }
        pace
    }
}

/// Sorts once took the turns of merges, so the later runs grew until the store was full, and puts stood for the whole of a merge
/// with the oldest runs. Cleaning copied old records, and as long as a segment has these, sorted segments stay.
#[test]
fn puts_of_a_sorted_store_wait_in_proportion_and_never_for_a_whole_merge() {
    for per_turn in [8, 128] {
        let capacity_bytes = Some(SEGMENTS * SEGMENT_BYTES);
        let options = Options { capacity_bytes, sort_bytes: 0, memory_bytes: 4 << 20, ..sorted(Durability::Memory) };
        let disk = SimDisk::new(SimOptions::instant(1));
        let node = TestNode::open(&disk, options, Now::at(1_000)).unwrap();
        let mut store = PacedStore { disk, node, rng: Rng::new(1), puts: 0 };
        let first = store.put(2 * KEYS, per_turn);
        let before = *store.node.engine.stats();
        let pace = store.put(4 * KEYS, per_turn);
        let stats = store.node.engine.stats();
        let record_bytes = (stats.record_bytes - before.record_bytes) as f64;
        let sorted = (stats.sort_bytes - before.sort_bytes) as f64 / record_bytes;
        let moved = (stats.moved_bytes - before.moved_bytes) as f64 / record_bytes;
        println!("{per_turn} puts a turn: {first:?}, {pace:?}, {sorted:.2} sorted and {moved:.2} moved for each byte");
        assert!(first.taken_max.max(pace.taken_max) <= SEGMENTS, "{first:?} {pace:?}");
        // Such a merge takes more than a thousand turns.
        assert!(pace.turns_max < 600, "{pace:?}");
        assert!(sorted < 6.5 && moved < 0.05, "{sorted} {moved}");
        assert!(stats.sweep_parts > before.sweep_parts + 100, "{stats:?}");
    }
}
