//! The slots of a Cluster: what the server reports about them, and what masters report to each
//! other.
//!
//! The engine decides what follows. Nothing here queries a server that is not in a Cluster.

use std::collections::BTreeSet;

use super::arguments::KEY;
use super::ffi::{Args, Context, InServer, Level};
use super::process::Process;
use super::state_file::StateFile;
use super::{clock, config, process, start};
use crate::engine::{
    Came, ConfirmQuestion, Instant, Millis, MoveAtOnce, Passage, QuarantineReason, Question,
    Refusal, SlotRuns, Unconfirmed,
};
use crate::wire::slots::{SlotMessage, has_highest_epoch, read_message, read_shares, slot_of};

/// How often slots are looked at, besides when a client asks for a lock in a new one.
const PAUSE: Millis = Millis::new(200);
/// The same while slots move: who gets one must hear from its former master before that is stopped.
const HURRY: Millis = Millis::new(50);
/// How long after a message the next one may be sent: more than a cron of the Cluster later.
const SPACE: Millis = Millis::new(150);
/// How many slots are handled with one message, so that it takes no time worth mentioning: each of
/// many masters may send one at once, while nearly all slots are unsettled. A tick handles all, and
/// a request its own.
const SLOTS_PER_MESSAGE: usize = 64;

/// Refuses a decision about a lock in a slot that moves, or has just come, before the other master
/// has answered, or while leases that this node does not know may stand. Returns by what time to
/// decide: that before the check, for the process may hang after it.
///
/// # Errors
/// `TRYAGAIN` or `QUARANTINE`; `STATEFILE` if the node's promises cannot be written; `BADARG` if
/// writes are paused: a client's command comes then only if its transaction has paused them, and
/// the server shows it no key whose expiry has passed, and so no counter.
#[inline]
pub(super) fn admit(context: &mut Context<'_>, args: &Args<'_>) -> Result<Instant, Refusal> {
    let (server, now) = (context.in_server(), clock::now());
    if context.must_not_replicate() {
        return Err(paused());
    }
    // Only a node that has begun knows that it is in a Cluster.
    let needs_look =
        |process: &mut Process| process.node.is_in_cluster() || !process.node.has_begun();
    if process::with(server, needs_look) {
        admit_to(context, slot_of(args.get(KEY)), now)?;
    }
    Ok(now)
}

#[cold]
fn paused() -> Refusal {
    Refusal::BadArg {
        given: b"CLIENT PAUSE or FAILOVER".to_vec(),
        what: "earlier command in the transaction",
        allowed: "none that pauses writes",
    }
}

#[inline(never)]
fn admit_to(context: &mut Context<'_>, slot: u16, now: Instant) -> Result<(), Refusal> {
    let server = context.in_server();
    let _ = start::ready(context);
    let decides = |now| {
        let now = (now, config::max_ttl());
        process::with(server, |process| process.node.decides_in(slot, now))
    };
    if decides(now) {
        return Ok(());
    }
    look(context);
    if decides(clock::now()) {
        return Ok(());
    }
    let came = come(context, slot);
    if matches!(came, Err(Refusal::SlotMoving { .. })) && may_send(server) {
        ask_others(context);
    }
    came
}

/// Why the node does not decide in the slot of this lock, although it does in others.
pub(super) fn obstacle(server: InServer<'_>, name: &[u8], now: Instant) -> Option<Refusal> {
    process::with(server, |process| {
        let node = process.node.is_in_cluster().then_some(&process.node)?;
        node.obstacle_in(slot_of(name), (now, config::max_ttl()))
    })
}

/// Five times a second, and with each cron while slots move: looks at the slots, and reports to the
/// other masters.
pub(super) fn tick(context: &mut Context<'_>) {
    let (server, now) = (context.in_server(), clock::now());
    let is_due = process::with(server, |process| {
        let pause = if process.node.has_moving_slots() { HURRY } else { PAUSE };
        process.node.is_in_cluster()
            && process.node.has_begun()
            && process::is_due(&mut process.slots_seen_at, pause, now)
    });
    let must_look = |process: &mut Process| process.node.must_look();
    if !is_due || !(can_answer(context) || process::with(server, must_look)) {
        return;
    }
    look(context);
    if !context.flags().is_master() {
        return;
    }
    come_to_unsettled(context, usize::MAX);
    if process::with(server, |process| process.node.owes_epoch(now)) {
        context.raise_epoch();
        let is_highest = context.cluster_nodes().is_none_or(|text| has_highest_epoch(&text));
        process::with(server, |process| process.node.raised_epoch(is_highest));
    }
    tell_of_silent(context);
    tell_of_unconfirmed(context);
    if !may_send(server) {
        return;
    }
    ask_others(context);
}

