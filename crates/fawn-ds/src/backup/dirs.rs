//! Copies between directories, with links where the file system has them.
use super::{CopyError, CopyOptions, CopyReport, Linked, PARTIAL_NAME, copy_store};
use fawn_flash::{Device, DeviceError, DeviceKind, DeviceOptions, FileDevice, descriptors_limit, hard_link};
use fawn_types::random::SplitMix64;
use std::io::ErrorKind;
use std::path::Path;

/// Fewest generations that a copy skips: more than a store is opened by accident.
const SKIPPED_GENERATIONS: u32 = 1 << 16;
/// Most generations that a copy skips.
const SKIPPED_GENERATIONS_MAX: u32 = 2 * SKIPPED_GENERATIONS - 1;
/// Length of one read, bytes.
const PIECE_BYTES: u64 = 1 << 20;
/// Most files of the source that are kept open. An open file cannot vanish before it is copied.
const DESCRIPTORS_MAX: usize = 1 << 17;
/// One in so many of the descriptors that the process may have. The target and the process need some, too.
const DESCRIPTORS_SHARE: usize = 2;

/// Whether a copy may share complete files with its source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Where both are on one file system that links.
    Links,
    /// Every file is copied.
    Nothing,
}

impl CopyReport {
    /// Whether the copy has generations for another copy, as a restoration is one.
    #[must_use]
    pub const fn can_be_copied(&self) -> bool {
        self.generations_left >= SKIPPED_GENERATIONS_MAX
    }
}

/// Copies the store in `from`, which may be in use, into the empty directory `to`. `random` spreads the generations of
/// copies of one store.
///
/// # Errors
/// [`CopyError`]. The target is incomplete then.
pub fn copy_dir(
    from: &Path,
    to: &Path,
    sharing: Sharing,
    random: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CopyReport, CopyError> {
    if !from.is_dir() {
        // A device would create it.
        return Err(CopyError::NoStore { dir: from.display().to_string() });
    }
    let skip_generations = SKIPPED_GENERATIONS + SplitMix64::new(random).below(u64::from(SKIPPED_GENERATIONS)) as u32;
    let mut descriptors_max =
        descriptors_limit().map_or(DESCRIPTORS_MAX, |limit| limit / DESCRIPTORS_SHARE).min(DESCRIPTORS_MAX);
    loop {
        let dirs = Dirs { from, to, sharing, descriptors_max, skip_generations };
        match dirs.copy(progress) {
            // The process has others: files of the source that are held leave none for the target.
            Err(CopyError::Device(DeviceError::Exhausted { .. })) if descriptors_max > 1 => {
                descriptors_max /= 2;
                dirs.empty_target()?;
            }
            copied => return copied,
        }
    }
}

/// Parameters of one copy.
struct Dirs<'d> {
    from: &'d Path,
    to: &'d Path,
    sharing: Sharing,
    /// Files of the source that are kept open at most.
    descriptors_max: usize,
    skip_generations: u32,
}

impl Dirs<'_> {
    fn copy(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<CopyReport, CopyError> {
        let &Self { from, to, sharing, descriptors_max, skip_generations } = self;
        let mut source = FileDevice::open(from, &DeviceOptions { descriptors_max, ..portable() })?;
        let mut target = FileDevice::open(to, &portable())?;
        let mut link = |name: &str| match sharing {
            Sharing::Nothing => Linked::Refused,
            Sharing::Links => link(from, to, name),
        };
        let mut options = CopyOptions { link: &mut link, progress, piece_bytes: PIECE_BYTES, skip_generations };
        copy_store(&mut source, &mut target, &mut options)
    }

    /// Removes what a copy that failed has left. The mark is the caller's.
    fn empty_target(&self) -> Result<(), DeviceError> {
        let mut target = FileDevice::open(self.to, &portable())?;
        let names = target.list()?;
        names.iter().filter(|name| *name != PARTIAL_NAME).try_for_each(|name| target.unlink(name))
    }
}

fn link(from: &Path, to: &Path, name: &str) -> Linked {
    let is_gone = || from.join(name).symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    match hard_link(&from.join(name), &to.join(name)) {
        Ok(()) => Linked::Done,
        // The same error may be of the target's directory.
        Err(error) if error.kind() == ErrorKind::NotFound && is_gone() => Linked::Gone,
        // Another file system, one without links, or too many of them. A file that cannot be copied either is reported
        // then.
        Err(_) => Linked::Refused,
    }
}

fn portable() -> DeviceOptions {
    DeviceOptions { kind: DeviceKind::Portable, ..DeviceOptions::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_target_is_no_loss_of_the_source() {
        let dir = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
        FileDevice::open(&from, &portable()).unwrap().create("file").unwrap();
        // Its disk was unmounted, or it was removed.
        assert_eq!(link(&from, &to, "file"), Linked::Refused);
        assert_eq!(link(&from, &to, "dropped"), Linked::Gone);
        drop(FileDevice::open(&to, &portable()).unwrap());
        assert_eq!(link(&from, &to, "dropped"), Linked::Gone);
        assert_eq!(link(&from, &to, "file"), Linked::Done);
    }

    #[test]
    fn another_attempt_keeps_the_mark_of_an_unfinished_copy() {
        let dir = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
        let mut target = FileDevice::open(&to, &portable()).unwrap();
        for name in ["a-segment", PARTIAL_NAME, "manifest"] {
            target.create(name).unwrap();
        }
        let (sharing, descriptors_max, skip_generations) = (Sharing::Links, 1, 0);
        Dirs { from: &from, to: &to, sharing, descriptors_max, skip_generations }.empty_target().unwrap();
        assert_eq!(target.list().unwrap(), [PARTIAL_NAME]);
    }
}
