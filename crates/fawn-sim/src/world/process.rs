//! The process of a machine: a back-end, or a front-end with client sessions.
use fawn_ds::internals::{Engine, EngineError};
use fawn_flash::SimDevice;
use fawn_node::cluster::{Node, NodeOutput, NodeStatus, RangeDigest};
use fawn_node::{ClientGateway, ClientService};
use fawn_types::{MonoMs, NodeId, Now, RangeId, TimeMs};

/// A running process.
pub(super) enum Process {
    BackEnd(Box<Node<SimDevice>>),
    Gateway(Box<ClientGateway<SimDevice>>),
}

impl Process {
    pub(super) fn node(&self) -> &Node<SimDevice> {
        match self {
            Process::BackEnd(node) => node,
            Process::Gateway(gateway) => gateway.node(),
        }
    }

    pub(super) fn gateway(&mut self) -> Option<&mut ClientGateway<SimDevice>> {
        match self {
            Process::BackEnd(_) => None,
            Process::Gateway(gateway) => Some(gateway),
        }
    }

    pub(super) fn engine(&self) -> Option<&Engine<SimDevice>> {
        self.node().engine()
    }

    pub(super) fn into_engine(self) -> Option<Engine<SimDevice>> {
        match self {
            Process::BackEnd(node) => node.into_engine(),
            Process::Gateway(gateway) => gateway.into_node().into_engine(),
        }
    }

    pub(super) fn status(&self) -> NodeStatus {
        self.node().status()
    }

    pub(super) fn manager_map(&self) -> Option<&fawn_chain::ClusterMap> {
        self.node().manager_map()
    }

    /// Digest of a back-end's copy of the range, without keys that have expired at `time`.
    pub(super) fn digest(&mut self, range: RangeId, time: TimeMs) -> Result<Option<RangeDigest>, EngineError> {
        match self {
            Process::BackEnd(node) => node.digest(range, time),
            Process::Gateway(_) => Ok(None),
        }
    }

    pub(super) fn handle_bytes(&mut self, now: Now, from: NodeId, bytes: &[u8]) {
        match self {
            Process::BackEnd(node) => node.handle_bytes(now, from, bytes),
            Process::Gateway(gateway) => gateway.handle_bytes(now, from, bytes),
        }
    }

    pub(super) fn handle_link_reset(&mut self, now: Now, from: NodeId) {
        match self {
            Process::BackEnd(node) => node.handle_link_reset(now, from),
            Process::Gateway(gateway) => gateway.handle_link_reset(now, from),
        }
    }

    pub(super) fn run_once(&mut self, now: Now) -> Option<MonoMs> {
        match self {
            Process::BackEnd(node) => node.run_once(now),
            Process::Gateway(gateway) => gateway.run_once(now),
        }
    }

    /// The next effect for peers.
    pub(super) fn poll_output(&mut self) -> Option<NodeOutput> {
        match self {
            Process::BackEnd(node) => node.poll_output(),
            Process::Gateway(gateway) => gateway.poll_peer_output(),
        }
    }
}
