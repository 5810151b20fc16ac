//! The meta commands of memcached's text protocol, which have the fewest bytes: `mg` reads, `ms`
//! writes, `mn` asks whether the server lives.
//!
//! ```text
//! request   mg KEY v CRLF   ·   ms KEY LEN CRLF VALUE CRLF   ·   mn CRLF
//! reply     VA LEN CRLF VALUE CRLF   ·   EN CRLF (absent)   ·   HD CRLF   ·   MN CRLF
//! ```

use std::io::Write as _;

use super::reply::{Parsed, Reply, line, number, unexpected, with_value};

/// Adds a request that reads an object to `out`.
pub fn get(out: &mut Vec<u8>, key: &[u8]) {
    out.extend([b"mg ", key, b" v\r\n"].concat());
}

/// Adds a request that writes an object to `out`.
pub fn set(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    out.extend_from_slice(b"ms ");
    out.extend_from_slice(key);
    // A vector takes all bytes.
    let _ = write!(out, " {}\r\n", value.len());
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Adds a request that asks whether the server lives to `out`.
pub fn ping(out: &mut Vec<u8>) {
    out.extend_from_slice(b"mn\r\n");
}

/// Parses the reply at the beginning of `bytes`. `None`: it is incomplete.
///
/// # Errors
/// The server reports an error, or the bytes are no reply to these requests. The text says which.
pub fn parse(bytes: &[u8]) -> Result<Option<Parsed>, String> {
    let Some(line) = line(bytes) else { return Ok(None) };
    let end = line.len() + 2;
    match line {
        b"EN" => Ok(Some((Reply::Absent, end))),
        b"HD" | b"MN" => Ok(Some((Reply::Done, end))),
        [b'V', b'A', b' ', rest @ ..] => {
            // Flags would stand behind the length; none are asked for.
            match number(rest.split(|&byte| byte == b' ').next().unwrap_or_default()) {
                Some(length) => with_value(bytes, end, length),
                None => Err(unexpected(line)),
            }
        }
        other => Err(unexpected(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes as memcached's protocol.txt has them.
    #[test]
    fn requests_are_meta_commands() {
        let mut out = Vec::new();
        get(&mut out, b"user1");
        set(&mut out, b"user1", b"a\r\nb");
        ping(&mut out);
        assert_eq!(out, b"mg user1 v\r\nms user1 4\r\na\r\nb\r\nmn\r\n");
    }

    #[test]
    fn replies_are_found_one_after_the_other() {
        let stream: &[u8] = b"VA 4\r\na\r\nb\r\nHD\r\nEN\r\nVA 0 f1\r\n\r\nMN\r\n";
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
        let whole: &[u8] = b"VA 4\r\na\r\nb\r\n";
        for cut in 0..whole.len() {
            assert_eq!(parse(&whole[..cut]), Ok(None), "{cut}");
        }
        assert_eq!(parse(whole), Ok(Some((Reply::Value(4), whole.len()))));
    }

    #[test]
    fn errors_and_other_bytes_are_reported() {
        let error = parse(b"SERVER_ERROR out of memory\r\n").expect_err("an error");
        assert!(error.contains("out of memory"), "{error}");
        for bytes in [&b"NS\r\n"[..], b"VA x\r\n", b"VA 2\r\nabcd"] {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
    }
}
