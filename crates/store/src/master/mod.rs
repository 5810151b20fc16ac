//! The master: the machine that owns tablets and executes operations on their objects.
//!
//! ```text
//!  request ─► parsed ─► may serve? ─► tablet, hash ─► read:     table ─► log ─► reply
//!                                                  └► mutation: RIFL ─► one append ─► tables ─► gate ─► reply
//!                        lease unknown: suspended, asked for at the coordinator ─┘           durable?
//! ```
//!
//! What always holds: nothing is served but under a lease from the coordinator, by this machine's own clock; a mutation
//! is executed once for each number of its client; no answer tells of a change, own or another's, before that is
//! durable, and answers that wait go out in the order of the log; a turn's work is bounded, and so is every queue. What
//! is deliberately not here: how objects are kept ([`crate::objects::memory`], [`crate::objects::cleaner`]), who owns what (the
//! coordinator says so by TakeTablet and DropTablet), replication (its door is [`Master::durable`]).

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::rpc::{Message, Payload, RpcError, Slice, Slices};
use sprat_proto::time::MS;
use sprat_proto::wire::checksum::Crc32c;
use sprat_proto::{Instant, Rng};

use crate::message::data::{self, Amount, Enumerate, Increment, Once, Read, Remove, Target, Write};
use crate::message::{Opcode, Status, VERSION, control};
use crate::objects::cleaner::{Cleaner, SMALL_STEP, STEP};
use crate::objects::entry::OBJECT;
use crate::objects::log::Log;
use crate::objects::memory::{self, Change, Memory, Mutation};
use crate::objects::rifl::Verdict;
use crate::objects::segment::{Position, SEGMENT_BYTES};
use crate::objects::tablet::{Tablet, TakeError};
use crate::types::{ServerId, Version};
use sprat_proto::node::machine::{Caller, Link, Machine, Output};

mod leases;
mod membership;
mod stats;

use leases::Leases;
use membership::Membership;
use stats::Counts;

/// The coordinator.
pub const COORDINATOR: Link = Link(0);
/// Values above this size are not copied into a reply: it points into the log.
const INLINE_VALUE: usize = 256;
/// About how many bytes of objects an enumeration's reply has at most.
const ENUMERATE_BYTES: usize = 64 << 10;
/// The most answers that wait for the log to be safe.
const MAX_GATED: usize = 1 << 16;
const GROW_LINES: usize = 16;
const SWEEP_LINES: usize = 16;

/// What a master is started with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The coordinator's locator.
    pub coordinator: String,
    /// Where the coordinator reaches this server: locators with `;` between them.
    pub control: String,
    /// Where clients reach it, likewise.
    pub data: String,
    /// Memory for the log, in bytes.
    pub log_bytes: u64,
    /// The size of a segment in bytes; [`segment_bytes`](crate::objects::segment::segment_bytes) suits the
    /// log's.
    pub segment_bytes: u32,
    /// Continues a CRC32C.
    pub crc32c: Crc32c,
    /// Whether answers wait for [`Master::durable`].
    pub replicated: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            coordinator: String::new(),
            control: String::new(),
            data: String::new(),
            log_bytes: 1 << 30,
            segment_bytes: SEGMENT_BYTES,
            crc32c: sprat_proto::wire::checksum::crc32c,
            replicated: false,
        }
    }
}

/// An answer that waits for the log to be safe.
#[derive(Debug)]
struct Gated {
    until: Position,
    caller: Caller,
    message: Message,
}

/// The machine. See the module.
#[derive(Debug)]
pub struct Master {
    memory: Memory,
    cleaner: Cleaner,
    membership: Membership,
    leases: Leases,
    gated: VecDeque<Gated>,
    out: VecDeque<Output>,
    counts: Counts,
    last_tag: u64,
    /// There is background work.
    busy: bool,
    /// A request arrived since the last tick.
    requested: bool,
    /// What the next reply may be made in.
    spare: Vec<u8>,
}

impl Master {
    /// A master that will join the cluster; `rng` names it there.
    #[must_use]
    pub fn new(config: Config, mut rng: Rng) -> Self {
        let Config { coordinator, control, data, log_bytes, segment_bytes, crc32c, replicated } =
            config;
        let log = Log::new(log_bytes, segment_bytes, crc32c, replicated);
        let mut out = VecDeque::new();
        out.push_back(Output::Connect { link: COORDINATOR, locator: coordinator });
        Self {
            memory: Memory::new(log),
            cleaner: Cleaner::default(),
            membership: Membership::new(rng.u64(), control, data),
            leases: Leases::default(),
            gated: VecDeque::new(),
            out,
            counts: Counts::default(),
            last_tag: 0,
            busy: false,
            requested: false,
            spare: Vec::new(),
        }
    }

