//! A process's memory and processor time, by proc(5).

use std::fs;
use std::time::Duration;

use crate::fail::{Fail, Named};

/// Returns the resident memory of process `id` in bytes.
pub(crate) fn resident_bytes(id: u32) -> Result<u64, Fail> {
    let path = format!("/proc/{id}/status");
    let text = fs::read_to_string(&path).named(&path)?;
    parse_resident(&text).ok_or_else(|| Fail::new(format!("{path} has no VmRSS")))
}

/// Returns the processor time of process `id`, in user mode and in the kernel, of all threads.
pub(crate) fn processor_time(id: u32) -> Result<Duration, Fail> {
    let path = format!("/proc/{id}/stat");
    let text = fs::read_to_string(&path).named(&path)?;
    let ticks = parse_ticks(&text).ok_or_else(|| Fail::new(format!("{path} is malformed")))?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

fn parse_resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Parses fields 14 and 15 (utime and stime, in clock ticks) of /proc/PID/stat and returns their
/// sum. It counts fields from the end of the process's name, which may contain any character.
fn parse_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_are_read() {
        assert_eq!(
            parse_resident("Name:\tx\nVmHWM:\t 9 kB\nVmRSS:\t    2048 kB\n"),
            Some(2048 * 1024)
        );
        let stat = "77 (a) b (c) S 1 77 77 0 -1 4194304 100 0 0 0 21 34 0 0 20 0 1 0 5 6 7";
        assert_eq!(parse_ticks(stat), Some(55));
        assert_eq!(parse_ticks("77 (x"), None);
        assert!(resident_bytes(std::process::id()).is_ok_and(|bytes| bytes > 100_000));
        assert!(processor_time(std::process::id()).is_ok());
    }
}
