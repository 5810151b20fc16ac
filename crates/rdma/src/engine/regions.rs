//! Registered memory by the numbers that the engine knows, and messages, which are registered while
//! peers read them or while they arrive.
//!
//! ```text
//!  number = generation (44 bits) | slot (20 bits)
//!  stands for a region │ memory of the program │ a message to send │ a message that arrives
//! ```
//!
//! Always holds: the engine has checked every span against its registration, and a region lives at
//! least as long as its registration, so that no span is refused in practice; the second check here
//! costs one comparison. A number is never used twice: a record that still names a removed region
//! finds nothing, and not its successor. A message that arrives is written from its start to its
//! end, and only there.

use std::sync::Arc;

use sprat_proto::rdma::{Memory, Part, Record, Span, Unmapped};
use sprat_proto::rpc::{Message, Slices};
use sprat_proto::wire::checksum::Crc32c;

use sprat_sys::gather::Source;
use sprat_sys::memory::{Foreign, Region, append_summed};

/// The number of bits in a region's number that are its slot; the other bits count how often the
/// slot was used.
const SLOT_BITS: u32 = 20;
const SLOTS: usize = 1 << SLOT_BITS;
const LAST_GENERATION: u64 = (1 << (64 - SLOT_BITS)) - 1;

/// The memory that a region's number stands for.
#[derive(Debug)]
enum Place {
    /// Memory that this library mapped, which peers and the program write too.
    Mapped(Arc<Region>),
    /// The program's own memory, which it may have unmapped.
    Foreign(Foreign),
    /// A message to send, from where its bytes and slices lie.
    Outgoing(Message),
    /// A message that arrives: the bytes received so far. The vector's capacity is the room for the
    /// rest.
    Incoming(Vec<u8>),
}

#[derive(Debug, Default)]
struct Slot {
    generation: u64,
    place: Option<Place>,
}

/// The registered memory of a device: regions by their numbers.
#[derive(Debug, Default)]
pub struct Regions {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// The number of bytes copied into registered memory by [`Memory::write`].
    pub(crate) written: u64,
}

fn slot_of(number: u64) -> usize {
    number as usize % SLOTS
}

impl Regions {
    /// Adds a memory region; returns its number, or `None` if there are too many.
    pub fn insert(&mut self, region: Arc<Region>) -> Option<u64> {
        self.add(Place::Mapped(region))
    }

    /// Adds memory of the program as a region; returns its number, or `None` if there are too many.
    pub(crate) fn insert_foreign(&mut self, memory: Foreign) -> Option<u64> {
        self.add(Place::Foreign(memory))
    }

    /// True if the region `number` is memory of the program with a length of `len` bytes.
    pub(crate) fn is_foreign(&self, number: u64, len: usize) -> bool {
        matches!(self.slot(number), Some(Place::Foreign(memory)) if memory.len() == len)
    }

    /// Replaces the memory of region `number` by `memory`, if the region is memory of the program
    /// with the same length.
    pub(crate) fn replace_foreign(&mut self, number: u64, memory: Foreign) {
        if self.is_foreign(number, memory.len())
            && let Some(slot) = self.slots.get_mut(slot_of(number))
        {
            slot.place = Some(Place::Foreign(memory));
        }
    }

    /// Adds a message that peers will read; returns its number, or `None` if there are too many
    /// regions.
    pub fn insert_outgoing(&mut self, message: Message) -> Option<u64> {
        self.add(Place::Outgoing(message))
    }

    /// Adds the memory of a message that arrives: the bytes received so far, and room for the rest.
    /// Returns its number, or `None` if there are too many regions.
    pub fn insert_incoming(&mut self, message: Vec<u8>) -> Option<u64> {
        self.add(Place::Incoming(message))
    }

