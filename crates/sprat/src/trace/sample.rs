//! Computes from tracepoints the times of a request at its caller and at its server, layer by
//! layer, and joins both to a whole round trip.
//!
//! ```text
//!  caller:   Start ─ out ─► Sent            Receive ─ back ─► End
//!                             └─ wire ─┐ ┌─ wire ─┘
//!  server:              Receive ─ inward ─► Serve ─ service ─► Answer ─ out ─► Sent
//! ```
//!
//! A server keeps its side and returns it as the reply to a special echo (docs/formats.md). Work of
//! one side that happens after the packet has reached the other side is on neither path: the
//! sender's driver counts until the receiver began the poll that found the packet.
//!
//! Two processes of one machine read one counter. Between two machines only durations compare: the
//! difference between the caller's and the server's time is halved between both directions of the
//! wire.
//!
//! Always holds: the parts of a round trip add up to the time on the caller's clock. A request
//! whose tracepoints are inconsistent, because others were in progress or the ring wrapped, is left
//! out. Nothing here reads a clock.

use std::collections::BTreeMap;

use sprat_store::message::Status;
use sprat_store::message::data;
use sprat_store::ops::{Echo, Operation as _};

use super::{TraceEvent, TraceRecord, TraceRing};

/// A layer to which tracepoints assign time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layer {
    /// The layer of the program: a caller, or a service.
    Program,
    Transport,
    Ip,
    Driver,
}

/// The time that each layer took, in ticks.
type Spent = [u64; 4];

/// Number of parts of a round trip.
pub const PARTS: usize = 18;

/// The parts of a round trip in their order: for each its side of the wire, its layer, and its name
/// for programs.
pub const NAMES: [(&str, &str, &str); PARTS] = [
    ("client", "caller", "client.out.caller"),
    ("client", "transport", "client.out.transport"),
    ("client", "IP", "client.out.ip"),
    ("client", "driver", "client.out.driver"),
    ("", "wire", "wire.there"),
    ("server", "driver", "server.in.driver"),
    ("server", "IP", "server.in.ip"),
    ("server", "transport", "server.in.transport"),
    ("server", "service", "server.service"),
    ("server", "transport", "server.out.transport"),
    ("server", "IP", "server.out.ip"),
    ("server", "driver", "server.out.driver"),
    ("", "wire", "wire.back"),
    ("client", "driver", "client.in.driver"),
    ("client", "IP", "client.in.ip"),
    ("client", "transport", "client.in.transport"),
    ("client", "caller", "client.in.caller"),
    ("", "wire and far end", "away"),
];

/// The path of a request or a reply through one side, with the time of each layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Leg {
    begin: u64,
    end: u64,
    /// The time in ticks at which the driver's last call began, on the path out. On the path in,
    /// the time at which the driver's poll had found the packet.
    turn: u64,
    spent: Spent,
}

/// The times of a request at its caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    rpc: u64,
    out: Leg,
    back: Leg,
    tracepoints: u64,
}

/// The times of a request at its server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Served {
    rpc: u64,
    inward: Leg,
    service: u64,
    out: Leg,
    tracepoints: u64,
}

/// The parts of one round trip, and its whole time.
#[derive(Clone, PartialEq, Debug)]
pub struct RoundTrip {
    /// The time of each part of the round trip in nanoseconds, in the order of [`NAMES`].
    pub parts_ns: [f64; PARTS],
    /// The time of the whole round trip by the caller's clock, in nanoseconds.
    pub whole_ns: f64,
    /// Number of tracepoints on the round trip.
    pub tracepoints: u64,
}

/// The times of requests that a server has returned, and the clock that they were measured by.
#[derive(Clone, Debug, Default)]
pub struct Far {
    machine: [u8; 16],
    tick_ns: f64,
    served: Vec<Served>,
}

/// The method by which the two sides of a round trip are joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Joined {
    /// The client and the server read one clock.
    OneClock,
    /// The client and the server are two machines with a clock each. The time that neither side
    /// accounts for is the wire's, half in each direction.
    TwoClocks,
    /// The server does not trace: the round trip has only the caller's parts.
    NearOnly,
}

