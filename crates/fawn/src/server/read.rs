//! First half of an iteration: bytes from sockets to the shard, within the bounds on buffered input.
//!
//! Most connections have one short read per iteration. These are gathered and executed together, so that their
//! requests' memory accesses overlap.
use super::conn::{Conn, ConnPhase, IoResult};
use super::event_loop::EventLoop;
use super::limits::{LARGE_READS_MAX, READ_BYTES};
use fawn_node::{ClientService, SessionId};

/// Maximum reads executed together.
const BATCH_INPUTS_MAX: usize = 16;

/// Input of several connections that is not executed yet.
#[derive(Debug)]
pub(super) struct ReadBatch {
    bytes: Vec<u8>,
    filled: usize,
    inputs: Vec<ReadInput>,
}

/// Input of one connection.
#[derive(Clone, Copy, Debug)]
struct ReadInput {
    slot: usize,
    session: SessionId,
    from: usize,
    to: usize,
}

impl Default for ReadBatch {
    fn default() -> Self {
        // Capacity for one more whole read after every piece but the last.
        Self { bytes: vec![0; 2 * READ_BYTES], filled: 0, inputs: Vec::with_capacity(BATCH_INPUTS_MAX) }
    }
}

impl ReadBatch {
    /// Free space for one read.
    fn spare(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..][..READ_BYTES]
    }

    fn push(&mut self, slot: usize, session: SessionId, got: usize) {
        let (from, to) = (self.filled, self.filled + got);
        self.filled = to;
        self.inputs.push(ReadInput { slot, session, from, to });
    }

    fn is_full(&self) -> bool {
        self.inputs.len() == BATCH_INPUTS_MAX || self.filled > READ_BYTES
    }
}

