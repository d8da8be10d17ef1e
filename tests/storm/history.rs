//! What the clients experienced, and a checker that judges it.
//!
//! The checker is a pure function, and knows only what a user of locks was promised. All instants
//! are from the one monotonic clock of this machine, in microseconds since the storm began, taken
//! so that doubt favours the lock service: a call is recorded before it is made, a return after it,
//! and the end of a validity as the guard reports it, never later. So every violation found did
//! happen.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// Microseconds since the storm began.
pub(crate) type Micros = u64;

/// One acquisition.
#[derive(Clone, Debug)]
pub(crate) struct Acquisition {
    pub(crate) lock: usize,
    pub(crate) client: usize,
    pub(crate) called_at: Micros,
    pub(crate) returned_at: Micros,
    /// Plain Redlock has none.
    pub(crate) fence: Option<u64>,
    /// Until when the client believed that it held the lock, renewals included.
    pub(crate) valid_until: Micros,
    /// When it began to release it; a client that crashed never did.
    pub(crate) released_at: Option<Micros>,
    /// It was acquired as a reader.
    pub(crate) is_reader: bool,
    /// When a writer began to become a reader.
    pub(crate) downgraded_at: Option<Micros>,
}

impl Acquisition {
    /// The latest time at which the client relied on the lock.
    pub(crate) fn held_until(&self) -> Micros {
        self.released_at.map_or(self.valid_until, |at| at.min(self.valid_until))
    }

    /// The latest time at which the client relied on holding the lock alone.
    fn alone_until(&self) -> Micros {
        match self.is_reader {
            true => 0,
            false => self.downgraded_at.map_or(Micros::MAX, |at| at).min(self.held_until()),
        }
    }

    fn is_ever_valid(&self) -> bool {
        self.returned_at < self.held_until()
    }

    fn is_ever_alone(&self) -> bool {
        self.returned_at < self.alone_until()
    }
}

impl fmt::Display for Acquisition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Acquisition { lock, client, called_at, returned_at, fence, .. } = self;
        let (valid_until, released_at) = (self.valid_until, self.released_at);
        let kind = if self.is_reader { "reader" } else { "writer" };
        write!(
            f,
            "lock {lock}, client {client}, a {kind}: called {called_at}, returned {returned_at}, \
             fence {fence:?}, valid until {valid_until}, released {released_at:?}"
        )?;
        self.downgraded_at.map_or(Ok(()), |at| write!(f, ", a reader from {at} on"))
    }
}

/// Everything that happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) lock_count: usize,
    pub(crate) acquisitions: Vec<Acquisition>,
    /// When the last fault was over.
    pub(crate) calm_at: Micros,
    /// Until when clients kept trying to acquire every lock.
    pub(crate) ended_at: Micros,
}

/// A broken promise.
#[derive(Clone, Debug)]
pub(crate) enum Violation {
    /// Two clients held the lock at the same time, and not both as readers.
    Overlap { one: Acquisition, other: Acquisition },
    /// The first was complete before the second began, but its fence is not smaller; if the second
    /// is a reader, its fence is larger.
    Fell { one: Acquisition, other: Acquisition },
    /// Two writers have the same fence.
    Repeated { one: Acquisition, other: Acquisition },
    /// The lock was free for too long after the faults were over.
    Stuck { lock: usize, from: Micros, to: Micros },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Overlap { one, other } => {
                write!(f, "two held the lock at once:\n  {one}\n  {other}")
            }
            Violation::Fell { one, other } => {
                write!(f, "the later acquisition has no larger fence:\n  {one}\n  {other}")
            }
            Violation::Repeated { one, other } => {
                write!(f, "two writers have one fence:\n  {one}\n  {other}")
            }
            Violation::Stuck { lock, from, to } => {
                write!(f, "nobody got lock {lock} from {from} to {to} although all was well")
            }
        }
    }
}

