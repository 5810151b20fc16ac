//! Tests of indexes: clients take turns at random, and the trees are compared with the objects.

mod commits;
mod scans;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::vec;
use core::cell::RefCell;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use sprat_proto::Rng;

use super::*;
use crate::btree::edit::Edits;
use crate::btree::leaf::Query;
use crate::btree::node::{Node, Point};
use crate::btree::{COPIES, ROOT, catalog_key, index_of_node, node_key};
use crate::client::Change as Planned;
use crate::message::data::RejectRules;
use crate::types::{MAX_INDEX_KEY, MAX_TRANSACTION};

mod dropped;
mod whole;

const TABLE: TableId = TableId(3);
const NODES: TableId = TableId(4);
const ANY: RejectRules = RejectRules {
    given_version: Version(0),
    doesnt_exist: false,
    exists: false,
    version_le_given: false,
    version_ne_given: false,
};
const FIRST: Source = Source::Field { number: 0, separator: b',' };
const SECOND: Source = Source::Field { number: 1, separator: b',' };

/// The objects of a store that executes each operation at once.
#[derive(Default)]
struct Store {
    objects: BTreeMap<(TableId, Vec<u8>), Seen>,
    versions: u64,
    /// The number of commits, of their parts, of reads and of look-ups.
    commits: u64,
    parts: u64,
    reads: u64,
    look_ups: u64,
    /// The number of changes that one operation made.
    whole: u64,
    /// The number of leaves that those have split.
    splits: u64,
}

impl Store {
    fn commit(&mut self, parts: &[TransactionPart<'_>]) -> Result<Vec<Version>, client::Error> {
        self.commits += 1;
        self.parts += parts.len() as u64;
        assert!(self.commits < 1_000_000, "a client tries for ever");
        if parts.len() > MAX_TRANSACTION {
            return Err(client::Error::BadTransaction(parts.len()));
        }
        let names: BTreeSet<_> = parts.iter().map(|part| (part.table, part.key)).collect();
        assert_eq!(names.len(), parts.len(), "a transaction has each object once");
        let mut edited = Vec::new();
        for (part, it) in parts.iter().enumerate() {
            let seen = self.objects.get(&(it.table, it.key.to_vec()));
            let version = seen.map_or(Version(0), |seen| seen.0);
            if let Err(why) = it.rules.check(version) {
                return Err(client::Error::Conflict { part, why, version });
            }
            edited.push(None);
            if let Planned::Edit(edits) = it.change {
                let leaf = seen.map_or(&[][..], |seen| &seen.1);
                match Edits::parse(edits).expect("intact edits").apply(leaf) {
                    Ok(bytes) => edited[part] = bytes,
                    Err(why) => return Err(client::Error::Conflict { part, why, version }),
                }
            }
        }
        let mut versions = Vec::new();
        for (part, edited) in parts.iter().zip(edited) {
            self.versions += 1;
            let (name, version) = ((part.table, part.key.to_vec()), Version(self.versions));
            match part.change {
                Planned::Check => {}
                Planned::Write(value, _) => _ = self.objects.insert(name, (version, value.into())),
                Planned::Remove => _ = self.objects.remove(&name),
                Planned::Edit(_) => {
                    if let Some(leaf) = edited {
                        self.objects.insert(name, (version, leaf));
                    }
                }
            }
            versions.push(version);
        }
        Ok(versions)
    }
}

/// A client of the store, one of several.
struct Fake {
    store: Rc<RefCell<Store>>,
    rng: RefCell<Rng>,
    state: RefCell<State>,
    /// The part of commits that end with a lost answer, in millionths.
    lost_ppm: u32,
    /// The part of objects that are on the server of the leaf, in millionths.
    near_ppm: u32,
}

/// Lets another task take a turn.
async fn turn() {
    let mut was_here = false;
    poll_fn(
        |_| {
            if core::mem::replace(&mut was_here, true) { Poll::Ready(()) } else { Poll::Pending }
        },
    )
    .await;
}

impl Fake {
    /// Answers a look-up as a server does.
    fn answer(&self, nodes: TableId, key: &[u8], query: &[u8]) -> Option<Seen> {
        let query = Query::parse(query).expect("an intact query");
        let chance = |ppm| self.rng.borrow_mut().chance(ppm);
        self.store.borrow_mut().look_ups += 1;
        let store = self.store.borrow();
        let object = |table, key: &[u8]| store.objects.get(&(table, key.to_vec()));
        let (version, leaf) = object(nodes, key)?;
        // Not all objects are on the server of the leaf.
        let copy = if chance(self.near_ppm) { query.copy } else { (query.copy + 1) % COPIES };
        let catalog = object(nodes, &catalog_key(copy));
        let catalog = catalog.filter(|_| self.near_ppm == 0 || chance(self.near_ppm.max(900_000)));
        let catalog = catalog.map(|(version, _)| (copy, *version));
        let (Some(picked), Some(catalog)) = (query.pick(leaf), catalog) else {
            return Some((*version, Answer::ELSEWHERE.to_vec()));
        };
        let near = |i: usize| {
            let seen = object(query.table, picked.points[i].object);
            let seen = seen.filter(|_| chance(self.near_ppm));
            seen.map(|(version, value)| (*version, &value[..]))
        };
        let mut answer = Vec::new();
        picked.answer(catalog, near, &mut answer);
        Some((*version, answer))
    }
}

impl Objects for Fake {
    async fn read(&self, keys: &[(TableId, &[u8])]) -> Result<Vec<Option<Seen>>, client::Error> {
        let mut seen = Vec::new();
        for &(table, key) in keys {
            // The objects of a multi-read are not read at one time.
            if seen.is_empty() || self.rng.borrow_mut().chance(300_000) {
                turn().await;
            }
            let mut store = self.store.borrow_mut();
            store.reads += 1;
            seen.push(store.objects.get(&(table, key.to_vec())).cloned());
        }
        Ok(seen)
    }

