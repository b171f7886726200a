//! Second phase and its oracles: the cluster heals, serves, keeps every observed write, and has equal copies.
use super::machine::Machine;
use super::{TURN_US, World};
use crate::clients::{Key, LIFE_MS_MAX, ServedCounts};
use crate::history::{HistoryOperation, Verdict, check};
use fawn_chain::ClusterMap;
use fawn_node::cluster::{NodeStatus, RangeDigest};
use fawn_types::{MemberId, RangeId, TimeMs};
use std::collections::{BTreeMap, BTreeSet};

/// Time after the last fault within which every chain is complete and serves again, µs [replication.md §2.5].
const WHOLE_WITHIN_US: u64 = 60_000_000;
/// Time within which a cluster with failed disks continues without them, µs.
const LIMP_US_MAX: u64 = 15_000_000;
/// Interval between checks for that, µs.
const HEAL_LOOK_US: u64 = 250_000;
/// How long clients continue in the healed cluster, µs.
const SERVE_US: u64 = 400_000;
/// An operation of a healed cluster is answered within this time, µs.
const ANSWER_US_MAX: u64 = 10_000_000;
/// The tail's time may lag so long behind the clocks, ms: by 1 % of the time that passes, and an interval of
/// heartbeats.
const OUTLIVE_MS: u64 = 500;
/// Maximum number of undecided histories of a run: each takes seconds, and a run must end.
const UNDECIDED_MAX: u64 = 24;
/// Chain time is shown modulo this, ms.
const TIME_SHOWN: u64 = 1_000_000;
/// Time for the last commits to reach all members of a chain, µs.
const SETTLE_US: u64 = 1_000_000;

impl World {
    /// Ends faults. Within a bounded time every chain must be complete and clients must get replies.
    pub(super) fn heal(&mut self) -> Result<(), String> {
        self.end_faults();
        // Operations that a stalled disk has failed are reported only once it continues, and those of a disk whose time
        // is ahead, since an opening waited for it, once that time has come.
        let disks = self.machines.iter().flat_map(|machine| &machine.disks);
        let submitted_us = disks.map(|disk| disk.disk.tick()).fold(self.now_us, u64::max);
        self.run_until(submitted_us + self.scenario.disk_us_max + 1)?;
        self.run_degraded()?;
        self.restart_poisoned()?;
        self.heal_whole("the last fault")?;
        self.serve()
    }

    /// Clients of a whole cluster go on for a while, and are answered.
    pub(super) fn serve(&mut self) -> Result<(), String> {
        let (answered, until_us) = (self.clients.answered, self.now_us + ANSWER_US_MAX);
        self.run_until(self.now_us + SERVE_US)?;
        // After a long pipeline each client may pause for longer: once for each of its replies.
        while self.clients.answered == answered && self.now_us < until_us {
            self.run_until(self.now_us + SERVE_US)?;
        }
        self.quiet = true;
        self.run_while_waiting(ANSWER_US_MAX)?;
        if self.clients.answered == answered {
            return Err("all chains serve, but no operation is answered".to_owned());
        }
        self.serve_updates()
    }

    /// Each machine with sessions carries out updates of all keys. An error would do for the history, but a front-end
    /// whose updates a chain drops stays useless.
    fn serve_updates(&mut self) -> Result<(), String> {
        for (client, index) in self.accepting().into_iter().enumerate().take(self.clients.len()) {
            let unknown = self.clients.unknown;
            if self.clients.is_connected(client) {
                self.machines[self.servers[client]].close_connection(client);
                self.clients.lose(client, self.now_us);
            }
            self.connect_to(client, index);
            self.clients.write_updates(client, self.now_us);
            self.run_while_waiting(ANSWER_US_MAX)?;
            if self.clients.unknown > unknown {
                let failed = self.clients.unknown - unknown;
                return Err(format!("node {} fails {failed} updates in a whole cluster: {}", index + 1, self.words()));
            }
        }
        Ok(())
    }

    pub(super) fn heal_whole(&mut self, after: &str) -> Result<(), String> {
        let until_us = self.now_us + WHOLE_WITHIN_US;
        while !self.is_whole() {
            if self.now_us >= until_us {
                return Err(format!("not healed {WHOLE_WITHIN_US} µs after {after}: {}", self.words()));
            }
            self.run_until(self.now_us + HEAL_LOOK_US)?;
        }
        self.trace.say(self.now_us, "whole".to_owned());
        Ok(())
    }

