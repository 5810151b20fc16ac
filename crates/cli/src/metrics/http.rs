//! HTTP/1.1, as much of it as a client that reads metrics needs (RFC 9110, RFC 9112): one request
//! a connection, without a body.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use sprat_proto::Instant;
use sprat_sys::clock;

use crate::counters::prometheus::MEDIA_TYPE;

/// The path of the metrics.
pub(super) const PATH: &str = "/metrics";
/// The most bytes of a request's head.
const MOST_HEAD: usize = 8 << 10;
/// The most header fields of a request.
const MOST_FIELDS: usize = 64;
/// The most bytes that are read and dropped behind a request.
const MOST_REST: usize = 64 << 10;
/// The time that a peer has to take a refusal.
const REFUSAL: Duration = Duration::from_millis(100);

/// The part of a request that matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Request {
    /// A request for the metrics; without their text if `head`.
    Metrics { head: bool },
    /// A request that is answered with a status other than 200.
    Refused(Status),
}

/// The status of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Ok,
    BadRequest,
    NotFound,
    MethodNotAllowed,
    HeadTooLarge,
    Unavailable,
}

impl Status {
    fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::HeadTooLarge => "431 Request Header Fields Too Large",
            Self::Unavailable => "503 Service Unavailable",
        }
    }

    /// Returns the text of the answer for people.
    fn text(self) -> &'static str {
        match self {
            Self::Ok => "",
            Self::BadRequest => "this is no request of HTTP/1.1\n",
            Self::NotFound => "the metrics are at /metrics\n",
            Self::MethodNotAllowed => "the metrics can be read by GET and HEAD\n",
            Self::HeadTooLarge => "the head of the request is too long\n",
            Self::Unavailable => "the process gives no metrics now\n",
        }
    }
}

/// Returns the request that `head` begins with, or none if more bytes have to follow.
fn request_in(head: &[u8]) -> Option<Request> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if head.len() < MOST_HEAD => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Some(Request::Refused(Status::HeadTooLarge));
        }
        Err(_) => return Some(Request::Refused(Status::BadRequest)),
    }
    // RFC 9112, 3.2: a request of HTTP/1.1 without Host, or with two, is malformed.
    let hosts = request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case("host"));
    if request.version == Some(1) && hosts.count() != 1 {
        return Some(Request::Refused(Status::BadRequest));
    }
    let path = request.path.unwrap_or_default().split('?').next();
    Some(match (path, request.method) {
        (Some(PATH), Some("GET")) => Request::Metrics { head: false },
        (Some(PATH), Some("HEAD")) => Request::Metrics { head: true },
        (Some(PATH), _) => Request::Refused(Status::MethodNotAllowed),
        _ => Request::Refused(Status::NotFound),
    })
}

