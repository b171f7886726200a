//! Growth of the index: one page split, paid by the insert that makes it due.
use super::slab::BlockHandle;
use super::table::{Address, CellTable};
use super::{Index, Pointer, fragment};
use smallvec::SmallVec;

/// A page's entries while they move to other slots: on the stack, except of pages with many equal hashes.
type TakenEntries = SmallVec<[(u16, Pointer); 64]>;

impl Index {
    /// Where growth is blocked: a cursor whose cell holds entries without a hash bit left. The page is not split,
    /// because a split would have to guess; pages fill further (slower and less selective, never wrong) until
    /// [`Self::refill`] has renewed those entries. Fragments last for a 32,768-fold growth: from the default size of a
    /// million keys this cannot happen before 2^32 pointers are used up.
    #[must_use]
    pub fn growth_blocked(&self) -> Option<u64> {
        let address = self.table.split_next().filter(|_| self.growth_blocked)?;
        Some(CellTable::first_hash(address))
    }

    /// Splits the next page if the mean page is over its size.
    pub(super) fn split_if_due(&mut self) {
        let due = u64::from(self.table.pages()) * u64::from(self.options.page_entries) < u64::from(self.entries);
        if due && let Some(address) = self.table.split_next() {
            self.growth_blocked = !self.split(address);
        }
    }

    /// Divides a page's entries by their top bit; `false`, without a change, if one has no bit left.
    fn split(&mut self, address: Address) -> bool {
        let page = self.page(address);
        if page.fragments.iter().any(|&entry| fragment::bits(entry) == 0) {
            return false;
        }
        let taken: TakenEntries = page.entries().collect();
        let old = self.table.handle(address.page);
        self.table.set(address.page, BlockHandle::NONE);
        if old != BlockHandle::NONE {
            self.free(old);
        }
        let sibling = self.table.pages();
        let left = self.fill_child(&taken, false, address.page);
        let right = self.fill_child(&taken, true, sibling);
        self.table.split(left, right);
        true
    }

    /// A slot with the entries of `taken` whose top bit is `side`, one bit shorter.
    fn fill_child(&mut self, taken: &[(u16, Pointer)], side: bool, owner: u32) -> BlockHandle {
        let entries = taken.iter().filter(|(entry, _)| entry >> 15 == u16::from(side)).count();
        if entries == 0 {
            return BlockHandle::NONE;
        }
        let handle = self.slab.allocate(entries, owner);
        let mut page = self.slab.page_mut(handle);
        let mut at = 0;
        for &(entry, pointer) in taken {
            let descended = fragment::descend(entry);
            assert!(descended.is_some(), "a page with exhausted fragments must not be split");
            if let Some((_, rest)) = descended.filter(|&(bit, _)| bit == side) {
                page.set(at, rest, pointer);
                at += 1;
            }
        }
        assert_eq!(at, entries, "a split must keep every entry");
        handle
    }
}
