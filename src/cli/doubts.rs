//! Why what nodes say may not be so: replicas, which have no vote and may be behind, and nodes in
//! quarantine, which may have forgotten.

use std::time::Duration;

use super::failure::Failure;
use super::rows;
use super::values::Name;
use crate::client::{
    Length, Locker, NodeInfo, NodeSurvey, ReleaseError, SAME_SERVER, Summary, Survey, Vote,
};
use crate::engine::Quorum;
use crate::wire::code;

/// Whether the node is a replica, by what it said to a command.
pub(super) fn is_replica(vote: &Vote) -> bool {
    matches!(vote, Vote::Unavailable(text) if code::word_of(text) == code::READONLY.word)
}

/// The vote of a node that told of a lock, and that it is a replica.
pub(super) fn vote_of(node: &NodeInfo) -> Option<Vote> {
    let vote = Vote::Unavailable(node.info.as_ref().ok()?.node_state.as_deref()?.into());
    is_replica(&vote).then_some(vote)
}

/// The vote of a node that grants nothing: it is in quarantine for so much longer, or says this of
/// its state; `None` if neither.
pub(super) fn abstention(left: Option<Duration>, state: Option<&str>) -> Option<Vote> {
    match left {
        Some(_) => Some(Vote::Quarantined { left, text: state.unwrap_or_default().into() }),
        None => state.map(|state| Vote::Unavailable(state.into())),
    }
}

/// What is to be said of each replica.
pub(super) fn replicas(survey: &Survey) -> Vec<String> {
    let told = survey.nodes.iter().filter_map(|node| {
        let status = node.status.as_ref().ok().filter(|status| !status.is_master)?;
        let node = rows::shown(node.node.as_bytes());
        let master = status.master.as_ref().map(|master| rows::shown(master.as_bytes()));
        let master =
            master.map_or_else(|| "its master".to_owned(), |at| format!("its master {at}"));
        Some(format!("{node} is a replica, which has no vote: give {master} instead"))
    });
    told.collect()
}

/// What is to be said of each node that is another one by a second name.
pub(super) fn doubles(survey: &Survey) -> Vec<String> {
    let is_double = |node: &&NodeSurvey| match &node.status {
        Err(Vote::Unreachable(text)) => &**text == SAME_SERVER,
        Ok(_) | Err(_) => false,
    };
    let told = survey.nodes.iter().filter(is_double).map(|node| {
        let name = rows::shown(node.node.as_bytes());
        format!("{name} is the same server as another node, and has no vote of its own: remove it")
    });
    told.collect()
}

/// What is to be said of each node in quarantine.
pub(super) fn quarantines(survey: &Survey) -> Vec<String> {
    let told = survey.nodes.iter().filter_map(|node| {
        Some(quarantine(&node.node, node.status.as_ref().ok()?.quarantine_left?))
    });
    told.collect()
}

fn quarantine(node: &str, left: Duration) -> String {
    let (node, left) = (rows::shown(node.as_bytes()), Length(left));
    format!("{node} is in quarantine for {left}: it may have forgotten who holds a lock")
}

/// For how much longer the node is in quarantine, by what it told of a lock.
pub(super) fn quarantine_left(node: &NodeInfo) -> Option<Duration> {
    node.info.as_ref().ok()?.quarantine_left
}

/// Whether the node knows who holds the lock that it told of.
pub(super) fn is_known_to(node: &NodeInfo) -> bool {
    node.info.is_ok() && quarantine_left(node).is_none() && vote_of(node).is_none()
}

/// Whether a quorum of the nodes knows who holds the lock.
pub(super) fn is_known(nodes: &[NodeInfo]) -> bool {
    Quorum::is_majority(nodes.iter().filter(|node| is_known_to(node)).count(), nodes.len())
}

/// What is to be said of the nodes that told of a lock, and may be wrong.
pub(super) async fn of_lock(locker: &Locker, nodes: &[NodeInfo]) -> Vec<String> {
    let mut told = match nodes.iter().any(|node| vote_of(node).is_some()) {
        true => replicas(&locker.survey(0).await),
        false => Vec::new(),
    };
    let waits = |node: &NodeInfo| Some(quarantine(&node.node, quarantine_left(node)?));
    told.extend(nodes.iter().filter_map(waits));
    told
}

/// Waits until nodes that were cut off have taken their releases, for as long as a node is waited
/// for, and names those that have not: what they granted stays there until it ends.
pub(super) async fn not_told(locker: &Locker) -> Option<String> {
    locker.settle().await;
    let owing = locker.owing();
    let names: Vec<String> = owing.iter().map(|node| rows::shown(node.as_bytes())).collect();
    let text = "the release did not reach";
    (!names.is_empty())
        .then(|| format!("{text} {}: the lease may stay there until it ends", names.join(", ")))
}

/// What is to be said of the end of a lease.
pub(super) async fn of_end(
    locker: &Locker,
    name: &Name,
    released: Result<(), ReleaseError>,
) -> Option<String> {
    match released {
        Ok(()) => not_told(locker).await,
        Err(error) => Some(of_release(locker, name, error).await.text().to_owned()),
    }
}

/// Why a lease was not released. Nodes that may have forgotten it do not know that it had ended.
pub(super) async fn of_release(locker: &Locker, name: &Name, error: ReleaseError) -> Failure {
    let infos = locker.info(name).await;
    let failure = not_released(error, &infos);
    failure.but_each(of_lock(locker, &infos).await)
}

fn not_released(error: ReleaseError, infos: &[NodeInfo]) -> Failure {
    match error {
        ReleaseError::NotHeld(nodes) if !is_known(infos) => {
            let text = "the lease had ended before it was released, or was forgotten";
            Failure::lost(format!("{text}: {}", Summary(&nodes)), nodes)
        }
        error @ (ReleaseError::NotHeld(_)
        | ReleaseError::NoQuorum(_)
        | ReleaseError::BadOption(_)) => error.into(),
    }
}

/// The same failure, with what is to be said of replicas if there are any.
pub(super) async fn named(locker: &Locker, failure: Failure) -> Failure {
    if !failure.nodes().iter().any(|report| is_replica(&report.vote)) {
        return failure;
    }
    failure.but_each(replicas(&locker.survey(0).await))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{LockInfo, NodeReport};

    /// It was told as a fact that the lease had ended.
    #[test]
    fn nodes_in_quarantine_and_replicas_do_not_know_that_a_lease_had_ended() {
        let node = |info| NodeInfo::new("n".into(), Ok(info));
        let knowing = || node(LockInfo::default());
        let left = Some(Duration::from_secs(7));
        let forgetful = || node(LockInfo { quarantine_left: left, ..LockInfo::default() });
        let state = Some(code::READONLY.says("a replica"));
        let replica = || node(LockInfo { node_state: state.clone(), ..LockInfo::default() });
        let silent = || NodeInfo::new("n".into(), Err(Vote::TimedOut));
        for (infos, is_certain) in [
            (vec![knowing(), knowing(), forgetful()], true),
            (vec![knowing(), knowing(), replica()], true),
            (vec![knowing(), replica(), forgetful()], false),
            (vec![knowing(), silent(), forgetful()], false),
            (vec![forgetful()], false),
        ] {
            let votes = infos.iter().map(|_| NodeReport { node: "n".into(), vote: Vote::NotHeld });
            let failure = not_released(ReleaseError::NotHeld(votes.collect()), &infos);
            let said = failure.text();
            assert_eq!(failure.code, Failure::LOST);
            assert_eq!(said.contains("or was forgotten"), !is_certain, "{said}");
        }
    }
}
