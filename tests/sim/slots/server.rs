//! What a server and the module do in a Cluster: messages, redirections, and slots that come.

use super::*;

impl Cluster {
    pub(super) fn send(&mut self, from: usize, to: usize, mail: Mail) {
        let now = Instant::now();
        let is_between = |(one, other, until): (usize, usize, Instant)| {
            now < until && [one, other].contains(&from) && [one, other].contains(&to)
        };
        let is_text = |mail: &Mail| matches!(mail, Mail::Text(_));
        let is_alone =
            |(one, until): (usize, Instant)| now < until && from != to && [from, to].contains(&one);
        if self.alone.is_some_and(is_alone) {
            return;
        }
        if self.cut.is_some_and(is_between) && is_text(&mail) {
            return;
        }
        let is_on_bus = matches!(mail, Mail::Text(_) | Mail::Announced(_));
        if self.are_parted(from, to) && is_on_bus {
            return;
        }
        // The Cluster itself hears soon; what masters tell each other about slots may take longer.
        let is_before = |letter: &&Letter| {
            (letter.from, letter.to, is_text(&letter.mail)) == (from, to, is_text(&mail))
        };
        let last = self.mail.iter().filter(is_before).map(|letter| letter.due).max();
        let longest = if is_text(&mail) { self.plan.delay_ms } else { 150 };
        let due = now + self.millis(1, self.plan.delay_ms.min(longest));
        let due = match mail {
            // On a connection of its own.
            Mail::Assign { .. } => now + self.millis(500, 8_000),
            _ => last.map_or(due, |last| last.max(due)),
        };
        let is_silent = self.plan.is_valkey && is_text(&mail);
        let master = &self.masters[from];
        let epochs = (!is_silent).then_some((master.epochs[from], master.current_epoch));
        self.mail.push(Letter { due, from, to, epochs, mail });
    }

    /// Whether the server reads its messages: after it has hung, it may serve clients first.
    fn reads(&self, at: usize) -> bool {
        self.is_able(at) && self.masters[at].reads_from <= Instant::now()
    }

    /// Delivers what has arrived. A server that hangs reads it later; one that is down, never.
    pub(super) fn deliver(&mut self) {
        loop {
            let has_come = |(_, letter): &(usize, &Letter)| {
                let reads = !self.is_up(letter.to) || self.reads(letter.to);
                letter.due <= Instant::now() && reads
            };
            let letters = self.mail.iter().enumerate().filter(has_come);
            let Some((index, _)) = letters.min_by_key(|(index, letter)| (letter.due, *index))
            else {
                return;
            };
            let Letter { from, to, epochs, mail, .. } = self.mail.remove(index);
            if self.is_up(to) {
                let master = &mut self.masters[to];
                let (its, highest) = epochs.unwrap_or_default();
                master.current_epoch = master.current_epoch.max(highest);
                if matches!(mail, Mail::Text(_)) {
                    master.epochs[from] = master.epochs[from].max(its);
                }
                self.receive(from, to, mail);
            }
        }
    }

    pub(super) fn receive(&mut self, from: usize, to: usize, mail: Mail) {
        if let Mail::Text(text) = &mail {
            self.note(to, &format!("hears {from}: {text}"));
        }
        match mail {
            Mail::Text(text) => self.hear(from, to, text.as_bytes()),
            Mail::Announced(said) => {
                let (now, master) = (Instant::now(), &mut self.masters[to]);
                master.heard_from[from] = now;
                if said.follows.is_some() {
                    master.are_masters[from] = false;
                    return;
                }
                // What a third master says of it counts only with a later epoch.
                if said.owner != from && said.epoch <= master.epochs[said.owner] {
                    return;
                }
                master.are_masters[said.owner] = true;
                master.claimed[said.owner] = said.slots.iter().copied().collect();
                if said.owner == from {
                    self.correct(to, &said);
                    self.resolve_collision(to, &said);
                }
                let owner = said.owner;
                let lost = self.masters[to].learn(to, said);
                if !lost.is_empty() && self.is_replaced(to, owner) {
                    self.follow_successor(to, owner);
                } else {
                    lost.into_iter().for_each(|slot| self.lose(to, slot));
                }
            }
            Mail::Acquire { name, ttl, sent_at } => self.try_at(to, name, ttl, sent_at),
            Mail::TakeOver { slot, keys, until } => self.take_over((from, to), slot, keys, until),
            Mail::Assign { slot } => {
                self.note(to, &format!("is told late that it has slot {slot}"));
                self.counts.assigned_late += 1;
                if self.masters[to].importing.contains_key(&slot) {
                    self.assign(slot, to);
                } else {
                    self.masters[to].take(slot, to);
                    self.announce(to);
                }
            }
            Mail::Restore { name, bytes } => {
                let slot = slot_of(NAMES[name]);
                if self.masters[to].importing.contains_key(&slot) {
                    let is_new = self.masters[to].node.receive_key(NAMES[name], &bytes, false);
                    self.counts.keys_late += u64::from(is_new);
                }
            }
        }
    }

