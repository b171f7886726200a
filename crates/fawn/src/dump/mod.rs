//! Dump of a data directory: every live key of every shard, streamed in the order of the logs.
pub(crate) mod base64;
pub(crate) mod jsonl;
mod output;

use crate::data_dir::{Layout, refuse};
use crate::failure::{Exit, Failure};
use crate::load::LoadProgress;
use crate::printing::{counted, print_note};
use crate::salvage::{FoundStore, Losses, open_store, store_uuid};
use fawn_ds::internals::format::record::RecordRef;
use fawn_node::Placement;
use fawn_types::limits::EXPIRES_AT_MS_MAX;
use fawn_wire::client::resp::encode_command;
use jsonl::{DumpEntry, JsonlWriter};
use output::{DumpOutput, refuse_unusable};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Format of a dump.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum DumpFormat {
    /// A JSON object per line, with flags, expiry, and a checksum at the end: for `fawn load` and for tools.
    Jsonl,
    /// SET commands in Redis's protocol, for `redis-cli --pipe`. They have no memcached flags and no checksum.
    Resp,
}

/// Result of a dump.
#[derive(Debug, Default)]
pub(crate) struct DumpSummary {
    /// Keys written.
    pub(crate) keys: u64,
    /// Bytes of their keys and values.
    pub(crate) bytes: u64,
    /// Keys left out because they have expired.
    pub(crate) expired: u64,
    /// Keys whose flags the format cannot hold.
    pub(crate) flags_dropped: u64,
    /// Damage and losses.
    pub(crate) losses: Losses,
    /// Name of the file if a file of the requested name was there, which stays.
    pub(crate) other_name: Option<PathBuf>,
}

/// A shard, the directory of its store, and the store.
type ShardStore = (Placement, PathBuf, FoundStore);

enum DumpEncoder {
    Jsonl(Box<JsonlWriter>),
    Resp(Vec<u8>),
}

/// Writes all live keys of the directory to `path`, or standard output.
pub(crate) fn run(layout: &Layout, format: DumpFormat, path: Option<&Path>) -> Result<DumpSummary, Failure> {
    let start = Instant::now();
    path.map_or(Ok(()), |path| refuse_unusable(layout.dir(), path))?;
    // Opened one after the other: each has an index in memory.
    let open = |(placement, dir): (Placement, PathBuf)| {
        let found = match layout.superfluous(placement.shard())? {
            Some(why) => FoundStore::Lost(why),
            None => open_store(layout, &dir)?,
        };
        Ok((placement, dir, found))
    };
    let mut stores = layout.shard_dirs().map(open);
    // A store is opened, and the directory locked with it, before the output is touched: a dump of a directory that is in
    // use, or of which nothing is left, leaves every file as it is.
    let first = take_first_open(layout, &mut stores)?;
    let mut out = DumpOutput::open(path)?;
    let mut encoder = match format {
        DumpFormat::Jsonl => {
            let now = fawn_flash::clock::now().wall;
            let uuids: Vec<_> = layout.shard_dirs().map(|(_, dir)| store_uuid(&dir)).collect();
            DumpEncoder::Jsonl(Box::new(out.write(|out| JsonlWriter::begin(out, now.0, &uuids))?))
        }
        DumpFormat::Resp => DumpEncoder::Resp(Vec::new()),
    };
    let mut summary = DumpSummary::default();
    for store in first.into_iter().map(Ok).chain(stores) {
        let (placement, dir, found) = store?;
        summary.losses.begin(layout.shards(), placement.shard());
        let mut engine = match found {
            FoundStore::Open(engine, found) => {
                summary.losses.add_found(&found);
                engine
            }
            FoundStore::Unmade => continue,
            FoundStore::Lost(why) => {
                summary.losses.add_store(&dir, &why);
                continue;
            }
        };
        // A bar among the lines of a terminal would spoil both.
        let is_quiet = path.is_none() && std::io::stdout().is_terminal();
        let progress = (!is_quiet).then(|| LoadProgress::new(Some(engine.log_bytes())));
        let mut shown = 0;
        let report = engine.dump(|read_bytes, record| {
            if let Some(progress) = progress.as_ref().filter(|_| read_bytes > shown) {
                progress.show(read_bytes, summary.keys);
                shown = read_bytes;
            }
            summary.keys += 1;
            summary.bytes += (record.key.len() + record.value.len()) as u64;
            summary.flags_dropped += u64::from(format == DumpFormat::Resp && record.flags != 0);
            out.write(|out| encoder.entry(out, record))
        });
        if let Some(progress) = progress {
            progress.finish();
        }
        let report = report?;
        summary.expired += report.expired;
        summary.losses.add(&report);
    }
    let is_complete = !summary.losses.is_damaged();
    if let DumpEncoder::Jsonl(writer) = encoder {
        out.write(|out| writer.end(out, is_complete))?;
    }
    summary.other_name = out.finish(is_complete)?;
    summary.print(start.elapsed().as_secs_f64());
    Ok(summary)
}

