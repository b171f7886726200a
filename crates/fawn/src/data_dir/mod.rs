//! Layout of a data directory: number and places of its shards' stores, fixed at creation
//! (docs/formats/data-directory.md).
//!
//! A single shard's store is in the directory itself. Each of several shards has its own directory, and `layout.toml`,
//! which is durable before any of them, records their number and what their stores share.
mod file;
mod new_dir;
mod stores;

use new_dir::refuse_unfinished_copy;
pub(crate) use new_dir::{NewDir, create_private, is_within, with_suffix};
pub(crate) use stores::is_member;

use crate::config::{Settings, ShardCount, Size};
use crate::failure::{Exit, Failure};
use fawn_ds::internals::format::{checkpoint, manifest, run, segment, tail};
use fawn_flash::DirLock;
use fawn_node::Placement;
use fawn_types::{HashSecret, ShardId};
use file::{LayoutFile, LayoutFileError};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The layout of a data directory; with several shards it holds the directory's lock.
#[derive(Debug)]
pub(crate) struct Layout {
    dir: PathBuf,
    /// Several shards. Without the lock the layout only describes a directory that may be in use.
    several: Option<(LayoutFile, Option<DirLock>)>,
}

/// A refusal that begins with the directory; `words` name the remedy.
pub(crate) fn refuse<T>(dir: &Path, words: impl std::fmt::Display) -> Result<T, Failure> {
    Err(Failure::new(Exit::Data, format!("{}: {words}", dir.display())))
}

/// Refuses a path that leads to no directory, or to an unfinished copy.
pub(crate) fn refuse_no_data_dir(dir: &Path) -> Result<(), Failure> {
    if dir.is_dir() {
        return refuse_unfinished_copy(dir);
    }
    refuse_file(dir)?;
    refuse(dir, "no such directory; give the data directory of a store")
}

/// Refuses a file where a directory may be, or be made.
pub(crate) fn refuse_file(dir: &Path) -> Result<(), Failure> {
    if dir.exists() && !dir.is_dir() { refuse(dir, "is a file; give a directory") } else { Ok(()) }
}

fn named(path: &Path) -> impl Fn(std::io::Error) -> Failure {
    let path = path.display();
    move |error| match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Failure::new(Exit::Failed, format!("{path}: {error}")),
        _ => Failure::new(Exit::Data, format!("{path}: {error}; give the directory to the user that runs fawn")),
    }
}

