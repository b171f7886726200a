//! Decoding of peer frames (`docs/formats/peer-frames.md`); arbitrary bytes cause an error, never a panic.
use super::{
    Body, FRAME_BYTES_MAX, FRAME_VERSION, Frame, Header, MemberReport, PREFIX_BYTES, RefusedReason, TransferCursor,
};
use crate::boots::BootsMessage;
use crate::map::{MEMBERS_MAX, read_entry, read_epoch};
use alloc::vec::Vec;
use fawn_types::bytes::{DecodeError, FrameReader};
use fawn_types::checksum::checksum64;
use fawn_types::{BootId, ClientTag, MemberId, RangeId, TimeMs, Version};

/// The length of the whole frame that begins with this prefix.
///
/// # Errors
/// If the prefix is corrupt, of another version, or announces more than [`FRAME_BYTES_MAX`].
pub(super) fn frame_bytes(prefix: &[u8; PREFIX_BYTES]) -> Result<usize, DecodeError> {
    let mut reader = FrameReader::new(&prefix[8..]);
    let body_bytes = reader.u32("frame length")? as usize;
    let _kind = reader.u8("frame kind")?;
    let version = reader.u8("frame version")?;
    let found = u64::from(reader.u16("frame prefix")?);
    let expected = u64::from(checksum64(&prefix[8..14]) as u16);
    if expected != found {
        return Err(DecodeError::Checksum { what: "frame prefix", expected, found });
    }
    if version != FRAME_VERSION {
        return Err(DecodeError::Value { what: "frame version", found: u64::from(version) });
    }
    match body_bytes.checked_add(PREFIX_BYTES) {
        Some(total) if total <= FRAME_BYTES_MAX => Ok(total),
        _ => Err(DecodeError::Value { what: "frame length", found: body_bytes as u64 }),
    }
}

/// Decodes `bytes` as exactly one frame.
///
/// # Errors
/// If the bytes differ in any way from the output of `encode_frame`.
pub fn decode_frame(bytes: &[u8]) -> Result<Frame<'_>, DecodeError> {
    let what = "frame";
    let short = DecodeError::Truncated { what, need_bytes: PREFIX_BYTES, have_bytes: bytes.len() };
    let prefix = bytes.first_chunk::<PREFIX_BYTES>().ok_or(short)?;
    let total = frame_bytes(prefix)?;
    if bytes.len() < total {
        return Err(DecodeError::Truncated { what, need_bytes: total, have_bytes: bytes.len() });
    }
    if bytes.len() > total {
        return Err(DecodeError::Trailing { what, extra_bytes: bytes.len() - total });
    }
    let (expected, found) = (checksum64(&bytes[8..]), FrameReader::new(bytes).u64(what)?);
    if expected != found {
        return Err(DecodeError::Checksum { what, expected, found });
    }
    let mut reader = FrameReader::new(&bytes[PREFIX_BYTES..]);
    let header = read_header(&mut reader)?;
    let body = read_body(bytes[12], &mut reader)?;
    reader.finish(what)?;
    Ok(Frame { header, body })
}

fn read_header(reader: &mut FrameReader<'_>) -> Result<Header, DecodeError> {
    let from = MemberId(reader.u32("sender")?);
    let range = RangeId(reader.u32("range")?);
    let epoch = read_epoch(reader, "epoch")?;
    Ok(Header { from, boot: BootId(reader.u64("boot")?), range, epoch })
}

fn read_body<'a>(kind: u8, reader: &mut FrameReader<'a>) -> Result<Body<'a>, DecodeError> {
    Ok(match kind {
        1 => read_append(reader)?,
        2 => Body::Watermark {
            sent: version(reader)?,
            upstream: version(reader)?,
            time: TimeMs(reader.u64("chain time")?),
            assigned: version(reader)?,
        },
        3 => Body::Ack { received: version(reader)?, committed: version(reader)? },
        4 => Body::ReplayWanted { after: version(reader)? },
        5 => Body::Gone { after: version(reader)? },
        6 => Body::Entry(read_entry(reader)?),
        7 => Body::EntryWanted,
        8 => Body::Report(read_report(reader)?),
        9 => read_align(reader)?,
        10 => Body::Equal { base: version(reader)? },
        11 => Body::CaughtUp { last: version(reader)? },
        12 => Body::Hello,
        13 => read_request(reader)?,
        14 => Body::Reply { op: reader.u64("operation")?, payload: reader.rest() },
        15 => Body::Refused { op: reader.u64("operation")?, reason: read_reason(reader)? },
        16 => Body::CannotAlign,
        17 => read_transfer_wanted(reader)?,
        18 => read_transfer(reader)?,
        20 => Body::Failed,
        21 => Body::Suspect { member: MemberId(reader.u32("suspected id")?) },
        22 => Body::EpochWanted,
        23 => Body::Probe,
        24 => Body::ProbeReply { epoch: read_epoch(reader, "epoch of a probe")? },
        25 => Body::PromisedAbove(read_entry(reader)?),
        26 => Body::CannotSend { to: MemberId(reader.u32("successor")?) },
        27 => Body::Slow { oldest_ms: reader.u64("age of a write")? },
        28 => Body::BootsWanted { held: reader.u64("revision of boots")? },
        29 => read_boots(reader)?,
        30 => Body::AcknowledgementWanted,
        other => return Err(DecodeError::Value { what: "frame kind", found: u64::from(other) }),
    })
}

