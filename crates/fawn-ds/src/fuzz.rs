//! Fuzzing of recovery: splices arbitrary bytes into the files of a valid store, then opens, checks and reads it.
//!
//! Input: splices, each `file u8, offset u24, len u16, bytes`. Functions for the decoders alone are re-exported here.
use crate::check::check;
use crate::engine::{Engine, Event, Lookup, View};
use crate::error::{EngineError, OpenError};
pub use crate::format::fuzz::{frame, manifest, record, scan, tail_frames};
use crate::format::record::RecordRef;
use crate::format::segment;
use crate::index::IndexOptions;
use crate::options::Options;
pub use crate::sorted::fuzz::{run_ends, run_page, run_tail};
use fawn_flash::sim::Loss;
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_types::{Durability, Epoch, HashSecret, KeyHash, KeyRange, Now, RangeId, TimeMs, Version};
use std::sync::OnceLock;

const RANGE: RangeId = RangeId(1);
/// Ranges with a state transfer: complete, and interrupted.
const COPIED: RangeId = RangeId(2);
const CUT_SHORT: RangeId = RangeId(3);
const COPIED_KEYS: u32 = 60;
const SECRET: HashSecret = HashSecret([3; 16]);
const KEYS: u32 = 420;
/// Maximum number of splices per input; more find nothing new.
const SPLICES_MAX: usize = 16;
/// Bound of the loops of a lookup or a flush; a longer loop hangs.
const TURNS_MAX: usize = 1000;

/// The base image of all inputs, and the position of its last frame, which no later frame certifies.
struct CorruptStore {
    disk: SimDisk,
    active: String,
    last_frame: (usize, usize),
    /// Number of keys in that frame.
    uncertified: u32,
}

static BASE: OnceLock<CorruptStore> = OnceLock::new();

fn options(read_only: bool) -> Options {
    Options {
        segment_bytes: 64 << 10,
        memory_bytes: 1 << 20,
        durability: Durability::Sync,
        secret: Some(SECRET),
        index: IndexOptions { entries_min: 64, page_entries: 8, ..IndexOptions::default() },
        read_only,
        ..Options::default()
    }
}

fn value(i: u32) -> Vec<u8> {
    vec![i as u8; 200 + (i % 100) as usize]
}

/// Opens a valid store with the splices of `data` in its files. It opens with all acknowledged data, or is refused
/// unchanged.
pub fn recovery(data: &[u8]) {
    let base = BASE.get_or_init(build);
    let disk = base.disk.image(Loss::Process, 0);
    let (spares_last_frame, touched) = splice(base, &disk, data);
    let only_one_kind = touched != [true; 2];
    let is_sound = check(&mut SimDevice::attach(&disk)).is_ok_and(|report| report.is_sound());
    let before = contents(&disk);
    if let Ok((mut engine, _)) = Engine::open(SimDevice::attach(&disk), options(true), Now::at(2)) {
        for i in (0..KEYS).step_by(29) {
            let _ = get(&mut engine, i);
        }
    }
    match Engine::open(SimDevice::attach(&disk), options(false), Now::at(2)) {
        Err(error) => {
            assert!(!matches!(error, OpenError::Device(_)), "an intact device refuses nothing: {error}");
            assert_eq!(contents(&disk), before, "a refusal changes nothing");
            assert!(!is_sound, "the offline check must find what opening refuses: {error}");
        }
        Ok((mut engine, report)) => {
            assert!(report.damage.is_empty() && !report.created, "damage is refused, and no store is begun over one");
            if only_one_kind {
                let promised = if spares_last_frame { KEYS - base.uncertified } else { 0 };
                (0..promised).for_each(|i| assert_eq!(get(&mut engine, i).as_ref(), Ok(&Some(value(i))), "key {i}"));
                let copied = if spares_last_frame { COPIED_KEYS } else { 0 };
                let found = |engine: &mut _, i| get_of(engine, COPIED, i);
                (0..copied).for_each(|i| assert_eq!(found(&mut engine, i), Ok(Some(value(i))), "copied key {i}"));
            }
            if !touched[0] {
                assert_eq!(engine.progress(CUT_SHORT).appended, Version::ZERO, "half a copy counts");
                assert!(engine.is_empty(CUT_SHORT) && engine.copying(CUT_SHORT).is_none(), "half a copy is there");
            }
            continues(&disk, engine);
        }
    }
}

