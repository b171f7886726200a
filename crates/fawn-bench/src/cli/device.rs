//! The command `fawn bench device`.
use super::output::{OutputArgs, PairArgs};
use crate::device::{self, DeviceBenchOptions};
use crate::store::{OwnDir, ladder};
use crate::{BenchError, Row, disk, units};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Measures random 4 KiB reads of FAWN's device and of fio: same file, same depth, alternating.
///
/// The target is at least 0.95 of fio's rate and at most 1.05 of its CPU time per read, as the median of 15 pairs.
#[derive(Args)]
pub(super) struct DeviceArgs {
    /// Directory of the test file; must be on the disk to measure.
    #[arg(long, value_name = "DIR", default_value_os_t = ladder::default_dir().to_owned())]
    dir: PathBuf,
    /// Size of the file; should exceed every cache of the device.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = units::parse_size)]
    file: u64,
    /// Number of reads in flight.
    #[arg(long, value_name = "N", default_value = "32", value_parser = units::parse_count)]
    depth: u64,
    /// Duration of a run.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = units::parse_seconds)]
    seconds: Duration,
    /// Seed for the choice of pages.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    pairs: PairArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl DeviceArgs {
    pub(super) fn run(self) -> Result<(), BenchError> {
        let file_bytes = self.file.max(1 << 20).next_multiple_of(1 << 20);
        let options = DeviceBenchOptions { file_bytes, depth: self.depth as usize, run: self.seconds, seed: self.seed };
        let mut dir = OwnDir::new(&self.dir, "device");
        let mut device = disk::open(dir.renew()?, options.depth)?;
        let file = device::prepare(&mut device, &options)?;
        let mut sink = self.output.sink(dir.path())?;
        for pair in 0..self.pairs.count() {
            let options = DeviceBenchOptions { seed: options.seed.wrapping_add(pair as u64), ..options };
            let numbered = |row: Row| row.with("pair", pair).with("file_bytes", file_bytes);
            sink.emit(numbered(device::random_reads(&mut device, file, &options)?))?;
            sink.emit(numbered(device::fio_random_reads(dir.path(), &options)?))?;
        }
        drop(device);
        dir.remove()?;
        sink.finish()
    }
}
