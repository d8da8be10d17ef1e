//! Waiting for a lock over a quorum: when to try again.
//!
//! A waiter has one ticket for its whole wait, and every node orders its line by tickets. A node
//! that has reserved the lock for a ticket *wakes* the waiter; so does one that removes it from the
//! line because it will not grant the lock any more. A wake is a hint: it grants nothing, and only
//! indicates when an ordinary [attempt](super::Attempt) is worthwhile. So a wake that is lost, late
//! or made up costs only time: after a while the waiter tries without one.
//!
//! Nor do wakes set the pace, because a node may keep waking the waiter and refusing its attempts.
//! After each lost attempt that followed a wake, the waiter heeds the next wake later.
//!
//! While its ticket is not in line at a quorum of nodes, no quorum can wake the waiter: it polls.

use super::quorum::{NodeSet, Quorum};
use super::renewal::RENEW_DIVISOR;
use super::{Instant, Millis};

/// The first pause between two attempts of a waiter that polls is random, up to this.
const POLL_MIN: Millis = Millis::new(10);
/// That limit doubles with each lost attempt, up to this.
const POLL_MAX: Millis = Millis::new(500);
/// The longest time in line without an attempt is no shorter than this, however short the lease. A
/// waiter is woken when its turn comes, so it need not ask more often than one that polls.
const FALLBACK_MIN: Millis = POLL_MAX;
/// When some nodes have woken the waiter but no quorum has, it waits this long for the rest; twice
/// as long after each attempt that was lost in this way.
const HURRY: Millis = Millis::new(50);

/// What a waiter does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[must_use]
pub enum Next {
    /// Attempt now.
    Attempt,
    /// Attempt at this instant, unless something is reported before.
    WaitUntil(Instant),
}

/// The state of one wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Waiting {
    quorum: Quorum,
    /// The longest time in line without an attempt, and twice the shortest. It is the interval at
    /// which a holder renews, so waiting costs about as much as holding; but see [`FALLBACK_MIN`].
    fallback: Millis,
    /// The nodes where the ticket is in line, as far as is known.
    in_line: NodeSet,
    /// The nodes that have woken the waiter since their last answer.
    woken: NodeSet,
    /// When the next attempt is made if no quorum wakes the waiter.
    attempt_at: Instant,
    /// Consecutive lost attempts that were made while not in line at a quorum, or after some nodes
    /// had woken the waiter.
    in_vain: u32,
    /// The instant from which wakes lead to an attempt.
    heeds_wakes_at: Instant,
    /// Consecutive lost attempts after some nodes, but no quorum, had woken the waiter.
    hurries: u32,
}

impl Waiting {
    /// A wait for a lease of length `ttl`, before its first attempt.
    pub const fn new(quorum: Quorum, ttl: Millis) -> Waiting {
        let third = Millis::new(ttl.get() / RENEW_DIVISOR);
        let fallback = if third.get() < FALLBACK_MIN.get() { FALLBACK_MIN } else { third };
        Waiting {
            quorum,
            fallback,
            in_line: NodeSet::EMPTY,
            woken: NodeSet::EMPTY,
            attempt_at: Instant::from_millis(0),
            in_vain: 0,
            heeds_wakes_at: Instant::from_millis(0),
            hurries: 0,
        }
    }

    /// How long the ticket stays in line without another attempt: a waiter that is cut off must not
    /// hold up others for long.
    pub const fn stay(&self) -> Millis {
        Millis::new(self.fallback.get() * RENEW_DIVISOR)
    }

    /// Begins an attempt, which uses up earlier wakes. Returns the nodes that had woken the waiter.
    pub fn begin(&mut self) -> NodeSet {
        self.in_vain = match self.is_in_line() && self.woken.is_empty() {
            true => 0,
            false => self.in_vain.saturating_add(1),
        };
        self.hurries = match self.quorum.is_reached(self.woken) {
            true => 0,
            false if self.woken.is_empty() => self.hurries,
            false => self.hurries.saturating_add(1),
        };
        std::mem::take(&mut self.woken)
    }

