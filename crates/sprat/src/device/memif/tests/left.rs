//! Tests of frames whose ends a memif leaves in the ring.

use sprat_proto::device::LEFT_HEAD;

use super::*;

/// Lets a client fill a ring of a server that leaves the ends of long frames. Returns both, and the
/// frames.
fn left(house: &House) -> (Memif, Memif, Vec<Vec<u8>>) {
    let (mut server, mut client) = pair(house, |options| {
        let jumbo = Options::jumbo(options.role, options.socket.clone());
        Options { ring: 16, leaves: options.role == Role::Server, ..jumbo }
    });
    let mut rng = Rng::seeded(6);
    let (to, from) = (server.info().mac, client.info().mac);
    let frames: Vec<_> = (0..16).map(|i| frame(to, from, &mut rng, 9014 - i)).collect();
    for bytes in &frames {
        assert_eq!(client.send(&[bytes], Offload::None), Sent::Yes);
    }
    client.flush();
    assert_eq!(server.recv_burst(), frames.len());
    (server, client, frames)
}

/// Returns frame `i` of the burst. All of it but the beginning was left.
fn with_left(device: &Memif, i: usize) -> Vec<u8> {
    let (head, arrival) = device.frame(i);
    assert_eq!(head.len(), LEFT_HEAD);
    let mut bytes = head.to_vec();
    device.append_left(i, LEFT_HEAD..LEFT_HEAD + usize::from(arrival.left), &mut bytes);
    bytes
}

#[test]
fn the_ends_of_long_frames_stay_in_the_ring_until_the_next_burst() {
    let house = House::new();
    let (mut server, mut client, frames) = left(&house);
    server.poll_sockets();
    assert_eq!(client.send(&[&frames[0]], Offload::None), Sent::Full, "all slots are held");
    let came: Vec<_> = (0..frames.len()).map(|i| with_left(&server, i)).collect();
    assert!(came == frames);
    // A burst without frames gives the slots back: the peer has no room to send another.
    assert_eq!(server.recv_burst(), 0);
    let short = &frames[0][..1000];
    assert_eq!(client.send(&[short], Offload::None), Sent::Yes);
    client.flush();
    assert_eq!(received(&mut server), [short]);
    assert_eq!(server.frame(0).1, RxOffload::default());
}

#[test]
fn the_ends_of_frames_outlive_their_link() {
    let house = House::new();
    let (mut server, client, frames) = left(&house);
    drop(client);
    until(|| {
        server.poll_sockets();
        server.links() == 0
    });
    assert!(with_left(&server, 3) == frames[3]);
    assert_eq!(server.recv_burst(), 0);
}

/// A capture has whole frames, though the options let the device leave their ends.
#[test]
fn a_captured_device_leaves_nothing() {
    let house = House::new();
    let options = Options {
        leaves: true,
        ..Options::jumbo(Role::Server, house.options(Role::Server).socket)
    };
    let mut client = Memif::open(Options { role: Role::Client, ..options.clone() }).unwrap();
    let pcap = Some(house.folder.path().join("pcap"));
    let options = crate::device::Options { memif: Some(options), pcap, ..Default::default() };
    let mut server = crate::device::open("memif", &options).unwrap();
    until(|| {
        server.disarm();
        client.disarm();
        server.carries() && client.carries()
    });
    let bytes = frame(server.info().mac, client.info().mac, &mut Rng::seeded(7), 9014);
    assert_eq!(client.send(&[&bytes], Offload::None), Sent::Yes);
    client.flush();
    assert_eq!(server.recv_burst(), 1);
    assert!(server.frame(0).0 == bytes);
}
