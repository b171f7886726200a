//! Sessions with disjoint keys: each receives exactly the replies that a store of its own would send.
use super::harness;
use crate::harness::shard_options;
use crate::test_harness::{TestHarness, resp, seeds};
use fawn_flash::SimOptions;
use fawn_node::{ClientService, SessionId, ShardOptions};
use fawn_types::Durability;
use fawn_types::random::SplitMix64;
use fawn_wire::Protocol;
use std::collections::HashMap;

const SESSIONS: usize = 12;
const KEYS: u64 = 4;
/// A budget that a few long values fill.
pub(crate) const ROOM_BYTES: usize = 96 << 10;

/// A client with its own keys, and the replies it must receive.
struct AloneClient {
    id: SessionId,
    number: usize,
    keys: HashMap<String, Vec<u8>>,
    expected: Vec<u8>,
}

impl AloneClient {
    fn value(&mut self, rng: &mut SplitMix64) -> Vec<u8> {
        let bytes = if rng.below(3) == 0 { 9000 + rng.below(20_000) } else { rng.below(100) };
        let batch = b'a' + rng.below(26) as u8;
        vec![batch; bytes as usize]
    }

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

    /// A random request; its reply is added to the expected ones.
    fn ask(&mut self, rng: &mut SplitMix64) -> Vec<u8> {
        let name = |number: usize, key: u64| format!("{number}:{key}");
        let (key, other) = (name(self.number, rng.below(KEYS)), name(self.number, rng.below(KEYS)));
        match rng.below(12) {
            0..=4 => {
                self.hear(self.keys.get(&key).cloned().as_ref());
                resp(&format!("GET {key}"))
            }
            5 | 6 => {
                let value = self.value(rng);
                let text = String::from_utf8(value.clone()).unwrap();
                self.keys.insert(key.clone(), value);
                self.expected.extend_from_slice(b"+OK\r\n");
                // `""` stands for an empty word.
                resp(&format!("SET {key} {}", if text.is_empty() { "\"\"" } else { &text }))
            }
            7 => {
                let value = self.keys.entry(key.clone()).or_default();
                value.extend_from_slice(b"more");
                self.expected.extend_from_slice(format!(":{}\r\n", value.len()).as_bytes());
                resp(&format!("APPEND {key} more"))
            }
            8 => {
                let count = u8::from(self.keys.remove(&key).is_some()) + u8::from(self.keys.remove(&other).is_some());
                self.expected.extend_from_slice(format!(":{count}\r\n").as_bytes());
                resp(&format!("DEL {key} {other}"))
            }
            9 => {
                let count = [&key, &other].into_iter().filter(|key| self.keys.contains_key(*key)).count();
                self.expected.extend_from_slice(format!(":{count}\r\n").as_bytes());
                resp(&format!("EXISTS {key} {other}"))
            }
            10 => {
                let value = self.keys.remove(&key);
                self.hear(value.as_ref());
                resp(&format!("GETDEL {key}"))
            }
            _ => {
                let length = self.keys.get(&key).map_or(0, Vec::len);
                self.expected.extend_from_slice(format!(":{length}\r\n").as_bytes());
                resp(&format!("STRLEN {key}"))
            }
        }
    }
}

/// One run; returns how often a reply did not fit in the budget.
fn run(seed: u64) -> u64 {
    println!("seed {seed}: FAWN_SEED={seed} cargo test -p fawn-node alone");
    let mut rng = SplitMix64::new(seed);
    let options = ShardOptions { replies_bytes_max: ROOM_BYTES, ..shard_options(Durability::Sync) };
    let sim = SimOptions { seed, latency_ticks: 0..=6, ..SimOptions::default() };
    let mut harness = harness(2 + (seed % 3) as u16, sim, options);
    clients_hear_their_own(&mut harness, &mut rng);
    harness.host.check_empty();
    harness.host.shards.iter().map(|shard| shard.status().counters.rereads).sum()
}

/// Clients with disjoint keys, which sometimes do not read their replies for a while.
pub(crate) fn clients_hear_their_own<H: ClientService, S>(harness: &mut TestHarness<H, S>, rng: &mut SplitMix64) {
    let mut clients: Vec<AloneClient> = (0..SESSIONS)
        .map(|number| {
            let (id, keys) = (harness.connect(Protocol::Resp), HashMap::new());
            AloneClient { id, number, keys, expected: Vec::new() }
        })
        .collect();
    for _ in 0..4 {
        // No client reads for a while, so replies fill the budget.
        harness.reads_replies = false;
        for _ in 0..rng.below(400) {
            let at = rng.below(SESSIONS as u64) as usize;
            let request = clients[at].ask(rng);
            harness.send(clients[at].id, &request);
            if rng.below(8) == 0 {
                harness.run_once();
            }
        }
        harness.run(20);
        harness.reads_replies = true;
        let ids: Vec<SessionId> = harness.clients.keys().copied().collect();
        ids.into_iter().for_each(|id| harness.take(id));
        harness.settle();
        hear(harness, &mut clients);
    }
}

fn hear<H: ClientService, S>(harness: &mut TestHarness<H, S>, clients: &mut [AloneClient]) {
    for client in clients {
        let received = std::mem::take(&mut harness.clients.get_mut(&client.id).unwrap().received);
        let expected = std::mem::take(&mut client.expected);
        let differs = received.iter().zip(&expected).position(|(a, b)| a != b).unwrap_or(received.len());
        let shown = |bytes: &[u8]| bytes[differs.min(bytes.len())..].iter().take(60).copied().collect::<Vec<u8>>();
        assert!(
            received == expected,
            "client {} at byte {differs} of {} and {}: received {:?}, expected {:?}",
            client.number,
            received.len(),
            expected.len(),
            shown(&received).escape_ascii().to_string(),
            shown(&expected).escape_ascii().to_string()
        );
    }
}

#[test]
fn each_hears_what_a_store_of_its_own_would_have_told() {
    let mut runs = 0;
    let asked_again: u64 = seeds("each_hears", 0..60).inspect(|_| runs += 1).map(run).sum();
    assert!(
        runs < 60 || asked_again > 100,
        "only {asked_again} replies did not fit in the budget: the case is not tested"
    );
}
