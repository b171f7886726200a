//! Command `fawn backup`.
use super::data_copy::copy;
use crate::failure::Failure;
use crate::printing::{print_note, print_result};
use fawn_ds::internals::backup::CopyError;
use std::path::PathBuf;

/// Copies a data directory, also while a server uses it, and verifies the copy.
///
/// Every write that was acknowledged before the command began is in the copy; later ones may be. Complete files are
/// linked where both directories are on one file system, which takes no space and hardly any time, and copied otherwise.
/// A linked backup does not protect against the loss of the disk.
///
/// The copy is a data directory itself: `fawn check` and `fawn dump` read it, and `fawn restore` makes a directory for a
/// server of it.
#[derive(clap::Args)]
#[command(after_long_help = "Examples:\n  fawn backup /var/lib/fawn /var/backups/fawn-monday\n  \
                             fawn backup /var/lib/fawn /mnt/usb/fawn && umount /mnt/usb")]
pub(super) struct Backup {
    /// The data directory, in use or not.
    dir: PathBuf,
    /// The directory of the backup: new, or empty.
    to: PathBuf,
    /// Copies every file, also where links would do.
    #[arg(long)]
    copy: bool,
}

impl Backup {
    pub(super) fn run(self) -> Result<(), Failure> {
        let copied = copy(&self.dir, self.to, self.copy)?;
        print_result(&copied);
        if !copied.can_be_copied() {
            let words = "sound, but cannot be restored by `fawn restore`";
            print_note(format_args!("warning: {words}: {}", CopyError::UsedUp));
            return Ok(());
        }
        print_result(format_args!("sound. To restore it: fawn restore {} DIR", copied.path().display()));
        Ok(())
    }
}
