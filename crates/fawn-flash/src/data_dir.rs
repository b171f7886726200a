//! `DataDir`: the state that all real devices share: a directory, open files, lock, space, counters, poison.
use crate::buffer::PAGE_BYTES;
use crate::lock::{DirLock, LOCK};
use crate::mapping::FileMapping;
use crate::open_files::{OpenFile, OpenFiles, replaced};
use crate::request::{DIR_FILE, IoRequest, Work};
use crate::unlinked::UnlinkedFiles;
use crate::{AlignedBuf, Completion, DeviceError, FileId, IoClass, IoOperation, IoStats};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait of an allocation for the space of unlinked files.
const FREEING_MAX: Duration = Duration::from_secs(1);

/// Unit of a file's allocated space as the system reports it, bytes.
const STAT_BLOCK_BYTES: u64 = 512;

/// Maximum attempts of a call that signals interrupt; after that the caller must retry.
const INTERRUPTS_MAX: usize = 16;

/// A directory in use by one device.
pub struct DataDir {
    path: String,
    dir: Arc<OwnedFd>,
    read_only: bool,
    direct: bool,
    lock: Option<DirLock>,
    files: OpenFiles,
    unlinked: UnlinkedFiles,
    pub(crate) stats: IoStats,
    pub(crate) poison: Option<DeviceError>,
}

impl DataDir {
    /// Opens the directory, creating it (durably) if it is missing.
    pub(crate) fn open(path: &Path, descriptors_max: usize) -> Result<Self, DeviceError> {
        let shown = path.display().to_string();
        create_dirs(path, 0o777).map_err(|error| io_error(&shown, "create the directory", &error))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = fs::open(path, flags, Mode::empty()).map_err(|errno| {
            let operation = IoOperation::Metadata("open the directory");
            classify(errno, &shown, operation, &shown, 0)
        })?;
        // A corrupt file system is mounted read-only and then checked, so read-only use must work.
        let mounted = fs::fstatvfs(&dir).map(|space| space.f_flag);
        let read_only = mounted.is_ok_and(|flags| flags.contains(fs::StatVfsMountFlags::RDONLY));
        let (files, stats) = (OpenFiles::new(descriptors_max), IoStats::default());
        let unlinked = UnlinkedFiles::default();
        let dir = Arc::new(dir);
        Ok(Self { path: shown, dir, read_only, direct: false, lock: None, files, unlinked, stats, poison: None })
    }

    /// The directory's path, for logs.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Makes later opens bypass the system's page cache; the error is the reason why that does not work.
    pub(crate) fn try_direct(&mut self) -> Result<OwnedFd, String> {
        let access = if self.read_only { OFlags::RDONLY } else { OFlags::RDWR | OFlags::CREATE };
        let flags = access | direct_flag()?;
        let probe = self.open_at(LOCK, flags).map_err(|errno| format!("O_DIRECT is not supported: {errno}"))?;
        let mut block = AlignedBuf::zeroed(PAGE_BYTES);
        rustix::io::pread(&probe, &mut block[..], 0).map_err(|errno| format!("direct reads fail: {errno}"))?;
        self.direct = true;
        Ok(probe)
    }

