//! Damaged runs: flipped bits, torn and foreign files, crashes at every operation, wrong fences and filters.
use crate::runs::{Owned, RunHarness, SECRET, STORE, header, options};
use fawn_ds::internals::format::run::page::RunPage;
use fawn_ds::internals::format::run::tail::{RunTail, decode_pieces, encode_next_piece};
use fawn_ds::internals::format::run::{self, RunFooter, RunHeader, decode_footer, encode_footer, filter_hash};
use fawn_ds::internals::format::{Expiries, StoreUuid};
use fawn_ds::internals::sorted::{
    FenceBuilder, Run, RunError, RunListing, RunLookup, RunSource, RunWriter, RunWriterOptions, SourceHead,
    WriterState, filter,
};
use fawn_flash::sim::{Capture, DeviceFault, Loss, OpKind};
use fawn_flash::{Device, SimDevice};
use fawn_types::random::SplitMix64 as Rng;
use fawn_types::{RingKey, TimeMs};
use std::collections::{BTreeMap, BTreeSet};

const PAGE: usize = 4096;

/// A run of three pages.
fn small(harness: &mut RunHarness) -> (RunListing, Vec<Owned>, Vec<u8>) {
    let mut records: Vec<_> = (0..36).map(|i| Owned::put(1, format!("k{i}"), vec![i; 300])).collect();
    let listing = harness.write(options(1, 8), &mut records);
    let bytes = harness.disk.contents(&run::file_name(header(1).uuid)).unwrap();
    assert_eq!(bytes.len() as u64, listing.file_bytes);
    (listing, records, bytes)
}

fn load(expected: RunHeader, bytes: &[u8]) -> Result<Run, RunError> {
    let footer_at = bytes.len() - PAGE;
    let tail_at = decode_footer(&bytes[footer_at..]).map_or(footer_at, |footer| footer.tail_offset() as usize);
    let tail = bytes.get(tail_at..footer_at).unwrap_or_default();
    Run::load(expected, &SECRET, &bytes[..PAGE], &bytes[footer_at..], tail)
}

/// The value of a key, by the bytes of a file.
fn get(run: &Run, bytes: &[u8], key: &[u8]) -> Result<Option<Vec<u8>>, RunError> {
    lookup(run, bytes, (run::Space::KEYS, RingKey::of(&SECRET, key)), key)
}

fn lookup(
    run: &Run,
    bytes: &[u8],
    (space, ring_key): (run::Space, RingKey),
    key: &[u8],
) -> Result<Option<Vec<u8>>, RunError> {
    let mut step = run.lookup(space, ring_key, key);
    loop {
        step = match step {
            RunLookup::Found(record) => return Ok(Some(record.value.to_vec())),
            RunLookup::Absent => return Ok(None),
            RunLookup::Read(plan) => {
                let at = plan.offset() as usize;
                run.resume(plan, bytes.get(at..at + PAGE).unwrap_or_default())?
            }
        };
    }
}

/// Each flipped bit of the file is an error of the opening or of a lookup, or changes no result.
#[test]
fn every_flipped_bit_is_found_or_harmless() {
    let mut harness = RunHarness::new(1);
    let (_, records, mut bytes) = small(&mut harness);
    let intact = load(header(1), &bytes).unwrap();
    let pages: Vec<_> =
        records.iter().map(|record| intact.locate(run::Space::KEYS, &record.place().1).unwrap()).collect();
    let (mut refused, mut errors, mut harmless) = (0, 0, 0);
    for at in 0..bytes.len() {
        for bit in 0..8 {
            bytes[at] ^= 1 << bit;
            let page = (at / PAGE) as u32;
            if (1..=3).contains(&page) {
                // A page is read by lookups and scans only.
                let at_page =
                    |span: &&fawn_ds::internals::sorted::PageSpan| span.first == page - 1 && span.last == page - 1;
                let index = pages.iter().position(|span| at_page(&span)).unwrap();
                let found = get(&intact, &bytes, &records[index].key);
                assert!(matches!(found, Err(RunError::Corrupt { .. })), "byte {at} bit {bit}: {found:?}");
                errors += 1;
            } else if let Ok(run) = load(header(1), &bytes) {
                harmless += 1;
                let found = get(&run, &bytes, &records[0].key).unwrap();
                assert_eq!(found.as_ref(), Some(&records[0].value), "byte {at} bit {bit}");
                assert!(records.iter().all(|record| run.may_contain(run::Space::KEYS, &record.place().1)));
            } else {
                refused += 1;
            }
            bytes[at] ^= 1 << bit;
        }
    }
    println!("{refused} flips refused by the opening, {errors} errors of lookups, {harmless} without effect");
    // Zeros behind the tail's content have no checksum; nothing reads them.
    assert_eq!(errors, 3 * PAGE * 8);
    assert!(refused > 2 * PAGE * 8 && harmless < PAGE * 8);
}

