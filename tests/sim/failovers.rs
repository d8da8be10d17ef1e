//! Scripted failovers: events that are too rare in a storm.
//!
//! A replica takes the place of its master, which continues to run: some clients are still
//! connected to it.

use std::sync::Arc;
use std::time::Duration;

use lockmod::engine::Millis;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::time::{Instant, sleep, sleep_until};

use crate::clients::name;
use crate::nemesis::{Fall, restart};
use crate::net::{Flow, Net};
use crate::node::{Defect, End, Node};
use crate::scenes::{TICK, both_end, calm, holds, millis, until};
use crate::stage::Stage;
use crate::{
    DELETED, OVERLAP, Outcome, Setup, TWO_MASTERS, VOUCHES, must_be_caught_in, to_the_end,
};

const SEEDS: u64 = 6;
/// A program with this timeout waits for answers until another server has authority.
const LONG_MS: u64 = 12_000;

/// Groups that have authority. All clients know the first master of each.
async fn groups(setup: Setup) -> Stage {
    let stage = Stage::new(Setup { locks: 1, replicas: 2, ..setup });
    let nodes = stage.setup.nodes;
    until(&stage.net, 60_000, |servers| servers[..nodes].iter().all(grants)).await;
    // The fences of all groups then agree without a raise.
    let floors = |servers: &[Node]| servers[..nodes].iter().map(Node::floor).max();
    let floor = floors(&stage.net.universe().nodes).expect("there is a node");
    stage.net.universe().nodes[..nodes].iter_mut().for_each(|node| node.raise_floor(floor));
    for locker in &stage.lockers {
        locker.info(name(0)).await;
    }
    stage
}

fn grants(node: &Node) -> bool {
    node.decides() && !node.is_in_quarantine()
}

/// The first replica of a group takes the place of its master, and the second one follows it. This
/// program is redirected; all others stay where they are.
fn replace(net: &Arc<Net>, group: usize, told: usize) -> usize {
    let new = net.change(|universe| {
        let servers: Vec<_> = universe.servers_of(group).collect();
        universe.promote(servers[1]);
        universe.follow(servers[2], servers[1]);
        servers[1]
    });
    net.cut((told, group));
    new
}

fn cut_off(net: &Arc<Net>, group: usize) {
    let servers: Vec<_> = net.universe().servers_of(group).collect();
    servers[1..].iter().for_each(|other| net.hold((servers[0], *other), true));
}

/// One group. Its master is cut off, and still grants while its last heartbeat supports it. Its
/// successor does not know of that lease.
async fn lost_tail(seed: u64, defect: Defect) -> Outcome {
    let mut random = StdRng::seed_from_u64(seed ^ 0x7461_696c);
    let max_ttl = Millis::new(12_000);
    let stage =
        groups(Setup { nodes: 1, max_ttl, timeouts_ms: [330; 3], ..calm(seed, defect) }).await;
    let net = &stage.net;
    cut_off(net, 0);
    let new = replace(net, 0, 1);
    sleep(millis(&mut random, 0, 2_500)).await;
    let ttl = millis(&mut random, 8_000, 12_000);
    let one = stage.processes[0].spawn(stage.client(0, 0).keep(ttl, ttl + ttl / 2));
    until(net, 60_000, |nodes| grants(&nodes[new])).await;
    let other = stage.client(1, 0).keep(Duration::from_secs(1), Duration::from_secs(2));
    let other = stage.processes[1].spawn(other);
    both_end(&stage, [one, other]).await
}

