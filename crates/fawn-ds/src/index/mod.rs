//! Index of the log: key hash → candidate record pointers, in entries of six or seven bytes [FAWN09 §3.3.1] and pages
//! that split.
//!
//! The paper's table has a fixed size: it refuses inserts when a probe chain is full, and doubling it would
//! pause and need twice the memory. Here pages of ~16 entries split one at a time, in the insert that makes one due
//! (linear hashing), so work per insert is bounded and memory follows the keys.
//! `docs/decisions/2026-11-21-index-pages.md` has the arithmetic and the measurements. The invariants, which the tests
//! name too:
//! - **candidates-complete**: an inserted pointer is among its hash's candidates until it is removed or replaced;
//! - **slots-dense**: of each size class at most one block is partly filled;
//! - **cells-cover**: cells partition hash order, and a page's cell only ever splits.
//!
//! When keys are removed, pages shrink at once and their blocks return to the allocator. The page table (4 B per page)
//! keeps its largest size, a quarter of a byte per former key, until [`Index::clear`].
mod cell;
mod fragment;
mod grow;
mod image;
mod slab;
mod table;
#[cfg(test)]
mod tests;

pub use cell::{Candidates, Cell, CellColumns, CellImage};
use fawn_types::KeyHash;
pub(crate) use image::IndexImageError;
use slab::{BlockHandle, IndexPage, IndexSlab};
use table::{Address, CellTable, LEVEL_MIN};

/// Start of a record in a store's log, in units of 16 bytes: 32 or 40 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Pointer(u64);

impl Pointer {
    /// The pointer to this unit of the log, below 2^40.
    #[inline]
    #[must_use]
    pub const fn new(unit: u64) -> Self {
        debug_assert!(unit >> PointerWidth::Bits40.bits() == 0);
        Self(unit)
    }

    /// Its unit of the log.
    #[inline]
    #[must_use]
    pub const fn unit(self) -> u64 {
        self.0
    }
}

/// Length of a store's pointers. It is fixed when the store is created, because it bounds the store's log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum PointerWidth {
    /// 64 GiB of log; six bytes per entry of an index.
    #[default]
    Bits32,
    /// 16 TiB of log; seven bytes per entry.
    Bits40,
}

impl PointerWidth {
    /// Bits of a pointer.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::Bits32 => 32,
            Self::Bits40 => 40,
        }
    }

    /// The width with this number of bits.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            32 => Some(Self::Bits32),
            40 => Some(Self::Bits40),
            _ => None,
        }
    }

    /// Bytes of a pointer on flash.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.bits() as usize / 8
    }

    /// Bytes of log that pointers of this width can name.
    #[must_use]
    pub const fn log_bytes_max(self) -> u64 {
        (crate::format::UNIT_BYTES as u64) << self.bits()
    }

    /// The width of a new store for this many bytes of segments.
    #[must_use]
    pub const fn for_capacity(capacity_bytes: u64) -> Self {
        if capacity_bytes > Self::Bits32.log_bytes_max() { Self::Bits40 } else { Self::Bits32 }
    }
}

/// Maximum keys that are prefetched together: about as many as a core has cache misses in flight, and few enough that no
/// line is evicted before its use.
pub const PREFETCH_KEYS_MAX: usize = 16;

/// Maximum entries of one page, and therefore maximum keys that share one 64-bit hash.
pub const PAGE_ENTRIES_MAX: usize = slab::PAGE_ENTRIES_MAX;

/// Sizes of a new index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexOptions {
    /// Keys up to which no page splits, so no fragment loses bits. Costs a quarter of a byte each from the start;
    /// set it for a range of small or known size.
    pub entries_min: u32,
    /// Mean entries per page during growth: fewer cost memory (11 B per page), more cost false reads.
    pub page_entries: u32,
    /// Length of the pointers; a store sets its own.
    pub pointers: PointerWidth,
}

impl Default for IndexOptions {
    fn default() -> Self {
        Self { entries_min: 1 << 20, page_entries: 16, pointers: PointerWidth::Bits32 }
    }
}

/// Reasons why an entry was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IndexError {
    /// Only equal hashes fill a page; the hash is keyed, so no client can cause this on purpose.
    #[error(
        "index page full: {PAGE_ENTRIES_MAX} keys share hash {hash:#018x} or its page; \
         delete some of them, or recreate the store under a new hash secret"
    )]
    PageFull {
        /// The hash that found no place.
        hash: u64,
    },
    /// More entries than one index counts.
    #[error("index full: it holds 2^32 - 1 entries, the most of one key range; split the range")]
    Full,
}

/// Key hash → candidate pointers of one key range.
pub struct Index {
    options: IndexOptions,
    table: CellTable,
    slab: IndexSlab,
    entries: u32,
    growth_blocked: bool,
}

