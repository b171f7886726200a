//! Reading of data directories without a server, damaged ones too: opening their stores, and counting what is lost.
mod repair;

pub(crate) use repair::{RepairedCopy, newest_epoch, write_repaired};

use crate::data_dir::{Layout, refuse, refuse_no_data_dir};
use crate::failure::{Exit, Failure};
use crate::printing::{counted, print_note};
use fawn_ds::internals::check::{CheckFinding, Severity};
use fawn_ds::internals::format::manifest::{self, decode_header};
use fawn_ds::internals::format::segment;
use fawn_ds::internals::{
    DumpReport, Engine, EngineError, LostPart, OpenError, Options, SalvageReport, open_for_salvage,
};
use fawn_flash::{DeviceError, DeviceKind, DeviceOptions, FileDevice, IoOperation};
use fawn_node::Placement;
use fawn_types::{RingKey, ShardId};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;

/// Lost parts that are listed one by one, per shard; the others are counted.
const LISTED_MAX: usize = 100;

/// Refusal of a directory that has several stores.
pub(crate) const NOTHING_LEFT: &str = "corrupt, as listed: no shard can be read; restore a backup";

/// Damage of a data directory, and what was lost by it.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    is_damaged: bool,
    /// By number of the shard.
    shards: BTreeMap<u16, ShardLosses>,
    /// The shard that the next losses are of.
    shard: u16,
    /// Stores that could be opened.
    opened: u64,
    /// Losses so far, as text with their shards: as many as there are findings and lost parts.
    known: BTreeSet<String>,
    /// Prefix of messages: the shard, if there are several.
    prefix: String,
}

/// Losses of one shard.
#[derive(Clone, Copy, Debug, Default)]
struct ShardLosses {
    /// The whole store, which counts as a part, too, and as more than any other.
    is_all: bool,
    /// Records that are known to be lost.
    records: u64,
    /// Parts of files with an unknown number of records.
    unknown_parts: u64,
    /// Keys whose record could not be read any more.
    unread: u64,
}

impl ShardLosses {
    /// Whether this reading has lost more than an earlier one.
    const fn exceed(&self, earlier: &Self) -> bool {
        // A store that is lost covers all parts of it.
        let has_more = self.is_all
            || self.records > earlier.records
            || self.unknown_parts > earlier.unknown_parts
            || self.unread > earlier.unread;
        has_more && !earlier.is_all
    }
}

/// Whether the directory contains a store, perhaps a corrupt one. A directory that cannot be listed may.
pub(crate) fn holds_store(dir: &Path) -> bool {
    let Ok(mut entries) = dir.read_dir() else { return true };
    entries.any(|entry| {
        let name = entry.map(|entry| entry.file_name()).unwrap_or_default();
        name == manifest::FILE_NAME || name.to_str().is_some_and(segment::is_file_name)
    })
}

/// The layout of an existing data directory, whatever state its stores are in.
pub(crate) fn open_layout(dir: &Path) -> Result<Layout, Failure> {
    refuse_no_data_dir(dir)?;
    let layout = Layout::offline(dir)?;
    if layout.shards() == 1 && !holds_store(dir) {
        return refuse(dir, "holds no store: neither a manifest nor segments; give a data directory");
    }
    Ok(layout)
}

/// Speed is the disk's with reads of this size: the portable device works everywhere.
pub(crate) fn open_device(dir: &Path) -> Result<FileDevice, DeviceError> {
    FileDevice::open(dir, &DeviceOptions { kind: DeviceKind::Portable, ..DeviceOptions::default() })
}

/// A shard's store, as found.
pub(crate) enum FoundStore {
    /// Open, damaged or not.
    Open(Box<Engine<FileDevice>>, SalvageReport),
    /// Never made, because the directory's first start was interrupted.
    Unmade,
    /// One of several that was made, and of which nothing can be read; why, as the end of a sentence.
    Lost(String),
}