/// Before the server stops: its configuration epoch may have risen since the last look, and the
/// next start cannot see that.
pub(super) fn look_last(context: &mut Context<'_>) {
    let is_in_cluster = process::with(context.in_server(), |process| process.node.is_in_cluster());
    if is_in_cluster
        && can_answer(context)
        && let Some(text) = context.cluster_nodes()
    {
        process::with(context.in_server(), |process| process.node.looks_last());
        see(context, &text);
    }
}

/// Whether to send questions and reports now: not with each cron. A server makes a lost connection
/// anew in its cron, and greets the other one a moment later; Valkey 8.1 closes a connection if a
/// module's message comes before that.
fn may_send(server: InServer<'_>) -> bool {
    process::with(server, |process| {
        process::is_due(&mut process.slots_sent_at, SPACE, clock::now())
    })
}

const HAS_LEFT: &str = "WARNING: nothing is granted or extended, because this server has left a \
                        Cluster, or lost its nodes.conf, and has slots in which masters there may \
                        grant locks: let it join them, or remove its data (FLUSHALL, CLUSTER \
                        RESET), or, if it is to go on with these slots alone, take them away and \
                        give them again (CLUSTER DELSLOTS, and a second later ADDSLOTS)";

/// Logs which other masters keep this one from deciding, because they say nothing.
fn tell_of_silent(context: &mut Context<'_>) {
    let (server, now) = (context.in_server(), clock::now());
    let silent =
        process::with(server, |process| process.node.news_of_silent(now, config::max_ttl()));
    if let Some((silent, left)) = silent {
        let names = names(&silent);
        let line = format!(
            "QUARANTINE: not heard since the start: {names}; nothing is granted or extended for \
             {left}, or until they are heard, because they may have granted leases in slots of \
             this node"
        );
        context.log(Level::Warning, &line);
    }
}

/// Logs why most masters do not confirm the slots of this one.
fn tell_of_unconfirmed(context: &mut Context<'_>) {
    let (server, now) = (context.in_server(), clock::now());
    // While the state file is behind, it is this node that asks nobody.
    let unconfirmed = process::with(server, |process| {
        let is_behind = process.state.as_ref().is_some_and(StateFile::is_behind);
        if is_behind { None } else { process.node.news_of_unconfirmed(now) }
    });
    let line = match unconfirmed {
        Some(Unconfirmed::Silent(silent)) if !silent.is_empty() => format!(
            "WARNING: nothing is granted or extended, because too few masters that have a vote \
             confirm the slots of this node: no answer from {}; start them with the module, or \
             CLUSTER FORGET those that will never return",
            names(&silent)
        ),
        Some(Unconfirmed::HaveNoVote(masters)) => format!(
            "WARNING: nothing is granted or extended, because masters that had a vote have lost \
             their state files or were reset: {}; CLUSTER FORGET each on all servers that have \
             their files, and CLUSTER MEET it a minute later",
            names(&masters)
        ),
        Some(Unconfirmed::HasLeft) => HAS_LEFT.to_owned(),
        Some(Unconfirmed::Silent(_)) | None => return,
    };
    context.log(Level::Warning, &line);
}

fn names(masters: &[Vec<u8>]) -> String {
    let names: Vec<_> = masters.iter().map(|name| name.escape_ascii().to_string()).collect();
    names.join(" ")
}

/// Takes a message of another master.
pub(super) fn heard(context: &mut Context<'_>, sender: &[u8], message: &[u8]) {
    let server = context.in_server();
    let has_begun = process::with(server, |process| process.node.has_begun());
    match read_message(message) {
        Some(SlotMessage::Report(told)) => {
            process::with(server, |process| process.node.hear(sender, told, clock::now()));
        }
        Some(SlotMessage::Answer { number, answer })
            if has_begun && context.flags().is_master() =>
        {
            look(context);
            process::with(server, |process| {
                process.node.answered(sender, number, &answer, clock::now());
            });
            come_to_unsettled(context, SLOTS_PER_MESSAGE);
        }
        Some(SlotMessage::Question { number, passage, slots })
            if has_begun && can_answer(context) =>
        {
            look(context);
            answer(context, (sender, number), (&slots, passage));
        }
        Some(SlotMessage::ConfirmQuestion(asked)) if has_begun && confirms(context, &asked) => {
            confirm(context, sender, &asked);
        }
        Some(SlotMessage::ConfirmQuestion(asked)) => {
            process::with(server, |process| process.node.overhear(sender, &asked, clock::now()));
            keep_news(context);
        }
        Some(SlotMessage::Confirmation(told)) if has_begun && context.flags().is_master() => {
            look(context);
            process::with(server, |process| process.node.confirmed(sender, &told, clock::now()));
            keep_news(context);
            come_to_unsettled(context, SLOTS_PER_MESSAGE);
        }
        Some(_) | None => {}
    }
}

