//! Owns the interface between a server's loop and whatever serves its clients: one shard's store, or a cluster.
use crate::{Letter, Output, SessionId, Shard, ShardStatus};
use fawn_ds::internals::Engine;
use fawn_flash::Device;
use fawn_types::{MonoMs, Now, ShardId};
use fawn_wire::Protocol;

/// Serves clients. Order of a turn: `handle_input` for every connection that has bytes, `turn` once, then
/// `poll_output` until `None`.
pub trait ClientHost {
    /// What its stores lie on.
    type Device: Device;

    /// A new connection.
    fn open_session(&mut self, protocol: Protocol) -> SessionId;
    /// The connection is gone: what it asked may still be done, nobody hears of it.
    fn close_session(&mut self, session: SessionId);
    /// The client sends no more: its replies are finished, then comes [`Output::Close`].
    fn end_input(&mut self, session: SessionId);
    /// Executes the whole commands at the start of `input`; returns how many bytes it consumed.
    fn handle_input(&mut self, now: Now, session: SessionId, input: &[u8]) -> usize;
    /// As `handle_input` of each, whose consumption is noted in `used`; a host that gains by seeing them together does.
    fn handle_inputs(&mut self, now: Now, inputs: &[(SessionId, &[u8])], used: &mut [usize]) {
        assert_eq!(inputs.len(), used.len(), "each input's consumption is noted");
        for (used, (session, input)) in used.iter_mut().zip(inputs) {
            *used = self.handle_input(now, *session, input);
        }
    }
    /// Whether the session takes input now; if not, [`Output::Resume`] or [`Output::Close`] will follow.
    fn wants_input(&self, session: SessionId) -> bool;
    /// How long the input must be, from its first unconsumed byte, before it is worth offering again.
    fn need_bytes(&self, session: SessionId) -> usize;
    /// Bytes for the client, in order.
    fn output(&self, session: SessionId) -> &[u8];
    /// The host wrote that many bytes of `output`.
    fn wrote(&mut self, session: SessionId, bytes: usize);
    /// One turn; returns when the next is due though nothing happens until then. A time not after `now`: at once.
    fn turn(&mut self, now: Now) -> Option<MonoMs>;
    /// Whether what the host did since the last turn lets somebody go on: the next turn is due at once.
    fn wants_turn(&self) -> bool;
    /// The next effect for the host.
    fn poll_output(&mut self) -> Option<Output>;
    /// Whether nothing is under way.
    fn is_idle(&self) -> bool;
    /// Counters and gauges; of several stores their sums.
    fn status(&self) -> ShardStatus;
    /// What another shard of the node hands over.
    fn handle_letter(&mut self, _now: Now, from: ShardId, letter: Letter) {
        unreachable!("{} bytes from {from:?} to a host that is alone", letter.bytes())
    }
    /// What is to be handed to that shard, if anything. Asked after each turn, while there is room on the way.
    fn take_letter(&mut self, _to: ShardId) -> Option<Letter> {
        None
    }
    /// What the other shards of the node counted, summed up, a moment ago.
    fn set_others(&mut self, _others: ShardStatus) {}
    /// Its stores, for hosts that watch their devices.
    fn engines(&self) -> impl Iterator<Item = &Engine<Self::Device>>;
}

impl<D: Device> ClientHost for Shard<D> {
    type Device = D;

    fn open_session(&mut self, protocol: Protocol) -> SessionId {
        Self::open_session(self, protocol)
    }

    fn close_session(&mut self, session: SessionId) {
        Self::close_session(self, session);
    }

    fn end_input(&mut self, session: SessionId) {
        Self::end_input(self, session);
    }

    fn handle_input(&mut self, now: Now, session: SessionId, input: &[u8]) -> usize {
        Self::handle_input(self, now, session, input)
    }

    fn handle_inputs(&mut self, now: Now, inputs: &[(SessionId, &[u8])], used: &mut [usize]) {
        Self::handle_inputs(self, now, inputs, used);
    }

    fn wants_input(&self, session: SessionId) -> bool {
        Self::wants_input(self, session)
    }

    fn need_bytes(&self, session: SessionId) -> usize {
        Self::need_bytes(self, session)
    }

    fn output(&self, session: SessionId) -> &[u8] {
        Self::output(self, session)
    }

    fn wrote(&mut self, session: SessionId, bytes: usize) {
        Self::wrote(self, session, bytes);
    }

    fn turn(&mut self, now: Now) -> Option<MonoMs> {
        Self::turn(self, now)
    }

    fn wants_turn(&self) -> bool {
        Self::wants_turn(self)
    }

    fn poll_output(&mut self) -> Option<Output> {
        Self::poll_output(self)
    }

    fn is_idle(&self) -> bool {
        Self::is_idle(self)
    }

    fn status(&self) -> ShardStatus {
        Self::status(self)
    }

    fn handle_letter(&mut self, now: Now, from: ShardId, letter: Letter) {
        Self::handle_letter(self, now, from, letter);
    }

    fn take_letter(&mut self, to: ShardId) -> Option<Letter> {
        Self::take_letter(self, to)
    }

    fn set_others(&mut self, others: ShardStatus) {
        Self::set_others(self, others);
    }

    fn engines(&self) -> impl Iterator<Item = &Engine<D>> {
        std::iter::once(self.engine())
    }
}
