//! Random walks through a model that is too large to search: all kinds of faults occur in one run,
//! and paths are longer than any search reaches.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use stateright::Model;

use super::tell_steps;
use super::world::{Action, State, World};

/// The maximum length of a walk.
const STEPS_MAX: usize = 400;

/// Takes this many steps in walks from the start, and checks each step. The seed of each walk
/// follows from the first. Returns the steps of a walk to a violation, if there is one.
pub(crate) fn wander(world: &World, first_seed: u64, steps: usize) -> Option<Violation> {
    let mut left = steps;
    (first_seed..).find_map(|seed| {
        if left == 0 {
            return Some(None);
        }
        let walk = walk(world, seed, &mut left);
        walk.map(Some)
    })?
}

/// The result of a walk.
pub(crate) struct Violation {
    pub(crate) property: &'static str,
    pub(crate) path: Vec<(State, Option<Action>)>,
}

impl Violation {
    pub(crate) fn tell(self, world: &World) {
        tell_steps(world, self.property, self.path);
    }
}

fn walk(world: &World, seed: u64, left: &mut usize) -> Option<Violation> {
    let mut random = StdRng::seed_from_u64(seed);
    let properties = world.properties();
    let mut state = world.init_states().remove(0);
    let mut path = Vec::new();
    let mut actions = Vec::new();
    while *left > 0 && path.len() < STEPS_MAX {
        actions.clear();
        world.actions(&state, &mut actions);
        let Some(action) = choose(&mut random, &actions) else { break };
        let Some(next) = world.next_state(&state, action) else { continue };
        *left -= 1;
        path.push((std::mem::replace(&mut state, next), Some(action)));
        if let Some(broken) = properties.iter().find(|p| !(p.condition)(world, &state)) {
            path.push((state, None));
            return Some(Violation { property: broken.name, path });
        }
    }
    None
}

/// Usually a message arrives: otherwise clients would hardly ever win.
fn choose(random: &mut StdRng, actions: &[Action]) -> Option<Action> {
    let travels = |action: &&Action| matches!(action, Action::Deliver(..) | Action::Answer(..));
    let arriving: Vec<&Action> = actions.iter().filter(travels).collect();
    if !arriving.is_empty() && random.random_bool(0.8) {
        return Some(*arriving[random.random_range(0..arriving.len())]);
    }
    match actions {
        [] => None,
        some => Some(some[random.random_range(0..some.len())]),
    }
}

/// Walks at random through a model, so many times, each with its own seed and so many steps.
/// `begins`: where a walk begins; `ends_well`: what must be so where it ends; `choose`: picks one
/// of the possible actions. Returns the actions of a walk to a violation, if there is one.
pub(crate) fn stray<M: Model<Action: Copy>>(
    model: &M,
    (walks, steps): (u64, usize),
    (begins, ends_well): (impl Fn() -> M::State, impl Fn(&M::State) -> bool),
    choose: impl Fn(&mut StdRng, &[M::Action]) -> M::Action,
) -> Option<Vec<M::Action>> {
    let properties = model.properties();
    (0..walks).find_map(|seed| {
        let random = &mut StdRng::seed_from_u64(seed);
        let (mut state, mut path, mut actions) = (begins(), Vec::new(), Vec::new());
        for _ in 0..steps {
            actions.clear();
            model.actions(&state, &mut actions);
            let action = choose(random, &actions);
            let Some(next) = model.next_state(&state, action) else { continue };
            state = next;
            path.push(action);
            if !properties.iter().all(|property| (property.condition)(model, &state)) {
                return Some(path);
            }
        }
        (!ends_well(&state)).then_some(path)
    })
}
