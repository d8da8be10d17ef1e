//! The operator: moves that are begun, given up, called off and forced.

use super::*;

impl Cluster {
    /// A slot that may be moved now, its master, and another one: its master decides there. See
    /// "Whoever moves slots must take some care" in docs/design.md.
    fn movable(&mut self) -> Option<(u16, usize, usize)> {
        let slots: Vec<u16> = moving().into_iter().collect();
        let slot = slots[self.random.random_range(0..slots.len())];
        let is_agreed = |at: &usize| self.is_able(*at) && self.is_agreed(slot, *at);
        let from = self.masters().find(is_agreed)?;
        let hands_over = |one: &Master| one.hands_over.map(|(slot, _)| slot);
        let mut handed = self.masters.iter().filter_map(hands_over);
        let is_busy = match self.plan.faults {
            // Two masters that take slots at the same time may take the same epoch.
            0 => handed.next().is_some(),
            _ => handed.any(|its| its == slot),
        };
        let is_busy = is_busy || self.moves.iter().any(|one| one.slot == slot);
        if is_busy || !self.masters[from].node.decides_in(slot) {
            return None;
        }
        Some((slot, from, self.another_master(from)?))
    }

    /// Redis 8.4 and Valkey 9: the servers move a slot with all its keys.
    pub(super) fn move_at_once(&mut self) {
        let is_new = self.started_at.elapsed() < Duration::from_secs(1);
        if is_new || self.plan.faults == 0 && !self.moves.is_empty() {
            return;
        }
        let Some((slot, from, to)) = self.movable() else { return };
        let is_ready = |at: usize| {
            let master = &self.masters[at];
            master.has_looked
                && self.is_up(at)
                && master.hands_over.is_none()
                && master.importing.is_empty()
                && master.migrating.is_empty()
        };
        if !is_ready(from) || !is_ready(to) || self.claims_more(to) {
            return;
        }
        // Both have had the time to look whose it is.
        self.look(from);
        let runs_now = self.is_able(to);
        if runs_now {
            self.look(to);
        }
        self.note(from, &format!("hands slot {slot} over to {to} at once"));
        let source = &self.masters[from].node;
        let of_slot = |name: &usize| slot_of(NAMES[*name]) == slot;
        let key = |name| source.locks.get(NAMES[name]).map(|lock| (name, source.encode(lock, 0)));
        let keys = (0..NAMES.len()).filter(of_slot).filter_map(key).collect();
        let until = Instant::now() + Duration::from_secs(3);
        if runs_now {
            self.masters[to].node.engine.move_at_once(MoveAtOnce::Comes, &runs([slot]), None);
        }
        let master = &mut self.masters[from];
        master.deletes_silently.insert(slot);
        (master.hands_over, master.holds_until) = (Some((slot, to)), until);
        master.node.engine.move_at_once(MoveAtOnce::Leaves, &runs([slot]), None);
        self.keep_news(from);
        self.send(from, to, Mail::TakeOver { slot, keys, until });
        if runs_now && self.plan.faults > 0 && self.chance(40) {
            // Often until the old master has gone on, and its server does not know that it failed.
            let between = if self.chance(50) { (3_000, 4_000) } else { (100, 9_000) };
            self.hang(to, between);
        }
        if self.plan.faults > 0 && self.chance(20) {
            self.hang(from, (100, 25_000));
        }
        if self.plan.faults > 0 && self.chance(20) {
            let at = if self.chance(50) { from } else { to };
            self.part(at);
        }
    }

    /// Begins a move by steps.
    pub(super) fn begin_move(&mut self) {
        let Some((slot, from, to)) = self.movable() else { return };
        // In both directions at once, the floors would rise faster than time.
        let is_against = |one: &Move| one.to == from || one.from == to;
        let receives = !self.masters[from].importing.is_empty();
        let gives = !self.masters[to].migrating.is_empty();
        if self.moves.iter().any(is_against) || receives || gives {
            return;
        }
        let step = if self.chance(20) { Step::MigrateFirst } else { Step::Import };
        let (at, run) = (Instant::now(), self.masters[to].node.run);
        let (source_run, waits_until) = (None, None);
        let replaces = false;
        self.moves.push(Move { slot, from, to, step, at, replaces, run, source_run, waits_until });
    }