    fn add(&mut self, place: Place) -> Option<u64> {
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.slots.len() == SLOTS => return None,
            None => {
                self.slots.push(Slot::default());
                self.slots.len() as u32 - 1
            }
        };
        let slot = &mut self.slots[at as usize];
        slot.place = Some(place);
        Some(slot.generation << SLOT_BITS | u64::from(at))
    }

    /// Removes a region, so that its number stands for nothing. Returns false if there was no such
    /// region.
    pub fn remove(&mut self, number: u64) -> bool {
        self.take(number).is_some()
    }

    /// Removes a message that peers could read, and returns it.
    pub fn remove_outgoing(&mut self, number: u64) -> Option<Message> {
        match self.take(number) {
            Some(Place::Outgoing(message)) => Some(message),
            _ => None,
        }
    }

    /// Removes a message that has arrived, and returns it.
    pub fn remove_incoming(&mut self, number: u64) -> Option<Vec<u8>> {
        match self.take(number) {
            Some(Place::Incoming(message)) => Some(message),
            _ => None,
        }
    }

    fn take(&mut self, number: u64) -> Option<Place> {
        let slot = self.slots.get_mut(slot_of(number))?;
        if slot.generation != number >> SLOT_BITS {
            return None;
        }
        let place = slot.place.take()?;
        // A slot whose numbers are used up is used no more; that takes a year of nothing else.
        if slot.generation < LAST_GENERATION {
            slot.generation += 1;
            self.free.push(slot_of(number) as u32);
        }
        Some(place)
    }

    #[inline]
    fn slot(&self, number: u64) -> Option<&Place> {
        let slot = self.slots.get(slot_of(number))?;
        if slot.generation != number >> SLOT_BITS {
            return None;
        }
        slot.place.as_ref()
    }

    /// Calls `each` with the pieces of memory that a span covers, in order.
    ///
    /// # Errors
    /// The span does not lie in memory that the device sends from; `each` may have had some pieces.
    #[inline]
    pub(super) fn pieces<'r>(
        &'r self,
        span: Span,
        slices: &'r dyn Slices,
        mut each: impl FnMut(Source<'r>),
    ) -> Result<(), Unmapped> {
        let (offset, len) = (span.offset as usize, span.len as usize);
        match self.slot(span.region).ok_or(Unmapped)? {
            Place::Mapped(region) => {
                within(region.len(), span)?;
                each(Source::Region(region, offset, len));
                Ok(())
            }
            Place::Foreign(memory) => {
                within(memory.len(), span)?;
                each(Source::Foreign(memory, offset, len));
                Ok(())
            }
            Place::Outgoing(message) => {
                parts(message, slices, span, |part| each(Source::Bytes(part)))
            }
            Place::Incoming(_) => Err(Unmapped),
        }
    }

    /// The first span of a record, behind the record's first `skip` bytes, that cannot be read.
    pub(super) fn unreadable(
        &self,
        record: &Record,
        mut skip: usize,
        slices: &dyn Slices,
    ) -> Option<Span> {
        for part in &record.parts {
            let len = match part {
                Part::Bytes(range) => range.len(),
                Part::Memory(span) => span.len as usize,
            };
            let gone = skip.min(len);
            skip -= gone;
            if let Part::Memory(span) = part
                && gone < len
                && self.look(*span, slices).is_err()
            {
                return Some(*span);
            }
        }
        None
    }

    /// Checks that a span can be read.
    fn look(&self, span: Span, slices: &dyn Slices) -> Result<(), Unmapped> {
        if let Some(Place::Foreign(memory)) = self.slot(span.region) {
            within(memory.len(), span)?;
            return Ok(memory.probe(span.offset as usize, span.len as usize)?);
        }
        self.pieces(span, slices, |_| ())
    }

    /// The place that a span is received to: in a region, or behind the bytes of an arriving
    /// message if the span comes next and fits its capacity.
    #[inline]
    pub(super) fn sink(&mut self, span: Span) -> Option<Sink<'_>> {
        let slot = self.slots.get_mut(slot_of(span.region))?;
        if slot.generation != span.region >> SLOT_BITS {
            return None;
        }
        match slot.place.as_mut()? {
            Place::Mapped(region) => within(region.len(), span).ok().map(|()| Sink::Region(region)),
            Place::Foreign(memory) => {
                within(memory.len(), span).ok().map(|()| Sink::Foreign(memory))
            }
            Place::Incoming(message) => {
                let (next, room) = (message.len() as u64, message.capacity() - message.len());
                (span.offset == next && span.len as usize <= room).then_some(Sink::Message(message))
            }
            Place::Outgoing(_) => None,
        }
    }

    #[inline]
    fn append_with(
        &self,
        span: Span,
        slices: &dyn Slices,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Unmapped> {
        match self.slot(span.region).ok_or(Unmapped)? {
            Place::Mapped(region) => {
                within(region.len(), span)?;
                region.append_to(span.offset as usize, span.len as usize, bytes);
                Ok(())
            }
            Place::Foreign(memory) => {
                within(memory.len(), span)?;
                Ok(memory.append_to(span.offset as usize, span.len as usize, bytes)?)
            }
            Place::Outgoing(message) => {
                parts(message, slices, span, |part| bytes.extend_from_slice(part))
            }
            Place::Incoming(_) => Err(Unmapped),
        }
    }

    #[inline]
    fn append_summed_with(
        &self,
        span: Span,
        slices: &dyn Slices,
        bytes: &mut Vec<u8>,
        crc: u32,
    ) -> Result<u32, Unmapped> {
        let (offset, len) = (span.offset as usize, span.len as usize);
        match self.slot(span.region).ok_or(Unmapped)? {
            Place::Mapped(region) => {
                within(region.len(), span)?;
                Ok(region.append_summed(offset, len, bytes, crc))
            }
            Place::Foreign(memory) => {
                within(memory.len(), span)?;
                Ok(memory.append_summed(offset, len, bytes, crc)?)
            }
            Place::Outgoing(message) => {
                let mut sum = crc;
                parts(message, slices, span, |part| sum = append_summed(bytes, part, sum))?;
                Ok(sum)
            }
            Place::Incoming(_) => Err(Unmapped),
        }
    }

    fn read_with(&self, span: Span, slices: &dyn Slices, bytes: &mut [u8]) -> Result<(), Unmapped> {
        debug_assert_eq!(span.len as usize, bytes.len(), "a span is as long as what is copied");
        match self.slot(span.region).ok_or(Unmapped)? {
            Place::Mapped(region) => {
                within(region.len(), span)?;
                region.copy_out(span.offset as usize, bytes);
                Ok(())
            }
            Place::Foreign(memory) => {
                within(memory.len(), span)?;
                Ok(memory.copy_out(span.offset as usize, bytes)?)
            }
            Place::Outgoing(message) => {
                let mut at = 0;
                parts(message, slices, span, |part| {
                    bytes[at..at + part.len()].copy_from_slice(part);
                    at += part.len();
                })
            }
            Place::Incoming(_) => Err(Unmapped),
        }
    }
}

