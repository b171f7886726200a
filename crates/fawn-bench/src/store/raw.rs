//! The baseline of the store level: the same device without a store, within the same minutes.
use super::{DataShape, KEY_BYTES, OwnDir};
use crate::device::{self, DeviceBenchOptions};
use crate::workload::Values;
use crate::{BenchError, Row, machine};
use fawn_flash::{AlignedBuf, Device, FileDevice, IoClass, Token};
use std::collections::VecDeque;
use std::path::Path;
use std::time::Instant;

/// The baseline's name in rows.
pub const NAME: &str = "raw-device";
const WRITE_BYTES: usize = 1 << 20;
const WRITE_DEPTH: usize = 4;
const WRITE_FILE: &str = "bench-write.dat";

/// A device without a store.
pub struct RawDevice {
    dir: OwnDir,
}

impl RawDevice {
    /// A raw device with its file under `parent`.
    #[must_use]
    pub fn new(parent: &Path) -> Self {
        Self { dir: OwnDir::new(parent, "raw") }
    }

    /// Writes the size of `shape` sequentially with direct I/O, like a log, and reports it as records per second.
    ///
    /// # Errors
    /// If the device fails.
    pub fn sequential_write(&mut self, shape: &DataShape) -> Result<Row, BenchError> {
        let mut device = crate::disk::open(self.dir.renew()?, WRITE_DEPTH)?;
        let total = shape.user_bytes().next_multiple_of(WRITE_BYTES as u64);
        let mut spare: Vec<_> = (0..WRITE_DEPTH).map(|_| AlignedBuf::zeroed(WRITE_BYTES)).collect();
        // Incompressible data, in memory that is touched before the measurement.
        let values = Values::new(WRITE_BYTES);
        spare.iter_mut().zip(0..).for_each(|(buf, n)| values.fill(n, 0, buf));
        let (started, cpu) = (Instant::now(), machine::own_cpu());
        let file = device.create(WRITE_FILE)?;
        device.allocate(file, 0, total)?;
        let mut done = VecDeque::new();
        let mut offset = 0;
        while offset < total || device.in_flight() > 0 {
            while offset < total
                && let Some(buf) = spare.pop()
            {
                device.submit_write(file, offset, buf, WRITE_BYTES, IoClass::Flush, Token(offset));
                offset += WRITE_BYTES as u64;
            }
            device.wait(&mut done);
            for completion in done.drain(..) {
                completion.result?;
                spare.extend(completion.buf);
            }
        }
        let records = total / (KEY_BYTES + shape.value_bytes) as u64;
        let row = Row::new("store", NAME, "").timed(records, started.elapsed(), Some(machine::own_cpu() - cpu));
        let mut row = row.with("write_bytes", WRITE_BYTES).with("depth", WRITE_DEPTH).with("device", device.name());
        row.device_bytes_written_per_user_byte = Some(1.0);
        drop(device);
        self.dir.remove()?;
        Ok(row)
    }

    /// Creates the file for [`RawDevice::random_reads`].
    ///
    /// # Errors
    /// If the device fails.
    pub fn prepare(&mut self, options: &DeviceBenchOptions) -> Result<(), BenchError> {
        let mut device = self.open_for_reads(options, true)?;
        device::prepare(&mut device, options).map(drop)
    }

    fn open_for_reads(&mut self, options: &DeviceBenchOptions, in_new_dir: bool) -> Result<FileDevice, BenchError> {
        let path = if in_new_dir { self.dir.renew()? } else { self.dir.path() };
        crate::disk::open(path, options.depth)
    }

    /// Measures random 4 KiB reads of the file.
    ///
    /// # Errors
    /// If the device fails.
    pub fn random_reads(&mut self, options: &DeviceBenchOptions) -> Result<Row, BenchError> {
        let mut device = self.open_for_reads(options, false)?;
        let file = device::prepare(&mut device, options)?;
        let row = device::random_reads(&mut device, file, options)?;
        Ok(Row { level: "store".to_owned(), engine: NAME.to_owned(), ..row })
    }

    /// Measures random 4 KiB writes into a new file, without syncs, one after the other.
    ///
    /// # Errors
    /// If the device fails.
    pub fn random_writes(&mut self, options: &DeviceBenchOptions) -> Result<Row, BenchError> {
        let mut device = self.open_for_reads(options, true)?;
        let file = device::prepare(&mut device, options)?;
        let row = device::random_writes(&mut device, file, options)?;
        drop(device);
        self.dir.remove()?;
        Ok(Row { level: "store".to_owned(), engine: NAME.to_owned(), ..row })
    }
}
