//! Runs against a model: all records are found, absent keys are absent, key ranges are contiguous, a check finds no fault.
use crate::rng::Rng;
use crate::runs::{Owned, RunHarness, header, options};
use fawn_ds::internals::format::record::RecordKind;
use fawn_ds::internals::format::run::record::RECORD_BYTES_MAX;
use fawn_ds::internals::format::run::{SPACES, Space};
use fawn_ds::internals::sorted::{Pushed, RunSource, RunWriteError, RunWriter, RunWriterOptions, WriterState};
use fawn_flash::sim::OpKind;
use fawn_flash::{Device, IoClass};
use fawn_types::RingKey;
use std::collections::BTreeMap;

pub(crate) fn random_record(rng: &mut Rng, keys: usize, version: u64) -> Owned {
    let number = rng.below(keys);
    // A third of the keys is under a few tags.
    let key = match rng.below(3) {
        0 => format!("{{t{}}}{number}", number % 5),
        _ => format!("k{number}"),
    };
    let mut record = Owned::put(version, key, rng.bytes(300));
    record.type_byte = rng.below(8) as u8 & 5;
    record.number = 1 + rng.below(3) as u32;
    if rng.below(4) == 0 {
        record.expires_at_ms = 1 + rng.below(1000) as u64;
    }
    record.flags = rng.below(3) as u32;
    if rng.below(6) == 0 {
        record = Owned { kind: RecordKind::Tombstone, value: Vec::new(), expires_at_ms: 0, flags: 0, ..record };
    }
    record
}

pub(crate) type Model = BTreeMap<(Space, RingKey), Owned>;

#[test]
fn a_run_holds_what_was_written() {
    let mut rng = Rng::new("a_run_holds_what_was_written");
    for round in 0..30 {
        let keys = [1, 2, 40, 3000][round % 4];
        let model: Model =
            (0..keys).map(|i| random_record(&mut rng, 4 * keys, 1 + i as u64)).map(|r| (r.place(), r)).collect();
        let mut harness = RunHarness::new(rng.next());
        let filter_keys = [1, 50, 100_000][rng.below(3)];
        let options = RunWriterOptions { filter_keys, ..options(1, [1, 4, 8, 16][rng.below(4)]) };
        let listing = harness.write(options, &mut model.values().cloned().collect::<Vec<_>>());
        let (run, file) = harness.open(&listing).unwrap();
        assert_eq!(run.footer().records, model.len() as u64);
        for ((space, ring_key), record) in &model {
            assert!(run.may_contain(*space, ring_key), "the filter lacks a key");
            assert_eq!(harness.get(&run, file, *space, &record.key).0.as_ref(), Some(record));
            assert_eq!(harness.get(&run, file, *space, &[&record.key[..], b"x"].concat()).0, None);
        }
        assert_eq!(harness.check(&run, file), []);
        let (all, _) = harness.drain(RunSource::all(&run), file, 8192);
        assert_eq!(all, model.values().cloned().collect::<Vec<_>>());
        for _ in 0..20 {
            extent_is_the_models(&mut rng, &mut harness, (&run, file), &model);
        }
    }
}

fn extent_is_the_models(
    rng: &mut Rng,
    harness: &mut RunHarness,
    (run, file): (&fawn_ds::internals::sorted::Run, fawn_flash::FileId),
    model: &Model,
) {
    let space = Space::new(rng.below(SPACES) as u8).unwrap();
    let mut bound = || {
        let (_, mut key) = *model.keys().nth(rng.below(model.len())).unwrap();
        match rng.below(3) {
            0 => key = key.boundary(),
            1 => key.0[rng.below(20)] ^= 1,
            _ => {}
        }
        key
    };
    let (from, to) = (bound(), bound());
    let to = (from <= to).then_some(to);
    let source = RunSource::extent(run, space, from, to);
    let pages = source.pages_left();
    let (found, reads) = harness.drain(source, file, 4096);
    let is_inside = |(of, key): &(Space, RingKey)| *of == space && *key >= from && to.is_none_or(|to| *key < to);
    let expected: Vec<_> =
        model.iter().filter(|(place, _)| is_inside(place)).map(|(_, record)| record.clone()).collect();
    assert_eq!(found, expected, "{space:?} {from:?}..{to:?}");
    assert!(reads <= pages && pages as usize <= 3 + expected.len(), "{pages} pages for {} records", expected.len());
}

