//! Dropped segments: never while a crash would still need them, and not delayed by other ranges' records elsewhere.
use crate::support::{RANGE, TestNode, small};
use fawn_ds::internals::format::manifest::decode_all;
use fawn_ds::internals::format::record::Stored;
use fawn_ds::internals::format::scan::{ScanInput, Scanner};
use fawn_ds::internals::format::{FRAMES_OFFSET, segment};
use fawn_ds::internals::{EngineError, KeepReason, Options, RecordKind, RecordRef, View};
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{ClientTag, Durability, Epoch, KeyRange, Now, RangeId, Version};

const OTHER: RangeId = RangeId(8);

fn chained(durability: Durability) -> Options {
    small(durability)
}

fn version(seq: u64) -> Version {
    Version::new(Epoch::new(1).unwrap(), seq).unwrap()
}

/// Runs iterations without a commit; in the second half the time advances by one second each.
fn turns(node: &mut TestNode, count: u32) {
    for i in 0..count {
        node.engine.submit(node.now);
        node.engine.poll(node.now, &mut Vec::new());
        node.now = node.now.plus_ms(if i < count / 2 { 0 } else { 1100 });
    }
}

fn append(node: &mut TestNode, range: RangeId, record: &RecordRef<'_>) {
    for _ in 0..1000 {
        match node.engine.append(range, TestNode::hash(record.key), record) {
            Err(EngineError::Overloaded) => {
                node.engine.submit(node.now);
                node.engine.wait(node.now, &mut Vec::new());
            }
            result => return result.unwrap(),
        }
    }
    panic!("the engine stays overloaded");
}

/// Four keys fill a segment, and newer values of them fill the next ones. Once these are committed, the first segment
/// is dead.
#[test]
fn a_segment_stays_until_the_commit_that_its_records_died_by_is_durable() {
    for durability in [Durability::Sync, Durability::EverySecond] {
        for turns_after in 0..8 {
            let disk = SimDisk::new(SimOptions::instant(1));
            let mut node = TestNode::open_in_chain(&disk, chained(durability), Now::at(1)).unwrap();
            for seq in 1..=8 {
                let key = [(seq % 4) as u8];
                append(&mut node, RANGE, &RecordRef::put(version(seq), &key, &vec![seq as u8; 15_000]));
                turns(&mut node, 10);
                if seq <= 4 {
                    node.engine.commit(RANGE, version(seq));
                }
            }
            let before = node.engine.log_report().segments;
            node.engine.commit(RANGE, version(8));
            for _ in 0..turns_after {
                node.engine.submit(node.now);
                node.engine.poll(node.now, &mut Vec::new());
                node.now = node.now.plus_ms(300);
            }
            // The segment is dropped without any other write, because a commit mark is written for it.
            let is_dropped = node.engine.log_report().segments < before;
            assert!(is_dropped || turns_after < 7, "{durability:?}: {:?}", node.engine.segments_kept());
            disk.crash(1);
            let context = format!("{durability:?}, {turns_after} turns");
            let mut node = TestNode::open_in_chain(&disk, chained(durability), Now::at(1)).unwrap();
            let (committed, recovered) = (node.report.ranges[0].committed, node.report.ranges[0].recovered);
            assert!(committed >= version(4) && recovered == version(8), "{context}: {:?}", node.report.ranges);
            for seq in 5..=8 {
                let newest = if committed == version(8) { seq } else { seq - 4 };
                for (view, seq) in [(View::Committed, newest), (View::Latest, seq)] {
                    let found = node.get(&[(seq % 4) as u8], view).unwrap().map(|entry| entry.version);
                    assert_eq!(found, Some(version(seq)), "{context}: {view:?}");
                }
            }
        }
    }
}

