//! Connections that a server of one client passes over: those that end before their start-up, that send something else,
//! or that leave before their first request. Each is one line on standard error, and the server waits for the next.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sprat::verbs::{ConnectRequest, Listener};

use crate::fail::Fail;
use crate::out;

/// How long a failed start-up may wait to be reported.
const REPORT: Duration = Duration::from_millis(100);

/// The next peer that asks for a connection, within `limit` if there is one.
pub(super) fn next(listener: &Listener, limit: Option<Duration>) -> Option<ConnectRequest> {
    let begin = Instant::now();
    loop {
        let left = limit.map(|limit| limit.saturating_sub(begin.elapsed()));
        let request = listener.next(Some(left.map_or(REPORT, |left| left.min(REPORT))));
        while let Some((peer, why)) = listener.failed() {
            pass_over(peer, Fail::new(format!("the start-up failed: {why}")));
        }
        if request.is_some() || left == Some(Duration::ZERO) {
            return request;
        }
    }
}

/// Says why the server goes on without `peer`.
pub(super) fn pass_over(peer: SocketAddr, why: Fail) {
    out::note(why.at(format_args!("passed over {peer}")));
}

/// Connections to `at` that are none of a client: one that says nothing, and one that speaks HTTP. Both have ended.
#[cfg(test)]
pub(super) fn connect_others(at: SocketAddr) {
    use std::io::{Read as _, Write as _};
    drop(std::net::TcpStream::connect(at).expect("connects"));
    let mut http = std::net::TcpStream::connect(at).expect("connects");
    http.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("writes");
    // A reset is an end too.
    let _ = http.read(&mut [0; 64]);
}
