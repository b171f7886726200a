//! Owns the simulated device: deterministic, its live bytes kept apart from its durable ones, with every fault that the
//! design names (storage.md, the boundary).
//!
//! A [`SimDisk`] is the medium and the test's hand on it; a [`SimDevice`] is a process's use of it. Crash semantics:
//!
//! - a file's unsynced sectors survive each on its own, in the newest or an older version; so does its length;
//! - an unsynced create, rename, link or unlink survives on its own, each atomically;
//! - a write in flight may have arrived in any of its sectors, a sync in flight may have happened;
//! - a failed sync marks its pages clean: they read as before and no later sync makes them durable.
//!
//! Faults are ordered on the disk: for the n-th operation of a kind ([`SimDisk::fail_nth`]), for all of a kind until
//! told otherwise ([`SimDisk::fail_every`], [`SimDisk::hang`]), for a place ([`SimDisk::make_unreadable`]) or for the
//! space ([`SimDisk::set_full`], [`SimDisk::set_capacity_bytes`]). Orders stay through a crash and are in no image;
//! unreadable places and the lack of space are the medium's own and are in both.
mod device;
mod directory;
mod disk;
mod extents;
mod faults;
mod inode;
mod queue;
mod state;

pub use device::SimDevice;
pub use disk::SimDisk;
pub use faults::{Fault, OpKind};

use std::ops::RangeInclusive;

/// What the simulated directory calls itself in errors.
pub(crate) const DIR: &str = "the simulated disk";

/// How the simulated medium behaves.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Decides every choice.
    pub seed: u64,
    /// Completions that fall due together come in any order.
    pub shuffle: bool,
    /// Ticks from kick to completion.
    pub latency_ticks: RangeInclusive<u64>,
    /// Ticks that pass with each reap; 0 leaves the time to [`SimDisk::advance_to`]. A wait always makes progress.
    pub ticks_per_reap: u64,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self { seed: 0, shuffle: true, latency_ticks: 0..=3, ticks_per_reap: 1 }
    }
}

impl SimOptions {
    /// Every operation completes at the first reap after its kick, in order.
    #[must_use]
    pub const fn instant(seed: u64) -> Self {
        Self { seed, shuffle: false, latency_ticks: 0..=0, ticks_per_reap: 1 }
    }
}

/// What is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// Power: whatever was not synced may be gone.
    Power,
    /// The process: what completed stays.
    Process,
}

/// Which operations leave an image of the medium after a loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Capture {
    /// None.
    Never,
    /// Every `stride`-th.
    Every {
        /// 1 for every operation.
        stride: u64,
        /// What is lost.
        loss: Loss,
        /// Decides what survives, together with the operation's number.
        seed: u64,
    },
    /// The one with this number, counted from the medium's birth.
    At {
        /// Its number.
        op: u64,
        /// What is lost.
        loss: Loss,
        /// Decides what survives, together with the operation's number.
        seed: u64,
    },
}

/// The medium as found after a loss right after operation `op`.
#[derive(Clone, Debug)]
pub struct Image {
    /// Number of the operation.
    pub op: u64,
    /// A medium of its own.
    pub disk: SimDisk,
}
