//! Commits: records become readable, and replies to tagged updates leave.
use crate::replica::HostedMember;
use fawn_chain::Role;
use fawn_chain::completions::CompletedUpdate;
use fawn_ds::internals::Engine;
use fawn_flash::Device;
use fawn_types::{ClientTag, Version};

/// Commits all records through `through`. The member that replies to clients does so by `reply`; a reply without a tag
/// waits with its session.
pub(crate) fn handle_commit<D: Device>(
    engine: &mut Engine<D>,
    member: &mut HostedMember,
    through: Version,
    mut reply: impl FnMut(ClientTag, &CompletedUpdate),
) {
    engine.commit(member.id, through);
    let replies = matches!(member.replica.role(), Some(Role::Tail | Role::Single)) && member.replica.acknowledges();
    member.completions.commit(through, |tag, done| {
        if replies {
            reply(tag, done);
        }
    });
}
