//! Copies of a store, also while another process or thread uses it: the base of backups and of their restoration.
//!
//! A copy is a state that a crash could have left, and opens like one. It is taken from the files alone:
//! 1. The manifest is read, and every file that it lists is held: linked, or kept open.
//! 2. The frames of segments that are not sealed are copied up to their end, the survivors' before the foreground's, and
//!    later segments before earlier ones.
//! 3. Sealed segments are copied, if they could not be linked. The copy gets the manifest of step 1.
//!
//! The content is thus newer than the manifest, never older: dropped files are held. A file for which no descriptor was left is not
//! held; if it is dropped before its copy, another attempt follows. A frame proves that
//! those before it were synced, so it is copied before them. A copied survivor was moved out of a held segment: to be
//! cleaned, a segment must be sealed, and then the manifest lists its successor. So the attempt counts only if at
//! most one segment was added to the foreground before the survivors were copied, dropped ones included.
mod dirs;

pub use dirs::{Sharing, copy_dir};

use crate::check::holds_newer_data;
use crate::error::OpenError;
use crate::format::checkpoint;
use crate::format::manifest::{self, ManifestEdit, ManifestError, ManifestState, ManifestVerdict, SegmentEntry};
use crate::format::record::Stored;
use crate::format::run;
use crate::format::scan::{ScanInput, ScanReport, Scanner};
use crate::format::segment::{self, HEADER_BYTES, SegmentHeader, StreamKind};
use crate::format::{HeaderError, SegmentUuid, Watermark};
use crate::manifest_file::ManifestFile;
use crate::recovery::confirm::frame_at_end;
use crate::recovery::io::Io;
use crate::recovery::left_tail::{SegmentTail, TailFrames};
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, Device, DeviceError, FileId, IoClass};
use fawn_types::Epoch;
use std::collections::{BTreeMap, BTreeSet};

/// Directory of an unfinished copy in the directory that it is for; or a file, which marks the directory itself as one.
pub const PARTIAL_NAME: &str = "copy.partial";
/// Attempts in a row that leave no fewer files to copy than any before. All but the first read only what was written since the
/// one before.
const STALLED_ATTEMPTS_MAX: u32 = 64;
/// The bytes are of no I/O class of a server: the devices are the copy's own.
const CLASS: IoClass = IoClass::Recovery;

/// Outcome of an attempt to give a complete file a second name in the copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linked {
    /// It has the name.
    Done,
    /// The file does not exist any more.
    Gone,
    /// The file system cannot: it is copied.
    Refused,
}

/// Parameters of a copy.
pub struct CopyOptions<'o> {
    /// Gives a file of the source the same name in the target.
    pub link: &'o mut dyn FnMut(&str) -> Linked,
    /// Receives the bytes copied so far, and how many there will be.
    pub progress: &'o mut dyn FnMut(u64, u64),
    /// Length of one read, bytes; a multiple of a page.
    pub piece_bytes: u64,
    /// Added to the number of opens, or to the newest epoch if that is higher: the copy's versions and the names of its
    /// segments are others than those that the source gives out later.
    pub skip_generations: u32,
}

/// Result of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CopyReport {
    /// Segments.
    pub segments: u64,
    /// Files that the copy shares with the source.
    pub linked_files: u64,
    /// Bytes in files of its own, without the manifest.
    pub copied_bytes: u64,
    /// Attempts to find a state to copy.
    pub attempts: u32,
    /// Generations that the copy has left: each opening and each copy of it uses some up.
    pub generations_left: u32,
}

/// Error of a copy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// A device returned an error.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// The source has no manifest.
    #[error("{dir} holds no store: it has no manifest")]
    NoStore {
        /// The source's directory.
        dir: String,
    },
    /// The source is damaged.
    #[error("{file}: {detail}; `fawn check` tells what else is damaged, nothing was changed")]
    Damaged {
        /// The file's name.
        file: String,
        /// The fault.
        detail: String,
    },
    /// The source is of a format that this code does not read.
    #[error("{file}: {error}")]
    Format {
        /// The file's name.
        file: String,
        /// The format, and what to do.
        error: HeaderError,
    },
    /// The store changed during every attempt.
    #[error("the store changed during each of {attempts} attempts to copy it; try again when less is written")]
    Unsettled {
        /// The number of attempts.
        attempts: u32,
    },
    /// The copy's generation would be past the last one.
    #[error("the store's generations are used up; dump it, and load the dump into a new one")]
    UsedUp,
}

