//! `lockmod lock`: a lock that is held until somebody presses Ctrl-C.

use super::args::Lock;
use super::failure::Failure;
use super::json::Json;
use super::signals::Signals;
use super::{out, own_label, waiting};

pub(super) async fn hold(args: Lock) -> Result<(), Failure> {
    let label = args.label.unwrap_or_else(own_label);
    let locker = args.connection.builder(args.ttl)?.wait(args.wait).label(label).build()?;
    let mut signals = Signals::new()?;
    let guard = waiting::acquire(&locker, &args.name, &mut signals).await?;
    let told = if args.json {
        out::line(Json::Object(vec![
            ("name", Json::text(&args.name)),
            ("fence", Json::Number(guard.fence().get())),
        ]))
    } else {
        let fence = guard.fence();
        out::line(format_args!("holding '{}' with fence {fence}; Ctrl-C releases it", args.name))
    };
    if let Err(failure) = told {
        // Nobody would know that it is held.
        drop(guard.release().await);
        return Err(failure);
    }
    tokio::select! {
        _ = signals.next() => Ok(guard.release().await?),
        lost = guard.lost() => {
            drop(guard.release().await);
            Err(Failure::new(Failure::LOST, format!("lock '{}' was lost: {lost}", args.name)))
        }
    }
}
