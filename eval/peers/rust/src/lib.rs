//! The C interface of a peer store, over the one store that the features select. A failure ends the program.
#[cfg(feature = "fjall")]
#[path = "fjall.rs"]
mod engine;
#[cfg(feature = "redb")]
#[path = "redb.rs"]
mod engine;

use engine::{PeerSession, PeerStore};
use std::ffi::{CStr, OsStr, c_char, c_int, c_long};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const KEY_BYTES: usize = 16;

/// The parameters of a store, as in `store.h`.
#[repr(C)]
pub struct Setup {
    memory_bytes: u64,
    data_bytes: u64,
    sync: c_int,
    row_cache_percent: c_int,
}

/// The value of `result`; prints an error and ends the program.
fn must<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(1)
    })
}

/// # Safety
/// Both pointers must be valid, and `dir` a string that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn store_open(dir: *const c_char, setup: *const Setup) -> *mut PeerStore {
    // SAFETY: the caller's promise.
    let (dir, setup) = unsafe { (CStr::from_ptr(dir), &*setup) };
    let dir = Path::new(OsStr::from_bytes(dir.to_bytes()));
    Box::into_raw(Box::new(PeerStore::open(dir, setup)))
}

/// # Safety
/// `store` must come from `store_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn store_flush(store: *mut PeerStore) {
    // SAFETY: the caller's promise.
    unsafe { &*store }.flush();
}

/// # Safety
/// `store` must come from `store_open`, and all of its sessions must be closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn store_close(store: *mut PeerStore) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(store) });
}

/// # Safety
/// `store` must come from `store_open`, and be closed only after the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn session_open(store: *mut PeerStore) -> *mut PeerSession<'static> {
    // SAFETY: the caller's promise.
    Box::into_raw(Box::new(PeerSession::open(unsafe { &*store })))
}

/// # Safety
/// `session` must come from `session_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn session_close(session: *mut PeerSession<'static>) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(session) });
}

/// # Safety
/// `session` must come from `session_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn session_begin(session: *mut PeerSession<'static>) {
    // SAFETY: the caller's promise.
    unsafe { &mut *session }.begin();
}

/// # Safety
/// `session` must come from `session_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn session_end(session: *mut PeerSession<'static>) {
    // SAFETY: the caller's promise.
    unsafe { &mut *session }.end();
}

/// # Safety
/// `session` must come from `session_open`; `key` has 16 bytes, `value` as many as given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn session_put(
    session: *mut PeerSession<'static>,
    key: *const u8,
    value: *const u8,
    value_bytes: usize,
) {
    // SAFETY: the caller's promise.
    let (session, key, value) = unsafe {
        (&mut *session, std::slice::from_raw_parts(key, KEY_BYTES), std::slice::from_raw_parts(value, value_bytes))
    };
    session.put(key, value);
}

/// # Safety
/// `session` must come from `session_open`; `key` has 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn session_delete(session: *mut PeerSession<'static>, key: *const u8) {
    // SAFETY: the caller's promise.
    let (session, key) = unsafe { (&mut *session, std::slice::from_raw_parts(key, KEY_BYTES)) };
    session.delete(key);
}

/// # Safety
/// `session` must come from `session_open`; `key` has 16 bytes, `out` as many as given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn session_get(
    session: *mut PeerSession<'static>,
    key: *const u8,
    out: *mut u8,
    capacity: usize,
) -> c_long {
    // SAFETY: the caller's promise.
    let (session, key, out) = unsafe {
        (&mut *session, std::slice::from_raw_parts(key, KEY_BYTES), std::slice::from_raw_parts_mut(out, capacity))
    };
    session.get(key, out).map_or(-1, |len| len as c_long)
}

/// Copies a value as far as it fits; returns its length.
fn copy(value: &[u8], out: &mut [u8]) -> usize {
    let len = value.len().min(out.len());
    out[..len].copy_from_slice(&value[..len]);
    value.len()
}
