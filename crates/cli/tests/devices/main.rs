//! Tests of `sprat` over packet devices: processes in network namespaces that each test makes
//! itself and that are gone with it.
//!
//! A case that needs root is counted as ignored without it, and in CI (the variable CI is set) as
//! failed. Arguments are parts of names to run; options are ignored. No case judges a figure.

#![allow(clippy::print_stdout, reason = "it is its own harness")]

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sprat_sys::netns::{DEV, Namespace, Wire, link};

mod baselines;
mod captures;
mod left;
mod rights;
mod tcp;

/// The name of the interface at each end of a wire's second cable.
const SECOND: &str = "wire1";

/// A test case: its name, a program that it needs, and a function that panics if it fails.
type Case = (&'static str, Option<&'static str>, fn());

const CASES: &[Case] = &[
    ("baselines_of_af_packet", None, || baselines::on_wire("packet")),
    ("baselines_of_af_xdp", None, || baselines::on_wire("xdp")),
    ("baselines_of_memif", None, baselines::on_memif),
    ("baselines_of_the_kernel_over_a_wire", None, baselines::kernel),
    ("processes_share_an_interface_by_its_queues", None, shared),
    ("the_control_path_is_tcp_and_the_data_path_a_device", None, || two_paths("fast+packet")),
    ("the_control_path_is_tcp_and_the_data_path_our_own_tcp", None, || two_paths("utcp+packet")),
    #[cfg(feature = "dpdk")]
    ("the_control_path_is_tcp_and_the_data_path_dpdk", None, || two_paths("fast+dpdk")),
    ("a_bond_loses_nothing_when_a_device_is_pulled", None, failover),
    ("every_device_in_one_table", None, table),
    ("nobody_measures_what_needs_no_root", None, nobody),
    ("a_load_over_every_device_is_whole_for_tshark", Some("tshark"), || {
        left::TRANSPORTS.into_iter().for_each(captures::load)
    }),
    #[cfg(feature = "dpdk")]
    ("a_load_over_dpdk_is_whole_for_tshark", Some("tshark"), || captures::load("fast+dpdk")),
    ("nothing_stays_behind_servers_and_clients_that_are_killed", None, || {
        left::TRANSPORTS.into_iter().for_each(left::killed)
    }),
    #[cfg(feature = "dpdk")]
    ("nothing_stays_behind_servers_and_clients_over_dpdk_that_are_killed", None, || {
        left::killed("fast+dpdk")
    }),
    ("nothing_stays_behind_a_measurement_that_is_killed", None, left::perf_killed),
    ("curl_fetches_from_our_tcp_over_af_packet", Some("curl"), || tcp::curl("packet")),
    ("curl_fetches_from_our_tcp_over_af_xdp", Some("curl"), || tcp::curl("xdp")),
    ("curl_fetches_from_our_tcp_over_a_tap", Some("curl"), || tcp::curl("tap")),
    ("our_tcp_fetches_from_python_over_af_packet", Some("python3"), || tcp::python("packet")),
    ("our_tcp_fetches_from_python_over_af_xdp", Some("python3"), || tcp::python("xdp")),
    ("tcp_is_measured_against_the_kernel_both_ways", None, tcp::measurements),
    ("a_missing_capability_is_named_with_its_remedy", Some("setpriv"), rights::missing),
    ("a_closed_device_node_is_named_with_its_remedy", Some("setpriv"), rights::closed),
    ("the_capabilities_that_are_named_are_enough", Some("setpriv"), rights::enough),
];

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let cases = CASES
        .iter()
        .filter(|(name, ..)| wanted.is_empty() || wanted.iter().any(|w| name.contains(w.as_str())));
    let why_not = Namespace::new().err();
    let strict = std::env::var_os("CI").is_some();
    let (mut passed, mut failed, mut ignored) = (0, 0, 0);
    println!();
    for (name, program, run) in cases {
        let missing = program.filter(|p| !is_installed(p)).map(|p| format!("there is no {p}"));
        let verdict = match why_not.as_ref().map(ToString::to_string).or(missing) {
            Some(why) if !strict => {
                ignored += 1;
                format!("ignored ({why})")
            }
            None if catch_unwind(run).is_ok() => {
                passed += 1;
                "ok".to_owned()
            }
            _ => {
                failed += 1;
                "FAILED".to_owned()
            }
        };
        println!("test {name} ... {verdict}");
    }
    println!("\ntest result: {passed} passed; {failed} failed; {ignored} ignored\n");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns a command that runs `sprat` without the environment variables that change its behaviour.