fn layer(kind: TraceEvent) -> Option<Layer> {
    match kind {
        TraceEvent::Start | TraceEvent::Serve | TraceEvent::Done => Some(Layer::Program),
        TraceEvent::Request
        | TraceEvent::Answer
        | TraceEvent::Transport
        | TraceEvent::Sent
        | TraceEvent::Received => Some(Layer::Transport),
        TraceEvent::Ip | TraceEvent::SentIp | TraceEvent::ReceivedIp => Some(Layer::Ip),
        TraceEvent::Send | TraceEvent::Flush | TraceEvent::Receive => Some(Layer::Driver),
        TraceEvent::End | TraceEvent::Given => None,
    }
}

/// Returns the time of each layer between the first and the last record of `trace`.
fn spent(trace: &[TraceRecord]) -> Spent {
    let mut spent = Spent::default();
    let mut last: Option<(u64, Layer)> = None;
    for record in trace.iter().filter(|record| record.kind != TraceEvent::Given) {
        if let Some((since, layer)) = last {
            spent[layer as usize] += record.at.saturating_sub(since);
        }
        last = layer(record.kind).map(|layer| (record.at, layer));
    }
    spent
}

/// Returns the number of records of `trace` that cost the time of a tracepoint.
fn timed(trace: &[TraceRecord]) -> u64 {
    trace.iter().filter(|record| record.kind != TraceEvent::Given).count() as u64
}

/// Returns the transmit leg of a request at one side, and the number of tracepoints whose cost its
/// time includes. The leg begins with `trace[from]` and ends before `trace[until]`. The
/// [`TraceEvent::Given`] record of request `rpc` marks the driver call that sends its packet.
fn outward(
    trace: &[TraceRecord],
    from: usize,
    handed: usize,
    until: usize,
    rpc: u64,
) -> Option<(Leg, u64)> {
    let steps = |range: std::ops::Range<usize>| range.clone().zip(&trace[range]);
    let given = steps(handed..until)
        .find(|(_, m)| m.kind == TraceEvent::Given && m.rpc == rpc)
        .map(|(i, _)| i);
    let flushed = steps(given.unwrap_or(handed)..until).find(|(_, m)| m.kind == TraceEvent::Flush);
    let sent_by =
        || steps(handed..given.unwrap_or(until)).rfind(|(_, m)| m.kind == TraceEvent::Send);
    let (began, call) = flushed.or_else(sent_by)?;
    let (end, left) = steps(began..until)
        .find(|(_, m)| matches!(m.kind, TraceEvent::Sent | TraceEvent::SentIp))?;
    let way = &trace[from..=end];
    let leg = Leg { begin: way[0].at, end: left.at, turn: call.at, spent: spent(way) };
    // The last one only ends the way.
    Some((leg, timed(way) - 1))
}

/// Returns the path into this side. It ends with `trace[to]` and begins, after `trace[from]`, with
/// the poll that found the packet handed up at `trace[up]`.
fn inward(trace: &[TraceRecord], from: usize, up: usize, to: usize) -> Option<(usize, Leg, u64)> {
    let begin = from + trace[from..up].iter().rposition(|m| m.kind == TraceEvent::Receive)?;
    let got = trace[begin..up]
        .iter()
        .find(|m| matches!(m.kind, TraceEvent::Received | TraceEvent::ReceivedIp))?;
    let way = &trace[begin..=to];
    let leg = Leg { begin: way[0].at, end: trace[to].at, turn: got.at, spent: spent(way) };
    // The first one was made while it was waited.
    Some((begin, leg, timed(way) - 1))
}

/// Returns the traced operations of a caller that were one request each, or an echo of the IP
/// layer.
#[must_use]
pub fn calls(trace: &[TraceRecord]) -> Vec<Call> {
    let mut calls = Vec::new();
    let mut start = None;
    for (i, record) in trace.iter().enumerate() {
        match (record.kind, start) {
            (TraceEvent::Start, _) => start = Some(i),
            (TraceEvent::End, Some(begin)) => calls.extend(call(trace, begin, i)),
            _ => {}
        }
    }
    calls
}

