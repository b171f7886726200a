//! The tail file of an opening: made, mapped, or removed.
use super::OpenReport;
use super::io::Io;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::format::tail::{self, TAIL_BYTES};
use crate::log::tail::TailFile;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{Device, DeviceError, FileId, IoClass};
use fawn_types::Durability;

impl<D: Device> Engine<D> {
    /// Creates the tail file or takes the old one, whose frames the log has by now.
    pub(super) fn begin_tail(&mut self, report: &mut OpenReport) -> Result<(), OpenError> {
        let has_file = core::mem::take(&mut self.left_tail).has_file;
        if self.options.durability != Durability::EverySecond {
            if has_file {
                self.unlink_tail();
            }
            return Ok(());
        }
        match self.map_tail() {
            Ok(file) => self.tail = Some(TailFile::new(file)),
            // No space for it, or a file system without shared mappings: each frame is written to the log at once.
            Err(error) if self.device.poisoned().is_none() => report.tail_refused = Some(error.to_string()),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Removes the tail file, whose frames the log has: no later damage to it can stand in the way of an opening.
    pub(crate) fn unlink_tail(&mut self) {
        if let Some(tail) = self.tail.take() {
            self.device.close(tail.file);
        }
        // A file that stays has no frame that counts.
        let _ = self.device.unlink(tail::FILE_NAME);
    }

    fn map_tail(&mut self) -> Result<FileId, DeviceError> {
        let file = match self.device.open(tail::FILE_NAME) {
            Ok(file) => file,
            Err(DeviceError::NotFound { .. }) => self.device.create(tail::FILE_NAME)?,
            Err(error) => return Err(error),
        };
        let mapped = self.fill_tail(file).and_then(|()| self.device.map(file, TAIL_BYTES));
        if mapped.is_err() {
            self.device.close(file);
        }
        mapped.map(|()| file)
    }

    /// Writes the whole file once: the system then never allocates blocks when it writes pages back.
    fn fill_tail(&mut self, file: FileId) -> Result<(), DeviceError> {
        let is_new = self.device.len(file)? != TAIL_BYTES as u64;
        // A page too many until the zeros are written: where a file system cannot reserve space, a kill in between leaves holes.
        let len_bytes = if is_new { TAIL_BYTES + PAGE_BYTES } else { TAIL_BYTES };
        // Also a file that was there: a copied one may have holes.
        self.device.allocate(file, 0, len_bytes as u64)?;
        if is_new {
            self.device.begin_writes(file)?;
            let mut io = Io::new(&mut self.device);
            io.write_durable(file, 0, &[0; TAIL_BYTES], IoClass::Manifest)?;
            io.device.truncate(file, TAIL_BYTES as u64)?;
            io.sync(file, IoClass::Manifest)?;
            // Stores into the mapping need no descriptor.
            self.device.end_writes(file);
            self.device.sync_dir()?;
        }
        Ok(())
    }
}