    async fn look_up(
        &self,
        nodes: TableId,
        leaves: &[(&[u8], &[u8])],
    ) -> Result<Vec<Option<Seen>>, client::Error> {
        let mut answers = Vec::new();
        for &(key, query) in leaves {
            turn().await;
            answers.push(self.answer(nodes, key, query));
        }
        Ok(answers)
    }

    async fn change(
        &self,
        _: TableId,
        part: &TransactionPart<'_>,
    ) -> Result<Changed, client::Error> {
        let chance = |ppm| self.rng.borrow_mut().chance(ppm);
        if !chance(self.near_ppm) {
            return Ok(if chance(100_000) { Changed::Apart } else { Changed::Undone });
        }
        turn().await;
        if chance(self.lost_ppm) {
            return Err(client::Error::Unknown);
        }
        let changed = self.store.borrow_mut().change(part, &|| chance(950_000));
        turn().await;
        if chance(self.lost_ppm) { Err(client::Error::Unknown) } else { changed }
    }

    async fn commit(&self, parts: &[TransactionPart<'_>]) -> Result<Vec<Version>, client::Error> {
        turn().await;
        let lost = |fake: &Self| fake.rng.borrow_mut().chance(fake.lost_ppm);
        if lost(self) {
            return Err(client::Error::Unknown);
        }
        let outcome = self.store.borrow_mut().commit(parts);
        turn().await;
        if lost(self) { Err(client::Error::Unknown) } else { outcome }
    }

    async fn scan(
        &self,
        table: TableId,
        from: Cursor,
    ) -> Result<(Vec<Listed>, Option<Cursor>), client::Error> {
        turn().await;
        let store = self.store.borrow();
        let of_table = store.objects.iter().filter(|((of, _), _)| *of == table);
        let listed = of_table.map(|((_, key), seen)| (key.clone(), seen.0, seen.1.clone()));
        _ = from;
        Ok((listed.collect(), None))
    }

    async fn pause(&self, _: u32) -> Result<(), client::Error> {
        let turns = self.rng.borrow_mut().below(5);
        for _ in 0..turns {
            turn().await;
        }
        Ok(())
    }

    fn random(&self) -> u64 {
        self.rng.borrow_mut().below(u64::MAX)
    }

    fn nearest(&self, _: (TableId, &[u8]), among: &[(TableId, &[u8])]) -> Option<usize> {
        let mut rng = self.rng.borrow_mut();
        among.iter().position(|_| rng.chance(300_000))
    }

    fn state<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.borrow_mut())
    }
}

