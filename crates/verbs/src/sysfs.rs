//! The files of our devices below `/sys/class/infiniband`, which no kernel serves: directories,
//! files and links by path. The library that `sprat exec` preloads (`preload/sysfs.c`) asks for
//! them and presents them to the program.
//!
//! ```text
//!   /sys/class/infiniband/DEV/ ─┬─ node_type node_guid sys_image_guid node_desc fw_ver hca_type
//!                               ├─ device/net/NAME ─► /sys/class/net/NAME
//!                               └─ ports/1/ ─┬─ state phys_state link_layer rate cap_mask
//!                                            ├─ lid sm_lid lid_mask_count
//!                                            ├─ gids/N   pkeys/0
//!                                            └─ gid_attrs/ ─┬─ ndevs/N
//!                                                           └─ types/N
//!   /sys/class/infiniband_verbs/DEV/ ─── ibdev abi_version
//! ```
//!
//! Invariant: a file has the kernel's format and the same content as the query functions.
//!
//! Not here: other paths of sysfs, which the kernel serves.

use std::ffi::{CStr, c_char, c_int};

use sprat_rdma::Interface;

use crate::device::interfaces;
use crate::entry::{INVALID, export, put};
use crate::query::{PORT, width_and_speed};

/// The object of sysfs at a path.
#[derive(PartialEq, Eq, Debug)]
enum Node {
    Folder(Vec<String>),
    File(String),
    /// A link out of the served paths, or a path behind such a link.
    Link(String),
    Behind(String),
}

/// The directory of RDMA devices that this library serves below `/sys/class`.
const DEVICES: &str = "infiniband";
const VERBS: &str = "infiniband_verbs";
const CLASS: &str = "/sys/class/";

/// The components of a path below `/sys/class`, after empty ones, `.` and `..` are resolved.
fn parts(path: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop()?;
        } else {
            parts.push(part);
        }
    }
    let below = parts.strip_prefix(&["sys", "class"])?;
    Some(below.to_vec())
}

fn names<const N: usize>(names: [&str; N]) -> Option<Node> {
    Some(Node::Folder(names.map(str::to_owned).to_vec()))
}

/// A sysfs file with one value on a line.
fn line(text: impl std::fmt::Display) -> Option<Node> {
    Some(Node::File(format!("{text}\n")))
}

/// Returns bytes in hexadecimal, in groups of two, as the kernel prints identifiers.
fn groups(bytes: &[u8]) -> String {
    let group = |pair: &[u8]| pair.iter().map(|o| format!("{o:02x}")).collect::<String>();
    bytes.chunks(2).map(group).collect::<Vec<_>>().join(":")
}

/// A sysfs file for the entry `number` of a table of the interface's addresses.
fn entry(interface: &Interface, number: &str, of: impl Fn(usize) -> String) -> Option<Node> {
    let index = number.parse().ok().filter(|&n: &usize| n < interface.addresses.len())?;
    line(of(index))
}

/// A sysfs directory with an entry for each of the interface's addresses, by number.
fn numbers(interface: &Interface) -> Option<Node> {
    Some(Node::Folder((0..interface.addresses.len()).map(|n| n.to_string()).collect()))
}

/// The rate of a port as sysfs prints it: "10 Gb/sec (4X)".
fn rate(interface: &Interface) -> String {
    let (width, speed) = width_and_speed(interface.mbps);
    // `active_width` is 1 for one lane, 2 for four.
    let lanes = if width == 1 { 1 } else { 4 };
    let (tenths, name) = match speed {
        1 => (25, "SDR"),
        4 => (100, "QDR"),
        32 => (250, "EDR"),
        _ => (50, "DDR"),
    };
    let all = tenths * lanes;
    let fraction = if all % 10 == 0 { String::new() } else { format!(".{}", all % 10) };
    format!("{}{fraction} Gb/sec ({lanes}X {name})", all / 10)
}

