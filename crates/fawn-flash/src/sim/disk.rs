//! `SimDisk`: the test's control of the simulated disk: crashes, images, faults, corruption, space, time.
use super::faults::{DeviceFault, OpKind};
use super::state::DiskState;
use super::{Capture, Image, Loss, SimOptions};
use fawn_types::random::SplitMix64;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A simulated disk. Clones are handles to the same disk, which outlives the devices attached to it.
#[derive(Clone, Debug)]
pub struct SimDisk {
    state: Arc<Mutex<DiskState>>,
}

impl SimDisk {
    /// An empty disk.
    #[must_use]
    pub fn new(options: SimOptions) -> Self {
        Self::from_state(DiskState::new(options))
    }

    pub(super) fn from_state(state: DiskState) -> Self {
        Self { state: Arc::new(Mutex::new(state)) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, DiskState> {
        // The state stays consistent enough for the report of a test that panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loses power: each unsynced sector and name survives or not. Devices attached before fail; attach new ones.
    pub fn crash(&self, seed: u64) {
        self.state().crash(Loss::Power, seed);
    }

    /// Kills the process: completed operations stay, writes in flight arrive in part. Devices attached before fail.
    pub fn kill(&self, seed: u64) {
        self.state().crash(Loss::Process, seed);
    }

    /// A separate disk in a state that a loss at this moment may leave. The original disk is not changed.
    #[must_use]
    pub fn image(&self, loss: Loss, seed: u64) -> Self {
        Self::from_state(self.state().after(loss, SplitMix64::new(seed)))
    }

    /// Selects the operations at which crash images are taken; each operation counts once when it is issued and once
    /// when it takes effect.
    pub fn capture(&self, capture: Capture) {
        self.state().capture = capture;
    }

    /// Returns the images taken since the last call, oldest first.
    #[must_use]
    pub fn take_images(&self) -> Vec<Image> {
        std::mem::take(&mut self.state().images)
    }

    /// The number of operations issued plus the number that have taken effect.
    #[must_use]
    pub fn ops(&self) -> u64 {
        self.state().ops
    }

    /// Number of operations of `kind` so far.
    #[must_use]
    pub fn counted(&self, kind: OpKind) -> u64 {
        self.state().faults.counted(kind)
    }

    /// Number of writes that failed because their blocks were not allocated and the disk had no space. A crash or an image begins
    /// at zero.
    #[must_use]
    pub fn writes_without_space(&self) -> u64 {
        self.state().writes_without_space
    }

    /// Schedules `fault` for the `nth` operation of `kind` from now; 1 is the next.
    pub fn fail_nth(&self, kind: OpKind, nth: u64, fault: DeviceFault) {
        self.state().faults.order(kind, nth, fault);
    }

    /// Schedules `fault` for every operation of `kind` from now on, until [`SimDisk::end_faults`] or
    /// [`SimDisk::clear_faults`]. Replaces an earlier one for the same kind.
    pub fn fail_every(&self, kind: OpKind, fault: DeviceFault) {
        self.state().faults.order_every(kind, fault);
    }

    /// Ends the fault that [`SimDisk::fail_every`] scheduled for `kind`. Operations that already hang stay in flight.
    pub fn end_faults(&self, kind: OpKind) {
        self.state().faults.end_every(kind);
    }

    /// Removes all scheduled faults that have not occurred, including those for every operation of a kind. Unreadable
    /// places remain, and operations that already hang stay in flight.
    pub fn clear_faults(&self) {
        self.state().faults.clear();
    }

    /// Every operation of `kind` (a read, write or sync) submitted from now on stays in flight until
    /// [`SimDisk::release_hung`]. A device's `wait` with nothing else in flight returns without a completion, as after
    /// a signal, unless [`SimOptions::blocking_waits`], so a caller that loops until a completion never returns. On a crash, a hanging write or sync is like
    /// any other in flight: it takes effect in part or not at all.
    pub fn hang(&self, kind: OpKind) {
        self.fail_every(kind, DeviceFault::Hang);
    }

    /// Completes all hanging operations at the next reap, and ends [`SimDisk::hang`]. A hang ordered for a later
    /// operation stays.
    pub fn release_hung(&self) {
        self.state().release_hung();
    }

    /// Number of operations that hang.
    #[must_use]
    pub fn hung(&self) -> usize {
        self.state().queue.iter().filter(|ticket| ticket.hangs()).count()
    }

    /// Every read that touches one of `bytes` of the file fails until [`SimDisk::heal`]. The unreadable place belongs
    /// to the file, not to its name; it survives crashes and is part of later images. A write does not heal it.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn make_unreadable(&self, name: &str, bytes: Range<u64>) {
        let mut state = self.state();
        let Some(id) = state.directory.get(name) else { panic!("{name}: no such file to make unreadable") };
        state.unreadable.entry(id).or_default().push(bytes);
    }

    /// Makes all unreadable places readable again, with their previous bytes.
    pub fn heal(&self) {
        self.state().unreadable.clear();
    }

    /// Limits the capacity; `None` is unlimited. A higher limit frees space.
    pub fn set_capacity_bytes(&self, capacity: Option<u64>) {
        self.state().capacity_bytes = capacity;
    }

    /// Fills the disk, or ends that. While it is full, creating a file or allocating a block fails, even after an
    /// unlink, as if another program took all free space. Blocks that are already allocated still accept writes.
    pub fn set_full(&self, full: bool) {
        self.state().full = full;
    }

    /// Deallocates the blocks of zeros in all files, as copies have them that a tool for sparse copies has made.
    pub fn make_sparse(&self) {
        let mut state = self.state();
        for name in state.directory.names() {
            let Some(id) = state.directory.get(&name) else { continue };
            state.change(id).0.deallocate_zeros();
        }
    }

    /// Flips `bits` of the byte at `offset` of a file, in all its possible states.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn flip_bits(&self, name: &str, offset: u64, bits: u8) {
        let mut state = self.state();
        let Some(id) = state.directory.get(name) else { panic!("{name}: no such file to corrupt") };
        state.change(id).0.flip(offset, bits);
    }

    /// Open files of all devices.
    #[must_use]
    pub fn open_files(&self) -> usize {
        self.state().handles.values().sum()
    }

    /// Current names, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.state().directory.names()
    }

    /// The current content of a file.
    #[must_use]
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        let inode = state.inode(state.directory.get(name)?);
        let mut bytes = vec![0; inode.len() as usize];
        inode.read(0, &mut bytes);
        Some(bytes)
    }

    /// The bytes of a file that are durable, provided that its name survives.
    #[must_use]
    pub fn durable_contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        let inode = state.inode(state.directory.get(name)?).durable_only();
        let mut bytes = vec![0; inode.len() as usize];
        inode.read(0, &mut bytes);
        Some(bytes)
    }

    /// Creates or replaces a durable file without counting an operation, for arbitrary and corrupt inputs.
    pub fn put(&self, name: &str, contents: &[u8]) {
        let mut state = self.state();
        let id = state.create(name);
        let (inode, seq) = state.change(id);
        inode.write(seq, 0, contents);
        inode.sync(seq);
        state.directory.sync();
        state.collect();
    }

    /// The virtual time, ticks.
    #[must_use]
    pub fn tick(&self) -> u64 {
        self.state().tick
    }

    /// Advances the virtual time.
    pub fn advance_to(&self, tick: u64) {
        let mut state = self.state();
        state.tick = state.tick.max(tick);
    }

    /// The time at which the next kicked operation completes.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        self.state().next_due(None)
    }
}
