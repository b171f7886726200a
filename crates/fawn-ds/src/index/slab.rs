//! Memory of index pages: slots in steps of two entries, packed in 8 KiB blocks that hold one size each.
//!
//! Linear hashing makes page sizes sweep from the mean to twice the mean and back. Free lists by size would keep
//! every size's peak: measured, 1.3 to 2.8 bytes per key. Here each size is *dense*: the last slot of a size moves into
//! a freed one at once, and an emptied block serves any size. A slot therefore names its owner, so that the
//! owner's handle can be updated.
//!
//! A block has a number, used by handles and links, and a place in memory, which changes: when a block in the middle is
//! released, the block of the last place moves there. Memory stays dense too, and moves to huge pages as it grows.
use super::cell::{CellColumns, CellImage};
use super::fragment::VACANT;
use crate::index::{Pointer, PointerWidth};
use fawn_flash::{Blocks, prefetch};

/// Sixteen-bit units of a block: 8 KiB keeps the tails and the ~25 partly filled blocks under 2 % at a million keys.
const BLOCK_UNITS: usize = 4096;
/// Bits of a handle that number the slot within its block.
const SLOT_BITS: u32 = 9;
/// Difference in entries between size classes.
pub(super) const CLASS_STEP: usize = 2;
const CLASSES: usize = 256;
/// Entries of the largest page. Hash-distributed keys stay far below; only equal hashes reach it.
pub(super) const PAGE_ENTRIES_MAX: usize = (CLASSES - 1) * CLASS_STEP;
/// Units after the entries that name the owner of the slot.
const OWNER_UNITS: usize = 2;
/// Units of two entries with 32-bit pointers: two of fragments, four of pointers.
const PAIR_UNITS: usize = 6;
/// With 40-bit pointers: one more, with the high byte of each pointer.
const WIDE_PAIR_UNITS: usize = 7;
/// Emptied blocks kept for the next allocation; more are released.
const SPARE_BLOCKS_MAX: u32 = 4;
/// Allocator overhead per block (glibc: 16 bytes), so that `resident_bytes` is complete.
pub(super) const ALLOCATOR_BYTES: usize = 16;
const NO_BLOCK: u32 = u32::MAX >> SLOT_BITS;
const NO_PLACE: u32 = u32::MAX;

const _: () = assert!(CLASS_STEP == 2, "a class has one unit more for each pair of entries");
const _: () = assert!(BLOCK_UNITS / (OWNER_UNITS + PAIR_UNITS) <= 1 << SLOT_BITS);
const _: () = assert!(OWNER_UNITS + WIDE_PAIR_UNITS * (CLASSES - 1) <= BLOCK_UNITS);
// An entry never costs more than 16 bytes of slot, so 2^32 entries fit below the highest block number.
const _: () = assert!((NO_BLOCK as u64 - 1) * BLOCK_UNITS as u64 * 2 > (1 << 32) * 15);

/// Address of a page's slot: block ‖ slot within it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BlockHandle(pub(super) u32);

impl BlockHandle {
    /// The handle of a page without entries, which owns no slot.
    pub(super) const NONE: Self = Self(u32::MAX);

    fn new(block: u32, slot: u32) -> Self {
        debug_assert!(block < NO_BLOCK && slot < 1 << SLOT_BITS);
        Self(block << SLOT_BITS | slot)
    }

    fn block(self) -> usize {
        (self.0 >> SLOT_BITS) as usize
    }

    fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }
}

/// A page that moved because its neighbour's slot was freed: the owner must now use `to`.
#[derive(Clone, Copy, Debug)]
pub(super) struct MovedPage {
    pub(super) owner: u32,
    pub(super) to: BlockHandle,
}

#[derive(Clone, Copy)]
struct SlabBlock {
    /// Place of its units; [`NO_PLACE`]: released, the number can be reused.
    place: u32,
    /// The block of this class filled before it, or the next spare or vacant block.
    before: u32,
    class: u8,
}

