//! Pointers of 40 bits: the width of a new store, and stores whose segments lie beyond the 64 GiB that 32 bits can name.
use crate::support::{TestNode, TestWrite, small};
use fawn_ds::internals::format::StoreUuid;
use fawn_ds::internals::format::manifest::{ManifestHeader, decode_all, encode_header, encode_snapshot, slots_max};
use fawn_ds::internals::format::segment::{self, HEADER_BYTES};
use fawn_ds::internals::index::PointerWidth;
use fawn_ds::internals::{Options, RecordRef, View, check, open_for_salvage};
use fawn_flash::{Device, SimDevice, SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Now};
use std::collections::BTreeMap;

const SEGMENT_BYTES: u32 = 1 << 20;

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(pointers_if_new: Option<PointerWidth>) -> Options {
    Options {
        segment_bytes: SEGMENT_BYTES,
        memory_bytes: 8 << 20,
        space_amplification_max_percent: 110,
        pointers_if_new,
        ..small(Durability::Sync)
    }
}

fn write_some(node: &mut TestNode, content: &mut Content, rng: &mut Rng, count: usize) {
    for i in 0..count {
        let key = format!("key {}", rng.below(1500)).into_bytes();
        let value = (rng.below(10) > 0).then(|| vec![rng.next() as u8; 2000 + i % 5000]);
        match &value {
            Some(value) => content.insert(key.clone(), value.clone()),
            None => content.remove(&key),
        };
        node.append(&[TestWrite { key, value, expires_at_ms: 0 }]).unwrap();
        if i % 8 == 0 {
            node.turn();
        }
    }
    node.settle();
}

fn assert_content(node: &mut TestNode, content: &Content) {
    for (key, value) in content {
        let found = node.get(key, View::Committed).unwrap();
        assert_eq!(found.as_ref().map(|entry| &entry.value[..]), Some(&value[..]), "{}", key.escape_ascii());
    }
    assert_eq!(node.keys(), content.keys().cloned().collect::<Vec<_>>());
}

fn identity_pointers(disk: &SimDisk) -> PointerWidth {
    decode_all(&disk.contents("manifest").unwrap()).unwrap().state.identity.unwrap().pointers
}

/// The same store, as if its segments had got slots that 32 bits cannot name.
fn move_to_high_slots(disk: &SimDisk) -> SimDisk {
    let mut state = decode_all(&disk.contents("manifest").unwrap()).unwrap().state;
    let first = slots_max(SEGMENT_BYTES, PointerWidth::Bits32);
    let moved = SimDisk::new(SimOptions::default());
    state.checkpoints.clear();
    state.segments = core::mem::take(&mut state.segments)
        .into_iter()
        .map(|(slot, entry)| {
            let mut bytes = disk.contents(&segment::file_name(slot, entry.uuid)).unwrap();
            let mut header = segment::decode(&bytes[..HEADER_BYTES]).unwrap();
            header.slot += first;
            segment::encode(&header, &mut bytes[..HEADER_BYTES]);
            moved.put(&segment::file_name(header.slot, entry.uuid), &bytes);
            (header.slot, entry)
        })
        .collect();
    moved.put("manifest", &encode_snapshot(&state, 1));
    moved
}

#[test]
fn a_store_is_as_wide_as_its_capacity_needs() {
    let (limit, narrow, wide) = (64 << 30, PointerWidth::Bits32, PointerWidth::Bits40);
    let cases = [
        (None, None, wide),
        (None, Some(limit), narrow),
        (Some(limit), None, narrow),
        (Some(limit + 1), Some(1 << 30), wide),
        (Some(1 << 30), None, narrow),
    ];
    for (capacity_bytes, device_bytes, expected) in cases {
        let disk = SimDisk::new(SimOptions::default());
        disk.set_capacity_bytes(device_bytes);
        let node = TestNode::open(&disk, Options { capacity_bytes, ..options(None) }, Now::at(1)).unwrap();
        drop(node.engine.close().unwrap());
        assert_eq!(identity_pointers(&disk), expected, "capacity {capacity_bytes:?} on a device of {device_bytes:?}");
        // An existing store keeps its width.
        let other = if expected == wide { narrow } else { wide };
        let node = TestNode::open(&disk, options(Some(other)), Now::at(2)).unwrap();
        assert_eq!(node.engine.options().index.pointers, expected);
        drop(node.engine.close().unwrap());
        assert_eq!(identity_pointers(&disk), expected);
    }
}

