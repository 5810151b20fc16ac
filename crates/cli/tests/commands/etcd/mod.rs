//! Coordinators with a real etcd, of one member and of three: a leader that is killed, one that is
//! stopped and goes on, an etcd that is away, and a member of it that is killed.
//!
//! They need the feature `etcd` and the programs `etcd` and `etcdctl`, which `scripts/tools --etcd`
//! installs. Elsewhere: [`tls`], [`users`], an etcd that loses or refuses ([`trouble`]), and `sprat
//! chaos` ([`chaos`]).

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use sprat_bench::cluster::etcd::EtcdMember;
use sprat_bench::process::wait_until;
use tempfile::TempDir;

use crate::cluster::{PATIENCE, Running, errors, run, signal, sprat, text, unique};

mod chaos;
mod tls;
mod trouble;
mod users;

/// The address of every member.
const HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// A member of an etcd, which is killed when this value is dropped.
struct Member(Child);

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An etcd on loopback.
struct Etcd {
    /// The members, in the order of their ports.
    members: Vec<Member>,
    /// The members' names and ports for clients; the next port is for the other members.
    names: Vec<(String, u16)>,
    scheme: &'static str,
    options: Vec<String>,
    folder: TempDir,
}

impl Etcd {
    /// Starts an etcd with this number of members and these further options.
    fn start(members: u16, options: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().expect("a temporary folder"), "http", members, options)
    }

    /// Starts an etcd that keeps its data in this folder, and whose clients use this scheme.
    fn start_in(folder: TempDir, scheme: &'static str, members: u16, options: &[&str]) -> Self {
        let (_, first) = unique(2 * members);
        let names = (0..members).map(|i| (format!("n{i}"), first + 2 * i)).collect();
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let mut etcd = Self { members: Vec::new(), names, scheme, options, folder };
        etcd.run();
        etcd
    }

    /// Starts all members.
    fn run(&mut self) {
        self.members = self.names.iter().map(|(name, port)| self.member(name, *port)).collect();
    }

    /// Returns the members' names with their addresses for each other.
    fn peers(&self) -> String {
        let peer = |(name, port): &(String, u16)| EtcdMember::peer(name, HOST, *port);
        self.names.iter().map(peer).collect::<Vec<_>>().join(",")
    }

    fn member(&self, name: &str, port: u16) -> Member {
        let (directory, peers) = (self.folder.path().join(name), self.peers());
        let (directory, peers, scheme) = (&*directory, &*peers, self.scheme);
        let own = EtcdMember { name, directory, scheme, host: HOST, port, peers };
        let mut command = Command::new("etcd");
        command.args(own.args()).args(&self.options);
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Member(command.spawn().expect("scripts/tools --etcd installs etcd"))
    }

    /// Returns the value of `--state` for this etcd.
    fn state(&self) -> String {
        let host = |(_, port): &(String, u16)| format!("host=127.0.0.1:{port}");
        format!("etcd:{}", self.names.iter().map(host).collect::<Vec<_>>().join(","))
    }

    /// Runs `etcdctl` with the first member.
    fn try_control(&self, args: &[&str]) -> Output {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.address()]).args(args);
        command.output().expect("scripts/tools --etcd installs etcdctl")
    }

    /// Runs `etcdctl` with the first member until it succeeds, and returns its standard output.
    fn control(&self, args: &[&str]) -> String {
        let mut output = self.try_control(args);
        let done = wait_until(PATIENCE, || {
            output.status.success() || {
                output = self.try_control(args);
                false
            }
        });
        assert!(done, "{args:?}: {}", errors(&output));
        text(&output)
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.names[0].1)
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Stops the first member, or lets it go on.
    fn signal(&self, name: &str) {
        signal(self.members[0].0.id(), name);
    }
}

/// The coordinators and the server of a cluster with its state in an etcd.
struct Stack {
    /// The coordinators by locator.
    coordinators: HashMap<String, Running>,
    state: String,
    list: String,
    server: Running,
    etcd: Etcd,
}

impl Stack {
    /// Starts three coordinators and a server over a new etcd with this number of members.
    fn start(members: u16) -> Self {
        Self::over(Etcd::start(members, &[]), 3, "")
    }

    /// Starts coordinators and a server over an etcd. `keys` follow the hosts in `--state`.
    fn over(etcd: Etcd, coordinators: u16, keys: &str) -> Self {
        let (_, port) = unique(coordinators + 1);
        let state = etcd.state() + keys;
        let at = |i: u16| format!("tcp:host=127.0.0.1,port={}", port + i);
        let locators: Vec<_> = (0..coordinators).map(at).collect();
        let list = locators.join(";");
        let begin = |locator: &String| (locator.clone(), coordinator(locator, &state));
        let all = locators.iter().map(begin).collect();
        let at = at(coordinators);
        let server = Running::start(&["server", "-C", &list, "-L", &at, "--memory", "48M"]);
        let stack = Self { coordinators: all, state, list, server, etcd };
        stack.creates("first");
        stack
    }

