//! Hanging disk: the engine reports since when its oldest write or sync is in flight.
use crate::support::{TestNode, TestWrite, small};
use fawn_flash::sim::OpKind;
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::{Durability, MonoMs, Now};

#[test]
fn the_oldest_write_in_flight_has_an_age() {
    for (durability, kind) in [(Durability::Sync, OpKind::Write), (Durability::EverySecond, OpKind::Sync)] {
        let disk = SimDisk::new(SimOptions::instant(1));
        let mut node = TestNode::open(&disk, small(durability), Now::at(10_000)).unwrap();
        let write = |key: &[u8]| TestWrite { key: key.to_vec(), value: Some(vec![1; 100]), expires_at_ms: 0 };
        node.append(&[write(b"before")]).unwrap();
        node.settle();
        for _ in 0..10 {
            node.turn();
        }
        assert_eq!(node.engine.oldest_write(), None, "all is done");
        disk.hang(kind);
        let mut since = None;
        for step in 0..40 {
            node.now = Now::at(20_000 + 100 * step);
            if step < 30 {
                node.append(&[write(format!("k{step}").as_bytes())]).unwrap();
            }
            node.turn();
            since = since.or(node.engine.oldest_write());
        }
        let since = since.expect("a write or sync is in flight");
        assert!(since <= MonoMs(22_000), "{since:?}");
        assert_eq!(node.engine.oldest_write(), Some(since), "{durability:?}: later ones do not hide it");
        disk.release_hung();
        for _ in 0..10 {
            node.turn();
        }
        assert_eq!(node.engine.oldest_write(), None);
    }
}
