//! `sprat disk check`: shows what a directory of a cluster holds, and whether it is sound.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Value, json};
use sprat::internals::disk::check_state;
use sprat::internals::frames::{Checked, CheckedJournal, check};
use sprat::internals::rings::{self, CheckedRing, RingCondition};
use sprat::server::{FRAMES, MAX_SHARDS, shard_directory};
use sprat_bench::cluster::{coordinator_state, server_directory};
use sprat_bench::fail::{Fail, Named as _};
use sprat_bench::out::{self, Columns, bytes};
use sprat_store::backup::{Condition, Content, flat_offset};

use super::up::MOST_SERVERS;
use crate::progress::Progress;

/// Check the directories of clusters and servers.
#[derive(Subcommand, Debug)]
#[command(after_help = "Example:
  sprat disk check ~/.local/share/sprat/sprat")]
pub(crate) enum Disk {
    /// Check a directory of a cluster or a server: what it holds, and whether all of it is intact.
    ///
    /// The directory does not change. The exit code is 0 if all is sound, 1 if something is
    /// damaged, and 2 if the directory holds no data of Sprat or a process uses it. What is
    /// damaged may have another replica: `sprat up` finds it.
    #[command(after_help = "Examples:
  sprat disk check books                  the directory of: sprat up --dir books
  sprat disk check books/server-1 --json  one server's, as a JSON object")]
    Check {
        /// Directory of `sprat up --dir` or `sprat server --dir`.
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// Write one JSON object a file.
        #[arg(long)]
        json: bool,
    },
}

/// Runs `sprat disk`.
pub(crate) fn run(Disk::Check { dir, json }: &Disk) -> Result<(), Fail> {
    let (state, frames) = files(dir)?;
    let mut damaged = 0;
    for path in state {
        let result = check_state(&path);
        let sound = match &result {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => false,
            Err(error) => return Err(unusable(&path, error)),
        };
        damaged += usize::from(!sound);
        let said = result.as_ref().map_or_else(ToString::to_string, |entries| {
            format!("the coordinator's state, {entries} entries")
        });
        let (file, entries) = (path.display().to_string(), result.as_ref().ok());
        out::raw(if *json {
            format!(
                "{}\n",
                json!({
                    "file": file, "kind": "coordinator", "sound": sound, "entries": entries,
                    "error": result.as_ref().err().map(ToString::to_string),
                })
            )
        } else {
            out::lines(&format!("{file}: {}; {said}\n", condition(sound))).into_owned()
        })?;
    }
    for path in frames {
        let progress = Progress::new("checked", None);
        let result = check(&path, |done| progress.at(done.into(), done.into()));
        progress.end();
        let checked = result.map_err(|error| unusable(&path, &error))?;
        damaged += usize::from(!is_sound(&checked));
        out::raw(if *json {
            format!("{}\n", machine_text(&path, &checked))
        } else {
            out::lines(&human_text(&path, &checked)).into_owned()
        })?;
        let directory = path.parent().unwrap_or(dir);
        for ring in rings::check(directory).named(directory.display())? {
            damaged += usize::from(ring.condition == RingCondition::Damaged);
            out::raw(ring_text(&ring, *json))?;
        }
    }
    match damaged {
        0 => Ok(()),
        1 => Err(Fail::new("1 file is damaged")),
        n => Err(Fail::new(format!("{n} files are damaged"))),
    }
    .map_err(|fail| {
        fail.next("the cluster uses other replicas of what is damaged, if there are any")
    })
}

/// Returns the state files and the files of frames in a directory.
fn files(dir: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), Fail> {
    let shown = dir.display();
    fs::read_dir(dir).named(&shown).map_err(|fail| Fail::usage(fail.to_string()))?;
    let there = |path: &PathBuf| path.exists();
    let shards = |dir: PathBuf| (0..MAX_SHARDS).map(move |i| shard_directory(&dir, i).join(FRAMES));
    if dir.join(FRAMES).exists() {
        return Ok((Vec::new(), shards(dir.to_owned()).filter(there).collect()));
    }
    let state: Vec<_> = Some(coordinator_state(dir)).into_iter().filter(there).collect();
    let servers = (1..=MOST_SERVERS).map(|index| server_directory(dir, index));
    let frames: Vec<_> = servers.flat_map(shards).filter(there).collect();
    if state.is_empty() && frames.is_empty() {
        return Err(Fail::usage(format!("{shown} holds no data of Sprat"))
            .next("name the directory of sprat up --dir or of sprat server --dir"));
    }
    Ok((state, frames))
}

/// Returns the failure to check a file that is none of ours, or in use.
fn unusable(path: &Path, error: &io::Error) -> Fail {
    let fail = Fail::usage(format!("{}: {error}", path.display()));
    match error.kind() {
        io::ErrorKind::ResourceBusy => fail.next("end the cluster first: sprat down"),
        _ => fail,
    }
}

fn condition(sound: bool) -> &'static str {
    if sound { "sound" } else { "DAMAGED" }
}

fn is_sound(checked: &Checked) -> bool {
    let (needed, len) = checked.bytes;
    let is_whole = checked.journal.is_none_or(|journal| journal.is_whole);
    len >= needed && is_whole && checked.survey.flaws.iter().all(|(_, _, f)| !f.is_damaged())
}

