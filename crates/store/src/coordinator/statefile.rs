//! The state file: a map of bytes to bytes as a checkpoint and a log (normative: `docs/formats.md`,
//! "State file").
//!
//! ```text
//! 0            4096         start                                   end
//! superblock 0 │ superblock 1 │ … │ checkpoint records │ log records │ zeros, or a torn record
//! ```
//! A superblock tells where the records of the current generation start, and where their sealed
//! part ends: those records are on the disk. Each record carries the CRC32C of itself and of the
//! record before it.
//!
//! What always holds:
//! - Sealed records are complete, in order and unchanged, or the file is refused. Only records
//!   behind the seal may be torn, and at most the last of them was not acknowledged.
//! - A new generation is written beside the old one, and one superblock makes it current.
//! - Both superblocks seal each record, so that damage in two places, one of them a superblock, is
//!   detected too. A sector is written wholly or not at all.
//! - Memory is taken for bytes that are present, never for a length in the file. Damage is a
//!   [`Damage`], never a panic.
//!
//! Elsewhere: the file. [`Piece`]s tell which bytes go where; the disk thread of `sprat` writes
//! them.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use sprat_proto::wire::checksum::crc32c;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version of the state file's format.
pub const FORMAT: u16 = 2;
/// The first bytes of a superblock of the state file.
const MAGIC: [u8; 8] = *b"SPRATST\n";
/// The first bytes of a state file of format 1, which was redb's.
const REDB: &[u8] = b"redb";
/// The distance in bytes of the two superblocks: no sector and no page holds both.
const BLOCK: u64 = 4096;
/// The first offset of a state file at which records may start. No file is shorter.
pub const AREA: u64 = 2 * BLOCK;
/// The longest body of a state file's record, in bytes. Writers stay far below it, and readers
/// refuse more.
pub const MAX_BODY: usize = 16 << 20;
/// The number of bytes after which a checkpoint begins a new record.
const CHECKPOINT_BODY: usize = 256 << 10;

/// A function that takes the key of a change, and the new value or nothing if the key is removed.
pub type EachChange<'f> = dyn FnMut(&[u8], Option<&[u8]>) + 'f;

/// The contents of a state file: values by key.
pub type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// The reason why a state file is refused. The file is untouched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The state file has no bytes.
    #[error("the file is empty: it is no state file, or it was cut off")]
    Empty,
    /// The file does not start like a state file.
    #[error("this is no state file of sprat")]
    Foreign,
    /// Another version of the program wrote the state file.
    #[error("the state file has format {0}, and this program knows format {FORMAT}")]
    Format(u16),
    /// Neither superblock of the state file is intact.
    #[error("the state file is damaged: neither of its two superblocks is whole")]
    Superblocks,
    /// The state file ends before its sealed records do.
    #[error(
        "the state file is damaged: it has {len} bytes, and its records go on up to byte {end}"
    )]
    Truncated {
        /// The length of the state file in bytes.
        len: u64,
        /// The offset at which the sealed records end.
        end: u64,
    },
    /// A sealed record differs from what was written.
    #[error("the state file is damaged: the record at byte {0} is not what was written there")]
    Record(u64),
}

/// A superblock of the state file: 64 bytes, written in one piece into one sector.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Superblock {
    magic: [u8; 8],
    format: U16,
    reserved: [u8; 6],
    /// The number of the current checkpoint (generation), from 1.
    generation: U64,
    /// The offset of the generation's first record.
    start: U64,
    /// The offset at which the sealed records end.
    end: U64,
    /// The checksum of the last sealed record, or the value that the first record continues if
    /// there is none.
    chain: U32,
    reserved2: [u8; 4],
    /// The number of the superblock. The higher one of two is current. An even number is at
    /// superblock 0.
    serial: U64,
    reserved3: [u8; 4],
    /// The CRC32C of the superblock's first 60 bytes.
    crc: U32,
}

/// The head of a record of the state file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    /// The length of the record's body in bytes. 0 means that there is no record.
    len: U32,
    /// The CRC32C of the checksum of the record before, of `len` and of the body.
    crc: U32,
}

const HEAD: usize = size_of::<Head>();

/// The changes of one record of the state file in their order. They are applied all or none.
#[derive(Clone, Debug, Default)]
pub struct Body(Vec<u8>);

const PUT: u8 = 1;
const DELETE: u8 = 2;

impl Body {
    /// Sets a key. Returns false and changes nothing if the pair is too long for the format.
    #[must_use]
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> bool {
        let (Ok(key_len), Ok(value_len)) = (u16::try_from(key.len()), u32::try_from(value.len()))
        else {
            return false;
        };
        self.0.push(PUT);
        self.0.extend_from_slice(&key_len.to_be_bytes());
        self.0.extend_from_slice(key);
        self.0.extend_from_slice(&value_len.to_be_bytes());
        self.0.extend_from_slice(value);
        true
    }

