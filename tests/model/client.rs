//! One client of the model: the engine's `Attempt` and `Renewal`, and a clock that the model moves.
//!
//! Round 0 of an acquisition is the acquisition itself; the others are renewals. Each round has a
//! window: from before its first request to the end of the validity that it gives. Windows close
//! one by one, in the order of their ends; the client's clock stands at the end of the last closed
//! window.

use lockmod::engine::{
    Answer, Attempt, Extension, Fence, Instant, Millis, Mode, NodeSet, Quorum, RaiseAnswer,
    Renewal, RenewalStep, RoundNumber, Schedule, Step, Terms,
};

use super::node::TTL;
use super::world::{Defect, Reply, Request};

/// When round 0 began, on every client's clock.
const START: Instant = Instant::from_millis(5_000);
const SCHEDULE: Schedule = Schedule { every: None, margin: Millis::ZERO, max_hold: None };

/// The ttls that a client asks for: to acquire, and to renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ttls {
    pub(crate) acquire: Millis,
    pub(crate) renew: Millis,
}

impl Ttls {
    pub(crate) const SAME: Ttls = Ttls { acquire: TTL, renew: TTL };

    pub(crate) const fn of(self, round: u8) -> Millis {
        if round == 0 { self.acquire } else { self.renew }
    }

    fn terms(self, round: u8) -> Terms {
        Terms::new(self.of(round))
    }

    /// The end of the window of `round`.
    fn end(self, round: u8) -> Instant {
        self.terms(round).ends_at(started_at(round))
    }

    /// The one of two rounds whose window closes last.
    pub(crate) fn last(self, one: u8, other: u8) -> u8 {
        if self.end(one) > self.end(other) { one } else { other }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// Not begun, or over.
    Idle,
    Attempting(Attempt),
    Holding(Renewal, RoundNumber),
}

/// Votes, as counted by the defects that count them wrongly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Tally {
    granted: u8,
    refused: u8,
    best: Fence,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    ttls: Ttls,
    /// How it asks for the lock.
    pub(crate) asks: Mode,
    pub(crate) phase: Phase,
    /// The number of acquisitions begun so far.
    pub(crate) begun: u8,
    /// Which windows of the current acquisition have closed: bits.
    pub(crate) closed: u8,
    /// The last round begun.
    pub(crate) round: u8,
    pub(crate) fence: Fence,
    /// Whether the last round was begun after a successor was complete.
    pub(crate) is_superseded: bool,
    tally: Tally,
    /// The fence of the raise round, where a defect needs it.
    raising: Option<Fence>,
}

/// What a client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Nothing,
    Send(Request, NodeSet),
    Won {
        fence: Fence,
        laggards: NodeSet,
    },
    Abandon,
    /// A renewal counts.
    Confirmed {
        repair: NodeSet,
    },
}

fn started_at(round: u8) -> Instant {
    START.after(Millis::new(u64::from(round)))
}

impl Client {
    pub(crate) fn new(ttls: Ttls, asks: Mode) -> Client {
        Client {
            ttls,
            asks,
            phase: Phase::Idle,
            begun: 0,
            closed: 0,
            round: 0,
            fence: Fence::ZERO,
            is_superseded: false,
            tally: Tally::default(),
            raising: None,
        }
    }

    /// The client's clock, or what the client takes for it.
    fn now(&self, ignores_clock: bool) -> Instant {
        let last = self.rounds().filter(|round| !self.is_open(*round)).map(|r| self.ttls.end(r));
        match last.max() {
            Some(end) if !ignores_clock => end,
            Some(_) | None => START.after(Millis::new(100)),
        }
    }

    fn rounds(&self) -> impl Iterator<Item = u8> + use<> {
        0..=self.round
    }

    /// The round whose window closes next.
    pub(crate) fn next_to_close(&self) -> u8 {
        let open = self.rounds().filter(|round| self.is_open(*round));
        open.min_by_key(|round| self.ttls.end(*round)).expect("a window is open")
    }