    /// A slot has gone to another master. The server ends a move at once with that, wherever the
    /// move led.
    fn lose(&mut self, at: usize, slot: u16) {
        self.delete_keys(at, slot);
        let master = &mut self.masters[at];
        if let Some((_, to)) = master.hands_over.take_if(|(its, _)| *its == slot) {
            master.holds_until = Instant::now();
            let to = name_of(to);
            master.node.engine.move_at_once(MoveAtOnce::HasLeft, &runs([slot]), Some(&to));
            self.look(at);
        }
    }

    /// The server takes a slot with its keys, unless it has heard that another master than the
    /// sender has it.
    fn take_over(
        &mut self,
        (from, to): (usize, usize),
        slot: u16,
        keys: Vec<(usize, Vec<u8>)>,
        until: Instant,
    ) {
        if self.masters[to].owners[&slot] != from {
            self.masters[to].node.engine.move_at_once(MoveAtOnce::ComesNot, &runs([slot]), None);
            return;
        }
        self.note(to, &format!("takes slot {slot} over at once"));
        self.delete_keys(to, slot);
        for (name, bytes) in keys {
            self.masters[to].node.receive_key(NAMES[name], &bytes, true);
        }
        self.assign(slot, to);
        self.masters[to].node.engine.move_at_once(MoveAtOnce::HasCome, &runs([slot]), None);
        let is_late = until <= Instant::now();
        self.counts.taken_late += u64::from(is_late);
        self.counts.moved_at_once += u64::from(!is_late);
    }

    /// The server deletes the keys of a slot that it has lost.
    pub(super) fn delete_keys(&mut self, at: usize, slot: u16) {
        for name in NAMES.into_iter().filter(|name| slot_of(name) == slot) {
            self.note(at, &format!("deletes {} with its slot", name.escape_ascii()));
            let node = &mut self.masters[at].node;
            let (lock, now) = (node.locks.get(name), node.clocks().now);
            self.counts.deleted += u64::from(lock.is_some());
            let stands = lock.is_some_and(|lock| lock.is_held(now));
            // Redis says nothing of what it deletes after a move at once.
            let is_told = self.plan.is_valkey || !self.masters[at].deletes_silently.contains(&slot);
            let is_own = self.masters[at].owners[&slot] == at;
            let node = &mut self.masters[at].node;
            let is_news = stands && node.engine.deletion_may_be_news(slot) && !is_own;
            if is_news && is_told && self.plan.broken != Broken::ForgetsWhatWasDeleted {
                node.engine.deleted_in(slot);
            }
            self.masters[at].node.delete(name);
        }
    }

    pub(super) fn announce(&mut self, at: usize) {
        let said = self.masters[at].announcement(at);
        for other in self.others(at) {
            self.send(at, other, Mail::Announced(said.clone()));
        }
    }

    /// A master that claims a slot of another, with a lower epoch, is told who has it.
    pub(super) fn correct(&mut self, at: usize, said: &Announcement) {
        let master = &self.masters[at];
        let owners: BTreeSet<_> = said.slots.iter().map(|slot| master.owners[slot]).collect();
        let is_newer = |owner: &usize| {
            ![NOBODY, said.owner].contains(owner) && said.epoch < master.epochs[*owner]
        };
        let news = owners.into_iter().filter(is_newer).map(|owner| {
            let mut news = master.announcement(owner);
            // Redis tells what it believes of the owner; here, only what the owner has said.
            news.slots.retain(|slot| owner == at || master.claimed[owner].contains(slot));
            news
        });
        for news in news.collect::<Vec<_>>() {
            self.send(at, said.owner, Mail::Announced(news));
        }
    }

    /// Of two masters with the same epoch, the one with the smaller name takes a later one.
    pub(super) fn resolve_collision(&mut self, at: usize, said: &Announcement) {
        let master = &mut self.masters[at];
        if said.epoch == master.epochs[at] && at < said.owner {
            master.current_epoch += 1;
            master.epochs[at] = master.current_epoch;
        }
    }

