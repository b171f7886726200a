//! The phase in which the disk of one shard hangs, or those of a machine, or completes everything late, without ever
//! reporting an error.
//!
//! Operations must continue without that disk within a bound, the machine's other shards keep their places in chains,
//! and once it works again everything is whole within another [replication.md § 2.4]. The bound counts from the first
//! operation that a disk holds: no component can notice that an idle disk hangs. The phase begins in a healed cluster: with a
//! second fault there would be no copy to go on with.
use super::World;
use crate::scenario::Hang;
use crate::tally::FaultKind;
use fawn_flash::SimDisk;
use fawn_flash::sim::{DeviceFault, OpKind};
use fawn_types::{MemberId, NodeId, RangeId, ShardId};

/// Operations continue within this time after a disk began to hold one, µs.
const RESUME_US_MAX: u64 = 15_000_000;
/// Longest pause of a client between two operations meanwhile, µs: hangs last up to a minute.
const THINK_US: u64 = 50_000;
/// From then on some are answered in every interval of this length, µs.
const INTERVAL_US: u64 = 2_000_000;
/// Sessions on the machine whose disk hangs get no answer in fewer intervals in a row: together they are longer than an
/// operation's timeout.
const UNSERVED_MAX: u32 = 4;

/// A disk of the phase.
struct HungDisk {
    id: MemberId,
    disk: SimDisk,
    /// Since when it holds an operation, at the latest, µs of the world; `None`: it was idle until now.
    held_us: Option<u64>,
}

impl HungDisk {
    /// Whether the bound counts for it and has passed.
    fn is_past_bound(&self, now_us: u64) -> bool {
        self.held_us.is_some_and(|from_us| now_us.saturating_sub(from_us) >= RESUME_US_MAX)
    }
}

impl World {
    /// A disk hangs, and works again.
    pub(super) fn hang(&mut self, hang: Hang) -> Result<(), String> {
        let Hang { machine, node, shard, for_us, late_us, is_survived } = hang;
        let index = machine as usize;
        let hangs = |id: MemberId| {
            shard.is_none_or(|shard| id.shard() == ShardId(shard)) && node.is_none_or(|node| id.node() == NodeId(node))
        };
        let hung = self.machines[index].disks.iter().filter(|disk| hangs(disk.id));
        // Late operations are in flight for a moment only: the bound counts from the beginning.
        let held_us = (late_us > 0).then_some(self.now_us);
        let mut disks: Vec<HungDisk> =
            hung.map(|disk| HungDisk { id: disk.id, disk: disk.disk.clone(), held_us }).collect();
        let others = self.served_by(|id| self.scenario.machine_of(id) == index && !hangs(id));
        self.tally.note(if late_us == 0 { FaultKind::Hang } else { FaultKind::SlowDisk });
        self.trace.say(self.now_us, format!("{hang:?}"));
        self.quiet = false;
        self.clients.think_longer(THINK_US);
        let fault = if late_us == 0 { DeviceFault::Hang } else { DeviceFault::Delay { ticks: late_us } };
        for kind in [OpKind::Write, OpKind::Sync] {
            disks.iter().for_each(|hung| hung.disk.fail_every(kind, fault.clone()));
        }
        let before = self.machines[index].answered;
        self.answer_while_hung(index, self.now_us + for_us, is_survived, &mut disks)?;
        if is_survived && late_us == 0 {
            let left = self.served_by(|id| self.scenario.machine_of(id) == index);
            // A member that was syncing when the disk began to hang may serve by now.
            let is_gone = |member| !left.contains(member);
            let is_left =
                |hung: &HungDisk| hung.is_past_bound(self.now_us) && left.iter().any(|&(_, id)| id == hung.id);
            if others.iter().any(is_gone) || disks.iter().any(is_left) {
                return Err(format!("while a disk hung, {others:?} should serve, but {left:?} do: {}", self.words()));
            }
        }
        let served = self.machines[index].answered - before;
        self.trace.say(self.now_us, format!("the disk works again; {served} operations were answered at its machine"));
        for kind in [OpKind::Write, OpKind::Sync] {
            disks.iter().for_each(|hung| hung.disk.end_faults(kind));
        }
        disks.iter().for_each(|hung| hung.disk.release_hung());
        // Operations that the disk completes late may have begun a moment ago.
        self.run_until(self.now_us + late_us)?;
        self.heal_whole("a disk that hung")?;
        self.serve()
    }

    /// Runs until `until_us`, while `disks` of machine `index` hang. If the others can continue without them
    /// (`is_survived`), some operations are answered in every interval, except while a bound counts.
    fn answer_while_hung(
        &mut self,
        index: usize,
        until_us: u64,
        is_survived: bool,
        disks: &mut [HungDisk],
    ) -> Result<(), String> {
        let (mut unserved, began_us) = (0, self.now_us);
        while self.now_us < until_us {
            let (answered, from_us) = (self.clients.answered, self.now_us);
            let (clients, at_machine) = self.sessions_of(index);
            self.run_until((from_us + INTERVAL_US).min(until_us))?;
            for hung in disks.iter_mut().filter(|hung| hung.held_us.is_none() && hung.disk.hung() > 0) {
                hung.held_us = Some(self.now_us);
            }
            let is_judged = is_survived
                && from_us >= began_us + RESUME_US_MAX
                && disks.iter().all(|hung| hung.held_us.is_none() || hung.is_past_bound(from_us));
            if is_judged && self.now_us - from_us == INTERVAL_US && self.clients.answered == answered {
                return Err(format!("nothing is answered while one disk hangs: {}", self.words()));
            }
            // Its sessions are served by other machines.
            let (clients_after, at_machine_after) = self.sessions_of(index);
            let is_unserved = at_machine == at_machine_after && clients.iter().any(|one| clients_after.contains(one));
            unserved = if is_judged && is_unserved { unserved + 1 } else { 0 };
            if unserved == UNSERVED_MAX {
                return Err(format!("sessions on the machine whose disk hangs get no answer: {}", self.words()));
            }
        }
        Ok(())
    }

    /// The ranges with a serving member of which `is_it`, according to the manager's map.
    fn served_by(&self, is_it: impl Fn(MemberId) -> bool) -> Vec<(RangeId, MemberId)> {
        let ranges = self.machines[0].manager_map().into_iter().flat_map(|map| &map.ranges);
        let members = ranges.flat_map(|entry| entry.serving().map(|member| (entry.range, member.id)));
        members.filter(|(_, id)| is_it(*id)).collect()
    }
}
