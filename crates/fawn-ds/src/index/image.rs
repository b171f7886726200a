//! Image of an index: its cells in hash order, copied one by one while the index changes, and loaded into a new one.
//!
//! Splits between two copies leave cells of different depths in the image. The loaded index gets the page table that
//! the first one had when the copy began, so each of these cells is within one page: no cell was shallower then.
use super::slab::PAGE_ENTRIES_MAX;
use super::table::{Address, CellTable};
use super::{Cell, CellImage, Index, IndexOptions, Pointer, fragment};

/// Cells before which a cell's entries are prefetched; its page's handle is earlier by nearly as many.
const CELLS_AHEAD: usize = 8;

/// An image that no index can have had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the image has {0}")]
pub(crate) struct IndexImageError(&'static str);

impl Index {
    /// Number of pages, for [`Index::with_pages`].
    pub(crate) fn pages(&self) -> u32 {
        self.table.pages()
    }

    /// An empty index with the page table of one that had `pages` pages.
    pub(crate) fn with_pages(options: IndexOptions, pages: u32) -> Result<Self, IndexImageError> {
        let table = CellTable::with_pages(pages).ok_or(IndexImageError("a number of pages that no table has"))?;
        let mut index = Self::new(IndexOptions { entries_min: 0, ..options });
        (index.table, index.options.entries_min) = (table, options.entries_min);
        Ok(index)
    }

    /// The cells from hash position `cursor` on.
    pub(crate) fn cells(&self, cursor: u64) -> Cells<'_> {
        let mut cells = Cells {
            index: self,
            listed_to: Some(cursor),
            ahead: [(0, Address { page: 0, depth: 0 }); 2 * CELLS_AHEAD],
            listed: 0,
            taken: 0,
        };
        (1..2 * CELLS_AHEAD).for_each(|_| cells.list_next());
        cells
    }

    /// Estimates the memory that all cells will take from that of the cells before hash position `first_hash`. Hashes are evenly
    /// distributed.
    pub(crate) fn expect_cells(&mut self, first_hash: u64) {
        self.slab.expect(first_hash);
    }

    /// Says that all cells are loaded.
    pub(crate) fn end_cells(&mut self) {
        self.slab.expect(0);
    }

    /// Prefetches what the load of a cell will access first: cells in hash order have their pages' handles far apart.
    pub(crate) fn fetch_cell(&self, first_hash: u64) {
        self.table.fetch(self.table.address(first_hash).page);
    }

    /// Adds a cell of which all entries count, if it is a whole page that is empty so far. Otherwise returns false, without a change:
    /// [`Index::load_cell`] adds or refuses it.
    pub(crate) fn load_page(&mut self, first_hash: u64, cell: CellImage<'_>) -> Result<bool, IndexImageError> {
        let address = self.table.address(first_hash);
        let added = cell.fragments.len();
        let is_page = cell.depth == address.depth && (1..=PAGE_ENTRIES_MAX).contains(&added);
        let total =
            self.entries.checked_add(added as u32).filter(|_| is_page && self.page(address).fragments.is_empty());
        let Some(total) = total else { return Ok(false) };
        if cell.fragments.contains(&fragment::VACANT.to_le_bytes()) {
            return Err(IndexImageError("a vacant entry"));
        }
        self.resize(address.page, 0, added);
        self.slab.page_mut(self.table.handle(address.page)).set_cell(cell);
        self.entries = total;
        Ok(true)
    }

    /// Adds the entries of a cell, as [`super::Cell::entries`] returned them.
    pub(crate) fn load_cell(
        &mut self,
        first_hash: u64,
        depth: u32,
        entries: &mut [(u16, Pointer)],
    ) -> Result<(), IndexImageError> {
        let address = self.table.address(first_hash);
        if depth < address.depth {
            return Err(IndexImageError("a cell that is larger than its page"));
        }
        let len = self.page(address).fragments.len();
        let added = entries.len();
        let (true, Some(total)) = (len + added <= PAGE_ENTRIES_MAX, self.entries.checked_add(added as u32)) else {
            return Err(IndexImageError("more entries than fit"));
        };
        if added == 0 {
            return Ok(());
        }
        if entries.iter().any(|&(fragment, _)| fragment == fragment::VACANT) {
            return Err(IndexImageError("a vacant entry"));
        }
        for bit in (address.depth..depth).rev() {
            let side = first_hash << bit >> 63 == 1;
            entries.iter_mut().for_each(|(fragment, _)| *fragment = fragment::ascend(*fragment, side));
        }
        self.resize(address.page, len, len + added);
        self.slab.page_mut(self.table.handle(address.page)).set_all(len, entries);
        self.entries = total;
        Ok(())
    }
}

/// Cells in hash order. The memory of a cell is prefetched in two steps before its turn, since cells that follow each other lie
/// far apart.
pub(crate) struct Cells<'a> {
    index: &'a Index,
    /// Start of the next cell to list; `None` at the end of hash order.
    listed_to: Option<u64>,
    /// First hashes and addresses of the cells from `taken` to `listed`, in a ring.
    ahead: [(u64, Address); 2 * CELLS_AHEAD],
    listed: usize,
    taken: usize,
}

impl Cells<'_> {
    fn list_next(&mut self) {
        let Some(cursor) = self.listed_to else { return };
        let address = self.index.table.address(cursor);
        self.index.table.fetch(address.page);
        let first_hash = cursor & !(u64::MAX >> address.depth);
        self.ahead[self.listed % (2 * CELLS_AHEAD)] = (first_hash, address);
        self.listed += 1;
        self.listed_to = first_hash.checked_add(1 << (64 - address.depth));
    }
}

impl<'a> Iterator for Cells<'a> {
    type Item = Cell<'a>;

    fn next(&mut self) -> Option<Cell<'a>> {
        self.list_next();
        if self.taken == self.listed {
            return None;
        }
        let with_entries = self.taken + CELLS_AHEAD;
        if with_entries < self.listed {
            let (_, address) = self.ahead[with_entries % (2 * CELLS_AHEAD)];
            self.index.slab.fetch(self.index.table.handle(address.page));
        }
        let (first_hash, address) = self.ahead[self.taken % (2 * CELLS_AHEAD)];
        self.taken += 1;
        Some(Cell::new(self.index.page(address), first_hash, address.depth))
    }
}
