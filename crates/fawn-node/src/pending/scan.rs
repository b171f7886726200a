//! Owns a `SCAN` that waits for a device read.
use crate::SessionId;
use fawn_ds::internals::Scan;

/// A step under way.
#[derive(Debug)]
pub(crate) struct ScanOp {
    pub(crate) session: SessionId,
    /// Its place among the session's replies.
    pub(crate) slot: u64,
    pub(crate) scan: Scan,
    pub(crate) wording: ScanWording,
}

/// How a scan's keys are told.
#[derive(Debug)]
pub(crate) enum ScanWording {
    /// To a client, those that it wants.
    Resp {
        pattern: Option<Vec<u8>>,
        /// Whether its `TYPE` lets strings through, which is all that there is.
        wants_strings: bool,
    },
    /// To another shard, all.
    Page,
}