    /// Fails if a process of the cluster has ended.
    fn lives(&mut self) {
        for running in self.coordinators.values_mut().chain([&mut self.server]) {
            let ended = running.0.try_wait().expect("it is our child");
            assert!(ended.is_none(), "{ended:?}");
        }
    }

    /// Tries to create a table, and returns the standard error.
    fn refused(&self, table: &str) -> String {
        let output = run(&["table", "create", "-C", &self.list, table]);
        assert!(!output.status.success(), "{table} was created");
        errors(&output)
    }

    /// Waits until an object of the table `first` is read.
    fn reads(&self, key: &str, value: &str) {
        let read = wait_until(PATIENCE, || {
            text(&run(&["get", "-C", &self.list, "first", key])).trim_end() == value
        });
        assert!(read, "{key} is not {value}");
    }

    /// Waits until a table is created.
    fn creates(&self, table: &str) {
        let mut said = String::new();
        let created = wait_until(PATIENCE, || {
            let output = run(&["table", "create", "-C", &self.list, table]);
            said = errors(&output);
            output.status.success()
        });
        assert!(created, "{said}");
    }

    /// Waits until a coordinator leads. Returns its locator and its term.
    fn leader(&self) -> (String, u64) {
        let mut found = None;
        let led = wait_until(PATIENCE, || {
            let status = text(&run(&["status", "--json", "-C", &self.list]));
            let status = serde_json::from_str::<serde_json::Value>(&status).unwrap_or_default();
            found = status["leader"].as_str().map(str::to_owned).zip(status["term"].as_u64());
            found.is_some()
        });
        assert!(led, "no coordinator leads");
        found.expect("one was found")
    }

    /// Waits until another coordinator leads than the one of this term.
    fn leader_after(&self, term: u64) -> (String, u64) {
        let mut next = self.leader();
        assert!(wait_until(PATIENCE, || {
            next = self.leader();
            next.1 > term
        }));
        next
    }

    fn tables(&self) -> String {
        text(&run(&["table", "list", "-C", &self.list]))
    }
}

fn coordinator(locator: &str, state: &str) -> Running {
    let mut command = sprat();
    command.args(["coordinator", "-C", locator, "--state", state]);
    Running::of(command)
}

#[test]
fn the_next_coordinator_leads_when_one_is_killed_or_stopped() {
    let mut stack = Stack::start(1);
    run(&["put", "-C", &stack.list, "first", "key", "value"]);
    let (killed, term) = stack.leader();
    drop(stack.coordinators.remove(&killed));
    stack.creates("second");
    let (stopped, term) = stack.leader_after(term);
    assert_ne!(stopped, killed);
    let again = coordinator(&killed, &stack.state);
    stack.coordinators.insert(killed, again);
    let id = stack.coordinators[&stopped].0.id();
    signal(id, "STOP");
    stack.creates("third");
    let (leader, term) = stack.leader_after(term);
    assert_ne!(leader, stopped);
    // It finds that another one leads, and is a standby.
    signal(id, "CONT");
    stack.creates("fourth");
    assert_eq!(stack.leader(), (leader, term), "it leads no more");
    let tables = stack.tables();
    for table in ["first", "second", "third", "fourth"] {
        assert!(tables.contains(table), "{table} is not in {tables}");
    }
    stack.reads("key", "value");
}

#[test]
fn an_etcd_that_was_stopped_goes_on() {
    let stack = Stack::start(1);
    stack.etcd.signal("STOP");
    assert!(!stack.refused("meanwhile").is_empty());
    stack.etcd.signal("CONT");
    stack.creates("after");
    assert!(stack.tables().contains("first"));
}

#[test]
fn a_member_of_etcd_that_is_killed_is_not_missed() {
    let mut stack = Stack::start(3);
    // One of the three is the leader of etcd: each of them in turn, as long as two are left.
    drop(stack.etcd.members.remove(0));
    stack.creates("second");
    let (leader, term) = stack.leader();
    drop(stack.coordinators.remove(&leader));
    stack.leader_after(term);
    stack.creates("third");
    let tables = stack.tables();
    assert!(["first", "second", "third"].iter().all(|table| tables.contains(table)), "{tables}");
}

#[test]
fn options_of_etcd_that_make_no_sense_are_refused() {
    for (state, said) in [
        ("etcd:", "etcd"),
        ("etcd:host=", "host"),
        ("etcd:host=127.0.0.1:1,password=/nonexistent", "password"),
        ("etcd:host=127.0.0.1:1,colour=red", "colour"),
    ] {
        let output = run(&["coordinator", "-C", "tcp:host=127.0.0.1,port=1", "--state", state]);
        let errors = errors(&output);
        assert!(!output.status.success() && errors.contains(said), "{state}: {errors}");
    }
}
