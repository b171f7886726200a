//! The event loop over the stores of a cluster.
use super::*;
use crate::config::{SettingFlags, Settings};
use crate::server::service::{GroupConfig, Service};

/// Without a store's descriptor, its completions would wait for a timer of the cluster.
#[test]
fn completions_of_each_store_wake_the_loop() {
    let dir = tempfile::tempdir().expect("a directory");
    let flags = SettingFlags { dir: Some(dir.path().to_owned()), ..SettingFlags::default() };
    let settings = Settings::resolve(flags, SettingFlags::default()).expect("settings");
    let limits = ShardLimits::of(&settings);
    let config =
        GroupConfig { settings, placement: Placement::ALONE, secret: None, server_info: ServerInfo::default() };
    let group = Service::Cluster.open(config, clock::now()).expect("three stores");
    let (queue, shared) = (mio::Poll::new().expect("a queue"), Arc::new(ProcessState::new(1, 100)));
    let mut descriptors = EventLoop::new(queue, group, limits, shared, None).wake_fds();
    descriptors.sort_unstable();
    descriptors.dedup();
    assert_eq!(descriptors.len(), 3);
}
