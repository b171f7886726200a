//! Long results: the limits of a record's result, and that it is returned complete.
use crate::support::{RANGE, TestNode, small};
use fawn_ds::internals::{EngineError, Options, RecordRef, Replay, View};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{ClientTag, Durability, Epoch, Now, Version};

/// A quarter of a segment of 1 MiB.
const QUARTER: usize = 256 << 10;

fn options() -> Options {
    Options { segment_bytes: 1 << 20, memory_bytes: 4 << 20, ..small(Durability::Sync) }
}

fn append(node: &mut TestNode, seq: u64, value_len: usize, result: &[u8]) -> Result<(), EngineError> {
    let (key, value) = (format!("key {seq}").into_bytes(), vec![seq as u8; value_len]);
    let version = Version::new(Epoch::new(1).unwrap(), seq).unwrap();
    let mut record = RecordRef::put(version, &key, &value);
    (record.tag, record.result) = (ClientTag { session: 1, seq }, result);
    for _ in 0..1000 {
        match node.engine.append(RANGE, TestNode::hash(&key), &record) {
            Err(EngineError::Overloaded) => drop(node.turn()),
            result => return result,
        }
    }
    panic!("a long window blocks later records: {:?}", node.engine.memory());
}

#[test]
fn a_result_is_as_long_as_the_longest_value_and_a_header() {
    let disk = SimDisk::new(SimOptions::default());
    let mut node = TestNode::open_in_chain(&disk, options(), Now::at(1)).unwrap();
    node.engine.set_retain_floor(RANGE, Version::ZERO);
    let value_len = QUARTER - 100;
    let lens = [65_535, 65_536, value_len + 64, QUARTER + 64];
    for (i, len) in lens.into_iter().enumerate() {
        append(&mut node, i as u64 + 1, value_len, &vec![i as u8; len]).unwrap();
    }
    let refused = append(&mut node, 5, 10, &vec![0; QUARTER + 65]);
    assert!(matches!(refused, Err(EngineError::TooLarge { limit_bytes, .. }) if limit_bytes == QUARTER + 64));
    let refused = append(&mut node, 5, QUARTER, b"+OK");
    assert!(
        matches!(refused, Err(EngineError::TooLarge { limit_bytes: QUARTER, .. })),
        "the record itself is too long"
    );
    node.settle();
    for opened in [false, true] {
        if opened {
            disk.crash(1);
            node = TestNode::open_in_chain(&disk, options(), Now::at(1)).unwrap();
        }
        let (mut after, mut seen) = (Version::ZERO, Vec::new());
        loop {
            let visit = |record: &RecordRef<'_>| {
                assert!(
                    record.result.iter().all(|&byte| usize::from(byte) == seen.len()),
                    "the record has its own complete result"
                );
                seen.push(record.result.len());
            };
            match node.engine.replay(RANGE, after, 1, visit).unwrap() {
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
        assert_eq!(seen, lens, "reopened: {opened}");
        for seq in 1..=4 {
            let entry = node.get(format!("key {seq}").as_bytes(), View::Latest).unwrap().unwrap();
            assert_eq!(entry.value, vec![seq; value_len]);
        }
    }
}