fn port(interface: &Interface, path: &[&str]) -> Option<Node> {
    match path {
        [] => names([
            "cap_mask",
            "gid_attrs",
            "gids",
            "lid",
            "lid_mask_count",
            "link_layer",
            "phys_state",
            "pkeys",
            "rate",
            "sm_lid",
            "state",
        ]),
        ["state"] => line(if interface.up { "4: ACTIVE" } else { "1: DOWN" }),
        ["phys_state"] => line(if interface.up { "5: LinkUp" } else { "3: Disabled" }),
        ["link_layer"] => line("Ethernet"),
        ["rate"] => line(rate(interface)),
        ["lid" | "sm_lid"] => line("0x0"),
        ["lid_mask_count"] => line("0"),
        ["cap_mask"] => line("0x00000000"),
        ["pkeys"] => names(["0"]),
        ["pkeys", "0"] => line("0xffff"),
        ["gids"] | ["gid_attrs", "ndevs" | "types"] => numbers(interface),
        ["gids", number] => {
            let gids: Vec<_> = interface.gids().collect();
            entry(interface, number, |n| groups(&gids[n]))
        }
        ["gid_attrs"] => names(["ndevs", "types"]),
        ["gid_attrs", "ndevs", number] => entry(interface, number, |_| interface.name.clone()),
        // The kernel's name of all types but RoCE's second version.
        ["gid_attrs", "types", number] => entry(interface, number, |_| "IB/RoCE v1".to_owned()),
        _ => None,
    }
}

fn device(interface: &Interface, path: &[&str]) -> Option<Node> {
    let port_name = PORT.to_string();
    match path {
        [] => names([
            "device",
            "fw_ver",
            "hca_type",
            "node_desc",
            "node_guid",
            "node_type",
            "ports",
            "sys_image_guid",
        ]),
        ["node_type"] => line("4: RNIC"),
        ["node_guid" | "sys_image_guid"] => line(groups(&interface.guid())),
        ["node_desc"] => line(format_args!("sprat {}", interface.device())),
        ["fw_ver"] => line(env!("CARGO_PKG_VERSION")),
        ["hca_type"] => line("sprat"),
        ["device"] => names(["net"]),
        ["device", "net"] => Some(Node::Folder(vec![interface.name.clone()])),
        ["device", "net", name] if *name == interface.name => {
            Some(Node::Link(format!("{CLASS}net/{name}")))
        }
        ["device", "net", name, rest @ ..] if *name == interface.name => {
            Some(Node::Behind(format!("{CLASS}net/{name}/{}", rest.join("/"))))
        }
        ["ports"] => Some(Node::Folder(vec![port_name])),
        ["ports", number, rest @ ..] if *number == port_name => port(interface, rest),
        _ => None,
    }
}

fn verbs(interface: &Interface, path: &[&str]) -> Option<Node> {
    match path {
        [] => names(["abi_version", "ibdev"]),
        ["ibdev"] => line(interface.device()),
        // The version of the kernel's interface for software iWARP.
        ["abi_version"] => line("1"),
        _ => None,
    }
}

fn find(interfaces: &[Interface], path: &str) -> Option<Node> {
    let parts = parts(path)?;
    let (&class, below) = parts.split_first()?;
    let served: fn(&Interface, &[&str]) -> Option<Node> = match class {
        DEVICES => device,
        VERBS => verbs,
        _ => return None,
    };
    let Some((&name, rest)) = below.split_first() else {
        return Some(Node::Folder(interfaces.iter().map(Interface::device).collect()));
    };
    served(interfaces.iter().find(|i| i.device() == name)?, rest)
}

