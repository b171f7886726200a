//! Run: a file of records sorted by space and ring key, for data that is read by one page per lookup and by ranges.
//!
//! ```text
//! file:   header 4096 | pages of 4096 | tail pieces | footer 4096
//! header: 0 magic "FAWN-RUN" | 8 format u32 | 12 zero u32 | 16 uuid | 32 store uuid | 48 zeros | 504 checksum u64 | 512 zeros
//! footer: 0 magic "FAWN-END" | 8 format u32 | 12 pages u32 | 16 uuid | 32 store uuid | 48 records u64 | 56 tail bytes u64
//!         64 first page of each space, 5 × u32 | 84 zero u32 | 88 chain u64 | 96 lowest and highest ring key of each
//!         space, 4 × 40 B | 256 base of the expiries u64 | 264 bytes that expire in each step, 8 × u32 | 296 zeros
//!         504 checksum u64 | 512 zeros
//! ```
//! The footer is written after everything before it was synced: a run with a footer is whole.
pub mod page;
pub mod record;
pub mod tail;

pub use record::{RunRecord, SPACES, Space};

use super::bytes::{array, is_zero, put, u32_at, u64_at};
use super::expiries::STEPS;
use super::segment::check_frozen;
use super::{Expiries, FORMAT_VERSION, HeaderError, SegmentUuid, StoreUuid};
use fawn_flash::buffer::PAGE_BYTES;
use fawn_types::checksum::{checksum64, salt};
use fawn_types::random::SplitMix64;
use fawn_types::{RingKey, TimeMs};

/// First bytes of every run.
pub const MAGIC: [u8; 8] = *b"FAWN-RUN";
/// First bytes of a run's footer.
pub const FOOTER_MAGIC: [u8; 8] = *b"FAWN-END";
/// Length of the header, bytes; the first page follows it.
pub const HEADER_BYTES: usize = PAGE_BYTES;
/// Length of the footer, the file's last block, bytes.
pub const FOOTER_BYTES: usize = PAGE_BYTES;
/// Maximum number of pages: the last one ends, behind the header, within offsets of 32 bits.
pub const PAGES_MAX: u32 = (1 << 20) - 2;
/// Maximum length of the tail, bytes.
pub const TAIL_BYTES_MAX: u64 = 1 << 30;

const CHECKSUM_AT: usize = 504;
const SPACES_AT: usize = 64;
const BOUNDS_AT: usize = 96;
const EXPIRIES_AT: usize = 256;
const EXPIRIES_END: usize = EXPIRIES_AT + 8 + 4 * STEPS;
const HEADER: &str = "run header";
const FOOTER: &str = "run footer";

/// Identity of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunHeader {
    /// Its permanent name, the salt of its checksums; no segment or checkpoint has the same.
    pub uuid: SegmentUuid,
    /// The store it belongs to.
    pub store: StoreUuid,
}

/// Counts and bounds of a complete run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunFooter {
    /// The run's identity, as in its header.
    pub header: RunHeader,
    /// Count of the pages.
    pub pages: u32,
    /// Count of the records.
    pub records: u64,
    /// Length of the tail's pieces, bytes.
    pub tail_bytes: u64,
    /// First page of each space, then the count of pages.
    pub starts: [u32; SPACES + 1],
    /// Lowest and highest ring key of each space; zeros where it is empty.
    pub bounds: [KeyBounds; SPACES],
    /// [`PageChain`] over all pages.
    pub chain: PageChain,
    /// Puts that had not expired when the run was written, by their lengths in pages. Runs of earlier builds have none.
    pub expiries: Expiries,
}

impl RunFooter {
    /// Length of the file, bytes.
    #[must_use]
    pub const fn file_bytes(&self) -> u64 {
        page_offset(self.pages) + self.tail_bytes + FOOTER_BYTES as u64
    }

    /// Offset of the tail's first piece, bytes.
    #[must_use]
    pub const fn tail_offset(&self) -> u64 {
        page_offset(self.pages)
    }
}