/// Memory that bytes are received to without a copy.
pub(super) enum Sink<'r> {
    /// The bytes go to the span's place in a mapped region.
    Region(&'r Region),
    /// The bytes go to the span's place in memory of the program.
    Foreign(&'r Foreign),
    /// The bytes go behind those that the arriving message already has.
    Message(&'r mut Vec<u8>),
}

/// Checks that a span lies within `len` bytes.
#[inline]
fn within(len: usize, span: Span) -> Result<(), Unmapped> {
    let end = span.offset.checked_add(u64::from(span.len)).ok_or(Unmapped)?;
    if end <= len as u64 { Ok(()) } else { Err(Unmapped) }
}

/// Calls `each` with the parts of a message that a span covers.
fn parts<'m>(
    message: &'m Message,
    slices: &'m dyn Slices,
    span: Span,
    mut each: impl FnMut(&'m [u8]),
) -> Result<(), Unmapped> {
    let (mut skip, mut left) = (span.offset as usize, span.len as usize);
    let named = message.slices.iter().map(|&slice| slices.bytes(slice));
    for part in std::iter::once(&message.bytes[..]).chain(named) {
        let gone = skip.min(part.len());
        skip -= gone;
        let part = &part[gone..part.len().min(gone + left)];
        left -= part.len();
        if !part.is_empty() {
            each(part);
        }
    }
    if left == 0 { Ok(()) } else { Err(Unmapped) }
}

impl Memory for Regions {
    #[inline]
    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), Unmapped> {
        debug_assert_eq!(span.len as usize, bytes.len(), "a span is as long as what is copied");
        match self.sink(span).ok_or(Unmapped)? {
            Sink::Region(region) => region.copy_in(span.offset as usize, bytes),
            Sink::Foreign(memory) => memory.copy_in(span.offset as usize, bytes)?,
            Sink::Message(message) => message.extend_from_slice(bytes),
        }
        self.written += bytes.len() as u64;
        Ok(())
    }

    #[inline]
    fn read(&mut self, span: Span, bytes: &mut [u8]) -> Result<(), Unmapped> {
        self.read_with(span, &(), bytes)
    }

    #[inline]
    fn append(&mut self, span: Span, bytes: &mut Vec<u8>) -> Result<(), Unmapped> {
        self.append_with(span, &(), bytes)
    }

    fn append_summed(
        &mut self,
        span: Span,
        bytes: &mut Vec<u8>,
        crc: u32,
        _: Crc32c,
    ) -> Result<u32, Unmapped> {
        self.append_summed_with(span, &(), bytes, crc)
    }

    fn atomic(&mut self, span: Span, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, Unmapped> {
        use std::sync::atomic::Ordering;
        let region = match self.slot(span.region).ok_or(Unmapped)? {
            Place::Mapped(region) if span.offset.is_multiple_of(8) => region,
            Place::Foreign(memory) => {
                within(memory.len(), Span { len: 8, ..span })?;
                return Ok(memory.atomic(span.offset as usize, change)?);
            }
            _ => return Err(Unmapped),
        };
        within(region.len(), Span { len: 8, ..span })?;
        let word = region.word(span.offset as usize);
        let mut old = word.load(Ordering::SeqCst);
        while let Err(other) =
            word.compare_exchange(old, change(old), Ordering::SeqCst, Ordering::SeqCst)
        {
            old = other;
        }
        Ok(old)
    }
}

/// Registered memory together with the slices that messages name.
pub(super) struct Reach<'r> {
    pub(super) regions: &'r mut Regions,
    pub(super) slices: &'r dyn Slices,
}

impl Memory for Reach<'_> {
    #[inline]
    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), Unmapped> {
        self.regions.write(span, bytes)
    }

    #[inline]
    fn read(&mut self, span: Span, bytes: &mut [u8]) -> Result<(), Unmapped> {
        self.regions.read_with(span, self.slices, bytes)
    }

    #[inline]
    fn append(&mut self, span: Span, bytes: &mut Vec<u8>) -> Result<(), Unmapped> {
        self.regions.append_with(span, self.slices, bytes)
    }

    #[inline]
    fn append_summed(
        &mut self,
        span: Span,
        bytes: &mut Vec<u8>,
        crc: u32,
        _: Crc32c,
    ) -> Result<u32, Unmapped> {
        self.regions.append_summed_with(span, self.slices, bytes, crc)
    }

    fn atomic(&mut self, span: Span, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, Unmapped> {
        self.regions.atomic(span, change)
    }
}

