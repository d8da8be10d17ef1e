//! Acquires a lock: makes attempts over all nodes until one is won or the wait is over.
//!
//! An attempt is a [`Ballot`]; this file drives it.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use super::ballot::{Ballot, LostAttempt, Won};
use super::core::{Core, STRAGGLERS, count};
use super::error::{AcquireError, AcquireReport, WithError};
use super::guard::{Guard, Known};
use super::inbox::{Arrival, Inbox, RequestKind};
use super::lease::Lease;
use super::lease_rules::{LeaseOptions, LeasePlan};
use super::packet::Packet;
use super::printable::{InShort, Printable};
use super::reading::{acquire_vote, lock_info};
use super::settings::{check_label, check_name};
use super::vote::Vote;
use super::waiter::Waiter;
use crate::engine::{
    Fence, Grant, LockState, Loss, Mode, NodeSet, Quorum, Renewal, Stand, Step, Verdict,
};
use crate::wire::lock_info::LockInfo;

/// An acquisition about to be made: `locker.acquire(name)`, options, `.await`.
///
/// Nothing is sent before it is awaited. Options that are not set default to the locker's.
///
/// # Cancellation
/// Dropping the future at any point leaves nothing behind: releases are sent at once, behind the
/// acquires. The runtime must run until they are written; see
/// [`Locker::settle`](super::Locker::settle).
#[must_use = "an acquisition does nothing unless it is awaited"]
pub struct Acquire {
    core: Arc<Core>,
    name: Arc<[u8]>,
    asked: LeaseOptions,
    plan: LeasePlan,
    mode: Mode,
    wait: Duration,
    label: Arc<[u8]>,
    /// The holder's record of this lock, if a holder acquires it.
    known: Option<Arc<Known>>,
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("name", &InShort(&self.name))
            .field("ttl", &self.asked.ttl)
            .field("wait", &self.wait)
            .field("label", &Printable(&self.label))
            .finish_non_exhaustive()
    }
}

/// The options of an acquisition, for types that have one in their field `acquire`.
macro_rules! options {
    () => {
        /// How long to wait while another holds the lock, or too few nodes grant it, also because
        /// they are down; zero tries once. If nodes are silent, the error may come later than that,
        /// by the locker's timeout.
        pub fn wait(self, wait: std::time::Duration) -> Self {
            Self { acquire: self.acquire.wait(wait), ..self }
        }

        /// The length of the lease; it is renewed at a third of it, unless renewing is turned off.
        pub fn ttl(self, ttl: std::time::Duration) -> Self {
            Self { acquire: self.acquire.ttl(ttl), ..self }
        }

        /// Acquires as a reader: any number of readers may hold a lock together, but no writer with
        /// them.
        pub fn shared(self) -> Self {
            Self { acquire: self.acquire.shared(), ..self }
        }

        /// A name for the caller, shown to people: up to 128 bytes, or empty for none.
        pub fn label(self, label: impl AsRef<[u8]>) -> Self {
            Self { acquire: self.acquire.label(label), ..self }
        }

        /// Whether the lease is renewed in the background.
        pub fn renew(self, renew: bool) -> Self {
            Self { acquire: self.acquire.renew(renew), ..self }
        }

        /// The longest time to hold the lease, renewals included: at least 20 ms.
        pub fn max_hold(self, max_hold: std::time::Duration) -> Self {
            Self { acquire: self.acquire.max_hold(max_hold), ..self }
        }
    };
}
pub(super) use options;

impl Acquire {
    pub(super) fn new(core: Arc<Core>, name: &[u8]) -> Acquire {
        let settings = &core.settings;
        Acquire {
            name: Arc::from(name),
            asked: settings.asked,
            plan: settings.plan,
            mode: Mode::Exclusive,
            wait: settings.wait,
            label: Arc::clone(&settings.label),
            known: None,
            core,
        }
    }

