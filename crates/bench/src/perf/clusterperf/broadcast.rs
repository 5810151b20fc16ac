//! The test `broadcast`: the time from a client's write of an object until several other clients
//! have read it and have said so.
//!
//! ```text
//! master   write "document" = n · · · · · · · · · · · read "client 1" … "client N" until all are n
//! client   read "document" until it is n · write "client i" = n
//! ```
//!
//! All of it goes through objects of the store, as in ClusterPerf.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sprat::kv::TableId;
use sprat_sys::clock::Clock;

use super::super::bench::{Bench, one_of_many};
use super::super::measure::{Lane, Sample, in_turns};
use super::super::report::Row;
use super::super::temporary::Temporary;
use crate::fail::Fail;
use crate::store::Store;

/// The key of the object that all clients wait for.
const DOCUMENT: &[u8] = b"document";

/// Runs the test with each number of clients, over all transports.
pub(super) fn run(bench: &mut Bench) -> Result<(), Fail> {
    bench.report.begin(
        "broadcast: from a write until all clients have read the object and written one of their \
         own, by the number of clients",
    );
    let coordinator = bench.coordinator()?;
    let (temporary, store, table) = Temporary::create(bench, "broadcast")?;
    drop(store);
    for transport in bench.transports.clone() {
        for clients in bench.clients.clone() {
            let at = At { coordinator: &coordinator, transport: &transport, table };
            let lane: Lane<'_> = Box::new(|time| round(at, clients, time));
            let figures = in_turns(&mut [lane], bench.rounds, bench.time)?;
            let name = format!("broadcast.{clients}");
            bench.report.row(Row::new(name, &transport, None, &figures[0]))?;
        }
    }
    temporary.end()?;
    bench.report.end()
}

/// The table that master and clients talk through, and the way to it.
#[derive(Clone, Copy)]
struct At<'a> {
    coordinator: &'a str,
    transport: &'a str,
    table: TableId,
}

impl At<'_> {
    fn open(self) -> Result<Channel, Fail> {
        let store = one_of_many(self.coordinator, self.transport)?;
        Ok(Channel { store, table: self.table })
    }
}

/// A connection to the table.
struct Channel {
    store: Store,
    table: TableId,
}

impl Channel {
    fn write(&self, key: &[u8], number: u64) -> Result<(), Fail> {
        let table = self.store.raw().table_by_id(self.table);
        let written = table.put(key, &number.to_le_bytes());
        written.map(drop).map_err(|error| self.store.explain(error, "a write"))
    }

    /// Returns the number that an object holds, 0 if there is none.
    fn read(&self, key: &[u8]) -> Result<u64, Fail> {
        let table = self.store.raw().table_by_id(self.table);
        let value = table.get_with(key, |_, value| <[u8; 8]>::try_from(value).ok());
        let value = value.map_err(|error| self.store.explain(error, "a read"))?;
        Ok(value.flatten().map_or(0, u64::from_le_bytes))
    }
}

fn own_key(client: usize) -> Vec<u8> {
    format!("client {client}").into_bytes()
}

/// Broadcasts numbers to `clients` clients for `time`, and at least one.
fn round(at: At<'_>, clients: usize, time: Duration) -> Result<Sample, Fail> {
    let (ready, stop) = (Barrier::new(clients + 1), AtomicBool::new(false));
    // The numbers go on from round to round, so that no client takes an old one for new.
    let before = at.open()?.read(DOCUMENT)?;
    let (ready, stop) = (&ready, &stop);
    let client = move |client: usize| {
        // A client that fails must not keep the others at the barrier.
        let channel = at.open().and_then(|channel| {
            channel.read(DOCUMENT)?;
            Ok(channel)
        });
        ready.wait();
        let follow = || {
            let (channel, key, mut last) = (channel?, own_key(client), before);
            while !stop.load(Ordering::Relaxed) {
                let number = channel.read(DOCUMENT)?;
                if number > last {
                    last = number;
                    channel.write(&key, last)?;
                }
            }
            Ok(())
        };
        let followed: Result<(), Fail> = follow();
        // The master must not wait for a client that failed.
        stop.fetch_or(followed.is_err(), Ordering::Relaxed);
        followed
    };
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..clients).map(|number| scope.spawn(move || client(number))).collect();
        let master = at.open();
        ready.wait();
        let sample = master.and_then(|channel| master_loop(&channel, clients, before, time, stop));
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        sample
    })
}

/// Writes one number after the other, and waits for each until all clients have written it.
fn master_loop(
    channel: &Channel,
    clients: usize,
    before: u64,
    time: Duration,
    stop: &AtomicBool,
) -> Result<Sample, Fail> {
    let (clock, mut sample, mut number) = (Clock::new(), Sample::new(), before);
    let begin = clock.now();
    let end = begin.after(time.as_nanos() as u64);
    let mut now = begin;
    while (now < end || sample.operations == 0) && !stop.load(Ordering::Relaxed) {
        number += 1;
        let written = clock.now();
        channel.write(DOCUMENT, number)?;
        for client in 0..clients {
            let key = own_key(client);
            while channel.read(&key)? != number && !stop.load(Ordering::Relaxed) {}
        }
        now = clock.now();
        sample.record(now.since(written), 0);
    }
    sample.elapsed = Duration::from_nanos(now.since(begin));
    Ok(sample)
}
