//! Damage of sorted segments before the checkpoint: their records are in runs, and the segments only hide older ones.
use crate::sorted_files::{put, sort_out};
use crate::sorted_late::segments_with;
use crate::sorted_tier::sorted;
use crate::support::TestNode;
use fawn_ds::internals::format::manifest::decode_all;
use fawn_ds::internals::format::segment;
use fawn_ds::internals::{OpenError, Options, RecordLayout, View};
use fawn_flash::sim::Loss;
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now};

const SHORT_KEYS: usize = 700;

fn options() -> Options {
    Options { sort_bytes: 1, space_amplification_max_percent: 10_000, ..sorted(Durability::Sync) }
}

/// [`options`], with which nothing is sorted or merged.
fn resting() -> Options {
    Options { layout: RecordLayout::Log, ..options() }
}

fn long(number: usize) -> Vec<u8> {
    format!("long-{number}").into_bytes()
}

/// A closed store whose sorted segments hide long records in an older segment, which is not sorted: each fourth one was
/// overwritten, and each fourth one deleted. The checkpoint lies behind all of them.
fn store() -> (SimDisk, Now) {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options(), Now::at(1_000)).unwrap();
    (0..30).for_each(|number| put(&mut node, &long(number), Some(&[1; 3_000])));
    for number in 0..SHORT_KEYS {
        put(&mut node, format!("short-{number}").as_bytes(), Some(&[2; 260]));
        if number < 30 && number % 4 < 2 {
            put(&mut node, &long(number), (number % 4 == 0).then_some(&[2; 260][..]));
        }
        node.turn();
    }
    sort_out(&mut node);
    assert!(node.engine.runs() >= 1, "{:?}", node.engine);
    let now = node.now;
    node.engine.close().unwrap();
    (disk, now)
}

fn check(node: &mut TestNode) {
    for number in 0..30 {
        let found = node.get(&long(number), View::Committed).unwrap().map(|entry| entry.value.len());
        let expected = [Some(260), None, Some(3_000), Some(3_000)][number % 4];
        assert_eq!(found, expected, "long-{number}");
    }
    for number in 0..SHORT_KEYS {
        assert!(node.get(format!("short-{number}").as_bytes(), View::Committed).unwrap().is_some(), "short-{number}");
    }
}

/// The file of the sorted segment with the deletes.
fn hiding_segment(disk: &SimDisk) -> String {
    let names = segments_with(disk, "long-13");
    let state = decode_all(&disk.contents("manifest").unwrap()).unwrap().state;
    let is_sorted = |name: &&String| {
        let mut listed = state.segments.iter();
        listed.any(|(&slot, entry)| entry.is_sorted && segment::file_name(slot, entry.uuid) == **name)
    };
    names.iter().find(is_sorted).unwrap().clone()
}

/// A copy of the disk with a page of a file unreadable, or with a flipped bit.
fn damaged(disk: &SimDisk, name: &str, page: u64, is_unreadable: bool) -> SimDisk {
    let image = disk.image(Loss::Process, page);
    if is_unreadable {
        image.make_unreadable(name, page * 4096..(page + 1) * 4096);
    } else {
        image.flip_bits(name, page * 4096 + 99, 1);
    }
    image
}

#[test]
fn a_store_opens_without_a_page_of_a_sorted_segment_before_the_checkpoint() {
    let (disk, now) = store();
    let name = hiding_segment(&disk);
    for (page, is_unreadable) in (1..8).flat_map(|page| [(page, true), (page, false)]) {
        let image = damaged(&disk, &name, page, is_unreadable);
        for opening in 0..2 {
            let mut node = TestNode::open(&image, resting(), now).unwrap();
            let passed: Vec<_> = node.report.damage_passed.iter().map(|damage| damage.file.clone()).collect();
            assert_eq!(passed, std::slice::from_ref(&name), "page {page}, opening {opening}");
            assert!(node.report.checkpoint_entries.is_some() && node.report.damage.is_empty());
            check(&mut node);
            put(&mut node, b"new", Some(b"value"));
            node.settle();
            assert_eq!(node.get(b"absent", View::Committed).unwrap(), None);
            node.engine.close().unwrap();
        }
        // The records that it hides stay hidden when it is dropped.
        let mut node = TestNode::open(&image, options(), now).unwrap();
        sort_out(&mut node);
        check(&mut node);
        node.engine.close().unwrap();
        check(&mut TestNode::open(&image, options(), now).unwrap());
    }
}

/// Cleaning copies records behind the checkpoint that are older than those of the sorted segment: it may hide some of them.
#[test]
fn a_sorted_segment_that_may_hide_copies_behind_the_checkpoint_is_needed() {
    let (disk, now) = store();
    let name = hiding_segment(&disk);
    let cleaning = Options { space_amplification_max_percent: 0, checkpoint_log_bytes_min: u64::MAX, ..resting() };
    let mut node = TestNode::open(&disk, cleaning, now).unwrap();
    for number in 0..4_000 {
        if segments_with(&disk, "long-14").len() > 1 {
            break;
        }
        put(&mut node, format!("new-{number}").as_bytes(), Some(&[3; 260]));
        node.turn();
        node.now = node.now.plus_ms(20);
    }
    assert_eq!(segments_with(&disk, "long-14").len(), 2, "{:?} {:?}", node.engine, node.engine.stats());
    let image = disk.image(Loss::Process, 1);
    assert!(image.names().contains(&name), "{:?}", node.engine.segments_kept());
    check(&mut TestNode::open(&image, resting(), now).unwrap());
    for is_unreadable in [true, false] {
        let image = damaged(&image, &name, 2, is_unreadable);
        let error = TestNode::open(&image, resting(), now).err();
        assert!(matches!(&error, Some(OpenError::Corrupt { file, .. }) if *file == name), "{error:?}");
    }
}
