//! Tests of commands under failures: no server, a server of another protocol, killed processes.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, PATIENCE, Running, errors, lives, run, signal, text, unique};

#[test]
fn nobody_at_the_coordinators_locator() {
    let (_, port) = unique(1);
    let at = format!("tcp:host=127.0.0.1,port={port}");
    let output = run(&["get", "-C", &at, "t", "k"]);
    assert_eq!(output.status.code(), Some(1));
    let error = errors(&output);
    let cause = format!("{at}: Connection refused");
    assert!(error.contains(&cause) && error.contains("sprat up"), "{error}");
}

/// Each locator that is of no use is named with its cause. The bug: DNS failures, missing devices,
/// port 0 and peers of another protocol all had the message "no coordinator answers".
#[test]
fn each_locator_that_is_of_no_use_is_named_with_its_cause() {
    let (number, port) = unique(1);
    let foreign = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let foreign_port = foreign.local_addr().expect("it is bound").port();
    let answering = thread::spawn(move || {
        // The command connects once for each try; the last connection ends this thread.
        while let Ok((mut peer, _)) = foreign.accept() {
            let mut request = [0; 4096];
            if peer.read(&mut request).is_ok_and(|n| n == 0) {
                break;
            }
            let _ = peer.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
        }
    });
    let long = "x".repeat(64);
    let causes = [
        (format!("fast+shm:name=nobody-{number}"), "no server listens at"),
        (format!("tcp:host=127.0.0.1,port={port}"), "Connection refused"),
        (format!("fast+udp:host={long},port=1"), "failed to lookup address"),
        ("tcp:host=127.0.0.1,port=0".to_owned(), "port 0"),
        ("fast+udp:host=127.0.0.1,port=0".to_owned(), "port 0"),
        (format!("fast+packet:dev=no{},host=192.0.2.1,port=1", number % 10_000), ""),
        (format!("tcp:host=127.0.0.1,port={foreign_port}"), "another protocol"),
    ];
    let list: Vec<&str> = causes.iter().map(|(locator, _)| &**locator).collect();
    let output = run(&["get", "-C", &list.join(";"), "t", "k"]);
    let error = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    for (locator, cause) in &causes {
        let told = error.split(&format!("{locator}: ")).nth(1).unwrap_or_default();
        let told = told.split(';').next().unwrap_or_default();
        assert!(!told.is_empty() && told.contains(cause), "{locator}: {error}");
    }
    drop(TcpStream::connect(("127.0.0.1", foreign_port)));
    answering.join().expect("it ends");
}

/// A client without access to the servers' shared memory takes another locator. A client of another
/// user, of a service or in a container is such a client.
#[test]
fn a_client_that_has_no_shared_memory_with_the_servers_takes_another_locator() {
    let cluster = Cluster::up(2);
    cluster.ok(&["table", "create", "t", "--span", "2"]);
    let elsewhere = tempfile::tempdir().expect("a temporary folder");
    let there = |args: &[&str]| {
        let output = cluster.command(args).env("XDG_RUNTIME_DIR", elsewhere.path()).output();
        let output = output.expect("the program starts");
        assert!(output.status.success(), "{args:?}: {}", errors(&output));
        text(&output)
    };
    (0..8).for_each(|i| drop(there(&["put", "t", &i.to_string(), "value"])));
    assert_eq!(cluster.ok(&["get", "t", "5"]), "value");
    let stats = there(&["stats", "--json"]);
    assert!(!stats.contains("\"counters\":null"), "{stats}");
    assert_eq!(stats.lines().count(), 2);
    // A client of this transport alone reports why that fails.
    let output = cluster.command(&["get", "t", "5", "--transport", "fast+shm"]);
    let output =
        { output }.env("XDG_RUNTIME_DIR", elsewhere.path()).output().expect("the program starts");
    let error = errors(&output);
    assert!(error.contains("fast+shm:name=") && error.contains("no server listens"), "{error}");
    cluster.end();
}

