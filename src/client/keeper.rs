//! One background task for all leases of a locker: it wakes when a lease is due.
//!
//! A task per lease would be created and destroyed with every acquisition, and most leases are
//! released long before anything is due. Here an acquisition costs an entry in a map, and the task
//! is woken only if the new entry is due before everything else.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::world::{AnyWorld, latest};
use crate::engine::Instant;

/// Something that is woken when it is due.
pub(super) trait Kept: Send + Sync {
    /// Something is due.
    fn wake(self: Arc<Self>);
}

#[derive(Debug)]
pub(super) struct Keeper {
    world: Arc<AnyWorld>,
    plan: Mutex<Plan>,
    changed: Notify,
}

/// Where a lease stands in the plan.
pub(super) type Slot = (Instant, u64);

struct Plan {
    due: BTreeMap<Slot, Weak<dyn Kept>>,
    count: u64,
    /// Until when the task sleeps; `None` until it is notified.
    wakes_at: Option<Instant>,
    is_running: bool,
    is_closed: bool,
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("due", &self.due.keys()).finish_non_exhaustive()
    }
}

impl Keeper {
    pub(super) fn new(world: Arc<AnyWorld>) -> Arc<Keeper> {
        let plan = Plan {
            due: BTreeMap::new(),
            count: 0,
            wakes_at: None,
            is_running: false,
            is_closed: false,
        };
        Arc::new(Keeper { world, plan: Mutex::new(plan), changed: Notify::new() })
    }

    /// Wakes `kept` at `due_at`, if it is still there.
    pub(super) fn insert(self: &Arc<Self>, kept: Weak<dyn Kept>, due_at: Instant) -> Slot {
        let mut plan = self.plan();
        plan.count += 1;
        let slot = (due_at, plan.count);
        plan.due.insert(slot, kept);
        let is_first = plan.wakes_at.is_none_or(|wakes_at| due_at < wakes_at);
        let starts = !plan.is_running;
        if starts {
            plan.is_running = true;
        } else if is_first {
            plan.wakes_at = Some(due_at);
        }
        drop(plan);
        if starts {
            self.world.spawn(Arc::clone(self).run());
        } else if is_first {
            self.changed.notify_one();
        }
        slot
    }

    pub(super) fn remove(&self, slot: Slot) {
        self.plan().due.remove(&slot);
    }

    /// Ends the task.
    pub(super) fn close(&self) {
        self.plan().is_closed = true;
        self.changed.notify_one();
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        // Nothing panics while the lock is held, so the plan is intact even if it is poisoned.
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(self: Arc<Self>) {
        loop {
            let now = latest(&self.world);
            let (due, sleeps_until) = {
                let mut plan = self.plan();
                if plan.is_closed {
                    return;
                }
                let later = plan.due.split_off(&(now.after(MOMENT), 0));
                let due = std::mem::replace(&mut plan.due, later);
                plan.wakes_at = plan.due.first_key_value().map(|((due_at, _), _)| *due_at);
                (due, plan.wakes_at)
            };
            for kept in due.into_values().filter_map(|kept| kept.upgrade()) {
                kept.wake();
            }
            match sleeps_until {
                Some(due_at) => {
                    let left: Duration = now.until(due_at).into();
                    let sleep = pin!(self.world.sleep(left.min(NAP_MAX)));
                    tokio::select! {
                        biased;
                        () = sleep => {}
                        () = self.changed.notified() => {}
                    }
                }
                None => self.changed.notified().await,
            }
        }
    }
}

/// A sleeping machine's timers stand still, so no task sleeps longer than this before it checks the
/// clock.
pub(super) const NAP_MAX: Duration = Duration::from_millis(500);
/// Instants before now plus this are due.
const MOMENT: crate::engine::Millis = crate::engine::Millis::new(1);
