//! Counts of segments that are filed after a split: what they hide, and what hides them, is as before.
use crate::range_harness::{RangeHarness, ring_at};
use crate::sorted_tier::sorted;
use crate::splits::{file, whole};
use crate::support::{SECRET, small};
use fawn_ds::internals::{KeepReason, Options, RecordLayout, RecordRef};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, KeyHash, KeyRange, RangeId, RingKey, Version};

/// Nothing is sorted, but deletes have index entries. Every opening reads the whole log.
fn with_indexed_deletes() -> Options {
    let checkpoint_log_bytes_min = u64::MAX;
    Options {
        sort_bytes: 1 << 30,
        space_amplification_max_percent: 0,
        checkpoint_log_bytes_min,
        ..sorted(Durability::Sync)
    }
}

/// Writes keys in large frames, whose headers leave little to clean.
fn fill(harness: &mut RangeHarness, name: &str, count: u64) {
    for number in 0..count {
        harness.write(format!("{name}-{number}").as_bytes(), Some(&[1; 300]));
        if number % 25 == 24 {
            harness.turn();
        }
    }
}

fn names(name: &str, count: u64) -> Vec<Vec<u8>> {
    (0..count).map(|number| format!("{name}-{number}").into_bytes()).collect()
}

/// A delete with an index entry counts as a put: live ones must not make up for puts that are dead. The deletes that hide
/// these would be cleaned away.
#[test]
fn deletes_of_a_filed_segment_hide_none_of_its_dead_puts() {
    let mut harness = whole(1, with_indexed_deletes(), true);
    let (deleted, absent) = (names("deleted", 10), names("absent", 30));
    harness.write(b"first", Some(b"value"));
    harness.turn();
    for key in &deleted {
        harness.write(key, Some(b"value"));
    }
    for key in &absent {
        harness.write(key, None);
    }
    fill(&mut harness, "older", 150);
    harness.settle();
    harness.split(1, ring_at(0x80), 2, 3);
    file(&mut harness);
    // The deletes come first in their segment: copies before them would count as puts that they hide.
    for number in 0.. {
        fill(&mut harness, &format!("filling-{number}"), 1);
        harness.settle();
        if harness.engine.log_report().segments > 1 {
            break;
        }
    }
    for key in &deleted {
        harness.write(key, None);
    }
    for _ in 0..2 {
        // Overwritten, so that the segment with the deletes is the one to clean.
        fill(&mut harness, "dying", 150);
        harness.settle();
    }
    for number in 0..100 {
        fill(&mut harness, &format!("newer-{number}"), 25);
        if harness.engine.stats().segments_dropped > 0 {
            break;
        }
    }
    harness.settle();
    let stats = harness.engine.stats();
    assert!(stats.segments_cleaned > 0 && stats.segments_dropped > 0 && harness.engine.runs() == 0, "{stats:?}");
    harness.check(&deleted, "cleaned");
    harness.reopen(1, true);
    harness.check(&deleted, "opened again");
}

/// A segment is filed for the parts of one half, and has records of the other half from before an earlier split. These count
/// there already: counted twice, some would seem to be dead, and deletes to hide them.
#[test]
fn records_that_were_filed_before_are_not_counted_again() {
    let options = Options {
        layout: RecordLayout::Log,
        space_amplification_max_percent: 10_000,
        checkpoint_log_bytes_min: u64::MAX,
        ..small(Durability::Sync)
    };
    let mut harness = whole(1, options, true);
    fill(&mut harness, "live", 300);
    harness.settle();
    harness.split(1, ring_at(0x80), 2, 3);
    file(&mut harness);
    harness.split(2, ring_at(0x40), 4, 5);
    file(&mut harness);
    let is_high = |key: &Vec<u8>| RingKey::of(&SECRET, key) >= ring_at(0x80);
    let absent = names("absent", 10_000).into_iter().filter(is_high);
    for (number, key) in absent.enumerate() {
        harness.write(&key, None);
        if number % 25 == 24 {
            harness.turn();
        }
    }
    (0..100).for_each(|_| harness.turn());
    harness.settle();
    let kept = harness.engine.segments_kept();
    assert_eq!(kept.get(&KeepReason::Hides), None, "no put is dead: {kept:?}");
    assert!(harness.engine.stats().segments_dropped > 0, "{:?}", harness.engine.stats());
}

/// The checkpoint of a close begins within the active segment of the survivors. The opening after a split takes the live records from
/// it, and counts all records for the heirs as it scans the segment. Filing must not count them again.
#[test]
fn records_that_an_opening_counted_for_heirs_are_not_counted_again() {
    let options =
        Options { layout: RecordLayout::Log, space_amplification_max_percent: 101, ..small(Durability::Sync) };
    // The checkpoint of a later close has the parts, too.
    for is_closed in [false, true] {
        let mut harness = whole(1, options.clone(), false);
        fill(&mut harness, "live", 1_000);
        let overwritten = names("live", 1_000).into_iter().step_by(2);
        for key in overwritten.chain(names("newer", 100)) {
            harness.write(&key, Some(&[2; 300]));
            harness.turn();
        }
        for _ in 0..1_000 {
            harness.turn();
        }
        harness.settle();
        let stats = harness.engine.stats();
        assert!(stats.moved_records > 100 && stats.segments_dropped > 0, "{stats:?}");
        harness = harness.close_and_open();
        harness.split(1, ring_at(0x80), 2, 3);
        harness.reopen(1, false);
        assert!(harness.engine.segments_to_file() > 1, "{:?}", harness.engine);
        if is_closed {
            harness = harness.close_and_open();
            assert!(harness.engine.segments_to_file() > 1, "{:?}", harness.engine);
        }
        file(&mut harness);
        for (number, key) in names("absent", 10_000).iter().enumerate() {
            harness.write(key, None);
            if number % 25 == 24 {
                harness.turn();
            }
        }
        (0..100).for_each(|_| harness.turn());
        harness.settle();
        let kept = harness.engine.segments_kept();
        assert_eq!(kept.get(&KeepReason::Hides), None, "no put is dead: {kept:?}");
    }
}

