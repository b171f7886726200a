//! Message batch between two shards.
use fawn_wire::internal::Message;

/// Messages from one shard to another, in order. Only these two shards interpret it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MessageBatch {
    pub(super) bytes: Vec<u8>,
}

impl MessageBatch {
    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
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
