//! A simulated file: its current content, and every state that a crash may leave its unsynced sectors in.
//!
//! A block that was written since its last sync keeps its durable content and each version written over it. After a
//! crash, every 512-byte sector independently has the durable content or that of any version, because a device may have
//! destaged an older version before the power failed. Lengths are versions of the inode in the same way. Contents are
//! reference-counted, so thousands of crash images cost little more than their dirty blocks.
use super::extents::Extents;
use crate::buffer::{PAGE_BYTES, SECTOR_BYTES};
use fawn_types::random::SplitMix64;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) type SimBlock = [u8; PAGE_BYTES];

const SECTORS_PER_BLOCK: usize = PAGE_BYTES / SECTOR_BYTES;
/// Maximum versions per block, and lengths per file. Older ones are merged; otherwise a log that never syncs would grow
/// without bound.
const VERSIONS_MAX: usize = 6;

/// The effect of one write on one block; `data` is the whole block after it, `None` for zeros.
#[derive(Clone, Debug)]
struct BlockVersion {
    seq: u64,
    /// Sectors whose content this version may still determine, one bit each.
    mask: u8,
    /// A failed sync marked the version clean: no later sync covers it [ATC 2020, Rebello et al.].
    lost: bool,
    data: Option<Arc<SimBlock>>,
}

#[derive(Clone, Debug)]
struct Dirty {
    /// Durable content, `None` for zeros.
    base: Option<Arc<SimBlock>>,
    versions: Vec<BlockVersion>,
}

/// A file's content and length, and which parts of both are durable.
#[derive(Clone, Default, Debug)]
pub(super) struct Inode {
    blocks: BTreeMap<u64, Arc<SimBlock>>,
    dirty: BTreeMap<u64, Dirty>,
    len: u64,
    durable_len: u64,
    /// Lengths that are not durable, oldest first, each with its sequence number.
    lengths: Vec<(u64, u64)>,
    pub(super) extents: Extents,
}

impl Inode {
    pub(super) const fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn is_settled(&self) -> bool {
        self.dirty.is_empty() && self.lengths.is_empty() && self.len == self.durable_len
    }

