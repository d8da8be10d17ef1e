//! A lease from its grant to its end: when to renew, what to repair, and when to call it lost.
//!
//! One state machine owns renewal, repair and release, so that nothing is sent after the release. A
//! holder whose validity has ended may only release: another may hold the lock by now, so it
//! neither extends nor repairs. A failed renewal takes nothing away: the lease stays valid until
//! its end, and the renewal is tried again.
//!
//! A node that comes back without the lease is repaired in the next round, unless a waiter's
//! attempt holds the lock there at that moment. Then the next round comes soon: until the node is
//! repaired, one more node that goes down can cost the lease.

use super::quorum::{NodeSet, Quorum};
use super::validity::Terms;
use super::{Instant, Millis, Mode};

/// If a renewal fails, or finds another token at a node, the next one comes after this part of the
/// renewal interval.
const RETRY_DIVISOR: u64 = 4;
/// A lease is renewed after this part of its ttl.
pub(super) const RENEW_DIVISOR: u64 = 3;
/// A lease is called lost this part of the ttl before it ends, at most [`MARGIN_MAX`] before.
const MARGIN_DIVISOR: u64 = 10;
const MARGIN_MAX: Millis = Millis::new(1_000);

/// What a node answered to an EXTEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Extension {
    /// The lease there ends later now.
    Extended,
    /// It ends later now, but does not count: until the node's quarantine is over, another may have
    /// its vote.
    Provisional,
    /// Another token holds the lock there.
    HeldByAnother,
    /// The node does not know the lease: it forgot it, or the lock was deleted.
    NotHeld,
    /// The node restarted, may have forgotten the lease, and grants nothing for now.
    Quarantined,
    /// Unknown: no answer in time, the connection broke, or an error.
    Unknown,
}

/// How a lease is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Schedule {
    /// From the start of one renewal to the next; `None`: only on request.
    pub every: Option<Millis>,
    /// The lease is called lost this long before its validity ends, so that its holder can stop in
    /// time.
    pub margin: Millis,
    /// The validity is never prolonged beyond this time after the acquisition began.
    pub max_hold: Option<Millis>,
}

impl Schedule {
    /// The default for a lease of length `ttl`: renewed after a third of it, and called lost a
    /// tenth of it, at most a second, before its end.
    pub fn of(ttl: Millis) -> Schedule {
        Schedule {
            every: Some(Millis::new((ttl.get() / RENEW_DIVISOR).max(1))),
            margin: Millis::new(ttl.get() / MARGIN_DIVISOR).min(MARGIN_MAX),
            max_hold: None,
        }
    }
}

/// Why a lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ending {
    /// The validity (nearly) ended without a renewal.
    Expired,
    /// A quorum of nodes answered that this token does not hold the lock: the lock was deleted, or
    /// a quorum of nodes forgot the lease.
    Removed,
    /// `max_hold` is reached.
    MaxHold,
}

/// The number of a round of extends. Answers to an older round are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoundNumber(u32);

/// What to do next, without a new answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[must_use]
pub enum Due {
    /// Begin a round now.
    Now,
    /// Look again at this instant.
    At(Instant),
    /// The lease is lost or released: nothing is ever due again.
    Never,
}

/// What an answer led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[must_use]
pub enum RenewalStep {
    /// Keep waiting for answers.
    Wait,
    /// A quorum has confirmed this round, now or earlier. Repair these nodes with
    /// `LOCK.EXTEND key token ttl FENCE f REPAIR`; there may be none. Their answers to the repair
    /// are not counted.
    Confirmed {
        /// The nodes that lost the lease, or may have.
        repair: NodeSet,
    },
    /// No quorum confirmed this round. The validity stays as it was.
    Failed,
    /// The lease is lost. Nothing but the release may be sent for it.
    Lost(Ending),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum LeaseState {
    Held,
    Lost(Ending),
    Released,
}

/// How a lease goes on once a quorum has confirmed these terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Course {
    terms: Terms,
    every: Option<Millis>,
    margin: Millis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Round {
    number: RoundNumber,
    started_at: Instant,
    /// What it asks for, if that is new, until it is confirmed.
    course: Option<Course>,
    extended: NodeSet,
    /// Nodes where this token does not hold the lock.
    not_ours: NodeSet,
    /// Nodes that lost the lease, or may have, and may be repaired.
    forgotten: NodeSet,
    /// Nodes that have reported neither that the lease counts nor that it is gone.
    unknown: NodeSet,
    is_confirmed: bool,
}

/// The state of one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Renewal {
    quorum: Quorum,
    terms: Terms,
    mode: Mode,
    schedule: Schedule,
    state: LeaseState,
    ends_at: Instant,
    /// The validity never ends after this.
    latest: Option<Instant>,
    next_at: Option<Instant>,
    rounds: u32,
    round: Option<Round>,
}

