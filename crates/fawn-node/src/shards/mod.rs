//! Owns the shards of one node among each other: which of them a key belongs to, and what they hand to each other.
//!
//! ```text
//! session → execute → [own key] → engine
//!                   → [another's] → away → Letter → (queue) → peers: a session of the owner → execute → engine
//! session ← away ← Letter ← (queue) ← that session's replies
//! ```
//! A shard owns a slice of the ring and everything stored there; sessions are where their connections are. Whoever
//! connects them moves letters, in order, and loses none.
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
