//! Manifest: round trips, contradictions, torn appends distinguished from corruption, detection of every flipped bit.
use crate::rng::Rng;
use fawn_ds::internals::format::manifest::{
    Ancestor, HEADER_BYTES, ManifestEdit, ManifestError, ManifestHeader, ManifestState, ManifestVerdict, RunEntry,
    SegmentSeal, decode_all, encode_commit, encode_header, encode_snapshot,
};
use fawn_ds::internals::format::segment::{NumberFacts, RecordFacts, StreamKind};
use fawn_ds::internals::format::{FORMAT_VERSION, HeaderError, RangeNumber, SegmentUuid, StoreUuid, Watermark};
use fawn_ds::internals::index::PointerWidth;
use fawn_types::checksum::checksum64;
use fawn_types::{Epoch, HashSecret, KeyRange, MonoMs, RangeId, RingKey, TimeMs, Version};

const HEADER: ManifestHeader = ManifestHeader { store: StoreUuid([5; 16]), rewrite: 2 };

fn identity() -> ManifestEdit {
    let secret = HashSecret([6; 16]);
    ManifestEdit::Identity {
        store: HEADER.store,
        format: FORMAT_VERSION,
        segment_bytes: 1 << 20,
        secret,
        pointers: PointerWidth::Bits32,
    }
}

fn commits() -> Vec<Vec<ManifestEdit>> {
    let mut middle = [0; 20];
    middle[0] = 0x80;
    let half = KeyRange { start: RingKey(middle), end: None };
    let lower = KeyRange { start: RingKey::MIN, end: Some(RingKey(middle)) };
    let segment = |slot: u32| SegmentUuid([slot as u8; 16]);
    vec![
        vec![identity(), ManifestEdit::Generation(1), ManifestEdit::AddRange { range: RangeId(1), keys: half }],
        vec![begin(1, 1, 0, Version::ZERO), ManifestEdit::RangeWhole { range: RangeId(1) }],
        vec![ManifestEdit::AddRange { range: RangeId(2), keys: lower }, begin(2, 3, 1, Version::ZERO)],
        vec![ManifestEdit::AddSegment { slot: 4, uuid: segment(4), sequence: 1, stream: StreamKind::Foreground }],
        vec![
            seal(4, 8192, 3),
            ManifestEdit::AddSegment { slot: 0, uuid: segment(0), sequence: 2, stream: StreamKind::Foreground },
            ManifestEdit::AddSegment { slot: 1, uuid: segment(1), sequence: 3, stream: StreamKind::Foreground },
        ],
        vec![ManifestEdit::ClearRange { range: RangeId(2), version: Version::from_u64(77) }],
        vec![
            ManifestEdit::Blob { key: 3, bytes: b"a promise".to_vec() },
            ManifestEdit::Blob { key: 1, bytes: vec![1; 100] },
        ],
        vec![ManifestEdit::Blob { key: 1, bytes: Vec::new() }, ManifestEdit::DropRange { range: RangeId(1) }],
        vec![ManifestEdit::DropSegment { slot: 1, uuid: segment(1) }],
        vec![ManifestEdit::RangeWhole { range: RangeId(2) }],
        vec![begin(2, 4, 2, Version::ZERO)],
        vec![
            ManifestEdit::RangeWhole { range: RangeId(2) },
            begin(2, 5, 3, Version::from_u64(9)),
            ManifestEdit::RangeWhole { range: RangeId(2) },
        ],
        vec![ManifestEdit::Pad { bytes: 400 }, ManifestEdit::Pad { bytes: 0 }],
        vec![ManifestEdit::Clock { time: TimeMs(1_700_000_000_000), mono: MonoMs(7) }],
        vec![ManifestEdit::Clock { time: TimeMs(1_700_000_000_000), mono: MonoMs(3) }, ManifestEdit::Generation(2)],
        vec![
            ManifestEdit::AddCheckpoint { uuid: segment(8), len_bytes: 1 << 40 },
            ManifestEdit::AddCheckpoint { uuid: segment(7), len_bytes: 8192 },
        ],
        vec![
            ManifestEdit::DropCheckpoint { uuid: segment(8) },
            ManifestEdit::AddCheckpoint { uuid: segment(9), len_bytes: 12_288 },
        ],
        vec![ManifestEdit::EndOfLog { stream: StreamKind::Foreground, end: Watermark { sequence: 2, offset: 9216 } }],
        vec![ManifestEdit::ClearRange { range: RangeId(2), version: Version::from_u64(80) }],
        vec![begin_sole(2, 3, version(2, 9)), end_sole(2, version(2, 9)), begin_sole(2, 5, version(4, 4))],
        vec![begin_sole(2, 7, version(5, 6))],
        vec![end_sole(2, version(7, 1))],
        vec![
            ManifestEdit::AddRange { range: RangeId(4), keys: half },
            begin(4, 7, 3, Version::ZERO),
            ManifestEdit::RangeWhole { range: RangeId(4) },
            begin_sole(4, 1, Version::ZERO),
        ],
        vec![begin_sole(4, 6, version(5, 2))],
        // Added, but without records: no number yet. The highest number belongs to a range that was dropped.
        vec![ManifestEdit::AddRange { range: RangeId(3), keys: lower }],
        vec![ManifestEdit::AddRange { range: RangeId(6), keys: half }, begin(6, 8, 3, Version::ZERO)],
        vec![ManifestEdit::DropRange { range: RangeId(6) }],
        vec![split(2, 0x20, (10, 9), (11, 10), version(7, 1))],
        vec![ManifestEdit::ClearRange { range: RangeId(11), version: version(8, 1) }],
        vec![split(10, 0x10, (12, 11), (13, 12), version(8, 2)), split(4, 0xC0, (14, 13), (15, 14), version(6, 2))],
        vec![merge(14, 15, 16, 15, version(9, 1)), split(11, 0x40, (17, 16), (18, 17), version(9, 1))],
        vec![ManifestEdit::Lineage { range: RangeId(13), ancestors: Vec::new() }, merge(12, 13, 19, 18, version(9, 2))],
    ]
}

