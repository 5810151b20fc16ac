//! Tests of the module `kv` over every transport: a coordinator and servers in threads of this
//! process.

mod indexes;
mod shards;
mod transactions;
mod validation;

use std::thread::JoinHandle;
use std::time::Duration;

use sprat::kv::{
    Client, Condition, Cursor, Error, MAX_KEY, MAX_VALUE, Page, Part, PartAnswer, Table, Version,
};
use sprat::rpc::Stop;
use sprat::server::{CoordinatorOptions, ServerOptions, coordinator, server};

/// A cluster whose processes are threads, which end when this value is dropped.
struct Cluster {
    coordinator: String,
    running: Vec<(Stop, JoinHandle<()>)>,
}

impl Cluster {
    /// Starts a cluster of `servers` servers, reached by `transport`. `tag` makes its names unique.
    fn start(transport: &str, tag: &str, servers: usize) -> Self {
        Self::replicated(transport, tag, servers, 0)
    }

    /// Starts a cluster of `servers` servers that write `replicas` replicas.
    fn replicated(transport: &str, tag: &str, servers: usize, replicas: usize) -> Self {
        let at = |who: &str| match transport {
            "fast+shm" => format!("fast+shm:name=kv-{tag}-{who}-{}", std::process::id()),
            "fast+memif" => {
                let socket = format!("/tmp/sprat-{tag}-{who}-{}.memif", std::process::id());
                format!("fast+memif:socket={socket},host=10.77.0.1,port=7")
            }
            "fast+shmnet" | "utcp+shmnet" | "rdma+shmnet" => {
                let name = format!("kv-{tag}-{who}-{}-{}", &transport[..4], std::process::id());
                format!("{transport}:name={name},host=10.77.0.1,port=7")
            }
            other => format!("{other}:host=127.0.0.1,port=0"),
        };
        let mut this = Self { coordinator: String::new(), running: Vec::new() };
        let mut worker = coordinator(&CoordinatorOptions::at(&at("c"))).unwrap();
        this.coordinator = worker.transports().locators().join(";");
        let stop = worker.stop();
        this.running.push((stop, std::thread::spawn(move || worker.run().unwrap())));
        for i in 0..servers {
            let options = ServerOptions {
                memory_bytes: 256 << 20,
                replicas,
                ..ServerOptions::new(&this.coordinator, &at(&format!("s{i}")))
            };
            let mut worker = server(&options).unwrap();
            let stop = worker.stop();
            this.running.push((stop, std::thread::spawn(move || worker.run().unwrap())));
        }
        let client = this.client();
        while client.servers().unwrap().len() < servers {
            std::thread::yield_now();
        }
        this
    }

    fn client(&self) -> Client {
        Client::builder(&self.coordinator).timeout(Duration::from_secs(30)).connect().unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for (stop, _) in &self.running {
            stop.stop();
        }
        for (_, thread) in self.running.drain(..) {
            let ended = thread.join();
            // A second panic would abort the program and take all other tests along.
            assert!(ended.is_ok() || std::thread::panicking(), "a server of the test panicked");
        }
    }
}

fn objects_of_all_sizes(transport: &str) {
    let cluster = Cluster::start(transport, "sizes", 3);
    let client = cluster.client();
    let table = client.create_table("sizes", 3).unwrap();
    assert_eq!(client.table("sizes").unwrap().id(), table.id());
    for len in [0, 1, 100, 255, 256, 257, 10_000, 65_536, 1 << 20] {
        let key = format!("object of {len} bytes");
        let value: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
        let version = table.put(key.as_bytes(), &value).unwrap();
        let found = table.get(key.as_bytes()).unwrap().unwrap();
        assert!(found.value == value && found.version == version, "{len} bytes");
    }
    assert_eq!(table.get(b"nothing").unwrap(), None);
    let long = vec![7; (1 << 20) + 1];
    assert_eq!(table.put(b"k", &long).unwrap_err(), Error::ValueTooLong(long.len()));
    let long = vec![7; (64 << 10) + 1];
    assert_eq!(table.put(&long, b"v").unwrap_err(), Error::KeyTooLong(long.len()));
}

