//! Destination of a dump: standard output, or a file that gets its name when it is written and durable.
use crate::data_dir::{is_within, refuse, with_suffix};
use crate::failure::{Exit, Failure};
use rustix::fs::OFlags;
use std::fs::{File, TryLockError};
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const BUFFER_BYTES: usize = 1 << 20;

/// An open destination.
pub(crate) struct DumpOutput {
    writer: BufWriter<Box<dyn Write>>,
    file: Option<NamedLater>,
    /// Name in messages.
    name: String,
}

/// A file that is written under the name `partial`, and locked against other dumps until it is closed.
struct NamedLater {
    file: Arc<File>,
    partial: PathBuf,
    path: PathBuf,
    /// It stays, under the one name or the other.
    is_kept: bool,
}

/// Refuses a destination that can be no file, or is in the dumped directory: it could replace a file of the store. Cheap, for a
/// check before the stores are opened: that takes minutes without a checkpoint.
pub(crate) fn refuse_unusable(source: &Path, path: &Path) -> Result<(), Failure> {
    refuse_impossible(path)?;
    // A file that is there is replaced by name, wherever a link of that name leads.
    if is_within(source, parent_of(path))? {
        return refuse(path, format_args!("is in {}, which stays as it is; choose another file", source.display()));
    }
    Ok(())
}

fn refuse_impossible(path: &Path) -> Result<(), Failure> {
    let text = path.as_os_str().as_encoded_bytes();
    let names_directory = text.ends_with(b"/") || text.ends_with(b"/.") || path.file_name().is_none();
    if names_directory || path.is_dir() {
        return Err(refused(path, "is a directory; give the name of a file"));
    }
    if !parent_of(path).is_dir() {
        return Err(refused(path, "its directory does not exist"));
    }
    Ok(())
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl DumpOutput {
    /// Opens `path`, or standard output.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else {
            return Ok(Self::new(std::io::stdout(), None, "standard output".to_owned()));
        };
        let name = path.display().to_string();
        // A pipe or a device has no other name, nor has `/dev/stdout`, even if it leads to a file.
        let is_special = path.metadata().is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir());
        if is_special || (path.is_symlink() && path.starts_with("/dev")) {
            let file = File::options().write(true).open(path).map_err(Failure::about(Exit::Failed, &name))?;
            return Ok(Self::new(file, None, name));
        }
        let partial = with_suffix(path, ".partial");
        let file = Arc::new(create_partial(&partial)?);
        let named_later = NamedLater { file: Arc::clone(&file), partial, path: path.to_owned(), is_kept: false };
        Ok(Self::new(file, Some(named_later), name))
    }

    fn new(writer: impl Write + 'static, file: Option<NamedLater>, name: String) -> Self {
        let writer: Box<dyn Write> = Box::new(writer);
        Self { writer: BufWriter::with_capacity(BUFFER_BYTES, writer), file, name }
    }

    /// Calls `write`; names the destination in its error.
    pub(crate) fn write<T>(
        &mut self,
        write: impl FnOnce(&mut BufWriter<Box<dyn Write>>) -> std::io::Result<T>,
    ) -> Result<T, Failure> {
        write(&mut self.writer).map_err(Failure::about(Exit::Failed, &self.name))
    }

    /// Everything is written: makes it durable under its name. A dump that is not complete, because the store is damaged, gets
    /// another one if there is a file of its name. Returns that one.
    pub(crate) fn finish(mut self, is_complete: bool) -> Result<Option<PathBuf>, Failure> {
        self.write(|writer| writer.flush())?;
        let Some(file) = &mut self.file else { return Ok(None) };
        let is_kept = !is_complete && file.path.symlink_metadata().is_ok();
        let other_name = is_kept.then(|| with_suffix(&file.path, ".damaged"));
        let path = other_name.clone().unwrap_or_else(|| file.path.clone());
        file.publish(&path)?;
        Ok(other_name)
    }
}