    fn open_at(&self, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        uninterrupted(|| fs::openat(&self.dir, name, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o640)))
    }

    fn error(&self, errno: Errno, operation: IoOperation, name: &str, offset: u64) -> DeviceError {
        classify(errno, &self.path, operation, name, offset)
    }

    fn metadata_error(&self, errno: Errno, what: &'static str, name: &str) -> DeviceError {
        self.error(errno, IoOperation::Metadata(what), name, 0)
    }

    /// Fails if nothing may be written: the device is poisoned or the file system is read-only.
    pub(crate) fn healthy(&self) -> Result<(), DeviceError> {
        if self.read_only {
            return Err(DeviceError::ReadOnly { dir: self.path.clone() });
        }
        self.poison.as_ref().map_or(Ok(()), |first| Err(DeviceError::Poisoned { first: first.to_string() }))
    }

    /// Poisons the device on the first failure of a write or sync.
    pub(crate) fn poison<T>(&mut self, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
        if let Err(error) = &result
            && self.poison.is_none()
        {
            tracing::error!(dir = %self.path, %error, "the device is poisoned: all further writes fail");
            self.poison = Some(error.clone());
        }
        result
    }

    /// The completion of an operation; a failure includes the number of transferred bytes.
    ///
    /// After a failed write or sync, later ones fail too: the kernel reports a write-back error only once, so their
    /// success would prove nothing.
    pub(crate) fn end(&mut self, request: IoRequest, result: Result<(), (Errno, usize)>) -> Completion {
        if request.work != Work::SyncDir {
            self.files.end(request.file, request.work, result.is_ok());
        }
        let result = result.map_err(|(errno, done_bytes)| {
            let is_of_dir = request.work == Work::SyncDir;
            let name = if is_of_dir { &self.path } else { &*self.file(request.file).name };
            self.error(errno, request.work.operation(), name, request.offset + done_bytes as u64)
        });
        let result = match request.work {
            Work::Read => result,
            Work::Write { .. } | Work::Sync | Work::SyncDir => self.healthy().and_then(|()| self.poison(result)),
        };
        request.completion(result)
    }

    pub(crate) fn file(&self, file: FileId) -> &OpenFile {
        self.files.get(file)
    }

    /// The descriptor of a file that [`DataDir::has_descriptor`], or of the directory.
    pub(crate) fn fd(&self, file: FileId) -> &Arc<OwnedFd> {
        if file == DIR_FILE { &self.dir } else { self.files.fd(file) }
    }

    /// Notes an operation that is submitted.
    pub(crate) fn begin(&mut self, request: &IoRequest) {
        if request.work != Work::SyncDir {
            self.files.begin(request.file, request.work);
        }
    }

    /// Notes a use of the file. Returns false if [`DataDir::reopen`] must be called first.
    pub(crate) fn has_descriptor(&mut self, file: FileId) -> bool {
        self.files.touch(file)
    }

    /// Whether another descriptor would exceed the limit.
    pub(crate) fn is_crowded(&self) -> bool {
        self.files.is_crowded()
    }

    /// Closes a descriptor that is not needed now; returns its file.
    pub(crate) fn evict(&mut self) -> Option<FileId> {
        self.files.evict()
    }

    /// Reopens a file whose descriptor was evicted.
    pub(crate) fn reopen(&mut self, file: FileId) -> Result<(), DeviceError> {
        let name = Arc::clone(&self.file(file).name);
        let opened = self.open_at(&name, self.data_flags()).and_then(|fd| self.files.reattach(file, fd));
        let is_same = opened.map_err(|errno| self.metadata_error(errno, "open", &name))?;
        if is_same { Ok(()) } else { Err(replaced(&name)) }
    }

    /// Open files of this name.
    pub(crate) fn named(&self, name: &str) -> Vec<FileId> {
        self.files.named(name)
    }

    fn data_flags(&self) -> OFlags {
        let direct = if self.direct { direct_flag().unwrap_or(OFlags::empty()) } else { OFlags::empty() };
        if self.read_only { OFlags::RDONLY | direct } else { OFlags::RDWR | direct }
    }

    /// Treats the file system as mounted read-only, because a test cannot mount one.
    #[cfg(test)]
    pub(crate) const fn take_for_read_only(&mut self) {
        self.read_only = true;
    }

    /// Replaces the file behind an open file ID.
    #[cfg(test)]
    pub(crate) fn replace_fd(&mut self, file: FileId, fd: OwnedFd) {
        self.files.replace_fd(file, fd);
    }

    /// Files for which there is memory.
    #[cfg(test)]
    pub(crate) fn file_slots(&self) -> usize {
        self.files.slots()
    }

    pub(crate) fn list(&self) -> Result<Vec<String>, DeviceError> {
        let failed = |errno| self.metadata_error(errno, "list", &self.path);
        let mut names = Vec::new();
        for entry in fs::Dir::read_from(&self.dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_file = match entry.file_type() {
                fs::FileType::Unknown => self.is_file(&name).map_err(failed)?,
                file_type => file_type.is_file(),
            };
            if is_file && name != LOCK {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn is_file(&self, name: &str) -> Result<bool, Errno> {
        let stat = fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(fs::FileType::from_raw_mode(stat.st_mode).is_file())
    }

    pub(crate) fn lock(&mut self) -> Result<(), DeviceError> {
        if self.lock.is_some() {
            return Ok(());
        }
        self.lock = Some(DirLock::take_in(self.dir.as_fd(), &self.path)?);
        Ok(())
    }

    pub(crate) fn create(&mut self, name: &str) -> Result<FileId, DeviceError> {
        assert_name(name);
        self.healthy()?;
        let flags = self.data_flags() | OFlags::CREATE | OFlags::EXCL;
        let fd = self.open_at(name, flags).map_err(|errno| self.metadata_error(errno, "create", name))?;
        let file = self.files.add(name, fd).map_err(|errno| self.metadata_error(errno, "create", name))?;
        self.files.set_writable(file, true);
        Ok(file)
    }

    pub(crate) fn open_file(&mut self, name: &str) -> Result<FileId, DeviceError> {
        assert_name(name);
        let fd = self.open_at(name, self.data_flags()).map_err(|errno| self.metadata_error(errno, "open", name))?;
        self.files.add(name, fd).map_err(|errno| self.metadata_error(errno, "open", name))
    }

    /// Sets whether more writes of the file will follow.
    pub(crate) fn set_writable(&mut self, file: FileId, is_writable: bool) {
        self.files.set_writable(file, is_writable);
    }

    pub(crate) fn close(&mut self, file: FileId) {
        self.files.close(file);
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str) -> Result<(), DeviceError> {
        assert_name(to);
        self.healthy()?;
        fs::renameat(&self.dir, from, &self.dir, to).map_err(|errno| self.metadata_error(errno, "rename", from))?;
        self.files.rename(from, to);
        Ok(())
    }

    pub(crate) fn exchange(&mut self, one: &str, other: &str) -> Result<bool, DeviceError> {
        self.healthy()?;
        match exchange_names(self.dir.as_fd(), one, other) {
            Ok(()) => self.files.exchange(one, other),
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => return Ok(false),
            Err(errno) => return Err(self.metadata_error(errno, "exchange", one)),
        }
        Ok(true)
    }

    pub(crate) fn link(&mut self, from: &str, to: &str) -> Result<(), DeviceError> {
        assert_name(to);
        self.healthy()?;
        fs::linkat(&self.dir, from, &self.dir, to, AtFlags::empty()).map_err(|errno| {
            let name = if errno == Errno::EXIST { to } else { from };
            self.metadata_error(errno, "link", name)
        })
    }

    pub(crate) fn unlink(&mut self, name: &str) -> Result<(), DeviceError> {
        assert_name(name);
        self.healthy()?;
        // Without a descriptor, the call below frees the space itself.
        let held = path_flag().and_then(|flags| self.open_at(name, flags).ok());
        fs::unlinkat(&self.dir, name, AtFlags::empty()).map_err(|errno| self.metadata_error(errno, "unlink", name))?;
        self.files.unname(name);
        if let Some(file) = held {
            // A file with another name keeps its space.
            let stat = fs::fstat(&file).ok().filter(|stat| stat.st_nlink == 0);
            let held_bytes = stat.map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or(0) * STAT_BLOCK_BYTES);
            self.unlinked.free(file, held_bytes);
        }
        Ok(())
    }

    pub(crate) fn sync_dir(&mut self) -> Result<(), DeviceError> {
        self.healthy()?;
        self.stats.count_sync(IoClass::Manifest);
        let result = sync_all(self.dir.as_fd());
        let result = result.map_err(|errno| self.error(errno, IoOperation::Sync, &self.path, 0));
        self.poison(result)
    }

    pub(crate) fn len(&self, file: FileId) -> Result<u64, DeviceError> {
        let stat = fs::fstat(self.fd(file));
        let stat = stat.map_err(|errno| self.metadata_error(errno, "len", &self.file(file).name))?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    pub(crate) fn truncate(&mut self, file: FileId, len_bytes: u64) -> Result<(), DeviceError> {
        self.healthy()?;
        let result = uninterrupted(|| fs::ftruncate(self.fd(file), len_bytes));
        let result = result.map_err(|errno| self.metadata_error(errno, "truncate", &self.file(file).name));
        self.files.changed(file);
        match result {
            // A file system with copies on write may lack space for the change of a length. The content before both ends is unchanged.
            Err(error) if error.is_retryable() => Err(error),
            result => self.poison(result),
        }
    }

    pub(crate) fn allocate(&mut self, file: FileId, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.healthy()?;
        let (before, end) = (self.len(file)?, offset + len_bytes);
        let fd = self.fd(file);
        let reserve = || uninterrupted(|| fs::fallocate(fd, fs::FallocateFlags::empty(), offset, len_bytes));
        let result = match self.unlinked.with_freed(FREEING_MAX, reserve) {
            // The file system cannot reserve space, so only the length is set. Unless there is no space now: then a
            // write would meet that, and after a failed write nothing is known.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) if end.saturating_sub(before) > self.free_bytes()? => {
                Err(Errno::NOSPC)
            }
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => fs::ftruncate(fd, before.max(end)),
            // XFS asks for as much free space as the range is long, although the file has these blocks.
            Err(Errno::NOSPC | Errno::DQUOT)
                if end <= before.next_multiple_of(PAGE_BYTES as u64) && has_all_blocks(fd.as_fd()) =>
            {
                fs::ftruncate(fd, before.max(end))
            }
            // Release a partial reservation, so that a failed call changes nothing.
            Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::NOMEM | Errno::INTR)) => {
                fs::ftruncate(fd, before).and(Err(errno))
            }
            other => other,
        };
        result.map_err(|errno| self.metadata_error(errno, "allocate", &self.file(file).name))
    }

    pub(crate) fn punch(&mut self, file: FileId, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        self.healthy()?;
        let fd = self.fd(file);
        let result = match punch_hole(fd.as_fd(), offset, len_bytes) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let end = self.len(file)?.min(offset + len_bytes);
                write_zeros(fd.as_fd(), offset, end)
            }
            other => other,
        };
        let result = result.map_err(|errno| self.metadata_error(errno, "punch", &self.file(file).name));
        self.files.changed(file);
        result
    }

    pub(crate) fn map(&self, file: FileId, len_bytes: usize) -> Result<FileMapping, DeviceError> {
        self.healthy()?;
        let fd = self.fd(file);
        let mapping =
            if may_refuse_stores(fd.as_fd()) { Err(Errno::OPNOTSUPP) } else { FileMapping::new(fd, len_bytes) };
        mapping.map_err(|errno| self.metadata_error(errno, "map", &self.file(file).name))
    }

    pub(crate) fn free_bytes(&self) -> Result<u64, DeviceError> {
        let space = fs::fstatvfs(&self.dir).map_err(|errno| self.metadata_error(errno, "free_bytes", &self.path))?;
        let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
        Ok(free_bytes.saturating_add(self.unlinked.pending_bytes()))
    }
}