    /// The same for a holder, which may already have a lease of this lock.
    pub(super) fn by_holder(self, known: Arc<Known>) -> Acquire {
        Acquire { known: Some(known), ..self }
    }

    /// The same for another lock, in its mode or as a reader if this one is, with what is left of
    /// the wait after `waited`.
    pub(super) fn after(&self, (name, mode): (&[u8], Mode), waited: Duration) -> Acquire {
        Acquire {
            core: Arc::clone(&self.core),
            name: Arc::from(name),
            asked: self.asked,
            plan: self.plan,
            mode: if self.mode.is_shared() { self.mode } else { mode },
            wait: self.wait.saturating_sub(waited),
            label: Arc::clone(&self.label),
            known: None,
        }
    }

    /// The current time, on the clock of the waits.
    pub(super) fn now(&self) -> Duration {
        self.core.world.now()
    }

    /// How long to wait while another holds the lock, or too few nodes grant it, also because they
    /// are down; zero tries once. If nodes are silent, the error may come later than that, by the
    /// locker's timeout.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// The length of the lease; it is renewed at a third of it, unless renewing is turned off.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.asked.ttl = ttl;
        self
    }

    /// Acquires as a reader: any number of readers may hold a lock together, but no writer with
    /// them.
    ///
    /// The fence of a reader is that of the last writer before it, or larger, and smaller than that
    /// of every writer after it. Readers and writers are served in the order in which they came;
    /// readers next to each other are served together.
    pub fn shared(mut self) -> Self {
        self.mode = Mode::Shared;
        self
    }

    /// A name for the caller, shown to people: up to 128 bytes, or empty for none.
    pub fn label(mut self, label: impl AsRef<[u8]>) -> Self {
        self.label = Arc::from(label.as_ref());
        self
    }

    /// Whether the lease is renewed in the background.
    pub fn renew(mut self, renew: bool) -> Self {
        self.asked.renews = renew;
        self
    }

    /// The longest time to hold the lease, renewals included: at least 20 ms.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.asked.max_hold = Some(max_hold);
        self
    }

    /// Runs `work` under the lock, then releases the lock. If the lease is lost meanwhile, the work
    /// is dropped at its current await point. If the work finishes after the lease was lost, for
    /// example because it blocked the thread, its result is dropped. An unconfirmed release is not
    /// an error here, because the work was done in time.
    ///
    /// # Errors
    /// [`WithError`].
    ///
    /// # Cancellation
    /// The work is dropped, and the lock is released in the background.
    pub async fn with<T>(self, work: impl AsyncFnOnce(Fence) -> T) -> Result<T, WithError> {
        let guard = self.await.map_err(WithError::Acquire)?;
        let fence = guard.fence();
        let result = {
            let work = pin!(work(fence));
            tokio::select! {
                biased;
                lost = guard.lost() => Err(guard.lost_with(lost)),
                // Check the clock: nothing watched the lease if the work blocked the thread.
                result = work => match guard.ending() {
                    Some(lost) => Err(guard.lost_with(lost)),
                    None => Ok(result),
                },
            }
        };
        drop(guard.release().await);
        result
    }

    /// A share of the lease that the holder already has, or a new lease that it keeps track of.
    async fn take(mut self) -> Result<Guard, AcquireError> {
        self.check()?;
        let started_at = self.now();
        let Some(known) = self.known.clone() else { return self.run(started_at).await };
        // Another task of this holder may be acquiring it: one attempt takes no longer than this,
        // and its wait does not matter here.
        let patience = self.wait.saturating_add(self.plan.timeout);
        let mut gate = tokio::select! {
            biased;
            gate = known.lock() => gate,
            () = self.core.world.sleep(patience) => {
                return Err(self.behind_another_task(started_at).await);
            }
        };
        if let Some(hold) = gate.upgrade().filter(|hold| hold.lease.ending().is_none()) {
            return Guard::of_share(hold, self.mode).ok_or_else(|| {
                let name = self.name.escape_ascii();
                AcquireError::BadOption(format!(
                    "this holder has lock '{name}' as a reader, and a reader cannot become a \
                     writer: release it first"
                ))
            });
        }
        let guard = self.run(started_at).await?;
        *gate = Arc::downgrade(guard.hold());
        Ok(guard)
    }

    /// The error if another task of the same holder is acquiring the lock for the whole wait.
    async fn behind_another_task(&self, started_at: Duration) -> AcquireError {
        let waited = self.now().saturating_sub(started_at);
        let unasked = vec![None; self.core.quorum.nodes()];
        let is_late = vec![false; unasked.len()];
        let votes = self.describe(unasked, (&is_late, self.plan.timeout), None).await;
        // Where it is free, that task is about to get it.
        let held = |vote: &Option<Vote>| match vote {
            Some(Vote::NotHeld) => Some(Vote::HELD),
            vote => vote.clone(),
        };
        let about_to: Vec<_> = votes.iter().map(held).collect();
        match verdict(Loss::Refused, &about_to, self.core.quorum) {
            Verdict::Held => self.error_of(Verdict::Held, about_to, (waited, 0), false),
            verdict => self.error_of(verdict, votes, (waited, 0), false),
        }
    }

    /// Makes attempts until the wait is over that began at this time.
    async fn run(self, started_at: Duration) -> Result<Guard, AcquireError> {
        let world = &*self.core.world;
        let contended = &self.core.contended;
        let mut attempts = 0;
        let mut waiter = self.early_waiter(started_at);
        loop {
            attempts += 1;
            let mut lost = match self.attempt(waiter.as_mut()).await {
                Ok(lease) => {
                    if attempts == 1 && waiter.is_some() {
                        contended.forget(&self.name);
                    }
                    return Ok(Guard::new(lease));
                }
                Err(lost) => lost,
            };
            let waited = world.now().saturating_sub(started_at);
            let quorum = self.core.quorum;
            if waited >= self.wait || verdict(lost.loss, &lost.votes, quorum) == Verdict::Refused {
                let failed = Failed::of(&mut lost);
                // Abandon the attempt and the wait before asking the nodes what they know.
                drop((lost, waiter));
                return Err(self.failure(failed, waited, attempts).await);
            }
            contended.note(&self.name, world.now());
            let waiter = waiter.get_or_insert_with(|| self.waiter(started_at));
            let (has_more, attempt) =
                (lost.is_to_be_released(), (&lost.pending.token, lost.silent));
            lost.pending.is_armed = !waiter.lost(attempt, has_more, &mut lost.late);
            drop(lost);
            waiter.rest().await;
        }
    }

    /// Checks the options of this call, and plans the lease accordingly.
    #[doc(hidden)]
    pub fn check(&mut self) -> Result<(), AcquireError> {
        if self.asked != self.core.settings.asked {
            let plan = self.core.settings.rules.plan(self.asked);
            self.plan = plan.map_err(AcquireError::BadOption)?;
        }
        check_name(&self.name).map_err(AcquireError::BadOption)?;
        check_label(&self.label).map_err(AcquireError::BadOption)
    }

    fn waiter(&self, started_at: Duration) -> Waiter<'_> {
        let asked = (self.plan, self.mode, &*self.label);
        Waiter::new(&self.core, &self.name, asked, started_at, self.wait)
    }

    /// A waiter for the first attempt, if the lock was contended recently: if that attempt is not
    /// granted, it is in line at once.
    fn early_waiter(&self, started_at: Duration) -> Option<Waiter<'_>> {
        if self.wait.is_zero() || !self.core.contended.has(&self.name, started_at) {
            return None;
        }
        let mut waiter = self.waiter(started_at);
        waiter.take_seat().then_some(waiter)
    }

    /// Makes one attempt. Returns the lease, or why there is none and each
    /// node's vote.
    async fn attempt<'s>(
        &'s self,
        waiter: Option<&mut Waiter<'s>>,
    ) -> Result<Arc<Lease>, LostAttempt<'s>> {
        let core = &*self.core;
        let LeasePlan { terms, timeout, .. } = self.plan;
        let asked = (terms, self.mode);
        let mut ballot = Ballot::open(core, &self.name, asked, &self.label, waiter);
        let mut timer = pin!(core.world.sleep(timeout));
        loop {
            match ballot.next(timer.as_mut()).await {
                Step::Wait => {}
                Step::Raise { fence, nodes } => {
                    ballot.raise(fence, nodes);
                    timer.set(core.world.sleep(timeout));
                }
                Step::Won(grant) => {
                    return Ok(self.establish(&ballot.won(), grant));
                }
                Step::Lost(loss) => {
                    if ballot.has_no_grant() {
                        timer.set(core.world.sleep(STRAGGLERS));
                        ballot.hear_stragglers(timer.as_mut()).await;
                    }
                    return Err(ballot.lost(loss));
                }
            }
        }
    }

    /// The error of a failed acquisition, with what the nodes know about the lock.
    async fn failure(&self, failed: Failed, waited: Duration, attempts: u32) -> AcquireError {
        let Failed { loss, votes, is_timed_out, late } = failed;
        let is_late: Vec<bool> = votes.iter().map(|vote| is_timed_out && vote.is_none()).collect();
        // The last attempt may have begun at the end of the wait. With this, all is over within
        // the timeout after it.
        let left = self.wait.saturating_add(self.plan.timeout).saturating_sub(waited);
        let mut votes = self.describe(votes, (&is_late, left), late).await;
        let verdict = verdict(loss, &votes, self.core.quorum);
        if verdict == Verdict::NoQuorum {
            // A late node that reports the lock as free now does not explain the failure.
            let late = votes.iter_mut().zip(is_late).filter(|(_, is_late)| *is_late);
            late.filter(|(vote, _)| **vote == Some(Vote::NotHeld))
                .for_each(|(vote, _)| *vote = None);
        }
        self.error_of(verdict, votes, (waited, attempts), is_timed_out)
    }

    fn error_of(
        &self,
        verdict: Verdict,
        votes: Vec<Option<Vote>>,
        (waited, attempts): (Duration, u32),
        is_timed_out: bool,
    ) -> AcquireError {
        let votes = votes.into_iter().map(|vote| vote.unwrap_or(Vote::TimedOut)).collect();
        let nodes = self.core.reports(&self.name, votes);
        let name = String::from_utf8_lossy(&self.name).into_owned();
        let timeout = self.plan.timeout;
        error(verdict, AcquireReport { name, waited, attempts, nodes, timeout, is_timed_out })
    }

    /// Whether the wait is over that began at this time.
    pub(super) fn has_waited_since(&self, started_at: Duration) -> bool {
        self.wait <= self.now().saturating_sub(started_at)
    }

    /// The error if this lease, of several, has ended before the last of them was granted.
    pub(super) fn too_late(
        &self,
        lost: &Guard,
        started_at: Duration,
        attempts: u32,
    ) -> AcquireError {
        let nodes = match lost.unconfirmed() {
            told if told.is_empty() => {
                let granted = Vote::Granted(lost.fence());
                let votes = vec![granted; self.core.quorum.nodes()];
                self.core.reports(lost.name(), votes)
            }
            told => told,
        };
        let name = String::from_utf8_lossy(lost.name()).into_owned();
        let (waited, timeout) = (self.now().saturating_sub(started_at), self.plan.timeout);
        let is_timed_out = false;
        AcquireError::TooLate(AcquireReport {
            name,
            waited,
            attempts,
            nodes,
            timeout,
            is_timed_out,
        })
    }

    fn establish(&self, won: &Won, grant: Grant) -> Arc<Lease> {
        let core = &self.core;
        count(&core.counters.acquired);
        self.raise_laggards(&won.token, grant.laggards, grant);
        let LeasePlan { terms, schedule, .. } = self.plan;
        let renewal = Renewal::new(core.quorum, terms, schedule, won.started_at, grant.ends_at)
            .holding(self.mode)
            .held_from(won.began_at, grant.ends_at);
        let (core, name) = (Arc::clone(core), Arc::clone(&self.name));
        let holder = (won.token, Arc::clone(&self.label));
        Lease::start(core, name, holder, grant.fence, terms.ttl, renewal)
    }

    /// Makes the counters agree again, so that the next acquisition needs only one round trip.
    fn raise_laggards(&self, token: &[u8], laggards: NodeSet, grant: Grant) {
        if laggards.is_empty() {
            return;
        }
        let raise = Packet::raise(&self.name, token, grant.fence).unattended();
        for node in laggards.iter() {
            self.core.world.send(node, &raise, None);
        }
    }

    /// What each node knows about the lock. Nodes that were late have only the time that is left.
    async fn infos(&self, is_late: &[bool], left: Duration) -> Vec<Option<Result<LockInfo, Vote>>> {
        let (inbox, timeout) = (Inbox::new(self.core.quorum.nodes()), self.plan.timeout);
        self.core.send_all(&Packet::info(&self.name), &inbox, RequestKind::Only);
        let left = left.min(timeout);
        let mut infos = self.core.collect(&inbox, left, lock_info, |_| false).await;
        // The others have answered the attempt, and so they will answer now.
        let is_owed = |(info, is_late): (&Option<_>, &bool)| info.is_none() && !is_late;
        if infos.iter().zip(is_late).any(is_owed) {
            let owed: Vec<bool> = infos.iter().zip(is_late).map(is_owed).collect();
            let is_enough = |more: &[Option<Result<LockInfo, Vote>>]| {
                more.iter().zip(&owed).all(|(info, is_owed)| info.is_some() || !is_owed)
            };
            let more = self.core.collect(&inbox, timeout - left, lock_info, is_enough).await;
            for (info, more) in infos.iter_mut().zip(more) {
                *info = info.take().or(more);
            }
        }
        infos
    }

    /// Asks each node about the lock that was not acquired, for labels and times left, and for the
    /// votes of nodes that the attempt did not wait for, unless these arrive meanwhile at `late`: a
    /// node that had granted the lock would report it as free, because the attempt is abandoned.
    async fn describe(
        &self,
        votes: Vec<Option<Vote>>,
        (is_late, left): (&[bool], Duration),
        late: Option<Inbox>,
    ) -> Vec<Option<Vote>> {
        let held = |vote: &Option<Vote>| matches!(vote, Some(Vote::Held { .. }) | None);
        let mut votes = votes;
        if votes.iter().any(held) {
            let infos = self.infos(is_late, left).await;
            hear_late(&mut votes, late);
            for (vote, info) in votes.iter_mut().zip(infos) {
                match (&vote, info) {
                    (Some(Vote::Held { .. }) | None, Some(Ok(info)))
                        if info.state == LockState::Held =>
                    {
                        // A node that did not answer has not kept this reader out.
                        *vote = Some(match self.mode.is_shared() && vote.is_some() {
                            true => Vote::held_from_reader(info),
                            false => Vote::held(info),
                        });
                    }
                    (Some(Vote::Held { .. }) | None, Some(Ok(info)))
                        if info.state == LockState::Reserved =>
                    {
                        *vote = Some(Vote::Reserved);
                    }
                    (None, Some(Err(other))) => *vote = Some(other),
                    (None, Some(Ok(info))) => {
                        *vote = Some(Vote::of_obstacle_in(&info).unwrap_or(Vote::NotHeld));
                    }
                    _ => {}
                }
            }
        }
        votes
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Guard, AcquireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let core = Arc::clone(&self.core);
        let span = tracing::debug_span!("lockmod.acquire", lock = %InShort(&self.name));
        let acquisition = async move {
            let started_at = core.world.now();
            let result = self.take().await;
            let waited = core.world.now().saturating_sub(started_at);
            core.metrics.ended(&result, waited);
            match &result {
                Ok(guard) => tracing::debug!(fence = guard.fence().get(), ?waited, "acquired"),
                Err(error) => tracing::debug!(%error, "not acquired"),
            }
            result
        };
        Box::pin(acquisition.instrument(span))
    }
}

