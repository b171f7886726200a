//! Owns the manifest's file: commits queued, one write in flight, and which of them are durable.
use crate::error::OpenError;
use crate::format::manifest::{
    self, Decoded, Edit, FILE_NAME, HEADER_BYTES, ManifestHeader, ManifestState, ManifestVerdict, NEW_FILE_NAME,
};
use crate::recovery::io::Io;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, Cause, Device, DeviceError, FileId, Token};

/// The open manifest.
#[derive(Debug)]
pub(crate) struct ManifestFile {
    file: FileId,
    header: ManifestHeader,
    state: ManifestState,
    /// Bytes of the file from the page that the synced part ends in.
    tail: Vec<u8>,
    tail_at: u64,
    synced: u64,
    /// End of what a write in flight covers.
    in_flight: Option<u64>,
    /// The file goes on past its last good commit with what no one was promised.
    is_torn: bool,
}

impl ManifestFile {
    /// Writes a new store's manifest: whole and synced under another name before it gets its own.
    pub(crate) fn create<D: Device>(device: &mut D, state: ManifestState) -> Result<Self, OpenError> {
        Ok(Self::write_new(device, state, 1)?)
    }

    fn write_new<D: Device>(device: &mut D, state: ManifestState, rewrite: u64) -> Result<Self, DeviceError> {
        let bytes = manifest::encode_snapshot(&state, rewrite);
        let header =
            ManifestHeader { store: state.identity.map(|identity| identity.store).unwrap_or_default(), rewrite };
        match device.unlink(NEW_FILE_NAME) {
            Ok(()) | Err(DeviceError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        let file = device.create(NEW_FILE_NAME)?;
        let mut io = Io::new(device);
        io.write_durable(file, 0, &bytes)?;
        device.rename(NEW_FILE_NAME, FILE_NAME)?;
        device.sync_dir()?;
        Ok(Self::at(file, header, state, bytes))
    }

    fn at(file: FileId, header: ManifestHeader, state: ManifestState, mut bytes: Vec<u8>) -> Self {
        let synced = bytes.len() as u64;
        let tail_at = synced - synced % PAGE_BYTES as u64;
        bytes.drain(..tail_at as usize);
        Self { file, header, state, tail: bytes, tail_at, synced, in_flight: None, is_torn: false }
    }

    /// Reads the manifest and changes nothing: see [`ManifestFile::settle`]. `None`: there is none.
    pub(crate) fn open<D: Device>(device: &mut D) -> Result<Option<Self>, OpenError> {
        let file = match device.open(FILE_NAME) {
            Ok(file) => file,
            Err(DeviceError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let len = device.len(file)?;
        let mut bytes = Io::new(device).read_all(file, len, Cause::Manifest)?;
        let refuse = |detail: String| OpenError::Manifest { file: FILE_NAME.to_owned(), detail };
        let Decoded { header, state, valid_len, verdict, .. } =
            manifest::decode_all(&bytes).map_err(|error| refuse(error.to_string()))?;
        if let ManifestVerdict::CorruptAt { offset, synced, contradiction } = verdict {
            let why = contradiction.map(|error| error.to_string()).unwrap_or_default();
            return Err(refuse(format!("damaged at byte {offset}, below {synced} which was synced; {why}")));
        }
        bytes.truncate(valid_len as usize);
        let is_torn = matches!(verdict, ManifestVerdict::TornAt { .. });
        Ok(Some(Self { is_torn, ..Self::at(file, header, state, bytes) }))
    }

    /// Before the store relies on what was read: cuts a torn append off, and makes the rest durable. Not earlier than
    /// the segments were looked at: they may show that the torn append was promised, and then it is evidence.
    pub(crate) fn settle<D: Device>(&mut self, device: &mut D) -> Result<(), DeviceError> {
        if core::mem::take(&mut self.is_torn) {
            device.truncate(self.file, self.len())?;
        }
        // What a killed process wrote last may not be on the medium yet.
        Io::new(device).sync(self.file, Cause::Manifest)?;
        device.sync_dir()
    }

    /// Begins a fresh file when most of this one is history; without space for it the old one goes on.
    pub(crate) fn rewrite_if_worth<D: Device>(&mut self, device: &mut D) -> Result<(), DeviceError> {
        let snapshot_bytes = manifest::encode_snapshot(&self.state, self.header.rewrite + 1).len() as u64;
        if !manifest::is_worth_rewriting(self.len(), snapshot_bytes) {
            return Ok(());
        }
        match Self::write_new(device, self.state.clone(), self.header.rewrite + 1) {
            Ok(new) => {
                device.close(self.file);
                *self = new;
                Ok(())
            }
            Err(DeviceError::Full { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn state(&self) -> &ManifestState {
        &self.state
    }

    fn len(&self) -> u64 {
        self.tail_at + self.tail.len() as u64
    }

    /// Queues a commit; it is durable once [`ManifestFile::is_durable`] its return value.
    pub(crate) fn commit(&mut self, edits: &[Edit]) -> u64 {
        for edit in edits {
            if let Err(error) = self.state.apply(edit) {
                unreachable!("this process contradicts its own manifest: {error}")
            }
        }
        let offset = self.len();
        assert!(offset >= HEADER_BYTES as u64, "commits follow the header");
        manifest::encode_commit(&self.header, edits, offset, self.synced, &mut self.tail);
        self.len()
    }

    pub(crate) fn is_durable(&self, end: u64) -> bool {
        self.synced >= end
    }

    /// Whether a write should be started: something is queued and none is in flight.
    pub(crate) fn is_due(&self) -> bool {
        self.in_flight.is_none() && self.len() > self.synced
    }

    /// Starts the write of everything queued.
    pub(crate) fn start<D: Device>(&mut self, device: &mut D, token: Token) {
        assert!(self.is_due(), "one write of the manifest at a time");
        let len = self.tail.len().next_multiple_of(PAGE_BYTES);
        let mut buf = AlignedBuf::zeroed(len);
        buf[..self.tail.len()].copy_from_slice(&self.tail);
        self.in_flight = Some(self.len());
        device.submit_write_durable(self.file, self.tail_at, buf, len, Cause::Manifest, token);
    }

    /// The write in flight is done: what it covered is durable.
    pub(crate) fn done(&mut self) {
        let Some(end) = self.in_flight.take() else { unreachable!("no write of the manifest was in flight") };
        self.synced = end;
        let keep_from = end - end % PAGE_BYTES as u64;
        self.tail.drain(..(keep_from - self.tail_at) as usize);
        self.tail_at = keep_from;
    }

    /// Commits and waits; only while nothing else is in flight.
    pub(crate) fn commit_and_wait<D: Device>(&mut self, device: &mut D, edits: &[Edit]) -> Result<(), DeviceError> {
        self.commit(edits);
        let mut io = Io::new(device);
        let token = io.token();
        self.start(io.device, token);
        io.finish(token)?;
        self.done();
        Ok(())
    }
}
