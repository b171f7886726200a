//! Decoding of range entries, maps and a replica's persisted state (`docs/formats/peer-frames.md`).
use super::encode::{MAP_MAGIC, MAP_VERSION, STATE_MAGIC, STATE_VERSION};
use super::{
    Activation, ChainMember, ChainState, ClusterMap, HISTORY_MAX, LastActive, MemberRole, NodeEntry, RangeEntry,
};
use crate::replica::{Closed, PersistedState};
use crate::ring::{CHAIN_MEMBERS_MAX, RingOptions};
use alloc::string::String;
use alloc::vec::Vec;
use fawn_types::bytes::{DecodeError, FrameReader};
use fawn_types::checksum::checksum64;
use fawn_types::{
    BootId, Durability, Epoch, HashSecret, KeyRange, MemberId, NodeId, RangeId, RingKey, TimeMs, Version,
};

/// Maximum number of members listed for one range: those of the longest chain, and as many syncing ones.
pub(crate) const MEMBERS_MAX: usize = 2 * CHAIN_MEMBERS_MAX;

/// Decodes a map encoded by `encode_map`.
///
/// # Errors
/// If the image is truncated, corrupt, or of another layout version.
pub fn decode_map(image: &[u8]) -> Result<ClusterMap, DecodeError> {
    let mut reader = open("cluster map", image, MAP_MAGIC, MAP_VERSION)?;
    let revision = reader.u64("map revision")?;
    let mut secret = [0; 16];
    secret.copy_from_slice(reader.take("hash secret", 16)?);
    let durability = read_durability(&mut reader)?;
    let replication = reader.u8("replication")?;
    check("replication", u64::from(replication), (1..=CHAIN_MEMBERS_MAX).contains(&usize::from(replication)))?;
    let virtual_ids = reader.u16("virtual IDs")?;
    check("virtual IDs", u64::from(virtual_ids), virtual_ids >= 1)?;
    let mut nodes = Vec::new();
    for _ in 0..reader.u32("node count")? {
        nodes.push(read_node(&mut reader)?);
    }
    let mut ranges = Vec::new();
    for _ in 0..reader.u32("range count")? {
        ranges.push(read_entry(&mut reader)?);
    }
    reader.finish("cluster map")?;
    let ring = RingOptions { replication, virtual_ids };
    Ok(ClusterMap { revision, secret: HashSecret(secret), durability, ring, nodes, ranges })
}

/// Decodes a replica's persisted state encoded by `encode_state`.
///
/// # Errors
/// If the image is truncated, corrupt, or of another layout version.
pub fn decode_state(image: &[u8]) -> Result<PersistedState, DecodeError> {
    let mut reader = open("promise", image, STATE_MAGIC, STATE_VERSION)?;
    let promised = read_epoch(&mut reader, "promised epoch")?;
    let log_durability = read_durability(&mut reader)?;
    let entry = if reader.flag("entry present")? { Some(read_entry(&mut reader)?) } else { None };
    let closed = if reader.flag("closed boot present")? { Some(read_closed(&mut reader)?) } else { None };
    reader.finish("promise")?;
    Ok(PersistedState { promised, entry, log_durability, closed })
}

fn read_closed(reader: &mut FrameReader<'_>) -> Result<Closed, DecodeError> {
    let boot = BootId(reader.u64("closed boot")?);
    let last = Version::from_u64(reader.u64("closed log's end")?);
    let has_before = reader.flag("boot before the closed one present")?;
    let before = if has_before { Some(BootId(reader.u64("boot before the closed one")?)) } else { None };
    Ok(Closed { boot, last, before })
}

/// Checks checksum, magic and layout version. The returned reader covers only the fields after them.
fn open<'a>(what: &'static str, image: &'a [u8], magic: u32, version: u16) -> Result<FrameReader<'a>, DecodeError> {
    let truncated = DecodeError::Truncated { what, need_bytes: 8, have_bytes: image.len() };
    let (content, sum) = image.split_last_chunk::<8>().ok_or(truncated)?;
    let (expected, found) = (checksum64(content), u64::from_le_bytes(*sum));
    if expected != found {
        return Err(DecodeError::Checksum { what, expected, found });
    }
    let mut reader = FrameReader::new(content);
    let found = reader.u32(what)?;
    check("image magic", u64::from(found), found == magic)?;
    let found = reader.u16("image version")?;
    check("image version", u64::from(found), found == version)?;
    Ok(reader)
}

fn check(what: &'static str, found: u64, holds: bool) -> Result<(), DecodeError> {
    if holds { Ok(()) } else { Err(DecodeError::Value { what, found }) }
}

fn read_node(reader: &mut FrameReader<'_>) -> Result<NodeEntry, DecodeError> {
    let node = reader.u32("node")?;
    check("node", u64::from(node), node < MemberId::NODES_MAX)?;
    let shards = reader.u16("node shards")?;
    check("node shards", u64::from(shards), (1..=MemberId::SHARDS_MAX).contains(&shards))?;
    let weight = reader.u16("node weight")?;
    let domain = reader.u32("node domain")?;
    let address = reader.blob("node address")?;
    let address = core::str::from_utf8(address)
        .map_err(|error| DecodeError::Value { what: "node address", found: error.valid_up_to() as u64 })?;
    Ok(NodeEntry { node: NodeId(node), shards, weight, domain, address: String::from(address) })
}

