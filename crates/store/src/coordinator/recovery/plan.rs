//! The division of a crashed server's tablets into partitions, each for one master.

use alloc::vec::Vec;

use crate::coordinator::Config;
use crate::message::recovery::Part;

/// The most shares of a log.
const MOST_SHARES: u64 = 256;
/// The most tablets of a partition, so that an order and a change of the map stay small.
pub(super) const MOST_PARTS: usize = 1024;

/// Returns the number of shares into which the tablets of a log of `bytes` are divided among
/// `masters`: as many for each master, since the last of them bounds the time of the recovery.
pub(super) fn shares(config: &Config, bytes: u64, masters: usize) -> u64 {
    let useful = bytes.div_ceil(config.min_share_bytes.max(1)).min(masters as u64);
    let most = config.max_share_bytes.max(1).saturating_mul(useful);
    useful.saturating_mul(bytes.div_ceil(most.max(1))).clamp(1, MOST_SHARES)
}

/// Divides `parts` into `shares` of about the same number of hashes. A part is cut where a share
/// ends if `may_cut` says so and the part is more than a quarter of a share: smaller ones would
/// only become more with each recovery.
pub(super) fn divide(
    parts: Vec<Part>,
    shares: u64,
    may_cut: impl Fn(&Part) -> bool,
) -> Vec<Vec<Part>> {
    let width = |part: &Part| u128::from(part.last - part.first) + 1;
    let total: u128 = parts.iter().map(width).sum();
    let shares = u128::from(shares.max(1));
    let end = |share: u128| (total * share).div_ceil(shares);
    let (mut done, mut share) = (0, 1);
    let mut all = Vec::new();
    let mut current: Vec<Part> = Vec::new();
    for mut part in parts {
        loop {
            while share < shares && done >= end(share) {
                share += 1;
                if !current.is_empty() {
                    all.push(core::mem::take(&mut current));
                }
            }
            if current.len() >= MOST_PARTS {
                all.push(core::mem::take(&mut current));
            }
            let left = end(share) - done;
            let small = width(&part) * shares * 4 <= total;
            if width(&part) <= left || small || !may_cut(&part) {
                done += width(&part);
                current.push(part);
                break;
            }
            // `left` is below the width of the part, so that it fits into 64 bits.
            let cut = part.first + left as u64;
            current.push(Part { last: cut - 1, ..part.clone() });
            part.first = cut;
            done += left;
        }
    }
    if !current.is_empty() {
        all.push(current);
    }
    all
}

#[cfg(test)]
mod tests;
