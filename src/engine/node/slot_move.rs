//! One slot that moves between this node and another master: what has been asked, and what follows.

use super::authority::with_drift;
use super::company::{Company, whole_wait};
use super::shares::{Footing, SlotAnswer};
use super::{BEAT, FENCE_BLOCK};
use crate::engine::{Fence, Instant, Millis};

/// How long a master's report can be relied on, how long its answer counts about a slot that is on
/// its way, and for how long an answer is waited for.
const FRESH: Millis = Millis::new(5 * BEAT.get());
/// How long after a question it is asked again.
const ASK_EVERY: Millis = Millis::new(100);
/// The same while the slot is on its way, once that master has answered.
const ASK_AGAIN_EVERY: Millis = Millis::new(BEAT.get() / 2);
/// How often it is asked at least before the other master is given up: a node that hangs itself
/// does not read the answer.
const ASKS_MIN: u8 = 20;

/// How long after a master has met others it knows all masters.
const MEETS_IN: Millis = Millis::new(2 * BEAT.get());

/// How long after that it has heard each that runs, on a busy machine too.
const HEARS_IN: Millis = Millis::new(20 * BEAT.get());

/// What a node must do before it decides in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coming {
    /// Ask the other master.
    Asks,
    /// Raise its floor to this one.
    Knows(Fence),
    /// Wait up to this instant. The other master has reported this floor.
    Waits(Instant, Fence),
    /// It has waited up to this instant. Raise its floor to the time, and to the floor that the
    /// other master has reported.
    HasWaited(Instant, Fence),
}

/// How far a move of a slot has come, as seen from this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MoveStage {
    /// It is on its way here: the other master sends clients here for locks that it does not have.
    Comes,
    /// It is this node's.
    Came,
    /// It is this node's, and nobody gave it: any master may have granted leases there meanwhile.
    Found,
    /// It is on its way to the other master, which decides about locks that this node has not.
    Leaves,
}

/// A slot that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) stage: MoveStage,
    /// The other master; `None` if no other has had it, as far as this node knows.
    pub(super) other: Option<usize>,
    /// The master that was seen to get it from another one while it was on its way here.
    pub(super) taken_by: Option<usize>,
    /// It was on its way to the other master, and stays: this node decided there.
    pub(super) has_decided: bool,
    /// When the last question was asked that the other master has answered, of those from this
    /// stage. While the slot is on its way, an answer goes stale; one about a slot that has come
    /// does not.
    answered: Option<Instant>,
    /// Up to when the answers show that no third master can decide there.
    sure_until: Instant,
    /// The node waits up to this instant.
    pub(super) until: Option<Instant>,
    /// When the node first saw it at this stage.
    since: Instant,
    /// Since when it has asked without a long pause.
    asks_since: Instant,
    /// When the other master was last asked, and how often.
    asked_at: Option<Instant>,
    asks: u8,
    /// The highest fence of these answers, below which no lock of the slot starts.
    floor: Fence,
    /// Leases may stand at the other master up to this instant, although the slot is not there.
    held_until: Option<Instant>,
}

impl Move {
    pub(super) fn new(stage: MoveStage, other: Option<usize>, since: Instant) -> Move {
        Move {
            stage,
            other,
            taken_by: None,
            has_decided: false,
            answered: None,
            sure_until: Instant::default(),
            until: None,
            since,
            asks_since: since,
            asked_at: None,
            asks: 0,
            floor: Fence::ZERO,
            held_until: None,
        }
    }

    /// What becomes of it when the slot has come.
    pub(super) fn came(&self, now: Instant) -> Move {
        Move::new(MoveStage::Came, self.taken_by.or(self.other), now)
    }

    /// Whether it is this node's, and does not leave.
    pub(super) fn is_here(&self) -> bool {
        matches!(self.stage, MoveStage::Came | MoveStage::Found)
    }

    /// Whether no other master had it, as far as this node knows.
    pub(super) fn has_no_origin(&self) -> bool {
        self.stage == MoveStage::Came && self.other.is_none()
    }

    /// A master that this node has never heard, or of which it has not even heard from others, may
    /// have had the slot. Returns whether it may still be heard; if not, the slot counts as
    /// [found](MoveStage::Found).
    pub(super) fn is_in_doubt(
        &mut self,
        company: &Company,
        (now, longest): (Instant, Millis),
    ) -> bool {
        self.asked_at = Some(now);
        let since = company.grew_at().map_or(self.asks_since, |at| self.asks_since.max(at));
        if !company.has_stranger() {
            return now <= since.after(MEETS_IN);
        }
        let is_open = now <= since.after(HEARS_IN.min(whole_wait(longest)));
        if !is_open {
            self.stage = MoveStage::Found;
        }
        is_open
    }

    /// Nothing that was answered so far counts.
    pub(super) fn begin_again(&mut self, now: Instant) {
        let Move { stage, other, taken_by, has_decided, .. } = *self;
        *self = Move { taken_by, has_decided, ..Move::new(stage, other, now) };
    }

    /// Whether the other master is to be asked now. If so, it counts as asked.
    pub(super) fn is_to_ask(&mut self, now: Instant) -> bool {
        let pause = match (self.is_answered(now), self.stage) {
            (false, _) => ASK_EVERY,
            (true, MoveStage::Comes) => ASK_AGAIN_EVERY,
            (true, _) => return false,
        };
        let is_due = self.asked_at.is_none_or(|at| at.after(pause) <= now);
        let is_to_ask = is_due && self.is_open(now);
        if is_to_ask {
            (self.asked_at, self.asks) = (Some(now), self.asks.saturating_add(1));
        }
        is_to_ask
    }