/// A store that opened takes a write, keeps it, and opens again.
fn continues(disk: &SimDisk, mut engine: Engine<SimDevice>) {
    let Ok(()) = engine.add_range(RANGE, KeyRange::ALL) else { return };
    engine.commit(RANGE, engine.progress(RANGE).appended);
    let Some(epoch) = engine.next_sole_epoch(RANGE) else { return };
    let Some(version) = Version::new(epoch, 1) else { return };
    assert_eq!(engine.begin_sole_epoch(RANGE, epoch, None), Ok(()), "it begins an epoch");
    let key = KEYS.to_be_bytes();
    let put = RecordRef::put(version, &key, b"after");
    assert_eq!(engine.append(RANGE, KeyHash::of(&SECRET, &key), &put), Ok(()), "it takes writes");
    settle(&mut engine);
    drop(engine);
    disk.crash(1);
    let Ok((mut engine, _)) = Engine::open(SimDevice::attach(disk), options(false), Now::at(3)) else {
        panic!("a store that opened once opens again")
    };
    assert_eq!(get(&mut engine, KEYS), Ok(Some(b"after".to_vec())), "synced data is there");
}

fn settle(engine: &mut Engine<SimDevice>) {
    for _ in 0..TURNS_MAX {
        engine.submit(Now::at(2));
        engine.wait(Now::at(2), &mut Vec::new());
        let progress = engine.progress(RANGE);
        engine.commit(RANGE, progress.synced);
        if progress.synced == progress.appended {
            return;
        }
    }
    panic!("a flush never ends")
}

fn get(engine: &mut Engine<SimDevice>, i: u32) -> Result<Option<Vec<u8>>, EngineError> {
    get_of(engine, RANGE, i)
}

fn get_of(engine: &mut Engine<SimDevice>, range: RangeId, i: u32) -> Result<Option<Vec<u8>>, EngineError> {
    let key = i.to_be_bytes();
    let mut lookup = engine.lookup(range, KeyHash::of(&SECRET, &key), &key, View::Committed, TimeMs(2))?;
    for _ in 0..TURNS_MAX {
        let plan = match lookup {
            Lookup::Found(entry) => return Ok(Some(entry.value.to_vec())),
            Lookup::Absent | Lookup::Unsettled => return Ok(None),
            Lookup::Read(plan) => plan,
        };
        engine.read(plan, 0);
        let mut events = Vec::new();
        let plan = loop {
            engine.wait(Now::at(2), &mut events);
            let read = events.drain(..).find_map(|event| match event {
                Event::Lookup { plan, .. } => Some(plan),
                _ => None,
            });
            if let Some(plan) = read {
                break plan;
            }
        };
        lookup = engine.resume(plan, TimeMs(2))?;
    }
    panic!("the lookup of key {i} never ends")
}

fn contents(disk: &SimDisk) -> Vec<(String, Option<Vec<u8>>)> {
    disk.names().into_iter().map(|name| (name.clone(), disk.contents(&name))).collect()
}

/// Transfers a range over its old content, completely or not.
fn copy(engine: &mut Engine<SimDevice>, range: RangeId, is_whole: bool) {
    let version = |seq: u32| Version::new(Epoch::new(1).unwrap_or_default(), u64::from(seq) + 1).unwrap_or_default();
    assert_eq!(engine.add_range(range, KeyRange::ALL), Ok(()), "a store takes a range");
    let old = RecordRef::put(version(0), b"old", b"void");
    assert_eq!(engine.append(range, KeyHash::of(&SECRET, b"old"), &old), Ok(()), "it takes writes");
    assert_eq!(engine.begin_transfer(range, version(COPIED_KEYS)), Ok(()), "and begins copies");
    for i in 0..COPIED_KEYS {
        let (key, value) = (i.to_be_bytes(), value(i));
        let put = RecordRef::put(version(i), &key, &value);
        assert_eq!(engine.append_copied(range, KeyHash::of(&SECRET, &key), &put), Ok(true), "which are taken");
        settle(engine);
    }
    if is_whole {
        assert_eq!(engine.finish_transfer(range), Ok(()), "to the end");
    }
    // Time passes, in which the manifest's last commit is certified.
    for _ in 0..TURNS_MAX {
        engine.wait(Now::at(500), &mut Vec::new());
    }
    assert_eq!(engine.copying(range).is_none(), is_whole, "whole is whole");
}

