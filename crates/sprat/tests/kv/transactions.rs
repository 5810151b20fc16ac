//! Transactions of both kinds of client, on tables of several servers.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sprat::kv::{
    Answer, AsyncClient, AsyncTable, AsyncTransaction, Client, Condition, Error, MAX_TRANSACTION,
    MAX_VALUE, Object, Table, Version,
};

use crate::{Cluster, block_on};

/// The accounts of the bank, and the money of each at the start.
const ACCOUNTS: u8 = 12;
const MONEY: u64 = 100;

fn value(object: Option<Object>) -> Vec<u8> {
    object.expect("the object exists").value
}

fn reads_see_the_own_writes(transport: &str) {
    let cluster = Cluster::start(transport, "t-own", 3);
    let client = cluster.client();
    let one = client.create_table("one", 1).unwrap();
    let wide = client.create_table("wide", 3).unwrap();
    let first = wide.put(b"k", b"old").unwrap();
    wide.put(b"gone", b"old").unwrap();
    let mut transaction = client.transaction();
    assert_eq!(transaction.get(&wide, b"k").unwrap().unwrap().version, first);
    transaction.put(&wide, b"k", b"new").unwrap();
    let own = transaction.get(&wide, b"k").unwrap().unwrap();
    assert_eq!((&own.value[..], own.version), (&b"new"[..], Version(0)));
    transaction.remove(&wide, b"gone").unwrap();
    assert_eq!(transaction.get(&wide, b"gone").unwrap(), None);
    assert_eq!(transaction.get(&one, b"k").unwrap(), None, "of another table");
    transaction.put(&one, b"k", b"1").unwrap();
    for n in 0..20_u8 {
        transaction.put(&wide, &[n], &[n; 1000]).unwrap();
    }
    let last = transaction.objects().last().map(|(table, key)| (*table, key.to_vec()));
    assert_eq!(last, Some((wide.id(), b"gone".to_vec())), "written ones come first");
    assert_eq!(value(wide.get(b"k").unwrap()), b"old", "nothing was sent");
    let versions = transaction.commit().unwrap().versions;
    assert_eq!(versions.len(), 22);
    assert!(versions[0] > first);
    assert_eq!(wide.get(b"k").unwrap().unwrap().version, versions[0]);
    assert_eq!(one.get(b"k").unwrap().unwrap().version, versions[1]);
    for (n, version) in (0..20_u8).zip(&versions[2..]) {
        let object = wide.get(&[n]).unwrap().unwrap();
        assert_eq!((object.value, object.version), (vec![n; 1000], *version));
    }
    assert_eq!(wide.get(b"gone").unwrap(), None);
    // What is given up is not there.
    let mut transaction = client.transaction();
    transaction.put(&one, b"k", b"2").unwrap();
    drop(transaction);
    assert_eq!(value(one.get(b"k").unwrap()), b"1");
    let mut transaction = client.transaction();
    transaction.put_expiring(&one, b"k", b"2", Duration::ZERO).unwrap();
    transaction.put_expiring(&one, b"late", b"2", Duration::from_secs(3600)).unwrap();
    transaction.commit().unwrap();
    assert_eq!(one.get(b"k").unwrap(), None, "it has expired");
    let (_, rest) = one.read_expiring(b"late").unwrap().unwrap();
    assert!(rest.is_some_and(|rest| rest > Duration::from_secs(1800)), "{rest:?}");
}

/// Of two transactions that have read the same object, the second one meets a conflict.
fn the_second_of_two_transactions_meets_a_conflict(transport: &str) {
    let cluster = Cluster::start(transport, "t-conflict", 2);
    let (client, other) = (cluster.client(), cluster.client());
    let table = client.create_table("t", 2).unwrap();
    let theirs = other.table_by_id(table.id());
    let before = table.put(b"k", b"0").unwrap();
    let (mut slow, mut fast) = (client.transaction(), other.transaction());
    assert_eq!(value(slow.get(&table, b"k").unwrap()), b"0");
    assert_eq!(value(fast.get(&theirs, b"k").unwrap()), b"0");
    fast.put(&theirs, b"k", b"fast").unwrap();
    let versions = fast.commit().unwrap().versions;
    assert!(versions[0] > before);
    assert_eq!(value(slow.get(&table, b"k").unwrap()), b"0", "a read is repeated as it was");
    slow.put(&table, b"written", b"slow").unwrap();
    slow.put(&table, b"k", b"slow").unwrap();
    let error = slow.commit().unwrap_err();
    assert!(
        matches!(error, Error::Conflict { part: 1, version, .. } if version == versions[0]),
        "{error:?}"
    );
    assert!(!error.maybe_executed());
    assert_eq!(value(table.get(b"k").unwrap()), b"fast");
    assert_eq!(table.get(b"written").unwrap(), None);
    // A write without a read overwrites what another client has written.
    let mut blind = client.transaction();
    blind.put(&table, b"k", b"blind").unwrap();
    theirs.put(b"k", b"single").unwrap();
    blind.commit().unwrap();
    assert_eq!(value(table.get(b"k").unwrap()), b"blind");
}

