//! Loading the catalogue once: a complete store is left alone, an interrupted load is completed.
use super::catalogue::Catalogue;
use super::marker::Marker;
use crate::client::CliClient;
use crate::failure::{Exit, Failure};
use crate::load::{self, LoadProgress, Present, Summary};
use crate::printing::print_result;
use crate::server::ListenAddrs;
use std::path::Path;
use std::time::Duration;

/// Maximum wait for one reply.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Retries of rows that the cluster refused temporarily.
const PASSES_MAX: u32 = 5;

/// Makes sure that the catalogue is in the store; returns its marker.
pub(super) fn ensure(listen_addrs: &ListenAddrs, file: Option<&Path>) -> Result<Marker, Failure> {
    let Some(address) = listen_addrs.resp else {
        return Err(Failure::new(Exit::Usage, "the demo loads its data through RESP; leave --resp on"));
    };
    let mut client = CliClient::connect(&address.to_string(), TIMEOUT)?;
    let found = Marker::fetch(&mut client)?;
    if let Some(marker) = found.as_ref().filter(|marker| marker.is_complete) {
        print_result(format_args!(
            "{} packages of {} are here already: nothing to load",
            marker.packages, marker.source
        ));
        if let Some(file) = file.filter(|file| file.display().to_string() != marker.source) {
            print_result(format_args!("{} is not loaded; another directory (--dir) would take it", file.display()));
        }
        return Ok(marker.clone());
    }
    let catalogue = Catalogue::read(file)?;
    let (source, digest, example) = (catalogue.source.clone(), catalogue.digest.clone(), catalogue.example());
    let mut marker = Marker { source, digest, packages: catalogue.len(), example, is_complete: false };
    // Existing values of the same catalogue are right; values of another one are replaced.
    let present = if found.as_ref() == Some(&marker) { Present::Kept } else { Present::Replaced };
    print_result(format_args!("loading {} packages of {}", marker.packages, marker.source));
    marker.store(&mut client)?;
    load(&catalogue, present, &mut client)?;
    marker.is_complete = true;
    marker.store(&mut client)?;
    Ok(marker)
}

fn load(catalogue: &Catalogue, mut present: Present, client: &mut CliClient) -> Result<(), Failure> {
    let mut loaded = 0;
    for _ in 0..PASSES_MAX {
        let progress = LoadProgress::with_lines(catalogue.total_bytes());
        let summary = load::send(
            &mut catalogue.stanzas(),
            |row| catalogue.is_last(row),
            &catalogue.source,
            client,
            present,
            &progress,
        )?;
        loaded += summary.rows;
        if summary.refused == 0 {
            print_summary(&summary, loaded);
            return Ok(());
        }
        present = Present::Kept;
    }
    let reason = "the store still refuses rows, listed above; remove the cause and start the demo again";
    Err(Failure::new(Exit::Server, reason))
}

fn print_summary(summary: &Summary, loaded: u64) {
    let seconds = summary.elapsed.as_secs_f64().max(1e-9);
    print_result(format_args!(
        "loaded {loaded} packages, {:.1} MB in {seconds:.1} s, each acknowledged by three nodes",
        summary.bytes as f64 / 1e6
    ));
    if summary.kept > 0 {
        print_result(format_args!("{} more were here from an interrupted load", summary.kept));
    }
    if summary.bad_rows > 0 {
        print_result(format_args!("{} stanzas are no packages and were left out", summary.bad_rows));
    }
}
