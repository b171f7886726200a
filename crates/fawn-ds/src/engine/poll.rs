//! Completion handling: applies each finished I/O and reports events.
use super::fetch::ReadSpan;
use super::{Engine, Event, InFlight};
use core::time::Duration;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_flash::{AlignedBuf, Completion, Device, DeviceError, FileId};
use fawn_types::Now;

/// Polls between two computations of the page cache's budget.
const BALANCE_POLLS: u32 = 64;

impl<D: Device> Engine<D> {
    /// Reaps completed I/O, continues the work that waited for it, and reports events. Never blocks.
    pub fn poll(&mut self, now: Now, events: &mut Vec<Event>) {
        self.now = now;
        let mut reaped = core::mem::take(&mut self.completions);
        self.device.reap(&mut reaped);
        self.digest(&mut reaped, events);
        self.completions = reaped;
    }

    /// As [`Engine::poll`], but first blocks for a completion if any I/O is in flight. It does not block if there is something to
    /// report, or if cleaning or sorting has a step that is due.
    pub fn wait(&mut self, now: Now, events: &mut Vec<Event>) {
        self.wait_at_most(now, None, events);
    }

    /// As [`Engine::wait`], but no longer than `limit`, if there is one.
    pub fn wait_at_most(&mut self, now: Now, limit: Option<Duration>, events: &mut Vec<Event>) {
        self.now = now;
        let mut reaped = core::mem::take(&mut self.completions);
        let is_due = self.progressed || self.sorted.has_next_step() || self.has_cleaning_step();
        if is_due || self.has_events() {
            self.device.reap(&mut reaped);
        } else {
            self.device.wait_at_most(limit, &mut reaped);
        }
        self.digest(&mut reaped, events);
        self.completions = reaped;
    }

    fn digest(&mut self, reaped: &mut std::collections::VecDeque<Completion>, events: &mut Vec<Event>) {
        events.append(&mut self.held_events);
        for completion in reaped.drain(..) {
            self.complete(completion, events);
        }
        self.complete_stale(events);
        self.advance_flush();
        self.clean();
        self.advance_sort();
        self.scrub();
        self.maintain_segments();
        self.advance_checkpoint();
        self.sync_for_waiting();
        self.tend_copies();
        self.tend_result_copies();
        self.certify_when_due();
        self.record_end_when_idle();
        self.pump_verifications();
        self.report_space(events);
        self.device.kick();
        if core::mem::take(&mut self.progressed) {
            events.push(Event::Progress);
        }
        if self.poisoned.is_some() && !core::mem::replace(&mut self.poison_reported, true) {
            events.push(Event::Poisoned);
        }
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(BALANCE_POLLS) {
            self.balance_memory();
        }
    }

    fn complete(&mut self, completion: Completion, events: &mut Vec<Event>) {
        let Completion { token, result, buf } = completion;
        self.completed += 1;
        let in_flight = self.untrack_write(token);
        match in_flight {
            InFlight::Lookup { mut plan, user } => {
                plan.0.result = Some(self.take_read(&plan.0.span, result, buf));
                events.push(Event::Lookup { plan, user });
            }
            InFlight::Verify { id, span, rejected } => {
                let read = self.take_read(&span, result, buf);
                self.verified(id, rejected, read);
            }
            InFlight::Clean { slot, from, len } => self.clean_read(slot, from, len, Completion { token, result, buf }),
            InFlight::Scrub { queued, len } => self.scrub_read(queued, len, Completion { token, result, buf }),
            InFlight::SortRead { job, run, source, range } => {
                if self.sorted.awaits_read(job, source) {
                    self.sort_read(source, range, result, buf);
                } else {
                    self.left_sort_read_ended(run, range.len_bytes, &result, buf);
                }
            }
            InFlight::SortWrite => self.sort_written(Completion { token, result, buf }),
            write => {
                if let Some(buf) = buf {
                    self.pool.give(buf);
                }
                match result {
                    Ok(_) => self.written(&write),
                    Err(error) => {
                        self.poison(&error);
                    }
                }
            }
        }
    }

