//! DONE packets: a client whose sessions become idle acknowledges the replies that it has received,
//! for many sessions in a packet, so that the server need not retain them. On a busy session, the
//! next request on a channel acknowledges the last reply.

use alloc::vec::Vec;

use zerocopy::IntoBytes as _;

use super::Client;
use crate::Instant;
use crate::rpc::control::ControlBody;
use crate::rpc::session::Phase;
use crate::rpc::shared::Shared;
use crate::rpc::slab::NONE;
use crate::time::US;
use crate::tracepoint::Probe;
use crate::wire::rpc::{DoneEntry, HEADER, Kind, Packet};

/// The number of idle sessions that one tick checks for replies to acknowledge.
const IDLE_BATCH: usize = 64;
/// The time between two batches of acknowledgements. A client acknowledges a million sessions at
/// about the rate at which it can use them.
const NEXT_BATCH_NS: u64 = 50 * US;
/// The length of the longest DONE packet's body, in bytes.
const DONE_MAX: usize = 1200;

impl Client {
    /// Acknowledges the reply that the server's NEEDACK packet `about` names.
    pub(super) fn send_ack<P: Probe>(&self, shared: &mut Shared<P>, c: u32, about: &Packet) {
        let session = &self.sessions[c];
        let entry = DoneEntry {
            session: session.server.into(),
            token: session.token.into(),
            channels: 1 << about.channel,
            padding: [0; 3],
        };
        let mut body = Vec::with_capacity(20);
        body.extend_from_slice(entry.as_bytes());
        body.extend_from_slice(&about.seq.to_be_bytes());
        flush_acks(shared, session.peer, &mut body);
    }

    /// Acknowledges the replies on the client's sessions that have become idle.
    pub(super) fn send_acks<P: Probe>(&mut self, shared: &mut Shared<P>) {
        let mut body = Vec::new();
        let mut to = NONE;
        let room = shared.max_payload.saturating_sub(HEADER + 4).min(DONE_MAX);
        let mut next = shared.config.done_after_ns;
        for _ in 0..self.idle.list.len().min(IDLE_BATCH) {
            let Some((c, epoch, listed_ms)) = self.idle.list.pop_front() else { break };
            let session = &mut self.sessions[c];
            if session.epoch != epoch || session.phase != Phase::Open {
                continue;
            }
            if session.busy != 0 || session.active_ms != listed_ms {
                // The session was used since.
                self.idle.list.push_back((c, epoch, session.active_ms));
                continue;
            }
            let idle_ns = session.idle_ns(shared.now);
            if idle_ns < shared.config.done_after_ns {
                // The sessions behind this one are idle for no longer.
                self.idle.list.push_front((c, epoch, listed_ms));
                next = shared.config.done_after_ns - idle_ns;
                break;
            }
            next = NEXT_BATCH_NS;
            session.listed = false;
            let channels = core::mem::take(&mut session.unacked);
            let len = size_of::<DoneEntry>() + 4 * channels.count_ones() as usize;
            if to != session.peer || body.len() + len > room {
                flush_acks(shared, to, &mut body);
            }
            to = session.peer;
            let (name, token) = (session.server.into(), session.token.into());
            let entry = DoneEntry { session: name, token, channels, padding: [0; 3] };
            body.extend_from_slice(entry.as_bytes());
            for channel in (0..8).filter(|channel| channels & 1 << channel != 0) {
                body.extend_from_slice(&session.seqs[channel].to_be_bytes());
            }
        }
        flush_acks(shared, to, &mut body);
        self.idle.check =
            if self.idle.list.is_empty() { Instant::NEVER } else { shared.now.after(next) };
    }
}

/// Queues a DONE packet with this body to the peer, unless the body is empty.
fn flush_acks<P: Probe>(shared: &mut Shared<P>, peer: u32, body: &mut Vec<u8>) {
    if !body.is_empty() {
        let body = core::mem::take(body).into_boxed_slice();
        shared.queue_control(peer, Packet::new(Kind::Done), ControlBody::Large(body));
    }
}