fn ring_at(part: u8) -> RingKey {
    let mut bytes = [0; 20];
    bytes[0] = part;
    RingKey(bytes)
}

/// The new ranges with their numbers.
fn split(parent: u32, part: u8, left: (u32, u32), right: (u32, u32), base: Version) -> ManifestEdit {
    ManifestEdit::SplitRange {
        parent: RangeId(parent),
        left: RangeId(left.0),
        left_number: RangeNumber(left.1),
        right: RangeId(right.0),
        right_number: RangeNumber(right.1),
        since: 3,
        base,
        boundary: ring_at(part),
    }
}

fn merge(left: u32, right: u32, into: u32, number: u32, base: Version) -> ManifestEdit {
    let (left, right, into) = (RangeId(left), RangeId(right), RangeId(into));
    ManifestEdit::MergeRanges { left, right, into, number: RangeNumber(number), since: 3, base }
}

fn version(epoch: u32, seq: u64) -> Version {
    Version::new(Epoch::new(epoch).unwrap(), seq).unwrap()
}

fn seal(slot: u32, len: u32, number: u32) -> ManifestEdit {
    let facts = |number, records| NumberFacts { number, records, lowest: version(1, 1), highest: version(2, 7) };
    let numbers = [facts(RangeNumber(1), 1), facts(RangeNumber(number), 9)].into_iter().collect();
    let facts = RecordFacts { tombstones: 2, latest_expiry_ms: 1_700_000_000_000, numbers };
    ManifestEdit::SealSegment { slot, seal: SegmentSeal { len, facts } }
}

fn begin(range: u32, number: u32, since: u64, base: Version) -> ManifestEdit {
    ManifestEdit::BeginRange { range: RangeId(range), number: RangeNumber(number), since, base }
}

fn begin_sole(range: u32, epoch: u32, base: Version) -> ManifestEdit {
    ManifestEdit::BeginSoleEpoch { range: RangeId(range), epoch: Epoch::new(epoch).unwrap(), base }
}

fn end_sole(range: u32, base: Version) -> ManifestEdit {
    ManifestEdit::EndSoleEpoch { range: RangeId(range), base }
}

