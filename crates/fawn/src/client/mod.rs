//! Client of the command line: RESP over one blocking connection, every wait bounded.
use crate::failure::{Exit, Failure};
use fawn_wire::client::ParsedReply;
use fawn_wire::client::resp::{ReplyParser, RespReply, encode_command};
use std::fmt::Display;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Bytes read from the socket at once.
const READ_BYTES: usize = 64 << 10;

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct CliClient {
    stream: TcpStream,
    address: String,
    timeout: Duration,
    input: Vec<u8>,
    /// Bytes of `input` already consumed.
    used: usize,
}

impl CliClient {
    /// Connects; `timeout` bounds this and every later wait.
    pub(crate) fn connect(address: &str, timeout: Duration) -> Result<Self, Failure> {
        let fail = |detail: String| {
            let question = "is `fawn serve` running there? (--server ADDR:PORT chooses another)";
            Failure::new(Exit::Server, format!("{address}: {detail}; {question}"))
        };
        let listen_addrs = address.to_socket_addrs().map_err(|error| match error.kind() {
            // It has no port, or no number as one: nothing was looked up.
            ErrorKind::InvalidInput => {
                Failure::new(Exit::Usage, format!("--server {address}: expected ADDR:PORT, such as 127.0.0.1:6380"))
            }
            _ => fail(error.to_string()),
        })?;
        let mut last = "the name has no address".to_owned();
        for place in listen_addrs {
            match TcpStream::connect_timeout(&place, timeout) {
                Ok(stream) => {
                    let set_up = stream
                        .set_nodelay(true)
                        .and_then(|()| stream.set_read_timeout(Some(timeout)))
                        .and_then(|()| stream.set_write_timeout(Some(timeout)));
                    set_up.map_err(|error| fail(error.to_string()))?;
                    return Ok(Self { stream, address: address.to_owned(), timeout, input: Vec::new(), used: 0 });
                }
                Err(error) => last = error.to_string(),
            }
        }
        Err(fail(last))
    }

    /// Sends one command and returns its reply; an error reply is an error.
    pub(crate) fn call<R>(&mut self, args: &[&[u8]], read: impl FnOnce(RespReply<'_>) -> R) -> Result<R, Failure> {
        let mut request = Vec::new();
        encode_command(args, &mut request);
        self.send(&request)?;
        self.receive(read)?.map_err(|message| self.failure(format_args!("the server answered: {message}")))
    }

    /// Sends encoded commands.
    pub(crate) fn send(&mut self, requests: &[u8]) -> Result<(), Failure> {
        self.stream.write_all(requests).map_err(|error| self.failed(&error))
    }

    /// The next reply; the inner error is the text of an error reply.
    pub(crate) fn receive<R>(&mut self, read: impl FnOnce(RespReply<'_>) -> R) -> Result<Result<R, String>, Failure> {
        let mut parser = ReplyParser::new();
        loop {
            let need_bytes = match parser.parse(&self.input[self.used..]) {
                ParsedReply::Reply { reply, consumed } => {
                    self.used += consumed;
                    return Ok(match reply {
                        RespReply::Error(message) => Err(String::from_utf8_lossy(message).into_owned()),
                        reply => Ok(read(reply)),
                    });
                }
                ParsedReply::Incomplete { need_bytes } => need_bytes,
                ParsedReply::Malformed { expected, at } => {
                    let found = format_args!("not a RESP server: expected {expected} at byte {at} of its reply");
                    return Err(self.failure(found));
                }
            };
            self.fill(need_bytes)?;
        }
    }

    /// Reads until `need_bytes` are available after the consumed ones.
    fn fill(&mut self, need_bytes: usize) -> Result<(), Failure> {
        self.input.drain(..std::mem::take(&mut self.used));
        let mut chunk = [0; READ_BYTES];
        while self.input.len() < need_bytes {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(self.lost("the server closed it")),
                Ok(got) => self.input.extend_from_slice(&chunk[..got]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
        Ok(())
    }

    fn failed(&self, error: &std::io::Error) -> Failure {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                self.failure(format_args!("no reply within {:?}", self.timeout))
            }
            _ => self.lost(error),
        }
    }

    fn lost(&self, detail: impl Display) -> Failure {
        self.failure(format_args!("connection lost: {detail}"))
    }

    fn failure(&self, words: impl Display) -> Failure {
        Failure::new(Exit::Server, format!("{}: {words}", self.address))
    }
}
