//! The store door for programs: a coordinator and servers in threads of this process, over every transport.

use std::thread::JoinHandle;
use std::time::Duration;

use sprat::kv::{Config, Cursor, Error, MAX_KEY, Options, RejectRules, Store, Version};
use sprat::rpc::Stop;
use sprat::server::{CoordinatorOptions, ServerOptions, coordinator, server};

/// A cluster whose processes are threads, ended when dropped.
struct Cluster {
    coordinator: String,
    running: Vec<(Stop, JoinHandle<()>)>,
}

impl Cluster {
    /// A cluster of `servers`, reached by `transport`; `tag` makes its names its own.
    fn start(transport: &str, tag: &str, servers: usize) -> Self {
        let at = |who: &str| match transport {
            "fast+shm" => format!("fast+shm:name=kv-{tag}-{who}-{}", std::process::id()),
            "fast+memif" => {
                let socket = format!("/tmp/sprat-{tag}-{who}-{}.memif", std::process::id());
                format!("fast+memif:socket={socket},host=10.77.0.1,port=7")
            }
            "fast+shmnet" => {
                format!(
                    "fast+shmnet:name=kv-net-{tag}-{who}-{},host=10.77.0.1,port=7",
                    std::process::id()
                )
            }
            other => format!("{other}:host=127.0.0.1,port=0"),
        };
        let mut this = Self { coordinator: String::new(), running: Vec::new() };
        let mut worker = coordinator(&CoordinatorOptions::at(&at("c"))).unwrap();
        this.coordinator = worker.doors().locators().join(";");
        let stop = worker.stop();
        this.running.push((stop, std::thread::spawn(move || worker.run().unwrap())));
        for i in 0..servers {
            let options = ServerOptions {
                memory_bytes: 256 << 20,
                ..ServerOptions::new(&this.coordinator, &at(&format!("s{i}")))
            };
            let mut worker = server(&options).unwrap();
            let stop = worker.stop();
            this.running.push((stop, std::thread::spawn(move || worker.run().unwrap())));
        }
        let mut client = this.client();
        while client.servers().unwrap().len() < servers {
            std::thread::yield_now();
        }
        this
    }

