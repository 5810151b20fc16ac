//! Control packets: packets that carry no bytes of a message, from the time they are queued until
//! the driver takes them.

use alloc::boxed::Box;

use arrayvec::ArrayVec;

use crate::Addr;
use crate::wire::rpc::Packet;

/// A control packet that waits until the driver takes it.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) to: Addr,
    /// The peer at the address that the control packet goes to, or `NONE`.
    pub(super) peer: u32,
    pub(super) packet: Packet,
    pub(super) body: ControlBody,
}

/// The body of a control packet.
#[derive(Debug)]
pub(super) enum ControlBody {
    None,
    Small(ArrayVec<u8, 32>),
    Large(Box<[u8]>),
}

impl ControlBody {
    /// Makes the body of a control packet from at most 32 bytes.
    pub(super) fn small(bytes: &[u8]) -> Self {
        Self::Small(bytes.iter().copied().collect())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Small(bytes) => bytes,
            Self::Large(bytes) => bytes,
        }
    }
}