#[cfg(test)]
mod tests {
    use sprat_proto::rpc::Slice;

    use super::*;

    fn span(region: u64, offset: u64, len: u32) -> Span {
        Span { region, offset, len }
    }

    #[test]
    fn copies_stay_within_the_region_and_its_life() {
        let mut regions = Regions::default();
        let first = regions.insert(Arc::new(Region::anonymous(4096).unwrap())).unwrap();
        let second = regions.insert(Arc::new(Region::anonymous(4096).unwrap())).unwrap();
        assert_ne!(first, second);
        regions.write(span(first, 4090, 6), b"sprats").unwrap();
        let mut bytes = [0; 6];
        regions.read(span(first, 4090, 6), &mut bytes).unwrap();
        assert_eq!(&bytes, b"sprats");
        regions.read(span(second, 4090, 6), &mut bytes).unwrap();
        assert_eq!(bytes, [0; 6]);
        assert_eq!(regions.write(span(first, 4091, 6), b"sprats"), Err(Unmapped));
        assert_eq!(regions.write(span(first, u64::MAX, 6), b"sprats"), Err(Unmapped));
        assert_eq!(regions.written, 6);
    }

    #[test]
    fn a_number_is_given_out_once() {
        let mut regions = Regions::default();
        let region = Arc::new(Region::anonymous(4096).unwrap());
        let mut seen = std::collections::BTreeSet::new();
        // Near the end of a slot's numbers, and past it.
        regions.slots.push(Slot { generation: LAST_GENERATION - 2, place: None });
        regions.free.push(0);
        for _ in 0..6 {
            let number = regions.insert(Arc::clone(&region)).unwrap();
            assert!(seen.insert(number), "{number}");
            regions.remove(number);
            regions.remove(number);
            assert_eq!(regions.read(span(number, 0, 1), &mut [0]), Err(Unmapped));
        }
        assert_eq!(regions.slots.len(), 2);
    }

