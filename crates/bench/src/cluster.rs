//! A cluster on this machine: a coordinator and its servers, each a process.
//!
//! The processes are children of this process and die with it. [`Cluster::restart`] starts a
//! process again that has ended, and the others go on: the coordinator comes back with its state,
//! since that is in a file or in memory of this process, and a server with the replicas in its
//! directory, if it has one.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use sprat::internals::disk::StateDisk;
use sprat::locator::Locator;
use sprat::server::{Durability, FRAMES};
use sprat_store::types::ServerId;

pub use self::host::Host;
use self::member::Member;

use crate::fail::{Fail, Named as _};
use crate::process::START;
use crate::store::Store;
use crate::text::Columns;

mod host;
mod member;

/// Time that the servers of a new cluster may take to join it.
const ENLIST: Duration = Duration::from_secs(20);

/// The processes of a cluster on this machine: a coordinator and its servers.
pub struct Cluster {
    coordinator: Member,
    servers: Vec<Member>,
    /// The directory of the cluster, if it has one.
    directory: Option<PathBuf>,
    /// The number of servers that will leave the cluster.
    surplus: u16,
    /// The time before which no directory of a server that has left is removed.
    needed_until: Option<Instant>,
    lease: Duration,
    /// The coordinator's state in memory, if the coordinator has no file for it. The memory is
    /// freed with the cluster.
    _state: Option<File>,
}

/// The options of a cluster.
pub struct Plan<'p> {
    /// Name of the cluster, from which the names in shared memory derive.
    pub name: &'p str,
    /// The coordinator's port, the first of [`ports`]. Server `i` takes this port + `i`, and for
    /// RDMA the port `servers` above that one.
    pub port: u16,
    /// Number of the cluster's servers.
    pub servers: u16,
    /// Number of further servers, whose data the directory has from an earlier run. They leave the
    /// cluster by [`Cluster::shrink`].
    pub leaving: u16,
    /// Memory of each server for objects, in bytes.
    pub memory: u64,
    /// The number of replicas of each object on other servers.
    pub replicas: u16,
    /// The time at which a change is acknowledged. `None`: the servers' default.
    pub durability: Option<Durability>,
    /// Term of the servers' leases.
    pub lease: Duration,
    /// Directory of the replicas and of the coordinator's state: the next cluster with it has all
    /// objects. `None` keeps the replicas in memory.
    pub directory: Option<&'p Path>,
    /// File of the coordinator's state, if there is no directory. `None` keeps the state in memory
    /// of this process.
    pub state: Option<&'p Path>,
    /// Core that all processes of the cluster run on. `None` binds them to no core.
    pub core: Option<usize>,
    /// IPv4 address at which the processes listen. `None` is loopback.
    pub host: Option<std::net::Ipv4Addr>,
    /// Emulated hosts of the coordinator and of each server, if each has one of its own: the
    /// processes listen at their addresses there, over UDP and TCP. Empty: all processes run in the
    /// network of this one.
    pub hosts: Vec<Host>,
    /// Further locators of the first server. Each of the other servers has only the locators that
    /// [`Locator::worker`] gives it.
    pub besides: Vec<Locator>,
    /// True if the servers record tracepoints of requests.
    pub tracepoints: bool,
    /// True if the servers touch all of their memory at the start.
    pub populate: bool,
    /// The servers' option `--scrub`. `None`: their default.
    pub scrub: Option<String>,
}

