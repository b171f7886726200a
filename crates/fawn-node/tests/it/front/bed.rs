//! Owns the test bed: a cluster in one thread on simulated disks, clients that keep what they could not send, a clock.
use fawn_ds::{Engine, Options};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_node::{ClientHost, LocalCluster, LocalOptions, Output, ProcessFacts, SessionId, ShardOptions};
use fawn_types::{Durability, HashSecret, NodeId, TimeMs};
use fawn_wire::Protocol;
use std::collections::HashMap;

pub(crate) const MEMBERS: u32 = 3;
const START: TimeMs = TimeMs(1_700_000_000_000);

#[derive(Default, Debug)]
pub(crate) struct Client {
    input: Vec<u8>,
    pub(crate) received: Vec<u8>,
    pub(crate) closed: bool,
    may_offer: bool,
}

pub(crate) struct Bed {
    pub(crate) disks: Vec<SimDisk>,
    pub(crate) cluster: LocalCluster<SimDevice>,
    pub(crate) now: TimeMs,
    pub(crate) clients: HashMap<SessionId, Client>,
    pub(crate) options: LocalOptions,
    memory_bytes: u64,
}

fn open(disk: &SimDisk, options: &LocalOptions, memory_bytes: u64, now: TimeMs) -> Engine<SimDevice> {
    let options = Options {
        segment_bytes: 1 << 20,
        memory_bytes,
        durability: options.shard.durability,
        value_bytes_max: 200 << 10,
        secret: Some(HashSecret(*b"all of a cluster")),
        chained: true,
        ..Options::default()
    };
    Engine::open(SimDevice::attach(disk), options, now).unwrap().0
}

impl Bed {
    pub(crate) fn new(is_one_range: bool) -> Self {
        Self::with(is_one_range, Durability::Sync, 8 << 20)
    }

    pub(crate) fn with(is_one_range: bool, durability: Durability, memory_bytes: u64) -> Self {
        let shard = ShardOptions { durability, value_bytes_max: 200 << 10, ..ShardOptions::default() };
        let options = LocalOptions { shard, is_one_range, ..LocalOptions::default() };
        let disks = (1..=MEMBERS).map(|seed| SimDisk::new(SimOptions::instant(u64::from(seed)))).collect();
        Self::on(disks, options, memory_bytes, START)
    }

    fn on(disks: Vec<SimDisk>, options: LocalOptions, memory_bytes: u64, now: TimeMs) -> Self {
        let engines = disks.iter().map(|disk| open(disk, &options, memory_bytes, now)).collect();
        let cluster = LocalCluster::new(engines, options, ProcessFacts::default(), now).unwrap();
        Self { disks, cluster, now, clients: HashMap::new(), options, memory_bytes }
    }

    /// Loses power everywhere and starts on what is left.
    pub(crate) fn crash(self, seed: u64) -> Self {
        let Self { disks, cluster, now, options, memory_bytes, .. } = self;
        drop(cluster);
        disks.iter().zip(seed..).for_each(|(disk, seed)| disk.crash(seed));
        Self::on(disks, options, memory_bytes, now.plus_ms(1000))
    }

    /// Ends in order and starts again.
    pub(crate) fn stop(self) -> Self {
        let Self { disks, cluster, now, options, memory_bytes, .. } = self;
        cluster.into_engines().into_iter().for_each(|engine| drop(engine.close().unwrap()));
        Self::on(disks, options, memory_bytes, now.plus_ms(1000))
    }

    pub(crate) fn kill(&mut self, name: u32, seed: u64) {
        self.cluster.kill(NodeId(name));
        self.disks[name as usize - 1].kill(seed);
    }

    pub(crate) fn restart(&mut self, name: u32) {
        let engine = open(&self.disks[name as usize - 1], &self.options, self.memory_bytes, self.now);
        self.cluster.restart(NodeId(name), engine).unwrap();
    }

    pub(crate) fn connect(&mut self, protocol: Protocol) -> SessionId {
        let id = self.cluster.open_session(protocol);
        self.clients.insert(id, Client { may_offer: true, ..Client::default() });
        id
    }

    pub(crate) fn send(&mut self, id: SessionId, bytes: &[u8]) {
        self.clients.get_mut(&id).unwrap().input.extend_from_slice(bytes);
        self.offer(id);
    }

    fn offer(&mut self, id: SessionId) {
        let client = self.clients.get_mut(&id).unwrap();
        if client.may_offer && !client.closed && !client.input.is_empty() {
            let consumed = self.cluster.handle_input(self.now, id, &client.input);
            client.input.drain(..consumed);
            client.may_offer = self.cluster.wants_input(id);
        }
    }

    /// A turn of the server's loop, a millisecond later.
    pub(crate) fn turn(&mut self) {
        self.now = self.now.plus_ms(1);
        self.cluster.turn(self.now);
        while let Some(output) = self.cluster.poll_output() {
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
                    self.cluster.close_session(id);
                    self.clients.get_mut(&id).unwrap().closed = true;
                }
                Output::Send { .. } => panic!("frames stay inside"),
            }
        }
    }

    fn take(&mut self, id: SessionId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let output = self.cluster.output(id);
        let bytes = output.len();
        client.received.extend_from_slice(output);
        self.cluster.wrote(id, bytes);
    }

    pub(crate) fn run(&mut self, turns: usize) {
        (0..turns).for_each(|_| self.turn());
    }

    /// Turns until nothing is under way.
    pub(crate) fn settle(&mut self) {
        for _ in 0..20_000 {
            self.turn();
            let is_sent = |client: &Client| client.input.is_empty() || client.closed;
            if self.cluster.is_idle() && self.clients.values().all(is_sent) {
                return self.turn();
            }
        }
        panic!("something is under way for ever: {:#?} {:#?}", self.cluster.statuses(), self.cluster.status());
    }

    /// Sends, settles, and returns what came back, line ends as `|`.
    pub(crate) fn ask(&mut self, id: SessionId, bytes: &[u8]) -> String {
        self.send(id, bytes);
        self.settle();
        let received = std::mem::take(&mut self.clients.get_mut(&id).unwrap().received);
        received.escape_ascii().to_string().replace("\\r\\n", "\n").replace("\\'", "'").trim_end().replace('\n', "|")
    }

    pub(crate) fn redis(&mut self, id: SessionId, line: &str) -> String {
        self.ask(id, &crate::bed::resp(line))
    }

    pub(crate) fn memcached(&mut self, id: SessionId, text: &str) -> String {
        self.ask(id, format!("{}\r\n", text.replace('|', "\r\n")).as_bytes())
    }

    /// **equal-digests**: all members hold the same; returns the number of keys.
    pub(crate) fn assert_three_equal_copies(&mut self) -> u64 {
        self.run(500);
        let ranges: Vec<_> = self.cluster.ranges().collect();
        let mut keys = 0;
        for range in ranges {
            let copies = self.cluster.digests(range).unwrap();
            assert_eq!(copies.len(), MEMBERS as usize, "{range:?} lies on every disk");
            assert!(copies.iter().all(|(_, copy)| *copy == copies[0].1), "{range:?}: {copies:?}");
            keys += copies[0].1.keys;
        }
        keys
    }

    /// Device reads for lookups, on all members.
    pub(crate) fn reads(&self) -> u64 {
        self.cluster.engines().map(|engine| engine.stats().reads).sum()
    }
}
