//! One node of the model: the engine's `Lock` and `Promises`, a disk, and state that only the model
//! knows.
//!
//! This code decides nothing except the deliberate defects. Time stands still: every request
//! arrives at [`NOW`], so that every live lease ends at the same instant and the space stays
//! finite. A clock that passes the end of a lease is a separate event, [`Node::expire`].

use lockmod::engine::{
    Acquired, Ceilings, Claim, Clocks, Extended, Fence, Fencing, Instant, Lease, Lock, Millis,
    Mode, Promises, QuarantineReason, Stop, Token, UnixTime, promote,
};

use super::client::Ttls;
use super::world::{Defect, Id, Ids, Reply, Request};

/// The instant at which everything happens, on every node's clock.
pub(crate) const NOW: Instant = Instant::from_millis(1_000_000);
/// Both clocks at that instant. No fence of the model comes near the time.
pub(crate) const CLOCKS: Clocks = Clocks { now: NOW, wall: UnixTime::from_millis(1_000_000) };
/// The ttl of an ordinary lease; other ttls lie around it.
pub(crate) const TTL: Millis = Millis::new(1_000);
/// The longest ttl.
const TTL_LONGEST: Millis = Millis::new(2_000);

/// The round of acquisition `id` whose request a lease originates from: its client counts the
/// validity of that round from before it sent the request. If there are several rounds, it is the
/// one whose validity ends last. Ghost state: no node knows it.
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
    /// The origin of each live lease, in the order of their ids.
    pub(crate) origins: Vec<Origin>,
    /// Leases that were lost in a crash, on which their holders may still rely.
    pub(crate) forgotten: Vec<Origin>,
    /// The data set as last saved.
    pub(crate) saved: Option<Box<(Lock, Vec<Origin>)>>,
}

impl Node {
    pub(crate) fn new() -> Node {
        Node {
            lock: Lock::default(),
            promises: Promises::new(Fence::ZERO, Some(Ceilings::default())),
            disk: Ceilings::default(),
            origins: Vec::new(),
            forgotten: Vec::new(),
            saved: None,
        }
    }

    /// A node that granted once, long ago.
    pub(crate) fn used_before() -> Node {
        let mut node = Node::new();
        let request = Request::Acquire(Mode::Exclusive);
        let _ = node.serve(Id::default(), request, Ttls::SAME, Defect::None);
        node.expire(Id::default(), true);
        node
    }

    /// A node that granted once, and then lost everything, long ago.
    pub(crate) fn crashed_before() -> Node {
        let mut node = Node::used_before();
        node.crash(false, Defect::None);
        node.end_quarantine();
        node
    }

    /// The acquisitions with a live lease here.
    pub(crate) fn holders(&self) -> Ids {
        holders(&self.lock)
    }

    /// The acquisitions with a live lease in the data set as last saved.
    pub(crate) fn saved_holders(&self) -> Ids {
        self.saved.as_deref().map_or(Ids::NONE, |(lock, _)| holders(lock))
    }

