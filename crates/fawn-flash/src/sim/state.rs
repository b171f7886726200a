//! State of the simulated disk: files, names, space, operations in flight; creation of crash images.
use super::directory::{Directory, InodeId};
use super::faults::{DeviceFault, FaultPlan, OpKind};
use super::inode::Inode;
use super::queue::SimOperation;
use super::{Capture, Image, Loss, SimDisk, SimOptions};
use crate::buffer::{PAGE_BYTES, SECTOR_BYTES};
use crate::request::{IoRequest, Work};
use crate::{DeviceError, IoOperation};
use fawn_types::random::SplitMix64;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of images that a test has not taken; more means that it forgot to take them.
const IMAGES_MAX: usize = 4096;
/// Chances out of 16 that an unsynced sector or name survives. One is drawn per image, so the extremes are common.
const SURVIVAL: [u64; 5] = [0, 2, 8, 14, 16];

/// The state behind a [`SimDisk`].
#[derive(Debug)]
pub(super) struct DiskState {
    pub(super) options: SimOptions,
    pub(super) rng: SplitMix64,
    pub(super) directory: Directory,
    pub(super) inodes: BTreeMap<InodeId, Arc<Inode>>,
    /// Handles per open file: an unlinked file keeps its space until the last one is closed.
    pub(super) handles: BTreeMap<InodeId, usize>,
    pub(super) queue: Vec<SimOperation>,
    pub(super) faults: FaultPlan,
    pub(super) capacity_bytes: Option<u64>,
    /// Whether allocation fails regardless of the capacity.
    pub(super) full: bool,
    pub(super) unreadable: BTreeMap<InodeId, Vec<Range<u64>>>,
    /// Sequence number of changes to files; a sync covers the changes up to one such number.
    pub(super) seq: u64,
    pub(super) tick: u64,
    /// Number of crashes, by which devices attached earlier detect that they no longer work.
    pub(super) power_cycles: u64,
    pub(super) lock_holder: Option<u64>,
    /// Writes that failed because their blocks were not allocated.
    pub(super) writes_without_space: u64,
    pub(super) devices: u64,
    pub(super) ops: u64,
    pub(super) capture: Capture,
    pub(super) images: Vec<Image>,
    next_inode: InodeId,
}

impl DiskState {
    pub(super) fn new(options: SimOptions) -> Self {
        Self {
            rng: SplitMix64::new(options.seed),
            options,
            directory: Directory::default(),
            inodes: BTreeMap::new(),
            handles: BTreeMap::new(),
            queue: Vec::new(),
            faults: FaultPlan::default(),
            capacity_bytes: None,
            full: false,
            unreadable: BTreeMap::new(),
            seq: 0,
            tick: 0,
            power_cycles: 0,
            lock_holder: None,
            writes_without_space: 0,
            devices: 0,
            ops: 0,
            capture: Capture::Never,
            images: Vec::new(),
            next_inode: 0,
        }
    }

    /// Counts an operation that was issued or has taken effect, and takes the image ordered for that count.
    pub(super) fn count_op(&mut self) {
        self.ops += 1;
        let (loss, seed) = match self.capture {
            Capture::Never => return,
            Capture::Every { stride, loss, seed } if self.ops.is_multiple_of(stride.max(1)) => (loss, seed),
            Capture::At { op, loss, seed } if self.ops == op => (loss, seed),
            Capture::Every { .. } | Capture::At { .. } => return,
        };
        assert!(self.images.len() < IMAGES_MAX, "take the crash images more often: {IMAGES_MAX} are pending");
        let disk = SimDisk::from_state(self.after(loss, SplitMix64::new(seed).fork(self.ops)));
        self.images.push(Image { op: self.ops, disk });
    }

    pub(super) fn inode(&self, id: InodeId) -> &Inode {
        &self.inodes[&id]
    }

    /// The file for a change, and the change's sequence number.
    pub(super) fn change(&mut self, id: InodeId) -> (&mut Inode, u64) {
        self.seq += 1;
        let inode = self.inodes.get_mut(&id);
        (Arc::make_mut(inode.unwrap_or_else(|| unreachable!("file {id} is reachable, so it exists"))), self.seq)
    }

    pub(super) fn create(&mut self, name: &str) -> InodeId {
        let id = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(id, Arc::new(Inode::default()));
        self.directory.set(name, id);
        id
    }

    /// Removes files without a reference.
    pub(super) fn collect(&mut self) {
        let reachable = self.directory.reachable();
        let handles = &self.handles;
        self.inodes.retain(|id, _| reachable.contains(id) || handles.contains_key(id));
        let inodes = &self.inodes;
        self.unreadable.retain(|id, _| inodes.contains_key(id));
    }

