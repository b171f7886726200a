//! Operations at the tail: commits with replies to their operations, and reads of committed values.
use super::backend::BackEnd;
use super::config::node_of;
use super::payload::{decode_request, put_reply, put_result_as_reply};
use super::peer_links::PeerLinks;
use super::wait_queue::Origin;
use crate::execute::operation_error;
use fawn_chain::message::RefusedReason;
use fawn_chain::{Header, Role};
use fawn_ds::internals::{EngineError, Lookup, LookupPlan, View};
use fawn_flash::Device;
use fawn_types::{KeyHash, Reply, Request, Version};

impl<D: Device> BackEnd<D> {
    /// Commits all records through `through`: they become readable. At a tail, also replies to their operations.
    pub(super) fn commit(&mut self, at: usize, through: Version, links: &mut PeerLinks) {
        let member = &mut self.members[at];
        self.engine.commit(member.id, through);
        let answers = matches!(member.replica.role(), Some(Role::Tail | Role::Single)) && member.replica.acknowledges();
        let header = links.header(member.id, member.replica.epoch());
        let encoded = &mut self.encoded;
        let counters = &mut self.counters;
        member.completions.commit(through, |tag, done| {
            if answers {
                counters.replies += 1;
                encoded.clear();
                put_result_as_reply(encoded, tag.session, done.version, &done.result);
                links.send_reply(node_of(tag.session), header, tag.seq, encoded);
            }
        });
    }

    /// Handles a read: replies at once if the page is in memory, else after a device read.
    pub(super) fn handle_read(
        &mut self,
        at: usize,
        header: Header,
        origin: Origin,
        (hash, key): (KeyHash, &[u8]),
        payload: &[u8],
        links: &mut PeerLinks,
    ) {
        let range = self.members[at].id;
        let Ok(time) = self.members[at].replica.admit_read(self.now) else {
            return self.refuse_stale(at, header, origin, links);
        };
        let lookup = self.engine.lookup(range, hash, key, View::Committed, time);
        if let Some(plan) = encode_read(lookup, origin, &mut self.encoded) {
            if self.parked.is_full() {
                return self.refuse(range, origin, RefusedReason::Overloaded, links);
            }
            self.counters.cold += 1;
            let purpose = self.parked.park_read((origin, range, hash), payload);
            return self.parked.read(&mut self.engine, plan, purpose);
        }
        self.send_read(at, origin, links);
    }

    /// Resumes a waiting request after its device read.
    pub(super) fn parked_read(&mut self, at: usize, plan: LookupPlan, links: &mut PeerLinks) {
        let parked = self.parked.take(at);
        match decode_request(&parked.payload) {
            Ok((_, Request::Get { .. })) => {}
            _ => return self.update_read(parked, plan, links),
        }
        let Some(at) = self.member_at(parked.range) else { return };
        let time = self.members[at].replica.time();
        let lookup = self.engine.resume(plan, time);
        if let Some(plan) = encode_read(lookup, parked.origin, &mut self.encoded) {
            let purpose = self.parked.put_back(parked);
            return self.parked.read(&mut self.engine, plan, purpose);
        }
        self.send_read(at, parked.origin, links);
    }

    fn send_read(&mut self, at: usize, origin: Origin, links: &mut PeerLinks) {
        self.counters.reads += 1;
        let member = &self.members[at];
        let header = links.header(member.id, member.replica.epoch());
        links.send_reply(origin.node, header, origin.op, &self.encoded);
    }
}

/// Encodes the reply, or returns the plan of the device read that it needs.
fn encode_read(lookup: Result<Lookup<'_>, EngineError>, origin: Origin, encoded: &mut Vec<u8>) -> Option<LookupPlan> {
    let reply = match lookup {
        Ok(Lookup::Found(entry)) => Reply::Value(entry),
        Ok(Lookup::Absent) => Reply::Absent,
        Ok(Lookup::Read(plan)) => return Some(plan),
        Err(error) => Reply::Error(operation_error(&error)),
    };
    encoded.clear();
    put_reply(encoded, origin.session, &reply);
    None
}