#[test]
fn torn_foreign_and_misplaced_files_are_refused() {
    let mut harness = RunHarness::new(1);
    let (listing, records, bytes) = small(&mut harness);
    let name = run::file_name(header(1).uuid);
    for len in (0..bytes.len()).step_by(512) {
        harness.disk.put(&name, &bytes[..len]);
        assert!(matches!(harness.open(&listing), Err(RunError::Length { .. })), "{len} bytes");
        let mut torn = bytes.clone();
        torn[len..].fill(0);
        harness.disk.put(&name, &torn);
        let opened = harness.open(&listing);
        let is_footer_torn = len < bytes.len() - PAGE + 512;
        assert_eq!(opened.is_err(), is_footer_torn, "zeros from byte {len} on: {opened:?}");
    }
    harness.disk.put(&name, &bytes);
    let other_store = RunHeader { store: StoreUuid([9; 16]), ..header(1) };
    for expected in [other_store, header(2)] {
        harness.disk.put(&run::file_name(expected.uuid), &bytes);
        let opened = Run::open(&mut harness.device, expected, &SECRET, listing.file_bytes);
        assert!(matches!(opened, Err(RunError::Foreign { .. })), "{opened:?}");
    }
    // A misdirected read returns another page of the run, which is intact elsewhere.
    let intact = load(header(1), &bytes).unwrap();
    let mut swapped = bytes.clone();
    swapped.copy_within(PAGE..2 * PAGE, 2 * PAGE);
    let errors = records.iter().filter(|record| get(&intact, &swapped, &record.key).is_err()).count();
    assert!(errors >= 12, "{errors} lookups found the misplaced page");
}

/// Images after every operation: before the listing a run is refused or whole, after it whole.
#[test]
fn a_crash_leaves_no_run_or_a_whole_one() {
    let mut harness = RunHarness::new(3);
    harness.disk.capture(Capture::Every { stride: 1, loss: Loss::Power, seed: 7 });
    let mut records: Vec<_> = (0..1500).map(|i| Owned::put(1, format!("k{i}"), vec![1; 300])).collect();
    let listing = harness.write(options(1, 4), &mut records);
    let images = harness.disk.take_images();
    harness.disk.capture(Capture::Never);
    let mut whole = 0;
    for image in &images {
        let mut device = SimDevice::attach(&image.disk);
        if let Ok((run, _)) = Run::open(&mut device, listing.header, &SECRET, listing.file_bytes) {
            let bytes = image.disk.contents(&run::file_name(header(1).uuid)).unwrap();
            for record in &records {
                assert_eq!(get(&run, &bytes, &record.key), Ok(Some(record.value.clone())), "image {}", image.op);
            }
            whole += 1;
        }
    }
    assert!(images.len() > 10 && whole > 0 && whole < images.len(), "{whole} of {} images have the run", images.len());
    for seed in 0..20 {
        let disk = harness.disk.image(Loss::Power, seed);
        let mut device = SimDevice::attach(&disk);
        Run::open(&mut device, listing.header, &SECRET, listing.file_bytes).unwrap();
    }
}