#[test]
fn a_command_uses_the_transports_that_it_is_told_to() {
    let cluster = Cluster::up(1);
    cluster.ok(&["table", "create", "t"]);
    for transport in ["tcp", "fast+udp", "rdma", "fast+dpdk,fast+shm"] {
        cluster.ok(&["put", "t", "k", transport, "--transport", transport]);
        assert_eq!(cluster.ok(&["get", "t", "k", "--transport", transport]), transport);
    }
    let stats: String = cluster.ok(&["stats", "--json", "--transport", "tcp"]);
    for transport in ["tcp", "fast+udp", "rdma", "fast+shm"] {
        let counted = stats.split(&format!("\"{transport}\":{{")).nth(1).unwrap_or_default();
        let requests =
            counted.split("\"requests\":").nth(1).and_then(|n| n.split([',', '}']).next());
        assert!(requests.is_some_and(|n| n != "0"), "{transport}: {stats}");
    }
    let error = cluster.fails(1, &["get", "t", "k", "--transport", "fast+memif"]);
    assert!(error.contains("this client uses fast+memif"), "{error}");
    cluster.end();
}

#[test]
fn locators_that_make_no_sense() {
    for at in [
        "",
        "pigeon:roof=3",
        "tcp:host=127.0.0.1",
        "tcp:host=127.0.0.1,port=99999",
        "fast+shm:",
        "tcp:host=\"x",
    ] {
        let output = run(&["table", "list", "-C", at]);
        assert_eq!(output.status.code(), Some(2), "{at}: {}", errors(&output));
        assert!(errors(&output).contains("next:"), "{at}: {}", errors(&output));
    }
    let output = run(&["server", "-C", "tcp:host=127.0.0.1,port=1", "-L", "pigeon:roof=3"]);
    assert!(!output.status.success() && errors(&output).contains("pigeon"), "{}", errors(&output));
}

#[test]
fn an_address_of_the_network_needs_a_word() {
    let (_, port) = unique(1);
    let at = format!("tcp:host=0.0.0.0,port={port}");
    let output = run(&["coordinator", "-C", &at]);
    assert_eq!(output.status.code(), Some(1));
    let error = errors(&output);
    assert!(
        error.contains(
            "next: choose an address of loopback, or allow this one with --insecure-network"
        ),
        "{error}"
    );
    let output = run(&["rdma", "rping", "-s", "-a", "192.0.2.1"]);
    assert!(
        errors(&output).contains("next: allow it with --insecure-network"),
        "{}",
        errors(&output)
    );
    let mut coordinator = Running::start(&["coordinator", "-C", &at, "--insecure-network"]);
    coordinator.wait_for("listening at");
    coordinator.signal("TERM");
    assert!(coordinator.ended().success());
}

#[test]
fn a_port_and_a_name_are_taken_once() {
    let cluster = Cluster::up(1);
    let port = cluster.port.to_string();
    let output = run(&["up", "--ephemeral", "--servers", "1", "--name", "other", "--port", &port]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).to_lowercase().contains("in use"), "{}", errors(&output));
    let (_, free) = unique(2);
    let free = free.to_string();
    let taken = ["--name", &cluster.name, "--port", &free];
    let output = run(&[&["up", "--ephemeral", "--servers", "1"], &taken[..]].concat());
    assert_eq!(output.status.code(), Some(1), "the name of its shared memory is taken");
    assert!(errors(&output).contains(&cluster.name), "{}", errors(&output));
    cluster.ok(&["table", "create", "unharmed"]);
    cluster.end();
}

#[test]
fn more_memory_than_there_is_is_refused() {
    for args in [
        &["up", "--ephemeral", "--memory", "9999999G"][..],
        &["server", "-L", "fast+shm:name=x", "--memory", "9999999G"],
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let error = errors(&output);
        assert!(error.contains("9999999 GiB for a server's objects is more than the"), "{error}");
    }
}

