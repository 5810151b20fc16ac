//! Atomic requests of the simulated RDMA programs.

use sprat_proto::rdma::{Completed, Data, Remote, SendOp};

use super::memory::put;
use super::post::Draft;
use super::posted::{Body, COMMON_WORDS, WORD_COUNT, WORDS};
use super::world::World;

impl World {
    /// Drafts an atomic request on the private word that this end of a stream has in the peer's
    /// memory.
    pub(crate) fn atomic(&mut self, link: usize, side: usize, id: u64) -> Option<Draft> {
        let slot = COMMON_WORDS + 2 * link + side;
        if !self.may_ask(link, side) || slot >= WORD_COUNT {
            return None;
        }
        let t = self.peers_tag(link, side, WORDS, |a| a.remote_atomic)?;
        let (peer, node) = (self.tags[t].node, self.links[link].sides[side].node);
        let to = Remote { stag: self.tags[t].stag, addr: self.tags[t].base + 8 * slot as u64 };
        let (settled, chain) = &self.nodes[peer].words[slot];
        let old = *chain.back().unwrap_or(settled);
        let (a, b, c) = (self.rng.u64(), self.rng.u64(), self.rng.u64());
        let (op, new, completed) = if self.half() {
            let mask = [0, b, u64::MAX, 1 << 63, 0x8000_0000][self.below(5)];
            (SendOp::FetchAdd { to, add: a, mask }, masked_sum(old, a, mask), Completed::FetchAdd)
        } else {
            let compare = if self.half() { old ^ (c & b) } else { c };
            let (compare_mask, swap_mask) =
                if self.half() { (u64::MAX, u64::MAX) } else { (!b, c) };
            let equal = (compare ^ old) & compare_mask == 0;
            let new = if equal { (old & !swap_mask) | (a & swap_mask) } else { old };
            let op = SendOp::CompareSwap { to, compare, compare_mask, swap: a, swap_mask };
            (op, new, Completed::CompareSwap)
        };
        let mut draft = Draft::new(id, op, completed);
        let mut word = vec![0; 8];
        put(&mut word, old);
        draft.data = Data::Gather(self.sink(node, Some(word), 8, &mut draft.work.own)?);
        self.nodes[peer].words[slot].1.push_back(new);
        (draft.work.len, draft.work.word, draft.work.uses) = (8, Some(slot), Some(t));
        draft.message(Body::Ask, None, None);
        Some(draft)
    }

    /// Drafts an atomic request that adds 1 to a word common to all ends of streams.
    pub(crate) fn count(&mut self, link: usize, side: usize, id: u64) -> Option<Draft> {
        if !self.may_ask(link, side) {
            return None;
        }
        let t = self.peers_tag(link, side, WORDS, |a| a.remote_atomic)?;
        let (slot, node) = (self.below(COMMON_WORDS), self.links[link].sides[side].node);
        let to = Remote { stag: self.tags[t].stag, addr: self.tags[t].base + 8 * slot as u64 };
        let mut draft =
            Draft::new(id, SendOp::FetchAdd { to, add: 1, mask: 0 }, Completed::FetchAdd);
        draft.data = Data::Gather(self.sink(node, None, 8, &mut draft.work.own)?);
        draft.work.len = 8;
        (draft.work.word, draft.work.common, draft.work.uses) = (Some(slot), true, Some(t));
        draft.message(Body::Ask, None, None);
        Some(draft)
    }
}

/// Adds two words field by field. A set bit of the mask is the highest bit of its field, whose
/// carry is dropped.
fn masked_sum(a: u64, b: u64, mask: u64) -> u64 {
    let (mut sum, mut carry) = (0, 0);
    for bit in 0..64 {
        let here = (a >> bit & 1) + (b >> bit & 1) + carry;
        sum |= (here & 1) << bit;
        carry = if mask >> bit & 1 == 1 { 0 } else { here >> 1 };
    }
    sum
}
