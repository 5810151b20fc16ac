//! memif version 2, the shared-memory packet interface of VPP and DPDK: the messages of its control socket, and the layout of
//! its rings. `docs/formats.md` ("memif") is normative.
//!
//! ```text
//! message   128 octets on a SOCK_SEQPACKET socket, little-endian as the machines it is for: 0 u16 type   2 body   zeros
//! ring      0 u32 cookie  4 u16 flags  6 u16 head   64 u16 tail   128 descriptors, 16 octets each
//! descriptor  0 u16 flags  2 u16 region  4 u32 length  8 u32 offset  12 u32 metadata
//! ```
//!
//! The client makes all memory: buffers, a ring of full ones for the server, and a ring of empty ones that the server fills. So the
//! client alone writes every `head`, and the server every `tail`.
//!
//! Always: what [`Message::emit`] writes is parsed back as the same message. Not here: who says what when (`host::nic::memif`).

#[cfg(test)]
mod tests;

/// Octets of a message.
pub const MESSAGE: usize = 128;
/// The only version: 2.0.
pub const VERSION: u16 = 0x0200;
/// Octets of a name, a zero at its end.
pub const NAME: usize = 32;
/// Octets of a secret, zeros behind it.
pub const SECRET: usize = 24;
/// Octets of a disconnection's reason.
pub const REASON: usize = 96;

/// What stands at a ring's beginning.
pub const COOKIE: u32 = 0x03e3_1f20;
/// In a ring's flags: whoever takes from it polls, and needs no interrupt.
pub const MASK_INTERRUPT: u16 = 1;
/// Where a ring's flags are.
pub const FLAGS: usize = 4;
/// Where a ring's head is.
pub const HEAD: usize = 6;
/// Where a ring's tail is.
pub const TAIL: usize = 64;
/// Where a ring's descriptors begin.
pub const DESCRIPTORS: usize = 128;
/// Octets of a descriptor.
pub const DESCRIPTOR: usize = 16;
/// Most descriptors of a ring, as a power of two.
pub const LOG2_RING_MAX: u8 = 14;

/// Octets of a ring of `1 << log2` descriptors.
#[must_use]
pub const fn ring_len(log2: u8) -> usize {
    DESCRIPTORS + (DESCRIPTOR << log2)
}

/// One buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Descriptor {
    /// The frame goes on in the next one.
    pub next: bool,
    /// The region that the buffer is in.
    pub region: u16,
    /// Its octets: those that are used in a full one, those that there are in an empty one.
    pub length: u32,
    /// Where in its region it begins.
    pub offset: u32,
}

impl Descriptor {
    /// As two words of the machine's byte order.
    #[inline]
    #[must_use]
    pub const fn words(self) -> [u64; 2] {
        let first = self.next as u64 | (self.region as u64) << 16 | (self.length as u64) << 32;
        [first, self.offset as u64]
    }

    /// From two words. Flags that are unknown and the metadata are passed over.
    #[inline]
    #[must_use]
    pub const fn of(words: [u64; 2]) -> Self {
        Self {
            next: words[0] & 1 != 0,
            region: (words[0] >> 16) as u16,
            length: (words[0] >> 32) as u32,
            offset: words[1] as u32,
        }
    }
}

/// What the server offers to whoever connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Who it is.
    pub name: [u8; NAME],
    /// The oldest version it speaks.
    pub min_version: u16,
    /// The newest version it speaks.
    pub max_version: u16,
    /// The highest region's number.
    pub max_region: u16,
    /// The highest number of a ring to the client.
    pub max_to_client: u16,
    /// The highest number of a ring to the server.
    pub max_to_server: u16,
    /// Descriptors of the largest ring, as a power of two.
    pub max_log2: u8,
}

/// Which interface the client wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Init {
    /// The version spoken from here on.
    pub version: u16,
    /// The interface's number at this socket.
    pub id: u32,
    /// 0 for Ethernet frames; others carry something else.
    pub mode: u8,
    /// Zeros, or what the server wants to hear.
    pub secret: [u8; SECRET],
    /// Who it is.
    pub name: [u8; NAME],
}

/// A ring, and with it in the message the descriptor of its interrupts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddRing {
    /// It carries frames to the server; else to the client.
    pub to_server: bool,
    /// Its number among those of its direction.
    pub index: u16,
    /// The region that it is in.
    pub region: u16,
    /// Where in the region it begins.
    pub offset: u32,
    /// Its descriptors, as a power of two.
    pub log2: u8,
    /// Octets before each frame that are nobody's business here.
    pub private_header: u16,
}

