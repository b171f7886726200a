//! Rounds and hold-offs of the manager, frame by frame: each test chooses the frames of every member.
use crate::cluster::MANAGER;
use crate::member;
use fawn_chain::manager::{Consensus, ConsensusEvent, FileConsensus, Manager, ManagerOptions, ManagerOutput};
use fawn_chain::map::{LastActive, NodeEntry, RangeEntry};
use fawn_chain::message::{Body, MemberReport};
use fawn_chain::{ClusterMap, Frame, Header, RingOptions};
use fawn_types::{BootId, Durability, Epoch, HashSecret, KeyRange, NodeId, Now, RangeId, TimeMs, Version};
use std::collections::BTreeSet;

/// A manager of one range, whose members' frames a test chooses.
struct Scripted {
    manager: Manager<FileConsensus>,
    now: u64,
    range: RangeId,
    chain: Vec<u32>,
    boots: Vec<u32>,
    /// Machines that send heartbeats.
    alive: BTreeSet<u32>,
    /// Maps wait for [`Scripted::persist`].
    is_disk_held: bool,
    held: Option<u64>,
    outputs: Vec<ManagerOutput>,
}

fn version(epoch: Epoch, seq: u64) -> Version {
    Version::new(epoch, seq).unwrap()
}

impl Scripted {
    fn new(nodes: u32, durability: Durability) -> Self {
        let node = |id| NodeEntry { node: NodeId(id), shards: 1, weight: 1, domain: 0, address: String::new() };
        let ring = RingOptions { replication: nodes as u8, virtual_ids: 1 };
        let mut map = ClusterMap::new(HashSecret([7; 16]), durability, ring, (1..=nodes).map(node).collect());
        map.ranges.truncate(1);
        let chain = map.ranges[0].serving().map(|member| member.id.node().0).collect();
        let range = map.ranges[0].range;
        let options = ManagerOptions { hold_off_ms_max: 25_000, ..ManagerOptions::default() };
        let boot = BootId::new(1, 1);
        let mut scripted = Self {
            manager: Manager::new(member(MANAGER), boot, options, FileConsensus::default(), map),
            now: 1_000,
            range,
            chain,
            boots: vec![1; nodes as usize + 1],
            alive: (1..=nodes).collect(),
            is_disk_held: false,
            held: None,
            outputs: Vec::new(),
        };
        scripted.run(10);
        scripted
    }

    /// A chain of `nodes` that serves and has no record.
    fn serving(nodes: u32, durability: Durability) -> Self {
        let mut scripted = Self::new(nodes, durability);
        scripted.settle(Version::ZERO);
        scripted
    }

    fn entry(&self) -> RangeEntry {
        self.manager.map().range(self.range).unwrap().clone()
    }

    fn epoch(&self) -> Epoch {
        self.entry().epoch
    }

    fn serves(&self) -> Vec<u32> {
        let entry = self.entry();
        if entry.is_active() { entry.serving().map(|member| member.id.node().0).collect() } else { Vec::new() }
    }

    fn boot(&self, node: u32) -> BootId {
        BootId::new(self.boots[node as usize], node)
    }

    fn say(&mut self, node: u32, body: Body<'static>) {
        self.say_in(node, self.epoch(), body);
    }

    fn say_in(&mut self, node: u32, epoch: Epoch, body: Body<'static>) {
        let header = Header { from: member(node), boot: self.boot(node), range: self.range, epoch };
        self.manager.handle_frame(Now::at(self.now), &Frame { header, body });
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.manager.poll_output() {
            match output {
                // The process may end here, so the test sees no output that comes later.
                ManagerOutput::Persist { revision, .. } if self.is_disk_held => return self.held = Some(revision),
                ManagerOutput::Persist { revision, .. } => {
                    self.manager.handle_persisted(Now::at(self.now), revision);
                }
                ManagerOutput::Send { frame: Frame { body: Body::Boots(_), .. }, .. } => {}
                other => self.outputs.push(other),
            }
        }
    }

    /// Completes the held write of the map.
    fn persist(&mut self) {
        self.is_disk_held = false;
        if let Some(revision) = self.held.take() {
            self.manager.handle_persisted(Now::at(self.now), revision);
        }
        self.drain();
    }

    /// Lets `ms` pass, with heartbeats of all machines that are alive.
    fn run(&mut self, ms: u64) {
        self.run_with(ms, &[]);
    }

