//! Waits for a lock, and shows a person at the terminal who holds it and how many wait.

use std::time::Duration;

use tokio::time::interval;

use super::args::Claim;
use super::failure::{Failure, warn};
use super::out::{Progress, cut, width};
use super::signals::Signals;
use super::values::Name;
use super::{doubts, rows};
use crate::client::{
    Group, Guard, Holders, Length, LockInfo, LockState, Locker, NodeInfo, NodeReport, Share, Vote,
};
use crate::engine::Quorum;

/// How often the line for a waiting person is updated.
const TELL_EVERY: Duration = Duration::from_millis(500);
/// Without a terminal, the nodes are asked again after this long, and after twice as long each time
/// that something more was said.
const AGAIN_MIN: Duration = Duration::from_secs(5);
const AGAIN_MAX: Duration = Duration::from_secs(60);
/// How many words of a vote tell what is wrong: a time that changes comes later. How many Sentinels
/// have answered is one of them ("unreachable: 1 of 3 ..."): another number is worth a line.
const KIND_WORDS: usize = 3;
/// The columns that a name always keeps.
const NAME_MIN: usize = 8;
/// The columns that a label always keeps.
const LABEL_MIN: usize = 12;

/// Acquires the lock, for which it waits at most so long. Meanwhile, a person at a terminal sees
/// who holds it and how many wait.
///
/// # Errors
/// If it is not acquired, or a signal came: then nothing is left on the nodes that can be reached.
pub(super) async fn acquire(
    locker: &Locker,
    (claim, wait): (&Claim, Duration),
    signals: &mut Signals,
    as_json: bool,
) -> Result<Guard, Failure> {
    let acquired = watch(locker, (claim, wait), signals, as_json).await;
    let Err(failure) = acquired else { return acquired };
    // This process must not end before the release of a minority's grants is carried out, or those
    // leases stand for their ttl.
    let patience = [doubts::RESTART.min(claim.ttl.length), Duration::ZERO];
    locker.discharge(failure.nodes(), patience).await;
    Err(doubts::named(locker, failure.over_ttl(&claim.ttl)).await)
}

async fn watch(
    locker: &Locker,
    (claim, wait): (&Claim, Duration),
    signals: &mut Signals,
    as_json: bool,
) -> Result<Guard, Failure> {
    let name = &claim.name;
    let acquire = locker.acquire(name);
    let acquire = if claim.shared { acquire.shared() } else { acquire };
    let mut acquiring = acquire.into_future();
    let mut telling = interval(TELL_EVERY);
    telling.tick().await;
    let (mut progress, mut notices) = (Progress::new(), Notices::default());
    let signal = loop {
        tokio::select! {
            guard = &mut acquiring => return Ok(guard?),
            signal = signals.next() => break signal,
            // Without a wait, the error comes in a moment.
            _ = telling.tick(), if progress.is_watched() || !wait.is_zero() => {
                // The acquisition goes on meanwhile.
                tokio::select! {
                    guard = &mut acquiring => return Ok(guard?),
                    signal = signals.next() => break signal,
                    nodes = locker.info(name), if progress.is_watched() => {
                        let in_line = in_line(&nodes);
                        progress.show(&line(name, &in_line, &nodes, progress.room()));
                    }
                    obstacles = in_the_way(locker, name), if !progress.is_watched() => {
                        notices.of(obstacles).iter().for_each(|text| warn(text, as_json));
                        telling.reset_after(notices.pause());
                    }
                }
            }
        }
    };
    Err(Failure::interrupted(signal))
}

/// What is in the way of a lock.
#[derive(Default)]
struct Obstacles {
    /// What is wrong with each node, without what changes all the time, and what they do not tell.
    kinds: Vec<String>,
    /// The warnings.
    texts: Vec<String>,
}

/// The warnings in a log, where each stays: nothing is said twice, and less the more was said.
#[derive(Default)]
struct Notices {
    told: Vec<String>,
    count: u32,
}

impl Notices {
    /// What is new about these obstacles.
    fn of(&mut self, obstacles: Obstacles) -> Vec<String> {
        if obstacles.kinds == self.told {
            return Vec::new();
        }
        self.told = obstacles.kinds;
        self.count = self.count.saturating_add(1);
        obstacles.texts
    }

    /// When to look again.
    fn pause(&self) -> Duration {
        let factor = 2_u32.saturating_pow(self.count.saturating_sub(1));
        AGAIN_MAX.min(AGAIN_MIN.saturating_mul(factor))
    }
}

