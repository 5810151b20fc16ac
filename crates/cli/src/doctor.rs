//! `sprat doctor`: which packet devices work here, what is missing, and what mends it.
//!
//! Each one is opened and closed again: on the interface that was named, or in a network of our own, which is gone afterwards.

use std::io;

use sprat::netns::{DEV, Wire};
use sprat::nic::{self, AnyNic, Options, Way, memif};

use crate::args;
use crate::fail::Fail;
use crate::out::{self, Columns};

/// What is tried: its name in locators, how it differs from the one before, and the way.
const TRIED: [(&str, &str, Option<Way>); 5] = [
    ("packet", "", None),
    ("xdp", "generic", Some(Way::Generic)),
    ("xdp", "native", Some(Way::Native)),
    ("xdp", "zero-copy", Some(Way::ZeroCopy)),
    ("tap", "", None),
];
/// The interface that is made to see whether it can be.
const TAP: &str = "sprat-doctor";

/// Runs the command.
pub(crate) fn run(args: &args::Doctor) -> Result<(), Fail> {
    let mut table = Columns::new(&["device", "way", "works", "what is missing"]);
    let mut all = true;
    let mut row = |device: &str, way: &str, result: Result<(), String>| {
        all &= result.is_ok();
        let works = if result.is_ok() { "yes" } else { "no" };
        table.row([device.to_owned(), way.to_owned(), works.to_owned(), result.err().unwrap_or_default()]);
    };
    row("memif", "", memif().map(drop).map_err(|e| e.to_string()));
    for (driver, name, way) in TRIED {
        let dev = if driver == "tap" { TAP } else { args.dev.as_deref().unwrap_or(DEV) };
        let options = Options { dev: dev.to_owned(), way, ..Options::default() };
        // A new network for each: a queue is free again only some time after its socket was closed.
        let result = match args.dev.is_none().then(|| Wire::new(1500)) {
            None => nic::open(driver, &options).map(drop).map_err(|e| e.to_string()),
            Some(Ok(wire)) => {
                let open = || nic::open(driver, &options).map(drop).map_err(|e| e.to_string());
                wire.end(0).run(open).unwrap_or_else(|e| Err(e.to_string()))
            }
            Some(Err(e)) => Err(e.to_string()),
        };
        row(driver, name, result);
    }
    row("dpdk", "", dpdk());
    let place = match &args.dev {
        Some(dev) => format!("Packet devices on {dev}:\n"),
        None => {
            "Packet devices, in a network of our own (--dev D for an interface of this machine):\n".into()
        }
    };
    out::print(place + &table.text())?;
    if !all {
        out::print("fast+shm, fast+udp, tcp and rdma need nothing of this.\n")?;
    }
    Ok(())
}

/// A memif needs a folder for its socket, and nothing else.
fn memif() -> io::Result<AnyNic> {
    let socket = std::env::temp_dir().join(format!("sprat-doctor-{}", std::process::id()));
    let memif = Some(memif::Options::new(memif::Role::Server, socket));
    Ok(nic::open("memif", &Options { memif, ..Options::default() })?)
}

/// DPDK's environment can be started once in a process only, so it is not tried.
fn dpdk() -> Result<(), String> {
    match nic::open("dpdk", &Options::default()) {
        Err(error @ (nic::OpenError::Unsupported { .. } | nic::OpenError::UnknownDriver { .. })) => {
            Err(error.to_string())
        }
        _ => Ok(()),
    }
}
