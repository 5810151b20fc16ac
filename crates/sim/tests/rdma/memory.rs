//! The memory of a simulated machine twice: as the engine accesses it, and as the oracle expects
//! it.
//!
//! An [`Area`] is an array of bytes that the oracle is certain of, and the claims of requests in
//! progress on them. Always: two claims that write one byte belong to one stream, so their order is
//! known.

use std::ops::Range;

use sprat_proto::Rng;
use sprat_proto::rdma::{Memory, Span, Unmapped};

/// A planted bug of the simulated memory, which tests the oracle.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Bug {
    /// The memory has no planted bug.
    #[default]
    None,
    /// The planted bug: some writes are shifted by one byte.
    Shifted,
    /// The planted bug: some writes are lost.
    Lost,
    /// The planted bug: some writes change a byte elsewhere.
    Beside,
    /// The planted bug: some reads return wrong bytes.
    Misread,
    /// The planted bug: some atomics happen twice.
    Twice,
}

/// The arrays that a simulated machine has registered as memory. The number of a region is that of
/// its array.
pub(crate) struct Ram {
    pub(crate) arrays: Vec<Vec<u8>>,
    pub(crate) bug: Bug,
    pub(crate) calls: u64,
}

impl Ram {
    pub(crate) fn new(arrays: Vec<Vec<u8>>, bug: Bug) -> Self {
        Self { arrays, bug, calls: 0 }
    }

    fn at(&mut self, span: Span) -> Result<&mut [u8], Unmapped> {
        let start = usize::try_from(span.offset).expect("it was checked");
        let array = self.arrays.get_mut(span.region as usize).ok_or(Unmapped)?;
        Ok(&mut array[start..start + span.len as usize])
    }

    /// Returns true if the planted bug happens at this access.
    fn strikes(&mut self, bug: Bug) -> bool {
        self.calls += 1;
        self.bug == bug && self.calls.is_multiple_of(17)
    }

    pub(crate) fn copy(&mut self, span: Span) -> Vec<u8> {
        self.at(span).expect("it was there").to_vec()
    }
}

impl Memory for Ram {
    fn write(&mut self, mut span: Span, bytes: &[u8]) -> Result<(), Unmapped> {
        assert_eq!(span.len as usize, bytes.len());
        let whole = self.arrays[span.region as usize].len() as u64;
        if self.strikes(Bug::Shifted) && span.offset + u64::from(span.len) < whole {
            span.offset += 1;
        }
        if self.strikes(Bug::Lost) {
            return Ok(());
        }
        if self.strikes(Bug::Beside) {
            let at = (self.calls * 977 % whole) as usize;
            self.arrays[span.region as usize][at] ^= 0x10;
        }
        self.at(span)?.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, span: Span, bytes: &mut [u8]) -> Result<(), Unmapped> {
        assert_eq!(span.len as usize, bytes.len());
        bytes.copy_from_slice(self.at(span)?);
        if self.strikes(Bug::Misread)
            && let Some(first) = bytes.first_mut()
        {
            *first ^= 1;
        }
        Ok(())
    }

    fn atomic(&mut self, span: Span, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, Unmapped> {
        assert!(span.len == 8 && span.offset.is_multiple_of(8), "{span:?} is not aligned");
        let twice = self.strikes(Bug::Twice);
        let word = self.at(span)?;
        let old = number(word);
        let new = change(old);
        put(word, if twice { change(new) } else { new });
        Ok(old)
    }
}

/// Returns the number that a word of memory holds, in native byte order.
#[expect(clippy::host_endian_bytes, reason = "the number is the program's own")]
pub(crate) fn number(word: &[u8]) -> u64 {
    u64::from_ne_bytes(word.try_into().expect("8 bytes"))
}

/// Stores a number in a word of memory, in native byte order, as [`number`] reads it back.
#[expect(clippy::host_endian_bytes, reason = "the number is the program's own")]
pub(crate) fn put(word: &mut [u8], value: u64) {
    word.copy_from_slice(&value.to_ne_bytes());
}

/// The effect of a request on the bytes of memory that it claims.
pub(crate) enum Use {
    /// The request reads the bytes that it claims.
    Source,
    /// The request writes these bytes to the memory that it claims.
    Sink(Vec<u8>),
    /// The claim is that of a receive: any message may be written.
    Open,
}

/// A claim: a range of memory that a request in progress uses.
pub(crate) struct Claim {
    /// The number that identifies the claim.
    pub(crate) key: u64,
    /// The number of the claim's order. Claims of one order happen one after the other.
    order: u64,
    pub(crate) range: Range<usize>,
    pub(crate) what: Use,
    /// The tag by which a peer accesses the claimed bytes.
    pub(crate) tag: Option<usize>,
}

/// The answer to the question whether a request may use a range of memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Free {
    /// The request may use the range of memory at once.
    Yes,
    /// The request needs a fence, because earlier Reads of its order use the range of memory.
    Fenced,
    /// The request must not use the range of memory.
    No,
}

