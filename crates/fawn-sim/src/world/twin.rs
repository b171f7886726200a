//! The phase in which two processes have one identity: one runs on a machine's disks, the other on a copy of them.
//!
//! The process of the newer boot takes part in its chains, the other one serves nothing; no observed write is lost, and
//! everything is whole again within a bound, although both processes receive every frame [replication.md § 1]. The
//! phase begins in a healed cluster: a copy of a directory is as old as a disk that was restored, so another copy must
//! be whole. A chain of one member has none, so there the process on the copy is always the one that is refused.
//! Clients that connect to the process without a place in any chain are answered through other machines, or get errors,
//! but never an old value.
//!
//! Nothing is promised for a copy of the manager's store: each of two managers would persist its own map.
use super::machine::Machine;
use super::observe::is_serving;
use super::{TURN_US, World};
use crate::scenario::Twin;
use crate::tally::FaultKind;
use fawn_flash::sim::Loss;
use fawn_node::cluster::NodeOutput;
use fawn_types::{BootId, Durability};

/// Longest pause of a client between two operations meanwhile, µs.
const THINK_US: u64 = 10_000;
/// Longest time for which another machine is down beside two processes, µs.
const DOWN_US_MAX: u64 = 500_000;
/// How long clients use the process that serves nothing, µs.
const LOSER_SERVES_US: u64 = 500_000;
/// Longest wait for its replies, µs. It takes as many requests as its budget allows, and has 3 s for each part of a
/// pipeline.
const LOSER_ANSWERS_US_MAX: u64 = 60_000_000;

impl World {
    /// Copies the disks of a machine, starts a second process on them, and ends the one that must not serve.
    pub(super) fn run_twin(&mut self, twin: Twin) -> Result<(), String> {
        let index = twin.machine as usize;
        self.tally.note(if twin.is_newer { FaultKind::NewerTwin } else { FaultKind::EqualTwin });
        self.trace.say(self.now_us, format!("{twin:?}"));
        self.quiet = false;
        self.clients.think_longer(THINK_US);
        let mut copy = self.machines[index].copy(self.random.next());
        // The first process acknowledges writes that the copy lacks.
        self.run_until(self.now_us + twin.after_us)?;
        let known = self.machines[index].boot;
        let generation = if twin.is_newer { self.boots + 1 } else { known.generation() };
        self.boots += u32::from(twin.is_newer);
        let boot = BootId::new(generation, self.random.next() as u32);
        copy.start(boot, &self.map, self.now_us, &self.scenario, self.canary)?;
        if twin.is_newer {
            self.replace(index, &mut copy);
        }
        self.twin = Some(copy);
        self.restart_other(index, twin)?;
        if self.random.chance(1, 2) {
            // A head may not know a newer process yet.
            self.serve_at_loser(index)?;
        }
        self.run_until(self.now_us + twin.for_us)?;
        self.heal_whole("a second process of one identity")?;
        self.serve_at_loser(index)?;
        let twin = self.twin.take().map(|twin| twin.statuses()).unwrap_or_default();
        let serving = twin.iter().flat_map(|(id, status)| status.members.iter().map(move |member| (id, member)));
        if let Some((id, member)) = serving.into_iter().find(|(_, member)| is_serving(member.phase)) {
            return Err(format!("two processes serve as {id}: {member:?}: {}", self.words()));
        }
        self.heal_whole("the end of a second process of one identity")?;
        self.serve()
    }

    /// Sometimes kills another machine, possibly the manager's, whose next process knows its map only. Not beside a newer
    /// process on an older copy: that one may be the only member left, and a head that starts with the manager may take
    /// updates of the former one first.
    fn restart_other(&mut self, index: usize, twin: Twin) -> Result<(), String> {
        let may_strike = !twin.is_newer && !self.scenario.is_local() && self.scenario.durability == Durability::Sync;
        let other = self.random.below(u64::from(self.scenario.backends)) as usize;
        if !may_strike || other == index {
            return Ok(());
        }
        let for_us = 1_000 + self.random.below(DOWN_US_MAX);
        self.trace.say(self.now_us, format!("node {} is killed beside a second process", other + 1));
        self.stop(other, Loss::Process, for_us)
    }

    /// Half of the clients connect to the process that serves nothing. They are answered, and what they read is judged
    /// as everything else.
    fn serve_at_loser(&mut self, index: usize) -> Result<(), String> {
        let now_us = self.now_us;
        for client in (0..self.clients.len()).step_by(2) {
            self.machines[self.servers[client]].close_connection(client);
            self.clients.lose(client, now_us);
            self.servers[client] = self.machines.len();
            let protocol = self.clients.connect(client);
            let Some(loser) = self.twin.as_mut() else { return Ok(()) };
            loser.open_connection(client, protocol);
        }
        self.run_until(self.now_us + LOSER_SERVES_US)?;
        self.quiet = true;
        let answered = self.run_while_waiting(LOSER_ANSWERS_US_MAX);
        answered.map_err(|error| format!("clients of the process that serves nothing: {error}"))?;
        self.quiet = false;
        let Some(loser) = self.twin.as_mut() else { return Ok(()) };
        let connected = loser.connected();
        self.trace.say(self.now_us, format!("{} operations were answered by the loser", loser.answered));
        for client in connected {
            loser.close_connection(client);
            self.clients.lose(client, self.now_us);
        }
        for server in self.servers.iter_mut().filter(|server| **server == self.machines.len()) {
            *server = index;
        }
        Ok(())
    }

    /// The process with the newer boot is the machine's from now on; clients connect to it.
    fn replace(&mut self, index: usize, newer: &mut Machine) {
        let now_us = self.now_us;
        std::mem::swap(&mut self.machines[index], newer);
        newer.connected().into_iter().for_each(|client| {
            newer.close_connection(client);
            self.clients.lose(client, now_us);
        });
        self.ended += 1;
        let node = newer.node;
        self.watch.forget(node);
        self.watch.forget_epochs(node);
        self.copied.retain(|(of, _)| of.node() != node);
    }

    /// Runs an iteration of the second process, if one is due. Its frames are sent as those of the first, whose state
    /// is what oracles judge.
    pub(super) fn wake_twin(&mut self) -> Result<(), String> {
        let now_us = self.now_us;
        let Some(twin) = self.twin.as_mut().filter(|twin| twin.next_us().is_some_and(|at| at <= now_us)) else {
            return Ok(());
        };
        twin.disks.iter().for_each(|disk| disk.disk.advance_to(now_us));
        let (due_us, outputs) = twin.run_once(now_us);
        // Until the manager replaces it, a process that was a member receives and forwards records as one.
        self.watch.note_received(&twin.statuses());
        let (replies, replies_us) = twin.take_replies(now_us, &mut self.random)?;
        let due_us = due_us.map(|due_us| due_us.max(now_us + TURN_US));
        twin.due_us = due_us.into_iter().chain(replies_us).min();
        let answered = self.clients.answered;
        for (client, bytes) in replies {
            self.trace.note(now_us, b'=', twin.node.0, client as u32, &bytes);
            self.clients.receive(client, now_us, &bytes)?;
        }
        twin.answered += self.clients.answered - answered;
        for (id, output) in outputs {
            // A promise of this process does not bind the other one.
            if let NodeOutput::Send { to, bytes } = output {
                self.send_frames(id, to, &bytes)?;
            } else {
                self.carry_out(id, output)?;
            }
        }
        Ok(())
    }
}
