//! Simulated network: byte streams between shards with delay, loss, duplication, splits, joins, partitions, late
//! frames.
//!
//! Frames are sent, bytes arrive: one frame may arrive in several pieces, and two frames in one piece, so the
//! receiver's stream decoder is tested too. A loss drops a whole frame, as a reconnecting link does. A reset drops
//! everything in flight and the part of a frame that the receiver had read, as a broken connection does.
use fawn_types::random::SplitMix64;
use fawn_types::{MemberId, NodeId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum bytes in flight on one link; further frames are lost, as on a full socket of a dead peer.
const LINK_BYTES_MAX: usize = 16 << 20;

/// Longest delay of a late frame, µs, and the maximum number of late frames in flight.
const LATE_US_MAX: u64 = 400_000;
const LATE_MAX: usize = 256;
/// Number of a link's last frames that may arrive again long after a crash of either end, and the longest delay, µs.
const STRAYS_MAX: usize = 4;
const STRAY_US_MAX: u64 = 5_000_000;

/// Faults of the network. Probabilities are in 1,024ths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetworkOptions {
    /// Shortest delay, µs.
    pub delay_us_min: u64,
    /// Longest delay, µs.
    pub delay_us_max: u64,
    /// Probability that a frame is lost.
    pub loss: u64,
    /// Probability that a frame arrives twice.
    pub duplication: u64,
    /// Probability that bytes are split at a random offset or joined with the following ones.
    pub cutting: u64,
    /// Probability that the link breaks when a frame is sent.
    pub reset: u64,
    /// Probability that a bit of the frame flips.
    pub damage: u64,
    /// Probability that a frame arrives much later, after newer frames, possibly after a reset.
    pub late: u64,
}

impl NetworkOptions {
    /// A network with some delay, but no faults.
    pub const KIND: Self = Self {
        delay_us_min: 20,
        delay_us_max: 200,
        loss: 0,
        duplication: 0,
        cutting: 512,
        reset: 0,
        damage: 0,
        late: 0,
    };
}

/// An event at the receiving end of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// Bytes arrived, in the order sent.
    Bytes(Vec<u8>),
    /// The link broke: discard the part of an incomplete frame.
    Reset,
}

#[derive(Default)]
struct NetworkLink {
    in_flight: VecDeque<(u64, Arrival)>,
    bytes: usize,
    last_us: u64,
    /// The last frames sent, oldest first.
    recent: VecDeque<Vec<u8>>,
}

/// All links.
pub struct Network {
    options: NetworkOptions,
    random: SplitMix64,
    links: BTreeMap<(MemberId, MemberId), NetworkLink>,
    cut: BTreeSet<(NodeId, NodeId)>,
    /// Nothing arrives before this time, µs; 0 if it is not known.
    quiet_until_us: u64,
    /// Late frames, ordered by their time of arrival.
    late: BTreeMap<(u64, u64), (MemberId, MemberId, Vec<u8>)>,
    /// Number of frames sent.
    pub frames_sent: u64,
    /// Number of frames lost, at random or by a cut.
    pub frames_lost: u64,
}

impl Network {
    /// A network without frames in flight.
    #[must_use]
    pub fn new(seed: u64, options: NetworkOptions) -> Self {
        let random = SplitMix64::new(seed);
        Self {
            options,
            random,
            links: BTreeMap::new(),
            cut: BTreeSet::new(),
            quiet_until_us: 0,
            late: BTreeMap::new(),
            frames_sent: 0,
            frames_lost: 0,
        }
    }

    /// Changes the network's faults from now on.
    pub fn set_options(&mut self, options: NetworkOptions) {
        self.options = options;
    }

    /// Loses frames from `from` to `to` until [`Network::heal`]; the other direction is not affected.
    pub fn cut(&mut self, from: NodeId, to: NodeId) {
        self.cut.insert((from, to));
    }

    /// Ends one cut.
    pub fn mend(&mut self, from: NodeId, to: NodeId) {
        self.cut.remove(&(from, to));
    }

    /// Ends every cut.
    pub fn heal(&mut self) {
        self.cut.clear();
    }

