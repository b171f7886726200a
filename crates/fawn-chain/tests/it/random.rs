//! Seeded random tests: a lossy, duplicating, reordering network, crashes and power loss, then healing.
//!
//! Another test proves that the oracle detects planted bugs.
use crate::cluster::{Bug, TestCluster, TestMessage};
use fawn_types::Durability;
use fawn_types::random::SplitMix64;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// One random event. `limbo` holds messages that are delivered much later, as by a route that recovers.
fn step(cluster: &mut TestCluster, random: &mut SplitMix64, limbo: &mut Vec<TestMessage>) {
    if random.chance(1, 40) && !cluster.net.is_empty() && limbo.len() < 64 {
        let index = random.below(cluster.net.len() as u64) as usize;
        limbo.push(cluster.net.remove(index));
    }
    if random.chance(1, 60) && !limbo.is_empty() {
        let message = limbo.swap_remove(random.below(limbo.len() as u64) as usize);
        cluster.hand_over(&message);
    }
    if random.chance(1, 600) {
        power_loss(cluster, random);
    }
    let node = 1 + random.below(3) as u32;
    match random.below(100) {
        0..20 => {
            if let Some(head) = cluster.head() {
                let _ = cluster.put(head);
            }
        }
        20..45 => cluster.turn(node, random.chance(1, 3)),
        45..90 if !cluster.net.is_empty() => network(cluster, random),
        90..97 => cluster.advance(1 + random.below(40)),
        97 if random.chance(1, 4) => crash(cluster, random, node),
        98.. if cluster.machines[&node].replica.is_none() => cluster.restart(node),
        _ => {}
    }
}

fn network(cluster: &mut TestCluster, random: &mut SplitMix64) {
    // Mostly in order, sometimes in any order: links are streams, but they break and reconnect.
    let index = if random.chance(1, 4) { random.below(cluster.net.len() as u64) as usize } else { 0 };
    match random.below(20) {
        0 => drop(cluster.net.remove(index)),
        1 => {
            let message = cluster.net.remove(index);
            cluster.hand_over(&message);
            cluster.net.push(message); // Delivered a second time later.
        }
        _ => cluster.deliver(index),
    }
}

fn crash(cluster: &mut TestCluster, random: &mut SplitMix64, node: u32) {
    match random.below(6) {
        0 | 1 => (1..=3).for_each(|id| cluster.crash(id, random.below(4) as usize)), // All machines.
        2 => {
            cluster.manager = None;
            cluster.start_manager();
        }
        _ => cluster.crash(node, random.below(4) as usize),
    }
}

/// All machines lose power; only some of them come back at once and continue without the others.
fn power_loss(cluster: &mut TestCluster, random: &mut SplitMix64) {
    (1..=3).for_each(|id| cluster.crash(id, random.below(3) as usize));
    let back = random.below(7) + 1;
    for id in (1..=3).filter(|id| back >> (id - 1) & 1 == 1) {
        cluster.restart(id);
    }
    if random.chance(1, 2) {
        cluster.run(500);
    }
}

/// Runs with faults, then without. The cluster must heal, serve and have equal logs. Returns the number of acked writes
/// and of copies.
fn simulate(seed: u64, durability: Durability, bug: Bug) -> (usize, usize) {
    let mut random = SplitMix64::new(seed);
    let mut cluster = TestCluster::new(3, durability, bug);
    cluster.kills_only = durability == Durability::EverySecond;
    if random.chance(2, 3) {
        cluster.retained_max = 1 + random.below(4) as usize;
    }
    if random.chance(1, 2) {
        cluster.run(600);
    }
    let mut limbo = Vec::new();
    let mut activations = 0;
    for _ in 0..3_000 {
        step(&mut cluster, &mut random, &mut limbo);
        // Power often fails right after an activation here: everything promised must be on disk by then.
        let active = cluster.events.iter().filter(|event| event.starts_with("active")).count();
        if active > activations && random.chance(1, 4) {
            power_loss(&mut cluster, &mut random);
        }
        activations = active;
    }
    limbo.iter().for_each(|message| cluster.hand_over(message));
    for id in 1..=3 {
        if cluster.machines[&id].replica.is_none() {
            cluster.restart(id);
        }
    }
    // A member that was left out twice has to keep up for 20 s before it is promoted, three times 40 s.
    for _ in 0..120 {
        cluster.run(500);
        if cluster.healed() {
            break;
        }
    }
    assert!(
        cluster.healed(),
        "did not heal: {:?} {:#?}",
        (1..=3).map(|id| cluster.phase(id)).collect::<Vec<_>>(),
        cluster.events.iter().rev().take(12).collect::<Vec<_>>()
    );
    let head = cluster.head().expect("a healed chain has a head");
    let version = cluster.put(head).expect("a healed chain accepts writes");
    cluster.run(100);
    assert!(cluster.acked.contains(&version), "a healed chain acks");
    assert!(cluster.healed());
    (cluster.acked.len(), cluster.copies)
}

fn seeds() -> std::ops::Range<u64> {
    match std::env::var("FAWN_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("FAWN_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..600,
    }
}

/// Runs all seeds; returns the number of copies.
fn simulate_seeds(durability: Durability) -> usize {
    let (mut acked, mut copies) = (0, 0);
    for seed in seeds() {
        let run = catch_unwind(AssertUnwindSafe(|| simulate(seed, durability, Bug::None)));
        let counts = run.unwrap_or_else(|panic| {
            println!("reproduce: FAWN_SEED={seed} cargo test -p fawn-chain --test it random::sync");
            std::panic::resume_unwind(panic)
        });
        acked += counts.0;
        copies += counts.1;
    }
    assert!(acked > 0, "no write was acked, so nothing was tested");
    println!("{acked} writes acked, {copies} copies");
    copies
}

#[test]
fn sync_survives_everything() {
    let copies = simulate_seeds(Durability::Sync);
    assert!(copies > 0 || seeds().count() == 1, "no copy was made, so copies were not tested");
}

/// Writes are acked when flushed, which survives `kill -9`: killing one or all processes loses no acked write.
#[test]
fn sync_every_second_survives_kills() {
    simulate_seeds(Durability::EverySecond);
}

/// The number of seeds below `seeds` that detect `bug`.
fn caught(bug: Bug, says: &str, seeds: u64) -> usize {
    let seen = (0..seeds).filter(|seed| {
        let run = catch_unwind(AssertUnwindSafe(|| simulate(*seed, Durability::Sync, bug)));
        let Err(panic) = run else { return false };
        let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        println!("{bug:?}, seed {seed}: {}", text.lines().next().unwrap_or_default());
        text.contains(says)
    });
    seen.count()
}

#[test]
fn the_oracle_sees_known_bugs() {
    // Only one seed in 40 loses an acked write: all machines must lose power between the ack and the sync.
    assert!(caught(Bug::AckBeforeSync, "lost", 300) > 0, "ack before sync");
    assert!(caught(Bug::PromiseNotPersisted, "epochs-only-grow", 50) > 0, "promise not persisted");
    assert!(caught(Bug::GapIgnored, "dense", 50) > 0, "gap ignored");
    assert!(caught(Bug::TransferCountedEarly, "lost", 50) > 0, "copy counted before it is complete");
}
