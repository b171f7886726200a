//! Life of a server: start, prepare, report ready, wait for a signal, stop within a bound.
use super::ready_file::ReadyFile;
use super::service::Service;
use super::shard::died;
use super::start::start;
use super::{ListenAddrs, RunningServer};
use crate::admin::Admin;
use crate::config::Settings;
use crate::failure::{Exit, Failure};
use fawn_types::Durability;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Work of a command between the first possible connection and readiness, on its own thread.
pub(crate) type Prepare = Box<dyn FnOnce(&ListenAddrs) -> Result<(), Failure> + Send>;

/// Serves until a signal stops it.
pub(crate) fn run(service: Service, settings: &Settings, prepare: Option<Prepare>) -> Result<(), Failure> {
    if let Some(path) = &settings.ready_file {
        ReadyFile::refuse_nowhere(path)?;
    }
    // The main thread's runtime serves signals and the admin port, never a client's request.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::about(Exit::Failed, "starting a runtime"))?;
    runtime.block_on(serve(service, settings, prepare))
}

async fn serve(service: Service, settings: &Settings, prepare: Option<Prepare>) -> Result<(), Failure> {
    // Before anything is opened: a signal during the start must not kill the process half way.
    let mut terminate =
        signal(SignalKind::terminate()).map_err(Failure::about(Exit::Failed, "watching for SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::about(Exit::Failed, "watching for SIGINT"))?;
    let admin = settings.admin.address().map(Admin::bind).transpose()?;
    let mut starting = start(service, settings)?;
    let mut listen_addrs = starting.server.listen_addrs;
    let is_prepared = Arc::new(AtomicBool::new(false));
    if let Some(admin) = admin {
        listen_addrs.admin = Some(admin.address());
        tokio::spawn(admin.serve(starting.server.shards.clone(), is_prepared.clone()));
    }
    tokio::spawn(starting.server.shards.opening.clone().log());
    let is_open = tokio::select! {
        is_open = starting.wait() => is_open,
        _ = terminate.recv() => return stop_opening("SIGTERM"),
        _ = interrupt.recv() => return stop_opening("SIGINT"),
    };
    let mut server = starting.finish(is_open).await?;
    let prepared = tokio::select! {
        outcome = prepared(prepare, listen_addrs) => outcome,
        signal = wait_for_end(&mut terminate, &mut interrupt, &mut server) => {
            return stop(server, signal).await;
        }
    };
    if let Err(failure) = prepared {
        server.stop().await?;
        return Err(failure);
    }
    is_prepared.store(true, Ordering::Release);
    let ready = settings.ready_file.as_deref().map(|path| ReadyFile::write(path, &listen_addrs)).transpose();
    let ready = match ready {
        Ok(ready) => ready,
        Err(failure) => {
            server.stop().await?;
            return Err(failure);
        }
    };
    log_serving(settings, &listen_addrs, server.layout.shards());
    let signal = wait_for_end(&mut terminate, &mut interrupt, &mut server).await;
    drop(ready);
    stop(server, signal).await
}

/// Ends while the stores are being opened: an opening that is cut short is a crash, and the next start opens them again.
fn stop_opening(signal: &str) -> Result<(), Failure> {
    tracing::info!(signal, "stopped before the stores were open");
    Ok(())
}

/// Waits for a signal, and returns its name; `None`: a shard has ended, which happens unasked only after a failure.
async fn wait_for_end(
    terminate: &mut Signal,
    interrupt: &mut Signal,
    server: &mut RunningServer,
) -> Option<&'static str> {
    tokio::select! {
        _ = terminate.recv() => Some("SIGTERM"),
        _ = interrupt.recv() => Some("SIGINT"),
        _ = server.ended.recv() => None,
    }
}

/// Runs `prepare` where it may block. If the server stops first, it finds closed connections and ends.
async fn prepared(prepare: Option<Prepare>, listen_addrs: ListenAddrs) -> Result<(), Failure> {
    let Some(prepare) = prepare else { return Ok(()) };
    let (sender, outcome) = oneshot::channel();
    let body = move || drop(sender.send(prepare(&listen_addrs)));
    let thread = std::thread::Builder::new().name("prepare".to_owned()).spawn(body);
    thread.map_err(Failure::about(Exit::Failed, "starting a thread"))?;
    match outcome.await {
        Ok(outcome) => outcome,
        Err(_) => Err(died("the preparation panicked")),
    }
}

/// Ends the server after a signal, or after a shard ended on its own.
async fn stop(server: RunningServer, signal: Option<&'static str>) -> Result<(), Failure> {
    let Some(signal) = signal else {
        server.stop().await?;
        return Err(died("a shard ended unexpectedly"));
    };
    tracing::info!(signal, "stopping: no new connections; received requests are answered, then flushed and synced");
    server.stop().await?;
    tracing::info!("stopped");
    Ok(())
}

fn log_serving(settings: &Settings, listen_addrs: &ListenAddrs, shards: u16) {
    tracing::info!(
        resp = %shown(listen_addrs.resp),
        memcached = %shown(listen_addrs.memcached),
        admin = %shown(listen_addrs.admin),
        dir = %settings.dir.display(),
        memory = %settings.memory,
        shards,
        durability = Durability::from(settings.durability).name(),
        "serving"
    );
}

fn shown(place: Option<SocketAddr>) -> String {
    place.map_or_else(|| "off".to_owned(), |address| address.to_string())
}
