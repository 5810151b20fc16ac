//! RESP, the protocol of Redis: GET, SET and PING, and for workload E a sorted set of keys (ZADD,
//! ZRANGEBYLEX) and MGET, as arrays of bulk strings.
//!
//! ```text
//! request   *2 CRLF $3 CRLF GET CRLF $LEN CRLF KEY CRLF
//! reply     $LEN CRLF VALUE CRLF   ·   $-1 CRLF (absent)   ·   +OK CRLF   ·   -ERR TEXT CRLF
//!           :NUMBER CRLF   ·   *COUNT CRLF, then as many of $LEN CRLF VALUE CRLF and $-1 CRLF
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

/// The sorted set that has the keys of all objects. YCSB's client has this name, too.
const ORDER: &[u8] = b"_indices";

/// Adds a request that puts a key into the sorted set of keys to `out`. All have one score, so that
/// they are in the order of their bytes.
pub fn add_to_order(out: &mut Vec<u8>, key: &[u8]) {
    request(out, &[b"ZADD", ORDER, b"0", key]);
}

/// Adds a request for `count` keys of the sorted set, from `key` on, to `out`.
pub fn keys_from(out: &mut Vec<u8>, key: &[u8], count: u64) {
    let from = [b"[", key].concat();
    let count = count.to_string();
    request(out, &[b"ZRANGEBYLEX", ORDER, &from, b"+", b"LIMIT", b"0", count.as_bytes()]);
}

/// Adds a request that reads several objects to `out`.
pub fn read_all(out: &mut Vec<u8>, keys: &[&[u8]]) {
    request(out, &[&[&b"MGET"[..]], keys].concat());
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
        [b':', digits @ ..] if number(digits).is_some() => Ok(Some((Reply::Done, end))),
        [b'*', digits @ ..] => match number(digits) {
            Some(count) => list(bytes, end, count),
            None => Err(unexpected(line)),
        },
        [b'$', digits @ ..] => match number(digits) {
            Some(length) => with_value(bytes, end, length),
            None => Err(unexpected(line)),
        },
        other => Err(unexpected(other)),
    }
}

/// Parses a list of `count` elements behind `head` bytes.
fn list(bytes: &[u8], head: usize, count: usize) -> Result<Option<Parsed>, String> {
    let mut end = head;
    for _ in 0..count {
        match parse(&bytes[end..])? {
            Some((Reply::Value(_) | Reply::Absent, length)) => end += length,
            Some(_) => return Err("a list in a list".to_owned()),
            None => return Ok(None),
        }
    }
    Ok(Some((Reply::List(count), end)))
}

/// Iterates over the elements of a complete reply that is a list: the value of each, `None` if it
/// is absent.
pub fn elements(reply: &[u8]) -> impl Iterator<Item = Option<&[u8]>> {
    let mut rest = line(reply).map_or(&[][..], |line| &reply[line.len() + 2..]);
    std::iter::from_fn(move || {
        let (element, length) = parse(rest).ok()??;
        let (bytes, behind) = rest.split_at(length);
        rest = behind;
        Some(match element {
            Reply::Value(size) => bytes.get(length - 2 - size..length - 2),
            _ => None,
        })
    })
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
        let stream: &[u8] = b"$4\r\na\r\nb\r\n+OK\r\n$-1\r\n$0\r\n\r\n+PONG\r\n:1\r\n";
        let (value, done) = (Reply::Value(4), Reply::Done);
        let expected = [value, done, Reply::Absent, Reply::Value(0), done, done];
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
        let list = b"*3\r\n$1\r\na\r\n$-1\r\n$0\r\n\r\n";
        for (whole, reply) in [(&b"$4\r\na\r\nb\r\n"[..], Reply::Value(4)), (list, Reply::List(3))]
        {
            for cut in 0..whole.len() {
                assert_eq!(parse(&whole[..cut]), Ok(None), "{cut}");
            }
            assert_eq!(parse(whole), Ok(Some((reply, whole.len()))));
        }
        let found: Vec<_> = elements(list).collect();
        assert_eq!(found, [Some(&b"a"[..]), None, Some(b"")]);
        assert_eq!(elements(b"*0\r\n").count(), 0);
    }

    #[test]
    fn an_ordered_scan_has_two_requests() {
        let mut out = Vec::new();
        add_to_order(&mut out, b"user1");
        keys_from(&mut out, b"user1", 10);
        read_all(&mut out, &[b"user1", b"user2"]);
        let golden: &[u8] = b"*4\r\n$4\r\nZADD\r\n$8\r\n_indices\r\n$1\r\n0\r\n$5\r\nuser1\r\n\
            *7\r\n$11\r\nZRANGEBYLEX\r\n$8\r\n_indices\r\n$6\r\n[user1\r\n$1\r\n+\r\n\
            $5\r\nLIMIT\r\n$1\r\n0\r\n$2\r\n10\r\n\
            *3\r\n$4\r\nMGET\r\n$5\r\nuser1\r\n$5\r\nuser2\r\n";
        assert_eq!(out, golden);
    }

    #[test]
    fn errors_and_other_bytes_are_reported() {
        let error = parse(b"-OOM command not allowed\r\n").expect_err("an error");
        assert!(error.contains("OOM"), "{error}");
        let long = b"$18446744073709551615\r\n\r\n";
        for bytes in [&b":x\r\n"[..], b"$x\r\n", b"$2\r\nabcd", long, b"*1\r\n+OK\r\n"] {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
    }
}
