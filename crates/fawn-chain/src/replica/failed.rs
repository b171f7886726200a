//! Owns a member whose boot can keep nothing any more: it says so until it is replaced, and lets go of its epoch.
//!
//! A medium that failed once is not believed again before a restart has looked at it. Such a member neither acknowledges
//! nor commits; a tail goes on answering reads of what is committed until the manager asks for another epoch, which it
//! promises in memory alone: a restart is another boot, and that one begins with nothing to serve.
use super::{Output, Phase, Refusal, Replica};
use crate::map::{ChainState, RangeEntry};
use crate::message::{Body, Frame};
use fawn_types::Now;

/// How often it says so.
const SAY_MS: u64 = 200;

impl Replica {
    /// The node cannot keep what this member appends, in this boot. Idempotent.
    pub fn fail(&mut self, now: Now) {
        self.now = now;
        if self.has_failed {
            return;
        }
        self.has_failed = true;
        self.next = None;
        self.links.clear();
        self.ack_due = false;
        // Nothing of what it was about to do or to claim may go out any more.
        self.outputs.retain(|output| matches!(output, Output::Stopped | Output::Alarm(_)));
        if !matches!(self.phase, Phase::Serving { .. }) {
            self.phase = Phase::Idle;
        }
        self.say_failed();
    }

    /// Whether it has failed.
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        self.has_failed
    }

    pub(super) fn handle_frame_failed(&mut self, frame: &Frame<'_>) {
        match &frame.body {
            Body::Entry(entry) | Body::Align { entry, .. } => self.let_go(entry),
            Body::EntryWanted => self.send_entry(frame.header.from),
            _ => {}
        }
    }

    /// Another epoch, asked for or begun without it: the old one is over.
    fn let_go(&mut self, entry: &RangeEntry) {
        if entry.epoch > self.promised {
            self.stop();
            self.promised = entry.epoch;
            self.entry = Some(entry.clone());
        }
        if entry.epoch == self.promised && entry.state == ChainState::Preparing {
            self.say_failed();
        }
    }

    pub(super) fn say_failed(&mut self) {
        self.send_manager(Body::Failed);
        self.wake_in(SAY_MS);
    }

    /// A head that has failed refuses so that its clients ask again: a chain without it is on its way.
    pub(super) const fn refusal_if_failed(&self) -> Option<Refusal> {
        if self.has_failed { Some(Refusal::NotServing) } else { None }
    }
}
