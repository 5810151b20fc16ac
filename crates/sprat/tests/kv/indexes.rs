//! Tables with indexes, of both kinds of client, on several servers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sprat::kv::{
    Client, Condition, Error, Found, IndexError, IndexRange, IndexedTable, Object, Source, Version,
    pack,
};

use crate::{Cluster, block_on};

const NAME: Source = Source::Field { number: 0, separator: b',' };
const CITY: Source = Source::Field { number: 1, separator: b',' };

fn keys(table: &IndexedTable<'_>, index: &str, key: &str) -> Vec<String> {
    let found = table.look_up(index, key.as_bytes()).unwrap();
    found.into_iter().map(|it| String::from_utf8(it.key).unwrap()).collect()
}

fn objects_are_found_by_other_keys(transport: &str) {
    let cluster = Cluster::start(transport, "i-found", 3);
    let client = cluster.client();
    let people = client.indexed(&client.create_table("people", 3).unwrap()).unwrap();
    people.put(b"1", b"Ada,Paris").unwrap();
    assert_eq!(people.create_index("by city", CITY).unwrap(), (1, 0));
    people.create_index("by name", NAME).unwrap();
    let names: Vec<_> =
        people.list_indexes().unwrap().into_iter().map(|it| (it.name, it.is_ready)).collect();
    assert_eq!(names, [("by city".to_owned(), true), ("by name".to_owned(), true)]);
    let second = people.put(b"2", b"Bob,Oslo").unwrap();
    people.put(b"3", b"Cleo,Paris").unwrap();
    people.put(b"4", b"no field").unwrap();
    assert_eq!(keys(&people, "by city", "Paris"), ["1", "3"]);
    assert_eq!(keys(&people, "by name", "no field"), ["4"]);
    assert_eq!(keys(&people, "by city", ""), [""; 0]);
    let found = people.look_up("by city", b"Oslo").unwrap();
    assert_eq!((&found[0].value[..], found[0].version), (&b"Bob,Oslo"[..], second));
    // Another client changes what this one knows.
    let other = cluster.client();
    let theirs = other.indexed(&other.table("people").unwrap()).unwrap();
    let third = theirs.put_if(b"2", b"Bob,Paris", Condition::if_version(second)).unwrap();
    let stale = people.put_if(b"2", b"x", Condition::if_version(second)).unwrap_err();
    assert_eq!(stale, IndexError::Store(Error::WrongVersion(third)));
    assert_eq!(keys(&people, "by city", "Paris"), ["1", "2", "3"]);
    assert_eq!(people.remove(b"1").unwrap().map(|it| it > Version(0)), Some(true));
    assert_eq!(people.remove(b"1").unwrap(), None);
    assert_eq!(keys(&theirs, "by city", "Paris"), ["2", "3"]);
    let all = people.range::<&str>("by name", ..).map(|it| it.unwrap().index_key);
    assert_eq!(all.collect::<Vec<_>>(), [&b"Bob"[..], b"Cleo", b"no field"]);
    let some = people.prefix("by city", b"Pa").count();
    assert_eq!(some, 2);
    theirs.drop_index("by city").unwrap();
    let gone = people.look_up("by city", b"Paris").unwrap_err();
    assert_eq!(gone, IndexError::NoIndex("by city".into()));
    people.put(b"5", b"Dora,Rome").unwrap();
    assert_eq!(keys(&theirs, "by name", "Dora"), ["5"]);
    // A table of the same name has other indexes.
    client.drop_table("people").unwrap();
    let people = client.indexed(&client.create_table("people", 3).unwrap()).unwrap();
    assert_eq!(people.list_indexes().unwrap(), []);
    let none = client.indexed(&client.table_by_id(sprat::kv::TableId(999))).unwrap_err();
    assert_eq!(none, IndexError::Store(Error::TableDoesntExist));
}