/// Decodes an entry. Refuses entries that no manager creates, because replicas and managers rely on the limits and on
/// the order of the history.
pub(crate) fn read_entry(reader: &mut FrameReader<'_>) -> Result<RangeEntry, DecodeError> {
    let range = RangeId(reader.u32("range")?);
    check("range", u64::from(range.0), range.0 < RangeId::NUMBERS_MAX)?;
    let keys = read_keys(reader)?;
    let epoch = read_epoch(reader, "epoch")?;
    let revision = reader.u32("revision")?;
    let state = reader.u8("chain state")?;
    check("chain state", u64::from(state), state <= 1)?;
    let state = if state == 0 { ChainState::Preparing } else { ChainState::Active };
    let durability = read_durability(reader)?;
    let copies_min = reader.u8("least copies")?;
    check("least copies", u64::from(copies_min), (1..=CHAIN_MEMBERS_MAX).contains(&usize::from(copies_min)))?;
    let base = Version::from_u64(reader.u64("base")?);
    let time = TimeMs(reader.u64("chain time")?);
    let members = read_members(reader)?;
    let last_active = match reader.flag("last active present")? {
        false => None,
        true => {
            let epoch = read_epoch(reader, "last active epoch")?;
            let durability = read_durability(reader)?;
            Some(LastActive { epoch, durability, members: read_members(reader)? })
        }
    };
    if let Some(last) = &last_active {
        // The manager's next handshake lists the members of both, and must be able to encode them.
        let others = members.iter().filter(|member| !is_listed(&last.members, member.id));
        let count = last.members.len() + others.count();
        check("members and last active members", count as u64, count <= MEMBERS_MAX)?;
    }
    let history = read_history(reader)?;
    let newest = history.last().map_or(Epoch::default(), |activation| activation.epoch);
    check("epoch of the newest activation", u64::from(newest.get()), newest <= epoch)?;
    Ok(RangeEntry {
        range,
        keys,
        epoch,
        revision,
        state,
        durability,
        copies_min,
        base,
        time,
        members,
        last_active,
        history,
    })
}

fn read_keys(reader: &mut FrameReader<'_>) -> Result<KeyRange, DecodeError> {
    let start = read_boundary(reader)?;
    let end = if reader.flag("range end present")? { Some(read_boundary(reader)?) } else { None };
    check("range end", 0, end.is_none_or(|end| end > start))?;
    Ok(KeyRange { start, end })
}

fn read_boundary(reader: &mut FrameReader<'_>) -> Result<RingKey, DecodeError> {
    let mut bytes = [0; 20];
    bytes.copy_from_slice(reader.take("range boundary", 20)?);
    let key = RingKey(bytes);
    check("range boundary", u64::from(bytes[19]), key.is_boundary())?;
    Ok(key)
}

fn is_listed(members: &[ChainMember], id: MemberId) -> bool {
    members.iter().any(|member| member.id == id)
}

fn read_members(reader: &mut FrameReader<'_>) -> Result<Vec<ChainMember>, DecodeError> {
    let count = usize::from(reader.u8("member count")?);
    check("member count", count as u64, count <= MEMBERS_MAX)?;
    let mut members: Vec<ChainMember> = Vec::with_capacity(count);
    for _ in 0..count {
        let id = MemberId(reader.u32("member")?);
        // A member listed twice would be its own successor.
        check("member", u64::from(id.0), !is_listed(&members, id))?;
        let boot = BootId(reader.u64("member boot")?);
        let role = reader.u8("member role")?;
        check("member role", u64::from(role), role <= 1)?;
        let role = if role == 0 { MemberRole::Serving } else { MemberRole::Syncing };
        members.push(ChainMember { id, boot, role });
    }
    Ok(members)
}

fn read_history(reader: &mut FrameReader<'_>) -> Result<Vec<Activation>, DecodeError> {
    let count = usize::from(reader.u8("history length")?);
    check("history length", count as u64, count <= HISTORY_MAX)?;
    let mut history = Vec::with_capacity(count);
    for _ in 0..count {
        let epoch = read_epoch(reader, "activation epoch")?;
        history.push(Activation { epoch, base: Version::from_u64(reader.u64("activation base")?) });
    }
    let ordered = history.windows(2).all(|pair| pair[0].epoch < pair[1].epoch && pair[0].base <= pair[1].base);
    check("history order", count as u64, ordered)?;
    Ok(history)
}

pub(crate) fn read_epoch(reader: &mut FrameReader<'_>, what: &'static str) -> Result<Epoch, DecodeError> {
    let raw = reader.u32(what)?;
    Epoch::new(raw).ok_or(DecodeError::Value { what, found: u64::from(raw) })
}

fn read_durability(reader: &mut FrameReader<'_>) -> Result<Durability, DecodeError> {
    match reader.u8("durability")? {
        0 => Ok(Durability::Sync),
        1 => Ok(Durability::EverySecond),
        2 => Ok(Durability::Memory),
        other => Err(DecodeError::Value { what: "durability", found: u64::from(other) }),
    }
}
