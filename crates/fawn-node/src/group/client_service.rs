//! Interface between the event loop and the service behind its clients, a group of shards; tests script it.
use crate::forward::MessageBatch;
use crate::request::SessionId;
use crate::{ShardOutput, ShardStatus};
use fawn_ds::internals::Engine;
use fawn_flash::Device;
use fawn_types::{MonoMs, Now, ShardId};
use fawn_wire::Protocol;

/// Serves clients. Per iteration: `handle_input` for every connection with input, `run_once` once, then
/// `poll_output` until `None`.
pub trait ClientService {
    /// Device of its stores.
    type Device: Device;

    /// Opens a session.
    fn open_session(&mut self, protocol: Protocol) -> SessionId;
    /// Counts a client beyond the host's limit, for the statistics.
    fn refuse_session(&mut self);
    /// Ends a session: its pending requests may still be executed, without a reply.
    fn close_session(&mut self, session: SessionId);
    /// The client sends no more: pending replies are finished, then [`ShardOutput::Close`] follows.
    fn end_input(&mut self, session: SessionId);
    /// Executes the complete commands at the start of `input`; returns the number of consumed bytes.
    fn handle_input(&mut self, now: Now, session: SessionId, input: &[u8]) -> usize;
    /// Like `handle_input` for each, with consumed bytes in `used`. The first requests of all are prefetched together.
    fn handle_inputs(&mut self, now: Now, inputs: &[(SessionId, &[u8])], used: &mut [usize]);
    /// Whether the session accepts input; if not, [`ShardOutput::Resume`] or [`ShardOutput::Close`] will follow.
    fn wants_input(&self, session: SessionId) -> bool;
    /// Length that the input must reach, from its first unconsumed byte, before it is worth offering again.
    fn need_bytes(&self, session: SessionId) -> usize;
    /// Bytes for the client, in order.
    fn output(&self, session: SessionId) -> &[u8];
    /// The host wrote this many bytes of `output`.
    fn wrote(&mut self, session: SessionId, bytes: usize);
    /// One iteration; returns when the next is due without an event. A time not after `now` means at once.
    fn run_once(&mut self, now: Now) -> Option<MonoMs>;
    /// Whether calls since the last iteration let a session continue: the next iteration is due at once.
    fn has_due_work(&self) -> bool;
    /// The next effect for the host.
    fn poll_output(&mut self) -> Option<ShardOutput>;
    /// Whether nothing is in flight.
    fn is_idle(&self) -> bool;
    /// Counters and gauges; sums over several stores.
    fn status(&self) -> ShardStatus;
    /// Receives a batch from another shard of the node.
    fn handle_batch(&mut self, now: Now, from: ShardId, batch: MessageBatch);
    /// The batch for that shard, if there is one. Called after each iteration while the queue has space.
    fn take_batch(&mut self, to: ShardId) -> Option<MessageBatch>;
    /// Sum of the other shards' counters, a moment old.
    fn set_peer_stats(&mut self, others: ShardStatus);
    /// Its stores, for hosts that poll their devices.
    fn engines(&self) -> impl Iterator<Item = &Engine<Self::Device>>;
}
