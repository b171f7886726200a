//! Cluster duties of a shard: the manager if it hosts it, heartbeats, maps to be stored, broken links.
use super::config::{MapPlace, NodeConfig};
use super::manager::ManagerHost;
use super::member_host::MemberHost;
use super::output::NodeOutput;
use super::peer_links::PeerLinks;
use super::persist::kept_map;
use super::recover::NodeError;
use fawn_chain::message::StreamError;
use fawn_chain::{Body, Frame, KnownBoots};
use fawn_flash::Device;
use fawn_types::{Epoch, MemberId, MonoMs, Now, RangeId};
use std::collections::VecDeque;

/// A shard's state in its cluster, apart from its members and sessions.
#[derive(Debug)]
pub(crate) struct NodeControl {
    map_place: MapPlace,
    heartbeat_ms: u64,
    pub(crate) manager: Option<ManagerHost>,
    /// The processes whose updates are accepted here.
    pub(crate) boots: KnownBoots,
    /// Peers whose streams were corrupt.
    resets: VecDeque<MemberId>,
    /// Revisions and images of maps that the host must store.
    to_keep: VecDeque<(u64, Vec<u8>)>,
    /// Revision of another shard's map that became durable in this shard's store.
    pub(crate) kept: Option<u64>,
    heartbeat_at: MonoMs,
}

impl NodeControl {
    /// # Errors
    /// When the manager's map in the store does not decode.
    pub(crate) fn new<D: Device>(config: &NodeConfig, host: &MemberHost<D>) -> Result<Self, NodeError> {
        let manager = if config.manager == Some(config.id) {
            // At the cluster's first start there is no committed map.
            let kept = match &config.map_place {
                MapPlace::Host { kept } => kept.as_deref().cloned(),
                MapPlace::OwnStore => kept_map(&host.engine)?,
            };
            Some(ManagerHost::new(config, kept.unwrap_or_else(|| config.map.clone())))
        } else {
            None
        };
        Ok(Self {
            map_place: config.map_place.clone(),
            heartbeat_ms: config.limits.heartbeat_ms,
            manager,
            boots: KnownBoots::default(),
            resets: VecDeque::new(),
            to_keep: VecDeque::new(),
            kept: None,
            heartbeat_at: MonoMs(0),
        })
    }

    /// The peer's stream is corrupt: the host must connect again.
    pub(crate) fn reset_link(&mut self, peer: MemberId, error: &StreamError) {
        if !self.resets.contains(&peer) {
            tracing::warn!(?peer, %error, "peer link corrupt");
            self.resets.push_back(peer);
        }
    }

    pub(crate) fn link_is_new(&mut self, peer: MemberId) {
        self.resets.retain(|reset| *reset != peer);
    }

    /// A map is durable in this shard's store.
    pub(crate) fn handle_map_durable(&mut self, now: Now, revision: u64) {
        match (&mut self.manager, &self.map_place) {
            (Some(manager), MapPlace::OwnStore) => manager.manager.handle_persisted(now, revision),
            _ => self.kept = Some(revision),
        }
    }

    /// Handles a frame for the manager; returns whether it was one.
    pub(crate) fn handle_frame(&mut self, now: Now, frame: &Frame<'_>) -> bool {
        let Some(manager) = self.manager.as_mut().filter(|_| ManagerHost::takes(&frame.body)) else { return false };
        manager.manager.handle_frame(now, frame);
        true
    }

    /// Executes the manager's outputs.
    pub(crate) fn drain_manager<D: Device>(&mut self, host: &mut MemberHost<D>, links: &mut PeerLinks) {
        let Self { manager: Some(manager), map_place, to_keep, .. } = self else { return };
        manager.drain(links, |revision, image| match map_place {
            MapPlace::OwnStore => host.persist_map(revision, image),
            MapPlace::Host { .. } => to_keep.push_back((revision, image.to_vec())),
        });
    }

    /// Sends the manager a heartbeat if one is due: this shard's boot, whether its disk hangs, and which table of
    /// boots it has.
    pub(crate) fn send_heartbeat<D: Device>(&mut self, host: &mut MemberHost<D>, links: &mut PeerLinks) {
        let now = host.now.mono;
        if self.heartbeat_at > now {
            return;
        }
        self.heartbeat_at = now.plus_ms(self.heartbeat_ms);
        let header = links.header(RangeId(0), Epoch::default());
        let body = host.slow_for_ms().map_or(Body::Hello, |oldest_ms| Body::Slow { oldest_ms });
        links.send_manager(&Frame { header, body });
        links.send_manager(&Frame { header, body: Body::BootsWanted { held: self.boots.held() } });
    }

    pub(crate) fn next_timeout(&self) -> MonoMs {
        self.manager.as_ref().map_or(self.heartbeat_at, |manager| manager.wake_at.min(self.heartbeat_at))
    }

    /// The next effect for the host.
    pub(crate) fn poll_output(&mut self) -> Option<NodeOutput> {
        if let Some(peer) = self.resets.pop_front() {
            return Some(NodeOutput::Reset { peer });
        }
        let (revision, image) = self.to_keep.pop_front()?;
        Some(NodeOutput::KeepMap { revision, image })
    }
}
