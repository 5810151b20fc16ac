//! A test of readers that request large objects and then stop, beside a writer in a nearly full
//! memory: the writer can overwrite objects although replies wait for the readers.

use sprat_proto::time::{MS, SECOND};
use sprat_proto::{Instant, Rng};
use sprat_sim::node::{Node, config, locator};
use sprat_sim::{HostFaults, Options, Outside, Process, Start, World, seeds, wire};
use sprat_store::client::{Answer, Client, Config, Done, Error, Op};
use sprat_store::coordinator::{self, Coordinator};
use sprat_store::master::{self, Master};
use sprat_store::message::data::RejectRules;
use sprat_store::types::TableId;

use crate::user::Side;

/// The size of the master's log (small), and of objects (large compared to its segments), in bytes
/// and segments.
const SEGMENT: u32 = 32 << 10;
const SEGMENTS: u64 = 16;
const OBJECT: usize = 4_000;
/// The number of objects that certainly fit the log (see `Log::live_limit_with`).
const OBJECTS: u64 = 82;
/// The number of operations that a reader and a writer have in progress.
const READS: usize = 32;
const WRITES: usize = 4;
/// The longest time until a program starts further operations, in nanoseconds.
const PAUSE_NS: u64 = 20 * MS;

/// The results of the test of stopped readers.
#[derive(Debug, Default)]
struct Score {
    table: Option<TableId>,
    written: u64,
    read: u64,
    /// The number of log segments lent to replies, and of bytes copied for them.
    lent: (u32, u64),
}

/// The process of the simulated store's master.
struct Server(Node<Master>);

impl Process<Score> for Server {
    fn turn(&mut self, outside: &mut Outside<'_, Score>) -> bool {
        let more = self.0.turn(outside);
        let log = &self.0.machine().memory().log;
        outside.score.lent = (log.pinned(), log.copied_bytes());
        more
    }

    fn deadline(&self) -> Option<Instant> {
        self.0.deadline()
    }

