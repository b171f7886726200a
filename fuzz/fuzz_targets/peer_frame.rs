//! Owns libFuzzer's entry to the target `peer_frame`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fawn_fuzz::run("peer_frame", data));