impl<S: ClientService> EventLoop<S> {
    /// Reads a ready connection; [`EventLoop::execute_batch`] executes the input at the latest.
    pub(super) fn read(&mut self, slot: usize) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        // An entry left by the slot's earlier connection. A second read in the batch would be executed apart from the
        // first one, as if a request began there.
        if !std::mem::take(&mut conn.flags.read_scheduled) {
            return;
        }
        match conn.phase {
            ConnPhase::Open if conn.input_buf.is_empty() => return self.read_into_batch(slot),
            ConnPhase::Open => {}
            ConnPhase::Draining | ConnPhase::Ending => return,
            ConnPhase::Lingering => return self.discard(slot),
        }
        // The input continues the connection's own buffer.
        self.execute_batch();
        if self.conns.get(slot).is_some_and(|conn| conn.flags.paused) {
            self.process_input(slot, 0);
        }
        if self.conns.get(slot).is_some_and(|conn| !conn.input_buf.is_empty() && !conn.flags.paused)
            && !self.may_receive(slot)
        {
            return self.drain_if_over(slot);
        }
        let large = self.conns.get(slot).is_some_and(|conn| conn.input_buf.len() >= READ_BYTES);
        for _ in 0..if large { LARGE_READS_MAX } else { 1 } {
            match self.read_once(slot) {
                IoResult::Progress(got) => self.process_input(slot, got),
                _ => break,
            }
        }
        self.drain_if_over(slot);
        self.reschedule_read(slot);
    }

    /// Reads a connection without buffered input.
    fn read_into_batch(&mut self, slot: usize) {
        match self.read_once(slot) {
            IoResult::Progress(got) => {
                self.read_batch.push(slot, self.conns[slot].session, got);
                if self.read_batch.is_full() {
                    self.execute_batch();
                }
            }
            IoResult::Failed => {}
            IoResult::WouldBlock | IoResult::Eof => {
                self.drain_if_over(slot);
                self.reschedule_read(slot);
            }
        }
    }

    /// Reads once, if allowed; drops a broken connection.
    fn read_once(&mut self, slot: usize) -> IoResult {
        let Some(conn) = self.conns.get_mut(slot) else { return IoResult::Failed };
        if conn.flags.stopping || conn.flags.paused || !conn.flags.readable {
            return IoResult::WouldBlock;
        }
        self.counters.reads += 1;
        let room_bytes = if conn.input_buf.is_empty() { self.admission.first_read_bytes() } else { READ_BYTES };
        let result = conn.read(&mut self.read_batch.spare()[..room_bytes]);
        match result {
            IoResult::Progress(got) => {
                self.counters.input_bytes += got as u64;
                conn.received_bytes += got as u64;
            }
            IoResult::Failed => self.drop_conn(slot),
            IoResult::WouldBlock | IoResult::Eof => {}
        }
        result
    }

    /// Executes the gathered input of connections without buffers.
    pub(super) fn execute_batch(&mut self) {
        // Taken out whole and put back: its memory serves the next iteration.
        let mut reads = std::mem::take(&mut self.read_batch.inputs);
        self.read_batch.filled = 0;
        let mut used = [0; BATCH_INPUTS_MAX];
        let used = &mut used[..reads.len()];
        match reads[..] {
            [] => {}
            [ReadInput { session, from, to, .. }] => {
                used[0] = self.shard.handle_input(self.now, session, &self.read_batch.bytes[from..to]);
            }
            _ => {
                let mut inputs = [(reads[0].session, &self.read_batch.bytes[..0]); BATCH_INPUTS_MAX];
                for (input, read_input) in inputs.iter_mut().zip(&reads) {
                    *input = (read_input.session, &self.read_batch.bytes[read_input.from..read_input.to]);
                }
                self.shard.handle_inputs(self.now, &inputs[..reads.len()], used);
            }
        }
        for (read_input, used) in reads.drain(..).zip(used) {
            self.after_batch(read_input, *used);
        }
        debug_assert!(self.read_batch.inputs.is_empty(), "no reads while gathered input is executed");
        self.read_batch.inputs = reads;
    }

    /// The shard consumed `used` bytes of a connection without buffered input.
    fn after_batch(&mut self, read_input: ReadInput, used: usize) {
        let is_open = |conn: &&mut Conn| conn.phase == ConnPhase::Open;
        // An earlier connection of the batch may have caused this one to be closed. Its slot has no other before the
        // next iteration accepts.
        let Some(conn) = self.conns.get_mut(read_input.slot).filter(is_open) else { return };
        conn.input_buf.extend_from_slice(&self.read_batch.bytes[read_input.from + used..read_input.to]);
        self.after_input(read_input.slot, 0);
        self.drain_if_over(read_input.slot);
        self.reschedule_read(read_input.slot);
    }

    /// Executes the buffered input and the first `got` bytes just read; buffers the rest.
    fn process_input(&mut self, slot: usize, got: usize) {
        let conn = &mut self.conns[slot];
        let held_before = conn.input_buf.capacity();
        conn.input_buf.extend_from_slice(&self.read_batch.bytes[..got]);
        // A large value is not parsed again for every read.
        let is_worth_it = conn.input_buf.len() >= self.shard.need_bytes(conn.session);
        let used = if is_worth_it { self.shard.handle_input(self.now, conn.session, &conn.input_buf) } else { 0 };
        if used == conn.input_buf.len() {
            // Released at once: an idle connection holds no buffer.
            conn.input_buf = Vec::new();
        } else {
            conn.input_buf.drain(..used);
        }
        if used > 0 {
            self.end_admission(slot);
        }
        self.after_input(slot, held_before);
    }

    /// Accounts for a connection whose buffer held `held_before` bytes before the shard consumed input.
    fn after_input(&mut self, slot: usize, held_before: usize) {
        let conn = &mut self.conns[slot];
        conn.flags.paused = !conn.input_buf.is_empty() && !self.shard.wants_input(conn.session);
        let held = &mut self.counters.input_held_bytes;
        *held = *held + conn.input_buf.capacity() as u64 - held_before as u64;
        self.schedule_write(slot);
        // Short requests are bounded, not queued.
        if self.counters.input_held_bytes > 2 * self.limits.input_bytes_max as u64 {
            self.shed_input();
        }
        self.admit_waiting();
    }

    /// Drops the connection with the largest incomplete request: all together exceed the budget by far.
    fn shed_input(&mut self) {
        let largest = self.conns.iter().max_by_key(|(_, conn)| conn.input_buf.capacity()).map(|(slot, _)| slot);
        let Some(slot) = largest else { return };
        let (bytes, limit) = (self.conns[slot].input_buf.len(), self.limits.input_bytes_max);
        tracing::warn!(
            bytes,
            limit,
            "incomplete requests exceed their budget: closed the connection with the largest one"
        );
        self.counters.dropped += 1;
        self.drop_conn(slot);
    }

    /// Schedules the connection for the next iteration if it has more to read and may.
    pub(super) fn reschedule_read(&mut self, slot: usize) {
        let Some(conn) = self.conns.get(slot) else { return };
        // A paused connection is scheduled when the shard resumes it.
        let may_read = conn.flags.readable && !conn.flags.paused && !conn.flags.stopping;
        if conn.phase == ConnPhase::Open && may_read {
            self.schedule_read(slot);
        }
    }

    /// Discards input after the server's side is closed.
    fn discard(&mut self, slot: usize) {
        for _ in 0..LARGE_READS_MAX {
            match self.conns[slot].read(self.read_batch.spare()) {
                IoResult::Progress(_) => {}
                IoResult::WouldBlock => return,
                IoResult::Eof | IoResult::Failed => break,
            }
        }
        // The end of the stream, or a client that keeps sending.
        self.remove(slot);
    }
}