/// All violations in a history. A lock that is free, wanted and not acquired for `patience` after
/// the faults were over is stuck.
pub(crate) fn check(history: &History, patience: Micros) -> Vec<Violation> {
    let mut by_lock: BTreeMap<usize, Vec<&Acquisition>> =
        (0..history.lock_count).map(|lock| (lock, Vec::new())).collect();
    for acquisition in &history.acquisitions {
        by_lock.entry(acquisition.lock).or_default().push(acquisition);
    }
    let mut violations = Vec::new();
    for (lock, acquisitions) in by_lock {
        find_overlaps(&acquisitions, &mut violations);
        find_unordered_fences(&acquisitions, &mut violations);
        find_repeated_fences(&acquisitions, &mut violations);
        find_stuck(lock, &acquisitions, history, patience, &mut violations);
    }
    violations
}

fn find_overlaps(acquisitions: &[&Acquisition], violations: &mut Vec<Violation>) {
    let mut held: Vec<&Acquisition> =
        acquisitions.iter().copied().filter(|one| one.is_ever_valid()).collect();
    held.sort_by_key(|one| one.returned_at);
    // Of those so far, the one that held it for longest, and the one that held it alone for
    // longest.
    let (mut longest, mut alone): (Option<&Acquisition>, Option<&Acquisition>) = (None, None);
    for other in held {
        let beside = |one: &&Acquisition| other.returned_at < one.held_until();
        let beside_alone = |one: &&Acquisition| other.returned_at < one.alone_until();
        let found = match other.is_ever_alone() {
            true => longest.filter(beside),
            false => alone.filter(beside_alone),
        };
        violations
            .extend(found.map(|one| Violation::Overlap { one: one.clone(), other: other.clone() }));
        if longest.is_none_or(|one| one.held_until() < other.held_until()) {
            longest = Some(other);
        }
        if alone.is_none_or(|one| one.alone_until() < other.alone_until()) {
            alone = Some(other);
        }
    }
}

fn find_unordered_fences(acquisitions: &[&Acquisition], violations: &mut Vec<Violation>) {
    let (mut by_call, mut by_return) = (acquisitions.to_vec(), acquisitions.to_vec());
    by_call.sort_by_key(|one| one.called_at);
    by_return.sort_by_key(|one| one.returned_at);
    let mut complete = by_return.into_iter().peekable();
    let mut highest: Option<&Acquisition> = None;
    for other in by_call {
        while let Some(one) = complete.next_if(|one| one.returned_at < other.called_at) {
            if highest.is_none_or(|known| known.fence < one.fence) {
                highest = Some(one);
            }
        }
        let is_above = |one: &Acquisition, fence| match other.is_reader {
            true => one.fence <= Some(fence),
            false => one.fence < Some(fence),
        };
        if let (Some(one), Some(fence)) = (highest, other.fence)
            && !is_above(one, fence)
        {
            violations.push(Violation::Fell { one: one.clone(), other: other.clone() });
        }
    }
}

fn find_repeated_fences(acquisitions: &[&Acquisition], violations: &mut Vec<Violation>) {
    let mut seen: HashMap<u64, &Acquisition> = HashMap::new();
    for other in acquisitions.iter().filter(|other| !other.is_reader) {
        let Some(fence) = other.fence else { continue };
        if let Some(one) = seen.insert(fence, other) {
            violations.push(Violation::Repeated { one: one.clone(), other: (*other).clone() });
        }
    }
}

