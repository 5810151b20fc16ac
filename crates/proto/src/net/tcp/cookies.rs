//! SYN cookies (RFC 4987 3.6): initial sequence numbers from which a host knows, when they come
//! back, that it has answered a SYN, and with what.
//!
//! ```text
//!  cookie    = hash(flow) + number + period · 2²⁴ + (hash(flow, number, period) + class) mod 2²⁴
//!  timestamp = u26 clock  u1 ECN  u1 SACK  u4 window shift, 15 without scaling
//! ```
//! The number is that of the SYN. The class stands for the peer's MSS. The timestamp is that of the
//! SYN and ACK, which the peer echoes: without timestamps a connection has none of these options.
//!
//! Always: a cookie is valid for one to two periods. A guess is right once in 2²⁸ times.

use core::hash::BuildHasher as _;

use super::connection::Agreed;
use super::flow::TcpFlow;
use crate::rand::KeyedHash;
use crate::time::SECOND;
use crate::wire::tcp::TcpOptions;
use crate::{Instant, Rng};

/// The length of a period.
const PERIOD_NS: u64 = 60 * SECOND;
/// The number of periods, from that of the cookie on, in which it is valid.
const PERIODS: u32 = 2;
/// The time for which a cookie is valid at most.
pub(super) const VALID_NS: u64 = PERIODS as u64 * PERIOD_NS;
/// The place of the period in a cookie.
const PERIOD_SHIFT: u32 = 24;
const HASH_MASK: u32 = (1 << PERIOD_SHIFT) - 1;
/// The classes of MSS: the least, the defaults of IPv4 and IPv6, tunnels, PPPoE, Ethernet, jumbo
/// frames and segments of 64 KB. A peer gets the largest that is not more than its own.
const CLASSES: [u16; 8] = [48, 536, 1220, 1360, 1440, 1460, 8940, 65_475];

/// The bits of a timestamp that stand for options.
const OPTIONS_MASK: u32 = 0x3f;
const SHIFT_MASK: u32 = 0x0f;
const NO_SCALING: u32 = 0x0f;
const SACK: u32 = 0x10;
const ECN: u32 = 0x20;

/// The verdict about a cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Checked {
    /// The host has sent the cookie to a peer with this MSS.
    Valid { mss: u16 },
    /// The host has sent the cookie too long ago.
    Old,
    /// The cookie is forged, or the segment is not the first of its peer.
    Wrong,
}

/// The maker of cookies, with its secret.
#[derive(Debug)]
pub(super) struct Cookies(KeyedHash);

impl Cookies {
    pub(super) fn new(rng: &mut Rng) -> Self {
        Self(KeyedHash::new(rng))
    }

    /// Returns the initial sequence number that answers to a SYN. `seq` is the number of the SYN,
    /// `mss` what the peer offers.
    pub(super) fn make(&self, now: Instant, flow: &TcpFlow, seq: u32, mss: u16) -> u32 {
        let class = CLASSES.iter().rposition(|&class| class <= mss).unwrap_or(0) as u32;
        let period = period(now);
        let low = self.low(flow, seq, period).wrapping_add(class) & HASH_MASK;
        self.start(flow, seq).wrapping_add(period << PERIOD_SHIFT).wrapping_add(low)
    }

    /// Returns whether `cookie` is one that answered to the SYN with the number `seq`.
    pub(super) fn check(&self, now: Instant, flow: &TcpFlow, seq: u32, cookie: u32) -> Checked {
        let rest = cookie.wrapping_sub(self.start(flow, seq));
        let current = period(now);
        let age = current.wrapping_sub(rest >> PERIOD_SHIFT) & (u32::MAX >> PERIOD_SHIFT);
        let low = self.low(flow, seq, current.wrapping_sub(age));
        let class = (rest & HASH_MASK).wrapping_sub(low) & HASH_MASK;
        match CLASSES.get(class as usize) {
            Some(&mss) if age < PERIODS => Checked::Valid { mss },
            Some(_) => Checked::Old,
            None => Checked::Wrong,
        }
    }

    fn start(&self, flow: &TcpFlow, seq: u32) -> u32 {
        (self.0.hash_one(flow) as u32).wrapping_add(seq)
    }

    fn low(&self, flow: &TcpFlow, seq: u32, period: u32) -> u32 {
        self.0.hash_one((flow, seq, period)) as u32
    }
}

/// Returns the number of the period that `now` is in.
fn period(now: Instant) -> u32 {
    (now.as_ns() / PERIOD_NS) as u32
}

