//! Manifest decoder: reads whole commits in order, then decides whether the rest is a torn append or corruption.
use super::{
    ApplyError, CHECKSUM_AT, COMMIT_EDIT_BYTES_MAX, COMMIT_HEADER_BYTES, COMMIT_MAGIC, HEADER_BYTES, MAGIC,
    ManifestEdit, ManifestHeader, ManifestState,
};
use crate::format::bytes::{array, is_zero, u32_at, u64_at};
use crate::format::segment::check_frozen;
use crate::format::{HeaderError, StoreUuid, UNIT_BYTES, round_up_unit};
use fawn_types::checksum::checksum64;

const WHAT: &str = "manifest header";

/// Error of a manifest without readable content.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ManifestError {
    /// The file header is invalid.
    #[error("{0}")]
    Header(#[from] HeaderError),
    /// No commit is readable. A crash cannot cause this: a manifest gets its name only when it is complete.
    #[error("manifest: no commit is readable at byte {offset}, so the store's identity is lost; restore the file")]
    NoIdentity {
        /// Offset of the first commit.
        offset: u64,
    },
}

/// Verdict on the bytes after the last valid commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ManifestVerdict {
    /// Zeros, or the end of the file.
    Clean,
    /// An append interrupted by a crash, and never acknowledged: overwrite it with zeros from here on.
    TornAt {
        /// End of the last valid commit.
        offset: u64,
    },
    /// Synced bytes are corrupt: refuse to open, and report.
    CorruptAt {
        /// End of the last valid commit.
        offset: u64,
        /// Synced length of the file, by a later commit; equal to `offset` if the commit itself is contradictory.
        synced: u64,
        /// The contradiction, if a commit with a valid checksum cannot follow the ones before it.
        contradiction: Option<Box<ApplyError>>,
    },
}

/// Content of a manifest file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DecodedManifest {
    /// The file header.
    pub header: ManifestHeader,
    /// The state after all valid commits.
    pub state: ManifestState,
    /// End of the last valid commit, bytes; the next one goes there.
    pub valid_len: u64,
    /// Length that a valid commit certifies as synced, bytes.
    pub synced: u64,
    /// Number of valid commits.
    pub commits: u64,
    /// Verdict on the bytes after them.
    pub verdict: ManifestVerdict,
}

/// Decodes the header at the start of a manifest.
///
/// # Errors
/// If it is not a whole header of a format that this code reads.
pub fn decode_header(bytes: &[u8]) -> Result<ManifestHeader, HeaderError> {
    let (expected, found) = (HEADER_BYTES, bytes.len());
    if found < expected {
        return Err(HeaderError::Truncated { what: WHAT, expected, found });
    }
    check_frozen(bytes, MAGIC, CHECKSUM_AT, WHAT)?;
    if !is_zero(&bytes[12..16]) || !is_zero(&bytes[40..CHECKSUM_AT]) {
        let (expected, found) = ("zero".to_owned(), "not zero".to_owned());
        return Err(HeaderError::Field { what: WHAT, field: "reserved bytes", expected, found });
    }
    Ok(ManifestHeader { store: StoreUuid(array(bytes, 16)), rewrite: u64_at(bytes, 32) })
}

/// Decodes a whole manifest file. Zeros may follow its end in `bytes`.
///
/// # Errors
/// If the store's identity cannot be read.
pub fn decode_all(bytes: &[u8]) -> Result<DecodedManifest, ManifestError> {
    let header = decode_header(bytes)?;
    let mut decoded = DecodedManifest {
        header,
        state: ManifestState::default(),
        valid_len: HEADER_BYTES as u64,
        synced: 0,
        commits: 0,
        verdict: ManifestVerdict::Clean,
    };
    let mut at = HEADER_BYTES;
    while let Some(commit) = commit_at(&header, bytes, at) {
        if let Err(contradiction) = apply_all(&mut decoded.state, &header, commit.edits) {
            // Part of the commit may have been applied: the commits before it are decoded again.
            let mut before = decode_all(&bytes[..at])?;
            before.verdict = ManifestVerdict::CorruptAt { offset: at as u64, synced: at as u64, contradiction };
            return Ok(before);
        }
        at = commit.end;
        decoded.valid_len = at as u64;
        decoded.synced = decoded.synced.max(commit.synced);
        decoded.commits += 1;
    }
    decoded.verdict = validate_end(&header, bytes, at);
    // Empty commits are never written; a file without commits has no identity.
    if decoded.state.identity.is_none() {
        return Err(ManifestError::NoIdentity { offset: at as u64 });
    }
    assert!(decoded.commits > 0 && decoded.valid_len <= bytes.len() as u64, "what was applied was read");
    Ok(decoded)
}

struct Commit<'a> {
    edits: &'a [u8],
    synced: u64,
    end: usize,
}

/// The commit at `at`, if a whole and valid one of this manifest is there.
fn commit_at<'a>(header: &ManifestHeader, bytes: &'a [u8], at: usize) -> Option<Commit<'a>> {
    let rest = bytes.get(at..)?;
    if rest.len() < COMMIT_HEADER_BYTES || rest[..4] != COMMIT_MAGIC {
        return None;
    }
    let edit_bytes = u32_at(rest, 4) as usize;
    if edit_bytes > 2 * COMMIT_EDIT_BYTES_MAX {
        return None;
    }
    let end = COMMIT_HEADER_BYTES + edit_bytes;
    let commit = rest.get(..round_up_unit(end))?;
    let checksum = checksum64(&commit[16..end]) ^ header.salt(header.store.fold());
    let synced = u64_at(commit, 24);
    let is_whole = checksum == u64_at(commit, 8)
        && u64_at(commit, 16) == at as u64
        && synced <= at as u64
        && is_zero(&commit[end..]);
    is_whole.then(|| Commit { edits: &commit[COMMIT_HEADER_BYTES..end], synced, end: at + commit.len() })
}

/// Applies a commit's edits. An inner `None` means bytes that are no edit of this format.
fn apply_all(
    state: &mut ManifestState,
    header: &ManifestHeader,
    mut bytes: &[u8],
) -> Result<(), Option<Box<ApplyError>>> {
    while !bytes.is_empty() {
        let (edit, len) = ManifestEdit::decode(bytes).ok_or(None)?;
        state.apply(&edit).map_err(|error| Some(Box::new(error)))?;
        if state.identity.is_none_or(|identity| identity.store != header.store) {
            let why = "the identity must name the store of the file's header";
            return Err(Some(Box::new(ApplyError { edit, why })));
        }
        bytes = &bytes[len..];
    }
    Ok(())
}

/// Verdict on the bytes after the last valid commit: damage, if a later whole commit shows that they were synced.
fn validate_end(header: &ManifestHeader, bytes: &[u8], at: usize) -> ManifestVerdict {
    let rest = bytes.get(at..).unwrap_or_default();
    if is_zero(rest) {
        return ManifestVerdict::Clean;
    }
    let offset = at as u64;
    let synced = (at..bytes.len())
        .step_by(UNIT_BYTES)
        .filter_map(|later| commit_at(header, bytes, later))
        .map(|commit| commit.synced)
        .max();
    match synced {
        Some(synced) if synced > offset => ManifestVerdict::CorruptAt { offset, synced, contradiction: None },
        _ => ManifestVerdict::TornAt { offset },
    }
}