/// Why an attempt ended without a copy. The same one twice in a row is damage, not a change.
#[derive(PartialEq, Eq)]
enum Obstacle {
    Damage { file: String, detail: String },
    Changed,
}

/// An attempt's result.
type Attempt<T> = Result<Result<T, Obstacle>, CopyError>;

enum Held {
    Linked,
    /// Copied whole: so many bytes.
    Copied(u64),
    Open(FileId),
    /// Of a segment that was not sealed: the file, and its copy so far.
    Begun(FileId, BegunCopy),
}

/// The valid frames of a segment, up to their end when they were last looked at.
struct BegunCopy {
    to: FileId,
    scanned: ScanReport,
}

struct Copier<'c, 'o, S, T> {
    source: &'c mut S,
    target: &'c mut T,
    options: &'c mut CopyOptions<'o>,
    held: BTreeMap<String, Held>,
    tail: TailFrames,
    report: CopyReport,
    /// Bytes of all files that are copied.
    planned_bytes: u64,
    /// Names of checkpoints that two attempts have found listed and missing.
    lost_checkpoints: BTreeSet<String>,
    /// Listed files that neither were linked nor copied whole by the begin of the last attempt.
    files_left: usize,
}

/// Copies the store in the source's directory into the target's, which is empty. The source may be in use; nothing
/// there is changed. The manifest comes last: without one, the target is no store.
///
/// # Errors
/// [`CopyError`]. The target is incomplete then.
pub fn copy_store<S: Device, T: Device>(
    source: &mut S,
    target: &mut T,
    options: &mut CopyOptions<'_>,
) -> Result<CopyReport, CopyError> {
    let (held, tail, report) = (BTreeMap::new(), TailFrames::default(), CopyReport::default());
    let (lost_checkpoints, files_left) = (BTreeSet::new(), usize::MAX);
    let mut copier =
        Copier { source, target, options, held, tail, report, planned_bytes: 0, lost_checkpoints, files_left };
    let mut state = copier.settle()?;
    // The epochs of a repaired store are ahead of its opens.
    let epochs = state.ranges.values().filter_map(|range| Some(range.sole?.epoch.get()));
    let newest = epochs.fold(state.generation, u32::max);
    let generation = newest.checked_add(copier.options.skip_generations).ok_or(CopyError::UsedUp)?;
    if generation > state.generation {
        Epoch::new(generation).ok_or(CopyError::UsedUp)?;
        apply(&mut state, &ManifestEdit::Generation(generation));
    }
    copier.report.generations_left = Epoch::MAX.get().saturating_sub(generation);
    copier.report.segments = state.segments.len() as u64;
    let report = copier.report;
    match ManifestFile::create(target, state) {
        Ok(_) => Ok(report),
        Err(OpenError::Device(error)) => Err(error.into()),
        Err(error) => Err(damaged(manifest::FILE_NAME, error)),
    }
}

fn damaged(file: &str, detail: impl ToString) -> CopyError {
    CopyError::Damaged { file: file.to_owned(), detail: detail.to_string() }
}

fn apply(state: &mut ManifestState, edit: &ManifestEdit) {
    if let Err(error) = state.apply(edit) {
        unreachable!("a copy contradicts the manifest it read: {error}")
    }
}

/// Whether a manifest that follows `before` admits content that was written by then: nothing has changed that records
/// depend on. A clear is in the log too.
fn admits(before: &ManifestState, after: &ManifestState) -> bool {
    let ranges = |state: &ManifestState| {
        let of = |range: &manifest::ManifestRange| (range.keys, range.beginning, range.sole);
        state.ranges.iter().map(|(&id, range)| (id, of(range))).collect::<Vec<_>>()
    };
    before.identity == after.identity
        && before.generation == after.generation
        && before.last_number == after.last_number
        && ranges(before) == ranges(after)
}

