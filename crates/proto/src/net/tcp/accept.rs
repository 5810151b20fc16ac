//! Connections that peers begin: with memory of their SYNs, or with cookies (RFC 4987).

use super::config::TcpConfig;
use super::connection::{Agreed, Connection, DEFAULT_MSS, TcpState, clock, is_opening};
use super::cookies::{self, Checked, VALID_NS};
use super::flow::TcpFlow;
use super::host::{Room, TcpHost};
use super::input::{Segment, refusal};
use super::listeners::Admission;
use super::own::TcpSettings;
use super::time_wait::Verdict;
use crate::Instant;
use crate::wire::tcp::{Flags, SackBlocks, Tcp, TcpOptions};

impl TcpHost {
    /// Takes a segment for which there is no connection.
    pub(super) fn input_unknown(&mut self, now: Instant, flow: TcpFlow, segment: &Segment<'_>) {
        let (tcp, port) = (&segment.tcp, flow.local.port());
        let last = match self.input_time_wait(now, &flow, segment) {
            None => None,
            Some(Verdict::Nothing) => return,
            Some(Verdict::Acknowledge(tcp, fields)) => return self.answer(flow, tcp, fields),
            Some(Verdict::Reopen { last }) => Some(last),
        };
        if let Some(admission) = self.listeners.admission(port) {
            if is_opening(tcp) {
                return self.input_syn(now, flow, tcp, admission, last);
            }
            let is_ack = tcp.flags.has(Flags::ACK) && !tcp.flags.has(Flags::SYN.with(Flags::RST));
            if is_ack && self.listeners.expects_cookies(now, port) {
                let (seq, cookie) = (tcp.seq.wrapping_sub(1), tcp.ack.wrapping_sub(1));
                let checked = self.cookies.check(now, &flow, seq, cookie);
                if checked == Checked::Old {
                    self.counters.cookies_wrong += 1;
                    return self.answer_refusal(flow, segment);
                }
                let Some(mut connection) = self.by_cookie(now, &flow, tcp, checked) else {
                    // A segment that overtakes the first one shows no cookie, and a reset would end
                    // a sound connection.
                    self.counters.cookies_wrong += 1;
                    return;
                };
                if admission == Admission::Nothing || self.room() == Room::Nothing {
                    // The peer sends its data again, and the acknowledgement with it.
                    self.counters.drop_accept += 1;
                    return;
                }
                self.counters.cookies_accepted += 1;
                self.inherit(now, port, &mut connection);
                let claim = self.listeners.claim(port, true);
                self.insert(flow, connection, claim);
                self.input(now, flow, segment);
                return;
            }
        }
        self.answer_refusal(flow, segment);
    }

    fn input_time_wait(
        &mut self,
        now: Instant,
        flow: &TcpFlow,
        segment: &Segment<'_>,
    ) -> Option<Verdict> {
        if self.time_waits.len() == 0 {
            return None;
        }
        let until = now.after(self.config.time_wait_ns);
        let (clock, timestamps) = (clock(now, self.clock_offset(flow)), self.config.timestamps);
        self.time_waits.input((now, until), flow, segment, clock, timestamps)
    }

    /// Resets a peer for a segment without a connection. RFC 9293 has programs choose the fields
    /// of the IP header for connections alone: the reset has those of the host.
    fn answer_refusal(&mut self, flow: TcpFlow, segment: &Segment<'_>) {
        if let Some(tcp) = refusal(segment) {
            self.answer(flow, tcp, self.config.fields());
        }
    }

    /// Gives a new connection the options of the listener that it is for.
    fn inherit(&self, now: Instant, port: u16, connection: &mut Connection) {
        let settings = self.listeners.settings(port);
        if settings != TcpSettings::default() {
            connection.set(now, &self.config, settings);
        }
    }

