//! Dump: visits the newest record of every key in log order, so that a store of any size is read sequentially.
//!
//! The index knows where each key's newest record is, so a record is the newest one exactly if the index, or the overlay
//! before it, points to it. That costs memory accesses only: the log is read once, several large reads ahead. A scan in
//! hash order would take a device read per record.
use super::Engine;
use crate::format::FRAMES_OFFSET;
use crate::format::manifest::ManifestState;
use crate::format::record::{RecordKind, RecordRef, Stored};
use crate::format::walk::{RecordWalk, WalkGap, WalkInput, WalkReport};
use crate::index::Pointer;
use crate::recovery::sequential::SequentialRead;
use fawn_flash::{Device, DeviceError, FileId, IoClass};
use fawn_types::{KeyHash, TimeMs};

/// Reads of 1 MiB in flight.
const READS_IN_FLIGHT: usize = 4;

/// A part of a file whose records, or some of them, are lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostPart {
    /// The segment's file.
    pub file: String,
    /// Its first byte.
    pub from_bytes: u32,
    /// Its end. Intact records may lie between.
    pub to_bytes: u32,
    /// Number of records that were there, if it is known. Some of them may have been replaced by newer ones.
    pub records: Option<u64>,
}

impl LostPart {
    /// All of a file, with an unknown number of records.
    pub(crate) const fn all_of(file: String) -> Self {
        Self { file, from_bytes: 0, to_bytes: 0, records: None }
    }
}

/// Result of a dump.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DumpReport {
    /// Records visited: keys.
    pub records: u64,
    /// Keys that have expired, and were not visited.
    pub expired: u64,
    /// Keys of the index whose record could not be read any more.
    pub unread: u64,
    /// Lost parts of segments that are there, in log order.
    pub lost: Vec<LostPart>,
}

/// Error of a dump.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DumpError<E> {
    /// The visitor's.
    Visitor(E),
    /// The system cannot read for now: records that were not read are not lost.
    Device(DeviceError),
}