impl Layout {
    /// One store in `dir` itself, without checks: for callers that keep several stores there themselves.
    pub(crate) fn flat(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), several: None }
    }

    /// The layout of the directory that `settings` name. A new directory is laid out as they ask, with `secret`.
    /// Everything that can be checked without opening the stores has been checked.
    pub(crate) fn settle(settings: &Settings, secret: HashSecret) -> Result<Self, Failure> {
        let dir = &settings.dir;
        let asked = settings.shards.map(|_| settings.shards_if_new());
        refuse_shard_alone(dir)?;
        refuse_member_alone(dir)?;
        refuse_unfinished_copy(dir)?;
        if !is_taken(dir) {
            // Before the lock, which is a file.
            refuse_foreign(dir)?;
        }
        // The store of a single shard locks the directory itself.
        let is_several = asked.is_some_and(|shards| shards > 1) || has(dir, file::NAME)?;
        let lock = is_several.then(|| lock(dir)).transpose()?;
        let found = find(dir)?;
        let made = match &found {
            FoundLayout::Nothing => None,
            FoundLayout::Flat => Some(1),
            FoundLayout::Several(file) => Some(file.shards),
        };
        if let (Some(ShardCount::Number(asked)), Some(made)) = (settings.shards, made)
            && asked != made
        {
            let plural = if made == 1 { "" } else { "s" };
            return refuse(
                dir,
                format_args!(
                    "was made for {made} shard{plural}, and shards = {asked} is asked for; start it without that setting, \
                     or choose a new directory and load the data into it"
                ),
            );
        }
        // The value of `auto` may differ from the directory's number after a change of machine.
        let shards = made.or(asked).unwrap_or(1);
        if made.is_none() && shards == 1 {
            refuse_shard_dirs(dir)?;
        }
        let Some(lock) = lock.filter(|_| shards > 1) else { return Ok(Self::flat(dir)) };
        let file = match found {
            FoundLayout::Several(file) => file,
            FoundLayout::Flat | FoundLayout::Nothing => {
                let file = LayoutFile { shards, secret, is_made: false };
                file::write(dir, &file).map_err(named(&dir.join(file::NAME)))?;
                file
            }
        };
        stores::look(dir, &file)?;
        Ok(Self { dir: dir.clone(), several: Some((file, Some(lock))) })
    }

    /// The existing layout of `dir`, for a check: changes nothing. Stores may be missing. `None`: one store, or none, in the
    /// directory itself.
    pub(crate) fn existing(dir: &Path) -> Result<Option<Self>, Failure> {
        let FoundLayout::Several(_) = find(dir)? else { return Ok(None) };
        let lock = lock(dir)?;
        let FoundLayout::Several(file) = find(dir)? else {
            return refuse(dir, "changes while it is looked at; try again");
        };
        stores::look_at_present(dir, &file)?;
        Ok(Some(Self { dir: dir.to_owned(), several: Some((file, Some(lock))) }))
    }

    /// The existing layout of `dir` for reading its stores, whatever state they are in: changes nothing. A directory
    /// without a layout file is taken for one store.
    pub(crate) fn offline(dir: &Path) -> Result<Self, Failure> {
        let several = match find(dir)? {
            FoundLayout::Several(file) => Some((file, Some(lock(dir)?))),
            FoundLayout::Flat | FoundLayout::Nothing => None,
        };
        Ok(Self { dir: dir.to_owned(), several })
    }

    /// Refuses a copy of one shard by itself, and of stores that are swapped or foreign: keys would be where no server looks for
    /// them.
    pub(crate) fn refuse_misplaced(&self) -> Result<(), Failure> {
        refuse_shard_alone(&self.dir)?;
        self.several.iter().try_for_each(|(file, _)| stores::look_at_present(&self.dir, file))
    }

    /// The existing layout of `dir`, which may be in use: its files are only read.
    pub(crate) fn in_use(dir: &Path) -> Result<Self, Failure> {
        refuse_no_data_dir(dir)?;
        refuse_shard_alone(dir)?;
        let several = match find(dir)? {
            FoundLayout::Several(file) if file.is_made => Some((file, None)),
            FoundLayout::Several(_) => return refuse(dir, "its first start was interrupted: it holds nothing yet"),
            FoundLayout::Flat => None,
            FoundLayout::Nothing => return refuse(dir, "holds no store: it has no manifest; give a data directory"),
        };
        several.iter().try_for_each(|(file, _)| stores::look(dir, file))?;
        Ok(Self { dir: dir.to_owned(), several })
    }

    /// A new layout in the empty directory `dir` with the same shards, secret included. [`Layout::finish`] writes it.
    pub(crate) fn create_like(&self, dir: &Path) -> Result<Self, Failure> {
        let Some((file, _)) = &self.several else { return Ok(Self::flat(dir)) };
        let lock = lock(dir)?;
        // Not written yet: under `making` a start would create an empty store in place of each that is not copied.
        let file = LayoutFile { is_made: false, ..*file };
        Ok(Self { dir: dir.to_owned(), several: Some((file, Some(lock))) })
    }

    /// Refuses a single store that another process has locked. Several are locked by the layout.
    pub(crate) fn refuse_in_use(&self) -> Result<(), Failure> {
        if self.several.is_some() || !self.dir.is_dir() { Ok(()) } else { lock(&self.dir).map(drop) }
    }

    /// Describes the loss if the store of this shard is missing. An unfinished layout has none to lose.
    pub(crate) fn missing(&self, shard: ShardId) -> Option<String> {
        let (file, _) = self.several.as_ref()?;
        stores::missing(&self.dir, file, shard.0)
    }

    /// Why the store of this shard has no keys that are this directory's and in no other store, as the end of a sentence.
    pub(crate) fn superfluous(&self, shard: ShardId) -> Result<Option<String>, Failure> {
        self.several.as_ref().map_or(Ok(None), |(file, _)| stores::superfluous(&self.dir, file, shard.0))
    }

    /// The data directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Number of shards.
    pub(crate) fn shards(&self) -> u16 {
        self.several.as_ref().map_or(1, |(file, _)| file.shards)
    }

    /// The shards: their slices, and their stores' directories.
    pub(crate) fn shard_dirs(&self) -> impl Iterator<Item = (Placement, PathBuf)> {
        let count = self.shards();
        let dir = move |shard| if count == 1 { self.dir.clone() } else { store_dir(&self.dir, shard) };
        (0..count).filter_map(move |shard| Some((Placement::new(ShardId(shard), count)?, dir(shard))))
    }

    /// The size of the segments of the stores that exist; `None`: there are none, or opening one reports its fault.
    pub(crate) fn segment(&self) -> Option<Size> {
        let made = self.shard_dirs().find_map(|(_, dir)| stores::identity(&dir))?;
        Some(Size(u64::from(made.segment_bytes)))
    }

    /// The common secret, if there are several stores.
    pub(crate) fn secret(&self) -> Option<HashSecret> {
        self.several.as_ref().map(|(file, _)| file.secret)
    }

    /// Whether stores may be missing, because no client was ever served.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.several.as_ref().is_some_and(|(file, _)| !file.is_made)
    }

    /// Records that every store exists durably: from now on a missing one is lost, not new. Call before clients are
    /// let in.
    pub(crate) fn finish(&mut self) -> Result<(), Failure> {
        match &mut self.several {
            Some((file, _)) if !file.is_made => {
                file.is_made = true;
                file::write(&self.dir, file).map_err(named(&self.dir.join(file::NAME)))
            }
            _ => Ok(()),
        }
    }
}

