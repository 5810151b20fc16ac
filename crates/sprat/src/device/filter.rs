//! The filter of an AF_PACKET socket, as a program for the kernel's classic filter machine (bpf(2),
//! socket(7)).
//!
//! It accepts frames to our hardware address and to groups. If an IP address or a port is given, it
//! accepts of IPv4 frames to our hardware address only those to it. A later fragment has no port
//! and passes by its address.

use std::net::IpAddr;

use sprat_proto::device::Mac;
use sprat_sys::socket::Op;

use super::Steer;

// linux/bpf_common.h: load a word, half or byte at an absolute or indexed place; jump; return.
const LOAD32: u16 = 0x20;
const LOAD16: u16 = 0x28;
const LOAD8: u16 = 0x30;
const LOAD16_X: u16 = 0x48;
const LOAD_X_HEADER: u16 = 0xb1;
const IF_EQUAL: u16 = 0x15;
const IF_SET: u16 = 0x45;
const RETURN: u16 = 0x06;

const ALL: u32 = u32::MAX;
const IPV4: u32 = 0x0800;
const TCP: u32 = 6;
const UDP: u32 = 17;

/// Returns the filter program that accepts frames to the address `mac`, as far as `steer` wants
/// them.
pub(super) fn program(mac: Mac, steer: Steer) -> Vec<Op> {
    let [a, b, c, d, e, f] = mac.0;
    let low = u32::from_be_bytes([c, d, e, f]);
    let high = u32::from(u16::from_be_bytes([a, b]));
    let mut ops = Vec::new();
    let plain = |code, k| (code, None, None, k);
    // Jumps name their targets, since the offsets are known only at the end.
    let (accept, drop, group) = (Some(Label::Accept), Some(Label::Drop), Some(Label::Group));
    ops.extend([
        plain(LOAD32, 2),
        (IF_EQUAL, None, group, low),
        plain(LOAD16, 0),
        (IF_EQUAL, None, group, high),
    ]);
    if let Some(IpAddr::V4(ip)) = steer.addr {
        ops.extend([plain(LOAD16, 12), (IF_EQUAL, None, accept, IPV4)]);
        ops.extend([plain(LOAD32, 30), (IF_EQUAL, None, drop, u32::from(ip))]);
        if steer.port != 0 {
            ops.extend([plain(LOAD16, 20), (IF_SET, accept, None, 0x1fff), plain(LOAD8, 23)]);
            ops.push((IF_EQUAL, Some(Label::Ports), None, TCP));
            ops.push((IF_EQUAL, None, accept, UDP));
            ops.extend([plain(LOAD_X_HEADER, 14), plain(LOAD16_X, 16)]);
            ops.push((IF_EQUAL, accept, drop, u32::from(steer.port)));
        }
    }
    let ports = ops.iter().position(|op| op.0 == LOAD_X_HEADER).unwrap_or(0);
    let end = ops.len();
    // accept; group: a frame to several stations is accepted; drop.
    let place = |to| match to {
        Label::Accept => end,
        Label::Group => end + 1,
        Label::Drop => end + 3,
        Label::Ports => ports,
    };
    let jump = |from: usize, to: Option<Label>| to.map_or(0, |to| (place(to) - from - 1) as u8);
    let named: Vec<Op> = ops
        .iter()
        .enumerate()
        .map(|(i, &(code, yes, no, k))| Op { code, yes: jump(i, yes), no: jump(i, no), k })
        .collect();
    let last = [
        Op { code: RETURN, yes: 0, no: 0, k: ALL },
        Op { code: LOAD8, yes: 0, no: 0, k: 0 },
        Op { code: IF_SET, yes: 1, no: 0, k: 1 },
        Op { code: RETURN, yes: 0, no: 0, k: 0 },
        Op { code: RETURN, yes: 0, no: 0, k: ALL },
    ];
    [named, last.to_vec()].concat()
}