    /// `CLUSTER DELSLOTS` at all masters. Another one takes the slot, without its locks.
    pub(super) fn give_up(&mut self) {
        let slots: Vec<u16> = moving().into_iter().collect();
        let slot = slots[self.random.random_range(0..slots.len())];
        let at = self.masters[0].owners[&slot];
        if at == NOBODY {
            return;
        }
        let is_ready = |other: usize| self.is_able(other) && self.masters[other].has_looked;
        let is_agreed = self.is_agreed(slot, at) && self.masters().all(is_ready);
        let is_busy = self.moves.iter().any(|one| one.slot == slot);
        let decides = self.masters[at].node.decides_in(slot);
        // Also in the middle of a move that its source has noticed.
        let leaves = self.masters[at].migrating.contains_key(&slot) && !decides;
        if !is_agreed || !leaves && (is_busy || !decides) {
            return;
        }
        // All have had the time to look whose it is.
        self.masters().for_each(|other| self.look(other));
        self.moves.retain(|one| one.slot != slot);
        self.note(at, &format!("gives slot {slot} up"));
        for master in &mut self.masters {
            master.owners.insert(slot, NOBODY);
            master.importing.remove(&slot);
            master.migrating.remove(&slot);
        }
        if !leaves && self.may_stop(at) && self.chance(50) {
            // Long enough for another master to wait, and grant.
            self.stop(at, 50..18_000);
        }
        let others = self.masters().filter(|other| *other != at).collect::<Vec<_>>();
        let to = others[self.random.random_range(0..others.len())];
        let now = Instant::now() + self.millis(1, 1_000);
        let run = self.masters[to].node.run;
        let source_run = leaves.then_some(self.masters[at].node.run);
        let (step, from, at) = (Step::Add, at, now);
        let (replaces, waits_until) = (false, None);
        self.moves.push(Move { slot, from, to, step, at, replaces, run, source_run, waits_until });
    }

    pub(super) fn go_on_with_moves(&mut self) {
        for _ in 0..self.moves.len() {
            let mut one = self.moves.remove(0);
            if one.at.max(one.waits_until.unwrap_or(one.at)) > Instant::now() {
                self.moves.push(one);
                continue;
            }
            let may_be_called_off = self.plan.faults > 0 && one.step < Step::Assign;
            one.step = match self.take_step(&mut one) {
                _ if may_be_called_off && self.chance(4) => {
                    self.counts.called_off += 1;
                    if self.chance(50) { Step::StableAtTarget } else { Step::StableAtSource }
                }
                Some(step) => step,
                None => one.step,
            };
            let is_half_done = one.step > Step::Done && self.chance(10);
            if one.step != Step::Done && !is_half_done {
                let pause = if self.chance(10) { 6_000 } else { 300 };
                one.at = Instant::now() + self.millis(1, pause);
                self.moves.push(one);
            }
        }
    }

