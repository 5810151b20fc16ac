//! The tests of transactions on several servers: `transactionDistRandom`, `transactionThroughput`,
//! `transactionContention` and `transaction_collision`.
//!
//! ```text
//! transaction   reads of the objects · plans of the writes · commit; again after a conflict
//! ```
//!
//! Each server has a table. A client is a thread with a connection of its own and one transaction
//! in progress, and all clients share the core of this process. Behind a conflict the client
//! pauses, as `Client::transact` does for programs; ClusterPerf's begins again at once.

use std::cell::RefCell;
use std::time::Duration;

use serde::Serialize;
use sprat::kv::{Client as Kv, Error, TableId, Transaction};
use sprat_proto::Rng;
use sprat_sys::clock::Clock;

use super::super::basic::KEY;
use super::super::bench::{Bench, in_threads, one_of_many};
use super::super::measure::{Figures, Lane, Sample, in_turns};
use super::super::row::{Distribution, Row};
use super::draw::{Among, Draw, transfer};
use super::tables::{Filled, Shape, key};
use crate::fail::Fail;
use crate::store::Store;
use crate::ycsb::zipf::Zipf;

/// The balance of each account of `transaction_collision` at first.
const BALANCE: i64 = 100;

/// The changes of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    /// Overwrites each object.
    Overwrite,
    /// Moves amounts between the objects, which are accounts.
    Transfer,
}

/// The transactions of a client, or of several, in one round.
struct Traded {
    /// The times from the first read to the end of the commit.
    whole: Sample,
    /// The times of the commits alone.
    commits: Sample,
    /// Number of tries that ended in a conflict.
    aborts: u64,
}

/// A client of the tables of a test.
struct Trader<'f> {
    store: Store,
    tables: &'f [Filled],
    /// The client's number, from 0 on.
    number: u64,
    draw: Draw,
    change: Change,
    value: Vec<u8>,
    rng: Rng,
    clock: Clock,
}

impl Trader<'_> {
    /// Repeats transactions for `time`, and commits at least one.
    fn repeat(&mut self, time: Duration) -> Result<Traded, Fail> {
        let mut traded = Traded { whole: Sample::new(), commits: Sample::new(), aborts: 0 };
        let begin = self.clock.now();
        let end = begin.after(time.as_nanos() as u64);
        let mut now = begin;
        while now < end || traded.whole.operations == 0 {
            self.one(&mut traded)?;
            now = self.clock.now();
        }
        for sample in [&mut traded.whole, &mut traded.commits] {
            sample.elapsed = Duration::from_nanos(now.since(begin));
        }
        Ok(traded)
    }

    /// Commits one transaction.
    fn one(&mut self, traded: &mut Traded) -> Result<(), Fail> {
        let drawn = self.draw.next(self.number, &mut self.rng).into_iter();
        let named = |(at, number): (usize, u64)| {
            let filled = &self.tables[at];
            (filled.table, key(number, filled.shape.key))
        };
        let objects: Vec<(TableId, Vec<u8>)> = drawn.map(named).collect();
        let bytes = (objects.len() * self.value.len()) as u64;
        let Self { store, change, value, rng, clock, .. } = self;
        let before = clock.now();
        let (mut planned, mut tries) = (before, 0);
        let done = store.raw().transact(|transaction| {
            tries += 1;
            match change {
                Change::Overwrite => overwrite(store.raw(), transaction, &objects, value)?,
                Change::Transfer => move_amounts(store.raw(), transaction, &objects, rng)?,
            }
            planned = clock.now();
            Ok::<(), Error>(())
        });
        let now = clock.now();
        done.map_err(|error| store.explain(error, "a transaction"))?;
        traded.whole.record(now.since(before), bytes);
        traded.commits.record(now.since(planned), bytes);
        traded.aborts += tries - 1;
        Ok(())
    }
}

