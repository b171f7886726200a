//! Destination of a dump: standard output, or a file that gets its name when it is complete.
use crate::failure::{Exit, Failure};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const BUFFER_BYTES: usize = 1 << 20;

/// An open destination.
pub(crate) struct DumpOutput {
    writer: BufWriter<Box<dyn Write>>,
    /// Written under the second name until it is complete.
    file: Option<(PathBuf, PathBuf)>,
    /// Name in messages.
    name: String,
}

impl DumpOutput {
    /// Opens `path`, or standard output.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else {
            let writer: Box<dyn Write> = Box::new(std::io::stdout());
            let writer = BufWriter::with_capacity(BUFFER_BYTES, writer);
            return Ok(Self { writer, file: None, name: "standard output".to_owned() });
        };
        // A pipe or a device has no other name.
        let is_special = path.metadata().is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir());
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let at = if is_special { path } else { &partial };
        // A dump has everything that the data directory has, so only its owner may read it.
        let opened = File::options().write(true).create(true).truncate(!is_special).mode(0o600).open(at);
        let file = opened.map_err(Failure::about(Exit::Failed, at.display()))?;
        let writer: Box<dyn Write> = Box::new(file);
        Ok(Self {
            writer: BufWriter::with_capacity(BUFFER_BYTES, writer),
            file: (!is_special).then(|| (path.to_owned(), partial.clone())),
            name: path.display().to_string(),
        })
    }

    /// Calls `write`; names the destination in its error.
    pub(crate) fn write<T>(
        &mut self,
        write: impl FnOnce(&mut BufWriter<Box<dyn Write>>) -> std::io::Result<T>,
    ) -> Result<T, Failure> {
        write(&mut self.writer).map_err(Failure::about(Exit::Failed, &self.name))
    }

    /// Everything is written: makes it durable under its name.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        self.write(|writer| writer.flush())?;
        let Some((path, partial)) = &self.file else { return Ok(()) };
        let synced = File::open(partial).and_then(|file| file.sync_all());
        synced.and_then(|()| std::fs::rename(partial, path)).map_err(Failure::about(Exit::Failed, &self.name))
    }
}
