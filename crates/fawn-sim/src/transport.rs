//! Outgoing frames of a machine: splits its bytes into frames, extracts promises, and forges frames for planted bugs.
use crate::canary::Canary;
use fawn_chain::message::{FrameStream, RefusedReason, encode_frame};
use fawn_chain::{Body, Frame, TransferCursor};
use fawn_ds::internals::format::record::{Envelope, RecordPlace, decode, encode_into, encoded_len};
use fawn_ds::internals::{RecordKind, RecordRef};
use fawn_node::cluster::KeyspaceRequest;
use fawn_node::cluster::payload::{RequestBody, decode_request, encode_request};
use fawn_types::random::SplitMix64;
use fawn_types::{ClientTag, Epoch, RangeId, Reply, Request, TimeMs, Version};
use fawn_wire::internal::{KeyValuePairs, put_pair, put_result};
use std::collections::BTreeMap;

/// Place of a record on a link, which is in no segment.
const NOWHERE: RecordPlace = RecordPlace { segment_id: 0, offset: 0 };

/// The last position of a scan in a range's log: cursors have zeros in their low bits, and those of stores without runs in
/// the two highest ones.
const SCAN_END: u64 = (u64::MAX >> 2) & !0xFFF;

/// Number of replies to a copy's last request that are withheld, so that more happens before the chunk is accepted.
const ANSWERS_WITHHELD: u32 = 2;

/// Records of one key seen on links.
#[derive(Clone, Debug, Default)]
struct SeenRecord {
    puts: BTreeMap<Version, Vec<u8>>,
    deleted: Version,
}

/// One outgoing frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutgoingFrame {
    /// The frame's bytes.
    pub frame: Vec<u8>,
    /// The epoch that the frame binds its sender to, a promise that it may never forget; `None` if it binds to none.
    pub promise: Option<(RangeId, Epoch)>,
    /// Whether it is a chunk of a transfer.
    pub is_part: bool,
}

/// Sending side of all machines' links.
#[derive(Clone, Debug)]
pub struct FaultyTransport {
    canary: Option<Canary>,
    random: SplitMix64,
    /// An earlier record, to be sent again under another version.
    earlier: Option<Vec<u8>>,
    /// Records seen on links, by key.
    seen: BTreeMap<(RangeId, Vec<u8>), SeenRecord>,
    /// How often a chunk of a transfer was sent or withheld.
    asked: BTreeMap<(RangeId, Version, TransferCursor), u32>,
    /// Sessions of reads, by operation.
    reads: BTreeMap<u64, u64>,
    /// Number of forged frames.
    pub lies: u64,
}

impl FaultyTransport {
    /// A transport that forges frames only if there is a canary.
    #[must_use]
    pub const fn new(seed: u64, canary: Option<Canary>) -> Self {
        Self {
            canary,
            random: SplitMix64::new(seed),
            earlier: None,
            seen: BTreeMap::new(),
            asked: BTreeMap::new(),
            reads: BTreeMap::new(),
            lies: 0,
        }
    }

    /// The frames in `bytes`, as a machine output them; `wall` is the receiver's wall clock.
    ///
    /// # Errors
    /// If the bytes are not whole frames.
    pub fn outgoing(&mut self, bytes: &[u8], wall: TimeMs) -> Result<Vec<OutgoingFrame>, String> {
        let mut stream = FrameStream::new();
        stream.push(bytes);
        let mut outgoing = Vec::new();
        let mut start = 0;
        loop {
            let frame = stream.next_frame().map_err(|error| format!("a machine sent a corrupt frame: {error}"))?;
            let Some(frame) = frame else { break };
            let promise = promise_of(&frame);
            let is_part = matches!(frame.body, Body::Transfer { .. });
            let lies = self.lies_about(&frame, wall);
            let end = bytes.len() - stream.buffered_bytes();
            let honest = OutgoingFrame { frame: bytes[start..end].to_vec(), promise, is_part };
            match lies {
                Some(frames) => {
                    outgoing.extend(frames.into_iter().map(|frame| OutgoingFrame { frame, promise, is_part }))
                }
                None => outgoing.push(honest),
            }
            start = end;
        }
        if start != bytes.len() {
            return Err(format!("a machine sent half a frame: {} bytes too many", bytes.len() - start));
        }
        Ok(outgoing)
    }

