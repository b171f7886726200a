//! Command `fawn restore`.
use super::data_copy::copy;
use crate::failure::Failure;
use crate::printing::print_result;
use std::path::PathBuf;

/// Makes a data directory of a backup, and verifies it.
///
/// The backup stays as it is. A server can start with the new directory while others use the backup, or the directory
/// that it was made of. Complete files are linked where both directories are on one file system, and copied otherwise.
#[derive(clap::Args)]
#[command(after_long_help = "Examples:\n  fawn restore /var/backups/fawn-monday /var/lib/fawn\n  \
                             fawn restore /mnt/usb/fawn /var/lib/fawn && fawn serve --dir /var/lib/fawn")]
pub(super) struct Restore {
    /// The directory of the backup.
    backup: PathBuf,
    /// The data directory to make: new, or empty.
    dir: PathBuf,
    /// Copies every file, also where links would do.
    #[arg(long)]
    copy: bool,
}

impl Restore {
    pub(super) fn run(self) -> Result<(), Failure> {
        let copied = copy(&self.backup, self.dir, self.copy)?;
        print_result(&copied);
        print_result(format_args!("sound. To use it: fawn serve --dir {}", copied.path().display()));
        Ok(())
    }
}
