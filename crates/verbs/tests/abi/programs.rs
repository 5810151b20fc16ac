//! Tests that run Debian's programs and a C program of ours on the libraries, as an unprivileged
//! user.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use crate::SYSTEM;
use crate::support::{Staging, libraries, output, own_uid};

/// Programs of rdma-core and perftest that are linked with one or both libraries, some of them
/// through libmlx5 and libefa.
const PROGRAMS: [&str; 12] = [
    "ibv_devices",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "rping",
    "ucmatose",
    "udaddy",
    "cmtime",
    "rdma_server",
    "rdma_xclient",
    "rstream",
    "ib_send_lat",
    "ib_write_bw",
];

/// The value of a key in the output of `ibv_devinfo`.
fn value<'a>(text: &'a str, key: &str) -> &'a str {
    let found =
        text.lines().filter_map(|line| line.trim().split_once(':')).find(|(k, _)| *k == key);
    found.unwrap_or_else(|| panic!("no {key} in {text}")).1.trim()
}

#[test]
fn devices_are_seen_as_sprat_says() {
    let staging = Staging::new();
    let seen = output(staging.nobody().args(["exec", "--", "ibv_devices"]));
    if own_uid() == 0 {
        assert!(
            seen.contains("CapEff:\t0000000000000000") && seen.contains("NoNewPrivs:\t1"),
            "{seen}"
        );
        assert!(!value(&seen, "Uid").starts_with('0'), "{seen}");
    }
    let listed = output(staging.nobody().args(["rdma", "devices"]));
    let devices = listed.lines().filter(|line| line.trim_start().starts_with("iw_"));
    let devices: Vec<Vec<&str>> = devices.map(|line| line.split_whitespace().collect()).collect();
    assert!(devices.iter().any(|d| d[0] == "iw_lo"), "{listed}");
    for device in &devices {
        let line = seen.lines().find(|line| line.split_whitespace().next() == Some(device[0]));
        assert!(line.is_some_and(|line| line.contains(device[4])), "{device:?} in {seen}");
    }
    assert_eq!(seen.lines().filter(|line| line.contains("iw_")).count(), devices.len(), "{seen}");
}

#[test]
fn loopback_is_a_card_that_speaks_iwarp() {
    let staging = Staging::new();
    let seen = output(staging.nobody().args(["exec", "--", "ibv_devinfo", "-v", "-d", "iw_lo"]));
    // Write past the harness, which captures the output of tests.
    let _ = std::io::stderr().write_all(seen.as_bytes());
    for (key, expected) in [
        ("hca_id", "iw_lo"),
        ("transport", "iWARP (1)"),
        ("vendor_id", "0x626d74"),
        ("phys_port_cnt", "1"),
        ("max_sge", "8"),
        ("state", "PORT_ACTIVE (4)"),
        ("link_layer", "Ethernet"),
        ("pkey_tbl_len", "1"),
    ] {
        assert_eq!(value(&seen, key), expected, "{key}");
    }
    assert!(
        value(&seen, "GID[  0]").starts_with("0000:0000:0000:0000:0000:ffff:7f00:0001"),
        "{seen}"
    );
}

#[test]
fn programs_load() {
    let staging = Staging::new();
    for program in PROGRAMS {
        let path = Path::new("/usr/bin").join(program);
        let loaded =
            output(Command::new(staging.sprat()).args(["exec", "--", "ldd", "-r"]).arg(path));
        assert!(loaded.contains("verbs/libibverbs.so.1 ("), "{program}: {loaded}");
        assert!(
            !loaded.contains("undefined") && !loaded.contains("not found"),
            "{program}: {loaded}"
        );
    }
}

/// A C program of ours prints a line for each check of the libraries that fails.
#[test]
fn a_program_of_ours_finds_what_it_should() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let binary = folder.path().join("probe");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/abi/probe.c");
    let flags = ["-Wall", "-Werror", "-o"];
    let linked = ["-libverbs", "-lrdmacm", "-ldl"];
    output(Command::new("cc").args(flags).arg(&binary).arg(source).args(linked));
    let mut command = Command::new(&binary);
    assert_eq!(output(command.env("LD_LIBRARY_PATH", libraries())), "all as it should be\n");
}