export! {
    /// Returns the object at a path below `/sys/class/infiniband` or `/sys/class/infiniband_verbs`.
    ///
    /// The result is its kind, and `to` receives its content: `d` and the names in a directory,
    /// each followed by a zero byte; `f` and the text of a file; `l` and the target of a link; `r`
    /// and the path that a path behind a link stands for. The result is 0 if the path does not
    /// exist or `room` is too small. `len` receives the number of bytes written.
    plain fn sprat_sysfs(path: *const c_char, to: *mut u8, room: usize, len: *mut usize) -> c_int {
        if path.is_null() || to.is_null() {
            return Err(INVALID);
        }
        // SAFETY: The pointer is not null, and the caller passes a string that ends with a zero
        // byte.
        let Ok(path) = (unsafe { CStr::from_ptr(path) }).to_str() else { return Ok(0) };
        let (kind, text) = match find(&interfaces()?, path) {
            None => return Ok(0),
            Some(Node::Folder(names)) => {
                (b'd', names.iter().flat_map(|name| [name, "\0"]).collect::<String>())
            }
            Some(Node::File(text)) => (b'f', text),
            Some(Node::Link(target)) => (b'l', target),
            Some(Node::Behind(path)) => (b'r', path),
        };
        if text.len() > room {
            return Ok(0);
        }
        // SAFETY: The caller passes `room` bytes, and null or a number that it lets this call
        // write.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), to, text.len());
            put(len, text.len())?;
        }
        Ok(kind.into())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn interface() -> Interface {
        Interface {
            name: "eth0".to_owned(),
            index: 2,
            up: true,
            loopback: false,
            mtu: 1500,
            mbps: Some(10_000),
            mac: [2, 0, 0, 0, 0, 1],
            addresses: vec![Ipv4Addr::new(192, 0, 2, 1).into(), Ipv6Addr::LOCALHOST.into()],
        }
    }

    fn at(path: &str) -> Option<Node> {
        find(&[interface()], path)
    }

    #[test]
    fn files_are_in_the_kernel_s_form() {
        let base = "/sys/class/infiniband/iw_eth0";
        for (path, text) in [
            ("node_type", "4: RNIC\n"),
            ("node_guid", "0000:00ff:fe00:0001\n"),
            ("ports/1/state", "4: ACTIVE\n"),
            ("ports/1/rate", "10 Gb/sec (1X QDR)\n"),
            ("ports/1/gids/0", "0000:0000:0000:0000:0000:ffff:c000:0201\n"),
            ("ports/1/gids/1", "0000:0000:0000:0000:0000:0000:0000:0001\n"),
            ("ports/1/gid_attrs/ndevs/0", "eth0\n"),
            ("ports//1/./gid_attrs/types/../types/0", "IB/RoCE v1\n"),
            ("device/../ports/1/pkeys/0", "0xffff\n"),
        ] {
            assert_eq!(at(&format!("{base}/{path}")), Some(Node::File(text.to_owned())), "{path}");
        }
        assert_eq!(at("/sys/class/infiniband_verbs/iw_eth0/ibdev"), line("iw_eth0"));
    }

    #[test]
    fn folders_and_links_lead_to_all_of_them() {
        let mut left =
            vec!["/sys/class/infiniband".to_owned(), "/sys/class/infiniband_verbs".to_owned()];
        let mut files = 0;
        while let Some(path) = left.pop() {
            match at(&path) {
                Some(Node::Folder(names)) => {
                    left.extend(names.iter().map(|name| format!("{path}/{name}")))
                }
                Some(Node::File(text)) => {
                    assert!(text.ends_with('\n'), "{path}");
                    files += 1;
                }
                Some(Node::Link(target)) => {
                    assert_eq!(target, "/sys/class/net/eth0");
                    let behind = Some(Node::Behind(format!("{target}/address")));
                    assert_eq!(at(&format!("{path}/address")), behind);
                }
                other => panic!("{path}: {other:?}"),
            }
        }
        assert_eq!(files, 23);
    }

    #[test]
    fn nothing_else_is_served() {
        for path in [
            "",
            "/",
            "/sys/class",
            "/sys/class/net",
            "/sys/class/infinibandage",
            "/sys/class/infiniband/mlx5_0",
            "/sys/class/infiniband/iw_eth0/ports/2",
            "/sys/class/infiniband/iw_eth0/ports/1/gids/2",
            "/sys/class/infiniband/iw_eth0/ports/1/gids/x",
            "/sys/class/infiniband/iw_eth0/device/net/lo",
            "/sys/class/infiniband/iw_eth0/node_type/x",
            "/sys/class/infiniband/../../../..",
            "sys/class/x",
        ] {
            assert_eq!(at(path), None, "{path}");
        }
    }
}
