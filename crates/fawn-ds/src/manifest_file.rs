//! The manifest's file: queues commits, writes one batch at a time, tracks which are durable, rewrites it when mostly
//! history.
use crate::error::OpenError;
use crate::format::manifest::{
    self, DecodedManifest, FILE_NAME, HEADER_BYTES, ManifestEdit, ManifestError, ManifestHeader, ManifestState,
    ManifestVerdict, NEW_FILE_NAME, SPARE_FILE_NAME,
};
use crate::recovery::io::Io;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, Device, DeviceError, FileId, IoClass, Token};
use fawn_types::{MonoMs, TimeMs};
use std::collections::VecDeque;

/// Space kept allocated after the end if possible, bytes, besides that for seals: a full device can then still seal and
/// drop segments.
const AHEAD_BYTES_MIN: u64 = 16 << 10;
/// Seals for which there is space besides, with all present ranges: of the active segment, and of the one that was prepared.
const SEALS_AHEAD: u64 = 2;
/// Allocation step, bytes.
const AHEAD_STEP_BYTES: u64 = 32 << 10;
/// Advance of the expiry time after which the next commit carries it, ms.
const CLOCK_STEP_MS: u64 = 10_000;
/// Age at which the expiry time gets a commit of its own, ms.
const CLOCK_AGE_MAX_MS: u64 = 60_000;
/// Time between two attempts to allocate space for commits that found none.
const RETRY_MS: u64 = 100;

/// Number of a commit, ascending over all rewrites of the file.
pub(crate) type CommitNumber = u64;

/// A new file that will replace the manifest.
#[derive(Debug)]
struct Rewrite {
    file: FileId,
    header: ManifestHeader,
    /// The file's content: a snapshot with every commit up to `through`.
    bytes: Vec<u8>,
    through: CommitNumber,
    /// Commits since the snapshot, as they will follow it.
    queued: Vec<u8>,
    ends: VecDeque<CommitEnd>,
    /// These commits, for the old file if the new one gets no name.
    commits: Vec<(CommitNumber, Vec<ManifestEdit>)>,
    /// Allocated length of the file, bytes.
    allocated: u64,
}

/// A queued commit, and the offset at which it ends in the file.
type CommitEnd = (CommitNumber, u64);

#[derive(Debug)]
pub(crate) struct ManifestFile {
    file: FileId,
    header: ManifestHeader,
    state: ManifestState,
    /// Bytes of the file from the start of the page in which the synced part ends. After an open, until
    /// [`ManifestFile::settle`], from the page in which the part ends that a commit certifies as synced.
    tail: Vec<u8>,
    tail_at: u64,
    synced: u64,
    /// Allocated length of the file, bytes.
    allocated: u64,
    /// Numbers in the facts of the segments whose seals are not queued yet.
    open_numbers: usize,
    queued: CommitNumber,
    durable: CommitNumber,
    /// Commits after the durable ones, of which `tail` has the bytes.
    ends: VecDeque<CommitEnd>,
    /// For the write in flight: its end, the last commit that it makes durable, and the last that it certifies.
    in_flight: Option<(u64, CommitNumber, CommitNumber)>,
    /// Newest commit whose loss only the manifest would show.
    important: CommitNumber,
    /// Newest commit that assigned numbers to heirs.
    assigned: CommitNumber,
    /// Last commit certified by the newest queued commit; by the newest durable one.
    certified_if_durable: CommitNumber,
    certified: CommitNumber,
    rewrite: Option<Rewrite>,
    /// Length from which a rewrite is tried again after a full device.
    rewrite_from: u64,
    /// End of the bytes of an unacknowledged, torn append after the last valid commit; zero without one.
    torn_end: u64,
    /// Last noted expiry time, and the monotonic clock at that time.
    clock: (TimeMs, MonoMs),
    /// No queued commit had space at the last attempt; the next one is made at this time.
    retry_at: Option<MonoMs>,
}

