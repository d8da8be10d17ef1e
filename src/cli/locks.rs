//! Commands that ask the nodes once and print what they say.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use super::args::{Acquire, ByName, Extend, List, Release};
use super::failure::{Failure, warn};
use super::json::Json;
use super::rows::shown;
use super::signals::Signals;
use super::{out, waiting};
use crate::client::protocol::LockInfo;
use crate::client::{Length, Locker, NodeReport, Vote};

/// The most locks that are listed of each node.
const LISTED_MAX: usize = 100_000;

pub(super) async fn acquire(args: Acquire) -> Result<(), Failure> {
    let (name, builder) = (&args.claim.name, args.claim.builder(args.wait)?);
    let locker = builder.renew(false).build()?;
    let guard = waiting::acquire(&locker, name, &mut Signals::new()?).await?;
    let lease = guard.leak();
    // What was sent to stragglers shall still be written.
    locker.settle().await;
    let token: String = lease.token.iter().map(|byte| format!("{byte:02x}")).collect();
    let printed = if args.json {
        let fields = [
            ("token", Json::text(token)),
            ("fence", Json::Number(lease.fence.get())),
            ("validity_ms", Json::millis(Some(lease.valid_for))),
        ];
        out::line(Json::of_lock(&name.0, fields))
    } else {
        out::lines([
            format!("token {token}"),
            format!("fence {}", lease.fence),
            format!("valid for {}", at_least(lease.valid_for)),
        ])
    };
    let Err(unprinted) = printed else { return Ok(()) };
    let failure = Failure::from(unprinted);
    // Nobody knows the token, so nobody else could release it.
    Err(match locker.release_by_token(name, &lease.token).await {
        Ok(()) => failure.but("the token was not printed, so the lock was released"),
        Err(error) => failure.but(&format!("the token was not printed, but {error}")),
    })
}

pub(super) async fn release(args: Release) -> Result<(), Failure> {
    if args.token.is_none() && !args.force {
        let text = "give the token that `acquire` printed, or --force to take the lock from \
                    whoever holds it";
        return Err(Failure::new(Failure::USAGE, text));
    }
    let locker = args.lock.connection.locker()?;
    let Some(token) = &args.token else { return force_release(&locker, &args.lock).await };
    locker.release_by_token(&args.lock.name, &token.0).await?;
    print(&args.lock, [], "released")
}

/// Deletes the lock wherever it is.
async fn force_release(locker: &Locker, lock: &ByName) -> Result<(), Failure> {
    let name = &lock.name;
    let nodes = locker.force_release(name).await;
    let count = |is: fn(&Vote) -> bool| nodes.iter().filter(|report| is(&report.vote)).count();
    let deleted = count(|vote| *vote == Vote::Confirmed);
    let absent = count(|vote| *vote == Vote::NotHeld);
    let failed: Vec<String> = nodes
        .iter()
        .filter(|report| !matches!(report.vote, Vote::Confirmed | Vote::NotHeld))
        .map(ToString::to_string)
        .collect();
    let mut text = format!("deleted on {deleted} of {} nodes", nodes.len());
    if !failed.is_empty() {
        text += &format!("; {}", failed.join("; "));
    }
    if deleted + absent <= nodes.len() / 2 {
        return Err(Failure::of_nodes(format!("lock '{name}' was only {text}"), nodes));
    }
    if deleted == 0 {
        return Err(Failure::new(Failure::LOST, format!("no node has a lock '{name}'")));
    }
    let fields =
        [("deleted_on", Json::Number(deleted as u64)), ("nodes", Json::Number(nodes.len() as u64))];
    print(lock, fields, text)
}

/// A length of time that is not shown longer than it is: whoever holds the lock relies on it.
fn at_least(length: Duration) -> Length {
    let whole = |unit: u64| Duration::from_secs(length.as_secs() / unit * unit);
    // In the units in which people are told.
    Length(match length.as_secs() {
        0..120 => length,
        120..172_800 => whole(60),
        _ => whole(3_600),
    })
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
    let locker = args.lock.connection.builder(args.ttl)?.build()?;
    let validity = locker.extend_by_token(&args.lock.name, &args.token.0).await?;
    let fields = [("validity_ms", Json::millis(Some(validity)))];
    print(&args.lock, fields, format_args!("valid for {}", at_least(validity)))
}

pub(super) async fn fence(args: ByName) -> Result<(), Failure> {
    let locker = args.connection.locker()?;
    let fence = locker.fence(&args.name).await.map_err(|nodes| {
        let said: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        Failure::of_nodes(format!("no quorum answered: {}", said.join("; ")), nodes)
    })?;
    print(&args, [("fence", Json::Number(fence.get()))], fence)
}

