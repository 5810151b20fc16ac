//! Accepts the clients of a server that serves one client at a time. The server skips connections
//! that end before their start-up, that send another protocol, or that end before their first
//! request, with a line on standard error for each.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sprat::verbs::{ConnectRequest, Listener};

use crate::fail::Fail;
use crate::out;

/// Longest time between two checks for connections whose start-up failed, which a waiting server
/// reports.
const REPORT: Duration = Duration::from_millis(100);

/// Waits for the next connection request, at most `limit` if there is one.
pub(super) fn next(listener: &Listener, limit: Option<Duration>) -> Option<ConnectRequest> {
    let begin = Instant::now();
    loop {
        let left = limit.map(|limit| limit.saturating_sub(begin.elapsed()));
        let request = listener.next(Some(left.map_or(REPORT, |left| left.min(REPORT))));
        while let Some((peer, why)) = listener.failed() {
            skip(peer, Fail::new(format!("the start-up failed: {why}")));
        }
        if request.is_some() || left == Some(Duration::ZERO) {
            return request;
        }
    }
}

/// Prints that the server skips the connection of `peer`, and the reason.
pub(super) fn skip(peer: SocketAddr, why: Fail) {
    out::note(why.at(format_args!("skipped {peer}")));
}

/// Makes two connections to `at` that do not speak MPA: one that sends nothing, and one that speaks
/// HTTP. Both end before the function returns.
#[cfg(test)]
pub(super) fn connect_others(at: SocketAddr) {
    use std::io::{Read as _, Write as _};
    drop(std::net::TcpStream::connect(at).expect("connects"));
    let mut http = std::net::TcpStream::connect(at).expect("connects");
    http.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("writes");
    // The server may reset the connection.
    let _ = http.read(&mut [0; 64]);
}
