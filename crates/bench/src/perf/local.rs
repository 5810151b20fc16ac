//! The processes that a test measures: the first test that needs them starts them, and they end
//! with the run.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::Path;
use std::sync::Arc;

use crate::baseline::Open;
use sprat::locator::Locator;
use sprat_sys::netns::{Inside, Wire};

use super::disk::Copies;
use super::net::{self, Net};
use crate::cluster::{Cluster, INSECURE, LEASE, Plan, ports};
use crate::fail::Fail;
use crate::folder::Folder;
use crate::memory;
use crate::process::{self, Process, START};

/// Memory of the measured server: several times ClusterPerf's largest set.
const MEMORY: u64 = 2 << 30;

/// The processes and the network that one benchmark run starts.
pub(crate) struct Local {
    cores: Vec<usize>,
    transports: Vec<String>,
    echo: Option<Echo>,
    cluster: Option<Cluster>,
    /// The replicas of a cluster.
    copies: Copies,
    /// The directory of the cluster, if it has one.
    directory: Option<Folder>,
    folder: Option<Folder>,
    net: Option<Net>,
    tracepoints: bool,
    /// Memory of a store's server, in bytes.
    memory: u64,
    /// Least number of a store's servers.
    servers: u16,
}

/// Beginning of the name of a benchmark run's folder, which has its socket files.
const FOLDER: &str = "sprat-perf-";

/// Beginning of the name of the directory of a run's cluster.
const DIRECTORY: &str = "sprat-perf-cluster-";

/// A function that makes the openers of a baseline's two packet devices. Each round calls it again.
pub(crate) type Ends<'l> = Box<dyn Fn() -> std::io::Result<[Open<'static>; 2]> + 'l>;

/// A process that runs an echo server, and its locators.
pub(crate) struct Echo {
    process: Process,
    locators: String,
}

impl Local {
    /// Prepares a benchmark run over `transports`. If `here`, the run starts all processes, and
    /// packet devices get network namespaces, one of which the calling thread enters.
    pub(crate) fn new(transports: &[String], here: bool) -> Result<Self, Fail> {
        let net = (here && transports.iter().any(|t| net::wanted(t)))
            .then(|| Net::new(transports))
            .transpose()?;
        let folder = transports.iter().any(|t| net::below(t) == "memif");
        let folder = folder.then(|| Folder::new(&std::env::temp_dir(), FOLDER)).transpose()?;
        let (cores, transports) = (process::cores(), transports.to_vec());
        Ok(Self {
            cores,
            transports,
            echo: None,
            cluster: None,
            copies: Copies::default(),
            directory: None,
            folder,
            net,
            tracepoints: false,
            memory: MEMORY,
            servers: 1,
        })
    }

    /// Sets the replicas of a cluster, and makes its directory if it needs one.
    pub(crate) fn with_copies(mut self, copies: Copies) -> Result<Self, Fail> {
        let parent = copies.parent();
        if let Some(durability) = copies.durability {
            durability.check(copies.replicas.into(), parent.is_some()).map_err(
                |contradiction| Fail::usage(contradiction.to_string()).next(contradiction.remedy()),
            )?;
        }
        self.directory = parent.map(|parent| Folder::new(&parent, DIRECTORY)).transpose()?;
        self.copies = copies;
        Ok(self)
    }

