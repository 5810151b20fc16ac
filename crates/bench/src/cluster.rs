//! A cluster on this machine: a coordinator and its servers, each a process. Several coordinators
//! have an etcd, which is a process of the cluster too.
//!
//! The processes are children of this process and die with it. [`Cluster::restart`] starts a
//! process again that has ended, and the others go on: the coordinator comes back with its state,
//! since that is in a file, in memory of this process or in etcd, and a server with the replicas in
//! its directory, if it has one.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use sprat::internals::disk::StateDisk;
use sprat::locator::Locator;
use sprat::server::{Durability, FRAMES};
use sprat_store::types::ServerId;

use self::etcd::EtcdMember;
pub use self::host::Host;
use self::member::Member;

use crate::fail::{Fail, Named as _};
use crate::process::START;
use crate::store::Store;
use crate::text::Columns;

pub mod etcd;
mod host;
mod member;

/// Time that the servers of a new cluster may take to join it.
const ENLIST: Duration = Duration::from_secs(20);

/// The processes of a cluster on this machine: its coordinators and servers.
pub struct Cluster {
    coordinators: Vec<Member>,
    /// The locators of all coordinators.
    locators: String,
    /// The etcd of the coordinators, if their state is in one.
    etcd: Option<Member>,
    servers: Vec<Member>,
    /// The directory of the cluster, if it has one.
    directory: Option<PathBuf>,
    /// The number of servers that will leave the cluster.
    surplus: u16,
    /// The number of shards of each server.
    cores: u16,
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
    /// The coordinator's port, the first of [`ports`]. Shard `i` of all servers, from 1 on, takes
    /// this port + `i`, and for RDMA the port that is the number of all shards above that one.
    pub port: u16,
    /// Number of the cluster's servers.
    pub servers: u16,
    /// Number of the cores of each server, each with a shard.
    pub cores: u16,
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
    /// The coordinators' option `--rebalance`. `None`: nothing moves by itself.
    pub rebalance: Option<Duration>,
    /// Directory of the replicas and of the coordinator's state: the next cluster with it has all
    /// objects. `None` keeps the replicas in memory.
    pub directory: Option<&'p Path>,
    /// File of the coordinator's state, if there is no directory. `None` keeps the state in memory
    /// of this process.
    pub state: Option<&'p Path>,
    /// Several coordinators whose state is in an etcd of the cluster, and neither in the directory
    /// nor in a file. `None` is one coordinator.
    pub etcd: Option<OnEtcd<'p>>,
    /// Core that all processes of the cluster run on. `None` binds them to no core.
    pub core: Option<usize>,
    /// IPv4 address at which the processes listen. `None` is loopback.
    pub host: Option<std::net::Ipv4Addr>,
    /// Emulated hosts of the processes, if each has one of its own: the processes listen at their
    /// addresses there, over UDP and TCP. Empty: all processes run in the network of this one.
    pub hosts: Vec<(Part, Host)>,
    /// Further locators of the first server. Each of the other servers has only the locators that
    /// [`Locator::worker`] gives it.
    pub besides: Vec<Locator>,
    /// True if the servers record tracepoints of requests.
    pub tracepoints: bool,
    /// True if the servers touch all of their memory at the start.
    pub populate: bool,
    /// The servers' option `--scrub`. `None`: their default.
    pub scrub: Option<String>,
    /// The port of the coordinator's metrics; server `i` has this port + `i`. `None`: they serve
    /// no metrics.
    pub metrics: Option<u16>,
    /// The option `--log-format` of all processes. `None`: their default.
    pub log_format: Option<String>,
}

/// Several coordinators on an etcd of one member, which the cluster starts.
#[derive(Clone, Copy, Debug)]
pub struct OnEtcd<'p> {
    /// The number of coordinators.
    pub coordinators: u16,
    /// The directory of etcd's data.
    pub directory: &'p Path,
}

impl OnEtcd<'_> {
    /// Returns the number of ports that such a cluster needs behind those of [`ports`]: for etcd
    /// and its peers, of which it has none, and for each coordinator but the first one.
    pub const fn ports(coordinators: u16) -> u16 {
        1 + coordinators
    }
}

