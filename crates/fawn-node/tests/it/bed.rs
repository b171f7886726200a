//! Owns the test bed: a shard on a simulated disk, clients that keep what they could not send, a clock.
use fawn_ds::{Engine, Options};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_node::{Output, ProcessFacts, SessionId, Shard, ShardOptions};
use fawn_types::{Durability, HashSecret, TimeMs};
use fawn_wire::Protocol;
use std::collections::HashMap;

/// A client's end of a connection.
#[derive(Default, Debug)]
pub(crate) struct Client {
    /// Sent by the test, not yet consumed.
    pub(crate) input: Vec<u8>,
    /// Replies.
    pub(crate) received: Vec<u8>,
    pub(crate) closed: bool,
    /// Whether the host may offer input.
    may_offer: bool,
}

pub(crate) struct Bed {
    pub(crate) disk: SimDisk,
    pub(crate) shard: Shard<SimDevice>,
    pub(crate) now: TimeMs,
    pub(crate) clients: HashMap<SessionId, Client>,
    /// Whether replies are taken off the shard: a slow reader is one that does not.
    pub(crate) reads_replies: bool,
    pub(crate) options: ShardOptions,
    pub(crate) memory_bytes: u64,
}

pub(crate) const START: TimeMs = TimeMs(1_700_000_000_000);

pub(crate) fn engine_options(durability: Durability, memory_bytes: u64) -> Options {
    Options {
        segment_bytes: 1 << 20,
        memory_bytes,
        durability,
        value_bytes_max: 200 << 10,
        secret: Some(HashSecret([7; 16])),
        ..Options::default()
    }
}

pub(crate) fn shard_options(durability: Durability) -> ShardOptions {
    ShardOptions { durability, value_bytes_max: 200 << 10, ..ShardOptions::default() }
}

impl Bed {
    pub(crate) fn new() -> Self {
        Self::with(SimOptions::instant(1), shard_options(Durability::Sync))
    }

    pub(crate) fn with(sim: SimOptions, options: ShardOptions) -> Self {
        Self::on(SimDisk::new(sim), options, 8 << 20)
    }

    pub(crate) fn on(disk: SimDisk, options: ShardOptions, memory_bytes: u64) -> Self {
        let shard = open(&disk, options, memory_bytes);
        let clients = HashMap::new();
        Self { disk, shard, now: START, clients, reads_replies: true, options, memory_bytes }
    }

    /// Loses power and opens what is left.
    pub(crate) fn crash(self, seed: u64) -> Self {
        let Self { disk, shard, options, memory_bytes, .. } = self;
        drop(shard);
        disk.crash(seed);
        Self::on(disk, options, memory_bytes)
    }

    /// Ends in order and opens again: nothing is cached then.
    pub(crate) fn reopen(self) -> Self {
        let Self { disk, shard, options, memory_bytes, .. } = self;
        drop(shard.into_engine().close().unwrap());
        Self::on(disk, options, memory_bytes)
    }

    pub(crate) fn connect(&mut self, protocol: Protocol) -> SessionId {
        let id = self.shard.open_session(protocol);
        self.clients.insert(id, Client { may_offer: true, ..Client::default() });
        id
    }

    /// Sends without a turn.
    pub(crate) fn send(&mut self, id: SessionId, bytes: &[u8]) {
        self.clients.get_mut(&id).unwrap().input.extend_from_slice(bytes);
        self.offer(id);
    }

    fn offer(&mut self, id: SessionId) {
        let client = self.clients.get_mut(&id).unwrap();
        if client.may_offer && !client.closed && !client.input.is_empty() {
            let consumed = self.shard.handle_input(self.now, id, &client.input);
            assert!(consumed <= client.input.len());
            client.input.drain(..consumed);
            client.may_offer = self.shard.wants_input(id);
        }
    }

    /// One turn of the server's loop.
    pub(crate) fn turn(&mut self) {
        self.shard.turn(self.now);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.shard.poll_output() {
            match output {
                Output::Writable(id) => self.take(id),
                Output::Resume(id) => {
                    if let Some(client) = self.clients.get_mut(&id) {
                        client.may_offer = true;
                        self.offer(id);
                    }
                }
                Output::Close(id) => {
                    self.take(id);
                    self.shard.close_session(id);
                    self.clients.get_mut(&id).unwrap().closed = true;
                }
                Output::Send { .. } => panic!("a range of one member has no peer"),
            }
        }
    }

    /// Takes a session's output.
    pub(crate) fn take(&mut self, id: SessionId) {
        if !self.reads_replies {
            return;
        }
        let Some(client) = self.clients.get_mut(&id) else { return };
        let output = self.shard.output(id);
        let bytes = output.len();
        client.received.extend_from_slice(output);
        self.shard.wrote(id, bytes);
    }

    /// Turns until nothing is under way.
    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            self.turn();
            let is_sent = |client: &Client| client.input.is_empty() || client.closed;
            if self.shard.is_idle() && (self.clients.values().all(is_sent) || !self.reads_replies) {
                return self.turn();
            }
        }
        panic!("something is under way for ever: {:?}", self.shard.status());
    }

    /// Sends, settles, and returns what came back.
    pub(crate) fn ask(&mut self, id: SessionId, bytes: &[u8]) -> String {
        self.send(id, bytes);
        self.settle();
        let received = std::mem::take(&mut self.clients.get_mut(&id).unwrap().received);
        received.escape_ascii().to_string().replace("\\r\\n", "\n").replace("\\'", "'").trim_end().replace('\n', "|")
    }

    /// As [`Bed::ask`], words separated by spaces sent as a RESP array.
    pub(crate) fn redis(&mut self, id: SessionId, line: &str) -> String {
        self.ask(id, &resp(line))
    }

    /// As [`Bed::ask`], a memcached request whose lines are separated by `|`.
    pub(crate) fn memcached(&mut self, id: SessionId, text: &str) -> String {
        self.ask(id, format!("{}\r\n", text.replace('|', "\r\n")).as_bytes())
    }
}

fn open(disk: &SimDisk, options: ShardOptions, memory_bytes: u64) -> Shard<SimDevice> {
    let device = SimDevice::attach(disk);
    let (engine, _) = Engine::open(device, engine_options(options.durability, memory_bytes), START).unwrap();
    let facts = ProcessFacts { started_at_ms: START.0, ..ProcessFacts::default() };
    Shard::new(engine, options, facts).unwrap()
}

/// A line of words as a RESP array; `""` stands for an empty word.
pub(crate) fn resp(line: &str) -> Vec<u8> {
    let words: Vec<&str> = line.split(' ').map(|word| if word == "\"\"" { "" } else { word }).collect();
    let mut out = format!("*{}\r\n", words.len());
    for word in words {
        out += &format!("${}\r\n{word}\r\n", word.len());
    }
    out.into_bytes()
}
