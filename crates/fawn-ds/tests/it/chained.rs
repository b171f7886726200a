//! Chained ranges: pending records across openings, commit marks, rollbacks, replay.
use crate::support::{RANGE, SECRET, TestNode, small};
use fawn_ds::internals::format::manifest::{DecodedManifest, ManifestEdit, decode_all, encode_commit};
use fawn_ds::internals::{EngineError, KeepReason, Options, RecordKind, RecordRef, Replay, View};
use fawn_flash::sim::OpKind;
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Epoch, KeyHash, Now, Version};

fn chained() -> Options {
    small(Durability::Sync)
}

fn version(epoch: u32, seq: u64) -> Version {
    Version::new(Epoch::new(epoch).unwrap(), seq).unwrap()
}

fn put(node: &mut TestNode, key: &[u8], value: &[u8], version: Version) {
    for _ in 0..100 {
        match node.engine.append(RANGE, KeyHash::of(&SECRET, key), &RecordRef::put(version, key, value)) {
            Err(EngineError::Overloaded) => {
                node.engine.submit(node.now);
                node.engine.wait(node.now, &mut Vec::new());
            }
            result => return result.unwrap(),
        }
    }
    panic!("the engine stays overloaded");
}

#[test]
fn a_sole_epoch_refuses_to_roll_back() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(1)).unwrap();
    put(&mut node, b"a", b"one", version(1, 1));
    sync(&mut node);
    node.engine.commit(RANGE, version(1, 1));
    put(&mut node, b"a", b"two", version(1, 2));
    sync(&mut node);
    let refused = node.engine.rollback(RANGE, version(1, 1));
    assert_eq!(refused, Err(EngineError::NotChained { range: RANGE }));
    assert_eq!(value(&mut node, b"a", View::Latest), Some(b"two".to_vec()), "nothing has changed");
    disk.crash(1);
    let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(1)).unwrap();
    assert_eq!(value(&mut node, b"a", View::Latest), Some(b"two".to_vec()));
}

/// In the mode `memory` commits do not wait for a sync, but an end of a sole epoch does: the manifest must not name a
/// base that a power loss takes away.
#[test]
fn an_ended_sole_epoch_keeps_its_base_in_every_mode() {
    for seed in 0..8 {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let mut node = TestNode::open(&disk, small(Durability::Memory), Now::at(1)).unwrap();
        for seq in 1..=20 {
            put(&mut node, b"a", &[seq as u8; 500], version(1, seq));
        }
        node.engine.commit(RANGE, version(1, 20));
        assert!(node.engine.progress(RANGE).synced < version(1, 20), "seed {seed}: nothing is left to sync");
        node.engine.end_sole_epoch(RANGE).unwrap();
        disk.crash(seed);
        let mut node = TestNode::open_in_chain(&disk, small(Durability::Memory), Now::at(1)).unwrap();
        assert_eq!(node.report.ranges[0].committed, version(1, 20), "seed {seed}");
        assert_eq!(value(&mut node, b"a", View::Committed), Some(vec![20; 500]), "seed {seed}");
    }
}

/// The manifest names the log's end as the base of a sole epoch that begins, so the log is synced before, in every
/// mode.
#[test]
fn a_begun_sole_epoch_keeps_its_base_in_every_mode() {
    for seed in 0..8 {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let mut node = TestNode::open_in_chain(&disk, small(Durability::Memory), Now::at(1)).unwrap();
        for seq in 1..=20 {
            put(&mut node, b"a", &[seq as u8; 500], version(1, seq));
        }
        node.engine.commit(RANGE, version(1, 20));
        assert!(node.engine.progress(RANGE).synced < version(1, 20), "seed {seed}: nothing is left to sync");
        node.engine.begin_sole_epoch(RANGE, Epoch::new(2).unwrap(), None).unwrap();
        disk.crash(seed);
        let mut node = TestNode::open_in_chain(&disk, small(Durability::Memory), Now::at(1)).unwrap();
        assert_eq!(node.report.ranges[0].committed, version(1, 20), "seed {seed}");
        assert_eq!(value(&mut node, b"a", View::Committed), Some(vec![20; 500]), "seed {seed}");
    }
}

