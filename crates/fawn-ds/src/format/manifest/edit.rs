//! Manifest edits and their encoding: `tag u8, zero u8 ×3, body_bytes u32, body`.
use super::{Ancestor, RunEntry, SegmentSeal};
use crate::format::bytes::{array, is_zero, u32_at, u64_at};
use crate::format::segment::StreamKind;
use crate::format::{RangeNumber, SegmentUuid, StoreUuid, Watermark};
use crate::index::PointerWidth;
use fawn_flash::buffer::SECTOR_BYTES;
use fawn_types::{Epoch, HashSecret, KeyRange, MonoMs, RangeId, RingKey, TimeMs, Version};

/// Length of an edit's header, bytes.
pub(super) const EDIT_HEADER_BYTES: usize = 8;

/// One change of the store's state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ManifestEdit {
    /// The store's permanent properties; the first edit of every manifest. Tag 1.
    Identity {
        /// The store's UUID.
        store: StoreUuid,
        /// Format number of its segments.
        format: u32,
        /// Length of each segment, bytes.
        segment_bytes: u32,
        /// Secret of the key hashes.
        secret: HashSecret,
        /// Length of the pointers into its log.
        pointers: PointerWidth,
    },
    /// The store was opened for writing, for the n-th time. Tag 2.
    Generation(u32),
    /// A key range was added. Tag 3.
    AddRange {
        /// Id of the range.
        range: RangeId,
        /// Boundaries of its keys.
        keys: KeyRange,
    },
    /// A key range was removed. Tag 4.
    DropRange {
        /// Id of the range.
        range: RangeId,
    },
    /// A segment was created and may take data. Tag 5.
    AddSegment {
        /// Slot of the segment.
        slot: u32,
        /// UUID of the segment.
        uuid: SegmentUuid,
        /// Its position among all segments of the store.
        sequence: u64,
        /// The stream that it belongs to.
        stream: StreamKind,
    },
    /// A segment is complete and synced. Tag 6.
    SealSegment {
        /// Slot of the segment.
        slot: u32,
        /// Its end and its records' facts.
        seal: SegmentSeal,
    },
    /// A segment was dropped; its file may be unlinked once this edit is synced. Tag 7.
    DropSegment {
        /// Slot of the segment.
        slot: u32,
        /// UUID of the segment.
        uuid: SegmentUuid,
    },
    /// A range was emptied: its records up to this version are invalidated. Tag 8.
    ClearRange {
        /// Id of the range.
        range: RangeId,
        /// The last version that is invalidated.
        version: Version,
    },
    /// Bytes of a higher layer, such as a replica's promises; no bytes: removed. Tag 9.
    Blob {
        /// Name of the blob.
        key: u32,
        /// Content of the blob.
        bytes: Vec<u8>,
    },
    /// The range begins from scratch under a new local number: records under earlier numbers are invalidated. Records up
    /// to the base are transferred ones. All are valid once [`ManifestEdit::RangeWhole`] follows. Tag 10.
    BeginRange {
        /// Id of the range.
        range: RangeId,
        /// Its new local number, above every earlier one of the store.
        number: RangeNumber,
        /// Sequence number of a segment: earlier ones have no record under this number.
        since: u64,
        /// The range's own history continues after this version.
        base: Version,
    },
    /// All transferred records of a range are in the log, synced; a new range has none. Tag 11.
    RangeWhole {
        /// Id of the range.
        range: RangeId,
    },
    /// No change. Fills the file, so that a certifying commit lies in another sector than the commits before it. Tag
    /// 12.
    Pad {
        /// Number of zeros.
        bytes: u32,
    },
    /// A stream of the log ended here when the store was closed or idle, and was synced up to here. Tag 13.
    EndOfLog {
        /// The stream.
        stream: StreamKind,
        /// End of its last frame.
        end: Watermark,
    },
    /// The expiry clock has reached this time. Tag 14.
    Clock {
        /// Expiry time, ms since the Unix epoch.
        time: TimeMs,
        /// The machine's monotonic clock at that time, ms.
        mono: MonoMs,
    },
    /// The store is the range's only serving member in this epoch: the epoch's records are committed wherever an
    /// opening finds them, and no commit marks are written. Tag 15.
    BeginSoleEpoch {
        /// The range's number.
        range: RangeId,
        /// The epoch. Above all earlier ones of the range; its records follow this edit.
        epoch: Epoch,
        /// End of the range's log before the epoch, all of it committed.
        base: Version,
    },
    /// The range's sole epochs are over: records above `base` need commit marks. Tag 16.
    EndSoleEpoch {
        /// The range's number.
        range: RangeId,
        /// Newest version committed in them, synced.
        base: Version,
    },
    /// Local numbers up to this one were assigned. Only in a rewritten manifest, if no listed range has the number. Tag
    /// 17.
    LastNumber(RangeNumber),
    /// A checkpoint is complete and synced, and so is the log as far as the checkpoint knows it. Tag 18.
    AddCheckpoint {
        /// UUID of the checkpoint.
        uuid: SegmentUuid,
        /// Length of its file up to the end of its last piece, bytes.
        len_bytes: u64,
    },
    /// A checkpoint is not used any more; its file may be unlinked once this edit is synced. Tag 19.
    DropCheckpoint {
        /// UUID of the checkpoint.
        uuid: SegmentUuid,
    },
    /// A range became two, whose records so far are the ones under its number. Tag 20.
    SplitRange {
        /// The range that goes.
        parent: RangeId,
        /// The new range below the boundary.
        left: RangeId,
        /// Its local number.
        left_number: RangeNumber,
        /// The new range above the boundary.
        right: RangeId,
        /// Its local number, above the other one.
        right_number: RangeNumber,
        /// As of [`ManifestEdit::BeginRange`], for both.
        since: u64,
        /// The parent's newest version: all of its records are committed, or were rolled back.
        base: Version,
        /// The first ring key of the range above.
        boundary: RingKey,
    },
    /// Two neighbouring ranges became one, whose records so far are the ones under their numbers. Tag 21.
    MergeRanges {
        /// The lower range, which goes.
        left: RangeId,
        /// The upper range, which goes.
        right: RangeId,
        /// The new range.
        into: RangeId,
        /// Its local number.
        number: RangeNumber,
        /// As of [`ManifestEdit::BeginRange`].
        since: u64,
        /// The newest version of both.
        base: Version,
    },
    /// A range's whole lineage. In a rewritten manifest, and when numbers are left out that no segment has any more.
    /// Tag 22.
    Lineage {
        /// Id of the range.
        range: RangeId,
        /// The split and merged ranges whose records it has.
        ancestors: Vec<Ancestor>,
    },
    /// Deletes have index entries from now on, because there may be runs. Tag 26.
    IndexDeletes,
    /// A run is complete and synced: its records count from now on. Tag 23.
    AddRun(RunEntry),
    /// A run's records are in others, or count for no range; its file may be unlinked once this edit is synced. Tag 24.
    DropRun {
        /// UUID of the run.
        uuid: SegmentUuid,
    },
    /// The records of a sealed segment that counted are in a run, or were copied: all only hide older ones now. Tag 25.
    SortSegment {
        /// Slot of the segment.
        slot: u32,
        /// UUID of the segment.
        uuid: SegmentUuid,
    },
}

