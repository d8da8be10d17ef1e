//! Commands that ask the nodes once and print their answers.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use super::args::{Acquire, ByName, Extend, List, Release};
use super::failure::{Failure, warn};
use super::json::Json;
use super::out::cut;
use super::rows::shown_name;
use super::signals::Signals;
use super::values::Name;
use super::{doubts, out, rows, waiting};
use crate::client::{
    FenceError, LISTED_MAX, Length, LockInfo, LockState, LockSurvey, Locker, NodeField, NodeInfo,
    NodeReport, NodeSurvey, ReleaseError, Share, Summary, Survey, Vote,
};
use crate::engine::{Fence, Quorum, Uncounted};
use crate::wire::{code, outcome};

pub(super) async fn acquire(args: Acquire) -> Result<(), Failure> {
    let (name, builder) = (&args.claim.name, args.claim.builder(args.wait)?);
    let (locker, mut signals) = (builder.renew(false).build()?, Signals::new()?.or_closed_pipe()?);
    let guard =
        waiting::acquire(&locker, (&args.claim, args.wait), &mut signals, args.json).await?;
    // This also gives the commands to slow nodes time to be written.
    let mistakes = doubts::mistakes(&locker).await;
    if guard.is_lost() {
        let lost = guard.lost().await;
        let failure = Failure::lost_while_held((name, " at once"), lost, &guard);
        drop(guard.release().await);
        return Err(failure);
    }
    // Only now: until here the validity has become shorter.
    let lease = guard.leak();
    let token = hex::encode(lease.token);
    let printed = if args.json {
        let fields = [
            ("token", Json::text(token)),
            ("fence", Json::Number(lease.fence.get())),
            ("shared", Json::Bool(args.claim.shared)),
            ("validity_ms", Json::millis(Some(lease.valid_for))),
        ];
        out::line(Json::of_lock(&name.0, fields))
    } else {
        let kind = if args.claim.shared { ", as a reader" } else { "" };
        out::lines([
            format!("token {token}"),
            format!("fence {}", lease.fence),
            format!("valid for {}{kind}", Length::rounded_down(lease.valid_for)),
        ])
    };
    mistakes.iter().for_each(|text| warn(text, args.json));
    match printed {
        Ok(()) => Ok(()),
        Err(unprinted) => Err(give_back(&locker, (name, &lease.token), unprinted).await),
    }
}

/// Releases a lock whose token was not printed: it is known only here. Returns the failure.
async fn give_back(
    locker: &Locker,
    (name, token): (&Name, &[u8]),
    unprinted: out::Unprinted,
) -> Failure {
    let failure = Failure::from(unprinted);
    match locker.release_by_token_within(&name.0, token, doubts::RESTART).await {
        Ok(()) => failure.but("the token was not printed, so the lock was released"),
        Err(error) => failure.but(&format!("the token was not printed, but {error}")),
    }
}

pub(super) async fn release(args: Release) -> Result<(), Failure> {
    if args.token.is_none() && !args.force {
        let text = "give the token that `acquire` printed, or --force to take the lock from \
                    whoever holds it";
        return Err(Failure::usage(text));
    }
    let locker = args.lock.connection.locker()?;
    let Some(token) = &args.token else { return force_release(&locker, &args.lock).await };
    let name = &args.lock.name.0;
    match locker.release_by_token_within(name, &token.0, doubts::RESTART).await {
        Ok(()) => {
            print(&args.lock, [("released", Json::Bool(true))], "released")?;
            // Who has never granted the lease is not waited for in vain.
            let not_told = doubts::not_told(&locker, Duration::ZERO).await;
            not_told.iter().for_each(|text| warn(text, args.lock.json));
            Ok(())
        }
        Err(ReleaseError::NotHeld(_)) => Err(not_the_holder(&locker, &args.lock.name).await),
        Err(error @ (ReleaseError::NoQuorum(_) | ReleaseError::Refused(_))) => {
            let infos = locker.info(&args.lock.name).await;
            let failure = Failure::from(error).but(&still_held(&infos));
            Err(doubts::named(&locker, failure).await)
        }
        Err(error) => Err(error.into()),
    }
}

