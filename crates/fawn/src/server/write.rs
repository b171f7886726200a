//! Second half of an iteration: replies to sockets, slow readers, the end of connections.
use super::conn::{ConnPhase, IoResult};
use super::event_loop::EventLoop;
use super::limits::LINGER;
use super::timers::ConnDeadline;
use fawn_node::ClientService;
use std::net::Shutdown;

impl<S: ClientService> EventLoop<S> {
    /// Sends a connection's replies in one write; then ends it, or schedules it for more.
    pub(super) fn flush(&mut self, slot: usize) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        // An entry may be left by the slot's earlier connection.
        if !std::mem::take(&mut conn.flags.write_scheduled) || conn.phase == ConnPhase::Lingering {
            return;
        }
        let output = self.shard.output(conn.session);
        if !output.is_empty() && !conn.flags.blocked {
            self.counters.writes += 1;
            match conn.write(output) {
                IoResult::Progress(wrote) => {
                    self.counters.output_bytes += wrote as u64;
                    self.shard.wrote(conn.session, wrote);
                    // Budget was freed: the next iteration resumes waiting sessions.
                    self.needs_another_iteration |= conn.flags.paused || self.shard.has_due_work();
                }
                IoResult::WouldBlock => {}
                IoResult::Eof | IoResult::Failed => return self.drop_conn(slot),
            }
        }
        self.account(slot);
        if self.conns.get(slot).is_some_and(|conn| !conn.flags.blocked) {
            self.flushed(slot);
        }
    }

    /// All output is sent: a finished connection ends, another one may be read again.
    fn flushed(&mut self, slot: usize) {
        if self.conns[slot].phase == ConnPhase::Ending { self.finish(slot) } else { self.reschedule_read(slot) }
    }

    /// Maintains the sum of untaken replies, watches stalled clients, closes the largest holder beyond the bound.
    fn account(&mut self, slot: usize) {
        let conn = &mut self.conns[slot];
        let held_bytes = if conn.flags.blocked { self.shard.output(conn.session).len() } else { 0 };
        let held = &mut self.counters.output_held_bytes;
        *held = *held + held_bytes as u64 - conn.held_bytes as u64;
        conn.held_bytes = held_bytes;
        if conn.flags.blocked && !conn.flags.watched {
            conn.flags.watched = true;
            conn.flags.progressed = false;
            let at = self.instant + self.limits.stall_timeout;
            self.watch.stalled.push_back(ConnDeadline { at, slot, serial: conn.serial });
        }
        if *held > self.limits.output_bytes_max as u64 {
            let worst = self.conns.iter().max_by_key(|(_, conn)| conn.held_bytes).map(|(slot, _)| slot);
            worst.into_iter().for_each(|slot| self.drop_slow(slot, "untaken replies exceed their budget"));
        }
    }

    fn drop_slow(&mut self, slot: usize, reason: &str) {
        let bytes = self.conns[slot].held_bytes;
        tracing::warn!(bytes, reason, "closed the connection of a slow reader");
        self.counters.dropped += 1;
        self.drop_conn(slot);
    }

    /// Handles connections whose deadline has passed.
    pub(super) fn expire(&mut self) {
        self.drop_slow_senders();
        while let Some(due) = self.watch.lingering.pop_front_if(|due| due.at <= self.instant) {
            if self.conns.get(due.slot).is_some_and(|conn| conn.serial == due.serial) {
                self.remove(due.slot);
            }
        }
        while let Some(due) = self.watch.stalled.pop_front_if(|due| due.at <= self.instant) {
            let Some(conn) = self.conns.get_mut(due.slot).filter(|conn| conn.serial == due.serial) else { continue };
            conn.flags.watched = false;
            if conn.flags.blocked && !conn.flags.progressed && conn.phase != ConnPhase::Lingering {
                self.drop_slow(due.slot, "took no reply during the stall timeout");
            } else if self.conns[due.slot].flags.blocked {
                self.account(due.slot);
            }
        }
    }

    /// Tells the shard that no more input will come: it finishes pending requests and then reports the end.
    pub(super) fn drain_if_over(&mut self, slot: usize) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        let is_over = (conn.flags.eof || conn.flags.stopping) && !conn.flags.paused;
        if conn.phase == ConnPhase::Open && is_over {
            conn.phase = ConnPhase::Draining;
            self.shard.end_input(conn.session);
        }
    }

    /// The last reply is in the output.
    pub(super) fn end(&mut self, slot: usize) {
        self.conns[slot].phase = ConnPhase::Ending;
        self.schedule_write(slot);
    }

    /// Stops accepting and ends every connection; received requests are still answered.
    pub(super) fn stop(&mut self) {
        if self.shutdown_deadline.is_some() {
            return;
        }
        // Connections accepted before the stop are answered or closed gracefully, not reset.
        (0..self.listeners.len()).for_each(|listener| self.accept(listener));
        self.listeners.clear();
        self.accept_again = None;
        self.shutdown_deadline = Some(self.instant + self.limits.shutdown_timeout);
        let slots: Vec<usize> = self.conns.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.conns[slot].flags.stopping = true;
            self.drain_if_over(slot);
        }
    }

    /// Closes the server's side; the client gets a moment to read the last replies.
    fn finish(&mut self, slot: usize) {
        if self.conns[slot].flags.eof {
            return self.drop_conn(slot);
        }
        self.release_buffers(slot);
        let conn = &mut self.conns[slot];
        conn.phase = ConnPhase::Lingering;
        let (serial, at) = (conn.serial, self.instant + LINGER);
        if conn.stream.shutdown(Shutdown::Write).is_err() {
            return self.remove(slot);
        }
        self.watch.lingering.push_back(ConnDeadline { at, slot, serial });
        if self.conns[slot].flags.readable {
            self.schedule_read(slot);
        }
    }

    /// Ends a connection at once.
    pub(super) fn drop_conn(&mut self, slot: usize) {
        if self.conns[slot].phase != ConnPhase::Lingering {
            self.release_buffers(slot);
        }
        self.remove(slot);
    }

    /// Releases everything of a connection besides its socket.
    fn release_buffers(&mut self, slot: usize) {
        let conn = &mut self.conns[slot];
        self.counters.input_held_bytes -= conn.input_buf.capacity() as u64;
        conn.input_buf = Vec::new();
        self.leave_admission(slot);
        let conn = &mut self.conns[slot];
        self.counters.output_held_bytes -= conn.held_bytes as u64;
        conn.held_bytes = 0;
        self.slots.remove(&conn.session);
        self.shard.close_session(conn.session);
        self.needs_another_iteration |= self.shard.has_due_work();
        self.admit_waiting();
    }

    /// Closes the socket, returns its permit and frees the slot. Closing removes it from the readiness queue.
    pub(super) fn remove(&mut self, slot: usize) {
        drop(self.conns.remove(slot));
    }
}