/// Repeats a call that a signal interrupted. Interrupted calls have no effect, or can be repeated from the start.
fn uninterrupted<T>(call: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    let again = |result: &Result<T, Errno>| matches!(result, Err(Errno::INTR));
    (1..INTERRUPTS_MAX).fold(call(), |result, _| if again(&result) { call() } else { result })
}

/// Maps a system error to a [`DeviceError`].
pub(crate) fn classify(errno: Errno, dir: &str, operation: IoOperation, name: &str, offset: u64) -> DeviceError {
    let (name, dir) = (name.to_owned(), dir.to_owned());
    match errno {
        Errno::NOENT => DeviceError::NotFound { name, dir },
        Errno::EXIST => DeviceError::Exists { name, dir },
        Errno::NOSPC | Errno::DQUOT => DeviceError::Full { dir },
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR if matches!(operation, IoOperation::Metadata(_)) => {
            DeviceError::Exhausted { dir, detail: errno.to_string() }
        }
        Errno::ROFS => DeviceError::ReadOnly { dir },
        Errno::ACCESS | Errno::PERM => DeviceError::Permission { path: format!("{dir}: {name}") },
        other => DeviceError::Io { operation, name, offset, detail: other.to_string() },
    }
}

/// The error of a call of the standard library on the directory `path`.
pub fn io_error(path: &str, what: &'static str, error: &std::io::Error) -> DeviceError {
    let errno = error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
    classify(errno, path, IoOperation::Metadata(what), path, 0)
}

