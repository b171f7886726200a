//! Broken peers: frames that decode, with fields that no correct peer sends.
use super::commands::{get, set};
use super::world::{BACK_ENDS, TestWorld};
use crate::member;
use fawn_chain::map::{Activation, LastActive};
use fawn_chain::message::{FrameStream, encode_frame};
use fawn_chain::{Body, ChainMember, ChainState, Frame, Header, MemberRole, RangeEntry};
use fawn_node::cluster::NodeOutput;
use fawn_types::random::SplitMix64;
use fawn_types::{BootId, Epoch, KeyRange, MemberId, RangeId, TimeMs, Version};

fn lie_version(random: &mut SplitMix64, version: &mut Version) {
    *version = match random.below(6) {
        0 => Version::ZERO,
        1 => Version::from_u64(u64::MAX),
        2 => Version::from_u64(random.next()),
        3 => Version::from_u64(version.as_u64().wrapping_add(1)),
        4 => Version::from_u64(version.as_u64().wrapping_sub(1)),
        _ => Version::from_u64(version.as_u64().wrapping_add(1 << 36)),
    };
}

fn lie_epoch(random: &mut SplitMix64, epoch: &mut Epoch) {
    let raw = match random.below(4) {
        0 => 0,
        1 => epoch.get().saturating_add(1),
        2 => epoch.get().saturating_sub(1),
        _ => (1 << 28) - 1,
    };
    *epoch = Epoch::new(raw).unwrap_or(*epoch);
}

fn lie_boot(random: &mut SplitMix64, boot: &mut BootId) {
    boot.0 = [0, 1, u64::MAX, boot.0.wrapping_add(1 << 32), boot.0 ^ 1][random.below(5) as usize];
}

fn lie_id(random: &mut SplitMix64, id: &mut MemberId) {
    let any = [0, 1, u32::MAX, 1 << 12, 2 << 12, 3 << 12, 4 << 12, (1 << 12) + 1, (9 << 12) + 4095];
    id.0 = any[random.below(any.len() as u64) as usize];
}

fn lie_range(random: &mut SplitMix64, range: &mut RangeId) {
    range.0 = [0, 1, 2, 3, 4, 77, 1 << 31, u32::MAX, (1 << 31) - 1][random.below(9) as usize];
}

fn lie_members(random: &mut SplitMix64, members: &mut Vec<ChainMember>) {
    if members.is_empty() {
        return members.push(ChainMember { id: MemberId(1 << 12), boot: BootId(0), role: MemberRole::Serving });
    }
    let at = random.below(members.len() as u64) as usize;
    let mut one = members[at];
    match random.below(8) {
        0 => drop(members.remove(at)),
        1 => members.push(one),
        2 => members.insert(0, one),
        3 => members.clear(),
        4 => lie_id(random, &mut members[at].id),
        5 => lie_boot(random, &mut members[at].boot),
        6 => {
            let is_serving = one.role == MemberRole::Serving;
            members[at].role = if is_serving { MemberRole::Syncing } else { MemberRole::Serving };
        }
        _ => {
            for _ in members.len()..14 {
                one.id.0 = one.id.0.wrapping_add(1);
                members.push(one);
            }
        }
    }
    members.truncate(14);
}

fn lie_entry(random: &mut SplitMix64, entry: &mut RangeEntry) {
    match random.below(11) {
        0 => lie_range(random, &mut entry.range),
        1 => entry.keys = KeyRange::ALL,
        2 => lie_epoch(random, &mut entry.epoch),
        3 => entry.revision = [0, u32::MAX, entry.revision.wrapping_add(1)][random.below(3) as usize],
        4 => {
            let is_active = entry.state == ChainState::Active;
            entry.state = if is_active { ChainState::Preparing } else { ChainState::Active };
        }
        5 => lie_version(random, &mut entry.base),
        6 => entry.time = TimeMs([0, u64::MAX, entry.time.0.saturating_add(1_000_000)][random.below(3) as usize]),
        7 => lie_members(random, &mut entry.members),
        8 => match &mut entry.last_active {
            Some(last) if random.chance(1, 2) => lie_members(random, &mut last.members),
            Some(last) => lie_epoch(random, &mut last.epoch),
            None => {
                let (epoch, durability, members) = (entry.epoch, entry.durability, entry.members.clone());
                entry.last_active = Some(LastActive { epoch, durability, members });
            }
        },
        9 => match entry.history.last_mut() {
            Some(last) if random.chance(1, 2) => lie_version(random, &mut last.base),
            _ => {
                let mut base = Version::ZERO;
                let mut epoch = entry.epoch;
                lie_version(random, &mut base);
                lie_epoch(random, &mut epoch);
                entry.history = vec![Activation { epoch, base }];
            }
        },
        _ => entry.copies_min = [1, 2, 3, 7][random.below(4) as usize],
    }
}

