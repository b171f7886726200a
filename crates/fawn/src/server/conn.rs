//! One client connection: socket, incomplete input, known readiness.
//!
//! An idle connection holds no buffer: it costs one slot of the slab.
use fawn_node::SessionId;
use mio::net::TcpStream;
use std::io::{ErrorKind, Read, Write};

/// Phases of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Requests are read and answered.
    Open,
    /// Nothing more is read; the shard finishes pending requests.
    Draining,
    /// The last reply is in the output; the connection ends once it is sent.
    Ending,
    /// The server's side is closed. Further input is discarded: unread input would make the kernel reset the connection
    /// before the client has read its last reply.
    Lingering,
}

/// A client connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) stream: TcpStream,
    pub(super) session: SessionId,
    /// Distinguishes the connection from earlier users of its slot.
    pub(super) serial: u64,
    /// Unconsumed input: an incomplete request, or complete ones that wait for budget.
    pub(super) rest: Vec<u8>,
    /// Bytes read since the last check for slow senders.
    pub(super) received_bytes: u64,
    /// Bytes of replies that the socket did not take.
    pub(super) held_bytes: usize,
    pub(super) phase: Phase,
    pub(super) flags: Flags,
}

/// Known readiness. It is edge-triggered: the kernel reports it once, so it must be remembered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flags {
    /// The socket may have input.
    pub(super) readable: bool,
    /// The client has shut down its sending side: read on until the end of the stream.
    pub(super) hung_up: bool,
    /// The end of the stream was read.
    pub(super) eof: bool,
    /// The server is stopping: no more input is wanted.
    pub(super) stopping: bool,
    /// `rest` may hold complete requests that found no budget.
    pub(super) paused: bool,
    /// The socket's buffer is full; the kernel reports when it is not.
    pub(super) blocked: bool,
    /// Output was taken since the last check for stalls.
    pub(super) progressed: bool,
    /// Queued for the check for stalls.
    pub(super) watched: bool,
    /// Its request has been admitted.
    pub(super) admitted: bool,
    /// Its request is queued for admission and is not read.
    pub(super) waits: bool,
    pub(super) listed: bool,
    pub(super) touched: bool,
}

/// Outcome of one read or write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Moved {
    /// This many bytes, at least one.
    Bytes(usize),
    /// Nothing possible now.
    Blocked,
    /// The peer has closed the connection.
    End,
    /// The connection is broken.
    Broken,
}

impl Conn {
    pub(super) const fn new(stream: TcpStream, session: SessionId, serial: u64) -> Self {
        let flags = Flags {
            readable: true,
            hung_up: false,
            eof: false,
            stopping: false,
            paused: false,
            blocked: false,
            progressed: false,
            watched: false,
            admitted: false,
            waits: false,
            listed: false,
            touched: false,
        };
        Self { stream, session, serial, rest: Vec::new(), received_bytes: 0, held_bytes: 0, phase: Phase::Open, flags }
    }

    /// Reads once; records whether the socket is empty.
    pub(super) fn read(&mut self, scratch: &mut [u8]) -> Moved {
        let moved = moved(|| self.stream.read(scratch));
        match moved {
            // A short read has emptied the socket, unless the end of the stream follows.
            Moved::Bytes(got) => self.flags.readable = got == scratch.len() || self.flags.hung_up,
            Moved::Blocked => self.flags.readable = false,
            Moved::End => (self.flags.readable, self.flags.eof) = (false, true),
            Moved::Broken => {}
        }
        moved
    }

    /// Writes once; records whether the socket is full.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Moved {
        let moved = moved(|| self.stream.write(bytes));
        self.flags.blocked = match moved {
            Moved::Bytes(wrote) => {
                self.flags.progressed = true;
                wrote < bytes.len()
            }
            _ => true,
        };
        moved
    }
}

fn moved(mut transfer: impl FnMut() -> std::io::Result<usize>) -> Moved {
    loop {
        return match transfer() {
            Ok(0) => Moved::End,
            Ok(bytes) => Moved::Bytes(bytes),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Moved::Blocked,
            Err(_) => Moved::Broken,
        };
    }
}

// 10,000 idle connections fit the budget's slack (32 MiB) many times over.
const _: () = assert!(size_of::<Conn>() <= 128);