struct World {
    store: Rc<RefCell<Store>>,
    rng: Rng,
}

type Task<'t> = Pin<Box<dyn Future<Output = ()> + 't>>;

impl World {
    fn new(seed: u64) -> Self {
        Self { store: Rc::default(), rng: Rng::seeded(seed) }
    }

    fn client(&mut self, lost_ppm: u32) -> Fake {
        let (store, rng) = (Rc::clone(&self.store), RefCell::new(self.rng.fork()));
        Fake { store, rng, state: RefCell::default(), lost_ppm, near_ppm: 500_000 }
    }

    /// Runs tasks to their ends. They take turns at random.
    fn run(&mut self, mut tasks: Vec<Task<'_>>) {
        let mut context = Context::from_waker(Waker::noop());
        while !tasks.is_empty() {
            let i = self.rng.below(tasks.len() as u64) as usize;
            if tasks[i].as_mut().poll(&mut context).is_ready() {
                drop(tasks.swap_remove(i));
            }
        }
    }

    fn only<T>(&mut self, task: impl Future<Output = T>) -> T {
        let mut result = None;
        self.run(vec![Box::pin(async { result = Some(task.await) })]);
        result.unwrap()
    }

    /// Checks that each index has exactly the entries of the objects, and that no node is left
    /// over. Returns the number of nodes.
    fn check(&self) -> usize {
        let store = self.store.borrow();
        let object = |key: &[u8]| store.objects.get(&(NODES, key.to_vec()));
        let Some((_, bytes)) = object(&catalog_key(0)) else { return 0 };
        let catalog = Catalog::parse(bytes).unwrap();
        let mut nodes = BTreeSet::new();
        for index in &catalog.indexes {
            let mut entries = Vec::new();
            let mut below = vec![(ROOT, Vec::from(b""), None::<Vec<u8>>, u8::MAX)];
            while let Some((id, first, end, level)) = below.pop() {
                let key = node_key((index.number, id));
                assert!(nodes.insert(key), "two ways to a node");
                let (_, bytes) = object(&key).expect("a child exists");
                let node = Node::parse(bytes).unwrap();
                let ordered = |point: Point<'_>| [point.key, b"|", point.object].concat();
                assert!(node.level < level);
                if id != ROOT {
                    assert_eq!((ordered(node.start), node.end.map(ordered)), (first, end));
                }
                let all: Vec<_> = node.entries().collect();
                assert!(all.is_sorted_by(|a, b| a.point < b.point), "sorted");
                assert!(all.iter().all(|entry| node.contains(entry.point)), "in the range");
                if node.level == 0 {
                    let mut of_leaf: Vec<_> = all.iter().map(|entry| entry.point).collect();
                    of_leaf.reverse();
                    entries.extend(of_leaf);
                    continue;
                }
                assert_eq!(node.entry(0).point, node.start);
                for (i, entry) in all.iter().enumerate() {
                    let end = all.get(i + 1).map(|next| next.point).or(node.end).map(ordered);
                    below.push((entry.child, ordered(entry.point), end, node.level));
                }
            }
            let of_table = store.objects.iter().filter(|((table, _), _)| *table == TABLE);
            let mut expected: Vec<_> = of_table
                .filter_map(|((_, object), (_, value))| {
                    Some(Point { key: index.source.key_of(object, value)?, object })
                })
                .collect();
            expected.sort_unstable();
            expected.reverse();
            assert_eq!(entries, expected, "{}", index.name);
        }
        let all = store
            .objects
            .keys()
            .filter(|(table, key)| *table == NODES && index_of_node(key).is_some());
        assert_eq!(all.count(), nodes.len(), "no node is left over");
        nodes.len()
    }
}

