//! Checkpoints: what an opening takes from them, what it refuses, and what is left of one that was not finished.
use crate::support::{RANGE, TestNode, TestWrite, scanned, small};
use fawn_ds::internals::format::checkpoint::{self, content};
use fawn_ds::internals::format::{RangeNumber, manifest};
use fawn_ds::internals::index::{Index, IndexOptions, Pointer, PointerWidth};
use fawn_ds::internals::{OpenError, Options, View, check};
use fawn_flash::sim::{DeviceFault, Loss, OpKind};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::checksum::checksum64;
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, KeyHash, Now, Version};
use std::collections::BTreeMap;

/// Keys and their values.
type Content = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    small(Durability::Sync)
}

fn open(disk: &SimDisk) -> TestNode {
    TestNode::open(disk, options(), Now::at(1_000_000)).unwrap()
}

/// Overwrites and deletes, with a flush every few writes.
fn write_some(node: &mut TestNode, content: &mut Content, rng: &mut Rng, count: usize) {
    for i in 0..count {
        let key = format!("k{:03}", rng.next() % 300).into_bytes();
        let value = (!rng.next().is_multiple_of(4)).then(|| vec![rng.next() as u8; 200 + (rng.next() % 300) as usize]);
        node.append(&[TestWrite { key: key.clone(), value: value.clone(), expires_at_ms: 0 }]).unwrap();
        match value {
            Some(value) => content.insert(key, value),
            None => content.remove(&key),
        };
        if i % 4 == 0 {
            node.turn();
        }
    }
    node.settle();
}

fn assert_content(node: &mut TestNode, content: &Content) {
    for i in 0..300 {
        let key = format!("k{i:03}").into_bytes();
        let found = node.get(&key, View::Committed).unwrap().map(|entry| entry.value);
        assert_eq!(found.as_ref(), content.get(&key), "k{i:03}");
    }
    assert_eq!(node.engine.len(RANGE), content.len() as u64);
}

/// A closed store with two checkpoints and more log behind them.
fn closed_store(seed: u64) -> (SimDisk, Content) {
    let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
    let (mut content, mut rng) = (Content::new(), Rng::new(seed));
    // Each is a store of its own, with other UUIDs.
    let options = Options { number_if_new: seed as u32, ..options() };
    let mut node = TestNode::open(&disk, options, Now::at(1_000_000)).unwrap();
    for _ in 0..4 {
        write_some(&mut node, &mut content, &mut rng, 300);
    }
    assert!(node.engine.stats().checkpoints >= 2, "{:?}", node.engine.stats());
    drop(node.engine.close().unwrap());
    (disk, content)
}

/// Waits until the old versions of all overwritten keys are confirmed.
pub(crate) fn confirm_deferred(node: &mut TestNode) {
    while node.engine.log_report().verifications_queued > 0 {
        node.turn();
    }
}

/// Names of the listed checkpoints, oldest first.
pub(crate) fn listed(disk: &SimDisk) -> Vec<String> {
    let state = manifest::decode_all(&disk.contents("manifest").unwrap()).unwrap().state;
    state.checkpoints.iter().map(|entry| checkpoint::file_name(entry.uuid)).collect()
}

pub(crate) fn files(disk: &SimDisk) -> Vec<String> {
    disk.names().into_iter().filter(|name| checkpoint::is_file_name(name)).collect()
}

#[test]
fn an_opening_takes_the_index_from_the_newest_checkpoint() {
    for seed in 0..8 {
        let (disk, mut content) = closed_store(seed);
        let names = listed(&disk);
        assert_eq!(names.len(), 2, "seed {seed}: two are kept");
        let mut kept = names.clone();
        kept.sort();
        assert_eq!(files(&disk), kept, "seed {seed}: and no other file");
        let mut node = open(&disk);
        let (entries, records) = (node.report.checkpoint_entries, node.report.records);
        assert!(entries.is_some_and(|entries| entries > 50), "seed {seed}: {:?}", node.report);
        assert!(records < 900, "seed {seed}: of 1,200: {:?}", node.report);
        assert_content(&mut node, &content);
        // The next checkpoint is one of a store that was opened from one.
        write_some(&mut node, &mut content, &mut Rng::new(!seed), 600);
        assert_content(&mut node, &content);
        assert!(node.engine.stats().checkpoints > 0);
        disk.kill(seed);
        let mut node = open(&disk);
        assert!(node.report.checkpoint_entries.is_some() && node.report.checkpoints_refused.is_empty());
        assert_content(&mut node, &content);
        assert_eq!(files(&disk).len(), listed(&disk).len(), "unfinished ones are removed");
    }
}

