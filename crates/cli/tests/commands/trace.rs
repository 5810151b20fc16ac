//! Tests of `sprat ping` and `sprat trace`: the layers of an echo, and captures.

use std::process::Output;

use crate::cluster::{Running, errors, run, text, unique};

/// A running `sprat echo` server of a test.
struct Server(Running);

impl Server {
    fn start(locators: &str, marks: bool) -> Self {
        let mut args = vec!["echo", "-L", locators];
        args.extend(marks.then_some("--tracepoints"));
        let mut server = Running::start(&args);
        server.wait_for("listening at");
        Self(server)
    }

    fn end(mut self) {
        self.0.signal("TERM");
        assert!(self.0.ended().success());
    }
}

fn ping(locator: &str) -> String {
    let output = run(&["ping", "--count", "3", "--interval", "1", locator]);
    assert!(output.status.success(), "{locator}: {}", errors(&output));
    text(&output)
}

/// Returns three locators at which one test server listens.
fn locators() -> [String; 3] {
    let (number, port) = unique(1);
    [
        format!("fast+shm:name=ping-{number}"),
        format!("fast+udp:host=127.0.0.1,port={port}"),
        format!("tcp:host=127.0.0.1,port={port}"),
    ]
}

#[test]
fn a_ping_says_where_its_time_went() {
    let locators = locators();
    let server = Server::start(&locators.join(";"), true);
    for locator in &locators {
        let shown = ping(locator);
        assert!(shown.contains("3 sent, 3 answered"), "{shown}");
        for part in [
            "client  caller",
            "client  driver",
            "server  service",
            "(100.0 %)",
            "the tracepoints took",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains("far end"), "{shown}");
    }
    server.end();
}

#[test]
fn a_server_without_tracepoints_is_the_far_end() {
    let locators = locators();
    let server = Server::start(&locators.join(";"), false);
    for locator in &locators {
        let shown = ping(locator);
        assert!(
            shown.contains("wire and far end") && shown.contains("records no tracepoints"),
            "{shown}"
        );
    }
    server.end();
}

#[test]
fn a_ping_of_nobody_fails() {
    let (number, _) = unique(1);
    let output = run(&["ping", "--count", "1", &format!("fast+shm:name=nobody-{number}")]);
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    let output = run(&["ping", "pigeon:loft=3"]);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
}

fn trace(file: &str, command: &[&str]) -> Output {
    run(&[&["trace", "-o", file, "--"], command].concat())
}

#[test]
fn what_a_command_sends_and_receives_is_in_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let locator = format!("fast+memif:socket={},host=10.80.0.2,port=7", path("memif"));
    let server = Server::start(&locator, false);
    let output = trace(&path("a.pcap"), &["ping", "--count", "3", "--interval", "1", &locator]);
    assert!(output.status.success(), "{}", errors(&output));
    assert!(text(&output).contains("3 sent, 3 answered"), "{}", text(&output));
    server.end();
    let said = errors(&output);
    let (file, frames) = said.trim().rsplit_once(": ").expect("a file and a number");
    // Three requests and replies, and before them address resolution.
    let frames: usize = frames.trim_end_matches(" frames").parse().expect("a number");
    assert!(frames >= 3 * 2 + 2 && file.ends_with("-1.pcap"), "{said}");
    assert!(std::fs::metadata(file).is_ok_and(|data| data.len() > 60 * frames as u64), "{said}");
}

#[test]
fn a_traced_command_ends_as_it_would() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.pcap").display().to_string();
    let output = trace(&file, &["get", "--help"]);
    assert!(output.status.success() && errors(&output).contains("opened no packet device"));
    assert_eq!(trace(&file, &["get"]).status.code(), Some(2));
    assert_eq!(trace(&file, &["sh", "-c", "exit 5"]).status.code(), Some(5));
    assert_eq!(trace(&file, &["no-such-program"]).status.code(), Some(1));
    assert_eq!(folder.path().read_dir().expect("reads").count(), 0);
}
