//! The leases of the readers who hold one lock together.
//!
//! They are in a heap whose first lease is the one that ends last: a writer waits for it. An index
//! finds each by its token. Every operation takes O(log n), except that leases which have ended are
//! removed all at once, when there are twice as many leases as after the previous removal.

use std::hash::{Hash, Hasher};

use hashbrown::HashTable;

use super::packed_lease::PackedLease;
use crate::engine::token::digest;
use crate::engine::{Fence, Instant, Token};

/// Fewer leases than this are not worth a search for ended ones.
const FEW: usize = 64;

/// A reader's lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReaderLease {
    pub(super) fence: Fence,
    pub(super) slot: PackedLease,
}

const _: () = assert!(size_of::<ReaderLease>() == 48);

/// The place of a lease while it is swapped.
const MOVING: u32 = u32::MAX;

/// Several readers of one lock, or some who have left and one who has not.
#[derive(Clone, Default)]
pub(super) struct Readers {
    /// I9: no lease ends later than its parent in the heap.
    heap: Vec<ReaderLease>,
    /// The place of each in the heap, by its token.
    places: HashTable<u32>,
    /// No lease ends before this.
    soonest: Instant,
    /// How many leases there may be before ended ones are looked for.
    enough: usize,
}

impl PartialEq for Readers {
    fn eq(&self, other: &Readers) -> bool {
        self.heap == other.heap
    }
}

impl Eq for Readers {}

impl Hash for Readers {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.heap.hash(state);
    }
}

impl std::fmt::Debug for Readers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.heap.fmt(f)
    }
}

