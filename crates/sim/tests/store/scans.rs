//! Scans of a table whose tablets are split, merged, moved and recovered meanwhile: each object
//! that stays comes exactly once, and no object comes twice.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use sprat_proto::time::{MS, SECOND};
use sprat_proto::{Instant, Rng};
use sprat_sim::node::{Node, config};
use sprat_sim::wire::HostId;
use sprat_sim::{HostFaults, Options, Outside, Process, Start, World, seeds};
use sprat_store::client::{Answer, Client, Config, Cursor, Done, Error, MigrationInfo, Op};
use sprat_store::message::data::RejectRules;
use sprat_store::message::migration::MigrationState;
use sprat_store::types::TableId;

use crate::replicas::Audits;
use crate::score::Score;
use crate::user::{Side, arranged};
use crate::{Shape, finish, locators_of, recovery, world};

/// The name of the table that is scanned.
const NAME: &str = "scanned";
/// The number of objects that stay, and of those that come and go.
const STAY: u64 = 60;
const GO: u64 = 20;
/// The number of scans of a world.
const SCANS: u32 = 4;

/// An operation of the scanner that is in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Create,
    /// The first write of an object that stays.
    First(u64),
    /// A change of an object that comes and goes.
    Change,
    Tablets,
    Arrangement,
    Page,
    Migrations,
}

/// A program that scans a table and changes its tablets.
struct Scanner {
    host: HostId,
    node: Node<Side>,
    rng: Rng,
    table: Option<TableId>,
    span: u32,
    servers: u64,
    /// The longest pause between two steps, in nanoseconds.
    pause_ns: u64,
    asked: BTreeMap<Op, Asked>,
    /// The number of objects that stay and are there.
    written: u64,
    /// The next page of the scan in progress, and the keys that have come with their counts.
    cursor: Option<Cursor>,
    seen: BTreeMap<Vec<u8>, u32>,
    left: u32,
    next: Instant,
    /// True if the migrations of the world were counted at its end.
    counted: bool,
}

impl Scanner {
    fn new(start: Start<'_>, coordinators: &[HostId], shape: &Shape) -> Self {
        let mut rng = start.rng;
        let config_ = Config {
            try_timeout_ns: 50 * MS,
            page_bytes: 1 + rng.below(400) as u32,
            ..Config::new(&locators_of(coordinators, &mut rng))
        };
        let side = Side::new(Client::new(config_, rng.fork()));
        Self {
            host: start.host,
            node: Node::new(side, config(false), rng.fork(), start.port),
            rng,
            table: None,
            span: shape.habits.span,
            servers: shape.masters as u64,
            pause_ns: shape.habits.pause_ns,
            asked: BTreeMap::new(),
            written: 0,
            cursor: None,
            seen: BTreeMap::new(),
            left: SCANS,
            next: start.now,
            counted: false,
        }
    }

    fn is_asked(&self, asked: Asked) -> bool {
        self.asked.values().any(|other| *other == asked)
    }

    fn ask(&mut self, asked: Asked, start: impl FnOnce(&mut Client) -> Op) {
        let op = start(self.node.command().client());
        self.asked.insert(op, asked);
    }

    fn act(&mut self, now: Instant, finale: bool) {
        self.next = now.after(1 + self.rng.below(self.pause_ns));
        let (never, rules) = (Instant::NEVER, RejectRules::default());
        let Some(table) = self.table else {
            let span = self.span;
            if self.asked.is_empty() {
                self.ask(Asked::Create, |client| client.create_table(NAME, span, never));
            }
            return;
        };
        if self.left == 0 {
            if finale && !self.counted && self.asked.is_empty() {
                self.ask(Asked::Migrations, |client| client.list_migrations(never));
            }
            return;
        }
        while self.written + (self.asked.len() as u64) < STAY && self.asked.len() < 8 {
            let n = self.written + self.asked.len() as u64;
            let key = [b"stay", &n.to_be_bytes()[..]].concat();
            self.ask(Asked::First(n), |client| client.write(table, &key, b"here", rules, never));
        }
        if self.written < STAY {
            return;
        }
        if !self.is_asked(Asked::Page) {
            let cursor = self.cursor.clone().unwrap_or_default();
            self.ask(Asked::Page, |client| client.enumerate(table, cursor, never));
        }
        if self.rng.chance(500_000) && !self.is_asked(Asked::Change) {
            let key = [b"go", &self.rng.below(GO).to_be_bytes()[..]].concat();
            let removes = self.rng.chance(500_000);
            self.ask(Asked::Change, |client| match removes {
                true => client.remove(table, &key, rules, never),
                false => client.write(table, &key, b"here for a while", rules, never),
            });
        }
        if self.rng.chance(300_000) && !self.is_asked(Asked::Tablets) {
            self.ask(Asked::Tablets, |client| client.list_tablets(table, never));
        }
    }

