//! The UDP datagrams of one received burst, and the locations of their payloads in frames or
//! reassembled packets.

use alloc::vec::Vec;
use core::net::SocketAddr;

use arrayvec::ArrayVec;

use crate::datagrams::LeftDatagram;
use crate::device::{BURST, Device};

/// The location of a received datagram's bytes.
#[derive(Clone, Copy, Debug)]
pub(in crate::net) enum Location {
    /// The datagram is in the frame of the device's burst with this index.
    Frame(usize),
    /// The datagram is in the reassembled packet with this index.
    Reassembled(usize),
}

/// A received UDP datagram.
#[derive(Clone, Copy, Debug)]
pub(in crate::net) struct Received {
    pub(in crate::net) from: SocketAddr,
    /// The port of this stack that the datagram is for.
    pub(in crate::net) port: u16,
    pub(in crate::net) location: Location,
    /// The range of the datagram's payload in the frame or the reassembled packet.
    pub(in crate::net) start: usize,
    pub(in crate::net) end: usize,
}

/// The part of a coalesced (GRO) frame whose datagrams did not fit the burst.
#[derive(Clone, Copy, Debug)]
struct Coalesced {
    rest: Received,
    segment_size: usize,
}

/// The UDP datagrams of the current burst, and the progress through the device's frames.
#[derive(Debug, Default)]
pub(in crate::net) struct Burst {
    /// The number of frames in the device's burst.
    frames: usize,
    /// The number of frames of the burst that the stack has processed.
    processed: usize,
    datagrams: ArrayVec<Received, BURST>,
    coalesced: Option<Coalesced>,
    reassembled: Vec<Vec<u8>>,
}

impl Burst {
    /// Returns true if all frames of the burst were processed and all their datagrams delivered.
    #[inline]
    pub(in crate::net) const fn is_done(&self) -> bool {
        self.processed == self.frames && self.coalesced.is_none()
    }

    /// Forgets the datagrams of the burst that were delivered.
    #[inline]
    pub(in crate::net) fn clear_delivered(&mut self) {
        self.datagrams.clear();
    }

    /// Receives a burst of frames from the device and returns their number.
    #[inline]
    pub(in crate::net) fn receive<D: Device>(&mut self, device: &mut D) -> usize {
        (self.frames, self.processed) = (device.recv_burst(), 0);
        if !self.reassembled.is_empty() {
            self.reassembled.clear();
        }
        self.frames
    }

    /// Returns the index of the next frame to process, while the burst has room for its datagrams.
    #[inline]
    pub(in crate::net) fn next_frame(&mut self) -> Option<usize> {
        let has_room = !self.datagrams.is_full() && self.coalesced.is_none();
        if self.processed == self.frames || !has_room {
            return None;
        }
        self.processed += 1;
        Some(self.processed - 1)
    }

    /// Adds a received UDP datagram to the burst.
    #[inline]
    pub(in crate::net) fn push(&mut self, datagram: Received) {
        self.datagrams.push(datagram);
    }

    /// Adds the datagrams of a coalesced (GRO) frame to the burst, as far as it has room.
    pub(in crate::net) fn push_coalesced(&mut self, rest: Received, segment_size: usize) {
        self.coalesced = Some(Coalesced { rest, segment_size });
        self.split();
    }

    /// Adds further datagrams of a coalesced (GRO) frame to the burst, as far as it has room.
    #[inline]
    pub(in crate::net) fn split(&mut self) {
        while let Some(Coalesced { rest, segment_size }) = self.coalesced {
            if self.datagrams.is_full() {
                return;
            }
            let end = rest.end.min(rest.start + segment_size);
            self.datagrams.push(Received { end, ..rest });
            let rest = Received { start: end, ..rest };
            self.coalesced = (rest.start < rest.end).then_some(Coalesced { rest, segment_size });
        }
    }

    /// Returns the location of the packet that `push_reassembled` adds next to the burst. A burst
    /// has at most two such packets for each frame: a frame that the device had left, and the
    /// packet that it completes.
    pub(in crate::net) const fn next_reassembled(&self) -> Location {
        Location::Reassembled(self.reassembled.len())
    }

    /// Adds a reassembled packet to the burst.
    pub(in crate::net) fn push_reassembled(&mut self, packet: Vec<u8>) {
        self.reassembled.push(packet);
    }

    /// Returns the number of UDP datagrams in the burst.
    #[inline]
    pub(in crate::net) const fn len(&self) -> usize {
        self.datagrams.len()
    }

    /// Returns datagram `i` of the burst: the port of this stack, the sender, and the payload,
    /// which is empty if the device has left its end.
    #[inline(always)]
    pub(in crate::net) fn datagram<'b, D: Device>(
        &'b self,
        i: usize,
        device: &'b D,
    ) -> (u16, SocketAddr, &'b [u8]) {
        let datagram = &self.datagrams[i];
        let bytes = self.bytes(datagram.location, device);
        let payload = bytes.get(datagram.start..datagram.end).unwrap_or_default();
        (datagram.port, datagram.from, payload)
    }

    /// Returns the bytes of a frame of the burst, or of a reassembled packet.
    #[inline(always)]
    pub(in crate::net) fn bytes<'b, D: Device>(
        &'b self,
        location: Location,
        device: &'b D,
    ) -> &'b [u8] {
        match location {
            Location::Frame(frame) => device.frame(frame).0,
            Location::Reassembled(packet) => &self.reassembled[packet],
        }
    }

    /// Returns the beginning of datagram `i` of the burst if the device has left its end.
    pub(in crate::net) fn left<'b, D: Device>(
        &self,
        i: usize,
        device: &'b D,
    ) -> Option<LeftDatagram<'b>> {
        let datagram = &self.datagrams[i];
        let Location::Frame(frame) = datagram.location else { return None };
        let bytes = device.frame(frame).0;
        let head = bytes.get(datagram.start..).filter(|_| datagram.end > bytes.len())?;
        Some(LeftDatagram { head, len: datagram.end - datagram.start })
    }

    /// Appends the bytes from `from` on of datagram `i`, whose end the device has left, to `bytes`.
    pub(in crate::net) fn append_left<D: Device>(
        &self,
        i: usize,
        from: usize,
        device: &D,
        bytes: &mut Vec<u8>,
    ) {
        let datagram = &self.datagrams[i];
        if let Location::Frame(frame) = datagram.location {
            device.append_left(frame, datagram.start + from..datagram.end, bytes);
        }
    }
}