/// No other member asks for records of a sole epoch, or for those before it.
#[test]
fn a_sole_epoch_retains_nothing_for_retransmission() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open_in_chain(&disk, chained(), Now::at(1)).unwrap();
    node.engine.set_retain_floor(RANGE, Version::ZERO);
    let write = |node: &mut TestNode, version| {
        put(node, b"a", &[7; 5000], version);
        sync(node);
        node.engine.commit(RANGE, version);
    };
    (1..=40).for_each(|seq| write(&mut node, version(1, seq)));
    assert_eq!(node.engine.replay_floor(RANGE), Version::ZERO);
    assert!(node.engine.segments_kept().contains_key(&KeepReason::Retained));
    node.engine.begin_sole_epoch(RANGE, Epoch::new(2).unwrap(), None).unwrap();
    assert_eq!(node.engine.replay_floor(RANGE), version(1, 40));
    for seq in 1..=40 {
        write(&mut node, version(2, seq));
        assert_eq!(node.engine.replay_floor(RANGE), version(2, seq));
    }
    let kept = node.engine.segments_kept();
    assert!(!kept.contains_key(&KeepReason::Retained), "{kept:?}");
    assert!(!kept.contains_key(&KeepReason::NewestMark), "no mark of an earlier epoch is needed: {kept:?}");
}

/// A mark keeps its segment only while commits need marks; an opening in a sole epoch still reads those before it.
#[test]
fn a_mark_from_before_a_sole_epoch_keeps_no_segment_after_an_opening() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open_in_chain(&disk, chained(), Now::at(1)).unwrap();
    let write = |node: &mut TestNode, version| {
        put(node, b"a", &[7; 5000], version);
        sync(node);
        node.engine.commit(RANGE, version);
    };
    write(&mut node, version(1, 1));
    sync(&mut node);
    assert_eq!(node.engine.segments_kept().get(&KeepReason::Open), Some(&1));
    node.engine.begin_sole_epoch(RANGE, Epoch::new(2).unwrap(), None).unwrap();
    drop(node);
    disk.crash(1);
    let mut node = TestNode::open_in_chain(&disk, chained(), Now::at(1)).unwrap();
    assert_eq!(node.engine.sole_epoch(RANGE), Epoch::new(2));
    (1..=40).for_each(|seq| write(&mut node, version(2, seq)));
    let kept = node.engine.segments_kept();
    assert!(!kept.contains_key(&KeepReason::NewestMark), "{kept:?}");
}

/// The end of a sole epoch in the manifest proves the same as a durable mark, so an idle log does not grow by a mark.
#[test]
fn an_ended_sole_epoch_needs_no_mark() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open(&disk, chained(), Now::at(1)).unwrap();
    put(&mut node, b"a", b"one", version(1, 1));
    sync(&mut node);
    node.engine.commit(RANGE, version(1, 1));
    node.engine.end_sole_epoch(RANGE).unwrap();
    let end = node.engine.watermarks().appended;
    (0..5).for_each(|_| sync(&mut node));
    assert_eq!(node.engine.watermarks().appended, end);
    drop(node);
    disk.crash(1);
    let mut node = TestNode::open_in_chain(&disk, chained(), Now::at(1)).unwrap();
    let end = node.engine.watermarks().appended;
    (0..5).for_each(|_| sync(&mut node));
    assert_eq!(node.engine.watermarks().appended, end, "nor after an opening");
    put(&mut node, b"a", b"two", version(2, 1));
    sync(&mut node);
    node.engine.commit(RANGE, version(2, 1));
    let end = node.engine.watermarks().appended;
    (0..5).for_each(|_| sync(&mut node));
    assert!(node.engine.watermarks().appended > end, "a later commit is marked");
}

