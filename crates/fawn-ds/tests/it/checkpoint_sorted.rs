//! Checkpoints of a store with sorted segments, which every opening reads again.
use crate::sorted_files::{put, sort_out};
use crate::sorted_tier::sorted;
use crate::support::TestNode;
use fawn_ds::internals::format::checkpoint;
use fawn_ds::internals::{Options, RecordLayout};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now};

fn checkpoints(disk: &SimDisk) -> Vec<String> {
    disk.names().into_iter().filter(|name| checkpoint::is_file_name(name)).collect()
}

#[test]
fn a_close_writes_no_checkpoint_for_sorted_segments_that_the_last_one_covers() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { sort_bytes: 1, space_amplification_max_percent: 10_000, ..sorted(Durability::Sync) };
    let mut node = TestNode::open(&disk, options.clone(), Now::at(1_000)).unwrap();
    // Their segment has only long records, and is not sorted. Segments that are sorted later hide half of them, and stay.
    let long = |number: usize| format!("long-{number}").into_bytes();
    (0..30).for_each(|number| put(&mut node, &long(number), Some(&[1; 3_000])));
    for number in 0..700 {
        put(&mut node, format!("short-{number}").as_bytes(), Some(&[2; 260]));
        if number < 15 {
            put(&mut node, &long(2 * number), Some(&[2; 260]));
        }
        node.turn();
    }
    sort_out(&mut node);
    assert!(node.engine.runs() >= 1, "{:?}", node.engine);
    let now = node.now;
    node.engine.close().unwrap();
    // Nothing is sorted or merged from now on.
    let options = Options { layout: RecordLayout::Log, ..options };
    let open = || TestNode::open(&disk, options.clone(), now).unwrap();
    open().engine.close().unwrap();
    let before = checkpoints(&disk);
    for opening in 0..3 {
        let mut node = open();
        assert!(node.report.checkpoint_entries.is_some() && node.report.bytes > 32 << 10, "{:?}", node.report);
        node.settle();
        assert_eq!(node.engine.verifications_deferred(), 0);
        node.engine.close().unwrap();
        assert_eq!(checkpoints(&disk), before, "opening {opening} wrote nothing");
    }
}