/// A checkpoint that an opening refuses is used by none.
#[test]
fn a_lack_of_descriptors_and_a_wrong_read_of_an_opening_cost_no_checkpoint() {
    let faults = [
        (OpKind::Open, DeviceFault::Exhausted),
        (OpKind::Read, DeviceFault::Exhausted),
        (OpKind::Read, DeviceFault::Fail),
        (OpKind::Read, DeviceFault::Misdirect { name: None, offset: 0 }),
        (OpKind::Read, DeviceFault::Misdirect { name: None, offset: 8192 }),
    ];
    let (store, content) = closed_store(1);
    let (names, mut opened, mut refused) = (listed(&store), 0, 0);
    for (kind, fault) in faults {
        for nth in 1..60 {
            let context = format!("{fault:?} of {kind:?} {nth}");
            let disk = store.image(Loss::Process, 1);
            disk.fail_nth(kind, nth, fault.clone());
            match TestNode::open(&disk, scanned(Durability::Sync), Now::at(1_000_000)) {
                Ok(node) => {
                    opened += 1;
                    assert_eq!(node.report.checkpoints_refused, [], "{context}");
                }
                Err(error) => {
                    refused += 1;
                    let is_retryable = matches!(&error, OpenError::Device(error) if error.is_retryable());
                    assert!(fault != DeviceFault::Exhausted || is_retryable, "{context}: {error}");
                }
            }
            assert_eq!(listed(&disk), names, "{context}");
        }
    }
    assert_content(&mut open(&store), &content);
    println!("{opened} opened, {refused} refused");
    assert!(opened > 100 && refused > 20, "{opened} opened, {refused} refused");
}

#[test]
fn live_counts_are_those_of_a_whole_scan() {
    for seed in 0..8 {
        let (disk, content) = closed_store(seed);
        let mut node = open(&disk);
        confirm_deferred(&mut node);
        let (live, segments) = (node.engine.log_report().live_bytes, node.engine.log_report().segments);
        assert!(node.report.checkpoint_entries.is_some());
        assert_content(&mut node, &content);
        drop(node);
        listed(&disk).iter().for_each(|name| disk.flip_bits(name, 5000, 8));
        let mut node = open(&disk);
        assert_eq!(node.report.checkpoint_entries, None);
        assert!(node.engine.verifications_deferred() > 0, "most keys were overwritten");
        confirm_deferred(&mut node);
        assert_eq!(node.engine.log_report().live_bytes, live, "seed {seed}");
        assert_eq!(node.engine.log_report().segments, segments, "seed {seed}");
    }
}

/// Opens a store of which the newest checkpoint cannot be used, then also the one before.
fn refused(seed: u64, spoil: impl Fn(&SimDisk, &str)) -> [String; 2] {
    let (disk, content) = closed_store(seed);
    let names = listed(&disk);
    spoil(&disk, &names[1]);
    // These openings write no checkpoint of their own.
    let open = |disk: &SimDisk| TestNode::open(disk, scanned(Durability::Sync), Now::at(1_000_000)).unwrap();
    let mut node = open(&disk);
    assert!(node.report.checkpoint_entries.is_some(), "the one before serves: {:?}", node.report);
    let first = node.report.checkpoints_refused.clone();
    assert_eq!(first.len(), 1, "{first:?}");
    assert_content(&mut node, &content);
    drop(node);
    assert_eq!(listed(&disk), names[..1], "a refused one is used by no later opening");
    assert!(!files(&disk).contains(&names[1]));
    spoil(&disk, &names[0]);
    let mut node = open(&disk);
    assert_eq!(node.report.checkpoint_entries, None, "the whole log is scanned");
    let second = node.report.checkpoints_refused.clone();
    assert_eq!(second.len(), 1, "{second:?}");
    assert_eq!(listed(&disk), Vec::<String>::new());
    assert_content(&mut node, &content);
    drop(node);
    let found = check::check(&mut SimDevice::attach(&disk)).unwrap();
    assert!(found.is_sound(), "no data is damaged: {:?}", found.findings);
    [first[0].1.clone(), second[0].1.clone()]
}