#[test]
fn segments_beyond_32_bits_are_read_overwritten_cleaned_and_checkpointed() {
    let (mut rng, mut content) = (Rng::new(11), Content::new());
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open(&disk, options(Some(PointerWidth::Bits40)), Now::at(1)).unwrap();
    write_some(&mut node, &mut content, &mut rng, 3000);
    drop(node.engine.close().unwrap());
    let high = move_to_high_slots(&disk);
    assert!(check::check(&mut SimDevice::attach(&high)).unwrap().findings.is_empty());
    for round in 0..4 {
        let now = Now::at(1_000_000 * (round + 1));
        let mut node = TestNode::open(&high, options(None), now).unwrap();
        assert!(node.report.checkpoints_refused.is_empty(), "{:?}", node.report.checkpoints_refused);
        assert_eq!(node.report.checkpoint_entries.is_some(), round > 0, "round {round}");
        assert_content(&mut node, &content);
        let cleaned = node.engine.stats().moved_records;
        write_some(&mut node, &mut content, &mut rng, 2000);
        assert_content(&mut node, &content);
        assert!(node.engine.stats().moved_records > cleaned, "round {round} cleaned nothing");
        drop(node.engine.close().unwrap());
    }
    let state = decode_all(&high.contents("manifest").unwrap()).unwrap().state;
    let first = slots_max(SEGMENT_BYTES, PointerWidth::Bits32);
    assert!(state.segments.keys().any(|&slot| slot < first), "new segments take the lowest slots");
}

#[test]
fn segments_beyond_32_bits_are_salvaged() {
    let (mut rng, mut content) = (Rng::new(12), Content::new());
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open(&disk, options(Some(PointerWidth::Bits40)), Now::at(1)).unwrap();
    write_some(&mut node, &mut content, &mut rng, 500);
    drop(node.engine.close().unwrap());
    let high = move_to_high_slots(&disk);
    let segment = high.names().into_iter().find(|name| segment::is_file_name(name)).unwrap();
    let salvaged = || {
        let device = || Ok(SimDevice::attach(&high));
        let (mut engine, found) = open_for_salvage(device, &options(None), Now::at(2)).unwrap();
        assert!(found.is_damaged());
        let mut salvaged = Content::new();
        let visit = |_, record: &RecordRef<'_>| {
            salvaged.insert(record.key.to_vec(), record.value.to_vec());
            Ok::<_, ()>(())
        };
        assert_eq!(engine.dump(visit).unwrap().unread, 0);
        salvaged
    };
    high.flip_bits(&segment, 8192, 1);
    let left = salvaged();
    let is_left = |(key, value): &(&Vec<u8>, &Vec<u8>)| left.get(*key) == Some(value);
    assert!(content.iter().filter(is_left).count() >= content.len() - 1, "one record was hit");
    high.flip_bits(&segment, 8192, 1);
    SimDevice::attach(&high).unlink("manifest").unwrap();
    assert_eq!(salvaged(), content, "without its manifest, it may have the longer ones");
}

#[test]
fn a_store_of_32_bits_refuses_slots_that_its_pointers_cannot_name() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open(&disk, options(Some(PointerWidth::Bits32)), Now::at(1)).unwrap();
    write_some(&mut node, &mut Content::new(), &mut Rng::new(3), 20);
    drop(node.engine.close().unwrap());
    let high = move_to_high_slots(&disk);
    let refused = TestNode::open(&high, options(None), Now::at(2)).err().unwrap().to_string();
    assert!(refused.starts_with("manifest"), "{refused}");
}

/// The first commit of the format page as it was before stores had a width.
#[test]
fn a_store_without_a_width_has_pointers_of_32_bits() {
    let header = ManifestHeader { store: StoreUuid(core::array::from_fn(|i| 0x40 + i as u8)), rewrite: 0 };
    let commit: [u128; 6] = [
        0x46776e4d_3c000000_b4726a3e_2633d757,
        0x00020000_00000000_00000000_00000000,
        0x01000000_28000000_40414243_44454647,
        0x48494a4b_4c4d4e4f_02000000_00000004,
        0x60616263_64656667_68696a6b_6c6d6e6f,
        0x02000000_04000000_01000000_00000000,
    ];
    let mut bytes = encode_header(&header).to_vec();
    bytes.extend(commit.iter().flat_map(|line| line.to_be_bytes()));
    let state = decode_all(&bytes).unwrap().state;
    assert_eq!(state.identity.unwrap().pointers, PointerWidth::Bits32);
    assert_eq!(decode_all(&encode_snapshot(&state, 2)).unwrap().state, state, "rewritten with its width");
}
