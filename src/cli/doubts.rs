//! Why what nodes say may not be so: replicas, which have no vote and may be behind, and nodes in
//! quarantine, which may have forgotten.

use super::failure::Failure;
use super::rows;
use crate::client::{Length, Locker, NodeInfo, Survey, Vote};
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

/// What is to be said of each node in quarantine.
pub(super) fn quarantines(survey: &Survey) -> Vec<String> {
    let told = survey.nodes.iter().filter_map(|node| {
        let left = Length(node.status.as_ref().ok()?.quarantine_left?);
        let node = rows::shown(node.node.as_bytes());
        Some(format!("{node} is in quarantine for {left}: it may have forgotten who holds a lock"))
    });
    told.collect()
}

/// The same failure, with what is to be said of replicas if there are any.
pub(super) async fn named(locker: &Locker, failure: Failure) -> Failure {
    if !failure.nodes().iter().any(|report| is_replica(&report.vote)) {
        return failure;
    }
    replicas(&locker.survey(0).await).into_iter().fold(failure, |failure, text| failure.but(&text))
}