impl Renewal {
    /// A lease that was requested at `started_at` and is valid until `ends_at`.
    pub fn new(
        quorum: Quorum,
        terms: Terms,
        schedule: Schedule,
        started_at: Instant,
        ends_at: Instant,
    ) -> Renewal {
        let latest = schedule.max_hold.map(|max_hold| started_at.after(max_hold));
        Renewal {
            quorum,
            terms,
            mode: Mode::Exclusive,
            schedule,
            state: LeaseState::Held,
            ends_at: latest.map_or(ends_at, |latest| latest.min(ends_at)),
            latest,
            next_at: schedule.every.map(|every| started_at.after(every)),
            rounds: 0,
            round: None,
        }
    }

    /// The same lease, held in this mode.
    #[must_use]
    pub const fn holding(self, mode: Mode) -> Renewal {
        Renewal { mode, ..self }
    }

    /// The same lease, held from this instant on: `max_hold` counts from there.
    #[must_use]
    pub fn held_from(self, began_at: Instant, ends_at: Instant) -> Renewal {
        let latest = self.schedule.max_hold.map(|max_hold| began_at.after(max_hold));
        let ends_at = latest.map_or(ends_at, |latest| latest.min(ends_at));
        Renewal { latest, ends_at, ..self }
    }

    /// How the lock is held. Extensions and repairs request this mode.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Makes the holder a reader, even if the nodes do not know it yet. A round that is under way
    /// asked for a writer's lease, so its answers no longer count.
    pub const fn downgrade(&mut self) {
        if !self.mode.is_shared() {
            self.mode = Mode::Shared;
            self.round = None;
        }
    }

    /// The instant from which the lease must not be relied on.
    pub const fn ends_at(&self) -> Instant {
        self.ends_at
    }

    /// The instant from which the lease is called lost, unless it is extended before.
    pub const fn lost_at(&self) -> Instant {
        self.ends_at.before(self.schedule.margin)
    }

    /// The validity left at `now` (rounded up). A lease that is called lost because its end is near
    /// still has the time until that end, for its holder to stop in; one that was removed or
    /// released has none.
    pub const fn validity(&self, now: Instant) -> Millis {
        match self.state {
            LeaseState::Held | LeaseState::Lost(Ending::Expired | Ending::MaxHold) => {
                now.until(self.ends_at)
            }
            LeaseState::Lost(Ending::Removed) | LeaseState::Released => Millis::ZERO,
        }
    }

    /// Why the lease is lost, if it is. Once this has returned an ending, the lease stays lost.
    pub fn ending(&mut self, now: Instant) -> Option<Ending> {
        if self.state == LeaseState::Held && now >= self.lost_at() {
            let is_capped = self.latest.is_some_and(|latest| latest <= self.ends_at);
            self.state =
                LeaseState::Lost(if is_capped { Ending::MaxHold } else { Ending::Expired });
        }
        match self.state {
            LeaseState::Lost(ending) => Some(ending),
            LeaseState::Held | LeaseState::Released => None,
        }
    }

    /// Whether the lease was released.
    pub const fn is_released(&self) -> bool {
        matches!(self.state, LeaseState::Released)
    }

    /// Gives the lease back: from now on nothing but the release may be sent. False if it was
    /// released before.
    pub const fn release(&mut self) -> bool {
        let is_first = !self.is_released();
        self.state = LeaseState::Released;
        self.round = None;
        is_first
    }

