//! Tests of the page cache: against a naive model, with changing budgets, under a scan, and without allocation.
use fawn_flash::{FileId, PageCache};
use fawn_types::random::SplitMix64;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;

const MIB: usize = 1 << 20;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with a count of this thread's allocations.
struct CacheTestAllocator;

// SAFETY: (1) every call is passed to the system's allocator unchanged; (2) counting allocates nothing.
unsafe impl GlobalAlloc for CacheTestAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: (1) the caller's obligations are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: (1) as above; (2) it came from the same allocator.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CacheTestAllocator = CacheTestAllocator;

fn page(tag: u64) -> Vec<u8> {
    let mut content = vec![0; 4096];
    content[..8].copy_from_slice(&tag.to_le_bytes());
    content[4088..].copy_from_slice(&tag.to_le_bytes());
    content
}

/// The cached content of a page is always the last one inserted and not invalidated, however pages are evicted and the
/// cache shrinks.
#[test]
fn never_shows_what_a_map_would_not() {
    for seed in 0..4 {
        let mut rng = SplitMix64::new(seed);
        let mut cache = PageCache::new(4 * MIB);
        let mut model: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for step in 0..40_000_u64 {
            let (file, number) = (rng.below(4) as u32, rng.below(600) as u32);
            match rng.below(1000) {
                0..450 => {
                    cache.insert(FileId(file), number, &page(step));
                    model.insert((file, number), step);
                }
                450..990 => match (cache.get(FileId(file), number), model.get(&(file, number))) {
                    (Some(held), Some(&tag)) => assert_eq!(held[..], page(tag)[..], "seed {seed} step {step}"),
                    (Some(_), None) => panic!("seed {seed} step {step}: an invalidated page"),
                    (None, _) => (),
                },
                990..994 => {
                    cache.invalidate(FileId(file), number);
                    model.remove(&(file, number));
                }
                994..996 => {
                    let end = number + rng.below(3000) as u32;
                    cache.invalidate_pages(FileId(file), number..end);
                    model.retain(|&(of, at), _| of != file || !(number..end).contains(&at));
                }
                _ => {
                    let budget = rng.below(8) as usize * MIB;
                    cache.set_budget_bytes(budget);
                    let all = (0..4).flat_map(|file| (0..600).map(move |number| (FileId(file), number)));
                    let found = all.filter(|&(file, number)| cache.peek(file, number).is_some()).count();
                    assert_eq!(found, cache.pages(), "seed {seed} step {step}: every cached page can be found");
                    assert!(cache.resident_bytes() <= budget.max(4096), "seed {seed}: {cache:?} of {budget}");
                }
            }
        }
        assert!(cache.stats().hits > 1000, "seed {seed}: {cache:?}");
    }
}

/// If all pages fit, none may be missing.
#[test]
fn holds_everything_while_there_is_room() {
    let mut cache = PageCache::new(8 * MIB);
    for number in 0..1500 {
        cache.insert(FileId(1), number, &page(u64::from(number)));
    }
    for number in 0..1500 {
        assert_eq!(cache.get(FileId(1), number).unwrap()[..8], u64::from(number).to_le_bytes());
    }
    assert_eq!(cache.stats().evictions, 0);
    cache.set_budget_bytes(3 * MIB);
    assert_eq!(cache.pages(), 512, "two chunks and the tables fit 3 MiB, and they stay full");
    assert!((0..1500).filter(|&number| cache.peek(FileId(1), number).is_some()).count() == 512);
}

#[test]
fn a_scan_leaves_the_hot_pages() {
    let mut cache = PageCache::new(8 * MIB);
    let frames = 7 * 256;
    for round in 0..4 {
        for number in 0..frames / 2 {
            if cache.get(FileId(1), number).is_none() {
                cache.insert(FileId(1), number, &page(0));
            }
            if round > 1 {
                cache.insert(FileId(2), round * frames + number, &page(1));
            }
        }
    }
    for number in 0..20 * frames {
        cache.insert(FileId(3), number, &page(2));
    }
    let kept = (0..frames / 2).filter(|&number| cache.peek(FileId(1), number).is_some()).count();
    assert!(kept as u32 >= frames / 2 * 95 / 100, "a scan of 20 times the cache left {kept} of {}", frames / 2);
}

#[test]
fn a_hit_allocates_nothing_and_neither_does_an_eviction() {
    let mut cache = PageCache::new(4 * MIB);
    let content = page(1);
    for number in 0..2000 {
        cache.insert(FileId(1), number, &content);
    }
    let before = ALLOCATIONS.get();
    for number in 0..4000 {
        let _ = cache.get(FileId(1), number % 2000);
        cache.insert(FileId(1), number, &content);
    }
    assert_eq!(ALLOCATIONS.get(), before);
}

#[test]
fn overhead_is_within_forty_bytes_a_page() {
    for mebibytes in [4, 7, 16, 33, 100] {
        let mut cache = PageCache::new(mebibytes * MIB);
        let content = page(0);
        for number in 0..(mebibytes as u32 * 256) {
            cache.insert(FileId(0), number, &content);
        }
        let overhead = cache.resident_bytes() - cache.pages() * 4096;
        assert!(overhead <= 40 * cache.pages(), "{mebibytes} MiB: {} B per page", overhead / cache.pages());
    }
}

#[test]
fn too_small_a_budget_caches_nothing() {
    let mut cache = PageCache::new(1000);
    cache.insert(FileId(0), 0, &page(0));
    assert!(cache.get(FileId(0), 0).is_none());
    assert_eq!(cache.pages(), 0);
}

/// A page that returns within the marginal amount of evictions is a marginal hit; a later one is not, nor is a new page.
#[test]
fn returns_of_evicted_pages_are_counted_within_the_marginal_memory() {
    for (later, expected) in [(10, 1), (200, 0)] {
        let mut cache = PageCache::new(2 * MIB);
        cache.set_marginal_bytes(100 * 4096);
        let pages = (PageCache::usable_bytes(2 * MIB) / 4096) as u32 + later;
        (0..pages).for_each(|number| cache.insert(FileId(1), number, &page(1)));
        assert!(cache.peek(FileId(1), 0).is_none() && cache.stats().marginal_hits == 0, "{cache:?}");
        cache.insert(FileId(1), 0, &page(1));
        assert_eq!(cache.stats().marginal_hits, expected, "{later} pages later: {cache:?}");
    }
}
