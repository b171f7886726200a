//! Several ranges over one log: each against its own model, through crashes, clears and reopenings.
use crate::support::{SECRET, small};
use fawn_ds::internals::{Engine, EngineError, Event, Lookup, RecordKind, RecordRef, View};
use fawn_flash::sim::{Capture, Loss};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{Durability, Epoch, KeyHash, KeyRange, Now, RangeId, Version};
use std::collections::BTreeMap;

const RANGES: [RangeId; 3] = [RangeId(1), RangeId(9), RangeId(1 << 20)];
const NOW: Now = Now::at(1);
type RangeContent = BTreeMap<u64, Vec<u8>>;

/// One range: its content now and at each version, and the acknowledged versions by time.
#[derive(Default)]
struct RangeModel {
    seq: u64,
    now: RangeContent,
    as_of: BTreeMap<Version, RangeContent>,
    acked: Vec<(u64, Version)>,
}

fn open(disk: &SimDisk) -> Engine<SimDevice> {
    let (mut engine, _) = Engine::open(SimDevice::attach(disk), small(Durability::Sync), NOW).unwrap();
    for range in RANGES {
        engine.add_range(range, KeyRange::ALL).unwrap();
        engine.begin_sole_epoch(range, engine.next_sole_epoch(range).unwrap(), None).unwrap();
    }
    engine
}

fn key(i: u64) -> Vec<u8> {
    format!("the same in all ranges {i}").into_bytes()
}

fn turn(engine: &mut Engine<SimDevice>, disk: &SimDisk, models: &mut [RangeModel]) {
    engine.submit(NOW);
    engine.wait(NOW, &mut Vec::new());
    for (range, model) in RANGES.into_iter().zip(models) {
        let synced = engine.progress(range).synced;
        engine.commit(range, synced);
        model.acked.push((disk.ops(), synced));
    }
}

fn append(engine: &mut Engine<SimDevice>, at: usize, model: &mut RangeModel, rng: &mut Rng) -> Result<(), EngineError> {
    let version = Version::new(Epoch::new(engine.generation()).unwrap(), model.seq + 1).unwrap();
    let i = rng.below(30);
    let (key, value) = (key(i), vec![rng.next() as u8; rng.below(900) as usize]);
    let kind = rng.below(60);
    if kind == 0 {
        engine.clear(RANGES[at], version)?;
        model.now.clear();
    } else if kind < 10 {
        let delete = RecordRef::bare(RecordKind::Tombstone, version, &key);
        engine.append(RANGES[at], KeyHash::of(&SECRET, &key), &delete)?;
        model.now.remove(&i);
    } else {
        engine.append(RANGES[at], KeyHash::of(&SECRET, &key), &RecordRef::put(version, &key, &value))?;
        model.now.insert(i, value);
    }
    model.seq += 1;
    model.as_of.insert(version, model.now.clone());
    Ok(())
}

fn content(engine: &mut Engine<SimDevice>, range: RangeId) -> RangeContent {
    let mut content = RangeContent::new();
    for i in 0..30 {
        let key = key(i);
        let mut lookup = engine.lookup(range, KeyHash::of(&SECRET, &key), &key, View::Committed, NOW.wall).unwrap();
        while let Lookup::Read(plan) = lookup {
            engine.read(plan, 0);
            let mut events = Vec::new();
            let plan = loop {
                engine.wait(NOW, &mut events);
                let plan = events.drain(..).find_map(|event| match event {
                    Event::Lookup { plan, .. } => Some(plan),
                    _ => None,
                });
                if let Some(plan) = plan {
                    break plan;
                }
            };
            lookup = engine.resume(plan, NOW.wall).unwrap();
        }
        if let Lookup::Found(entry) = lookup {
            content.insert(i, entry.value.to_vec());
        }
    }
    content
}

/// Every range must be a prefix of its own history and contain all acknowledged writes.
fn check(engine: &mut Engine<SimDevice>, models: &[RangeModel], op: u64, context: &str) {
    for (range, model) in RANGES.into_iter().zip(models) {
        let recovered = engine.progress(range).committed;
        let acked = model.acked.iter().rev().find(|(at, _)| *at <= op).map_or(Version::ZERO, |(_, version)| *version);
        assert!(recovered >= acked, "{context}: {range:?}: {acked:?} was acked, {recovered:?} recovered");
        let none = RangeContent::new();
        let expected = model.as_of.get(&recovered).unwrap_or(&none);
        assert_eq!(&content(engine, range), expected, "{context}: {range:?} as of {recovered:?}");
        assert_eq!(engine.len(range), expected.len() as u64, "{context}: {range:?} counted");
    }
}

#[test]
fn ranges_share_a_log_and_nothing_else() {
    let mut images = 0;
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        let mut models: Vec<RangeModel> = RANGES.iter().map(|_| RangeModel::default()).collect();
        let mut engine = open(&disk);
        disk.capture(Capture::Every { stride: 3, loss: Loss::Power, seed });
        for step in 0..500 {
            let at = rng.below(3) as usize;
            while let Err(error) = append(&mut engine, at, &mut models[at], &mut rng) {
                assert_eq!(error, EngineError::Overloaded, "seed {seed}");
                turn(&mut engine, &disk, &mut models);
            }
            if rng.below(3) == 0 {
                turn(&mut engine, &disk, &mut models);
            }
            for image in disk.take_images() {
                let context = format!("seed {seed}, operation {} (… --test it ranges::)", image.op);
                let mut engine = open(&image.disk);
                check(&mut engine, &models, image.op, &context);
                images += 1;
            }
            if step % 125 == 124 {
                drop(engine);
                disk.crash(seed + step);
                let _ = disk.take_images();
                engine = open(&disk);
                check(&mut engine, &models, disk.ops(), &format!("seed {seed}, reopened at step {step}"));
                // Lost records that were not acknowledged are removed from the history.
                for (range, model) in RANGES.into_iter().zip(&mut models) {
                    let recovered = engine.progress(range).committed;
                    model.as_of.retain(|version, _| *version <= recovered);
                    model.now = model.as_of.get(&recovered).cloned().unwrap_or_default();
                    model.acked.push((disk.ops(), recovered));
                    model.seq = 0;
                }
            }
        }
    }
    println!("{images} images");
    assert!(images > 300, "only {images} images");
}
