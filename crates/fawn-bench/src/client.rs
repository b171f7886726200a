//! The load client of the server level and of the memory experiment: both protocols, pipelined, checks every reply.
use crate::workload::Values;
use crate::{BenchError, Row, row};
use fawn_types::random::SplitMix64;
use fawn_wire::client::{ParsedReply, memcached, resp};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Timeout for a reply; a later reply is a failure, not a result.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
const INPUT_BYTES: usize = 256 << 10;
/// Requests per batch of a load. The replies fit the socket buffers, so that client and server cannot block each other.
const BATCH: u64 = 256;

/// The protocol of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientProtocol {
    /// RESP.
    Resp,
    /// memcached text.
    Memcached,
}

/// The reply to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientReply<'a> {
    /// The value of the key.
    Value(&'a [u8]),
    /// The key is absent.
    Absent,
    /// The value was stored.
    Stored,
}

/// The key of number `n`, in redis-benchmark's format: 16 bytes.
#[must_use]
pub fn key_of(n: u64) -> [u8; 16] {
    let mut key = *b"key:000000000000";
    let mut rest = n;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// A blocking connection.
pub struct BenchConnection {
    stream: TcpStream,
    protocol: ClientProtocol,
    out: Vec<u8>,
    input: Vec<u8>,
    /// The part of `input` that is received but not parsed yet.
    unread: std::ops::Range<usize>,
}

impl BenchConnection {
    /// Connects to a server on this machine.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn open(port: u16, protocol: ClientProtocol) -> Result<Self, BenchError> {
        let stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| failed(&error))?;
        stream.set_nodelay(true).map_err(|error| failed(&error))?;
        stream.set_read_timeout(Some(ANSWER_LIMIT)).map_err(|error| failed(&error))?;
        Ok(Self { stream, protocol, out: Vec::new(), input: vec![0; 4096], unread: 0..0 })
    }

    /// Queues a read.
    pub fn queue_get(&mut self, key: &[u8]) {
        match self.protocol {
            ClientProtocol::Resp => resp::encode_command(&[b"GET", key], &mut self.out),
            ClientProtocol::Memcached => memcached::encode_words(&[b"get", key], &mut self.out),
        }
    }

    /// Queues a write.
    pub fn queue_set(&mut self, key: &[u8], value: &[u8]) {
        match self.protocol {
            ClientProtocol::Resp => resp::encode_command(&[b"SET", key, value], &mut self.out),
            ClientProtocol::Memcached => memcached::encode_set(key, value, &mut self.out),
        }
    }

    /// Sends the queued requests.
    ///
    /// # Errors
    /// If the connection breaks.
    pub fn send(&mut self) -> Result<(), BenchError> {
        self.stream.write_all(&self.out).map_err(|error| failed(&error))?;
        self.out.clear();
        Ok(())
    }

    /// Reads `count` replies, in order.
    ///
    /// # Errors
    /// If the connection breaks, the server replies with an error, or `take` rejects a reply.
    pub fn answers(
        &mut self,
        count: u64,
        mut take: impl FnMut(u64, ClientReply<'_>) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let mut number = 0;
        while number < count {
            let parsed = match self.protocol {
                ClientProtocol::Resp => parse_resp(&self.input[self.unread.clone()])?,
                ClientProtocol::Memcached => parse_memcached(&self.input[self.unread.clone()])?,
            };
            match parsed {
                Some((answer, consumed)) => {
                    take(number, answer)?;
                    self.unread.start += consumed;
                    number += 1;
                }
                None => self.read_more()?,
            }
        }
        Ok(())
    }

    /// Sends a command and returns its reply as text; RESP only.
    ///
    /// # Errors
    /// See [`BenchConnection::answers`].
    pub fn text(&mut self, words: &[&[u8]]) -> Result<String, BenchError> {
        resp::encode_command(words, &mut self.out);
        self.send()?;
        let mut text = String::new();
        self.answers(1, |_, answer| {
            if let ClientReply::Value(value) = answer {
                text = String::from_utf8_lossy(value).into_owned();
            }
            Ok(())
        })?;
        Ok(text)
    }

    fn read_more(&mut self) -> Result<(), BenchError> {
        self.input.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        if self.unread.end == self.input.len() {
            self.input.resize((self.input.len() * 2).min(INPUT_BYTES.max(self.unread.end * 2)), 0);
        }
        let read = self.stream.read(&mut self.input[self.unread.end..]).map_err(|error| failed(&error))?;
        if read == 0 {
            return Err(failed(&"the server closed the connection"));
        }
        self.unread.end += read;
        Ok(())
    }
}