/// One group, whose longest lease is raised, granted and lowered between two heartbeats. A replica
/// restarts from a snapshot, and receives its master's earlier heartbeats again. Then it replaces
/// the master.
async fn told_again(seed: u64, defect: Defect) -> Outcome {
    let mut random = StdRng::seed_from_u64(seed ^ 0x746f_6c64);
    let (max_ttl, short) = (Millis::new(12_000), Millis::new(1_500));
    // The first replica saves snapshots.
    let setup = Setup { nodes: 1, max_ttl, timeouts_ms: [330; 3], ..calm(3 * seed, defect) };
    let stage = groups(Setup { delay_ms: 40, ..setup }).await;
    let net = &stage.net;
    net.change(|universe| universe.allow(0, short));
    // The master reports longer leases for 12 s, and its replicas remember them for 12 s more.
    sleep(Duration::from_secs(27)).await;
    net.change(|universe| universe.nodes[1].save());
    sleep(millis(&mut random, 1_100, 5_000)).await;
    let said = net.universe().nodes[0].member.stream.offset;
    until(net, 2_000, |nodes| nodes[0].member.stream.offset > said).await;
    net.change(|universe| universe.allow(0, max_ttl));
    let ttl = Duration::from(max_ttl);
    let one = stage.processes[0].spawn(stage.client(0, 0).keep(ttl, ttl * 2));
    until(net, 300, |nodes| holds(&nodes[0])).await;
    net.change(|universe| universe.allow(0, short));
    let fall = Fall { end: End::Killed, loses_data: false, down: Duration::ZERO };
    restart(Arc::clone(net), 1, fall).await;
    let has_heard = |nodes: &[Node]| nodes[1].member.tally.heard_again > 0;
    until(net, 1_000, has_heard).await;
    // It lacks the rest, including the lease.
    cut_off(net, 0);
    let new = replace(net, 0, 1);
    until(net, 60_000, |nodes| grants(&nodes[new])).await;
    let other = stage.client(1, 0).keep(Duration::from_secs(1), Duration::from_secs(2));
    let other = stage.processes[1].spawn(other);
    both_end(&stage, [one, other]).await
}

/// One group. An operator deletes the lock while it is held, another client acquires it, and the
/// master restarts with a snapshot from before. Nobody knows but its state file.
async fn removed(seed: u64, defect: Defect) -> Outcome {
    let mut random = StdRng::seed_from_u64(seed ^ 0x7265_6d6f);
    let max_ttl = Millis::new(12_000);
    // The master saves snapshots.
    let setup = Setup { nodes: 1, max_ttl, timeouts_ms: [330; 3], ..calm(3 * seed + 1, defect) };
    let stage = groups(Setup { is_forced: true, ..setup }).await;
    let net = &stage.net;
    let ttl = millis(&mut random, 8_000, 12_000);
    let one = stage.processes[0].spawn(stage.client(0, 0).keep(ttl, ttl * 2));
    until(net, 300, |nodes| holds(&nodes[0])).await;
    // Before its first renewal.
    sleep(millis(&mut random, 100, 2_000)).await;
    net.change(|universe| universe.nodes[0].save());
    net.change(|universe| universe.delete(name(0).as_bytes()));
    let other = stage.processes[1].spawn(stage.client(1, 0).keep(ttl, ttl * 2));
    until(net, 300, |nodes| holds(&nodes[0])).await;
    sleep(TICK * 10).await;
    let fall = Fall { end: End::Killed, loses_data: false, down: Duration::ZERO };
    restart(Arc::clone(net), 0, fall).await;
    both_end(&stage, [one, other]).await
}

/// One group. Its master hangs, and resumes after its successor has granted the lock to another
/// client.
async fn late_master(seed: u64, defect: Defect) -> Outcome {
    let mut random = StdRng::seed_from_u64(seed ^ 0x6c61_7465);
    let max_ttl = Millis::new(3_000);
    let stage =
        groups(Setup { nodes: 1, max_ttl, timeouts_ms: [330; 3], ..calm(seed, defect) }).await;
    let net = &stage.net;
    sleep(millis(&mut random, 0, 1_000)).await;
    let goes_on_at = Instant::now() + Duration::from_secs(13);
    net.change(|universe| universe.hung_until[0] = goes_on_at);
    // Its earlier messages are acknowledged meanwhile.
    sleep(millis(&mut random, 1_000, 2_000)).await;
    let new = replace(net, 0, 1);
    until(net, 30_000, |nodes| grants(&nodes[new])).await;
    let one = stage.client(1, 0).keep(Duration::from_secs(3), Duration::from_secs(12));
    let one = stage.processes[1].spawn(one);
    until(net, 1_000, |nodes| holds(&nodes[new])).await;
    sleep_until(goes_on_at).await;
    until(net, 2_000, |nodes| grants(&nodes[0])).await;
    let other = stage.client(0, 0).keep(Duration::from_secs(1), Duration::from_secs(2));
    let other = stage.processes[0].spawn(other);
    both_end(&stage, [one, other]).await
}

