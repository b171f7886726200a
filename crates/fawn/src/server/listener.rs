//! Listening sockets: one per shard on the same port.
use crate::failure::{Exit, Failure};
use fawn_wire::Protocol;
use mio::net::TcpListener;
use socket2::{Domain, Socket, Type};
use std::net::SocketAddr;

/// Backlog of pending connections; the system caps it.
const BACKLOG: i32 = 4096;

/// A bound address that does not listen yet: conflicts show before the store is opened, clients connect after.
#[derive(Debug)]
pub(super) struct Bound {
    socket: Socket,
    pub(super) protocol: Protocol,
    /// Port 0 is replaced by the chosen port.
    pub(super) address: SocketAddr,
}

impl Bound {
    /// Binds the address.
    pub(super) fn new(protocol: Protocol, address: SocketAddr) -> Result<Self, Failure> {
        let fail = cannot_listen(name(protocol), address);
        let socket = bind(address, false).map_err(fail)?;
        let chosen = socket.local_addr().map_err(fail)?.as_socket();
        Ok(Self { socket, protocol, address: chosen.unwrap_or(address) })
    }

    /// Starts listening: a listener per shard on one port, among which the kernel distributes connections.
    ///
    /// The first socket listens before the port is declared shared. It therefore fails if another process listens
    /// already, although the kernel would let processes of one user share the port.
    pub(super) fn listen(self, shards: u16) -> Result<Vec<Listener>, Failure> {
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
        let sockets = listen().map_err(cannot_listen(name(protocol), address))?;
        let listener = |socket: Socket| Listener { socket: TcpListener::from_std(socket.into()), protocol };
        Ok(sockets.into_iter().map(listener).collect())
    }
}

/// Converts an error of listening on `address`; `what` is the listener, by the name of its flag.
pub(crate) fn cannot_listen(what: &'static str, address: SocketAddr) -> impl Fn(std::io::Error) -> Failure + Copy {
    move |error| {
        let remedy = format!("stop the program that uses it or choose another with --{what}");
        Failure::new(Exit::Address, format!("{what} cannot listen on {address}: {error}; {remedy}"))
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

/// A listening socket of one protocol.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: TcpListener,
    pub(super) protocol: Protocol,
}

/// A protocol's name in messages and metrics.
pub(crate) const fn name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Resp => "resp",
        Protocol::Memcached => "memcached",
    }
}