/// The libraries have the same names for the values of enumerations as Debian's. Programs may
/// compare or print these names. Debian's libraries lack the newest values.
#[test]
fn numbers_are_called_what_debians_libraries_call_them() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let binary = folder.path().join("names");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/abi/names.c");
    let flags = ["-Wall", "-Wextra", "-Werror", "-o"];
    output(Command::new("cc").args(flags).arg(&binary).arg(source).args(["-libverbs", "-lrdmacm"]));
    let theirs = output(Command::new(&binary).env("LD_LIBRARY_PATH", SYSTEM));
    let ours = output(Command::new(&binary).env("LD_LIBRARY_PATH", libraries()));
    let is_named = |line: &&str| !line.to_lowercase().contains(": unknown");
    let missing: Vec<_> =
        theirs.lines().filter(is_named).filter(|name| ours.lines().all(|l| l != *name)).collect();
    assert!(theirs.lines().filter(is_named).count() > 60, "{theirs}");
    assert!(missing.is_empty(), "{missing:?} in {ours}");
}

#[test]
fn exec_says_what_is_missing() {
    let staging = Staging::new();
    let run = |command: &mut Command| {
        let out = command.output().expect("sprat runs");
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (code, said) =
        run(Command::new(staging.sprat()).args(["exec", "--", "there-is-no-such-program"]));
    assert!(code == Some(1) && said.contains("there-is-no-such-program"), "{said}");
    assert_eq!(
        run(Command::new(staging.sprat()).args(["exec", "--", "sh", "-c", "exit 7"])).0,
        Some(7)
    );
    fs::remove_file(staging.folder.path().join("verbs/librdmacm.so.1")).expect("it is ours");
    let (code, said) = run(Command::new(staging.sprat()).args(["exec", "true"]));
    assert!(code == Some(1) && said.contains("make verbs"), "{said}");
    let (code, said) =
        run(Command::new(staging.sprat()).args(["exec", "true"]).env("SPRAT_VERBS", "/nowhere"));
    assert!(code == Some(1) && said.contains("SPRAT_VERBS=/nowhere"), "{said}");
}

#[test]
fn exec_allows_the_network_where_it_is_asked_to() {
    let staging = Staging::new();
    let show = ["--", "sh", "-c", "echo network=$SPRAT_INSECURE_NETWORK"];
    let run = |options: &[&str]| {
        let mut command = Command::new(staging.sprat());
        output(command.arg("exec").args(options).args(show).env_remove("SPRAT_INSECURE_NETWORK"))
    };
    assert_eq!(run(&[]), "network=\n");
    assert_eq!(run(&["--insecure-network"]), "network=1\n");
}

/// The log of the libraries has a line if it is enabled and none otherwise. The test does not check
/// its text.
#[test]
fn a_log_is_kept_where_it_is_wanted() {
    let staging = Staging::new();
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("log-%p");
    let run = |log: &str| {
        let mut command = Command::new(staging.sprat());
        let out = command
            .args(["exec", "--", "ibv_devinfo", "-d", "iw_lo"])
            .env("SPRAT_LOG", log)
            .output();
        let out = out.expect("sprat runs");
        assert!(out.status.success());
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    assert_eq!(run(""), "");
    assert_eq!(run("error"), "");
    assert!(run("info").starts_with("sprat["));
    assert!(run("nonsense").contains("SPRAT_LOG"));
    assert_eq!(run(&format!("info,{}", file.display())), "");
    let files: Vec<_> = fs::read_dir(folder.path()).expect("it is ours").flatten().collect();
    let name = files[0].file_name().into_string().expect("a name in ASCII");
    assert!(files.len() == 1 && name.starts_with("log-") && !name.contains('%'), "{name}");
    assert!(fs::read_to_string(files[0].path()).expect("it is ours").starts_with("sprat["));
}
