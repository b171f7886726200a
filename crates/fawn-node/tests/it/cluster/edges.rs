//! Edge cases: stale epochs, expiry by chain time, logs that no longer reach back, stores of other clusters.
use super::commands::{Answer, redis, set};
use super::world::{BACK_ENDS, FRONT_END, SECRET, TestWorld};
use crate::member;
use fawn_chain::map::NodeEntry;
use fawn_chain::message::{FrameStream, RefusedReason, encode_frame};
use fawn_chain::{Body, BootsMessage, ClusterMap, Frame, Header, RangeEntry, RingOptions};
use fawn_ds::internals::{Engine, Options};
use fawn_flash::sim::OpKind;
use fawn_flash::{SimDevice, SimDisk, SimOptions};
use fawn_node::cluster::payload::{RequestBody, decode_request, encode_request};
use fawn_node::cluster::{MapPlace, NodeConfig, NodeError, NodeLimits, NodeOutput};
use fawn_node::{ServerInfo, Shard, ShardOptions};
use fawn_types::{
    BootId, ClientTag, Condition, Durability, Epoch, HashSecret, MemberId, NodeId, Now, RangeId, Reply, Request,
    RingKey, Update,
};
use fawn_wire::internal::{KeyValuePairs, KeyspaceRequest, put_pair, put_result};
use std::ops::RangeInclusive;

/// A front-end apart from the world's.
pub(super) const STRANGER: u32 = 9;
pub(super) const STRANGERS_BOOT: BootId = BootId(77);
pub(super) const STRANGERS_SESSION: u64 = (member(STRANGER).0 as u64) << 32 | 7;

/// Sends a request with any epoch, as a separate front-end. Returns a description of the replies.
fn ask(world: &mut TestWorld, to: u32, epoch: Epoch, range: RangeId, request: &Request<'_>) -> Vec<String> {
    let tag = ClientTag { session: STRANGERS_SESSION, seq: 1 };
    ask_as(world, to, (epoch, range), (STRANGERS_SESSION, tag), &RequestBody::Key(*request))
}

/// As [`ask`], with this session in the payload and this tag.
fn ask_as(
    world: &mut TestWorld,
    to: u32,
    (epoch, range): (Epoch, RangeId),
    (session, tag): (u64, ClientTag),
    request: &RequestBody<'_>,
) -> Vec<String> {
    let mut payload = Vec::new();
    encode_request(session, u32::MAX, request, &mut payload);
    send_to(world, to, (epoch, range), (tag, 1), &payload)
}

/// Sends the payload of a stranger's first operation with this tag and first incomplete operation.
fn send_to(
    world: &mut TestWorld,
    to: u32,
    at: (Epoch, RangeId),
    (tag, first_incomplete): (ClientTag, u64),
    payload: &[u8],
) -> Vec<String> {
    let bytes = stranger_frame(at, Body::Request { op: 1, tag, first_incomplete, payload });
    let now = world.now;
    let node = world.nodes.get_mut(&to).unwrap();
    node.handle_bytes(now, member(STRANGER), &bytes);
    let mut heard = Vec::new();
    for _ in 0..50 {
        let _ = node.run_once(now);
        while let Some(output) = node.poll_node_output() {
            let NodeOutput::Send { to, bytes } = output else { continue };
            if to != member(STRANGER) {
                continue;
            }
            let mut stream = FrameStream::new();
            stream.push(&bytes);
            while let Some(frame) = stream.next_frame().unwrap() {
                heard.push(match frame.body {
                    Body::Refused { reason: RefusedReason::StaleEpoch, .. } => "stale".to_owned(),
                    Body::Refused { reason: RefusedReason::WrongRange, .. } => "wrong range".to_owned(),
                    Body::Refused { reason: RefusedReason::Overloaded, .. } => "overloaded".to_owned(),
                    Body::Refused { reason: RefusedReason::Larger { bytes }, .. } => format!("larger {bytes}"),
                    Body::Entry(entry) => format!("entry {:?}", entry.epoch),
                    Body::Reply { payload, .. } => format!("reply of {}", payload.len()),
                    other => format!("{other:?}"),
                });
            }
        }
    }
    heard
}

