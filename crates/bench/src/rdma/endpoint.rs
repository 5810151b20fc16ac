//! One end of a measured RDMA connection: the objects that both sides have, their handshake, and
//! the loop of the peer process.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sprat::verbs::{
    AcceptOptions, Access, Completed, Completion, CompletionQueue, ConnectOptions, ConnectRequest,
    Device, MemoryRegion, PairOptions, QueuePair, RecvRequest, Remote, SendOp, SendRequest, Stag,
};
use sprat_proto::rpc::MAX_MESSAGE;

use super::args::{Model, Op};
use super::{accept, connect, under};
use crate::fail::{Fail, Named};
use crate::process;

/// Time that the peer process may take for one step.
pub(crate) const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));
/// Number of receives that each side posts.
pub(crate) const RECEIVES: usize = 256;
/// Number of Sends after which a receiver returns credit to the sender. The receiver has
/// [`RECEIVES`] receives.
pub(crate) const CREDIT: u64 = 64;
/// Number of RDMA Reads and atomics in progress.
pub(crate) const DEPTH: u16 = 64;
/// Time after which a wait for a completion checks whether the connection still exists.
const LOOK: Option<Duration> = Some(Duration::from_millis(100));

/// The measurement that the client requests, in the private data of its connection request.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// True for a measurement of throughput: messages one way, many in progress.
    pub(crate) bw: bool,
    pub(crate) op: Op,
    pub(crate) size: usize,
    /// Steering tag of the client's memory, which the server's operations name.
    pub(crate) stag: u32,
}

/// One end of a measured connection. Its memory has three parts: the message to send, the received
/// message, and credits.
pub(crate) struct End {
    pub(crate) device: Device,
    pub(crate) queue: CompletionQueue,
    pub(crate) pair: QueuePair,
    pub(crate) memory: MemoryRegion,
    pub(crate) plan: Plan,
    /// Steering tag of the peer's memory.
    pub(crate) theirs: Stag,
    events: bool,
}

impl End {
    fn new(device: &Device, plan: Plan, events: bool) -> Result<Self, Fail> {
        let failed = "cannot make a queue pair";
        let domain = device.protection_domain().named(failed)?;
        let queue = device.completion_queue(4096).named(failed)?;
        let options = PairOptions {
            send_depth: 2048,
            recv_depth: RECEIVES as u32,
            ..PairOptions::new(&queue)
        };
        let pair = domain.queue_pair(&options).named(failed)?;
        let memory = domain.register(2 * half(plan.size), Access::ALL).named(failed)?;
        Ok(Self { device: device.clone(), queue, pair, memory, plan, theirs: Stag(0), events })
    }

    /// Connects to a peer process.
    pub(crate) fn call(
        device: &Device,
        at: &str,
        mut plan: Plan,
        events: bool,
    ) -> Result<Self, Fail> {
        let mut end = Self::new(device, plan, events)?;
        plan.stag = end.memory.key().map_or(0, |key| key.0);
        end.post_receives(RECEIVES)?;
        let options = ConnectOptions {
            ird: DEPTH,
            ord: DEPTH,
            private_data: serde_json::to_vec(&plan).named("cannot write the plan")?,
            ..ConnectOptions::default()
        };
        let at = at.parse().named("the peer's address")?;
        let connected = connect(&end.pair, at, options)?;
        end.theirs =
            Stag(serde_json::from_slice(&connected.private_data).named("the peer's answer")?);
        Ok(end)
    }

    /// Accepts a client's connection.
    fn answer(device: &Device, request: ConnectRequest, events: bool) -> Result<Self, Fail> {
        let plan: Plan =
            serde_json::from_slice(request.private_data()).named("the client's plan")?;
        if plan.size > MAX_MESSAGE {
            return Err(Fail::new(format!(
                "a message of {} octets is longer than {MAX_MESSAGE}",
                plan.size
            )));
        }
        let mut end = Self::new(device, plan, events)?;
        end.theirs = Stag(plan.stag);
        end.post_receives(RECEIVES)?;
        let key = end.memory.key().map_or(0, |key| key.0);
        let private_data = serde_json::to_vec(&key).named("cannot answer")?;
        request
            .accept(
                &end.pair,
                AcceptOptions { ird: DEPTH, ord: DEPTH, private_data, ..AcceptOptions::default() },
            )
            .named("cannot accept")?;
        end.pair.connected(PATIENCE).named("the client did not start up")?;
        Ok(end)
    }

    pub(crate) fn post_receives(&self, n: usize) -> Result<(), Fail> {
        let at = half(self.plan.size);
        for _ in 0..n {
            let into = RecvRequest::new(0, self.memory.sge(at..at + self.plan.size));
            self.pair.post_recv(into).named("cannot post a receive")?;
        }
        Ok(())
    }