impl<'p> Plan<'p> {
    /// Returns the options of a cluster of servers with 1 GiB and one core each, which keeps
    /// nothing.
    pub fn new(name: &'p str, port: u16, servers: u16) -> Self {
        Self {
            name,
            port,
            servers,
            cores: 1,
            leaving: 0,
            memory: 1 << 30,
            replicas: 0,
            durability: None,
            lease: LEASE,
            rebalance: None,
            directory: None,
            state: None,
            etcd: None,
            core: None,
            host: None,
            hosts: Vec::new(),
            besides: Vec::new(),
            tracepoints: false,
            populate: false,
            scrub: None,
            metrics: None,
            log_format: None,
        }
    }

    /// Returns the number of shards of all servers.
    fn shards(&self) -> u16 {
        (self.servers + self.leaving) * self.cores
    }

    /// Returns the address at which a process listens.
    fn host(&self, part: Part) -> std::net::Ipv4Addr {
        let own = self.emulated(part).map(|host| host.address());
        own.or(self.host).unwrap_or(std::net::Ipv4Addr::LOCALHOST)
    }

    /// Returns the emulated host of a process.
    fn emulated(&self, part: Part) -> Option<Host> {
        self.hosts.iter().find(|(of, _)| *of == part).map(|(_, host)| host.clone())
    }

    /// Returns the first port behind those of a cluster with one coordinator: that of etcd.
    fn etcd_port(&self) -> u16 {
        self.port + ports(self.shards())
    }

    /// Returns the locator of coordinator `index`, from 1 on.
    fn coordinator(&self, index: u16) -> String {
        let port = if index == 1 { self.port } else { self.etcd_port() + index };
        format!("tcp:host={},port={port}", self.host(Part::Coordinator(index)))
    }

    /// Starts the cluster's etcd, if it has one. Returns its process, and the coordinators' option
    /// `--state` for it.
    fn start_etcd(&self) -> Result<Option<(Member, String)>, Fail> {
        let Some(OnEtcd { directory, .. }) = self.etcd else { return Ok(None) };
        etcd::check()?;
        let (name, host, port) = ("sprat", self.host(Part::Etcd), self.etcd_port());
        let peers = EtcdMember::peer(name, host, port);
        let own = EtcdMember { name, directory, scheme: "http", host, port, peers: &peers };
        let at = format!("{host}:{port}");
        let mut args = vec!["etcd".to_owned(), at.clone(), "--".to_owned()];
        args.extend(own.args());
        let host = self.emulated(Part::Etcd);
        let member = Member::start("etcd".to_owned(), self.core, host, args, START)?;
        Ok(Some((member, format!("etcd:host={at}"))))
    }

    /// Returns the time within which a server has to serve after its start.
    fn patience(&self) -> Duration {
        let bytes = self.memory.saturating_mul(1 + u64::from(self.replicas));
        START + Duration::from_secs(if self.populate { bytes / SLOWEST_TOUCH } else { 0 })
    }

    /// Returns the options of the process whose ports are those of the coordinator + `index`.
    fn served(&self, index: u16) -> Vec<String> {
        let metrics = self.metrics.map(|port| format!("--metrics=127.0.0.1:{}", port + index));
        let format = self.log_format.as_ref().map(|format| format!("--log-format={format}"));
        metrics.into_iter().chain(format).collect()
    }

    /// True if the processes listen beyond loopback.
    fn is_beyond_loopback(&self) -> bool {
        self.host.is_some() || !self.hosts.is_empty()
    }
}

/// A process of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    /// The coordinator with this number, from 1 on.
    Coordinator(u16),
    /// The etcd of several coordinators.
    Etcd,
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

/// Number of consecutive ports that a cluster needs whose servers have this number of shards
/// together.
pub const fn ports(shards: u16) -> u16 {
    1 + 2 * shards
}