/// A member of a chain has seen epochs far above the number of times that its store was opened.
#[test]
fn the_next_sole_epoch_is_above_all_of_the_log() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open_in_chain(&disk, chained(), Now::at(1)).unwrap();
    put(&mut node, b"a", b"one", version(9, 1));
    sync(&mut node);
    node.engine.commit(RANGE, version(9, 1));
    assert_eq!(node.engine.next_sole_epoch(RANGE), Epoch::new(10));
    node.engine.begin_sole_epoch(RANGE, Epoch::new(10).unwrap(), None).unwrap();
    assert_eq!(node.engine.next_sole_epoch(RANGE), Epoch::new(11));
}

#[test]
fn a_read_only_store_ends_no_sole_epoch() {
    let disk = SimDisk::new(SimOptions::default());
    let node = TestNode::open(&disk, chained(), Now::at(1)).unwrap();
    node.engine.close().unwrap();
    let options = Options { read_only: true, ..chained() };
    let mut node = TestNode::open(&disk, options, Now::at(1)).unwrap();
    let manifest = disk.contents("manifest");
    assert!(matches!(node.engine.end_sole_epoch(RANGE), Err(EngineError::Poisoned { .. })));
    assert!(node.engine.sole_epoch(RANGE).is_some());
    assert!(disk.contents("manifest") == manifest, "a read-only store writes nothing");
}

/// Flushes and syncs without committing, one second after the last time, so that a commit mark is written too.
fn sync(node: &mut TestNode) {
    node.now = node.now.plus_ms(1000);
    for _ in 0..200 {
        node.engine.submit(node.now);
        let mut events = Vec::new();
        node.engine.wait(node.now, &mut events);
        let marks = node.engine.watermarks();
        if marks.synced == marks.appended {
            return;
        }
    }
    panic!("not synced: {:?}", node.engine.watermarks());
}

fn value(node: &mut TestNode, key: &[u8], view: View) -> Option<Vec<u8>> {
    node.get(key, view).unwrap().map(|entry| entry.value)
}

#[test]
fn pending_stays_pending_across_openings() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open_in_chain(&disk, chained(), Now::at(1)).unwrap();
    put(&mut node, b"a", b"one", version(1, 1));
    put(&mut node, b"b", b"two", version(1, 2));
    sync(&mut node);
    node.engine.commit(RANGE, version(1, 1));
    put(&mut node, b"a", b"three", version(1, 3));
    sync(&mut node);
    disk.crash(3);
    let mut node = TestNode::open_in_chain(&disk, chained(), Now::at(1)).unwrap();
    assert_eq!(node.report.ranges[0].committed, version(1, 1));
    assert_eq!(node.report.ranges[0].recovered, version(1, 3));
    assert_eq!(value(&mut node, b"a", View::Committed), Some(b"one".to_vec()));
    assert_eq!(value(&mut node, b"a", View::Latest), Some(b"three".to_vec()));
    assert_eq!(value(&mut node, b"b", View::Committed), None);
    node.engine.rollback(RANGE, version(1, 2)).unwrap();
    assert_eq!(value(&mut node, b"a", View::Latest), Some(b"one".to_vec()));
    node.engine.commit(RANGE, version(1, 2));
    put(&mut node, b"c", b"four", version(2, 1));
    sync(&mut node);
    disk.crash(4);
    let mut node = TestNode::open_in_chain(&disk, chained(), Now::at(1)).unwrap();
    assert_eq!(node.report.ranges[0].committed, version(1, 2));
    assert_eq!(value(&mut node, b"a", View::Latest), Some(b"one".to_vec()), "rolled back for good");
    assert_eq!(value(&mut node, b"b", View::Committed), Some(b"two".to_vec()));
    assert_eq!(value(&mut node, b"c", View::Latest), Some(b"four".to_vec()));
}

#[test]
fn a_rolled_back_frame_on_its_way_does_not_certify_what_replaces_it() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open_in_chain(&disk, chained(), Now::at(1)).unwrap();
    put(&mut node, b"a", b"one", version(1, 1));
    sync(&mut node);
    put(&mut node, b"b", b"void", version(1, 2));
    node.engine.submit(node.now); // The first frame is in flight.
    node.engine.rollback(RANGE, version(1, 1)).unwrap();
    put(&mut node, b"b", b"two", version(1, 2));
    put(&mut node, b"c", b"three", version(1, 3));
    let mut events = Vec::new();
    node.engine.wait(node.now, &mut events); // Only the first frame completes.
    let progress = node.engine.progress(RANGE);
    assert_eq!(progress.synced, version(1, 1), "1.2 is in memory only: {progress:?}");
    sync(&mut node);
    assert_eq!(node.engine.progress(RANGE).synced, version(1, 3));
}