    /// Returns the replicas of a cluster.
    pub(crate) fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Returns the directory of a cluster's replicas. `None` if it needs none.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.directory.as_ref().map(Folder::path)
    }

    /// Sets whether the servers that the run starts record tracepoints. Ends running servers that
    /// have the other setting.
    pub(crate) fn record_tracepoints(&mut self, tracepoints: bool) {
        if self.tracepoints != tracepoints {
            (self.echo, self.cluster) = (None, None);
            self.tracepoints = tracepoints;
        }
    }

    /// Sets the memory of a store's server from now on, in bytes. Ends a running cluster.
    pub(crate) fn resize(&mut self, memory: u64) {
        (self.memory, self.cluster) = (memory, None);
    }

    /// Sets the least number of a store's servers from now on. Ends a running cluster.
    pub(crate) fn serve(&mut self, servers: u16) {
        (self.servers, self.cluster) = (servers, None);
    }

    /// Returns the wire of the baselines, if the run has packet devices.
    pub(crate) fn wire(&self) -> Option<Arc<Wire>> {
        self.net.as_ref().map(|net| Arc::clone(net.floor()))
    }

    /// Returns a function that makes the openers of the two raw packet devices under `transport`.
    /// `None` if the transport has no device.
    pub(crate) fn device(&self, transport: &str) -> Option<Ends<'static>> {
        match net::below(transport) {
            "memif" => {
                let folder = self.folder.as_ref()?.path().to_owned();
                Some(Box::new(move || Ok(net::memif_ends(&folder))))
            }
            "shmnet" => Some(Box::new(|| Ok(net::shm_ends()))),
            _ => {
                let wire = self.wire().filter(|_| net::wanted(transport))?;
                let transport = transport.to_owned();
                Some(Box::new(move || Ok(net::ends(&transport, &wire))))
            }
        }
    }

    /// Returns the locator of a server over a device in memory, at which clients find it. `None` if
    /// the device is not in memory.
    pub(crate) fn memory_locator(&self, role: &str, transport: &str, port: u16) -> Option<String> {
        let name = format!("perf-{}-{role}", std::process::id());
        memory_locator(&name, role, transport, self.sockets(), port)
    }

    /// Moves the calling thread to the namespace of the servers while the result lives.
    fn far(&self) -> Result<Option<Inside>, Fail> {
        self.net.as_ref().map(Net::far).transpose()
    }

    /// Returns the locators of this process's ends of packet devices: those that the environment
    /// names, and those of the run's network.
    pub(crate) fn own(&self) -> Result<Vec<Locator>, Fail> {
        let mut own = crate::store::local()?;
        if self.net.is_some() {
            own.extend(self.transports.iter().filter_map(|t| net::own(t)));
        }
        Ok(own)
    }

    fn sockets(&self) -> Option<&Path> {
        self.folder.as_ref().map(Folder::path)
    }

    /// Returns the core that this process runs on. `None` if it may use only one.
    pub(crate) fn client_core(&self) -> Option<usize> {
        (self.cores.len() > 1).then(|| self.cores[0])
    }

    /// Returns the core that the servers run on. `None` if the process may use only one.
    pub(crate) fn server_core(&self) -> Option<usize> {
        (self.cores.len() > 1).then(|| self.cores[1])
    }

    /// Returns the echo server, which it starts if need be.
    pub(crate) fn echo(&mut self) -> Result<&Echo, Fail> {
        if self.echo.is_none() {
            let locators = locators("echo", &self.transports, self.sockets())?;
            let _far = self.far()?;
            // Both servers would have the same addresses.
            self.cluster.take_if(|_| self.net.is_some());
            self.echo = Some(self.start_echo_at(&locators, None)?);
        }
        Ok(self.echo.as_ref().expect("it was started above"))
    }

    /// Returns a cluster of a coordinator and as many servers as its replicas or the test need,
    /// which it starts if need be. All servers share a core, and the client has another one.
    pub(crate) fn cluster(&mut self) -> Result<&Cluster, Fail> {
        if self.cluster.is_none() {
            let name = format!("perf-{}", std::process::id());
            let Copies { replicas, durability, .. } = self.copies;
            let servers = (1 + replicas).max(self.servers);
            let core = self.server_core();
            // The client has the other core. Each server has room for ClusterPerf's largest set,
            // and for replicas as large.
            let rooms = u64::from(servers) * (1 + u64::from(replicas));
            let devices: Vec<_> =
                self.transports.iter().filter(|t| net::is_device(t)).cloned().collect();
            let besides = match &devices[..] {
                [] => Vec::new(),
                some => Locator::list(&locators("store", some, self.sockets())?)
                    .map_err(|error| Fail::new(error.to_string()))?,
            };
            self.echo.take_if(|_| self.net.is_some());
            let far = self.far()?;
            let plan = Plan {
                name: &name,
                port: free_ports(ports(servers))?,
                servers,
                memory: self.memory.min(memory::available() / rooms),
                replicas,
                durability,
                lease: LEASE,
                rebalance: None,
                leaving: 0,
                directory: self.directory(),
                state: None,
                core,
                host: far.as_ref().map(|_| Wire::kernel(1)),
                etcd: None,
                hosts: Vec::new(),
                besides,
                tracepoints: self.tracepoints,
                populate: false,
                scrub: None,
                metrics: None,
                log_format: None,
            };
            self.cluster = Some(Cluster::start(&plan)?);
        }
        Ok(self.cluster.as_ref().expect("it was started above"))
    }

    /// Starts a new echo server on one transport.
    pub(crate) fn fresh_echo(&self, role: &str, transport: &str) -> Result<Echo, Fail> {
        self.start_echo(role, &[transport.to_owned()])
    }

    /// Starts a server over a bond that answers with the number of requests that it has executed.
    /// Returns its locator.
    pub(crate) fn tally(&mut self) -> Result<String, Fail> {
        // Both servers would have the same addresses.
        (self.echo, self.cluster) = (None, None);
        let locators = locators("tally", &[net::BOND.to_owned()], self.sockets())?;
        let _far = self.far()?;
        let echo = self.start_echo_at(&locators, Some("--tally"))?;
        let at = echo.only();
        self.echo = Some(echo);
        Ok(at)
    }

    /// Ends the server of [`Local::tally`].
    pub(crate) fn end_tally(&mut self) {
        self.echo = None;
    }

    fn start_echo(&self, role: &str, transports: &[String]) -> Result<Echo, Fail> {
        let locators = locators(role, transports, self.sockets())?;
        let _far = self.far()?;
        self.start_echo_at(&locators, None)
    }

    fn start_echo_at(&self, locators: &str, more: Option<&str>) -> Result<Echo, Fail> {
        let mut args = vec!["echo", "-L", locators];
        args.extend(self.net.as_ref().map(|_| INSECURE));
        args.extend(self.tracepoints.then_some("--tracepoints"));
        args.extend(more);
        let mut process = Process::start("the echo server", self.server_core(), args)?;
        let locators = process.ready(START)?;
        Ok(Echo { process, locators })
    }
}