impl Cluster {
    /// Starts all processes of the cluster and waits until the servers have joined.
    pub fn start(plan: &Plan<'_>) -> Result<Self, Fail> {
        let etcd = plan.start_etcd()?;
        let in_directory = plan.directory.map(coordinator_state);
        let mut file = None;
        let state = match (&etcd, in_directory.as_deref().or(plan.state)) {
            (Some((_, state)), _) => state.clone(),
            (None, Some(path)) => path.to_string_lossy().into_owned(),
            (None, None) => {
                let file = file.insert(state_in_memory()?);
                format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
            }
        };
        let count = plan.etcd.map_or(1, |etcd| etcd.coordinators);
        let list: Vec<_> = (1..=count).map(|index| plan.coordinator(index)).collect();
        let mut cluster = Self {
            coordinators: Vec::new(),
            locators: list.join(";"),
            etcd: etcd.map(|(member, _)| member),
            servers: Vec::new(),
            directory: plan.directory.map(Path::to_path_buf),
            surplus: plan.leaving,
            cores: plan.cores,
            needed_until: None,
            lease: plan.lease,
            _state: file,
        };
        for (index, locator) in (1..).zip(&list) {
            cluster.add_coordinator(plan, index, locator, &state)?;
        }
        let mut store = Store::over(cluster.coordinator(), &[])?;
        // The servers start one after the other, so that the coordinator numbers them in this
        // order.
        for index in 1..=plan.servers + plan.leaving {
            // A state file has the servers of the last run until their leases end.
            let known: Vec<_> = store.servers()?.into_iter().map(|server| server.server).collect();
            cluster.add_server(plan, index)?;
            cluster.wait_for_another_server(&mut store, &known, plan.cores)?;
        }
        Ok(cluster)
    }

    fn add_coordinator(
        &mut self,
        plan: &Plan<'_>,
        index: u16,
        locator: &str,
        state: &str,
    ) -> Result<(), Fail> {
        let lease = plan.lease.as_secs_f64().to_string();
        let mut args = vec!["coordinator", "-C", locator, "--lease", &lease, "--state", state];
        args.extend(plan.is_beyond_loopback().then_some(INSECURE));
        let mut args: Vec<_> = args.into_iter().map(str::to_owned).collect();
        args.extend(plan.rebalance.map(|each| format!("--rebalance={}", each.as_secs_f64())));
        args.extend(plan.served(index - 1));
        let name = match plan.etcd {
            Some(_) => format!("coordinator {index}"),
            None => "the coordinator".to_owned(),
        };
        let host = plan.emulated(Part::Coordinator(index));
        self.coordinators.push(Member::start(name, plan.core, host, args, START)?);
        Ok(())
    }

    fn add_server(&mut self, plan: &Plan<'_>, index: u16) -> Result<(), Fail> {
        let part = Part::Server(index);
        let port = plan.port + 1 + (index - 1) * plan.cores;
        let (name, host) = (plan.name, plan.host(part));
        let mut locators = format!("fast+udp:host={host},port={port};tcp:host={host},port={port}");
        if plan.hosts.is_empty() {
            // A client takes the first locator by default. RDMA uses TCP, so it needs a port of its
            // own.
            let rdma = port + plan.shards();
            locators =
                format!("fast+shm:name={name}.{index};{locators};rdma:host={host},port={rdma}");
        }
        for first in &plan.besides {
            let own = first
                .worker((index - 1) * plan.cores)
                .map_err(|error| Fail::usage(error.to_string()))?;
            locators += &format!(";{own}");
        }
        let (memory, replicas) = (plan.memory.to_string(), plan.replicas.to_string());
        let mut args =
            vec!["server", "-C", self.coordinator(), "-L", &locators, "--memory", &memory];
        args.extend(["--replicas", &replicas]);
        let cores = plan.cores.to_string();
        args.extend((plan.cores > 1).then_some(["--cores", &cores]).into_iter().flatten());
        args.extend(plan.durability.iter().flat_map(|mode| ["--durability", mode.name()]));
        args.extend(plan.is_beyond_loopback().then_some(INSECURE));
        args.extend(plan.tracepoints.then_some("--tracepoints"));
        args.extend(plan.populate.then_some("--populate"));
        args.extend(plan.scrub.iter().flat_map(|days| ["--scrub", days.as_str()]));
        let mut args: Vec<_> = args.into_iter().map(str::to_owned).collect();
        args.extend(plan.served(index));
        if let Some(directory) = plan.directory {
            let own = server_directory(directory, index).to_string_lossy().into_owned();
            args.extend(["--dir".to_owned(), own]);
            args.extend((plan.servers == 1).then(|| "--allow-local-backup".to_owned()));
        }
        let host = plan.emulated(part);
        let (name, patience) = (format!("server {index}"), plan.patience());
        self.servers.push(Member::start(name, plan.core, host, args, patience)?);
        Ok(())
    }