    pub(super) fn release(&mut self, id: InodeId) {
        if let Some(count) = self.handles.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                self.handles.remove(&id);
                // This file alone lost a reference. A search for all such files took 40 % of a crash test of many files.
                if !self.directory.refers_to(id) {
                    self.inodes.remove(&id);
                    self.unreadable.remove(&id);
                }
            }
        }
    }

    /// Free bytes; a very large number without a capacity.
    pub(super) fn free_bytes(&self) -> u64 {
        if self.full {
            return 0;
        }
        let Some(capacity) = self.capacity_bytes else { return u64::MAX / 2 };
        let named = self.directory.named();
        let used = self.inodes.iter().filter(|(id, _)| named.contains(id) || self.handles.contains_key(id));
        let used_blocks: u64 = used.map(|(_, inode)| inode.extents.blocks()).sum();
        capacity.saturating_sub(used_blocks * PAGE_BYTES as u64)
    }

    /// Whether the range's unallocated blocks exceed the free space.
    pub(super) fn overflows(&self, id: InodeId, offset: u64, len_bytes: u64) -> bool {
        if self.capacity_bytes.is_none() && !self.full {
            return false;
        }
        let page_bytes = PAGE_BYTES as u64;
        let end = (offset + len_bytes).div_ceil(page_bytes);
        self.inode(id).extents.missing(offset / page_bytes, end) * page_bytes > self.free_bytes()
    }

    /// Whether a read of these bytes touches an unreadable place.
    pub(super) fn is_unreadable(&self, id: InodeId, offset: u64, len_bytes: usize) -> bool {
        let end = offset + len_bytes as u64;
        let places = self.unreadable.get(&id);
        places.is_some_and(|places| places.iter().any(|place| place.start < end && offset < place.end))
    }

    /// A copy of the disk in a state after a loss at this moment; `self` is not changed.
    pub(super) fn after(&self, loss: Loss, mut rng: SplitMix64) -> Self {
        let mut found = Self::new(self.options.clone());
        found.rng = rng.fork(1);
        found.directory = self.directory.clone();
        found.inodes = self.inodes.clone();
        found.next_inode = self.next_inode;
        found.capacity_bytes = self.capacity_bytes;
        found.full = self.full;
        found.unreadable = self.unreadable.clone();
        found.seq = self.seq;
        found.tick = self.tick;
        for operation in &self.queue {
            found.overtake(operation, loss, &mut rng);
        }
        if loss == Loss::Power {
            found.lose_power(&mut rng);
        }
        found.collect();
        found
    }

    /// Applies an operation that was in flight: any part of a write may have arrived, a sync may have taken effect.
    pub(super) fn overtake(&mut self, operation: &SimOperation, loss: Loss, rng: &mut SplitMix64) {
        if operation.due.is_none() || operation.refused.is_some() || operation.fault == Some(DeviceFault::Lose) {
            return;
        }
        let IoRequest { work, offset, len_bytes, ref memory, .. } = operation.request;
        match work {
            Work::Write { .. } => {
                let buf = memory.bytes();
                if self.overflows(operation.inode, offset, len_bytes as u64) {
                    return;
                }
                let (inode, seq) = self.change(operation.inode);
                match loss {
                    Loss::Power => inode.write(seq, offset, &buf[..len_bytes]),
                    Loss::Process => inode.write(seq, offset, &buf[..arrived_bytes(len_bytes, rng)]),
                }
            }
            Work::Sync if loss == Loss::Power && rng.coin() => {
                self.change(operation.inode).0.sync(operation.covered_seq)
            }
            Work::SyncDir if loss == Loss::Power && rng.coin() => self.directory.sync_through(operation.covered_seq),
            Work::Read | Work::Sync | Work::SyncDir => (),
        }
    }

    fn lose_power(&mut self, rng: &mut SplitMix64) {
        let survive = SURVIVAL[rng.below(SURVIVAL.len() as u64) as usize];
        let names_survive = SURVIVAL[rng.below(SURVIVAL.len() as u64) as usize];
        self.directory.crash(rng, names_survive);
        for inode in self.inodes.values_mut().filter(|inode| !inode.is_settled()) {
            Arc::make_mut(inode).crash(rng, survive);
        }
    }

    /// Applies a loss in place: attached devices fail, and their writes in flight arrive in part.
    pub(super) fn crash(&mut self, loss: Loss, seed: u64) {
        let mut found = self.after(loss, SplitMix64::new(seed));
        std::mem::swap(&mut found.faults, &mut self.faults);
        found.power_cycles = self.power_cycles + 1;
        found.devices = self.devices;
        found.ops = self.ops;
        found.capture = self.capture;
        found.images = std::mem::take(&mut self.images);
        *self = found;
    }

    /// Counts a metadata operation; fails if a fault is ordered for it.
    pub(super) fn metadata(&mut self, kind: OpKind, name: &str) -> Result<(), DeviceError> {
        match self.faults.count(kind) {
            Some(DeviceFault::Full) => Err(full()),
            Some(DeviceFault::Exhausted) => Err(exhausted()),
            Some(_) => {
                let operation = if kind == OpKind::SyncDir { IoOperation::Sync } else { operation_of(kind) };
                Err(io(operation, name, 0, "injected failure"))
            }
            None => Ok(()),
        }
    }
}

/// Bytes of a write that arrived before the process was killed: none, all, or a prefix of whole sectors.
fn arrived_bytes(len_bytes: usize, rng: &mut SplitMix64) -> usize {
    let sectors = (len_bytes / SECTOR_BYTES) as u64;
    match rng.below(3) {
        0 => 0,
        1 => len_bytes,
        _ => rng.below(sectors + 1) as usize * SECTOR_BYTES,
    }
}

fn operation_of(kind: OpKind) -> IoOperation {
    IoOperation::Metadata(match kind {
        OpKind::Create => "create",
        OpKind::Open => "open",
        OpKind::Rename => "rename",
        OpKind::Link => "link",
        OpKind::Unlink => "unlink",
        OpKind::Truncate => "truncate",
        OpKind::Allocate => "allocate",
        OpKind::Punch => "punch",
        OpKind::Map => "map",
        OpKind::Read | OpKind::Write | OpKind::Sync | OpKind::SyncDir | OpKind::Inspect => "inspect",
    })
}

pub(super) fn full() -> DeviceError {
    DeviceError::Full { dir: super::DIR.to_owned() }
}

pub(super) fn exhausted() -> DeviceError {
    DeviceError::Exhausted { dir: super::DIR.to_owned(), detail: "injected lack of descriptors".to_owned() }
}

pub(super) fn io(operation: IoOperation, name: &str, offset: u64, detail: &str) -> DeviceError {
    DeviceError::Io { operation, name: name.to_owned(), offset, detail: detail.to_owned() }
}
