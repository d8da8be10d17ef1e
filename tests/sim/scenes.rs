//! Scripted runs: events that are too rare in a storm.
//!
//! The client, the nodes and the judge are those of the storm. A seed chooses each node's part, the
//! length of leases and delays, how nodes stop, and what they keep.

use std::sync::Arc;
use std::time::Duration;

use lockmod::client::{Guard, Locker};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::clients::name;
use crate::nemesis::{Fall, bring, restart};
use crate::net::{Flow, Net};
use crate::node::{Defect, End, Node};
use crate::stage::Stage;
use crate::world::Process;
use crate::{OVERLAP, Outcome, Setup, VOUCHES, judge, must_be_caught_in, settle, to_the_end};

const SEEDS: u64 = 40;
pub(crate) const TICK: Duration = Duration::from_millis(1);

pub(crate) fn calm(seed: u64, defect: Defect) -> Setup {
    Setup {
        programs: 2,
        tasks: 1,
        delay_ms: 1 + seed % 3,
        is_gentle: false,
        is_forced: false,
        old_node: None,
        max_waiters: 1_000,
        lost_calls: 0,
        defect,
        ..Setup::alone(seed)
    }
}

pub(crate) fn millis(random: &mut StdRng, from: u64, to: u64) -> Duration {
    Duration::from_millis(random.random_range(from..=to))
}

/// Waits until a condition holds, for at most `limit`; the scene continues either way.
pub(crate) async fn until(net: &Arc<Net>, limit: u64, is_so: impl Fn(&[Node]) -> bool) {
    let deadline = Instant::now() + Duration::from_millis(limit);
    while !is_so(&net.universe().nodes) && Instant::now() < deadline {
        sleep(TICK).await;
    }
}

pub(crate) fn holds(node: &Node) -> bool {
    !node.held_tokens().is_empty()
}

/// A vote from before a crash, and a repair after it.
///
/// The first holder has two of three nodes. The second holder has the vote of the third node, which
/// crashes and accepts the first holder's repair. Then the first holder is cut off from one of its
/// nodes, and the second holder's request arrives there after the lease has ended. In a variant,
/// the third node does not receive a repair; instead, an operator copies the first holder's lease
/// to it.
async fn duel(seed: u64, is_brought: bool, defect: Defect) -> Outcome {
    let mut random = StdRng::seed_from_u64(seed ^ 0x6475_656c);
    let (nodes, locks, uneven, timeouts_ms) = (3, 1, 0, [45, 330, 90]);
    let setup = Setup { nodes, locks, uneven, timeouts_ms, ..calm(seed, defect) };
    let stage = Stage::new(setup);
    let net = &stage.net;
    let first = random.random_range(0..3);
    let (late, fallen) = ((first + 1) % 3, (first + 2) % 3);
    // The fences then agree without a raise.
    net.universe().nodes[fallen].raise_floor(2);
    for locker in &stage.lockers {
        locker.info(name(0)).await;
    }
    net.set_flow((0, fallen), Flow::Hold, Flow::Pass);
    net.set_flow((1, late), Flow::Hold, Flow::Pass);
    let ttl = millis(&mut random, 150, 170);
    let one = stage.client(0, 0).keep(ttl, Duration::from_secs(1));
    let one = stage.processes[0].spawn(one);
    until(net, 100, |nodes| holds(&nodes[first]) && holds(&nodes[late])).await;
    let long = millis(&mut random, 5_000, 20_000);
    let other = stage.processes[1].spawn(stage.client(1, 0).keep(long, Duration::from_secs(1)));
    until(net, 100, |nodes| holds(&nodes[fallen])).await;
    // The vote is on its way to the second.
    sleep(TICK * 10).await;
    let fall = Fall { end: End::Killed, loses_data: true, down: Duration::ZERO };
    restart(Arc::clone(net), fallen, fall).await;
    if is_brought {
        bring(net, &name(0), (first, fallen));
    }
    net.set_flow((0, fallen), Flow::Pass, Flow::Pass);
    until(net, 150, |nodes| nodes[fallen].repaired + nodes[fallen].restored > 0).await;
    net.set_flow((0, late), Flow::Hold, Flow::Pass);
    until(net, 200, |nodes| !holds(&nodes[late])).await;
    net.set_flow((1, late), Flow::Pass, Flow::Pass);
    both_end(&stage, [one, other]).await
}

