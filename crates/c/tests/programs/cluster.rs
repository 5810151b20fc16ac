//! A cluster of threads of this process, for a program in C.

use std::thread::JoinHandle;

use sprat::kv::Client;
use sprat::rpc::Stop;
use sprat::server::{CoordinatorOptions, ServerOptions, coordinator, server};

/// A cluster whose processes are threads, which end when this value is dropped.
pub(crate) struct Cluster {
    /// The locator of the coordinator.
    pub(crate) coordinator: String,
    running: Vec<(Stop, JoinHandle<()>)>,
}

impl Cluster {
    /// Starts a cluster of `servers` servers, reached by `transport`. `tag` makes its names unique.
    pub(crate) fn start(transport: &str, tag: &str, servers: usize) -> Self {
        let at = |name: &str| match transport {
            "fast+shm" => format!("fast+shm:name=c-{tag}-{name}-{}", std::process::id()),
            other => format!("{other}:host=127.0.0.1,port=0"),
        };
        let mut this = Self { coordinator: String::new(), running: Vec::new() };
        let mut worker = coordinator(&CoordinatorOptions::at(&at("c"))).expect("it starts");
        this.coordinator = worker.transports().locators().join(";");
        let stop = worker.stop();
        this.running.push((stop, std::thread::spawn(move || worker.run().expect("it runs"))));
        for i in 0..servers {
            let options = ServerOptions {
                memory_bytes: 64 << 20,
                ..ServerOptions::new(&this.coordinator, &at(&format!("s{i}")))
            };
            let mut worker = server(&options).expect("it starts");
            let stop = worker.stop();
            this.running.push((stop, std::thread::spawn(move || worker.run().expect("it runs"))));
        }
        let client = Client::connect(&this.coordinator).expect("the locator is good");
        while client.servers().expect("the coordinator answers").len() < servers {
            std::thread::yield_now();
        }
        this
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
