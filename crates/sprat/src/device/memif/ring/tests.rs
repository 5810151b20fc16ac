//! Tests of impossible descriptors and indices that a peer writes into a memif ring in use, at both
//! ends and in both directions. A wrong descriptor costs its frame, a wrong index the link; neither
//! leads to an access.

use super::*;

const LOG2: u8 = 4;
const SIZE: u16 = 1 << LOG2;
const EACH: usize = 128;
const BUFFERS: usize = 4096;
const END: usize = BUFFERS + EACH * SIZE as usize;

/// Makes one end of a ring in memory that both sides see: the client's if `client`, else the
/// server's.
fn ring(regions: &Arc<[Arc<Region>]>, client: bool) -> Ring {
    woken_by(regions, client, interrupt().unwrap())
}

fn woken_by(regions: &Arc<[Arc<Region>]>, client: bool, interrupt: OwnedFd) -> Ring {
    let laid = client.then_some(Laid { at: BUFFERS, each: EACH });
    let place = Place { region: 0, offset: 0, log2: LOG2 };
    Ring::new(regions, place, interrupt, laid).unwrap()
}

fn memory() -> Arc<[Arc<Region>]> {
    [Arc::new(Region::anonymous(END).unwrap())].into()
}

/// The descriptor that a correct peer writes into a slot: the slot's buffer with `length` bytes.
fn good(slot: u16, length: u32) -> Descriptor {
    let offset = (BUFFERS + EACH * usize::from(slot)) as u32;
    Descriptor { next: false, region: 0, length, offset }
}

/// Returns descriptors that lead out of the memory, each with the name of its error.
fn astray() -> Vec<(&'static str, Descriptor)> {
    let good = good(0, 64);
    let end = END as u32;
    vec![
        ("a region that there is not", Descriptor { region: 1, ..good }),
        ("the last region of all", Descriptor { region: u16::MAX, ..good }),
        ("an offset behind the end", Descriptor { offset: end + 1, ..good }),
        ("an offset far behind the end", Descriptor { offset: u32::MAX, ..good }),
        ("an octet too many", Descriptor { offset: end - 63, ..good }),
        ("a length of all there is and more", Descriptor { length: end + 1, offset: 0, ..good }),
        ("a sum that wraps", Descriptor { length: u32::MAX, offset: u32::MAX, ..good }),
    ]
}

fn taken(source: &mut Source) -> Result<(u64, Vec<Vec<u8>>), Broken> {
    let mut burst = Burst::default();
    let bad = source.take(&mut burst)?;
    Ok((bad, (0..burst.len()).map(|i| burst.frame(i).to_vec()).collect()))
}

/// Lets a peer fill `slots` of a ring, and empties them as the server. Returns the number of bad
/// frames, and the good frames.
fn filled(slots: &[Descriptor]) -> (u64, Vec<Vec<u8>>) {
    let regions = memory();
    let (mut source, peer) = (Source::new(ring(&regions, false)), ring(&regions, false));
    for (slot, descriptor) in slots.iter().enumerate() {
        peer.describe(slot, *descriptor);
    }
    peer.publish(HEAD, slots.len() as u16);
    let came = taken(&mut source).unwrap();
    // The next frame is as good as ever.
    let next = slots.len() as u16;
    peer.describe(usize::from(next % SIZE), good(next % SIZE, 77));
    peer.publish(HEAD, next + 1);
    let (bad, frames) = taken(&mut source).unwrap();
    assert_eq!((bad, frames.len(), frames[0].len()), (0, 1, 77));
    came
}

#[test]
fn descriptors_that_lead_astray_cost_their_frame() {
    for (what, descriptor) in astray() {
        assert_eq!(filled(&[descriptor]), (1, Vec::new()), "{what}");
        let (bad, frames) = filled(&[good(0, 60), descriptor, good(2, 61)]);
        assert_eq!(
            (bad, frames.iter().map(Vec::len).collect::<Vec<_>>()),
            (1, vec![60, 61]),
            "{what}"
        );
        // At the end of a chain: all of it goes.
        let first = Descriptor { next: true, ..good(0, 60) };
        assert_eq!(filled(&[first, descriptor]), (1, Vec::new()), "{what}");
    }
}

