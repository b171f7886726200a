//! Pipelined load: batches of SETs on one connection, two in flight, each reply matched with its row's line.
use super::{BadRow, InputRows, LoadProgress, LoadRow};
use crate::client::CliClient;
use crate::failure::{Exit, Failure};
use fawn_types::limits::EXPIRES_AT_MS_MAX;
use fawn_wire::client::resp::{RespReply, encode_command};
use std::io::{BufRead, ErrorKind};
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
    /// Rows whose expiry time has passed, which were left out.
    pub(crate) expired: u64,
    /// Bad rows of the input.
    pub(crate) bad_rows: u64,
    /// Good rows that the server refused, perhaps temporarily.
    pub(crate) refused: u64,
    /// Bytes of keys and values stored.
    pub(crate) bytes: u64,
    /// Duration.
    pub(crate) elapsed: Duration,
}

/// Encoded SETs with the origin of each.
#[derive(Default)]
struct LoadBatch {
    requests: Vec<u8>,
    /// Line and bytes of each row.
    rows: Vec<(u64, u64)>,
}

impl LoadBatch {
    fn push(&mut self, row: &LoadRow, present: Present) {
        // A dump by an earlier version may have a later time.
        let (expiry, flags) = (row.expires_at_ms.min(EXPIRES_AT_MS_MAX).to_string(), row.flags.to_string());
        let mut args = vec![&b"SET"[..], &row.key, &row.value];
        if present == Present::Kept {
            args.push(b"NX");
        }
        if row.expires_at_ms != 0 {
            args.extend([&b"PXAT"[..], expiry.as_bytes()]);
        }
        if row.flags != 0 {
            args.extend([&b"FLAGS"[..], flags.as_bytes()]);
        }
        encode_command(&args, &mut self.requests);
        self.rows.push((row.line, (row.key.len() + row.value.len()) as u64));
    }

    fn is_full(&self) -> bool {
        self.requests.len() >= BATCH_BYTES || self.rows.len() >= BATCH_ROWS
    }
}

/// A load in progress.
struct LoadRun<'a> {
    name: &'a str,
    client: &'a mut CliClient,
    present: Present,
    progress: &'a LoadProgress,
    summary: Summary,
    /// Line up to which all rows are done.
    done_line: u64,
}

/// Loads all of `rows` that `is_wanted` accepts; `name` is the input's name in messages.
pub(crate) fn send<R: BufRead>(
    rows: &mut InputRows<R>,
    is_wanted: impl Fn(&LoadRow) -> bool,
    name: &str,
    client: &mut CliClient,
    present: Present,
    progress: &LoadProgress,
) -> Result<Summary, Failure> {
    let start = Instant::now();
    let mut run = LoadRun { name, client, present, progress, summary: Summary::default(), done_line: 0 };
    let mut in_flight = LoadBatch::default();
    loop {
        let (batch, more) = match run.fill(rows, &is_wanted) {
            Ok(filled) => filled,
            Err(error) => {
                run.settle(&in_flight)?;
                progress.finish();
                return Err(run.unreadable(&error));
            }
        };
        let sent = run.client.send(&batch.requests);
        sent.map_err(|error| run.stopped(&error))?;
        // One batch is in flight while the one before is confirmed: neither side waits for the other.
        run.settle(&in_flight)?;
        in_flight = batch;
        if !more {
            run.settle(&in_flight)?;
        }
        progress.show(rows.consumed_bytes(), run.summary.rows + run.summary.kept);
        if !more {
            progress.finish();
            return Ok(Summary { elapsed: start.elapsed(), ..run.summary });
        }
    }
}

impl LoadRun<'_> {
    /// Gathers a batch; returns whether the input continues.
    fn fill<R: BufRead>(
        &mut self,
        rows: &mut InputRows<R>,
        is_wanted: impl Fn(&LoadRow) -> bool,
    ) -> std::io::Result<(LoadBatch, bool)> {
        let (mut batch, now) = (LoadBatch::default(), fawn_flash::clock::now().wall);
        while !batch.is_full() {
            match rows.next_row()? {
                None => return Ok((batch, false)),
                // Its SET would delete the key, which may have a newer value.
                Some(Ok(row)) if row.expires_at_ms != 0 && row.expires_at_ms <= now.0 => self.summary.expired += 1,
                Some(Ok(row)) if is_wanted(&row) => batch.push(&row, self.present),
                Some(Ok(_)) => {}
                Some(Err(bad)) => self.bad_row(&bad),
            }
        }
        Ok((batch, true))
    }

    /// Receives a batch's replies.
    fn settle(&mut self, batch: &LoadBatch) -> Result<(), Failure> {
        for &(line, bytes) in &batch.rows {
            let reply = self.client.receive(|reply| reply != RespReply::Null);
            match reply.map_err(|error| self.stopped(&error))? {
                Ok(true) => {
                    self.summary.rows += 1;
                    self.summary.bytes += bytes;
                }
                Ok(false) => self.summary.kept += 1,
                Err(message) => {
                    self.summary.refused += 1;
                    let refusal = BadRow { line, reason: format!("the server refused it: {message}") };
                    self.progress.bad_row(self.name, &refusal);
                }
            }
            self.done_line = line;
        }
        Ok(())
    }

    fn bad_row(&mut self, bad: &BadRow) {
        self.summary.bad_rows += 1;
        self.progress.bad_row(self.name, bad);
    }

    /// The failure of a load whose input ended early.
    fn unreadable(&self, error: &std::io::Error) -> Failure {
        let Summary { rows, refused, .. } = self.summary;
        let exit = match error.kind() {
            // As at the end of a whole input: a refusal by the server outweighs a fault of the input.
            ErrorKind::InvalidData if refused > 0 => Exit::Server,
            ErrorKind::InvalidData => Exit::BadRows,
            _ => Exit::Failed,
        };
        let rest = if refused == 0 { String::new() } else { format!(", {refused} refused by the server") };
        Failure::new(exit, format!("{}: {error}; {rows} rows of it were loaded{rest}", self.name))
    }

    /// The failure of a load whose connection failed.
    fn stopped(&self, error: &Failure) -> Failure {
        let Summary { rows, kept, refused, .. } = self.summary;
        let stored = match self.done_line {
            0 => "no row is known to be stored".to_owned(),
            line => format!("of the rows up to line {line}, {} are stored", rows + kept),
        };
        let rest = match refused {
            0 => String::new(),
            1 => ", 1 was refused".to_owned(),
            refused => format!(", {refused} were refused"),
        };
        Failure::new(Exit::Server, format!("{error}; {stored}{rest}; run the load again"))
    }
}