    /// Shuts all machines down gracefully and restarts them. In every mode nothing is lost, and no loss is reported.
    pub(super) fn close_all(&mut self) -> Result<(), String> {
        self.unclean = false;
        for index in 0..self.machines.len() {
            self.close(index, None, 0)?;
        }
        if self.unclean {
            return Err("a machine of a healed cluster did not shut down cleanly".to_owned());
        }
        self.heal_whole("a clean shutdown")
    }

    /// Runs with processes on failed disks: chains must continue without them, if a healthy member is left.
    fn run_degraded(&mut self) -> Result<(), String> {
        if !self.machines.iter().any(Machine::is_poisoned) {
            return Ok(());
        }
        self.ran_degraded = true;
        let until_us = self.now_us + LIMP_US_MAX;
        while let Some(serving) = self.serves_on_failed_disk() {
            if self.now_us >= until_us {
                return Err(format!("a member still serves although its disk failed: {serving}: {}", self.words()));
            }
            self.run_until(self.now_us + HEAL_LOOK_US)?;
        }
        self.trace.say(self.now_us, "limping".to_owned());
        (0..self.machines.len()).try_for_each(|index| self.serve_on_failed_disk(index))
    }

    /// Sessions on a machine whose disk failed are served, because other machines hold the data: reads of all clients,
    /// and updates through each shard with a failed disk, if all chains have enough copies.
    fn serve_on_failed_disk(&mut self, index: usize) -> Result<(), String> {
        if !self.machines[index].is_poisoned() {
            return Ok(());
        }
        let readers = self.machines[index].connected();
        // Clients may draw nothing but updates, which a chain with too few copies refuses. It still serves reads.
        let key = self.clients.unused_key();
        for client in &readers {
            self.clients.write_read(*client, self.now_us, key);
        }
        self.wait_until_served(index, &readers, |served| served.all, Self::serves_all)?;
        if !self.takes_updates() {
            return Ok(());
        }
        let writers = self.machines[index].connected_to_poisoned();
        for client in &writers {
            self.clients.write_updates(*client, self.now_us);
        }
        self.wait_until_served(index, &writers, |served| served.updates, Self::takes_updates)
    }

    /// Waits until each of these clients of a machine whose disk failed has one more reply that is no error. It need
    /// not have one if its connection ends, or if the cluster no longer serves.
    fn wait_until_served(
        &mut self,
        index: usize,
        clients: &[usize],
        count: fn(ServedCounts) -> u64,
        serves: fn(&Self) -> bool,
    ) -> Result<(), String> {
        let served =
            |world: &Self, client| world.clients.served(client).map(|(number, served)| (number, count(served)));
        let before: Vec<_> = clients.iter().map(|client| (*client, served(self, *client))).collect();
        let until_us = self.now_us + ANSWER_US_MAX;
        while self.machines[index].is_poisoned() && serves(self) {
            let mut waiting = before.iter().filter(|(client, before)| served(self, *client) == *before);
            let Some((client, _)) = waiting.next() else {
                self.trace.say(self.now_us, format!("node {} serves {clients:?} without a disk", index + 1));
                return Ok(());
            };
            if self.now_us >= until_us {
                let words = self.words();
                return Err(format!("client {client} on node {} is not served: its disk failed: {words}", index + 1));
            }
            self.run_until(self.now_us + HEAL_LOOK_US)?;
        }
        Ok(())
    }

    fn is_well(&self, id: MemberId) -> bool {
        self.machines[self.scenario.machine_of(id)].shard(id).is_some_and(|shard| shard.engine().poisoned().is_none())
    }

    /// Whether each range is served by members on healthy disks, though maybe by fewer than it should have.
    fn serves_all(&self) -> bool {
        let serves = |map: &ClusterMap| {
            map.ranges.iter().all(|entry| entry.is_active() && entry.serving().all(|member| self.is_well(member.id)))
        };
        self.machines[0].manager_map().is_some_and(serves)
    }

    /// Whether each range is served so, by enough members for updates.
    fn takes_updates(&self) -> bool {
        let copies_min = usize::from(self.scenario.copies_min());
        let takes = |map: &ClusterMap| map.ranges.iter().all(|entry| entry.serving().count() >= copies_min);
        self.serves_all() && self.machines[0].manager_map().is_some_and(takes)
    }

