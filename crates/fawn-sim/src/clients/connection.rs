//! A client's end of a connection: commands without a reply yet, and the bytes of both directions.
use super::Key;
use super::codec::{FoundValue, ReplyOutcome, memcached_outcome, resp_outcome};
use crate::chain_time::TailTime;
use crate::history::KeyRequest;
use fawn_types::random::SplitMix64;
use fawn_wire::Protocol;
use fawn_wire::client::{ParsedReply, memcached, resp};
use std::collections::VecDeque;

/// Maximum pieces of one write, and the longest time between two, µs.
const PIECES_MAX: u64 = 4;
const PIECE_US_MAX: u64 = 400;

/// One operation on one key, called at a moment of the histories' counter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct KeyOperation {
    /// The key.
    pub key: Key,
    /// The request.
    pub request: KeyRequest,
    /// The moment of its call.
    pub called_at: u64,
    /// Chain time of the key's range at the call.
    pub time: TailTime,
}

/// Kind of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CommandKind {
    /// An operation on one key; a swap sends the version that was read with the expected value.
    Single {
        /// The version.
        version: u64,
    },
    /// `MGET`, or `get` of several keys.
    GetAll,
    /// `MSET`.
    SetAll,
    /// `DEL` of several keys.
    DeleteAll,
    /// `FLUSHALL` or `flush_all`.
    FlushAll,
    /// `DBSIZE`.
    Size,
    /// A step of `SCAN`.
    Scan {
        /// Its cursor.
        cursor: u64,
        /// Its `COUNT`.
        count: u64,
    },
}

/// A command without a reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PendingCommand {
    /// Its kind.
    pub kind: CommandKind,
    /// Its operations, one per key.
    pub ops: Vec<KeyOperation>,
    /// The moment of its call.
    pub called_at: u64,
    /// Chain times of all ranges at the call, if it concerns the whole keyspace.
    pub times: Vec<TailTime>,
    /// End of its bytes in the stream of the connection.
    pub end: u64,
}

/// Numbers of commands whose replies were no errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServedCounts {
    /// All commands.
    pub all: u64,
    /// Updates of keys.
    pub updates: u64,
}

/// A connection to a server: a machine with sessions.
#[derive(Clone, Debug)]
pub(super) struct ClientConnection {
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number among all connections of the run.
    pub number: u64,
    /// Commands without a reply, in the order sent.
    pub pending: VecDeque<PendingCommand>,
    /// The commands served on it.
    pub served: ServedCounts,
    /// When the client closes it although replies are outstanding.
    pub abandon_us: Option<u64>,
    /// Bytes on their way to the server, with their times of arrival.
    pieces: VecDeque<(u64, Vec<u8>)>,
    sent: u64,
    delivered: u64,
    received: Vec<u8>,
    /// Values of a memcached retrieval whose end has not arrived.
    values: Vec<FoundValue>,
}

