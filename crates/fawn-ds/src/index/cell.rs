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

/// The entries of a cell by columns, as a page stores them.
#[derive(Clone, Copy, Debug)]
pub struct CellColumns<'a> {
    /// The fragment of each entry.
    pub fragments: &'a [u16],
    /// The low 32 bits of each pointer, in two units, the lower one first.
    pub low_units: &'a [u16],
    /// Bits 32 to 39 of two pointers in each unit, the first one's in the low byte; none if pointers have 32 bits.
    pub high_units: &'a [u16],
}

/// A cell as an image has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CellImage<'a> {
    /// Hash bits that all keys of the cell share.
    pub depth: u32,
    /// The fragment of each entry.
    pub fragments: &'a [[u8; 2]],
    /// The low 32 bits of each pointer.
    pub low_bits: &'a [[u8; 4]],
    /// Bits 32 to 39 of each pointer; none if pointers have 32 bits.
    pub high_bits: &'a [u8],
}

impl<'a> CellImage<'a> {
    /// The pointer of every entry.
    pub fn pointers(self) -> impl ExactSizeIterator<Item = Pointer> + 'a {
        self.low_bits.iter().enumerate().map(move |(at, low_bits)| {
            let high_bits = self.high_bits.get(at).copied().unwrap_or(0);
            Pointer::new(u64::from(high_bits) << 32 | u64::from(u32::from_le_bytes(*low_bits)))
        })
    }

    /// Every entry: fragment and pointer.
    pub fn entries(self) -> impl ExactSizeIterator<Item = (u16, Pointer)> + 'a {
        self.fragments.iter().map(|fragment| u16::from_le_bytes(*fragment)).zip(self.pointers())
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

    /// The pointers of entries that may be in a smaller cell: that of the hashes whose first `depth` bits are those of
    /// `hash`. An entry that lacks some of these bits may be.
    pub fn pointers_within(self, hash: u64, depth: u32) -> impl Iterator<Item = Pointer> + 'a {
        let (page, query) = (self.page, fragment::fresh(hash, self.depth));
        let bits = depth.saturating_sub(self.depth);
        let nth = page.fragments.iter().enumerate().filter(move |&(_, &entry)| fragment::begins_as(entry, query, bits));
        nth.map(move |(nth, _)| page.pointer(nth))
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

    /// Every entry of the cell, by columns.
    #[must_use]
    pub fn columns(&self) -> CellColumns<'a> {
        self.page.columns()
    }

    /// The entries with fewer than `bits` hash bits left, which [`super::Index::refill`] would make selective again.
    pub fn stale(&self, bits: u32) -> impl Iterator<Item = Pointer> + 'a {
        debug_assert!(bits <= fragment::BITS_MAX);
        let page = self.page;
        let stale = page.fragments.iter().enumerate().filter(move |&(_, &entry)| fragment::bits(entry) < bits);
        stale.map(move |(at, _)| page.pointer(at))
    }
}