    /// Whether the lease is renewed automatically.
    pub const fn renews(&self) -> bool {
        self.schedule.every.is_some()
    }

    /// The present terms.
    pub const fn terms(&self) -> Terms {
        self.terms
    }

    /// What is due at `now`.
    pub fn due(&mut self, now: Instant) -> Due {
        if self.ending(now).is_some() || self.is_released() {
            return Due::Never;
        }
        match self.next_at {
            Some(next_at) if self.can_gain() && next_at <= now => Due::Now,
            Some(next_at) if self.can_gain() => Due::At(next_at.min(self.lost_at())),
            Some(_) | None => Due::At(self.lost_at()),
        }
    }

    /// Begins a round: EXTEND goes to all nodes. `started_at` is read before the first byte is
    /// sent, and rounded down; `now` is the same moment rounded up. `None` if the lease is lost or
    /// released: nothing may be sent.
    pub fn begin(&mut self, started_at: Instant, now: Instant) -> Option<RoundNumber> {
        self.begin_round(None, started_at, now)
    }

    /// The same with other terms and another schedule (`max_hold` stays), which the lease has from
    /// the moment on at which a quorum confirms this round. If none does, it keeps its own. This
    /// never shortens the validity.
    pub fn begin_with(
        &mut self,
        terms: Terms,
        schedule: Schedule,
        started_at: Instant,
        now: Instant,
    ) -> Option<RoundNumber> {
        let course = Course { terms, every: schedule.every, margin: schedule.margin };
        self.begin_round(Some(course), started_at, now)
    }

    fn begin_round(
        &mut self,
        course: Option<Course>,
        started_at: Instant,
        now: Instant,
    ) -> Option<RoundNumber> {
        if self.ending(now).is_some() || self.is_released() {
            return None;
        }
        self.rounds = self.rounds.wrapping_add(1);
        let number = RoundNumber(self.rounds);
        self.next_at = self.schedule.every.map(|every| started_at.after(every));
        self.round = Some(Round {
            number,
            started_at,
            course,
            extended: NodeSet::EMPTY,
            not_ours: NodeSet::EMPTY,
            forgotten: NodeSet::EMPTY,
            unknown: NodeSet::EMPTY,
            is_confirmed: false,
        });
        Some(number)
    }

    /// Takes `node`'s answer to the EXTEND of a round, read at `now` (rounded up).
    pub fn answer(
        &mut self,
        number: RoundNumber,
        node: usize,
        answer: Extension,
        now: Instant,
    ) -> RenewalStep {
        let Some(round) = self.round.as_mut().filter(|round| round.number == number) else {
            return RenewalStep::Wait;
        };
        if round.extended.or(round.not_ours).has(node) || !self.quorum.all().has(node) {
            return RenewalStep::Wait;
        }
        match answer {
            Extension::Extended => round.extended.insert(node),
            Extension::HeldByAnother => round.not_ours.insert(node),
            Extension::NotHeld => {
                round.not_ours.insert(node);
                round.forgotten.insert(node);
            }
            // A quarantined node grants nothing to others, so the lease is not lost there.
            Extension::Quarantined => {
                round.unknown.insert(node);
                round.forgotten.insert(node);
            }
            // A node with a provisional lease keeps it beyond its quarantine: there is nothing to
            // repair.
            Extension::Provisional | Extension::Unknown => round.unknown.insert(node),
        }
        let step = self.decide(now);
        if matches!(step, RenewalStep::Confirmed { .. }) && answer == Extension::HeldByAnother {
            self.next_at = self.next_at.min(self.retry_at(now));
        }
        step
    }

    /// Whether answers to this round still count: not once the holder has become a reader, or the
    /// lease has ended.
    pub fn waits_for(&self, number: RoundNumber) -> bool {
        self.round.is_some_and(|round| round.number == number)
    }

    /// Stops waiting for the nodes that have not answered this round.
    pub fn time_out(&mut self, number: RoundNumber, now: Instant) -> RenewalStep {
        match self.round.as_mut().filter(|round| round.number == number) {
            Some(round) => {
                let answered = round.extended.or(round.not_ours);
                round.unknown = self.quorum.all().without(answered);
                self.decide(now)
            }
            None => RenewalStep::Wait,
        }
    }

