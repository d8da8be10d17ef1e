//! Why the reports of nodes may be wrong: replicas have no vote and may be behind, and nodes in
//! quarantine may have forgotten leases.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::failure::{Failure, warn};
use super::rows;
use super::values::Name;
use crate::client::{
    Excess, FailingMaster, Length, Locker, Misfit, MissingReplica, NodeField, NodeInfo, NodeReport,
    NodeStatus, NodeSurvey, ReleaseError, Summary, Support, Survey, UnfitReplica, Vote, listed,
    place, same_as,
};
use crate::engine::{Quorum, SLOTS};
use crate::wire::code;

/// How long servers that are not needed for a lock have to say that they are the wrong ones.
const MOMENT: Duration = Duration::from_millis(50);
/// How long a node that cannot be reached, or refuses it at present, has to take a release: enough
/// for a restart, also of a master of a Cluster, which refuses everything for two seconds then.
pub(super) const RESTART: Duration = Duration::from_secs(5);
/// The most masters that a warning names.
const NAMED: usize = 4;
/// What to do about replicas that are not attached.
const ATTACH: &str =
    "start those that are down, and see in the logs of the others why they do not follow it";

/// Whether the node is a replica, judged by its reply to a command.
pub(super) fn is_replica(vote: &Vote) -> bool {
    matches!(vote, Vote::Unavailable(text) if code::word_of(text) == code::READONLY.word)
}

/// The vote of a node whose report about a lock shows that it is a replica.
pub(super) fn vote_of(node: &NodeInfo) -> Option<Vote> {
    let vote = Vote::Unavailable(node.info.as_ref().ok()?.node_state.as_deref()?.into());
    is_replica(&vote).then_some(vote)
}

/// The warning about each replica.
pub(super) fn replicas(survey: &Survey) -> Vec<String> {
    let told = survey.nodes.iter().filter_map(|node| {
        let status = node.status.as_ref().ok().filter(|status| !status.is_master)?;
        let node = rows::shown(node.node.as_bytes());
        let advice = match status.master.as_deref().map(|master| last_master(survey, master)) {
            Some(master) if is_listed(survey, master) => "leave it out".to_owned(),
            Some(master) => format!("give its master {} instead", rows::shown(master.as_bytes())),
            None => "give its master instead".to_owned(),
        };
        Some(format!("{node} is a replica, which has no vote: {advice}"))
    });
    told.collect()
}

/// The master of this one, if it is listed as a replica, and so on.
fn last_master<'a>(survey: &'a Survey, first: &'a str) -> &'a str {
    let masters_master = |place: &str| {
        let node = survey.nodes.iter().find(|node| *node.node == *place)?;
        node.status.as_ref().ok()?.master.as_deref()
    };
    let mut last = first;
    // Servers that follow each other have no last one.
    for _ in &survey.nodes {
        last = masters_master(last).unwrap_or(last);
    }
    last
}

/// Whether this master is a node of the list, or the master of one.
fn is_listed(survey: &Survey, master: &str) -> bool {
    let is_it = |node: &NodeSurvey| {
        let is_master = node.status.as_ref().is_ok_and(|status| status.is_master);
        let mut places = std::iter::once(&node.node).chain(&node.masters);
        is_master && places.any(|place| **place == *master)
    };
    survey.nodes.iter().any(is_it)
}

/// The warning about each node that is another node under a second name.
pub(super) fn doubles(survey: &Survey) -> Vec<String> {
    let told = |node: &NodeSurvey| double(&node.node, node.status.as_ref().err()?);
    survey.nodes.iter().filter_map(told).collect()
}

/// What is wrong with the list of nodes, from fresh answers: nodes that are another node under a
/// second name, and servers in a URL that belong to something else.
pub(super) async fn mistakes(locker: &Locker) -> Vec<String> {
    let is_one = locker.nodes().len() == 1;
    // The only node is no other one.
    let reports = async { if is_one { Vec::new() } else { locker.settle().await } };
    let dead_ends = async {
        match is_one {
            // A server that hangs delays nobody who has the lock.
            true => timeout(MOMENT, locker.dead_ends()).await.unwrap_or_default(),
            false => locker.dead_ends().await,
        }
    };
    let (reports, dead_ends) = tokio::join!(reports, dead_ends);
    let doubles = reports.iter().filter_map(|report| double(&report.node, &report.vote));
    let strangers = dead_ends.iter().filter(|it| matches!(it.vote, Vote::Refused(_)));
    doubles.chain(strangers.map(dead_end)).collect()
}

