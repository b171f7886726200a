//! Fuzz targets of runs: pages, ends and tails of arbitrary bytes, and lookups by whatever tail is accepted.
//!
//! Each panics when a decoder accepts bytes that the encoder would not write, or when accepted bytes make a lookup panic.
use super::Fences;
use crate::format::Expiries;
use crate::format::run::page::{PageBuilder, RunPage};
use crate::format::run::tail::RunTail;
use crate::format::run::{
    self, KeyBounds, PAGES_MAX, PageChain, RunFooter, RunHeader, RunRecord, SPACES, Space, filter_hash,
};
use crate::format::{FORMAT_VERSION, SegmentUuid, StoreUuid};
use fawn_flash::buffer::PAGE_BYTES;
use fawn_types::RingKey;
use fawn_types::checksum::checksum64;
use fawn_types::random::SplitMix64;

const UUID: SegmentUuid = SegmentUuid([7; 16]);

/// If a record or a page decodes, encoding its content again yields the same bytes.
pub fn run_page(data: &[u8]) {
    if let Some((record, len)) = RunRecord::decode(data) {
        let mut again = vec![0xA5; len];
        assert_eq!(record.encode(&mut again), len, "the decoder agrees on the length");
        assert_eq!(again, data[..len], "one content, one encoding");
    }
    let mut bytes = data.to_vec();
    bytes.resize(PAGE_BYTES, 0);
    let Ok(page) = RunPage::decode_verified(&bytes) else {
        assert!(RunPage::decode(&bytes, UUID, 0).is_err(), "the checksum makes no page of other bytes");
        return;
    };
    let (mut builder, mut again) = (PageBuilder::default(), vec![0; PAGE_BYTES]);
    for record in page.records() {
        assert!(builder.has_space(&record), "the records fit where they came from");
        builder.push(&record);
    }
    let checksum = builder.finish(UUID, 3, &mut again);
    assert_eq!(again[4..], bytes[4..], "one content, one encoding");
    assert_eq!(RunPage::decode(&again, UUID, 3).map(|page| page.checksum()), Ok(checksum));
    assert!(RunPage::decode(&again, UUID, 4).is_err(), "another page's place");
    assert!(page.records().all(|record| page.find(record.key).is_some()) && page.ends().is_some());
}

/// If a header or footer decodes, encoding it again yields the same bytes. The checksum is made valid, so that the
/// fields are reached.
pub fn run_ends(data: &[u8]) {
    for magic in [run::MAGIC, run::FOOTER_MAGIC] {
        let mut block = data.to_vec();
        block.resize(PAGE_BYTES, 0);
        block[..8].copy_from_slice(&magic);
        block[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        let checksum = checksum64(&block[..504]);
        block[504..512].copy_from_slice(&checksum.to_le_bytes());
        let mut again = vec![0xA5; PAGE_BYTES];
        if let Ok(header) = run::decode_header(&block) {
            run::encode_header(&header, &mut again);
            assert_eq!(again, block, "one header, one encoding");
        }
        if let Ok(footer) = run::decode_footer(&block) {
            run::encode_footer(&footer, &mut again);
            assert_eq!(again, block, "one footer, one encoding");
        }
        assert!(run::decode_header(data).is_err() || run::decode_footer(data).is_err(), "a block is one of both");
    }
}

/// The first two bytes are the first pages of two spaces, the rest is a tail. If it decodes, it is encoded the same, and
/// lookups by its fences and filters end within the pages.
pub fn run_tail(data: &[u8]) {
    let Some((&[first, second], content)) = data.split_first_chunk() else { return };
    let pages = u32::from(first) + u32::from(second);
    assert!(RunTail::decode(content, PAGES_MAX).is_err() || content.len() > PAGES_MAX as usize, "a byte per page");
    let Ok(tail) = RunTail::decode(content, pages) else { return };
    let mut again = Vec::new();
    tail.encode(&mut again);
    assert_eq!(again, content, "one tail, one encoding");

    let starts = [0, u32::from(first), pages, pages, pages];
    let bounds = KeyBounds { lowest: RingKey::MIN, highest: RingKey([0xFF; 20]) };
    let footer = RunFooter {
        header: RunHeader { uuid: UUID, store: StoreUuid([5; 16]) },
        pages,
        records: tail.facts.records(),
        tail_bytes: 0,
        starts,
        bounds: std::array::from_fn(|at| if starts[at] < starts[at + 1] { bounds } else { KeyBounds::NONE }),
        chain: PageChain::default(),
        expiries: Expiries::default(),
    };
    let Ok(fences) = Fences::load(tail.fences.clone(), &footer) else { return };
    let mut random = SplitMix64::new(checksum64(content));
    let prefixes = tail.fences.areas.iter().flat_map(|area| [area.first.get(), area.last.get()]);
    let prefixes = prefixes.chain(tail.fences.groups.iter().map(|group| group.prefix.get())).take(100);
    for prefix in prefixes.flat_map(|prefix| [prefix, prefix.wrapping_add(1), prefix.wrapping_sub(1)]) {
        let mut key = RingKey::MIN;
        key.0[..8].copy_from_slice(&prefix.to_be_bytes());
        key.0[12..].copy_from_slice(&random.next().to_be_bytes());
        for space in (0..SPACES as u8).filter_map(Space::new) {
            let at = usize::from(space.get());
            if let Some(span) = fences.locate(space, &key) {
                assert!(starts[at] <= span.first && span.first <= span.last && span.last < starts[at + 1]);
            }
            let extent = fences.extent(space, &key, None);
            assert!(extent.start >= starts[at] && extent.end <= starts[at + 1], "{extent:?}");
            for filter in &tail.filters {
                let _ = filter.may_contain(filter_hash(space, &key));
            }
        }
    }
}