/// An acquire that arrives after the repair of its lease.
///
/// One node is a fence ahead. It grants the first holder's request late, after that holder has won
/// with a smaller fence; so it has issued the fence with which the second holder wins at the other
/// nodes. The second holder's request to it is slow, and the connection breaks. Over the next
/// connection, the second holder repairs its lease there with its own fence, because the node has
/// not issued a larger one. Then the request arrives, and the reply contains that fence, which the
/// first holder has stored.
async fn outrun(seed: u64) -> Outcome {
    let mut random = StdRng::seed_from_u64(seed ^ 0x6f75_7472);
    let (nodes, locks, uneven, timeouts_ms) = (3, 1, 0, [330; 3]);
    let setup = Setup { nodes, locks, uneven, timeouts_ms, ..calm(seed, Defect::None) };
    let stage = Stage::new(setup);
    let net = &stage.net;
    let away = random.random_range(0..3);
    // It has issued one fence more than the others.
    net.universe().nodes[away].raise_floor(2);
    for locker in &stage.lockers {
        locker.info(name(0)).await;
    }
    let keep = |program: usize, ttl: u64, length: u64| {
        let (ttl, length) = (Duration::from_millis(ttl), Duration::from_millis(length));
        stage.processes[program].spawn(stage.client(program, 0).keep(ttl, length))
    };
    net.set_flow((0, away), Flow::Hold, Flow::Pass);
    let one = keep(0, 2_000, 600);
    let others = |nodes: &[Node]| (0..3).filter(|n| *n != away).all(|n| holds(&nodes[n]));
    until(net, 100, others).await;
    // The answers are on their way to the first.
    sleep(TICK * 10).await;
    net.set_flow((0, away), Flow::Pass, Flow::Pass);
    until(net, 1_000, |nodes| nodes.iter().all(holds)).await;
    until(net, 2_000, |nodes| !nodes.iter().any(holds)).await;
    let late = millis(&mut random, 1_200, 1_500);
    net.set_slow((1, away), late);
    let other = keep(1, 2_000, 1_900);
    until(net, 400, others).await;
    sleep(TICK * 10).await;
    net.set_slow((1, away), Duration::ZERO);
    net.cut((1, away));
    both_end(&stage, [one, other]).await
}

/// An address leads to another address's server while the first client acquires a lock, but no
/// longer when the second one does. The first client cannot reach its third node.
async fn mislead(seed: u64, defect: Defect) -> Outcome {
    let mut random = StdRng::seed_from_u64(seed ^ 0x6d69_736c);
    let (nodes, locks, uneven, timeouts_ms) = (3, 1, 0, [330; 3]);
    let stage = Stage::new(Setup { nodes, locks, uneven, timeouts_ms, ..calm(seed, defect) });
    let net = &stage.net;
    let server = random.random_range(0..3);
    let (address, away) = ((server + 1) % 3, (server + 2) % 3);
    net.lead(address, server);
    net.set_refuses((0, away), true);
    let mut keep = |program| {
        let ttl = millis(&mut random, 2_000, 5_000);
        let keep = stage.client(program, 0).keep(ttl, Duration::from_secs(1));
        stage.processes[program].spawn(keep)
    };
    let one = keep(0);
    until(net, 300, |nodes| holds(&nodes[server])).await;
    // Gives all replies time to arrive.
    sleep(TICK * 50).await;
    net.lead(address, address);
    let other = keep(1);
    both_end(&stage, [one, other]).await
}