    fn client(&self) -> Store {
        let mut store = Store::with(Config::new(&self.coordinator), Options::default()).unwrap();
        store.set_timeout(Duration::from_secs(30));
        store
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
    let mut store = cluster.client();
    let table = store.create_table("sizes", 3).unwrap();
    assert_eq!(store.table("sizes").unwrap(), table);
    for len in [0, 1, 100, 255, 256, 257, 10_000, 65_536, 1 << 20] {
        let key = format!("object of {len} bytes");
        let value: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
        let version = store.write(table, key.as_bytes(), &value).unwrap();
        let found = store.read(table, key.as_bytes()).unwrap();
        assert!(found.value == value && found.version == version, "{len} bytes");
    }
    assert_eq!(store.read(table, b"nothing").unwrap_err(), Error::ObjectDoesntExist);
    let long = vec![7; (1 << 20) + 1];
    assert_eq!(store.write(table, b"k", &long).unwrap_err(), Error::ValueTooLong(long.len()));
    let long = vec![7; (64 << 10) + 1];
    assert_eq!(store.write(table, &long, b"v").unwrap_err(), Error::KeyTooLong(long.len()));
}

fn conditions_versions_and_numbers(transport: &str) {
    let cluster = Cluster::start(transport, "rules", 1);
    let mut store = cluster.client();
    let table = store.create_table("rules", 1).unwrap();
    let (absent, exists) = (RejectRules::if_absent(), RejectRules::if_exists());
    assert_eq!(store.write_if(table, b"k", b"0", exists).unwrap_err(), Error::ObjectDoesntExist);
    let first = store.write_if(table, b"k", b"1", absent).unwrap();
    assert_eq!(store.write_if(table, b"k", b"2", absent).unwrap_err(), Error::ObjectExists(first));
    let only = RejectRules::if_version;
    let second = store.write_if(table, b"k", b"2", only(first)).unwrap();
    assert!(second > first);
    assert_eq!(
        store.write_if(table, b"k", b"3", only(first)).unwrap_err(),
        Error::WrongVersion(second)
    );
    let third = store.write_if(table, b"k", b"3", exists).unwrap();
    assert_eq!(store.remove_if(table, b"k", only(third)).unwrap(), third);
    assert_eq!(store.remove(table, b"k").unwrap(), Version(0));
    assert!(store.write(table, b"k", b"4").unwrap() > third, "versions never go back");
    assert_eq!(store.increment(table, b"n", 5).unwrap(), 5);
    assert_eq!(store.increment(table, b"n", -7).unwrap(), -2);
    assert_eq!(store.increment(table, b"k", 1).unwrap(), 5, "what was written can be counted on");
    assert_eq!(store.read(table, b"n").unwrap().value, b"-2");
    store.write(table, b"text", b"abcdefgh").unwrap();
    assert!(matches!(store.increment(table, b"text", 1), Err(Error::NotANumber(_))));
    assert!(matches!(store.increment(table, b"n", i64::MIN), Err(Error::Overflow(_))));
    let (sum, _) = store.increment_double(table, b"x", 0.5, RejectRules::default()).unwrap();
    assert!((sum - 0.5).abs() < f64::EPSILON);
    let infinite = store.increment_double(table, b"x", f64::INFINITY, RejectRules::default());
    assert_eq!(infinite.unwrap_err(), Error::NotFinite);
    assert_eq!(store.read(table, b"x").unwrap().value, b"0.5");
}

/// A second wait for an operation was one without end.
fn an_operation_is_waited_for_once(transport: &str) {
    let cluster = Cluster::start(transport, "wait", 1);
    let mut store = cluster.client();
    let table = store.create_table("wait", 1).unwrap();
    let none = RejectRules::default();
    let op = store.start_write(table, b"k", b"v", none);
    store.wait(op).unwrap();
    assert_eq!(store.wait(op).unwrap_err(), Error::NotInProgress);
    assert!(store.poll(op).is_none());
    let op = store.start_read(table, b"k", none);
    store.cancel(op);
    assert_eq!(store.wait(op).unwrap_err(), Error::NotInProgress);
    let op = store.start_read(table, &[0; MAX_KEY + 1], none);
    assert_eq!(store.wait(op).unwrap_err(), Error::KeyTooLong(MAX_KEY + 1));
}

fn many_operations_at_once_and_every_object_once(transport: &str) {
    let cluster = Cluster::start(transport, "many", 2);
    let mut store = cluster.client();
    let table = store.create_table("many", 2).unwrap();
    let mut pending = std::collections::HashSet::new();
    for i in 0..2_000_u32 {
        pending.insert(store.start_write(
            table,
            &i.to_be_bytes(),
            &[i as u8; 300],
            RejectRules::default(),
        ));
        pending.insert(store.start_increment(table, b"counter", 1, RejectRules::default()));
    }
    while !pending.is_empty() {
        store.turn_and_rest();
        while let Some((op, outcome)) = store.completed() {
            outcome.unwrap();
            assert!(pending.remove(&op));
        }
    }
    assert_eq!(store.increment(table, b"counter", 0).unwrap(), 2_000);
    let mut seen = std::collections::HashSet::new();
    let mut cursor = Some(Cursor::default());
    while let Some(at) = cursor {
        let page = store.page(table, at).unwrap();
        for (key, _, _) in page.objects() {
            assert!(seen.insert(key.to_vec()), "an object came twice");
        }
        cursor = page.next;
    }
    assert_eq!(seen.len(), 2_001);
}

fn a_dropped_table_is_gone_for_every_client(transport: &str) {
    let cluster = Cluster::start(transport, "drop", 2);
    let (mut one, mut two) = (cluster.client(), cluster.client());
    let table = one.create_table("t", 2).unwrap();
    two.write(table, b"k", b"v").unwrap();
    one.drop_table("t").unwrap();
    assert_eq!(two.read(table, b"k").unwrap_err(), Error::TableDoesntExist);
    assert_eq!(one.table("t").unwrap_err(), Error::TableDoesntExist);
    let again = one.create_table("t", 1).unwrap();
    assert_ne!(again, table);
    assert_eq!(two.read(again, b"k").unwrap_err(), Error::ObjectDoesntExist);
}

macro_rules! over {
    ($name:ident, $transport:literal) => {
        mod $name {
            over!(@ $transport, objects_of_all_sizes, conditions_versions_and_numbers, an_operation_is_waited_for_once,
                many_operations_at_once_and_every_object_once, a_dropped_table_is_gone_for_every_client);
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
