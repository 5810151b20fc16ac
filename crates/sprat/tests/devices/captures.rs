//! Tests of capture files, checked by tshark: every frame is whole, every checksum right, and every
//! frame that was sent is there.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use sprat::internals::device::{Options, open};
use sprat::rpc::{Call, Client, Server};
use sprat_proto::net::{Interface, Ipv4Assignment, StackEvent, StackOptions, UdpSocket};
use sprat_proto::{Datagrams as _, Rng};
use sprat_sys::clock;
use sprat_sys::netns::{Namespace, link};

use crate::Case;
use crate::stack::{World, datagrams, echoes};

const PROGRAM: &str = "tshark";
/// The state that tshark prints for a wrong checksum.
const BAD: &str = "0";

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: String, root, run: Box<dyn Fn() + std::panic::RefUnwindSafe>| Case {
        name: format!("captures::{name}"),
        root,
        program: Some(PROGRAM),
        run,
    };
    let mut cases = Vec::new();
    for driver in ["packet", "xdp"] {
        for (version, kernel, ours) in
            [("v4", "10.77.0.1", "10.77.0.2"), ("v6", "fd77::1", "fd77::2")]
        {
            let run = move || beside_the_kernel(driver, kernel, ours);
            cases.push(case(
                format!("{driver}::{version}::beside_the_kernel"),
                true,
                Box::new(run),
            ));
        }
    }
    cases.push(case("tap::beside_the_kernel".into(), true, Box::new(on_a_tap)));
    for (version, ours) in [("v4", "10.79.0.2"), ("v6", "fd79::2")] {
        cases.push(case(
            format!("memif::{version}::both_ends"),
            false,
            Box::new(move || both_ends_of_a_memif(ours)),
        ));
    }
    cases
}

/// Returns the protocols in a capture file, with the number of frames of each. A wrong frame fails
/// the test.
fn protocols(path: &Path) -> BTreeMap<String, usize> {
    const SUMS: [&str; 5] = [
        "ip.checksum.status",
        "udp.checksum.status",
        "icmp.checksum.status",
        "icmpv6.checksum.status",
        "tcp.checksum.status",
    ];
    let mut command = Command::new(PROGRAM);
    // Our payload is no known protocol, even if its port belongs to one.
    command.args([
        "-n",
        "-T",
        "fields",
        "-d",
        "udp.port==7,data",
        "-e",
        "frame.protocols",
        "-e",
        "_ws.malformed",
    ]);
    for option in ["ip.check_checksum", "udp.check_checksum", "tcp.check_checksum"] {
        command.args(["-o", &format!("{option}:TRUE")]);
    }
    for field in SUMS {
        command.args(["-e", field]);
    }
    let output = command.arg("-r").arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut found = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let mut fields = line.split('\t');
        let (frame, malformed) = (fields.next().unwrap(), fields.next().unwrap());
        assert_eq!(malformed, "", "frame {}: {line}", number + 1);
        for (field, value) in SUMS.iter().zip(fields) {
            assert!(
                value.split(',').all(|status| status != BAD),
                "frame {}: {field}: {line}",
                number + 1
            );
        }
        frame.split(':').for_each(|name| *found.entry(name.to_owned()).or_default() += 1);
    }
    assert_eq!(found.get("eth").copied(), Some(text.lines().count()), "{found:?}");
    found
}

fn at_least(found: &BTreeMap<String, usize>, name: &str, least: usize) {
    assert!(found.get(name).is_some_and(|n| *n >= least), "{least} of {name}: {found:?}");
}

fn beside_the_kernel(driver: &str, kernel: &str, ours: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pcap");
    let mut world = World::new(driver, kernel, ours, &format!("7,pcap={}", path.display()));
    assert!(!world.locator().contains("pcap"), "that is nobody else's business");
    let [kernel, ours] = [kernel, ours].map(|ip| SocketAddr::new(ip.parse().unwrap(), 7));
    echoes(&mut world, kernel, ours);
    datagrams(&mut world, kernel, ours);
    drop(world);
    let found = protocols(&path);
    // Echo requests of both sides with their replies; datagrams both ways; address requests of both
    // sides.
    let (echo, neighbours) = if ours.is_ipv4() { ("icmp", "arp") } else { ("icmpv6", "icmpv6") };
    at_least(&found, echo, 2 * (5 + 4));
    at_least(&found, "udp", 2 * 9);
    at_least(&found, neighbours, 2);
}

/// Captures the frames of a tap through which the kernel pings our IP stack.
fn on_a_tap() {
    const TAP: &str = "tap7";
    const PINGS: u16 = 20;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pcap");
    let net = Namespace::new().unwrap();
    let options = Options { dev: TAP.into(), pcap: Some(path.clone()), ..Options::default() };
    let [kernel, ours]: [IpAddr; 2] = ["10.78.0.1", "10.78.0.2"].map(|ip| ip.parse().unwrap());
    let nic = net.run(|| open("tap", &options)).unwrap().unwrap();
    net.run(|| link::address(TAP, kernel, 24)).unwrap().unwrap();
    let IpAddr::V4(addr) = ours else { unreachable!() };
    let options = StackOptions {
        ipv4: Ipv4Assignment::Static { addr, prefix: 24 },
        ..StackOptions::default()
    };
    let mut port = UdpSocket::new(Interface::new(options, nic, Rng::seeded(1)), 7, false).unwrap();
    port.interface_mut().tick(clock::now());
    let mut answered = 0;
    for number in 0..PINGS {
        port.interface_mut().set_now(clock::now());
        port.interface_mut()
            .stack_mut()
            .ping(clock::now(), kernel, 56 + 97 * usize::from(number))
            .unwrap();
        for _ in 0..1_000_000 {
            port.interface_mut().set_now(clock::now());
            port.recv_burst();
            if port.interface().deadline().is_some_and(|due| due <= clock::now()) {
                port.interface_mut().tick(clock::now());
            }
            port.flush();
            if let Some(StackEvent::EchoReply { .. }) = port.interface_mut().event() {
                answered += 1;
                break;
            }
            std::thread::yield_now();
        }
    }
    drop(port);
    assert_eq!(answered, PINGS);
    let found = protocols(&path);
    at_least(&found, "icmp", 2 * usize::from(PINGS));
    at_least(&found, "arp", 2);
}

/// Captures the frames of a memif's server and client, in a file for each.
fn both_ends_of_a_memif(ours: &str) {
    let folder = tempfile::tempdir().unwrap();
    let [socket, near, far] =
        ["memif", "near.pcap", "far.pcap"].map(|name| folder.path().join(name));
    let locator = format!("fast+memif:socket={},host={ours},port=7", socket.display());
    let echo = |call: Call<'_>| Some(call.payload.into_vec());
    let mut server = Server::listen(&[&format!("{locator},pcap={}", far.display())], echo).unwrap();
    assert_eq!(server.locators(), locator);
    let stop = server.stop();
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || server.run());
        let mut client = Client::new().unwrap();
        let session = client.connect(&format!("{locator},pcap={}", near.display())).unwrap();
        for len in [0, 1, 100, 1400, 65_536, 300_000] {
            let request = vec![b'm'; len];
            assert_eq!(
                client.call(session, &request, Duration::from_secs(20)),
                Ok(request),
                "{len} octets"
            );
        }
        drop(client);
        stop.stop();
        serving.join().unwrap();
    });
    for path in [near, far] {
        let found = protocols(&path);
        // Of each request and reply a packet at least.
        at_least(&found, "udp", 2 * 6);
        at_least(&found, if ours.contains(':') { "icmpv6" } else { "arp" }, 2);
    }
}
