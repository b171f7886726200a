//! Chain time of each range as its tail judges it: bounds for the expiry of keys in clients' histories.
//!
//! A key with a time to live expires once its tail's chain time has reached the head's at the write plus that time.
//! Chain time is read from members after each iteration, so a bound is exact and not a matter of clocks' errors.
use fawn_chain::ClusterMap;
use fawn_node::cluster::MemberStatus;
use fawn_types::{Epoch, HashSecret, KeyRange, MemberId, RangeId, RingKey, TimeMs};

/// Chain time of one range.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TailTime {
    epoch: Epoch,
    /// The time of the newest epoch's tail.
    pub now: TimeMs,
    /// The latest time of any serving member so far: a head evaluates updates by its own, which is later than the
    /// tail's.
    pub latest: TimeMs,
    /// As `latest`, or the latest wall clock of a head: times to live may count from it if chain time is behind.
    pub latest_wall: TimeMs,
    /// The last head, which may have evaluated updates in the iteration that ended its role.
    led_by: Option<MemberId>,
    /// How often time fell: the members that knew it had ended, or were left out.
    pub falls: u64,
    /// The newest epoch's head, and its time.
    head: (Epoch, TimeMs),
    /// Number of processes that had ended when the epoch began.
    ended: u64,
    /// The member of the newest epoch's chain, if it has only one.
    single: Option<MemberId>,
}

/// Chain time of all ranges.
#[derive(Clone, Debug)]
pub struct ChainTimes {
    secret: HashSecret,
    ranges: Vec<(RangeId, KeyRange, TailTime)>,
}

impl ChainTimes {
    /// Times of a cluster with this map, of which no member has served.
    #[must_use]
    pub fn new(map: &ClusterMap) -> Self {
        let ranges = map.ranges.iter().map(|entry| (entry.range, entry.keys, TailTime::default()));
        Self { secret: map.secret, ranges: ranges.collect() }
    }

    /// Records the chain time of a serving or failed member of shard `id` after its iteration.
    /// `wall` is its wall clock, and `ended` the number of processes with chain members that have ended.
    ///
    /// # Errors
    /// **chain-time-grows**: a tail's time fell although no process has ended that could have known it.
    pub fn note(&mut self, id: MemberId, member: &MemberStatus, wall: TimeMs, ended: u64) -> Result<(), String> {
        let MemberStatus { range, epoch, phase, time, time_began, .. } = *member;
        let Some((_, _, tail)) = self.ranges.iter_mut().find(|(of, ..)| *of == range) else { return Ok(()) };
        let is_head = matches!(phase, "head" | "single");
        if is_head || tail.led_by == Some(id) {
            tail.latest_wall = tail.latest_wall.max(wall);
        }
        tail.latest_wall = tail.latest_wall.max(time);
        tail.led_by = if is_head { Some(id) } else { tail.led_by };
        if phase == "failed" {
            // A single member whose disk failed still serves reads, which advance its time, until its epoch ends.
            if tail.single == Some(id) && epoch == tail.epoch && time > tail.now {
                (tail.now, tail.latest, tail.head.1) = (time, tail.latest.max(time), time);
            }
            return Ok(());
        }
        tail.latest = tail.latest.max(time);
        // One iteration may begin an epoch, serve reads at its first time, and advance the time beyond the last epoch's.
        let first_of = |known: Epoch| if epoch > known { time_began } else { time };
        if is_head && epoch >= tail.head.0 {
            // An update that a head evaluated late may be committed in an epoch whose time is earlier.
            tail.falls += u64::from(first_of(tail.head.0) < tail.head.1);
            tail.head = (epoch, time);
        }
        if !matches!(phase, "tail" | "single") || epoch < tail.epoch {
            return Ok(());
        }
        let first = first_of(tail.epoch);
        if first < tail.now {
            if tail.ended == ended || tail.epoch == epoch {
                let (was, began) = (tail.now, tail.epoch);
                return Err(format!(
                    "chain-time-grows: {range:?} was at {was:?} in {began:?}, now {first:?} in {epoch:?}"
                ));
            }
            tail.falls += 1;
        }
        if epoch > tail.epoch {
            (tail.epoch, tail.ended) = (epoch, ended);
        }
        (tail.now, tail.single) = (time, (phase == "single").then_some(id));
        Ok(())
    }

    /// The times of all ranges now, in the order of [`ChainTimes::place`].
    #[must_use]
    pub fn all(&self) -> Vec<TailTime> {
        self.ranges.iter().map(|(.., tail)| *tail).collect()
    }

    /// Index of the range of `key`.
    #[must_use]
    pub fn place(&self, key: &[u8]) -> usize {
        let ring_key = RingKey::of(&self.secret, key);
        self.ranges.iter().position(|(_, keys, _)| keys.contains(&ring_key)).unwrap_or_default()
    }

    /// The time of the range of `key` now.
    #[must_use]
    pub fn of(&self, key: &[u8]) -> TailTime {
        self.ranges[self.place(key)].2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fawn_types::{Durability, Version};

    #[test]
    fn time_of_a_failed_member_counts_only_if_it_is_alone() {
        let range = RangeId(1);
        let member = |phase, epoch: u32, (began, time)| MemberStatus {
            range,
            epoch: Epoch::new(epoch).unwrap_or_default(),
            phase,
            durability: Durability::Sync,
            last: Version::ZERO,
            committed: Version::ZERO,
            time: TimeMs(time),
            time_began: TimeMs(began),
            keys: 0,
            copied: None,
            broken: None,
        };
        let mut times =
            ChainTimes { secret: HashSecret([1; 16]), ranges: vec![(range, KeyRange::ALL, TailTime::default())] };
        let mut note = |node, phase, epoch, time, ended| {
            let noted = times.note(MemberId(node), &member(phase, epoch, time), TimeMs(0), ended);
            assert_eq!(noted, Ok(()));
            let tail = times.all()[0];
            (tail.now.0, tail.latest.0, tail.falls)
        };
        assert_eq!(note(1, "single", 1, (100, 100), 0), (100, 100, 0));
        assert_eq!(note(1, "failed", 1, (300, 300), 0), (300, 300, 0), "a read has advanced it");
        assert_eq!(note(1, "single", 2, (200, 200), 1), (200, 300, 2), "the tail's time fell, and the head's");
        assert_eq!(note(1, "failed", 1, (400, 400), 1), (200, 300, 2), "of a former epoch");
        assert_eq!(note(2, "failed", 2, (250, 250), 1), (200, 300, 2), "of another member");
        assert_eq!(note(2, "tail", 3, (210, 210), 1), (210, 300, 2));
        assert_eq!(note(2, "failed", 3, (250, 250), 1), (210, 300, 2), "a head is ahead of its tail");
        assert_eq!(note(3, "tail", 4, (205, 400), 2), (400, 400, 3), "reads at 205 came before the time was seen");
        assert_eq!(note(3, "tail", 4, (205, 410), 2), (410, 410, 3), "the epoch's first time counts once");
    }
}
