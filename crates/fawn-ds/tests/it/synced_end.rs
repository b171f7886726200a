//! Damage to the synced end of a log or of a segment: reported as corruption, never cut off as a torn write.
use crate::support::{TestNode, TestWrite, frames, small};
use fawn_ds::internals::check::check;
use fawn_ds::internals::format::manifest::decode_all;
use fawn_ds::internals::format::segment;
use fawn_ds::internals::{OpenError, View};
use fawn_flash::sim::{Capture, DeviceFault, Loss, OpKind};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, Now};

fn put(key: u32, bytes: usize) -> TestWrite {
    TestWrite { key: key.to_be_bytes().to_vec(), value: Some(vec![7; bytes]), expires_at_ms: 0 }
}

/// The segments listed in a disk's manifest, in log order: name, content, whether it is sealed.
fn listed(disk: &SimDisk) -> Vec<(String, Vec<u8>, bool)> {
    let Some(Ok(decoded)) = disk.contents("manifest").map(|bytes| decode_all(&bytes)) else { return Vec::new() };
    let mut listed: Vec<_> = decoded.state.segments.iter().collect();
    listed.sort_by_key(|(_, entry)| entry.sequence);
    let named = listed.into_iter().map(|(slot, entry)| (segment::file_name(*slot, entry.uuid), entry.sealed_len()));
    named
        .filter_map(|(name, sealed)| Some((disk.contents(&name)?, name, sealed.is_some())))
        .map(|(bytes, name, sealed)| (name, bytes, sealed))
        .collect()
}

fn is_refused(disk: &SimDisk, durability: Durability, name: &str) -> bool {
    let opened = TestNode::open(disk, small(durability), Now::at(9000));
    let refused = matches!(&opened, Err(OpenError::Corrupt { file, .. }) if file == name);
    assert!(refused || opened.is_ok(), "{:?}", opened.err());
    refused
}

/// Checks every disk image in which a segment has frames while the seal of the previous one is not listed yet. In one
/// copy the last frame of the unsealed segment is corrupt, in another it is zeros. Returns the number of such images.
fn holes(durability: Durability) -> usize {
    let mut candidates = 0;
    for seed in 0..6 {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        // A tail file would still have the frame that is damaged here.
        disk.fail_every(OpKind::Map, DeviceFault::Fail);
        let mut node = TestNode::open(&disk, small(durability), Now::at(1000)).unwrap();
        disk.capture(Capture::Every { stride: 1, loss: Loss::Power, seed });
        for i in 0..220 {
            node.append(&[put(i, 900)]).unwrap();
            if i % 3 == 0 {
                node.turn();
                node.now = node.now.plus_ms(1);
            }
        }
        disk.capture(Capture::Never);
        for image in disk.take_images() {
            let segments = listed(&image.disk);
            for pair in segments.windows(2) {
                let (earlier, later) = (&pair[0], &pair[1]);
                let (Some(&(at, end)), false) = (frames(&earlier.1).last(), frames(&later.1).is_empty()) else {
                    continue;
                };
                if earlier.2 {
                    continue;
                }
                candidates += 1;
                let context = format!("seed {seed}, operation {} (… --test it synced_end::)", image.op);
                let corrupt = image.disk.image(Loss::Process, 0);
                corrupt.flip_bits(&earlier.0, at as u64 + 100, 4);
                assert!(is_refused(&corrupt, durability, &earlier.0), "{context}: a flipped bit");
                let lost = image.disk.image(Loss::Process, 0);
                let mut bytes = earlier.1.clone();
                bytes[at..end].fill(0);
                lost.put(&earlier.0, &bytes);
                assert!(is_refused(&lost, durability, &earlier.0), "{context}: zeros");
            }
        }
    }
    candidates
}

#[test]
fn damage_before_a_later_segment_with_data_is_never_a_torn_end() {
    for durability in [Durability::Sync, Durability::EverySecond] {
        let candidates = holes(durability);
        assert!(candidates > 0, "{durability:?}: the case did not occur");
    }
}

/// An idle log with two frames, the last one of thirty records, all acknowledged and synced.
fn log_at_rest(durability: Durability) -> (SimDisk, TestNode) {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open(&disk, small(durability), Now::at(1)).unwrap();
    node.append(&[put(1000, 900)]).unwrap();
    node.settle();
    let batch: Vec<_> = (0..30).map(|i| put(i, 900)).collect();
    node.append(&batch).unwrap();
    node.settle();
    (disk, node)
}

