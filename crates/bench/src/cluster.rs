//! A whole cluster on this machine, each part a process of its own.
//!
//! The parts are children of this process and die with it. One that dies is reported and started again, and no other one
//! ends for it: a server comes back without its objects, and the coordinator with all that it knew, since its state is in a
//! file, or in memory of this process.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use sprat::internals::disk::Disk;
use sprat::locator::Locator;
use sprat_store::types::ServerId;

use self::member::Member;

use crate::fail::{Fail, Named as _};
use crate::store::Store;
use crate::text::Columns;

mod member;

/// How long the servers may take to join the cluster.
const ENLIST: Duration = Duration::from_secs(20);

/// A coordinator and its servers.
pub struct Cluster {
    coordinator: Member,
    servers: Vec<Member>,
    /// The coordinator's state, if no file holds it: it ends with the cluster.
    _state: Option<File>,
}

/// What a cluster shall be.
pub struct Plan<'p> {
    /// Its name, from which the shared-memory names derive.
    pub name: &'p str,
    /// The first of [`ports`]: the coordinator's. Server `i` takes this one + `i`, and for RDMA another so many behind.
    pub port: u16,
    /// How many servers it has.
    pub servers: u16,
    /// Of each server, in bytes.
    pub memory: u64,
    /// The file of the coordinator's state; in memory of this process if unset.
    pub state: Option<&'p std::path::Path>,
    /// The core that all of them run on, if it matters.
    pub core: Option<usize>,
    /// The kernel's address where all of them are; loopback if none is given.
    pub host: Option<std::net::Ipv4Addr>,
    /// Where the first server listens besides; the others where [`Locator::worker`] says.
    pub besides: Vec<Locator>,
    /// Servers keep marks of requests.
    pub marks: bool,
}

impl Plan<'_> {
    fn host(&self) -> std::net::Ipv4Addr {
        self.host.unwrap_or(std::net::Ipv4Addr::LOCALHOST)
    }
}

/// Allows servers to listen elsewhere than on loopback.
pub const INSECURE: &str = "--insecure-network";

/// How many ports in a row a cluster needs.
pub const fn ports(servers: u16) -> u16 {
    1 + 2 * servers
}

impl Cluster {
    /// Starts all processes and waits until the servers have joined.
    pub fn start(plan: &Plan<'_>) -> Result<Self, Fail> {
        let mut args = vec![
            "coordinator".to_owned(),
            "-C".to_owned(),
            format!("tcp:host={},port={}", plan.host(), plan.port),
        ];
        args.extend(plan.host.map(|_| INSECURE.to_owned()));
        args.push("--state".to_owned());
        let mut state = None;
        match plan.state {
            Some(path) => args.push(path.to_string_lossy().into_owned()),
            None => {
                let file = state.insert(state_in_memory()?);
                args.push(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
            }
        }
        let coordinator = Member::start("the coordinator".to_owned(), plan.core, args)?;
        let mut cluster = Self { coordinator, servers: Vec::new(), _state: state };
        let mut store = Store::over(cluster.coordinator(), &[])?;
        // One after the other, so that the coordinator numbers them in this order.
        for index in 1..=plan.servers {
            // A state file names the servers of the last time until their leases end.
            let known: Vec<_> = store.servers()?.into_iter().map(|server| server.server).collect();
            cluster.add_server(plan, index)?;
            cluster.wait_for_another_server(&mut store, &known)?;
        }
        Ok(cluster)
    }

    fn add_server(&mut self, plan: &Plan<'_>, index: u16) -> Result<(), Fail> {
        let (name, port, host) = (plan.name, plan.port + index, plan.host());
        // The one that a client takes by itself comes first. RDMA goes over TCP, so its port is another one.
        let mut locators = format!(
            "fast+shm:name={name}.{index};fast+udp:host={host},port={port};tcp:host={host},port={port};\
             rdma:host={host},port={}",
            port + plan.servers
        );
        for first in &plan.besides {
            let own = first.worker(index - 1).map_err(|error| Fail::usage(error.to_string()))?;
            locators += &format!(";{own}");
        }
        let memory = plan.memory.to_string();
        let mut args =
            vec!["server", "-C", self.coordinator(), "-L", &locators, "--memory", &memory];
        args.extend(plan.host.map(|_| INSECURE));
        args.extend(plan.marks.then_some("--tracepoints"));
        let args = args.into_iter().map(str::to_owned).collect();
        self.servers.push(Member::start(format!("server {index}"), plan.core, args)?);
        Ok(())
    }

    /// Waits until the coordinator knows another server than these.
    fn wait_for_another_server(
        &mut self,
        store: &mut Store,
        known: &[ServerId],
    ) -> Result<(), Fail> {
        let begin = Instant::now();
        loop {
            if store.servers()?.iter().any(|server| !known.contains(&server.server)) {
                return Ok(());
            }
            if let Some(died) = self.members().find_map(Member::died) {
                return Err(Fail::new(died).next("the message before this one says why"));
            }
            if begin.elapsed() > ENLIST {
                return Err(Fail::new(format!(
                    "server {} does not join the cluster",
                    self.servers.len()
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Where the coordinator is.
    pub fn coordinator(&self) -> &str {
        &self.coordinator.locators
    }

    /// Who is where, for people.
    pub fn table(&self) -> String {
        let mut table = Columns::new(&["process", ">id", "locator"]);
        for Member { process, locators, .. } in
            std::iter::once(&self.coordinator).chain(&self.servers)
        {
            let (mut name, mut id) =
                (process.name().trim_start_matches("the ").to_owned(), process.id().to_string());
            for locator in locators.split(';') {
                // The name stands in the first line only.
                table.row([std::mem::take(&mut name), std::mem::take(&mut id), locator.to_owned()]);
            }
        }
        table.text()
    }

    /// All process ids, the coordinator's first.
    pub fn ids(&self) -> Vec<u32> {
        std::iter::once(&self.coordinator)
            .chain(&self.servers)
            .map(|member| member.process.id())
            .collect()
    }

    /// Starts processes again that have ended; says so of each when that begins. Never waits.
    pub fn tend(&mut self, now: Instant) -> Vec<String> {
        self.members().filter_map(|member| member.tend(now)).collect()
    }

    /// All processes, the coordinator first.
    fn members(&mut self) -> impl Iterator<Item = &mut Member> {
        std::iter::once(&mut self.coordinator).chain(&mut self.servers)
    }

    /// Ends all processes in good order: the servers first, so that each can still take its leave.
    pub fn end(&mut self) {
        for server in &mut self.servers {
            server.process.ask_to_end();
        }
        for server in &mut self.servers {
            server.process.end();
        }
        self.coordinator.process.end();
        self.members().for_each(|member| member.remove_names());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.end();
    }
}

/// An empty state that ends with this process, in whatever way that ends.
fn state_in_memory() -> Result<File, Fail> {
    let file = memfd_create("sprat-state", MemfdFlags::CLOEXEC)
        .named("cannot take memory for the state")?;
    let file = File::from(file);
    Disk::prepare(&file).named("cannot write the state in memory")?;
    Ok(file)
}