    /// Lets `ms` pass, in which `syncing` report that they keep up.
    fn run_with(&mut self, ms: u64, syncing: &[u32]) {
        let until = self.now + ms;
        while self.now < until {
            self.now += 100.min(until - self.now);
            for node in self.alive.clone() {
                self.say_in(node, Epoch::default(), Body::Hello);
            }
            for node in syncing {
                self.say(*node, Body::CaughtUp { last: Version::ZERO });
            }
            self.manager.handle_timeout(Now::at(self.now));
            self.drain();
        }
    }

    fn restart(&mut self, node: u32) {
        self.boots[node as usize] += 1;
    }

    /// A report of a log that ends at `last`, all committed, from a member that reaches all others.
    fn report_of(&self, last: Version) -> MemberReport {
        let reach = self.chain.iter().copied().map(member).collect();
        let found = self.entry().last_active.map_or(Epoch::default(), |active| active.epoch);
        MemberReport { last, committed: last, found, reach, ..MemberReport::default() }
    }

    fn report(&mut self, node: u32, last: Version) {
        let report = self.report_of(last);
        self.say(node, Body::Report(report));
    }

    /// Has all living members report `last`, and become equal: the round ends.
    fn settle(&mut self, last: Version) {
        for node in self.alive.clone() {
            self.report(node, last);
        }
        for node in self.alive.clone() {
            self.say(node, Body::Equal { base: last });
        }
        assert!(self.entry().is_active(), "{:?}", self.entry());
    }

    /// The head requests an epoch: a round begins.
    fn next_epoch(&mut self) {
        let head = self.entry().head().unwrap().node().0;
        self.say(head, Body::EpochWanted);
    }

    fn dropped(&self) -> Vec<u32> {
        let node = |output: &ManagerOutput| match output {
            ManagerOutput::Dropping { member, .. } => Some(member.node().0),
            _ => None,
        };
        self.outputs.iter().filter_map(node).collect()
    }

    /// The members to which an `Align` was sent since the outputs were cleared, with their cuts.
    fn aligns(&self) -> Vec<(u32, Version)> {
        let align = |output: &ManagerOutput| match output {
            ManagerOutput::Send { to, frame: Frame { body: Body::Align { cut, .. }, .. } } => Some((to.node().0, *cut)),
            _ => None,
        };
        self.outputs.iter().filter_map(align).collect()
    }

    fn was_notified(&self, node: u32, epoch: Epoch) -> bool {
        self.outputs.iter().any(|output| match output {
            ManagerOutput::Send { to, frame: Frame { body: Body::Entry(entry), .. } } => {
                to.node().0 == node && entry.epoch == epoch && entry.is_active()
            }
            _ => false,
        })
    }
}

impl Scripted {
    /// The node reports that it cannot send, so it leaves the chain. Returns how long it keeps up before its promotion
    /// begins, s.
    fn hold_off_s(&mut self, node: u32) -> u64 {
        self.say(node, Body::CannotSend { to: member(0) });
        self.settle(Version::ZERO);
        assert!(!self.serves().contains(&node), "{:?}", self.entry());
        let began = self.now;
        while self.entry().is_active() {
            assert!(self.now < began + 100_000, "never promoted");
            self.run_with(100, &[node]);
        }
        let waited = (self.now - began) / 1_000;
        self.settle(Version::ZERO);
        assert!(self.serves().contains(&node), "{:?}", self.entry());
        waited
    }
}

#[test]
fn hold_offs_double_up_to_the_longest_and_end_with_long_service() {
    let mut chain = Scripted::serving(4, Durability::Sync);
    let node = chain.chain[1];
    assert_eq!([10, 20, 25, 25], [(); 4].map(|()| chain.hold_off_s(node)));
    // Activations do not interrupt a service.
    for _ in 0..3 {
        chain.run(250_000);
        chain.next_epoch();
        chain.settle(Version::ZERO);
    }
    assert_eq!(chain.hold_off_s(node), 10);
    // An absence does, although it has no hold-off itself.
    chain.run(400_000);
    chain.alive.remove(&node);
    chain.run(2_500);
    for other in chain.alive.clone() {
        chain.report(other, Version::ZERO);
    }
    // The round waits for the silent member's report.
    chain.run(1_100);
    chain.settle(Version::ZERO);
    chain.alive.insert(node);
    while chain.entry().is_active() {
        chain.run_with(100, &[node]);
    }
    chain.settle(Version::ZERO);
    chain.run(300_000);
    assert_eq!(chain.hold_off_s(node), 20);
}

