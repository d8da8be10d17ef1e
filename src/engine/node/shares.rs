//! Which master of a Cluster has which slots, and what the masters report and ask about them.

use std::collections::BTreeSet;

use super::authority::with_drift;
use super::electorate::{Electorates, MasterName};
use super::slot_set::SlotSet;
use crate::engine::{Fence, Instant, Millis};

/// How many slots there are.
pub const SLOTS: u16 = 16_384;

/// Slots, as the first and last of each range.
pub type SlotRuns = Vec<(u16, u16)>;

/// Which master has which slots, as a node of a Cluster sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Its name.
    pub name: MasterName,
    /// Its configuration epoch.
    pub epoch: u64,
    /// Whether it is a replica.
    pub is_replica: bool,
    /// Its own.
    pub own: SlotRuns,
    /// At the first look after a start: whether it had none when it was loaded.
    pub had_none: bool,
    /// The configuration epochs of the other masters.
    pub epochs: Vec<(MasterName, u64)>,
    /// Its epoch has risen since the module was loaded: for the first look.
    pub has_risen: bool,
    /// Those of its own that nobody gave to it. At its start, a server takes each slot that no
    /// master has, if it has keys there.
    pub found: SlotRuns,
    /// Those of other masters, by name.
    pub others: Vec<(Vec<u8>, SlotRuns)>,
    /// The other masters, without slots.
    pub idle: Vec<MasterName>,
    /// The other nodes that are no masters.
    pub replicas: Vec<MasterName>,
    /// Whether the server holds back writes: it hands a slot over at once, or was told to.
    pub holds_back: bool,
    /// Those on their way to it, and the masters that they come from.
    pub importing: Vec<(u16, Vec<u8>)>,
    /// Its own that are on their way to other masters, and those masters.
    pub migrating: Vec<(u16, Vec<u8>)>,
}

impl Shares {
    /// The other masters.
    pub(super) fn other_masters(&self) -> BTreeSet<MasterName> {
        let with_slots = self.others.iter().map(|(name, _)| name);
        with_slots.chain(&self.idle).cloned().collect()
    }

    /// All other nodes.
    pub(super) fn all_others(&self) -> BTreeSet<MasterName> {
        self.other_masters().into_iter().chain(self.replicas.iter().cloned()).collect()
    }

    /// The node's own slots that it did not have earlier.
    pub fn own_since(&self, earlier: &SlotRuns) -> Vec<u16> {
        let [own, earlier] = [&self.own, earlier].map(SlotSet::of);
        own.without(&earlier)
    }
}

/// What a master reports to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footing {
    /// The fence below which none of its locks starts.
    pub floor: Fence,
    /// For how long it grants nothing, because leases that it does not know may stand.
    pub left: Millis,
}

/// How long leases may be, as somebody remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseLength {
    /// The longest lease.
    pub longest: Millis,
    /// For how long such a lease may still stand.
    pub left: Millis,
}

/// The question whether slots are the asker's: see
/// [`Node::confirm_question`](super::Node::confirm_question).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfirmQuestion {
    /// Its number.
    pub number: u64,
    /// The number of an earlier question: what was lost since then is to be told.
    pub since: u64,
    /// The asker's life, as in [`Elector::life`](super::Elector::life).
    pub life: u64,
    /// How long a lease of the asker may be.
    pub longest: Millis,
    /// What tells the electorates that the asker knows from others.
    pub digest: u64,
    /// These electorates, if a receiver may not know them.
    pub electorates: Option<Electorates>,
    /// Then also what the asker remembers: who hears of an electorate must know that too.
    pub remembered: Vec<LeaseLength>,
}

/// An answer to a [`ConfirmQuestion`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confirmation {
    /// The number of the question.
    pub number: u64,
    /// The number of an earlier question: what was lost since then is told.
    pub since: u64,
    /// The asker's slots, as the sender's server believes.
    pub slots: SlotRuns,
    /// Slots that the asker has lost since then, as the sender's server believed; some may be its
    /// own again.
    pub lost: SlotRuns,
    /// The sender's life, as in [`Elector::life`](super::Elector::life).
    pub life: u64,
    /// How long a lease of any master may be, as the sender remembers.
    pub longest: Millis,
    /// The asker's configuration epoch, as the sender's server believes.
    pub epoch: u64,
    /// What tells the electorates that the sender knows from others.
    pub digest: u64,
    /// These electorates, if they are not the asker's.
    pub electorates: Option<Electorates>,
    /// Then, and if there are none or several, also all that the sender remembers.
    pub remembered: Vec<LeaseLength>,
}

/// Up to when a master may decide, of which most confirm that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sure {
    /// For so long yet.
    For(Millis),
    /// It has ended, so long ago.
    Ended(Millis),
}

impl Sure {
    /// Of an end, at `now`.
    pub(super) fn of(end: Instant, now: Instant) -> Sure {
        if now < end { Sure::For(now.until(end)) } else { Sure::Ended(end.until(now)) }
    }

    /// The end, or an earlier instant, for who asked at `at`.
    pub(super) const fn until(self, at: Instant) -> Instant {
        match self {
            Sure::For(left) => at.after(left),
            Sure::Ended(ago) => at.before(with_drift(ago)),
        }
    }
}

/// An answer to a [`Question`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotAnswer {
    /// As in a report.
    pub footing: Footing,
    /// For how long the sender has known its slots, since its start or promotion.
    pub up: Millis,
    /// For how long leases may stand that the sender granted in these slots, and that have not
    /// moved with them.
    pub held: Millis,
    /// Up to when most masters have confirmed that the sender may decide in these slots, or might
    /// if it had not lost them.
    pub sure: Sure,
    /// Those of the slots that are on their way to who asks, or are its own.
    pub slots: SlotRuns,
}

/// How slots have come to a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Passage {
    /// They have not: they are on their way.
    NotYet,
    /// Key by key, or without keys, by commands at both masters.
    BySteps,
    /// With all keys, by the servers themselves (Redis 8.4, Valkey 9).
    AtOnce,
}

impl Passage {
    /// All of them.
    pub const ALL: [Passage; 3] = [Passage::NotYet, Passage::BySteps, Passage::AtOnce];
}

/// What the server tells of slots that it moves at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveAtOnce {
    /// They are on their way here.
    Comes,
    /// They do not come after all.
    ComesNot,
    /// They have come.
    HasCome,
    /// They are on their way to another master.
    Leaves,
    /// They do not leave after all.
    LeavesNot,
    /// They have left, and the server has held back writes until it has read that.
    HasLeft,
    /// They have left, and the server may not have sent all. To be told after a look that shows
    /// that they have.
    HasLeftUnproved,
}

/// A question to another master about slots: see [`Node::questions`](super::Node::questions).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The name of the master.
    pub master: Vec<u8>,
    /// For the answer: see [`Node::answered`](super::Node::answered).
    pub number: u64,
    /// How the slots have come.
    pub passage: Passage,
    /// The slots.
    pub slots: SlotRuns,
}

/// The number of a question at this time. A clock of milliseconds takes 41 bits for 69 years.
pub fn question_number(boot: u64, now: Instant) -> u64 {
    ((boot % (1 << 22)) << 41).saturating_add(now.as_millis())
}

/// Whether two questions are of one boot of who asked.
pub(super) const fn is_of_one_boot(one: u64, other: u64) -> bool {
    one >> 41 == other >> 41
}
