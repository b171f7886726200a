//! Pipelines of sessions with keys of their own, over chains whose members die and return: each session receives
//! exactly the replies that a store of its own would send, and every request is executed once.
use super::harness::ClusterHarness;
use crate::harness::resp;
use crate::test_harness::{START, seeds};
use fawn_flash::{SimDisk, SimOptions};
use fawn_node::{ClientService, LocalOptions, SessionId, ShardOptions};
use fawn_types::random::SplitMix64;
use fawn_wire::Protocol;
use std::collections::HashMap;

const SESSIONS: usize = 8;
const KEYS: u64 = 3;

/// A session, the content of its keys, and the replies that it must receive.
struct Pipeline {
    id: SessionId,
    number: usize,
    keys: HashMap<String, Vec<u8>>,
    expected: Vec<u8>,
}

impl Pipeline {
    fn hear(&mut self, value: Option<&Vec<u8>>) {
        match value {
            Some(value) => {
                self.expected.extend_from_slice(format!("${}\r\n", value.len()).as_bytes());
                self.expected.extend_from_slice(value);
                self.expected.extend_from_slice(b"\r\n");
            }
            None => self.expected.extend_from_slice(b"$-1\r\n"),
        }
    }

    fn key(&self, rng: &mut SplitMix64) -> String {
        format!("{}:{}", self.number, rng.below(KEYS))
    }

    fn value(rng: &mut SplitMix64) -> String {
        let bytes = if rng.chance(1, 3) { 5000 + rng.below(25_000) } else { 1 + rng.below(100) };
        char::from(b'a' + rng.below(26) as u8).to_string().repeat(bytes as usize)
    }

    /// A random request; its reply is added to the expected ones.
    fn ask(&mut self, is_one_range: bool, rng: &mut SplitMix64) -> Vec<u8> {
        let key = self.key(rng);
        match rng.below(14) {
            0..=3 => {
                self.hear(self.keys.get(&key).cloned().as_ref());
                resp(&format!("GET {key}"))
            }
            4 | 5 => {
                let value = Self::value(rng);
                self.keys.insert(key.clone(), value.clone().into_bytes());
                self.expected.extend_from_slice(b"+OK\r\n");
                resp(&format!("SET {key} {value}"))
            }
            6 => {
                let value = Self::value(rng);
                let former = self.keys.insert(key.clone(), value.clone().into_bytes());
                self.hear(former.as_ref());
                resp(&format!("GETSET {key} {value}"))
            }
            7 => {
                let value = self.keys.entry(key.clone()).or_default();
                value.extend_from_slice(b"more");
                self.expected.extend_from_slice(format!(":{}\r\n", value.len()).as_bytes());
                resp(&format!("APPEND {key} more"))
            }
            8 | 9 => {
                let key = format!("count:{key}");
                let value = self.keys.entry(key.clone()).or_insert_with(|| b"0".to_vec());
                let next = std::str::from_utf8(value).unwrap().parse::<u64>().unwrap() + 1;
                *value = next.to_string().into_bytes();
                self.expected.extend_from_slice(format!(":{next}\r\n").as_bytes());
                resp(&format!("INCR {key}"))
            }
            10 | 11 => {
                let keys: Vec<String> = (0..1 + rng.below(5)).map(|_| self.key(rng)).collect();
                self.expected.extend_from_slice(format!("*{}\r\n", keys.len()).as_bytes());
                for key in &keys {
                    self.hear(self.keys.get(key).cloned().as_ref());
                }
                resp(&format!("MGET {}", keys.join(" ")))
            }
            12 => {
                let keys: Vec<String> = (0..1 + rng.below(3)).map(|_| self.key(rng)).collect();
                let count = keys.iter().filter(|key| self.keys.remove(*key).is_some()).count();
                self.expected.extend_from_slice(format!(":{count}\r\n").as_bytes());
                resp(&format!("DEL {}", keys.join(" ")))
            }
            _ => {
                let other = if is_one_range { self.key(rng) } else { key.clone() };
                let (one, two) = (Self::value(rng), Self::value(rng));
                self.keys.insert(key.clone(), one.clone().into_bytes());
                self.keys.insert(other.clone(), two.clone().into_bytes());
                self.expected.extend_from_slice(b"+OK\r\n");
                resp(&format!("MSET {key} {one} {other} {two}"))
            }
        }
    }
}

