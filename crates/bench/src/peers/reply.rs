//! The replies of the peers' servers, whatever their protocol.

/// A reply to a read or a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The read object has a value of this length in bytes.
    Value(usize),
    /// There is no such object.
    Absent,
    /// The object is written, or the server lives.
    Done,
    /// The reply is a list of this number of elements.
    List(usize),
}

/// A complete reply at the beginning of received bytes, and the number of its bytes.
pub type Parsed = (Reply, usize);

/// Returns the line at the beginning of `bytes`, without its CR LF. `None`: it is incomplete.
pub(super) fn line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some(&bytes[..end])
}

/// Returns the decimal number that `digits` are.
pub(super) fn number(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Returns the bytes of a reply with a value of `length` bytes and CR LF behind `head` bytes.
/// `None`: it is incomplete. An error: the value does not end in CR LF.
pub(super) fn with_value(
    bytes: &[u8],
    head: usize,
    length: usize,
) -> Result<Option<Parsed>, String> {
    // A peer's length may be any number.
    let Some(end) = head.checked_add(length).and_then(|end| end.checked_add(2)) else {
        return Err(format!("a value of {length} bytes"));
    };
    match bytes.get(end - 2..end) {
        None => Ok(None),
        Some(b"\r\n") => Ok(Some((Reply::Value(length), end))),
        Some(_) => Err("a value without its end".to_owned()),
    }
}

/// Returns the text of a reply that is an error, for a message.
pub(super) fn unexpected(line: &[u8]) -> String {
    format!("the reply {}", crate::text::name(line))
}
