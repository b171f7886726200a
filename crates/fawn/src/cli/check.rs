//! Command `fawn check`.
use crate::data_dir::{Layout, refuse};
use crate::failure::{Exit, Failure};
use fawn_ds::internals::check::{CheckReport, Severity};
use fawn_ds::internals::format::{manifest, segment};
use fawn_flash::{DeviceError, DeviceKind, DeviceOptions, FileDevice};
use std::path::{Path, PathBuf};

/// Verifies a store's files offline: manifest, segments, every record. Changes nothing.
///
/// A `note` is a trace of a crash that the next start handles; no acknowledged data is missing. `DAMAGE` is
/// acknowledged data that is corrupt or missing, and makes the command end with exit code 3.
#[derive(clap::Args)]
pub(super) struct Check {
    /// The data directory; no server may be using it.
    dir: PathBuf,
}

impl Check {
    pub(super) fn run(self) -> Result<(), Failure> {
        if !self.dir.is_dir() {
            return refuse(&self.dir, "no such directory; give the data directory of a store");
        }
        let layout = Layout::existing(&self.dir)?;
        if layout.is_none() && !holds_store(&self.dir) {
            return refuse(&self.dir, "holds no store: neither a manifest nor segments; give a data directory");
        }
        let is_sound = match &layout {
            None => check_store(&self.dir),
            Some(layout) => check_stores(layout),
        };
        if is_sound? {
            println!("sound");
            return Ok(());
        }
        refuse(&self.dir, "corrupt, as listed; keep a copy of the directory before anything else")
    }
}

/// Whether the directory contains a store, perhaps a corrupt one. A directory that cannot be listed may.
fn holds_store(dir: &Path) -> bool {
    let Ok(mut entries) = dir.read_dir() else { return true };
    entries.any(|entry| {
        let name = entry.map(|entry| entry.file_name()).unwrap_or_default();
        name == manifest::FILE_NAME || name.to_str().is_some_and(segment::is_file_name)
    })
}

/// Checks all stores, also after a corrupt one.
fn check_stores(layout: &Layout) -> Result<bool, Failure> {
    println!("{} shards", layout.shards());
    let mut is_sound = true;
    for (placement, dir) in layout.shard_dirs() {
        println!("shard {}:", placement.shard().0);
        if layout.is_unfinished() && !dir.join(manifest::FILE_NAME).exists() {
            println!("note: not made yet; the first start was interrupted, the next goes on with it");
            continue;
        }
        is_sound &= check_store(&dir)?;
    }
    Ok(is_sound)
}

fn check_store(dir: &Path) -> Result<bool, Failure> {
    let fail = |error: DeviceError| Failure::new(Exit::Data, format!("{}: {error}", dir.display()));
    // Speed does not matter here: the portable device works everywhere.
    let options = DeviceOptions { kind: DeviceKind::Portable, ..DeviceOptions::default() };
    let mut device = FileDevice::open(dir, &options).map_err(fail)?;
    let report = fawn_ds::internals::check::check(&mut device).map_err(fail)?;
    print(&report);
    Ok(report.is_sound())
}

fn print(report: &CheckReport) {
    let CheckReport { segments, frames, records, bytes, findings } = report;
    println!("{segments} segments, {frames} frames, {records} records, {bytes} bytes verified");
    for finding in findings {
        let severity = match finding.severity {
            Severity::Note => "note",
            Severity::Damage => "DAMAGE",
        };
        println!("{severity}: {} at byte {}: {}", finding.file, finding.offset_bytes, finding.detail);
    }
}
