//! Codec tests: round trips of every frame, detection of corruption, streams split at any byte.
use crate::member;
use fawn_chain::map::{Activation, LastActive, decode_map, decode_state, encode_map, encode_state};
use fawn_chain::message::{
    FRAME_BYTES_MAX, FRAME_VERSION, FrameStream, MemberReport, PREFIX_BYTES, RefusedReason, TransferCursor,
    decode_frame, encode_frame,
};
use fawn_chain::{
    Body, BootsMessage, ChainMember, ChainState, Closed, ClusterMap, DecodeError, Frame, Header, NodeEntry,
    PersistedState, RangeEntry, RingOptions,
};
use fawn_types::random::SplitMix64;
use fawn_types::{BootId, ClientTag, Durability, Epoch, HashSecret, NodeId, RangeId, TimeMs, Version};

fn epoch(value: u32) -> Epoch {
    Epoch::new(value).unwrap()
}

fn version(e: u32, seq: u64) -> Version {
    Version::new(epoch(e), seq).unwrap()
}

fn map() -> ClusterMap {
    let node = |id| NodeEntry { node: NodeId(id), shards: 1, weight: 2, domain: id, address: format!("[::1]:{id}") };
    let ring = RingOptions { replication: 3, virtual_ids: 2 };
    let mut map = ClusterMap::new(HashSecret([3; 16]), Durability::EverySecond, ring, (1..=4).map(node).collect());
    let entry = &mut map.ranges[1];
    entry.epoch = epoch(7);
    entry.state = ChainState::Active;
    entry.base = version(6, 9);
    entry.durability = Durability::Memory;
    let members = entry.members.clone();
    entry.last_active = Some(LastActive { epoch: epoch(7), durability: Durability::EverySecond, members });
    entry.remember(Activation { epoch: epoch(6), base: version(4, 1) });
    entry.remember(Activation { epoch: epoch(7), base: version(6, 9) });
    map
}

fn bodies() -> Vec<Body<'static>> {
    let (v, w) = (version(2, 5), version(3, 1));
    let entry = map().ranges[1].clone();
    let tag = ClientTag { session: 5, seq: 6 };
    vec![
        Body::Append { after: v, last: w, upstream: v, time: TimeMs(9), assigned: w, records: b"some records" },
        Body::Watermark { sent: w, upstream: v, time: TimeMs(10), assigned: v },
        Body::Ack { received: w, committed: v },
        Body::ReplayWanted { after: v },
        Body::Gone { after: v },
        Body::Entry(entry.clone()),
        Body::EntryWanted,
        Body::Report(MemberReport {
            last: w,
            committed: v,
            time: TimeMs(11),
            continues: None,
            ..MemberReport::default()
        }),
        Body::Report(MemberReport {
            last: w,
            committed: v,
            time: TimeMs(11),
            continues: Some(BootId(7)),
            ..MemberReport::default()
        }),
        Body::Report(MemberReport { found: epoch(4), reach: vec![member(3), member(1)], ..MemberReport::default() }),
        Body::Align { entry, donor: member(3), base: w, cut: v },
        Body::Equal { base: w },
        Body::CaughtUp { last: w },
        Body::Hello,
        Body::Failed,
        Body::Slow { oldest_ms: 2_500 },
        Body::BootsWanted { held: 1 << 40 },
        Body::Boots(BootsMessage { changes: 1, revision: 2, boots: vec![(member(1), BootId(7))] }),
        Body::Boots(BootsMessage { changes: 0, revision: 3, boots: Vec::new() }),
        Body::Suspect { member: member(8) },
        Body::EpochWanted,
        Body::Probe,
        Body::ProbeReply { epoch: epoch(9) },
        Body::PromisedAbove(map().ranges[1].clone()),
        Body::CannotSend { to: member(8) },
        Body::Refused { op: 4, reason: RefusedReason::TooFewCopies },
        Body::Request { op: 4, tag, first_incomplete: 3, payload: b"set a 1" },
        Body::Reply { op: 4, payload: b"stored" },
        Body::Refused { op: 4, reason: RefusedReason::WrongRange },
        Body::Refused { op: 4, reason: RefusedReason::Larger { bytes: 70_000 } },
        Body::CannotAlign,
        Body::TransferWanted { base: None, cursor: TransferCursor::START },
        Body::TransferWanted { base: Some(v), cursor: TransferCursor::Keys { pass: 3, place: 1 << 60 } },
        Body::Transfer {
            base: v,
            cursor: TransferCursor::Results { session: 7, seq: 8 },
            next: TransferCursor::Keys { pass: 4, place: 0 },
            read_version: w,
            keys: 12,
            records: b"copied records",
        },
        Body::Transfer {
            base: v,
            cursor: TransferCursor::START,
            next: TransferCursor::End,
            read_version: v,
            keys: 0,
            records: b"",
        },
        Body::AcknowledgementWanted,
    ]
}