#[test]
fn a_full_disk_delays_a_run_and_a_failed_write_ends_it() {
    let mut harness = RunHarness::new(1);
    let mut writer = RunWriter::create(&mut harness.device, options(1, 4)).unwrap();
    harness.disk.set_full(true);
    assert!(harness.push(&mut writer, &Owned::put(1, "key", "value").as_ref()));
    writer.finish();
    let mut tokens = 0;
    let mut token = || {
        tokens += 1;
        fawn_flash::Token(tokens)
    };
    for _ in 0..3 {
        let refused = writer.step(&mut harness.device, 1 << 20, &mut token);
        assert!(refused.as_ref().is_err_and(|error| error.is_retryable()), "{refused:?}");
    }
    harness.disk.set_full(false);
    let listing = loop {
        match writer.step(&mut harness.device, 1 << 20, &mut token).unwrap() {
            WriterState::Done(listing) => break listing,
            WriterState::Waiting => harness.wait(&mut writer),
            WriterState::Working => {}
        }
    };
    assert!(harness.open(&listing).is_ok());

    for kind in [OpKind::Write, OpKind::Sync] {
        let mut harness = RunHarness::new(1);
        let mut writer = RunWriter::create(&mut harness.device, options(1, 4)).unwrap();
        harness.disk.fail_nth(kind, 1, DeviceFault::Fail);
        assert!(harness.push(&mut writer, &Owned::put(1, "key", "value").as_ref()));
        writer.finish();
        let mut failures = 0;
        for _ in 0..20 {
            match writer.step(&mut harness.device, 1 << 20, &mut token) {
                Ok(state) => assert!(!matches!(state, WriterState::Done(_)), "a failed {kind:?} makes no run"),
                Err(_) => failures += 1,
            }
            let mut done = std::collections::VecDeque::new();
            harness.device.wait(&mut done);
            failures += done.into_iter().filter_map(|completion| writer.completed(completion).err()).count();
        }
        assert!(failures > 0, "the failed {kind:?} was reported");
    }
}

/// Replaces the tail of a run by another one with valid checksums.
fn with_tail(bytes: &[u8], change: impl FnOnce(&mut RunTail, &RunFooter)) -> Vec<u8> {
    let footer_at = bytes.len() - PAGE;
    let mut footer = decode_footer(&bytes[footer_at..]).unwrap();
    let tail_at = footer.tail_offset() as usize;
    let mut tail = decode_pieces(&footer, &bytes[tail_at..footer_at]).unwrap();
    change(&mut tail, &footer);
    let (mut content, mut piece, mut block) = (Vec::new(), vec![0; 64 << 10], vec![0; PAGE]);
    tail.encode(&mut content);
    let (len, taken) = encode_next_piece(footer.header.uuid, tail_at as u64, &content, &mut piece);
    assert_eq!(taken, content.len(), "one piece");
    footer.tail_bytes = len as u64;
    encode_footer(&footer, &mut block);
    [&bytes[..tail_at], &piece[..len], &block].concat()
}

fn check(harness: &mut RunHarness, bytes: &[u8]) -> Vec<RunError> {
    harness.disk.put(&run::file_name(header(1).uuid), bytes);
    let (run, file) = Run::open(&mut harness.device, header(1), &SECRET, bytes.len() as u64).unwrap();
    harness.check(&run, file)
}

/// Faults of a writer, under valid checksums: a check finds each.
#[test]
fn a_check_finds_wrong_fences_filters_and_counts() {
    let mut harness = RunHarness::new(1);
    let (_, records, bytes) = small(&mut harness);
    assert_eq!(check(&mut harness, &bytes), []);
    assert_eq!(with_tail(&bytes, |_, _| ()), bytes, "the test's writer writes the same");

    let firsts: Vec<_> = records.iter().map(|record| record.place().1).collect();
    // A fence off by one: the second page is said to begin with its second record.
    let intact = load(header(1), &bytes).unwrap();
    let begins: Vec<_> = (0..3)
        .map(|page| (0..36).find(|&i| intact.locate(run::Space::KEYS, &firsts[i]).unwrap().first == page).unwrap())
        .collect();
    let second = if intact.locate(run::Space::KEYS, &firsts[begins[1] - 1]).unwrap().last == 1 { 0 } else { 1 };
    let wrong_fence = with_tail(&bytes, |tail, footer| {
        let mut builder = FenceBuilder::default();
        [0, begins[1] + second, begins[2]].iter().for_each(|&i| builder.push(firsts[i]));
        tail.fences = builder.finish(&footer.starts, &footer.bounds);
    });
    let found = check(&mut harness, &wrong_fence);
    assert!(found.iter().any(|error| error.to_string().contains("fences lead")), "{found:?}");

    let wrong_filter = with_tail(&bytes, |tail, _| {
        let hashes: Vec<_> = firsts[1..].iter().map(|key| filter_hash(run::Space::KEYS, key)).collect();
        tail.filters = vec![filter::build(&hashes, 8, 0)];
    });
    let found = check(&mut harness, &wrong_filter);
    assert!(found.iter().any(|error| error.to_string().contains("filter lacks")), "{found:?}");

    let wrong_facts = with_tail(&bytes, |tail, _| tail.facts.tombstones += 1);
    let found = check(&mut harness, &wrong_facts);
    assert!(found.iter().any(|error| error.to_string().contains("facts")), "{found:?}");
    assert_eq!(found.len(), 1, "{found:?}");
}