fn ancestor(number: u32, part: u8) -> Ancestor {
    let keys = KeyRange { start: ring_at(part), end: None };
    let (number, base, cleared) = (RangeNumber(number), Version::ZERO, Version::ZERO);
    Ancestor { number, keys, since: 1, base, cleared, sole: None }
}

/// The file and the offset of each commit; `lag` commits are not yet synced when the next one is written.
fn file(lag: usize) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = encode_header(&HEADER).to_vec();
    let mut starts = Vec::new();
    for edits in commits() {
        let offset = bytes.len();
        starts.push(offset);
        let synced = starts.len().checked_sub(1 + lag).map_or(0, |i| starts[i]);
        encode_commit(&HEADER, &edits, offset as u64, synced as u64, &mut bytes);
    }
    (bytes, starts)
}

fn state_after(commit_count: usize) -> ManifestState {
    let mut state = ManifestState::default();
    commits().iter().take(commit_count).flatten().for_each(|edit| state.apply(edit).unwrap());
    state
}

#[test]
fn round_trips_with_and_without_zeros_behind() {
    let (mut bytes, starts) = file(0);
    for _ in 0..2 {
        let decoded = decode_all(&bytes).unwrap();
        assert_eq!((decoded.header, decoded.commits), (HEADER, starts.len() as u64));
        assert_eq!((decoded.state, decoded.verdict), (state_after(commits().len()), ManifestVerdict::Clean));
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
    }
}

#[test]
fn a_rewritten_manifest_says_the_same() {
    for count in 1..=commits().len() {
        let state = state_after(count);
        let decoded = decode_all(&encode_snapshot(&state, 9)).unwrap();
        assert_eq!((decoded.state, decoded.header.rewrite), (state, 9));
    }
}

#[test]
fn a_large_snapshot_takes_several_commits() {
    let mut state = state_after(commits().len());
    for key in 100..140 {
        state.apply(&ManifestEdit::Blob { key, bytes: vec![key as u8; 60_000] }).unwrap();
    }
    let decoded = decode_all(&encode_snapshot(&state, 0)).unwrap();
    assert!(decoded.commits > 1);
    assert_eq!(decoded.state, state);
}

#[test]
fn every_flipped_bit_is_found_and_judged() {
    let (bytes, starts) = file(0);
    for bit in 0..bytes.len() * 8 {
        let mut corrupt = bytes.clone();
        corrupt[bit / 8] ^= 1 << (bit % 8);
        let Some(commit) = starts.iter().rposition(|&start| start <= bit / 8) else {
            assert!(matches!(decode_all(&corrupt), Err(ManifestError::Header(_))), "bit {bit}");
            continue;
        };
        if commit == 0 {
            assert!(matches!(decode_all(&corrupt), Err(ManifestError::NoIdentity { .. })), "bit {bit}");
            continue;
        }
        let decoded = decode_all(&corrupt).unwrap();
        assert_eq!(decoded.valid_len, starts[commit] as u64, "bit {bit}");
        assert_eq!(decoded.state, state_after(commit), "bit {bit}");
        // Each commit but the last was synced before the next was written.
        let is_torn = matches!(decoded.verdict, ManifestVerdict::TornAt { .. });
        let is_corrupt = matches!(decoded.verdict, ManifestVerdict::CorruptAt { .. });
        assert!(if commit == starts.len() - 1 { is_torn } else { is_corrupt }, "bit {bit}: {:?}", decoded.verdict);
    }
}

#[test]
fn a_lost_commit_below_an_unsynced_one_is_torn() {
    // The last two commits were written together: that the second is intact does not make the loss of the first
    // corruption.
    let (mut bytes, starts) = file(1);
    let lost = starts.len() - 2;
    bytes[starts[lost]..starts[lost + 1]].fill(0);
    let verdict = decode_all(&bytes).unwrap().verdict;
    assert_eq!(verdict, ManifestVerdict::TornAt { offset: starts[lost] as u64 });
}