pub(super) fn stranger_frame((epoch, range): (Epoch, RangeId), body: Body<'_>) -> Vec<u8> {
    let header = Header { from: member(STRANGER), boot: STRANGERS_BOOT, range, epoch };
    let mut bytes = Vec::new();
    encode_frame(&Frame { header, body }, &mut bytes);
    bytes
}

/// Sends the manager a heartbeat of a process, and waits until the heads know it.
pub(super) fn introduce(world: &mut TestWorld, id: MemberId, boot: BootId) {
    let header = Header { from: id, boot, range: RangeId(0), epoch: Epoch::default() };
    let mut bytes = Vec::new();
    encode_frame(&Frame { header, body: Body::Hello }, &mut bytes);
    let now = world.now;
    world.nodes.get_mut(&1).unwrap().handle_bytes(now, id, &bytes);
    world.run(300);
}

#[test]
fn stale_epochs_and_foreign_keys_are_refused_with_the_newer_entry() {
    let mut world = TestWorld::new(60);
    world.put(b"k", b"1");
    let status = world.status(2);
    let member = status.members.iter().find(|member| member.phase == "tail" || member.phase == "head").unwrap();
    let (range, epoch) = (member.range, member.epoch);
    let older = Epoch::new(epoch.get() - 1).unwrap();
    let get = Request::Get { key: b"k" };
    assert_eq!(ask(&mut world, 2, older, range, &get), [format!("entry {epoch:?}"), "stale".to_owned()]);
    let again = ask(&mut world, 2, older, range, &get);
    assert_eq!(again, [format!("entry {epoch:?}"), "stale".to_owned()], "the first entry may have been lost");
    assert_eq!(ask(&mut world, 2, epoch.next().unwrap(), range, &get), ["stale"], "the node knows no newer entry");
    assert_eq!(ask(&mut world, 2, epoch, RangeId(4000), &get), ["wrong range"]);
    let covered = (0..64_u8).map(|i| [b'q', i]).filter_map(|key| {
        let heard = ask(&mut world, 2, epoch, range, &Request::Get { key: &key });
        heard.first().cloned()
    });
    let kinds: std::collections::BTreeSet<String> = covered.collect();
    assert!(kinds.contains("wrong range"), "keys of other ranges are rejected: {kinds:?}");
}

/// An update is done at the head of a chain that covers all its keys, for the front-end that its tag names.
#[test]
fn updates_are_done_at_their_head_for_the_sender_of_their_tag() {
    let mut world = TestWorld::new(64);
    introduce(&mut world, member(STRANGER), STRANGERS_BOOT);
    world.put(b"k", b"1");
    let map = world.manager_map().clone();
    let entry = map.range_of(&RingKey::of(&map.secret, b"k")).unwrap();
    let at = (entry.epoch, entry.range);
    let (head, tail) = (entry.head().unwrap().node().0, entry.tail().unwrap().node().0);
    let is_foreign = |key: &[u8]| !entry.keys.contains(&RingKey::of(&map.secret, key));
    let foreign = (0..64_u8).map(|i| [b'q', i]).find(|key| is_foreign(key)).unwrap();
    let tag = |session, seq| (session, ClientTag { session, seq });
    let clear = RequestBody::Keyspace(KeyspaceRequest::Clear);
    let mut bytes = Vec::new();
    put_pair(&mut bytes, b"k", b"2");
    put_pair(&mut bytes, &foreign, b"2");
    let pairs = RequestBody::Keyspace(KeyspaceRequest::SetAll(KeyValuePairs::new(&bytes).unwrap()));
    assert_eq!(ask_as(&mut world, tail, at, tag(STRANGERS_SESSION, 1), &clear), ["stale"]);
    assert_eq!(ask_as(&mut world, head, at, tag(STRANGERS_SESSION, 1), &pairs), ["wrong range"]);
    let of_another_session = (STRANGERS_SESSION, ClientTag { session: STRANGERS_SESSION + 1, seq: 1 });
    let of_another_node = tag(u64::from(FRONT_END) << 32 | 1, 1);
    for (at_fault, tag) in
        [("session", of_another_session), ("number", tag(STRANGERS_SESSION, 2)), ("node", of_another_node)]
    {
        assert_eq!(ask_as(&mut world, head, at, tag, &clear), [""; 0], "a tag of another {at_fault}");
    }
    world.run(1_000);
    assert_eq!(world.get(b"k").value(), Some(&b"1"[..]), "none of them had an effect");
}

