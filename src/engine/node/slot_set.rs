//! Sets of slots.

use std::collections::BTreeSet;

use super::{SLOTS, SlotRuns};

/// A set of slots.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SlotSet(Box<[u64; SLOTS as usize / 64]>);

impl Default for SlotSet {
    fn default() -> SlotSet {
        SlotSet(Box::new([0; SLOTS as usize / 64]))
    }
}

impl SlotSet {
    pub(super) fn of(ranges: &SlotRuns) -> SlotSet {
        let mut slots = SlotSet::default();
        for &(first, last) in ranges {
            slots.insert_run(first.into(), last.into());
        }
        slots
    }

    /// A node makes sets of all its slots many times a second, so this goes by words.
    fn insert_run(&mut self, first: usize, last: usize) {
        let words = self.0.iter_mut().enumerate();
        for (index, word) in words.take(last / 64 + 1).skip(first / 64) {
            let from = first.saturating_sub(index * 64);
            let to = (last - index * 64).min(63);
            *word |= u64::MAX << from & u64::MAX >> (63 - to);
        }
    }

    pub(super) fn has(&self, slot: u16) -> bool {
        let slot = usize::from(slot % SLOTS);
        self.0[slot / 64] >> (slot % 64) & 1 == 1
    }

    pub(super) fn insert(&mut self, slot: u16) {
        let slot = usize::from(slot % SLOTS);
        self.0[slot / 64] |= 1 << (slot % 64);
    }

    pub(super) fn remove(&mut self, slot: u16) {
        let slot = usize::from(slot % SLOTS);
        self.0[slot / 64] &= !(1 << (slot % 64));
    }

    pub(super) fn first(&self) -> Option<u16> {
        (0..SLOTS).find(|slot| self.has(*slot))
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u16> {
        self.without(&SlotSet::default()).into_iter()
    }

    /// The slots that the other set lacks.
    pub(super) fn without(&self, other: &SlotSet) -> Vec<u16> {
        let mut slots = Vec::new();
        for (index, (word, other)) in (0..SLOTS).step_by(64).zip(self.0.iter().zip(&*other.0)) {
            let mut left = word & !other;
            while left != 0 {
                slots.push(index + left.trailing_zeros() as u16);
                left &= left - 1;
            }
        }
        slots
    }

    /// The slots that the other set has too.
    pub(super) fn both(&self, other: &SlotSet) -> Vec<u16> {
        let mut both = self.clone();
        both.keep(other);
        both.iter().collect()
    }

    /// Keeps only the slots that the other set has too.
    pub(super) fn keep(&mut self, other: &SlotSet) {
        self.0.iter_mut().zip(other.0.iter()).for_each(|(word, other)| *word &= other);
    }
}

/// Each of these slots.
pub(super) fn all(runs: &SlotRuns) -> impl Iterator<Item = u16> {
    runs.iter().flat_map(|&(first, last)| first..=last)
}

/// These slots as ranges.
pub(super) fn runs(slots: BTreeSet<u16>) -> SlotRuns {
    let mut runs: SlotRuns = Vec::new();
    for slot in slots {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(slot) => *last = slot,
            _ => runs.push((slot, slot)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_runs_has_each_slot_of_them_and_no_other() {
        for (first, last) in [
            (0, 0),
            (0, 16_383),
            (63, 64),
            (64, 127),
            (65, 126),
            (5, 700),
            (700, 700),
            (16_320, 16_383),
            (16_383, 16_383),
        ] {
            let runs = vec![(first, last), (9_000, 9_001)];
            let slots = SlotSet::of(&runs);
            let expected = |slot| (first..=last).contains(&slot) || (9_000..=9_001).contains(&slot);
            assert!((0..SLOTS).all(|slot| slots.has(slot) == expected(slot)), "{first} to {last}");
        }
    }
}
