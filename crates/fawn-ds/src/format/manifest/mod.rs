//! The manifest: the only truth about a store, an append-only log of checksummed commits of edits.
//!
//! ```text
//! file:   0 magic "FAWN-MAN" | 8 format u32 | 12 zero u32 | 16 store uuid | 32 rewrite u64 | 40 zeros
//!         504 checksum u64 | 512 commits, each right after the one before | zeros
//! commit: 0 magic "FwnM" | 4 edit_bytes u32 | 8 checksum u64 | 16 offset u64 | 24 synced u64 | 32 edits | zeros to 16 B
//! ```
//! A commit is accepted whole or not at all, so edits that must hold together share one. Each commit records how much
//! of the file was synced before it was written, which distinguishes a torn append from corruption of acknowledged
//! commits.
mod decode;
mod edit;
mod encode;
mod lineage;
mod run;
mod seal;
mod state;

pub use decode::{DecodedManifest, ManifestError, ManifestVerdict, decode_all, decode_header};
pub use edit::ManifestEdit;
pub use encode::{certifying_edits, encode_commit, encode_header, encode_snapshot};
#[cfg(test)]
pub(crate) use lineage::ANCESTORS_VISITED;
pub use lineage::Ancestor;
pub use run::RunEntry;
pub use seal::SegmentSeal;
pub(crate) use seal::seal_bytes;
pub use state::{
    ApplyError, CheckpointEntry, Identity, ManifestRange, ManifestState, RangeBeginning, SegmentEntry, SoleEpochs,
    slots_max,
};

use super::StoreUuid;
use fawn_types::checksum::salt;

/// The manifest's file name.
pub const FILE_NAME: &str = "manifest";
/// Name of a rewritten manifest until it is complete, synced and renamed to [`FILE_NAME`]; recovery removes it as an
/// orphan.
pub const NEW_FILE_NAME: &str = "manifest.new";
/// Name of a file without content that counts, as long as a manifest: an opening on a full device writes a snapshot to it and
/// exchanges the two.
pub const SPARE_FILE_NAME: &str = "manifest.spare";
/// First bytes of every manifest.
pub const MAGIC: [u8; 8] = *b"FAWN-MAN";
/// Length of the file's header, bytes: the offset of the first commit.
pub const HEADER_BYTES: usize = 512;
/// First bytes of every commit.
pub const COMMIT_MAGIC: [u8; 4] = *b"FwnM";
/// Length of a commit's header, bytes.
pub const COMMIT_HEADER_BYTES: usize = 32;
/// Maximum bytes of edits in one commit; a longer snapshot takes several commits.
pub const COMMIT_EDIT_BYTES_MAX: usize = 1 << 20;
/// Longest blob of a higher layer, bytes.
pub const BLOB_BYTES_MAX: usize = 64 << 10;
/// Minimum length of a manifest that is rewritten, bytes.
pub const REWRITE_BYTES_MIN: u64 = 64 << 10;
/// Minimum length of such a manifest relative to the new one.
pub const REWRITE_RATIO_MIN: u64 = 4;

const CHECKSUM_AT: usize = HEADER_BYTES - 8;

const _: () = assert!(HEADER_BYTES == fawn_flash::buffer::SECTOR_BYTES);
const _: () = assert!(BLOB_BYTES_MAX < COMMIT_EDIT_BYTES_MAX);

/// Header of a manifest file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ManifestHeader {
    /// The store it describes.
    pub store: StoreUuid,
    /// Number of the rewrite; it keeps commits of earlier files from passing for this file's.
    pub rewrite: u64,
}

impl ManifestHeader {
    /// Salt of the commits' checksums.
    const fn salt(&self, store_id: u64) -> u64 {
        salt(store_id, self.rewrite)
    }
}

/// Whether a manifest of `len_bytes` should be rewritten: a snapshot of `snapshot_bytes` would be much shorter.
#[must_use]
pub const fn is_worth_rewriting(len_bytes: u64, snapshot_bytes: u64) -> bool {
    len_bytes >= REWRITE_BYTES_MIN && len_bytes / REWRITE_RATIO_MIN >= snapshot_bytes
}
