//! Loads that follow the peak on FAWN-DS.
use super::session::BenchSession;
use crate::stops::StopMonitor;
use crate::store::peak_load::{PeakLoad, PhaseKind, PhaseSchedule};
use crate::{BenchError, Row};
use fawn_flash::Device;
use std::time::Instant;

impl<D: Device> BenchSession<D> {
    /// Runs all phases; each begins when the last operation of the one before has ended. Stops count in measured phases.
    pub(super) fn follow_peak(&mut self, load: &PeakLoad, stops: &StopMonitor) -> Result<Row, BenchError> {
        let mut phases = PhaseSchedule::new(load);
        let mut peaks = Vec::new();
        let (start, mut run) = self.begin_mix(&load.mix, load.period());
        while let Some(phase) = phases.begin_next() {
            let counts = phase.kind == PhaseKind::Measured;
            run.begin_phase(phase.mix, counts);
            stops.count_in(counts.then(|| run.samples.len()));
            self.run_phase(&mut run)?;
            stops.count_in(None);
            phases.count(run.schedule.taken());
            match phase.kind {
                PhaseKind::Peak => {
                    let seconds = run.schedule.started().elapsed().as_secs_f64();
                    let peak = run.schedule.taken() as f64 / seconds.max(1e-9);
                    phases.set_peak(peak);
                    peaks.push(peak.round());
                }
                PhaseKind::Settling => {}
                PhaseKind::Measured => run.samples.add(Instant::now(), self),
            }
        }
        let mut row = self.end_mix(&run, &start)?;
        // An open loop polls while nothing arrives.
        row.cpu_us_per_op = None;
        row.series.insert("peak_ops_per_s".into(), peaks);
        Ok(row)
    }
}