/// Returns the bytes of an answer: its head, and its text unless the request asks for the head
/// alone.
fn response(status: Status, text: &str, head: bool) -> Vec<u8> {
    let kind = if status == Status::Ok { MEDIA_TYPE } else { "text/plain; charset=utf-8" };
    // RFC 9110, 15.5.6: the answer names the methods that are allowed.
    let allow = if status == Status::MethodNotAllowed { "Allow: GET, HEAD\r\n" } else { "" };
    let mut bytes = format!(
        "HTTP/1.1 {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: \
         close\r\n\r\n",
        status.line(),
        text.len()
    )
    .into_bytes();
    if !head {
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

/// Answers one request of a connection until a time, with the metrics that `metrics` returns.
pub(super) fn answer(
    stream: &TcpStream,
    until: Instant,
    metrics: impl FnOnce() -> Option<Arc<str>>,
) {
    // A peer that has gone or is slow needs no answer.
    let _ = try_answer(stream, until, metrics);
}

fn try_answer(
    stream: &TcpStream,
    until: Instant,
    metrics: impl FnOnce() -> Option<Arc<str>>,
) -> io::Result<()> {
    let mut head = Vec::new();
    let mut room = [0; 1 << 10];
    let request = loop {
        let count = before(stream, until)?.read(&mut room)?;
        if count == 0 {
            return Ok(());
        }
        head.extend_from_slice(&room[..count]);
        if let Some(request) = request_in(&head) {
            break request;
        }
    };
    let bytes = match request {
        Request::Metrics { head } => match metrics() {
            Some(text) => response(Status::Ok, &text, head),
            None => response(Status::Unavailable, Status::Unavailable.text(), head),
        },
        Request::Refused(status) => response(status, status.text(), false),
    };
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let count = before(stream, until)?.write(rest)?;
        rest = &rest[count..];
    }
    stream.shutdown(Shutdown::Write)?;
    // A close with unread bytes would be a reset, which can overtake the answer.
    let mut dropped = 0;
    while dropped < MOST_REST {
        match before(stream, until)?.read(&mut room)? {
            0 => break,
            count => dropped += count,
        }
    }
    Ok(())
}

/// Lets the next call on a stream end at a time.
fn before(stream: &TcpStream, until: Instant) -> io::Result<&TcpStream> {
    let left_ns = until.since(clock::now());
    if left_ns == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let left = Some(Duration::from_nanos(left_ns));
    stream.set_read_timeout(left)?;
    stream.set_write_timeout(left)?;
    Ok(stream)
}

/// Answers a connection for which there is no room.
pub(super) fn refuse(mut stream: &TcpStream) {
    let status = Status::Unavailable;
    let _ = stream.set_write_timeout(Some(REFUSAL));
    let _ = stream.write_all(&response(status, status.text(), false));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: Status) -> Option<Request> {
        Some(Request::Refused(status))
    }

    #[test]
    fn requests_get_their_status() {
        let metrics = |head| Some(Request::Metrics { head });
        let long = format!("GET /metrics HTTP/1.1\r\nHost: a\r\nX: {}", "y".repeat(MOST_HEAD));
        let many = "X: y\r\n".repeat(MOST_FIELDS);
        let many = format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{many}\r\n");
        let bad = refused(Status::BadRequest);
        for (head, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", metrics(false)),
            ("GET /metrics?x=1 HTTP/1.1\r\nhOST: a\r\nAccept: */*\r\n\r\n", metrics(false)),
            ("HEAD /metrics HTTP/1.0\r\n\r\n", metrics(true)),
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n", None),
            ("", None),
            ("GET /metrics HTTP/1.1\r\n\r\n", refused(Status::BadRequest)),
            ("GET /metrics HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", bad),
            ("GET /metrics HTTP/2.0\r\nHost: a\r\n\r\n", refused(Status::BadRequest)),
            ("\u{16}\u{3}\u{1}", refused(Status::BadRequest)),
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", refused(Status::NotFound)),
            ("GET /metrics/ HTTP/1.1\r\nHost: a\r\n\r\n", refused(Status::NotFound)),
            ("POST /metrics HTTP/1.1\r\nHost: a\r\n\r\n", refused(Status::MethodNotAllowed)),
            (&long, refused(Status::HeadTooLarge)),
            (&many, refused(Status::HeadTooLarge)),
        ] {
            assert_eq!(request_in(head.as_bytes()), expected, "{head:?}");
        }
    }

    #[test]
    fn an_answer_has_its_length_and_closes() {
        let text = String::from_utf8(response(Status::Ok, "sprat_up 1\n", false)).expect("text");
        let expected = "HTTP/1.1 200 OK\r\n\
                        Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
                        Content-Length: 11\r\nConnection: close\r\n\r\nsprat_up 1\n";
        assert_eq!(text, expected);
        let text = String::from_utf8(response(Status::MethodNotAllowed, "", true)).expect("text");
        assert!(text.contains("405 ") && text.contains("\r\nAllow: GET, HEAD\r\n"), "{text}");
    }
}
