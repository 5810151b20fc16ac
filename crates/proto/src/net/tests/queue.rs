//! Tests of the IP stack's transmit queue over devices without room.

use super::*;

#[test]
fn a_full_device_refuses_datagrams_and_delays_the_queue() {
    let mut net = Network::new(1500);
    net.send(0, at(2, 7), b"a");
    net.run_for(MS);
    net.sockets[0].interface_mut().device_mut().full = true;
    assert_eq!(net.send(0, at(2, 7), b"b"), Sent::Full);
    // The stack takes fragments into its queue.
    assert_eq!(net.send(0, at(2, 7), &[3; 4000]), Sent::Yes);
    net.run_for(MS);
    assert_eq!(net.delivered[1].len(), 1);
    net.sockets[0].interface_mut().device_mut().full = false;
    net.run_for(MS);
    assert_eq!(net.delivered[1].last().unwrap().1, [3; 4000]);
}

/// The transmit queue drops frames for a device that stays full. The bug: they remained in the
/// queue forever, the stack was never idle, and its thread never slept.
#[test]
fn the_queue_drops_frames_for_a_device_that_stays_full() {
    let mut net = Network::new(1500);
    net.send(0, at(2, 7), b"a");
    net.run_for(MS);
    net.sockets[0].interface_mut().device_mut().full = true;
    assert_eq!(net.send(0, at(2, 7), &[3; 4000]), Sent::Yes);
    net.run_for(50 * MS);
    assert_eq!(net.stack(0).counters().drop_queue, 0);
    net.run_for(100 * MS);
    assert_eq!(net.stack(0).counters().drop_queue, 3);
    assert!(net.stack(0).is_idle());
    net.sockets[0].interface_mut().device_mut().full = false;
    net.send(0, at(2, 7), &[4; 4000]);
    net.run_for(MS);
    assert_eq!(net.delivered[1].last().unwrap().1, [4; 4000]);
}
