//! Reads the frames of a server without a change, to see whether they are sound.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use sprat_store::backup::{
    BLOCK, FileHeader, Found, JournalContent, Survey, Unusable, flat_bytes, flat_header,
    flat_offset, flat_slots,
};
use sprat_store::objects::segment::SEGMENT_BYTES;
use sprat_sys::crc::crc32c;
use sprat_sys::memory::file::lock_shared;

use super::{boot, journal, unusable};
use crate::server::JOURNAL;

/// The frames of a server, and their condition.
#[derive(Debug)]
pub struct Checked {
    /// The header of all frames. `None` if no process has finished making the file.
    pub header: Option<FileHeader>,
    /// The number of bytes that the file must have, and that it has.
    pub bytes: (u64, u64),
    /// The journal of the frames, if they have one.
    pub journal: Option<CheckedJournal>,
    /// The frames one by one, with what the journal has of them.
    pub survey: Survey,
}

/// The journal of frames, and its condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckedJournal {
    /// The number of the last batch.
    pub last: u64,
    /// The number of batches that may have what the frames lack, and of their records.
    pub needed: (u64, usize),
    /// True if none of these batches is missing.
    pub is_whole: bool,
}

/// Examines the file of frames at `path`, and its journal. `progress` gets the number of frames
/// that were examined.
///
/// # Errors
/// The file cannot be read, a process uses it (`ResourceBusy`), or it is no file of frames
/// (`InvalidData`).
pub fn check(path: &Path, mut progress: impl FnMut(u32)) -> io::Result<Checked> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is no regular file"));
    }
    lock_shared(&file)?;
    let len = file.metadata()?.len();
    let mut block = vec![0; BLOCK];
    let read = file.read_at(&mut block, 0)?;
    let header = match flat_header(crc32c, &block[..read]) {
        _ if len == 0 => None,
        Found::Header(header) => Some(header),
        Found::Nothing => None,
        Found::Damaged => return Err(unusable(Unusable::Foreign)),
    };
    let FileHeader { frame_bytes, count, journal: number, batches, .. } =
        header.unwrap_or_default();
    let beside = path.with_file_name(JOURNAL);
    let region = if number == 0 { Vec::new() } else { journal::read(&beside)? };
    let content = JournalContent::parse(crc32c, number, batches, &region);
    let mut survey = Survey::new(crc32c, &header.unwrap_or_default(), boot()?);
    let needed = flat_bytes(frame_bytes, count);
    // A frame is as long as the segments of any server, or its header is refused when it is used.
    let mut bytes = vec![0; frame_bytes.min(SEGMENT_BYTES) as usize];
    let present = |frame: &u32| flat_offset(frame_bytes, *frame) < len;
    for frame in (0..count).take_while(present) {
        let at = flat_offset(frame_bytes, frame);
        let slots = file.read_exact_at(&mut block, at).ok().and_then(|()| flat_slots(&block, 0));
        survey.examine(frame, slots, &content, || {
            file.read_exact_at(&mut bytes, at + BLOCK as u64).ok()?;
            Some(&mut bytes)
        });
        progress(frame + 1);
    }
    let journal = (number != 0).then(|| CheckedJournal {
        last: content.last,
        needed: (content.needed, content.records()),
        is_whole: content.is_whole,
    });
    Ok(Checked { header, bytes: (needed, len), journal, survey })
}