/// An index of many objects that exist, and then the order of their numbers.
fn many_objects_are_in_order(transport: &str) {
    let cluster = Cluster::start(transport, "i-many", 2);
    let client = cluster.client();
    let table = client.create_table("many", 2).unwrap();
    const COUNT: u32 = 3000;
    let object = |n: u32| (n.to_be_bytes(), (COUNT - n).to_be_bytes());
    for n in (0..COUNT).filter(|n| n % 3 > 0) {
        table.put(&object(n).0, &object(n).1).unwrap();
    }
    let indexed = client.indexed(&table).unwrap();
    let (objects, skipped) =
        indexed.create_index("by value", Source::Bytes { at: 0, len: 4 }).unwrap();
    assert_eq!((objects, skipped), (2000, 0));
    for n in (0..COUNT).step_by(3) {
        indexed.put(&object(n).0, &object(n).1).unwrap();
    }
    let range = 500_u32.to_be_bytes()..1500_u32.to_be_bytes();
    let found: Vec<_> = indexed.range("by value", range).map(|found| found.unwrap()).collect();
    assert_eq!(found.len(), 1000);
    for (n, found) in (500..1500_u32).zip(&found) {
        assert_eq!(found.index_key, n.to_be_bytes());
        assert_eq!(found.key, (COUNT - n).to_be_bytes());
    }
    // Down from the end, and from both ends until they meet.
    let numbers = |found: Result<Found, IndexError>| {
        let key = found.unwrap().index_key;
        u32::from_be_bytes(key.try_into().expect("four bytes"))
    };
    let down = indexed.range("by value", 500_u32.to_be_bytes()..1500_u32.to_be_bytes());
    assert!(down.rev().map(numbers).eq((500..1500).rev()));
    let mut both = indexed.range("by value", ..200_u32.to_be_bytes()).map(numbers);
    let (mut first, mut last) = (1, 200);
    while first < last {
        if first % 3 == 0 {
            last -= 1;
            assert_eq!(both.next_back(), Some(last));
        }
        if first < last {
            assert_eq!(both.next(), Some(first));
            first += 1;
        }
    }
    assert_eq!((both.next(), both.next_back()), (None, None));
    let none = indexed.range::<&[u8]>("no such", ..).next_back();
    assert_eq!(none, Some(Err(IndexError::NoIndex("no such".into()))));
}

/// Many objects with one index key, packed keys, and objects that expire.
fn packed_keys_equal_keys_and_objects_that_expire(transport: &str) {
    let cluster = Cluster::start(transport, "i-packed", 1);
    let client = cluster.client();
    let table = client.indexed(&client.create_table("packed", 1).unwrap()).unwrap();
    table.create_index("tag", Source::Packed { number: 1 }).unwrap();
    for n in 0..300_u32 {
        let value = pack(&[b"unused", b"same"], &n.to_be_bytes()).unwrap();
        table.put(&n.to_be_bytes(), &value).unwrap();
    }
    let value = pack(&[b"only one"], b"").unwrap();
    table.put(b"not in the index", &value).unwrap();
    let found = table.look_up("tag", b"same").unwrap();
    let keys = found.iter().map(|it| it.key.clone());
    assert!(keys.eq((0..300_u32).map(|n| n.to_be_bytes().to_vec())));
    let soon = pack(&[b"", b"soon"], b"").unwrap();
    let always = Condition::always();
    table.put_expiring_if(b"e", &soon, Duration::from_millis(1), always).unwrap();
    while !table.look_up("tag", b"soon").unwrap().is_empty() {}
    let later = table.put_expiring_if(b"e", &soon, Duration::MAX, always).unwrap_err();
    assert!(matches!(later, IndexError::Store(Error::LifetimeTooLong(_))));
}

