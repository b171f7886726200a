//! Cached records, packed in slabs of 16 KiB, and the two queues in which slabs are filled and drained.
//!
//! A queue is a list of slabs: records are appended to the last one and evicted from the first one. Memory order is thus
//! eviction order, records of any length lie next to each other, and no record has links or an allocation of its own. A
//! removed record stays as a gap until its slab is drained.
use fawn_flash::Blocks;
use fawn_types::{KeyHash, Version};
use std::collections::VecDeque;

pub(super) const SLAB_BYTES: usize = 16 << 10;
/// Positions and lengths of records are multiples of this, so that 32 bits address 32 GiB.
const UNIT_BYTES: usize = 8;
/// Lengths and space, hash, version.
const HEADER_BYTES: usize = 24;
/// Longest packed record: a value of 1 KiB with a usual key.
pub(super) const PACKED_BYTES_MAX: usize = (1 << 10) + 128;
/// In the word of the key's length: the record has an expiry time, or flags.
const HAS_EXPIRY: u16 = 1 << 15;
const HAS_FLAGS: u16 = 1 << 14;
const _: () = assert!(PACKED_BYTES_MAX < HAS_FLAGS as usize && PACKED_BYTES_MAX <= SLAB_BYTES / 8);
/// Free slabs kept for records that move while a slab is drained: one per queue that may be partly drained.
const SPARE_SLABS: usize = 2;
/// Memory of a slab besides its records: its owner, its place in a queue and in the list of free slabs.
const SLAB_OVERHEAD_BYTES: usize = 2 * (size_of::<SlabOwner>() + 2 * size_of::<u32>());
/// Memory that one more slab takes at most.
pub(super) const SLAB_COST_BYTES: usize =
    SLAB_BYTES + SLAB_OVERHEAD_BYTES + SLAB_BYTES / Blocks::<[u8; SLAB_BYTES]>::UNUSED_SHARE;

/// Prefetched bytes of a record: header, key and the first part of the value.
const PREFETCH_BYTES: usize = 256;

type RecordSlab = [u8; SLAB_BYTES];

/// Address of a record: slab and offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordPosition(pub(super) u32);

/// Number of slabs that positions can address.
pub(super) const SLABS_MAX: usize = (u32::MAX as usize) / (SLAB_BYTES / UNIT_BYTES) - 1;

impl RecordPosition {
    const fn new(slab: u32, offset: usize) -> Self {
        Self(slab * (SLAB_BYTES / UNIT_BYTES) as u32 + (offset / UNIT_BYTES) as u32)
    }

    const fn slab(self) -> usize {
        self.0 as usize / (SLAB_BYTES / UNIT_BYTES)
    }

    const fn offset(self) -> usize {
        self.0 as usize % (SLAB_BYTES / UNIT_BYTES) * UNIT_BYTES
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum RecordQueue {
    /// Records read once or twice; a scan passes through this queue.
    Small,
    /// Records read again.
    Main,
}

/// A record in the cache, or on its way into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CachedRecord<'r> {
    /// Name of a range's content; a cleared range gets another one.
    pub(super) space: u32,
    pub(crate) hash: KeyHash,
    /// Its key.
    pub(crate) key: &'r [u8],
    /// Its value.
    pub(crate) value: &'r [u8],
    /// The client's flags.
    pub(crate) flags: u32,
    /// Expiry time, ms since the Unix epoch. 0: it does not expire.
    pub(crate) expires_at_ms: u64,
    /// Its version.
    pub(crate) version: Version,
}

impl<'r> CachedRecord<'r> {
    /// Length in a slab, bytes.
    pub(super) const fn packed_len(&self) -> usize {
        let extensions = if self.expires_at_ms != 0 { 8 } else { 0 } + if self.flags != 0 { 8 } else { 0 };
        (HEADER_BYTES + extensions + self.key.len() + self.value.len()).next_multiple_of(UNIT_BYTES)
    }

    fn pack(&self, out: &mut [u8]) {
        let mut key_word = self.key.len() as u16;
        let mut at = HEADER_BYTES;
        if self.expires_at_ms != 0 {
            key_word |= HAS_EXPIRY;
            out[at..at + 8].copy_from_slice(&self.expires_at_ms.to_le_bytes());
            at += 8;
        }
        if self.flags != 0 {
            key_word |= HAS_FLAGS;
            out[at..at + 8].copy_from_slice(&u64::from(self.flags).to_le_bytes());
            at += 8;
        }
        out[..2].copy_from_slice(&key_word.to_le_bytes());
        out[2..4].copy_from_slice(&(self.value.len() as u16).to_le_bytes());
        out[4..8].copy_from_slice(&self.space.to_le_bytes());
        out[8..16].copy_from_slice(&self.hash.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.version.as_u64().to_le_bytes());
        out[at..at + self.key.len()].copy_from_slice(self.key);
        at += self.key.len();
        out[at..at + self.value.len()].copy_from_slice(self.value);
    }

