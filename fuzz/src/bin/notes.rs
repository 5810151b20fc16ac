//! RPC over queue pairs, one side of it: no Sends of a peer, and nothing that its messages' memory
//! turns out to hold, panic, are kept beyond the limits, or leave a request without exactly one
//! end.
//!
//! The first byte says which side listens; then come steps: what comes, or what the program does.

#![no_main]

use std::collections::VecDeque;

use libfuzzer_sys::fuzz_target;
use sprat_proto::Instant;
use sprat_proto::rpc::notes::{Hello, Kind, MOST_ANNOUNCED, Said, Talk};
use sprat_proto::rpc::stream::{Announced, Ids, Role, Stream};
use sprat_proto::rpc::{CloseReason, Event, Message, ServerRpc, SessionId};

const NOW: Instant = Instant::from_ns(1_000_000);
/// Octets of a receive.
const ROOM: usize = 256;

struct End {
    talk: Talk,
    stream: Stream,
    ids: Ids,
    pulls: VecDeque<Announced>,
    shown: usize,
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

    /// Takes a Send; false if the peer is found out.
    fn hear(&mut self, send: &[u8]) -> bool {
        let Ok((finished, said)) = self.talk.hear(send, &mut self.stream) else { return false };
        assert!(finished <= self.shown);
        self.shown -= finished;
        match said {
            Said::Nothing => {}
            Said::Frames(frames) => {
                let mut at = 0;
                while let Some(arrived) = self.stream.input(NOW, frames, &mut at, &mut self.ids) {
                    self.happened(arrived.event(frames));
                }
                return self.stream.is_between();
            }
            Said::Announced { wanted: true, announced, .. } => self.pulls.push_back(announced),
            Said::Announced { .. } => self.talk.finish(),
        }
        assert!(self.pulls.len() <= MOST_ANNOUNCED);
        true
    }

    /// A message was read.
    fn read(&mut self, byte: u8) {
        // What may be long is read in a piece of it here.
        let Some(announced) = self.pulls.pop_front_if(|a| a.len() <= 1 << 16) else { return };
        self.talk.finish();
        let message = vec![byte; announced.len()];
        if let Some(event) = self.stream.whole(NOW, announced, message, &mut self.ids) {
            self.happened(event);
        }
    }

    /// Says what may be said.
    fn speak(&mut self) {
        while self.talk.may_send()
            && let Some(front) = self.stream.front(NOW)
        {
            let len = front.header.len() + front.message.len();
            if len <= ROOM - 8 {
                self.stream.written(len);
                self.talk.say(Kind::Frames);
            } else if self.talk.may_announce() {
                assert!(self.stream.take_front().is_some());
                self.shown += 1;
                self.talk.say(Kind::Announcement);
            } else {
                break;
            }
        }
        if self.talk.must_tell() || self.talk.has_finished() && self.talk.may_send() {
            self.talk.say(Kind::Nothing);
        }
        assert!(self.shown <= MOST_ANNOUNCED);
    }
}

fuzz_target!(|bytes: &[u8]| {
    // Nothing but that they do not panic.
    let _ = Hello::parse(bytes);
    let Some((&how, mut bytes)) = bytes.split_first() else { return };
    let client = how & 1 == 1;
    let role = if client { Role::Client(SessionId::new(0, 1)) } else { Role::Server };
    let mut talk = Talk::new(16);
    talk.greet(&Hello { receives: 4 + u16::from(how >> 4), octets: ROOM as u32 });
    let (stream, ids) = (Stream::new(3, role, 40), Ids::default());
    let (pulls, asked, ends) = (VecDeque::new(), VecDeque::new(), Vec::new());
    let mut end = End { talk, stream, ids, pulls, shown: 0, asked, calls: 0, ends, closed: 0 };
    while let [step, len, rest @ ..] = bytes
        && end.stream.ended().is_none()
    {
        bytes = rest;
        match step % 5 {
            0 | 1 => {
                let (send, rest) = bytes.split_at(usize::from(*len).min(bytes.len()));
                bytes = rest;
                if !end.hear(send) {
                    end.stream.blame();
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
            _ => end.speak(),
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