/// One range keeps its first records for retransmission; another overwrites and deletes continuously.
#[test]
fn an_idle_range_does_not_keep_the_later_segments_of_others() {
    for is_retained in [false, true] {
        let disk = SimDisk::new(SimOptions::default());
        let mut node = TestNode::open_in_chain(&disk, chained(Durability::Sync), Now::at(1)).unwrap();
        node.engine.add_range(OTHER, KeyRange::ALL).unwrap();
        if is_retained {
            node.engine.set_retain_floor(RANGE, Version::ZERO);
        }
        // Three of these records leave no space in a segment for one of the other range, whose dead records would have
        // to stay hidden.
        for seq in 1..=9 {
            append(&mut node, RANGE, &RecordRef::put(version(seq), &[b'a' + seq as u8], &[seq as u8; 15_900]));
        }
        node.settle();
        for seq in 1..=200 {
            let key = [(seq % 3) as u8];
            let record = match seq % 5 {
                0 => RecordRef::bare(RecordKind::Tombstone, version(seq), &key),
                _ => RecordRef::put(version(seq), &key, &[7; 14_000]),
            };
            append(&mut node, OTHER, &record);
            turns(&mut node, 4);
            node.engine.commit(OTHER, node.engine.progress(OTHER).synced);
            node.engine.set_retain_floor(OTHER, node.engine.progress(OTHER).committed);
        }
        turns(&mut node, 20);
        let (kept, segments) = (node.engine.segments_kept(), node.engine.log_report().segments);
        assert!(segments <= 7, "retained: {is_retained}: {segments} segments, {kept:?}");
        disk.crash(3);
        let mut node = TestNode::open_in_chain(&disk, chained(Durability::Sync), Now::at(9)).unwrap();
        for seq in 1..=9 {
            let entry = node.get(&[b'a' + seq as u8], View::Committed).unwrap();
            assert_eq!(entry.map(|entry| entry.version), Some(version(seq)));
        }
    }
}

/// A record that fills a quarter of a segment and is never live.
fn append_result(node: &mut TestNode, range: RangeId, seq: u64) {
    let tag = ClientTag { session: 1, seq };
    let record = RecordRef { tag, result: &[9; 15_000], ..RecordRef::bare(RecordKind::Result, version(seq), b"") };
    append(node, range, &record);
    turns(node, 4);
}

/// Segments that another range keeps do not hide the later ones from the examination that a commit causes.
#[test]
fn all_segments_that_a_commit_releases_are_dropped_although_the_first_ones_stay() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open_in_chain(&disk, chained(Durability::Sync), Now::at(1)).unwrap();
    node.engine.add_range(OTHER, KeyRange::ALL).unwrap();
    node.engine.set_retain_floor(OTHER, Version::ZERO);
    for seq in 1..=8 {
        append_result(&mut node, RANGE, seq);
        append(&mut node, OTHER, &RecordRef::put(version(seq), b"key", &[7; 15_000]));
        turns(&mut node, 4);
        node.engine.commit(OTHER, version(seq));
    }
    (9..=28).for_each(|seq| append_result(&mut node, RANGE, seq));
    turns(&mut node, 8);
    assert_eq!(node.engine.stats().segments_dropped, 0);
    node.engine.commit(RANGE, version(28));
    turns(&mut node, 20);
    let (dropped, kept) = (node.engine.stats().segments_dropped, node.engine.segments_kept());
    assert!(dropped >= 4, "{dropped} segments, {kept:?}");
}

/// A commit may be the last event of a range: nothing is appended or synced after it.
#[test]
fn a_commit_alone_releases_the_segments_of_a_sole_epoch() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(1)).unwrap();
    (1..=16).for_each(|seq| append_result(&mut node, RANGE, seq));
    turns(&mut node, 8);
    assert_eq!((node.engine.progress(RANGE).synced, node.engine.stats().segments_dropped), (version(16), 0));
    node.engine.commit(RANGE, version(16));
    turns(&mut node, 8);
    let (dropped, kept) = (node.engine.stats().segments_dropped, node.engine.segments_kept());
    assert!(dropped >= 2, "{dropped} segments, {kept:?}");
}

/// A rollback may be the last event of a range: what it took back keeps no segment.
#[test]
fn a_rollback_alone_releases_the_segments_of_pending_records() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open_in_chain(&disk, chained(Durability::Sync), Now::at(1)).unwrap();
    (1..=16).for_each(|seq| append_result(&mut node, RANGE, seq));
    turns(&mut node, 8);
    assert_eq!(node.engine.stats().segments_dropped, 0, "none of the records is committed");
    node.engine.rollback(RANGE, Version::ZERO).unwrap();
    turns(&mut node, 20);
    let (dropped, kept) = (node.engine.stats().segments_dropped, node.engine.segments_kept());
    assert!(dropped >= 2, "{dropped} segments, {kept:?}");
}

