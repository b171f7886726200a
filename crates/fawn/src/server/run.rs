//! Owns the life of `fawn serve`: start, say so, wait for a signal, stop within a bound.
use super::ready_file::ReadyFile;
use super::{ServeError, Server};
use crate::admin::Admin;
use crate::config::Settings;
use tokio::signal::unix::{SignalKind, signal};

/// Serves until told to stop.
pub(crate) fn run(settings: &Settings) -> Result<(), ServeError> {
    if let Some(path) = &settings.ready_file {
        ReadyFile::clear(path)?;
    }
    // The main thread's runtime: signals and the admin port, never a client's request.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(ServeError::system("starting a runtime"))?;
    runtime.block_on(serve(settings))
}

async fn serve(settings: &Settings) -> Result<(), ServeError> {
    // Before anything is opened: a signal during start must not kill us half way.
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::system("watching for SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::system("watching for SIGINT"))?;
    let admin = settings.admin.address().map(Admin::bind).transpose()?;
    let mut server = Server::start(settings)?;
    let mut places = server.places();
    if let Some(admin) = admin {
        places.admin = Some(admin.address());
        tokio::spawn(admin.serve(server.shards()));
    }
    let ready = settings.ready_file.as_deref().map(|path| ReadyFile::write(path, &places)).transpose()?;
    tracing::info!(
        resp = %shown(places.resp),
        memcached = %shown(places.memcached),
        admin = %shown(places.admin),
        dir = %settings.dir.display(),
        memory = %settings.memory,
        durability = ?settings.durability,
        "serving"
    );
    let signal = tokio::select! {
        _ = terminate.recv() => Some("SIGTERM"),
        _ = interrupt.recv() => Some("SIGINT"),
        () = server.ended() => None,
    };
    drop(ready);
    let Some(signal) = signal else {
        server.stop().await?;
        return Err(ServeError::Died("a shard ended unasked".to_owned()));
    };
    tracing::info!(signal, "stopping: no new connections; what was read is answered, flushed and synced");
    server.stop().await?;
    tracing::info!("stopped");
    Ok(())
}

fn shown(place: Option<std::net::SocketAddr>) -> String {
    place.map_or_else(|| "off".to_owned(), |address| address.to_string())
}
