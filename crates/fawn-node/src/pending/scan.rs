//! A `SCAN` step that waits for a device read.
use crate::SessionId;
use fawn_ds::internals::Scan;

/// A step in flight.
#[derive(Debug)]
pub(crate) struct ScanOp {
    pub(crate) session: SessionId,
    /// Its slot among the session's replies.
    pub(crate) slot: u64,
    pub(crate) scan: Scan,
    pub(crate) wording: ScanReplyFormat,
}

/// Format of a scan's keys.
#[derive(Debug)]
pub(crate) enum ScanReplyFormat {
    /// For a client: matching keys.
    Resp {
        pattern: Option<Vec<u8>>,
        /// Whether its `TYPE` includes strings, the only type.
        wants_strings: bool,
    },
    /// For another shard: all keys.
    Page,
}