/// Segments that were added to the foreground after `before`, at most. The numbers of those that are listed nowhere count too:
/// a segment that was dropped again may have been the foreground's.
fn added_foreground(before: &ManifestState, after: &ManifestState) -> u64 {
    let is_of_survivors =
        |entry: &&SegmentEntry| entry.stream == StreamKind::Survivors && entry.sequence > before.last_sequence;
    let of_survivors = after.segments.values().filter(is_of_survivors).count() as u64;
    after.last_sequence.saturating_sub(before.last_sequence + of_survivors)
}

impl<S: Device, T: Device> Copier<'_, '_, S, T> {
    /// Copies all files of one manifest. Returns the manifest's state, with the ends of what was copied.
    fn settle(&mut self) -> Result<ManifestState, CopyError> {
        let (mut last, mut fewest_left, mut stalled_attempts) = (None, usize::MAX, 0);
        while stalled_attempts < STALLED_ATTEMPTS_MAX {
            self.report.attempts += 1;
            let obstacle = match self.attempt()? {
                Ok(state) => match self.copy_complete(&state)? {
                    Ok(()) => return Ok(state),
                    Err(obstacle) => obstacle,
                },
                Err(obstacle) => obstacle,
            };
            if let Obstacle::Damage { file, detail } = &obstacle
                && last.as_ref() == Some(&obstacle)
            {
                let is_of_checkpoint = checkpoint::is_file_name(file) && obstacle == missing(file);
                if !is_of_checkpoint || !self.lost_checkpoints.insert(file.clone()) {
                    return Err(damaged(file, detail));
                }
            }
            last = Some(obstacle);
            stalled_attempts = if self.files_left < fewest_left { 0 } else { stalled_attempts + 1 };
            fewest_left = fewest_left.min(self.files_left);
        }
        Err(CopyError::Unsettled { attempts: self.report.attempts })
    }

    /// Holds all files of one manifest, and copies those that are not complete.
    fn attempt(&mut self) -> Attempt<ManifestState> {
        // Before the manifest, which lists every segment that has a frame by now.
        let names = self.source.list()?;
        let mut state = match self.read_state()? {
            Ok(state) => state,
            Err(obstacle) => return Ok(Err(obstacle)),
        };
        self.leave_out_lost(&mut state);
        if let Err(obstacle) = self.hold_all(&state)? {
            return Ok(Err(obstacle));
        }
        self.report.copied_bytes = 0;
        let unsealed = state.segments.iter().filter(|(_, entry)| entry.seal.is_none());
        let mut unsealed: Vec<_> = unsealed.map(|(&slot, entry)| (slot, entry.clone())).collect();
        unsealed.sort_by_key(|(_, entry)| core::cmp::Reverse(entry.sequence));
        let (survivors, foreground): (Vec<_>, Vec<_>) =
            unsealed.into_iter().partition(|(_, entry)| entry.stream == StreamKind::Survivors);
        for (at_most, segments) in [(1, survivors), (u64::MAX, foreground)] {
            // Before the segments: these then have every frame that is written and missing here.
            self.tail = TailFrames::read(self.source, &state)?;
            for (slot, entry) in &segments {
                match self.copy_frames(&state, *slot, entry)? {
                    Ok(Some(end)) if end > state.ends_of_log[entry.stream] => {
                        apply(&mut state, &ManifestEdit::EndOfLog { stream: entry.stream, end });
                    }
                    Ok(_) => {}
                    Err(obstacle) => return Ok(Err(obstacle)),
                }
            }
            let after = match self.read_state()? {
                Ok(after) => after,
                Err(obstacle) => return Ok(Err(obstacle)),
            };
            if !admits(&state, &after) || added_foreground(&state, &after) > at_most {
                return Ok(Err(Obstacle::Changed));
            }
            if let Err(obstacle) = self.refuse_lost_listing(&names, &after)? {
                return Ok(Err(obstacle));
            }
        }
        Ok(Ok(state))
    }

    /// Leaves out the checkpoints that are listed and missing: an opening passes over them.
    fn leave_out_lost(&self, state: &mut ManifestState) {
        let is_lost = |uuid: &SegmentUuid| self.lost_checkpoints.contains(&checkpoint::file_name(*uuid));
        let lost: Vec<_> = state.checkpoints.iter().map(|entry| entry.uuid).filter(is_lost).collect();
        lost.into_iter().for_each(|uuid| apply(state, &ManifestEdit::DropCheckpoint { uuid }));
    }