#[test]
fn a_hold_off_counts_the_time_in_which_the_member_keeps_up() {
    let mut chain = Scripted::serving(4, Durability::Sync);
    let node = chain.chain[1];
    chain.say(node, Body::CannotSend { to: member(0) });
    chain.settle(Version::ZERO);
    chain.run_with(3_000, &[node]);
    chain.run(9_000);
    assert!(chain.entry().is_active(), "its last report is too old");
    chain.run_with(9_000, &[node]);
    assert!(chain.entry().is_active(), "the time began again after the gap");
    // Another tail: the member has to catch up with that one first.
    chain.next_epoch();
    chain.settle(Version::ZERO);
    chain.run(2_000);
    assert!(chain.entry().is_active(), "its reports are of the former epoch");
    chain.run_with(500, &[node]);
    assert!(!chain.entry().is_active(), "it kept up throughout");
}

/// A member that lacks nothing of an epoch hears of the next one from the manager alone. Its reports fetch an
/// announcement that was lost.
#[test]
fn a_member_that_catches_up_with_a_former_epoch_receives_the_present_one() {
    let mut chain = Scripted::serving(4, Durability::Sync);
    let node = chain.chain[1];
    chain.say(node, Body::CannotSend { to: member(0) });
    chain.settle(Version::ZERO);
    let former = chain.epoch();
    chain.next_epoch();
    chain.settle(Version::ZERO);
    chain.outputs.clear();
    chain.say_in(node, former, Body::CaughtUp { last: Version::ZERO });
    let entries: Vec<_> = chain
        .outputs
        .iter()
        .filter_map(|output| match output {
            ManagerOutput::Send { to, frame: Frame { body: Body::Entry(entry), .. } } => Some((*to, entry.epoch)),
            _ => None,
        })
        .collect();
    assert_eq!(entries, [(member(node), chain.epoch())]);
}

#[test]
fn a_slow_member_is_not_promoted() {
    let mut chain = Scripted::serving(4, Durability::Sync);
    let node = chain.chain[1];
    chain.say(node, Body::Slow { oldest_ms: 2_000 });
    chain.settle(Version::ZERO);
    chain.alive.remove(&node);
    chain.run_with(30_000, &[node]);
    assert!(chain.entry().is_active(), "its disk still hangs");
    // Another boot begins with a disk that is not known to be slow.
    chain.restart(node);
    chain.run_with(15_000, &[node]);
    assert!(!chain.entry().is_active() || chain.serves().len() == 3);
}

/// A member that is promoted before the end of its hold-off has one of twice the length the next time.
#[test]
fn a_stalled_chain_of_two_takes_a_member_back_at_once() {
    let mut chain = Scripted::serving(3, Durability::Sync);
    let [first, second, third] = chain.chain[..] else { unreachable!() };
    chain.say(third, Body::CannotSend { to: member(0) });
    chain.settle(Version::ZERO);
    chain.say(first, Body::Suspect { member: member(second) });
    chain.run_with(200, &[third]);
    assert!(!chain.entry().is_active(), "the third member is promoted");
    chain.settle(Version::ZERO);
    assert_eq!(chain.hold_off_s(third), 20);
    // A report of a stall is repeated while the chain is stalled, so an old one does not count.
    chain.say(third, Body::CannotSend { to: member(0) });
    chain.settle(Version::ZERO);
    chain.say(first, Body::Suspect { member: member(second) });
    chain.run(4_000);
    chain.run_with(1_000, &[third]);
    assert!(chain.entry().is_active());
}

#[test]
fn a_new_boot_has_a_disk_that_is_not_known_to_hang() {
    let mut chain = Scripted::serving(3, Durability::Sync);
    let second = chain.chain[1];
    chain.say(second, Body::Slow { oldest_ms: 20_000 });
    chain.restart(second);
    chain.settle(Version::ZERO);
    assert_eq!(chain.serves(), chain.chain);
}

/// Another leader's map comes before the first proposal.
#[derive(Default)]
struct Rival {
    offered: Option<u64>,
    has_won: bool,
}

impl Consensus for Rival {
    fn propose(&mut self, revision: u64, _: Vec<u8>) {
        self.offered = Some(revision);
    }