/// Warns about [`mistakes`], as soon as all have answered.
pub(super) fn tell_mistakes(locker: &Locker, as_json: bool) -> JoinHandle<()> {
    let locker = locker.clone();
    tokio::spawn(async move {
        mistakes(&locker).await.iter().for_each(|text| warn(text, as_json));
    })
}

fn double(node: &str, vote: &Vote) -> Option<String> {
    let name = rows::shown(node.as_bytes());
    let (same, advice) = same_as(vote)?;
    Some(format!("{name} is {same}, and they have one vote together: {advice}"))
}

/// The warning about each node that is one server of a Cluster.
pub(super) fn parts_of_clusters(survey: &Survey) -> Vec<String> {
    let is_part = |node: &&NodeSurvey| node.status.as_ref().is_ok_and(|told| told.is_in_cluster);
    let told = survey.nodes.iter().filter(is_part).map(|node| {
        let name = rows::shown(node.node.as_bytes());
        // A socket's path leads to no other server.
        let place = if name.starts_with('/') { "host:port" } else { &name };
        format!(
            "{name} is one server of a Cluster, and has only the locks in its slots: for all of \
             them write redis+cluster://{place}, or rediss+cluster:// with TLS"
        )
    });
    told.collect()
}

/// The warning about each server in the URL of a node that does not lead there, if the node answers
/// all the same; if not, only what its state does not tell: that its Sentinels disagree, or that
/// too few of them answer for a failover.
pub(super) fn dead_ends(survey: &Survey, reports: &[NodeReport]) -> Vec<String> {
    let is_told = |report: &&NodeReport| {
        let answers = |node: &NodeSurvey| node.node == report.node && node.status.is_ok();
        survey.nodes.iter().any(answers) || matches!(report.vote, Vote::Unavailable(_))
    };
    reports.iter().filter(is_told).map(dead_end).collect()
}

fn dead_end(report: &NodeReport) -> String {
    let node = rows::shown(report.node.as_bytes());
    match &report.vote {
        Vote::Refused(text) => {
            format!("{node}: a server in its URL does not belong to it: {text}: leave that one out")
        }
        Vote::Unavailable(text) => format!("{node}: {text}"),
        vote => format!("{node}: a server in its URL is of no use at present: {vote}"),
    }
}

/// The warning about each master with more replicas than it is told of, as in its log.
pub(super) fn excess(survey: &Survey) -> Vec<String> {
    let answered = survey.nodes.iter().filter_map(|node| Some((node, node.status.as_ref().ok()?)));
    let told = answered.flat_map(|(node, status)| {
        status.excess.iter().map(|Excess { master, attached, replicas, .. }| {
            // Of a group under Sentinel there is one.
            let master = master.as_deref().or(node.masters.first().map(|master| &**master));
            let place = place(&node.node, master);
            let plural = if *attached == 1 { " is" } else { "s are" };
            format!(
                "{place}: {attached} replica{plural} attached, but lockmod.replicas is {replicas}: \
                 a master that is cut off may grant locks beside the one that replaces it. Set it \
                 to their number on all servers, and restart them"
            )
        })
    });
    told.collect()
}

/// The warning about each master that grants with the support of only some of its replicas.
pub(super) fn lacking(survey: &Survey) -> Vec<String> {
    let told = survey.nodes.iter().filter_map(|node| {
        let status = node.status.as_ref().ok().filter(|status| status.is_master)?;
        let Support { supporters, needed, replicas, .. } = status.support()?;
        let (place, spare) = (rows::place(node), supporters.checked_sub(needed)?);
        let whose = if status.slots.is_some() { "a master has" } else { "it has" };
        let lost = match spare {
            0 => "another one is lost".to_owned(),
            spare => format!("{} more are lost", spare + 1),
        };
        (supporters < replicas).then(|| {
            format!(
                "{place}: {whose} {supporters} of {replicas} replicas, and grants nothing if \
                 {lost}: {ATTACH}; one that has just followed it counts after 5 seconds"
            )
        })
    });
    told.collect()
}

