//! The time for which a message waits for its receive.
//!
//! InfiniBand defines two numbers: the peer's retries (`rnr_retry_count` in `rdma_conn_param`) and
//! the delay of each (`min_rnr_timer` of the queue pair). This engine sends nothing again and keeps
//! a message for their product.

/// The value of `rnr_retry_count` by which a program requests retries without end.
pub(super) const FOREVER: u8 = 7;
/// The bits of `min_rnr_timer`, an index into the table of delays.
const TIMER: usize = 0x1f;
/// The delays of `min_rnr_timer` in units of 10 µs (InfiniBand Architecture Specification 1.7,
/// table 45). rdma_cm sets 0.
const TIMERS: [u64; TIMER + 1] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024,
    1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];
const UNIT_NS: u64 = 10_000;

/// The time for which a message waits for its receive: the retries times the delay of each; `None`
/// for retries without end.
pub(super) fn timeout_ns(retries: u8, timer: u8) -> Option<u64> {
    let each_ns = TIMERS[usize::from(timer) & TIMER] * UNIT_NS;
    (retries < FOREVER).then_some(u64::from(retries) * each_ns)
}

#[cfg(test)]
mod tests {
    use super::timeout_ns;

    #[test]
    fn times_are_infinibands() {
        assert_eq!(timeout_ns(0, 0), Some(0));
        assert_eq!(timeout_ns(1, 0), Some(655_360_000));
        assert_eq!(timeout_ns(6, 1), Some(60_000));
        assert_eq!(timeout_ns(2, 12), Some(2 * 640_000));
        assert_eq!(timeout_ns(1, 31), Some(491_520_000));
        assert_eq!((timeout_ns(7, 1), timeout_ns(255, 1)), (None, None));
    }
}
