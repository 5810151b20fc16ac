#!/usr/bin/env python3
"""rping's exchange, spoken by hand: an independent iWARP peer of a few lines, to prove the harness and to ask siw questions.

    probe.py -c -a HOST -p PORT -C COUNT     the client: connects, pings, disconnects
    probe.py -s -a HOST -p PORT              the server: one connection, until the client leaves

    --crc on|off        ask for CRCs in the start-up frame (the client), or in the reply (the server); default on
    --revision 1|2      of the client's start-up; a server answers in this revision too, even if it was asked in another
    --rtr write|read    the client starts peer to peer and sends that ready-to-receive frame
    -S OCTETS           of the ping, default 64          --hold-ms MS   between reply and first message, default 50

Wrong octets end it with a message and exit status 1. It knows only what rping needs: one message at a time, no markers.
"""
import argparse
import socket
import struct
import sys
import time

REQUEST, REPLY = b"MPA ID Req Frame", b"MPA ID Rep Frame"
WRITE, READ, RESPONSE, SEND, TERMINATE = 0, 1, 2, 3, 7
TABLE = []
for n in range(256):
    for _ in range(8):
        n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
    TABLE.append(n)


def crc32c(data):
    c = 0xFFFFFFFF
    for octet in data:
        c = TABLE[(c ^ octet) & 0xFF] ^ c >> 8
    return struct.pack("<I", c ^ 0xFFFFFFFF)


def need(what, condition):
    if not condition:
        sys.exit(f"probe: {what}")


def name(stag, address, size):
    return struct.pack(">QII", address, stag, size)


class Stream:
    def __init__(self, tcp, crc):
        self.tcp, self.crc, self.left = tcp, crc, b""
        self.msn = {0: 0, 1: 0}

    def octets(self, count):
        while len(self.left) < count:
            more = self.tcp.recv(65536)
            need("the peer closed", more)
            self.left += more
        taken, self.left = self.left[:count], self.left[count:]
        return taken

    def frame(self, ulpdu):
        body = struct.pack(">H", len(ulpdu)) + ulpdu
        body += bytes(-len(body) % 4)
        self.tcp.sendall(body + (crc32c(body) if self.crc else bytes(4)))

    def tagged(self, opcode, stag, offset, payload):
        first = 0
        while True:  # segments of at most 1400 octets
            part = payload[first:first + 1400]
            last = first + len(part) == len(payload)
            self.frame(struct.pack(">BBIQ", 0xC1 if last else 0x81, 0x40 | opcode, stag, offset + first) + part)
            first += len(part)
            if last:
                return

    def untagged(self, opcode, queue, payload):
        self.msn[queue] += 1
        self.frame(struct.pack(">BBIIII", 0x41, 0x40 | opcode, 0, queue, self.msn[queue], 0) + payload)

    def next(self):
        """One segment: (opcode, stag or 0, offset, last, payload)."""
        length = self.octets(2)
        (size,) = struct.unpack(">H", length)
        rest = self.octets(size + -(size + 2) % 4)
        checksum = self.octets(4)
        if self.crc:
            need("bad CRC", checksum == crc32c(length + rest))
        need("markers, or a segment without a header", size >= 14)
        control, opcode = rest[0], rest[1] & 15
        need("DDP and RDMAP versions", control & 3 == 1 and rest[1] >> 6 == 1)
        if control & 0x80:
            stag, offset = struct.unpack(">IQ", rest[2:14])
            return opcode, stag, offset, bool(control & 0x40), rest[14:size]
        if opcode == TERMINATE:
            need("Terminate " + rest[18:size].hex(), False)
        return opcode, 0, struct.unpack(">I", rest[14:18])[0], bool(control & 0x40), rest[18:size]

    def expect(self, opcode):
        got = self.next()
        need(f"opcode {opcode} expected, not {got[0]}", got[0] == opcode)
        return got

    def message(self, opcode, stag, base, size):
        """The tagged segments of one message, into one run of octets."""
        data, last = b"", False
        while not last:
            _, got, offset, last, part = self.expect(opcode)
            need("place", got == stag and offset == base + len(data) and len(data) + len(part) <= size)
            data += part
        return data


def text(number, size):
    """The octets of ping `number`: rping's text, letters that begin one later in each round, a zero at the end."""
    head = b"rdma-ping-%d: " % number
    letters = bytes(65 + (number % 58 + i) % 58 for i in range(size - len(head)))
    return (head + letters)[:size - 1] + b"\0"


