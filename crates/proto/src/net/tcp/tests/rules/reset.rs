//! Rules of resets (RFC 9293 3.5.2, 3.6).

use super::*;

/// A step of a script.
type Step = fn(&mut Script);

/// RFC 9293 3.5.3: a reset may have data.
#[test]
fn ts2_a_reset_may_have_data() {
    let mut script = Script::open(|_| {});
    script.input(script.head(Flags::RST), b"the reason");
    assert_eq!(script.connection.error(), Some(TcpError::Reset));
    assert_eq!(script.connection.readable(), 0);
}

/// RFC 5961 4.2: a peer that has lost the connection answers to the challenge by a reset with the
/// number of the challenge, which ends the connection.
#[test]
fn ba4_ba5_a_peer_that_began_anew_ends_the_connection_by_answering() {
    let mut script = Script::open(|_| {});
    script.data(1000);
    let syn = Tcp { seq: 12_345, ..Script::syn(&script.config) };
    let challenge = script.input(syn, &[]);
    assert!(is_ack(&challenge) && challenge[0].ack == 1000, "{challenge:?}");
    let segment = Segment { tcp: challenge[0].tcp, data: &[], is_marked: false };
    let reset = refusal(&segment).expect("a reset");
    script.input(reset, &[]);
    assert_eq!(script.connection.error(), Some(TcpError::Reset));
}

/// RFC 5961 3.2: a reset of a connection that is about to end has the exact number too. In
/// TIME-WAIT none counts (RFC 1337).
#[test]
fn ba1_ba3_resets_are_checked_in_every_state() {
    let closing: Step = |script| {
        script.connection.close();
        script.output();
    };
    let finished: Step = |script| {
        let fin = script.head(Flags::FIN);
        script.peer += 1;
        script.input(fin, &[]);
    };
    let steps: [&[Step]; 5] =
        [&[closing], &[finished], &[closing, finished], &[finished, closing], &[]];
    for steps in steps {
        let mut script = Script::open(|_| {});
        steps.iter().for_each(|step| step(&mut script));
        let state = script.connection.state();
        let reset = Tcp { ack: OWN + 1, ..script.head(Flags::RST) };
        let near = Tcp { seq: reset.seq.wrapping_add(10), ..reset };
        let far = Tcp { seq: reset.seq.wrapping_sub(1000), ..reset };
        assert!(is_ack(&script.input(near, &[])), "{state:?}");
        assert_eq!(script.input(far, &[]), [], "{state:?}");
        assert_eq!(script.connection.state(), state);
        script.input(reset, &[]);
        let is_ended = script.connection.state() == TcpState::Closed;
        assert_eq!(is_ended, state != TcpState::TimeWait, "{state:?}");
    }
}
