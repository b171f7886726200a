//! Members whose disk hangs: they leave their chains while two others remain [replication.md §2.4].
//!
//! A disk that hangs reports no error, and its shard still sends heartbeats. Members acknowledge appended records, so
//! no neighbour suspects it, yet nothing commits.
use super::planner::Health;
use super::round::Round;
use super::{Consensus, DropReason, Manager, ManagerOutput, SUSPICION_LEAVES};
use crate::map::{ChainMember, RangeEntry};
use alloc::vec::Vec;
use fawn_types::{BootId, MemberId, RangeId};

impl<C: Consensus> Manager<C> {
    /// Handles a report that the shard's oldest write or sync has been in flight for `oldest_ms`. Shards repeat it, so
    /// chains whose other members recover later are checked again.
    pub(super) fn handle_slow(&mut self, (from, boot): (MemberId, BootId), oldest_ms: u64) {
        self.note_boot(from, boot);
        self.health.note_slow(from, oldest_ms);
        if self.health.is_hung(from) {
            self.leave_rounds(from);
        }
        let leaves = |entry: &&RangeEntry| {
            let is_well = |member: &ChainMember| {
                self.health.boot(entry.range, member.id) == Some(member.boot) && !self.health.is_slow(member.id)
            };
            let serves = entry.serving().any(|member| member.id == from && member.boot == boot);
            let others = entry.serving().filter(|member| member.id != from && is_well(member)).count();
            entry.is_active() && serves && others >= SUSPICION_LEAVES && !self.rounds.contains_key(&entry.range)
        };
        let ranges: Vec<RangeId> = self.draft.ranges.iter().filter(leaves).map(|entry| entry.range).collect();
        for range in ranges {
            self.hold_off(range, from);
            self.outputs.push_back(ManagerOutput::Dropping { range, member: from, reason: DropReason::Slow });
            self.reform(range, &[]);
        }
    }

    /// Takes the shard out of the rounds that have its report. A member that has not reported may still serve the
    /// previous epoch, so the round waits for its report as usual.
    fn leave_rounds(&mut self, id: MemberId) {
        let has_reported = |round: &Round| round.reports.contains_key(&id);
        let ranges: Vec<RangeId> =
            self.rounds.iter().filter(|(_, round)| has_reported(round)).map(|(range, _)| *range).collect();
        for range in ranges {
            if let Some(epoch) = self.draft.range(range).map(|entry| entry.epoch) {
                self.leave_out(id, range, epoch);
            }
        }
    }
}