#[test]
fn every_cut_is_torn_or_clean() {
    let (bytes, starts) = file(0);
    for len in starts[1]..bytes.len() {
        let decoded = decode_all(&bytes[..len]).unwrap();
        let offset = starts.iter().copied().rfind(|&start| start <= len).unwrap() as u64;
        assert_eq!(decoded.valid_len, offset);
        assert_eq!(decoded.verdict == ManifestVerdict::Clean, offset == len as u64, "cut at {len}");
    }
}

#[test]
fn contradictions_are_corruption_and_change_nothing() {
    let uuid = SegmentUuid([1; 16]);
    let ManifestEdit::SealSegment { seal: mut upside_down, .. } = seal(0, 8192, 3) else { unreachable!() };
    upside_down.facts.numbers[1].lowest = version(3, 1);
    let bad = [
        identity(),
        ManifestEdit::Generation(1),
        ManifestEdit::AddRange { range: RangeId(16), keys: KeyRange::ALL },
        ManifestEdit::DropRange { range: RangeId(9) },
        ManifestEdit::AddSegment { slot: 4, uuid, sequence: 9, stream: StreamKind::Foreground },
        ManifestEdit::AddSegment { slot: 9, uuid, sequence: 3, stream: StreamKind::Foreground },
        ManifestEdit::AddSegment { slot: 1 << 16, uuid, sequence: 9, stream: StreamKind::Foreground },
        seal(4, 8192, 3),
        seal(0, 1, 3),
        seal(0, 8192, 19),
        ManifestEdit::SealSegment { slot: 0, seal: upside_down },
        ManifestEdit::DropSegment { slot: 0, uuid },
        ManifestEdit::ClearRange { range: RangeId(9), version: Version::ZERO },
        begin(9, 19, 3, Version::ZERO),
        begin(16, 18, 3, Version::ZERO),
        ManifestEdit::LastNumber(RangeNumber(18)),
        ManifestEdit::RangeWhole { range: RangeId(16) },
        ManifestEdit::RangeWhole { range: RangeId(3) },
        ManifestEdit::RangeWhole { range: RangeId(9) },
        begin_sole(3, 1, Version::ZERO),
        ManifestEdit::EndOfLog { stream: StreamKind::Foreground, end: Watermark { sequence: 2, offset: 9200 } },
        ManifestEdit::EndOfLog { stream: StreamKind::Foreground, end: Watermark { sequence: 4, offset: 9216 } },
        ManifestEdit::EndOfLog { stream: StreamKind::Foreground, end: Watermark { sequence: 3, offset: 16 } },
        ManifestEdit::EndOfLog { stream: StreamKind::Foreground, end: Watermark { sequence: 3, offset: u32::MAX } },
        ManifestEdit::Clock { time: TimeMs(1_699_999_999_999), mono: MonoMs(9) },
        ManifestEdit::AddCheckpoint { uuid: SegmentUuid([7; 16]), len_bytes: 4096 },
        ManifestEdit::DropCheckpoint { uuid: SegmentUuid([8; 16]) },
        split(16, 0x80, (20, 19), (21, 20), version(9, 9)),
        split(16, 0x70, (20, 19), (21, 20), version(9, 9)),
        split(16, 0x90, (20, 19), (20, 20), version(9, 9)),
        split(16, 0x90, (20, 19), (17, 20), version(9, 9)),
        split(16, 0x90, (20, 18), (21, 20), version(9, 9)),
        split(16, 0x90, (20, 20), (21, 19), version(9, 9)),
        split(3, 0x10, (20, 19), (21, 20), version(9, 9)),
        split(9, 0x90, (20, 19), (21, 20), version(9, 9)),
        merge(17, 16, 20, 19, version(9, 9)),
        merge(17, 18, 16, 19, version(9, 9)),
        merge(17, 18, 20, 18, version(9, 9)),
        merge(17, 9, 20, 19, version(9, 9)),
        ManifestEdit::Lineage { range: RangeId(9), ancestors: Vec::new() },
        ManifestEdit::Lineage { range: RangeId(16), ancestors: vec![ancestor(15, 0x80)] },
        ManifestEdit::Lineage { range: RangeId(16), ancestors: vec![ancestor(7, 0x70)] },
        begin_sole(9, 8, Version::ZERO),
        end_sole(9, Version::ZERO),
    ];
    for edit in bad {
        let mut state = state_after(commits().len());
        assert!(state.apply(&edit).is_err(), "{edit:?}");
        assert_eq!(state, state_after(commits().len()));
        let (mut bytes, _) = file(0);
        let offset = bytes.len() as u64;
        encode_commit(&HEADER, &[ManifestEdit::Generation(50), edit.clone()], offset, offset, &mut bytes);
        let decoded = decode_all(&bytes).unwrap();
        assert!(matches!(decoded.verdict, ManifestVerdict::CorruptAt { contradiction: Some(_), .. }), "{edit:?}");
        assert_eq!(decoded.state, state_after(commits().len()), "an incomplete commit has no effect");
    }
}

