//! The attempt against its promises, by story and by random answers.

use proptest::prelude::*;

use super::super::Millis;
use super::*;

const START: Instant = Instant::from_millis(10_000);

fn attempt(nodes: usize) -> Attempt {
    Attempt::new(Quorum::of(nodes).unwrap(), Terms::new(Millis::new(1_000)), START)
}

fn fence(number: u64) -> Fence {
    Fence::new(number).unwrap()
}

fn granted(number: u64) -> Answer {
    Answer::Granted(fence(number))
}

fn at(millis: u64) -> Instant {
    START.after(Millis::new(millis))
}

fn won(number: u64, laggards: NodeSet) -> Step {
    Step::Won(Grant { fence: fence(number), ends_at: at(988), laggards })
}

#[test]
fn equal_counters_win_in_one_round_trip() {
    let mut attempt = attempt(5);
    assert_eq!(attempt.answer(4, granted(7), at(1)), Step::Wait);
    assert_eq!(attempt.answer(0, Answer::Refused, at(1)), Step::Wait);
    assert_eq!(attempt.answer(1, granted(7), at(2)), Step::Wait);
    assert_eq!(attempt.answer(2, granted(7), at(3)), won(7, NodeSet::EMPTY));
    assert!(attempt.is_over());
}

#[test]
fn unequal_counters_need_a_quorum_at_the_largest_fence() {
    let mut attempt = attempt(3);
    assert_eq!(attempt.answer(0, granted(4), at(1)), Step::Wait);
    let raise = Step::Raise { fence: fence(9), nodes: NodeSet::of(0) };
    assert_eq!(attempt.answer(1, granted(9), at(2)), raise);
    assert_eq!(
        attempt.raise_answer(0, RaiseAnswer::Raised(fence(9)), at(3)),
        won(9, NodeSet::EMPTY)
    );
}

#[test]
fn a_straggler_during_the_raise_counts_if_it_granted_enough_and_is_raised_if_not() {
    let mut low = attempt(5);
    let _ = low.answer(0, granted(1), at(1));
    let _ = low.answer(1, granted(2), at(1));
    let nodes = NodeSet::of(0).or(NodeSet::of(1));
    assert_eq!(low.answer(2, granted(3), at(1)), Step::Raise { fence: fence(3), nodes });
    let mut high = low;
    let nodes = NodeSet::of(3);
    assert_eq!(low.answer(3, granted(2), at(2)), Step::Raise { fence: fence(3), nodes });
    assert_eq!(low.raise_answer(3, RaiseAnswer::Raised(fence(3)), at(3)), Step::Wait);
    let laggards = NodeSet::of(1);
    assert_eq!(low.raise_answer(0, RaiseAnswer::Raised(fence(3)), at(3)), won(3, laggards));
    assert_eq!(high.answer(3, granted(8), at(2)), Step::Wait);
    assert_eq!(high.answer(4, granted(3), at(2)), won(3, NodeSet::of(0).or(NodeSet::of(1))));
}

#[test]
fn a_grant_after_the_win_is_raised_in_the_background() {
    let mut attempt = attempt(3);
    let _ = attempt.answer(0, granted(5), at(1));
    let _ = attempt.answer(1, granted(5), at(1));
    let raise = Step::Raise { fence: fence(5), nodes: NodeSet::of(2) };
    assert_eq!(attempt.answer(2, granted(2), at(9)), raise);
}

#[test]
fn refusals_decide_as_soon_as_no_quorum_is_left() {
    let mut attempt = attempt(5);
    assert_eq!(attempt.answer(0, granted(1), at(1)), Step::Wait);
    assert_eq!(attempt.answer(1, Answer::Refused, at(1)), Step::Wait);
    assert_eq!(attempt.answer(2, Answer::Refused, at(1)), Step::Wait);
    assert_eq!(attempt.answer(3, Answer::Refused, at(1)), Step::Lost(Loss::Refused));
    assert_eq!(attempt.answer(4, granted(1), at(2)), Step::Wait, "the abandoning travels behind");
}

#[test]
fn unknown_answers_do_not_win_and_are_told_from_refusals() {
    let mut attempt = attempt(3);
    assert_eq!(attempt.answer(0, granted(1), at(1)), Step::Wait);
    assert_eq!(attempt.answer(1, Answer::Refused, at(1)), Step::Wait);
    assert_eq!(attempt.time_out(at(50)), Step::Lost(Loss::Unreached));
}

#[test]
fn a_late_grant_replaces_unknown() {
    let mut attempt = attempt(3);
    assert_eq!(attempt.answer(0, Answer::Unknown, at(1)), Step::Wait);
    assert_eq!(attempt.answer(1, granted(3), at(1)), Step::Wait);
    assert_eq!(attempt.answer(0, granted(3), at(2)), won(3, NodeSet::EMPTY));
}