#[test]
fn children_die_with_their_parent() {
    let cluster = Cluster::up(2);
    let ids = cluster.ids.clone();
    assert_eq!(ids.len(), 3);
    cluster.up.signal("KILL");
    let begin = Instant::now();
    while ids.iter().any(|&id| lives(id)) {
        assert!(begin.elapsed() < PATIENCE, "a child is left");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_killed_server_loses_its_tablets_and_no_others() {
    let cluster = Cluster::up(2);
    cluster.ok(&["table", "create", "t", "--span", "2"]);
    let keys: Vec<String> = (0..12).map(|i| format!("key{i}")).collect();
    keys.iter().for_each(|key| drop(cluster.ok(&["put", "t", key, key])));
    // Requests are in progress when the server dies. Each of them ends, with or without an error.
    let (victim, busy) = (cluster.ids[1], std::sync::atomic::AtomicBool::new(true));
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while busy.load(std::sync::atomic::Ordering::Relaxed) {
                cluster.run(&["get", "t", &keys[0]]);
                cluster.run(&["incr", "t", "n"]);
            }
        });
        signal(victim, "KILL");
        busy.store(false, std::sync::atomic::Ordering::Relaxed);
        reader.join().expect("no command panics");
    });
    let (mut kept, mut lost) = (0, 0);
    for key in &keys {
        let output = cluster.run(&["get", "t", key]);
        if output.status.success() {
            assert_eq!(output.stdout, key.as_bytes());
            kept += 1;
        } else {
            assert_eq!(output.status.code(), Some(1), "never as if there were no such object");
            assert!(errors(&output).contains("lost"), "{}", errors(&output));
            lost += 1;
        }
    }
    assert!(kept > 0 && lost > 0, "{kept} kept, {lost} lost");
    let list = cluster.ok(&["table", "list"]);
    assert!(list.contains("1 lost"), "{list}");
    let error =
        cluster.fails(1, &["export", &cluster.path("x.jsonl").to_string_lossy(), "--table", "t"]);
    assert!(error.contains("lost"), "{error}");
    assert!(!cluster.path("x.jsonl").exists(), "half an export is none");
    // The name can be used again.
    cluster.ok(&["table", "drop", "t"]);
    cluster.ok(&["table", "create", "t"]);
    cluster.fails(3, &["get", "t", &keys[0]]);
}

/// The end of a cluster removes the socket of a killed server, which itself removes nothing. The
/// bug: the socket stayed if the cluster ended before the next server of that name.
#[test]
fn a_cluster_that_ends_removes_what_a_killed_server_has_left() {
    let cluster = Cluster::up(1);
    signal(cluster.ids[1], "KILL");
    cluster.end();
}

/// `sprat up` starts a killed process again, and the other processes go on. The bug: a cluster
/// ended with its coordinator.
#[test]
fn a_killed_process_is_started_again_and_no_other_ends() {
    let cluster = Cluster::up(2);
    cluster.ok(&["table", "create", "t"]);
    cluster.ok(&["put", "t", "k", "v"]);
    signal(cluster.ids[0], "KILL");
    let until = |what: &str, args: &[&str], done: &dyn Fn(&str) -> bool| {
        let begin = Instant::now();
        loop {
            let output = cluster.run(args);
            if output.status.success() && done(&text(&output)) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "{what}: {}{}", text(&output), errors(&output));
        }
    };
    until("the object is there", &["get", "t", "k"], &|said| said == "v");
    assert!(cluster.ids[1..].iter().all(|&id| lives(id)), "the servers never ended");
    // The table is on the first server, which comes back as another one, without the object.
    signal(cluster.ids[1], "KILL");
    until("the loss is known", &["table", "list"], &|said| said.contains("1 lost"));
    assert!(lives(cluster.ids[2]));
    cluster.ok(&["table", "drop", "t"]);
    until("there are two servers again", &["stats", "--json"], &|said| said.lines().count() == 2);
    until("a table on both", &["table", "create", "t", "--span", "2"], &|_| true);
    cluster.end();
}

#[test]
fn a_path_that_is_no_sound_state_file_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let state = folder.path().join("state");
    std::fs::write(&state, b"SPRATST\nand then nothing that makes sense").expect("a file");
    for (path, word) in [(&*state, "no state file"), (folder.path(), "directory")] {
        let (_, port) = unique(1);
        let at = format!("tcp:host=127.0.0.1,port={port}");
        let name = path.to_string_lossy();
        let output = run(&["coordinator", "-C", &at, "--state", &name]);
        assert_eq!(output.status.code(), Some(1));
        let error = errors(&output);
        assert!(
            error.contains(&*name) && error.contains(word) && error.contains("next:"),
            "{error}"
        );
        assert!(!error.contains("panicked"), "{error}");
    }
}

