//! Links to other shards, and to the shard itself: inbound byte streams, outbound frames per peer.
use super::output::NodeOutput;
use fawn_chain::message::{FrameStream, encode_frame};
use fawn_chain::{Frame, Header};
use fawn_types::{BootId, Epoch, MemberId, RangeId};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;

/// One peer's link.
#[derive(Debug, Default)]
struct PeerStream {
    stream: FrameStream,
    outbound: Vec<u8>,
}

/// Inbound streams and outbound buffers of all peers.
#[derive(Debug)]
pub(crate) struct PeerLinks {
    id: MemberId,
    boot: BootId,
    manager: Option<MemberId>,
    outbound_bytes_max: usize,
    peers: HashMap<MemberId, PeerStream, FxBuildHasher>,
    /// Peers whose outbound buffer is not empty, in the order of their first frame.
    waiting: VecDeque<MemberId>,
    /// Frames dropped because a peer's buffer was full.
    pub(crate) dropped: u64,
}

impl PeerLinks {
    pub(crate) fn new(id: MemberId, boot: BootId, manager: Option<MemberId>, outbound_bytes_max: usize) -> Self {
        let (peers, waiting) = (HashMap::default(), VecDeque::new());
        Self { id, boot, manager, outbound_bytes_max, peers, waiting, dropped: 0 }
    }

    /// A frame header with this shard as the sender.
    pub(crate) const fn header(&self, range: RangeId, epoch: Epoch) -> Header {
        Header { from: self.id, boot: self.boot, range, epoch }
    }

    /// Takes out the peer's stream so that the shard can be borrowed too; pair with [`PeerLinks::return_stream`].
    pub(crate) fn take_stream(&mut self, from: MemberId) -> FrameStream {
        std::mem::take(&mut self.peers.entry(from).or_default().stream)
    }

    pub(crate) fn return_stream(&mut self, from: MemberId, stream: FrameStream) {
        self.peers.entry(from).or_default().stream = stream;
    }

    /// Discards partial frames of the old link in both directions.
    pub(crate) fn reset(&mut self, peer: MemberId) {
        self.peers.remove(&peer);
        self.waiting.retain(|waiting| *waiting != peer);
    }

    /// Sends a frame. One to this shard itself is encoded like any other.
    pub(crate) fn send(&mut self, to: MemberId, frame: &Frame<'_>) {
        let peer = self.peers.entry(to).or_default();
        if peer.outbound.len() >= self.outbound_bytes_max {
            self.dropped += 1;
            return;
        }
        if peer.outbound.is_empty() && to != self.id {
            self.waiting.push_back(to);
        }
        encode_frame(frame, &mut peer.outbound);
    }

    pub(crate) fn send_manager(&mut self, frame: &Frame<'_>) {
        if let Some(manager) = self.manager {
            self.send(manager, frame);
        }
    }

    pub(crate) const fn has_manager(&self) -> bool {
        self.manager.is_some()
    }

    pub(crate) fn is_manager(&self, id: MemberId) -> bool {
        self.manager == Some(id)
    }

    /// Whether frames of this shard to itself wait.
    pub(crate) fn has_own(&self) -> bool {
        self.peers.get(&self.id).is_some_and(|own| !own.outbound.is_empty())
    }

    /// The frames of this shard to itself.
    pub(crate) fn take_own(&mut self) -> Option<Vec<u8>> {
        let own = self.peers.get_mut(&self.id).filter(|own| !own.outbound.is_empty())?;
        Some(std::mem::take(&mut own.outbound))
    }

    /// All buffered frames for one peer.
    pub(crate) fn poll_output(&mut self) -> Option<NodeOutput> {
        let to = self.waiting.pop_front()?;
        let peer = self.peers.get_mut(&to)?;
        Some(NodeOutput::Send { to, bytes: std::mem::take(&mut peer.outbound) })
    }
}
