//! Next pipelines of clients: their commands, drawn from the seed among those of each protocol.
use super::codec::encode;
use super::connection::{CommandKind, KeyOperation, PendingCommand};
use super::{Clients, Key, OPEN_CLEARS_MAX, OpenScan, Sweep, SweepKind};
use crate::canary::Canary;
use crate::history::{KeyRequest, Observed};
use fawn_wire::Protocol;
use std::collections::BTreeSet;

/// Further commands of a longer pipeline are mostly reads: unanswered writes would retire their keys.
const PIPELINE_WRITES_MAX: u64 = 6;
/// One command in this many has several keys, or is one on the whole keyspace.
const COMMANDS_PER_MULTI: u64 = 12;
const COMMANDS_PER_SWEEP: u64 = 250;
/// Maximum keys of a command.
pub const MULTI_KEYS_MAX: u64 = 3;
/// Length of a long value that a client writes or appends, bytes.
pub const LONG_VALUE_BYTES_MAX: u64 = 6_000;
/// One pipeline in this many is abandoned, after up to so long, µs.
const PIPELINES_PER_ABANDON: u64 = 300;
const ABANDON_US_MAX: u64 = 5_000;
/// Longest time after which a key expires within a run, ms, and one that is longer than any run.
pub const LIFE_MS_MAX: u64 = 3_000;
const LIFE_MS_LONG: u64 = 3_600_000;
/// Maximum `COUNT` of a step of `SCAN`.
const SCAN_COUNT_MAX: u64 = 40;

impl Clients {
    /// `client` sends its next pipeline. Returns its bytes.
    pub fn write(&mut self, client: usize, now_us: u64) -> Vec<u8> {
        let Some(protocol) = self.clients[client].connection.as_ref().map(|connection| connection.protocol) else {
            return Vec::new();
        };
        // Half of all pipelines have one command.
        let count = if self.random.chance(1, 2) { 1 } else { 2 + self.random.below(self.pipeline_max - 1) };
        let mut commands = Vec::new();
        if self.is_scanning(client) {
            commands.push(self.scan_step(client));
        }
        for at in 0..count {
            let is_read = at >= PIPELINE_WRITES_MAX && self.random.chance(7, 8);
            let key = is_read.then(|| self.draw_key());
            let command = match key {
                Some(key) => self.single(key, KeyRequest::Read),
                None => self.draw_command(client, protocol),
            };
            commands.push(command);
        }
        let abandons = self.random.chance(1, PIPELINES_PER_ABANDON);
        let abandon_us = abandons.then(|| now_us + self.random.below(ABANDON_US_MAX));
        self.send(client, now_us, commands, abandon_us)
    }

    /// `client` sends a read of `key`.
    pub fn write_read(&mut self, client: usize, now_us: u64, key: Key) -> Vec<u8> {
        let command = self.single(key, KeyRequest::Read);
        self.send(client, now_us, vec![command], None)
    }

    /// `client` sends an update of each key, which no correct cluster refuses.
    pub fn write_updates(&mut self, client: usize, now_us: u64) -> Vec<u8> {
        let mut commands = Vec::new();
        for place in 0..self.generations.len() as u32 {
            let key = Key { place, generation: self.generations[place as usize] };
            let request = match key.is_counter() {
                true => KeyRequest::Delete,
                false => KeyRequest::Write(self.token()),
            };
            commands.push(self.single(key, request));
        }
        self.send(client, now_us, commands, None)
    }

    /// `client` sends the next step of a scan of all keys, which begins if there is none, or `DBSIZE`.
    pub fn write_sweep(&mut self, client: usize, now_us: u64, is_scan: bool) -> Vec<u8> {
        let command = if is_scan { self.scan_step(client) } else { self.command(CommandKind::Size) };
        self.send(client, now_us, vec![command], None)
    }

    /// Whether a scan of `client` has steps left.
    #[must_use]
    pub fn is_scanning(&self, client: usize) -> bool {
        self.clients[client].scan.is_some()
    }

