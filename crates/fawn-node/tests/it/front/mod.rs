//! Sessions in front of a cluster: clients get the same replies as from one store, with three copies.
mod clients;
mod colocated;
mod failures;
mod harness;
mod host;
mod iterations;
mod limits;
mod log_space;
mod long_lists;
mod one_shard;
mod pipelines;
mod restarts;
