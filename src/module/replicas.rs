//! The replicas of a master: heartbeats to them, and what they acknowledge.
//!
//! The engine decides what follows. Nothing here queries a server without `lockmod.replicas`.

use super::ffi::{self, Context, InServer, Level};
use super::{clock, config, process};
use crate::engine::{Change, Millis, Notice, Tended};

/// How often the replicas are looked at, besides when one comes or goes.
const PAUSE: Millis = Millis::new(200);

/// Several times a second: sends a heartbeat when one is due, and looks at what was acknowledged.
pub(super) fn tick(context: &mut Context<'_>) {
    let server = context.in_server();
    let now = clock::now();
    let is_due = process::with(server, |process| {
        process.rests_on_replicas() && process::is_due(&mut process.tended_at, PAUSE, now)
    });
    if !is_due {
        return;
    }
    if !context.flags().is_master() {
        let has_master = context.flags().has_master();
        if process::with(server, |process| process.node.follows(has_master, now)) {
            ffi::log(
                Level::Warning,
                "WARNING: the master has sent no heartbeat for 5 seconds: unless it hangs or \
                 writes are paused there, its lockmod.replicas is 0, and when it is cut off it \
                 may grant locks beside its successor",
            );
        }
        return look_at_settings(server);
    }
    // While traffic to replicas is paused, none may be sent: the server would abort.
    let may_beat = !context.must_not_replicate();
    let tended = tend(server, may_beat);
    if let Some(heartbeat) = tended.heartbeat {
        let floor = process::with(server, |process| process.node.promises().floor());
        context.replicate_heartbeat(floor, heartbeat);
    }
    report(tended);
}

/// Handles a replica that has come online, or is gone. The replicas are looked at now: a connection
/// that was broken and restored before the next tick would look like one that has lasted.
pub(super) fn changed(server: InServer<'_>) {
    let rests = process::with(server, |process| process.rests_on_replicas());
    if rests && ffi::server_flags(server).is_master() {
        report(tend(server, false));
    }
}

/// Takes `lockmod.max-ttl`, which may have changed.
pub(super) fn look_at_settings(server: InServer<'_>) {
    let (now, max_ttl) = (clock::now(), config::max_ttl());
    let change = process::with(server, |process| {
        if process.rests_on_replicas() { process.node.allow(max_ttl, now) } else { None }
    });
    record(server, change);
}

/// Records the longest lease in the state file.
pub(super) fn record(server: InServer<'_>, change: Option<Change>) {
    if let Some(change) = change {
        process::change_state(server, change);
    }
}

fn tend(server: InServer<'_>, may_beat: bool) -> Tended {
    // The clock is read first: what the server sends beyond this offset is sent later.
    let now = clock::now();
    let replicas = ffi::replicas(server);
    let settings = (config::max_ttl(), config::caution().waits_for_others());
    let tend =
        |process: &mut process::Process| process.node.tend(now, &replicas, settings, may_beat);
    let mut tended = process::with(server, tend);
    record(server, tended.change.take());
    tended
}

fn report(tended: Tended) {
    if matches!(tended.notice, Some(Notice::Waits(_))) && !config::caution().waits_for_others() {
        ffi::log(
            Level::Warning,
            "WARNING: enough replicas support this master, but quarantine is switched off: locks \
             are granted at once, though leases of another master may stand",
        );
    } else if let Some(notice) = tended.notice {
        let level = match notice {
            Notice::Decides => Level::Notice,
            Notice::Waits(_) | Notice::Lacking { .. } => Level::Warning,
        };
        ffi::log(level, &notice.to_string());
    }
    if let Some((attached, replicas)) = tended.excess {
        let line = format!(
            "WARNING: {attached} replicas are attached, but lockmod.replicas is {replicas}: a \
             master that is cut off may grant locks beside the one that replaces it"
        );
        ffi::log(Level::Warning, &line);
    }
}
