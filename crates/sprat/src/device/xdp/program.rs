//! The program that the kernel runs for each frame on the interface. It sends our frames to our
//! socket (the one in the map at the number of the frame's queue) and leaves all others to the
//! kernel.
//!
//! ```text
//! no address             frames to our hardware address and to groups
//! an address             IP packets to it, ARP and neighbour solicitation for it
//! an address and a port  likewise, but of UDP datagrams and TCP segments only those to the port
//! ```
//!
//! Instructions are put together here, eight bytes each (linux/bpf.h), so that no compiler is
//! needed to build Sprat. The program reads frames in network order on little- or big-endian
//! machines, so constants are compared as they lie in memory.

use std::net::IpAddr;

use sprat_proto::device::Mac;
use sprat_sys::bpf::Insn;

use crate::device::Steer;

/// The targets of the program's jumps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Next,
    Ours,
    Pass,
    Arp,
    Ports,
    Asked,
    Group,
}

// Registers: what calls use, and what they leave alone.
const R0: u8 = 0;
const R1: u8 = 1;
/// The register that holds the address of the frame's first byte.
const DATA: u8 = 2;
/// The register that holds the address behind the frame's last byte.
const END: u8 = 3;
const R4: u8 = 4;
const R5: u8 = 5;
const CONTEXT: u8 = 6;

// Opcodes.
const LOAD8: u8 = 0x71;
const LOAD16: u8 = 0x69;
const LOAD32: u8 = 0x61;
const LOAD_MAP: u8 = 0x18;
const MOVE: u8 = 0xbf;
const MOVE_VALUE: u8 = 0xb7;
const ADD: u8 = 0x0f;
const ADD_VALUE: u8 = 0x07;
const AND_VALUE: u8 = 0x57;
const SHIFT_LEFT: u8 = 0x67;
const GOTO: u8 = 0x05;
const IF_EQUAL: u8 = 0x15;
const IF_NOT: u8 = 0x55;
const IF_NOT_32: u8 = 0x56;
const IF_SET: u8 = 0x45;
const IF_ABOVE: u8 = 0x2d;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// The value of [`LOAD_MAP`]'s source register that says that its number is a file descriptor.
const MAP_FD: u8 = 1;
const REDIRECT_MAP: i32 = 51;
const TAIL_CALL: i32 = 12;
const XDP_PASS: i32 = 2;

/// The offset of the queue's number in the program's context (`xdp_md`).
const QUEUE: i16 = 16;

// Places in a frame.
const KIND: i16 = 12;
const IP: i16 = 14;

/// Returns the program that sends the frames of `steer` to the sockets in the map with descriptor
/// `map`.
pub(in crate::device) fn program(mac: Mac, steer: Steer, map: i32) -> Vec<Insn> {
    let mut p = Assembler::default();
    p.op(MOVE, CONTEXT, R1, 0, 0);
    p.op(LOAD32, DATA, R1, 0, 0);
    p.op(LOAD32, END, R1, 4, 0);
    p.has(14);
    match steer.addr {
        None => p.by_hardware_address(mac),
        Some(IpAddr::V4(ip)) => p.ipv4(ip.octets(), steer.port),
        Some(IpAddr::V6(ip)) => p.ipv6(ip.octets(), steer.port),
    }
    p.end(map)
}

/// Returns the program that calls the program of the frame's queue, in the table with descriptor
/// `map`. Without one it leaves the frame to the kernel.
pub(in crate::device) fn by_queue(map: i32) -> Vec<Insn> {
    let mut p = Assembler::default();
    p.op(LOAD32, END, R1, QUEUE, 0);
    p.op(LOAD_MAP, DATA, MAP_FD, 0, map);
    p.op(0, 0, 0, 0, 0);
    p.op(CALL, 0, 0, 0, TAIL_CALL);
    p.op(MOVE_VALUE, R0, 0, 0, XDP_PASS);
    p.op(EXIT, 0, 0, 0, 0);
    p.code.into_iter().map(|(insn, _)| insn).collect()
}

#[derive(Default)]
struct Assembler {
    code: Vec<(Insn, Label)>,
    places: Vec<(Label, usize)>,
}

/// Returns 16 bits as the machine loads them from network order.
fn wire16(value: u16) -> i32 {
    i32::from(value.to_be())
}

/// Returns four bytes as the machine loads them into a 32-bit number.
fn wire32(bytes: &[u8]) -> i32 {
    let [a, b, c, d] = [bytes[0], bytes[1], bytes[2], bytes[3]];
    u32::from_be_bytes([a, b, c, d]).to_be().cast_signed()
}

impl Assembler {
    fn op(&mut self, code: u8, to: u8, from: u8, offset: i16, value: i32) {
        self.code.push((Insn { code, registers: to | from << 4, offset, value }, Label::Next));
    }

    fn jump(&mut self, code: u8, register: u8, value: i32, to: Label) {
        self.code.push((Insn { code, registers: register, offset: 0, value }, to));
    }

    fn place(&mut self, to: Label) {
        self.places.push((to, self.code.len()));
    }

    /// Adds instructions that leave the frame to the kernel unless it has `len` bytes.
    fn has(&mut self, len: i32) {
        self.op(MOVE, R4, DATA, 0, 0);
        self.op(ADD_VALUE, R4, 0, 0, len);
        self.code.push((
            Insn { code: IF_ABOVE, registers: R4 | END << 4, offset: 0, value: 0 },
            Label::Pass,
        ));
    }

