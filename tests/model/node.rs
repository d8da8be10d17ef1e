//! One node of the model: the engine's `Lock` and `Promises`, a disk, and what only we know.
//!
//! Nothing is decided here but the deliberate defects. Time stands still: every request arrives at
//! [`NOW`], so that every live lease ends at the same instant and the space stays finite. That the
//! clock goes on past the end of a lease is an event of its own, [`Node::expire`].

use lockmod::engine::{
    Acquired, Ceilings, Claim, Clocks, Extended, Fence, Fencing, Instant, Lock, Millis, Promises,
    QuarantineReason, Stop, Token, UnixTime, promote,
};

use super::client::Ttls;
use super::world::{Defect, Id, Reply, Request};

/// When everything happens, on every node's clock.
pub(crate) const NOW: Instant = Instant::from_millis(1_000_000);
/// Both clocks then: no fence of the model comes near the time.
pub(crate) const CLOCKS: Clocks = Clocks { now: NOW, wall: UnixTime::from_millis(1_000_000) };
/// What an ordinary lease is asked for with; other ttls lie around it.
pub(crate) const TTL: Millis = Millis::new(1_000);
/// The longest of them.
const TTL_LONGEST: Millis = Millis::new(2_000);

/// The round of the acquisition `id` whose request a lease goes back to: its client counts the
/// validity of that round from before the request was sent. Of several rounds it is the one whose
/// validity ends last. Ghost state: no node knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    pub(crate) id: Id,
    pub(crate) round: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) lock: Lock,
    pub(crate) promises: Promises,
    /// What survives a crash.
    pub(crate) disk: Ceilings,
    /// Of the live lease.
    pub(crate) origin: Origin,
    /// Leases that a crash has taken away, and whose holders may still rely on them.
    pub(crate) forgotten: Vec<Origin>,
    /// The data set as it was saved last.
    pub(crate) saved: Option<Box<(Lock, Origin)>>,
}

impl Node {
    pub(crate) fn new() -> Node {
        Node {
            lock: Lock::default(),
            promises: Promises::new(Fence::ZERO, Some(Ceilings::default())),
            disk: Ceilings::default(),
            origin: Origin::default(),
            forgotten: Vec::new(),
            saved: None,
        }
    }

    /// A node that granted once, long ago.
    pub(crate) fn used_before() -> Node {
        let mut node = Node::new();
        let _ = node.serve(Id::default(), Request::Acquire, Ttls::SAME, Defect::None);
        node.expire(true);
        node
    }

    /// A node that granted once, and then lost everything, long ago.
    pub(crate) fn crashed_before() -> Node {
        let mut node = Node::used_before();
        node.crash(false, Defect::None);
        node.end_quarantine();
        node
    }

    /// Who has a live lease here.
    pub(crate) fn holder(&self) -> Option<Id> {
        self.lock.lease(NOW).map(|lease| Id::of_token(lease.token))
    }

    /// Who has a live lease in the data set as it was saved last.
    pub(crate) fn saved_holder(&self) -> Option<Id> {
        let (lock, _) = self.saved.as_deref()?;
        lock.lease(NOW).map(|lease| Id::of_token(lease.token))
    }

    pub(crate) fn is_quarantined(&self) -> bool {
        self.quarantine_reason().is_some()
    }

    pub(crate) fn may_be_brought_a_lease(&self) -> bool {
        self.is_quarantined() && self.holder().is_none()
    }

    pub(crate) fn quarantine_reason(&self) -> Option<QuarantineReason> {
        self.promises.quarantine(NOW).map(|(_, reason)| reason)
    }

    /// The next fence is above it.
    pub(crate) fn counter(&self) -> Fence {
        self.lock.counter().max(self.promises.floor())
    }

    /// Whether all that the node has promised is on its disk.
    pub(crate) fn keeps_its_promises(&self) -> bool {
        let lease = self.lock.lease(NOW).map(|lease| lease.ends_at).unwrap_or_default();
        self.disk.covers(Ceilings { fence: self.lock.counter(), lease })
    }

