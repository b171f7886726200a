//! Common test harness: a host of sessions on simulated disks, clients with unsent input, a clock.
//!
//! It works with every host that serves clients. The two `harness.rs` contain the parts specific to one store or to a
//! cluster.
use fawn_flash::SimDisk;
use fawn_node::{ClientService, SessionId, ShardOutput};
use fawn_types::Now;
use fawn_wire::Protocol;
use std::collections::HashMap;
use std::ops::Range;

pub(crate) const START: Now = Now::at(1_700_000_000_000);
/// Maximum iterations until a host must be idle.
const TURNS_MAX: usize = 20_000;

/// A client's end of a connection.
#[derive(Default, Debug)]
pub(crate) struct TestClient {
    /// Bytes sent by the test and not yet consumed.
    pub(crate) input: Vec<u8>,
    /// Bytes received.
    pub(crate) received: Vec<u8>,
    pub(crate) closed: bool,
    /// Whether input may be offered to the host.
    may_offer: bool,
}

/// The seeds of a test, each printed with the command that repeats it: `FAWN_SEED` alone, or `FAWN_SEEDS` in number.
pub(crate) fn seeds(test: &'static str, default: Range<u64>) -> impl Iterator<Item = u64> {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
    };
    let seeds = match (number("FAWN_SEED"), number("FAWN_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(count)) => default.start..default.start + count,
        (None, None) => default,
    };
    seeds.inspect(move |seed| println!("FAWN_SEED={seed} cargo test -p fawn-node --test it {test}"))
}

/// A harness that can restart its host.
pub(crate) trait Restarts: Sized {
    /// Loses power and opens the remaining state.
    fn crash(self, seed: u64) -> Self;
    /// Shuts down cleanly and opens again, with empty caches.
    fn reopen(self) -> Self;
    /// Runs until nothing is in flight.
    fn run_out(&mut self);
    /// Checks that finished requests leave nothing behind.
    fn check_empty(&self);
}

/// A host under test, with the options that it was created with.
pub(crate) struct TestHarness<H, S> {
    pub(crate) disks: Vec<SimDisk>,
    pub(crate) host: H,
    pub(crate) now: Now,
    pub(crate) clients: HashMap<SessionId, TestClient>,
    /// Whether clients read their replies; false simulates slow readers.
    pub(crate) reads_replies: bool,
    pub(crate) options: S,
    pub(crate) memory_bytes: u64,
    /// Time between two iterations.
    pub(crate) turn_ms: u64,
}

impl<H: ClientService, S> TestHarness<H, S> {
    pub(crate) fn connect(&mut self, protocol: Protocol) -> SessionId {
        let id = self.host.open_session(protocol);
        self.clients.insert(id, TestClient { may_offer: true, ..TestClient::default() });
        id
    }

    /// Sends bytes without running an iteration.
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

    /// Runs one iteration of the server's loop.
    pub(crate) fn run_once(&mut self) {
        self.now = self.now.plus_ms(self.turn_ms);
        self.host.run_once(self.now);
        while let Some(output) = self.host.poll_output() {
            self.handle(output);
        }
    }

    /// Does what a server does after an effect.
    pub(crate) fn handle(&mut self, output: ShardOutput) {
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

    /// Reads a session's output.
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

    /// Runs iterations until nothing is in flight.
    pub(crate) fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            self.run_once();
            let is_sent = |client: &TestClient| client.input.is_empty() || client.closed;
            if self.host.is_idle() && (self.clients.values().all(is_sent) || !self.reads_replies) {
                return self.run_once();
            }
        }

        panic!("the host does not become idle: {:#?}", self.host.status());
    }

    /// Sends, settles, and returns the reply, with line ends as `|`.
    pub(crate) fn ask(&mut self, id: SessionId, bytes: &[u8]) -> String {
        self.send(id, bytes);
        self.settle();
        let received = std::mem::take(&mut self.clients.get_mut(&id).unwrap().received);
        received.escape_ascii().to_string().replace("\\r\\n", "\n").replace("\\'", "'").trim_end().replace('\n', "|")
    }

    /// As [`TestHarness::ask`], with words separated by spaces as a RESP array.
    pub(crate) fn redis(&mut self, id: SessionId, line: &str) -> String {
        self.ask(id, &resp(line))
    }

    /// As [`TestHarness::ask`], with a memcached request whose lines are separated by `|`.
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
