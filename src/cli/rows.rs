//! A survey as rows of text: `lockmod status` prints them once, `lockmod top` repeatedly.

use std::cmp::Reverse;
use std::time::Duration;

use crate::client::{
    self, FailingMaster, Length, LockInfo, LockState, LockSurvey, NAME_MAX, NodeField, NodeReport,
    NodeStatus, NodeSurvey, Printable, PrintableName, Share, SlotMove, SlotShare, Support, Survey,
    Vote, is_from_the_way, listed, same_as,
};
use crate::engine::SLOTS;

/// The columns of [`node`].
pub(super) const NODE_COLUMNS: [&str; 7] =
    ["NODE", "ROLE", "STATE", "LOCKS", "GRANTS", "HIGHEST FENCE", "LAG"];
/// The columns of [`lock`].
pub(super) const LOCK_COLUMNS: [&str; 7] =
    ["LOCK", "HOLDER", "FENCE", "HELD FOR", "TIME LEFT", "WAITING", "NODES"];
/// How many labels of readers a table shows at a terminal: more would leave no room for the
/// numbers.
pub(super) const LABELS: usize = 1;
/// The state of a node that grants locks, with fences that the other nodes do not accept.
const OUT_OF_REACH: &str = "fences too high for the other nodes";
/// Between the parts of a state.
const BETWEEN: &str = "; ";
/// The most masters of a Cluster of which a state says what is wrong with them.
const FAILING_NAMED: usize = 3;
/// In place of an unknown value.
const UNKNOWN: &str = "-";

/// How well a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// It grants locks.
    Good,
    /// It does not, and reports why.
    Abstains,
    /// It does not answer as a node does.
    Bad,
}

/// A node's row.
pub(super) fn node(survey: &Survey, node: &NodeSurvey) -> (Health, [String; 7]) {
    let name = place(node);
    let status = match &node.status {
        Ok(status) => status,
        Err(vote) => {
            let unknown = || UNKNOWN.to_owned();
            let row =
                [name, unknown(), vote.to_string(), unknown(), unknown(), unknown(), unknown()];
            return (Health::Bad, row);
        }
    };
    let number = |field| status.fields.number(field).map_or(UNKNOWN.to_owned(), |n| n.to_string());
    let too_high = survey.is_too_high(status).then_some("fences too high to count");
    let too_high = is_out_of_reach(survey, status).then_some(OUT_OF_REACH).or(too_high);
    let mut state = state(status, too_high);
    if let Some(SlotShare { granting, asking: asking @ 1.., .. }) = &status.slots {
        let all = if *granting < SLOTS { "them".to_owned() } else { format!("{SLOTS} slots") };
        state.push(format!("nothing yet in {asking} of {all}"));
    }
    if let Some(count @ 1..) = status.fields.number(NodeField::FailedMoves) {
        let plural = if count == 1 { "" } else { "s" };
        state.push(format!("{count} move{plural} failed"));
    }
    if let Some(vote) = &node.unlisted {
        state.push(format!("its locks cannot be listed: {vote}"));
    }
    let is_good = status.is_granting() && too_high.is_none() && state_failure(status).is_none();
    let health = if is_good { Health::Good } else { Health::Abstains };
    let role = if status.is_master { "master" } else { "replica" };
    let row = [
        name,
        role.to_owned(),
        state.join(BETWEEN),
        number(NodeField::Locks),
        number(NodeField::Grants),
        status.highest_fence.to_string(),
        survey.fence_lag(status).to_string(),
    ];
    (health, row)
}

/// What is wrong with a node that grants locks, but not in all slots, or of no use to a quorum.
pub(super) fn shortfall(survey: &Survey, status: &NodeStatus) -> Option<String> {
    let out_of_reach = is_out_of_reach(survey, status).then(|| OUT_OF_REACH.to_owned());
    in_slots(status).map(|state| state.join(BETWEEN)).or(out_of_reach)
}