    fn state(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

/// A program of the store's user that only writes or only reads.
struct User {
    node: Node<Side>,
    rng: Rng,
    writes: bool,
    /// The operations in progress, and the time at which the program starts the next ones.
    open: Vec<Op>,
    next: Instant,
}

impl User {
    fn new(start: Start<'_>, writes: bool) -> Self {
        let mut rng = start.rng;
        let client = Client::new(Config::new(&locator(0)), rng.fork());
        let node = Node::new(Side::new(client), config(false), rng.fork(), start.port);
        Self { node, rng, writes, open: Vec::new(), next: start.now }
    }

    fn ask(&mut self, now: Instant, score: &Score) {
        self.next = now.after(1 + self.rng.below(PAUSE_NS));
        let (rng, client, never) = (&mut self.rng, self.node.command().client(), Instant::NEVER);
        let Some(table) = score.table else {
            if self.writes && self.open.is_empty() {
                self.open.push(client.create_table("t", 1, never));
            }
            return;
        };
        let (rules, filled) = (RejectRules::default(), score.written >= OBJECTS);
        while self.open.len() < if self.writes { WRITES } else { READS } && (self.writes || filled)
        {
            let next = score.written + self.open.len() as u64;
            // While a first write is late, the completion records of all later writes stay. With
            // those of many overwrites, seed 3071 had no room for the late object.
            if self.writes && next >= OBJECTS && !filled {
                break;
            }
            let key = if next < OBJECTS { next } else { rng.below(OBJECTS) }.to_be_bytes();
            self.open.push(match self.writes {
                true => client.write(table, &key, &[key[7]; OBJECT], rules, never),
                false => client.read(table, &key, rules, never),
            });
        }
    }

    fn take_results(&mut self, score: &mut Score) {
        for Done { op, outcome } in self.node.machine().take_done() {
            self.open.retain(|open| *open != op);
            match outcome {
                Ok(Answer::Table(table)) => score.table = Some(table),
                Ok(Answer::Version(_)) => score.written += 1,
                Ok(Answer::Object { value, .. }) => {
                    assert!(value[..] == [value[0]; OBJECT]);
                    score.read += 1;
                }
                // The last of the first writes may be late.
                Err(Error::ObjectDoesntExist) if !self.writes => {}
                // The master has not joined the cluster yet.
                Err(Error::TooFewServers) if score.table.is_none() => {}
                other => panic!("{other:?} after {} writes", score.written),
            }
        }
    }
}

impl Process<Score> for User {
    fn turn(&mut self, outside: &mut Outside<'_, Score>) -> bool {
        self.node.input(outside);
        self.take_results(outside.score);
        if self.next <= outside.now {
            self.ask(outside.now, outside.score);
        }
        let more = self.node.output(outside);
        self.take_results(outside.score);
        more
    }

    fn deadline(&self) -> Option<Instant> {
        self.node.deadline().into_iter().chain([self.next]).min()
    }

    fn state(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

fn world(seed: u64, options: Options, readers: usize) -> World<Score> {
    let mut world = World::new(seed, options, Score::default());
    world.host(HostFaults::NONE, |start| {
        let (now, mut rng) = (start.now, start.rng);
        // Terms as in production: a network that loses every fourth packet ends shorter leases.
        let terms = coordinator::Config::default();
        let coordinator = Coordinator::restore(now, terms, rng.fork(), []);
        Box::new(Node::new(
            coordinator.expect("an empty disk is sound"),
            config(true),
            rng,
            start.port,
        ))
    });
    world.host(HostFaults::NONE, |start| {
        let own = locator(start.host);
        let config_ = master::Config {
            coordinator: locator(0),
            control: own.clone(),
            data: own,
            log_bytes: SEGMENTS * u64::from(SEGMENT),
            segment_bytes: SEGMENT,
            ..master::Config::default()
        };
        let mut rng = start.rng;
        Box::new(Server(Node::new(Master::new(config_, rng.fork()), config(true), rng, start.port)))
    });
    for user in 0..=readers {
        world.host(HostFaults::NONE, move |start| Box::new(User::new(start, user == 0)));
    }
    world
}

/// Readers stop for a long time, alone and together. The writer continues meanwhile, and the
/// readers continue afterwards.
#[test]
fn readers_that_stop_do_not_stop_a_writer() {
    seeds::each("readers_that_stop_do_not_stop_a_writer", 8, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x9ead);
        let mut options = Options::default();
        match rng.below(3) {
            0 => options.wire.fault = seeds::fault(&mut rng, 5 * MS),
            1 => {
                options.wire =
                    wire::Options { room: 4 + rng.below(60) as usize, ..wire::Options::lossless() }
            }
            _ => {}
        }
        let readers = 1 + rng.below(4) as usize;
        let mut world = world(seed, options, readers);
        assert!(world.run_until(60 * SECOND, |w| w.score.written >= OBJECTS), "{:?}", world.score);
        for round in 0..3 {
            for reader in 0..readers {
                world.run_for(rng.below(50 * MS));
                world.run_until(SECOND, |w| w.score.lent.0 > 0);
                world.pause(3 + reader, [SECOND, 20 * SECOND, 1000 * SECOND][round]);
            }
            let stopped_ns = [0, 2 * SECOND, 10 * SECOND][round];
            for _ in 0..=stopped_ns / SECOND {
                let enough = world.score.written + OBJECTS;
                let goes_on = world.run_until(10 * SECOND, |w| w.score.written >= enough);
                assert!(
                    goes_on,
                    "round {round} of {readers} readers: {:?} of {enough}",
                    world.score
                );
                world.run_for(stopped_ns.min(SECOND / 2));
            }
            world.end_faults();
            let enough = world.score.read + READS as u64;
            let goes_on =
                world.run_until(60 * SECOND, |w| w.score.read >= enough && w.score.lent == (0, 0));
            assert!(goes_on, "round {round} of {readers} readers: {:?} of {enough}", world.score);
        }
    });
}