    /// Returns the next step; `None` if this one failed and is tried again.
    pub(super) fn take_step(&mut self, one: &mut Move) -> Option<Step> {
        let Move { slot, from, to, step, .. } = *one;
        let at = match step {
            Step::Import | Step::ImportSecond | Step::Assign | Step::Add => to,
            Step::StableAtTarget => to,
            _ => from,
        };
        if step == Step::Add && !self.masters[to].node.is_master() {
            let to = self.masters().next()?;
            self.give_away(one, to);
            return None;
        }
        if step != Step::Add && !self.masters[at].node.is_master() {
            // Refused, and none of its moves is open any more.
            return Some(if step <= Step::Assign { Step::StableAtSource } else { Step::Done });
        }
        let may_be_late = step == Step::Assign && self.plan.faults > 0 && self.is_up(to);
        if may_be_late && self.chance(if self.is_able(to) { 10 } else { 30 }) {
            self.note(from, &format!("operator: {one:?}, and gives it up"));
            self.send(to, to, Mail::Assign { slot });
            return Some(Step::StableAtSource);
        }
        // Its module looks at its slots a tenth of a second after its start.
        if !self.is_able(at) || !self.masters[at].has_looked {
            return None;
        }
        self.note(at, &format!("operator: {one:?}"));
        let claims_more = self.claims_more(to);
        let source = &self.masters[from];
        let is_unnoticed = source.migrating.contains_key(&slot) && source.node.decides_in(slot);
        let is_assigning =
            self.moves.iter().any(|other| (Step::AssignAtSource..Step::Done).contains(&other.step));
        let master = &mut self.masters[at];
        let owns = master.owners[&slot] == at;
        Some(match step {
            Step::Import | Step::ImportSecond if owns => Step::StableAtSource,
            Step::Import | Step::ImportSecond => {
                master.importing.insert(slot, from);
                if step == Step::Import { Step::Migrate } else { Step::Keys }
            }
            Step::Migrate | Step::MigrateFirst | Step::Keys if !owns => Step::StableAtTarget,
            Step::Migrate | Step::MigrateFirst => {
                master.migrating.insert(slot, to);
                if step == Step::Migrate { Step::Keys } else { Step::ImportSecond }
            }
            Step::Keys => return self.send_key(one),
            Step::Assign if is_assigning || claims_more => return None,
            Step::Assign if !master.importing.contains_key(&slot) => Step::StableAtSource,
            Step::Assign => {
                self.assign(slot, to);
                self.counts.moved += 1;
                Step::AssignAtSource
            }
            Step::AssignAtSource => {
                let is_there =
                    |name: &[u8]| slot_of(name) == slot && master.node.locks.contains_key(name);
                if owns && NAMES.into_iter().any(is_there) {
                    // Refused. It will hear from the target.
                    return None;
                }
                master.owners.insert(slot, to);
                master.claimed[to].insert(slot);
                master.migrating.remove(&slot);
                Step::AssignElsewhere
            }
            Step::AssignElsewhere => {
                for third in self.others(from).filter(|third| *third != to) {
                    if self.is_able(third) && self.masters[to].owners[&slot] == to {
                        self.masters[third].owners.insert(slot, to);
                        self.masters[third].claimed[to].insert(slot);
                    }
                }
                Step::Done
            }
            Step::Add => {
                if one.source_run.is_some() && !self.is_up(from) {
                    // Only it can tell that the target of the move decided there too.
                    return None;
                }
                let source_run = self.masters[from].node.run;
                let is_lost = one.source_run.is_some_and(|run| run != source_run);
                let master = &mut self.masters[at];
                if is_lost || master.node.run != one.run {
                    // It does not know any more who had the slot.
                    self.give_back(one);
                    return None;
                }
                let owner = master.owners[&slot];
                if owner == NOBODY {
                    master.owners.insert(slot, to);
                    master.waits_in.remove(&slot);
                    self.announce(to);
                    self.counts.given_up += 1;
                } else if self.masters[owner].owners[&slot] == NOBODY {
                    // It was told late, and would refuse: `DELSLOTS` once more.
                    self.masters[to].owners.insert(slot, NOBODY);
                    return None;
                }
                Step::Done
            }
            // A move that is over before its source has looked is not noticed.
            Step::StableAtTarget | Step::StableAtSource if is_unnoticed => return None,
            Step::StableAtTarget | Step::StableAtSource => {
                master.importing.remove(&slot);
                master.migrating.remove(&slot);
                let other = if at == to { from } else { to };
                let master = &self.masters[other];
                let is_open = master.importing.get(&slot).is_some_and(|source| *source == at)
                    || master.migrating.get(&slot).is_some_and(|target| *target == at);
                match step {
                    _ if !is_open => Step::Done,
                    Step::StableAtTarget => Step::StableAtSource,
                    _ => Step::StableAtTarget,
                }
            }
            Step::Done => Step::Done,
        })
    }

    /// Gives a slot that no master has to one that may not know who had it, by the next step.
    fn give_away(&mut self, one: &mut Move, to: usize) {
        if !self.servers().all(|at| self.is_able(at)) {
            return;
        }
        let highest = |master: &Master| master.node.engine.promises().highest().get();
        let highest = self.masters.iter().map(highest).max().unwrap_or(0);
        self.masters[to].node.raise_floor(highest);
        (one.to, one.run) = (to, self.masters[to].node.run);
        one.waits_until = Some(Instant::now() + Duration::from(self.plan.longest()));
        one.source_run = None;
    }