/// Opens a shard's store for a dump.
pub(crate) fn open_store(layout: &Layout, dir: &Path) -> Result<FoundStore, Failure> {
    if !dir.is_dir() || !holds_store(dir) {
        let why = "which holds no store; is a file system not mounted?".to_owned();
        return Ok(if layout.is_unfinished() { FoundStore::Unmade } else { FoundStore::Lost(why) });
    }
    let options =
        Options { value_bytes_max: fawn_ds::internals::format::record::VALUE_BYTES_LIMIT as u32, ..Options::default() };
    let open = || open_for_salvage(|| open_device(dir), &options, fawn_flash::clock::now());
    // A read that failed may be right the second time.
    let opened = open().or_else(|error| if is_beyond_reading(&error) { open() } else { Err(error) });
    match opened {
        Ok((engine, found)) => Ok(FoundStore::Open(Box::new(engine), found)),
        // The other shards can be saved all the same.
        Err(error) if layout.shards() > 1 && is_beyond_reading(&error) => {
            Ok(FoundStore::Lost(format!("which cannot be read: {error}")))
        }
        Err(error) => Err(Failure::new(Exit::Data, format!("{}: {error}", dir.display()))),
    }
}

/// Whether the disk has lost the store, or fails where it cannot be passed over. Other failures, as of the lock, say
/// nothing about the records.
fn is_beyond_reading(error: &OpenError) -> bool {
    match error {
        OpenError::NothingLeft => true,
        OpenError::Device(error) | OpenError::Engine(EngineError::Device(error)) => {
            matches!(error, DeviceError::Io { operation: IoOperation::Read | IoOperation::Metadata("list"), .. })
        }
        _ => false,
    }
}

/// Refuses a key that no server looks for in this shard's store: the manifest, which would show whose it is, cannot be read.
pub(crate) fn refuse_misplaced_key(
    layout: &Layout,
    placement: Placement,
    store: &Path,
    key: &[u8],
) -> Result<(), Failure> {
    let (_, keys) = placement.range();
    if layout.secret().is_none_or(|secret| keys.contains(&RingKey::of(&secret, key))) {
        return Ok(());
    }
    let words = "holds keys of another shard, or of another node; put the right store back, or `fawn dump` the directory and \
                 load the dump; nothing was copied";
    refuse(store, words)
}

/// The UUID of a store, by its manifest's header alone. `None`: it cannot be read.
pub(crate) fn store_uuid(dir: &Path) -> Option<[u8; 16]> {
    let mut header = [0; manifest::HEADER_BYTES];
    std::fs::File::open(dir.join(manifest::FILE_NAME)).ok()?.read_exact(&mut header).ok()?;
    decode_header(&header).ok().map(|header| header.store.0)
}

/// Prints a finding as `fawn check` does.
pub(crate) fn finding_line(finding: &CheckFinding) -> String {
    let severity = match finding.severity {
        Severity::Note => "note",
        Severity::Damage => "DAMAGE",
    };
    format!("{severity}: {} at byte {}: {}", finding.file, finding.offset_bytes, finding.detail)
}

impl Losses {
    /// The next losses are of this shard.
    pub(crate) fn begin(&mut self, shards: u16, shard: ShardId) {
        self.shard = shard.0;
        self.prefix = if shards > 1 { format!("shard {}: ", shard.0) } else { String::new() };
    }

    /// Prints and counts a whole store that is lost.
    pub(crate) fn add_store(&mut self, dir: &Path, why: &str) {
        self.is_damaged = true;
        let losses = self.of_shard();
        losses.is_all = true;
        losses.unknown_parts += 1;
        self.print_new(&format!("lost: all of {}, {why}", dir.display()));
    }

    /// Prints and counts the damage that the opening found.
    pub(crate) fn add_found(&mut self, found: &SalvageReport) {
        self.opened += 1;
        self.is_damaged |= found.is_damaged();
        for finding in found.findings.iter().filter(|finding| finding.severity == Severity::Damage) {
            self.print_new(&finding_line(finding));
        }
        self.count(&found.missing);
    }

    /// Prints and counts the losses that a dump of the store met.
    pub(crate) fn add(&mut self, report: &DumpReport) {
        self.count(&report.lost);
        self.of_shard().unread += report.unread;
        self.is_damaged |= report.unread > 0 || !report.lost.is_empty();
        if report.unread > 0 {
            self.print_new(&format!("lost: {} keys whose records could not be read any more", report.unread));
        }
    }

    fn of_shard(&mut self) -> &mut ShardLosses {
        self.shards.entry(self.shard).or_default()
    }

