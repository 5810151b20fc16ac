//! The bytes of a message that one packet of several carries: in the driver's burst, or still where
//! the driver received them, so that they are copied once, to their place in the message.

use alloc::vec::Vec;
use core::fmt;

use crate::Datagrams;
use crate::wire::rpc::{Bad, RxPacket};

/// The body of a packet: the bytes of a message that the packet carries.
#[derive(Clone, Copy)]
pub(super) enum Body<'b> {
    /// The body lies in the driver's burst.
    Burst(&'b [u8]),
    /// The body lies in a datagram that the driver has left in memory that the peer can write.
    Left {
        driver: &'b dyn Datagrams,
        /// The index of the body's datagram in the burst.
        datagram: usize,
        /// The offset of the body in its datagram.
        start: usize,
        len: usize,
    },
}

impl fmt::Debug for Body<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl Body<'_> {
    pub(super) fn len(&self) -> usize {
        match *self {
            Self::Burst(bytes) => bytes.len(),
            Self::Left { len, .. } => len,
        }
    }

    /// Appends the bytes of the packet's body to `to`.
    pub(super) fn append_to(&self, to: &mut Vec<u8>) {
        match *self {
            Self::Burst(bytes) => to.extend_from_slice(bytes),
            Self::Left { driver, datagram, start, .. } => driver.append_left(datagram, start, to),
        }
    }

    /// Copies the bytes of the packet's body to `to`, which has the body's length.
    pub(super) fn copy_to(&self, to: &mut [u8]) {
        match self {
            Self::Burst(bytes) => to.copy_from_slice(bytes),
            Self::Left { len, .. } => {
                // A driver that leaves datagrams delivers them in order, so this is no common path.
                let mut bytes = Vec::with_capacity(*len);
                self.append_to(&mut bytes);
                to.copy_from_slice(&bytes);
            }
        }
    }
}

/// Parses the beginning of a data packet whose datagram has `len` bytes, where no packet has a
/// checksum. Returns the packet with as much of its body as is there, and the offset of the body in
/// the datagram.
///
/// # Errors
/// [`Bad`]: the caller drops the datagram and counts it.
pub(super) fn parse_head(head: &[u8], len: usize) -> Result<(RxPacket<'_>, usize), Bad> {
    let packet = RxPacket::parse(head, None)?;
    let start = head.len() - packet.body().len();
    let body_len = len.checked_sub(start).ok_or(Bad::Short)? as u64;
    let end = u64::from(packet.packet().offset) + body_len;
    if !packet.is_data() || end > u64::from(packet.msg_len()) {
        return Err(Bad::Field);
    }
    Ok((packet, start))
}
