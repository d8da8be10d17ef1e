//! What this node has seen of the slots of other masters, which they ask it to confirm.

use std::collections::{BTreeMap, BTreeSet};

use super::shares::{Shares, SlotRuns, is_of_one_boot};
use super::slot_set::{SlotSet, runs};

/// What was seen of a master that has asked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asker {
    name: Vec<u8>,
    /// The numbers of its first and last questions.
    first: u64,
    last: u64,
    /// Its slots at the last look.
    had: SlotSet,
    /// Slots that it has lost, and its last question before that.
    lost: BTreeMap<u16, u64>,
}

/// What was seen of all other masters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Witness {
    seen: Vec<Asker>,
    shares: Vec<(Vec<u8>, SlotRuns)>,
    epochs: Vec<(Vec<u8>, u64)>,
}

impl Witness {
    pub(super) fn look(&mut self, shares: &Shares) {
        self.shares.clone_from(&shares.others);
        self.epochs.clone_from(&shares.epochs);
        for seen in &mut self.seen {
            let has = shares.others.iter().find(|(name, _)| *name == seen.name);
            let has = has.map(|(_, ranges)| SlotSet::of(ranges)).unwrap_or_default();
            seen.lost.extend(seen.had.without(&has).into_iter().map(|slot| (slot, seen.last)));
            seen.had = has;
        }
    }

    /// The configuration epoch of this master, as the server believes.
    pub(super) fn epoch_of(&self, name: &[u8]) -> u64 {
        let seen = self.epochs.iter().find(|(other, _)| other == name);
        seen.map(|(_, epoch)| *epoch).unwrap_or_default()
    }

    /// What this node confirms, just after a look; what has been lost, and the number of the
    /// question since which that is known. `number`: that of the question. `since`: the number of
    /// an earlier one, after which breaks matter. A node that has started since does not know them:
    /// the asker may have lost a slot before, and got it back.
    pub(super) fn confirm(
        &mut self,
        name: &[u8],
        (number, since): (u64, u64),
    ) -> (SlotRuns, SlotRuns, u64) {
        let slots = self.shares.iter().find(|(other, _)| other == name);
        let slots = slots.map(|(_, ranges)| ranges.clone()).unwrap_or_default();
        let is_new = |seen: &Asker| seen.name == name && !is_of_one_boot(seen.last, number);
        self.seen.retain(|seen| !is_new(seen));
        let place = self.seen.iter().position(|seen| seen.name == name).unwrap_or_else(|| {
            let (name, had) = (name.to_vec(), SlotSet::of(&slots));
            self.seen.push(Asker { name, first: number, last: number, had, lost: BTreeMap::new() });
            self.seen.len() - 1
        });
        let seen = &mut self.seen[place];
        seen.last = seen.last.max(number);
        seen.lost.retain(|_, last| since <= *last);
        let lost: BTreeSet<u16> = seen.lost.keys().copied().collect();
        (slots, runs(lost), since.max(seen.first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Instant, question_number};

    fn number(boot: u64, at: u64) -> u64 {
        question_number(boot, Instant::from_millis(at))
    }

    fn shares(slots: SlotRuns) -> Shares {
        Shares { others: vec![(b"bb".to_vec(), slots)], ..Shares::default() }
    }

    #[test]
    fn who_asks_is_told_what_it_has_and_what_it_has_lost_since() {
        let mut witness = Witness::default();
        witness.look(&shares(vec![(0, 4)]));
        let mut confirm = |shares: &[SlotRuns], numbers| {
            shares.iter().for_each(|slots| witness.look(&self::shares(slots.clone())));
            witness.confirm(b"bb", numbers)
        };
        let first = confirm(&[], (number(1, 100), number(1, 50)));
        assert_eq!(first, (vec![(0, 4)], Vec::new(), number(1, 100)), "it knows no more");
        // Two slots go, and one comes back.
        let told = confirm(&[vec![(0, 2)], vec![(0, 3)]], (number(1, 200), number(1, 100)));
        assert_eq!(told, (vec![(0, 3)], vec![(3, 4)], number(1, 100)));
        let (_, again, _) = confirm(&[], (number(1, 300), number(1, 100)));
        assert_eq!(again, [(3, 4)], "the answer may be lost");
        let (_, later, _) = confirm(&[], (number(1, 400), number(1, 200)));
        assert!(later.is_empty());
        let (_, lost, since) = confirm(&[vec![(0, 2)]], (number(2, 10), number(2, 5)));
        assert!(lost.is_empty() && since == number(2, 10), "it has started since");
        let (of_nobody, ..) = witness.confirm(b"cc", (number(1, 10), number(1, 10)));
        assert!(of_nobody.is_empty());
    }
}