/// Takes what the server tells of slots that it moves at once; `to`: as in
/// [`Node::move_at_once`](crate::engine::Node::move_at_once).
pub(super) fn moves(
    context: &mut Context<'_>,
    step: MoveAtOnce,
    slots: &SlotRuns,
    to: Option<&[u8]>,
) {
    let server = context.in_server();
    let has_looked = process::with(server, |process| process.node.has_looked());
    // Valkey 9 sends what changes during the move to the wrong database, if several have keys.
    let is_sent = step != MoveAtOnce::HasLeft || !context.has_several_databases();
    let step = if is_sent { step } else { MoveAtOnce::HasLeftUnproved };
    // The loss of a slot that comes again must not be seen later.
    let looks_first = [MoveAtOnce::Comes, MoveAtOnce::HasCome, MoveAtOnce::HasLeftUnproved];
    if looks_first.contains(&step) && has_looked {
        look(context);
    }
    process::with(server, |process| process.node.move_at_once(step, slots, to));
    if step == MoveAtOnce::HasLeft && has_looked {
        look(context);
    } else {
        keep_news(context);
    }
}

/// Whether this server can speak for slots. A master that loses its last slot becomes a replica,
/// and is asked about that slot afterwards.
fn can_answer(context: &Context<'_>) -> bool {
    context.flags().is_master()
        || process::with(context.in_server(), |process| process.node.has_looked())
}

fn answer(
    context: &mut Context<'_>,
    (sender, number): (&[u8], u64),
    (slots, passage): (&SlotRuns, Passage),
) {
    let server = context.in_server();
    let mut left = BTreeSet::new();
    // What a replica has in them, it has from its master.
    if context.flags().is_master() {
        left.extend(process::with(server, |process| process.node.not_settled(slots)));
        left.retain(|slot| context.has_keys_in(*slot));
    }
    let now = (clock::now(), config::max_ttl());
    let answers = process::with(server, |process| {
        process.node.asked(sender, (slots, passage), now, |slot| left.contains(&slot))
    });
    for answer in answers {
        let answer = SlotMessage::Answer { number, answer };
        context.tell_cluster(Some(sender), &answer.to_string());
    }
}

/// Whether this server is to answer another master's question whether it confirms its slots.
fn confirms(context: &Context<'_>, asked: &ConfirmQuestion) -> bool {
    context.flags().is_master()
        || process::with(context.in_server(), |process| process.node.answers(asked))
}

/// Says which slots of another master are its own, as this server believes.
fn confirm(context: &mut Context<'_>, sender: &[u8], asked: &ConfirmQuestion) {
    let server = context.in_server();
    // In a large Cluster, questions come more often.
    if !process::with(server, |process| process.node.has_just_looked(clock::now())) {
        look(context);
    }
    let told = process::with(server, |process| process.node.confirm(sender, asked, clock::now()));
    let told = told.filter(|_| keep_news(context));
    if let Some(told) = told {
        context.tell_cluster(Some(sender), &SlotMessage::Confirmation(told).to_string());
    }
}

/// Records what the node must not forget of slots and electorates. Whether the file has it.
fn keep_news(context: &mut Context<'_>) -> bool {
    let server = context.in_server();
    for change in process::with(server, |process| process.node.news_of_slots(clock::now())) {
        process::change_state(server, change);
    }
    !process::with(server, |process| process.state.as_ref().is_some_and(StateFile::is_behind))
}

/// Sends the questions that are due, and the report.
fn ask_others(context: &mut Context<'_>) {
    let now = clock::now();
    let confirm = process::with(context.in_server(), |process| {
        process.node.confirm_question(now, config::max_ttl())
    });
    // Also if there is nobody to ask: a setting that was raised counts from now on.
    let is_kept = keep_news(context);
    match confirm {
        Some(question) if is_kept => {
            context.tell_cluster(None, &SlotMessage::ConfirmQuestion(question).to_string());
        }
        Some(_) => process::with(context.in_server(), |process| process.node.question_unsent()),
        None => {}
    }
    let questions = process::with(context.in_server(), |process| process.node.questions(now));
    for Question { master, number, passage, slots } in questions {
        let question = SlotMessage::Question { number, passage, slots };
        context.tell_cluster(Some(&master), &question.to_string());
    }
    let told =
        process::with(context.in_server(), |process| process.node.tell(now, config::max_ttl()));
    if let Some(told) = told {
        context.tell_cluster(None, &SlotMessage::Report(told).to_string());
    }
}

/// Shows the node which master has which slots.
pub(super) fn look(context: &mut Context<'_>) {
    let server = context.in_server();
    let Some(text) = context.cluster_nodes() else {
        let line = "WARNING: CLUSTER NODES cannot be read: locks in slots that are moved to this \
                    node may be granted while they are held";
        context.log(Level::Warning, line);
        process::with(server, |process| process.node.leave_cluster());
        return;
    };
    see(context, &text);
}

