//! First half of an iteration: bytes from sockets to the shard, within the bounds on buffered input.
//!
//! Most connections have one short read per iteration. These are gathered and executed together, so that their
//! requests' memory accesses overlap.
use super::backing::Backing;
use super::conn::{Conn, Moved, Phase};
use super::limits::{LARGE_READS_MAX, READ_BYTES};
use super::turn::Turn;
use fawn_node::SessionId;

/// Maximum reads executed together.
const PIECES_MAX: usize = 16;

/// Input of several connections that is not executed yet.
#[derive(Debug)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    filled: usize,
    list: Vec<Piece>,
}

/// Input of one connection.
#[derive(Clone, Copy, Debug)]
struct Piece {
    slot: usize,
    session: SessionId,
    from: usize,
    to: usize,
}

impl Default for Pieces {
    fn default() -> Self {
        // Capacity for one more whole read after every piece but the last.
        Self { bytes: vec![0; 2 * READ_BYTES], filled: 0, list: Vec::with_capacity(PIECES_MAX) }
    }
}

impl Pieces {
    /// Free space for one read.
    fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..][..READ_BYTES]
    }

    fn push(&mut self, slot: usize, session: SessionId, got: usize) {
        let (from, to) = (self.filled, self.filled + got);
        self.filled = to;
        self.list.push(Piece { slot, session, from, to });
    }

    fn is_full(&self) -> bool {
        self.list.len() == PIECES_MAX || self.filled > READ_BYTES
    }
}