    /// Waits until the coordinator knows all shards of a server, which are not among `known`.
    fn wait_for_another_server(
        &mut self,
        store: &mut Store,
        known: &[ServerId],
        shards: u16,
    ) -> Result<(), Fail> {
        let begin = Instant::now();
        loop {
            let servers = store.servers()?;
            let new = servers.iter().filter(|server| !known.contains(&server.server));
            if new.count() >= shards.into() {
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

    /// Returns the locators of all coordinators.
    pub fn coordinator(&self) -> &str {
        &self.locators
    }

    /// Returns the coordinator that has these locators.
    pub fn coordinator_at(&self, locators: &str) -> Option<Part> {
        let found = self.coordinators.iter().position(|one| one.locators == locators)?;
        Some(Part::Coordinator(1 + found as u16))
    }

    /// Returns how often the cluster's etcd was started again.
    pub fn etcd_restarts(&self) -> u64 {
        self.etcd.as_ref().map_or(0, Member::restarts)
    }

    /// Returns a table of the cluster's processes and their locators, as text.
    pub fn table(&self) -> String {
        let mut table = Columns::new(&["process", ">id", "locator"]);
        for Member { process, locators, .. } in self.coordinators.iter().chain(&self.servers) {
            let (mut name, mut id) =
                (process.name().trim_start_matches("the ").to_owned(), process.id().to_string());
            for locator in locators.split(';') {
                // Only the first line of a process has its name.
                table.row([std::mem::take(&mut name), std::mem::take(&mut id), locator.to_owned()]);
            }
        }
        table.text()
    }

    /// Returns the process ids of the cluster's coordinators and servers, the coordinators' first.
    pub fn ids(&self) -> Vec<u32> {
        let members = self.coordinators.iter().chain(&self.servers);
        members.map(|member| member.process.id()).collect()
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
                if !store.is_whole(self.members_without(0)).unwrap_or(false) {
                    return None;
                }
                self.servers.last_mut()?.leave();
                Some(format!("{name} leaves; the others take over what it has"))
            }
            Some(false) => None,
            Some(true) => {
                // Each server that is up learns within its lease that the replicas are gone.
                let until = *self.needed_until.get_or_insert(now + self.lease);
                let rest = self.members_without(1);
                if now < until || !store.is_whole(rest).unwrap_or(false) {
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

    /// Returns the number of members of the cluster while all servers but the last `without` serve.
    fn members_without(&self, without: usize) -> usize {
        (self.servers.len() - without) * usize::from(self.cores)
    }

    /// Kills the server with a shard that has these locators. It does not start again until
    /// [`Cluster::restart`].
    pub fn kill(&mut self, locators: &str) -> Result<(), Fail> {
        let has = |server: &&mut Member| {
            [";", &server.locators, ";"].concat().contains(&[";", locators, ";"].concat())
        };
        let Some(server) = self.servers.iter_mut().find(has) else {
            return Err(Fail::new(format!("no server of the cluster listens at {locators}")));
        };
        server.process.kill();
        Ok(())
    }

    fn member(&mut self, part: Part) -> Option<&mut Member> {
        let (members, index) = match part {
            Part::Etcd => return self.etcd.as_mut(),
            Part::Coordinator(index) => (&mut self.coordinators, index),
            Part::Server(index) => (&mut self.servers, index),
        };
        members.get_mut(usize::from(index).checked_sub(1)?)
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

    /// Returns all processes of the cluster, etcd and the coordinators first.
    fn members(&mut self) -> impl Iterator<Item = &mut Member> {
        self.etcd.iter_mut().chain(&mut self.coordinators).chain(&mut self.servers)
    }

    /// Ends all processes of the cluster. The coordinators end first: they would order the servers
    /// that are still up to recover those that have ended. Their state is durable before each
    /// reply, and the servers' replicas before each acknowledgement, so that no order loses
    /// anything.
    pub fn end(&mut self) {
        // A stopped process does not see a request to end.
        self.members().for_each(|member| member.process.resume());
        for members in [&mut self.coordinators, &mut self.servers] {
            members.iter_mut().for_each(|member| member.process.terminate());
            members.iter_mut().for_each(|member| member.process.end());
        }
        // Any end leaves etcd's data whole, and this one is silent.
        self.etcd.iter_mut().for_each(|etcd| etcd.process.kill());
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