/// The last attempt of a failed acquisition.
struct Failed {
    loss: Loss,
    votes: Vec<Option<Vote>>,
    is_timed_out: bool,
    /// Where the votes arrive that it did not wait for, unless the time to answer had run out.
    late: Option<Inbox>,
}

impl Failed {
    fn of(lost: &mut LostAttempt<'_>) -> Failed {
        let (loss, is_timed_out) = (lost.loss, lost.is_timed_out);
        let votes = std::mem::take(&mut lost.votes);
        Failed { loss, votes, is_timed_out, late: lost.late.take().filter(|_| !is_timed_out) }
    }
}

/// Takes the votes of nodes that an attempt did not wait for. (A refusal may be about an option
/// that only this request had.)
fn hear_late(votes: &mut [Option<Vote>], late: Option<Inbox>) {
    let Some(late) = late else { return };
    while let Some(Arrival { node, request, outcome, .. }) = late.take() {
        let vote = outcome.map_or_else(Vote::from, |reply| acquire_vote(&reply));
        let is_vote = request.late().is_some() && !matches!(vote, Vote::Refused(_));
        if is_vote && votes[node].is_none() {
            votes[node] = Some(vote);
        }
    }
}

/// The verdict of the votes of a lost attempt.
fn verdict(loss: Loss, votes: &[Option<Vote>], quorum: Quorum) -> Verdict {
    let stand = |vote: &Option<Vote>| match vote {
        None => Stand::Silent,
        Some(vote) => vote.stand(),
    };
    Verdict::of(quorum, loss, votes.iter().map(stand))
}

