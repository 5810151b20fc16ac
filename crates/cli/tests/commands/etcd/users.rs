//! Coordinators with an etcd that has users: rights, passwords, and tokens that end.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use sprat_bench::process::wait_until;

use super::{Etcd, Stack};
use crate::cluster::{PATIENCE, errors, run, unique};

/// The user of `etcdctl` that has all rights.
const ROOT: [&str; 2] = ["--user", "root:root"];

/// Starts an etcd whose user `sprat` has the keys of the cluster `main`, and whose user `poor` can
/// only read them. Their passwords are in the files `password` and `wrong`.
fn with_users(options: &[&str]) -> Etcd {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (private, public) = (path("jwt.key"), path("jwt.pub"));
    for args in [
        &["genrsa", "-out", &private, "2048"][..],
        &["rsa", "-in", &private, "-pubout", "-out", &public],
    ] {
        let made = Command::new("openssl").args(args).output();
        let made = made.expect("scripts/tools --etcd installs openssl");
        assert!(made.status.success(), "{}", errors(&made));
    }
    fs::write(path("password"), "secret\n").expect("the folder is ours");
    fs::write(path("wrong"), "guess").expect("the folder is ours");
    // The test's words for the place of the keys.
    let place = |option: &&str| option.replace("PUBLIC", &public).replace("PRIVATE", &private);
    let options: Vec<_> = options.iter().map(place).collect();
    let options: Vec<_> = options.iter().map(String::as_str).collect();
    let etcd = Etcd::start_in(folder, "http", 1, &options);
    for (user, password) in [("root", "root"), ("sprat", "secret"), ("poor", "secret")] {
        etcd.control(&["user", "add", &format!("{user}:{password}")]);
        etcd.control(&["role", "add", user]);
        etcd.control(&["user", "grant-role", user, user]);
    }
    for (role, rights) in [("sprat", "readwrite"), ("poor", "read")] {
        grant(&etcd, &[], role, rights);
    }
    etcd.control(&["auth", "enable"]);
    etcd
}

fn grant(etcd: &Etcd, user: &[&str], role: &str, rights: &str) {
    let args = ["role", "grant-permission", role, rights, "--prefix=true", "/sprat/main/"];
    etcd.control(&[user, &args].concat());
}

/// Returns the keys of `--state` for a user with its password in this file.
fn keys(etcd: &Etcd, user: &str, password: &str) -> String {
    format!(",user={user},password={}", etcd.path().join(password).display())
}

/// The prefix of the cluster is all that a coordinator needs. Without it, or with another
/// password, it says at once what is missing.
#[test]
fn a_user_needs_its_password_and_the_prefix_of_the_cluster() {
    let etcd = with_users(&[]);
    let other = keys(&etcd, "sprat", "password") + ",cluster=other";
    for (keys, said) in [
        (String::new(), ["user name is empty", "user=USER,password=FILE"]),
        (keys(&etcd, "sprat", "wrong"), ["invalid user ID or password", "file of its password"]),
        (keys(&etcd, "absent", "password"), ["invalid user ID or password", "give a user"]),
        (keys(&etcd, "sprat", "none"), ["none: No such file", "next:"]),
        (keys(&etcd, "poor", "password"), ["/sprat/main/: etcdserver: permission", "readwrite"]),
        (other, ["/sprat/other/: etcdserver: permission", "etcdctl role grant-permission"]),
    ] {
        let (begin, state) = (Instant::now(), etcd.state() + &keys);
        let locator = format!("tcp:host=127.0.0.1,port={}", unique(1).1);
        let output = run(&["coordinator", "-C", &locator, "--state", &state]);
        let errors = errors(&output);
        assert!(!output.status.success());
        assert!(said.iter().all(|words| errors.contains(words)), "{keys}: {errors}");
        assert!(begin.elapsed() < Duration::from_secs(4), "a refusal is certain");
    }
    let keys = keys(&etcd, "sprat", "password");
    let mut stack = Stack::over(etcd, 3, &keys);
    let (leader, term) = stack.leader();
    drop(stack.coordinators.remove(&leader));
    stack.leader_after(term);
    stack.creates("second");

    let revoke = ["role", "revoke-permission", "sprat", "--prefix=true", "/sprat/main/"];
    stack.etcd.control(&[&ROOT[..], &revoke].concat());
    let mut said = String::new();
    let clear = wait_until(PATIENCE, || {
        said = stack.refused("meanwhile");
        said.contains("permission denied")
    });
    assert!(clear, "{said}");
    grant(&stack.etcd, &ROOT, "sprat", "readwrite");
    stack.creates("third");
    stack.lives();
}

/// The token of a user ends after two seconds, however often it is used. The leader gets another
/// one, and leads on.
#[test]
fn a_token_that_ends_is_replaced() {
    let token = "jwt,pub-key=PUBLIC,priv-key=PRIVATE,sign-method=RS256,ttl=2s";
    let etcd = with_users(&["--auth-token", token]);
    let keys = keys(&etcd, "sprat", "password");
    let mut stack = Stack::over(etcd, 1, &keys);
    let begin = Instant::now();
    let mut table = 0;
    while begin.elapsed() < Duration::from_secs(5) {
        stack.creates(&format!("t{table}"));
        table += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    stack.lives();
}

/// Tokens that are older than a change of etcd's users are refused. An etcd that ends forgets those
/// of the simple kind.
#[test]
fn a_token_that_etcd_refuses_is_replaced() {
    let lasting = "jwt,pub-key=PUBLIC,priv-key=PRIVATE,sign-method=RS256,ttl=1h";
    for token in [lasting, "simple"] {
        let etcd = with_users(&["--auth-token", token]);
        let keys = keys(&etcd, "sprat", "password");
        let mut stack = Stack::over(etcd, 1, &keys);
        stack.etcd.control(&[&ROOT[..], &["user", "add", "another:x"]].concat());
        stack.creates("second");
        // A beat that has failed is long over.
        std::thread::sleep(Duration::from_secs(1));
        stack.creates("third");
        stack.etcd.members.clear();
        stack.etcd.run();
        stack.creates("fourth");
        stack.lives();
    }
}
