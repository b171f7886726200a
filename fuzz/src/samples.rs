//! Valid inputs as the start of mutation: without them, mutated data would rarely pass a magic number or checksum.
use fawn_chain::map::{RangeEntry, encode_map};
use fawn_chain::message::{MemberReport, encode_frame};
use fawn_chain::{Body, BootsMessage, ClusterMap, Frame, Header, NodeEntry, RingOptions};
use fawn_ds::internals::format::frame::{self, Chain, FrameHeader};
use fawn_ds::internals::format::manifest::{self, ManifestEdit, ManifestHeader, ManifestState, RunEntry, SegmentSeal};
use fawn_ds::internals::format::record::{self, Envelope, RecordKind, RecordPlace, RecordRef};
use fawn_ds::internals::format::segment::{RecordFacts, StreamKind};
use fawn_ds::internals::format::{FORMAT_VERSION, FRAMES_OFFSET, RangeNumber, SegmentUuid, StoreUuid, Watermark};
use fawn_ds::internals::index::PointerWidth;
use fawn_types::request::ExpiryCondition;
use fawn_types::{
    BootId, ClientTag, Durability, Epoch, HashSecret, KeyHash, KeyRange, MemberId, NodeId, RangeId, RingKey, TimeMs,
    Version,
};
use fawn_types::{Condition, EntryRef, Expiry, OperationError, Reply, Request, Update};
use fawn_wire::internal::{self, KeyspaceRequest, Message, RequestBody, RequestFields};

/// The segment that the targets of `fawn-ds` simulate.
const UUID: SegmentUuid = SegmentUuid([7; 16]);
const SEGMENT_ID: u64 = 0;

fn texts(samples: &[&str]) -> Vec<Vec<u8>> {
    samples.iter().map(|sample| sample.as_bytes().to_vec()).collect()
}

fn put<'a>(version: u64, key: &'a [u8], value: &'a [u8]) -> RecordRef<'a> {
    RecordRef { key, value, ..RecordRef::bare(RecordKind::Put, Version::from_u64(version), &[]) }
}

fn encode(record: &RecordRef<'_>, place: RecordPlace) -> (Vec<u8>, u32) {
    let mut bytes = vec![0; record::encoded_len(record)];
    let envelope = Envelope { number: RangeNumber(1), continues: false };
    let checksum = record::encode_into(record, envelope, place, &mut bytes);
    (bytes, checksum)
}

pub(crate) fn records() -> Vec<Vec<u8>> {
    let plain = put(1, b"key", b"value");
    let tagged = RecordRef {
        flags: 9,
        expires_at_ms: 1_800_000_000_000,
        tag: ClientTag { session: 3, seq: 4 },
        result: b"result",
        ..put(2, b"k", b"")
    };
    let bare = RecordRef::bare(RecordKind::Tombstone, Version::from_u64(3), b"gone");
    let place = RecordPlace { segment_id: SEGMENT_ID, offset: FRAMES_OFFSET };
    [plain, tagged, bare].iter().map(|record| encode(record, place).0).collect()
}

/// One frame with `values.len()` records, at `offset`.
fn frame_of(segment_id: u64, offset: u32, values: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![0; frame::HEADER_BYTES];
    let mut chain = Chain::EMPTY;
    for (number, value) in (1..).zip(values) {
        let place = RecordPlace { segment_id, offset: offset + bytes.len() as u32 };
        let (record, checksum) = encode(&put(u64::from(offset) + number, b"key", value), place);
        chain = chain.then(checksum);
        bytes.extend(record);
    }
    let record_bytes = (bytes.len() - frame::HEADER_BYTES) as u32;
    let header = FrameHeader {
        uuid: UUID,
        generation: 1,
        offset,
        frame_bytes: bytes.len() as u32,
        record_bytes,
        count: values.len() as u32,
        synced: Watermark { sequence: 1, offset: FRAMES_OFFSET },
        chain,
    };
    frame::encode_header(&header, &mut bytes);
    bytes
}

pub(crate) fn frames() -> Vec<Vec<u8>> {
    vec![frame_of(UUID.fold(), FRAMES_OFFSET, &[b"a", b"bb", &[0; 100]]), frame_of(UUID.fold(), FRAMES_OFFSET, &[])]
}

/// The chunk size as one byte, then a sequence of frames.
pub(crate) fn segments() -> Vec<Vec<u8>> {
    let mut bytes = vec![100];
    for values in [&[&b"a"[..], b"b"][..], &[&[1; 300]], &[b""]] {
        let offset = FRAMES_OFFSET + bytes.len() as u32 - 1;
        bytes.extend(frame_of(UUID.fold(), offset, values));
    }
    vec![bytes]
}

