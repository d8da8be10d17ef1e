//! One node: a whole server except its key space, its clocks, its files and its sockets.
//!
//! A request comes in with its lock and the time. The node returns the outcome, and what the caller
//! must do: make ceilings durable first ([`Stop::Persist`]) or soon ([`Node::take_request`]), or
//! record a [`Change`] in the state file. The caller has the key space, the clocks, the files and
//! the sockets; it carries that out and decides nothing.

mod account;
mod authority;
mod availability;
mod change;
mod cluster_memory;
mod company;
mod confirmations;
mod direct;
mod electorate;
mod epoch;
mod facts;
mod footing;
mod hang;
mod in_line;
mod inventory;
mod left_behind;
mod lengths;
mod line;
mod lines;
mod lock;
mod moves_at_once;
mod other_master;
mod packed_lease;
mod pauses;
mod promises;
mod readers;
mod recovery;
mod requests;
mod serving;
mod shares;
mod slot_move;
mod slot_set;
mod slot_table;
mod slots;
mod start;
mod statement;
mod succession;
mod survey;
mod tally;
mod tending;
mod unconfirmed;
mod voting;
mod witness;

pub use account::{LockAccount, LockState, NodeAccount, ReadersAccount, Uncounted};
pub use authority::{Attached, Authority, BEAT, Heartbeat, Mandate, Pledge, SUPPORT};
pub use availability::Availability;
pub use change::Change;
pub use cluster_memory::ClusterMemory;
pub use direct::{Direct, Grantee};
pub use electorate::{Elector, Electorate, Electorates, Forgotten, MasterName};
pub use facts::{Decided, Stated};
pub use inventory::{Census, Inventory};
pub use lengths::Lengths;
pub use line::{CallId, ConnectionId, Left, Line, Queued, Turn, Waiter, WaiterLimit};
pub use lines::{Call, Granted, LockName};
pub use lock::{Lease, Lock, Tenure};
pub use promises::{Ceilings, FENCE_BLOCK, LEASE_BLOCK, Promises};
pub use recovery::{Found, Loaded, Recovery, Saved, Stopped, promote, recover, start};
pub use requests::{Acquired, Claim, Extended, Fencing, Released, Stop};
pub use serving::{Effect, Gate, Look, NextCalls, Parting, Turning};
pub use shares::{
    ConfirmQuestion, Confirmation, Footing, LeaseLength, MoveAtOnce, Passage, Question, SLOTS,
    Shares, SlotAnswer, SlotRuns, Sure, question_number,
};
pub use slots::{Came, Slots};
pub use start::{Begun, Caution, Warning};
pub use statement::{Draft, Statement};
pub use succession::Succession;
pub use tally::{Counts, HeldCount, Tally};
use tending::Reported;
pub use tending::{Notice, Replicas, Tended, Unlike};
pub use unconfirmed::Unconfirmed;

use std::collections::{BTreeSet, VecDeque};

use crate::engine::{Clocks, Fence, Instant, Millis, Refusal, Token, UnixTime};
use lines::Lines;
use start::Stage;

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    promises: Promises,
    tally: Tally,
    stage: Stage,
    /// Whether leases may have moved to other names before the node had begun.
    have_names_changed: bool,
    /// The clocks by which leases are dated outside of the process.
    dating: Clocks,
    /// After a crash, its next start would rely on the append-only file. (If the write that ends
    /// that has failed, this is too careful until the next start.)
    is_always_durable: bool,
    /// When the node last looked at the wall clock.
    looked_at: Instant,
    /// Whether the node was made a replica, where no client may wait.
    is_replica: bool,
    lines: Lines,
    effects: VecDeque<Effect>,
    /// Grants to waiting calls that no client is known to have received yet.
    unheard: BTreeSet<Granted>,
    /// Whether an [`Effect::Ring`] is outstanding.
    is_ringing: bool,
    /// The last instant for which the state file says that removed leases may stand.
    removed_until: Instant,
    /// What the operator was told about the node's replicas, or its master.
    reported: Reported,
    /// `None`: the node is not in a Cluster.
    slots: Option<Box<Slots>>,
}