/// The same once it is flushed, and only its sync is on its way.
#[test]
fn the_sync_of_a_rolled_back_frame_does_not_count_for_what_replaces_it() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open_in_chain(&disk, small(Durability::EverySecond), Now::at(1)).unwrap();
    put(&mut node, b"a", b"one", version(1, 1));
    sync(&mut node);
    put(&mut node, b"b", b"void", version(1, 2));
    disk.hang(OpKind::Sync);
    while disk.hung() == 0 {
        node.engine.submit(node.now);
        node.engine.wait(node.now, &mut Vec::new());
        node.now = node.now.plus_ms(100);
    }
    let progress = node.engine.progress(RANGE);
    assert_eq!((progress.flushed, progress.synced), (version(1, 2), version(1, 1)));
    node.engine.rollback(RANGE, version(1, 1)).unwrap();
    put(&mut node, b"b", b"two", version(1, 2));
    disk.release_hung();
    node.engine.wait(node.now, &mut Vec::new()); // Only that sync completes.
    assert_eq!(disk.hung(), 0);
    let progress = node.engine.progress(RANGE);
    assert_eq!(progress.synced, version(1, 1), "1.2 is not synced: {progress:?}");
}

/// A rolled-back record is not synced, whatever the disk holds: a later record may have its version.
#[test]
fn a_rollback_takes_the_watermarks_back() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open_in_chain(&disk, chained(), Now::at(1)).unwrap();
    put(&mut node, b"a", b"one", version(1, 1));
    put(&mut node, b"a", b"void", version(1, 2));
    sync(&mut node);
    assert_eq!(node.engine.progress(RANGE).synced, version(1, 2));
    node.engine.rollback(RANGE, version(1, 1)).unwrap();
    put(&mut node, b"a", b"two", version(1, 2));
    let progress = node.engine.progress(RANGE);
    assert_eq!((progress.flushed, progress.synced), (version(1, 1), version(1, 1)));
    assert_eq!(progress.appended, version(1, 2));
}

#[test]
fn replay_gives_each_record_once_and_in_order() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open_in_chain(&disk, chained(), Now::at(1)).unwrap();
    node.engine.set_retain_floor(RANGE, Version::ZERO);
    for seq in 1..=600 {
        put(&mut node, format!("k{}", seq % 50).as_bytes(), &vec![seq as u8; (seq % 700) as usize], version(1, seq));
        if seq % 10 == 0 {
            sync(&mut node);
            node.engine.commit(RANGE, version(1, seq - 5));
        }
    }
    let (mut after, mut seen) = (version(1, 100), Vec::new());
    loop {
        let visit = |record: &RecordRef<'_>| {
            assert_eq!(record.kind, RecordKind::Put);
            let seq = record.version.seq();
            assert_eq!(record.value.len() as u64, seq % 700);
            seen.push(seq);
        };
        match node.engine.replay(RANGE, after, 20_000, visit).unwrap() {
            Replay::Records { through, .. } => after = through,
            Replay::UpToDate => break,
            Replay::Gone => panic!("the records were retained"),
            Replay::Read(plan) => {
                node.engine.read(plan, 42);
                let plan = node.wait_for_plan();
                node.engine.absorb(plan).unwrap();
            }
        }
    }
    assert_eq!(seen, (101..=600).collect::<Vec<_>>());
    node.engine.set_retain_floor(RANGE, version(1, 300));
    let gone = node.engine.replay(RANGE, version(1, 200), 1000, |_| {}).unwrap();
    assert!(matches!(gone, Replay::Gone), "{gone:?}");
}

