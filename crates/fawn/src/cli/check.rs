//! Owns `fawn check`.
use super::{Exit, Failure};
use fawn_ds::check::{CheckReport, Severity};
use fawn_flash::{AnyDevice, DeviceKind, DeviceOptions};
use std::path::PathBuf;

/// Verifies a store's files offline: manifest, segments, every record. Changes nothing.
///
/// A `note` is the trace of a crash that the next start deals with; nothing promised is missing. `DAMAGE` is promised
/// data that is damaged or missing, and makes the command end with exit code 3.
#[derive(clap::Args)]
pub(super) struct Check {
    /// The data directory; no server may be using it.
    dir: PathBuf,
}

impl Check {
    pub(super) fn run(self) -> Result<(), Failure> {
        let dir = self.dir.display();
        let fail = |detail: String| Failure::new(Exit::Data, format!("{dir}: {detail}"));
        if !self.dir.is_dir() {
            return Err(fail("no such directory; give the data directory of a store".to_owned()));
        }
        // Nothing here is urgent: the device that works everywhere.
        let options = DeviceOptions { kind: DeviceKind::Portable, ..DeviceOptions::default() };
        let mut device = AnyDevice::open(&self.dir, &options).map_err(|error| fail(error.to_string()))?;
        let report = fawn_ds::check::check(&mut device).map_err(|error| fail(error.to_string()))?;
        print(&report);
        if report.is_sound() {
            println!("sound");
            return Ok(());
        }
        Err(fail("damaged, as listed; keep a copy of the directory before anything else".to_owned()))
    }
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
