//! The hello: the first message in each direction on the socket of a connection over shared memory,
//! by which the two sides agree on the rings. Layout: docs/formats.md, "Shared memory".
//!
//! Not here: the memory file that travels with the server's hello (`connection`), and the contents
//! of the rings (`ring`).

use sprat_sys::ring::{MAX_SIZE, MIN_SIZE};

/// The length of a hello in bytes.
pub(super) const LEN: usize = 32;
/// The offset of the first ring's data in the memory file, behind the control blocks of both rings.
pub(super) const DATA: usize = 4096;

const MAGIC: u32 = 0x5350_5254;
const VERSION: u16 = 1;
/// The kind of data that the rings carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// The rings carry datagrams of the RPC transport.
    Datagrams = 1,
    /// The rings carry Ethernet frames.
    Frames = 2,
}

/// The feature bit in a hello: this side has the barrier of `ring::barrier`.
const BARRIER: u32 = 1;

const CLIENT: u8 = 0;
const ACCEPTED: u8 = 1;
const OTHER_VERSION: u8 = 2;
const OTHER_KIND: u8 = 3;

/// The server's answer to a client's hello that it accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Grant {
    /// The length of each ring of the connection, in bytes.
    pub(super) ring_bytes: usize,
    /// The secret of the ring that carries data to the server.
    pub(super) to_server: u64,
    /// The secret of the ring that carries data to the client.
    pub(super) to_client: u64,
    /// True if the server has the barrier of `ring::barrier`.
    pub(super) barrier: bool,
}

/// The reason why a hello is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Refusal {
    /// The peer's message is no hello, or contradicts itself.
    #[error("the peer's first message is no hello of Sprat")]
    Garbage,
    /// The peer speaks another version of the hello.
    #[error("the peer speaks another version of the shared-memory format")]
    Version,
    /// The peer's rings carry another kind of data.
    #[error("the peer's rings carry something else: fast+shm and fast+shmnet do not meet")]
    Kind,
}

impl Refusal {
    /// The server's answer to a hello that it refuses, before it closes the connection. Garbage
    /// gets no answer.
    pub(super) fn answer(self, kind: Kind) -> Option<[u8; LEN]> {
        match self {
            Self::Garbage => None,
            Self::Version => Some(encode(kind, OTHER_VERSION, false, None)),
            Self::Kind => Some(encode(kind, OTHER_KIND, false, None)),
        }
    }
}

fn encode(kind: Kind, status: u8, barrier: bool, grant: Option<&Grant>) -> [u8; LEN] {
    let mut b = [0; LEN];
    b[0..4].copy_from_slice(&MAGIC.to_be_bytes());
    b[4..6].copy_from_slice(&VERSION.to_be_bytes());
    b[6] = kind as u8;
    b[7] = status;
    b[8..12].copy_from_slice(&(if barrier { BARRIER } else { 0 }).to_be_bytes());
    if let Some(grant) = grant {
        b[12..16].copy_from_slice(&(grant.ring_bytes as u32).to_be_bytes());
        b[16..24].copy_from_slice(&grant.to_server.to_be_bytes());
        b[24..32].copy_from_slice(&grant.to_client.to_be_bytes());
    }
    b
}

/// Encodes the client's hello.
pub(super) fn of_client(kind: Kind, barrier: bool) -> [u8; LEN] {
    encode(kind, CLIENT, barrier, None)
}

/// Encodes the server's hello.
pub(super) fn of_server(kind: Kind, grant: &Grant) -> [u8; LEN] {
    encode(kind, ACCEPTED, grant.barrier, Some(grant))
}

fn number<const N: usize>(b: &[u8; LEN], at: usize) -> [u8; N] {
    std::array::from_fn(|i| b[at + i])
}

/// Checks the parts that the hellos of both sides have in common; returns the bytes and the
/// features.
fn common(kind: Kind, bytes: &[u8]) -> Result<(&[u8; LEN], u32), Refusal> {
    let b: &[u8; LEN] = bytes.try_into().map_err(|_| Refusal::Garbage)?;
    if u32::from_be_bytes(number(b, 0)) != MAGIC {
        return Err(Refusal::Garbage);
    }
    if u16::from_be_bytes(number(b, 4)) != VERSION || b[7] == OTHER_VERSION {
        return Err(Refusal::Version);
    }
    if b[6] != kind as u8 || b[7] == OTHER_KIND {
        return Err(Refusal::Kind);
    }
    Ok((b, u32::from_be_bytes(number(b, 8))))
}

/// Parses a client's hello. Returns true if the client has the barrier.
pub(super) fn read_client(kind: Kind, bytes: &[u8]) -> Result<bool, Refusal> {
    let (b, features) = common(kind, bytes)?;
    if b[7] == CLIENT { Ok(features & BARRIER != 0) } else { Err(Refusal::Garbage) }
}