fn lock(dir: &Path) -> Result<DirLock, Failure> {
    DirLock::take(dir).map_err(|error| Failure::new(Exit::Data, error))
}

/// Refuses the directory of one shard of several: it has a slice of the keys only.
fn refuse_shard_alone(dir: &Path) -> Result<(), Failure> {
    // A missing or inaccessible directory is reported elsewhere.
    let Ok(whole) = dir.canonicalize() else { return Ok(()) };
    let Some((parent, name)) = whole.parent().zip(whole.file_name()) else { return Ok(()) };
    if is_of_shard(name) && parent.join(file::NAME).exists() {
        let words = format_args!("is one shard of the data directory {}: give that one", parent.display());
        return refuse(dir, words);
    }
    Ok(())
}

/// Refuses the store of a cluster's member: what it serves is agreed with the others.
fn refuse_member_alone(dir: &Path) -> Result<(), Failure> {
    if !is_member(dir) {
        return Ok(());
    }
    let whole = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let all = whole.parent().unwrap_or(&whole).display();
    refuse(dir, format_args!("is the store of a cluster's member; start all of them with `fawn demo --dir {all}`"))
}

/// Refuses to create a store among other files: a wrong `--dir` is noticed at once, and `rm -r` stays safe.
fn refuse_foreign(dir: &Path) -> Result<(), Failure> {
    for name in names(dir)? {
        // Files that an interrupted start leaves, files whose loss is reported elsewhere, and
        // files of a new file system.
        let is_ours = name.to_str().is_some_and(|name| {
            ["LOCK", manifest::NEW_FILE_NAME, manifest::SPARE_FILE_NAME, tail::FILE_NAME, file::NEW_NAME, "lost+found"]
                .contains(&name)
                || segment::is_file_name(name)
        });
        if !is_ours && !is_of_shard(&name) {
            let name = name.to_string_lossy();
            return refuse(
                dir,
                format_args!("holds no store, but other files (`{name}`); give a directory of its own"),
            );
        }
    }
    Ok(())
}

/// Refuses to create a single store among directories for those of several shards: their disks would stay empty.
fn refuse_shard_dirs(dir: &Path) -> Result<(), Failure> {
    if let Some(name) = names(dir)?.iter().find(|name| is_of_shard(name)) {
        let name = name.to_string_lossy();
        let words = format_args!(
            "is prepared for several shards (`{name}`), and one is asked for; give their number as shards, or remove \
             their directories"
        );
        return refuse(dir, words);
    }
    Ok(())
}

/// Whether a `fawn serve` keeps its data there.
pub(crate) fn is_taken(dir: &Path) -> bool {
    dir.join(manifest::FILE_NAME).exists() || dir.join(file::NAME).exists()
}

/// Whether nothing of a store is there, not even of one that lost its manifest.
pub(crate) fn is_new(dir: &Path) -> bool {
    !is_taken(dir)
        && !names(dir).is_ok_and(|names| names.iter().any(|name| is_of_store(name)))
        && !has_shard_stores(dir)
}

