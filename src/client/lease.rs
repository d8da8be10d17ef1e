//! A lease of this client: renewed by the keeper, extended by its guard, released once.
//!
//! [`Renewal`] makes all decisions. Its `Mutex` is held while commands are put into the nodes'
//! lines, so the order of decisions is the order on the wire: nothing can travel behind the
//! release.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tracing::Instrument;

use super::core::{Core, STRAGGLERS};
use super::error::{ExtendError, Lost, ReleaseError};
use super::inbox::{Arrival, Inbox, NoReply, RequestKind};
use super::keeper::{Kept, NAP_MAX, Slot};
use super::lease_rules::{LeaseOptions, LeasePlan};
use super::link::RUNTIME_ENDED;
use super::packet::{Packet, TOKEN_LENGTH};
use super::printable::{InShort, Printable};
use super::reading::{extend_vote, extend_vote_of_one};
use super::releasing::Wait;
use super::vote::{NodeReport, Vote};
use super::world::{earliest, latest};
use crate::engine::{
    Due, Ending, Fence, Instant, Millis, Mode, NodeSet, Renewal, RenewalStep, RoundNumber,
};

pub(super) struct Lease {
    pub(super) core: Arc<Core>,
    pub(super) name: Arc<[u8]>,
    pub(super) token: [u8; TOKEN_LENGTH],
    pub(super) fence: Fence,
    /// To repair nodes that have forgotten the lease.
    label: Arc<[u8]>,
    acquired_at: Duration,
    state: Mutex<Upkeep>,
    /// Held while a round waits for its answers: a second round would invalidate them.
    turn: tokio::sync::Mutex<()>,
    /// Notified when the lease is lost or released.
    ended: Notify,
}

impl fmt::Debug for Lease {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &InShort(&self.name))
            .field("fence", &self.fence.get())
            .field("label", &Printable(&self.label))
            .field("validity", &self.validity())
            .finish_non_exhaustive()
    }
}

struct Upkeep {
    renewal: Renewal,
    slot: Option<Slot>,
    /// The longest ttl that was requested: an unconfirmed release is repeated for that long.
    longest: Millis,
    /// The votes on the last round of extensions, if too few confirmed it, or if it showed that the
    /// lock was removed.
    unconfirmed: Vec<NodeReport>,
    /// Whether its loss has been counted.
    is_counted: bool,
}

/// A round of extensions in progress.
struct Extending {
    number: RoundNumber,
    inbox: Inbox,
    votes: Vec<Vote>,
    /// How many answers are still to come.
    missing: usize,
    /// Whether it has shown that the lock was removed.
    shows_removal: bool,
    /// Until when they are waited for.
    ends_at: Duration,
}

impl Kept for Lease {
    fn wake(self: Arc<Self>) {
        let due = {
            let mut state = self.state();
            // Usually the entry that was due. An extension may have made another just now.
            self.unplan(&mut state);
            state.renewal.due(latest(&self.core.world))
        };
        match due {
            Due::Now => {
                let world = Arc::clone(&self.core.world);
                let span = tracing::debug_span!(
                    "lockmod.renew",
                    lock = %InShort(&self.name),
                    fence = self.fence.get()
                );
                let renewal = async move {
                    // Whatever the result, the validity reflects it, and the next try is planned.
                    let result = self.renew().await;
                    if !matches!(result, Err(ExtendError::Lost(Lost::Released))) {
                        self.core.metrics.renewed(&result);
                    }
                    if let Err(error) = result {
                        tracing::debug!(%error, "not renewed");
                    }
                    self.plan();
                };
                world.spawn(renewal.instrument(span));
            }
            Due::At(_) | Due::Never => self.plan(),
        }
    }
}

impl Lease {
    pub(super) fn start(
        core: Arc<Core>,
        name: Arc<[u8]>,
        (token, label): ([u8; TOKEN_LENGTH], Arc<[u8]>),
        fence: Fence,
        ttl: Millis,
        renewal: Renewal,
    ) -> Arc<Lease> {
        let (longest, unconfirmed, is_counted) = (ttl, Vec::new(), false);
        let state = Mutex::new(Upkeep { renewal, slot: None, longest, unconfirmed, is_counted });
        let acquired_at = core.world.now();
        let (turn, ended) = (tokio::sync::Mutex::default(), Notify::new());
        let lease = Lease { core, name, token, fence, label, acquired_at, state, turn, ended };
        let lease = Arc::new(lease);
        lease.plan();
        lease
    }

    fn state(&self) -> MutexGuard<'_, Upkeep> {
        // Nothing panics while the lock is held, so the state is intact even if it is poisoned.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time for which the lease may still be relied on.
    pub(super) fn validity(&self) -> Duration {
        let now = latest(&self.core.world);
        let mut state = self.state();
        let _ = state.renewal.ending(now);
        state.renewal.validity(now).into()
    }