    fn poll_event(&mut self) -> Option<ConsensusEvent> {
        let revision = self.offered.take()?;
        let is_lost = !core::mem::replace(&mut self.has_won, true);
        Some(if is_lost { ConsensusEvent::Lost { revision } } else { ConsensusEvent::Committed { revision } })
    }

    fn poll_persist(&mut self) -> Option<(u64, Vec<u8>)> {
        None
    }

    fn handle_persisted(&mut self, _: u64) {}
}

#[test]
fn a_round_of_a_lost_map_begins_again() {
    let map = Scripted::new(3, Durability::Sync).manager.map().clone();
    let map = ClusterMap { revision: 0, ranges: vec![RangeEntry::new(RangeId(1), KeyRange::ALL, &[member(1)])], ..map };
    let boot = BootId::new(1, 1);
    let mut manager = Manager::new(member(MANAGER), boot, ManagerOptions::default(), Rival::default(), map);
    for at in 0..10 {
        manager.handle_timeout(Now::at(1_000 + at * 100));
    }
    assert!(manager.map().ranges[0].epoch > Epoch::default());
}

#[test]
fn equality_counts_for_one_boot_and_one_base() {
    let mut chain = Scripted::new(2, Durability::Sync);
    let base = version(Epoch::default().next().unwrap(), 5);
    let [first, second] = chain.chain[..] else { unreachable!() };
    chain.report(first, base);
    chain.report(second, base);
    chain.say(first, Body::Equal { base });
    chain.say(second, Body::Equal { base: Version::ZERO });
    assert!(!chain.entry().is_active(), "equal to another base");
    chain.restart(second);
    chain.say(second, Body::Equal { base });
    assert!(!chain.entry().is_active(), "the boot that reported is gone");
    chain.boots[second as usize] -= 1;
    chain.say(second, Body::Equal { base });
    assert!(chain.entry().is_active());
}

#[test]
fn each_member_keeps_its_log_up_to_the_base() {
    let mut chain = Scripted::new(3, Durability::Sync);
    let [first, second, third] = chain.chain[..] else { unreachable!() };
    let at = |seq| version(Epoch::default().next().unwrap(), seq);
    chain.outputs.clear();
    chain.report(first, at(3));
    chain.report(second, at(4));
    chain.report(third, at(9));
    let sent: BTreeSet<_> = chain.aligns().into_iter().collect();
    assert_eq!(sent, BTreeSet::from([(first, at(3)), (second, at(4)), (third, at(9))]));
    chain.say(third, Body::Equal { base: at(9) });
    chain.outputs.clear();
    chain.run(200);
    let again: BTreeSet<_> = chain.aligns().into_iter().map(|(node, _)| node).collect();
    assert_eq!(again, BTreeSet::from([first, second]), "a lost request is repeated");
}

#[test]
fn a_member_that_does_not_become_equal_is_left_out() {
    let mut chain = Scripted::serving(3, Durability::Sync);
    let [first, second, third] = chain.chain[..] else { unreachable!() };
    chain.next_epoch();
    for node in [first, second, third] {
        chain.report(node, Version::ZERO);
    }
    chain.say(first, Body::Equal { base: Version::ZERO });
    chain.say(third, Body::Equal { base: Version::ZERO });
    let before = chain.epoch();
    chain.run(3_100);
    assert!(chain.epoch() > before, "another round");
    chain.settle(Version::ZERO);
    assert_eq!(chain.serves(), [first, third]);
    // Of two members, a suspected one stays, but not one that does not become equal.
    let mut chain = Scripted::serving(2, Durability::Sync);
    chain.next_epoch();
    for node in [1, 2] {
        chain.report(node, Version::ZERO);
    }
    chain.run(3_100);
    for node in [1, 2] {
        chain.report(node, Version::ZERO);
    }
    chain.say(1, Body::Equal { base: Version::ZERO });
    assert_eq!(chain.serves(), [1]);
}

#[test]
fn a_member_that_the_others_do_not_reach_is_held_off() {
    let mut chain = Scripted::serving(3, Durability::Sync);
    let [first, second, third] = chain.chain[..] else { unreachable!() };
    chain.next_epoch();
    for (node, other) in [(first, second), (second, first), (third, third)] {
        let report = MemberReport { reach: vec![member(other)], ..chain.report_of(Version::ZERO) };
        chain.say(node, Body::Report(report));
    }
    chain.run(400);
    for node in [first, second] {
        chain.say(node, Body::Equal { base: Version::ZERO });
    }
    assert_eq!(chain.serves(), [first, second]);
    chain.run_with(8_000, &[third]);
    assert_eq!(chain.serves(), [first, second]);
}

