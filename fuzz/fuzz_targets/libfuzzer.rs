//! The entry point for libFuzzer: one binary for all targets, selected by `FAWN_FUZZ_TARGET`.
#![no_main]

use fawn_fuzz::{FuzzTarget, find, names};
use std::sync::OnceLock;

static TARGET: OnceLock<&FuzzTarget> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|data: &[u8]| (TARGET.get_or_init(chosen).run)(data));

fn chosen() -> &'static FuzzTarget {
    let name = std::env::var("FAWN_FUZZ_TARGET").unwrap_or_default();
    find(&name).unwrap_or_else(|| {
        eprintln!("FAWN_FUZZ_TARGET is `{name}`, expected one of: {}", names());
        std::process::exit(2)
    })
}
