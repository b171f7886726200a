//! Integration tests of FAWN-DS: one binary, a module per concern.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics where it stands")]
#![expect(clippy::unwrap_used, reason = "what a helper of a test unwraps, the test asserts")]

mod certified;
mod chained;
mod chained_crash;
mod check;
mod clocks;
mod copy;
mod counted;
mod crash;
mod damage;
mod dropping;
mod failed_sync;
mod format_frame;
mod format_manifest;
mod format_page;
mod format_record;
mod format_scan;
mod fuzz_recovery;
mod gaps;
mod hang;
mod len;
mod manifest_growth;
mod model;
mod out_of_descriptors;
mod page_ends;
mod panicking_device;
mod pending;
mod ranges;
mod results;
mod rng;
mod salvage;
mod scan;
mod scan_damage;
mod seals;
mod segment_image;
mod store_faults;
mod store_iter;
mod store_lifecycle;
mod store_methods;
mod support;
mod synced_end;
mod tail_lost;
mod torn_again;
mod unreadable;