    fn send(
        &mut self,
        client: usize,
        now_us: u64,
        mut commands: Vec<PendingCommand>,
        abandon_us: Option<u64>,
    ) -> Vec<u8> {
        let random = &mut self.random;
        let Some(connection) = self.clients[client].connection.as_mut() else { return Vec::new() };
        if self.canary == Some(Canary::WriteOvertakesRead) {
            overtake(&mut commands);
        }
        let mut bytes = Vec::new();
        for command in &mut commands {
            let mut sent = command.clone();
            if self.canary == Some(Canary::SecondKeyLost) && command.kind == CommandKind::SetAll {
                sent.ops.truncate(1);
            }
            encode(connection.protocol, &sent, &mut bytes);
            command.end = bytes.len() as u64;
        }
        connection.abandon_us = abandon_us;
        connection.send(now_us, &bytes, commands.into_iter(), random);
        bytes
    }

    fn command(&mut self, kind: CommandKind) -> PendingCommand {
        self.moment += 1;
        PendingCommand { kind, ops: Vec::new(), called_at: self.moment, times: self.times.all(), end: 0 }
    }

    fn operation(&mut self, key: Key, request: KeyRequest) -> KeyOperation {
        self.moment += 1;
        KeyOperation { key, request, called_at: self.moment, time: self.times.of(&key.name()) }
    }

    fn single(&mut self, key: Key, request: KeyRequest) -> PendingCommand {
        let version = self.seen.get(&key).map_or(0, |(_, version)| *version);
        let op = self.operation(key, request);
        PendingCommand {
            kind: CommandKind::Single { version },
            called_at: op.called_at,
            ops: vec![op],
            times: Vec::new(),
            end: 0,
        }
    }

    fn scan_step(&mut self, client: usize) -> PendingCommand {
        let count = 1 + self.random.below(SCAN_COUNT_MAX);
        let command = self.command(CommandKind::Scan { cursor: 0, count });
        let begun =
            OpenScan { called_at: command.called_at, times: command.times.clone(), cursor: 0, keys: BTreeSet::new() };
        let cursor = self.clients[client].scan.get_or_insert(begun).cursor;
        PendingCommand { kind: CommandKind::Scan { cursor, count }, ..command }
    }

    fn draw_command(&mut self, client: usize, protocol: Protocol) -> PendingCommand {
        let is_resp = protocol == Protocol::Resp;
        if self.random.chance(1, COMMANDS_PER_SWEEP) {
            let open = |sweep: &&Sweep| matches!(sweep.kind, SweepKind::Clear(Observed::Unknown));
            let may_clear = self.sweeps.iter().filter(open).count() < OPEN_CLEARS_MAX;
            return match self.random.below(4) {
                0 if may_clear => self.command(CommandKind::FlushAll),
                1 if is_resp => self.command(CommandKind::Size),
                2.. if is_resp && self.clients[client].scan.is_none() => self.scan_step(client),
                _ => self.draw_multi(is_resp),
            };
        }
        if self.random.chance(1, COMMANDS_PER_MULTI) {
            return self.draw_multi(is_resp);
        }
        let key = self.draw_key();
        let request = if is_resp { self.draw_resp(key) } else { self.draw_memcached(key) };
        self.single(key, request)
    }

    fn draw_key(&mut self) -> Key {
        let place = self.random.below(self.generations.len() as u64) as u32;
        Key { place, generation: self.generations[place as usize] }
    }

    fn draw_multi(&mut self, is_resp: bool) -> PendingCommand {
        let kind = match self.random.below(4) {
            0 | 1 if is_resp => CommandKind::SetAll,
            2 if is_resp => CommandKind::DeleteAll,
            _ => CommandKind::GetAll,
        };
        let mut keys = Vec::new();
        for _ in 0..2 + self.random.below(MULTI_KEYS_MAX - 1) {
            let key = self.draw_key();
            // A counter holds a number, and a repeated key would need an order within the command.
            if !(keys.contains(&key) || kind == CommandKind::SetAll && key.is_counter()) {
                keys.push(key);
            }
        }
        if keys.is_empty() {
            keys.push(Key { place: 0, generation: self.generations[0] });
        }
        let request = |clients: &mut Self| match kind {
            CommandKind::SetAll => KeyRequest::Write(clients.token()),
            CommandKind::DeleteAll => KeyRequest::Delete,
            _ => KeyRequest::Read,
        };
        let mut ops = Vec::new();
        for key in keys {
            let request = request(self);
            ops.push(self.operation(key, request));
        }
        PendingCommand { kind, called_at: ops[0].called_at, ops, times: Vec::new(), end: 0 }
    }

