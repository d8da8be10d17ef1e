//! Moves of slots at once (Redis 8.4, Valkey 9), as the server tells of them.
//!
//! When a slot enters and leaves each set:
//!
//! | Set          | Enters                                       | Leaves                         |
//! |--------------|----------------------------------------------|--------------------------------|
//! | `departs`    | the server says that it leaves               | it has left, or stays          |
//! | `failed`     | its move has failed, or may have; the state  | never                          |
//! |              | file has it                                  |                                |
//! | `comes`      | the server says that it comes; it stays      | it settles, is lost, or does   |
//! |              | although disputed                            | not come                       |
//! | `gone`       | the server says that it has left             | a look shows that              |

use std::collections::{BTreeMap, BTreeSet};

use super::shares::{MoveAtOnce, SLOTS, SlotRuns};
use super::slot_set::{SlotSet, all, runs};

/// What is known of a slot that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StageAtOnce {
    /// It is on its way.
    Comes,
    /// The server has said that it has come: if the other master has not seen the end of that,
    /// locks may be left there.
    HasCome,
    /// It has not moved. The other master may have granted locks there, and none of these has come.
    Disputed,
}

/// What is known of moves at once. Masters are numbers in the slot table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MovesAtOnce {
    /// Those that are on their way from here: the other one may take them after this node has
    /// started again.
    departs: SlotSet,
    /// Those that were to leave, and stayed, as far as this node knows: the other master may take
    /// them late. With the masters that they have come from since, which have nothing more to take.
    failed: BTreeMap<u16, BTreeSet<usize>>,
    /// Those that are on their way here, or have come, or count as if they had.
    comes: BTreeMap<u16, StageAtOnce>,
    /// Those that have left, as the server says, until a look shows it; and for which master, if
    /// the server names it.
    gone: BTreeMap<u16, Option<usize>>,
}

impl MovesAtOnce {
    /// Takes what the server tells of a slot.
    pub(super) fn note(&mut self, step: MoveAtOnce, slot: u16, to: Option<usize>) {
        match step {
            MoveAtOnce::Comes => _ = self.comes.insert(slot, StageAtOnce::Comes),
            MoveAtOnce::HasCome => _ = self.comes.insert(slot, StageAtOnce::HasCome),
            MoveAtOnce::ComesNot => self.is_over(slot),
            MoveAtOnce::Leaves => self.departs.insert(slot),
            MoveAtOnce::LeavesNot => {
                self.departs.remove(slot);
                self.failed.insert(slot, BTreeSet::new());
            }
            MoveAtOnce::HasLeftUnproved => self.departs.remove(slot),
            MoveAtOnce::HasLeft => {
                self.departs.remove(slot);
                self.gone.insert(slot, to);
            }
        }
    }

    /// Notes that the moves from here may have failed before the server knows.
    pub(super) fn fail_departures(&mut self) {
        let departs = std::mem::take(&mut self.departs);
        self.failed.extend(departs.iter().map(|slot| (slot, BTreeSet::new())));
    }

    /// Notes that a slot is its own again, and which master had it.
    pub(super) fn is_back(&mut self, slot: u16, from: Option<usize>) {
        self.gone.remove(&slot);
        if let (Some(had), Some(from)) = (self.failed.get_mut(&slot), from) {
            had.insert(from);
        }
    }

    /// Whether a slot is on its way from here.
    pub(super) fn departs(&self, slot: u16) -> bool {
        self.departs.has(slot)
    }

    /// Those that have left and are not its own, and for which master, if the server names one.
    pub(super) fn take_gone(&mut self, own: &SlotSet) -> BTreeMap<u16, Option<usize>> {
        let reported = std::mem::take(&mut self.gone).into_iter();
        let (to_come, gone) = reported.partition(|(slot, _)| own.has(*slot));
        self.gone = to_come;
        gone
    }

    /// Those whose move from here has failed, or has if the node starts again now.
    pub(super) fn failed_departures(&self) -> SlotRuns {
        runs(self.failed.keys().copied().chain(self.departs.iter()).collect())
    }

    /// Notes the same of these slots, for any master.
    pub(super) fn remember_failed(&mut self, slots: &SlotRuns) {
        self.failed = all(slots).map(|slot| (slot % SLOTS, BTreeSet::new())).collect();
    }

    /// Whether this master may take the slot by a move that has failed. The next one then seems
    /// complete.
    pub(super) fn may_take_late(&self, slot: u16, to: usize) -> bool {
        self.failed.get(&slot).is_some_and(|had| !had.contains(&to))
    }

    /// Notes that the slot counts as if it had come here so.
    pub(super) fn is_disputed(&mut self, slot: u16) {
        self.comes.insert(slot, StageAtOnce::Disputed);
    }

    /// Notes that nothing of a move here matters any longer.
    pub(super) fn is_over(&mut self, slot: u16) {
        self.comes.remove(&slot);
    }

    /// Whether a slot is on its way here, or has just come.
    pub(super) fn comes(&self, slot: u16) -> bool {
        self.comes.get(&slot).is_some_and(|stage| *stage != StageAtOnce::Disputed)
    }

    /// Whether it has come, or counts as if it had, and is not settled.
    pub(super) fn is_complete(&self, slot: u16) -> bool {
        self.comes.get(&slot).is_some_and(|stage| *stage != StageAtOnce::Comes)
    }

    /// Whether any slots come, or have come and are not settled.
    pub(super) fn some_come(&self) -> bool {
        self.comes.values().any(|stage| *stage != StageAtOnce::Disputed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: locks that a client restored there were taken for those of the server's move.
    #[test]
    fn nothing_comes_in_a_slot_that_is_disputed() {
        let mut moves = MovesAtOnce::default();
        moves.is_disputed(5);
        moves.note(MoveAtOnce::HasCome, 6, None);
        let seen = [5, 6, 7].map(|slot| (moves.is_complete(slot), moves.comes(slot)));
        assert_eq!(seen, [(true, false), (true, true), (false, false)]);
        moves.is_over(6);
        assert!(!moves.some_come());
    }
}
