//! Host of the cluster manager: passes its frames in and out, persists its map, and logs its decisions.
use super::config::NodeConfig;
use super::peer_links::PeerLinks;
use fawn_chain::{Body, ClusterMap, DropReason, FileConsensus, Manager, ManagerOutput};
use fawn_types::{MonoMs, Now};

/// The manager of the cluster, hosted by one shard.
#[derive(Debug)]
pub(crate) struct ManagerHost {
    pub(crate) manager: Manager<FileConsensus>,
    pub(crate) wake_at: MonoMs,
    /// Proposals of epochs after which acked writes may be missing: none under `sync`.
    pub(crate) possible_losses: u64,
    /// Members dropped for a reason other than missing heartbeats.
    pub(crate) members_dropped: u64,
}

impl ManagerHost {
    /// Starts the manager with `map`: the last committed one, or the cluster's initial one.
    pub(crate) fn new(config: &NodeConfig, map: ClusterMap) -> Self {
        if map.durability != config.durability {
            let (was, will_be) = (map.durability, config.durability);
            tracing::warn!(
                ?was,
                ?will_be,
                "the durability of the cluster changes: in effect from each range's next epoch"
            );
        }
        let consensus = FileConsensus::default();
        let mut manager = Manager::new(config.id, config.boot, config.limits.manager, consensus, map);
        manager.set_durability(config.durability);
        Self { manager, wake_at: MonoMs(0), possible_losses: 0, members_dropped: 0 }
    }

    /// Whether frames with this body are for the manager.
    pub(crate) const fn takes(body: &Body<'_>) -> bool {
        let from_members = matches!(body, Body::Report(_) | Body::Equal { .. } | Body::CaughtUp { .. } | Body::Failed);
        let from_any_shard = matches!(body, Body::Hello | Body::Slow { .. });
        let questions = matches!(body, Body::EntryWanted | Body::BootsWanted { .. });
        let about_chains = matches!(body, Body::Suspect { .. } | Body::EpochWanted | Body::CannotAlign);
        let about_itself = matches!(body, Body::CannotSend { .. } | Body::PromisedAbove(_));
        from_members || from_any_shard || questions || about_chains || about_itself
    }

    pub(crate) fn handle_timeout(&mut self, now: Now) {
        if self.wake_at <= now.mono {
            self.manager.handle_timeout(now);
            self.wake_at = self.manager.next_timeout();
        }
    }

    /// Executes the manager's outputs; `persist` stores a map.
    pub(crate) fn drain(&mut self, links: &mut PeerLinks, mut persist: impl FnMut(u64, &[u8])) {
        while let Some(output) = self.manager.poll_output() {
            match output {
                ManagerOutput::Persist { revision, image } => persist(revision, &image),
                ManagerOutput::Send { to, frame } => links.send(to, &frame),
                ManagerOutput::BootRefused { member, boot } => {
                    tracing::error!(
                        %member,
                        boot = boot.0,
                        "another process uses this shard's identity: two processes must not run on copies of one directory"
                    );
                }
                ManagerOutput::Dropping { range, member, reason } => {
                    self.members_dropped += 1;
                    let what = match reason {
                        DropReason::Failed => "can no longer write; restart it once its disk is repaired",
                        DropReason::Suspected { .. } => "does not acknowledge; check the link to it and its load",
                        DropReason::Slow => "has a disk that completes no write; look at its disk",
                        DropReason::CannotSend => "cannot read its log; run `fawn check` on its data directory",
                        DropReason::SuspectsAll => "suspects all its successors; check its links and its load",
                    };
                    tracing::warn!(range = range.0, %member, ?reason, "a member leaves its chain: it {what}");
                }
                ManagerOutput::PossibleLoss { range, epoch, base } => {
                    self.possible_losses += 1;
                    tracing::error!(?range, ?epoch, ?base, "acknowledged writes may be missing in a proposed epoch");
                }
                ManagerOutput::Activated { range, epoch, base } => {
                    tracing::info!(?range, ?epoch, ?base, "range is active");
                }
            }
        }
    }
}