/// A deleted record keeps the segment of its tombstone, which is dropped with it, although the range is idle.
#[test]
fn a_segment_that_hides_a_record_is_dropped_with_it() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open_in_chain(
        &disk,
        Options { space_amplification_max_percent: u64::MAX, ..chained(Durability::Sync) },
        Now::at(1),
    )
    .unwrap();
    node.engine.add_range(OTHER, KeyRange::ALL).unwrap();
    append(&mut node, RANGE, &RecordRef::put(version(1), b"key", b"value"));
    append_result(&mut node, OTHER, 1);
    (2..=5).for_each(|seq| append_result(&mut node, RANGE, seq));
    append(&mut node, RANGE, &RecordRef::bare(RecordKind::Tombstone, version(6), b"key"));
    (7..=14).for_each(|seq| append_result(&mut node, RANGE, seq));
    node.engine.commit(RANGE, version(14));
    turns(&mut node, 20);
    let (before, kept) = (node.engine.stats().segments_dropped, node.engine.segments_kept());
    assert_eq!((kept.get(&KeepReason::Pending), kept.get(&KeepReason::Hides)), (Some(&1), Some(&1)), "{kept:?}");
    node.engine.commit(OTHER, version(1));
    turns(&mut node, 20);
    assert_eq!(node.engine.stats().segments_dropped, before + 2, "{:?}", node.engine.segments_kept());
}

/// A rollback hides the records that it takes back. Also after an opening, its segment stays as long as theirs: a later
/// commit mark would otherwise make them committed.
#[test]
fn a_rollback_stays_as_long_as_what_it_takes_back() {
    let disk = SimDisk::new(SimOptions::instant(1));
    // Cleaning would free the segment that the rollback waits for.
    let options = || Options { space_amplification_max_percent: u64::MAX, ..chained(Durability::Sync) };
    let mut node = TestNode::open_in_chain(&disk, options(), Now::at(1)).unwrap();
    node.engine.add_range(OTHER, KeyRange::ALL).unwrap();
    append(&mut node, RANGE, &RecordRef::put(version(1), b"kept", b"value"));
    append(&mut node, RANGE, &RecordRef::put(version(2), b"taken back", b"value"));
    (1..=5).for_each(|seq| append_result(&mut node, OTHER, seq));
    node.engine.commit(RANGE, version(1));
    node.engine.rollback(RANGE, version(1)).unwrap();
    (6..=12).for_each(|seq| append_result(&mut node, OTHER, seq));
    disk.crash(1);
    let mut node = TestNode::open_in_chain(&disk, options(), Now::at(1)).unwrap();
    node.engine.set_retain_floor(RANGE, version(1));
    node.engine.set_retain_floor(OTHER, version(12));
    append(&mut node, RANGE, &RecordRef::put(version(3), b"later", b"value"));
    (13..=28).for_each(|seq| append_result(&mut node, OTHER, seq));
    node.engine.commit(RANGE, version(3));
    node.engine.commit(OTHER, version(28));
    node.engine.set_retain_floor(RANGE, version(3));
    node.engine.set_retain_floor(OTHER, version(28));
    turns(&mut node, 20);
    let (dropped, kept) = (node.engine.stats().segments_dropped, node.engine.segments_kept());
    assert!(dropped >= 2 && kept.get(&KeepReason::Hides) == Some(&1), "{dropped} dropped, {kept:?}");
    disk.crash(2);
    let mut node = TestNode::open_in_chain(&disk, chained(Durability::Sync), Now::at(1)).unwrap();
    assert_eq!(node.report.ranges[0].committed, version(3));
    for (key, is_there) in [(&b"kept"[..], true), (b"taken back", false), (b"later", true)] {
        assert_eq!(node.get(key, View::Latest).unwrap().is_some(), is_there, "{key:?}");
    }
}

/// A crash between the listing of a range and its first commit mark, or no space for that mark.
#[test]
fn nothing_of_a_range_counts_as_committed_without_a_mark() {
    let disk = SimDisk::new(SimOptions::default());
    drop(TestNode::open_in_chain(&disk, chained(Durability::Sync), Now::at(1)).unwrap());
    disk.crash(1);
    let mut node = TestNode::open_in_chain(&disk, chained(Durability::Sync), Now::at(1)).unwrap();
    append(&mut node, RANGE, &RecordRef::put(version(1), b"key", b"not committed"));
    turns(&mut node, 10);
    assert_eq!(node.engine.progress(RANGE).synced, version(1));
    disk.crash(2);
    let mut node = TestNode::open_in_chain(&disk, chained(Durability::Sync), Now::at(1)).unwrap();
    let found = node.report.ranges[0];
    assert_eq!((found.committed, found.recovered), (Version::ZERO, version(1)));
    assert_eq!(node.get(b"key", View::Committed).unwrap(), None);
    assert!(node.get(b"key", View::Latest).unwrap().is_some());
}

