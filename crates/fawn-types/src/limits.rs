//! Owns every limit that a client can meet, in one place; relations between them are proven at compile time.

/// Longest key, bytes (the record header's 16-bit length).
pub const KEY_BYTES_MAX: usize = 65_535;
/// Longest key of the memcached text protocol, bytes.
pub const MEMCACHED_KEY_BYTES_MAX: usize = 250;
/// Longest value by default, bytes.
pub const VALUE_BYTES_MAX: usize = 8 << 20;
/// A record is at most this share of a segment, so that a segment always holds several.
pub const RECORD_SEGMENT_SHARE: usize = 4;
/// Most arguments of one request.
pub const REQUEST_ARGS_MAX: usize = 1 << 20;
/// Longest inline command or memcached command line, bytes.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Longest request in all, bytes: every argument of an `MSET` together.
pub const REQUEST_BYTES_MAX: usize = 64 << 20;

const _: () = assert!(KEY_BYTES_MAX <= u16::MAX as usize);
const _: () = assert!(VALUE_BYTES_MAX < 1 << 24);
const _: () = assert!(MEMCACHED_KEY_BYTES_MAX <= KEY_BYTES_MAX);
const _: () = assert!(REQUEST_BYTES_MAX > VALUE_BYTES_MAX + KEY_BYTES_MAX);