    /// Waits for the next completion and returns it. `None` if the connection has ended.
    #[inline]
    pub(crate) fn next(&self) -> Option<Completion> {
        loop {
            let found = if self.events { self.queue.sleep(LOOK) } else { self.queue.wait(LOOK) };
            match found {
                Some(completion) => return completion.result().ok(),
                None if self.pair.disconnected(Some(Duration::ZERO)) => return None,
                None => {}
            }
        }
    }

    /// Waits until the last byte of the received message equals `mark`. Returns false if the
    /// connection has ended.
    #[inline]
    fn written(&self, mark: u8) -> bool {
        let at = half(self.plan.size) + self.plan.size.max(1) - 1;
        let done = || {
            let mut octet = [0];
            self.memory.read(at, &mut octet).is_ok() && octet[0] == mark
        };
        loop {
            let found = if self.events {
                self.device.sleep(LOOK, done)
            } else {
                self.device.wait(LOOK, done)
            };
            if found || self.pair.disconnected(Some(Duration::ZERO)) {
                return found;
            }
        }
    }

    /// Returns the part of the peer's memory that receives messages.
    pub(crate) fn remote(&self) -> Remote {
        Remote { stag: self.theirs, addr: half(self.plan.size) as u64 }
    }

    /// Makes a work request that sends one message by the operation `op`.
    #[inline]
    pub(crate) fn request(&self, op: SendOp) -> SendRequest {
        SendRequest::new(0, op, self.memory.sge(0..self.plan.size))
    }

    #[inline]
    fn post(&self, request: SendRequest) -> Result<(), Fail> {
        self.pair.post_send(request).named("cannot post")
    }

    /// Runs exchange number `n` of a latency measurement, as the client.
    #[inline]
    pub(crate) fn exchange(&self, n: u64) -> Result<(), Fail> {
        match self.plan.op {
            Op::Send => {
                self.post(self.request(SendOp::Send).unsignaled())?;
                // The receive is posted while the message travels.
                if n > 1 {
                    self.post_receives(1)?;
                }
                self.next().ok_or_else(ended).map(drop)
            }
            Op::Write => {
                self.write(n as u8)?;
                if self.written(n as u8) { Ok(()) } else { Err(ended()) }
            }
            Op::Read | Op::Atomic => {
                self.post(self.request(self.one_sided()))?;
                self.next().ok_or_else(ended).map(drop)
            }
        }
    }

    /// Returns the operation that the client posts: a Send, or a Write, Read or atomic on the
    /// peer's memory.
    pub(crate) fn one_sided(&self) -> SendOp {
        match self.plan.op {
            Op::Send => SendOp::Send,
            Op::Write => SendOp::Write(self.remote()),
            Op::Read => SendOp::Read(self.remote()),
            Op::Atomic => SendOp::FetchAdd { to: self.remote(), add: 1, mask: 0 },
        }
    }

    fn write(&self, mark: u8) -> Result<(), Fail> {
        self.memory.write(self.plan.size.max(1) - 1, &[mark]).named("cannot mark a message")?;
        self.post(self.request(SendOp::Write(self.remote())).unsignaled())
    }

    /// Serves one client's measurement until the client has disconnected.
    fn serve(&self) -> Result<(), Fail> {
        match (self.plan.bw, self.plan.op) {
            (false, Op::Send) => {
                while self.next().is_some() {
                    self.post(self.request(SendOp::Send).unsignaled())?;
                    self.post_receives(1)?;
                }
            }
            (false, Op::Write) => {
                let mut mark = 1;
                while self.written(mark) {
                    self.write(mark)?;
                    mark = mark.wrapping_add(1);
                }
            }
            (true, Op::Send) => {
                let mut count = 0;
                while let Some(completion) = self.next() {
                    if completion.completed != Completed::Recv {
                        continue;
                    }
                    self.post_receives(1)?;
                    count += 1;
                    if count % CREDIT == 0 {
                        self.post(
                            SendRequest::new(1, SendOp::Send, self.memory.sge(0..0)).unsignaled(),
                        )?;
                    }
                }
            }
            _ => while !self.pair.disconnected(PATIENCE) {},
        }
        Ok(())
    }
}

/// Returns the size of one half of an end's memory, a multiple of 64 bytes.
fn half(size: usize) -> usize {
    size.next_multiple_of(64).max(64)
}

pub(crate) fn ended() -> Fail {
    Fail::new("the connection of the measurement has ended")
}

/// Runs the peer process of a measurement, which serves one client after the other.
pub fn peer(model: &Model) -> Result<(), Fail> {
    let (device, at) = under::open(model, model.at.as_deref().unwrap_or("127.0.0.1:0"), true)?;
    let listener = device.listen(at).named("cannot listen")?;
    process::print_ready(&listener.local_addr().to_string())?;
    loop {
        let Some(request) = accept::next(&listener, None) else { continue };
        let client = request.peer();
        match End::answer(&device, request, model.events) {
            Ok(end) => end.serve()?,
            Err(fail) => accept::skip(client, fail),
        }
    }
}
