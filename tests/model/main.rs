//! Explores every reachable state of the protocol, within bounds, with the engine's own code.
//!
//! The nodes are the engine's `Lock` and `Promises`, and the clients its `Attempt` and `Renewal`.
//! The model supplies the network, crashes and time (see `world.rs`). Sound runs must exhaust their
//! bounds without a violation, reach all their expected witnesses, and count the same number of
//! states as before: a changed count means that the protocol or the model has changed. Each broken
//! variant must violate its property; `--nocapture` prints how.
//!
//! Waiting in line has its own model (`line.rs`), and so do locks that are handed over in one round
//! trip (`handover.rs`) and the choice of who decides after a failover (`authority.rs`).
//!
//! Runs with large bounds are ignored by default; `make model` runs them.

mod authority;
mod client;
mod electorate;
mod handover;
mod lengths;
mod line;
mod node;
#[path = "../proof/mod.rs"]
mod proof;
mod walk;
mod witness;
mod world;

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};
use witness::Expected;
use world::{Bounds, Defect, Lengths, Network, Replies, Start, Witness, World};

/// Replies arrive immediately, and no request arrives after its acquisition is over.
fn lean(nodes: usize, clients: usize) -> Bounds {
    Bounds { zombies: Some(0), ..at_once(nodes, clients) }
}

/// Only requests are lost, and none arrives after its attempt or acquisition is over.
fn small(nodes: usize, clients: usize) -> Bounds {
    Bounds { replies: Replies::Always, no_stragglers: true, ..lean(nodes, clients) }
}

/// The first client reads.
const READER: u8 = 1;
/// The first two clients read.
const READERS: u8 = 3;

/// Two readers and a writer, or a reader and a writer.
fn reading(readers: u8) -> Bounds {
    Bounds { readers, ..small(3, readers.count_ones() as usize + 1) }
}

/// A writer that becomes a reader and renews, alongside a reader.
fn downgrading() -> Bounds {
    Bounds { readers: READER << 1, downgrades: 1, renewals: 1, renewers: 1, ..small(3, 2) }
}

fn at_once(nodes: usize, clients: usize) -> Bounds {
    Bounds { replies: Replies::AtOnce, ..Bounds::of(nodes, clients) }
}

type Path = stateright::Path<world::State, world::Action>;

fn tell(world: &World, property: &str, path: Path) {
    tell_steps(world, property, path.into_vec());
}

fn tell_steps(world: &World, property: &str, steps: Vec<(world::State, Option<world::Action>)>) {
    println!("violated: {property}");
    for (index, (state, action)) in steps.into_iter().enumerate() {
        if let Some(action) = action {
            println!("  {:2}. {}", index + 1, world.tell(&state, action));
        } else if let Some(complaint) = world.complaint(&state) {
            println!("  {complaint}");
        }
    }
}

/// A broken variant must violate `property`.
fn find_out(property: &'static str, bounds: Bounds) {
    let checker = World::new(Bounds { only: Some(property), ..bounds })
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let path = checker.discovery(property);
    let path = path.unwrap_or_else(|| panic!("{:?} was not found out", bounds.defect));
    println!("{:?}, after {} states", bounds.defect, checker.unique_state_count());
    tell(checker.model(), property, path);
}

const EXCLUSION: &str = "mutual exclusion";
const RISING: &str = "fences rise over disjoint acquisitions";
const UNIQUE: &str = "fences are unique";
const SUPERSEDED: &str = "no renewal begun after a successor counts";
const ON_DISK: &str = "what a node promised is on its disk";
const PROVED: &str = "the code does what is proved";
const RELEASED: &str = "what is released stays released";

// ------------------------------------------------------------------------------ broken variants

fn uneven(defect: Defect) -> Bounds {
    Bounds { start: Start::Uneven, defect, ..lean(3, 2) }
}

#[test]
fn without_the_raise_round_fences_repeat() {
    find_out(UNIQUE, uneven(Defect::NoRaiseRound));
}

#[test]
fn without_the_raise_round_fences_do_not_rise() {
    find_out(RISING, uneven(Defect::NoRaiseRound));
}

/// The model found this bug in the attempt: a node that had meanwhile granted fence 2 to another
/// client gave 3 to the client that was raising to 2, and both ended up with 2.
#[test]
fn a_larger_straggler_that_counts_for_less_repeats_a_fence() {
    let bounds = uneven(Defect::LargerStragglerCounts);
    find_out(UNIQUE, Bounds { ignores_clocks: true, ..bounds });
}

#[test]
fn an_unconditional_raise_repeats_a_fence() {
    find_out(UNIQUE, Bounds { ignores_clocks: true, ..uneven(Defect::UnconditionalRaise) });
}

#[test]
fn without_quarantine_two_hold_the_lock() {
    find_out(EXCLUSION, Bounds { crashes: 1, defect: Defect::NoQuarantine, ..lean(3, 2) });
}

#[test]
fn without_the_fence_ceiling_fences_repeat() {
    find_out(UNIQUE, Bounds { crashes: 1, defect: Defect::NoFenceCeiling, ..lean(3, 2) });
}

#[test]
fn a_promotion_without_a_jump_repeats_a_fence() {
    let bounds = Bounds { crashes: 1, promotes: true, ..small(3, 2) };
    find_out(UNIQUE, Bounds { defect: Defect::PromotionWithoutJump, ..bounds });
}

#[test]
fn a_raise_that_does_not_persist_breaks_a_promise() {
    let defect = Defect::RaiseWithoutPersisting;
    find_out(ON_DISK, Bounds { start: Start::OneFloor, defect, ..lean(3, 2) });
}

#[test]
#[ignore = "700 000 states: make model"]
fn a_raise_that_does_not_persist_repeats_a_fence_after_a_crash() {
    let defect = Defect::RaiseWithoutPersisting;
    find_out(UNIQUE, Bounds { start: Start::OneFloor, crashes: 1, defect, ..lean(3, 2) });
}

#[test]
fn with_a_quorum_of_reachable_nodes_two_hold_the_lock() {
    find_out(EXCLUSION, Bounds { defect: Defect::QuorumOfReachable, ..lean(3, 2) });
}

#[test]
fn with_a_tie_counted_as_won_two_hold_the_lock() {
    find_out(EXCLUSION, Bounds { defect: Defect::TieIsWon, ..lean(4, 2) });
}

#[test]
fn with_validity_on_the_wall_clock_two_hold_the_lock() {
    find_out(EXCLUSION, Bounds { defect: Defect::ClientWallClock, ..lean(3, 2) });
}

#[test]
fn with_leases_on_the_wall_clock_two_hold_the_lock() {
    find_out(EXCLUSION, Bounds { defect: Defect::NodeWallClock, ..lean(3, 2) });
}

/// A client that respects its validity does not need a confirmation; one that ignores it holds the
/// lock again after its successor.
#[test]
#[ignore = "480 000 states: make model"]
fn a_repair_without_a_confirmation_revives_the_superseded() {
    find_out(SUPERSEDED, Bounds { repairs_everywhere: true, ..revival() });
}