    pub(super) fn ending(&self) -> Option<Lost> {
        let now = latest(&self.core.world);
        let mut state = self.state();
        match state.renewal.ending(now) {
            Some(ending) => Some(ending.into()),
            None if state.renewal.is_released() => Some(Lost::Released),
            None => None,
        }
    }

    /// Enters the lease into the keeper's plan, at the time that is right now.
    fn plan(self: &Arc<Self>) {
        let now = latest(&self.core.world);
        let mut state = self.state();
        self.unplan(&mut state);
        match state.renewal.due(now) {
            Due::Now => state.slot = Some(self.keep(now)),
            Due::At(due_at) => state.slot = Some(self.keep(due_at)),
            Due::Never => {
                self.count_loss(&mut state, now);
                drop(state);
                self.ended.notify_waiters();
            }
        }
    }

    /// Takes the lease out of the keeper's plan.
    fn unplan(&self, state: &mut Upkeep) {
        if let Some(slot) = state.slot.take() {
            self.core.keeper.remove(slot);
        }
    }

    /// Counts the loss of the lease, once.
    fn count_loss(&self, state: &mut Upkeep, now: Instant) {
        if !state.renewal.is_released()
            && let Some(ending) = state.renewal.ending(now)
            && !std::mem::replace(&mut state.is_counted, true)
        {
            self.core.metrics.lost(ending.into());
        }
    }

    fn keep(self: &Arc<Self>, due_at: Instant) -> Slot {
        let kept: Weak<Self> = Arc::downgrade(self);
        self.core.keeper.insert(kept, due_at)
    }

    /// Extends the lease by one round, once earlier rounds are decided. Nodes that answer after the
    /// quorum are repaired in the background.
    pub(super) async fn extend(self: &Arc<Self>) -> Result<(), ExtendError> {
        self.extend_with(None).await
    }

    /// Extends the lease by this ttl, and renews it by this ttl once a quorum has confirmed it.
    pub(super) async fn extend_by(self: &Arc<Self>, ttl: Duration) -> Result<(), ExtendError> {
        let asked = LeaseOptions { ttl, renews: self.state().renewal.renews(), max_hold: None };
        let plan = self.core.settings.rules.replan(asked).map_err(ExtendError::BadOption)?;
        self.extend_with(Some(plan)).await
    }

    /// The shortest ttl by which the lease can be extended.
    pub(super) fn extension_min(&self) -> Duration {
        self.core.settings.rules.ttl_min_of(self.state().renewal.renews())
    }

    /// Runs a round in the background. A caller that goes away in the middle, or does not poll,
    /// would keep the turn, and the lease would not be renewed.
    async fn extend_with(self: &Arc<Self>, plan: Option<LeasePlan>) -> Result<(), ExtendError> {
        let (tell, told) = oneshot::channel();
        let lease = Arc::clone(self);
        self.core.world.spawn(async move {
            let turn = lease.turn.lock().await;
            if tell.is_closed() {
                return;
            }
            let decided = lease.decided(plan).await;
            // After a failure the lease is due earlier than the keeper knows.
            lease.plan();
            match decided {
                Err(ended) => drop(tell.send(Err(ended))),
                Ok((round, decided)) => {
                    drop(turn);
                    drop(tell.send(decided));
                    lease.finish(round).await;
                    lease.plan();
                }
            }
        });
        let decided = tokio::select! {
            biased;
            decided = told => decided,
            // Also where nobody drives the runtime of the locker.
            lost = self.lost() => return Err(ExtendError::Lost(lost)),
        };
        decided.unwrap_or_else(|_| {
            if let Some(lost) = self.ending() {
                return Err(ExtendError::Lost(lost));
            }
            let ended = Vote::from(NoReply::Refused(RUNTIME_ENDED.into()));
            let votes = vec![ended; self.core.quorum.nodes()];
            Err(ExtendError::Refused(self.core.reports(&self.name, votes)))
        })
    }

    /// Extends the lease by one round, and repairs nodes that answer after the quorum before it
    /// returns.
    async fn renew(&self) -> Result<(), ExtendError> {
        let turn = self.turn.lock().await;
        let (round, decided) = self.decided(None).await?;
        drop(turn);
        self.finish(round).await;
        decided
    }

    /// Extends the lease by a round that counts to its end: one in which the holder becomes a
    /// reader is repeated.
    async fn decided(
        &self,
        plan: Option<LeasePlan>,
    ) -> Result<(Extending, Result<(), ExtendError>), ExtendError> {
        loop {
            let mut round = self.begin(plan)?;
            if let Some(decided) = self.until_decided(&mut round).await {
                return Ok((round, decided));
            }
        }
    }

