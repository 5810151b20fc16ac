use super::*;

const MAC: Mac = Mac([2, 0, 0xde, 0xad, 0xbe, 0xef]);

/// Runs an XDP program on a frame, with the instructions that our programs use. Returns true if the
/// program sends the frame to a socket. A load beyond the frame's end, which the kernel's verifier
/// would refuse, fails the test.
fn ours(program: &[Insn], frame: &[u8]) -> bool {
    const BASE: u64 = 1 << 20;
    let mut r = [0_u64; 11];
    let mut at = 0;
    loop {
        let Insn { code, registers, offset, value } = program[at];
        let (to, from) = (usize::from(registers & 15), usize::from(registers >> 4));
        at += 1;
        let load = |n: usize| {
            let place = (r[from] - BASE) as usize + offset as usize;
            assert!(place + n <= frame.len(), "a load past the end");
            // As it lies in memory, in the machine's order.
            let bytes = frame[place..place + n].iter().rev().fold(0, |v, b| v << 8 | u64::from(*b));
            if cfg!(target_endian = "little") { bytes } else { bytes.swap_bytes() >> (64 - 8 * n) }
        };
        let jump = |holds: bool| if holds { (at as i64 + i64::from(offset)) as usize } else { at };
        let wide = i64::from(value).cast_unsigned();
        match code {
            LOAD32 if from == usize::from(R1) || from == usize::from(CONTEXT) => {
                r[to] = match offset {
                    0 => BASE,
                    4 => BASE + frame.len() as u64,
                    _ => 0,
                }
            }
            LOAD8 => r[to] = load(1),
            LOAD16 => r[to] = load(2),
            LOAD32 => r[to] = load(4),
            LOAD_MAP => at += 1,
            MOVE => r[to] = r[from],
            MOVE_VALUE => r[to] = wide,
            ADD => r[to] += r[from],
            ADD_VALUE => r[to] += wide,
            AND_VALUE => r[to] &= wide,
            SHIFT_LEFT => r[to] <<= wide,
            GOTO => at = jump(true),
            IF_EQUAL => at = jump(r[to] == wide),
            IF_NOT => at = jump(r[to] != wide),
            IF_NOT_32 => at = jump(r[to] as u32 != value.cast_unsigned()),
            IF_SET => at = jump(r[to] & wide != 0),
            IF_ABOVE => at = jump(r[to] > r[from]),
            CALL => return true,
            EXIT => return false,
            other => panic!("{other:#x}"),
        }
    }
}

fn ethernet(to: [u8; 6], kind: u16, rest: &[&[u8]]) -> Vec<u8> {
    [&to[..], &[2, 0, 0, 0, 0, 9], &kind.to_be_bytes(), &rest.concat()].concat()
}

fn ipv4(to: [u8; 4], protocol: u8, fragment: u16, options: usize, port: u16) -> Vec<u8> {
    let [a, b] = fragment.to_be_bytes();
    let head = [0x45 + (options / 4) as u8, 0, 0, 0, 0, 0, a, b, 64, protocol, 0, 0, 10, 0, 0, 9];
    ethernet(MAC.0, 0x0800, &[&head, &to, &vec![0; options], &[0, 9], &port.to_be_bytes()])
}

fn ipv6(to: [u8; 16], next: u8, rest: &[u8]) -> Vec<u8> {
    ethernet(MAC.0, 0x86dd, &[&[0x60, 0, 0, 0, 0, 0, next, 64], &[9; 16], &to, rest])
}

#[test]
fn without_an_address_the_hardware_address_decides() {
    let p = program(MAC, Steer::default(), 5);
    assert!(ours(&p, &ethernet(MAC.0, 0x88b5, &[])));
    assert!(ours(&p, &ethernet([0xff; 6], 0x0806, &[])));
    for i in 0..6 {
        let mut other = MAC.0;
        other[i] ^= 2;
        assert!(!ours(&p, &ethernet(other, 0x88b5, &[])), "{i}");
    }
    assert!(!ours(&p, &[0; 13]) && !ours(&p, &[]));
}

#[test]
fn an_ipv4_address_takes_its_packets_and_who_asks_for_it() {
    let p = program(MAC, Steer { addr: Some([10, 0, 0, 200].into()), port: 0 }, 5);
    assert!(ours(&p, &ipv4([10, 0, 0, 200], 1, 0, 0, 0)));
    assert!(ours(&p, &ipv4([10, 0, 0, 200], 17, 0x1234, 8, 9)));
    assert!(!ours(&p, &ipv4([10, 0, 0, 201], 17, 0, 0, 9)));
    let arp = |target: [u8; 4]| ethernet([0xff; 6], 0x0806, &[&[0; 24], &target]);
    assert!(ours(&p, &arp([10, 0, 0, 200])));
    assert!(!ours(&p, &arp([10, 0, 0, 1])));
    assert!(!ours(&p, &ethernet(MAC.0, 0x88b5, &[&[10; 40]])));
}