fn version(reader: &mut FrameReader<'_>) -> Result<Version, DecodeError> {
    reader.u64("version").map(Version::from_u64)
}

fn read_report(reader: &mut FrameReader<'_>) -> Result<MemberReport, DecodeError> {
    let (last, committed) = (version(reader)?, version(reader)?);
    let time = TimeMs(reader.u64("chain time")?);
    let continues = match reader.flag("continued boot present")? {
        true => Some(BootId(reader.u64("continued boot")?)),
        false => None,
    };
    let found = read_epoch(reader, "promise found at start")?;
    let count = usize::from(reader.u8("members in reach")?);
    if count > MEMBERS_MAX {
        return Err(DecodeError::Value { what: "members in reach", found: count as u64 });
    }
    let mut reach = Vec::with_capacity(count);
    for _ in 0..count {
        reach.push(MemberId(reader.u32("member in reach")?));
    }
    Ok(MemberReport { last, committed, time, continues, found, reach })
}

fn read_boots(reader: &mut FrameReader<'_>) -> Result<Body<'static>, DecodeError> {
    let (changes, revision) = (reader.u64("changed revision of boots")?, reader.u64("revision of boots")?);
    let count = reader.u32("number of boots")?;
    // Not reserved: the number may be a lie, the bytes are not.
    let mut boots: Vec<(MemberId, BootId)> = Vec::new();
    for _ in 0..count {
        let (id, boot) = (MemberId(reader.u32("shard")?), BootId(reader.u64("boot of a shard")?));
        if boots.last().is_some_and(|(last, _)| *last >= id) {
            return Err(DecodeError::Value { what: "order of shards", found: u64::from(id.0) });
        }
        boots.push((id, boot));
    }
    Ok(Body::Boots(BootsMessage { changes, revision, boots }))
}

fn read_append<'a>(reader: &mut FrameReader<'a>) -> Result<Body<'a>, DecodeError> {
    let (after, last) = (version(reader)?, version(reader)?);
    if after >= last {
        // A receiver would take an empty or backward batch as proof of records that do not exist.
        return Err(DecodeError::Value { what: "append's last version", found: last.as_u64() });
    }
    let upstream = version(reader)?;
    let (time, assigned) = (TimeMs(reader.u64("chain time")?), version(reader)?);
    Ok(Body::Append { after, last, upstream, time, assigned, records: reader.rest() })
}

fn read_align<'a>(reader: &mut FrameReader<'a>) -> Result<Body<'a>, DecodeError> {
    let donor = MemberId(reader.u32("donor")?);
    let (base, cut) = (version(reader)?, version(reader)?);
    if cut > base {
        return Err(DecodeError::Value { what: "align's cut", found: cut.as_u64() });
    }
    Ok(Body::Align { entry: read_entry(reader)?, donor, base, cut })
}

fn read_request<'a>(reader: &mut FrameReader<'a>) -> Result<Body<'a>, DecodeError> {
    let op = reader.u64("operation")?;
    let tag = ClientTag { session: reader.u64("session")?, seq: reader.u64("session's sequence number")? };
    let first_incomplete = reader.u64("first incomplete")?;
    Ok(Body::Request { op, tag, first_incomplete, payload: reader.rest() })
}

fn read_transfer_wanted<'a>(reader: &mut FrameReader<'a>) -> Result<Body<'a>, DecodeError> {
    let named = reader.flag("whether a base is named")?;
    let base = version(reader)?;
    if !named && base != Version::ZERO {
        return Err(DecodeError::Value { what: "a base that is not named", found: base.as_u64() });
    }
    Ok(Body::TransferWanted { base: named.then_some(base), cursor: TransferCursor::read(reader)? })
}

fn read_transfer<'a>(reader: &mut FrameReader<'a>) -> Result<Body<'a>, DecodeError> {
    let base = version(reader)?;
    let (cursor, next) = (TransferCursor::read(reader)?, TransferCursor::read(reader)?);
    let read_version = version(reader)?;
    if next < cursor || read_version < base {
        // A part that leads backward would never end, and a part older than its base is invalid.
        return Err(DecodeError::Value { what: "a copy's order", found: read_version.as_u64() });
    }
    let keys = reader.u64("keys")?;
    Ok(Body::Transfer { base, cursor, next, read_version, keys, records: reader.rest() })
}

fn read_reason(reader: &mut FrameReader<'_>) -> Result<RefusedReason, DecodeError> {
    match reader.u8("refusal")? {
        0 => Ok(RefusedReason::StaleEpoch),
        1 => Ok(RefusedReason::Overloaded),
        2 => Ok(RefusedReason::WrongRange),
        3 => Ok(RefusedReason::TooFewCopies),
        4 => Ok(RefusedReason::Larger { bytes: reader.u32("length of the value")? }),
        other => Err(DecodeError::Value { what: "refusal", found: u64::from(other) }),
    }
}