/// Whether stores of shards are in the directory, perhaps without their manifests. Directories for them may be there
/// before the first start, as mount points.
fn has_shard_stores(dir: &Path) -> bool {
    let holds_store = |shard: &OsString| {
        // A directory that cannot be listed may hold one.
        is_of_shard(shard) && names(&dir.join(shard)).map_or(true, |names| names.iter().any(|name| is_of_store(name)))
    };
    names(dir).is_ok_and(|names| names.iter().any(holds_store))
}

/// Whether it is the name of a file that a store keeps data in.
fn is_of_store(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| {
        name == manifest::FILE_NAME
            || segment::is_file_name(name)
            || run::is_file_name(name)
            || checkpoint::is_file_name(name)
    })
}

/// Free space of the disk where `dir` is, or would be made; `None`: unknown.
pub(crate) fn free_bytes(dir: &Path) -> Option<u64> {
    let existing = |place: &Path| {
        let place = if place.as_os_str().is_empty() { Path::new(".") } else { place };
        rustix::fs::statvfs(place).ok()
    };
    let space = dir.ancestors().find_map(existing)?;
    Some(space.f_bavail.saturating_mul(space.f_frsize))
}

/// Whether it is the name of a shard's directory.
fn is_of_shard(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with("shard-"))
}

fn store_dir(dir: &Path, shard: u16) -> PathBuf {
    dir.join(format!("shard-{shard}"))
}

/// The layout found in a directory.
enum FoundLayout {
    Nothing,
    Flat,
    Several(LayoutFile),
}

fn has(dir: &Path, name: &str) -> Result<bool, Failure> {
    dir.join(name).try_exists().map_err(named(&dir.join(name)))
}

/// The names in a directory.
fn names(dir: &Path) -> Result<Vec<OsString>, Failure> {
    let entries = std::fs::read_dir(dir).map_err(named(dir))?;
    entries.map(|entry| Ok(entry.map_err(named(dir))?.file_name())).collect()
}