/// Operations of another client change what a transaction has read: an object that was absent, one
/// that was removed, one that was written. Transactions with and without writes find it out.
fn what_was_read_must_not_change(transport: &str) {
    let cluster = Cluster::start(transport, "t-read", 2);
    let (client, other) = (cluster.client(), cluster.client());
    let table = client.create_table("t", 2).unwrap();
    let theirs = other.table_by_id(table.id());
    let changes: [fn(&Table<'_>); 4] = [
        |_| (),
        |table| assert!(table.put(b"absent", b"there").is_ok()),
        |table| assert!(table.remove(b"k").is_ok()),
        |table| assert!(table.put(b"k", b"single").is_ok()),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        for writes in [false, true] {
            table.remove(b"absent").unwrap();
            table.put(b"k", b"1").unwrap();
            table.put(b"written", b"0").unwrap();
            let mut transaction = client.transaction();
            assert_eq!(transaction.get(&table, b"absent").unwrap(), None);
            assert_eq!(value(transaction.get(&table, b"k").unwrap()), b"1");
            if writes {
                transaction.put(&table, b"written", b"1").unwrap();
            }
            change(&theirs);
            let is_changed = matches!(transaction.commit(), Err(Error::Conflict { .. }));
            assert_eq!(is_changed, number > 0, "{number} {writes}");
            let expected = if writes && !is_changed { b"1" } else { b"0" };
            assert_eq!(value(table.get(b"written").unwrap()), expected);
        }
    }
}

fn conditions_hold_at_the_commit(transport: &str) {
    let cluster = Cluster::start(transport, "t-check", 2);
    let client = cluster.client();
    let table = client.create_table("t", 2).unwrap();
    let (absent, exists) = (Condition::if_absent(), Condition::if_exists());
    let put = |condition: Condition| {
        let mut transaction = client.transaction();
        transaction.check(&table, b"lock", condition)?;
        transaction.put(&table, b"lock", b"me")?;
        transaction.put(&table, b"other", b"me")?;
        transaction.commit()
    };
    assert!(matches!(put(exists), Err(Error::Conflict { part: 0, .. })));
    assert_eq!(table.get(b"other").unwrap(), None);
    let version = put(absent).unwrap().versions[0];
    assert!(matches!(put(absent), Err(Error::Conflict { version: found, .. }) if found == version));
    assert!(put(Condition::if_version(version)).unwrap().versions[0] > version);
    let error = put(Condition::if_version(version)).unwrap_err();
    assert!(matches!(error, Error::Conflict { part: 0, .. }), "{error}");
    // A condition alone, on an object that is not written.
    let mut transaction = client.transaction();
    transaction.check(&table, b"lock", absent).unwrap();
    assert!(matches!(transaction.commit(), Err(Error::Conflict { part: 0, .. })));
    // It does not get better by a repetition.
    let mut runs = 0;
    let refused = client.transact(|transaction| {
        runs += 1;
        transaction.check(&table, b"lock", absent)
    });
    assert!(matches!(refused, Err(Error::Conflict { .. })) && runs == 1, "{refused:?} {runs}");
    let mut transaction = client.transaction();
    transaction.get(&table, b"lock").unwrap();
    assert!(matches!(transaction.check(&table, b"lock", absent), Err(Error::ObjectExists(_))));
}

fn account(n: u8) -> [u8; 2] {
    [b'a', n]
}

fn money(object: Option<Object>) -> u64 {
    u64::from_be_bytes(value(object).try_into().expect("eight bytes"))
}

/// Moves money between two accounts, if there is enough.
fn transfer(client: &Client, bank: &Table<'_>, from: u8, to: u8, amount: u64) -> bool {
    let transfer = client.transact(|transaction| {
        let here = money(transaction.get(bank, &account(from))?);
        let there = money(transaction.get(bank, &account(to))?);
        let Some(rest) = here.checked_sub(amount) else { return Ok(false) };
        transaction.put(bank, &account(from), &rest.to_be_bytes())?;
        transaction.put(bank, &account(to), &(there + amount).to_be_bytes())?;
        Ok::<bool, Error>(true)
    });
    transfer.unwrap()
}

/// Makes transfers between accounts that follow from `seed`. Returns their number.
fn transfers(client: &Client, bank: &Table<'_>, seed: u8) -> usize {
    let pairs = (0..60_u8).map(|n| (n.wrapping_mul(7 + seed), n.wrapping_mul(3) + seed, n % 30));
    let pairs = pairs.map(|(from, to, amount)| (from % ACCOUNTS, to % ACCOUNTS, amount));
    let pairs = pairs.filter(|(from, to, _)| from != to);
    pairs.filter(|&(from, to, amount)| transfer(client, bank, from, to, amount.into())).count()
}

/// Returns the money of all accounts, by a transaction that only reads.
fn sum(client: &Client, bank: &Table<'_>) -> u64 {
    let sum = client.transact(|transaction| {
        let accounts = (0..ACCOUNTS).map(|n| transaction.get(bank, &account(n)).map(money));
        accounts.sum::<Result<u64, Error>>()
    });
    sum.unwrap()
}

/// Several threads move money at once, and one adds it up meanwhile. The sum stays.
fn a_bank_keeps_its_money(transport: &str) {
    let cluster = Cluster::replicated(transport, "t-bank", 3, 1);
    let client = cluster.client();
    let bank = client.create_table("bank", 3).unwrap();
    for n in 0..ACCOUNTS {
        bank.put(&account(n), &MONEY.to_be_bytes()).unwrap();
    }
    let all = u64::from(ACCOUNTS) * MONEY;
    let (id, over) = (bank.id(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for seed in 0..4 {
            let client = cluster.client();
            threads.push(scope.spawn(move || transfers(&client, &client.table_by_id(id), seed)));
        }
        let (reader, over) = (cluster.client(), &over);
        let sums = scope.spawn(move || {
            let bank = reader.table_by_id(id);
            while !over.load(Ordering::Relaxed) {
                assert_eq!(sum(&reader, &bank), all);
            }
        });
        let moved: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        over.store(true, Ordering::Relaxed);
        assert!(moved > 100, "{moved}");
        sums.join().unwrap();
    });
    assert_eq!(sum(&client, &bank), all);
}

/// Each of several threads counts up. No count is lost, although all meet conflicts.
fn a_counter_of_several_threads(transport: &str) {
    let cluster = Cluster::start(transport, "t-count", 2);
    let client = cluster.client();
    let table = client.create_table("t", 2).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (client, id) = (cluster.client(), table.id());
            scope.spawn(move || {
                let table = client.table_by_id(id);
                for _ in 0..50 {
                    let counted = client.transact(|transaction| {
                        let count = transaction.get(&table, b"n")?.map_or(0, |it| it.value[0]);
                        transaction.put(&table, b"n", &[count + 1])?;
                        transaction.put(&table, b"copy", &[count + 1])
                    });
                    counted.unwrap();
                }
            });
        }
    });
    assert_eq!(value(table.get(b"n").unwrap()), [150]);
    assert_eq!(value(table.get(b"copy").unwrap()), [150]);
}