impl NamedLater {
    /// Gives the file its name, durably.
    fn publish(&mut self, path: &Path) -> Result<(), Failure> {
        let fail = Failure::about(Exit::Failed, path.display());
        self.file.sync_all().map_err(&fail)?;
        let renamed = std::fs::rename(&self.partial, path);
        // The dump may have taken hours. If it cannot get the name, as that of a directory, the temporary one must do.
        self.is_kept = true;
        renamed.map_err(|error| {
            let partial = self.partial.display();
            refused(path, &format!("{error}; the dump is {partial}, rename it: the next one replaces it"))
        })?;
        // Without this, a power loss could take the new name back.
        File::open(parent_of(path)).and_then(|dir| dir.sync_all()).map_err(&fail)
    }
}

impl Drop for NamedLater {
    fn drop(&mut self) {
        // After the rename the temporary name may be another dump's.
        if !self.is_kept {
            // A file that stays is a leftover, which the next dump removes.
            let _: std::io::Result<()> = std::fs::remove_file(&self.partial);
        }
    }
}

/// Creates and locks the file of an unfinished dump.
///
/// Only the process that has locked the file of this name removes or renames it, so that no dump loses its file to
/// another one.
fn create_partial(partial: &Path) -> Result<File, Failure> {
    remove_leftover(partial)?;
    // A dump has everything that the data directory has, so only its owner may read it. A file that was there, or one
    // behind a link, could have another owner or mode: this one is new.
    let file = match File::options().write(true).create_new(true).mode(0o600).open(partial) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(in_use(partial)),
        Err(error) => return Err(refused(partial, &error.to_string())),
    };
    // Another dump may have taken the new file for a leftover before it was locked.
    if !is_locked(&file, partial) {
        return Err(in_use(partial));
    }
    Ok(file)
}

/// Removes the file of a dump that was interrupted.
fn remove_leftover(partial: &Path) -> Result<(), Failure> {
    let fail = |error: std::io::Error| refused(partial, &error.to_string());
    match partial.symlink_metadata() {
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => return Err(refused(partial, "is not the file of an interrupted dump; remove it")),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fail(error)),
    }
    let no_follow = OFlags::NOFOLLOW.bits().cast_signed();
    let opened = File::options().read(true).write(true).custom_flags(no_follow).open(partial);
    let leftover = opened.map_err(fail)?;
    if !is_locked(&leftover, partial) {
        return Err(in_use(partial));
    }
    std::fs::remove_file(partial).map_err(fail)
}

/// Locks `file`. Returns whether no other process has locked it, and `path` still names it.
fn is_locked(file: &File, path: &Path) -> bool {
    // Some file systems have no locks. There, a dump must still be possible.
    if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
        return false;
    }
    let Ok((named, locked)) = path.symlink_metadata().and_then(|named| Ok((named, file.metadata()?))) else {
        return false;
    };
    (named.dev(), named.ino()) == (locked.dev(), locked.ino())
}

fn in_use(partial: &Path) -> Failure {
    refused(partial, "another dump is writing it; wait for its end, or choose another file")
}

