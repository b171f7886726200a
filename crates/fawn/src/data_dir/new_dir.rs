//! A directory for a copy of a data directory: new or empty, and with its name only once it is complete.
use super::{file, is_new, refuse};
use crate::failure::{Exit, Failure};
use fawn_ds::internals::backup::{
    BeginError, PARTIAL_NAME, PartialCopy, TargetState, is_unfinished, look_at_target, unfinished_dir,
};
use fawn_ds::internals::format::manifest;
use fawn_flash::DeviceError;
use std::cell::Cell;
use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

/// Without them a directory is no data directory: a server refuses it.
const NAMES_OF_DATA_DIRS: [&str; 2] = [manifest::FILE_NAME, file::NAME];

/// A directory that a command writes.
pub(crate) struct NewDir {
    path: PathBuf,
    /// Its name until it is complete: next to it, or within a directory that is there already.
    partial: PathBuf,
    begun: Cell<Begun>,
}

/// A copy in progress.
#[derive(Default)]
enum Begun {
    #[default]
    Nothing,
    /// In a directory that gets its name at the end.
    Alongside,
    Within(PartialCopy),
}

/// Creates a directory for its owner alone, durably.
pub(crate) fn create_private(dir: &Path) -> Result<(), Failure> {
    fawn_flash::create_dirs(dir, 0o700).map_err(Failure::about(Exit::Failed, dir.display()))
}

/// `path` with something after its last name. A slash behind that name is dropped.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