/// Without stragglers: a straggling ACQUIRE of its own could give such a client a new grant after
/// its successor. It would continue with its old fence, and the resource would refuse it.
fn revival() -> Bounds {
    let bounds = Bounds { renewals: 1, renewers: 1, no_stragglers: true, ..lean(3, 2) };
    Bounds { ignores_clocks: true, ..bounds }
}

#[test]
fn a_release_that_overtakes_its_acquire_leaves_a_lease_behind() {
    find_out(RELEASED, Bounds { defect: Defect::Overtaking, ..at_once(3, 2) });
}

/// A reader holds the lock on two nodes of three; the third has granted it to a writer, crashes,
/// and is repaired. The writer wins with that earlier vote, and the reader must not renew with the
/// repair.
#[test]
fn a_repaired_reader_that_counts_in_quarantine_is_not_one_that_is_proved() {
    let bounds = Bounds { renewals: 2, renewers: 1, crashes: 1, ..reading(READER) };
    find_out(PROVED, Bounds { defect: Defect::ProvisionalCounts, ..bounds });
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn a_repaired_reader_that_counts_in_quarantine_reads_beside_a_writer() {
    let bounds = Bounds { renewals: 2, renewers: 1, crashes: 1, ..reading(READER) };
    let bounds = Bounds { start: Start::Uneven, defect: Defect::ProvisionalCounts, ..bounds };
    find_out(EXCLUSION, bounds);
}

#[test]
fn nodes_that_let_readers_in_before_the_writer_reads_let_them_in_beside_a_writer() {
    let bounds = Bounds { renewals: 1, renewers: 1, readers: READER << 1, ..small(3, 2) };
    find_out(EXCLUSION, Bounds { defect: Defect::DowngradesNodesFirst, ..bounds });
}

/// A raise that finds a larger counter is enough for a reader, but not for a writer. A late
/// duplicate gives the writer a lease above its raise target at a node that granted exactly that
/// fence to another client.
#[test]
fn a_writer_that_accepts_more_than_it_raises_to_repeats_a_fence() {
    let network = Network::AnyOrder { duplicates: 1 };
    let bounds = Bounds { network, ignores_clocks: true, ..uneven(Defect::WritersAcceptMore) };
    find_out(UNIQUE, Bounds { replies: Replies::Always, ..bounds });
}

/// The fence that it is given there was stored by another writer.
#[test]
fn a_writer_that_became_a_reader_and_rejoins_has_stored_nothing() {
    let bounds = Bounds { readers: 0, start: Start::OneFloor, ..downgrading() };
    find_out(PROVED, Bounds { defect: Defect::RejoiningStores, ..bounds });
}

/// Each step of the code is checked against the proof in addition to the promises: a mistake is
/// found where it is made, before it has consequences.
#[test]
fn each_broken_node_is_not_the_one_that_is_proved() {
    let crash = Bounds { crashes: 1, ..small(3, 2) };
    let crash_of_a_holder = Bounds { renewals: 2, renewers: 1, ..crash };
    let stale = Bounds { saves: 1, renewals: 1, renewers: 1, keeps_data: true, ..crash };
    for (defect, bounds) in [
        (Defect::ProvisionalCounts, crash_of_a_holder),
        (Defect::ArrivalCounts, Bounds { renewals: 1, renewers: 1, arrivals: 1, ..crash }),
        (Defect::LooselyDated, stale),
        (Defect::NoQuarantine, crash),
        (Defect::NoFenceCeiling, crash),
        (Defect::RaiseWithoutPersisting, Bounds { start: Start::OneFloor, ..small(3, 2) }),
        (Defect::UnconditionalRaise, uneven(Defect::None)),
        (Defect::NoRaiseRound, uneven(Defect::None)),
        (Defect::TieIsWon, lean(4, 2)),
        (Defect::QuorumOfReachable, lean(3, 2)),
        (Defect::ClientWallClock, lean(3, 2)),
        (Defect::NodeWallClock, lean(3, 2)),
        (Defect::PromotionWithoutJump, Bounds { promotes: true, ..crash }),
    ] {
        find_out(PROVED, Bounds { defect, ..bounds });
    }
}

// ----------------------------------------------------------------------------------- sound runs

#[test]
fn two_clients_and_three_nodes_keep_the_promises() {
    let witnesses = &[Witness::WonInOneRound, Witness::WonByRaise, Witness::TooLate];
    sound("replies at once", lean(3, 2), 138_311, witnesses);
}

#[test]
fn clients_that_ignore_their_clocks_are_kept_apart_by_fences() {
    let bounds = Bounds { ignores_clocks: true, has_store: true, ..lean(3, 2) };
    sound("no clocks, fenced store", bounds, 327_600, &[Witness::StoreRefusedAnOldWrite]);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn replies_and_requests_that_come_late_break_no_promise() {
    let witnesses = &[Witness::ZombieGrant, Witness::WonOverALapsedLease, Witness::WonByRaise];
    sound("replies in flight, late requests", Bounds::of(3, 2), 266_440, witnesses);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn uneven_counters_and_ignored_clocks_leave_the_fences_rising() {
    let bounds = Bounds { ignores_clocks: true, has_store: true, ..uneven(Defect::None) };
    let witnesses = &[Witness::StoreRefusedAnOldWrite, Witness::WonByRaise];
    sound("uneven counters, no clocks, fenced store", bounds, 470_925, witnesses);
}

#[test]
fn a_reader_and_a_writer_keep_the_promises() {
    let bounds = Bounds { has_store: true, start: Start::Uneven, ..reading(READER) };
    let witnesses = &[Witness::WonInOneRound, Witness::WonByRaise];
    sound("a reader and a writer, fenced store", bounds, 28_033, witnesses);
}

#[test]
fn a_writer_that_becomes_a_reader_lets_readers_in() {
    let witnesses = &[Witness::ReadBesideAFormerWriter, Witness::Renewed];
    sound("a writer that becomes a reader", downgrading(), 126_046, witnesses);
}

#[test]
fn two_readers_read_together() {
    let bounds = Bounds { start: Start::OneFloor, readers: READERS, ..small(3, 2) };
    sound("two readers", bounds, 91_185, &[Witness::ReadTogether, Witness::WonByRaise]);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn late_reads_and_writes_of_clients_without_clocks_are_refused() {
    let bounds = Bounds { ignores_clocks: true, has_store: true, readers: READER, ..lean(3, 2) };
    let bounds = Bounds { start: Start::Uneven, downgrades: 1, ..bounds };
    let witnesses = &[Witness::StoreRefusedALateRead, Witness::StoreRefusedAnOldWrite];
    sound("a reader and a writer, no clocks, fenced store", bounds, 471_750, witnesses);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn a_crash_under_readers_breaks_no_promise() {
    let bounds = Bounds { renewals: 2, renewers: 1, crashes: 1, ..reading(READER) };
    let witnesses =
        &[Witness::Repaired, Witness::ExtendedInQuarantine, Witness::RefusedInQuarantine];
    sound("a reader renews twice, crash with amnesia", bounds, 2_874_616, witnesses);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn a_reader_that_came_back_with_old_data_breaks_no_promise() {
    let bounds = Bounds { renewals: 1, renewers: 1, crashes: 1, saves: 1, ..reading(READER) };
    let bounds = Bounds { keeps_data: true, ..bounds };
    sound(
        "a reader renews, crash with stale data",
        bounds,
        1_334_474,
        &[Witness::ReleasedLeaseLoaded],
    );
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn a_crash_under_a_writer_that_became_a_reader_breaks_no_promise() {
    let bounds = Bounds { crashes: 1, ..downgrading() };
    let witnesses = &[Witness::ReadBesideAFormerWriter, Witness::Repaired];
    sound("a writer that becomes a reader, crash with amnesia", bounds, 1_249_249, witnesses);
}

/// A sound run exhausts its bounds, violates nothing, counts as many states as before, and reaches
/// its witnesses.
fn sound(name: &str, bounds: Bounds, states: usize, witnesses: &[Witness]) {
    let started_at = Instant::now();
    let checker = World::new(bounds)
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let found = checker.model().witnesses();
    println!(
        "{name}: {} states, {} steps, depth {}, {:.1} s, {found:?}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        started_at.elapsed().as_secs_f32(),
    );
    for (property, path) in checker.discoveries() {
        tell(checker.model(), property, path);
    }
    assert!(checker.discoveries().is_empty(), "{name}");
    assert!(checker.is_done(), "{name}: not exhausted");
    Expected { states, witnesses }.compare(name, checker.unique_state_count(), &found);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn a_crash_that_forgets_everything_breaks_no_promise() {
    let bounds = Bounds { start: Start::OneFloor, crashes: 1, ..lean(3, 2) };
    let witnesses = &[
        Witness::CrashUnderAHolder,
        Witness::RefusedInQuarantine,
        Witness::GrantAboveTheOldCeiling,
    ];
    sound("crash with amnesia", bounds, 2_829_685, witnesses);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn a_crash_that_comes_back_with_old_data_breaks_no_promise() {
    let bounds = Bounds { crashes: 1, saves: 1, ..small(3, 2) };
    sound("crash with stale data", bounds, 329_917, &[Witness::ReleasedLeaseLoaded]);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn a_promoted_replica_breaks_no_promise() {
    let bounds = Bounds { promotes: true, crashes: 1, saves: 1, ..small(3, 2) };
    let witnesses = &[Witness::GrantAboveTheOldCeiling, Witness::RefusedInQuarantine];
    sound("promotion", bounds, 501_699, witnesses);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn crashes_and_ignored_clocks_leave_the_fences_rising() {
    let bounds = Bounds { crashes: 1, ignores_clocks: true, ..lean(3, 2) };
    sound("crash, no clocks", bounds, 1_885_213, &[Witness::GrantAboveTheOldCeiling]);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn a_lease_that_came_back_with_old_data_is_extended_and_breaks_no_promise() {
    let bounds = Bounds { renewals: 1, renewers: 1, crashes: 1, saves: 1, ..small(3, 2) };
    let bounds = Bounds { keeps_data: true, ..bounds };
    let witnesses = &[Witness::ExtendedInQuarantine, Witness::ReleasedLeaseLoaded];
    sound("renewal, crash with stale data", bounds, 2_092_333, witnesses);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn a_lease_that_was_repaired_over_a_crash_is_extended_and_breaks_no_promise() {
    let bounds = Bounds { renewals: 2, renewers: 1, crashes: 1, ..small(3, 2) };
    let witnesses = &[Witness::Repaired, Witness::ExtendedInQuarantine];
    sound("two renewals, crash with amnesia", bounds, 4_006_427, witnesses);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn requests_that_arrive_twice_and_in_any_order_break_no_promise() {
    let network = Network::AnyOrder { duplicates: 1 };
    sound("any order, one duplicate", Bounds { network, ..lean(3, 2) }, 1_046_405, &[]);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn three_clients_and_three_nodes_keep_the_promises() {
    sound(
        "three clients",
        Bounds { start: Start::Uneven, ..small(3, 3) },
        3_520_755,
        &[Witness::SplitVote, Witness::WonByRaise],
    );
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn two_clients_and_five_nodes_keep_the_promises() {
    sound("five nodes", small(5, 2), 921_741, &[Witness::WonByRaise, Witness::WonInOneRound]);
}

/// The proof keeps history that no program knows. Here, states that differ only in history are
/// distinct, so every history is checked against the proof, not just one for each state.
#[test]
fn every_history_is_one_that_is_proved() {
    let bounds = Bounds { start: Start::Uneven, has_history: true, ..small(3, 2) };
    sound("every history", bounds, 25_863, &[Witness::WonByRaise]);
}

/// Searches this many states of a world that is too large, from the start.
fn bounded(name: &str, bounds: Bounds, states: usize) {
    let started_at = Instant::now();
    let checker = World::new(bounds)
        .checker()
        .threads(2)
        .target_state_count(states)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let (found, seconds) = (checker.model().witnesses(), started_at.elapsed().as_secs_f32());
    let (count, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{name}: the first {count} states, depth {depth}, {seconds:.1} s, {found:?}");
    for (property, path) in checker.discoveries() {
        tell(checker.model(), property, path);
    }
    assert!(checker.discoveries().is_empty(), "{name}");
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn worlds_that_are_too_large_break_no_promise_at_first() {
    const STATES: usize = 6_000_000;
    bounded("one renewal each", Bounds { renewals: 1, ..lean(3, 2) }, STATES);
    bounded("repairs, no clocks", revival(), STATES);
    let renewing = Bounds { renewals: 2, renewers: 1, crashes: 1, ..small(3, 2) };
    let uneven = Bounds { start: Start::Uneven, ..renewing };
    bounded("uneven counters, two renewals, a crash", uneven, STATES);
    let lengths = Lengths::Mixed;
    bounded("the same, different ttls", Bounds { lengths, ..uneven }, STATES);
    bounded("two crashes, two renewals", Bounds { crashes: 2, ..renewing }, STATES);
    bounded("two acquisitions each", Bounds { acquisitions: 2, ..small(3, 2) }, STATES);
    let reading = Bounds { start: Start::Uneven, ..reading(READERS) };
    bounded("two readers and a writer", reading, STATES);
    let renewing = Bounds { renewals: 2, renewers: 2, crashes: 1, downgrades: 1, ..reading };
    bounded("the same, two renew, a downgrade, a crash", renewing, STATES);
}

/// Everything at once: three clients, two acquisitions and two renewals each, different ttls, nodes
/// that crash twice, uneven counters, requests and replies late, lost, duplicated and in any order.
fn everything(seed: u64) -> Bounds {
    let lengths =
        [Lengths::Same, Lengths::Mixed, Lengths::LongerRenewals, Lengths::ShorterRenewals];
    let orders = [Network::InOrder, Network::AnyOrder { duplicates: 2 }];
    let starts = [Start::Fresh, Start::Uneven, Start::OneFloor];
    let pick = |among: usize, of: u64| (seed / of % among as u64) as usize;
    let clients = 2 + pick(2, 288);
    let lengths = lengths[pick(4, 6)];
    // The lengths of windows determine which one closes last only if none has closed before.
    let ignores_clocks = pick(4, 24) == 3 && lengths != Lengths::ShorterRenewals;
    Bounds {
        start: starts[pick(3, 1)],
        network: orders[pick(2, 3)],
        lengths,
        ignores_clocks,
        has_store: true,
        acquisitions: 2,
        renewals: 2,
        crashes: 2,
        saves: 2,
        // A superseded client that ignores its clock holds the lock again at a node to which its
        // lease is copied.
        arrivals: if ignores_clocks { 0 } else { 2 },
        // All combinations of readers and writers. In half of the worlds no client changes.
        readers: (seed / 2 % (1 << clients)) as u8,
        downgrades: 2 * pick(2, 1) as u8,
        ..Bounds::of(if pick(3, 96) == 2 { 5 } else { 3 }, clients)
    }
}

/// Walks through this many worlds, with this many steps in each.
fn wander(worlds: u64, steps: usize) {
    let mut taken = std::collections::BTreeSet::new();
    for seed in 0..worlds {
        let world = World::new(everything(seed));
        if let Some(violation) = walk::wander(&world, seed << 32, steps) {
            let property = violation.property;
            violation.tell(&world);
            panic!("world {seed}: {property}");
        }
        taken.extend(world.actions_taken());
    }
    println!("{worlds} worlds, {steps} steps each: {taken:?}");
    // Other runs cover promotions, and no master in the model outlives one. Actions that accompany
    // others are not counted.
    for action in proof::system::ACTIONS {
        let is_elsewhere =
            ["promote", "the old master serves", "persist", "skip"].contains(&action);
        assert!(is_elsewhere || taken.contains(action), "never {action:?}");
    }
}

#[test]
fn walks_through_everything_at_once_break_no_promise() {
    wander(96, 1_000);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn long_walks_through_everything_at_once_break_no_promise() {
    wander(576, 50_000);
}

// ------------------------------------------------------------------------------ waiting in line

/// One client holds the lock, and two more come.
const LINE: line::Bounds = line::Bounds::of(3, 2);
/// A reader holds it, and a writer and a reader come.
const READING_LINE: line::Bounds = line::Bounds { readers: 0b101, ..LINE };
const IN_ORDER: &str = "the oldest gets the lock";
const NOT_OVERTAKEN: &str = "nobody overtakes who stands in line";

fn search_line(bounds: line::Bounds) -> impl Checker<line::World> {
    let checker = line::World::new(bounds).checker().threads(2);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    for (property, path) in checker.discoveries() {
        let last = path.last_state().clone();
        let complaint = checker.model().complaint(&last).unwrap_or_default();
        println!("violated: {property} {complaint}");
        for (index, action) in path.into_actions().into_iter().enumerate() {
            println!("  {:2}. {action:?}", index + 1);
        }
    }
    checker
}

fn sound_line(name: &str, bounds: line::Bounds, states: usize, witnesses: &[line::Witness]) {
    let started_at = Instant::now();
    let checker = search_line(bounds);
    let found = checker.model().witnesses();
    let (count, seconds) = (checker.unique_state_count(), started_at.elapsed().as_secs_f32());
    println!("{name}: {count} states, depth {}, {seconds:.1} s, {found:?}", checker.max_depth());
    assert!(checker.discoveries().is_empty(), "{name}");
    assert!(checker.is_done(), "{name}: not exhausted");
    Expected { states, witnesses }.compare(name, count, &found);
}

#[test]
fn without_reservations_somebody_barges_in() {
    let defect = line::Defect::NoReservation;
    let checker = search_line(line::Bounds { defect, only: Some(NOT_OVERTAKEN), ..LINE });
    assert!(checker.discovery(NOT_OVERTAKEN).is_some());
}

#[test]
fn in_the_order_of_arrival_the_oldest_is_passed_over() {
    let defect = line::Defect::OrderOfArrival;
    let checker = search_line(line::Bounds { defect, only: Some(IN_ORDER), ..LINE });
    assert!(checker.discovery(IN_ORDER).is_some());
}

#[test]
fn a_reader_that_is_let_past_a_waiting_writer_overtakes_it() {
    let defect = line::Defect::ReadersPass;
    let bounds = line::Bounds { defect, only: Some(NOT_OVERTAKEN), ..READING_LINE };
    assert!(search_line(bounds).discovery(NOT_OVERTAKEN).is_some());
}

#[test]
fn readers_and_writers_in_line_get_the_lock_in_order() {
    let bounds = line::Bounds { attempts: 1, ..READING_LINE };
    let witnesses = &[line::Witness::WonWhenWoken, line::Witness::ReadTogether];
    sound_line("readers in line", bounds, 53_423, witnesses);
    let bounds = line::Bounds { readers: 0b011, ..bounds };
    let witnesses = &[line::Witness::WokenTogether, line::Witness::ReadTogether];
    sound_line("two readers behind a writer", bounds, 122_705, witnesses);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn readers_in_line_get_the_lock_when_a_reservation_lapses() {
    let bounds = line::Bounds { attempts: 1, lapses: 1, ..READING_LINE };
    sound_line("readers in line, a reservation lapses", bounds, 157_623, &[]);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn readers_in_line_get_the_lock_when_wakes_are_lost() {
    let bounds = line::Bounds { attempts: 1, lost_wakes: 2, ..READING_LINE };
    sound_line("readers in line, two wakes lost", bounds, 108_907, &[line::Witness::HelpedByTimer]);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn readers_in_line_get_the_lock_when_a_client_dies() {
    let bounds = line::Bounds { attempts: 1, deaths: 1, ..READING_LINE };
    sound_line("readers in line, a client dies", bounds, 134_718, &[]);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn readers_get_the_lock_together_when_a_reservation_lapses() {
    let bounds = line::Bounds { attempts: 1, lapses: 1, readers: 0b011, ..LINE };
    let witnesses = &[line::Witness::WokenTogether];
    sound_line("two readers behind a writer, a reservation lapses", bounds, 345_429, witnesses);
}

#[test]
fn the_oldest_in_line_gets_the_lock() {
    let witnesses =
        &[line::Witness::WonWhenWoken, line::Witness::TakenOver, line::Witness::WokenInVain];
    sound_line("in line", line::Bounds { attempts: 1, ..LINE }, 86_267, witnesses);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn the_oldest_in_line_gets_the_lock_after_many_attempts() {
    sound_line("in line, two attempts", LINE, 2_357_312, &[line::Witness::WonAtOnce]);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn the_oldest_in_line_gets_the_lock_whatever_went_wrong() {
    let bounds = line::Bounds { attempts: 1, ..LINE };
    let helped = &[line::Witness::HelpedByTimer];
    sound_line("a waiter goes away", line::Bounds { cancels: 1, ..bounds }, 1_381_774, &[]);
    sound_line("two wakes lost", line::Bounds { lost_wakes: 2, ..bounds }, 162_332, helped);
    sound_line("a reservation lapses", line::Bounds { lapses: 1, ..bounds }, 286_279, &[]);
    sound_line("a connection breaks", line::Bounds { breaks: 1, ..bounds }, 934_025, &[]);
    sound_line("a client dies", line::Bounds { deaths: 1, ..bounds }, 211_049, &[]);
    sound_line("answers are given up", line::Bounds { gives_up: true, ..bounds }, 868_719, &[]);
}

// ------------------------------------------------------------------- handed over in one round trip

/// One client holds the lock, and two more come.
const HANDOVER: handover::Bounds = handover::Bounds::of(3, 2);

/// Searches to the end, or for at most this many steps. Several steps may lead to the same state.
fn search_handover(bounds: handover::Bounds, most: Option<usize>) -> impl Checker<handover::World> {
    let checker = handover::World::new(bounds).checker().threads(2);
    let checker = match most {
        Some(most) => checker.target_state_count(most),
        None => checker,
    };
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    for (property, path) in checker.discoveries() {
        let complaint = checker.model().complaint(path.last_state());
        println!("violated: {property} {}", complaint.unwrap_or_default());
        for (index, action) in path.into_actions().into_iter().enumerate() {
            println!("  {:2}. {action:?}", index + 1);
        }
    }
    checker
}

/// The number of steps in worlds that are too large for a complete search.
fn handover_steps() -> usize {
    if cfg!(debug_assertions) { 200_000 } else { 2_000_000 }
}

/// Requires that no state violates anything, that there are `states` states (with `None`, only
/// those nearest to the start are searched), and that the search reaches the witnesses.
fn sound_handover(
    name: &str,
    bounds: handover::Bounds,
    states: Option<usize>,
    witnesses: &[handover::Witness],
) {
    let started_at = Instant::now();
    let checker = search_handover(bounds, states.is_none().then(handover_steps));
    let found = checker.model().witnesses();
    let (count, seconds) = (checker.unique_state_count(), started_at.elapsed().as_secs_f32());
    let covered = if states.is_some() { "all" } else { "the first" };
    let depth = checker.max_depth();
    println!("{name}: {covered} {count} states, depth {depth}, {seconds:.1} s, {found:?}");
    assert!(checker.discoveries().is_empty(), "{name}");
    Expected { states: states.unwrap_or(count), witnesses }.compare(name, count, &found);
}

/// What can go wrong when three nodes hand a lock over, the number of states if the search can be
/// completed, and the witnesses that it must reach.
fn handovers() -> [(&'static str, handover::Bounds, Option<usize>, Vec<handover::Witness>); 11] {
    use handover::{Bounds, Start, Witness::*};
    let all = HANDOVER;
    let often = [HandedOver, Split, AskedAgain, ToldTooLate];
    let and = |more: &[handover::Witness]| [&often, more].concat();
    let part = and(&[WokenAndGranted]);
    let older = and(&[WokenAndGranted, WonByAnOlderRequest]);
    let helped = and(&[HelpedByTimer, WonByAnOlderRequest]);
    let old = vec![HandedOver, AskedAgain, ToldTooLate];
    let nobody = Bounds { start: Start::Nobody, ..all };
    [
        ("handed over", all, Some(124_788), and(&[])),
        ("from the start", nobody, Some(127_843), vec![HandedOver, Split]),
        ("an old client", Bounds { new_clients: 0b101, ..all }, Some(52_102), old),
        ("an old node", Bounds { new_nodes: 0b011, ..all }, None, part.clone()),
        ("two messages lost", Bounds { lost_messages: 2, timers: true, ..all }, None, helped),
        ("a reservation lapses", Bounds { lapses: 1, ..all }, None, and(&[])),
        ("a connection breaks", Bounds { breaks: 1, ..all }, None, older.clone()),
        ("a waiter goes away", Bounds { cancels: 1, ..all }, None, part.clone()),
        ("a waiter hangs", Bounds { hangs: 1, ..all }, None, part),
        ("validities end", Bounds { ends: 2, asks: 2, timers: true, ..all }, None, older),
        ("among three", Bounds { clients: 3, ..all }, None, and(&[])),
    ]
}

#[test]
fn a_lock_is_handed_over_to_the_oldest_in_line() {
    for (name, bounds, states, witnesses) in handovers() {
        sound_handover(&format!("three nodes, {name}"), bounds, states, &witnesses);
    }
}

/// Requires that the search finds a state that violates this property.
fn must_fail(defect: handover::Defect, bounds: handover::Bounds, property: &'static str) {
    let bounds = handover::Bounds { defect, only: Some(property), ..bounds };
    assert!(search_handover(bounds, Some(5_000_000)).discovery(property).is_some(), "{defect:?}");
}

const ONE_NODE: handover::Bounds = handover::Bounds {
    nodes: 1,
    asks: 2,
    timers: true,
    start: handover::Start::Nobody,
    ..HANDOVER
};

#[test]
fn a_validity_from_the_newest_request_gives_two_holders() {
    let bounds = handover::Bounds { ends: 2, ..ONE_NODE };
    must_fail(handover::Defect::CountsFromTheNewest, bounds, EXCLUSION);
}

#[test]
fn a_message_that_does_not_say_for_which_request_it_is_gives_two_holders() {
    let bounds = handover::Bounds { ends: 2, ..ONE_NODE };
    must_fail(handover::Defect::SaysNoNumber, bounds, EXCLUSION);
}

#[test]
fn a_grant_that_is_handed_on_after_it_was_published_gives_two_holders() {
    let bounds = handover::Bounds { breaks: 1, ..ONE_NODE };
    must_fail(handover::Defect::HandsOn, bounds, EXCLUSION);
}

#[test]
fn a_token_that_counts_where_its_release_was_sent_gives_two_holders() {
    let bounds = handover::Bounds { nodes: 2, ..ONE_NODE };
    must_fail(handover::Defect::CountsAfterRelease, bounds, EXCLUSION);
}

#[test]
fn if_waiters_that_lost_keep_their_parts_nobody_gets_the_lock() {
    let bounds = handover::Bounds { nodes: 2, ..HANDOVER };
    must_fail(handover::Defect::KeepsItsPart, bounds, IN_ORDER);
}

#[test]
fn with_every_rule_one_or_two_nodes_have_one_holder() {
    use handover::{Bounds, Witness::*};
    let often = [HandedOver, AskedAgain, WonByAnOlderRequest];
    let bounds = Bounds { ends: 2, ..ONE_NODE };
    sound_handover("one node, validities end", bounds, Some(8_694), &often);
    let bounds = Bounds { breaks: 1, ..ONE_NODE };
    sound_handover("one node, a connection breaks", bounds, Some(3_406), &often);
    let bounds = Bounds { nodes: 2, ..ONE_NODE };
    let witnesses = [HandedOver, Split, WokenAndGranted, AskedAgain, ToldTooLate];
    sound_handover("two nodes", bounds, None, &witnesses);
}

// ------------------------------------------------------------------------------ after a failover

/// A master with two replicas.
const GROUP: authority::Bounds = authority::Bounds {
    nodes: 3,
    before: &[],
    changes: 1,
    support: 1,
    ttl: 1,
    carries: false,
    lower_ttl: None,
    goes_on: false,
    defect: authority::Defect::None,
};
/// A pair whose settings are lowered. The second node restarts and replaces the first.
const LOWERED: authority::Bounds =
    authority::Bounds { nodes: 2, changes: 3, ttl: 5, lower_ttl: Some(1), ..GROUP };
/// The same, but a longer lease is still live, and the second node comes back.
const TOLD_AGAIN: authority::Bounds = authority::Bounds {
    before: &[
        authority::Action::Grant(0),
        authority::Action::Lower,
        authority::Action::RestartReplica(1),
        authority::Action::Attach(0, 1),
    ],
    changes: 2,
    goes_on: true,
    ..LOWERED
};
/// One replica has replaced the master, and the other follows it; the old master does not know.
const REPLACED: authority::Bounds = authority::Bounds {
    before: &[
        authority::Action::Follow(1, 2),
        authority::Action::Promote(2),
        authority::Action::Attach(2, 1),
    ],
    ..GROUP
};

fn search_authority(bounds: authority::Bounds) -> impl Checker<authority::World> {
    let checker = authority::World::new(bounds).checker().threads(2);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    for (property, path) in checker.discoveries() {
        println!("violated: {property}, after {} states", checker.unique_state_count());
        for (index, action) in path.into_actions().into_iter().enumerate() {
            println!("  {:2}. {action:?}", index + 1);
        }
    }
    checker
}

fn sound_authority(name: &str, bounds: authority::Bounds, states: usize) {
    let carried = bounds.carries.then_some(authority::Witness::Carried);
    let started_at = Instant::now();
    let checker = search_authority(bounds);
    let found = checker.model().witnesses();
    let (count, seconds) = (checker.unique_state_count(), started_at.elapsed().as_secs_f32());
    println!("{name}: {count} states, depth {}, {seconds:.1} s, {found:?}", checker.max_depth());
    assert!(checker.discoveries().is_empty(), "{name}");
    assert!(checker.is_done(), "{name}: not exhausted");
    let mut witnesses = vec![
        authority::Witness::GrantedAfterPromotion,
        authority::Witness::Resumed,
        authority::Witness::WaitedAgain,
        authority::Witness::OldMasterDecided,
    ];
    witnesses.extend(carried);
    witnesses.extend(bounds.goes_on.then_some(authority::Witness::AcknowledgedAgain));
    witnesses.extend(bounds.lower_ttl.map(|_| authority::Witness::GrantedAfterLowering));
    Expected { states, witnesses: &witnesses }.compare(name, count, &found);
}

/// A broken variant must give the lock to two holders.
fn doubles(bounds: authority::Bounds) {
    let checker = search_authority(bounds);
    assert!(checker.discovery("mutual exclusion").is_some(), "{bounds:?} was not found out");
}

#[test]
fn only_one_of_a_pair_decides() {
    sound_authority("a pair", authority::Bounds { nodes: 2, changes: 3, ..GROUP }, 29_177);
}

#[test]
fn only_one_node_decides_after_a_failover() {
    sound_authority("after a failover", authority::Bounds { changes: 0, ..REPLACED }, 11_476);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn only_one_of_a_pair_decides_after_many_changes() {
    let bounds = authority::Bounds { nodes: 2, changes: 6, support: 2, ttl: 2, ..GROUP };
    sound_authority("a pair, many changes", bounds, 137_504);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn only_one_node_decides_after_two_changes() {
    sound_authority("two changes of roles", authority::Bounds { changes: 2, ..GROUP }, 17_134_437);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn only_one_node_decides_after_a_failover_and_a_change() {
    sound_authority("a failover and a change", REPLACED, 634_713);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn only_one_node_decides_with_longer_leases() {
    let bounds = authority::Bounds { changes: 0, support: 2, ttl: 2, ..REPLACED };
    sound_authority("after a failover, longer leases", bounds, 18_640);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn only_one_of_four_nodes_decides() {
    let before = &[
        authority::Action::Follow(1, 2),
        authority::Action::Follow(3, 2),
        authority::Action::Promote(2),
        authority::Action::Attach(2, 1),
        authority::Action::Attach(2, 3),
    ];
    let bounds = authority::Bounds { nodes: 4, changes: 0, before, ..GROUP };
    sound_authority("four nodes after a failover", bounds, 2_375_032);
}

#[test]
fn a_pair_carries_leases_over_a_failover() {
    let bounds = authority::Bounds { nodes: 2, changes: 2, ttl: 3, carries: true, ..GROUP };
    sound_authority("a pair that carries leases", bounds, 39_298);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn a_group_carries_leases_over_a_failover_and_a_change() {
    let bounds = authority::Bounds { ttl: 3, carries: true, ..REPLACED };
    sound_authority("a group that carries leases", bounds, 1_758_514);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn a_group_carries_leases_over_a_failover() {
    let bounds = authority::Bounds { ttl: 4, changes: 0, carries: true, ..REPLACED };
    sound_authority("a group that carries leases after a failover", bounds, 43_068);
}

#[test]
fn restarts_after_the_settings_were_lowered_forget_no_longest_lease() {
    let bounds = authority::Bounds { changes: 2, ttl: 3, ..LOWERED };
    sound_authority("a pair whose settings are lowered", bounds, 973_867);
}

#[test]
#[ignore = "3 500 000 states: make model"]
fn more_restarts_after_the_settings_were_lowered_forget_no_longest_lease() {
    sound_authority("a pair whose settings are lowered, more restarts", LOWERED, 3_507_211);
}

#[test]
fn only_one_of_a_pair_decides_that_goes_on_where_it_was() {
    let bounds = authority::Bounds { nodes: 2, changes: 3, goes_on: true, ..GROUP };
    sound_authority("a pair that goes on", bounds, 34_301);
}

#[test]
#[ignore = "minutes in a release build: make model"]
fn only_one_node_decides_where_replicas_go_on() {
    let bounds = authority::Bounds { goes_on: true, ..REPLACED };
    sound_authority("a failover and a change, going on", bounds, 646_483);
}

#[test]
fn what_was_said_long_ago_hides_no_longest_lease() {
    sound_authority("a pair that is told again", TOLD_AGAIN, 1_174_402);
}

#[test]
fn what_is_heard_may_have_been_said_long_ago() {
    let defect = authority::Defect::BelievesTheLastHeartbeat;
    doubles(authority::Bounds { defect, ..TOLD_AGAIN });
}

#[test]
fn a_restart_remembers_the_longest_lease() {
    doubles(authority::Bounds { defect: authority::Defect::ForgetsLongest, ..LOWERED });
}

#[test]
fn a_lease_is_carried_only_with_authority_and_while_its_holder_relies_on_it() {
    for defect in [authority::Defect::CarriesWithoutAuthority, authority::Defect::CarriesLate] {
        doubles(authority::Bounds { defect, ttl: 3, changes: 0, carries: true, ..REPLACED });
    }
}

#[test]
fn support_counts_from_the_sending() {
    // The new master has processed a heartbeat of the old one, which does not know that yet.
    let before = &[
        authority::Action::Tick,
        authority::Action::Process(0, 2),
        authority::Action::Follow(1, 2),
        authority::Action::Promote(2),
        authority::Action::Attach(2, 1),
    ];
    let defect = authority::Defect::SupportFromReceipt;
    doubles(authority::Bounds { defect, changes: 0, before, ..GROUP });
}

#[test]
fn newcomers_do_not_count_at_once() {
    let defect = authority::Defect::NewcomersAtOnce;
    doubles(authority::Bounds { defect, changes: 0, support: 2, ..REPLACED });
}

#[test]
fn a_wait_starts_again_after_a_lapse() {
    doubles(authority::Bounds { defect: authority::Defect::WaitPauses, ..REPLACED });
}

#[test]
fn a_lapse_is_followed_by_a_wait() {
    doubles(authority::Bounds { defect: authority::Defect::NoWaitAfterLoss, ..REPLACED });
}

#[test]
fn what_came_with_the_data_does_not_count_without_authority() {
    doubles(authority::Bounds { defect: authority::Defect::ExtendsCopies, ..GROUP });
}

#[test]
fn one_supporter_too_few_is_too_few() {
    doubles(authority::Bounds { defect: authority::Defect::OneTooFew, ..GROUP });
}

#[test]
fn a_new_master_waits() {
    doubles(authority::Bounds {
        defect: authority::Defect::NoWait,
        changes: 0,
        ttl: 2,
        ..REPLACED
    });
}

/// The first of three masters, and a fourth, come to believe that they are all.
const DRIFTING: electorate::Bounds = electorate::Bounds {
    beliefs: &[&[&[0, 1, 2], &[0, 3]], &[&[0, 1, 2]], &[&[0, 1, 2]], &[&[0, 1, 2], &[0, 3]]],
    begins: false,
    meet: false,
    starts: 0,
    loses: false,
    deaths: 0,
    mistakes: 0,
    removals: 0,
    are_late: true,
    replicas: &[],
    ending: None,
    defect: electorate::Defect::None,
};
/// All of five come to believe different things.
const DIVIDED: electorate::Bounds = electorate::Bounds {
    beliefs: &[
        &[&[0, 1, 2], &[0, 3]],
        &[&[0, 1, 2], &[1, 4], &[0, 3]],
        &[&[0, 1, 2], &[2, 3, 4]],
        &[&[0, 1, 2], &[0, 3], &[1, 2, 3]],
        &[&[0, 1, 2], &[1, 4], &[2, 3, 4]],
    ],
    ..DRIFTING
};

/// Two masters of another Cluster meet those of this one.
const MEETING: electorate::Bounds = electorate::Bounds {
    beliefs: &[
        &[&[0, 1, 2], &[0, 1], &[0, 1, 2, 3, 4]],
        &[&[0, 1, 2], &[0, 1]],
        &[&[0, 1, 2], &[2, 3, 4], &[0, 1, 2, 3, 4]],
        &[&[3, 4], &[2, 3, 4]],
        &[&[3, 4], &[2, 3, 4]],
    ],
    meet: true,
    ..DRIFTING
};
/// All masters of a new Cluster come to believe that other ones have slots.
const BEGINNING: electorate::Bounds = electorate::Bounds {
    beliefs: &[
        &[&[0], &[0, 1], &[1, 2]],
        &[&[0], &[1], &[0, 1, 2]],
        &[&[0], &[1, 2], &[0, 3]],
        &[&[3], &[0, 3]],
    ],
    begins: true,
    ..DRIFTING
};

const TWO_TAKE_TURNS: &[&[u8]] = &[&[0, 1], &[2, 1], &[0, 1]];
const ONE_TAKES_TURNS: &[&[u8]] = &[&[0], &[1], &[0]];
/// A master is replaced, and takes its place again; then all masters are lost. A replica that has
/// heard of nobody goes by nobody's vote.
const REPLACED_BY_FORCE: electorate::Bounds = electorate::Bounds {
    beliefs: &[TWO_TAKE_TURNS; 5],
    meet: true,
    replicas: &[0, 1, 2, 3, 4],
    ending: Some(electorate::Ending { lost: &[0, 1], successors: &[2, 3], away: 4 }),
    ..DRIFTING
};
/// The same with one master; who had its place is away when it is lost.
const ALONE: electorate::Bounds = electorate::Bounds {
    beliefs: &[ONE_TAKES_TURNS; 4],
    ending: Some(electorate::Ending { lost: &[0], successors: &[2, 3], away: 1 }),
    ..REPLACED_BY_FORCE
};

fn replace_by_force(walks: u64, defect: electorate::Defect) -> Option<Vec<electorate::Action>> {
    [REPLACED_BY_FORCE, ALONE].into_iter().find_map(|bounds| {
        let faults = [(0, 0, false), (0, 0, true), (2, 0, true), (2, 1, true)].into_iter();
        // Whoever forgets the only voter has been told that nobody has a vote.
        let may_err = bounds.beliefs[0][0].len() > 1;
        faults.filter(|(_, mistakes, _)| may_err || *mistakes == 0).find_map(
            |(starts, mistakes, are_late)| {
                let bounds = electorate::Bounds { starts, mistakes, are_late, defect, ..bounds };
                electorate::World::new(bounds).wander(walks)
            },
        )
    })
}

#[test]
fn those_who_take_over_from_all_masters_decide_again() {
    let found = replace_by_force(250, electorate::Defect::None);
    assert!(found.is_none(), "{found:?}");
}

#[test]
#[ignore = "takes minutes; `make model` runs it"]
fn those_who_take_over_from_all_masters_decide_again_in_many_walks() {
    let found = replace_by_force(10_000, electorate::Defect::None);
    assert!(found.is_none(), "{found:?}");
}

#[test]
fn replicas_that_hear_nothing_are_found_out() {
    assert!(replace_by_force(250, electorate::Defect::ReplicasHearNothing).is_some());
}

fn wander_among_electorates(walks: u64) {
    for bounds in [DRIFTING, DIVIDED, MEETING, BEGINNING] {
        for (starts, loses, deaths, mistakes, removals, are_late) in [
            (0, false, 0, 0, 0, false),
            (0, false, 0, 0, 0, true),
            (2, false, 0, 0, 0, true),
            (3, true, 0, 0, 0, false),
            (0, false, 3, 0, 0, true),
            (2, false, 2, 0, 0, true),
            (2, false, 0, 1, 0, true),
            (4, false, 1, 0, 1, true),
        ] {
            let bounds = electorate::Bounds { starts, loses, deaths, mistakes, ..bounds };
            let bounds = electorate::Bounds { removals, are_late, ..bounds };
            let world = electorate::World::new(bounds);
            let found = world.wander(walks);
            assert!(found.is_none(), "{bounds:?}: {found:?}");
            assert_eq!(world.unwitnessed(), [], "{bounds:?}");
        }
    }
}

#[test]
fn masters_that_have_a_majority_share_a_voter() {
    wander_among_electorates(250);
}

#[test]
#[ignore = "takes minutes; `make model` runs it"]
fn masters_that_have_a_majority_share_a_voter_in_many_walks() {
    wander_among_electorates(20_000);
}

/// A broken variant must let two masters decide that share no voter.
#[track_caller]
fn divides(defect: electorate::Defect) {
    let (starts, loses, removals) = match defect {
        electorate::Defect::Forgets => (4, false, 0),
        electorate::Defect::KeepsItsLife => (4, true, 0),
        electorate::Defect::ReturnsAlone => (2, false, 1),
        _ => (0, false, 0),
    };
    let is_of_two = defect == electorate::Defect::OneOrigin;
    let bounds = if is_of_two { MEETING } else { DIVIDED };
    let bounds = electorate::Bounds { defect, starts, loses, removals, are_late: false, ..bounds };
    let found = electorate::World::new(bounds).wander(20_000);
    let steps = found.unwrap_or_else(|| panic!("{defect:?} was not found out"));
    println!("{defect:?}: {} steps", steps.len());
}

#[test]
fn masters_that_count_whom_they_see_are_found_out() {
    divides(electorate::Defect::CountsWhomItSees);
}

#[test]
fn masters_that_count_only_the_first_electorate_are_found_out() {
    divides(electorate::Defect::CountsTheFirst);
}

#[test]
fn masters_that_go_over_at_once_are_found_out() {
    divides(electorate::Defect::TakesOverAtOnce);
}

#[test]
fn masters_that_hide_other_electorates_are_found_out() {
    divides(electorate::Defect::HidesTheNext);
}

#[test]
fn masters_that_tell_only_the_latest_electorate_are_found_out() {
    divides(electorate::Defect::TellsOnlyTheLatest);
}

#[test]
fn masters_whose_start_forgets_electorates_are_found_out() {
    divides(electorate::Defect::Forgets);
}

#[test]
fn masters_that_vote_although_they_have_lost_their_state_file_are_found_out() {
    divides(electorate::Defect::KeepsItsLife);
}

#[test]
fn masters_that_are_replaced_by_those_of_another_cluster_are_found_out() {
    divides(electorate::Defect::OneOrigin);
}

#[test]
fn masters_that_were_removed_and_begin_alone_are_found_out() {
    divides(electorate::Defect::ReturnsAlone);
}

// ----------------------------------------------------------------------- how long leases may stand

/// The slot goes to the second master, whose setting does not allow the leases of the first one,
/// and back.
const SUCCEEDING: lengths::Bounds = lengths::Bounds {
    turns: 6,
    settings: 3,
    starts: 3,
    cut: &[],
    before: &[],
    defect: lengths::Defect::None,
};

const UNCUT: &[(usize, usize)] = &[];
/// The masters cannot ask each other.
const APART: &[(usize, usize)] = &[(0, 1), (1, 0)];

fn wander_among_lengths(walks: u64) {
    for (settings, starts, cut) in [(0, 0, UNCUT), (3, 0, UNCUT), (0, 3, UNCUT), (3, 3, APART)] {
        let bounds = lengths::Bounds { settings, starts, cut, ..SUCCEEDING };
        let world = lengths::World::new(bounds);
        let found = world.wander(walks);
        assert!(found.is_none(), "{bounds:?}: {found:?}");
        assert_eq!(world.witnesses(), lengths::Witness::ALL, "{bounds:?}");
    }
}

#[test]
fn who_succeeds_a_master_waits_for_its_leases() {
    wander_among_lengths(8_000);
}

#[test]
#[ignore = "takes minutes; `make model` runs it"]
fn who_succeeds_a_master_waits_for_its_leases_in_many_walks() {
    wander_among_lengths(1_000_000);
}

/// A broken variant must grant while a lease of the other master stands, some time after the slot
/// has gone to it.
#[track_caller]
fn forgets(
    defect: lengths::Defect,
    cut: &'static [(usize, usize)],
    before: &'static [lengths::Action],
) {
    let bounds = lengths::Bounds { cut, before, ..SUCCEEDING };
    assert_eq!(lengths::World::new(bounds).wander(1_000), None, "{before:?}");
    let found = lengths::World::new(lengths::Bounds { defect, ..bounds }).wander(20_000);
    let steps = found.unwrap_or_else(|| panic!("{defect:?} was not found out"));
    println!("{defect:?}: {} steps", steps.len());
}

#[test]
fn a_master_that_goes_by_its_own_setting_is_found_out() {
    use lengths::Action::*;

    let before = &[Ask(0, 0), Ask(0, 2), Grant(0), Turn(2), Turn(1), Turn(0)];
    forgets(lengths::Defect::GoesByItsSetting, UNCUT, before);
}

#[test]
fn a_voter_whose_start_forgets_how_long_leases_stand_is_found_out() {
    use lengths::Action::*;

    let before = &[Ask(0, 0), Ask(0, 2), Grant(0), Start(2), Turn(2), Turn(1), Turn(0)];
    forgets(lengths::Defect::Forgets, APART, before);
}

#[test]
fn a_voter_that_tells_nothing_of_what_it_remembers_is_found_out() {
    use lengths::Action::*;

    let before = &[Ask(0, 0), Ask(0, 2), Grant(0), Turn(2), Turn(1), Turn(0)];
    forgets(lengths::Defect::TellsNothing, APART, before);
}

#[test]
fn a_voter_that_counts_what_is_said_last_is_found_out() {
    use lengths::Action::*;

    let granted = &[Ask(0, 0), Ask(0, 2), Grant(0), Set(0), Ask(0, 2), Turn(2)];
    forgets(lengths::Defect::CountsTheLast, APART, granted);
}

#[test]
fn a_master_that_raises_its_setting_at_once_is_found_out() {
    use lengths::Action::*;

    let before = &[Set(0), Ask(0, 0), Ask(0, 2), Set(0), Grant(0), Turn(2), Turn(1), Turn(0)];
    forgets(lengths::Defect::RaisesAtOnce, APART, before);
}

#[test]
fn a_master_that_forgets_what_it_says_itself_is_found_out() {
    use lengths::Action::*;

    let before = &[Ask(0, 0), Ask(0, 2), Grant(0), Turn(1), Turn(0)];
    forgets(lengths::Defect::ForgetsItself, &[(1, 2)], before);
}