#[test]
fn contradictions_of_sole_epochs_are_refused() {
    let of_sole_epochs = [
        begin_sole(2, 7, version(7, 1)),
        begin_sole(2, 8, version(8, 1)),
        begin_sole(2, 8, version(7, 0)),
        begin_sole(4, 6, version(5, 2)),
        end_sole(2, version(7, 1)),
        end_sole(4, version(5, 1)),
        end_sole(4, version(7, 0)),
    ];
    for edit in of_sole_epochs {
        assert!(state_after(commits().len() - 5).apply(&edit).is_err(), "{edit:?}");
    }
}

/// Parts of a split range that are merged again have its records whole; a cleared part has none of the lineage before.
#[test]
fn lineages_follow_the_keys() {
    let mut state = state_after(commits().len());
    let lineage = |state: &ManifestState, range: u32| -> Vec<(u32, KeyRange)> {
        let ancestors = &state.ranges[&RangeId(range)].lineage;
        ancestors.iter().map(|ancestor| (ancestor.number.0, ancestor.keys)).collect()
    };
    let keys = |start: u8, end: u8| KeyRange { start: ring_at(start), end: (end > 0).then(|| ring_at(end)) };
    assert_eq!(lineage(&state, 16), [(7, keys(0x80, 0)), (13, keys(0x80, 0xC0)), (14, keys(0xC0, 0))]);
    assert_eq!(lineage(&state, 17), [(10, keys(0x20, 0x40))], "it was cleared after the first split");
    assert_eq!(lineage(&state, 18), [(10, keys(0x40, 0x80))]);
    let halves = [(5, keys(0, 0x10)), (9, keys(0, 0x10)), (11, keys(0, 0x10)), (12, keys(0x10, 0x20))];
    assert_eq!(lineage(&state, 19), halves, "the upper half had forgotten its own");
    let sole = state.ranges[&RangeId(16)].lineage[0].sole.unwrap();
    assert_eq!((sole.first.get(), sole.epoch.get(), sole.is_over), (1, 6, false));
    state.apply(&begin(16, 19, 3, Version::ZERO)).unwrap();
    assert_eq!(lineage(&state, 16), [], "a copy replaces all of it");
}

/// The epochs in a row are one span: a store that served alone through many openings needs one entry.
#[test]
fn sole_epochs_add_up_and_end_with_a_transfer() {
    let sole = |state: &ManifestState, range| state.ranges[&RangeId(range)].sole;
    let mut state = state_after(commits().len() - 5);
    let of_four = sole(&state, 4).unwrap();
    assert_eq!((of_four.first.get(), of_four.epoch.get(), of_four.is_over), (1, 6, false));
    let covers = |found: &[bool; 5]| {
        let versions = [version(1, 1), version(3, 9), version(6, 1), version(7, 1), Version::ZERO];
        versions.map(|version| of_four.covers(version)) == *found
    };
    assert!(covers(&[true, true, true, false, false]));
    let of_two = sole(&state, 2).unwrap();
    assert_eq!((of_two.first.get(), of_two.epoch.get(), of_two.base), (5, 7, version(7, 1)));
    assert!(of_two.covers(version(7, 1)) && !of_two.covers(version(7, 2)) && !of_two.covers(version(3, 1)));
    assert!(of_two.includes(version(3, 1)), "an earlier epoch's records precede the base");
    state.apply(&begin(4, 9, 3, version(9, 9))).unwrap();
    assert_eq!(sole(&state, 4), None, "what a copy replaces is invalidated");
    assert!(state.apply(&begin_sole(4, 10, version(9, 9))).is_err(), "half a copy serves no epoch");
}

