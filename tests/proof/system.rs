//! The transition system of `proof/protocol.py`, as `proof/rust.py` writes it: change it there.
//!
//! `cargo test --test proof` fails if the two differ. `protocol.py` and `docs/proof.md` explain the
//! relations, actions and invariants.

// Not every test that includes this uses every action.
#![allow(dead_code)]
// Generated code, not meant to be read.
#![allow(unused_parens, clippy::all)]

/// The largest number of each that fits.
pub(crate) const NODES_MAX: usize = 5;
pub(crate) const ACQUISITIONS_MAX: usize = 6;
/// Rounds of each acquisition.
pub(crate) const ROUNDS: usize = 4;
const ROUNDS_MAX: usize = ACQUISITIONS_MAX * ROUNDS;

/// The number of each, and as bits: which clients never look at their clocks, and which are
/// readers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) nodes: usize,
    pub(crate) acquisitions: usize,
    pub(crate) blind: u32,
    pub(crate) readers: u32,
}

/// One relation: a bit for each place.
type Bits = u128;

fn own(round: usize) -> usize {
    round / ROUNDS
}

fn asks(round: usize) -> bool {
    round % ROUNDS == 0
}

/// The models ask once with each token.
fn no_later(round: usize, other: usize) -> bool {
    round == other && asks(round)
}

fn member(node: usize, quorum: usize) -> bool {
    quorum >> node & 1 != 0
}

/// A set of nodes.
pub(crate) fn those(nodes: usize, has: impl Fn(usize) -> bool) -> usize {
    (0..nodes).filter(|node| has(*node)).fold(0, |set, node| set | 1 << node)
}

/// The proof only requires that two quorums share a node; any two majorities do.
pub(crate) fn is_quorum(nodes: usize, set: usize) -> bool {
    set.count_ones() as usize * 2 > nodes
}

fn below(fence: usize, other: usize) -> bool {
    fence < other
}

impl Sizes {
    fn blind(&self, acquisition: usize) -> bool {
        self.blind >> acquisition & 1 != 0
    }

    fn reader(&self, acquisition: usize) -> bool {
        self.readers >> acquisition & 1 != 0
    }
}

/// What the proof knows of the world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// All fences that the state mentions, in order.
    fences: Vec<u64>,
    /// A lease of the acquisition stands at the node.
    holds: Bits,
    /// That lease is a writer's.
    exclusive: Bits,
    /// That lease does not count before the quarantine is over.
    provisional: Bits,
    /// The standing lease was dated by the round, and counts for it.
    rests: Bits,
    /// The node vouched for the round, and may not know of it now.
    forgot: Bits,
    /// No fence of the lock above it was issued here; the next one will be.
    counter: [u8; NODES_MAX],
    /// The fence ceiling in the state file.
    ceiling: [u8; NODES_MAX],
    /// The node grants nothing.
    quarantined: Bits,
    /// It was a replica, and its master may still be alive.
    promoted: Bits,
    /// The node granted this fence to the acquisition, or raised its lease to it.
    stored: Vec<u32>,
    /// Its requests may be on their way.
    begun: Bits,
    /// Its attempt was won.
    won: Bits,
    /// It was won as a writer, and its client only reads from here on.
    downgraded: Bits,
    /// It was abandoned or released: its client relies on nothing.
    done: Bits,
    /// The fence that it was won with.
    fence: [u8; ACQUISITIONS_MAX],
    /// The quorum that stored this fence when it was won.
    storing: [u8; ACQUISITIONS_MAX],
    /// The validity of the round has ended.
    over: Bits,
    /// A quorum has answered the round in time.
    confirmed: Bits,
    /// That quorum.
    voters: [u8; ROUNDS_MAX],
    /// The one was won before the other began.
    before: Bits,
    /// The largest fence of a writer that the fenced store has seen.
    highest: u8,
    /// The largest fence of a reader that it has seen.
    highest_read: u8,
    /// The store has accepted a write by it.
    wrote: Bits,
    /// The store has accepted a read by it.
    read: Bits,
    /// A write by the one was accepted after a read or write by the other, or a read after a write.
    followed: Bits,
}

impl State {
    /// Nothing has happened.
    pub(crate) fn new() -> State {
        State {
            fences: vec![0],
            holds: 0,
            exclusive: 0,
            provisional: 0,
            rests: 0,
            forgot: 0,
            counter: [0; NODES_MAX],
            ceiling: [0; NODES_MAX],
            quarantined: 0,
            promoted: 0,
            stored: vec![0; 1],
            begun: 0,
            won: 0,
            downgraded: 0,
            done: 0,
            fence: [0; ACQUISITIONS_MAX],
            storing: [0; ACQUISITIONS_MAX],
            over: 0,
            confirmed: 0,
            voters: [0; ROUNDS_MAX],
            before: 0,
            highest: 0,
            highest_read: 0,
            wrote: 0,
            read: 0,
            followed: 0,
        }
    }

    pub(crate) fn holds(&self, x0: usize, x1: usize) -> bool {
        self.holds >> (x0 * ACQUISITIONS_MAX + x1) & 1 != 0
    }

    pub(crate) fn set_holds(&mut self, x0: usize, x1: usize) {
        self.holds |= 1 << (x0 * ACQUISITIONS_MAX + x1);
    }

    pub(crate) fn exclusive(&self, x0: usize, x1: usize) -> bool {
        self.exclusive >> (x0 * ACQUISITIONS_MAX + x1) & 1 != 0
    }

    pub(crate) fn set_exclusive(&mut self, x0: usize, x1: usize) {
        self.exclusive |= 1 << (x0 * ACQUISITIONS_MAX + x1);
    }

    pub(crate) fn provisional(&self, x0: usize, x1: usize) -> bool {
        self.provisional >> (x0 * ACQUISITIONS_MAX + x1) & 1 != 0
    }

    pub(crate) fn set_provisional(&mut self, x0: usize, x1: usize) {
        self.provisional |= 1 << (x0 * ACQUISITIONS_MAX + x1);
    }

    pub(crate) fn rests(&self, x0: usize, x1: usize) -> bool {
        self.rests >> (x0 * ROUNDS_MAX + x1) & 1 != 0
    }

    pub(crate) fn set_rests(&mut self, x0: usize, x1: usize) {
        self.rests |= 1 << (x0 * ROUNDS_MAX + x1);
    }

    pub(crate) fn forgot(&self, x0: usize, x1: usize) -> bool {
        self.forgot >> (x0 * ROUNDS_MAX + x1) & 1 != 0
    }

    pub(crate) fn set_forgot(&mut self, x0: usize, x1: usize) {
        self.forgot |= 1 << (x0 * ROUNDS_MAX + x1);
    }

    pub(crate) fn counter(&self, x0: usize) -> usize {
        usize::from(self.counter[x0])
    }

    pub(crate) fn set_counter(&mut self, x0: usize, value: u64) {
        let value = self.rank(value);
        self.counter[x0] = value as u8;
    }

    pub(crate) fn ceiling(&self, x0: usize) -> usize {
        usize::from(self.ceiling[x0])
    }

    pub(crate) fn set_ceiling(&mut self, x0: usize, value: u64) {
        let value = self.rank(value);
        self.ceiling[x0] = value as u8;
    }

    pub(crate) fn quarantined(&self, x0: usize) -> bool {
        self.quarantined >> x0 & 1 != 0
    }

    pub(crate) fn set_quarantined(&mut self, x0: usize) {
        self.quarantined |= 1 << x0;
    }

    pub(crate) fn promoted(&self, x0: usize) -> bool {
        self.promoted >> x0 & 1 != 0
    }

    pub(crate) fn set_promoted(&mut self, x0: usize) {
        self.promoted |= 1 << x0;
    }

    pub(crate) fn stored(&self, x0: usize, x1: usize, x2: usize) -> bool {
        self.stored[x2] >> (x0 * NODES_MAX + x1) & 1 != 0
    }

    pub(crate) fn set_stored(&mut self, x0: usize, x1: usize, x2: u64) {
        let rank = self.rank(x2);
        self.stored[rank] |= 1 << (x0 * NODES_MAX + x1);
    }

    pub(crate) fn begun(&self, x0: usize) -> bool {
        self.begun >> x0 & 1 != 0
    }

    pub(crate) fn set_begun(&mut self, x0: usize) {
        self.begun |= 1 << x0;
    }

    pub(crate) fn won(&self, x0: usize) -> bool {
        self.won >> x0 & 1 != 0
    }