fn info_fields(node: &str, info: &Result<LockInfo, Vote>) -> Vec<(&'static str, Json)> {
    let mut fields = vec![("node", Json::text(node))];
    match info {
        Ok(info) => fields.extend([
            ("state", Json::text(&info.state)),
            ("fence", Json::Number(info.fence.get())),
            ("ttl_left_ms", Json::millis(info.left)),
            ("label", info.label.as_ref().map_or(Json::Null, Json::text)),
            ("held_for_ms", Json::millis(info.held_for)),
            ("waiters", Json::Number(info.waiters)),
            ("first_waiting_ms", Json::millis(info.first_waiting)),
            ("quarantine_left_ms", Json::millis(info.quarantine_left)),
        ]),
        Err(vote) => fields.push(("error", Json::text(vote.to_string()))),
    }
    fields
}

fn info_line(info: &LockInfo) -> String {
    let mut line = format!("{}, fence {}", info.state, info.fence);
    if info.state == "held" {
        line += &format!(" by {}", info.label.as_deref().unwrap_or("no label"));
        if let Some(held_for) = info.held_for {
            line += &format!(" for {}", Length(held_for));
        }
        if let Some(left) = info.left {
            line += &format!(", up to {} more", Length(left));
        }
    }
    if info.waiters > 0 {
        line += &format!(", {} waiting", info.waiters);
        if let Some(first) = info.first_waiting {
            line += &format!(" (the first for {})", Length(first));
        }
    }
    if let Some(left) = info.quarantine_left {
        line += &format!(", in quarantine for {} more", Length(left));
    }
    line
}

pub(super) async fn info(args: ByName) -> Result<(), Failure> {
    let nodes = args.connection.locker()?.info(&args.name).await;
    if args.json {
        let nodes = nodes.iter().map(|node| Json::Object(info_fields(&node.node, &node.info)));
        out::line(Json::of_lock(&args.name.0, [("nodes", Json::List(nodes.collect()))]))?;
    } else {
        out::lines(nodes.iter().map(|node| match &node.info {
            Ok(info) => format!("{}: {}", node.node, info_line(info)),
            Err(vote) => format!("{}: {vote}", node.node),
        }))?;
    }
    answered(nodes.iter().map(|node| (&node.node, node.info.as_ref().err())))
}

/// An error unless a quorum of nodes has answered; each node comes with what it said instead.
fn answered<'n>(
    nodes: impl ExactSizeIterator<Item = (&'n std::sync::Arc<str>, Option<&'n Vote>)>,
) -> Result<(), Failure> {
    let all = nodes.len();
    let failed = nodes.filter_map(|(node, vote)| {
        vote.map(|vote| NodeReport { node: node.clone(), vote: vote.clone() })
    });
    let failed: Vec<NodeReport> = failed.collect();
    let count = all - failed.len();
    if count > all / 2 {
        return Ok(());
    }
    let text = format!("{count} of {all} nodes answered: no quorum");
    Err(Failure::without_quorum(text, failed, all))
}

pub(super) async fn list(args: List) -> Result<(), Failure> {
    let survey = args.connection.locker()?.survey(LISTED_MAX).await;
    let is_wanted = |info: &LockInfo| args.all || info.state != "free";
    let mut locks: BTreeMap<&[u8], Vec<(&str, &LockInfo)>> = BTreeMap::new();
    for (name, lock) in &survey.locks {
        for (node, info) in survey.nodes.iter().zip(&lock.nodes) {
            if let Some(info) = info.as_ref().filter(|info| is_wanted(info)) {
                locks.entry(name).or_default().push((&node.node, info));
            }
        }
    }
    if args.json {
        let locks = locks.into_iter().map(|(name, infos)| {
            let infos = infos.into_iter();
            let nodes =
                infos.map(|(node, info)| Json::Object(info_fields(node, &Ok(info.clone()))));
            Json::of_lock(name, [("nodes", Json::List(nodes.collect()))])
        });
        out::line(Json::List(locks.collect()))?;
    } else {
        out::lines(locks.iter().map(|(name, infos)| {
            let held = infos.iter().filter(|(_, info)| info.state == "held").count();
            // The most telling node: held, and with the highest fence.
            let best = infos.iter().max_by_key(|(_, info)| (info.state == "held", info.fence));
            let line = best.map(|(_, info)| info_line(info)).unwrap_or_default();
            format!("{}: {line} (held on {held} of {} nodes)", shown(name), survey.nodes.len())
        }))?;
    }
    let nodes = survey.nodes.iter().map(|node| (&node.node, node.status.as_ref().err()));
    for report in nodes.clone().filter_map(|(node, vote)| Some((node, vote?))) {
        warn(format_args!("{}: {}", report.0, report.1), args.json);
    }
    answered(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_validity_is_never_shown_longer_than_it_is() {
        let shown = |millis| at_least(Duration::from_millis(millis)).to_string();
        assert_eq!([shown(1_999), shown(119_999), shown(120_000)], ["1.9 s", "119.9 s", "2 min"]);
        assert_eq!(shown(3_563_998), "59 min", "of an hour");
        assert_eq!([shown(172_799_999), shown(172_800_000)], ["47 h 59 min", "2 d"]);
        assert_eq!(shown(179_999_999), "2 d 1 h");
    }
}
