//! Is there an order of all operations in which one lock could have behaved like this?
//!
//! The specification is a fenced lock with leases, like Hazelcast's for Jepsen, for readers and
//! writers. An acquire returns a fence larger than all before to a writer, while the lock is free,
//! and a fence that is no smaller to a reader, while no writer holds it. A release frees the lock
//! for its holder; a writer may become a reader; and a lease may end on its own, but not before its
//! holder's validity. Each call takes effect at one instant between call and return; a call of
//! unknown outcome at some later instant, or never. The search is Wing and Gong's, with Lowe's
//! memory of visited states: an operation is appended if the specification allows it at the
//! earliest remaining instant, and removed if that leads nowhere. The search sees no quorums, only
//! what clients saw.

use std::collections::HashSet;
use std::fmt;

use crate::history::{Acquisition, History, Micros};

/// A client's call and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A lease that may end on its own from `ends_at` on.
    Acquired {
        token: usize,
        is_reader: bool,
        /// Unknown if the reply was lost, or the service has none.
        fence: Option<u64>,
        ends_at: Micros,
    },
    /// Another client keeps it out. Only a single node can know.
    Refused {
        token: usize,
        is_reader: bool,
    },
    Extended {
        token: usize,
        ends_at: Micros,
    },
    /// An extend that makes the holder a reader, if it is not one yet.
    Downgraded {
        token: usize,
        ends_at: Micros,
    },
    /// An extend returned that the token does not hold.
    NotExtended {
        token: usize,
    },
    Released {
        token: usize,
    },
    /// A release returned that the token does not hold.
    NotReleased {
        token: usize,
    },
    /// The highest fence issued.
    Read {
        fence: u64,
    },
}

/// A call and its effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) called_at: Micros,
    /// `None`: unknown whether it ever took effect.
    pub(crate) returned_at: Option<Micros>,
    pub(crate) action: Action,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation { called_at, returned_at, action } = self;
        match returned_at {
            Some(returned_at) => write!(f, "{called_at} to {returned_at}: {action:?}"),
            None => write!(f, "{called_at} to never: {action:?}"),
        }
    }
}

/// The lock at an instant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    now: Micros,
    /// The highest fence issued.
    fence: u64,
    /// One writer, or readers, by their tokens.
    holders: Vec<Holder>,
}

/// A lease, which may be over from `ends_at` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Holder {
    token: usize,
    is_reader: bool,
    fence: u64,
    ends_at: Micros,
}

impl State {
    /// The lock after this operation took effect as early as possible, if it can.
    fn after(&self, operation: &Operation) -> Option<State> {
        let mut next = self.clone();
        next.now = self.now.max(operation.called_at);
        match operation.action {
            Action::Acquired { token, is_reader, fence, ends_at } => {
                next.acquire(token, is_reader, fence, ends_at)?;
            }
            Action::Refused { token, is_reader } => {
                let keeps_out = |one: &&Holder| one.token != token && !(is_reader && one.is_reader);
                self.holders.iter().find(keeps_out)?;
            }
            Action::Extended { token, ends_at } => next.holder(token)?.ends_at = ends_at,
            Action::Downgraded { token, ends_at } => {
                let holder = next.holder(token)?;
                (holder.is_reader, holder.ends_at) = (true, ends_at);
            }
            Action::Released { token } => {
                next.holder(token)?;
                next.holders.retain(|one| one.token != token);
            }
            Action::NotExtended { token } | Action::NotReleased { token } => {
                next.end(|one| one.token == token);
            }
            Action::Read { fence } => {
                if fence != self.fence {
                    return None;
                }
            }
        }
        let in_time = operation.returned_at.is_none_or(|returned_at| next.now <= returned_at);
        in_time.then_some(next)
    }

    fn holder(&mut self, token: usize) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|one| one.token == token)
    }

    /// Ends these leases.
    fn end(&mut self, which: impl Fn(&Holder) -> bool) {
        let ends = self.holders.iter().filter(|one| which(one)).map(|one| one.ends_at);
        self.now = ends.fold(self.now, Micros::max);
        self.holders.retain(|one| !which(one));
    }

    fn acquire(
        &mut self,
        token: usize,
        is_reader: bool,
        fence: Option<u64>,
        ends_at: Micros,
    ) -> Option<()> {
        // Asked again by its holder: the same fence.
        if let Some(holder) = self.holder(token)
            && fence.is_none_or(|fence| fence == holder.fence)
        {
            holder.ends_at = holder.ends_at.max(ends_at);
            return Some(());
        }
        self.end(|one| one.token == token || !(is_reader && one.is_reader));
        let lowest = if is_reader { self.fence.max(1) } else { self.fence + 1 };
        let fence = fence.unwrap_or(lowest);
        if fence < lowest {
            return None;
        }
        self.fence = fence;
        let place = self.holders.partition_point(|one| one.token < token);
        self.holders.insert(place, Holder { token, is_reader, fence, ends_at });
        Some(())
    }
}