#[test]
fn a_range_is_added_under_back_pressure() {
    let disk = SimDisk::new(SimOptions::instant(3));
    let options = Options { segment_bytes: 8 << 20, ..chained(Durability::Sync) };
    let mut node = TestNode::open_in_chain(&disk, options.clone(), Now::at(1)).unwrap();
    // Large records, then small ones, without an iteration, until not even a mark fits.
    let mut seq = 0;
    for len in [12_000, 10, 0] {
        let value = vec![7; len];
        loop {
            let key = (seq + 1_u64).to_be_bytes();
            match node.engine.append(RANGE, TestNode::hash(&key), &RecordRef::put(version(seq + 1), &key, &value)) {
                Ok(()) => seq += 1,
                Err(error) => break assert_eq!(error, EngineError::Overloaded),
            }
            assert!(seq < 100_000, "the engine does not become overloaded");
        }
    }
    node.engine.add_range(OTHER, KeyRange::ALL).unwrap();
    append(&mut node, OTHER, &RecordRef::put(version(1), b"key", b"not committed"));
    turns(&mut node, 10);
    assert_eq!(node.engine.progress(OTHER).synced, version(1));
    disk.crash(1);
    let node = TestNode::open_in_chain(&disk, options, Now::at(1)).unwrap();
    let found = node.report.ranges.iter().find(|found| found.range == OTHER).unwrap();
    assert_eq!((found.committed, found.recovered), (Version::ZERO, version(1)));
}

/// Commit marks in all segments.
fn marks(disk: &SimDisk) -> usize {
    let mut marks = 0;
    let state = decode_all(&disk.contents("manifest").unwrap()).unwrap().state;
    for (slot, entry) in state.segments {
        let bytes = disk.contents(&segment::file_name(slot, entry.uuid)).unwrap();
        let input = ScanInput {
            uuid: entry.uuid,
            sequence: entry.sequence,
            segment_bytes: 64 << 10,
            sealed_len: entry.sealed_len(),
        };
        let mut count = |_: u32, stored: &Stored<'_>| {
            marks += usize::from(stored.record.kind == RecordKind::CommitMark);
        };
        Scanner::new(input).push(&bytes[FRAMES_OFFSET as usize..], &mut count);
    }
    marks
}

#[test]
fn a_range_is_marked_once_a_second_and_once_more_when_it_rests() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open_in_chain(&disk, chained(Durability::Sync), Now::at(1)).unwrap();
    for seq in 1..=100 {
        append(&mut node, RANGE, &RecordRef::put(version(seq), b"key", b"value"));
        node.turn();
        node.turn();
        node.now = node.now.plus_ms(50);
    }
    let busy = marks(&disk);
    assert!((5..=6).contains(&busy), "{busy} marks in five seconds");
    for _ in 0..100 {
        node.now = node.now.plus_ms(100);
        node.turn();
    }
    assert_eq!(marks(&disk), busy + 1, "an idle engine writes one mark of the last commit");
    disk.crash(1);
    let node = TestNode::open_in_chain(&disk, chained(Durability::Sync), Now::at(1)).unwrap();
    assert_eq!(node.report.ranges[0].committed, version(100));
}

/// A drop that waits for a mark gets one, and later commits wait for theirs again.
#[test]
fn a_mark_for_a_drop_does_not_make_marks_more_frequent() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open_in_chain(&disk, chained(Durability::Sync), Now::at(1)).unwrap();
    (1..=16).for_each(|seq| append_result(&mut node, RANGE, seq));
    node.engine.commit(RANGE, version(16));
    turns(&mut node, 8);
    assert!(node.engine.stats().segments_dropped >= 2, "{:?}", node.engine.segments_kept());
    let before = marks(&disk);
    for seq in 17..=56 {
        append(&mut node, RANGE, &RecordRef::put(version(seq), b"key", b"value"));
        node.turn();
        node.turn();
        node.now = node.now.plus_ms(50);
    }
    let written = marks(&disk) - before;
    assert!((1..=3).contains(&written), "{written} marks in two seconds");
}

