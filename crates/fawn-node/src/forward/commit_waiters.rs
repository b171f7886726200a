//! Replies to other shards that wait for a commit.
use super::MessageBatch;
use crate::gateway::OutBuf;
use crate::request::ShardOpId;
use fawn_types::{OperationError, Reply, ShardId, Version};
use fawn_wire::internal::put_reply_message;
use std::collections::VecDeque;

/// A reply, encoded in the next bytes.
#[derive(Clone, Copy, Debug)]
struct CommitWaiter {
    version: Version,
    shard: ShardId,
    op: ShardOpId,
    len_bytes: usize,
}

/// Encoded replies in order of arrival. A reply that depends on an older version than the one before it is sent with
/// that one.
#[derive(Debug, Default)]
pub(crate) struct CommitWaiters {
    waiting: VecDeque<CommitWaiter>,
    bytes: OutBuf,
}

/// Memory that an idle queue keeps.
const KEPT_BYTES: usize = 64 << 10;

impl CommitWaiters {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    #[inline]
    pub(crate) fn push(&mut self, (shard, op): (ShardId, ShardOpId), reply: &Reply<'_>, version: Version) {
        let before = self.bytes.bytes.len();
        put_reply_message(op.0, reply, &mut self.bytes.bytes);
        let len_bytes = self.bytes.bytes.len() - before;
        self.waiting.push_back(CommitWaiter { version, shard, op, len_bytes });
    }

    /// Sends the replies whose versions are committed. With `failed`, uncommitted writes never commit: their replies
    /// become that error.
    pub(super) fn settle(&mut self, committed: Version, failed: Option<OperationError>, outbox: &mut [MessageBatch]) {
        let is_due = |waiter: &mut CommitWaiter| waiter.version <= committed || failed.is_some();
        while let Some(CommitWaiter { version, shard, op, len_bytes }) = self.waiting.pop_front_if(is_due) {
            let out = &mut outbox[usize::from(shard.0)].bytes;
            match failed.filter(|_| version > committed) {
                None => out.extend_from_slice(&self.bytes.as_slice()[..len_bytes]),
                Some(failure) => put_reply_message(op.0, &Reply::Error(failure), out),
            }
            self.bytes.consume(len_bytes);
        }
        if self.waiting.is_empty() && self.bytes.bytes.capacity() > KEPT_BYTES {
            self.bytes.bytes = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fawn_wire::internal::Message;

    #[test]
    fn a_failure_changes_no_reply_to_a_committed_write() {
        let (first, to) = (Version::ZERO.next(), |op| (ShardId(0), ShardOpId(op)));
        let Some((first, second)) = first.and_then(|first| Some((first, first.next()?))) else { unreachable!() };
        let mut waiters = CommitWaiters::default();
        waiters.push(to(1), &Reply::Deleted, first);
        waiters.push(to(2), &Reply::Deleted, second);
        let mut outbox = [MessageBatch::default()];
        waiters.settle(first, Some(OperationError::Poisoned), &mut outbox);
        let is_failed = |message| match message {
            Message::Reply { op, reply } => (op, matches!(reply, Reply::Error(OperationError::Poisoned))),
            other => unreachable!("{other:?}"),
        };
        assert_eq!(outbox[0].messages().map(is_failed).collect::<Vec<_>>(), [(1, false), (2, true)]);
    }
}
