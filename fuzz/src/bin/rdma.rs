//! Fuzzes the whole RDMA engine between two hostile peers and a program that does what the bytes
//! say: nothing panics, the engine writes no memory outside of the registered region, every request
//! completes at most once and in order, every stream ends once.
//!
//! The bytes are a script: each step is one byte for the action, one for the length of its
//! argument, and the argument. There are no CRCs unless the first byte asks for them, so that the
//! bytes of peers reach as much code as possible.

#![no_main]

use std::collections::VecDeque;

use libfuzzer_sys::fuzz_target;
use sprat_proto::rdma::iwarp::framer::{Framer, Piece};
use sprat_proto::rdma::{
    AcceptOptions, Access, Completed, Conn, Cq, Data, Event, Memory, Pd, Qp, QpOptions, Record,
    RecvRequest, Remote, Rnic, RnicOptions, SendFlags, SendOp, SendRequest, Sge, Span, Stag,
    StreamEnd, Unmapped,
};
use sprat_proto::wire::checksum::crc32c;
use sprat_proto::wire::write_ack::WriteAck;
use sprat_proto::{Instant, Rng};

/// The number of bytes that peers may access, at the address [`BASE`]. The bytes behind them, as
/// many, must not change.
const OPEN: usize = 256;
const BASE: u64 = 0x1000;

struct Ram(Vec<u8>);

impl Ram {
    fn at(&mut self, span: Span) -> Result<&mut [u8], Unmapped> {
        let at = span.offset as usize;
        self.0[..OPEN].get_mut(at..at + span.len as usize).ok_or(Unmapped)
    }
}

impl Memory for Ram {
    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), Unmapped> {
        self.at(span)?.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, span: Span, bytes: &mut [u8]) -> Result<(), Unmapped> {
        bytes.copy_from_slice(self.at(span)?);
        Ok(())
    }

    fn atomic(&mut self, span: Span, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, Unmapped> {
        let word = self.at(span)?;
        let old = u64::from_le_bytes(word.try_into().expect("8 bytes"));
        word.copy_from_slice(&change(old).to_le_bytes());
        Ok(old)
    }
}

struct Peer {
    conn: Conn,
    qp: Qp,
    /// Bytes that the peer has sent and the engine has not consumed.
    inbox: Vec<u8>,
    sends: VecDeque<u64>,
    receives: VecDeque<u64>,
    open: bool,
}

struct World {
    rnic: Rnic,
    ram: Ram,
    pd: Pd,
    cq: Cq,
    stag: Stag,
    framer: Framer,
    now: Instant,
    peers: [Peer; 2],
    next: u64,
    /// True if the engine's completion queue has overflowed.
    lost: bool,
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&how, mut script)) = bytes.split_first() else { return };
    let mut world = World::new(how);
    while let [what, much, rest @ ..] = script {
        let (matter, rest) = rest.split_at(usize::from(*much).min(rest.len()));
        script = rest;
        world.step(*what, matter);
        world.look();
    }
    for which in 0..2 {
        let conn = world.peers[which].conn;
        world.rnic.ended(world.now, conn, StreamEnd::Reset);
    }
    world.now = world.now.after(60_000_000_000);
    world.rnic.tick(world.now);
    world.look();
    assert!(world.peers.iter().all(|p| !p.open && p.sends.is_empty() && p.receives.is_empty()));
});

