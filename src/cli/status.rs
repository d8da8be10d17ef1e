//! `lockmod status`: what `lockmod top` shows, printed once.

use super::args::Status;
use super::failure::Failure;
use super::json::Json;
use super::out;
use super::rows::{self, LOCK_COLUMNS, LockOrder, NODE_COLUMNS};
use crate::client::{LockSurvey, NodeReport, NodeSurvey, Survey};

pub(super) async fn status(args: Status) -> Result<(), Failure> {
    let survey = args.connection.locker()?.survey(args.limit).await;
    if args.json {
        out::line(json(&survey))?;
    } else {
        out::lines(lines(&survey))?;
    }
    if survey.margin() < 0 {
        let failed = survey.nodes.iter().filter_map(|node| {
            let vote = node.status.as_ref().err()?.clone();
            Some(NodeReport { node: node.node.clone(), vote })
        });
        let (text, all) = (rows::quorum(&survey), survey.nodes.len());
        return Err(Failure::without_quorum(text, failed.collect(), all));
    }
    Ok(())
}

fn lines(survey: &Survey) -> Vec<String> {
    let nodes = survey.nodes.iter().map(|node| rows::node(survey, node).1);
    let mut lines = table(NODE_COLUMNS, nodes.collect());
    // Without a quorum it is the error.
    if survey.margin() >= 0 {
        lines.push(rows::quorum(survey));
    }
    let locks = rows::busy_locks(survey, LockOrder::default());
    if !locks.is_empty() {
        lines.push(String::new());
        let locks = locks.iter().map(|(name, lock)| rows::lock(survey, name, lock));
        lines.extend(table(LOCK_COLUMNS, locks.collect()));
    }
    if survey.is_cut {
        lines.push("... and more locks: see --limit".to_owned());
    }
    lines
}

/// Rows under their titles, each column as wide as its widest cell.
fn table<const N: usize>(titles: [&str; N], rows: Vec<[String; N]>) -> Vec<String> {
    let titles = titles.map(str::to_owned);
    let all = || std::iter::once(&titles).chain(&rows);
    let mut widths = [0; N];
    for row in all() {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(out::width(cell));
        }
    }
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths);
        let cells = cells.map(|(cell, width)| cell.clone() + &" ".repeat(width - out::width(cell)));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    all().map(line).collect()
}

fn json(survey: &Survey) -> Json {
    let nodes = survey.nodes.iter().map(|node| node_json(survey, node));
    let locks = rows::busy_locks(survey, LockOrder::default());
    let locks = locks.into_iter().map(|(name, lock)| lock_json(name, lock));
    Json::Object(vec![
        ("quorum", Json::Number(survey.quorum as u64)),
        ("granting", Json::Number(survey.granting() as u64)),
        ("nodes", Json::List(nodes.collect())),
        ("locks", Json::List(locks.collect())),
        ("cut", Json::Bool(survey.is_cut)),
    ])
}

fn node_json(survey: &Survey, node: &NodeSurvey) -> Json {
    let mut fields = vec![("node", Json::text(&*node.node))];
    match &node.status {
        Ok(status) => {
            let number = |name| status.number(name).map_or(Json::Null, Json::Number);
            fields.extend([
                ("role", Json::text(if status.is_master { "master" } else { "replica" })),
                ("granting", Json::Bool(status.is_granting())),
                ("state", status.fields.get("state").map_or(Json::Null, Json::text)),
                ("quarantine_left_ms", Json::millis(status.quarantine_left)),
                ("locks", number("locks")),
                ("grants", number("grants")),
                ("highest_fence", Json::Number(status.highest_fence.get())),
                ("fence_lag", Json::Number(survey.fence_lag(status))),
            ]);
        }
        Err(vote) => fields.push(("error", Json::text(vote.to_string()))),
    }
    Json::Object(fields)
}

fn lock_json(name: &[u8], lock: &LockSurvey) -> Json {
    let mut fields = Vec::new();
    if let Some(best) = lock.best() {
        fields.extend([
            ("state", Json::text(&best.state)),
            ("label", best.label.as_ref().map_or(Json::Null, Json::text)),
            ("fence", Json::Number(best.fence.get())),
            ("held_for_ms", Json::millis(best.held_for)),
            ("ttl_left_ms", Json::millis(best.left)),
            ("waiters", Json::Number(lock.waiters())),
            ("held_on", Json::Number(lock.held_count() as u64)),
        ]);
    }
    Json::of_lock(name, fields)
}