fn call(trace: &[TraceRecord], start: usize, end: usize) -> Option<Call> {
    let of = |kind| (start..end).filter(move |&i| trace[i].kind == kind);
    let (request, done) = match (of(TraceEvent::Request).count(), of(TraceEvent::Done).count()) {
        (0, 0) => (start, end),
        (1, 1) => (of(TraceEvent::Request).next()?, of(TraceEvent::Done).next()?),
        _ => return None,
    };
    let rpc = if request == start { 0 } else { trace[request].rpc };
    if request > done || done != end && trace[done].rpc != rpc {
        return None;
    }
    let (found, back, tracepoints_in) = inward(trace, request, done, end)?;
    let (out, tracepoints_out) = outward(trace, start, request, found, rpc)?;
    Some(Call { rpc, out, back, tracepoints: tracepoints_out + tracepoints_in })
}

/// Returns the traced requests of a server that were alone in progress.
#[must_use]
pub fn served(trace: &[TraceRecord]) -> Vec<Served> {
    let serves: Vec<usize> =
        (0..trace.len()).filter(|&i| trace[i].kind == TraceEvent::Serve).collect();
    let mut all = Vec::new();
    for (n, &serve) in serves.iter().enumerate() {
        let from = if n == 0 { 0 } else { serves[n - 1] };
        let until = serves.get(n + 1).copied().unwrap_or(trace.len());
        all.extend(serving(trace, from, serve, until));
    }
    all
}

fn serving(trace: &[TraceRecord], from: usize, serve: usize, until: usize) -> Option<Served> {
    let rpc = trace[serve].rpc;
    let answer = serve + trace[serve..until].iter().position(|m| m.kind == TraceEvent::Answer)?;
    let (found, inward, tracepoints_in) = inward(trace, from, serve, serve)?;
    // An answer behind the look is another request's, and the look was its too.
    let alone = trace[answer].rpc == rpc
        && !trace[found..serve].iter().any(|m| m.kind == TraceEvent::Answer);
    let (out, tracepoints_out) = outward(trace, answer, answer, until, rpc).filter(|_| alone)?;
    let service = trace[answer].at.saturating_sub(trace[serve].at);
    Some(Served { rpc, inward, service, out, tracepoints: tracepoints_in + tracepoints_out + 1 })
}

/// Returns three times of the way from a sender to a receiver: the time of the sender's driver
/// after the receiver has the packet, the time on the wire, and the time of the receiver's driver
/// before the sender's last call. `None` if the packet arrived before it was sent.
fn hop(from: &Leg, to: &Leg) -> Option<[u64; 3]> {
    if to.begin >= from.end {
        return Some([0, to.begin - from.end, 0]);
    }
    let border = to.begin.max(from.turn);
    (border <= to.turn).then(|| [from.end - border, 0, border - to.begin])
}

/// Returns the parts of a round trip whose sides read one clock.
fn by_one_clock(call: &Call, served: &Served, tick_ns: f64) -> Option<RoundTrip> {
    let [cut_out, there, cut_in] = hop(&call.out, &served.inward)?;
    let [cut_reply, back, cut_back] = hop(&served.out, &call.back)?;
    let ticks = in_order(
        [reduced(&call.out, cut_out)?, reduced(&call.back, cut_back)?],
        [reduced(&served.inward, cut_in)?, reduced(&served.out, cut_reply)?],
        served.service,
        [there, back],
    );
    Some(RoundTrip {
        parts_ns: ticks.map(|ticks| ticks as f64 * tick_ns),
        whole_ns: call.back.end.saturating_sub(call.out.begin) as f64 * tick_ns,
        tracepoints: call.tracepoints + served.tracepoints,
    })
}

