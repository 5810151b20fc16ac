//! Worlds whose coordinator moves hot ranges by itself, while users change the objects in them and
//! servers crash.
//!
//! A reader gives the cluster its load: it reads the objects of the users again and again, some
//! much more often than others. Its reads are no part of the history, but no version of an object
//! that it reads may fall.

use std::collections::BTreeMap;

use sprat_proto::time::{MS, SECOND};
use sprat_proto::{Instant, Rng};
use sprat_sim::node::{Node, config};
use sprat_sim::wire::HostId;
use sprat_sim::{Chaos, HostFaults, Options, Outside, Process, Start, World, seeds};
use sprat_store::client::{Answer, Client, Config, Done, Op, Part, PartAnswer, PartRequest};
use sprat_store::message::data::RejectRules;
use sprat_store::types::{TableId, Version};

use crate::draw::{KEYS, key_bytes};
use crate::recovery::{crashing, mild_fault, run_crashing_at};
use crate::replicas::Audits;
use crate::score::Score;
use crate::user::Side;
use crate::{Shape, any_chaos, locators_of, world};

/// The number of objects in one request of the reader.
const PARTS: usize = 48;
/// The number of keys that have half of the reads beside their part of the rest.
const HOT_KEYS: u64 = 3;
/// The pause between two requests of the reader.
const PAUSE_NS: u64 = 4 * MS;
/// The time after which the reader gives a request up.
const PATIENCE_NS: u64 = 200 * MS;
/// The accesses in a second from which on a server counts as hot in these worlds.
const HOT_RATE: u64 = 1_000;
/// The probability of crashes in a step, in parts per million. A server that comes back gets equal
/// shares first, so that no hot range moves while servers crash much.
const CRASH_PPM: u32 = 5_000;

/// A program that reads the objects of the users.
struct Reader {
    node: Node<Side>,
    rng: Rng,
    /// The request in progress, and the objects that it asks for.
    asked: Option<(Op, Vec<(u64, u64)>)>,
    /// The highest version that was read of each object.
    versions: BTreeMap<(u64, u64), Version>,
    next: Instant,
}

impl Reader {
    fn new(start: Start<'_>, coordinators: &[HostId]) -> Self {
        let mut rng = start.rng;
        let config_ =
            Config { try_timeout_ns: 50 * MS, ..Config::new(&locators_of(coordinators, &mut rng)) };
        let side = Side::new(Client::new(config_, rng.fork()));
        let node = Node::new(side, config(false), rng.fork(), start.port);
        Self { node, rng, asked: None, versions: BTreeMap::new(), next: start.now }
    }

    fn act(&mut self, now: Instant, score: &Score) {
        self.next = now.after(PAUSE_NS);
        // The users use the newest table most.
        let Some(&table) = score.tables.keys().next_back() else { return };
        let objects: Vec<_> = (0..PARTS)
            .map(|_| {
                let most = [HOT_KEYS, KEYS][self.rng.below(2) as usize];
                (table, self.rng.below(most))
            })
            .collect();
        let keys: Vec<_> = (0..KEYS).map(key_bytes).collect();
        let parts = objects.iter().map(|&(table, key)| Part {
            table: TableId(table),
            key: &keys[key as usize],
            rules: RejectRules::default(),
            request: PartRequest::Read,
        });
        let op = self.node.command().client().multi(parts, now.after(PATIENCE_NS));
        self.asked = Some((op, objects));
    }

    fn take_results(&mut self, score: &Score) {
        for Done { op, outcome } in self.node.machine().take_done() {
            let (_, objects) = self.asked.take_if(|(asked, _)| *asked == op).expect("it asked");
            let Ok(Answer::Parts(parts)) = outcome else { panic!("{outcome:?}") };
            let read = objects.into_iter().zip(parts.iter()).filter_map(|(object, part)| {
                // A table may be dropped, and a server silent.
                let Ok(&PartAnswer::Object { version, .. }) = part.as_ref() else { return None };
                // A crash may take changes back that did not wait for their replicas.
                (!score.hasty.contains(&object.0)).then_some((object, version))
            });
            let read: Vec<_> = read.collect();
            // The parts of one request have no order among each other.
            for (object, version) in &read {
                let highest = self.versions.get(object).copied().unwrap_or_default();
                assert!(*version >= highest, "{object:?}: {version:?} after {highest:?}");
            }
            for (object, version) in read {
                let highest = self.versions.entry(object).or_default();
                *highest = version.max(*highest);
            }
        }
    }
}

