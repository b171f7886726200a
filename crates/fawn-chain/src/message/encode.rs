//! Encoding of peer frames (`docs/formats/peer-frames.md`).
use super::{Body, FRAME_BYTES_MAX, FRAME_VERSION, Frame, MemberReport, PREFIX_BYTES, RefusedReason};
use crate::boots::BootsMessage;
use crate::map::{MEMBERS_MAX, put_entry};
use alloc::vec::Vec;
use fawn_types::bytes::PutFields;
use fawn_types::checksum::checksum64;

/// Appends `frame` to `out`. Callers bound records by the link's frame size, which is below [`FRAME_BYTES_MAX`].
pub fn encode_frame(frame: &Frame<'_>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX_BYTES]);
    out.put_u32(frame.header.from.0);
    out.put_u32(frame.header.range.0);
    out.put_u32(frame.header.epoch.get());
    out.put_u64(frame.header.boot.0);
    let kind = put_body(out, &frame.body);
    let total_bytes = out.len() - start;
    assert!(total_bytes <= FRAME_BYTES_MAX, "frame of {total_bytes} bytes");
    seal(&mut out[start..], kind);
}

/// Fills in the prefix. Its short check over length and kind lets a stream reject a corrupt length at once, instead of
/// waiting for bytes that never arrive.
fn seal(frame: &mut [u8], kind: u8) {
    let body_bytes = (frame.len() - PREFIX_BYTES) as u32;
    frame[8..12].copy_from_slice(&body_bytes.to_le_bytes());
    frame[12] = kind;
    frame[13] = FRAME_VERSION;
    let short = checksum64(&frame[8..14]) as u16;
    frame[14..16].copy_from_slice(&short.to_le_bytes());
    let sum = checksum64(&frame[8..]);
    frame[..8].copy_from_slice(&sum.to_le_bytes());
}

/// Appends the body and returns its kind.
fn put_body(out: &mut Vec<u8>, body: &Body<'_>) -> u8 {
    match body {
        Body::Append { after, last, upstream, time, assigned, records } => {
            put_words(out, &[after.as_u64(), last.as_u64(), upstream.as_u64(), time.0, assigned.as_u64()]);
            out.extend_from_slice(records);
            1
        }
        Body::Watermark { sent, upstream, time, assigned } => {
            put_words(out, &[sent.as_u64(), upstream.as_u64(), time.0, assigned.as_u64()]);
            2
        }
        Body::Ack { received, committed } => {
            put_words(out, &[received.as_u64(), committed.as_u64()]);
            3
        }
        Body::ReplayWanted { after } => {
            out.put_u64(after.as_u64());
            4
        }
        Body::Gone { after } => {
            out.put_u64(after.as_u64());
            5
        }
        Body::Transfer { base, cursor, next, read_version, keys, records } => {
            out.put_u64(base.as_u64());
            cursor.put(out);
            next.put(out);
            put_words(out, &[read_version.as_u64(), *keys]);
            out.extend_from_slice(records);
            18
        }
        Body::Request { op, tag, first_incomplete, payload } => {
            put_words(out, &[*op, tag.session, tag.seq, *first_incomplete]);
            out.extend_from_slice(payload);
            13
        }
        Body::Reply { op, payload } => {
            out.put_u64(*op);
            out.extend_from_slice(payload);
            14
        }
        Body::Refused { op, reason } => {
            out.put_u64(*op);
            put_reason(out, *reason);
            15
        }
        control => put_control(out, control),
    }
}

/// Appends frames between members and manager, and other frames without records.
fn put_control(out: &mut Vec<u8>, body: &Body<'_>) -> u8 {
    match body {
        Body::Entry(entry) => {
            put_entry(out, entry);
            6
        }
        Body::EntryWanted => 7,
        Body::Report(report) => {
            put_report(out, report);
            8
        }
        Body::Align { entry, donor, base, cut } => {
            out.put_u32(donor.0);
            put_words(out, &[base.as_u64(), cut.as_u64()]);
            put_entry(out, entry);
            9
        }
        Body::Equal { base } => {
            out.put_u64(base.as_u64());
            10
        }
        Body::CaughtUp { last } => {
            out.put_u64(last.as_u64());
            11
        }
        Body::Hello => 12,
        Body::CannotAlign => 16,
        Body::TransferWanted { base, cursor } => {
            out.put_u8(u8::from(base.is_some()));
            out.put_u64(base.unwrap_or_default().as_u64());
            cursor.put(out);
            17
        }
        Body::Failed => 20,
        Body::Suspect { member: id } => {
            out.put_u32(id.0);
            21
        }
        Body::EpochWanted => 22,
        Body::Probe => 23,
        Body::ProbeReply { epoch } => {
            out.put_u32(epoch.get());
            24
        }
        Body::PromisedAbove(entry) => {
            put_entry(out, entry);
            25
        }
        Body::CannotSend { to } => {
            out.put_u32(to.0);
            26
        }
        Body::Slow { oldest_ms } => {
            out.put_u64(*oldest_ms);
            27
        }
        Body::BootsWanted { held } => {
            out.put_u64(*held);
            28
        }
        Body::Boots(message) => {
            put_boots(out, message);
            29
        }
        Body::AcknowledgementWanted => 30,
        data => unreachable!("{data:?} is encoded by put_body"),
    }
}

fn put_report(out: &mut Vec<u8>, report: &MemberReport) {
    let MemberReport { last, committed, time, continues, found, reach } = report;
    put_words(out, &[last.as_u64(), committed.as_u64(), time.0]);
    out.put_u8(u8::from(continues.is_some()));
    if let Some(boot) = continues {
        out.put_u64(boot.0);
    }
    out.put_u32(found.get());
    assert!(reach.len() <= MEMBERS_MAX, "{} members in reach", reach.len());
    out.put_u8(reach.len() as u8);
    reach.iter().for_each(|id| out.put_u32(id.0));
}

fn put_boots(out: &mut Vec<u8>, BootsMessage { changes, revision, boots }: &BootsMessage) {
    put_words(out, &[*changes, *revision]);
    out.put_u32(boots.len() as u32);
    for (id, boot) in boots {
        out.put_u32(id.0);
        out.put_u64(boot.0);
    }
}

fn put_words(out: &mut Vec<u8>, words: &[u64]) {
    words.iter().for_each(|word| out.put_u64(*word));
}

fn put_reason(out: &mut Vec<u8>, reason: RefusedReason) {
    out.put_u8(match reason {
        RefusedReason::StaleEpoch => 0,
        RefusedReason::Overloaded => 1,
        RefusedReason::WrongRange => 2,
        RefusedReason::TooFewCopies => 3,
        RefusedReason::Larger { .. } => 4,
    });
    if let RefusedReason::Larger { bytes } = reason {
        out.put_u32(bytes);
    }
}
