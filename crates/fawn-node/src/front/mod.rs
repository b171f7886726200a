//! Client sessions before a cluster: the front-end of a node, and a whole cluster in one thread.
//!
//! ```text
//! bytes → session (codec, order of replies) → desk (line per session and key) → cluster::Node → head … tail
//! bytes ← session ← desk (gathers, folds) ← Output::Done
//! ```
//! A connection sees the same as with [`crate::Shard`]; [`ClientHost`] is the server's interface to either.
mod boots;
mod desk;
mod front_end;
mod host;
mod lines;
mod local;
mod map_keeping;
mod multi;
mod status;
mod wide;

pub use front_end::FrontEnd;
pub use host::ClientHost;
pub use local::{LocalCluster, LocalOptions};
