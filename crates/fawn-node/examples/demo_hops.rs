//! Instruction counts of requests to a cluster of three nodes in one thread, as in `fawn demo`, without sockets.
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='*Bench*measured*' target/release/examples/demo_hops \
//!     <empty directory> <get|set> [pipeline] [requests]
//! ```
//! Divide the counted instructions by the requests for the cost of one operation, including its client. A `set` waits for
//! the device in further iterations, which are counted too.
use fawn_ds::internals::{Engine, Options};
use fawn_flash::{DeviceOptions, FileDevice};
use fawn_node::{
    ClientService, LocalCluster, LocalOptions, ServerInfo, SessionId, ShardGroup, ShardOptions, ShardOutput,
};
use fawn_types::random::SplitMix64;
use fawn_types::{Durability, HashSecret, Now};
use fawn_wire::Protocol;
use std::error::Error;
use std::io::Write as _;
use std::path::Path;

const NODES: u32 = 3;
const CLIENTS: usize = 50;
const KEYS: u64 = 50_000;
const VALUE: [u8; 64] = [b'x'; 64];
/// Rounds of requests prepared per client.
const ROUNDS: usize = 50;
const START: Now = Now::at(1_700_000_000_000);
const SECRET: HashSecret = HashSecret([7; 16]);

/// A client that sends its rounds in a cycle: their encoding is not measured.
struct DemoClient {
    session: SessionId,
    rounds: Vec<Vec<u8>>,
    next: usize,
    /// Bytes at the end of the round that are not consumed.
    rest: usize,
    /// Bytes of outstanding replies.
    awaited: usize,
}

struct DemoHopsBench {
    cluster: ShardGroup<FileDevice>,
    clients: Vec<DemoClient>,
    reply_bytes: usize,
    now: Now,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (dir, what) = (args.next().ok_or("name an empty directory")?, args.next().ok_or("get or set?")?);
    let mut number = |default: u64| args.next().map_or(Ok(default), |text| text.parse());
    let (pipeline, requests) = (number(32)?, number(200_000)?);
    let mut bench = DemoHopsBench::open(Path::new(&dir))?;
    bench.prepare("set", pipeline, |at| at % KEYS);
    bench.run(KEYS);
    let mut random = SplitMix64::new(1);
    bench.prepare(&what, pipeline, |_| random.below(KEYS));
    // Warm-up: allocates memory and fills the page cache.
    bench.run(2 * KEYS);
    let done = bench.measured(requests);
    println!("{what}: {done} requests");
    Ok(())
}

impl DemoHopsBench {
    fn open(dir: &Path) -> Result<Self, Box<dyn Error>> {
        let durability = Durability::Memory;
        let mut engines = Vec::new();
        for node in 1..=NODES {
            let dir = dir.join(node.to_string());
            std::fs::create_dir_all(&dir)?;
            let device = FileDevice::open(&dir, &DeviceOptions::default())?;
            let options = Options { durability, memory_bytes: 256 << 20, secret: Some(SECRET), ..Options::default() };
            engines.push(Engine::open(device, options, START)?.0);
        }
        let shard = ShardOptions { durability, ..ShardOptions::default() };
        let options = LocalOptions { shard, ..LocalOptions::default() };
        let (_, mut cluster) = LocalCluster::start(engines, options, ServerInfo::default(), START)?;
        let mut now = START;
        while !cluster.status().cluster.is_some_and(|cluster| cluster.is_serving()) {
            now = now.plus_ms(1);
            cluster.run_once(now);
        }
        let client = |session| DemoClient { session, rounds: Vec::new(), next: 0, rest: 0, awaited: 0 };
        let clients = (0..CLIENTS).map(|_| client(cluster.open_session(Protocol::Resp))).collect();
        Ok(Self { cluster, clients, reply_bytes: 0, now })
    }

    /// Prepares the clients' requests; `key` returns the key of each.
    fn prepare(&mut self, what: &str, pipeline: u64, mut key: impl FnMut(u64) -> u64) {
        let mut count = 0;
        for client in &mut self.clients {
            let rounds = if what == "set" { KEYS.div_ceil(CLIENTS as u64 * pipeline) as usize } else { ROUNDS };
            let mut round = || {
                let mut bytes = Vec::new();
                for _ in 0..pipeline {
                    put_request(&mut bytes, what, &format!("key:{:012}", key(count)));
                    count += 1;
                }
                bytes
            };
            client.rounds = (0..rounds).map(|_| round()).collect();
            client.next = 0;
        }
        self.reply_bytes = if what == "get" { "$64\r\n\r\n".len() + VALUE.len() } else { "+OK\r\n".len() };
    }

    /// Runs until at least this many requests are answered; returns the exact number.
    fn run(&mut self, requests: u64) -> u64 {
        let mut asked = 0;
        while asked < requests || self.clients.iter().any(|client| client.awaited > 0) {
            asked += self.ask(asked < requests);
            // About as long as an iteration takes. Members repeat some requests only after a time.
            self.now = self.now.plus_ms(1);
            self.cluster.run_once(self.now);
            while let Some(output) = self.cluster.poll_output() {
                let ShardOutput::Writable(session) = output else { continue };
                let bytes = self.cluster.output(session).len();
                let Some(client) = self.clients.iter_mut().find(|client| client.session == session) else { continue };
                client.awaited -= bytes;
                self.cluster.wrote(session, bytes);
            }
        }
        asked
    }

    #[inline(never)]
    fn measured(&mut self, requests: u64) -> u64 {
        self.run(requests)
    }

    /// Sends the requests of idle clients, and offers unconsumed input again. Returns the number of new requests.
    fn ask(&mut self, begins: bool) -> u64 {
        let mut asked = 0;
        for client in &mut self.clients {
            if begins && client.rest == 0 && client.awaited == 0 {
                client.next = (client.next + 1) % client.rounds.len();
                let round = &client.rounds[client.next];
                let requests = round.iter().filter(|byte| **byte == b'*').count();
                (client.rest, client.awaited) = (round.len(), requests * self.reply_bytes);
                asked += requests as u64;
            }
            if client.rest > 0 && self.cluster.wants_input(client.session) {
                let round = &client.rounds[client.next];
                let input = &round[round.len() - client.rest..];
                client.rest -= self.cluster.handle_input(self.now, client.session, input);
            }
        }
        asked
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