    /// Who it is in the cluster, once it has joined.
    #[must_use]
    pub fn server(&self) -> Option<ServerId> {
        self.membership.server()
    }

    /// What it holds: for tests and for a replica step.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The log is safe up to `position`: answers that waited for that go out.
    pub fn durable(&mut self, position: Position) {
        self.memory.log.set_durable(position);
        while let Some(Gated { caller, message, .. }) =
            self.gated.pop_front_if(|gated| gated.until <= position)
        {
            self.out.push_back(Output::Reply { caller, message });
        }
    }

    // Operations.

    /// Executes a request: the reply, or none if it follows.
    #[inline]
    fn execute(
        &mut self,
        now: Instant,
        caller: Caller,
        request: &[u8],
        deadline: Instant,
    ) -> Result<Option<Message>, Status> {
        let code = match *request {
            [VERSION, code, _, _, ..] => code,
            [_, _, _, _, ..] => return Err(Status::BadVersion),
            _ => return Err(Status::BadFormat),
        };
        match Opcode::from_code(code) {
            Some(Opcode::Read) => self.read(now, caller, request),
            Some(
                Opcode::Write | Opcode::Remove | Opcode::IncrementInteger | Opcode::IncrementDouble,
            ) => self.mutate(now, caller, request, deadline),
            Some(Opcode::Echo) => {
                self.counts.echoes += 1;
                let mut bytes = request.to_vec();
                bytes[..4].copy_from_slice(&data::head(Status::Ok));
                Ok(Some(bytes.into()))
            }
            Some(Opcode::Enumerate) => self.enumerate(now, caller, request),
            Some(Opcode::Stats) => {
                let text = stats::json(&self.counts, &self.memory, self.cleaner.cleaned());
                let message = [&data::head(Status::Ok)[..], text.as_bytes()].concat().into();
                self.out.push_back(Output::Counters { caller, message });
                Ok(None)
            }
            Some(Opcode::TakeTablet) => self.take_tablet(request).map(Some),
            Some(Opcode::DropTablet) => self.drop_tablet(request).map(Some),
            _ => Err(Status::UnknownOpcode),
        }
    }

    fn read(
        &mut self,
        now: Instant,
        caller: Caller,
        request: &[u8],
    ) -> Result<Option<Message>, Status> {
        let Read { target, key } = Read::parse(request)?;
        self.counts.reads += 1;
        self.membership.check(now, target.cluster)?;
        memory::check_sizes(key, &[])?;
        let hash = self.memory.tablets.locate(target.table, key).ok_or(Status::UnknownTablet)?;
        let Some((_, at, object)) = self.memory.find(&target, hash, key) else {
            let status = target.rules.check(Version(0)).err().unwrap_or(Status::ObjectDoesntExist);
            // Perhaps it was removed a moment ago, and the removal is not durable yet.
            return Ok(self.gate(caller, verdict(status, Version(0)), false));
        };
        let durable = self.memory.log.is_durable(at);
        if let Err(status) = target.rules.check(object.version) {
            return Ok(self.gate(caller, verdict(status, object.version), durable));
        }
        let head = data::result_head(Status::Ok, object.version);
        let (at, len) = (at.plus(OBJECT + key.len()), object.value.len());
        if len > INLINE_VALUE {
            let slice = self.memory.log.lend(at, len).ok_or(Status::Retry)?;
            let mut message = Message::from(&head[..]);
            message.slices.push(slice);
            return Ok(self.gate(caller, message, durable));
        }
        let mut bytes = core::mem::take(&mut self.spare);
        bytes.clear();
        bytes.reserve(head.len() + len);
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(&self.memory.log.bytes(at)[..len]);
        Ok(self.gate(caller, bytes.into(), durable))
    }