/// Parses a server's hello.
pub(super) fn read_server(kind: Kind, bytes: &[u8]) -> Result<Grant, Refusal> {
    let (b, features) = common(kind, bytes)?;
    let ring_bytes = u32::from_be_bytes(number(b, 12)) as usize;
    let sound = ring_bytes.is_power_of_two() && (MIN_SIZE..=MAX_SIZE).contains(&ring_bytes);
    if b[7] != ACCEPTED || !sound {
        return Err(Refusal::Garbage);
    }
    Ok(Grant {
        ring_bytes,
        to_server: u64::from_be_bytes(number(b, 16)),
        to_client: u64::from_be_bytes(number(b, 24)),
        barrier: features & BARRIER != 0,
    })
}

/// Parses any bytes as the hello of either side: an accepted hello is encoded as equal bytes,
/// unused ones aside.
#[cfg(fuzzing)]
pub(crate) fn fuzz(bytes: &[u8]) {
    for kind in [Kind::Datagrams, Kind::Frames] {
        if let Ok(barrier) = read_client(kind, bytes) {
            assert_eq!(of_client(kind, barrier)[..8], bytes[..8]);
        }
        if let Ok(grant) = read_server(kind, bytes) {
            assert!((MIN_SIZE..=MAX_SIZE).contains(&grant.ring_bytes));
            let again = of_server(kind, &grant);
            assert_eq!((&again[..8], &again[12..]), (&bytes[..8], &bytes[12..]));
        }
    }
}

#[cfg(test)]
mod tests {
    use sprat_proto::Rng;

    use super::*;

    const KIND: Kind = Kind::Datagrams;
    const GRANT: Grant = Grant {
        ring_bytes: 1 << 18,
        to_server: 0x0102_0304_0506_0708,
        to_client: 0x1112_1314_1516_1718,
        barrier: true,
    };

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let client =
            *b"SPRT\x00\x01\x01\x00\x00\x00\x00\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        assert_eq!(of_client(KIND, true), client);
        let server = b"SPRT\x00\x01\x01\x01\x00\x00\x00\x01\x00\x04\x00\x00\
            \x01\x02\x03\x04\x05\x06\x07\x08\x11\x12\x13\x14\x15\x16\x17\x18";
        assert_eq!(of_server(KIND, &GRANT), *server);
        assert_eq!(read_client(KIND, &client), Ok(true));
        assert_eq!(read_client(KIND, &of_client(KIND, false)), Ok(false));
        assert_eq!(read_server(KIND, server), Ok(GRANT));
    }

    #[test]
    fn what_differs_is_refused_under_its_name() {
        let change = |at: usize, value: u8| {
            let mut b = of_client(KIND, true);
            b[at] = value;
            read_client(KIND, &b)
        };
        assert_eq!(change(0, b'X'), Err(Refusal::Garbage));
        assert_eq!(change(5, 2), Err(Refusal::Version));
        assert_eq!(change(6, 2), Err(Refusal::Kind));
        assert_eq!(change(7, ACCEPTED), Err(Refusal::Garbage));
        assert_eq!(read_client(KIND, &of_client(KIND, true)[..31]), Err(Refusal::Garbage));
        assert_eq!(read_client(KIND, &[]), Err(Refusal::Garbage));
        assert_eq!(read_client(Kind::Frames, &of_client(KIND, true)), Err(Refusal::Kind));
        assert_eq!(read_server(Kind::Frames, &of_server(Kind::Frames, &GRANT)), Ok(GRANT));
        assert_eq!(read_server(KIND, &of_client(KIND, true)), Err(Refusal::Garbage));
        assert_eq!(
            read_server(KIND, &Refusal::Version.answer(KIND).unwrap()),
            Err(Refusal::Version)
        );
        assert_eq!(read_server(KIND, &Refusal::Kind.answer(KIND).unwrap()), Err(Refusal::Kind));
        for ring_bytes in [0, 1, MIN_SIZE / 2, MIN_SIZE + 1, MAX_SIZE * 2] {
            assert_eq!(
                read_server(KIND, &of_server(KIND, &Grant { ring_bytes, ..GRANT })),
                Err(Refusal::Garbage)
            );
        }
    }

    #[test]
    fn no_bytes_upset_the_readers() {
        let mut rng = Rng::seeded(3);
        for _ in 0..20_000 {
            let mut b = of_server(KIND, &GRANT);
            for _ in 0..rng.below(4) {
                b[rng.below(LEN as u64) as usize] = rng.u32() as u8;
            }
            let cut = if rng.below(4) == 0 { rng.below(LEN as u64 + 1) as usize } else { LEN };
            let _ = read_client(KIND, &b[..cut]);
            if let Ok(grant) = read_server(KIND, &b[..cut]) {
                assert!((MIN_SIZE..=MAX_SIZE).contains(&grant.ring_bytes));
            }
        }
    }
}
