//! Image of an index: its cells in hash order, copied one by one while the index changes, and loaded into a new one.
//!
//! Splits between two copies leave cells of different depths in the image. The loaded index gets the page table that
//! the first one had when the copy began, so each of these cells is within one page: no cell was shallower then.
use super::slab::PAGE_ENTRIES_MAX;
use super::table::CellTable;
use super::{Index, IndexOptions, Pointer, fragment};

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

    /// Prefetches what the load or copy of a cell will access first: cells in hash order have their pages' handles far apart.
    pub(crate) fn fetch_cell(&self, first_hash: u64) {
        self.table.fetch(self.table.address(first_hash).page);
    }

    /// Prefetches the entries of a cell whose handle was prefetched before.
    pub(crate) fn fetch_entries(&self, first_hash: u64) {
        self.slab.fetch(self.table.handle(self.table.address(first_hash).page));
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