/// The warning about each replica that should follow a master, and does not.
pub(super) fn missing(replicas: &[MissingReplica]) -> Vec<String> {
    let told = |MissingReplica { node, master, replica, reason, .. }: &MissingReplica| {
        let (place, replica) = (place(node, Some(&**master)), rows::shown(replica.as_bytes()));
        let reason = match reason {
            Some(reason) => reason.to_string(),
            None => "it does not tell this user why".to_owned(),
        };
        format!("{place}: {replica} should follow it, and does not: {reason}")
    };
    replicas.iter().map(told).collect()
}

/// The warning about each replica that could not take its master's place as it is.
pub(super) fn unfit(replicas: &[UnfitReplica]) -> Vec<String> {
    let told = |UnfitReplica { node, master, replica, misfit }: &UnfitReplica| {
        let place = place(node, master.as_deref());
        let replica = rows::shown(replica.as_bytes());
        let what = match misfit {
            Misfit::Refuses(text) => format!(
                "does not let this user in, who would be refused if it became the master: {text}"
            ),
            Misfit::WithoutModule => "is without the module: it counts as a replica that supports \
                                      its master, but as a master it would have no locks. Load \
                                      the module there"
                .to_owned(),
            Misfit::Replicas { own, masters } => format!(
                "has lockmod.replicas {own}, and its master {masters}: set it to the number of \
                 replicas on all servers, and restart them"
            ),
            Misfit::MaxTtl { own, masters } => format!(
                "has lockmod.max-ttl {}, and its master {}: after a failover the longer of the \
                 two is waited for, and the replica will grant none longer than its own. Set it to \
                 the same on all servers",
                Length(*own),
                Length(*masters)
            ),
        };
        format!("{place}: its replica {replica} {what}")
    };
    replicas.iter().map(told).collect()
}

/// The warning about each node that may not know who holds a lock.
pub(super) fn quarantines(survey: &Survey) -> Vec<String> {
    survey.nodes.iter().filter_map(doubt).collect()
}

fn doubt(node: &NodeSurvey) -> Option<String> {
    let status = node.status.as_ref().ok()?;
    let state = status.fields.text(NodeField::State).filter(|_| status.is_master);
    let place = in_doubt(node);
    forgetful(&place, status.quarantine_left, state).or_else(|| {
        let (place, waits) = (rows::shown(place.as_bytes()), status.waits_in()?);
        Some(format!("{place} {waits}: it may not know who holds a lock there"))
    })
}

/// The node, and of a group or a Cluster the masters that may not know it.
fn in_doubt(node: &NodeSurvey) -> String {
    let is_forgetful = |master: &&FailingMaster| match &master.report.vote {
        Vote::Quarantined { .. } => true,
        Vote::Unavailable(text) if may_not_be_the_master(text) => true,
        _ => master.status.as_ref().is_some_and(|status| status.waits_in().is_some()),
    };
    let share = node.status.as_ref().ok().and_then(|status| status.slots.as_ref());
    let masters: Vec<&str> = match share {
        Some(share) => {
            let failing = share.failing.iter().filter(is_forgetful);
            failing.map(|master| &*master.report.node).collect()
        }
        None => node.masters.iter().map(|master| &**master).collect(),
    };
    let at = if masters.is_empty() { String::new() } else { format!(" at {}", masters.join(", ")) };
    format!("{}{at}", node.node)
}

/// The warning about each Cluster of which some masters may not be asked whether it is down.
pub(super) fn unseen(survey: &Survey) -> Vec<String> {
    let told = survey.nodes.iter().filter_map(|node| {
        let share = node.status.as_ref().ok()?.slots.as_ref();
        let masters = &share.filter(|share| !share.unseen.is_empty())?.unseen;
        let names = masters.iter().take(NAMED).map(|report| rows::shown(report.node.as_bytes()));
        let names = listed(names.collect(), masters.len(), ", ");
        let node = rows::shown(node.node.as_bytes());
        Some(format!(
            "{node}: the user may not run CLUSTER INFO at {names}: while the Cluster is down \
             (CLUSTERDOWN), a master there still seems to grant locks"
        ))
    });
    told.collect()
}