    /// Removes a key. Returns false and changes nothing if it is too long for the format.
    #[must_use]
    pub fn delete(&mut self, key: &[u8]) -> bool {
        let Ok(len) = u16::try_from(key.len()) else { return false };
        self.0.push(DELETE);
        self.0.extend_from_slice(&len.to_be_bytes());
        self.0.extend_from_slice(key);
        true
    }

    /// Returns the bytes of the record's body.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the length of the record's body in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if the record's body has no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Bytes to write at one offset of the state file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The offset in the state file at which to write.
    pub at: u64,
    /// The bytes to write to the state file.
    pub bytes: Vec<u8>,
}

impl Piece {
    /// Returns the offset in the state file behind the piece's bytes.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.at + self.bytes.len() as u64
    }
}

/// The log of a state file: its position, and the checksum that the next record continues.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Log {
    generation: u64,
    start: u64,
    end: u64,
    chain: u32,
    serial: u64,
}

/// The result of reading a state file.
#[derive(Debug)]
pub struct Opened {
    /// The contents of the state file: values by key.
    pub pairs: Pairs,
    /// The log of the state file, ready to be continued.
    pub log: Log,
    /// The records behind the seal, if there are any. They may be in the kernel's memory alone:
    /// write them again before anything depends on them.
    pub unsealed: Option<Piece>,
}

impl Log {
    /// Returns the log of an empty state file, which consists of [`AREA`] zeros and two seals.
    #[must_use]
    pub fn new() -> Self {
        Self::starting(1, AREA, 0)
    }

    fn starting(generation: u64, start: u64, serial: u64) -> Self {
        let chain = crc32c(crc32c(0, &generation.to_be_bytes()), &start.to_be_bytes());
        Self { generation, start, end: start, chain, serial }
    }

    /// Returns the offset of the log's next record.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the length of all records of the log in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Returns true if the log has no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the record for these changes, or `None` if they are empty or too long. It belongs to
    /// the log only after [`Log::wrote`].
    #[must_use]
    pub fn record(&self, body: &Body) -> Option<Piece> {
        if body.is_empty() || body.len() > MAX_BODY {
            return None;
        }
        let len = U32::new(body.len() as u32);
        let crc = U32::new(record_crc(self.chain, len, &body.0));
        let mut bytes = Vec::with_capacity(HEAD + body.len());
        bytes.extend_from_slice(Head { len, crc }.as_bytes());
        bytes.extend_from_slice(&body.0);
        Some(Piece { at: self.end, bytes })
    }

    /// Records that the last result of [`Log::record`] is on the disk.
    pub fn wrote(&mut self, record: &Piece) {
        debug_assert_eq!(record.at, self.end);
        if let Ok((head, _)) = Head::read_from_prefix(&record.bytes) {
            self.chain = head.crc.get();
            self.end = record.end();
        }
    }

    /// Returns the next superblock, which seals all records that are written now.
    pub fn seal(&mut self) -> Piece {
        self.serial += 1;
        let mut block = Superblock {
            magic: MAGIC,
            format: U16::new(FORMAT),
            reserved: [0; 6],
            generation: U64::new(self.generation),
            start: U64::new(self.start),
            end: U64::new(self.end),
            chain: U32::new(self.chain),
            reserved2: [0; 4],
            serial: U64::new(self.serial),
            reserved3: [0; 4],
            crc: U32::new(0),
        };
        block.crc = U32::new(superblock_crc(&block));
        Piece { at: self.serial % 2 * BLOCK, bytes: block.as_bytes().to_vec() }
    }

    /// Returns a new generation of the state file that holds `pairs`: its log, and the bytes to
    /// write. They overwrite nothing that the current generation needs. Once they are on the disk,
    /// two seals make the generation current; the first must be on the disk before the second is
    /// written. Then the file may end behind the generation.
    #[must_use]
    pub fn checkpoint(&self, pairs: &Pairs) -> (Self, Vec<Piece>) {
        let front = self.checkpoint_at(AREA, pairs);
        if front.0.end <= self.start {
            return front;
        }
        self.checkpoint_at(self.end.next_multiple_of(BLOCK), pairs)
    }

    fn checkpoint_at(&self, start: u64, pairs: &Pairs) -> (Self, Vec<Piece>) {
        let mut log = Self::starting(self.generation + 1, start, self.serial);
        let (mut pieces, mut body) = (Vec::new(), Body::default());
        let mut close = |body: &mut Body| {
            if let Some(piece) = log.record(body) {
                log.wrote(&piece);
                pieces.push(piece);
            }
            body.0.clear();
        };
        for (key, value) in pairs {
            if body.len() + key.len() + value.len() > CHECKPOINT_BODY {
                close(&mut body);
            }
            // A pair that was read from a record fits into one.
            let _ = body.put(key, value);
        }
        close(&mut body);
        (log, pieces)
    }
}

impl Default for Log {
    fn default() -> Self {
        Self::new()
    }
}