    fn by_hardware_address(&mut self, mac: Mac) {
        self.op(LOAD32, R5, DATA, 0, 0);
        self.jump(IF_NOT_32, R5, wire32(&mac.0[..4]), Label::Group);
        self.op(LOAD16, R5, DATA, 4, 0);
        self.jump(IF_EQUAL, R5, wire16(u16::from_be_bytes([mac.0[4], mac.0[5]])), Label::Ours);
        self.place(Label::Group);
        self.op(LOAD8, R5, DATA, 0, 0);
        self.jump(IF_SET, R5, 1, Label::Ours);
        self.jump(GOTO, 0, 0, Label::Pass);
    }

    fn ipv4(&mut self, ip: [u8; 4], port: u16) {
        self.op(LOAD16, R5, DATA, KIND, 0);
        self.jump(IF_NOT, R5, wire16(0x0800), Label::Arp);
        self.has(34);
        self.op(LOAD32, R5, DATA, IP + 16, 0);
        self.jump(IF_NOT_32, R5, wire32(&ip), Label::Pass);
        if port != 0 {
            // A later fragment has no port.
            self.op(LOAD16, R5, DATA, IP + 6, 0);
            self.jump(IF_SET, R5, wire16(0x1fff), Label::Ours);
            self.op(LOAD8, R5, DATA, IP + 9, 0);
            self.jump(IF_EQUAL, R5, 17, Label::Ports);
            self.jump(IF_NOT, R5, 6, Label::Ours);
            self.place(Label::Ports);
            // Behind the header, however long its options are.
            self.op(LOAD8, R5, DATA, IP, 0);
            self.op(AND_VALUE, R5, 0, 0, 15);
            self.op(SHIFT_LEFT, R5, 0, 0, 2);
            self.op(ADD, DATA, R5, 0, 0);
            self.has(18);
            self.op(LOAD16, R5, DATA, IP + 2, 0);
            self.jump(IF_NOT, R5, wire16(port), Label::Pass);
        }
        self.jump(GOTO, 0, 0, Label::Ours);
        self.place(Label::Arp);
        self.jump(IF_NOT, R5, wire16(0x0806), Label::Pass);
        self.has(42);
        self.op(LOAD32, R5, DATA, IP + 24, 0);
        self.jump(IF_NOT_32, R5, wire32(&ip), Label::Pass);
        self.jump(GOTO, 0, 0, Label::Ours);
    }

    /// Adds instructions that compare 16 bytes from `offset` on with `ip`, and jump to `elsewhere`
    /// if they differ.
    fn is(&mut self, offset: i16, ip: [u8; 16], elsewhere: Label) {
        for (at, word) in (offset..).step_by(4).zip(ip.chunks_exact(4)) {
            self.op(LOAD32, R5, DATA, at, 0);
            self.jump(IF_NOT_32, R5, wire32(word), elsewhere);
        }
    }

    fn ipv6(&mut self, ip: [u8; 16], port: u16) {
        self.op(LOAD16, R5, DATA, KIND, 0);
        self.jump(IF_NOT, R5, wire16(0x86dd), Label::Pass);
        self.has(54);
        self.is(IP + 24, ip, Label::Asked);
        if port != 0 {
            self.op(LOAD8, R5, DATA, IP + 6, 0);
            self.jump(IF_EQUAL, R5, 17, Label::Ports);
            self.jump(IF_NOT, R5, 6, Label::Ours);
            self.place(Label::Ports);
            self.has(58);
            self.op(LOAD16, R5, DATA, IP + 42, 0);
            self.jump(IF_NOT, R5, wire16(port), Label::Pass);
        }
        self.jump(GOTO, 0, 0, Label::Ours);
        // Label a group, and a neighbour solicitation (ICMPv6 type 135) for our address.
        self.place(Label::Asked);
        self.op(LOAD8, R5, DATA, IP + 24, 0);
        self.jump(IF_NOT, R5, 0xff, Label::Pass);
        self.op(LOAD8, R5, DATA, IP + 6, 0);
        self.jump(IF_NOT, R5, 58, Label::Pass);
        self.has(78);
        self.op(LOAD8, R5, DATA, IP + 40, 0);
        self.jump(IF_NOT, R5, 135, Label::Pass);
        self.is(IP + 48, ip, Label::Pass);
        self.jump(GOTO, 0, 0, Label::Ours);
    }

    fn end(mut self, map: i32) -> Vec<Insn> {
        self.place(Label::Ours);
        // The queue's number; and if there is no socket for it, the frame passes.
        self.op(LOAD32, DATA, CONTEXT, QUEUE, 0);
        self.op(LOAD_MAP, R1, MAP_FD, 0, map);
        self.op(0, 0, 0, 0, 0);
        self.op(MOVE_VALUE, END, 0, 0, XDP_PASS);
        self.op(CALL, 0, 0, 0, REDIRECT_MAP);
        self.op(EXIT, 0, 0, 0, 0);
        self.place(Label::Pass);
        self.op(MOVE_VALUE, R0, 0, 0, XDP_PASS);
        self.op(EXIT, 0, 0, 0, 0);
        let Self { mut code, places } = self;
        for (at, (insn, to)) in
            code.iter_mut().enumerate().filter(|(_, (_, to))| *to != Label::Next)
        {
            let target =
                places.iter().find(|(place, _)| place == to).map_or(0, |(_, target)| *target);
            insn.offset = (target as i64 - at as i64 - 1) as i16;
        }
        code.into_iter().map(|(insn, _)| insn).collect()
    }
}

#[cfg(test)]
mod tests;
