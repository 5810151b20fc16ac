//! Tests of clusters that keep their objects in a directory.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use sprat_bench::process::wait_until;

use crate::cluster::{Cluster, PATIENCE, Running, errors, kill, run, signal, sprat, text, unique};

/// The number of objects that the test writes.
const OBJECTS: usize = 300;

fn lines() -> String {
    (0..OBJECTS).fold(String::new(), |mut lines, i| {
        let _ = writeln!(lines, r#"{{"key":"key{i:03}","value":"value{i}"}}"#);
        lines
    })
}

/// Returns the lines of all objects of the table, sorted.
fn objects(cluster: &Cluster) -> String {
    let output = cluster.run(&["export", "t", "-", "--format", "jsonl", "--timeout", "30"]);
    assert!(output.status.success(), "{}", errors(&output));
    let mut lines: Vec<_> = text(&output).lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// All processes are killed, and then end by Ctrl-C. Each next cluster has all objects, and a
/// mutation that the last one acknowledged is there once.
#[test]
fn the_objects_survive_the_processes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("books");
    let dir = dir.to_str().expect("a plain path");
    let mut cluster = Cluster::up_with(3, &["--dir", dir]);
    cluster.ok(&["table", "create", "t", "--span", "3"]);
    let fed = cluster.feed(&["import", "t", "-", "--format", "jsonl"], lines().as_bytes());
    assert!(fed.status.success(), "{}", errors(&fed));
    for round in 1..=3 {
        assert_eq!(cluster.ok(&["incr", "t", "n", "--timeout", "30"]).trim(), round.to_string());
        kill(&mut cluster);
        drop(cluster);
        cluster = Cluster::up_with(3, &["--dir", dir]);
    }
    cluster.ok(&["del", "t", "n", "--timeout", "30"]);
    assert_eq!(objects(&cluster), lines());

    // One server at a time.
    for id in cluster.ids[1..].iter().copied() {
        signal(id, "KILL");
        assert_eq!(objects(&cluster), lines());
        let whole = || cluster.run(&["status"]).status.success();
        assert!(wait_until(PATIENCE, whole), "{}", cluster.ok(&["table", "list"]));
    }
    drop(cluster);
    // The directory moves, and so do the servers' locators with each cluster.
    let moved = folder.path().join("moved");
    fs::rename(dir, &moved).expect("it is ours");
    let cluster = Cluster::up_with(4, &["--dir", moved.to_str().expect("a plain path")]);
    assert_eq!(objects(&cluster), lines());
}

/// The server holds its replicas itself. Then it gets company.
#[test]
fn the_objects_of_one_server_survive_its_process() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("books");
    let dir = dir.to_str().expect("a plain path");
    let mut cluster = Cluster::up_with(1, &["--dir", dir]);
    cluster.ok(&["table", "create", "t"]);
    let fed = cluster.feed(&["import", "t", "-", "--format", "jsonl"], lines().as_bytes());
    assert!(fed.status.success(), "{}", errors(&fed));
    for servers in [1, 2, 2] {
        kill(&mut cluster);
        drop(cluster);
        cluster = Cluster::up_with(servers, &["--dir", dir]);
        assert_eq!(objects(&cluster), lines());
    }
    cluster.end();
}

/// An old copy of a part of the directory, put back, says that data is missing, and serves none of
/// what was overwritten. With the right files in their place all is there again.
#[test]
fn an_old_copy_of_files_is_no_state_of_the_cluster() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name);
    let dir = at("books");
    let cluster = || Cluster::up_with(1, &["--dir", dir.to_str().expect("a plain path")]);
    let first = cluster();
    first.ok(&["table", "create", "t"]);
    first.ok(&["put", "t", "k", "old"]);
    first.end();
    let files = [("coordinator", "old state"), ("server-1/frames", "old frames")];
    for (file, copy) in files {
        fs::copy(dir.join(file), at(copy)).expect("it is ours");
    }
    let second = cluster();
    second.ok(&["put", "t", "k", "new", "--timeout", "30"]);
    second.end();
    for (file, copy) in files {
        fs::rename(dir.join(file), at("right")).expect("it is ours");
        fs::copy(at(copy), dir.join(file)).expect("it is ours");
        let wrong = cluster();
        let blocked = || text(&wrong.run(&["status"])).contains("blocked");
        assert!(wait_until(PATIENCE, blocked), "{copy}");
        let read = wrong.run(&["get", "t", "k", "--timeout", "1"]);
        assert!(!read.status.success() && read.stdout.is_empty(), "{copy}: {}", text(&read));
        wrong.end();
        fs::rename(at("right"), dir.join(file)).expect("it is ours");
        let right = cluster();
        assert_eq!(right.ok(&["get", "t", "k", "--timeout", "30"]), "new", "{copy}");
        right.end();
    }
}