/// A head accepts no update of a process whose identity another one has: its record would end the session of that one,
/// whose updates would be dropped from then on. The later open of a store is its shard's process once the manager has
/// admitted it. The front-end is in no map.
#[test]
fn a_process_without_its_identity_updates_nothing() {
    let mut world = TestWorld::new(68);
    world.put(b"k", b"1");
    let entry = world.manager_map().range_of(&RingKey::of(&SECRET, b"k")).unwrap().clone();
    let (head, tail) = (entry.head().unwrap().node().0, entry.tail().unwrap());
    let increment = |world: &mut TestWorld, from: MemberId, boot: BootId| {
        let session = u64::from(from.0) << 32 | u64::from(boot.generation() << 16 ^ boot.0 as u32);
        let mut payload = Vec::new();
        let request = RequestBody::Key(Request::Update { key: b"k", update: Update::AddSigned { delta: 1 } });
        encode_request(session, u32::MAX, &request, &mut payload);
        let tag = ClientTag { session, seq: 1 };
        let header = Header { from, boot, range: entry.range, epoch: entry.epoch };
        let body = Body::Request { op: 1, tag, first_incomplete: 1, payload: &payload };
        let mut bytes = Vec::new();
        encode_frame(&Frame { header, body }, &mut bytes);
        world.nodes.get_mut(&head).unwrap().handle_bytes(world.now, from, &bytes);
        world.run(100);
        world.get(b"k").value().map(<[u8]>::to_vec).unwrap()
    };
    for (from, known) in [(tail, entry.member(tail).unwrap().boot), (member(FRONT_END), world.boot(FRONT_END))] {
        let (open, random) = (known.generation(), known.0 as u32);
        for (open, random) in [(open - 1, random), (open, random + 1), (open + 1, random)] {
            let boot = BootId::new(open, random);
            assert_eq!(increment(&mut world, from, boot), b"1", "{boot:?} of {from}, not {known:?}");
        }
    }
    world.put(b"k", b"5");
    let known = world.boot(FRONT_END);
    let later = BootId::new(known.generation() + 1, 9);
    introduce(&mut world, member(FRONT_END), later);
    assert_eq!(increment(&mut world, member(FRONT_END), later), b"6");
    assert_eq!(increment(&mut world, member(FRONT_END), known), b"6", "an earlier open");
}

/// An update is refused for the length of its value before it is evaluated, and for good: the front-end repeats it as
/// another operation, so a late copy must have no effect.
#[test]
fn an_update_refused_for_its_length_is_never_done() {
    for (is_cold, is_behind_another) in [(false, false), (true, false), (true, true)] {
        let mut world = TestWorld::with(65, Durability::Sync, 1 << 20);
        let mut long = vec![b'v'; 10_000];
        introduce(&mut world, member(STRANGER), STRANGERS_BOOT);
        world.put(b"k", &long);
        // More than the memory for values.
        (0..if is_cold { 600 } else { 0 }).for_each(|i| world.put(format!("other:{i}").as_bytes(), &long));
        let map = world.manager_map().clone();
        let entry = map.range_of(&RingKey::of(&map.secret, b"k")).unwrap();
        let (at, head) = ((entry.epoch, entry.range), entry.head().unwrap().node().0);
        let payload = |grant_bytes, update| {
            let mut payload = Vec::new();
            let request = RequestBody::Key(Request::Update { key: b"k", update });
            encode_request(STRANGERS_SESSION, grant_bytes, &request, &mut payload);
            payload
        };
        let tag = |seq| ClientTag { session: STRANGERS_SESSION, seq };
        if is_behind_another {
            // It waits for the device, and the next update for it.
            let append = Update::Append { create: false, condition: Condition::Always, bytes: b"v" };
            let payload = payload(u32::MAX, append);
            let frame =
                stranger_frame(at, Body::Request { op: 2, tag: tag(2), first_incomplete: 1, payload: &payload });
            world.nodes.get_mut(&head).unwrap().handle_bytes(world.now, member(STRANGER), &frame);
            long.push(b'v');
        }
        let delete = payload(9_999, Update::Delete { condition: Condition::Always, return_previous: true });
        let refused = send_to(&mut world, head, at, (tag(1), 1), &delete);
        let bytes: usize = refused[0].strip_prefix("larger ").unwrap().parse().unwrap();
        assert!(bytes >= long.len() && refused.len() == 1, "{refused:?}");
        world.put(b"k", b"short");
        let again = send_to(&mut world, head, at, (tag(1), 1), &delete);
        assert_eq!(again, refused, "the refusal may have been lost");
        assert_eq!(send_to(&mut world, head, at, (tag(1), 2), &delete), [""; 0], "its front-end knows");
        assert_eq!(world.get(b"k").value(), Some(&b"short"[..]));
    }
}