    /// Breaks the link between two shards, in both directions: one of them closed it.
    pub fn break_link(&mut self, one: MemberId, other: MemberId, now_us: u64) {
        self.quiet_until_us = 0;
        for way in [(one, other), (other, one)] {
            self.links.entry(way).or_default().break_off(now_us);
        }
    }

    /// Breaks every link of a crashed node. If frames may be late, some of the last ones arrive again later, when their
    /// sender may have forgotten them.
    pub fn drop_node(&mut self, node: NodeId, now_us: u64) {
        self.quiet_until_us = 0;
        let mut strays = Vec::new();
        for (&(from, to), link) in
            self.links.iter_mut().filter(|((from, to), _)| from.node() == node || to.node() == node)
        {
            link.break_off(now_us);
            for frame in link.recent.drain(..) {
                if self.options.late > 0 && self.random.chance(1, 2) {
                    strays.push((now_us + self.random.below(STRAY_US_MAX), from, to, frame));
                }
            }
        }
        for (at_us, from, to, frame) in strays {
            self.frames_sent += 1;
            self.hold(at_us, from, to, frame);
        }
    }

    /// Delivers the late frames to a shard now.
    pub fn hurry(&mut self, to: MemberId, now_us: u64) {
        self.quiet_until_us = 0;
        let hurried: Vec<_> = self.late.extract_if(.., |_, (_, at, _)| *at == to).collect();
        self.late.extend(hurried.into_iter().map(|((_, number), frame)| ((now_us, number), frame)));
    }

    /// Sends one frame.
    pub fn send(&mut self, now_us: u64, from: MemberId, to: MemberId, mut frame: Vec<u8>) {
        self.frames_sent += 1;
        self.quiet_until_us = 0;
        let options = self.options;
        let mut chance = |in_1024: u64| self.random.chance(in_1024, 1024);
        let (lost, twice, reset, cutting) =
            (chance(options.loss), chance(options.duplication), chance(options.reset), chance(options.cutting));
        if chance(options.damage) && !frame.is_empty() {
            let at = self.random.below(frame.len() as u64) as usize;
            frame[at] ^= 1 << self.random.below(8);
        }
        let delay = options.delay_us_min + self.random.below(options.delay_us_max - options.delay_us_min + 1);
        let link = self.links.entry((from, to)).or_default();
        if reset {
            link.break_off(now_us + delay);
        }
        if lost || self.cut.contains(&(from.node(), to.node())) || link.bytes + frame.len() > LINK_BYTES_MAX {
            self.frames_lost += 1;
            return;
        }
        if options.late > 0 {
            link.remember(&frame);
        }
        if options.late > 0 && self.random.chance(options.late, 1024) {
            let for_us = self.random.below(LATE_US_MAX);
            return self.hold(now_us + for_us, from, to, frame);
        }
        // One stream keeps its order: no frame overtakes another.
        link.last_us = link.last_us.max(now_us + delay);
        for _ in 0..=u8::from(twice) {
            link.push(&frame, cutting.then_some(&mut self.random));
        }
    }

    /// Sends one late frame: it arrives at `at_us`, regardless of other frames on the link.
    pub fn send_late(&mut self, at_us: u64, from: MemberId, to: MemberId, frame: Vec<u8>) {
        self.frames_sent += 1;
        if self.cut.contains(&(from.node(), to.node())) {
            self.frames_lost += 1;
            return;
        }
        self.hold(at_us, from, to, frame);
    }

    /// Holds the frame counted last until `at_us`. It outlives resets and crashes, so only epochs, boots and versions
    /// show its age.
    fn hold(&mut self, at_us: u64, from: MemberId, to: MemberId, frame: Vec<u8>) {
        self.quiet_until_us = 0;
        if self.late.len() < LATE_MAX {
            self.late.insert((at_us, self.frames_sent), (from, to, frame));
        } else {
            self.frames_lost += 1;
        }
    }

    /// When the next bytes arrive, if any are in flight.
    #[must_use]
    pub fn next_us(&self) -> Option<u64> {
        if self.quiet_until_us > 0 {
            return (self.quiet_until_us < u64::MAX).then_some(self.quiet_until_us);
        }
        self.earliest_us()
    }