    /// Whether a confirmation would prolong the validity.
    fn can_gain(&self) -> bool {
        self.latest.is_none_or(|latest| self.ends_at < latest)
    }

    fn decide(&mut self, now: Instant) -> RenewalStep {
        // No answer after the end renews the lease.
        if let Some(ending) = self.ending(now) {
            self.round = None;
            return RenewalStep::Lost(ending);
        }
        let Some(round) = self.round else { return RenewalStep::Wait };
        if self.quorum.is_reached(round.extended) {
            return self.confirm(round, now);
        }
        // Repairing without a confirmation would undo an operator's DEL on all nodes.
        if self.quorum.is_reached(round.not_ours) {
            self.state = LeaseState::Lost(Ending::Removed);
            self.round = None;
            return RenewalStep::Lost(Ending::Removed);
        }
        let possible = self.quorum.all().without(round.not_ours).without(round.unknown);
        if self.quorum.is_reached(possible.or(round.extended)) {
            return RenewalStep::Wait;
        }
        // Late answers may still confirm the round; meanwhile the next one is planned.
        self.next_at = self.retry_at(now);
        RenewalStep::Failed
    }

    /// Takes the confirmation of the present round by a quorum.
    fn confirm(&mut self, mut round: Round, now: Instant) -> RenewalStep {
        if let Some(Course { terms, every, margin }) = round.course.take() {
            self.terms = terms;
            self.schedule.every = every;
            // A longer margin could call the lease lost that was just extended.
            self.schedule.margin = self.schedule.margin.min(margin);
            self.next_at = every.map(|every| round.started_at.after(every));
        }
        let ends_at = self.terms.ends_at(round.started_at).max(self.ends_at);
        self.ends_at = self.latest.map_or(ends_at, |latest| latest.min(ends_at));
        let has_rival = round.not_ours.without(round.forgotten) != NodeSet::EMPTY;
        let is_first = !std::mem::replace(&mut round.is_confirmed, true);
        let repair = std::mem::take(&mut round.forgotten);
        self.round = Some(round);
        // The rival may be one attempt of a waiter, at a node that came back without the lease. It
        // is over in a moment, and then the node can be repaired.
        if is_first && has_rival {
            self.next_at = self.next_at.min(self.retry_at(now));
        }
        RenewalStep::Confirmed { repair }
    }

