//! Masters that stop or hang.

use super::*;

impl Cluster {
    /// Whether each slot of this master is one that it decides in, waits in, or doubts. One that
    /// stops before that takes the slot for its own.
    pub(super) fn may_stop(&self, at: usize) -> bool {
        let master = &self.masters[at];
        let owns = |slot: &&u16| master.owners[*slot] == at;
        let slots: Vec<u16> = master.owners.keys().filter(owns).copied().collect();
        slots.iter().all(|slot| {
            master.node.decides_in(*slot)
                || master.is_doubting
                || master.found.contains(slot) && master.has_looked
                || master.waits_in.contains(slot) && self.is_known_to_be_highest(at)
                || master.migrating.contains_key(slot)
        })
    }

    /// Whether no other master has as high an epoch, and those that run know this one's.
    fn is_known_to_be_highest(&self, at: usize) -> bool {
        let epoch = self.masters[at].epochs[at];
        self.others(at).all(|other| {
            let its = &self.masters[other].epochs;
            its[other] < epoch && (!self.is_up(other) || its[at] == epoch)
        })
    }

    pub(super) fn stop(&mut self, at: usize, down_ms: Range<u64>) {
        let end = match self.random.random_range(0..10) {
            0..=1 => End::PowerLoss,
            2..=4 => End::Shutdown { saves: true },
            _ => End::Killed,
        };
        let loses = self.chance(50);
        let back_at = Instant::now() + self.millis(down_ms.start, down_ms.end);
        self.note(at, &format!("{end:?}"));
        let master = &mut self.masters[at];
        master.node.end(end, loses);
        master.is_to_start_at = Some(back_at);
        self.counts.stops += 1;
    }

    /// Whether these two are cut off from each other.
    pub(super) fn are_parted(&self, one: usize, other: usize) -> bool {
        self.parted.as_ref().is_some_and(|(side, until)| {
            Instant::now() < *until && side.contains(&one) != side.contains(&other)
        })
    }

    /// Cuts this master off from the others, perhaps with another one, unless some are cut off
    /// already.
    pub(super) fn part(&mut self, at: usize) {
        if self.parted.as_ref().is_some_and(|(_, until)| Instant::now() < *until) {
            return;
        }
        let longest = if self.chance(50) { 25_000 } else { 6_000 };
        let mut side = BTreeSet::from([at]);
        if self.chance(50) {
            side.insert(self.another(at));
        }
        self.note(at, &format!("{side:?} are cut off from the others"));
        self.parted = Some((side, Instant::now() + self.millis(100, longest)));
        self.counts.parted += 1;
    }

    pub(super) fn do_harm(&mut self) {
        let at = self.any_server();
        match self.random.random_range(0..11) {
            0..=2 if self.is_able(at) && self.may_stop(at) => {
                let longest = if self.has_taken(at) { MAX_TTL.get() } else { 8_000 };
                self.stop(at, 50..longest);
            }
            3..=5 if self.is_able(at) => {
                let longest = if self.chance(20) { 25_000 } else { 9_000 };
                self.hang(at, (100, longest));
            }
            6 if self.taker.is_none() => {
                let until = Instant::now() + self.millis(100, 8_000);
                self.cut = Some((at, self.another(at), until));
            }
            7 if self.taker.is_none() => self.part(at),
            7 | 8 => {
                let count = self.mail.len();
                if count > 0 {
                    self.mail.remove(self.random.random_range(0..count));
                }
            }
            _ => self.give_up(),
        }
    }

    /// Not a master with a slot that another believes to have: see "Whoever moves slots must take
    /// some care" in docs/design.md.
    pub(super) fn hang(&mut self, at: usize, (shortest, longest): (u64, u64)) {
        let owns = |of: usize, slot: &u16| self.masters[of].owners[slot] == of;
        let claims = |of| moving().iter().any(|slot| owns(at, slot) && owns(of, slot));
        if self.others(at).any(claims) {
            return;
        }
        let (length, reads_in) = (self.millis(shortest, longest), self.millis(0, 90));
        self.note(at, &format!("hangs for {length:?}"));
        let master = &mut self.masters[at];
        master.hangs_until = Instant::now() + length;
        master.reads_from = master.hangs_until + reads_in;
        if Instant::now() < master.serves_from {
            master.serves_from = master.hangs_until + REJOINING;
        }
        self.counts.hangs += 1;
    }

    pub(super) fn start_again(&mut self, at: usize) {
        self.note(at, "starts");
        let now = Instant::now();
        // What was on its way to the earlier process has nowhere to go.
        self.mail.retain(|letter| letter.to != at);
        if !self.has_taken(at) && self.chance(self.plan.faults.min(1) * 20) {
            self.alone = Some((at, now + self.millis(500, 6_000)));
        }
        let master = &mut self.masters[at];
        master.is_to_start_at = None;
        master.node.start_again();
        (master.serves_from, master.heard_from) = (now + REJOINING, [now; SERVERS]);
        (master.hands_over, master.holds_until) = (None, now);
        master.has_looked = false;
        master.waits_in.clear();
        // A server takes each slot that no master has, if it has keys there.
        let left = master.node.locks.keys().map(|name| slot_of(name));
        let takes = |slot: &u16| master.node.is_master() && master.owners[slot] == NOBODY;
        master.found = left.filter(takes).collect();
        master.had_none = !master.owners.values().any(|owner| *owner == at);
        master.owners.extend(master.found.iter().map(|slot| (*slot, at)));
        self.counts.found += master.found.len() as u64;
        (master.ticked_at, master.looked_at, master.greeted_at) = (now, now - PAUSE, now);
    }
}
