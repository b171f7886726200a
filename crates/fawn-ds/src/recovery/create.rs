//! Creation of a store: its identity, and a manifest that is complete before it gets its name.
use crate::error::OpenError;
use crate::format::manifest::{self, Identity, ManifestState};
use crate::format::{FORMAT_VERSION, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, StoreUuid, segment};
use crate::index::PointerWidth;
use crate::manifest_file::ManifestFile;
use crate::options::Options;
use fawn_flash::Device;
use fawn_types::{HashSecret, KeyHash, Now, TimeMs};

/// Writes a new store's manifest. A directory with segments but no manifest is corrupt, not empty.
pub(super) fn create<D: Device>(device: &mut D, options: &Options, now: Now) -> Result<ManifestFile, OpenError> {
    let refuse = |detail: &str| OpenError::Manifest { file: manifest::FILE_NAME.to_owned(), detail: detail.to_owned() };
    if options.read_only {
        return Err(refuse("missing, and a read-only open creates nothing"));
    }
    if device.list()?.iter().any(|name| segment::is_file_name(name)) {
        return Err(refuse("missing, but segments are there"));
    }
    let bytes = options.segment_bytes;
    if !bytes.is_power_of_two() || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes) {
        let expected = "a power of two from 64 KiB to 1 GiB";
        return Err(OpenError::Option { name: "segment_bytes", found: u64::from(bytes), expected });
    }
    let secret = options.secret.or(options.secret_if_new).ok_or(OpenError::SecretMissing)?;
    let identity = Identity {
        store: store_uuid(&secret, options.number_if_new, now.wall),
        format: FORMAT_VERSION,
        segment_bytes: bytes,
        secret,
        pointers: pointers_of(device, options)?,
    };
    let state =
        ManifestState { identity: Some(identity), clock: Some((now.wall, now.mono)), ..ManifestState::default() };
    ManifestFile::create(device, state)
}

/// A store without a capacity may take the whole device.
fn pointers_of<D: Device>(device: &mut D, options: &Options) -> Result<PointerWidth, OpenError> {
    if let Some(pointers) = options.pointers_if_new {
        return Ok(pointers);
    }
    let capacity_bytes = match options.capacity_bytes {
        Some(bytes) => bytes,
        None => device.free_bytes()?,
    };
    Ok(PointerWidth::for_capacity(capacity_bytes))
}

/// Stores of a cluster or node may share the secret; number and creation time tell them apart.
fn store_uuid(secret: &HashSecret, number: u32, now: TimeMs) -> StoreUuid {
    let mut uuid = [0; 16];
    for (half, out) in uuid.chunks_exact_mut(8).enumerate() {
        let mut input = *b"fawn-ds store ........ .....";
        input[14..22].copy_from_slice(&now.0.to_le_bytes());
        input[23] = half as u8;
        input[24..].copy_from_slice(&number.to_le_bytes());
        out.copy_from_slice(&KeyHash::of(secret, &input).0.to_le_bytes());
    }
    StoreUuid(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_made_at_once_with_one_secret_have_names_of_their_own() {
        let (secret, now) = (HashSecret([7; 16]), TimeMs(1_000));
        let mut names: Vec<_> = (0..64).map(|number| store_uuid(&secret, number, now).0).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 64, "a segment of one would pass for the other's");
    }
}