#[test]
fn validity_is_checked_again_after_the_raise() {
    let mut attempt = attempt(3);
    let _ = attempt.answer(0, granted(1), at(1));
    let raise = Step::Raise { fence: fence(2), nodes: NodeSet::of(0) };
    assert_eq!(attempt.answer(1, granted(2), at(987)), raise);
    let late = attempt.raise_answer(0, RaiseAnswer::Raised(fence(2)), at(988));
    assert_eq!(late, Step::Lost(Loss::TooLate));
}

#[test]
fn a_quorum_of_grants_after_the_validity_is_lost() {
    let mut attempt = attempt(1);
    assert_eq!(attempt.answer(0, granted(1), at(988)), Step::Lost(Loss::TooLate));
}

#[test]
fn a_refused_raise_loses_when_no_quorum_is_left() {
    let mut attempt = attempt(3);
    let _ = attempt.answer(0, granted(1), at(1));
    let _ = attempt.answer(1, granted(2), at(1));
    assert_eq!(attempt.raise_answer(0, RaiseAnswer::Refused, at(2)), Step::Wait, "2 may answer");
    assert_eq!(attempt.time_out(at(50)), Step::Lost(Loss::Unreached));
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Answer(usize, Answer),
    Raise(usize, RaiseAnswer),
    TimeOut,
}

fn events(nodes: usize) -> impl Strategy<Value = Vec<(Event, u64)>> {
    let number = 1u64..5;
    let event = prop_oneof![
        6 => (0..nodes, number.clone()).prop_map(|(n, f)| Event::Answer(n, granted(f))),
        2 => (0..nodes).prop_map(|n| Event::Answer(n, Answer::Refused)),
        1 => (0..nodes).prop_map(|n| Event::Answer(n, Answer::Unknown)),
        5 => (0..nodes, number)
            .prop_map(|(n, f)| Event::Raise(n, RaiseAnswer::Raised(fence(f)))),
        1 => (0..nodes).prop_map(|n| Event::Raise(n, RaiseAnswer::Refused)),
        1 => Just(Event::TimeOut),
    ];
    prop::collection::vec((event, 0u64..200), 0..24)
}

proptest! {
    /// The naive reference: remember who said what, and count at the end.
    #[test]
    fn a_win_means_that_a_quorum_stores_the_largest_fence_in_time(
        nodes in 1usize..6,
        events in events(5),
    ) {
        let quorum = Quorum::of(nodes).unwrap();
        let mut attempt = attempt(nodes);
        let mut stored = vec![None; nodes];
        let mut asked = NodeSet::EMPTY;
        let mut now = 0;
        let mut over = None;
        for (event, later) in events {
            now += later;
            let before = attempt;
            let step = match event {
                Event::Answer(node, answer) => {
                    if let (Some(None), Answer::Granted(fence)) = (stored.get(node), answer)
                        && !before.refused.has(node)
                    {
                        stored[node] = Some(fence);
                    }
                    attempt.answer(node, answer, at(now))
                }
                // A node answers a raise only if it was asked, and stores at least its fence.
                Event::Raise(node, answer) if asked.has(node) => {
                    let answer = match answer {
                        RaiseAnswer::Raised(f) => {
                            let f = f.max(attempt.fence);
                            stored[node] = Some(f);
                            RaiseAnswer::Raised(f)
                        }
                        RaiseAnswer::Refused | RaiseAnswer::Unknown => answer,
                    };
                    attempt.raise_answer(node, answer, at(now))
                }
                Event::Raise(..) => continue,
                Event::TimeOut => attempt.time_out(at(now)),
            };
            if over.is_some() {
                prop_assert!(matches!(step, Step::Wait | Step::Raise { .. }), "after the end");
                continue;
            }
            match step {
                Step::Wait => {}
                Step::Raise { fence, nodes } => {
                    prop_assert!(nodes.iter().all(|node| stored[node] < Some(fence)));
                    asked = asked.or(nodes);
                }
                Step::Won(grant) => {
                    over = Some(true);
                    let storing = stored.iter().filter(|f| **f >= Some(grant.fence)).count();
                    prop_assert!(storing >= quorum.needed());
                    prop_assert!(at(now) < grant.ends_at);
                    for node in grant.laggards.iter() {
                        prop_assert!(stored[node] < Some(grant.fence));
                    }
                }
                Step::Lost(_) => over = Some(false),
            }
        }
        if over.is_none() {
            prop_assert!(matches!(attempt.time_out(at(now)), Step::Lost(_)));
        }
    }
}