/// Parses a whole state file.
///
/// # Errors
/// [`Damage`] if it differs from what was written and sealed.
pub fn read(file: &[u8]) -> Result<Opened, Damage> {
    let block = current(file)?;
    let (start, sealed, len) = (block.start.get(), block.end.get(), file.len() as u64);
    if sealed > len {
        return Err(Damage::Truncated { len, end: sealed });
    }
    // No writer counts this far. The sums below cannot overflow.
    let counted = block.serial.get().max(block.generation.get()) < 1 << 63;
    if start < AREA || start > sealed || !counted {
        return Err(Damage::Superblocks);
    }
    let mut log = Log::starting(block.generation.get(), start, block.serial.get());
    let mut pairs = Pairs::new();
    while log.end < sealed {
        let at = log.end;
        let applied = next(file, &mut log).is_some_and(|body| apply(&mut pairs, body));
        if !applied || log.end > sealed {
            return Err(Damage::Record(at));
        }
    }
    if log.chain != block.chain.get() {
        return Err(Damage::Record(start));
    }
    // No writer makes a malformed body with a correct checksum.
    while let Some(body) = next(file, &mut log) {
        if !apply(&mut pairs, body) {
            return Err(Damage::Record(log.end));
        }
    }
    let tail = file.get(sealed as usize..log.end as usize).filter(|tail| !tail.is_empty());
    let unsealed = tail.map(|bytes| Piece { at: sealed, bytes: bytes.to_vec() });
    Ok(Opened { pairs, log, unsealed })
}

/// Returns the current superblock of a state file.
fn current(file: &[u8]) -> Result<Superblock, Damage> {
    if file.is_empty() {
        return Err(Damage::Empty);
    }
    if file.starts_with(REDB) {
        return Err(Damage::Format(1));
    }
    let block = |at: u64| {
        Superblock::read_from_prefix(file.get(at as usize..)?).ok().map(|(block, _)| block)
    };
    let blocks = [block(0), block(BLOCK)];
    let marked = || blocks.iter().flatten().filter(|block| block.magic == MAGIC);
    let whole = marked().filter(|block| block.crc.get() == superblock_crc(block));
    if let Some(block) =
        whole.filter(|block| block.format.get() == FORMAT).max_by_key(|block| block.serial.get())
    {
        return Ok(*block);
    }
    match marked().find(|block| block.format.get() != FORMAT) {
        Some(block) => Err(Damage::Format(block.format.get())),
        None if marked().next().is_some() => Err(Damage::Superblocks),
        None => Err(Damage::Foreign),
    }
}

/// Returns the body of the record at the log's end if it is complete, and moves the log's end
/// behind it.
fn next<'f>(file: &'f [u8], log: &mut Log) -> Option<&'f [u8]> {
    let rest = file.get(usize::try_from(log.end).ok()?..)?;
    let (head, rest) = Head::read_from_prefix(rest).ok()?;
    let len = head.len.get() as usize;
    let body = rest.get(..len).filter(|body| (1..=MAX_BODY).contains(&body.len()))?;
    if record_crc(log.chain, head.len, body) != head.crc.get() {
        return None;
    }
    log.chain = head.crc.get();
    log.end += (HEAD + len) as u64;
    Some(body)
}

/// Applies the changes of a record to the pairs. Returns false if the record is malformed.
fn apply(pairs: &mut Pairs, body: &[u8]) -> bool {
    changes(body, &mut |key, value| {
        match value {
            Some(value) => drop(pairs.insert(key.to_vec(), value.to_vec())),
            None => drop(pairs.remove(key)),
        };
    })
}

/// Calls `each` with the key and the new value of each change of a record's body, or without a
/// value if the change removes the key. Returns false if the body is malformed.
pub fn changes(mut body: &[u8], each: &mut EachChange<'_>) -> bool {
    while !body.is_empty() {
        if change(&mut body, each).is_none() {
            return false;
        }
    }
    true
}

fn change(body: &mut &[u8], each: &mut EachChange<'_>) -> Option<()> {
    let kind = take(body, 1)?[0];
    let len = U16::read_from_bytes(take(body, 2)?).ok()?;
    let key = take(body, len.get().into())?;
    match kind {
        PUT => {
            let len = U32::read_from_bytes(take(body, 4)?).ok()?;
            each(key, Some(take(body, len.get() as usize)?));
        }
        DELETE => each(key, None),
        _ => return None,
    }
    Some(())
}

fn take<'b>(bytes: &mut &'b [u8], len: usize) -> Option<&'b [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

fn record_crc(chain: u32, len: U32, body: &[u8]) -> u32 {
    crc32c(crc32c(crc32c(0, &chain.to_be_bytes()), len.as_bytes()), body)
}

fn superblock_crc(block: &Superblock) -> u32 {
    crc32c(0, &block.as_bytes()[..60])
}

#[cfg(test)]
mod tests;