    /// The frames to send instead of `frame`, if the planted bug applies.
    fn lies_about(&mut self, frame: &Frame<'_>, wall: TimeMs) -> Option<Vec<Vec<u8>>> {
        let (canary, Frame { header, body }) = (self.canary?, frame);
        let seen = |body| Some(vec![encoded(&Frame { header: *header, body })]);
        let lie = match (canary, body) {
            (Canary::FailureConcealed, Body::Failed) => Some(Vec::new()),
            (Canary::ReadUncommitted, &Body::Append { after, last, time, assigned, records, .. }) => {
                seen(Body::Append { after, last, upstream: last, time, assigned, records })
            }
            (Canary::ReadUncommitted, &Body::Watermark { sent, time, assigned, .. }) => {
                seen(Body::Watermark { sent, upstream: sent, time, assigned })
            }
            (Canary::BatchTorn, &Body::Request { op, tag, first_incomplete, payload }) => {
                let payload = first_pair(payload)?;
                seen(Body::Request { op, tag, first_incomplete, payload: &payload })
            }
            (Canary::ExpiryGuessed, _) => self.guess_expiry(frame),
            (Canary::ExpiryByOwnClock, body) => seen(lie_about_time(body, wall)?),
            (Canary::AppliedTwice, &Body::Request { op, tag, first_incomplete, payload })
                if tag.is_some() && self.random.chance(1, 16) =>
            {
                // The same request as another operation of its session: its sender ignores the second reply.
                let op = op | 1 << 40;
                let again = ClientTag { session: tag.session, seq: op };
                let body = Body::Request { op, tag: again, first_incomplete, payload };
                Some(vec![encoded(frame), encoded(&Frame { header: *header, body })])
            }
            (Canary::ScanSkipsRange, &Body::Request { op, tag, first_incomplete, payload })
                if header.range.0 % 2 == 1 =>
            {
                let payload = at_end(payload)?;
                seen(Body::Request { op, tag, first_incomplete, payload: &payload })
            }
            (Canary::FlushMissesRange, &Body::Append { after, last, upstream, time, assigned, records })
                if header.range.0 % 2 == 1 =>
            {
                let records = without_clears(records)?;
                seen(Body::Append { after, last, upstream, time, assigned, records: &records })
            }
            (Canary::TransferCutShort, &Body::Transfer { base, cursor, next, read_version, keys, records })
                if next != cursor =>
            {
                seen(Body::Transfer { base, cursor, next: TransferCursor::End, read_version, keys, records })
            }
            (Canary::DeleteResurrected, &Body::Append { records, .. }) => {
                self.note_records(header.range, records);
                None
            }
            (Canary::DeleteResurrected, &Body::Transfer { base, cursor, next, read_version, keys, records })
                if next == TransferCursor::End =>
            {
                let asked = self.asked.entry((header.range, base, cursor)).or_default();
                *asked += 1;
                if *asked <= ANSWERS_WITHHELD {
                    return Some(Vec::new());
                }
                let records = [records, &self.resurrected(header.range, base)].concat();
                seen(Body::Transfer { base, cursor, next, read_version, keys, records: &records })
            }
            (
                Canary::SequenceReused | Canary::GapIgnored | Canary::ChecksumIgnored,
                &Body::Append { after, last, upstream, time, assigned, records },
            ) => {
                let records = self.forge(canary, records)?;
                seen(Body::Append { after, last, upstream, time, assigned, records: &records })
            }
            _ => None,
        };
        self.lies += u64::from(lie.is_some());
        lie
    }

