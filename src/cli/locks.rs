//! Commands that ask the nodes once and print what they say.

use std::collections::BTreeMap;

use super::args::{Acquire, ByName, ByToken, Extend, List};
use super::json::Json;
use super::signals::{self, Signals};
use super::{Failure, own_label, waiting};
use crate::client::protocol::LockInfo;
use crate::client::{Length, Locker, NodeReport, Vote};

pub(super) async fn acquire(args: Acquire) -> Result<(), Failure> {
    let label = args.label.unwrap_or_else(own_label);
    let builder = args.connection.builder().ttl(args.ttl).wait(args.wait).label(label);
    let locker = builder.renew(false).build()?;
    let guard = match waiting::acquire(&locker, &args.name, &mut Signals::new()?).await {
        Ok(guard) => guard,
        Err(signal) => {
            locker.settle().await;
            return Err(Failure::new(signals::code(signal), "interrupted"));
        }
    };
    let lease = guard?.leak();
    // What was sent to stragglers shall still be written.
    locker.settle().await;
    let token: String = lease.token.iter().map(|byte| format!("{byte:02x}")).collect();
    if args.json {
        let fields = vec![
            ("name", Json::text(&args.name)),
            ("token", Json::text(token)),
            ("fence", Json::Number(lease.fence.get())),
            ("validity_ms", Json::millis(Some(lease.valid_for))),
        ];
        println!("{}", Json::Object(fields));
    } else {
        println!("token {token}");
        println!("fence {}", lease.fence);
        println!("valid for {}", Length(lease.valid_for));
    }
    Ok(())
}

pub(super) async fn release(args: ByToken) -> Result<(), Failure> {
    let locker = args.connection.builder().build()?;
    locker.release_by_token(&args.name, &args.token.0).await?;
    if args.json {
        println!("{}", Json::Object(vec![("name", Json::text(&args.name))]));
    } else {
        println!("released");
    }
    Ok(())
}

pub(super) async fn extend(args: Extend) -> Result<(), Failure> {
    let lease = args.lease;
    let locker = lease.connection.builder().ttl(args.ttl).build()?;
    let validity = match locker.extend_by_token(&lease.name, &lease.token.0).await {
        Ok(validity) => validity,
        Err(error) => {
            use crate::client::ExtendError::NoQuorum;
            let is_no =
                |report: &&NodeReport| matches!(report.vote, Vote::NotHeld | Vote::Held { .. });
            let is_lost = matches!(&error, NoQuorum(nodes)
                if nodes.iter().filter(is_no).count() > nodes.len() / 2);
            let failure = Failure::from(error);
            return Err(if is_lost { Failure { code: Failure::LOST, ..failure } } else { failure });
        }
    };
    if lease.json {
        let fields =
            vec![("name", Json::text(&lease.name)), ("validity_ms", Json::millis(Some(validity)))];
        println!("{}", Json::Object(fields));
    } else {
        println!("valid for {}", Length(validity));
    }
    Ok(())
}

pub(super) async fn fence(args: ByName) -> Result<(), Failure> {
    let locker = args.connection.builder().build()?;
    let fence = locker.fence(&args.name).await.map_err(|nodes| {
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        Failure::new(Failure::NO_QUORUM, format!("no quorum answered: {}", nodes.join("; ")))
    })?;
    if args.json {
        let fields = vec![("name", Json::text(&args.name)), ("fence", Json::Number(fence.get()))];
        println!("{}", Json::Object(fields));
    } else {
        println!("{fence}");
    }
    Ok(())
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
    let locker = args.connection.builder().build()?;
    let nodes = locker.info(&args.name).await;
    if args.json {
        let nodes = nodes.iter().map(|node| Json::Object(info_fields(&node.node, &node.info)));
        let fields = vec![("name", Json::text(&args.name)), ("nodes", Json::List(nodes.collect()))];
        println!("{}", Json::Object(fields));
    } else {
        for node in &nodes {
            match &node.info {
                Ok(info) => println!("{}: {}", node.node, info_line(info)),
                Err(vote) => println!("{}: {vote}", node.node),
            }
        }
    }
    answered(nodes.iter().filter(|node| node.info.is_ok()).count(), nodes.len())
}

fn answered(count: usize, of: usize) -> Result<(), Failure> {
    if count > of / 2 {
        return Ok(());
    }
    Err(Failure::new(Failure::NO_QUORUM, format!("{count} of {of} nodes answered: no quorum")))
}

pub(super) async fn list(args: List) -> Result<(), Failure> {
    let locker: Locker = args.connection.builder().build()?;
    let nodes = locker.list().await;
    let mut locks: BTreeMap<Vec<u8>, Vec<(&str, LockInfo)>> = BTreeMap::new();
    for node in &nodes {
        match &node.locks {
            Ok(found) => {
                for (name, info) in found {
                    if args.all || info.state != "free" {
                        locks.entry(name.clone()).or_default().push((&node.node, info.clone()));
                    }
                }
            }
            Err(vote) => eprintln!("lockmod: {}: {vote}", node.node),
        }
    }
    if args.json {
        let locks = locks.into_iter().map(|(name, infos)| {
            let infos = infos.into_iter();
            let nodes = infos.map(|(node, info)| Json::Object(info_fields(node, &Ok(info))));
            Json::Object(vec![
                ("name", Json::text(String::from_utf8_lossy(&name))),
                ("nodes", Json::List(nodes.collect())),
            ])
        });
        println!("{}", Json::List(locks.collect()));
    } else {
        for (name, infos) in &locks {
            let held = infos.iter().filter(|(_, info)| info.state == "held").count();
            // The most telling node: held, and with the highest fence.
            let best = infos.iter().max_by_key(|(_, info)| (info.state == "held", info.fence));
            let line = best.map(|(_, info)| info_line(info)).unwrap_or_default();
            let name = name.escape_ascii();
            println!("{name}: {line} (held on {held} of {} nodes)", nodes.len());
        }
    }
    answered(nodes.iter().filter(|node| node.locks.is_ok()).count(), nodes.len())
}