/// The warning about each Cluster of which some masters do not report their locks.
pub(super) fn incomplete(survey: &Survey) -> Vec<String> {
    let told = survey.nodes.iter().filter_map(|node| {
        let name = rows::shown(node.node.as_bytes());
        Some(format!("{name}: {}", unknown_slots(node)?))
    });
    told.collect()
}

/// In how many slots of a Cluster the locks are unknown, and why, if there are any.
pub(super) fn unknown_slots(node: &NodeSurvey) -> Option<String> {
    let share = node.status.as_ref().ok()?.slots.as_ref().filter(|share| share.unknown > 0)?;
    let text = format!("the locks in {} of {SLOTS} slots are not known", share.unknown);
    Some(match share.silent.first() {
        Some(report) => format!("{text}: {report}"),
        None => format!("{text}: no master has those slots"),
    })
}

/// Whether a quorum of nodes has answered that would know of a lease, and shown all locks.
pub(super) fn is_certain(survey: &Survey) -> bool {
    let knows = |node: &&NodeSurvey| {
        let is_master = node.status.as_ref().is_ok_and(|told| told.is_master);
        let is_listed = node.unlisted.is_none();
        is_master && is_listed && doubt(node).is_none() && unknown_slots(node).is_none()
    };
    let is_majority =
        Quorum::is_majority(survey.nodes.iter().filter(knows).count(), survey.nodes.len());
    is_majority && survey.hidden == 0 && survey.unnamed == 0 && survey.given_up.is_empty()
}

/// The warning about a node with this state, if it may not know who holds a lock.
fn forgetful(node: &str, left: Option<Duration>, state: Option<&str>) -> Option<String> {
    match left {
        _ if state.is_some_and(lacks_authority) => Some(format!(
            "{} grants nothing, for its replicas do not support it: another master may know who \
             holds a lock",
            rows::shown(node.as_bytes())
        )),
        _ if state.is_some_and(is_asking) => Some(format!(
            "{} does not decide yet: another master may know who holds a lock",
            rows::shown(node.as_bytes())
        )),
        left => Some(quarantine(node, left?)),
    }
}

/// Whether a node with this state is in quarantine.
pub(super) fn is_quarantine(state: &str) -> bool {
    code::meaning_of(state) == code::Meaning::Quarantine
}

/// Whether, with this state, another server may be the master, of the lock at least.
fn may_not_be_the_master(state: &str) -> bool {
    lacks_authority(state) || is_asking(state)
}

/// Whether a node with this state lacks the support of its replicas.
fn lacks_authority(state: &str) -> bool {
    code::word_of(state) == code::NOAUTHORITY.word
}

/// Whether a node with this state has to ask another master first.
fn is_asking(state: &str) -> bool {
    code::word_of(state) == code::TRYAGAIN.word
}

fn quarantine(node: &str, left: Duration) -> String {
    let (node, left) = (rows::shown(node.as_bytes()), Length(left));
    format!("{node} is in quarantine for {left}: it may have forgotten who holds a lock")
}

/// How much longer the node is in quarantine, from its report about a lock.
pub(super) fn quarantine_left(node: &NodeInfo) -> Option<Duration> {
    node.info.as_ref().ok()?.quarantine_left
}

/// Whether the node knows who holds the lock that it reported about.
pub(super) fn is_known_to(node: &NodeInfo) -> bool {
    node.info.is_ok() && quarantine_left(node).is_none() && obstacle(node).is_none()
}

/// Whether a lock is gone as far as the node is concerned, by its vote on the deletion. A node that
/// another may have replaced cannot tell, and one in quarantine only of a lease that it knew.
pub(super) fn is_gone(vote: &Vote, node: &NodeInfo) -> bool {
    obstacle(node).is_none()
        && match vote {
            Vote::Confirmed => true,
            Vote::NotHeld => quarantine_left(node).is_none(),
            _ => false,
        }
}