/// Runs of earlier builds have no counts of expiries.
#[test]
fn a_check_finds_wrong_counts_of_expiries_unless_there_are_none() {
    let mut harness = RunHarness::new(1);
    let mut written = |id: u8, count: u64| {
        let put = |i: u64| Owned::put(1, format!("k{i}"), vec![7; 300]);
        let mut records: Vec<_> = (0..count).map(|i| Owned { expires_at_ms: 61_000 + 90_000 * i, ..put(i) }).collect();
        harness.write(RunWriterOptions { now: TimeMs(1_000), ..options(id, 8) }, &mut records);
        harness.disk.contents(&run::file_name(header(id).uuid)).unwrap()
    };
    let (bytes, other) = (written(1, 36), written(2, 35));
    let expiries_of = |bytes: &[u8]| decode_footer(&bytes[bytes.len() - PAGE..]).unwrap().expiries;
    let mut with_expiries = |expiries| {
        let (mut changed, footer_at) = (bytes.clone(), bytes.len() - PAGE);
        let footer = RunFooter { expiries, ..decode_footer(&bytes[footer_at..]).unwrap() };
        encode_footer(&footer, &mut changed[footer_at..]);
        check(&mut harness, &changed)
    };
    assert_eq!(with_expiries(expiries_of(&bytes)), []);
    assert_eq!(with_expiries(Expiries::default()), []);
    let found = with_expiries(expiries_of(&other));
    assert!(matches!(&found[..], [error] if error.to_string().contains("other expiries")), "{found:?}");
}

/// A page whose first key is above its fence contradicts it: the lookup of a key between both is an error.
#[test]
fn a_lookup_finds_a_page_that_contradicts_its_fence() {
    let mut harness = RunHarness::new(1);
    let (_, records, bytes) = small(&mut harness);
    let firsts: Vec<_> = records.iter().map(|record| record.place().1).collect();
    // The second page is said to begin two records earlier.
    let begin = (1..36).find(|&i| get_page(&bytes, 2, &records[i])).unwrap();
    let third = (1..36).find(|&i| get_page(&bytes, 3, &records[i])).unwrap();
    let wrong = with_tail(&bytes, |tail, footer| {
        let mut builder = FenceBuilder::default();
        [0, begin - 2, third].iter().for_each(|&i| builder.push(firsts[i]));
        tail.fences = builder.finish(&footer.starts, &footer.bounds);
    });
    let run = load(header(1), &wrong).unwrap();
    let found = get(&run, &wrong, &records[begin - 1].key);
    assert!(matches!(found, Err(RunError::Corrupt { .. })), "{found:?}");
}

/// Whether the block of the file holds the record's key.
fn get_page(bytes: &[u8], block: usize, record: &Owned) -> bool {
    let page = RunPage::decode(&bytes[block * PAGE..], header(1).uuid, block as u32 - 1).unwrap();
    page.find(&record.key).is_some()
}

/// A scan reports a corrupt page and continues behind it.
#[test]
fn a_scan_passes_a_corrupt_page() {
    let mut harness = RunHarness::new(1);
    let (_, records, mut bytes) = small(&mut harness);
    bytes[2 * PAGE + 100] ^= 4;
    let run = load(header(1), &bytes).unwrap();
    let mut source = RunSource::all(&run);
    let range = source.next_read(1 << 20).unwrap();
    source.feed(range, bytes[range.offset as usize..][..range.len_bytes].to_vec());
    let (mut found, mut errors) = (Vec::new(), 0);
    loop {
        match source.head() {
            Ok(SourceHead::Record(_, record)) => {
                found.push(Owned::of(&record));
                if source.advance().is_err() {
                    errors += 1;
                }
            }
            Ok(SourceHead::End) => break,
            Ok(SourceHead::Wait) => unreachable!("all pages were fed"),
            Err(error) => {
                assert!(error.to_string().contains("byte 8192"), "{error}");
                errors += 1;
                source.skip_page();
            }
        }
    }
    let is_of_page_2 = |record: &&Owned| get(&run, &bytes, &record.key).is_err();
    let expected: Vec<_> = records.iter().filter(|record| !is_of_page_2(record)).cloned().collect();
    assert_eq!((found, errors), (expected, 1));
    assert_eq!(STORE, header(1).store);
}

