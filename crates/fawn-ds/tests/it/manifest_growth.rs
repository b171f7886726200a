//! Manifest of a running store: it stays short, also through crashes, and needs little space on a full device.
use crate::support::{RANGE, TestNode, TestWrite, scanned};
use fawn_ds::internals::format::manifest::decode_all;
use fawn_ds::internals::{BlobTicket, EngineError, Options, RecordRef, View};
use fawn_flash::sim::{Capture, DeviceFault, Loss, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Epoch, KeyRange, Now, RangeId, Version};

const BLOB: u32 = 5;
/// The engine begins a new file at 64 KiB, if the old one is four times as long.
const MANIFEST_BYTES_MAX: usize = 128 << 10;

fn options() -> Options {
    scanned(Durability::Sync)
}

fn blob(i: u32) -> Vec<u8> {
    i.to_le_bytes().repeat(250)
}

fn number(node: &TestNode) -> u32 {
    let bytes = node.engine.blob(BLOB).unwrap_or_default();
    let i = bytes.first_chunk().map_or(0, |first| u32::from_le_bytes(*first));
    assert!(i == 0 || bytes == blob(i), "a blob is complete");
    i
}

fn write(i: u32) -> TestWrite {
    TestWrite { key: (i % 100).to_be_bytes().to_vec(), value: Some(vec![i as u8; 700]), expires_at_ms: 0 }
}

/// Puts numbered blobs, several at a time, and records which were durable at which operation.
struct ManifestGrowthRun {
    disk: SimDisk,
    node: TestNode,
    put: u32,
    tickets: Vec<(u32, BlobTicket)>,
    /// (operations so far, newest number durable, newest put).
    durable: Vec<(u64, u32, u32)>,
}

impl ManifestGrowthRun {
    fn new(seed: u64) -> Self {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
        Self { disk, node, put: 0, tickets: Vec::new(), durable: vec![(0, 0, 0)] }
    }

    fn step(&mut self, blobs: u32) {
        for _ in 0..blobs {
            self.put += 1;
            // The write may begin at once, so the blob counts from before the put.
            let durable = self.durable.last().map_or(0, |last| last.1);
            self.durable.push((self.disk.ops(), durable, self.put));
            let ticket = self.node.engine.put_blob(BLOB, &blob(self.put)).unwrap();
            self.tickets.push((self.put, ticket));
        }
        self.node.turn();
        let durable = self.tickets.iter().rev().find(|(_, ticket)| self.node.engine.is_blob_durable(*ticket));
        let durable = durable.map_or(0, |(number, _)| *number);
        self.durable.push((self.disk.ops(), durable, self.put));
    }
}

/// A file system with copies on write needs space for a rename, and any needs memory. The old manifest goes on.
#[test]
fn a_manifest_whose_replacement_gets_no_name_goes_on() {
    for fault in [DeviceFault::Full, DeviceFault::Exhausted] {
        let mut run = ManifestGrowthRun::new(1);
        run.disk.fail_every(OpKind::Rename, fault);
        let renames = run.disk.counted(OpKind::Rename);
        // Several commits wait for each new file.
        (0..400).for_each(|_| run.step(3));
        assert_eq!(run.node.engine.poisoned(), None);
        let attempts = run.disk.counted(OpKind::Rename) - renames;
        assert!((2..200).contains(&attempts), "{attempts} attempts for {} commits", run.put);
        run.node.append(&[write(1)]).unwrap();
        run.node.engine.sync_all().unwrap();
        run.step(0);
        assert_eq!(run.durable.last().unwrap().1, run.put, "a sync of everything covers commits");
        let reopened = TestNode::open(&run.disk.image(Loss::Power, 1), options(), Now::at(2)).unwrap();
        assert_eq!(number(&reopened), run.put);
        // An opening, which may begin a new file, too.
        let image = run.disk.image(Loss::Process, 2);
        image.fail_every(OpKind::Rename, DeviceFault::Full);
        let reopened = TestNode::open(&image, options(), Now::at(2)).unwrap();
        assert!(image.counted(OpKind::Rename) > 0, "the opening begins a new file");
        assert_eq!(number(&reopened), run.put);
        run.disk.clear_faults();
        (0..100).for_each(|_| run.step(3));
        let manifest_bytes = run.disk.contents("manifest").unwrap().len();
        assert!(manifest_bytes <= MANIFEST_BYTES_MAX, "{manifest_bytes} bytes once a rename succeeds");
        let put = run.put;
        drop(run.node.engine.close().unwrap());
        assert_eq!(number(&TestNode::open(&run.disk, options(), Now::at(2)).unwrap()), put);
    }
}

