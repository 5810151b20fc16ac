//! TCP headers (RFC 9293): 20 bytes, and up to 40 bytes of options.
//!
//! ```text
//!  0 u16 source port   2 u16 destination port
//!  4 u32 sequence number   8 u32 acknowledgement number
//! 12 u4 header length / 4  u4 0  u8 CWR ECE URG ACK PSH RST SYN FIN
//! 14 u16 window   16 u16 checksum   18 u16 urgent pointer
//! 20 options, padded with zeros to a multiple of 4:
//!    0 end · 1 no operation · 2 MSS u16 · 3 window scale u8 · 4 SACK permitted
//!    5 SACK: 1 to 4 × (left u32, right u32) · 8 timestamps: value u32, echo reply u32
//! ```
//!
//! Always: [`Tcp::parse`] reads back what [`Tcp::emit`] writes. The checksum is not verified here.
//! Options of other kinds are skipped by their length.

/// The length of a TCP header without options, in bytes.
pub const HEADER: usize = 20;
/// The length of the longest TCP header, in bytes.
pub const MAX_HEADER: usize = 60;
/// The most SACK blocks of a segment: four fill the options that have no timestamps.
pub const MAX_SACK: usize = 4;
/// The offset of the checksum in a TCP header, in bytes.
pub const CHECKSUM: usize = 16;
/// The length of the timestamps option with two no-operations before it, in bytes.
pub const TIMESTAMPS: usize = 12;

const MSS_KIND: u8 = 2;
const SCALE_KIND: u8 = 3;
const PERMITTED_KIND: u8 = 4;
const SACK_KIND: u8 = 5;
const TIMESTAMPS_KIND: u8 = 8;
/// Two no-operations and the head of the timestamps option, as all implementations align it
/// (RFC 7323 appendix A).
const ALIGNED: [u8; 4] = [1, 1, TIMESTAMPS_KIND, 10];

/// The control bits of a TCP header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// The sender has no more data.
    pub const FIN: Self = Self(0x01);
    /// The segment synchronizes sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// The segment resets the connection.
    pub const RST: Self = Self(0x04);
    /// The receiver should deliver what it has.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgement number is valid.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is valid.
    pub const URG: Self = Self(0x20);
    /// The segment's receiver got a packet that experienced congestion (RFC 3168).
    pub const ECE: Self = Self(0x40);
    /// The sender has reduced its congestion window (RFC 3168).
    pub const CWR: Self = Self(0x80);

    /// Returns true if any of the bits of `flags` is set.
    #[inline]
    #[must_use]
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }

    /// Returns these bits and those of `flags`.
    #[inline]
    #[must_use]
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// Returns these bits without those of `flags`.
    #[inline]
    #[must_use]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }
}

/// A range of sequence numbers in a SACK option: from the first up to, and without, the second.
pub type SackBlock = (u32, u32);

/// The SACK blocks of a TCP header (RFC 2018), in the order in which they are sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct SackBlocks {
    blocks: [SackBlock; MAX_SACK],
    len: u8,
}

impl SackBlocks {
    /// Appends a block. A block that has no room is dropped.
    pub fn push(&mut self, block: SackBlock) {
        if let Some(place) = self.blocks.get_mut(usize::from(self.len)) {
            *place = block;
            self.len += 1;
        }
    }

    /// Returns the blocks in the order in which they are sent.
    #[must_use]
    pub fn as_slice(&self) -> &[SackBlock] {
        &self.blocks[..usize::from(self.len).min(MAX_SACK)]
    }

    /// Keeps at most the first `len` blocks.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len.min(MAX_SACK) as u8);
    }
}

impl PartialEq for SackBlocks {
    /// Compares the blocks. What lies beyond them is left of blocks that [`SackBlocks::truncate`]
    /// dropped.
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for SackBlocks {}

/// The options of a TCP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpOptions {
    /// The maximum segment size that the sender can receive. SYNs have it.
    pub mss: Option<u16>,
    /// The shift of the sender's windows (RFC 7323). SYNs have it.
    pub window_scale: Option<u8>,
    /// True if the sender accepts SACK options. SYNs have it.
    pub sack_permitted: bool,
    /// The sender's clock, and the clock of the other end that it echoes (RFC 7323).
    pub timestamps: Option<(u32, u32)>,
    /// The ranges that the sender has received out of order, and duplicates (RFC 2018, RFC 2883).
    pub sack: SackBlocks,
}

/// A TCP header with its options.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tcp {
    /// The source port of the segment.
    pub from: u16,
    /// The destination port of the segment.
    pub to: u16,
    /// The sequence number of the first byte, or of the SYN if there is one.
    pub seq: u32,
    /// The next sequence number that the sender expects, if the segment has the flag ACK.
    pub ack: u32,
    /// The control bits of the segment.
    pub flags: Flags,
    /// The window field, before it is scaled.
    pub window: u16,
    /// The urgent pointer, if the segment has the flag URG.
    pub urgent: u16,
    /// The options of the segment.
    pub options: TcpOptions,
}

/// The reason why bytes are not a TCP segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TcpParseError {
    /// The segment is shorter than its header, or the header's length is impossible.
    Length,
    /// An option has a length that its kind cannot have, or is cut off.
    Option,
}

