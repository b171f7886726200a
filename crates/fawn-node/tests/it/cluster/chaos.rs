//! Random faults under load, checked by appended tokens: an append-only list reveals loss, duplication and stale reads.
//!
//! `FAWN_SEED=n cargo test -p fawn-node --test it chaos` reproduces one seed.
use super::commands::{Answer, append, get};
use super::world::{BACK_ENDS, FRONT_END, TestOp, TestWorld};
use crate::test_harness::seeds;
use fawn_types::Durability;
use std::collections::BTreeMap;

const TOKEN_BYTES: usize = 4;
const KEYS: u64 = 3;

/// A request, and the tokens known to be acked when it was sent.
struct Asked {
    key: usize,
    /// The appended token; `None` for a read.
    token: Option<u32>,
    /// Tokens of the key that were acked before the request.
    acked_before: Vec<u32>,
}

#[derive(Default)]
struct ChaosHistory {
    asked: BTreeMap<TestOp, Asked>,
    acked: [Vec<u32>; KEYS as usize],
    reads: Vec<(usize, Vec<u32>, Vec<u32>)>,
    appended: u32,
    unknown: u32,
}

impl ChaosHistory {
    fn ask(&mut self, world: &mut TestWorld) {
        let key = world.random.below(KEYS) as usize;
        let name = format!("list:{key}");
        let token = world.random.chance(1, 2).then_some(self.appended);
        let command = match token {
            Some(token) => append(name.as_bytes(), &token.to_le_bytes()),
            None => get(name.as_bytes()),
        };
        self.appended += u32::from(token.is_some());
        if let Ok(op) = world.submit(&command) {
            let acked_before = self.acked[key].clone();
            self.asked.insert(op, Asked { key, token, acked_before });
        }
    }

    fn hear(&mut self, world: &mut TestWorld) {
        for (op, answer) in std::mem::take(&mut world.done) {
            let Some(asked) = self.asked.remove(&op) else { continue };
            match (asked.token, answer) {
                (Some(token), Answer::Number(_)) => self.acked[asked.key].push(token),
                (Some(_), _) => self.unknown += 1,
                (None, Answer::Value(value, _)) => self.reads.push((asked.key, asked.acked_before, tokens(&value))),
                (None, Answer::Absent) => self.reads.push((asked.key, asked.acked_before, Vec::new())),
                (None, _) => {}
            }
        }
    }

    /// Checks that every read is a prefix of the final list and contains all tokens acked before it, and that no token
    /// occurs twice.
    fn judge(&self, finals: &[Vec<u32>]) -> Result<(), String> {
        for (key, last) in finals.iter().enumerate() {
            let mut sorted = last.clone();
            sorted.sort_unstable();
            if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(format!("list {key} has token {} twice: {last:?}", pair[0]));
            }
            if let Some(token) = self.acked[key].iter().find(|token| !last.contains(token)) {
                return Err(format!("acked token {token} of list {key} is gone: {last:?}"));
            }
        }
        for (key, acked_before, seen) in &self.reads {
            if !finals[*key].starts_with(seen) {
                return Err(format!("read {seen:?} is no prefix of {:?}", finals[*key]));
            }
            if let Some(token) = acked_before.iter().find(|token| !seen.contains(token)) {
                return Err(format!("a read missed {token}, acked before it was asked: {seen:?}"));
            }
        }
        Ok(())
    }
}

fn tokens(value: &[u8]) -> Vec<u32> {
    value.as_chunks::<TOKEN_BYTES>().0.iter().map(|token| u32::from_le_bytes(*token)).collect()
}

/// Begins or ends a random fault.
fn disturb(world: &mut TestWorld, may_lose_power: bool) {
    let node = world.random.below(u64::from(BACK_ENDS)) as u32 + 1;
    match world.random.below(10) {
        0..=3 if world.nodes.contains_key(&node) => {
            let power = world.random.chance(1, 2) && may_lose_power;
            world.kill(node, power);
        }
        4 => {
            for node in 1..=BACK_ENDS {
                if world.nodes.contains_key(&node) {
                    world.kill(node, may_lose_power);
                }
            }
        }
        5 | 6 => {
            let to = world.random.below(u64::from(FRONT_END)) as u32 + 1;
            if to != node {
                world.cut.insert((node, to));
            }
        }
        7 => world.cut.clear(),
        _ if !world.nodes.contains_key(&node) => world.start(node),
        _ => {}
    }
}

