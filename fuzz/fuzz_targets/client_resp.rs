//! Owns libFuzzer's entry to the target `client_resp`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fawn_fuzz::run("client_resp", data));
