//! The event loop over the stores of a cluster.
use super::*;

/// Without a store's descriptor, its completions would wait for a timer of the cluster.
#[test]
fn completions_of_each_store_wake_the_loop() {
    let dir = tempfile::tempdir().expect("a directory");
    let (group, limits) = open(Service::Cluster, &dir);
    let (queue, shared) = (mio::Poll::new().expect("a queue"), Arc::new(ProcessState::new(1, 100)));
    let mut descriptors = EventLoop::new(queue, group, limits, shared, None).wake_fds();
    descriptors.sort_unstable();
    descriptors.dedup();
    assert_eq!(descriptors.len(), 3);
}