/// Offset of a page in the file, bytes; of the count of pages: the end of the last one.
#[must_use]
pub const fn page_offset(page: u32) -> u64 {
    HEADER_BYTES as u64 + page as u64 * PAGE_BYTES as u64
}

/// Lowest and highest ring key of a space's records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyBounds {
    /// The lowest.
    pub lowest: RingKey,
    /// The highest.
    pub highest: RingKey,
}

impl KeyBounds {
    /// The bounds of no records.
    pub const NONE: Self = Self { lowest: RingKey::MIN, highest: RingKey::MIN };
}

/// Hash of the checksums of consecutive pages: exactly these pages in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageChain(pub u64);

impl PageChain {
    /// The chain continued by a page with this checksum.
    #[must_use]
    pub const fn then(self, checksum: u32) -> Self {
        Self(salt(self.0, checksum as u64 | 1 << 63))
    }
}

/// Name of the run's file.
#[must_use]
pub fn file_name(uuid: SegmentUuid) -> String {
    format!("run-{:016x}.fawn", uuid.fold())
}

/// Whether a name has the form of [`file_name`]: an unlisted file of that form is an orphan of a crash.
#[must_use]
pub fn is_file_name(name: &str) -> bool {
    let id = name.strip_prefix("run-").and_then(|rest| rest.strip_suffix(".fawn"));
    id.is_some_and(|id| id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// The 64 bits that filters hash: all of a ring key, and its space.
#[must_use]
pub fn filter_hash(space: Space, key: &RingKey) -> u64 {
    let (tag, rest) = (u64_at(&key.0, 0), u32_at(&key.0, 8));
    let low = u64_at(&key.0, 12);
    SplitMix64::mix(SplitMix64::mix(tag ^ (u64::from(rest) << 8 | u64::from(space.get()))) ^ low)
}

/// Encodes the header into the first [`HEADER_BYTES`] of `out`.
///
/// # Panics
/// If `out` is too short: a caller's error.
pub fn encode_header(header: &RunHeader, out: &mut [u8]) {
    let out = &mut out[..HEADER_BYTES];
    out.fill(0);
    put_identity(MAGIC, header, out);
    seal(out);
}

/// Decodes a header.
///
/// # Errors
/// [`HeaderError`] says what is wrong with it.
pub fn decode_header(bytes: &[u8]) -> Result<RunHeader, HeaderError> {
    let header = identity(bytes, MAGIC, HEADER)?;
    if !is_zero(&bytes[12..16]) || !is_zero(&bytes[48..CHECKSUM_AT]) {
        return Err(field(HEADER, "a reserved field", "zeros", "other bytes"));
    }
    Ok(header)
}

/// Encodes the footer into the first [`FOOTER_BYTES`] of `out`.
///
/// # Panics
/// If `out` is too short: a caller's error.
pub fn encode_footer(footer: &RunFooter, out: &mut [u8]) {
    let out = &mut out[..FOOTER_BYTES];
    out.fill(0);
    put_identity(FOOTER_MAGIC, &footer.header, out);
    put(out, 12, &footer.pages.to_le_bytes());
    put(out, 48, &footer.records.to_le_bytes());
    put(out, 56, &footer.tail_bytes.to_le_bytes());
    for (at, start) in (SPACES_AT..).step_by(4).zip(footer.starts) {
        put(out, at, &start.to_le_bytes());
    }
    put(out, 88, &footer.chain.0.to_le_bytes());
    for (at, bounds) in (BOUNDS_AT..).step_by(40).zip(&footer.bounds) {
        let at = put(out, at, &bounds.lowest.0);
        put(out, at, &bounds.highest.0);
    }
    let at = put(out, EXPIRIES_AT, &footer.expiries.base.0.to_le_bytes());
    for (at, bytes) in (at..).step_by(4).zip(footer.expiries.bytes) {
        put(out, at, &bytes.to_le_bytes());
    }
    seal(out);
}

/// Decodes a footer.
///
/// # Errors
/// [`HeaderError`] says what is wrong with it.
pub fn decode_footer(bytes: &[u8]) -> Result<RunFooter, HeaderError> {
    let header = identity(bytes, FOOTER_MAGIC, FOOTER)?;
    if !is_zero(&bytes[84..88]) || !is_zero(&bytes[EXPIRIES_END..CHECKSUM_AT]) {
        return Err(field(FOOTER, "a reserved field", "zeros", "other bytes"));
    }
    let footer = RunFooter {
        header,
        pages: u32_at(bytes, 12),
        records: u64_at(bytes, 48),
        tail_bytes: u64_at(bytes, 56),
        starts: std::array::from_fn(|space| u32_at(bytes, SPACES_AT + 4 * space)),
        bounds: std::array::from_fn(|space| {
            let at = BOUNDS_AT + 40 * space;
            KeyBounds { lowest: RingKey(array(bytes, at)), highest: RingKey(array(bytes, at + 20)) }
        }),
        chain: PageChain(u64_at(bytes, 88)),
        expiries: Expiries {
            base: TimeMs(u64_at(bytes, EXPIRIES_AT)),
            bytes: std::array::from_fn(|step| u32_at(bytes, EXPIRIES_AT + 8 + 4 * step)),
        },
    };
    let is_ascending = footer.starts.is_sorted() && footer.starts[0] == 0 && footer.starts[SPACES] == footer.pages;
    if footer.pages > PAGES_MAX || !is_ascending {
        return Err(field(FOOTER, "first page of a space", "ascending pages", &format!("{:?}", footer.starts)));
    }
    if footer.tail_bytes > TAIL_BYTES_MAX || !footer.tail_bytes.is_multiple_of(PAGE_BYTES as u64) {
        return Err(field(FOOTER, "tail length", "whole pages", &footer.tail_bytes.to_string()));
    }
    let (fewest, most) = (u64::from(footer.pages), u64::from(footer.pages) * page::RECORDS_MAX as u64);
    if footer.records < fewest || footer.records > most {
        return Err(field(FOOTER, "records", "as many as the pages have", &footer.records.to_string()));
    }
    for (space, bounds) in footer.bounds.iter().enumerate() {
        let is_empty = footer.starts[space] == footer.starts[space + 1];
        if bounds.lowest > bounds.highest || (is_empty && *bounds != KeyBounds::NONE) {
            return Err(field(FOOTER, "bounds of a space", "the lowest, then the highest key", &format!("{bounds:?}")));
        }
    }
    Ok(footer)
}

fn put_identity(magic: [u8; 8], header: &RunHeader, out: &mut [u8]) {
    put(out, 0, &magic);
    put(out, 8, &FORMAT_VERSION.to_le_bytes());
    put(out, 16, &header.uuid.0);
    put(out, 32, &header.store.0);
}

fn seal(out: &mut [u8]) {
    let checksum = checksum64(&out[..CHECKSUM_AT]);
    put(out, CHECKSUM_AT, &checksum.to_le_bytes());
}

/// Checks that the first block at `bytes` is one of this kind, up to its reserved fields.
fn identity(bytes: &[u8], magic: [u8; 8], what: &'static str) -> Result<RunHeader, HeaderError> {
    let (expected, found) = (PAGE_BYTES, bytes.len());
    if found < expected {
        return Err(HeaderError::Truncated { what, expected, found });
    }
    check_frozen(bytes, magic, CHECKSUM_AT, what)?;
    if !is_zero(&bytes[CHECKSUM_AT + 8..PAGE_BYTES]) {
        return Err(field(what, "the block's end", "zeros", "other bytes"));
    }
    Ok(RunHeader { uuid: SegmentUuid(array(bytes, 16)), store: StoreUuid(array(bytes, 32)) })
}

fn field(what: &'static str, field: &'static str, expected: &str, found: &str) -> HeaderError {
    HeaderError::Field { what, field, expected: expected.to_owned(), found: found.to_owned() }
}
