//! Fuzzes one side of RPC over queue pairs. Whatever the peer sends, and whatever its messages
//! contain, nothing panics, the side keeps nothing beyond the limits, and every request ends
//! exactly once.
//!
//! The first byte chooses client or server; the rest are steps: a Send arrives, a Read completes,
//! or the program acts.

#![no_main]

use std::collections::VecDeque;

use libfuzzer_sys::fuzz_target;
use sprat_proto::Instant;
use sprat_proto::rpc::over_qp::{FlowControl, Hello, MAX_ANNOUNCED, Received, SendKind};
use sprat_proto::rpc::stream::{Announced, Ids, Role, Stream};
use sprat_proto::rpc::{CloseReason, Event, Message, ServerRpc, SessionId};

const NOW: Instant = Instant::from_ns(1_000_000);
/// The length of the queue pair's receives in bytes.
const ROOM: usize = 256;

struct End {
    flow: FlowControl,
    stream: Stream,
    ids: Ids,
    to_read: VecDeque<Announced>,
    announced: usize,
    asked: VecDeque<ServerRpc>,
    calls: u64,
    ends: Vec<u64>,
    closed: usize,
}

impl End {
    fn happened(&mut self, event: Event<'_>) {
        match event {
            Event::Request { rpc, .. } => self.asked.push_back(rpc),
            Event::Response { tag, .. } => self.ends.push(tag),
            Event::Failed { tag, .. } => self.ends.push(tag),
            Event::Closed { .. } => self.closed += 1,
        }
    }

    /// Handles a received Send. Returns false if the peer violated the protocol.
    fn receive(&mut self, send: &[u8]) -> bool {
        let Ok((finished, received)) = self.flow.receive(send, &mut self.stream) else {
            return false;
        };
        assert!(finished <= self.announced);
        self.announced -= finished;
        match received {
            Received::Nothing => {}
            Received::Frames(frames) => {
                let mut at = 0;
                while let Some(arrived) = self.stream.input(NOW, frames, &mut at, &mut self.ids) {
                    self.happened(arrived.event(frames));
                }
                return self.stream.is_between();
            }
            Received::Announced { wanted: true, announced, .. } => {
                self.to_read.push_back(announced)
            }
            Received::Announced { .. } => self.flow.finish(),
        }
        assert!(self.to_read.len() <= MAX_ANNOUNCED);
        true
    }

    /// Completes the Read of the oldest announced message, whose bytes are all `byte`.
    fn read(&mut self, byte: u8) {
        // A longer message would only take time.
        let Some(announced) = self.to_read.pop_front_if(|a| a.len() <= 1 << 16) else { return };
        self.flow.finish();
        let message = vec![byte; announced.len()];
        if let Some(event) = self.stream.whole(NOW, announced, message, &mut self.ids) {
            self.happened(event);
        }
    }

    /// Sends the queued frames and announcements as far as flow control allows, and credits if it
    /// has to.
    fn send_all(&mut self) {
        while self.flow.may_send()
            && let Some(front) = self.stream.front(NOW)
        {
            let len = front.header.len() + front.message.len();
            if len <= ROOM - 8 {
                self.stream.written(len);
                self.flow.next_header(SendKind::Eager);
            } else if self.flow.may_announce() {
                assert!(self.stream.take_front().is_some());
                self.announced += 1;
                self.flow.next_header(SendKind::Rendezvous);
            } else {
                break;
            }
        }
        if self.flow.must_grant() || self.flow.has_finished() && self.flow.may_send() {
            self.flow.next_header(SendKind::Credits);
        }
        assert!(self.announced <= MAX_ANNOUNCED);
    }
}

fuzz_target!(|bytes: &[u8]| {
    // A hello must only not panic.
    let _ = Hello::parse(bytes);
    let Some((&how, mut bytes)) = bytes.split_first() else { return };
    let client = how & 1 == 1;
    let role = if client { Role::Client(SessionId::new(0, 1)) } else { Role::Server };
    let mut flow = FlowControl::new(16);
    flow.open(&Hello { receives: 4 + u16::from(how >> 4), receive_bytes: ROOM as u32 });
    let (stream, ids) = (Stream::new(3, role, 40), Ids::default());
    let (to_read, asked, ends) = (VecDeque::new(), VecDeque::new(), Vec::new());
    let mut end =
        End { flow, stream, ids, to_read, announced: 0, asked, calls: 0, ends, closed: 0 };
    while let [step, len, rest @ ..] = bytes
        && end.stream.ended().is_none()
    {
        bytes = rest;
        match step % 5 {
            0 | 1 => {
                let (send, rest) = bytes.split_at(usize::from(*len).min(bytes.len()));
                bytes = rest;
                if !end.receive(send) {
                    end.stream.carrier_error();
                }
            }
            2 => end.read(*len),
            3 if client => {
                let message = Message::from(vec![7; 2 * usize::from(*len)]);
                let taken = end.stream.request(end.calls, message, Instant::NEVER, &mut end.ids);
                end.calls += u64::from(taken.is_ok());
            }
            3 => {
                if let Some(rpc) = end.asked.pop_front() {
                    end.stream.reply(rpc, Message::from(vec![8; 2 * usize::from(*len)]));
                }
            }
            _ => end.send_all(),
        }
        while let Some(event) = end.stream.event() {
            end.happened(event);
        }
    }
    end.stream.end(CloseReason::Local);
    while let Some(event) = end.stream.event() {
        end.happened(event);
    }
    end.ends.sort_unstable();
    assert!(end.ends.iter().copied().eq(0..end.calls), "one end each: {:?}", end.ends);
    assert_eq!(end.closed, usize::from(client));
});
