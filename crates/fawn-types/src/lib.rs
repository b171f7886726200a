//! Shared types of FAWN: keys, values, versions, key ranges, requests, replies, limits and the model store.
//!
//! Pure: no I/O, no clock, no threads, no ambient randomness; `no_std` with `alloc`. The time is an argument.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod bytes;
pub mod checksum;
pub mod entry;
pub mod ids;
pub mod limits;
pub mod model;
pub mod operation;
pub mod random;
pub mod reply;
pub mod request;
pub mod ring_key;
mod sip;
pub mod store;
pub mod time;
pub mod version;

pub use entry::{Entry, EntryRef};
pub use ids::{BootId, BootOrder, ClientTag, MemberId, NodeId, RangeId, ShardId, VirtualId};
pub use operation::{DataOperation, Effect, Outcome};
pub use reply::{OperationError, Reply};
pub use request::{Condition, Expiry, Request, Update};
pub use ring_key::{HashSecret, KeyHash, KeyRange, RingKey};
pub use store::{Durability, KvStore, StoreError};
pub use time::{ExpiryClock, MonoMs, Now, SteadyTime, TimeJump, TimeMs};
pub use version::{Epoch, Version};
