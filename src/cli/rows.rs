//! A survey as rows of text: `lockmod status` prints them once, `lockmod top` repeatedly.

use std::cmp::Reverse;
use std::time::Duration;

use crate::client::{
    FailingMaster, Length, LockInfo, LockState, LockSurvey, NAME_MAX, NodeField, NodeReport,
    NodeStatus, NodeSurvey, Printable, PrintableName, Share, SlotMove, SlotShare, Support, Survey,
    Vote,
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
    let name = shown(place(node).as_bytes());
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
        state = format!("{state}; nothing yet in {asking} of {all}");
    }
    if let Some(count @ 1..) = status.fields.number(NodeField::FailedMoves) {
        let plural = if count == 1 { "" } else { "s" };
        state = format!("{state}; {count} move{plural} failed");
    }
    if let Some(vote) = &node.unlisted {
        state = format!("{state}; its locks cannot be listed: {vote}");
    }
    let is_good = status.is_granting() && too_high.is_none() && state_failure(status).is_none();
    let health = if is_good { Health::Good } else { Health::Abstains };
    let role = if status.is_master { "master" } else { "replica" };
    let row = [
        name,
        role.to_owned(),
        state,
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
    in_slots(status).or(out_of_reach)
}

/// Whether a node grants locks, with fences that the other nodes do not accept.
fn is_out_of_reach(survey: &Survey, status: &NodeStatus) -> bool {
    status.is_granting() && !survey.has_vote(status)
}

/// The state of a node that answers, and how many replicas support it. `too_high`: what is wrong
/// with its fences.
fn state(status: &NodeStatus, too_high: Option<&str>) -> String {
    if let Some(text) = in_slots(status) {
        return text;
    }
    let support = status.support().filter(|_| status.is_master);
    let is_alone = support.is_some_and(|support| support.supporters < support.needed);
    let state = match status.quarantine_left {
        // Its wait has not begun.
        Some(left) if is_alone => format!("grants nothing for at least {}", Length(left)),
        None if is_alone && !status.is_granting() => "grants nothing".to_owned(),
        _ if !status.is_master => "grants nothing: a replica".to_owned(),
        Some(left) => format!("in quarantine for {}", Length(left)),
        None if status.is_granting() => {
            let grants = if status.is_in_cluster { "grants in its slots" } else { "grants" };
            too_high.unwrap_or(grants).to_owned()
        }
        None => match (status.fields.text(NodeField::State), silent(status)) {
            (Some(reason), Some(master)) => format!("grants nothing: {reason}; {master}"),
            (Some(reason), None) => format!("grants nothing: {reason}"),
            (None, _) => "grants nothing".to_owned(),
        },
    };
    let state = match state_failure(status).filter(|_| status.is_granting()) {
        Some(cause) => format!("{state}; its state file cannot be written: {cause}"),
        None => state,
    };
    match support {
        Some(support) => format!("{state}; {}", supported(support)),
        None => state,
    }
}

/// Why the node cannot write its state file; `None` if it can.
fn state_failure(status: &NodeStatus) -> Option<&str> {
    status.fields.text(NodeField::StateFailure).filter(|cause| !cause.is_empty())
}

/// The first master of a Cluster that does not answer, or has no module: the others may wait to
/// hear it.
fn silent(status: &NodeStatus) -> Option<&NodeReport> {
    status.slots.as_ref()?.silent.first()
}

/// In how many slots a Cluster, or a server of one, grants locks, and what is wrong with the first
/// master of the others; `None` if it grants in all or none.
fn in_slots(status: &NodeStatus) -> Option<String> {
    let waits_in = status.waits_in();
    let Some(share) = status.slots.as_ref().filter(|share| share.is_partial()) else {
        return waits_in.map(|waits| waits.to_string());
    };
    let text = format!("grants in {} of {SLOTS} slots", share.granting);
    Some(match (&share.failing[..], waits_in) {
        // The others are those of other servers, if this is one server of a Cluster.
        ([], Some(waits)) => format!("{text}; {waits}"),
        ([], None) if share.unknown == 0 => text,
        ([], None) => format!("{text}; no master has the others"),
        ([master], _) => format!("{text}; {}", failing(master)),
        ([master, more @ ..], _) => format!("{text}; {}; {} more", failing(master), more.len()),
    })
}

