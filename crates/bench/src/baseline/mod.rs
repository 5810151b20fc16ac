//! Baselines: the best times and rates of this machine, which other figures are compared with.
//!
//! Each function runs the bare exchange: no protocol, and only the checks that keep it from
//! hanging. This process and a forked copy of it take part, each on a core of its own if the
//! process may use two. They wait as the product's workers wait ([`Idle`](sprat_sys::cpu::Idle)),
//! so that figures can be compared.
//!
//! Times are nanoseconds between two readings of the clock, one exchange each.
//! docs/results/floors.md has the definitions.
//!
//! Not here: statistics and tables.

use std::io;
use std::thread;

use sprat_sys::clock::Clock;
use sprat_sys::cpu;
use sprat_sys::fork::Child;

mod device;
mod disk;
mod memory;
mod pauses;
mod ring;
mod socket;
#[cfg(test)]
mod tests;

pub use device::{HEADERS, Open, device, device_stream};
pub use disk::{Batch, commit_direct, commit_mapped};
pub use memory::memory;
pub use pauses::long_turns;
pub use ring::{cache_line, ring, ring_stream};
pub use socket::Kernel;

/// Limits of a baseline's measurement, which ends at the first limit that it reaches. A warm-up of
/// up to a tenth of these limits precedes the measurement.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The greatest number of samples of a measurement.
    pub count: usize,
    /// The longest time of a measurement, in nanoseconds.
    pub time_ns: u64,
}

/// Way in which a process waits for a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// The process polls a non-blocking socket.
    Polling,
    /// The process blocks in the kernel.
    Blocking,
}

/// The result of a stream: the bytes received, and the time that they took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// Payload bytes that reached the receiver's own memory.
    pub bytes: u64,
    /// Nanoseconds from the stream's first receive to its last one.
    pub ns: u64,
}

impl Flow {
    /// Returns the stream's bytes per second: zero if nothing arrived.
    #[must_use]
    pub fn bytes_per_s(&self) -> f64 {
        if self.ns == 0 { 0.0 } else { self.bytes as f64 * 1e9 / self.ns as f64 }
    }
}

/// Runs `there` in a forked process and `here` in a thread of this one, each on a core of its own
/// if two are allowed. Returns the result of `here`, and ends the other process.
///
/// This process closes what `there` owns, so that each side sees the end of the other.
pub(crate) fn between<T: Send>(
    there: impl FnOnce() -> io::Result<()> + Send,
    here: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    // The clock is measured before the fork, so that both processes have one time.
    let _ = Clock::new();
    let cpus = cpu::allowed()?;
    let (first, last) = (cpus.first().copied().unwrap_or(0), cpus.last().copied().unwrap_or(0));
    let measure = move || {
        // The forked process ends with this function and closes its sockets, by which the other
        // side sees an error.
        let _child = Child::spawn(move || {
            let _ = cpu::pin(last);
            let _ = there();
        })?;
        cpu::pin(first)?;
        here()
    };
    thread::scope(|s| s.spawn(measure).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Calls `exchange` until the measurement reaches a limit. Returns the nanoseconds of each call.
pub(crate) fn sample(
    limits: Limits,
    mut exchange: impl FnMut() -> io::Result<()>,
) -> io::Result<Vec<u32>> {
    let clock = Clock::new();
    let start = clock.now();
    for _ in 0..limits.count / 10 {
        exchange()?;
        // A slow exchange would spend all its time here.
        if clock.now().since(start) >= limits.time_ns / 10 {
            break;
        }
    }
    let mut samples = Vec::with_capacity(limits.count.min(1 << 20));
    let start = clock.now();
    let mut last = start;
    while samples.len() < limits.count {
        exchange()?;
        let now = clock.now();
        samples.push(u32::try_from(now.since(last)).unwrap_or(u32::MAX));
        last = now;
        if now.since(start) >= limits.time_ns {
            break;
        }
    }
    Ok(samples)
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the other process of the measurement has ended")
}
