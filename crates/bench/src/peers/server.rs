//! The server of a peer as a child process on loopback: it keeps everything in memory, runs on one
//! core with one working thread, and ends with this process.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::connection::{Address, Connection, Protocol};
use crate::fail::{Fail, Named as _};
use crate::folder::Folder;
use crate::process::{START, wait_until};

/// Beginning of the name of the folder of a peer's server, which has its socket file.
const FOLDER: &str = "sprat-peer-";
/// Runs a program and has the kernel end it with its parent.
const PROGRAM: &str = "setpriv";

/// A peer: a store that others make, and the sockets that clients reach it by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// Redis over loopback TCP.
    Redis,
    /// Redis over a Unix socket.
    RedisUnix,
    /// The server memcached over loopback TCP.
    Memcached,
    /// The server memcached over a Unix socket.
    MemcachedUnix,
}

impl Peer {
    /// All peers, in the order of help texts.
    pub const ALL: [Self; 4] = [Self::Redis, Self::RedisUnix, Self::Memcached, Self::MemcachedUnix];

    /// Returns the peer's name on the command line and in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::RedisUnix => "redis+unix",
            Self::Memcached => "memcached",
            Self::MemcachedUnix => "memcached+unix",
        }
    }

    /// Returns the protocol that the peer speaks.
    #[must_use]
    pub const fn protocol(self) -> Protocol {
        match self {
            Self::Redis | Self::RedisUnix => Protocol::Resp,
            Self::Memcached | Self::MemcachedUnix => Protocol::Memcached,
        }
    }

    /// True if the peer can read objects in the order of their keys.
    #[must_use]
    pub const fn scans(self) -> bool {
        matches!(self, Self::Redis | Self::RedisUnix)
    }

    const fn unix(self) -> bool {
        matches!(self, Self::RedisUnix | Self::MemcachedUnix)
    }

    /// Returns the program of the peer's server, with its arguments.
    fn command(self, at: &Address, memory: u64) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let mut add = |more: &[&str]| words.extend(more.iter().map(|&word| word.to_owned()));
        let mib = (memory >> 20).max(64).to_string();
        match self.protocol() {
            Protocol::Resp => {
                add(&["redis-server", "--save", "", "--appendonly", "no", "--daemonize", "no"]);
                match at {
                    Address::Tcp(at) => {
                        add(&["--bind", &at.ip().to_string(), "--port", &at.port().to_string()]);
                    }
                    Address::Unix(path) => {
                        add(&["--port", "0", "--unixsocket", &path.to_string_lossy()]);
                    }
                }
            }
            Protocol::Memcached => {
                // With -M it reports a full memory and evicts nothing.
                add(&["memcached", "-M", "-m", &mib, "-t", "1", "-U", "0", "-c", "4096"]);
                // As root it asks for a user. Another one than this process's would take the
                // kernel's promise away, to end it with its parent.
                if rustix::process::geteuid().is_root() {
                    add(&["-u", "root"]);
                }
                match at {
                    Address::Tcp(at) => {
                        add(&["-l", &at.ip().to_string(), "-p", &at.port().to_string()]);
                    }
                    Address::Unix(path) => add(&["-s", &path.to_string_lossy()]),
                }
            }
        }
        words
    }
}

/// A running server of a peer. It ends when this value is dropped.
#[derive(Debug)]
pub struct PeerServer {
    peer: Peer,
    at: Address,
    child: Child,
    _folder: Folder,
}

impl PeerServer {
    /// Starts a server with `memory` bytes for objects at a free port, or at a socket file of its
    /// own. The server runs on the cores of the calling thread. Call it from the main thread: the
    /// server ends with the thread that starts it.
    pub fn start(peer: Peer, port: u16, memory: u64) -> Result<Self, Fail> {
        let folder = Folder::new(&std::env::temp_dir(), &format!("{FOLDER}{}-", peer.name()))?;
        let at = match peer.unix() {
            true => Address::Unix(folder.path().join("socket")),
            false => Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        };
        let words = peer.command(&at, memory);
        check(&words[0])?;
        let mut command = Command::new(PROGRAM);
        command.args(["--pdeathsig", "TERM", "--"]).args(&words).current_dir(folder.path());
        // Ctrl-C reaches this process alone, which then ends the server.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().named(format_args!("cannot start {}", words[0]))?;
        let mut server = Self { peer, at, child, _folder: folder };
        let mut answers = false;
        wait_until(START, || {
            let ended = matches!(server.child.try_wait(), Ok(Some(_)) | Err(_));
            answers = !ended && server.connect().is_ok_and(|mut client| client.answers());
            answers || ended
        });
        if answers {
            return Ok(server);
        }
        Err(Fail::new(format!("{} does not answer", words[0]))
            .next(format!("see why: {}", words.join(" "))))
    }

    /// Returns the peer of the server.
    #[must_use]
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Connects to the server.
    pub fn connect(&self) -> Result<Connection, Fail> {
        Connection::open(self.peer.protocol(), &self.at)
            .named(format_args!("cannot connect to {}", self.peer.name()))
    }
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Fails if `program` is in no directory of PATH.
fn check(program: &str) -> Result<(), Fail> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|at: std::path::PathBuf| {
        let file: &Path = &at.join(program);
        file.is_file()
    });
    if found {
        return Ok(());
    }
    Err(Fail::new(format!("{program} is not installed"))
        .next("install Redis and memcached: scripts/tools --stores"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::reply::Reply;
    use crate::perf::local::free_ports;

    /// Writes, reads and misses on the real servers, which `scripts/tools --stores` installs. CI
    /// has them; a machine without them has nothing to test here.
    #[test]
    fn the_real_servers_understand_the_requests() {
        let strict = std::env::var_os("CI").is_some();
        let absent = |program: &&str| check(program).is_err();
        if !strict && ["redis-server", "memcached"].iter().any(absent) {
            return;
        }
        for peer in Peer::ALL {
            let port = free_ports(1).expect("a port");
            let server = PeerServer::start(peer, port, 64 << 20).expect("it starts");
            let mut client = server.connect().expect("it connects");
            client.set(b"user1", b"a\r\nb", 1);
            client.get(b"user1", 2);
            client.get(b"user2", 3);
            let mut found = Vec::new();
            while found.len() < 3 {
                client.turn().expect("it answers");
                while let Some(reply) = client.reply().expect("replies") {
                    found.push(reply);
                }
            }
            let expected = [(1, Reply::Done), (2, Reply::Value(4)), (3, Reply::Absent)];
            assert_eq!(found, expected, "{}", peer.name());
        }
    }

    #[test]
    fn a_program_that_is_not_installed_is_named() {
        let fail = check("no-such-store").expect_err("there is none");
        assert!(fail.to_string().contains("no-such-store"), "{fail}");
        assert!(check("sh").is_ok());
    }
}