/// Returns the timestamp of a SYN and ACK that has the options in its low bits. It is not ahead of
/// `clock`. `shift` is that of the peer's windows.
pub(super) fn timestamp(clock: u32, agreed: &Agreed, shift: u8) -> u32 {
    let mut options =
        if agreed.window_scaling { u32::from(shift) & SHIFT_MASK } else { NO_SCALING };
    if agreed.sack {
        options |= SACK;
    }
    if agreed.ecn {
        options |= ECN;
    }
    let value = clock & !OPTIONS_MASK | options;
    if value > clock { value.wrapping_sub(OPTIONS_MASK + 1) } else { value }
}

/// Returns the options of the peer's SYN from the timestamp that its acknowledgement echoes, and
/// whether the peer wants ECN. `age` is the time since that timestamp by this end's clock, in
/// milliseconds.
pub(super) fn options(echo: u32, age: u32) -> Option<(TcpOptions, bool)> {
    let oldest = (VALID_NS / crate::time::MS) as u32 + OPTIONS_MASK + 1;
    let shift = echo & SHIFT_MASK;
    let options = TcpOptions {
        window_scale: (shift != NO_SCALING).then_some(shift as u8),
        sack_permitted: echo & SACK != 0,
        ..TcpOptions::default()
    };
    (age <= oldest).then_some((options, echo & ECN != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(port: u16) -> TcpFlow {
        TcpFlow { local: ([10, 0, 0, 1], 80).into(), peer: ([10, 0, 0, 2], port).into() }
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_ns(seconds * SECOND)
    }

    #[test]
    fn a_cookie_tells_the_class_of_the_mss() {
        let cookies = Cookies::new(&mut Rng::seeded(1));
        for (mss, class) in
            [(0, 48), (536, 536), (1219, 536), (1460, 1460), (1461, 1460), (u16::MAX, 65_475)]
        {
            for seq in [0, 7, u32::MAX] {
                let cookie = cookies.make(at(100), &flow(1), seq, mss);
                let wanted = Checked::Valid { mss: class };
                assert_eq!(cookies.check(at(101), &flow(1), seq, cookie), wanted, "{mss}");
            }
        }
    }

    /// A cookie is of one flow and one SYN, and ends after one to two minutes.
    #[test]
    fn a_cookie_of_another_flow_or_time_is_wrong() {
        let cookies = Cookies::new(&mut Rng::seeded(1));
        let cookie = cookies.make(at(119), &flow(1), 5, 1460);
        let valid = Checked::Valid { mss: 1460 };
        for (now, wanted) in [
            (119, valid),
            (120, valid),
            (179, valid),
            (180, Checked::Old),
            (119 + 200 * 60, Checked::Old),
        ] {
            assert_eq!(cookies.check(at(now), &flow(1), 5, cookie), wanted, "{now} s");
        }
        let is_wrong =
            |now, port, seq| cookies.check(at(now), &flow(port), seq, cookie) == Checked::Wrong;
        // The period has eight bits, and that is not all of it.
        assert!(is_wrong(119 + 256 * 60, 1, 5) && is_wrong(119, 2, 5) && is_wrong(119, 1, 6));
        let other = Cookies::new(&mut Rng::seeded(2));
        assert_eq!(other.check(at(119), &flow(1), 5, cookie), Checked::Wrong);
    }

    #[test]
    fn a_guess_is_wrong() {
        let cookies = Cookies::new(&mut Rng::seeded(1));
        let mut rng = Rng::seeded(3);
        let guesses = (0..300_000).filter(|_| {
            let checked = cookies.check(at(100), &flow(1), rng.u32(), rng.u32());
            matches!(checked, Checked::Valid { .. })
        });
        assert_eq!(guesses.count(), 0);
    }

    #[test]
    fn a_timestamp_keeps_the_options_and_is_not_ahead() {
        for clock in [0_u32, 1, 63, 64, 1_000_000, u32::MAX] {
            for bits in 0..64_u32 {
                let scale = (bits & 15 < 15).then_some(bits as u8 & 15);
                let (sack, ecn) = (bits & 16 != 0, bits & 32 != 0);
                let agreed =
                    Agreed { timestamps: true, window_scaling: scale.is_some(), sack, ecn };
                let value = timestamp(clock, &agreed, scale.unwrap_or(0));
                let age = clock.wrapping_sub(value);
                assert!(age < 64, "{clock} {value}");
                let (options, wants_ecn) = options(value, age).unwrap();
                assert_eq!((options.window_scale, options.sack_permitted), (scale, sack));
                assert_eq!(wants_ecn, ecn);
            }
        }
        assert_eq!(options(1, 120_065), None, "an echo of long ago");
        assert_eq!(options(1, u32::MAX), None, "an echo of the future");
    }
}
