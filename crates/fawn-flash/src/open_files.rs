//! Open files of one device, with a bounded number of file descriptors.
//!
//! A store may have thousands of segments. The least recently used files lose their descriptors, so the store stays
//! within the process's limit. A file without a descriptor is reopened by name at its next use.
use crate::file_table::FileTable;
use crate::request::Work;
use crate::{DeviceError, FileId};
use rustix::fd::OwnedFd;
use rustix::fs;
use rustix::io::Errno;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// An open file.
pub(crate) struct OpenFile {
    fd: Option<Arc<OwnedFd>>,
    pub(crate) name: Arc<str>,
    pub(crate) in_flight: usize,
    /// Device and inode numbers of the file when it was first opened.
    identity: (u64, u64),
    /// Used since the last pass of the CLOCK eviction.
    was_used: bool,
    /// Has unsynced bytes. The kernel reports a write-back error only to descriptors that were open at the time, so
    /// this one must stay open.
    is_dirty: bool,
    /// Written since the last sync was submitted.
    is_dirty_again: bool,
    /// Writes in flight that only a later sync makes durable.
    unsynced_writes: usize,
    /// Its name is removed or names another file, so it could not be reopened.
    is_unnamed: bool,
    /// More writes will follow: none may fail because the file cannot be reopened.
    is_writable: bool,
}

/// Table of open files.
pub(crate) struct OpenFiles {
    files: FileTable<OpenFile>,
    /// Lowest ID that was not used.
    next_id: u32,
    names: BTreeSet<(Arc<str>, FileId)>,
    /// Files with a descriptor, in CLOCK order. It may contain files that were closed since.
    clock: VecDeque<FileId>,
    descriptors: usize,
    descriptors_max: usize,
}

impl OpenFiles {
    pub(crate) fn new(descriptors_max: usize) -> Self {
        Self {
            files: FileTable::new(),
            next_id: 0,
            names: BTreeSet::new(),
            clock: VecDeque::new(),
            descriptors: 0,
            descriptors_max,
        }
    }

    pub(crate) fn add(&mut self, name: &str, fd: OwnedFd) -> Result<FileId, Errno> {
        let (name, identity) = (Arc::<str>::from(name), identity_of(&fd)?);
        let file = self.files.free_id(self.next_id);
        self.next_id = file.0 + 1;
        self.names.insert((Arc::clone(&name), file));
        let open = OpenFile {
            fd: None,
            name,
            in_flight: 0,
            identity,
            was_used: true,
            is_dirty: false,
            is_dirty_again: false,
            unsynced_writes: 0,
            is_unnamed: false,
            is_writable: false,
        };
        self.files.insert(file, open);
        self.attach(file, fd);
        Ok(file)
    }

    fn attach(&mut self, file: FileId, fd: OwnedFd) {
        self.get_mut(file).fd = Some(Arc::new(fd));
        self.descriptors += 1;
        self.clock.push_back(file);
    }

    /// Gives an open file a new descriptor. Returns false if its name now refers to another file.
    pub(crate) fn reattach(&mut self, file: FileId, fd: OwnedFd) -> Result<bool, Errno> {
        let is_same = identity_of(&fd)? == self.get(file).identity;
        if is_same {
            self.attach(file, fd);
        }
        Ok(is_same)
    }

    pub(crate) fn get(&self, file: FileId) -> &OpenFile {
        self.files.get(file).unwrap_or_else(|| panic!("{file:?} is not open"))
    }

    pub(crate) fn get_mut(&mut self, file: FileId) -> &mut OpenFile {
        self.files.get_mut(file).unwrap_or_else(|| panic!("{file:?} is not open"))
    }

    /// The file's descriptor.
    ///
    /// # Panics
    /// If the file has none: [`OpenFiles::touch`] must precede every use.
    pub(crate) fn fd(&self, file: FileId) -> &Arc<OwnedFd> {
        self.get(file).fd.as_ref().unwrap_or_else(|| panic!("{file:?} is used without a descriptor"))
    }

    /// Notes a use. Returns false if the file must be reopened first.
    pub(crate) fn touch(&mut self, file: FileId) -> bool {
        let open = self.get_mut(file);
        open.was_used = true;
        open.fd.is_some()
    }

    pub(crate) fn is_crowded(&self) -> bool {
        self.descriptors >= self.descriptors_max
    }

