//! Exactly-once execution: the result of each tagged operation, kept until the session acknowledges it.
//!
//! Every member keeps the same completions, because they are part of the records. So the head after a failure knows
//! which retries it has seen [replication.md §3]. Bounded per session, and in the number of sessions.
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use fawn_types::{ClientTag, Version};

/// Shorter results are bounded by number; results of at least this length also count against the bound for all
/// sessions.
const LONG_RESULT_BYTES: usize = 4096;

/// Limits on kept completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletionLimits {
    /// Maximum operations per session without an acknowledged reply: the front-end's own window.
    pub per_session_max: usize,
    /// Maximum bytes of their results. The head accepts no more while they exceed it; a replica forgets the oldest.
    pub per_session_bytes_max: usize,
    /// Maximum bytes of the results of all sessions; beyond it, the session idle for the longest time is forgotten.
    pub bytes_max: usize,
    /// Maximum number of sessions; beyond it, the session idle for the longest time is forgotten.
    pub sessions_max: usize,
}

impl Default for CompletionLimits {
    fn default() -> Self {
        Self { per_session_max: 4096, per_session_bytes_max: 8 << 20, bytes_max: 32 << 20, sessions_max: 16_384 }
    }
}

/// The outcome of one operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Version of the record that contains it.
    pub version: Version,
    /// Its encoded result.
    pub result: Vec<u8>,
}

/// The head's decision on a tagged operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission<'a> {
    /// The operation is new: evaluate it.
    New,
    /// The operation has this version but is not committed: the tail will reply.
    Pending(Version),
    /// The operation is complete: reply with its result.
    Done(&'a Completion),
    /// The session has acknowledged the reply: drop this late duplicate.
    Answered,
    /// The session has too many unacknowledged operations; try again.
    Overloaded,
}

#[derive(Clone, Debug, Default)]
struct Session {
    first_incomplete: u64,
    done: BTreeMap<u64, Completion>,
    bytes: usize,
    /// Newest version of the session, which tells how long it has been idle.
    newest: Version,
}

impl Session {
    fn insert(&mut self, seq: u64, done: Completion) {
        self.bytes += done.result.len();
        self.bytes -= self.done.insert(seq, done).map_or(0, |former| former.result.len());
    }

    fn remove(&mut self, seq: u64) {
        self.bytes -= self.done.remove(&seq).map_or(0, |done| done.result.len());
    }

    /// Forgets the oldest completions beyond the limits, because a replica cannot reject a record. The head checks the
    /// limit before it accepts a result, so the newest result (`newest_bytes`) may exceed it.
    fn trim(&mut self, limits: &CompletionLimits, newest_bytes: usize) {
        let is_past = |session: &Self| {
            let bytes_before = session.bytes.saturating_sub(newest_bytes);
            session.done.len() > limits.per_session_max || bytes_before >= limits.per_session_bytes_max
        };
        while self.done.len() > 1
            && is_past(self)
            && let Some((_, oldest)) = self.done.pop_first()
        {
            self.bytes -= oldest.result.len();
        }
    }
}

/// The completions of one range.
#[derive(Clone, Debug, Default)]
pub struct Completions {
    limits: CompletionLimits,
    sessions: BTreeMap<u64, Session>,
    /// Uncommitted operations, in version order. Bounded by the head's `pending_max`.
    pending: VecDeque<(Version, ClientTag)>,
    committed: Version,
}

impl Completions {
    /// An empty set.
    #[must_use]
    pub fn new(limits: CompletionLimits) -> Self {
        assert!(limits.per_session_max > 0 && limits.sessions_max > 0);
        Self { limits, ..Self::default() }
    }