/// The newest record of a sole epoch is all that says how far the range is committed: a chain that it joins must not
/// believe that it ends earlier.
#[test]
fn the_newest_record_of_a_sole_epoch_stays_though_it_is_dead() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(1)).unwrap();
    node.engine.add_range(OTHER, KeyRange::ALL).unwrap();
    node.engine.begin_sole_epoch(OTHER, Epoch::new(1).unwrap(), None).unwrap();
    let mut seq = 0;
    let mut fill = |node: &mut TestNode, count: u64| {
        for _ in 0..count {
            seq += 1;
            append(node, OTHER, &RecordRef::put(version(seq), b"over and over", &[1; 9000]));
            node.turn();
            node.engine.commit(OTHER, node.engine.progress(OTHER).synced);
        }
        turns(node, 4);
    };
    append(&mut node, RANGE, &RecordRef::put(version(1), b"k", b"v"));
    fill(&mut node, 8);
    append(&mut node, RANGE, &RecordRef::bare(RecordKind::Tombstone, version(2), b"k"));
    fill(&mut node, 24);
    assert_eq!(
        node.engine.segments_kept().get(&KeepReason::NewestRecord),
        Some(&1),
        "{:?}",
        node.engine.segments_kept()
    );
    assert!(node.engine.stats().segments_dropped >= 2, "the put's segment and others went");
    disk.crash(1);
    let mut node = TestNode::open(&disk, small(Durability::Sync), Now::at(9)).unwrap();
    assert_eq!(node.report.ranges[0].recovered, version(2), "the end of the log is known");
    // The manifest says so from now on.
    turns(&mut node, 8);
    assert_eq!(node.engine.segments_kept().get(&KeepReason::NewestRecord), None, "{:?}", node.engine.segments_kept());
    disk.crash(2);
    let node = TestNode::open(&disk, small(Durability::Sync), Now::at(9)).unwrap();
    assert_eq!(node.report.ranges[0].recovered, version(2));
}

/// Deletes fill the reserve of a full device. The records that they make dead are freed by a mark, which still fits.
#[test]
fn a_full_chained_store_gets_space_back_by_deletes() {
    for seed in 0..12 {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let mut node = TestNode::open_in_chain(&disk, chained(Durability::Sync), Now::at(1)).unwrap();
        let (is_retained, is_needed) = (seed >= 6, seed >= 9);
        if is_retained {
            node.engine.set_retain_floor(RANGE, Version::ZERO);
        }
        disk.set_capacity_bytes(Some((10 + seed % 3) * (64 << 10)));
        let mut puts = 0_u64;
        let mut seq = 0;
        let mut write = |node: &mut TestNode, key: u64, is_put: bool| {
            let (key, value) = (key.to_be_bytes(), [7; 900]);
            let record = match is_put {
                true => RecordRef::put(version(seq + 1), &key, &value),
                false => RecordRef::bare(RecordKind::Tombstone, version(seq + 1), &key),
            };
            // A write waits for a second, at most, for copies of results that this host never makes.
            for _ in 0..300 {
                match node.engine.append(RANGE, TestNode::hash(&key), &record) {
                    Err(EngineError::Overloaded) => {
                        node.turn();
                        node.now = node.now.plus_ms(5);
                    }
                    Ok(()) => {
                        seq += 1;
                        return Ok(());
                    }
                    result => return result,
                }
            }
            panic!("seed {seed}: the engine stays overloaded: {:?}", node.engine);
        };
        while write(&mut node, puts, true).is_ok() {
            puts += 1;
            // The last few operations are open.
            node.engine.set_needed_from(RANGE, is_needed.then(|| version(puts.saturating_sub(80).max(1))));
            node.turn();
            node.now = node.now.plus_ms(20);
            assert!(puts < 10_000, "seed {seed}: the device does not become full");
        }
        // A segment has 65 of these records. All that sealed segments have was given up before a write was refused, unless
        // results in them are needed.
        let progress = node.engine.progress(RANGE);
        let retained = progress.committed.seq() - node.engine.replay_floor(RANGE).seq();
        let expected = if is_needed { 80..=145 } else { 0..=65 };
        assert!(expected.contains(&retained), "seed {seed}: {retained} records are retained");
        // As many deletes as fit, without a commit between them, so that no mark is written.
        let mut deleted = 0;
        while deleted < puts && write(&mut node, deleted, false).is_ok() {
            deleted += 1;
            node.engine.submit(node.now);
            node.engine.wait(node.now, &mut Vec::new());
        }
        for _ in 0..20 {
            node.turn();
            node.now = node.now.plus_ms(200);
        }
        assert!(deleted > 64, "seed {seed}: {deleted} deletes");
        let since = node.now;
        while deleted < puts / 2 {
            deleted += u64::from(write(&mut node, deleted, false).is_ok());
            node.turn();
            node.now = node.now.plus_ms(20);
            assert!(node.now.mono.ms_since(since.mono) < 60_000, "seed {seed}: {:?}", node.engine);
        }
        assert_eq!(write(&mut node, 99_999, true), Ok(()), "seed {seed}: {:?}", node.engine.segments_kept());
    }
}