/// Creates the directory and its parents with this mode, less the process's mask. Each new name is synced, because a
/// power loss could otherwise remove the whole store.
///
/// # Errors
/// If a directory cannot be created or synced.
pub fn create_dirs(path: &Path, mode: u32) -> std::io::Result<()> {
    let missing: Vec<PathBuf> =
        path.ancestors().take_while(|at| !at.as_os_str().is_empty() && !at.exists()).map(Path::to_owned).collect();
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(path)?;
    for created in &missing {
        let parent = created.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::File::open(parent)?.sync_all()?;
    }
    Ok(())
}

/// Gives a file a second name, on the same file system. Durable once the directory of `to` is synced.
///
/// # Errors
/// If there is no such file, the name is taken, or the file system cannot.
pub fn hard_link(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::hard_link(from, to)
}

fn assert_name(name: &str) {
    assert!(!name.is_empty() && !name.contains('/') && name != LOCK, "{name}: not a valid file name in a store");
}

#[cfg(target_os = "linux")]
fn exchange_names(dir: BorrowedFd<'_>, one: &str, other: &str) -> Result<(), Errno> {
    fs::renameat_with(dir, one, dir, other, fs::RenameFlags::EXCHANGE)
}

#[cfg(not(target_os = "linux"))]
fn exchange_names(_: BorrowedFd<'_>, _: &str, _: &str) -> Result<(), Errno> {
    Err(Errno::OPNOTSUPP)
}

