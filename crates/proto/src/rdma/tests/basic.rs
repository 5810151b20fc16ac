//! The plain ways: everything that works, over every framing and cutting.

use super::*;

#[test]
fn send_write_and_read_over_every_framing() {
    for setup in setups() {
        let mut pair = Pair::connected(&setup);
        let (a, b) = (&mut pair.a, &mut pair.b);
        let source = a.region(pattern(5000, 1), 0x1000);
        let sink = b.region(vec![0; 10_000], 0x20_000);
        b.recv(7, &[(sink, 0x20_000, 2000), (sink, 0x21_000, 4000)]);
        a.post(1, SendOp::Send, &[(source, 0x1000, 5000)]);
        a.post(2, SendOp::Write(Remote { stag: sink, addr: 0x22_000 }), &[(source, 0x1064, 1400)]);
        pair.run();
        let (a, b) = (&mut pair.a, &mut pair.b);
        assert_eq!(a.done(), [(1, Status::Success), (2, Status::Success)], "{setup:?}");
        let got = b.poll().unwrap();
        assert_eq!((got.id, got.status, got.len), (7, Status::Success, 5000));
        assert_eq!(got.completed, Completed::Recv);
        assert_eq!(b.ram.0[0][..2000], pattern(5000, 1)[..2000]);
        assert_eq!(b.ram.0[0][4096..7096], pattern(5000, 1)[2000..]);
        assert_eq!(b.ram.0[0][8192..8192 + 1400], pattern(5000, 1)[100..1500]);

        let back = a.region(vec![0; 9000], 0);
        a.post(3, SendOp::Read(Remote { stag: sink, addr: 0x20_010 }), &[(back, 5, 8000)]);
        pair.run();
        let read = pair.a.poll().unwrap();
        assert_eq!((read.id, read.status, read.len), (3, Status::Success, 8000));
        assert_eq!(pair.a.ram.0[1][5..8005], pair.b.ram.0[0][16..8016]);
        assert!(pair.a.events.is_empty() && pair.b.events.is_empty());
    }
}

/// What an idle connection takes, besides what the stream below needs; its queues hold nothing.
#[test]
fn an_idle_connection_takes_little_memory() {
    let (stream, queues) = (size_of::<conn::Connection>(), size_of::<qp::QueuePair>());
    assert!(stream + queues <= 1200, "{stream} {queues}");
    let pair = Pair::connected(&Setup::default());
    let queue_pair = pair.a.rnic.qps.get(pair.a.qp.0).unwrap();
    assert!(queue_pair.is_quiet() && queue_pair.receive.len() == 0);
}
