//! The clients, and the judge of every grant.

use super::*;

impl Cluster {
    /// The reply of one server to one command about this lock.
    pub(super) fn request(
        &mut self,
        at: usize,
        name: usize,
        is_asking: bool,
        args: &[&[u8]],
    ) -> Reply {
        let master = &self.masters[at];
        let slot = slot_of(NAMES[name]);
        let owner = master.owners[&slot];
        let now = Instant::now();
        let has_heard = master.heard_from.iter().any(|at| now < *at + self.plan.node_timeout);
        let is_in = now >= master.serves_from && has_heard;
        if !self.is_able(at) || !is_in || owner == NOBODY || now < master.holds_until {
            return Reply::Gone;
        }
        match (master.migrating.get(&slot), master.importing.contains_key(&slot)) {
            (Some(target), _) if owner == at && !master.node.locks.contains_key(NAMES[name]) => {
                return Reply::Ask(*target);
            }
            (_, is_importing) if owner != at && !(is_asking && is_importing) => {
                return Reply::Moved(owner);
            }
            _ => {}
        }
        let is_decision = args[0] != b"LOCK.RELEASE";
        if is_decision && let Err(refusal) = self.admit(at, slot) {
            let reason = match &refusal {
                Refusal::Quarantine { reason, .. } => Some(*reason),
                _ => None,
            };
            self.note(at, &format!("{}: {refusal}", args.join(&b' ').escape_ascii()));
            return Reply::Refused(refusal.kind(), reason);
        }
        let is_on_its_way = owner != at;
        let reply = self.masters[at].node.serve(1, args);
        let (command, answer) = (args.join(&b' '), reply.escape_ascii());
        self.note(at, &format!("{} -> {answer}", command.escape_ascii()));
        let is_grant = args[0] == b"LOCK.ACQUIRE" && reply.starts_with(b":");
        self.counts.grants_on_the_way += u64::from(is_on_its_way && is_grant);
        Reply::Done(reply)
    }

    /// Sends a command to some server, and where the servers then point to.
    pub(super) fn follow(&mut self, name: usize, args: &[&[u8]]) -> Reply {
        let mut at = self.any_server();
        let mut is_asking = false;
        for _ in 0..4 {
            match self.request(at, name, is_asking, args) {
                Reply::Moved(to) => (at, is_asking) = (to, false),
                Reply::Ask(to) => (at, is_asking) = (to, true),
                reply => return reply,
            }
        }
        Reply::Gone
    }

    pub(super) fn new_token(&mut self) -> Vec<u8> {
        self.tokens += 1;
        format!("token-{}", self.tokens).into_bytes()
    }

    pub(super) fn acquire(&mut self, name: usize, ttl: Millis) {
        let (token, text) = (self.new_token(), ttl.get().to_string());
        let sent_at = Instant::now();
        let reply = self.follow(name, &[b"LOCK.ACQUIRE", NAMES[name], &token, text.as_bytes()]);
        self.note_refusal(name, &reply);
        self.judge(name, token, (ttl, sent_at), &reply);
    }

    /// The same at one server, long after it was sent.
    pub(super) fn try_at(&mut self, at: usize, name: usize, ttl: Millis, sent_at: Instant) {
        let (token, text) = (self.new_token(), ttl.get().to_string());
        let args: [&[u8]; 4] = [b"LOCK.ACQUIRE", NAMES[name], &token, text.as_bytes()];
        let reply = self.request(at, name, false, &args);
        self.judge(name, token, (ttl, sent_at), &reply);
    }

    pub(super) fn judge(
        &mut self,
        name: usize,
        token: Vec<u8>,
        asked: (Millis, Instant),
        reply: &Reply,
    ) {
        let Reply::Done(bytes) = reply else { return };
        let Some(fence) = integer(bytes) else { return };
        let (now, (ttl, sent_at)) = (Instant::now(), asked);
        let until = sent_at + validity(ttl);
        if until <= now {
            return;
        }
        let text = NAMES[name].escape_ascii();
        if self.holders[name].as_ref().is_some_and(|holder| now < holder.until) {
            self.complain(&format!("{text}: two held the lock at once"));
        }
        if fence <= self.fences[name] {
            let before = self.fences[name];
            self.complain(&format!("{text}: no larger fence: {fence} after {before}"));
        }
        self.counts.grants += 1;
        self.fences[name] = fence;
        let keeps = self.chance(40);
        self.holders[name] = Some(Holder { token, until, keeps });
    }