impl Plan<'_> {
    /// Returns the address of the coordinator (0) or of server `index`, from 1 on.
    fn host(&self, index: u16) -> std::net::Ipv4Addr {
        let own = self.emulated(index).map(Host::address);
        own.or(self.host).unwrap_or(std::net::Ipv4Addr::LOCALHOST)
    }

    /// Returns the emulated host of the coordinator (0) or of server `index`.
    fn emulated(&self, index: u16) -> Option<&Host> {
        self.hosts.get(usize::from(index))
    }

    /// Returns the time within which a server has to serve after its start.
    fn patience(&self) -> Duration {
        let bytes = self.memory.saturating_mul(1 + u64::from(self.replicas));
        START + Duration::from_secs(if self.populate { bytes / SLOWEST_TOUCH } else { 0 })
    }

    /// True if the processes listen beyond loopback.
    fn is_beyond_loopback(&self) -> bool {
        self.host.is_some() || !self.hosts.is_empty()
    }
}

/// A process of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The coordinator.
    Coordinator,
    /// The server with this number, from 1 on.
    Server(u16),
}

/// Term of a server's lease, unless a cluster needs another one.
pub const LEASE: Duration = Duration::from_secs(2);

/// Command line option that allows a server to listen beyond loopback.
pub const INSECURE: &str = "--insecure-network";

/// The bytes of memory that a server touches in a second at least: a tenth of what was measured in
/// a virtual machine whose hypervisor had to find the memory.
const SLOWEST_TOUCH: u64 = 50_000_000;

/// Name of the coordinator's state in the directory of a cluster.
const COORDINATOR_STATE: &str = "coordinator";

/// Returns the file of the coordinator's state in the directory of a cluster.
pub fn coordinator_state(directory: &Path) -> PathBuf {
    directory.join(COORDINATOR_STATE)
}

/// Returns the file of the replicas that server `index` holds.
pub fn frames_file(directory: &Path, index: u16) -> PathBuf {
    server_directory(directory, index).join(FRAMES)
}

/// Returns the directory of server `index`, from 1 on, in the directory of a cluster.
pub fn server_directory(directory: &Path, index: u16) -> PathBuf {
    directory.join(format!("server-{index}"))
}

/// Number of consecutive ports that a cluster needs.
pub const fn ports(servers: u16) -> u16 {
    1 + 2 * servers
}

