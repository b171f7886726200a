//! Verified copies of data directories, of all shards: what backing up and restoring have in common.
use super::check::verify;
use crate::data_dir::{Layout, NewDir, create_private, is_member, refuse};
use crate::failure::{Exit, Failure};
use crate::printing::counted;
use crate::server::{raise_descriptors, random_bytes};
use fawn_ds::internals::backup::{CopyError, CopyReport, Sharing, copy_dir};
use fawn_flash::DeviceError;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// A finished copy.
pub(crate) struct DataCopy {
    path: PathBuf,
    report: CopyReport,
}

impl DataCopy {
    /// Its directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a copy of it can be made.
    pub(crate) const fn can_be_copied(&self) -> bool {
        self.report.can_be_copied()
    }
}

impl fmt::Display for DataCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CopyReport { segments, linked_files, copied_bytes, .. } = self.report;
        let (segments, files) = (counted(segments, "segment"), counted(linked_files, "file"));
        write!(f, "{segments}; {files} linked, {} copied", HumanBytes(copied_bytes))
    }
}

/// Copies the data directory `from`, in use or not, to `to`, and verifies the copy before it gets its name.
pub(crate) fn copy(from: &Path, to: PathBuf, is_whole: bool) -> Result<DataCopy, Failure> {
    let layout = Layout::in_use(from)?;
    layout.shard_dirs().try_for_each(|(_, dir)| refuse_member(&dir))?;
    let target = NewDir::choose(from, to)?;
    raise_descriptors();
    let sharing = if is_whole { Sharing::Nothing } else { Sharing::Links };
    let report = copy_into(&layout, &target, sharing).inspect_err(|_| target.discard())?;
    Ok(DataCopy { path: target.path().to_owned(), report })
}

fn copy_into(layout: &Layout, target: &NewDir, sharing: Sharing) -> Result<CopyReport, Failure> {
    let partial = target.begin()?;
    let report = copy_stores(layout, partial, sharing)?;
    let damaged = verify(partial)?;
    let is_of_source = |copy: &PathBuf| {
        copy.strip_prefix(partial).is_ok_and(|name| begins_with_content(&layout.dir().join(name), copy))
    };
    if damaged.iter().any(is_of_source) {
        let from = layout.dir();
        return refuse(from, format_args!("is damaged; `fawn check {}` tells where", from.display()));
    }
    if !damaged.is_empty() {
        return refuse(target.path(), "the copy is corrupt, as listed; look at the kernel's log and at both disks");
    }
    target.finish()?;
    Ok(report)
}

/// Whether a file begins with all bytes of its copy, as one does that is linked.
fn begins_with_content(file: &Path, copy: &Path) -> bool {
    let open = |path| File::open(path).map(|file| BufReader::with_capacity(1 << 20, file));
    let (Ok(mut file), Ok(mut copy)) = (open(file), open(copy)) else { return false };
    while let (Ok(found), Ok(copied)) = (file.fill_buf(), copy.fill_buf()) {
        let len = found.len().min(copied.len());
        if copied.is_empty() {
            return true;
        }
        if len == 0 || found[..len] != copied[..len] {
            return false;
        }
        file.consume(len);
        copy.consume(len);
    }
    false
}

/// Refuses the store of a cluster's member: restored, it would be older than what the others know of it.
fn refuse_member(dir: &Path) -> Result<(), Failure> {
    if is_member(dir) {
        let words =
            "is the store of a cluster's member: the others have its data. A copy of this member alone: `fawn dump`";
        return refuse(dir, words);
    }
    Ok(())
}

fn copy_stores(layout: &Layout, partial: &Path, sharing: Sharing) -> Result<CopyReport, Failure> {
    let mut copy = layout.create_like(partial)?;
    let dirs: Vec<_> = copy.shard_dirs().map(|(_, dir)| dir).collect();
    let mut total = CopyReport { generations_left: u32::MAX, ..CopyReport::default() };
    for ((_, from), to) in layout.shard_dirs().zip(&dirs) {
        create_private(to)?;
        let report = copy_store(&from, to, sharing)?;
        total.segments += report.segments;
        total.linked_files += report.linked_files;
        total.copied_bytes += report.copied_bytes;
        total.generations_left = total.generations_left.min(report.generations_left);
    }
    copy.finish()?;
    Ok(total)
}

fn copy_store(from: &Path, to: &Path, sharing: Sharing) -> Result<CopyReport, Failure> {
    let bar = ProgressBar::new(0);
    let template = "{bar:30} {percent:>3}%  {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left";
    // The template is a constant; indicatif's default replaces one that a new version rejects.
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    let mut progress = |copied: u64, planned: u64| {
        bar.set_length(planned);
        bar.set_position(copied);
    };
    let copied = copy_dir(from, to, sharing, u64::from_le_bytes(random_bytes()?), &mut progress);
    bar.finish_and_clear();
    copied.map_err(|error| copy_failure(from, to, &error))
}

fn copy_failure(from: &Path, to: &Path, error: &CopyError) -> Failure {
    let (shown, to) = (from.display(), to.display());
    match error {
        CopyError::Device(DeviceError::Full { dir }) => Failure::no_space(dir),
        CopyError::Device(DeviceError::Permission { path }) if path.starts_with(&format!("{shown}: ")) => {
            Failure::new(Exit::Data, DeviceError::Permission { path: path.clone() })
        }
        CopyError::Device(error) => Failure::new(Exit::Failed, format!("copying {shown} to {to}: {error}")),
        error => Failure::new(Exit::Data, format!("{shown}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_without_space_asks_for_no_deletes() {
        let error = CopyError::Device(DeviceError::Full { dir: "/new".to_owned() });
        let words = copy_failure(Path::new("/old"), Path::new("/new"), &error).to_string();
        assert!(words.contains("/new; free space there") && !words.contains("delete"), "{words}");
    }

    #[test]
    fn a_source_without_permission_is_a_data_directory_that_cannot_be_used() {
        let denied = |dir: &str| {
            let error = CopyError::Device(DeviceError::Permission { path: format!("{dir}: manifest") });
            format!("{:?}", copy_failure(Path::new("/old"), Path::new("/new"), &error))
        };
        assert!(denied("/old").contains("exit: Data"), "{}", denied("/old"));
        assert!(denied("/new").contains("exit: Failed"), "{}", denied("/new"));
    }
}