#[test]
fn fewer_records_are_kept_to_send_again_from_then_on_and_never_more_than_the_options_say() {
    let disk = SimDisk::new(SimOptions::default());
    let options = || Options { retained_records_max: 20, ..chained() };
    let mut node = TestNode::open_in_chain(&disk, options(), Now::at(1)).unwrap();
    node.engine.set_retain_floor(RANGE, Version::ZERO);
    let write = |node: &mut TestNode, seq| {
        put(node, b"k", b"v", version(1, seq));
        sync(node);
        node.engine.commit(RANGE, version(1, seq));
    };
    (1..=30).for_each(|seq| write(&mut node, seq));
    assert_eq!(node.engine.replay_floor(RANGE), version(1, 10));
    node.engine.set_retained_max(5);
    assert_eq!(node.engine.replay_floor(RANGE), version(1, 25), "at once");
    write(&mut node, 31);
    assert_eq!(node.engine.replay_floor(RANGE), version(1, 26), "the floor stays there");
    drop(node);
    let mut node = TestNode::open_in_chain(&disk, options(), Now::at(2)).unwrap();
    let found = node.engine.replay_floor(RANGE);
    assert!(found <= version(1, 11), "an opening scans all segments: {found:?}");
    node.engine.set_needed_from(RANGE, None);
    node.engine.set_retained_max(usize::MAX);
    (32..=60).for_each(|seq| write(&mut node, seq));
    assert_eq!(node.engine.replay_floor(RANGE), version(1, 40));
}

/// A result that may be requested again outlives the bound on what is sent again, but not a larger one. Nothing copies it here.
#[test]
fn needed_records_are_kept_beyond_the_lowered_number() {
    let disk = SimDisk::new(SimOptions::default());
    let options = Options { retained_records_max: 20, ..chained() };
    let mut node = TestNode::open_in_chain(&disk, options, Now::at(1)).unwrap();
    node.engine.set_retain_floor(RANGE, Version::ZERO);
    node.engine.set_retained_max(5);
    let mut write = |through: u64, needed_from: Option<u64>, floor: u64| {
        node.engine.set_needed_from(RANGE, needed_from.map(|seq| version(1, seq)));
        for seq in node.engine.progress(RANGE).appended.seq() + 1..=through {
            put(&mut node, b"k", b"v", version(1, seq));
            sync(&mut node);
            node.engine.commit(RANGE, version(1, seq));
        }
        assert_eq!(node.engine.replay_floor(RANGE), version(1, floor), "through {through}");
    };
    write(8, None, 3);
    write(20, Some(6), 5);
    write(165, Some(6), 5);
    write(1_029, Some(6), 5);
    write(1_034, Some(6), 10);
    write(1_035, None, 1_030);
}

/// A restart replays all that the log keeps: one read per record would take seconds.
#[test]
fn a_cold_replay_reads_many_records_at_once() {
    // All records stay pending.
    let options = || Options { memory_bytes: 2 << 20, ..chained() };
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open_in_chain(&disk, options(), Now::at(1)).unwrap();
    for seq in 1..=400 {
        put(&mut node, format!("k{seq}").as_bytes(), &[seq as u8; 500], version(1, seq));
        if seq % 20 == 0 {
            sync(&mut node);
        }
    }
    drop(node);
    let mut node = TestNode::open_in_chain(&disk, options(), Now::at(1)).unwrap();
    let (before, mut seen, mut after) = (node.engine.stats().reads, 0, node.engine.replay_floor(RANGE));
    loop {
        let visit = |record: &RecordRef<'_>| {
            seen += 1;
            assert_eq!((record.version.seq(), record.value), (seen, &[seen as u8; 500][..]));
        };
        match node.engine.replay(RANGE, after, 1 << 20, visit).unwrap() {
            Replay::Records { through, .. } => after = through,
            Replay::UpToDate => break,
            Replay::Gone => panic!("the records were retained"),
            Replay::Read(plan) => {
                node.engine.read(plan, 42);
                let plan = node.wait_for_plan();
                node.engine.absorb(plan).unwrap();
            }
        }
    }
    let reads = node.engine.stats().reads - before;
    assert_eq!(seen, 400);
    assert!(reads <= 400 / 50, "{reads} reads");
}

