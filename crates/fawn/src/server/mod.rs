//! The running server: shards on their own threads, each with its listeners; started, queried and stopped together.
mod accept;
mod admission;
mod cluster;
mod cluster_report;
mod conn;
mod control;
mod counters;
mod descriptors;
mod event_loop;
mod limits;
mod listener;
mod mailbox;
mod opening;
mod peer_shards;
mod process_state;
mod read;
mod ready_file;
mod run;
mod service;
mod shard;
mod start;
mod store;
mod timers;
mod write;

pub(crate) use control::ShardReport;
#[cfg(test)]
pub(crate) use counters::LoopCounters;
pub(crate) use descriptors::raise as raise_descriptors;
pub(crate) use listener::cannot_listen;
pub(crate) use run::run;
pub(crate) use service::Service;
pub(crate) use shard::{ListenAddrs, RunningServer, ShardHandles};
pub(crate) use store::random_bytes;