    pub(crate) fn set_won(&mut self, x0: usize) {
        self.won |= 1 << x0;
    }

    pub(crate) fn downgraded(&self, x0: usize) -> bool {
        self.downgraded >> x0 & 1 != 0
    }

    pub(crate) fn set_downgraded(&mut self, x0: usize) {
        self.downgraded |= 1 << x0;
    }

    pub(crate) fn done(&self, x0: usize) -> bool {
        self.done >> x0 & 1 != 0
    }

    pub(crate) fn set_done(&mut self, x0: usize) {
        self.done |= 1 << x0;
    }

    pub(crate) fn fence(&self, x0: usize) -> usize {
        usize::from(self.fence[x0])
    }

    pub(crate) fn set_fence(&mut self, x0: usize, value: u64) {
        let value = self.rank(value);
        self.fence[x0] = value as u8;
    }

    pub(crate) fn storing(&self, x0: usize) -> usize {
        usize::from(self.storing[x0])
    }

    pub(crate) fn set_storing(&mut self, x0: usize, value: usize) {
        self.storing[x0] = value as u8;
    }

    pub(crate) fn over(&self, x0: usize) -> bool {
        self.over >> x0 & 1 != 0
    }

    pub(crate) fn set_over(&mut self, x0: usize) {
        self.over |= 1 << x0;
    }

    pub(crate) fn confirmed(&self, x0: usize) -> bool {
        self.confirmed >> x0 & 1 != 0
    }

    pub(crate) fn set_confirmed(&mut self, x0: usize) {
        self.confirmed |= 1 << x0;
    }

    pub(crate) fn voters(&self, x0: usize) -> usize {
        usize::from(self.voters[x0])
    }

    pub(crate) fn set_voters(&mut self, x0: usize, value: usize) {
        self.voters[x0] = value as u8;
    }

    pub(crate) fn before(&self, x0: usize, x1: usize) -> bool {
        self.before >> (x0 * ACQUISITIONS_MAX + x1) & 1 != 0
    }

    pub(crate) fn set_before(&mut self, x0: usize, x1: usize) {
        self.before |= 1 << (x0 * ACQUISITIONS_MAX + x1);
    }

    pub(crate) fn highest(&self) -> usize {
        usize::from(self.highest)
    }

    pub(crate) fn set_highest(&mut self, value: u64) {
        let value = self.rank(value);
        self.highest = value as u8;
    }

    pub(crate) fn highest_read(&self) -> usize {
        usize::from(self.highest_read)
    }

    pub(crate) fn set_highest_read(&mut self, value: u64) {
        let value = self.rank(value);
        self.highest_read = value as u8;
    }

    pub(crate) fn wrote(&self, x0: usize) -> bool {
        self.wrote >> x0 & 1 != 0
    }

    pub(crate) fn set_wrote(&mut self, x0: usize) {
        self.wrote |= 1 << x0;
    }

    pub(crate) fn read(&self, x0: usize) -> bool {
        self.read >> x0 & 1 != 0
    }

    pub(crate) fn set_read(&mut self, x0: usize) {
        self.read |= 1 << x0;
    }

    pub(crate) fn followed(&self, x0: usize, x1: usize) -> bool {
        self.followed >> (x0 * ACQUISITIONS_MAX + x1) & 1 != 0
    }

    pub(crate) fn set_followed(&mut self, x0: usize, x1: usize) {
        self.followed |= 1 << (x0 * ACQUISITIONS_MAX + x1);
    }

    fn renumber(&mut self, mut to: impl FnMut(usize) -> usize) {
        for rank in &mut self.counter {
            *rank = to(usize::from(*rank)) as u8;
        }
        for rank in &mut self.ceiling {
            *rank = to(usize::from(*rank)) as u8;
        }
        for rank in &mut self.fence {
            *rank = to(usize::from(*rank)) as u8;
        }
        self.highest = to(usize::from(self.highest)) as u8;
        self.highest_read = to(usize::from(self.highest_read)) as u8;
    }

    /// The fence of a rank.
    pub(crate) fn fence_of(&self, rank: usize) -> u64 {
        self.fences[rank]
    }

    /// How many ranks there are.
    pub(crate) fn ranks(&self) -> usize {
        self.fences.len()
    }
}

impl State {
    /// The rank of a fence, which is inserted among the others if it is new.
    fn rank(&mut self, fence: u64) -> usize {
        match self.fences.binary_search(&fence) {
            Ok(rank) => rank,
            Err(rank) => {
                self.fences.insert(rank, fence);
                self.stored.insert(rank, 0);
                self.renumber(|old| old + usize::from(old >= rank));
                rank
            }
        }
    }

    /// Drops the fences that nothing mentions.
    fn collect(&mut self) {
        let mut used = 0_u64;
        self.renumber(|rank| {
            used |= 1 << rank;
            rank
        });
        for (rank, places) in self.stored.iter().enumerate() {
            used |= u64::from(*places != 0) << rank;
        }
        for rank in (0..self.fences.len()).rev() {
            if used >> rank & 1 == 0 {
                self.fences.remove(rank);
                self.stored.remove(rank);
                self.renumber(|old| old - usize::from(old > rank));
            }
        }
    }
}

pub(crate) type Invariant = fn(&State, &Sizes) -> bool;

/// What must hold in every state, by name.
pub(crate) const INVARIANTS: [(&str, Invariant); 22] = [
    ("exclusion", exclusion as Invariant),
    ("unique", unique as Invariant),
    ("rising", rising as Invariant),
    ("store", store as Invariant),
    ("superseded", superseded as Invariant),
    ("one voice", one_voice as Invariant),
    ("votes stay", votes_stay as Invariant),
    ("one holder", one_holder as Invariant),
    ("exclusive leases", exclusive_leases as Invariant),
    ("rests on the holder", rests_on_the_holder as Invariant),
    ("no vote beside", no_vote_beside as Invariant),
    ("nothing counts", nothing_counts as Invariant),
    ("nothing forgotten", nothing_forgotten as Invariant),
    ("over is over", over_is_over as Invariant),
    ("counted", counted as Invariant),
    ("on disk", on_disk as Invariant),
    ("stored once", stored_once as Invariant),
    ("won with", won_with as Invariant),
    ("above the last", above_the_last as Invariant),
    ("history", history as Invariant),
    ("nothing from nothing", nothing_from_nothing as Invariant),
    ("written", written as Invariant),
];

/// All validities that are not over belong to one writer, or to readers.
fn exclusion(s: &State, sizes: &Sizes) -> bool {
    (0..sizes.acquisitions * ROUNDS).all(|r0| {
        !(s.confirmed(r0) && !s.over(r0))
            || (0..sizes.acquisitions * ROUNDS).all(|s1| {
                !(s.confirmed(s1) && !s.over(s1))
                    || !((own(r0) != own(s1))
                        && (!(sizes.reader(own(r0)) || s.downgraded(own(r0)))
                            || !(sizes.reader(own(s1)) || s.downgraded(own(s1)))))
            })
    })
}

/// No two writers have the same fence.
fn unique(s: &State, sizes: &Sizes) -> bool {
    (0..sizes.acquisitions).all(|a0| {
        !(s.won(a0) && !sizes.reader(a0))
            || (0..sizes.acquisitions).all(|b1| {
                !(s.won(b1) && !sizes.reader(b1) && (s.fence(a0) == s.fence(b1))) || (a0 == b1)
            })
    })
}

/// If one acquisition was won before another began, the later one has no smaller fence, and if it
/// is a writer's, a larger one.
fn rising(s: &State, sizes: &Sizes) -> bool {
    (0..sizes.acquisitions).all(|a0| {
        (0..sizes.acquisitions).all(|b1| {
            !(s.before(a0, b1) && s.won(b1))
                || (!below(s.fence(b1), s.fence(a0))
                    && (!!sizes.reader(b1) || below(s.fence(a0), s.fence(b1))))
        })
    })
}

/// If one acquisition was won before another began, the fenced store accepts nothing of the first
/// after something of the second, except reads after reads.
fn store(s: &State, sizes: &Sizes) -> bool {
    (0..sizes.acquisitions)
        .all(|a0| (0..sizes.acquisitions).all(|b1| !(s.followed(a0, b1)) || !s.before(a0, b1)))
}

