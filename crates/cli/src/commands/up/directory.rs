//! The directory in which `sprat up` keeps a cluster's data: where it is, whether it can be used,
//! and the room that it takes.
//!
//! ```text
//!  DIR/coordinator         the coordinator's state: tables, servers, leases
//!  DIR/server-1/frames     the replicas that server 1 holds, or its shard 0
//!  DIR/server-1/shard-1/frames     those of its shard 1
//!  DIR/server-2/frames     ...
//! ```
//!
//! Nothing in a directory changes before it was found usable. Not here: the format of the files
//! (docs/formats.md).

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sprat::server::{self, Durability, ServerOptions};
use sprat_bench::cluster::{coordinator_state, frames_file, server_directory};
use sprat_bench::fail::{Fail, Named as _};
use sprat_bench::out;
use sprat_bench::text::bytes;

/// The size of the blocks that `stat(2)` counts.
const STAT_BLOCK: u64 = 512;
/// The next step for a directory that has no room.
const ROOM: &str = "give less --memory, name another --dir, or keep nothing: --ephemeral";

/// The servers of the cluster whose data a directory keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Servers {
    pub(super) count: u16,
    /// The most servers that a cluster can have.
    pub(super) most: u16,
    /// The number of cores of each server.
    pub(super) cores: u16,
    /// The memory of each server for objects, in bytes.
    pub(super) memory: u64,
    pub(super) replicas: u16,
    pub(super) durability: Durability,
}

/// Returns the directory of the cluster `name` below the data of this user, as the XDG base
/// directory specification has it. The arguments are the environment variables `XDG_DATA_HOME` and
/// `HOME`.
pub(super) fn of_user(
    name: &str,
    data_home: Option<OsString>,
    home: Option<OsString>,
) -> Result<PathBuf, Fail> {
    // The specification ignores a relative path.
    let absolute = |path: Option<OsString>| path.map(PathBuf::from).filter(|p| p.is_absolute());
    let data = absolute(data_home).or_else(|| Some(absolute(home)?.join(".local/share")));
    data.map(|data| data.join("sprat").join(name)).ok_or_else(|| {
        Fail::usage("neither HOME nor XDG_DATA_HOME says where to keep the objects")
            .next("name a directory with --dir, or keep nothing: --ephemeral")
    })
}

/// A directory that can be used.
#[derive(Debug)]
pub(super) struct Prepared {
    /// A text that says where the data is and which room it takes.
    pub(super) text: String,
    /// The number of further servers of an earlier run that have data in the directory.
    pub(super) further: u16,
}

/// Makes the directory of a cluster, and checks that it can be used and has room.
pub(super) fn prepare(dir: &Path, servers: Servers) -> Result<Prepared, Fail> {
    let shown = dir.display();
    let unusable = "name a directory that you may write with --dir, or keep nothing: --ephemeral";
    fs::create_dir_all(dir).named(&shown).map_err(|fail| fail.next(unusable))?;
    let last = last_server(dir, servers.most);
    let is_new = check_content(dir, last)?;
    let further = last.saturating_sub(servers.count);
    if further > 0 {
        out::note(format!(
            "{shown} has data of {last} servers: all of them start, and {further} leave one after \
             the other once the others have what they hold"
        ));
    }
    let (taken, most) = room(dir, servers);
    let free = disk_free(dir).named(&shown)?;
    if most.saturating_sub(taken) > free {
        let text = format!(
            "{shown}: the objects need up to {} of disk, and {} are free",
            bytes(most - taken),
            bytes(free)
        );
        return Err(Fail::new(text).next(ROOM));
    }
    if let Some(warning) = server::directory_warning(dir).named(&shown)? {
        out::note(format!("warning: {shown}: {warning}"));
    }
    let now = if is_new { String::new() } else { format!("{} of disk now, ", bytes(taken)) };
    let only = if servers.count == 1 { "; this disk has the only copy" } else { "" };
    let text =
        format!("{shown} keeps the objects: {now}up to {} of disk as it fills{only}", bytes(most));
    Ok(Prepared { text, further })
}

/// Returns the highest number of a server that has data in the directory; 0 if none has.
fn last_server(dir: &Path, most: u16) -> u16 {
    (1..=most).rev().find(|&index| server_directory(dir, index).exists()).unwrap_or(0)
}

