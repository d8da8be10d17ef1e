//! `lockmod lock`: a lock that is held until somebody presses Ctrl-C.

use super::args::Lock;
use super::failure::Failure;
use super::json::Json;
use super::signals::Signals;
use super::{out, waiting};

pub(super) async fn hold(args: Lock) -> Result<(), Failure> {
    let (name, locker) = (&args.claim.name, args.claim.builder(args.wait)?.build()?);
    let mut signals = Signals::new()?;
    let guard = waiting::acquire(&locker, name, &mut signals).await?;
    let told = if args.json {
        out::line(Json::of_lock(&name.0, [("fence", Json::Number(guard.fence().get()))]))
    } else {
        let fence = guard.fence();
        out::line(format_args!("holding '{name}' with fence {fence}; Ctrl-C releases it"))
    };
    if let Err(unprinted) = told {
        // Nobody would know that it is held.
        drop(guard.release().await);
        return Err(unprinted.into());
    }
    tokio::select! {
        _ = signals.next() => Ok(guard.release().await?),
        lost = guard.lost() => {
            drop(guard.release().await);
            Err(Failure::new(Failure::LOST, format!("lock '{name}' was lost: {lost}")))
        }
    }
}
