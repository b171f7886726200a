//! Owns the host of the manager: its frames in and out, its map on this node's medium.
use super::config::NodeConfig;
use super::mail::Mail;
use fawn_chain::{Body, ClusterMap, FileConsensus, Frame, Manager, ManagerOutput};
use fawn_types::TimeMs;

/// The manager of the cluster, where this node hosts it.
#[derive(Debug)]
pub(super) struct ManagerHost {
    manager: Manager<FileConsensus>,
    wake_at: TimeMs,
    /// Activations that may have lost acked writes: never under `sync`.
    pub(super) possible_losses: u64,
}

impl ManagerHost {
    /// `map` as it was committed last, or the cluster's first one.
    pub(super) fn new(config: &NodeConfig, map: ClusterMap) -> Self {
        let manager = Manager::new(config.node, config.boot, config.limits.manager, FileConsensus::default(), map);
        Self { manager, wake_at: TimeMs(0), possible_losses: 0 }
    }

    pub(super) const fn map(&self) -> &ClusterMap {
        self.manager.map()
    }

    /// Whether the frame is for a manager, where one is hosted.
    pub(super) const fn takes(body: &Body<'_>) -> bool {
        matches!(body, Body::Hello | Body::EntryWanted | Body::Report(_) | Body::Equal { .. } | Body::CaughtUp { .. })
    }

    pub(super) fn handle_frame(&mut self, now: TimeMs, frame: &Frame<'_>) {
        self.manager.handle_frame(now, frame);
    }

    pub(super) fn handle_persisted(&mut self, now: TimeMs, revision: u64) {
        self.manager.handle_persisted(now, revision);
    }

    pub(super) fn handle_timeout(&mut self, now: TimeMs) {
        if self.wake_at <= now {
            self.manager.handle_timeout(now);
            self.wake_at = self.manager.next_timeout();
        }
    }

    pub(super) const fn next_timeout(&self) -> TimeMs {
        self.wake_at
    }

    /// Sends what is due; `persist` has a map put on the medium.
    pub(super) fn drain(&mut self, mail: &mut Mail, mut persist: impl FnMut(u64, &[u8])) {
        while let Some(output) = self.manager.poll_output() {
            match output {
                ManagerOutput::Persist { revision, image } => persist(revision, &image),
                ManagerOutput::Send { to, frame } => mail.send(to, frame),
                ManagerOutput::Activated { range, epoch, base, possible_loss } => {
                    tracing::info!(?range, ?epoch, ?base, "range is active");
                    if possible_loss {
                        self.possible_losses += 1;
                        tracing::error!(?range, ?epoch, ?base, "acknowledged writes may be missing");
                    }
                }
            }
        }
    }
}