/// Checks that a directory holds a cluster or nothing. Returns true if it holds nothing.
fn check_content(dir: &Path, last: u16) -> Result<bool, Fail> {
    let shown = dir.display();
    if coordinator_state(dir).exists() {
        for index in (1..=last).filter(|&index| !frames_file(dir, index).exists()) {
            out::note(format!(
                "warning: {}: there is no data of server {index}; if it is lost, `sprat status` \
                 says what lacks",
                server_directory(dir, index).display()
            ));
        }
        return Ok(false);
    }
    if last > 0 {
        // The servers' data belongs to a cluster, and a new coordinator would begin another one.
        let text = format!("{shown} has the data of servers, and not their coordinator's state");
        return Err(Fail::new(text).next(format!(
            "put the file {} back, or name another directory with --dir",
            coordinator_state(dir).display()
        )));
    }
    let entries = fs::read_dir(dir).named(&shown)?;
    // A new ext4 has this directory.
    let foreign = entries.flatten().find(|entry| entry.file_name() != "lost+found");
    match foreign {
        Some(entry) => {
            let name = out::name(entry.file_name().as_encoded_bytes());
            let text = format!("{shown} holds something else than a cluster: {name}");
            Err(Fail::new(text).next("name a new or empty directory with --dir"))
        }
        None => Ok(true),
    }
}

/// Returns the bytes of disk that the servers' data takes now, and the most that it can take.
fn room(dir: &Path, servers: Servers) -> (u64, u64) {
    let (mut options, cores) = (ServerOptions::new("", ""), servers.cores);
    let memory = servers.memory / u64::from(servers.cores);
    (options.memory_bytes, options.replicas) = (memory, servers.replicas.into());
    options.durability = Some(servers.durability);
    let each = server::disk_bytes(&options);
    let servers = (1..=servers.count).map(|index| server_directory(dir, index));
    let shards = servers.flat_map(|own| (0..cores).map(move |i| server::shard_directory(&own, i)));
    shards.fold((0, 0), |(taken, most), own| {
        let file = fs::metadata(own.join(server::FRAMES)).ok();
        let journal = fs::metadata(own.join(server::JOURNAL)).ok();
        let all = file.iter().chain(&journal);
        let blocks = all.map(|file| file.blocks() * STAT_BLOCK).sum::<u64>();
        // The number of frames never falls.
        (taken + blocks, most + file.map_or(0, |file| file.len()).max(each))
    })
}

/// Returns the bytes that are free on the disk of a directory.
fn disk_free(dir: &Path) -> std::io::Result<u64> {
    let disk = rustix::fs::statvfs(dir)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_a_user_follows_the_environment() {
        let of = |data: &str, home: &str| {
            let some = |text: &str| (!text.is_empty()).then(|| OsString::from(text));
            of_user("lab", some(data), some(home)).map_err(|fail| fail.to_string())
        };
        assert_eq!(of("/data", "/home/u"), Ok("/data/sprat/lab".into()));
        assert_eq!(of("", "/home/u"), Ok("/home/u/.local/share/sprat/lab".into()));
        assert_eq!(of("data", "/home/u"), Ok("/home/u/.local/share/sprat/lab".into()));
        for (data, home) in [("", ""), ("data", "u")] {
            let fail = of(data, home).expect_err("no absolute path");
            assert!(fail.contains("--dir") && fail.contains("--ephemeral"), "{fail}");
        }
    }

    #[test]
    fn a_directory_holds_a_cluster_or_nothing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let dir = folder.path();
        fs::create_dir(dir.join("lost+found")).expect("it is ours");
        assert!(matches!(check_content(dir, 0), Ok(true)));
        fs::write(dir.join("thesis.tex"), "x").expect("it is ours");
        let fail = check_content(dir, 0).expect_err("something else").to_string();
        assert!(fail.contains("thesis.tex") && fail.contains("next:"), "{fail}");
        fs::create_dir(server_directory(dir, 2)).expect("it is ours");
        assert_eq!(last_server(dir, 64), 2);
        let fail = check_content(dir, 2).expect_err("no coordinator").to_string();
        assert!(fail.contains("coordinator's state") && fail.contains("put"), "{fail}");
        fs::write(coordinator_state(dir), "").expect("it is ours");
        assert!(matches!(check_content(dir, 2), Ok(false)));
    }

    #[test]
    fn the_room_counts_what_is_there() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let dir = folder.path();
        let servers = Servers {
            count: 2,
            most: 64,
            cores: 1,
            memory: 64 << 20,
            replicas: 1,
            durability: Durability::Process,
        };
        let (taken, most) = room(dir, servers);
        assert_eq!((taken, most / 2 > 128 << 20), (0, true), "twice the memory of each");
        fs::create_dir(server_directory(dir, 1)).expect("it is ours");
        let file = fs::File::create(frames_file(dir, 1)).expect("it is ours");
        file.set_len(1 << 40).expect("it is sparse");
        assert_eq!(room(dir, servers), (0, (1 << 40) + most / 2));
        let (_, of_shards) = room(dir, Servers { cores: 2, memory: 128 << 20, ..servers });
        assert_eq!(of_shards, (1 << 40) + most / 2 * 3, "each shard has half of the memory");
    }
}