    /// Reads the manifest twice: one misdirected read would hide the commits behind it.
    fn read_state(&mut self) -> Attempt<ManifestState> {
        let name = manifest::FILE_NAME;
        let file = match self.source.open(name) {
            Ok(file) => file,
            Err(DeviceError::NotFound { dir, .. }) => return Err(CopyError::NoStore { dir }),
            Err(error) => return Err(error.into()),
        };
        let read = self.source.len(file).and_then(|len| {
            let mut io = Io::new(self.source);
            Ok([io.read_all(file, 0..len, CLASS)?, io.read_all(file, 0..len, CLASS)?])
        });
        self.source.close(file);
        let [first, second] = read?.map(|bytes| manifest::decode_all(&bytes));
        let decoded = match (first, second) {
            // The file only grows: a shorter read is the older one, or misdirected.
            (Ok(first), Ok(second)) => Ok(if first.valid_len > second.valid_len { first } else { second }),
            (Ok(decoded), Err(_)) | (Err(_), Ok(decoded)) => Ok(decoded),
            (Err(_), Err(error)) => Err(error),
        };
        // A commit that is being written may be read in part: that is damage only if it is found again.
        let damage = |detail: String| Ok(Err(Obstacle::Damage { file: name.to_owned(), detail }));
        match decoded {
            Ok(decoded) => match decoded.verdict {
                ManifestVerdict::Clean | ManifestVerdict::TornAt { .. } => Ok(Ok(decoded.state)),
                ManifestVerdict::CorruptAt { offset, synced, .. } => {
                    damage(format!("corrupt at byte {offset}, below {synced} which was synced"))
                }
            },
            Err(ManifestError::Header(error)) if error.is_of_other_format() => {
                Err(CopyError::Format { file: name.to_owned(), error })
            }
            Err(error) => damage(error.to_string()),
        }
    }

    /// Refuses a manifest that has lost the listing of a segment with frames, as an opening does. `names`: files from before the
    /// manifest was read.
    fn refuse_lost_listing(&mut self, names: &[String], state: &ManifestState) -> Attempt<()> {
        let Some(identity) = state.identity else { unreachable!("a manifest has an identity") };
        let listed: BTreeSet<String> =
            state.segments.iter().map(|(&slot, entry)| segment::file_name(slot, entry.uuid)).collect();
        for name in names.iter().filter(|name| segment::is_file_name(name) && !listed.contains(*name)) {
            match holds_newer_data(self.source, name, identity.store, state.last_sequence, &self.tail) {
                // A store in use may have listed it, and written its first frame, since. The next manifest lists it then.
                Ok(true) => {
                    let detail = "it holds data and is not listed: the manifest lost its end".to_owned();
                    return Ok(Err(Obstacle::Damage { file: name.clone(), detail }));
                }
                // Dropped meanwhile.
                Ok(false) | Err(DeviceError::NotFound { .. }) => {}
                Err(error) if error.is_retryable() => return Err(error.into()),
                // Cleaning may unlink the file soon. One read may fail for now.
                Err(error) => {
                    let detail = format!("it is not listed, and whether it holds data cannot be read: {error}");
                    return Ok(Err(Obstacle::Damage { file: name.clone(), detail }));
                }
            }
        }
        Ok(Ok(()))
    }