    fn mutate(
        &mut self,
        now: Instant,
        caller: Caller,
        request: &[u8],
        deadline: Instant,
    ) -> Result<Option<Message>, Status> {
        let (target, once, key, change) = parse_mutation(request)?;
        self.membership.check(now, target.cluster)?;
        if let Change::Write(value) = change {
            memory::check_sizes(key, value)?;
        } else {
            memory::check_sizes(key, &[])?;
        }
        let Memory { log, tablets, results, .. } = &mut self.memory;
        let hash = tablets.locate(target.table, key).ok_or(Status::UnknownTablet)?;
        if once.lease.0 == 0 {
            return Err(Status::ExpiredLease);
        }
        match results.check(now, once, |at| log.dead(at, crate::objects::entry::COMPLETION)) {
            Verdict::New => {}
            Verdict::Done(outcome, end) if end <= log.durable() => {
                self.counts.repeated += 1;
                return Ok(Some(reply(outcome).into()));
            }
            Verdict::Done(..) | Verdict::TooFar => return Err(Status::Retry),
            Verdict::Stale => return Err(Status::StaleRpc),
            Verdict::Unknown => {
                self.leases.suspend(once.lease, caller, request, deadline)?;
                return Ok(None);
            }
        }
        match change {
            Change::Write(_) => self.counts.writes += 1,
            Change::Remove => self.counts.removes += 1,
            Change::Add(_) => self.counts.increments += 1,
        }
        if self.gated.len() >= MAX_GATED {
            return Err(Status::Retry);
        }
        let mutation = Mutation { target, once, key, hash, change };
        let mut outcome = self.memory.mutate(&mutation);
        if outcome == Err(Status::Retry) {
            // A write into full memory cleans, even if this machine is never idle.
            self.cleaner.step(&mut self.memory, STEP);
            outcome = self.memory.mutate(&mutation);
            if outcome == Err(Status::Retry) && !self.cleaner.wanted(&self.memory) {
                outcome = Err(Status::NoSpace);
            }
        }
        self.busy |= self.cleaner.pay(&mut self.memory);
        outcome.map(|outcome| self.gate(caller, reply(outcome).into(), false))
    }

    fn enumerate(
        &mut self,
        now: Instant,
        caller: Caller,
        request: &[u8],
    ) -> Result<Option<Message>, Status> {
        let request = Enumerate::parse(request)?;
        self.counts.enumerations += 1;
        self.membership.check(now, request.cluster)?;
        let tablet = Tablet { table: request.table, first: request.first, last: request.last };
        if !self.memory.tablets.owns(tablet) {
            return Err(Status::UnknownTablet);
        }
        let limit = ENUMERATE_BYTES.min(request.limit_bytes as usize);
        let listing = self.memory.enumerate(&request, limit);
        let mut bytes = Vec::with_capacity(16 + listing.bytes.len());
        bytes.extend_from_slice(&data::objects_head(listing.count, listing.next));
        bytes.extend_from_slice(&listing.bytes);
        let mut message = Message::from(bytes);
        if let Some((at, len)) = listing.large {
            message.slices.push(self.memory.log.lend(at, len).ok_or(Status::Retry)?);
        }
        // Some of the objects may be newer than what is durable.
        Ok(self.gate(caller, message, false))
    }

    fn take_tablet(&mut self, request: &[u8]) -> Result<Message, Status> {
        let take = control::TakeTablet::parse(request)?;
        self.membership.is_me(take.cluster, take.server)?;
        if take.first > take.last {
            return Err(Status::BadFormat);
        }
        let tablet = Tablet { table: take.table, first: take.first, last: take.last };
        match self.memory.tablets.take(tablet, take.hash_key) {
            Ok(()) => Ok(control::done().into()),
            Err(TakeError::Sweeping) => Err(Status::Retry),
            Err(error @ TakeError::Overlap) => {
                let text = alloc::format!("{error}");
                Ok(control::failure(Status::BadFormat, &text).into())
            }
        }
    }

    fn drop_tablet(&mut self, request: &[u8]) -> Result<Message, Status> {
        let drop = control::DropTablet::parse(request)?;
        self.membership.is_me(drop.cluster, drop.server)?;
        let tablet = Tablet { table: drop.table, first: drop.first, last: drop.last };
        self.busy |= self.memory.tablets.drop_tablet(tablet);
        Ok(control::done().into())
    }

    // Answers.

    /// Lets an answer go if all that it tells is durable, else keeps it until the log is. `durable` is true if the
    /// caller knows that.
    #[inline]
    fn gate(&mut self, caller: Caller, message: Message, durable: bool) -> Option<Message> {
        if durable || self.memory.log.is_all_durable() {
            return Some(message);
        }
        if self.gated.len() >= MAX_GATED {
            for &slice in &message.slices {
                self.memory.log.give_back(slice);
            }
            return Some(self.counts.refuse(Status::Retry));
        }
        self.gated.push_back(Gated { until: self.memory.log.tail(), caller, message });
        None
    }

    fn tag(&mut self) -> u64 {
        self.last_tag += 1;
        self.last_tag
    }

    /// The leases of `self.leases` have been checked: what waited for them goes on.
    fn resume(&mut self, now: Instant, result: Result<Payload<'_>, RpcError>) {
        let checked = {
            let Memory { log, results, .. } = &mut self.memory;
            self.leases
                .checked(result, results, |at| log.dead(at, crate::objects::entry::COMPLETION))
        };
        for (suspended, expired) in checked {
            let leases::Suspended { caller, request, deadline, .. } = suspended;
            let answer = match expired {
                Some(true) => Err(Status::ExpiredLease),
                None => Err(Status::Retry),
                Some(false) if deadline < now => Err(Status::Retry),
                Some(false) => self.execute(now, caller, &request, deadline),
            };
            match answer {
                Ok(None) => {}
                Ok(Some(message)) => self.out.push_back(Output::Reply { caller, message }),
                Err(status) => {
                    let message = self.counts.refuse(status);
                    self.out.push_back(Output::Reply { caller, message });
                }
            }
        }
    }
}