/// Whether a node grants locks, with fences that the other nodes do not accept.
fn is_out_of_reach(survey: &Survey, status: &NodeStatus) -> bool {
    status.is_granting() && !survey.has_vote(status)
}

/// The parts of the state of a node that answers: what it grants, how many replicas support it, and
/// what is wrong with its masters. `too_high`: what is wrong with its fences.
fn state(status: &NodeStatus, too_high: Option<&str>) -> Vec<String> {
    if let Some(state) = in_slots(status) {
        return state;
    }
    let support = status.support().filter(|_| status.is_master);
    let grants = match least_left(status) {
        // Its wait has not begun.
        Some(left) if is_alone(status) => format!("grants nothing for at least {}", Length(left)),
        None if is_alone(status) && !status.is_granting() => "grants nothing".to_owned(),
        _ if !status.is_master => "grants nothing: a replica".to_owned(),
        Some(left) => format!("in quarantine for {}", Length(left)),
        None if status.is_granting() => {
            let grants = if status.is_in_cluster { "grants in its slots" } else { "grants" };
            too_high.unwrap_or(grants).to_owned()
        }
        None => match status.fields.text(NodeField::State) {
            Some(reason) => format!("grants nothing: {reason}"),
            None => "grants nothing".to_owned(),
        },
    };
    let failure = state_failure(status).filter(|_| status.is_granting());
    let failure = failure.map(|cause| format!("its state file cannot be written: {cause}"));
    let support = support.map(|support| match alone_master(status) {
        Some(master) => format!("{}: {}", shown(master.report.node.as_bytes()), supported(support)),
        None => supported(support),
    });
    let failing = all_failing(hidden(status).into_iter());
    [Some(grants), failure, support, failing].into_iter().flatten().collect()
}

/// What is wrong with these masters of a Cluster: of the first ones, and how many more there are.
fn all_failing<'a>(masters: impl ExactSizeIterator<Item = &'a FailingMaster>) -> Option<String> {
    let all = masters.len();
    (all > 0).then(|| listed(masters.take(FAILING_NAMED).map(failing).collect(), all, BETWEEN))
}

/// How long the node will grant nothing; of a Cluster in which a master lacks its replicas, the
/// shortest time of a master: no other time is known.
fn least_left(status: &NodeStatus) -> Option<Duration> {
    let masters = status.slots.iter().flat_map(|share| &share.failing);
    let lefts = masters.filter_map(|master| master.status.as_ref()?.quarantine_left);
    let least = lefts.min().filter(|_| is_alone(status));
    least.or(status.quarantine_left)
}

/// Whether a master lacks the support of its replicas; of a Cluster, whether one does.
fn is_alone(status: &NodeStatus) -> bool {
    let support = status.support().filter(|_| status.is_master);
    support.is_some_and(|support| support.supporters < support.needed)
}

/// The first master of a Cluster that lacks the support of its replicas: the Cluster's row has its
/// numbers.
fn alone_master(status: &NodeStatus) -> Option<&FailingMaster> {
    let fewest = status.support()?.supporters;
    let is_fewest = |master: &&FailingMaster| {
        let own = master.status.as_ref().filter(|own| is_alone(own));
        own.and_then(NodeStatus::support).is_some_and(|support| support.supporters == fewest)
    };
    status.slots.as_ref()?.failing.iter().find(is_fewest)
}

/// The masters of a Cluster that grants nothing, of which its combined state does not tell: those
/// that do not answer, or have no module; and beside a wait those that do not only wait.
fn hidden(status: &NodeStatus) -> Vec<&FailingMaster> {
    let told = alone_master(status).map(|master| &master.report.node);
    let is_hidden = |master: &&FailingMaster| match &master.status {
        Some(own) if is_alone(own) => told != Some(&master.report.node),
        Some(own) => {
            let is_wait = status.quarantine_left.is_some() || told.is_some();
            is_wait && own.quarantine_left.is_none()
        }
        None => true,
    };
    status.slots.iter().flat_map(|share| &share.failing).filter(is_hidden).collect()
}