    /// Holds all files that `state` lists, and releases the others.
    fn hold_all(&mut self, state: &ManifestState) -> Attempt<()> {
        let segments =
            state.segments.iter().map(|(&slot, entry)| (segment::file_name(slot, entry.uuid), entry.seal.is_some()));
        let checkpoints = state.checkpoints.iter().map(|entry| (checkpoint::file_name(entry.uuid), true));
        let runs = state.runs.iter().map(|entry| (run::file_name(entry.uuid), true));
        let listed: BTreeMap<String, bool> = segments.chain(checkpoints).chain(runs).collect();
        let gone: Vec<String> = self.held.keys().filter(|name| !listed.contains_key(*name)).cloned().collect();
        for name in gone {
            match self.held.remove(&name) {
                Some(Held::Open(file)) => self.source.close(file),
                Some(Held::Begun(file, BegunCopy { to, .. })) => {
                    self.source.close(file);
                    self.target.close(to);
                    self.target.unlink(&name)?;
                }
                Some(Held::Linked | Held::Copied(_)) => self.target.unlink(&name)?,
                None => {}
            }
        }
        let is_left = |name: &&String| !matches!(self.held.get(*name), Some(Held::Linked | Held::Copied(_)));
        self.files_left = listed.keys().filter(is_left).count();
        for (name, is_complete) in listed {
            match self.held.get(&name) {
                Some(Held::Linked | Held::Copied(_)) if !is_complete => {
                    let detail = format!("it does not list the seal of {name}, which an earlier read found there");
                    return Ok(Err(Obstacle::Damage { file: manifest::FILE_NAME.to_owned(), detail }));
                }
                Some(_) => continue,
                None => {}
            }
            let linked = if is_complete { (self.options.link)(&name) } else { Linked::Refused };
            let held = match linked {
                Linked::Done => Held::Linked,
                Linked::Gone => return Ok(Err(missing(&name))),
                Linked::Refused => match self.source.open(&name) {
                    Ok(file) => Held::Open(file),
                    Err(DeviceError::NotFound { .. }) => return Ok(Err(missing(&name))),
                    Err(error) => return Err(error.into()),
                },
            };
            self.held.insert(name, held);
        }
        Ok(Ok(()))
    }

    /// Copies what a segment that is not sealed has had since the last attempt. Returns the end of its last frame.
    fn copy_frames(&mut self, state: &ManifestState, slot: u32, entry: &SegmentEntry) -> Attempt<Option<Watermark>> {
        let name = segment::file_name(slot, entry.uuid);
        let (from, begun) = match self.held.remove(&name) {
            Some(Held::Begun(from, begun)) => (from, begun),
            Some(Held::Open(from)) => match self.begin_copy(&name, from, slot, entry)? {
                Ok(begun) => (from, begun),
                Err(obstacle) => return Ok(Err(obstacle)),
            },
            Some(Held::Linked | Held::Copied(_)) | None => unreachable!("it is held, and not complete"),
        };
        let to = begun.to;
        let scanned = match self.scan_confirmed(from, begun, self.tail.of(entry.uuid).as_deref()) {
            Ok(scanned) => scanned,
            Err(error) => return self.abandon_copy(&name, from, Some(to), error),
        };
        let end = Watermark { sequence: entry.sequence, offset: scanned.valid_len };
        // The evidence of this segment itself. A later one has more, but is copied before it.
        let listed = Some(state.ends_of_log[entry.stream]).filter(|listed| listed.sequence == end.sequence);
        let synced = scanned.watermark.max(listed.unwrap_or_default());
        let (why, frames, generation) = (scanned.damage, scanned.frames, scanned.generation);
        self.report.copied_bytes += u64::from(scanned.valid_len);
        self.held.insert(name.clone(), Held::Begun(from, BegunCopy { to, scanned }));
        if synced > end {
            // A frame was written while the part before it was being read, unless that is so again.
            let why = why.map_or_else(|| "frames are missing".to_owned(), |error| error.to_string());
            let detail = format!("{why} at byte {}; the log was synced through {synced}", end.offset);
            return Ok(Err(Obstacle::Damage { file: name, detail }));
        }
        // The copy's generation is raised, so its check cannot see this. A store that was opened since is copied with its next
        // manifest.
        if generation > state.generation {
            let detail = format!(
                "it has a frame of generation {generation}, the manifest ends at {}: the manifest lost its end",
                state.generation
            );
            return Ok(Err(Obstacle::Damage { file: name, detail }));
        }
        Ok(Ok((frames > 0).then_some(end)))
    }