/// Updates that wait for one device read are all admitted before any of them has a result: the bound on results holds
/// at their evaluation, too.
#[test]
fn results_of_updates_that_waited_together_are_bounded() {
    let mut world = TestWorld::with(66, Durability::Sync, 1 << 20);
    world.limits.completions.per_session_max = 1;
    (1..=BACK_ENDS).for_each(|node| world.kill(node, false));
    (1..=BACK_ENDS).for_each(|node| world.start(node));
    introduce(&mut world, member(STRANGER), STRANGERS_BOOT);
    world.put(b"k", b"1");
    // More than the memory for values.
    (0..600).for_each(|i| world.put(format!("other:{i}").as_bytes(), &[b'v'; 10_000]));
    let entry = world.manager_map().range_of(&RingKey::of(&SECRET, b"k")).unwrap();
    let (at, head) = ((entry.epoch, entry.range), entry.head().unwrap().node().0);
    let mut payload = Vec::new();
    let increment = RequestBody::Key(Request::Update { key: b"k", update: Update::AddSigned { delta: 1 } });
    encode_request(STRANGERS_SESSION, u32::MAX, &increment, &mut payload);
    let tag = |seq| ClientTag { session: STRANGERS_SESSION, seq };
    let first = stranger_frame(at, Body::Request { op: 2, tag: tag(2), first_incomplete: 1, payload: &payload });
    world.nodes.get_mut(&head).unwrap().handle_bytes(world.now, member(STRANGER), &first);
    assert_eq!(send_to(&mut world, head, at, (tag(1), 1), &payload), ["overloaded"]);
    world.run(100);
    assert_eq!(world.get(b"k").value(), Some(&b"2"[..]));
}

/// An update waits for its value while its front-end restarts. The next process has updated another key meanwhile: a
/// record of the former one would end its session.
#[test]
fn an_update_that_waits_ends_no_session_of_the_next_process() {
    let mut world = TestWorld::with(69, Durability::Sync, 1 << 20);
    introduce(&mut world, member(STRANGER), STRANGERS_BOOT);
    world.put(b"{k}waits", b"1");
    // More than the memory for values.
    (0..600).for_each(|i| world.put(format!("other:{i}").as_bytes(), &[b'v'; 10_000]));
    let entry = world.manager_map().range_of(&RingKey::of(&SECRET, b"{k}")).unwrap().clone();
    let head = entry.head().unwrap().node().0;
    let send = |world: &mut TestWorld, boot: BootId, session: u64, seq: u64, request: Request<'_>| {
        let mut payload = Vec::new();
        encode_request(session, u32::MAX, &RequestBody::Key(request), &mut payload);
        let header = Header { from: member(STRANGER), boot, range: entry.range, epoch: entry.epoch };
        let tag = ClientTag { session, seq };
        let body = Body::Request { op: seq, tag, first_incomplete: 1, payload: &payload };
        let mut bytes = Vec::new();
        encode_frame(&Frame { header, body }, &mut bytes);
        world.nodes.get_mut(&head).unwrap().handle_bytes(world.now, member(STRANGER), &bytes);
        world.run(100);
    };
    let increment = |key| Request::Update { key, update: Update::AddSigned { delta: 1 } };
    world.disks[&head].hang(OpKind::Read);
    send(&mut world, STRANGERS_BOOT, STRANGERS_SESSION, 1, increment(b"{k}waits"));
    let (later, session) = (BootId::new(1, 1), STRANGERS_SESSION + 1);
    introduce(&mut world, member(STRANGER), later);
    send(&mut world, later, session, 1, increment(b"{k}new"));
    world.disks[&head].release_hung();
    world.run(100);
    send(&mut world, later, session, 2, increment(b"{k}new"));
    let values = [&b"{k}waits"[..], b"{k}new"].map(|key| world.get(key).value().map(<[u8]>::to_vec).unwrap());
    assert_eq!(values, [b"1", b"2"]);
}

