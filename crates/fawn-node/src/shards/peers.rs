//! Proxy sessions: sessions here that stand for other shards' sessions with requests on this shard's keys.
//!
//! A proxy session is like a client's, but its input and its replies (internal frames) travel in batches.
//! It has the same bounds, sees its own writes, and returns nothing that could be undone. Input that it cannot
//! accept yet waits here; the asking shard bounds its length.
use super::letter::{Kind, Letter};
use crate::SessionId;
use crate::execute::Host;
use crate::output::Output;
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
type Pieces<'a> = SmallVec<[(SessionId, &'a [u8]); PIECES_MAX]>;

impl<D: Device> Shard<D> {
    /// Receives a batch from another shard.
    pub fn handle_letter(&mut self, now: Now, from: ShardId, letter: Letter) {
        self.note_time(now);
        self.handle_pieces(from, letter);
    }

    fn handle_pieces(&mut self, from: ShardId, letter: Letter) {
        let mut pieces = Pieces::new();
        for (piece, bytes) in letter.pieces() {
            match piece.kind {
                Kind::Asked => {
                    let session = self.standing_for(from, piece.session);
                    pieces.push((session, bytes));
                    if pieces.len() == PIECES_MAX {
                        self.execute(&mut pieces);
                    }
                }
                Kind::Answered => {
                    let mut host = self.host();
                    host.links().has_moved = true;
                    host.answers(from, piece.session, bytes);
                }
                Kind::Closed => {
                    self.execute(&mut pieces);
                    self.close_standing(from, piece.session);
                }
                Kind::Reset => self.core.counters.reset(),
            }
        }
        self.execute(&mut pieces);
        drop(pieces);
        self.core.links().keep_spare(letter);
    }

    /// The batch for that shard, if there is one.
    pub fn take_letter(&mut self, to: ShardId) -> Option<Letter> {
        self.core.links.as_mut()?.take_letter(to)
    }

    /// Sum of the other shards' counters: clients see the whole node.
    pub fn set_others(&mut self, others: ShardStatus) {
        if let Some(links) = &mut self.core.links {
            links.others = others;
        }
    }

    fn standing_for(&mut self, from: ShardId, asking: SessionId) -> SessionId {
        let (options, sessions) = (self.core.options, &mut self.sessions);
        let peers = &mut self.core.links().peers[usize::from(from.0)];
        *peers.entry(asking).or_insert_with(|| {
            let id = sessions.open(Protocol::Native, &options);
            if let Some(session) = sessions.get_mut(id) {
                session.stands_for = Some((from, asking));
            }
            id
        })
    }

    fn close_standing(&mut self, from: ShardId, asking: SessionId) {
        let links = self.core.links();
        if let Some(id) = links.peers[usize::from(from.0)].remove(&asking) {
            links.rests.remove(&id);
            self.sessions.close(id);
        }
    }

    fn execute(&mut self, pieces: &mut Pieces<'_>) {
        let mut used = [0; PIECES_MAX];
        let links = self.core.links();
        if !links.rests.is_empty() {
            // Queued behind input that the session could not accept.
            pieces.retain(|(id, bytes)| {
                let rest = links.rests.get_mut(id);
                let waits = rest.is_some();
                rest.into_iter().for_each(|rest| rest.extend_from_slice(bytes));
                !waits
            });
        }
        let used = &mut used[..pieces.len()];
        let now = self.core.now;
        consume::handle_inputs(&mut self.core, &mut self.sessions, &mut self.outputs, (pieces, used), now);
        for ((id, bytes), used) in pieces.drain(..).zip(used) {
            if *used < bytes.len() {
                self.core.links().rests.entry(id).or_default().extend_from_slice(&bytes[*used..]);
            }
        }
    }

    /// Begins an iteration: messages to this shard itself, and input that waited for its session.
    pub(crate) fn begin_exchange(&mut self) {
        if self.core.links.is_none() {
            return;
        }
        if let Some(letter) = self.core.links().take_own() {
            let me = self.core.links().placement().shard();
            self.handle_pieces(me, letter);
        }
        for _ in 0..self.core.links().resumed.len() {
            let Some(id) = self.core.links().resumed.pop_front() else { break };
            let Some(mut rest) = self.core.links().rests.remove(&id) else { continue };
            let (core, sessions, outputs) = (&mut self.core, &mut self.sessions, &mut self.outputs);
            let now = core.now;
            let used = consume::handle_input(core, sessions, outputs, (id, &rest), now);
            if used < rest.len() {
                rest.drain(..used);
                self.core.links().rests.insert(id, rest);
            }
        }
    }

    /// Ends an iteration: sends replies of proxy sessions. Returns whether the next iteration is due at once.
    pub(crate) fn end_exchange(&mut self) -> bool {
        let Some(links) = &mut self.core.links else { return false };
        links.has_moved = false;
        for _ in 0..self.outputs.len() {
            let Some(output) = self.outputs.pop_front() else { break };
            let (Output::Writable(id) | Output::Resume(id) | Output::Close(id)) = output;
            if self.sessions.get(id).is_none_or(|session| session.stands_for.is_none()) {
                self.outputs.push_back(output);
                continue;
            }
            match output {
                Output::Writable(_) => links.speaking.push_back(id),
                Output::Resume(_) => links.resumed.push_back(id),
                Output::Close(_) => tracing::error!(session = id.serial(), "another shard sent what is no request"),
            }
        }
        let mut is_due = false;
        for _ in 0..links.speaking.len() {
            let Some(id) = links.speaking.pop_front() else { break };
            let Some(session) = self.sessions.get(id) else { continue };
            let Some(asking) = session.stands_for else { continue };
            let (frames, is_stalled) = (session.replies.output(), session.stalled.is_some());
            if !links.answer(asking, frames) {
                links.speaking.push_back(id);
                continue;
            }
            let bytes = frames.len();
            consume::wrote(&mut self.sessions, id, bytes, &mut self.core.counters);
            is_due |= is_stalled;
        }
        is_due || links.is_due() || self.sessions.wants_turn()
    }

    pub(crate) fn host(&mut self) -> Host<'_, D> {
        let now = self.core.now.wall;
        Host { core: &mut self.core, sessions: &mut self.sessions, now }
    }
}
