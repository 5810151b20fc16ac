//! Tests that killed processes leave nothing in the kernel, and no file but a socket's, which the
//! next process replaces.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use sprat_sys::netns::{DEV, Namespace, Wire, link};

use crate::{SECOND, Serving, run, sprat};

/// Every transport over a packet device except DPDK's.
pub(crate) const TRANSPORTS: [&str; 6] =
    ["fast+packet", "fast+xdp", "fast+tap", "fast+bond", "fast+memif", "fast+shmnet"];
const TAP: &str = "tap0";
const BRIDGE: &str = "bridge0";
/// The files of /proc/net whose lines are the kernel's state of a network: interfaces, routes and
/// packet sockets.
const KEPT: [&str; 4] = ["dev", "route", "ipv6_route", "packet"];
/// The folders of the machine's shared memory, huge pages and DPDK's state.
const NAMED: [&str; 3] = ["/dev/shm", "/dev/hugepages", "/var/run/dpdk"];
/// The time that a killed process may take to end.
const PATIENCE: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// Returns the kernel's state at one end of the wire, without the counters of interfaces.
fn held(end: &Namespace) -> Vec<String> {
    end.run(|| {
        let mut lines = Vec::new();
        for file in KEPT {
            let text = fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
            let first = |line: &str| line.split(':').next().unwrap_or_default().trim().to_owned();
            lines.extend(
                text.lines().map(|line| if file == "dev" { first(line) } else { line.to_owned() }),
            );
        }
        for dev in [DEV, SECOND] {
            lines.push(format!("{dev} {}", link::find(dev).unwrap().xdp));
        }
        lines
    })
    .unwrap()
}

/// Returns the files in the machine's shared folders whose names contain "sprat".
fn names() -> BTreeSet<PathBuf> {
    let inside = |folder: &str| {
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
    };
    NAMED
        .into_iter()
        .flat_map(inside)
        .filter(|path| path.to_string_lossy().contains("sprat"))
        .collect()
}

fn free_huge_pages() -> String {
    fs::read_to_string("/proc/meminfo")
        .unwrap()
        .lines()
        .filter(|l| l.starts_with("HugePages_"))
        .collect()
}

fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.file_name().into_string().unwrap());
        }
    }
    found.sort();
    found
}

/// Makes a wire with two cables for a test of `transport`. For a tap, a bridge is attached to the
/// second cable at each end.
pub(crate) fn world(transport: &str) -> Wire {
    let net = Wire::new(1500).unwrap();
    net.add(SECOND, 1500).unwrap();
    for i in 0..if transport == "fast+tap" { 2 } else { 0 } {
        let bridge = || link::bridge(BRIDGE, 1500).and_then(|()| link::attach(SECOND, BRIDGE));
        net.end(i).run(bridge).unwrap().unwrap();
    }
    net
}

/// Returns the locator of a packet device at end `i` of a wire: 0 is a client, 1 a server.
pub(crate) fn device(transport: &str, i: usize, folder: &Path) -> String {
    let own = match transport {
        "fast+tap" => format!("dev={TAP},bridge={BRIDGE}"),
        "fast+bond" => format!("dev={DEV},with={SECOND}"),
        "fast+memif" => format!("socket={}", folder.join("memif").display()),
        "fast+shmnet" => "name=killed".to_owned(),
        "fast+dpdk" => format!("dev=\"net_af_packet{i},iface={DEV}\""),
        _ => format!("dev={DEV}"),
    };
    let host = if i == 0 { "10.83.0.110" } else { "10.83.0.210" };
    format!("{transport}:{own},host={host},port={}", 7 * i)
}