/// A result whose reply was lost outlives the other records of its segment, also at a node that keeps few records to
/// send again: a retry after two restarts finds it.
#[test]
fn the_log_keeps_a_result_that_may_be_requested_again() {
    let mut world = TestWorld::new(64);
    world.limits.retained_records_max = 10;
    (1..=BACK_ENDS).for_each(|node| world.kill(node, false));
    (1..=BACK_ENDS).for_each(|node| world.start(node));
    world.put(b"counter", b"0");
    let tag = ClientTag { session: STRANGERS_SESSION, seq: 1 };
    let increment = RequestBody::Key(Request::Update { key: b"counter", update: Update::AddSigned { delta: 1 } });
    let send = |world: &mut TestWorld| {
        introduce(world, member(STRANGER), STRANGERS_BOOT);
        let entry = world.manager_map().range_of(&RingKey::of(&SECRET, b"counter")).unwrap();
        let (head, at) = (entry.head().unwrap().node().0, (entry.epoch, entry.range));
        ask_as(world, head, at, (STRANGERS_SESSION, tag), &increment)
    };
    send(&mut world);
    for _ in 0..2 {
        for i in 0..2_000_u32 {
            world.put(format!("k{}", i % 40).as_bytes(), &[i as u8; 300]);
        }
        assert_eq!(world.get(b"counter").value(), Some(&b"1"[..]));
        (1..=BACK_ENDS).for_each(|node| world.kill(node, true));
        (1..=BACK_ENDS).for_each(|node| world.start(node));
    }
    world.put(b"after the restarts", b"");
    let replies = send(&mut world);
    assert!(replies.iter().any(|reply| reply.starts_with("reply of ")), "{replies:?}");
    world.run(100);
    assert_eq!(world.get(b"counter").value(), Some(&b"1"[..]), "the retry was executed again");
}

#[test]
fn entries_expire_by_chain_time_everywhere() {
    let mut world = TestWorld::new(61);
    let at = world.now.plus_ms(2_000);
    let set = redis(&[b"SET", b"k", b"short", b"PXAT", at.wall.0.to_string().as_bytes()]);
    assert_eq!(world.call(&set), Answer::Stored);
    assert_eq!(world.get(b"k").value(), Some(&b"short"[..]));
    world.run(2_200);
    assert_eq!(world.get(b"k"), Answer::Absent, "the time of an idle chain advances");
    assert_eq!(world.assert_equal_copies(), 0);
}

#[test]
fn a_log_that_no_longer_reaches_back_never_makes_a_transfer_with_holes() {
    let mut world = TestWorld::with(62, Durability::Sync, 8 << 20);
    world.limits.manager.report_wait_ms = 50;
    world.retained_records_max = 100;
    (1..=BACK_ENDS).for_each(|node| world.kill(node, false));
    (1..=BACK_ENDS).for_each(|node| world.start(node));
    world.put(b"first", b"1");
    world.kill(3, false);
    for i in 0..2_000_u32 {
        let op = world.submit(&set(format!("k{}", i % 40).as_bytes(), &[i as u8; 300])).unwrap();
        if i % 100 == 99 {
            world.wait(op);
        }
    }
    // After a restart the others no longer know which records their logs dropped, and find gaps.
    world.kill(2, true);
    world.start(2);
    world.run(1_000);
    world.start(3);
    world.run(6_000);
    for i in 0..40_u32 {
        assert!(world.get(format!("k{i}").as_bytes()).value().is_some(), "k{i}: {:#?}", world.statuses());
    }
    for (range, copies) in world.digests() {
        let serving: Vec<_> = copies
            .iter()
            .filter(|(name, _)| {
                let status = world.status(**name);
                let phase = status.members.iter().find(|member| member.range.0 == range).map(|member| member.phase);
                matches!(phase, Some("head" | "middle" | "tail" | "single"))
            })
            .map(|(_, digest)| *digest)
            .collect();
        assert!(serving.windows(2).all(|pair| pair[0] == pair[1]), "range {range}: {copies:?}");
    }
}

