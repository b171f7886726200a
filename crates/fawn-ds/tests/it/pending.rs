//! Records between append and commit: their memory stays within a byte budget, and many versions of one key cost as
//! much as many keys.
use crate::support::{RANGE, SECRET, TestNode, small};
use fawn_ds::internals::{Engine, EngineError, Options, RecordRef, View};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, Epoch, KeyHash, KeyRange, Now, RangeId, Version};

fn version(seq: u64) -> Version {
    Version::new(Epoch::new(1).unwrap(), seq).unwrap()
}

fn chained(memory_bytes: u64) -> Options {
    Options { segment_bytes: 16 << 20, memory_bytes, ..small(Durability::Memory) }
}

fn open(options: Options) -> Engine<SimDevice> {
    let disk = SimDisk::new(SimOptions::instant(1));
    let (mut engine, _) = Engine::open(SimDevice::attach(&disk), options, Now::at(1)).unwrap();
    engine.add_range(RANGE, KeyRange::ALL).unwrap();
    engine
}

fn turn(engine: &mut Engine<SimDevice>, now: &mut Now) {
    *now = now.plus_ms(60);
    engine.submit(*now);
    engine.wait(*now, &mut Vec::new());
}

/// Appends records of `keys` keys in rotation until the engine accepts no more, even after waiting.
fn fill(engine: &mut Engine<SimDevice>, keys: u64, most: u64) -> u64 {
    let (mut now, mut refused, mut seq) = (Now::at(1), 0, 0);
    while seq < most && refused < 100 {
        let key = (seq % keys).to_be_bytes();
        let hash = KeyHash::of(&SECRET, &key);
        match engine.append(RANGE, hash, &RecordRef::put(version(seq + 1), &key, b"12345678")) {
            Ok(()) => (seq, refused) = (seq + 1, 0),
            Err(EngineError::Overloaded) => {
                refused += 1;
                turn(engine, &mut now);
            }
            Err(error) => panic!("{error}"),
        }
    }
    seq
}

#[test]
fn records_without_a_commit_stay_within_the_budget() {
    const BUDGET: u64 = 8 << 20;
    for keys in [1, 100, 200_000] {
        let mut engine = open(chained(BUDGET));
        let taken = fill(&mut engine, keys, 2_000_000);
        assert!((2_500..2_000_000).contains(&taken), "{taken} records of {keys} keys were accepted");
        let memory = engine.memory();
        assert!(memory.overlay_bytes <= BUDGET / 8 * 11 / 10, "{keys} keys: {memory:?}");
        assert!(memory.total_bytes() <= BUDGET * 11 / 10, "{keys} keys: {memory:?}");
        // Only a commit frees memory.
        engine.commit(RANGE, version(taken));
        let hash = KeyHash::of(&SECRET, b"more");
        engine.append(RANGE, hash, &RecordRef::put(version(taken + 1), b"more", b"x")).unwrap();
    }
}

#[test]
fn retained_records_of_all_ranges_stay_within_the_budget() {
    const BUDGET: u64 = 4 << 20;
    const RANGES: u32 = 16;
    let mut engine = open(chained(BUDGET));
    for id in 100..100 + RANGES {
        engine.add_range(RangeId(id), KeyRange::ALL).unwrap();
        engine.set_retain_floor(RangeId(id), Version::ZERO);
    }
    let mut now = Now::at(1);
    for seq in 1..=4000_u64 {
        for id in 100..100 + RANGES {
            let key = (seq % 100).to_be_bytes();
            let record = RecordRef::put(version(seq), &key, b"12345678");
            while engine.append(RangeId(id), KeyHash::of(&SECRET, &key), &record).is_err() {
                turn(&mut engine, &mut now);
            }
            engine.commit(RangeId(id), version(seq));
        }
    }
    let memory = engine.memory();
    assert!(memory.overlay_bytes <= BUDGET / 16 + BUDGET / 8, "{memory:?}");
    assert!(memory.total_bytes() <= BUDGET * 11 / 10, "{memory:?}");
    let floor = engine.replay_floor(RangeId(100));
    assert!(floor > Version::ZERO && floor < version(3950), "the records above {floor:?} are kept");
}

#[test]
fn many_versions_of_one_key_are_committed_and_rolled_back_in_order() {
    let mut node = {
        let disk = SimDisk::new(SimOptions::instant(1));
        TestNode::open_in_chain(&disk, chained(256 << 20), Now::at(1)).unwrap()
    };
    let keys = [&b"counter"[..], b"other"];
    let append = |node: &mut TestNode, seq: u64| {
        let key = keys[usize::from(seq.is_multiple_of(1000))];
        let value = seq.to_be_bytes();
        node.engine.append(RANGE, TestNode::hash(key), &RecordRef::put(version(seq), key, &value)).unwrap();
    };
    let value = |node: &mut TestNode, key: &[u8], view| {
        let found = node.get(key, view).unwrap().unwrap();
        u64::from_be_bytes(found.value.try_into().unwrap())
    };
    for seq in 1..=80_000 {
        append(&mut node, seq);
    }
    node.engine.commit(RANGE, version(30_500));
    assert_eq!(value(&mut node, b"counter", View::Committed), 30_500);
    assert_eq!(value(&mut node, b"other", View::Committed), 30_000);
    node.engine.rollback(RANGE, version(60_000)).unwrap();
    assert_eq!(value(&mut node, b"other", View::Latest), 60_000);
    assert_eq!(value(&mut node, b"counter", View::Latest), 59_999);
    for seq in 60_001..=60_010 {
        append(&mut node, seq);
    }
    assert_eq!(value(&mut node, b"counter", View::Latest), 60_010);
    node.engine.commit(RANGE, version(60_010));
    assert_eq!(value(&mut node, b"counter", View::Committed), 60_010);
    assert_eq!(value(&mut node, b"other", View::Committed), 60_000);
    assert_eq!(node.engine.log_report().overlay_keys, 0);
}
