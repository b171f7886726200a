//! Owns the test's hand on the simulated medium: crashes, crash images, faults, corruption, space and time.
use super::faults::{Fault, OpKind};
use super::state::DiskState;
use super::{Capture, Image, Loss, SimOptions};
use fawn_types::random::SplitMix64;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A simulated medium. Clones are handles to the same one; it outlives the devices attached to it.
#[derive(Clone, Debug)]
pub struct SimDisk {
    state: Arc<Mutex<DiskState>>,
}

impl SimDisk {
    /// An empty medium.
    #[must_use]
    pub fn new(options: SimOptions) -> Self {
        Self::from_state(DiskState::new(options))
    }

    pub(super) fn from_state(state: DiskState) -> Self {
        Self { state: Arc::new(Mutex::new(state)) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, DiskState> {
        // A panicking test leaves a consistent enough disk for its own report.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loses power: each unsynced sector and name survives or not. Devices attached before are dead; attach anew.
    pub fn crash(&self, seed: u64) {
        self.state().crash(Loss::Power, seed);
    }

    /// Kills the process: all completed operations stay, those in flight arrive in part. Attached devices are dead.
    pub fn kill(&self, seed: u64) {
        self.state().crash(Loss::Process, seed);
    }

    /// A medium of its own: this one as a loss at this moment may leave it. This one goes on.
    #[must_use]
    pub fn image(&self, loss: Loss, seed: u64) -> Self {
        Self::from_state(self.state().after(loss, SplitMix64::new(seed)))
    }

    /// Orders images; each operation counts when it is issued and again when it takes effect.
    pub fn capture(&self, capture: Capture) {
        self.state().capture = capture;
    }

    /// The images since the last call, oldest first.
    #[must_use]
    pub fn take_images(&self) -> Vec<Image> {
        std::mem::take(&mut self.state().images)
    }

    /// Operations issued and operations that have taken effect, so far.
    #[must_use]
    pub fn ops(&self) -> u64 {
        self.state().ops
    }

    /// Operations of `kind` so far.
    #[must_use]
    pub fn counted(&self, kind: OpKind) -> u64 {
        self.state().faults.counted(kind)
    }

    /// Orders `fault` for the `nth` operation of `kind` from now; 1 is the next.
    pub fn fail_nth(&self, kind: OpKind, nth: u64, fault: Fault) {
        self.state().faults.order(kind, nth, fault);
    }

    /// Orders `fault` for every operation of `kind` from now on, until [`SimDisk::end_faults`] or
    /// [`SimDisk::clear_faults`]. Replaces an earlier order for the same kind.
    pub fn fail_every(&self, kind: OpKind, fault: Fault) {
        self.state().faults.order_every(kind, fault);
    }

    /// Ends what [`SimDisk::fail_every`] ordered for `kind`. Operations that hang already stay in flight.
    pub fn end_faults(&self, kind: OpKind) {
        self.state().faults.end_every(kind);
    }

    /// Forgets the faults ordered and not yet met, standing ones included. Unreadable places stay, and so do operations
    /// that hang already.
    pub fn clear_faults(&self) {
        self.state().faults.clear();
    }

    /// Every operation of `kind` (a read, write or sync) submitted from now on stays in flight until
    /// [`SimDisk::release_hung`]. A device's `wait` with nothing else in flight returns without a completion, as after
    /// a signal: a caller that loops until a completion comes then loops for ever. A crash finds a hanging write or sync
    /// as any other in flight: in part, or not at all.
    pub fn hang(&self, kind: OpKind) {
        self.fail_every(kind, Fault::Hang);
    }

    /// Lets the operations that hang complete with the next reap, and no later operation hang.
    pub fn release_hung(&self) {
        self.state().release_hung();
    }

    /// Operations that hang now.
    #[must_use]
    pub fn hung(&self) -> usize {
        self.state().queue.iter().filter(|ticket| ticket.hangs()).count()
    }

    /// Every read that touches one of `bytes` of the file fails, until [`SimDisk::heal`]. The place belongs to the file
    /// and not to its name, survives crashes, and is in the images taken from now on. Writing to it does not heal it.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn make_unreadable(&self, name: &str, bytes: Range<u64>) {
        let mut state = self.state();
        let Some(id) = state.directory.get(name) else { panic!("{name}: no such file to make unreadable") };
        state.unreadable.entry(id).or_default().push(bytes);
    }

    /// Makes every unreadable place of the medium readable again, with the bytes that it had.
    pub fn heal(&self) {
        self.state().unreadable.clear();
    }

    /// Bounds the medium; `None` for plenty. Raising it is how space comes back.
    pub fn set_capacity_bytes(&self, capacity: Option<u64>) {
        self.state().capacity_bytes = capacity;
    }

    /// Fills the medium, or ends that: no file is created and no block allocated until told otherwise, whatever is
    /// unlinked meanwhile, as when another program takes all space that comes back. Blocks allocated before still take
    /// writes.
    pub fn set_full(&self, full: bool) {
        self.state().full = full;
    }

    /// Flips `bits` of the byte at `offset` of a file, in every state it may take.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn flip_bits(&self, name: &str, offset: u64, bits: u8) {
        let mut state = self.state();
        let Some(id) = state.directory.get(name) else { panic!("{name}: no such file to corrupt") };
        state.change(id).0.flip(offset, bits);
    }

    /// Names of now, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.state().directory.names()
    }

    /// What a file reads as now.
    #[must_use]
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        let inode = state.inode(state.directory.get(name)?);
        let mut bytes = vec![0; inode.len() as usize];
        inode.read(0, &mut bytes);
        Some(bytes)
    }

    /// What is certain of a file's content if its name survives.
    #[must_use]
    pub fn durable_contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        let inode = state.inode(state.directory.get(name)?).durable_only();
        let mut bytes = vec![0; inode.len() as usize];
        inode.read(0, &mut bytes);
        Some(bytes)
    }

    /// Puts a durable file there, replacing what was, with no operation counted: for arbitrary and damaged inputs.
    pub fn put(&self, name: &str, contents: &[u8]) {
        let mut state = self.state();
        let id = state.create(name);
        let (inode, seq) = state.change(id);
        inode.write(seq, 0, contents);
        inode.sync(seq);
        state.directory.sync();
        state.collect();
    }

    /// The virtual time.
    #[must_use]
    pub fn tick(&self) -> u64 {
        self.state().tick
    }

    /// Moves the virtual time forward.
    pub fn advance_to(&self, tick: u64) {
        let mut state = self.state();
        state.tick = state.tick.max(tick);
    }

    /// When the next kicked operation completes.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        self.state().next_due(None)
    }
}
