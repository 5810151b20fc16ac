//! Tests of memif messages and descriptors. The golden bytes follow by hand from memif's public
//! layout: packed structures behind a 16-bit type.

use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::rand::Rng;

fn padded(bytes: &[u8]) -> [u8; MESSAGE] {
    let mut message = [0; MESSAGE];
    message[..bytes.len()].copy_from_slice(bytes);
    message
}

#[test]
fn golden() {
    let hello = Hello {
        name: chars("DPDK 22.11.11"),
        min_version: VERSION,
        max_version: VERSION,
        max_region: 255,
        max_to_client: 255,
        max_to_server: 254,
        max_log2: 14,
    };
    let mut hello_bytes = vec![2, 0];
    hello_bytes.extend(chars::<NAME>("DPDK 22.11.11"));
    hello_bytes.extend([0, 2, 0, 2, 255, 0, 255, 0, 254, 0, 14]);
    let init = Init {
        version: VERSION,
        id: 0x0102_0304,
        mode: 0,
        secret: chars("eel"),
        name: chars("sprat"),
    };
    let mut init_bytes = vec![3, 0, 0, 2, 4, 3, 2, 1, 0];
    init_bytes.extend(chars::<SECRET>("eel"));
    init_bytes.extend(chars::<NAME>("sprat"));
    let ring = AddRing {
        to_server: true,
        index: 1,
        region: 0,
        offset: 0x4080,
        log2: 10,
        private_header: 0,
    };
    let mut disconnect_bytes = vec![8, 0, 7, 0, 0, 0];
    disconnect_bytes.extend(b"ID not found");
    let cases: [(Message, Vec<u8>); 8] = [
        (Message::Ack, vec![1]),
        (Message::Hello(hello), hello_bytes),
        (Message::Init(init), init_bytes),
        (Message::AddRegion { index: 1, size: 0x40_8100 }, vec![4, 0, 1, 0, 0, 0x81, 0x40]),
        (Message::AddRing(ring), vec![5, 0, 1, 0, 1, 0, 0, 0, 0x80, 0x40, 0, 0, 10]),
        (Message::Connect(chars("a")), vec![6, 0, b'a']),
        (Message::Connected(chars("b")), vec![7, 0, b'b']),
        (Message::Disconnect { code: 7, reason: chars("ID not found") }, disconnect_bytes),
    ];
    for (message, bytes) in cases {
        assert_eq!(message.emit(), padded(&bytes), "{message:?}");
        assert_eq!(Message::parse(&padded(&bytes)), Ok(message));
    }
}

#[test]
fn every_parsed_message_is_emitted_as_the_same_message() {
    let mut rng = Rng::seeded(4);
    let mut good = 0;
    for _ in 0..20_000 {
        let mut bytes = [0; MESSAGE];
        rng.fill(&mut bytes);
        bytes[..2].copy_from_slice(&(rng.below(10) as u16).to_le_bytes());
        if let Ok(message) = Message::parse(&bytes) {
            assert_eq!(Message::parse(&message.emit()), Ok(message));
            good += 1;
        }
    }
    assert!(good > 10_000, "only {good}");
}

#[test]
fn unknown_types_and_invalid_fields_are_rejected() {
    assert_eq!(Message::parse(&padded(&[0])), Err(MemifParseError::Type(0)));
    assert_eq!(Message::parse(&padded(&9_u16.to_le_bytes())), Err(MemifParseError::Type(9)));
    let ring = |offset, log2| {
        Message::AddRing(AddRing {
            to_server: false,
            index: 0,
            region: 0,
            offset,
            log2,
            private_header: 0,
        })
        .emit()
    };
    assert!(Message::parse(&ring(8, LOG2_RING_MAX)).is_ok());
    assert_eq!(Message::parse(&ring(4, 3)), Err(MemifParseError::Field));
    assert_eq!(Message::parse(&ring(8, LOG2_RING_MAX + 1)), Err(MemifParseError::Field));
}

#[test]
fn a_descriptor_is_two_words() {
    let descriptor =
        Descriptor { next: true, region: 0x0102, length: 0x0304_0506, offset: 0x0708_090a };
    assert_eq!(descriptor.words(), [0x0304_0506_0102_0001, 0x0708_090a]);
    assert_eq!(Descriptor::of([0x0304_0506_0102_fff1, 0xffff_ffff_0708_090a]), descriptor);
}