/// The contents of an array that the oracle expects.
pub(crate) struct Area {
    /// The array's contents after all completed requests.
    pub(crate) settled: Vec<u8>,
    pub(crate) claims: Vec<Claim>,
}

fn overlaps(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Area {
    pub(crate) fn new(settled: Vec<u8>) -> Self {
        Self { settled, claims: Vec::new() }
    }

    /// Returns whether a request of `order` may use a range of memory, to write it if `writes`.
    pub(crate) fn free(&self, range: &Range<usize>, order: u64, writes: bool) -> Free {
        let judge = |claim: &Claim| match claim.what {
            Use::Source if claim.order == order && writes => Free::Fenced,
            Use::Source if !writes => Free::Yes,
            Use::Sink(_) if claim.order == order => Free::Yes,
            _ => Free::No,
        };
        let over = self.claims.iter().filter(|claim| overlaps(&claim.range, range));
        over.map(judge).max().unwrap_or(Free::Yes)
    }

    /// Returns a random range of `len` bytes within the area that a request may claim.
    pub(crate) fn place(
        &self,
        rng: &mut Rng,
        within: Range<usize>,
        len: usize,
        order: u64,
        writes: bool,
    ) -> Option<(Range<usize>, Free)> {
        let room = (within.end - within.start).checked_sub(len)?;
        (0..8).find_map(|_| {
            let start = within.start + rng.below(room as u64 + 1) as usize;
            let range = start..start + len;
            let free = self.free(&range, order, writes);
            (free != Free::No).then_some((range, free))
        })
    }

    pub(crate) fn claim(
        &mut self,
        key: u64,
        order: u64,
        range: Range<usize>,
        what: Use,
        tag: Option<usize>,
    ) {
        self.claims.push(Claim { key, order, range, what, tag });
    }

    /// Returns the bytes that a range of the area has after all claims of `order`.
    pub(crate) fn view(&self, range: Range<usize>, order: u64) -> Vec<u8> {
        let mut bytes = self.settled[range.clone()].to_vec();
        for claim in self.claims.iter().filter(|c| c.order == order) {
            if let Use::Sink(sink) = &claim.what {
                let (from, to) =
                    (claim.range.start.max(range.start), claim.range.end.min(range.end));
                if from < to {
                    let new = &sink[from - claim.range.start..to - claim.range.start];
                    bytes[from - range.start..to - range.start].copy_from_slice(new);
                }
            }
        }
        bytes
    }

    fn take(&mut self, key: u64) -> Option<Claim> {
        let at = self.claims.iter().position(|claim| claim.key == key)?;
        Some(self.claims.remove(at))
    }

    /// Settles the claim of a completed request: memory must have its bytes, or those of a later
    /// request.
    pub(crate) fn settle(&mut self, key: u64, actual: &[u8]) {
        let Some(claim) = self.take(key) else { return };
        if let Use::Sink(sink) = claim.what {
            self.settled[claim.range.clone()].copy_from_slice(&sink);
        }
        self.check(claim.range, actual);
    }

    /// Settles the claim of a receive whose message put `bytes` into its range.
    pub(crate) fn received(&mut self, key: u64, bytes: &[u8], actual: &[u8]) {
        let Some(claim) = self.take(key) else { panic!("a receive completes twice") };
        self.settled[claim.range.start..claim.range.start + bytes.len()].copy_from_slice(bytes);
        self.check(claim.range, actual);
    }

    /// Settles the claim of a flushed request: each byte is the old or the new one. For
    /// [`Use::Open`] the new one is that of `bytes`. From now on the bytes must not change.
    pub(crate) fn adopt(&mut self, key: u64, bytes: &[u8], actual: &[u8]) {
        let Some(at) = self.claims.iter().position(|claim| claim.key == key) else { return };
        if matches!(self.claims[at].what, Use::Open) {
            let mut sink = self.settled[self.claims[at].range.clone()].to_vec();
            sink[..bytes.len()].copy_from_slice(bytes);
            self.claims[at].what = Use::Sink(sink);
        }
        let range = self.claims[at].range.clone();
        self.check(range.clone(), actual);
        if !matches!(self.claims[at].what, Use::Source) {
            self.settled[range.clone()].copy_from_slice(&actual[range]);
        }
        self.claims.remove(at);
    }

    /// Checks that every byte of the range is the certain one, or one that a claim may write.
    pub(crate) fn check(&self, range: Range<usize>, actual: &[u8]) {
        if self.settled[range.clone()] == actual[range.clone()] {
            return;
        }
        for at in range {
            if self.settled[at] == actual[at] {
                continue;
            }
            let explains = |claim: &Claim| {
                claim.range.contains(&at)
                    && match &claim.what {
                        Use::Source => false,
                        Use::Sink(sink) => sink[at - claim.range.start] == actual[at],
                        Use::Open => true,
                    }
            };
            let (is, was) = (actual[at], self.settled[at]);
            assert!(
                self.claims.iter().any(explains),
                "byte {at} is {is:#04x}, should be {was:#04x}"
            );
        }
    }
}