/// An error of the program's own, as functions have it that call the store.
#[derive(Debug, PartialEq)]
struct Own(Option<Error>);

impl From<Error> for Own {
    fn from(error: Error) -> Self {
        Self(Some(error))
    }
}

fn repetitions_end(transport: &str) {
    let cluster = Cluster::start(transport, "t-end", 2);
    let client = cluster.client();
    let table = client.create_table("t", 2).unwrap();
    table.put(b"n", b"0").unwrap();
    let versioned = client.transact_versioned(|transaction| transaction.put(&table, b"n", b"1"));
    let version = table.get(b"n").unwrap().unwrap().version;
    assert_eq!(versioned.unwrap().1.versions, [version]);
    let mut runs = 0;
    let failed: Result<(), Own> = client.transact(|transaction| {
        runs += 1;
        transaction.put(&table, b"n", b"never")?;
        Err(Own(None))
    });
    assert_eq!((failed, runs), (Err(Own(None)), 1), "the closure's own error ends it at once");
    // Conflicts without end last as long as the timeout, and the closure runs several times.
    client.set_timeout(Duration::from_millis(300));
    let other = cluster.client();
    let theirs = other.table_by_id(table.id());
    let late = client.transact(|transaction| {
        runs += 1;
        transaction.get(&table, b"n")?;
        transaction.put(&table, b"n", b"late")?;
        theirs.put(b"n", b"other").map(|_| ())
    });
    assert!(matches!(late, Err(Error::Conflict { .. } | Error::Deadline { .. })), "{late:?}");
    assert!(runs > 3, "{runs}");
    assert_eq!(value(theirs.get(b"n").unwrap()), b"other");
}