/// A close with a new file in flight whose name is refused.
#[test]
fn a_close_ends_although_a_rename_is_refused() {
    for steps in 1..60 {
        let mut run = ManifestGrowthRun::new(1);
        run.disk.fail_every(OpKind::Rename, DeviceFault::Full);
        (0..steps).for_each(|_| run.step(2));
        let put = run.put;
        drop(run.node.engine.close().unwrap());
        run.disk.clear_faults();
        assert_eq!(number(&TestNode::open(&run.disk, options(), Now::at(2)).unwrap()), put);
    }
}

/// The sync of the directory that makes the name of a new manifest durable hangs. Commits wait for it; records do not.
#[test]
fn only_commits_wait_for_the_name_of_a_new_manifest() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    node.append(&[write(1)]).unwrap();
    node.settle();
    disk.hang(OpKind::SyncDir);
    let mut put = 0;
    let waiting = loop {
        put += 1;
        assert!(put < 1_000, "the manifest is not rewritten");
        let ticket = node.engine.put_blob(BLOB, &blob(put)).unwrap();
        node.turn();
        node.turn();
        if !node.engine.is_blob_durable(ticket) {
            break ticket;
        }
    };
    assert_eq!((disk.hung(), disk.names().contains(&"manifest.new".to_owned())), (1, false));
    node.append(&[write(2)]).unwrap();
    for _ in 0..3 {
        node.turn();
    }
    assert!(node.get(&write(2).key, View::Committed).unwrap().is_some(), "acknowledged meanwhile");
    let next = node.engine.put_blob(BLOB, &blob(put + 1)).unwrap();
    for _ in 0..3 {
        node.turn();
    }
    assert!(!node.engine.is_blob_durable(waiting) && !node.engine.is_blob_durable(next));
    let mut found = [0, 0];
    for seed in 0..16 {
        let crashed = TestNode::open(&disk.image(Loss::Power, seed), options(), Now::at(2)).unwrap();
        let number = number(&crashed);
        assert!(number == put || number == put - 1, "blob {number}, {} was durable", put - 1);
        found[(put - number) as usize] += 1;
    }
    assert!(found.iter().all(|&count| count > 0), "a power loss may undo the name or not: {found:?}");
    disk.release_hung();
    disk.end_faults(OpKind::SyncDir);
    node.settle();
    // The append of the commit follows.
    node.turn();
    node.turn();
    assert!(node.engine.is_blob_durable(next));
    disk.crash(1);
    assert_eq!(number(&TestNode::open(&disk, options(), Now::at(3)).unwrap()), put + 1);
}

#[test]
fn a_running_store_rewrites_a_manifest_that_is_mostly_history() {
    let mut run = ManifestGrowthRun::new(1);
    let mut longest = 0;
    for i in 0..700 {
        run.step(i % 4);
        run.node.append(&[write(i)]).unwrap();
        longest = longest.max(run.disk.contents("manifest").unwrap().len());
    }
    run.node.settle();
    while run.durable.last().is_some_and(|last| last.1 < run.put) {
        run.step(0);
    }
    assert!(longest <= MANIFEST_BYTES_MAX, "{longest} bytes of manifest for {} blobs of 1 KB", run.put);
    assert!(run.put as usize * 1000 > 3 * MANIFEST_BYTES_MAX, "the manifest was rewritten more than once");
    run.disk.crash(1);
    let mut node = TestNode::open(&run.disk, options(), Now::at(2)).unwrap();
    assert_eq!(number(&node), run.put);
    assert!(node.get(&42u32.to_be_bytes(), View::Committed).unwrap().is_some());
}

#[test]
fn every_crash_while_the_manifest_is_rewritten_keeps_what_was_durable() {
    let (mut images, mut rewrites) = (0, 0);
    for seed in 0..4 {
        let mut run = ManifestGrowthRun::new(seed);
        let loss = if seed == 3 { Loss::Process } else { Loss::Power };
        for i in 0..160 {
            // Images are taken only around the first rewrites, which begin at about 64 KB.
            let len = run.put * 1040;
            if len > 50_000 {
                run.disk.capture(Capture::Every { stride: 1, loss, seed });
            }
            let before = run.disk.counted(OpKind::Rename);
            run.step(i % 5);
            rewrites += run.disk.counted(OpKind::Rename) - before;
            for image in run.disk.take_images() {
                let context = format!("seed {seed}, operation {} (… --test it manifest_growth::)", image.op);
                let node = TestNode::open(&image.disk, options(), Now::at(2));
                let node = node.unwrap_or_else(|error| panic!("{context}: {error}"));
                let found = number(&node);
                let durable = run.durable.iter().rev().find(|(op, ..)| *op <= image.op).unwrap().1;
                let put = run.durable.iter().rev().find(|(op, ..)| *op < image.op).unwrap().2;
                assert!(durable <= found && found <= put, "{context}: {durable} was durable, {found} found, {put} put");
                assert!(!image.disk.names().contains(&"manifest.new".to_owned()), "{context}: an orphan file is left");
                images += 1;
            }
        }
    }
    println!("{images} images, {rewrites} rewrites");
    assert!(images > 400 && rewrites >= 4, "{images} images, {rewrites} rewrites");
}