impl Index {
    /// An empty index.
    #[must_use]
    pub fn new(options: IndexOptions) -> Self {
        let page_entries = options.page_entries.clamp(2, PAGE_ENTRIES_MAX as u32 / 8);
        let options = IndexOptions { page_entries, ..options };
        let pages_min = (options.entries_min / page_entries).max(1 << LEVEL_MIN);
        let level = pages_min.next_power_of_two().ilog2();
        Self {
            options,
            table: CellTable::new(level),
            slab: IndexSlab::new(options.pointers),
            entries: 0,
            growth_blocked: false,
        }
    }

    /// Length of its pointers.
    #[must_use]
    pub fn pointer_width(&self) -> PointerWidth {
        self.options.pointers
    }

    /// Number of entries, each one pointer.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.entries
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Memory of the index, spare capacity and allocator headers included, bytes.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        size_of::<Self>() + self.table.resident_bytes() + self.slab.resident_bytes()
    }

    /// Removes every entry and releases the memory.
    pub fn clear(&mut self) {
        *self = Self::new(self.options);
        assert!(self.is_empty());
    }

    /// The pointers that may belong to a key with this hash; each must be verified against its record.
    #[inline]
    #[must_use]
    pub fn candidates(&self, hash: KeyHash) -> Candidates<'_> {
        self.candidates_at(self.table.address(hash.0), hash)
    }

    #[inline]
    fn candidates_at(&self, address: Address, hash: KeyHash) -> Candidates<'_> {
        let page = self.page(address);
        page.fetch_pointers();
        Candidates::new(page, fragment::fresh(hash.0, address.depth))
    }

    /// Prefetches the memory that lookups of these keys are about to read; only the first [`PREFETCH_KEYS_MAX`] are used.
    ///
    /// A lookup waits for two dependent memory accesses; those of different keys overlap.
    #[inline]
    pub fn prefetch(&self, hashes: &[KeyHash]) {
        self.prefetch_pages(hashes);
    }

    /// Prefetches the pages' handles: the first step before [`Index::has_candidates`].
    #[inline]
    pub(crate) fn prefetch_handles(&self, hashes: &[KeyHash]) {
        hashes.iter().for_each(|hash| self.table.fetch(self.table.address(hash.0).page));
    }

    /// Prefetches the pages' fragments: the second step.
    #[inline]
    pub(crate) fn prefetch_fragments(&self, hashes: &[KeyHash]) {
        let handles = hashes.iter().map(|hash| self.table.handle(self.table.address(hash.0).page));
        handles.for_each(|handle| self.slab.fetch_fragments(handle));
    }

    /// Whether [`Index::candidates`] has any. Most often it reads a single cache line of the page.
    #[inline]
    pub(crate) fn has_candidates(&self, hash: KeyHash) -> bool {
        let (address, page) = self.page_of(hash);
        fragment::first_match(page.fragments, fragment::fresh(hash.0, address.depth), 0).is_some()
    }

    /// As [`Index::prefetch`]; then passes the first candidate of each key to `found`.
    #[inline]
    pub(crate) fn prefetch_candidates(&self, hashes: &[KeyHash], mut found: impl FnMut(Pointer)) {
        let addresses = self.prefetch_pages(hashes);
        for (address, &hash) in addresses.into_iter().zip(hashes) {
            // A second candidate is rare; prefetching it would delay the other keys.
            if let Some(pointer) = self.candidates_at(address, hash).next() {
                found(pointer);
            }
        }
    }

    #[inline]
    fn prefetch_pages(&self, hashes: &[KeyHash]) -> [Address; PREFETCH_KEYS_MAX] {
        let mut addresses = [Address::default(); PREFETCH_KEYS_MAX];
        for (address, hash) in addresses.iter_mut().zip(hashes) {
            *address = self.table.address(hash.0);
            self.table.fetch(address.page);
        }
        let used = hashes.len().min(PREFETCH_KEYS_MAX);
        addresses[..used].iter().for_each(|address| self.slab.fetch(self.table.handle(address.page)));
        addresses
    }

    /// Adds an entry, and splits at most one page.
    ///
    /// # Errors
    /// When the page or the index is full; nothing has changed then.
    pub fn insert(&mut self, hash: KeyHash, pointer: Pointer) -> Result<(), IndexError> {
        if self.entries == u32::MAX {
            return Err(IndexError::Full);
        }
        let address = self.table.address(hash.0);
        let handle = self.table.handle(address.page);
        let entry = fragment::fresh(hash.0, address.depth);
        if !self.slab.fill_vacant(handle, entry, pointer) {
            let len = self.slab.places(handle);
            if len == PAGE_ENTRIES_MAX {
                return Err(IndexError::PageFull { hash: hash.0 });
            }
            self.resize(address.page, len, len + 1);
            self.slab.page_mut(self.table.handle(address.page)).set(len, entry, pointer);
        }
        self.entries += 1;
        self.split_if_due();
        Ok(())
    }

    /// Points the entry of this hash from `old` to `new` and refreshes its fragment; `false` if there is none.
    pub fn replace(&mut self, hash: KeyHash, old: Pointer, new: Pointer) -> bool {
        let Some((address, at)) = self.find(hash, old) else { return false };
        let entry = fragment::fresh(hash.0, address.depth);
        self.slab.page_mut(self.table.handle(address.page)).set(at, entry, new);
        true
    }

    /// Restores all fragment bits of an entry, once the key's full hash is known because a
    /// lookup verified the record; `false` if there is none.
    pub fn refill(&mut self, hash: KeyHash, pointer: Pointer) -> bool {
        self.replace(hash, pointer, pointer)
    }

    /// Removes the entry of this hash that points to `pointer`; `false` if there is none.
    pub fn remove(&mut self, hash: KeyHash, pointer: Pointer) -> bool {
        let Some((address, at)) = self.find(hash, pointer) else { return false };
        let len = self.page(address).fragments.len();
        self.slab.page_mut(self.table.handle(address.page)).swap_remove(at, len - 1);
        self.resize(address.page, len - 1, len - 1);
        self.entries -= 1;
        true
    }

    /// Removes the entries of the cell at hash position `cursor` whose pointers `is_kept` refuses. Returns how many they
    /// were, and the cursor of the next cell.
    pub fn retain_in_cell(&mut self, cursor: u64, is_kept: impl Fn(Pointer) -> bool) -> (u32, Option<u64>) {
        let next = self.cell(cursor).next;
        let address = self.table.address(cursor);
        let handle = self.table.handle(address.page);
        let before = self.page(address).fragments.len();
        let (mut at, mut len) = (0, before);
        while at < len {
            if is_kept(self.slab.page(handle).pointer(at)) {
                at += 1;
            } else {
                len -= 1;
                self.slab.page_mut(handle).swap_remove(at, len);
            }
        }
        if len < before {
            self.resize(address.page, len, len);
            self.entries -= (before - len) as u32;
        }
        ((before - len) as u32, next)
    }

    /// The cell that covers hash position `cursor`; 0 is the first.
    ///
    /// Between two calls pages split and never merge, and the end of a cell stays one. So following `next` visits every
    /// entry that is present throughout exactly once, in spite of insertions, replacements and removals.
    #[must_use]
    pub fn cell(&self, cursor: u64) -> Cell<'_> {
        let (address, page) = self.page_of(KeyHash(cursor));
        Cell::new(page, cursor & !(u64::MAX >> address.depth), address.depth)
    }

    fn page_of(&self, hash: KeyHash) -> (Address, IndexPage<'_>) {
        let address = self.table.address(hash.0);
        (address, self.page(address))
    }

    fn page(&self, address: Address) -> IndexPage<'_> {
        self.slab.page(self.table.handle(address.page))
    }

    /// Place of the entry of `hash` with exactly this pointer.
    fn find(&self, hash: KeyHash, pointer: Pointer) -> Option<(Address, usize)> {
        let (address, page) = self.page_of(hash);
        let query = fragment::fresh(hash.0, address.depth);
        let mut from = 0;
        loop {
            let at = fragment::first_match(page.fragments, query, from)?;
            if page.pointer(at) == pointer {
                return Some((address, at));
            }
            from = at + 1;
        }
    }

    /// Moves a page's first `keep` entries to a slot for `entries` of them, unless it has the right size already.
    fn resize(&mut self, page: u32, keep: usize, entries: usize) {
        let old = self.table.handle(page);
        if usize::from(slab::class_of(entries)) * slab::CLASS_STEP == self.slab.places(old) {
            return;
        }
        let mut new = BlockHandle::NONE;
        if entries > 0 {
            new = self.slab.allocate(entries, page);
            self.slab.transfer_entries(old, new, keep);
        }
        self.table.set(page, new);
        if old != BlockHandle::NONE {
            self.free(old);
        }
    }

    /// Frees an unowned slot, and updates the owner of the slot that moves into its place.
    fn free(&mut self, handle: BlockHandle) {
        if let Some(moved) = self.slab.free(handle) {
            assert_ne!(
                self.table.handle(moved.owner),
                BlockHandle::NONE,
                "page {} owns a slot unknowingly",
                moved.owner
            );
            self.table.set(moved.owner, moved.to);
        }
    }
}

impl Default for Index {
    fn default() -> Self {
        Self::new(IndexOptions::default())
    }
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pages = self.table.pages();
        f.debug_struct("Index").field("entries", &self.entries).field("pages", &pages).finish_non_exhaustive()
    }
}