#[test]
fn a_checkpoint_with_a_flipped_bit_is_passed_over() {
    for (seed, at) in [(1, 3), (2, 20), (3, 50), (4, 500), (5, 4096), (6, 4097), (7, 4106), (8, 4200), (9, 5000)] {
        refused(seed, |disk, name| disk.flip_bits(name, at, 16));
    }
}

#[test]
fn a_short_a_missing_and_another_stores_checkpoint_are_passed_over() {
    for why in refused(20, |disk, name| disk.put(name, &disk.contents(name).unwrap()[..4096])) {
        assert!(why.contains("corrupt") || why.contains("cut short"), "{why}");
    }
    refused(21, |disk, name| disk.put(name, &[]));
    let (elsewhere, _) = closed_store(23);
    let other = elsewhere.contents(&listed(&elsewhere)[0]).unwrap();
    for why in refused(22, |disk, name| disk.put(name, &other)) {
        assert!(why.contains("another checkpoint"), "{why}");
    }
    // The older one under the newer one's name.
    let (disk, content) = closed_store(24);
    let names = listed(&disk);
    disk.put(&names[1], &disk.contents(&names[0]).unwrap());
    let mut node = open(&disk);
    assert_eq!(node.report.checkpoints_refused.len(), 1);
    assert!(node.report.checkpoint_entries.is_some());
    assert_content(&mut node, &content);
}

#[test]
fn pieces_in_another_order_are_refused() {
    // Mostly empty cells: two bytes each.
    let options = Options { index: IndexOptions::default(), ..options() };
    let disk = SimDisk::new(SimOptions::default());
    let mut content = Content::new();
    let mut node = TestNode::open(&disk, options.clone(), Now::at(1_000_000)).unwrap();
    write_some(&mut node, &mut content, &mut Rng::new(3), 4000);
    drop(node.engine.close().unwrap());
    let name = listed(&disk).pop().unwrap();
    let mut bytes = disk.contents(&name).unwrap();
    let first = checkpoint::HEADER_BYTES..checkpoint::HEADER_BYTES + checkpoint::PIECE_BYTES;
    let (one, two) = bytes[first.start..].split_at_mut(checkpoint::PIECE_BYTES);
    assert_eq!(one[8..12], two[8..12], "both are full");
    one.swap_with_slice(&mut two[..checkpoint::PIECE_BYTES]);
    disk.put(&name, &bytes);
    let mut node = TestNode::open(&disk, options, Now::at(1_000_000)).unwrap();
    let refused = &node.report.checkpoints_refused;
    assert!(refused.len() == 1 && refused[0].1.contains("piece at byte 4096"), "{refused:?}");
    assert_content(&mut node, &content);
}

/// The content of a checkpoint's pieces.
fn content_of(bytes: &[u8], len_bytes: u64) -> Vec<u8> {
    let uuid = checkpoint::decode_header(bytes).unwrap().uuid;
    let mut content = Vec::new();
    for at in (checkpoint::HEADER_BYTES..len_bytes as usize).step_by(checkpoint::PIECE_BYTES) {
        let end = (at + checkpoint::PIECE_BYTES).min(len_bytes as usize);
        content.extend_from_slice(checkpoint::decode_piece(uuid, at as u64, &bytes[at..end]).unwrap());
    }
    content
}

