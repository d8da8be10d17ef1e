//! The clients: many tasks that want few locks, with short leases and short holds.
//!
//! Most release the lock at once. Some hold it so long that they depend on renewals, some crash
//! without releasing it, some give up in the middle of an acquisition. The lock service is behind a
//! trait, so that plain Redlock meets the same clients.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::history::{Acquisition, Micros};

pub(crate) const LOCKS: usize = 3;
/// Further locks, each held by a keeper all the time.
pub(crate) const KEPT: usize = 3;
/// How often a holder checks whether it still holds.
pub(crate) const LOOK: Duration = Duration::from_millis(15);
/// The longest time for which a lock is used, so that others get it too.
const LASTING: Duration = Duration::from_secs(3);

/// How the clients of a program use locks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// There are as many ttls between 100 and 200 ms as between 10 and 20 s.
    pub(crate) ttl_min_ms: u64,
    pub(crate) ttl_max_ms: u64,
    pub(crate) wait_max_ms: u64,
    /// The share of holds that are so long that they depend on renewals.
    pub(crate) lasting: f64,
    /// The shortest and the longest such hold, in ttls.
    pub(crate) lasting_ttls: (f64, f64),
    /// The share of holders that crash.
    pub(crate) crashing: f64,
    /// The share of acquisitions that want a lock that a keeper holds.
    pub(crate) poaching: f64,
    /// The share of acquisitions that only read.
    pub(crate) reading: f64,
    /// The share of writers that become readers.
    pub(crate) downgrading: f64,
}

/// A client's request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    /// It asks as a reader.
    pub(crate) reads: bool,
}

pub(crate) fn lock_name(lock: usize) -> String {
    format!("storm-{lock}")
}

/// A lock service.
pub(crate) trait Service: Send + Sync + 'static {
    type Held: Held;

    /// Tries for as long as the wish says. May be dropped at any await point.
    fn acquire(&self, lock: &str, wish: Wish) -> impl Future<Output = Option<Self::Held>> + Send;
}

/// A lock that is held.
pub(crate) trait Held: Send {
    fn fence(&self) -> Option<u64>;

    /// For how long it may still be relied on.
    fn validity(&self) -> Duration;

    /// Called every few milliseconds: renews the lock, if the service does not.
    fn tend(&mut self) -> impl Future<Output = ()> + Send;

    /// A writer becomes a reader; it is one when this is first polled.
    fn downgrade(&mut self) -> impl Future<Output = ()> + Send;

    fn release(self) -> impl Future<Output = ()> + Send;

    /// Crashes: nothing is released.
    fn leak(self);
}

/// What all clients of a storm share.
#[derive(Debug)]
pub(crate) struct Shared {
    began_at: Instant,
    acquisitions: Mutex<Vec<Acquisition>>,
    per_lock: [AtomicU64; LOCKS],
    is_over: AtomicBool,
    pub(crate) refused: AtomicU64,
    pub(crate) renewed: AtomicU64,
    pub(crate) crashed: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) read: AtomicU64,
    pub(crate) downgraded: AtomicU64,
}

impl Shared {
    pub(crate) fn new() -> Arc<Shared> {
        Arc::new(Shared {
            began_at: Instant::now(),
            acquisitions: Mutex::default(),
            per_lock: Default::default(),
            is_over: AtomicBool::new(false),
            refused: AtomicU64::new(0),
            renewed: AtomicU64::new(0),
            crashed: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            read: AtomicU64::new(0),
            downgraded: AtomicU64::new(0),
        })
    }

    pub(crate) fn now(&self) -> Micros {
        u64::try_from(self.began_at.elapsed().as_micros()).expect("a storm is short")
    }

    /// How often each lock was acquired so far.
    pub(crate) fn per_lock(&self) -> [u64; LOCKS] {
        std::array::from_fn(|lock| self.per_lock[lock].load(Ordering::Relaxed))
    }