/// The nodes that grant nothing, if there is no quorum without them, with warnings: about replicas,
/// for which waiting alone does not help, or else one about all, with what they do not tell
/// themselves.
async fn in_the_way(locker: &Locker, name: &Name) -> Obstacles {
    let nodes = locker.info(name).await;
    let said = |text: String| format!("waiting for '{name}': {text}");
    let Some(reports) = obstacles(&nodes) else {
        let text = said("enough nodes grant locks again".to_owned());
        return Obstacles { texts: vec![text], ..Obstacles::default() };
    };
    let replicas = nodes.iter().filter(|node| doubts::vote_of(node).is_some()).count();
    let mut kinds: Vec<String> = reports.iter().map(kind).collect();
    let texts = match Quorum::is_majority(nodes.len() - replicas, nodes.len()) {
        true => {
            let advice = doubts::advice(locker, &reports).await;
            let text = with_advice(troubles(&reports, nodes.len(), name, usize::MAX), &advice);
            kinds.extend(advice);
            vec![text]
        }
        false => doubts::replicas(&locker.survey(0).await),
    };
    Obstacles { kinds, texts: texts.into_iter().map(said).collect() }
}

/// A warning with what nodes do not tell themselves, as errors have it.
fn with_advice(text: String, advice: &[String]) -> String {
    advice.iter().fold(text, |text, more| format!("{text}; {more}"))
}

/// What is wrong with a node, without the time that is left.
fn kind(report: &NodeReport) -> String {
    let text = report.to_string();
    let vote = report.vote.to_string();
    let place = text.strip_suffix(&vote).unwrap_or_default();
    let first: Vec<&str> = vote.split(' ').take(KIND_WORDS).collect();
    format!("{place}{}", first.join(" "))
}

/// The line for a waiting person: first who holds the lock, then how many wait, and the time. If it
/// is too long, the name of the lock, which the person knows, is shortened first, then the label.
fn line(name: &Name, in_line: &str, nodes: &[NodeInfo], room: usize) -> String {
    let told = |reports: Vec<NodeReport>| troubles(&reports, nodes.len(), name, room);
    let (holder, told) = match (obstacles(nodes).map(told), held(nodes)) {
        (Some(troubles), _) => (String::new(), troubles),
        (None, Some((holder, time))) => (holder, format!("{in_line}{time}")),
        // It is free at this moment.
        (None, None) => (String::new(), "asking for it again".to_owned()),
    };
    let (by, comma) = ("held by ", ", ");
    let name = name.to_string();
    let all = width(by) + width(&holder) + width(comma) + width(&told);
    let (before, behind) = ("waiting for '", "': ");
    if holder.is_empty() {
        let left = room.saturating_sub(width(before) + width(behind) + width(&told));
        return format!("{before}{}{behind}{told}", cut(&name, left.max(NAME_MIN)));
    }
    let left = room.checked_sub(width(before) + width(behind) + all);
    if let Some(left) = left.filter(|&left| left >= NAME_MIN.min(width(&name))) {
        let name = cut(&name, left);
        return format!("{before}{name}{behind}{by}{holder}{comma}{told}");
    }
    let left = room.saturating_sub(all - width(&holder));
    let holder = cut(&holder, left.max(LABEL_MIN));
    format!("{by}{holder}{comma}{told}")
}

/// Who holds the lock, and how long it may still be held; `None` if no node reports it as held.
fn held(nodes: &[NodeInfo]) -> Option<(String, String)> {
    let is_held = |info: &&LockInfo| info.state == LockState::Held;
    let info = infos(nodes).filter(is_held).max_by_key(|info| info.left)?;
    let holders = match (rows::label(info), info.readers) {
        (None, 0) => "another client".to_owned(),
        (label, readers) => Holders { label: label.as_deref(), readers }.to_string(),
    };
    let left = Length(info.left.unwrap_or_default());
    Some((holders, format!("up to {left} more")))
}

/// The nodes that grant nothing, if too few are left for a quorum; `None` if there is one. Who
/// holds the lock on the others does not matter then: it may be this attempt itself.
fn obstacles(nodes: &[NodeInfo]) -> Option<Vec<NodeReport>> {
    let report = |node: &NodeInfo| trouble(node).map(|vote| node.report(vote));
    let reports: Vec<NodeReport> = nodes.iter().filter_map(report).collect();
    let granting = nodes.len() - reports.len();
    (!Quorum::is_majority(granting, nodes.len())).then_some(reports)
}