/// If both clients look at their clocks, and one of them is a writer, no acquisition is valid once
/// another is won that began after the first was won.
fn superseded(s: &State, sizes: &Sizes) -> bool {
    (0..sizes.acquisitions).all(|a0| {
        !(!sizes.blind(a0))
            || (0..sizes.acquisitions).all(|b1| {
                !(s.before(a0, b1)
                    && s.won(b1)
                    && ((a0 != b1)
                        && (!(sizes.reader(a0) || s.downgraded(a0))
                            || !(sizes.reader(b1) || s.downgraded(b1))))
                    && !sizes.blind(b1))
                    || (0..sizes.acquisitions * ROUNDS)
                        .all(|r2| !((own(r2) == a0) && s.confirmed(r2)) || s.over(r2))
            })
    })
}

/// A node vouches for one writer at a time, or for readers.
fn one_voice(s: &State, sizes: &Sizes) -> bool {
    (0..sizes.nodes).all(|n0| {
        (0..sizes.acquisitions * ROUNDS).all(|r1| {
            !(s.rests(n0, r1) || s.forgot(n0, r1))
                || (0..sizes.acquisitions * ROUNDS).all(|s2| {
                    !(s.rests(n0, s2) || s.forgot(n0, s2))
                        || !((own(r1) != own(s2))
                            && (!(sizes.reader(own(r1)) || s.downgraded(own(r1)))
                                || !(sizes.reader(own(s2)) || s.downgraded(own(s2)))))
                })
        })
    })
}

/// A node that was counted for a validity that is not over still vouches for it.
fn votes_stay(s: &State, sizes: &Sizes) -> bool {
    (0..sizes.nodes).all(|n0| {
        (0..sizes.acquisitions * ROUNDS).all(|r1| {
            !(s.confirmed(r1) && !s.over(r1) && member(n0, s.voters(r1)))
                || (s.rests(n0, r1) || s.forgot(n0, r1))
        })
    })
}

/// A node has one lease of a writer, or leases of readers.
fn one_holder(s: &State, sizes: &Sizes) -> bool {
    (0..sizes.nodes).all(|n0| {
        (0..sizes.acquisitions).all(|a1| {
            !(s.holds(n0, a1))
                || (0..sizes.acquisitions)
                    .all(|b2| !(s.holds(n0, b2) && (a1 != b2)) || !s.exclusive(n0, a1))
        })
    })
}

/// The lease of a writer is exclusive, and no other lease is, except that of a former writer.
fn exclusive_leases(s: &State, sizes: &Sizes) -> bool {
    ((0..sizes.nodes).all(|n0| {
        (0..sizes.acquisitions).all(|a1| {
            !(s.holds(n0, a1) && !(sizes.reader(a1) || s.downgraded(a1))) || s.exclusive(n0, a1)
        })
    }) && (0..sizes.nodes).all(|n0| {
        (0..sizes.acquisitions)
            .all(|a1| !(s.exclusive(n0, a1)) || (s.holds(n0, a1) && !sizes.reader(a1)))
    }) && (0..sizes.acquisitions)
        .all(|a0| !(s.downgraded(a0)) || (s.won(a0) && !sizes.reader(a0))))
}

/// A lease rests on rounds of its holder.
fn rests_on_the_holder(s: &State, sizes: &Sizes) -> bool {
    (0..sizes.nodes).all(|n0| {
        (0..sizes.acquisitions * ROUNDS).all(|r1| !(s.rests(n0, r1)) || s.holds(n0, own(r1)))
    })
}

/// If a lease counts and its client is not done, the node has forgotten no vote that conflicts with
/// it. (At a promoted node that waits, none counts.)
fn no_vote_beside(s: &State, sizes: &Sizes) -> bool {
    (0..sizes.nodes).all(|n0| {
        !(!s.promoted(n0))
            || (0..sizes.acquisitions).all(|a1| {
                !(s.holds(n0, a1) && !s.provisional(n0, a1) && !s.done(a1))
                    || (0..sizes.acquisitions * ROUNDS).all(|r2| {
                        !(s.forgot(n0, r2))
                            || !((own(r2) != a1)
                                && (!(sizes.reader(own(r2)) || s.downgraded(own(r2)))
                                    || !(sizes.reader(a1) || s.downgraded(a1))))
                    })
            })
    })
}

/// No lease counts for a round while it is provisional, or at a promoted node that waits.
fn nothing_counts(s: &State, sizes: &Sizes) -> bool {
    ((0..sizes.nodes).all(|n0| {
        (0..sizes.acquisitions * ROUNDS).all(|r1| !(s.provisional(n0, own(r1))) || !s.rests(n0, r1))
    }) && (0..sizes.nodes)
        .all(|n0| !(s.promoted(n0)) || (0..sizes.acquisitions * ROUNDS).all(|r1| !s.rests(n0, r1))))
}

/// Outside a quarantine nothing is forgotten, and every lease counts.
fn nothing_forgotten(s: &State, sizes: &Sizes) -> bool {
    (0..sizes.nodes).all(|n0| {
        !(!s.quarantined(n0))
            || (0..sizes.acquisitions * ROUNDS).all(|r1| {
                (0..sizes.acquisitions)
                    .all(|a2| (!s.forgot(n0, r1) && !s.provisional(n0, a2) && !s.promoted(n0)))
            })
    })
}

/// Nothing is kept of a validity that has ended, and a client that is done has none.
fn over_is_over(s: &State, sizes: &Sizes) -> bool {
    ((0..sizes.nodes).all(|n0| {
        (0..sizes.acquisitions * ROUNDS)
            .all(|r1| !(s.over(r1)) || !(s.rests(n0, r1) || s.forgot(n0, r1)))
    }) && (0..sizes.acquisitions * ROUNDS).all(|r0| !(s.done(own(r0))) || s.over(r0)))
}

/// No fence stored at a node is above the node's counter.
fn counted(s: &State, sizes: &Sizes) -> bool {
    (0..sizes.acquisitions).all(|a0| {
        (0..sizes.nodes).all(|n1| {
            (0..s.fences.len()).all(|f2| !(s.stored(a0, n1, f2)) || !below(s.counter(n1), f2))
        })
    })
}

/// No counter is above the ceiling in the state file.
fn on_disk(s: &State, sizes: &Sizes) -> bool {
    (0..sizes.nodes).all(|n0| !below(s.ceiling(n0), s.counter(n0)))
}

/// A node stores a fence for at most one writer.
fn stored_once(s: &State, sizes: &Sizes) -> bool {
    (0..sizes.acquisitions).all(|a0| {
        !(!sizes.reader(a0))
            || (0..sizes.acquisitions).all(|b1| {
                !(!sizes.reader(b1))
                    || (0..sizes.nodes).all(|n2| {
                        (0..s.fences.len())
                            .all(|f3| !(s.stored(a0, n2, f3) && s.stored(b1, n2, f3)) || (a0 == b1))
                    })
            })
    })
}

/// The fence that an acquisition was won with is stored at a quorum.
fn won_with(s: &State, sizes: &Sizes) -> bool {
    (0..sizes.acquisitions).all(|a0| {
        !(s.won(a0))
            || (0..sizes.nodes)
                .all(|n1| !(member(n1, s.storing(a0))) || s.stored(a0, n1, s.fence(a0)))
    })
}

/// A node that stores a winning fence gives acquisitions that began later no smaller fences, and
/// writers larger ones.
fn above_the_last(s: &State, sizes: &Sizes) -> bool {
    (0..sizes.acquisitions).all(|a0| {
        (0..sizes.acquisitions).all(|b1| {
            !(s.before(a0, b1))
                || (0..sizes.nodes).all(|n2| {
                    !(member(n2, s.storing(a0)))
                        || (0..s.fences.len()).all(|f3| {
                            !(s.stored(b1, n2, f3))
                                || (!below(f3, s.fence(a0))
                                    && (!!sizes.reader(b1) || below(s.fence(a0), f3)))
                        })
                })
        })
    })
}

/// If one acquisition was won before another began, the two differ, the first is won and the second
/// has begun.
fn history(s: &State, sizes: &Sizes) -> bool {
    ((0..sizes.acquisitions).all(|a0| {
        (0..sizes.acquisitions)
            .all(|b1| !(s.before(a0, b1)) || ((a0 != b1) && s.won(a0) && s.begun(b1)))
    }) && (0..sizes.acquisitions).all(|a0| !(s.won(a0) || s.done(a0)) || s.begun(a0)))
}

