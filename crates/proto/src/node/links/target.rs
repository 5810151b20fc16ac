//! A server as links are bound to it: its locators, which of them is in use, and what is known of the others.
//!
//! Always: a server with one locator has that one chosen; of several none is chosen before its session has opened.

use std::io;

use sprat_proto::Instant;
use sprat_proto::rpc::{CloseReason, SessionId};

use crate::doors::naming;
use crate::locator::Locator;
use crate::race::Race;
use sprat_proto::node::machine::Link;

/// One of a server's locators.
#[derive(Debug)]
struct Candidate {
    to: Locator,
    /// Why it was last of no use.
    why: Option<io::Error>,
    /// What answers there, if anything, is not the server: the next race tries it last.
    doubtful: bool,
}

/// A session, by its door.
pub(crate) type Opened = (usize, SessionId);

/// See the file.
#[derive(Debug)]
pub(crate) struct Target {
    /// The list of locators that links are bound by.
    pub(super) text: String,
    candidates: Vec<Candidate>,
    /// The locator in use, and its door once that is open.
    chosen: Option<usize>,
    pub(super) door: Option<usize>,
    /// What decides which one is used, and the strand that gets the session.
    pub(crate) race: Option<(Race<Opened>, Link)>,
    /// Strands that are bound to it.
    pub(super) links: u32,
    /// Requests that a session with it carries at a time.
    pub(super) channels: usize,
}

/// Why a session ended, for those who read it.
fn words(reason: CloseReason) -> &'static str {
    match reason {
        CloseReason::Local => "closed",
        CloseReason::Reset => "the server ended the session, or does not know it",
        CloseReason::PeerGone => "the server is gone",
        CloseReason::Version => {
            "what listens there speaks another protocol, or another version of ours"
        }
        _ => "no answer",
    }
}

impl Target {
    pub(super) fn new(text: &str, list: Vec<Locator>) -> Self {
        let chosen = (list.len() == 1).then_some(0);
        let candidates =
            list.into_iter().map(|to| Candidate { to, why: None, doubtful: false }).collect();
        Self {
            text: text.to_owned(),
            candidates,
            chosen,
            door: None,
            race: None,
            links: 0,
            channels: usize::MAX,
        }
    }

    /// The locator in use.
    pub(crate) const fn chosen(&self) -> Option<usize> {
        self.chosen
    }

    /// The locator of a candidate.
    pub(crate) fn locator(&self, candidate: usize) -> &Locator {
        &self.candidates[candidate].to
    }

    /// This candidate is used from now on: it has a session behind `door`, which carries `channels` requests.
    pub(crate) fn choose(&mut self, candidate: usize, door: usize, channels: usize) {
        (self.chosen, self.door, self.channels) = (Some(candidate), Some(door), channels);
        self.candidates[candidate].why = None;
    }

    /// A candidate is being tried.
    pub(crate) fn began(&mut self, candidate: usize) {
        self.candidates[candidate].why = None;
    }

    /// A candidate is of no use, and so is not the one in use any more unless there is no other.
    pub(crate) fn failed(&mut self, candidate: usize, why: io::Error) {
        let failed = &mut self.candidates[candidate];
        failed.why = Some(naming(&failed.to, why));
        if self.chosen == Some(candidate) && self.candidates.len() > 1 {
            self.chosen = None;
        }
    }

    /// A session by `candidate` ended, or could not be opened.
    pub(super) fn ended(&mut self, candidate: usize, reason: CloseReason, cause: Option<String>) {
        let why = cause.unwrap_or_else(|| words(reason).to_owned());
        self.candidates[candidate].doubtful =
            matches!(reason, CloseReason::Version | CloseReason::Unreachable);
        self.failed(candidate, io::Error::new(io::ErrorKind::NotConnected, why));
    }

    /// A race of all candidates, in the order of the list, those in doubt behind the others.
    pub(crate) fn race(&self, now: Instant) -> Race<Opened> {
        let doubtful = |wanted: bool| {
            let all = self.candidates.iter().enumerate();
            all.filter(move |(_, c)| c.doubtful == wanted).map(|(i, _)| i)
        };
        Race::new(now, doubtful(false).chain(doubtful(true)))
    }

    /// Why it cannot be reached: each locator that was tried with its own cause.
    pub(crate) fn why(&self) -> io::Error {
        let tried = |i| match &self.race {
            Some((race, _)) => race.opening().any(|(candidate, _)| candidate == i),
            None => self.chosen == Some(i),
        };
        let silent = |i, c: &Candidate| tried(i).then(|| format!("{}: no answer", c.to));
        let each = self.candidates.iter().enumerate();
        let texts = each
            .filter_map(|(i, c)| c.why.as_ref().map(io::Error::to_string).or_else(|| silent(i, c)));
        let text = texts.collect::<Vec<_>>().join("; ");
        let kind = self.candidates.iter().find_map(|c| c.why.as_ref()).map(io::Error::kind);
        io::Error::new(kind.unwrap_or(io::ErrorKind::TimedOut), text)
    }
}
