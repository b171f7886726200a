//! Accepting connections, and refusing those beyond the limit in their protocol.
use super::conn::Conn;
use super::event_loop::EventLoop;
use super::limits::ACCEPT_PAUSE;
use super::listener::{self, Listener};
use fawn_node::ClientService;
use fawn_wire::Protocol;
use mio::net::TcpStream;
use mio::{Interest, Token};
use socket2::{SockRef, TcpKeepalive};
use std::io::{ErrorKind, Write};
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// Keep-alive time after which a dead client machine is noticed.
const KEEPALIVE: Duration = Duration::from_secs(300);

impl<S: ClientService> EventLoop<S> {
    /// Accepts all pending connections of a listener.
    pub(super) fn accept(&mut self, listener: usize) {
        while let Some(listener) = self.listeners.get(listener) {
            match listener.socket.accept() {
                Ok((stream, _)) => {
                    let Ok(permit) = self.shared.connections.clone().try_acquire_owned() else {
                        self.shard.refuse_session();
                        refuse(listener, stream);
                        continue;
                    };
                    let protocol = listener.protocol;
                    if let Err(error) = self.open(protocol, stream, permit) {
                        tracing::warn!(%error, "a connection could not be set up and was closed");
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The client gave up before it was accepted.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // No descriptors or memory: readiness is reported once only, so a timer retries.
                    tracing::warn!(%error, protocol = listener::name(listener.protocol), "cannot accept connections; retrying shortly");
                    self.accept_again = Some(self.instant + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn open(&mut self, protocol: Protocol, mut stream: TcpStream, permit: OwnedSemaphorePermit) -> std::io::Result<()> {
        // Replies leave in one write per iteration; Nagle's algorithm would delay the last one.
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
        let slot = self.conns.vacant_key();
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.queue.registry().register(&mut stream, Token(slot), interest)?;
        let session = self.shard.open_session(protocol);
        self.serial += 1;
        self.counters.accepted += 1;
        self.conns.insert(Conn::new(stream, session, self.serial, permit));
        self.slots.insert(session, slot);
        // The first request often arrives together with the connection.
        self.schedule_read(slot);
        Ok(())
    }
}

/// Sends the refusal. The socket's buffer is empty, so the few bytes always fit.
fn refuse(listener: &Listener, mut stream: TcpStream) {
    let words: &[u8] = match listener.protocol {
        Protocol::Resp => b"-ERR max number of clients reached\r\n",
        Protocol::Memcached => b"SERVER_ERROR max number of clients reached\r\n",
    };
    let event = stream.write(words);
    tracing::debug!(?event, protocol = listener::name(listener.protocol), "refused: too many connections");
}