fn heal(world: &mut TestWorld) {
    world.cut.clear();
    for node in 1..=BACK_ENDS {
        if !world.nodes.contains_key(&node) {
            world.start(node);
        }
    }
}

/// Returns the numbers of acked tokens, of reads, and of operations with an unknown outcome.
fn chaos(seed: u64, durability: Durability, faults: usize) -> (usize, usize, u32) {
    let mut world = TestWorld::with(seed, durability, 8 << 20);
    let mut history = ChaosHistory::default();
    for _ in 0..faults {
        let steps = world.random.below(400);
        for _ in 0..steps {
            if world.random.chance(1, 4) {
                history.ask(&mut world);
            }
            world.step();
            history.hear(&mut world);
        }
        // Only `sync` promises to survive power loss; the other modes survive the end of a process.
        disturb(&mut world, durability == Durability::Sync);
    }
    heal(&mut world);
    for _ in 0..12_000 {
        world.step();
        history.hear(&mut world);
    }
    assert!(history.asked.is_empty(), "seed {seed}: {} unanswered {:#?}", history.asked.len(), world.statuses());
    let finals: Vec<Vec<u32>> = (0..KEYS)
        .map(|key| match world.get(format!("list:{key}").as_bytes()) {
            Answer::Value(value, _) => tokens(&value),
            Answer::Absent => Vec::new(),
            other => panic!("seed {seed}: {other:?} {:#?}", world.statuses()),
        })
        .collect();
    if let Err(error) = history.judge(&finals) {
        panic!("seed {seed}: {error}");
    }
    world.assert_equal_copies();
    (history.acked.iter().map(Vec::len).sum(), history.reads.len(), history.unknown)
}

#[test]
fn no_fault_loses_repeats_or_reorders_what_was_acked() {
    let (mut acked, mut reads) = (0, 0);
    for seed in seeds("no_fault_loses", 1000..1013) {
        let (seed_acked, seed_reads, unknown) =
            chaos(seed, Durability::Sync, std::env::var("FAWN_FAULTS").map_or(12, |n| n.parse().unwrap()));
        println!("  {seed_acked} acked, {seed_reads} reads, {unknown} unknown");
        acked += seed_acked;
        reads += seed_reads;
    }
    assert!(acked > 0 && reads > 0, "no load was served: {acked} acked, {reads} reads");
}

#[test]
fn everysec_survives_the_end_of_any_process() {
    for seed in seeds("everysec_survives", 2000..2006) {
        let (acked, reads, _) = chaos(seed, Durability::EverySecond, 12);
        assert!(acked > 0 && reads > 0, "seed {seed}: no load was served");
    }
}

/// Tests the checker itself: it detects each way to break a history.
#[test]
fn corrupted_histories_are_caught() {
    let good = || {
        let mut history = ChaosHistory::default();
        history.acked[0] = vec![1, 2, 3];
        history.reads.push((0, vec![1], vec![1, 2]));
        history
    };
    let finals = |list: &[u32]| vec![list.to_vec(), Vec::new(), Vec::new()];
    assert_eq!(good().judge(&finals(&[1, 2, 3])), Ok(()));
    let caught = |history: &ChaosHistory, list: &[u32], word: &str| {
        let error = history.judge(&finals(list)).unwrap_err();
        assert!(error.contains(word), "{error}");
    };
    caught(&good(), &[1, 2], "is gone");
    caught(&good(), &[1, 2, 3, 2], "twice");
    caught(&good(), &[2, 1, 3], "no prefix");
    let mut stale = good();
    stale.reads.push((0, vec![1, 2], vec![1]));
    caught(&stale, &[1, 2, 3], "missed 2");
}