/// Deletes of a full device, of any length, leave space for the mark without which nothing that they made dead is freed.
#[test]
fn deletes_leave_space_for_the_mark_that_frees_what_they_deleted() {
    for (segments, value_len) in (11..=16).flat_map(|segments| [(segments, 900), (segments, 14_000)]) {
        let disk = SimDisk::new(SimOptions::instant(segments));
        let durabilities = [Durability::Sync, Durability::EverySecond, Durability::Memory];
        let durability = durabilities[segments as usize % 3];
        let mut node = TestNode::open_in_chain(&disk, chained(durability), Now::at(1)).unwrap();
        disk.set_capacity_bytes(Some(segments * (64 << 10)));
        let (mut seq, value) = (0, vec![7; value_len]);
        let mut write = |node: &mut TestNode, key: &[u8], is_put: bool, commits: bool| {
            let record = match is_put {
                true => RecordRef::put(version(seq + 1), key, &value),
                false => RecordRef::bare(RecordKind::Tombstone, version(seq + 1), key),
            };
            for _ in 0..300 {
                match node.engine.append(RANGE, TestNode::hash(key), &record) {
                    Err(EngineError::Overloaded) => {
                        node.engine.submit(node.now);
                        node.engine.wait(node.now, &mut Vec::new());
                        node.now = node.now.plus_ms(5);
                        if commits {
                            node.commit();
                        }
                    }
                    result => {
                        seq += u64::from(result.is_ok());
                        return result.is_ok();
                    }
                }
            }
            panic!("{segments} segments: the engine stays overloaded: {:?}", node.engine);
        };
        let mut puts = 0_u64;
        while write(&mut node, &puts.to_be_bytes(), true, true) {
            puts += 1;
            node.turn();
            node.now = node.now.plus_ms(20);
        }
        // Half of each segment, then keys that fill what is left to deletes.
        let mut deleted = 0;
        while deleted < puts && write(&mut node, &deleted.to_be_bytes(), false, false) {
            deleted += 2;
        }
        for len in (16..=12_000).rev().step_by(8) {
            while write(&mut node, &vec![b'k'; len], false, false) {}
        }
        let since = node.now;
        while deleted < puts || !write(&mut node, b"new", true, true) {
            if deleted < puts && write(&mut node, &deleted.to_be_bytes(), false, true) {
                deleted += 2;
            }
            node.turn();
            node.now = node.now.plus_ms(20);
            let context = format!("{segments} segments, values of {value_len}, {deleted} of {puts}");
            let kept = node.engine.segments_kept();
            assert!(node.now.mono.ms_since(since.mono) < 60_000, "{context}: {kept:?}");
        }
    }
}

/// The deletes of a segment are of many ranges, each of which needs a commit mark, and a sync comes once a second.
#[test]
fn a_full_member_of_many_ranges_marks_them_all_at_once() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open_in_chain(&disk, chained(Durability::EverySecond), Now::at(1)).unwrap();
    let ranges: Vec<RangeId> = std::iter::once(RANGE).chain((100..131).map(RangeId)).collect();
    for &range in &ranges[1..] {
        node.engine.add_range(range, KeyRange::ALL).unwrap();
    }
    disk.set_capacity_bytes(Some(12 * (64 << 10)));
    let commit_all = |node: &mut TestNode| {
        node.turn();
        for &range in &ranges {
            let progress = node.engine.progress(range);
            node.engine.commit(range, progress.watermark_for(Durability::EverySecond));
        }
    };
    let write = |node: &mut TestNode, range: RangeId, is_put: bool, key: u64| {
        let (key, value) = (key.to_be_bytes(), [7; 900]);
        let version = version(node.engine.progress(range).appended.seq() + 1);
        let record = match is_put {
            true => RecordRef::put(version, &key, &value),
            false => RecordRef::bare(RecordKind::Tombstone, version, &key),
        };
        for _ in 0..300 {
            match node.engine.append(range, TestNode::hash(&key), &record) {
                Err(EngineError::Overloaded) => {
                    commit_all(node);
                    node.now = node.now.plus_ms(5);
                }
                result => return result,
            }
        }
        panic!("the engine stays overloaded: {:?}", node.engine);
    };
    let mut puts = 0;
    while write(&mut node, ranges[puts % ranges.len()], true, puts as u64).is_ok() {
        puts += 1;
        commit_all(&mut node);
        node.now = node.now.plus_ms(20);
        assert!(puts < 10_000, "the device does not become full");
    }
    // All keys of the first two segments.
    for key in 0..150 {
        write(&mut node, ranges[key % ranges.len()], false, key as u64).unwrap();
    }
    // Until the sync, each commit examines the dead segments again.
    let (since, bytes) = (node.now, node.engine.stats().record_bytes);
    while let Err(error) = write(&mut node, RANGE, true, 99_999) {
        assert_eq!(error, EngineError::StoreFull);
        commit_all(&mut node);
        node.now = node.now.plus_ms(20);
        assert!(node.now.mono.ms_since(since.mono) < 5_000, "{:?}", node.engine.segments_kept());
    }
    let bytes = node.engine.stats().record_bytes - bytes;
    assert!(bytes < 4_000, "{bytes} bytes of marks and a put for {} ranges", ranges.len());
}

