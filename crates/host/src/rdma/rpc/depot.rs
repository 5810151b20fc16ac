//! Memory for messages on their way: regions in a few sizes, used again and again.
//!
//! Always holds: what is given back is at most [`MOST_KEPT`] octets in all; the rest goes back to the kernel. A region gets a
//! new number each time, so that what a stream has still to send of its last use finds nothing.

use std::io;
use std::sync::Arc;

use crate::mem::Region;
use crate::rdma::regions::Regions;

/// The smallest size, in octets.
const SMALLEST: usize = 64 << 10;
/// Sizes, each twice the one before: up to 32 MiB.
const SIZES: usize = 10;
/// Octets that are kept for later.
const MOST_KEPT: usize = 64 << 20;

/// A region in use.
#[derive(Debug)]
pub(super) struct Lent {
    /// Its number.
    pub(super) number: u32,
    region: Arc<Region>,
}

/// Regions for later.
#[derive(Debug, Default)]
pub(super) struct Depot {
    idle: [Vec<Arc<Region>>; SIZES],
    kept: usize,
}

/// Which size serves `len` octets.
fn size_of(len: usize) -> usize {
    len.div_ceil(SMALLEST).next_power_of_two().trailing_zeros() as usize
}

impl Depot {
    /// A region of at least `len` octets, with whatever is in it.
    ///
    /// # Errors
    /// No memory, or too many regions.
    pub(super) fn take(&mut self, len: usize, regions: &mut Regions) -> io::Result<Lent> {
        let size = size_of(len);
        let shelf = self.idle.get_mut(size).ok_or(io::ErrorKind::InvalidInput)?;
        let region = match shelf.pop() {
            Some(region) => {
                self.kept -= region.len();
                region
            }
            None => Arc::new(Region::sparse(SMALLEST << size)?),
        };
        let number = regions.insert(Arc::clone(&region)).ok_or(io::ErrorKind::QuotaExceeded)?;
        Ok(Lent { number, region })
    }

    /// Takes a region back.
    pub(super) fn give(&mut self, lent: Lent, regions: &mut Regions) {
        regions.remove(lent.number);
        let len = lent.region.len();
        if self.kept + len <= MOST_KEPT {
            self.kept += len;
            self.idle[size_of(len)].push(lent.region);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_serve_again_up_to_a_limit() {
        let (mut depot, mut regions) = (Depot::default(), Regions::default());
        assert_eq!([1, SMALLEST, SMALLEST + 1, 16 << 20].map(size_of), [0, 0, 1, 8]);
        let lent = depot.take(100_000, &mut regions).unwrap();
        let (number, at) = (lent.number, Arc::as_ptr(&lent.region));
        depot.give(lent, &mut regions);
        let again = depot.take(128 << 10, &mut regions).unwrap();
        assert_eq!(Arc::as_ptr(&again.region), at);
        assert_ne!(again.number, number);
        let all: Vec<_> = (0..5).map(|_| depot.take(16 << 20, &mut regions).unwrap()).collect();
        for lent in all {
            depot.give(lent, &mut regions);
            assert!(depot.kept <= MOST_KEPT);
        }
        assert!(depot.take(64 << 20, &mut regions).is_err());
    }
}