fn refused(path: &Path, words: &str) -> Failure {
    Failure::new(Exit::Failed, format!("{}: {words}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn open(path: &Path) -> Result<DumpOutput, String> {
        DumpOutput::open(Some(path)).map_err(|failure| failure.to_string())
    }

    fn write(mut output: DumpOutput, bytes: &[u8]) {
        output.write(|writer| writer.write_all(bytes)).unwrap();
        assert_eq!(output.finish(true).unwrap(), None);
    }

    #[test]
    fn a_second_dump_to_a_file_is_refused_while_the_first_writes_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dump");
        let mut first = open(&path).unwrap();
        first.write(|writer| writer.write_all(b"first, ").and_then(|()| writer.flush())).unwrap();
        let refused = open(&path).err().unwrap_or_default();
        assert!(refused.contains("another dump is writing it"), "{refused}");
        write(first, b"whole");
        assert_eq!(std::fs::read(&path).unwrap(), b"first, whole");
        write(open(&path).unwrap(), b"second");
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
    }

    #[test]
    fn a_dump_that_fails_gives_its_space_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dump");
        std::fs::write(&path, "the last one").unwrap();
        let mut failed = open(&path).unwrap();
        failed.write(|writer| writer.write_all(b"half").and_then(|()| writer.flush())).unwrap();
        drop(failed);
        assert_eq!(dir.path().read_dir().unwrap().count(), 1, "an earlier dump alone");
        assert_eq!(std::fs::read(&path).unwrap(), b"the last one");
    }

    #[test]
    fn a_dump_that_gets_no_name_stays_under_the_temporary_one() {
        let dir = tempfile::tempdir().unwrap();
        let [path, partial] = ["dump", "dump.partial"].map(|name| dir.path().join(name));
        std::fs::write(&path, "the last one").unwrap();
        std::fs::create_dir(dir.path().join("dump.damaged")).unwrap();
        let mut output = open(&path).unwrap();
        output.write(|writer| writer.write_all(b"what is left")).unwrap();
        let refused = output.finish(false).err().map(|failure| failure.to_string()).unwrap_or_default();
        let (before, after) = refused.split_once("; ").unwrap_or_default();
        assert!(before.contains("dump.damaged: ") && after.contains(&*partial.to_string_lossy()), "{refused}");
        assert_eq!(std::fs::read(&partial).unwrap(), b"what is left");
        assert_eq!(std::fs::read(&path).unwrap(), b"the last one");
    }

    #[test]
    fn a_leftover_is_replaced_by_a_private_file() {
        let dir = tempfile::tempdir().unwrap();
        let (path, partial) = (dir.path().join("dump"), dir.path().join("dump.partial"));
        std::fs::write(&partial, "a longer leftover").unwrap();
        std::fs::set_permissions(&partial, PermissionsExt::from_mode(0o666)).unwrap();
        std::fs::hard_link(&partial, dir.path().join("other")).unwrap();
        write(open(&path).unwrap(), b"new");
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read(dir.path().join("other")).unwrap(), b"a longer leftover");
        assert!(!partial.exists());
    }

    #[test]
    fn a_link_in_place_of_the_partial_file_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, target) = (dir.path().join("dump"), dir.path().join("target"));
        std::fs::write(&target, "precious").unwrap();
        symlink(&target, dir.path().join("dump.partial")).unwrap();
        let refused = open(&path).err().unwrap_or_default();
        assert!(refused.contains("is not the file of an interrupted dump"), "{refused}");
        assert_eq!(std::fs::read(&target).unwrap(), b"precious");
    }

    #[test]
    fn a_file_that_is_no_longer_named_counts_as_another_dumps() {
        let dir = tempfile::tempdir().unwrap();
        let (path, partial) = (dir.path().join("dump"), dir.path().join("dump.partial"));
        std::fs::write(&partial, "first").unwrap();
        let file = File::open(&partial).unwrap();
        std::fs::rename(&partial, &path).unwrap();
        assert!(!is_locked(&file, &partial), "the name is gone");
        std::fs::write(&partial, "second").unwrap();
        assert!(!is_locked(&file, &partial), "another file has the name");
        assert!(is_locked(&file, &path));
    }

    #[test]
    fn directories_and_files_in_none_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for path in [dir.path().to_owned(), dir.path().join("new/"), dir.path().join("new/."), dir.path().join("..")] {
            let refused = refuse_impossible(&path).err().map(|failure| failure.to_string()).unwrap_or_default();
            assert!(refused.contains("is a directory"), "{}: {refused}", path.display());
        }
        let refused = refuse_impossible(&dir.path().join("missing/new")).err().map(|failure| failure.to_string());
        assert!(refused.unwrap_or_default().contains("its directory does not exist"));
        for path in [dir.path().join("new"), PathBuf::from("new"), PathBuf::from("/dev/null")] {
            assert!(refuse_impossible(&path).is_ok(), "{}", path.display());
        }
    }
}
