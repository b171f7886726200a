//! Owns the integration tests of FAWN-DS: one binary, a module per concern.

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
