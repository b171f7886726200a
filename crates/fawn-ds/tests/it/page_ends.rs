//! Records at page ends: wherever a segment's last record begins, it is found, and overwritten once.
use crate::support::{TestNode, TestWrite, small};
use fawn_ds::internals::{Options, View};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, Now};

fn write(key: String, value: &[u8]) -> TestWrite {
    TestWrite { key: key.into_bytes(), value: Some(value.to_vec()), expires_at_ms: 0 }
}

/// Some combinations of a first record's length and a number of small records put the last header across a page end.
/// Then only the first of its two pages is cached, and a length guessed from the greatest header exceeds the segment's
/// end.
#[test]
fn the_last_record_is_found_wherever_it_begins() {
    for (first_bytes, small_records) in (0..3).flat_map(|f| (80..87).map(move |n| (16 * f, n))) {
        let case = format!("after {first_bytes} bytes and {small_records} records");
        let disk = SimDisk::new(SimOptions::instant(1));
        let options = Options { memory_bytes: 16 << 20, ..small(Durability::Sync) };
        let mut node = TestNode::open(&disk, options.clone(), Now::at(1)).unwrap();
        let mut writes = vec![write("first".to_owned(), &vec![1; first_bytes])];
        writes.extend((0..small_records).map(|i| write(format!("{i:08}"), b"12345678")));
        node.append(&writes).unwrap();
        node.settle();
        let last = format!("{:08}", small_records - 1);
        // Not closed, so the log ends directly after the last record.
        drop(node);
        disk.kill(1);
        let mut node = TestNode::open(&disk, options.clone(), Now::at(1)).unwrap();
        let value = |node: &mut TestNode, key: &str| {
            node.get(key.as_bytes(), View::Committed).unwrap().map(|entry| entry.value)
        };
        assert!(value(&mut node, "first").is_some(), "{case}: the page is cached now");
        assert_eq!(value(&mut node, &last).as_deref(), Some(&b"12345678"[..]), "{case}");
        node.append(&[write(last.clone(), b"new")]).unwrap();
        node.settle();
        assert_eq!(value(&mut node, &last).as_deref(), Some(&b"new"[..]), "{case}");
        assert_eq!(node.engine.len(crate::support::RANGE), small_records + 1, "{case}: one index entry per key");
    }
}