/// Returns the condition of a frame as a sentence.
fn flaw(content: &Content, condition: Condition) -> String {
    let what = match content {
        Content::Free => "no replica".to_owned(),
        Content::Unknown => "an unknown replica".to_owned(),
        Content::Replica(held) => {
            format!("{} B of segment {} of server {}", held.len, held.segment.0, held.master)
        }
    };
    match condition {
        Condition::Sound => what,
        Condition::Cut(len) => {
            format!("{what}; it has {len} B, since the power failed before the rest was written")
        }
        Condition::Slot => format!("{what}; one slot of its header is damaged"),
        Condition::Header => format!("{what}; its header is damaged"),
        Condition::Bytes(intact) => format!("{what}; it is damaged from its byte {intact} on"),
        Condition::Unreadable => format!("{what}; the disk does not deliver it"),
    }
}

/// Returns a line about a ring of a server.
fn ring_text(ring: &CheckedRing, json: bool) -> String {
    let CheckedRing { path, bytes: len, condition: found } = ring;
    let (file, sound) = (path.display().to_string(), *found != RingCondition::Damaged);
    let what = match found {
        RingCondition::Sound => "the next start of the server takes the changes in it",
        RingCondition::Earlier => "of an earlier run of the machine; the next start removes it",
        RingCondition::Unfinished => "it was never used; the next start removes it",
        RingCondition::Damaged => "the next start removes it: changes in it are lost here",
    };
    if json {
        let ring =
            json!({"file": file, "kind": "ring", "sound": sound, "bytes": len, "text": what});
        format!("{ring}\n")
    } else {
        let text = format!("{file}: {}; a ring of {len} B; {what}\n", condition(sound));
        out::lines(&text).into_owned()
    }
}

/// Returns a line about the journal of frames.
fn journal_text(journal: CheckedJournal) -> String {
    let CheckedJournal { last, needed: (batches, records), is_whole } = journal;
    let whole = if is_whole { "sound" } else { "DAMAGED: open replicas may lack their last bytes" };
    format!("  journal: {whole}; {records} records in {batches} batches up to batch {last}\n")
}

/// Returns a text about the frames of a server for people.
fn human_text(path: &Path, checked: &Checked) -> String {
    let Checked { header, bytes: (needed, len), journal, survey } = checked;
    let Some(header) = header else {
        return format!("{}: sound; no server has used it\n", path.display());
    };
    let owner = header.owner.map_or_else(String::new, |(cluster, server)| {
        format!(", of cluster {cluster:016x}, last used by server {server}")
    });
    let mut text = format!(
        "{}: {}; {} frames of {}, {} free{owner}\n",
        path.display(),
        condition(is_sound(checked)),
        header.count,
        bytes(header.frame_bytes.into()),
        survey.free,
    );
    if len < needed {
        text += &format!("  the file was cut off: it has {len} B instead of {needed}\n");
    }
    text += &journal.map_or_else(String::new, journal_text);
    if !survey.masters.is_empty() {
        let mut columns = Columns::new(&["  log of", ">open", ">closed", ">bytes", ">epochs"]);
        for ((_, master), counted) in &survey.masters {
            columns.row([
                format!("  server {master}"),
                counted.open.to_string(),
                counted.closed.to_string(),
                bytes(counted.bytes),
                format!("{} to {}", counted.epochs.0, counted.epochs.1),
            ]);
        }
        text += &columns.text();
    }
    for (frame, content, condition) in &survey.flaws {
        let at = flat_offset(header.frame_bytes, *frame);
        text += &format!("  frame {frame} at byte {at}: {}\n", flaw(content, *condition));
    }
    text
}

/// Returns the JSON object of the frames of a server.
fn machine_text(path: &Path, checked: &Checked) -> Value {
    let Checked { header, bytes: (needed, len), journal, survey } = checked;
    let size = header.map_or(0, |header| header.frame_bytes);
    let masters = survey.masters.iter().map(|((cluster, master), counted)| {
        json!({
            "cluster": format!("{cluster:016x}"), "master": master.to_string(),
            "open": counted.open, "closed": counted.closed, "bytes": counted.bytes,
            "epochs": [counted.epochs.0, counted.epochs.1],
        })
    });
    let flaws = survey.flaws.iter().map(|(frame, content, condition)| {
        json!({
            "frame": frame, "offset": flat_offset(size, *frame),
            "damaged": condition.is_damaged(), "text": flaw(content, *condition),
        })
    });
    json!({
        "file": path.display().to_string(), "kind": "frames", "sound": is_sound(checked),
        "cluster": header.and_then(|h| h.owner).map(|(cluster, _)| format!("{cluster:016x}")),
        "server": header.and_then(|h| h.owner).map(|(_, server)| server.to_string()),
        "boot": header.map(|h| format!("{:016x}", h.boot)),
        "frame_bytes": size, "frames": header.map_or(0, |h| h.count), "free": survey.free,
        "file_bytes": len, "needed_bytes": needed,
        "journal": journal.map(|journal| json!({
            "sound": journal.is_whole, "last_batch": journal.last, "batches": journal.needed.0,
            "records": journal.needed.1,
        })),
        "masters": masters.collect::<Vec<_>>(), "flaws": flaws.collect::<Vec<_>>(),
    })
}