impl Readers {
    /// How many leases are written here, over or not.
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// All of them, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &ReaderLease> {
        self.heap.iter()
    }

    /// The end of the lease that ends last.
    pub(super) fn last_end(&self) -> Instant {
        self.heap.first().map_or(Instant::default(), |reader| reader.slot.ends_at())
    }

    /// No lease ends before this.
    pub(super) fn soonest_end(&self) -> Instant {
        self.soonest
    }

    /// How many leases stand.
    pub(super) fn standing(&self, now: Instant) -> usize {
        if now <= self.soonest {
            return self.len();
        }
        self.heap.iter().filter(|reader| now <= reader.slot.ends_at()).count()
    }

    /// A lower bound for the ends of the leases that stand.
    pub(super) fn next_end(&self, now: Instant) -> Instant {
        if now <= self.soonest {
            return self.soonest;
        }
        let ends = self.heap.iter().map(|reader| reader.slot.ends_at());
        ends.filter(|end| now <= *end).min().unwrap_or(now)
    }

    /// The lease of this token.
    pub(super) fn get(&self, token: Token<'_>) -> Option<&ReaderLease> {
        self.heap.get(self.place_of(token)?)
    }

    /// Writes a lease for a token that has none.
    pub(super) fn insert(&mut self, reader: ReaderLease) {
        debug_assert!(reader.slot.token().is_some_and(|token| self.get(token).is_none()));
        let ends_at = reader.slot.ends_at();
        self.soonest = if self.heap.is_empty() { ends_at } else { self.soonest.min(ends_at) };
        let place = self.heap.len();
        if place == self.heap.capacity() {
            // Doubling would cost twice the memory of many readers.
            self.heap.reserve_exact((place / 16).max(4));
        }
        let (hash, heap) = (reader.slot.digest(), &self.heap);
        let rehash = |&place: &u32| heap.get(place as usize).map_or(0, |one| one.slot.digest());
        self.places.insert_unique(hash, place as u32, rehash);
        self.heap.push(reader);
        self.rise(place);
    }

    /// Removes the lease of this token.
    pub(super) fn remove(&mut self, token: Token<'_>) -> Option<ReaderLease> {
        self.remove_at(self.place_of(token)?)
    }

    /// Removes the lease at this place.
    pub(super) fn remove_at(&mut self, place: usize) -> Option<ReaderLease> {
        let last = self.heap.len().checked_sub(1).filter(|&last| place <= last)?;
        self.swap(place, last);
        let removed = self.heap.pop()?;
        self.forget(&removed, last);
        if place < last {
            self.settle(place);
        }
        if self.heap.len() < self.heap.capacity() / 4 {
            self.shrink();
        }
        Some(removed)
    }

    /// The lease at this place.
    pub(super) fn at(&self, place: usize) -> Option<&ReaderLease> {
        self.heap.get(place)
    }

    /// Changes the lease at this place, but not its token. It may have another place afterwards.
    pub(super) fn change_at(&mut self, place: usize, change: impl FnOnce(&mut ReaderLease)) {
        if let Some(reader) = self.heap.get_mut(place) {
            change(reader);
            self.soonest = self.soonest.min(reader.slot.ends_at());
            self.settle(place);
        }
    }

    /// Changes all of them, in a way that keeps their order.
    pub(super) fn change_all(&mut self, mut change: impl FnMut(&mut ReaderLease)) {
        for reader in &mut self.heap {
            change(reader);
        }
    }

    /// Removes the leases that have ended, if the search may be worthwhile. Returns how many.
    pub(super) fn remove_some_ended(&mut self, now: Instant) -> usize {
        if self.heap.len() < self.enough.max(FEW) { 0 } else { self.remove_ended(now) }
    }

    /// Removes the leases that have ended. Returns how many.
    pub(super) fn remove_ended(&mut self, now: Instant) -> usize {
        if now <= self.soonest {
            return 0;
        }
        let before = self.heap.len();
        self.heap.retain(|reader| now <= reader.slot.ends_at());
        // In order from the last end to the first, they are a heap.
        self.heap.sort_by_key(|reader| std::cmp::Reverse(reader.slot.ends_at()));
        self.soonest = self.heap.last().map_or(Instant::default(), |last| last.slot.ends_at());
        self.enough = self.heap.len().saturating_mul(2);
        self.shrink();
        before - self.heap.len()
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let labels: usize = self.heap.iter().map(|reader| reader.slot.heap_bytes()).sum();
        self.heap.capacity() * size_of::<ReaderLease>() + self.places.allocation_size() + labels
    }

    /// Frees memory, and rebuilds the index.
    fn shrink(&mut self) {
        self.heap.shrink_to(self.heap.len() + self.heap.len() / 16);
        let heap = &self.heap;
        let hash = |&place: &u32| heap.get(place as usize).map_or(0, |one| one.slot.digest());
        self.places.clear();
        self.places.shrink_to(heap.len(), hash);
        for (place, reader) in heap.iter().enumerate() {
            self.places.insert_unique(reader.slot.digest(), place as u32, hash);
        }
    }

    /// The place of this token's lease, valid until the next change.
    pub(super) fn place_of(&self, token: Token<'_>) -> Option<usize> {
        let is_it = |&place: &u32| {
            self.heap.get(place as usize).and_then(|one| one.slot.token()) == Some(token)
        };
        self.places.find(digest(token.as_bytes()), is_it).map(|&place| place as usize)
    }

    /// Removes a lease from the index.
    fn forget(&mut self, reader: &ReaderLease, place: usize) {
        let found = self.places.find_entry(reader.slot.digest(), |&known| known == place as u32);
        if let Ok(entry) = found {
            entry.remove();
        }
    }

    /// Swaps two leases.
    fn swap(&mut self, one: usize, other: usize) {
        if one == other {
            return;
        }
        for (from, to) in [(one as u32, MOVING), (other as u32, one as u32), (MOVING, other as u32)]
        {
            let at = if from == other as u32 { other } else { one };
            let Some(reader) = self.heap.get(at) else { continue };
            if let Some(place) = self.places.find_mut(reader.slot.digest(), |&known| known == from)
            {
                *place = to;
            }
        }
        self.heap.swap(one, other);
    }

    /// Restores the order after a change at this place.
    fn settle(&mut self, place: usize) {
        self.rise(place);
        self.sink(place);
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 && self.ends_after(place, (place - 1) / 2) {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let children = [2 * place + 1, 2 * place + 2].into_iter();
            let later = children.filter(|&child| child < self.heap.len());
            let Some(child) = later.max_by_key(|&child| self.end_at(child)) else { return };
            if !self.ends_after(child, place) {
                return;
            }
            self.swap(child, place);
            place = child;
        }
    }

    fn ends_after(&self, one: usize, other: usize) -> bool {
        self.end_at(one) > self.end_at(other)
    }

    fn end_at(&self, place: usize) -> Instant {
        self.heap.get(place).map_or(Instant::default(), |reader| reader.slot.ends_at())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Lease, Mode};
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        Insert { reader: usize, ends_at: u64 },
        Remove(usize),
        SetEnd { reader: usize, ends_at: u64 },
        Prolong(u64),
        RemoveEnded(u64),
        RemoveSomeEnded(u64),
    }

    /// Few enough that a `u8` tells them apart, and enough that more than [`FEW`] are there at
    /// once.
    const READERS: usize = 100;

    fn op() -> impl Strategy<Value = Op> {
        let (reader, ends_at) = (0..READERS, 0..60_u64);
        prop_oneof![
            8 => (reader.clone(), ends_at.clone())
                .prop_map(|(reader, ends_at)| Op::Insert { reader, ends_at }),
            3 => reader.clone().prop_map(Op::Remove),
            4 => (reader, ends_at.clone())
                .prop_map(|(reader, ends_at)| Op::SetEnd { reader, ends_at }),
            1 => (0..5_u64).prop_map(Op::Prolong),
            1 => ends_at.clone().prop_map(Op::RemoveEnded),
            1 => ends_at.prop_map(Op::RemoveSomeEnded),
        ]
    }

    /// All different, of 1 to 64 bytes.
    fn token(reader: usize) -> Vec<u8> {
        vec![reader as u8 + 1; 1 + reader * 7 % 64]
    }

    fn reader(reader: usize, ends_at: u64) -> ReaderLease {
        let (token, label) = (token(reader), vec![b'x'; reader % 3 * 20]);
        let lease = Lease {
            token: Token::new(&token, 64).unwrap(),
            fence: Fence::new(1 + reader as u64).unwrap(),
            ends_at: Instant::from_millis(ends_at),
            label: &label,
            mode: Mode::Shared,
            is_provisional: false,
        };
        let mut slot = PackedLease::default();
        slot.write(lease, Instant::default());
        ReaderLease { fence: lease.fence, slot }
    }

    /// The readers, and a plain list of them with the ends of their leases.
    #[derive(Default)]
    struct Pair {
        readers: Readers,
        list: Vec<(usize, u64)>,
    }

    impl Pair {
        fn do_it(&mut self, op: &Op) {
            let Pair { readers, list } = self;
            match *op {
                Op::Insert { reader: one, ends_at } => {
                    if list.iter().all(|(other, _)| *other != one) {
                        list.push((one, ends_at));
                        readers.insert(reader(one, ends_at));
                    }
                }
                Op::Remove(one) => {
                    let ends_at = list.iter().find(|(other, _)| *other == one).map(|one| one.1);
                    list.retain(|(other, _)| *other != one);
                    let removed = readers.remove(Token::new(&token(one), 64).unwrap());
                    assert_eq!(removed, ends_at.map(|ends_at| reader(one, ends_at)));
                }
                Op::SetEnd { reader: one, ends_at } => {
                    let known = list.iter_mut().find(|(other, _)| *other == one);
                    let is_there = known.map(|known| known.1 = ends_at).is_some();
                    let token = token(one);
                    let place = readers.place_of(Token::new(&token, 64).unwrap());
                    assert_eq!(place.is_some(), is_there);
                    if let Some(place) = place {
                        let ends_at = Instant::from_millis(ends_at);
                        readers.change_at(place, |one| one.slot.set_end(ends_at));
                    }
                }
                Op::Prolong(length) => {
                    list.iter_mut().for_each(|(_, ends_at)| *ends_at += length);
                    let later = |end: Instant| Instant::from_millis(end.as_millis() + length);
                    readers.change_all(|one| one.slot.set_end(later(one.slot.ends_at())));
                }
                Op::RemoveEnded(now) => {
                    let before = list.len();
                    list.retain(|(_, ends_at)| now <= *ends_at);
                    let removed = readers.remove_ended(Instant::from_millis(now));
                    assert_eq!(removed, before - list.len());
                }
                Op::RemoveSomeEnded(now) => {
                    let now = Instant::from_millis(now);
                    let removed = readers.remove_some_ended(now);
                    if removed > 0 {
                        assert!(list.len() >= FEW, "few are not worth it");
                        list.retain(|(_, ends_at)| now.as_millis() <= *ends_at);
                    }
                }
            }
        }

        fn compare(&self) {
            let Pair { readers, list } = self;
            assert_eq!((readers.len(), readers.is_empty()), (list.len(), list.is_empty()));
            let last = list.iter().map(|one| one.1).max().unwrap_or(0);
            assert_eq!(readers.last_end(), Instant::from_millis(last));
            let soonest = list.iter().map(|one| one.1).min();
            let is_before = |soonest| readers.soonest_end() <= Instant::from_millis(soonest);
            assert!(soonest.is_none_or(is_before));
            for now in [0, 20, 40, 60] {
                let standing = list.iter().filter(|(_, ends_at)| now <= *ends_at).count();
                assert_eq!(readers.standing(Instant::from_millis(now)), standing);
            }
            for one in 0..READERS {
                let found = readers.get(Token::new(&token(one), 64).unwrap()).cloned();
                let listed = list.iter().find(|(other, _)| *other == one);
                assert_eq!(found, listed.map(|(_, ends_at)| reader(one, *ends_at)));
            }
            let mut ends: Vec<u64> = readers.iter().map(|r| r.slot.ends_at().as_millis()).collect();
            let mut listed: Vec<u64> = list.iter().map(|one| one.1).collect();
            ends.sort_unstable();
            listed.sort_unstable();
            assert_eq!(ends, listed);
            for place in 1..readers.heap.len() {
                assert!(!readers.ends_after(place, (place - 1) / 2), "I9");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn readers_are_found_and_ordered_as_in_a_plain_list(
            ops in proptest::collection::vec(op(), 1..400),
        ) {
            let mut pair = Pair::default();
            for op in &ops {
                pair.do_it(op);
                pair.compare();
            }
        }
    }

    /// A token of 20 bytes, as clients make them, and no label.
    fn one_of_many(number: u64, ends_at: u64) -> ReaderLease {
        let mut token = [0; 20];
        token[..8].copy_from_slice(&number.to_be_bytes());
        let lease = Lease {
            token: Token::new(&token, 64).unwrap(),
            fence: Fence::new(1).unwrap(),
            ends_at: Instant::from_millis(ends_at),
            label: b"",
            mode: Mode::Shared,
            is_provisional: false,
        };
        let mut slot = PackedLease::default();
        slot.write(lease, Instant::default());
        ReaderLease { fence: lease.fence, slot }
    }

    #[test]
    fn each_of_many_readers_takes_at_most_64_bytes() {
        let mut readers = Readers::default();
        for number in 0..30_000_u64 {
            readers.insert(one_of_many(number, number * 7_919 % 50_000));
            if number >= 1_000 {
                let bytes = readers.heap_bytes();
                assert!(bytes <= 64 * readers.len(), "{number}: {bytes} bytes");
            }
            if number == 9_999 {
                println!("10 000 readers: {} bytes each", readers.heap_bytes() / 10_000);
            }
        }
    }

    /// Leases that ended without a release used to pile up, or to be looked for at each grant.
    #[test]
    fn ended_leases_are_at_most_as_many_as_those_that_stand_or_few() {
        let (mut readers, mut searches) = (Readers::default(), 0);
        for now in 0..20_000_u64 {
            let instant = Instant::from_millis(now);
            searches += usize::from(readers.remove_some_ended(instant) > 0);
            readers.insert(one_of_many(now, now + 999));
            let standing = readers.standing(instant);
            assert!(readers.len() <= (2 * standing).max(FEW), "{now}: {}", readers.len());
        }
        assert!((10..=40).contains(&searches), "{searches}");
    }
}