impl ManifestEdit {
    const fn tag(&self) -> u8 {
        match self {
            Self::Identity { .. } => 1,
            Self::Generation(_) => 2,
            Self::AddRange { .. } => 3,
            Self::DropRange { .. } => 4,
            Self::AddSegment { .. } => 5,
            Self::SealSegment { .. } => 6,
            Self::DropSegment { .. } => 7,
            Self::ClearRange { .. } => 8,
            Self::Blob { .. } => 9,
            Self::BeginRange { .. } => 10,
            Self::RangeWhole { .. } => 11,
            Self::Pad { .. } => 12,
            Self::EndOfLog { .. } => 13,
            Self::Clock { .. } => 14,
            Self::BeginSoleEpoch { .. } => 15,
            Self::EndSoleEpoch { .. } => 16,
            Self::LastNumber(_) => 17,
            Self::AddCheckpoint { .. } => 18,
            Self::DropCheckpoint { .. } => 19,
            Self::SplitRange { .. } => 20,
            Self::MergeRanges { .. } => 21,
            Self::Lineage { .. } => 22,
            Self::AddRun(_) => 23,
            Self::DropRun { .. } => 24,
            Self::SortSegment { .. } => 25,
            Self::IndexDeletes => 26,
        }
    }

    /// Whether only the manifest would show the loss of this edit, so that another commit has to certify it. The loss
    /// of any other edit shows in frames of a later generation, or in segments that are unlisted or missing.
    pub(crate) const fn needs_certifying(&self) -> bool {
        use ManifestEdit::{
            AddRange, BeginRange, BeginSoleEpoch, Blob, ClearRange, DropRange, EndSoleEpoch, Lineage, MergeRanges,
            RangeWhole, SplitRange,
        };
        let is_of_range = matches!(self, AddRange { .. } | DropRange { .. } | ClearRange { .. });
        let is_of_beginning = matches!(self, BeginRange { .. } | RangeWhole { .. });
        let is_of_epoch = matches!(self, BeginSoleEpoch { .. } | EndSoleEpoch { .. });
        let is_of_lineage = matches!(self, SplitRange { .. } | MergeRanges { .. } | Lineage { .. });
        is_of_range || is_of_beginning || is_of_epoch || is_of_lineage || matches!(self, Blob { .. })
    }