/// Until when a lease stands that was not released, as far as the nodes tell: until a quorum of
/// them is free.
fn still_held(infos: &[NodeInfo]) -> String {
    let told = infos.iter().filter_map(|node| node.info.as_ref().ok());
    let left = |info: &LockInfo| info.left.filter(|_| info.state == LockState::Held);
    let mut lefts: Vec<Option<Duration>> = told.map(left).collect();
    lefts.sort_unstable();
    let needed = Quorum::of(infos.len()).map_or(0, Quorum::needed);
    let free = lefts.get(needed.saturating_sub(1)).or(lefts.last());
    match free.copied().flatten() {
        Some(left) => {
            let left = Length(left);
            format!("the lock is still held, until its lease ends in {left} or it is released")
        }
        None => "where it was not released, the lock stays held until its lease ends".to_owned(),
    }
}

/// The error for a token that does not hold the lock: who does, and for how long.
async fn not_the_holder(locker: &Locker, name: &Name) -> Failure {
    let infos = locker.info(name).await;
    let nodes: Vec<NodeReport> = infos.iter().map(holder).collect();
    let is_held = nodes.iter().any(|report| matches!(report.vote, Vote::Held { .. }));
    let others = nodes.iter().filter(|report| report.vote == Vote::WrongType).count();
    if Quorum::is_majority(others, nodes.len()) {
        let all = nodes.len();
        return unanswered(Some(name), nodes, all);
    }
    let text = if is_held {
        format!("the token does not hold lock '{name}': {}", Summary(&nodes))
    } else if doubts::is_known(&infos) {
        format!("the token does not hold lock '{name}' any more, and nobody else does")
    } else {
        let text = format!("the token does not hold lock '{name}', and no quorum knows who does");
        format!("{text}: {}", Summary(&nodes))
    };
    let told = doubts::of_lock(locker, &infos).await;
    Failure::lost(text, nodes).but_each(told)
}

/// Who holds the lock according to the node, or why the node does not know.
fn holder(node: &NodeInfo) -> NodeReport {
    let vote = match &node.info {
        Ok(info) if info.state == LockState::Held => {
            Vote::held(LockInfo { label: rows::label(info), ..info.clone() })
        }
        Ok(info) => match (doubts::obstacle(node), info.quarantine_left) {
            (Some(vote), _) => vote,
            (None, Some(left)) => {
                let text = info.quarantine_reason.as_deref().unwrap_or_default();
                Vote::Quarantined { left: Some(left), text: text.into() }
            }
            (None, None) => Vote::NotHeld,
        },
        Err(vote) => vote.clone(),
    };
    node.report(vote)
}

/// Deletes the lock wherever it is.
async fn force_release(locker: &Locker, lock: &ByName) -> Result<(), Failure> {
    let name = &lock.name;
    let nodes = locker.force_release(name).await;
    let infos = locker.info(name).await;
    let nodes: Vec<NodeReport> = nodes.into_iter().zip(&infos).map(without_replica).collect();
    let doubts = doubts::of_lock(locker, &infos).await;
    let deleted = nodes.iter().filter(|report| report.vote == Vote::Confirmed).count();
    let is_certain =
        |(report, node): &(&NodeReport, &NodeInfo)| doubts::is_gone(&report.vote, node);
    let certain = nodes.iter().zip(&infos).filter(is_certain).count();
    if deleted == 0 || !Quorum::is_majority(certain, nodes.len()) {
        let failure = not_deleted(name, nodes, &infos);
        return Err(failure.but_each(doubts));
    }
    let text = rows::deleted_on(&nodes);
    let fields =
        [("deleted_on", Json::Number(deleted as u64)), ("nodes", Json::Number(nodes.len() as u64))];
    print(lock, fields, text)?;
    warn("a holder learns of it at its next renewal, and may go on until then", lock.json);
    doubts.iter().for_each(|text| warn(text, lock.json));
    Ok(())
}

/// What a node did. A replica cannot know that a lock is not held.
fn without_replica((report, node): (NodeReport, &NodeInfo)) -> NodeReport {
    match doubts::vote_of(node) {
        Some(vote) if report.vote == Vote::NotHeld => NodeReport { vote, ..report },
        Some(_) | None => report,
    }
}

