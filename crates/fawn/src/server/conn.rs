//! One client connection: socket, incomplete input, known readiness.
//!
//! An idle connection holds no buffer: it costs one slot of the slab.
use fawn_node::SessionId;
use mio::net::TcpStream;
use std::io::{ErrorKind, Read, Write};
use tokio::sync::OwnedSemaphorePermit;

/// Phases of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ConnPhase {
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
    _permit: OwnedSemaphorePermit,
    pub(super) session: SessionId,
    /// Distinguishes the connection from earlier users of its slot.
    pub(super) serial: u64,
    /// Unconsumed input: an incomplete request, or complete ones that wait for budget.
    pub(super) input_buf: Vec<u8>,
    /// Bytes read since the last check for slow senders.
    pub(super) received_bytes: u64,
    /// Bytes of replies that the socket did not take.
    pub(super) held_bytes: usize,
    pub(super) phase: ConnPhase,
    pub(super) flags: ConnFlags,
}

/// Known readiness. It is edge-triggered: the kernel reports it once, so it must be remembered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConnFlags {
    /// The socket may have input.
    pub(super) readable: bool,
    /// The client has shut down its sending side: read on until the end of the stream.
    pub(super) hung_up: bool,
    /// The end of the stream was read.
    pub(super) eof: bool,
    /// The server is stopping: no more input is wanted.
    pub(super) stopping: bool,
    /// `input_buf` may hold complete requests that found no budget.
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
    pub(super) awaits_admission: bool,
    pub(super) read_scheduled: bool,
    pub(super) write_scheduled: bool,
}

/// Outcome of one read or write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum IoResult {
    /// This many bytes, at least one.
    Progress(usize),
    /// Nothing possible now.
    WouldBlock,
    /// The peer has closed the connection.
    Eof,
    /// The connection is broken.
    Failed,
}

impl Conn {
    pub(super) fn new(stream: TcpStream, session: SessionId, serial: u64, permit: OwnedSemaphorePermit) -> Self {
        let flags = ConnFlags { readable: true, ..ConnFlags::default() };
        Self {
            stream,
            _permit: permit,
            session,
            serial,
            input_buf: Vec::new(),
            received_bytes: 0,
            held_bytes: 0,
            phase: ConnPhase::Open,
            flags,
        }
    }

    /// Reads once; records whether the socket is empty.
    pub(super) fn read(&mut self, scratch: &mut [u8]) -> IoResult {
        let result = io_result(|| self.stream.read(scratch));
        match result {
            // A short read has emptied the socket, unless the end of the stream follows.
            IoResult::Progress(got) => self.flags.readable = got == scratch.len() || self.flags.hung_up,
            IoResult::WouldBlock => self.flags.readable = false,
            IoResult::Eof => (self.flags.readable, self.flags.eof) = (false, true),
            IoResult::Failed => {}
        }
        result
    }

    /// Writes once; records whether the socket is full.
    pub(super) fn write(&mut self, bytes: &[u8]) -> IoResult {
        let result = io_result(|| self.stream.write(bytes));
        self.flags.blocked = match result {
            IoResult::Progress(wrote) => {
                self.flags.progressed = true;
                wrote < bytes.len()
            }
            _ => true,
        };
        result
    }
}

fn io_result(mut transfer: impl FnMut() -> std::io::Result<usize>) -> IoResult {
    loop {
        return match transfer() {
            Ok(0) => IoResult::Eof,
            Ok(bytes) => IoResult::Progress(bytes),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock => IoResult::WouldBlock,
            Err(_) => IoResult::Failed,
        };
    }
}

// 10,000 idle connections fit the budget's slack (32 MiB) many times over.
const _: () = assert!(size_of::<Conn>() <= 128);
