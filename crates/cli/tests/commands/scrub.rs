//! Tests of damage to the replicas of a cluster that runs.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use sprat_bench::process::wait_until;
use sprat_store::backup::{
    BLOCK, FrameHeader, Held, flat_bytes, flat_header, flat_offset, flat_slots,
};
use sprat_store::objects::segment::SEGMENT_BYTES;
use sprat_sys::crc::crc32c;

use crate::cluster::{Cluster, PATIENCE, errors, run, text};

/// Opens the frames of a server that runs. The file has a lock, which does not keep others from
/// writing.
fn frames(dir: &Path, server: u16) -> File {
    let path = dir.join(format!("server-{server}/frames"));
    OpenOptions::new().read(true).write(true).open(path).expect("the server has made it")
}

/// Returns the first closed replica in a file of frames, and the offset of its bytes.
fn closed(file: &File) -> Option<(u64, Held)> {
    let mut block = [0; BLOCK];
    file.read_exact_at(&mut block, 0).ok()?;
    let header = flat_header(crc32c, &block).header()?;
    assert!(header.frame_bytes == SEGMENT_BYTES && flat_bytes(SEGMENT_BYTES, 0) == BLOCK as u64);
    (0..header.count).find_map(|frame| {
        let at = flat_offset(header.frame_bytes, frame);
        file.read_exact_at(&mut block, at).ok()?;
        let header = FrameHeader::parse(crc32c, frame, flat_slots(&block, 0)?).header()?;
        Some((at + BLOCK as u64, header.replica.filter(|held| held.closed)?))
    })
}

/// Returns the sum of a counter over all servers.
fn count(cluster: &Cluster, name: &str) -> u64 {
    let output = cluster.run(&["stats", "--json"]);
    let line = |line: &str| {
        let object: serde_json::Value = serde_json::from_str(line).expect("one JSON object");
        object["counters"][name].as_u64().unwrap_or(0)
    };
    text(&output).lines().map(line).sum()
}

/// A bit changes on the disk of a server that runs. The server finds it, and the segment gets
/// another replica.
#[test]
fn a_damaged_replica_of_a_running_server_is_replaced() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("books");
    let dir = path.to_str().expect("a plain path");
    let cluster = Cluster::up_with(2, &["--dir", dir, "--scrub", "0.00001"]);
    cluster.ok(&["table", "create", "t", "--span", "2"]);
    // More than a segment for each server.
    let value = "x".repeat(100_000);
    let lines: String =
        (0..300).map(|n| format!("{{\"key\":\"k{n}\",\"value\":\"{value}\"}}\n")).collect();
    let fed = cluster.feed(&["import", "t", "-", "--format", "jsonl"], lines.as_bytes());
    assert!(fed.status.success(), "{}", errors(&fed));

    let file = frames(&path, 1);
    let (at, held) = closed(&file).expect("the first segment of the other server");
    let at = at + u64::from(held.len) / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("it is there");
    file.write_all_at(&[byte[0] ^ 1], at).expect("it is ours");

    let replaced = || count(&cluster, "replicas_lost") > 0;
    assert!(wait_until(PATIENCE, replaced), "{}", cluster.ok(&["stats", "--all"]));
    let names = ["replicas_damaged", "replicas_unreported", "replicas_missing"];
    let whole = || names.iter().all(|name| count(&cluster, name) == 0);
    assert!(wait_until(PATIENCE, whole), "{}", cluster.ok(&["stats", "--all"]));
    assert!(count(&cluster, "scrub_damaged") > 0 && count(&cluster, "scrubbed_bytes") > 0);
    assert_eq!(cluster.ok(&["get", "t", "k77"]).trim(), value);
    cluster.end();
    let checked = run(&["disk", "check", dir]);
    assert!(checked.status.success(), "{}{}", text(&checked), errors(&checked));
}
