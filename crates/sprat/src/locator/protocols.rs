//! The facts about each protocol of locators, its driver and its device.
//!
//! [`PROTOCOLS`] is the one table. The grammar of locators, the drivers, the worker's polling, the
//! command line, `sprat doctor`, the benchmarks and a test of the documents read it.
//!
//! Not here: what a device can do on a certain interface; an open device says that itself.

/// The place where a worker finds packets or requests when it polls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poll {
    /// Memory that the sender writes. A poll costs a few nanoseconds.
    Memory,
    /// A file descriptor. A poll costs a system call.
    SystemCall,
}

/// A protocol that a locator can name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Protocol {
    /// The name of the protocol in locators, as in `fast+udp`.
    pub name: &'static str,
    /// The form of the protocol's locators, for messages.
    pub form: &'static str,
    /// The keys that the protocol's locators may have.
    pub keys: &'static [&'static str],
    /// The place where a worker finds packets of this protocol when it polls.
    pub poll: Poll,
    /// True if kernel TCP carries the protocol.
    pub tcp: bool,
    /// The packet device below the protocol, if our own IP stack carries it.
    pub device: Option<DeviceFacts>,
}

/// The facts about a kind of packet device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceFacts {
    /// The name of the device's driver. It is empty for a bond, whose locator names the driver of
    /// both members.
    pub driver: &'static str,
    /// The key of a locator that names the device.
    pub key: &'static str,
    /// True if nothing but memory lies between both ends: no interface of the kernel, no wire.
    pub memory: bool,
    /// True if a device can have a hardware address other than its interface's.
    pub own_mac: bool,
    /// True if a device's name leads only to the processes that use the name, and to no other host.
    pub private_wire: bool,
    /// True if each worker needs a device of its own.
    pub one_per_worker: bool,
    /// True if frames from this machine may arrive without computed checksums.
    pub partial_checksums: bool,
    /// True if a client cannot use the device that a server's locator names, but needs one of its
    /// own.
    pub client_needs_own: bool,
    /// True if a bond can be made of two such devices.
    pub bonds: bool,
}

const PLAIN: DeviceFacts = DeviceFacts {
    driver: "",
    key: "dev",
    memory: false,
    own_mac: true,
    private_wire: false,
    one_per_worker: false,
    partial_checksums: false,
    client_needs_own: false,
    bonds: false,
};

const PACKET: DeviceFacts = DeviceFacts { driver: "packet", bonds: true, ..PLAIN };
const XDP: DeviceFacts =
    DeviceFacts { driver: "xdp", own_mac: false, partial_checksums: true, bonds: true, ..PLAIN };
const TAP: DeviceFacts = DeviceFacts { driver: "tap", one_per_worker: true, ..PLAIN };
const MEMIF: DeviceFacts = DeviceFacts {
    driver: "memif",
    key: "socket",
    memory: true,
    private_wire: true,
    one_per_worker: true,
    bonds: true,
    ..PLAIN
};
const SHM: DeviceFacts = DeviceFacts {
    driver: "shm",
    key: "name",
    memory: true,
    private_wire: true,
    one_per_worker: true,
    ..PLAIN
};
const DPDK: DeviceFacts =
    DeviceFacts { driver: "dpdk", client_needs_own: true, bonds: true, ..PLAIN };

const fn over_device(
    name: &'static str,
    form: &'static str,
    keys: &'static [&'static str],
    poll: Poll,
    device: DeviceFacts,
) -> Protocol {
    Protocol { name, form, keys, poll, tcp: false, device: Some(device) }
}

