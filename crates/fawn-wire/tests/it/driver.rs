//! A minimal server: decodes its input and answers with a fixed script of replies.
use fawn_types::{EntryRef, Reply, Request, TimeMs, Update, Version};
use fawn_wire::{
    AfterReply, ClientIdentity, Codec, CodecLimits, Command, Decoded, KeyspaceCommand, Protocol, encode_done,
    encode_reply,
};

pub(crate) const NOW: TimeMs = TimeMs(1_700_000_000_000);

/// The actions of a connection.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionTrace {
    /// Requests and rejections, one per line.
    pub(crate) log: String,
    pub(crate) out: Vec<u8>,
    pub(crate) closed: bool,
}

/// Feeds `pieces` one after the other, like separate reads. The key `k` holds `value`; other keys are absent.
pub(crate) fn feed<'p>(
    protocol: Protocol,
    limits: CodecLimits,
    pieces: impl IntoIterator<Item = &'p [u8]>,
) -> ConnectionTrace {
    let (mut codec, mut identity) = (Codec::new(protocol, limits), ClientIdentity { id: 5, ..Default::default() });
    let (mut buffer, mut trace, mut need) = (Vec::new(), ConnectionTrace::default(), 0);
    for piece in pieces {
        buffer.extend_from_slice(piece);
        // `need_bytes` is a guarantee: with fewer bytes, decoding finds nothing.
        while !trace.closed && buffer.len() >= need {
            need = 0;
            let consumed = match codec.decode(&buffer, NOW) {
                Decoded::Incomplete { need_bytes } => {
                    assert!(need_bytes > buffer.len());
                    need = need_bytes;
                    break;
                }
                decoded => step(decoded, &mut codec, &mut identity, &mut trace),
            };
            assert!(consumed > 0);
            buffer.drain(..consumed);
        }
    }
    trace
}

/// Feeds the whole input at once.
pub(crate) fn run(protocol: Protocol, input: &[u8]) -> ConnectionTrace {
    feed(protocol, CodecLimits::default(), [input])
}

fn step(decoded: Decoded<'_>, codec: &mut Codec, identity: &mut ClientIdentity, trace: &mut ConnectionTrace) -> usize {
    match decoded {
        Decoded::Incomplete { .. } => panic!("the caller's"),
        Decoded::Skip { consumed } => consumed,
        Decoded::Error { message, consumed, fatal } => {
            trace.log += &format!("refused {}\n", message.escape_ascii());
            trace.out.extend_from_slice(&message);
            trace.closed = fatal;
            consumed
        }
        Decoded::Rewritten { bytes, consumed } => {
            let inner = codec.decode(&bytes, NOW);
            assert_eq!(step(inner, codec, identity, trace), bytes.len());
            consumed
        }
        Decoded::Command { command, consumed } => {
            trace.log += &format!("{command:?}\n");
            trace.closed = answer(&command, codec, identity, &mut trace.out) == AfterReply::Close;
            consumed
        }
    }
}

fn answer(command: &Command<'_>, codec: &mut Codec, identity: &mut ClientIdentity, out: &mut Vec<u8>) -> AfterReply {
    match command {
        Command::Single { request, format } => encode_reply(*format, request.key(), &reply(request), out),
        Command::Multi(multi) => {
            let mut gather = multi.multi_reply;
            gather.begin(out);
            multi.requests().for_each(|request| gather.add(request.key(), &reply(&request), out));
            gather.finish(out);
        }
        Command::Connection(connection) => return connection.answer(codec, identity, out),
        Command::Keyspace(KeyspaceCommand::FlushAll { format, .. }) => encode_done(*format, out),
        Command::Keyspace(KeyspaceCommand::DbSize) => fawn_wire::resp::encode::integer(1, out),
        Command::Keyspace(KeyspaceCommand::Scan { .. }) => fawn_wire::resp::encode::scan(0, &[b"k"], out),
        Command::Server(fawn_wire::ServerCommand::Command(query)) => {
            fawn_wire::commands::answer(query, codec.resp_version(), out);
        }
        Command::Server(_) => out.extend_from_slice(b"+server\r\n"),
    }
    AfterReply::KeepOpen
}

fn reply(request: &Request<'_>) -> Reply<'static> {
    let entry = EntryRef { value: b"value", flags: 7, expires_at_ms: NOW.0 + 1600, version: Version::from_u64(9) };
    let there = request.key() == b"k";
    match request {
        Request::Get { .. } if there => Reply::Value(entry),
        Request::Get { .. } => Reply::Absent,
        Request::Update { update, .. } => match update {
            Update::Set { return_previous: true, .. } | Update::Delete { return_previous: true, .. } => {
                Reply::Previous { entry: there.then_some(entry), applied: true }
            }
            Update::Set { condition: fawn_types::Condition::Absent, .. } if there => Reply::NotStored,
            Update::Set { .. } | Update::Append { .. } | Update::Prepend { .. } => {
                Reply::Stored { version: entry.version, value_bytes: 8 }
            }
            Update::AddSigned { delta } => Reply::Signed(*delta),
            _ if !there => Reply::NotFound,
            Update::AddUnsigned { delta } | Update::SubtractUnsigned { delta } => Reply::Unsigned(*delta),
            Update::Delete { .. } => Reply::Deleted,
            Update::Touch { return_value: true, .. } => Reply::Value(entry),
            Update::Touch { .. } => Reply::Touched,
        },
    }
}
