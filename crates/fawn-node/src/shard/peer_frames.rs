//! Peer frames: reception from other shards and from this shard itself, and their order within an iteration.
use super::Shard;
use super::fan_out::acknowledge;
use crate::cluster::NodeOutput;
use crate::cluster::payload::decode_request;
use crate::request::ReplyPlace;
use fawn_chain::message::RefusedReason;
use fawn_chain::{Body, Frame, Header};
use fawn_flash::Device;
use fawn_types::{MemberId, Now, Reply};

/// Maximum rounds of local frames per iteration. If frames remain, the next iteration is due at once.
const LOCAL_ROUNDS_MAX: usize = 64;
/// Maximum batches of local frames per round.
const LOCAL_BATCHES_MAX: usize = 64;

impl<D: Device> Shard<D> {
    /// Receives bytes of a peer's stream. They may begin and end anywhere within a frame.
    pub fn handle_bytes(&mut self, now: Now, from: MemberId, bytes: &[u8]) {
        self.note_time(now);
        self.receive(from, bytes);
    }

    fn receive(&mut self, from: MemberId, bytes: &[u8]) {
        let mut stream = self.state.links.take_stream(from);
        let mut rest_bytes = bytes;
        loop {
            match stream.next_frame_of(&mut rest_bytes) {
                // A frame whose sender is not this link's peer is dropped.
                Ok(Some(frame)) if frame.header.from == from => self.handle_frame(&frame),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    if let Some(control) = &mut self.state.control {
                        control.reset_link(from, &error);
                    }
                    break;
                }
            }
        }
        self.state.links.return_stream(from, stream);
    }

    /// Handles a new link to a peer: discards partial frames of the old link in both directions.
    pub fn handle_link_reset(&mut self, now: Now, from: MemberId) {
        self.note_time(now);
        if let Some(control) = &mut self.state.control {
            control.link_is_new(from);
        }
        self.state.links.reset(from);
    }

    /// The next effect for the host: frames for a peer, a map to store, or a link to reset.
    pub fn poll_node_output(&mut self) -> Option<NodeOutput> {
        let of_control = self.state.control.as_mut().and_then(|control| control.poll_output());
        of_control.or_else(|| self.state.links.poll_output())
    }

    /// Exchanges frames with this shard itself until none is left, or the bound on rounds is reached. A host of several
    /// shards repeats the call before their iterations end, so that a write passes along its chain in one iteration.
    pub(crate) fn exchange(&mut self) {
        self.run_round();
        // After the first round: after a suspension of the process, the manager must receive the heartbeat of its own
        // shard before it looks for silent members.
        let now = self.state.host.now;
        if let Some(control) = &mut self.state.control {
            control.manager.iter_mut().for_each(|manager| manager.handle_timeout(now));
            self.run_round();
        }
        for _ in 0..LOCAL_ROUNDS_MAX {
            if !self.has_local_work() {
                return;
            }
            self.run_round();
        }
    }

    /// Whether another round has work.
    pub(crate) fn has_local_work(&self) -> bool {
        let forward = &self.state.forward;
        self.state.links.has_own()
            || forward.is_due()
            || forward.cluster.as_ref().is_some_and(|cluster| cluster.can_start())
    }

    /// One pass over sessions' requests, manager and members, then over the frames that these sent to this shard.
    fn run_round(&mut self) {
        self.host().run_ready();
        let failed = match &mut self.state.forward.cluster {
            Some(cluster) => cluster.flush(&mut self.state.links),
            None => Vec::new(),
        };
        for (op, error) in failed {
            if let ReplyPlace::Item { multi, .. } = op.target.place {
                self.state.multis[multi].failed = Some(error);
            }
            let mut host = self.host();
            host.handle_reply(&op, &Reply::Error(error));
            host.fail_queue((op.target.session, op.hash), error);
        }
        if let Some(control) = &mut self.state.control {
            control.drain_manager(&mut self.state.host, &mut self.state.links);
        }
        let now = self.state.host.now;
        self.state.host.advance(now, &mut self.state.links);
        self.host().refuse_stopped();
        for _ in 0..LOCAL_BATCHES_MAX {
            let Some(frames) = self.state.links.take_own() else { break };
            self.receive(self.id(), &frames);
        }
    }

    /// Dispatches a frame to sessions' operations, manager or members.
    fn handle_frame(&mut self, frame: &Frame<'_>) {
        let now = self.state.host.now;
        match &frame.body {
            Body::Reply { op, payload } => {
                let cluster = self.state.forward.cluster.as_mut();
                let Some((op, reply)) = cluster.and_then(|cluster| cluster.handle_reply(*op, payload)) else { return };
                return self.host().handle_reply(&op, &reply);
            }
            Body::Refused { op, reason } => return self.handle_refused(*op, frame.header, *reason),
            Body::Request { op, tag, first_incomplete, payload } => {
                return self.host().handle_request(frame.header, (*op, *tag, *first_incomplete), payload);
            }
            Body::AcknowledgementWanted => return acknowledge(&mut self.state, frame.header),
            Body::Entry(entry) | Body::PromisedAbove(entry) | Body::Align { entry, .. }
                if entry.range != frame.header.range =>
            {
                // Header and entry name different ranges: the sender is faulty.
                return;
            }
            Body::Entry(entry) => self.state.forward.handle_entry(entry),
            Body::Boots(boots) if self.state.links.is_manager(frame.header.from) => {
                let manager = frame.header.boot;
                return self.state.control.iter_mut().for_each(|control| control.boots.update(manager, boots));
            }
            _ => {}
        }
        if self.state.control.as_mut().is_some_and(|control| control.handle_frame(now, frame)) {
            return;
        }
        // A member that stops here serves again in a later iteration at the earliest, after its promise is durable. The
        // next round refuses the requests that wait for it.
        self.state.host.handle_frame(now, frame, &mut self.state.links);
    }

    /// Receives the refusal of a session's operation.
    fn handle_refused(&mut self, op: u64, header: Header, reason: RefusedReason) {
        let Some(cluster) = &mut self.state.forward.cluster else { return };
        let refused = cluster.handle_refused(op, (header.from, header.epoch), reason);
        let Some((op, payload, bytes)) = refused else { return };
        let Ok((.., body)) = decode_request(&payload) else { unreachable!("a payload that was encoded here decodes") };
        self.host().handle_larger(op, bytes, &body);
    }
}