fn lie_header(random: &mut SplitMix64, header: &mut Header) {
    match random.below(3) {
        0 => lie_range(random, &mut header.range),
        1 => lie_epoch(random, &mut header.epoch),
        _ => lie_boot(random, &mut header.boot),
    }
}

fn lie_body(random: &mut SplitMix64, header: &mut Header, body: &mut Body<'_>) {
    match body {
        Body::Append { after, last, upstream, assigned, .. } => {
            let fields = [after, last, upstream, assigned];
            let at = random.below(4) as usize;
            for (_, field) in fields.into_iter().enumerate().filter(|(field, _)| *field == at) {
                lie_version(random, field);
            }
        }
        Body::Watermark { sent, upstream, assigned, .. } => {
            let at = random.below(3) as usize;
            for (_, field) in [sent, upstream, assigned].into_iter().enumerate().filter(|(field, _)| *field == at) {
                lie_version(random, field);
            }
        }
        Body::Ack { received, .. } if random.chance(1, 2) => lie_version(random, received),
        Body::Ack { committed, .. } => lie_version(random, committed),
        Body::ReplayWanted { after } | Body::Gone { after } => lie_version(random, after),
        Body::Entry(entry) | Body::PromisedAbove(entry) => {
            (0..=random.below(3)).for_each(|_| lie_entry(random, entry));
            if random.chance(3, 4) {
                header.range = entry.range;
            }
        }
        Body::Report(report) => match random.below(5) {
            0 => lie_version(random, &mut report.last),
            1 => lie_version(random, &mut report.committed),
            2 => lie_epoch(random, &mut report.found),
            3 => report.continues = Some(BootId(random.next())),
            _ => report.reach = vec![MemberId(1 << 12); 14],
        },
        Body::Align { entry, donor, base, cut } => match random.below(4) {
            0 => {
                lie_entry(random, entry);
                header.range = entry.range;
            }
            1 => lie_id(random, donor),
            2 => lie_version(random, base),
            _ => lie_version(random, cut),
        },
        Body::Equal { base } => lie_version(random, base),
        Body::CaughtUp { last } => lie_version(random, last),
        Body::TransferWanted { base, .. } => {
            let mut lie = Version::ZERO;
            lie_version(random, &mut lie);
            *base = random.chance(2, 3).then_some(lie);
        }
        Body::Transfer { base, read_version, .. } => {
            if random.chance(1, 2) {
                lie_version(random, base);
            } else {
                lie_version(random, read_version);
            }
        }
        Body::Slow { oldest_ms } => *oldest_ms = u64::MAX,
        Body::BootsWanted { held } => *held = [0, 1, u64::MAX][random.below(3) as usize],
        Body::Boots(message) if random.chance(1, 3) => message.revision = random.next(),
        Body::Boots(message) => message.boots.iter_mut().for_each(|(_, boot)| lie_boot(random, boot)),
        Body::Suspect { member: id } | Body::CannotSend { to: id } => lie_id(random, id),
        Body::ProbeReply { epoch } => lie_epoch(random, epoch),
        Body::Request { tag, first_incomplete, .. } => {
            match random.below(3) {
                0 => tag.session = random.next(),
                1 => tag.seq = u64::MAX,
                _ => *first_incomplete = [0, u64::MAX][random.below(2) as usize],
            };
        }
        _ => lie_header(random, header),
    }
}

