//! Owns the order of a session's replies: one slot per request that waits, bytes ready behind it held back.
//!
//! A request whose reply is known and before which nothing waits takes no slot: its reply is encoded straight into the
//! output. A write's reply is encoded when the write is appended and held until its version is committed.
//!
//! How long an unknown reply will be is estimated from those before it: at once as long as a long one, slowly shorter
//! after short ones. So a reader of short values has as many under way as it likes, a reader of long ones few.
use super::{BufferPool, Charge, OutBuf};
use fawn_types::{OperationError, Version};
use fawn_wire::{MemcachedShape, Protocol, RespShape, RespVersion, Shape, encode_error};
use std::collections::VecDeque;

/// What a slot waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wait {
    /// Only for the slots before it.
    Turn,
    /// For the commit of a version.
    Commit(Version),
    /// For a read or a queued operation: [`Replies::complete`].
    Operation,
}

/// Replies up to this are short.
const SHORT_BYTES: usize = 16 << 10;
/// A reply as long as this moves as a whole rather than by its bytes.
const LONG_BYTES: usize = 32 << 10;

/// Where a slot's reply is.
#[derive(Debug)]
enum Reply {
    /// The next bytes of `held`.
    Held(u32),
    /// On its own: it became known out of order.
    Own(Vec<u8>),
    /// Not there yet: so many values of this many bytes in all, as estimated; parts of it are here already.
    Expected { values: u32, bytes: usize, part_bytes: usize },
}

#[derive(Debug)]
struct Slot {
    wait: Wait,
    reply: Reply,
}

/// A session's replies, in the order of its requests.
#[derive(Debug)]
pub(crate) struct Replies {
    out: OutBuf,
    slots: VecDeque<Slot>,
    /// Number of the first slot; slots are numbered for life.
    first: u64,
    held: OutBuf,
    own_bytes: usize,
    expected_bytes: usize,
    /// Parts of replies that are not there as a whole.
    part_bytes: usize,
    /// How long a reply with one value is; the longest there may be while none was heard.
    estimate_bytes: usize,
    has_learnt: bool,
    /// Replies that were errors since this was last asked.
    errors: u64,
    protocol: Protocol,
}

/// More is never expected of one reply: the estimate was of the longest value there may be.
const EXPECTED_BYTES_MAX: usize = 64 << 20;
/// Slots that an idle session keeps room for.
const KEPT: usize = 32;

impl Replies {
    pub(crate) fn new(protocol: Protocol, value_bytes_max: usize) -> Self {
        Self {
            out: OutBuf::default(),
            slots: VecDeque::new(),
            first: 0,
            held: OutBuf::default(),
            own_bytes: 0,
            expected_bytes: 0,
            part_bytes: 0,
            estimate_bytes: value_bytes_max,
            has_learnt: false,
            errors: 0,
            protocol,
        }
    }