    /// Serves one request of acquisition `id`.
    pub(crate) fn serve(
        &mut self,
        id: Id,
        request: Request,
        ttls: Ttls,
        defect: Defect,
    ) -> Option<Reply> {
        let bytes = id.token();
        let token = Token::new(&bytes, bytes.len()).expect("a token");
        let claim = Claim { token, ttl: ttls.of(request.round()) };
        match request {
            Request::Acquire => {
                let outcome = self.ask(|node, lock| node.acquire(lock, claim, b"", NOW), true);
                Some(match outcome {
                    Some(Acquired::Granted { fence, .. }) => {
                        self.origin = Origin { id, round: 0 };
                        Reply::Granted(fence)
                    }
                    Some(Acquired::Again { fence, .. }) => {
                        self.origin.round = ttls.last(self.origin.round, 0);
                        Reply::Granted(fence)
                    }
                    Some(Acquired::Held) | None => Reply::Refused,
                })
            }
            Request::Raise(fence) => {
                let persists = defect != Defect::RaiseWithoutPersisting;
                let outcome =
                    self.ask(|node, lock| node.raise(lock, token, fence, CLOCKS), persists);
                Some(match outcome {
                    Some(Extended::Extended { counter, .. }) => Reply::Raised(counter),
                    Some(_) if defect == Defect::UnconditionalRaise => {
                        self.lock.apply_counter(fence);
                        Reply::Raised(self.lock.counter())
                    }
                    Some(Extended::HeldByAnother | Extended::NotHeld) | None => Reply::NotRaised,
                })
            }
            Request::Extend(round, fence) => {
                Some(self.extend(Origin { id, round }, claim, Fencing::Raise(fence), ttls, defect))
            }
            Request::Repair(round, fence) => Some(self.extend(
                Origin { id, round },
                claim,
                Fencing::Repair { fence, label: b"" },
                ttls,
                defect,
            )),
            Request::Release => {
                let _ = self.promises.release(&mut self.lock, token, NOW);
                None
            }
        }
    }

    fn extend(
        &mut self,
        asked: Origin,
        claim: Claim<'_>,
        fencing: Fencing,
        ttls: Ttls,
        defect: Defect,
    ) -> Reply {
        let Origin { id, round } = asked;
        let (held_before, until) = (self.holder() == Some(id), self.lock.until());
        let outcome = self.ask(|node, lock| node.extend(lock, claim, fencing, CLOCKS), true);
        match outcome {
            Some(Extended::Extended { ends_at, is_counted, .. }) => {
                // A lease that ends earlier now rests on nothing else any more.
                let rests_on_both = held_before && ends_at >= until;
                let known = if rests_on_both { self.origin.round } else { round };
                self.origin = Origin { id, round: ttls.last(known, round) };
                let is_counted = is_counted || defect == Defect::ProvisionalCounts;
                if is_counted { Reply::Extended(round) } else { Reply::Provisional(round) }
            }
            Some(Extended::HeldByAnother) => Reply::HeldByAnother(round),
            Some(Extended::NotHeld) => Reply::NotHeld(round),
            None => Reply::Quarantined(round),
        }
    }

    /// Asks the engine, persists what it wants persisted, and asks again. `None`: refused.
    fn ask<T>(
        &mut self,
        request: impl Fn(&mut Promises, &mut Lock) -> Result<T, Stop>,
        persists: bool,
    ) -> Option<T> {
        loop {
            match request(&mut self.promises, &mut self.lock) {
                Ok(outcome) => {
                    // Writing ahead comes too late to be of use: the worst case.
                    let _ = self.promises.take_request();
                    return Some(outcome);
                }
                Err(Stop::Refused(_)) => return None,
                Err(Stop::Persist(ceilings)) => {
                    if persists {
                        self.disk = ceilings;
                    }
                    self.promises.persisted(ceilings);
                }
            }
        }
    }