/// What is said on the control socket. `Init`, `AddRegion` and `AddRing` are answered by `Ack`, `Connect` by `Connected`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// Understood.
    Ack,
    /// The server's first.
    Hello(Hello),
    /// The client's first.
    Init(Init),
    /// Memory of the client's, whose file comes with the message.
    AddRegion {
        /// Its number, counted from 0.
        index: u16,
        /// Its octets.
        size: u64,
    },
    /// A ring in it.
    AddRing(AddRing),
    /// All is said; the name of the client's interface.
    Connect([u8; NAME]),
    /// The link is there; the name of the server's interface.
    Connected([u8; NAME]),
    /// The link ends.
    Disconnect {
        /// A number, mostly 0.
        code: u32,
        /// Why, in words.
        reason: [u8; REASON],
    },
}

/// Why 128 octets are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Bad {
    /// It is of no known type.
    #[error("there is no message of type {0}")]
    Type(u16),
    /// A field says what it cannot say.
    #[error("a field of the message has a value that is not possible")]
    Field,
}

/// `text`, cut to what fits before a zero.
#[must_use]
pub fn chars<const N: usize>(text: &str) -> [u8; N] {
    let mut chars = [0; N];
    for (to, from) in chars[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from;
    }
    chars
}

/// Fields one after the other.
struct Writer {
    bytes: [u8; MESSAGE],
    at: usize,
}

impl Writer {
    fn new(kind: u16) -> Self {
        let mut writer = Self { bytes: [0; MESSAGE], at: 0 };
        writer.put(&kind.to_le_bytes());
        writer
    }

    fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }
}

/// The same, on their way back.
struct Reader<'b> {
    bytes: &'b [u8; MESSAGE],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.bytes[self.at..self.at + N]);
        self.at += N;
        field
    }

    fn u8(&mut self) -> u8 {
        let [octet] = self.take();
        octet
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
}

impl Message {
    /// Its octets.
    #[must_use]
    pub fn emit(&self) -> [u8; MESSAGE] {
        let mut w = Writer::new(self.kind());
        match self {
            Self::Ack => {}
            Self::Hello(h) => {
                w.put(&h.name);
                for field in
                    [h.min_version, h.max_version, h.max_region, h.max_to_client, h.max_to_server]
                {
                    w.put(&field.to_le_bytes());
                }
                w.put(&[h.max_log2]);
            }
            Self::Init(i) => {
                w.put(&i.version.to_le_bytes());
                w.put(&i.id.to_le_bytes());
                w.put(&[i.mode]);
                w.put(&i.secret);
                w.put(&i.name);
            }
            Self::AddRegion { index, size } => {
                w.put(&index.to_le_bytes());
                w.put(&size.to_le_bytes());
            }
            Self::AddRing(r) => {
                for field in [u16::from(r.to_server), r.index, r.region] {
                    w.put(&field.to_le_bytes());
                }
                w.put(&r.offset.to_le_bytes());
                w.put(&[r.log2]);
                w.put(&r.private_header.to_le_bytes());
            }
            Self::Connect(name) | Self::Connected(name) => w.put(name),
            Self::Disconnect { code, reason } => {
                w.put(&code.to_le_bytes());
                w.put(reason);
            }
        }
        w.bytes
    }

    const fn kind(&self) -> u16 {
        match self {
            Self::Ack => 1,
            Self::Hello(_) => 2,
            Self::Init(_) => 3,
            Self::AddRegion { .. } => 4,
            Self::AddRing(_) => 5,
            Self::Connect(_) => 6,
            Self::Connected(_) => 7,
            Self::Disconnect { .. } => 8,
        }
    }

    /// A message's meaning.
    ///
    /// # Errors
    /// It has none.
    pub fn parse(bytes: &[u8; MESSAGE]) -> Result<Self, Bad> {
        let mut r = Reader { bytes, at: 0 };
        Ok(match r.u16() {
            1 => Self::Ack,
            2 => Self::Hello(Hello {
                name: r.take(),
                min_version: r.u16(),
                max_version: r.u16(),
                max_region: r.u16(),
                max_to_client: r.u16(),
                max_to_server: r.u16(),
                max_log2: r.u8(),
            }),
            3 => Self::Init(Init {
                version: r.u16(),
                id: r.u32(),
                mode: r.u8(),
                secret: r.take(),
                name: r.take(),
            }),
            4 => Self::AddRegion { index: r.u16(), size: u64::from_le_bytes(r.take()) },
            5 => {
                let (flags, index, region) = (r.u16(), r.u16(), r.u16());
                let (offset, log2, private_header) = (r.u32(), r.u8(), r.u16());
                if log2 > LOG2_RING_MAX || !offset.is_multiple_of(8) {
                    return Err(Bad::Field);
                }
                Self::AddRing(AddRing {
                    to_server: flags & 1 != 0,
                    index,
                    region,
                    offset,
                    log2,
                    private_header,
                })
            }
            6 => Self::Connect(r.take()),
            7 => Self::Connected(r.take()),
            8 => Self::Disconnect { code: r.u32(), reason: r.take() },
            other => return Err(Bad::Type(other)),
        })
    }
}