/// There is no trace of an acquisition that has not begun.
fn nothing_from_nothing(s: &State, sizes: &Sizes) -> bool {
    ((0..sizes.acquisitions).all(|a0| {
        !(!s.begun(a0))
            || (0..sizes.nodes).all(|n1| {
                (0..s.fences.len()).all(|f2| {
                    (!s.stored(a0, n1, f2)
                        && !s.holds(n1, a0)
                        && !s.provisional(n1, a0)
                        && !s.wrote(a0)
                        && !s.read(a0))
                })
            })
    }) && (0..sizes.acquisitions * ROUNDS).all(|r0| {
        !(!s.begun(own(r0)))
            || (0..sizes.nodes)
                .all(|n1| (!(s.rests(n1, r0) || s.forgot(n1, r0)) && !s.confirmed(r0)))
    }))
}

/// The store has accepted reads and writes only from acquisitions that were won, and their fences
/// are not above the largest that it has seen.
fn written(s: &State, sizes: &Sizes) -> bool {
    ((0..sizes.acquisitions).all(|a0| {
        !(s.wrote(a0)) || (s.won(a0) && !sizes.reader(a0) && !below(s.highest(), s.fence(a0)))
    }) && (0..sizes.acquisitions)
        .all(|a0| !(s.read(a0)) || (s.won(a0) && !below(s.highest_read(), s.fence(a0))))
        && (0..sizes.acquisitions).all(|a0| {
            (0..sizes.acquisitions).all(|b1| !(s.followed(a0, b1)) || (s.wrote(b1) || s.read(b1)))
        }))
}

/// What may happen. Fences are values here, not ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A client begins to acquire, with a fresh token.
    Begin { at_acquisition: usize },
    /// The validity of a round ends at the client, whether the client checks or not.
    TimePasses { at_round: usize },
    /// A quorum has granted, and each of its nodes has stored the fence that the attempt is won
    /// with. The validity is that of the oldest request that a counted node has answered.
    Win { at_round: usize, at_quorum: usize, at_fence: u64 },
    /// A quorum has confirmed a renewal while the holder was still valid by another round.
    Renew { at_round: usize, standing: usize, at_quorum: usize },
    /// A client abandons its attempt or releases its lock: it relies on nothing from here on.
    Finish { at_acquisition: usize },
    /// A client that has won as a writer only reads from here on; it asks the nodes afterwards.
    Downgrade { at_acquisition: usize },
    /// The fenced store accepts a write: its fence is no smaller than any writer's that it has
    /// seen, and larger than any reader's.
    Write { at_acquisition: usize },
    /// The fenced store accepts a read: its fence is no smaller than any writer's that it has seen.
    Read { at_acquisition: usize },
    /// A node grants a free lock to an attempt: now, late, or once more, to any of its requests. A
    /// lock that readers hold is free for a reader.
    Grant { at_node: usize, at_round: usize, at_fence: u64, exclusively: bool },
    /// A node that has lost the lease grants anew to the holder's own token, perhaps with a larger
    /// fence. The holder keeps its own fence. (For a former writer, the new fence is not stored.)
    Rejoin { at_node: usize, at_round: usize, at_fence: u64, exclusively: bool },
    /// A node moves the end of the lease later, never earlier, even in quarantine: for a renewal,
    /// or for an acquire that is sent again. (A provisional lease is extended too, which changes
    /// nothing here: it does not count.)
    Extend { at_node: usize, at_round: usize },
    /// A node raises the lease of the token, and its counter, to a larger fence than it has stored
    /// for any other. (After a crash the floor may be above that.) For a reader any fence is enough
    /// that is no smaller than its own.
    Raise { at_node: usize, at_acquisition: usize, at_fence: u64 },
    /// A node learns that the holder only reads from here on, and lets other readers in.
    DowngradeAtANode { at_node: usize, at_acquisition: usize },
    /// A node writes a fence ceiling to its disk: a higher one, or at a clean stop the highest
    /// fence that it used.
    Persist { at_node: usize, at_fence: u64 },
    /// The floor of a node rises: some fences of the lock are skipped.
    Skip { at_node: usize, at_fence: u64 },
    /// A node in quarantine restores the lease of a holder that it has forgotten. That does not
    /// count until the quarantine is over, because the node may have vouched for another holder.
    Repair { at_node: usize, at_round: usize, exclusively: bool },
    /// A lease comes to a node in quarantine: with the data set of an earlier moment, from another
    /// name, or from another node. It counts if the node has vouched for no other holder since, for
    /// example because it stood at the crash; otherwise it is provisional, like a repaired one. (A
    /// lease that had ended is over by its date; the client of a released lease is done.)
    Arrive { at_node: usize, at_acquisition: usize, exclusively: bool, counts: bool },
    /// A node outside quarantine that has granted nothing later restores the lease, and that
    /// counts.
    RepairByTheCounter { at_node: usize, at_round: usize, exclusively: bool },
    /// The clock of a node passes the end of a lease: every validity that rested on it is over.
    LeaseEnds { at_node: usize, at_acquisition: usize },
    /// A node ends the lease of a client that has sent its release.
    Release { at_node: usize, at_acquisition: usize },
    /// A node crashes and forgets everything. (Leases that come back with its data arrive
    /// afterwards.) Its fences continue above the fence ceiling, and it grants nothing until all
    /// that it may have forgotten is over.
    Crash { at_node: usize, at_fence: u64 },
    /// A replica replaces its master. (The leases in its data set arrive afterwards.) Its fences
    /// jump above all that its master issues, and none of its answers counts while it waits.
    Promote { at_node: usize, at_fence: u64 },
    /// While a promoted node waits, its old master still vouches for one writer, or for readers,
    /// with fences below the jump.
    TheOldMasterServes { at_node: usize, at_round: usize, at_fence: u64, comes: bool },
    /// A node grants again: every validity that it may have forgotten is over. Provisional leases
    /// count from here on.
    QuarantineEnds { at_node: usize },
}

impl Action {
    /// Its name in the proof.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Action::Begin { .. } => "begin",
            Action::TimePasses { .. } => "time passes",
            Action::Win { .. } => "win",
            Action::Renew { .. } => "renew",
            Action::Finish { .. } => "finish",
            Action::Downgrade { .. } => "downgrade",
            Action::Write { .. } => "write",
            Action::Read { .. } => "read",
            Action::Grant { .. } => "grant",
            Action::Rejoin { .. } => "rejoin",
            Action::Extend { .. } => "extend",
            Action::Raise { .. } => "raise",
            Action::DowngradeAtANode { .. } => "downgrade at a node",
            Action::Persist { .. } => "persist",
            Action::Skip { .. } => "skip",
            Action::Repair { .. } => "repair",
            Action::Arrive { .. } => "arrive",
            Action::RepairByTheCounter { .. } => "repair by the counter",
            Action::LeaseEnds { .. } => "lease ends",
            Action::Release { .. } => "release",
            Action::Crash { .. } => "crash",
            Action::Promote { .. } => "promote",
            Action::TheOldMasterServes { .. } => "the old master serves",
            Action::QuarantineEnds { .. } => "quarantine ends",
        }
    }
}

/// All actions, by name.
pub(crate) const ACTIONS: [&str; 24] = [
    "begin",
    "time passes",
    "win",
    "renew",
    "finish",
    "downgrade",
    "write",
    "read",
    "grant",
    "rejoin",
    "extend",
    "raise",
    "downgrade at a node",
    "persist",
    "skip",
    "repair",
    "arrive",
    "repair by the counter",
    "lease ends",
    "release",
    "crash",
    "promote",
    "the old master serves",
    "quarantine ends",
];