    /// Copies a segment's header.
    fn begin_copy(&mut self, name: &str, from: FileId, slot: u32, entry: &SegmentEntry) -> Attempt<BegunCopy> {
        let header = match Io::new(self.source).read(from, 0, HEADER_BYTES, CLASS) {
            Ok(header) => header,
            Err(error) => return self.abandon_copy(name, from, None, error),
        };
        let decoded = match segment::decode(&header) {
            Err(error) if error.is_of_other_format() => {
                return Err(CopyError::Format { file: name.to_owned(), error });
            }
            decoded => decoded.ok(),
        };
        let is_listed = |header: &SegmentHeader| {
            let SegmentHeader { slot: found, uuid, sequence, stream, .. } = *header;
            (found, uuid, sequence, stream) == (slot, entry.uuid, entry.sequence, entry.stream)
        };
        let Some(SegmentHeader { uuid, sequence, segment_bytes, .. }) = decoded.filter(is_listed) else {
            // The next attempt looks again.
            self.held.insert(name.to_owned(), Held::Open(from));
            let detail = "its header is not the one of the segment that the manifest lists".to_owned();
            return Ok(Err(Obstacle::Damage { file: name.to_owned(), detail }));
        };
        let to = self.target.create(name)?;
        self.write(to, 0, header, HEADER_BYTES)?;
        let scanned = Scanner::new(ScanInput { uuid, sequence, segment_bytes, sealed_len: None }).finish();
        Ok(Ok(BegunCopy { to, scanned }))
    }

    /// Copies what follows a segment's valid frames so far, a second time if one misdirected read has hidden its end.
    fn scan_confirmed(
        &mut self,
        from: FileId,
        begun: BegunCopy,
        tail: Option<&SegmentTail>,
    ) -> Result<ScanReport, DeviceError> {
        let to = begun.to;
        let scanned = self.scan_into(from, begun, tail)?;
        match frame_at_end(self.source, from, &scanned, tail)? {
            // A store in use may have written it since.
            Some(_) => self.scan_into(from, BegunCopy { to, scanned }, tail),
            None => Ok(scanned),
        }
    }

