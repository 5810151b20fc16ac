//! The limits of a server's memory: at least what its log needs, at most what the machine has.
//!
//! The upper limit is the machine's memory, or less where a control group (cgroups(7)) or a
//! resource limit sets it. A server takes memory as it fills, so without this check too much would
//! show only when the kernel kills a process that is in use.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use sprat_store::objects::log::MIN_SEGMENTS;
use sprat_store::objects::segment::SEGMENT_BYTES;
use sprat_sys::memory::populated;

use crate::fail::Fail;
use crate::out;

/// The least memory that a server's log needs, in bytes.
pub const LEAST: u64 = MIN_SEGMENTS as u64 * SEGMENT_BYTES as u64;

/// The remedy if memory cannot be populated.
const WITHOUT: &str = "give the server less with --memory, or leave --populate out";
/// The time between two reports of the progress while memory is touched.
const REPORT: Duration = Duration::from_secs(5);

/// A limit of this process's memory, in bytes, and its name.
struct Limit {
    bytes: u64,
    /// The name of the memory limit in messages.
    by: String,
}

/// Refuses a server memory of `each` bytes if that is more than the machine allows one server.
/// Prints a warning if `servers` servers together can use more than that.
pub fn check(each: u64, servers: u16) -> Result<(), Fail> {
    let Some(limit) = least() else { return Ok(()) };
    if let Some(warning) = judge(each, servers, &limit)? {
        out::note(warning);
    }
    Ok(())
}

/// Takes memory of `bytes` bytes for a server, and touches all of it. Prints the progress if that
/// takes long.
///
/// # Errors
/// The machine has less memory that no program uses.
pub fn populate(bytes: u64) -> Result<(), Fail> {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let room = room(bytes, &meminfo)?;
    let mut last = Instant::now();
    let report = |touched: usize| {
        if last.elapsed() > REPORT {
            last = Instant::now();
            out::note(format!("touched {} of {}", binary(touched as u64), binary(bytes)));
        }
    };
    populated::populate(room, report)
        .map_err(|error| Fail::new(format!("cannot take {}: {error}", binary(bytes))).next(WITHOUT))
}

/// Refuses to populate more memory than /proc/meminfo says is free.
fn room(bytes: u64, meminfo: &str) -> Result<usize, Fail> {
    let free = of(meminfo, "MemAvailable:").unwrap_or(u64::MAX);
    usize::try_from(bytes).ok().filter(|_| bytes <= free).ok_or_else(|| {
        let (bytes, free) = (binary(bytes), binary(free));
        Fail::new(format!("{bytes} to populate is more than the {free} that are free"))
            .next(WITHOUT)
    })
}

/// Returns the bytes that this process may use: `u64::MAX` if no limit is known.
pub fn available() -> u64 {
    least().map_or(u64::MAX, |limit| limit.bytes)
}

fn judge(each: u64, servers: u16, limit: &Limit) -> Result<Option<String>, Fail> {
    let (there, by) = (binary(limit.bytes), &limit.by);
    if each > limit.bytes {
        return Err(Fail::new(format!(
            "{} for a server's objects is more than the {there} of {by}",
            binary(each)
        ))
        .next("give it less with --memory"));
    }
    let all = each.saturating_mul(servers.into());
    Ok((all > limit.bytes).then(|| {
        format!(
            "warning: {servers} servers with {} each use up to {} as they fill, and {by} has \
             {there}: the kernel ends a process when that is used up; --memory gives them less",
            binary(each),
            binary(all)
        )
    }))
}

/// Returns the smallest limit of this process's memory. `None` if no limit is known.
fn least() -> Option<Limit> {
    let space = getrlimit(Resource::As).current;
    let space = space
        .map(|bytes| Limit { bytes, by: "this process's address space (ulimit -v)".to_owned() });
    limits(Path::new("/")).into_iter().chain(space).min_by_key(|limit| limit.bytes)
}

/// Reads the memory limits from the files below the folder `root`.
fn limits(root: &Path) -> Vec<Limit> {
    let read = |path: &Path| fs::read_to_string(root.join(path)).unwrap_or_default();
    let machine = of(&read(Path::new("proc/meminfo")), "MemTotal:");
    let mut all: Vec<Limit> = machine
        .map(|bytes| Limit { bytes, by: "this machine's memory".to_owned() })
        .into_iter()
        .collect();
    for (folder, file, group) in groups(&read(Path::new("proc/self/cgroup"))) {
        // A group has the limits of all its ancestors.
        for group in Path::new(group.trim_start_matches('/')).ancestors() {
            let path = Path::new(folder).join(group);
            if let Ok(bytes) = read(&path.join(file)).trim().parse() {
                let by = format!("the control group {}", PathBuf::from("/").join(path).display());
                all.push(Limit { bytes, by });
            }
        }
    }
    all
}