    fn draw_resp(&mut self, key: Key) -> KeyRequest {
        // Frequent deletes reveal deleted values that reappear.
        if self.deletes_often && self.random.chance(1, 3) {
            return KeyRequest::Delete;
        }
        let drawn = self.random.below(100);
        if key.is_counter() {
            return match drawn {
                0..40 => KeyRequest::Read,
                40..95 => KeyRequest::Add(1 + self.random.below(9) as i64),
                _ => KeyRequest::Delete,
            };
        }
        if self.expires && self.random.chance(1, 3) {
            return self.draw_expiring();
        }
        match drawn {
            0..40 => KeyRequest::Read,
            40..52 => KeyRequest::Write(self.token()),
            52..75 => KeyRequest::Append(self.token()),
            75..83 => KeyRequest::Delete,
            83..90 => KeyRequest::WriteIfAbsent(self.token()),
            _ => KeyRequest::Exchange(self.token()),
        }
    }

    fn draw_expiring(&mut self) -> KeyRequest {
        let ms = match self.random.below(8) {
            0..4 => 1 + self.random.below(100),
            4 | 5 => 1 + self.random.below(1_000),
            6 => 1 + self.random.below(LIFE_MS_MAX),
            _ => LIFE_MS_LONG,
        };
        match self.random.below(10) {
            0..5 => KeyRequest::WriteExpiring(self.token(), ms),
            5 | 6 => KeyRequest::Expire(ms),
            7 => KeyRequest::ReadExpiring(ms),
            8 => KeyRequest::Persist,
            _ => KeyRequest::ReadPersistent,
        }
    }

    fn draw_memcached(&mut self, key: Key) -> KeyRequest {
        if self.deletes_often && self.random.chance(1, 3) {
            return KeyRequest::Delete;
        }
        let drawn = self.random.below(100);
        if key.is_counter() {
            return match drawn {
                0..40 => KeyRequest::Read,
                40..85 => KeyRequest::AddIfPresent(1 + self.random.below(9) as i64),
                85..95 => KeyRequest::WriteIfAbsent(self.random.below(100).to_string().into_bytes()),
                _ => KeyRequest::Delete,
            };
        }
        if self.expires && self.random.chance(1, 8) {
            let ms = 1_000 * (1 + self.random.below(LIFE_MS_MAX / 1_000));
            return if self.random.chance(1, 2) {
                KeyRequest::WriteExpiring(self.token(), ms)
            } else {
                KeyRequest::Expire(ms)
            };
        }
        match drawn {
            0..40 => KeyRequest::Read,
            40..52 => KeyRequest::Write(self.token()),
            52..65 => KeyRequest::AppendIfPresent(self.token()),
            65..72 => KeyRequest::Delete,
            72..79 => KeyRequest::WriteIfAbsent(self.token()),
            79..85 => KeyRequest::WriteIfPresent(self.token()),
            _ => self.swap(key),
        }
    }

    /// A compare-and-swap against the value that any client read last. Often the value has changed since.
    fn swap(&mut self, key: Key) -> KeyRequest {
        let new = self.token();
        match self.seen.get(&key) {
            Some((expected, _)) => KeyRequest::Swap { expected: expected.clone(), new },
            None => KeyRequest::WriteIfAbsent(new),
        }
    }

    fn token(&mut self) -> Vec<u8> {
        self.tokens += 1;
        // Some values are long, so that records span pages and frames arrive in pieces.
        let fill = if self.random.chance(1, self.values_per_long) {
            self.random.below(LONG_VALUE_BYTES_MAX) as usize
        } else {
            0
        };
        let mut token = format!("<{}>", self.tokens).into_bytes();
        token.resize(token.len() + fill, b'.');
        token
    }
}

/// Sends a write before the read of the same key that precedes it, as a planted bug.
fn overtake(commands: &mut [PendingCommand]) {
    let single = |command: &PendingCommand| match (command.kind, command.ops.as_slice()) {
        (CommandKind::Single { .. }, [op]) => Some((op.key, op.request == KeyRequest::Read)),
        _ => None,
    };
    let overtakes = |pair: &[PendingCommand]| match (single(&pair[0]), single(&pair[1])) {
        (Some((first, true)), Some((second, false))) => first == second,
        _ => false,
    };
    if let Some(at) = commands.windows(2).position(overtakes) {
        commands.swap(at, at + 1);
    }
}
