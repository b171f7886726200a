//! Merges against a model: the newest record of each key that counts, and of dead ones only those that hide.
use crate::rng::Rng;
use crate::runs::{Owned, RunHarness, SECRET, options};
use crate::runs_written::{Model, random_record};
use fawn_ds::internals::format::record::RecordKind;
use fawn_ds::internals::format::run::RunRecord;
use fawn_ds::internals::sorted::{
    Fate, MergeError, MergeRules, MergeSource, Merged, RunMerge, RunSource, RunWriter, SortBuffer, SourceHead,
    WinnerFacts, fate,
};
use fawn_types::{RingKey, TimeMs};

const NOW: TimeMs = TimeMs(500);

/// Records of this number do not count.
fn is_invalidated(record: &RunRecord<'_>, _: &RingKey) -> bool {
    record.number.0 == 3
}

/// Older records of half of the keys may be elsewhere.
fn may_hide(_: &RunRecord<'_>, ring_key: &RingKey) -> bool {
    ring_key.0[19] & 1 == 0
}

fn rules<'r>(may_hide: &'r dyn Fn(&RunRecord<'_>, &RingKey) -> bool) -> MergeRules<'r> {
    MergeRules {
        now: NOW,
        is_invalidated: &is_invalidated,
        number: &|record, _| record.number,
        may_hide,
        is_kept: &|_, _| false,
    }
}

fn expected(inputs: &[Vec<Owned>]) -> Vec<Owned> {
    let mut newest = Model::new();
    for record in inputs.iter().flatten().filter(|record| record.number != 3) {
        let known = newest.entry(record.place()).or_insert_with(|| record.clone());
        if record.version > known.version {
            *known = record.clone();
        }
    }
    let survivors = newest.into_iter().filter_map(|((_, ring_key), record)| {
        let is_dead =
            record.kind == RecordKind::Tombstone || (record.expires_at_ms != 0 && record.expires_at_ms <= 500);
        match (is_dead, ring_key.0[19] & 1 == 0) {
            (false, _) => Some(record),
            (true, false) => None,
            (true, true) => Some(Owned::of(&record.as_ref().to_tombstone())),
        }
    });
    survivors.collect()
}

#[test]
fn a_merge_keeps_the_newest_record_of_each_key() {
    let mut rng = Rng::new("a_merge_keeps_the_newest_record_of_each_key");
    for round in 0..20 {
        let mut harness = RunHarness::new(rng.next());
        let (mut version, mut inputs, mut sources) = (0, Vec::new(), Vec::new());
        for id in 0..1 + rng.below(5) {
            let is_run = rng.below(2) == 0;
            let count = [0, 5, 1500][rng.below(3)];
            let mut records: Vec<_> = (0..count)
                .map(|_| {
                    version += 1 + rng.below(3) as u64;
                    random_record(&mut rng, 900, version)
                })
                .collect();
            if is_run {
                let model: Model = records.drain(..).map(|record| (record.place(), record)).collect();
                records = model.into_values().collect();
                let listing = harness.write(options(100 + id as u8, 4), &mut records);
                let (run, file) = harness.open(&listing).unwrap();
                sources.push((MergeSource::Run(RunSource::all(&run)), Some(file)));
            } else {
                let mut buffer = SortBuffer::new(SECRET, 1 << 20);
                assert!(records.iter().all(|record| buffer.push(&record.as_ref())));
                buffer.sort();
                sources.push((MergeSource::Memory(buffer), None));
            }
            inputs.push(records);
        }
        let expected = expected(&inputs);
        let pages_max = [3, 1000][round % 2];
        let rules = rules(&may_hide);
        let listings = harness.merge(sources, &rules, (1, pages_max));
        let mut merged = Vec::new();
        for listing in &listings {
            let (run, file) = harness.open(listing).unwrap();
            assert!(run.footer().pages <= pages_max);
            assert_eq!(harness.check(&run, file), []);
            merged.extend(harness.drain(RunSource::all(&run), file, 1 << 20).0);
        }
        assert!(merged == expected, "{} records, expected {}", merged.len(), expected.len());
    }
}

#[test]
fn dead_records_stay_exactly_while_they_may_hide() {
    for number in 0..8 {
        let [is_tombstone, is_expired, may_hide] = [number & 1 != 0, number & 2 != 0, number & 4 != 0];
        let expected = match (is_tombstone || is_expired, may_hide, is_tombstone) {
            (false, ..) | (true, true, true) => Fate::Keep,
            (true, true, false) => Fate::KeepAsTombstone,
            (true, false, _) => Fate::Drop,
        };
        assert_eq!(fate(WinnerFacts { is_tombstone, is_expired, may_hide }), expected);
    }
}

/// A record that does not count hides nothing, however new it is.
#[test]
fn an_invalidated_record_of_a_later_version_hides_nothing() {
    let mut harness = RunHarness::new(1);
    let (old, mut invalidated) = (Owned::put(5, "key", "old"), Owned::put(9, "key", "void"));
    invalidated.number = 3;
    let mut buffer = SortBuffer::new(SECRET, 1 << 10);
    assert!(buffer.push(&old.as_ref()) && buffer.push(&invalidated.as_ref()));
    buffer.sort();
    let rules = rules(&may_hide);
    let listings = harness.merge(vec![(MergeSource::Memory(buffer), None)], &rules, (1, 10));
    let (run, file) = harness.open(&listings[0]).unwrap();
    assert_eq!(harness.drain(RunSource::all(&run), file, 4096).0, [old]);
}

/// Lookups stop at the newest run: of two records of one version, that of the first source counts.
#[test]
fn of_equal_versions_the_first_source_counts() {
    for is_tombstone_first in [true, false] {
        let mut harness = RunHarness::new(1);
        let put = Owned::put(5, "key", "value");
        let mut records = [Owned::of(&put.as_ref().to_tombstone()), put];
        if !is_tombstone_first {
            records.reverse();
        }
        let sources = records.each_ref().map(|record| {
            let mut buffer = SortBuffer::new(SECRET, 1 << 10);
            assert!(buffer.push(&record.as_ref()));
            buffer.sort();
            (MergeSource::Memory(buffer), None)
        });
        let may_hide = &|_: &RunRecord<'_>, _: &RingKey| true;
        let rules = rules(may_hide);
        let listings = harness.merge(sources.into(), &rules, (1, 10));
        let (run, file) = harness.open(&listings[0]).unwrap();
        assert_eq!(harness.drain(RunSource::all(&run), file, 4096).0, records[..1]);
    }
}

/// A caller may find out with much work whether a record may hide others, and polls a merge that waits again and again.
#[test]
fn a_merge_asks_nothing_of_its_records_while_its_writer_waits() {
    let mut harness = RunHarness::new(1);
    let mut buffer = SortBuffer::new(SECRET, 1 << 20);
    for nth in 0..2_000_u64 {
        let put = Owned::put(nth + 1, [nth.to_be_bytes(); 25].concat(), "value");
        assert!(buffer.push(&put.as_ref().to_tombstone()));
    }
    buffer.sort();
    let asked = core::cell::Cell::new(0);
    let may_hide = |_: &RunRecord<'_>, _: &RingKey| {
        asked.set(asked.get() + 1);
        true
    };
    let rules = rules(&may_hide);
    let mut merge = RunMerge::new(vec![MergeSource::Memory(buffer)]);
    let mut writer = RunWriter::create(&mut harness.device, options(1, 8)).unwrap();
    while merge.step(&mut writer, &rules, 100).unwrap() != Merged::Writer {}
    assert!((1..2_000).contains(&asked.take()), "the buffers are full before all is merged");
    for _ in 0..10 {
        assert_eq!(merge.step(&mut writer, &rules, 100).unwrap(), Merged::Writer);
    }
    assert_eq!(asked.get(), 0);
    drop(harness.finish(writer));
}