/// The vote of a node whose report about a lock shows that another server may be the master.
pub(super) fn obstacle(node: &NodeInfo) -> Option<Vote> {
    let state = node.info.as_ref().ok()?.node_state.as_deref()?;
    vote_of(node).or(may_not_be_the_master(state).then(|| Vote::Unavailable(state.into())))
}

/// Whether a quorum of the nodes knows who holds the lock.
pub(super) fn is_known(nodes: &[NodeInfo]) -> bool {
    Quorum::is_majority(nodes.iter().filter(|node| is_known_to(node)).count(), nodes.len())
}

/// The warnings about nodes whose report about a lock may be wrong.
pub(super) async fn of_lock(locker: &Locker, nodes: &[NodeInfo]) -> Vec<String> {
    let mut told = match nodes.iter().any(|node| vote_of(node).is_some()) {
        true => replicas(&locker.survey(0).await),
        false => Vec::new(),
    };
    let waits = |node: &NodeInfo| {
        let info = node.info.as_ref().ok()?;
        forgetful(&node.place(), info.quarantine_left, info.node_state.as_deref())
    };
    told.extend(nodes.iter().filter_map(waits));
    told
}

/// Waits until nodes that were hindered have taken their releases, and names those that have not:
/// their leases stay until they end. A replica takes its releases from its master. `patience`: how
/// long a node has that cannot be reached or refuses, if that is longer than the timeout.
pub(super) async fn not_told(locker: &Locker, patience: Duration) -> Option<String> {
    locker.discharge(&[], [patience, Duration::ZERO]).await;
    let owing = locker.owing();
    let replicas = match owing.is_empty() {
        true => Vec::new(),
        false => listed_replicas(&locker.survey(0).await),
    };
    let owing = owing.iter().filter(|node| !replicas.contains(node));
    let names: Vec<String> = owing.map(|node| rows::shown(node.as_bytes())).collect();
    let text = "the release did not reach";
    (!names.is_empty())
        .then(|| format!("{text} {}: the lease may stay there until it ends", names.join(", ")))
}

/// The nodes that are replicas of another node of the list, which tells them of a release.
fn listed_replicas(survey: &Survey) -> Vec<Arc<str>> {
    let is_listed_replica = |node: &&NodeSurvey| {
        let status = node.status.as_ref().ok().filter(|status| !status.is_master);
        let master = status.and_then(|status| status.master.as_deref());
        master.is_some_and(|master| is_listed(survey, last_master(survey, master)))
    };
    survey.nodes.iter().filter(is_listed_replica).map(|node| Arc::clone(&node.node)).collect()
}

/// The warning about the end of a lease, with its ttl.
pub(super) async fn of_end(
    locker: &Locker,
    lease: (&Name, Duration),
    released: Result<(), ReleaseError>,
) -> Option<String> {
    match released {
        Ok(()) => not_told(locker, RESTART).await,
        Err(error) => Some(of_release(locker, lease, error).await.text().to_owned()),
    }
}

/// Why a lease with this ttl was not released. Nodes that may have forgotten a lease cannot tell
/// that it had ended.
pub(super) async fn of_release(
    locker: &Locker,
    (name, ttl): (&Name, Duration),
    error: ReleaseError,
) -> Failure {
    let infos = locker.info(name).await;
    let failure = not_released(error, &infos, ttl);
    failure.but_each(of_lock(locker, &infos).await)
}

fn not_released(error: ReleaseError, infos: &[NodeInfo], ttl: Duration) -> Failure {
    match error {
        ReleaseError::NotHeld(nodes) if !is_known(infos) => {
            let text = "the lease had ended before it was released, or was forgotten";
            Failure::lost(format!("{text}: {}", Summary(&nodes)), nodes)
        }
        // A renewal may have just reached nodes that do not answer.
        error @ (ReleaseError::NoQuorum(_) | ReleaseError::Refused(_)) => {
            let left = Length(ttl);
            Failure::from(error).but(&format!("the lock may stay held for up to {left} more"))
        }
        error @ (ReleaseError::NotHeld(_) | ReleaseError::BadOption(_)) => error.into(),
    }
}