/// One node after another goes down, possibly for longer than a lease, while one client holds its
/// lock and others lock other names.
async fn roll(seed: u64, defect: Defect) -> Outcome {
    let mut random = StdRng::seed_from_u64(seed ^ 0x726f_6c6c);
    let setup = calm(seed, defect);
    let nodes = if setup.nodes == 1 { 3 } else { setup.nodes };
    let setup = Setup { nodes, locks: 2, timeouts_ms: [90; 3], storm_ms: 0, ..setup };
    let stage = Stage::new(setup);
    let ttl = millis(&mut random, 1_000, 6_000);
    let holder = stage.lockers[0].acquire(name(0)).ttl(ttl).await.expect("nothing is wrong yet");
    let waiter = stage.lockers[1].acquire(name(0)).ttl(ttl).wait(Duration::from_secs(3_600));
    let waiter = stage.processes[1].spawn(async move { drop(waiter.await) });
    let locker = stage.lockers[1].clone();
    let log = Arc::clone(&stage.log);
    let others = stage.processes[1].spawn(async move {
        while !log.notes().is_over {
            if let Ok(guard) = locker.acquire(name(1)).await {
                let _ = guard.release().await;
            }
            sleep(Duration::from_millis(50)).await;
        }
    });
    renewal(ttl).await;
    let first = random.random_range(0..nodes);
    for step in 0..nodes {
        let node = (first + step) % nodes;
        let end = match random.random_range(0..4) {
            0 | 1 => End::Killed,
            2 => End::Shutdown { saves: true },
            _ => End::Shutdown { saves: false },
        };
        let down = if random.random_bool(0.5) { millis(&mut random, 0, 3_000) } else { ttl * 8 };
        let fall = Fall { end, loses_data: random.random_bool(0.4), down };
        restart(Arc::clone(&stage.net), node, fall).await;
        until(&stage.net, 60_000, |nodes| !nodes[node].is_in_quarantine()).await;
        renewal(ttl).await;
        complain_if_lost(&stage, &holder, step);
        complain_if_out_of_line(&stage, node, ttl).await;
    }
    waiter.abort();
    stage.log.notes().is_over = true;
    others.await.expect("no task panics");
    let _ = holder.release().await;
    end(&stage).await
}

/// All nodes stop answering a holder. Returns how much of its validity is left when it learns of
/// the loss.
async fn told(seed: u64) -> (Duration, Duration) {
    let mut random = StdRng::seed_from_u64(seed ^ 0x746f_6c64);
    let stage = Stage::new(calm(seed, Defect::None));
    let ttl = millis(&mut random, 1_000, 20_000);
    let guard = stage.lockers[0].acquire(name(0)).ttl(ttl).await.expect("nothing is wrong yet");
    for node in 0..stage.setup.nodes {
        stage.net.set_flow((0, node), Flow::Discard, Flow::Discard);
    }
    guard.lost().await;
    (guard.validity(), (ttl / 10).min(Duration::from_secs(1)))
}

/// A quorum of nodes is in quarantine while clients wait for a lock: none of them makes more than
/// `attempts_max` attempts in four seconds.
async fn wait_out(seed: u64, attempts_max: u64, defect: Defect) -> Outcome {
    let (nodes, programs, locks) = (5, 3, 1);
    let setup = Setup { nodes, programs, locks, storm_ms: 0, ..calm(seed, defect) };
    let stage = Stage::new(setup);
    for node in 0..nodes {
        let fall = Fall { end: End::Killed, loses_data: true, down: Duration::ZERO };
        restart(Arc::clone(&stage.net), node, fall).await;
    }
    let began = Instant::now();
    let wait = |(process, locker): (&Arc<Process>, &Locker)| {
        let locker = locker.clone();
        process.spawn(async move {
            let acquire = locker.acquire(name(0)).ttl(Duration::from_secs(30));
            let guard = acquire.wait(Duration::from_secs(120)).await.expect("it ends");
            let _ = guard.release().await;
        })
    };
    let waits: Vec<_> = stage.processes.iter().zip(&stage.lockers).map(wait).collect();
    until(&stage.net, 60_000, |nodes| !nodes.iter().any(Node::is_in_quarantine)).await;
    let most = stage.lockers.iter().map(|locker| locker.stats().attempts).max();
    let (most, spans) = (most.unwrap_or_default(), began.elapsed().as_secs().div_ceil(4));
    if most == 0 || most > attempts_max * spans {
        let text = format!("{PACE}: {most} attempts, {:?}", stage.setup);
        stage.log.notes().complaints.push(text);
    }
    for wait in waits {
        wait.await.expect("no task panics");
    }
    end(&stage).await
}

