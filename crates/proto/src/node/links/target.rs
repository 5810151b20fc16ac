//! The server that links are bound to: its locators, the locator in use, and the causes why others
//! failed.
//!
//! Always: a server with one locator has that one chosen. Of several locators none is chosen before
//! a session by it has opened.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{borrow::ToOwned, format};
use core::fmt::Display;

use crate::Instant;
use crate::node::host::Opened;
use crate::node::machine::Link;
use crate::node::race::Race;
use crate::rpc::CloseReason;

/// A candidate: one of a server's locators.
#[derive(Debug)]
struct Candidate<E> {
    locator: String,
    /// The cause of the candidate's last failed attempt, or of the end of its last session. The
    /// text begins with the locator.
    why: Option<String>,
    /// The host's error, if the candidate's last attempt could not begin.
    error: Option<E>,
    /// Another program than the server answers at this locator: the next race tries it last.
    doubtful: bool,
}

/// A server that links are bound to, and the state of the search for a locator that reaches it.
#[derive(Debug)]
pub(crate) struct Target<E> {
    /// The list of locators by which links are bound to the server.
    pub(super) text: String,
    candidates: Vec<Candidate<E>>,
    /// The server's locator in use, and its transport once a session by it was open.
    chosen: Option<usize>,
    pub(super) transport: Option<usize>,
    /// The race that chooses the server's locator, and the lane that gets the session.
    pub(crate) race: Option<(Race<Opened>, Link)>,
    /// The number of lanes that are bound to the server.
    pub(super) lanes: u32,
}

/// Returns the words by which an error message explains the end of a session.
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

impl<E: Display> Target<E> {
    pub(super) fn new(text: &str, locators: Vec<String>) -> Self {
        let chosen = (locators.len() == 1).then_some(0);
        let candidate = |locator| Candidate { locator, why: None, error: None, doubtful: false };
        Self {
            text: text.to_owned(),
            candidates: locators.into_iter().map(candidate).collect(),
            chosen,
            transport: None,
            race: None,
            lanes: 0,
        }
    }

    /// The index of the server's locator in use.
    pub(crate) const fn chosen(&self) -> Option<usize> {
        self.chosen
    }

    /// The text of the server's locator with the index `candidate`.
    pub(crate) fn locator(&self, candidate: usize) -> &str {
        &self.candidates[candidate].locator
    }

    /// Uses the server's locator `candidate` from now on: it has a session at `transport`.
    pub(crate) fn choose(&mut self, candidate: usize, transport: usize) {
        (self.chosen, self.transport) = (Some(candidate), Some(transport));
        self.began(candidate);
    }

    /// Records that an attempt by the locator `candidate` begins.
    pub(crate) fn began(&mut self, candidate: usize) {
        let candidate = &mut self.candidates[candidate];
        (candidate.why, candidate.error) = (None, None);
    }

    /// Records that an attempt by the locator `candidate` could not begin.
    pub(crate) fn failed(&mut self, candidate: usize, error: E) {
        self.blame(candidate, &error.to_string());
        self.candidates[candidate].error = Some(error);
    }

    /// Records that a session by the locator `candidate` ended, or could not be opened.
    pub(super) fn ended(&mut self, candidate: usize, reason: CloseReason, cause: Option<String>) {
        self.candidates[candidate].doubtful =
            matches!(reason, CloseReason::Version | CloseReason::Unreachable);
        self.blame(candidate, cause.as_deref().unwrap_or_else(|| words(reason)));
    }

    /// Records why a session or an attempt by the locator `candidate` failed. If the locator was in
    /// use and the server has others, none is in use any more.
    fn blame(&mut self, candidate: usize, why: &str) {
        let failed = &mut self.candidates[candidate];
        let named = why.starts_with(&failed.locator);
        failed.why =
            Some(if named { why.to_owned() } else { format!("{}: {why}", failed.locator) });
        if self.chosen == Some(candidate) && self.candidates.len() > 1 {
            self.chosen = None;
        }
    }

    /// Makes a race of all the server's locators in the order of the list, the doubtful ones last.
    pub(crate) fn race(&self, now: Instant) -> Race<Opened> {
        let doubtful = |wanted: bool| {
            let all = self.candidates.iter().enumerate();
            all.filter(move |(_, c)| c.doubtful == wanted).map(|(i, _)| i)
        };
        Race::new(now, doubtful(false).chain(doubtful(true)))
    }

    /// Explains why the server cannot be reached: lists each locator that was tried, with its
    /// cause.
    pub(crate) fn why(&self) -> String {
        let tried = |i| match &self.race {
            Some((race, _)) => race.opening().any(|(candidate, _)| candidate == i),
            None => self.chosen == Some(i),
        };
        let each = self.candidates.iter().enumerate();
        let texts = each.filter_map(|(i, c)| match &c.why {
            Some(why) => Some(why.clone()),
            None => tried(i).then(|| format!("{}: no answer", c.locator)),
        });
        texts.collect::<Vec<_>>().join("; ")
    }

    /// Takes the host's error of the server's first locator that has one.
    pub(crate) fn take_error(&mut self) -> Option<E> {
        self.candidates.iter_mut().find_map(|candidate| candidate.error.take())
    }
}