/// A snapshot of its result has lineages.
fn split_sample() -> ManifestEdit {
    let mut middle = [0; 20];
    middle[0] = 0x80;
    ManifestEdit::SplitRange {
        parent: RangeId(1),
        left: RangeId(2),
        left_number: RangeNumber(2),
        right: RangeId(3),
        right_number: RangeNumber(3),
        since: 0,
        base: Version::from_u64(9),
        boundary: RingKey(middle),
    }
}

pub(crate) fn manifests() -> Vec<Vec<u8>> {
    let store = StoreUuid([5; 16]);
    let mut state = ManifestState::default();
    let edits = [
        ManifestEdit::Identity {
            store,
            format: FORMAT_VERSION,
            segment_bytes: 1 << 20,
            secret: HashSecret([9; 16]),
            pointers: PointerWidth::Bits40,
        },
        ManifestEdit::Generation(1),
        ManifestEdit::AddRange { range: RangeId(1), keys: KeyRange::ALL },
        ManifestEdit::BeginRange { range: RangeId(1), number: RangeNumber(1), since: 0, base: Version::ZERO },
        ManifestEdit::RangeWhole { range: RangeId(1) },
        split_sample(),
        ManifestEdit::AddSegment { slot: 0, uuid: UUID, sequence: 1, stream: StreamKind::Foreground },
        ManifestEdit::Blob { key: 7, bytes: vec![1, 2, 3] },
        ManifestEdit::AddCheckpoint { uuid: UUID, len_bytes: 8192 },
        ManifestEdit::IndexDeletes,
        ManifestEdit::AddRun(RunEntry { uuid: UUID, file_bytes: 1 << 20, age: 3 }),
    ];
    for edit in &edits {
        assert!(state.apply(edit).is_ok(), "a sample is invalid");
    }
    let mut bytes = manifest::encode_snapshot(&state, 1);
    let header = ManifestHeader { store, rewrite: 1 };
    let at = bytes.len() as u64;
    let seal = SegmentSeal { len: 8192, facts: RecordFacts::default() };
    manifest::encode_commit(&header, &[ManifestEdit::SealSegment { slot: 0, seal }], at, at, &mut bytes);
    vec![bytes]
}

/// Patches to the files of an intact store: `file u8, offset u24, len u16, bytes`, repeated.
pub(crate) fn splices() -> Vec<Vec<u8>> {
    let splice = |file: u8, offset: u32, bytes: &[u8]| {
        let mut splice = vec![file];
        splice.extend_from_slice(&offset.to_le_bytes()[..3]);
        splice.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        splice.extend_from_slice(bytes);
        splice
    };
    let torn = splice(3, 20_000, &[0; 3000]);
    let two = [splice(0, 700, b"FwnM"), splice(1, 4096, b"FwnF")].concat();
    vec![Vec::new(), splice(1, 5000, &[0x55]), splice(0, 600, &[0; 512]), splice(5, 0, b"half"), torn, two]
}

pub(crate) fn resp() -> Vec<Vec<u8>> {
    texts(&[
        "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nvalue\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        "*6\r\n$3\r\nset\r\n$1\r\nk\r\n$1\r\nv\r\n$2\r\nEX\r\n$2\r\n10\r\n$2\r\nNX\r\n",
        "*5\r\n$4\r\nMSET\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2\r\n",
        "*6\r\n$4\r\nSCAN\r\n$1\r\n0\r\n$5\r\nMATCH\r\n$2\r\na*\r\n$5\r\nCOUNT\r\n$2\r\n10\r\n",
        "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n*1\r\n$7\r\nCOMMAND\r\n",
        "PING\r\nset \"quoted key\" 'v'\r\nGET k\r\n",
        "*3\r\n$6\r\nINCRBY\r\n$1\r\nn\r\n$20\r\n-9223372036854775808\r\n",
    ])
}

pub(crate) fn memcached() -> Vec<Vec<u8>> {
    texts(&[
        "set k 1 0 5\r\nvalue\r\nget k\r\ngets a b c\r\n",
        "cas k 0 100 1 42 noreply\r\nx\r\nappend k 0 0 1\r\ny\r\n",
        "incr n 5\r\ndecr n 18446744073709551615 noreply\r\ntouch k 30\r\n",
        "gat 10 a b\r\nflush_all 5 noreply\r\nstats\r\nversion\r\nverbosity 1\r\nquit\r\n",
    ])
}