    /// When to begin a round earlier than scheduled.
    fn retry_at(&self, now: Instant) -> Option<Instant> {
        let retry = |every: Millis| Millis::new((every.get() / RETRY_DIVISOR).max(1));
        self.schedule.every.map(|every| now.after(retry(every)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: Instant = Instant::from_millis(10_000);

    fn at(millis: u64) -> Instant {
        START.after(Millis::new(millis))
    }

    #[test]
    fn a_lease_is_renewed_at_a_third_and_called_lost_a_tenth_before_its_end() {
        let of = |ttl| {
            let Schedule { every, margin, .. } = Schedule::of(Millis::new(ttl));
            (every.map(Millis::get), margin.get())
        };
        assert_eq!(of(900), (Some(300), 90));
        assert_eq!([of(9_999), of(10_010)], [(Some(3_333), 999), (Some(3_336), 1_000)]);
        assert_eq!(of(2), (Some(1), 0), "never at every instant");
    }

    fn renewal(max_hold: Option<u64>) -> Renewal {
        let schedule = Schedule {
            every: Some(Millis::new(300)),
            margin: Millis::new(100),
            max_hold: max_hold.map(Millis::new),
        };
        let terms = Terms::new(Millis::new(1_000));
        Renewal::new(Quorum::of(3).unwrap(), terms, schedule, START, terms.ends_at(START))
    }

    fn begin(renewal: &mut Renewal, now: u64) -> RoundNumber {
        renewal.begin(at(now), at(now)).unwrap()
    }

    /// A lock that is handed over was requested earlier, perhaps much earlier.
    #[test]
    fn the_longest_hold_counts_from_the_win_and_the_validity_from_the_request() {
        let ends_at = at(990);
        let held = |max_hold| renewal(max_hold).held_from(at(400), ends_at);
        assert_eq!(renewal(Some(500)).validity(at(450)).get(), 50, "from the request");
        assert_eq!(held(Some(500)).validity(at(450)).get(), 450, "from the win");
        for max_hold in [None, Some(5_000)] {
            assert_eq!(held(max_hold).validity(at(450)).get(), 540, "no later than the validity");
        }
    }

    /// A waiter's attempt holds the lock at a node that came back without the lease.
    #[test]
    fn a_node_that_another_has_at_a_confirmed_round_is_looked_at_again_soon() {
        use Extension::{Extended, HeldByAnother, NotHeld};
        let next = |answers: [Extension; 3]| {
            let mut renewal = renewal(None);
            let round = begin(&mut renewal, 300);
            for (node, answer) in answers.into_iter().enumerate() {
                let _ = renewal.answer(round, node, answer, at(310));
            }
            renewal.due(at(310))
        };
        for answers in [
            [HeldByAnother, Extended, Extended],
            [Extended, HeldByAnother, Extended],
            [Extended, Extended, HeldByAnother],
        ] {
            assert_eq!(next(answers), Due::At(at(385)), "{answers:?}");
        }
        for answers in [
            [Extended, Extended, Extended],
            [NotHeld, Extended, Extended],
            [Extended, Extended, NotHeld],
        ] {
            assert_eq!(next(answers), Due::At(at(600)), "a node that is re-joined: {answers:?}");
        }
    }

    const CONFIRMED: RenewalStep = RenewalStep::Confirmed { repair: NodeSet::EMPTY };

    #[test]
    fn a_quorum_prolongs_from_before_the_extend_was_sent() {
        let mut renewal = renewal(None);
        assert_eq!(renewal.due(at(0)), Due::At(at(300)));
        assert_eq!(renewal.due(at(300)), Due::Now);
        let round = begin(&mut renewal, 300);
        assert_eq!(renewal.answer(round, 0, Extension::Extended, at(310)), RenewalStep::Wait);
        assert_eq!(renewal.ends_at(), at(988));
        assert_eq!(renewal.answer(round, 1, Extension::Extended, at(390)), CONFIRMED);
        assert_eq!(renewal.ends_at(), at(1_288));
        assert_eq!(renewal.due(at(390)), Due::At(at(600)));
    }

    /// Begins a round that asks for another ttl.
    fn begin_with(
        renewal: &mut Renewal,
        (ttl, every): (u64, Option<u64>),
        when: u64,
    ) -> RoundNumber {
        let terms = Terms::new(Millis::new(ttl));
        let schedule = Schedule { every: every.map(Millis::new), ..Schedule::of(terms.ttl) };
        renewal.begin_with(terms, schedule, at(when), at(when)).unwrap()
    }

    #[test]
    fn answers_to_the_former_terms_do_not_count_for_the_new_ones() {
        let mut renewal = renewal(None);
        let old = begin(&mut renewal, 300);
        assert_eq!(renewal.answer(old, 0, Extension::Extended, at(310)), RenewalStep::Wait);
        let new = begin_with(&mut renewal, (3_000, Some(1_000)), 400);
        assert_eq!(renewal.answer(old, 1, Extension::Extended, at(405)), RenewalStep::Wait);
        assert_eq!(renewal.ends_at(), at(988), "they extended by the former ttl");
        assert_eq!(renewal.answer(new, 0, Extension::Extended, at(410)), RenewalStep::Wait);
        assert_eq!(renewal.answer(new, 1, Extension::Extended, at(410)), CONFIRMED);
        assert_eq!((renewal.ends_at(), renewal.lost_at()), (at(3_368), at(3_268)));
        assert_eq!(renewal.due(at(410)), Due::At(at(1_400)));

        assert!(renewal.renews());
        let short = begin_with(&mut renewal, (500, None), 500);
        assert_eq!(renewal.answer(short, 0, Extension::Extended, at(510)), RenewalStep::Wait);
        assert_eq!(renewal.answer(short, 1, Extension::Extended, at(510)), CONFIRMED);
        assert!(!renewal.renews(), "automatic renewal is off");
        assert_eq!(renewal.ends_at(), at(3_368), "a shorter ttl takes nothing away");
    }

    /// Regression: a ttl that the nodes refused stayed the lease's, so every renewal after it was
    /// refused too.
    #[test]
    fn terms_that_no_quorum_confirms_change_nothing() {
        let mut renewal = renewal(None);
        let before = renewal.terms();
        let long = begin_with(&mut renewal, (30_000, Some(10_000)), 300);
        assert_eq!(renewal.due(at(300)), Due::At(at(600)), "it may be given up without a word");
        assert_eq!(renewal.answer(long, 0, Extension::Extended, at(310)), RenewalStep::Wait);
        assert_eq!(renewal.answer(long, 1, Extension::Unknown, at(310)), RenewalStep::Wait);
        assert_eq!(renewal.answer(long, 2, Extension::Unknown, at(310)), RenewalStep::Failed);
        assert_eq!((renewal.ends_at(), renewal.terms()), (at(988), before));
        assert_eq!(renewal.due(at(310)), Due::At(at(385)), "as after any failed renewal");
        let next = begin(&mut renewal, 385);
        assert_eq!(renewal.answer(next, 1, Extension::Extended, at(390)), RenewalStep::Wait);
        assert_eq!(renewal.answer(long, 1, Extension::Extended, at(390)), RenewalStep::Wait);
        assert_eq!(renewal.answer(next, 2, Extension::Extended, at(390)), CONFIRMED);
        assert_eq!(renewal.ends_at(), at(1_373), "by the former ttl");
        assert_eq!(renewal.due(at(390)), Due::At(at(685)));
    }

    #[test]
    fn failed_renewal_keeps_the_lease_and_tries_again_sooner() {
        let mut renewal = renewal(None);
        let round = begin(&mut renewal, 300);
        assert_eq!(renewal.answer(round, 0, Extension::Extended, at(310)), RenewalStep::Wait);
        assert_eq!(renewal.time_out(round, at(400)), RenewalStep::Failed);
        assert_eq!(renewal.validity(at(400)), Millis::new(588));
        assert_eq!(renewal.due(at(400)), Due::At(at(475)));
        let again = begin(&mut renewal, 475);
        assert_eq!(
            renewal.answer(round, 1, Extension::Extended, at(480)),
            RenewalStep::Wait,
            "an old round"
        );
        assert_eq!(renewal.answer(again, 1, Extension::Extended, at(480)), RenewalStep::Wait);
        assert_eq!(renewal.answer(again, 2, Extension::Extended, at(480)), CONFIRMED);
    }

    #[test]
    fn a_quorum_of_answers_to_an_older_round_prolongs_nothing() {
        let mut renewal = renewal(None);
        let (old, new) = (begin(&mut renewal, 300), begin(&mut renewal, 500));
        assert_ne!(old, new);
        for node in 0..3 {
            assert_eq!(renewal.answer(old, node, Extension::Extended, at(510)), RenewalStep::Wait);
        }
        assert_eq!(renewal.ends_at(), at(988));
    }

    #[test]
    fn the_longest_time_to_hold_shortens_the_first_validity_and_never_prolongs_it() {
        assert_eq!(renewal(Some(5_000)).ends_at(), at(988));
        assert_eq!(renewal(Some(988)).ends_at(), at(988));
        assert_eq!(renewal(Some(987)).ends_at(), at(987));
    }

    #[test]
    fn a_holder_whose_validity_has_ended_is_done() {
        let mut renewal = renewal(None);
        let round = begin(&mut renewal, 800);
        let _ = renewal.answer(round, 0, Extension::Extended, at(850));
        let lost = RenewalStep::Lost(Ending::Expired);
        assert_eq!(renewal.answer(round, 1, Extension::Extended, at(888)), lost);
        assert_eq!(renewal.begin(at(889), at(889)), None);
        assert_eq!(renewal.due(at(889)), Due::Never);
        assert_eq!(renewal.validity(at(889)), Millis::new(99), "time left to stop");
        assert_eq!(renewal.validity(at(988)), Millis::ZERO);
        assert!(renewal.release(), "only the release is left");
    }

    #[test]
    fn lost_stays_lost_once_somebody_was_told() {
        let mut renewal = renewal(None);
        let round = begin(&mut renewal, 800);
        assert_eq!(renewal.ending(at(887)), None);
        assert_eq!(renewal.ending(at(888)), Some(Ending::Expired));
        for node in 0..3 {
            let step = renewal.answer(round, node, Extension::Extended, at(800));
            assert!(!matches!(step, RenewalStep::Confirmed { .. }), "{step:?}");
        }
        assert_eq!(renewal.ending(at(800)), Some(Ending::Expired));
    }

    #[test]
    fn nodes_that_forgot_are_repaired_only_after_a_quorum_confirmed() {
        let mut renewal = renewal(None);
        let round = begin(&mut renewal, 300);
        assert_eq!(renewal.answer(round, 0, Extension::NotHeld, at(301)), RenewalStep::Wait);
        assert_eq!(renewal.answer(round, 1, Extension::Extended, at(302)), RenewalStep::Wait);
        let repair = NodeSet::of(0);
        let step = renewal.answer(round, 2, Extension::Extended, at(303));
        assert_eq!(step, RenewalStep::Confirmed { repair });
    }

    #[test]
    fn a_late_quarantine_answer_is_repaired_too_and_another_holder_is_not() {
        let mut renewal = renewal(None);
        let round = begin(&mut renewal, 300);
        let _ = renewal.answer(round, 0, Extension::Extended, at(301));
        let _ = renewal.answer(round, 1, Extension::Extended, at(301));
        let mut other = renewal;
        let repair = NodeSet::of(2);
        let step = renewal.answer(round, 2, Extension::Quarantined, at(302));
        assert_eq!(step, RenewalStep::Confirmed { repair });
        assert_eq!(other.answer(round, 2, Extension::HeldByAnother, at(302)), CONFIRMED);
    }

    #[test]
    fn a_lock_removed_from_a_quorum_is_lost_at_once_and_not_repaired() {
        let mut renewal = renewal(None);
        let round = begin(&mut renewal, 300);
        assert_eq!(renewal.answer(round, 0, Extension::NotHeld, at(301)), RenewalStep::Wait);
        let lost = RenewalStep::Lost(Ending::Removed);
        assert_eq!(renewal.answer(round, 1, Extension::HeldByAnother, at(301)), lost);
        assert_eq!(renewal.ending(at(301)), Some(Ending::Removed));
    }

    #[test]
    fn a_provisional_lease_neither_confirms_nor_loses_nor_is_repaired() {
        let mut renewal = renewal(None);
        let round = begin(&mut renewal, 300);
        let mut other = renewal;
        assert_eq!(renewal.answer(round, 0, Extension::Provisional, at(301)), RenewalStep::Wait);
        assert_eq!(renewal.answer(round, 1, Extension::Extended, at(301)), RenewalStep::Wait);
        assert_eq!(renewal.answer(round, 2, Extension::Extended, at(302)), CONFIRMED);
        assert_eq!(other.answer(round, 1, Extension::Provisional, at(301)), RenewalStep::Wait);
        assert_eq!(other.answer(round, 2, Extension::Provisional, at(301)), RenewalStep::Failed);
        assert_eq!((other.ending(at(301)), other.ends_at()), (None, at(988)));
    }

    #[test]
    fn a_quorum_in_quarantine_fails_the_renewal_and_loses_nothing() {
        let mut renewal = renewal(None);
        let round = begin(&mut renewal, 300);
        assert_eq!(renewal.answer(round, 0, Extension::Quarantined, at(301)), RenewalStep::Wait);
        assert_eq!(renewal.answer(round, 1, Extension::Quarantined, at(301)), RenewalStep::Failed);
        assert_eq!(renewal.ending(at(301)), None);
    }

    #[test]
    fn max_hold_ends_the_validity_and_the_renewing() {
        let mut renewal = renewal(Some(1_100));
        let round = begin(&mut renewal, 300);
        let _ = renewal.answer(round, 0, Extension::Extended, at(301));
        assert_eq!(renewal.answer(round, 1, Extension::Extended, at(301)), CONFIRMED);
        assert_eq!(renewal.ends_at(), at(1_100));
        assert_eq!(renewal.due(at(700)), Due::At(at(1_000)), "another round would gain nothing");
        assert_eq!(renewal.ending(at(1_000)), Some(Ending::MaxHold));
    }

    #[test]
    fn nothing_begins_after_the_release() {
        let mut renewal = renewal(None);
        let round = begin(&mut renewal, 300);
        assert!(renewal.release());
        assert!(!renewal.release(), "only once");
        assert_eq!(renewal.begin(at(301), at(301)), None);
        assert_eq!(renewal.due(at(301)), Due::Never);
        assert_eq!(renewal.answer(round, 0, Extension::NotHeld, at(302)), RenewalStep::Wait);
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Begin,
        Answer(usize, Extension),
        TimeOut,
        Look,
        Release,
    }

    /// Whether a later answer of the same node is ignored.
    fn is_final(answer: Extension) -> bool {
        use Extension::{Provisional, Quarantined, Unknown};
        !matches!(answer, Unknown | Quarantined | Provisional)
    }

    fn events() -> impl Strategy<Value = Vec<(Event, u64)>> {
        let extension = prop_oneof![
            5 => Just(Extension::Extended),
            1 => Just(Extension::HeldByAnother),
            1 => Just(Extension::NotHeld),
            1 => Just(Extension::Quarantined),
            1 => Just(Extension::Provisional),
            1 => Just(Extension::Unknown),
        ];
        let event = prop_oneof![
            4 => Just(Event::Begin),
            12 => (0usize..3, extension).prop_map(|(node, answer)| Event::Answer(node, answer)),
            1 => Just(Event::TimeOut),
            1 => Just(Event::Look),
            1 => Just(Event::Release),
        ];
        prop::collection::vec((event, 0u64..150), 0..60)
    }

    proptest! {
        /// The naive reference model: the validity is the largest (start of a round + ttl - drift)
        /// of those rounds that a quorum confirmed before the validity, less the margin, had ended.
        #[test]
        fn the_validity_rests_on_a_quorum_that_confirmed_in_time(events in events()) {
            let mut renewal = renewal(None);
            let (mut now, mut ends, mut is_over) = (0, 988, false);
            let (mut round, mut started, mut yes) = (None, 0, NodeSet::EMPTY);
            let mut answered = NodeSet::EMPTY;
            for (event, later) in events {
                now += later;
                let is_late = now + 100 >= ends;
                match event {
                    Event::Begin => {
                        let begun = renewal.begin(at(now), at(now));
                        is_over |= is_late;
                        prop_assert_eq!(begun.is_some(), !is_over);
                        if begun.is_some() {
                            (round, started) = (begun, now);
                            (yes, answered) = (NodeSet::EMPTY, NodeSet::EMPTY);
                        }
                    }
                    Event::Answer(node, answer) => {
                        let Some(round) = round else { continue };
                        let step = renewal.answer(round, node, answer, at(now));
                        if !answered.has(node) && !is_over && !is_late {
                            if answer == Extension::Extended { yes.insert(node); }
                            if is_final(answer) { answered.insert(node); }
                            if yes.len() >= 2 { ends = ends.max(started + 988); }
                        }
                        if let RenewalStep::Confirmed { .. } = step {
                            prop_assert!(yes.len() >= 2 && !is_over && !is_late);
                        }
                        is_over |= matches!(step, RenewalStep::Lost(_));
                    }
                    Event::TimeOut => {
                        let Some(round) = round else { continue };
                        is_over |= matches!(renewal.time_out(round, at(now)), RenewalStep::Lost(_));
                    }
                    Event::Look => is_over |= renewal.ending(at(now)).is_some(),
                    Event::Release => { renewal.release(); is_over = true; }
                }
                prop_assert_eq!(renewal.ends_at(), at(ends));
                if is_over {
                    prop_assert!(renewal.validity(at(ends)).is_zero());
                    prop_assert_eq!(renewal.due(at(now)), Due::Never);
                }
            }
        }
    }
}
