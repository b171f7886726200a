//! Commits for which a full device has no space: they wait, free what they can, and never end the store.
use crate::support::{RANGE, TestNode, TestWrite, scanned};
use fawn_ds::internals::format::manifest::{ManifestVerdict, decode_all};
use fawn_ds::internals::{EngineError, Options};
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::sim::{Capture, DeviceFault, Loss, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, KeyRange, Now, RangeId, Version};

const OTHER: RangeId = RangeId(8);

fn options() -> Options {
    scanned(Durability::Sync)
}

pub(crate) fn used_bytes(disk: &SimDisk) -> u64 {
    let len = |name: &String| disk.contents(name).unwrap().len().next_multiple_of(PAGE_BYTES) as u64;
    disk.names().iter().map(len).sum()
}

/// Fills segments of a new store, four records each.
fn store_of(records: u32) -> (SimDisk, TestNode) {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    for i in 0..records {
        let value = Some(vec![i as u8; 15 << 10]);
        node.append(&[TestWrite { key: i.to_string().into_bytes(), value, expires_at_ms: 0 }]).unwrap();
        node.turn();
    }
    node.settle();
    (disk, node)
}

/// Polls without any request, every 100 ms for a minute.
pub(crate) fn poll_for_a_minute(node: &mut TestNode) {
    for _ in 0..600 {
        node.engine.poll(node.now, &mut Vec::new());
        node.now = node.now.plus_ms(100);
    }
    assert_eq!(node.engine.poisoned(), None);
}

/// A device that is full for allocations, and the drops of all segments: more than the manifest has space for.
fn store_with_waiting_drops() -> (SimDisk, TestNode) {
    let (disk, mut node) = store_of(3_600);
    disk.set_full(true);
    node.engine.drop_range(RANGE).unwrap();
    for _ in 0..50 {
        node.engine.poll(node.now, &mut Vec::new());
        node.now = node.now.plus_ms(1);
    }
    assert!(disk.names().len() > 100, "the last drops wait");
    (disk, node)
}

/// It gives up the range's old copy, which may be all that the device is full of.
#[test]
fn a_full_device_takes_the_beginning_of_a_transfer() {
    let (disk, mut node) = store_of(400);
    disk.set_capacity_bytes(Some(used_bytes(&disk)));
    while node.engine.put_blob(5, &[1]).is_ok() {
        node.turn();
    }
    let base = node.engine.progress(RANGE).appended;
    assert_eq!(node.engine.start_transfer(RANGE, base), Ok(()));
    poll_for_a_minute(&mut node);
    assert!(node.engine.transfer_begun(RANGE));
    assert!(disk.names().len() < 10, "{:?}", disk.names());
}

/// Each of them is listed. The first may free space, the others have none to free.
#[test]
fn beginnings_that_are_repeated_on_a_full_device_leave_space_for_drops() {
    let (disk, mut node) = store_of(400);
    node.engine.add_range(OTHER, KeyRange::ALL).unwrap();
    disk.set_capacity_bytes(Some(used_bytes(&disk)));
    let is_refused = |node: &mut TestNode| {
        node.turn();
        node.engine.start_transfer(OTHER, Version::ZERO) == Err(EngineError::StoreFull)
    };
    assert!((0..10_000).any(|_| is_refused(&mut node)));
    assert_eq!(node.engine.drop_range(RANGE), Ok(()));
    poll_for_a_minute(&mut node);
    assert!(disk.names().len() < 10, "{:?}", disk.names());
}

/// The next attempt of the commits that wait is up to 100 ms away, but a call that blocks for its own commit does not fail.
#[test]
fn space_that_comes_back_is_used_at_once() {
    let (disk, mut node) = store_with_waiting_drops();
    disk.set_full(false);
    assert_eq!(node.engine.add_range(OTHER, KeyRange::ALL), Ok(()));
    assert_eq!(node.engine.poisoned(), None);
}

/// The drops that fit are written, and free the space of the others.
#[test]
fn a_part_of_the_drops_frees_space_for_the_rest() {
    let (disk, mut node) = store_of(3_600);
    disk.set_capacity_bytes(Some(used_bytes(&disk)));
    node.engine.drop_range(RANGE).unwrap();
    poll_for_a_minute(&mut node);
    assert!(disk.names().len() < 10, "{:?}", disk.names());
    drop(node.engine.close().unwrap());
    let node = TestNode::open(&disk, options(), Now::at(1_000_000)).unwrap();
    assert!(node.engine.log_report().segments < 10);
}