/// Writes a checkpoint's file again with other content of the same length and good checksums.
fn forge(disk: &SimDisk, name: &str, change: impl Fn(&mut content::SegmentImage)) {
    let state = manifest::decode_all(&disk.contents("manifest").unwrap()).unwrap().state;
    let pointers = state.identity.unwrap().pointers;
    let entry = state.checkpoints.iter().find(|entry| checkpoint::file_name(entry.uuid) == name).unwrap();
    let mut bytes = disk.contents(name).unwrap();
    let old = content_of(&bytes, entry.len_bytes);
    let mut source = &old[..];
    let ranges = content::decode_count(&mut source).unwrap();
    for _ in 0..ranges {
        content::decode_range_start(&mut source).unwrap();
        let mut at = Some(0u64);
        while let Some(first) = at {
            let cell = content::decode_cell(&mut source, pointers).unwrap();
            at = first.checked_add(1 << (64 - cell.depth));
        }
    }
    for _ in 0..ranges {
        content::decode_range(&mut source, pointers).unwrap();
    }
    let mut new = old[..old.len() - source.len()].to_vec();
    let count = content::decode_count(&mut source).unwrap();
    content::encode_count(count as usize, &mut new);
    for _ in 0..count {
        let mut segment = content::decode_segment(&mut source).unwrap();
        change(&mut segment);
        content::encode_segment(&segment, &mut new);
    }
    new.extend_from_slice(source);
    assert_eq!(new.len(), old.len());
    let mut at = checkpoint::HEADER_BYTES;
    for piece in new.chunks(checkpoint::PIECE_CONTENT_BYTES) {
        at += checkpoint::encode_piece(entry.uuid, at as u64, piece, &mut bytes[at..]);
    }
    disk.put(name, &bytes);
}

#[test]
fn a_checkpoint_that_contradicts_itself_or_the_log_is_passed_over() {
    let live = |segment: &content::SegmentImage| segment.shares.iter().any(|share| share.live_records > 0);
    for why in refused(30, |disk, name| {
        forge(disk, name, |segment| {
            if live(segment) {
                segment.shares[0].live_records += 1;
            }
        });
    }) {
        assert!(why.contains("records are live"), "{why}");
    }
    for why in refused(31, |disk, name| forge(disk, name, |segment| segment.sequence += 1000)) {
        assert!(why.contains("lacks segments"), "{why}");
    }
}

/// Earlier builds left such headers.
#[test]
fn a_checkpoint_of_another_layout_is_passed_over() {
    for (layout, why) in [0, 1].into_iter().flat_map(|layout| refused(32, spoil(layout)).map(|why| (layout, why))) {
        assert!(why.contains(&format!("layout {layout} is of another build")), "{why}");
    }
}

fn spoil(layout: u8) -> impl Fn(&SimDisk, &str) {
    move |disk, name| {
        let mut bytes = disk.contents(name).unwrap();
        assert_eq!(bytes[12], 2);
        bytes[12] = layout;
        let checksum = checksum64(&bytes[..504]);
        bytes[504..512].copy_from_slice(&checksum.to_le_bytes());
        disk.put(name, &bytes);
    }
}

#[test]
fn a_checkpoint_keeps_little_of_its_image_in_memory() {
    const KEYS: usize = 100_000;
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { segment_bytes: 1 << 20, memory_bytes: 16 << 20, ..small(Durability::Memory) };
    let mut node = TestNode::open(&disk, options, Now::at(1_000_000)).unwrap();
    // By whether a checkpoint is being written.
    let mut buffer_bytes_max = [0, 0];
    for key in 0..KEYS {
        let put = TestWrite { key: format!("k{key}").into_bytes(), value: Some(vec![1; 200]), expires_at_ms: 0 };
        node.append(&[put]).unwrap();
        if key % 64 == 0 {
            node.turn();
            let is_writing = usize::from(files(&disk).len() > listed(&disk).len());
            buffer_bytes_max[is_writing] = buffer_bytes_max[is_writing].max(node.engine.memory().buffer_bytes);
        }
    }
    let stats = node.engine.stats();
    let image_bytes = node.engine.len(RANGE) * 7;
    assert!(stats.checkpoints > 3 && image_bytes > 600 << 10, "{stats:?}");
    // Content that fills a piece, in a buffer that doubles, and buffers of written pieces that are kept for the next ones.
    let [without, with] = buffer_bytes_max;
    assert!(with > without && with - without <= 4 * checkpoint::PIECE_BYTES as u64, "{without}, {with} bytes");
}