/// Why the node cannot write its state file; `None` if it can.
fn state_failure(status: &NodeStatus) -> Option<&str> {
    status.fields.text(NodeField::StateFailure).filter(|cause| !cause.is_empty())
}

/// In how many slots a Cluster, or a server of one, grants locks, and what is wrong with the
/// masters of the others; `None` if it grants in all or none.
fn in_slots(status: &NodeStatus) -> Option<Vec<String>> {
    let waits_in = status.waits_in().map(|waits| waits.to_string());
    let Some(share) = status.slots.as_ref().filter(|share| share.is_partial()) else {
        return waits_in.map(|waits| vec![waits]);
    };
    let grants = format!("grants in {} of {SLOTS} slots", share.granting);
    let rest = match (&share.failing[..], waits_in) {
        // The others are those of other servers, if this is one server of a Cluster.
        ([], Some(waits)) => Some(waits),
        ([], None) if share.unknown == 0 => None,
        ([], None) => Some("no master has the others".to_owned()),
        (masters, _) => all_failing(masters.iter()),
    };
    Some([Some(grants), rest].into_iter().flatten().collect())
}

/// What is wrong with one master of a Cluster, as for a server by itself.
fn failing(FailingMaster { report, status, .. }: &FailingMaster) -> String {
    match status {
        Some(status) => {
            format!("{}: {}", shown(report.node.as_bytes()), state(status, None).join(BETWEEN))
        }
        None => report.to_string(),
    }
}

/// The moves of slots of a Cluster, for people.
pub(super) fn moving(node: &NodeSurvey) -> Vec<String> {
    let share = node.status.as_ref().ok().and_then(|status| status.slots.as_ref());
    let moves = share.into_iter().flat_map(|share| &share.moving);
    let told = moves.map(|SlotMove { slots, untaken, from, to, .. }| {
        let (node, from, to) = (&*node.node, &**from, &**to);
        let [node, from, to] = [node, from, to].map(|name| shown(name.as_bytes()));
        let plural = if *slots == 1 { " is" } else { "s are" };
        let text = format!("{node}: {slots} slot{plural} moving from {from} to {to}");
        match untaken {
            0 => text,
            _ => format!(
                "{text}, which does not import {untaken} of them: no lock that is free can be \
                 acquired there before CLUSTER SETSLOT ... IMPORTING"
            ),
        }
    });
    told.collect()
}

/// How many replicas support a master, for people.
fn supported(Support { supporters, needed, replicas, .. }: Support) -> String {
    match supporters < needed {
        true => {
            format!("{supporters} of {replicas} replicas support it, and it needs {needed} of them")
        }
        false if supporters > replicas => format!("{supporters} replicas support it"),
        false => format!("{supporters} of {replicas} replicas"),
    }
}

/// The node for people, and its masters if they are elsewhere.
pub(super) fn place(node: &NodeSurvey) -> String {
    match &node.masters[..] {
        [] => client::place(&node.node, node.asked.as_deref()),
        [master] => client::place(&node.node, Some(master)),
        masters => format!("{} at {} masters", shown(node.node.as_bytes()), masters.len()),
    }
}

/// A lock's row, with the labels of this many of its readers.
pub(super) fn lock(
    survey: &Survey,
    (name, lock): (&[u8], &LockSurvey),
    labels: usize,
) -> [String; 7] {
    let Some(best) = lock.best() else { return Default::default() };
    let length = |length: Option<_>| match length {
        Some(length) if best.state == LockState::Held => Length(length).to_string(),
        Some(_) | None => UNKNOWN.to_owned(),
    };
    [
        shown_name(name),
        holder(best, labels),
        best.fence.to_string(),
        length(best.held_for),
        length(best.left),
        lock.waiters().to_string(),
        match lock.held_provisionally() {
            0 => format!("{}/{}", lock.held_count(), survey.nodes.len()),
            more => format!("{}/{} +{more}", lock.held_count(), survey.nodes.len()),
        },
    ]
}

/// The name of a lock for people: no two look the same.
pub(super) fn shown_name(name: &[u8]) -> String {
    PrintableName(name).to_string()
}