#[test]
fn an_empty_run_is_a_run() {
    let mut harness = RunHarness::new(1);
    let listing = harness.write(options(1, 4), &mut []);
    assert_eq!(listing.file_bytes, 3 * 4096);
    let (run, file) = harness.open(&listing).unwrap();
    assert_eq!(harness.get(&run, file, Space::KEYS, b"key"), (None, 0));
    assert_eq!(harness.check(&run, file), []);
    assert!(run.memory_bytes() < 1024, "{} bytes", run.memory_bytes());
}

/// The first record at or above a cut begins the next run, if the run has any.
#[test]
fn a_run_ends_at_a_cut() {
    let mut harness = RunHarness::new(1);
    let mut records: Vec<_> = (0..50).map(|i| Owned::put(1, format!("k{i}"), vec![1; 100])).collect();
    records.sort_by_cached_key(Owned::place);
    let highest = |at: usize| records[at].place().1.highest();
    // Below all, at a record, and just above two others.
    let cuts = vec![0, highest(10), highest(20) + 1, highest(21) + 1, u32::MAX];
    let mut at = 0;
    let mut ends = Vec::new();
    while at < records.len() {
        let id = 1 + ends.len() as u8;
        let options = RunWriterOptions { cuts: cuts.clone(), ..options(id, 4) };
        let mut writer = RunWriter::create(&mut harness.device, options).unwrap();
        while at < records.len() && writer.push(&records[at].as_ref()) == Ok(Pushed::Taken) {
            at += 1;
        }
        assert!(at == records.len() || writer.push(&records[at].as_ref()) == Ok(Pushed::Full));
        ends.push(at);
        let listing = harness.finish(writer);
        let (run, file) = harness.open(&listing).unwrap();
        assert_eq!(harness.check(&run, file), []);
    }
    assert_eq!(ends, [10, 21, 22, 50]);
}

#[test]
fn records_that_are_not_for_runs_are_refused_without_harm() {
    let mut harness = RunHarness::new(1);
    let mut records: Vec<_> = (0..50).map(|i| Owned::put(1, format!("k{i}"), vec![1; 100])).collect();
    records.sort_by_cached_key(Owned::place);
    let mut writer = RunWriter::create(&mut harness.device, options(1, 4)).unwrap();
    for (i, record) in records.iter().enumerate() {
        assert_eq!(writer.push(&record.as_ref()), Ok(Pushed::Taken));
        let again = writer.push(&record.as_ref());
        assert!(matches!(again, Err(RunWriteError::Order { .. })), "{again:?}");
        if i > 0 {
            let earlier = writer.push(&records[i - 1].as_ref());
            assert!(matches!(earlier, Err(RunWriteError::Order { .. })), "{earlier:?}");
        }
        let long = Owned::put(1, "k", vec![0; RECORD_BYTES_MAX]);
        assert!(matches!(writer.push(&long.as_ref()), Err(RunWriteError::NotForRuns { .. })));
    }
    let listing = harness.finish(writer);
    assert_eq!(listing.facts.records(), 50);
    let (run, file) = harness.open(&listing).unwrap();
    assert_eq!(harness.check(&run, file), []);
}

/// The longest record fits four times into a page; one byte more is refused.
#[test]
fn the_longest_records_fill_pages() {
    let mut harness = RunHarness::new(1);
    let key = |i: usize| format!("{i:06}");
    let mut records: Vec<_> = (0..400).map(|i| Owned::put(1, key(i), vec![7; RECORD_BYTES_MAX - 24])).collect();
    assert_eq!(records[0].as_ref().encoded_len(), RECORD_BYTES_MAX);
    let listing = harness.write(options(1, 4), &mut records);
    let (run, _) = harness.open(&listing).unwrap();
    assert_eq!(run.footer().pages, 100);
}