    /// Answers a refused read of one key: it finds nothing. A serving tail refuses such reads only if an uncommitted
    /// update may keep an expired key.
    fn guess_expiry(&mut self, frame: &Frame<'_>) -> Option<Vec<Vec<u8>>> {
        match frame.body {
            Body::Request { op, payload, .. } => {
                if let Ok((session, _, RequestBody::Key(Request::Get { .. }))) = decode_request(payload) {
                    self.reads.insert(op, session);
                }
                None
            }
            Body::Refused { op, reason: RefusedReason::Overloaded } => {
                let mut payload = self.reads.get(&op)?.to_le_bytes().to_vec();
                put_result(&mut payload, &Reply::Absent);
                Some(vec![encoded(&Frame { header: frame.header, body: Body::Reply { op, payload: &payload } })])
            }
            _ => None,
        }
    }

    fn note_records(&mut self, range: RangeId, mut records: &[u8]) {
        while let Ok(stored) = decode(records, NOWHERE) {
            let (record, len) = (stored.record, stored.encoded_len);
            let seen = self.seen.entry((range, record.key.to_vec())).or_default();
            match record.kind {
                RecordKind::Put => drop(seen.puts.insert(record.version, records[..len].to_vec())),
                RecordKind::Tombstone => seen.deleted = seen.deleted.max(record.version),
                _ => {}
            }
            records = &records[len..];
        }
    }

    /// Records of keys that existed at `base` and were deleted since, as in an outdated chunk of a copy.
    fn resurrected(&self, range: RangeId, base: Version) -> Vec<u8> {
        let of_range = self.seen.iter().filter(|((of, _), _)| *of == range).map(|(_, seen)| seen);
        let deleted = of_range.filter(|seen| seen.deleted > base);
        deleted.filter_map(|seen| seen.puts.range(..=base).next_back()).flat_map(|(_, put)| put.clone()).collect()
    }

    /// The records with one of them changed, for some calls.
    fn forge(&mut self, canary: Canary, records: &[u8]) -> Option<Vec<u8>> {
        let first = decode(records, NOWHERE).ok()?;
        let (record, envelope, len) = (first.record, first.envelope, first.encoded_len);
        let held = self.earlier.take();
        let strikes = self.random.chance(1, 24) && record.kind == RecordKind::Put;
        let mut value = record.value.to_vec();
        let forged = match canary {
            _ if !strikes => None,
            Canary::GapIgnored => {
                Some(encoded_record(&RecordRef { kind: RecordKind::Result, value: &[], ..record }, envelope))
            }
            Canary::ChecksumIgnored => {
                *value.last_mut()? ^= 1;
                Some(encoded_record(&RecordRef { value: &value, ..record }, envelope))
            }
            _ => held.as_deref().and_then(|held| {
                let held = decode(held, NOWHERE).ok()?;
                let version: Version = record.version;
                Some(encoded_record(&RecordRef { version, ..held.record }, envelope))
            }),
        };
        self.earlier = Some(records[..len].to_vec());
        Some([forged?.as_slice(), &records[len..]].concat())
    }
}

/// The body with the receiver's wall clock as chain time; `None` if it carries none.
fn lie_about_time<'a>(body: &Body<'a>, wall: TimeMs) -> Option<Body<'a>> {
    Some(match *body {
        Body::Append { after, last, upstream, assigned, records, .. } => {
            Body::Append { after, last, upstream, time: wall, assigned, records }
        }
        Body::Watermark { sent, upstream, assigned, .. } => Body::Watermark { sent, upstream, time: wall, assigned },
        _ => return None,
    })
}

/// The promise in a frame. Only replies of the handshake bind: a request may contain an epoch that is not durable yet,
/// and so may a syncing member's acks.
fn promise_of(frame: &Frame<'_>) -> Option<(RangeId, Epoch)> {
    let binds = matches!(frame.body, Body::Report(_) | Body::Equal { .. });
    binds.then_some((frame.header.range, frame.header.epoch))
}