    /// Whether the edit gives the records of a range to others, which have new numbers.
    pub(crate) const fn assigns_heirs(&self) -> bool {
        matches!(self, Self::SplitRange { .. } | Self::MergeRanges { .. })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[self.tag(), 0, 0, 0, 0, 0, 0, 0]);
        match self {
            Self::Identity { store, format, segment_bytes, secret, pointers } => {
                out.extend_from_slice(&store.0);
                out.extend_from_slice(&format.to_le_bytes());
                out.extend_from_slice(&segment_bytes.to_le_bytes());
                out.extend_from_slice(&secret.0);
                out.extend_from_slice(&pointers.bits().to_le_bytes());
            }
            Self::IndexDeletes => {}
            Self::Generation(generation) => out.extend_from_slice(&generation.to_le_bytes()),
            Self::AddRange { range, keys } => {
                out.extend_from_slice(&range.0.to_le_bytes());
                out.extend_from_slice(&keys.start.0);
                // The ring's end has no ring key; an absent key encodes it.
                out.extend_from_slice(keys.end.as_ref().map_or(&[][..], |end| &end.0));
            }
            Self::DropRange { range } | Self::RangeWhole { range } => out.extend_from_slice(&range.0.to_le_bytes()),
            Self::AddSegment { slot, uuid, sequence, stream } => {
                out.extend_from_slice(&slot.to_le_bytes());
                out.extend_from_slice(&uuid.0);
                out.extend_from_slice(&sequence.to_le_bytes());
                out.extend_from_slice(&(*stream as u32).to_le_bytes());
            }
            Self::SealSegment { slot, seal } => {
                out.extend_from_slice(&slot.to_le_bytes());
                seal.encode(out);
            }
            Self::ClearRange { range, version } | Self::EndSoleEpoch { range, base: version } => {
                out.extend_from_slice(&range.0.to_le_bytes());
                out.extend_from_slice(&version.as_u64().to_le_bytes());
            }
            Self::BeginSoleEpoch { range, epoch, base } => {
                out.extend_from_slice(&range.0.to_le_bytes());
                out.extend_from_slice(&epoch.get().to_le_bytes());
                out.extend_from_slice(&base.as_u64().to_le_bytes());
            }
            Self::BeginRange { range, number, since, base } => {
                out.extend_from_slice(&range.0.to_le_bytes());
                out.extend_from_slice(&number.0.to_le_bytes());
                out.extend_from_slice(&since.to_le_bytes());
                out.extend_from_slice(&base.as_u64().to_le_bytes());
            }
            Self::LastNumber(number) => out.extend_from_slice(&number.0.to_le_bytes()),
            Self::DropSegment { .. }
            | Self::SortSegment { .. }
            | Self::AddCheckpoint { .. }
            | Self::DropCheckpoint { .. }
            | Self::AddRun(_)
            | Self::DropRun { .. } => self.encode_file(out),
            Self::EndOfLog { stream, end } => {
                out.extend_from_slice(&end.sequence.to_le_bytes());
                out.extend_from_slice(&end.offset.to_le_bytes());
                out.extend_from_slice(&(*stream as u32).to_le_bytes());
            }
            Self::Clock { time, mono } => out.extend([time.0, mono.0].into_iter().flat_map(u64::to_le_bytes)),
            Self::SplitRange { .. } | Self::MergeRanges { .. } | Self::Lineage { .. } => self.encode_lineage(out),
            Self::Pad { bytes } => out.resize(out.len() + *bytes as usize, 0),
            Self::Blob { key, bytes } => {
                assert!(bytes.len() <= BLOB_MAX, "a blob of {} B is past the limit of {BLOB_MAX}", bytes.len());
                out.extend_from_slice(&key.to_le_bytes());
                out.extend_from_slice(bytes);
            }
        }
        let body_bytes = (out.len() - start - EDIT_HEADER_BYTES) as u32;
        out[start + 4..start + 8].copy_from_slice(&body_bytes.to_le_bytes());
    }

    /// Encodes the body of an edit that changes lineages.
    fn encode_lineage(&self, out: &mut Vec<u8>) {
        let mut put = |words: &[u32]| words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        match self {
            Self::SplitRange { parent, left, left_number, right, right_number, since, base, boundary } => {
                put(&[parent.0, left.0, left_number.0, right.0, right_number.0]);
                out.extend_from_slice(&since.to_le_bytes());
                out.extend_from_slice(&base.as_u64().to_le_bytes());
                out.extend_from_slice(&boundary.0);
            }
            Self::MergeRanges { left, right, into, number, since, base } => {
                put(&[left.0, right.0, into.0, number.0]);
                out.extend_from_slice(&since.to_le_bytes());
                out.extend_from_slice(&base.as_u64().to_le_bytes());
            }
            Self::Lineage { range, ancestors } => {
                put(&[range.0]);
                ancestors.iter().for_each(|ancestor| ancestor.encode(out));
            }
            _ => unreachable!("the caller encodes the others"),
        }
    }

    /// Decodes the body of an edit that changes lineages.
    fn decode_lineage(tag: u8, body: &[u8]) -> Option<Self> {
        Some(match (tag, body.len()) {
            (20, 56) => Self::SplitRange {
                parent: RangeId(u32_at(body, 0)),
                left: RangeId(u32_at(body, 4)),
                left_number: RangeNumber(u32_at(body, 8)),
                right: RangeId(u32_at(body, 12)),
                right_number: RangeNumber(u32_at(body, 16)),
                since: u64_at(body, 20),
                base: Version::from_u64(u64_at(body, 28)),
                boundary: RingKey(array(body, 36)),
            },
            (21, 32) => Self::MergeRanges {
                left: RangeId(u32_at(body, 0)),
                right: RangeId(u32_at(body, 4)),
                into: RangeId(u32_at(body, 8)),
                number: RangeNumber(u32_at(body, 12)),
                since: u64_at(body, 16),
                base: Version::from_u64(u64_at(body, 24)),
            },
            (22, 4..) => {
                let (ancestors, rest) = body[4..].as_chunks::<{ Ancestor::BYTES }>();
                let ancestors = ancestors.iter().map(Ancestor::decode).collect::<Option<_>>()?;
                return rest.is_empty().then_some(Self::Lineage { range: RangeId(u32_at(body, 0)), ancestors });
            }
            _ => return None,
        })
    }

    /// Encodes the body of an edit that names a file by its UUID.
    fn encode_file(&self, out: &mut Vec<u8>) {
        match self {
            Self::DropSegment { slot, uuid } | Self::SortSegment { slot, uuid } => {
                out.extend_from_slice(&slot.to_le_bytes());
                out.extend_from_slice(&uuid.0);
            }
            Self::AddCheckpoint { uuid, len_bytes } => {
                out.extend_from_slice(&uuid.0);
                out.extend_from_slice(&len_bytes.to_le_bytes());
            }
            Self::AddRun(RunEntry { uuid, file_bytes, age }) => {
                out.extend_from_slice(&uuid.0);
                out.extend_from_slice(&file_bytes.to_le_bytes());
                out.extend_from_slice(&age.to_le_bytes());
            }
            Self::DropCheckpoint { uuid } | Self::DropRun { uuid } => out.extend_from_slice(&uuid.0),
            _ => unreachable!("the caller encodes the others"),
        }
    }

    /// Decodes the body of an edit that names a file by its UUID, except edit 7.
    fn decode_file(tag: u8, body: &[u8]) -> Option<Self> {
        Some(match (tag, body.len()) {
            (18, 24) => Self::AddCheckpoint { uuid: SegmentUuid(array(body, 0)), len_bytes: u64_at(body, 16) },
            (19, 16) => Self::DropCheckpoint { uuid: SegmentUuid(array(body, 0)) },
            (23, 32) => Self::AddRun(RunEntry {
                uuid: SegmentUuid(array(body, 0)),
                file_bytes: u64_at(body, 16),
                age: u64_at(body, 24),
            }),
            (24, 16) => Self::DropRun { uuid: SegmentUuid(array(body, 0)) },
            (25, 20) => Self::SortSegment { slot: u32_at(body, 0), uuid: SegmentUuid(array(body, 4)) },
            _ => return None,
        })
    }

    /// The edit at the start of `bytes` and its length; `None` if this format has no such edit.
    pub(super) fn decode(bytes: &[u8]) -> Option<(Self, usize)> {
        let (header, rest) = bytes.split_at_checked(EDIT_HEADER_BYTES)?;
        let body = rest.get(..u32_at(header, 4) as usize)?;
        if header[1..4] != [0; 3] {
            return None;
        }
        Some((Self::decode_body(header[0], body)?, EDIT_HEADER_BYTES + body.len()))
    }

    /// Decodes the body of an identity, of 40 or 44 bytes. Builds before the first release wrote no width: their pointers
    /// have 32 bits.
    fn decode_identity(body: &[u8]) -> Option<Self> {
        Some(Self::Identity {
            store: StoreUuid(array(body, 0)),
            format: u32_at(body, 16),
            segment_bytes: u32_at(body, 20),
            secret: HashSecret(array(body, 24)),
            pointers: match body.len() {
                40 => PointerWidth::Bits32,
                _ => PointerWidth::from_bits(u32_at(body, 40))?,
            },
        })
    }

    /// Each tag fixes its body lengths, so that every access within an arm is in bounds.
    fn decode_body(tag: u8, body: &[u8]) -> Option<Self> {
        Some(match (tag, body.len()) {
            (1, 40 | 44) => return Self::decode_identity(body),
            (2, 4) => Self::Generation(u32_at(body, 0)),
            (3, 24 | 44) => Self::AddRange {
                range: RangeId(u32_at(body, 0)),
                keys: KeyRange {
                    start: RingKey(array(body, 4)),
                    end: (body.len() == 44).then(|| RingKey(array(body, 24))),
                },
            },
            (4, 4) => Self::DropRange { range: RangeId(u32_at(body, 0)) },
            (5, 32) => Self::AddSegment {
                slot: u32_at(body, 0),
                uuid: SegmentUuid(array(body, 4)),
                sequence: u64_at(body, 20),
                stream: StreamKind::from_u32(u32_at(body, 28))?,
            },
            (6, SEAL_BODY_MIN..) => Self::SealSegment { slot: u32_at(body, 0), seal: SegmentSeal::decode(&body[4..])? },
            (7, 20) => Self::DropSegment { slot: u32_at(body, 0), uuid: SegmentUuid(array(body, 4)) },
            (8, 12) => {
                Self::ClearRange { range: RangeId(u32_at(body, 0)), version: Version::from_u64(u64_at(body, 4)) }
            }
            (10, 24) => Self::BeginRange {
                range: RangeId(u32_at(body, 0)),
                number: RangeNumber(u32_at(body, 4)),
                since: u64_at(body, 8),
                base: Version::from_u64(u64_at(body, 16)),
            },
            (11, 4) => Self::RangeWhole { range: RangeId(u32_at(body, 0)) },
            (12, 0..=PAD_MAX) if is_zero(body) => Self::Pad { bytes: body.len() as u32 },
            (13, 16) => Self::EndOfLog {
                stream: StreamKind::from_u32(u32_at(body, 12))?,
                end: Watermark { sequence: u64_at(body, 0), offset: u32_at(body, 8) },
            },
            (14, 16) => Self::Clock { time: TimeMs(u64_at(body, 0)), mono: MonoMs(u64_at(body, 8)) },
            (15, 16) => Self::BeginSoleEpoch {
                range: RangeId(u32_at(body, 0)),
                epoch: Epoch::new(u32_at(body, 4))?,
                base: Version::from_u64(u64_at(body, 8)),
            },
            (16, 12) => {
                Self::EndSoleEpoch { range: RangeId(u32_at(body, 0)), base: Version::from_u64(u64_at(body, 4)) }
            }
            (17, 4) => Self::LastNumber(RangeNumber(u32_at(body, 0))),
            (18 | 19 | 23..=25, _) => return Self::decode_file(tag, body),
            (20..=22, _) => return Self::decode_lineage(tag, body),
            (26, 0) => Self::IndexDeletes,
            (9, 4..=BLOB_BODY_MAX) => Self::Blob { key: u32_at(body, 0), bytes: body[4..].to_vec() },
            _ => return None,
        })
    }
}

const SEAL_BODY_MIN: usize = 4 + SegmentSeal::BYTES_MIN;
const BLOB_MAX: usize = super::BLOB_BYTES_MAX;
const BLOB_BODY_MAX: usize = 4 + BLOB_MAX;
const PAD_MAX: usize = 2 * SECTOR_BYTES;