    fn earliest_us(&self) -> Option<u64> {
        let late = self.late.first_key_value().map(|((at, _), _)| *at);
        self.links.values().filter_map(|link| link.in_flight.front().map(|(at, _)| *at)).chain(late).min()
    }

    /// The next arrival up to `now_us`: one piece of one link per call, links in the order of their shards.
    pub fn deliver(&mut self, now_us: u64) -> Option<(MemberId, MemberId, Arrival)> {
        if self.quiet_until_us > now_us {
            return None;
        }
        while let Some(entry) = self.late.first_entry().filter(|entry| entry.key().0 <= now_us) {
            let (from, to, frame) = entry.remove();
            let link = self.links.entry((from, to)).or_default();
            link.last_us = link.last_us.max(now_us);
            link.push(&frame, None);
        }
        let ready = |link: &NetworkLink| link.in_flight.front().is_some_and(|(at, _)| *at <= now_us);
        let Some((&(from, to), link)) = self.links.iter_mut().find(|(_, link)| ready(link)) else {
            self.quiet_until_us = self.earliest_us().unwrap_or(u64::MAX);
            return None;
        };
        let (_, arrival) = link.in_flight.pop_front()?;
        if let Arrival::Bytes(bytes) = &arrival {
            link.bytes -= bytes.len();
        }
        Some((from, to, arrival))
    }
}

impl NetworkLink {
    fn break_off(&mut self, at_us: u64) {
        self.in_flight.clear();
        self.bytes = 0;
        self.last_us = self.last_us.max(at_us);
        self.in_flight.push_back((self.last_us, Arrival::Reset));
    }

    fn remember(&mut self, frame: &[u8]) {
        let mut oldest =
            if self.recent.len() < STRAYS_MAX { None } else { self.recent.pop_front() }.unwrap_or_default();
        oldest.clear();
        oldest.extend_from_slice(frame);
        self.recent.push_back(oldest);
    }

