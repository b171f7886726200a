//! A torn end must be overwritten: frames left by an earlier process must neither be accepted nor count as evidence,
//! however little the next process writes over them.
use crate::support::{TestNode, TestWrite, small};
use fawn_ds::internals::format::SegmentUuid;
use fawn_ds::internals::format::manifest::{ManifestEdit, decode_all, encode_commit};
use fawn_ds::internals::format::segment::{self, SegmentHeader, StreamKind};
use fawn_ds::internals::{Options, View};
use fawn_flash::sim::{Capture, DeviceFault, Loss, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now};

fn options() -> Options {
    // Each padded frame consists of whole pages, so a lost frame affects no other one.
    Options { pad_frames: true, ..small(Durability::EverySecond) }
}

fn put(node: &mut TestNode, key: &str, bytes: usize) {
    node.append(&[TestWrite { key: key.into(), value: Some(vec![b'x'; bytes]), expires_at_ms: 0 }]).unwrap();
    node.settle();
}

fn has(node: &mut TestNode, key: &str) -> bool {
    node.get(key.as_bytes(), View::Committed).unwrap().is_some()
}

/// A segment filled to 44 KiB, then a lost frame, then four complete ones almost up to the segment's end.
fn torn(seed: u64) -> SimDisk {
    let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
    disk.fail_every(OpKind::Map, DeviceFault::Fail);
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    for i in 0..10 {
        put(&mut node, &format!("a{i}"), 3000);
    }
    drop(node.engine.close().unwrap());
    let mut node = TestNode::open(&disk, options(), Now::at(1)).unwrap();
    disk.fail_nth(OpKind::Write, 1, DeviceFault::Lose);
    put(&mut node, "lost", 3000);
    for i in 0..4 {
        put(&mut node, &format!("c{i}"), 3000);
    }
    disk.kill(seed);
    disk
}

#[test]
fn what_lay_behind_a_torn_end_never_comes_back() {
    let mut images = 0;
    for seed in 0..4 {
        let disk = torn(seed);
        let mut node = TestNode::open(&disk, options(), Now::at(2)).unwrap();
        let [(file, cut)] = &node.report.truncated[..] else { panic!("seed {seed}: {:?}", node.report) };
        let behind = disk.contents(file).unwrap().split_off(*cut as usize);
        assert!(behind.iter().all(|&byte| byte == 0), "seed {seed}: the cut part reads as zeros");
        assert!(!has(&mut node, "c0") && has(&mut node, "a9"), "seed {seed}");
        let loss = if seed % 2 == 0 { Loss::Power } else { Loss::Process };
        disk.capture(Capture::Every { stride: 1, loss, seed });
        // A write shorter than the cut part, then a record that does not fit in the segment any more.
        put(&mut node, "b", 100);
        put(&mut node, "big", (16 << 10) - 64);
        for i in 0..4 {
            node.now = node.now.plus_ms(2000);
            put(&mut node, &format!("d{i}"), 100);
        }
        disk.capture(Capture::Never);
        for image in disk.take_images() {
            let context = format!("seed {seed}, operation {} (cargo test -p fawn-ds --test it torn_again::)", image.op);
            let mut node =
                TestNode::open(&image.disk, options(), Now::at(3)).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert!(has(&mut node, "a9"), "{context}: the synced record");
            for i in 0..4 {
                assert!(!has(&mut node, &format!("c{i}")), "{context}: c{i} came back");
            }
            drop(node);
            // Another opening finds nothing left to cut.
            let again =
                TestNode::open(&image.disk, options(), Now::at(4)).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert_eq!(again.report.truncated, [], "{context}: cut twice");
            images += 1;
        }
    }
    assert!(images >= 60, "only {images} images");
}

/// A crash after the log moved to a new segment that has no frame yet, with the next segment already prepared.
#[test]
fn the_log_goes_on_where_it_ends_whatever_empty_segments_lie_behind() {
    for more in 1..4_u32 {
        let disk = SimDisk::new(SimOptions::default());
        let mut node = TestNode::open(&disk, small(Durability::EverySecond), Now::at(1)).unwrap();
        let write =
            |i: u32| TestWrite { key: i.to_be_bytes().to_vec(), value: Some(vec![i as u8; 3000]), expires_at_ms: 0 };
        for i in 0..5 {
            node.append(&[write(i)]).unwrap();
        }
        node.settle();
        node.engine.close().unwrap();
        let mut manifest = disk.contents("manifest").unwrap();
        let decoded = decode_all(&manifest).unwrap();
        manifest.truncate(decoded.valid_len as usize);
        let (mut edits, segment_bytes) = (Vec::new(), 64 << 10);
        for i in 1..=more {
            let (slot, uuid) = (20 + i, SegmentUuid([i as u8; 16]));
            let sequence = decoded.state.last_sequence + u64::from(i);
            let header = SegmentHeader {
                uuid,
                store: decoded.header.store,
                slot,
                sequence,
                segment_bytes,
                stream: StreamKind::Foreground,
            };
            let mut bytes = vec![0; segment_bytes as usize];
            segment::encode(&header, &mut bytes);
            disk.put(&segment::file_name(slot, uuid), &bytes);
            edits.push(ManifestEdit::AddSegment { slot, uuid, sequence, stream: StreamKind::Foreground });
        }
        encode_commit(&decoded.header, &edits, decoded.valid_len, decoded.valid_len, &mut manifest);
        disk.put("manifest", &manifest);
        let mut node = TestNode::open(&disk, small(Durability::EverySecond), Now::at(2)).unwrap();
        let marks = node.engine.watermarks();
        assert_eq!(marks.appended, marks.flushed, "{more} more: nothing was appended yet");
        for i in 5..60 {
            node.append(&[write(i)]).unwrap();
            assert!(node.engine.watermarks().flushed < node.engine.watermarks().appended, "{more} more: {i}");
        }
        node.settle();
        node.engine.close().unwrap();
        let mut node = TestNode::open(&disk, small(Durability::EverySecond), Now::at(3)).unwrap();
        for i in 0..60_u32 {
            let entry = node.get(&i.to_be_bytes(), View::Committed).unwrap();
            assert_eq!(entry.map(|entry| entry.value), write(i).value, "{more} more: key {i}");
        }
    }
}
