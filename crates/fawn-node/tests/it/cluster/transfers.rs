//! Full resyncs: the results of operations that they carry, and the chunks that the tail sends.
use super::edges::{STRANGER, STRANGERS_BOOT, STRANGERS_SESSION, introduce, stranger_frame};
use super::world::{BACK_ENDS, TestWorld};
use crate::member;
use fawn_chain::message::{FrameStream, encode_frame};
use fawn_chain::{Body, Frame, Header, RangeEntry, TransferCursor};
use fawn_flash::sim::OpKind;
use fawn_flash::{SimDisk, SimOptions};
use fawn_node::cluster::NodeOutput;
use fawn_node::cluster::payload::{RequestBody, encode_request};
use fawn_types::{ClientTag, Condition, Durability, KeyRange, MemberId, RangeId, Request, Update, Version};

/// A deletion returns this many bytes, and its result is kept until the front-end has the reply.
pub(super) const VALUE_BYTES: usize = 15_000;

/// One range on three disks, whose logs keep few records that no retry needs.
pub(super) fn world(durability: Durability, memory_bytes: u64) -> TestWorld {
    let disk = |node: u32| SimDisk::new(SimOptions::instant(u64::from(node)));
    let disks = (1..=BACK_ENDS).map(|node| (node, disk(node))).collect();
    let range = RangeEntry::new(RangeId(1), KeyRange::ALL, &[member(1), member(2), member(3)]);
    let mut world = TestWorld::on(70, durability, memory_bytes, disks, Some(range));
    world.limits.retained_records_max = 10;
    (1..=BACK_ENDS).for_each(|node| world.kill(node, false));
    (1..=BACK_ENDS).for_each(|node| world.start(node));
    world.put(b"served", b"again");
    wait_for_members(&mut world, 3);
    introduce(&mut world, member(STRANGER), STRANGERS_BOOT);
    world
}

/// Runs until this many members serve the range.
pub(super) fn wait_for_members(world: &mut TestWorld, members: usize) {
    for _ in 0..20_000 {
        let entry = &world.manager_map().ranges[0];
        if entry.is_active() && entry.serving().count() == members {
            return world.run(100);
        }
        world.step();
    }
    panic!("{members} members: {:#?}", world.statuses());
}

pub(super) fn head(world: &TestWorld) -> MemberId {
    world.manager_map().ranges[0].head().unwrap()
}

pub(super) fn tail(world: &TestWorld) -> u32 {
    world.manager_map().ranges[0].tail().unwrap().node().0
}

pub(super) fn key(at: u64) -> Vec<u8> {
    format!("key:{at}").into_bytes()
}

pub(super) fn put_long(world: &mut TestWorld, keys: u64) {
    (1..=keys).for_each(|at| world.put(&key(at), &[b'v'; VALUE_BYTES]));
}

/// A stranger's deletion of a key, numbered as the key, which returns the value.
pub(super) fn delete(world: &mut TestWorld, at: u64, first_incomplete: u64) {
    let (head, entry) = (head(world), &world.manager_map().ranges[0]);
    let name = key(at);
    let update = Update::Delete { condition: Condition::Always, return_previous: true };
    let mut payload = Vec::new();
    let request = RequestBody::Key(Request::Update { key: &name, update });
    encode_request(STRANGERS_SESSION, u32::MAX, &request, &mut payload);
    let tag = ClientTag { session: STRANGERS_SESSION, seq: at };
    let body = Body::Request { op: at, tag, first_incomplete, payload: &payload };
    let frame = stranger_frame((entry.epoch, entry.range), body);
    world.nodes.get_mut(&head.node().0).unwrap().handle_bytes(world.now, member(STRANGER), &frame);
    world.run(5);
}

pub(super) fn completion_bytes(world: &TestWorld, node: u32) -> usize {
    world.status(node).completion_bytes
}

/// Kills a node, and writes until no log reaches back to the end of its copy.
pub(super) fn leave_behind(world: &mut TestWorld, node: u32) {
    world.kill(node, false);
    wait_for_members(world, 2);
    (0..500_u32).for_each(|at| world.put(&(at % 40).to_le_bytes(), b"while away"));
}

/// Starts a node whose copy no log can complete, and waits until it has a new one.
pub(super) fn resync(world: &mut TestWorld, node: u32) {
    world.start(node);
    wait_for_members(world, 3);
    assert_eq!(world.status(node).counters.resyncs, 1, "{:#?}", world.status(node));
}

/// Sends the tail a request for a chunk in the name of the head.
fn want(world: &mut TestWorld, base: Version, cursor: TransferCursor) {
    let (head, tail, entry) = (head(world), tail(world), &world.manager_map().ranges[0]);
    let from = entry.member(head).unwrap();
    let header = Header { from: from.id, boot: from.boot, range: entry.range, epoch: entry.epoch };
    let mut bytes = Vec::new();
    encode_frame(&Frame { header, body: Body::TransferWanted { base: Some(base), cursor } }, &mut bytes);
    world.nodes.get_mut(&tail).unwrap().handle_bytes(world.now, head, &bytes);
}