impl Cluster {
    /// Starts all processes of the cluster and waits until the servers have joined.
    pub fn start(plan: &Plan<'_>) -> Result<Self, Fail> {
        let mut args = vec![
            "coordinator".to_owned(),
            "-C".to_owned(),
            format!("tcp:host={},port={}", plan.host(0), plan.port),
        ];
        args.extend(plan.is_beyond_loopback().then(|| INSECURE.to_owned()));
        args.extend(["--lease".to_owned(), plan.lease.as_secs_f64().to_string()]);
        args.push("--state".to_owned());
        let mut state = None;
        let in_directory = plan.directory.map(coordinator_state);
        match in_directory.as_deref().or(plan.state) {
            Some(path) => args.push(path.to_string_lossy().into_owned()),
            None => {
                let file = state.insert(state_in_memory()?);
                args.push(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
            }
        }
        let coordinator = Member::start(
            "the coordinator".to_owned(),
            plan.core,
            plan.emulated(0).cloned(),
            args,
            START,
        )?;
        let mut cluster = Self {
            coordinator,
            servers: Vec::new(),
            directory: plan.directory.map(Path::to_path_buf),
            surplus: plan.leaving,
            needed_until: None,
            lease: plan.lease,
            _state: state,
        };
        let mut store = Store::over(cluster.coordinator(), &[])?;
        // The servers start one after the other, so that the coordinator numbers them in this
        // order.
        for index in 1..=plan.servers + plan.leaving {
            // A state file has the servers of the last run until their leases end.
            let known: Vec<_> = store.servers()?.into_iter().map(|server| server.server).collect();
            cluster.add_server(plan, index)?;
            cluster.wait_for_another_server(&mut store, &known)?;
        }
        Ok(cluster)
    }

    fn add_server(&mut self, plan: &Plan<'_>, index: u16) -> Result<(), Fail> {
        let (name, port, host) = (plan.name, plan.port + index, plan.host(index));
        let mut locators = format!("fast+udp:host={host},port={port};tcp:host={host},port={port}");
        if plan.hosts.is_empty() {
            // A client takes the first locator by default. RDMA uses TCP, so it needs a port of its
            // own.
            let rdma = port + plan.servers + plan.leaving;
            locators =
                format!("fast+shm:name={name}.{index};{locators};rdma:host={host},port={rdma}");
        }
        for first in &plan.besides {
            let own = first.worker(index - 1).map_err(|error| Fail::usage(error.to_string()))?;
            locators += &format!(";{own}");
        }
        let (memory, replicas) = (plan.memory.to_string(), plan.replicas.to_string());
        let mut args =
            vec!["server", "-C", self.coordinator(), "-L", &locators, "--memory", &memory];
        args.extend(["--replicas", &replicas]);
        args.extend(plan.durability.iter().flat_map(|mode| ["--durability", mode.name()]));
        args.extend(plan.is_beyond_loopback().then_some(INSECURE));
        args.extend(plan.tracepoints.then_some("--tracepoints"));
        args.extend(plan.populate.then_some("--populate"));
        args.extend(plan.scrub.iter().flat_map(|days| ["--scrub", days.as_str()]));
        let mut args: Vec<_> = args.into_iter().map(str::to_owned).collect();
        if let Some(directory) = plan.directory {
            let own = server_directory(directory, index).to_string_lossy().into_owned();
            args.extend(["--dir".to_owned(), own]);
            args.extend((plan.servers == 1).then(|| "--allow-local-backup".to_owned()));
        }
        let host = plan.emulated(index).cloned();
        let (name, patience) = (format!("server {index}"), plan.patience());
        self.servers.push(Member::start(name, plan.core, host, args, patience)?);
        Ok(())
    }

    /// Waits until the coordinator knows a server that is not among `known`.
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

    /// Returns the coordinator's locators.
    pub fn coordinator(&self) -> &str {
        &self.coordinator.locators
    }

    /// Returns a table of the cluster's processes and their locators, as text.
    pub fn table(&self) -> String {
        let mut table = Columns::new(&["process", ">id", "locator"]);
        for Member { process, locators, .. } in
            std::iter::once(&self.coordinator).chain(&self.servers)
        {
            let (mut name, mut id) =
                (process.name().trim_start_matches("the ").to_owned(), process.id().to_string());
            for locator in locators.split(';') {
                // Only the first line of a process has its name.
                table.row([std::mem::take(&mut name), std::mem::take(&mut id), locator.to_owned()]);
            }
        }
        table.text()
    }

    /// Returns the process ids of the cluster, the coordinator's first.
    pub fn ids(&self) -> Vec<u32> {
        std::iter::once(&self.coordinator)
            .chain(&self.servers)
            .map(|member| member.process.id())
            .collect()
    }

    /// Starts the cluster's processes again that have ended, and returns a message for each. It
    /// never waits.
    pub fn restart(&mut self, now: Instant) -> Vec<String> {
        self.members().filter_map(|member| member.restart(now)).collect()
    }

    /// Advances the departure of the servers that are more than the cluster is to have, and returns
    /// a message if there is something to tell. One server leaves at a time, and only while the
    /// cluster is whole, so that no replica is the only one. Its directory is removed once the
    /// others have all that it held.
    pub fn shrink(&mut self, store: &mut Store, now: Instant) -> Option<String> {
        if self.surplus == 0 {
            return None;
        }
        let name = self.servers.last()?.process.name().to_owned();
        match self.servers.last_mut()?.has_left() {
            None => {
                // A server that does not answer is not whole.
                if !store.is_whole(self.servers.len()).unwrap_or(false) {
                    return None;
                }
                self.servers.last_mut()?.leave();
                Some(format!("{name} leaves; the others take over what it has"))
            }
            Some(false) => None,
            Some(true) => {
                // Each server that is up learns within its lease that the replicas are gone.
                let until = *self.needed_until.get_or_insert(now + self.lease);
                if now < until || !store.is_whole(self.servers.len() - 1).unwrap_or(false) {
                    return None;
                }
                self.needed_until = None;
                self.surplus -= 1;
                let index = self.servers.len() as u16;
                self.servers.pop()?.remove_names();
                let own = server_directory(self.directory.as_deref()?, index);
                Some(match std::fs::remove_dir_all(&own) {
                    Ok(()) => format!("{name} has left, and {} is removed", own.display()),
                    Err(error) => format!("{name} has left; {}: {error}", own.display()),
                })
            }
        }
    }

    /// Kills the server that has these locators. It does not start again until
    /// [`Cluster::restart`].
    pub fn kill(&mut self, locators: &str) -> Result<(), Fail> {
        let server = self.servers.iter_mut().find(|server| server.locators == locators);
        let Some(server) = server else {
            return Err(Fail::new(format!("no server of the cluster listens at {locators}")));
        };
        server.process.kill();
        Ok(())
    }

    fn member(&mut self, part: Part) -> Option<&mut Member> {
        match part {
            Part::Coordinator => Some(&mut self.coordinator),
            Part::Server(index) => self.servers.get_mut(usize::from(index).checked_sub(1)?),
        }
    }

    /// Kills processes with SIGKILL, all of them before it waits for the end of one. They do not
    /// start again until [`Cluster::release`]. A part that the cluster does not have is ignored,
    /// here and below.
    pub fn hold(&mut self, parts: &[Part]) {
        for part in parts {
            self.member(*part).into_iter().for_each(Member::hold);
        }
        for part in parts {
            self.member(*part).into_iter().for_each(|member| member.process.kill());
        }
    }

    /// Lets a process that was held start again at the next [`Cluster::restart`].
    pub fn release(&mut self, part: Part, now: Instant) {
        self.member(part).into_iter().for_each(|member| member.release(now));
    }

    /// Ends server `index` by SIGTERM, without a wait. It starts again at [`Cluster::restart`].
    pub fn terminate(&mut self, index: u16) {
        self.member(Part::Server(index)).into_iter().for_each(|member| member.process.terminate());
    }

    /// Stops a process with SIGSTOP until [`Cluster::resume`].
    pub fn pause(&mut self, part: Part) {
        self.member(part).into_iter().for_each(|member| member.process.pause());
    }

    /// Lets a stopped process go on.
    pub fn resume(&mut self, part: Part) {
        self.member(part).into_iter().for_each(|member| member.process.resume());
    }

    /// True if all processes of the cluster serve.
    pub fn serves(&mut self) -> bool {
        self.members().all(Member::serves)
    }

    /// Returns all processes of the cluster, the coordinator first.
    fn members(&mut self) -> impl Iterator<Item = &mut Member> {
        std::iter::once(&mut self.coordinator).chain(&mut self.servers)
    }

    /// Ends all processes of the cluster. The coordinator ends first: it would order the servers
    /// that are still up to recover those that have ended. Its state is durable before each reply,
    /// and the servers' replicas before each acknowledgement, so that no order loses anything.
    pub fn end(&mut self) {
        // A stopped process does not see a request to end.
        self.members().for_each(|member| member.process.resume());
        self.coordinator.process.end();
        for server in &mut self.servers {
            server.process.terminate();
        }
        for server in &mut self.servers {
            server.process.end();
        }
        self.members().for_each(|member| member.remove_names());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.end();
    }
}

/// Makes an empty file in memory for the coordinator's state. The kernel removes it with this
/// process.
fn state_in_memory() -> Result<File, Fail> {
    let file = memfd_create("sprat-state", MemfdFlags::CLOEXEC)
        .named("cannot take memory for the state")?;
    let file = File::from(file);
    StateDisk::prepare(&file).named("cannot write the state in memory")?;
    Ok(file)
}
