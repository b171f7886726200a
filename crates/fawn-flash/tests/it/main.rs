//! Integration tests of the devices and the page cache, in one binary.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that meets an error has failed")]
mod agreement;
mod cache;
mod conformance;
mod descriptors;
mod real;
mod sim_faults;
mod support;
