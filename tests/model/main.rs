//! Explores every reachable state of the protocol, within bounds, with the engine's own code.

mod client;
mod node;
mod world;

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};
use world::{Bounds, Defect, Network, Replies, Start, Witness, World};

/// At once, and without requests that arrive after their acquisition is over.
fn lean(nodes: usize, clients: usize) -> Bounds {
    Bounds { zombies: Some(0), ..at_once(nodes, clients) }
}

fn at_once(nodes: usize, clients: usize) -> Bounds {
    Bounds { replies: Replies::AtOnce, ..Bounds::of(nodes, clients) }
}

fn explore(name: &str, bounds: Bounds) -> (usize, Vec<Witness>) {
    let started_at = Instant::now();
    let checker = World::new(bounds)
        .checker()
        .threads(2)
        .timeout(std::time::Duration::from_secs(45))
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    for (property, path) in checker.discoveries() {
        println!("{name}: {property}");
        for (index, (state, action)) in path.into_vec().into_iter().enumerate() {
            let Some(action) = action else { continue };
            println!("  {:3}. {}", index + 1, checker.model().tell(&state, action));
        }
    }
    let witnesses = checker.model().witnesses();
    println!(
        "{name}: done {} {} states, {} generated, depth {}, {:.1} s, {witnesses:?}",
        checker.is_done(),
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        started_at.elapsed().as_secs_f32(),
    );
    (checker.unique_state_count(), witnesses)
}

#[test]
fn scratch() {
    let uneven = Bounds { start: Start::Uneven, ..lean(3, 2) };
    let floor = Bounds { start: Start::OneFloor, ..lean(3, 2) };
    explore("noraise", Bounds { defect: Defect::NoRaiseRound, ..uneven });
    explore(
        "unconditional",
        Bounds { ignores_clocks: true, defect: Defect::UnconditionalRaise, ..uneven },
    );
    explore(
        "nopersist",
        Bounds {
            crashes: 1,
            defect: Defect::RaiseWithoutPersisting,
            only: Some("fences are unique"),
            ..floor
        },
    );
    explore("S2 uneven", uneven);
    explore(
        "S2 uneven, zombies, clockless, store",
        Bounds { has_store: true, ignores_clocks: true, ..uneven },
    );
    explore("S3 crash floor", Bounds { crashes: 1, ..floor });
    explore("S3 crash", Bounds { crashes: 1, ..lean(3, 2) });
    explore("S4 renew", Bounds { renewals: 1, ..lean(3, 2) });
    explore("S7 dup", Bounds { network: Network::AnyOrder { duplicates: 1 }, ..lean(3, 2) });
    explore("S6 5x2", lean(5, 2));
    explore("L renew crash", Bounds { renewals: 1, crashes: 1, ..lean(3, 2) });
    explore("L 3x3", lean(3, 3));
}
