//! Full resyncs of a range: one member of a chain at a time, so that the others keep their old copies.
use crate::cluster::{Bug, TestCluster};
use fawn_types::Durability;

#[test]
fn one_member_of_a_chain_is_copied_at_a_time() {
    let mut cluster = TestCluster::new(5, Durability::Sync, Bug::None);
    cluster.retained_max = 2;
    cluster.run(600);
    let head = cluster.head().expect("a new cluster has a head");
    (0..5).for_each(|_| assert!(cluster.put(head).is_some()));
    cluster.run(100);
    for member in [4, 5] {
        cluster.crash(member, 0);
    }
    cluster.run(6_000);
    let head = cluster.head().expect("three members continue");
    (0..20).for_each(|_| assert!(cluster.put(head).is_some()));
    cluster.run(100);
    for member in [4, 5] {
        cluster.restart(member);
    }
    cluster.is_rotten = true;
    cluster.run(10_000);
    let copying =
        |cluster: &TestCluster| [4, 5].into_iter().filter(|member| cluster.machines[member].log.copy.is_some()).count();
    assert_eq!(copying(&cluster), 1, "one member has discarded its copy, the other waits with its old one");
    cluster.is_rotten = false;
    cluster.run(10_000);
    assert_eq!(copying(&cluster), 0);
    assert!(cluster.healed() && cluster.copies == 2, "{} copies were made", cluster.copies);
}
