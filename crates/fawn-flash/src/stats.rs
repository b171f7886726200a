//! I/O accounting: requests and bytes read, written and synced, per `IoClass`.
use crate::IoClass;
use crate::request::{IoRequest, Work};

/// Counters of one cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoClassStats {
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Syncs of files and of the directory; a durable write counts as one too.
    pub syncs: u64,
}

/// Counters of a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IoStats {
    by_cause: [IoClassStats; IoClass::ALL.len()],
    /// System calls to submit and reap.
    pub system_calls: u64,
}

impl IoStats {
    /// The counters of `class`.
    #[must_use]
    pub fn of(&self, class: IoClass) -> &IoClassStats {
        &self.by_cause[class as usize]
    }

    /// Counts a request and the bytes it is to move.
    pub(crate) fn count(&mut self, request: &IoRequest) {
        let (stats, bytes) = (&mut self.by_cause[request.class as usize], request.len_bytes as u64);
        match request.work {
            Work::Read => {
                stats.reads += 1;
                stats.read_bytes += bytes;
            }
            Work::Write { durable } => {
                stats.writes += 1;
                stats.written_bytes += bytes;
                stats.syncs += u64::from(durable);
            }
            Work::Sync | Work::SyncDir => stats.syncs += 1,
        }
    }

    pub(crate) fn count_sync(&mut self, class: IoClass) {
        self.by_cause[class as usize].syncs += 1;
    }

    /// Adds another device's counters.
    pub fn add(&mut self, other: &Self) {
        for (sum, stats) in self.by_cause.iter_mut().zip(&other.by_cause) {
            sum.reads += stats.reads;
            sum.read_bytes += stats.read_bytes;
            sum.writes += stats.writes;
            sum.written_bytes += stats.written_bytes;
            sum.syncs += stats.syncs;
        }
        self.system_calls += other.system_calls;
    }

    /// The sum over all causes.
    #[must_use]
    pub fn total(&self) -> IoClassStats {
        self.by_cause.iter().fold(IoClassStats::default(), |sum, class| IoClassStats {
            reads: sum.reads + class.reads,
            read_bytes: sum.read_bytes + class.read_bytes,
            writes: sum.writes + class.writes,
            written_bytes: sum.written_bytes + class.written_bytes,
            syncs: sum.syncs + class.syncs,
        })
    }
}
