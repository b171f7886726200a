//! Injection of faults into the world: crashes, shutdowns, pauses, cuts, disk faults.
use super::World;
use super::machine::Machine;
use super::observe::is_serving;
use crate::faults::Fault;
use crate::network::NetworkOptions;
use crate::tally::FaultKind;
use fawn_flash::sim::{Loss, OpKind};
use fawn_types::{Durability, NodeId};

/// A machine that copies is crashed, or another one, once in this many of its iterations.
const COPY_TURNS_PER_CRASH: u64 = 30;
/// Longest time for which such a machine stays down, µs.
const DOWN_US_MAX: u64 = 3_000_000;

impl World {
    /// Injects the fault that is due, if this durability mode promises to survive it.
    pub(super) fn inject(&mut self) -> Result<(), String> {
        let now_us = self.now_us;
        let Some(fault) = self.faults.take(now_us) else { return Ok(()) };
        if !self.is_promised(&fault) {
            return Ok(());
        }
        self.struck += 1;
        FaultKind::of(&fault).into_iter().for_each(|kind| self.tally.note(kind));
        self.trace.say(now_us, format!("{fault:?}"));
        let backends = self.scenario.backends as usize;
        match fault {
            Fault::Down { machines, kill } => {
                let loss = if kill { Loss::Process } else { Loss::Power };
                for (machine, for_us) in machines {
                    self.stop(machine as usize, loss, for_us)?;
                }
            }
            Fault::Close { machines, power_after_ops } => {
                self.unclean &= !self.is_whole();
                for (at, (machine, for_us)) in machines.into_iter().enumerate() {
                    // A failed disk is mostly not repaired before faults end, so chains have to continue without it.
                    if self.machines[machine as usize].is_poisoned() && !self.random.chance(1, 8) {
                        continue;
                    }
                    self.close(machine as usize, power_after_ops.filter(|_| at == 0), for_us)?;
                }
            }
            Fault::FrontendDown(frontend, for_us) => {
                let loss = if self.random.chance(1, 2) { Loss::Process } else { Loss::Power };
                self.stop(backends + frontend as usize, loss, for_us)?;
            }
            Fault::Pause(machine, for_us) => self.machines[machine as usize].paused_until_us = now_us + for_us,
            Fault::Stall(machine, for_us) => self.machines[machine as usize].stalled_until_us = now_us + for_us,
            Fault::Full(machine, for_us, left_bytes) => {
                let machine = &mut self.machines[machine as usize];
                machine.full_until_us = now_us + for_us;
                machine.fill(left_bytes);
            }
            Fault::FullAll(for_us) => {
                for machine in &mut self.machines[..backends] {
                    machine.full_until_us = now_us + for_us;
                    machine.fill(0);
                }
            }
            Fault::ReadsFail(machine, for_us) => {
                let machine = &mut self.machines[machine as usize];
                machine.unreadable_until_us = now_us + for_us;
                for disk in &machine.disks {
                    disk.disk.fail_every(OpKind::Read, fawn_flash::sim::DeviceFault::Fail);
                }
            }
            Fault::Fail(machine, sync, nth) => {
                let kind = if sync { OpKind::Sync } else { OpKind::Write };
                let disks = &self.machines[machine as usize].disks;
                let disk = &disks[nth as usize % disks.len()].disk;
                disk.fail_nth(kind, nth, fawn_flash::sim::DeviceFault::Fail);
            }
            Fault::Cut { links, for_us } => {
                for (from, to) in links {
                    let (from, to) = (self.machines[from as usize].nodes(), self.machines[to as usize].nodes());
                    for (from, to) in from.into_iter().flat_map(|from| to.iter().map(move |to| (from, *to))) {
                        self.network.cut(from, to);
                        self.cuts.push((now_us + for_us, from, to));
                    }
                }
            }
            Fault::Network(options) => self.network.set_options(options),
        }
        Ok(())
    }

    /// Sometimes crashes a machine that copies a range, or another back-end, possibly its donor.
    pub(super) fn inject_at_transfer(&mut self, index: usize) -> Result<(), String> {
        let may_strike = (self.scenario.durability == Durability::Sync || self.scenario.may_lose)
            && self.now_us < self.faults.until_us();
        if !may_strike || !self.random.chance(1, COPY_TURNS_PER_CRASH) {
            return Ok(());
        }
        let other = self.random.below(u64::from(self.scenario.backends)) as usize;
        let victim = if self.random.chance(1, 2) { index } else { other };
        let loss = if self.random.chance(1, 2) { Loss::Process } else { Loss::Power };
        let for_us = 1_000 + self.random.below(DOWN_US_MAX);
        self.copies_hit += 1;
        self.tally.note(FaultKind::DownAtTransfer);
        self.trace.say(self.now_us, format!("node {} goes down while node {} copies", victim + 1, index + 1));
        self.stop(victim, loss, for_us)
    }

