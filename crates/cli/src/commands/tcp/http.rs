//! HTTP/1.0, as little of it as a file server and its client need (RFC 1945).

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

/// The longest head of a request or a response.
const MOST_HEAD: usize = 16 << 10;

/// Reads up to the blank line behind a head. Returns the head, and the bytes behind it.
pub(super) fn head(mut from: impl Read) -> io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut room = [0; 4096];
    loop {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = end {
            let rest = bytes.split_off(end + 4);
            return Ok((String::from_utf8_lossy(&bytes).into_owned(), rest));
        }
        let count = from.read(&mut room)?;
        if count == 0 || bytes.len() > MOST_HEAD {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "that is no HTTP"));
        }
        bytes.extend_from_slice(&room[..count]);
    }
}

/// Returns the file of `folder` that the path of a request names, or none if it leads elsewhere.
fn file(folder: &Path, target: &str) -> Option<PathBuf> {
    let path = decoded(target.split(['?', '#']).next()?)?;
    let path = Path::new(path.trim_start_matches('/')).to_owned();
    let stays = path.components().all(|part| matches!(part, Component::Normal(_)));
    if !stays {
        return None;
    }
    let found = folder.join(path);
    Some(if found.is_dir() { found.join("index.html") } else { found })
}

/// Replaces each `%41` of a path by its byte.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
        } else {
            byte
        });
    }
    String::from_utf8(bytes).ok().filter(|path| !path.contains('\0'))
}

/// Answers one request for a file of `folder`.
pub(super) fn answer<S: Copy + Read + Write>(mut stream: S, folder: &Path) -> io::Result<()> {
    let (request, _) = head(stream)?;
    let mut words = request.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if !matches!(method, "GET" | "HEAD") {
        return refuse(stream, "501 Not Implemented");
    }
    let opened = file(folder, target).and_then(|path| File::open(path).ok());
    let Some(mut opened) = opened.filter(|f| f.metadata().is_ok_and(|m| m.is_file())) else {
        return refuse(stream, "404 Not Found");
    };
    let len = opened.metadata()?.len();
    let head = format!(
        "HTTP/1.0 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {len}\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    if method == "GET" {
        let mut room = vec![0; 256 << 10];
        let mut left = len;
        while left > 0 {
            let count = opened.read(&mut room)?.min(left as usize);
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            stream.write_all(&room[..count])?;
            left -= count as u64;
        }
    }
    Ok(())
}

fn refuse(mut stream: impl Write, status: &str) -> io::Result<()> {
    let body = format!("{status}\n");
    let len = body.len();
    let head = format!("HTTP/1.0 {status}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n");
    stream.write_all((head + &body).as_bytes())
}

/// Returns the request for a path.
pub(super) fn request(host: &str, path: &str) -> String {
    format!("GET {path} HTTP/1.0\r\nHost: {host}\r\nUser-Agent: sprat\r\nAccept: */*\r\n\r\n")
}

/// Returns the status line of a response's head, and the length of its body if the head has it.
pub(super) fn status(head: &str) -> (u16, &str, Option<u64>) {
    let line = head.lines().next().unwrap_or_default();
    let code = line.split_whitespace().nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    let len = head.lines().filter_map(|line| line.split_once(':')).find_map(|(name, value)| {
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    (code, line, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leaves_the_folder() {
        let folder = Path::new("/nowhere");
        for (target, path) in [
            ("/a/b", Some("/nowhere/a/b")),
            ("/a%20b?c=d", Some("/nowhere/a b")),
            ("//a", Some("/nowhere/a")),
            ("/../a", None),
            ("/a/%2e%2e/%2e%2e/b", None),
            ("/%", None),
            ("/%00", None),
        ] {
            assert_eq!(file(folder, target), path.map(PathBuf::from), "{target}");
        }
    }

    #[test]
    fn a_head_ends_at_the_blank_line() {
        let (head, rest) = head(&b"HTTP/1.0 200 OK\r\ncontent-length: 12\r\n\r\nbody"[..]).unwrap();
        assert_eq!(status(&head), (200, "HTTP/1.0 200 OK", Some(12)));
        assert_eq!(rest, b"body");
        assert!(super::head(&b"no http"[..]).is_err());
    }
}
