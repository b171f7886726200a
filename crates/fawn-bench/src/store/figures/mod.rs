//! The papers' experiments on one node, as workloads: each reproduces the question of a table or figure at any scale.
//!
//! The rows carry the figure's name and its axis in their config; `eval/papers.jsonl` has the papers' own points with the
//! same names. A contender that lacks an operation is left out of a figure, with a message.
mod lookups;
mod maintenance;
mod mixes;
mod steady;
mod tiers;
mod writes;

use super::ladder::StoreOptions;
use super::raw::RawDevice;
use super::{Contender, DataShape, SpaceLimit};
use crate::sink::Sink;
use crate::{BenchError, Row};

/// An experiment of a paper, or one in its spirit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Figure {
    /// Random gets by size of the store and of the values, memory being a fourteenth of the largest store [FAWN09 Table 2].
    #[value(name = "fawn09-table2")]
    Fawn09Table2,
    /// Bulk load against raw sequential writes, and random puts against raw random writes [FAWN09 §4.1].
    #[value(name = "fawn09-bulk")]
    Fawn09Bulk,
    /// Semi-random writes into 1 to 256 ranges, and into 1 to 256 stores [FAWN09 Figure 9].
    #[value(name = "fawn09-fig9")]
    Fawn09Fig9,
    /// Mixes of gets and puts, from gets alone to puts alone, on all keys and on few; and many deletes [FAWN09 Figure 10].
    #[value(name = "fawn09-fig10")]
    Fawn09Fig10,
    /// Rate and latency at 30 %, 90 % and all of the peak, with and without cleaning [FAWN09 Figures 14 and 15].
    #[value(name = "fawn09-fig15", alias = "fawn09-fig14")]
    Fawn09Fig15,
    /// Time to fill 1, 8 and 32 stores one after the other [FAWN08 Figures 7 and 8].
    #[value(name = "fawn08-fig7", alias = "fawn08-fig8")]
    Fawn08Fig7,
    /// Device reads per get, uniform and at Zipf 0.8, 0.99 and 1.1, and per key of a scan, with budgets of 2, 10 and 25 % of
    /// the data.
    #[value(name = "record-cache")]
    RecordCache,
    /// Overwrites at 80 % of the capacity for the given time at 20 % and 90 % of the present peak, with and without cleaning.
    #[value(name = "overwrite-steady")]
    OverwriteSteady,
    /// The log alone and the sorted tier at 70 % live: memory per key, reads per get, bytes written per byte of keys and
    /// values.
    #[value(name = "tiers")]
    Tiers,
}

impl Figure {
    /// The figure's name in flags and rows.
    #[must_use]
    pub fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Runs the figures of `options` in turn.
///
/// # Errors
/// The first error of any side; rows emitted before are kept.
pub(super) fn run(
    options: &StoreOptions,
    contenders: &mut [Box<dyn Contender>],
    raw: &mut RawDevice,
    sink: &mut Sink,
) -> Result<(), BenchError> {
    for &figure in &options.figures {
        let mut run = FigureRun { figure, options, contenders, raw, sink };
        match figure {
            Figure::Fawn09Table2 => run.lookups()?,
            Figure::Fawn09Bulk => run.bulk()?,
            Figure::Fawn09Fig9 => run.semi_random_writes()?,
            Figure::Fawn09Fig10 => run.put_ratios()?,
            Figure::Fawn09Fig15 => run.cleaning_under_load()?,
            Figure::Fawn08Fig7 => run.insertion_times()?,
            Figure::RecordCache => run.skewed_gets()?,
            Figure::OverwriteSteady => run.steady_overwrites()?,
            Figure::Tiers => run.tiers()?,
        }
    }
    Ok(())
}

/// One figure's run: its sides, and the destination of its rows.
struct FigureRun<'f> {
    figure: Figure,
    options: &'f StoreOptions,
    contenders: &'f mut [Box<dyn Contender>],
    raw: &'f mut RawDevice,
    sink: &'f mut Sink,
}

impl FigureRun<'_> {
    fn refuse(&self, detail: impl std::fmt::Display) -> BenchError {
        BenchError::failed(self.figure.name(), detail)
    }

    fn seed(&self, pair: usize) -> u64 {
        self.options.seed.wrapping_add(pair as u64 + 1)
    }

    /// Emits a row under the figure's name, with the point's name and the number of its pair.
    fn emit(&mut self, row: Row, point: &str, pair: usize) -> Result<(), BenchError> {
        let name = self.figure.name();
        let row = Row { workload: format!("{name}: {point}"), ..row };
        self.sink.emit(row.with("figure", name).with("pair", pair))
    }

    /// Emits the row of each contender that has the operation.
    fn each(
        &mut self,
        point: &str,
        pair: usize,
        mut operation: impl FnMut(&mut dyn Contender) -> Result<Option<Row>, BenchError>,
    ) -> Result<(), BenchError> {
        for at in 0..self.contenders.len() {
            let contender = &mut *self.contenders[at];
            match operation(contender)? {
                Some(row) => self.emit(row, point, pair)?,
                None => crate::print_note(format_args!(
                    "{}: not run by {}, which lacks the operation",
                    point,
                    contender.name()
                )),
            }
        }
        Ok(())
    }

    fn fill_and_verify(&mut self, shape: &DataShape) -> Result<(), BenchError> {
        self.contenders.iter_mut().try_for_each(|contender| {
            contender.fill(shape, super::FillEnd::Written)?;
            contender.verify()
        })
    }

    fn discard(&mut self) -> Result<(), BenchError> {
        self.contenders.iter_mut().try_for_each(|contender| contender.discard())
    }
}

/// Fills and verifies a contender within `space`; whether it has such a limit.
fn fill_within(contender: &mut dyn Contender, shape: &DataShape, space: SpaceLimit) -> Result<bool, BenchError> {
    let filled = contender.fill_within(shape, space)?.is_some();
    if filled {
        contender.verify()?;
    }
    Ok(filled)
}
