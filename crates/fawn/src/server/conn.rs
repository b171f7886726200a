//! Owns one client connection: its socket, the bytes of an incomplete request, and what is known of its readiness.
//!
//! An idle connection holds no buffer: what it costs is one slot of the slab.
use fawn_node::SessionId;
use mio::net::TcpStream;
use std::io::{ErrorKind, Read, Write};

/// Where a connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Requests are read and answered.
    Open,
    /// Nothing more is read; the shard has been told and finishes what it has.
    Draining,
    /// The last reply is in the output; it ends once that is sent.
    Ending,
    /// Our side is closed; what the client still sends is thrown away, so that the kernel does not reset the
    /// connection before the client has read its last reply.
    Lingering,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) stream: TcpStream,
    pub(super) session: SessionId,
    /// Distinguishes it from earlier users of its slot.
    pub(super) serial: u64,
    /// Input not consumed: an incomplete request, or complete ones that wait for room.
    pub(super) rest: Vec<u8>,
    /// Bytes read since dawdlers were last looked for.
    pub(super) received_bytes: u64,
    /// Bytes of replies the socket did not take.
    pub(super) held_bytes: usize,
    pub(super) phase: Phase,
    pub(super) flags: Flags,
}

/// What is known of a connection. Readiness is edge-triggered: the system says it once, so we must remember it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flags {
    /// The socket may have bytes.
    pub(super) readable: bool,
    /// The system said that the client sends nothing more: read on until the end shows.
    pub(super) hung_up: bool,
    /// The end was read.
    pub(super) eof: bool,
    /// We want no more of it: the server is stopping.
    pub(super) stopping: bool,
    /// `rest` may hold complete requests that the shard had no room for.
    pub(super) paused: bool,
    /// The socket took no more; the system will say when it does.
    pub(super) blocked: bool,
    /// Some output was taken since the stall watch last looked.
    pub(super) progressed: bool,
    /// The stall watch has it.
    pub(super) watched: bool,
    /// Its request has the room that it needs.
    pub(super) admitted: bool,
    /// Its request stands in line for room: it is not read.
    pub(super) waits: bool,
    /// It is in the list of connections to read.
    pub(super) listed: bool,
    /// It is in the list of connections to write.
    pub(super) touched: bool,
}

/// The outcome of one read or write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Moved {
    /// So many bytes, at least one.
    Bytes(usize),
    /// None now.
    Blocked,
    /// The other side has closed.
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

    /// One read; notes whether the socket is dry.
    pub(super) fn read(&mut self, scratch: &mut [u8]) -> Moved {
        let moved = moved(|| self.stream.read(scratch));
        match moved {
            // A short read has emptied the socket, unless the end of the stream is still behind it.
            Moved::Bytes(got) => self.flags.readable = got == scratch.len() || self.flags.hung_up,
            Moved::Blocked => self.flags.readable = false,
            Moved::End => (self.flags.readable, self.flags.eof) = (false, true),
            Moved::Broken => {}
        }
        moved
    }

    /// One write; notes whether the socket is full.
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