/// A label, or the name of a node, for people.
pub(super) fn shown(name: &[u8]) -> String {
    Printable(name).to_string()
}

/// The label of a lock's holder for people.
pub(super) fn label(info: &LockInfo) -> Option<String> {
    let label = info.raw_label.as_deref().or(info.label.as_deref().map(str::as_bytes));
    label.map(shown)
}

/// Who holds a lock, for people, after the word "held".
pub(super) fn by_whom(info: &LockInfo) -> String {
    match (readers(info, usize::MAX), label(info)) {
        (Some(readers), _) => format!(" by {readers}"),
        (None, Some(label)) => format!(" by {label}"),
        (None, None) => " without a label".to_owned(),
    }
}

/// How many readers hold a lock, and the labels that are known, at most `most`.
fn readers(info: &LockInfo, most: usize) -> Option<String> {
    let (count, labels) = (info.readers, &info.reader_labels);
    if count == 0 {
        return None;
    }
    let plural = if count == 1 { "" } else { "s" };
    let shown: Vec<String> =
        labels.iter().take(most).map(|label| shown(label.as_bytes())).collect();
    let labels = match shown.is_empty() {
        true => String::new(),
        false => format!(" ({})", listed(shown, count as usize, ", ")),
    };
    Some(format!("{count} reader{plural}{labels}"))
}

/// How many stand in line, and how many of them are readers.
pub(super) fn in_line(info: &LockInfo) -> String {
    match (info.waiters, info.waiting_readers) {
        (waiters, 0) => format!("{waiters} in line"),
        (waiters, 1) => format!("{waiters} in line (1 reader)"),
        (waiters, readers) => format!("{waiters} in line ({readers} readers)"),
    }
}

fn holder(info: &LockInfo, labels: usize) -> String {
    if let Some(readers) = readers(info, labels) {
        return readers;
    }
    match label(info) {
        Some(label) => label,
        None if info.state == LockState::Held => "(no label)".to_owned(),
        None => format!("({})", info.state),
    }
}

/// An order of locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LockOrder {
    /// Those with most waiters first, then those held for longest.
    #[default]
    Waiters,
    Name,
    HeldFor,
    TimeLeft,
}

impl LockOrder {
    /// The next order, cyclically.
    pub(super) const fn next(self) -> LockOrder {
        match self {
            LockOrder::Waiters => LockOrder::Name,
            LockOrder::Name => LockOrder::HeldFor,
            LockOrder::HeldFor => LockOrder::TimeLeft,
            LockOrder::TimeLeft => LockOrder::Waiters,
        }
    }

    pub(super) const fn words(self) -> &'static str {
        match self {
            LockOrder::Waiters => "most waiters first",
            LockOrder::Name => "by name",
            LockOrder::HeldFor => "held longest first",
            LockOrder::TimeLeft => "ending soonest first",
        }
    }
}

/// The locks that matter, held or waited for, in this order.
pub(super) fn busy_locks(survey: &Survey, order: LockOrder) -> Vec<(&[u8], &LockSurvey)> {
    let is_busy = |lock: &LockSurvey| {
        lock.waiters() > 0 || lock.best().is_some_and(|best| best.state != LockState::Free)
    };
    // Sorted by name first: locks that are otherwise equal keep this order.
    let mut locks: Vec<(&[u8], &LockSurvey)> =
        survey.locks.iter().map(|(name, lock)| (name.as_slice(), lock)).collect();
    locks.retain(|(_, lock)| is_busy(lock));
    let held_for = |lock: &LockSurvey| lock.best().and_then(|best| best.held_for);
    let left = |lock: &LockSurvey| lock.best().and_then(|best| best.left);
    match order {
        LockOrder::Name => {}
        LockOrder::Waiters => {
            locks.sort_by_key(|(_, lock)| Reverse((lock.waiters(), held_for(lock))));
        }
        LockOrder::HeldFor => locks.sort_by_key(|(_, lock)| Reverse(held_for(lock))),
        LockOrder::TimeLeft => {
            locks.sort_by_key(|(_, lock)| left(lock).unwrap_or(Duration::MAX));
        }
    }
    locks
}

