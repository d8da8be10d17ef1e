//! The state of the process: the node, its state file, and what is known about the server.
//!
//! It is one struct behind one guard. The node decides; this file carries out what it requires of
//! the state file.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

use super::alarm::Alarm;
use super::config;
use super::delivery::Delivery;
use super::ffi::waiting::Blocked;
use super::ffi::{self, Guarded, InServer, Level};
use super::state_file::{Claimed, StateFile};
use crate::codec::LoadedLock;
use crate::engine::{
    CallId, Ceilings, Change, Clocks, Fence, Granted, Instant, Lock, Millis, Node, Refusal, Shares,
    SlotRuns, Stop,
};

static PROCESS: Guarded<Process> = Guarded::new(Process {
    node: Node::new(),
    state: None,
    has_refused: false,
    claimed: None,
    was_read: false,
    folder: None,
    loaded_at_port: 0,
    port: 0,
    may_be_replica: true,
    owes_floor: false,
    blocked: BTreeMap::new(),
    undelivered: Vec::new(),
    may_refuse: false,
    alarm: None,
    is_scan_timed: false,
    policy: String::new(),
    warned_of_threads: false,
    stale_file: None,
    file_seen_at: Instant::from_millis(0),
    tended_at: Instant::from_millis(0),
    shares_at_load: None,
    slots_seen_at: Instant::from_millis(0),
    slots_sent_at: Instant::from_millis(0),
    own_left: None,
});

/// Everything that the module knows besides the locks.
pub(super) struct Process {
    pub(super) node: Node,
    /// The state file, if the node keeps one and has begun.
    pub(super) state: Option<StateFile>,
    /// Whether a request was refused because the file could not be written, and it has not been
    /// written since.
    has_refused: bool,
    /// The file that was claimed when the module was loaded, until the node begins.
    pub(super) claimed: Option<Claimed>,
    /// Whether the server has read a data set. It sends no event if there is none.
    pub(super) was_read: bool,
    /// The server's folder when the module was loaded; `None` once it has changed, even for a
    /// while: the append-only file may be in the other folder.
    pub(super) folder: Option<PathBuf>,
    /// The server's port when the module was loaded, which the state file may be named after.
    pub(super) loaded_at_port: u16,
    /// Its port when a setting last changed.
    pub(super) port: u16,
    /// Whether the server may be a replica; exact once the node has begun.
    pub(super) may_be_replica: bool,
    /// Whether a replica has come online that may not know the floor.
    pub(super) owes_floor: bool,
    /// The blocked clients, by their calls.
    pub(super) blocked: BTreeMap<CallId, Blocked<Delivery>>,
    /// Grants whose clients are gone, to be withdrawn when writes are no longer paused.
    pub(super) undelivered: Vec<Granted>,
    /// Whether the server may refuse a write that it accepted before: because it lacks replicas,
    /// could not save its data set, or the key has moved to another node.
    pub(super) may_refuse: bool,
    /// Wakes the server for waiters.
    pub(super) alarm: Option<Alarm>,
    /// Whether a timer is set to continue the scan.
    pub(super) is_scan_timed: bool,
    /// The server's `maxmemory-policy` when a setting last changed.
    pub(super) policy: String,
    /// Whether the log says that the server's threads may send replies early.
    pub(super) warned_of_threads: bool,
    /// When a temporary append-only file was last changed that a crash had left before the module
    /// was loaded.
    pub(super) stale_file: Option<SystemTime>,
    /// When the node last looked at what the server does with its append-only file.
    pub(super) file_seen_at: Instant,
    /// When the replicas were looked at last.
    pub(super) tended_at: Instant,
    /// Which slots and epoch the server had when the module was loaded, until the node looks at
    /// them. The server may take more slots once it has its data set.
    pub(super) shares_at_load: Option<Shares>,
    /// When it was last time to look at the slots of the Cluster.
    pub(super) slots_seen_at: Instant,
    /// When questions or reports were last sent to the other masters.
    pub(super) slots_sent_at: Instant,
    /// The slots that were left to the server when it last said that it had lost one, since the
    /// last look at them.
    pub(super) own_left: Option<SlotRuns>,
}