    /// The node's clock passes the end of the live lease, and comes back to [`NOW`] with the lock
    /// free. (That a lease that is over is as none, the naive model of `tests/engine.rs` checks.)
    /// Where ends are known `exactly`, what was saved of that lease is over too.
    pub(crate) fn expire(&mut self, exactly: bool) {
        if let Some(lease) = self.lock.lease(NOW) {
            let after = lease.ends_at.after(Millis::new(1));
            assert!(!self.lock.is_held(after), "a lease is over after its end");
            if exactly && self.saved_holder() == self.holder() {
                self.end_saved_lease();
            }
            self.lock = Lock::free(self.lock.counter(), NOW);
            self.origin = Origin::default();
        }
    }

    /// Somebody brings a lease here that stands elsewhere, under another name or at another node.
    pub(crate) fn arrive(&mut self, lock: &Lock, origin: Origin, defect: Defect) {
        let counter = self.counter();
        self.lock = lock.clone();
        if defect != Defect::ArrivalCounts {
            self.lock.changed_name();
        }
        self.origin = origin;
        self.promises.raise_floor(counter);
        self.promises.seen(self.lock.counter(), Some(self.lock.until()));
        if let Some(ceilings) = self.promises.take_request() {
            self.disk = self.disk.max(ceilings);
            self.promises.persisted(self.disk);
        }
    }

    pub(crate) fn save(&mut self) {
        self.saved = Some(Box::new((self.lock.clone(), self.origin)));
    }

    /// The node loses its memory; it comes back with the data set as saved last, or with none.
    pub(crate) fn crash(&mut self, with_data: bool, defect: Defect) {
        if self.lock.is_held(NOW) && !self.forgotten.contains(&self.origin) {
            self.forgotten.push(self.origin);
        }
        let floor = if defect == Defect::NoFenceCeiling { Fence::ZERO } else { self.disk.fence };
        self.promises = Promises::new(floor, Some(self.disk));
        if defect != Defect::NoQuarantine {
            let reason = QuarantineReason::UncleanRestart;
            self.promises.begin_quarantine(self.disk.lease, reason);
        }
        let saved = self.saved.as_deref().cloned().filter(|_| with_data);
        (self.lock, self.origin) = saved.unwrap_or_default();
        let ends_at = self.lock.written_lease().map(|lease| lease.ends_at);
        self.promises.seen(self.lock.counter(), ends_at);
        let _ = self.promises.take_request();
        if self.lock.is_held(NOW) && !self.forgotten.contains(&self.origin) {
            self.forgotten.push(self.origin);
        }
        self.forgotten.sort_unstable_by_key(|origin| (origin.id, origin.round));
    }

    /// The node, a master, is lost, and its replica promoted: it has the data set as it was
    /// replicated last, or none, and promised nothing yet of what came after.
    pub(crate) fn promote(&mut self, defect: Defect) {
        self.crash(self.saved.is_some(), defect);
        self.promises = Promises::new(Fence::ZERO, Some(Ceilings::default()));
        let ends_at = self.lock.written_lease().map(|lease| lease.ends_at);
        self.promises.seen(self.lock.counter(), ends_at);
        let clocks = Clocks { now: NOW, wall: UnixTime::default() };
        let mut recovery = promote(clocks, self.promises.highest(), TTL_LONGEST);
        if defect == Defect::PromotionWithoutJump {
            recovery.floor = Fence::ZERO;
        }
        self.promises.recover(recovery);
        let _ = self.promises.take_request();
        let used = Ceilings { fence: self.promises.highest(), lease: NOW.after(TTL_LONGEST) };
        self.disk = used.plus_block();
        self.promises.persisted(self.disk);
    }

    /// The node's clock passes the lease ceiling. All leases from before the crash are over then,
    /// on this node's clock, and so are those in an older data set that do not stand here; that
    /// their holders agree is what the caller has to see to.
    pub(crate) fn end_quarantine(&mut self) {
        self.promises.end_quarantine();
        self.forgotten.clear();
        if self.saved_holder() != self.holder() {
            self.end_saved_lease();
        }
    }

    /// What was saved comes back without a lease, which is over by its date.
    fn end_saved_lease(&mut self) {
        if let Some(saved) = &mut self.saved {
            **saved = (Lock::free(saved.0.counter(), NOW), Origin::default());
        }
    }
}