fn parse_mutation(request: &[u8]) -> Result<(Target, Once, &[u8], Change<'_>), Status> {
    match request[1] {
        code if code == Opcode::Write as u8 => {
            let Write { target, once, key, value } = Write::parse(request)?;
            Ok((target, once, key, Change::Write(value)))
        }
        code if code == Opcode::Remove as u8 => {
            let Remove { target, once, key } = Remove::parse(request)?;
            Ok((target, once, key, Change::Remove))
        }
        _ => {
            let Increment { target, once, amount, key } = Increment::parse(request)?;
            if matches!(amount, Amount::Double(amount) if !amount.is_finite()) {
                return Err(Status::NotFinite);
            }
            Ok((target, once, key, Change::Add(amount)))
        }
    }
}

/// The answer that an operation was refused after a look at its object.
fn verdict(status: Status, version: Version) -> Message {
    data::result_head(status, version)[..].into()
}

/// The reply that tells a mutation's outcome.
fn reply(outcome: crate::objects::entry::Outcome) -> Vec<u8> {
    let head = data::result_head(outcome.status, outcome.version);
    let mut bytes = Vec::with_capacity(head.len() + 8);
    bytes.extend_from_slice(&head);
    if let Some(sum) = outcome.sum {
        bytes.extend_from_slice(&sum);
    }
    bytes
}

impl Slices for Master {
    fn bytes(&self, slice: Slice) -> &[u8] {
        self.memory.log.lent_bytes(slice)
    }
}

impl Machine for Master {
    fn request(
        &mut self,
        now: Instant,
        caller: Caller,
        payload: Payload<'_>,
        deadline: Instant,
    ) -> Option<Message> {
        self.requested = true;
        if deadline < now {
            // Nobody waits for the answer; a short one lets the transport forget the request.
            self.counts.late += 1;
            return Some(data::head(Status::Retry)[..].into());
        }
        match self.execute(now, caller, &payload, deadline) {
            Ok(answer) => answer,
            Err(status) => Some(self.counts.refuse(status)),
        }
    }

    fn response(&mut self, now: Instant, tag: u64, result: Result<Payload<'_>, RpcError>) {
        if self.leases.is_asked(tag) {
            self.resume(now, result);
        } else if let Some(stop) = self.membership.response(now, tag, result) {
            self.out.push_back(stop);
        }
        if let Some(server) = self.membership.server() {
            self.memory.log.set_server(server);
        }
    }

    fn output(&mut self, now: Instant) -> Option<Output> {
        if let Some(output) = self.out.pop_front() {
            return Some(output);
        }
        if self.membership.is_due(now) {
            let log = &self.memory.log;
            let usage = control::Usage {
                used_bytes: log.live_bytes(),
                capacity_bytes: log.capacity_bytes(),
                objects: self.memory.table.len(),
            };
            let tag = self.tag();
            return self.membership.call(now, tag, usage);
        }
        if self.leases.is_due(now)
            && let Some(cluster) = self.membership.cluster()
        {
            let tag = self.tag();
            return self.leases.call(now, tag, cluster);
        }
        None
    }

    fn released(&mut self, slice: Slice) {
        if self.memory.log.give_back(slice) {
            self.busy |= self.cleaner.wanted(&self.memory);
        }
    }

    fn spare(&mut self, buffer: Vec<u8>) {
        self.spare = buffer;
    }

    fn deadline(&self) -> Option<Instant> {
        if self.busy {
            return Some(Instant::ZERO);
        }
        let next = self.membership.deadline().min(self.leases.deadline());
        (next != Instant::NEVER).then_some(next)
    }

    fn tick(&mut self, now: Instant) -> bool {
        if self.membership.cluster().is_some() {
            self.leases.look(now, &mut self.memory.results);
        }
        let growing = self.memory.grow(GROW_LINES);
        let sweeping = self.memory.sweep(SWEEP_LINES);
        // While requests arrive, writes pay for cleaning and a turn adds little.
        let work = if core::mem::take(&mut self.requested) { SMALL_STEP / 2 } else { STEP };
        let cleaning = self.cleaner.step(&mut self.memory, work);
        self.busy = growing || sweeping || cleaning;
        self.busy
    }
}

/// How long a call to the coordinator may take.
const CALL_NS: u64 = 500 * MS;

#[cfg(test)]
mod tests;
