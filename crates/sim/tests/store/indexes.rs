//! Secondary indexes while tablets move, servers crash and clients end in the middle: each look-up
//! finds exactly the objects of its range, and each tree stays whole.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use sprat_proto::time::MS;
use sprat_proto::{Instant, Rng};
use sprat_sim::node::{Node, config};
use sprat_sim::wire::HostId;
use sprat_sim::{HostFaults, Options, Outside, Process, Start, World, seeds};
use sprat_store::client::{Client, Config, Done, Op};

use crate::replicas::Audits;
use crate::score::Score;
use crate::user::Side;
use crate::{Shape, finish, locators_of, recovery, transactions, world};

mod finale;
mod task;
mod tasks;
mod transact;

use task::{Place, Shared, Task};

/// The most tasks of a program in progress.
const MOST: usize = 3;

/// A program that uses indexes by asynchronous tasks.
struct Indexer {
    host: HostId,
    node: Node<Side>,
    rng: Rng,
    shared: Rc<Shared>,
    tasks: Vec<Pin<Box<dyn Future<Output = ()>>>>,
    asked: BTreeMap<Op, Place>,
    servers: u64,
    span: u32,
    arrange_ppm: u32,
    pause_ns: u64,
    /// The share of look-ups among the tasks. Commits refresh the catalog that a program keeps.
    look_ups_ppm: u32,
    next: Instant,
    /// True once the last checks have begun, or another program makes them.
    is_last: bool,
}

impl Indexer {
    fn new(start: Start<'_>, shape: &Shape, node_bytes: u32) -> Self {
        let mut rng = start.rng;
        let config_ = Config {
            try_timeout_ns: 20 * MS + rng.below(100 * MS),
            page_bytes: 200 + rng.below(2_000) as u32,
            ..Config::new(&locators_of(&shape.coordinators(), &mut rng))
        };
        let side = Side::new(Client::new(config_, rng.fork()));
        let shared = Shared {
            now: Cell::new(start.now),
            score: RefCell::default(),
            rng: RefCell::new(rng.fork()),
            state: RefCell::default(),
            requests: RefCell::default(),
            wakes: RefCell::default(),
            tables: Cell::default(),
            node_bytes,
        };
        let look_ups_ppm = [250_000, 250_000, 900_000][rng.below(3) as usize];
        Self {
            host: start.host,
            node: Node::new(side, config(false), rng.fork(), start.port),
            rng,
            shared: Rc::new(shared),
            tasks: Vec::new(),
            asked: BTreeMap::new(),
            servers: shape.masters as u64,
            span: shape.habits.span,
            arrange_ppm: shape.habits.arrange_ppm,
            pause_ns: shape.habits.pause_ns,
            look_ups_ppm,
            // Most masters have joined the cluster by then.
            next: start.now.after(600 * MS),
            is_last: false,
        }
    }

    /// Returns a new task's access to the store.
    fn task(&self, deadline: Instant) -> Task {
        Task { shared: Rc::clone(&self.shared), deadline, seen: Rc::default() }
    }

    fn deadline(&mut self, now: Instant) -> Instant {
        match self.rng.below(12) {
            0 => now.after(self.rng.below(30 * MS)),
            1 => now.after(self.rng.below(500 * MS)),
            _ => Instant::NEVER,
        }
    }

    fn act(&mut self, now: Instant) {
        self.next = now.after(1 + self.rng.below(self.pause_ns));
        if self.shared.tables.get().is_none() {
            if self.tasks.is_empty() {
                let task = self.task(Instant::NEVER);
                self.tasks.push(Box::pin(task.set_up(self.span)));
            }
            return;
        }
        let shared = Rc::clone(&self.shared);
        let mut score = shared.score.borrow_mut();
        if score.finale {
            let is_first = score.left.keys().next() == Some(&self.host);
            if !std::mem::replace(&mut self.is_last, true) && is_first {
                let task = self.task(Instant::NEVER);
                self.tasks.push(Box::pin(task.check_all()));
            }
            return;
        }
        let left = score.left.entry(self.host).or_default();
        if *left == 0 || self.tasks.len() >= MOST {
            return;
        }
        *left -= 1;
        let deadline = self.deadline(now);
        let task = self.task(deadline);
        if self.rng.chance(self.arrange_ppm) {
            return self.tasks.push(Box::pin(task.arrange(self.servers)));
        }
        self.tasks.push(match self.rng.below(80) {
            _ if self.rng.chance(self.look_ups_ppm) => Box::pin(task.look_up()),
            0..10 => Box::pin(task.change_indexes(self.rng.chance(300_000))),
            10..15 => Box::pin(task.change_plainly()),
            15..35 => Box::pin(task.transact()),
            _ => Box::pin(task.change()),
        });
        // The program gives up a few.
        if self.rng.chance(20_000) {
            let given_up = self.rng.below(self.tasks.len() as u64) as usize;
            drop(self.tasks.swap_remove(given_up));
            let given_up = self.asked.extract_if(.., |_, place| Rc::strong_count(place) == 1);
            for (op, _) in given_up.collect::<Vec<_>>() {
                assert!(self.node.command().client().cancel(op));
            }
        }
    }