    // ---- the module: src/module/slots.rs ----

    pub(super) fn admit(&mut self, at: usize, slot: u16) -> Result<(), Refusal> {
        if self.masters[at].node.decides_in(slot) {
            return Ok(());
        }
        self.look(at);
        if self.masters[at].node.decides_in(slot) {
            return Ok(());
        }
        let came = self.come(at, slot);
        if matches!(came, Err(Refusal::SlotMoving { .. })) {
            self.ask_others(at);
        }
        came
    }

    pub(super) fn tick(&mut self, at: usize) {
        let (now, broken) = (Instant::now(), self.plan.broken);
        let master = &mut self.masters[at];
        // Valkey knows that a second later, if `hz` is 1. The slot may have gone by then.
        let late = Duration::from_secs(self.plan.is_valkey.into());
        let knows = broken != Broken::BelievesLateTakers;
        let failed = master.hands_over.take_if(|_| knows && master.holds_until + late <= now);
        if let Some((slot, _)) = failed {
            master.node.engine.move_at_once(MoveAtOnce::LeavesNot, &runs([slot]), None);
        }
        master.node.retry_state();
        let is_master = master.node.is_master();
        if !is_master && !master.node.engine.has_looked() {
            return;
        }
        if !master.node.engine.has_moving_slots() && now < master.looked_at + PAUSE {
            return;
        }
        master.looked_at = now;
        self.look(at);
        if !is_master {
            return;
        }
        self.come_to_all(at);
        let node = &mut self.masters[at].node;
        let owes_epoch = node.engine.owes_epoch(node.clocks().now);
        if owes_epoch {
            self.raise_epoch(at);
            let others = self.others(at);
            let master = &mut self.masters[at];
            // A replica has the epoch of its master.
            let masters = others.filter(|other| master.are_masters[*other]);
            let highest = masters.map(|other| master.epochs[other]).max();
            let is_highest = Some(master.epochs[at]) > highest || broken != Broken::Nothing;
            master.node.engine.raised_epoch(is_highest);
        }
        self.ask_others(at);
        let node = &mut self.masters[at].node;
        let told = node.engine.tell(node.clocks().now, node.max_ttl);
        if let Some(mut told) = told {
            if broken == Broken::HidesItsFloor {
                told.floor = Fence::ZERO;
            }
            let text = SlotMessage::Report(told).to_string();
            for other in self.others(at) {
                self.send(at, other, Mail::Text(text.clone()));
            }
        }
    }

    pub(super) fn hear(&mut self, from: usize, to: usize, message: &[u8]) {
        let (name, broken) = (name_of(from), self.plan.broken);
        let message = self.understood(read_message(message).expect("a master wrote it"));
        let (now, boot) = (self.masters[to].node.clocks().now, self.masters[to].node.boot);
        let node = &mut self.masters[to].node;
        let (is_master, can_answer) =
            (node.is_master(), node.is_master() || node.engine.has_looked());
        let engine = &mut node.engine;
        match message {
            SlotMessage::Report(footing) => {
                engine.hear(&name, footing, now);
                self.masters[to].heard_floors[from] = footing.floor.get();
                let engine = &mut self.masters[to].node.engine;
                if broken == Broken::BelievesReports {
                    let up = Millis::new(1 << 40);
                    let number = question_number(boot, now);
                    let slots = runs(engine.unsettled_slots());
                    let (held, sure) = (Millis::ZERO, Sure::For(SUPPORT));
                    let answer = SlotAnswer { footing, up, held, sure, slots };
                    engine.answered(&name, number, &answer, now);
                }
            }
            SlotMessage::Answer { .. } | SlotMessage::Confirmation(_) if !is_master => {}
            SlotMessage::Question { .. } if !can_answer => {}
            SlotMessage::ConfirmQuestion(asked) if !is_master && !engine.answers(&asked) => {
                self.masters[to].node.engine.overhear(&name, &asked, now);
                self.keep_news(to);
            }
            SlotMessage::Answer { number, answer } => {
                self.masters[to].heard_floors[from] = answer.footing.floor.get();
                self.look(to);
                self.masters[to].node.engine.answered(&name, number, &answer, now);
                self.come_to_all(to);
            }
            SlotMessage::ConfirmQuestion(asked) => {
                self.look(to);
                let told = self.masters[to].node.engine.confirm(&name, &asked, now);
                if let Some(told) = told.filter(|_| self.keep_news(to)) {
                    let text = SlotMessage::Confirmation(told).to_string();
                    self.send(to, from, Mail::Text(text));
                }
            }
            SlotMessage::Confirmation(told) => {
                self.look(to);
                self.masters[to].node.engine.confirmed(&name, &told, now);
                self.keep_news(to);
                self.come_to_all(to);
            }
            SlotMessage::Question { number, passage, slots } => {
                self.look(to);
                let node = &mut self.masters[to].node;
                let left: BTreeSet<u16> = node.locks.keys().map(|name| slot_of(name)).collect();
                let has_locks = |slot| left.contains(&slot);
                let now = (now, node.max_ttl);
                let mut answers = node.engine.asked(&name, (&slots, passage), now, has_locks);
                if broken == Broken::AnswersForAll {
                    let footing =
                        Footing { floor: node.engine.promises().floor(), left: Millis::ZERO };
                    let (up, held) = (Millis::new(1 << 40), Millis::ZERO);
                    let sure = Sure::For(SUPPORT);
                    answers = vec![SlotAnswer { footing, up, held, sure, slots }];
                }
                for mut answer in answers {
                    if broken == Broken::HidesItsFloor {
                        answer.footing.floor = Fence::ZERO;
                    }
                    if broken == Broken::HidesWhatStays {
                        answer.held = Millis::ZERO;
                    }
                    let text = SlotMessage::Answer { number, answer }.to_string();
                    self.send(to, from, Mail::Text(text));
                }
            }
        }
    }