#[test]
fn a_member_without_a_whole_copy_is_not_awaited() {
    let mut chain = Scripted::serving(3, Durability::Sync);
    let [first, second, third] = chain.chain[..] else { unreachable!() };
    chain.next_epoch();
    chain.say(second, Body::CannotAlign);
    for node in [first, third] {
        chain.report(node, Version::ZERO);
        chain.say(node, Body::Equal { base: Version::ZERO });
    }
    for node in [first, third] {
        chain.say(node, Body::Equal { base: Version::ZERO });
    }
    assert_eq!(chain.serves(), [first, third], "at once, without the wait for silent members");
    // A member that can no longer align starts another round, which excludes it.
    chain.next_epoch();
    chain.report(first, Version::ZERO);
    chain.report(third, Version::ZERO);
    let before = chain.epoch();
    // Of equal logs, that of the least node is the donor's.
    let (donor, other) = (first.min(third), first.max(third));
    chain.say(other, Body::CannotAlign);
    assert!(chain.epoch() > before);
    for node in [first, third] {
        chain.report(node, Version::ZERO);
    }
    chain.say(donor, Body::Equal { base: Version::ZERO });
    assert_eq!(chain.serves(), [donor]);
}

#[test]
fn a_log_below_the_last_base_never_donates() {
    let mut chain = Scripted::new(3, Durability::Sync);
    let second = chain.chain[1];
    let base = version(Epoch::default().next().unwrap(), 5);
    chain.settle(base);
    chain.next_epoch();
    chain.alive = BTreeSet::from([second]);
    chain.outputs.clear();
    chain.report(second, Version::ZERO);
    chain.run(20_000);
    assert_eq!(chain.aligns(), [], "its disk is an older one");
}

/// The only member that holds all committed records is reached by no other one.
#[test]
fn a_rebooted_log_below_the_commit_never_donates() {
    let mut chain = Scripted::serving(3, Durability::Sync);
    let [first, second, third] = chain.chain[..] else { unreachable!() };
    let epoch = chain.epoch();
    for node in [first, second, third] {
        chain.restart(node);
    }
    chain.run(100);
    let rebooted = |chain: &Scripted, last| MemberReport { reach: Vec::new(), ..chain.report_of(last) };
    let (short, long) = (rebooted(&chain, version(epoch, 6)), rebooted(&chain, version(epoch, 8)));
    let joined = MemberReport { reach: vec![member(third)], ..short.clone() };
    chain.say(first, Body::Report(joined));
    chain.say(third, Body::Report(short));
    chain.say(second, Body::Report(long));
    chain.run(1_500);
    let base = version(epoch, 8);
    for node in [first, second, third] {
        chain.say(node, Body::Equal { base: version(epoch, 6) });
    }
    assert_eq!(chain.serves(), [0; 0], "version 8 was committed");
    for node in [first, second, third] {
        chain.say(node, Body::Equal { base });
    }
    assert_eq!(chain.entry().base, base);
}

/// In a mode that acks before it syncs, rebooted members may have lost records.
#[test]
fn lossy_donors_wait_for_each_other_and_the_longest_log_wins() {
    let mut chain = Scripted::serving(3, Durability::EverySecond);
    let [first, second, third] = chain.chain[..] else { unreachable!() };
    let epoch = chain.epoch();
    for node in [first, second, third] {
        chain.restart(node);
    }
    chain.alive = BTreeSet::from([first, second]);
    chain.run(100);
    let report = |chain: &Scripted, seq, reach: &[u32]| MemberReport {
        reach: reach.iter().copied().map(member).collect(),
        ..chain.report_of(version(epoch, seq))
    };
    let (short, long) = (report(&chain, 6, &[third]), report(&chain, 8, &[]));
    chain.say(first, Body::Report(short.clone()));
    chain.outputs.clear();
    chain.run(3_000);
    assert_eq!(chain.aligns(), [], "the others may have more");
    chain.say(third, Body::Report(short));
    chain.say(second, Body::Report(long));
    chain.run(100);
    for node in [first, second, third] {
        chain.say(node, Body::Equal { base: version(epoch, 8) });
    }
    assert_eq!(chain.entry().base, version(epoch, 8));
}