/// Why a lock was not deleted, or not on enough nodes.
fn not_deleted(name: &Name, nodes: Vec<NodeReport>, infos: &[NodeInfo]) -> Failure {
    let has = |vote: Vote| move |report: &&NodeReport| report.vote == vote;
    let deleted = nodes.iter().filter(has(Vote::Confirmed)).count();
    let is_free = |(report, node): &(&NodeReport, &NodeInfo)| {
        report.vote == Vote::NotHeld && doubts::is_known_to(node)
    };
    let free = nodes.iter().zip(infos).filter(is_free).count();
    let absent = nodes.iter().filter(has(Vote::NotHeld)).count();
    let failed = nodes.iter().filter(|report| report.vote != Vote::NotHeld);
    let failed: Vec<String> = failed.map(ToString::to_string).collect();
    if deleted == 0 && Quorum::is_majority(free, nodes.len()) {
        Failure::new(Failure::LOST, format!("nobody holds lock '{name}'")).but_each(failed)
    } else if deleted == 0 && Quorum::is_majority(absent, nodes.len()) {
        let text = format!("no quorum knows whether somebody holds lock '{name}'");
        Failure::new(Failure::NO_QUORUM, text).but_each(failed)
    } else if deleted == 0 {
        let said: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        Failure::of_nodes(format!("lock '{name}' was not deleted: {}", said.join("; ")), nodes)
    } else if Quorum::is_majority(deleted + absent, nodes.len()) {
        let done = rows::deleted_on(&nodes);
        let text = format!("lock '{name}' was {done}, but no quorum knows whether it is held");
        Failure::of_nodes(text, nodes)
    } else {
        Failure::of_nodes(format!("lock '{name}' was only {}", rows::deleted_on(&nodes)), nodes)
    }
}

