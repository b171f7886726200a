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
fn open_with_an_old_version_behind_a_checkpoint(is_split: bool) {
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
        if is_split {
            opened.split(LOW.0, ring_at(0x20), 4, 5);
            opened.disk.kill(1);
            opened.engine = Engine::open(SimDevice::attach(&opened.disk), opened.options.clone(), now).unwrap().0;
        }
        let id = opened.range_of(&key).unwrap();
        assert_eq!(opened.get(id, &key), Ok(Some(new.to_vec())));
    }
}

#[test]
fn an_old_version_behind_a_checkpoint_does_not_replace_a_survivor_in_it() {
    open_with_an_old_version_behind_a_checkpoint(false);
}

/// The checkpoint is from before the split, and both versions belong to an heir.
#[test]
fn an_old_version_of_a_parent_behind_a_checkpoint_does_not_replace_a_survivor_in_it() {
    open_with_an_old_version_behind_a_checkpoint(true);
}

/// Writes until the log goes on in another segment: records that stay, or versions of one key.
fn end_segment(harness: &mut RangeHarness, keys: &mut impl Iterator<Item = Vec<u8>>, stays: bool) {
    let (mut key, mut last) = (keys.next().unwrap(), None);
    loop {
        let value = [keys.next().unwrap().as_slice(), &[4; 3_000]].concat();
        harness.write(&key, Some(&value));
        harness.turn();
        let segment = holders(&harness.disk, &value).pop().unwrap();
        if last.is_some_and(|last| last != segment) {
            return;
        }
        last = Some(segment);
        key = if stays { keys.next().unwrap() } else { key };
    }
}

/// A survivors' segment has a delete that hides a put behind the checkpoint's position, and is scanned whole for that. It
/// also has an old version whose newer one lies before the position.
#[test]
fn an_old_survivor_that_is_scanned_for_a_delete_does_not_replace_a_newer_version_in_the_checkpoint() {
    let options = Options { space_amplification_max_percent: 0, ..small(Durability::Sync) };
    let mut harness = RangeHarness::new(SimDisk::new(SimOptions::instant(1)), options, true);
    harness.add(LOW.0, KeyRange { end: Some(ring_at(0x40)), ..KeyRange::ALL });
    harness.add(2, KeyRange { start: ring_at(0x40), end: Some(ring_at(0xC0)) });
    harness.add(3, KeyRange { start: ring_at(0xC0), end: None });
    let low: Vec<_> = keys(0..0x40).take(4).collect();
    let mut others = keys(0x40..0xC0);
    let (old, new) = ([0xA1; 300], [0xA2; 300]);
    (0..6).for_each(|_| end_segment(&mut harness, &mut others, true));
    // The old version becomes a survivor: the rest of its segment dies.
    harness.write(&low[0], Some(&old));
    harness.turn();
    let original = holders(&harness.disk, &old);
    end_segment(&mut harness, &mut others, false);
    harness.write(&low[1], Some(b"newer than the original"));
    while holders(&harness.disk, &old) == original {
        end_segment(&mut harness, &mut others, false);
    }
    // The newer version and the deleted one lie among records that stay.
    harness.write(&low[0], Some(&new));
    (0..3).for_each(|_| end_segment(&mut harness, &mut others, true));
    harness.write(&low[2], Some(&[3; 300]));
    harness.write(&keys(0xC0..0xFF).next().unwrap(), Some(b"not committed"));
    harness.models.remove(&RangeId(3));
    (0..3).for_each(|_| end_segment(&mut harness, &mut others, true));
    harness.write(&low[2], None);
    end_segment(&mut harness, &mut others, false);
    harness.write(&low[3], Some(b"newer than the delete"));
    let mut images = 0;
    for _ in 0..12 {
        end_segment(&mut harness, &mut others, false);
        let image = harness.disk.image(Loss::Process, 1);
        let (engine, report) = Engine::open(SimDevice::attach(&image), harness.options.clone(), harness.now).unwrap();
        assert!(report.checkpoint_entries.is_some());
        images += u32::from(!holders(&image, &old).is_empty());
        let (options, models, now) = (harness.options.clone(), harness.models.clone(), harness.now);
        let mut opened = RangeHarness { disk: image, engine, options, models, now, is_sole: true };
        assert_eq!(opened.get(LOW, &low[0]), Ok(Some(new.to_vec())));
    }
    assert!(harness.engine.stats().moved_tombstones > 0 && images > 0);
}