/// All protocols, the fastest on one machine first.
pub const PROTOCOLS: &[Protocol] = &[
    Protocol {
        name: "fast+shm",
        form: "fast+shm:name=N",
        keys: &["name"],
        poll: Poll::Memory,
        tcp: false,
        device: None,
    },
    over_device(
        "fast+shmnet",
        "fast+shmnet:name=N,…",
        &["name", "crc", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::Memory,
        SHM,
    ),
    over_device(
        "fast+memif",
        "fast+memif:socket=S,…",
        &["socket", "crc", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::Memory,
        MEMIF,
    ),
    over_device(
        "fast+packet",
        "fast+packet:dev=D,host=H,port=P[,mac=M]",
        &["dev", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::Memory,
        PACKET,
    ),
    over_device(
        "fast+xdp",
        "fast+xdp:dev=D[,queue=N],…",
        &["dev", "queue", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::Memory,
        XDP,
    ),
    over_device(
        "fast+tap",
        "fast+tap:dev=D[,bridge=B],…",
        &["dev", "bridge", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::SystemCall,
        TAP,
    ),
    over_device(
        "fast+bond",
        "fast+bond:dev=D,with=E[,of=xdp],…",
        &["dev", "with", "of", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::Memory,
        PLAIN,
    ),
    over_device(
        "fast+dpdk",
        "fast+dpdk:dev=D,…",
        &["dev", "eal", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::Memory,
        DPDK,
    ),
    Protocol {
        name: "fast+udp",
        form: "fast+udp:host=H,port=P[,crc=off]",
        keys: &["host", "port", "crc"],
        poll: Poll::SystemCall,
        tcp: false,
        device: None,
    },
    over_device(
        "utcp+shmnet",
        "utcp+shmnet:name=N,…",
        &["name", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::Memory,
        SHM,
    ),
    over_device(
        "utcp+memif",
        "utcp+memif:socket=S,…",
        &["socket", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::Memory,
        MEMIF,
    ),
    over_device(
        "utcp+packet",
        "utcp+packet:dev=D,host=H,port=P[,mac=M]",
        &["dev", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::Memory,
        PACKET,
    ),
    over_device(
        "utcp+xdp",
        "utcp+xdp:dev=D[,queue=N],…",
        &["dev", "queue", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::Memory,
        XDP,
    ),
    over_device(
        "utcp+tap",
        "utcp+tap:dev=D[,bridge=B],…",
        &["dev", "bridge", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::SystemCall,
        TAP,
    ),
    over_device(
        "utcp+bond",
        "utcp+bond:dev=D,with=E[,of=xdp],…",
        &["dev", "with", "of", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::Memory,
        PLAIN,
    ),
    over_device(
        "utcp+dpdk",
        "utcp+dpdk:dev=D,…",
        &["dev", "eal", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::Memory,
        DPDK,
    ),
    Protocol {
        name: "tcp",
        form: "tcp:host=H,port=P",
        keys: &["host", "port"],
        poll: Poll::SystemCall,
        tcp: true,
        device: None,
    },
    Protocol {
        name: "rdma",
        form: "rdma:host=H,port=P[,crc=off]",
        keys: &["host", "port", "crc"],
        poll: Poll::SystemCall,
        tcp: true,
        device: None,
    },
    over_device(
        "rdma+shmnet",
        "rdma+shmnet:name=N,…",
        &["name", "crc", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::Memory,
        SHM,
    ),
    over_device(
        "rdma+memif",
        "rdma+memif:socket=S,…",
        &["socket", "crc", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::Memory,
        MEMIF,
    ),
    over_device(
        "rdma+packet",
        "rdma+packet:dev=D,host=H,port=P[,mac=M]",
        &["dev", "crc", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::Memory,
        PACKET,
    ),
    over_device(
        "rdma+xdp",
        "rdma+xdp:dev=D[,queue=N],…",
        &["dev", "queue", "crc", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::Memory,
        XDP,
    ),
    over_device(
        "rdma+tap",
        "rdma+tap:dev=D[,bridge=B],…",
        &["dev", "bridge", "crc", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::SystemCall,
        TAP,
    ),
    over_device(
        "rdma+bond",
        "rdma+bond:dev=D,with=E[,of=xdp],…",
        &["dev", "with", "of", "crc", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::Memory,
        PLAIN,
    ),
    over_device(
        "rdma+dpdk",
        "rdma+dpdk:dev=D,…",
        &["dev", "eal", "crc", "host", "port", "mac", "prefix", "gateway", "pcap"],
        Poll::Memory,
        DPDK,
    ),
];

impl Protocol {
    /// Returns the protocol that has this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        PROTOCOLS.iter().find(|protocol| protocol.name == name)
    }

    /// Returns the names of all protocols, the fastest on one machine first.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROTOCOLS.iter().map(|protocol| protocol.name)
    }

    /// Returns the forms of all protocols' locators, as a list for messages.
    pub(crate) fn forms() -> String {
        let forms: Vec<_> = PROTOCOLS.iter().map(|protocol| protocol.form).collect();
        listed(&forms)
    }
}

impl DeviceFacts {
    /// Returns all kinds of packet devices. A bond is none of them, since it is made of two.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        // Each kind is below several protocols.
        let first = PROTOCOLS.iter().filter(|protocol| protocol.name.starts_with("fast+"));
        let devices = first.filter_map(|protocol| protocol.device.as_ref());
        devices.filter(|device| !device.driver.is_empty())
    }

    /// Returns the facts about the kind of packet device that this driver makes.
    #[must_use]
    pub fn of(driver: &str) -> Option<&'static Self> {
        Self::all().find(|device| device.driver == driver)
    }

    /// Returns the names of all drivers of packet devices, as a list for messages.
    pub(crate) fn drivers() -> String {
        listed(&Self::all().map(|device| device.driver).collect::<Vec<_>>())
    }
}

/// Joins words as a list for messages: `a, b and c`.
fn listed(words: &[&str]) -> String {
    match words {
        [rest @ .., last] if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => words.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_a_devices_key_is_a_key() {
        for (i, protocol) in PROTOCOLS.iter().enumerate() {
            assert!(!PROTOCOLS[..i].iter().any(|other| other.name == protocol.name));
            assert!(protocol.form.starts_with(&format!("{}:", protocol.name)));
            assert!(protocol.device.is_none_or(|device| protocol.keys.contains(&device.key)));
        }
    }

    #[test]
    fn the_documents_list_every_protocol_with_its_keys() {
        let page = include_str!("../../../../docs/formats.md");
        let section = page.split("## Locators").nth(1).and_then(|s| s.split("\n## ").next());
        let section = section.expect("docs/formats.md has a section about locators");
        for protocol in PROTOCOLS {
            let row = format!("| `{}:", protocol.name);
            assert!(section.contains(&row), "docs/formats.md has no row {row}");
            for key in protocol.keys {
                assert!(section.contains(&format!("{key}=")), "docs/formats.md lacks {key}=");
            }
        }
    }
}
