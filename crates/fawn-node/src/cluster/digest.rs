//! Range digests: a checksum of a range's content, equal on equal copies. For checks: blocks on the device.
use super::member_host::MemberHost;
use fawn_ds::internals::{EngineError, Lookup, Scan, ScanStep, View};
use fawn_flash::Device;
use fawn_types::checksum::checksum64;
use fawn_types::{KeyHash, RangeId, TimeMs};

/// Keys per scan step.
const STEP_KEYS: usize = 256;

/// Digest of a copy of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RangeDigest {
    /// Number of keys.
    pub keys: u64,
    /// Order-independent checksum of all keys, values, versions, flags and expiries.
    pub sum: u64,
    /// Records that could not be read, and keys whose records could not: a copy with any equals no copy without.
    pub corrupt: u64,
}

impl<D: Device> MemberHost<D> {
    /// Digest of the committed entries that are not expired at `time`.
    pub(crate) fn digest(&mut self, range: RangeId, time: TimeMs) -> Result<RangeDigest, EngineError> {
        // A key that was sorted between the two parts would count twice, as would one that is overwritten. Nothing is committed
        // meanwhile, because a digest blocks.
        self.engine.hold_runs(true);
        let digest = self.digest_parts(range, time);
        self.engine.hold_runs(false);
        digest
    }

    fn digest_parts(&mut self, range: RangeId, time: TimeMs) -> Result<RangeDigest, EngineError> {
        let mut digest = RangeDigest::default();
        let since = self.engine.progress(range).committed;
        self.digest_part(&mut digest, time, |cursor| Scan::of_log(range, cursor, STEP_KEYS), range)?;
        self.digest_part(&mut digest, time, |cursor| Scan::of_runs(range, cursor, STEP_KEYS, since), range)?;
        Ok(digest)
    }

    fn digest_part(
        &mut self,
        digest: &mut RangeDigest,
        time: TimeMs,
        scan_from: impl Fn(u64) -> Scan,
        range: RangeId,
    ) -> Result<(), EngineError> {
        let mut cursor = 0;
        loop {
            let mut scan = scan_from(cursor);
            while let ScanStep::Read(plan) = self.engine.scan_step(&mut scan, time)? {
                let plan = self.wait_for(plan);
                self.engine.absorb_scan(&mut scan, plan)?;
            }
            digest.corrupt += scan.corrupt.len() as u64;
            for item in &scan.items {
                match self.entry_sum(range, &item.key, time) {
                    Ok(Some(sum)) => {
                        digest.keys += 1;
                        digest.sum = digest.sum.wrapping_add(sum);
                    }
                    Ok(None) => {}
                    Err(EngineError::Corrupt { .. } | EngineError::Device(_)) => digest.corrupt += 1,
                    Err(error) => return Err(error),
                }
            }
            cursor = scan.cursor;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    fn entry_sum(&mut self, range: RangeId, key: &[u8], time: TimeMs) -> Result<Option<u64>, EngineError> {
        let hash = KeyHash::of(self.engine.secret(), key);
        let mut lookup = self.engine.lookup(range, hash, key, View::Committed, time)?;
        loop {
            let plan = match lookup {
                Lookup::Found(entry) => return Ok(Some(sum_of(key, &entry))),
                Lookup::Absent | Lookup::Unsettled => return Ok(None),
                Lookup::Read(plan) => plan,
            };
            let plan = self.wait_for(plan);
            lookup = self.engine.resume(plan, time)?;
        }
    }
}

fn sum_of(key: &[u8], entry: &fawn_types::EntryRef<'_>) -> u64 {
    let meta = [entry.version.as_u64(), u64::from(entry.flags), entry.expires_at_ms].map(u64::to_le_bytes).concat();
    let parts = [checksum64(key), checksum64(entry.value), checksum64(&meta)].map(u64::to_le_bytes).concat();
    checksum64(&parts)
}