    pub(super) fn ask_others(&mut self, at: usize) {
        let node = &mut self.masters[at].node;
        let asked_at = node.clocks().now;
        let asked = node.engine.confirm_question(asked_at, node.max_ttl);
        if let Some(asked) = asked.filter(|_| self.keep_news(at)) {
            let text = SlotMessage::ConfirmQuestion(asked).to_string();
            self.others(at).for_each(|other| self.send(at, other, Mail::Text(text.clone())));
        }
        let node = &mut self.masters[at].node;
        for Question { master, number, passage, slots } in node.engine.questions(asked_at) {
            let text = SlotMessage::Question { number, passage, slots }.to_string();
            self.send(at, number_of(&master), Mail::Text(text));
        }
    }

    /// A message as a server takes it.
    fn understood(&self, message: SlotMessage) -> SlotMessage {
        let (longest, remembered) = (Millis::ZERO, Vec::new());
        match (self.plan.broken, message) {
            (Broken::ForgetsLengths, SlotMessage::ConfirmQuestion(asked)) => {
                SlotMessage::ConfirmQuestion(ConfirmQuestion { longest, remembered, ..asked })
            }
            (Broken::ForgetsLengths, SlotMessage::Confirmation(told)) => {
                SlotMessage::Confirmation(Confirmation { longest, remembered, ..told })
            }
            (_, message) => message,
        }
    }

    /// Records what the node must not forget of slots and electorates. Whether the file has it.
    pub(super) fn keep_news(&mut self, at: usize) -> bool {
        let node = &mut self.masters[at].node;
        let mut is_kept = true;
        for change in node.engine.news_of_slots(node.clocks().now) {
            is_kept &= node.change_state(change).is_ok();
        }
        is_kept
    }

    pub(super) fn look(&mut self, at: usize) {
        let others: Vec<usize> = self.others(at).collect();
        let mut shares = self.masters[at].shares(at, &others);
        if self.plan.broken == Broken::HidesMoves {
            shares.importing.clear();
            shares.migrating.clear();
        }
        shares.holds_back &= self.plan.broken != Broken::BelievesLateTakers;
        let master = &mut self.masters[at];
        master.has_looked = true;
        let now = master.node.clocks().now;
        master.node.engine.see(&shares, now);
        self.keep_news(at);
        let master = &mut self.masters[at];
        if self.plan.broken == Broken::AsksNobody {
            let [number, since] = [now, lockmod::engine::Instant::default()]
                .map(|at| question_number(master.node.boot, at));
            let (slots, lost) = (shares.own.clone(), SlotRuns::new());
            let own = master.node.engine.electorates().cloned().unwrap_or_default();
            let alone = |one: &Electorate| Electorate {
                number: now.as_millis(),
                members: [own.itself.clone()].into(),
                ..one.clone()
            };
            let known = own.known.iter().map(alone).collect();
            let electorates = Some(Electorates { known, ..Electorates::default() });
            let (life, digest) = (1, 0);
            let told = Confirmation {
                number,
                since,
                slots,
                lost,
                life,
                longest: Millis::ZERO,
                epoch: shares.epoch,
                digest,
                electorates,
                remembered: Vec::new(),
            };
            for other in others {
                master.node.engine.confirmed(&name_of(other), &told, now);
            }
        }
    }