fn find_stuck(
    lock: usize,
    acquisitions: &[&Acquisition],
    history: &History,
    patience: Micros,
    violations: &mut Vec<Violation>,
) {
    let mut by_return = acquisitions.to_vec();
    by_return.sort_by_key(|one| one.returned_at);
    let mut free_from = history.calm_at;
    let ends = by_return.iter().map(|one| (one.returned_at, one.held_until()));
    for (returned_at, held_until) in ends.chain([(history.ended_at, history.ended_at)]) {
        if returned_at > free_from.saturating_add(patience) {
            violations.push(Violation::Stuck { lock, from: free_from, to: returned_at });
        }
        free_from = free_from.max(returned_at).max(held_until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Micros = 1_000;

    /// Called, returned, fence, valid until, released.
    type Line = (Micros, Micros, u64, Micros, Option<Micros>);

    fn acquisition(lock: usize, line: Line) -> Acquisition {
        let (called_at, returned_at, fence, valid_until, released_at) = line;
        Acquisition {
            lock,
            client: 0,
            called_at,
            returned_at,
            fence: Some(fence),
            valid_until,
            released_at,
            is_reader: false,
            downgraded_at: None,
        }
    }

    /// A history with readers.
    fn with_readers(lines: &[(bool, Line)]) -> History {
        let mut history = history(&lines.iter().map(|(_, line)| *line).collect::<Vec<_>>());
        for (one, (is_reader, _)) in history.acquisitions.iter_mut().zip(lines) {
            one.is_reader = *is_reader;
        }
        history
    }

    fn history(lines: &[Line]) -> History {
        let acquisitions = lines.iter().map(|line| acquisition(0, *line)).collect();
        History { lock_count: 1, acquisitions, calm_at: 0, ended_at: 0 }
    }

    fn complaints(history: &History) -> Vec<&'static str> {
        let name = |violation: &Violation| match violation {
            Violation::Overlap { .. } => "overlap",
            Violation::Fell { .. } => "fell",
            Violation::Repeated { .. } => "repeated",
            Violation::Stuck { .. } => "stuck",
        };
        check(history, PATIENCE).iter().map(name).collect()
    }

    const GOOD: [Line; 4] = [
        (0, 10, 1, 500, Some(100)),
        // It asked while the first still held.
        (50, 110, 2, 600, None),
        (590, 610, 5, 900, Some(1_500)),
        // The previous holder overstayed its validity, which is not the service's fault.
        (900, 901, 6, 1_900, Some(1_000)),
    ];

    #[test]
    fn a_good_history_is_accepted() {
        assert_eq!(complaints(&history(&GOOD)), [""; 0]);
        assert_eq!(complaints(&history(&[])), [""; 0]);
    }

    #[test]
    fn two_holders_at_once_are_found() {
        let first = (0, 10, 1, 500, Some(100));
        assert_eq!(complaints(&history(&[first, (20, 99, 2, 600, None)])), ["overlap"]);
        assert_eq!(complaints(&history(&[first, (20, 100, 2, 600, None)])), [""; 0]);
        // Even if the second gave up at once.
        assert_eq!(complaints(&history(&[first, (20, 50, 2, 600, Some(51))])), ["overlap"]);
        // A crashed client holds until its validity ends.
        let crashed = (0, 10, 1, 500, None);
        assert_eq!(complaints(&history(&[crashed, (20, 499, 2, 600, None)])), ["overlap"]);
        assert_eq!(complaints(&history(&[crashed, (20, 500, 2, 600, None)])), [""; 0]);
        // A longer hold that began before is not forgotten because of a short one.
        let long = (0, 10, 1, 2_000, None);
        let both = [long, (20, 50, 2, 600, Some(60)), (20, 100, 3, 600, Some(110))];
        assert_eq!(complaints(&history(&both)), ["overlap", "overlap"]);
        // The validity was over when the call returned, so the client never relied on it.
        assert_eq!(complaints(&history(&[first, (20, 50, 2, 40, None)])), [""; 0]);
        // Two locks are independent.
        let mut two = history(&[first, (20, 50, 2, 600, None)]);
        (two.lock_count, two.acquisitions[1].lock) = (2, 1);
        assert_eq!(complaints(&two), [""; 0]);
    }

    #[test]
    fn readers_may_hold_a_lock_together_and_nobody_beside_a_writer() {
        let (reader, writer) = (true, false);
        let (first, second) = ((0, 10, 1, 500, Some(300)), (20, 50, 1, 600, Some(400)));
        let found = |lines: &[(bool, Line)]| complaints(&with_readers(lines));
        assert_eq!(found(&[(reader, first), (reader, second)]), [""; 0]);
        let third = (20, 350, 2, 600, None);
        let both = [(reader, first), (reader, second), (writer, third)];
        assert_eq!(found(&both), ["overlap"], "at the same time as the one that stayed longer");
        assert_eq!(found(&[(writer, first), (reader, second)]), ["overlap"]);
        assert_eq!(found(&[(reader, first), (writer, (20, 50, 2, 600, None))]), ["overlap"]);
        assert_eq!(found(&[(reader, first), (writer, (20, 300, 2, 600, None))]), [""; 0]);

        let mut downgraded = with_readers(&[(writer, first), (reader, second)]);
        downgraded.acquisitions[0].downgraded_at = Some(50);
        assert_eq!(complaints(&downgraded), [""; 0], "from then on it reads");
        downgraded.acquisitions[0].downgraded_at = Some(51);
        assert_eq!(complaints(&downgraded), ["overlap"]);
        (downgraded.acquisitions[0].downgraded_at, downgraded.acquisitions[1].is_reader) =
            (Some(20), false);
        downgraded.acquisitions[1].fence = Some(2);
        assert_eq!(complaints(&downgraded), ["overlap"], "it holds it still");
    }

    #[test]
    fn a_reader_has_no_smaller_fence_than_those_before_it_and_a_smaller_than_later_writers() {
        let (reader, writer) = (true, false);
        let found = |lines: &[(bool, Line)]| complaints(&with_readers(lines));
        let first = (0, 10, 7, 20, None);
        let later = |fence| (30, 40, fence, 50, None);
        for (one, other, fence, is_good) in [
            (writer, reader, 6, false),
            (writer, reader, 7, true),
            (reader, reader, 6, false),
            (reader, reader, 7, true),
            (reader, writer, 7, false),
            (reader, writer, 8, true),
        ] {
            let found = found(&[(one, first), (other, later(fence))]);
            assert_eq!(found.is_empty(), is_good, "{one} {other} {fence}: {found:?}");
        }
    }

    #[test]
    fn overlaps_are_found_without_fences() {
        let mut plain = history(&[(0, 10, 0, 500, None), (20, 50, 0, 600, None)]);
        for one in &mut plain.acquisitions {
            one.fence = None;
        }
        assert_eq!(complaints(&plain), ["overlap"]);
    }

    #[test]
    fn fences_that_do_not_rise_are_found() {
        let first = (0, 10, 7, 100, Some(90));
        assert_eq!(complaints(&history(&[first, (101, 110, 6, 200, None)])), ["fell"]);
        assert_eq!(complaints(&history(&[first, (101, 110, 8, 200, None)])), [""; 0]);
        // It was on its way when the first returned: no order was promised.
        assert_eq!(complaints(&history(&[first, (10, 110, 6, 200, None)])), [""; 0]);
        assert_eq!(complaints(&history(&[first, (11, 110, 6, 200, None)])), ["fell"]);
        // Not only adjacent acquisitions are compared.
        let second = (5, 100, 3, 200, Some(110));
        assert_eq!(complaints(&history(&[first, second, (120, 130, 4, 300, None)])), ["fell"]);
    }

    #[test]
    fn a_fence_that_is_given_twice_is_found() {
        let first = (0, 10, 7, 100, Some(20));
        assert_eq!(complaints(&history(&[first, (5, 40, 7, 200, None)])), ["repeated"]);
        let later = complaints(&history(&[first, (30, 40, 7, 200, None)]));
        assert_eq!(later, ["fell", "repeated"]);
        // The same for a validity that was over at once, because a store may see its fence.
        assert_eq!(complaints(&history(&[first, (5, 40, 7, 20, None)])), ["repeated"]);
    }

    #[test]
    fn a_lock_that_nobody_gets_after_the_storm_is_found() {
        let calm =
            |lines: &[Line], calm_at, ended_at| History { calm_at, ended_at, ..history(lines) };
        assert_eq!(complaints(&calm(&[], 5_000, 6_001)), ["stuck"]);
        assert_eq!(complaints(&calm(&[], 5_000, 6_000)), [""; 0]);
        // Acquisitions during the storm do not count.
        assert_eq!(complaints(&calm(&[(0, 10, 1, 100, None)], 5_000, 6_001)), ["stuck"]);
        let line = (5_000, 5_900, 1, 6_400, None);
        assert_eq!(complaints(&calm(&[line], 5_000, 7_400)), [""; 0]);
        // Held until 6400, and not acquired for longer than patience after that.
        assert_eq!(complaints(&calm(&[line], 5_000, 7_401)), ["stuck"]);
        assert_eq!(complaints(&calm(&[(5_000, 6_001, 1, 7_000, None)], 5_000, 7_000)), ["stuck"]);
        // Each lock must be acquired.
        let mut two = calm(&[line], 5_000, 6_500);
        two.lock_count = 2;
        assert_eq!(complaints(&two), ["stuck"]);
    }
}