/// Reads all objects, and plans to overwrite them.
fn overwrite(
    client: &Kv,
    transaction: &mut Transaction<'_>,
    objects: &[(TableId, Vec<u8>)],
    value: &[u8],
) -> Result<(), Error> {
    for (table, key) in objects {
        let table = client.table_by_id(*table);
        transaction.get(&table, key)?.ok_or(Error::ObjectDoesntExist)?;
        transaction.put(&table, key, value)?;
    }
    Ok(())
}

/// Reads all accounts, and plans to move amounts between them.
fn move_amounts(
    client: &Kv,
    transaction: &mut Transaction<'_>,
    accounts: &[(TableId, Vec<u8>)],
    rng: &mut Rng,
) -> Result<(), Error> {
    let mut balances = Vec::with_capacity(accounts.len());
    for (table, key) in accounts {
        let object = transaction.get(&client.table_by_id(*table), key)?;
        balances.push(object.and_then(|object| balance(&object.value)));
    }
    let mut balances: Vec<i64> =
        balances.into_iter().collect::<Option<_>>().ok_or(Error::ObjectDoesntExist)?;
    transfer(&mut balances, rng);
    for ((table, key), balance) in accounts.iter().zip(&balances) {
        transaction.put(&client.table_by_id(*table), key, &balance.to_le_bytes())?;
    }
    Ok(())
}

/// Returns the balance that an account's value holds.
fn balance(value: &[u8]) -> Option<i64> {
    value.try_into().ok().map(i64::from_le_bytes)
}

/// The fields of a result's JSON that only these tests have.
#[derive(Serialize)]
struct More {
    servers: usize,
    clients: usize,
    transaction_objects: usize,
    span: usize,
    /// Number of tries that ended in a conflict, in all rounds.
    aborts: u64,
    #[serde(flatten)]
    distribution: Distribution,
}

/// The figures of one number of clients over one transport.
struct Measured {
    whole: Figures,
    commits: Figures,
    more: More,
}

impl Measured {
    /// Returns the row of the test, with the share of tries that ended in a conflict.
    fn row(&self, test: String, transport: &str, size: usize) -> Row {
        let tries = self.whole.count + self.more.aborts;
        let mut row = Row::new(test, transport, Some(size), &self.whole);
        row.value = Some(100.0 * self.more.aborts as f64 / tries.max(1) as f64);
        row.unit = Some("% aborted".to_owned());
        row
    }
}

/// The transactions of all clients of a test.
struct Deal<'f> {
    tables: &'f [Filled],
    draw: Draw,
    change: Change,
    /// Bytes of a value.
    size: usize,
}

impl Deal<'_> {
    /// Runs `count` clients over `transport` for `time`. Returns the transactions of each.
    fn round(
        &self,
        (coordinator, transport): (&str, &str),
        count: usize,
        time: Duration,
    ) -> Result<Vec<Traded>, Fail> {
        in_threads(count, |number, start| {
            let mut trader = Trader {
                store: one_of_many(coordinator, transport)?,
                tables: self.tables,
                number: number as u64,
                draw: self.draw.clone(),
                change: self.change,
                value: vec![b'w'; self.size],
                rng: Rng::seeded(number as u64),
                clock: Clock::new(),
            };
            trader.repeat(Duration::ZERO)?;
            start.wait();
            trader.repeat(time)
        })
    }

    /// Measures `count` clients over `transport`. `check` runs behind each round.
    fn measure(
        &self,
        bench: &mut Bench,
        transport: &str,
        count: usize,
        check: &dyn Fn() -> Result<(), Fail>,
    ) -> Result<Measured, Fail> {
        let coordinator = bench.coordinator()?;
        let rounds = RefCell::new(Vec::new());
        let lane: Lane<'_> = Box::new(|time| {
            let traded = self.round((&coordinator, transport), count, time)?;
            check()?;
            let commits = Sample::of_all(traded.iter().map(|one| &one.commits));
            let aborts: u64 = traded.iter().map(|one| one.aborts).sum();
            rounds.borrow_mut().push((commits, aborts));
            Ok(Sample::of_all(traded.iter().map(|one| &one.whole)))
        });
        let whole = in_turns(&mut [lane], bench.rounds, bench.time)?.remove(0);
        // The first round warms up.
        let (commits, aborts): (Vec<Sample>, Vec<u64>) =
            rounds.into_inner().into_iter().skip(1).unzip();
        let more = More {
            servers: self.tables.len(),
            clients: count,
            transaction_objects: self.draw.count,
            span: self.draw.span,
            aborts: aborts.iter().sum(),
            distribution: Distribution::of(&whole),
        };
        Ok(Measured { whole, commits: Figures::of(&commits), more })
    }
}