    /// A range that waits for a member on a failed disk although another member that served last is healthy.
    fn serves_on_failed_disk(&self) -> Option<String> {
        let Some(map) = self.machines[0].manager_map() else {
            return Some("the manager is down".to_owned());
        };
        let stuck = map.ranges.iter().find(|entry| {
            let mut served = entry.last_active.iter().flat_map(|last| &last.members);
            let is_served = entry.is_active() && entry.serving().all(|member| self.is_well(member.id));
            served.any(|member| self.is_well(member.id)) && !is_served
        });
        stuck.map(|entry| format!("{:?} {:?}: {:?}", entry.range, entry.state, entry.members))
    }

    /// Runs until every client has its replies, within this time.
    pub(super) fn run_while_waiting(&mut self, within_us: u64) -> Result<(), String> {
        let until_us = self.now_us + within_us;
        while (0..self.clients.len()).any(|client| self.clients.is_waiting(client)) {
            if self.now_us >= until_us {
                return Err(format!("an operation is not answered within {within_us} µs: {}", self.words()));
            }
            self.run_until(self.now_us + 1_000)?;
        }
        Ok(())
    }

    /// Reads every key once more, checks every history, and compares all copies.
    pub(super) fn check(&mut self) -> Result<u64, String> {
        if self.scenario.expires {
            self.outlive()?;
        }
        let keys: Vec<Key> = self.clients.keys().collect();
        self.read_keys(&keys)?;
        self.check_sweeps()?;
        self.clients.check_sizes()?;
        let mut undecided = 0;
        for (key, operations) in self.clients.histories() {
            match check(&operations) {
                Verdict::Linearizable => {}
                Verdict::Undecided if undecided == UNDECIDED_MAX => {
                    return Err(format!("more than {UNDECIDED_MAX} histories are undecided, the last one of {key:?}"));
                }
                Verdict::Undecided => undecided += 1,
                Verdict::Violation(operations) => {
                    return Err(format!("{key:?} is not linearizable: {}", story(&operations)));
                }
            }
        }
        self.settle()?;
        self.compare_copies()?;
        Ok(undecided)
    }

    /// Reads these keys of the healed cluster.
    fn read_keys(&mut self, keys: &[Key]) -> Result<(), String> {
        for batch in keys.chunks(self.clients.len()) {
            let before = self.clients.answered;
            for (client, key) in batch.iter().enumerate() {
                self.write(client, Some(*key));
            }
            self.run_while_waiting(ANSWER_US_MAX)?;
            if self.clients.answered != before + batch.len() as u64 {
                return Err("a read of a healed cluster was not answered".to_owned());
            }
        }
        Ok(())
    }

    /// Waits until keys with an expiry have expired. **chain-time-runs**: meanwhile the time of each tail passes,
    /// hardly slower than the clocks.
    fn outlive(&mut self) -> Result<(), String> {
        let mut key_of_range: BTreeMap<usize, Key> = BTreeMap::new();
        for key in self.clients.keys() {
            key_of_range.entry(self.clients.times.place(&key.name())).or_insert(key);
        }
        let keys: Vec<Key> = key_of_range.values().copied().collect();
        // How far time fell at a restart is known once the tail has a heartbeat of its head. A single member advances its
        // time only with a request.
        self.run_until(self.now_us + 1_000 * OUTLIVE_MS)?;
        self.read_keys(&keys)?;
        let before = self.clients.times.all();
        // Keys got their expiry before time fell, too.
        let fallen_ms = key_of_range.keys().map(|place| before[*place].latest.ms_since(before[*place].now)).max();
        let life_ms = fallen_ms.unwrap_or_default() + LIFE_MS_MAX;
        let for_ms = OUTLIVE_MS + life_ms;
        self.run_until(self.now_us + 1_000 * for_ms)?;
        self.read_keys(&keys)?;
        let after = self.clients.times.all();
        for (place, (before, after)) in before.iter().zip(after).enumerate() {
            let passed_ms = after.now.ms_since(before.now);
            let is_known = self.scenario.replication > 1 || key_of_range.contains_key(&place);
            if is_known && passed_ms < life_ms {
                return Err(format!("chain-time-runs: {passed_ms} ms passed in {for_ms} ms: {}", self.words()));
            }
        }
        Ok(())
    }

