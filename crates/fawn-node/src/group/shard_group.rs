//! Group of shards: those that one thread runs. The frames between them are moved in memory.
//!
//! An iteration exchanges frames until none is left; only then does each engine submit, once. Members of a chain in one
//! group therefore append a write in one iteration, and their syncs overlap.
use crate::cluster::NodeOutput;
use crate::shard::Shard;
use fawn_flash::Device;
use fawn_types::{MemberId, MonoMs, Now};
use std::collections::VecDeque;

/// Maximum rounds of frames per iteration. If frames remain, the next iteration is due at once.
const ROUNDS_MAX: usize = 64;

#[derive(Debug)]
struct GroupedShard<D: Device> {
    id: MemberId,
    shard: Shard<D>,
    /// Has received frames that it has not handled yet.
    is_due: bool,
}

/// Shards, of one or several nodes of a cluster, that one thread runs.
#[derive(Debug)]
pub struct ShardGroup<D: Device> {
    /// In the order of their IDs.
    shards: Vec<GroupedShard<D>>,
    outputs: VecDeque<(MemberId, NodeOutput)>,
    now: Now,
}

impl<D: Device> Default for ShardGroup<D> {
    fn default() -> Self {
        Self { shards: Vec::new(), outputs: VecDeque::new(), now: Now::default() }
    }
}

impl<D: Device> ShardGroup<D> {
    /// Adds a shard.
    pub fn insert(&mut self, id: MemberId, shard: Shard<D>) {
        let at = self.shards.partition_point(|other| other.id < id);
        assert!(self.shards.get(at).is_none_or(|other| other.id != id), "{id:?} runs already");
        self.shards.insert(at, GroupedShard { id, shard, is_due: true });
    }

    /// Takes a shard out, as the end of its process does. Frames to it are given to the host from now on.
    pub fn remove(&mut self, id: MemberId) -> Option<Shard<D>> {
        let at = self.place(id)?;
        let shard = self.shards.remove(at).shard;
        self.shards.iter_mut().for_each(|other| other.shard.handle_link_reset(self.now, id));
        Some(shard)
    }

    #[inline]
    fn place(&self, id: MemberId) -> Option<usize> {
        self.shards.iter().position(|shard| shard.id == id)
    }

    /// A shard of the group.
    #[inline]
    pub fn shard(&self, id: MemberId) -> Option<&Shard<D>> {
        self.place(id).map(|at| &self.shards[at].shard)
    }

    /// A shard of the group, for calls that send it no frames.
    #[inline]
    pub fn shard_mut(&mut self, id: MemberId) -> Option<&mut Shard<D>> {
        self.place(id).map(|at| &mut self.shards[at].shard)
    }

    /// All shards.
    pub fn shards(&self) -> impl Iterator<Item = (MemberId, &Shard<D>)> {
        self.shards.iter().map(|grouped| (grouped.id, &grouped.shard))
    }

    /// All shards, for calls that give them work.
    pub(super) fn shards_mut(&mut self) -> impl Iterator<Item = (MemberId, &mut Shard<D>)> {
        self.shards.iter_mut().map(|grouped| {
            grouped.is_due = true;
            (grouped.id, &mut grouped.shard)
        })
    }

    /// Receives bytes from outside the group.
    pub fn handle_bytes(&mut self, now: Now, (from, to): (MemberId, MemberId), bytes: &[u8]) {
        if let Some(at) = self.place(to) {
            self.shards[at].shard.handle_bytes(now, from, bytes);
            self.shards[at].is_due = true;
        }
    }

    /// The link between a shard outside the group and one inside is new.
    pub fn handle_link_reset(&mut self, now: Now, (from, to): (MemberId, MemberId)) {
        if let Some(shard) = self.shard_mut(to) {
            shard.handle_link_reset(now, from);
        }
    }

    /// One iteration of all shards. Returns when the next is due without an event.
    pub fn run_once(&mut self, now: Now) -> Option<MonoMs> {
        self.begin_iteration(now);
        let is_unfinished = self.exchange();
        let due = self.finish_iteration();
        if is_unfinished { Some(now.mono) } else { due }
    }

    pub(super) fn begin_iteration(&mut self, now: Now) {
        self.now = now;
        for grouped in &mut self.shards {
            grouped.shard.begin_iteration(now);
            grouped.is_due = true;
        }
    }

    /// Moves frames between the shards. Returns whether some are left.
    pub(super) fn exchange(&mut self) -> bool {
        (0..ROUNDS_MAX).all(|_| self.round())
    }

    pub(super) fn finish_iteration(&mut self) -> Option<MonoMs> {
        self.shards.iter_mut().filter_map(|grouped| grouped.shard.finish_iteration()).min()
    }

    /// The next effect for a host: frames for shards outside the group, links, maps; with the shard that requests it.
    pub fn poll_output(&mut self) -> Option<(MemberId, NodeOutput)> {
        self.outputs.pop_front()
    }

    /// Every shard with received frames handles them. Returns whether frames are left.
    fn round(&mut self) -> bool {
        for at in 0..self.shards.len() {
            let grouped = &mut self.shards[at];
            if !std::mem::take(&mut grouped.is_due) {
                continue;
            }
            grouped.shard.exchange();
            grouped.is_due = grouped.shard.has_rounds_left();
            let from = grouped.id;
            while let Some(output) = self.shards[at].shard.poll_node_output() {
                self.route(from, output);
            }
        }
        self.shards.iter().any(|grouped| grouped.is_due)
    }

    fn route(&mut self, from: MemberId, output: NodeOutput) {
        let to = match &output {
            NodeOutput::Send { to, .. } => self.place(*to),
            NodeOutput::Reset { peer } if self.place(*peer).is_some() => {
                unreachable!("frames from {peer:?} to {from:?} do not get corrupt in memory")
            }
            _ => None,
        };
        match (to, output) {
            (Some(at), NodeOutput::Send { bytes, .. }) => {
                self.shards[at].shard.handle_bytes(self.now, from, &bytes);
                self.shards[at].is_due = true;
            }
            (_, output) => self.outputs.push_back((from, output)),
        }
    }
}
