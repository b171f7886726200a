//! Records that are deleted while their copies are being written: the copies are dead from the start, and the deletes hide them.
use crate::reclaiming::{SEGMENT_BYTES, delete, holders, put, turn, write};
use crate::support::{TestNode, scanned, small};
use fawn_ds::internals::{Options, View};
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now};
use std::ops::Range;

const MOVED: u64 = 0;
/// Keys in the segment of the moved one.
const BESIDE: Range<u64> = 1..150;
/// A key of which nothing lives for long.
const OVERWRITTEN: u64 = 1_000;

fn options(options: Options) -> Options {
    Options { space_amplification_max_percent: 0, ..options }
}

/// A store and the next key that it does not have.
struct MovingStore {
    disk: SimDisk,
    options: Options,
    node: TestNode,
    next: u64,
}

impl MovingStore {
    /// A store that cleans whatever has dead records, and has done so once: survivors have a segment to be copied to. The segment with
    /// the moved key is live as a whole.
    fn new(options: Options) -> Self {
        let disk = SimDisk::new(SimOptions::instant(1));
        let node = TestNode::open(&disk, options.clone(), Now::at(1_000_000)).unwrap();
        let mut store = Self { disk, options, node, next: 10_000 };
        store.add();
        store.overwrite_for_a_segment();
        while store.node.engine.stats().segments_cleaned == 0 {
            store.add();
        }
        store.add_for_a_segment();
        store.put_together([MOVED].into_iter().chain(BESIDE), 256);
        store.add_for_a_segment();
        store.node.settle();
        assert_eq!(store.node.engine.stats().segments_cleaned, 1);
        store
    }

    /// Puts ten new keys in one frame, of which nothing is dead.
    fn add(&mut self) {
        self.put_together(self.next..self.next + 10, 1_000);
        self.next += 10;
        assert!(self.next < 11_000, "{:?}", self.node.engine);
    }

    fn put_together(&mut self, keys: impl Iterator<Item = u64>, len: usize) {
        keys.for_each(|key| _ = self.node.append(&[put(key, len)]).unwrap());
        turn(&mut self.node);
    }

    fn active_segment(&self) -> u64 {
        self.node.engine.watermarks().appended.0 / SEGMENT_BYTES
    }

    fn add_for_a_segment(&mut self) {
        let before = self.active_segment();
        while self.active_segment() == before {
            self.add();
        }
    }

    fn overwrite_for_a_segment(&mut self) {
        let before = self.active_segment();
        while self.active_segment() == before {
            write(&mut self.node, &[put(OVERWRITTEN, 256)]);
        }
    }

    /// Makes the moved key's segment worth cleaning. All of it is copied, and the write of the copies hangs.
    fn begin_copy(&mut self) {
        let cleaning_reads =
            |store: &Self| store.disk.counted(OpKind::Read) - store.node.engine.stats().verification_reads;
        let reads = cleaning_reads(self);
        self.put_together(BESIDE.step_by(2), 256);
        while cleaning_reads(self) == reads {
            self.add();
        }
        let (hung, moved) = (self.disk.hung(), self.node.engine.stats().moved_records);
        self.disk.fail_nth(OpKind::Write, 1, DeviceFault::Hang);
        (0..40).for_each(|_| turn(&mut self.node));
        self.disk.end_faults(OpKind::Write);
        assert_eq!((self.disk.hung() - hung, self.node.engine.stats().moved_records), (1, moved), "copies are written");
    }

    fn end_copy(&mut self) {
        let moved = self.node.engine.stats().moved_records;
        self.disk.release_hung();
        (0..40).for_each(|_| turn(&mut self.node));
        assert!(self.node.engine.stats().moved_records > moved + 50, "{:?}", self.node.engine.stats());
    }

    /// The moved key is deleted after a kill.
    fn assert_deleted(self) {
        let Self { disk, options, mut node, .. } = self;
        node.settle();
        let (now, checkpoints) = (node.now, node.engine.stats().checkpoints);
        disk.kill(1);
        let mut node = TestNode::open(&disk, options, now).unwrap();
        assert_eq!(node.report.checkpoint_entries.is_some(), checkpoints > 0);
        assert!(node.get(&put(MOVED, 0).key, View::Committed).unwrap().is_none());
    }
}

/// The record is copied while the delete waits for its verification, and other records are committed behind it. The delete is
/// confirmed before the copy is written.
#[test]
fn a_delete_stays_for_a_copy_that_was_made_before_the_delete_was_confirmed() {
    let mut store = MovingStore::new(options(scanned(Durability::Sync)));
    let of_put = holders(&store.disk, MOVED);
    store.disk.hang(OpKind::Read);
    store.node.append(&[delete(MOVED)]).unwrap();
    let beside_delete = store.next;
    store.add();
    store.disk.end_faults(OpKind::Read);
    assert_eq!((store.disk.hung(), store.node.engine.log_report().verifications_queued), (1, 1));
    let of_delete = holders(&store.disk, MOVED).into_iter().find(|name| !of_put.contains(name)).unwrap();
    store.add_for_a_segment();
    let after_delete = store.next;
    store.begin_copy();
    assert_eq!(store.node.engine.log_report().verifications_queued, 1);
    store.end_copy();
    // Now the segment of the delete is worth cleaning.
    store.put_together(beside_delete..after_delete, 1_000);
    while store.disk.names().contains(&of_delete) {
        write(&mut store.node, &[put(OVERWRITTEN, 256)]);
        assert!(store.node.engine.stats().appended_records < 5_000, "{:?}", store.node.engine);
    }
    let holders = holders(&store.disk, MOVED);
    assert!(!holders.is_empty() && !holders.contains(&of_put[0]), "the copy is still there: {holders:?}");
    store.assert_deleted();
}

/// The copy is behind the survivors' position of such a checkpoint, and the delete before that of the foreground: an opening would find
/// the copy alone.
#[test]
fn no_checkpoint_begins_between_a_delete_and_a_copy_that_is_being_written() {
    let options = options(Options { checkpoint_log_bytes_min: 1 << 20, ..small(Durability::Sync) });
    let mut store = MovingStore::new(options);
    store.begin_copy();
    assert_eq!(store.node.engine.stats().checkpoints, 0);
    write(&mut store.node, &[delete(MOVED)]);
    store.node.settle();
    // Nothing of the delete's segment is worth cleaning: a copy of the delete would be behind the position, too.
    store.add_for_a_segment();
    (0..16).for_each(|_| store.overwrite_for_a_segment());
    store.end_copy();
    (0..10).for_each(|_| turn(&mut store.node));
    assert!(store.node.engine.stats().checkpoints > 0, "one is due: {:?}", store.node.engine);
    store.assert_deleted();
}