#[test]
fn a_store_of_another_cluster_is_refused() {
    let disk = SimDisk::new(SimOptions::instant(1));
    let options = Options { secret: Some(HashSecret([9; 16])), ..Options::default() };
    let engine = Engine::open(SimDevice::attach(&disk), options, Now::at(1)).unwrap().0;
    let node = NodeEntry { node: NodeId(1), shards: 1, weight: 1, domain: 0, address: String::new() };
    let map = ClusterMap::new(SECRET, Durability::Sync, RingOptions::default(), vec![node]);
    let config = NodeConfig {
        id: member(1),
        boot: BootId(1),
        durability: Durability::Sync,
        map,
        manager: Some(member(1)),
        map_place: MapPlace::OwnStore,
        limits: NodeLimits::default(),
    };
    let options = ShardOptions { durability: Durability::Sync, ..ShardOptions::default() };
    let refused = Shard::in_cluster(engine, config, options, ServerInfo::default(), Now::at(1)).err();
    assert_eq!(refused, Some(NodeError::SecretDiffers));
}

#[test]
fn corrupt_bytes_ask_for_a_new_link_once() {
    let mut world = TestWorld::new(63);
    let now = world.now;
    let node = world.nodes.get_mut(&FRONT_END).unwrap();
    let resets = |node: &mut Shard<SimDevice>| -> Vec<MemberId> {
        node.run_once(now);
        std::iter::from_fn(|| node.poll_node_output())
            .filter_map(|output| if let NodeOutput::Reset { peer } = output { Some(peer) } else { None })
            .collect()
    };
    node.handle_bytes(now, member(2), &[0xFF; 64]);
    node.handle_bytes(now, member(2), &[0xFF; 64]);
    assert_eq!(resets(node), [member(2)]);
    node.handle_link_reset(now, member(2));
    // The host made a new link to one of them by itself.
    node.handle_bytes(now, member(2), &[0xFF; 64]);
    node.handle_bytes(now, member(3), &[0xFF; 64]);
    node.handle_link_reset(now, member(2));
    assert_eq!(resets(node), [member(3)]);
    node.handle_link_reset(now, member(3));
    world.put(b"k", b"after a new link");
}

/// A frame counts for the peer of its link and for the range of its header only, and boots come from the manager only.
#[test]
fn frames_that_contradict_themselves_are_dropped() {
    let mut world = TestWorld::new(66);
    world.put(b"k", b"v");
    let map = world.manager_map().clone();
    let entry = map.range_of(&RingKey::of(&map.secret, b"k")).unwrap();
    let (head, at) = (entry.head().unwrap(), (entry.epoch, entry.range));
    // Another node's update, on a stranger's link.
    let session = u64::from(member(FRONT_END).0) << 32 | 12_345;
    let tag = ClientTag { session, seq: 1 };
    let mut payload = Vec::new();
    encode_request(session, u32::MAX, &RequestBody::Keyspace(KeyspaceRequest::Clear), &mut payload);
    let header = Header { from: member(FRONT_END), boot: world.boot(FRONT_END), range: at.1, epoch: at.0 };
    let mut bytes = Vec::new();
    encode_frame(
        &Frame { header, body: Body::Request { op: 1, tag, first_incomplete: 1, payload: &payload } },
        &mut bytes,
    );
    world.nodes.get_mut(&head.node().0).unwrap().handle_bytes(world.now, member(STRANGER), &bytes);
    // A newer entry of the range, in a frame about another one.
    let other = map.ranges.iter().find(|other| other.range != entry.range).unwrap().range;
    let mut newer = entry.clone();
    newer.epoch = entry.epoch.next().unwrap();
    let frame = stranger_frame((newer.epoch, other), Body::Entry(newer));
    world.nodes.get_mut(&FRONT_END).unwrap().handle_bytes(world.now, member(STRANGER), &frame);
    // A table of boots that is not the manager's. Its sender's boot is not below that of the manager.
    let boot = BootId::new(u32::MAX, 1);
    let header = Header { from: member(STRANGER), boot, range: RangeId(0), epoch: Epoch::default() };
    let boots = vec![(member(FRONT_END), boot)];
    let mut frame = Vec::new();
    encode_frame(&Frame { header, body: Body::Boots(BootsMessage { changes: 0, revision: 9, boots }) }, &mut frame);
    world.nodes.get_mut(&head.node().0).unwrap().handle_bytes(world.now, member(STRANGER), &frame);
    world.run(100);
    assert_eq!(world.nodes[&FRONT_END].map().unwrap().range(entry.range).unwrap().epoch, entry.epoch);
    assert_eq!(world.get(b"k").value(), Some(&b"v"[..]));
    world.put(b"k", b"w");
}

