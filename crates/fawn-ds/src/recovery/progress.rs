//! Progress of openings: counters that other threads read.
use std::sync::atomic::{AtomicU64, Ordering};

/// How much of the files an opening has to read, and has read. One may count several openings together.
#[derive(Debug, Default)]
pub struct OpenProgress {
    planned_bytes: AtomicU64,
    read_bytes: AtomicU64,
}

impl OpenProgress {
    /// Bytes of the log and of the checkpoints that the openings begun so far read.
    pub fn planned_bytes(&self) -> u64 {
        self.planned_bytes.load(Ordering::Relaxed)
    }

    /// Bytes read of them.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn plan(&self, bytes: u64) {
        self.planned_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn add(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