/// Why these of `all` nodes grant nothing, and which nodes those are if there is room.
fn troubles(reports: &[NodeReport], all: usize, name: &Name, room: usize) -> String {
    let groups = Group::all(reports);
    let told = |with_names: bool| {
        if let [group] = &groups[..]
            && (group.vote, group.count()) == (&Vote::TimedOut, all)
        {
            let names = if with_names { format!(" from {}", group.names()) } else { String::new() };
            return format!("no answer yet{names}");
        }
        let told = groups.iter().enumerate().map(|(index, group)| {
            let count = match index {
                0 => Share(group.count(), all).to_string(),
                _ => group.count().to_string(),
            };
            // All nodes need no names, but the only one may be one of many masters.
            let is_named = with_names && (group.count() < all || all == 1);
            let names = if is_named { format!(" ({})", group.names()) } else { String::new() };
            format!("{count} {}{names}", group.vote)
        });
        told.collect::<Vec<_>>().join("; ")
    };
    let named = told(true);
    let is_short = width(&format!("waiting for '{name}': {named}")) <= room;
    if is_short { named } else { told(false) }
}

/// Why a node grants nothing.
fn trouble(node: &NodeInfo) -> Option<Vote> {
    match &node.info {
        Ok(info) => Vote::of_obstacle_in(info),
        Err(vote) => Some(vote.clone()),
    }
}

fn infos(nodes: &[NodeInfo]) -> impl Iterator<Item = &LockInfo> {
    nodes.iter().filter_map(|node| node.info.as_ref().ok())
}

