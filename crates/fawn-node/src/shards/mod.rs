//! The shards of one node among each other: ownership of keys, and the messages between shards.
//!
//! ```text
//! session → execute → [own key] → engine
//!                   → [another's] → away → Letter → (queue) → peers: a session of the owner → execute → engine
//! session ← away ← Letter ← (queue) ← that session's replies
//! ```
//! A shard owns a slice of the ring and its store; sessions stay with their connections. The host
//! moves batches in order and without loss.
mod answers;
pub(crate) mod away;
mod letter;
mod links;
mod peers;
mod placement;
pub(crate) mod wide;

pub use letter::Letter;
pub use placement::Placement;

pub(crate) use away::Away;
pub(crate) use letter::Kind;
pub(crate) use links::Links;