/// Several generations, sealed segments, an active one with several frames, and a prepared next one.
fn build() -> CorruptStore {
    let disk = SimDisk::new(SimOptions::instant(1));
    let mut names = disk.names();
    for part in 0..3 {
        let Ok((mut engine, _)) = Engine::open(SimDevice::attach(&disk), options(false), Now::at(1)) else {
            unreachable!("a sound device takes a new store")
        };
        assert_eq!(engine.add_range(RANGE, KeyRange::ALL), Ok(()), "a new store takes a range");
        let epoch = engine.next_sole_epoch(RANGE).unwrap_or_default();
        assert_eq!(engine.begin_sole_epoch(RANGE, epoch, None), Ok(()), "and is its only member");
        for i in part * KEYS / 3..(part + 1) * KEYS / 3 {
            let version = Version::new(epoch, u64::from(i) + 1).unwrap_or_default();
            let (key, value) = (i.to_be_bytes(), value(i));
            let put = RecordRef::put(version, &key, &value);
            assert_eq!(engine.append(RANGE, KeyHash::of(&SECRET, &key), &put), Ok(()), "it takes writes");
            if i % 3 == 2 {
                settle(&mut engine);
            }
            // In the middle of the other writes, so that later frames certify the transferred records.
            match (part, i % (KEYS / 3)) {
                (1, 5) => copy(&mut engine, COPIED, true),
                (2, 5) => copy(&mut engine, CUT_SHORT, false),
                _ => {}
            }
        }
        settle(&mut engine);
        names = disk.names();
    }
    let with_frames = |name: &String| Some((frames(&disk.contents(name)?), name.clone()));
    let segments = names.iter().filter(|name| segment::is_file_name(name)).filter_map(with_frames);
    // Slots are assigned in order, and names begin with them.
    let last = segments.filter(|(frames, _)| !frames.is_empty()).max_by(|a, b| a.1.cmp(&b.1));
    let Some((frames, active)) = last else { unreachable!("what was written is in a segment") };
    let Some(&last_frame) = frames.last() else { unreachable!("it has frames") };
    CorruptStore { disk, active, last_frame, uncertified: 3 }
}

/// Start and end of a segment's frames.
fn frames(bytes: &[u8]) -> Vec<(usize, usize)> {
    let (mut frames, mut at) = (Vec::new(), crate::format::FRAMES_OFFSET as usize);
    while let Some(header) = bytes.get(at..at + 12).filter(|header| header.starts_with(&crate::format::frame::MAGIC)) {
        let end = at + u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        frames.push((at, end));
        at = end;
    }
    frames
}

/// Applies the splices. Returns whether the last frame and all bytes after it were spared, and whether the manifest and
/// the segments were touched. No format can detect forged evidence in both at once.
fn splice(base: &CorruptStore, disk: &SimDisk, mut data: &[u8]) -> (bool, [bool; 2]) {
    let mut names = disk.names();
    names.push(crate::format::manifest::NEW_FILE_NAME.to_owned());
    names.push("segment-000009-00112233445566aa.fawn".to_owned());
    let (mut spares_last_frame, mut touched) = (true, [false; 2]);
    for _ in 0..SPLICES_MAX {
        let Some((&[file, low, middle, high, len_low, len_high], rest)) = data.split_first_chunk() else { break };
        let len = usize::from(u16::from_le_bytes([len_low, len_high])).min(rest.len());
        let (bytes, rest) = rest.split_at(len);
        data = rest;
        let name = &names[usize::from(file) % names.len()];
        let mut content = disk.contents(name).unwrap_or_default();
        let at = u32::from_le_bytes([low, middle, high, 0]) as usize % (content.len() + 1);
        let end = at + bytes.len();
        content.resize(content.len().max(end), 0);
        if content[at..end] == *bytes {
            continue;
        }
        content[at..end].copy_from_slice(bytes);
        disk.put(name, &content);
        touched[usize::from(segment::is_file_name(name))] = true;
        spares_last_frame &= *name != base.active || end <= base.last_frame.0;
    }
    (spares_last_frame, touched)
}
