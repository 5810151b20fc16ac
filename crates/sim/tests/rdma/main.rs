//! Software iWARP in worlds where everything goes wrong: machines with an engine each post whatever the oracle can tell the
//! outcome of, over streams that are cut anywhere, end at any step and are damaged. Memory, completions, their order and the
//! errors have to be exactly what was to be expected.

mod judge;
mod memory;
mod post;
mod world;

use sprat_sim::seeds;
use world::{Plan, Seen, World};

fn run(seed: u64, plan: Plan) -> Seen {
    World::new(seed, plan).run()
}

#[test]
fn in_peace() {
    let mut good = 0;
    seeds::each("in_peace", 25, |seed| {
        good += run(seed, Plan::default()).good;
    });
    assert!(good > 0);
}