    /// Gives a slot that no master has to the one that had it, by the next step. It may not know
    /// any more that another master decided there.
    fn give_back(&mut self, one: &mut Move) {
        let run = self.masters[one.from].node.run;
        if one.source_run.is_some_and(|known| known != run) {
            return self.give_away(one, one.from);
        }
        (one.to, one.run) = (one.from, run);
    }

    /// Whether a master believes to have slots that others do not believe it to have. If it then
    /// takes another slot, it claims these again, with the highest epoch.
    pub(super) fn claims_more(&self, at: usize) -> bool {
        let claims = |slot: &u16| self.masters[at].owners[slot] == at;
        moving().iter().any(|slot| claims(slot) && !self.is_agreed(*slot, at))
    }

    /// `MIGRATE`, one key. A target that hangs reads the key when it goes on; the operator then
    /// sends it again, with `REPLACE`.
    pub(super) fn send_key(&mut self, one: &mut Move) -> Option<Step> {
        let Move { slot, from, to, .. } = *one;
        let source = &self.masters[from].node;
        let is_there =
            |name: &usize| slot_of(NAMES[*name]) == slot && source.locks.contains_key(NAMES[*name]);
        let Some(name) = (0..NAMES.len()).find(is_there) else { return Some(Step::Assign) };
        let bytes = source.encode(&source.locks[NAMES[name]], 0);
        if !self.is_up(to) {
            return None;
        }
        if !self.is_able(to) {
            one.replaces = true;
            self.send(to, to, Mail::Restore { name, bytes });
            return None;
        }
        if !self.masters[to].importing.contains_key(&slot) {
            return Some(Step::StableAtSource);
        }
        if !self.masters[to].node.receive_key(NAMES[name], &bytes, one.replaces) {
            one.replaces = true;
            return None;
        }
        self.masters[from].node.delete(NAMES[name]);
        self.counts.keys_moved += 1;
        Some(Step::Keys)
    }

    /// A slot becomes a master's, by its own word.
    pub(super) fn assign(&mut self, slot: u16, to: usize) {
        self.masters[to].take(slot, to);
        self.raise_epoch(to);
        self.announce(to);
    }

    /// `CLUSTER BUMPEPOCH`. Masters that do not know of each other may take the same.
    pub(super) fn raise_epoch(&mut self, at: usize) {
        let master = &mut self.masters[at];
        let highest = master.epochs.into_iter().fold(master.current_epoch, u64::max);
        if master.epochs[at] != highest {
            (master.epochs[at], master.current_epoch) = (highest + 1, highest + 1);
            self.note(at, &format!("has epoch {}", highest + 1));
        }
    }

    /// `redis-cli --cluster fix`: a slot without a master, or with a dead one, is given to another.
    pub(super) fn fix(&mut self) {
        let slots: Vec<u16> = moving().into_iter().collect();
        let slot = slots[self.random.random_range(0..slots.len())];
        let to = self.any_server();
        // Nobody there knows of a replica that was promoted while it was cut off.
        let living: Vec<_> =
            self.masters().filter(|at| self.is_up(*at) && !self.is_hidden(*at, to)).collect();
        let mut owners = living.iter().filter(|at| self.masters[**at].owners[&slot] == **at);
        let is_master = self.masters[to].node.is_master();
        if !is_master || self.masters[to].owners[&slot] == NOBODY {
            return;
        }
        if !self.is_able(to) || !self.masters[to].has_looked || owners.next().is_some() {
            return;
        }
        let is_majority = 2 * living.len() > MASTERS;
        if !self.knows_epochs(to)
            || !is_majority
            || self.claims_more(to)
            || !living.iter().all(|at| self.is_able(*at))
        {
            // The dead master might come back, and hear of it from nobody.
            return;
        }
        self.moves.retain(|one| one.slot != slot);
        // It has had the time to look whose it was.
        self.look(to);
        self.note(to, &format!("takes slot {slot}, which has no living master"));
        if self.chance(50) {
            self.assign(slot, to);
        } else {
            // `CLUSTER ADDSLOTS`, or `SETSLOT NODE` at each master, raises no epoch.
            self.masters[to].take(slot, to);
            self.announce(to);
        }
        let said = self.masters[to].announcement(to);
        for at in living {
            let master = &mut self.masters[at];
            master.importing.remove(&slot);
            master.owners.insert(slot, to);
            // Who hears of the epoch hears what is claimed with it.
            master.claimed[to] = said.slots.iter().copied().collect();
            master.epochs[to] = said.epoch;
            master.current_epoch = master.current_epoch.max(said.epoch);
        }
        self.counts.taken_from_the_dead += 1;
    }

