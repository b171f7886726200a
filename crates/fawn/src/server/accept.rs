//! Owns accepting connections and refusing those beyond the limit in their protocol's words.
use super::backing::Backing;
use super::conn::Conn;
use super::limits::ACCEPT_PAUSE;
use super::listener::{self, Listener};
use super::turn::Turn;
use mio::net::TcpStream;
use mio::{Interest, Token};
use socket2::{SockRef, TcpKeepalive};
use std::io::{ErrorKind, Write};
use std::time::Duration;

/// A client whose machine died without a word is noticed after about this long.
const KEEPALIVE: Duration = Duration::from_secs(300);

impl<B: Backing> Turn<B> {
    /// Accepts everything that waits at a listener.
    pub(super) fn accept(&mut self, listener: usize) {
        while let Some(listener) = self.listeners.get(listener) {
            match listener.socket.accept() {
                Ok((stream, _)) if !self.shared.seats.take() => {
                    self.counters.refused += 1;
                    refuse(listener, stream);
                }
                Ok((stream, _)) => {
                    let protocol = listener.protocol;
                    if let Err(error) = self.open(protocol, stream) {
                        self.shared.seats.give_back();
                        tracing::warn!(%error, "a connection could not be set up and was closed");
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The client gave up before it was accepted.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Out of descriptors or memory: readiness is told once only, so come back by the clock.
                    tracing::warn!(%error, protocol = listener::name(listener.protocol), "accepting pauses");
                    self.accept_again = Some(self.instant + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn open(&mut self, protocol: fawn_wire::Protocol, mut stream: TcpStream) -> std::io::Result<()> {
        // Replies leave in one write per turn; Nagle would hold the last of them back.
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
        let slot = self.conns.vacant_key();
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.queue.registry().register(&mut stream, Token(slot), interest)?;
        let session = self.shard.open_session(protocol);
        self.serial += 1;
        self.counters.accepted += 1;
        self.conns.insert(Conn::new(stream, session, self.serial));
        self.slots.insert(session, slot);
        // A first request often came along with the connection.
        self.list(slot);
        Ok(())
    }
}

/// Tells the client why. Its socket's buffer is empty, so the few bytes always fit.
fn refuse(listener: &Listener, mut stream: TcpStream) {
    let told = stream.write(listener.too_many());
    tracing::debug!(?told, protocol = listener::name(listener.protocol), "refused: too many connections");
}