const ROLLED_BACK: &[u8] = b"rolled back";

/// A range of a chain with records that were rolled back, and a busy range.
struct RolledBack {
    harness: RangeHarness,
    /// Keys of the busy range: in the segments up to that with the rolled-back records, and later ones.
    before: Vec<Vec<u8>>,
    after: Vec<Vec<u8>>,
}

impl RolledBack {
    const BUSY: RangeId = RangeId(2);

    /// The rolled-back records are in a segment without others of their range, and the rollback is in a later one. The range was split.
    fn split() -> Self {
        let options = Options {
            space_amplification_max_percent: 10_000,
            checkpoint_log_bytes_min: u64::MAX,
            ..small(Durability::Sync)
        };
        let mut harness = RangeHarness::new(SimDisk::new(SimOptions::instant(1)), options, false);
        harness.add(1, KeyRange { end: Some(ring_at(0x80)), ..KeyRange::ALL });
        harness.add(Self::BUSY.0, KeyRange { start: ring_at(0x80), ..KeyRange::ALL });
        let mut this = Self { harness, before: Vec::new(), after: Vec::new() };
        for key in this.quiet("kept") {
            this.harness.write(&key, Some(b"value"));
        }
        this.before = this.fill_segment("first");
        let idle = RangeId(1);
        let model = this.harness.models.remove(&idle).unwrap();
        let last = this.harness.engine.progress(idle).committed;
        for (key, version) in this.quiet("ghost").iter().zip(last.as_u64() + 1..) {
            let record = RecordRef::put(Version::from_u64(version), key, ROLLED_BACK);
            this.harness.append(idle, KeyHash::of(&SECRET, key), &record);
        }
        let mut second = this.fill_segment("second");
        let last_key = second.pop();
        this.before.extend(second);
        this.harness.engine.rollback(idle, last).unwrap();
        this.harness.models.insert(idle, model);
        this.after = this.fill_segment("third");
        this.after.extend(last_key);
        this.harness.split(1, ring_at(0x40), 3, 4);
        this
    }

    /// Keys of the idle range.
    fn quiet(&self, name: &str) -> Vec<Vec<u8>> {
        let is_low = |key: &Vec<u8>| RingKey::of(&SECRET, key) < ring_at(0x80);
        names(name, 20).into_iter().filter(is_low).collect()
    }

    /// Writes keys of the busy range, and returns them, until another segment takes them.
    fn fill_segment(&mut self, name: &str) -> Vec<Vec<u8>> {
        let segments = self.harness.engine.log_report().segments;
        let mut keys = names(name, 10_000);
        keys.retain(|key| RingKey::of(&SECRET, key) >= ring_at(0x80));
        for at in 0..keys.len() {
            self.harness.write(&keys[at], Some(&[1; 1_000]));
            self.harness.turn();
            if self.harness.engine.log_report().segments > segments {
                keys.truncate(at + 1);
                break;
            }
        }
        keys
    }

    fn overwrite(&mut self, keys: &[Vec<u8>]) {
        for key in keys {
            self.harness.write(key, Some(&[2; 1_000]));
            self.harness.turn();
        }
        self.harness.settle();
        // No result is kept for retries.
        for &id in self.harness.models.keys() {
            let committed = self.harness.engine.progress(id).committed;
            self.harness.engine.set_retain_floor(id, committed);
        }
        (0..20).for_each(|_| self.harness.turn());
    }

    fn has_rolled_back(&self) -> bool {
        let disk = &self.harness.disk;
        let has_one = |name: &String| {
            let bytes = disk.contents(name).unwrap();
            bytes.windows(ROLLED_BACK.len()).any(|found| found == ROLLED_BACK)
        };
        disk.names().iter().filter(|name| name.starts_with("segment-")).any(has_one)
    }
}

/// The parts of the range take no writes any more: nothing would ever commit such records.
#[test]
fn rolled_back_records_do_not_count_as_pending_for_the_parts_of_a_range() {
    for is_opened_again in [false, true] {
        let mut store = RolledBack::split();
        file(&mut store.harness);
        if is_opened_again {
            store.harness.reopen(1, false);
        }
        assert!(store.has_rolled_back());
        let keys = [store.before.clone(), store.after.clone()].concat();
        (0..2).for_each(|_| store.overwrite(&keys));
        let kept = store.harness.engine.segments_kept();
        assert_eq!(kept.get(&KeepReason::Pending), None, "opened again: {is_opened_again}, {kept:?}");
        assert!(!store.has_rolled_back(), "opened again: {is_opened_again}, {kept:?}");
    }
}

/// All other records of the rollback's segment are dead. Without it, an opening would take those before it for committed, as all that
/// the parent had.
#[test]
fn a_rollback_stays_as_long_as_a_filed_segment_with_no_other_records_of_its_range() {
    let mut store = RolledBack::split();
    file(&mut store.harness);
    let keys = store.after.clone();
    (0..4).for_each(|_| store.overwrite(&keys));
    assert!(store.harness.engine.stats().segments_dropped > 0, "{:?}", store.harness.engine.segments_kept());
    assert!(store.has_rolled_back());
    store.harness.reopen(1, false);
    store.harness.check(&store.quiet("kept"), "opened again");
    store.harness.check(&store.quiet("ghost"), "opened again");
}