impl Default for Node {
    fn default() -> Node {
        Node::new()
    }
}

impl Node {
    /// A node without a state file that has not seen a lock yet.
    pub const fn new() -> Node {
        Node {
            promises: Promises::new(Fence::ZERO, None),
            tally: Tally::NONE,
            stage: Stage::Starting(None),
            have_names_changed: false,
            dating: Clocks { now: Instant::from_millis(0), wall: UnixTime::from_millis(0) },
            is_always_durable: false,
            looked_at: Instant::from_millis(0),
            is_replica: false,
            lines: Lines::NONE,
            effects: VecDeque::new(),
            unheard: BTreeSet::new(),
            is_ringing: false,
            removed_until: Instant::from_millis(0),
            reported: Reported::NOTHING,
            slots: None,
        }
    }

    // ------------------------------------------------------------------------------- requests

    /// Grants `lock` to the claim if it is free: see [`Promises::acquire`].
    ///
    /// # Errors
    /// As [`Promises::acquire`].
    #[inline(always)]
    pub fn acquire(
        &mut self,
        lock: &mut Lock,
        claim: Claim<'_>,
        label: &[u8],
        now: Instant,
    ) -> Result<Acquired, Stop> {
        let before = lock.unnoted();
        let outcome = self.promises.acquire(lock, claim, label, now)?;
        self.tally.acquired(outcome, claim.mode, (before, lock));
        self.told_again(claim.token, outcome);
        Ok(outcome)
    }

    /// Releases the lease of `token`: see [`Promises::release`].
    #[inline(always)]
    pub fn release(&mut self, lock: &mut Lock, token: Token<'_>, now: Instant) -> Released {
        let before = (lock.until(), lock.unnoted());
        let outcome = self.promises.release(lock, token, now);
        self.tally.released(outcome, before, lock);
        outcome
    }

    /// Extends the lease of the claim's token: see [`Promises::extend`].
    ///
    /// # Errors
    /// As [`Promises::extend`].
    #[inline(always)]
    pub fn extend(
        &mut self,
        lock: &mut Lock,
        claim: Claim<'_>,
        fencing: Fencing<'_>,
        clocks: Clocks,
    ) -> Result<Extended, Stop> {
        let before = lock.unnoted();
        let outcome = self.promises.extend(lock, claim, fencing, clocks)?;
        self.tally.changed(before, lock);
        if let Extended::Extended { is_news, lapsed, .. } = outcome {
            self.tally.counts.extensions += u64::from(is_news);
            self.tally.counts.lapses += lapsed as u64;
            self.told(claim.token, lock);
        }
        Ok(outcome)
    }

    /// Raises the counter and the lease to at least `fence`: see [`Promises::raise`].
    ///
    /// # Errors
    /// As [`Promises::raise`].
    #[inline(always)]
    pub fn raise(
        &mut self,
        lock: &mut Lock,
        token: Token<'_>,
        fence: Fence,
        clocks: Clocks,
    ) -> Result<Extended, Stop> {
        let outcome = self.promises.raise(lock, token, fence, clocks)?;
        if outcome.is_done() {
            self.tally.counts.raises += u64::from(outcome.is_news());
            self.told(token, lock);
        }
        Ok(outcome)
    }

    /// Raises the floor for an operator: see [`Promises::lift_floor`].
    ///
    /// # Errors
    /// As [`Promises::lift_floor`].
    pub fn lift_floor(&mut self, floor: Fence) -> Result<Fence, Stop> {
        self.promises.lift_floor(floor)
    }

    /// Counts a request that was refused.
    pub fn refused(&mut self, refusal: &Refusal) {
        self.tally.refused(refusal);
    }

    /// Sets how many readers a lock may have. Present readers stay.
    pub fn let_in_readers(&mut self, max: usize) {
        if max > self.promises.max_readers() {
            self.all_lines_changed();
        }
        self.promises.set_max_readers(max);
    }

    // --------------------------------------------------------------------------------- queries

    /// What the node promises.
    pub fn promises(&self) -> &Promises {
        &self.promises
    }

