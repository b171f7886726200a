//! Copies between directories, with links where the file system has them.
use super::{CopyError, CopyOptions, CopyReport, Linked, copy_store};
use fawn_flash::{DeviceKind, DeviceOptions, FileDevice, descriptors_limit, hard_link};
use fawn_types::random::SplitMix64;
use std::io::ErrorKind;
use std::path::Path;

/// Fewest generations that a copy skips: more than a store is opened by accident.
const SKIPPED_GENERATIONS: u32 = 1 << 16;
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
    let portable = DeviceOptions { kind: DeviceKind::Portable, ..DeviceOptions::default() };
    let descriptors_max =
        descriptors_limit().map_or(DESCRIPTORS_MAX, |limit| limit / DESCRIPTORS_SHARE).min(DESCRIPTORS_MAX);
    let mut source = FileDevice::open(from, &DeviceOptions { descriptors_max, ..portable.clone() })?;
    let mut target = FileDevice::open(to, &portable)?;
    let mut link = |name: &str| match sharing {
        Sharing::Nothing => Linked::Refused,
        Sharing::Links => match hard_link(&from.join(name), &to.join(name)) {
            Ok(()) => Linked::Done,
            Err(error) if error.kind() == ErrorKind::NotFound => Linked::Gone,
            // Another file system, one without links, or too many of them. A file that cannot be opened either is
            // reported then.
            Err(_) => Linked::Refused,
        },
    };
    let skip_generations = SKIPPED_GENERATIONS + SplitMix64::new(random).below(u64::from(SKIPPED_GENERATIONS)) as u32;
    let mut options = CopyOptions { link: &mut link, progress, piece_bytes: PIECE_BYTES, skip_generations };
    copy_store(&mut source, &mut target, &mut options)
}
