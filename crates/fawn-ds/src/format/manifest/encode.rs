//! Manifest encoder: the file's header, one commit, and a whole rewritten file.
use super::edit::EDIT_HEADER_BYTES;
use super::{
    CHECKSUM_AT, COMMIT_EDIT_BYTES_MAX, COMMIT_HEADER_BYTES, COMMIT_MAGIC, HEADER_BYTES, MAGIC, ManifestEdit,
    ManifestHeader, ManifestState,
};
use crate::format::bytes::put;
use crate::format::{FORMAT_VERSION, UNIT_BYTES, round_up_unit};
use fawn_flash::buffer::SECTOR_BYTES;
use fawn_types::checksum::checksum64;

/// Encodes the header of a manifest file.
#[must_use]
pub fn encode_header(header: &ManifestHeader) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    put(&mut out, 0, &MAGIC);
    put(&mut out, 8, &FORMAT_VERSION.to_le_bytes());
    put(&mut out, 16, &header.store.0);
    put(&mut out, 32, &header.rewrite.to_le_bytes());
    let checksum = checksum64(&out[..CHECKSUM_AT]);
    put(&mut out, CHECKSUM_AT, &checksum.to_le_bytes());
    out
}

/// Appends one commit of `edits` to `out`. `offset` is its position in the file, the end of the commit before it;
/// `synced` bytes of the file are synced by now.
///
/// # Panics
/// If there is no edit, there are too many, or the positions contradict each other: a caller's error.
pub fn encode_commit(header: &ManifestHeader, edits: &[ManifestEdit], offset: u64, synced: u64, out: &mut Vec<u8>) {
    assert!(!edits.is_empty(), "a commit changes something");
    assert!(offset >= HEADER_BYTES as u64 && offset.is_multiple_of(UNIT_BYTES as u64), "commits lie on units");
    assert!(synced <= offset, "a commit is not synced before it is written");
    let start = out.len();
    out.resize(start + COMMIT_HEADER_BYTES, 0);
    edits.iter().for_each(|edit| edit.encode(out));
    let edit_bytes = out.len() - start - COMMIT_HEADER_BYTES;
    // A single edit may exceed the bound by its own header. The limit only has to bound a reader's buffers.
    assert!(edit_bytes <= 2 * COMMIT_EDIT_BYTES_MAX, "{edit_bytes} B of edits are too many for one commit");
    let commit = &mut out[start..];
    put(commit, 0, &COMMIT_MAGIC);
    put(commit, 4, &(edit_bytes as u32).to_le_bytes());
    put(commit, 16, &offset.to_le_bytes());
    put(commit, 24, &synced.to_le_bytes());
    let checksum = checksum64(&commit[16..]) ^ header.salt(header.store.fold());
    put(commit, 8, &checksum.to_le_bytes());
    out.resize(start + round_up_unit(COMMIT_HEADER_BYTES + edit_bytes), 0);
}

/// Encodes a whole manifest file of `state`, the `rewrite`-th. The caller writes it to a new file, syncs it, renames it
/// over the old one, and syncs the directory.
///
/// # Panics
/// If the state has no identity: a caller's error.
#[must_use]
pub fn encode_snapshot(state: &ManifestState, rewrite: u64) -> Vec<u8> {
    let Some(identity) = state.identity else { unreachable!("a store has an identity before it has a manifest") };
    let header = ManifestHeader { store: identity.store, rewrite };
    let mut out = encode_header(&header).to_vec();
    let (mut batch, mut batch_bytes) = (Vec::new(), 0);
    let (mut scratch, mut synced) = (Vec::new(), 0);
    for edit in state.snapshot() {
        scratch.clear();
        edit.encode(&mut scratch);
        if batch_bytes + scratch.len() > COMMIT_EDIT_BYTES_MAX {
            let offset = out.len() as u64;
            encode_commit(&header, &batch, offset, synced, &mut out);
            // The file gets its name only after it is synced whole: every commit in it implies that the earlier ones
            // were synced.
            synced = out.len() as u64;
            batch.clear();
            batch_bytes = 0;
        }
        batch_bytes += scratch.len();
        batch.push(edit);
    }
    let offset = out.len() as u64;
    encode_commit(&header, &batch, offset, synced, &mut out);
    out
}

/// The edits, one commit each, to write after a commit that ends at `offset`, so that another sector certifies it.
#[must_use]
pub fn certifying_edits(offset: u64) -> Vec<ManifestEdit> {
    let least = round_up_unit(COMMIT_HEADER_BYTES + EDIT_HEADER_BYTES) as u64;
    let sector = SECTOR_BYTES as u64;
    let mut edits = Vec::new();
    let gap = offset.next_multiple_of(sector) - offset;
    if gap > 0 {
        let gap = if gap < least { gap + sector } else { gap };
        edits.push(ManifestEdit::Pad { bytes: (gap - (COMMIT_HEADER_BYTES + EDIT_HEADER_BYTES) as u64) as u32 });
    }
    edits.push(ManifestEdit::Pad { bytes: 0 });
    edits
}