#[test]
fn of_datagrams_and_segments_a_port_takes_its_own() {
    let p = program(MAC, Steer { addr: Some([10, 0, 0, 200].into()), port: 700 }, 5);
    for options in [0, 4, 40] {
        for protocol in [6, 17] {
            assert!(ours(&p, &ipv4([10, 0, 0, 200], protocol, 0x4000, options, 700)));
            assert!(!ours(&p, &ipv4([10, 0, 0, 200], protocol, 0, options, 701)));
            assert!(ours(&p, &ipv4([10, 0, 0, 200], protocol, 3, options, 701)));
            assert!(!ours(&p, &ipv4([10, 0, 0, 20], protocol, 0, options, 700)));
        }
        assert!(ours(&p, &ipv4([10, 0, 0, 200], 1, 0, options, 9)));
    }
    assert!(ours(&p, &ethernet([0xff; 6], 0x0806, &[&[0; 24], &[10, 0, 0, 200]])));
    assert!(!ours(&p, &ethernet([0xff; 6], 0x0806, &[&[0; 24], &[10, 0, 0, 201]])));
}

#[test]
fn an_ipv6_address_takes_its_packets_and_who_asks_for_it() {
    let ip = [0xfd, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0x80, 0xff, 12, 13, 14];
    let group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 12, 13, 14];
    let all = program(MAC, Steer { addr: Some(ip.into()), port: 0 }, 5);
    let one = program(MAC, Steer { addr: Some(ip.into()), port: 7 }, 5);
    let datagram = [0, 9, 0, 7, 0, 0, 0, 0];
    assert!(ours(&all, &ipv6(ip, 17, &datagram)) && ours(&one, &ipv6(ip, 17, &datagram)));
    let other = [0, 9, 0, 8, 0, 0, 0, 0];
    assert!(
        ours(&all, &ipv6(ip, 17, &other))
            && !ours(&one, &ipv6(ip, 17, &other))
            && !ours(&one, &ipv6(ip, 6, &other))
    );
    assert!(ours(&all, &ipv6(ip, 58, &[])) && ours(&one, &ipv6(ip, 58, &[128, 0, 0, 7, 0])));
    for i in 0..16 {
        let mut other = ip;
        other[i] ^= 1;
        assert!(
            !ours(&all, &ipv6(other, 17, &datagram)) && !ours(&one, &ipv6(other, 17, &datagram)),
            "{i}"
        );
    }
    let solicitation = |target: [u8; 16]| [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target].concat();
    assert!(
        ours(&all, &ipv6(group, 58, &solicitation(ip)))
            && ours(&one, &ipv6(group, 58, &solicitation(ip)))
    );
    assert!(!ours(&all, &ipv6(group, 58, &solicitation(group))));
    assert!(!ours(&all, &ipv6(group, 17, &datagram)));
    assert!(!ours(&all, &ipv4([10, 0, 0, 200], 17, 0, 0, 7)));
}

/// Runs the programs on frames of every kind, cut at every length: no program reads past the end.
#[test]
fn no_program_reads_past_a_frames_end() {
    let ip6 = [0xfd; 16];
    let steers = [
        Steer::default(),
        Steer { addr: Some([10, 0, 0, 200].into()), port: 0 },
        Steer { addr: Some([10, 0, 0, 200].into()), port: 9 },
        Steer { addr: Some(ip6.into()), port: 0 },
        Steer { addr: Some(ip6.into()), port: 9 },
    ];
    let group = [0xff; 16];
    let frames = [
        ipv4([10, 0, 0, 200], 17, 0, 40, 9),
        ethernet([0xff; 6], 0x0806, &[&[0; 24], &[10, 0, 0, 200]]),
        ipv6(ip6, 17, &[0, 9, 0, 9]),
        ipv6(group, 58, &[&[135, 0, 0, 0, 0, 0, 0, 0][..], &ip6].concat()),
    ];
    for steer in steers {
        let p = program(MAC, steer, 5);
        for frame in &frames {
            for len in 0..=frame.len() {
                ours(&p, &frame[..len]);
            }
        }
    }
}