/// A scan answers with few keys, whatever it is asked for: its reply must fit a frame.
#[test]
fn a_page_of_a_scan_is_short() {
    let mut world = TestWorld::new(67);
    (0..600).for_each(|key| world.put(format!("k{key}").as_bytes(), b"v"));
    let map = world.manager_map().clone();
    let mut longest = 0;
    for entry in &map.ranges {
        let mut payload = Vec::new();
        let request = RequestBody::Keyspace(KeyspaceRequest::Scan { cursor: 0, count: u32::MAX });
        encode_request(STRANGERS_SESSION, u32::MAX, &request, &mut payload);
        let at = (entry.epoch, entry.range);
        let heard = send_to(&mut world, entry.tail().unwrap().node().0, at, (ClientTag::NONE, 0), &payload);
        let [reply] = heard.as_slice() else { panic!("{heard:?}") };
        let bytes: usize = reply.strip_prefix("reply of ").unwrap().parse().unwrap();
        longest = longest.max(bytes);
    }
    // Each key takes four to six bytes, with its length.
    assert!((64 * 4..128 * 6).contains(&longest), "{longest} bytes");
}

/// A peer may claim of any operation that its value is longer than its grant. Only the member that has the operation is
/// believed, and only of an operation with a value.
#[test]
fn refusals_for_a_longer_value_harm_no_operation() {
    for bytes in [0, 1, 100_000, u32::MAX] {
        let mut world = TestWorld::new(64);
        world.run(1_000);
        let map = world.manager_map().clone();
        let key_of = |mut keys: RangeInclusive<u8>, is_wanted: &dyn Fn(&RangeEntry) -> bool| {
            let is_key = |key: &u8| is_wanted(map.range_of(&RingKey::of(&map.secret, &[*key])).unwrap());
            [keys.find(is_key).unwrap()]
        };
        // Node 2 is the tail of the key that is read, and not the head of the one that is replaced.
        let read = key_of(b'a'..=b'z', &|entry| entry.tail() == Some(member(2)));
        let replaced = key_of(b'A'..=b'Z', &|entry| entry.head() != Some(member(2)));
        world.put(&read, b"v");
        let commands: [&[&[u8]]; 7] = [
            &[b"DBSIZE"],
            &[b"SCAN", b"0"],
            &[b"GET", &read],
            &[b"MGET", &read, &read],
            &[b"INCR", b"n"],
            &[b"GETSET", &replaced, b"1"],
            &[b"MSET", b"{t}a", b"1", b"{t}b", b"2"],
        ];
        let entry = map.range_of(&RingKey::of(&map.secret, &read)).unwrap();
        let header = Header { from: member(2), boot: BootId(2), range: entry.range, epoch: entry.epoch };
        let node = world.nodes.get_mut(&FRONT_END).unwrap();
        let ids: Vec<_> = commands
            .iter()
            .map(|words| {
                let command = redis(words);
                let id = node.open_session(command.protocol);
                assert_eq!(node.handle_input(world.now, id, &command.bytes), command.bytes.len());
                id
            })
            .collect();
        node.run_once(world.now);
        for op in 0..64 {
            let mut frame = Vec::new();
            let body = Body::Refused { op, reason: RefusedReason::Larger { bytes } };
            encode_frame(&Frame { header, body }, &mut frame);
            node.handle_bytes(world.now, member(2), &frame);
        }
        let (rereads, reserved) = (node.status().counters.rereads, node.status().replies.reserved_bytes);
        assert_eq!(rereads > 0, bytes >= 100_000, "{rereads} reads were repeated for {bytes} bytes");
        assert!(reserved < 64 << 20, "{reserved} bytes are reserved, more than any reply has");
        world.run_raw(200);
        let node = &world.nodes[&FRONT_END];
        let heard: Vec<String> = ids.iter().map(|id| node.output(*id).escape_ascii().to_string()).collect();
        let scanned = format!(r"*2\r\n$1\r\n0\r\n*1\r\n$1\r\n{}\r\n", read.escape_ascii());
        let expected = [r":1\r\n", &scanned, r"$1\r\nv\r\n", r"*2\r\n$1\r\nv\r\n$1\r\nv\r\n"];
        // A reply to several keys that is claimed to be longer than any may be is refused.
        let expected = expected.into_iter().take(if bytes == u32::MAX { 3 } else { 4 });
        assert!(expected.zip(&heard).all(|(expected, heard)| expected == heard), "{heard:?}");
        assert_eq!(heard[4..], [r":1\r\n", r"$-1\r\n", r"+OK\r\n"]);
        assert_eq!((node.status().pending, node.status().replies.reserved_bytes), (0, 0));
    }
}

