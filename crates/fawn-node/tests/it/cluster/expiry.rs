//! Expiry at a tail: a key that an update keeps is never missed before that update is committed.
use super::world::{Answer, FRONT_END, TestWorld, set_if};
use fawn_chain::RangeEntry;
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_flash::{SimDisk, SimOptions};
use fawn_node::cluster::ClientOp;
use fawn_types::request::ExpiryCondition;
use fawn_types::{Condition, Durability, Expiry, KeyRange, NodeId, RangeId, Request, Update};

const KEY: &[u8] = b"key";
/// How long the key lives, ms.
const LIFE_MS: u64 = 200;
const TAIL: u32 = 3;

/// One range, whose tail is node 3. Sends one record per frame and round trip, if it is `slow`.
fn world(is_slow: bool) -> TestWorld {
    let disk = |node: u32| SimDisk::new(SimOptions::instant(u64::from(node)));
    let disks = (1..=TAIL).map(|node| (node, disk(node))).collect();
    let chain = [NodeId(1), NodeId(2), NodeId(TAIL)];
    let range = RangeEntry::new(RangeId(1), KeyRange::ALL, &chain);
    let mut world = TestWorld::on(7, Durability::Sync, 8 << 20, disks, Some(range));
    if is_slow {
        for node in 1..=FRONT_END {
            world.kill(node, false);
        }
        world.limits.replica.window_bytes_max = 1;
        world.limits.replica.frame_bytes_max = 1;
        (1..=FRONT_END).for_each(|node| world.start(node));
    }
    let update = Update::Set {
        value: b"value",
        flags: 0,
        expiry: Expiry::InMs(60_000),
        condition: Condition::Always,
        return_previous: false,
    };
    let stored = world.call(&Request::Update { key: KEY, update });
    assert!(matches!(stored, Answer::Stored(_)), "{stored:?}");
    world
}

fn touch(world: &mut TestWorld, expiry: Expiry) -> ClientOp {
    let update = Update::Touch { expiry, condition: ExpiryCondition::Always, return_value: false };
    world.submit(&Request::Update { key: KEY, update }).unwrap()
}

fn answer(world: &TestWorld, op: ClientOp) -> Option<&Answer> {
    world.done.get(&(FRONT_END, op))
}

#[test]
fn a_key_kept_by_a_pending_update_is_not_missed() {
    let mut world = world(false);
    let expire = touch(&mut world, Expiry::InMs(LIFE_MS));
    world.wait(expire);
    for kind in [OpKind::Write, OpKind::Sync] {
        world.disks[&TAIL].fail_every(kind, DeviceFault::Hang);
    }
    let persist = touch(&mut world, Expiry::Never);
    world.run(LIFE_MS as usize + 200);
    let read = world.submit(&Request::Get { key: KEY }).unwrap();
    world.run(300);
    assert_eq!(answer(&world, persist), None, "the tail has not synced it");
    assert_eq!(answer(&world, read), None, "the key has expired, unless the update is committed");
    for kind in [OpKind::Write, OpKind::Sync] {
        world.disks[&TAIL].end_faults(kind);
    }
    world.disks[&TAIL].release_hung();
    assert_eq!(world.wait(read).value(), Some(&b"value"[..]));
    assert_eq!(world.wait(persist), Answer::Other("Touched".to_owned()));
}

#[test]
fn a_key_kept_by_an_update_on_its_way_is_not_missed() {
    let mut world = world(true);
    let expire = touch(&mut world, Expiry::InMs(LIFE_MS));
    world.wait(expire);
    // These records reach the tail one by one, and only then the update that keeps the key.
    let others: Vec<ClientOp> =
        (0..200_u32).map(|at| world.submit(&set_if(&at.to_le_bytes(), b"other", Condition::Always)).unwrap()).collect();
    let persist = touch(&mut world, Expiry::Never);
    let mut reads = Vec::new();
    for _ in 0..LIFE_MS {
        world.run(4);
        reads.push(world.submit(&Request::Get { key: KEY }).unwrap());
    }
    assert_eq!(world.wait(persist), Answer::Other("Touched".to_owned()));
    assert!(others.into_iter().all(|op| answer(&world, op).is_some()));
    for read in reads {
        assert_eq!(world.wait(read).value(), Some(&b"value"[..]));
    }
}

/// Under a load that the chain never catches up with, an expired key is still missed soon.
#[test]
fn an_expired_key_is_missed_while_records_are_on_their_way() {
    let mut world = world(true);
    let expire = touch(&mut world, Expiry::InMs(LIFE_MS));
    world.wait(expire);
    let (mut behind, mut read) = (0, None);
    for at in 0..4_000_u32 {
        // Two writes arrive in the time in which the chain takes one.
        let _ = world.submit(&set_if(&at.to_le_bytes(), b"other", Condition::Always));
        world.step();
        if u64::from(at) == LIFE_MS + 500 {
            read = Some(world.submit(&Request::Get { key: KEY }).unwrap());
        }
        let assigned = world.statuses().into_iter().flat_map(|(_, status)| status.members);
        let ends: Vec<_> = assigned.map(|member| member.last).collect();
        behind += u32::from(ends.iter().min() < ends.iter().max());
        if read.is_some_and(|read| answer(&world, read).is_some()) {
            break;
        }
    }
    assert!(behind > 600, "the tail was behind in {behind} iterations only");
    assert_eq!(answer(&world, read.unwrap()), Some(&Answer::Absent));
}
