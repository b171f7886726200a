//! A checkpoint that one opening cannot read, and the next one can.
use crate::support::{TestNode, TestWrite, small};
use fawn_ds::internals::{Options, View};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Now};
use std::collections::BTreeMap;

const KEYS: u64 = 400;

/// Overwrites keys of a store that is cleaned, and acknowledges all of it.
fn write_some(node: &mut TestNode, content: &mut BTreeMap<u64, u8>, rng: &mut Rng, count: usize) {
    for _ in 0..count {
        let (key, value) = (rng.below(KEYS), rng.next() as u8);
        let write = TestWrite { key: key.to_be_bytes().to_vec(), value: Some(vec![value; 300]), expires_at_ms: 0 };
        node.append(&[write]).unwrap();
        content.insert(key, value);
        if rng.below(8) == 0 {
            node.turn();
            node.now = node.now.plus_ms(1);
        }
    }
    node.settle();
}

fn assert_content(node: &mut TestNode, content: &BTreeMap<u64, u8>, context: &str) {
    for (key, value) in content {
        let found = node.get(&key.to_be_bytes(), View::Committed).unwrap().map(|entry| entry.value[0]);
        assert_eq!(found, Some(*value), "{context}: key {key}: {:?}", node.report);
    }
}

#[test]
fn a_checkpoint_that_one_opening_could_not_read_gives_the_next_one_nothing_old() {
    for seed in 0..30 {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let options = Options { space_amplification_max_percent: 110, ..small(Durability::Sync) };
        let mut node = TestNode::open(&disk, options.clone(), Now::at(1_000_000)).unwrap();
        let (mut content, mut rng) = (BTreeMap::new(), Rng::new(seed));
        write_some(&mut node, &mut content, &mut rng, 2000);
        let now = node.now;
        disk.kill(seed);
        let names: Vec<_> = disk.names().into_iter().filter(|name| name.starts_with("checkpoint-")).collect();
        names.iter().for_each(|name| disk.make_unreadable(name, 0..4096));
        let without = Options { checkpoint_log_bytes_min: u64::MAX, ..options.clone() };
        let mut node = TestNode::open(&disk, without, now).unwrap();
        assert_eq!(node.report.checkpoint_entries, None);
        let count = rng.below(300) as usize;
        write_some(&mut node, &mut content, &mut rng, count);
        let now = node.now;
        disk.heal();
        disk.kill(seed);
        let mut node = TestNode::open(&disk, options, now).unwrap();
        assert_content(&mut node, &content, &format!("seed {seed}"));
    }
}
