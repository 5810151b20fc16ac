//! `sprat doctor`: checks which packet devices work on this machine, and explains why others do
//! not.
//!
//! The command opens and closes each device: on the interface of --dev, or in a network namespace
//! that ends afterwards.

use std::io;

use clap::Args;
use sprat::internals::device::{self, AnyNic, Nic as _, Options, XdpMode, bond::Bond, memif, shm};
use sprat::locator::DeviceFacts;
use sprat_proto::device::{Device as _, Mac};
use sprat_sys::netns::{DEV, Wire};

use sprat_bench::fail::Fail;
use sprat_bench::out::{self, Columns};

/// The modes of AF_XDP that `sprat doctor` tries, by name.
const XDP_MODES: [(&str, Option<XdpMode>); 3] = [
    ("generic", Some(XdpMode::Generic)),
    ("native", Some(XdpMode::Native)),
    ("zero-copy", Some(XdpMode::ZeroCopy)),
];
/// The name of the tap interface that `sprat doctor` makes for its check.
const TAP: &str = "sprat-doctor";

/// The interface of a bond's second device in the network namespace of `sprat doctor`.
const SECOND: &str = "wire1";
/// The hardware address of both devices of the bond that `sprat doctor` checks.
const MAC: Mac = Mac([2, 0x53, 0, 0, 0, 1]);

/// A function that opens a packet device for `sprat doctor`.
type Open<'o> = &'o (dyn Fn() -> io::Result<AnyNic> + Sync);

/// Check which packet devices work here, and how to mend those that do not.
///
/// Each is opened and closed again: in a network of its own, which needs root, or on the interface
/// that --dev names.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat doctor
  sprat doctor --dev eth0                 the program for xdp is on eth0 for a moment")]
pub(crate) struct Doctor {
    /// Try the devices on this interface.
    #[arg(long, value_name = "DEV")]
    dev: Option<String>,
}

/// Runs `sprat doctor`.
pub(crate) fn run(args: &Doctor) -> Result<(), Fail> {
    let mut table = Columns::new(&["device", "way", "works", "", "what is missing"]);
    let mut all = true;
    let mut row = |device: &str, way: &str, result: io::Result<String>| {
        all &= result.is_ok();
        let works = if result.is_ok() { "yes" } else { "no" };
        let (can, missing) = match result {
            Ok(can) => (can, String::new()),
            Err(error) => (String::new(), error.to_string()),
        };
        table.row([device.to_owned(), way.to_owned(), works.to_owned(), can, missing]);
    };
    let dev = args.dev.as_deref();
    for DeviceFacts { driver, .. } in DeviceFacts::all() {
        match *driver {
            "memif" => row(driver, "", memif().map(|nic| can(&nic))),
            "shm" => row(driver, "", rings().map(|nic| can(&nic))),
            "dpdk" => {
                let dev = format!("net_af_packet0,iface={}", dev.unwrap_or(DEV));
                let options = Options { dev, ..Options::default() };
                let opened = tried(args, &|| Ok(device::open(driver, &options)?));
                row(driver, "net_af_packet", opened);
            }
            _ => {
                let modes = if *driver == "xdp" { &XDP_MODES[..] } else { &[("", None)] };
                for (mode, xdp_mode) in modes {
                    let dev = if *driver == "tap" { TAP } else { dev.unwrap_or(DEV) }.to_owned();
                    let options = Options { dev, xdp_mode: *xdp_mode, ..Options::default() };
                    row(driver, mode, tried(args, &|| Ok(device::open(driver, &options)?)));
                }
            }
        }
    }
    if dev.is_none() {
        row("bond", "two of packet", tried(args, &bonded));
    }
    let place = match dev {
        Some(dev) => format!("Packet devices on {dev}:\n"),
        None => {
            "Packet devices, in a network of our own (--dev D for an interface of this machine):\n"
                .into()
        }
    };
    out::print(place + &table.text())?;
    if !all {
        out::print("fast+shm, fast+udp, tcp and rdma need nothing of this.\n")?;
    }
    Ok(())
}

/// Opens and closes a packet device: on the interface of --dev, or in a new network namespace.
/// Returns a description of its offloads.
fn tried(args: &Doctor, open: Open<'_>) -> io::Result<String> {
    let open = || open().map(|nic| can(&nic));
    if args.dev.is_some() {
        return open();
    }
    // Each device gets a new namespace, since the kernel frees a queue only some time after its
    // socket was closed.
    let wire = Wire::new(1500)?;
    wire.add(SECOND, 1500)?;
    wire.end(0).run(open)?
}

/// Describes the offloads of a packet device.
fn can(nic: &AnyNic) -> String {
    let info = nic.info();
    let what = [
        (info.offloads.checksum, "checksums"),
        (info.offloads.tcp_segments || info.offloads.udp_segments, "segments"),
        (nic.has_rx_timestamps(), "timestamps"),
    ];
    let list: Vec<_> = what.iter().filter(|(can, _)| *can).map(|(_, what)| *what).collect();
    let list = if list.is_empty() { "frames only".to_owned() } else { list.join(", ") };
    let queues = nic.queues();
    if queues > 1 { format!("{list}, {queues} queues") } else { list }
}

fn bonded() -> io::Result<AnyNic> {
    let one = |dev: &str| {
        let options = Options { dev: dev.to_owned(), mac: Some(MAC), ..Options::default() };
        Ok(device::open("packet", &options)?)
    };
    let both: io::Result<Vec<_>> = [DEV, SECOND].into_iter().map(one).collect();
    Ok(AnyNic::other(Bond::new(both?)?))
}

/// Opens a packet device of rings in shared memory, which needs only a name.
fn rings() -> io::Result<AnyNic> {
    let name = format!("doctor-{}", std::process::id());
    let shm = Some(shm::Options { name, listens: true, mac: None, mtu: 1500 });
    Ok(device::open("shm", &Options { shm, ..Options::default() })?)
}

/// Opens a memif device, which needs only a folder for its socket.
fn memif() -> io::Result<AnyNic> {
    let socket = std::env::temp_dir().join(format!("sprat-doctor-{}", std::process::id()));
    let memif = Some(memif::Options::new(memif::Role::Server, socket));
    Ok(device::open("memif", &Options { memif, ..Options::default() })?)
}
