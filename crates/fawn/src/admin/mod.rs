//! Admin port: health, readiness, metrics and status over HTTP/1.1, on the main thread, apart from clients.
//!
//! A shard answers a query between two iterations. The port is bounded in connections and time, so its load does not
//! reach the data path.
mod metrics;
mod pages;

use crate::failure::Failure;
use crate::server::{ShardHandles, cannot_listen};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use pages::Pages;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Concurrent connections; more wait in the listener's backlog.
const CONNECTIONS_MAX: usize = 32;
/// Maximum length of a request's head, bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Time for a client to send its request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum life of a connection: probes and scrapers connect again.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause of accepting after the system refused.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound admin port.
#[derive(Debug)]
pub(crate) struct Admin {
    listener: TcpListener,
    address: SocketAddr,
}

impl Admin {
    /// Binds the address. Needs a runtime.
    pub(crate) fn bind(address: SocketAddr) -> Result<Self, Failure> {
        let fail = cannot_listen("admin", address);
        let listener = std::net::TcpListener::bind(address).map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        let listener = TcpListener::from_std(listener).map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        Ok(Self { listener, address })
    }

    /// The bound address.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the runtime ends. Not ready before `is_prepared` is set.
    pub(crate) async fn serve(self, shards: ShardHandles, is_prepared: Arc<AtomicBool>) {
        let pages = Arc::new(Pages::new(shards, is_prepared));
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        // The semaphore is never closed.
        while let Ok(permit) = permits.clone().acquire_owned().await {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let pages = pages.clone();
                    tokio::spawn(async move {
                        drop(tokio::time::timeout(CONNECTION_TIMEOUT, converse(stream, pages)).await);
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "the admin port pauses accepting");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

async fn converse(stream: TcpStream, pages: Arc<Pages>) {
    let service = service_fn(|request| {
        let pages = pages.clone();
        async move { Ok::<_, std::convert::Infallible>(pages.answer(&request).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_BYTES_MAX);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a connection to the admin port ended badly");
    }
}
