//! Tests of a cluster of nodes in virtual time: replication, failures, power loss, retries, bounds.
mod acknowledged;
mod basics;
mod chaos;
mod closing;
mod commands;
mod disks;
mod edges;
mod expiry;
mod failures;
mod grown;
mod leaving;
mod lies;
mod payloads;
mod silent;
mod transfers;
mod world;
