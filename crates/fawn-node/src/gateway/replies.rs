//! Replies of a session in request order: one slot per waiting request; finished replies wait behind it.
//!
//! A known reply with nothing waiting before it takes no slot: it is encoded directly into the
//! output. A write's reply is encoded when the write is appended and held until its version is committed.
//!
//! A read that waits reserves what it is granted.
use super::{OutBuf, OutputBufferPool, Usage};
use fawn_types::{OperationError, Version};
use fawn_wire::{MemcachedFormat, Protocol, ReplyFormat, RespFormat, RespVersion, encode_error};
use std::collections::VecDeque;

/// Replies of this length are moved as a buffer rather than copied.
const LONG_BYTES: usize = 32 << 10;

/// Place of a slot's reply.
#[derive(Debug)]
enum ReplyState {
    /// The next bytes of `held`.
    Ready(u32),
    /// A buffer of its own: the reply became known out of order.
    Own(Vec<u8>),
    /// Unknown until [`Replies::complete`]: reserved length.
    Reserved(usize),
}

#[derive(Debug)]
struct ReplySlot {
    /// The version whose commit a known reply waits for, besides the slots before it.
    wait: Option<Version>,
    reply: ReplyState,
}

impl ReplySlot {
    /// Whether the reply is known and waits for the slots before it only.
    const fn is_due_at_once(&self) -> bool {
        self.wait.is_none() && !matches!(self.reply, ReplyState::Reserved(_))
    }
}

/// A session's replies, in the order of its requests.
#[derive(Debug)]
pub(crate) struct Replies {
    out: OutBuf,
    slots: VecDeque<ReplySlot>,
    /// Number of the first slot; numbers are never reused.
    first: u64,
    held: OutBuf,
    own_bytes: usize,
    reserved_bytes: usize,
    /// Error replies since the last query.
    errors: u64,
    protocol: Protocol,
}

/// Slots that an idle session keeps.
const KEPT: usize = 32;

impl Replies {
    pub(crate) fn new(protocol: Protocol) -> Self {
        Self {
            out: OutBuf::default(),
            slots: VecDeque::new(),
            first: 0,
            held: OutBuf::default(),
            own_bytes: 0,
            reserved_bytes: 0,
            errors: 0,
            protocol,
        }
    }