fn error(verdict: Verdict, report: AcquireReport) -> AcquireError {
    match verdict {
        Verdict::Held => AcquireError::Held(report),
        Verdict::NoQuorum => AcquireError::NoQuorum(report),
        Verdict::Refused => AcquireError::Refused(report),
        Verdict::TooLate => AcquireError::TooLate(report),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(votes: &[Option<Vote>]) -> Verdict {
        verdict(Loss::Unreached, votes, Quorum::of(votes.len()).expect("a few"))
    }

    #[test]
    fn a_lock_that_a_quorum_holds_is_held_whatever_the_rest_says() {
        let away = || Vote::Unreachable("connection refused".into());
        let quarantined = || Vote::Quarantined { left: None, text: "x".into() };
        for rest in [away(), quarantined(), Vote::TimedOut, Vote::ModuleMissing, Vote::NotHeld] {
            let three = [Some(rest.clone()), Some(Vote::HELD), Some(Vote::HELD)];
            assert_eq!(of(&three), Verdict::Held, "{rest}");
        }
        let minority = [Some(Vote::HELD), Some(away()), Some(away())];
        assert_eq!(of(&minority), Verdict::NoQuorum);
        let free = [Some(Vote::NotHeld), Some(Vote::NotHeld), Some(away())];
        assert_eq!(of(&free), Verdict::NoQuorum, "no holder is in the way");
    }

    #[test]
    fn whoever_has_a_part_of_a_quorum_that_answers_is_in_the_way() {
        let granted = Vote::Granted(Fence::new(1).unwrap_or_default());
        for other in [granted, Vote::NotHeld] {
            let votes = [Some(other), Some(Vote::HELD), Some(Vote::TimedOut)];
            assert_eq!(of(&votes), Verdict::Held);
        }
        let votes = [Some(Vote::WrongType), Some(Vote::WrongType), Some(Vote::TimedOut)];
        assert_eq!(of(&votes), Verdict::Refused);
        assert_eq!(of(&[Some(Vote::WrongType), None, None]), Verdict::NoQuorum);
    }
}
