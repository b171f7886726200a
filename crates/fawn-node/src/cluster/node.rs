//! A node of a cluster: dispatch of frames to front-end, back-end and manager, and the order of an iteration.
//!
//! Per iteration the host calls `handle_bytes` for every link with input, `submit` for every operation, then
//! [`Node::run_once`] once (one device submission for all of them), then [`Node::poll_output`] until `None`.
use super::backend::BackEnd;
use super::cluster_client::ClusterClient;
use super::config::{MapPlace, NodeConfig};
use super::digest::RangeDigest;
use super::manager::ManagerHost;
use super::output::{ClientOp, NodeOutput, SubmitError};
use super::payload::KeyspaceRequest;
use super::peer_links::{LocalFrame, PeerLinks};
use super::persist;
use super::recover::NodeError;
use super::status::NodeStatus;
use crate::replica::HostedMember;
use crate::status::MemberStatus;
use fawn_chain::{Body, ClusterMap, Frame};
use fawn_ds::internals::{Engine, EngineError};
use fawn_flash::Device;
use fawn_types::{Epoch, MonoMs, NodeId, Now, RangeId, Request, RingKey, TimeMs};
use std::collections::VecDeque;

/// Interval between iterations while appended records are not synced yet.
const SYNC_CHECK_MS: u64 = 100;
/// Maximum rounds of local frames per iteration. If frames remain, the next iteration is due at once.
const LOCAL_ROUNDS_MAX: usize = 64;

/// One machine of a cluster.
#[derive(Debug)]
pub struct Node<D: Device> {
    config: NodeConfig,
    client: ClusterClient,
    back_end: Option<BackEnd<D>>,
    manager: Option<ManagerHost>,
    links: PeerLinks,
    resets: VecDeque<NodeId>,
    /// Revisions and images of maps that the host must store.
    to_keep: VecDeque<(u64, Vec<u8>)>,
    /// Revision of another node's map that became durable in this node's store.
    kept: Option<u64>,
    heartbeat_at: MonoMs,
    /// The monotonic clock, and the store's expiry time (without a store: the wall clock).
    now: Now,
}

impl<D: Device> Node<D> {
    /// Creates a node from the state in its store; without an engine it is a front-end only. Blocks on the device.
    ///
    /// # Errors
    /// When the store belongs to another cluster, was opened with unsuitable options, or holds corrupt promises.
    pub fn new(config: NodeConfig, engine: Option<Engine<D>>, now: Now) -> Result<Self, NodeError> {
        let links = PeerLinks::new(config.node, config.boot, config.manager, config.limits.outbound_bytes_max);
        let mut front_end = ClusterClient::new(&config);
        let mut back_end = engine.map(|engine| BackEnd::new(config.clone(), engine));
        if let Some(back_end) = &mut back_end {
            back_end.note_time(now);
            back_end.check_engine()?;
            back_end.recover()?;
            for member in back_end.members.iter() {
                if let Some(entry) = member.replica.entry() {
                    front_end.handle_entry(now, entry);
                }
            }
        }
        let manager = match (config.manager == Some(config.node), &config.map_place, &back_end) {
            (false, ..) => None,
            (true, MapPlace::Host { kept }, _) => {
                let kept = kept.as_deref().unwrap_or(&config.map).clone();
                Some(ManagerHost::new(&config, kept))
            }
            (true, MapPlace::OwnStore, None) => return Err(NodeError::ManagerNeedsStore),
            (true, MapPlace::OwnStore, Some(back_end)) => Some(ManagerHost::new(&config, kept_map(&config, back_end)?)),
        };
        let (resets, to_keep, beat_at) = (VecDeque::new(), VecDeque::new(), MonoMs(0));
        Ok(Self {
            config,
            client: front_end,
            back_end,
            manager,
            links,
            resets,
            to_keep,
            kept: None,
            heartbeat_at: beat_at,
            now,
        })
    }

