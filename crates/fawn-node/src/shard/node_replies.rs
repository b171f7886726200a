//! Replies to operations of front-ends of a cluster, as frames.
use crate::cluster::PeerLinks;
use crate::cluster::payload::put_reply;
use crate::request::Origin;
use crate::status::ShardCounters;
use fawn_chain::message::RefusedReason;
use fawn_chain::{Body, Frame, Rejection};
use fawn_types::{Reply, Version};

/// Sender of these replies.
pub(crate) struct NodeReplies<'a> {
    pub(crate) links: &'a mut PeerLinks,
    /// Scratch buffer.
    pub(crate) encoded: &'a mut Vec<u8>,
    pub(crate) counters: &'a mut ShardCounters,
}

impl NodeReplies<'_> {
    /// Sends a reply, unless it must wait for a commit: then the front-end is refused, asks again, and gets the
    /// committed value.
    pub(super) fn send(&mut self, origin: &Origin, reply: &Reply<'_>, wait: Option<Version>) {
        if wait.is_some() {
            return self.refuse(origin, RefusedReason::Overloaded);
        }
        let Origin::Node { from, op, session, range, epoch } = *origin else { unreachable!("a front-end's operation") };
        self.encoded.clear();
        put_reply(self.encoded, session, reply);
        let frame = Frame { header: self.links.header(range, epoch), body: Body::Reply { op, payload: self.encoded } };
        self.links.send(from, &frame);
    }

    /// Sends a refusal: the operation had no effect.
    pub(super) fn refuse(&mut self, origin: &Origin, reason: RefusedReason) {
        let Origin::Node { from, op, range, epoch, .. } = *origin else { unreachable!("a front-end's operation") };
        self.counters.chain_refused += 1;
        let header = self.links.header(range, epoch);
        self.links.send(from, &Frame { header, body: Body::Refused { op, reason } });
    }
}

pub(super) const fn reason_of(rejection: &Rejection) -> RefusedReason {
    match rejection {
        Rejection::TooFewCopies => RefusedReason::TooFewCopies,
        // The manager begins a new epoch for the latter.
        Rejection::Overloaded | Rejection::EpochFull => RefusedReason::Overloaded,
        Rejection::NotServing | Rejection::StaleEpoch { .. } | Rejection::WrongMember { .. } => {
            RefusedReason::StaleEpoch
        }
    }
}

/// The refusal of an operation whose value of this length is not granted.
pub(super) fn larger(bytes: usize) -> RefusedReason {
    RefusedReason::Larger { bytes: u32::try_from(bytes).unwrap_or(u32::MAX) }
}