    /// Appends a frame, possibly joined to the previous piece, possibly in two pieces.
    fn push(&mut self, frame: &[u8], cutting: Option<&mut SplitMix64>) {
        self.bytes += frame.len();
        let at = self.last_us;
        let Some(random) = cutting else {
            self.in_flight.push_back((at, Arrival::Bytes(frame.to_vec())));
            return;
        };
        let place = random.below(frame.len() as u64 + 1) as usize;
        let (head, tail) = frame.split_at(place);
        match self.in_flight.back_mut() {
            Some((_, Arrival::Bytes(bytes))) if random.chance(1, 2) => bytes.extend_from_slice(head),
            _ if !head.is_empty() => self.in_flight.push_back((at, Arrival::Bytes(head.to_vec()))),
            _ => {}
        }
        if !tail.is_empty() {
            self.last_us += random.below(50);
            self.in_flight.push_back((self.last_us, Arrival::Bytes(tail.to_vec())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fawn_types::ShardId;

    const A: MemberId = MemberId::new(NodeId(1), ShardId(0));
    const B: MemberId = MemberId::new(NodeId(2), ShardId(0));

    fn run(options: NetworkOptions, frames: u32) -> (Vec<u8>, usize, usize) {
        let mut network = Network::new(3, options);
        let (mut bytes, mut pieces, mut resets) = (Vec::new(), 0, 0);
        for i in 0..frames {
            network.send(u64::from(i), A, B, i.to_be_bytes().to_vec());
        }
        let mut last = 0;
        while let Some(at) = network.next_us() {
            assert!(at >= last, "arrival times do not decrease");
            last = at;
            match network.deliver(at) {
                Some((from, to, Arrival::Bytes(piece))) => {
                    assert_eq!((from, to), (A, B));
                    pieces += 1;
                    bytes.extend(piece);
                }
                Some((_, _, Arrival::Reset)) => resets += 1,
                None => unreachable!("next_us returned an arrival"),
            }
        }
        (bytes, pieces, resets)
    }

    #[test]
    fn frames_are_cut_and_joined_but_the_bytes_are_the_same() {
        let (bytes, pieces, resets) = run(NetworkOptions { cutting: 1024, ..NetworkOptions::KIND }, 500);
        let sent: Vec<u8> = (0..500_u32).flat_map(u32::to_be_bytes).collect();
        assert_eq!((bytes, resets), (sent, 0));
        assert_ne!(pieces, 500, "pieces are not frames");
    }

    #[test]
    fn loss_duplication_and_resets_happen() {
        let (bytes, ..) = run(NetworkOptions { loss: 512, cutting: 0, ..NetworkOptions::KIND }, 500);
        assert!((500..1500).contains(&bytes.len()), "about half is lost: {}", bytes.len());
        let (bytes, ..) = run(NetworkOptions { duplication: 1024, ..NetworkOptions::KIND }, 500);
        assert_eq!(bytes.len(), 4000);
        let (bytes, _, resets) = run(NetworkOptions { reset: 100, ..NetworkOptions::KIND }, 500);
        assert!(resets > 0 && bytes.len() < 2000);
    }

    #[test]
    fn a_late_frame_comes_whole_behind_others_and_after_a_reset() {
        let (bytes, _, resets) = run(NetworkOptions { late: 256, cutting: 0, ..NetworkOptions::KIND }, 200);
        let mut frames: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|four| u32::from_be_bytes(*four)).collect();
        assert!(!frames.is_sorted(), "some frames overtake others");
        frames.sort_unstable();
        assert_eq!((frames, resets), ((0..200).collect(), 0));

        let mut network = Network::new(1, NetworkOptions::KIND);
        network.send(0, A, B, vec![1]);
        network.send_late(1_000, A, B, vec![2]);
        network.drop_node(A.node(), 500);
        network.cut(A.node(), B.node());
        network.send_late(900, A, B, vec![3]);
        let arrivals = std::iter::from_fn(|| network.next_us().and_then(|at| Some((at, network.deliver(at)?.2))));
        assert_eq!(arrivals.collect::<Vec<_>>(), [(500, Arrival::Reset), (1_000, Arrival::Bytes(vec![2]))]);
        assert_eq!((network.frames_sent, network.frames_lost), (3, 1));
    }

    #[test]
    fn what_was_sent_last_may_come_again_after_a_crash_and_is_hurried() {
        let arrivals = |late| {
            let mut network = Network::new(1, NetworkOptions { late, cutting: 0, ..NetworkOptions::KIND });
            (0..50).for_each(|i| network.send(0, A, B, vec![i]));
            network.drop_node(A.node(), 0);
            network.hurry(A, 0);
            network.hurry(B, 900);
            let each = std::iter::from_fn(|| network.next_us().and_then(|at| Some((at, network.deliver(at)?.2))));
            each.filter_map(|(at, what)| if let Arrival::Bytes(bytes) = what { Some((at, bytes[0])) } else { None })
                .collect::<Vec<_>>()
        };
        assert_eq!(arrivals(0), []);
        let strays = arrivals(1);
        assert!(!strays.is_empty() && strays.iter().all(|(at, i)| *at == 900 && *i >= 46), "{strays:?}");
    }

    #[test]
    fn damage_flips_single_bits() {
        let (bytes, ..) = run(NetworkOptions { damage: 1024, cutting: 0, ..NetworkOptions::KIND }, 100);
        let sent = (0..100_u32).flat_map(u32::to_be_bytes);
        let flipped: u32 = bytes.iter().zip(sent).map(|(byte, sent)| (byte ^ sent).count_ones()).sum();
        assert_eq!((bytes.len(), flipped), (400, 100));
    }

    #[test]
    fn a_cut_is_one_way() {
        let mut network = Network::new(1, NetworkOptions::KIND);
        network.cut(A.node(), B.node());
        network.send(0, A, B, vec![1]);
        network.send(0, B, A, vec![2]);
        let at = network.next_us().unwrap();
        assert_eq!(network.deliver(at), Some((B, A, Arrival::Bytes(vec![2]))));
        assert_eq!((network.next_us(), network.frames_lost), (None, 1));
        network.heal();
        network.send(0, A, B, vec![1]);
        assert!(network.next_us().is_some());
    }
}