/// The quorum in a few words.
pub(super) fn quorum_in_short(survey: &Survey) -> String {
    let (granting, all) = (survey.granting(), survey.nodes.len());
    let (partly, unseen) = (survey.granting_partly(), unseen(survey));
    match survey.margin() {
        _ if (partly, unseen, all) == (1, 1, 1) => "locks are granted in some slots".to_owned(),
        _ if (partly, all) == (1, 1) => "locks are granted in some slots only".to_owned(),
        ..0 if granting + partly >= survey.quorum => {
            format!("{}/{all} nodes grant, {partly} in some slots only", granting + partly)
        }
        ..0 if granting + partly + unseen >= survey.quorum => {
            format!("{}/{all} nodes grant, of {unseen} it is not known", granting + partly)
        }
        margin @ ..0 => format!("{granting}/{all} nodes grant, {} more needed", -margin),
        margin => format!("{granting}/{all} nodes grant, {margin} may fail"),
    }
}

/// The quorum in one line.
pub(super) fn quorum(survey: &Survey) -> String {
    let (granting, all, needed) = (survey.granting(), survey.nodes.len(), survey.quorum);
    if all == 1 {
        return only_node(survey).to_owned();
    }
    let (partly, unseen) = (survey.granting_partly(), unseen(survey));
    let margin = match survey.margin() {
        ..0 if granting + partly >= needed => {
            let text = "so no lock can be acquired in slots where too few do";
            return format!(
                "{} grant locks, {partly} in part of the slots; a quorum is {needed}, {text}",
                Share(granting + partly, all)
            );
        }
        ..0 if granting + partly + unseen >= needed => {
            let granting = Share(granting + partly, all);
            let text = format!("and of {unseen} it is not known; a quorum is {needed}");
            return format!("{granting} grant locks, {text}");
        }
        ..0 => "no lock can be acquired".to_owned(),
        0 => "no other may fail".to_owned(),
        margin => format!("{margin} may fail"),
    };
    format!("{} grant locks; a quorum is {needed}, so {margin}", Share(granting, all))
}

/// The same for a list of one node.
fn only_node(survey: &Survey) -> &'static str {
    match (survey.granting(), survey.granting_partly(), unseen(survey)) {
        (1, ..) => "the only node grants locks: if it fails, no lock can be acquired",
        (_, 0, 0) => "the only node grants nothing, so no lock can be acquired",
        (_, 0, _) => "the only node does not show whether it grants locks",
        (_, _, 0) => {
            "the only node grants locks in some slots; in the others no lock can be acquired"
        }
        _ => {
            "the only node grants locks in some slots, and does not show whether it does in others"
        }
    }
}

/// How many nodes may grant locks to others, although this client cannot see it.
fn unseen(survey: &Survey) -> usize {
    let is_unseen = |node: &&NodeSurvey| match &node.status {
        Err(vote) => is_blind(vote),
        Ok(status) => {
            let mut silent = status.slots.iter().flat_map(|share| &share.silent);
            !status.is_granting() && silent.any(|report| is_blind(&report.vote))
        }
    };
    survey.nodes.iter().filter(is_unseen).count()
}

/// Whether this vote, in place of a status, leaves open whether the node grants locks: it did not
/// answer this client, or not this question.
fn is_blind(vote: &Vote) -> bool {
    match vote {
        // It has no vote of its own.
        vote if same_as(vote).is_some() => false,
        Vote::TimedOut
        | Vote::Unreachable(_)
        | Vote::NoPermission(_)
        | Vote::Refused(_)
        | Vote::Garbled(_) => true,
        Vote::Unavailable(text) => is_from_the_way(text) || text.contains("max number of clients"),
        _ => false,
    }
}