#[test]
fn a_directory_that_cannot_be_used_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("books");
    let dir = path.to_str().expect("a plain path");
    let up = |options: &[&str]| {
        let port = ["--name", "test-refused", "--port", "1", "--memory", "48M", "--dir", dir];
        let output = sprat().arg("up").args(port).args(options).output().expect("it starts");
        assert!(!output.status.success(), "{options:?}");
        errors(&output)
    };
    assert!(up(&["--servers", "2", "--replicas", "2"]).contains("need 3 servers"));
    assert!(up(&["--replicas", "0"]).contains("no use for a directory"));
    assert!(up(&["--state", "x"]).contains("cannot be used with"));
    assert!(up(&["--ephemeral"]).contains("cannot be used with"));
    assert!(up(&["--servers", "64", "--memory", "1000G"]).contains("--memory"));
    assert!(!path.exists() || fs::read_dir(&path).expect("it is ours").next().is_none());

    let cluster = Cluster::up_with(2, &["--dir", dir]);
    let said = Cluster::refused(3, &["--dir", dir]);
    assert!(said.contains("another process has it open"), "{said}");
    cluster.end();

    // The disks belong to the cluster of the coordinator's state.
    fs::rename(path.join("coordinator"), path.join("kept")).expect("it is there");
    let said = Cluster::refused(2, &["--dir", dir]);
    assert!(said.contains("not their coordinator's state") && said.contains("next:"), "{said}");
    assert!(!path.join("coordinator").exists(), "nothing changes in a directory that is refused");
    let other = folder.path().join("other");
    Cluster::up_with(1, &["--dir", other.to_str().expect("a plain path")]).end();
    fs::copy(other.join("coordinator"), path.join("coordinator")).expect("it is there");
    let said = Cluster::refused(2, &["--dir", dir]);
    assert!(said.contains("belongs to the cluster"), "{said}");
    fs::rename(path.join("kept"), path.join("coordinator")).expect("it is there");
    let frames = path.join("server-2/frames");
    fs::rename(&frames, path.join("frames")).expect("it is there");
    fs::write(&frames, "hello").expect("it is ours");
    let said = Cluster::refused(2, &["--dir", dir]);
    assert!(said.contains("server-2/frames") && said.contains("no file of frames"), "{said}");
    assert_eq!(fs::read(&frames).expect("it is there"), b"hello");
    fs::rename(path.join("frames"), &frames).expect("it is there");
    Cluster::up_with(2, &["--dir", dir]).end();
}

/// Without `--dir` the data lies below that of the user, and the next `sprat up` finds it there.
#[test]
fn a_cluster_keeps_its_data_by_default() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().to_str().expect("a plain path");
    let (number, port) = unique(3);
    let (name, port) = (format!("test-{number}"), port.to_string());
    let options = ["--servers", "1", "--name", &name, "--port", &port, "--memory", "64M"];
    let dir = folder.path().join("sprat").join(&name);
    let client = |args: &[&str]| {
        let at = format!("tcp:host=127.0.0.1,port={port}");
        let output = sprat().args(args).args(["-C", &at]).output().expect("it starts");
        assert!(output.status.success(), "{args:?}: {}", errors(&output));
        text(&output)
    };
    for start in 0..2 {
        let mut command = sprat();
        command.arg("up").args(options).env("XDG_DATA_HOME", data);
        let mut up = Running::of(command);
        let said = up.wait_for("Ctrl-C ends the cluster");
        let first = said.lines().next().unwrap_or_default();
        assert!(first.starts_with(&dir.display().to_string()), "{said}");
        assert!(first.contains("of disk as it fills; this disk has the only copy"), "{said}");
        assert_eq!(first.contains("of disk now"), start > 0, "{said}");
        if start == 0 {
            client(&["table", "create", "t"]);
            client(&["put", "t", "key", "kept"]);
        } else {
            assert_eq!(client(&["get", "t", "key", "--timeout", "30"]), "kept");
        }
        // A new cluster takes a part of its room only.
        let blocks = dir.join("server-1/frames").metadata().expect("it is there").blocks();
        assert!(blocks * 512 < 64 << 20, "{blocks} blocks");
        up.signal("TERM");
        assert!(up.ended().success());
    }
    let output = sprat().arg("up").args(options).output().expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    let said = errors(&output);
    assert!(said.contains("--dir") && said.contains("--ephemeral"), "{said}");
}