/// The search for an order.
struct Search<'a> {
    /// By the time of their calls.
    operations: &'a [Operation],
    is_done: Vec<bool>,
    tried: HashSet<(Vec<u64>, State)>,
    /// The furthest point reached: how many returned operations were in order.
    furthest: (usize, Option<usize>),
}

/// The search is given up after this many states.
const TRIED_MAX: usize = 2_000_000;

impl Search<'_> {
    /// What may come next: operations that were called before any remaining one returned.
    fn candidates(&self) -> Vec<usize> {
        let left = || (0..self.operations.len()).filter(|index| !self.is_done[*index]);
        let returns = left().filter_map(|index| self.operations[index].returned_at);
        let first_return = returns.min().unwrap_or(Micros::MAX);
        let mut found: Vec<usize> =
            left().filter(|index| self.operations[*index].called_at <= first_return).collect();
        found.sort_by_key(|index| self.operations[*index].returned_at.unwrap_or(Micros::MAX));
        found
    }

    fn key(&self, state: &State) -> (Vec<u64>, State) {
        let word = |chunk: &[bool]| chunk.iter().fold(0, |word, bit| word << 1 | u64::from(*bit));
        (self.is_done.chunks(64).map(word).collect(), state.clone())
    }

    /// Whether some order of all returned operations is allowed.
    fn run(&mut self) -> bool {
        let mandatory = self.operations.iter().filter(|one| one.returned_at.is_some()).count();
        let mut stack = vec![(State::default(), self.candidates(), None)];
        let mut done = 0;
        while let Some((state, candidates, appended)) = stack.last_mut() {
            if done == mandatory {
                return true;
            }
            let Some(index) = candidates.first().copied() else {
                if let Some(index) = appended.take() {
                    self.take_back(index, &mut done);
                }
                stack.pop();
                continue;
            };
            candidates.remove(0);
            if let Some(after) = state.after(&self.operations[index]) {
                self.is_done[index] = true;
                done += usize::from(self.operations[index].returned_at.is_some());
                let key = self.key(&after);
                if self.tried.insert(key) {
                    assert!(self.tried.len() < TRIED_MAX, "too many orders to try");
                    stack.push((after, self.candidates(), Some(index)));
                    continue;
                }
                self.take_back(index, &mut done);
            } else if done >= self.furthest.0 {
                self.furthest = (done, Some(index));
            }
        }
        mandatory == 0
    }

    fn take_back(&mut self, index: usize, done: &mut usize) {
        self.is_done[index] = false;
        *done -= usize::from(self.operations[index].returned_at.is_some());
    }
}

/// Where the history of one lock cannot be that of a fenced lock, if so.
pub(crate) fn check_lock(mut operations: Vec<Operation>) -> Option<String> {
    operations.sort_by_key(|operation| operation.called_at);
    let is_done = vec![false; operations.len()];
    let tried = HashSet::new();
    let mut search = Search { operations: &operations, is_done, tried, furthest: (0, None) };
    if search.run() {
        return None;
    }
    let stuck = search.furthest.1.map(|index| operations[index].to_string());
    Some(format!(
        "no order of these {} operations is one of a fenced lock; no order goes on with {}",
        operations.len(),
        stuck.unwrap_or_default()
    ))
}

/// Where a history of acquisitions cannot be that of fenced locks, lock by lock.
pub(crate) fn check_acquisitions(history: &History) -> Vec<String> {
    let of = |lock| history.acquisitions.iter().filter(move |one| one.lock == lock);
    let operations = |lock| of(lock).enumerate().flat_map(operations).collect();
    (0..history.lock_count).filter_map(|lock| check_lock(operations(lock))).collect()
}

