//! Why an acquisition failed, and whether trying again can help.

use super::attempt::Loss;
use super::quorum::{NodeSet, Quorum};

/// What a node's answer shows about the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stand {
    /// Another token holds the lock there.
    Held,
    /// It answered, and nobody else holds the lock there.
    Free,
    /// The node would refuse the same request again.
    Permanent,
    /// Nothing: it did not answer, or does not serve requests at present.
    Silent,
}

/// Why an acquisition failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Others are in the way.
    Held,
    /// Too few nodes answer to conclude that others are in the way.
    NoQuorum,
    /// Asking again can never reach a quorum.
    Refused,
    /// The validity was used up.
    TooLate,
}

impl Verdict {
    /// The verdict on an attempt that was lost by `loss`; `stands` has one entry for each node, in
    /// order.
    pub fn of(quorum: Quorum, loss: Loss, stands: impl Iterator<Item = Stand>) -> Verdict {
        let [mut held, mut free, mut permanent] = [NodeSet::EMPTY; 3];
        for (node, stand) in stands.enumerate() {
            match stand {
                Stand::Held => held.insert(node),
                Stand::Free => free.insert(node),
                Stand::Permanent => permanent.insert(node),
                Stand::Silent => {}
            }
        }
        let is_possible_without = |nodes| quorum.is_reached(quorum.all().without(nodes));
        if loss == Loss::TooLate {
            return Verdict::TooLate;
        }
        if !is_possible_without(permanent) {
            return Verdict::Refused;
        }
        // If a quorum of nodes answers, others are in the way, whatever the rest would answer.
        let is_blocked = quorum.is_reached(held.or(free)) || !is_possible_without(held);
        if !held.is_empty() && is_blocked { Verdict::Held } else { Verdict::NoQuorum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(stands: &[Stand]) -> Verdict {
        let quorum = Quorum::of(stands.len()).unwrap();
        Verdict::of(quorum, Loss::Unreached, stands.iter().copied())
    }

    #[test]
    fn a_lock_that_a_quorum_holds_is_held_whatever_the_rest_says() {
        use Stand::{Free, Held, Permanent, Silent};
        for rest in [Held, Free, Permanent, Silent] {
            assert_eq!(of(&[rest, Held, Held]), Verdict::Held, "{rest:?}");
        }
        assert_eq!(of(&[Held, Free, Silent]), Verdict::Held, "a quorum answers");
        assert_eq!(of(&[Held, Silent, Silent]), Verdict::NoQuorum);
        assert_eq!(of(&[Free, Free, Silent]), Verdict::NoQuorum, "nobody is in the way");
        assert_eq!(of(&[Held, Held, Silent, Silent]), Verdict::Held, "three of four are too many");
    }

    #[test]
    fn asking_again_is_in_vain_where_no_quorum_is_left() {
        use Stand::{Held, Permanent, Silent};
        assert_eq!(of(&[Permanent, Permanent, Held]), Verdict::Refused);
        assert_eq!(of(&[Permanent, Silent, Silent]), Verdict::NoQuorum);
        let quorum = Quorum::of(3).unwrap();
        let late = Verdict::of(quorum, Loss::TooLate, [Permanent; 3].into_iter());
        assert_eq!(late, Verdict::TooLate);
    }
}