/// Uses the state of the process. `work` must not call the server, which could call back.
#[inline]
pub(super) fn with<R>(server: InServer<'_>, work: impl FnOnce(&mut Process) -> R) -> R {
    PROCESS.with(server, work)
}

/// Proof that the node has begun, and may decide.
///
/// It must be obtained before a key is opened: a node that begins looks at every lock, and no other
/// reference to one may exist while it does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready<'a>(InServer<'a>);

impl<'a> Ready<'a> {
    /// Only for a node that has begun.
    #[inline]
    pub(super) fn new(server: InServer<'a>) -> Ready<'a> {
        Ready(server)
    }
}

/// Whether it is time for what was last done at `last`. If so, it counts as done at `now`.
pub(super) fn is_due(last: &mut Instant, pause: Millis, now: Instant) -> bool {
    let is_due = last.after(pause) <= now;
    if is_due {
        *last = now;
    }
    is_due
}

/// Has the node decide a request.
///
/// # Errors
/// The refusal.
#[inline]
pub(super) fn decide<R>(
    Ready(server): Ready<'_>,
    mut decision: impl FnMut(&mut Node) -> Result<R, Stop>,
) -> Result<R, Refusal> {
    with(server, |process| {
        loop {
            let outcome = decision(&mut process.node);
            process.raise_ahead();
            match outcome {
                Ok(outcome) => return Ok(outcome),
                Err(Stop::Refused(refusal)) => return Err(refusal),
                Err(Stop::Persist(ceilings)) => process.persist(ceilings)?,
            }
        }
    })
}

/// Changes the contents of the state file. Returns whether it was written; if not, the log says so.
pub(super) fn change_state(server: InServer<'_>, change: Change) -> bool {
    let Err(error) = with(server, |process| process.change(change)) else { return true };
    let line =
        format!("the state file cannot be written: {error}; nothing is granted until it can be");
    ffi::log(Level::Warning, &line);
    false
}

impl Process {
    /// Whether the node has begun, and decides only with the support of its replicas.
    pub(super) fn rests_on_replicas(&self) -> bool {
        self.node.rests_on_replicas() && self.node.has_begun()
    }

    /// Passes on ceilings that the node requests ahead of need, to be written in the background.
    #[inline]
    fn raise_ahead(&mut self) {
        if let Some(ceilings) = self.node.take_request()
            && let Some(state) = &self.state
        {
            state.raise_ahead(ceilings);
        }
    }

    /// Makes larger ceilings durable, and reports them to the node.
    #[cold]
    fn persist(&mut self, ceilings: Ceilings) -> Result<(), Refusal> {
        // PROOF: only a node with a state file has ceilings.
        let state = self.state.as_ref().expect("ceilings come with a state file");
        // The thread that writes ahead may have written them already.
        if self.node.persisted(state.ceilings()) {
            return Ok(());
        }
        if let Err(error) = state.raise_or_withdraw(ceilings) {
            self.node.request_failed();
            self.has_refused = true;
            return Err(Refusal::StateFile { cause: error.to_string() });
        }
        self.has_refused = false;
        self.node.persisted(state.ceilings());
        Ok(())
    }

    /// Reports to the node what the thread that writes ahead has done. Returns whether the file
    /// could be written again after it could not, and why it cannot now, each once.
    pub(super) fn tick(&mut self, now: Instant) -> (bool, Option<String>) {
        let Some(state) = self.state.as_ref() else { return (false, None) };
        state.retry(now);
        self.node.persisted(state.ceilings());
        let (has_recovered, failure) = (state.news_of_recovery(), state.news_of_failure());
        self.has_refused &= state.failure().is_some();
        self.raise_ahead();
        if failure.is_some() {
            self.node.request_failed();
        }
        (has_recovered, failure)
    }

