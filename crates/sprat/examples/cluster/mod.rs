//! A cluster of one coordinator and one server, in threads of this process.

use std::error::Error;
use std::thread::{JoinHandle, spawn};

use sprat::kv::Client;
use sprat::rpc::Stop;
use sprat::server::{CoordinatorOptions, ServerOptions, coordinator, server};

/// A cluster in threads of this process. It ends when the value is dropped.
pub(crate) struct Cluster {
    /// The coordinator's locators, for `Client::connect`.
    pub(crate) at: String,
    running: Vec<(Stop, JoinHandle<()>)>,
}

impl Cluster {
    /// Starts a cluster over TCP on free ports of 127.0.0.1.
    pub(crate) fn start() -> Result<Self, Box<dyn Error>> {
        let mut worker = coordinator(&CoordinatorOptions::at("tcp:host=127.0.0.1,port=0"))?;
        let at = worker.transports().locators().join(";");
        let mut running = vec![(worker.stop(), spawn(move || _ = worker.run()))];
        let mut options = ServerOptions::new(&at, "tcp:host=127.0.0.1,port=0");
        options.memory_bytes = 64 << 20;
        let mut worker = server(&options)?;
        running.push((worker.stop(), spawn(move || _ = worker.run())));
        // A table needs a server that the coordinator knows.
        let client = Client::connect(&at)?;
        while client.servers()?.is_empty() {
            std::thread::yield_now();
        }
        Ok(Self { at, running })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.running.iter().for_each(|(stop, _)| stop.stop());
        self.running.drain(..).for_each(|(_, thread)| _ = thread.join());
    }
}
