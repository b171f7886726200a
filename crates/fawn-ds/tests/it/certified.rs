//! Acknowledged manifest commits: corruption of them is an error on opening, never cut off as a torn write.
use crate::support::{RANGE, TestNode, TestWrite, manifest_commits, small};
use fawn_ds::internals::{OpenError, Options};
use fawn_flash::sim::{Capture, Loss, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Now, Version};

const SECTOR: usize = 512;

fn options() -> Options {
    small(Durability::Sync)
}

/// Puts a blob and waits until it is durable, which is when it may be acknowledged.
fn promise(node: &mut TestNode, key: u32, bytes: &[u8]) {
    let ticket = node.engine.put_blob(key, bytes).unwrap();
    for _ in 0..100 {
        if node.engine.is_blob_durable(ticket) {
            return;
        }
        node.engine.wait(node.now, &mut Vec::new());
    }
    panic!("the blob did not become durable");
}

fn commit_of(manifest: &[u8], content: &[u8]) -> (usize, usize) {
    let at = manifest.windows(content.len()).rposition(|window| window == content).unwrap();
    *manifest_commits(manifest).iter().find(|&&(start, end)| start < at && at < end).unwrap()
}

/// Whether opening the disk with this manifest fails as corrupt. The attempt must not change the disk.
fn is_refused(disk: &SimDisk, manifest: &[u8]) -> bool {
    disk.put("manifest", manifest);
    let refused = match TestNode::open_in_chain(disk, options(), Now::at(9000)) {
        Err(OpenError::Manifest { detail, .. }) => detail.contains("which was synced"),
        Err(error) => panic!("opening failed with another error: {error}"),
        Ok(_) => return false,
    };
    assert_eq!(disk.contents("manifest").unwrap(), manifest, "a failed opening changes nothing");
    refused
}

#[test]
fn every_flipped_bit_of_a_promise_is_refused() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open_in_chain(&disk, options(), Now::at(1)).unwrap();
    node.rest(200);
    promise(&mut node, 3, b"never to vote twice");
    node.rest(200);
    disk.crash(1);
    let manifest = disk.contents("manifest").unwrap();
    let (start, end) = commit_of(&manifest, b"never to vote twice");
    let fresh = || disk.image(Loss::Process, 0);
    for bit in start * 8..end * 8 {
        let mut corrupt = manifest.clone();
        corrupt[bit / 8] ^= 1 << (bit % 8);
        assert!(is_refused(&fresh(), &corrupt), "bit {bit}: the promise is lost without an error");
    }
    // The whole sector is lost, or has its former content.
    for fill in [0, 0xA5] {
        let mut corrupt = manifest.clone();
        corrupt[start..end.next_multiple_of(SECTOR)].fill(fill);
        assert!(is_refused(&fresh(), &corrupt), "sectors filled with {fill:#x}");
    }
    // The certifying commits themselves may be corrupt: they contain nothing else.
    for (start, end) in manifest_commits(&manifest).into_iter().filter(|&(at, _)| at >= end) {
        for bit in start * 8..end * 8 {
            let disk = fresh();
            let mut corrupt = manifest.clone();
            corrupt[bit / 8] ^= 1 << (bit % 8);
            disk.put("manifest", &corrupt);
            match TestNode::open_in_chain(&disk, options(), Now::at(9000)) {
                Ok(node) => assert_eq!(node.engine.blob(3), Some(&b"never to vote twice"[..]), "bit {bit}"),
                Err(error) => assert!(matches!(error, OpenError::Manifest { .. }), "bit {bit}: {error}"),
            }
        }
    }
}

#[test]
fn closing_certifies_at_once() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open_in_chain(&disk, options(), Now::at(1)).unwrap();
    promise(&mut node, 3, b"never to vote twice");
    node.engine.close().unwrap();
    let mut manifest = disk.contents("manifest").unwrap();
    let (start, _) = commit_of(&manifest, b"never to vote twice");
    manifest[start + 40] ^= 4;
    assert!(is_refused(&disk, &manifest));
}

#[test]
fn certifying_costs_one_write_for_a_burst_and_none_where_other_commits_follow() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open_in_chain(&disk, options(), Now::at(1)).unwrap();
    node.rest(200);
    let count = |from: u64| disk.counted(OpKind::Write) - from;
    let before = count(0);
    node.rest(200);
    assert_eq!(count(before), 0, "nothing to certify, so nothing is written");
    for i in 0..10_u8 {
        promise(&mut node, u32::from(i), &[i; 40]);
    }
    node.rest(200);
    assert_eq!(count(before), 11, "ten promises, and one write that certifies them");
    node.rest(200);
    assert_eq!(count(before), 11, "the certifying write is not certified in turn");
}

