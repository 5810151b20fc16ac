//! DONE: a client that becomes idle tells its servers which replies it has, many sessions in a packet, so that they need not
//! keep them. While it is busy, each next request on a channel says so without a word.

use alloc::vec::Vec;

use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::probe::Probe;
use crate::rpc::CHANNELS;
use crate::rpc::endpoint::Endpoint;
use crate::rpc::session::{Phase, State, Word};
use crate::rpc::shared::tx::ControlBody;
use crate::rpc::slab::NONE;
use crate::time::US;
use crate::tracepoint::Probe;
use crate::wire::rpc::{DoneEntry, HEADER, Kind, Packet, SEQ_MAX};
use crate::{Addr, Instant};

/// Sessions looked at in one go for replies to acknowledge.
const IDLE_BATCH: usize = 64;
/// When the next go follows, while there are more: so much of a million sessions is acknowledged as a client can use.
const NEXT_BATCH_NS: u64 = 50 * US;
/// The longest DONE, whatever the driver takes.
const DONE_BYTES: usize = 1200;

impl<P: Probe> Endpoint<P> {
    /// Acknowledges one reply.
    pub(in crate::rpc) fn ack(&mut self, c: u32, packet: &Packet) {
        let session = &self.clients[c];
        let channel = usize::from(packet.channel);
        let mut body = Vec::with_capacity(20);
        let entry = DoneEntry {
            session: session.server.into(),
            token: session.token.into(),
            channels: 1 << channel,
            padding: [0; 3],
        };
        body.extend_from_slice(entry.as_bytes());
        body.extend_from_slice(&packet.seq.to_be_bytes());
        let peer = session.peer;
        self.answer_with(peer, Packet::new(Kind::Done), ControlBody::Large(body.into()));
    }

    /// Tells servers which replies have arrived on sessions that have become idle, many sessions in a packet.
    pub(in crate::rpc) fn send_dones(&mut self) {
        let mut body = Vec::new();
        let mut to = NONE;
        let room = self.max_payload.saturating_sub(HEADER + 4).min(DONE_BYTES);
        let mut next = self.config.done_after_ns;
        for _ in 0..self.idle.len().min(IDLE_BATCH) {
            let Some((c, epoch, listed_ms)) = self.idle.pop_front() else { break };
            let session = &mut self.clients[c];
            if session.epoch != epoch || session.phase != Phase::Open {
                continue;
            }
            if session.busy != 0 || session.active_ms != listed_ms {
                // Used since: its turn comes again.
                self.idle.push_back((c, epoch, session.active_ms));
                continue;
            }
            let idle_ns = session.idle_ns(self.now);
            if idle_ns < self.config.done_after_ns {
                // Those behind it are not idle for longer.
                self.idle.push_front((c, epoch, listed_ms));
                next = self.config.done_after_ns - idle_ns;
                break;
            }
            next = NEXT_BATCH_NS;
            session.listed = false;
            let channels = core::mem::take(&mut session.unacked);
            let len = size_of::<DoneEntry>() + 4 * channels.count_ones() as usize;
            if to != session.peer || body.len() + len > room {
                self.flush_done(to, &mut body);
            }
            let session = &self.clients[c];
            to = session.peer;
            let (session_name, token) = (session.server.into(), session.token.into());
            let entry = DoneEntry { session: session_name, token, channels, padding: [0; 3] };
            body.extend_from_slice(entry.as_bytes());
            for channel in (0..8).filter(|channel| channels & 1 << channel != 0) {
                body.extend_from_slice(&session.seqs[channel].to_be_bytes());
            }
        }
        self.flush_done(to, &mut body);
        self.idle_check = if self.idle.is_empty() { Instant::NEVER } else { self.now.after(next) };
    }

    fn flush_done(&mut self, peer: u32, body: &mut Vec<u8>) {
        if !body.is_empty() {
            let body = core::mem::take(body).into_boxed_slice();
            self.answer_with(peer, Packet::new(Kind::Done), ControlBody::Large(body));
        }
    }

    /// A client has these replies.
    pub(in crate::rpc) fn done_arrived(&mut self, from: Addr, mut body: &[u8]) {
        while let Ok((entry, rest)) = DoneEntry::ref_from_prefix(body) {
            let numbers = 4 * entry.channels.count_ones() as usize;
            let Some((numbers, rest)) = rest.split_at_checked(numbers) else {
                self.stats.drop_short += 1;
                return;
            };
            body = rest;
            let session = self.find_server(from, entry.session.get(), entry.token.get());
            let Some((s, _)) = session else { continue };
            let channels = (0..CHANNELS).filter(|channel| entry.channels & 1 << channel != 0);
            for (channel, seq) in channels.zip(numbers.as_chunks::<4>().0) {
                let word = self.sessions[s].channels[channel];
                let is_kept = word.state() == State::Reply
                    && word.seq() == u32::from_be_bytes(*seq) & SEQ_MAX;
                if is_kept {
                    self.stats.done += 1;
                    self.drop_slot(s, channel);
                    self.sessions[s].channels[channel] = Word::new(word.seq(), State::Done);
                }
            }
        }
    }
}
