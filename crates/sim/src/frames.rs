//! The frames of a host's replicas, which outlive its processes.
//!
//! They are bytes of memory that a process has while it runs. A crash leaves them as they are: that
//! is `kill -9`, and not a loss of power.

use std::sync::{Arc, Mutex, PoisonError};

use sprat_proto::wire::checksum::crc32c;
use sprat_store::backup::{FlatFrames, Storage, flat_bytes};

/// The frames of one host.
#[derive(Clone, Debug, Default)]
pub struct Kept(Arc<Mutex<State>>);

#[derive(Debug, Default)]
enum State {
    #[default]
    New,
    /// No process has the bytes.
    Free(Vec<u8>),
    Lent,
}

/// The bytes of the frames of one host, while a process has them.
#[derive(Debug)]
pub struct Lent {
    bytes: Vec<u8>,
    kept: Kept,
}

impl Kept {
    /// Returns the frames of the host for a process that starts: those that were left, or `count`
    /// new ones of `size` bytes.
    ///
    /// # Panics
    /// Another process has them.
    #[must_use]
    pub fn frames(&self, size: u32, count: u32) -> FlatFrames<Lent> {
        let lend = |bytes| Lent { bytes, kept: self.clone() };
        let frames = match self.change(State::Lent) {
            State::New => {
                let zeros = vec![0; flat_bytes(size, count) as usize];
                FlatFrames::format(crc32c, lend(zeros), size, count)
            }
            State::Free(bytes) => FlatFrames::open(crc32c, lend(bytes), count),
            State::Lent => panic!("another process has the frames"),
        };
        frames.expect("a process that ends leaves frames")
    }

    fn change(&self, to: State) -> State {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), to)
    }
}

impl Storage for Lent {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn reserve(&mut self, end: usize) -> bool {
        end <= self.bytes.len()
    }

    fn has_failed(&self) -> bool {
        false
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.kept.change(State::Free(std::mem::take(&mut self.bytes)));
    }
}