fn limits(transport: &str) {
    let cluster = Cluster::start(transport, "t-limits", 2);
    let client = cluster.client();
    let table = client.create_table("t", 2).unwrap();
    assert!(client.transaction().commit().unwrap().versions.is_empty());
    let started = client.transaction().start_commit();
    assert!(started.wait().unwrap().versions.is_empty());
    // One read is from one time anyway: nothing is sent.
    let mut transaction = client.transaction();
    transaction.get(&table, b"k").unwrap();
    let sent = client.counters().started;
    transaction.commit().unwrap();
    assert_eq!(client.counters().started, sent);
    let mut transaction = client.transaction();
    for n in 0..MAX_TRANSACTION as u32 {
        transaction.put(&table, &n.to_be_bytes(), b"v").unwrap();
    }
    let full = Error::BadTransaction(MAX_TRANSACTION + 1);
    assert_eq!(transaction.put(&table, b"one more", b"v").unwrap_err(), full);
    assert_eq!(transaction.get(&table, b"one more").unwrap_err(), full);
    let versions = transaction.commit().unwrap().versions;
    assert_eq!(versions.len(), MAX_TRANSACTION);
    let mut transaction = client.transaction();
    for n in 0..MAX_TRANSACTION as u32 {
        let object = transaction.get(&table, &n.to_be_bytes()).unwrap().unwrap();
        assert_eq!(object.version, versions[n as usize]);
    }
    transaction.commit().unwrap();

    let long = vec![7; MAX_VALUE];
    let mut transaction = client.transaction();
    for n in 0..3_u32 {
        transaction.put(&table, &n.to_be_bytes(), &long).unwrap();
    }
    let refused = transaction.put(&table, b"more", &long).unwrap_err();
    assert_eq!(refused, Error::TransactionTooLong(4 * MAX_VALUE + 16));
    transaction.commit().unwrap();
    assert_eq!(value(table.get(&2_u32.to_be_bytes()).unwrap()), long);
    let mut transaction = client.transaction();
    let refused = transaction.put(&table, b"k", &vec![7; MAX_VALUE + 1]).unwrap_err();
    assert_eq!(refused, Error::ValueTooLong(MAX_VALUE + 1));
}

/// Transactions on a table that is dropped end, also if another of their tables is there.
fn a_dropped_table(transport: &str) {
    let cluster = Cluster::start(transport, "t-drop", 2);
    let (client, other) = (cluster.client(), cluster.client());
    let gone = client.create_table("gone", 2).unwrap();
    let left = client.create_table("left", 2).unwrap();
    gone.put(b"k", b"v").unwrap();
    let mut reads = client.transaction();
    let mut writes = client.transaction();
    for transaction in [&mut reads, &mut writes] {
        transaction.get(&gone, b"k").unwrap();
        transaction.get(&left, b"k").unwrap();
    }
    writes.put(&gone, b"k", b"w").unwrap();
    writes.put(&left, b"k", b"w").unwrap();
    other.drop_table("gone").unwrap();
    assert_eq!(reads.commit().unwrap_err(), Error::TableDoesntExist);
    assert_eq!(writes.commit().unwrap_err(), Error::TableDoesntExist);
    assert_eq!(left.get(b"k").unwrap(), None);
    let failed = client.transact(|transaction| transaction.get(&gone, b"k"));
    assert_eq!(failed.unwrap_err(), Error::TableDoesntExist);
    left.put(b"k", b"not locked").unwrap();
}