/// The manager may end as soon as the map with the new epoch is durable, and that map does not show the loss.
#[test]
fn a_possible_loss_is_reported_once_before_its_activation_is_persisted() {
    let mut chain = Scripted::serving(2, Durability::Memory);
    let [first, second] = chain.chain[..] else { unreachable!() };
    let base = version(chain.epoch(), 8);
    chain.restart(first);
    chain.restart(second);
    chain.run(100);
    chain.report(first, base);
    chain.report(second, base);
    chain.is_disk_held = true;
    chain.outputs.clear();
    chain.say(first, Body::Equal { base });
    chain.say(second, Body::Equal { base });
    let epoch = chain.epoch();
    let loss = ManagerOutput::PossibleLoss { range: chain.range, epoch, base };
    assert_eq!((&chain.outputs[..], chain.held.is_some()), (&[loss.clone()][..], true));
    chain.persist();
    assert_eq!(chain.serves(), [first, second]);
    assert_eq!(chain.outputs.iter().filter(|output| **output == loss).count(), 1);
}

#[test]
fn a_new_range_waits_for_all_of_its_members() {
    let mut chain = Scripted::new(3, Durability::Sync);
    let [first, second, third] = chain.chain[..] else { unreachable!() };
    chain.alive.remove(&third);
    for node in [first, second] {
        chain.report(node, Version::ZERO);
    }
    chain.outputs.clear();
    chain.run(3_000);
    assert_eq!(chain.aligns(), []);
    chain.run(2_500);
    assert_eq!(chain.aligns().first().map(|(node, _)| *node), Some(first));
}

#[test]
fn chain_time_never_falls_below_the_entry_s() {
    let mut chain = Scripted::new(2, Durability::Sync);
    let [first, second] = chain.chain[..] else { unreachable!() };
    let late = MemberReport { time: TimeMs(500), ..chain.report_of(Version::ZERO) };
    chain.say(first, Body::Report(late));
    chain.report(second, Version::ZERO);
    chain.settle(Version::ZERO);
    assert_eq!(chain.entry().time, TimeMs(500));
    chain.next_epoch();
    chain.settle(Version::ZERO);
    assert_eq!(chain.entry().time, TimeMs(500));
}

#[test]
fn only_the_head_requests_an_epoch() {
    let mut chain = Scripted::serving(3, Durability::Sync);
    let before = chain.epoch();
    chain.say(chain.chain[1], Body::EpochWanted);
    assert_eq!(chain.epoch(), before);
    chain.say(chain.chain[0], Body::EpochWanted);
    assert!(chain.epoch() > before);
}

#[test]
fn a_suspicion_counts_between_neighbours_that_both_send_heartbeats() {
    let mut chain = Scripted::serving(4, Durability::Sync);
    let [first, second, third, fourth] = chain.chain[..] else { unreachable!() };
    chain.say(first, Body::Suspect { member: member(third) });
    assert!(chain.entry().is_active(), "not neighbours");
    chain.alive.remove(&fourth);
    chain.run(1_900);
    // The manager has not run since the last member fell silent.
    chain.now += 200;
    chain.say(first, Body::Suspect { member: member(second) });
    assert_eq!(chain.dropped(), [0; 0], "the chain is stalled by the silent member");
}

#[test]
fn an_old_suspicion_does_not_count_against_its_reporter() {
    let mut chain = Scripted::serving(4, Durability::Sync);
    let [first, second, third, _] = chain.chain[..] else { unreachable!() };
    chain.say(first, Body::Suspect { member: member(second) });
    chain.settle(Version::ZERO);
    chain.run(61_000);
    chain.say(first, Body::Suspect { member: member(third) });
    assert_eq!(chain.dropped(), [second, third]);
}