    /// What has happened on the node.
    pub fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    /// Why the node refuses every grant: it lacks authority, is in quarantine, or is in a Cluster
    /// and decides in none of its slots. `settings`: the longest lease that it allows, and its
    /// caution.
    pub fn obstacle(&self, now: Instant, settings: (Millis, Caution)) -> Option<Refusal> {
        if let Err(Stop::Refused(refusal)) = self.promises.check_authority(now) {
            return Some(refusal);
        }
        let own = self.promises.quarantine(now);
        let own = own.map(|(left, reason)| Refusal::Quarantine { reason, left });
        own.or_else(|| self.common_obstacle(now, settings))
    }

    // ------------------------------------------------------------------------------ durability

    /// Ceilings to make durable in the background, before they are needed. Returns each of them
    /// once.
    #[inline]
    pub fn take_request(&mut self) -> Option<Ceilings> {
        self.promises.take_request()
    }

    /// Notes that these ceilings are durable. Returns whether they differ from the previous ones.
    pub fn persisted(&mut self, ceilings: Ceilings) -> bool {
        let is_news = self.promises.ceilings() != Some(ceilings);
        self.promises.persisted(ceilings);
        is_news
    }

    /// Notes that a requested ceiling could not be made durable, so that it is requested again.
    pub fn request_failed(&mut self) {
        self.promises.request_failed();
    }

    // ---------------------------------------------------------------------------- the key space

    /// Whether the ceilings cover this lock, from a dump written by a node with this floor.
    ///
    /// # Errors
    /// The ceilings that must be durable first.
    pub fn admit(&mut self, lock: &Lock, floor: Fence) -> Result<(), Ceilings> {
        let ends_at = if lock.has_leases() { lock.until() } else { Instant::default() };
        self.promises.admit(lock.counter().max(floor), ends_at)
    }

    /// Notes a lock from a data set or a dump, written by a node with this floor.
    ///
    /// If the node grants already, ceilings that cover the lock must be durable before any client
    /// can ask for it: see [`Node::take_request`].
    pub fn loaded(&mut self, lock: &Lock, floor: Fence) {
        self.seen(lock);
        self.promises.raise_floor(floor);
    }

    /// Notes a lock that was decided elsewhere.
    fn seen(&mut self, lock: &Lock) {
        let ends_at = lock.has_leases().then(|| lock.until());
        self.promises.seen(lock.counter(), ends_at);
        self.tally.may_lapse(lock);
    }

    /// Notes that this lock is gone from its name.
    pub fn unlinked(&mut self, lock: &Lock) {
        self.promises.unlinked(lock);
        self.tally.may_lapse(lock);
        if lock.has_leases() {
            self.tally.cut_short(lock.until());
            self.are_gone(lock.until());
        }
    }

    /// Notes that any number of locks are gone, or are in another database.
    pub fn all_unlinked(&mut self) {
        self.promises.all_unlinked();
        self.tally.cut_short(self.promises.longest());
        self.are_gone(self.promises.longest());
        self.all_lines_changed();
    }

    // ---------------------------------------------------------------------------------- clocks

    /// Both clocks at `now`, for dating leases that leave the process.
    ///
    /// This does not read the wall clock: its offset from the other clock is kept until a step of
    /// more than a second is noticed, and also across restarts within a boot. So the node reads
    /// back its own dates to the millisecond.
    #[inline]
    pub fn date(&self, now: Instant) -> Clocks {
        self.dating.at(now)
    }

    /// Whether to look at the wall clock now: at most once a millisecond.
    #[inline]
    pub fn is_to_look_at_clocks(&mut self, now: Instant) -> bool {
        std::mem::replace(&mut self.looked_at, now) != now
    }

    /// Checks a reading of both clocks. If the wall clock was stepped, the append-only file will
    /// contain leases dated by two clocks, and the state file must record this before a lease is
    /// dated by the new one. `is_behind`: the state file already lacks a change.
    pub fn look_at_clocks(&self, read: Clocks, is_behind: bool) -> Option<Change> {
        let is_noted = self.has_begun() && !is_behind && read.are_stepped_since(self.dating);
        is_noted.then_some(Change::DatedBy(read))
    }
}
