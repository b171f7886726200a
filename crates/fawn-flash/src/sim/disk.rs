//! Owns the test's hand on the simulated medium: crashes, crash images, faults, corruption, space and time.
use super::faults::{Fault, OpKind};
use super::state::DiskState;
use super::{Capture, Image, Loss, SimOptions};
use fawn_types::random::SplitMix64;
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

    /// Forgets the faults ordered and not yet met.
    pub fn clear_faults(&self) {
        self.state().faults.clear();
    }

    /// Bounds the medium; `None` for plenty. Raising it is how space comes back.
    pub fn set_capacity_bytes(&self, capacity: Option<u64>) {
        self.state().capacity_bytes = capacity;
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