    /// `node` has answered the attempt, or a registration. Its earlier wakes are out of date,
    /// because it sent them before it served the request.
    pub fn answered(&mut self, node: usize) {
        self.woken = self.woken.without(NodeSet::of(node));
    }

    /// The attempt is lost, and its ticket is in line, or about to be. `silent` are the nodes that
    /// did not answer the attempt in time: the ticket is taken to be in line at all others.
    /// `random` is uniformly distributed.
    pub fn lost(&mut self, silent: NodeSet, now: Instant, random: u32) {
        self.in_line = self.quorum.all().without(silent);
        // At least half of the pause, with jitter: waiters that are woken together must not collide
        // again.
        let pause = if self.in_vain > 1 { self.pause() } else { 0 };
        self.heeds_wakes_at = now.after(Millis::new(pause / 2 + part(pause / 2, random)));
        self.plan(now, random);
    }

    /// The attempt is lost, and the ticket is not put in line anywhere.
    pub fn lost_without_line(&mut self, now: Instant, random: u32) {
        self.in_line = NodeSet::EMPTY;
        self.plan(now, random);
    }

    /// The ticket is in line at `node`.
    pub fn joined(&mut self, node: usize, now: Instant, random: u32) {
        let was_polling = !self.is_in_line();
        self.in_line.insert(node);
        if was_polling && self.is_in_line() {
            self.plan(now, random);
        }
    }

    /// The ticket is no longer in line at `node`: the connection broke, or the node refused.
    pub fn out_of_line(&mut self, node: usize, now: Instant, random: u32) {
        let was_in_line = self.is_in_line();
        self.in_line = self.in_line.without(NodeSet::of(node));
        self.woken = self.woken.without(NodeSet::of(node));
        if was_in_line && !self.is_in_line() {
            self.plan(now, random);
        }
    }

    /// `node` reports that it has reserved the lock for the ticket, or granted it.
    pub fn woken(&mut self, node: usize, now: Instant) {
        if !self.quorum.all().has(node) {
            return;
        }
        let hurry = Millis::new(HURRY.get() << self.hurries.min(16)).min(self.fallback);
        if self.woken.is_empty() {
            let attempt_at = now.after(hurry).max(self.heeds_wakes_at);
            self.attempt_at = self.attempt_at.min(attempt_at);
        }
        self.woken.insert(node);
    }

    /// Whether the ticket is in line at a quorum of nodes, as far as is known.
    pub const fn is_in_line(&self) -> bool {
        self.quorum.is_reached(self.in_line)
    }

    /// Whether a quorum of nodes has reserved the lock for the ticket, or granted it.
    pub const fn is_first(&self) -> bool {
        self.quorum.is_reached(self.woken)
    }

    /// What to do at `now`.
    pub fn next(&self, now: Instant) -> Next {
        let attempt_at = match self.is_first() {
            true => self.attempt_at.min(self.heeds_wakes_at),
            false => self.attempt_at,
        };
        if attempt_at <= now { Next::Attempt } else { Next::WaitUntil(attempt_at) }
    }

    /// The longest pause after `in_vain` lost attempts.
    fn pause(&self) -> u64 {
        POLL_MAX.get().min(POLL_MIN.get() << self.in_vain.saturating_sub(1).min(16))
    }

    fn plan(&mut self, now: Instant, random: u32) {
        let pause = if self.is_in_line() {
            let half = self.fallback.get() / 2;
            half + part(half, random)
        } else {
            // Full jitter: waiters that lost to each other must not collide again.
            part(self.pause(), random)
        };
        self.attempt_at = now.after(Millis::new(pause.max(1)));
    }
}

