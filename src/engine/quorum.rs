//! Counting votes: sets of nodes, and how many of the *configured* nodes are enough.
//!
//! A quorum is more than half of the nodes that the client was configured with, never of those that
//! happen to answer. So two quorums always share a node, and the whole protocol rests on that node.

use std::fmt;

/// The most nodes that a client may use: their votes fit one machine word.
pub const NODES_MAX: usize = 32;

/// A set of nodes, each named by its index in the configuration.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeSet(u32);

impl NodeSet {
    /// No node.
    pub const EMPTY: NodeSet = NodeSet(0);

    /// The nodes `0..count`; a count above [`NODES_MAX`] gives [`NODES_MAX`] nodes.
    pub const fn first(count: usize) -> NodeSet {
        if count >= NODES_MAX { NodeSet(u32::MAX) } else { NodeSet((1 << count) - 1) }
    }

    /// Only this node; empty if the index is not below [`NODES_MAX`].
    pub const fn of(node: usize) -> NodeSet {
        if node < NODES_MAX { NodeSet(1 << node) } else { NodeSet(0) }
    }

    /// How many nodes are in the set.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether no node is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether `node` is in the set.
    pub const fn has(self, node: usize) -> bool {
        self.0 & NodeSet::of(node).0 != 0
    }

    /// Puts `node` into the set.
    pub const fn insert(&mut self, node: usize) {
        self.0 |= NodeSet::of(node).0;
    }

    /// The nodes of either set.
    #[must_use]
    pub const fn or(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 | other.0)
    }

    /// The nodes of both sets.
    #[must_use]
    pub const fn and(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 & other.0)
    }

    /// The nodes of this set that are not in `other`.
    #[must_use]
    pub const fn without(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 & !other.0)
    }

    /// The nodes in order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..NODES_MAX).filter(move |node| self.has(*node))
    }
}

impl fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// How many nodes there are, and how many of them are a quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quorum {
    nodes: u8,
}

impl Quorum {
    /// The quorum of `nodes` configured nodes; `None` unless there are 1 to [`NODES_MAX`].
    pub const fn of(nodes: usize) -> Option<Quorum> {
        if nodes >= 1 && nodes <= NODES_MAX { Some(Quorum { nodes: nodes as u8 }) } else { None }
    }

    /// How many nodes are configured.
    pub const fn nodes(self) -> usize {
        self.nodes as usize
    }

    /// How many nodes are enough: more than half of those configured.
    pub const fn needed(self) -> usize {
        self.nodes as usize / 2 + 1
    }

    /// Whether `count` is more than half of `nodes`.
    pub const fn is_majority(count: usize, nodes: usize) -> bool {
        count > nodes / 2
    }

    /// All configured nodes.
    pub const fn all(self) -> NodeSet {
        NodeSet::first(self.nodes as usize)
    }

    /// Whether `votes` are enough. Votes of nodes that are not configured do not count.
    pub const fn is_reached(self, votes: NodeSet) -> bool {
        votes.and(self.all()).len() >= self.needed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_quorums_of_the_same_nodes_always_share_one() {
        for nodes in 1..=9 {
            let quorum = Quorum::of(nodes).unwrap();
            for one in 0..1u32 << nodes {
                let (one, other) = (NodeSet(one), quorum.all().without(NodeSet(one)));
                assert!(!(quorum.is_reached(one) && quorum.is_reached(other)), "{nodes}: {one:?}");
            }
        }
    }

    #[test]
    fn a_quorum_counts_configured_nodes_only() {
        let quorum = Quorum::of(3).unwrap();
        let strangers = NodeSet::of(0).or(NodeSet::of(3)).or(NodeSet::of(31));
        assert!(!quorum.is_reached(strangers));
        assert!(quorum.is_reached(strangers.or(NodeSet::of(2))));
    }

    #[test]
    fn the_number_of_nodes_has_limits_on_both_sides() {
        assert_eq!(Quorum::of(0), None);
        assert_eq!(Quorum::of(1).unwrap().needed(), 1);
        let four = Quorum::of(4).unwrap();
        assert_eq!((four.nodes(), four.needed()), (4, 3));
        assert_eq!(four.all().iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(Quorum::of(NODES_MAX).unwrap().all().len(), NODES_MAX);
        assert_eq!(Quorum::of(NODES_MAX + 1), None);
        assert!(NodeSet::of(NODES_MAX).is_empty());
    }
}
