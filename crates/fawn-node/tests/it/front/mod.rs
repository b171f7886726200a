//! Owns the tests of sessions in front of a cluster: what clients hear is what one store tells them; three copies.
mod clients;
mod colocated;
mod failures;
mod harness;
