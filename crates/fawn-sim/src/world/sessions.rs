//! Client connections of a machine: bytes from clients to sessions and back, as a server's event loop moves them.
use super::machine::Machine;
use super::{TURN_US, World};
use crate::clients::Key;
use fawn_node::{SessionId, ShardOutput};
use fawn_types::random::SplitMix64;
use fawn_types::{MemberId, Now};
use fawn_wire::Protocol;

/// One client in this many reads its replies slowly: so many bytes, then nothing for so long, µs.
const CLIENTS_PER_SLOW: usize = 4;
const SLOW_READ_BYTES: usize = 2 << 10;
const SLOW_PAUSE_US_MAX: u64 = 20_000;
/// One write to a client in this many takes only a part of the session's output.
const WRITES_PER_PARTIAL: u64 = 16;

/// The server's end of a client's connection.
pub(super) struct Connection {
    client: usize,
    /// The shard with its session.
    shard: MemberId,
    session: SessionId,
    /// Received bytes that the session has not consumed.
    input: Vec<u8>,
    /// The session accepts input.
    accepts: bool,
    /// The session has output that is not written.
    has_output: bool,
    /// When the client reads again.
    reads_at_us: u64,
}

/// Bytes for a client.
pub(super) type ClientBytes = (usize, Vec<u8>);

impl Machine {
    /// Opens a session for `client`.
    pub(super) fn open_connection(&mut self, client: usize, protocol: Protocol) {
        let Some(process) = self.process.as_mut() else { return };
        // As the kernel does, connections are divided among the shards. A local cluster has one shard for clients.
        let is_local = self.disks.iter().any(|disk| disk.id.node() != self.node);
        let id = if is_local { process.server().id() } else { self.disks[client % self.disks.len()].id };
        let Some(shard) = process.shard_mut(id) else { return };
        let session = shard.open_session(protocol);
        self.connections.push(Connection {
            client,
            shard: id,
            session,
            input: Vec::new(),
            accepts: true,
            has_output: false,
            reads_at_us: 0,
        });
    }

    /// Closes the session of `client`, whose requests may still be executed.
    pub(super) fn close_connection(&mut self, client: usize) {
        let Some(process) = self.process.as_mut() else { return };
        for connection in self.connections.extract_if(.., |connection| connection.client == client) {
            if let Some(shard) = process.shard_mut(connection.shard) {
                shard.close_session(connection.session);
            }
        }
    }

    /// Clients with a connection.
    pub(super) fn connected(&self) -> Vec<usize> {
        self.connections.iter().map(|connection| connection.client).collect()
    }

    /// One client with a session on each shard whose disk failed, if there is one.
    pub(super) fn connected_to_poisoned(&self) -> Vec<usize> {
        let poisoned = self.shards().filter(|(_, shard)| shard.engine().poisoned().is_some());
        let client = |id| self.connections.iter().find(|connection| connection.shard == id);
        poisoned.filter_map(|(id, _)| client(id)).map(|connection| connection.client).collect()
    }

    /// The session of `client` takes no more input, as a planted bug.
    #[cfg(test)]
    pub(super) fn ignore_input_of(&mut self, client: usize) {
        self.connections.iter_mut().filter(|one| one.client == client).for_each(|one| one.accepts = false);
    }

    /// Receives bytes of a client; the session gets them in the next iteration.
    fn receive(&mut self, client: usize, bytes: &[u8], now_us: u64) {
        if let Some(connection) = self.connections.iter_mut().find(|connection| connection.client == client) {
            connection.input.extend_from_slice(bytes);
            self.due_us = Some(now_us);
        }
    }

    /// Offers received bytes to the sessions.
    pub(super) fn offer_inputs(&mut self, now: Now) {
        let Some(process) = self.process.as_mut() else { return };
        for connection in &mut self.connections {
            let Some(shard) = process.shard_mut(connection.shard) else { continue };
            let need_bytes = shard.need_bytes(connection.session);
            if connection.accepts && !connection.input.is_empty() && connection.input.len() >= need_bytes {
                let consumed = shard.handle_input(now, connection.session, &connection.input);
                connection.input.drain(..consumed);
                connection.accepts = shard.wants_input(connection.session);
            }
        }
    }

    /// Carries out the sessions' outputs after an iteration. Returns the bytes for clients, and when another iteration
    /// is due for them.
    pub(super) fn take_replies(
        &mut self,
        now_us: u64,
        random: &mut SplitMix64,
    ) -> Result<(Vec<ClientBytes>, Option<u64>), String> {
        let (mut replies, mut is_due) = (Vec::new(), false);
        for at in 0..self.disks.len() {
            is_due |= self.take_replies_of(self.disks[at].id, now_us, random, &mut replies)?;
        }
        let waiting = self.connections.iter().filter(|connection| connection.has_output);
        let read_us = waiting.map(|connection| connection.reads_at_us.max(now_us + TURN_US)).min();
        Ok((replies, is_due.then_some(now_us + TURN_US).into_iter().chain(read_us).min()))
    }