/// Returns the choice of the run's options among `objects` objects of each table.
fn draw(bench: &Bench, among: Among, objects: u64) -> Result<Draw, Fail> {
    let (tables, count) = (usize::from(bench.servers), bench.transacting.objects);
    let span = bench.transacting.span.map_or(tables, usize::from);
    let draw = Draw { among, tables, objects, span, count };
    draw.check()?;
    Ok(draw)
}

/// Describes the objects of a transaction.
fn about(draw: &Draw, size: usize) -> String {
    let Draw { tables, objects, span, count, .. } = draw;
    format!(
        "transactions that read and write {count} objects of {size} B on {span} of {tables} \
         servers, {objects} on each"
    )
}

/// Fills one table for each server with objects of `size` bytes.
fn fill(bench: &mut Bench, draw: &Draw, size: usize) -> Result<Vec<Filled>, Fail> {
    let shape = Shape { objects: draw.objects, size, key: KEY };
    (0..draw.tables).map(|number| Filled::fill(bench, number, shape)).collect()
}

/// Runs `transactionDistRandom`: the distribution of the times of one client's transactions.
pub(super) fn dist_random(bench: &mut Bench, name: &str) -> Result<(), Fail> {
    for size in bench.sizes(&[100]) {
        let draw = draw(bench, Among::All, bench.objects(size))?;
        bench.report.begin(format!(
            "{name}: times of the commits of {}, and of the whole transactions",
            about(&draw, size)
        ));
        let bytes = draw.count * size;
        let tables = fill(bench, &draw, size)?;
        let deal = Deal { tables: &tables, draw, change: Change::Overwrite, size };
        for transport in bench.transports.clone() {
            let measured = deal.measure(bench, &transport, 1, &|| Ok(()))?;
            let commits = Row::new(name, &transport, Some(bytes), &measured.commits);
            bench.report.row_with(commits, &Distribution::of(&measured.commits))?;
            let row = measured.row(format!("{name}.whole"), &transport, bytes);
            bench.report.row_with(row, &measured.more)?;
        }
        bench.report.end()?;
        tables.into_iter().try_for_each(Filled::end)?;
    }
    Ok(())
}

/// Runs `transactionThroughput`: commits a second of clients that share no object.
pub(super) fn throughput(bench: &mut Bench, name: &str) -> Result<(), Fail> {
    let own = |_: u64, clients: usize| Among::Own(clients as u64);
    by_clients(bench, (name, "the clients share no object"), &own)
}

/// Runs `transactionContention`: commits a second of clients that use the same popular objects.
pub(super) fn contention(bench: &mut Bench, name: &str) -> Result<(), Fail> {
    let popular = |objects: u64, _: usize| Among::Popular(Zipf::new(objects));
    by_clients(bench, (name, "some objects are popular (YCSB's Zipfian distribution)"), &popular)
}

