//! Encoding of range entries, maps and a replica's persisted state (`docs/formats/peer-frames.md`).
use super::{ChainMember, ChainState, ClusterMap, MemberRole, RangeEntry};
use crate::replica::{Closed, PersistedState};
use alloc::vec::Vec;
use fawn_types::bytes::PutFields;
use fawn_types::{Durability, KeyRange, checksum::checksum64};

/// First bytes of a map's image.
pub(super) const MAP_MAGIC: u32 = u32::from_le_bytes(*b"FWNM");
/// First bytes of a promise's image.
pub(super) const STATE_MAGIC: u32 = u32::from_le_bytes(*b"FWNP");
/// Layout version of a promise's image.
pub(super) const STATE_VERSION: u16 = 7;
/// Layout version of a map's image.
pub(super) const MAP_VERSION: u16 = 4;

/// The map as stored by the manager: magic, layout version, content, checksum of all preceding bytes.
#[must_use]
pub fn encode_map(map: &ClusterMap) -> Vec<u8> {
    let mut out = Vec::with_capacity(256 + map.ranges.len() * 256);
    out.put_u32(MAP_MAGIC);
    out.put_u16(MAP_VERSION);
    out.put_u64(map.revision);
    out.extend_from_slice(&map.secret.0);
    out.put_u8(durability_code(map.durability));
    out.put_u8(map.ring.replication);
    out.put_u16(map.ring.virtual_ids);
    out.put_u32(map.nodes.len() as u32);
    for node in &map.nodes {
        out.put_u32(node.node.0);
        out.put_u16(node.shards);
        out.put_u16(node.weight);
        out.put_u32(node.domain);
        out.put_blob(node.address.as_bytes());
    }
    out.put_u32(map.ranges.len() as u32);
    map.ranges.iter().for_each(|entry| put_entry(&mut out, entry));
    seal(out)
}

/// A replica's promise and newest entry, as its host stores them.
#[must_use]
pub fn encode_state(state: &PersistedState) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    out.put_u32(STATE_MAGIC);
    out.put_u16(STATE_VERSION);
    out.put_u32(state.promised.get());
    out.put_u8(durability_code(state.log_durability));
    out.put_u8(u8::from(state.entry.is_some()));
    if let Some(entry) = &state.entry {
        put_entry(&mut out, entry);
    }
    out.put_u8(u8::from(state.closed.is_some()));
    if let Some(Closed { boot, last, before }) = state.closed {
        out.put_u64(boot.0);
        out.put_u64(last.as_u64());
        out.put_u8(u8::from(before.is_some()));
        if let Some(before) = before {
            out.put_u64(before.0);
        }
    }
    seal(out)
}

fn seal(mut out: Vec<u8>) -> Vec<u8> {
    let sum = checksum64(&out);
    out.put_u64(sum);
    out
}

pub(crate) fn put_entry(out: &mut Vec<u8>, entry: &RangeEntry) {
    out.put_u32(entry.range.0);
    put_keys(out, &entry.keys);
    out.put_u32(entry.epoch.get());
    out.put_u32(entry.revision);
    out.put_u8(u8::from(entry.state == ChainState::Active));
    out.put_u8(durability_code(entry.durability));
    out.put_u8(entry.copies_min);
    out.put_u64(entry.base.as_u64());
    out.put_u64(entry.time.0);
    put_members(out, &entry.members);
    out.put_u8(u8::from(entry.last_active.is_some()));
    if let Some(last) = &entry.last_active {
        out.put_u32(last.epoch.get());
        out.put_u8(durability_code(last.durability));
        put_members(out, &last.members);
    }
    out.put_u8(entry.history.len() as u8);
    for activation in &entry.history {
        out.put_u32(activation.epoch.get());
        out.put_u64(activation.base.as_u64());
    }
}

fn put_keys(out: &mut Vec<u8>, keys: &KeyRange) {
    out.extend_from_slice(&keys.start.0);
    out.put_u8(u8::from(keys.end.is_some()));
    if let Some(end) = keys.end {
        out.extend_from_slice(&end.0);
    }
}

fn put_members(out: &mut Vec<u8>, members: &[ChainMember]) {
    assert!(members.len() <= super::decode::MEMBERS_MAX, "{} members", members.len());
    out.put_u8(members.len() as u8);
    for member in members {
        out.put_u32(member.id.0);
        out.put_u64(member.boot.0);
        out.put_u8(u8::from(member.role == MemberRole::Syncing));
    }
}

const fn durability_code(durability: Durability) -> u8 {
    match durability {
        Durability::Sync => 0,
        Durability::EverySecond => 1,
        Durability::Memory => 2,
    }
}