    pub(super) fn come_to_all(&mut self, at: usize) {
        for slot in self.masters[at].node.engine.unsettled_slots() {
            let _ = self.come(at, slot);
        }
    }

    pub(super) fn come(&mut self, at: usize, slot: u16) -> Result<(), Refusal> {
        let broken = self.plan.broken;
        let quarantine = broken != Broken::WaitsForNobody;
        let caution = Caution { quarantine, on_promotion: true };
        let master = &mut self.masters[at];
        let settings = (master.node.max_ttl, caution);
        let clocks = master.node.dated();
        let came = master.node.decide(b"", |node, _, _| node.come(slot, clocks, settings))?;
        match came {
            Came::Asks => Err(Refusal::SlotMoving { slot }),
            Came::Decides(_) => {
                master.waits_in.remove(&slot);
                master.found.remove(&slot);
                master.is_doubting &= !master.node.engine.unsettled_slots().is_empty();
                Ok(())
            }
            Came::Rests(left) => {
                Err(Refusal::Quarantine { reason: QuarantineReason::OtherMaster, left })
            }
            Came::Waits { left, change } => {
                master.waits_in.insert(slot);
                if let Some(change) = change {
                    let _ = master.node.change_state(change);
                }
                Err(Refusal::Quarantine { reason: QuarantineReason::OtherMaster, left })
            }
        }
    }
}

impl Master {
    /// Takes an announcement. Returns the slots that this master has lost.
    pub(super) fn learn(&mut self, own: usize, said: Announcement) -> Vec<u16> {
        let Announcement { owner, epoch, slots, .. } = said;
        if owner == own || epoch < self.epochs[owner] {
            return Vec::new();
        }
        self.epochs[owner] = epoch;
        let mut lost = Vec::new();
        for slot in slots {
            let current = self.owners[&slot];
            let is_beaten = current == NOBODY || current != owner && self.epochs[current] < epoch;
            if is_beaten && !self.importing.contains_key(&slot) {
                self.owners.insert(slot, owner);
                if current == own {
                    self.migrating.remove(&slot);
                    lost.push(slot);
                }
            }
        }
        lost
    }

    pub(super) fn take(&mut self, slot: u16, own: usize) {
        self.owners.insert(slot, own);
        self.deletes_silently.remove(&slot);
        self.importing.remove(&slot);
        self.waits_in.remove(&slot);
    }

    pub(super) fn announcement(&self, owner: usize) -> Announcement {
        let slots = self.owners.iter().filter(|(_, its)| **its == owner).map(|(slot, _)| *slot);
        let follows = self.node.member.follows.filter(|_| owner == self.node.number);
        Announcement { owner, epoch: self.epochs[owner], slots: slots.collect(), follows }
    }

    /// What `CLUSTER NODES` shows.
    pub(super) fn shares(&self, own: usize, others: &[usize]) -> Shares {
        let of = |owner| runs(self.announcement(owner).slots);
        let (others, replicas): (Vec<usize>, Vec<usize>) =
            others.iter().partition(|other| self.are_masters[**other]);
        let with_slots = others.iter().map(|other| (name_of(*other), of(*other)));
        let (idle, with_slots): (Vec<_>, Vec<_>) =
            with_slots.partition(|(_, slots)| slots.is_empty());
        let epochs = |other: &usize| (name_of(*other), self.epochs[*other]);
        let epochs = others.iter().map(epochs).collect();
        let names = |slots: &BTreeMap<u16, usize>| {
            slots.iter().map(|(slot, other)| (*slot, name_of(*other))).collect()
        };
        Shares {
            name: name_of(own),
            epoch: self.epochs[own],
            is_replica: !self.node.is_master(),
            own: of(own),
            found: runs(self.found.iter().copied()),
            others: with_slots,
            epochs,
            had_none: self.had_none,
            has_risen: false,
            holds_back: self.holds_until > Instant::now(),
            idle: idle.into_iter().map(|(name, _)| name).collect(),
            importing: names(&self.importing),
            migrating: names(&self.migrating),
            replicas: replicas.into_iter().map(name_of).collect(),
        }
    }
}
