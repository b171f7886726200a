//! Owns the tests of the binary: real processes on loopback, every wait bounded, no fixed ports.
mod admin;
mod config;
mod connections;
mod harness;
mod load;
mod one_shot;
mod shutdown;
