//! Owns the harness: a host of sessions on simulated disks, clients that keep what they could not send, a clock.
//!
//! One harness for whatever serves clients; what is particular to one store or to a cluster stands in the two
//! `harness.rs`.
use fawn_flash::SimDisk;
use fawn_node::{ClientService, SessionId, ShardOutput};
use fawn_types::Now;
use fawn_wire::Protocol;
use std::collections::HashMap;

pub(crate) const START: Now = Now::at(1_700_000_000_000);
/// Past this many turns nothing will happen any more.
const TURNS_MAX: usize = 20_000;

/// A client's end of a connection.
#[derive(Default, Debug)]
pub(crate) struct Client {
    /// Sent by the test, not yet consumed.
    pub(crate) input: Vec<u8>,
    /// Replies.
    pub(crate) received: Vec<u8>,
    pub(crate) closed: bool,
    /// Whether the host may offer input.
    may_offer: bool,
}

/// A harness that survives its host.
pub(crate) trait Restarts: Sized {
    /// Loses power and opens what is left.
    fn crash(self, seed: u64) -> Self;
    /// Ends in order and opens again: nothing is cached then.
    fn reopen(self) -> Self;
}

/// A host under test, and how it was made.
pub(crate) struct TestBed<H, S> {
    pub(crate) disks: Vec<SimDisk>,
    pub(crate) host: H,
    pub(crate) now: Now,
    pub(crate) clients: HashMap<SessionId, Client>,
    /// Whether replies are taken off the host: a slow reader is one that does not.
    pub(crate) reads_replies: bool,
    pub(crate) options: S,
    pub(crate) memory_bytes: u64,
    /// How much later each iteration is.
    pub(crate) turn_ms: u64,
}

impl<H: ClientService, S> TestBed<H, S> {
    pub(crate) fn connect(&mut self, protocol: Protocol) -> SessionId {
        let id = self.host.open_session(protocol);
        self.clients.insert(id, Client { may_offer: true, ..Client::default() });
        id
    }

    /// Sends without an iteration.
    pub(crate) fn send(&mut self, id: SessionId, bytes: &[u8]) {
        self.clients.get_mut(&id).unwrap().input.extend_from_slice(bytes);
        self.offer(id);
    }

    fn offer(&mut self, id: SessionId) {
        let client = self.clients.get_mut(&id).unwrap();
        if client.may_offer && !client.closed && !client.input.is_empty() {
            let consumed = self.host.handle_input(self.now, id, &client.input);
            assert!(consumed <= client.input.len());
            client.input.drain(..consumed);
            client.may_offer = self.host.wants_input(id);
        }
    }

    /// One iteration of the server's loop.
    pub(crate) fn run_once(&mut self) {
        self.now = self.now.plus_ms(self.turn_ms);
        self.host.run_once(self.now);
        while let Some(output) = self.host.poll_output() {
            match output {
                ShardOutput::Writable(id) => self.take(id),
                ShardOutput::Resume(id) => {
                    if let Some(client) = self.clients.get_mut(&id) {
                        client.may_offer = true;
                        self.offer(id);
                    }
                }
                ShardOutput::Close(id) => {
                    self.take(id);
                    self.host.close_session(id);
                    self.clients.get_mut(&id).unwrap().closed = true;
                }
            }
        }
    }

    /// Takes a session's output.
    pub(crate) fn take(&mut self, id: SessionId) {
        if !self.reads_replies {
            return;
        }
        let Some(client) = self.clients.get_mut(&id) else { return };
        let output = self.host.output(id);
        let bytes = output.len();
        client.received.extend_from_slice(output);
        self.host.wrote(id, bytes);
    }

    pub(crate) fn run(&mut self, iterations: usize) {
        (0..iterations).for_each(|_| self.run_once());
    }

    /// Turns until nothing is under way.
    pub(crate) fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            self.run_once();
            let is_sent = |client: &Client| client.input.is_empty() || client.closed;
            if self.host.is_idle() && (self.clients.values().all(is_sent) || !self.reads_replies) {
                return self.run_once();
            }
        }

        panic!("something is under way for ever: {:#?}", self.host.status());
    }

    /// Sends, settles, and returns what came back, line ends as `|`.
    pub(crate) fn ask(&mut self, id: SessionId, bytes: &[u8]) -> String {
        self.send(id, bytes);
        self.settle();
        let received = std::mem::take(&mut self.clients.get_mut(&id).unwrap().received);
        received.escape_ascii().to_string().replace("\\r\\n", "\n").replace("\\'", "'").trim_end().replace('\n', "|")
    }

    /// As [`TestBed::ask`], words separated by spaces sent as a RESP array.
    pub(crate) fn redis(&mut self, id: SessionId, line: &str) -> String {
        self.ask(id, &resp(line))
    }

    /// As [`TestBed::ask`], a memcached request whose lines are separated by `|`.
    pub(crate) fn memcached(&mut self, id: SessionId, text: &str) -> String {
        self.ask(id, format!("{}\r\n", text.replace('|', "\r\n")).as_bytes())
    }
}

/// A line of words as a RESP array; `""` stands for an empty word.
pub(crate) fn resp(line: &str) -> Vec<u8> {
    let words: Vec<&str> = line.split(' ').map(|word| if word == "\"\"" { "" } else { word }).collect();
    let mut out = format!("*{}\r\n", words.len());
    for word in words {
        out += &format!("${}\r\n{word}\r\n", word.len());
    }
    out.into_bytes()
}