    /// Sends the extension to all nodes, by the lease's own terms unless others are given.
    fn begin(&self, plan: Option<LeasePlan>) -> Result<Extending, ExtendError> {
        let nodes = self.core.quorum.nodes();
        let inbox = Inbox::new(nodes);
        let Some((number, ttl)) = self.send_extension(plan, &inbox) else {
            return Err(ExtendError::Lost(self.ending().unwrap_or(Lost::Released)));
        };
        // How long a node may take to answer.
        let timeout = self.core.settings.rules.timeout(ttl.into());
        let ends_at = self.core.world.now() + timeout;
        let (votes, shows_removal) = (vec![Vote::TimedOut; nodes], false);
        Ok(Extending { number, inbox, votes, missing: nodes, shows_removal, ends_at })
    }

    /// The time for which the answers to a round are still waited for.
    fn left(&self, round: &Extending) -> Duration {
        round.ends_at.saturating_sub(self.core.world.now())
    }

    /// Reads answers until a quorum has confirmed, or none can; `None` if the round does not count
    /// any more.
    async fn until_decided(&self, round: &mut Extending) -> Option<Result<(), ExtendError>> {
        let mut timer = pin!(self.core.world.sleep(self.left(round)));
        while round.missing > 0 {
            let Some(arrival) = round.inbox.next(timer.as_mut()).await else { break };
            match self.take(round, arrival) {
                RenewalStep::Wait | RenewalStep::Failed => {}
                RenewalStep::Confirmed { .. } => {
                    self.state().unconfirmed.clear();
                    return Some(Ok(()));
                }
                RenewalStep::Lost(ending) => {
                    self.hear_stragglers(round).await;
                    self.ended.notify_waiters();
                    return Some(Err(ExtendError::Lost(ending.into())));
                }
            }
        }
        round.missing = 0;
        // Told at once: another master may be asked next.
        let reports = self.core.reports(&self.name, std::mem::take(&mut round.votes));
        let mut state = self.state();
        if !state.renewal.waits_for(round.number) {
            return None;
        }
        state.unconfirmed.clone_from(&reports);
        match state.renewal.time_out(round.number, latest(&self.core.world)) {
            RenewalStep::Lost(ending) => Some(Err(ExtendError::Lost(ending.into()))),
            RenewalStep::Wait | RenewalStep::Failed | RenewalStep::Confirmed { .. } => {
                Some(Err(ExtendError::of(reports, self.core.quorum.needed())))
            }
        }
    }

    /// Gives nodes a moment to answer a round that has shown the loss: whoever is told of it reads
    /// their votes. The lease counts as lost already.
    async fn hear_stragglers(&self, round: &mut Extending) {
        let mut timer = pin!(self.core.world.sleep(STRAGGLERS));
        while round.missing > 0 {
            let Some(arrival) = round.inbox.next(timer.as_mut()).await else { return };
            let _ = self.take(round, arrival);
        }
    }

    /// Each node's vote on the last extension, if too few confirmed it, or if it showed that the
    /// lock was removed.
    pub(super) fn unconfirmed(&self) -> Vec<NodeReport> {
        self.state().unconfirmed.clone()
    }

    /// Repairs nodes that answer after the quorum, until the round ends.
    async fn finish(&self, mut round: Extending) {
        let mut timer = pin!(self.core.world.sleep(self.left(&round)));
        while round.missing > 0 {
            let Some(arrival) = round.inbox.next(timer.as_mut()).await else { return };
            if let RenewalStep::Lost(_) = self.take(&mut round, arrival) {
                self.ended.notify_waiters();
            }
        }
    }

    /// Takes an answer to a round, and repairs nodes that have forgotten the lease.
    fn take(&self, round: &mut Extending, arrival: Arrival) -> RenewalStep {
        round.missing -= 1;
        if arrival.request == RequestKind::Repair {
            return RenewalStep::Wait;
        }
        let is_alone = self.core.quorum.nodes() == 1;
        let read = if is_alone { extend_vote_of_one } else { extend_vote };
        let vote = arrival.outcome.map_or_else(Vote::from, |reply| read(&reply));
        let now = latest(&self.core.world);
        let mut state = self.state();
        let step = state.renewal.answer(round.number, arrival.node, vote.extension(), now);
        if let RenewalStep::Confirmed { repair } = step {
            let (ttl, mode) = (state.renewal.terms().ttl, state.renewal.mode());
            self.repair(repair, (ttl, mode), &round.inbox);
            // Count the repairs as missing answers: one that is still queued at the end of the
            // round is then withdrawn, and does not arrive after the validity.
            round.missing += repair.len();
        }
        round.shows_removal |= step == RenewalStep::Lost(Ending::Removed);
        round.votes[arrival.node] = vote;
        if round.shows_removal {
            state.unconfirmed = self.core.reports(&self.name, round.votes.clone());
        }
        step
    }