#[test]
fn clears_rollbacks_and_marks_survive_openings_in_any_order() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open_in_chain(&disk, chained(), Now::at(1)).unwrap();
    let reopen = |node: TestNode, seed: u64| {
        drop(node);
        disk.crash(seed);
        TestNode::open_in_chain(&disk, chained(), Now::at(1)).unwrap()
    };
    put(&mut node, b"a", b"one", version(1, 1));
    put(&mut node, b"b", b"two", version(1, 2));
    sync(&mut node);
    node.engine.commit(RANGE, version(1, 2));
    // A pending clear hides records from the latest view only, and stays pending across an opening.
    node.engine.clear(RANGE, version(1, 3)).unwrap();
    put(&mut node, b"c", b"three", version(1, 4));
    sync(&mut node);
    let mut node = reopen(node, 1);
    assert_eq!(node.report.ranges[0].committed, version(1, 2), "the mark was logged with the clear");
    assert_eq!(value(&mut node, b"a", View::Committed), Some(b"one".to_vec()));
    assert_eq!(value(&mut node, b"a", View::Latest), None, "a clear is pending");
    assert_eq!(value(&mut node, b"c", View::Latest), Some(b"three".to_vec()));
    assert_eq!(node.engine.len(RANGE), 2);
    // After a rollback the clear has no effect, also after another opening.
    node.engine.rollback(RANGE, version(1, 2)).unwrap();
    assert_eq!(value(&mut node, b"a", View::Latest), Some(b"one".to_vec()));
    sync(&mut node);
    let mut node = reopen(node, 2);
    assert_eq!(node.report.ranges[0].recovered, version(1, 2), "the rolled-back record is gone");
    assert_eq!(value(&mut node, b"a", View::Latest), Some(b"one".to_vec()));
    assert_eq!(value(&mut node, b"c", View::Latest), None);
    // A committed clear, followed by an uncommitted record.
    node.engine.clear(RANGE, version(3, 3)).unwrap();
    put(&mut node, b"d", b"four", version(3, 4));
    sync(&mut node);
    node.engine.commit(RANGE, version(3, 3));
    put(&mut node, b"d", b"five", version(3, 5));
    sync(&mut node);
    for seed in 3..6 {
        node = reopen(node, seed);
        assert_eq!(node.report.ranges[0].committed, version(3, 3), "seed {seed}");
        assert_eq!(node.report.ranges[0].recovered, version(3, 5), "seed {seed}");
        assert_eq!(node.engine.len(RANGE), 0, "seed {seed}: emptied");
        assert_eq!(value(&mut node, b"a", View::Committed), None, "seed {seed}");
        assert_eq!(value(&mut node, b"d", View::Committed), None, "seed {seed}");
        assert_eq!(value(&mut node, b"d", View::Latest), Some(b"five".to_vec()), "seed {seed}");
    }
    node.engine.commit(RANGE, version(3, 5));
    assert_eq!(node.engine.len(RANGE), 1);
    assert_eq!(value(&mut node, b"d", View::Committed), Some(b"five".to_vec()));
}

/// A listed clear stands for its record: nothing that came before it counts, whether that record is in the log or not.
#[test]
fn a_clear_that_the_manifest_lists_invalidates_what_came_before() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open(&disk, chained(), Now::at(1)).unwrap();
    put(&mut node, b"before", b"one", version(1, 1));
    put(&mut node, b"after", b"two", version(1, 2));
    sync(&mut node);
    drop(node);
    let mut manifest = disk.contents("manifest").unwrap();
    let DecodedManifest { header, valid_len, .. } = decode_all(&manifest).unwrap();
    manifest.truncate(valid_len as usize);
    let clear = ManifestEdit::ClearRange { range: RANGE, version: version(1, 1) };
    encode_commit(&header, &[clear], valid_len, valid_len, &mut manifest);
    disk.put("manifest", &manifest);
    let mut node = TestNode::open(&disk, chained(), Now::at(1)).unwrap();
    assert_eq!(node.report.ranges[0].recovered, version(1, 2));
    assert_eq!(value(&mut node, b"before", View::Committed), None);
    assert_eq!(value(&mut node, b"after", View::Committed), Some(b"two".to_vec()));
}