    /// Prepares the state file for a lock that a client restores.
    ///
    /// The append-only file has a lease with its original bytes. So the state file must record,
    /// before any client can extend the lease, that nothing counts any more in a quarantine. And
    /// its ceilings must cover the lock: the node that the lock comes from lets go of it.
    ///
    /// # Errors
    /// `STATEFILE`. Then the lock must not be restored.
    pub(super) fn admit(&mut self, loaded: &LoadedLock, now: Instant) -> Result<(), Refusal> {
        if loaded.lock.is_held(now) {
            self.names_changed(now)?;
        }
        // What was written in the background may not be enough.
        while let Err(ceilings) = self.node.admit(&loaded.lock, loaded.floor) {
            self.persist(ceilings)?;
        }
        Ok(())
    }

    /// Takes a lock from a dump or a data set. If the node grants already, ceilings that cover the
    /// lock are made durable before any client can ask for it.
    ///
    /// # Errors
    /// The operating system's error.
    pub(super) fn loaded(&mut self, lock: &Lock, floor: Fence) -> io::Result<()> {
        self.node.loaded(lock, floor);
        let (Some(ceilings), Some(state)) = (self.node.take_request(), &self.state) else {
            return Ok(());
        };
        let raised = state.raise(ceilings);
        if raised.is_err() {
            self.node.request_failed();
        }
        raised
    }

    /// Changes the contents of the state file.
    ///
    /// # Errors
    /// The operating system's error.
    pub(super) fn change(&mut self, change: Change) -> io::Result<()> {
        let Some(state) = &self.state else { return Ok(()) };
        let changed = state.change(change.clone());
        self.node.changed(change, state.ceilings(), changed.is_ok());
        if changed.is_err() {
            // The caller logs it.
            let _ = state.news_of_failure();
        }
        changed
    }

    /// Notes that leases may have moved to other names: databases were swapped, or a lock is being
    /// restored.
    ///
    /// # Errors
    /// `STATEFILE`. Nothing is then granted or extended before the file has been written.
    pub(super) fn names_changed(&mut self, now: Instant) -> Result<(), Refusal> {
        if self.claimed.is_some() {
            // Before the node begins, its quarantine is not known, so the file cannot record this.
            self.node.names_changed(now);
            return Err(Refusal::StateFile {
                cause: "the node has not finished starting".to_owned(),
            });
        }
        if let Some(change) = self.node.names_changed(now) {
            // A failure is looked up below.
            let _ = self.change(change);
        }
        let state = self.state.as_ref().filter(|state| state.is_behind());
        match state.and_then(StateFile::failure) {
            Some(cause) => Err(Refusal::StateFile { cause }),
            None => Ok(()),
        }
    }

    /// Why the node grants nothing at all; `None` if it grants.
    pub(super) fn refusal(&self, now: Instant) -> Option<Refusal> {
        let settings = (config::max_ttl(), config::caution());
        // A node that cannot write goes on granting what the present ceilings cover.
        let ceilings = self.node.promises().ceilings();
        let is_used_up = ceilings.is_some_and(|ceilings| ceilings.lease <= now);
        let cause = || self.state_failure().filter(|_| self.has_refused || is_used_up);
        let of_file = || cause().map(|cause| Refusal::StateFile { cause });
        // No fence follows under any name.
        let is_exhausted = self.node.promises().floor() == Fence::MAX;
        let of_fences = || is_exhausted.then_some(Refusal::Exhausted);
        self.node.obstacle(now, settings).or_else(of_file).or_else(of_fences)
    }

    /// Why the last write of the state file failed; `None` if it did not.
    pub(super) fn state_failure(&self) -> Option<String> {
        self.state.as_ref().and_then(StateFile::failure)
    }

    /// Ends a survey that has looked at every lock.
    pub(super) fn end_survey(&mut self, now: Instant) {
        if let Some(lease) = self.node.end_survey(now)
            && let Some(state) = &self.state
        {
            state.lower(lease);
        }
    }
}

/// Both clocks at `now`, for dating leases that leave the process.
pub(super) fn date(server: InServer<'_>, now: Instant) -> Clocks {
    with(server, |process| process.node.date(now))
}
