//! Pages of the admin port.
use super::metrics;
use crate::server::{ShardHandles, ShardReport};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
/// Version of the text format that Prometheus requests.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

const INDEX: &str = "\
FAWN admin port
  /healthz  200 while every shard answers, else 503: restart it
  /readyz   200 while clients are served, else 503: send them elsewhere
  /metrics  for Prometheus
  /status   JSON
";

/// The pages and their data.
#[derive(Debug)]
pub(super) struct Pages {
    shards: ShardHandles,
    /// Set once the server is ready.
    is_prepared: Arc<AtomicBool>,
    started: Instant,
}

type PageResponse = Response<Full<Bytes>>;

impl Pages {
    pub(super) fn new(shards: ShardHandles, is_prepared: Arc<AtomicBool>) -> Self {
        Self { shards, is_prepared, started: Instant::now() }
    }

    /// Answers one request; a body is not read.
    pub(super) async fn answer(&self, request: &Request<Incoming>) -> PageResponse {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let mut page = page(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n".to_owned());
            page.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return page;
        }
        match request.uri().path() {
            "/" => page(StatusCode::OK, TEXT, INDEX.to_owned()),
            // A restart would only begin again.
            "/healthz" if self.shards.opening().is_some() => page(StatusCode::OK, TEXT, "opening\n".to_owned()),
            "/healthz" => self.with_reports(|_| page(StatusCode::OK, TEXT, "ok\n".to_owned())).await,
            "/readyz" if !self.is_prepared.load(Ordering::Acquire) && self.shards.opening().is_none() => {
                page(StatusCode::SERVICE_UNAVAILABLE, TEXT, "loading the catalogue\n".to_owned())
            }
            "/readyz" => self.with_reports(ready).await,
            "/metrics" => self.with_reports(|reports| self.metrics(reports)).await,
            "/status" => self.with_reports(|reports| self.status(reports)).await,
            path => page(StatusCode::NOT_FOUND, TEXT, format!("{path}: no such page\n{INDEX}")),
        }
    }

    async fn with_reports(&self, answer: impl FnOnce(&[ShardReport]) -> PageResponse) -> PageResponse {
        match self.shards.report().await {
            Ok(reports) => answer(&reports),
            Err(reason) => page(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{reason}\n")),
        }
    }

    fn metrics(&self, reports: &[ShardReport]) -> PageResponse {
        page(StatusCode::OK, PROMETHEUS, metrics::text(self.started.elapsed(), reports))
    }

    fn status(&self, reports: &[ShardReport]) -> PageResponse {
        let status = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_s": self.started.elapsed().as_secs(),
            "shards": reports.iter().map(ShardReport::json).collect::<Vec<_>>(),
        });
        page(StatusCode::OK, JSON, format!("{status:#}\n"))
    }
}

fn ready(reports: &[ShardReport]) -> PageResponse {
    match reports.iter().find_map(ShardReport::unready_reason) {
        None => page(StatusCode::OK, TEXT, "ready\n".to_owned()),
        Some(unready_reason) => page(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{unready_reason}\n")),
    }
}

fn page(status: StatusCode, kind: &'static str, body: String) -> PageResponse {
    let mut page = Response::new(Full::new(Bytes::from(body)));
    *page.status_mut() = status;
    page.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    // A probe must see the current state, not a proxy's cache.
    page.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    page
}
