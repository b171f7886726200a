//! FAWN-DS as a contender: the engine runs in this process, driven like in a server's event loop.
mod mixed;
mod parts;
mod peak;
mod reads;
mod samples;
mod session;
mod writes;

pub use mixed::record_bytes_of;

use super::mix::Mix;
use super::peak_load::PeakLoad;
use super::{Contender, DataShape, FillEnd, Gets, LoadParts, OwnDir, PartUnit, Puts, SpaceLimit};
use crate::stops::StopMonitor;
use crate::{BenchError, Row};
use fawn_ds::internals::{Options, RecordLayout};
use fawn_flash::{Device, FileDevice};
use fawn_types::Durability;
use session::{BenchSession, PATIENCE};
use std::path::Path;
use std::time::Duration;

type OpenDevice<D> = Box<dyn FnMut(&Path) -> Result<D, BenchError>>;

/// FAWN-DS under test.
pub struct FawnDs<D: Device> {
    name: &'static str,
    dir: OwnDir,
    open_device: OpenDevice<D>,
    segment_bytes: u32,
    /// Memory of the record cache; `None`: as the store divides it.
    record_cache_bytes: Option<u64>,
    patience: Duration,
    /// The open stores: one, except in loads of several stores.
    sessions: Vec<BenchSession<D>>,
}

impl FawnDs<FileDevice> {
    /// FAWN-DS with its files under `parent`, on the device that a server would choose there.
    #[must_use]
    pub fn new(parent: &Path) -> Self {
        Self::over(parent, Options::default().segment_bytes, |dir| crate::disk::open(dir, 64))
    }

    /// The same with all cache memory for pages.
    #[must_use]
    pub fn with_pages_alone(parent: &Path) -> Self {
        let dir = OwnDir::new(parent, "fawn-ds-pages");
        Self { name: "fawn-ds-pages", dir, record_cache_bytes: Some(0), ..Self::new(parent) }
    }
}

impl<D: Device> FawnDs<D> {
    /// FAWN-DS on the given device.
    pub fn over(
        parent: &Path,
        segment_bytes: u32,
        open_device: impl FnMut(&Path) -> Result<D, BenchError> + 'static,
    ) -> Self {
        let dir = OwnDir::new(parent, "fawn-ds");
        let open_device = Box::new(open_device);
        Self {
            name: "fawn-ds",
            dir,
            open_device,
            segment_bytes,
            record_cache_bytes: None,
            patience: PATIENCE,
            sessions: Vec::new(),
        }
    }

    /// Ends a run with an error after this time without progress.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Writes a wrong value for key number `n`, so that a test can check the verification.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn plant_wrong_value(&mut self, n: u64) -> Result<(), BenchError> {
        let session = self.filled()?;
        session.put(n, u64::MAX)?;
        session.acknowledge_all()
    }

    fn options(&self, shape: &DataShape, durability: Durability) -> Options {
        let (memory_bytes, segment_bytes) = (shape.memory_bytes, self.segment_bytes);
        let record_cache_bytes = self.record_cache_bytes;
        Options { durability, memory_bytes, segment_bytes, record_cache_bytes, ..Options::default() }
    }

    fn begin(&mut self, shape: &DataShape, options: Options, ranges: u32) -> Result<&mut BenchSession<D>, BenchError> {
        self.sessions.clear();
        let device = (self.open_device)(self.dir.renew()?)?;
        let mut session = BenchSession::open(device, options, *shape, ranges)?;
        (session.name, session.patience) = (self.name, self.patience);
        self.sessions.push(session);
        self.filled()
    }

    fn filled(&mut self) -> Result<&mut BenchSession<D>, BenchError> {
        self.sessions.first_mut().ok_or_else(|| BenchError::failed("fawn-ds", "used before it was filled"))
    }

    fn filled_for(&mut self, mix: &Mix) -> Result<&mut BenchSession<D>, BenchError> {
        let session = self.filled()?;
        if mix.keys.keys() > session.shape.keys {
            return Err(BenchError::failed("fawn-ds", "a mix of more keys than the store was filled with"));
        }
        Ok(session)
    }
}

impl<D: Device> Contender for FawnDs<D> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn fill(&mut self, shape: &DataShape, end: FillEnd) -> Result<Row, BenchError> {
        self.begin(shape, self.options(shape, Durability::Memory), 1)?.fill(end)
    }

    fn verify(&mut self) -> Result<(), BenchError> {
        self.filled()?;
        self.sessions.iter_mut().try_for_each(BenchSession::verify)
    }

    fn gets(&mut self, gets: &Gets) -> Result<Row, BenchError> {
        let session = self.filled()?;
        if gets.depth == 1 { session.gets_one_by_one(gets) } else { session.gets_in_flight(gets) }
    }

    fn overwrites(&mut self, puts: &Puts) -> Result<Row, BenchError> {
        self.filled()?.overwrites(puts)
    }

    fn durable_puts(&mut self, shape: &DataShape, puts: &Puts) -> Result<Row, BenchError> {
        self.begin(shape, self.options(shape, Durability::Sync), 1)?.durable_puts(puts)
    }

    fn fill_parts(&mut self, shape: &DataShape, parts: LoadParts) -> Result<Option<Row>, BenchError> {
        match parts.unit {
            PartUnit::Range if parts.in_sequence => Ok(None),
            PartUnit::Range => {
                let options = self.options(shape, Durability::Memory);
                self.begin(shape, options, parts.count)?.fill(FillEnd::Written).map(Some)
            }
            PartUnit::Store => self.fill_stores(shape, parts).map(Some),
        }
    }

    fn fill_within(&mut self, shape: &DataShape, space: SpaceLimit) -> Result<Option<Row>, BenchError> {
        let mut options = self.options(shape, Durability::EverySecond);
        // Without a limit, cleaning begins long before the files take three times the data.
        let reach_bytes = space.capacity_bytes.unwrap_or(3 * shape.user_bytes());
        options.segment_bytes = parts::segment_bytes_of(reach_bytes, self.segment_bytes);
        let segment_bytes = u64::from(options.segment_bytes);
        options.capacity_bytes = space.capacity_bytes.map(|bytes| bytes.next_multiple_of(segment_bytes));
        if space.sorts {
            options.layout = RecordLayout::Sorted;
        }
        if !space.cleans {
            (options.capacity_bytes, options.space_amplification_max_percent) = (None, u64::from(u32::MAX));
        }
        let row = self.begin(shape, options, 1)?.fill(FillEnd::Written)?;
        Ok(Some(row.with("segment_bytes", segment_bytes)))
    }

    fn mixed(&mut self, mix: &Mix) -> Result<Option<Row>, BenchError> {
        self.filled_for(mix)?.mixed(mix).map(Some)
    }

    fn follow_peak(&mut self, load: &PeakLoad) -> Result<Option<Row>, BenchError> {
        let monitor = StopMonitor::start(self.dir.path().parent().unwrap_or(Path::new(".")))?;
        let row = self.filled_for(&load.mix)?.follow_peak(load, &monitor)?;
        let intervals = row.series["max_us"].len();
        monitor.end(intervals, row).map(Some)
    }

    fn rest(&mut self) -> Result<(), BenchError> {
        self.filled()?.rest()
    }

    fn scan(&mut self, keys: u64) -> Result<Option<Row>, BenchError> {
        self.filled()?.scan(keys).map(Some)
    }

    fn discard(&mut self) -> Result<(), BenchError> {
        self.sessions.clear();
        self.dir.remove()
    }
}