fn of(fake: &Fake) -> Indexes<'_, Fake> {
    Indexes::new(fake, TABLE, NODES)
}

async fn create(fake: &Fake, name: &str, source: Source, node_bytes: u32) {
    let mut building = of(fake).create(name, source, node_bytes).await.unwrap();
    while !of(fake).build(&mut building).await.unwrap() {}
}

async fn clean(fake: &Fake) {
    let mut cleaning = Cleaning::default();
    while !of(fake).clean(&mut cleaning).await.unwrap() {}
}

async fn drop_index(fake: &Fake, name: &str) {
    of(fake).drop_index(name).await.unwrap();
    clean(fake).await;
}

/// Returns all that a look-up finds, page by page.
async fn all(fake: &Fake, name: &str, range: Range, most: usize) -> Vec<Found> {
    from_both_ends(fake, name, range, most, 0).await
}

/// Returns all that a look-up finds, page by page: this part of the pages, in millionths, from the
/// end of the range.
async fn from_both_ends(
    fake: &Fake,
    name: &str,
    range: Range,
    most: usize,
    back_ppm: u32,
) -> Vec<Found> {
    let (mut found, mut last, mut rest) = (Vec::new(), Vec::new(), Some(range));
    while let Some(range) = rest {
        let is_back = back_ppm > 0 && fake.rng.borrow_mut().chance(back_ppm);
        let page = match is_back {
            true => of(fake).look_up_back(name, range, most).await.unwrap(),
            false => of(fake).look_up(name, range, most).await.unwrap(),
        };
        assert!(page.found.len() <= most);
        if is_back { &mut last } else { &mut found }.extend(page.found);
        rest = page.rest;
    }
    found.extend(last.into_iter().rev());
    found
}

