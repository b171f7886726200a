//! Owns the spike behind `docs/decisions/2026-11-21-server-turn.md`: four ways to run a server's turn, one dummy executor.
//!
//! `cargo run --release -p fawn --example turn_spike -- naive|wakers|nested|floor PORT`. It answers every RESP array of
//! bulk strings with `$3 xxx`, so that what is measured is reading, cutting, ordering and writing alone.
use mio::{Events, Interest, Token};
use std::future::poll_fn;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const READ_BYTES: usize = 16 << 10;
const LISTENER: Token = Token(usize::MAX);

/// Cuts complete commands off the front of `input` and answers each; returns the bytes consumed.
fn execute(input: &[u8], out: &mut Vec<u8>) -> usize {
    let mut at = 0;
    while let Some(end) = command_end(&input[at..]) {
        at += end;
        out.extend_from_slice(b"$3\r\nxxx\r\n");
    }
    at
}

/// Length of the first command, if it is all there: `*n` then n times `$len` and its bytes.
fn command_end(input: &[u8]) -> Option<usize> {
    let (count, mut at) = number(input)?;
    for _ in 0..count {
        let (len, line) = number(&input[at..])?;
        at += line + len + 2;
    }
    (at <= input.len()).then_some(at)
}

/// The number of a line such as `*3` or `$16`, and the line's length.
fn number(input: &[u8]) -> Option<(usize, usize)> {
    let end = input.iter().position(|&byte| byte == b'\n')?;
    let value = input.get(1..end - 1)?.iter().fold(0, |sum, &byte| sum * 10 + usize::from(byte.wrapping_sub(b'0')));
    Some((value, end + 1))
}

/// One connection of the turn loops: bytes left over from the last read, bytes to write.
struct Conn<S> {
    stream: S,
    rest: Vec<u8>,
    out: Vec<u8>,
}

impl<S> Conn<S> {
    const fn new(stream: S) -> Self {
        Self { stream, rest: Vec::new(), out: Vec::new() }
    }

    /// Executes what was read into `scratch`; an incomplete tail waits in `rest`.
    fn take(&mut self, scratch: &[u8]) {
        if self.rest.is_empty() {
            let used = execute(scratch, &mut self.out);
            self.rest.extend_from_slice(&scratch[used..]);
        } else {
            self.rest.extend_from_slice(scratch);
            let used = execute(&self.rest, &mut self.out);
            self.rest.drain(..used);
        }
    }
}

/// A task per connection: the order across connections is the scheduler's, so nothing can be submitted once.
async fn naive(address: SocketAddr) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(naive_connection(stream));
    }
}

async fn naive_connection(mut stream: TcpStream) -> std::io::Result<()> {
    let mut scratch = vec![0; READ_BYTES];
    let mut conn = Conn::new(());
    loop {
        let got = stream.read(&mut scratch).await?;
        if got == 0 {
            return Ok(());
        }
        conn.take(&scratch[..got]);
        stream.write_all(&conn.out).await?;
        conn.out.clear();
    }
}

/// Which connections woke since the last turn.
#[derive(Default)]
struct Ready {
    list: Mutex<Vec<usize>>,
    turn: Mutex<Option<Waker>>,
}

/// A connection's waker: notes the connection, then wakes the turn.
struct ConnWaker {
    index: usize,
    noted: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for ConnWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.noted.swap(true, Ordering::AcqRel) {
            self.ready.list.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
            if let Some(waker) = self.ready.turn.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
                waker.wake_by_ref();
            }
        }
    }
}

/// One task that owns every connection as a Tokio `TcpStream`, each polled with a waker of its own.
async fn wakers(address: SocketAddr) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let ready = Arc::new(Ready::default());
    let mut conns: Vec<Option<(Conn<TcpStream>, Arc<ConnWaker>)>> = Vec::new();
    let mut woken = Vec::new();
    let mut scratch = vec![0; READ_BYTES];
    poll_fn(|cx| {
        *ready.turn.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        while let Poll::Ready(Ok((stream, _))) = listener.poll_accept(cx) {
            let _ = stream.set_nodelay(true);
            let index = conns.len();
            let waker = ConnWaker { index, noted: AtomicBool::new(true), ready: ready.clone() };
            conns.push(Some((Conn::new(stream), Arc::new(waker))));
            woken.push(index);
        }
        woken.append(&mut ready.list.lock().unwrap_or_else(PoisonError::into_inner));
        woken.retain(|&index| conns[index].as_mut().is_some_and(|pair| wakers_read(pair, &mut scratch)));
        // (everything executed: here the shard submits once)
        for index in woken.drain(..) {
            let slot = &mut conns[index];
            if let Some((conn, _)) = slot
                && conn.stream.try_write(&conn.out).is_ok()
            {
                conn.out.clear();
            } else {
                *slot = None;
            }
        }
        Poll::<()>::Pending
    })
    .await;
    Ok(())
}