    /// The last living master takes every slot of the others by force, also those that give them a
    /// say. When they start, they agree with each other that the slots are still theirs.
    pub(super) fn take_all(&mut self) {
        let Some(to) = self.masters().find(|at| self.is_up(*at)) else { return };
        let is_last = self.others(to).all(|at| !self.is_up(at));
        let master = &self.masters[to];
        let is_half_done = self.moves.iter().any(|one| one.step == Step::Add);
        let is_moving =
            is_half_done || !master.importing.is_empty() || !master.migrating.is_empty();
        let is_ready = self.is_able(to) && master.has_looked && self.knows_epochs(to);
        if !is_last || !is_ready || is_moving || !self.may_stop(to) {
            return;
        }
        self.moves.clear();
        self.look(to);
        self.note(to, "takes every slot of the others");
        let (now, raises) = (Instant::now(), self.chance(50));
        let slots: Vec<u16> = self.masters[to].owners.keys().copied().collect();
        for slot in slots {
            if ![to, NOBODY].contains(&self.masters[to].owners[&slot]) {
                self.masters[to].take(slot, to);
            }
        }
        if raises {
            self.raise_epoch(to);
        }
        self.counts.all_taken += 1;
        // It has waited, and grants, when it stops and the others start.
        let stops_at = now + self.millis(12_000, 16_000);
        self.taker = Some((to, stops_at));
        for other in self.others(to) {
            self.masters[other].is_to_start_at = Some(stops_at + self.millis(0, 1_500));
        }
    }

    /// `redis-cli --cluster fix`, where one master believes to have a slot and others believe
    /// something else: a master hears of a slot only from who has it, with a higher epoch than that
    /// of who had it.
    pub(super) fn agree(&mut self) {
        for slot in self.masters[0].owners.keys().copied().collect::<Vec<_>>() {
            let owns = |at: &usize| self.masters[*at].owners[&slot] == *at;
            let owners: Vec<usize> = self.servers().filter(owns).collect();
            if let [owner] = owners[..] {
                for master in &mut self.masters {
                    master.owners.insert(slot, owner);
                    master.claimed[owner].insert(slot);
                }
            }
        }
    }

    /// Whether it has heard of the last epoch of each other master.
    fn knows_epochs(&self, at: usize) -> bool {
        let mut others = self.others(at).filter(|other| !self.is_hidden(*other, at));
        others.all(|it| self.masters[at].epochs[it] == self.masters[it].epochs[it])
    }

    /// The master that took all stops. It is started again within the longest lease: see "Whoever
    /// moves slots must take some care" in docs/design.md.
    pub(super) fn stop_taker(&mut self) {
        let Some((at, stops_at)) = self.taker else { return };
        if Instant::now() < stops_at {
            return;
        }
        if self.has_taken(at) {
            if self.is_able(at) && self.may_stop(at) {
                self.stop(at, MAX_TTL.get() / 2..MAX_TTL.get());
                self.taker = Some((at, Instant::now() + self.plan.patience()));
            }
        } else {
            self.taker = None;
        }
    }

    /// Whether this master has taken every slot of the others, and one of them does not know it.
    pub(super) fn has_taken(&self, at: usize) -> bool {
        let owners = &self.masters[at].owners;
        let is_told = |other: usize| self.masters[other].owners == *owners;
        self.taker.is_some_and(|(taker, _)| taker == at) && !self.others(at).all(is_told)
    }
}
