//! A packet device that records frames: [`Capture`] wraps another device and writes every frame, in
//! both directions, to a file that Wireshark, tshark and tcpdump read.
//!
//! ```text
//! file    magic a1b23c4d (nanoseconds, in the order of the machine), 2, 4, 0, 0,
//!         longest: u32, 1 (Ethernet)
//! frame   seconds, nanoseconds, bytes kept, bytes of the frame (u32 each), the bytes
//! ```
//! The file has each frame with its checksums, as on the wire. They are filled in where the sender
//! left them to a device, also if no device computed them because the frame never left this
//! machine. A frame that the device cuts is written whole, and so is one that it joined. Once the
//! file has its limit, further frames are counted and not written.
//!
//! [`super::open`] wraps a device in a [`Capture`] if the device's options name a file, and every
//! device while the environment has [`VARIABLE`].

use std::env;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use sprat_proto::device::{
    Device, HEADER, Headers, Info, MAX_FRAME, MAX_PARTS, Offload, RxOffload, Sent,
};
use sprat_proto::wire::checksum::Sum;
use sprat_proto::wire::ethernet::{self, Ethernet};
use sprat_proto::wire::ipv4::{self, Ipv4};
use sprat_proto::wire::ipv6::{self, Ipv6};

use super::Nic;
use sprat_sys::clock;

/// The magic number of linux/pcap for nanoseconds.
const MAGIC: u32 = 0xa1b2_3c4d;
const ETHERNET: u32 = 1;
/// TCP's protocol number in an IP header.
const TCP: u8 = 6;
/// Bytes of frames that are gathered before they are written to the file.
const BUFFER: usize = 256 << 10;
/// The size in bytes up to which a capture file grows unless the caller gives another.
pub const LIMIT: u64 = 1 << 30;

/// The environment variable that names a capture file. Each device that a process opens is captured
/// in a file beside it: the process's id and the device's number stand before the ending (`a.pcap`
/// becomes `a.1234-1.pcap`).
pub const VARIABLE: &str = "SPRAT_PCAP";

/// Returns the capture file for the next device of this process. `None` if the environment has no
/// [`VARIABLE`].
pub(super) fn next() -> Option<PathBuf> {
    static DEVICES: AtomicU32 = AtomicU32::new(0);
    let named = env::var_os(VARIABLE).filter(|named| !named.is_empty())?;
    let number = DEVICES.fetch_add(1, Ordering::Relaxed) + 1;
    Some(beside(Path::new(&named), std::process::id(), number))
}

/// Returns `path` with a process's id and a number before its ending.
#[must_use]
pub fn beside(path: &Path, process: u32, number: u32) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{process}-{number}"));
    if let Some(ending) = path.extension() {
        name.push(".");
        name.push(ending);
    }
    path.with_file_name(name)
}

/// A packet device, and the file that its frames are written to.
#[derive(Debug)]
pub struct Capture<N> {
    inner: N,
    file: Option<BufWriter<File>>,
    frame: Vec<u8>,
    left: u64,
    written: u64,
    unwritten: u64,
}

impl<N: Nic> Capture<N> {
    /// Wraps the device `inner`, whose frames are written to a new file at `path` until that has
    /// `limit` bytes.
    ///
    /// # Errors
    /// The file cannot be made or written; the error names it.
    pub fn new(inner: N, path: &Path, limit: u64) -> io::Result<Self> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        let mut file = BufWriter::with_capacity(BUFFER, File::create(path).map_err(named)?);
        // Version 2.4: two halves of one word, whose order follows the machine's.
        let version = if cfg!(target_endian = "little") { 4 << 16 | 2 } else { 2 << 16 | 4 };
        for word in [MAGIC, version, 0, 0, MAX_FRAME as u32, ETHERNET] {
            file.write_all(&native(word)).map_err(named)?;
        }
        file.flush().map_err(named)?;
        let left = limit.saturating_sub(24);
        Ok(Self { inner, file: Some(file), frame: Vec::new(), left, written: 0, unwritten: 0 })
    }

    /// Writes the gathered frames to the file.
    ///
    /// # Errors
    /// The disk is full, say. Nothing is written any more then.
    pub fn sync(&mut self) -> io::Result<()> {
        let result = self.file.as_mut().map_or(Ok(()), BufWriter::flush);
        if result.is_err() {
            self.give_up();
        }
        result
    }

    fn give_up(&mut self) {
        // Bytes that the writer still holds would be written again when it is dropped.
        drop(self.file.take().map(BufWriter::into_parts));
    }

    /// Records a frame that the device was to send, if the device took it.
    fn sent(&mut self, sent: Sent, parts: &[&[u8]], offload: Offload) -> Sent {
        if sent == Sent::Yes && parts.iter().map(|p| p.len()).sum::<usize>() <= MAX_FRAME {
            self.frame.clear();
            parts.iter().for_each(|part| self.frame.extend_from_slice(part));
            finish(&mut self.frame, offload);
            self.record(clock::wall_ns());
        }
        sent
    }

    /// Adds the frame in `self.frame` to the file, with the time `ns`.
    fn record(&mut self, ns: u64) {
        let room = 16 + self.frame.len() as u64;
        let Some(file) = self.file.as_mut().filter(|_| room <= self.left) else {
            self.unwritten += 1;
            return;
        };
        let len = self.frame.len() as u32;
        let words = [(ns / 1_000_000_000) as u32, (ns % 1_000_000_000) as u32, len, len];
        let written = words.iter().try_for_each(|word| file.write_all(&native(*word)));
        if written.and_then(|()| file.write_all(&self.frame)).is_err() {
            self.give_up();
            self.unwritten += 1;
            return;
        }
        self.left -= room;
        self.written += 1;
    }
}