#[derive(Clone, Copy)]
enum Label {
    Accept,
    Group,
    Drop,
    Ports,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0xde, 0xad, 0xbe, 0xef]);

    /// Runs a filter program on a frame, with the instructions that our programs use. It refuses
    /// any frame that a load goes beyond.
    fn run(program: &[Op], frame: &[u8]) -> Option<u32> {
        let (mut a, mut x, mut at) = (0_u32, 0_u32, 0);
        let load = |from: usize, n: usize| {
            frame
                .get(from..from + n)
                .map(|bytes| bytes.iter().fold(0, |v, b| v << 8 | u32::from(*b)))
        };
        for _ in 0..program.len() {
            let op = program[at];
            at += 1;
            let k = op.k as usize;
            match op.code {
                LOAD32 => a = load(k, 4)?,
                LOAD16 => a = load(k, 2)?,
                LOAD8 => a = load(k, 1)?,
                LOAD16_X => a = load(k + x as usize, 2)?,
                LOAD_X_HEADER => x = (load(k, 1)? & 15) * 4,
                IF_EQUAL => at += usize::from(if a == op.k { op.yes } else { op.no }),
                IF_SET => at += usize::from(if a & op.k != 0 { op.yes } else { op.no }),
                RETURN => return Some(op.k),
                other => panic!("{other:#x}"),
            }
        }
        panic!("it does not end");
    }

    fn frame(
        to: [u8; 6],
        kind: u16,
        ip: [u8; 4],
        protocol: u8,
        fragment: u16,
        options: usize,
        port: u16,
    ) -> Vec<u8> {
        let mut f = [&to[..], &[2, 0, 0, 0, 0, 9], &kind.to_be_bytes()].concat();
        f.extend([0x45 + (options / 4) as u8, 0, 0, 0, 0, 0]);
        f.extend(fragment.to_be_bytes());
        f.extend([64, protocol, 0, 0, 10, 0, 0, 9]);
        f.extend(ip);
        f.extend(vec![0; options]);
        f.extend([0, 9]);
        f.extend(port.to_be_bytes());
        f.extend([0; 16]);
        f
    }

    #[test]
    fn frames_to_us_and_to_groups_pass() {
        let all = program(MAC, Steer::default());
        let passes = |program: &[Op], f: &[u8]| run(program, f).unwrap_or(0) > 0;
        assert!(passes(&all, &frame(MAC.0, 0x88b5, [0; 4], 0, 0, 0, 0)));
        assert!(passes(&all, &frame([0xff; 6], 0x0806, [0; 4], 0, 0, 0, 0)));
        assert!(passes(&all, &frame([1, 0, 0x5e, 0, 0, 1], 0x0800, [224, 0, 0, 1], 17, 0, 0, 7)));
        for i in 0..6 {
            let mut other = MAC.0;
            other[i] ^= 4;
            assert!(!passes(&all, &frame(other, 0x0800, [10, 0, 0, 1], 17, 0, 0, 7)));
        }
        let mine = Steer { addr: Some([10, 0, 0, 1].into()), port: 0 };
        let by_ip = program(MAC, mine);
        assert!(passes(&by_ip, &frame(MAC.0, 0x0800, [10, 0, 0, 1], 17, 0, 0, 7)));
        assert!(!passes(&by_ip, &frame(MAC.0, 0x0800, [10, 0, 0, 2], 17, 0, 0, 7)));
        assert!(passes(&by_ip, &frame(MAC.0, 0x0806, [10, 0, 0, 2], 17, 0, 0, 7)));
        let by_port = program(MAC, Steer { port: 700, ..mine });
        for options in [0, 12, 40] {
            for protocol in [6, 17] {
                assert!(passes(
                    &by_port,
                    &frame(MAC.0, 0x0800, [10, 0, 0, 1], protocol, 0x4000, options, 700)
                ));
                assert!(!passes(
                    &by_port,
                    &frame(MAC.0, 0x0800, [10, 0, 0, 1], protocol, 0, options, 701)
                ));
                assert!(!passes(
                    &by_port,
                    &frame(MAC.0, 0x0800, [10, 0, 0, 3], protocol, 0, options, 700)
                ));
                assert!(passes(
                    &by_port,
                    &frame(MAC.0, 0x0800, [10, 0, 0, 1], protocol, 2, options, 701)
                ));
            }
            assert!(passes(&by_port, &frame(MAC.0, 0x0800, [10, 0, 0, 1], 1, 0, options, 0)));
        }
    }
}