#[test]
fn frames_of_no_possible_length_are_dropped() {
    for length in 0..HEADER as u32 {
        assert_eq!(filled(&[good(0, length)]), (1, Vec::new()), "{length}");
    }
    // All the ring in one chain, each slot of all the memory: longer than any frame.
    let whole = Descriptor { next: true, region: 0, length: END as u32, offset: 0 };
    let mut chain = [whole; SIZE as usize];
    chain[SIZE as usize - 1].next = false;
    assert_eq!(filled(&chain), (1, Vec::new()));
}

#[test]
fn chains_without_an_end_are_dropped() {
    let on = |slot| Descriptor { next: true, ..good(slot, 10) };
    for slots in 1..=SIZE {
        assert_eq!(filled(&(0..slots).map(on).collect::<Vec<_>>()), (1, Vec::new()), "{slots}");
    }
}

#[test]
fn an_index_that_cannot_be_ends_the_link() {
    for client in [false, true] {
        let index = if client { TAIL } else { HEAD };
        for wrong in [SIZE + 1, SIZE + 2, 1 << 15, u16::MAX] {
            let regions = memory();
            let (mut source, peer) = (Source::new(ring(&regions, client)), ring(&regions, client));
            // Wherever the ring stands.
            for at in [0, 5] {
                for slot in 0..at {
                    peer.describe(usize::from(slot), good(slot, 60));
                }
                peer.publish(index, at);
                assert_eq!(
                    taken(&mut source).map(|(bad, frames)| (bad, frames.len())),
                    Ok((0, at.into()))
                );
                peer.publish(index, at.wrapping_add(wrong));
                assert_eq!(taken(&mut source), Err(Broken), "{wrong} from {at}");
                peer.publish(index, at);
            }
        }
    }
}

#[test]
fn a_server_that_says_where_octets_are_is_not_asked() {
    // The client's buffers are where it laid them out, whatever stands in its memory meanwhile; a
    // length counts up to a buffer's.
    let came = |descriptor: Descriptor| {
        let regions = memory();
        let (mut source, peer) = (Source::new(ring(&regions, true)), ring(&regions, true));
        regions[0].copy_in(BUFFERS, &[9; EACH]);
        peer.describe(0, descriptor);
        peer.publish(TAIL, 1);
        taken(&mut source).unwrap()
    };
    for (what, descriptor) in astray() {
        let usable = descriptor.length as usize <= EACH;
        let expected =
            if usable { (0, vec![vec![9; descriptor.length as usize]]) } else { (1, Vec::new()) };
        assert_eq!(came(descriptor), expected, "{what}");
    }
    assert_eq!(came(good(0, EACH as u32 + 1)), (1, Vec::new()));
    assert_eq!(came(Descriptor { next: true, ..good(0, 60) }), (1, Vec::new()));
}

#[test]
fn buffers_that_cannot_be_are_not_written_to() {
    let put = |slots: &[Descriptor], len: usize| {
        let regions = memory();
        let (mut sink, peer) = (Sink::new(ring(&regions, false)), ring(&regions, false));
        for (slot, descriptor) in slots.iter().enumerate() {
            peer.describe(slot, *descriptor);
        }
        peer.publish(HEAD, slots.len() as u16);
        let frame = vec![5; len];
        let done = sink.put(&[&frame], len);
        sink.flush();
        (done, peer.index(TAIL))
    };
    for (what, descriptor) in astray() {
        assert_eq!(put(&[descriptor], 60), (Err(Broken), 0), "{what}");
        // The second buffer of a frame.
        assert_eq!(put(&[good(0, 64), descriptor], 100), (Err(Broken), 0), "{what}");
    }
    assert_eq!(put(&[good(0, 0)], 60), (Err(Broken), 0), "without room");
    // Too small for it, but more may be offered; unless all have been.
    assert_eq!(put(&[good(0, 64)], 100), (Ok(false), 0));
    let all: Vec<_> = (0..SIZE).map(|slot| good(slot, 2)).collect();
    assert_eq!(put(&all, 100), (Err(Broken), 0));
    assert_eq!(put(&[good(0, 64), good(1, 64)], 100), (Ok(true), 2));
}