fn sprat() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sprat"));
    for name in ["SPRAT_COORDINATOR", "SPRAT_LOCAL", "COLUMNS", "RUST_BACKTRACE"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// A process of `sprat` that serves. It is killed when this value is dropped.
struct Serving(Child);

impl Serving {
    /// Starts a serving process in the calling thread's network, and waits until it listens.
    fn start(args: &[&str]) -> Self {
        Self::start_with(sprat().args(args))
    }

    /// Starts a prepared command that serves, and waits until it listens.
    fn start_with(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let serving = Self(child);
        assert!(line.starts_with("listening at "), "{line:?}");
        serving
    }

    /// Sends SIGTERM to the serving process and waits for its end.
    fn end(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command to its end, which must be successful. Returns its standard output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Returns the rows of JSON Lines, without the context in the first line.
fn rows(json: &str) -> Vec<Value> {
    json.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Two processes share an interface by AF_XDP, and the first one attaches the XDP program that both
/// use. After it is killed, the second one still serves. After both are killed, the program is
/// gone.
fn shared() {
    let net = Wire::with_queues(1500, 2).unwrap();
    let has_program = || net.end(1).run(|| link::find(DEV)).unwrap().unwrap().xdp;
    let inside = net.end(1).enter().unwrap();
    let [first, second] = [1, 0].map(|queue| {
        let at = format!("fast+xdp:dev={DEV},queue={queue},host=10.83.0.20{queue},port=7740");
        Serving::start(&["coordinator", "-C", &at, "--insecure-network"])
    });
    let refused = sprat()
        .args(["coordinator", "-C", &format!("fast+xdp:dev={DEV},host=10.83.0.203,port=7740")])
        .arg("--insecure-network")
        .output()
        .unwrap();
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("another XDP program has it"), "{why}");
    drop(inside);
    drop(first);
    assert!(has_program());
    // Frames that the first queue sends arrive at the first queue.
    let inside = net.end(0).enter().unwrap();
    let at = format!("fast+xdp:dev={DEV},host=10.83.0.200,port=7740");
    run(sprat().args(["ping", "--count", "20", "--interval", "0", &at]));
    drop(inside);
    drop(second);
    assert!(!has_program(), "nothing stays behind");
}

/// Returns the locator of `transport` at end `i` of a wire, with the address `host`.
fn at(transport: &str, i: usize, host: &str, port: u16) -> String {
    let dev = match transport {
        "fast+dpdk" => format!("\"net_af_packet{i},iface={SECOND}\""),
        _ => DEV.to_owned(),
    };
    format!("{transport}:dev={dev},host={host},port={port}")
}

fn two_paths(transport: &'static str) {
    let net = Wire::new(1500).unwrap();
    // That device receives the kernel's frames too.
    net.add(SECOND, 1500).unwrap();
    let coordinator = "tcp:host=10.83.0.2,port=7740";
    let inside = net.end(1).enter().unwrap();
    let mut serving =
        vec![Serving::start(&["coordinator", "-C", coordinator, "--insecure-network"])];
    for i in 1..=2 {
        let port = 7740 + i;
        let device = at(transport, 1, &format!("10.83.0.20{i}"), port);
        let locators = format!("tcp:host=10.83.0.2,port={port};{device}");
        let args =
            ["server", "-C", coordinator, "-L", &locators, "--memory", "64M", "--insecure-network"];
        serving.push(Serving::start(&args));
    }
    drop(inside);
    let _inside = net.end(0).enter().unwrap();
    let own = at(transport, 0, "10.83.0.110", 0);
    let client = |args: &[&str]| {
        run(sprat().env("SPRAT_COORDINATOR", coordinator).env("SPRAT_LOCAL", &own).args(args))
    };
    let stats = || {
        while client(&["stats", "--json"]).lines().count() < 2 {}
        let lines = client(&["stats", "--json"]);
        let servers: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(
            servers.iter().all(|s| s["control"].as_str().unwrap().starts_with("tcp:")),
            "{lines}"
        );
        let frames = |s: &Value| s["counters"][transport]["frames_received"].as_u64().unwrap();
        servers.iter().map(frames).sum::<u64>()
    };
    // Each timed read or write over a device was at least one frame.
    let perf = |transport: &str| {
        let short =
            ["perf", "--seconds", "0.05", "--rounds", "1", "--size", "100", "--objects", "50"];
        let rows = rows(&client(
            &[&short[..], &["--json", "-", "--transport", transport, "basic"]].concat(),
        ));
        let timed = |test: &str| {
            let row = rows.iter().find(|r| r["test"] == test && r["transport"] == transport);
            row.unwrap_or_else(|| panic!("{test} over {transport}: {rows:?}"))["count"]
                .as_u64()
                .unwrap()
        };
        timed("basic.read") + timed("basic.write")
    };
    let before = stats();
    assert!(perf("tcp") > 0);
    let between = stats();
    let timed = perf(transport);
    let after = stats();
    // The kernel sends neighbour solicitations now and then, which all ends receive.
    assert!(between - before < 20, "{before} {between} {after} frames");
    assert!(
        timed > 0 && after - between >= timed,
        "{between} {after} frames, {timed} of them timed"
    );
    // A value reads back unchanged over each transport.
    client(&["table", "create", "kept"]);
    client(&["put", "kept", "key", "a value"]);
    assert_eq!(client(&["get", "kept", "key"]).trim_end(), "a value");
}

/// Runs tests of `sprat perf` on processes of their own, for as short a time as possible. Returns
/// the rows of JSON.
fn perf(args: &[&str]) -> Vec<Value> {
    let short = ["perf", "--local", "--seconds", "0.05", "--rounds", "2", "--json", "-"];
    rows(&run(sprat().args([&short, args].concat())))
}

fn failover() {
    let rows = perf(&["failover"]);
    let value = |name: &str| {
        let row = rows.iter().find(|row| row["test"] == name).expect(name);
        row["value"].as_f64().expect(name)
    };
    assert!(value("failover.answered") > 0.0 && value("failover.gap") > 0.0);
    assert_eq!((value("failover.lost"), value("failover.twice")), (0.0, 0.0));
}

/// Checks that each of `transports` has rows for an echo, a read and a write, each with a floor.
fn complete(rows: &[Value], transports: &str) {
    for transport in transports.split(',') {
        for test in ["echo", "basic.read", "basic.write"] {
            let row = rows.iter().find(|row| row["test"] == test && row["transport"] == transport);
            let row = row.unwrap_or_else(|| panic!("{test} over {transport}"));
            for field in ["p50_us", "floor_us", "tcp_us"] {
                assert!(row[field].as_f64().is_some_and(|n| n > 0.0), "{transport} {field}: {row}");
            }
        }
    }
}

fn table() {
    let devices = ["shmnet", "memif", "packet", "xdp", "tap", "bond"];
    let over = |transport: &str| devices.map(|device| format!("{transport}+{device}")).join(",");
    let mut transports = format!("{},{}", over("fast"), over("utcp"));
    if cfg!(feature = "dpdk") {
        transports += ",fast+dpdk";
    }
    complete(
        &perf(&["--transport", &transports, "--size", "100", "--objects", "50", "echo", "basic"]),
        &transports,
    );
}

/// Returns a copy of `sprat` in a folder that all users may enter, unlike the build folder.
fn program_for_all() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let program = folder.path().join("program");
    std::fs::copy(env!("CARGO_BIN_EXE_sprat"), &program).unwrap();
    (folder, program)
}

fn nobody() {
    const NOBODY: u32 = 65_534;
    let (folder, program) = program_for_all();
    let transports = "fast+shm,fast+shmnet,fast+memif,utcp+shmnet,utcp+memif,fast+udp,tcp";
    let mut command = Command::new(&program);
    command.args(["perf", "--local", "--seconds", "0.05", "--rounds", "2", "--json", "-"]);
    command.args(["--transport", transports, "--size", "100", "--objects", "50", "echo", "basic"]);
    command.env_clear().env("XDG_RUNTIME_DIR", folder.path()).stdin(Stdio::null()).current_dir("/");
    complete(&rows(&run(command.uid(NOBODY).gid(NOBODY))), transports);
}