    /// Reads the current bytes from `offset`; holes, and bytes past the end, are zeros.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) {
        for (index, byte_range) in chunks(offset, out.len()) {
            let within = (offset + byte_range.start as u64) as usize % PAGE_BYTES;
            let target = &mut out[byte_range];
            match self.blocks.get(&index) {
                Some(block) => target.copy_from_slice(&block[within..within + target.len()]),
                None => target.fill(0),
            }
        }
    }

    /// Writes bytes that may or may not survive a crash until a sync covers `seq`.
    pub(super) fn write(&mut self, seq: u64, offset: u64, bytes: &[u8]) {
        for (index, byte_range) in chunks(offset, bytes.len()) {
            let within = (offset + byte_range.start as u64) as usize % PAGE_BYTES;
            let mut block = self.blocks.get(&index).map_or([0; PAGE_BYTES], |block| **block);
            block[within..within + byte_range.len()].copy_from_slice(&bytes[byte_range.clone()]);
            self.replace(seq, index, Some(Arc::new(block)), mask_of(within, byte_range.len()));
        }
        let end = offset + bytes.len() as u64;
        self.extents.insert(offset / PAGE_BYTES as u64, end.div_ceil(PAGE_BYTES as u64));
        if end > self.len {
            self.set_len(seq, end);
        }
    }

    /// As [`Inode::write`], but the bytes (and the length to reach them) are durable at once.
    pub(super) fn write_durable(&mut self, seq: u64, offset: u64, bytes: &[u8]) {
        self.write(seq, offset, bytes);
        for (index, byte_range) in chunks(offset, bytes.len()) {
            let within = (offset + byte_range.start as u64) as usize % PAGE_BYTES;
            let mask = mask_of(within, byte_range.len());
            let live = self.blocks.get(&index).cloned();
            if let Some(dirty) = self.dirty.get_mut(&index) {
                dirty.settle(live.as_ref(), mask);
                if dirty.versions.is_empty() {
                    self.dirty.remove(&index);
                }
            }
        }
        self.durable_len = self.len;
        self.lengths.clear();
    }

    fn replace(&mut self, seq: u64, index: u64, data: Option<Arc<SimBlock>>, mask: u8) {
        let before = match &data {
            Some(block) => self.blocks.insert(index, Arc::clone(block)),
            None => self.blocks.remove(&index),
        };
        let dirty = self.dirty.entry(index).or_insert_with(|| Dirty { base: before, versions: Vec::new() });
        dirty.push(BlockVersion { seq, mask, lost: false, data });
    }

    fn set_len(&mut self, seq: u64, len: u64) {
        self.len = len;
        self.lengths.push((seq, len));
        if self.lengths.len() > VERSIONS_MAX {
            // As for the versions of a block.
            let (oldest, _) = self.lengths.remove(0);
            self.lengths[0].0 = oldest;
        }
    }

    /// Sets the length; durable only after a sync. Bytes that are cut off become zeros, sector by sector.
    pub(super) fn truncate(&mut self, seq: u64, len: u64) {
        if len < self.len {
            self.zero(seq, len, self.len);
            self.extents.remove(len.div_ceil(PAGE_BYTES as u64), u64::MAX);
        }
        if len != self.len {
            self.set_len(seq, len);
        }
    }

    /// Deallocates the whole blocks of the range and zeroes the partial ones.
    pub(super) fn punch(&mut self, seq: u64, offset: u64, len_bytes: u64) {
        let end = (offset + len_bytes).min(self.len);
        if end <= offset {
            return;
        }
        self.zero(seq, offset, end);
        self.extents.remove(offset.div_ceil(PAGE_BYTES as u64), end / PAGE_BYTES as u64);
    }

    /// Extends the length to cover the reserved range.
    pub(super) fn allocate(&mut self, seq: u64, offset: u64, len_bytes: u64) {
        let end = offset + len_bytes;
        self.extents.insert(offset / PAGE_BYTES as u64, end.div_ceil(PAGE_BYTES as u64));
        if end > self.len {
            self.set_len(seq, end);
        }
    }

    /// Deallocates the blocks of zeros.
    pub(super) fn deallocate_zeros(&mut self) {
        for index in 0..self.len.div_ceil(PAGE_BYTES as u64) {
            if self.blocks.get(&index).is_none_or(|block| block.iter().all(|&byte| byte == 0)) {
                self.extents.remove(index, index + 1);
            }
        }
    }

    fn zero(&mut self, seq: u64, start: u64, end: u64) {
        let page_bytes = PAGE_BYTES as u64;
        let indices: Vec<u64> = self.blocks.range(start / page_bytes..end.div_ceil(page_bytes)).map(|b| *b.0).collect();
        for index in indices {
            let from = start.max(index * page_bytes) - index * page_bytes;
            let to = end.min((index + 1) * page_bytes) - index * page_bytes;
            let whole = from == 0 && (to == page_bytes || (index * page_bytes) + to >= self.len);
            let data = self.blocks.get(&index).filter(|_| !whole).map(|block| {
                let mut block = **block;
                block[from as usize..to as usize].fill(0);
                Arc::new(block)
            });
            self.replace(seq, index, data, mask_of(from as usize, (to - from) as usize));
        }
    }

    /// Makes changes up to and including `covered_seq` durable.
    pub(super) fn sync(&mut self, covered_seq: u64) {
        self.dirty.retain(|_, dirty| {
            dirty.sync(covered_seq);
            !dirty.versions.is_empty()
        });
        if let Some(&(_, len)) = self.lengths.iter().rev().find(|&&(seq, _)| seq <= covered_seq) {
            self.durable_len = len;
        }
        self.lengths.retain(|&(seq, _)| seq > covered_seq);
    }

    /// Applies a failed sync, after which the kernel marked the pages clean: they still read, may be on the disk, and
    /// no later sync covers them.
    pub(super) fn sync_failed(&mut self, covered_seq: u64) {
        for version in self.dirty.values_mut().flat_map(|dirty| &mut dirty.versions) {
            version.lost |= version.seq <= covered_seq;
        }
    }

    /// Flips bits of one byte, in all its versions.
    pub(super) fn flip(&mut self, offset: u64, bits: u8) {
        let (index, within) = (offset / PAGE_BYTES as u64, offset as usize % PAGE_BYTES);
        let flip = |block: &mut Arc<SimBlock>| Arc::make_mut(block)[within] ^= bits;
        flip(self.blocks.entry(index).or_insert_with(|| Arc::new([0; PAGE_BYTES])));
        if let Some(dirty) = self.dirty.get_mut(&index) {
            dirty.base.iter_mut().for_each(flip);
            dirty.versions.iter_mut().filter_map(|version| version.data.as_mut()).for_each(flip);
        }
    }

    /// Replaces the state by one that a power loss may leave. Each unsynced version of a sector is applied with a
    /// chance of `survive` in 16.
    pub(super) fn crash(&mut self, rng: &mut SplitMix64, survive: u64) {
        for (index, dirty) in std::mem::take(&mut self.dirty) {
            match dirty.pick(rng, survive) {
                Some(block) => self.blocks.insert(index, block),
                None => self.blocks.remove(&index),
            };
        }
        let mut len = self.durable_len;
        for &(_, newer) in &self.lengths {
            if rng.chance(survive, 16) {
                len = newer;
            }
        }
        self.lengths.clear();
        (self.len, self.durable_len) = (len, len);
        self.cut_content();
    }

    /// The file with only its durable bytes.
    pub(super) fn durable_only(&self) -> Self {
        let mut certain = self.clone();
        certain.crash(&mut SplitMix64::new(0), 0);
        certain
    }

    fn cut_content(&mut self) {
        let first_gone = self.len.div_ceil(PAGE_BYTES as u64);
        drop(self.blocks.split_off(&first_gone));
        self.extents.remove(first_gone, u64::MAX);
        let tail = self.len as usize % PAGE_BYTES;
        if tail > 0
            && let Some(block) = self.blocks.get_mut(&(first_gone - 1))
        {
            Arc::make_mut(block)[tail..].fill(0);
        }
    }
}