/// There is enough for the file that would replace the manifest, not for what is appended to it.
#[test]
fn a_rewrite_is_tried_while_commits_wait() {
    let (disk, mut node) = store_of(3_600);
    for _ in 0..30 {
        node.engine.put_blob(5, &[1; 1_000]).unwrap();
        node.turn();
    }
    disk.set_full(true);
    node.engine.drop_range(RANGE).unwrap();
    poll_for_a_minute(&mut node);
    let waiting = disk.names().len();
    assert!(waiting > 50, "{waiting} files");
    disk.set_full(false);
    disk.set_capacity_bytes(Some(used_bytes(&disk) + (36 << 10)));
    poll_for_a_minute(&mut node);
    assert!(disk.names().len() < 10, "{:?}", disk.names());
}

/// The space of commits was reserved in the new file, whose name is refused: a call that waits for one needs it in the old file.
#[test]
fn a_refused_name_leaves_the_commits_their_space() {
    let (disk, mut node) = store_in_a_rewrite();
    for blob in 0..4 {
        node.engine.put_blob(6, &vec![blob; 8_000]).unwrap();
    }
    disk.fail_every(OpKind::Rename, DeviceFault::Exhausted);
    assert_eq!(node.engine.drop_range(RANGE), Ok(()));
    poll_for_a_minute(&mut node);
    assert!(disk.names().len() < 10, "{:?}", disk.names());
}

/// A manifest that is being rewritten, on a device that is full since, and as many commits meanwhile as are taken.
fn full_store_in_a_rewrite() -> (SimDisk, TestNode) {
    let (disk, mut node) = store_in_a_rewrite();
    disk.set_full(true);
    let taken = (0..100).filter(|_| node.engine.put_blob(5, &[2; 1_000]).is_ok()).count();
    assert!((1..100).contains(&taken), "{taken} commits were taken");
    (disk, node)
}

fn store_in_a_rewrite() -> (SimDisk, TestNode) {
    let (disk, mut node) = store_of(40);
    let is_rewritten = |disk: &SimDisk| disk.names().contains(&"manifest.new".to_owned());
    for blobs in 0.. {
        assert!(blobs < 1_000, "the manifest is not rewritten");
        node.engine.put_blob(5, &[1; 1_000]).unwrap();
        if is_rewritten(&disk) {
            break;
        }
        if blobs % 4 == 0 {
            node.turn();
            if is_rewritten(&disk) {
                break;
            }
        }
    }
    (disk, node)
}

#[test]
fn commits_during_a_rewrite_count_against_the_new_file() {
    let (_disk, mut node) = full_store_in_a_rewrite();
    let _ = node.engine.add_range(OTHER, KeyRange::ALL);
    assert_eq!(node.engine.poisoned(), None);
    let (disk, mut node) = full_store_in_a_rewrite();
    poll_for_a_minute(&mut node);
    let before = disk.names().len();
    assert_eq!(node.engine.drop_range(RANGE), Ok(()));
    poll_for_a_minute(&mut node);
    assert!(disk.names().len() < before, "{:?}", disk.names());
}

/// More is allocated ahead for more ranges, so the length that was allocated is not the one that the state at the end has.
#[test]
fn a_rewritten_manifest_knows_its_allocated_end() {
    for len in (12_000..17_000).step_by(40) {
        let disk = SimDisk::new(SimOptions::default());
        let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
        node.engine.put_blob(6, &vec![1; len]).unwrap();
        for blobs in 0.. {
            assert!(blobs < 2_000, "the manifest is not rewritten");
            node.turn();
            node.engine.put_blob(5, &[1; 1_000]).unwrap();
            if disk.names().contains(&"manifest.new".to_owned()) {
                break;
            }
        }
        disk.set_full(true);
        let _ = node.engine.add_range(OTHER, KeyRange::ALL);
        while node.engine.put_blob(5, &[2; 200]).is_ok() {
            node.turn();
        }
        assert_eq!(node.engine.poisoned(), None, "a blob of {len} bytes");
    }
}