    /// The head's decision on an operation. `first_incomplete` is sent along with the operation.
    pub fn admit(&mut self, tag: ClientTag, first_incomplete: u64) -> Admission<'_> {
        if !tag.is_some() {
            return Admission::New;
        }
        self.acknowledge(tag.session, first_incomplete);
        let Some(session) = self.sessions.get(&tag.session) else { return Admission::New };
        if tag.seq < session.first_incomplete {
            return Admission::Answered;
        }
        match session.done.get(&tag.seq) {
            Some(done) if done.version <= self.committed => Admission::Done(done),
            Some(done) => Admission::Pending(done.version),
            None if session.done.len() >= self.limits.per_session_max => Admission::Overloaded,
            None if session.bytes >= self.limits.per_session_bytes_max => Admission::Overloaded,
            None => Admission::New,
        }
    }

    /// Forgets all operations below `first_incomplete`, whose replies the session has received.
    pub fn acknowledge(&mut self, session: u64, first_incomplete: u64) {
        if let Some(session) = self.sessions.get_mut(&session)
            && first_incomplete > session.first_incomplete
        {
            session.first_incomplete = first_incomplete;
            let kept = session.done.split_off(&first_incomplete);
            let gone = core::mem::replace(&mut session.done, kept);
            session.bytes -= gone.values().map(|done| done.result.len()).sum::<usize>();
        }
    }

    /// Adds a record with this tag. Called on the head, on replicas and in recovery, in version order.
    pub fn record(&mut self, tag: ClientTag, version: Version, result: &[u8]) {
        if !tag.is_some() {
            return;
        }
        assert!(self.pending.back().is_none_or(|(last, _)| *last < version), "{version:?} out of order");
        self.make_room(tag.session, result.len());
        let session = self.sessions.entry(tag.session).or_default();
        session.newest = version;
        session.insert(tag.seq, Completion { version, result: result.to_vec() });
        session.trim(&self.limits, result.len());
        self.pending.push_back((version, tag));
    }

    /// Adds the completion of an operation committed before this copy was begun, or before the log's oldest record. In
    /// any order, and possibly more than once.
    pub fn restore(&mut self, tag: ClientTag, version: Version, result: &[u8]) {
        if !tag.is_some() {
            return;
        }
        self.make_room(tag.session, result.len());
        self.committed = self.committed.max(version);
        let session = self.sessions.entry(tag.session).or_default();
        session.newest = session.newest.max(version);
        if !session.done.contains_key(&tag.seq) {
            session.insert(tag.seq, Completion { version, result: result.to_vec() });
            session.trim(&self.limits, result.len());
        }
    }

    /// All completions from this session's operation on, ordered by session and operation.
    pub fn from(&self, (session, seq): (u64, u64)) -> impl Iterator<Item = (ClientTag, &Completion)> {
        self.sessions.range(session..).flat_map(move |(&id, known)| {
            let first = if id == session { seq } else { 0 };
            known.done.range(first..).map(move |(&seq, done)| (ClientTag { session: id, seq }, done))
        })
    }

    /// Whether the head may accept one more result of this session, of any length. Checked directly before the
    /// evaluation, because many operations may be admitted before any is evaluated.
    #[must_use]
    pub fn has_room(&self, session: u64) -> bool {
        self.sessions.get(&session).is_none_or(|session| session.bytes < self.limits.per_session_bytes_max)
    }

    /// Forgets the sessions idle for the longest time until one more result of `id` fits.
    fn make_room(&mut self, id: u64, bytes: usize) {
        loop {
            let is_new = !self.sessions.contains_key(&id);
            // Few results are long, so the sum over all sessions is computed only for these.
            let is_short = bytes >= LONG_RESULT_BYTES && self.result_bytes() + bytes > self.limits.bytes_max;
            let is_full = is_new && self.sessions.len() >= self.limits.sessions_max;
            if !(is_short || is_full) || !self.forget_idle(id) {
                return;
            }
        }
    }

    fn result_bytes(&self) -> usize {
        self.sessions.values().map(|session| session.bytes).sum()
    }

    /// Forgets the session idle for the longest time, except `id`. Returns whether there was one.
    fn forget_idle(&mut self, id: u64) -> bool {
        let committed = self.committed;
        let idle = self.sessions.iter().filter(|(of, session)| **of != id && session.newest <= committed);
        let idle = idle.min_by_key(|(_, session)| session.newest).map(|(of, _)| *of);
        idle.is_some_and(|idle| self.sessions.remove(&idle).is_some())
    }

    /// Commits all operations through `through` and calls `answer` for each, in version order. The tail sends these as
    /// replies.
    pub fn commit(&mut self, through: Version, mut answer: impl FnMut(ClientTag, &Completion)) {
        self.committed = self.committed.max(through);
        while let Some(&(version, tag)) = self.pending.front()
            && version <= through
        {
            self.pending.pop_front();
            let done = self.sessions.get(&tag.session).and_then(|session| session.done.get(&tag.seq));
            if let Some(done) = done.filter(|done| done.version == version) {
                answer(tag, done);
            }
        }
    }

    /// Removes the operations whose records above `after` were cut off; they never happened.
    pub fn rollback(&mut self, after: Version) {
        while let Some(&(version, tag)) = self.pending.back()
            && version > after
        {
            self.pending.pop_back();
            if let Some(session) = self.sessions.get_mut(&tag.session)
                && session.done.get(&tag.seq).is_some_and(|done| done.version == version)
            {
                session.remove(tag.seq);
            }
        }
    }

    /// Number of completions, over all sessions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sessions.values().map(|session| session.done.len()).sum()
    }

    /// Whether there are no completions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
