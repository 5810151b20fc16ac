//! A helper in the same thread, for simulations and tests.

use alloc::boxed::Box;

use sprat_proto::Rng;

use super::job::{Copier, Job};

/// A helper of the cleaner without a thread. A job is done after a random number of looks.
#[derive(Debug)]
pub struct Late {
    rng: Rng,
    most: u64,
    left: u64,
    job: Option<Box<Job>>,
}

impl Late {
    /// Returns a helper whose jobs are done after up to `most` looks.
    #[must_use]
    pub fn new(rng: Rng, most: u64) -> Self {
        Self { rng, most, left: 0, job: None }
    }
}

impl Copier for Late {
    fn start(&mut self, job: Box<Job>) -> Result<(), Box<Job>> {
        if self.job.is_some() {
            return Err(job);
        }
        (self.left, self.job) = (self.rng.below(self.most.saturating_add(1)), Some(job));
        Ok(())
    }

    fn done(&mut self) -> Option<Box<Job>> {
        if self.left > 0 {
            self.left -= 1;
            return None;
        }
        let mut job = self.job.take()?;
        job.run();
        Some(job)
    }
}