fn find(dir: &Path) -> Result<FoundLayout, Failure> {
    let is_flat = has(dir, manifest::FILE_NAME)?;
    let path = dir.join(file::NAME);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(named(&path)(error)),
        Err(_) if is_flat => return Ok(FoundLayout::Flat),
        // The layout file is created before the first of them.
        Err(_) if has_shard_stores(dir) => {
            return refuse(
                &path,
                "missing, though stores of shards are here; restore it from a copy of the directory, nothing was changed",
            );
        }
        Err(_) => return Ok(FoundLayout::Nothing),
    };
    match file::decode(&bytes) {
        Ok(_) if is_flat => refuse(
            dir,
            format_args!(
                "holds a store of its own (`{}`) and one of several shards (`{}`); move the files of one of them away",
                manifest::FILE_NAME,
                file::NAME
            ),
        ),
        Ok(file) => Ok(FoundLayout::Several(file)),
        Err(LayoutFileError::Newer(format)) => {
            refuse(&path, format_args!("has format {format}, from a newer fawn; start that one or a later one"))
        }
        Err(LayoutFileError::Corrupt) => {
            refuse(&path, "corrupt; restore it from a copy of the directory, nothing was changed")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SettingFlags;
    use std::fs::{create_dir, write};

    fn settle(dir: &Path) -> Result<Layout, String> {
        let shards = Some(ShardCount::Number(2));
        let flags = SettingFlags { dir: Some(dir.to_owned()), shards, ..SettingFlags::default() };
        let settings = Settings::resolve(flags, SettingFlags::default()).unwrap();
        Layout::settle(&settings, HashSecret([7; 16])).map_err(|failure| failure.to_string())
    }

    fn make_store(dir: &Path, shard: u16) {
        let store = store_dir(dir, shard);
        create_dir(&store).unwrap();
        write(store.join(manifest::FILE_NAME), "opening the store would read this").unwrap();
    }

    /// As before the first start with a device for each shard.
    #[test]
    fn mount_points_of_shards_are_a_new_directory() {
        let dir = tempfile::tempdir().unwrap();
        for shard in 0..2 {
            create_dir(store_dir(dir.path(), shard)).unwrap();
        }
        create_dir(store_dir(dir.path(), 1).join("lost+found")).unwrap();
        assert!(is_new(dir.path()));
        let single = SettingFlags { dir: Some(dir.path().to_owned()), ..SettingFlags::default() };
        let single = Settings::resolve(single, SettingFlags::default()).unwrap();
        let refused = Layout::settle(&single, HashSecret([7; 16])).map(drop).unwrap_err().to_string();
        assert!(refused.contains("is prepared for several shards"), "{refused}");
        assert_eq!(settle(dir.path()).map(|layout| layout.shards()), Ok(2));
        assert!(dir.path().join(file::NAME).exists());
    }

    #[test]
    fn stores_without_their_layout_are_not_taken_for_new_ones() {
        let id = "0123456789abcdef";
        let (segment, run) = (format!("segment-000000-{id}.fawn"), format!("run-{id}.fawn"));
        for name in [manifest::FILE_NAME, &segment, &run, &format!("checkpoint-{id}.fawn")] {
            let dir = tempfile::tempdir().unwrap();
            create_dir(store_dir(dir.path(), 1)).unwrap();
            write(store_dir(dir.path(), 1).join(name), "").unwrap();
            assert!(!is_new(dir.path()), "{name}");
            let refused = settle(dir.path()).map(drop).unwrap_err();
            assert!(refused.contains("stores of shards are here"), "{name}: {refused}");
        }
    }

    #[test]
    fn a_directory_whose_stores_were_never_made_is_not_dumped_as_empty() {
        let dir = tempfile::tempdir().unwrap();
        let (data, output) = (dir.path().join("data"), dir.path().join("dump"));
        create_dir(&data).unwrap();
        drop(settle(&data).unwrap());
        let layout = crate::salvage::open_layout(&data).unwrap_or_else(|failure| panic!("{failure}"));
        let dumped = crate::dump::run(&layout, crate::dump::DumpFormat::Jsonl, Some(&output));
        let failure = dumped.map(|_| ()).unwrap_err().to_string();
        assert!(failure.contains("holds no store"), "{failure}");
        assert!(!output.exists());
    }

    #[test]
    fn a_full_disk_is_no_fault_of_the_directorys_owner() {
        let failure = |kind: ErrorKind| format!("{:?}", named(Path::new("layout.toml"))(kind.into()));
        for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
            let found = failure(kind);
            assert!(found.contains("exit: Failed") && !found.contains("give the directory"), "{found}");
        }
        let found = failure(ErrorKind::PermissionDenied);
        assert!(found.contains("exit: Data") && found.contains("give the directory to the user"), "{found}");
    }

    #[test]
    fn a_copy_is_a_data_directory_once_all_its_shards_are_copied() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        create_dir(&data).unwrap();
        let layout = settle(&data).unwrap();
        let (new, existing) = (dir.path().join("new"), dir.path().join("existing"));
        create_dir(&existing).unwrap();
        for path in [new, existing] {
            let target = NewDir::choose(&data, path.clone()).unwrap();
            let partial = target.begin().unwrap().to_owned();
            make_store(&partial, 0);
            drop(layout.create_like(&partial).unwrap());
            // As after a kill between two shards.
            for interrupted in [&partial, &path].into_iter().filter(|dir| dir.exists()) {
                assert!(settle(interrupted).is_err(), "{}", interrupted.display());
                assert!(!matches!(Layout::existing(interrupted), Ok(Some(_))), "{}", interrupted.display());
                assert!(Layout::in_use(interrupted).is_err(), "{}", interrupted.display());
            }
            let mut copy = layout.create_like(&partial).unwrap();
            make_store(&partial, 1);
            copy.finish().unwrap();
            drop(copy);
            assert!(settle(&path).is_err(), "not verified yet: {}", path.display());
            target.finish().unwrap();
            assert!(!settle(&path).unwrap().is_unfinished());
            assert!(!partial.exists());
        }
    }

    #[test]
    fn a_directory_next_to_an_unfinished_copy_for_it_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let [data, new, link] = ["data", "new", "link"].map(|name| dir.path().join(name));
        let target = NewDir::choose(&data, new.clone()).unwrap();
        target.begin().unwrap();
        // A server creates it at its start.
        create_dir(&new).unwrap();
        std::os::unix::fs::symlink(&new, &link).unwrap();
        for path in [&new, &link] {
            let refused = settle(path).map(drop).unwrap_err();
            assert!(refused.contains("new.partial"), "{refused}");
        }
        let refused = NewDir::choose(&data, new.clone()).map(drop).unwrap_err().to_string();
        assert!(refused.contains("new.partial"), "{refused}");
        target.finish().unwrap();
        settle(&new).unwrap();
        // A store that is there already stays in use.
        create_dir(dir.path().join("new.partial")).unwrap();
        write(dir.path().join("new.partial/copy.partial"), "").unwrap();
        settle(&new).unwrap();
    }
}
