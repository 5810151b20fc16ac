//! Tests of transactions on tables with indexes.

use super::*;
use crate::message::Status;

/// Returns a part of a transaction that has not read the object.
fn unread<'a>(key: &'a [u8], change: Planned<'a>, rules: RejectRules) -> Part<'a> {
    Part { part: TransactionPart { table: TABLE, key, rules, change }, read: None }
}

fn write(value: &[u8]) -> Planned<'_> {
    Planned::Write(value, None)
}

async fn commit_all(fake: &Fake, parts: &[Part<'_>]) -> Result<Vec<Version>, client::Error> {
    commit(fake, &[of(fake)], parts).await
}

/// Makes random transactions, of objects that they have read or not. Of an object of another table
/// too, which must not disturb.
async fn transact_at_random(fake: &Fake, mut rng: Rng, count: usize, keys: u64) {
    for _ in 0..count {
        let mut names: Vec<u64> = (0..1 + rng.below(6)).map(|_| rng.below(keys)).collect();
        names.sort_unstable();
        names.dedup();
        let names: Vec<_> = names.iter().map(|n| alloc::format!("key {n}").into_bytes()).collect();
        let values: Vec<_> = names
            .iter()
            .map(|_| alloc::format!("{},{}", rng.below(7), rng.below(1 << 30)).into_bytes())
            .collect();
        let keys: Vec<_> = names.iter().map(|name| (TABLE, &name[..])).collect();
        let read = fake.read(&keys).await.unwrap();
        let mut parts = Vec::new();
        for ((key, value), seen) in names.iter().zip(&values).zip(&read) {
            let change = match rng.below(5) {
                0 => Planned::Remove,
                1 => Planned::Check,
                _ => write(value),
            };
            let mut part = unread(key, change, ANY);
            if rng.chance(500_000) {
                let version = seen.as_ref().map_or(Version(0), |seen| seen.0);
                part.part.rules = tree::unchanged(version);
                part.read = Some(seen.as_ref().map(|(version, value)| (*version, &value[..])));
            } else if rng.chance(200_000) {
                part.part.rules = tree::unchanged(Version(0));
            }
            parts.push(part);
        }
        let other =
            TransactionPart { table: TableId(9), key: b"k", rules: ANY, change: write(b"v") };
        if rng.chance(200_000) {
            parts.insert(0, Part { part: other, read: None });
        }
        match commit_all(fake, &parts).await {
            Ok(versions) => assert_eq!(versions.len(), parts.len()),
            Err(client::Error::Unknown) => {}
            Err(client::Error::Conflict { part, .. }) => {
                assert!(parts[part].part.rules != ANY, "nothing else has a condition");
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[test]
fn transactions_keep_the_entries_of_their_objects() {
    for seed in 0..60 {
        let mut world = World::new(seed);
        let clients: Vec<Fake> =
            (0..3).map(|i| world.client(if seed % 2 == 0 { 0 } else { i * 20_000 })).collect();
        world.only(create(&clients[0], "first", FIRST, 100));
        world.only(create(&clients[0], "second", SECOND, 200));
        let mut rng = Rng::seeded(seed);
        let mut tasks: Vec<Task<'_>> = Vec::new();
        for fake in &clients {
            tasks.push(Box::pin(transact_at_random(fake, rng.fork(), 60, 40)));
            tasks.push(Box::pin(change_at_random(fake, rng.fork(), 60, 40)));
        }
        world.run(tasks);
        world.check();
    }
}

/// A leaf that many entries of one transaction make too large is split afterwards, and so is the
/// one that is left.
#[test]
fn a_transaction_adds_more_entries_than_a_leaf_has_room_for() {
    for count in [2, 7, 100, 250] {
        let mut world = World::new(count as u64);
        let client = world.client(0);
        world.only(create(&client, "first", FIRST, 200));
        for round in 0..2 {
            let keys: Vec<_> = (0..count).map(|n| alloc::format!("key {n:03}")).collect();
            let values: Vec<_> =
                (0..count).map(|n| alloc::format!("{:03}", (n * 7 + round) % count)).collect();
            let parts: Vec<Part<'_>> = keys
                .iter()
                .zip(&values)
                .map(|(key, value)| unread(key.as_bytes(), write(value.as_bytes()), ANY))
                .collect();
            match world.only(commit_all(&client, &parts)) {
                Ok(versions) => assert_eq!(versions.len(), count),
                // With the leaves of the old keys these are too many objects.
                Err(client::Error::BadTransaction(_)) => assert!(round > 0 && count == 250),
                Err(error) => panic!("{error:?}"),
            }
            world.check();
        }
        let store = world.store.borrow();
        let nodes = store.objects.iter().filter(|((table, _), _)| *table == NODES);
        for ((_, key), (_, bytes)) in nodes.filter(|((_, key), _)| index_of_node(key).is_some()) {
            let node = Node::parse(bytes).unwrap();
            assert!(bytes.len() <= 200 || node.len() <= 2 || node.level > 0, "{key:?} {node:?}");
        }
    }
}

#[test]
fn a_condition_that_does_not_hold_names_its_part_and_changes_nothing() {
    let mut world = World::new(1);
    let client = world.client(0);
    world.only(create(&client, "first", FIRST, 100));
    let versions = world.only(commit_all(
        &client,
        &[unread(b"a", write(b"1"), ANY), unread(b"b", write(b"2"), ANY)],
    ));
    let versions = versions.unwrap();
    let absent = RejectRules { exists: true, ..ANY };
    let parts = |rules| [unread(b"new", write(b"3"), ANY), unread(b"b", Planned::Remove, rules)];
    let refused = world.only(commit_all(&client, &parts(absent)));
    let conflict =
        client::Error::Conflict { part: 1, why: Status::ObjectExists, version: versions[1] };
    assert_eq!(refused, Err(conflict));
    // What was read is out of date.
    let mut stale = parts(tree::unchanged(versions[0]));
    stale[1].read = Some(Some((versions[0], b"1")));
    let refused = world.only(commit_all(&client, &stale));
    let conflict =
        client::Error::Conflict { part: 1, why: Status::WrongVersion, version: versions[1] };
    assert_eq!(refused, Err(conflict));
    let long = vec![b'x'; MAX_INDEX_KEY + 1];
    let refused = world.only(commit_all(&client, &[unread(b"a", write(&long), ANY)]));
    assert_eq!(refused, Err(client::Error::IndexKeyTooLong(MAX_INDEX_KEY + 1)));
    assert_eq!(world.only(all(&client, "first", Range::prefix(b""), 9)).len(), 2);
    // The version of a removed object is the one that it had.
    let removed = world.only(commit_all(&client, &parts(ANY))).unwrap();
    assert_eq!(removed[1], versions[1]);
    world.check();
}

/// An object that the program has read is not read again, and an entry that stays is no part.
#[test]
fn a_read_object_with_its_old_key_takes_one_commit_of_two_objects() {
    let mut world = World::new(1);
    let client = world.client(0);
    world.only(create(&client, "first", FIRST, 100));
    let versions = world.only(commit_all(&client, &[unread(b"a", write(b"1,x"), ANY)])).unwrap();
    let (reads, parts) = (world.store.borrow().reads, world.store.borrow().parts);
    let mut again = unread(b"a", write(b"1,y"), tree::unchanged(versions[0]));
    again.read = Some(Some((versions[0], b"1,x")));
    world.only(commit_all(&client, &[again])).unwrap();
    let store = world.store.borrow();
    // The object and a copy of the catalog; that of the first commit may be another one.
    assert!(store.reads <= reads + 1);
    assert_eq!(store.parts, parts + 2);
}

/// A new object is not read. One that exists is refused, and keeps its entries.
#[test]
fn an_object_that_must_not_exist_is_not_read() {
    fn insert<'a>(key: &'a [u8], value: &'a [u8]) -> [Part<'a>; 1] {
        [unread(key, write(value), tree::unchanged(Version(0)))]
    }
    let mut world = World::new(1);
    let client = world.client(0);
    world.only(create(&client, "first", FIRST, 10_000));
    let versions = world.only(commit_all(&client, &insert(b"a", b"1,x"))).unwrap();
    let reads = world.store.borrow().reads;
    for n in 0..20_u8 {
        world.only(commit_all(&client, &insert(&[n], b"2,x"))).unwrap();
    }
    // The eight copies of the catalog at most.
    assert!(world.store.borrow().reads <= reads + 8);
    let conflict =
        client::Error::Conflict { part: 0, why: Status::ObjectExists, version: versions[0] };
    assert_eq!(world.only(commit_all(&client, &insert(b"a", b"3,x"))), Err(conflict.clone()));
    // A removal reads its object: nothing is committed for one that does not exist.
    let remove = [unread(b"a", Planned::Remove, tree::unchanged(Version(0)))];
    assert_eq!(world.only(commit_all(&client, &remove)), Err(conflict));
    assert_eq!(world.only(all(&client, "first", Range::prefix(b""), 99)).len(), 21);
    world.check();
}

/// A leaf that is edited so that it has these entries only, each of `len` bytes with its key: first
/// it has others, of which one transaction removes all but two while it adds the two.
fn becomes_small(node_bytes: u32, before: &[(&str, usize)], after: &[(&str, &str, usize)]) {
    let mut world = World::new(1);
    let client = world.client(0);
    world.only(create(&client, "first", FIRST, node_bytes));
    let value = |key: &str, len: usize| alloc::format!("{key}{}", "x".repeat(len - key.len()));
    // Other leaves, so that the one in question is not the root.
    for n in 0..40 {
        let (key, value) = (alloc::format!("b{n}"), value(&alloc::format!("b{n:02}"), 60));
        let parts = [unread(key.as_bytes(), write(value.as_bytes()), ANY)];
        world.only(commit_all(&client, &parts)).unwrap();
    }
    for (key, len) in before {
        let parts = (key.as_bytes(), value(key, *len));
        let parts = [unread(parts.0, write(parts.1.as_bytes()), ANY)];
        world.only(commit_all(&client, &parts)).unwrap();
    }
    let values: Vec<_> = after.iter().map(|(_, index_key, len)| value(index_key, *len)).collect();
    let parts: Vec<Part<'_>> = after
        .iter()
        .zip(&values)
        .map(|((key, ..), value)| unread(key.as_bytes(), write(value.as_bytes()), ANY))
        .collect();
    let commits = world.store.borrow().commits;
    world.only(commit_all(&client, &parts)).unwrap();
    assert!(world.store.borrow().commits < commits + 20, "it does not try for ever");
    world.check();
}

/// The master refuses edits that make a leaf small, also if the added entries alone would make it
/// too large.
#[test]
fn a_leaf_becomes_small_by_edits_that_add_more_than_it_has_room_for() {
    let before: Vec<_> = (0..13).map(|n| alloc::format!("c{n:02}")).collect();
    let before: Vec<_> = before.iter().map(|key| (&key[..], 60)).collect();
    let mut after: Vec<(&str, &str, usize)> =
        before[..11].iter().map(|(key, _)| (*key, "a", 60)).collect();
    after.push((before[11].0, "cx", 62));
    after.push((before[12].0, "cy", 62));
    for node_bytes in (600..1400).step_by(20) {
        becomes_small(node_bytes, &before, &after);
    }
    // The only entry of a leaf, which is long, becomes short.
    for len in (600..1000).step_by(20) {
        becomes_small(1000, &[("c", len)], &[("c", "cx", 20)]);
    }
}

/// Two tables with indexes: a leaf of the second one is full, and then its indexes change.
#[test]
fn a_transaction_keeps_the_indexes_of_two_tables() {
    let mut world = World::new(3);
    let [one, two, three] = [world.client(0), world.client(0), world.client(0)];
    let (second, nodes) = (TableId(5), TableId(6));
    let other = |fake| Indexes::new(fake, second, nodes);
    world.only(create(&one, "first", FIRST, 100));
    world.only(async {
        let mut building = other(&two).create("second", FIRST, 100).await.unwrap();
        while !other(&two).build(&mut building).await.unwrap() {}
    });
    for n in 0..60 {
        let (key, value) = (alloc::format!("key {n}"), alloc::format!("{n:02}"));
        let (key, value) = (key.as_bytes(), write(value.as_bytes()));
        let part = |table| TransactionPart { table, key, rules: ANY, change: value };
        let parts = [second, TABLE].map(|table| Part { part: part(table), read: None });
        if n == 30 {
            world.only(async {
                let fake = other(&three);
                let mut building = fake.create("third", SECOND, 100).await.unwrap();
                while !fake.build(&mut building).await.unwrap() {}
            });
        }
        let tables = [of(&one), other(&two)];
        world.only(commit(&one, &tables, &parts)).unwrap();
    }
    world.check();
    for (name, count) in [("second", 60), ("third", 0)] {
        let (mut found, mut rest) = (0, Some(Range::prefix(b"")));
        while let Some(range) = rest {
            let page = world.only(other(&two).look_up(name, range, 1000)).unwrap();
            found += page.found.len();
            rest = page.rest;
        }
        assert_eq!(found, count, "{name}");
    }
}

/// A touch gives an object another version and no entries, which its builder does instead.
#[test]
fn an_index_gets_objects_that_are_touched_while_it_is_built() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let (client, store) = (world.client(0), Rc::clone(&world.store));
        for n in 0..200_u64 {
            let seen = (Version(n + 1), alloc::format!("{:03}", n * 7 % 200).into_bytes());
            let key = alloc::format!("key {n}").into_bytes();
            store.borrow_mut().objects.insert((TABLE, key), seen);
        }
        store.borrow_mut().versions = 200;
        let mut rng = Rng::seeded(seed);
        let touches = async {
            for _ in 0..10 {
                turn().await;
                let mut store = store.borrow_mut();
                let key = alloc::format!("key {}", rng.below(200)).into_bytes();
                store.versions += 1;
                let version = Version(store.versions);
                store.objects.get_mut(&(TABLE, key)).unwrap().0 = version;
            }
        };
        world.run(vec![Box::pin(create(&client, "first", FIRST, 200)), Box::pin(touches)]);
        world.check();
    }
}