    /// If this node has not asked for long before its wait has begun, it has hung, and may not
    /// have read yet that it has lost the slot. So it asks as often again.
    pub(super) fn notice_pause(&mut self, now: Instant) {
        let is_silent = self.asked_at.is_some_and(|at| at.after(BEAT) < now);
        if is_silent && self.stage == MoveStage::Came && self.until.is_none() {
            (self.asks_since, self.asks) = (now, 0);
        }
    }

    /// Takes the other master's answer to a question from `at`.
    pub(super) fn answered(&mut self, at: Instant, answer: &SlotAnswer, now: Instant) {
        let counts = at >= self.since && self.is_open(now) && self.may_answer(answer.up, now);
        if !counts || self.answered > Some(at) {
            return;
        }
        let is_held = !answer.held.is_zero();
        let held_until = is_held.then(|| now.after(with_drift(answer.held)));
        if !self.is_answered(now) {
            self.held_until = held_until;
        } else if self.stage == MoveStage::Comes {
            // It has started again, for example.
            self.held_until = self.held_until.max(held_until);
        }
        (self.answered, self.floor) = (Some(at), self.floor.max(answer.footing.floor));
        self.sure_until = self.sure_until.max(answer.sure.until(at));
    }

    fn is_answered(&self, now: Instant) -> bool {
        let counts = |at: Instant| match self.stage {
            // Its floor may rise.
            MoveStage::Comes => now <= at.after(FRESH).min(self.sure_until),
            _ => true,
        };
        self.answered.is_some_and(counts)
    }

    /// Whether an answer still counts. Once a master that has come by a slot has waited for it in
    /// vain, the other may have been dead when the slot was taken from it: what it reports when it
    /// is back is not about leases that it granted there before.
    fn is_open(&self, now: Instant) -> bool {
        match self.stage {
            MoveStage::Comes => true,
            MoveStage::Came => now <= self.asks_since.after(FRESH) || self.asks < ASKS_MIN,
            MoveStage::Found | MoveStage::Leaves => false,
        }
    }

    /// Whether the other master, which has been up for so long, may speak for itself. One that has
    /// started since the slot came does not know whether it had handed it over.
    fn may_answer(&self, up: Millis, now: Instant) -> bool {
        self.stage == MoveStage::Comes || with_drift(self.since.until(now)) <= up
    }

    /// What must be done before the node decides in the slot. `told`: the other master's last
    /// report, and when it came. `steady_since`: since when most masters have confirmed that the
    /// slot is this node's. `longest`: the longest lease that the node knows of.
    pub(super) fn coming(
        &self,
        told: Option<(Instant, Footing)>,
        (now, steady_since): (Instant, Instant),
        longest: Millis,
    ) -> Coming {
        if self.stage == MoveStage::Leaves {
            return Coming::Knows(Fence::ZERO);
        }
        // Who has answered that leases stand there may be a replica by now, and report no more.
        let is_over = self.stage == MoveStage::Came && self.held_until.is_some();
        let fresh = told.filter(|(at, _)| now <= at.after(FRESH) || is_over);
        let floor = told.map_or(self.floor, |(_, told)| self.floor.max(told.floor));
        if !self.is_answered(now) && self.is_open(now) {
            return Coming::Asks;
        }
        // What the other master says is not about a third one, which may have got the slot after
        // that.
        let is_sure = self.stage == MoveStage::Comes || steady_since <= self.sure_until;
        let is_answered = self.is_answered(now) && is_sure;
        let held_until = self.held_until.filter(|until| now <= *until);
        let until = match (held_until, fresh.filter(|_| is_answered)) {
            (Some(until), _) => until,
            (None, Some((_, told))) if told.left.is_zero() => {
                // While the slot is on its way, the other master may still forget names.
                let ahead = if self.stage == MoveStage::Comes { FENCE_BLOCK } else { 0 };
                return Coming::Knows(floor.saturating_add(ahead));
            }
            (None, Some((at, told))) => {
                self.until.unwrap_or_default().max(at.after(with_drift(told.left)))
            }
            (None, None) => {
                // The others must hear that it waits, whatever the length of a lease.
                let until = self.since.max(steady_since).after(whole_wait(longest));
                self.until.unwrap_or(now.after(BEAT)).max(until)
            }
        };
        if until < now { Coming::HasWaited(until, floor) } else { Coming::Waits(until, floor) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shares::Sure;
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// Regression: the end of the other master's majority counted as if it had ended when that one
    /// was asked. It had been cut off for a minute, while a third one had the slot.
    #[test]
    fn an_answer_counts_if_the_slot_was_confirmed_before_the_other_master_lost_its_majority() {
        let footing = Footing { floor: Fence::ZERO, left: Millis::ZERO };
        let (up, held) = (Millis::new(1 << 40), Millis::ZERO);
        let (steady_since, asked, now) = (at(101_000), at(102_000), at(102_010));
        let knows = |stage, sure| {
            let mut seen = Move::new(stage, Some(0), at(100_000));
            let answer = SlotAnswer { footing, up, held, sure, slots: Vec::new() };
            seen.answered(asked, &answer, now);
            let coming = seen.coming(Some((now, footing)), (now, steady_since), Millis::new(1_000));
            matches!(coming, Coming::Knows(_))
        };
        let [long_ago, lately] = [Sure::Ended(Millis::new(60_000)), Sure::Ended(Millis::new(500))];
        assert!(knows(MoveStage::Came, Sure::For(Millis::new(10))));
        assert!(knows(MoveStage::Came, lately), "it has hung since it gave the slot away");
        assert!(!knows(MoveStage::Came, long_ago));
        assert!(knows(MoveStage::Comes, Sure::For(Millis::new(10))));
        assert!(!knows(MoveStage::Comes, lately), "a third one may have it by now");
    }
}
