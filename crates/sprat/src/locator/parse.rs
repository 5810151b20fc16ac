//! The parser of locators, written by hand: one pass over the bytes. An error names the place in
//! the text.

use sprat_proto::device::Mac;

use super::{Locator, LocatorError, MAX_LEN};

pub(super) const PROTOCOL: &str = "a protocol (letters, digits, _ and +)";
pub(super) const KEY: &str = "a key (letters, digits and _)";

pub(super) fn in_key(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

pub(super) fn in_protocol(b: u8) -> bool {
    in_key(b) || b == b'+'
}

/// Parses a hardware address: six numbers of one or two hexadecimal digits with colons between
/// them.
pub(super) fn mac(text: &str) -> Option<Mac> {
    let digits =
        |part: &str| (1..=2).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit());
    let octet = |part: &str| u8::from_str_radix(part, 16).ok().filter(|_| digits(part));
    let octets: Vec<u8> = text.split(':').map(octet).collect::<Option<_>>()?;
    octets.try_into().ok().map(Mac)
}

/// Parses a list of locators: `locator (';' locator)*`.
pub(super) fn list(text: &str) -> Result<Vec<Locator>, LocatorError> {
    if text.len() > MAX_LEN {
        return Err(LocatorError::TooLong(text.len()));
    }
    let mut cursor = Cursor { text, at: 0 };
    let mut all = vec![cursor.locator()?];
    while cursor.take(b';') {
        all.push(cursor.locator()?);
    }
    if cursor.at < text.len() {
        return Err(cursor.expected("',', ';' or the end"));
    }
    Ok(all)
}

/// A position in the text `text` of locators. `at` always lies between two characters, since only
/// ASCII characters are skipped by bytes.
struct Cursor<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Cursor<'t> {
    fn expected(&self, expected: &'static str) -> LocatorError {
        LocatorError::Grammar { text: self.text.into(), at: self.at, expected }
    }

    fn skip_spaces(&mut self) {
        let rest = &self.text[self.at..];
        self.at = self.text.len() - rest.trim_start().len();
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Skips the byte `b` if it is next, with the spaces before and after it. Returns true if it
    /// was.
    fn take(&mut self, b: u8) -> bool {
        self.skip_spaces();
        let is = self.peek() == Some(b);
        if is {
            self.at += 1;
            self.skip_spaces();
        }
        is
    }

    fn word(
        &mut self,
        allowed: fn(u8) -> bool,
        expected: &'static str,
    ) -> Result<&'t str, LocatorError> {
        self.skip_spaces();
        let rest = &self.text[self.at..];
        let len = rest.bytes().take_while(|&b| allowed(b)).count();
        if len == 0 {
            return Err(self.expected(expected));
        }
        self.at += len;
        Ok(&rest[..len])
    }

    fn locator(&mut self) -> Result<Locator, LocatorError> {
        let protocol = self.word(in_protocol, PROTOCOL)?.to_owned();
        let mut locator = Locator { protocol, options: Vec::new() };
        if !self.take(b':') {
            return Err(self.expected("':'"));
        }
        if matches!(self.peek(), None | Some(b';')) {
            return Ok(locator);
        }
        loop {
            let key = self.word(in_key, KEY)?;
            if !self.take(b'=') {
                return Err(self.expected("'='"));
            }
            let value = if self.peek() == Some(b'"') { self.quoted()? } else { self.plain()? };
            locator.set(key, &value);
            if !self.take(b',') {
                return Ok(locator);
            }
        }
    }

    fn quoted(&mut self) -> Result<String, LocatorError> {
        self.at += 1;
        let mut value = String::new();
        let mut chars = self.text[self.at..].char_indices().peekable();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += i + 1;
                    return Ok(value);
                }
                '\\' => match chars.next_if(|(_, c)| "\\\"".contains(*c)) {
                    Some((_, escaped)) => value.push(escaped),
                    None => value.push('\\'),
                },
                _ => value.push(c),
            }
        }
        self.at = self.text.len();
        Err(self.expected("'\"'"))
    }

    /// Parses a plain value up to the next `,` or `;`, without the spaces at its end. A backslash
    /// before a character that needs no escape stands for itself.
    fn plain(&mut self) -> Result<String, LocatorError> {
        let mut value = String::new();
        let mut kept = 0;
        let mut chars = self.text[self.at..].char_indices().peekable();
        let mut end = self.text.len();
        while let Some((i, c)) = chars.next() {
            match c {
                ',' | ';' => {
                    end = self.at + i;
                    break;
                }
                '"' => {
                    self.at += i;
                    return Err(self.expected("a value; a quote inside one is written \\\""));
                }
                '\\' => {
                    value.push(
                        chars
                            .next_if(|(_, c)| "\\\",; ".contains(*c))
                            .map_or('\\', |(_, escaped)| escaped),
                    );
                    kept = value.len();
                }
                _ => {
                    value.push(c);
                    if !c.is_whitespace() {
                        kept = value.len();
                    }
                }
            }
        }
        value.truncate(kept);
        self.at = end;
        Ok(value)
    }
}
