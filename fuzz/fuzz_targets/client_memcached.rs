//! Owns libFuzzer's entry to the target `client_memcached`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fawn_fuzz::run("client_memcached", data));