/// A front-end without replies sends its requests again. For all of them it requests a range's entry once.
#[test]
fn an_entry_is_requested_once_for_all_operations_of_its_range() {
    const OPS: usize = 300;
    /// As long as the test runs, ms.
    const FOR_MS: usize = 1_000;
    let mut world = TestWorld::new(60);
    world.put(b"k", b"v");
    let ranges = world.manager_map().ranges.len();
    for i in 0..OPS {
        world.submit(&set(format!("k{i}").as_bytes(), b"v")).unwrap();
    }
    let (mut now, front_end) = (world.now, world.nodes.get_mut(&FRONT_END).unwrap());
    let mut wanted = 0;
    for _ in 0..FOR_MS {
        now = now.plus_ms(1);
        front_end.run_once(now);
        while let Some(NodeOutput::Send { bytes, .. }) = front_end.poll_node_output() {
            let mut stream = FrameStream::new();
            stream.push(&bytes);
            while let Some(frame) = stream.next_frame().unwrap() {
                wanted += usize::from(matches!(frame.body, Body::EntryWanted));
            }
        }
    }
    // At most every 50 ms.
    assert!((1..=ranges * FOR_MS / 50).contains(&wanted), "{wanted} for {OPS} operations on {ranges} ranges");
}

/// A peer answers a batch with what no correct peer answers: the client hears an error, not that a key is absent.
#[test]
fn a_reply_that_no_batch_has_is_an_error() {
    for lie in [Reply::Absent, Reply::Deleted, Reply::Unsigned(1)] {
        let mut world = TestWorld::new(65);
        // The front-end learns where the keys are.
        world.put(b"{t}a", b"0");
        let now = world.now;
        let node = world.nodes.get_mut(&FRONT_END).unwrap();
        let command = redis(&[b"MSET", b"{t}a", b"1", b"{t}b", b"2"]);
        let id = node.open_session(command.protocol);
        assert_eq!(node.handle_input(now, id, &command.bytes), command.bytes.len());
        node.run_once(now);
        let outputs: Vec<_> = std::iter::from_fn(|| node.poll_node_output()).collect();
        for output in outputs {
            let NodeOutput::Send { to, bytes } = output else { continue };
            let mut stream = FrameStream::new();
            stream.push(&bytes);
            while let Some(Frame { header, body }) = stream.next_frame().unwrap() {
                let Body::Request { op, payload: request, .. } = body else { continue };
                let (session, ..) = decode_request(request).unwrap();
                let mut payload = session.to_le_bytes().to_vec();
                put_result(&mut payload, &lie);
                let (mut frame, header) = (Vec::new(), Header { from: to, ..header });
                encode_frame(&Frame { header, body: Body::Reply { op, payload: &payload } }, &mut frame);
                node.handle_bytes(now, to, &frame);
            }
        }
        node.run_once(now);
        let heard = node.output(id).escape_ascii().to_string();
        assert!(heard.starts_with("-"), "{lie:?}: {heard}");
    }
}
