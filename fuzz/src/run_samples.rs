//! Valid parts of runs as the start of mutation: pages, ends, and tails with areas, groups and filters.
use fawn_ds::internals::format::run::page::PageBuilder;
use fawn_ds::internals::format::run::tail::RunTail;
use fawn_ds::internals::format::run::{
    KeyBounds, PageChain, RunFooter, RunHeader, RunRecord, encode_footer, encode_header,
};
use fawn_ds::internals::format::segment::{NumberFacts, RecordFacts};
use fawn_ds::internals::format::{Expiries, RangeNumber, SegmentUuid, StoreUuid};
use fawn_ds::internals::sorted::{FenceBuilder, filter};
use fawn_types::{HashSecret, RingKey, Version};

const UUID: SegmentUuid = SegmentUuid([7; 16]);

pub(crate) fn pages() -> Vec<Vec<u8>> {
    let put = RunRecord::put(RangeNumber(1), Version::from_u64(2), b"key", b"value");
    let dated = RunRecord { expires_at_ms: 9, flags: 8, ..put };
    let (mut builder, mut page) = (PageBuilder::default(), vec![0; 4096]);
    [put, dated, dated.to_tombstone()].iter().for_each(|record| builder.push(record));
    builder.finish(UUID, 3, &mut page);
    let mut record = vec![0; dated.encoded_len()];
    dated.encode(&mut record);
    vec![page, record]
}

pub(crate) fn ends() -> Vec<Vec<u8>> {
    let header = RunHeader { uuid: UUID, store: StoreUuid([5; 16]) };
    let bounds = KeyBounds { lowest: RingKey([1; 20]), highest: RingKey([2; 20]) };
    let footer = RunFooter {
        header,
        pages: 9,
        records: 100,
        tail_bytes: 4096,
        starts: [0, 9, 9, 9, 9],
        bounds: [bounds, KeyBounds::NONE, KeyBounds::NONE, KeyBounds::NONE],
        chain: PageChain(3),
        expiries: Expiries::default(),
    };
    let (mut first, mut last) = (vec![0; 4096], vec![0; 4096]);
    encode_header(&header, &mut first);
    encode_footer(&footer, &mut last);
    // Mutations within the fields find more than those in the zeros behind them.
    [first, last].into_iter().map(|block| block[..512].to_vec()).collect()
}

/// The first pages of two spaces as one byte each, then a tail.
pub(crate) fn tails() -> Vec<Vec<u8>> {
    let secret = HashSecret([3; 16]);
    let tail_of = |keys: &dyn Fn(u32) -> String| {
        let mut sorted: Vec<_> = (0..40).map(|i| RingKey::of(&secret, keys(i).as_bytes())).collect();
        sorted.sort_unstable();
        let mut builder = FenceBuilder::default();
        sorted.iter().for_each(|key| builder.push(*key));
        let bounds = KeyBounds { lowest: sorted[0], highest: sorted[39] };
        let fences = builder.finish(&[0, 40, 40, 40, 40], &[bounds, KeyBounds::NONE, KeyBounds::NONE, KeyBounds::NONE]);
        let (lowest, highest) = (Version::from_u64(1), Version::from_u64(9));
        let numbers = vec![NumberFacts { number: RangeNumber(1), records: 400, lowest, highest }];
        let facts = RecordFacts { tombstones: 1, latest_expiry_ms: 2, numbers };
        let filters = vec![filter::build(&[1, 2, 3], 4, 0), filter::build(&[4, 5], 8, 20)];
        let mut bytes = vec![40, 0];
        RunTail { facts, fences, filters }.encode(&mut bytes);
        bytes
    };
    vec![
        tail_of(&|i| format!("k{i}")),
        tail_of(&|i| format!("{{tag{}}}{i}", i / 10)),
        tail_of(&|i| format!("{{t}}{i}")),
    ]
}
