//! Instruction counts of requests between the shards of a node: all shards in one thread, without sockets.
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='*Bench*measured*' target/release/examples/shard_hops \
//!     <empty directory> <get|set> <own|away|mixed> [shards] [pipeline] [requests]
//! ```
//! Divide the counted instructions by the requests for the cost of one operation, including its client.
use fawn_ds::internals::{Engine, Options};
use fawn_flash::{DeviceOptions, FileDevice};
use fawn_node::{MessageBatch, Placement, ServerInfo, SessionId, Shard, ShardOptions, ShardOutput};
use fawn_types::random::SplitMix64;
use fawn_types::{Durability, HashSecret, Now, RingKey, ShardId};
use fawn_wire::Protocol;
use std::collections::VecDeque;
use std::error::Error;
use std::io::Write as _;
use std::path::Path;

const CLIENTS: usize = 50;
const KEYS: usize = 50_000;
const VALUE: [u8; 64] = [b'x'; 64];
/// Rounds of requests prepared per client.
const ROUNDS: usize = 50;
/// Inputs per `handle_inputs` call, as in the server.
const INPUTS_MAX: usize = 16;
const NOW: Now = Now::at(1_700_000_000_000);
const SECRET: HashSecret = HashSecret([7; 16]);

/// A client, connected to one shard.
struct HopClient {
    shard: usize,
    session: SessionId,
    /// Prepared requests, repeated in a cycle: their encoding is not measured.
    rounds: Vec<Vec<u8>>,
    next: usize,
    /// Bytes at the end of the round that the shard has not consumed.
    rest: usize,
    /// Bytes of outstanding replies.
    awaited: usize,
}

impl HopClient {
    fn input(&self) -> (SessionId, &[u8]) {
        let round = &self.rounds[self.next];
        (self.session, &round[round.len() - self.rest..])
    }
}

struct ShardHopsBench {
    shards: Vec<Shard<FileDevice>>,
    /// Keys of each shard.
    keys: Vec<Vec<String>>,
    /// Batches for each shard, with their senders.
    mail: Vec<VecDeque<(ShardId, MessageBatch)>>,
    clients: Vec<HopClient>,
    reply_bytes: usize,
    batches: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("name an empty directory")?;
    let (what, place) = (args.next().ok_or("get or set?")?, args.next().ok_or("own, away or mixed?")?);
    let mut number = |default: u64| args.next().map_or(Ok(default), |text| text.parse());
    let (shards, pipeline, requests) = (number(2)? as u16, number(32)? as usize, number(200_000)?);
    let mut bench = ShardHopsBench::open(Path::new(&dir), shards)?;
    bench.load();
    bench.write_down(&what, &place, pipeline);
    // Warm-up: allocates memory and fills the page cache.
    bench.run(2 * KEYS as u64);
    bench.batches = 0;
    let done = bench.measured(requests);
    let again: u64 = bench.shards.iter().map(|shard| shard.status().counters.rereads).sum();
    println!("{what} {place}: {done} requests, {} message batches, {again} repeated reads", bench.batches);
    for shard in bench.shards {
        shard.into_engine().close()?;
    }
    Ok(())
}

impl ShardHopsBench {
    fn open(dir: &Path, count: u16) -> Result<Self, Box<dyn Error>> {
        let (mut shards, mut clients, mut keys) = (Vec::new(), Vec::new(), vec![Vec::new(); usize::from(count)]);
        let durability = Durability::Memory;
        for index in 0..count {
            let dir = dir.join(index.to_string());
            std::fs::create_dir_all(&dir)?;
            let device = FileDevice::open(&dir, &DeviceOptions::default())?;
            let options = Options { durability, memory_bytes: 256 << 20, secret: Some(SECRET), ..Options::default() };
            let (engine, _) = Engine::open(device, options, NOW)?;
            let options = ShardOptions { durability, ..ShardOptions::default() };
            let placement = Placement::new(ShardId(index), count).ok_or("no such shard")?;
            shards.push(Shard::new(engine, placement, options, ServerInfo::default())?);
        }
        for number in 0..CLIENTS {
            let shard = number % shards.len();
            let session = shards[shard].open_session(Protocol::Resp);
            clients.push(HopClient { shard, session, rounds: Vec::new(), next: 0, rest: 0, awaited: 0 });
        }
        let ranges: Vec<_> = (0..count).filter_map(|index| Placement::new(ShardId(index), count)).collect();
        for key in (0..KEYS).map(|number| format!("key:{number:012}")) {
            let ring_key = RingKey::of(&SECRET, key.as_bytes());
            let owner = ranges.iter().position(|placement| placement.range().1.contains(&ring_key));
            keys[owner.ok_or("the ranges do not cover the ring")?].push(key);
        }
        let mail = shards.iter().map(|_| VecDeque::new()).collect();
        Ok(Self { shards, keys, mail, clients, reply_bytes: 0, batches: 0 })
    }

