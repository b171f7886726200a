//! Records behind a checkpoint's position that are older than survivors before it: an opening must not prefer them.
use crate::range_harness::{RangeHarness, ring_at};
use crate::support::{SECRET, small};
use fawn_ds::internals::{Engine, Options};
use fawn_flash::sim::Loss;
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, KeyRange, RangeId, RingKey};

const LOW: RangeId = RangeId(1);

fn keys(part: std::ops::Range<u8>) -> impl Iterator<Item = Vec<u8>> {
    let keys = (0..).map(|i: u32| format!("key {i}").into_bytes());
    keys.filter(move |key| part.contains(&RingKey::of(&SECRET, key).0[0]))
}

fn holders(disk: &SimDisk, value: &[u8]) -> Vec<String> {
    let holds = |name: &String| disk.contents(name).unwrap().windows(value.len()).any(|found| found == value);
    disk.names().into_iter().filter(|name| name.starts_with("segment-")).filter(holds).collect()
}

/// Another range has a record that is not committed: checkpoints begin at the segment of that. An old version lies there
/// too, and the newer one has become a survivor before the checkpoint's position. Later survivors are a third range's.
#[test]
fn an_old_version_behind_a_checkpoint_does_not_replace_a_survivor_in_it() {
    let options = Options { space_amplification_max_percent: 0, ..small(Durability::Sync) };
    let mut harness = RangeHarness::new(SimDisk::new(SimOptions::instant(1)), options, true);
    harness.add(LOW.0, KeyRange { end: Some(ring_at(0x40)), ..KeyRange::ALL });
    harness.add(2, KeyRange { start: ring_at(0x40), end: Some(ring_at(0xC0)) });
    harness.add(3, KeyRange { start: ring_at(0xC0), end: None });
    let key = keys(0..0x40).next().unwrap();
    let others: Vec<_> = keys(0x40..0xC0).take(700).collect();
    for other in &others {
        harness.write(other, Some(&[1; 300]));
    }
    harness.settle();
    let (old, new) = ([0xA1; 300], [0xA2; 300]);
    harness.write(&key, Some(&old));
    harness.write(&keys(0xC0..0xFF).next().unwrap(), Some(b"not committed"));
    harness.models.remove(&RangeId(3));
    for other in &others[300..600] {
        harness.write(other, Some(&[2; 300]));
        harness.turn();
    }
    harness.write(&key, Some(&new));
    harness.turn();
    let original = holders(&harness.disk, &new);
    let mut rng = Rng::new(1);
    let mut overwrite = |harness: &mut RangeHarness| {
        for _ in 0..40 {
            harness.write(&others[300 + rng.below(300) as usize], Some(&[3; 300]));
            harness.turn();
        }
        assert!(harness.engine.stats().appended_records < 10_000, "{:?}", harness.engine);
    };
    (0..10).for_each(|_| overwrite(&mut harness));
    // The newest record of a range keeps its segment.
    harness.write(&keys(0..0x40).nth(1).unwrap(), Some(b"newest"));
    while holders(&harness.disk, &new).iter().any(|name| original.contains(name)) {
        overwrite(&mut harness);
    }
    for _ in 0..12 {
        overwrite(&mut harness);
        assert_eq!(holders(&harness.disk, &old).len(), 1, "the old version stays");
        let image = harness.disk.image(Loss::Process, 1);
        let (engine, report) = Engine::open(SimDevice::attach(&image), harness.options.clone(), harness.now).unwrap();
        assert!(report.checkpoint_entries.is_some());
        let (options, models, now) = (harness.options.clone(), harness.models.clone(), harness.now);
        let mut opened = RangeHarness { disk: image, engine, options, models, now, is_sole: true };
        assert_eq!(opened.get(LOW, &key), Ok(Some(new.to_vec())));
    }
}
