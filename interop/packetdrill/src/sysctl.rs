//! The system controls that a script has set by `sysctl`: `interop/packetdrill/run` has lines of
//! `name=value` written to a file instead, the newest last.

use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::path::Path;

use sprat_proto::net::tcp::{CongestionControl, TcpConfig};

/// The size of the receive buffer whose window scale is Linux's: 8, by a `tcp_rmem` of 15 MB.
const RECEIVE_BYTES: u32 = 15 << 20;
/// The size of the send buffer: the default that packetdrill's scripts give `tcp_wmem`.
const SEND_BYTES: u32 = 256 << 10;

/// No system control: the delay of acknowledgements in milliseconds. Linux delays none while a
/// connection is young.
const DELAY: &str = "delayed_ack_ms";

/// No system control: the MTU of the device. packetdrill's own runner has 1520 for IPv6, so that
/// scripts see the same MSS.
const MTU: &str = "device_mtu=";

/// Returns the MTU that the file has for the device, if any.
pub(crate) fn mtu(path: Option<&Path>) -> Option<usize> {
    let text = read_to_string(path?).ok()?;
    text.lines().find_map(|line| line.strip_prefix(MTU))?.trim().parse().ok()
}

/// Returns true if a listener agrees to ECN.
pub(crate) fn answers_ecn(path: Option<&Path>) -> bool {
    let text = path.and_then(|path| read_to_string(path).ok()).unwrap_or_default();
    let last = text.lines().rev().find_map(|line| line.split_once("tcp_ecn="));
    last.is_some_and(|(_, value)| matches!(value.trim(), "1" | "2"))
}

/// Returns the options of TCP that a script has chosen.
pub(crate) fn config(path: Option<&Path>) -> TcpConfig {
    let text = path.and_then(|path| read_to_string(path).ok()).unwrap_or_default();
    let mut values = BTreeMap::new();
    for (name, value) in text.lines().filter_map(|line| line.split_once('=')) {
        // `net.ipv4.tcp_sack` and `/proc/sys/net/ipv4/tcp_sack` are the same.
        let name = name.rsplit(['.', '/']).next().unwrap_or(name);
        values.insert(name.trim(), value.trim());
    }
    let number = |name: &str| values.get(name).and_then(|value| value.parse::<u64>().ok());
    let place = |name: &str, i: usize| {
        let value = values.get(name)?.split_whitespace().nth(i)?;
        value.parse::<u32>().ok()
    };
    let is_on = |name: &str| number(name).unwrap_or(1) != 0;
    let mut config = TcpConfig {
        timestamps: is_on("tcp_timestamps"),
        sack: is_on("tcp_sack"),
        window_scaling: is_on("tcp_window_scaling"),
        // Linux's 2 answers to a peer that asks, and does not ask: `listen` sees to that.
        ecn: number("tcp_ecn") == Some(1),
        receive_bytes: place("tcp_rmem", 2).unwrap_or(RECEIVE_BYTES),
        send_bytes: place("tcp_wmem", 1).unwrap_or(SEND_BYTES),
        ..TcpConfig::default()
    };
    if values.get("tcp_congestion_control") == Some(&"reno") {
        config.congestion = CongestionControl::Reno;
    }
    if let Some(ms) = number(DELAY) {
        config.delayed_ack_ns = ms * 1_000_000;
    }
    if let Some(retries) = number("tcp_syn_retries") {
        config.syn_retries = retries.min(u8::MAX.into()) as u8;
    }
    config
}
