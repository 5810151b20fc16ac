//! Coordinators with a real etcd, of one member and of three: a leader that is killed, one that is
//! stopped and goes on, an etcd that is away, and a member of it that is killed.
//!
//! They need the feature `etcd` and the program `etcd`, which `scripts/tools --etcd` installs.

use std::collections::HashMap;
use std::process::{Child, Command, Stdio};

use sprat_bench::process::wait_until;
use tempfile::TempDir;

use crate::cluster::{PATIENCE, Running, errors, run, signal, sprat, text, unique};

/// A member of an etcd, which is killed when this value is dropped.
struct Member(Child);

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An etcd on loopback, and the coordinators and the server of a cluster on it.
struct Stack {
    /// The members of etcd, in the order of their ports.
    members: Vec<Member>,
    /// The coordinators by locator.
    coordinators: HashMap<String, Running>,
    state: String,
    list: String,
    _server: Running,
    _folder: TempDir,
}

/// Starts an etcd with this number of members, and returns it with its clients' ports.
fn etcd(members: u16, first_port: u16, folder: &TempDir) -> (Vec<Member>, Vec<u16>) {
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let names: Vec<_> = (0..members).map(|i| (format!("n{i}"), first_port + 2 * i)).collect();
    let peers: Vec<_> =
        names.iter().map(|(name, port)| format!("{name}={}", url(port + 1))).collect();
    let start = |(name, port): &(String, u16)| {
        let mut command = Command::new("etcd");
        command.args(["--name", name, "--initial-cluster", &peers.join(",")]);
        command.arg("--data-dir").arg(folder.path().join(name));
        for option in ["--listen-client-urls", "--advertise-client-urls"] {
            command.args([option, &url(*port)]);
        }
        for option in ["--listen-peer-urls", "--initial-advertise-peer-urls"] {
            command.args([option, &url(port + 1)]);
        }
        command.args(["--logger", "zap", "--log-level", "error"]);
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Member(command.spawn().expect("scripts/tools --etcd installs etcd"))
    };
    let ports = names.iter().map(|(_, port)| *port).collect();
    (names.iter().map(start).collect(), ports)
}

impl Stack {
    fn start(members: u16) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (_, port) = unique(2 * members + 4);
        let (members, ports) = etcd(members, port + 4, &folder);
        let hosts: Vec<_> = ports.iter().map(|port| format!("host=127.0.0.1:{port}")).collect();
        let state = format!("etcd:{}", hosts.join(","));
        let at = |i: u16| format!("tcp:host=127.0.0.1,port={}", port + i);
        let locators = [at(0), at(1), at(2)];
        let list = locators.join(";");
        let begin = |locator: &String| (locator.clone(), coordinator(locator, &state));
        let coordinators = locators.iter().map(begin).collect();
        let server = Running::start(&["server", "-C", &list, "-L", &at(3), "--memory", "48M"]);
        let stack = Self { members, coordinators, state, list, _server: server, _folder: folder };
        stack.creates("first");
        stack
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
    let read = wait_until(PATIENCE, || {
        text(&run(&["get", "-C", &stack.list, "first", "key"])).trim_end() == "value"
    });
    assert!(read, "the server has its objects");
}

#[test]
fn an_etcd_that_was_stopped_goes_on() {
    let stack = Stack::start(1);
    let id = stack.members[0].0.id();
    signal(id, "STOP");
    let refused = run(&["table", "create", "-C", &stack.list, "meanwhile"]);
    assert!(!refused.status.success() && !errors(&refused).is_empty());
    signal(id, "CONT");
    stack.creates("after");
    assert!(stack.tables().contains("first"));
}

#[test]
fn a_member_of_etcd_that_is_killed_is_not_missed() {
    let mut stack = Stack::start(3);
    // One of the three is the leader of etcd: each of them in turn, as long as two are left.
    drop(stack.members.remove(0));
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