/// Appends and commits a record. A store that is full fails the test.
fn write(node: &mut TestNode, range: RangeId, record: &RecordRef<'_>) {
    for _ in 0..5000 {
        match node.engine.append(range, TestNode::hash(record.key), record) {
            Err(EngineError::Overloaded) => {
                node.turn();
                node.now = node.now.plus_ms(1);
            }
            Ok(()) => {
                node.turn();
                node.now = node.now.plus_ms(5);
                return node.engine.commit(range, node.engine.progress(range).synced);
            }
            Err(error) => panic!("{error} at {:?}: {:?}", record.version, node.engine),
        }
    }
    panic!("the engine stays overloaded: {:?}", node.engine);
}

fn of_capacity(segments: u64) -> Options {
    Options { capacity_bytes: Some(segments * (64 << 10)), ..chained(Durability::Sync) }
}

fn segment_files(disk: &SimDisk) -> u64 {
    disk.names().iter().filter(|name| name.starts_with("segment-")).count() as u64
}

/// Members of a chain retain all that the bounds allow. That must not fill the store.
#[test]
fn records_retained_for_retransmission_never_fill_a_store() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open_in_chain(&disk, of_capacity(16), Now::at(1)).unwrap();
    node.engine.set_retain_floor(RANGE, Version::ZERO);
    for seq in 1..=2000 {
        write(&mut node, RANGE, &RecordRef::put(version(seq), b"key", &[7; 1500]));
    }
    // A twentieth of the capacity is less than a segment: two are kept in any case.
    let floor = node.engine.replay_floor(RANGE);
    assert!((1900..=1965).contains(&floor.seq()), "{floor:?}");
}

/// A slow range has a record in each segment that a busy one fills, then rests.
#[test]
fn a_slow_range_does_not_retain_the_segments_of_a_busy_one() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open_in_chain(&disk, of_capacity(16), Now::at(1)).unwrap();
    node.engine.add_range(OTHER, KeyRange::ALL).unwrap();
    node.engine.set_retain_floor(OTHER, Version::ZERO);
    for seq in 1..=400 {
        write(&mut node, RANGE, &RecordRef::put(version(seq), b"key", &[7; 9000]));
        node.engine.set_retain_floor(RANGE, version(seq));
        if seq <= 200 && seq % 5 == 0 {
            write(&mut node, OTHER, &RecordRef::put(version(seq / 5), b"slow", b"value"));
        }
    }
    assert_eq!(node.engine.replay_floor(OTHER), version(40));
    assert_eq!(node.engine.segments_kept().get(&KeepReason::Retained), None, "{:?}", node.engine.segments_kept());
    let found = node.get(b"key", View::Committed).unwrap();
    assert_eq!(found.map(|entry| entry.version), Some(version(400)));
}

