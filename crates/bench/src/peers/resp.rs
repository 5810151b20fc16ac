//! RESP, the protocol of Redis: GET, SET and PING, as arrays of bulk strings.
//!
//! ```text
//! request   *2 CRLF $3 CRLF GET CRLF $LEN CRLF KEY CRLF
//! reply     $LEN CRLF VALUE CRLF   ·   $-1 CRLF (absent)   ·   +OK CRLF   ·   -ERR TEXT CRLF
//! ```

use std::io::Write as _;

use super::reply::{Parsed, Reply, line, number, unexpected, with_value};

/// Adds a request of these words to `out`.
fn request(out: &mut Vec<u8>, words: &[&[u8]]) {
    // A vector takes all bytes.
    let _ = write!(out, "*{}\r\n", words.len());
    for word in words {
        let _ = write!(out, "${}\r\n", word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Adds a request that reads an object to `out`.
pub fn get(out: &mut Vec<u8>, key: &[u8]) {
    request(out, &[b"GET", key]);
}

/// Adds a request that writes an object to `out`.
pub fn set(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    request(out, &[b"SET", key, value]);
}

/// Adds a request that asks whether the server lives to `out`.
pub fn ping(out: &mut Vec<u8>) {
    request(out, &[b"PING"]);
}

/// Parses the reply at the beginning of `bytes`. `None`: it is incomplete.
///
/// # Errors
/// The server reports an error, or the bytes are no reply to these requests. The text says which.
pub fn parse(bytes: &[u8]) -> Result<Option<Parsed>, String> {
    let Some(line) = line(bytes) else { return Ok(None) };
    let end = line.len() + 2;
    match line {
        b"$-1" => Ok(Some((Reply::Absent, end))),
        b"+OK" | b"+PONG" => Ok(Some((Reply::Done, end))),
        [b'$', digits @ ..] => match number(digits) {
            Some(length) => with_value(bytes, end, length),
            None => Err(unexpected(line)),
        },
        other => Err(unexpected(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes as the specification of RESP has them.
    #[test]
    fn requests_are_arrays_of_bulk_strings() {
        let mut out = Vec::new();
        get(&mut out, b"user1");
        set(&mut out, b"user1", b"a\r\nb");
        ping(&mut out);
        let golden: &[u8] = b"*2\r\n$3\r\nGET\r\n$5\r\nuser1\r\n\
            *3\r\n$3\r\nSET\r\n$5\r\nuser1\r\n$4\r\na\r\nb\r\n\
            *1\r\n$4\r\nPING\r\n";
        assert_eq!(out, golden);
    }

    #[test]
    fn replies_are_found_one_after_the_other() {
        let stream: &[u8] = b"$4\r\na\r\nb\r\n+OK\r\n$-1\r\n$0\r\n\r\n+PONG\r\n";
        let expected = [Reply::Value(4), Reply::Done, Reply::Absent, Reply::Value(0), Reply::Done];
        let mut rest = stream;
        for reply in expected {
            let (found, bytes) = parse(rest).expect("a reply").expect("all of it");
            assert_eq!(found, reply);
            rest = &rest[bytes..];
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn a_cut_reply_waits_for_the_rest() {
        let whole: &[u8] = b"$4\r\na\r\nb\r\n";
        for cut in 0..whole.len() {
            assert_eq!(parse(&whole[..cut]), Ok(None), "{cut}");
        }
        assert_eq!(parse(whole), Ok(Some((Reply::Value(4), whole.len()))));
    }

    #[test]
    fn errors_and_other_bytes_are_reported() {
        let error = parse(b"-OOM command not allowed\r\n").expect_err("an error");
        assert!(error.contains("OOM"), "{error}");
        for bytes in [&b":1\r\n"[..], b"$x\r\n", b"$2\r\nabcd", b"$18446744073709551615\r\n\r\n"] {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
    }
}