struct Run {
    harness: ClusterHarness,
    pipelines: Vec<Pipeline>,
    opened: usize,
    is_one_range: bool,
    rng: SplitMix64,
    seed: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let shard = ShardOptions {
            replies_bytes_max: if seed.is_multiple_of(3) { 96 << 10 } else { 64 << 20 },
            value_bytes_max: 200 << 10,
            pending_max: if seed.is_multiple_of(2) { 40 } else { 10_000 },
            ..ShardOptions::default()
        };
        let is_one_range = seed % 4 < 2;
        let shards = if is_one_range { 1 } else { 1 + (seed / 4 % 3) as u16 };
        let mut options = LocalOptions { shard, is_one_range, shards, ..LocalOptions::default() };
        if seed % 5 < 3 {
            options.limits.router.window_ops_max = 2 + seed % 7;
        }
        let latency_ticks = if seed.is_multiple_of(2) { 0..=0 } else { 0..=6 };
        let disk = |at| {
            SimDisk::new(SimOptions {
                seed: seed * 9 + at,
                latency_ticks: latency_ticks.clone(),
                ..SimOptions::instant(seed * 9 + at)
            })
        };
        let memory_bytes = if seed % 3 == 1 { 1 << 20 } else { 8 << 20 };
        let harness = ClusterHarness::on((0..3 * u64::from(shards)).map(disk).collect(), options, memory_bytes, START);
        let mut run =
            Self { harness, pipelines: Vec::new(), opened: 0, is_one_range, rng: SplitMix64::new(seed), seed };
        // The chains begin to serve.
        run.harness.run(3000);
        (0..SESSIONS).for_each(|_| run.open());
        run
    }

    fn open(&mut self) {
        self.opened += 1;
        let (id, keys) = (self.harness.connect(Protocol::Resp), HashMap::new());
        self.pipelines.push(Pipeline { id, number: self.opened, keys, expected: Vec::new() });
    }

    fn ask_some(&mut self, count: u64) {
        for _ in 0..count {
            let at = self.rng.below(self.pipelines.len() as u64) as usize;
            let request = self.pipelines[at].ask(self.is_one_range, &mut self.rng);
            self.harness.send(self.pipelines[at].id, &request);
            if self.rng.chance(1, 8) {
                self.harness.run_once();
            }
        }
    }

    /// A session ends, whatever it waits for; a new one with new keys follows.
    fn close_one(&mut self) {
        let at = self.rng.below(self.pipelines.len() as u64) as usize;
        let id = self.pipelines.swap_remove(at).id;
        self.harness.host.close_session(id);
        self.harness.clients.remove(&id);
        self.open();
    }

    fn hear(&mut self) {
        self.harness.settle();
        for client in &mut self.pipelines {
            let received = std::mem::take(&mut self.harness.clients.get_mut(&client.id).unwrap().received);
            let expected = std::mem::take(&mut client.expected);
            let differs = received.iter().zip(&expected).position(|(a, b)| a != b).unwrap_or(received.len());
            let shown = |bytes: &[u8]| bytes[differs.min(bytes.len())..].iter().take(60).copied().collect::<Vec<u8>>();
            assert!(
                received == expected,
                "seed {}: session {} at byte {differs} of {} and {}: received {:?}, expected {:?}",
                self.seed,
                client.number,
                received.len(),
                expected.len(),
                shown(&received).escape_ascii().to_string(),
                shown(&expected).escape_ascii().to_string()
            );
        }
        let status = self.harness.host.status();
        let replies = status.replies;
        assert_eq!((replies.held_bytes, replies.reserved_bytes, replies.waiting), (0, 0, 0), "seed {}", self.seed);
        assert_eq!(status.pending, 0, "seed {}", self.seed);
    }
}