/// Opens stores up to the first that is not lost. The ones before it have no index.
fn take_first_open(
    layout: &Layout,
    stores: &mut impl Iterator<Item = Result<ShardStore, Failure>>,
) -> Result<Vec<ShardStore>, Failure> {
    let mut taken = Vec::new();
    for store in stores {
        let (placement, dir, found) = store?;
        let is_open = matches!(found, FoundStore::Open(..));
        taken.push((placement, dir, found));
        if is_open {
            return Ok(taken);
        }
    }
    let mut losses = Losses::default();
    for (placement, dir, found) in &taken {
        if let FoundStore::Lost(why) = found {
            losses.begin(layout.shards(), placement.shard());
            losses.add_store(dir, why);
        }
    }
    losses.refuse_all_lost(layout)?;
    refuse(layout.dir(), "holds no store: its first start was interrupted before one was made")
}

impl DumpEncoder {
    fn entry(&mut self, out: &mut impl Write, record: &RecordRef<'_>) -> std::io::Result<()> {
        let &RecordRef { key, value, flags, expires_at_ms, .. } = record;
        // Earlier versions stored later times, which no load accepts.
        let expires_at_ms = expires_at_ms.min(EXPIRES_AT_MS_MAX);
        match self {
            Self::Jsonl(writer) => writer.entry(out, &DumpEntry { key, value, flags, expires_at_ms }),
            Self::Resp(request) => {
                request.clear();
                if expires_at_ms == 0 {
                    encode_command(&[&b"SET"[..], key, value], request);
                } else {
                    let at = expires_at_ms.to_string();
                    encode_command(&[&b"SET"[..], key, value, b"PXAT", at.as_bytes()], request);
                }
                out.write_all(request)
            }
        }
    }
}

impl DumpSummary {
    fn print(&self, seconds: f64) {
        let Self { keys, bytes, expired, flags_dropped, .. } = self;
        let left_out = |keys| format!("; {} left out", counted(keys, "expired key"));
        let expired = if *expired > 0 { left_out(*expired) } else { String::new() };
        print_note(format_args!(
            "{} dumped, {:.1} MB in {seconds:.2} s{expired}",
            counted(*keys, "key"),
            *bytes as f64 / 1e6
        ));
        if *flags_dropped > 0 {
            print_note(format_args!(
                "note: {flags_dropped} keys have memcached flags, which this format leaves out; jsonl keeps them"
            ));
        }
    }

    /// The failure of a dump that has only what is left of a damaged store.
    pub(crate) fn verdict(&self, dir: &Path) -> Result<(), Failure> {
        if !self.losses.is_damaged() {
            return Ok(());
        }
        self.losses.explain();
        let losses = self.losses.describe();
        let left = match &self.other_name {
            Some(path) => format!("the file that was there stays as it is, {} has what is left", path.display()),
            None => "the dump has what is left".to_owned(),
        };
        Err(Failure::new(Exit::Lost, format!("{}: damaged: {losses}; {left}", dir.display())))
    }
}
