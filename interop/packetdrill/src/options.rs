//! Socket options, and `TCP_INFO` as far as the connection knows its fields.

use sprat_proto::net::tcp::{TcpInfo, TcpRecovery, TcpState};

use crate::sockets::{Kind, Socket};
use crate::world::{World, note};

/// The length of `struct _tcp_info` of packetdrill.
const INFO: usize = 280;
/// Linux's value of a slow start threshold that was never set.
const NO_THRESHOLD: u32 = 0x7fff_ffff;
/// The number of values of SO_MEMINFO.
const MEMINFO: usize = 9;
const MICROSECOND: u64 = 1000;

/// Sets a socket option. One that the stack does not have fails, and says so.
pub(crate) fn set(
    world: &mut World,
    fd: i32,
    (level, name): (i32, i32),
    value: &[u8],
) -> Result<(), i32> {
    let socket = world.sockets.get_mut(&fd).ok_or(libc::EBADF)?;
    let first = value.first_chunk().map(|four| i32::from_ne_bytes(*four));
    let first = first.ok_or(libc::EINVAL)?;
    let is_on = first != 0;
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR | libc::SO_REUSEPORT | libc::SO_MARK) => {}
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
            // Linux doubles it, for its bookkeeping.
            let bytes = first.saturating_mul(2).max(4608);
            socket.send_bytes = Some(bytes);
            world.tcp().config_mut().send_bytes = bytes as u32;
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
            let bytes = first.saturating_mul(2).max(2304);
            socket.receive_bytes = Some(bytes);
            world.tcp().config_mut().receive_bytes = first.max(1152) as u32;
        }
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let seconds = value.get(4..8).and_then(|four| four.first_chunk());
            socket.resets = is_on && seconds.is_some_and(|four| i32::from_ne_bytes(*four) == 0);
        }
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
            socket.keeps_alive = is_on;
            keep_alive(world, fd);
        }
        (libc::SOL_TCP, libc::TCP_KEEPIDLE) => {
            socket.keep_idle_s = first.max(1) as u64;
            keep_alive(world, fd);
        }
        (libc::SOL_TCP, libc::TCP_NODELAY) => world.tcp().config_mut().no_delay = is_on,
        (libc::SOL_TCP, libc::TCP_MAXSEG) => {
            if !(88..=32_767).contains(&first) {
                return Err(libc::EINVAL);
            }
            socket.segment = first;
            let config = world.tcp().config_mut();
            config.mss = config.mss.min(first as u16);
        }
        (libc::SOL_TCP, libc::TCP_SYNCNT) => {
            world.tcp().config_mut().syn_retries = first.clamp(1, 127) as u8;
        }
        (libc::SOL_TCP, libc::TCP_USER_TIMEOUT) => {
            world.tcp().config_mut().user_timeout_ns = first.max(0) as u64 * 1_000_000;
        }
        _ => {
            note(&format!("not supported: socket option {}", text(level, name)));
            return Err(libc::ENOPROTOOPT);
        }
    }
    Ok(())
}

fn keep_alive(world: &mut World, fd: i32) {
    if let Some(socket) = world.sockets.get(&fd) {
        let idle_ns = socket.keeps_alive.then_some(socket.keep_idle_s * 1_000_000_000);
        world.tcp().config_mut().keep_alive_ns = idle_ns;
    }
}

/// Returns the value of a socket option.
pub(crate) fn read(world: &mut World, fd: i32, (level, name): (i32, i32)) -> Result<Vec<u8>, i32> {
    let socket = world.sockets.get_mut(&fd).ok_or(libc::EBADF)?;
    let number = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => socket.error.take().unwrap_or(0),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
            let set = socket.send_bytes;
            set.unwrap_or_else(|| world.tcp().config_mut().send_bytes as i32)
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
            let set = socket.receive_bytes;
            set.unwrap_or_else(|| world.tcp().config_mut().receive_bytes as i32)
        }
        (libc::SOL_TCP, libc::TCP_NODELAY) => i32::from(world.tcp().config_mut().no_delay),
        (libc::SOL_TCP, libc::TCP_MAXSEG) => {
            let (id, set) = (socket.id(), socket.segment);
            let info = id.and_then(|id| world.tcp().info(id));
            // The value of Linux without a connection.
            info.map_or(if set > 0 { set } else { 536 }, |info| info.mss as i32)
        }
        (libc::SOL_TCP, libc::TCP_INFO) => return Ok(info(world, fd)),
        (libc::SOL_TCP, libc::TCP_CC_INFO) => return Ok(Vec::new()),
        (libc::SOL_SOCKET, libc::SO_MEMINFO) => return Ok(vec![0; 4 * MEMINFO]),
        _ => {
            note(&format!("not supported: socket option {}", text(level, name)));
            return Err(libc::ENOPROTOOPT);
        }
    };
    Ok(number.to_ne_bytes().to_vec())
}