/// Parses a size from the text of /proc/meminfo, in bytes (proc_meminfo(5)).
fn of(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Parses the control groups that limit this process's memory. Returns for each the folder of its
/// hierarchy, the file with the limit, and the group.
fn groups(cgroup: &str) -> impl Iterator<Item = (&'static str, &'static str, &str)> {
    cgroup.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?);
        if controllers.is_empty() {
            // Version 2 has one hierarchy for all.
            return Some(("sys/fs/cgroup", "memory.max", group));
        }
        let memory = controllers.split(',').any(|controller| controller == "memory");
        memory.then_some(("sys/fs/cgroup/memory", "memory.limit_in_bytes", group))
    })
}

/// Formats a size in MiB or GiB, the units of the option --memory.
fn binary(bytes: u64) -> String {
    let (unit, name) = if bytes < 1 << 30 { (1 << 20, "MiB") } else { (1 << 30, "GiB") };
    let value = bytes as f64 / f64::from(unit);
    if value.fract() == 0.0 { format!("{value:.0} {name}") } else { format!("{value:.1} {name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Makes a temporary folder with these files.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary folder");
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().expect("is in a folder")).expect("makes it");
            fs::write(path, text).expect("writes");
        }
        root
    }

    #[test]
    fn no_more_than_is_free_is_populated() {
        let meminfo = "MemTotal: 8388608 kB\nMemAvailable:    2097152 kB\n";
        assert_eq!(room(2 * GIB, meminfo).expect("it fits"), 2 << 30);
        let fail = room(2 * GIB + 1, meminfo).expect_err("too much").to_string();
        assert!(fail.contains("the 2 GiB that are free") && fail.contains("--populate"), "{fail}");
        assert_eq!(room(GIB, "").expect("nothing is known"), 1 << 30);
    }

    fn smallest(files: &[(&str, &str)]) -> (u64, String) {
        let found = limits(root(files).path());
        let least = found.into_iter().min_by_key(|limit| limit.bytes).expect("a limit");
        (least.bytes, least.by)
    }

    #[test]
    fn control_groups_of_both_versions_limit_what_the_machine_has() {
        let machine = ("proc/meminfo", "MemTotal:       25165824 kB\nMemFree: 1 kB\n");
        assert_eq!(smallest(&[machine]), (24 * GIB, "this machine's memory".into()));
        let outer = ("sys/fs/cgroup/a/memory.max", "2147483648\n");
        let inner = ("sys/fs/cgroup/a/b/memory.max", "max\n");
        let (bytes, by) = smallest(&[machine, ("proc/self/cgroup", "0::/a/b\n"), outer, inner]);
        assert_eq!((bytes, by.as_str()), (2 * GIB, "the control group /sys/fs/cgroup/a"));
        let own = ("sys/fs/cgroup/memory.max", "1073741824\n");
        assert_eq!(
            smallest(&[machine, ("proc/self/cgroup", "0::/\n"), own]).0,
            GIB,
            "as a container sees it"
        );
        let first = ("sys/fs/cgroup/memory/c/memory.limit_in_bytes", "536870912\n");
        let groups = ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/c\n0::/\n");
        assert_eq!(smallest(&[machine, groups, first]).0, GIB / 2);
        assert!(limits(root(&[("proc/self/cgroup", "nonsense\n::\n")]).path()).is_empty());
    }

    #[test]
    fn more_than_there_is_for_one_server_is_refused_and_for_all_together_said() {
        let limit = Limit { bytes: 24 * GIB, by: "this machine's memory".to_owned() };
        let error = judge(64 * GIB, 1, &limit).expect_err("too much").to_string();
        assert!(
            error.contains("64 GiB") && error.contains("24 GiB of this machine's memory"),
            "{error}"
        );
        assert_eq!(judge(8 * GIB, 3, &limit).expect("fits"), None);
        let warning = judge(16 * GIB, 3, &limit).expect("each fits").expect("together they do not");
        assert!(warning.contains("48 GiB") && warning.contains("24 GiB"), "{warning}");
    }
}