    fn count(&mut self, lost: &[LostPart]) {
        let mut new_parts = 0;
        for LostPart { file, from_bytes, to_bytes, records } in lost {
            let losses = self.of_shard();
            losses.records += records.unwrap_or_default();
            losses.unknown_parts += u64::from(records.is_none());
            let what = match records {
                Some(1) => "1 record".to_owned(),
                Some(records) => format!("{records} records"),
                None => "an unknown number of records".to_owned(),
            };
            let place =
                if from_bytes < to_bytes { format!(", bytes {from_bytes} to {to_bytes}") } else { String::new() };
            let line = format!("lost: {file}{place}: {what}");
            if self.is_new(&line) {
                new_parts += 1;
                if new_parts <= LISTED_MAX {
                    self.print(&line);
                }
            }
        }
        if new_parts > LISTED_MAX {
            self.print(&format!("lost: {} more such parts", new_parts - LISTED_MAX));
        }
    }

    /// For another reading of the same stores: only other losses are printed.
    pub(crate) fn of_second_reading(&self) -> Self {
        Self { known: self.known.clone(), ..Self::default() }
    }

    /// Whether no reading of the stores has met this loss so far. It is known from now on.
    fn is_new(&mut self, line: &str) -> bool {
        self.known.insert(format!("{}{line}", self.prefix))
    }

    fn print_new(&mut self, line: &str) {
        if self.is_new(line) {
            self.print(line);
        }
    }

    fn print(&self, line: &str) {
        print_note(format_args!("{}{line}", self.prefix));
    }

    /// Whether more was lost of any shard than an earlier reading of the same stores has found.
    pub(crate) fn exceed(&self, earlier: &Self) -> bool {
        let before = |shard| earlier.shards.get(shard).copied().unwrap_or_default();
        self.shards.iter().any(|(shard, losses)| losses.exceed(&before(shard)))
    }

    /// Whether acknowledged data may be lost.
    pub(crate) const fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// Refuses a directory of which every store is lost: a copy or dump of it would be empty, and could replace a good one.
    pub(crate) fn refuse_all_lost(&self, layout: &Layout) -> Result<(), Failure> {
        if self.is_damaged && self.opened == 0 { refuse(layout.dir(), NOTHING_LEFT) } else { Ok(()) }
    }

    /// Prints what a loss means.
    pub(crate) fn explain(&self) {
        if self.is_damaged {
            print_note(
                "Lost records may be old versions of keys that are left. A key whose newest record is lost is missing or has \
                 an older value; a deleted one may be back.",
            );
        }
    }

    /// The losses in words.
    pub(crate) fn describe(&self) -> String {
        let sum = |of: fn(&ShardLosses) -> u64| self.shards.values().map(of).sum::<u64>();
        let counts = (sum(|losses| losses.records), sum(|losses| losses.unknown_parts));
        let (records, parts) = (counted(counts.0, "record"), counted(counts.1, "part"));
        match counts {
            (0, 0) => "no record is known to be lost".to_owned(),
            (_, 0) => format!("{records} lost, as listed"),
            (0, _) => format!("{parts} of unknown content lost, as listed"),
            (_, _) => format!("at least {records} lost, and {parts} of unknown content, as listed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_store_is_more_than_any_parts_of_it() {
        let part = |offset| LostPart { file: "segment".to_owned(), from_bytes: offset, to_bytes: 9, records: None };
        let (mut parts, mut store) = (Losses::default(), Losses::default());
        parts.add_found(&SalvageReport { missing: (0..3).map(part).collect(), ..SalvageReport::default() });
        store.add_store(Path::new("shard-1"), "which cannot be read");
        assert!(store.exceed(&parts), "the disk failed between the survey and the copy");
        assert!(store.is_damaged() && !store.exceed(&store));
        assert!(!parts.exceed(&store), "all of the shard was known to be lost");
    }

    #[test]
    fn the_loss_of_one_shard_is_none_of_another() {
        let lost = |shard: u16| {
            let mut losses = Losses::default();
            losses.begin(2, ShardId(shard));
            losses.add_store(Path::new("shard"), "which cannot be read");
            losses
        };
        assert!(lost(1).exceed(&lost(0)), "the survey had the keys of the other one");
        assert!(!lost(1).exceed(&lost(1)));
    }
}