/// Heads roll and are cleaned while every write waits for two other servers.
fn every_write_is_on_two_other_servers(transport: &str) {
    let cluster = Cluster::replicated(transport, "replicas", 3, 2);
    let client = cluster.client();
    let table = client.create_table("replicas", 3).unwrap();
    let value = |n: u64| vec![n as u8; if n.is_multiple_of(8) { 1 << 20 } else { 100 }];
    for n in 0..400u64 {
        table.put(&(n % 16).to_be_bytes(), &value(n)).unwrap();
    }
    for n in 384..400u64 {
        assert_eq!(table.get(&(n % 16).to_be_bytes()).unwrap().unwrap().value, value(n));
    }
    let servers = client.servers().unwrap();
    assert_eq!(servers.len(), 3);
    for server in servers {
        let stats = client.stats(Some(&server.data)).unwrap();
        let stats = String::from_utf8(stats).unwrap();
        let held = stats.split("\"replicas_held\":").nth(1).unwrap();
        let held: u64 = held.split([',', '}']).next().unwrap().trim().parse().unwrap();
        assert!(held >= 2, "each server holds replicas of both others: {stats}");
    }
}

fn conditions_and_versions(transport: &str) {
    let cluster = Cluster::start(transport, "rules", 1);
    let client = cluster.client();
    let table = client.create_table("rules", 1).unwrap();
    let (absent, exists) = (Condition::if_absent(), Condition::if_exists());
    assert_eq!(table.put_if(b"k", b"0", exists).unwrap_err(), Error::ObjectDoesntExist);
    let first = table.put_if(b"k", b"1", absent).unwrap();
    assert_eq!(table.put_if(b"k", b"2", absent).unwrap_err(), Error::ObjectExists(first));
    let only = Condition::if_version;
    let second = table.put_if(b"k", b"2", only(first)).unwrap();
    assert!(second > first);
    assert_eq!(table.put_if(b"k", b"3", only(first)).unwrap_err(), Error::WrongVersion(second));
    assert_eq!(table.get_if(b"k", only(first)).unwrap_err(), Error::WrongVersion(second));
    assert_eq!(table.get_if(b"k", only(second)).unwrap().unwrap().value, b"2");
    assert_eq!(table.get_if(b"nothing", exists).unwrap(), None);
    let third = table.put_if(b"k", b"3", exists).unwrap();
    assert_eq!(table.remove_if(b"k", only(third)).unwrap(), Some(third));
    assert_eq!(table.remove(b"k").unwrap(), None);
    assert!(table.put(b"k", b"4").unwrap() > third, "versions never go back");
}

fn numbers(transport: &str) {
    let cluster = Cluster::start(transport, "numbers", 1);
    let client = cluster.client();
    let table = client.create_table("numbers", 1).unwrap();
    table.put(b"k", b"4").unwrap();
    assert_eq!(table.increment(b"n", 5).unwrap(), 5);
    assert_eq!(table.increment(b"n", -7).unwrap(), -2);
    assert_eq!(table.increment(b"k", 1).unwrap(), 5, "what was written can be counted on");
    assert_eq!(table.get(b"n").unwrap().unwrap().value, b"-2");
    table.put(b"text", b"abcdefgh").unwrap();
    assert!(matches!(table.increment(b"text", 1), Err(Error::NotANumber(_))));
    assert!(matches!(table.increment(b"n", i64::MIN), Err(Error::Overflow(_))));
    assert!((table.increment_double(b"x", 0.5).unwrap() - 0.5).abs() < f64::EPSILON);
    assert_eq!(table.increment_double(b"x", f64::INFINITY).unwrap_err(), Error::NotFinite);
    assert_eq!(table.get(b"x").unwrap().unwrap().value, b"0.5");
}

