//! Limits visible to clients, all in one place; the relations between them are checked at compile time.

/// Maximum key length, bytes (the record header's length field has 16 bits).
pub const KEY_BYTES_MAX: usize = 65_535;
/// Maximum key length in the memcached text protocol, bytes.
pub const MEMCACHED_KEY_BYTES_MAX: usize = 250;
/// Default maximum value length, bytes.
pub const VALUE_BYTES_MAX: usize = 8 << 20;
/// A record is at most 1/`RECORD_SEGMENT_SHARE` of a segment, so every segment fits several records.
pub const RECORD_SEGMENT_SHARE: usize = 4;
/// Maximum number of arguments in one request.
pub const REQUEST_ARGS_MAX: usize = 1 << 20;
/// Maximum length of an inline command or a memcached command line, bytes.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Maximum length of a whole request, bytes; for example, all arguments of an `MSET` together.
pub const REQUEST_BYTES_MAX: usize = 64 << 20;
/// The latest expiry, ms since the Unix epoch: times of `SET … PXAT` are signed, and dumps are loaded by it.
pub const EXPIRES_AT_MS_MAX: u64 = i64::MAX as u64;

const _: () = assert!(KEY_BYTES_MAX <= u16::MAX as usize);
const _: () = assert!(VALUE_BYTES_MAX < 1 << 24);
const _: () = assert!(MEMCACHED_KEY_BYTES_MAX <= KEY_BYTES_MAX);
const _: () = assert!(REQUEST_BYTES_MAX > VALUE_BYTES_MAX + KEY_BYTES_MAX);