#[test]
fn without_space_for_a_fresh_manifest_the_old_one_goes_on() {
    let mut run = ManifestGrowthRun::new(9);
    for _ in 0..60 {
        run.step(4);
    }
    run.node.engine.add_range(RangeId(98), KeyRange::ALL).unwrap();
    let used = run.disk.names().iter().map(|name| run.disk.contents(name).unwrap().len()).sum::<usize>();
    // Space for a little more history, but not for a second file.
    run.disk.set_capacity_bytes(Some(used as u64 + (8 << 10)));
    let mut refused = false;
    for _ in 0..200 {
        match run.node.engine.put_blob(BLOB, &blob(1)) {
            Ok(_) => {}
            Err(EngineError::StoreFull) => refused = true,
            Err(error) => panic!("{error}"),
        }
        run.node.turn();
    }
    assert!(refused, "the device did not become full");
    while run.node.engine.put_blob(BLOB, b"1").is_ok() {
        run.node.turn();
    }
    assert_eq!(run.node.engine.drop_range(RangeId(98)), Ok(()), "there is space for what frees space");
    assert_eq!(run.node.engine.poisoned(), None);
    run.disk.set_capacity_bytes(None);
    for _ in 0..200 {
        run.step(1);
    }
    let len = run.disk.contents("manifest").unwrap().len();
    assert!(len <= MANIFEST_BYTES_MAX, "{len}: with space again, the history is dropped");
    // Ranges are listed in the manifest too, so it must still be writable.
    run.node.engine.add_range(RangeId(99), KeyRange::ALL).unwrap();
}

#[test]
fn a_torn_end_whose_space_is_taken_costs_the_rest_of_its_segment_only() {
    for seed in 0..8 {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        disk.fail_every(OpKind::Map, DeviceFault::Fail);
        let options = Options { durability: Durability::EverySecond, ..options() };
        let mut node = TestNode::open(&disk, options.clone(), Now::at(1)).unwrap();
        for i in 0..20 {
            node.append(&[write(i)]).unwrap();
            node.settle();
        }
        drop(node.engine.close().unwrap());
        let mut node = TestNode::open(&disk, options.clone(), Now::at(1)).unwrap();
        disk.fail_nth(OpKind::Write, 1, DeviceFault::Lose);
        for i in 20..24 {
            node.append(&[TestWrite { value: Some(vec![1; 5000]), ..write(i) }]).unwrap();
            node.settle();
        }
        disk.kill(seed);
        // The manifest keeps its own space. The segment's space is requested again, but is no longer free.
        let capacity: u64 = disk.names().iter().map(|name| disk.contents(name).unwrap().len() as u64).sum();
        for nth in 1..=3 {
            disk.fail_nth(OpKind::Allocate, nth, DeviceFault::Full);
        }
        let mut node = TestNode::open(&disk, options.clone(), Now::at(2)).unwrap();
        assert_eq!(node.report.truncated.len(), 1, "seed {seed}");
        disk.clear_faults();
        disk.set_capacity_bytes(Some(capacity - (40 << 10)));
        assert!(node.get(&3u32.to_be_bytes(), View::Committed).unwrap().is_some(), "seed {seed}: reads continue");
        assert!(node.get(&20u32.to_be_bytes(), View::Committed).unwrap().is_none(), "seed {seed}: torn");
        let refused = (0..300).any(|i| node.append(&[write(i)]) == Err(EngineError::StoreFull));
        assert!(refused, "seed {seed}: the device is full");
        node.turn();
        assert_eq!(node.engine.poisoned(), None, "seed {seed}");
        disk.set_capacity_bytes(None);
        node.now = node.now.plus_ms(1000);
        node.turn();
        node.append(&[write(50)]).unwrap();
        node.settle();
        node.now = node.now.plus_ms(2000);
        node.settle();
        assert_eq!(node.engine.poisoned(), None, "seed {seed}");
        let committed = node.engine.progress(RANGE).committed;
        node.engine.close().unwrap();
        let mut node = TestNode::open(&disk, options, Now::at(3)).unwrap();
        assert_eq!(node.engine.progress(RANGE).committed, committed, "seed {seed}");
        assert!(node.get(&50u32.to_be_bytes(), View::Committed).unwrap().is_some(), "seed {seed}");
    }
}

