//! The digest of a log: the segments that a recovery replays. Each head segment has one behind its
//! header, and changes of it between other entries.

use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{HEAD, KIND_CHANGE, KIND_DIGEST, head};
use crate::objects::segment::SegmentId;

/// The number of bytes that one segment takes in a digest.
pub const DIGESTED: usize = size_of::<DigestedWire>();

#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
struct DigestedWire {
    segment: U32,
    len: U32,
}

/// The segments that a digest names, or a change of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Digest<'a>(&'a [DigestedWire]);

impl<'a> Digest<'a> {
    /// Parses the body of the entry `whole`.
    pub(super) fn parse(whole: &'a [u8]) -> Option<Self> {
        <[DigestedWire]>::ref_from_bytes(whole.get(HEAD..)?).ok().map(Self)
    }

    /// Iterates over the segments and their lengths. A replica that is shorter is not complete. In
    /// a change, the length 0 means that the segment has left the log.
    pub fn segments(&self) -> impl Iterator<Item = (SegmentId, u32)> + 'a {
        self.0.iter().map(|wire| (SegmentId(wire.segment.get()), wire.len.get()))
    }
}

/// Writes the digest of these segments, which fills `out`.
pub fn put_digest(out: &mut [u8], segments: impl Iterator<Item = (SegmentId, u32)>) {
    put(out, KIND_DIGEST, segments);
}

/// Writes a change of the digest, which fills `out`.
pub fn put_change(out: &mut [u8], segments: impl Iterator<Item = (SegmentId, u32)>) {
    put(out, KIND_CHANGE, segments);
}

fn put(out: &mut [u8], kind: u8, segments: impl Iterator<Item = (SegmentId, u32)>) {
    let fixed = head(kind, out.len());
    let (fixed_out, body) = out.split_at_mut(HEAD);
    fixed_out.copy_from_slice(fixed.as_bytes());
    for (out, (segment, len)) in body.chunks_exact_mut(DIGESTED).zip(segments) {
        let wire = DigestedWire { segment: segment.0.into(), len: len.into() };
        out.copy_from_slice(wire.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use crate::objects::entry::{Entry, parse};

    #[test]
    fn a_digest_byte_by_byte() {
        let segments = [(SegmentId(1), 0x0203), (SegmentId(0x0405_0607), 0)];
        let mut bytes = vec![0; HEAD + 2 * DIGESTED];
        put_digest(&mut bytes, segments.into_iter());
        let golden =
            [&[5, 0, 0, 16, 0, 0, 0, 0][..], &[0, 0, 0, 1, 0, 0, 2, 3], &[4, 5, 6, 7, 0, 0, 0, 0]]
                .concat();
        assert_eq!(bytes, golden);
        let Some((Entry::Digest(digest), 24)) = parse(&bytes) else { panic!() };
        assert_eq!(digest.segments().collect::<Vec<_>>(), segments);
        let mut change = golden.clone();
        put_change(&mut change, segments.into_iter());
        assert!(matches!(parse(&change), Some((Entry::Change(same), 24)) if same == digest));
        assert_eq!(parse(&golden[..23]), None);
        change[3] = 15;
        assert_eq!(parse(&change), None, "half a segment");
    }
}