    /// A move without faults must not keep a lock from being granted for long. If another
    /// electorate begins just then, that may be for a whole wait: the slot's former master may have
    /// had no majority for a moment.
    pub(super) fn note_refusal(&mut self, name: usize, reply: &Reply) {
        let (slot, other) = (slot_of(NAMES[name]), Some(QuarantineReason::OtherMaster));
        match reply {
            Reply::Refused(RefusalKind::SlotMoving, _) => self.counts.refused_moving += 1,
            Reply::Refused(_, reason) if *reason == other => self.counts.refused_waiting += 1,
            _ => {
                self.refused.remove(&slot);
                return;
            }
        }
        let now = Instant::now();
        let known =
            |master: &Master| master.node.engine.electorates().map_or(0, |told| told.known.len());
        let has_begun = self.masters.iter().all(|master| known(master) > 0);
        let begins = self.masters.iter().any(|master| known(master) > 1);
        let lasts = |refused: &&Refused| has_begun && now - refused.last < PAUSE;
        let before = self.refused.get(&slot);
        let is_excused = begins || before.is_some_and(|refused| refused.is_excused);
        let since = before.filter(lasts).map_or(now, |refused| refused.since);
        self.refused.insert(slot, Refused { since, last: now, is_excused });
        let plain = UNAVAILABLE_MAX + Duration::from_millis(4 * self.plan.delay_ms);
        let limit = if is_excused { self.plan.patience() } else { plain };
        if self.plan.faults == 0 && now - since > limit {
            let (text, length) = (NAMES[name].escape_ascii(), now - since);
            self.complain(&format!("{text}: refused for {length:?} by a plain move"));
        }
    }

    pub(super) fn extend(&mut self, name: usize, ttl: Millis) {
        let Some(Holder { token, until, keeps }) = self.holders[name].clone() else { return };
        let (sent_at, text) = (Instant::now(), ttl.get().to_string());
        let reply = self.follow(name, &[b"LOCK.EXTEND", NAMES[name], &token, text.as_bytes()]);
        self.note_refusal(name, &reply);
        if let Reply::Done(bytes) = &reply
            && integer(bytes) == Some(1)
        {
            self.counts.extensions += 1;
            let until = until.max(sent_at + validity(ttl));
            self.holders[name] = Some(Holder { token, until, keeps });
        }
    }

    pub(super) fn release(&mut self, name: usize) {
        let Some(Holder { token, .. }) = self.holders[name].take() else { return };
        self.follow(name, &[b"LOCK.RELEASE", NAMES[name], &token]);
    }

    /// Somebody does something with a lock.
    pub(super) fn use_lock(&mut self) {
        let name = self.random.random_range(0..NAMES.len());
        let at = self.any_server();
        let longest = self.masters[at].node.max_ttl.get();
        let ttl = Millis::new([300, 1_000, longest][self.random.random_range(0..3)]);
        let holder = self.holders[name].as_ref().filter(|it| Instant::now() < it.until);
        let is_used = holder.is_some_and(|holder| !holder.keeps);
        match self.random.random_range(0..10) {
            0..=2 if is_used => self.extend(name, ttl),
            3..=4 if is_used => self.release(name),
            9 => {
                let at = self.any_server();
                self.send(at, at, Mail::Acquire { name, ttl, sent_at: Instant::now() });
            }
            _ => self.acquire(name, ttl),
        }
    }

    /// A server deletes names that nobody has used for long.
    pub(super) fn forget_idle(&mut self) {
        let at = self.any_server();
        if !self.is_able(at) || Instant::now() < self.masters[at].holds_until {
            return;
        }
        let master = &self.masters[at];
        let now = master.node.clocks().now;
        let is_idle = |(name, lock): &(&Vec<u8>, &Lock)| {
            // A new master that does not know a much higher fence is an assumption.
            let target = master.migrating.get(&slot_of(name));
            let is_known = target.is_none_or(|target| {
                let heard = self.masters[*target].heard_floors[at];
                lock.counter().get() < heard + FENCE_BLOCK
            });
            !lock.is_held(now) && is_known
        };
        let idle = master.node.locks.iter().filter(is_idle).map(|(name, _)| name.clone());
        let idle: Vec<_> = idle.collect();
        idle.iter().for_each(|name| self.masters[at].node.delete(name));
    }
}
