//! Fuzzes a memif ring with a script of its peer, which writes descriptors and indices while this
//! side takes, puts and flushes. Nothing panics, no frame is longer than the most that a frame may
//! have, and the memory behind the ring is not touched (or the memory's own checks would panic).

use super::*;

const LOG2: u8 = 4;
const BUFFERS: usize = 4096;
const EACH: usize = 128;
const OCTETS: usize = BUFFERS + (EACH << LOG2);

/// Runs a script of the peer's writes and of our operations on one memif ring.
pub(crate) fn run(script: &[u8]) {
    let Some((&how, mut script)) = script.split_first() else { return };
    let Ok(region) = Region::anonymous(OCTETS) else { return };
    let regions: Arc<[Arc<Region>]> = [Arc::new(region)].into();
    let laid = (how & 1 == 1).then_some(Laid { at: BUFFERS, each: EACH });
    let place = Place { region: 0, offset: 0, log2: LOG2 };
    let ring = || {
        let interrupt = interrupt().expect("there are descriptors left");
        Ring::new(&regions, place, interrupt, laid).expect("the ring fits")
    };
    let peer = Window::new(&regions[0], 0, DESCRIPTORS);
    let (mut source, mut sink) = (Source::new(ring()), Sink::new(ring()));
    let mut burst = Burst::default();
    while let Some((&step, rest)) = script.split_first() {
        let Some((operand, rest)) = rest.split_first_chunk::<8>() else { return };
        script = rest;
        let value = u64::from_le_bytes(*operand);
        let at = 8 * (usize::from(step >> 3) + 32 * usize::from(how & 2 == 2 && value & 1 == 1));
        let done = match step & 7 {
            // Descriptors, and then any word of the ring's head and descriptors.
            0 | 1 => {
                regions[0].word(DESCRIPTORS + at).store(value, Ordering::Relaxed);
                Ok(())
            }
            2 => {
                regions[0].word(at % (DESCRIPTORS + 512)).store(value, Ordering::Relaxed);
                Ok(())
            }
            3 => {
                peer.short(HEAD as u64).fetch_add(value as u16 % 20, Ordering::Relaxed);
                Ok(())
            }
            4 => {
                peer.short(TAIL as u64).fetch_add(value as u16 % 20, Ordering::Relaxed);
                Ok(())
            }
            5 => {
                burst.clear();
                let taken = source.take(&mut burst).map(drop);
                (0..burst.len())
                    .for_each(|i| assert!((HEADER..=MAX_FRAME).contains(&burst.frame(i).len())));
                taken
            }
            6 => {
                let frame = [7; 2048];
                let len = HEADER + value as usize % (frame.len() - HEADER);
                sink.put(&[&frame[..HEADER], &frame[HEADER..len]], len).map(drop)
            }
            _ => {
                sink.flush();
                Ok(())
            }
        };
        if done.is_err() {
            return;
        }
    }
}
