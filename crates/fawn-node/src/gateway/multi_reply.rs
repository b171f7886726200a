//! Requests on several keys: replies gathered in the order of the keys, in whatever order they arrive.
use crate::request::{LargerItem, SessionId};
use fawn_types::{Entry, EntryRef, OperationError, Reply, Version};
use fawn_wire::{MultiReplyEncoder, ReplyFold};
use std::collections::VecDeque;

/// A reply that outlives the lookup: kept for an item until the items before it are known.
#[derive(Debug)]
pub(crate) enum StoredReply {
    Value(Entry),
    Plain(Reply<'static>),
}

impl StoredReply {
    /// Copies `reply`; without the value where only its presence counts.
    fn of(reply: &Reply<'_>, fold: ReplyFold) -> Self {
        match *reply {
            Reply::Value(entry) if matches!(fold, ReplyFold::Each(_)) => Self::Value(entry.to_owned()),
            Reply::Value(entry) => {
                let EntryRef { flags, expires_at_ms, version, .. } = entry;
                Self::Plain(Reply::Value(EntryRef { value: &[], flags, expires_at_ms, version }))
            }
            Reply::Absent => Self::Plain(Reply::Absent),
            Reply::Stored { version, value_bytes } => Self::Plain(Reply::Stored { version, value_bytes }),
            Reply::NotStored => Self::Plain(Reply::NotStored),
            Reply::VersionMismatch => Self::Plain(Reply::VersionMismatch),
            Reply::NotFound => Self::Plain(Reply::NotFound),
            Reply::Deleted => Self::Plain(Reply::Deleted),
            Reply::Touched => Self::Plain(Reply::Touched),
            Reply::NotTouched => Self::Plain(Reply::NotTouched),
            Reply::Signed(value) => Self::Plain(Reply::Signed(value)),
            Reply::Unsigned(value) => Self::Plain(Reply::Unsigned(value)),
            Reply::Error(error) => Self::Plain(Reply::Error(error)),
            // No request on several keys returns previous values.
            Reply::Previous { .. } => Self::Plain(Reply::Error(OperationError::Unavailable)),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Value(entry) => entry.value.len(),
            Self::Plain(_) => 0,
        }
    }

    fn as_reply(&self) -> Reply<'_> {
        match self {
            Self::Value(entry) => Reply::Value(entry.as_ref()),
            Self::Plain(reply) => *reply,
        }
    }
}

/// An item whose reply is not yet in the bytes.
#[derive(Debug)]
pub(crate) struct MultiItem {
    key: Box<[u8]>,
    reply: Option<StoredReply>,
}

/// The replies so far, in the order of the keys.
#[derive(Debug)]
pub(crate) struct MultiReply {
    gather: MultiReplyEncoder,
    pub(crate) bytes: Vec<u8>,
    /// The newest version that any reply depends on.
    pub(crate) wait: Option<Version>,
    /// Items from the first unknown one on.
    items: VecDeque<MultiItem>,
    /// Number of the first of `items`.
    first: u32,
    stored_bytes: usize,
    bytes_max: usize,
    is_too_long: bool,
}

impl MultiReply {
    /// `bytes` is an empty buffer to use.
    pub(crate) fn new(gather: MultiReplyEncoder, mut bytes: Vec<u8>, bytes_max: usize) -> Self {
        bytes.clear();
        gather.begin(&mut bytes);
        let items = VecDeque::new();
        Self { gather, bytes, wait: None, items, first: 0, stored_bytes: 0, bytes_max, is_too_long: false }
    }

    /// Adds the reply to the next key.
    pub(crate) fn push(&mut self, key: &[u8], reply: &Reply<'_>, wait: Option<Version>) {
        self.wait = self.wait.max(wait);
        if self.items.is_empty() {
            self.first += 1;
            return self.add(key, reply);
        }
        let reply = self.keep(reply);
        self.items.push_back(MultiItem { key: key.into(), reply: Some(reply) });
    }

    /// Bytes of the replies so far.
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.len() + self.stored_bytes
    }

    /// Reserves an item for the next key; returns its number.
    pub(crate) fn push_unknown(&mut self, key: &[u8]) -> u32 {
        self.items.push_back(MultiItem { key: key.into(), reply: None });
        self.first + self.items.len() as u32 - 1
    }

    /// Fills a reserved item.
    pub(crate) fn complete(&mut self, item: u32, reply: &Reply<'_>, wait: Option<Version>) {
        self.wait = self.wait.max(wait);
        let owned = self.keep(reply);
        let at = (item - self.first) as usize;
        assert!(self.items[at].reply.is_none(), "item {item} completes once");
        self.items[at].reply = Some(owned);
        while let Some(MultiItem { key, reply: Some(owned) }) = self.items.pop_front_if(|item| item.reply.is_some()) {
            self.first += 1;
            self.stored_bytes -= owned.bytes();
            self.add(&key, &owned.as_reply());
        }
    }

    /// A value does not fit: the reply becomes an error.
    pub(crate) const fn set_too_long(&mut self) {
        self.is_too_long = true;
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.items.is_empty()
    }

    fn keep(&mut self, reply: &Reply<'_>) -> StoredReply {
        let mut owned = StoredReply::of(reply, self.gather.fold);
        if self.bytes.len() + self.stored_bytes + owned.bytes() > self.bytes_max {
            self.is_too_long = true;
            owned = StoredReply::Plain(Reply::Absent);
        }
        self.stored_bytes += owned.bytes();
        owned
    }

    fn add(&mut self, key: &[u8], reply: &Reply<'_>) {
        self.is_too_long |= self.bytes.len() > self.bytes_max;
        if !self.is_too_long {
            self.gather.add(key, reply, &mut self.bytes);
        }
    }

    /// Finishes the reply.
    pub(crate) fn finish(&mut self) {
        assert!(self.is_complete(), "{} items are not known yet", self.items.len());
        if !self.is_too_long {
            return self.gather.finish(&mut self.bytes);
        }
        self.bytes.clear();
        let code = match self.gather.fold {
            ReplyFold::Each(fawn_wire::ReplyFormat::Memcached(_)) => "SERVER_ERROR",
            _ => "-ERR",
        };
        let text = format!("{code} reply longer than {} bytes; ask for fewer keys at once\r\n", self.bytes_max);
        self.bytes.extend_from_slice(text.as_bytes());
    }
}

/// A request on several keys of which some wait.
#[derive(Debug)]
pub(crate) struct PendingMulti {
    pub(crate) session: SessionId,
    /// Its slot among the session's replies.
    pub(crate) slot: u64,
    /// `None` only while the request is being executed.
    pub(crate) multi_reply: Option<MultiReply>,
    /// Grants of items at other shards.
    pub(crate) outstanding_bytes: usize,
    /// Items that came back from other shards for a larger grant.
    pub(crate) larger: VecDeque<LargerItem>,
}

impl PendingMulti {
    /// Placeholder until the replies so far are moved in.
    pub(crate) fn unfilled() -> Self {
        let (session, slot, larger) = (SessionId::NOBODY, u64::MAX, VecDeque::new());
        Self { session, slot, multi_reply: None, outstanding_bytes: 0, larger }
    }
}
