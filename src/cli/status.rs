//! `lockmod status`: what `lockmod top` shows, printed once.

use super::args::Status;
use super::columns::{LOCK_OPTIONAL, NODE_OPTIONAL, Optional, STATE, fit, shorten};
use super::failure::{Failure, warn};
use super::json::Json;
use super::rows::{self, LOCK_COLUMNS, LockOrder, NODE_COLUMNS};
use super::{doubts, out};
use crate::client::{
    FailingMaster, LockSurvey, MissingReplica, NodeField, NodeStatus, NodeSurvey, ReplicaStatus,
    SlotMove, SlotShare, Survey, Vote,
};

/// The widest cell to which the other cells of its column of locks are padded: names and labels can
/// be very long. The texts about nodes cannot.
const PADDED_MAX: usize = 60;

pub(super) async fn status(args: Status) -> Result<(), Failure> {
    let locker = args.connection.locker()?;
    let (survey, dead_ends, unfit, missing) = tokio::join!(
        locker.survey(args.limit),
        locker.dead_ends(),
        locker.unfit_replicas(),
        locker.missing_replicas()
    );
    if args.json {
        out::line(json(&survey, &missing))?;
    } else {
        out::lines(lines(&survey, out::columns()))?;
    }
    let doubts = [
        doubts::replicas(&survey),
        doubts::doubles(&survey),
        doubts::parts_of_clusters(&survey),
        doubts::excess(&survey),
        doubts::lacking(&survey),
        doubts::missing(&missing),
        doubts::remedies(&survey),
        doubts::unfit(&unfit),
        doubts::unseen(&survey),
        doubts::dead_ends(&survey, &dead_ends),
        doubts::incomplete(&survey),
    ];
    doubts.concat().into_iter().for_each(|text| warn(text, args.json));
    if survey.margin() < 0 {
        let failed =
            survey.nodes.iter().filter_map(|node| Some(node.report(abstention(&survey, node)?)));
        let (text, all) = (rows::quorum(&survey), survey.nodes.len());
        return Err(Failure::without_quorum(text, failed.collect(), all));
    }
    Ok(())
}

/// Why a node grants nothing; `None` if it grants.
fn abstention(survey: &Survey, node: &NodeSurvey) -> Option<Vote> {
    let status = match &node.status {
        Ok(status) => status,
        Err(vote) => return Some(vote.clone()),
    };
    if survey.has_vote(status) {
        return None;
    }
    let reason = rows::shortfall(survey, status);
    reason.map(|text| Vote::Unavailable(text.into())).or_else(|| status.abstention())
}

/// The printed lines, for a terminal with `room` columns, or for a program.
fn lines(survey: &Survey, room: Option<usize>) -> Vec<String> {
    let nodes: Vec<_> = survey.nodes.iter().map(|node| rows::node(survey, node).1).collect();
    let columns = Columns { text: [0, STATE], optional: &NODE_OPTIONAL, padded_max: usize::MAX };
    let mut lines = table(NODE_COLUMNS, nodes.clone(), columns, room);
    let is_shown = |row: &&[String; 7]| lines.iter().any(|line| line.contains(&*row[STATE]));
    let cut: Vec<_> = nodes.iter().filter(|row| !is_shown(row)).collect();
    // The terminal wraps these lines.
    lines.extend(cut.into_iter().map(|row| format!("{}: {}", row[0], row[STATE])));
    lines.extend(survey.nodes.iter().flat_map(rows::moving));
    // Without a quorum, this line is the error.
    if survey.margin() >= 0 {
        lines.push(rows::quorum(survey));
    }
    let locks = rows::busy_locks(survey, LockOrder::default());
    if !locks.is_empty() {
        lines.push(String::new());
        let labels = if room.is_some() { rows::LABELS } else { usize::MAX };
        let locks = locks.iter().map(|&lock| rows::lock(survey, lock, labels));
        let optional = &LOCK_OPTIONAL;
        let columns = Columns { text: [0, 1], optional, padded_max: PADDED_MAX };
        lines.extend(table(LOCK_COLUMNS, locks.collect(), columns, room));
    }
    lines.extend(rows::rest(survey, Some("--limit")).iter().map(|text| format!("... {text}")));
    lines
}

/// How to lay out the columns of a table.
#[derive(Clone, Copy)]
struct Columns<'a> {
    /// The columns of a name and of its description.
    text: [usize; 2],
    optional: &'a [Optional],
    /// The widest cell to which others are padded.
    padded_max: usize,
}

