//! Owns the other end of both protocols, for the command line's client and the load generator.
pub mod memcached;
pub mod resp;

/// What was found at the start of a server's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed<R> {
    /// No whole reply yet: call again with the same bytes in front once there are at least so many.
    Incomplete {
        /// Least length of the input at which parsing can go on.
        need_bytes: usize,
    },
    /// A reply.
    Reply {
        /// What it says.
        reply: R,
        /// Bytes of the input to drop.
        consumed: usize,
    },
    /// This is not the protocol: close the connection.
    Malformed {
        /// What was expected.
        expected: &'static str,
        /// Where it was expected, bytes from the start.
        at: usize,
    },
}
