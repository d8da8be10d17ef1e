//! What a person is told while a held lock cannot be renewed: which nodes are in trouble, and how
//! much time is left. Without it, the first sign would be the loss.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::sleep;

use super::failure::warn;
use super::values::Name;
use crate::client::{Guard, Length, Summary};

/// How many looks at the lease there are in a ttl: as many as renewals that are tried again.
const LOOKS: u32 = 12;

/// Watches whether a held lock is renewed.
pub(super) struct RenewalWatch<'a> {
    guard: &'a Guard,
    name: &'a Name,
    ttl: Duration,
    /// What happens if it is not renewed.
    end: &'static str,
    as_json: bool,
    is_told: bool,
}

impl<'a> RenewalWatch<'a> {
    pub(super) const fn new(
        guard: &'a Guard,
        (name, ttl): (&'a Name, Duration),
        end: &'static str,
        as_json: bool,
    ) -> RenewalWatch<'a> {
        RenewalWatch { guard, name, ttl, end, as_json, is_told: false }
    }

    /// Warns when renewals fail, and when they succeed again. It may be dropped and called again.
    pub(super) async fn tell(&mut self) -> Infallible {
        loop {
            sleep(self.ttl / LOOKS).await;
            if let Some(text) = self.look() {
                warn(text, self.as_json);
            }
        }
    }

    fn look(&mut self) -> Option<String> {
        let name = self.name;
        // Two thirds are left when a renewal is due.
        let is_late = self.guard.validity() < self.ttl / 2;
        if !is_late {
            let was_told = std::mem::take(&mut self.is_told);
            return was_told.then(|| format!("lock '{name}' is renewed again"));
        }
        let nodes = self.guard.unconfirmed();
        if self.is_told || nodes.is_empty() || self.guard.is_lost() {
            return None;
        }
        self.is_told = true;
        // Not at the end of the lease: the holder needs time to stop.
        let left = Length::rounded_down(self.guard.lost_in());
        let (votes, end) = (Summary(&nodes), self.end);
        Some(format!("lock '{name}' cannot be renewed: {votes}; unless it can, {end} in {left}"))
    }
}