    /// Whether the client may consider itself the holder.
    pub(crate) fn is_valid(&self, ignores_clock: bool) -> bool {
        match &self.phase {
            Phase::Holding(renewal, _) => !renewal.validity(self.now(ignores_clock)).is_zero(),
            Phase::Idle | Phase::Attempting(_) => false,
        }
    }

    pub(crate) fn is_holding(&self) -> bool {
        matches!(self.phase, Phase::Holding(..))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// Whether the window of `round` of the current acquisition is open.
    pub(crate) fn is_open(&self, round: u8) -> bool {
        !self.is_idle() && self.closed >> round & 1 == 0
    }

    pub(crate) fn has_open_window(&self) -> bool {
        self.rounds().any(|round| self.is_open(round))
    }

    pub(crate) fn start(&mut self, quorum: Quorum, defect: Defect) {
        self.begun += 1;
        let attempt = Attempt::new(quorum, self.ttls.terms(0), START);
        let counts_as = if defect == Defect::WritersAcceptMore { Mode::Shared } else { self.asks };
        self.phase = Phase::Attempting(attempt.asking(counts_as));
    }

    /// The mode that it relies on, or asks for.
    pub(crate) fn mode(&self) -> Mode {
        match &self.phase {
            Phase::Holding(renewal, _) => renewal.mode(),
            Phase::Idle | Phase::Attempting(_) => self.asks,
        }
    }

    /// Makes a writer a reader from here on.
    pub(crate) fn downgrade(&mut self) {
        if let Phase::Holding(renewal, _) = &mut self.phase {
            renewal.downgrade();
        }
    }

    /// Moves the clock past the end of the oldest open window.
    pub(crate) fn close(&mut self, ignores_clock: bool) {
        self.closed |= 1 << self.next_to_close();
        let now = self.now(ignores_clock);
        if let Phase::Holding(renewal, _) = &mut self.phase {
            let _ = renewal.ending(now);
        }
    }

    /// Ends the acquisition, whatever its result.
    pub(crate) fn finish(&mut self) {
        *self = Client { begun: self.begun, ..Client::new(self.ttls, self.asks) };
    }

    /// Begins a renewal, if the machine allows it.
    pub(crate) fn renew(&mut self, ignores_clock: bool) -> bool {
        let now = self.now(ignores_clock);
        let next = self.round + 1;
        let Phase::Holding(renewal, number) = &mut self.phase else { return false };
        let begun = if self.ttls.renew == self.ttls.acquire {
            renewal.begin(started_at(next), now)
        } else {
            renewal.begin_with(self.ttls.terms(next), SCHEDULE, started_at(next), now)
        };
        let Some(begun) = begun else { return false };
        *number = begun;
        self.round = next;
        true
    }

    /// Stops waiting for this attempt.
    pub(crate) fn give_up(&mut self, quorum: Quorum, ignores: bool, defect: Defect) -> Wish {
        let now = self.now(ignores);
        let Phase::Attempting(attempt) = &mut self.phase else { return Wish::Nothing };
        let step = attempt.time_out(now);
        let Tally { granted, refused, best } = self.tally;
        if defect == Defect::QuorumOfReachable && granted > refused {
            return self.won(quorum, best, self.attempt_end(), NodeSet::EMPTY);
        }
        self.follow(step, quorum, defect)
    }

    /// Takes a node's reply.
    pub(crate) fn take(
        &mut self,
        node: usize,
        reply: Reply,
        quorum: Quorum,
        ignores_clock: bool,
        defect: Defect,
    ) -> Wish {
        let now = self.now(ignores_clock);
        match &mut self.phase {
            Phase::Idle => Wish::Nothing,
            Phase::Attempting(attempt) => {
                let reply = match (reply, self.raising) {
                    (Reply::Granted(more), Some(fence))
                        if defect == Defect::LargerStragglerCounts && more > fence =>
                    {
                        Reply::Granted(fence)
                    }
                    _ => reply,
                };
                let step = match reply {
                    Reply::Granted(fence) => attempt.answer(node, Answer::Granted(fence), now),
                    Reply::Raised(at) => attempt.raise_answer(node, RaiseAnswer::Raised(at), now),
                    Reply::NotRaised => attempt.raise_answer(node, RaiseAnswer::Refused, now),
                    Reply::Refused => attempt.answer(node, Answer::Refused, now),
                    Reply::Extended(_)
                    | Reply::HeldByAnother(_)
                    | Reply::NotHeld(_)
                    | Reply::Provisional(_)
                    | Reply::Quarantined(_) => return Wish::Nothing,
                };
                self.count(reply, defect);
                let tied = usize::from(self.tally.granted) * 2 == quorum.nodes();
                if defect == Defect::TieIsWon && tied {
                    return self.won(quorum, self.tally.best, self.attempt_end(), NodeSet::EMPTY);
                }
                self.follow(step, quorum, defect)
            }
            Phase::Holding(renewal, number) => {
                let (round, extension) = match reply {
                    Reply::Extended(round) => (round, Extension::Extended),
                    Reply::HeldByAnother(round) => (round, Extension::HeldByAnother),
                    Reply::NotHeld(round) => (round, Extension::NotHeld),
                    Reply::Provisional(round) => (round, Extension::Provisional),
                    Reply::Quarantined(round) => (round, Extension::Quarantined),
                    // A reply to the attempt, which is already won.
                    Reply::Granted(_) | Reply::Refused | Reply::Raised(_) | Reply::NotRaised => {
                        return Wish::Nothing;
                    }
                };
                if round != self.round {
                    return Wish::Nothing;
                }
                match renewal.answer(*number, node, extension, now) {
                    RenewalStep::Confirmed { repair } => Wish::Confirmed { repair },
                    RenewalStep::Wait | RenewalStep::Failed | RenewalStep::Lost(_) => Wish::Nothing,
                }
            }
        }
    }

    fn follow(&mut self, step: Step, quorum: Quorum, defect: Defect) -> Wish {
        match step {
            Step::Wait => Wish::Nothing,
            Step::Raise { fence, .. } if defect == Defect::NoRaiseRound => {
                self.won(quorum, fence, self.attempt_end(), NodeSet::EMPTY)
            }
            Step::Raise { fence, nodes } => {
                if defect == Defect::LargerStragglerCounts {
                    self.raising = Some(fence);
                }
                Wish::Send(Request::Raise(fence), nodes)
            }
            Step::Won(grant) => self.won(quorum, grant.fence, grant.ends_at, grant.laggards),
            Step::Lost(_) => Wish::Abandon,
        }
    }

    fn won(&mut self, quorum: Quorum, fence: Fence, ends_at: Instant, laggards: NodeSet) -> Wish {
        let renewal = Renewal::new(quorum, self.ttls.terms(0), SCHEDULE, START, ends_at);
        self.phase = Phase::Holding(renewal.holding(self.asks), RoundNumber::default());
        self.fence = fence;
        (self.tally, self.raising) = (Tally::default(), None);
        Wish::Won { fence, laggards }
    }

    fn count(&mut self, reply: Reply, defect: Defect) {
        if !matches!(defect, Defect::QuorumOfReachable | Defect::TieIsWon) {
            return;
        }
        match reply {
            Reply::Granted(fence) => {
                self.tally.granted += 1;
                self.tally.best = self.tally.best.max(fence);
            }
            Reply::Refused => self.tally.refused += 1,
            Reply::Raised(_)
            | Reply::NotRaised
            | Reply::Extended(_)
            | Reply::HeldByAnother(_)
            | Reply::NotHeld(_)
            | Reply::Provisional(_)
            | Reply::Quarantined(_) => {}
        }
    }

    fn attempt_end(&self) -> Instant {
        self.ttls.end(0)
    }
}