/// Measures overwrites with each number of clients. `among` returns the choice of the clients for
/// the number of objects of a table and that of clients.
fn by_clients(
    bench: &mut Bench,
    (name, drawn): (&str, &str),
    among: &dyn Fn(u64, usize) -> Among,
) -> Result<(), Fail> {
    for size in bench.sizes(&[100]) {
        let objects = bench.objects(size);
        let most = bench.clients.iter().copied().max().unwrap_or(1);
        let drawing = draw(bench, among(objects, most), objects)?;
        bench.report.begin(format!(
            "{name}: commits of {}; {drawn}; by the number of clients",
            about(&drawing, size)
        ));
        let tables = fill(bench, &drawing, size)?;
        for transport in bench.transports.clone() {
            for count in bench.clients.clone() {
                let draw = draw(bench, among(objects, count), objects)?;
                let deal = Deal { tables: &tables, draw, change: Change::Overwrite, size };
                report(bench, name, &deal, (&transport, count), &|| Ok(()))?;
            }
        }
        bench.report.end()?;
        tables.into_iter().try_for_each(Filled::end)?;
    }
    Ok(())
}

/// Measures the transactions of `deal` with `count` clients over a transport, and adds the row.
fn report(
    bench: &mut Bench,
    name: &str,
    deal: &Deal<'_>,
    (transport, count): (&str, usize),
    check: &dyn Fn() -> Result<(), Fail>,
) -> Result<(), Fail> {
    let measured = deal.measure(bench, transport, count, check)?;
    let bytes = deal.draw.count * deal.size;
    let row = measured.row(format!("{name}.{count}"), transport, bytes).under_load();
    bench.report.row_with(row, &measured.more)
}

/// Runs `transaction_collision`: transfers between the same few accounts, whose sum is checked
/// behind each round.
pub(super) fn collision(bench: &mut Bench, name: &str) -> Result<(), Fail> {
    let size = size_of::<i64>();
    let draw = draw(bench, Among::All, bench.objects(size))?;
    let (accounts, servers) = (draw.objects, draw.tables);
    bench.report.begin(format!(
        "{name}: transfers between {} of {accounts} accounts on each of {servers} servers, by the \
         number of clients; the sum of all accounts is checked",
        draw.count
    ));
    let shape = Shape { objects: accounts, size, key: KEY };
    let fill = |number| Filled::fill_with(bench, number, shape, &BALANCE.to_le_bytes());
    let tables = (0..servers).map(fill).collect::<Result<Vec<_>, Fail>>()?;
    let store = bench.store(&[])?;
    let expected = BALANCE * (accounts * servers as u64) as i64;
    let check = || match sum(&store, &tables)? {
        sum if sum == expected => Ok(()),
        sum => Err(Fail::new(format!(
            "the sum of all accounts is {sum}, and it was {expected} at first: transactions were \
             not atomic"
        ))
        .next("report this bug with the options of the run")),
    };
    let deal = Deal { tables: &tables, draw, change: Change::Transfer, size };
    for transport in bench.transports.clone() {
        for count in bench.clients.clone() {
            report(bench, name, &deal, (&transport, count), &check)?;
        }
        let sum = sum(&store, &tables)? as f64;
        let test = format!("{name}.sum");
        bench.report.row(Row::value(test, &transport, sum, "in all accounts"))?;
    }
    bench.report.end()?;
    tables.into_iter().try_for_each(Filled::end)
}

/// Returns the sum of all accounts.
fn sum(store: &Store, tables: &[Filled]) -> Result<i64, Fail> {
    let mut sum = 0;
    for filled in tables {
        let table = store.raw().table_by_id(filled.table);
        for number in 0..filled.shape.objects {
            let found = table.get_with(&key(number, filled.shape.key), |_, value| balance(value));
            let found = found.map_err(|error| store.explain(error, "a read of an account"))?;
            let missing = || {
                Fail::new(format!("account {number} is absent or holds no balance"))
                    .next("report this bug with the options of the run")
            };
            sum += found.flatten().ok_or_else(missing)?;
        }
    }
    Ok(sum)
}