    /// Sets every key, at its owner.
    fn load(&mut self) {
        for shard in 0..self.shards.len() {
            let of_one = self.keys[shard].len().div_ceil(CLIENTS / self.keys.len());
            let of_shard = self.clients.iter_mut().filter(|client| client.shard == shard);
            for (client, keys) in of_shard.zip(self.keys[shard].chunks(of_one)) {
                let written = |keys: &[String]| {
                    let mut bytes = Vec::new();
                    keys.iter().for_each(|key| put_request(&mut bytes, "set", key));
                    bytes
                };
                client.rounds = keys.chunks(50).map(written).collect();
            }
        }
        self.reply_bytes = "+OK\r\n".len();
        self.run(2 * KEYS as u64);
    }

    /// Prepares the clients' requests.
    fn write_down(&mut self, what: &str, place: &str, pipeline: usize) {
        let (mut rng, shards) = (SplitMix64::new(1), self.shards.len());
        for client in &mut self.clients {
            let mut round = || {
                let mut bytes = Vec::new();
                for _ in 0..pipeline {
                    let keys = &self.keys[match place {
                        "own" => client.shard,
                        "away" => (client.shard + 1) % shards,
                        _ => rng.below(shards as u64) as usize,
                    }];
                    put_request(&mut bytes, what, &keys[rng.below(keys.len() as u64) as usize]);
                }
                bytes
            };
            client.rounds = (0..ROUNDS).map(|_| round()).collect();
            client.next = 0;
        }
        self.reply_bytes = if what == "get" { "$64\r\n\r\n".len() + VALUE.len() } else { "+OK\r\n".len() };
    }

    /// Runs all shards until this many requests are executed; returns the exact number.
    fn run(&mut self, requests: u64) -> u64 {
        let before = self.commands();
        while self.commands() - before < requests {
            (0..self.shards.len()).for_each(|at| self.turn_of(at, true));
        }
        while self.clients.iter().any(|client| client.awaited > 0) {
            (0..self.shards.len()).for_each(|at| self.turn_of(at, false));
        }
        self.commands() - before
    }

    #[inline(never)]
    fn measured(&mut self, requests: u64) -> u64 {
        self.run(requests)
    }

    fn commands(&self) -> u64 {
        self.shards.iter().map(|shard| shard.status().counters.commands).sum()
    }

    /// Runs an iteration of one shard, in the server's order.
    fn turn_of(&mut self, at: usize, begins: bool) {
        while let Some((from, batch)) = self.mail[at].pop_front() {
            self.shards[at].handle_batch(NOW, from, batch);
        }
        self.ask(at, begins);
        let shard = &mut self.shards[at];
        shard.run_once(NOW);
        for to in (0..self.mail.len()).filter(|to| *to != at) {
            while let Some(batch) = shard.take_batch(ShardId(to as u16)) {
                self.batches += 1;
                self.mail[to].push_back((ShardId(at as u16), batch));
            }
        }
        while let Some(output) = shard.poll_output() {
            let ShardOutput::Writable(session) = output else { continue };
            let bytes = shard.output(session).len();
            let Some(client) = self.clients.iter_mut().find(|client| client.session == session) else { continue };
            client.awaited -= bytes;
            shard.wrote(session, bytes);
        }
    }

    /// Sends the requests of the shard's idle clients, and offers unconsumed input again.
    fn ask(&mut self, at: usize, begins: bool) {
        let shard = &mut self.shards[at];
        let mut clients = Vec::new();
        for (number, client) in self.clients.iter_mut().enumerate().filter(|(_, client)| client.shard == at) {
            let is_idle = client.rest == 0 && client.awaited == 0 && !client.rounds.is_empty();
            if is_idle && begins {
                client.next = (client.next + 1) % client.rounds.len();
                let round = &client.rounds[client.next];
                let requests = round.iter().filter(|byte| **byte == b'*').count();
                (client.rest, client.awaited) = (round.len(), requests * self.reply_bytes);
            }
            if client.rest > 0 && shard.wants_input(client.session) {
                clients.push(number);
            }
        }
        for clients in clients.chunks(INPUTS_MAX) {
            let input = |number: &usize| self.clients[*number].input();
            let (inputs, mut used): (Vec<_>, _) = (clients.iter().map(input).collect(), [0; INPUTS_MAX]);
            shard.handle_inputs(NOW, &inputs, &mut used[..clients.len()]);
            drop(inputs);
            clients.iter().zip(used).for_each(|(number, used)| self.clients[*number].rest -= used);
        }
    }
}

fn put_request(out: &mut Vec<u8>, what: &str, key: &str) {
    let written = if what == "get" {
        write!(out, "*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len())
    } else {
        write!(out, "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n$64\r\n", key.len())
    };
    assert!(written.is_ok(), "writes to memory do not fail");
    if what == "set" {
        out.extend_from_slice(&VALUE);
        out.extend_from_slice(b"\r\n");
    }
}
