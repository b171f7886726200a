//! Message batch between two shards.
use fawn_types::Reply;
use fawn_wire::internal::{
    Message, RequestBody, RequestFields, put_larger_message, put_notice, put_reply_message, put_request_message,
};

/// Messages from one shard to another, in order. Only these two shards interpret it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MessageBatch {
    bytes: Vec<u8>,
}

impl MessageBatch {
    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Empties the batch, keeping its memory.
    pub(crate) fn emptied(mut self) -> Self {
        self.bytes.clear();
        self
    }

    /// Bytes of its memory.
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Adds a request; returns its length.
    #[inline]
    pub(crate) fn add_request(&mut self, fields: &RequestFields, body: &RequestBody<'_>) -> usize {
        let before = self.bytes.len();
        put_request_message(fields, |out| body.put(out), &mut self.bytes);
        self.bytes.len() - before
    }

    #[inline]
    pub(crate) fn add_reply(&mut self, op: u64, reply: &Reply<'_>) {
        put_reply_message(op, reply, &mut self.bytes);
    }

    /// Adds a reply that is already encoded as a message.
    pub(crate) fn add_encoded(&mut self, message: &[u8]) {
        self.bytes.extend_from_slice(message);
    }

    pub(crate) fn add_larger(&mut self, op: u64, bytes: usize, body: &RequestBody<'_>) {
        put_larger_message(op, u32::try_from(bytes).unwrap_or(u32::MAX), body, &mut self.bytes);
    }

    pub(crate) fn add_notice(&mut self, notice: Message<'_>) {
        put_notice(notice, &mut self.bytes);
    }

    /// Its messages, in order.
    #[inline]
    pub(crate) fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        let mut rest = self.bytes.as_slice();
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let Ok((message, after)) = Message::read(rest) else {
                unreachable!("a shard of this process encoded the batch")
            };
            rest = after;
            Some(message)
        })
    }
}