    /// Copies what follows a segment's valid frames so far, while it is scanned, with the frames that only the tail file has.
    /// Zeros are left out.
    fn scan_into(
        &mut self,
        from: FileId,
        begun: BegunCopy,
        tail: Option<&SegmentTail>,
    ) -> Result<ScanReport, DeviceError> {
        let BegunCopy { to, scanned } = begun;
        let end = self.source.len(from)?.min(u64::from(scanned.input.segment_bytes));
        // An earlier read may have been wrong: zeros would not replace its bytes.
        self.target.truncate(to, u64::from(scanned.valid_len))?;
        let mut skip = scanned.valid_len as usize % PAGE_BYTES;
        let mut at = u64::from(scanned.valid_len) - skip as u64;
        let mut scanner = Scanner::resume(scanned);
        // The copy has these bytes of valid frames: this read may be the wrong one.
        let copied =
            if skip > 0 { Io::new(self.target).read(to, at, PAGE_BYTES, CLASS)?[..skip].to_vec() } else { Vec::new() };
        while at < end {
            let len = (end - at).min(self.options.piece_bytes).next_multiple_of(PAGE_BYTES as u64) as usize;
            let mut piece = Io::new(self.source).read(from, at, len, CLASS)?;
            tail.and_then(|tail| tail.lay_over(at, &mut piece));
            piece[..skip].copy_from_slice(&copied[..skip]);
            scanner.push(&piece[skip..len], &mut |_: u32, _: &Stored<'_>| {});
            if piece[..len].iter().any(|&byte| byte != 0) {
                self.write(to, at, piece, len)?;
            }
            (at, skip) = (at + len as u64, 0);
        }
        Ok(scanner.finish())
    }

    fn write(&mut self, file: FileId, offset: u64, buf: AlignedBuf, len: usize) -> Result<(), DeviceError> {
        let mut io = Io::new(self.target);
        let token = io.token();
        io.device.submit_write(file, offset, buf, len, CLASS, token);
        io.finish(token).map(drop)
    }

    /// Ends the copy of a file whose read failed. A file that is not there had no descriptor and was dropped: the next attempt's
    /// manifest does not list it.
    fn abandon_copy<V>(&mut self, name: &str, from: FileId, to: Option<FileId>, error: DeviceError) -> Attempt<V> {
        if !matches!(error, DeviceError::NotFound { .. }) {
            return Err(error.into());
        }
        self.source.close(from);
        if let Some(to) = to {
            self.target.close(to);
            self.target.unlink(name)?;
        }
        Ok(Err(missing(name)))
    }

    /// Copies the complete files that are not linked, and ends the copies of the others.
    fn copy_complete(&mut self, state: &ManifestState) -> Attempt<()> {
        let segments = state
            .segments
            .iter()
            .filter_map(|(&slot, entry)| Some((segment::file_name(slot, entry.uuid), u64::from(entry.sealed_len()?))));
        let checkpoints = state.checkpoints.iter().map(|entry| (checkpoint::file_name(entry.uuid), entry.len_bytes));
        let runs = state.runs.iter().map(|entry| (run::file_name(entry.uuid), entry.file_bytes));
        let files: Vec<(String, u64)> = segments.chain(checkpoints).chain(runs).collect();
        let is_open = |(name, _): &&(String, u64)| !matches!(self.held.get(name), Some(Held::Linked));
        let begun_bytes = self.report.copied_bytes;
        self.planned_bytes = begun_bytes + files.iter().filter(is_open).map(|(_, len_bytes)| len_bytes).sum::<u64>();
        self.report.linked_files = 0;
        for (name, len_bytes) in files {
            let held = match self.held.remove(&name) {
                Some(Held::Open(from)) => self.copy_file(&name, from, len_bytes)?,
                // It was not complete in an earlier attempt.
                Some(Held::Begun(from, BegunCopy { to, .. })) => {
                    self.target.close(to);
                    self.target.unlink(&name)?;
                    self.copy_file(&name, from, len_bytes)?
                }
                Some(held) => Ok(held),
                None => unreachable!("every listed file is held"),
            };
            let held = match held {
                Ok(held) => held,
                Err(obstacle) => return Ok(Err(obstacle)),
            };
            match held {
                Held::Linked => self.report.linked_files += 1,
                Held::Copied(bytes) => self.report.copied_bytes += bytes,
                Held::Open(_) | Held::Begun(..) => unreachable!("it was copied"),
            }
            (self.options.progress)(self.report.copied_bytes, self.planned_bytes);
            self.held.insert(name, held);
        }
        for (_, held) in core::mem::take(&mut self.held) {
            let Held::Begun(from, BegunCopy { to, scanned }) = held else { continue };
            // The bytes behind the valid frames were being written.
            self.target.truncate(to, u64::from(scanned.valid_len))?;
            Io::new(self.target).sync(to, CLASS)?;
            self.target.close(to);
            self.source.close(from);
        }
        Ok(Ok(()))
    }

    /// Copies a complete file; the next piece is read while one is written.
    fn copy_file(&mut self, name: &str, from: FileId, len_bytes: u64) -> Attempt<Held> {
        let (to, piece_bytes) = (self.target.create(name)?, self.options.piece_bytes);
        let mut source = Io::new(self.source);
        let piece_at = |at: u64| (len_bytes - at).min(piece_bytes).next_multiple_of(PAGE_BYTES as u64) as usize;
        let (mut at, mut reading, mut copied_bytes) = (0, None, 0);
        while at < len_bytes {
            let len = piece_at(at);
            let token = reading.take().unwrap_or_else(|| source.start_read(from, at, len, CLASS));
            let piece = match source.finish(token) {
                Ok(Some(piece)) => piece,
                Ok(None) => unreachable!("a read brings its buffer back"),
                Err(error) => return self.abandon_copy(name, from, Some(to), error),
            };
            let next = at + len as u64;
            if next < len_bytes {
                reading = Some(source.start_read(from, next, piece_at(next), CLASS));
                source.device.kick();
            }
            let mut target = Io::new(self.target);
            let token = target.token();
            target.device.submit_write(to, at, piece, len, CLASS, token);
            target.finish(token)?;
            copied_bytes += len as u64;
            (self.options.progress)(self.report.copied_bytes + copied_bytes, self.planned_bytes);
            at = next;
        }
        Io::new(self.target).sync(to, CLASS)?;
        self.target.close(to);
        self.source.close(from);
        Ok(Ok(Held::Copied(copied_bytes)))
    }
}

fn missing(name: &str) -> Obstacle {
    Obstacle::Damage { file: name.to_owned(), detail: "it is listed in the manifest, and missing".to_owned() }
}
