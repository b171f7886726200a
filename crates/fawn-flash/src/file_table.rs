//! Table of values by file ID, as large as the number of open files asks for, with one probe per lookup.
//!
//! IDs are never reused, so an array by ID would grow with every file that ever was. Here an ID's low bits are its slot.
//! A new file gets the next ID whose slot is free, so no two open files share one.
use crate::FileId;

const SLOTS_MIN: usize = 16;

pub(crate) struct FileTable<V> {
    /// A power of two of them.
    slots: Vec<Option<(FileId, V)>>,
    len: usize,
}

impl<V> FileTable<V> {
    pub(crate) fn new() -> Self {
        Self { slots: empty(SLOTS_MIN), len: 0 }
    }

    #[inline]
    fn slot(&self, file: FileId) -> usize {
        file.0 as usize & (self.slots.len() - 1)
    }

    #[inline]
    pub(crate) fn get(&self, file: FileId) -> Option<&V> {
        self.slots[self.slot(file)].as_ref().filter(|(of, _)| *of == file).map(|(_, value)| value)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, file: FileId) -> Option<&mut V> {
        let slot = self.slot(file);
        self.slots[slot].as_mut().filter(|(of, _)| *of == file).map(|(_, value)| value)
    }

    /// The first ID from `from` on that shares its slot with none in the table.
    pub(crate) fn free_id(&mut self, from: u32) -> FileId {
        // At least half of the slots are free, so a file takes two IDs on average at most.
        if 2 * (self.len + 1) > self.slots.len() {
            self.grow();
        }
        let is_free = |file: &FileId| self.slots[self.slot(*file)].is_none();
        let free = (from..u32::MAX).map(FileId).find(is_free);
        free.unwrap_or_else(|| panic!("all file IDs were used"))
    }

    pub(crate) fn insert(&mut self, file: FileId, value: V) {
        // Another table may have given out the IDs, for more files than are in this one.
        while self.slots[self.slot(file)].as_ref().is_some_and(|(of, _)| *of != file) {
            self.grow();
        }
        let slot = self.slot(file);
        let before = self.slots[slot].replace((file, value));
        self.len += usize::from(before.is_none());
    }

    pub(crate) fn remove(&mut self, file: FileId) -> Option<V> {
        let slot = self.slot(file);
        let (_, value) = self.slots[slot].take_if(|(of, _)| *of == file)?;
        self.len -= 1;
        Some(value)
    }

    /// Files that differ in their slots differ in them among twice as many.
    fn grow(&mut self) {
        let slots = empty(2 * self.slots.len());
        for (file, value) in core::mem::replace(&mut self.slots, slots).into_iter().flatten() {
            let slot = self.slot(file);
            self.slots[slot] = Some((file, value));
        }
    }

    #[cfg(test)]
    pub(crate) const fn slots(&self) -> usize {
        self.slots.len()
    }
}

fn empty<V>(slots: usize) -> Vec<Option<(FileId, V)>> {
    core::iter::repeat_with(|| None).take(slots).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fawn_types::random::SplitMix64;
    use std::collections::BTreeMap;

    /// A second table has some of the files, as the ring has those with a registered descriptor.
    #[test]
    fn every_file_stays_findable_and_the_table_follows_their_number() {
        let (mut rng, mut next, mut open) = (SplitMix64::new(1), 0, BTreeMap::new());
        let (mut table, mut other) = (FileTable::new(), FileTable::new());
        for step in 0..20_000_u64 {
            // Every third file stays for long.
            while open.len() >= 100 || rng.coin() && !open.is_empty() {
                let short = open.keys().copied().find(|file: &FileId| !file.0.is_multiple_of(3));
                let Some(file) = short.or_else(|| open.keys().next().copied()) else { break };
                let value = open.remove(&file);
                assert_eq!(table.remove(file), value);
                assert_eq!(other.remove(file), value.filter(|value| value % 5 == 0));
                assert!(table.get(file).is_none() && table.remove(file).is_none());
            }
            let file = table.free_id(next);
            assert!(file.0 >= next, "an ID is used twice");
            next = file.0 + 1;
            table.insert(file, step);
            open.insert(file, step);
            if step % 5 == 0 {
                other.insert(file, step);
            }
            assert!(open.iter().all(|(&file, value)| table.get(file) == Some(value)));
        }
        assert!(table.slots() <= 256 && other.slots() <= 256, "{} {}", table.slots(), other.slots());
        assert!(next < 40_000, "{next} IDs");
    }
}