/// Many commits in progress at a time, waited for and by their numbers.
fn started_commits(transport: &str) {
    let cluster = Cluster::start(transport, "t-start", 2);
    let client = cluster.client();
    let table = client.create_table("t", 2).unwrap();
    let begin = |n: u32| {
        let mut transaction = client.transaction();
        let key = n.to_be_bytes();
        for part in [b"x", b"y"] {
            transaction.put(&table, &[&key[..], part].concat(), &key).unwrap();
        }
        transaction.check(&table, b"not there", Condition::if_absent()).unwrap();
        transaction.start_commit()
    };
    let pending: Vec<_> = (0..100).map(begin).collect();
    for commit in pending {
        assert_eq!(commit.wait().unwrap().versions.len(), 2);
    }
    let mut queued: HashSet<_> = (100..200).map(|n| begin(n).queue()).collect();
    queued.insert(client.transaction().start_commit().queue());
    let mut committed = 0;
    while !queued.is_empty() {
        client.turn_and_rest();
        while let Some((id, outcome)) = client.next_completed() {
            assert!(queued.remove(&id));
            let Ok(Answer::Committed(versions)) = outcome else { panic!("{outcome:?}") };
            committed += versions.iter().take(2).filter(|version| **version > Version(0)).count();
        }
    }
    assert_eq!(committed, 200);
    table.put(b"not there", b"there").unwrap();
    let mut late = begin(7);
    let outcome = loop {
        if let Some(outcome) = late.poll() {
            break outcome;
        }
        client.turn_and_rest();
    };
    assert!(matches!(outcome, Err(Error::Conflict { part: 2, .. })), "{outcome:?}");
    // One that is given up is committed or not; its objects are not locked for good.
    begin(8).cancel();
    drop(begin(9));
    for n in [8_u32, 9] {
        table.put(&[&n.to_be_bytes()[..], b"x"].concat(), b"free").unwrap();
    }
}

async fn count(client: &AsyncClient, table: &AsyncTable) -> Result<u8, Error> {
    let body = |transaction: AsyncTransaction| async move {
        let count = transaction.get(table, b"n").await?.map_or(0, |it| it.value[0]);
        transaction.put(table, b"n", &[count + 1])?;
        transaction.put(table, b"copy", &[count + 1])?;
        Ok::<u8, Error>(count + 1)
    };
    client.transact(body).await
}

fn transactions_of_tasks(transport: &str) {
    let cluster = Cluster::start(transport, "t-async", 2);
    let client = Client::builder(&cluster.coordinator).connect_async().unwrap();
    let table = block_on(client.create_table("t", 2)).unwrap();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (client, table) = (client.clone(), table.clone());
            std::thread::spawn(move || {
                (0..50).for_each(|_| assert!(block_on(count(&client, &table)).is_ok()));
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(block_on(table.get(b"copy")).unwrap().unwrap().value, [150]);

    let transaction = client.transaction();
    // Reads at once are those of one transaction, and the first one counts.
    let reads = [b"n", b"n", b"x"].map(|key| transaction.clone().get(&table, key));
    let found: Vec<_> = reads.into_iter().map(|read| block_on(read).unwrap()).collect();
    assert!(found[0] == found[1] && found[0].is_some() && found[2].is_none());
    transaction.put(&table, b"n", b"own").unwrap();
    transaction.put_expiring(&table, b"e", b"1", Duration::from_secs(3600)).unwrap();
    transaction.remove(&table, b"copy").unwrap();
    assert_eq!(block_on(transaction.get(&table, b"n")).unwrap().unwrap().value, b"own");
    assert_eq!(block_on(transaction.get(&table, b"copy")).unwrap(), None);
    assert_eq!(transaction.objects().len(), 4);
    let slow = client.transaction();
    block_on(slow.get(&table, b"n")).unwrap();
    slow.put(&table, b"x", b"1").unwrap();
    let versions = block_on(transaction.commit()).unwrap().versions;
    assert_eq!(versions.len(), 2);
    let conflict = block_on(slow.commit());
    assert!(matches!(conflict, Err(Error::Conflict { part: 1, .. })), "{conflict:?}");
    assert_eq!(block_on(table.get(b"copy")).unwrap(), None);
    assert!(block_on(client.transaction().commit()).unwrap().versions.is_empty());
    let one = client.transaction();
    block_on(one.get(&table, b"n")).unwrap();
    block_on(one.commit()).unwrap();
    let there = &table;
    let refused = block_on(client.transact(|transaction| async move {
        transaction.check(there, b"n", Condition::if_absent())
    }));
    assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    // A runtime with several threads moves futures between them.
    fn is_send<T: Send>(it: T) -> T {
        it
    }
    assert_eq!(block_on(is_send(count(&client, &table))), Ok(b'o' + 1));
}

macro_rules! over {
    ($name:ident, $transport:literal) => {
        mod $name {
            over!(@ $transport, reads_see_the_own_writes,
                the_second_of_two_transactions_meets_a_conflict, what_was_read_must_not_change,
                conditions_hold_at_the_commit, a_bank_keeps_its_money,
                a_counter_of_several_threads, repetitions_end, limits, a_dropped_table,
                started_commits, transactions_of_tasks);
        }
    };
    (@ $transport:literal, $($test:ident),*) => {
        $(
            #[test]
            fn $test() {
                super::$test($transport);
            }
        )*
    };
}

over!(shm, "fast+shm");
over!(udp, "fast+udp");
over!(tcp, "tcp");