    /// Takes a SYN for a listener. `last` is the number behind the last of an earlier connection in
    /// TIME-WAIT, which is remembered until the handshake is over.
    fn input_syn(
        &mut self,
        now: Instant,
        flow: TcpFlow,
        syn: &Tcp,
        admission: Admission,
        last: Option<u32>,
    ) {
        match (admission, self.room()) {
            (Admission::Nothing, _) | (_, Room::Nothing) => self.counters.drop_accept += 1,
            // A cookie cannot be beyond the last number.
            (Admission::Cookie, _) | (_, Room::Little) if last.is_some() => {
                self.counters.drop_accept += 1;
            }
            (Admission::Cookie, _) | (_, Room::Little) => self.answer_cookie(now, flow, syn),
            (Admission::HalfOpen, Room::Enough) => {
                let (initial, offset) = (self.initial(now, &flow, last), self.clock_offset(&flow));
                let accepted = Connection::accept(now, &self.config, syn, initial, offset);
                let Some(mut connection) = accepted else { return };
                self.inherit(now, flow.local.port(), &mut connection);
                self.counters.time_waits_reopened += u64::from(last.is_some());
                let claim = self.listeners.claim(flow.local.port(), false);
                self.insert(flow, connection, claim);
            }
        }
    }

    /// Answers a SYN without memory of it.
    fn answer_cookie(&mut self, now: Instant, flow: TcpFlow, syn: &Tcp) {
        let config = &self.config;
        let mut agreed = Agreed::by(config, syn);
        if !agreed.timestamps {
            // The cookie itself has no room for the other options.
            agreed = Agreed::default();
        }
        let clock = clock(now, self.clock_offset(&flow));
        let timestamps = syn.options.timestamps.filter(|_| agreed.timestamps).map(|(value, _)| {
            let shift = syn.options.window_scale.unwrap_or(0).min(super::MAX_SHIFT);
            (cookies::timestamp(clock, &agreed, shift), value)
        });
        let mss = syn.options.mss.unwrap_or(DEFAULT_MSS as u16);
        let ecn = if agreed.ecn { Flags::ECE } else { Flags::default() };
        let answer = Tcp {
            from: flow.local.port(),
            to: flow.peer.port(),
            seq: self.cookies.make(now, &flow, syn.seq, mss),
            ack: syn.seq.wrapping_add(1),
            flags: Flags::SYN.with(Flags::ACK).with(ecn),
            window: config.syn_window(),
            urgent: 0,
            options: TcpOptions {
                mss: Some(config.mss),
                window_scale: agreed.window_scaling.then(|| config.window_shift()),
                sack_permitted: agreed.sack,
                timestamps,
                sack: SackBlocks::default(),
            },
        };
        self.listeners.sent_cookie(flow.local.port(), now.after(VALID_NS));
        self.counters.cookies_sent += 1;
        // RFC 9293 MUST-48: a cookie is the first segment of a connection.
        let fields = self.listeners.settings(flow.local.port()).fields(&self.config);
        self.answer(flow, answer, fields);
    }

    /// Returns the connection of a peer that acknowledges a cookie.
    fn by_cookie(
        &self,
        now: Instant,
        flow: &TcpFlow,
        tcp: &Tcp,
        checked: Checked,
    ) -> Option<Connection> {
        let Checked::Valid { mss } = checked else { return None };
        let (seq, initial) = (tcp.seq.wrapping_sub(1), tcp.ack.wrapping_sub(1));
        let offset = self.clock_offset(flow);
        let (mut options, mut wants_ecn) = (TcpOptions::default(), false);
        if let Some((value, echo)) = tcp.options.timestamps.filter(|_| self.config.timestamps) {
            (options, wants_ecn) = cookies::options(echo, clock(now, offset).wrapping_sub(echo))?;
            options.timestamps = Some((value, 0));
        }
        options.mss = Some(mss);
        let ecn = if wants_ecn { Flags::ECE.with(Flags::CWR) } else { Flags::default() };
        let flags = Flags::SYN.with(ecn);
        let syn = Tcp { from: tcp.from, to: tcp.to, seq, flags, options, ..Tcp::default() };
        Connection::resume(now, &self.config, &syn, initial, offset)
    }
}

impl Connection {
    /// Returns the connection of a peer whose SYN was answered without memory of it. The peer's
    /// acknowledgement has to follow, with its window.
    fn resume(
        now: Instant,
        config: &TcpConfig,
        syn: &Tcp,
        initial: u32,
        clock_offset: u32,
    ) -> Option<Self> {
        let mut connection = Self::accept(now, config, syn, initial, clock_offset)?;
        let send = &mut connection.send;
        send.una = send.initial + 1;
        (send.next, send.recover) = (send.una, send.una);
        connection.receive.acknowledge();
        connection.state = TcpState::Established;
        Some(connection)
    }
}