/// On how many nodes the lock was deleted, and what went wrong on others.
pub(super) fn deleted_on(nodes: &[NodeReport]) -> String {
    let deleted = nodes.iter().filter(|report| report.vote == Vote::Confirmed).count();
    let text = format!("deleted on {}", Share(deleted, nodes.len()));
    let is_failed = |vote: &Vote| !matches!(vote, Vote::Confirmed | Vote::NotHeld);
    let failed = nodes.iter().filter(|report| is_failed(&report.vote)).map(ToString::to_string);
    [text].into_iter().chain(failed).collect::<Vec<_>>().join("; ")
}

/// The notes about locks that are not shown; `option` is the option that limits them.
pub(super) fn rest(survey: &Survey, option: Option<&str>) -> Vec<String> {
    let mut told = Vec::new();
    if survey.is_cut {
        let option = option.map_or_else(String::new, |option| format!(": see {option}"));
        told.push(format!("there are more locks than are shown{option}"));
    }
    if survey.unnamed > 0 {
        let (count, max) = (survey.unnamed, NAME_MAX);
        told.push(format!("locks with names of more than {max} bytes are not shown: {count}"));
    }
    if survey.hidden > 0 {
        let count = survey.hidden;
        told.push(format!(
            "locks that the user may not look at, for want of rights, are not shown: {count}"
        ));
    }
    for node in &survey.given_up {
        let node = shown(node.as_bytes());
        let text = "so many free locks or other keys that the search was given up";
        told.push(format!("{node} has {text}: more may be held"));
    }
    told
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::wire::code;

    fn survey_of(statuses: Vec<Result<NodeStatus, Vote>>) -> Survey {
        let quorum = statuses.len() / 2 + 1;
        let nodes = statuses.into_iter().map(|status| NodeSurvey::of("c", status));
        Survey::of(nodes.collect(), quorum)
    }

    fn granting() -> Result<NodeStatus, Vote> {
        Ok(NodeStatus { is_master: true, ..NodeStatus::default() })
    }

    /// A Cluster that grants in so many slots, whose only silent master has this vote.
    fn part(granting: u16, vote: Vote) -> Result<NodeStatus, Vote> {
        let silent = vec![NodeReport::new("m".into(), vote)];
        let share = SlotShare { granting, silent, ..SlotShare::default() };
        Ok(NodeStatus { is_master: true, slots: Some(share), ..NodeStatus::default() })
    }

    fn unseen() -> [Vote; 5] {
        let unreachable = Vote::Unreachable("no Sentinel answers".into());
        let of_seed = Vote::Unavailable("h:7000: LOADING x".into());
        [Vote::NoPermission("NOPERM".into()), unreachable, Vote::TimedOut, crowded(), of_seed]
    }

    fn crowded() -> Vote {
        Vote::Unavailable("ERR max number of clients reached".into())
    }

    /// Regression: it was said that nobody can acquire a lock while others did: the user only
    /// lacked the right to ask, or all Sentinels were down.
    #[test]
    fn a_node_that_shows_nothing_to_this_client_may_grant_to_others() {
        let nothing = "the only node grants nothing, so no lock can be acquired";
        for vote in unseen() {
            let told = quorum(&survey_of(vec![Err(vote.clone())]));
            assert_eq!(told, "the only node does not show whether it grants locks", "{vote}");
            assert_eq!(quorum(&survey_of(vec![part(0, vote.clone())])), told, "{vote}");
            let some = survey_of(vec![part(9, vote.clone())]);
            let told = "grants locks in some slots, and does not show whether it does in others";
            assert_eq!(quorum(&some), format!("the only node {told}"), "{vote}");
            assert_eq!(quorum_in_short(&some), "locks are granted in some slots");
            let three = survey_of(vec![granting(), Err(vote.clone()), Err(Vote::ModuleMissing)]);
            let told = "1 of 3 nodes grant locks, and of 1 it is not known; a quorum is 2";
            assert_eq!(quorum(&three), told, "{vote}");
            assert_eq!(quorum_in_short(&three), "1/3 nodes grant, of 1 it is not known");
        }
        let busy = Vote::Unavailable(code::CLUSTERDOWN.says("its Cluster is down").into());
        let double = Vote::Refused("the same server as a: remove b".into());
        assert!(same_as(&double).is_some());
        for vote in [busy, double, Vote::ModuleMissing] {
            assert_eq!(quorum(&survey_of(vec![Err(vote.clone())])), nothing, "{vote}");
            let told = quorum(&survey_of(vec![part(9, vote.clone())]));
            assert!(told.ends_with("; in the others no lock can be acquired"), "{told}");
            let told = quorum(&survey_of(vec![granting(), Err(vote), Err(Vote::ModuleMissing)]));
            assert!(told.ends_with("a quorum is 2, so no lock can be acquired"), "{told}");
        }
    }

    type Master = (Arc<str>, u16, Result<NodeStatus, Vote>);

    /// A master that grants nothing, and waits for so long.
    fn waiting<const N: usize>(name: &str, seconds: u64, fields: [(NodeField, &str); N]) -> Master {
        let quarantine_left = Some(Duration::from_secs(seconds)).filter(|left| !left.is_zero());
        let fields = fields.into();
        let status =
            NodeStatus { is_master: true, quarantine_left, fields, ..NodeStatus::default() };
        (name.into(), 5_461, Ok(status))
    }

    /// One that also has a replica of which it needs the support, or not.
    fn replicated(name: &str, seconds: u64, supporters: &str) -> Master {
        let fields = [
            (NodeField::Granting, "0"),
            (NodeField::Replicas, "1"),
            (NodeField::Supporters, supporters),
            (NodeField::SupportersNeeded, "1"),
        ];
        waiting(name, seconds, fields)
    }

    /// Regression: a wait of one master of a Cluster hid another one that was dead.
    #[test]
    fn of_a_cluster_that_grants_nothing_no_master_hides_another() {
        let told = |masters: Vec<Master>| {
            state(&NodeStatus::together(masters, Vec::new()).unwrap(), None).join(BETWEEN)
        };
        let quarantined = || waiting("m:1", 55, []);
        let bare = || ("m:2".into(), 5_461, Err(Vote::ModuleMissing));
        assert_eq!(told(vec![quarantined()]), "in quarantine for 55s");
        let one = "in quarantine for 55s; m:2: without the module";
        assert_eq!(told(vec![quarantined(), bare()]), one);
        let state = [(NodeField::Granting, "0"), (NodeField::State, "STATEFILE no room")];
        let full = waiting("m:3", 0, state);
        let both = format!("{one}; m:3: grants nothing: STATEFILE no room");
        assert_eq!(told(vec![quarantined(), full.clone(), bare()]), both);
        let many = vec![quarantined(), bare(), full.clone(), bare(), bare()];
        let larger = ("m:9".into(), 5_462, Err(Vote::TimedOut));
        let first = "in quarantine for 55s; m:9: timed out; m:2: without the module; ";
        let told_of = told([many, vec![larger]].concat());
        assert_eq!(told_of, format!("{first}m:2: without the module; 2 more"));
        let two = "in quarantine for 55s; m:3: grants nothing: STATEFILE no room";
        assert_eq!(told(vec![quarantined(), full]), two);
        let (alone, sound) = (|name| replicated(name, 15, "0"), || replicated("m:4", 7, "1"));
        let three = "grants nothing for at least 15s; m:5: 0 of 1 replicas support it, and it \
                     needs 1 of them";
        assert_eq!(told(vec![alone("m:5")]), three);
        // Regression: the longest time was said to be the shortest.
        let three = three.replace("15s", "7s");
        assert_eq!(told(vec![sound(), alone("m:5")]), three);
        let four = told(vec![sound(), alone("m:5"), bare()]);
        assert_eq!(four, format!("{three}; m:2: without the module"));
        let both = told(vec![alone("m:5"), alone("m:6")]);
        let three = three.replace("7s", "15s");
        assert_eq!(both, format!("{three}; m:6: {}", three.replace(" m:5:", "")));
    }
}