/// A run with a corrupt header and any corrupt pages is opened by its pages, and finds the records of the intact ones.
#[test]
fn a_run_opened_by_its_pages_finds_all_records_of_intact_ones() {
    let mut harness = RunHarness::new(5);
    let key = |i: u64| if i.is_multiple_of(3) { format!("{{tag}}{i}") } else { format!("key-{i}") };
    let mut records: Vec<_> = (0..3_000).map(|i| Owned::put(i, key(i), vec![i as u8; 200])).collect();
    records.iter_mut().filter(|record| record.version % 5 == 0).for_each(|record| record.type_byte = 1);
    let listing = harness.write(RunWriterOptions { filter_keys: 500, ..options(1, 8) }, &mut records);
    let name = run::file_name(header(1).uuid);
    let bytes = harness.disk.contents(&name).unwrap();
    let pages = decode_footer(&bytes[bytes.len() - PAGE..]).unwrap().pages;
    let places = (0..pages).flat_map(|page| {
        let content = RunPage::decode(&bytes[run::page_offset(page) as usize..], header(1).uuid, page).unwrap();
        content.records().map(|record| (record.key.to_vec(), page)).collect::<Vec<_>>()
    });
    let places: BTreeMap<Vec<u8>, u32> = places.collect();
    let mut rng = Rng::new(5);
    for round in 0..40 {
        let mut damaged = bytes.clone();
        let corrupt: BTreeSet<u32> = match round {
            0 => BTreeSet::new(),
            1 => BTreeSet::from([0]),
            2 => (0..60).collect(),
            3 => (1..pages).collect(),
            // Neighbours, too.
            _ => (0..round).map(|_| rng.below(u64::from(pages)) as u32).flat_map(|page| [page, page | 1]).collect(),
        };
        let corrupt: BTreeSet<u32> = corrupt.into_iter().filter(|page| *page < pages).collect();
        corrupt.iter().for_each(|&page| damaged[run::page_offset(page) as usize + 50] ^= 4);
        damaged[40] ^= 1;
        harness.disk.put(&name, &damaged);
        let opened = Run::open_pages(&mut harness.device, header(1), &SECRET, listing.file_bytes).unwrap();
        let Some((run, file, written)) = opened else { panic!("{corrupt:?}") };
        assert_eq!(written, Some(records.len() as u64));
        let (mut found, mut refused) = (0, 0);
        for record in &records {
            let (page, (space, ring_key)) = (places[&record.key], record.place());
            if corrupt.contains(&page) {
                let value = lookup(&run, &damaged, record.place(), &record.key);
                assert!(!matches!(value, Ok(Some(_))), "{page} of {corrupt:?}");
                continue;
            }
            let span = run.locate(space, &ring_key).unwrap();
            assert!((span.first..=span.last).contains(&page), "{span:?}, {page} beside {corrupt:?}");
            match lookup(&run, &damaged, record.place(), &record.key) {
                Ok(value) => assert_eq!(value.as_ref(), Some(&record.value), "{page} beside {corrupt:?}"),
                // The key may be in the corrupt page behind its own by the fences, too.
                Err(_) => refused += 1,
            }
            found += 1;
        }
        assert_eq!(run.footer().records, found);
        assert!(refused <= 2 * corrupt.len(), "{refused} of {found}");
        let errors = harness.check(&run, file);
        let offset = |error: &RunError| match error {
            RunError::Corrupt { offset_bytes, .. } => *offset_bytes,
            error => panic!("{error}"),
        };
        let expected = corrupt.iter().filter(|page| **page < run.footer().pages).map(|&page| run::page_offset(page));
        assert_eq!(errors.iter().map(offset).collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{errors:?}");
        harness.device.close(file);
    }
}