#[derive(Clone, Copy)]
struct SizeClass {
    /// The only block of the class that may be partly filled.
    last: u32,
    used: u32,
}

/// A page's entries, read only.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IndexPage<'a> {
    /// One per entry, none vacant.
    pub(super) fragments: &'a [u16],
    /// The low 32 bits of each pointer, in two units; then bits 32 to 39 of two pointers in each unit, if they have these.
    pointers: &'a [u16],
    /// Place of the first unit with high bits; 0 if pointers have 32 bits.
    high_at: usize,
}

impl IndexPage<'_> {
    /// Prefetches the pointers: the wanted one is often in another cache line than the fragments.
    #[inline]
    pub(super) fn fetch_pointers(&self) {
        prefetch(self.pointers);
    }

    /// The pointer of entry `at`.
    #[inline]
    pub(super) fn pointer(&self, at: usize) -> Pointer {
        debug_assert!(at < self.fragments.len());
        self.pointer_of(at, [self.pointers[2 * at], self.pointers[2 * at + 1]])
    }

    #[inline]
    fn pointer_of(&self, at: usize, [low, middle]: [u16; 2]) -> Pointer {
        let unit = u64::from(low) | u64::from(middle) << 16;
        if self.high_at == 0 {
            return Pointer::new(unit);
        }
        let high = self.pointers[self.high_at + at / 2].to_le_bytes()[at % 2];
        Pointer::new(u64::from(high) << 32 | unit)
    }
}

impl<'a> IndexPage<'a> {
    /// Every entry by columns.
    pub(super) fn columns(self) -> CellColumns<'a> {
        let entries = self.fragments.len();
        let high_units = if self.high_at == 0 { &[] } else { &self.pointers[self.high_at..][..entries.div_ceil(2)] };
        CellColumns { fragments: self.fragments, low_units: &self.pointers[..2 * entries], high_units }
    }

    /// Every entry: fragment and pointer.
    #[inline]
    pub(super) fn entries(self) -> impl ExactSizeIterator<Item = (u16, Pointer)> + 'a {
        let (pairs, _) = self.pointers.as_chunks::<2>();
        let entries = self.fragments.iter().zip(pairs).enumerate();
        entries.map(move |(at, (&fragment, &pair))| (fragment, self.pointer_of(at, pair)))
    }
}

/// A page's places, entries first.
pub(super) struct IndexPageMut<'a> {
    fragments: &'a mut [u16],
    pointers: &'a mut [u16],
    high_bytes: &'a mut [u16],
}