/// The same failure, with what its nodes do not tell themselves.
pub(super) async fn named(locker: &Locker, failure: Failure) -> Failure {
    let advice = advice(locker, failure.nodes()).await;
    failure.but_each(advice)
}

/// What nodes with these votes do not tell themselves: the masters of replicas, the masters of a
/// Cluster for which the others may wait or without which it is down, and what gives a master its
/// authority back.
pub(super) async fn advice(locker: &Locker, reports: &[NodeReport]) -> Vec<String> {
    let has = |is: fn(&Vote) -> bool| reports.iter().any(|report| is(&report.vote));
    let mut told = Vec::new();
    if has(is_replica) || has(|vote| says(vote, &code::TRYAGAIN)) {
        let survey = locker.survey(0).await;
        let statuses = survey.nodes.iter().filter_map(|node| node.status.as_ref().ok());
        let shares = statuses.filter_map(|status| status.slots.as_ref());
        let silent = shares.flat_map(|share| &share.silent).map(ToString::to_string);
        told.extend(replicas(&survey).into_iter().chain(silent));
    }
    if has(|vote| says(vote, &code::CLUSTERDOWN)) {
        let silent = locker.silent_masters().await;
        let mut silent: Vec<String> = silent.iter().map(ToString::to_string).collect();
        silent.retain(|text| !told.contains(text));
        told.extend(silent);
    }
    told.extend(reports.iter().filter_map(remedy));
    told
}

/// What to do about each master whose state does not say it.
pub(super) fn remedies(survey: &Survey) -> Vec<String> {
    let told = survey.nodes.iter().flat_map(|node| {
        let status = node.status.as_ref().ok().filter(|status| status.is_master);
        let reports: Vec<NodeReport> = match status.and_then(|status| status.slots.as_ref()) {
            Some(share) => share.failing.iter().map(|master| master.report.clone()).collect(),
            None => status
                .and_then(NodeStatus::abstention)
                .map(|vote| node.report(vote))
                .into_iter()
                .collect(),
        };
        reports.iter().filter_map(remedy).collect::<Vec<_>>()
    });
    told.collect()
}

/// Whether this is the answer of a node with this code.
fn says(vote: &Vote, code: &code::Code) -> bool {
    matches!(vote, Vote::Unavailable(text) if code::word_of(text) == code.word)
}

