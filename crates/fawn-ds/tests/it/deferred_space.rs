//! Space of a store that never runs for long enough to confirm what its openings defer.
use crate::support::{RANGE, TestNode, TestWrite, small};
use fawn_ds::internals::{Options, View};
use fawn_flash::{SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Now};

const SEGMENT_BYTES: u64 = 64 << 10;
const OPENINGS: u64 = 300;

fn acknowledge(node: &mut TestNode) {
    for _ in 0..100 {
        if node.turn() == node.engine.progress(RANGE).appended {
            return;
        }
    }
    panic!("{:?}", node.engine);
}

/// Opens a store of so many segments again and again. In each opening, hot keys are overwritten and one or two new ones are
/// written, which keep segments from dying whole.
fn open_often(segments: u64, hot: u64, cold: u64, is_of_device: bool) {
    let disk = SimDisk::new(SimOptions::default());
    let capacity_bytes = segments * SEGMENT_BYTES;
    // The manifest and checkpoints are besides the segments.
    disk.set_capacity_bytes(is_of_device.then_some(capacity_bytes + (360 << 10)));
    let options = Options { capacity_bytes: (!is_of_device).then_some(capacity_bytes), ..small(Durability::Sync) };
    let (mut now, mut rng, mut deferred) = (Now::at(1_000), Rng::new(1), 0);
    for opening in 0..OPENINGS {
        let mut node = TestNode::open(&disk, options.clone(), now).unwrap();
        deferred = deferred.max(node.engine.verifications_deferred() as u64);
        let cold = (0..cold).map(|number| format!("cold-{opening}-{number}"));
        let hot = (0..62).map(|_| format!("hot-{}", rng.below(hot)));
        for (number, key) in cold.chain(hot).enumerate() {
            let write = TestWrite { key: key.into_bytes(), value: Some(vec![1; 900]), expires_at_ms: 0 };
            let written = node.append(&[write]);
            assert!(written.is_ok(), "{segments}, opening {opening}: {written:?} {:?}", node.engine.log_report());
            if number % 8 == 0 {
                node.turn();
                node.now = node.now.plus_ms(1);
            }
        }
        acknowledge(&mut node);
        now = node.now.plus_ms(5);
        if opening % 2 == 0 {
            node.engine.close().unwrap();
        } else {
            drop(node);
            disk.kill(opening);
        }
    }
    assert!(deferred > hot / 2, "{deferred} keys");
    let mut node = TestNode::open(&disk, options, now).unwrap();
    for opening in 0..OPENINGS {
        let key = format!("cold-{opening}-0").into_bytes();
        assert!(node.get(&key, View::Committed).unwrap().is_some(), "{opening}");
    }
}

/// Segments with deferred records are not cleaned, and no checkpoint begins meanwhile. So the log grows with each opening, of
/// which each begins to confirm anew, until hardly any space is left.
#[test]
fn openings_of_short_duration_do_not_fill_the_store() {
    open_often(64, 600, 2, false);
    open_often(24, 150, 1, false);
    // The device is the limit.
    open_often(64, 600, 2, true);
}