impl IndexPageMut<'_> {
    pub(super) fn set(&mut self, at: usize, fragment: u16, pointer: Pointer) {
        debug_assert_ne!(fragment, VACANT, "a fragment without delimiter would match every query");
        self.fragments[at] = fragment;
        let unit = pointer.unit();
        self.pointers[2 * at] = unit as u16;
        self.pointers[2 * at + 1] = (unit >> 16) as u16;
        self.set_high_byte(at, (unit >> 32) as u8);
    }

    /// Writes entries to the places from `from` on.
    pub(super) fn set_all(&mut self, from: usize, entries: &[(u16, Pointer)]) {
        let (pairs, _) = self.pointers.as_chunks_mut::<2>();
        let places = self.fragments[from..].iter_mut().zip(&mut pairs[from..]);
        for ((place, pair), &(fragment, pointer)) in places.zip(entries) {
            debug_assert_ne!(fragment, VACANT, "a fragment without delimiter would match every query");
            let unit = pointer.unit();
            (*place, *pair) = (fragment, [unit as u16, (unit >> 16) as u16]);
        }
        if !self.high_bytes.is_empty() {
            for (at, (_, pointer)) in entries.iter().enumerate() {
                self.set_high_byte(from + at, (pointer.unit() >> 32) as u8);
            }
        }
    }

    /// Writes all entries of a cell, from the first place on.
    pub(super) fn set_cell(&mut self, cell: CellImage<'_>) {
        for (place, fragment) in self.fragments.iter_mut().zip(cell.fragments) {
            *place = u16::from_le_bytes(*fragment);
        }
        let (pairs, _) = self.pointers.as_chunks_mut::<2>();
        for (pair, &[a, b, c, d]) in pairs.iter_mut().zip(cell.low_bits) {
            *pair = [u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])];
        }
        let (pairs, odd) = cell.high_bits.as_chunks::<2>();
        for (unit, pair) in self.high_bytes.iter_mut().zip(pairs) {
            *unit = u16::from_le_bytes(*pair);
        }
        if let [byte] = odd {
            self.set_high_byte(cell.high_bits.len() - 1, *byte);
        }
    }

    fn set_high_byte(&mut self, at: usize, byte: u8) {
        if let Some(pair) = self.high_bytes.get_mut(at / 2) {
            let mut bytes = pair.to_le_bytes();
            bytes[at % 2] = byte;
            *pair = u16::from_le_bytes(bytes);
        } else {
            debug_assert_eq!(byte, 0, "a pointer past what 32 bits can name");
        }
    }

    /// Moves the entry at `last` over the one at `at` and vacates `last`.
    pub(super) fn swap_remove(&mut self, at: usize, last: usize) {
        assert!(at <= last, "entry {at} lies behind the page's last entry {last}");
        self.fragments[at] = self.fragments[last];
        self.pointers[2 * at] = self.pointers[2 * last];
        self.pointers[2 * at + 1] = self.pointers[2 * last + 1];
        let high = self.high_bytes.get(last / 2).map_or(0, |pair| pair.to_le_bytes()[last % 2]);
        self.set_high_byte(at, high);
        self.fragments[last] = VACANT;
    }
}

/// The class of a page with `entries` entries: capacity is `entries`, or one more.
pub(super) fn class_of(entries: usize) -> u8 {
    assert!(entries <= PAGE_ENTRIES_MAX, "{entries} entries exceed the largest page, {PAGE_ENTRIES_MAX}");
    entries.div_ceil(CLASS_STEP) as u8
}

fn entries_max(class: u8) -> usize {
    usize::from(class) * CLASS_STEP
}

/// All pages' slots of one index.
pub(super) struct IndexSlab {
    memory: Blocks<[u16; BLOCK_UNITS]>,
    /// Units of two entries.
    pair_units: usize,
    /// The block at each place of `memory`.
    numbers: Vec<u32>,
    blocks: Vec<SlabBlock>,
    classes: Box<[SizeClass; CLASSES]>,
    /// Emptied blocks that still hold memory, and their number.
    spare: u32,
    spare_len: u32,
    /// Numbers of blocks whose memory was released.
    vacant: u32,
}

impl IndexSlab {
    pub(super) fn new(width: PointerWidth) -> Self {
        let none = SizeClass { last: NO_BLOCK, used: 0 };
        Self {
            memory: Blocks::default(),
            pair_units: match width {
                PointerWidth::Bits32 => PAIR_UNITS,
                PointerWidth::Bits40 => WIDE_PAIR_UNITS,
            },
            numbers: Vec::new(),
            blocks: Vec::new(),
            classes: Box::new([none; CLASSES]),
            spare: NO_BLOCK,
            spare_len: 0,
            vacant: NO_BLOCK,
        }
    }

    /// Memory of the slab, spare blocks and allocator headers included, bytes.
    pub(super) fn resident_bytes(&self) -> usize {
        self.memory.resident_bytes()
            + self.numbers.capacity() * size_of::<u32>()
            + self.blocks.capacity() * size_of::<SlabBlock>()
            + size_of::<[SizeClass; CLASSES]>()
            + 4 * ALLOCATOR_BYTES
    }

    /// The entries so far are this part of all that come, of 2^64.
    pub(super) fn expect(&mut self, part: u64) {
        let blocks = (self.memory.len() as u128) << 64;
        self.memory.expect(blocks.checked_div(part.into()).map_or(0, |blocks| blocks as usize));
    }