#[test]
fn the_coordinators_state_survives_it() {
    let (number, port) = unique(2);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let state = folder.path().join("state").to_string_lossy().into_owned();
    let at = format!("tcp:host=127.0.0.1,port={port}");
    let start = || {
        let mut coordinator = Running::start(&["coordinator", "-C", &at, "--state", &state]);
        coordinator.wait_for("listening at");
        coordinator
    };
    let mut coordinator = start();
    let locator = format!("fast+shm:name=test-{number}.1");
    let mut server = Running::start(&["server", "-C", &at, "-L", &locator, "--memory", "64M"]);
    server.wait_for("listening at");
    let create = || run(&["table", "create", "t", "-C", &at]);
    let begin = Instant::now();
    while !create().status.success() {
        assert!(begin.elapsed() < PATIENCE, "{}", errors(&create()));
    }
    assert!(run(&["put", "t", "k", "v", "-C", &at]).status.success());
    coordinator.signal("KILL");
    coordinator.ended();
    coordinator = start();
    let begin = Instant::now();
    loop {
        let output = run(&["get", "t", "k", "-C", &at]);
        if output.status.success() {
            assert_eq!(output.stdout, b"v");
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{}", errors(&output));
    }
    server.signal("TERM");
    assert!(server.ended().success());
    coordinator.signal("TERM");
    assert!(coordinator.ended().success());
}

#[test]
fn full_memory_is_said_and_ends_with_a_removal() {
    let cluster = Cluster::up(1);
    cluster.ok(&["table", "create", "t"]);
    // Each server of the test has 64 MiB.
    let value = "v".repeat(1_000_000);
    let lines: String =
        (0..70).map(|i| format!("{{\"key\":\"{i}\",\"value\":\"{value}\"}}\n")).collect();
    let output =
        cluster.feed(&["import", "-", "--format", "jsonl", "--table", "t"], lines.as_bytes());
    assert_eq!(output.status.code(), Some(1));
    let error = errors(&output);
    assert!(error.contains("no space left") && error.contains("--memory"), "{error}");
    assert_eq!(cluster.ok(&["get", "t", "0"]).len(), value.len(), "what was written is there");
    cluster.ok(&["table", "drop", "t"]);
    cluster.ok(&["table", "create", "t"]);
    assert!(
        cluster.feed(&["put", "t", "k", "-"], value.as_bytes()).status.success(),
        "there is room again"
    );
}

#[test]
fn a_killed_client_loses_and_doubles_no_increment() {
    let cluster = Cluster::up(1);
    cluster.ok(&["table", "create", "t"]);
    let mut last = 0;
    for round in 0..3 {
        let record = cluster.path(&format!("record-{round}"));
        let name = record.to_string_lossy().into_owned();
        let mut client = Running::start(&["count", "-C", &cluster.coordinator, "t", "n", &name]);
        let sums = || -> Vec<i64> {
            let text = std::fs::read_to_string(&record).unwrap_or_default();
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            whole.lines().map(|line| line.parse().expect("a sum")).collect()
        };
        let begin = Instant::now();
        while sums().len() < 50 {
            assert!(begin.elapsed() < PATIENCE, "the client makes no progress");
            thread::sleep(Duration::from_millis(1));
        }
        client.signal("KILL");
        client.ended();
        let sums = sums();
        // The increment in flight at the kill may have taken effect, once.
        assert!(
            sums[0] == last + 1 || (round > 0 && sums[0] == last + 2),
            "{} after {last}",
            sums[0]
        );
        assert!(
            sums.windows(2).all(|pair| pair[1] == pair[0] + 1),
            "each acknowledged increment once: {sums:?}"
        );
        last = *sums.last().expect("fifty and more");
    }
    let value: i64 = cluster.ok(&["incr", "t", "n", "0"]).trim().parse().expect("a number");
    assert!(value == last || value == last + 1, "{value} after {last}");
}