/// Error of reading a manifest's file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ManifestReadError {
    #[error("{0}")]
    Device(#[from] DeviceError),
    #[error("{0}")]
    Manifest(#[from] ManifestError),
    #[error("two reads of the bytes from {from_bytes} on differ: try again, and check the disk if that persists")]
    Unstable { from_bytes: u64 },
}

impl From<ManifestReadError> for OpenError {
    fn from(error: ManifestReadError) -> Self {
        match error {
            ManifestReadError::Device(error) => error.into(),
            ManifestReadError::Manifest(ManifestError::Header(error)) if error.is_of_other_format() => {
                Self::Format { file: FILE_NAME.to_owned(), error }
            }
            error => Self::Manifest { file: FILE_NAME.to_owned(), detail: error.to_string() },
        }
    }
}

/// Reads and decodes a manifest's file. The bytes after the last valid commit are read twice: the verdict on the end rests
/// on them, and one misdirected read would pass for a torn append where durable commits are.
pub(crate) fn read_manifest<D: Device>(
    device: &mut D,
    file: FileId,
    class: IoClass,
) -> Result<(Vec<u8>, DecodedManifest), ManifestReadError> {
    let len = device.len(file)?;
    let bytes = Io::new(device).read_all(file, 0..len, class)?;
    let decoded = manifest::decode_all(&bytes)?;
    let from_bytes = decoded.valid_len - decoded.valid_len % PAGE_BYTES as u64;
    if Io::new(device).read_all(file, from_bytes..len, class)? != bytes[from_bytes as usize..] {
        return Err(ManifestReadError::Unstable { from_bytes });
    }
    Ok((bytes, decoded))
}

/// Space to keep allocated after the end. A seal names every range with records in its segment: dropped ones, too.
fn ahead_bytes(state: &ManifestState, open_numbers: usize) -> u64 {
    AHEAD_BYTES_MIN + seals_bytes(state, open_numbers)
}

/// Opens or creates the spare file, and allocates `wanted` bytes of it or all that it has. `None`: there is no space for it now, or
/// something else is wrong with it. The manifest then does without.
fn open_spare<D: Device>(device: &mut D, wanted: u64) -> Option<(FileId, u64)> {
    let opened = match device.open(SPARE_FILE_NAME) {
        Err(DeviceError::NotFound { .. }) => device.create(SPARE_FILE_NAME),
        opened => opened,
    };
    let file = opened.ok()?;
    let len = device.len(file).unwrap_or(0);
    let longer = wanted.next_multiple_of(AHEAD_STEP_BYTES).max(len);
    let allocated = [longer, len].into_iter().find(|&bytes| bytes > 0 && device.allocate(file, 0, bytes).is_ok());
    if allocated.is_none() {
        device.close(file);
    }
    allocated.map(|bytes| (file, bytes))
}

fn seals_bytes(state: &ManifestState, open_numbers: usize) -> u64 {
    let of_present = manifest::seal_bytes(state.ranges.len() + state.ancestors().count()) as u64;
    SEALS_AHEAD * of_present + manifest::seal_bytes(open_numbers) as u64
}

impl Rewrite {
    fn len(&self) -> u64 {
        (self.bytes.len() + self.queued.len()) as u64
    }

    /// Queues a commit behind the snapshot, which is synced by then.
    fn encode(&mut self, number: CommitNumber, edits: &[ManifestEdit]) {
        let (offset, synced) = (self.len(), self.bytes.len() as u64);
        manifest::encode_commit(&self.header, edits, offset, synced, &mut self.queued);
        self.ends.push_back((number, self.len()));
        self.commits.push((number, edits.to_vec()));
    }
}

impl ManifestFile {
    /// Writes a new store's manifest: complete and synced under another name before it gets its own.
    pub(crate) fn create<D: Device>(device: &mut D, state: ManifestState) -> Result<Self, OpenError> {
        let bytes = manifest::encode_snapshot(&state, 1);
        let store = state.identity.map(|identity| identity.store).unwrap_or_default();
        let (file, allocated) = Self::create_new(device, bytes.len() as u64 + ahead_bytes(&state, 0))?;
        Io::new(device).write_durable(file, 0, &bytes, IoClass::Manifest)?;
        device.rename(NEW_FILE_NAME, FILE_NAME)?;
        device.sync_dir()?;
        Ok(Self { allocated, ..Self::at(file, ManifestHeader { store, rewrite: 1 }, state, bytes) })
    }

    /// Creates and allocates an empty file under the temporary name.
    fn create_new<D: Device>(device: &mut D, bytes: u64) -> Result<(FileId, u64), DeviceError> {
        match device.unlink(NEW_FILE_NAME) {
            Ok(()) | Err(DeviceError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        let file = device.create(NEW_FILE_NAME)?;
        let allocated = bytes.next_multiple_of(AHEAD_STEP_BYTES);
        if let Err(error) = device.allocate(file, 0, allocated) {
            device.close(file);
            // If the unlink fails too, the next attempt unlinks the file first.
            let unlinked = device.unlink(NEW_FILE_NAME);
            return Err(unlinked.err().filter(|failure| !failure.is_retryable()).unwrap_or(error));
        }
        Ok((file, allocated))
    }

    fn at(file: FileId, header: ManifestHeader, state: ManifestState, mut bytes: Vec<u8>) -> Self {
        let synced = bytes.len() as u64;
        let tail_at = synced - synced % PAGE_BYTES as u64;
        bytes.drain(..tail_at as usize);
        Self {
            file,
            header,
            state,
            tail: bytes,
            tail_at,
            synced,
            allocated: synced,
            open_numbers: 0,
            queued: 0,
            durable: 0,
            ends: VecDeque::new(),
            in_flight: None,
            important: 0,
            assigned: 0,
            certified_if_durable: 0,
            certified: 0,
            rewrite: None,
            rewrite_from: 0,
            torn_end: 0,
            clock: Default::default(),
            retry_at: None,
        }
    }

    /// A manifest of this state without a file, for a store that is only read.
    pub(crate) fn for_reading(header: ManifestHeader, state: ManifestState) -> Self {
        Self::at(FileId(u32::MAX), header, state, Vec::new())
    }

    /// Reads the manifest without changing it; see [`ManifestFile::settle`]. `None`: there is none.
    pub(crate) fn open<D: Device>(device: &mut D) -> Result<Option<Self>, OpenError> {
        let file = match device.open(FILE_NAME) {
            Ok(file) => file,
            Err(DeviceError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let (mut bytes, decoded) = read_manifest(device, file, IoClass::Manifest)?;
        let DecodedManifest { header, state, valid_len, synced: certified, verdict, .. } = decoded;
        if let ManifestVerdict::CorruptAt { offset, synced, contradiction } = verdict {
            let why = contradiction.map(|error| error.to_string()).unwrap_or_default();
            let detail = format!("corrupt at byte {offset}, below {synced} which was synced; {why}");
            return Err(OpenError::Manifest { file: FILE_NAME.to_owned(), detail });
        }
        let last_byte =
            bytes.iter().rposition(|&byte| byte != 0).filter(|_| matches!(verdict, ManifestVerdict::TornAt { .. }));
        let torn_end = last_byte.map_or(0, |at| at as u64 + 1);
        let allocated = bytes.len() as u64;
        bytes.truncate(valid_len as usize);
        let tail_at = certified - certified % PAGE_BYTES as u64;
        let tail = bytes[tail_at as usize..].to_vec();
        Ok(Some(Self { torn_end, allocated, tail, tail_at, ..Self::at(file, header, state, bytes) }))
    }

    /// Overwrites a torn append with zeros and makes the rest durable, before the store relies on it. Called only after the
    /// segments were examined: they may prove that the torn append was acknowledged, and then it is evidence.
    pub(crate) fn settle<D: Device>(&mut self, device: &mut D) -> Result<(), DeviceError> {
        device.begin_writes(self.file)?;
        self.allocate_again(device)?;
        if self.replace_by_spare(device)? {
            return Ok(());
        }
        // The last writes of a killed process may not be on the disk yet. They are written again, because a sync that
        // failed in that process has marked their pages clean, and another one would not cover them. The file keeps the space
        // of a torn append: a full device might not give it a second time.
        let torn_end = self.torn_end.max(self.len());
        if torn_end > self.allocated {
            return Err(DeviceError::Full { dir: FILE_NAME.to_owned() });
        }
        self.torn_end = 0;
        let mut bytes = self.tail.clone();
        bytes.resize((torn_end - self.tail_at) as usize, 0);
        Io::new(device).write_durable(self.file, self.tail_at, &bytes, IoClass::Manifest)?;
        self.keep_last_page();
        device.sync_dir()
    }

    /// Keeps a spare file allocated that can replace this one. If a full device leaves this one less than what is kept ahead, and
    /// the spare more than that, a snapshot in the spare becomes the manifest: each opening appends commits, and would use up
    /// what drops and clears need. Returns whether it did; the old file is the spare from then on.
    fn replace_by_spare<D: Device>(&mut self, device: &mut D) -> Result<bool, DeviceError> {
        let header = ManifestHeader { rewrite: self.header.rewrite + 1, ..self.header };
        let bytes = manifest::encode_snapshot(&self.state, header.rewrite);
        let len = bytes.len() as u64;
        let Some((file, allocated)) = open_spare(device, len + self.ahead_bytes()) else { return Ok(false) };
        let left = self.allocated.saturating_sub(self.len());
        let is_short = left < self.ahead_bytes() && left < allocated.saturating_sub(len);
        if !is_short || device.begin_writes(file).is_err() {
            device.close(file);
            return Ok(false);
        }
        // After a power loss the manifest's name may still denote the spare, if an earlier opening was killed behind its exchange.
        device.sync_dir()?;
        // Zeros over the commits of an earlier manifest.
        let mut content = bytes.clone();
        content.resize(allocated as usize, 0);
        Io::new(device).write_durable(file, 0, &content, IoClass::Manifest)?;
        match device.exchange(SPARE_FILE_NAME, FILE_NAME) {
            Ok(true) => {}
            // The names may be exchanged.
            Err(error) if !error.is_retryable() => return Err(error),
            Ok(false) | Err(_) => {
                tracing::warn!("the manifest keeps its file, with little space left: no other gets its name");
                device.close(file);
                return Ok(false);
            }
        }
        // Before anything is written to the old file, which the name may still denote after a power loss.
        device.sync_dir()?;
        device.close(self.file);
        let state = core::mem::take(&mut self.state);
        *self = Self { allocated, open_numbers: self.open_numbers, ..Self::at(file, header, state, bytes) };
        Ok(true)
    }

    /// Forgets the whole pages of the synced part.
    fn keep_last_page(&mut self) {
        let keep_from = self.synced - self.synced % PAGE_BYTES as u64;
        self.tail.drain(..(keep_from - self.tail_at) as usize);
        self.tail_at = keep_from;
    }

    fn ahead_bytes(&self) -> u64 {
        ahead_bytes(&self.state, self.open_numbers)
    }

    /// Space that edits leave which free none: the others need it to free space on a full device.
    fn spared_bytes(&self) -> u64 {
        AHEAD_BYTES_MIN / 2 + seals_bytes(&self.state, self.open_numbers)
    }

    /// Sets the count of numbers that the seals to come have for sure.
    pub(crate) const fn note_open_numbers(&mut self, numbers: usize) {
        self.open_numbers = numbers;
    }

    /// Numbers that the seals to come may have.
    pub(crate) fn numbers_to_seal(&self) -> usize {
        self.open_numbers + self.numbers_in_use()
    }

    /// Present ranges and their ancestors.
    pub(crate) fn numbers_in_use(&self) -> usize {
        self.state.ranges.len() + self.state.ancestors().count()
    }

    /// Allocates space for `bytes` more of edits that free none, and leaves on a full device what those need that do.
    ///
    /// # Errors
    /// The device's; if it is full, nothing has changed.
    pub(crate) fn reserve<D: Device>(&mut self, device: &mut D, bytes: u64) -> Result<(), DeviceError> {
        self.reserve_to_free(device, bytes + self.spared_bytes())
    }

    /// As [`ManifestFile::reserve`], for edits that free space: they may use all that is left.
    pub(crate) fn reserve_to_free<D: Device>(&mut self, device: &mut D, bytes: u64) -> Result<(), DeviceError> {
        let len = self.len();
        // While the file is rewritten, commits go to the new one.
        let (file, end, allocated) = match &mut self.rewrite {
            Some(rewrite) => (rewrite.file, rewrite.len(), &mut rewrite.allocated),
            None => (self.file, len, &mut self.allocated),
        };
        let wanted = end + bytes;
        if wanted > *allocated {
            let to = wanted.next_multiple_of(AHEAD_STEP_BYTES);
            device.allocate(file, *allocated, to - *allocated)?;
            *allocated = to;
        }
        Ok(())
    }

    /// Allocates the space that is kept ahead. A full device is not an error: the space left may suffice.
    fn allocate_ahead<D: Device>(&mut self, device: &mut D) -> Result<(), DeviceError> {
        match self.reserve_to_free(device, self.ahead_bytes()) {
            Err(error) if !error.is_retryable() => Err(error),
            _ => Ok(()),
        }
    }

    /// Allocates the whole file again, and the space that is kept ahead: a copied file may have holes. A full device may leave it
    /// with holes, and then without space that it counts on.
    fn allocate_again<D: Device>(&mut self, device: &mut D) -> Result<(), DeviceError> {
        let file_bytes = core::mem::take(&mut self.allocated);
        self.allocate_ahead(device)?;
        if self.allocated >= file_bytes {
            return Ok(());
        }
        match device.allocate(self.file, 0, file_bytes) {
            Ok(()) => self.allocated = file_bytes,
            Err(error) if error.is_retryable() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub(crate) fn state(&self) -> &ManifestState {
        &self.state
    }

    fn len(&self) -> u64 {
        self.tail_at + self.tail.len() as u64
    }

    /// Sets the expiry time that later commits carry.
    pub(crate) fn note_clock(&mut self, time: TimeMs, mono: MonoMs) {
        self.clock = (time, mono);
    }

    /// Age of the persisted expiry time, ms.
    pub(crate) fn clock_age_ms(&self) -> u64 {
        let (persisted, _) = self.state.clock.unwrap_or_default();
        self.clock.0.ms_since(persisted)
    }

    /// Whether the persisted expiry time is old enough for a commit of its own.
    pub(crate) fn is_clock_stale(&self) -> bool {
        self.clock_age_ms() >= CLOCK_AGE_MAX_MS
    }

    pub(crate) fn commit_clock(&mut self) -> CommitNumber {
        let (time, mono) = self.clock;
        self.queue(&[ManifestEdit::Clock { time, mono }])
    }

    /// Queues a commit; [`ManifestFile::is_durable`] with the returned number reports its durability. The commit
    /// carries the expiry time if that has advanced enough.
    pub(crate) fn commit(&mut self, edits: &[ManifestEdit]) -> CommitNumber {
        let has_space = self.len() + self.spared_bytes() <= self.allocated;
        if self.clock_age_ms() < CLOCK_STEP_MS || !has_space {
            return self.queue(edits);
        }
        let (time, mono) = self.clock;
        self.queue(&[edits, &[ManifestEdit::Clock { time, mono }]].concat())
    }

    fn queue(&mut self, edits: &[ManifestEdit]) -> CommitNumber {
        for edit in edits {
            if let Err(error) = self.state.apply(edit) {
                unreachable!("this process contradicts its own manifest: {error}")
            }
        }
        self.queued += 1;
        if edits.iter().any(ManifestEdit::needs_certifying) {
            self.important = self.queued;
        }
        if edits.iter().any(ManifestEdit::assigns_heirs) {
            self.assigned = self.queued;
        }
        let number = self.queued;
        match &mut self.rewrite {
            Some(rewrite) => rewrite.encode(number, edits),
            None => self.append(number, edits),
        }
        number
    }

    fn append(&mut self, number: CommitNumber, edits: &[ManifestEdit]) {
        let offset = self.len();
        assert!(offset >= HEADER_BYTES as u64, "commits follow the header");
        manifest::encode_commit(&self.header, edits, offset, self.synced, &mut self.tail);
        self.certified_if_durable = self.durable;
        self.ends.push_back((number, self.len()));
    }

    /// Whether damage to a durable commit could pass for a torn append, with no write coming that would certify it.
    pub(crate) fn needs_certifying(&self) -> bool {
        let is_idle = self.in_flight.is_none() && self.rewrite.is_none() && self.queued == self.durable;
        is_idle && self.important > self.certified
    }

    /// Queues a commit without content, in another sector, which certifies that those before it were synced.
    pub(crate) fn certify(&mut self) {
        assert!(self.needs_certifying(), "a commit that nothing needs");
        let end = self.len();
        for edit in manifest::certifying_edits(end) {
            self.queue(&[edit]);
        }
    }

    pub(crate) fn is_durable(&self, number: CommitNumber) -> bool {
        self.durable >= number
    }

    /// Whether records under the numbers of all heirs may be written. A record under a number that the manifest does not
    /// list proves at an opening that the manifest lost its synced end.
    pub(crate) fn are_heirs_durable(&self) -> bool {
        self.is_durable(self.assigned)
    }

    /// Whether a write should start: commits are queued and no write is in flight.
    pub(crate) fn is_due(&self) -> bool {
        self.in_flight.is_none() && self.rewrite.is_none() && self.queued > self.durable
    }

    /// Space that the file takes besides before it is rewritten, with the file that then replaces it, bytes. The log must
    /// leave it: on a full device each delete and each cleaned segment adds edits.
    pub(crate) fn growth_bytes(&self) -> u64 {
        let (longest, ahead) = (self.rewrite_from.max(manifest::REWRITE_BYTES_MIN), self.ahead_bytes());
        let allocated = (longest + ahead).next_multiple_of(AHEAD_STEP_BYTES);
        let replacing = (longest / manifest::REWRITE_RATIO_MIN + ahead).next_multiple_of(AHEAD_STEP_BYTES);
        allocated.saturating_sub(self.allocated) + replacing
    }

    /// Time at which queued commits that found no space try again.
    pub(crate) const fn retry_at(&self) -> Option<MonoMs> {
        self.retry_at
    }

    /// Starts the write of queued commits: an append, or a rewrite if the file is mostly history. On a full device only the
    /// commits that fit into the allocated space are appended, because a longer write could fail when half of it is done; the
    /// rest stays queued, and may get the space that these free. Returns whether a write was started.
    ///
    /// # Errors
    /// The device's. Without space or descriptors for a new file, the old one is appended to instead.
    pub(crate) fn start<D: Device>(&mut self, device: &mut D, token: Token, now: MonoMs) -> Result<bool, DeviceError> {
        assert!(self.is_due(), "one write of the manifest at a time");
        let lacks_space = self.len() > self.allocated;
        if lacks_space && self.retry_at.is_some_and(|at| now < at) {
            return Ok(false);
        }
        let is_due = lacks_space || self.len() >= self.rewrite_from;
        if is_due && self.len() >= manifest::REWRITE_BYTES_MIN && self.start_rewrite(device, token)? {
            self.retry_at = None;
            return Ok(true);
        }
        self.allocate_ahead(device)?;
        let has_space = self.len() <= self.allocated;
        let write = if has_space { Some((self.queued, self.len())) } else { self.last_with_space() };
        self.retry_at = write.is_none().then(|| now.plus_ms(RETRY_MS));
        let Some((number, end)) = write else { return Ok(false) };
        let bytes = (end - self.tail_at) as usize;
        let len = bytes.next_multiple_of(PAGE_BYTES);
        let mut buf = AlignedBuf::zeroed(len);
        buf[..bytes].copy_from_slice(&self.tail[..bytes]);
        let certified = if has_space { self.certified_if_durable } else { self.certified };
        self.in_flight = Some((end, number, certified));
        device.submit_write_durable(self.file, self.tail_at, buf, len, IoClass::Manifest, token);
        Ok(true)
    }

    /// The last queued commit that fits into the allocated space.
    fn last_with_space(&self) -> Option<CommitEnd> {
        self.ends.iter().take_while(|(_, end)| *end <= self.allocated).last().copied()
    }

    /// Starts a rewrite, if it is worthwhile and there is space.
    fn start_rewrite<D: Device>(&mut self, device: &mut D, token: Token) -> Result<bool, DeviceError> {
        let header = ManifestHeader { rewrite: self.header.rewrite + 1, ..self.header };
        let bytes = manifest::encode_snapshot(&self.state, header.rewrite);
        self.rewrite_from = self.len() + manifest::REWRITE_BYTES_MIN / 8;
        if !manifest::is_worth_rewriting(self.len(), bytes.len() as u64) {
            return Ok(false);
        }
        let (file, allocated) = match Self::create_new(device, bytes.len() as u64 + self.ahead_bytes()) {
            Ok(created) => created,
            Err(error) if error.is_retryable() => return Ok(false),
            Err(error) => return Err(error),
        };
        let len = bytes.len().next_multiple_of(PAGE_BYTES);
        let mut buf = AlignedBuf::zeroed(len);
        buf[..bytes.len()].copy_from_slice(&bytes);
        device.submit_write_durable(file, 0, buf, len, IoClass::Manifest, token);
        let (through, queued, ends, commits) = (self.queued, Vec::new(), VecDeque::new(), Vec::new());
        self.rewrite = Some(Rewrite { file, header, bytes, through, queued, ends, commits, allocated });
        Ok(true)
    }

    /// Whether the write in flight is that of a new file, after which [`ManifestFile::name_new`] is next.
    pub(crate) const fn is_rewriting(&self) -> bool {
        self.rewrite.is_some()
    }

    /// Completes the append in flight: its commits are durable.
    pub(crate) fn done(&mut self) {
        let Some((end, number, certified)) = self.in_flight.take() else {
            unreachable!("no write of the manifest was in flight")
        };
        self.synced = end;
        self.durable = number;
        self.certified = certified;
        self.ends.retain(|(queued, _)| *queued > number);
        self.keep_last_page();
    }

    /// The new file is written: it gets the manifest's name. Once the directory is synced, [`ManifestFile::take_over`]. Returns
    /// false if the device has no space or memory for that: then the old file goes on, with the commits that waited, whose space
    /// was reserved in the new one.
    pub(crate) fn name_new<D: Device>(&mut self, device: &mut D, now: MonoMs) -> Result<bool, DeviceError> {
        assert!(self.is_rewriting(), "no new file was written");
        match device.rename(NEW_FILE_NAME, FILE_NAME) {
            Err(error) if error.is_retryable() => {}
            renamed => return renamed.map(|()| true),
        }
        let Some(Rewrite { file, commits, .. }) = self.rewrite.take() else { unreachable!("a new file was written") };
        device.close(file);
        // If the unlink is refused too, the next attempt unlinks the file first.
        device.unlink(NEW_FILE_NAME).or_else(|error| if error.is_retryable() { Ok(()) } else { Err(error) })?;
        commits.iter().for_each(|(number, edits)| self.append(*number, edits));
        match self.reserve_to_free(device, 0) {
            Ok(()) => {}
            // A file without space for them would be rewritten at once.
            Err(error) if error.is_retryable() => self.retry_at = Some(now.plus_ms(RETRY_MS)),
            Err(error) => return Err(error),
        }
        Ok(false)
    }

    /// The new file durably has the manifest's name: its commits are durable.
    pub(crate) fn take_over<D: Device>(&mut self, device: &mut D) {
        let Some(rewrite) = self.rewrite.take() else { unreachable!("no new file was named") };
        let Rewrite { file, header, bytes, through, queued, ends, allocated, .. } = rewrite;
        device.close(core::mem::replace(&mut self.file, file));
        let state = core::mem::take(&mut self.state);
        let total = self.queued;
        assert_eq!(through + ends.len() as u64, total, "every commit is in the fresh file or follows it");
        let Self { open_numbers, important, assigned, clock, .. } = *self;
        let fresh = Self { open_numbers, important, assigned, clock, ..Self::at(file, header, state, bytes) };
        *self = Self { allocated, queued: total, durable: through, ends, ..fresh };
        self.tail.extend_from_slice(&queued);
        self.certified_if_durable = through;
    }

    /// Commits and blocks until it is durable; no other manifest write may be in flight.
    pub(crate) fn commit_and_wait<D: Device>(
        &mut self,
        device: &mut D,
        edits: &[ManifestEdit],
    ) -> Result<(), DeviceError> {
        let number = self.commit(edits);
        while !self.is_durable(number) {
            let mut io = Io::new(device);
            let token = io.token();
            if !self.start(io.device, token, MonoMs(0))? {
                return Err(DeviceError::Full { dir: FILE_NAME.to_owned() });
            }
            io.finish(token)?;
            if self.is_rewriting() {
                if self.name_new(device, MonoMs(0))? {
                    device.sync_dir()?;
                    self.take_over(device);
                }
            } else {
                self.done();
            }
        }
        Ok(())
    }
}