/// Readers come and go, so that there is always one, and a writer comes. All are tasks of one
/// program: the order of service is only as fair as wall clocks are, and those of different
/// programs differ.
async fn stream(seed: u64, defect: Defect) -> Outcome {
    const READERS: usize = 8;
    // Longer than any delay: this many requests incur some of the longest delays.
    let setup = Setup { locks: 1, storm_ms: 0, timeouts_ms: [330; 3], ..calm(seed, defect) };
    let stage = Stage::new(setup);
    let reader = |number: usize| {
        let (locker, log) = (stage.lockers[0].clone(), Arc::clone(&stage.log));
        let mut random = StdRng::seed_from_u64(seed ^ (number as u64) << 32);
        stage.processes[0].spawn(async move {
            while !log.notes().is_over {
                let guard = locker.acquire(name(0)).shared().wait(Duration::from_secs(60)).await;
                sleep(millis(&mut random, 20, 80)).await;
                let _ = guard.expect("nothing is wrong").release().await;
            }
        })
    };
    let readers: Vec<_> = (0..READERS).map(reader).collect();
    sleep(Duration::from_millis(500)).await;
    for _ in 0..3 {
        let began = Instant::now();
        let writer = stage.lockers[0].acquire(name(0)).wait(STARVES_AFTER * 2).await;
        if writer.is_err() || began.elapsed() > STARVES_AFTER {
            let text = format!("{STARVED} for {:?}, {setup:?}", began.elapsed());
            stage.log.notes().complaints.push(text);
        }
        if let Ok(guard) = writer {
            let _ = guard.release().await;
        }
        sleep(Duration::from_millis(200)).await;
    }
    stage.log.notes().is_over = true;
    for reader in readers {
        reader.await.expect("no task panics");
    }
    end(&stage).await
}

/// As operations.md requires, the holder has renewed before the next node goes down.
async fn renewal(ttl: Duration) {
    sleep(ttl / 2 + Duration::from_secs(1)).await;
}

fn complain_if_lost(stage: &Stage, holder: &Guard, step: usize) {
    if holder.is_lost() {
        let text = format!("{LOST}: restart {step}, {:?}", stage.setup);
        stage.log.notes().complaints.push(text);
    }
}

/// A node that was away knows the waiters within one refresh.
async fn complain_if_out_of_line(stage: &Stage, node: usize, ttl: Duration) {
    let waits = |nodes: &[Node]| nodes[node].waiters(&name(0)) > 0;
    until(&stage.net, u64::try_from(ttl.as_millis()).expect("short") / 3, waits).await;
    if !waits(&stage.net.universe().nodes) {
        let text = format!("{FORGOTTEN}: node {node}, {:?}", stage.setup);
        stage.log.notes().complaints.push(text);
    }
}

/// The run ends when both holders have finished.
pub(crate) async fn both_end<T>(stage: &Stage, holders: [JoinHandle<T>; 2]) -> Outcome {
    for holder in holders {
        holder.await.expect("no task panics");
    }
    end(stage).await
}

pub(crate) async fn end(stage: &Stage) -> Outcome {
    stage.net.reform();
    stage.net.heal();
    settle(&stage.lockers).await;
    let now = stage.log.now();
    judge(stage, (now, now))
}

const PACE: &str = "a waiter asks nodes in quarantine too often";
/// The longest hold, plus some rounds with their timeouts.
const STARVES_AFTER: Duration = Duration::from_secs(4);
const STARVED: &str = "readers have kept a writer out";
const LOST: &str = "a restart of one node after another cost a lock";
const FORGOTTEN: &str = "a waiter stands in line no more at a node that was restarted";

#[test]
fn a_vote_from_before_a_crash_and_a_repair_after_it_make_no_two_holders() {
    makes_no_two_holders(false);
}

#[test]
fn a_vote_from_before_a_crash_and_a_lease_brought_after_it_make_no_two_holders() {
    makes_no_two_holders(true);
}

#[track_caller]
fn makes_no_two_holders(is_brought: bool) {
    // Now and then a reply is too late for the scene to occur.
    let mut came_about = 0;
    for seed in 0..SEEDS {
        let outcome = to_the_end(duel(seed, is_brought, Defect::None));
        assert_eq!(outcome.violations, [""; 0], "seed {seed}");
        let is_kept = outcome.reached.count("extend: provisional") > 0;
        // Both win: the second by its vote from before the crash, after the first has lost.
        came_about += u64::from(is_kept && outcome.acquisitions == 2);
    }
    assert!(came_about > SEEDS / 4, "in {came_about} of {SEEDS} seeds");
}