/// What is wrong with one master of a Cluster, as for a server by itself.
fn failing(FailingMaster { report, status }: &FailingMaster) -> String {
    match status {
        Some(status) => format!("{}: {}", shown(report.node.as_bytes()), state(status, None)),
        None => report.to_string(),
    }
}

/// The moves of slots of a Cluster, for people.
pub(super) fn moving(node: &NodeSurvey) -> Vec<String> {
    let share = node.status.as_ref().ok().and_then(|status| status.slots.as_ref());
    let moves = share.into_iter().flat_map(|share| &share.moving);
    let told = moves.map(|SlotMove { slots, from, to, .. }| {
        let (node, from, to) = (&*node.node, &**from, &**to);
        let [node, from, to] = [node, from, to].map(|name| shown(name.as_bytes()));
        let plural = if *slots == 1 { " is" } else { "s are" };
        format!("{node}: {slots} slot{plural} moving from {from} to {to}")
    });
    told.collect()
}

/// How many replicas support a master, for people.
fn supported(Support { supporters, needed, replicas, .. }: Support) -> String {
    match supporters < needed {
        true => {
            format!("{supporters} of {replicas} replicas support it, and it needs {needed} of them")
        }
        false => format!("{supporters} of {replicas} replicas"),
    }
}

/// The node, and its masters if they are elsewhere.
fn place(node: &NodeSurvey) -> String {
    match &node.masters[..] {
        [] => node.node.to_string(),
        [master] => format!("{} at {master}", node.node),
        masters => format!("{} at {} masters", node.node, masters.len()),
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
    let mut shown: Vec<String> =
        labels.iter().take(most).map(|label| shown(label.as_bytes())).collect();
    let more = count.saturating_sub(shown.len() as u64);
    if more > 0 && !shown.is_empty() {
        shown.push(format!("{more} more"));
    }
    let labels = if shown.is_empty() { String::new() } else { format!(" ({})", shown.join(", ")) };
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
    let partly = survey.granting_partly();
    match survey.margin() {
        _ if (partly, all) == (1, 1) => "locks are granted in some slots only".to_owned(),
        ..0 if granting + partly >= survey.quorum => {
            format!("{}/{all} nodes grant, {partly} in some slots only", granting + partly)
        }
        margin @ ..0 => format!("{granting}/{all} nodes grant, {} more needed", -margin),
        margin => format!("{granting}/{all} nodes grant, {margin} may fail"),
    }
}

/// The quorum in one line.
pub(super) fn quorum(survey: &Survey) -> String {
    let (granting, all, needed) = (survey.granting(), survey.nodes.len(), survey.quorum);
    if (granting, all) == (1, 1) {
        return "the only node grants locks: if it fails, no lock can be acquired".to_owned();
    }
    let partly = survey.granting_partly();
    if (granting + partly, all) == (0, 1) {
        return "the only node grants nothing, so no lock can be acquired".to_owned();
    }
    if (partly, all) == (1, 1) {
        let text = "the only node grants locks in some slots";
        return format!("{text}; in the others no lock can be acquired");
    }
    let margin = match survey.margin() {
        ..0 if granting + partly >= needed => {
            let text = "so no lock can be acquired in slots where too few do";
            return format!(
                "{} grant locks, {partly} in part of the slots; a quorum is {needed}, {text}",
                Share(granting + partly, all)
            );
        }
        ..0 => "no lock can be acquired".to_owned(),
        0 => "no other may fail".to_owned(),
        margin => format!("{margin} may fail"),
    };
    format!("{} grant locks; a quorum is {needed}, so {margin}", Share(granting, all))
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