/// Batches of the internal protocol: requests, and replies with other messages.
pub(crate) fn internal() -> Vec<Vec<u8>> {
    let (mut requests, mut replies, mut pairs) = (Vec::new(), Vec::new(), Vec::new());
    internal::put_pair(&mut pairs, b"key", b"value");
    let delete = Update::Delete { condition: Condition::Always, return_previous: true };
    let append = Update::Append { bytes: b"more", create: true, condition: Condition::Exists };
    let touch = Update::Touch { expiry: Expiry::InMs(9), condition: ExpiryCondition::Later, return_value: false };
    let updates = [delete, append, touch, Update::AddSigned { delta: -1 }, Update::AddUnsigned { delta: 1 }];
    let get = RequestBody::Key(Request::Get { key: b"key" });
    let on_key = |update| RequestBody::Key(Request::Update { key: b"key", update });
    let scan = KeyspaceRequest::Scan { cursor: 1 << 63, count: 10 };
    let set_all = internal::KeyValuePairs::new(&pairs).map(KeyspaceRequest::SetAll);
    let of_range = [KeyspaceRequest::Count, scan, KeyspaceRequest::Clear].into_iter().chain(set_all);
    let bodies = std::iter::once(get).chain(updates.map(on_key)).chain(of_range.map(RequestBody::Keyspace));
    for (op, body) in bodies.enumerate() {
        let fields = RequestFields { op: op as u64, hash: KeyHash(1), grant_bytes: 512, is_latest: op % 2 == 0 };
        internal::put_request_message(&fields, |out| body.put(out), &mut requests);
    }
    let entry = EntryRef { value: b"value", flags: 7, expires_at_ms: 8, version: Version::from_u64(9) };
    let stored = Reply::Stored { version: Version::from_u64(9), value_bytes: 5 };
    let previous = Reply::Previous { entry: Some(entry), applied: true };
    let failed = Reply::Error(OperationError::ValueTooLong { limit_bytes: 3 });
    for reply in [Reply::Value(entry), Reply::Absent, stored, previous, Reply::Signed(-1), failed] {
        internal::put_reply_message(7, &reply, &mut replies);
    }
    internal::put_larger_message(8, 70_000, &get, &mut replies);
    internal::put_notice(Message::ResetStats, &mut replies);
    vec![requests, replies]
}

pub(crate) fn resp_replies() -> Vec<Vec<u8>> {
    texts(&[
        "+OK\r\n-ERR no\r\n:42\r\n$5\r\nvalue\r\n$-1\r\n_\r\n",
        "*2\r\n$1\r\na\r\n*1\r\n:1\r\n%1\r\n+k\r\n+v\r\n#t\r\n",
    ])
}

pub(crate) fn memcached_replies() -> Vec<Vec<u8>> {
    texts(&["VALUE k 1 5 7\r\nvalue\r\nEND\r\nSTORED\r\n42\r\n", "SERVER_ERROR no\r\nSTAT a b\r\nEND\r\nVERSION 1\r\n"])
}

/// One frame of most kinds, a stream of all of them, and the image of a cluster map.
pub(crate) fn peer_frames() -> Vec<Vec<u8>> {
    let version = Version::from_u64;
    let entry = RangeEntry::new(RangeId(1), KeyRange::ALL, &[MemberId(1), MemberId(2), MemberId(3)]);
    let bodies = [
        Body::Append {
            after: version(1),
            last: version(2),
            upstream: version(1),
            time: TimeMs(5),
            assigned: version(2),
            records: b"records",
        },
        Body::Watermark { sent: version(2), upstream: version(2), time: TimeMs(6), assigned: version(2) },
        Body::Ack { received: version(2), committed: version(1) },
        Body::ReplayWanted { after: version(1) },
        Body::Entry(entry),
        Body::Report(MemberReport {
            last: version(3),
            committed: version(2),
            time: TimeMs(7),
            continues: Some(BootId(4)),
            ..MemberReport::default()
        }),
        Body::Hello,
        Body::BootsWanted { held: 1 },
        Body::AcknowledgementWanted,
        Body::Boots(BootsMessage {
            changes: 1,
            revision: 2,
            boots: vec![(MemberId(1), BootId(4)), (MemberId(2), BootId(5))],
        }),
        Body::Request { op: 1, tag: ClientTag { session: 1, seq: 1 }, first_incomplete: 1, payload: b"payload" },
        Body::Reply { op: 1, payload: b"payload" },
    ];
    let header = Header { from: MemberId(1), boot: BootId(9), range: RangeId(1), epoch: Epoch::default() };
    let mut stream = vec![3];
    let mut samples: Vec<Vec<u8>> = Vec::new();
    for body in bodies {
        let mut bytes = Vec::new();
        encode_frame(&Frame { header, body }, &mut bytes);
        stream.extend_from_slice(&bytes);
        samples.push(bytes);
    }
    samples.push(stream);
    let node = NodeEntry { node: NodeId(1), shards: 1, weight: 1, domain: 0, address: String::new() };
    let map = ClusterMap::new(HashSecret([1; 16]), Durability::Sync, RingOptions::default(), vec![node]);
    samples.push(encode_map(&map));
    samples
}

pub(crate) fn globs() -> Vec<Vec<u8>> {
    texts(&["a*b?c[a-z]\\*[^x]", "****a****b", "user:[0-9]*:name"])
}