/// The space of a torn append stays the manifest's: a full device might not give it a second time.
#[test]
fn an_append_that_was_torn_on_a_full_device_leaves_its_space() {
    let mut torn = 0;
    for seed in 0..60 {
        let (disk, mut node) = store_of(8);
        disk.set_capacity_bytes(Some(used_bytes(&disk)));
        for _ in 0..16 + seed % 5 {
            node.engine.put_blob(5, &[1; 1_000]).unwrap();
            node.turn();
        }
        node.engine.put_blob(5, &[2; 1_000]).unwrap();
        disk.crash(seed);
        let verdict = decode_all(&disk.contents("manifest").unwrap()).unwrap().verdict;
        torn += u64::from(matches!(verdict, ManifestVerdict::TornAt { .. }));
        for opening in 0..3 {
            let now = Now::at(10_000 * (opening + 1));
            let node = TestNode::open(&disk, options(), now).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            drop(node);
            disk.kill(seed);
        }
        let mut node = TestNode::open(&disk, options(), Now::at(100_000)).unwrap();
        node.engine.drop_range(RANGE).unwrap();
        poll_for_a_minute(&mut node);
        assert!(disk.names().len() < 10, "seed {seed}: {:?}", disk.names());
    }
    println!("{torn} of 60 appends were torn");
    assert!(torn > 5, "{torn} of 60 appends were torn");
}

/// The end of the log is recorded once there is space. Until then a poll costs no system call for that.
#[test]
fn an_idle_store_seldom_asks_a_full_device_for_space() {
    let (disk, mut node) = store_of(8);
    disk.set_full(true);
    while node.engine.put_blob(5, &[1]).is_ok() {
        node.turn();
    }
    node.append(&[TestWrite { key: b"last".to_vec(), value: Some(vec![1; 10]), expires_at_ms: 0 }]).unwrap();
    node.settle();
    node.now = node.now.plus_ms(2_000);
    let before = disk.counted(OpKind::Allocate);
    for _ in 0..1_000 {
        node.engine.poll(node.now, &mut Vec::new());
        node.now = node.now.plus_ms(1);
    }
    let asked = disk.counted(OpKind::Allocate) - before;
    assert!((1..=40).contains(&asked), "{asked} allocations in a second");
}

/// Another program has filled the disk, and each start commits a generation and an epoch.
#[test]
fn a_thousand_starts_on_a_full_device_leave_space_for_drops() {
    let (disk, node) = store_of(40);
    drop(node.engine.close().unwrap());
    disk.set_full(true);
    for start in 1..=1_000 {
        let now = Now::at(10_000 * start);
        let node = TestNode::open(&disk, options(), now).unwrap_or_else(|error| panic!("start {start}: {error}"));
        if start % 3 == 0 {
            drop(node.engine.close().unwrap());
        } else {
            drop(node);
            disk.kill(start);
        }
    }
    let mut node = TestNode::open(&disk, options(), Now::at(100_000_000)).unwrap();
    assert_eq!(node.engine.drop_range(RANGE), Ok(()));
    poll_for_a_minute(&mut node);
    assert!(disk.names().len() < 10, "{:?}", disk.names());
}

#[test]
fn every_crash_while_the_spare_replaces_the_manifest_keeps_what_was_durable() {
    let (disk, node) = store_of(8);
    drop(node.engine.close().unwrap());
    disk.set_full(true);
    let (mut images, mut exchanges) = (0, 0);
    for start in 1..=200 {
        let before = disk.counted(OpKind::Rename);
        let loss = if start % 2 == 0 { Loss::Power } else { Loss::Process };
        disk.capture(Capture::Every { stride: 1, loss, seed: start });
        let mut node = TestNode::open(&disk, options(), Now::at(10_000 * start)).unwrap();
        disk.capture(Capture::Never);
        let taken = disk.take_images();
        node.engine.put_blob(5, &start.to_le_bytes()).unwrap();
        drop(node.engine.close().unwrap());
        if disk.counted(OpKind::Rename) == before {
            continue;
        }
        exchanges += 1;
        for image in taken {
            let context = format!("start {start}, operation {}", image.op);
            // The second opening exchanges the files again or fills the manifest behind what the first has left.
            for opening in 0..2 {
                let now = Now::at(10_000 * (start + 1 + opening));
                let node = TestNode::open(&image.disk, options(), now);
                let node = node.unwrap_or_else(|error| panic!("{context}: {error}"));
                assert_eq!(node.engine.blob(5).unwrap_or_default(), (start - 1).to_le_bytes(), "{context}");
                drop(node);
                image.disk.crash(opening);
            }
            images += 1;
        }
    }
    println!("{images} images, {exchanges} exchanges");
    assert!(images > 100 && exchanges >= 2, "{images} images, {exchanges} exchanges");
}