    /// As [`Machine::take_replies`], for the sessions of one shard.
    fn take_replies_of(
        &mut self,
        id: MemberId,
        now_us: u64,
        random: &mut SplitMix64,
        replies: &mut Vec<ClientBytes>,
    ) -> Result<bool, String> {
        let Some(shard) = self.process.as_mut().and_then(|process| process.shard_mut(id)) else {
            return Ok(false);
        };
        let mut is_due = false;
        while let Some(output) = shard.poll_output() {
            let (ShardOutput::Writable(session) | ShardOutput::Resume(session) | ShardOutput::Close(session)) = output;
            let is_it = |connection: &&mut Connection| (connection.shard, connection.session) == (id, session);
            let Some(connection) = self.connections.iter_mut().find(is_it) else {
                continue; // The client has closed its connection.
            };
            match output {
                ShardOutput::Writable(_) => connection.has_output = true,
                ShardOutput::Resume(_) => {
                    connection.accepts = true;
                    is_due |= !connection.input.is_empty();
                }
                ShardOutput::Close(_) => return Err(format!("the session of client {} closes", connection.client)),
            }
        }
        let of_shard = |connection: &&mut Connection| {
            connection.shard == id && connection.has_output && connection.reads_at_us <= now_us
        };
        for connection in self.connections.iter_mut().filter(of_shard) {
            let output = shard.output(connection.session);
            let is_partial = random.chance(1, WRITES_PER_PARTIAL);
            let mut count = if is_partial { random.below(output.len() as u64 + 1) as usize } else { output.len() };
            if connection.client.is_multiple_of(CLIENTS_PER_SLOW) {
                count = count.min(SLOW_READ_BYTES);
                connection.reads_at_us = now_us + random.below(SLOW_PAUSE_US_MAX);
            }
            connection.has_output = count < output.len();
            replies.push((connection.client, output[..count].to_vec()));
            shard.wrote(connection.session, count);
        }
        Ok(is_due || shard.has_due_work())
    }
}

impl World {
    /// Moves the clients' bytes that are due to their servers, closes abandoned connections, and lets idle clients
    /// send.
    pub(super) fn run_clients(&mut self) {
        let now_us = self.now_us;
        for client in 0..self.clients.len() {
            if !self.quiet && self.clients.is_due(client, now_us) {
                self.write(client, None);
            }
            // The second process of one identity comes after all machines.
            let machine = self.machines.iter_mut().chain(&mut self.twin).nth(self.servers[client]);
            let Some(machine) = machine else { continue };
            while let Some(bytes) = self.clients.arrive(client, now_us) {
                self.trace.note(now_us, b'?', client as u32, machine.node.0, &bytes);
                machine.receive(client, &bytes, now_us);
            }
            if self.clients.is_abandoning(client, now_us) {
                self.trace.say(now_us, format!("client {client} closes its connection"));
                machine.close_connection(client);
                self.clients.lose(client, now_us);
            }
        }
    }

    /// `client` sends a pipeline, or a read of `key`, and connects before if it has to.
    pub(super) fn write(&mut self, client: usize, key: Option<Key>) {
        let now_us = self.now_us;
        if !self.connect(client) {
            return self.clients.withdraw(client, now_us);
        }
        match key {
            Some(key) => self.clients.write_read(client, now_us, key),
            None => self.clients.write(client, now_us),
        };
    }

    /// Connects `client`, if it is not connected, to one of the machines that accept connections; returns whether it is
    /// connected.
    pub(super) fn connect(&mut self, client: usize) -> bool {
        if self.clients.is_connected(client) {
            return true;
        }
        let accepting = self.accepting();
        if accepting.is_empty() {
            return false;
        }
        let index = accepting[self.connects.below(accepting.len() as u64) as usize];
        self.connect_to(client, index);
        true
    }

    /// The machines that accept connections.
    pub(super) fn accepting(&self) -> Vec<usize> {
        let accepts = |index: &usize| {
            let machine = &self.machines[*index];
            machine.process.is_some() && !machine.is_paused(self.now_us)
        };
        self.scenario.session_machines().filter(accepts).collect()
    }

    /// Connects `client`, which is not connected, to that machine.
    pub(super) fn connect_to(&mut self, client: usize, index: usize) {
        self.servers[client] = index;
        let protocol = self.clients.connect(client);
        self.machines[index].open_connection(client, protocol);
    }

    /// The clients connected to a machine, and the number of operations that its sessions have answered.
    pub(super) fn sessions_of(&self, index: usize) -> (Vec<usize>, u64) {
        (self.machines[index].connected(), self.machines[index].answered)
    }

    /// Delivers a machine's bytes to its clients.
    pub(super) fn deliver_replies(&mut self, index: usize, replies: &[ClientBytes]) -> Result<(), String> {
        let (now_us, node, answered) = (self.now_us, self.machines[index].node, self.clients.answered);
        for (client, bytes) in replies {
            self.trace.note(now_us, b'=', node.0, *client as u32, bytes);
            self.clients.receive(*client, now_us, bytes)?;
        }
        self.machines[index].answered += self.clients.answered - answered;
        Ok(())
    }
}
