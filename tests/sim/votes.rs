//! The proof's central invariant, on every answer of a simulated node that counts.
//!
//! At a node, two rounds that it vouched for and whose validity is not over belong to one
//! acquisition. The proof keeps for that what a node itself forgets in a crash, and so does this:
//! votes outlast the node. Two holders need two such votes and a network that plays along; a node
//! that gives them is found without.

use std::time::Duration;

use lockmod::engine::{Millis, Terms};
use tokio::time::Instant;

use crate::clients::FAST_PPM_MAX;

/// A round that may still be valid, and for which a node has vouched.
#[derive(Debug)]
struct Vote {
    name: Vec<u8>,
    token: Vec<u8>,
    /// No client relies on it any longer, however slow its clock is.
    over_at: Instant,
}

/// What a node has vouched for, through all its crashes.
#[derive(Debug, Default)]
pub(crate) struct Votes {
    votes: Vec<Vote>,
    /// What is wrong with them.
    pub(crate) complaints: Vec<String>,
}

impl Votes {
    /// The node vouches for a round of `token`, which has just arrived.
    pub(crate) fn give(&mut self, name: &[u8], token: &[u8], ttl: Millis) {
        let now = Instant::now();
        self.votes.retain(|vote| vote.over_at > now);
        let other = |vote: &&Vote| vote.name == name && vote.token != token;
        if let Some(other) = self.votes.iter().find(other) {
            let (name, left) = (name.escape_ascii(), other.over_at - now);
            self.complaints.push(format!(
                "a node vouches for two acquisitions of {name}: the first may be valid for {left:?}"
            ));
        }
        let over_at = now + longest_validity(ttl);
        self.votes.push(Vote { name: name.to_vec(), token: token.to_vec(), over_at });
    }

    /// The holder has given its lease back: it relies on nothing any more.
    pub(crate) fn take_back(&mut self, name: &[u8], token: &[u8]) {
        self.votes.retain(|vote| vote.name != name || vote.token != token);
    }
}

/// The validity of a round, counted from its arrival, by the slowest clock there is.
fn longest_validity(ttl: Millis) -> Duration {
    let counted: Duration = ttl.saturating_sub(Terms::new(ttl).drift).into();
    counted.mul_f64(1e6 / (1e6 - FAST_PPM_MAX as f64))
}