/// Handles that the server is a replica by now, and has lost all slots. It has not deleted the
/// locks in them, and will do so as it takes over the data of its new master. Keys that are left
/// may be of any of them. (The next look shows that they are lost. It is not made here: Valkey
/// reports the end of a move at once after this.)
pub(super) fn demoted(context: &mut Context<'_>) {
    let server = context.in_server();
    if process::with(server, |process| process.node.has_looked()) && context.has_keys() {
        process::with(server, |process| process.node.deleted_in_all_slots());
    }
}

/// Whether the server has this slot now; no, if it cannot say. What it has lost is not asked for
/// again before the next look: it may delete thousands of locks with it.
pub(super) fn is_own(context: &mut Context<'_>, slot: u16) -> bool {
    let has = |own: &SlotRuns| own.iter().any(|(first, last)| (*first..=*last).contains(&slot));
    let server = context.in_server();
    if process::with(server, |process| process.own_left.as_ref().is_some_and(|own| !has(own))) {
        return false;
    }
    let own = context.cluster_nodes().map(|text| read_shares(&text).own).unwrap_or_default();
    let is_own = has(&own);
    if !is_own {
        process::with(server, |process| process.own_left = Some(own));
    }
    is_own
}

/// Notes what `CLUSTER NODES` says.
fn see(context: &mut Context<'_>, text: &str) {
    let server = context.in_server();
    let mut shares = read_shares(text);
    shares.holds_back = context.must_not_replicate();
    if let Some(earlier) = process::with(server, |process| process.shares_at_load.take()) {
        shares.found = found(context, &shares.own_since(&earlier.own));
        shares.had_none = earlier.own.is_empty();
        shares.has_risen = earlier.epoch < shares.epoch;
    }
    let now = clock::now();
    process::with(server, |process| {
        process.node.see(&shares, now);
        process.own_left = None;
    });
    keep_news(context);
}

/// Those of these slots, new since the module was loaded, that the server may have taken by itself.
fn found(context: &mut Context<'_>, new: &[u16]) -> SlotRuns {
    let slots = new.iter().filter(|slot| context.has_keys_in(**slot));
    slots.map(|slot| (*slot, *slot)).collect()
}

/// Handles the slots in which the node does not decide yet, so many at most; none while the state
/// file cannot be written: that would be tried again with each message.
fn come_to_unsettled(context: &mut Context<'_>, most: usize) {
    if process::with(context.in_server(), |process| process.state_failure().is_none()) {
        try_unsettled(context, most);
    }
}

/// The same, until a write of the state file fails: it would fail again for each of thousands of
/// slots.
fn try_unsettled(context: &mut Context<'_>, most: usize) {
    let server = context.in_server();
    let failures = || {
        let count = |process: &mut Process| process.state.as_ref().map(StateFile::failure_count);
        process::with(server, count)
    };
    let (before, unsettled) =
        (failures(), process::with(server, |process| process.node.unsettled_slots()));
    for slot in unsettled.into_iter().take(most) {
        // A refusal is for requests for a lock there, and each of them gets its own.
        let _ = come(context, slot);
        if failures() != before {
            return;
        }
    }
}

/// Ends the waits in slots if the operator asks for that, before another setting may follow: also
/// if the last write of the state file has failed.
pub(super) fn configured(context: &mut Context<'_>) {
    let is_waiting = |process: &mut Process| {
        process.node.has_begun() && !process.node.unsettled_slots().is_empty()
    };
    let ends = !config::caution().quarantine && context.flags().is_master();
    if ends && process::with(context.in_server(), is_waiting) {
        look(context);
        try_unsettled(context, usize::MAX);
    }
}

/// Handles a slot that has come to this node.
fn come(context: &mut Context<'_>, slot: u16) -> Result<(), Refusal> {
    let ready = start::ready(context);
    let now = clock::now();
    let settings = (config::max_ttl(), config::caution());
    let server = context.in_server();
    let came = process::decide(ready, |node| node.come(slot, node.date(now), settings))?;
    let (left, change) = match came {
        Came::Asks => return Err(Refusal::SlotMoving { slot }),
        Came::Decides(is_raised) => {
            process::with(server, |process| process.owes_floor |= is_raised);
            return Ok(());
        }
        Came::Rests(left) => (left, None),
        Came::Waits { left, change } => (left, change),
    };
    if let Some(change) = change {
        let line = format!(
            "QUARANTINE: leases of another master may stand in slots of this node (slot {slot} is \
             the first; unsettled_slots in INFO counts them); no lock there is granted or extended \
             for up to {left}"
        );
        context.log(Level::Warning, &line);
        process::change_state(server, change);
    }
    Err(Refusal::Quarantine { reason: QuarantineReason::OtherMaster, left })
}