#[cfg(target_os = "linux")]
fn direct_flag() -> Result<OFlags, String> {
    Ok(OFlags::DIRECT)
}

#[cfg(not(target_os = "linux"))]
fn direct_flag() -> Result<OFlags, String> {
    Err("this system has no O_DIRECT".to_owned())
}

/// Flags of a descriptor that keeps a file without its name, and needs no permission.
#[cfg(target_os = "linux")]
fn path_flag() -> Option<OFlags> {
    Some(OFlags::PATH | OFlags::NOFOLLOW)
}

#[cfg(not(target_os = "linux"))]
fn path_flag() -> Option<OFlags> {
    None
}

#[cfg(target_os = "linux")]
fn punch_hole(fd: BorrowedFd<'_>, offset: u64, len_bytes: u64) -> Result<(), Errno> {
    fs::fallocate(fd, fs::FallocateFlags::PUNCH_HOLE | fs::FallocateFlags::KEEP_SIZE, offset, len_bytes)
}

#[cfg(not(target_os = "linux"))]
fn punch_hole(_: BorrowedFd<'_>, _: u64, _: u64) -> Result<(), Errno> {
    Err(Errno::OPNOTSUPP)
}

/// Whether the file has a block for each of its bytes.
fn has_all_blocks(fd: BorrowedFd<'_>) -> bool {
    let has_all = |stat: fs::Stat| {
        u64::try_from(stat.st_blocks).unwrap_or(0) * STAT_BLOCK_BYTES >= u64::try_from(stat.st_size).unwrap_or(u64::MAX)
    };
    fs::fstat(fd).is_ok_and(has_all)
}

/// Whether a store into a mapped page may need space, or another computer: if that fails, the system ends the process.
#[cfg(target_os = "linux")]
fn may_refuse_stores(fd: BorrowedFd<'_>) -> bool {
    // Btrfs, ZFS, bcachefs; NFS, SMB, FUSE, Ceph (`statfs(2)`).
    const MAGICS: [u32; 8] =
        [0x9123_683E, 0x2FC1_2FC1, 0xCA45_1A4E, 0x0000_6969, 0xFF53_4D42, 0xFE53_4D42, 0x6573_5546, 0x00C3_6400];
    fs::fstatfs(fd).map_or(true, |found| MAGICS.contains(&(found.f_type as u32)))
}

#[cfg(not(target_os = "linux"))]
fn may_refuse_stores(_: BorrowedFd<'_>) -> bool {
    false
}

fn write_zeros(fd: BorrowedFd<'_>, mut offset: u64, end: u64) -> Result<(), Errno> {
    let zeros = AlignedBuf::zeroed(1 << 16);
    while offset < end {
        let step = (end - offset).min(zeros.len() as u64) as usize;
        offset += rustix::io::pwrite(fd, &zeros[..step], offset)? as u64;
    }
    Ok(())
}

/// Syncs data and the metadata to reach it. Uses a stronger call where `fsync` only reaches the drive's cache.
pub(crate) fn sync_data(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    #[cfg(target_vendor = "apple")]
    return fs::fcntl_fullfsync(fd);
    #[cfg(not(target_vendor = "apple"))]
    fs::fdatasync(fd)
}

pub(crate) fn sync_all(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    #[cfg(target_vendor = "apple")]
    return fs::fcntl_fullfsync(fd);
    #[cfg(not(target_vendor = "apple"))]
    fs::fsync(fd)
}