/// A cluster starts with fewer servers than before: all of them start, and those that are too many
/// leave when the others have their objects. All objects are there at any time.
#[test]
fn servers_that_are_too_many_leave() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("books");
    let dir = path.to_str().expect("a plain path");
    let mut cluster = Cluster::up_with(3, &["--dir", dir]);
    cluster.ok(&["table", "create", "t", "--span", "3"]);
    let fed = cluster.feed(&["import", "t", "-", "--format", "jsonl"], lines().as_bytes());
    assert!(fed.status.success(), "{}", errors(&fed));
    // Twice in a row from two servers: the second time there is nothing to do.
    for servers in [2, 2, 1] {
        drop(cluster);
        cluster = Cluster::up_with(servers, &["--dir", dir]);
        assert_eq!(objects(&cluster), lines());
        let left = || !path.join(format!("server-{}", servers + 1)).exists();
        assert!(wait_until(PATIENCE, left), "{}", cluster.ok(&["status"]));
        assert_eq!(objects(&cluster), lines());
        let status = cluster.ok(&["status"]);
        assert!(status.contains(&format!(": {servers} server")), "{status}");
        cluster.ids.truncate(1 + usize::from(servers));
        kill(&mut cluster);
    }
    drop(cluster);
    let cluster = Cluster::up_with(1, &["--dir", dir]);
    assert_eq!(objects(&cluster), lines());
}

/// Servers end in order and start again one after the other, while clients increment and read. No
/// increment is lost or doubled, and the cluster is whole before the next server ends.
#[test]
fn a_rolling_restart_loses_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("books");
    let dir = dir.to_str().expect("a plain path");
    let cluster = Cluster::up_with(3, &["--dir", dir]);
    cluster.ok(&["table", "create", "t", "--span", "3"]);
    let fed = cluster.feed(&["import", "t", "-", "--format", "jsonl"], lines().as_bytes());
    assert!(fed.status.success(), "{}", errors(&fed));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients = ["n0", "n1", "n2", "n3"].map(|key| {
            let (cluster, done) = (&cluster, &done);
            scope.spawn(move || {
                let mut sum = 0;
                while !done.load(Ordering::Relaxed) {
                    let said = cluster.ok(&["incr", "t", key, "--timeout", "30"]);
                    sum += 1;
                    assert_eq!(said.trim(), sum.to_string(), "{key}: none is lost or doubled");
                    assert_eq!(cluster.ok(&["get", "t", "key007", "--timeout", "30"]), "value7");
                }
                sum
            })
        });
        for id in cluster.ids[1..].iter().copied() {
            let before = servers(&cluster);
            signal(id, "TERM");
            let whole = || {
                let now = servers(&cluster);
                now.len() == 3 && now != before && is_whole(&cluster)
            };
            assert!(wait_until(PATIENCE, whole), "{}", cluster.ok(&["table", "list"]));
        }
        done.store(true, Ordering::Relaxed);
        for client in clients {
            assert!(client.join().expect("no command fails") > 1);
        }
    });
    cluster.end();
}

/// All processes stop for longer than a lease, as when their machine sleeps. No server is given up,
/// so that also a cluster without replicas has all objects.
#[test]
fn a_machine_that_sleeps_wakes_with_its_cluster() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("books");
    let dir = dir.to_str().expect("a plain path");
    for options in [&["--dir", dir][..], &[]] {
        let cluster = Cluster::up_with(3, options);
        cluster.ok(&["table", "create", "t", "--span", "3"]);
        let fed = cluster.feed(&["import", "t", "-", "--format", "jsonl"], lines().as_bytes());
        assert!(fed.status.success(), "{}", errors(&fed));
        cluster.ids.iter().for_each(|&id| signal(id, "STOP"));
        let asleep = cluster.run(&["get", "t", "key007", "--timeout", "4"]);
        cluster.ids.iter().for_each(|&id| signal(id, "CONT"));
        assert!(!asleep.status.success(), "{options:?}");
        assert_eq!(objects(&cluster), lines(), "{options:?}");
        assert_eq!(cluster.ok(&["incr", "t", "n", "--timeout", "30"]).trim(), "1");
        cluster.end();
    }
}