#[test]
fn a_sort_buffer_has_a_bound() {
    let record = Owned::put(1, "key", [0; 79]);
    let mut buffer = SortBuffer::new(SECRET, 250);
    assert_eq!([0; 3].map(|_| buffer.push(&record.as_ref())), [true, true, false]);
}

/// The buffer sorts its records in blocks, which the head merges.
#[test]
fn a_sort_buffer_of_many_blocks_passes_its_records_in_order() {
    let mut buffer = SortBuffer::new(SECRET, 8 << 20);
    let mut records: Vec<_> =
        (0..20_000_u64).map(|i| Owned::put(1 + i % 7, format!("k{}", i % 9_000), [1; 80])).collect();
    assert!(records.iter().all(|record| buffer.push(&record.as_ref())));
    buffer.sort();
    records.sort_by_key(|record| (record.place(), core::cmp::Reverse(record.version)));
    for record in &records {
        let SourceHead::Record(ring_key, found) = buffer.head() else { panic!("it has ended") };
        assert_eq!((ring_key, found), (record.place().1, record.as_ref()));
        buffer.advance();
    }
    assert!(matches!(buffer.head(), SourceHead::End));
}

/// A corrupt page of a source ends the merge: no record is left out silently.
#[test]
fn a_corrupt_source_ends_the_merge() {
    let mut harness = RunHarness::new(1);
    let mut records: Vec<_> = (0..200).map(|i| Owned::put(1, format!("k{i}"), [1; 100])).collect();
    let listing = harness.write(options(1, 4), &mut records);
    let (run, file) = harness.open(&listing).unwrap();
    let mut source = RunSource::all(&run);
    let range = source.next_read(1 << 20).unwrap();
    let mut bytes = harness.read(file, range.offset, range.len_bytes).to_vec();
    bytes[4096 + 700] ^= 1;
    source.feed(range, bytes);
    let mut merge = RunMerge::new(vec![MergeSource::Run(source)]);
    let mut writer = RunWriter::create(&mut harness.device, options(2, 4)).unwrap();
    let rules = rules(&may_hide);
    let error = loop {
        match merge.step(&mut writer, &rules, 10) {
            Ok(Merged::More) => {}
            other => break other,
        }
    };
    assert!(matches!(error, Err(MergeError::Source(_))), "{error:?}");
    let name = writer.abandon(&mut harness.device);
    fawn_flash::Device::unlink(&mut harness.device, &name).unwrap();
    assert_eq!(harness.disk.names().len(), 1, "an abandoned run leaves no file");
}
