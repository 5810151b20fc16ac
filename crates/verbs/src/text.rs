//! The strings that programs print for verbs' enumerations, and rates.
//!
//! The strings are those of rdma-core, since scripts search for them.

use std::ffi::{CStr, c_char, c_int};

use crate::entry::export;

const UNKNOWN: &CStr = c"unknown";

/// The strings that programs print for `enum ibv_node_type`, from 1.
const NODES: [&CStr; 7] = [
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

/// The strings that programs print for `enum ibv_port_state`.
const PORTS: [&CStr; 6] =
    [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

/// The strings that programs print for `enum ibv_event_type`.
const EVENTS: [&CStr; 20] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

/// The strings that programs print for `enum ibv_wc_status`.
const STATUS: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

/// The strings that programs print for `enum rdma_cm_event_type`.
const CONNECTIONS: [&CStr; 18] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
    c"RDMA_CM_EVENT_ADDRINFO_ERROR",
];

fn connection_named(event: c_int) -> &'static CStr {
    let known = usize::try_from(event).ok().and_then(|event| CONNECTIONS.get(event));
    known.copied().unwrap_or(c"UNKNOWN EVENT")
}

/// The name of an event of rdma_cm, for the log.
pub(crate) fn connection_event(event: c_int) -> &'static str {
    connection_named(event).to_str().unwrap_or_default().trim_start_matches("RDMA_CM_EVENT_")
}

/// Each `enum ibv_rate`, its multiple of 2.5 Gb/s (none for lanes of 14 and 25 Gb/s) and its Mb/s.
const RATES: [(c_int, Option<c_int>, c_int); 23] = [
    (2, Some(1), 2_500),
    (5, Some(2), 5_000),
    (3, Some(4), 10_000),
    (6, Some(8), 20_000),
    (4, Some(12), 30_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
];
/// `IBV_RATE_MAX`: the rate without a limit.
const NO_LIMIT: c_int = 0;

fn name(names: &[&'static CStr], number: c_int) -> *const c_char {
    let name = usize::try_from(number).ok().and_then(|n| names.get(n).copied());
    name.unwrap_or(UNKNOWN).as_ptr()
}

export! {
    /// Returns the string that programs print for an `enum ibv_node_type`.
    null fn ibv_node_type_str(kind: c_int) -> *const c_char {
        Ok(name(&NODES, kind.saturating_sub(1)))
    }

    /// Returns the string that programs print for an `enum ibv_port_state`.
    null fn ibv_port_state_str(state: c_int) -> *const c_char {
        Ok(name(&PORTS, state))
    }

    /// Returns the string that programs print for an `enum ibv_event_type`.
    null fn ibv_event_type_str(event: c_int) -> *const c_char {
        Ok(name(&EVENTS, event))
    }

    /// Returns the string that programs print for an `enum ibv_wc_status`.
    null fn ibv_wc_status_str(status: c_int) -> *const c_char {
        Ok(name(&STATUS, status))
    }

    /// Returns the string that programs print for an `enum rdma_cm_event_type`.
    null fn sprat_rdma_event_str(event: c_int) -> *const c_char {
        Ok(connection_named(event).as_ptr())
    }
}

export! {
    /// The multiple of 2.5 Gb/s that equals an `enum ibv_rate`, or -1.
    plain fn ibv_rate_to_mult(rate: c_int) -> c_int {
        Ok(RATES.iter().find(|r| r.0 == rate).and_then(|r| r.1).unwrap_or(-1))
    }

    /// The `enum ibv_rate` that equals a multiple of 2.5 Gb/s.
    plain fn mult_to_ibv_rate(multiple: c_int) -> c_int {
        Ok(RATES.iter().find(|r| r.1 == Some(multiple)).map_or(NO_LIMIT, |r| r.0))
    }

    /// The rate in Mb/s of an `enum ibv_rate`, or -1.
    plain fn ibv_rate_to_mbps(rate: c_int) -> c_int {
        Ok(RATES.iter().find(|r| r.0 == rate).map_or(-1, |r| r.2))
    }

    /// The `enum ibv_rate` that equals a rate in Mb/s.
    plain fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
        Ok(RATES.iter().find(|r| r.2 == mbps).map_or(NO_LIMIT, |r| r.0))
    }

    /// Does nothing and succeeds: registered memory is not pinned, so a fork does not affect it.
    plain fn ibv_fork_init() -> c_int {
        Ok(0)
    }

    /// Returns `IBV_FORK_UNNEEDED`: this library needs no preparation for a fork.
    plain fn ibv_is_fork_initialized() -> c_int {
        Ok(2)
    }

    /// Does nothing and succeeds: no memory must be withheld from a forked child, since registered
    /// memory is not pinned.
    plain fn ibv_dontfork_range(_at: *mut u8, _bytes: usize) -> c_int {
        Ok(0)
    }

    /// Does nothing and succeeds: this library never withholds memory from a forked child.
    plain fn ibv_dofork_range(_at: *mut u8, _bytes: usize) -> c_int {
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(at: *const c_char) -> &'static str {
        // SAFETY: The functions of this file return constant strings.
        unsafe { CStr::from_ptr(at) }.to_str().unwrap()
    }

    #[test]
    fn numbers_have_names_and_others_none() {
        assert_eq!(text(ibv_node_type_str(4)), "iWARP NIC");
        assert_eq!(text(ibv_wc_status_str(5)), "Work Request Flushed Error");
        assert_eq!(text(ibv_port_state_str(4)), "active");
        assert_eq!(text(ibv_event_type_str(16)), "last WQE reached");
        assert_eq!(text(sprat_rdma_event_str(9)), "RDMA_CM_EVENT_ESTABLISHED");
        for number in [c_int::MIN, -1, 24, c_int::MAX] {
            assert_eq!(text(ibv_node_type_str(number)), "unknown");
            assert_eq!(text(ibv_wc_status_str(number)), "unknown");
            assert_eq!(text(sprat_rdma_event_str(number)), "UNKNOWN EVENT");
        }
    }

    #[test]
    fn rates_go_there_and_back() {
        for (rate, multiple, mbps) in RATES {
            assert_eq!((ibv_rate_to_mbps(rate), mbps_to_ibv_rate(mbps)), (mbps, rate));
            assert_eq!(ibv_rate_to_mult(rate), multiple.unwrap_or(-1));
            assert!(multiple.is_none_or(|m| mult_to_ibv_rate(m) == rate));
        }
        assert_eq!((ibv_rate_to_mbps(0), mbps_to_ibv_rate(7), ibv_rate_to_mult(-3)), (-1, 0, -1));
    }
}