impl<E> From<DeviceError> for DumpError<E> {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

/// The segment that a dump reads.
struct DumpSegment {
    slot: u32,
    file: FileId,
    name: String,
    input: WalkInput,
    /// Number of its records, by its seal.
    listed_records: Option<u64>,
}

/// Whether a record is its key's newest, and whether the index points to it.
#[derive(Clone, Copy)]
struct Standing {
    is_newest: bool,
    is_indexed: bool,
}

impl<D: Device> Engine<D> {
    /// Bytes of the log that a dump reads.
    pub fn log_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.end - FRAMES_OFFSET)).sum()
    }

    /// Visits the newest record of every key that has not expired, in log order, with the bytes of the log read so far.
    /// Records that wait for a commit count, because they may have been acknowledged. Corrupt records are passed and
    /// reported. Only for a store opened read-only, with no operation in flight.
    ///
    /// # Errors
    /// The first one, which ends the dump.
    ///
    /// # Panics
    /// If the store can be written.
    pub fn dump<E>(
        &mut self,
        mut visit: impl FnMut(u64, &RecordRef<'_>) -> Result<(), E>,
    ) -> Result<DumpReport, DumpError<E>> {
        assert!(self.options.read_only && self.device.in_flight() == 0, "a dump has the device to itself");
        let (mut report, now) = (DumpReport::default(), self.clock.get());
        let (mut read_bytes, mut indexed) = (0, 0);
        for segment in self.dump_order() {
            let mut failed = None;
            let mut walk = RecordWalk::new(segment.input);
            let range = (u64::from(FRAMES_OFFSET), u64::from(segment.input.end));
            let reads = SequentialRead::new(segment.file, range, READS_IN_FLIGHT, IoClass::Foreground);
            let mut reads = reads.overlaid_by(self.left_tail.of(segment.input.uuid));
            while let Some(bytes) = reads.next(&mut self.device)? {
                read_bytes += bytes.len() as u64;
                let mut take = |offset: u32, stored: &Stored<'_>| {
                    let standing = self.standing(self.segments.pointer(segment.slot, offset), stored);
                    indexed += u64::from(standing.is_indexed);
                    if standing.is_newest && failed.is_none() {
                        failed = dump_record(now, &mut report, read_bytes, &stored.record, &mut visit).err();
                    }
                };
                walk.push(bytes, &mut take);
                if failed.is_some() {
                    reads.settle(&mut self.device);
                    break;
                }
            }
            if let Some(error) = failed {
                return Err(DumpError::Visitor(error));
            }
            report.lost.extend(segment.lost_parts(&walk.finish(&mut |_, _| {})));
        }
        self.dump_runs(&mut report, &mut |report, record| dump_record(now, report, read_bytes, record, &mut visit))?;
        let keys: u64 = self.ranges.iter().map(|range| u64::from(range.index.len())).sum();
        report.unread = keys.saturating_sub(indexed);
        Ok(report)
    }

    fn dump_order(&self) -> Vec<DumpSegment> {
        let mut segments: Vec<_> = self.segments.iter().collect();
        segments.sort_by_key(|segment| segment.sequence);
        let ManifestState { segments: listed, ends_of_log, .. } = self.manifest.state();
        let dumped = segments.into_iter().map(|segment| {
            let seal = listed.get(&segment.slot).and_then(|entry| entry.seal.as_ref());
            let end_of_log = ends_of_log[segment.stream];
            let written = match segment.sequence == end_of_log.sequence {
                _ if seal.is_some() || self.missing.is_none() => segment.end,
                true => end_of_log.offset,
                false => FRAMES_OFFSET,
            };
            DumpSegment {
                slot: segment.slot,
                file: segment.file,
                name: segment.name.clone(),
                input: WalkInput { uuid: segment.uuid, end: segment.end, written },
                listed_records: seal.map(|seal| seal.facts.records()),
            }
        });
        dumped.collect()
    }

    fn standing(&self, pointer: Pointer, stored: &Stored<'_>) -> Standing {
        let no = Standing { is_newest: false, is_indexed: false };
        let is_tombstone = stored.record.kind == RecordKind::Tombstone && self.sorted.is_active();
        if stored.record.kind != RecordKind::Put && !is_tombstone {
            return no;
        }
        let Some((at, _)) = self.owner_of(stored.envelope.number, stored.record.key) else { return no };
        let hash = KeyHash::of(&self.secret, stored.record.key);
        let is_indexed = self.candidates(at, hash).any(|candidate| candidate == pointer);
        let entry = self.overlay.find(at, hash.0, || self.name_of(hash.0, stored.record.key).ident);
        let newest = entry.and_then(|entry| entry.newest_pending().copied().or(entry.committed));
        Standing { is_newest: newest.map_or(is_indexed, |newest| newest.pointer == pointer), is_indexed }
    }
}

fn dump_record<E>(
    now: TimeMs,
    report: &mut DumpReport,
    read_bytes: u64,
    record: &RecordRef<'_>,
    visit: &mut impl FnMut(u64, &RecordRef<'_>) -> Result<(), E>,
) -> Result<(), E> {
    if record.kind == RecordKind::Tombstone {
        return Ok(());
    }
    if record.expires_at_ms != 0 && now.0 >= record.expires_at_ms {
        report.expired += 1;
        return Ok(());
    }
    report.records += 1;
    visit(read_bytes, record)
}

impl DumpSegment {
    /// The gaps that hid records. A seal lists how many there were in the whole segment: gaps of unknown content become
    /// one part then, or none if nothing is missing.
    fn lost_parts(&self, walked: &WalkReport) -> Vec<LostPart> {
        let part = |gap: &WalkGap, records| LostPart {
            file: self.name.clone(),
            from_bytes: gap.from,
            to_bytes: gap.to,
            records,
        };
        let (known, unknown): (Vec<&WalkGap>, Vec<&WalkGap>) =
            walked.gaps.iter().partition(|gap| gap.records.is_some());
        let counted = known.iter().map(|gap| part(gap, gap.records));
        let mut parts: Vec<_> = match (self.listed_records, &unknown[..]) {
            (Some(listed), [first, ..]) => {
                let missing = listed.saturating_sub(walked.facts.records());
                let elsewhere: u64 = known.iter().filter_map(|gap| gap.records).sum();
                let whole = WalkGap { to: unknown[unknown.len() - 1].to, ..**first };
                counted.chain([part(&whole, Some(missing.saturating_sub(elsewhere)))]).collect()
            }
            _ => counted.chain(unknown.iter().map(|gap| part(gap, None))).collect(),
        };
        parts.retain(|part| part.records != Some(0));
        parts.sort_by_key(|part| part.from_bytes);
        parts
    }
}