#[test]
fn pipelines_hear_their_own_while_members_die() {
    for seed in seeds("pipelines_hear", 0..8) {
        let mut run = Run::new(seed);
        for _ in 0..3 {
            let victim = 2 + (seed / 7 % 2) as u32;
            run.harness.reads_replies = run.rng.chance(1, 2);
            run.ask_some(150);
            if run.rng.chance(1, 2) {
                run.close_one();
            }
            run.harness.kill(victim, seed);
            run.ask_some(100);
            run.close_one();
            run.harness.run(20);
            run.ask_some(100);
            run.harness.reads_replies = true;
            let ids: Vec<SessionId> = run.harness.clients.keys().copied().collect();
            ids.into_iter().for_each(|id| run.harness.take(id));
            run.hear();
            run.harness.restart(victim);
            run.ask_some(50);
            run.harness.run(3000);
            run.hear();
        }
        run.harness.assert_three_equal_copies();
    }
}

/// A host that runs an iteration only for input, device events and announced work: no request waits for anything else,
/// and nothing is due for ever.
#[test]
fn work_is_announced_and_ends() {
    for seed in 0..8 {
        println!("seed {seed}");
        let mut run = Run::new(seed);
        for _ in 0..40 {
            let count = 1 + run.rng.below(30);
            for _ in 0..count {
                let at = run.rng.below(run.pipelines.len() as u64) as usize;
                let request = run.pipelines[at].ask(run.is_one_range, &mut run.rng);
                run.harness.send(run.pipelines[at].id, &request);
            }
            if run.rng.chance(1, 10) {
                run.close_one();
            }
            let refused_before = run.harness.statuses().map(|status| status.counters.chain_refused).sum::<u64>();
            let mut iterations = 0;
            loop {
                iterations += 1;
                assert!(iterations < 20_000, "seed {seed}: never idle: {:#?}", run.harness.host.status());
                let harness = &mut run.harness;
                let due = harness.host.run_once(harness.now);
                let mut has_outputs = false;
                while let Some(output) = harness.host.poll_output() {
                    has_outputs = true;
                    harness.handle(output);
                }
                let is_in_flight = harness.host.engines().any(|engine| engine.in_flight() > 0);
                if is_in_flight {
                    harness.now = harness.now.plus_ms(1);
                }
                let is_due = due.is_some_and(|due| due <= harness.now.mono);
                if has_outputs || is_in_flight || is_due || harness.host.has_due_work() {
                    continue;
                }
                if harness.host.status().pending == 0 {
                    break;
                }
                // A refused request is sent again by the clock.
                let refused = harness.statuses().map(|status| status.counters.chain_refused).sum::<u64>();
                assert!(refused > refused_before, "seed {seed}: {:#?}", harness.host.status());
                harness.now = harness.now.plus_ms(1);
            }
            let status = run.harness.host.status();
            assert_eq!(status.pending, 0, "seed {seed}: {status:#?}");
            assert!(run.harness.clients.values().all(|client| client.input.is_empty()), "seed {seed}: {status:#?}");
        }
        run.hear();
    }
}

/// A request on many keys of a range that takes no requests fails in the time that each of them may take, however many
/// find the window full.
#[test]
fn requests_beyond_a_window_fail_with_those_in_it() {
    let mut options = LocalOptions::default();
    options.shard.value_bytes_max = 200 << 10;
    options.limits.router.window_ops_max = 4;
    let timeout_ms = options.limits.router.timeout_ms;
    let mut harness = ClusterHarness::at_dead_chains(options);
    let id = harness.connect(Protocol::Resp);
    let keys: Vec<String> = (0..40).map(|key| format!("k{key}")).collect();
    harness.send(id, &resp(&format!("DEL {}", keys.join(" "))));
    harness.run(usize::try_from(timeout_ms).unwrap() + 100);
    let received = String::from_utf8_lossy(&harness.clients[&id].received).into_owned();
    assert!(received.starts_with("-TRYAGAIN "), "{received:?}");
    harness.settle();
    let status = harness.host.status();
    assert_eq!((status.pending, status.replies.reserved_bytes), (0, 0));
}
