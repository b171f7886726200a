//! Owns the integration tests of FAWN-DS: one binary, a module per concern.
#![expect(clippy::unwrap_used, reason = "what a helper of a test unwraps, the test asserts")]

mod check;
mod crash;
mod format_frame;
mod format_manifest;
mod format_page;
mod format_record;
mod format_scan;
mod model;
mod rng;
mod segment_image;
mod support;
