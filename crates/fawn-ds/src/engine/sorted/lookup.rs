//! Lookups in runs: the newest run first, each answered by filter, page cache, or a plan of one page read.
use super::super::fetch::{FetchResume, ReadSpan};
use super::super::{Engine, EngineError};
use super::{ListedRun, engine_error};
use crate::format::record::RecordKind;
use crate::format::run::Space;
use crate::sorted::{RunLookup, RunPlan};
use core::ops::Range;
use fawn_flash::Device;
use fawn_flash::buffer::PAGE_BYTES;
use fawn_types::{RingKey, Version};
use smallvec::SmallVec;

/// The runs of which a lookup has searched pages: it does not search them again when it continues after a read.
#[derive(Debug, Default)]
pub(crate) struct RunsPassed {
    /// Runs without a record of the key that counts.
    passed: SmallVec<[u64; 4]>,
    /// The lookup in a run that waits for a page.
    waiting: Option<(u64, RunPlan)>,
}

/// The newest record of a key in the runs.
pub(crate) enum RunHit {
    /// No run has one, or the newest is a tombstone.
    Absent,
    /// A put, in the scratch buffer.
    Put {
        /// Its value's bytes there.
        value: Range<usize>,
        /// Client flags.
        flags: u32,
        /// Expiry, ms since the Unix epoch; 0: never.
        expires_at_ms: u64,
        /// Its version.
        version: Version,
    },
    /// A page must be read.
    Read(ReadSpan),
}

/// Result of a search in pages of one run.
enum InRun {
    None,
    Hit(RunHit),
}

impl<D: Device> Engine<D> {
    /// Searches the runs for a key that the log does not have.
    pub(in crate::engine) fn find_in_runs(
        &mut self,
        at: usize,
        key: &[u8],
        progress: &mut RunsPassed,
    ) -> Result<RunHit, EngineError> {
        if self.sorted.runs.is_empty() {
            return Ok(RunHit::Absent);
        }
        let ring_key = RingKey::of(&self.secret, key);
        let places: SmallVec<[usize; 24]> = self.sorted.runs.covering(&ring_key).collect();
        for place in places {
            let ListedRun { id, run, .. } = &self.sorted.runs[place];
            let id = *id;
            if progress.passed.contains(&id) {
                continue;
            }
            let plan = match progress.waiting.take_if(|(waiting, _)| *waiting == id) {
                Some((_, plan)) => plan,
                None => match run.lookup(Space::KEYS, ring_key, key) {
                    RunLookup::Read(plan) => plan,
                    RunLookup::Absent | RunLookup::Found(_) => continue,
                },
            };
            match self.find_in_run(at, place, plan, progress)? {
                InRun::None => progress.passed.push(id),
                InRun::Hit(hit) => return Ok(hit),
            }
        }
        Ok(RunHit::Absent)
    }

    /// Continues the lookup in the run at this place.
    fn find_in_run(
        &mut self,
        at: usize,
        place: usize,
        plan: RunPlan,
        progress: &mut RunsPassed,
    ) -> Result<InRun, EngineError> {
        let mut next = Some(plan);
        while let Some(plan) = next.take() {
            let offset = plan.offset();
            if !self.load_run_page(place, offset) {
                let id = self.sorted.runs[place].id;
                let span = ReadSpan::of_run(id, offset, progress.waiting.is_some());
                progress.waiting = Some((id, plan));
                return Ok(InRun::Hit(RunHit::Read(span)));
            }
            let page = core::mem::take(&mut self.scratch);
            let found = self.judge_run_page(at, place, plan, &page);
            self.scratch = page;
            match found? {
                PageJudgement::None => return Ok(InRun::None),
                PageJudgement::Hit(hit) => return Ok(InRun::Hit(hit)),
                PageJudgement::Next(plan) => next = Some(plan),
            }
        }
        Ok(InRun::None)
    }

    fn judge_run_page(
        &mut self,
        at: usize,
        place: usize,
        plan: RunPlan,
        page: &[u8],
    ) -> Result<PageJudgement, EngineError> {
        let listed = &self.sorted.runs[place];
        let (file, number) = (listed.file, (plan.offset() / PAGE_BYTES as u64) as u32);
        match listed.run.resume(plan, page) {
            Ok(RunLookup::Absent) => Ok(PageJudgement::None),
            Ok(RunLookup::Read(plan)) => Ok(PageJudgement::Next(plan)),
            // Records of a dropped number, or cleared ones, hide nothing.
            Ok(RunLookup::Found(record)) if !self.counts_for(at, &record) => Ok(PageJudgement::None),
            Ok(RunLookup::Found(record)) if record.kind == RecordKind::Tombstone => {
                Ok(PageJudgement::Hit(RunHit::Absent))
            }
            Ok(RunLookup::Found(record)) => {
                let from = record.value.as_ptr() as usize - page.as_ptr() as usize;
                let value = from..from + record.value.len();
                let (flags, expires_at_ms, version) = (record.flags, record.expires_at_ms, record.version);
                Ok(PageJudgement::Hit(RunHit::Put { value, flags, expires_at_ms, version }))
            }
            Err(error) => {
                // Only this one read may have been wrong.
                self.set_resume(None);
                self.cache.invalidate_pages(file, number..number + 1);
                Err(engine_error(error))
            }
        }
    }

    /// Copies a page of the run at this place to the scratch buffer, from the read just resumed or from the page cache.
    fn load_run_page(&mut self, place: usize, offset: u64) -> bool {
        let ListedRun { id, file, .. } = self.sorted.runs[place];
        if let Some(FetchResume { span, buf }) = &self.resume
            && span.run() == Some(id)
            && u64::from(span.from) == offset
        {
            self.scratch.clear();
            self.scratch.extend_from_slice(&buf[..PAGE_BYTES]);
            return true;
        }
        let Some(page) = self.cache.get(file, (offset / PAGE_BYTES as u64) as u32) else { return false };
        self.scratch.clear();
        self.scratch.extend_from_slice(&page[..]);
        true
    }

    /// The file of a span's run; pins the run.
    pub(in crate::engine) fn pin_run(&mut self, id: u64) -> Option<fawn_flash::FileId> {
        let listed = self.sorted.find_mut(id)?;
        listed.pins += 1;
        Some(listed.file)
    }

    /// A read of the run is complete. Returns its file.
    pub(in crate::engine) fn unpin_run(&mut self, id: u64) -> fawn_flash::FileId {
        let Some(listed) = self.sorted.find_mut(id) else { unreachable!("a pinned run stays") };
        listed.pins -= 1;
        listed.file
    }

    /// Unpins a run of which a read was left in flight, and has ended: it may be merged again.
    pub(in crate::engine) fn left_run_read_ended(&mut self, id: u64) {
        self.sorted.failures_of_run(id).note_ended();
        self.unpin_run(id);
        self.sorted.run_search.note_change();
    }
}

enum PageJudgement {
    None,
    Hit(RunHit),
    Next(RunPlan),
}
