//! The client side of both protocols, for the command-line client and the load generator.
pub mod memcached;
pub mod resp;

/// Result of parsing the start of a server's output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParsedReply<R> {
    /// The reply is incomplete. Call again with the same bytes once the input has at least `need_bytes`.
    Incomplete {
        /// Minimum length of the input with which parsing can continue.
        need_bytes: usize,
    },
    /// A reply.
    Reply {
        /// The reply.
        reply: R,
        /// Number of input bytes to remove.
        consumed: usize,
    },
    /// The input violates the protocol: close the connection.
    Malformed {
        /// Description of the expected input.
        expected: &'static str,
        /// Offset from the start of the input.
        at: usize,
    },
}