/// Returns the times of a path, with the driver's reduced by `cut`.
fn reduced(leg: &Leg, cut: u64) -> Option<Spent> {
    let mut spent = leg.spent;
    let driver = &mut spent[Layer::Driver as usize];
    *driver = driver.checked_sub(cut)?;
    Some(spent)
}

/// Returns the times of a round trip in the order of [`NAMES`].
fn in_order(
    [co, cb]: [Spent; 2],
    [si, so]: [Spent; 2],
    service: u64,
    [there, back]: [u64; 2],
) -> [u64; PARTS] {
    let [_, st, sp, sd] = si;
    let [_, ot, op, od] = so;
    [
        co[0], co[1], co[2], co[3], there, sd, sp, st, service, ot, op, od, back, cb[3], cb[2],
        cb[1], cb[0], 0,
    ]
}

/// Returns the parts of a round trip whose sides read two clocks, with ticks of different lengths.
fn by_two_clocks(call: &Call, served: &Served, tick_ns: f64, far_tick_ns: f64) -> RoundTrip {
    let near = in_order([call.out.spent, call.back.spent], Default::default(), 0, [0; 2]);
    let far = in_order(
        Default::default(),
        [served.inward.spent, served.out.spent],
        served.service,
        [0; 2],
    );
    let mut parts_ns = near.map(|ticks| ticks as f64 * tick_ns);
    parts_ns.iter_mut().zip(far).for_each(|(part, ticks)| *part += ticks as f64 * far_tick_ns);
    let whole_ns = call.back.end.saturating_sub(call.out.begin) as f64 * tick_ns;
    let left = (whole_ns - parts_ns.iter().sum::<f64>()) / 2.0;
    (parts_ns[4], parts_ns[12]) = (left, left);
    RoundTrip { parts_ns, whole_ns, tracepoints: call.tracepoints + served.tracepoints }
}

/// Returns the round trip by the caller's tracepoints alone, for a server that does not trace.
fn near_only(call: &Call, tick_ns: f64) -> RoundTrip {
    let mut ticks = in_order([call.out.spent, call.back.spent], Default::default(), 0, [0; 2]);
    ticks[PARTS - 1] = call.back.begin.saturating_sub(call.out.end);
    RoundTrip {
        parts_ns: ticks.map(|ticks| ticks as f64 * tick_ns),
        whole_ns: call.back.end.saturating_sub(call.out.begin) as f64 * tick_ns,
        tracepoints: call.tracepoints,
    }
}

/// Returns the round trips of `calls`, and the method by which their sides were joined. It leaves
/// out requests that the server has not traced, unless the server has traced none.
#[must_use]
pub fn round_trips(
    calls: &[Call],
    far: Option<&Far>,
    trace: &TraceRing,
) -> (Joined, Vec<RoundTrip>) {
    let clock = trace.clock();
    round_trips_by(calls, far, machine(clock.is_counter()), clock.tick_ns())
}

fn round_trips_by(
    calls: &[Call],
    far: Option<&Far>,
    machine: [u8; 16],
    tick_ns: f64,
) -> (Joined, Vec<RoundTrip>) {
    let Some(far) = far else {
        return (Joined::NearOnly, calls.iter().map(|call| near_only(call, tick_ns)).collect());
    };
    let one_clock = far.machine == machine && machine != [0; 16];
    let by_rpc: BTreeMap<u64, &Served> =
        far.served.iter().filter(|s| s.rpc != 0).map(|s| (s.rpc, s)).collect();
    let within = |call: &Call| {
        let mut all = far.served.iter().filter(|s| {
            s.rpc == 0
                && s.inward.turn >= call.out.begin
                && s.out.turn <= call.back.end
                && one_clock
        });
        all.next().filter(|_| all.next().is_none())
    };
    let joined = if one_clock { Joined::OneClock } else { Joined::TwoClocks };
    let all = calls.iter().filter_map(|call| {
        let served = by_rpc.get(&call.rpc).copied().or_else(|| within(call))?;
        match joined {
            Joined::OneClock => by_one_clock(call, served, tick_ns),
            _ => Some(by_two_clocks(call, served, tick_ns, far.tick_ns)),
        }
    });
    (joined, all.collect())
}

