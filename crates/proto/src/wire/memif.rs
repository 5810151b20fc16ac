//! The wire format of memif version 2, the shared-memory packet interface of VPP and DPDK: the
//! messages of its control socket, and the layout of its rings. `docs/formats.md` ("memif") is
//! normative.
//!
//! ```text
//! message     128 bytes on a SOCK_SEQPACKET socket, little-endian: 0 u16 type   2 body   zeros
//! ring        0 u32 cookie  4 u16 flags  6 u16 head   64 u16 tail   128 descriptors, 16 bytes each
//! descriptor  0 u16 flags  2 u16 region  4 u32 length  8 u32 offset  12 u32 metadata
//! ```
//!
//! The client allocates all memory: buffers, a ring of full buffers for the server, and a ring of
//! empty buffers that the server fills. So only the client writes a `head`, and only the server a
//! `tail`.
//!
//! Always: [`Message::parse`] reads back what [`Message::emit`] writes. Not here: the order of the
//! messages (the memif device in `sprat`).

#[cfg(test)]
mod tests;

/// The length of a memif message in bytes.
pub const MESSAGE: usize = 128;
/// The only supported version of memif: 2.0.
pub const VERSION: u16 = 0x0200;
/// The length of a name field of a memif message in bytes, its terminating zero included.
pub const NAME: usize = 32;
/// The length of the secret field of a memif message in bytes. Zeros pad it.
pub const SECRET: usize = 24;
/// The length of the reason of a memif disconnection in bytes.
pub const REASON: usize = 96;

/// The value of the cookie field of a memif ring.
pub const COOKIE: u32 = 0x03e3_1f20;
/// The flag of a memif ring whose consumer polls and needs no interrupts.
pub const MASK_INTERRUPT: u16 = 1;
/// The byte offset of the flags in a memif ring.
pub const FLAGS: usize = 4;
/// The byte offset of the head in a memif ring.
pub const HEAD: usize = 6;
/// The byte offset of the tail in a memif ring.
pub const TAIL: usize = 64;
/// The byte offset of the descriptors in a memif ring.
pub const DESCRIPTORS: usize = 128;
/// The length of a memif ring's descriptor in bytes.
pub const DESCRIPTOR: usize = 16;
/// The binary logarithm of the most descriptors of a memif ring.
pub const LOG2_RING_MAX: u8 = 14;

/// Returns the length in bytes of a memif ring of `1 << log2` descriptors.
#[must_use]
pub const fn ring_len(log2: u8) -> usize {
    DESCRIPTORS + (DESCRIPTOR << log2)
}

/// A descriptor of a memif ring: one buffer of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Descriptor {
    /// The frame continues in the next descriptor of the memif ring.
    pub next: bool,
    /// The index of the memif region that contains the buffer.
    pub region: u16,
    /// The bytes used of a full memif buffer, or the size of an empty one.
    pub length: u32,
    /// The byte offset of the buffer in its memif region.
    pub offset: u32,
}

impl Descriptor {
    /// Returns the memif descriptor as two words in native byte order.
    #[inline]
    #[must_use]
    pub const fn words(self) -> [u64; 2] {
        let first = self.next as u64 | (self.region as u64) << 16 | (self.length as u64) << 32;
        [first, self.offset as u64]
    }

    /// Makes a memif descriptor from two words. It ignores unknown flags and the metadata.
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

/// The memif server's first message: its version and its limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The name of the server's memif implementation.
    pub name: [u8; NAME],
    /// The oldest memif version that the server supports.
    pub min_version: u16,
    /// The newest memif version that the server supports.
    pub max_version: u16,
    /// The highest region index that the memif server accepts.
    pub max_region: u16,
    /// The highest index of a memif ring to the client that the server accepts.
    pub max_to_client: u16,
    /// The highest index of a memif ring to the server that the server accepts.
    pub max_to_server: u16,
    /// The binary logarithm of the descriptors of the largest memif ring.
    pub max_log2: u8,
}

/// The memif client's first message: the interface that it connects to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Init {
    /// The memif version of all further messages.
    pub version: u16,
    /// The number of the memif interface at this socket.
    pub id: u32,
    /// The mode of the memif interface: 0 for Ethernet frames.
    pub mode: u8,
    /// The memif server's secret, or zeros if it has none.
    pub secret: [u8; SECRET],
    /// The name of the client's memif implementation.
    pub name: [u8; NAME],
}

/// The message that adds a memif ring. It carries the file descriptor of the ring's interrupts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddRing {
    /// The memif ring carries frames to the server; otherwise to the client.
    pub to_server: bool,
    /// The index of the memif ring among the rings of its direction.
    pub index: u16,
    /// The index of the memif region that contains the ring.
    pub region: u16,
    /// The byte offset of the ring in its memif region.
    pub offset: u32,
    /// The binary logarithm of the number of descriptors of the memif ring.
    pub log2: u8,
    /// The number of bytes before each frame that are reserved for the application.
    pub private_header: u16,
}

/// A message on the memif control socket. `Ack` answers `Init`, `AddRegion` and `AddRing`;
/// `Connected` answers `Connect`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// The acknowledgement of a memif message.
    Ack,
    /// The memif server's first message, with its version and its limits.
    Hello(Hello),
    /// The memif client's first message, with the interface that it connects to.
    Init(Init),
    /// A memory region of the memif client. The message carries its file descriptor.
    AddRegion {
        /// The index of the memory region, counted from 0.
        index: u16,
        /// The size of the memif client's memory region in bytes.
        size: u64,
    },
    /// A memif ring in a region that an earlier message added.
    AddRing(AddRing),
    /// The end of the memif client's setup, with the name of its interface.
    Connect([u8; NAME]),
    /// The memif link is up. The message has the name of the server's interface.
    Connected([u8; NAME]),
    /// The end of the memif link.
    Disconnect {
        /// The error code of a memif disconnection, usually 0.
        code: u32,
        /// The reason of a memif disconnection as text.
        reason: [u8; REASON],
    },
}

/// The reason why 128 bytes are not a valid memif message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemifParseError {
    /// The type of the memif message is unknown.
    #[error("memif has no message of type {0}")]
    Type(u16),
    /// A field of the memif message has an invalid value.
    #[error("a field of the memif message has an invalid value")]
    Field,
}

/// Returns `text` as a zero-terminated field of a memif message, truncated if it is too long.
#[must_use]
pub fn chars<const N: usize>(text: &str) -> [u8; N] {
    let mut chars = [0; N];
    for (to, from) in chars[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from;
    }
    chars
}

/// Writes the fields of a memif message one after the other.
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

/// Reads the fields of a memif message one after the other.
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
        let [byte] = self.take();
        byte
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
}

impl Message {
    /// Returns the memif message in wire format.
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

    /// Parses a memif message.
    ///
    /// # Errors
    /// [`MemifParseError`] if the message's type is unknown or a field is invalid.
    pub fn parse(bytes: &[u8; MESSAGE]) -> Result<Self, MemifParseError> {
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
                    return Err(MemifParseError::Field);
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
            other => return Err(MemifParseError::Type(other)),
        })
    }
}