    /// Whether the durability mode promises to survive the fault. `everysec` promises nothing about power, `memory`
    /// nothing about processes. But the loss of one machine of a complete chain loses no write, so the next such
    /// failure waits until the cluster is complete again.
    fn is_promised(&mut self, fault: &Fault) -> bool {
        let (machines, kill) = match fault {
            Fault::Down { machines, kill } => (machines, *kill),
            // If power fails during the shutdown, the other machines are only closed. On a full disk a graceful
            // shutdown becomes a kill.
            Fault::Close { machines, power_after_ops } => {
                let is_full = machines.iter().any(|(machine, _)| self.machines[*machine as usize].full_until_us > 0);
                match power_after_ops {
                    None if !is_full => return true,
                    _ => (machines, false),
                }
            }
            _ => return true,
        };
        let harmless = match self.scenario.durability {
            Durability::Sync => true,
            Durability::EverySecond => kill,
            Durability::Memory => false,
        };
        if self.scenario.durability == Durability::Sync || self.scenario.may_lose {
            return true;
        }
        self.degraded &= !self.is_whole();
        if self.degraded {
            return false;
        }
        if !harmless {
            self.degraded =
                machines.len() == 1 && self.scenario.backends > 1 && self.scenario.replication > 1 && self.is_whole();
            return self.degraded;
        }
        true
    }

    /// Ends a machine's process; it restarts after `for_us`.
    pub(super) fn stop(&mut self, index: usize, loss: Loss, for_us: u64) -> Result<(), String> {
        let (seed, canary) = (self.random.next(), self.canary);
        self.end_process(index, for_us, |machine| {
            machine.stop(loss, seed, canary);
            false
        })
    }

    /// Shuts a back-end down gracefully; it restarts after `for_us`. In every durability mode this loses nothing,
    /// unless power fails after `power_after_ops` operations.
    pub(super) fn close(&mut self, index: usize, power_after_ops: Option<u64>, for_us: u64) -> Result<(), String> {
        let (seed, now_us, canary) = (self.random.next(), self.now_us, self.canary);
        self.end_process(index, for_us, |machine| machine.close(now_us, power_after_ops, seed, canary))
    }

    /// Sometimes a node of a local cluster loses its disks when the process ends. The others have everything: all
    /// copies, and the map that a majority keeps.
    fn draw_replaced(&mut self, index: usize) -> Option<NodeId> {
        let has_faults = self.scenario.durability == Durability::Sync && !self.quiet && self.canary.is_none();
        let may_replace = self.scenario.is_local() && index == 0 && has_faults && self.is_whole();
        let node = NodeId(1 + (may_replace.then(|| self.random.below(u64::from(self.scenario.nodes())))?) as u32);
        self.random.chance(1, 3).then_some(node)
    }

    /// Ends a machine's process by `end`, which returns whether the shutdown was clean.
    fn end_process(&mut self, index: usize, for_us: u64, end: impl FnOnce(&mut Machine) -> bool) -> Result<(), String> {
        let now_us = self.now_us;
        let is_backend = index < self.scenario.backends as usize;
        let replaced = self.draw_replaced(index);
        let machine = &mut self.machines[index];
        if machine.process.is_none() {
            return Ok(());
        }
        for (_, status) in machine.statuses() {
            self.watch.alarms += status.counters.alarms;
            self.watch.copies += status.counters.resyncs;
            self.watch.dropped += status.members_dropped;
        }
        let connected = machine.connected();
        let is_clean = end(machine);
        self.closes += u64::from(is_clean);
        self.ended += u64::from(is_backend);
        self.unclean |= !is_clean && is_backend;
        machine.restart_us = Some(now_us + for_us);
        if let Some(node) = replaced {
            self.trace.say(now_us, format!("node {}'s disks are replaced", node.0));
            self.tally.note(FaultKind::DiskReplaced);
            machine.replace_disks(node);
            self.watch.forget_epochs(node);
        }
        for node in machine.nodes() {
            self.watch.forget(node);
            self.copied.retain(|(of, _)| of.node() != node);
            self.network.drop_node(node, now_us);
        }
        connected.into_iter().for_each(|client| self.clients.lose(client, now_us));
        Ok(())
    }

    /// Whether every chain is complete and serves.
    pub(super) fn is_whole(&self) -> bool {
        let backends = &self.machines[..self.scenario.backends as usize];
        let Some(map) = backends[0].manager_map() else { return false };
        map.ranges.iter().all(|entry| {
            let whole = entry.is_active() && entry.serving().count() == usize::from(self.scenario.replication);
            whole
                && entry.serving().all(|member| {
                    let machine = &backends[self.scenario.machine_of(member.id)];
                    let serves = |status: &fawn_node::cluster::MemberStatus| {
                        status.range == entry.range && status.epoch == entry.epoch && is_serving(status.phase)
                    };
                    // The product draws the boots of a local cluster.
                    (self.scenario.is_local() || machine.boot == member.boot)
                        && machine.shard(member.id).is_some_and(|shard| shard.node_status().members.iter().any(serves))
                })
        })
    }

    /// Restarts the processes whose disks had failed.
    pub(super) fn restart_poisoned(&mut self) -> Result<(), String> {
        for index in 0..self.machines.len() {
            if self.machines[index].is_poisoned() {
                self.stop(index, Loss::Process, 0)?;
            }
        }
        Ok(())
    }

    /// Ends all faults: restarts every stopped machine and restores every cut link.
    pub(super) fn end_faults(&mut self) {
        let now_us = self.now_us;
        self.trace.say(now_us, "no more faults".to_owned());
        self.network.set_options(NetworkOptions::KIND);
        self.network.heal();
        self.cuts.clear();
        for machine in &mut self.machines {
            machine.paused_until_us = 0;
            machine.stalled_until_us = 0;
            machine.full_until_us = now_us;
            machine.unreadable_until_us = 0;
            machine.disks.iter().for_each(|disk| disk.disk.clear_faults());
            if machine.process.is_none() {
                machine.restart_us = Some(now_us);
            }
        }
    }
}