impl World {
    fn new(how: u8) -> Self {
        let crc = how & 1 == 1;
        let config = RnicOptions { crc, markers: how & 2 == 2, ..RnicOptions::default() };
        let mut rnic = Rnic::new(config, Rng::seeded(0));
        let pd = rnic.alloc_pd().expect("the first");
        let cq = rnic.create_cq(if how & 4 == 4 { 3 } else { 1000 }).expect("the first");
        let access = Access {
            local_write: true,
            remote_write: true,
            remote_read: true,
            remote_atomic: true,
            bind: true,
        };
        let stag = rnic.register(pd, 0, BASE, OPEN as u64, access).expect("the first");
        let now = Instant::from_ns(1);
        let mut connect = || {
            let options = QpOptions {
                pd,
                send_cq: cq,
                recv_cq: cq,
                srq: None,
                send_depth: 8,
                recv_depth: 8,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline: 16,
                signal_all: true,
            };
            let qp = rnic.create_qp(options).expect("there is room");
            let conn = rnic.incoming(now).expect("there is room");
            let request = b"MPA ID Req Frame\x00\x01\x00\x00";
            rnic.input(now, conn, request, &mut Ram(vec![]));
            let options = AcceptOptions { ird: 2, ord: 2, ..AcceptOptions::default() };
            rnic.accept(now, conn, qp, &options).expect("it asks");
            let (sends, receives) = (VecDeque::new(), VecDeque::new());
            Peer { conn, qp, inbox: vec![], sends, receives, open: true }
        };
        let peers = [connect(), connect()];
        let framer = Framer::new(crc.then_some(crc32c), how & 2 == 2);
        let mut world = Self {
            ram: Ram(vec![0xaa; 2 * OPEN]),
            rnic,
            pd,
            cq,
            stag,
            framer,
            now,
            peers,
            next: 0,
            lost: false,
        };
        if how & 8 == 8 {
            // This one acknowledges Writes, and is asked to.
            let hello = WriteAck { hello: true, ..WriteAck::default() };
            world.ulpdu(0, &hello.header().emit());
        }
        world
    }

    /// Runs one step of the fuzzer's script.
    fn step(&mut self, what: u8, matter: &[u8]) {
        let which = usize::from(what >> 7);
        let Peer { conn, qp, .. } = self.peers[which];
        match what & 0x0f {
            0 => self.said(which, matter),
            1..8 => self.ulpdu(which, matter),
            8 => {
                let end =
                    [StreamEnd::Finished, StreamEnd::Reset, StreamEnd::Unread, StreamEnd::Reset]
                        [usize::from(what >> 4 & 3)];
                self.rnic.ended(self.now, conn, end);
            }
            9 => drop(self.rnic.disconnect(self.now, qp)),
            10 => {
                self.now = self.now.after(u64::from(what >> 4) * 1_000_000_000);
                self.rnic.tick(self.now);
            }
            11 => self.direct(which, matter),
            12 => {
                let access = Access { local_write: true, remote_write: true, ..Access::default() };
                self.rnic.deregister(self.stag).expect("it is there");
                let again = self.rnic.register(self.pd, 0, BASE, OPEN as u64, access);
                self.stag = again.expect("there is room");
            }
            13 => self.receive(which, matter),
            _ => self.send(which, matter),
        }
    }

    /// Delivers these bytes of a peer to the engine.
    fn said(&mut self, which: usize, bytes: &[u8]) {
        let peer = &mut self.peers[which];
        peer.inbox.extend(bytes);
        let used = self.rnic.input(self.now, peer.conn, &peer.inbox, &mut self.ram);
        peer.inbox.drain(..used);
    }

    /// Delivers this ULPDU of a peer to the engine. The tag 0x11223344 in it is replaced by the
    /// valid one.
    fn ulpdu(&mut self, which: usize, matter: &[u8]) {
        let mut ulpdu = matter.to_vec();
        while let Some(at) = ulpdu.windows(4).position(|w| w == [0x11, 0x22, 0x33, 0x44]) {
            ulpdu[at..at + 4].copy_from_slice(&self.stag.0.to_be_bytes());
            if self.stag.0 == 0x1122_3344 {
                break;
            }
        }
        let mut record = Record::default();
        let mut framer = self.framer.clone();
        framer.frame(&ulpdu, &[Piece::Bytes(&[])], &mut self.ram, &mut record).expect("no memory");
        self.said(which, &record.bytes);
    }