impl Dirty {
    fn push(&mut self, version: BlockVersion) {
        self.versions.push(version);
        if self.versions.len() > VERSIONS_MAX && !self.versions[0].lost {
            // A block's content is cumulative, so the second version also contains the first one's sectors.
            let oldest = self.versions.remove(0);
            self.versions[0].mask |= oldest.mask;
            // A sync in flight may cover the first version: it then makes both durable.
            self.versions[0].seq = oldest.seq;
        }
    }

    fn settle(&mut self, content: Option<&Arc<SimBlock>>, mask: u8) {
        copy_sectors(&mut self.base, content, mask);
        for version in &mut self.versions {
            version.mask &= !mask;
        }
        self.versions.retain(|version| version.mask != 0);
    }

    fn sync(&mut self, covered_seq: u64) {
        let mut settled = 0;
        for version in self.versions.iter_mut().rev().filter(|version| version.seq <= covered_seq) {
            // Newest first: a sector that a newer covered version determined is no longer determined by an older one.
            version.mask &= !settled;
            if !version.lost {
                copy_sectors(&mut self.base, version.data.as_ref(), version.mask);
                settled |= version.mask;
                version.mask = 0;
            }
        }
        self.versions.retain(|version| version.mask != 0);
    }

    fn pick(&self, rng: &mut SplitMix64, survive: u64) -> Option<Arc<SimBlock>> {
        let mut picked = self.base.clone();
        for sector in 0..SECTORS_PER_BLOCK {
            let bit = 1_u8 << sector;
            for version in self.versions.iter().filter(|version| version.mask & bit != 0) {
                if rng.chance(survive, 16) {
                    copy_sectors(&mut picked, version.data.as_ref(), bit);
                }
            }
        }
        picked
    }
}

fn copy_sectors(target: &mut Option<Arc<SimBlock>>, source: Option<&Arc<SimBlock>>, mask: u8) {
    if mask == u8::MAX {
        *target = source.cloned();
        return;
    }
    let mut block = target.as_ref().map_or([0; PAGE_BYTES], |block| **block);
    for sector in (0..SECTORS_PER_BLOCK).filter(|sector| mask & (1 << sector) != 0) {
        let bytes = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
        match source {
            Some(source) => block[bytes.clone()].copy_from_slice(&source[bytes]),
            None => block[bytes].fill(0),
        }
    }
    *target = Some(Arc::new(block));
}

/// Mask of the sectors that `len` bytes from `within` touch.
fn mask_of(within: usize, len: usize) -> u8 {
    let (first, end) = (within / SECTOR_BYTES, (within + len).div_ceil(SECTOR_BYTES));
    (first..end).fold(0, |mask, sector| mask | 1 << sector)
}

/// Splits `len` bytes from `offset` at block boundaries: block number, and the range within the request.
fn chunks(offset: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let step = (PAGE_BYTES - at as usize % PAGE_BYTES).min(len - done);
        let chunk = (step > 0).then(|| (at / PAGE_BYTES as u64, done..done + step));
        done += step;
        chunk
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_covers_a_write_that_many_others_to_its_block_have_followed() {
        let (writes, covered) = (3 * VERSIONS_MAX as u64, 2);
        let mut inode = Inode::default();
        for seq in 1..=writes {
            inode.write(seq, 512 * (seq % 8), &[seq as u8; 512]);
            inode.set_len(seq, 4096 + seq);
        }
        inode.sync(covered);
        inode.crash(&mut SplitMix64::new(1), 0);
        let mut found = [0; 4];
        inode.read(2 * 512, &mut found);
        assert_ne!(found, [0; 4], "the second write, or a later one of its sector");
        assert!(inode.len >= 4096 + covered, "{}", inode.len);
    }
}