impl Tcp {
    /// Parses a TCP segment without padding. Returns its header and its payload.
    ///
    /// # Errors
    /// [`TcpParseError`].
    #[inline]
    pub fn parse(segment: &[u8]) -> Result<(Self, &[u8]), TcpParseError> {
        let head = segment.first_chunk::<HEADER>().ok_or(TcpParseError::Length)?;
        let len = usize::from(head[12] >> 4) * 4;
        let (header, payload) = segment.split_at_checked(len).ok_or(TcpParseError::Length)?;
        let options = header.get(HEADER..).ok_or(TcpParseError::Length)?;
        let short = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let long = |at: usize| be32(&head[at..]);
        let tcp = Self {
            from: short(0),
            to: short(2),
            seq: long(4),
            ack: long(8),
            flags: Flags(head[13]),
            window: short(14),
            urgent: short(18),
            options: TcpOptions::parse(options)?,
        };
        Ok((tcp, payload))
    }

    /// Writes the header with a checksum of 0, and returns its length: a multiple of 4. SACK blocks
    /// that have no room beside the other options are left out.
    #[inline]
    pub fn emit(&self, out: &mut [u8; MAX_HEADER]) -> usize {
        out[0..2].copy_from_slice(&self.from.to_be_bytes());
        out[2..4].copy_from_slice(&self.to.to_be_bytes());
        out[4..8].copy_from_slice(&self.seq.to_be_bytes());
        out[8..12].copy_from_slice(&self.ack.to_be_bytes());
        out[13] = self.flags.0;
        out[14..16].copy_from_slice(&self.window.to_be_bytes());
        out[16..18].fill(0);
        out[18..20].copy_from_slice(&self.urgent.to_be_bytes());
        let len = self.options.emit(out);
        out[12] = ((len / 4) << 4) as u8;
        len
    }
}

impl TcpOptions {
    #[inline]
    fn parse(bytes: &[u8]) -> Result<Self, TcpParseError> {
        if let Some((&ALIGNED, rest)) = bytes.split_first_chunk()
            && let Ok(times) = <&[u8; 8]>::try_from(rest)
        {
            let timestamps = Some((be32(times), be32(&times[4..])));
            return Ok(Self { timestamps, ..Self::default() });
        }
        Self::parse_any(bytes)
    }

    fn parse_any(mut bytes: &[u8]) -> Result<Self, TcpParseError> {
        let mut options = Self::default();
        while let Some((&kind, rest)) = bytes.split_first() {
            if kind == 0 {
                break;
            }
            if kind == 1 {
                bytes = rest;
                continue;
            }
            let len = usize::from(*rest.first().ok_or(TcpParseError::Option)?);
            let value = bytes.get(2..len).ok_or(TcpParseError::Option)?;
            options.put(kind, value)?;
            bytes = &bytes[len..];
        }
        Ok(options)
    }

    fn put(&mut self, kind: u8, value: &[u8]) -> Result<(), TcpParseError> {
        match (kind, value) {
            (MSS_KIND, &[a, b]) => self.mss = Some(u16::from_be_bytes([a, b])),
            (SCALE_KIND, &[shift]) => self.window_scale = Some(shift),
            (PERMITTED_KIND, []) => self.sack_permitted = true,
            (TIMESTAMPS_KIND, value) if value.len() == 8 => {
                self.timestamps = Some((be32(value), be32(&value[4..])));
            }
            (SACK_KIND, value) if !value.is_empty() && value.len().is_multiple_of(8) => {
                let blocks = value.as_chunks::<8>().0;
                blocks.iter().for_each(|block| self.sack.push((be32(block), be32(&block[4..]))));
            }
            (MSS_KIND | SCALE_KIND | PERMITTED_KIND | TIMESTAMPS_KIND | SACK_KIND, _) => {
                return Err(TcpParseError::Option);
            }
            _ => {}
        }
        Ok(())
    }

    /// Writes the options behind the first [`HEADER`] bytes. Returns the length of the header.
    #[inline]
    fn emit(&self, out: &mut [u8; MAX_HEADER]) -> usize {
        let mut len = HEADER;
        let mut put = |bytes: &[u8]| {
            if let Some(place) = out.get_mut(len..len + bytes.len()) {
                place.copy_from_slice(bytes);
                len += bytes.len();
                return true;
            }
            false
        };
        if let Some(mss) = self.mss {
            let [a, b] = mss.to_be_bytes();
            put(&[MSS_KIND, 4, a, b]);
        }
        // SACK permitted takes the place of the timestamps' no-operations, as in Linux's SYNs.
        let permitted = if self.sack_permitted { [PERMITTED_KIND, 2] } else { [1, 1] };
        if let Some((value, echo)) = self.timestamps {
            let mut option = [0; TIMESTAMPS];
            option[..4].copy_from_slice(&ALIGNED);
            option[..2].copy_from_slice(&permitted);
            option[4..8].copy_from_slice(&value.to_be_bytes());
            option[8..].copy_from_slice(&echo.to_be_bytes());
            put(&option);
        } else if self.sack_permitted {
            put(&[1, 1, PERMITTED_KIND, 2]);
        }
        if let Some(shift) = self.window_scale {
            put(&[1, SCALE_KIND, 3, shift]);
        }
        let blocks = self.sack.as_slice();
        if !blocks.is_empty() {
            let mut option = [0; 4 + 8 * MAX_SACK];
            option[..4].copy_from_slice(&[1, 1, SACK_KIND, 2]);
            // The room behind the timestamps is for three blocks, without them for four.
            for (i, (left, right)) in blocks.iter().enumerate() {
                let at = 4 + 8 * i;
                option[at..at + 4].copy_from_slice(&left.to_be_bytes());
                option[at + 4..at + 8].copy_from_slice(&right.to_be_bytes());
            }
            for count in (1..=blocks.len()).rev() {
                option[3] = (2 + 8 * count) as u8;
                if put(&option[..4 + 8 * count]) {
                    break;
                }
            }
        }
        len
    }
}

fn be32(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests;
