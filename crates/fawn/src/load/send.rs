//! Pipelined load: batches of SETs on one connection, two in flight, each reply matched with its row's line.
use super::row::Rows;
use super::{BadRow, LoadProgress, LoadRow};
use crate::client::CliClient;
use crate::failure::{Exit, Failure};
use fawn_wire::client::resp::{RespReply, encode_command};
use std::time::{Duration, Instant};

/// Batch limit in bytes and rows. The replies of a batch (5 bytes a row) fit any socket's buffer, so
/// sending never waits for a server that waits for the client to read.
const BATCH_BYTES: usize = 256 << 10;
const BATCH_ROWS: usize = 1024;

/// Treatment of keys that exist already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Present {
    /// Overwrite with the row's value.
    Replaced,
    /// Keep the existing value.
    Kept,
}

/// Result of a load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Summary {
    /// Rows stored.
    pub(crate) rows: u64,
    /// Rows whose keys existed and were kept.
    pub(crate) kept: u64,
    /// Bad rows, by syntax or by the server's reply.
    pub(crate) bad_rows: u64,
    /// The part of `bad_rows` that the server refused, perhaps temporarily.
    pub(crate) refused: u64,
    /// Bytes of keys and values stored.
    pub(crate) bytes: u64,
    /// Duration.
    pub(crate) elapsed: Duration,
}

/// Encoded SETs with the origin of each.
struct LoadBatch {
    present: Present,
    requests: Vec<u8>,
    /// Line and bytes of each row.
    rows: Vec<(u64, u64)>,
}

impl LoadBatch {
    const fn new(present: Present) -> Self {
        Self { present, requests: Vec::new(), rows: Vec::new() }
    }

    fn push(&mut self, row: &LoadRow) {
        match self.present {
            Present::Replaced => encode_command(&[&b"SET"[..], &row.key, &row.value], &mut self.requests),
            Present::Kept => encode_command(&[&b"SET"[..], &row.key, &row.value, b"NX"], &mut self.requests),
        }
        self.rows.push((row.line, (row.key.len() + row.value.len()) as u64));
    }

    fn is_full(&self) -> bool {
        self.requests.len() >= BATCH_BYTES || self.rows.len() >= BATCH_ROWS
    }
}

/// Loads all of `rows`; `name` is the input's name in messages.
pub(crate) fn send(
    rows: &mut dyn Rows,
    name: &str,
    client: &mut CliClient,
    present: Present,
    progress: &LoadProgress,
) -> Result<Summary, Failure> {
    let start = Instant::now();
    let (mut summary, mut stored_line) = (Summary::default(), 0);
    let mut under_way = LoadBatch::new(present);
    loop {
        let (batch, more) = fill(rows, name, present, progress, &mut summary)?;
        client.send(&batch.requests).map_err(stopped_after(stored_line))?;
        // One batch is in flight while the one before is confirmed: neither side waits for the other.
        stored_line = settle(&under_way, name, client, progress, &mut summary, stored_line)?;
        under_way = batch;
        if !more {
            settle(&under_way, name, client, progress, &mut summary, stored_line)?;
        }
        progress.show(rows.consumed_bytes(), summary.rows + summary.kept);
        if !more {
            progress.finish();
            summary.elapsed = start.elapsed();
            return Ok(summary);
        }
    }
}

/// Gathers a batch; returns whether the input continues.
fn fill(
    rows: &mut dyn Rows,
    name: &str,
    present: Present,
    progress: &LoadProgress,
    summary: &mut Summary,
) -> Result<(LoadBatch, bool), Failure> {
    let mut batch = LoadBatch::new(present);
    while !batch.is_full() {
        let next = rows.next_row();
        match next.map_err(Failure::of(Exit::Failed, name))? {
            None => return Ok((batch, false)),
            Some(Ok(row)) => batch.push(&row),
            Some(Err(bad)) => {
                summary.bad_rows += 1;
                progress.bad_row(name, &bad);
            }
        }
    }
    Ok((batch, true))
}

/// Receives a batch's replies; returns the line up to which all rows are done.
fn settle(
    batch: &LoadBatch,
    name: &str,
    client: &mut CliClient,
    progress: &LoadProgress,
    summary: &mut Summary,
    mut settled: u64,
) -> Result<u64, Failure> {
    for &(line, bytes) in &batch.rows {
        let reply = client.receive(|reply| match reply {
            RespReply::Error(message) => Err(String::from_utf8_lossy(message).into_owned()),
            RespReply::Null => Ok(false),
            _ => Ok(true),
        });
        match reply.map_err(stopped_after(settled))? {
            Ok(true) => {
                summary.rows += 1;
                summary.bytes += bytes;
            }
            Ok(false) => summary.kept += 1,
            Err(message) => {
                summary.bad_rows += 1;
                summary.refused += 1;
                progress.bad_row(name, &BadRow { line, reason: format!("the server refused it: {message}") });
            }
        }
        settled = line;
    }
    Ok(settled)
}

/// Converts a failure of the connection after the row that ends at `line`.
fn stopped_after(line: u64) -> impl Fn(Failure) -> Failure {
    move |error| Failure::new(Exit::Server, format!("{error}; rows up to line {line} are stored, run the load again"))
}