fn native(word: u32) -> [u8; 4] {
    word.to_le().to_le_bytes()
}

/// Fills in the checksum that `offload` asks for, if the frame is long enough to have it.
fn finish(frame: &mut [u8], offload: Offload) {
    let (start, offset) = match offload {
        Offload::None => return,
        Offload::Checksum { start, offset } => (usize::from(start), usize::from(offset)),
        Offload::Segments { kind, start, .. } => {
            (usize::from(start), usize::from(kind.checksum_at()))
        }
    };
    let Some(transport) = frame.get_mut(start..).filter(|t| t.len() >= offset + 2) else { return };
    let sum = Sum::new().bytes(transport).checksum();
    // UDP says by 0 that there is none.
    let sum = if sum == 0 && offset == 6 { 0xffff } else { sum };
    transport[offset..offset + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Fills in the checksum of a whole UDP datagram or TCP segment, if its field holds the
/// pseudo-header's sum and nothing else.
fn complete(frame: &mut [u8]) {
    let Some((Ethernet { kind, .. }, packet)) = Ethernet::parse(frame) else { return };
    let (protocol, pseudo, start, len) = match kind {
        ethernet::IPV4 => match Ipv4::parse(packet) {
            Ok((ip, upper)) if !ip.is_fragment() => {
                let start = HEADER + usize::from(packet[0] & 15) * 4;
                (ip.protocol, ip.pseudo(upper.len()), start, upper.len())
            }
            _ => return,
        },
        ethernet::IPV6 => match Ipv6::parse(packet) {
            Ok((ip, upper)) => {
                (ip.next, ip.pseudo(ip.next, upper.len()), HEADER + ipv6::HEADER, upper.len())
            }
            Err(_) => return,
        },
        _ => return,
    };
    let offset = match protocol {
        ipv4::UDP => 6,
        TCP => 16,
        _ => return,
    };
    let Some(upper) = frame.get_mut(start..start + len).filter(|upper| upper.len() >= offset + 2)
    else {
        return;
    };
    let left = u16::from_be_bytes([upper[offset], upper[offset + 1]]) == pseudo.folded();
    if left && pseudo.bytes(upper).checksum() != 0 {
        finish(upper, Offload::Checksum { start: 0, offset: offset as u16 });
    }
}

impl<N: Nic> Device for Capture<N> {
    fn recv_burst(&mut self) -> usize {
        let n = self.inner.recv_burst();
        for i in 0..n {
            let ns = self.inner.rx_timestamp_ns(i).unwrap_or_else(clock::wall_ns);
            self.frame.clear();
            self.frame.extend_from_slice(self.inner.frame(i).0);
            complete(&mut self.frame);
            self.record(ns);
        }
        n
    }

    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        self.inner.frame(i)
    }

    fn append_left(&self, i: usize, range: Range<usize>, bytes: &mut Vec<u8>) {
        self.inner.append_left(i, range, bytes);
    }

    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        let sent = self.inner.send(parts, offload);
        self.sent(sent, parts, offload)
    }

    fn send_with_headers(
        &mut self,
        headers: &Headers,
        parts: &[&[u8]],
        len: usize,
        offload: Offload,
    ) -> Sent {
        let sent = self.inner.send_with_headers(headers, parts, len, offload);
        let octets = headers.to_bytes();
        let mut all = [&[][..]; MAX_PARTS];
        all[0] = &octets[..headers.len()];
        all[1..=parts.len()].copy_from_slice(parts);
        self.sent(sent, &all[..=parts.len()], offload)
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn info(&self) -> Info {
        self.inner.info()
    }

    fn rx_timestamp_ns(&self, i: usize) -> Option<u64> {
        self.inner.rx_timestamp_ns(i)
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.inner.counters(each);
        each("frames_captured", self.written);
        each("frames_not_captured", self.unwritten);
    }
}

impl<N: Nic> Nic for Capture<N> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn arm(&mut self) -> bool {
        // A reader of the file finds all frames while nothing happens. Errors of writing are
        // counted later.
        let _ = self.sync();
        self.inner.arm()
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn has_rx_timestamps(&self) -> bool {
        self.inner.has_rx_timestamps()
    }

    fn carries(&mut self) -> bool {
        self.inner.carries()
    }

    fn queues(&self) -> usize {
        self.inner.queues()
    }
}

#[cfg(test)]
mod tests {
    use sprat_proto::device::Mac;

    use super::*;
    use crate::device::fake;

    const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];

    fn words(bytes: &[u8]) -> Vec<u32> {
        bytes
            .chunks_exact(4)
            .map(|w| u32::from_le(u32::from_le_bytes([w[0], w[1], w[2], w[3]])))
            .collect()
    }

    #[test]
    fn every_frame_of_both_directions_is_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pcap");
        let [a, mut b] = fake::pair(MACS, 1500).unwrap();
        let mut a = Capture::new(a, &path, LIMIT).unwrap();
        assert_eq!(a.send(&[&[1; 14], &[2; 46]], Offload::None), Sent::Yes);
        assert_eq!(b.send(&[&[3; 100]], Offload::None), Sent::Yes);
        assert_eq!((a.recv_burst(), a.frame(0).0), (1, &[3; 100][..]));
        a.arm();
        let file = std::fs::read(&path).unwrap();
        let version = if cfg!(target_endian = "little") { 0x0004_0002 } else { 0x0002_0004 };
        assert_eq!(words(&file[..24]), [0xa1b2_3c4d, version, 0, 0, 65_549, 1]);
        let (first, second) = (&file[24..], &file[24 + 16 + 60..]);
        assert_eq!(words(&first[8..16]), [60, 60]);
        assert_eq!(first[16..76], [[1; 14].to_vec(), vec![2; 46]].concat());
        assert_eq!(words(&second[8..16]), [100, 100]);
        assert_eq!(second[16..], [3; 100]);
        assert!(words(&second[..4])[0] >= words(&first[..4])[0], "time goes on");
    }

    #[test]
    fn a_full_file_stops_the_file_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pcap");
        let [a, mut b] = fake::pair(MACS, 1500).unwrap();
        let mut a = Capture::new(a, &path, 24 + 3 * (16 + 60)).unwrap();
        for _ in 0..5 {
            assert_eq!(a.send(&[&[1; 60]], Offload::None), Sent::Yes);
        }
        a.sync().unwrap();
        assert_eq!(b.recv_burst(), 5);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 24 + 3 * 76);
        let mut counted = Vec::new();
        a.counters(&mut |name, n| counted.push((name, n)));
        assert!(
            counted.contains(&("frames_captured", 3))
                && counted.contains(&("frames_not_captured", 2))
        );
        assert!(
            Capture::new(b, Path::new("/nowhere/at/all"), LIMIT)
                .unwrap_err()
                .to_string()
                .contains("/nowhere/at/all")
        );
    }

    #[test]
    fn files_of_several_processes_and_devices_differ() {
        let shown = |path: &str| beside(Path::new(path), 12, 3).display().to_string();
        assert_eq!(shown("/a/b.pcap"), "/a/b.12-3.pcap");
        assert_eq!(
            (shown("b"), shown("a.b/c.d.e")),
            ("b.12-3".to_owned(), "a.b/c.d.12-3.e".to_owned())
        );
    }

    #[test]
    fn a_checksum_that_nobody_computed_is_filled_in() {
        let (from, to) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let ip = Ipv4 {
            dscp: 0,
            ecn: ipv4::Ecn::NotEct,
            from,
            to,
            protocol: ipv4::UDP,
            ttl: 64,
            dont_fragment: true,
            ident: 0,
            offset: 0,
            more: false,
        };
        let sum = ip.pseudo(11).folded().to_be_bytes();
        let datagram = [&[0, 1, 0, 2, 0, 11][..], &sum, b"odd"].concat();
        let ethernet = Ethernet { to: MACS[0], from: MACS[1], kind: ethernet::IPV4 };
        let mut frame = [&ethernet.emit()[..], &ip.emit(11), &datagram].concat();
        // Padding is no part of it.
        frame.resize(60, 0xee);
        let partial = frame.clone();
        complete(&mut frame);
        assert_ne!(frame, partial);
        let whole = |frame: &[u8]| ip.pseudo(11).bytes(&frame[34..45]).checksum() == 0;
        assert!(whole(&frame) && !whole(&partial));
        // A file that is whole, wrong in another way, or cut short stays as it is.
        for mut other in
            [frame.clone(), [&frame[..41], &[9], &frame[42..]].concat(), partial[..40].to_vec()]
        {
            let before = other.clone();
            complete(&mut other);
            assert_eq!(other, before);
        }
        for len in 0..frame.len() {
            complete(&mut partial[..len].to_vec());
        }
    }

    #[test]
    fn a_checksum_that_was_asked_for_is_filled_in() {
        // UDP from RFC 768's fields: ports 1 and 2, length 10, payload "hi"; the field holds the
        // pseudo-header's sum.
        let mut frame = vec![0; 34];
        frame.extend([0, 1, 0, 2, 0, 10, 0x12, 0x34, b'h', b'i']);
        finish(&mut frame, Offload::Checksum { start: 34, offset: 6 });
        let expected = !(1_u16 + 2 + 10 + 0x1234 + 0x6869);
        assert_eq!(frame[40..42], expected.to_be_bytes());
        let short = &mut [0; 20][..];
        finish(short, Offload::Checksum { start: 34, offset: 6 });
        finish(short, Offload::Checksum { start: 18, offset: 6 });
        assert_eq!(short, [0; 20]);
    }
}
