//! Fences that contradict each other: a run with them is refused, because its lookups would miss keys.
use crate::runs::header;
use fawn_ds::internals::format::Expiries;
use fawn_ds::internals::format::run::tail::{FenceArea, FenceParts};
use fawn_ds::internals::format::run::{KeyBounds, PageChain, RunFooter, SPACES};
use fawn_ds::internals::sorted::{FenceBuilder, Fences};
use fawn_types::RingKey;

/// The lowest ring key with this prefix.
fn key(prefix: u64) -> RingKey {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&prefix.to_be_bytes());
    RingKey(bytes)
}

/// Sixteen pages in two parts of the ring, so far from each other that each is an area.
fn two_areas() -> (FenceParts, RunFooter) {
    let part = |from: u64| (1..9_u64).map(move |at| key(from + (at << 32)));
    let firsts: Vec<RingKey> = part(0).chain(part(1 << 60)).collect();
    let pages = firsts.len() as u32;
    let mut starts = [pages; SPACES + 1];
    starts[0] = 0;
    let mut bounds = [KeyBounds::NONE; SPACES];
    bounds[0] = KeyBounds { lowest: firsts[0], highest: firsts[firsts.len() - 1] };
    let (records, tail_bytes, chain) = (u64::from(pages), 0, PageChain::default());
    let footer = RunFooter {
        header: header(1),
        pages,
        records,
        tail_bytes,
        starts,
        bounds,
        chain,
        expiries: Expiries::default(),
    };
    let mut builder = FenceBuilder::default();
    firsts.into_iter().for_each(|first| builder.push(first));
    (builder.finish(&footer.starts, &footer.bounds), footer)
}

/// The reason for which the fences are refused after a change of their areas.
fn refusal(change: impl FnOnce(&mut [FenceArea])) -> Option<String> {
    let (mut parts, footer) = two_areas();
    assert_eq!(parts.areas.len(), 2);
    change(&mut parts.areas);
    Fences::load(parts, &footer).err().map(|error| error.to_string())
}

/// A lookup finds a key's area by a binary search, and maps the key to coordinates between the area's ends. In another order,
/// keys would be looked for in pages that do not have them, and be absent without an error.
#[test]
fn fences_with_areas_out_of_order_are_refused() {
    assert_eq!(refusal(|_| ()), None);
    let expected = Some("fences with areas out of order".to_owned());
    assert_eq!(refusal(|areas| areas[0].last = areas[1].first), expected, "the first one reaches to the second one");
    assert_eq!(refusal(|areas| areas[1].first = areas[0].first), expected, "they begin at one prefix");
    let exchange = |areas: &mut [FenceArea]| {
        areas.swap(0, 1);
        (areas[0].base, areas[1].base) = (areas[1].base, areas[0].base);
    };
    assert_eq!(refusal(exchange), expected, "the later one comes first");
    let reverse = |areas: &mut [FenceArea]| {
        let FenceArea { first, last, .. } = areas[0];
        (areas[0].first, areas[0].last) = (last, first);
    };
    assert_eq!(refusal(reverse), expected, "one ends before it begins");
}