#[test]
fn an_index_of_who_takes_that_cannot_be_ends_the_link() {
    for client in [false, true] {
        let index = if client { TAIL } else { HEAD };
        let start = if client { 0 } else { SIZE };
        // Ahead of what can be, or behind what was there before.
        for wrong in [1, SIZE + 1, 1 << 15, 0_u16.wrapping_sub(SIZE + 1)] {
            let regions = memory();
            let (mut sink, peer) = (Sink::new(ring(&regions, client)), ring(&regions, client));
            for slot in 0..SIZE {
                peer.describe(usize::from(slot), good(slot, EACH as u32));
            }
            peer.publish(index, start);
            for _ in 0..SIZE {
                assert_eq!(sink.put(&[&[5; 60]], 60), Ok(true));
            }
            assert_eq!(sink.put(&[&[5; 60]], 60), Ok(false), "it is full");
            peer.publish(index, start.wrapping_add(SIZE).wrapping_add(wrong));
            assert_eq!(sink.put(&[&[5; 60]], 60), Err(Broken), "{wrong}");
        }
    }
}

/// A peer took room back while a frame of several buffers was put into the ring. This side then
/// counted slots beyond the ring, and the next frame overflowed their number.
#[test]
fn an_index_that_goes_back_ends_the_link() {
    for client in [false, true] {
        let index = if client { TAIL } else { HEAD };
        let start = if client { 0 } else { SIZE };
        let regions = memory();
        let (mut sink, peer) = (Sink::new(ring(&regions, client)), ring(&regions, client));
        for slot in 0..SIZE {
            peer.describe(usize::from(slot), good(slot, EACH as u32));
        }
        peer.publish(index, start);
        for _ in 0..SIZE {
            assert_eq!(sink.put(&[&[5; 60]], 60), Ok(true));
        }
        peer.publish(index, start + 3);
        assert_eq!(sink.put(&[&[5; 60]], 60), Ok(true));
        peer.publish(index, start + 1);
        let long = [5; 3 * EACH];
        assert_eq!(sink.put(&[&long], long.len()), Err(Broken), "client {client}");
        assert_eq!(sink.put(&[&[5; 60]], 60), Ok(true), "what was free stays free");
    }
}

/// Signals an eventfd that is full and blocks writers, as only a peer can make it. The write waited
/// for ever, and with it all work of its thread.
#[test]
fn a_full_counter_of_the_peer_is_not_waited_for() {
    use rustix::event::{EventfdFlags, eventfd};
    let regions = memory();
    let counter = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&counter, &(u64::MAX - 1).to_le_bytes()).unwrap();
    let mut sink = Sink::new(woken_by(&regions, false, counter));
    let peer = ring(&regions, false);
    peer.describe(0, good(0, EACH as u32));
    peer.set_masked(false);
    peer.publish(HEAD, 1);
    assert_eq!(sink.put(&[&[5; 60]], 60), Ok(true));
    sink.flush();
    assert_eq!(peer.index(TAIL), 1);
}

/// The client describes its buffers when it makes the rings, and then both ends write flags, region
/// and length alone. Each descriptor still names its buffer, however often the ring has wrapped.
#[test]
fn descriptors_always_name_their_buffers() {
    let regions = memory();
    let (mut sink, peer) = (Sink::new(ring(&regions, true)), ring(&regions, true));
    for number in 0..3 * SIZE {
        let length = 60 + number % 8;
        assert_eq!(sink.put(&[&[5; EACH][..length.into()]], length.into()), Ok(true));
        sink.flush();
        assert_eq!(peer.descriptor(peer.slot(number)), good(number % SIZE, length.into()));
        peer.publish(TAIL, number + 1);
    }
    let regions = memory();
    let (mut source, mut sink) =
        (Source::new(ring(&regions, true)), Sink::new(ring(&regions, false)));
    for number in 0..3 * SIZE {
        assert_eq!(sink.put(&[&[5; 60]], 60), Ok(true));
        sink.flush();
        assert_eq!(taken(&mut source).map(|(bad, frames)| (bad, frames.len())), Ok((0, 1)));
        source.give_back();
        assert_eq!(sink.ring.descriptor(sink.ring.slot(number)), good(number % SIZE, EACH as u32));
    }
}