/// `length` scaled by `random / u32::MAX`.
fn part(length: u64, random: u32) -> u64 {
    let product = u128::from(length) * u128::from(random);
    // At most `length`, so nothing is cut off.
    (product / u128::from(u32::MAX)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_millis(50_000);

    fn waiting() -> Waiting {
        let mut waiting = Waiting::new(Quorum::of(5).unwrap(), Millis::new(30_000));
        waiting.begin();
        waiting.lost(NodeSet::EMPTY, NOW, 0);
        waiting
    }

    fn after(millis: u64) -> Instant {
        NOW.after(Millis::new(millis))
    }

    #[test]
    fn a_quorum_of_wakes_ends_the_wait_and_fewer_do_not() {
        let mut waiting = waiting();
        waiting.woken(0, NOW);
        waiting.woken(0, NOW);
        waiting.woken(4, NOW);
        assert_eq!(waiting.next(NOW), Next::WaitUntil(after(50)));
        waiting.woken(2, NOW);
        assert_eq!(waiting.next(NOW), Next::Attempt);
    }

    #[test]
    fn without_a_wake_an_attempt_is_made_within_a_third_of_the_ttl() {
        let mut waiting = waiting();
        assert_eq!(waiting.next(NOW), Next::WaitUntil(after(5_000)));
        waiting.begin();
        waiting.lost(NodeSet::EMPTY, NOW, u32::MAX);
        assert_eq!(waiting.next(NOW), Next::WaitUntil(after(10_000)));
        assert_eq!(waiting.next(after(10_000)), Next::Attempt);
    }

    /// Waiters for a lease of 20 ms used to ask 130 times a second, and learned nothing sooner.
    #[test]
    fn a_short_lease_makes_nobody_ask_more_often_than_one_that_polls() {
        for ttl in [1, 20, 1_500] {
            let mut waiting = Waiting::new(Quorum::of(5).unwrap(), Millis::new(ttl));
            waiting.begin();
            waiting.lost(NodeSet::EMPTY, NOW, 0);
            assert_eq!(waiting.next(NOW), Next::WaitUntil(after(250)), "{ttl}");
            assert_eq!(waiting.stay(), Millis::new(1_500), "its place lasts until it asks again");
            waiting.woken(0, NOW);
            assert_eq!(waiting.next(NOW), Next::WaitUntil(after(50)), "{ttl}");
        }
        assert_eq!(waiting().stay(), Millis::new(30_000));
    }

    #[test]
    fn a_wake_from_before_an_answer_is_used_up_and_one_from_behind_it_counts() {
        let mut waiting = waiting();
        waiting.begin();
        waiting.woken(0, NOW);
        waiting.answered(0);
        waiting.answered(1);
        waiting.woken(1, NOW);
        waiting.lost(NodeSet::EMPTY, NOW, 0);
        waiting.woken(2, NOW);
        assert!(!waiting.is_first());
        waiting.woken(3, NOW);
        assert!(waiting.is_first());
    }

    #[test]
    fn some_wakes_shorten_the_wait_less_and_less() {
        let mut waiting = waiting();
        for expected in [50, 100, 200, 400] {
            waiting.woken(3, NOW);
            assert_eq!(waiting.next(NOW), Next::WaitUntil(after(expected)));
            waiting.begin();
            waiting.lost(NodeSet::EMPTY, NOW, 0);
        }
        for node in 0..3 {
            waiting.woken(node, NOW);
        }
        waiting.begin();
        waiting.lost(NodeSet::EMPTY, NOW, 0);
        waiting.woken(3, NOW);
        // After a quorum the hurry is 50 ms again, but the lost attempts still delay wakes.
        assert_eq!(waiting.next(NOW), Next::WaitUntil(after(160)));
    }

    #[test]
    fn the_next_attempt_is_planned_anew_only_when_a_quorum_is_lost_or_found() {
        let mut waiting = waiting();
        let later = after(1_000);
        for node in 0..2 {
            waiting.out_of_line(node, later, u32::MAX);
            assert_eq!(waiting.next(later), Next::WaitUntil(after(5_000)));
        }
        waiting.out_of_line(2, later, 0);
        let polls = waiting.next(later);
        assert_ne!(polls, Next::WaitUntil(after(5_000)));
        waiting.out_of_line(3, later, u32::MAX);
        waiting.joined(3, later, u32::MAX);
        assert_eq!(waiting.next(later), polls);
        waiting.joined(2, later, 0);
        let waits = Next::WaitUntil(after(6_000));
        assert_eq!(waiting.next(later), waits);
        waiting.joined(1, later, u32::MAX);
        assert_eq!(waiting.next(later), waits);
    }

    #[test]
    fn whoever_is_not_in_line_at_a_quorum_polls() {
        let mut waiting = waiting();
        waiting.out_of_line(0, NOW, 0);
        waiting.out_of_line(1, NOW, 0);
        assert!(waiting.is_in_line());
        waiting.out_of_line(2, NOW, u32::MAX);
        assert_eq!(waiting.next(NOW), Next::WaitUntil(after(10)));
        for ceiling in [20, 40, 80, 160, 320, 500, 500] {
            waiting.begin();
            waiting.lost_without_line(NOW, u32::MAX);
            assert_eq!(waiting.next(NOW), Next::WaitUntil(after(ceiling)));
        }
        waiting.joined(0, NOW, 0);
        waiting.joined(1, NOW, 0);
        assert!(!waiting.is_in_line());
        waiting.joined(2, NOW, 0);
        assert_eq!(waiting.next(NOW), Next::WaitUntil(after(5_000)));
    }

    #[test]
    fn a_node_that_puts_nobody_in_line_is_polled_less_and_less_often() {
        let mut waiting = Waiting::new(Quorum::of(3).unwrap(), Millis::new(30_000));
        for ceiling in [10, 20, 40, 80, 160, 320, 500, 500] {
            waiting.begin();
            waiting.lost(NodeSet::EMPTY, NOW, u32::MAX);
            for node in 0..3 {
                waiting.out_of_line(node, NOW, u32::MAX);
            }
            assert_eq!(waiting.next(NOW), Next::WaitUntil(after(ceiling)));
        }
    }

    #[test]
    fn wakes_that_are_in_vain_are_heeded_later_and_later() {
        let mut waiting = waiting();
        for pause in [0, 20, 40, 80, 160, 320, 500, 500] {
            (0..3).for_each(|node| waiting.woken(node, NOW));
            let expected = if pause == 0 { Next::Attempt } else { Next::WaitUntil(after(pause)) };
            assert_eq!(waiting.next(NOW), expected);
            assert_eq!(waiting.next(after(pause)), Next::Attempt);
            waiting.begin();
            waiting.lost(NodeSet::EMPTY, NOW, u32::MAX);
        }
        // An attempt without a wake resets the pause.
        waiting.begin();
        waiting.lost(NodeSet::EMPTY, NOW, u32::MAX);
        (0..3).for_each(|node| waiting.woken(node, NOW));
        assert_eq!(waiting.next(NOW), Next::Attempt);
    }

    #[test]
    fn a_silent_node_is_not_counted_as_one_to_be_in_line_at() {
        let mut waiting = waiting();
        waiting.begin();
        let silent = NodeSet::of(0).or(NodeSet::of(1)).or(NodeSet::of(2));
        waiting.lost(silent, NOW, u32::MAX);
        assert_eq!(waiting.next(NOW), Next::WaitUntil(after(10)));
    }

    #[test]
    fn a_node_that_does_not_exist_wakes_nobody() {
        let mut waiting = waiting();
        for node in 5..40 {
            waiting.woken(node, NOW);
        }
        assert_eq!(waiting.next(NOW), Next::WaitUntil(after(5_000)));
    }
}