fn failed(error: &dyn std::fmt::Display) -> BenchError {
    BenchError::failed("load client", error)
}

fn refused(message: &[u8]) -> BenchError {
    failed(&format_args!("the server replied: {}", String::from_utf8_lossy(message)))
}

fn parse_resp(input: &[u8]) -> Result<Option<(ClientReply<'_>, usize)>, BenchError> {
    match resp::parse_reply(input) {
        ParsedReply::Incomplete { .. } => Ok(None),
        ParsedReply::Malformed { expected, at } => {
            Err(failed(&format_args!("not RESP: expected {expected} at byte {at}")))
        }
        ParsedReply::Reply { reply, consumed } => match reply {
            resp::RespReply::Bulk(value) => Ok(Some((ClientReply::Value(value), consumed))),
            resp::RespReply::Null => Ok(Some((ClientReply::Absent, consumed))),
            resp::RespReply::Error(message) => Err(refused(message)),
            _ => Ok(Some((ClientReply::Stored, consumed))),
        },
    }
}

/// Parses a reply; a value is consumed together with the `END` after it.
fn parse_memcached(input: &[u8]) -> Result<Option<(ClientReply<'_>, usize)>, BenchError> {
    let (reply, consumed) = match memcached::parse_reply(input) {
        ParsedReply::Incomplete { .. } => return Ok(None),
        ParsedReply::Malformed { expected, at } => {
            return Err(failed(&format_args!("not memcached text: expected {expected} at byte {at}")));
        }
        ParsedReply::Reply { reply, consumed } => (reply, consumed),
    };
    match reply {
        memcached::MemcachedReply::Value { value, .. } => match memcached::parse_reply(&input[consumed..]) {
            ParsedReply::Reply { reply: memcached::MemcachedReply::End, consumed: end } => {
                Ok(Some((ClientReply::Value(value), consumed + end)))
            }
            ParsedReply::Incomplete { .. } => Ok(None),
            _ => Err(failed(&"the value is not followed by END")),
        },
        memcached::MemcachedReply::End => Ok(Some((ClientReply::Absent, consumed))),
        memcached::MemcachedReply::Stored => Ok(Some((ClientReply::Stored, consumed))),
        other => Err(failed(&format_args!("expected VALUE, END or STORED, found {other:?}"))),
    }
}

/// Sets every key once, in the order of their numbers.
///
/// # Errors
/// If the server rejects a write.
pub fn load(connection: &mut BenchConnection, keys: u64, value_bytes: usize) -> Result<(), BenchError> {
    let (values, mut value) = (Values::new(value_bytes), vec![0; value_bytes]);
    for first in (0..keys).step_by(BATCH as usize) {
        let count = BATCH.min(keys - first);
        for n in first..first + count {
            values.fill(n, 0, &mut value);
            connection.queue_set(&key_of(n), &value);
        }
        connection.send()?;
        connection.answers(count, |at, answer| match answer {
            ClientReply::Stored => Ok(()),
            _ => Err(BenchError::Unverified(format!("key number {}: SET returned {answer:?}", first + at))),
        })?;
    }
    Ok(())
}

/// Reads every key and checks its value.
///
/// # Errors
/// [`BenchError::Unverified`] with the first wrong key.
pub fn verify(connection: &mut BenchConnection, keys: u64, value_bytes: usize) -> Result<(), BenchError> {
    let (values, mut expected) = (Values::new(value_bytes), vec![0; value_bytes]);
    // Limit the total size of a batch's replies.
    let batch = (64 << 10) / (value_bytes as u64 + 64) + 1;
    for first in (0..keys).step_by(batch as usize) {
        let count = batch.min(keys - first);
        (first..first + count).for_each(|n| connection.queue_get(&key_of(n)));
        connection.send()?;
        connection.answers(count, |at, answer| {
            values.fill(first + at, 0, &mut expected);
            if answer == ClientReply::Value(&expected) {
                return Ok(());
            }
            let found = if answer == ClientReply::Absent { "nothing" } else { "another value" };
            Err(BenchError::Unverified(format!("key number {}: found {found}", first + at)))
        })?;
    }
    Ok(())
}

