//! Tests of captures: a load over every packet device is captured at both ends, and tshark finds
//! every frame whole.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::left::{device, world};
use crate::{Serving, run, sprat};

/// The number and the length in bytes of the requests in each load; the longer ones take several
/// packets.
const LOADS: [(usize, &str); 2] = [(100, "100"), (30, "20000")];

pub(crate) fn load(transport: &str) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let net = world(transport);
    let at = device(transport, 1, folder);
    let captured = folder.join("server.pcap");
    let inside = net.end(1).enter().unwrap();
    let mut serve = sprat();
    serve.args(["echo", "-L", &format!("{at},pcap={}", captured.display())]);
    let server = Serving::start_with(serve.env("XDG_RUNTIME_DIR", folder));
    drop(inside);
    let inside = net.end(0).enter().unwrap();
    for (count, size) in LOADS {
        let mut ask = sprat();
        ask.env("XDG_RUNTIME_DIR", folder).env("SPRAT_LOCAL", device(transport, 0, folder));
        ask.args(["trace", "-o"]).arg(folder.join("client.pcap")).args([
            "--",
            "ping",
            "--interval",
            "0",
        ]);
        run(ask.args(["--count", &count.to_string(), "--size", size, &at]));
    }
    drop(inside);
    server.end();
    let entries = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let clients: Vec<PathBuf> = entries
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("client."))
        .collect();
    // A bond has one capture for each device.
    assert!(clients.len() >= LOADS.len(), "{transport}: {clients:?}");
    let least: usize = LOADS.iter().map(|(count, _)| 2 * count).sum();
    for (files, least) in [(vec![captured], least), (clients, least)] {
        let datagrams = looked_at(&files, folder);
        assert!(datagrams >= least, "{transport}: {datagrams} of {least} in {files:?}");
    }
}

/// Returns the number of datagrams in the pcap files. Fails if a frame is malformed or a checksum
/// wrong.
fn looked_at(files: &[PathBuf], folder: &Path) -> usize {
    const SUMS: [&str; 2] = ["ip.checksum.status", "udp.checksum.status"];
    let all = folder.join("all.pcap");
    run(Command::new("mergecap").args(["-F", "nsecpcap", "-w"]).arg(&all).args(files));
    let mut command = Command::new("tshark");
    // The payload is no protocol that tshark knows, whatever the port is.
    command.args(["-n", "-d", "udp.port==0-65535,data", "-T", "fields"]);
    for option in ["ip.check_checksum", "udp.check_checksum"] {
        command.args(["-o", &format!("{option}:TRUE")]);
    }
    command.args(["-e", "frame.protocols", "-e", "_ws.malformed"]);
    for field in SUMS {
        command.args(["-e", field]);
    }
    let text = run(command.arg("-r").arg(&all));
    let mut datagrams = 0;
    for (number, line) in text.lines().enumerate() {
        let mut fields = line.split('\t');
        datagrams += usize::from(fields.next().unwrap().ends_with(":udp:data"));
        assert_eq!(fields.next(), Some(""), "{files:?} {}: {line}", number + 1);
        // The status 0 is a wrong checksum.
        let right = |status: &str| status.split(',').all(|s| s != "0");
        assert!(fields.all(right), "{files:?} {}: {line}", number + 1);
    }
    datagrams
}
