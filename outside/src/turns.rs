//! The parts that echoes and reads share: names, keys, and two ends in one thread.

use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a request's payload, and of an object's value.
pub(crate) const SIZE: usize = 100;
/// Number of objects that the program reads.
pub(crate) const OBJECTS: u64 = 100;
/// Number of operations of each measurement.
pub(crate) const OPERATIONS: u64 = 3200;
/// Number of operations in progress in the measurements that have many.
const IN_PROGRESS: u64 = 64;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Returns the locator of a server in this process.
pub(crate) fn locator(role: &str) -> String {
    format!("fast+shm:name=outside-{}-{role}", std::process::id())
}

/// Returns the key of object `index`: 30 bytes.
pub(crate) fn key(index: u64) -> [u8; 30] {
    let mut key = [b'0'; 30];
    key[28..].copy_from_slice(&[b'0' + (index / 10 % 10) as u8, b'0' + (index % 10) as u8]);
    key
}

/// Calls `work`, and calls `turn` again and again in another thread until `work` returns.
pub(crate) fn meanwhile<R>(mut turn: impl FnMut() + Send, work: impl FnOnce() -> R) -> R {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                turn();
                std::thread::yield_now();
            }
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    })
}

/// The operations of one round, many in progress: how many have started and how many have ended.
#[derive(Default)]
pub(crate) struct Progress {
    started: u64,
    pub(crate) ended: u64,
}

impl Progress {
    /// True until all operations of the round have ended.
    pub(crate) fn goes_on(&self) -> bool {
        self.ended < OPERATIONS
    }

    /// Returns the number of the next operation. `None` if no operation may start now.
    pub(crate) fn next(&mut self) -> Option<u64> {
        let free = self.started < OPERATIONS && self.started - self.ended < IN_PROGRESS;
        free.then(|| {
            self.started += 1;
            self.started - 1
        })
    }
}
