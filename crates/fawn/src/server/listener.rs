//! Owns listening sockets: binding them (one per shard on the same port), and what refused clients are told.
use super::ServeError;
use fawn_wire::Protocol;
use mio::net::TcpListener;
use socket2::{Domain, Socket, Type};
use std::net::SocketAddr;

/// Connections that may wait to be accepted; the system caps it.
const BACKLOG: i32 = 4096;

/// An address taken, where nobody can connect yet: a clash shows before the store is opened, clients only come after.
#[derive(Debug)]
pub(super) struct Bound {
    socket: Socket,
    protocol: Protocol,
    address: SocketAddr,
}

impl Bound {
    /// Takes the address.
    pub(super) fn new(protocol: Protocol, address: SocketAddr) -> Result<Self, ServeError> {
        let fail = |detail: std::io::Error| ServeError::Listen { what: name(protocol), address, detail };
        let socket = bind(address, false).map_err(fail)?;
        let chosen = socket.local_addr().map_err(fail)?.as_socket();
        Ok(Self { socket, protocol, address: chosen.unwrap_or(address) })
    }

    /// The protocol and where; the port is the one the system chose if 0 was asked for.
    pub(super) const fn place(&self) -> (Protocol, SocketAddr) {
        (self.protocol, self.address)
    }

    /// Lets clients in: a listener per shard on the one port, among which the system spreads connections.
    ///
    /// The first listens alone, before the port is declared shared: it fails where anybody listens already, of two servers
    /// that start at once for one of them, though the system would let processes of one user share.
    pub(super) fn listen(self, shards: u16) -> Result<Vec<Listener>, ServeError> {
        let Self { socket, protocol, address } = self;
        let listen = || -> std::io::Result<Vec<Socket>> {
            socket.listen(BACKLOG)?;
            let mut sockets = vec![socket];
            for _ in 1..shards {
                sockets[0].set_reuse_port(true)?;
                let further = bind(address, true)?;
                further.listen(BACKLOG)?;
                sockets.push(further);
            }
            Ok(sockets)
        };
        let sockets = listen().map_err(|detail| ServeError::Listen { what: name(protocol), address, detail })?;
        let listener = |socket: Socket| Listener { socket: TcpListener::from_std(socket.into()), protocol };
        Ok(sockets.into_iter().map(listener).collect())
    }
}

fn bind(address: SocketAddr, is_shared: bool) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // Without it a restart waits for the old connections' TIME_WAIT.
    socket.set_reuse_address(true)?;
    if is_shared {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// A protocol's listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: TcpListener,
    pub(super) protocol: Protocol,
}

impl Listener {
    /// What a client hears when there are too many, in its protocol's words.
    pub(super) const fn too_many(&self) -> &'static [u8] {
        match self.protocol {
            Protocol::Resp => b"-ERR max number of clients reached\r\n",
            Protocol::Memcached => b"SERVER_ERROR max number of clients reached\r\n",
            // Nobody listens for it.
            Protocol::Native => b"",
        }
    }
}

/// A protocol's name in messages and metrics.
pub(crate) const fn name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Resp => "resp",
        Protocol::Memcached => "memcached",
        Protocol::Native => "native",
    }
}