/// How many stand in line, including this client. Its place is not known from outside: a ticket
/// that arrives later may be older.
fn in_line(nodes: &[NodeInfo]) -> String {
    let longest = infos(nodes).max_by_key(|info| info.waiters).filter(|info| info.waiters > 0);
    longest.map(|info| format!("{}, ", rows::in_line(info))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Vote;
    use crate::engine::LockAccount;
    use crate::wire::lock_info;

    fn node(waiters: u64) -> NodeInfo {
        let account = LockAccount { state: LockState::Held, waiters, ..LockAccount::default() };
        let info = lock_info::read(&lock_info::write(&account)).unwrap();
        NodeInfo::new("n".into(), Ok(info))
    }

    #[test]
    fn nodes_that_say_nothing_are_not_taken_for_a_lock_that_is_free() {
        let silent = || NodeInfo::new("n".into(), Err(Vote::TimedOut));
        let told = |nodes: &[NodeInfo]| line(&Name(b"job".to_vec()), "", nodes, 77);
        assert_eq!(told(&[silent(), silent()]), "waiting for 'job': no answer yet from n, n");
        let held = "waiting for 'job': held by another client, up to 0ms more";
        assert_eq!(told(&[silent(), node(0), node(0)]), held);
        let down = || NodeInfo::new("n".into(), Err(Vote::Unreachable("refused".into())));
        let waiting = "waiting for 'job': ";
        let reason = "2 of 3 nodes unreachable: refused (n, n); 1 timed out (n)";
        assert_eq!(told(&[down(), silent(), down()]), format!("{waiting}{reason}"));
        let reason = "1 of 1 node unreachable: refused (n)";
        assert_eq!(told(&[down()]), format!("{waiting}{reason}"));
        // The lease on the remaining node is this attempt's own.
        let reason = "2 of 3 nodes unreachable: refused (n, n)";
        assert_eq!(told(&[down(), node(0), down()]), format!("{waiting}{reason}"));
        let mut away = node(0);
        if let Ok(info) = &mut away.info {
            info.quarantine_left = Some(Duration::from_secs(3));
        }
        let reason = "2 of 2 nodes in quarantine: for 3s more";
        assert_eq!(told(&[away.clone(), away]), format!("{waiting}{reason}"));
    }

    #[test]
    fn a_long_reason_leaves_the_name_of_the_lock() {
        let text = "no route to the host".repeat(9);
        let down = || NodeInfo::new("n".into(), Err(Vote::Unreachable(text.clone().into())));
        let told = line(&Name(b"a-long-name".to_vec()), "", &[down()], 40);
        assert!(told.starts_with("waiting for 'a-long-…': 1 of 1 node unreach"), "{told}");
        let silent = || NodeInfo::new(text.clone().into(), Err(Vote::TimedOut));
        let told = line(&Name(b"job".to_vec()), "", &[silent()], 40);
        assert_eq!(told, "waiting for 'job': no answer yet");
    }

    /// Regression: a log had one line about a wait, whatever happened later.
    #[test]
    fn a_change_is_said_once_and_ever_less_often() {
        let left = |seconds| Some(Duration::from_secs(seconds));
        let quarantined = |seconds| Vote::Quarantined { left: left(seconds), text: "".into() };
        let obstacles = |votes: &[Vote]| {
            let reports = votes.iter().map(|vote| NodeReport::new("n".into(), vote.clone()));
            let kinds = reports.map(|report| kind(&report)).collect();
            Obstacles { kinds, texts: vec![votes.len().to_string()] }
        };
        let down = || Vote::Unreachable("refused".into());
        let mut notices = Notices::default();
        assert!(notices.of(obstacles(&[])).is_empty(), "nothing was in the way");
        let mut pauses = vec![notices.pause().as_secs()];
        for (votes, is_new) in [
            (vec![Vote::TimedOut], true),
            (vec![Vote::TimedOut], false),
            (vec![down()], true),
            (vec![down(), down()], true),
            (vec![quarantined(61), quarantined(59)], true),
            (vec![quarantined(60), quarantined(58)], false),
            (vec![], true),
            (vec![], false),
        ] {
            assert_eq!(!notices.of(obstacles(&votes)).is_empty(), is_new, "{votes:?}");
            pauses.push(notices.pause().as_secs());
        }
        assert_eq!(pauses, [5, 5, 5, 10, 20, 40, 40, 60, 60]);
        let few = |count| Vote::Unreachable(format!("{count} of 3 Sentinels answered").into());
        notices.of(obstacles(&[few(1)]));
        assert!(notices.of(obstacles(&[few(1)])).is_empty());
        assert!(!notices.of(obstacles(&[few(2)])).is_empty());
    }

    #[test]
    fn what_nodes_do_not_tell_themselves_follows() {
        let text = || "1 of 1 node not serving: CLUSTERDOWN".to_owned();
        assert_eq!(with_advice(text(), &[]), text());
        let advice = ["b:1: timed out", "c:1: timed out"].map(str::to_owned);
        let told = with_advice(text(), &advice);
        assert_eq!(told, format!("{}; b:1: timed out; c:1: timed out", text()));
    }

    /// The first reason was reported for all unreachable nodes.
    #[test]
    fn reasons_that_differ_are_counted_apart() {
        let down = |text: &str| NodeInfo::new("n".into(), Err(Vote::Unreachable(text.into())));
        let nodes = [down("refused"), down("no route"), down("refused")];
        let told = line(&Name(b"job".to_vec()), "", &nodes, 77);
        assert!(
            told.ends_with("2 of 3 nodes unreachable: refused; 1 unreachable: no route"),
            "{told}"
        );
        let told = line(&Name(b"job".to_vec()), "", &nodes, 90);
        assert!(told.ends_with("refused (n, n); 1 unreachable: no route (n)"), "{told}");
    }

    /// At 80 columns the time came after a long label, and was cut off; later the holder came after
    /// the time, and was cut off in turn.
    #[test]
    fn holder_place_and_time_are_told_whatever_is_long() {
        let told = |name: &str, label: &str, place: &str, room: usize| {
            let mut node = node(0);
            if let Ok(info) = &mut node.info {
                info.label = Some(label.to_owned());
            }
            cut(&line(&Name(name.as_bytes().to_vec()), place, &[node], room), room)
        };
        let place = "1234567890123456 in line, ";
        let long = "n".repeat(200);
        let expected =
            "waiting for 'nnnnnnnnn…': held by ada@c, 1234567890123456 in line, up to 0ms more";
        assert_eq!(told(&long, "ada@c", place, 81), expected);
        let expected = "held by ada@console:1, 1234567890123456 in line, up to 0ms more";
        assert_eq!(told(&long, "ada@console:1", place, 66), expected);
        let expected = "held by nnnnnnnnnnnnnnnnnn…, 1234567890123456 in line, up to 0ms more";
        assert_eq!(told("job", &long, place, 69), expected);
        let expected = "waiting for 'job': held by ada@console, up to 0ms more";
        assert_eq!(told("job", "ada@console", "", 68), expected);
        let expected = "held by nnnnnnnnnnn…, 123456 in lin…";
        assert_eq!(told("job", &long, "123456 in line, ", 36), expected);
    }

    /// The second of two waiters was told that it was the first.
    #[test]
    fn those_in_line_are_counted_and_no_place_is_promised() {
        assert_eq!(in_line(&[]), "");
        assert_eq!(in_line(&[node(0)]), "");
        assert_eq!(in_line(&[node(2), node(3), node(0)]), "3 in line, ");
    }
}
