//! Table of boots: the present process of each shard, as the manager knows it, and as heads know it from the manager.
//!
//! A head accepts updates from the boots in its table only. The first update of another process of a shard ends the
//! session of the former one, whose later updates are dropped: two processes on copies of one directory must not
//! alternate. The map does not suffice: it names the boots of chain members only, and a shard holds the present entries
//! of its own ranges only.
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use fawn_types::{BootId, BootOrder, MemberId};

/// Revision of no table.
pub const NO_TABLE: u64 = 0;

/// Boots from the manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BootsMessage {
    /// Revision that these boots change; [`NO_TABLE`]: these are all boots.
    pub changes: u64,
    /// Revision of the table with them.
    pub revision: u64,
    /// Shards in ascending order, each with its present boot.
    pub boots: Vec<(MemberId, BootId)>,
}

/// The manager's table: the boots that it has admitted since its start.
#[derive(Clone, Debug)]
pub struct BootTable {
    /// Names this content. Never [`NO_TABLE`]; tables of two boots of a manager practically never share one.
    revision: u64,
    boots: BTreeMap<MemberId, BootId>,
    /// Shards whose boots have changed since this revision.
    changed: Vec<MemberId>,
    changed_since: u64,
}

impl BootTable {
    /// The table of a manager in this boot.
    #[must_use]
    pub fn new(manager: BootId) -> Self {
        let revision = manager.0.max(1);
        Self { revision, boots: BTreeMap::new(), changed: Vec::new(), changed_since: revision }
    }

    /// The manager has admitted this boot.
    pub fn note(&mut self, id: MemberId, boot: BootId) {
        if self.boots.insert(id, boot) != Some(boot) {
            self.revision = self.revision.checked_add(1).unwrap_or(1);
            self.changed.push(id);
        }
    }

    /// The present revision.
    #[must_use]
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// All boots.
    #[must_use]
    pub fn whole(&self) -> BootsMessage {
        let boots = self.boots.iter().map(|(id, boot)| (*id, *boot)).collect();
        BootsMessage { changes: NO_TABLE, revision: self.revision, boots }
    }

    /// The boots that have changed since the last call, if any has.
    pub fn take_changes(&mut self) -> Option<BootsMessage> {
        let mut changed = core::mem::take(&mut self.changed);
        changed.sort_unstable();
        changed.dedup();
        let boots: Vec<_> = changed.iter().filter_map(|id| Some((*id, *self.boots.get(id)?))).collect();
        let changes = core::mem::replace(&mut self.changed_since, self.revision);
        (!boots.is_empty()).then_some(BootsMessage { changes, revision: self.revision, boots })
    }
}

/// A head's table.
#[derive(Clone, Debug, Default)]
pub struct KnownBoots {
    /// The newest boot of the manager that sent boots.
    manager: BootId,
    /// Revision of the manager's table that this one contains.
    held: u64,
    /// At most one for each shard that the manager has ever admitted.
    boots: BTreeMap<MemberId, BootId>,
}

impl KnownBoots {
    /// Revision of the manager's table that this one contains; [`NO_TABLE`] before the first one.
    #[must_use]
    pub const fn held(&self) -> u64 {
        self.held
    }

    /// Takes boots from the manager in this boot; those of its former boots are late.
    ///
    /// A restarted manager does not know all shards yet, so shards that its table lacks stay. A late message may have an
    /// earlier open of a store, which is left out.
    pub fn update(&mut self, manager: BootId, message: &BootsMessage) {
        if manager.against(self.manager) == BootOrder::Older {
            return;
        }
        self.manager = manager;
        if [NO_TABLE, self.held].contains(&message.changes) {
            self.held = message.revision;
        }
        for &(id, boot) in &message.boots {
            let known = self.boots.entry(id).or_insert(boot);
            if boot.against(*known) != BootOrder::Older {
                *known = boot;
            }
        }
    }

    /// Whether this is the shard's present boot.
    #[must_use]
    pub fn is_present(&self, id: MemberId, boot: BootId) -> bool {
        self.boots.get(&id) == Some(&boot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fawn_types::{NodeId, ShardId};

    const A: MemberId = MemberId::new(NodeId(1), ShardId(0));
    const B: MemberId = MemberId::new(NodeId(2), ShardId(3));

    fn boot(opens: u32, random: u32) -> BootId {
        BootId::new(opens, random)
    }

    /// The boot of a manager with so many opens.
    fn manager(opens: u32) -> BootId {
        boot(opens, 5)
    }

    /// The table of that manager, which has admitted these boots, one after the other.
    fn table(opens: u32, boots: &[(MemberId, BootId)]) -> BootTable {
        let mut table = BootTable::new(manager(opens));
        boots.iter().for_each(|(id, boot)| table.note(*id, *boot));
        table
    }

    #[test]
    fn a_head_knows_one_boot_of_a_shard() {
        let [first, twin, next] = [boot(7, 1), boot(7, 2), boot(8, 1)];
        let (mut of_manager, mut head) = (table(1, &[(A, first)]), KnownBoots::default());
        let known = |head: &KnownBoots| [first, twin, next].map(|boot| head.is_present(A, boot));
        assert_eq!(known(&head), [false; 3], "no table yet");
        let former = of_manager.whole();
        head.update(manager(1), &former);
        assert_eq!((known(&head), head.held()), ([true, false, false], of_manager.revision()));
        of_manager.note(A, first);
        assert_eq!(head.held(), of_manager.revision(), "the same boot is no change");
        of_manager.note(A, next);
        head.update(manager(1), &of_manager.whole());
        head.update(manager(1), &former);
        assert_eq!(known(&head), [false, false, true], "a late message changes no boot");
    }

    /// A head that holds the revision before them needs no table after changes; one that lacks some does.
    #[test]
    fn changes_follow_a_revision() {
        let mut of_manager = table(1, &[(B, boot(1, 1)), (A, boot(4, 1)), (B, boot(2, 1))]);
        let first = of_manager.take_changes().unwrap();
        assert_eq!(first.boots, [(A, boot(4, 1)), (B, boot(2, 1))], "each shard once");
        assert_eq!(of_manager.take_changes(), None);
        let [mut head, mut other] = [(); 2].map(|()| KnownBoots::default());
        head.update(manager(1), &of_manager.whole());
        other.update(manager(1), &first);
        assert_eq!((head.held(), other.held()), (of_manager.revision(), NO_TABLE), "changes are no table");
        of_manager.note(A, boot(5, 1));
        let second = of_manager.take_changes().unwrap();
        for head in [&mut head, &mut other] {
            head.update(manager(1), &second);
        }
        assert_eq!((head.held(), other.held()), (of_manager.revision(), NO_TABLE));
        assert!(head.is_present(A, boot(5, 1)) && other.is_present(A, boot(5, 1)));
    }

    /// A restarted manager does not know all shards yet. Of two processes with equally many opens it may admit the other
    /// one.
    #[test]
    fn a_head_keeps_what_a_restarted_manager_lacks() {
        let (mut former, mut later) = (table(1, &[(A, boot(7, 1)), (B, boot(3, 1))]), table(2, &[(A, boot(7, 2))]));
        let mut head = KnownBoots::default();
        head.update(manager(1), &former.whole());
        head.update(manager(2), &later.whole());
        head.update(manager(1), &former.take_changes().unwrap());
        assert!(
            head.is_present(A, boot(7, 2)) && head.is_present(B, boot(3, 1)),
            "changes of a former manager are late"
        );
        later.note(B, boot(2, 1));
        head.update(manager(2), &later.whole());
        assert!(head.is_present(B, boot(3, 1)), "an earlier open");
    }
}