fn frames() -> Vec<Vec<u8>> {
    let header = Header { from: member(2), boot: BootId(0x1122_3344_5566_7788), range: RangeId(9), epoch: epoch(3) };
    let encode = |body| {
        let mut bytes = Vec::new();
        encode_frame(&Frame { header, body }, &mut bytes);
        assert_eq!(decode_frame(&bytes).unwrap().header, header);
        bytes
    };
    bodies().into_iter().map(encode).collect()
}

#[test]
fn every_frame_there_and_back() {
    for (bytes, body) in frames().iter().zip(bodies()) {
        assert_eq!(decode_frame(bytes).unwrap().body, body);
    }
}

/// An entry's change, with its description.
type Lie = (&'static str, fn(&mut RangeEntry));

/// Behind the decoder, each of these entries made a process panic.
#[test]
fn an_entry_that_no_manager_makes_is_refused() {
    let lies: [Lie; 6] = [
        ("a range number that a store has no name for", |entry| entry.range = RangeId(1 << 31)),
        ("the greatest range number", |entry| entry.range = RangeId(u32::MAX)),
        ("a member twice", |entry| entry.members.push(entry.members[0])),
        ("a last active member twice", |entry| {
            let last = entry.last_active.as_mut().unwrap();
            last.members.push(last.members[0]);
        }),
        ("more members than the next epoch has places", |entry| {
            let others = (10..24).map(|node| ChainMember { id: member(node), ..entry.members[0] });
            entry.last_active.as_mut().unwrap().members = others.collect();
        }),
        ("an activation in a later epoch", |entry| {
            entry.remember(Activation { epoch: epoch(8), base: version(7, 1) });
        }),
    ];
    let header = Header { from: member(2), boot: BootId(7), range: RangeId(9), epoch: epoch(3) };
    for (what, lie) in lies {
        let mut map = map();
        lie(&mut map.ranges[1]);
        let entry = map.ranges[1].clone();
        let mut bytes = Vec::new();
        encode_frame(&Frame { header, body: Body::Entry(entry.clone()) }, &mut bytes);
        let of_frame = decode_frame(&bytes).unwrap_err();
        assert!(matches!(of_frame, DecodeError::Value { .. }), "{what}: {of_frame}");
        assert_eq!(decode_map(&encode_map(&map)).unwrap_err(), of_frame, "{what}, in a map");
        let state = PersistedState { promised: epoch(7), entry: Some(entry), ..PersistedState::default() };
        assert_eq!(decode_state(&encode_state(&state)).unwrap_err(), of_frame, "{what}, in a promise");
    }
}

/// The example in `docs/formats/peer-frames.md`.
#[test]
fn an_ack_has_the_documented_bytes() {
    let header = Header { from: member(2), boot: BootId(0x0102_0304_0506_0708), range: RangeId(9), epoch: epoch(3) };
    let body = Body::Ack { received: version(3, 7), committed: version(3, 5) };
    let mut bytes = Vec::new();
    encode_frame(&Frame { header, body }, &mut bytes);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(&hex[16..], ACK_FROM_BYTE_8, "prefix from byte 8 on, then the body");
    assert_eq!(&hex[..16], ACK_CHECKSUM);
}

const ACK_CHECKSUM: &str = "225cd27027231f53";
const ACK_FROM_BYTE_8: &str =
    "240000000308d036002000000900000003000000080706050403020107000000300000000500000030000000";

#[test]
fn any_flipped_bit_is_seen() {
    for bytes in frames() {
        for bit in 0..bytes.len() * 8 {
            let mut corrupt = bytes.clone();
            corrupt[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_frame(&corrupt).is_err(), "bit {bit} of {bytes:?}");
        }
        for len in 0..bytes.len() {
            assert!(matches!(decode_frame(&bytes[..len]), Err(DecodeError::Truncated { .. })));
        }
    }
}

#[test]
fn streams_may_be_cut_and_joined_anywhere() {
    let joined: Vec<u8> = frames().concat();
    for piece in 1..200 {
        let mut stream = FrameStream::new();
        let mut seen = Vec::new();
        for bytes in joined.chunks(piece) {
            stream.push(bytes);
            while let Some(frame) = stream.next_frame().unwrap() {
                let mut again = Vec::new();
                encode_frame(&frame, &mut again);
                seen.push(again);
            }
        }
        assert_eq!(seen, frames(), "pieces of {piece}");
        assert_eq!(stream.buffered_bytes(), 0);
    }
}

/// Decoding without copies, with pieces from less than a prefix up to the whole stream.
#[test]
fn whole_frames_are_taken_from_the_piece_itself() {
    let joined: Vec<u8> = frames().concat();
    for piece in (1..200).chain([joined.len() - 1, joined.len()]) {
        let mut stream = FrameStream::new();
        let mut seen = Vec::new();
        for mut bytes in joined.chunks(piece) {
            while let Some(frame) = stream.next_frame_of(&mut bytes).unwrap() {
                let mut again = Vec::new();
                encode_frame(&frame, &mut again);
                seen.push(again);
            }
            assert!(bytes.is_empty(), "the stream keeps the incomplete frame");
        }
        assert_eq!(seen, frames(), "pieces of {piece}");
        assert_eq!(stream.buffered_bytes(), 0);
    }
    let mut corrupt = joined.clone();
    let start = frames()[0].len();
    corrupt[start + 20] ^= 1;
    let (mut stream, mut bytes) = (FrameStream::new(), corrupt.as_slice());
    assert!(stream.next_frame_of(&mut bytes).unwrap().is_some());
    assert_eq!(stream.next_frame_of(&mut bytes).unwrap_err().offset_bytes, start as u64);
    assert!(stream.next_frame_of(&mut joined.as_slice()).is_err(), "a broken stream stays broken");
}

#[test]
fn a_damaged_stream_ends_and_says_where() {
    let frames = frames();
    let mut joined: Vec<u8> = frames.concat();
    let start = frames[0].len();
    joined[start + 9] ^= 1; // The second frame's length.
    let mut stream = FrameStream::new();
    stream.push(&joined);
    assert!(stream.next_frame().unwrap().is_some());
    let error = stream.next_frame().unwrap_err();
    assert_eq!(error.offset_bytes, start as u64);
    stream.push(&frames[0]);
    assert_eq!(stream.next_frame().unwrap_err(), error, "a broken stream stays broken");
}

#[test]
fn a_length_beyond_the_limit_is_refused_at_once() {
    let mut bytes = frames().remove(2);
    bytes[8..12].copy_from_slice(&(FRAME_BYTES_MAX as u32).to_le_bytes());
    let short = fawn_types::checksum::checksum64(&bytes[8..14]) as u16;
    bytes[14..16].copy_from_slice(&short.to_le_bytes());
    let mut stream = FrameStream::new();
    stream.push(&bytes[..PREFIX_BYTES]);
    assert!(matches!(stream.next_frame().unwrap_err().cause, DecodeError::Value { what: "frame length", .. }));
}

#[test]
fn images_of_map_and_promise_there_and_back() {
    let map = map();
    let image = encode_map(&map);
    assert_eq!(decode_map(&image).unwrap(), map);
    let log_durability = Durability::Memory;
    let state = PersistedState { promised: epoch(8), entry: Some(map.ranges[1].clone()), log_durability, closed: None };
    assert_eq!(decode_state(&encode_state(&state)).unwrap(), state);
    for before in [None, Some(BootId(6))] {
        let closed = Some(Closed { boot: BootId(7), last: version(3, 4), before });
        let after_close = PersistedState { closed, ..state.clone() };
        assert_eq!(decode_state(&encode_state(&after_close)).unwrap(), after_close);
    }
    assert_eq!(decode_state(&encode_state(&PersistedState::default())).unwrap(), PersistedState::default());
    for place in 0..image.len() {
        let mut corrupt = image.clone();
        corrupt[place] ^= 0x10;
        assert!(matches!(decode_map(&corrupt), Err(DecodeError::Checksum { .. })));
    }
    assert!(decode_map(&encode_state(&state)).is_err(), "a promise is no map");
}

#[test]
fn images_of_another_layout_are_refused() {
    let images = [encode_map(&map()), encode_state(&PersistedState::default())];
    for mut image in images {
        image[4] -= 1;
        let content = image.len() - 8;
        let sum = fawn_types::checksum::checksum64(&image[..content]);
        image[content..].copy_from_slice(&sum.to_le_bytes());
        let refused = |error| matches!(error, DecodeError::Value { what: "image version", .. });
        assert!(decode_map(&image).is_err_and(refused) || decode_state(&image).is_err_and(refused));
    }
}

/// Corrupt frames with recomputed checksums, and noise: decoding returns an error or a frame, never panics.
#[test]
fn arbitrary_bytes_never_panic() {
    let mut random = SplitMix64::new(1);
    let seeds = frames();
    for _ in 0..20_000 {
        let mut bytes = seeds[random.below(seeds.len() as u64) as usize].clone();
        for _ in 0..random.below(6) {
            let place = random.below(bytes.len() as u64) as usize;
            bytes[place] = random.below(256) as u8;
        }
        bytes.truncate(random.below(bytes.len() as u64 * 2) as usize + PREFIX_BYTES);
        if random.below(4) != 0 {
            reseal(&mut bytes);
        }
        fawn_chain::fuzz::peer_frame(&bytes);
        let sum = fawn_types::checksum::checksum64(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        fawn_chain::fuzz::peer_frame(&bytes);
    }
}

fn reseal(bytes: &mut [u8]) {
    let body_bytes = (bytes.len() - PREFIX_BYTES) as u32;
    bytes[8..12].copy_from_slice(&body_bytes.to_le_bytes());
    bytes[13] = FRAME_VERSION;
    let short = fawn_types::checksum::checksum64(&bytes[8..14]) as u16;
    bytes[14..16].copy_from_slice(&short.to_le_bytes());
    let sum = fawn_types::checksum::checksum64(&bytes[8..]);
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
}
