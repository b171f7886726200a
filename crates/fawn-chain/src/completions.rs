//! Exactly-once: the result of each tagged operation, kept until its session acknowledges the reply or ends.
//!
//! Every member keeps the same completions, because they are in the records: the head after a failure knows which
//! retries it has seen [replication.md §3]. A record also carries how far its session has acknowledged, so that all
//! members free the same results. Past a bound the head refuses operations; no member forgets a result that may be
//! asked for.
//!
//! A session that sends no further update acknowledges nothing by itself. Once results use all of their memory, the head
//! asks the front-ends that [`Completions::holders`] names for an update without an effect. Only its record frees their
//! results at all members. It leaves one short result of its own, so an idle front-end is not asked again.
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use fawn_types::{ClientTag, MemberId, Version};

/// Approximate memory of a completion without its result.
const COMPLETION_BYTES: usize = 96;
/// Memory of the completion that an acknowledgement leaves, at most.
const ACKNOWLEDGEMENT_BYTES: usize = COMPLETION_BYTES + 32;
/// Maximum length of the queue of open results beyond twice the number of kept results.
const OPEN_SLACK: usize = 64;
/// Former sessions of one shard that are remembered as ended.
const ENDED_MAX: usize = 16;

/// Limits on a range's completions, checked by the head before it accepts an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletionLimits {
    /// Maximum operations per session without an acknowledged reply: the front-end's own window.
    pub per_session_max: usize,
    /// Maximum bytes of their results.
    pub per_session_bytes_max: usize,
    /// Maximum number of operations of all sessions.
    pub results_max: usize,
    /// Maximum bytes of the results of all sessions, including the memory of each completion.
    pub bytes_max: usize,
    /// Maximum number of sessions; each front-end has one.
    pub sessions_max: usize,
}

impl Default for CompletionLimits {
    fn default() -> Self {
        Self {
            per_session_max: 4096,
            per_session_bytes_max: 8 << 20,
            results_max: 256 << 10,
            bytes_max: 32 << 20,
            sessions_max: 16_384,
        }
    }
}

/// The outcome of one operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompletedUpdate {
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
    Done(&'a CompletedUpdate),
    /// Drop this late duplicate: its session has acknowledged the reply, or has ended.
    Answered,
    /// The operation was refused for good: the value of its reply has this length, which its front-end had not granted.
    Larger(usize),
    /// Too many operations are unacknowledged; try again.
    Overloaded,
}

#[derive(Clone, Debug, Default)]
struct ClientCompletions {
    first_incomplete: u64,
    done: BTreeMap<u64, CompletedUpdate>,
    bytes: usize,
    /// Operations refused for the length of their value.
    larger: BTreeMap<u64, usize>,
}

impl ClientCompletions {
    /// Memory of the completions.
    fn memory_bytes(&self) -> usize {
        self.bytes + self.done.len() * COMPLETION_BYTES
    }
}

/// The session of a shard's present front-end with its newest record, and the sessions before it.
#[derive(Clone, Debug)]
struct FrontEndSessions {
    session: u64,
    newest: Version,
    ended: VecDeque<u64>,
}