    fn take_results(&mut self) {
        for Done { op, outcome } in self.node.machine().take_done() {
            let asked = self.asked.remove(&op).expect("it was asked");
            match (asked, outcome) {
                (Asked::Create, Ok(Answer::Table(table))) => self.table = Some(table),
                // No master has joined the cluster yet.
                (Asked::Create, Err(Error::TooFewServers)) => {}
                (Asked::First(_), Ok(Answer::Version(_))) => self.written += 1,
                (Asked::Change, Ok(Answer::Version(_)) | Err(Error::TooFewServers)) => {}
                (Asked::Page, Ok(Answer::Page(page))) => {
                    for listed in page.objects() {
                        *self.seen.entry(listed.key.to_vec()).or_default() += 1;
                    }
                    self.cursor = page.next;
                    if self.cursor.is_none() {
                        self.check();
                    }
                }
                (Asked::Tablets, Ok(Answer::Tablets(tablets))) => {
                    let (rng, servers) = (&mut self.rng, self.servers);
                    let tablet = &tablets[rng.below(tablets.len() as u64) as usize];
                    let (first, last, never) = (tablet.first, tablet.last, Instant::NEVER);
                    let at = first + rng.below((last - first).max(1));
                    // The scan of each tablet walks the whole hash table of its server.
                    let is_many = tablets.len() > 5;
                    let kind = if is_many { rng.below(3) + 1 } else { rng.below(4) };
                    let target = rng.below(servers) as u32;
                    let divides = !is_many && rng.chance(500_000);
                    let range = if divides { (first, at) } else { (first, last) };
                    self.ask(Asked::Arrangement, |client| match kind {
                        0 => client.split_tablet(NAME, at, never),
                        1 => client.merge_tablets(NAME, first, never),
                        _ => client.move_tablet(NAME, range, target, never),
                    });
                }
                (Asked::Arrangement, outcome) => arranged(&outcome),
                (Asked::Migrations, Ok(Answer::Migrations(migrations))) => {
                    let is_done = |m: &&MigrationInfo| m.state == MigrationState::Done;
                    let done = migrations.iter().filter(is_done).count();
                    MOVED.fetch_add(done as u64, Ordering::Relaxed);
                    self.counted = true;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Checks a scan that has ended.
    fn check(&mut self) {
        let seen = std::mem::take(&mut self.seen);
        for n in 0..STAY {
            let key = [b"stay", &n.to_be_bytes()[..]].concat();
            assert_eq!(seen.get(&key), Some(&1), "object {n} of those that stay");
        }
        assert!(seen.values().all(|count| *count == 1), "{seen:?}");
        self.left -= 1;
    }
}

/// The number of migrations that were completed in all worlds.
static MOVED: AtomicU64 = AtomicU64::new(0);

impl Process<Score> for Scanner {
    fn turn(&mut self, outside: &mut Outside<'_, Score>) -> bool {
        self.node.input(outside);
        self.take_results();
        if self.next <= outside.now {
            self.act(outside.now, outside.score.finale);
        }
        let more = self.node.output(outside);
        self.take_results();
        outside.score.left.insert(self.host, self.left);
        outside.score.open.insert(self.host, (self.asked.len(), self.counted));
        more
    }

    fn deadline(&self) -> Option<Instant> {
        let next = (!self.counted).then_some(self.next);
        self.node.deadline().into_iter().chain(next).min()
    }

    fn state(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

/// Returns a world with a scanner in place of its users.
fn scanned(seed: u64, options: Options, shape: &Shape) -> World<Score> {
    let shape = Shape { users: 0, ..shape.clone() };
    let mut world = world(seed, options, &shape);
    let coordinators = shape.coordinators();
    let host = world
        .host(HostFaults::NONE, move |start| Box::new(Scanner::new(start, &coordinators, &shape)));
    world.score.left.insert(host, SCANS);
    world
}

#[test]
fn scans_are_exact_while_tablets_move() {
    let mut worlds = 0;
    seeds::each("scans_are_exact_while_tablets_move", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x5ca4);
        let mut options = Options::default();
        options.wire.fault = recovery::mild_fault(&mut rng);
        let mut shape = Shape { masters: 2 + rng.below(3) as usize, ..Shape::default() };
        shape.habits.span = 1 + rng.below(3) as u32;
        // A server without replicas that loses its lease takes its tablets along.
        shape.server_term_ns = 2 * SECOND;
        let mut world = scanned(seed, options, &shape);
        assert_eq!(finish(&mut world), Ok(()));
        worlds += 1;
    });
    let moved = MOVED.load(Ordering::Relaxed);
    assert!(moved >= worlds, "{moved} migrations in {worlds} worlds");
}

/// Up to as many servers crash at once as a log has replicas.
#[test]
fn scans_are_exact_while_servers_crash() {
    let (mut crashes, mut audits) = (0, Audits::default());
    seeds::each("scans_are_exact_while_servers_crash", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0xc4a5);
        let mut shape = recovery::crashing(&mut rng, HostFaults::NONE);
        shape.habits.pause_ns = 60 * MS;
        let world = scanned(seed, Options::default(), &shape);
        let run = recovery::run_crashing(world, &mut rng, &shape, &mut audits);
        assert!(run.held, "no lease ends");
        crashes += run.crashes;
    });
    assert!(crashes > 0);
}