    #[test]
    fn an_atomic_is_one_step_on_an_aligned_word() {
        let mut regions = Regions::default();
        let region = regions.insert(Arc::new(Region::anonymous(4096).unwrap())).unwrap();
        assert_eq!(regions.atomic(span(region, 8, 8), &mut |_| 5), Ok(0));
        assert_eq!(regions.atomic(span(region, 8, 8), &mut |old| old + 2), Ok(5));
        assert_eq!(regions.atomic(span(region, 8, 8), &mut |old| old), Ok(7));
        assert_eq!(regions.atomic(span(region, 4, 8), &mut |old| old), Err(Unmapped));
    }
    /// A test's only slice, which has the number 7.
    struct Seven(&'static [u8]);

    impl Slices for Seven {
        fn bytes(&self, slice: Slice) -> &[u8] {
            if slice.segment == 7 { self.0 } else { &[] }
        }
    }

    #[test]
    fn a_message_is_sent_from_where_it_lies() {
        let mut regions = Regions::default();
        let mut message = Message::from(&b"head "[..]);
        message.slices.push(Slice { segment: 7, offset: 0, len: 6 });
        let number = regions.insert_outgoing(message.clone()).unwrap();
        let mut bytes = [0; 7];
        let mut reach = Reach { regions: &mut regions, slices: &Seven(b"sprats") };
        reach.read(span(number, 3, 7), &mut bytes).unwrap();
        assert_eq!(&bytes, b"d sprat");
        assert_eq!(reach.read(span(number, 5, 7), &mut bytes), Err(Unmapped), "past its end");
        assert_eq!(reach.write(span(number, 0, 1), b"x"), Err(Unmapped), "peers only read it");
        let mut pieces = Vec::new();
        regions
            .pieces(span(number, 3, 7), &Seven(b"sprats"), |piece| pieces.push(piece.len()))
            .unwrap();
        assert_eq!(pieces, [2, 5]);
        // Without the memory of its slices it is not sent, not even in part.
        assert_eq!(regions.read(span(number, 3, 7), &mut bytes), Err(Unmapped));
        assert_eq!(regions.remove_outgoing(number), Some(message));
        assert_eq!(regions.read(span(number, 0, 1), &mut [0]), Err(Unmapped));
    }

    #[test]
    fn a_copy_comes_with_the_sum_of_its_bytes() {
        let mut regions = Regions::default();
        let region = regions.insert(Arc::new(Region::anonymous(4096).unwrap())).unwrap();
        regions.write(span(region, 90, 4000), &[7; 4000]).unwrap();
        let mut message = Message::from(&[1; 2000][..]);
        message.slices.push(Slice { segment: 7, offset: 0, len: 6 });
        let outgoing = regions.insert_outgoing(message).unwrap();
        let portable = sprat_proto::wire::checksum::crc32c;
        let mut reach = Reach { regions: &mut regions, slices: &Seven(b"sprats") };
        let mut bytes = b"front".to_vec();
        for span in [span(region, 80, 4010), span(region, 0, 0), span(outgoing, 10, 1_996)] {
            let start = bytes.len();
            let sum = reach.append_summed(span, &mut bytes, 5, portable).unwrap();
            let mut copy = vec![0; span.len as usize];
            reach.read(span, &mut copy).unwrap();
            assert!(bytes[start..] == copy, "{span:?}");
            assert_eq!(sum, portable(5, &copy), "{span:?}");
        }
        let past = reach.append_summed(span(region, 4000, 97), &mut bytes, 5, portable);
        assert_eq!(past, Err(Unmapped));
    }

    #[test]
    fn a_message_comes_from_its_start_to_its_end() {
        let mut regions = Regions::default();
        let number = regions.insert_incoming(Vec::with_capacity(6)).unwrap();
        assert_eq!(regions.write(span(number, 1, 2), b"pr"), Err(Unmapped), "not its start");
        regions.write(span(number, 0, 2), b"sp").unwrap();
        assert_eq!(
            regions.write(span(number, 0, 2), b"SP"),
            Err(Unmapped),
            "that is there already"
        );
        assert_eq!(
            regions.write(span(number, 2, 4000), &[0; 4000]),
            Err(Unmapped),
            "more than there is room for"
        );
        assert_eq!(regions.read(span(number, 0, 2), &mut [0; 2]), Err(Unmapped), "nobody reads it");
        regions.write(span(number, 2, 4), b"rats").unwrap();
        assert_eq!(regions.remove_incoming(number).as_deref(), Some(&b"sprats"[..]));
        assert_eq!(regions.remove_incoming(number), None);
    }
}
