//! Appends FPDUs to a record and counts the position on the stream.

use crate::rdma::iwarp::framer::{Framer, Piece};
use crate::rdma::memory::{Memory, Part, Record, Unmapped};
use crate::wire::ddp::Header;

/// A framer of FPDUs with the record that it appends to.
pub(crate) struct FpduWriter<'a, M> {
    pub(crate) framer: &'a mut Framer,
    pub(crate) record: &'a mut Record,
    pub(crate) memory: &'a mut M,
    /// The position of the stream after the last framed byte.
    pub(crate) position: &'a mut u64,
}

impl<M: Memory> FpduWriter<'_, M> {
    /// The most bytes of payload that fit into an FPDU behind a header of `header` bytes.
    pub(crate) fn room(&self, header: usize) -> u32 {
        (self.framer.mulpdu() - header) as u32
    }

    pub(crate) fn frame(&mut self, header: &Header, payload: &[Piece<'_>]) -> Result<(), Unmapped> {
        let len = |part: &Part| match part {
            Part::Bytes(range) => range.len() as u64,
            Part::Memory(span) => u64::from(span.len),
        };
        let last = self.record.parts.len().saturating_sub(1);
        let before = self.record.parts.last().map_or(0, len);
        self.framer.frame(&header.emit(), payload, self.memory, self.record)?;
        *self.position += self.record.parts[last..].iter().map(len).sum::<u64>() - before;
        Ok(())
    }
}
