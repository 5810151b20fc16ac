//! The replies of masters to clients; for their bytes see the header of [`super`].

use core::fmt;

use zerocopy::IntoBytes as _;

use super::*;

/// Why an operation did not do what it was asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Refusal<'a> {
    /// Why. [`Status::BadFormat`] and [`Status::BadVersion`] also if it is the reply that makes no sense.
    pub status: Status,
    /// With a verdict: the object's version as it is, 0 if there is none.
    pub version: Version,
    /// Otherwise: a text for people, often empty.
    pub text: &'a str,
}

impl fmt::Debug for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (version {}) {:?}", self.status, self.version.0, self.text)
    }
}

impl From<Status> for Refusal<'_> {
    fn from(status: Status) -> Self {
        Self { status, version: Version(0), text: "" }
    }
}

/// True for the statuses by which a master tells that it executed an operation and what came of it: they carry the
/// object's version, and they are remembered (RIFL) as OK is.
#[must_use]
#[inline]
pub fn is_verdict(status: Status) -> bool {
    matches!(
        status,
        Status::ObjectDoesntExist
            | Status::ObjectExists
            | Status::WrongVersion
            | Status::NotANumber
            | Status::Overflow
    )
}

/// Some objects of a tablet: the answer to [`Enumerate`]. Iterates over (key, version, value).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Objects<'a> {
    /// Where to go on; `None` if these were the last.
    pub next: Option<u64>,
    left: u32,
    records: &'a [u8],
}

impl<'a> Iterator for Objects<'a> {
    type Item = (&'a [u8], Version, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let (wire, rest) = ObjectWire::ref_from_prefix(self.records).ok()?;
        let (key, rest) = rest.split_at_checked(wire.key_len.get() as usize)?;
        let (value, rest) = rest.split_at_checked(wire.value_len.get() as usize)?;
        self.records = rest;
        Some((key, Version(wire.version.get()), value))
    }
}

/// How every reply begins.
#[must_use]
#[inline]
pub fn head(status: Status) -> [u8; 4] {
    [VERSION, status as u8, 0, 0]
}

/// How the reply to an operation on one object begins when it has come to a result: head and version.
#[must_use]
#[inline]
pub fn result_head(status: Status, version: Version) -> [u8; 12] {
    let mut out = [0; 12];
    out[..4].copy_from_slice(&head(status));
    out[4..].copy_from_slice(&version.0.to_be_bytes());
    out
}

/// How the reply to [`Enumerate`] begins, before its `count` objects. `next` is 0 after the last.
#[must_use]
pub fn objects_head(count: u32, next: u64) -> [u8; 16] {
    let head = ReplyHead { version: VERSION, status: Status::Ok as u8, reserved: U16::ZERO };
    let wire = EnumeratedWire { head, count: count.into(), cursor: next.into() };
    let mut out = [0; 16];
    out.copy_from_slice(wire.as_bytes());
    out
}

/// What stands before the key and value of an object in the reply to [`Enumerate`].
#[must_use]
pub fn object_head(key_len: u32, version: Version, value_len: u32) -> [u8; 16] {
    let wire = ObjectWire {
        version: version.0.into(),
        value_len: value_len.into(),
        key_len: key_len.into(),
    };
    let mut out = [0; 16];
    out.copy_from_slice(wire.as_bytes());
    out
}

/// Splits a reply after its status, if that is OK.
#[inline]
fn accepted(reply: &[u8]) -> Result<&[u8], Refusal<'_>> {
    let (status, rest) = match *reply {
        [VERSION, code, _, _, ref rest @ ..] => {
            (Status::from_code(code).ok_or(Status::BadFormat)?, rest)
        }
        [_, _, _, _, ..] => return Err(Status::BadVersion.into()),
        _ => return Err(Status::BadFormat.into()),
    };
    match status {
        Status::Ok => Ok(rest),
        verdict if is_verdict(verdict) => {
            let version = rest.try_into().map_err(|_| Status::BadFormat)?;
            Err(Refusal { status, version: Version(u64::from_be_bytes(version)), text: "" })
        }
        _ => Err(Refusal {
            status,
            version: Version(0),
            text: core::str::from_utf8(rest).unwrap_or(""),
        }),
    }
}

#[inline]
fn versioned(reply: &[u8]) -> Result<(Version, &[u8]), Refusal<'_>> {
    let (version, rest) = accepted(reply)?.split_first_chunk().ok_or(Status::BadFormat)?;
    Ok((Version(u64::from_be_bytes(*version)), rest))
}

/// The reply to [`Read`]: the object's version and value.
///
/// # Errors
/// Why there is none.
#[inline]
pub fn read_reply(reply: &[u8]) -> Result<(Version, &[u8]), Refusal<'_>> {
    versioned(reply)
}

/// The reply to [`Write`], the object's new version, or to [`Remove`], the version that it had (0 if there was none).
///
/// # Errors
/// Why it was not done.
#[inline]
pub fn mutation_reply(reply: &[u8]) -> Result<Version, Refusal<'_>> {
    match versioned(reply)? {
        (version, []) => Ok(version),
        _ => Err(Status::BadFormat.into()),
    }
}

/// The reply to [`Increment`]: the object's new version, and the sum's 64 bits, big-endian.
///
/// # Errors
/// Why it was not done.
#[inline]
pub fn increment_reply(reply: &[u8]) -> Result<(Version, [u8; 8]), Refusal<'_>> {
    let (version, sum) = versioned(reply)?;
    Ok((version, sum.try_into().map_err(|_| Status::BadFormat)?))
}

/// The reply to [`Enumerate`].
///
/// # Errors
/// Why there is none.
pub fn objects_reply(reply: &[u8]) -> Result<Objects<'_>, Refusal<'_>> {
    accepted(reply)?;
    let (wire, records) = EnumeratedWire::ref_from_prefix(reply).map_err(|_| Status::BadFormat)?;
    let next = Some(wire.cursor.get()).filter(|&cursor| cursor != 0);
    let objects = Objects { next, left: wire.count.get(), records };
    // Walked once here, so that whoever iterates need not think of lies.
    let mut walk = objects;
    let whole = walk.by_ref().count() == wire.count.get() as usize && walk.records.is_empty();
    if whole { Ok(objects) } else { Err(Status::BadFormat.into()) }
}

/// The reply to [`echo`]: the bytes.
///
/// # Errors
/// Why there are none.
pub fn echo_reply(reply: &[u8]) -> Result<&[u8], Refusal<'_>> {
    accepted(reply)
}

/// The reply to [`stats`]: a JSON object of names and numbers.
///
/// # Errors
/// Why there is none.
pub fn stats_reply(reply: &[u8]) -> Result<&str, Refusal<'_>> {
    core::str::from_utf8(accepted(reply)?).map_err(|_| Status::BadFormat.into())
}