/// The completions of one range.
#[derive(Clone, Debug, Default)]
pub struct Completions {
    limits: CompletionLimits,
    sessions: BTreeMap<u64, ClientCompletions>,
    front_ends: BTreeMap<MemberId, FrontEndSessions>,
    /// The session of each shard whose operation this head admitted last.
    admitted: BTreeMap<MemberId, u64>,
    /// Completions of all sessions.
    results: usize,
    bytes: usize,
    /// Uncommitted operations, in version order. Bounded by the head's `pending_max`.
    pending: VecDeque<(Version, ClientTag)>,
    /// Committed operations with a result, in version order. An entry whose result was freed is removed later.
    open: VecDeque<(Version, ClientTag)>,
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
        if self.has_ended(tag.session) {
            return Admission::Answered;
        }
        let is_known = self.sessions.contains_key(&tag.session);
        let replaced = usize::from(self.replaced_by(tag.session).is_some());
        if !is_known && self.sessions.len() - replaced >= self.limits.sessions_max {
            return Admission::Overloaded;
        }
        self.acknowledge(tag.session, first_incomplete);
        self.note_admitted(tag);
        let has_room = self.has_room(tag.session);
        let Some(session) = self.sessions.get(&tag.session) else { return Admission::New };
        if tag.seq < session.first_incomplete {
            return Admission::Answered;
        }
        match (session.done.get(&tag.seq), session.larger.get(&tag.seq)) {
            (Some(done), _) if done.version <= self.committed => Admission::Done(done),
            (Some(done), _) => Admission::Pending(done.version),
            (None, Some(&bytes)) => Admission::Larger(bytes),
            (None, None) if has_room => Admission::New,
            (None, None) => Admission::Overloaded,
        }
    }

    /// Another session of the shard is its process's from now on. A former one without a record would never end.
    fn note_admitted(&mut self, tag: ClientTag) {
        let former = self.admitted.insert(tag.member(), tag.session).filter(|former| *former != tag.session);
        let has_record = |former| self.front_ends.get(&tag.member()).is_some_and(|known| known.session == former);
        if let Some(former) = former.filter(|former| !has_record(*former)) {
            self.end(former);
        }
    }

    /// Whether the head may accept one more result of this session; [`Completions::has_room_for`] judges its length. Checked again
    /// before evaluation, because many operations may have been admitted before any was evaluated. Meanwhile another process of the
    /// shard may have been admitted: a record of the former one would end the session of that one.
    #[must_use]
    pub fn has_room(&self, session: u64) -> bool {
        let CompletionLimits { per_session_max, per_session_bytes_max, results_max, bytes_max, .. } = self.limits;
        let fits = |session: &ClientCompletions| {
            session.done.len() + session.larger.len() < per_session_max && session.bytes < per_session_bytes_max
        };
        let member = ClientTag { session, seq: 0 }.member();
        let front_end = self.front_ends.get(&member);
        let has_ended = front_end.is_some_and(|known| known.ended.contains(&session));
        // Results of former processes may use all of the memory, and more of it than the head had: their sessions end one by one.
        // Each record that ends one frees at least as many results as it adds.
        let frees = || self.replaced_by(session).is_some_and(|former| !former.done.is_empty());
        let has_room = (self.results < results_max && self.bytes < bytes_max) || frees();
        let is_present = self.admitted.get(&member).is_none_or(|admitted| *admitted == session);
        has_room && is_present && !has_ended && self.sessions.get(&session).is_none_or(fits)
    }

    /// Whether the head may keep a result of this length. Beyond the memory's bound it keeps only one that frees as much, or is as
    /// short as that of an acknowledgement: each front-end that starts again may have one.
    #[must_use]
    pub fn has_room_for(&self, session: u64, result_bytes: usize) -> bool {
        if self.bytes < self.limits.bytes_max {
            return true;
        }
        let freed_bytes = self.replaced_by(session).map_or(0, ClientCompletions::memory_bytes);
        let needed_bytes = result_bytes + COMPLETION_BYTES;
        self.bytes < self.limits.bytes_max + freed_bytes || needed_bytes <= freed_bytes.max(ACKNOWLEDGEMENT_BYTES)
    }

    /// The former session of the shard, which the first record of this one will end.
    fn replaced_by(&self, session: u64) -> Option<&ClientCompletions> {
        let front_end = self.front_ends.get(&ClientTag { session, seq: 0 }.member());
        self.sessions.get(&front_end.filter(|known| known.session != session)?.session)
    }

    /// Whether results use all of the memory that they may: the head refuses operations of nearly all sessions.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.results >= self.limits.results_max || self.bytes >= self.limits.bytes_max
    }

    /// The front-ends whose session keeps more than an equal share of the memory, and more than an acknowledgement
    /// leaves. Sessions within their shares never use all of it, if each may keep what an acknowledgement leaves.
    pub fn holders(&self) -> impl Iterator<Item = MemberId> {
        let CompletionLimits { results_max, bytes_max, sessions_max, .. } = self.limits;
        let results_share = ((results_max - 1) / sessions_max).max(1);
        let bytes_share = ((bytes_max - 1) / sessions_max).max(ACKNOWLEDGEMENT_BYTES);
        let is_holder =
            move |kept: &ClientCompletions| kept.done.len() > results_share || kept.memory_bytes() > bytes_share;
        let holders = self.sessions.iter().filter(move |(_, kept)| is_holder(kept));
        holders.map(|(&session, _)| ClientTag { session, seq: 0 }.member())
    }

    /// The first operation that the session has not acknowledged, as the head knows; its records carry it.
    #[must_use]
    pub fn first_incomplete(&self, session: u64) -> u64 {
        self.sessions.get(&session).map_or(0, |session| session.first_incomplete)
    }

    /// Frees all operations below `first_incomplete`, whose replies the session has received.
    pub fn acknowledge(&mut self, session: u64, first_incomplete: u64) {
        let session = self.sessions.entry(session).or_default();
        if first_incomplete > session.first_incomplete {
            session.first_incomplete = first_incomplete;
            session.larger = session.larger.split_off(&first_incomplete);
            let kept = session.done.split_off(&first_incomplete);
            let gone = core::mem::replace(&mut session.done, kept);
            let gone_bytes = gone.values().map(|done| done.result.len()).sum::<usize>();
            session.bytes -= gone_bytes;
            self.results -= gone.len();
            self.bytes -= gone_bytes + gone.len() * COMPLETION_BYTES;
        }
    }

    /// Refuses an operation for good, for the length of its value. The front-end repeats it as another operation, so no
    /// copy of this one may be evaluated, however late it arrives. Only this head knows: an operation of another epoch
    /// is refused anyway.
    pub fn refuse_larger(&mut self, tag: ClientTag, bytes: usize) {
        if tag.is_some() && !self.has_ended(tag.session) {
            self.sessions.entry(tag.session).or_default().larger.insert(tag.seq, bytes);
        }
    }

    /// Adds a record with this tag. Called on the head, on replicas and in recovery, in version order.
    pub fn record(&mut self, tag: ClientTag, first_incomplete: u64, version: Version, result: &[u8]) {
        if !tag.is_some() {
            return;
        }
        assert!(self.pending.back().is_none_or(|(last, _)| *last < version), "{version:?} out of order");
        if !self.begin_session(tag.session, version) {
            return;
        }
        self.acknowledge(tag.session, first_incomplete);
        self.insert(tag, CompletedUpdate { version, result: result.to_vec() });
        self.pending.push_back((version, tag));
    }

    /// Adds the completion of an operation committed before this copy was begun, or before the log's oldest record. In
    /// any order, and possibly more than once.
    pub fn restore(&mut self, tag: ClientTag, first_incomplete: u64, version: Version, result: &[u8]) {
        if !tag.is_some() || self.has_ended(tag.session) {
            return;
        }
        self.committed = self.committed.max(version);
        if !self.begin_session(tag.session, version) {
            return;
        }
        self.acknowledge(tag.session, first_incomplete);
        let session = self.sessions.entry(tag.session).or_default();
        if tag.seq >= session.first_incomplete && !session.done.contains_key(&tag.seq) {
            self.insert(tag, CompletedUpdate { version, result: result.to_vec() });
        }
    }

    fn insert(&mut self, tag: ClientTag, done: CompletedUpdate) {
        let session = self.sessions.entry(tag.session).or_default();
        let bytes = done.result.len();
        session.bytes += bytes;
        self.bytes += bytes + COMPLETION_BYTES;
        self.results += 1;
        if let Some(former) = session.done.insert(tag.seq, done) {
            session.bytes -= former.result.len();
            self.bytes -= former.result.len() + COMPLETION_BYTES;
            self.results -= 1;
        }
    }

    fn remove(&mut self, tag: ClientTag) {
        let Some(session) = self.sessions.get_mut(&tag.session) else { return };
        if let Some(done) = session.done.remove(&tag.seq) {
            session.bytes -= done.result.len();
            self.bytes -= done.result.len() + COMPLETION_BYTES;
            self.results -= 1;
        }
    }

    /// A shard's front-end has one session. The first record of the next one ends it: its process is gone, so its
    /// results are not awaited, and its requests that arrive late are dropped. Returns whether the session is the
    /// present one.
    fn begin_session(&mut self, session: u64, version: Version) -> bool {
        let id = ClientTag { session, seq: 0 }.member();
        let new = || FrontEndSessions { session, newest: version, ended: VecDeque::new() };
        let front_end = self.front_ends.entry(id).or_insert_with(new);
        let is_newer = version >= front_end.newest;
        front_end.newest = front_end.newest.max(version);
        if front_end.session == session {
            return true;
        }
        let former = if is_newer { core::mem::replace(&mut front_end.session, session) } else { session };
        if !front_end.ended.contains(&former) {
            if front_end.ended.len() == ENDED_MAX {
                front_end.ended.pop_front();
            }
            front_end.ended.push_back(former);
        }
        self.end(former);
        is_newer
    }

    /// The session's front-end has ended: its results are freed.
    fn end(&mut self, session: u64) {
        if let Some(ended) = self.sessions.remove(&session) {
            self.results -= ended.done.len();
            self.bytes -= ended.memory_bytes();
        }
    }

    fn has_ended(&self, session: u64) -> bool {
        let id = ClientTag { session, seq: 0 }.member();
        self.front_ends.get(&id).is_some_and(|front_end| front_end.ended.contains(&session))
    }

    /// All completions from this session's operation on, ordered by session and operation.
    pub fn from(&self, (session, seq): (u64, u64)) -> impl Iterator<Item = (ClientTag, &CompletedUpdate)> {
        self.sessions.range(session..).flat_map(move |(&id, known)| {
            let first = if id == session { seq } else { 0 };
            known.done.range(first..).map(move |(&seq, done)| (ClientTag { session: id, seq }, done))
        })
    }

    /// Commits all operations through `through` and calls `answer` for each, in version order. The tail sends these as
    /// replies.
    pub fn commit(&mut self, through: Version, mut answer: impl FnMut(ClientTag, &CompletedUpdate)) {
        self.committed = self.committed.max(through);
        while let Some(&(version, tag)) = self.pending.front()
            && version <= through
        {
            self.pending.pop_front();
            if let Some(done) = done_at(&self.sessions, version, tag) {
                self.open.push_back((version, tag));
                answer(tag, done);
            }
        }
        // A session that never acknowledges keeps the front: the freed entries behind it would grow without a bound.
        if self.open.len() > 2 * self.results + OPEN_SLACK {
            let sessions = &self.sessions;
            self.open.retain(|&(version, tag)| done_at(sessions, version, tag).is_some());
        }
    }

    /// The version of the oldest record whose result may be requested again: after a restart the log must have it. The store has
    /// copies of the results below `copied_below`. Restored results are left out: their records are not part of the log's history.
    pub fn oldest_open(&mut self, copied_below: Version) -> Option<Version> {
        let Self { open, sessions, .. } = self;
        let is_safe = |version, tag| version < copied_below || done_at(sessions, version, tag).is_none();
        while open.pop_front_if(|(version, tag)| is_safe(*version, *tag)).is_some() {}
        self.open.front().or(self.pending.front()).map(|(version, _)| *version)
    }

    /// Removes the operations whose records above `after` were cut off; they never happened.
    pub fn rollback(&mut self, after: Version) {
        while let Some(&(version, tag)) = self.pending.back()
            && version > after
        {
            self.pending.pop_back();
            if done_at(&self.sessions, version, tag).is_some() {
                self.remove(tag);
            }
        }
    }

    /// Number of completions, over all sessions.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.results
    }

    /// Bytes kept, over all sessions.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether there are no completions.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.results == 0
    }
}

/// The result of an operation, if the record at this version has it.
fn done_at(sessions: &BTreeMap<u64, ClientCompletions>, version: Version, tag: ClientTag) -> Option<&CompletedUpdate> {
    sessions.get(&tag.session)?.done.get(&tag.seq).filter(|done| done.version == version)
}
