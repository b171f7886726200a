//! The demo besides its server: the catalogue, loading it once, and hints for the user.
mod catalogue;
mod directory;
mod hints;
mod loading;
mod marker;

pub(crate) use directory::{default_dir, refuse_foreign};

use crate::config::Settings;
use crate::failure::Failure;
use crate::printing::print_result;
use crate::server::{self, ListenAddrs, Service};
use std::path::PathBuf;

/// Serves until a signal stops it; `catalogue`: the file to load instead of the machine's own.
pub(crate) fn run(settings: &Settings, catalogue: Option<PathBuf>) -> Result<(), Failure> {
    print_result("FAWN demo: three nodes with a store each (R = 3), all in this process");
    print_result(format_args!("data in {}, memory {}", settings.dir.display(), settings.memory));
    let dir = settings.dir.clone();
    let prepare = move |listen_addrs: &ListenAddrs| {
        let held = loading::ensure(listen_addrs, catalogue.as_deref())?;
        print_result(hints::text(listen_addrs, &held, &dir));
        Ok(())
    };
    server::run(Service::Cluster, settings, Some(Box::new(prepare)))?;
    print_result(format_args!("stopped; the data stay in {}", settings.dir.display()));
    Ok(())
}