    /// The live lease of this acquisition.
    pub(crate) fn lease_of(&self, id: Id) -> Option<Lease<'_>> {
        self.lock.lease_of(Token::new(&id.token(), 1).ok()?)
    }

    /// The origin of this acquisition's live lease.
    pub(crate) fn origin_of(&self, id: Id) -> Option<Origin> {
        self.origins.iter().copied().find(|origin| origin.id == id)
    }

    fn set_origin(&mut self, origin: Origin) {
        self.origins.retain(|other| other.id != origin.id);
        self.origins.push(origin);
        self.settle();
    }

    pub(crate) fn is_quarantined(&self) -> bool {
        self.quarantine_reason().is_some()
    }

    pub(crate) fn may_be_brought_a_lease(&self) -> bool {
        self.is_quarantined() && self.holders().is_empty()
    }

    pub(crate) fn quarantine_reason(&self) -> Option<QuarantineReason> {
        self.promises.quarantine(NOW).map(|(_, reason)| reason)
    }

    /// The counter: the next fence is above it.
    pub(crate) fn counter(&self) -> Fence {
        self.lock.counter().max(self.promises.floor())
    }

    /// Whether all that the node has promised is on its disk.
    pub(crate) fn keeps_its_promises(&self) -> bool {
        let lease = if self.lock.is_held(NOW) { self.lock.until() } else { Instant::default() };
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
        let claim = Claim { token, ttl: ttls.of(request.round()), mode: request.mode() };
        match request {
            Request::Acquire(_) => {
                let outcome = self.ask(|node, lock| node.acquire(lock, claim, b"", NOW), true);
                Some(match outcome {
                    Some(Acquired::Granted { fence, .. }) => {
                        self.set_origin(Origin { id, round: 0 });
                        Reply::Granted(fence)
                    }
                    Some(Acquired::Again { fence, .. }) => {
                        let known = self.origin_of(id).map_or(0, |origin| origin.round);
                        self.set_origin(Origin { id, round: ttls.last(known, 0) });
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
            Request::Extend(round, fence, _) => {
                Some(self.extend(Origin { id, round }, claim, Fencing::Raise(fence), ttls, defect))
            }
            Request::Repair(round, fence, _) => Some(self.extend(
                Origin { id, round },
                claim,
                Fencing::Repair { fence, label: b"" },
                ttls,
                defect,
            )),
            Request::Release => {
                let _ = self.promises.release(&mut self.lock, token, NOW);
                self.settle();
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
        let until = self.lease_of(id).map(|lease| lease.ends_at);
        let known = self.origin_of(id).map_or(round, |origin| origin.round);
        let outcome = self.ask(|node, lock| node.extend(lock, claim, fencing, CLOCKS), true);
        match outcome {
            Some(Extended::Extended { ends_at, is_counted, .. }) => {
                // A lease that now ends earlier no longer rests on anything else.
                let rests_on_both = until.is_some_and(|until| ends_at >= until);
                let known = if rests_on_both { known } else { round };
                self.set_origin(Origin { id, round: ttls.last(known, round) });
                let is_counted = is_counted || defect == Defect::ProvisionalCounts;
                if is_counted { Reply::Extended(round) } else { Reply::Provisional(round) }
            }
            Some(Extended::HeldByAnother) => Reply::HeldByAnother(round),
            Some(Extended::NotHeld) => Reply::NotHeld(round),
            None => Reply::Quarantined(round),
        }
    }

    /// Asks the engine, persists what it requests, and asks again. `None` if it refuses.
    fn ask<T>(
        &mut self,
        request: impl Fn(&mut Promises, &mut Lock) -> Result<T, Stop>,
        persists: bool,
    ) -> Option<T> {
        loop {
            match request(&mut self.promises, &mut self.lock) {
                Ok(outcome) => {
                    // The worst case: writing ahead always comes too late to help.
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

    /// The node's clock passes the end of a live lease, and comes back to [`NOW`] with the lease
    /// gone. (The naive model of `tests/engine.rs` checks that an expired lease is equivalent to
    /// none.) If ends are known `exactly`, the saved copy of that lease expires too.
    pub(crate) fn expire(&mut self, id: Id, exactly: bool) {
        if let Some(lease) = self.lease_of(id) {
            let after = lease.ends_at.after(Millis::new(1));
            assert!(lease.ends_at < after && after.as_millis() > NOW.as_millis());
            if exactly {
                self.end_saved_lease(id);
            }
            remove(&mut self.lock, &mut self.origins, id);
        }
    }

    /// Leases arrive here that are live elsewhere, under another name or at another node.
    pub(crate) fn arrive(&mut self, lock: &Lock, origins: &[Origin], defect: Defect) {
        let counter = self.counter();
        self.lock = lock.clone();
        if defect != Defect::ArrivalCounts {
            self.lock.changed_name();
        }
        self.origins = origins.to_vec();
        self.promises.raise_floor(counter);
        // The worst case: earlier requests to persist have not been written.
        self.promises.request_failed();
        self.promises.seen(self.lock.counter(), Some(self.lock.until()));
        if let Some(ceilings) = self.promises.take_request() {
            self.disk = self.disk.max(ceilings);
            self.promises.persisted(self.disk);
        }
    }

    /// Puts leases in the order of their tokens, regardless of their arrival: equivalent locks
    /// become equal.
    fn settle(&mut self) {
        let holders = self.holders();
        self.origins.retain(|origin| holders.has(origin.id));
        self.origins.sort_unstable_by_key(|origin| origin.id);
        if self.lock.has_leases() && self.lock.mode().is_shared() {
            let mut settled = Lock::free(self.lock.counter(), NOW);
            for id in holders.iter() {
                settled.apply(self.lease_of(id).expect("it holds"), NOW);
            }
            self.lock = settled;
        }
    }

    fn forget_origins(&mut self) {
        for origin in &self.origins {
            if !self.forgotten.contains(origin) {
                self.forgotten.push(*origin);
            }
        }
    }

    pub(crate) fn save(&mut self) {
        self.saved = Some(Box::new((self.lock.clone(), self.origins.clone())));
    }

    /// The node loses its memory, and restarts with the data set as last saved, or with none.
    pub(crate) fn crash(&mut self, with_data: bool, defect: Defect) {
        self.forget_origins();
        let floor = if defect == Defect::NoFenceCeiling { Fence::ZERO } else { self.disk.fence };
        self.promises = Promises::new(floor, Some(self.disk));
        if defect != Defect::NoQuarantine {
            let reason = QuarantineReason::UncleanRestart;
            self.promises.begin_quarantine(self.disk.lease, reason);
        }
        let saved = self.saved.as_deref().cloned().filter(|_| with_data);
        (self.lock, self.origins) = saved.unwrap_or_default();
        self.promises.seen(self.lock.counter(), self.lock.has_leases().then(|| self.lock.until()));
        let _ = self.promises.take_request();
        self.forget_origins();
        self.forgotten.sort_unstable_by_key(|origin| (origin.id, origin.round));
    }

    /// The node, a master, is lost, and its replica is promoted. The replica has the data set as
    /// last replicated, or none, and has not promised anything that came after.
    pub(crate) fn promote(&mut self, defect: Defect) {
        self.crash(self.saved.is_some(), defect);
        self.promises = Promises::new(Fence::ZERO, Some(Ceilings::default()));
        self.promises.seen(self.lock.counter(), self.lock.has_leases().then(|| self.lock.until()));
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
    /// on this node's clock, and so are those in an older data set that are not live here. The
    /// caller must ensure that their holders agree.
    pub(crate) fn end_quarantine(&mut self) {
        self.promises.end_quarantine();
        self.forgotten.clear();
        for id in self.saved_holders().without(self.holders()).iter() {
            self.end_saved_lease(id);
        }
    }

    /// Removes a lease from the saved data set: it has expired by its date.
    fn end_saved_lease(&mut self, id: Id) {
        if let Some(saved) = &mut self.saved {
            let (lock, origins) = &mut **saved;
            remove(lock, origins, id);
        }
    }
}

fn holders(lock: &Lock) -> Ids {
    let mut holders = Ids::NONE;
    for lease in lock.written_leases() {
        assert!(NOW <= lease.ends_at, "no lease is over while it is written");
        holders.insert(Id::of_token(lease.token));
    }
    holders
}

fn remove(lock: &mut Lock, origins: &mut Vec<Origin>, id: Id) {
    if let Ok(token) = Token::new(&id.token(), 1) {
        lock.apply_release(token, NOW);
    }
    origins.retain(|origin| origin.id != id);
}