#[test]
fn a_full_device_has_no_checkpoint_and_goes_on() {
    let disk = SimDisk::new(SimOptions::default());
    let (mut content, mut rng) = (Content::new(), Rng::new(5));
    let options = Options { segment_bytes: 1 << 20, ..options() };
    let mut node = TestNode::open(&disk, options.clone(), Now::at(1_000_000)).unwrap();
    disk.fail_every(OpKind::Allocate, DeviceFault::Full);
    write_some(&mut node, &mut content, &mut rng, 200);
    assert_eq!((node.engine.stats().checkpoints, files(&disk).len()), (0, 0), "the file is removed");
    assert_eq!(node.engine.poisoned(), None);
    disk.clear_faults();
    write_some(&mut node, &mut content, &mut rng, 8);
    assert_eq!(node.engine.stats().checkpoints, 0, "it is tried again after a while");
    node.now = node.now.plus_ms(10_000);
    write_some(&mut node, &mut content, &mut rng, 8);
    for _ in 0..10 {
        node.turn();
    }
    assert_eq!((node.engine.stats().checkpoints, files(&disk).len()), (1, 1));
    assert_content(&mut node, &content);
}

/// The space of a checkpoint in progress is the last of the device: the log needs it more. Whenever the device becomes full,
/// and wherever the manifest's file ends then, the store goes on.
#[test]
fn an_unfinished_checkpoint_gives_its_space_to_the_log() {
    for step_ms in [1, 2, 3, 5, 7, 10, 20, 50, 100, 200] {
        for spare_segments in 3..=6 {
            fill_during_checkpoint(step_ms, spare_segments);
        }
    }
}

/// Puts and deletes every `step_ms`, on a device with so many spare segments, while the writes of a checkpoint hang.
fn fill_during_checkpoint(step_ms: u64, spare_segments: u64) {
    let case = format!("step of {step_ms} ms, {spare_segments} spare segments");
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = open(&disk);
    let mut key = 0;
    let mut put = |node: &mut TestNode| {
        key += 1;
        let key = format!("k{key:06}").into_bytes();
        let appended = node.append(&[TestWrite { key, value: Some(vec![1; 500]), expires_at_ms: 0 }]);
        node.turn();
        node.now = node.now.plus_ms(step_ms);
        appended.is_ok()
    };
    while node.engine.log_report().segments < 12 || files(&disk).len() == listed(&disk).len() {
        assert!(put(&mut node), "{case}");
    }
    let unfinished = files(&disk).into_iter().find(|name| !listed(&disk).contains(name)).unwrap();
    disk.hang(OpKind::Write);
    disk.hang(OpKind::Sync);
    node.turn();
    disk.end_faults(OpKind::Write);
    disk.end_faults(OpKind::Sync);
    assert!(disk.hung() > 0, "the checkpoint is being written: {case}");
    // Others fill the device.
    let segment_bytes = u64::from(options().segment_bytes);
    disk.set_capacity_bytes(Some((node.engine.log_report().segments + spare_segments) * segment_bytes));
    for deleted in 1..2_000 {
        // Some of both are refused.
        put(&mut node);
        let key = format!("k{deleted:06}").into_bytes();
        let _ = node.append(&[TestWrite { key, value: None, expires_at_ms: 0 }]);
        node.turn();
    }
    disk.release_hung();
    for _ in 0..20 {
        node.turn();
    }
    assert_eq!(node.engine.poisoned(), None, "{case}");
    assert!(!files(&disk).contains(&unfinished), "{case}: {:?}, {:?}", node.engine.log_report(), node.engine.stats());
    // Deletes make room, and puts are taken again.
    for deleted in 1..3_000 {
        let key = format!("k{deleted:06}").into_bytes();
        let _ = node.append(&[TestWrite { key, value: None, expires_at_ms: 0 }]);
        node.turn();
        node.now = node.now.plus_ms(step_ms);
    }
    for _ in 0..20 {
        node.now = node.now.plus_ms(100);
        node.turn();
    }
    assert!((0..200).all(|_| put(&mut node)), "{case}: {:?}", node.engine.log_report());
    let manifest_bytes = disk.contents("manifest").unwrap().len();
    assert!(manifest_bytes <= 96 << 10, "{case}: {manifest_bytes} bytes of manifest were not rewritten");
}

