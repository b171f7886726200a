//! Requests on several keys: replies gathered in the order of the keys, in whatever order they arrive.
use crate::request::{LargerItem, OutstandingOp, ReplyPlace, ReplyTarget, RequestBody, SessionId, StoredRequest};
use fawn_types::{OperationError, Reply, Version};
use fawn_wire::internal::EncodedReply;
use fawn_wire::{EachKey, MultiReplyEncoder, ReplyFold, ReplyFormat};
use std::collections::VecDeque;

/// An item whose reply is not yet in the bytes.
#[derive(Debug)]
pub(crate) struct MultiItem {
    key: Box<[u8]>,
    reply: Option<EncodedReply>,
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
    /// Number of the last items whose requests have not begun.
    unstarted: usize,
    stored_bytes: usize,
    bytes_max: usize,
    is_too_long: bool,
    /// Whether the finished reply has an error, but does not begin with it.
    pub(crate) has_inner_error: bool,
}

impl MultiReply {
    /// `bytes` is an empty buffer to use.
    pub(crate) fn new(gather: MultiReplyEncoder, mut bytes: Vec<u8>, bytes_max: usize) -> Self {
        bytes.clear();
        gather.begin(&mut bytes);
        let (wait, items, is_too_long) = (None, VecDeque::new(), false);
        let (first, unstarted, stored_bytes, has_inner_error) = (0, 0, 0, false);
        Self { gather, bytes, wait, items, first, unstarted, stored_bytes, bytes_max, is_too_long, has_inner_error }
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

    /// Adds the next key, whose request begins later. All further keys must follow this way.
    pub(crate) fn push_unstarted(&mut self, key: &[u8]) {
        self.push_unknown(key);
        self.unstarted += 1;
    }

    pub(crate) const fn has_unstarted(&self) -> bool {
        self.unstarted > 0
    }

    /// Takes the first item whose request has not begun: its number and its key.
    pub(crate) fn start_next(&mut self) -> Option<(u32, &[u8])> {
        let at = self.items.len() - self.unstarted;
        let item = self.items.get(at)?;
        self.unstarted -= 1;
        Some((self.first + at as u32, &item.key))
    }

    /// Memory of the keys that it waits for.
    pub(crate) fn keys_bytes(&self) -> usize {
        self.items.iter().map(|item| size_of::<MultiItem>() + item.key.len()).sum()
    }

    /// Fills a reserved item.
    pub(crate) fn complete(&mut self, item: u32, reply: &Reply<'_>) {
        let owned = self.keep(reply);
        let at = (item - self.first) as usize;
        assert!(self.items[at].reply.is_none(), "item {item} completes once");
        self.items[at].reply = Some(owned);
        while let Some(MultiItem { key, reply: Some(owned) }) = self.items.pop_front_if(|item| item.reply.is_some()) {
            self.first += 1;
            let reply = owned.as_reply();
            self.stored_bytes -= value_bytes(&reply);
            self.add(&key, &reply);
        }
    }

    /// A value does not fit: the reply becomes an error.
    pub(crate) const fn set_too_long(&mut self) {
        self.is_too_long = true;
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.items.is_empty()
    }

    /// Keeps a reply until the ones before it are known.
    fn keep(&mut self, reply: &Reply<'_>) -> EncodedReply {
        let mut reply = *reply;
        if let Reply::Value(entry) = &mut reply
            && !matches!(self.gather.fold, ReplyFold::Each(_))
        {
            // Only its presence counts.
            entry.value = &[];
        }
        if self.held_bytes() + value_bytes(&reply) > self.bytes_max {
            self.is_too_long = true;
            reply = Reply::Absent;
        }
        self.stored_bytes += value_bytes(&reply);
        EncodedReply::of(&reply)
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
            self.has_inner_error = self.gather.has_failed() && !self.bytes.is_empty();
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

const fn value_bytes(reply: &Reply<'_>) -> usize {
    match reply {
        Reply::Value(entry) => entry.value.len(),
        _ => 0,
    }
}

/// A request on several keys. It enters its table once all keys have a reply or an item, if some wait.
#[derive(Debug)]
pub(crate) struct PendingMulti {
    pub(crate) session: SessionId,
    /// Its slot among the session's replies.
    pub(crate) slot: u64,
    pub(crate) multi_reply: MultiReply,
    each: EachKey,
    /// First grant of each value that is not known at once.
    pub(crate) item_bytes: usize,
    /// Items with an outstanding operation.
    pub(crate) outstanding: usize,
    /// Their grants.
    pub(crate) outstanding_bytes: usize,
    /// Items that wait for a grant: they came back for a larger one, or have not begun.
    pub(crate) larger: VecDeque<LargerItem>,
    /// The first of these is queued for its grant.
    pub(crate) waits_for_grant: bool,
    /// Memory of its keys.
    pub(crate) keys_bytes: usize,
    /// An item had no reply in time: those that have not begun fail with it. Each further bound of items could wait as
    /// long.
    pub(crate) failed: Option<OperationError>,
}

impl PendingMulti {
    pub(crate) fn new(session: SessionId, multi_reply: MultiReply, each: EachKey, item_bytes: usize) -> Self {
        Self {
            session,
            slot: u64::MAX,
            multi_reply,
            each,
            item_bytes,
            outstanding: 0,
            outstanding_bytes: 0,
            larger: VecDeque::new(),
            waits_for_grant: false,
            keys_bytes: 0,
            failed: None,
        }
    }

    /// Reserves an item for the next key, whose operation begins. `multi`: the place that the request will have in its
    /// table, which the operation refers to.
    pub(crate) fn reserve_item(&mut self, multi: usize, key: &[u8], grant_bytes: usize) -> ReplyTarget {
        (self.outstanding, self.outstanding_bytes) = (self.outstanding + 1, self.outstanding_bytes + grant_bytes);
        let place = ReplyPlace::Item { multi, item: self.multi_reply.push_unknown(key) };
        ReplyTarget { session: self.session, place, format: ReplyFormat::Silent }
    }

    /// The operation of an item has ended.
    pub(crate) const fn note_end(&mut self, op: &OutstandingOp) {
        self.outstanding -= 1;
        self.outstanding_bytes -= op.grant_bytes;
    }

    /// Takes the first item that has not begun, with its request.
    pub(crate) fn start_next(&mut self) -> Option<(u32, StoredRequest)> {
        let (item, key) = self.multi_reply.start_next()?;
        Some((item, StoredRequest::new(&RequestBody::Key(self.each.request(key)))))
    }
}
