//! Floors: what this machine can do at best, to compare every other figure with.
//!
//! Each function runs the bare exchange and nothing else: no protocol, no checks beyond what keeps it from hanging. Two
//! processes take part, this one and a forked copy of it, each kept on a processor of its own where there are two. They
//! wait as the product's workers wait ([`Idle`](sprat_sys::cpu::Idle)), so that figures can be compared.
//!
//! Times are nanoseconds between two readings of the clock, one exchange each. Definitions:
//! docs/results/floors.md.
//!
//! Not here: statistics and tables.

use std::io;
use std::thread;

use sprat_sys::clock::Clock;
use sprat_sys::cpu;
use sprat_sys::fork::Child;

mod device;
mod memory;
mod ring;
mod socket;
#[cfg(test)]
mod tests;

pub use device::{HEADERS, Open, device, device_stream};
pub use memory::memory;
pub use ring::{cache_line, ring, ring_stream};
pub use socket::Kernel;

/// How long a measurement goes on: until either is reached. Up to a tenth as much goes before, to warm up.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Samples.
    pub count: usize,
    /// Nanoseconds.
    pub time_ns: u64,
}

/// How a process waits for a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// It asks again and again.
    Polling,
    /// The kernel wakes it.
    Blocking,
}

/// How much went through in what time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// Payload bytes that the receiver had in its own memory.
    pub bytes: u64,
    /// From its first to its last receive.
    pub ns: u64,
}

impl Flow {
    /// Bytes per second; zero if nothing went through.
    #[must_use]
    pub fn bytes_per_s(&self) -> f64 {
        if self.ns == 0 { 0.0 } else { self.bytes as f64 * 1e9 / self.ns as f64 }
    }
}

/// Runs `there` in a second process and `here` in a thread of this one, each on a processor of its own if two are
/// allowed; returns what `here` returns, after which the other process is ended.
///
/// What `there` holds is closed in this process, so that the end of either is seen by the other.
fn between<T: Send>(
    there: impl FnOnce() -> io::Result<()> + Send,
    here: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    // Measured now: the copy inherits it, so that both have one time.
    let _ = Clock::new();
    let cpus = cpu::allowed()?;
    let (first, last) = (cpus.first().copied().unwrap_or(0), cpus.last().copied().unwrap_or(0));
    let measure = move || {
        // The copy ends with its function, and its sockets with it: an error needs no other way to be told.
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

/// Calls `exchange` until the limits are reached and returns how long each call took, in nanoseconds.
fn sample(limits: Limits, mut exchange: impl FnMut() -> io::Result<()>) -> io::Result<Vec<u32>> {
    let clock = Clock::new();
    let start = clock.now();
    for _ in 0..limits.count / 10 {
        exchange()?;
        // Slow exchanges would else spend all their time here.
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