/// One group. Its master hangs. Its successor has the lease, and carries it through its wait.
async fn carried(seed: u64) -> Outcome {
    let mut random = StdRng::seed_from_u64(seed ^ 0x6361_7272);
    let (ttl, max_ttl) = (Duration::from_secs(15), Millis::new(15_000));
    let setup = Setup { nodes: 1, max_ttl, timeouts_ms: [330; 3], ..calm(seed, Defect::None) };
    let stage = groups(setup).await;
    let net = &stage.net;
    let one = stage.processes[0].spawn(stage.client(0, 0).keep(ttl, ttl * 3));
    sleep(millis(&mut random, 1_000, 9_000)).await;
    net.change(|universe| universe.hung_until[0] = Instant::now() + ttl);
    let new = replace(net, 0, 0);
    until(net, 60_000, |nodes| grants(&nodes[new])).await;
    let other = stage.client(1, 0).keep(Duration::from_secs(1), Duration::from_secs(2));
    let other = stage.processes[1].spawn(other);
    both_end(&stage, [one, other]).await
}

/// A vote of a master that is cut off, and a repair at its successor, which is in its wait.
///
/// The first holder has three nodes. It cannot reach the last node's master, where its lease ends.
/// That master votes for the second holder, whose other request is slow, and is replaced; the
/// successor accepts the first holder's repair. Then the first holder is cut off from the middle
/// node, and the second holder's request arrives there after the lease has ended.
async fn duel(seed: u64, defect: Defect) -> Outcome {
    let mut random = StdRng::seed_from_u64(seed ^ 0x7375_6363);
    let (max_ttl, timeouts_ms) = (Millis::new(50_000), [150, LONG_MS, 90]);
    let stage = groups(Setup { nodes: 3, max_ttl, timeouts_ms, ..calm(seed, defect) }).await;
    let net = &stage.net;
    let ttl = millis(&mut random, 700, 900);
    let one = stage.processes[0].spawn(stage.client(0, 0).keep(ttl, Duration::from_secs(14)));
    until(net, 100, |nodes| nodes[..3].iter().all(holds)).await;
    // Waits until all nodes have been raised to one fence.
    sleep(TICK * 30).await;
    cut_off(net, 2);
    net.set_flow((0, 2), Flow::Hold, Flow::Pass);
    until(net, 1_000, |nodes| !holds(&nodes[2])).await;
    net.set_flow((1, 1), Flow::Hold, Flow::Pass);
    let long = Duration::from_millis(LONG_MS * 4);
    let other = stage.processes[1].spawn(stage.client(1, 0).keep(long, Duration::from_secs(1)));
    until(net, 500, |nodes| holds(&nodes[2])).await;
    let new = replace(net, 2, 0);
    net.set_flow((0, 2), Flow::Pass, Flow::Pass);
    until(net, 10_000, |nodes| nodes[new].repaired > 0).await;
    net.set_flow((0, 1), Flow::Hold, Flow::Pass);
    until(net, 1_000, |nodes| !holds(&nodes[1])).await;
    net.set_flow((1, 1), Flow::Pass, Flow::Pass);
    both_end(&stage, [one, other]).await
}

/// Requires that a scene runs without a violation. Returns in how many seeds it occurred.
#[track_caller]
fn keeps_every_promise(scene: impl Fn(u64) -> Outcome, has_come_about: impl Fn(&Outcome) -> bool) {
    let mut came_about = 0;
    for seed in 0..SEEDS {
        let outcome = scene(seed);
        assert_eq!(outcome.violations, [""; 0], "seed {seed}");
        came_about += u64::from(has_come_about(&outcome));
    }
    assert!(came_about > SEEDS / 4, "in {came_about} of {SEEDS} seeds");
}