    pub(crate) fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Counts an acquisition.
    pub(crate) fn count(&self, lock: usize) {
        if let Some(count) = self.per_lock.get(lock) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub(crate) fn note(&self, acquisition: Acquisition) {
        // The list stays complete even if another thread panics.
        self.acquisitions.lock().unwrap_or_else(PoisonError::into_inner).push(acquisition);
    }

    /// All recorded acquisitions, once all clients have ended.
    pub(crate) fn take(&self) -> Vec<Acquisition> {
        std::mem::take(&mut self.acquisitions.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Starts a client with this number; it ends after [`Shared::stop`].
pub(crate) fn start<S: Service>(
    service: &Arc<S>,
    shared: &Arc<Shared>,
    seed: u64,
    number: usize,
    habits: Habits,
) -> JoinHandle<()> {
    let random = StdRng::seed_from_u64(seed ^ ((number as u64 + 1) << 32));
    let (service, shared) = (Arc::clone(service), Arc::clone(shared));
    let client = Client { service, shared, number, random, habits };
    tokio::spawn(client.run())
}

struct Client<S> {
    service: Arc<S>,
    shared: Arc<Shared>,
    number: usize,
    random: StdRng,
    habits: Habits,
}

/// What a client does with a lock that it has acquired.
enum Manner {
    /// Releases it after this long.
    Release(Duration),
    /// Crashes after this long.
    Crash(Duration),
}

impl<S: Service> Client<S> {
    async fn run(mut self) {
        while !self.shared.is_over() {
            let lock = self.lock();
            let ttl = self.ttl();
            let manner = self.manner(ttl);
            let wait = self.millis(0, self.habits.wait_max_ms);
            let gives_up_after = self.random.random_bool(0.05).then(|| self.millis(0, 60));
            let reads = self.random.random_bool(self.habits.reading);
            let downgrades = !reads && self.random.random_bool(self.habits.downgrading);
            let called_at = self.shared.now();
            let name = lock_name(lock);
            let acquire = self.service.acquire(&name, Wish { ttl, wait, reads });
            let held = match gives_up_after {
                Some(patience) => timeout(patience, acquire).await.unwrap_or_default(),
                None => acquire.await,
            };
            let Some(held) = held else {
                self.shared.refused.fetch_add(1, Ordering::Relaxed);
                let pause = self.millis(2, 30);
                sleep(pause).await;
                continue;
            };
            let returned_at = self.shared.now();
            self.shared.count(lock);
            let mut noted = Acquisition {
                lock,
                client: self.number,
                called_at,
                returned_at,
                fence: held.fence(),
                valid_until: 0,
                released_at: None,
                is_reader: reads,
                downgraded_at: None,
            };
            self.shared.read.fetch_add(u64::from(reads), Ordering::Relaxed);
            self.hold(held, (manner, downgrades), ttl, &mut noted).await;
            let pause = self.millis(0, 20);
            sleep(pause).await;
        }
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.random.random_range(from..=to))
    }

    fn lock(&mut self) -> usize {
        match self.random.random_bool(self.habits.poaching) {
            true => LOCKS + self.random.random_range(0..KEPT),
            false => self.random.random_range(0..LOCKS),
        }
    }

    fn ttl(&mut self) -> Duration {
        let Habits { ttl_min_ms, ttl_max_ms, .. } = self.habits;
        let ratio = ttl_max_ms as f64 / ttl_min_ms as f64;
        let ttl_ms = ttl_min_ms as f64 * ratio.powf(self.random.random_range(0.0..1.0));
        Duration::from_millis(ttl_ms as u64)
    }

    fn manner(&mut self, ttl: Duration) -> Manner {
        if self.random.random_bool(self.habits.crashing) {
            return Manner::Crash(ttl.mul_f64(self.random.random_range(0.0..1.5)).min(LASTING));
        }
        let (from, to) = self.habits.lasting_ttls;
        if self.random.random_bool(self.habits.lasting) {
            return Manner::Release(ttl.mul_f64(self.random.random_range(from..to)).min(LASTING));
        }
        match self.random.random_range(0..100) {
            0..90 => Manner::Release(self.millis(0, 15)),
            _ => Manner::Release(ttl.mul_f64(self.random.random_range(0.1..0.8)).min(LASTING)),
        }
    }

    async fn hold(
        &self,
        mut held: S::Held,
        (manner, downgrades): (Manner, bool),
        ttl: Duration,
        noted: &mut Acquisition,
    ) {
        let (length, is_crash) = match manner {
            Manner::Release(length) => (length, false),
            Manner::Crash(length) => (length, true),
        };
        let start = Instant::now();
        let mut is_valid = look(&self.shared, &held, noted);
        if is_valid && downgrades {
            // The nodes may let others in from here on.
            noted.downgraded_at = Some(self.shared.now());
            held.downgrade().await;
            self.shared.downgraded.fetch_add(1, Ordering::Relaxed);
            is_valid = look(&self.shared, &held, noted);
        }
        while is_valid && start.elapsed() < length && !self.shared.is_over() {
            sleep(LOOK.min(length.saturating_sub(start.elapsed()))).await;
            held.tend().await;
            is_valid = look(&self.shared, &held, noted);
        }
        let outlived = noted.valid_until > noted.returned_at + micros(ttl);
        self.shared.renewed.fetch_add(u64::from(outlived), Ordering::Relaxed);
        self.shared.lost.fetch_add(u64::from(!is_valid), Ordering::Relaxed);
        if is_crash {
            self.shared.crashed.fetch_add(1, Ordering::Relaxed);
            self.shared.note(noted.clone());
            held.leak();
        } else {
            noted.released_at = Some(self.shared.now());
            self.shared.note(noted.clone());
            held.release().await;
        }
    }
}

/// Records until when the lock may be relied on; false when that is over.
pub(crate) fn look(shared: &Shared, held: &impl Held, noted: &mut Acquisition) -> bool {
    // The clock first: the recorded end is early rather than late.
    let now = shared.now();
    let left = held.validity();
    if left.is_zero() {
        // Over, or over early because the holder learned of its loss.
        noted.valid_until = noted.valid_until.min(shared.now());
        return false;
    }
    noted.valid_until = noted.valid_until.max(now + micros(left));
    true
}

fn micros(length: Duration) -> Micros {
    u64::try_from(length.as_micros()).expect("a lease is short")
}