    /// Notes that an operation is submitted.
    pub(crate) fn begin(&mut self, file: FileId, work: Work) {
        let open = self.get_mut(file);
        match work {
            Work::Write { durable: false } => {
                (open.is_dirty, open.is_dirty_again) = (true, true);
                open.unsynced_writes += 1;
            }
            // A sync covers only writes that were reaped before it. Other operations in flight do not matter: a read during
            // a file's last sync would leave the file unsynced for ever.
            Work::Sync => open.is_dirty_again &= open.unsynced_writes > 0,
            Work::Read | Work::Write { durable: true } | Work::SyncDir => {}
        }
        open.in_flight += 1;
    }

    /// Notes that an operation has ended.
    pub(crate) fn end(&mut self, file: FileId, work: Work, is_ok: bool) {
        let open = self.get_mut(file);
        open.in_flight -= 1;
        match work {
            Work::Write { durable: false } => open.unsynced_writes -= 1,
            Work::Sync if is_ok && !open.is_dirty_again => open.is_dirty = false,
            _ => {}
        }
    }

    /// Notes a change other than a write that only a sync makes durable.
    pub(crate) fn changed(&mut self, file: FileId) {
        let open = self.get_mut(file);
        (open.is_dirty, open.is_dirty_again) = (true, true);
    }

    /// Sets whether more writes will follow.
    pub(crate) fn set_writable(&mut self, file: FileId, is_writable: bool) {
        self.get_mut(file).is_writable = is_writable;
    }

    /// Closes the descriptor of the least recently used file that does not need it. Returns the file, if there is one.
    pub(crate) fn evict(&mut self) -> Option<FileId> {
        // Two passes: the first one clears the marks of use.
        for _ in 0..2 * self.clock.len() {
            let file = self.clock.pop_front()?;
            let Some(open) = self.files.get_mut(file).filter(|open| open.fd.is_some()) else { continue };
            let is_needed = open.is_writable || open.in_flight > 0 || open.is_dirty || open.is_unnamed;
            if core::mem::take(&mut open.was_used) || is_needed {
                self.clock.push_back(file);
                continue;
            }
            open.fd = None;
            self.descriptors -= 1;
            return Some(file);
        }
        None
    }

    pub(crate) fn close(&mut self, file: FileId) {
        let open = self.get(file);
        assert_eq!(open.in_flight, 0, "{file:?} closed with operations in flight");
        let (name, had_descriptor) = (Arc::clone(&open.name), open.fd.is_some());
        self.names.remove(&(name, file));
        self.files.remove(file);
        self.descriptors -= usize::from(had_descriptor);
        if self.clock.len() > 2 * self.descriptors + 16 {
            let files = &self.files;
            self.clock.retain(|file| files.get(*file).is_some_and(|open| open.fd.is_some()));
        }
    }

    /// Open files of this name.
    pub(crate) fn named(&self, name: &str) -> Vec<FileId> {
        let first = (Arc::<str>::from(name), FileId(0));
        self.names.range(first..).take_while(|(of, _)| **of == *name).map(|&(_, file)| file).collect()
    }

    /// Notes that the name is removed, or will name another file.
    pub(crate) fn unname(&mut self, name: &str) {
        for file in self.named(name) {
            self.get_mut(file).is_unnamed = true;
            self.names.remove(&(Arc::from(name), file));
        }
    }

    /// Renames the open files of a name.
    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        self.unname(to);
        self.named(from).into_iter().for_each(|file| self.set_name(file, to));
    }

    /// Exchanges the names of the open files of two names.
    pub(crate) fn exchange(&mut self, one: &str, other: &str) {
        let (of_one, of_other) = (self.named(one), self.named(other));
        of_one.into_iter().for_each(|file| self.set_name(file, other));
        of_other.into_iter().for_each(|file| self.set_name(file, one));
    }

    fn set_name(&mut self, file: FileId, name: &str) {
        let name = Arc::<str>::from(name);
        let before = core::mem::replace(&mut self.get_mut(file).name, Arc::clone(&name));
        self.names.remove(&(before, file));
        self.names.insert((name, file));
    }

    #[cfg(test)]
    pub(crate) fn slots(&self) -> usize {
        self.files.slots()
    }

    /// Replaces the file behind an open file ID.
    #[cfg(test)]
    pub(crate) fn replace_fd(&mut self, file: FileId, fd: OwnedFd) {
        self.get_mut(file).fd = Some(Arc::new(fd));
    }
}

fn identity_of(fd: &OwnedFd) -> Result<(u64, u64), Errno> {
    let stat = fs::fstat(fd)?;
    Ok((stat.st_dev as u64, stat.st_ino as u64))
}

/// The error for a file that another process replaced.
pub(crate) fn replaced(name: &str) -> DeviceError {
    DeviceError::Io {
        operation: crate::IoOperation::Metadata("open"),
        name: name.to_owned(),
        offset: 0,
        detail: "another file has its name now; something else writes to the directory".to_owned(),
    }
}