/// The device may refuse to unlink files for want of memory, which passes.
#[test]
fn segments_whose_unlinks_were_refused_are_unlinked_later() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { checkpoint_log_bytes_min: u64::MAX, ..of_capacity(16) };
    let mut node = TestNode::open_in_chain(&disk, options, Now::at(1)).unwrap();
    disk.fail_every(OpKind::Unlink, DeviceFault::Exhausted);
    let mut seq = 0;
    let is_full = loop {
        seq += 1;
        let record = RecordRef::put(version(seq), b"key", &[7; 9000]);
        match node.engine.append(RANGE, TestNode::hash(b"key"), &record) {
            Err(EngineError::Overloaded) => seq -= 1,
            Err(EngineError::StoreFull) => break true,
            result => result.unwrap(),
        }
        node.turn();
        node.now = node.now.plus_ms(5);
        if segment_files(&disk) > 16 {
            break false;
        }
    };
    let (files, used) = (segment_files(&disk), node.engine.log_report().segments);
    assert!(is_full && files > used + 8, "their space counts as taken: {files} files of {used} segments");
    let at = node.engine.upkeep_at().unwrap();
    assert!(at <= node.now.mono.plus_ms(100), "an idle store tries again");
    disk.end_faults(OpKind::Unlink);
    turns(&mut node, 8);
    let (files, used) = (segment_files(&disk), node.engine.log_report().segments);
    assert!(files <= used + 2, "{files} files of {used} segments");
    for seq in seq..seq + 100 {
        write(&mut node, RANGE, &RecordRef::put(version(seq), b"key", &[7; 9000]));
    }
}

/// Records that stay fill the first segment. Later ones have records that are rolled back, in the same or in the next
/// segment.
#[test]
fn a_rollback_does_not_wait_for_segments_without_rolled_back_records() {
    for is_apart in [false, true] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut node = TestNode::open_in_chain(&disk, of_capacity(24), Now::at(1)).unwrap();
        let mut seq = 0;
        let mut put = |node: &mut TestNode, key: &[u8]| {
            seq += 1;
            write(node, RANGE, &RecordRef::put(version(seq), key, &[7; 9000]));
            node.engine.set_retain_floor(RANGE, version(seq));
            seq
        };
        for key in 0..6 {
            put(&mut node, &[key]);
        }
        for round in 0..60 {
            let last = put(&mut node, b"hot");
            append(&mut node, RANGE, &RecordRef::put(version(last + 1), b"void", &[8; 5000]));
            for later in 2..if is_apart { 8 } else { 2 } {
                append(&mut node, RANGE, &RecordRef::put(version(last + later), b"void", &[8; 14_000]));
            }
            if round % 2 == 0 {
                node.engine.submit(node.now);
                node.engine.wait(node.now, &mut Vec::new());
            }
            node.engine.rollback(RANGE, version(last)).unwrap();
            for _ in 0..7 {
                put(&mut node, b"hot");
            }
        }
        disk.crash(1);
        let mut node = TestNode::open_in_chain(&disk, of_capacity(24), Now::at(9)).unwrap();
        assert_eq!(node.get(b"void", View::Latest).unwrap(), None);
        let found = node.get(b"hot", View::Latest).unwrap();
        assert_eq!(found.map(|entry| entry.version), Some(version(seq)));
        for key in 0..6 {
            assert!(node.get(&[key], View::Committed).unwrap().is_some());
        }
    }
}

/// A clear that the manifest lists hides nothing, also after an opening: its segment goes although older records are left.
#[test]
fn a_listed_clear_keeps_no_segment_after_an_opening() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let open = |disk| TestNode::open_in_chain(disk, chained(Durability::Sync), Now::at(1)).unwrap();
    let commit = |node: &mut TestNode| {
        turns(node, 6);
        for range in [RANGE, OTHER] {
            let last = node.engine.progress(range).synced;
            node.engine.commit(range, last);
            node.engine.set_retain_floor(range, last);
        }
        turns(node, 6);
    };
    let large = |node: &mut TestNode, range, seq, key: &[u8]| {
        append(node, range, &RecordRef::put(version(seq), key, &[7; 14_900]));
        commit(node);
    };
    let mut node = open(&disk);
    node.engine.add_range(OTHER, KeyRange::ALL).unwrap();
    // The other range's record keeps the older ones of the cleared range.
    large(&mut node, OTHER, 1, b"stays");
    (1..=4).for_each(|seq| large(&mut node, RANGE, seq, &[seq as u8]));
    append(&mut node, RANGE, &RecordRef::bare(RecordKind::Clear, version(5), &[]));
    (6..=13).for_each(|seq| large(&mut node, RANGE, seq, &[seq as u8]));
    disk.crash(1);
    let mut node = open(&disk);
    (14..=21).for_each(|seq| large(&mut node, RANGE, seq, &[seq as u8 - 8]));
    turns(&mut node, 20);
    let kept = node.engine.segments_kept();
    assert!(node.engine.stats().segments_dropped >= 2 && !kept.contains_key(&KeepReason::Hides), "{kept:?}");
}