    /// Waits until every chain has stayed complete for a while, so that all members have committed everything.
    fn settle(&mut self) -> Result<(), String> {
        let until_us = self.now_us + WHOLE_WITHIN_US;
        self.run_until(self.now_us + SETTLE_US)?;
        // A manager whose own disk hung may complete a change that drops its member only after the disk works again,
        // when the chains looked complete already. The member is added again after its hold-off.
        while !self.is_whole() {
            if self.now_us >= until_us {
                return Err(format!("a healed cluster does not stay whole: {}", self.words()));
            }
            self.heal_whole("a late change of members")?;
            self.run_until(self.now_us + SETTLE_US)?;
        }
        Ok(())
    }

    /// A scan of the idle cluster returns each key that was read just now, and `DBSIZE` counts them.
    fn check_sweeps(&mut self) -> Result<(), String> {
        self.clients.take_sweeps();
        self.clients.abandon_scans();
        // Connections of memcached have no scan.
        let Some(client) = (0..self.clients.len()).find(|client| self.clients.has_scan(*client)) else { return Ok(()) };
        loop {
            self.clients.write_sweep(client, self.now_us, true);
            self.run_while_waiting(ANSWER_US_MAX)?;
            if !self.clients.is_scanning(client) {
                break;
            }
        }
        self.clients.write_sweep(client, self.now_us, false);
        self.run_while_waiting(ANSWER_US_MAX)?;
        let (Some(scanned), Some(size)) = self.clients.take_sweeps() else {
            return Err("a scan of a healed cluster was not answered".to_owned());
        };
        // An expired key that was not accessed since still counts, and so do older records in runs.
        let surplus_max = if self.scenario.expires || self.scenario.sorts { u64::MAX } else { 0 };
        if size.checked_sub(scanned.len() as u64).is_none_or(|surplus| surplus > surplus_max) {
            return Err(format!("SCAN returns {} keys, but DBSIZE counts {size}", scanned.len()));
        }
        let present = self.clients.present();
        let judged: BTreeSet<Key> = scanned.into_iter().filter(|key| self.clients.is_judged(*key)).collect();
        match judged == present {
            true => Ok(()),
            false => Err(format!("reads find {present:?}, but a scan finds {judged:?}")),
        }
    }

    /// Compares each newly complete copy with the tail as soon as both have committed the same version. Later writes
    /// could hide deleted keys that came back.
    pub(super) fn compare_copied(&mut self, status: &NodeStatus) -> Result<(), String> {
        if self.copied.is_empty() {
            return Ok(());
        }
        for member in &status.members {
            let range = member.range;
            let due: Vec<MemberId> = self.copied.iter().filter(|(_, of)| *of == range).map(|(id, _)| *id).collect();
            for id in due {
                let Some((copy, tail)) = self.watch.transfer_and_tail(id, range) else { continue };
                // A digest counts keys that cannot be read, so a copy is compared once both disks are readable.
                if [id, tail].iter().any(|of| self.machines[self.scenario.machine_of(*of)].unreadable_until_us > 0) {
                    continue;
                }
                self.copied.remove(&(id, range));
                let time = self.chain_time(range);
                let mut digest = |of: MemberId| {
                    let machine = &mut self.machines[self.scenario.machine_of(of)];
                    // The digest may have reaped completions that belong to the process, which needs an iteration for
                    // them.
                    machine.due_us = Some(self.now_us + TURN_US);
                    machine.process.as_mut()?.shard_mut(of)?.digest(range, time).ok().flatten()
                };
                // If the disk fails during the digest, there is nothing to compare.
                let (Some(held), Some(wanted)) = (digest(id), digest(tail)) else { continue };
                self.compared += 1;
                if held != wanted {
                    let said = format!("shard {id} holds {held:?}, the tail {wanted:?}");
                    return Err(format!("copies of {range:?} differ after a full resync at {copy:?}: {said}"));
                }
            }
        }
        Ok(())
    }

    /// The latest chain time of any member of the range: keys that have expired there may have left one of the copies.
    fn chain_time(&self, range: RangeId) -> TimeMs {
        let shards = self.machines.iter().flat_map(Machine::shards);
        let members = shards.flat_map(|(_, shard)| shard.node_status().members);
        members.filter(|member| member.range == range).map(|member| member.time).max().unwrap_or_default()
    }