/// Rows under their titles. For a terminal they are cut to its width, as in `lockmod top`; for a
/// program nothing is cut, and a cell wider than `padded_max` shifts the rest of its row.
fn table<const N: usize>(
    titles: [&str; N],
    mut rows: Vec<[String; N]>,
    of_table: Columns<'_>,
    room: Option<usize>,
) -> Vec<String> {
    let columns = match room {
        // A gap is one blank wider here than in `top`.
        Some(room) => {
            let room = room.saturating_sub(N - 1);
            fit(titles, &rows, of_table.text, of_table.optional, room)
        }
        None => (0..N).map(|column| (column, of_table.padded_max)).collect(),
    };
    if room.is_some() {
        shorten(&mut rows, &columns);
        for (column, width) in &columns {
            rows.iter_mut().for_each(|row| row[*column] = out::cut(&row[*column], *width));
        }
    }
    let titles = titles.map(str::to_owned);
    let widest = |column: usize| {
        let cells = std::iter::once(&titles).chain(&rows).map(|row| out::width(&row[column]));
        cells.max().unwrap_or(0)
    };
    let widths: Vec<(usize, usize)> =
        columns.iter().map(|&(column, max)| (column, widest(column).min(max))).collect();
    let line = |row: &[String; N]| {
        let cells = widths.iter().map(|&(column, width)| {
            let blanks = width.saturating_sub(out::width(&row[column]));
            row[column].clone() + &" ".repeat(blanks)
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let note = left_out(&titles, &columns);
    let note = note.map(|note| out::cut(&note, room.unwrap_or(usize::MAX)));
    std::iter::once(&titles).chain(&rows).map(line).chain(note).collect()
}

/// Which columns are not shown.
fn left_out(titles: &[String], shown: &[(usize, usize)]) -> Option<String> {
    let is_shown = |column: usize| shown.iter().any(|(other, _)| *other == column);
    let others = titles.iter().enumerate().filter(|(column, _)| !is_shown(*column));
    let others: Vec<&str> = others.map(|(_, title)| title.as_str()).collect();
    (!others.is_empty()).then(|| format!("no room for {}", others.join(", ")))
}

fn json(survey: &Survey, missing: &[MissingReplica]) -> Json {
    let nodes = survey.nodes.iter().map(|node| {
        let of_node = missing.iter().filter(|replica| replica.node == node.node);
        node_json(survey, node, of_node.map(missing_json).collect())
    });
    let locks = rows::busy_locks(survey, LockOrder::default());
    let locks = locks.into_iter().map(|(name, lock)| lock_json(name, lock));
    Json::Object(vec![
        ("quorum", Json::Number(survey.quorum as u64)),
        ("granting", Json::Number(survey.granting() as u64)),
        ("nodes", Json::List(nodes.collect())),
        ("locks", Json::List(locks.collect())),
        (
            "cut",
            Json::Bool(
                survey.is_cut
                    || !survey.given_up.is_empty()
                    || survey.unnamed + survey.hidden > 0
                    || survey.nodes.iter().any(|node| node.unlisted.is_some())
                    || survey.nodes.iter().any(|node| doubts::unknown_slots(node).is_some()),
            ),
        ),
    ])
}

fn node_json(survey: &Survey, node: &NodeSurvey, missing: Vec<Json>) -> Json {
    let mut fields = vec![("node", Json::text(&*node.node))];
    let status = match &node.status {
        Ok(status) => status,
        Err(vote) => {
            fields.extend(silent_fields(node, vote));
            return Json::Object(fields);
        }
    };
    let number = |name| status.fields.number(name).map_or(Json::Null, Json::Number);
    let shortfall = rows::shortfall(survey, status);
    let state = shortfall.as_deref().or(status.fields.text(NodeField::State));
    fields.extend([
        ("role", Json::text(if status.is_master { "master" } else { "replica" })),
        ("granting", Json::Bool(survey.has_vote(status))),
        ("state", state.map_or(Json::Null, Json::text)),
        ("quarantine_left_ms", Json::millis(status.quarantine_left)),
        ("locks", number(NodeField::Locks)),
        ("grants", number(NodeField::Grants)),
        ("highest_fence", Json::Number(status.highest_fence.get())),
        ("fence_lag", Json::Number(survey.fence_lag(status))),
        ("fence_too_high", Json::Bool(survey.is_too_high(status))),
    ]);
    fields.extend(node.unlisted.iter().map(|vote| ("unlisted", Json::text(vote.to_string()))));
    if let Some(support) = status.support() {
        fields.extend([
            ("supporters", Json::Number(support.supporters)),
            ("supporters_needed", Json::Number(support.needed)),
        ]);
    }
    fields.extend(slot_fields(status));
    fields.extend(replica_fields(status, missing));
    // Only for a replica, a group under Sentinel, and a Cluster.
    let (first, more) = (node.masters.first(), node.masters.len() > 1);
    let master = status.master.as_deref().or(first.map(|master| &**master));
    fields.extend(master.filter(|_| !more).map(|master| ("master", Json::text(master))));
    let masters = node.masters.iter().map(|master| Json::text(&**master)).collect();
    fields.extend(more.then_some(("masters", Json::List(masters))));
    Json::Object(fields)
}

/// Why a node reports no status, and which master was asked.
fn silent_fields(node: &NodeSurvey, vote: &Vote) -> Vec<(&'static str, Json)> {
    let error = ("error", Json::text(vote.to_string()));
    let master = node.report(vote.clone()).master;
    [error].into_iter().chain(Json::of_master(master.as_deref())).collect()
}

/// The replicas of its masters, and those that are missing, if there are any.
fn replica_fields(
    status: &NodeStatus,
    missing: Vec<Json>,
) -> impl Iterator<Item = (&'static str, Json)> {
    let replicas: Vec<Json> = status.replicas.iter().map(replica_json).collect();
    let lists = [("replicas", replicas), ("missing_replicas", missing)];
    let lists = lists.into_iter().filter(|(_, list)| !list.is_empty());
    lists.map(|(name, list)| (name, Json::List(list)))
}

/// How a Cluster, or a server of one, stands in its slots.
fn slot_fields(status: &NodeStatus) -> Vec<(&'static str, Json)> {
    let mut fields = Vec::new();
    if let Some(share) = &status.slots {
        fields.extend(share_fields(share));
    }
    if status.slots.is_some() || status.is_in_cluster {
        let told = [NodeField::UnsettledSlots, NodeField::UnsettledLeft, NodeField::FailedMoves];
        let number = |field| status.fields.number(field).map_or(Json::Null, Json::Number);
        fields.extend(told.map(|field| (field.name(), number(field))));
    }
    fields
}

/// In how many of its slots a Cluster grants locks.
fn share_fields(share: &SlotShare) -> [(&'static str, Json); 4] {
    let failing = |FailingMaster { report, slots, .. }: &FailingMaster| {
        let error = Json::text(report.vote.to_string());
        let slots = Json::Number((*slots).into());
        Json::Object(vec![
            ("master", Json::text(&*report.node)),
            ("error", error),
            ("slots", slots),
        ])
    };
    let failing = share.failing.iter().map(failing).collect();
    [
        ("slots_granting", Json::Number(share.granting.into())),
        ("failing_masters", Json::List(failing)),
        ("slots_unknown", Json::Number(share.unknown.into())),
        ("moving_slots", Json::List(share.moving.iter().map(move_json).collect())),
    ]
}

fn move_json(SlotMove { slots, untaken, from, to, .. }: &SlotMove) -> Json {
    Json::Object(vec![
        ("slots", Json::Number((*slots).into())),
        ("untaken", Json::Number((*untaken).into())),
        ("from", Json::text(&**from)),
        ("to", Json::text(&**to)),
    ])
}

fn replica_json(replica: &ReplicaStatus) -> Json {
    Json::Object(vec![
        ("address", Json::text(&*replica.address)),
        ("lag_bytes", Json::Number(replica.lag_bytes)),
    ])
}

fn missing_json(missing: &MissingReplica) -> Json {
    let reason = missing.reason.as_ref().map(ToString::to_string);
    Json::Object(vec![
        ("address", Json::text(&*missing.replica)),
        ("master", Json::text(&*missing.master)),
        ("reason", reason.map_or(Json::Null, Json::text)),
    ])
}

fn lock_json(name: &[u8], lock: &LockSurvey) -> Json {
    let mut fields = Vec::new();
    if let Some(best) = lock.best() {
        fields.extend([("state", Json::text(best.state.to_string()))]);
        fields.extend(Json::of_label(best));
        fields.extend([
            ("fence", Json::Number(best.fence.get())),
            ("held_for_ms", Json::millis(best.held_for)),
            ("ttl_left_ms", Json::millis(best.left)),
            ("readers", Json::Number(best.readers)),
            ("reader_labels", Json::texts(&best.reader_labels)),
            ("waiters", Json::Number(lock.waiters())),
            ("waiting_readers", Json::Number(lock.waiting_readers())),
            ("held_on", Json::Number(lock.held_count() as u64)),
            ("held_provisionally_on", Json::Number(lock.held_provisionally() as u64)),
        ]);
    }
    Json::of_lock(name, fields)
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::client::LockInfo;
    use crate::engine::SLOTS;
    use crate::wire::lock_info;

    fn rows() -> Vec<[String; 3]> {
        let row = |cells: [&str; 3]| cells.map(str::to_owned);
        vec![row(["a", "x", "1"]), row([&"b".repeat(500), &"y".repeat(99), "2"])]
    }

    /// The fields are named as in the description of a lock.
    #[test]
    fn the_json_of_a_lock_has_the_names_that_a_node_gives_its_fields() {
        let lock = LockSurvey { nodes: vec![Some(LockInfo::default())] };
        let Json::Object(fields) = lock_json(b"job", &lock) else { panic!("no object") };
        let told: Vec<&str> = lock_info::field_names().collect();
        let own = ["name", "held_on", "held_provisionally_on"];
        for (name, _) in fields.iter().filter(|(name, _)| !own.contains(name)) {
            assert!(told.contains(name), "{name}");
        }
    }

    /// One name of 500 letters made every line of the table that long.
    #[test]
    fn a_long_name_is_cut_at_a_terminal_and_pads_nothing_elsewhere() {
        let titles = ["LOCK", "HOLDER", "NODES"];
        let optional = [Optional { column: 2, leaves: 24 }];
        let columns = Columns { text: [0, 1], optional: &optional, padded_max: PADDED_MAX };
        for room in [40, 80] {
            let lines = table(titles, rows(), columns, Some(room));
            assert!(lines.iter().all(|line| out::width(line) <= room), "{lines:#?}");
            assert!(lines[2].starts_with("bbb") && lines[2].ends_with('2'), "{lines:#?}");
        }
        // Columns were left out silently.
        let optional = [Optional { column: 2, leaves: usize::MAX }];
        let columns = Columns { optional: &optional, ..columns };
        let lines = table(titles, rows(), columns, Some(40));
        assert_eq!(lines.last().map(String::as_str), Some("no room for NODES"));
        let lines = table(titles, rows(), columns, None);
        assert!(lines[1].len() < 2 * PADDED_MAX + 9, "{lines:#?}");
        assert!(lines[2].contains(&"b".repeat(500)), "nothing is lost to a program");
    }

    /// Regression: the rest of a cut state, such as the master that fails, was shown nowhere.
    #[test]
    fn a_state_that_is_cut_at_a_terminal_is_printed_in_full_below() {
        let state = format!("connection refused by {}", "host.".repeat(20));
        let node = |name, text: &str| NodeSurvey::of(name, Err(Vote::Unreachable(text.into())));
        let survey = Survey::of(vec![node("a", &state), node("b", "no")], 2);
        let full = format!("unreachable: {state}");
        let lines_at = |room: Option<usize>| -> Vec<String> {
            lines(&survey, room).into_iter().filter(|line| line.contains(&full)).collect()
        };
        assert_eq!(lines_at(Some(80)), [format!("a: {full}")]);
        assert!(lines_at(None)[0].starts_with("a "), "in its row");
        assert_eq!(lines_at(None).len(), 1);
        assert!(!lines(&survey, Some(80)).iter().any(|line| line.starts_with("b: ")), "not cut");
    }

    fn of_one(status: NodeStatus) -> Survey {
        Survey::of(vec![NodeSurvey::of("a", Ok(status))], 1)
    }

    #[test]
    fn moves_that_failed_are_shown_for_a_server_of_a_cluster() {
        let told = |count| {
            let status = NodeStatus {
                is_master: true,
                is_in_cluster: true,
                fields: [(NodeField::FailedMoves, count)].into(),
                ..NodeStatus::default()
            };
            let survey = of_one(status);
            let shown = format!("\"failed_moves\":{count}");
            let shown_json = json(&survey, &[]).to_string();
            assert!(shown_json.contains(&shown), "{shown_json}");
            lines(&survey, None).concat()
        };
        assert!(!told("0").contains("failed"));
        assert!(told("1").contains("; 1 move failed  "));
        assert!(told("2").contains("; 2 moves failed  "));
    }

    #[test]
    fn slots_about_which_masters_ask_are_shown_for_a_cluster_that_grants() {
        let share = SlotShare { granting: SLOTS, asking: 12, ..SlotShare::default() };
        let status = NodeStatus { is_master: true, slots: Some(share), ..NodeStatus::default() };
        let survey = of_one(status);
        let shown = lines(&survey, None).concat();
        assert!(shown.contains("  grants; nothing yet in 12 of 16384 slots  "), "{shown}");
        assert_eq!(survey.margin(), 0);
    }

    /// The columns after a state of more than 60 letters stood under the wrong titles.
    #[test]
    fn a_long_state_of_a_node_breaks_no_column() {
        let columns = Columns { text: [0, 1], optional: &[], padded_max: usize::MAX };
        let lines = table(["NODE", "STATE", "LOCKS"], rows(), columns, None);
        let last = |line: &String| line.rfind(' ').map(|at| at + 1);
        assert!(lines.iter().all(|line| last(line) == last(&lines[0])), "{lines:#?}");
    }
}