    fn written(&mut self, write: &InFlight) {
        if self.poisoned.is_some() {
            // After a failure no watermark advances: the contents of the disk are unknown.
            return;
        }
        match write {
            InFlight::Write { stream, number } => self.write_done(*stream, *number),
            InFlight::Sync { stream } => self.sync_done(*stream),
            InFlight::SegmentHeader { stream } => self.header_written(*stream),
            InFlight::SegmentName { stream } => self.name_synced(*stream),
            InFlight::Manifest => self.manifest_written(),
            InFlight::ManifestName => self.manifest_named(),
            InFlight::Checkpoint => self.checkpoint_written(),
            InFlight::CheckpointSync => self.checkpoint_synced(),
            InFlight::CheckpointName => self.checkpoint_name_synced(),
            InFlight::SortWrite => unreachable!("a job takes its own writes"),
            InFlight::Lookup { .. }
            | InFlight::Verify { .. }
            | InFlight::Clean { .. }
            | InFlight::Scrub { .. }
            | InFlight::SortRead { .. } => {
                unreachable!("reads are not writes")
            }
        }
    }

    /// Unpins the segment or run, caches the final whole pages, returns the bytes.
    fn take_read(
        &mut self,
        span: &ReadSpan,
        result: Result<usize, DeviceError>,
        buf: Option<AlignedBuf>,
    ) -> Result<AlignedBuf, DeviceError> {
        // A store that is only read has frames of the segment in the tail file alone.
        let tail = if span.run().is_some() { None } else { self.left_tail.of(self.segments.expect(span.slot).uuid) };
        let file = match span.run() {
            Some(run) => self.unpin_run(run),
            None => self.unpin_segment(span),
        };
        self.read_bytes_in_flight -= span.len();
        result?;
        let Some(mut buf) = buf else { unreachable!("a read brings its buffer back") };
        if let Some(tail) = tail {
            tail.lay_over(span.from.into(), &mut buf);
        }
        if buf.len() <= super::fetch::GATHER_BYTES_MAX {
            for (i, page) in buf.chunks_exact(PAGE_BYTES).enumerate() {
                let at = span.from + (i * PAGE_BYTES) as u32;
                if at + PAGE_BYTES as u32 <= span.cacheable_to {
                    self.cache.insert(file, at / PAGE_BYTES as u32, page);
                }
            }
        }
        Ok(buf)
    }

    fn unpin_segment(&mut self, span: &ReadSpan) -> FileId {
        let segment = self.segments.expect_mut(span.slot);
        assert_eq!(segment.sequence, span.sequence, "a pinned segment stays");
        segment.pins -= 1;
        let file = segment.file;
        self.examine_if_dead(span.slot);
        file
    }

    /// Completes reads that were not submitted because their segment is gone: the lookup starts over.
    fn complete_stale(&mut self, events: &mut Vec<Event>) {
        while let Some(stale) = self.stale.pop_front() {
            match stale {
                InFlight::Lookup { plan, user } => events.push(Event::Lookup { plan, user }),
                InFlight::Verify { id, .. } => {
                    let read = self.verify_reads.end(id);
                    if self.ranges[read.at].number == read.number {
                        self.verify_queue.push_back((read.at, read.name));
                    }
                }
                _ => unreachable!("only reads go stale"),
            }
        }
    }

    /// Does up to `budget` units of maintenance now; later polls do the rest.
    pub fn step(&mut self, budget: usize) {
        for _ in 0..budget {
            let is_cleaning = self.drops.has_work() || self.cleaner.has_work();
            let is_verifying = !self.verify_queue.is_empty() || self.overlay.deferred() > 0;
            if !is_verifying && !is_cleaning && !self.checkpoints.has_work() && !self.sorted.has_work() {
                return;
            }
            self.pump_verifications();
            self.clean();
            self.advance_sort();
            self.maintain_segments();
            self.advance_checkpoint();
        }
        self.device.kick();
    }
}
