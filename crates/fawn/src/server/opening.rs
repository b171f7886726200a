//! The opening of a process's stores, as other threads see it: its progress, and its end.
use fawn_ds::internals::OpenProgress;
use indicatif::HumanBytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval of the log's lines.
const LOG_INTERVAL: Duration = Duration::from_secs(5);
/// The time left is estimated from this share on, parts in a thousand.
const ESTIMATE_PERMILLE_MIN: u64 = 20;

/// The opening of all stores.
#[derive(Debug)]
pub(crate) struct Opening {
    progress: Arc<OpenProgress>,
    begun: Instant,
    is_over: AtomicBool,
}

impl Opening {
    pub(super) fn begin() -> Arc<Self> {
        Arc::new(Self { progress: Arc::default(), begun: Instant::now(), is_over: AtomicBool::new(false) })
    }

    /// The counters that the stores update.
    pub(super) fn progress(&self) -> &Arc<OpenProgress> {
        &self.progress
    }

    /// All stores are open.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Its progress in words; `None` once all stores are open.
    pub(crate) fn words(&self) -> Option<String> {
        let is_over = self.is_over.load(Ordering::Acquire);
        (!is_over).then(|| words(self.progress.read_bytes(), self.progress.planned_bytes(), self.begun.elapsed()))
    }

    /// Logs the progress until it is over or dropped.
    pub(super) async fn log(self: Arc<Self>) {
        let mut interval = tokio::time::interval(LOG_INTERVAL);
        interval.tick().await;
        loop {
            interval.tick().await;
            let Some(words) = self.words() else { return };
            tracing::info!("{words}");
        }
    }
}

/// `planned` may still grow: it is known as far as the opening has come.
fn words(read: u64, planned: u64, elapsed: Duration) -> String {
    let read = read.min(planned);
    let permille = read.saturating_mul(1000) / planned.max(1);
    let done = format!("opening the stores: {} of {} read", HumanBytes(read), HumanBytes(planned));
    if permille < ESTIMATE_PERMILLE_MIN || read == planned {
        return done;
    }
    let left_s = elapsed.as_secs_f64() * (planned - read) as f64 / read as f64;
    format!("{done}, about {} s left", left_s.ceil())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_shown_once_it_can_be_estimated() {
        let second = Duration::from_secs(1);
        assert_eq!(words(0, 0, second), "opening the stores: 0 B of 0 B read");
        assert_eq!(words(1, 1 << 20, second), "opening the stores: 1 B of 1.00 MiB read");
        assert_eq!(
            words(1 << 20, 4 << 20, 2 * second),
            "opening the stores: 1.00 MiB of 4.00 MiB read, about 6 s left"
        );
        assert_eq!(words(5 << 20, 4 << 20, second), "opening the stores: 4.00 MiB of 4.00 MiB read");
    }

    #[test]
    fn an_opening_has_words_until_it_is_over() {
        let opening = Opening::begin();
        assert!(opening.words().is_some());
        opening.end();
        assert_eq!(opening.words(), None);
    }
}
