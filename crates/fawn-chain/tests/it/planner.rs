//! The planner's next change of one chain, condition by condition.
use crate::member;
use fawn_chain::manager::planner::{Change, Health, next_change};
use fawn_chain::map::{ChainMember, ChainState, MemberRole, RangeEntry};
use fawn_types::{BootId, Durability, KeyRange, MemberId, RangeId};

/// Three machines in their second boots.
#[derive(Clone, Copy, Default)]
struct Facts {
    caught_up: bool,
    is_held_off: bool,
    is_stalled: bool,
}

impl Health for Facts {
    fn boot(&self, _: RangeId, node: MemberId) -> Option<BootId> {
        Some(BootId::new(2, node.node().0))
    }

    fn caught_up(&self, _: RangeId, _: MemberId) -> bool {
        self.caught_up
    }

    fn is_held_off(&self, _: RangeId, _: MemberId) -> bool {
        self.is_held_off
    }

    fn is_stalled(&self, _: RangeId) -> bool {
        self.is_stalled
    }
}

/// An active chain of two, with a third machine that is syncing in `boot`.
fn chain_of_two(boot: u32) -> RangeEntry {
    let member = |node, opens, role| ChainMember { id: member(node), boot: BootId::new(opens, node), role };
    let members = vec![
        member(1, 2, MemberRole::Serving),
        member(2, 2, MemberRole::Serving),
        member(3, boot, MemberRole::Syncing),
    ];
    let keys = KeyRange::ALL;
    RangeEntry { members, state: ChainState::Active, ..RangeEntry::new(RangeId(1), keys, &[]) }
}

fn change(entry: &RangeEntry, facts: Facts) -> Option<Change> {
    next_change(entry, Durability::default(), &[member(1), member(2), member(3)], &facts)
}

#[test]
fn a_hold_off_ends_early_for_a_chain_that_is_short_or_stalled() {
    let held = Facts { caught_up: true, is_held_off: true, is_stalled: false };
    let promotion = Some(Change::Reform { range: RangeId(1), promote: vec![member(3)] });
    assert_eq!(change(&chain_of_two(2), held), None);
    assert_eq!(change(&chain_of_two(2), Facts { is_held_off: false, ..held }), promotion);
    assert_eq!(change(&chain_of_two(2), Facts { is_stalled: true, ..held }), promotion);
    let short = RangeEntry { copies_min: 3, ..chain_of_two(2) };
    assert_eq!(change(&short, held), promotion, "it takes no writes");
}

#[test]
fn a_member_is_promoted_in_the_boot_that_caught_up() {
    let facts = Facts { caught_up: true, ..Facts::default() };
    let added = Change::AddSyncing { range: RangeId(1), member: member(3), boot: BootId::new(2, 3) };
    assert_eq!(change(&chain_of_two(1), facts), Some(added));
}