impl Process<Score> for Reader {
    fn turn(&mut self, outside: &mut Outside<'_, Score>) -> bool {
        self.node.input(outside);
        self.take_results(outside.score);
        if outside.score.finale {
            self.next = Instant::NEVER;
        } else if self.asked.is_none() && self.next <= outside.now {
            self.act(outside.now, outside.score);
        }
        let more = self.node.output(outside);
        self.take_results(outside.score);
        more
    }

    fn deadline(&self) -> Option<Instant> {
        let next = self.asked.is_none().then_some(self.next);
        self.node.deadline().into_iter().chain(next).min()
    }

    fn state(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

/// Returns a world whose users have a reader beside them, and tables with hot ranges.
fn heated(seed: u64, options: Options, shape: &Shape) -> World<Score> {
    let mut world = world(seed, options, shape);
    // The coordinator divides tablets, so that only a key is sure to be on one server.
    world.score.arranged = true;
    let coordinators = shape.coordinators();
    world.host(HostFaults::NONE, move |start| Box::new(Reader::new(start, &coordinators)));
    world
}

/// Returns the shape of a world whose coordinator moves hot ranges.
fn shape(rng: &mut Rng, servers: HostFaults) -> Shape {
    let mut shape = crashing(rng, servers);
    shape.operations = 120;
    shape.rebalance_ns = 100 * MS + rng.below(200 * MS);
    shape.hot_rate = HOT_RATE;
    shape.habits.drop_ppm /= 4;
    shape
}

/// Servers crash within the budget, and no other fault happens.
#[test]
fn with_hot_ranges() {
    let (mut worlds, mut ranges, mut audits) = (0, 0, Audits::default());
    seeds::each("with_hot_ranges", 5, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x4ea7);
        let shape = shape(&mut rng, HostFaults::NONE);
        let world = heated(seed, Options::default(), &shape);
        // With many crashes, few ranges move, and more tablets are taken over soon after.
        let crash_ppm = [CRASH_PPM, 10 * CRASH_PPM][rng.below(2) as usize];
        let run = run_crashing_at(world, &mut rng, &shape, &mut audits, crash_ppm);
        assert!(run.held, "no lease ends");
        (worlds, ranges) = (worlds + 1, ranges + run.hot_ranges);
    });
    assert!(ranges > 0 || worlds < 5, "{ranges} ranges moved in {worlds} worlds");
}

/// Servers crash within the budget on a bad network. Processes are paused and the network is cut,
/// for less than a lease lasts. The coordinator restarts.
#[test]
fn with_hot_ranges_under_faults() {
    let (mut worlds, mut ranges, mut audits) = (0, 0, Audits::default());
    seeds::each("with_hot_ranges_under_faults", 5, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x4ea8);
        let mut options = Options { drift_ppm: rng.below(5_000) as u32, ..Options::default() };
        options.wire.fault = mild_fault(&mut rng);
        let short = Chaos { pause_ns: 100 * MS, partition_ns: 100 * MS, ..any_chaos(&mut rng) };
        options.chaos = seeds::chaos(&mut rng, Chaos { down_ns: 500 * MS, ..short });
        let mut shape = shape(&mut rng, HostFaults::PAUSES);
        shape.faults[0] = HostFaults::ALL;
        shape.server_term_ns = SECOND;
        let world = heated(seed, options, &shape);
        let run = run_crashing_at(world, &mut rng, &shape, &mut audits, CRASH_PPM);
        (worlds, ranges) = (worlds + 1, ranges + run.hot_ranges);
    });
    assert!(ranges > 0 || worlds < 5, "{ranges} ranges moved in {worlds} worlds");
}