#[test]
fn the_next_epoch_is_above_every_promise_and_continues_the_newer_chain() {
    let mut chain = Scripted::serving(3, Durability::Sync);
    let [first, second, _] = chain.chain[..] else { unreachable!() };
    let [active, promised] = [5, 9].map(|epoch| Epoch::new(epoch).unwrap());
    let mut newest = chain.entry();
    newest.epoch = promised;
    newest.members.truncate(2);
    let members = newest.members.clone();
    newest.last_active = Some(LastActive { epoch: active, durability: Durability::Sync, members });
    chain.say_in(first, promised, Body::PromisedAbove(newest.clone()));
    assert!(chain.epoch() > promised, "{:?}", chain.epoch());
    assert_eq!(chain.entry().last_active, newest.last_active, "the newer chain");
    // An older chain has nothing that counts.
    let promised = Epoch::new(20).unwrap();
    let older = RangeEntry { epoch: promised, last_active: None, ..newest.clone() };
    chain.say_in(second, promised, Body::PromisedAbove(older));
    assert!(chain.epoch() > promised);
    assert_eq!(chain.entry().last_active, newest.last_active);
}

#[test]
fn a_front_end_that_asked_during_a_round_is_notified_of_its_end() {
    const FRONT_END: u32 = 77;
    let mut chain = Scripted::serving(3, Durability::Sync);
    chain.boots.resize(FRONT_END as usize + 1, 1);
    chain.is_disk_held = true;
    chain.next_epoch();
    // The committed map still has the active entry of the former epoch.
    chain.say(FRONT_END, Body::EntryWanted);
    chain.persist();
    chain.settle(Version::ZERO);
    assert!(chain.was_notified(FRONT_END, chain.epoch()));
}

#[test]
fn a_reboot_while_active_is_committed_begins_the_next_round_afterwards() {
    let mut chain = Scripted::serving(2, Durability::Sync);
    chain.next_epoch();
    let epoch = chain.epoch();
    for node in chain.chain.clone() {
        chain.report(node, Version::ZERO);
    }
    chain.is_disk_held = true;
    for node in chain.chain.clone() {
        chain.say(node, Body::Equal { base: Version::ZERO });
    }
    chain.restart(chain.chain[1]);
    chain.say_in(chain.chain[1], Epoch::default(), Body::Hello);
    chain.persist();
    let activated =
        |output: &ManagerOutput| matches!(output, ManagerOutput::Activated { epoch: of, .. } if *of == epoch);
    assert!(chain.outputs.iter().any(activated));
    assert!(chain.epoch() > epoch, "then the reboot counts");
}

#[test]
fn a_suspended_manager_first_reads_the_heartbeats_that_wait() {
    let mut chain = Scripted::serving(3, Durability::Sync);
    let before = chain.epoch();
    chain.now += 60_000;
    chain.run(3_000);
    assert_eq!(chain.epoch(), before);
}

#[test]
fn a_slow_member_stays_while_only_one_other_is_well() {
    let mut chain = Scripted::serving(3, Durability::Sync);
    let [_, second, third] = chain.chain[..] else { unreachable!() };
    chain.next_epoch();
    chain.say(second, Body::Slow { oldest_ms: 2_000 });
    chain.settle(Version::ZERO);
    chain.say(third, Body::Slow { oldest_ms: 2_000 });
    assert_eq!(chain.dropped(), [0; 0]);
    // Nor does slowness interrupt an activation.
    let mut chain = Scripted::serving(3, Durability::Sync);
    chain.next_epoch();
    for node in chain.chain.clone() {
        chain.report(node, Version::ZERO);
    }
    chain.is_disk_held = true;
    for node in chain.chain.clone() {
        chain.say(node, Body::Equal { base: Version::ZERO });
    }
    chain.say(second, Body::Slow { oldest_ms: 2_000 });
    assert_eq!(chain.dropped(), [0; 0]);
}

#[test]
fn a_hung_machine_leaves_the_rounds_that_have_its_report_only() {
    let mut chain = Scripted::serving(3, Durability::Sync);
    let [first, second, third] = chain.chain[..] else { unreachable!() };
    chain.next_epoch();
    chain.report(second, Version::ZERO);
    chain.say(second, Body::Slow { oldest_ms: 20_000 });
    for _ in 0..2 {
        for node in [first, third] {
            chain.report(node, Version::ZERO);
            chain.say(node, Body::Equal { base: Version::ZERO });
        }
    }
    assert_eq!(chain.serves(), [first, third]);
    // Without its report it may still serve the former epoch: the round waits as for any silent member.
    let mut chain = Scripted::serving(3, Durability::Sync);
    chain.next_epoch();
    chain.outputs.clear();
    chain.say(second, Body::Slow { oldest_ms: 20_000 });
    for node in [first, third] {
        chain.report(node, Version::ZERO);
    }
    assert_eq!(chain.aligns(), []);
}
