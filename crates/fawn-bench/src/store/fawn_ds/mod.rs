//! FAWN-DS as a contender: the engine runs in this process, driven like in a server's event loop.
mod reads;
mod session;
mod writes;

use super::{Contender, DataShape, FillEnd, Gets, OwnDir, Puts};
use crate::{BenchError, Row};
use fawn_ds::internals::Options;
use fawn_flash::{Device, FileDevice};
use fawn_types::Durability;
use session::BenchSession;
use std::path::Path;

type OpenDevice<D> = Box<dyn FnMut(&Path) -> Result<D, BenchError>>;

/// FAWN-DS under test.
pub struct FawnDs<D: Device> {
    dir: OwnDir,
    open_device: OpenDevice<D>,
    segment_bytes: u32,
    session: Option<BenchSession<D>>,
}

impl FawnDs<FileDevice> {
    /// FAWN-DS with its files under `parent`, on the device that a server would choose there.
    #[must_use]
    pub fn new(parent: &Path) -> Self {
        Self::over(parent, Options::default().segment_bytes, |dir| crate::disk::open(dir, 64))
    }
}

impl<D: Device> FawnDs<D> {
    /// FAWN-DS on the given device.
    pub fn over(
        parent: &Path,
        segment_bytes: u32,
        open_device: impl FnMut(&Path) -> Result<D, BenchError> + 'static,
    ) -> Self {
        Self { dir: OwnDir::new(parent, "fawn-ds"), open_device: Box::new(open_device), segment_bytes, session: None }
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

    fn begin(&mut self, shape: &DataShape, durability: Durability) -> Result<&mut BenchSession<D>, BenchError> {
        self.session = None;
        let device = (self.open_device)(self.dir.renew()?)?;
        let options = Options {
            durability,
            memory_bytes: shape.memory_bytes,
            segment_bytes: self.segment_bytes,
            ..Options::default()
        };
        Ok(self.session.insert(BenchSession::open(device, options, *shape)?))
    }

    fn filled(&mut self) -> Result<&mut BenchSession<D>, BenchError> {
        self.session.as_mut().ok_or_else(|| BenchError::failed("fawn-ds", "used before it was filled"))
    }
}

impl<D: Device> Contender for FawnDs<D> {
    fn name(&self) -> &'static str {
        "fawn-ds"
    }

    fn fill(&mut self, shape: &DataShape, end: FillEnd) -> Result<Row, BenchError> {
        self.begin(shape, Durability::Memory)?.fill(end)
    }

    fn verify(&mut self) -> Result<(), BenchError> {
        self.filled()?.verify()
    }

    fn gets(&mut self, gets: &Gets) -> Result<Row, BenchError> {
        let session = self.filled()?;
        if gets.depth == 1 { session.gets_one_by_one(gets) } else { session.gets_in_flight(gets) }
    }

    fn overwrites(&mut self, puts: &Puts) -> Result<Row, BenchError> {
        self.filled()?.overwrites(puts)
    }

    fn durable_puts(&mut self, shape: &DataShape, puts: &Puts) -> Result<Row, BenchError> {
        self.begin(shape, Durability::Sync)?.durable_puts(puts)
    }

    fn discard(&mut self) -> Result<(), BenchError> {
        self.session = None;
        self.dir.remove()
    }
}
