//! As much of pcap, Ethernet, IPv4 and TCP as it takes to get the octets of each connection out of
//! a capture.

use std::collections::BTreeMap;

/// Address and port.
type End = ([u8; 4], u16);

/// A TCP connection: what its client sent, what its server sent.
#[derive(Default)]
pub(crate) struct Connection {
    pub(crate) client: Vec<u8>,
    pub(crate) server: Vec<u8>,
}

/// The bytes that one end sent, with the sequence number of the first.
struct Sent {
    first: u32,
    bytes: Vec<u8>,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

/// The Ethernet frames of a little-endian pcap file.
fn frames(file: &[u8]) -> Vec<&[u8]> {
    assert_eq!((&file[..4], &file[20..24]), (&[0xd4, 0xc3, 0xb2, 0xa1][..], &[1, 0, 0, 0][..]));
    let (mut rest, mut found) = (&file[24..], Vec::new());
    while !rest.is_empty() {
        let len = u32::from_le_bytes([rest[8], rest[9], rest[10], rest[11]]) as usize;
        assert_eq!(rest[8..12], rest[12..16], "no frame was cut off");
        found.push(&rest[16..16 + len]);
        rest = &rest[16 + len..];
    }
    found
}

/// Every connection of the capture by its client's end, all of them from SYN on and without a gap.
pub(crate) fn connections(file: &[u8]) -> (usize, BTreeMap<End, Connection>) {
    let frames = frames(file);
    let mut sent = BTreeMap::<(End, End), Sent>::new();
    let mut clients = Vec::new();
    for frame in &frames {
        let ip = &frame[14..];
        assert_eq!((u16_at(frame, 12), ip[0] >> 4, ip[9]), (0x0800, 4, 6), "TCP in IPv4");
        let tcp = &ip[usize::from(ip[0] & 15) * 4..u16_at(ip, 2).into()];
        let from = (ip[12..16].try_into().unwrap(), u16_at(tcp, 0));
        let to = (ip[16..20].try_into().unwrap(), u16_at(tcp, 2));
        let (seq, flags, payload) =
            (u32_at(tcp, 4), tcp[13], &tcp[usize::from(tcp[12] >> 4) * 4..]);
        if flags & 0x02 != 0 {
            sent.insert((from, to), Sent { first: seq.wrapping_add(1), bytes: Vec::new() });
            if flags & 0x10 == 0 {
                clients.push((from, to));
            }
        } else if !payload.is_empty() {
            let stream = sent.get_mut(&(from, to)).expect("the SYN was seen");
            let at = seq.wrapping_sub(stream.first) as usize;
            assert!(at <= stream.bytes.len(), "a gap");
            stream.bytes.truncate(at);
            stream.bytes.extend_from_slice(payload);
        }
    }
    let mut take = |from, to| sent.remove(&(from, to)).map_or_else(Vec::new, |s| s.bytes);
    let all = clients
        .into_iter()
        .map(|(c, s)| (c, Connection { client: take(c, s), server: take(s, c) }));
    (frames.len(), all.collect())
}
