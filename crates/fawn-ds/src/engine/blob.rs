//! Small named blobs in the manifest for higher layers, such as a replica's promises or a cluster's map.
use super::Engine;
use crate::error::EngineError;
use crate::format::manifest::{BLOB_BYTES_MAX, ManifestEdit};
use fawn_flash::Device;

/// Identifies one write of a blob; see [`Engine::is_blob_durable`]. Later tickets compare greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BlobTicket(u64);

impl<D: Device> Engine<D> {
    /// The blob called `key` as last put, durable or not. A blob that recovery found is durable.
    pub fn blob(&self, key: u32) -> Option<&[u8]> {
        self.manifest.state().blobs.get(&key).map(Vec::as_slice)
    }

    /// The names of all blobs, ascending.
    pub fn blob_keys(&self) -> impl Iterator<Item = u32> + '_ {
        self.manifest.state().blobs.keys().copied()
    }

    /// Replaces the blob called `key`; empty `bytes` remove it. The write starts now, or after the manifest write in
    /// flight.
    ///
    /// # Errors
    /// [`EngineError::Poisoned`]; [`EngineError::TooLarge`] past [`BLOB_BYTES_MAX`]; [`EngineError::StoreFull`].
    pub fn put_blob(&mut self, key: u32, bytes: &[u8]) -> Result<BlobTicket, EngineError> {
        self.check_writable()?;
        check_blob(bytes)?;
        self.reserve_manifest(bytes.len())?;
        let end = self.manifest.commit(&[ManifestEdit::Blob { key, bytes: bytes.to_vec() }]);
        self.start_manifest();
        self.device.kick();
        Ok(BlobTicket(end))
    }

    /// Whether the ticket's blob, and all blobs before it, are durable.
    pub fn is_blob_durable(&self, ticket: BlobTicket) -> bool {
        self.manifest.is_durable(ticket.0)
    }
}

pub(super) fn check_blob(bytes: &[u8]) -> Result<(), EngineError> {
    if bytes.len() > BLOB_BYTES_MAX {
        return Err(EngineError::TooLarge { found_bytes: bytes.len(), limit_bytes: BLOB_BYTES_MAX });
    }
    Ok(())
}