/// Every disk image taken around promises and certifying commits opens, with every acknowledged promise.
#[test]
fn every_image_keeps_every_promise() {
    let mut images = 0;
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let mut node = TestNode::open_in_chain(&disk, options(), Now::at(1)).unwrap();
        disk.capture(Capture::Every { stride: 1, loss: Loss::Power, seed });
        // `acked`: (operations so far, newest durable number). `number`: the newest one requested.
        let (mut acked, mut number) = (vec![(disk.ops(), 0_u64)], 0_u64);
        for _ in 0..120 {
            match rng.below(10) {
                0..=3 => {
                    number += 1;
                    // Some blobs span several sectors, some several pages.
                    let mut bytes = vec![number as u8; [8, 100, 700, 5000][rng.below(4) as usize]];
                    bytes[..8].copy_from_slice(&number.to_le_bytes());
                    promise(&mut node, 1, &bytes);
                    acked.push((disk.ops(), number));
                }
                4..=6 => node.rest(200),
                _ => {
                    let write = TestWrite { key: vec![7], value: Some(vec![1; 3000]), expires_at_ms: 0 };
                    let version = node.append(&[write]).unwrap();
                    node.settle();
                    assert!(node.engine.progress(RANGE).committed >= version && version > Version::ZERO);
                }
            }
            for image in disk.take_images() {
                let node = TestNode::open_in_chain(&image.disk, options(), Now::at(9000))
                    .unwrap_or_else(|error| panic!("seed {seed}, operation {}: {error}", image.op));
                let found = node.engine.blob(1).map_or(0, |blob| u64::from_le_bytes(blob[..8].try_into().unwrap()));
                let promised = acked.iter().rev().find(|(at, _)| *at <= image.op).map_or(0, |(_, number)| *number);
                assert!((promised..=number).contains(&found), "seed {seed}, operation {}: {found}", image.op);
                images += 1;
            }
        }
    }
    assert!(images > 500, "{images} images");
}

/// Of two commits in one write the second one arrives, and the first one only in part. An opening cuts both off. A later
/// commit that ends where the second one lay must not bring it back.
#[test]
fn a_commit_behind_a_torn_one_never_comes_back() {
    const PAGE: usize = 4096;
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut node = TestNode::open_in_chain(&disk, options(), Now::at(1)).unwrap();
    node.rest(200);
    promise(&mut node, 1, &[1; 160]);
    let (start, end) = commit_of(&disk.contents("manifest").unwrap(), &[1; 160]);
    let around = end - start - 160;
    // The first of them is being written while the others are queued for one write.
    let first_end = end + 160 + around;
    let torn_bytes = (first_end + 2 * PAGE).next_multiple_of(PAGE) - first_end - around;
    let blobs = [(1, vec![1; 160]), (2, vec![2; torn_bytes]), (3, vec![3; 160])];
    let tickets: Vec<_> = blobs.iter().map(|(key, bytes)| node.engine.put_blob(*key, bytes).unwrap()).collect();
    while !tickets.iter().all(|ticket| node.engine.is_blob_durable(*ticket)) {
        node.engine.wait(node.now, &mut Vec::new());
    }
    let now = node.now;
    disk.kill(1);
    let mut manifest = disk.contents("manifest").unwrap();
    let (torn, behind) = (commit_of(&manifest, &blobs[1].1), commit_of(&manifest, &blobs[2].1));
    assert!(torn.1 == behind.0 && behind.0.is_multiple_of(PAGE));
    manifest[torn.0.next_multiple_of(SECTOR)..][..SECTOR].fill(0);
    disk.put("manifest", &manifest);
    let mut node = TestNode::open_in_chain(&disk, options(), now).unwrap();
    assert!(node.engine.blob(1).is_some() && node.engine.blob(2).is_none() && node.engine.blob(3).is_none());
    let &(_, end) = manifest_commits(&disk.contents("manifest").unwrap()).last().unwrap();
    let again = vec![4; behind.0 - end - around];
    promise(&mut node, 2, &again);
    assert_eq!(commit_of(&disk.contents("manifest").unwrap(), &again).1, behind.0);
    disk.kill(1);
    let node = TestNode::open_in_chain(&disk, options(), now).unwrap();
    assert_eq!(node.engine.blob(2), Some(&again[..]));
    assert_eq!(node.engine.blob(3), None, "it was cut off");
}