impl Echo {
    /// Returns the process id of the echo server.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns all locators of the echo server.
    pub(crate) fn only(&self) -> String {
        self.locators.clone()
    }

    /// Returns the echo server's locator whose transport is `transport`.
    pub(crate) fn at(&self, transport: &str) -> Result<String, Fail> {
        pick(&self.locators, transport)
    }
}

/// Returns the locator whose transport is `transport`, from the list `locators`.
pub(crate) fn pick(locators: &str, transport: &str) -> Result<String, Fail> {
    let found = locators.split(';').find(|l| l.split(':').next() == Some(transport));
    found.map(str::to_owned).ok_or_else(|| {
        let known: Vec<&str> = locators.split(';').filter_map(|l| l.split(':').next()).collect();
        Fail::usage(format!("the server does not listen on {transport}"))
            .next(format!("choose from: {}", known.join(", ")))
    })
}

/// Returns locators for one process of the run, one for each transport: a unique name, and a port
/// that is free on TCP and on UDP. Transports in memory need no checksum.
pub(crate) fn locators(
    role: &str,
    transports: &[String],
    sockets: Option<&Path>,
) -> Result<String, Fail> {
    let port = free_ports(2)?;
    let name = format!("perf-{}-{role}", std::process::id());
    let devices = transports.iter().any(|t| net::wanted(t));
    let host = if devices { Wire::kernel(1) } else { Ipv4Addr::LOCALHOST };
    let of = |transport: &String| match transport.as_str() {
        memory if let Some(at) = memory_locator(&name, role, memory, sockets, port) => at,
        "fast+shm" => format!("fast+shm:name={name}"),
        device if net::wanted(device) => net::locator(device, port),
        // RDMA uses a TCP port that the transport `tcp` does not.
        "rdma" => format!("rdma:host={host},port={}", port + 1),
        other => format!("{other}:host={host},port={port}"),
    };
    Ok(transports.iter().map(of).collect::<Vec<_>>().join(";"))
}

/// Returns the locator of a server over a device in memory. `None` if the device is not in memory.
fn memory_locator(
    name: &str,
    role: &str,
    transport: &str,
    sockets: Option<&Path>,
    port: u16,
) -> Option<String> {
    let over = transport.split('+').next().unwrap_or_default();
    let socket = sockets.unwrap_or_else(|| Path::new(".")).join(format!("{role}.{over}"));
    let device = match net::below(transport) {
        "memif" => format!("socket={}", socket.display()),
        "shmnet" => format!("name={name}.{over}"),
        _ => return None,
    };
    let crc = if over == "utcp" { "" } else { ",crc=off" };
    Some(format!("{transport}:{device},host={},port={port}{crc}", Wire::ours(1, 9)))
}

/// Returns the first of `count` consecutive ports that are free on TCP and on UDP now.
pub fn free_ports(count: u16) -> Result<u16, Fail> {
    let free = |port: u16| {
        TcpListener::bind(("127.0.0.1", port)).is_ok()
            && UdpSocket::bind(("127.0.0.1", port)).is_ok()
    };
    // The ports are below those that the kernel assigns, so that no connection takes one before its
    // server does. The search begins at a place that depends on the process id, so that two runs at
    // a time find different ports.
    let (low, many) = (10_000, 20_000);
    let start = std::process::id().wrapping_mul(97) % many;
    for step in 0..200 {
        let first = (low + (start + step * u32::from(count)) % many) as u16;
        if (first..first + count).all(free) {
            return Ok(first);
        }
    }
    Err(Fail::new(format!("cannot find {count} ports in a row that are free on TCP and on UDP")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transport_picks_its_locator() {
        let locators = "fast+shm:name=a;fast+udp:host=::1,port=7;tcp:host=127.0.0.1,port=7";
        assert_eq!(pick(locators, "fast+udp").ok().as_deref(), Some("fast+udp:host=::1,port=7"));
        assert!(
            pick(locators, "fast")
                .expect_err("no such")
                .to_string()
                .contains("fast+shm, fast+udp, tcp")
        );
    }
}
