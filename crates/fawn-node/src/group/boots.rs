//! Boots of the members of a local cluster: the store's open number, and a random part that each process draws.
//!
//! A store that was restored from a copy, or copied from another directory, repeats open numbers, so its process would
//! pass for an earlier one. Such a store is refused, and so is that of another shard: its copies belong to other
//! chains. An empty store in its place is a replaced disk: an offset lifts its numbers above those in the cluster map,
//! so it joins and receives a copy.
use crate::cluster::NodeError;
use fawn_chain::ClusterMap;
use fawn_ds::internals::Engine;
use fawn_ds::internals::format::manifest::ManifestState;
use fawn_flash::Device;
use fawn_types::{BootId, MemberId, Version};

/// Key of the blob with the member that the store is of, and with the offset of its open numbers; u32 each. No promise
/// or map has this key.
const IDENTITY_KEY: u32 = 1 << 30;

/// Whether the store belongs to a member of a cluster, and not to a standalone server.
pub fn is_cluster_store<D: Device>(engine: &Engine<D>) -> bool {
    engine.blob(IDENTITY_KEY).is_some()
}

/// As [`is_cluster_store`], by the store's manifest.
#[must_use]
pub fn is_cluster_state(state: &ManifestState) -> bool {
    state.blobs.contains_key(&IDENTITY_KEY)
}

/// Returns the boot of a shard on its store, which was just opened. Blocks on the device at the first open of a new
/// store.
///
/// # Errors
/// When the store is of another shard or was restored from a copy, or the device's.
pub(super) fn boot_of<D: Device>(
    engine: &mut Engine<D>,
    (id, random): (MemberId, u32),
    map: Option<&ClusterMap>,
) -> Result<BootId, NodeError> {
    let newest = map.map_or(BootId::default(), |map| map.newest_boot(id)).generation();
    let opens = engine.generation();
    let recorded = engine.blob(IDENTITY_KEY).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok()).map(identity_of);
    if let Some((found, _)) = recorded.filter(|(found, _)| *found != id) {
        return Err(NodeError::OtherMember { expected: id, found });
    }
    let mut offset = recorded.map_or(0, |(_, offset)| offset);
    let number = opens.saturating_add(offset);
    if number <= newest {
        let is_empty = engine.ranges().all(|(range, _)| engine.progress(range).appended == Version::ZERO);
        if !is_empty || offset > 0 {
            return Err(NodeError::Restored { id, opens: number, known: newest });
        }
        offset = newest;
        tracing::warn!(
            %id,
            "the store is new although the cluster knows this shard: it is being copied from the others"
        );
    }
    if recorded != Some((id, offset)) {
        engine.put_blob(IDENTITY_KEY, &[id.0.to_le_bytes(), offset.to_le_bytes()].concat())?;
        engine.sync_all()?;
    }
    Ok(BootId::new(opens.saturating_add(offset), random))
}

fn identity_of(bytes: [u8; 8]) -> (MemberId, u32) {
    let bytes = u64::from_le_bytes(bytes);
    (MemberId(bytes as u32), (bytes >> 32) as u32)
}
