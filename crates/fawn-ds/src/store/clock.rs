//! The clock of a store: the machine's, or one that a test moves.
use fawn_types::{MonoMs, Now, TimeMs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Two times: one for expiry, one for timers.
pub trait Clock: Send + Sync {
    /// The time of day. It may step in both directions: values expire by a time that runs with the monotonic clock and
    /// follows a step forward only once it has lasted for a minute.
    fn wall(&self) -> SystemTime;

    /// Time since any fixed moment; it never falls.
    fn monotonic(&self) -> Duration;
}

/// A clock that changes only when it is moved. Clones are the same clock.
///
/// ```
/// use fawn_ds::{ManualClock, PutOptions, Store};
/// use std::time::Duration;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path();
/// let clock = ManualClock::new();
/// let store = Store::builder(path).clock(clock.clone()).open()?;
/// store.put_with("session", "alice", PutOptions::new().ttl(Duration::from_secs(60)))?;
/// clock.advance(Duration::from_secs(61));
/// assert_eq!(store.get("session")?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock {
    now: Arc<Mutex<(SystemTime, Duration)>>,
}

impl ManualClock {
    /// Stands at the machine's time of day.
    #[must_use]
    pub fn new() -> Self {
        Self { now: Arc::new(Mutex::new((SystemTime::now(), Duration::ZERO))) }
    }

    /// Moves both times on.
    pub fn advance(&self, by: Duration) {
        let mut now = self.lock();
        now.0 += by;
        now.1 += by;
    }

    /// Steps the time of day only, as an operator or a time service does.
    pub fn set_wall(&self, wall: SystemTime) {
        self.lock().0 = wall;
    }

    fn lock(&self) -> MutexGuard<'_, (SystemTime, Duration)> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> SystemTime {
        self.lock().0
    }

    fn monotonic(&self) -> Duration {
        self.lock().1
    }
}

/// The machine's clock.
pub(super) struct SystemClock;

impl Clock for SystemClock {
    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(fawn_flash::clock::now().mono.0)
    }
}

/// Both times of `clock` as the engine takes them.
pub(super) fn read(clock: &dyn Clock) -> Now {
    let wall = clock.wall().duration_since(UNIX_EPOCH).unwrap_or_default();
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Now { mono: MonoMs(millis(clock.monotonic())), wall: TimeMs(millis(wall)) }
}