    /// Checks that all members of a range have equal digests.
    fn compare_copies(&mut self) -> Result<(), String> {
        let backends = self.scenario.backends as usize;
        let mut digests: BTreeMap<RangeId, Vec<(MemberId, RangeDigest)>> = BTreeMap::new();
        let times: BTreeMap<RangeId, TimeMs> =
            self.map.ranges.iter().map(|entry| (entry.range, self.chain_time(entry.range))).collect();
        let ids: Vec<MemberId> =
            self.machines[..backends].iter().flat_map(|machine| machine.disks.iter().map(|disk| disk.id)).collect();
        for id in ids {
            let process = self.machines[self.scenario.machine_of(id)].process.as_mut();
            let Some(shard) = process.and_then(|process| process.shard_mut(id)) else {
                return Err(format!("shard {id} is down"));
            };
            let status = shard.node_status();
            self.watch.alarms += status.counters.alarms;
            self.watch.copies += status.counters.resyncs;
            for member in status.members {
                let time = times.get(&member.range).copied().unwrap_or_default();
                let digest = shard.digest(member.range, time).map_err(|error| format!("shard {id}: {error}"))?;
                let serves = super::observe::is_serving(member.phase);
                digests.entry(member.range).or_default().extend(digest.filter(|_| serves).map(|digest| (id, digest)));
            }
        }
        for (range, copies) in &digests {
            let same = copies.iter().all(|(_, digest)| *digest == copies[0].1);
            if !same || copies.len() != usize::from(self.scenario.replication) {
                return Err(format!("copies of {range:?} differ: {copies:?}"));
            }
        }
        let sums = format!("{digests:?}");
        self.trace.note(self.now_us, b'd', 0, 0, sums.as_bytes());
        Ok(())
    }

    /// The state of all machines, for failure messages.
    pub(super) fn words(&self) -> String {
        let mut words = String::new();
        for machine in &self.machines {
            for (id, shard) in machine.shards() {
                words.push_str(&format!("\n  shard {id}: {:?}", shard.node_status().members));
            }
        }
        if let Some(map) = self.machines[0].manager_map() {
            for entry in &map.ranges {
                words.push_str(&format!(
                    "\n  {:?} {:?} {:?}: {:?}",
                    entry.range, entry.epoch, entry.state, entry.members
                ));
            }
        }
        words
    }
}

/// A history as text, with long values shortened. A mark shows the operations that the longest valid order lacks.
fn story(operations: &[(HistoryOperation, bool)]) -> String {
    let line = |(operation, is_in_order): &(HistoryOperation, bool)| {
        let words = format!("{:?} → {:?}", operation.request, operation.observed);
        let end = if operation.replied_at == u64::MAX { "∞".to_owned() } else { operation.replied_at.to_string() };
        let (mark, time) = (if *is_in_order { ' ' } else { '!' }, &operation.time);
        let (from, to) = (time.called_ms % TIME_SHOWN, time.answered_ms % TIME_SHOWN);
        format!("\n {mark}[{}, {end}] at {from}..{to} ms {}", operation.called_at, readable(&words))
    };
    operations.iter().map(line).collect()
}