/// The files of servers and of the coordinator may not grow (`ulimit -f`). That is said at the
/// start, and no process ends by a signal.
#[test]
fn a_limit_of_the_size_of_files_is_an_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (number, port) = unique(3);
    let up = format!(
        "ulimit -f 1000; exec {} up --servers 1 --memory 64M --name test-{number} --port {port} \
         --dir {}",
        sprat().get_program().display(),
        folder.path().join("books").display()
    );
    let output = std::process::Command::new("bash").args(["-c", &up]).output().expect("bash");
    let error = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("File too large") && !error.contains("signal"), "{error}");
}

/// Returns the ids of the cluster's servers.
fn servers(cluster: &Cluster) -> Vec<String> {
    let output = cluster.run(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&text(&output)).unwrap_or_default();
    let all = status["servers"].as_array().cloned().unwrap_or_default();
    all.iter().map(|server| server["server"].to_string()).collect()
}

/// Returns true if no table and no log lacks anything.
fn is_whole(cluster: &Cluster) -> bool {
    let output = cluster.run(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&text(&output)).unwrap_or_default();
    output.status.success() && status["replicas_missing"] == 0
}

/// `sprat disk check` reads a directory without a change. Its exit code says whether it is sound.
#[test]
fn a_directory_is_checked() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("books");
    let dir = path.to_str().expect("a plain path");
    let cluster = Cluster::up_with(2, &["--dir", dir]);
    cluster.ok(&["table", "create", "t", "--span", "2"]);
    let fed = cluster.feed(&["import", "t", "-", "--format", "jsonl"], lines().as_bytes());
    assert!(fed.status.success(), "{}", errors(&fed));
    let check = |at: &str, json: bool| {
        let options =
            if json { &["disk", "check", at, "--json"][..] } else { &["disk", "check", at] };
        let output = run(options);
        (output.status.code(), text(&output) + &errors(&output))
    };
    let (code, said) = check(dir, false);
    assert!(code == Some(2) && said.contains("another process") && said.contains("sprat down"));
    cluster.end();
    let before = fs::read(path.join("server-1/frames")).expect("it is there");
    let (code, said) = check(dir, false);
    assert_eq!((code, said.matches(": sound;").count()), (Some(0), 3), "{said}");
    let (code, said) = check(&format!("{dir}/server-1"), true);
    let object: serde_json::Value = serde_json::from_str(&said).expect("one JSON object");
    assert_eq!((code, &object["sound"]), (Some(0), &true.into()), "{said}");
    assert!(object["masters"][0]["bytes"].as_u64().expect("a number") > 1000, "{said}");

    // A ring that a killed server has left.
    let ring = path.join("server-1/ring-7");
    fs::write(&ring, [1; 100]).expect("it is ours");
    let (code, said) = check(dir, false);
    assert!(code == Some(1) && said.contains("DAMAGED; a ring of 100 B"), "{said}");
    fs::remove_file(&ring).expect("it is ours");

    // A flipped bit in the middle of a replica.
    let frames = path.join("server-1/frames");
    let mut damaged = before.clone();
    damaged[3 * 4096] ^= 1;
    fs::write(&frames, &damaged).expect("it is ours");
    let (code, said) = check(dir, false);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("DAMAGED") && said.contains("frame 0 at byte 4096"), "{said}");
    assert!(said.contains("damaged from its byte") && said.contains("next:"), "{said}");
    assert_eq!(fs::read(&frames).expect("it is there"), damaged, "nothing changes");
    fs::write(&frames, &before[..8 << 20]).expect("it is ours");
    let (code, said) = check(dir, false);
    assert!(code == Some(1) && said.contains("cut off"), "{said}");
    fs::write(&frames, "hello").expect("it is ours");
    let (code, said) = check(dir, false);
    assert!(code == Some(2) && said.contains("no file of frames"), "{said}");
    fs::write(&frames, &before).expect("it is ours");
    fs::write(path.join("coordinator"), "hello").expect("it is ours");
    let (code, said) = check(dir, true);
    assert!(code == Some(1) && said.contains("no state file"), "{said}");
    for nothing in [folder.path().to_str().expect("a plain path"), "/no/such/directory"] {
        assert_eq!(check(nothing, false).0, Some(2));
    }
}
