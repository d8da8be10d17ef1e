//! Masters that are killed or hang.

use super::*;

impl Cluster {
    /// Whether each slot of this master is one that it decides in, or waits in. One that stops
    /// before that takes the slot for its own.
    pub(super) fn may_stop(&self, at: usize) -> bool {
        let master = &self.masters[at];
        let owns = |slot: &&u16| master.owners[*slot] == at;
        let slots: Vec<u16> = master.owners.keys().filter(owns).copied().collect();
        slots.iter().all(|slot| {
            master.node.engine.decides_in(*slot)
                || master.waits_in.contains(slot)
                || master.migrating.contains_key(slot)
        })
    }

    pub(super) fn do_harm(&mut self) {
        let at = self.random.random_range(0..MASTERS);
        match self.random.random_range(0..10) {
            0..=2 if self.is_able(at) && self.may_stop(at) => {
                let end = if self.chance(20) { End::PowerLoss } else { End::Killed };
                let loses = self.chance(50);
                let back_at = Instant::now() + self.millis(50, 8_000);
                self.note(at, &format!("{end:?}"));
                let master = &mut self.masters[at];
                master.node.end(end, loses);
                master.is_to_start_at = Some(back_at);
                self.counts.kills += 1;
            }
            3..=5 if self.is_able(at) => {
                let length = self.millis(100, 9_000);
                self.note(at, &format!("hangs for {length:?}"));
                let master = &mut self.masters[at];
                master.hangs_until = Instant::now() + length;
                if Instant::now() < master.serves_from {
                    master.serves_from = master.hangs_until + REJOINING;
                }
                self.counts.hangs += 1;
            }
            6 => {
                let until = Instant::now() + self.millis(100, 8_000);
                self.cut = Some((at, (at + 1) % MASTERS, until));
            }
            7 => {
                let count = self.mail.len();
                if count > 0 {
                    self.mail.remove(self.random.random_range(0..count));
                }
            }
            _ => self.give_up(),
        }
    }

    pub(super) fn start_again(&mut self, at: usize) {
        self.note(at, "starts");
        let now = Instant::now();
        // What was on its way to the earlier process has nowhere to go.
        self.mail.retain(|letter| letter.to != at);
        let master = &mut self.masters[at];
        master.is_to_start_at = None;
        master.node.start_again();
        master.node.engine.join_cluster(master.node.boot);
        (master.serves_from, master.heard_at) = (now + REJOINING, None);
        master.has_looked = false;
        master.waits_in.clear();
        (master.ticked_at, master.looked_at, master.greeted_at) = (now, now - PAUSE, now);
    }
}