#[test]
fn a_predecessors_commits_do_not_pass() {
    let (bytes, starts) = file(0);
    let mut rewritten = encode_snapshot(&state_after(commits().len()), HEADER.rewrite + 1);
    let valid_len = rewritten.len();
    rewritten.resize(8192, 0);
    let stale = &bytes[starts[7]..];
    rewritten[starts[7].max(valid_len)..][..stale.len()].copy_from_slice(stale);
    let decoded = decode_all(&rewritten).unwrap();
    assert_eq!((decoded.valid_len, decoded.state), (valid_len as u64, state_after(commits().len())));
}

#[test]
fn a_newer_manifest_says_so() {
    let (mut bytes, _) = file(0);
    bytes[8] = 9;
    let checksum = checksum64(&bytes[..HEADER_BYTES - 8]);
    bytes[HEADER_BYTES - 8..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    let error = decode_all(&bytes).unwrap_err();
    assert!(matches!(error, ManifestError::Header(HeaderError::Newer { found: 9, .. })), "{error}");
}

#[test]
fn arbitrary_bytes_never_panic() {
    let mut rng = Rng::new("format_manifest::arbitrary_bytes_never_panic");
    let (bytes, starts) = file(0);
    for _ in 0..3_000 {
        let mut data = bytes.clone();
        let place = rng.below(data.len());
        data.iter_mut().skip(place).take(1 + place % 9).for_each(|byte| *byte = rng.next() as u8);
        fawn_ds::fuzz::manifest(&data);
        // Valid checksums over arbitrary edits, as a bug would leave them.
        let mut data = bytes[..starts[1]].to_vec();
        let mut commit = Vec::new();
        encode_commit(&HEADER, &[ManifestEdit::Blob { key: 1, bytes: vec![0; 60] }], starts[1] as u64, 0, &mut commit);
        for _ in 0..1 + rng.below(3) {
            let place = 32 + rng.below(commit.len() - 32);
            commit[place] = (rng.next() % 24) as u8;
        }
        data.extend_from_slice(&commit);
        fawn_ds::fuzz::manifest(&data);
    }
}

#[test]
fn runs_and_sorted_segments_survive_a_rewrite_and_contradictions_are_refused() {
    let (run, other) = (SegmentUuid([1; 16]), SegmentUuid([2; 16]));
    let mut state = ManifestState::default();
    state.apply(&identity()).unwrap();
    state.apply(&ManifestEdit::IndexDeletes).unwrap();
    let segment = SegmentUuid([3; 16]);
    let sort = ManifestEdit::SortSegment { slot: 4, uuid: segment };
    let add = |uuid, age| ManifestEdit::AddRun(RunEntry { uuid, file_bytes: 1 << 16, age });
    state
        .apply(&ManifestEdit::AddSegment { slot: 4, uuid: segment, sequence: 1, stream: StreamKind::Foreground })
        .unwrap();
    assert!(state.apply(&sort).is_err(), "an open segment is not sorted");
    let seal = SegmentSeal { len: 8192, facts: RecordFacts::default() };
    for edit in [ManifestEdit::SealSegment { slot: 4, seal }, add(run, 2), add(other, 1), sort.clone()] {
        state.apply(&edit).unwrap();
    }
    assert!(state.apply(&add(run, 9)).is_err(), "a run is listed once");
    let decoded = decode_all(&encode_snapshot(&state, HEADER.rewrite)).unwrap();
    assert_eq!(decoded.state, state);
    assert!(state.runs.is_sorted_by_key(|entry| entry.age) && state.segments[&4].is_sorted);
    state.apply(&ManifestEdit::DropRun { uuid: run }).unwrap();
    assert!(state.apply(&ManifestEdit::DropRun { uuid: run }).is_err());
    let mut without = ManifestState::default();
    without.apply(&identity()).unwrap();
    assert!(without.apply(&add(run, 1)).is_err(), "deletes are indexed first");
}