/// Makes random changes of a few objects.
async fn change_at_random(fake: &Fake, mut rng: Rng, count: usize, keys: u64) {
    for _ in 0..count {
        let key = alloc::format!("key {}", rng.below(keys));
        let long = "x".repeat(rng.below(12) as usize);
        let value = alloc::format!("{}{long},{}", rng.below(7), rng.below(1 << 30));
        let change = match rng.below(5) {
            0 | 1 => Change::Remove,
            _ => Change::Write(value.as_bytes(), None),
        };
        match of(fake).change(key.as_bytes(), change, ANY).await {
            Ok(_) | Err(Error::Store(client::Error::Unknown)) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[test]
fn indexes_have_exactly_the_entries_of_the_objects() {
    let (mut whole, mut splits) = (0, 0);
    for seed in 0..60 {
        let mut world = World::new(seed);
        let clients: Vec<Fake> =
            (0..3).map(|i| world.client(if seed % 2 == 0 { 0 } else { i * 20_000 })).collect();
        let node_bytes = 150 + world.rng.below(150) as u32;
        world.only(create(&clients[0], "first", FIRST, node_bytes));
        let mut tasks: Vec<Task<'_>> = Vec::new();
        for client in &clients {
            tasks.push(Box::pin(change_at_random(client, world.rng.fork(), 150, 60)));
        }
        // Indexes come and go meanwhile.
        tasks.push(Box::pin(async {
            create(&clients[0], "second", SECOND, node_bytes).await;
            create(&clients[0], "own", Source::Key, node_bytes).await;
            drop_index(&clients[0], "first").await;
            create(&clients[0], "first", FIRST, node_bytes).await;
        }));
        world.run(tasks);
        let nodes = world.check();
        assert!(nodes > 8, "{nodes}");
        let store = world.store.borrow();
        (whole, splits) = (whole + store.whole, splits + store.splits);
        drop(store);
        // Without objects, little is left of the trees.
        for n in 0..60 {
            let key = alloc::format!("key {n}");
            world.only(of(&clients[0]).change(key.as_bytes(), Change::Remove, ANY)).ok();
        }
        if seed % 2 == 0 {
            let left = world.check();
            assert!(left <= 3 + nodes / 3, "{left} of {nodes} nodes");
        }
    }
    assert!(whole > 1000 && splits > 100, "{whole} changes by one operation, {splits} splits");
}

/// Objects that expire, or that are written without their indexes, leave entries. Look-ups do not
/// return them, and remove them.
#[test]
fn a_look_up_removes_the_entries_that_have_no_object() {
    let mut world = World::new(1);
    let client = world.client(0);
    world.only(create(&client, "first", FIRST, 100));
    for n in 0..50 {
        let (key, value) = (alloc::format!("{n}"), alloc::format!("a{n}"));
        let write = Change::Write(value.as_bytes(), None);
        world.only(of(&client).change(key.as_bytes(), write, ANY)).unwrap();
    }
    let before = world.check();
    {
        let mut store = world.store.borrow_mut();
        (0..40).for_each(|n| _ = store.objects.remove(&(TABLE, alloc::format!("{n}").into())));
        let plain = (Version(9999), b"b".to_vec());
        store.objects.insert((TABLE, b"45".to_vec()), plain);
    }
    let found = world.only(all(&client, "first", Range::new("a".."b"), 7));
    assert_eq!(found.len(), 9);
    world.store.borrow_mut().objects.remove(&(TABLE, b"45".to_vec()));
    let left = world.check();
    assert!(left <= before / 2, "{left} of {before} nodes");
}

#[test]
fn the_rules_and_the_limits_of_a_change_hold() {
    let mut world = World::new(1);
    let client = world.client(0);
    world.only(create(&client, "first", FIRST, 64));
    let change = |world: &mut World, value: &[u8], rules| {
        world.only(of(&client).change(b"k", Change::Write(value, None), rules))
    };
    let absent = RejectRules { exists: true, ..ANY };
    let version = change(&mut world, b"v", absent).unwrap();
    let exists = Error::Store(client::Error::ObjectExists(version));
    assert_eq!(change(&mut world, b"v", absent), Err(exists));
    let long = vec![b'x'; MAX_INDEX_KEY + 1];
    let too_long = Error::Store(client::Error::IndexKeyTooLong(MAX_INDEX_KEY + 1));
    assert_eq!(change(&mut world, &long, ANY), Err(too_long));
    let most = &long[1..];
    change(&mut world, most, ANY).unwrap();
    for n in 0..5_u8 {
        let key = vec![n; 60_000];
        let write = Change::Write(most, None);
        world.only(of(&client).change(&key, write, ANY)).unwrap();
    }
    assert!(world.check() > 1);
    let none = world.only(of(&client).change(b"other", Change::Remove, ANY));
    assert_eq!(none, Ok(Version(0)));
    let unknown = world.only(of(&client).look_up("other", Range::prefix(b""), 5));
    assert_eq!(unknown, Err(Error::NoIndex("other".into())));
    let other = world.only(of(&client).create("first", SECOND, 64)).unwrap_err();
    assert_eq!(other, Error::Exists("first".into()));
}

/// A change that left the index key as it was added no entry. The client that built the index
/// relied on one, since the object had changed after its scan.
#[test]
fn a_change_while_an_index_is_built_adds_the_entry_of_the_same_key() {
    let mut world = World::new(1);
    let [one, two] = [world.client(0), world.client(0)];
    world.store.borrow_mut().objects.insert((TABLE, b"k".to_vec()), (Version(1), b"v".to_vec()));
    world.store.borrow_mut().versions = 1;
    let mut building = world.only(of(&one).create("first", FIRST, 100)).unwrap();
    let mut build = Box::pin(async { of(&one).build(&mut building).await });
    let mut context = Context::from_waker(Waker::noop());
    // It has read the object, and asks for the leaf.
    assert!((0..2).all(|_| build.as_mut().poll(&mut context).is_pending()));
    world.only(of(&two).change(b"k", Change::Write(b"v", None), ANY)).unwrap();
    assert_eq!(world.only(build), Ok(true));
    world.check();
    assert_eq!(world.only(all(&two, "first", Range::prefix(b""), 5)).len(), 1);
}

/// The change of an object whose old key was too long for one index left entries in the others.
#[test]
fn a_key_that_is_too_long_for_an_index_does_not_keep_entries_in_others() {
    let mut world = World::new(1);
    let client = world.client(0);
    let value = [&vec![b'x'; MAX_INDEX_KEY + 1][..], b",b"].concat();
    world.store.borrow_mut().objects.insert((TABLE, b"k".to_vec()), (Version(1), value));
    world.store.borrow_mut().versions = 1;
    world.only(create(&client, "second", SECOND, 100));
    let mut building = world.only(of(&client).create("first", FIRST, 100)).unwrap();
    assert_eq!(world.only(of(&client).build(&mut building)), Ok(true));
    assert_eq!((building.objects(), building.skipped()), (1, 1));
    world.only(of(&client).change(b"k", Change::Write(b"a,c", None), ANY)).unwrap();
    world.check();
}

/// A look-up costs one request if the server of the leaf has the objects, and a read of the others.
/// A change costs a read of the object and a commit.
#[test]
fn a_client_that_knows_the_nodes_reads_one_leaf() {
    let mut world = World::new(1);
    let mut client = world.client(0);
    client.near_ppm = 1_000_000;
    world.only(create(&client, "first", FIRST, 400));
    for n in 0..400 {
        let (key, value) = (alloc::format!("{n}"), alloc::format!("{n:03}"));
        let write = Change::Write(value.as_bytes(), None);
        world.only(of(&client).change(key.as_bytes(), write, ANY)).unwrap();
    }
    assert!(world.check() > 20);
    let counts = |world: &World| {
        let store = world.store.borrow();
        (store.reads, store.commits, store.look_ups)
    };
    world.only(all(&client, "first", Range::new("000"..), 100));
    let before = counts(&world);
    let found = world.only(all(&client, "first", Range::new("077"..="077"), 10));
    assert_eq!(found.iter().map(|it| &it.key[..]).collect::<Vec<_>>(), [b"77"]);
    assert_eq!(counts(&world), (before.0, before.1, before.2 + 1));
    let before = counts(&world);
    let last = Range::new(.."077");
    let page = world.only(of(&client).look_up_back("first", last, 1)).unwrap();
    assert_eq!(page.found.iter().map(|it| &it.key[..]).collect::<Vec<_>>(), [b"76"]);
    assert_eq!(counts(&world), (before.0, before.1, before.2 + 1));
    client.near_ppm = 0;
    let before = counts(&world);
    let found = world.only(all(&client, "first", Range::new("077"..="077"), 10));
    assert_eq!((found.len(), counts(&world)), (1, (before.0 + 1, before.1, before.2 + 1)));
    // Room in the leaves, so that none has to be split, and none becomes small.
    for key in ["52", "53", "54", "56", "57", "58", "76", "78"] {
        world.only(of(&client).change(key.as_bytes(), Change::Remove, ANY)).unwrap();
    }
    let mut put = |key: &[u8], value: &[u8]| {
        let before = counts(&world);
        world.only(of(&client).change(key, Change::Write(value, None), ANY)).unwrap();
        assert_eq!(counts(&world), (before.0 + 1, before.1 + 1, before.2));
    };
    put(b"77", b"077");
    put(b"77", b"055");
    put(b"77", b"077");
    put(b"new", b"055");
    world.check();
}

#[test]
fn an_index_that_is_not_ready_is_not_used_and_can_be_finished_by_another_client() {
    let mut world = World::new(1);
    let [one, two] = [world.client(0), world.client(0)];
    world.store.borrow_mut().objects.insert((TABLE, b"k".to_vec()), (Version(1), b"v".to_vec()));
    world.only(of(&one).create("first", FIRST, 100)).unwrap();
    let unready = world.only(of(&two).look_up("first", Range::prefix(b""), 5));
    assert_eq!(unready, Err(Error::Unready("first".into())));
    world.only(create(&two, "first", FIRST, 100));
    assert_eq!(world.only(all(&one, "first", Range::prefix(b""), 5)).len(), 1);
    assert_eq!(world.only(of(&one).list()).unwrap().len(), 1);
    world.check();
}