/// A step submits its budget and at most one write more; memory is bounded by the buffers.
#[test]
fn steps_keep_their_budget() {
    let mut harness = RunHarness::new(1);
    harness.disk.hang(OpKind::Write);
    let mut records: Vec<_> = (0..6000).map(|i| Owned::put(1, format!("k{i}"), vec![1; 200])).collect();
    records.sort_by_cached_key(Owned::place);
    let mut writer = RunWriter::create(&mut harness.device, options(1, 4)).unwrap();
    let mut taken = 0;
    for record in &records {
        match writer.push(&record.as_ref()).unwrap() {
            Pushed::Taken => taken += 1,
            _ => break,
        }
    }
    // Three buffers of 64 KiB, and the page that is filled.
    assert!((600..900).contains(&taken), "{taken} records were taken while no write completed");
    let before = harness.device.stats().of(IoClass::Sort).written_bytes;
    assert_eq!(harness.step(&mut writer, 1), WriterState::Working);
    assert_eq!(harness.device.stats().of(IoClass::Sort).written_bytes - before, 64 << 10);
    // Hung writes hold their buffers: no record is taken, and nothing blocks.
    assert_eq!(harness.step(&mut writer, 10 << 20), WriterState::Working);
    assert_eq!(writer.push(&records[taken].as_ref()), Ok(Pushed::Wait));
    harness.disk.clear_faults();
    harness.disk.release_hung();
    for record in &records[taken..] {
        assert!(harness.push(&mut writer, &record.as_ref()));
    }
    let listing = harness.finish(writer);
    let (run, file) = harness.open(&listing).unwrap();
    assert_eq!((run.footer().records, harness.check(&run, file)), (6000, Vec::new()));
    let stats = *harness.device.stats().of(IoClass::Sort);
    assert_eq!(stats.written_bytes, listing.file_bytes, "each byte is written once");
}

#[test]
fn equal_records_make_equal_files() {
    let files: Vec<_> = (0..2)
        .map(|seed| {
            let mut harness = RunHarness::new(seed);
            let mut records: Vec<_> = (0..20_000).map(|i| Owned::put(1, format!("k{i}"), vec![1; 20])).collect();
            harness.write(options(1, 4), &mut records);
            harness.disk.contents(&fawn_ds::internals::format::run::file_name(header(1).uuid)).unwrap()
        })
        .collect();
    assert!(files[0] == files[1], "the bytes depend on the records alone");
}

/// A device may be full when only the footer has no space yet. The footer is written only where space was allocated: the
/// error of a write would not say that it changed nothing.
#[test]
fn a_device_without_space_for_the_footer_refuses_before_it_is_written() {
    const STEP_BYTES: u64 = 8 << 20;
    let records: Vec<_> = (0..9_000u64).map(|i| Owned::put(1, format!("k{i}"), vec![i as u8; 900])).collect();
    let mut harness = RunHarness::new(1);
    // Four records a page, so that pages and tail end where the first allocation does.
    let mut count = 8_000;
    for attempt in 0..8 {
        let bytes = harness.write(options(attempt, 4), &mut records[..count].to_vec()).file_bytes;
        match bytes.cmp(&(STEP_BYTES + 4096)) {
            core::cmp::Ordering::Less => count += 4 * ((STEP_BYTES + 4096 - bytes) / 4096) as usize,
            core::cmp::Ordering::Greater => count -= 4 * ((bytes - STEP_BYTES - 4096) / 4096) as usize,
            core::cmp::Ordering::Equal => break,
        }
    }
    let mut writer = RunWriter::create(&mut harness.device, options(250, 4)).unwrap();
    let mut records = records[..count].to_vec();
    records.sort_by_cached_key(Owned::place);
    for record in &records {
        assert!(harness.push(&mut writer, &record.as_ref()));
    }
    harness.disk.set_full(true);
    writer.finish();
    let mut tokens = 0;
    let mut token = || {
        tokens += 1;
        fawn_flash::Token(1_000_000 + tokens)
    };
    let refused = loop {
        match writer.step(&mut harness.device, 64 << 10, &mut token) {
            Ok(WriterState::Waiting) => harness.wait(&mut writer),
            Ok(WriterState::Working) => {}
            Ok(WriterState::Done(listing)) => panic!("written without space: {} bytes", listing.file_bytes),
            Err(error) => break error,
        }
    };
    assert!(refused.is_retryable(), "{refused}");
    let before = tokens;
    let mut token = || {
        tokens += 1;
        fawn_flash::Token(2_000_000 + tokens)
    };
    assert!(writer.step(&mut harness.device, 64 << 10, &mut token).is_err());
    assert_eq!(tokens, before, "a refusal takes no token");
    harness.disk.set_full(false);
    let listing = loop {
        match harness.step(&mut writer, 64 << 10) {
            WriterState::Done(listing) => break listing,
            _ => harness.wait(&mut writer),
        }
    };
    harness.device.close(writer.file());
    assert_eq!(listing.file_bytes, STEP_BYTES + 4096);
    let (run, file) = harness.open(&listing).unwrap();
    assert_eq!(harness.check(&run, file), []);
}
