//! The etcd of a cluster whose coordinators share their state: the options of its members, and the
//! program, which takes the place of a process of this one.

use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::fail::Fail;
use crate::process::print_ready;

/// The program of etcd.
const PROGRAM: &str = "etcd";

/// A member of an etcd on this machine.
#[derive(Clone, Copy, Debug)]
pub struct EtcdMember<'m> {
    /// The name of the member.
    pub name: &'m str,
    /// The directory of the member's data.
    pub directory: &'m Path,
    /// The scheme of the addresses for clients: `http`, or `https` with TLS.
    pub scheme: &'m str,
    /// The address at which the member listens.
    pub host: Ipv4Addr,
    /// The port for clients. The next port is for other members.
    pub port: u16,
    /// The names of all members with their addresses for each other, as `--initial-cluster` has
    /// them.
    pub peers: &'m str,
}

impl EtcdMember<'_> {
    /// Returns the member's name with its address for other members.
    pub fn peer(name: &str, host: Ipv4Addr, port: u16) -> String {
        format!("{name}=http://{host}:{}", port + 1)
    }

    /// Returns the options of the program.
    pub fn args(&self) -> Vec<String> {
        let client = format!("{}://{}:{}", self.scheme, self.host, self.port);
        let peer = format!("http://{}:{}", self.host, self.port + 1);
        let options = [
            ("--name", self.name),
            ("--data-dir", &*self.directory.to_string_lossy()),
            ("--initial-cluster", self.peers),
            ("--listen-client-urls", &client),
            ("--advertise-client-urls", &client),
            ("--listen-peer-urls", &peer),
            ("--initial-advertise-peer-urls", &peer),
            ("--logger", "zap"),
            ("--log-level", "error"),
        ]
        .map(|(option, value)| [option.to_owned(), value.to_owned()]);
        options.into_iter().flatten().collect()
    }
}

/// Fails if this machine has no etcd.
pub fn check() -> Result<(), Fail> {
    let mut command = Command::new(PROGRAM);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(absent(format!("{PROGRAM} --version: {status}"))),
        Err(error) => Err(absent(format!("cannot run {PROGRAM}: {error}"))),
    }
}

/// Replaces this process by etcd, after it has printed `at` as the place where it listens. The
/// process id stays, and with it the kernel's promise to end the process with its parent. Returns
/// only if etcd cannot run.
pub fn become_etcd(at: &str, args: &[String]) -> Fail {
    // Those that need etcd wait for its answer themselves.
    if let Err(fail) = print_ready(at) {
        return fail;
    }
    absent(format!("cannot run {PROGRAM}: {}", Command::new(PROGRAM).args(args).exec()))
}

fn absent(what: String) -> Fail {
    Fail::new(what).next("install etcd (Debian: etcd-server), and have it in PATH")
}
