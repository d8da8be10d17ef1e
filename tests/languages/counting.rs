//! The reference's counting of votes against the engine's, vote by vote.

use lockmod::engine::{
    Answer, Attempt, Fence, Instant, Millis, Mode, NodeSet, Quorum, RaiseAnswer, Step, Terms,
    UnixTime,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::{Language, Worker};

const ATTEMPTS: u64 = 800;
/// Above it a fence is left out, while the others may be a quorum: 4 weeks in microseconds.
const BOUND: u64 = 4 * 7 * 86_400 * 1_000_000;

/// What a node has still to answer.
#[derive(Clone, Copy, Debug)]
enum Question {
    Acquire(usize),
    Raise(usize),
}

fn said(step: Step) -> String {
    match step {
        Step::Wait => "wait".into(),
        Step::Won(grant) => format!("won {}", grant.fence),
        Step::Lost(_) => "lost".into(),
        Step::Raise { fence, nodes } => format!("raise {fence} {:?}", list(nodes)),
    }
}

fn list(nodes: NodeSet) -> Vec<usize> {
    nodes.iter().collect()
}

/// One attempt with answers in any order, until it is won or lost; how it ended.
fn compare(worker: &mut Worker, random: &mut StdRng) -> String {
    let nodes = [3, 4, 5, 7][random.random_range(0..4)];
    let now = Instant::from_millis(1_000);
    let quorum = Quorum::of(nodes).unwrap();
    let (mode, word) = match random.random_bool(0.5) {
        false => (Mode::Exclusive, "exclusive"),
        true => (Mode::Shared, "shared"),
    };
    let mut attempt = Attempt::new(quorum, Terms::new(Millis::new(30_000)), now)
        .at(UnixTime::from_millis(0))
        .asking(mode);
    assert_eq!(worker.ask(format_args!("attempt {nodes} {BOUND} {word}")), "ready");
    // Half of the attempts meet nodes whose fences are far beyond the time.
    let farness = if random.random_bool(0.5) { BOUND } else { 0 };
    let mut told = vec![format!("{nodes} nodes, {word}")];
    let mut questions: Vec<Question> = (0..nodes).map(Question::Acquire).collect();
    let mut fence = 0;
    while !questions.is_empty() {
        let question = questions.swap_remove(random.random_range(0..questions.len()));
        let (step, command) = match question {
            Question::Acquire(node) => {
                let (answer, reply) = match random.random_range(0..6) {
                    0 => (Answer::Refused, "none".into()),
                    counter => {
                        let far = if random.random_bool(0.4) { farness } else { 0 };
                        let counter = counter + far;
                        (Answer::Granted(Fence::new(counter).unwrap()), counter.to_string())
                    }
                };
                (attempt.answer(node, answer, now), format!("acquired {node} {reply}"))
            }
            Question::Raise(node) => {
                let (answer, reply) = match random.random_range(0..8) {
                    0 => (RaiseAnswer::Refused, "0".into()),
                    1 => (RaiseAnswer::Refused, "none".into()),
                    more => {
                        let counter = fence + more / 7;
                        let raised = RaiseAnswer::Raised(Fence::new(counter).unwrap());
                        (raised, counter.to_string())
                    }
                };
                (attempt.raise_answer(node, answer, now), format!("raised {node} {reply}"))
            }
        };
        if let Step::Raise { fence: raise, nodes } = step {
            fence = raise.get();
            questions.extend(nodes.iter().map(Question::Raise));
        }
        let expected = said(step);
        let got = worker.ask(&command);
        told.push(format!("{command}: {got}"));
        assert_eq!(got, expected, "{told:#?}");
        if attempt.is_over() {
            return expected.split(' ').next().unwrap().to_owned();
        }
    }
    panic!("undecided: {told:#?}");
}

#[test]
fn votes_are_counted_as_the_engine_counts_them() {
    let mut worker = Worker::start(Language::Reference, &[], "worker");
    let mut ends = Vec::new();
    for seed in 0..ATTEMPTS {
        println!("seed {seed}");
        ends.push(compare(&mut worker, &mut StdRng::seed_from_u64(seed)));
    }
    for end in ["won", "lost"] {
        let count = ends.iter().filter(|other| *other == end).count();
        assert!(count > 20, "{end} {count} times only");
    }
}
