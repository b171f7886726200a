//! Status of a shard in a cluster, and of each of its chain members.
use super::member_host::MemberHost;
use super::node_control::NodeControl;
use super::peer_links::PeerLinks;
use crate::counters::Counted;
use crate::replica::HostedMember;
use crate::status::{MemberStatus, ShardCounters};
use fawn_ds::internals::Engine;
use fawn_flash::Device;

/// Status of a shard in a cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeStatus {
    /// Chain members of this shard.
    pub members: Vec<MemberStatus>,
    /// Counters of its members and of the requests that they executed.
    pub counters: ShardCounters,
    /// Requests that wait for a device read.
    pub parked: usize,
    /// Operations of its sessions at chains that have no reply yet.
    pub outstanding: usize,
    /// Memory of the completions of all members, bytes.
    pub completion_bytes: usize,
    /// Frames dropped because a peer's buffer was full.
    pub frames_dropped: u64,
    /// Proposals by the manager hosted here of epochs after which acked writes may be missing.
    pub possible_losses: u64,
    /// Members that the manager hosted here dropped for a reason other than missing heartbeats.
    pub members_dropped: u64,
    /// The failure that poisoned the store, if any.
    pub poisoned: Option<String>,
}

pub(crate) fn node_status<D: Device>(
    host: &MemberHost<D>,
    links: &PeerLinks,
    control: &NodeControl,
    outstanding: usize,
) -> NodeStatus {
    let mut counters = host.counters;
    counters.add(&host.exec.counters);
    NodeStatus {
        members: host.members.iter().map(|member| member_status(member, &host.engine)).collect(),
        counters,
        parked: host.exec.wait_queue.len(),
        outstanding,
        completion_bytes: host.members.iter().map(|member| member.completions.bytes()).sum(),
        frames_dropped: links.dropped,
        possible_losses: control.manager.as_ref().map_or(0, |manager| manager.possible_losses),
        members_dropped: control.manager.as_ref().map_or(0, |manager| manager.members_dropped),
        poisoned: host.engine.poisoned().map(str::to_owned),
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
        time_began: replica.time_began(),
        keys: engine.len(member.id),
        copied: replica.is_copying().then_some((member.transfer.keys, member.transfer.keys_estimated)),
        broken: member.broken.clone(),
    }
}