/// Returns an id of this machine, of its boot and of its clock. Only times with one id can be
/// compared.
fn machine(is_counter: bool) -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    match u128::from_str_radix(&digits, 16) {
        Ok(id) => (id ^ u128::from(is_counter)).to_be_bytes(),
        Err(_) => [0; 16],
    }
}

// The request for a server's samples, and its reply.

/// The bytes of the echo that asks a server for its samples.
const ASK: &[u8] = b"sprat: your marks, please";
const MAGIC: [u8; 8] = *b"sprmark1";
/// The number of 64-bit words that encode one sample.
const WORDS: usize = 14;
/// Bytes before the samples in a server's reply.
const HEAD: usize = 8 + 16 + 8 + 8;
/// The factor by which the reply multiplies the nanoseconds of a tick.
const SHIFTED: f64 = (1_u64 << 32) as f64;

/// Returns the bytes of the echo that asks a server for its samples.
#[must_use]
pub const fn ask() -> &'static [u8] {
    ASK
}

/// True if `request` is the whole request that asks for samples.
pub(crate) fn is_ask(request: &[u8]) -> bool {
    request.len() == 4 + ASK.len() && request[4..] == *ASK && request == Echo(ASK).emit()
}

/// Returns the whole reply of a tracing server that was asked for its samples.
pub(crate) fn answer(trace: &TraceRing) -> Vec<u8> {
    let clock = trace.clock();
    let mut reply = data::head(Status::Ok).to_vec();
    let tick = (clock.tick_ns() * SHIFTED) as u64;
    encode(&mut reply, machine(clock.is_counter()), tick, &served(&trace.since(0)));
    reply
}

fn encode(into: &mut Vec<u8>, machine: [u8; 16], tick: u64, served: &[Served]) {
    into.extend(MAGIC);
    into.extend(machine);
    into.extend(tick.to_be_bytes());
    into.extend((served.len() as u64).to_be_bytes());
    for Served { rpc, inward, service, out, tracepoints } in served {
        let [_, it, ip, id] = inward.spent;
        let [_, ot, op, od] = out.spent;
        let words: [u64; WORDS] = [
            *rpc,
            inward.begin,
            inward.turn,
            inward.end,
            id,
            ip,
            it,
            *service,
            out.end,
            out.turn,
            ot,
            op,
            od,
            *tracepoints,
        ];
        words.iter().for_each(|word| into.extend(word.to_be_bytes()));
    }
}

impl Far {
    /// Parses the samples in a server's reply. `None` if the server does not trace. Its numbers are
    /// not verified.
    #[must_use]
    pub fn parse(echoed: &[u8]) -> Option<Self> {
        let (head, samples) = echoed.split_at_checked(HEAD)?;
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_be_bytes).ok();
        let (tick, count) = (word(&head[24..32])?, word(&head[32..40])?);
        if head[..8] != MAGIC || samples.len() as u64 != count.checked_mul(8 * WORDS as u64)? {
            return None;
        }
        let machine = head[8..24].try_into().ok()?;
        let served = samples.chunks_exact(8 * WORDS).filter_map(|sample| {
            let words: Vec<u64> = sample.chunks_exact(8).filter_map(word).collect();
            let [rpc, begin, got, serve, id, ip, it, service, left, turn, ot, op, od, tracepoints] =
                words[..]
            else {
                return None;
            };
            let inward = Leg { begin, end: serve, turn: got, spent: [0, it, ip, id] };
            let out =
                Leg { begin: serve.wrapping_add(service), end: left, turn, spent: [0, ot, op, od] };
            let tracepoints = tracepoints.min(u64::from(u32::MAX));
            Some(Served { rpc, inward, service, out, tracepoints })
        });
        Some(Self { machine, tick_ns: tick as f64 / SHIFTED, served: served.collect() })
    }

    /// Adds later samples of the server.
    pub fn extend(&mut self, more: Self) {
        self.served.extend(more.served);
    }
}