    /// Makes the holder a reader, before the next extension tells the nodes: others may read as
    /// soon as the first node has received it.
    pub(super) fn downgrade(&self) {
        self.state().renewal.downgrade();
    }

    /// How the lock is held.
    pub(super) fn mode(&self) -> Mode {
        self.state().renewal.mode()
    }

    fn send_extension(
        &self,
        plan: Option<LeasePlan>,
        inbox: &Inbox,
    ) -> Option<(RoundNumber, Millis)> {
        let mut state = self.state();
        let ttl = plan.as_ref().map_or_else(|| state.renewal.terms(), |plan| plan.terms).ttl;
        let packet =
            Packet::extend(&self.name, &self.token, (ttl, state.renewal.mode()), self.fence);
        let (started_at, now) = (earliest(&self.core.world), latest(&self.core.world));
        let round = match plan {
            Some(LeasePlan { terms, schedule, .. }) => {
                state.renewal.begin_with(terms, schedule, started_at, now)
            }
            None => state.renewal.begin(started_at, now),
        }?;
        state.longest = state.longest.max(ttl);
        self.core.send_all(&packet, inbox, RequestKind::Extend);
        Some((round, ttl))
    }

    /// Restores the lease on nodes that lost it. Called with the state locked.
    fn repair(&self, nodes: NodeSet, (ttl, mode): (Millis, Mode), inbox: &Inbox) {
        if nodes.is_empty() {
            return;
        }
        let packet = Packet::repair(&self.name, &self.token, (ttl, mode), self.fence, &self.label);
        for node in nodes.iter() {
            self.core.world.send(node, &packet, Some(inbox.reply_to(node, RequestKind::Repair)));
        }
    }

    /// Releases the lease without waiting; the answers go to `inbox`, if there is one. Returns
    /// false if the lease was already released.
    pub(super) fn send_release(&self, inbox: Option<&Inbox>) -> bool {
        let now = latest(&self.core.world);
        let mut state = self.state();
        // Whoever hears of a loss may release before the keeper does.
        self.count_loss(&mut state, now);
        let longest = state.longest;
        if !state.renewal.release() {
            return false;
        }
        self.unplan(&mut state);
        let plain = Packet::release(&self.name, &self.token, longest);
        let hand_over = || Packet::hand_over(&self.name, &self.token, longest);
        let mut handing = None;
        for node in 0..self.core.quorum.nodes() {
            let packet = match self.hands_over(node) {
                true => handing.get_or_insert_with(hand_over),
                false => &plain,
            };
            let reply_to = inbox.map(|inbox| inbox.release_to(node));
            self.core.world.send(node, packet, reply_to);
        }
        drop(state);
        self.end();
        true
    }

    /// Whether a node is told that the lock is handed over: it is known to support that, because
    /// this client has waited there. So a client that never waits sends nothing more.
    fn hands_over(&self, node: usize) -> bool {
        let wakes = self.core.world.wakes();
        wakes.is_some_and(|wakes| wakes.grants_directly(node) == Some(true))
    }

    /// Cleans up after the lease was released or leaked.
    fn end(&self) {
        self.core.metrics.released(self.core.world.now().saturating_sub(self.acquired_at));
        self.ended.notify_waiters();
    }

    /// Releases the lease, and waits until a quorum has confirmed: for at most the timeout, or
    /// until `patience` is over if nodes may yet carry it out.
    pub(super) async fn release(&self, patience: Duration) -> Result<(), ReleaseError> {
        let inbox = Inbox::new(self.core.quorum.nodes());
        let is_sure = !self.validity().is_zero();
        if !self.send_release(Some(&inbox)) {
            return Ok(());
        }
        let wait = Wait { is_for_all: false, patience, is_sure };
        self.core.released(&inbox, &self.name, wait).await
    }

    /// Stops renewing the lease without releasing it, and returns the validity left.
    pub(super) fn leak(&self) -> Duration {
        let validity = self.validity();
        let now = latest(&self.core.world);
        let mut state = self.state();
        self.count_loss(&mut state, now);
        let is_first = state.renewal.release();
        self.unplan(&mut state);
        drop(state);
        if is_first {
            self.end();
        }
        validity
    }

    /// Waits until the lease is lost or released.
    pub(super) async fn lost(&self) -> Lost {
        loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            if let Some(lost) = self.ending() {
                return lost;
            }
            let left: Duration = self.lost_in().into();
            let nap = pin!(self.core.world.sleep(left.min(NAP_MAX)));
            tokio::select! {
                biased;
                () = nap => {}
                () = ended => {}
            }
        }
    }

    pub(super) fn lost_in(&self) -> Millis {
        let lost_at: Instant = self.state().renewal.lost_at();
        latest(&self.core.world).until(lost_at)
    }
}
