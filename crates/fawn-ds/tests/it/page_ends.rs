//! Owns the records at page ends: wherever a segment's last record begins, it is found, and overwritten once.
use crate::support::{Node, Write, small};
use fawn_ds::{Options, View};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, TimeMs};

fn write(key: &[u8], value: &[u8]) -> Write {
    Write { key: key.to_vec(), value: Some(value.to_vec()), expires_at_ms: 0 }
}

/// The last record's header lies across a page's end for one start in sixteen; the page before is cached, the rest is
/// not, and a length guessed from the header's greatest size would reach past the segment's end.
#[test]
fn the_last_record_is_found_wherever_it_begins() {
    for filler_bytes in (3600..4200).step_by(16) {
        let disk = SimDisk::new(SimOptions::instant(1));
        let options = Options { memory_bytes: 16 << 20, ..small(Durability::Sync) };
        let mut node = Node::open(&disk, options.clone(), TimeMs(1)).unwrap();
        node.append(&[write(b"filler", &vec![1; filler_bytes]), write(b"k", b"old")]).unwrap();
        node.settle();
        // Not closed: its end of the log stays where the last record ends.
        disk.kill(1);
        let mut node = Node::open(&disk, options.clone(), TimeMs(1)).unwrap();
        let value = |node: &mut Node, key: &[u8]| node.get(key, View::Committed).unwrap().map(|entry| entry.value);
        assert_eq!(value(&mut node, b"filler").map(|value| value.len()), Some(filler_bytes));
        assert_eq!(value(&mut node, b"k").as_deref(), Some(&b"old"[..]), "after {filler_bytes} bytes");
        node.append(&[write(b"k", b"new")]).unwrap();
        node.settle();
        assert_eq!(value(&mut node, b"k").as_deref(), Some(&b"new"[..]), "after {filler_bytes} bytes");
        node.engine.close().unwrap();
        let mut node = Node::open(&disk, options, TimeMs(1)).unwrap();
        assert_eq!(value(&mut node, b"k").as_deref(), Some(&b"new"[..]), "after {filler_bytes} bytes, reopened");
    }
}
