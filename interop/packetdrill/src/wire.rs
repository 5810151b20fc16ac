//! A device in memory: IP packets of packetdrill come in, and TCP's packets go out with their
//! times.

use std::collections::VecDeque;
use std::ops::Range;

use sprat_proto::device::{Headers, Info, Mac, Offload, RxOffload, Sent, send_concatenated};
use sprat_proto::{Device, Instant};

/// The length of an Ethernet header in bytes.
const ETHERNET: usize = 14;
/// The number of TCP, and the places of the field in IPv4 and IPv6 packets.
const TCP: u8 = 6;
const PROTOCOL4: usize = 9;
const NEXT6: usize = 6;

/// The MAC addresses of the stack's device and of all its neighbours.
pub(crate) const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub(crate) const PEER: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// A device in memory.
#[derive(Debug)]
pub(crate) struct Wire {
    mtu: usize,
    inbox: VecDeque<Vec<u8>>,
    frame: Vec<u8>,
    /// The TCP packets that the stack has sent, without Ethernet headers, and their times.
    pub(crate) sent: VecDeque<(Instant, Vec<u8>)>,
    /// The time of the frames that the stack sends.
    pub(crate) now: Instant,
}

impl Wire {
    pub(crate) fn new(mtu: usize) -> Self {
        let (inbox, frame, sent) = (VecDeque::new(), Vec::new(), VecDeque::new());
        Self { mtu, inbox, frame, sent, now: Instant::ZERO }
    }

    /// Adds an IP packet for the stack.
    pub(crate) fn inject(&mut self, packet: &[u8]) {
        let kind = if packet.first().is_some_and(|byte| byte >> 4 == 6) {
            [0x86, 0xdd]
        } else {
            [0x08, 0x00]
        };
        self.inbox.push_back([&OURS.0[..], &PEER.0, &kind, packet].concat());
    }

    /// Returns true if no packet waits for the stack.
    pub(crate) fn is_idle(&self) -> bool {
        self.inbox.is_empty()
    }
}

impl Device for Wire {
    fn recv_burst(&mut self) -> usize {
        // One frame at a time, as in packetdrill's scripts.
        let frame = self.inbox.pop_front();
        let count = usize::from(frame.is_some());
        self.frame = frame.unwrap_or_default();
        count
    }

    fn frame(&self, _: usize) -> (&[u8], RxOffload) {
        (&self.frame, RxOffload::default())
    }

    fn append_left(&self, _: usize, range: Range<usize>, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.frame[range]);
    }

    fn send(&mut self, parts: &[&[u8]], _: Offload) -> Sent {
        let packet = parts.concat().split_off(ETHERNET);
        let protocol = match packet.first().map(|byte| byte >> 4) {
            Some(4) => packet.get(PROTOCOL4),
            Some(6) => packet.get(NEXT6),
            _ => None,
        };
        // Neighbour discovery and the like are no matter of packetdrill's.
        if protocol == Some(&TCP) {
            self.sent.push_back((self.now, packet));
        }
        Sent::Yes
    }

    fn send_with_headers(
        &mut self,
        headers: &Headers,
        parts: &[&[u8]],
        _: usize,
        offload: Offload,
    ) -> Sent {
        send_concatenated(self, headers, parts, offload)
    }

    fn flush(&mut self) {}

    fn info(&self) -> Info {
        Info::without_offloads(OURS, self.mtu)
    }

    fn rx_timestamp_ns(&self, _: usize) -> Option<u64> {
        None
    }

    fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}