/// Reads until the socket is dry; whether there is something to write.
fn wakers_read((conn, waker): &mut (Conn<TcpStream>, Arc<ConnWaker>), scratch: &mut [u8]) -> bool {
    waker.noted.store(false, Ordering::Release);
    let task = Waker::from(waker.clone());
    let mut cx = Context::from_waker(&task);
    while conn.stream.poll_read_ready(&mut cx).is_ready() {
        match conn.stream.try_read(scratch) {
            Ok(0) => return true,
            Ok(got) => conn.take(&scratch[..got]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return true,
        }
    }
    !conn.out.is_empty()
}

/// The connections of the two loops on a readiness queue of their own.
struct Own {
    poll: mio::Poll,
    listener: mio::net::TcpListener,
    conns: Vec<Option<Conn<mio::net::TcpStream>>>,
    woken: Vec<usize>,
    scratch: Vec<u8>,
}

impl Own {
    fn new(address: SocketAddr) -> std::io::Result<Self> {
        let poll = mio::Poll::new()?;
        let mut listener = mio::net::TcpListener::bind(address)?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Self { poll, listener, conns: Vec::new(), woken: Vec::new(), scratch: vec![0; READ_BYTES] })
    }

    /// Read all, execute all, (submit once), one write per connection.
    fn turn(&mut self, events: &Events) -> std::io::Result<()> {
        for event in events {
            match event.token() {
                LISTENER => self.accept()?,
                Token(index) => self.read(index),
            }
        }
        for index in self.woken.drain(..) {
            let slot = &mut self.conns[index];
            match slot.as_mut().map(|conn| (conn.stream.write(&conn.out), conn)) {
                Some((Ok(wrote), conn)) if wrote == conn.out.len() => conn.out.clear(),
                _ => *slot = None,
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> std::io::Result<()> {
        while let Ok((mut stream, _)) = self.listener.accept() {
            stream.set_nodelay(true)?;
            self.poll.registry().register(&mut stream, Token(self.conns.len()), Interest::READABLE)?;
            self.conns.push(Some(Conn::new(stream)));
        }
        Ok(())
    }

    /// Edge-triggered: a read shorter than the buffer has emptied the socket.
    fn read(&mut self, index: usize) {
        let Some(conn) = self.conns[index].as_mut() else { return };
        while let Ok(got @ 1..) = conn.stream.read(&mut self.scratch) {
            conn.take(&self.scratch[..got]);
            if got < READ_BYTES {
                break;
            }
        }
        self.woken.push(index);
    }
}

/// The same loop inside Tokio: the queue's own descriptor is what Tokio watches.
async fn nested(address: SocketAddr) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    let mut own = Own::new(address)?;
    let mut events = Events::with_capacity(1024);
    #[expect(deprecated, reason = "its successor is an unsafe fn; `own` outlives `watched` and keeps the descriptor")]
    let watched = AsyncFd::new(own.poll.as_raw_fd())?;
    loop {
        // Cleared first: what arrives after the poll below raises it again.
        watched.readable().await?.clear_ready();
        own.poll.poll(&mut events, Some(std::time::Duration::ZERO))?;
        own.turn(&events)?;
    }
}

/// The floor: the same loop blocking in the system's own wait, no runtime.
fn floor(address: SocketAddr) -> std::io::Result<()> {
    let mut own = Own::new(address)?;
    let mut events = Events::with_capacity(1024);
    loop {
        own.poll.poll(&mut events, None)?;
        own.turn(&events)?;
    }
}

fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, mode, port] = args.as_slice() else { return Err(std::io::Error::other("usage: turn_spike MODE PORT")) };
    let port = port.parse().map_err(std::io::Error::other)?;
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match mode.as_str() {
        "naive" => runtime.block_on(naive(address)),
        "wakers" => runtime.block_on(wakers(address)),
        "nested" => runtime.block_on(nested(address)),
        "floor" => floor(address),
        other => Err(std::io::Error::other(format!("{other}: expected naive, wakers, nested or floor"))),
    }
}