/// `[60, 49, 62]` as `<1>`: bytes print as numbers.
fn readable(words: &str) -> String {
    let mut out = String::new();
    let mut rest = words;
    while let Some(open) = rest.find('[') {
        let Some(close) = rest[open..].find(']') else { break };
        out.push_str(&rest[..open]);
        let bytes = rest[open + 1..open + close].split(", ").filter_map(|byte| byte.parse::<u8>().ok());
        let text: String = bytes.map(char::from).filter(|byte| *byte != '.').collect();
        out.push_str(&text);
        rest = &rest[open + close + 1..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Scenario, SessionPlaces};
    use crate::seed::Seed;
    use fawn_flash::sim::{DeviceFault, OpKind};
    use fawn_types::{Durability, NodeId};
    use std::ops::Range;

    /// A cluster of three nodes with so many shards, in which the disks of these machines have failed. Client 0 is
    /// connected to node 1.
    fn limping_world(shards: u16, failed: Range<usize>) -> Result<World, String> {
        let seed = Seed::new("limping");
        let scenario = Scenario {
            durability: Durability::Sync,
            backends: 3,
            nodes_of_first: 1,
            shards,
            replication: 3,
            sessions: SessionPlaces::BackEnds,
            is_narrow: false,
            clients: 3,
            // Enough that each member is written to.
            keys: 32,
            faults_us: 0,
            supervised: false,
            ..Scenario::of(&seed)
        };
        let mut world = World::of(&seed, scenario, None, false);
        world.quiet = true;
        (0..world.machines.len()).try_for_each(|index| world.start(index))?;
        world.heal_whole("the start")?;
        let disks = |world: &World| -> Vec<_> {
            let disks = world.machines[failed.clone()].iter().flat_map(|machine| &machine.disks);
            disks.map(|disk| (disk.id, disk.disk.clone())).collect()
        };
        for (_, disk) in disks(&world) {
            disk.fail_every(OpKind::Write, DeviceFault::Fail);
        }
        world.connect_to(0, 0);
        world.clients.write_updates(0, world.now_us);
        world.run_while_waiting(ANSWER_US_MAX)?;
        world.run_until(world.now_us + LIMP_US_MAX)?;
        assert!(disks(&world).iter().all(|(id, _)| !world.is_well(*id)), "{}", world.words());
        assert!(world.serves_all(), "{}", world.words());
        Ok(world)
    }

    #[test]
    fn a_disk_whose_time_is_ahead_reports_its_failure_before_the_faults_count_as_ended() -> Result<(), String> {
        let mut world = limping_world(1, 0..0)?;
        let disk = world.machines[1].disks[0].disk.clone();
        disk.advance_to(world.now_us + WHOLE_WITHIN_US / 100);
        disk.fail_nth(OpKind::Write, 1, DeviceFault::Fail);
        let writes = disk.counted(OpKind::Write);
        world.clients.write_updates(0, world.now_us);
        while disk.counted(OpKind::Write) == writes {
            world.run_until(world.now_us + TURN_US)?;
        }
        // Clients have to be served at the end.
        world.quiet = false;
        world.heal()?;
        assert!(world.machines.iter().all(|machine| !machine.is_poisoned()), "{}", world.words());
        Ok(())
    }

    #[test]
    fn a_session_that_sends_only_refused_updates_counts_as_served() -> Result<(), String> {
        let mut world = limping_world(1, 1..3)?;
        world.connect_to(1, 2);
        let unknown = world.clients.unknown;
        world.clients.write_updates(1, world.now_us);
        world.serve_on_failed_disk(2)?;
        assert_eq!(world.clients.unknown - unknown, u64::from(world.scenario.keys), "all updates are refused");
        Ok(())
    }

    #[test]
    fn a_session_that_reaches_no_other_machine_is_noticed() -> Result<(), String> {
        let mut world = limping_world(1, 1..3)?;
        world.connect_to(1, 2);
        for node in [NodeId(1), NodeId(2)] {
            world.network.cut(NodeId(3), node);
            world.network.cut(node, NodeId(3));
        }
        let error = world.serve_on_failed_disk(2).err().unwrap_or_default();
        assert!(error.starts_with("client 1 on node 3 is not served"), "{error}");
        Ok(())
    }

    /// Clients are divided among the shards.
    #[test]
    fn each_shard_serves_its_own_sessions() -> Result<(), String> {
        let mut world = limping_world(2, 2..3)?;
        world.connect_to(1, 2);
        world.connect_to(2, 2);
        world.machines[2].ignore_input_of(2);
        let error = world.serve_on_failed_disk(2).err().unwrap_or_default();
        assert!(error.starts_with("client 2 on node 3 is not served"), "{error}");
        Ok(())
    }

    #[test]
    fn updates_are_sent_through_each_failed_shard_if_there_are_enough_copies() -> Result<(), String> {
        let mut world = limping_world(2, 2..3)?;
        assert!(world.takes_updates(), "{}", world.words());
        world.connect_to(1, 2);
        world.connect_to(2, 2);
        world.serve_on_failed_disk(2)?;
        for client in [1, 2] {
            let (_, served) = world.clients.served(client).ok_or("the client is not connected")?;
            assert!(served.updates > 0, "client {client}: {served:?}");
        }
        Ok(())
    }
}
