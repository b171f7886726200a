//! Tests of a store that was served alone, becomes a member of a chain, donates its records to it, and back.
use super::world::{BACK_ENDS, TestWorld};
use crate::member;
use crate::test_harness::{START, resp};
use fawn_chain::RangeEntry;
use fawn_chain::map::{ChainMember, ChainState, MemberRole, decode_state};
use fawn_ds::internals::{Engine, Options};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_node::{Placement, ServerInfo, SessionId, Shard, ShardOptions};
use fawn_types::{BootId, Durability, Epoch, Now, RangeId};
use fawn_wire::Protocol;
use std::collections::BTreeMap;

const RANGE: RangeId = RangeId(0);
const KEYS: usize = 120;

fn open(disk: &SimDisk, now: Now) -> Engine<SimDevice> {
    let secret = Some(super::world::SECRET);
    let options = Options { segment_bytes: 64 << 10, memory_bytes: 8 << 20, secret, ..Options::default() };
    Engine::open(SimDevice::attach(disk), options, now).unwrap().0
}

/// A server of one shard and its only client.
struct Alone {
    shard: Shard<SimDevice>,
    client: SessionId,
    now: Now,
}

impl Alone {
    fn start(disk: &SimDisk, now: Now) -> Self {
        let options = ShardOptions { durability: Durability::Sync, ..ShardOptions::default() };
        let mut shard = Shard::new(open(disk, now), Placement::ALONE, options, ServerInfo::default()).unwrap();
        let client = shard.open_session(Protocol::Resp);
        Self { shard, client, now }
    }

    fn ask(&mut self, line: &str) -> String {
        let input = resp(line);
        assert_eq!(self.shard.handle_input(self.now, self.client, &input), input.len());
        for _ in 0..1000 {
            self.now = self.now.plus_ms(1);
            self.shard.run_once_blocking(self.now);
            let reply = self.shard.output(self.client).to_vec();
            if !reply.is_empty() {
                self.shard.wrote(self.client, reply.len());
                return String::from_utf8(reply).unwrap().replace("\r\n", "|");
            }
        }
        panic!("{line} is never answered");
    }
}

/// A key's last value.
fn value(key: usize) -> Option<String> {
    (!key.is_multiple_of(7)).then(|| format!("{key}-").repeat(1 + key % 60))
}

/// Serves alone through three openings, two of which end by a loss of power.
fn serve_alone(disk: &SimDisk) {
    for opening in 0..3 {
        let mut alone = Alone::start(disk, START);
        for key in (opening * KEYS / 3)..KEYS {
            assert_eq!(alone.ask(&format!("SET k{key} old-{}", "v".repeat(600))), "+OK|");
            match value(key) {
                Some(value) => assert_eq!(alone.ask(&format!("SET k{key} {value}")), "+OK|"),
                None => assert_eq!(alone.ask(&format!("DEL k{key}")), ":1|"),
            }
        }
        drop(alone);
        disk.crash(opening as u64);
    }
}

/// The entry that the store kept, with two further members.
fn grown(disk: &SimDisk) -> RangeEntry {
    let engine = open(disk, START);
    let state = decode_state(engine.blob(RANGE.0 | 1 << 31).unwrap()).unwrap();
    let entry = state.entry.unwrap();
    assert_eq!((entry.members.len(), entry.is_active(), state.promised), (1, true, entry.epoch));
    assert_eq!(engine.sole_epoch(RANGE), Some(entry.epoch));
    let joined = (2..=BACK_ENDS).map(|node| ChainMember {
        id: member(node),
        boot: BootId::default(),
        role: MemberRole::Serving,
    });
    let members = entry.members.iter().copied().chain(joined).collect();
    RangeEntry { members, state: ChainState::Preparing, ..entry }
}

fn world_on(seed: u64, first: SimDisk, entry: RangeEntry) -> TestWorld {
    let disk = |node: u32| SimDisk::new(SimOptions { seed: seed ^ u64::from(node), ..SimOptions::default() });
    let mut disks: BTreeMap<u32, SimDisk> = (2..=BACK_ENDS).map(|node| (node, disk(node))).collect();
    disks.insert(1, first);
    TestWorld::on(seed, Durability::Sync, 8 << 20, disks, Some(entry))
}

fn assert_all(world: &mut TestWorld) {
    for key in 0..KEYS {
        let found = world.get(format!("k{key}").as_bytes());
        assert_eq!(found.value(), value(key).as_ref().map(String::as_bytes), "seed {}: k{key}: {found:?}", world.seed);
    }
}

#[test]
fn a_store_that_served_alone_donates_its_records_to_a_chain_and_back() {
    for seed in 900..904 {
        let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        serve_alone(&disk);
        let entry = grown(&disk);
        let alone = entry.epoch;
        let mut world = world_on(seed, disk, entry);
        assert_all(&mut world);
        world.put(b"chain", b"yes");
        let version = world.version(b"chain");
        assert!(version.epoch() > alone, "seed {seed}: {version:?} follows {alone:?}");
        let keys = (0..KEYS).filter(|key| value(*key).is_some()).count() as u64;
        assert_eq!(world.assert_equal_copies(), keys + 1, "seed {seed}");
        // The chain's records need marks on the disk that once did without.
        world.kill(1, true);
        let first = world.open(&world.disks[&1]);
        assert_eq!(first.sole_epoch(RANGE), None, "seed {seed}: a chain's epoch is no sole one");
        drop(first);
        // The donor's disk burns; its records do not.
        world.disks.remove(&1);
        for node in 2..=BACK_ENDS {
            back(&mut world, node, version.epoch());
        }
    }
}

/// The copy of a member serves alone, and keeps what the chain had.
fn back(world: &mut TestWorld, node: u32, of_chain: Epoch) {
    world.kill(node, true);
    let disk = world.disks[&node].clone();
    for round in 0..2 {
        let mut alone = Alone::start(&disk, world.now.plus_ms(round));
        for key in 0..KEYS {
            let expected = value(key).map_or("$-1|".to_owned(), |value| format!("${}|{value}|", value.len()));
            assert_eq!(alone.ask(&format!("GET k{key}")), expected, "seed {} node {node}", world.seed);
        }
        assert_eq!(alone.ask("GET chain"), "$3|yes|");
        assert_eq!(alone.ask("GET alone"), if round == 0 { "$-1|" } else { "$3|yes|" });
        assert_eq!(alone.ask("SET alone yes"), "+OK|");
        assert!(alone.shard.engine().sole_epoch(RANGE) > Some(of_chain), "an epoch above the chain's");
        drop(alone);
        disk.crash(round);
    }
}