    /// The page at `handle`; [`BlockHandle::NONE`] is the empty page.
    #[inline]
    pub(super) fn page(&self, handle: BlockHandle) -> IndexPage<'_> {
        if handle == BlockHandle::NONE {
            return IndexPage::default();
        }
        let block = self.blocks[handle.block()];
        let places = entries_max(block.class);
        let units = self.slot_units(block.class);
        let start = handle.slot() * units;
        let slot = &self.units(block)[start..start + units];
        let (fragments, rest) = slot.split_at(places);
        // Sizes go in steps of two, so at most the last place is vacant.
        let entries = places - usize::from(fragments[places - 1] == VACANT);
        let high_at = if self.pair_units == PAIR_UNITS { 0 } else { 2 * places };
        IndexPage { fragments: &fragments[..entries], pointers: rest, high_at }
    }

    /// Prefetches the page at `handle`.
    #[inline]
    pub(super) fn fetch(&self, handle: BlockHandle) {
        if handle != BlockHandle::NONE {
            let block = self.blocks[handle.block()];
            let units = self.slot_units(block.class);
            let start = handle.slot() * units;
            prefetch(&self.units(block)[start..start + units]);
        }
    }

    /// Prefetches the fragments of the page at `handle`.
    #[inline]
    pub(super) fn fetch_fragments(&self, handle: BlockHandle) {
        if handle != BlockHandle::NONE {
            let block = self.blocks[handle.block()];
            let start = handle.slot() * self.slot_units(block.class);
            prefetch(&self.units(block)[start..start + entries_max(block.class)]);
        }
    }

    /// The places of the page at `handle`, which must own a slot.
    #[inline]
    pub(super) fn page_mut(&mut self, handle: BlockHandle) -> IndexPageMut<'_> {
        assert_ne!(handle, BlockHandle::NONE, "an empty page owns no slot to write to");
        let block = self.blocks[handle.block()];
        let places = entries_max(block.class);
        let units = self.slot_units(block.class);
        let start = handle.slot() * units;
        let (fragments, rest) = self.units_mut(block)[start..start + units].split_at_mut(places);
        let (pointers, rest) = rest.split_at_mut(2 * places);
        let high_units = rest.len() - OWNER_UNITS;
        IndexPageMut { fragments, pointers, high_bytes: &mut rest[..high_units] }
    }

    /// Writes an entry to the vacant place of the page at `handle`; `false` if it has none.
    #[inline]
    pub(super) fn fill_vacant(&mut self, handle: BlockHandle, fragment: u16, pointer: Pointer) -> bool {
        if handle == BlockHandle::NONE {
            return false;
        }
        let mut page = self.page_mut(handle);
        let last = page.fragments.len() - 1;
        let is_vacant = page.fragments[last] == VACANT;
        if is_vacant {
            page.set(last, fragment, pointer);
        }
        is_vacant
    }

    /// Places of the page at `handle`, the vacant one included.
    #[inline]
    pub(super) fn places(&self, handle: BlockHandle) -> usize {
        if handle == BlockHandle::NONE { 0 } else { entries_max(self.blocks[handle.block()].class) }
    }

    /// A slot for page `owner`; the caller writes all its `entries`, a place beyond them is vacant.
    pub(super) fn allocate(&mut self, entries: usize, owner: u32) -> BlockHandle {
        assert!(entries > 0, "a page without entries owns no slot");
        let class = class_of(entries);
        let SizeClass { last, used } = self.classes[usize::from(class)];
        let (block, slot) = if last == NO_BLOCK || used == self.slots_per_block(class) {
            (self.take_block(class, last), 0)
        } else {
            (last, used)
        };
        self.classes[usize::from(class)] = SizeClass { last: block, used: slot + 1 };
        let slot_units = self.slot_units(class);
        let start = slot as usize * slot_units;
        let units = &mut self.units_mut(self.blocks[block as usize])[start..start + slot_units];
        units[entries..entries_max(class)].fill(VACANT);
        write_owner(units, owner);
        BlockHandle::new(block, slot)
    }

    /// Copies the first `entries` of one page to another's places; from the empty page, none.
    pub(super) fn transfer_entries(&mut self, source: BlockHandle, target: BlockHandle, entries: usize) {
        assert!(entries <= self.places(source) && entries <= self.places(target));
        if entries == 0 {
            return;
        }
        let (from, to) = (self.blocks[source.block()], self.blocks[target.block()]);
        let (from_start, from_places) = (source.slot() * self.slot_units(from.class), entries_max(from.class));
        let (to_start, to_places) = (target.slot() * self.slot_units(to.class), entries_max(to.class));
        let is_wide = self.pair_units == WIDE_PAIR_UNITS;
        // Sizes differ, so the slots are in different blocks.
        let [from, to] = self.memory.pair_mut(from.place as usize, to.place as usize);
        to[to_start..to_start + entries].copy_from_slice(&from[from_start..from_start + entries]);
        let (from_start, to_start) = (from_start + from_places, to_start + to_places);
        to[to_start..to_start + 2 * entries].copy_from_slice(&from[from_start..from_start + 2 * entries]);
        if is_wide {
            let (from_start, to_start) = (from_start + 2 * from_places, to_start + 2 * to_places);
            let units = entries.div_ceil(2);
            to[to_start..to_start + units].copy_from_slice(&from[from_start..from_start + units]);
        }
    }

    /// Frees the slot of `handle` by moving the last slot of its class there.
    #[must_use = "the moved page's owner must learn its new handle"]
    pub(super) fn free(&mut self, handle: BlockHandle) -> Option<MovedPage> {
        assert_ne!(handle, BlockHandle::NONE, "an empty page owns no slot to free");
        let class = self.blocks[handle.block()].class;
        let SizeClass { last, used } = self.classes[usize::from(class)];
        assert!(last != NO_BLOCK && used > 0, "class {class} has no slot to free");
        let source = BlockHandle::new(last, used - 1);
        let moved =
            (source != handle).then(|| MovedPage { owner: self.transfer_slot(source, handle, class), to: handle });
        self.classes[usize::from(class)].used = used - 1;
        if used == 1 {
            self.release_block(last, class);
        }
        moved
    }

    /// Copies a slot over another of the same class; returns its owner.
    fn transfer_slot(&mut self, source: BlockHandle, target: BlockHandle, class: u8) -> u32 {
        let units = self.slot_units(class);
        let (from, to) = (source.slot() * units, target.slot() * units);
        let (source, target) = (self.blocks[source.block()], self.blocks[target.block()]);
        assert_eq!(source.class, target.class, "slots of different sizes cannot replace each other");
        if source.place == target.place {
            self.units_mut(target).copy_within(from..from + units, to);
        } else {
            let [source, target] = self.memory.pair_mut(source.place as usize, target.place as usize);
            target[to..to + units].copy_from_slice(&source[from..from + units]);
        }
        let slot = &self.units(target)[to..to + units];
        u32::from(slot[units - 2]) | u32::from(slot[units - 1]) << 16
    }

    /// Checks slots-dense, and that no block is lost or counted twice; returns the slots in use.
    #[cfg(test)]
    pub(super) fn assert_dense(&self) -> usize {
        let chain = |first: u32| {
            std::iter::successors((first != NO_BLOCK).then_some(first), |&number| {
                Some(self.blocks[number as usize].before).filter(|&before| before != NO_BLOCK)
            })
        };
        let (mut blocks, mut slots) = (0, 0);
        for (class, state) in (0..=u8::MAX).zip(self.classes.iter()) {
            assert!(chain(state.last).all(|number| self.blocks[number as usize].class == class), "class {class}");
            assert_eq!(state.used == 0, state.last == NO_BLOCK, "class {class} keeps an empty block");
            let filled = chain(state.last).count();
            blocks += filled;
            slots += state.used as usize + filled.saturating_sub(1) * self.slots_per_block(class.max(1)) as usize;
        }
        assert_eq!(chain(self.spare).count(), self.spare_len as usize);
        assert_eq!(blocks + self.spare_len as usize, self.memory.len());
        assert_eq!(self.memory.len() + chain(self.vacant).count(), self.blocks.len());
        assert_eq!(self.memory.len(), self.numbers.len());
        let is_home = |(place, &number): (usize, &u32)| self.blocks[number as usize].place as usize == place;
        assert!(self.numbers.iter().enumerate().all(is_home), "a block does not know its place");
        slots
    }

    /// A block for `class`, following `before`: a spare one, else a vacant number, else a new number.
    fn take_block(&mut self, class: u8, before: u32) -> u32 {
        let number = if self.spare != NO_BLOCK {
            let number = self.spare;
            self.spare = self.blocks[number as usize].before;
            self.spare_len -= 1;
            number
        } else {
            let place = self.memory.push() as u32;
            let number = if self.vacant == NO_BLOCK {
                self.blocks.push(SlabBlock { place, before, class });
                self.blocks.len() as u32 - 1
            } else {
                let number = self.vacant;
                self.vacant = self.blocks[number as usize].before;
                self.blocks[number as usize].place = place;
                number
            };
            self.numbers.push(number);
            number
        };
        assert!(number < NO_BLOCK, "the index holds more blocks than 2^32 pointers can fill");
        let block = &mut self.blocks[number as usize];
        (block.class, block.before) = (class, before);
        number
    }

    /// Takes the emptied block `number` from `class`, whose last block is now the one before it.
    fn release_block(&mut self, number: u32, class: u8) {
        let block = &mut self.blocks[number as usize];
        let before = block.before;
        if self.spare_len < SPARE_BLOCKS_MAX {
            block.before = self.spare;
            self.spare = number;
            self.spare_len += 1;
        } else {
            block.before = self.vacant;
            self.vacant = number;
            self.give_back(number);
        }
        let used = if before == NO_BLOCK { 0 } else { self.slots_per_block(class) };
        self.classes[usize::from(class)] = SizeClass { last: before, used };
    }

    /// Releases the memory of block `number`: the units of the last place move there.
    fn give_back(&mut self, number: u32) {
        let place = core::mem::replace(&mut self.blocks[number as usize].place, NO_PLACE) as usize;
        assert_eq!(self.numbers.swap_remove(place), number, "a block knows its place");
        if let Some(&moved) = self.numbers.get(place) {
            let last = core::mem::replace(&mut self.blocks[moved as usize].place, place as u32) as usize;
            let [source, target] = self.memory.pair_mut(last, place);
            target.copy_from_slice(source);
        }
        self.memory.pop();
    }

    #[inline]
    fn slot_units(&self, class: u8) -> usize {
        OWNER_UNITS + self.pair_units * usize::from(class)
    }

    fn slots_per_block(&self, class: u8) -> u32 {
        (BLOCK_UNITS / self.slot_units(class)) as u32
    }

    #[inline]
    fn units(&self, block: SlabBlock) -> &[u16; BLOCK_UNITS] {
        debug_assert_ne!(block.place, NO_PLACE, "a handle points into a block that was given back");
        self.memory.get(block.place as usize)
    }

    #[inline]
    fn units_mut(&mut self, block: SlabBlock) -> &mut [u16; BLOCK_UNITS] {
        debug_assert_ne!(block.place, NO_PLACE, "a handle points into a block that was given back");
        self.memory.get_mut(block.place as usize)
    }
}

fn write_owner(slot: &mut [u16], owner: u32) {
    let at = slot.len() - OWNER_UNITS;
    slot[at] = owner as u16;
    slot[at + 1] = (owner >> 16) as u16;
}
