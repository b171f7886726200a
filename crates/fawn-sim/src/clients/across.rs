//! Rules across keys: an `MSET` takes effect whole, and `DBSIZE` counts each key that is present throughout.
use super::{Clients, Key};
use crate::history::{HistoryOperation, KeyRequest, Observed};
use std::collections::BTreeMap;

/// A reply to `DBSIZE`.
#[derive(Clone, Copy, Debug)]
pub(super) struct SizeReply {
    pub called_at: u64,
    pub replied_at: u64,
    pub size: u64,
}

impl Clients {
    /// The moment by which each `MSET` has taken effect: the first reply that returned one of its values.
    ///
    /// An `MSET` is one batch of the log, so all its keys change at once. A value that was read therefore bounds the
    /// writes of the other keys too, even if the `MSET` itself had no reply.
    pub(super) fn batches_seen(&self) -> BTreeMap<u64, u64> {
        let mut batches = BTreeMap::new();
        let operations = || self.histories.values().flatten();
        for operation in operations().filter(|operation| operation.batch > 0) {
            if let KeyRequest::Write(value) = &operation.request {
                batches.insert(token_of(value), operation.batch);
            }
        }
        let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
        for operation in operations() {
            let Observed::Value(Some(value)) = &operation.observed else { continue };
            if let Some(batch) = batches.get(token_of(value)) {
                let moment = seen.entry(*batch).or_insert(u64::MAX);
                *moment = (*moment).min(operation.replied_at);
            }
        }
        seen
    }

    /// Checks that every `DBSIZE` counted at least the keys that were present from its call to its reply.
    ///
    /// # Errors
    /// If a `DBSIZE` counted fewer keys.
    pub fn check_sizes(&self) -> Result<(), String> {
        let histories: Vec<(Key, Vec<HistoryOperation>)> = self.histories().collect();
        for SizeReply { called_at, replied_at, size } in &self.sizes {
            let is_present = |history: &[HistoryOperation]| {
                // A key that was ever given an expiry before the reply is left out: when it expired is unknown.
                let removed = |op: &HistoryOperation| match &op.request {
                    KeyRequest::Delete => op.replied_at,
                    request if request.lets_expire() => u64::MAX,
                    _ => 0,
                };
                let before = history.iter().filter(|op| op.called_at < *replied_at);
                let removed = before.map(removed).max().unwrap_or_default();
                history.iter().any(|op| op.shows_key() && op.called_at > removed && op.replied_at < *called_at)
            };
            let present = histories.iter().filter(|(_, history)| is_present(history)).map(|(key, _)| key);
            let present: Vec<&Key> = present.collect();
            if present.len() as u64 > *size {
                return Err(format!(
                    "DBSIZE counts {size} keys in [{called_at}, {replied_at}], but {present:?} are present"
                ));
            }
        }
        Ok(())
    }
}

/// The token `<number>` with which a written value begins. It identifies the write; later appends add more tokens.
fn token_of(value: &[u8]) -> &[u8] {
    let end = value.iter().position(|byte| *byte == b'>').map_or(value.len(), |at| at + 1);
    &value[..end]
}