/// An acquisition, and its release, which may have reached the nodes at any time or never: from
/// then on the lease may end whenever that helps. (As an operation of its own it would be tried
/// everywhere, and with many simultaneous readers there would be too many orders.)
fn operations((token, one): (usize, &Acquisition)) -> Vec<Operation> {
    let ends_at = one.released_at.unwrap_or(one.valid_until).min(one.valid_until);
    let (is_reader, fence) = (one.is_reader, one.fence);
    let mut all = vec![Operation {
        called_at: one.called_at,
        returned_at: Some(one.returned_at),
        action: Action::Acquired { token, is_reader, fence, ends_at },
    }];
    all.extend(one.downgraded_at.map(|called_at| Operation {
        called_at,
        returned_at: None,
        action: Action::Downgraded { token, ends_at },
    }));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: usize = 1;
    const B: usize = 2;
    const C: usize = 3;
    const D: usize = 4;

    fn acquired(token: usize, fence: u64, ends_at: Micros) -> Action {
        Action::Acquired { token, is_reader: false, fence: Some(fence), ends_at }
    }

    fn read(token: usize, fence: u64, ends_at: Micros) -> Action {
        Action::Acquired { token, is_reader: true, fence: Some(fence), ends_at }
    }

    fn refused(token: usize) -> Action {
        Action::Refused { token, is_reader: false }
    }

    fn is_accepted(lines: &[(Micros, Micros, Action)]) -> bool {
        let operation = |line: &(Micros, Micros, Action)| {
            let (called_at, returned_at, action) = *line;
            let returned_at = Some(returned_at).filter(|at| *at > 0);
            Operation { called_at, returned_at, action }
        };
        check_lock(lines.iter().map(operation).collect()).is_none()
    }

    #[test]
    fn a_lock_that_is_handed_on_is_accepted() {
        let released = Action::Released { token: A };
        let history =
            [(0, 10, acquired(A, 1, 500)), (20, 30, released), (25, 40, acquired(B, 2, 500))];
        assert!(is_accepted(&history));
        // Overlapping calls may take effect in either order.
        assert!(is_accepted(&[(0, 100, acquired(B, 2, 50)), (5, 90, acquired(A, 1, 20))]));
        assert!(is_accepted(&[]));
    }

    #[test]
    fn two_holders_are_rejected() {
        let first = (0, 10, acquired(A, 1, 500));
        assert!(!is_accepted(&[first, (20, 499, acquired(B, 2, 900))]));
        assert!(is_accepted(&[first, (20, 500, acquired(B, 2, 900))]), "it had ended by then");
        // A release that was not called yet cannot have helped.
        let release =
            |called_at, returned_at| (called_at, returned_at, Action::Released { token: A });
        assert!(!is_accepted(&[first, (20, 30, acquired(B, 2, 900)), release(40, 50)]));
        assert!(is_accepted(&[first, (20, 45, acquired(B, 2, 900)), release(40, 50)]));
        assert!(is_accepted(&[first, (20, 45, acquired(B, 2, 900)), release(40, 0)]), "unanswered");
    }

    #[test]
    fn readers_hold_it_together_and_a_writer_waits_for_each_of_them() {
        let (first, second) = ((0, 10, read(A, 1, 500)), (20, 30, read(B, 1, 300)));
        assert!(is_accepted(&[first, second]));
        let written = |called_at, returned_at| (called_at, returned_at, acquired(C, 2, 900));
        assert!(!is_accepted(&[first, second, written(40, 499)]));
        assert!(is_accepted(&[first, second, written(40, 500)]), "both have ended");
        let released = |token, at| (at, at + 10, Action::Released { token });
        assert!(!is_accepted(&[first, second, released(A, 40), written(60, 70)]));
        assert!(is_accepted(&[first, second, released(A, 40), released(B, 50), written(70, 80)]));
        let writer = (0, 10, acquired(C, 1, 500));
        assert!(!is_accepted(&[writer, (20, 499, read(A, 1, 900))]));
        assert!(is_accepted(&[writer, (20, 500, read(A, 1, 900))]));
        let kept_out = (40, 50, Action::Refused { token: C, is_reader: true });
        assert!(!is_accepted(&[first, kept_out]), "only a writer keeps a reader out");
        assert!(is_accepted(&[first, (40, 50, refused(C))]));
    }

    #[test]
    fn fences_of_readers_do_not_fall_and_those_of_writers_rise_above_them() {
        let written = (0, 10, acquired(A, 5, 20));
        for (fence, is_good) in [(4, false), (5, true), (7, true)] {
            assert_eq!(is_accepted(&[written, (30, 40, read(B, fence, 50))]), is_good, "{fence}");
        }
        let (one, other) = ((30, 40, read(B, 7, 50)), (35, 45, read(C, 5, 50)));
        assert!(is_accepted(&[written, one, other]), "the other was first");
        assert!(!is_accepted(&[written, one, (41, 45, read(C, 5, 50))]));
        for (fence, is_good) in [(7, false), (8, true)] {
            let last = (60, 70, acquired(D, fence, 90));
            assert_eq!(is_accepted(&[written, one, other, last]), is_good, "{fence}");
        }
    }

    #[test]
    fn a_writer_that_becomes_a_reader_lets_readers_in_from_then_on() {
        let first = (0, 10, acquired(A, 1, 500));
        let downgraded = (20, 30, Action::Downgraded { token: A, ends_at: 500 });
        assert!(is_accepted(&[first, downgraded, (31, 40, read(B, 1, 400))]));
        assert!(is_accepted(&[first, downgraded, (25, 29, read(B, 1, 400))]));
        assert!(!is_accepted(&[first, downgraded, (11, 19, read(B, 1, 400))]));
        assert!(!is_accepted(&[first, downgraded, (31, 40, acquired(B, 2, 400))]));
        let unanswered = (20, 0, Action::Downgraded { token: A, ends_at: 500 });
        assert!(is_accepted(&[first, unanswered, (31, 40, read(B, 1, 400))]));
    }

    #[test]
    fn fences_that_fall_or_repeat_are_rejected() {
        let released = (20, 30, Action::Released { token: A });
        for (fence, is_good) in [(1, false), (2, false), (3, true)] {
            let second = (40, 50, acquired(B, fence, 900));
            assert_eq!(is_accepted(&[(0, 10, acquired(A, 2, 500)), released, second]), is_good);
        }
    }

    #[test]
    fn the_holder_who_asks_again_has_the_same_fence() {
        let first = (0, 10, acquired(A, 1, 500));
        assert!(is_accepted(&[first, (20, 30, acquired(A, 1, 600))]));
        assert!(!is_accepted(&[first, (20, 30, acquired(A, 2, 600))]));
        // Its lease did not become shorter.
        let again = (20, 30, acquired(A, 1, 40));
        assert!(!is_accepted(&[first, again, (50, 60, acquired(B, 2, 900))]));
    }

    #[test]
    fn answers_that_contradict_the_state_are_rejected() {
        let first = (0, 10, acquired(A, 1, 500));
        assert!(is_accepted(&[first, (20, 30, refused(B))]));
        assert!(!is_accepted(&[(20, 30, refused(B))]));
        assert!(!is_accepted(&[first, (20, 30, Action::Released { token: B })]));
        assert!(!is_accepted(&[first, (20, 30, Action::NotReleased { token: A })]));
        assert!(is_accepted(&[first, (20, 600, Action::NotReleased { token: A })]));
        assert!(is_accepted(&[first, (20, 30, Action::NotReleased { token: B })]));
        assert!(!is_accepted(&[first, (20, 30, Action::NotExtended { token: A })]));
        assert!(is_accepted(&[first, (20, 30, Action::Read { fence: 1 })]));
        assert!(!is_accepted(&[first, (20, 30, Action::Read { fence: 2 })]));
        assert!(is_accepted(&[first, (5, 30, Action::Read { fence: 0 })]), "before the grant");
    }

    #[test]
    fn an_extended_lease_does_not_end_where_it_did() {
        let first = (0, 10, acquired(A, 1, 100));
        let extended = (50, 60, Action::Extended { token: A, ends_at: 150 });
        let second = |called_at, returned_at| (called_at, returned_at, acquired(B, 2, 900));
        assert!(!is_accepted(&[first, extended, second(110, 120)]));
        assert!(is_accepted(&[first, extended, second(110, 151)]));
        assert!(is_accepted(&[first, second(110, 120)]));
    }

    #[test]
    fn a_grant_whose_reply_was_lost_may_have_been_and_counts_if_it_was() {
        let lost =
            (0, 0, Action::Acquired { token: A, is_reader: false, fence: None, ends_at: 500 });
        assert!(is_accepted(&[lost, (10, 20, acquired(B, 1, 900))]), "it never came to be");
        assert!(is_accepted(&[lost, (10, 20, refused(B))]), "it came to be");
        assert!(is_accepted(&[lost, (510, 520, acquired(B, 2, 900))]), "it came and went");
        assert!(!is_accepted(&[(0, 0, acquired(A, 1, 500)), (10, 20, Action::Read { fence: 2 })]));
    }
}
