//! A master with a replica that may replace it.
//!
//! The replica has its master's locks of a moment ago. It is elected when most masters have not
//! heard its master for the node timeout, or told to take over, by most masters (`FORCE`) or on its
//! own word (`TAKEOVER`), also where it is cut off from them. The former master becomes a replica
//! when it hears of that. A promoted master may stop at any time.

use super::*;

/// How old, at most, what a replica has of its master is.
const LAG_MS: u64 = 1_000;

impl Cluster {
    /// The replica, if there is one now, and its master.
    pub(super) fn group(&self) -> Option<(usize, usize)> {
        self.servers().find_map(|at| Some((at, self.masters[at].node.member.follows?)))
    }

    /// Whether this server is a promoted one that the other one cannot know of.
    pub(super) fn is_hidden(&self, at: usize, to: usize) -> bool {
        self.masters[at].is_doubting && self.are_parted(at, to)
    }

    /// Whether this master has lost its last slot to its replica.
    pub(super) fn is_replaced(&self, at: usize, successor: usize) -> bool {
        let has_none = self.masters[at].owners.values().all(|owner| *owner != at);
        has_none && self.masters[at].replaced_by == Some(successor)
    }

    /// The master becomes a replica of the one that has replaced it.
    pub(super) fn follow_successor(&mut self, at: usize, successor: usize) {
        self.note(at, &format!("becomes a replica of {successor}"));
        let master = &mut self.masters[at];
        master.node.demote(successor);
        (master.is_doubting, master.replaced_by) = (false, None);
        master.are_masters[at] = false;
        (master.hands_over, master.holds_until) = (None, Instant::now());
        master.importing.clear();
        master.migrating.clear();
        self.counts.replaced += 1;
    }

    /// What happens to the group by itself, and what an operator does with it.
    pub(super) fn look_after_group(&mut self) {
        let Some((at, master)) = self.group() else { return };
        let now = Instant::now();
        let is_linked = self.is_able(at) && self.is_able(master) && !self.are_parted(at, master);
        if is_linked && self.masters[master].node.is_master() && self.is_to_replicate(at) {
            self.replicate(at, master);
        }
        let timeout = self.plan.node_timeout;
        let is_silent = |it: usize| self.masters[it].heard_from[master] + timeout < now;
        let is_failing = is_silent(at) && self.votes(at, |it| it != master && is_silent(it));
        if is_failing && self.chance(20) {
            self.promote(at, true);
        } else if self.chance(self.plan.faults.div_ceil(3)) && self.is_free(at, master) {
            self.fail_over(at, master);
        }
    }

    fn is_to_replicate(&mut self, at: usize) -> bool {
        let is_due = self.masters[at].replicates_at <= Instant::now();
        if is_due {
            self.masters[at].replicates_at = Instant::now() + self.millis(1, LAG_MS);
        }
        is_due
    }

    /// The replica gets all that its master has.
    fn replicate(&mut self, at: usize, master: usize) {
        let source = &self.masters[master].node;
        let key = |(name, lock): (&Vec<u8>, &Lock)| (name.clone(), source.encode(lock, 0));
        let locks = source.locks.iter().map(key).collect();
        let floor = source.engine.promises().floor();
        let node = &mut self.masters[at].node;
        node.load(locks);
        node.engine.apply_floor(floor);
    }

    /// Whether most masters with slots vote for this replica.
    fn votes(&self, at: usize, votes: impl Fn(usize) -> bool) -> bool {
        let owners: BTreeSet<usize> = self.masters[at].owners.values().copied().collect();
        let voters: Vec<_> = owners.into_iter().filter(|owner| *owner != NOBODY).collect();
        let can_vote = |it: &&usize| self.is_able(**it) && !self.are_parted(at, **it);
        let count = voters.iter().filter(can_vote).filter(|it| votes(**it)).count();
        self.is_able(at) && 2 * count > voters.len()
    }

    /// Whether no slot moves to or from the group.
    fn is_free(&self, at: usize, master: usize) -> bool {
        let is_of_group = |it: usize| [at, master].contains(&it);
        let moves = self.moves.iter().any(|one| is_of_group(one.from) || is_of_group(one.to));
        let state = &self.masters[master];
        let is_moving = !state.importing.is_empty() || !state.migrating.is_empty();
        self.is_able(at) && !moves && !is_moving && state.hands_over.is_none()
    }

    /// `CLUSTER FAILOVER FORCE` or `TAKEOVER`, where one of both may be cut off: the master, or the
    /// replica before anybody hears that it has taken over.
    fn fail_over(&mut self, at: usize, master: usize) {
        let is_forced = self.chance(50);
        let side = self.chance(50).then_some(if self.chance(50) { master } else { at });
        if let Some(side) = side
            && (side == master || !is_forced)
        {
            self.part(side);
        }
        if is_forced && !self.votes(at, |_| true) {
            return;
        }
        self.promote(at, is_forced);
        if is_forced && side == Some(at) {
            self.mail.retain(|letter| letter.from != at);
            self.part(at);
        }
        if self.chance(30) && self.masters[at].node.is_master() {
            self.stop(at, 50..2_000);
        }
    }

    /// The replica becomes a master, with the slots of its former one as it knows them.
    fn promote(&mut self, at: usize, is_elected: bool) {
        let Some(former) = self.masters[at].node.member.follows else { return };
        let slots = self.masters[at].announcement(former).slots;
        if slots.is_empty() {
            return;
        }
        if is_elected {
            let reached: Vec<_> = self
                .others(at)
                .filter(|it| !self.are_parted(at, *it) && self.is_able(*it))
                .collect();
            let epochs = reached.iter().map(|it| self.masters[*it].current_epoch);
            let epoch = epochs.fold(self.masters[at].current_epoch, u64::max) + 1;
            for it in reached.into_iter().chain([at]) {
                self.masters[it].current_epoch = epoch;
            }
            self.masters[at].epochs[at] = epoch;
        } else {
            self.raise_epoch(at);
        }
        let epoch = self.masters[at].epochs[at];
        self.note(at, &format!("replaces {former}, elected: {is_elected}, epoch {epoch}"));
        let master = &mut self.masters[at];
        master.node.engine.rejoin_cluster(master.node.boot);
        master.node.promote();
        master.are_masters[at] = true;
        (master.has_looked, master.is_doubting) = (false, true);
        master.waits_in.clear();
        master.found.clear();
        (master.had_none, master.ticked_at) = (false, Instant::now());
        slots.iter().for_each(|slot| master.take(*slot, at));
        self.masters[former].replaced_by = Some(at);
        self.announce(at);
        self.counts.promoted += 1;
    }
}
