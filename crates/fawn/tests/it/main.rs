//! Tests of the binary: real processes on loopback, every wait bounded, no fixed ports.
#![expect(clippy::expect_used, reason = "a test that meets what it does not expect should stop")]

mod admin;
mod backup;
mod config;
mod connections;
mod demo;
mod dump;
mod durable;
mod harness;
mod layout;
mod load;
mod one_shot;
mod repair;
mod shards;
mod shutdown;
mod unwritable_output;
