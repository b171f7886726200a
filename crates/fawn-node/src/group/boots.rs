//! Boots of the members of a local cluster: the store's open number, and a random part that each process draws.
//!
//! A store that was restored from a copy, or copied from another directory, repeats open numbers, so its process would
//! pass for an earlier one. Such a store is refused. An empty store in its place is a replaced disk: an offset lifts its
//! numbers above those in the cluster map, so it joins and receives a copy.
use crate::cluster::NodeError;
use fawn_chain::ClusterMap;
use fawn_ds::internals::Engine;
use fawn_flash::Device;
use fawn_types::{BootId, MemberId, Version};

/// Key of the blob with the offset of a replaced disk's open numbers. No promise or map has this key.
const OFFSET_KEY: u32 = 1 << 30;

/// Returns the boot of a shard on its store, which was just opened. Blocks on the device at the first open of a replaced
/// disk.
///
/// # Errors
/// When the store was restored from a copy, or the device's.
pub(super) fn boot_of<D: Device>(
    engine: &mut Engine<D>,
    (id, random): (MemberId, u32),
    map: Option<&ClusterMap>,
) -> Result<BootId, NodeError> {
    let newest = map.map_or(BootId::default(), |map| map.newest_boot(id)).generation();
    let opens = engine.generation();
    let offset = engine.blob(OFFSET_KEY).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()).map(u32::from_le_bytes);
    let number = opens.saturating_add(offset.unwrap_or(0));
    if number > newest {
        return Ok(BootId::new(number, random));
    }
    let is_empty = engine.ranges().all(|(range, _)| engine.progress(range).appended == Version::ZERO);
    if !is_empty || offset.is_some() {
        return Err(NodeError::Restored { id, opens: number, known: newest });
    }
    engine.put_blob(OFFSET_KEY, &newest.to_le_bytes())?;
    engine.sync_all()?;
    tracing::warn!(
        %id,
        "the store is new although the cluster knows this shard: it is being copied from the others"
    );
    Ok(BootId::new(opens.saturating_add(newest), random))
}