impl ClientConnection {
    /// A new connection.
    pub(super) const fn new(protocol: Protocol, number: u64) -> Self {
        Self {
            protocol,
            number,
            pending: VecDeque::new(),
            served: ServedCounts { all: 0, updates: 0 },
            abandon_us: None,
            pieces: VecDeque::new(),
            sent: 0,
            delivered: 0,
            received: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Whether a reply is outstanding.
    pub(super) fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether all bytes of the command have reached the server: only then may it have been executed.
    pub(super) const fn is_delivered(&self, command: &PendingCommand) -> bool {
        command.end <= self.delivered
    }

    /// Sends the bytes of a pipeline, cut at random positions; `commands` have ends relative to its start.
    pub(super) fn send(
        &mut self,
        now_us: u64,
        bytes: &[u8],
        commands: impl Iterator<Item = PendingCommand>,
        random: &mut SplitMix64,
    ) {
        let sent = self.sent;
        self.pending.extend(commands.map(|command| PendingCommand { end: sent + command.end, ..command }));
        self.sent += bytes.len() as u64;
        let (mut rest, mut at_us) = (bytes, now_us);
        for _ in 1..=random.below(PIECES_MAX) {
            let (piece, left) = rest.split_at(random.below(rest.len() as u64 + 1) as usize);
            if !piece.is_empty() {
                self.pieces.push_back((at_us, piece.to_vec()));
            }
            rest = left;
            at_us += random.below(PIECE_US_MAX);
        }
        if !rest.is_empty() {
            self.pieces.push_back((at_us, rest.to_vec()));
        }
    }

    /// When the next piece arrives at the server.
    pub(super) fn next_us(&self) -> Option<u64> {
        let abandon_us = self.abandon_us.filter(|_| self.is_waiting());
        self.pieces.front().map(|(at, _)| *at).into_iter().chain(abandon_us).min()
    }

    /// The next piece that has arrived at the server by `now_us`.
    pub(super) fn arrive(&mut self, now_us: u64) -> Option<Vec<u8>> {
        let (_, piece) = self.pieces.pop_front_if(|(at, _)| *at <= now_us)?;
        self.delivered += piece.len() as u64;
        Some(piece)
    }

    /// Receives bytes from the server.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
    }

    /// The next command whose reply is complete, with its outcome and the values that it returned with versions.
    ///
    /// # Errors
    /// If no correct server can send these bytes.
    pub(super) fn next_reply(&mut self) -> Result<Option<(PendingCommand, ReplyOutcome, Vec<FoundValue>)>, String> {
        while !self.received.is_empty() {
            let Some(command) = self.pending.front() else {
                return Err(format!("a reply to no request: {}", self.received.escape_ascii()));
            };
            let (outcome, consumed) = match self.protocol {
                Protocol::Memcached => match memcached::parse_reply(&self.received) {
                    ParsedReply::Incomplete { .. } => return Ok(None),
                    ParsedReply::Malformed { expected, .. } => return Err(self.malformed(expected)),
                    ParsedReply::Reply {
                        reply: memcached::MemcachedReply::Value { key, version, value, .. },
                        consumed,
                    } => {
                        let value = FoundValue { key: key.to_vec(), version, value: value.to_vec() };
                        self.values.push(value);
                        self.received.drain(..consumed);
                        continue;
                    }
                    ParsedReply::Reply { reply, consumed } => {
                        (memcached_outcome(command, &self.values, &reply)?, consumed)
                    }
                },
                _ => match resp::parse_reply(&self.received) {
                    ParsedReply::Incomplete { .. } => return Ok(None),
                    ParsedReply::Malformed { expected, .. } => return Err(self.malformed(expected)),
                    ParsedReply::Reply { reply, consumed } => (resp_outcome(command, &reply)?, consumed),
                },
            };
            let is_update = !command.ops.is_empty() && command.ops.iter().all(|op| op.request != KeyRequest::Read);
            self.served.all += u64::from(outcome.is_served());
            self.served.updates += u64::from(outcome.is_served() && is_update);
            self.received.drain(..consumed);
            let values = std::mem::take(&mut self.values);
            return Ok(self.pending.pop_front().map(|command| (command, outcome, values)));
        }
        Ok(None)
    }

    fn malformed(&self, expected: &str) -> String {
        let at = self.received.len().min(200);
        format!("{expected} was expected in a reply, found {}", self.received[..at].escape_ascii())
    }
}

/// Exchanges the first two replies in `bytes`, as a planted bug.
pub(super) fn swap_replies(bytes: &mut [u8]) -> bool {
    let len = |bytes: &[u8]| match resp::parse_reply(bytes) {
        ParsedReply::Reply { consumed, .. } => Some(consumed),
        _ => None,
    };
    let Some(first) = len(bytes) else { return false };
    let Some(second) = len(&bytes[first..]) else { return false };
    bytes[..first + second].rotate_left(first);
    true
}