/// Prints a result as JSON or as text.
fn print<const N: usize>(
    lock: &ByName,
    fields: [(&'static str, Json); N],
    text: impl Display,
) -> Result<(), Failure> {
    let printed =
        if lock.json { out::line(Json::of_lock(&lock.name.0, fields)) } else { out::line(text) };
    Ok(printed?)
}

pub(super) async fn extend(args: Extend) -> Result<(), Failure> {
    let locker = args.lock.connection.builder(&args.ttl)?.build()?;
    let (name, token) = (&args.lock.name, &args.token.0);
    let extended = match args.shared {
        true => locker.downgrade_by_token(name, token).await,
        false => locker.extend_by_token(name, token).await,
    };
    let validity = match extended {
        Ok(validity) => validity,
        Err(error) => {
            let failure = Failure::from(error);
            let is_lost = failure.code == Failure::LOST;
            return Err(if is_lost {
                not_the_holder(&locker, name).await
            } else {
                doubts::named(&locker, failure.over_ttl(&args.ttl)).await
            });
        }
    };
    let fields = [("validity_ms", Json::millis(Some(validity)))];
    let valid_for = Length::rounded_down(validity);
    print(&args.lock, fields, format_args!("valid for {valid_for}"))
}

pub(super) async fn fence(args: ByName) -> Result<(), Failure> {
    let locker = args.connection.locker()?;
    let fence = match locker.fence(&args.name).await {
        Ok(fence) => fence,
        Err(FenceError::NoQuorum(nodes)) => {
            let all = nodes.len();
            let is_failed = |report: &NodeReport| !matches!(report.vote, Vote::Granted(_));
            let failed: Vec<NodeReport> = nodes.into_iter().filter(is_failed).collect();
            let said: Vec<String> = failed.iter().map(ToString::to_string).collect();
            let failure = unanswered(Some(&args.name), failed, all).but(&said.join("; "));
            return Err(doubts::named(&locker, failure).await);
        }
    };
    print(&args, [("fence", Json::Number(fence.get()))], fence)?;
    let survey = locker.survey(0).await;
    if fence == Fence::ZERO {
        warn(unknown_fence(&args.name, &survey), args.json);
    }
    for text in [doubts::replicas(&survey), doubts::quarantines(&survey)].concat() {
        warn(text, args.json);
    }
    Ok(())
}

/// What is known about the fences of a lock that no node knows: the next one is larger than the
/// floors of a quorum.
fn unknown_fence(name: &Name, survey: &Survey) -> String {
    let floor = |node: &NodeSurvey| node.status.as_ref().ok()?.fields.number(NodeField::Floor);
    let mut floors: Vec<u64> =
        survey.nodes.iter().map(|node| floor(node).unwrap_or_default()).collect();
    floors.sort_unstable();
    let least = survey.quorum.checked_sub(1).and_then(|index| floors.get(index)).copied();
    let text = format!("no node knows lock '{name}': it was never held, or was deleted");
    match least.unwrap_or_default() {
        0 => text,
        floor => format!("{text}; its next fence is larger than {floor}"),
    }
}

/// The answer that an extension would get.
fn extension(uncounted: Uncounted) -> Json {
    Json::Number(outcome::number_of(uncounted).unsigned_abs())
}

fn info_fields(node: &str, info: &Result<LockInfo, Vote>) -> Vec<(&'static str, Json)> {
    let mut fields = vec![("node", Json::text(node))];
    match info {
        Ok(info) => {
            fields.extend([
                ("state", Json::text(info.state.to_string())),
                ("fence", Json::Number(info.fence.get())),
                ("ttl_left_ms", Json::millis(info.left)),
            ]);
            fields.extend(Json::of_label(info));
            fields.extend([
                ("held_for_ms", Json::millis(info.held_for)),
                ("readers", Json::Number(info.readers)),
                ("reader_labels", Json::texts(&info.reader_labels)),
                ("waiters", Json::Number(info.waiters)),
                ("waiting_readers", Json::Number(info.waiting_readers)),
                ("first_waiting_ms", Json::millis(info.first_waiting)),
                ("quarantine_left_ms", Json::millis(info.quarantine_left)),
                ("quarantine_reason", Json::text_or_null(info.quarantine_reason.as_ref())),
                ("node_state", Json::text_or_null(info.node_state.as_ref())),
                ("extension", info.uncounted.map_or(Json::Null, extension)),
            ]);
        }
        Err(vote) => fields.push(("error", Json::text(vote.to_string()))),
    }
    fields
}

/// What is known about a lock, in words.
fn lock_line(info: &LockInfo) -> String {
    let mut line = format!("{}, fence {}", info.state, info.fence);
    if info.state == LockState::Held {
        line += &rows::by_whom(info);
        if let Some(held_for) = info.held_for {
            line += &format!(" for {}", Length(held_for));
        }
        if let Some(left) = info.left {
            line += &format!(", up to {} more", Length(left));
        }
    }
    if info.waiters > 0 {
        line += &format!(", {}", rows::in_line(info));
        if let Some(first) = info.first_waiting {
            line += &format!(", the first for {}", Length(first));
        }
    }
    line
}

fn no_lease_known(info: &LockInfo) -> String {
    format!("no lease known, fence {}", info.fence)
}

/// The same, with why it may be wrong, or why the node grants nothing.
fn info_line(info: &LockInfo) -> String {
    let line = match info.state {
        LockState::Free if info.quarantine_left.is_some() => no_lease_known(info),
        LockState::Free | LockState::Held | LockState::Reserved => lock_line(info),
    };
    match (info.quarantine_left, &info.node_state) {
        // It is a quarantine only if the state, if there is one, says so.
        (Some(left), state) if state.as_ref().is_none_or(|state| doubts::is_quarantine(state)) => {
            let left = Length(left);
            format!("{line}; in quarantine for {left} more: the node may have forgotten a lease")
        }
        (_, Some(state)) => format!("{line}; the node grants nothing: {state}"),
        (_, None) => line,
    }
}

pub(super) async fn info(args: ByName) -> Result<(), Failure> {
    let locker = args.connection.locker()?;
    let nodes = locker.info(&args.name).await;
    if args.json {
        let fields = |node: &NodeInfo| {
            let mut fields = info_fields(&node.node, &node.info);
            fields.splice(1..1, Json::of_master(node.master.as_deref()));
            Json::Object(fields)
        };
        let nodes = nodes.iter().map(fields);
        out::line(Json::of_lock(&args.name.0, [("nodes", Json::List(nodes.collect()))]))?;
    } else {
        out::lines(nodes.iter().map(|node| match &node.info {
            Ok(info) => format!("{}: {}", node.place(), info_line(info)),
            Err(vote) => node.report(vote.clone()).to_string(),
        }))?;
    }
    let failed = |node: &NodeInfo| node.info.as_ref().err().cloned().or(doubts::vote_of(node));
    let votes: Vec<_> =
        nodes.iter().map(|node| failed(node).map(|vote| node.report(vote))).collect();
    let vote = |node: &NodeInfo| match &node.info {
        Ok(info) => Vote::of_obstacle_in(info),
        Err(vote) => Some(vote.clone()),
    };
    let reports = nodes.iter().filter_map(|node| Some(node.report(vote(node)?)));
    let advice = doubts::advice(&locker, &reports.collect::<Vec<_>>()).await;
    advice.iter().for_each(|text| warn(text, args.json));
    answered(Some(&args.name), votes.into_iter())
}

/// An error unless a quorum of masters has answered: for each node that has not, its report.
fn answered(
    name: Option<&Name>,
    nodes: impl ExactSizeIterator<Item = Option<NodeReport>>,
) -> Result<(), Failure> {
    let all = nodes.len();
    let failed: Vec<NodeReport> = nodes.flatten().collect();
    let count = all - failed.len();
    if Quorum::is_majority(count, all) {
        return Ok(());
    }
    Err(unanswered(name, failed, all))
}

/// The error if too few of `all` nodes reported the lock; `failed` are the others.
fn unanswered(name: Option<&Name>, failed: Vec<NodeReport>, all: usize) -> Failure {
    let others = failed.iter().filter(|report| report.vote == Vote::WrongType).count();
    let text = match name.filter(|_| others > 0) {
        Some(name) => {
            format!("'{name}' is not a lock: on {} the key has another type", Share(others, all))
        }
        None if failed.iter().any(|report| doubts::is_replica(&report.vote)) => {
            format!("{} answered as masters: no quorum", Share(all - failed.len(), all))
        }
        None => {
            let what = if name.is_none() { "reported all its locks" } else { "answered" };
            format!("{} {what}: no quorum", Share(all - failed.len(), all))
        }
    };
    Failure::without_quorum(text, failed, all)
}

/// Why a node's list does not count; `None` if it does.
fn failure(node: &NodeSurvey) -> Option<Vote> {
    match &node.status {
        Ok(_) if node.unlisted.is_some() => node.unlisted.clone(),
        Ok(status) if status.is_master => {
            doubts::unknown_slots(node).map(|text| Vote::Unavailable(text.into()))
        }
        Ok(_) => Some(Vote::Unavailable(code::READONLY.says(code::IS_REPLICA).into())),
        Err(vote) => Some(vote.clone()),
    }
}

fn listed_json(name: &[u8], infos: &[(&str, &LockInfo)]) -> Json {
    let of_node =
        |(node, info): &(&str, &LockInfo)| Json::Object(info_fields(node, &Ok((*info).clone())));
    let nodes = infos.iter().map(of_node).collect();
    Json::of_lock(name, [("nodes", Json::List(nodes))])
}

/// The most telling report, and on how many nodes the holder has the lock.
fn listed_line(lock: &LockSurvey, all: usize, is_certain: bool) -> String {
    let line = match lock.best() {
        Some(best) if best.state == LockState::Free && !is_certain => no_lease_known(best),
        best => best.map(lock_line).unwrap_or_default(),
    };
    let mut told = format!("held on {}", Share(lock.held_count(), all));
    if lock.held_provisionally() > 0 {
        told += &format!(", not counting yet on {}", lock.held_provisionally());
    }
    if lock.held_otherwise() > 0 {
        told += &format!(", with another fence or label on {}", lock.held_otherwise());
    }
    format!("{line} ({told})")
}

/// The nodes' reports about each lock to list.
fn by_name(survey: &Survey, with_free: bool) -> BTreeMap<&[u8], Vec<(&str, &LockInfo)>> {
    let is_wanted = |info: &LockInfo| with_free || info.state != LockState::Free;
    let mut locks: BTreeMap<&[u8], Vec<(&str, &LockInfo)>> = BTreeMap::new();
    for (name, lock) in &survey.locks {
        for (node, info) in survey.nodes.iter().zip(&lock.nodes) {
            if let Some(info) = info.as_ref().filter(|info| is_wanted(info)) {
                locks.entry(name).or_default().push((&node.node, info));
            }
        }
    }
    locks
}

/// Why a node's locks are not listed; `None` if they are.
fn unlisted(node: &NodeSurvey) -> Option<String> {
    match (&node.status, &node.unlisted) {
        (Err(vote), _) => Some(node.report(vote.clone()).to_string()),
        (Ok(_), Some(vote)) => Some(format!("{}: its locks cannot be listed: {vote}", node.node)),
        (Ok(_), None) => None,
    }
}

pub(super) async fn list(args: List) -> Result<(), Failure> {
    let locker = args.connection.locker()?;
    let survey = match args.all {
        true => locker.survey_all(LISTED_MAX).await,
        false => locker.survey(LISTED_MAX).await,
    };
    let locks = by_name(&survey, args.all);
    let is_certain = doubts::is_certain(&survey);
    let (is_empty, room) = (locks.is_empty(), out::columns().map(|columns| columns / 2));
    if args.json {
        let locks = locks.into_iter().map(|(name, infos)| listed_json(name, &infos));
        out::line(Json::List(locks.collect()))?;
    } else {
        let all = survey.nodes.len();
        let lines = locks.keys().filter_map(|name| Some((name, survey.locks.get(*name)?)));
        out::lines(lines.map(|(name, lock)| {
            let name = room.map_or_else(|| shown_name(name), |room| cut(&shown_name(name), room));
            format!("{name}: {}", listed_line(lock, all, is_certain))
        }))?;
    }
    survey.nodes.iter().filter_map(unlisted).for_each(|text| warn(text, args.json));
    let doubts =
        [doubts::replicas(&survey), doubts::quarantines(&survey), doubts::incomplete(&survey)]
            .concat();
    for text in doubts.into_iter().chain(rows::rest(&survey, None)) {
        warn(text, args.json);
    }
    let failed = |node: &NodeSurvey| Some(node.report(failure(node)?));
    answered(None, survey.nodes.iter().map(failed))?;
    // For a person; a program counts lines.
    if is_empty && room.is_some() && !args.json {
        out::line(nothing_listed(args.all, is_certain))?;
    }
    Ok(())
}

/// What to tell a person when no lock is listed.
fn nothing_listed(with_free: bool, is_certain: bool) -> &'static str {
    match (with_free, is_certain) {
        (true, true) => "there are no locks",
        (true, false) => "no lock is known",
        (false, true) => "no lock is held; see --all",
        (false, false) => "no lock is known to be held; see --all",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::lock_info;

    #[test]
    fn json_has_each_field_of_a_description_in_its_place() {
        let fields = info_fields("node-1", &Ok(LockInfo::default()));
        let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
        let told: Vec<&str> = ["node"].into_iter().chain(lock_info::field_names()).collect();
        assert_eq!(names, told);
    }

    /// Regression: the longest lease of any node was told, which may be that of somebody else.
    #[test]
    fn a_lock_stays_held_until_a_quorum_is_free() {
        let held = |seconds| {
            let (state, left) = (LockState::Held, Some(Duration::from_secs(seconds)));
            Ok(LockInfo { state, left, ..LockInfo::default() })
        };
        let (free, silent) = (|| Ok(LockInfo::default()), || Err(Vote::TimedOut));
        let said = |infos: Vec<Result<LockInfo, Vote>>| {
            still_held(
                &infos.into_iter().map(|info| NodeInfo::new("n".into(), info)).collect::<Vec<_>>(),
            )
        };
        assert!(said(vec![held(3), held(90), held(4)]).contains("ends in 4s"));
        assert!(said(vec![silent(), held(50), held(4)]).contains("ends in 50s"));
        assert!(said(vec![silent(), silent(), held(9)]).contains("ends in 9s"));
        assert!(said(vec![held(9)]).contains("ends in 9s"));
        for infos in [vec![free(), free(), held(9)], vec![silent(), silent(), silent()]] {
            assert!(said(infos).starts_with("where it was not released"));
        }
    }
}