/// The payload of an `MSET` with its first pair only; `None` if it is no `MSET`.
fn first_pair(payload: &[u8]) -> Option<Vec<u8>> {
    let (session, grant, RequestBody::Keyspace(KeyspaceRequest::SetAll(pairs))) = decode_request(payload).ok()? else {
        return None;
    };
    let (key, value) = pairs.iter().next()?;
    let (mut pair, mut changed) = (Vec::new(), Vec::new());
    put_pair(&mut pair, key, value);
    let pair = KeyspaceRequest::SetAll(KeyValuePairs::new(&pair).ok()?);
    encode_request(session, grant, &RequestBody::Keyspace(pair), &mut changed);
    Some(changed)
}

/// The payload with a step of a scan at the end of its range; `None` if it is not a step of a scan.
fn at_end(payload: &[u8]) -> Option<Vec<u8>> {
    let (session, grant, RequestBody::Keyspace(KeyspaceRequest::Scan { count, .. })) = decode_request(payload).ok()?
    else {
        return None;
    };
    let mut changed = Vec::new();
    let end = KeyspaceRequest::Scan { cursor: SCAN_END, count };
    encode_request(session, grant, &RequestBody::Keyspace(end), &mut changed);
    Some(changed)
}

/// The records with results in the place of clears; `None` if there is no clear.
fn without_clears(mut records: &[u8]) -> Option<Vec<u8>> {
    let (mut changed, mut has_clear) = (Vec::new(), false);
    while let Ok(stored) = decode(records, NOWHERE) {
        let (whole, rest) = records.split_at(stored.encoded_len);
        if stored.record.kind == RecordKind::Clear {
            has_clear = true;
            let record = RecordRef { kind: RecordKind::Result, ..stored.record };
            changed.extend_from_slice(&encoded_record(&record, stored.envelope));
        } else {
            changed.extend_from_slice(whole);
        }
        records = rest;
    }
    has_clear.then_some(changed)
}

fn encoded(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_frame(frame, &mut bytes);
    bytes
}

fn encoded_record(record: &RecordRef<'_>, envelope: Envelope) -> Vec<u8> {
    let mut bytes = vec![0; encoded_len(record)];
    encode_into(record, envelope, NOWHERE, &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use fawn_chain::Header;
    use fawn_types::{BootId, MemberId};

    fn frames() -> Vec<u8> {
        let header =
            Header { from: MemberId(1), boot: BootId(2), range: RangeId(3), epoch: Epoch::new(4).unwrap_or_default() };
        let equal = Body::Equal { base: Version::ZERO };
        let last = Version::from_u64(9);
        let watermark =
            Body::Watermark { sent: last, upstream: Version::ZERO, time: TimeMs(0), assigned: Version::ZERO };
        [equal, Body::EntryWanted, watermark].map(|body| encoded(&Frame { header, body })).concat()
    }

    #[test]
    fn frames_are_told_apart_and_promises_seen() {
        let bytes = frames();
        let outgoing = FaultyTransport::new(1, None).outgoing(&bytes, TimeMs(0)).unwrap();
        assert_eq!(outgoing.iter().flat_map(|frame_out| frame_out.frame.clone()).collect::<Vec<_>>(), bytes);
        assert_eq!(
            outgoing.iter().map(|frame_out| frame_out.promise.is_some()).collect::<Vec<_>>(),
            [true, false, false]
        );
        assert!(FaultyTransport::new(1, None).outgoing(&bytes[..bytes.len() - 1], TimeMs(0)).is_err());
    }

    #[test]
    fn a_canary_changes_its_frames_only() {
        let bytes = frames();
        let honest = FaultyTransport::new(1, None).outgoing(&bytes, TimeMs(0)).unwrap();
        let mut transport = FaultyTransport::new(1, Some(Canary::ReadUncommitted));
        let lying = transport.outgoing(&bytes, TimeMs(0)).unwrap();
        assert_eq!((&lying[..2], transport.lies), (&honest[..2], 1));
        assert_ne!(lying[2], honest[2]);
    }
}