    /// Writes a peer's next bytes directly to their place in memory, as the engine allows.
    fn direct(&mut self, which: usize, bytes: &[u8]) {
        let peer = &self.peers[which];
        let Some(span) = self.rnic.direct_span(peer.conn) else { return };
        let len = bytes.len().min(span.len as usize);
        let span = Span { len: len as u32, ..span };
        assert!(self.ram.write(span, &bytes[..len]).is_ok());
        self.rnic.placed_directly(self.now, peer.conn, len as u32, &mut self.ram);
    }

    fn list(&self, matter: &[u8]) -> impl Iterator<Item = Sge> + use<> {
        let sge = |pair: &[u8]| Sge {
            stag: self.stag,
            addr: BASE + u64::from(pair[0]),
            len: pair[1].into(),
        };
        matter.chunks_exact(2).take(2).map(sge).collect::<Vec<_>>().into_iter()
    }

    fn receive(&mut self, which: usize, matter: &[u8]) {
        let (id, list) = (self.next, self.list(matter).collect());
        self.next += 1;
        let peer = &mut self.peers[which];
        if self.rnic.post_recv(peer.qp, RecvRequest { id, list }).is_ok() {
            peer.receives.push_back(id);
        }
    }

    fn send(&mut self, which: usize, matter: &[u8]) {
        let Some((&kind, matter)) = matter.split_first() else { return };
        let to = Remote { stag: Stag(5), addr: 7 };
        let op = match kind & 7 {
            0 => SendOp::Send,
            1 => SendOp::Write(to),
            2 => SendOp::Read(to),
            3 => SendOp::FetchAdd { to, add: 1, mask: 0 },
            4 => SendOp::WriteImmediate(to, 5),
            5 => SendOp::ReadInvalidate(to),
            6 => SendOp::Invalidate(self.stag),
            _ => SendOp::SendInvalidate(Stag(9)),
        };
        let list = self.list(if kind & 7 == 6 { &[] } else { matter });
        let data = if kind & 64 == 64 {
            Data::Inline(matter.to_vec())
        } else {
            Data::Gather(list.collect())
        };
        let flags =
            SendFlags { signaled: true, fence: kind & 16 == 16, solicited: kind & 32 == 32 };
        let id = self.next;
        self.next += 1;
        let peer = &mut self.peers[which];
        if self.rnic.post_send(peer.qp, SendRequest { id, op, data, flags }).is_ok() {
            peer.sends.push_back(id);
        }
    }

    /// Checks the completions and events of the engine, and that no memory beyond the region has
    /// changed.
    fn look(&mut self) {
        while let Some(conn) = self.rnic.ready() {
            let mut record = Record::default();
            while self.rnic.output(self.now, conn, &mut record, &mut self.ram) {}
            self.rnic.sent(conn, record.len());
        }
        let mut lost = false;
        while let Some(event) = self.rnic.event() {
            lost |= matches!(event, Event::CqOverflow(_));
            if let Event::Close { conn, .. } = event {
                let peer =
                    self.peers.iter_mut().find(|p| p.conn == conn).expect("it is one of ours");
                assert!(core::mem::take(&mut peer.open), "it ends once");
            }
        }
        while let Some(done) = self.rnic.poll(self.cq) {
            let peer = self.peers.iter_mut().find(|p| p.qp == done.qp).expect("it is one of ours");
            let received = matches!(done.completed, Completed::Recv | Completed::RecvImmediate);
            let queue = if received { &mut peer.receives } else { &mut peer.sends };
            assert!(queue.pop_front() == Some(done.id) || self.lost);
        }
        self.lost |= lost;
        if self.lost {
            // What was lost cannot be told from what is not done.
            for peer in &mut self.peers {
                peer.sends.clear();
                peer.receives.clear();
            }
        }
        assert!(self.ram.0[OPEN..].iter().all(|&byte| byte == 0xaa));
    }
}
