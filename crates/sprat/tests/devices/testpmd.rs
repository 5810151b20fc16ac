//! Tests with DPDK's testpmd as a peer, which sends each frame back with its addresses exchanged.

use std::process::{Child, Command, Stdio};

use sprat::internals::device::{AnyNic, Nic as _, Options, memif, open};
use sprat_proto::device::{Device as _, HEADER, Mac, Offload, Sent};
use sprat_sys::netns::{DEV, Wire};

use crate::Case;
use crate::house::frame;

const PROGRAM: &str = "dpdk-testpmd";
/// Number of polls of the ring after which a frame counts as late. After `PATIENCE` polls it counts
/// as lost.
const SOON: u32 = 20_000;
const PATIENCE: u32 = 2_000_000;

/// A process of testpmd, which ends when this value is dropped.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Peer {
    /// Starts testpmd with `queues` queues each way on the virtual device `device`, in the network
    /// namespace of the calling thread.
    fn start(device: &str, queues: u32) -> Self {
        let vdev = format!("--vdev={device}");
        let eal = [
            "--no-huge",
            "--no-pci",
            "--no-shconf",
            "--no-telemetry",
            "-m",
            "256",
            "-l",
            "0,1",
            &vdev,
        ];
        let mine = ["--forward-mode=macswap", "--auto-start", "--total-num-mbufs=8192"];
        let queues = [format!("--rxq={queues}"), format!("--txq={queues}")];
        let child = Command::new(PROGRAM)
            .args(eal)
            .arg("--")
            .args(mine)
            .args(queues)
            // It runs until its input ends.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, root: bool, run: fn()| Case {
        name: format!("testpmd::{name}"),
        root,
        program: Some(PROGRAM),
        run: Box::new(run),
    };
    vec![
        case("memif_serves_it", false, || memif_with_it(memif::Role::Server, 1)),
        case("memif_connects_to_it", false, || memif_with_it(memif::Role::Client, 1)),
        case("memif_serves_its_two_queues", false, || memif_with_it(memif::Role::Server, 2)),
        case("memif_connects_to_its_two_queues", false, || memif_with_it(memif::Role::Client, 2)),
        case("packet_and_its_af_packet", true, || across_a_wire("packet")),
        case("xdp_and_its_af_packet", true, || across_a_wire("xdp")),
    ]
}

fn exchanged(bytes: &[u8]) -> Vec<u8> {
    [&bytes[6..12], &bytes[..6], &bytes[12..]].concat()
}

/// Returns the next frame that the device receives; `None` if it does not arrive in `looks` polls.
fn next(device: &mut AnyNic, looks: u32) -> Option<Vec<u8>> {
    for _ in 0..looks {
        if device.recv_burst() > 0 {
            return Some(device.frame(0).0.to_vec());
        }
        // Both sides may have to share a processor.
        std::thread::yield_now();
    }
    None
}

fn memif_with_it(role: memif::Role, queues: u32) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("memif");
    let theirs = if role == memif::Role::Server { "client" } else { "server" };
    let options = Options { memif: Some(memif::Options::new(role, &socket)), ..Options::default() };
    let device = open("memif", &options).unwrap();
    let vdev =
        format!("net_memif0,role={theirs},id=0,socket={},socket-abstract=no", socket.display());
    there_and_back(device, Peer::start(&vdev, queues));
}

fn across_a_wire(driver: &str) {
    let net = Wire::new(1500).unwrap();
    let options = Options { dev: DEV.into(), ..Options::default() };
    let device = net.end(0).run(|| open(driver, &options)).unwrap().unwrap();
    let inside = net.end(1).enter().unwrap();
    let peer = Peer::start(&format!("net_af_packet0,iface={DEV}"), 1);
    drop(inside);
    there_and_back(device, peer);
}

fn there_and_back(mut device: AnyNic, _peer: Peer) {
    let (ours, other) = (device.info().mac, Mac([2, 0, 0, 0, 0, 9]));
    // It takes about a second to start. Frames sent until then are lost, or wait in a ring that is
    // not read yet.
    let mut first = None;
    for number in 0..1000 {
        device.disarm();
        assert_ne!(device.send(&[&frame(ours, other, number, 60)], Offload::None), Sent::Gone);
        device.flush();
        first = next(&mut device, SOON);
        if first.is_some() {
            break;
        }
    }
    assert!(first.is_some(), "it never answered");
    while next(&mut device, SOON).is_some() {}
    for number in 0..500 {
        let len = HEADER + 4 + (number as usize * 37) % 1497;
        let there = frame(ours, other, number, len);
        assert_eq!(device.send(&[&there], Offload::None), Sent::Yes);
        device.flush();
        assert_eq!(next(&mut device, PATIENCE), Some(exchanged(&there)), "{len}");
    }
}