/// Changes one field in some of the frames, unless the frame does not decode then.
fn lie(random: &mut SplitMix64, bytes: &mut Vec<u8>) {
    let mut out = Vec::new();
    let mut stream = FrameStream::new();
    stream.push(bytes);
    while let Some(Frame { mut header, mut body }) = stream.next_frame().unwrap() {
        if random.chance(1, 6) {
            if random.chance(1, 6) { lie_header(random, &mut header) } else { lie_body(random, &mut header, &mut body) }
        }
        let mut frame = Vec::new();
        encode_frame(&Frame { header, body }, &mut frame);
        if fawn_chain::message::decode_frame(&frame).is_ok() {
            out.extend_from_slice(&frame);
        }
    }
    *bytes = out;
}

/// An entry that decodes, and that no manager makes.
type Lie = (&'static str, fn(&mut RangeEntry));

const LIES: [Lie; 6] = [
    ("a range number that a store has no name for", |entry| entry.range = RangeId(1 << 31)),
    ("the greatest range number", |entry| entry.range = RangeId(u32::MAX)),
    ("a member twice", |entry| entry.members.push(entry.members[0])),
    ("a last active member twice", |entry| {
        let Some(last) = &mut entry.last_active else { panic!("the range is active") };
        last.members.push(last.members[0]);
    }),
    ("more members than the next epoch has places", |entry| {
        let others = (10..24).map(|node| ChainMember { id: member(node), ..entry.members[0] });
        let Some(last) = &mut entry.last_active else { panic!("the range is active") };
        last.members = others.collect();
    }),
    ("an activation in a later epoch", |entry| {
        let epoch = Epoch::new(entry.epoch.get() + 9).unwrap();
        entry.history.push(Activation { epoch, base: entry.base });
    }),
];

/// Sends node 1, which hosts the manager, a frame of node 2.
fn tell(world: &mut TestWorld, epoch: Epoch, body: Body<'_>) {
    let range = match &body {
        Body::Entry(entry) | Body::PromisedAbove(entry) => entry.range,
        _ => RangeId(1),
    };
    let header = Header { from: member(2), boot: BootId::new(2, 7), range, epoch };
    let mut bytes = Vec::new();
    encode_frame(&Frame { header, body }, &mut bytes);
    let (now, node) = (world.now, world.nodes.get_mut(&1).unwrap());
    node.handle_bytes(now, member(2), &bytes);
    let mut outputs = std::iter::from_fn(|| node.poll_node_output());
    let is_refused = outputs.any(|output| output == NodeOutput::Reset { peer: member(2) });
    assert!(is_refused, "the link must be closed and opened again");
    node.handle_link_reset(now, member(2));
}

#[test]
fn an_entry_that_no_manager_makes_harms_no_node() {
    for (what, lie) in LIES {
        let mut world = TestWorld::new(230);
        world.put(b"k", b"v");
        let mut entry = world.manager_map().ranges[0].clone();
        entry.epoch = Epoch::new(entry.epoch.get() + 3).unwrap();
        if let Some(last) = &mut entry.last_active {
            last.epoch = entry.epoch;
        }
        lie(&mut entry);
        let above = Epoch::new(entry.epoch.get() + 3).unwrap();
        tell(&mut world, above, Body::PromisedAbove(entry.clone()));
        tell(&mut world, entry.epoch, Body::Entry(entry));
        world.run(2_000);
        for node in 1..=BACK_ENDS {
            world.kill(node, true);
            world.start(node);
        }
        assert_eq!(world.get(b"k").value(), Some(&b"v"[..]), "{what}");
    }
}

/// No lie that decodes makes a process panic, neither at once nor after a restart.
#[test]
fn lies_that_decode_stop_no_process() {
    let one = std::env::var("FAWN_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in one.map_or(250..270, |seed: u64| seed..seed + 1) {
        println!("seed {seed}");
        let mut world = TestWorld::new(seed);
        world.put(b"before", b"the lies");
        world.tamper = Some(lie);
        for step in 0..40_u32 {
            let key = format!("k{}", step % 7);
            let _ = world.submit(&set(key.as_bytes(), &[7; 300]));
            let _ = world.submit(&get(key.as_bytes()));
            world.run(50);
            if step % 8 == 7 {
                let node = world.random.below(u64::from(BACK_ENDS)) as u32 + 1;
                world.kill(node, step % 16 == 7);
                world.run(20);
                world.start(node);
            }
        }
        world.tamper = None;
        (1..=BACK_ENDS).for_each(|node| world.kill(node, false));
        (1..=BACK_ENDS).for_each(|node| world.start(node));
        world.run(200);
    }
}