    #[inline]
    fn unpack(bytes: &'r [u8]) -> Self {
        let head = u64_at(bytes, 0);
        let (key_word, value_len) = (head as u16, usize::from((head >> 16) as u16));
        let (mut at, mut expires_at_ms, mut flags) = (HEADER_BYTES, 0, 0);
        if key_word & HAS_EXPIRY != 0 {
            expires_at_ms = u64_at(bytes, at);
            at += 8;
        }
        if key_word & HAS_FLAGS != 0 {
            flags = u64_at(bytes, at) as u32;
            at += 8;
        }
        let value_at = at + usize::from(key_word & !(HAS_EXPIRY | HAS_FLAGS));
        Self {
            space: (head >> 32) as u32,
            hash: KeyHash(u64_at(bytes, 8)),
            key: &bytes[at..value_at],
            value: &bytes[value_at..value_at + value_len],
            flags,
            expires_at_ms,
            version: Version::from_u64(u64_at(bytes, 16)),
        }
    }
}

/// The queue that a slab is in, and its number there; slabs of a queue are numbered in the order in which they joined.
#[derive(Clone, Copy, Debug)]
struct SlabOwner {
    queue: Option<RecordQueue>,
    number: u64,
}

#[derive(Debug, Default)]
struct SlabQueue {
    slabs: VecDeque<u32>,
    /// Number of the first slab.
    first: u64,
    /// Next record to drain, in the first slab.
    drained_to: usize,
    /// End of the records, in the last slab.
    filled_to: usize,
}

impl SlabQueue {
    /// Bytes between the two ends, gaps included.
    fn bytes(&self) -> usize {
        match self.slabs.len() {
            0 => 0,
            slabs => (slabs - 1) * SLAB_BYTES + self.filled_to - self.drained_to,
        }
    }

    fn has_room(&self, len: usize) -> bool {
        !self.slabs.is_empty() && self.filled_to + len <= SLAB_BYTES
    }
}

#[derive(Debug, Default)]
pub(super) struct RecordSlabs {
    blocks: Blocks<RecordSlab>,
    owners: Vec<SlabOwner>,
    free: Vec<u32>,
    queues: [SlabQueue; 2],
    slabs_max: usize,
}

impl RecordSlabs {
    pub(super) const fn slabs_max(&self) -> usize {
        self.slabs_max
    }

    /// Slabs with memory.
    pub(super) fn slabs(&self) -> usize {
        self.blocks.len()
    }

    /// Sets the number of slabs; the caller frees those beyond it with [`RecordSlabs::drop_last`], then calls
    /// [`RecordSlabs::shrink_lists`].
    pub(super) fn set_slabs_max(&mut self, slabs: usize) {
        self.slabs_max = slabs.min(SLABS_MAX);
    }

    pub(super) fn shrink_lists(&mut self) {
        let slabs = self.blocks.len();
        self.owners.shrink_to(slabs + slabs / 2);
        self.free.shrink_to(slabs / 2);
        self.queues.iter_mut().for_each(|queue| queue.slabs.shrink_to(slabs + slabs / 2));
    }

    pub(super) fn resident_bytes(&self) -> usize {
        let queues: usize = self.queues.iter().map(|queue| queue.slabs.capacity()).sum();
        self.blocks.resident_bytes()
            + self.owners.capacity() * size_of::<SlabOwner>()
            + (self.free.capacity() + queues) * size_of::<u32>()
    }

    pub(super) fn bytes(&self, queue: RecordQueue) -> usize {
        self.queues[queue as usize].bytes()
    }

    fn unused(&self) -> usize {
        self.free.len() + self.slabs_max.saturating_sub(self.blocks.len())
    }

    /// Whether a new record of this length has room, with slabs left for records that move.
    pub(super) fn has_room(&self, queue: RecordQueue, len: usize) -> bool {
        self.queues[queue as usize].has_room(len) || self.unused() > SPARE_SLABS
    }

    /// Appends a record; `None` if no slab is free.
    pub(super) fn push(&mut self, queue: RecordQueue, record: &CachedRecord<'_>) -> Option<RecordPosition> {
        let len = record.packed_len();
        let position = self.reserve(queue, len)?;
        record.pack(&mut self.blocks.get_mut(position.slab())[position.offset()..][..len]);
        Some(position)
    }

    /// Overwrites a record with one of the same packed length.
    pub(super) fn overwrite(&mut self, position: RecordPosition, record: &CachedRecord<'_>) {
        let len = record.packed_len();
        assert_eq!(self.get(position).packed_len(), len, "records have the same length");
        record.pack(&mut self.blocks.get_mut(position.slab())[position.offset()..][..len]);
    }

    /// Appends a copy of a record to the main queue; `None` if no slab is free.
    pub(super) fn copy_to_main(&mut self, from: RecordPosition) -> Option<RecordPosition> {
        let len = self.get(from).packed_len();
        let to = self.reserve(RecordQueue::Main, len)?;
        let bytes = from.offset()..from.offset() + len;
        if from.slab() == to.slab() {
            self.blocks.get_mut(to.slab()).copy_within(bytes, to.offset());
        } else {
            let [source, target] = self.blocks.pair_mut(from.slab(), to.slab());
            target[to.offset()..][..len].copy_from_slice(&source[bytes]);
        }
        Some(to)
    }