impl State {
    /// The state after an action; an error names a requirement that is not met.
    pub(crate) fn take(&self, sizes: &Sizes, action: Action) -> Result<State, &'static str> {
        let mut s = self.clone();
        let mut after = match action {
            Action::Begin { at_acquisition } => begin_step(sizes, &mut s, at_acquisition),
            Action::TimePasses { at_round } => time_passes_step(sizes, &mut s, at_round),
            Action::Win { at_round, at_quorum, at_fence } => {
                win_step(sizes, &mut s, at_round, at_quorum, at_fence)
            }
            Action::Renew { at_round, standing, at_quorum } => {
                renew_step(sizes, &mut s, at_round, standing, at_quorum)
            }
            Action::Finish { at_acquisition } => finish_step(sizes, &mut s, at_acquisition),
            Action::Downgrade { at_acquisition } => downgrade_step(sizes, &mut s, at_acquisition),
            Action::Write { at_acquisition } => write_step(sizes, &mut s, at_acquisition),
            Action::Read { at_acquisition } => read_step(sizes, &mut s, at_acquisition),
            Action::Grant { at_node, at_round, at_fence, exclusively } => {
                grant_step(sizes, &mut s, at_node, at_round, at_fence, exclusively)
            }
            Action::Rejoin { at_node, at_round, at_fence, exclusively } => {
                rejoin_step(sizes, &mut s, at_node, at_round, at_fence, exclusively)
            }
            Action::Extend { at_node, at_round } => extend_step(sizes, &mut s, at_node, at_round),
            Action::Raise { at_node, at_acquisition, at_fence } => {
                raise_step(sizes, &mut s, at_node, at_acquisition, at_fence)
            }
            Action::DowngradeAtANode { at_node, at_acquisition } => {
                downgrade_at_a_node_step(sizes, &mut s, at_node, at_acquisition)
            }
            Action::Persist { at_node, at_fence } => persist_step(sizes, &mut s, at_node, at_fence),
            Action::Skip { at_node, at_fence } => skip_step(sizes, &mut s, at_node, at_fence),
            Action::Repair { at_node, at_round, exclusively } => {
                repair_step(sizes, &mut s, at_node, at_round, exclusively)
            }
            Action::Arrive { at_node, at_acquisition, exclusively, counts } => {
                arrive_step(sizes, &mut s, at_node, at_acquisition, exclusively, counts)
            }
            Action::RepairByTheCounter { at_node, at_round, exclusively } => {
                repair_by_the_counter_step(sizes, &mut s, at_node, at_round, exclusively)
            }
            Action::LeaseEnds { at_node, at_acquisition } => {
                lease_ends_step(sizes, &mut s, at_node, at_acquisition)
            }
            Action::Release { at_node, at_acquisition } => {
                release_step(sizes, &mut s, at_node, at_acquisition)
            }
            Action::Crash { at_node, at_fence } => crash_step(sizes, &mut s, at_node, at_fence),
            Action::Promote { at_node, at_fence } => promote_step(sizes, &mut s, at_node, at_fence),
            Action::TheOldMasterServes { at_node, at_round, at_fence, comes } => {
                the_old_master_serves_step(sizes, &mut s, at_node, at_round, at_fence, comes)
            }
            Action::QuarantineEnds { at_node } => quarantine_ends_step(sizes, &mut s, at_node),
        }?;
        after.collect();
        Ok(after)
    }
}

fn begin_step(sizes: &Sizes, s: &mut State, at_acquisition: usize) -> Result<State, &'static str> {
    if !(!s.begun(at_acquisition)) {
        return Err("a fresh token");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.acquisitions {
        let place: Bits = 1 << y0;
        let is_so = (s.begun(y0) || (true && (y0 == at_acquisition)));
        if is_so { t.begun |= place } else { t.begun &= !place }
    }
    for y0 in 0..sizes.acquisitions {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.before(y0, y1) || ((y1 == at_acquisition) && s.won(y0)));
            if is_so { t.before |= place } else { t.before &= !place }
        }
    }
    Ok(t)
}

fn time_passes_step(sizes: &Sizes, s: &mut State, at_round: usize) -> Result<State, &'static str> {
    let mut t = s.clone();
    for y0 in 0..sizes.acquisitions * ROUNDS {
        let place: Bits = 1 << y0;
        let is_so = (s.over(y0) || (y0 == at_round));
        if is_so { t.over |= place } else { t.over &= !place }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions * ROUNDS {
            let place: Bits = 1 << (y0 * ROUNDS_MAX + y1);
            let is_so = (s.rests(y0, y1) && !(y1 == at_round));
            if is_so { t.rests |= place } else { t.rests &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions * ROUNDS {
            let place: Bits = 1 << (y0 * ROUNDS_MAX + y1);
            let is_so = (s.forgot(y0, y1) && !(y1 == at_round));
            if is_so { t.forgot |= place } else { t.forgot &= !place }
        }
    }
    Ok(t)
}

fn win_step(
    sizes: &Sizes,
    s: &mut State,
    at_round: usize,
    at_quorum: usize,
    at_fence: u64,
) -> Result<State, &'static str> {
    let at_fence = s.rank(at_fence);
    if !(asks(at_round) && s.begun(own(at_round)) && !s.done(own(at_round))) {
        return Err("it is the attempt");
    }
    if !(!s.won(own(at_round)) && !s.confirmed(at_round)) {
        return Err("once");
    }
    if !((0..sizes.nodes).all(|n0| {
        !(member(n0, at_quorum) && !s.over(at_round))
            || (s.rests(n0, at_round) || s.forgot(n0, at_round))
    })) {
        return Err("a quorum granted");
    }
    if !((0..sizes.nodes)
        .all(|n0| !(member(n0, at_quorum)) || s.stored(own(at_round), n0, at_fence)))
    {
        return Err("a quorum stored just this fence");
    }
    if !(!s.over(at_round) || sizes.blind(own(at_round))) {
        return Err("the validity is not over");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.acquisitions {
        let place: Bits = 1 << y0;
        let is_so = (s.won(y0) || (true && (y0 == own(at_round))));
        if is_so { t.won |= place } else { t.won &= !place }
    }
    for y0 in 0..sizes.acquisitions {
        t.fence[y0] = (if (y0 == own(at_round)) { at_fence } else { s.fence(y0) }) as u8;
    }
    for y0 in 0..sizes.acquisitions {
        t.storing[y0] = (if (y0 == own(at_round)) { at_quorum } else { s.storing(y0) }) as u8;
    }
    for y0 in 0..sizes.acquisitions * ROUNDS {
        let place: Bits = 1 << y0;
        let is_so = (s.confirmed(y0) || (true && (y0 == at_round)));
        if is_so { t.confirmed |= place } else { t.confirmed &= !place }
    }
    for y0 in 0..sizes.acquisitions * ROUNDS {
        t.voters[y0] = (if (y0 == at_round) { at_quorum } else { s.voters(y0) }) as u8;
    }
    Ok(t)
}

fn renew_step(
    sizes: &Sizes,
    s: &mut State,
    at_round: usize,
    standing: usize,
    at_quorum: usize,
) -> Result<State, &'static str> {
    if !(s.won(own(at_round))
        && !s.done(own(at_round))
        && !asks(at_round)
        && !s.confirmed(at_round))
    {
        return Err("of a holder");
    }
    if !((0..sizes.nodes).all(|n0| {
        !(member(n0, at_quorum) && !s.over(at_round))
            || (s.rests(n0, at_round) || s.forgot(n0, at_round))
    })) {
        return Err("a quorum answered this very round");
    }
    if !(sizes.blind(own(at_round))
        || ((own(standing) == own(at_round)) && s.confirmed(standing) && !s.over(standing)))
    {
        return Err("the holder is still valid");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.acquisitions * ROUNDS {
        let place: Bits = 1 << y0;
        let is_so = (s.confirmed(y0) || (true && (y0 == at_round)));
        if is_so { t.confirmed |= place } else { t.confirmed &= !place }
    }
    for y0 in 0..sizes.acquisitions * ROUNDS {
        t.voters[y0] = (if (y0 == at_round) { at_quorum } else { s.voters(y0) }) as u8;
    }
    Ok(t)
}

fn finish_step(sizes: &Sizes, s: &mut State, at_acquisition: usize) -> Result<State, &'static str> {
    if !(s.begun(at_acquisition)) {
        return Err("it has begun");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.acquisitions * ROUNDS {
        let place: Bits = 1 << y0;
        let is_so = (s.over(y0) || (own(y0) == at_acquisition));
        if is_so { t.over |= place } else { t.over &= !place }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions * ROUNDS {
            let place: Bits = 1 << (y0 * ROUNDS_MAX + y1);
            let is_so = (s.rests(y0, y1) && !(own(y1) == at_acquisition));
            if is_so { t.rests |= place } else { t.rests &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions * ROUNDS {
            let place: Bits = 1 << (y0 * ROUNDS_MAX + y1);
            let is_so = (s.forgot(y0, y1) && !(own(y1) == at_acquisition));
            if is_so { t.forgot |= place } else { t.forgot &= !place }
        }
    }
    for y0 in 0..sizes.acquisitions {
        let place: Bits = 1 << y0;
        let is_so = (s.done(y0) || (true && (y0 == at_acquisition)));
        if is_so { t.done |= place } else { t.done &= !place }
    }
    Ok(t)
}

fn downgrade_step(
    sizes: &Sizes,
    s: &mut State,
    at_acquisition: usize,
) -> Result<State, &'static str> {
    if !(s.won(at_acquisition) && !sizes.reader(at_acquisition)) {
        return Err("a writer");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.acquisitions {
        let place: Bits = 1 << y0;
        let is_so = (s.downgraded(y0) || (true && (y0 == at_acquisition)));
        if is_so { t.downgraded |= place } else { t.downgraded &= !place }
    }
    Ok(t)
}

fn write_step(sizes: &Sizes, s: &mut State, at_acquisition: usize) -> Result<State, &'static str> {
    if !(s.won(at_acquisition) && !sizes.reader(at_acquisition)) {
        return Err("of a writer, or one who was");
    }
    if !(!below(s.fence(at_acquisition), s.highest())) {
        return Err("no smaller fence");
    }
    if !(below(s.highest_read(), s.fence(at_acquisition))) {
        return Err("a larger fence than readers");
    }
    let mut t = s.clone();
    t.highest = s.fence(at_acquisition) as u8;
    for y0 in 0..sizes.acquisitions {
        let place: Bits = 1 << y0;
        let is_so = (s.wrote(y0) || (true && (y0 == at_acquisition)));
        if is_so { t.wrote |= place } else { t.wrote &= !place }
    }
    for y0 in 0..sizes.acquisitions {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so =
                (s.followed(y0, y1) || ((y0 == at_acquisition) && (s.wrote(y1) || s.read(y1))));
            if is_so { t.followed |= place } else { t.followed &= !place }
        }
    }
    Ok(t)
}

fn read_step(sizes: &Sizes, s: &mut State, at_acquisition: usize) -> Result<State, &'static str> {
    if !(s.won(at_acquisition)) {
        return Err("of a holder, or one who was");
    }
    if !(!below(s.fence(at_acquisition), s.highest())) {
        return Err("no smaller fence");
    }
    let mut t = s.clone();
    t.highest_read = (if below(s.highest_read(), s.fence(at_acquisition)) {
        s.fence(at_acquisition)
    } else {
        s.highest_read()
    }) as u8;
    for y0 in 0..sizes.acquisitions {
        let place: Bits = 1 << y0;
        let is_so = (s.read(y0) || (true && (y0 == at_acquisition)));
        if is_so { t.read |= place } else { t.read &= !place }
    }
    for y0 in 0..sizes.acquisitions {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.followed(y0, y1) || ((y0 == at_acquisition) && s.wrote(y1)));
            if is_so { t.followed |= place } else { t.followed &= !place }
        }
    }
    Ok(t)
}

