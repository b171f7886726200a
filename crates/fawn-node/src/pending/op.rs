//! A waiting request on one key: an owned copy, and the target of its reply.
use crate::SessionId;
use fawn_ds::internals::View;
use fawn_types::{KeyHash, Update};
use fawn_wire::ReplyFormat;

/// Place of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReplyPlace {
    /// The session's reserved slot of this number.
    Slot(u64),
    /// An item of a request on several keys.
    Item { batch: usize, item: u32 },
}

/// Receiver and format of a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyTarget<'a> {
    pub(crate) session: SessionId,
    pub(crate) target: ReplyPlace,
    pub(crate) format: ReplyFormat,
    pub(crate) key: &'a [u8],
    /// The request cannot be repeated: it is an update, or is in its key's queue.
    pub(crate) is_queued: bool,
}

/// Kind of a waiting request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OpAction {
    Get,
    /// Its bytes are in [`PendingOp::payload`].
    Update(Update<'static>),
}

/// A request that waits for its read, or in its key's queue.
#[derive(Debug)]
pub(crate) struct PendingOp {
    pub(crate) session: SessionId,
    pub(crate) target: ReplyPlace,
    pub(crate) hash: KeyHash,
    pub(crate) format: ReplyFormat,
    pub(crate) action: OpAction,
    /// It is in its key's queue; else it is a single read.
    pub(crate) is_queued: bool,
    /// The view that a read needs; updates see the latest.
    pub(crate) view: View,
    /// The session's next read of the same key, which runs when this one is done.
    pub(crate) next: Option<usize>,
    /// The key, then the update's bytes.
    bytes: Box<[u8]>,
    key_bytes: usize,
}

impl PendingOp {
    pub(crate) fn get(session: SessionId, target: ReplyPlace, hash: KeyHash, key: &[u8], format: ReplyFormat) -> Self {
        let (bytes, key_bytes) = (key.into(), key.len());
        Self {
            session,
            target,
            hash,
            format,
            action: OpAction::Get,
            is_queued: false,
            view: View::Committed,
            next: None,
            bytes,
            key_bytes,
        }
    }

    pub(crate) fn update(
        session: SessionId,
        target: ReplyPlace,
        hash: KeyHash,
        (key, update): (&[u8], &Update<'_>),
        format: ReplyFormat,
    ) -> Self {
        let (action, payload) = detach(update);
        let bytes = [key, payload].concat().into_boxed_slice();
        let (action, key_bytes) = (OpAction::Update(action), key.len());
        Self {
            session,
            target,
            hash,
            format,
            action,
            is_queued: true,
            view: View::Latest,
            next: None,
            bytes,
            key_bytes,
        }
    }

    /// Placeholder in the table while the operation is taken out.
    pub(crate) fn taken() -> Self {
        let (session, target) = (SessionId::NOBODY, ReplyPlace::Slot(u64::MAX));
        let (format, action, bytes) = (ReplyFormat::Silent, OpAction::Get, Box::default());
        Self {
            session,
            target,
            hash: KeyHash(0),
            format,
            action,
            is_queued: false,
            view: View::Committed,
            next: None,
            bytes,
            key_bytes: 0,
        }
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.session == SessionId::NOBODY
    }

    pub(crate) fn reply_target(&self) -> ReplyTarget<'_> {
        let Self { session, target, format, is_queued, .. } = *self;
        ReplyTarget { session, target, format, key: self.key(), is_queued }
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.bytes[..self.key_bytes]
    }

    /// The update with its bytes, if it is one.
    pub(crate) fn as_update(&self) -> Option<Update<'_>> {
        let OpAction::Update(update) = self.action else { return None };
        Some(attach(update, &self.bytes[self.key_bytes..]))
    }

    /// The request: key and update with bytes.
    pub(crate) const fn asked_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The same without the update's bytes: enough to reply. `is_queued` still marks it as an update.
    pub(crate) fn into_answerable(self) -> Self {
        if !self.is_update() {
            return self;
        }
        Self { is_queued: true, ..Self::get(self.session, self.target, self.hash, self.key(), self.format) }
    }

    pub(crate) const fn is_update(&self) -> bool {
        matches!(self.action, OpAction::Update(_))
    }
}

/// Splits an update into its form without bytes, and its bytes.
fn detach<'a>(update: &Update<'a>) -> (Update<'static>, &'a [u8]) {
    match *update {
        Update::Set { value, flags, expiry, condition, return_previous } => {
            (Update::Set { value: &[], flags, expiry, condition, return_previous }, value)
        }
        Update::Append { bytes, create, condition } => (Update::Append { bytes: &[], create, condition }, bytes),
        Update::Prepend { bytes, create, condition } => (Update::Prepend { bytes: &[], create, condition }, bytes),
        Update::AddSigned { delta } => (Update::AddSigned { delta }, &[]),
        Update::AddUnsigned { delta } => (Update::AddUnsigned { delta }, &[]),
        Update::SubtractUnsigned { delta } => (Update::SubtractUnsigned { delta }, &[]),
        Update::Delete { condition, return_previous } => (Update::Delete { condition, return_previous }, &[]),
        Update::Touch { expiry, condition, return_value } => (Update::Touch { expiry, condition, return_value }, &[]),
    }
}

fn attach<'a>(update: Update<'static>, payload: &'a [u8]) -> Update<'a> {
    match update {
        Update::Set { flags, expiry, condition, return_previous, .. } => {
            Update::Set { value: payload, flags, expiry, condition, return_previous }
        }
        Update::Append { create, condition, .. } => Update::Append { bytes: payload, create, condition },
        Update::Prepend { create, condition, .. } => Update::Prepend { bytes: payload, create, condition },
        // Listed one by one: a new update with bytes must not lose them while it waits.
        Update::AddSigned { .. }
        | Update::AddUnsigned { .. }
        | Update::SubtractUnsigned { .. }
        | Update::Delete { .. }
        | Update::Touch { .. } => update,
    }
}
