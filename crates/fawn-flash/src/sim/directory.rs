//! Simulated directory: the current names, the durable names, and the edits between them.
use fawn_types::random::SplitMix64;
use std::collections::{BTreeMap, BTreeSet};

/// Number of a file on the simulated disk; names and handles refer to it.
pub(super) type InodeId = u64;
/// In place of a file: the directory.
pub(super) const DIR_INODE: InodeId = InodeId::MAX;

#[derive(Clone, Debug)]
enum DirectoryEdit {
    Set(String, InodeId),
    Remove(String),
    Rename(String, String, InodeId),
    /// Both names, each with its new file.
    Exchange([(String, InodeId); 2]),
}

/// Directory state. Each edit since the last directory sync survives a crash independently (Pebble's `CrashClone`).
#[derive(Clone, Default, Debug)]
pub(super) struct Directory {
    live: BTreeMap<String, InodeId>,
    durable: BTreeMap<String, InodeId>,
    edits: Vec<DirectoryEdit>,
    /// Edits before those: durable ones.
    settled: u64,
}

impl Directory {
    pub(super) fn get(&self, name: &str) -> Option<InodeId> {
        self.live.get(name).copied()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.live.keys().cloned().collect()
    }

    pub(super) fn set(&mut self, name: &str, inode: InodeId) {
        self.live.insert(name.to_owned(), inode);
        self.edits.push(DirectoryEdit::Set(name.to_owned(), inode));
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.live.remove(name);
        self.edits.push(DirectoryEdit::Remove(name.to_owned()));
    }

    pub(super) fn rename(&mut self, from: &str, to: &str, inode: InodeId) {
        apply(&mut self.live, &DirectoryEdit::Rename(from.to_owned(), to.to_owned(), inode));
        self.edits.push(DirectoryEdit::Rename(from.to_owned(), to.to_owned(), inode));
    }

    /// Gives each name the file of the other.
    pub(super) fn exchange(&mut self, one: (&str, InodeId), other: (&str, InodeId)) {
        let edit = DirectoryEdit::Exchange([(one.0.to_owned(), other.1), (other.0.to_owned(), one.1)]);
        apply(&mut self.live, &edit);
        self.edits.push(edit);
    }

    pub(super) fn sync(&mut self) {
        self.sync_through(self.edited());
    }

    /// Number of edits so far.
    pub(super) fn edited(&self) -> u64 {
        self.settled + self.edits.len() as u64
    }

    /// Makes the first edits durable, so many of all.
    pub(super) fn sync_through(&mut self, edited: u64) {
        let new = edited.saturating_sub(self.settled).min(self.edits.len() as u64);
        for edit in self.edits.drain(..new as usize) {
            apply(&mut self.durable, &edit);
        }
        self.settled += new;
    }

    /// Files referenced by a current name, a durable name or an edit.
    pub(super) fn reachable(&self) -> BTreeSet<InodeId> {
        self.references().collect()
    }

    /// Whether a current name, a durable name or an edit references the file.
    pub(super) fn refers_to(&self, inode: InodeId) -> bool {
        self.references().any(|referenced| referenced == inode)
    }

    fn references(&self) -> impl Iterator<Item = InodeId> {
        let edited = self.edits.iter().flat_map(|edit| match edit {
            DirectoryEdit::Set(_, inode) | DirectoryEdit::Rename(_, _, inode) => [Some(*inode), None],
            DirectoryEdit::Exchange([(_, one), (_, other)]) => [Some(*one), Some(*other)],
            DirectoryEdit::Remove(_) => [None; 2],
        });
        let edited = edited.flatten();
        self.live.values().chain(self.durable.values()).copied().chain(edited)
    }

    /// Files referenced by a current name.
    pub(super) fn named(&self) -> BTreeSet<InodeId> {
        self.live.values().copied().collect()
    }

    /// Replaces the state by one of those that a power loss may leave.
    pub(super) fn crash(&mut self, rng: &mut SplitMix64, survive: u64) {
        let mut names = self.durable.clone();
        for edit in &self.edits {
            if rng.chance(survive, 16) {
                apply(&mut names, edit);
            }
        }
        self.live.clone_from(&names);
        self.durable = names;
        (self.settled, self.edits) = (self.edited(), Vec::new());
    }
}

fn apply(names: &mut BTreeMap<String, InodeId>, edit: &DirectoryEdit) {
    match edit {
        DirectoryEdit::Set(name, inode) => {
            names.insert(name.clone(), *inode);
        }
        DirectoryEdit::Remove(name) => {
            names.remove(name);
        }
        DirectoryEdit::Rename(from, to, inode) => {
            // POSIX: a rename between two names of one file changes nothing.
            if names.get(from) != names.get(to) || names.get(to).is_none() {
                names.remove(from);
                names.insert(to.clone(), *inode);
            }
        }
        DirectoryEdit::Exchange(named) => names.extend(named.iter().cloned()),
    }
}