/// A segment's seal names each range with records in it: a full device has space for the seals of its last segments.
#[test]
fn a_full_device_seals_segments_of_many_ranges() {
    for ranges in [600, 750, 900, 1000, 1100, 1200] {
        seal_on_a_full_device(ranges);
    }
}

fn seal_on_a_full_device(range_count: u32) {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    let ranges: Vec<_> = (100..100 + range_count).map(RangeId).collect();
    for &range in &ranges {
        node.engine.add_range(range, KeyRange::ALL).unwrap();
    }
    let mut refused = 0;
    for seq in 1..20 {
        let version = Version::new(Epoch::new(1).unwrap(), seq).unwrap();
        let record = RecordRef::put(version, b"key", b"");
        for some in ranges.chunks(100) {
            // The next segment is prepared by then.
            if seq == 1 && some[0] == ranges[500] {
                for _ in 0..20 {
                    node.turn();
                }
                disk.set_full(true);
            }
            for &range in some {
                match node.engine.append(range, TestNode::hash(b"key"), &record) {
                    Err(EngineError::StoreFull | EngineError::Overloaded) => refused += 1,
                    result => result.unwrap(),
                }
            }
            node.turn();
            for &range in some {
                let synced = node.engine.progress(range).synced;
                node.engine.commit(range, synced);
            }
        }
    }
    assert!(refused > range_count, "{refused} refused");
    assert_eq!(node.engine.poisoned(), None, "{range_count} ranges");
    disk.set_full(false);
    for _ in 0..100 {
        node.turn();
        node.now = node.now.plus_ms(10);
    }
    node.append(&[write(1)]).unwrap();
    drop(node.engine.close().unwrap());
    let decoded = decode_all(&disk.contents("manifest").unwrap()).unwrap();
    let seals = decoded.state.segments.values().filter_map(|entry| entry.seal.as_ref());
    let most = seals.map(|seal| seal.facts.numbers.len()).max();
    assert!(most > Some(500), "{most:?} ranges in the fullest segment");
}

/// The drops of a large range need more of the manifest than there is space for: they wait until there is some.
#[test]
fn drops_wait_for_space_of_the_manifest() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    for i in 0..3_600 {
        let value = Some(vec![i as u8; 15 << 10]);
        node.append(&[TestWrite { key: i.to_string().into_bytes(), value, expires_at_ms: 0 }]).unwrap();
        node.turn();
    }
    node.settle();
    let before = node.engine.log_report().segments;
    disk.set_full(true);
    node.engine.drop_range(RANGE).unwrap();
    let attempts = disk.counted(OpKind::Allocate);
    for _ in 0..50 {
        node.engine.poll(node.now, &mut Vec::new());
        node.now = node.now.plus_ms(1);
    }
    assert_eq!(node.engine.poisoned(), None);
    let (len, segments) = (disk.contents("manifest").unwrap().len(), disk.names().len() as u64);
    assert!(segments > before / 2, "{segments} files of {before} segments: hardly any drop waits");
    let allocations = disk.counted(OpKind::Allocate);
    assert!(allocations - attempts < 5, "{} attempts at space in 50 ms", allocations - attempts);
    let due = node.engine.upkeep_at().unwrap();
    assert!(due > node.now.mono && due <= node.now.mono.plus_ms(100), "no client is needed for the next attempt");
    disk.set_full(false);
    node.now = node.now.plus_ms(100);
    for _ in 0..50 {
        node.engine.poll(node.now, &mut Vec::new());
    }
    assert!(disk.counted(OpKind::Allocate) > allocations && disk.names().len() < 10, "{:?}", disk.names());
    drop(node.engine.close().unwrap());
    let node = TestNode::open(&disk, options(), Now::at(3)).unwrap();
    assert!(node.engine.log_report().segments < 10, "{len} bytes of manifest");
}

/// Whenever others fill the device, and wherever the manifest's file ends then, a hundred segments can be dropped.
#[test]
fn space_for_drops_is_kept_ahead_at_any_time() {
    for segments in (100_u64..280).step_by(9) {
        let disk = SimDisk::new(SimOptions::default());
        let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
        node.engine.add_range(RangeId(98), KeyRange::ALL).unwrap();
        for put in 0..segments * 4 {
            // A segment has four of them, so the others are dead.
            let key = (put % 400).to_be_bytes().to_vec();
            node.append(&[TestWrite { key, value: Some(vec![1; 15 << 10]), expires_at_ms: 0 }]).unwrap();
            node.turn();
        }
        node.settle();
        disk.set_full(true);
        node.engine.drop_range(RANGE).unwrap();
        for _ in 0..50 {
            node.engine.poll(node.now, &mut Vec::new());
        }
        let left = node.engine.log_report().segments;
        assert!(left < 10 && disk.names().len() < 14, "{segments} segments: {left} are left, {:?}", disk.names());
    }
}
