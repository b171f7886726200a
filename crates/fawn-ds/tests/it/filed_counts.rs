//! Counts of segments that are filed after a split: what they hide, and what hides them, is as before.
use crate::range_harness::{RangeHarness, ring_at};
use crate::sorted_tier::sorted;
use crate::splits::{file, whole};
use crate::support::{SECRET, small};
use fawn_ds::internals::{KeepReason, Options, RecordLayout};
use fawn_types::{Durability, RingKey};

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
