//! `lockmod lock`: a lock that is held until Ctrl-C is pressed, or nobody reads the output.

use nix::sys::signal::Signal;

use super::args::Lock;
use super::failure::{Failure, warn};
use super::json::Json;
use super::renewals::RenewalWatch;
use super::signals::Signals;
use super::values::Name;
use super::{doubts, out, waiting};
use crate::client::Fence;

pub(super) async fn hold(args: Lock) -> Result<(), Failure> {
    let (name, locker) = (&args.claim.name, args.claim.builder(args.wait)?.build()?);
    let mut signals = Signals::new()?.or_closed_pipe()?;
    let guard =
        waiting::acquire(&locker, (&args.claim, args.wait), &mut signals, args.json).await?;
    if let Err(unprinted) = tell_held(&args, guard.fence()) {
        // Without the output, the user would not know that the lock is held.
        drop(guard.release_within(doubts::RESTART).await);
        return Err(unprinted.into());
    }
    drop(doubts::tell_mistakes(&locker, args.json));
    let lease = args.claim.lease();
    let mut renewals = RenewalWatch::new(&guard, lease, "it is lost", args.json);
    tokio::select! {
        never = renewals.tell() => match never {},
        signal = signals.next() => {
            if let Err(error) = guard.release_within(doubts::RESTART).await {
                return Err(doubts::of_release(&locker, lease, error).await);
            }
            let not_told = doubts::not_told(&locker, doubts::RESTART).await;
            tell_released(name, signal, args.json);
            not_told.iter().for_each(|text| warn(text, args.json));
            let is_closed = signal == Signal::SIGPIPE as i32;
            if is_closed { Err(Failure::interrupted(signal)) } else { Ok(()) }
        }
        lost = guard.lost() => {
            let failure =
                Failure::lost_while_held((name, ""), lost, &guard);
            drop(guard.release().await);
            Err(failure)
        }
    }
}

/// Reports that the lock is held.
fn tell_held(args: &Lock, fence: Fence) -> Result<(), out::Unprinted> {
    let (name, shared) = (&args.claim.name, args.claim.shared);
    if args.json {
        let fields = [("fence", Json::Number(fence.get())), ("shared", Json::Bool(shared))];
        return out::line(Json::of_lock(&name.0, fields));
    }
    let reader = if shared { " as a reader" } else { "" };
    out::line(format_args!("holding '{name}'{reader} with fence {fence}; Ctrl-C releases it"))
}

/// Reports that the lock is released.
fn tell_released(name: &Name, signal: i32, as_json: bool) {
    // The terminal has shown the key, as `^C`, and stays on that line.
    let is_after_key = signal == Signal::SIGINT as i32 && out::columns().is_some();
    // If the terminal is gone, as with HUP, nothing can be printed; the lock is released anyway.
    let told = match as_json {
        true => Json::of_lock(&name.0, [("released", Json::Bool(true))]).to_string(),
        false => "released".to_owned(),
    };
    let lines = [String::new(), told];
    let _ = out::lines(lines.into_iter().skip(usize::from(!is_after_key)));
}