fn grant_step(
    sizes: &Sizes,
    s: &mut State,
    at_node: usize,
    at_round: usize,
    at_fence: u64,
    exclusively: bool,
) -> Result<State, &'static str> {
    let at_fence = s.rank(at_fence);
    if !(!s.holds(at_node, own(at_round))
        && (0..sizes.acquisitions)
            .all(|a0| !(s.holds(at_node, a0)) || !(exclusively || s.exclusive(at_node, a0))))
    {
        return Err("the lock is free");
    }
    if !(!s.quarantined(at_node)) {
        return Err("not in quarantine");
    }
    if !(!below(at_fence, s.counter(at_node))
        && (!exclusively || below(s.counter(at_node), at_fence)))
    {
        return Err("above the counter, or at it for a reader");
    }
    if !(!below(s.ceiling(at_node), at_fence)) {
        return Err("on disk first");
    }
    if !(s.begun(own(at_round))) {
        return Err("it has begun");
    }
    if !(asks(at_round)) {
        return Err("it is the attempt");
    }
    if !(exclusively == !sizes.reader(own(at_round))) {
        return Err("as it was asked");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.holds(y0, y1) || (true && (y0 == at_node) && (y1 == own(at_round))));
            if is_so { t.holds |= place } else { t.holds &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so =
                (s.exclusive(y0, y1) || (exclusively && (y0 == at_node) && (y1 == own(at_round))));
            if is_so { t.exclusive |= place } else { t.exclusive &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions * ROUNDS {
            let place: Bits = 1 << (y0 * ROUNDS_MAX + y1);
            let is_so = (s.rests(y0, y1)
                || ((y0 == at_node)
                    && ((y1 == at_round) || no_later(y1, at_round))
                    && !s.over(y1)));
            if is_so { t.rests |= place } else { t.rests &= !place }
        }
    }
    for y0 in 0..sizes.acquisitions {
        for y1 in 0..sizes.nodes {
            for y2 in 0..s.fences.len() {
                let place = 1_u32 << (y0 * NODES_MAX + y1);
                let is_so = (s.stored(y0, y1, y2)
                    || ((exclusively == !sizes.reader(own(at_round)))
                        && (y0 == own(at_round))
                        && (y1 == at_node)
                        && (y2 == at_fence)));
                if is_so { t.stored[y2] |= place } else { t.stored[y2] &= !place }
            }
        }
    }
    for y0 in 0..sizes.nodes {
        t.counter[y0] = (if (y0 == at_node) { at_fence } else { s.counter(y0) }) as u8;
    }
    Ok(t)
}

fn rejoin_step(
    sizes: &Sizes,
    s: &mut State,
    at_node: usize,
    at_round: usize,
    at_fence: u64,
    exclusively: bool,
) -> Result<State, &'static str> {
    let at_fence = s.rank(at_fence);
    if !(!s.holds(at_node, own(at_round))
        && (0..sizes.acquisitions)
            .all(|a0| !(s.holds(at_node, a0)) || !(exclusively || s.exclusive(at_node, a0))))
    {
        return Err("the lock is free");
    }
    if !(!s.quarantined(at_node)) {
        return Err("not in quarantine");
    }
    if !(!below(at_fence, s.counter(at_node))
        && (!exclusively || below(s.counter(at_node), at_fence)))
    {
        return Err("above the counter, or at it for a reader");
    }
    if !(!below(s.ceiling(at_node), at_fence)) {
        return Err("on disk first");
    }
    if !(s.begun(own(at_round))) {
        return Err("it has begun");
    }
    if !((!!(sizes.reader(own(at_round)) || s.downgraded(own(at_round))) || exclusively)
        && (!exclusively || !sizes.reader(own(at_round))))
    {
        return Err("as it was asked");
    }
    if !(s.won(own(at_round)) && !asks(at_round)) {
        return Err("of a holder");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.holds(y0, y1) || (true && (y0 == at_node) && (y1 == own(at_round))));
            if is_so { t.holds |= place } else { t.holds &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so =
                (s.exclusive(y0, y1) || (exclusively && (y0 == at_node) && (y1 == own(at_round))));
            if is_so { t.exclusive |= place } else { t.exclusive &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions * ROUNDS {
            let place: Bits = 1 << (y0 * ROUNDS_MAX + y1);
            let is_so = (s.rests(y0, y1)
                || ((y0 == at_node)
                    && ((y1 == at_round) || no_later(y1, at_round))
                    && !s.over(y1)));
            if is_so { t.rests |= place } else { t.rests &= !place }
        }
    }
    for y0 in 0..sizes.acquisitions {
        for y1 in 0..sizes.nodes {
            for y2 in 0..s.fences.len() {
                let place = 1_u32 << (y0 * NODES_MAX + y1);
                let is_so = (s.stored(y0, y1, y2)
                    || ((exclusively == !sizes.reader(own(at_round)))
                        && (y0 == own(at_round))
                        && (y1 == at_node)
                        && (y2 == at_fence)));
                if is_so { t.stored[y2] |= place } else { t.stored[y2] &= !place }
            }
        }
    }
    for y0 in 0..sizes.nodes {
        t.counter[y0] = (if (y0 == at_node) { at_fence } else { s.counter(y0) }) as u8;
    }
    Ok(t)
}

fn extend_step(
    sizes: &Sizes,
    s: &mut State,
    at_node: usize,
    at_round: usize,
) -> Result<State, &'static str> {
    if !(s.holds(at_node, own(at_round))) {
        return Err("the token holds");
    }
    if !(!s.provisional(at_node, own(at_round)) && !s.promoted(at_node)) {
        return Err("the lease counts");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions * ROUNDS {
            let place: Bits = 1 << (y0 * ROUNDS_MAX + y1);
            let is_so = (s.rests(y0, y1)
                || ((y0 == at_node)
                    && ((y1 == at_round) || no_later(y1, at_round))
                    && !s.over(y1)));
            if is_so { t.rests |= place } else { t.rests &= !place }
        }
    }
    Ok(t)
}