/// Waits for an operation twice. The second wait once never ended.
fn an_operation_is_waited_for_once(transport: &str) {
    let cluster = Cluster::start(transport, "wait", 1);
    let client = cluster.client();
    let table = client.create_table("wait", 1).unwrap();
    table.start_put(b"k", b"v").wait().unwrap();
    let mut read = table.start_get(b"k");
    let found = loop {
        if let Some(found) = read.poll() {
            break found.unwrap().unwrap();
        }
        client.turn_and_rest();
    };
    assert_eq!(found.value, b"v");
    assert_eq!(read.poll().unwrap().unwrap_err(), Error::NotInProgress);
    assert_eq!(read.wait().unwrap_err(), Error::NotInProgress);
    table.start_get(b"k").cancel();
    client.cancel(table.start_get(b"k").queue());
    drop(table.start_put(b"dropped", b"and executed all the same"));
    let long = table.start_get(&[0; MAX_KEY + 1]);
    assert_eq!(long.wait().unwrap_err(), Error::KeyTooLong(MAX_KEY + 1));
    assert!(table.get(b"dropped").unwrap().is_some(), "one session carries both, in order");
    assert!(client.next_completed().is_none(), "what was queued is cancelled");
    let counters = client.counters();
    assert_eq!(counters.started, counters.completed + counters.cancelled);
    assert!(counters.route_refreshes >= 1 && counters.late == 0, "{counters:?}");
}

/// Uses the client while the value of a read is lent.
fn a_reader_of_a_lent_value_may_use_the_client(transport: &str) {
    let cluster = Cluster::start(transport, "lent", 1);
    let client = cluster.client();
    let table = client.create_table("lent", 1).unwrap();
    for (key, len) in [(b"short", 10), (b"long.", 100_000)] {
        table.put(key, &vec![7; len]).unwrap();
        let lengths = table.get_with(key, |_, value| {
            let again = table.get(key).unwrap().unwrap().value;
            (value.len(), again.len())
        });
        assert_eq!(lengths.unwrap(), Some((len, len)));
    }
    assert_eq!(table.get_with(b"none", |_, _| ()).unwrap(), None);
}

fn many_operations_at_once_and_every_object_once(transport: &str) {
    let cluster = Cluster::start(transport, "many", 2);
    let client = cluster.client();
    let table = client.create_table("many", 2).unwrap();
    let mut pending = std::collections::HashSet::new();
    for i in 0..2_000_u32 {
        let put = table.start_put(&i.to_be_bytes(), &[i as u8; 300]);
        pending.insert(put.queue());
        pending.insert(table.start_increment(b"counter", 1).queue());
    }
    while !pending.is_empty() {
        client.turn_and_rest();
        while let Some((id, outcome)) = client.next_completed() {
            outcome.unwrap();
            assert!(pending.remove(&id));
        }
    }
    assert_eq!(table.increment(b"counter", 0).unwrap(), 2_000);
    let mut seen = std::collections::HashSet::new();
    for object in table.scan() {
        let (key, _) = object.unwrap();
        assert!(seen.insert(key), "an object came twice");
    }
    assert_eq!(seen.len(), 2_001);
}

fn a_dropped_table_is_gone_for_every_client(transport: &str) {
    let cluster = Cluster::start(transport, "drop", 2);
    let (one, two) = (cluster.client(), cluster.client());
    let table = one.create_table("t", 2).unwrap();
    two.table_by_id(table.id()).put(b"k", b"v").unwrap();
    one.drop_table("t").unwrap();
    let gone = two.table_by_id(table.id());
    assert_eq!(gone.get(b"k").unwrap_err(), Error::TableDoesntExist);
    assert_eq!(gone.scan().next().unwrap().unwrap_err(), Error::TableDoesntExist);
    assert_eq!(one.table("t").unwrap_err(), Error::TableDoesntExist);
    let again = one.create_table("t", 1).unwrap();
    assert_ne!(again.id(), table.id());
    assert_eq!(two.table_by_id(again.id()).get(b"k").unwrap(), None);
}

/// Polls a future on this thread until it is ready, and returns its result.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

