//! Tests of long datagrams, whose bytes stay in the ring until their receiver copies them.

use super::*;
use sprat_sys::ring::{LEFT_HEAD, LONG};

fn long(number: usize) -> Vec<u8> {
    (0..MAX_PAYLOAD).map(|i| (number + i * 7) as u8).collect()
}

/// Returns the bytes of datagram `i` of the burst, which the driver has left in the ring.
fn bytes_left(shm: &Shm, i: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    shm.append_left(i, 0, &mut bytes);
    bytes
}

/// Fills the ring to the server with long datagrams. Returns their number.
fn fill(client: &mut Shm, to: Addr) -> usize {
    (0..).find(|&n| client.send(to, &[&long(n)]) == Sent::Full).unwrap()
}

#[test]
fn only_the_beginning_of_a_long_datagram_is_in_the_burst() {
    let directory = directory();
    let (mut server, mut client, to) = pair(directory.path());
    let whole = long(3);
    let (short, long) = (&whole[..LONG], &whole[..LONG + 1]);
    for bytes in [short, long, short] {
        assert_eq!(client.send(to, &[bytes]), Sent::Yes);
    }
    assert_eq!(receive_burst(&mut server)[0].1, short);
    assert_eq!(server.left(0), None);
    assert_eq!(server.recv_burst(), 2);
    let (from, bytes) = server.datagram(0);
    assert!(bytes.is_empty());
    let left = server.left(0).unwrap();
    assert_eq!((left.head, left.len), (&long[..LEFT_HEAD], LONG + 1));
    let mut bytes = b"before ".to_vec();
    server.append_left(0, 36, &mut bytes);
    assert!(bytes[..7] == *b"before " && bytes[7..] == long[36..]);
    assert!(server.datagram(1) == (from, short) && server.left(1).is_none());
}

/// A ring is full of long datagrams that the receiver's burst left in it. The producer goes on once
/// the receiver has returned their room, which it does before it sleeps.
#[test]
fn the_next_burst_frees_the_room_of_datagrams_that_were_left() {
    let directory = directory();
    let (mut server, mut client, to) = pair(directory.path());
    let mut received = 0;
    for _ in 0..10 {
        let sent = fill(&mut client, to);
        assert!(client.arm());
        let mut got = 0;
        while got < sent {
            let n = receive_burst(&mut server).len();
            assert!(!server.arm(), "the client would wait for ever");
            (0..n).for_each(|i| assert!(bytes_left(&server, i) == long(got + i)));
            got += n;
        }
        assert_eq!((server.recv_burst(), got), (0, sent));
        assert!(server.arm());
        wait_for(&client);
        client.disarm();
        server.disarm();
        received += got;
    }
    assert!(received > 20, "{received}");
}

#[test]
fn a_datagram_that_was_left_outlives_its_sender_until_the_next_burst() {
    let directory = directory();
    let (mut server, mut client, to) = pair(directory.path());
    assert_eq!(client.send(to, &[&long(1)]), Sent::Yes);
    let from = receive_burst(&mut server)[0].0;
    drop(client);
    server.poll_sockets();
    let Addr::Local(id) = from else { panic!("{from:?}") };
    server.table.remove(slot_in(id));
    assert!(bytes_left(&server, 0) == long(1));
    assert_eq!(server.recv_burst(), 0);
    assert_eq!(server.gone(), Some(from));
}