#[test]
fn a_lease_that_a_successor_has_not_heard_of_is_waited_for() {
    let scene = |seed| to_the_end(lost_tail(seed, Defect::None));
    keeps_every_promise(scene, |outcome| outcome.acquisitions == 2);
}

#[test]
fn a_promoted_node_that_does_not_wait_is_caught() {
    let scene = |seed| to_the_end(lost_tail(seed, Defect::PromotedDoesNotWait));
    must_be_caught_in("does not wait", scene, OVERLAP);
    must_be_caught_in("does not wait", scene, VOUCHES);
}

#[test]
fn a_longer_lease_is_waited_for_by_who_is_told_of_the_time_before() {
    let scene = |seed| to_the_end(told_again(seed, Defect::None));
    keeps_every_promise(scene, |outcome| {
        let is_told = outcome.reached.count("group: told its master's heartbeat late") > 0;
        is_told && outcome.acquisitions == 2
    });
}

#[test]
fn a_replica_that_believes_the_last_heartbeat_is_caught() {
    let scene = |seed| to_the_end(told_again(seed, Defect::BelievesTheLastHeartbeat));
    must_be_caught_in("believes the last heartbeat", scene, OVERLAP);
    must_be_caught_in("believes the last heartbeat", scene, VOUCHES);
}

#[test]
fn a_lease_that_a_successor_has_outlasts_its_wait() {
    let scene = |seed| to_the_end(carried(seed));
    keeps_every_promise(scene, |outcome| {
        let is_kept = outcome.reached.count("lost: expired") == 0;
        is_kept && outcome.reached.count("group: extended in a wait") > 0
    });
}

#[test]
fn a_lease_that_was_removed_does_not_come_back_with_older_data() {
    let scene = |seed| to_the_end(removed(seed, Defect::None));
    keeps_every_promise(scene, |outcome| {
        let is_extended = outcome.reached.count("group: extended in a wait") > 0;
        is_extended && outcome.acquisitions == 2
    });
}

#[test]
fn a_node_that_does_not_record_a_removal_is_caught() {
    let scene = |seed| to_the_end(removed(seed, Defect::ForgetsRemovals));
    must_be_caught_in("forgets removals", scene, DELETED);
}

#[test]
fn a_node_that_carries_a_removed_lease_is_caught() {
    let scene = |seed| to_the_end(removed(seed, Defect::CarriesRemoved));
    must_be_caught_in("carries a removed lease", scene, DELETED);
}

#[test]
fn a_master_that_goes_on_beside_its_successor_grants_nothing() {
    let scene = |seed| to_the_end(late_master(seed, Defect::None));
    keeps_every_promise(scene, |outcome| {
        outcome.acquisitions == 1 && outcome.reached.count("group: no authority") > 0
    });
}

#[test]
fn a_master_that_does_not_ask_for_its_authority_is_caught() {
    let scene = |seed| to_the_end(late_master(seed, Defect::DecidesWithoutAuthority));
    must_be_caught_in("decides without authority", scene, OVERLAP);
}

#[test]
fn support_that_begins_when_it_is_heard_of_is_caught() {
    let scene = |seed| to_the_end(late_master(seed, Defect::SupportFromReceipt));
    must_be_caught_in("support from receipt", scene, TWO_MASTERS);
    must_be_caught_in("support from receipt", scene, OVERLAP);
}

#[test]
fn a_vote_of_a_replaced_master_and_a_repair_at_its_successor_make_no_two_holders() {
    let scene = |seed| to_the_end(duel(seed, Defect::None));
    keeps_every_promise(scene, |outcome| {
        let is_kept = outcome.reached.count("group: extended in a wait") > 0;
        is_kept && outcome.acquisitions == 2
    });
}

#[test]
fn a_promoted_node_that_counts_while_it_waits_is_caught() {
    let scene = |seed| to_the_end(duel(seed, Defect::CountsInWait));
    must_be_caught_in("counts in its wait", scene, OVERLAP);
    must_be_caught_in("counts in its wait", scene, VOUCHES);
}