/// Returns `struct tcp_info` of a socket. What the stack does not know is 0.
fn info(world: &mut World, fd: i32) -> Vec<u8> {
    let mut bytes = vec![0; INFO];
    let socket = world.sockets.get(&fd);
    let is_listener = socket.is_some_and(|socket| matches!(socket.kind, Kind::Listener(_)));
    let Some(info) = socket.and_then(Socket::id).and_then(|id| world.tcp().info(id)) else {
        bytes[0] = if is_listener { 10 } else { 7 };
        return bytes;
    };
    bytes[0] = state(info.state);
    bytes[1] = match info.recovery {
        TcpRecovery::None => u8::from(info.sacked_segments > 0),
        TcpRecovery::Reduced => 2,
        TcpRecovery::Fast => 3,
        TcpRecovery::Timeout => 4,
    };
    bytes[2] = info.retries;
    bytes[5] = u8::from(info.timestamps)
        | u8::from(info.sack) << 1
        | u8::from(info.window_scaling.is_some()) << 2
        | u8::from(info.ecn) << 3;
    let (peer, own) = info.window_scaling.unwrap_or((0, 0));
    bytes[6] = peer | own << 4;
    fill(&mut bytes, &info);
    let offered = u32::from(world.tcp().config_mut().mss);
    bytes[84..88].copy_from_slice(&offered.to_ne_bytes());
    bytes
}

/// Writes the numbers of 32 bits.
fn fill(bytes: &mut [u8], info: &TcpInfo) {
    let us = |ns: u64| (ns / MICROSECOND) as u32;
    let segments = |count: u32| count / info.mss.max(1);
    let threshold = match info.slow_start_threshold {
        u32::MAX => NO_THRESHOLD,
        bytes => segments(bytes),
    };
    let values = [
        (8, us(info.timeout_ns)),
        (16, info.mss),
        (24, info.unacknowledged_segments),
        (28, info.sacked_segments),
        // Linux counts what was sent again as lost until it is acknowledged.
        (32, info.lost_segments + info.repeated_segments),
        (36, info.repeated_segments),
        (60, 1500),
        (68, us(info.rtt_ns)),
        (72, us(info.rtt_variation_ns)),
        (76, threshold),
        (80, segments(info.congestion_window)),
        (144, info.unsent_bytes),
        (148, us(info.least_rtt_ns)),
        (228, info.peer_window),
        (232, info.window),
    ];
    for (at, value) in values {
        bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
}

/// Returns Linux's number of a state.
const fn state(state: TcpState) -> u8 {
    match state {
        TcpState::Established => 1,
        TcpState::SynSent => 2,
        TcpState::SynReceived => 3,
        TcpState::FinWait1 => 4,
        TcpState::FinWait2 => 5,
        TcpState::TimeWait => 6,
        TcpState::Closed => 7,
        TcpState::CloseWait => 8,
        TcpState::LastAck => 9,
        TcpState::Closing => 11,
    }
}

/// Returns the name of an option that the stack does not have.
fn text(level: i32, name: i32) -> String {
    let known = match (level, name) {
        (libc::SOL_TCP, libc::TCP_FASTOPEN) => "TCP_FASTOPEN",
        (libc::SOL_TCP, libc::TCP_FASTOPEN_CONNECT) => "TCP_FASTOPEN_CONNECT",
        (libc::SOL_TCP, 33) => "TCP_FASTOPEN_KEY",
        (libc::SOL_TCP, libc::TCP_NOTSENT_LOWAT) => "TCP_NOTSENT_LOWAT",
        (libc::SOL_TCP, libc::TCP_CORK) => "TCP_CORK",
        (libc::SOL_TCP, 36) => "TCP_INQ",
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => "SO_ZEROCOPY",
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING) => "SO_TIMESTAMPING",
        (libc::SOL_IP, libc::IP_TOS) => "IP_TOS",
        (libc::SOL_IP, libc::IP_MTU_DISCOVER) => "IP_MTU_DISCOVER",
        _ => return format!("{level}/{name}"),
    };
    known.into()
}