/// Parameters of the closed loop in [`measure`].
#[derive(Clone, Copy, Debug)]
pub struct RequestLoop {
    /// Number of connections.
    pub clients: usize,
    /// Requests per connection and round.
    pub pipeline: u64,
    /// Total number of requests.
    pub requests: u64,
    /// Number of distinct keys, which are already loaded.
    pub keys: u64,
    /// Size of the values.
    pub value_bytes: usize,
    /// Whether to write instead of read.
    pub writes: bool,
    /// Seed for the choice of keys.
    pub seed: u64,
}

/// Runs rounds of requests: sends to all connections, then reads from all. Measures rate and latency only; the caller
/// adds the engine's name and CPU time.
///
/// # Errors
/// If a reply is not as expected.
pub fn measure(port: u16, protocol: ClientProtocol, ask: &RequestLoop) -> Result<Row, BenchError> {
    let mut connections =
        (0..ask.clients).map(|_| BenchConnection::open(port, protocol)).collect::<Result<Vec<_>, BenchError>>()?;
    let mut random = SplitMix64::new(ask.seed);
    let (values, mut value) = (Values::new(ask.value_bytes), vec![0; ask.value_bytes]);
    let (started, mut nanos, mut done) = (Instant::now(), row::histogram(), 0);
    while done < ask.requests {
        let sent = Instant::now();
        for connection in &mut connections {
            for n in (0..ask.pipeline).map(|_| random.below(ask.keys)) {
                if ask.writes {
                    values.fill(n, 0, &mut value);
                    connection.queue_set(&key_of(n), &value);
                } else {
                    connection.queue_get(&key_of(n));
                }
            }
            connection.send()?;
        }
        for connection in &mut connections {
            connection.answers(ask.pipeline, |_, answer| match answer {
                ClientReply::Stored if ask.writes => Ok(()),
                ClientReply::Value(value) if !ask.writes && value.len() == ask.value_bytes => Ok(()),
                other => Err(BenchError::Unverified(format!("a loaded key returned {other:?}"))),
            })?;
            nanos.saturating_record(sent.elapsed().as_nanos() as u64);
        }
        done += ask.pipeline * ask.clients as u64;
    }
    Ok(Row::new("server", "", "").timed(done, started.elapsed(), None).latencies(&nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_redis_benchmark() {
        assert_eq!(&key_of(0), b"key:000000000000");
        assert_eq!(&key_of(12_345), b"key:000000012345");
    }

    #[test]
    fn answers_are_told_apart_and_an_unfinished_one_waits() {
        assert_eq!(parse_resp(b"$2\r\nab\r\n+").unwrap(), Some((ClientReply::Value(b"ab"), 8)));
        assert_eq!(parse_resp(b"$-1\r\n").unwrap(), Some((ClientReply::Absent, 5)));
        assert_eq!(parse_resp(b"+OK\r\n").unwrap(), Some((ClientReply::Stored, 5)));
        assert_eq!(parse_resp(b"$2\r\na").unwrap(), None);
        assert!(parse_resp(b"-ERR store full\r\n").unwrap_err().to_string().contains("store full"));
        let value = b"VALUE k 0 2\r\nab\r\nEND\r\n";
        assert_eq!(parse_memcached(value).unwrap(), Some((ClientReply::Value(b"ab"), value.len())));
        assert_eq!(parse_memcached(&value[..value.len() - 2]).unwrap(), None, "END is part of it");
        assert_eq!(parse_memcached(b"END\r\n").unwrap(), Some((ClientReply::Absent, 5)));
        assert_eq!(parse_memcached(b"STORED\r\n").unwrap(), Some((ClientReply::Stored, 8)));
        assert!(parse_memcached(b"SERVER_ERROR out of memory\r\n").is_err());
    }
}
