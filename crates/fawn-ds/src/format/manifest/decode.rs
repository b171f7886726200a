//! Owns the reading of manifests: commits in order up to the first that is not whole, then the judgement of what is
//! left: the torn tail of an append, or damage to what was synced.
use super::{
    ApplyError, CHECKSUM_AT, COMMIT_EDIT_BYTES_MAX, COMMIT_HEADER_BYTES, COMMIT_MAGIC, HEADER_BYTES, MAGIC,
    ManifestEdit, ManifestHeader, ManifestState,
};
use crate::format::bytes::{array, is_zero, u32_at, u64_at};
use crate::format::segment::check_frozen;
use crate::format::{HeaderError, StoreUuid, UNIT_BYTES, round_up_unit};
use fawn_types::checksum::checksum64;

const WHAT: &str = "manifest header";

/// Why a manifest says nothing at all.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ManifestError {
    /// Its header.
    #[error("{0}")]
    Header(#[from] HeaderError),
    /// A manifest becomes visible whole, by a rename, so not even a crash leaves it without its first commit.
    #[error("manifest: no commit is readable at byte {offset}, so the store's identity is lost; restore the file")]
    NoIdentity {
        /// Where the first commit should be.
        offset: u64,
    },
}

/// What follows the last good commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ManifestVerdict {
    /// Zeros or the end of the file.
    Clean,
    /// An append that a crash interrupted, never promised to anyone: cut the file here.
    TornAt {
        /// Where the last good commit ends.
        offset: u64,
    },
    /// Damage to something that was synced: open nothing, report.
    CorruptAt {
        /// Where the last good commit ends.
        offset: u64,
        /// How far the file was synced, by a later commit; `offset` where the commit itself is whole but impossible.
        synced: u64,
        /// The contradiction, where a commit with a good checksum cannot follow what came before.
        contradiction: Option<Box<ApplyError>>,
    },
}

/// A manifest's content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DecodedManifest {
    /// Its header.
    pub header: ManifestHeader,
    /// What its good commits add up to.
    pub state: ManifestState,
    /// Where the last good commit ends, bytes: where the next one goes.
    pub valid_len: u64,
    /// Number of good commits.
    pub commits: u64,
    /// What follows them.
    pub verdict: ManifestVerdict,
}

/// The header at the start of a manifest.
///
/// # Errors
/// When it is not a whole header of a format that this code reads.
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

/// Everything that a manifest file says. `bytes` may go on past its end with zeros.
///
/// # Errors
/// When not even its identity can be read.
pub fn decode_all(bytes: &[u8]) -> Result<DecodedManifest, ManifestError> {
    let header = decode_header(bytes)?;
    let mut decoded = DecodedManifest {
        header,
        state: ManifestState::default(),
        valid_len: HEADER_BYTES as u64,
        commits: 0,
        verdict: ManifestVerdict::Clean,
    };
    let mut at = HEADER_BYTES;
    while let Some(commit) = commit_at(&header, bytes, at) {
        if let Err(contradiction) = apply_all(&mut decoded.state, &header, commit.edits) {
            // Half of the commit may have been applied: what the commits before it say is read again.
            let mut before = decode_all(&bytes[..at])?;
            before.verdict = ManifestVerdict::CorruptAt { offset: at as u64, synced: at as u64, contradiction };
            return Ok(before);
        }
        at = commit.end;
        decoded.valid_len = at as u64;
        decoded.commits += 1;
    }
    decoded.verdict = validate_end(&header, bytes, at);
    // An empty commit is never written; one that says nothing has no identity to offer either.
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

/// The commit at `at`, if a whole one of this manifest is there.
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

/// Applies a commit's edits. The inner `None`: bytes that are no edit of this format.
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

/// Judges what follows the last good commit: a later whole commit that was written when more was synced proves damage.
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