impl<B: Backing> Turn<B> {
    /// Reads a ready connection; [`Turn::execute_pieces`] executes the input at the latest.
    pub(super) fn read(&mut self, slot: usize) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        conn.flags.listed = false;
        match conn.phase {
            Phase::Open if conn.rest.is_empty() => return self.read_piece(slot),
            Phase::Open => {}
            Phase::Draining | Phase::Ending => return,
            Phase::Lingering => return self.discard(slot),
        }
        // The input continues the connection's own buffer.
        self.execute_pieces();
        if self.conns.get(slot).is_some_and(|conn| conn.flags.paused) {
            self.feed(slot, 0);
        }
        if self.conns.get(slot).is_some_and(|conn| !conn.rest.is_empty() && !conn.flags.paused)
            && !self.may_receive(slot)
        {
            return self.drain_if_over(slot);
        }
        let large = self.conns.get(slot).is_some_and(|conn| conn.rest.len() >= READ_BYTES);
        for _ in 0..if large { LARGE_READS_MAX } else { 1 } {
            match self.read_once(slot) {
                Moved::Bytes(got) => self.feed(slot, got),
                _ => break,
            }
        }
        self.drain_if_over(slot);
        self.again(slot);
    }

    /// Reads a connection without buffered input.
    fn read_piece(&mut self, slot: usize) {
        match self.read_once(slot) {
            Moved::Bytes(got) => {
                self.pieces.push(slot, self.conns[slot].session, got);
                if self.pieces.is_full() {
                    self.execute_pieces();
                }
            }
            Moved::Broken => {}
            Moved::Blocked | Moved::End => {
                self.drain_if_over(slot);
                self.again(slot);
            }
        }
    }

    /// Reads once, if allowed; drops a broken connection.
    fn read_once(&mut self, slot: usize) -> Moved {
        let Some(conn) = self.conns.get_mut(slot) else { return Moved::Broken };
        if conn.flags.stopping || conn.flags.paused || !conn.flags.readable {
            return Moved::Blocked;
        }
        self.counters.reads += 1;
        let room_bytes = if conn.rest.is_empty() { self.intake.first_read_bytes() } else { READ_BYTES };
        let moved = conn.read(&mut self.pieces.room()[..room_bytes]);
        match moved {
            Moved::Bytes(got) => {
                self.counters.input_bytes += got as u64;
                conn.received_bytes += got as u64;
            }
            Moved::Broken => self.drop_conn(slot),
            Moved::Blocked | Moved::End => {}
        }
        moved
    }

    /// Executes the gathered input of connections without buffers.
    pub(super) fn execute_pieces(&mut self) {
        // Taken out whole and put back: its memory serves the next iteration.
        let mut pieces = std::mem::take(&mut self.pieces.list);
        self.pieces.filled = 0;
        let mut used = [0; PIECES_MAX];
        let used = &mut used[..pieces.len()];
        match pieces[..] {
            [] => {}
            [Piece { session, from, to, .. }] => {
                used[0] = self.shard.handle_input(self.now, session, &self.pieces.bytes[from..to]);
            }
            _ => {
                let mut inputs = [(pieces[0].session, &self.pieces.bytes[..0]); PIECES_MAX];
                for (input, piece) in inputs.iter_mut().zip(&pieces) {
                    *input = (piece.session, &self.pieces.bytes[piece.from..piece.to]);
                }
                self.shard.handle_inputs(self.now, &inputs[..pieces.len()], used);
            }
        }
        for (piece, used) in pieces.drain(..).zip(used) {
            self.executed(piece, *used);
        }
        debug_assert!(self.pieces.list.is_empty(), "no reads while gathered input is executed");
        self.pieces.list = pieces;
    }

    /// The shard consumed `used` bytes of a connection without buffered input.
    fn executed(&mut self, piece: Piece, used: usize) {
        let is_open = |conn: &&mut Conn| conn.session == piece.session && conn.phase == Phase::Open;
        // An earlier connection of the batch may have caused this one to be closed.
        let Some(conn) = self.conns.get_mut(piece.slot).filter(is_open) else { return };
        conn.rest.extend_from_slice(&self.pieces.bytes[piece.from + used..piece.to]);
        self.fed(piece.slot, 0);
        self.drain_if_over(piece.slot);
        self.again(piece.slot);
    }

    /// Executes the buffered input and the first `got` bytes just read; buffers the rest.
    fn feed(&mut self, slot: usize, got: usize) {
        let conn = &mut self.conns[slot];
        let held_before = conn.rest.capacity();
        conn.rest.extend_from_slice(&self.pieces.bytes[..got]);
        // A large value is not parsed again for every read.
        let is_worth_it = conn.rest.len() >= self.shard.need_bytes(conn.session);
        let used = if is_worth_it { self.shard.handle_input(self.now, conn.session, &conn.rest) } else { 0 };
        if used == conn.rest.len() {
            // Released at once: an idle connection holds no buffer.
            conn.rest = Vec::new();
        } else {
            conn.rest.drain(..used);
        }
        if used > 0 {
            self.end_intake(slot);
        }
        self.fed(slot, held_before);
    }

    /// Accounts for a connection whose buffer held `held_before` bytes before the shard consumed input.
    fn fed(&mut self, slot: usize, held_before: usize) {
        let conn = &mut self.conns[slot];
        conn.flags.paused = !conn.rest.is_empty() && !self.shard.wants_input(conn.session);
        let held = &mut self.counters.input_held_bytes;
        *held = *held + conn.rest.capacity() as u64 - held_before as u64;
        self.touch(slot);
        // Short requests are bounded, not queued.
        if self.counters.input_held_bytes > 2 * self.limits.input_bytes_max as u64 {
            self.shed_input();
        }
        self.call_waiting();
    }

    /// Drops the connection with the largest incomplete request: all together exceed the budget by far.
    fn shed_input(&mut self) {
        let largest = self.conns.iter().max_by_key(|(_, conn)| conn.rest.capacity()).map(|(slot, _)| slot);
        let Some(slot) = largest else { return };
        let (bytes, limit) = (self.conns[slot].rest.len(), self.limits.input_bytes_max);
        tracing::warn!(
            bytes,
            limit,
            "incomplete requests exceed their budget: closed the connection with the largest one"
        );
        self.counters.dropped += 1;
        self.drop_conn(slot);
    }

    /// Schedules the connection for the next iteration if it has more to read and may.
    pub(super) fn again(&mut self, slot: usize) {
        let Some(conn) = self.conns.get(slot) else { return };
        // A paused connection is scheduled when the shard resumes it.
        let may_read = conn.flags.readable && !conn.flags.paused && !conn.flags.waits && !conn.flags.stopping;
        if conn.phase == Phase::Open && may_read {
            self.list(slot);
        }
    }

    /// Discards input after the server's side is closed.
    fn discard(&mut self, slot: usize) {
        for _ in 0..LARGE_READS_MAX {
            match self.conns[slot].read(self.pieces.room()) {
                Moved::Bytes(_) => {}
                Moved::Blocked => return,
                Moved::End | Moved::Broken => break,
            }
        }
        // The end of the stream, or a client that keeps sending.
        self.remove(slot);
    }
}
