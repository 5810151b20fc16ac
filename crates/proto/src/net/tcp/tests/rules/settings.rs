//! Rules of the options that a program sets for one connection (RFC 9293 3.7.4, 3.8.3, 3.8.4), and
//! of what it hears of trouble.

use super::*;

impl Script {
    fn set(&mut self, settings: TcpSettings) -> Vec<Out> {
        self.connection.set(self.now, &self.config, settings);
        assert_eq!(self.connection.settings(), settings);
        self.output()
    }
}

/// RFC 9293 3.7.4: the program switches Nagle's algorithm off for one connection, also while data
/// is held back, and on again.
#[test]
fn tm17_nagle_can_be_switched_off_for_one_connection() {
    let mut script = Script::open(|config| config.no_delay = false);
    script.write(10);
    assert_eq!(script.write(90), []);
    let out = script.set(TcpSettings { no_delay: Some(true), ..TcpSettings::default() });
    assert_eq!(out.iter().map(|out| out.len).collect::<Vec<_>>(), [90]);
    assert_eq!(script.write(20).len(), 1);
    assert_eq!(script.set(TcpSettings::default()), []);
    assert_eq!(script.write(20), []);
    let mut script = Script::open(|config| config.no_delay = true);
    script.set(TcpSettings { no_delay: Some(false), ..TcpSettings::default() });
    assert_eq!((script.write(10).len(), script.write(10).len()), (1, 0));
}

/// RFC 9293 3.8.3 (b): the program sets R2 of one connection, also while data is in flight.
#[test]
fn tm21_the_program_sets_the_user_timeout_of_one_connection() {
    let mut script = Script::open(|config| config.user_timeout_ns = 1000 * SECOND);
    script.write(1000);
    script.wait(10 * SECOND);
    let user_timeout_ns = Some(20 * SECOND);
    script.set(TcpSettings { user_timeout_ns, ..TcpSettings::default() });
    script.wait(9 * SECOND);
    assert_eq!(script.connection.error(), None);
    script.wait(30 * SECOND);
    assert_eq!(script.connection.error(), Some(TcpError::TimedOut));
    let mut script = Script::open(|config| config.user_timeout_ns = SECOND);
    let user_timeout_ns = Some(1000 * SECOND);
    script.set(TcpSettings { user_timeout_ns, ..TcpSettings::default() });
    script.write(1000);
    script.wait(990 * SECOND);
    assert_eq!(script.connection.error(), None);
}

/// RFC 9293 3.8.4: the program switches keep-alives on for one open connection, and off again.
#[test]
fn tm24_keep_alive_is_switched_for_one_connection() {
    let mut script = Script::open(|_| {});
    script.wait(100 * SECOND);
    let keep_alive_ns = Some(Some(60 * SECOND));
    let settings = TcpSettings { keep_alive_ns, ..TcpSettings::default() };
    assert_eq!(script.set(settings), []);
    script.start = script.now;
    let out = script.wait(61 * SECOND);
    assert_eq!((times(&out), is_ack(&out)), (Vec::from([60_000]), true));
    script.data(10);
    script.start = script.now;
    assert_eq!(times(&script.wait(70 * SECOND)).last(), Some(&60_000), "silence counts anew");
    assert_eq!(script.set(TcpSettings::default()), []);
    assert_eq!(script.wait(10_000 * SECOND), []);
    let mut script = Script::open(|config| config.keep_alive_ns = Some(60 * SECOND));
    let keep_alive_ns = Some(None);
    script.set(TcpSettings { keep_alive_ns, ..TcpSettings::default() });
    script.data(10);
    assert_eq!(script.wait(10_000 * SECOND).len(), 1, "the acknowledgement alone");
    assert_eq!(script.connection.state(), TcpState::Established);
}

/// RFC 9293 3.9.2.2, RFC 5461: a soft error ends no connection. It is the reason of a timeout, and
/// void once the peer acknowledges something.
#[test]
fn tm56_ts25_a_soft_error_is_kept_until_the_peer_answers() {
    let report = |code| {
        let from = [10, 0, 0, 1].into();
        TcpReport { error: TcpSoftError::Unreachable { code }, from }
    };
    let error = report(1);
    let mut script = Script::open(|_| {});
    script.write(1000);
    script.connection.reported(error, false);
    script.connection.reported(report(2), true);
    assert_eq!(script.connection.state(), TcpState::Established);
    script.connection.reported(error, false);
    assert_eq!(script.connection.soft_error(), Some(error));
    script.acked(1000);
    assert_eq!(script.connection.soft_error(), None);
    script.write(1000);
    script.connection.reported(error, false);
    script.wait(300 * SECOND);
    assert_eq!(script.connection.error(), Some(TcpError::TimedOut));
    assert_eq!(script.connection.soft_error(), Some(error));
}
