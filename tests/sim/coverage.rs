//! Which of the client's outcomes were reached: a simulation in which nothing ever fails proves
//! nothing about failures.

use std::collections::BTreeMap;
use std::fmt;

use lockmod::client::{AcquireError, ExtendError, Lost, NodeReport, ReleaseError, Vote, WithError};

/// How often each outcome was reached.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reached(BTreeMap<&'static str, u64>);

/// Every outcome that the seeds of a run must reach between them.
const ALL: &[&str] = &[
    "acquire: arrived after its connection",
    "acquire: cancelled",
    "acquire: held",
    "acquire: no quorum",
    "acquire: raised fences",
    "acquire: refused",
    "acquire: bad option",
    "acquire: too late",
    "acquire: won",
    "acquire many: failed",
    "acquire many: won",
    "downgraded",
    "extend: done",
    "extend: lost",
    "extend: no quorum",
    "extend: provisional",
    "group: a replaced master vouched",
    "group: attached",
    "group: attached to a replica",
    "group: extended in a wait",
    "group: fell behind what is kept",
    "group: no authority",
    "group: promoted",
    "group: told a former master's heartbeat",
    "group: told its master's heartbeat late",
    "group: told its own heartbeat",
    "holder: nested",
    "line: a reservation lapsed",
    "line: called",
    "line: granted to a ticket",
    "line: left with its connection",
    "lost: expired",
    "lost: max hold",
    "lost: released",
    "lost: removed",
    "node: a lease was brought to it",
    "node: quarantined at a start",
    "node: repaired",
    "proof: states looked at",
    "reader: beside another",
    "node: took requests for another",
    "release: confirmed",
    "release: no quorum",
    "release: not held",
    "release: by token",
    "renewed beyond the ttl",
    "store: a late read was refused",
    "store: a late write was refused",
    "store: read",
    "store: written",
    "vote: confirmed",
    "vote: garbled",
    "vote: granted",
    "vote: held",
    "vote: held by a label",
    "vote: no module",
    "vote: no permission",
    "vote: no place in line",
    "vote: not held",
    "vote: quarantined",
    "vote: refused",
    "vote: timed out",
    "vote: unavailable",
    "vote: unreachable",
    "vote: wrong type",
    "with: done",
    "with: lost",
];

impl Reached {
    pub(crate) fn note(&mut self, outcome: &'static str) {
        self.note_often(outcome, 1);
    }

    pub(crate) fn note_often(&mut self, outcome: &'static str, count: u64) {
        assert!(ALL.contains(&outcome), "{outcome} is not listed");
        if count > 0 {
            *self.0.entry(outcome).or_default() += count;
        }
    }

    pub(crate) fn add(&mut self, other: &Reached) {
        for (outcome, count) in &other.0 {
            *self.0.entry(outcome).or_default() += count;
        }
    }

    /// The outcomes that were never reached.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        ALL.iter().copied().filter(|outcome| !self.0.contains_key(outcome)).collect()
    }

    pub(crate) fn count(&self, outcome: &str) -> u64 {
        self.0.get(outcome).copied().unwrap_or_default()
    }

    pub(crate) fn acquire_error(&mut self, error: &AcquireError) {
        self.note(match error {
            AcquireError::Held(_) => "acquire: held",
            AcquireError::NoQuorum(_) => "acquire: no quorum",
            AcquireError::Refused(_) => "acquire: refused",
            AcquireError::TooLate(_) => "acquire: too late",
            AcquireError::BadOption(_) => "acquire: bad option",
            other => panic!("{other} is new"),
        });
        self.votes(error.nodes());
        assert!(!error.to_string().is_empty());
    }

    pub(crate) fn with_error(&mut self, error: &WithError) {
        match error {
            WithError::Acquire(error) => self.acquire_error(error),
            WithError::Lost { lost, .. } => {
                self.note("with: lost");
                self.lost(*lost);
            }
            other => panic!("{other} is new"),
        }
    }

    pub(crate) fn extend(&mut self, outcome: &Result<(), ExtendError>) {
        self.note(match outcome {
            Ok(()) => "extend: done",
            Err(ExtendError::Lost(_)) => "extend: lost",
            Err(ExtendError::NoQuorum(_) | ExtendError::Refused(_)) => "extend: no quorum",
            Err(other) => panic!("{other} is new"),
        });
        if let Err(ExtendError::NoQuorum(nodes) | ExtendError::Refused(nodes)) = outcome {
            self.votes(nodes);
        }
    }

    pub(crate) fn release(&mut self, outcome: &Result<(), ReleaseError>) {
        match outcome {
            Ok(()) => self.note("release: confirmed"),
            Err(ReleaseError::NotHeld(nodes)) => {
                self.note("release: not held");
                self.votes(nodes);
            }
            Err(ReleaseError::NoQuorum(nodes) | ReleaseError::Refused(nodes)) => {
                self.note("release: no quorum");
                self.votes(nodes);
            }
            Err(other) => panic!("{other} is new"),
        }
    }

    pub(crate) fn lost(&mut self, lost: Lost) {
        self.note(match lost {
            Lost::Expired => "lost: expired",
            Lost::Removed => "lost: removed",
            Lost::MaxHold => "lost: max hold",
            Lost::Released => "lost: released",
            other => panic!("{other} is new"),
        });
    }

    pub(crate) fn votes(&mut self, nodes: &[NodeReport]) {
        for report in nodes {
            self.note(match &report.vote {
                Vote::Granted(_) => "vote: granted",
                Vote::Confirmed => "vote: confirmed",
                Vote::Provisional => "extend: provisional",
                Vote::Held { label: Some(_), .. } => "vote: held by a label",
                Vote::Held { label: None, .. } | Vote::Reserved => "vote: held",
                Vote::NotHeld => "vote: not held",
                Vote::Quarantined { .. } => "vote: quarantined",
                Vote::TimedOut => "vote: timed out",
                Vote::Unreachable(_) => "vote: unreachable",
                Vote::Unavailable(_) => "vote: unavailable",
                Vote::ModuleMissing => "vote: no module",
                Vote::NoPermission(_) => "vote: no permission",
                Vote::WrongType => "vote: wrong type",
                Vote::Refused(_) => "vote: refused",
                Vote::Garbled(_) => "vote: garbled",
                Vote::NoPlace(_) => "vote: no place in line",
                other => panic!("{other} is new"),
            });
        }
    }
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for outcome in ALL {
            writeln!(f, "{:>9}  {outcome}", self.count(outcome))?;
        }
        Ok(())
    }
}