/// Whether the last frame is protected: an opening fails with zeros in its place, or a flipped bit at any tested
/// offset.
fn last_frame_is_protected(disk: &SimDisk, durability: Durability) -> bool {
    let (name, bytes, _) = listed(disk).into_iter().rfind(|(_, bytes, _)| !frames(bytes).is_empty()).unwrap();
    let (at, end) = *frames(&bytes).last().unwrap();
    let places = (at..end).step_by(509).map(|at| {
        let corrupt = disk.image(Loss::Process, 0);
        corrupt.flip_bits(&name, at as u64, 1);
        corrupt
    });
    let mut zeros = bytes.clone();
    zeros[at..].fill(0);
    let lost = disk.image(Loss::Process, 0);
    lost.put(&name, &zeros);
    let mut protected = true;
    for corrupt in places.chain([lost]) {
        let refused = is_refused(&corrupt, durability, &name);
        assert_eq!(
            check(&mut SimDevice::attach(&corrupt)).unwrap().is_sound(),
            !refused,
            "the check agrees with the opening"
        );
        protected &= refused;
    }
    protected
}

#[test]
fn closing_protects_the_last_frame() {
    for durability in [Durability::Sync, Durability::EverySecond, Durability::Memory] {
        let (disk, node) = log_at_rest(durability);
        drop(node.engine.close().unwrap());
        assert!(last_frame_is_protected(&disk, durability), "{durability:?}");
        let mut node = TestNode::open(&disk, small(durability), Now::at(2)).unwrap();
        assert!(node.get(&7u32.to_be_bytes(), View::Committed).unwrap().is_some());
    }
}

/// A store that is closed while it is being cleaned: no copy follows the recorded end of the survivors.
#[test]
fn closing_protects_the_last_copies_of_cleaning() {
    let (durability, mut streams) = (Durability::Memory, 0);
    for writes in (300..700).step_by(9) {
        let disk = SimDisk::new(SimOptions { seed: writes, ..SimOptions::default() });
        let mut node = TestNode::open(&disk, small(durability), Now::at(1)).unwrap();
        for i in 0..writes as u32 {
            node.append(&[put(i * 7 % (60 + i % 90), 900)]).unwrap();
            node.turn();
        }
        drop(node.engine.close().unwrap());
        for (name, bytes, _) in listed(&disk).into_iter().filter(|(_, _, is_sealed)| !is_sealed) {
            let Some(&(at, _)) = frames(&bytes).last() else { continue };
            streams += 1;
            let corrupt = disk.image(Loss::Process, 0);
            corrupt.flip_bits(&name, at as u64 + 50, 1);
            assert!(is_refused(&corrupt, durability, &name), "{name} after {writes} writes");
        }
    }
    assert!(streams > 45 + 20, "{streams} ends: survivors were seldom there");
}

#[test]
fn an_idle_log_has_its_last_frame_protected_by_one_write() {
    for durability in [Durability::Sync, Durability::EverySecond] {
        let (disk, mut node) = log_at_rest(durability);
        if durability == Durability::Sync {
            // Otherwise it is in the tail file alone.
            assert!(!last_frame_is_protected(&disk, durability), "the frame is not certified yet");
        }
        node.rest(3000);
        disk.crash(1);
        assert!(last_frame_is_protected(&disk, durability), "{durability:?}");
        let (disk, mut node) = log_at_rest(durability);
        node.rest(3000);
        let before = disk.counted(OpKind::Write);
        node.rest(60_000);
        assert_eq!(disk.counted(OpKind::Write), before, "{durability:?}: written once, not repeatedly");
        node.append(&[put(5, 10)]).unwrap();
        node.rest(3000);
        disk.crash(2);
        assert!(last_frame_is_protected(&disk, durability), "{durability:?}: again after the next write");
    }
}

/// A server that is started in a mode other than `sync` warns if it was not.
#[test]
fn an_opening_says_whether_the_end_of_the_log_was_recorded() {
    for durability in [Durability::Sync, Durability::EverySecond, Durability::Memory] {
        let open = |disk: &SimDisk| TestNode::open(disk, small(durability), Now::at(9000)).unwrap();
        let is_recorded = |disk: &SimDisk| open(&disk.image(Loss::Process, 1)).report.is_end_recorded;
        let (disk, mut node) = log_at_rest(durability);
        node.append(&[put(1, 100)]).unwrap();
        node.settle();
        assert!(!is_recorded(&disk), "{durability:?}: killed after a write");
        node.rest(3000);
        assert!(is_recorded(&disk), "{durability:?}: killed after a rest");
        drop(node.engine.close().unwrap());
        assert!(is_recorded(&disk), "{durability:?}: closed");
        drop(open(&disk));
        assert!(is_recorded(&disk), "{durability:?}: killed without a write since");
        let mut node = open(&disk);
        node.append(&[put(2, 100)]).unwrap();
        // So that `memory` has flushed it.
        node.rest(200);
        assert!(!is_recorded(&disk), "{durability:?}: killed after another write");
    }
}