    /// Whether no reply waits for anything but the host.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.slots.is_empty()
    }

    /// Number of waiting replies.
    pub(crate) fn pending(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of replies, ready or waiting.
    pub(crate) fn bytes(&self) -> usize {
        self.out.len() + self.held.len() + self.own_bytes
    }

    /// Usage of the reply budget.
    #[inline]
    pub(crate) fn usage(&self) -> Usage {
        Usage { ready_bytes: self.bytes(), reserved_bytes: self.reserved_bytes }
    }

    /// Whether the session has no reply, neither waiting nor unread.
    #[inline]
    pub(crate) fn is_clear(&self) -> bool {
        self.slots.is_empty() && self.out.is_empty()
    }

    /// Whether everything before this slot has left.
    pub(crate) fn is_next(&self, number: u64) -> bool {
        number == self.first && self.out.is_empty()
    }

    /// Number of the next reply that has a slot.
    pub(crate) const fn next_slot(&self) -> u64 {
        self.first
    }

    /// Whether its next reply may be one that waits for a grant.
    pub(crate) fn waits_for_grant(&self) -> bool {
        let next = self.slots.front().filter(|_| self.out.is_empty());
        next.is_some_and(|slot| matches!(slot.reply, ReplyState::Reserved(0)))
    }

    /// Bytes of a reserved slot.
    pub(crate) fn reserved_bytes(&self, number: u64) -> usize {
        let at = number.checked_sub(self.first).map(|at| at as usize);
        match at.and_then(|at| self.slots.get(at)) {
            Some(ReplySlot { reply: ReplyState::Reserved(bytes), .. }) => *bytes,
            _ => 0,
        }
    }

    /// Takes the number of error replies since the last call.
    #[inline]
    pub(crate) const fn take_errors(&mut self) -> u64 {
        std::mem::replace(&mut self.errors, 0)
    }

    /// Counts a reply that has an error behind its beginning.
    pub(crate) fn note_inner_error(&mut self, has_inner_error: bool) {
        self.errors += u64::from(has_inner_error);
    }

    pub(crate) fn output(&self) -> &[u8] {
        self.out.as_slice()
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    /// The host wrote this many bytes.
    pub(crate) fn wrote(&mut self, bytes: usize) {
        self.out.consume(bytes);
    }

    /// Provides buffers for replies, so that single replies need no allocation.
    #[inline]
    pub(crate) fn borrow_from(&mut self, pool: &mut OutputBufferPool) {
        if self.out.bytes.capacity() == 0 {
            self.out.bytes = pool.take();
        }
        if self.held.bytes.capacity() == 0 {
            self.held.bytes = pool.take();
        }
    }

    /// Returns empty buffers to the pool.
    pub(crate) fn give_back(&mut self, pool: &mut OutputBufferPool) {
        if self.out.is_empty() {
            pool.give(std::mem::take(&mut self.out.bytes));
        }
        if self.held.is_empty() {
            pool.give(std::mem::take(&mut self.held.bytes));
        }
        if self.slots.is_empty() {
            self.slots.shrink_to(KEPT);
        }
    }

    /// Adds a reply that is ready.
    #[inline]
    pub(crate) fn respond(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        if self.slots.is_empty() {
            let before_bytes = self.out.bytes.len();
            encode(&mut self.out.bytes);
            self.errors += u64::from(is_error(self.protocol, &self.out.bytes[before_bytes..]));
            return;
        }
        let bytes = self.hold(encode);
        match self.slots.back_mut() {
            Some(ReplySlot { wait: None, reply: ReplyState::Ready(before) }) if bytes < u32::MAX - *before => {
                *before += bytes;
            }
            _ => self.slots.push_back(ReplySlot { wait: None, reply: ReplyState::Ready(bytes) }),
        }
    }

    /// Adds a reply that may be sent once `wait` is committed.
    #[inline]
    pub(crate) fn respond_after(&mut self, wait: Option<Version>, encode: impl FnOnce(&mut Vec<u8>)) {
        let Some(version) = wait else { return self.respond(encode) };
        let bytes = self.hold(encode);
        if bytes > 0 {
            self.slots.push_back(ReplySlot { wait: Some(version), reply: ReplyState::Ready(bytes) });
        }
    }

    fn hold(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> u32 {
        let before = self.held.bytes.len();
        encode(&mut self.held.bytes);
        self.errors += u64::from(is_error(self.protocol, &self.held.bytes[before..]));
        (self.held.bytes.len() - before) as u32
    }

    /// Reserves a slot for a reply of this size; returns its number.
    pub(crate) fn reserve(&mut self, bytes: usize) -> u64 {
        self.reserved_bytes += bytes;
        self.slots.push_back(ReplySlot { wait: None, reply: ReplyState::Reserved(bytes) });
        self.first + self.slots.len() as u64 - 1
    }

    /// Changes the bytes of a reserved slot.
    pub(crate) fn set_reserved(&mut self, number: u64, reserved_bytes: usize) {
        if let ReplyState::Reserved(bytes) = &mut self.slot_mut(number).reply {
            let before_bytes = std::mem::replace(bytes, reserved_bytes);
            self.reserved_bytes = self.reserved_bytes + reserved_bytes - before_bytes;
        }
    }

    fn slot_mut(&mut self, number: u64) -> &mut ReplySlot {
        let at = number.checked_sub(self.first).map(|at| at as usize);
        let Some(slot) = at.and_then(|at| self.slots.get_mut(at)) else {
            unreachable!("slot {number} completes once, while it is in the queue from {}", self.first)
        };
        slot
    }

    /// Fills a reserved slot; the reply may be sent once `wait` is committed.
    #[inline]
    pub(crate) fn complete(&mut self, number: u64, wait: Option<Version>, encode: impl FnOnce(&mut Vec<u8>)) {
        let slot = self.slot_mut(number);
        slot.wait = wait;
        let ReplyState::Reserved(bytes) = std::mem::replace(&mut slot.reply, ReplyState::Own(Vec::new())) else {
            unreachable!("slot {number} has a reply before it completes")
        };
        self.reserved_bytes -= bytes;
        let protocol = self.protocol;
        if number == self.first && wait.is_none() {
            self.slots.pop_front();
            self.first += 1;
            let before_bytes = self.out.bytes.len();
            encode(&mut self.out.bytes);
            self.errors += u64::from(is_error(self.protocol, &self.out.bytes[before_bytes..]));
        } else if let ReplyState::Own(bytes) = &mut self.slot_mut(number).reply {
            encode(bytes);
            let (is_error, bytes) = (is_error(protocol, bytes), bytes.len());
            self.errors += u64::from(is_error);
            self.own_bytes += bytes;
        }
        if self.slots.front().is_some_and(ReplySlot::is_due_at_once) {
            // The next replies waited for this slot only. They are moved out at once, so the next completed slot is the
            // first and needs no buffer of its own.
            self.settle(Version::ZERO, None);
        }
    }

    /// Moves ready replies to the output. With `failed`, uncommitted writes never commit: their replies
    /// become that error.
    pub(crate) fn settle(&mut self, committed: Version, failed: Option<OperationError>) {
        // Runs of held bytes leave in one copy.
        let mut run = 0;
        while let Some(slot) = self.slots.front() {
            let is_due = slot.wait.is_none_or(|version| version <= committed);
            match &slot.reply {
                ReplyState::Reserved(_) => break,
                _ if !is_due && failed.is_none() => break,
                ReplyState::Ready(bytes) if is_due => run += *bytes as usize,
                _ => {
                    self.release(std::mem::take(&mut run));
                    self.settle_apart(is_due, failed);
                }
            }
            self.slots.pop_front();
            self.first += 1;
        }
        self.release(run);
    }

    /// The front slot's own reply, or the failure in its place.
    fn settle_apart(&mut self, is_due: bool, failed: Option<OperationError>) {
        let Some(slot) = self.slots.front_mut() else { return };
        let bytes = match &mut slot.reply {
            ReplyState::Ready(bytes) => *bytes as usize,
            ReplyState::Own(own) => {
                self.own_bytes -= own.len();
                if is_due && own.len() >= LONG_BYTES && self.out.is_empty() {
                    return std::mem::swap(&mut self.out.bytes, own);
                }
                if is_due {
                    return self.out.bytes.append(own);
                }
                own.len()
            }
            ReplyState::Reserved(_) => unreachable!("what is settled is known"),
        };
        if matches!(slot.reply, ReplyState::Ready(_)) {
            self.held.consume(bytes);
        }
        if let (Some(error), 1..) = (failed, bytes) {
            encode_error(any_format(self.protocol), error, &mut self.out.bytes);
            self.errors += 1;
        }
    }

    /// Moves bytes from `held` to the output.
    fn release(&mut self, bytes: usize) {
        if bytes > 0 {
            self.out.bytes.extend_from_slice(&self.held.as_slice()[..bytes]);
            self.held.consume(bytes);
        }
    }
}

/// Whether a reply is an error as a whole: RESP's `-`, memcached's `ERROR`, `CLIENT_ERROR` and `SERVER_ERROR`. No other
/// reply of either protocol begins so.
#[inline]
const fn is_error(protocol: Protocol, reply: &[u8]) -> bool {
    match protocol {
        Protocol::Resp => matches!(reply, [b'-', ..]),
        Protocol::Memcached => matches!(reply, [b'E', b'R', ..] | [b'C', b'L', ..] | [b'S', b'E', ..]),
    }
}

/// A reply format of the protocol, for errors: they do not depend on the command.
pub(crate) const fn any_format(protocol: Protocol) -> ReplyFormat {
    match protocol {
        Protocol::Resp => ReplyFormat::Resp(RespFormat::Flag, RespVersion::V2),
        Protocol::Memcached => ReplyFormat::Memcached(MemcachedFormat::Ok),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reply that waited only for the one before it is moved out with that one: the next one needs no buffer.
    #[test]
    fn a_completion_moves_out_the_replies_behind_it() {
        let mut replies = Replies::new(Protocol::Resp);
        let slots = [8, 8, 8].map(|bytes| replies.reserve(bytes));
        replies.complete(slots[1], None, |out| out.extend_from_slice(b"+two\r\n"));
        assert_eq!((replies.output(), replies.usage().sum()), (&b""[..], 6 + 16));
        replies.complete(slots[0], None, |out| out.extend_from_slice(b"+one\r\n"));
        assert_eq!((replies.output(), replies.next_slot()), (&b"+one\r\n+two\r\n"[..], slots[2]));
    }
}