fn raise_step(
    sizes: &Sizes,
    s: &mut State,
    at_node: usize,
    at_acquisition: usize,
    at_fence: u64,
) -> Result<State, &'static str> {
    let at_fence = s.rank(at_fence);
    if !(s.holds(at_node, at_acquisition)) {
        return Err("the token holds");
    }
    if !((0..sizes.acquisitions).all(|b0| {
        !(b0 != at_acquisition)
            || (0..s.fences.len()).all(|g1| !(s.stored(b0, at_node, g1)) || below(g1, at_fence))
    }) || (sizes.reader(at_acquisition)
        && (0..s.fences.len())
            .any(|g0| (s.stored(at_acquisition, at_node, g0) && !below(at_fence, g0)))))
    {
        return Err("above what is stored for others");
    }
    if !(!below(s.ceiling(at_node), at_fence)) {
        return Err("on disk first");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.acquisitions {
        for y1 in 0..sizes.nodes {
            for y2 in 0..s.fences.len() {
                let place = 1_u32 << (y0 * NODES_MAX + y1);
                let is_so = (s.stored(y0, y1, y2)
                    || (true && (y0 == at_acquisition) && (y1 == at_node) && (y2 == at_fence)));
                if is_so { t.stored[y2] |= place } else { t.stored[y2] &= !place }
            }
        }
    }
    for y0 in 0..sizes.nodes {
        t.counter[y0] = (if ((y0 == at_node) && below(s.counter(y0), at_fence)) {
            at_fence
        } else {
            s.counter(y0)
        }) as u8;
    }
    Ok(t)
}

fn downgrade_at_a_node_step(
    sizes: &Sizes,
    s: &mut State,
    at_node: usize,
    at_acquisition: usize,
) -> Result<State, &'static str> {
    if !(s.downgraded(at_acquisition)) {
        return Err("its client reads already");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.exclusive(y0, y1) && !((y0 == at_node) && (y1 == at_acquisition)));
            if is_so { t.exclusive |= place } else { t.exclusive &= !place }
        }
    }
    Ok(t)
}

fn persist_step(
    sizes: &Sizes,
    s: &mut State,
    at_node: usize,
    at_fence: u64,
) -> Result<State, &'static str> {
    let at_fence = s.rank(at_fence);
    if !(!below(at_fence, s.counter(at_node))) {
        return Err("it covers the counter");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.nodes {
        t.ceiling[y0] = (if (y0 == at_node) { at_fence } else { s.ceiling(y0) }) as u8;
    }
    Ok(t)
}

fn skip_step(
    sizes: &Sizes,
    s: &mut State,
    at_node: usize,
    at_fence: u64,
) -> Result<State, &'static str> {
    let at_fence = s.rank(at_fence);
    if !(!below(at_fence, s.counter(at_node))) {
        return Err("upwards");
    }
    if !(!below(s.ceiling(at_node), at_fence)) {
        return Err("on disk first");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.nodes {
        t.counter[y0] = (if (y0 == at_node) { at_fence } else { s.counter(y0) }) as u8;
    }
    Ok(t)
}

fn repair_step(
    sizes: &Sizes,
    s: &mut State,
    at_node: usize,
    at_round: usize,
    exclusively: bool,
) -> Result<State, &'static str> {
    if !(!s.holds(at_node, own(at_round))
        && (0..sizes.acquisitions)
            .all(|a0| !(s.holds(at_node, a0)) || !(exclusively || s.exclusive(at_node, a0))))
    {
        return Err("the lock is free");
    }
    if !(s.quarantined(at_node)) {
        return Err("in quarantine");
    }
    if !((!!(sizes.reader(own(at_round)) || s.downgraded(own(at_round))) || exclusively)
        && (!exclusively || !sizes.reader(own(at_round))))
    {
        return Err("as it was asked");
    }
    if !(s.won(own(at_round))) {
        return Err("of a holder");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.holds(y0, y1) || (true && (y0 == at_node) && (y1 == own(at_round))));
            if is_so { t.holds |= place } else { t.holds &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so =
                (s.exclusive(y0, y1) || (exclusively && (y0 == at_node) && (y1 == own(at_round))));
            if is_so { t.exclusive |= place } else { t.exclusive &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so =
                (s.provisional(y0, y1) || (true && (y0 == at_node) && (y1 == own(at_round))));
            if is_so { t.provisional |= place } else { t.provisional &= !place }
        }
    }
    Ok(t)
}

fn arrive_step(
    sizes: &Sizes,
    s: &mut State,
    at_node: usize,
    at_acquisition: usize,
    exclusively: bool,
    counts: bool,
) -> Result<State, &'static str> {
    if !(!s.holds(at_node, at_acquisition)
        && (0..sizes.acquisitions)
            .all(|a0| !(s.holds(at_node, a0)) || !(exclusively || s.exclusive(at_node, a0))))
    {
        return Err("the lock is free");
    }
    if !(s.quarantined(at_node)) {
        return Err("in quarantine");
    }
    if !((!!(sizes.reader(at_acquisition) || s.downgraded(at_acquisition)) || exclusively)
        && (!exclusively || !sizes.reader(at_acquisition)))
    {
        return Err("as it was asked");
    }
    if !(s.begun(at_acquisition)) {
        return Err("it has begun");
    }
    if !(!counts
        || (s.done(at_acquisition)
            || s.promoted(at_node)
            || (0..sizes.acquisitions * ROUNDS).all(|r0| {
                !(s.forgot(at_node, r0))
                    || !((own(r0) != at_acquisition)
                        && (!(sizes.reader(own(r0)) || s.downgraded(own(r0)))
                            || !(sizes.reader(at_acquisition) || s.downgraded(at_acquisition))))
            })))
    {
        return Err("what counts has no vote beside it");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.holds(y0, y1) || (true && (y0 == at_node) && (y1 == at_acquisition)));
            if is_so { t.holds |= place } else { t.holds &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so =
                (s.exclusive(y0, y1) || (exclusively && (y0 == at_node) && (y1 == at_acquisition)));
            if is_so { t.exclusive |= place } else { t.exclusive &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so =
                (s.provisional(y0, y1) || (!counts && (y0 == at_node) && (y1 == at_acquisition)));
            if is_so { t.provisional |= place } else { t.provisional &= !place }
        }
    }
    Ok(t)
}

fn repair_by_the_counter_step(
    sizes: &Sizes,
    s: &mut State,
    at_node: usize,
    at_round: usize,
    exclusively: bool,
) -> Result<State, &'static str> {
    if !(!s.holds(at_node, own(at_round))
        && (0..sizes.acquisitions)
            .all(|a0| !(s.holds(at_node, a0)) || !(exclusively || s.exclusive(at_node, a0))))
    {
        return Err("the lock is free");
    }
    if !(!s.quarantined(at_node)) {
        return Err("not in quarantine");
    }
    if !((!!(sizes.reader(own(at_round)) || s.downgraded(own(at_round))) || exclusively)
        && (!exclusively || !sizes.reader(own(at_round))))
    {
        return Err("as it was asked");
    }
    if !(s.won(own(at_round))) {
        return Err("of a holder");
    }
    if !(!below(s.fence(own(at_round)), s.counter(at_node))) {
        return Err("nothing later was granted");
    }
    if !(!below(s.ceiling(at_node), s.fence(own(at_round)))) {
        return Err("on disk first");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.holds(y0, y1) || (true && (y0 == at_node) && (y1 == own(at_round))));
            if is_so { t.holds |= place } else { t.holds &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so =
                (s.exclusive(y0, y1) || (exclusively && (y0 == at_node) && (y1 == own(at_round))));
            if is_so { t.exclusive |= place } else { t.exclusive &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions * ROUNDS {
            let place: Bits = 1 << (y0 * ROUNDS_MAX + y1);
            let is_so =
                (s.rests(y0, y1) || (!s.over(at_round) && (y0 == at_node) && (y1 == at_round)));
            if is_so { t.rests |= place } else { t.rests &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        t.counter[y0] =
            (if (y0 == at_node) { s.fence(own(at_round)) } else { s.counter(y0) }) as u8;
    }
    Ok(t)
}

fn lease_ends_step(
    sizes: &Sizes,
    s: &mut State,
    at_node: usize,
    at_acquisition: usize,
) -> Result<State, &'static str> {
    if !((0..sizes.acquisitions * ROUNDS)
        .all(|r0| !(s.rests(at_node, r0) && (own(r0) == at_acquisition))))
    {
        return Err("no validity rests on it");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.holds(y0, y1) && !((y0 == at_node) && (y1 == at_acquisition)));
            if is_so { t.holds |= place } else { t.holds &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.exclusive(y0, y1) && !((y0 == at_node) && (y1 == at_acquisition)));
            if is_so { t.exclusive |= place } else { t.exclusive &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.provisional(y0, y1) && !((y0 == at_node) && (y1 == at_acquisition)));
            if is_so { t.provisional |= place } else { t.provisional &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions * ROUNDS {
            let place: Bits = 1 << (y0 * ROUNDS_MAX + y1);
            let is_so = (s.rests(y0, y1) && !((y0 == at_node) && (own(y1) == at_acquisition)));
            if is_so { t.rests |= place } else { t.rests &= !place }
        }
    }
    Ok(t)
}

fn release_step(
    sizes: &Sizes,
    s: &mut State,
    at_node: usize,
    at_acquisition: usize,
) -> Result<State, &'static str> {
    if !(s.done(at_acquisition)) {
        return Err("its client is done");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.holds(y0, y1) && !((y0 == at_node) && (y1 == at_acquisition)));
            if is_so { t.holds |= place } else { t.holds &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.exclusive(y0, y1) && !((y0 == at_node) && (y1 == at_acquisition)));
            if is_so { t.exclusive |= place } else { t.exclusive &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.provisional(y0, y1) && !((y0 == at_node) && (y1 == at_acquisition)));
            if is_so { t.provisional |= place } else { t.provisional &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions * ROUNDS {
            let place: Bits = 1 << (y0 * ROUNDS_MAX + y1);
            let is_so = (s.rests(y0, y1) && !((y0 == at_node) && (own(y1) == at_acquisition)));
            if is_so { t.rests |= place } else { t.rests &= !place }
        }
    }
    Ok(t)
}

