//! Owns the tests of a cluster of nodes: replication, failures, power loss, retries, bounds; virtual time throughout.
mod basics;
mod chaos;
mod closing;
mod disks;
mod edges;
mod failures;
mod grown;
mod payloads;
mod world;
