//! Simulated device: deterministic, with separate live and durable bytes, and every fault in the design. The design is
//! storage.md, in the section about the storage boundary.
//!
//! A [`SimDisk`] is the disk and the test's control of it; a [`SimDevice`] is a process's access to it. Crash
//! semantics:
//!
//! - a file's unsynced sectors survive independently, each in the newest or an older version; so does its length;
//! - an unsynced create, rename, exchange, link or unlink survives independently, each atomically;
//! - a write in flight may have arrived in any of its sectors; a sync in flight may have taken effect;
//! - a failed sync marks its pages clean: they read as before and no later sync makes them durable.
//!
//! Faults are ordered on the disk: for the n-th operation of a kind ([`SimDisk::fail_nth`]), for all operations of a
//! kind ([`SimDisk::fail_every`], [`SimDisk::hang`]), for a place ([`SimDisk::make_unreadable`]) or for the space
//! ([`SimDisk::set_full`], [`SimDisk::set_capacity_bytes`]). Orders survive a crash but are not part of images.
//! Unreadable places and the lack of space belong to the disk and are kept in both cases.
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
pub use faults::{DeviceFault, OpKind};

use std::ops::RangeInclusive;

/// The name of the simulated directory in errors.
pub(crate) const DIR: &str = "the simulated disk";

/// Behaviour of the simulated disk.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Seed of all random choices.
    pub seed: u64,
    /// Whether completions that are due at the same time arrive in random order.
    pub shuffle: bool,
    /// Ticks from kick to completion.
    pub latency_ticks: RangeInclusive<u64>,
    /// Ticks added by each reap; 0 leaves the time to [`SimDisk::advance_to`]. A wait always makes progress.
    pub ticks_per_reap: u64,
    /// Whether a wait blocks its thread while everything in flight hangs, as it does with a real disk. Otherwise it returns.
    pub blocking_waits: bool,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self { seed: 0, shuffle: true, latency_ticks: 0..=3, ticks_per_reap: 1, blocking_waits: false }
    }
}

impl SimOptions {
    /// Options by which every operation completes at the first reap after its kick, in order.
    #[must_use]
    pub const fn instant(seed: u64) -> Self {
        Self { seed, shuffle: false, latency_ticks: 0..=0, ticks_per_reap: 1, blocking_waits: false }
    }
}

/// The kind of failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// Power loss: unsynced data may be lost.
    Power,
    /// A killed process: completed operations stay.
    Process,
}

/// The operations after which an image of the disk is taken, as left by a loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Capture {
    /// No images.
    Never,
    /// Every `stride`-th operation.
    Every {
        /// 1 for every operation.
        stride: u64,
        /// The kind of failure.
        loss: Loss,
        /// Determines the surviving data, together with the operation's number.
        seed: u64,
    },
    /// The operation with this number, counted from the creation of the disk.
    At {
        /// Its number.
        op: u64,
        /// The kind of failure.
        loss: Loss,
        /// Determines the surviving data, together with the operation's number.
        seed: u64,
    },
}

/// The disk as found after a loss directly after operation `op`.
#[derive(Clone, Debug)]
pub struct Image {
    /// Number of the operation.
    pub op: u64,
    /// A separate disk.
    pub disk: SimDisk,
}