fn futures_complete_on_any_thread(transport: &str) {
    let cluster = Cluster::start(transport, "async", 2);
    let client = Client::builder(&cluster.coordinator).connect_async().unwrap();
    let table = block_on(client.create_table("async", 2)).unwrap();
    let threads: Vec<_> = (0..4_u8)
        .map(|thread| {
            let table = table.clone();
            std::thread::spawn(move || {
                for i in 0..50_u8 {
                    block_on(table.put(&[thread, i], &[i; 100])).unwrap();
                    block_on(table.increment(b"sum", 1)).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // All reads are in progress before the first is awaited.
    let reads: Vec<_> = (0..200).map(|i| table.get(&[i / 50, i % 50])).collect();
    for (i, read) in (0..200_u8).zip(reads) {
        assert_eq!(block_on(read).unwrap().unwrap().value, [i % 50; 100]);
    }
    drop(table.put(b"dropped", b""));
    assert_eq!(block_on(table.get(b"sum")).unwrap().unwrap().value, b"200");
    assert_eq!(block_on(table.remove(b"none")).unwrap(), None);
    assert_eq!(block_on(client.tables()).unwrap().len(), 1);
    let long = block_on(table.get(&[0; MAX_KEY + 1]));
    assert_eq!(long.unwrap_err(), Error::KeyTooLong(MAX_KEY + 1));
    block_on(client.drop_table("async")).unwrap();
    assert_eq!(block_on(client.table("async")).unwrap_err(), Error::TableDoesntExist);
}

/// Writes an object of `1` that lives `soon`, and does something with it before its end.
///
/// Begins again where the machine ran this thread too late, and `f` returns `None`; ten times at
/// most.
fn before_its_end<R>(
    table: &Table<'_>,
    key: &[u8],
    soon: Duration,
    f: impl Fn() -> Option<R>,
) -> R {
    let tried = || {
        table.put_expiring(key, b"1", soon).unwrap();
        f()
    };
    (0..10).find_map(|_| tried()).expect("one of ten objects is there before its end")
}

/// Gives an object another lifetime. Returns its version, `None` if there is none.
fn touched(table: &Table<'_>, key: &[u8], lifetime: Option<Duration>) -> Option<Version> {
    match table.touch(key, lifetime) {
        Err(Error::ObjectDoesntExist) => None,
        touched => Some(touched.unwrap()),
    }
}

/// Objects that expire, by all kinds of operations: each is there until its end and never again.
fn expiring_objects(transport: &str) {
    let cluster = Cluster::replicated(transport, "expire", 2, 1);
    let client = cluster.client();
    let table = client.create_table("expiring", 2).unwrap();
    let (soon, late) = (Duration::from_millis(1000), Duration::from_secs(3600));
    table.put_expiring(b"soon", b"1", soon).unwrap();
    table.put_expiring(b"late", b"1", late).unwrap();
    let number = before_its_end(&table, b"number", soon, || {
        Some(table.increment(b"number", 1).unwrap()).filter(|&sum| sum != 1)
    });
    assert_eq!(number, 2);
    before_its_end(&table, b"touched", soon, || touched(&table, b"touched", Some(late)));
    let pending = table.start_put_expiring_if(b"started", b"1", soon, Condition::if_absent());
    pending.wait().unwrap();
    let long = vec![7; 500_000];
    table.put_expiring(b"long", &long, soon).unwrap();
    let id = table.id();
    let parts = [Part::put_expiring(id, b"part", b"1", soon), Part::touch(id, b"none", None)];
    let parts = client.multi(parts).unwrap();
    assert!(matches!(parts.get(0), Ok(PartAnswer::Version(_))));
    assert!(matches!(parts.get(1), Err(Error::ObjectDoesntExist)));
    let version = before_its_end(&table, b"forever", soon, || touched(&table, b"forever", None));
    let stale = Condition::if_newer_than(version);
    assert!(matches!(table.touch_if(b"forever", None, stale), Err(Error::WrongVersion(_))));
    let tasks = Client::builder(&cluster.coordinator).connect_async().unwrap();
    let tasks = tasks.table_by_id(id);
    block_on(tasks.put_expiring(b"task", b"1", late)).unwrap();
    block_on(tasks.touch(b"task", Some(soon))).unwrap();
    let too_long = table.put_expiring(b"x", b"1", Duration::MAX);
    assert!(matches!(too_long, Err(Error::LifetimeTooLong(_))));
    assert!(matches!(table.touch(b"x", Some(Duration::MAX)), Err(Error::LifetimeTooLong(_))));
    table.put_expiring(b"at once", b"1", Duration::ZERO).unwrap();
    assert_eq!(table.get(b"at once").unwrap(), None);
    // Each is gone at its end, by whatever operation meets it first.
    while table.get(b"soon").unwrap().is_some() {
        std::thread::yield_now();
    }
    while table.get(b"task").unwrap().is_some() {
        std::thread::yield_now();
    }
    assert!(matches!(table.touch(b"started", None), Err(Error::ObjectDoesntExist)));
    assert_eq!(table.remove(b"part").unwrap(), None);
    assert_eq!(table.increment(b"number", 5).unwrap(), 5);
    // The rest of a lifetime, from a read and from the page of a scan.
    let (object, rest) = block_on(tasks.read_expiring(b"forever")).unwrap().unwrap();
    assert_eq!(rest, None, "{object:?}");
    let hour = Duration::from_secs(3600);
    table.touch(b"touched", Some(hour)).unwrap();
    let (object, rest) = table.read_expiring(b"touched").unwrap().unwrap();
    assert!(rest.is_some_and(|rest| rest <= hour && rest > hour / 2), "{rest:?} of {object:?}");
    assert_eq!(table.read_expiring(b"part").unwrap(), None);
    let listed = |page: &Page<'_>| -> Vec<_> {
        page.objects().filter(|it| it.key == b"touched").map(|it| it.lifetime).collect()
    };
    let mut lifetimes = Vec::new();
    let mut next = Some(Cursor::default());
    while let Some(cursor) = next {
        let page = table.page(cursor).unwrap();
        lifetimes.extend(listed(&page));
        next = page.next;
    }
    assert!(matches!(lifetimes[..], [Some(ms)] if ms.0 <= 3_600_000 && ms.0 > 1_800_000));
    let mut keys: Vec<_> = table.scan().map(|object| object.unwrap().0).collect();
    keys.sort();
    assert_eq!(keys, [&b"forever"[..], b"late", b"number", b"touched"].map(<[u8]>::to_vec));
}

/// Get-and-set: each value that was there comes back once, also with several clients at once.
/// Values may be as long as any, with replicas too.
fn swaps(transport: &str) {
    let cluster = Cluster::replicated(transport, "swap", 2, 1);
    let client = cluster.client();
    let table = client.create_table("swaps", 1).unwrap();
    let id = table.id();
    let long = |n: u8| vec![n; MAX_VALUE];
    let (first, none) = table.swap(b"long", &long(1)).unwrap();
    assert_eq!(none, None);
    for n in 2..6 {
        let (_, old) = table.swap(b"long", &long(n)).unwrap();
        assert!(old.is_some_and(|old| old.value == long(n - 1)), "{n}");
    }
    let only = Condition::if_version(first);
    assert!(matches!(table.swap_if(b"long", b"", None, only), Err(Error::WrongVersion(_))));
    let hour = Some(Duration::from_secs(3600));
    let gone = Some(Duration::ZERO);
    assert_eq!(
        table.start_swap_if(b"e", b"1", hour, Condition::if_absent()).wait().unwrap().1,
        None
    );
    let (_, old) = table.swap_if(b"e", b"2", gone, Condition::always()).unwrap();
    assert_eq!(old.unwrap().value, b"1");
    assert_eq!(table.swap(b"e", b"3").unwrap().1, None, "it has expired");
    let swap = |key| Part::swap(id, key, b"part", None);
    let parts = client.multi([swap(b"e"), swap(b"f"), swap(b"long")]).unwrap();
    assert!(matches!(parts.get(0), Ok(PartAnswer::Swapped { value: b"3", .. })));
    assert!(matches!(parts.get(1), Ok(PartAnswer::Swapped { before: Version(0), .. })));
    let Ok(PartAnswer::Swapped { value, .. }) = parts.get(2) else { panic!() };
    assert!(value == long(5));
    let swapper = |from: u32| {
        let client = cluster.client();
        move || {
            let table = client.table_by_id(id);
            let swap = |n: u32| table.swap(b"k", &n.to_be_bytes()).unwrap().1;
            (from..from + 200).filter_map(swap).map(|o| o.value).collect::<Vec<_>>()
        }
    };
    let threads = [0, 1000, 2000].map(|from| std::thread::spawn(swapper(from)));
    let mut seen: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    seen.push(table.get(b"k").unwrap().unwrap().value);
    seen.sort();
    let written = [0, 1000, 2000].into_iter().flat_map(|from| from..from + 200);
    assert_eq!(seen, written.map(|n: u32| n.to_be_bytes().to_vec()).collect::<Vec<_>>());
}

/// Multi-operations of both kinds of client, on tables of one and of several servers, and with
/// replicas: each part has its own result.
fn appends(transport: &str) {
    let cluster = Cluster::replicated(transport, "append", 2, 1);
    let client = cluster.client();
    let table = client.create_table("appends", 1).unwrap();
    assert_eq!(table.append(b"log", b"one ").unwrap(), 4);
    assert_eq!(table.append(b"log", b"").unwrap(), 4);
    assert_eq!(table.append(b"log", b"two").unwrap(), 7);
    let object = table.get(b"log").unwrap().unwrap();
    assert_eq!(object.value, b"one two");
    let stale = Condition::if_newer_than(object.version);
    assert!(matches!(table.append_if(b"log", b"x", stale), Err(Error::WrongVersion(_))));
    let many: Vec<_> = (0..50).map(|_| table.start_append(b"long", &[7; 20_000])).collect();
    let lengths = many.into_iter().map(|append| append.wait().unwrap().value);
    assert_eq!(lengths.max(), Some(1_000_000));
    assert_eq!(table.append(b"long", &[7; 100_000]), Err(Error::NoRoomToAppend(100_000)));
    assert_eq!(table.get(b"long").unwrap().unwrap().value, [7; 1_000_000]);
    let parts = client.multi([Part::append(table.id(), b"log", b"!"), Part::get(table.id(), b"x")]);
    assert!(matches!(parts.unwrap().get(0), Ok(PartAnswer::Length { length: 8, .. })));
    let tasks = Client::builder(&cluster.coordinator).connect_async().unwrap();
    let appended = tasks.table_by_id(table.id()).append(b"log", b"?");
    assert_eq!(block_on(appended).unwrap().value, 9);
}

fn several_objects_in_one_operation(transport: &str) {
    let cluster = Cluster::replicated(transport, "multi", 3, 2);
    let client = cluster.client();
    for span in [1, 3] {
        let table = client.create_table(&format!("multi {span}"), span).unwrap();
        let keys: Vec<String> = (0..1000).map(|i| format!("key {i}")).collect();
        let value = |i: usize| vec![i as u8; [3, 100, 700, 9_000][i % 4]];
        let objects = keys.iter().enumerate().map(|(i, key)| (key, value(i)));
        let versions = table.multi_put(objects).unwrap();
        assert!(versions.iter().all(|version| version.is_ok()));
        let found = table.multi_get(keys.iter().map(String::as_str).chain(["none"])).unwrap();
        assert_eq!(found.len(), keys.len() + 1);
        for (i, object) in found[..keys.len()].iter().enumerate() {
            let object = object.as_ref().unwrap().as_ref().expect("it was written");
            assert_eq!((&object.value, Ok(object.version)), (&value(i), versions[i].clone()));
        }
        assert_eq!(found[keys.len()], Ok(None));

        let sums = table.multi_increment([("n", 2), ("n", 3), ("key 0", 1)]).unwrap();
        assert_eq!(sums.iter().filter(|sum| sum.is_ok()).count(), 2);
        assert!(matches!(sums[2], Err(Error::NotANumber(_))));
        assert_eq!(table.increment(b"n", 0).unwrap(), 5);

        let removed = table.multi_remove(["key 1", "none"]).unwrap();
        assert_eq!(removed, [Ok(Some(versions[1].clone().unwrap())), Ok(None)]);

        let other = client.create_table("other", 1).unwrap().id();
        let parts = client
            .multi([
                Part::put(other, b"a", b"1"),
                Part::put(table.id(), b"key 2", b"").only(Condition::if_absent()),
                Part::increment_double(other, b"b", 0.5),
                Part::get(table.id(), &[0; MAX_KEY + 1]),
            ])
            .unwrap();
        assert!(matches!(parts.get(0), Ok(PartAnswer::Version(Version(1..)))));
        assert!(matches!(parts.get(1), Err(Error::ObjectExists(_))));
        assert!(matches!(parts.get(2), Ok(PartAnswer::Double { .. })));
        assert_eq!(parts.get(3), Err(&Error::KeyTooLong(MAX_KEY + 1)));
        assert!(client.multi([]).unwrap().is_empty());
        let many = client.start_multi(keys.iter().map(|key| Part::get(table.id(), key.as_bytes())));
        let single = table.start_get(b"key 3");
        assert_eq!(many.wait().unwrap().iter().filter(Result::is_err).count(), 1);
        assert!(single.wait().unwrap().is_some());
    }
    // The iterator of the parts may use the client, and panic.
    let named = ["multi 1", "multi 3"].map(String::from);
    let names = named.iter().map(|name| Part::get(client.table(name).unwrap().id(), b"key 3"));
    assert!(client.multi(names).unwrap().iter().all(|part| part.is_ok()));
    let failing = std::panic::AssertUnwindSafe(|| {
        let keys = (0..3).map(|i| if i < 2 { format!("key {i}") } else { panic!("planned") });
        client.table("multi 1").unwrap().multi_get(keys)
    });
    assert!(std::panic::catch_unwind(failing).is_err());
    assert!(client.table("multi 1").unwrap().get(b"key 3").unwrap().is_some());
    let tasks = Client::builder(&cluster.coordinator).connect_async().unwrap();
    let table = block_on(tasks.table("multi 3")).unwrap();
    let written = table.multi_put([("x", "1"), ("y", "2")]);
    assert!(block_on(written).unwrap().iter().all(Result::is_ok));
    let (found, sums) = (table.multi_get(["x", "z"]), table.multi_increment([("y", 1)]));
    let found = block_on(found).unwrap();
    assert_eq!(found[0].as_ref().unwrap().as_ref().unwrap().value, b"1");
    assert_eq!(found[1], Ok(None));
    assert_eq!(block_on(sums).unwrap()[0].as_ref().unwrap().value, 3);
    assert!(block_on(table.multi_remove(["x"])).unwrap()[0].as_ref().unwrap().is_some());
    let parts = block_on(tasks.multi([Part::get(table.id(), b"y")])).unwrap();
    assert!(matches!(parts.get(0), Ok(PartAnswer::Object { value: b"3", .. })));
}

macro_rules! over {
    ($name:ident, $transport:literal) => {
        mod $name {
            over!(@ $transport, objects_of_all_sizes, conditions_and_versions, numbers,
                an_operation_is_waited_for_once, a_reader_of_a_lent_value_may_use_the_client,
                futures_complete_on_any_thread,
                many_operations_at_once_and_every_object_once,
                a_dropped_table_is_gone_for_every_client,
                several_objects_in_one_operation, appends, expiring_objects, swaps,
                every_write_is_on_two_other_servers);
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
over!(memif, "fast+memif");
over!(shmnet, "fast+shmnet");
over!(tcp, "tcp");
over!(rdma, "rdma");
over!(utcp_shmnet, "utcp+shmnet");
over!(rdma_shmnet, "rdma+shmnet");
