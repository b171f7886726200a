//! Links to other shards: inbound byte streams, outbound frames per peer, and frames from the shard to itself.
use super::output::NodeOutput;
use fawn_chain::message::{FrameStream, encode_frame};
use fawn_chain::{Body, Frame, Header};
use fawn_types::{BootId, ClientTag, Epoch, MemberId, RangeId};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::collections::VecDeque;

/// One peer's link.
#[derive(Debug, Default)]
struct PeerStream {
    stream: FrameStream,
    outbound: Vec<u8>,
}

/// A frame that this shard sends to itself, without encoding.
#[derive(Debug)]
pub(crate) enum LocalFrame {
    Control(Frame<'static>),
    Request { header: Header, op: u64, tag: ClientTag, first_incomplete: u64, payload: Vec<u8> },
    Reply { header: Header, op: u64, payload: Vec<u8> },
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
    pub(crate) local: VecDeque<LocalFrame>,
    /// Frames dropped because a peer's buffer was full.
    pub(crate) dropped: u64,
}

impl PeerLinks {
    pub(crate) fn new(id: MemberId, boot: BootId, manager: Option<MemberId>, outbound_bytes_max: usize) -> Self {
        let (peers, waiting, local) = (HashMap::default(), VecDeque::new(), VecDeque::new());
        Self { id, boot, manager, outbound_bytes_max, peers, waiting, local, dropped: 0 }
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

    /// Sends a frame without payload.
    pub(crate) fn send(&mut self, to: MemberId, frame: Frame<'static>) {
        if to == self.id {
            self.local.push_back(LocalFrame::Control(frame));
        } else {
            self.post(to, &frame);
        }
    }

    pub(crate) fn send_manager(&mut self, frame: Frame<'static>) {
        if let Some(manager) = self.manager {
            self.send(manager, frame);
        }
    }

    /// Sends a frame with records; never to this shard.
    pub(crate) fn send_records(&mut self, to: MemberId, frame: &Frame<'_>) {
        assert!(to != self.id, "a log is not its own successor");
        self.post(to, frame);
    }

    pub(crate) fn send_request(
        &mut self,
        to: MemberId,
        header: Header,
        (op, tag, first_incomplete): (u64, ClientTag, u64),
        payload: &[u8],
    ) {
        if to == self.id {
            let payload = payload.to_vec();
            self.local.push_back(LocalFrame::Request { header, op, tag, first_incomplete, payload });
        } else {
            self.post(to, &Frame { header, body: Body::Request { op, tag, first_incomplete, payload } });
        }
    }

    pub(crate) fn send_reply(&mut self, to: MemberId, header: Header, op: u64, payload: &[u8]) {
        if to == self.id {
            self.local.push_back(LocalFrame::Reply { header, op, payload: payload.to_vec() });
        } else {
            self.post(to, &Frame { header, body: Body::Reply { op, payload } });
        }
    }

    /// All buffered frames for one peer.
    pub(crate) fn poll_output(&mut self) -> Option<NodeOutput> {
        let to = self.waiting.pop_front()?;
        let peer = self.peers.get_mut(&to)?;
        Some(NodeOutput::Send { to, bytes: std::mem::take(&mut peer.outbound) })
    }

    fn post(&mut self, to: MemberId, frame: &Frame<'_>) {
        let peer = self.peers.entry(to).or_default();
        if peer.outbound.len() >= self.outbound_bytes_max {
            self.dropped += 1;
            return;
        }
        if peer.outbound.is_empty() {
            self.waiting.push_back(to);
        }
        encode_frame(frame, &mut peer.outbound);
    }
}