/// Starts a `sprat ping` that sends requests to `at` until it is killed.
fn asking(at: &str, own: &str, folder: &Path) -> Child {
    let mut command = sprat();
    command
        .args(["ping", "--count", "1000000", "--interval", "0", at])
        .env("XDG_RUNTIME_DIR", folder);
    command.env("SPRAT_LOCAL", own);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    for _ in 0..100 {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "{at}: it ended");
    }
    assert!(line.contains(" octets from "), "{line}");
    // Its further output is ignored.
    std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
    child
}

pub(crate) fn killed(transport: &str) {
    let (names_before, pages) = (names(), free_huge_pages());
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let net = world(transport);
    let before = [0, 1].map(|i| held(net.end(i)));
    let (at, own) = (device(transport, 1, folder), device(transport, 0, folder));
    let mut sockets = Vec::new();
    // The second time shows that files of the first one do not disturb.
    for _ in 0..2 {
        let inside = net.end(1).enter().unwrap();
        let server =
            Serving::start_with(sprat().args(["echo", "-L", &at]).env("XDG_RUNTIME_DIR", folder));
        drop(inside);
        let inside = net.end(0).enter().unwrap();
        let mut client = asking(&at, &own, folder);
        drop(inside);
        let during = [0, 1].map(|i| held(net.end(i)));
        let in_memory = ["fast+memif", "fast+shmnet"].contains(&transport);
        assert_eq!(before == during, in_memory, "{transport}: {during:?}");
        sockets = files(folder);
        assert_eq!(sockets.is_empty(), !in_memory, "{transport}: {sockets:?}");
        // The server is killed first, under load.
        drop(server);
        client.kill().unwrap();
        client.wait().unwrap();
        assert_eq!([0, 1].map(|i| held(net.end(i))), before, "{transport}");
        assert_eq!(files(folder), sockets, "{transport}");
    }
    assert!(sockets.len() <= 2, "{transport}: {sockets:?}");
    assert_eq!((names(), free_huge_pages()), (names_before, pages), "{transport}");
}

/// Returns the child processes of `pid`.
fn children(pid: u32) -> Vec<Pid> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)).collect()
}

pub(crate) fn perf_killed() {
    let folder = tempfile::tempdir().unwrap();
    let perf = |seconds: &str, transports: &str| {
        let mut command = sprat();
        command.args([
            "perf",
            "--local",
            "--seconds",
            seconds,
            "--rounds",
            "1",
            "--transport",
            transports,
            "echo",
        ]);
        command.env("TMPDIR", folder.path()).env("XDG_RUNTIME_DIR", folder.path());
        command
    };
    let all = "fast+memif,fast+shmnet,fast+packet,fast+xdp,fast+bond,fast+tap";
    let mut child = perf("60", all).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // The server has opened all devices once it has opened the last one, the tap.
    let mut servers = Vec::new();
    let mut has_opened = false;
    for _ in 0..2_000_000 {
        servers = children(child.id());
        let opened = |pid: &Pid| {
            let path = format!("/proc/{}/net/dev", pid.as_raw_nonzero());
            fs::read_to_string(path).is_ok_and(|text| text.contains("wire2tap"))
        };
        has_opened = servers.iter().any(opened);
        if has_opened {
            break;
        }
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        std::thread::yield_now();
    }
    let watched: Vec<_> =
        servers.iter().map(|pid| pidfd_open(*pid, PidfdFlags::empty()).unwrap()).collect();
    assert!(has_opened && !watched.is_empty());
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    for server in &watched {
        let mut fds = [PollFd::new(server, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&PATIENCE)).unwrap(), 1, "a server outlives it");
    }
    // Its network namespaces had no names, and ended with the last process in them. The next run
    // removes its files.
    let left = files(folder.path());
    assert!(left.iter().all(|file| file.contains("floor")), "{left:?}");
    run(&mut perf("0.02", "fast+memif"));
    assert_eq!(
        fs::read_dir(folder.path())
            .unwrap()
            .filter(|e| {
                e.as_ref().unwrap().file_name().to_string_lossy().starts_with("sprat-perf")
            })
            .count(),
        0
    );
}