/// What to do about a master that lacks replicas, by this vote.
fn remedy(report: &NodeReport) -> Option<String> {
    let place = rows::shown(report.master.as_ref().unwrap_or(&report.node).as_bytes());
    if says(&report.vote, &code::NOREPLICAS) {
        return Some(format!(
            "fewer replicas are in step with {place} than its min-replicas-to-write: bring them \
             back, or lower that setting"
        ));
    }
    says(&report.vote, &code::NOAUTHORITY).then(|| {
        format!(
            "replicas must be attached to {place}, which takes some 10 seconds after a start or a \
             failover: if it lasts, see whether another server is the master by now, {ATTACH} \
             (masterauth); only if the group was never meant to have as many as its \
             lockmod.replicas, set that to their number on all servers, and restart them"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Absence, LockInfo, NodeFields, SlotShare};

    /// The URL was named, which leads to all masters.
    #[test]
    fn of_a_cluster_the_master_in_quarantine_is_named() {
        let quarantine = |text: &str| Vote::Quarantined { left: None, text: text.into() };
        let failing = |node: &str, vote| FailingMaster {
            report: NodeReport::new(node.into(), vote),
            slots: 1,
            status: None,
        };
        let failing = vec![failing("m:1", Vote::TimedOut), failing("m:2", quarantine("x"))];
        let share = SlotShare { failing, ..SlotShare::default() };
        let quarantine_left = Some(Duration::from_secs(7));
        let status = NodeStatus {
            is_master: true,
            quarantine_left,
            slots: Some(share),
            ..NodeStatus::default()
        };
        let masters = ["m:1", "m:2", "m:3"].map(Into::into).to_vec();
        let node = NodeSurvey { masters, ..NodeSurvey::of("c:1", Ok(status)) };
        let told = "c:1 at m:2 is in quarantine for 7s: it may have forgotten who holds a lock";
        assert_eq!(doubt(&node).as_deref(), Some(told));
    }

    #[test]
    fn masters_that_may_not_be_asked_whether_their_cluster_is_down_are_named() {
        let denied = |at: usize| {
            let vote = Vote::NoPermission("NOPERM".into());
            NodeReport::new(format!("m:{at}").into(), vote)
        };
        let told = |count: usize| {
            let share =
                SlotShare { unseen: (1..=count).map(denied).collect(), ..Default::default() };
            let status = NodeStatus { slots: Some(share), ..NodeStatus::default() };
            unseen(&Survey::of(vec![NodeSurvey::of("c:1", Ok(status))], 1)).concat()
        };
        assert_eq!(told(0), "");
        assert!(told(2).starts_with("c:1: the user may not run CLUSTER INFO at m:1, m:2: while"));
        assert!(told(6).contains(" at m:1, m:2, m:3, m:4, 2 more: while the Cluster is down"));
    }

    /// Regression: the row looked as if all was well.
    #[test]
    fn a_master_that_lacks_some_of_its_replicas_is_named_while_it_grants() {
        let told = |supporters: usize| {
            let text = format!(
                "lockmod_replicas:4\r\nlockmod_supporters:{supporters}\r\n\
                 lockmod_supporters_needed:2\r\n"
            );
            let fields = NodeFields::read(&text);
            let status = NodeStatus { is_master: true, fields, ..NodeStatus::default() };
            lacking(&Survey::of(vec![NodeSurvey::of("c:1", Ok(status))], 1)).concat()
        };
        assert_eq!([told(4), told(1)], ["", ""]);
        let text = "c:1: it has 2 of 4 replicas, and grants nothing if another one is lost: start";
        assert!(told(2).starts_with(text), "{}", told(2));
        assert!(told(3).contains(" if 2 more are lost: "), "{}", told(3));
    }

    #[test]
    fn a_replica_that_should_follow_a_master_is_named_with_the_reason() {
        let told = |reason| {
            let missing = MissingReplica::of(["s:1/g", "m:1", "r:\n1"], reason);
            super::missing(&[missing]).concat()
        };
        let text = r"s:1/g at m:1: r:\n1 should follow it, and does not: ";
        assert_eq!(told(Some(Absence::LinkDown)), format!("{text}its link to the master is down"));
        assert_eq!(told(None), format!("{text}it does not tell this user why"));
    }

    /// Regression: it was said to give the master, which was given.
    #[test]
    fn a_replica_whose_master_is_listed_is_to_be_left_out() {
        let node = |name: &str, master: Option<&str>| {
            let is_master = master.is_none();
            let master = master.map(str::to_owned);
            let status = NodeStatus { is_master, master, ..NodeStatus::default() };
            NodeSurvey::of(name, Ok(status))
        };
        let told = |nodes: Vec<NodeSurvey>| replicas(&Survey::of(nodes, 1)).concat();
        let text = "b:1 is a replica, which has no vote";
        let alone = told(vec![node("b:1", Some("a:1"))]);
        assert_eq!(alone, format!("{text}: give its master a:1 instead"));
        let both = told(vec![node("a:1", None), node("b:1", Some("a:1"))]);
        assert_eq!(both, format!("{text}: leave it out"));
        let group = NodeSurvey { masters: vec!["a:1".into()], ..node("s:1/g", None) };
        let both = told(vec![group, node("b:1", Some("a:1"))]);
        assert_eq!(both, format!("{text}: leave it out"));
        // Regression: its own master follows another one, and was said to be the master.
        let chain = || vec![node("a:1", Some("c:1")), node("b:1", Some("a:1"))];
        let unlisted = told(chain());
        assert!(unlisted.ends_with(&format!("{text}: give its master c:1 instead")), "{unlisted}");
        let listed = told([chain(), vec![node("c:1", None)]].concat());
        assert!(listed.ends_with(&format!("{text}: leave it out")), "{listed}");
    }

    #[test]
    fn what_a_master_without_replicas_needs_is_said_of_the_right_one() {
        let vote = Vote::Unavailable(code::NOAUTHORITY.says("0 of the 1").into());
        let report = NodeReport::new("c:1".into(), vote);
        let told = remedy(&report).unwrap();
        assert!(told.starts_with("replicas must be attached to c:1, which takes"), "{told}");
        let report = NodeReport { master: Some("m:2".into()), ..report };
        assert!(remedy(&report).unwrap().contains(" to m:2, "));
        let vote = Vote::Unavailable("NOREPLICAS Not enough good replicas to write.".into());
        let told = remedy(&NodeReport { vote, ..report.clone() }).unwrap();
        assert!(told.contains("with m:2 than its min-replicas-to-write: bring"), "{told}");
        assert_eq!(remedy(&NodeReport { vote: Vote::TimedOut, ..report }), None);
    }

    /// The lock was said to be gone, and the second time that nobody knew.
    #[test]
    fn a_node_that_may_have_been_replaced_cannot_tell_that_a_lock_is_gone() {
        let node = |info| NodeInfo::new("n".into(), Ok(info));
        let left = Some(Duration::from_secs(7));
        let waiting = node(LockInfo { quarantine_left: left, ..LockInfo::default() });
        let with = |state| node(LockInfo { node_state: Some(state), ..LockInfo::default() });
        let alone = with(code::NOAUTHORITY.says("0 of 1"));
        let replica = with(code::READONLY.says("a replica"));
        // A user may delete a lock without the right to look at it.
        let unseen = NodeInfo::new("n".into(), Err(Vote::NoPermission("NOPERM".into())));
        for (vote, node, is_gone) in [
            (Vote::Confirmed, node(LockInfo::default()), true),
            (Vote::NotHeld, node(LockInfo::default()), true),
            (Vote::Confirmed, waiting.clone(), true),
            (Vote::NotHeld, waiting, false),
            (Vote::Confirmed, alone.clone(), false),
            (Vote::NotHeld, alone, false),
            (Vote::NotHeld, replica, false),
            (Vote::Confirmed, unseen.clone(), true),
            (Vote::NotHeld, unseen, true),
            (Vote::TimedOut, node(LockInfo::default()), false),
        ] {
            assert_eq!(super::is_gone(&vote, &node), is_gone, "{vote}: {node:?}");
        }
    }

    /// The error stated as a fact that the lease had ended.
    #[test]
    fn nodes_in_quarantine_and_replicas_do_not_know_that_a_lease_had_ended() {
        let node = |info| NodeInfo::new("n".into(), Ok(info));
        let knowing = || node(LockInfo::default());
        let left = Some(Duration::from_secs(7));
        let forgetful = || node(LockInfo { quarantine_left: left, ..LockInfo::default() });
        let state = Some(code::READONLY.says("a replica"));
        let replica = || node(LockInfo { node_state: state.clone(), ..LockInfo::default() });
        let state = Some(code::NOAUTHORITY.says("0 of 1"));
        let alone = || node(LockInfo { node_state: state.clone(), ..LockInfo::default() });
        let silent = || NodeInfo::new("n".into(), Err(Vote::TimedOut));
        for (infos, is_certain) in [
            (vec![knowing(), knowing(), forgetful()], true),
            (vec![knowing(), knowing(), replica()], true),
            (vec![knowing(), replica(), forgetful()], false),
            (vec![knowing(), silent(), forgetful()], false),
            (vec![forgetful()], false),
            (vec![alone()], false),
            (vec![knowing(), knowing(), alone()], true),
        ] {
            let votes = infos.iter().map(|_| NodeReport::new("n".into(), Vote::NotHeld));
            let error = ReleaseError::NotHeld(votes.collect());
            let failure = not_released(error, &infos, Duration::from_secs(9));
            let said = failure.text();
            assert_eq!(failure.code, Failure::LOST);
            assert_eq!(said.contains("or was forgotten"), !is_certain, "{said}");
        }
    }
}