fn crash_step(
    sizes: &Sizes,
    s: &mut State,
    at_node: usize,
    at_fence: u64,
) -> Result<State, &'static str> {
    let at_fence = s.rank(at_fence);
    if !(!below(at_fence, s.ceiling(at_node))) {
        return Err("fences go on above the ceiling");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.holds(y0, y1) && (y0 != at_node));
            if is_so { t.holds |= place } else { t.holds &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.exclusive(y0, y1) && (y0 != at_node));
            if is_so { t.exclusive |= place } else { t.exclusive &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.provisional(y0, y1) && (y0 != at_node));
            if is_so { t.provisional |= place } else { t.provisional &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions * ROUNDS {
            let place: Bits = 1 << (y0 * ROUNDS_MAX + y1);
            let is_so = (s.rests(y0, y1) && (y0 != at_node));
            if is_so { t.rests |= place } else { t.rests &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions * ROUNDS {
            let place: Bits = 1 << (y0 * ROUNDS_MAX + y1);
            let is_so = (s.forgot(y0, y1) || ((y0 == at_node) && s.rests(y0, y1)));
            if is_so { t.forgot |= place } else { t.forgot &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        let place: Bits = 1 << y0;
        let is_so = (s.quarantined(y0) || (true && (y0 == at_node)));
        if is_so { t.quarantined |= place } else { t.quarantined &= !place }
    }
    for y0 in 0..sizes.nodes {
        t.counter[y0] = (if (y0 == at_node) { at_fence } else { s.counter(y0) }) as u8;
    }
    for y0 in 0..sizes.nodes {
        t.ceiling[y0] = (if ((y0 == at_node) && below(s.ceiling(y0), at_fence)) {
            at_fence
        } else {
            s.ceiling(y0)
        }) as u8;
    }
    Ok(t)
}

fn promote_step(
    sizes: &Sizes,
    s: &mut State,
    at_node: usize,
    at_fence: u64,
) -> Result<State, &'static str> {
    let at_fence = s.rank(at_fence);
    if !(!below(at_fence, s.counter(at_node))) {
        return Err("its fences jump");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.holds(y0, y1) && (y0 != at_node));
            if is_so { t.holds |= place } else { t.holds &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.exclusive(y0, y1) && (y0 != at_node));
            if is_so { t.exclusive |= place } else { t.exclusive &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.provisional(y0, y1) && (y0 != at_node));
            if is_so { t.provisional |= place } else { t.provisional &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions * ROUNDS {
            let place: Bits = 1 << (y0 * ROUNDS_MAX + y1);
            let is_so = (s.rests(y0, y1) && (y0 != at_node));
            if is_so { t.rests |= place } else { t.rests &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions * ROUNDS {
            let place: Bits = 1 << (y0 * ROUNDS_MAX + y1);
            let is_so = (s.forgot(y0, y1) || ((y0 == at_node) && s.rests(y0, y1)));
            if is_so { t.forgot |= place } else { t.forgot &= !place }
        }
    }
    for y0 in 0..sizes.nodes {
        let place: Bits = 1 << y0;
        let is_so = (s.quarantined(y0) || (true && (y0 == at_node)));
        if is_so { t.quarantined |= place } else { t.quarantined &= !place }
    }
    for y0 in 0..sizes.nodes {
        t.counter[y0] = (if (y0 == at_node) { at_fence } else { s.counter(y0) }) as u8;
    }
    for y0 in 0..sizes.nodes {
        t.ceiling[y0] = (if (y0 == at_node) { at_fence } else { s.ceiling(y0) }) as u8;
    }
    for y0 in 0..sizes.nodes {
        let place: Bits = 1 << y0;
        let is_so = (s.promoted(y0) || (true && (y0 == at_node)));
        if is_so { t.promoted |= place } else { t.promoted &= !place }
    }
    Ok(t)
}

fn the_old_master_serves_step(
    sizes: &Sizes,
    s: &mut State,
    at_node: usize,
    at_round: usize,
    at_fence: u64,
    comes: bool,
) -> Result<State, &'static str> {
    let at_fence = s.rank(at_fence);
    if !(s.promoted(at_node)) {
        return Err("its replica waits");
    }
    if !(s.begun(own(at_round))) {
        return Err("it has begun");
    }
    if !((0..sizes.acquisitions * ROUNDS).all(|s0| {
        !(s.forgot(at_node, s0))
            || !((own(s0) != own(at_round))
                && (!(sizes.reader(own(s0)) || s.downgraded(own(s0)))
                    || !(sizes.reader(own(at_round)) || s.downgraded(own(at_round)))))
    })) {
        return Err("it vouches for nobody else");
    }
    if !((0..sizes.acquisitions).all(|a0| {
        !(comes)
            || (0..s.fences.len()).all(|g1| {
                !(s.stored(a0, at_node, g1))
                    || (!below(at_fence, g1)
                        && (!!sizes.reader(own(at_round)) || below(g1, at_fence)))
            })
    })) {
        return Err("above its counter");
    }
    if !(!comes || !below(s.counter(at_node), at_fence)) {
        return Err("below the jump");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions * ROUNDS {
            let place: Bits = 1 << (y0 * ROUNDS_MAX + y1);
            let is_so =
                (s.forgot(y0, y1) || (!s.over(at_round) && (y0 == at_node) && (y1 == at_round)));
            if is_so { t.forgot |= place } else { t.forgot &= !place }
        }
    }
    for y0 in 0..sizes.acquisitions {
        for y1 in 0..sizes.nodes {
            for y2 in 0..s.fences.len() {
                let place = 1_u32 << (y0 * NODES_MAX + y1);
                let is_so = (s.stored(y0, y1, y2)
                    || (comes && (y0 == own(at_round)) && (y1 == at_node) && (y2 == at_fence)));
                if is_so { t.stored[y2] |= place } else { t.stored[y2] &= !place }
            }
        }
    }
    Ok(t)
}

fn quarantine_ends_step(
    sizes: &Sizes,
    s: &mut State,
    at_node: usize,
) -> Result<State, &'static str> {
    if !((0..sizes.acquisitions * ROUNDS).all(|r0| !s.forgot(at_node, r0))) {
        return Err("all that was forgotten is over");
    }
    let mut t = s.clone();
    for y0 in 0..sizes.nodes {
        let place: Bits = 1 << y0;
        let is_so = (s.quarantined(y0) && (y0 != at_node));
        if is_so { t.quarantined |= place } else { t.quarantined &= !place }
    }
    for y0 in 0..sizes.nodes {
        let place: Bits = 1 << y0;
        let is_so = (s.promoted(y0) && (y0 != at_node));
        if is_so { t.promoted |= place } else { t.promoted &= !place }
    }
    for y0 in 0..sizes.nodes {
        for y1 in 0..sizes.acquisitions {
            let place: Bits = 1 << (y0 * ACQUISITIONS_MAX + y1);
            let is_so = (s.provisional(y0, y1) && (y0 != at_node));
            if is_so { t.provisional |= place } else { t.provisional &= !place }
        }
    }
    Ok(t)
}
