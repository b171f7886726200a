//! Owns the running server: shards on threads of their own, each with its listeners; started, asked, stopped as one.
mod accept;
mod backing;
mod cluster;
mod cluster_report;
mod conn;
mod control;
mod counters;
mod descriptors;
mod error;
mod limits;
mod listener;
mod read;
mod ready_file;
mod run;
mod shard;
mod store;
mod turn;
mod watch;
mod write;

pub(crate) use cluster::Cluster;
pub(crate) use cluster_report::{ClusterReport, CopyReport};
pub(crate) use control::Report;
pub(crate) use counters::{DeviceCounts, StoreCounts};
pub(crate) use error::ServeError;
pub(crate) use run::run;
pub(crate) use shard::{Places, Server, Shards};
pub(crate) use store::NodeShard;