def client(o):
    tcp = socket.create_connection((o.address, o.port), 10)
    tcp.settimeout(20)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    flags, block = 0x40 if o.crc else 0, b""
    if o.revision == 2:
        flags |= 0x10
        ird, ord_ = 1, 1
        if o.rtr:
            ird |= 0x8000
            ord_ |= {"write": 0x8000, "read": 0x4000}[o.rtr]
        block = struct.pack(">HH", ird, ord_)
    tcp.sendall(REQUEST + struct.pack(">BBH", flags, o.revision, len(block)) + block)
    stream = Stream(tcp, o.crc)
    need("key of the reply", stream.octets(16) == REPLY)
    got, revision, length = struct.unpack(">BBH", stream.octets(4))
    private = stream.octets(length)
    print(f"probe: reply flags {got:#04x} revision {revision} private {private.hex()}", flush=True)
    need("rejected, or markers", not got & 0xA0)
    stream.crc = bool((got | flags) & 0x40)
    time.sleep(o.hold_ms / 1000)  # siw 6.1 does not notice what comes right behind its reply
    if o.rtr:
        need("no peer to peer in the reply", private[0] & 0x80)
        if o.rtr == "write":
            stream.tagged(WRITE, 1, 0, b"")
        else:
            stream.untagged(READ, 1, struct.pack(">IQIIQ", 1, 0, 0, 1, 0))
            stream.message(RESPONSE, 1, 0, 0)
    source, sink = (0x11223344, 0x7F0000001000), (0x55667788, 0x7F0000100000)
    for number in range(o.count):
        data = text(number, o.size)
        stream.untagged(SEND, 0, name(*source, o.size))
        _, _, _, _, asked = stream.expect(READ)
        to, at, size, stag, offset = struct.unpack(">IQIIQ", asked)
        need("read of the source", stag == source[0] and offset == source[1] and size == o.size)
        stream.tagged(RESPONSE, to, at, data)
        need("16 octets in the go-ahead", len(stream.expect(SEND)[4]) == 16)
        stream.untagged(SEND, 0, name(*sink, o.size))
        need("data of the pong", stream.message(WRITE, *sink, o.size) == data)
        need("16 octets in the go-ahead", len(stream.expect(SEND)[4]) == 16)
    tcp.close()


def server(o):
    door = socket.create_server((o.address, o.port))
    print("probe: listening", flush=True)
    tcp, _ = door.accept()
    tcp.settimeout(20)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream = Stream(tcp, False)
    need("key of the request", stream.octets(16) == REQUEST)
    flags, revision, length = struct.unpack(">BBH", stream.octets(4))
    private = stream.octets(length)
    print(f"probe: request flags {flags:#04x} revision {revision} private {private.hex()}", flush=True)
    need("markers or peer to peer", not flags & 0x80 and not (private[:1] or b"\0")[0] & 0x80)
    stream.crc = o.crc or bool(flags & 0x40)
    if o.revision == 1:
        flags, private, revision = 0, b"", 1
    tcp.sendall(REPLY + struct.pack(">BBH", flags & 0x10 | (0x40 if stream.crc else 0), revision, len(private)) + private)
    rounds = 0
    while True:
        try:
            announced = stream.expect(SEND)[4]
        except SystemExit as e:
            if "closed" in str(e) and not stream.left:
                print(f"probe: {rounds} rounds")
                return
            raise
        at, stag, size = struct.unpack(">QII", announced)
        stream.untagged(READ, 1, struct.pack(">IQIIQ", 9, 0x1000, size, stag, at))
        data = stream.message(RESPONSE, 9, 0x1000, size)
        need("data of the ping", data == text(rounds, size))
        stream.untagged(SEND, 0, bytes(16))
        at, stag, size = struct.unpack(">QII", stream.expect(SEND)[4])
        stream.tagged(WRITE, stag, at, data[:data.index(b"\0") + 1])
        stream.untagged(SEND, 0, bytes(16))
        rounds += 1


p = argparse.ArgumentParser(add_help=False)
p.add_argument("-c", dest="client", action="store_true")
p.add_argument("-s", dest="server", action="store_true")
p.add_argument("-a", dest="address", required=True)
p.add_argument("-p", dest="port", type=int, required=True)
p.add_argument("-C", dest="count", type=int, default=10)
p.add_argument("-S", dest="size", type=int, default=64)
p.add_argument("--revision", type=int, default=2, choices=(1, 2))
p.add_argument("--crc", default="on", choices=("on", "off"))
p.add_argument("--rtr", choices=("write", "read"))
p.add_argument("--hold-ms", type=int, default=50)
options = p.parse_args()
options.crc = options.crc == "on"
(client if options.client else server)(options)