/// The cursors of the chunks that the tail sends the head, and the lengths of their records.
fn chunks(world: &mut TestWorld) -> Vec<(TransferCursor, usize)> {
    let (now, head, tail) = (world.now, head(world), tail(world));
    let node = world.nodes.get_mut(&tail).unwrap();
    let mut chunks = Vec::new();
    for _ in 0..50 {
        let _ = node.run_once(now);
        while let Some(output) = node.poll_node_output() {
            let NodeOutput::Send { to, bytes } = output else { continue };
            let mut stream = FrameStream::new();
            stream.push(&bytes);
            while let Some(frame) = stream.next_frame().unwrap() {
                if let Body::Transfer { cursor, records, .. } = frame.body {
                    assert_eq!(to, head);
                    chunks.push((cursor, records.len()));
                }
            }
        }
    }
    chunks
}

/// A receiver takes the results above its base from the stream, and refuses a chunk that contains them.
#[test]
fn a_chunk_of_results_ends_at_its_base() {
    let mut world = world(Durability::Sync, 8 << 20);
    let tail = tail(&world);
    put_long(&mut world, 1);
    world.run(100);
    let before = world.status(tail).members[0].last;
    delete(&mut world, 1, 1);
    world.run(100);
    let after = world.status(tail).members[0].last;
    assert!(after > before);
    for (base, has_result) in [(before, false), (after, true)] {
        want(&mut world, base, TransferCursor::START);
        let chunks = chunks(&mut world);
        assert!(matches!(chunks[..], [(TransferCursor::START, _)]), "{chunks:?}");
        assert_eq!(chunks[0].1 > VALUE_BYTES, has_result, "{chunks:?}");
    }
}

/// A request for another chunk replaces the one before, whose reads have not ended.
#[test]
fn a_chunk_that_is_wanted_no_more_is_not_sent() {
    let mut world = world(Durability::Sync, 1 << 20);
    let tail = tail(&world);
    put_long(&mut world, 200);
    world.run(100);
    let base = world.status(tail).members[0].committed;
    let disk = world.disks[&tail].clone();
    disk.hang(OpKind::Read);
    let cursors = [0, 1 << 60, 1 << 61].map(|place| TransferCursor::Keys { pass: 0, place });
    for cursor in cursors.into_iter().chain([cursors[2]]) {
        want(&mut world, base, cursor);
        assert_eq!(chunks(&mut world), [], "the disk reads nothing");
    }
    disk.release_hung();
    let sent: Vec<_> = chunks(&mut world).into_iter().map(|(cursor, _)| cursor).collect();
    assert_eq!(sent, [cursors[2]]);
}

/// A member whose commits the others lost with power discards their results with its copy: the front-end repeats an
/// operation that it has no reply to, and another head must execute it.
#[test]
fn a_full_resync_discards_results_of_a_lost_history() {
    let mut world = world(Durability::Memory, 8 << 20);
    put_long(&mut world, 2);
    let tail = tail(&world);
    let others: Vec<u32> = (1..=BACK_ENDS).filter(|node| *node != tail).collect();
    others.iter().for_each(|node| world.disks[node].hang(OpKind::Write));
    delete(&mut world, 1, 1);
    assert!(completion_bytes(&world, tail) > VALUE_BYTES, "the tail has committed it");
    world.cut.extend(others.iter().flat_map(|other| [(tail, *other), (*other, tail)]));
    others.iter().for_each(|node| world.kill(*node, true));
    others.iter().for_each(|node| world.disks[node].end_faults(OpKind::Write));
    others.iter().for_each(|node| world.start(*node));
    wait_for_members(&mut world, 2);
    world.put(b"after", b"the loss");
    world.cut.clear();
    wait_for_members(&mut world, 3);
    assert_eq!(world.status(tail).counters.resyncs, 1, "{:#?}", world.status(tail));
    let bytes = completion_bytes(&world, tail);
    assert!(bytes < VALUE_BYTES, "{bytes} bytes of results");
}

/// The results that came with a full resync are recovered from the log, however many they are.
#[test]
fn all_transferred_results_outlive_a_restart() {
    // More than one step of the recovery.
    const RESULTS: u64 = 100;
    let mut world = world(Durability::Sync, 8 << 20);
    let tail = tail(&world);
    put_long(&mut world, RESULTS);
    leave_behind(&mut world, tail);
    (1..=RESULTS).for_each(|at| delete(&mut world, at, 1));
    resync(&mut world, tail);
    let bytes = completion_bytes(&world, tail);
    assert!(bytes > RESULTS as usize * VALUE_BYTES, "{bytes} bytes of results");
    world.kill(tail, true);
    world.start(tail);
    assert!(completion_bytes(&world, tail) >= bytes, "{} of {bytes} bytes", completion_bytes(&world, tail));
}
