//! Tests of `/sys/class/infiniband` under `sprat exec`, as a C program and unmodified tools see it.

use std::path::Path;
use std::process::Command;

use crate::support::{Staging, output};

#[test]
fn programs_find_the_devices_in_sysfs() {
    let staging = Staging::new();
    let binary = staging.folder.path().join("sysfs");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/abi/sysfs.c");
    for fortified in ["-O0", "-D_FORTIFY_SOURCE=2", "-D_FILE_OFFSET_BITS=64"] {
        let flags = ["-Wall", "-Werror", "-O2", fortified, "-Wno-format-truncation", "-o"];
        output(Command::new("cc").args(flags).arg(&binary).arg(&source));
        let run = |command: &mut Command| output(command.arg("exec").arg("--").arg(&binary));
        assert!(run(&mut staging.nobody()).ends_with("all as it should be\n"), "{fortified}");
    }
    let shell = "ls /sys/class/infiniband; cat /sys/class/infiniband/iw_lo/node_type; \
        for net in /sys/class/infiniband/iw_lo/device/net/*; do echo $net; cat $net/address; done";
    let seen = output(Command::new(staging.sprat()).args(["exec", "--", "sh", "-c", shell]));
    for line in
        ["iw_lo", "4: RNIC", "/sys/class/infiniband/iw_lo/device/net/lo", "00:00:00:00:00:00"]
    {
        assert!(seen.lines().any(|seen| seen == line), "{line}: {seen}");
    }
}

#[test]
fn no_library_is_preloaded_where_none_is_wanted() {
    let staging = Staging::new();
    let run = |options: &[&str]| {
        let mut command = Command::new(staging.sprat());
        command.arg("exec").args(options).args(["--", "sh", "-c", "echo $LD_PRELOAD"]);
        output(command.env("LD_PRELOAD", ""))
    };
    assert_eq!(run(&["--no-sysfs"]), "\n");
    assert!(run(&[]).ends_with("/verbs/libsprat-sysfs.so\n"));
}