/// Clients add to the same objects at once: none of the changes is lost, and each object keeps its
/// lifetime.
fn updates_meet_others(transport: &str) {
    let cluster = Cluster::start(transport, "i-updates", 2);
    let client = cluster.client();
    let table = client.indexed(&client.create_table("updates", 2).unwrap()).unwrap();
    table.create_index("all", Source::Bytes { at: 0, len: 8 }).unwrap();
    let hour = Duration::from_secs(3600);
    table.put_expiring_if(b"0", b"", hour, Condition::always()).unwrap();
    let longer = |object: Option<&Object>, rest| {
        let value = object.map_or(&[][..], |object| &object.value);
        Some(([value, b"x"].concat(), rest))
    };
    std::thread::scope(|scope| {
        for is_task in [false, true, false] {
            let cluster = &cluster;
            scope.spawn(move || {
                let keys = (0..60).map(|n| [b'0' + n % 3]);
                if is_task {
                    let client = Client::builder(&cluster.coordinator).connect_async().unwrap();
                    block_on(async {
                        let table = client.table("updates").await.unwrap();
                        let table = client.indexed(&table).await.unwrap();
                        for key in keys {
                            table.update_if(&key, Condition::always(), longer).await.unwrap();
                        }
                    });
                } else {
                    let client = cluster.client();
                    let table = client.indexed(&client.table("updates").unwrap()).unwrap();
                    for key in keys {
                        table.update_if(&key, Condition::always(), longer).unwrap();
                    }
                }
            });
        }
    });
    let found = table.look_up("all", b"xxxxxxxx").unwrap();
    assert!(found.iter().map(|it| &it.key[..]).eq([b"0", b"1", b"2"]));
    assert!(found.iter().all(|it| it.value == [b'x'; 60]));
    let (_, rest) = table.table().read_expiring(b"0").unwrap().unwrap();
    assert!(rest.is_some_and(|rest| rest <= hour && rest > hour / 2), "{rest:?}");
    let (_, rest) = table.table().read_expiring(b"1").unwrap().unwrap();
    assert_eq!(rest, None);
    let version = table.update_if(b"1", Condition::if_exists(), |_, _| None).unwrap();
    assert_eq!(version, None);
    let absent = table.update_if(b"none", Condition::if_exists(), longer).unwrap_err();
    assert_eq!(absent, IndexError::Store(Error::ObjectDoesntExist));
    let exists = table.update_if(b"1", Condition::if_absent(), longer).unwrap_err();
    assert!(matches!(exists, IndexError::Store(Error::ObjectExists(_))));
}

