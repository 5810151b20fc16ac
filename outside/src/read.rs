//! Reads of objects by `sprat::kv`, from a cluster in the client's thread.

use std::hint::black_box;

use sprat::kv::{Answer, Client, Condition, Error, Table};
use sprat::server::{CoordinatorOptions, ServerOptions, coordinator, server};

use crate::turns::{Failure, OBJECTS, OPERATIONS, Progress, SIZE, key, locator, meanwhile};

/// Number of reads between two turns of the coordinator, which renews the server's lease.
const COORDINATOR_EVERY: u64 = 16;

pub(crate) fn run() -> Result<(), Failure> {
    let at = locator("coordinator");
    let mut coordinator = coordinator(&CoordinatorOptions::at(&at))?;
    let mut options = ServerOptions::new(&at, &locator("server"));
    options.memory_bytes = 64 << 20;
    let mut server = server(&options)?;
    let client = Client::connect(&at)?;
    let turns = || {
        coordinator.turn();
        server.turn();
    };
    let filled = meanwhile(turns, || {
        let table = loop {
            match client.create_table("outside", 1) {
                // The server has not joined yet.
                Err(Error::TooFewServers) => {}
                other => break other?,
            }
        };
        for index in 0..OBJECTS {
            table.put(&key(index), &[b'v'; SIZE])?;
        }
        Ok::<_, Error>(table)
    });
    let table = filled?;
    for i in 0..OPERATIONS {
        if i.is_multiple_of(COORDINATOR_EVERY) {
            coordinator.turn();
        }
        let size = one_read(table, &key(i * 37 % OBJECTS), || _ = server.turn())?;
        assert_eq!(size, SIZE, "the size of an object");
    }
    // Buffers and tables grow, and sessions open, in a first round that is not counted.
    for counted in [false, true] {
        let mut progress = Progress::default();
        while progress.goes_on() {
            let before = progress.ended;
            if counted {
                read_client(&client, table, &mut progress)?;
                (before..progress.ended).for_each(read_ended);
                read_server(|| _ = server.turn());
            } else {
                turn(&client, table, &mut progress)?;
                server.turn();
            }
            coordinator.turn();
        }
    }
    Ok(())
}

#[inline(never)]
fn one_read(table: Table<'_>, key: &[u8], server: impl FnMut()) -> Result<usize, Error> {
    table.read(key, Condition::always(), |_, value| value.len(), server)
}

#[inline(never)]
fn read_client(client: &Client, table: Table<'_>, progress: &mut Progress) -> Result<(), Error> {
    turn(client, table, progress)
}

#[inline(always)]
fn turn(client: &Client, table: Table<'_>, progress: &mut Progress) -> Result<(), Error> {
    while let Some(i) = progress.next() {
        table.start_get(&key(i * 37 % OBJECTS)).queue();
    }
    client.turn();
    let check = |outcome: Result<Answer<'_>, _>| match outcome {
        Ok(Answer::Object { value, .. }) => Ok(assert_eq!(value.len(), SIZE, "an object's size")),
        Ok(other) => panic!("a read returned {other:?}"),
        Err(error) => Err(error),
    };
    while let Some(checked) = client.next_completed_with(|_, outcome| check(outcome)) {
        checked?;
        progress.ended += 1;
    }
    Ok(())
}

#[inline(never)]
fn read_server(mut turn: impl FnMut()) {
    turn();
}

#[inline(never)]
fn read_ended(number: u64) {
    black_box((number, "read"));
}