#[test]
fn an_acquire_that_arrives_after_a_repair_stores_nothing() {
    // When the connection breaks, its request may be lost.
    let mut came_about = 0;
    for seed in 0..SEEDS {
        let outcome = to_the_end(outrun(seed));
        assert_eq!(outcome.violations, [""; 0], "seed {seed}");
        let reached = |what: &str| outcome.reached.count(what) > 0;
        let is_late = reached("acquire: arrived after its connection");
        came_about += u64::from(reached("node: repaired") && is_late);
    }
    assert!(came_about > SEEDS / 4, "in {came_about} of {SEEDS} seeds");
}

#[test]
fn a_provisional_lease_that_counts_is_caught() {
    let scene = |seed| to_the_end(duel(seed, false, Defect::CountsProvisional));
    must_be_caught_in("a provisional lease counts", scene, OVERLAP);
    must_be_caught_in("a provisional lease counts", scene, VOUCHES);
}

#[test]
fn a_lease_that_counts_where_it_was_brought_is_caught() {
    let scene = |seed| to_the_end(duel(seed, true, Defect::CountsRestored));
    must_be_caught_in("a restored lease counts", scene, OVERLAP);
    must_be_caught_in("a restored lease counts", scene, VOUCHES);
}

#[test]
fn a_server_that_two_addresses_lead_to_has_one_vote() {
    for seed in 0..SEEDS {
        let outcome = to_the_end(mislead(seed, Defect::None));
        assert_eq!(outcome.violations, [""; 0], "seed {seed}");
    }
}

#[test]
fn a_server_that_votes_for_two_addresses_is_caught() {
    let scene = |seed| to_the_end(mislead(seed, Defect::HidesItsName));
    must_be_caught_in("one server, two votes", scene, OVERLAP);
}

#[test]
fn a_holder_is_told_of_a_loss_at_its_time() {
    for seed in 0..SEEDS {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().start_paused(true).build().expect("a runtime");
        let (left, margin) = runtime.block_on(told(seed));
        assert!(left <= margin, "seed {seed}: told {left:?} before the end, not {margin:?}");
        assert!(left + TICK * 3 >= margin, "seed {seed}: told {left:?} before, not {margin:?}");
    }
}

#[test]
fn a_rolling_restart_costs_no_lock() {
    for seed in 0..SEEDS {
        let outcome = to_the_end(roll(seed, Defect::None));
        assert_eq!(outcome.violations, [""; 0], "seed {seed}");
    }
}

#[test]
fn a_node_that_gives_no_lease_back_above_its_floor_is_caught() {
    let scene = |seed| to_the_end(roll(seed, Defect::KeepsOutBelowItsFloor));
    must_be_caught_in("keeps a holder out", scene, LOST);
}

#[test]
fn a_stream_of_readers_keeps_no_writer_out() {
    for seed in 0..SEEDS {
        let outcome = to_the_end(stream(seed, Defect::None));
        assert_eq!(outcome.violations, [""; 0], "seed {seed}");
    }
}

#[test]
fn readers_that_pass_those_in_line_are_caught() {
    let scene = |seed| to_the_end(stream(seed, Defect::LetsReadersPass));
    must_be_caught_in("readers pass", scene, STARVED);
}

#[test]
fn who_waits_for_nodes_in_quarantine_asks_seldom_and_gets_the_lock_when_it_ends() {
    // If nodes call without being able to grant, only the pauses between attempts limit the rate.
    for (defect, attempts_max) in [(Defect::None, 10), (Defect::CallsInQuarantine, 30)] {
        for seed in 0..20 {
            let violations = to_the_end(wait_out(seed, attempts_max, defect)).violations;
            let is_meant = |text: &String| defect == Defect::None || text.starts_with(PACE);
            assert!(!violations.iter().any(is_meant), "seed {seed}, {defect:?}: {violations:?}");
        }
    }
}
