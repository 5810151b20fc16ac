//! Tests of `sprat tcp` against curl, Python's HTTP server, and the kernel's TCP.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use sprat_sys::netns::{DEV, Wire, link};

use crate::{Serving, run, sprat};

/// The address of our stack, and the one of our client.
const OURS: &str = "10.83.0.200";
const CLIENT: &str = "10.83.0.201";

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Lets curl fetch files from our HTTP server on a device, and compares them.
pub(crate) fn curl(driver: &str) {
    let folder = tempfile::tempdir().unwrap();
    let (served, fetched) = (folder.path().join("served"), folder.path().join("fetched"));
    fs::create_dir(&served).unwrap();
    fs::write(served.join("long file"), bytes(20_000_000)).unwrap();
    fs::write(served.join("index.html"), b"a page").unwrap();
    let net = Wire::new(1500).unwrap();
    // A tap's other end is the kernel's in the same namespace.
    let (dev, client) = if driver == "tap" { ("sprat0", 1) } else { (DEV, 0) };
    let inside = net.end(1).enter().unwrap();
    let at = format!("utcp+{driver}:dev={dev},host={OURS},port=80");
    let server = Serving::start_with(sprat().args(["tcp", "serve", &at, "--http"]).arg(&served));
    if driver == "tap" {
        link::switch(DEV, false).unwrap();
        link::address(dev, "10.83.0.9".parse().unwrap(), 24).unwrap();
    }
    drop(inside);
    let inside = net.end(client).enter().unwrap();
    let get = |path: &str| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "60", "-o"]).arg(&fetched);
        curl.arg(format!("http://{OURS}/{path}"));
        curl
    };
    run(&mut get("long%20file"));
    assert!(fs::read(&fetched).unwrap() == bytes(20_000_000), "the file differs");
    run(&mut get(""));
    assert_eq!(fs::read(&fetched).unwrap(), b"a page");
    for missing in ["none", "%2e%2e/fetched"] {
        // 22: an answer of HTTP that is an error.
        assert_eq!(get(missing).output().unwrap().status.code(), Some(22), "{missing}");
    }
    drop(inside);
    server.end();
}

/// A child that is killed when this value is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Our client fetches a file from Python's HTTP server.
pub(crate) fn python(driver: &str) {
    let folder = tempfile::tempdir().unwrap();
    let fetched = folder.path().join("fetched");
    fs::write(folder.path().join("file"), bytes(20_000_000)).unwrap();
    let net = Wire::new(1500).unwrap();
    let kernel = Wire::kernel(0).to_string();
    let inside = net.end(0).enter().unwrap();
    let mut server = Command::new("python3");
    server.args(["-u", "-m", "http.server", "8000", "--bind", &kernel, "--directory"]);
    server.arg(folder.path()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Killed(server.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("Serving HTTP"), "{line:?}");
    drop(inside);
    let inside = net.end(1).enter().unwrap();
    let at = |host: &str, port| format!("utcp+{driver}:dev={DEV},host={host},port={port}");
    let mut fetch = sprat();
    fetch.env("SPRAT_LOCAL", at(CLIENT, 0));
    fetch.args(["tcp", "fetch", &at(&kernel, 8000), "/file", "--json", "-o"]).arg(&fetched);
    let report: Value = serde_json::from_str(&run(&mut fetch)).unwrap();
    assert!(fs::read(&fetched).unwrap() == bytes(20_000_000), "the file differs");
    assert_eq!(report["bytes"], 20_000_000);
    let mut missing = sprat();
    missing.env("SPRAT_LOCAL", at(CLIENT, 0)).args(["tcp", "fetch", &at(&kernel, 8000), "/none"]);
    let output = missing.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("404"), "{output:?}");
    drop(inside);
}

/// Each measurement runs between our TCP and the kernel's, both ways.
pub(crate) fn measurements() {
    let net = Wire::new(1500).unwrap();
    let own = |host: &str, port| format!("utcp+packet:dev={DEV},host={host},port={port}");
    let kernel = |port| format!("tcp:host={},port={port}", Wire::kernel(0));
    for (at_kernel, is_ours) in [(false, true), (true, false)] {
        let (server_end, client_end) = if at_kernel { (0, 1) } else { (1, 0) };
        for (service, command) in [("--echo", "echo"), ("--sink", "send"), ("--source", "fetch")] {
            let inside = net.end(server_end).enter().unwrap();
            let at = if at_kernel { kernel(5001) } else { own(OURS, 5001) };
            let mut serve = sprat();
            serve.args(["tcp", "serve", &at, service]);
            if service == "--source" {
                serve.arg("3MB");
            }
            let server = Serving::start_with(&mut serve);
            drop(inside);
            let inside = net.end(client_end).enter().unwrap();
            let to = if is_ours {
                format!("tcp:host={OURS},port=5001")
            } else {
                own(&Wire::kernel(0).to_string(), 5001)
            };
            let mut client = sprat();
            client.env("SPRAT_LOCAL", own(CLIENT, 0)).args(["tcp", command, &to, "--json"]);
            match command {
                "echo" => client.args(["--count", "50", "--size", "1000", "--no-delay"]),
                "send" => client.args(["--bytes", "1MB", "--streams", "3"]),
                _ => client.args(["-o", "/dev/null"]),
            };
            let report: Value = serde_json::from_str(&run(&mut client)).unwrap();
            let bytes = if command == "echo" { 50_000 } else { 3_000_000 };
            assert_eq!(report["bytes"], bytes, "{report}");
            assert_eq!(report.get("retransmissions").is_some(), at_kernel, "{report}");
            drop(inside);
            server.end();
        }
    }
}
