//! Owns the first half of a turn: bytes from sockets to the shard, within the bounds on what is held.
use super::backing::Backing;
use super::conn::{Moved, Phase};
use super::limits::{LARGE_READS_MAX, READ_BYTES};
use super::turn::Turn;

impl<B: Backing> Turn<B> {
    /// Reads a connection that may have bytes, and executes what is complete.
    pub(super) fn read(&mut self, slot: usize) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        conn.flags.listed = false;
        match conn.phase {
            Phase::Open => {}
            Phase::Draining | Phase::Ending => return,
            Phase::Lingering => return self.discard(slot),
        }
        if conn.flags.paused {
            self.feed(slot, 0);
        }
        let large = self.conns.get(slot).is_some_and(|conn| conn.rest.len() >= READ_BYTES);
        for _ in 0..if large { LARGE_READS_MAX } else { 1 } {
            if !self.read_once(slot) {
                break;
            }
        }
        self.drain_if_over(slot);
        self.again(slot);
    }

    /// One read; whether another may follow.
    fn read_once(&mut self, slot: usize) -> bool {
        let Some(conn) = self.conns.get_mut(slot) else { return false };
        if conn.flags.stopping || conn.flags.paused || !conn.flags.readable {
            return false;
        }
        self.counters.reads += 1;
        match conn.read(&mut self.scratch) {
            Moved::Bytes(got) => {
                self.counters.input_bytes += got as u64;
                self.feed(slot, got);
                true
            }
            Moved::Blocked => false,
            Moved::End => false,
            Moved::Broken => {
                self.drop_conn(slot);
                false
            }
        }
    }

    /// Hands the shard what is held and the first `got` bytes of the scratch buffer; holds what it leaves.
    fn feed(&mut self, slot: usize, got: usize) {
        let conn = &mut self.conns[slot];
        let held_before = conn.rest.capacity();
        if conn.rest.is_empty() {
            let used = self.shard.handle_input(self.now, conn.session, &self.scratch[..got]);
            if used < got {
                conn.rest.extend_from_slice(&self.scratch[used..got]);
            }
        } else {
            conn.rest.extend_from_slice(&self.scratch[..got]);
            // A large value is not parsed again for every read.
            let is_worth_it = conn.rest.len() >= self.shard.need_bytes(conn.session);
            let used = if is_worth_it { self.shard.handle_input(self.now, conn.session, &conn.rest) } else { 0 };
            if used == conn.rest.len() {
                // Given back at once: an idle connection holds no buffer.
                conn.rest = Vec::new();
            } else {
                conn.rest.drain(..used);
            }
        }
        conn.flags.paused = !conn.rest.is_empty() && !self.shard.wants_input(conn.session);
        let held = &mut self.counters.input_held_bytes;
        *held = *held + conn.rest.capacity() as u64 - held_before as u64;
        self.touch(slot);
        if self.counters.input_held_bytes > self.limits.input_bytes_max as u64 {
            self.shed_input();
        }
    }

    /// Drops the connection that holds the largest incomplete request: all together exceed their room.
    fn shed_input(&mut self) {
        let largest = self.conns.iter().max_by_key(|(_, conn)| conn.rest.capacity()).map(|(slot, _)| slot);
        let Some(slot) = largest else { return };
        let (bytes, limit) = (self.conns[slot].rest.len(), self.limits.input_bytes_max);
        tracing::warn!(bytes, limit, "incomplete requests exceed their room: the largest one's connection is closed");
        self.counters.dropped += 1;
        self.drop_conn(slot);
    }

    /// Lists a connection for the next turn if there is more to read that may be read.
    pub(super) fn again(&mut self, slot: usize) {
        let Some(conn) = self.conns.get(slot) else { return };
        // A paused one is listed when the shard says that it takes more.
        let may_read = conn.flags.readable && !conn.flags.paused && !conn.flags.stopping;
        if conn.phase == Phase::Open && may_read {
            self.list(slot);
        }
    }

    /// Throws away what a client sends after our side is closed.
    fn discard(&mut self, slot: usize) {
        for _ in 0..LARGE_READS_MAX {
            match self.conns[slot].read(&mut self.scratch) {
                Moved::Bytes(_) => {}
                Moved::Blocked => return,
                Moved::End | Moved::Broken => break,
            }
        }
        // The end, or a flood that goes on in spite of our close.
        self.remove(slot);
    }
}