#[test]
fn nothing_is_written_for_a_store_that_changes_little() {
    let (disk, content) = closed_store(40);
    let names = listed(&disk);
    for _ in 0..3 {
        let mut node = open(&disk);
        assert_content(&mut node, &content);
        drop(node.engine.close().unwrap());
    }
    assert_eq!(listed(&disk), names, "the newest one still serves");
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open(&disk, scanned(Durability::Sync), Now::at(1_000_000)).unwrap();
    write_some(&mut node, &mut Content::new(), &mut Rng::new(1), 600);
    drop(node.engine.close().unwrap());
    assert_eq!(files(&disk).len(), 0, "never, if the bound says so");
}

#[test]
fn a_checkpoint_that_waits_for_deferred_records_is_written_without_a_request() {
    let disk = SimDisk::new(SimOptions { seed: 42, ..SimOptions::default() });
    let mut node = TestNode::open(&disk, scanned(Durability::Sync), Now::at(1_000_000)).unwrap();
    write_some(&mut node, &mut Content::new(), &mut Rng::new(42), 900);
    drop(node);
    disk.crash(1);
    let mut node = open(&disk);
    node.turn();
    let stats = node.engine.stats();
    assert!(node.engine.verifications_deferred() > 0 && stats.checkpoints == 0, "{stats:?}");
    node.rest(60_000);
    let stats = node.engine.stats();
    assert!(node.engine.verifications_deferred() == 0 && stats.checkpoints == 1, "{stats:?}");
}

#[test]
fn a_clear_brings_the_next_checkpoint_forward() {
    let disk = SimDisk::new(SimOptions { seed: 41, ..SimOptions::default() });
    let mut node = open(&disk);
    let put = |node: &mut TestNode, i: u32| {
        node.append(&[TestWrite { key: format!("k{i:05}").into_bytes(), value: Some(vec![7; 8]), expires_at_ms: 0 }])
            .unwrap();
        if i.is_multiple_of(16) {
            node.turn();
        }
    };
    (0..60_000).for_each(|i| put(&mut node, i % 10_000));
    node.settle();
    let before = node.engine.stats().checkpoints;
    assert!(before >= 1);
    let version = node.next_version();
    node.engine.clear(RANGE, version).unwrap();
    // About five times as much log as the image had bytes.
    (0..15_000).for_each(|i| put(&mut node, i % 100));
    node.settle();
    let since = node.engine.stats().checkpoints - before;
    assert!(since >= 2, "{since} checkpoints");
}

#[test]
fn content_of_any_bytes_is_decoded_or_refused() {
    let mut rng = Rng::new(9);
    for _ in 0..2000 {
        let bytes: Vec<u8> =
            (0..rng.next() % 200).map(|_| if rng.next().is_multiple_of(3) { 0 } else { rng.next() as u8 }).collect();
        let _ = content::decode_segment(&mut &bytes[..]);
        for pointers in [PointerWidth::Bits32, PointerWidth::Bits40] {
            let _ = content::decode_range(&mut &bytes[..], pointers);
            let _ = content::decode_cell(&mut &bytes[..], pointers).map(|cell| cell.entries().count());
        }
        let _ = checkpoint::decode_header(&bytes);
    }
}

