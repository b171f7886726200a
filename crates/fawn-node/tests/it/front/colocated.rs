//! Front-end on a back-end's own node: a chain of one, without links or encoded frames.
use crate::harness::{resp, shard_options};
use crate::member;
use fawn_chain::map::NodeEntry;
use fawn_chain::{ClusterMap, RingOptions};
use fawn_ds::internals::{Engine, Options};
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_node::cluster::{MapPlace, NodeConfig, NodeLimits};
use fawn_node::{ServerInfo, Shard, ShardOutput};
use fawn_types::{BootId, Durability, HashSecret, NodeId, Now};
use fawn_wire::Protocol;

const START: Now = Now::at(1_700_000_000_000);
const SECRET: HashSecret = HashSecret(*b"a chain of one..");

fn front_end(disk: &SimDisk) -> Shard<SimDevice> {
    with_limits(disk, NodeLimits::default())
}

fn with_limits(disk: &SimDisk, limits: NodeLimits) -> Shard<SimDevice> {
    let options = Options { segment_bytes: 1 << 20, secret: Some(SECRET), ..Options::default() };
    let (engine, _) = Engine::open(SimDevice::attach(disk), options, START).unwrap();
    let node = NodeEntry { node: NodeId(1), shards: 1, weight: 1, domain: 0, address: String::new() };
    let ring = RingOptions { replication: 1, virtual_ids: 1 };
    let config = NodeConfig {
        id: member(1),
        boot: BootId(1),
        durability: Durability::Sync,
        map: ClusterMap::new(SECRET, Durability::Sync, ring, vec![node]),
        manager: Some(member(1)),
        map_place: MapPlace::OwnStore,
        limits,
    };
    Shard::in_cluster(engine, config, shard_options(Durability::Sync), ServerInfo::default(), START).unwrap()
}

#[test]
fn a_node_serves_its_own_clients() {
    let disk = SimDisk::new(SimOptions::instant(3));
    let mut front = front_end(&disk);
    let id = front.open_session(Protocol::Resp);
    let pipeline = ["SET k 1", "INCR k", "MSET a 1 b 2", "MGET k a b", "DBSIZE", "SCAN 0", "FLUSHALL", "GET k"];
    let bytes: Vec<u8> = pipeline.iter().flat_map(|line| resp(line)).collect();
    let (mut at, mut received, mut now) = (0, Vec::new(), START);
    for _ in 0..5000 {
        if at < bytes.len() && front.wants_input(id) {
            at += front.handle_input(now, id, &bytes[at..]);
        }
        now = now.plus_ms(1);
        front.run_once(now);
        while let Some(output) = front.poll_output() {
            assert!(!matches!(output, ShardOutput::Close(_)));
        }
        assert!(front.poll_node_output().is_none(), "a chain of one has no peers");
        received.extend_from_slice(front.output(id));
        let taken = front.output(id).len();
        front.wrote(id, taken);
        if at == bytes.len() && front.is_idle() && received.ends_with(b"$-1\r\n") {
            break;
        }
    }
    let received = String::from_utf8_lossy(&received).replace("\r\n", "|");
    let (before, after) = received.split_once("*2|$1|0|*3|").unwrap();
    assert_eq!(before, "+OK|:2|+OK|*3|$1|2|$1|1|$1|2|:3|");
    assert!(after.ends_with("|+OK|$-1|"), "{after}");
    assert_eq!(front.status().counters.commands, pipeline.len() as u64);
}

/// Requests that wait for the window of their range, or for an earlier request of their session, begin with the replies
/// of these: the node is due for them, and no clock needs to advance.
#[test]
fn requests_behind_others_wait_for_no_timer() {
    let mut limits = NodeLimits::default();
    limits.router.window_ops_max = 2;
    let mut front = with_limits(&SimDisk::new(SimOptions::instant(3)), limits);
    let mut now = START;
    for _ in 0..3_000 {
        now = now.plus_ms(1);
        front.run_once_blocking(now);
    }
    let behind_others = [resp("INCR k"), resp("GET k"), resp("INCR k"), resp("GET k")].concat();
    let pipelines = [vec![(behind_others, "$1\r\n2\r\n")], vec![(resp("DBSIZE"), ":1\r\n"); 40]];
    for pipelines in pipelines {
        let asked: Vec<_> =
            pipelines.iter().map(|(bytes, last)| (front.open_session(Protocol::Resp), bytes, last)).collect();
        for (id, bytes, _) in &asked {
            assert_eq!(front.handle_input(now, *id, bytes), bytes.len());
        }
        while front.run_once_blocking(now).is_some_and(|due| due <= now.mono) || front.engine().in_flight() > 0 {}
        assert_eq!(front.status().pending, 0);
        assert!(asked.iter().all(|(id, _, last)| front.output(*id).ends_with(last.as_bytes())));
    }
}