/// Several clients change the same objects while others look: no object has two cities.
fn clients_at_once_keep_an_index_exact(transport: &str) {
    let cluster = Cluster::start(transport, "i-many-clients", 2);
    let client = cluster.client();
    let table = client.indexed(&client.create_table("busy", 2).unwrap()).unwrap();
    table.create_index("by city", CITY).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..3_u32 {
            let (cluster, stop) = (&cluster, &stop);
            scope.spawn(move || {
                let client: Client = cluster.client();
                let table = client.indexed(&client.table("busy").unwrap()).unwrap();
                for n in 0..150_u32 {
                    let (key, city) = (n * 7 % 20, (n + writer) % 5);
                    let value = format!("{writer}-{n},{city}");
                    table.put(&key.to_be_bytes(), value.as_bytes()).unwrap();
                    if n % 4 == 0 {
                        table.remove(&(n % 20).to_be_bytes()).unwrap();
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
        while !stop.load(Ordering::Relaxed) {
            for city in 0..5_u8 {
                let city = [b'0' + city];
                for found in table.look_up("by city", &city).unwrap() {
                    assert!(found.value.ends_with(&[b',', city[0]]));
                }
            }
        }
    });
    let objects: BTreeMap<_, _> = table.table().scan().map(Result::unwrap).collect();
    let indexed: BTreeMap<_, _> = table
        .range::<&str>("by city", ..)
        .map(|found| found.map(|it| (it.key, it.value)).unwrap())
        .collect();
    assert!(indexed.into_iter().eq(objects.into_iter().map(|(key, it)| (key, it.value))));
}

fn transactions_keep_indexes(transport: &str) {
    let cluster = Cluster::start(transport, "i-commit", 3);
    let client = cluster.client();
    let people = client.indexed(&client.create_table("people", 3).unwrap()).unwrap();
    let plain = client.create_table("plain", 3).unwrap();
    let cities = client.indexed(&client.create_table("cities", 3).unwrap()).unwrap();
    people.create_index("by city", CITY).unwrap();
    cities.create_index("by name", NAME).unwrap();
    people.put(b"1", b"Ada,Paris").unwrap();
    let moved = client.transact(|transaction| {
        let ada = transaction.get(&people, b"1")?.expect("Ada");
        transaction.put(&people, b"1", b"Ada,Oslo")?;
        transaction.put(&people, b"2", b"Bob,Oslo")?;
        transaction.put(&cities, b"o", b"Oslo,2")?;
        transaction.put(&plain, b"k", b"v")?;
        // The transaction sees its changes, look-ups do not.
        assert_eq!(transaction.get(&people, b"2")?.map(|it| it.value), Some(b"Bob,Oslo".to_vec()));
        assert!(keys(&people, "by city", "Oslo").is_empty());
        Ok::<_, Error>(ada.value)
    });
    assert_eq!(moved.unwrap(), b"Ada,Paris");
    assert_eq!(
        (keys(&people, "by city", "Oslo"), keys(&people, "by city", "Paris")),
        (vec!["1".to_owned(), "2".to_owned()], Vec::new())
    );
    assert_eq!(keys(&cities, "by name", "Oslo"), ["o"]);
    // A conflict with what was read changes nothing, and names the object.
    let mut stale = client.transaction();
    stale.get(&people, b"2").unwrap();
    stale.put(&people, b"3", b"Cleo,Oslo").unwrap();
    stale.remove(&people, b"2").unwrap();
    people.put(b"2", b"Bob,Rome").unwrap();
    let objects: Vec<_> = stale.objects().iter().map(|(_, key)| key.to_vec()).collect();
    let Err(Error::Conflict { part, .. }) = stale.commit() else { panic!("no conflict") };
    assert_eq!(
        (&objects[part][..], keys(&people, "by city", "Oslo")),
        (&b"2"[..], vec!["1".to_owned()])
    );
    let mut checked = client.transaction();
    checked.check(&people, b"1", Condition::if_absent()).unwrap();
    checked.put(&people, b"1", b"x,y").unwrap();
    assert!(matches!(checked.commit(), Err(Error::Conflict { part: 0, .. })));
    // Started commits end with this call; the versions are those of written objects.
    let mut started = client.transaction();
    started.put(&people, b"4", b"Dora,Rome").unwrap();
    started.remove(&people, b"1").unwrap();
    let committed = started.start_commit().wait().unwrap();
    assert_eq!(committed.versions.len(), 1);
    let found = people.look_up("by city", b"Rome").unwrap();
    assert_eq!(found[1].version, committed.versions[0]);
    let mut long = client.transaction();
    long.put(&people, b"5", &[b',', 1].repeat(600)).unwrap();
    long.put(&people, b"6", &[&b","[..], &[b'x'; 1025]].concat()).unwrap();
    assert_eq!(long.commit(), Err(Error::IndexKeyTooLong(1025)));
    let mut nothing = client.transaction();
    nothing.remove(&people, b"none").unwrap();
    assert_eq!(nothing.commit().unwrap().versions, []);
}

/// As many objects as a transaction can have with their entries.
fn a_transaction_fills_an_empty_index(transport: &str) {
    let cluster = Cluster::start(transport, "i-fill", 2);
    let client = cluster.client();
    let people = client.indexed(&client.create_table("people", 2).unwrap()).unwrap();
    people.create_index("by city", CITY).unwrap();
    let all: Vec<_> =
        (0..200).map(|n| (format!("{n}"), format!("{n},{:03}", n * 7 % 200))).collect();
    for round in 0..2 {
        let mut transaction = client.transaction();
        for (key, value) in &all {
            transaction.put(&people, key.as_bytes(), value.as_bytes()).unwrap();
        }
        assert_eq!(transaction.commit().unwrap().versions.len(), 200, "{round}");
        let found = people.range::<&str>("by city", ..).map(|it| it.unwrap().index_key);
        assert!(found.eq((0..200).map(|n| format!("{n:03}").into_bytes())));
    }
    let mut transaction = client.transaction();
    for n in 0..256 {
        transaction.put(&people, format!("{n}").as_bytes(), format!("{n},y").as_bytes()).unwrap();
    }
    let too_many = transaction.commit().unwrap_err();
    assert!(matches!(too_many, Error::BadTransaction(257..)), "{too_many:?}");
}

fn indexes_of_asynchronous_programs(transport: &str) {
    let cluster = Cluster::start(transport, "i-async", 2);
    let client = Client::builder(&cluster.coordinator).connect_async().unwrap();
    block_on(async {
        let table = client.create_table("people", 2).await.unwrap();
        let people = client.indexed(&table).await.unwrap();
        people.put(b"1", b"Ada,Paris").await.unwrap();
        assert_eq!(people.create_index("by city", CITY).await.unwrap(), (1, 0));
        let absent = Condition::if_absent();
        people.put_if(b"2", b"Bob,Oslo", absent).await.unwrap();
        people.put_if(b"2", b"Bob,Rome", absent).await.unwrap_err();
        people.put_expiring_if(b"3", b"Cleo,Oslo", Duration::ZERO, absent).await.unwrap();
        let found = people.look_up("by city", b"Oslo").await.unwrap();
        assert_eq!(found.into_iter().map(|it| it.key).collect::<Vec<_>>(), [b"2"]);
        assert_eq!(people.range("by city", "A".."Z").await.unwrap().len(), 2);
        let last = people.page_back("by city", IndexRange::new::<&str>(..), 1).await.unwrap();
        assert_eq!(last.found.into_iter().map(|it| it.key).collect::<Vec<_>>(), [b"1"]);
        let rest = people.page_back("by city", last.rest.unwrap(), 9).await.unwrap();
        assert_eq!(rest.found.into_iter().map(|it| it.key).collect::<Vec<_>>(), [b"2"]);
        assert!(people.remove(b"1").await.unwrap().is_some());
        assert_eq!(people.range::<&str>("by city", ..).await.unwrap().len(), 1);
        assert_eq!(people.list_indexes().await.unwrap().len(), 1);
        let moved = client.transact(|transaction| {
            let people = &people;
            async move {
                let bob = transaction.get(people, b"2").await?.expect("Bob");
                transaction.put(people, b"2", b"Bob,Rome")?;
                transaction.put(people, b"7", b"Gus,Rome")?;
                Ok::<_, Error>(bob.value)
            }
        });
        assert_eq!(moved.await.unwrap(), b"Bob,Oslo");
        let found = people.look_up("by city", b"Rome").await.unwrap();
        assert_eq!(found.into_iter().map(|it| it.key).collect::<Vec<_>>(), [b"2", b"7"]);
        let stale = client.transaction();
        stale.get(&people, b"7").await.unwrap();
        stale.remove(&people, b"7").unwrap();
        people.put(b"7", b"Gus,Oslo").await.unwrap();
        assert!(matches!(stale.commit().await, Err(Error::Conflict { part: 0, .. })));
        people.remove(b"7").await.unwrap();
        people.drop_index("by city").await.unwrap();
        let gone = people.look_up("by city", b"Oslo").await.unwrap_err();
        assert_eq!(gone, IndexError::NoIndex("by city".into()));
    });
}

macro_rules! over {
    ($name:ident, $transport:literal) => {
        mod $name {
            over!(@ $transport, objects_are_found_by_other_keys, many_objects_are_in_order,
                packed_keys_equal_keys_and_objects_that_expire,
                clients_at_once_keep_an_index_exact, updates_meet_others, transactions_keep_indexes,
                a_transaction_fills_an_empty_index, indexes_of_asynchronous_programs);
        }
    };
    (@ $transport:literal, $($test:ident),*) => {
        $(#[test]
        fn $test() {
            super::$test($transport);
        })*
    };
}

over!(shm, "fast+shm");
over!(tcp, "tcp");