#[test]
fn cells_come_back_with_pointers_of_either_length() {
    for pointers in [PointerWidth::Bits32, PointerWidth::Bits40] {
        let mut index = Index::new(IndexOptions { entries_min: 0, page_entries: 4, pointers });
        // Equal hashes fill a cell.
        (0..200).for_each(|i: u64| index.insert(KeyHash(!0), Pointer::new(i << 20 | i)).unwrap());
        // From both ends of what pointers can name.
        let pointer = |i: u64| Pointer::new(if i.is_multiple_of(2) { i } else { (1 << pointers.bits()) - i });
        (0..1000).for_each(|i: u64| index.insert(KeyHash(i.wrapping_mul(0x9E37_79B9_7F4A_7C15)), pointer(i)).unwrap());
        let mut bytes = Vec::new();
        let (mut at, mut written) = (Some(0), Vec::new());
        while let Some(cursor) = at {
            let cell = index.cell(cursor);
            content::encode_cell(&cell, &mut bytes);
            written.push((cell.depth(), cell.entries().collect::<Vec<_>>()));
            at = cell.next;
        }
        assert_eq!(bytes.len() as u64, content::cells_bytes(&index), "the estimate is exact");
        let mut source = &bytes[..];
        for (depth, entries) in written {
            let found = content::decode_cell(&mut source, pointers).unwrap();
            assert_eq!((found.depth, found.entries().collect::<Vec<_>>()), (depth, entries), "{pointers:?}");
        }
        assert!(source.is_empty());
        let record =
            content::RecordImage { version: Version::from_u64(7), pointer: pointer(3), len_bytes: 48, sequence: 9 };
        let range = content::RangeImage {
            number: RangeNumber(1),
            committed: Version::from_u64(8),
            cleared: Version::ZERO,
            complete_above: Version::ZERO,
            retained: vec![record; 3],
            copied_results: vec![record],
        };
        let mut bytes = Vec::new();
        content::encode_range(&range, pointers, &mut bytes);
        assert_eq!(content::decode_range(&mut &bytes[..], pointers), Ok(range));
    }
}

#[test]
fn a_close_during_a_checkpoint_writes_another_one_that_begins_in_a_later_segment() {
    let disk = SimDisk::new(SimOptions::default());
    // An image of a megabyte takes many turns.
    let index = IndexOptions { entries_min: 1 << 22, ..options().index };
    let mut node =
        TestNode::open(&disk, Options { memory_bytes: 16 << 20, index, ..options() }, Now::at(1_000_000)).unwrap();
    let put = |node: &mut TestNode, i: usize| {
        let (key, value) = (format!("k{i}").into_bytes(), Some(vec![1; 14_000]));
        node.append(&[TestWrite { key, value, expires_at_ms: 0 }]).unwrap();
        node.turn();
    };
    let is_writing = || files(&disk).len() > listed(&disk).len();
    (0..2000).take_while(|_| !is_writing()).for_each(|i| put(&mut node, i));
    disk.hang(OpKind::Write);
    node.turn();
    disk.end_faults(OpKind::Write);
    assert!(disk.hung() > 0, "no write of the checkpoint hangs");
    // More than a close leaves to the next opening, less than the next checkpoint waits for, and in another segment.
    (2000..2008).for_each(|i| put(&mut node, i));
    let begun = files(&disk);
    let mut was_writing = None;
    // The close comes to the checkpoint once the log is synced.
    let is_past_deadline = &mut || {
        was_writing.get_or_insert_with(is_writing);
        disk.release_hung();
        false
    };
    drop(node.engine.close_with_deadline(is_past_deadline).unwrap());
    assert_eq!(was_writing, Some(true), "the first checkpoint ended before the close came to it");
    assert!(listed(&disk).iter().any(|name| !begun.contains(name)), "{:?} after {begun:?}", listed(&disk));
}

#[test]
fn a_close_that_is_late_leaves_the_checkpoint_out() {
    let disk = SimDisk::new(SimOptions::default());
    let (mut content, mut calls) = (Content::new(), 0);
    let mut node = TestNode::open(&disk, scanned(Durability::Sync), Now::at(1_000_000)).unwrap();
    write_some(&mut node, &mut content, &mut Rng::new(1), 600);
    drop(node.engine.close().unwrap());
    let mut node =
        TestNode::open(&disk, Options { checkpoint_log_bytes_min: 64 << 10, ..options() }, Now::at(1_000_000)).unwrap();
    node.settle();
    // It has begun by then.
    let is_past_deadline = &mut || {
        calls += 1;
        calls > 1
    };
    drop(node.engine.close_with_deadline(is_past_deadline).unwrap());
    assert!(calls > 1, "no checkpoint was begun");
    assert_eq!(listed(&disk), Vec::<String>::new());
    assert!(disk.names().iter().all(|name| !name.starts_with("checkpoint-")), "{:?}", disk.names());
    let mut node = open(&disk);
    assert!(node.report.truncated.is_empty() && node.report.damage.is_empty());
    assert_content(&mut node, &content);
}
