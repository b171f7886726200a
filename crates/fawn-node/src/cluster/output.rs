//! Effects of a shard in a cluster for its host: frames for peers, maps to store, link resets.
use fawn_types::MemberId;

/// An effect for the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeOutput {
    /// Whole frames for a peer, in order. They may be lost: all messages are repeated until a reply arrives.
    Send {
        /// The receiver.
        to: MemberId,
        /// One or more frames.
        bytes: Vec<u8>,
    },
    /// Store this map on the host's disks, then call `handle_map_kept(revision)`. Only with [`super::MapPlace::Host`].
    KeepMap {
        /// Revision of the map, the argument of `handle_map_kept`.
        revision: u64,
        /// The encoded map.
        image: Vec<u8>,
    },
    /// This peer's byte stream was corrupt: close the link, call `handle_link_reset`, connect again.
    Reset {
        /// The peer.
        peer: MemberId,
    },
}
