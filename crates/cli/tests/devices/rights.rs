//! Tests of the message about a missing capability: it names the capabilities that a packet device
//! needs, and these are enough.

use std::process::Command;

use sprat_sys::netns::{DEV, Wire};

use crate::{program_for_all, sprat};

/// The capabilities that each packet device needs, after the device and its mode as `sprat doctor`
/// prints them.
const NEEDED: [(&str, &str, &[&str]); 3] = [
    ("packet", "", &["net_raw"]),
    ("xdp", "generic", &["net_raw", "net_admin", "bpf", "ipc_lock"]),
    ("tap", "", &["net_admin"]),
];

/// Finds the row of a packet device in the output of `sprat doctor`. Returns whether the device
/// works, and the row.
fn row(text: &str, device: &str, way: &str) -> (bool, String) {
    let row = text.lines().find(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some(device) && (way.is_empty() || words.next() == Some(way))
    });
    let row = row.unwrap_or_else(|| panic!("{device} {way}: {text}"));
    (row.split_whitespace().any(|word| word == "yes"), row.to_owned())
}

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat()
}

/// Returns a command that runs `sprat` by `setpriv`, as root without these capabilities.
fn without(capabilities: &[&str]) -> Command {
    let list: Vec<String> = capabilities.iter().map(|c| format!("-{c}")).collect();
    let mut command = Command::new("setpriv");
    command.args(["--inh-caps=-all", "--bounding-set", &list.join(",")]).arg(sprat().get_program());
    command
}

pub(crate) fn missing() {
    let net = Wire::new(1500).unwrap();
    let _inside = net.end(1).enter().unwrap();
    for (device, way, needed) in NEEDED {
        for capability in needed {
            // A process with CAP_SYS_ADMIN may do anything with BPF programs.
            let gone = [*capability, "sys_admin"];
            // Without it, memory is locked up to the process's limit.
            let mut command = if *capability == "ipc_lock" {
                let mut limited = Command::new("prlimit");
                limited.arg("--memlock=65536").arg(without(&gone).get_program());
                limited.args(without(&gone).get_args());
                limited
            } else {
                without(&gone)
            };
            let (works, told) =
                row(&said(command.args(["doctor", "--dev", DEV]).current_dir("/")), device, way);
            let name = format!("cap_{capability}");
            assert!(!works && told.contains("setcap") && told.contains(&name), "{name}: {told}");
            assert!(told.contains(&name.to_uppercase()), "{name}: {told}");
        }
    }
    // The server's message is the same, and names nothing else.
    let locator = format!("fast+packet:dev={DEV},host=10.83.0.201,port=7");
    let told = said(without(&["net_raw"]).args(["echo", "-L", &locator]));
    assert!(told.contains("CAP_NET_RAW") && told.contains("setcap cap_net_raw+ep"), "{told}");
    assert!(!told.contains("address"), "{told}");
}

/// Returns a command that runs another one by `unshare`, in a mount namespace of its own with a
/// /dev/net/tun of this mode.
fn with_tun(mode: &str) -> Command {
    let script = format!(
        "mount -t tmpfs -o mode=755 none /dev/net && mknod -m {mode} /dev/net/tun c 10 200"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &format!("{script} && exec \"$@\""), "sh"]);
    command
}

/// `sprat doctor` names a device node that only root may open with its remedy, as on a machine
/// without udev.
pub(crate) fn closed() {
    let net = Wire::new(1500).unwrap();
    let (_folder, program) = program_for_all();
    let _inside = net.end(1).enter().unwrap();
    let mut command = with_tun("600");
    command.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.args(["--inh-caps=+net_admin", "--ambient-caps=+net_admin"]);
    let text = said(command.arg(&program).args(["doctor", "--dev", DEV]).current_dir("/"));
    let (works, told) = row(&text, "tap", "");
    assert!(!works && told.contains("chmod a+rw /dev/net/tun"), "{told}");
}

/// Each packet device works for a user with the capabilities that it needs and no others, and does
/// not work without them.
pub(crate) fn enough() {
    let net = Wire::new(1500).unwrap();
    let (_folder, program) = program_for_all();
    let _inside = net.end(1).enter().unwrap();
    for (device, way, needed) in NEEDED {
        let list: Vec<String> = needed.iter().map(|c| format!("+{c}")).collect();
        let mut command = with_tun("666");
        command.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.args(["--inh-caps", &list.join(","), "--ambient-caps", &list.join(",")]);
        let text = said(command.arg(&program).args(["doctor", "--dev", DEV]).current_dir("/"));
        let (works, told) = row(&text, device, way);
        assert!(works, "{told}");
        // And not without.
        let (works, told) = row(
            &said(nobody(&program).args(["doctor", "--dev", DEV]).current_dir("/")),
            device,
            way,
        );
        assert!(!works && told.contains("setcap"), "{told}");
    }
}

fn nobody(program: &std::path::Path) -> Command {
    let mut command = with_tun("666");
    command.args([
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--inh-caps=-all",
    ]);
    command.arg(program);
    command
}