    /// Whether no reply waits for anything but the host.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.slots.is_empty()
    }

    /// Number of replies that wait.
    pub(crate) fn pending(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of replies, ready or waiting.
    pub(crate) fn bytes(&self) -> usize {
        self.out.len() + self.held.len() + self.own_bytes
    }

    /// What they take of the shard's room, now and when reads under way are done.
    #[inline]
    pub(crate) fn charge(&self) -> Charge {
        let behind_bytes = self.held.len() + self.own_bytes;
        Charge {
            held_bytes: self.out.len() + behind_bytes,
            behind_bytes,
            expected_bytes: self.expected_bytes,
            part_bytes: self.part_bytes,
        }
    }

    /// Whether everything before this slot has left or is ready to.
    pub(crate) const fn is_first(&self, number: u64) -> bool {
        number == self.first
    }

    /// What a reserved place is charged with.
    pub(crate) fn expected_bytes(&self, number: u64) -> usize {
        let at = number.checked_sub(self.first).map(|at| at as usize);
        match at.and_then(|at| self.slots.get(at)) {
            Some(Slot { reply: Reply::Expected { bytes, .. }, .. }) => *bytes,
            _ => 0,
        }
    }

    /// How long a reply with one value is, as far as anybody knows.
    pub(crate) const fn estimate_bytes(&self) -> usize {
        self.estimate_bytes
    }

    /// Whether its replies are known to be short: to a session of long ones a short wait is little.
    pub(crate) const fn are_short(&self) -> bool {
        self.has_learnt && self.estimate_bytes <= SHORT_BYTES
    }

    /// Replies that were errors since this was last asked.
    #[inline]
    pub(crate) const fn take_errors(&mut self) -> u64 {
        std::mem::replace(&mut self.errors, 0)
    }

    /// A reply with `values` values was so long in all.
    #[inline]
    pub(crate) fn learn(&mut self, values: u32, bytes: usize) {
        let bytes = bytes / values.max(1) as usize;
        // The first reply says more than an assumption; after that a long reply is remembered for a while.
        let remembered_bytes = if self.has_learnt { self.estimate_bytes / 4 * 3 } else { self.estimate_bytes / 8 };
        self.estimate_bytes = bytes.max(remembered_bytes);
        self.has_learnt = true;
    }

    pub(crate) fn output(&self) -> &[u8] {
        self.out.as_slice()
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    /// The host wrote that many bytes.
    pub(crate) fn wrote(&mut self, bytes: usize) {
        self.out.consume(bytes);
    }

    /// Makes sure that replies have memory to go to without asking the system each time.
    #[inline]
    pub(crate) fn borrow_from(&mut self, pool: &mut BufferPool) {
        if self.out.bytes.capacity() == 0 {
            self.out.bytes = pool.take();
        }
        if self.held.bytes.capacity() == 0 {
            self.held.bytes = pool.take();
        }
    }

    /// Gives empty buffers back.
    pub(crate) fn give_back(&mut self, pool: &mut BufferPool) {
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

    /// A reply that is known.
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
            Some(Slot { wait: Wait::Turn, reply: Reply::Held(before) }) if bytes < u32::MAX - *before => {
                *before += bytes;
            }
            _ => self.slots.push_back(Slot { wait: Wait::Turn, reply: Reply::Held(bytes) }),
        }
    }

    /// A reply that may be heard once `wait` is committed.
    #[inline]
    pub(crate) fn respond_after(&mut self, wait: Option<Version>, encode: impl FnOnce(&mut Vec<u8>)) {
        let Some(version) = wait else { return self.respond(encode) };
        let bytes = self.hold(encode);
        if bytes > 0 {
            self.slots.push_back(Slot { wait: Wait::Commit(version), reply: Reply::Held(bytes) });
        }
    }

    fn hold(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> u32 {
        let before = self.held.bytes.len();
        encode(&mut self.held.bytes);
        self.errors += u64::from(is_error(self.protocol, &self.held.bytes[before..]));
        (self.held.bytes.len() - before) as u32
    }

    /// A place in the order for a reply that is not known yet and will hold so many values; its number.
    pub(crate) fn reserve(&mut self, values: u32) -> u64 {
        let bytes = (values as usize).saturating_mul(self.estimate_bytes).min(EXPECTED_BYTES_MAX);
        self.expected_bytes += bytes;
        self.slots.push_back(Slot { wait: Wait::Operation, reply: Reply::Expected { values, bytes, part_bytes: 0 } });
        self.first + self.slots.len() as u64 - 1
    }

    /// A reserved place's reply has at least that many bytes, as is known by now.
    pub(crate) fn expect(&mut self, number: u64, at_least_bytes: usize) {
        if let Reply::Expected { bytes, .. } = &mut self.slot_mut(number).reply
            && *bytes < at_least_bytes
        {
            self.expected_bytes += at_least_bytes - std::mem::replace(bytes, at_least_bytes);
        }
    }

    /// So many bytes of a reserved place's reply are here by now.
    pub(crate) fn hold_part(&mut self, number: u64, bytes: usize) {
        self.expect(number, bytes);
        if let Reply::Expected { part_bytes, .. } = &mut self.slot_mut(number).reply {
            let before_bytes = std::mem::replace(part_bytes, bytes);
            self.part_bytes = self.part_bytes + bytes - before_bytes;
        }
    }

    fn slot_mut(&mut self, number: u64) -> &mut Slot {
        let at = number.checked_sub(self.first).map(|at| at as usize);
        let Some(slot) = at.and_then(|at| self.slots.get_mut(at)) else {
            unreachable!("slot {number} completes once, while it is in the queue from {}", self.first)
        };
        slot
    }

    /// The reply to a reserved place, to be heard once `wait` is committed.
    pub(crate) fn complete(&mut self, number: u64, wait: Option<Version>, encode: impl FnOnce(&mut Vec<u8>)) {
        let slot = self.slot_mut(number);
        assert_eq!(slot.wait, Wait::Operation, "a slot completes once");
        slot.wait = wait.map_or(Wait::Turn, Wait::Commit);
        let Reply::Expected { values, bytes, part_bytes } = std::mem::replace(&mut slot.reply, Reply::Own(Vec::new()))
        else {
            unreachable!("slot {number} has a reply before it completes")
        };
        self.expected_bytes -= bytes;
        self.part_bytes -= part_bytes;
        let (before_bytes, protocol) = (self.bytes(), self.protocol);
        if number == self.first && wait.is_none() {
            self.slots.pop_front();
            self.first += 1;
            let before_bytes = self.out.bytes.len();
            encode(&mut self.out.bytes);
            self.errors += u64::from(is_error(self.protocol, &self.out.bytes[before_bytes..]));
        } else if let Reply::Own(bytes) = &mut self.slot_mut(number).reply {
            encode(bytes);
            let (is_error, bytes) = (is_error(protocol, bytes), bytes.len());
            self.errors += u64::from(is_error);
            self.own_bytes += bytes;
        }
        if values > 0 {
            self.learn(values, self.bytes() - before_bytes);
        }
        if self.slots.front().is_some_and(|slot| slot.wait == Wait::Turn) {
            // They waited for this one only. Out at once: the next one to complete is then the first, and needs no
            // memory of its own.
            self.settle(Version::ZERO, None);
        }
    }

    /// Moves to the output what waits no longer. With `failed`, what is not committed never will be: its replies
    /// become that error.
    pub(crate) fn settle(&mut self, committed: Version, failed: Option<OperationError>) {
        // Runs of held bytes leave in one copy.
        let mut run = 0;
        while let Some(slot) = self.slots.front() {
            let (is_due, is_lost) = match slot.wait {
                Wait::Turn => (true, false),
                Wait::Commit(version) => (version <= committed, failed.is_some()),
                Wait::Operation => (false, false),
            };
            match &slot.reply {
                _ if !is_due && !is_lost => break,
                Reply::Held(bytes) if is_due => run += *bytes as usize,
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
            Reply::Held(bytes) => *bytes as usize,
            Reply::Own(own) => {
                self.own_bytes -= own.len();
                if is_due && own.len() >= LONG_BYTES && self.out.is_empty() {
                    return std::mem::swap(&mut self.out.bytes, own);
                }
                if is_due {
                    return self.out.bytes.append(own);
                }
                own.len()
            }
            Reply::Expected { .. } => unreachable!("what is settled is known"),
        };
        if matches!(slot.reply, Reply::Held(_)) {
            self.held.consume(bytes);
        }
        if let (Some(error), 1..) = (failed, bytes) {
            encode_error(any_shape(self.protocol), error, &mut self.out.bytes);
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
    // Another shard's client is told there.
    !matches!(protocol, Protocol::Native)
        && matches!(reply, [b'-', ..] | [b'E', b'R', ..] | [b'C', b'L', ..] | [b'S', b'E', ..])
}

/// A shape of the protocol, for errors: they do not depend on the command.
pub(crate) const fn any_shape(protocol: Protocol) -> Shape {
    match protocol {
        Protocol::Resp => Shape::Resp(RespShape::Flag, RespVersion::V2),
        Protocol::Memcached => Shape::Memcached(MemcachedShape::Ok),
        Protocol::Native => Shape::Native,
    }
}