    fn reserve(&mut self, queue: RecordQueue, len: usize) -> Option<RecordPosition> {
        if !self.queues[queue as usize].has_room(len) {
            let slab = self.take_slab()?;
            self.close(queue);
            let joined = &mut self.queues[queue as usize];
            let number = joined.first + joined.slabs.len() as u64;
            self.owners[slab as usize] = SlabOwner { queue: Some(queue), number };
            joined.slabs.push_back(slab);
            joined.filled_to = 0;
        }
        let queue = &mut self.queues[queue as usize];
        let slab = *queue.slabs.back()?;
        let offset = queue.filled_to;
        queue.filled_to += len;
        Some(RecordPosition::new(slab, offset))
    }

    /// Marks the end of the records in the queue's last slab.
    fn close(&mut self, queue: RecordQueue) {
        let queue = &self.queues[queue as usize];
        if let Some(&last) = queue.slabs.back()
            && queue.filled_to < SLAB_BYTES
        {
            // No record begins with eight zeros, since spaces are numbered from one.
            self.blocks.get_mut(last as usize)[queue.filled_to..][..UNIT_BYTES].fill(0);
        }
    }

    fn take_slab(&mut self) -> Option<u32> {
        if let Some(slab) = self.free.pop() {
            return Some(slab);
        }
        (self.blocks.len() < self.slabs_max).then(|| {
            self.owners.push(SlabOwner { queue: None, number: 0 });
            self.blocks.push() as u32
        })
    }

    /// Passes the queue's oldest record and returns its position; the record stays readable until the next call. `None`
    /// if the queue is empty.
    pub(super) fn drain(&mut self, queue: RecordQueue) -> Option<RecordPosition> {
        loop {
            let of_queue = &mut self.queues[queue as usize];
            let first = *of_queue.slabs.front()?;
            let is_last = of_queue.slabs.len() == 1;
            let at = of_queue.drained_to;
            let end = if is_last { of_queue.filled_to } else { SLAB_BYTES };
            if at < end && u64_at(self.blocks.get(first as usize), at) != 0 {
                let position = RecordPosition::new(first, at);
                of_queue.drained_to += CachedRecord::unpack(&self.blocks.get(first as usize)[at..]).packed_len();
                return Some(position);
            }
            of_queue.slabs.pop_front();
            of_queue.first += 1;
            of_queue.drained_to = 0;
            self.owners[first as usize].queue = None;
            self.free.push(first);
        }
    }

    #[inline]
    pub(super) fn get(&self, position: RecordPosition) -> CachedRecord<'_> {
        CachedRecord::unpack(&self.blocks.get(position.slab())[position.offset()..])
    }

    /// Prefetches the first bytes of a record.
    #[inline]
    pub(super) fn prefetch(&self, position: RecordPosition) {
        let offset = position.offset();
        fawn_flash::prefetch(&self.blocks.get(position.slab())[offset..SLAB_BYTES.min(offset + PREFETCH_BYTES)]);
    }

    /// Frees the last slab's memory; its records move to a free slab, each reported to `moved` with its old and its new
    /// position. Returns `false` if no slab is free.
    pub(super) fn drop_last(&mut self, mut moved: impl FnMut(KeyHash, RecordPosition, RecordPosition)) -> bool {
        let last = self.blocks.len() - 1;
        if let SlabOwner { queue: Some(queue), number } = self.owners[last] {
            let Some(to) = self.free.pop() else { return false };
            let [source, target] = self.blocks.pair_mut(last, to as usize);
            *target = *source;
            self.owners[to as usize] = self.owners[last];
            let of_queue = &mut self.queues[queue as usize];
            let at = (number - of_queue.first) as usize;
            of_queue.slabs[at] = to;
            let start = if at == 0 { of_queue.drained_to } else { 0 };
            let end = if at + 1 == of_queue.slabs.len() { of_queue.filled_to } else { SLAB_BYTES };
            let mut offset = start;
            while offset < end && u64_at(self.blocks.get(to as usize), offset) != 0 {
                let record = CachedRecord::unpack(&self.blocks.get(to as usize)[offset..]);
                moved(record.hash, RecordPosition::new(last as u32, offset), RecordPosition::new(to, offset));
                offset += record.packed_len();
            }
        } else {
            self.free.retain(|&slab| slab as usize != last);
        }
        self.owners.pop();
        self.blocks.pop();
        true
    }

    /// Whether there is a slab, or may be, besides the spare ones.
    pub(super) fn has_unused_slab(&self) -> bool {
        self.unused() > SPARE_SLABS
    }

    /// Whether a slab is free for the records of the last one.
    pub(super) fn has_free_slab(&self) -> bool {
        !self.free.is_empty()
    }
}

#[inline]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