    /// Receives bytes of a peer's stream; frames may be split and joined arbitrarily.
    pub fn handle_bytes(&mut self, now: Now, from: NodeId, bytes: &[u8]) {
        self.note_time(now);
        let mut stream = self.links.take_stream(from);
        let mut piece = bytes;
        loop {
            match stream.next_frame_of(&mut piece) {
                // A frame whose sender is not this link's peer is dropped.
                Ok(Some(frame)) if frame.header.from == from => self.handle_frame(&frame),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    if !self.resets.contains(&from) {
                        tracing::warn!(peer = ?from, %error, "peer link corrupt");
                        self.resets.push_back(from);
                    }
                    break;
                }
            }
        }
        self.links.return_stream(from, stream);
    }

    /// The link to this peer is new: partial frames of the old link are discarded in both directions.
    pub fn handle_link_reset(&mut self, now: Now, from: NodeId) {
        self.note_time(now);
        self.resets.retain(|peer| *peer != from);
        self.links.reset(from);
    }

    /// Begins an operation; [`NodeOutput::Done`] ends it. The next iteration sends it, batched with others.
    ///
    /// # Errors
    /// When too many operations are in flight, or the operation exceeds a limit.
    pub fn submit(&mut self, now: Now, request: &Request<'_>) -> Result<ClientOp, SubmitError> {
        self.note_time(now);
        self.client.submit(self.now, request)
    }

    /// Begins an operation on the range that contains `place`.
    ///
    /// # Errors
    /// As [`Node::submit`].
    pub fn submit_keyspace_op(
        &mut self,
        now: Now,
        place: RingKey,
        request: &KeyspaceRequest<'_>,
    ) -> Result<ClientOp, SubmitError> {
        self.note_time(now);
        self.client.submit_wide(self.now, place, request)
    }

    /// The map that this node's front-end knows; it may be out of date.
    pub fn map(&self) -> &ClusterMap {
        self.client.map()
    }

    /// Runs one iteration: handles device completions, timers and local frames, then submits to the device once.
    ///
    /// Returns when the next iteration is due without an event. A time not after `now` means at once.
    pub fn run_once(&mut self, now: Now) -> Option<MonoMs> {
        self.exchange(now);
        self.finish_iteration()
    }

    /// An iteration without its device submission; a host of several nodes repeats it until no frames are left.
    pub(crate) fn exchange(&mut self, now: Now) {
        self.note_time(now);
        let now = self.now;
        if let Some(back_end) = &mut self.back_end {
            let map = back_end.reap(now, &mut self.links);
            match (map, &mut self.manager, &self.config.map_place) {
                (Some(revision), Some(manager), MapPlace::OwnStore) => manager.handle_persisted(now, revision),
                (Some(revision), ..) => self.kept = Some(revision),
                (None, ..) => {}
            }
        }
        self.send_heartbeat();
        self.client.handle_timeout(now);
        self.round();
        // After the first round: a host that was suspended must receive its own heartbeat before it looks for silent
        // members.
        if let Some(manager) = &mut self.manager {
            manager.handle_timeout(now);
            self.round();
        }
        for _ in 0..LOCAL_ROUNDS_MAX {
            if !self.links.has_local() {
                break;
            }
            self.round();
        }
    }

    /// Ends an iteration with its only device submission.
    pub(crate) fn finish_iteration(&mut self) -> Option<MonoMs> {
        if let Some(back_end) = &mut self.back_end {
            back_end.submit(self.now);
        }
        self.deadline()
    }

    /// The next effect for the host.
    pub fn poll_output(&mut self) -> Option<NodeOutput> {
        if let Some(done) = self.client.done.pop_front() {
            return Some(done);
        }
        if let Some(peer) = self.resets.pop_front() {
            return Some(NodeOutput::Reset { peer });
        }
        if let Some((revision, image)) = self.to_keep.pop_front() {
            return Some(NodeOutput::KeepMap { revision, image });
        }
        self.links.poll_output()
    }

    /// The map of [`NodeOutput::KeepMap`] is durable on enough disks.
    pub fn handle_map_kept(&mut self, now: Now, revision: u64) {
        self.note_time(now);
        if let Some(manager) = &mut self.manager {
            manager.handle_persisted(self.now, revision);
        }
    }

    /// Begins to store another node's map here; [`Node::poll_map_kept`] returns its revision once it is durable.
    pub(crate) fn keep_map(&mut self, revision: u64, image: &[u8]) {
        // A poisoned store has reported its failure; the other stores keep the map.
        if let Some(back_end) = self.back_end.as_mut().filter(|back_end| back_end.engine.poisoned().is_none()) {
            back_end.persist_map(revision, image);
        }
    }

    pub(crate) fn poll_map_kept(&mut self) -> Option<u64> {
        self.kept.take()
    }

    /// The store, for hosts that poll its device.
    pub fn engine(&self) -> Option<&Engine<D>> {
        self.back_end.as_ref().map(|back_end| &back_end.engine)
    }

    /// Shuts the node down cleanly and returns its engine, to be closed. The members record the clean shutdown.
    /// Blocks on the device. If that fails, the engine is poisoned and the members count as killed.
    pub fn into_engine(self) -> Option<Engine<D>> {
        let mut back_end = self.back_end?;
        if let Err(error) = back_end.mark_closed() {
            tracing::warn!(%error, "not cleanly shut down: the next start treats this back-end as killed");
        }
        Some(back_end.engine)
    }

    /// The committed map, if this node hosts the manager.
    pub fn manager_map(&self) -> Option<&ClusterMap> {
        self.manager.as_ref().map(ManagerHost::map)
    }

    /// Counters and the state of each chain member.
    pub fn status(&self) -> NodeStatus {
        let mut status = NodeStatus {
            under_way: self.client.under_way(),
            frames_dropped: self.links.dropped,
            possible_losses: self.manager.as_ref().map_or(0, |manager| manager.possible_losses),
            members_dropped: self.manager.as_ref().map_or(0, |manager| manager.members_dropped),
            ..NodeStatus::default()
        };
        if let Some(back_end) = &self.back_end {
            status.counters = back_end.counters();
            status.parked = back_end.exec.wait_queue.len();
            status.poisoned = back_end.engine.poisoned().map(str::to_owned);
            status.members = back_end.members.iter().map(|member| member_status(member, &back_end.engine)).collect();
        }
        status
    }

    /// Digest of the content of this node's copy of `range` that is committed and not expired at `time`; `None` without a
    /// copy. For checks: blocks on the device.
    ///
    /// Members judge expiry by chain times that differ by the delay of a link, so copies are compared as of one time, not
    /// before that of any of them ([`MemberStatus::time`]).
    ///
    /// # Errors
    /// When stored bytes are corrupt.
    pub fn digest(&mut self, range: RangeId, time: TimeMs) -> Result<Option<RangeDigest>, EngineError> {
        let Some(back_end) = self.back_end.as_mut().filter(|back_end| back_end.members.find(range).is_some()) else {
            return Ok(None);
        };
        back_end.digest(range, time).map(Some)
    }

    fn note_time(&mut self, now: Now) {
        self.now = now;
        if let Some(back_end) = &mut self.back_end {
            // The wall clock may step; the store's expiry clock never goes back and never jumps.
            self.now.wall = back_end.note_time(now);
        }
    }

    /// One pass over front-end, manager and back-end, then over the frames that they sent to this node.
    fn round(&mut self) {
        let now = self.now;
        self.client.flush(now, &mut self.links);
        if let Some(manager) = &mut self.manager {
            let (back_end, to_keep, place) = (&mut self.back_end, &mut self.to_keep, &self.config.map_place);
            manager.drain(&mut self.links, |revision, image| match (place, back_end.as_mut()) {
                (MapPlace::OwnStore, Some(back_end)) => back_end.persist_map(revision, image),
                _ => to_keep.push_back((revision, image.to_vec())),
            });
        }
        if let Some(back_end) = &mut self.back_end {
            back_end.advance(now, &mut self.links);
        }
        let mut budget = self.config.limits.router.window_ops_max.max(1 << 10);
        while budget > 0
            && let Some(local) = self.links.take_local()
        {
            self.handle_local(&local);
            budget -= 1;
        }
    }

    fn handle_local(&mut self, local: &LocalFrame) {
        match local {
            LocalFrame::Control(frame) => self.handle_frame(frame),
            LocalFrame::Request { header, op, tag, first_incomplete, payload } => {
                let body = Body::Request { op: *op, tag: *tag, first_incomplete: *first_incomplete, payload };
                self.handle_frame(&Frame { header: *header, body });
            }
            LocalFrame::Reply { header, op, payload } => {
                self.handle_frame(&Frame { header: *header, body: Body::Reply { op: *op, payload } });
            }
        }
    }

    /// Dispatches a frame to front-end, manager or back-end.
    fn handle_frame(&mut self, frame: &Frame<'_>) {
        let now = self.now;
        match &frame.body {
            Body::Reply { op, payload } => return self.client.handle_reply(*op, payload),
            Body::Refused { op, reason } => return self.client.handle_refused(now, *op, *reason),
            Body::Entry(entry) if entry.range != frame.header.range => return,
            Body::PromisedAbove(entry) if entry.range != frame.header.range => return,
            Body::Align { entry, .. } if entry.range != frame.header.range => return,
            Body::Entry(entry) => self.client.handle_entry(now, entry),
            body if ManagerHost::takes(body) => {
                if let Some(manager) = &mut self.manager {
                    return manager.handle_frame(now, frame);
                }
            }
            _ => {}
        }
        if let Some(back_end) = &mut self.back_end {
            back_end.handle_frame(now, frame, &mut self.links);
        }
    }

    /// Sends the manager a heartbeat if one is due: this back-end's boot, and whether its disk hangs.
    fn send_heartbeat(&mut self) {
        let Some(back_end) = self.back_end.as_mut().filter(|_| self.heartbeat_at <= self.now.mono) else { return };
        self.heartbeat_at = self.now.mono.plus_ms(self.config.limits.heartbeat_ms);
        let header = self.links.header(RangeId(0), Epoch::default());
        let body = back_end.slow_for_ms().map_or(Body::Hello, |oldest_ms| Body::Slow { oldest_ms });
        self.links.send_manager(Frame { header, body });
    }

    fn deadline(&self) -> Option<MonoMs> {
        if self.links.has_local() {
            return Some(self.now.mono);
        }
        let mut due = self.client.next_timeout();
        let mut at = |time: Option<MonoMs>| due = [due, time].into_iter().flatten().min();
        at(self.manager.as_ref().map(ManagerHost::next_timeout));
        if let Some(back_end) = &self.back_end {
            at(Some(self.heartbeat_at));
            at(back_end.next_timeout());
            let marks = back_end.engine.watermarks();
            at((marks.synced < marks.appended).then(|| self.now.mono.plus_ms(SYNC_CHECK_MS)));
        }
        due
    }
}

/// The manager's last committed map; at the cluster's first start the configured one.
fn kept_map<D: Device>(config: &NodeConfig, back_end: &BackEnd<D>) -> Result<ClusterMap, NodeError> {
    match persist::kept_map(&back_end.engine) {
        Ok(map) => Ok(map.unwrap_or_else(|| config.map.clone())),
        Err(cause) => Err(NodeError::Kept { what: "the cluster map".to_owned(), cause }),
    }
}

fn member_status<D: Device>(member: &HostedMember, engine: &Engine<D>) -> MemberStatus {
    let replica = &member.replica;
    MemberStatus {
        range: member.id,
        epoch: replica.epoch(),
        phase: if member.broken.is_some() { "broken" } else { replica.phase_name() },
        durability: replica.durability(),
        last: replica.last(),
        committed: replica.committed(),
        time: replica.time(),
        keys: engine.len(member.id),
        copied: replica.is_copying().then_some((member.transfer.keys, member.transfer.keys_estimated)),
        broken: member.broken.clone(),
    }
}