/// The path without links and `..`. Its end need not exist.
fn resolve(path: &Path) -> std::io::Result<PathBuf> {
    let whole = std::path::absolute(path)?;
    let found = whole.ancestors().find_map(|above| Some((above.canonicalize().ok()?, above)));
    let (mut resolved, above) = found.unwrap_or_else(|| (PathBuf::from("/"), Path::new("/")));
    // Missing directories will be created, so `..` behind one of them leads out of it again.
    for component in whole.strip_prefix(above).unwrap_or(&whole).components() {
        match component {
            Component::Normal(name) => {
                resolved.push(name);
                // Behind `..` a name may be there again, and be a link.
                resolved = resolved.canonicalize().unwrap_or(resolved);
            }
            Component::ParentDir => {
                resolved.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
        }
    }
    Ok(resolved)
}

/// Whether the path leads into the directory `source`.
pub(crate) fn is_within(source: &Path, path: &Path) -> Result<bool, Failure> {
    let source_dir = resolve(source).map_err(Failure::about(Exit::Data, source.display()))?;
    Ok(resolve(path).map_err(Failure::about(Exit::Data, path.display()))?.starts_with(source_dir))
}

/// Whether the directory exists. Refuses one that is not empty.
fn find_empty(path: &Path) -> Result<bool, Failure> {
    match look_at_target(path) {
        Ok(TargetState::Missing) => Ok(false),
        Ok(TargetState::Empty) => Ok(true),
        Ok(state) => refuse_filled(path, state),
        Err(error) => refuse(path, format_args!("{error}; choose another directory")),
    }
}

fn refuse_filled<T>(path: &Path, state: TargetState) -> Result<T, Failure> {
    if state == TargetState::Unfinished {
        return refuse_unfinished(&unfinished_dir(path));
    }
    refuse(path, "exists and is not empty; empty it, remove it, or choose another directory")
}

/// Refuses the directory of a copy that is not complete, whatever is there already, and a new one that a copy is to become.
pub(crate) fn refuse_unfinished_copy(dir: &Path) -> Result<(), Failure> {
    refuse_next_to_copy(dir)?;
    if !is_unfinished(dir, &NAMES_OF_DATA_DIRS) {
        return Ok(());
    }
    let words = format_args!(
        "holds an unfinished copy (`{PARTIAL_NAME}`): if none is being made, it was interrupted; remove `{PARTIAL_NAME}` \
         alone if it is an empty directory, otherwise everything in the directory, and copy again"
    );
    refuse(dir, words)
}

/// Refuses a new directory next to which a copy for it is being made: the copy could not get its name any more. A store
/// that is there already is not refused, as no copy can replace it.
fn refuse_next_to_copy(dir: &Path) -> Result<(), Failure> {
    let partial = partial_alongside(&resolve(dir).unwrap_or_else(|_| dir.to_owned()));
    if is_new(dir) && is_marked(&partial) { refuse_unfinished(&partial) } else { Ok(()) }
}

/// The name of a new directory's copy until it is complete.
fn partial_alongside(dir: &Path) -> PathBuf {
    with_suffix(dir, ".partial")
}

fn is_marked(partial: &Path) -> bool {
    partial.join(PARTIAL_NAME).symlink_metadata().is_ok_and(|mark| mark.is_file())
}

/// Marks the directory of a copy as unfinished, durably: some copies have a manifest from the first record on.
fn mark(partial: &Path) -> std::io::Result<()> {
    File::create_new(partial.join(PARTIAL_NAME))?;
    File::open(partial)?.sync_all()
}

/// Removes the mark, durably.
fn unmark(partial: &Path) -> std::io::Result<()> {
    std::fs::remove_file(partial.join(PARTIAL_NAME))?;
    File::open(partial)?.sync_all()
}

fn refuse_unfinished<T>(partial: &Path) -> Result<T, Failure> {
    refuse(partial, "is of a copy that is being made, or was interrupted: then remove it")
}

/// Refuses a copy whose name until it is complete is another directory's.
fn refuse_taken_name<T>(partial: &Path) -> Result<T, Failure> {
    // A kill before the mark leaves an empty directory.
    if is_marked(partial) || look_at_target(partial).is_ok_and(|state| state == TargetState::Empty) {
        return refuse_unfinished(partial);
    }
    let words =
        "is in the way: a copy has that name until it is complete; rename it, or choose another directory for the copy";
    refuse(partial, words)
}

impl NewDir {
    /// The directory `path` for a copy of `source`. It must not exist, or be empty, and not be within the source.
    pub(crate) fn choose(source: &Path, path: PathBuf) -> Result<Self, Failure> {
        // Without `/` or `/.` at the end: nothing can be renamed to `new/.`, and `link/` does not count as a link.
        let path: PathBuf = path.components().collect();
        if is_within(source, &path)? {
            return refuse(&path, format_args!("is in {}, which stays as it is; choose another one", source.display()));
        }
        refuse_next_to_copy(&path)?;
        // A directory that is there already may be a mount point, which cannot be renamed over.
        if find_empty(&path)? {
            return Ok(Self { partial: path.join(PARTIAL_NAME), path, begun: Cell::default() });
        }
        if path.file_name().is_none() {
            return refuse(&path, "does not exist, and does not end in a name; give the name of the new directory");
        }
        // The copy could not be renamed over it at the end.
        if path.is_symlink() {
            return refuse(&path, "is a link to nothing; remove it, or choose another directory");
        }
        let partial = partial_alongside(&path);
        if is_within(source, &partial)? {
            let (partial, source) = (partial.display(), source.display());
            let words = format_args!(
                "the copy would be {partial} until it is complete, and {source} stays as it is; choose another directory"
            );
            return refuse(&path, words);
        }
        Ok(Self { path, partial, begun: Cell::default() })
    }

    /// Removes what was written of it, after a failure; nothing once a verified copy is being moved or renamed.
    pub(crate) fn discard(&self) {
        match self.begun.take() {
            Begun::Nothing => {}
            // If it cannot be removed, the next attempt names it.
            Begun::Alongside => _ = std::fs::remove_dir_all(&self.partial),
            Begun::Within(copy) => copy.discard(),
        }
    }

    /// Its path, once it is complete.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates it, under the name that it has until then, and with the mark of an unfinished copy.
    pub(crate) fn begin(&self) -> Result<&Path, Failure> {
        self.create()?;
        mark(&self.partial).map_err(Failure::about(Exit::Failed, self.partial.display()))?;
        Ok(&self.partial)
    }

    fn create(&self) -> Result<(), Failure> {
        if self.partial.starts_with(&self.path) {
            self.begun.set(Begun::Within(self.begin_within()?));
            return Ok(());
        }
        if let Some(parent) = self.partial.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            create_private(parent)?;
        }
        match DirBuilder::new().mode(0o700).create(&self.partial) {
            Ok(()) => self.begun.set(Begun::Alongside),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return refuse_taken_name(&self.partial);
            }
            Err(error) => return Err(Failure::about(Exit::Failed, self.partial.display())(error)),
        }
        Ok(())
    }

    fn begin_within(&self) -> Result<PartialCopy, Failure> {
        match PartialCopy::begin(&self.path) {
            Ok(copy) => Ok(copy),
            // It was empty when it was chosen.
            Err(BeginError::NotEmpty(state)) => refuse_filled(&self.path, state),
            Err(BeginError::Device(error @ DeviceError::Locked { .. })) => Err(Failure::new(Exit::Data, error)),
            Err(BeginError::Device(error)) => Err(Failure::about(Exit::Failed, self.path.display())(error)),
        }
    }

    /// Gives it its name, durably.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        unmark(&self.partial).map_err(Failure::about(Exit::Failed, self.partial.display()))?;
        // Taken, so that nothing is discarded from here on: the copy is verified, and may be moved in part.
        if let Begun::Within(copy) = self.begun.take() {
            return copy.finish(&NAMES_OF_DATA_DIRS).map_err(|error| Failure::new(Exit::Failed, error));
        }
        let fail = Failure::about(Exit::Failed, self.path.display());
        std::fs::rename(&self.partial, &self.path).map_err(|error| {
            let (path, partial) = (self.path.display(), self.partial.display());
            let kept = format!("the copy is complete and was kept in {partial}: use it there, or rename it");
            Failure::new(Exit::Failed, format!("{path}: {error}; {kept}"))
        })?;
        let whole = std::path::absolute(&self.path).map_err(&fail)?;
        let synced = whole.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all());
        synced.map_err(&fail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn choose(source: &Path, path: &Path) -> Result<NewDir, String> {
        NewDir::choose(source, path.to_owned()).map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_suffix_follows_the_last_name() {
        for (path, expected) in [
            ("/b/new", "/b/new.partial"),
            ("/b/new/", "/b/new.partial"),
            ("/b/new//", "/b/new.partial"),
            ("/b/new/.", "/b/new.partial"),
            ("new/", "new.partial"),
            ("../new/", "../new.partial"),
            ("a.b", "a.b.partial"),
        ] {
            assert_eq!(with_suffix(Path::new(path), ".partial"), Path::new(expected), "{path}");
        }
    }

    #[test]
    fn a_slash_at_the_end_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let target = choose(&data, &dir.path().join("above/new/")).unwrap();
        let partial = target.begin().unwrap().to_owned();
        assert_eq!(partial, dir.path().join("above/new.partial"));
        std::fs::write(partial.join("file"), "content").unwrap();
        target.finish().unwrap();
        assert_eq!(std::fs::read(dir.path().join("above/new/file")).unwrap(), b"content");
        assert!(!partial.exists());

        let target = choose(&data, &dir.path().join("failed/")).unwrap();
        let partial = target.begin().unwrap().to_owned();
        target.discard();
        assert!(!partial.exists() && !dir.path().join("failed").exists());
    }

    #[test]
    fn targets_are_compared_without_links_and_parents() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        std::fs::create_dir_all(data.join("shard-0")).unwrap();
        symlink(&data, dir.path().join("link")).unwrap();
        symlink(dir.path().join("none"), dir.path().join("nowhere")).unwrap();
        for inside in [
            data.clone(),
            data.join("new"),
            data.join("shard-0/../new"),
            dir.path().join("link/new"),
            dir.path().join("missing/../data/new"),
            dir.path().join("missing/../link/new"),
            dir.path().join("link/shard-0/missing/.."),
        ] {
            let refused = choose(&data, &inside).err().unwrap_or_default();
            assert!(refused.contains("which stays as it is"), "{}: {refused}", inside.display());
        }
        for outside in [data.join("../new"), data.join("shard-0/../../new"), dir.path().join("data-new")] {
            assert!(choose(&data, &outside).is_ok(), "{}", outside.display());
            assert!(choose(&dir.path().join("link"), &outside).is_ok(), "{}", outside.display());
        }
        let refused = choose(&data, &dir.path().join("nowhere")).err().unwrap_or_default();
        assert!(refused.contains("is a link to nothing"), "{refused}");
        let refused = choose(&data, &dir.path().join("missing/..")).err().unwrap_or_default();
        assert!(refused.contains("does not end in a name"), "{refused}");
    }

    #[test]
    fn existing_targets_are_empty_directories() {
        let dir = tempfile::tempdir().unwrap();
        let (data, new) = (dir.path().join("data"), dir.path().join("new"));
        std::fs::create_dir_all(new.join("lost+found")).unwrap();
        let target = choose(&data, &new).unwrap();
        let partial = target.begin().unwrap().to_owned();
        assert_eq!(partial, new.join(PARTIAL_NAME));
        std::fs::write(partial.join("file"), "content").unwrap();
        let refused = choose(&data, &new).err().unwrap_or_default();
        assert!(refused.contains("copy.partial: is of a copy"), "{refused}");
        target.discard();
        assert!(!partial.exists());

        let target = choose(&data, &new).unwrap();
        std::fs::write(target.begin().unwrap().join("file"), "content").unwrap();
        target.finish().unwrap();
        assert!(!partial.exists() && new.join("lost+found").exists(), "a mount point keeps its name");
        assert_eq!(std::fs::read(new.join("file")).unwrap(), b"content");
        let refused = choose(&data, &new).err().unwrap_or_default();
        assert!(refused.contains("is not empty"), "{refused}");
        let refused = choose(&data, &new.join("file")).err().unwrap_or_default();
        assert!(refused.contains("Not a directory"), "{refused}");
    }

    #[test]
    fn an_existing_target_has_its_manifest_last() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("new");
        std::fs::create_dir(&new).unwrap();
        let target = choose(&dir.path().join("data"), &new).unwrap();
        let partial = target.begin().unwrap();
        for name in NAMES_OF_DATA_DIRS.into_iter().chain(["a-segment", "z-segment"]) {
            std::fs::write(partial.join(name), "content").unwrap();
        }
        // No file can be moved over it: the end is interrupted.
        std::fs::create_dir(new.join("a-segment")).unwrap();
        let error = target.finish().unwrap_err().to_string();
        assert!(NAMES_OF_DATA_DIRS.iter().all(|name| !new.join(name).exists()));
        target.discard();
        assert!(NAMES_OF_DATA_DIRS.iter().all(|name| partial.join(name).exists()), "the copy is kept");
        assert!(error.contains(&format!("was kept, in part in {}", partial.display())), "{error}");
    }

    #[test]
    fn a_verified_copy_that_cannot_get_its_name_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("new");
        let target = choose(&dir.path().join("data"), &new).unwrap();
        let partial = target.begin().unwrap().to_owned();
        std::fs::write(partial.join("file"), "content").unwrap();
        // As by a server that was started meanwhile.
        std::fs::create_dir(&new).unwrap();
        std::fs::write(new.join(manifest::FILE_NAME), "of another store").unwrap();
        let error = target.finish().unwrap_err().to_string();
        target.discard();
        assert_eq!(std::fs::read(partial.join("file")).unwrap(), b"content");
        assert!(!partial.join(PARTIAL_NAME).exists(), "it can be used where it is");
        assert!(error.contains(&format!("the copy is complete and was kept in {}", partial.display())), "{error}");
    }

    #[test]
    fn only_a_copy_is_called_one_that_can_be_removed() {
        let dir = tempfile::tempdir().unwrap();
        let [data, new, partial] = ["data", "new", "new.partial"].map(|name| dir.path().join(name));
        std::fs::create_dir(&partial).unwrap();
        let refused = |source: &Path| {
            let begun = choose(source, &new).and_then(|target| target.begin().map(drop).map_err(|e| e.to_string()));
            begun.unwrap_err()
        };
        assert!(refused(&data).contains("was interrupted: then remove it"), "killed before it was marked");
        std::fs::write(partial.join(manifest::FILE_NAME), "content").unwrap();
        for source in [&data, &partial] {
            let refused = refused(source);
            assert!(refused.contains("new.partial") && refused.contains("choose another"), "{refused}");
            assert!(!refused.contains("remove"), "{refused}");
        }
        mark(&partial).unwrap();
        assert!(refused(&data).contains("was interrupted: then remove it"));
        // Without the mark alone, the rest would pass for a store.
        let refused = choose(&data, &partial).map(drop).unwrap_err();
        assert!(refused.starts_with(&format!("{}: is of a copy", partial.display())), "{refused}");
    }
}
