//! Results of index reads: the candidates of a key, and whole cells in hash order.
use super::Pointer;
use super::fragment;
use super::slab::IndexPage;

/// Pointers of the entries whose fragment matches a key: at most one belongs to the key.
#[derive(Clone, Debug)]
pub struct Candidates<'a> {
    page: IndexPage<'a>,
    query: u16,
    at: usize,
}

impl<'a> Candidates<'a> {
    pub(super) fn new(page: IndexPage<'a>, query: u16) -> Self {
        Self { page, query, at: 0 }
    }
}

impl Iterator for Candidates<'_> {
    type Item = Pointer;

    #[inline]
    fn next(&mut self) -> Option<Pointer> {
        let at = fragment::first_match(self.page.fragments, self.query, self.at)?;
        debug_assert!(at >= self.at);
        self.at = at + 1;
        Some(self.page.pointer(at))
    }
}

/// One page as a stretch of hash order: its entries, and the start of the next.
#[derive(Clone, Debug)]
pub struct Cell<'a> {
    page: IndexPage<'a>,
    depth: u32,
    /// The cursor of the next cell; `None` at the end of hash order.
    pub next: Option<u64>,
}

impl<'a> Cell<'a> {
    pub(super) fn new(page: IndexPage<'a>, first_hash: u64, depth: u32) -> Self {
        assert!((1..64).contains(&depth), "a cell of depth {depth} has no successor");
        Self { page, depth, next: first_hash.checked_add(1 << (64 - depth)) }
    }

    /// Entries in the cell.
    #[must_use]
    pub fn len(&self) -> usize {
        self.page.fragments.len()
    }

    /// Whether this stretch of hash order is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.page.fragments.is_empty()
    }

    /// Every pointer of the cell, in no particular order.
    pub fn pointers(&self) -> impl ExactSizeIterator<Item = Pointer> + 'a {
        let page = self.page;
        (0..page.fragments.len()).map(move |at| page.pointer(at))
    }

    /// Hash bits that all keys of the cell share.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Every entry of the cell as it is stored: fragment and pointer.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (u16, Pointer)> + 'a {
        self.page.entries()
    }

    /// The entries with fewer than `bits` hash bits left, which [`super::Index::refill`] would make selective again.
    pub fn stale(&self, bits: u32) -> impl Iterator<Item = Pointer> + 'a {
        debug_assert!(bits <= fragment::BITS_MAX);
        let page = self.page;
        let stale = page.fragments.iter().enumerate().filter(move |&(_, &entry)| fragment::bits(entry) < bits);
        stale.map(move |(at, _)| page.pointer(at))
    }
}
