//! Requests, crashes and everything else that can happen to a node, against the naive model.
//!
//! A part of `tests/engine.rs`, where engine and model are: bytes say what happens.

use super::input::Input;
use super::{FENCE_MAX, Fences, LABEL_MAX, Mode, NAMES, Op, Pair, TOKENS};

/// The longest sequence.
const STEPS_MAX: usize = 400;

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let now = [0, (1 << 32) - 200, 1 << 47][usize::from(input.byte() % 3)];
    let lengths = [1, 20, 21, 255];
    let token = |index: usize| vec![index as u8 + 1; lengths[(index + data.len()) % 4]];
    let labels = vec![vec![], vec![b'x'; usize::from(input.byte()).min(LABEL_MAX)]];
    let mut pair = Pair::new(now, (0..TOKENS).map(token).collect(), labels);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            return;
        }
        pair.step(&operation(&mut input));
    }
}

fn operation(input: &mut Input<'_>) -> Op {
    let (kind, who) = (input.byte(), usize::from(input.byte()));
    let (name, token, label) = (who % NAMES, who / NAMES % TOKENS, who / NAMES / TOKENS % 2);
    let mode = if kind < 128 { Mode::Exclusive } else { Mode::Shared };
    match kind % 16 {
        0..4 => Op::Acquire { name, token, ttl: length(input), label, mode },
        4 => Op::Release { name, token },
        5 => Op::Extend { name, token, ttl: length(input), fences: Fences::Keep, mode },
        6 => {
            let (ttl, fences) = (length(input), Fences::Raise(fence(input)));
            Op::Extend { name, token, ttl, fences, mode }
        }
        7 => {
            let (ttl, fences) = (length(input), Fences::Repair(fence(input), label));
            Op::Extend { name, token, ttl, fences, mode }
        }
        8 => Op::Raise { name, token, fence: fence(input) },
        9 => Op::Time(length(input)),
        10 if who % 8 == 0 => Op::Flush,
        10 => Op::Forget { name },
        11 => Op::Dump { name },
        12 => Op::Restore { name },
        13 => Op::Migrate { name, token, fence: fence(input), left: length(input), mode },
        14 if who % 2 == 0 => Op::Save,
        14 => Op::Crash { with_data: who % 4 == 1 },
        _ if who % 16 == 1 => Op::LiftFloor(fence(input)),
        _ if who % 16 == 2 => Op::Promote { wait: length(input) },
        _ if who % 16 == 5 => Op::Recode { name },
        _ if who % 16 == 6 => Op::Note { name },
        _ if who % 16 == 7 => Op::Redate { name, length: length(input) },
        _ => Op::Disk { works: who % 4 != 0 },
    }
}

/// In milliseconds, at most an hour: what a node can be asked for is limited.
fn length(input: &mut Input<'_>) -> u64 {
    1 + input.number() % 3_600_000
}

fn fence(input: &mut Input<'_>) -> u64 {
    1 + input.number() % FENCE_MAX
}