    /// Lets all tasks go on as far as they can, and passes their requests to the client.
    fn run_tasks(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            self.shared.wakes.borrow_mut().clear();
            self.tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
            for (start, place) in self.shared.requests.take() {
                let op = start(self.node.command().client());
                self.asked.insert(op, place);
            }
            if !self.take_results() {
                return;
            }
        }
    }

    /// Passes the outcomes of operations to their tasks. Returns true if there are some.
    fn take_results(&mut self) -> bool {
        let done = self.node.machine().take_done();
        let is_some = !done.is_empty();
        for Done { op, outcome } in done {
            let place = self.asked.remove(&op).expect("it was asked");
            place.replace(Some(outcome));
        }
        is_some
    }

    fn swap_score(&self, outside: &mut Outside<'_, Score>) {
        std::mem::swap(outside.score, &mut *self.shared.score.borrow_mut());
    }
}

impl Process<Score> for Indexer {
    fn turn(&mut self, outside: &mut Outside<'_, Score>) -> bool {
        self.swap_score(outside);
        self.shared.now.set(outside.now);
        self.node.input(outside);
        self.take_results();
        if self.next <= outside.now {
            self.act(outside.now);
        }
        self.run_tasks();
        let more = self.node.output(outside);
        let more = self.take_results() || more;
        self.swap_score(outside);
        outside.score.open.insert(self.host, (self.tasks.len(), self.is_last));
        more
    }

    fn deadline(&self) -> Option<Instant> {
        let next = (!self.is_last).then_some(self.next);
        let wakes = self.shared.wakes.borrow();
        self.node.deadline().into_iter().chain(next).chain(wakes.iter().copied()).min()
    }

    fn state(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

/// Returns a world with programs that use indexes in place of its users.
fn indexed(seed: u64, rng: &mut Rng, options: Options, shape: &Shape) -> World<Score> {
    let (programs, node_bytes) = (2 + rng.below(3), 130 + rng.below(200) as u32);
    let shape = Shape { users: 0, ..shape.clone() };
    let mut world = world(seed, options, &shape);
    for _ in 0..programs {
        let its = shape.clone();
        let host = world
            .host(shape.faults[2], move |start| Box::new(Indexer::new(start, &its, node_bytes)));
        world.score.left.insert(host, shape.operations);
    }
    world
}

/// Returns the shape of a world in which programs split, merge and move tablets.
fn arranged_shape(rng: &mut Rng) -> Shape {
    let mut shape = transactions::arranged_shape(rng);
    (shape.operations, shape.habits.pause_ns) = (100, 10 * MS);
    // A server that has all nodes changes an object together with its entries.
    if rng.chance(400_000) {
        shape.masters = 1;
    }
    shape
}

#[test]
fn indexes_are_exact_while_tablets_move() {
    seeds::each("indexes_are_exact_while_tablets_move", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x14de);
        let mut options = Options::default();
        options.wire.fault = recovery::mild_fault(&mut rng);
        let shape = arranged_shape(&mut rng);
        let mut world = indexed(seed, &mut rng, options, &shape);
        assert_eq!(finish(&mut world), Ok(()));
        crate::check(&mut world, &shape);
    });
    let counts = [
        &tasks::CHANGED,
        &tasks::FOUND,
        &tasks::PROVEN,
        &transact::COMMITTED,
        &task::CONFLICTS,
        &task::SPLITS,
        &task::LOOKED_UP,
        &task::WHOLE,
        &task::UNDONE,
        &finale::LEVELS,
    ];
    let counts = counts.map(|count| count.load(Ordering::Relaxed));
    // Merges are rare: some seeds have none.
    let merges = task::MERGES.load(Ordering::Relaxed);
    assert!(counts.iter().all(|count| *count > 1), "{counts:?}, {merges} merges");
}

/// Clients crash in the middle of changes, splits and the creation of indexes, or are stopped:
/// others go on with whole trees.
#[test]
fn indexes_are_whole_without_their_clients() {
    seeds::each("indexes_are_whole_without_their_clients", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x14df);
        let options = transactions::client_faults(&mut rng);
        let mut shape = arranged_shape(&mut rng);
        shape.faults[2] = HostFaults::ALL;
        (shape.habits.span, shape.habits.pause_ns) = (4, 20 * MS);
        let mut world = indexed(seed, &mut rng, options, &shape);
        assert_eq!(finish(&mut world), Ok(()));
        crate::check(&mut world, &shape);
    });
}

/// Up to as many servers crash at once as a log has replicas.
#[test]
fn indexes_are_exact_while_servers_crash() {
    let (mut crashes, mut audits) = (0, Audits::default());
    seeds::each("indexes_are_exact_while_servers_crash", 10, |seed| {
        let mut rng = Rng::seeded(seed ^ 0x14e0);
        let mut shape = recovery::crashing(&mut rng, HostFaults::NONE);
        (shape.operations, shape.habits.pause_ns) = (80, 60 * MS);
        shape.habits.span = 1 + rng.below(4) as u32;
        shape.habits.arrange_ppm = [0, 100_000][rng.below(2) as usize];
        let world = indexed(seed, &mut rng, Options::default(), &shape);
        let run = recovery::run_crashing(world, &mut rng, &shape, &mut audits);
        assert!(run.held, "no lease ends");
        crashes += run.crashes;
    });
    assert!(crashes > 0);
}
