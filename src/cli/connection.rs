//! Builds a locker from the arguments for the nodes and the lock.

use std::time::Duration;

use super::args::{Claim, Connection};
use super::failure::{Failure, source_of_nodes};
use super::values::{Name, TTL_MAX, Typed};
use crate::client::{Length, Locker, LockerBuilder, TIMEOUTS_PER_TTL, joined};

impl Claim {
    /// The settings of a command that acquires the lock.
    pub(super) fn builder(&self, wait: Duration) -> Result<LockerBuilder, Failure> {
        let label = self.label.clone().unwrap_or_else(own_label);
        Ok(self.connection.builder(&self.ttl)?.wait(wait).label(label))
    }

    /// The lock, and the length of its lease.
    pub(super) const fn lease(&self) -> (&Name, Duration) {
        (&self.name, self.ttl.length)
    }
}

/// The label of this process, which waiters see.
fn own_label() -> String {
    let host = rustix::system::uname();
    format!("{}:{}", host.nodename().to_string_lossy(), std::process::id())
}

impl Connection {
    /// The settings of a command that acquires or extends a lease of this length.
    ///
    /// The library's own limit for a ttl is lifted: the nodes know theirs, and report it.
    pub(super) fn builder(&self, ttl: &Typed) -> Result<LockerBuilder, Failure> {
        let most = ttl.length / TIMEOUTS_PER_TTL;
        if let Some(timeout) = &self.timeout
            && (timeout.length.is_zero() || timeout.length > most)
        {
            let text = format!(
                "--timeout {timeout} does not fit into --ttl {ttl}: give 1ms to {}, so that there \
                 is time to try again",
                Length::rounded_down(most)
            );
            return Err(Failure::usage(text));
        }
        Ok(self.settings()?.ttl(ttl.length).max_ttl(TTL_MAX))
    }

    /// The locker of a command without a lease of its own: any timeout will do.
    pub(super) fn locker(&self) -> Result<Locker, Failure> {
        let builder = self.settings()?.without_line();
        let Some(timeout) = &self.timeout else { return Ok(builder.build()?) };
        if timeout.length.is_zero() {
            let text = format!("--timeout {timeout} leaves no time for an answer");
            return Err(Failure::usage(text));
        }
        let ttl = timeout.length.saturating_mul(2 * TIMEOUTS_PER_TTL);
        Ok(builder.ttl(ttl.max(Duration::from_secs(1))).max_ttl(Duration::MAX).build()?)
    }

    fn settings(&self) -> Result<LockerBuilder, Failure> {
        let nodes = joined(self.nodes.iter().cloned());
        check_commas(&nodes)?;
        let mut builder = Locker::builder().nodes(nodes.iter().map(|url| url.trim()));
        if self.even {
            builder = builder.allow_even_nodes();
        }
        if let Some(timeout) = &self.timeout {
            builder = builder.timeout(timeout.length);
        }
        if let Some(file) = &self.cacert {
            builder = builder.cacert(file);
        }
        if let Some(file) = &self.cert {
            builder = builder.cert(file);
        }
        if let Some(file) = &self.key {
            builder = builder.key(file);
        }
        Ok(builder)
    }
}

/// Refuses several nodes where one is expected: the URL parser would only complain about a port.
fn check_commas(nodes: &[String]) -> Result<(), Failure> {
    let is_list =
        |url: &String| url.trim().contains(char::is_whitespace) || url.matches("://").count() > 1;
    let Some(place) = nodes.iter().position(is_list) else { return Ok(()) };
    let text = format!(
        "node {} of {} looks like several: write a comma between two nodes, and nothing else, as \
         redis://a:7001,redis://b:7001",
        place + 1,
        source_of_nodes()
    );
    Err(Failure::usage(text))
}
