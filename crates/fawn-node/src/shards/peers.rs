//! Proxy sessions: sessions here that stand for other shards' sessions with requests on this shard's keys.
//!
//! A proxy session is like a client's, but its input and its replies (internal frames) travel in batches.
//! It has the same bounds, sees its own writes, and returns nothing that could be undone. Input that it cannot
//! accept yet waits here; the requesting shard bounds its length.
use super::message_batch::{MessageBatch, MessageKind};
use crate::SessionId;
use crate::gateway::ShardContext;
use crate::output::ShardOutput;
use crate::session::consume;
use crate::shard::Shard;
use crate::status::ShardStatus;
use fawn_flash::Device;
use fawn_types::{Now, ShardId};
use fawn_wire::Protocol;
use smallvec::SmallVec;

/// Messages executed together: their first requests are prefetched together.
const PIECES_MAX: usize = 16;

/// Requests of several sessions.
type SessionInputs<'a> = SmallVec<[(SessionId, &'a [u8]); PIECES_MAX]>;

impl<D: Device> Shard<D> {
    /// Receives a batch from another shard.
    pub fn handle_batch(&mut self, now: Now, from: ShardId, batch: MessageBatch) {
        self.note_time(now);
        self.handle_pieces(from, batch);
    }

    fn handle_pieces(&mut self, from: ShardId, batch: MessageBatch) {
        let mut pieces = SessionInputs::new();
        for (piece, bytes) in batch.messages() {
            match piece.kind {
                MessageKind::Requests => {
                    let session = self.proxy_for(from, piece.session);
                    pieces.push((session, bytes));
                    if pieces.len() == PIECES_MAX {
                        self.execute(&mut pieces);
                    }
                }
                MessageKind::Replies => {
                    let mut host = self.host();
                    host.links().has_moved = true;
                    host.handle_replies(from, piece.session, bytes);
                }
                MessageKind::SessionClosed => {
                    self.execute(&mut pieces);
                    self.close_proxy(from, piece.session);
                }
                MessageKind::ResetStats => self.state.reset_counters(),
            }
        }
        self.execute(&mut pieces);
        drop(pieces);
        self.state.links().keep_spare(batch);
    }

    /// The batch for that shard, if there is one.
    pub fn take_batch(&mut self, to: ShardId) -> Option<MessageBatch> {
        self.state.links.as_mut()?.take_batch(to)
    }

    /// Sum of the other shards' counters: clients see the whole node.
    pub fn set_peer_stats(&mut self, others: ShardStatus) {
        if let Some(links) = &mut self.state.links {
            links.peer_stats = others;
        }
    }

    fn proxy_for(&mut self, from: ShardId, asking: SessionId) -> SessionId {
        let (options, sessions) = (self.state.options, &mut self.sessions);
        let peers = &mut self.state.links().peers[usize::from(from.0)];
        *peers.entry(asking).or_insert_with(|| {
            let id = sessions.open(Protocol::Internal, &options);
            if let Some(session) = sessions.get_mut(id) {
                session.proxy_for = Some((from, asking));
            }
            id
        })
    }

    fn close_proxy(&mut self, from: ShardId, asking: SessionId) {
        let links = self.state.links();
        if let Some(id) = links.peers[usize::from(from.0)].remove(&asking) {
            links.unprocessed_input.remove(&id);
            self.sessions.close(id);
        }
    }

    fn execute(&mut self, pieces: &mut SessionInputs<'_>) {
        let mut used = [0; PIECES_MAX];
        let links = self.state.links();
        if !links.unprocessed_input.is_empty() {
            // Queued behind input that the session could not accept.
            pieces.retain(|(id, bytes)| {
                let rest = links.unprocessed_input.get_mut(id);
                let waits = rest.is_some();
                rest.into_iter().for_each(|rest| rest.extend_from_slice(bytes));
                !waits
            });
        }
        let used = &mut used[..pieces.len()];
        let now = self.state.now;
        consume::handle_inputs(&mut self.state, &mut self.sessions, &mut self.outputs, (pieces, used), now);
        for ((id, bytes), used) in pieces.drain(..).zip(used) {
            if *used < bytes.len() {
                self.state.links().unprocessed_input.entry(id).or_default().extend_from_slice(&bytes[*used..]);
            }
        }
    }

    /// Begins an iteration: messages to this shard itself, and input that waited for its session.
    pub(crate) fn begin_exchange(&mut self) {
        if self.state.links.is_none() {
            return;
        }
        if let Some(batch) = self.state.links().take_own() {
            let me = self.state.links().placement().shard();
            self.handle_pieces(me, batch);
        }
        for _ in 0..self.state.links().resumed.len() {
            let Some(id) = self.state.links().resumed.pop_front() else { break };
            let Some(mut rest) = self.state.links().unprocessed_input.remove(&id) else { continue };
            let (state, sessions, outputs) = (&mut self.state, &mut self.sessions, &mut self.outputs);
            let now = state.now;
            let used = consume::handle_input(state, sessions, outputs, (id, &rest), now);
            if used < rest.len() {
                rest.drain(..used);
                self.state.links().unprocessed_input.insert(id, rest);
            }
        }
    }

    /// Ends an iteration: sends replies of proxy sessions. Returns whether the next iteration is due at once.
    pub(crate) fn end_exchange(&mut self) -> bool {
        let Some(links) = &mut self.state.links else { return false };
        links.has_moved = false;
        for _ in 0..self.outputs.len() {
            let Some(output) = self.outputs.pop_front() else { break };
            let (ShardOutput::Writable(id) | ShardOutput::Resume(id) | ShardOutput::Close(id)) = output;
            if self.sessions.get(id).is_none_or(|session| session.proxy_for.is_none()) {
                self.outputs.push_back(output);
                continue;
            }
            match output {
                ShardOutput::Writable(_) => links.ready_replies.push_back(id),
                ShardOutput::Resume(_) => links.resumed.push_back(id),
                ShardOutput::Close(_) => {
                    tracing::error!(session = id.serial(), "another shard sent bytes that are not a request")
                }
            }
        }
        let mut is_due = false;
        for _ in 0..links.ready_replies.len() {
            let Some(id) = links.ready_replies.pop_front() else { break };
            let Some(session) = self.sessions.get(id) else { continue };
            let Some(asking) = session.proxy_for else { continue };
            let (frames, is_stalled) = (session.replies.output(), session.stalled.is_some());
            if !links.answer(asking, frames) {
                links.ready_replies.push_back(id);
                continue;
            }
            let bytes = frames.len();
            consume::wrote(&mut self.sessions, id, bytes, &mut self.state.counters);
            is_due |= is_stalled;
        }
        is_due || links.is_due() || self.sessions.has_due_work()
    }

    pub(crate) fn host(&mut self) -> ShardContext<'_, D> {
        ShardContext { state: &mut self.state, sessions: &mut self.sessions }
    }
}
