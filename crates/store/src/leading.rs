//! The link to the coordinators of a cluster, of which one leads: clients and servers bind it to
//! the one that leads, and to all of them while they do not know which that is.
//!
//! ```text
//!  all: A;B;C ── NotLeader { B } ─► B ── no answer in time ─► B;C;A ── no answer ─► C;A;B …
//! ```
//! The node uses the first of a list that opens a session. After a failure the list begins with
//! another coordinator, so that one that is paused, or knows no leader, does not win each time.
//!
//! Invariant: only the result of a call under the present binding changes it. A list of one locator
//! is bound once.

use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::node::machine::{Link, Output};

use crate::message::Status;
use crate::message::control::{self, MAX_LOCATORS};

/// The number of calls of a server that fail one after the other before it tries the coordinators
/// in another order, if none has said that there are several. A network that loses packets would
/// cost it a session each time, and its lease.
const PATIENCE: u32 = 3;

/// The number of a binding of the link. A call belongs to the binding under which it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Binding(u32);

/// A link to the coordinators of a cluster.
#[derive(Debug)]
pub(crate) struct Coordinators {
    link: Link,
    /// The locators of all coordinators.
    all: Vec<String>,
    /// The index in `all` at which the list begins.
    first: usize,
    /// The locators that the link is bound to.
    bound: String,
    /// True if the link is bound to a leader that another coordinator has named.
    to_leader: bool,
    binding: Binding,
    /// True if a coordinator has said that another one leads, or none.
    several_known: bool,
    /// The number of calls of a server that have failed since the last reply.
    failures: u32,
    /// The locators of the coordinator that did not answer last. Others may still name it.
    silent: String,
    /// The reason why no coordinator leads, as the last one said that does not know the leader.
    why: String,
}

impl Coordinators {
    /// Returns a link that is to be bound to the coordinators at these locators.
    pub(crate) fn new(link: Link, locators: &str) -> Self {
        Self {
            link,
            all: split(locators).map(String::from).collect(),
            first: 0,
            bound: String::from(locators),
            to_leader: false,
            binding: Binding(0),
            several_known: false,
            failures: 0,
            silent: String::new(),
            why: String::new(),
        }
    }

    /// Returns the output that binds the link.
    pub(crate) fn connect(&self) -> Output {
        Output::Connect { link: self.link, locator: self.bound.clone() }
    }

    /// Returns the binding under which a call goes out now.
    pub(crate) fn binding(&self) -> Binding {
        self.binding
    }

    /// Returns true if there may be several coordinators.
    pub(crate) fn are_several(&self) -> bool {
        self.all.len() > 1
    }

    /// Returns the reason why no coordinator leads, as the last one said, or nothing.
    pub(crate) fn why(&self) -> &str {
        &self.why
    }

    /// Handles the failure of a call: there was no reply in time, or no session. Returns true if
    /// the link has to be bound anew.
    pub(crate) fn failed(&mut self, sent: Binding) -> bool {
        if self.binding != sent {
            return false;
        }
        let first = split(&self.bound).next().unwrap_or_default();
        self.silent = if self.to_leader { self.bound.clone() } else { first.into() };
        self.turn()
    }

    /// Handles a refusal with [`Status::NotLeader`] and this text. Returns true if the link has to
    /// be bound anew.
    pub(crate) fn refused(&mut self, sent: Binding, text: &str) -> bool {
        if self.binding != sent {
            return false;
        }
        self.several_known = true;
        let (leader, why) = control::leader_in(text);
        self.why = why.into();
        let is_silent = self.are_several() && leader == self.silent;
        if leader.is_empty() || leader == self.bound || is_silent || leader.len() > MAX_LOCATORS {
            return self.turn();
        }
        (self.bound, self.to_leader) = (leader.into(), true);
        self.binding.0 = self.binding.0.wrapping_add(1);
        true
    }

    /// Handles the reply to a call of a server. Returns the output that binds the link anew, if
    /// that has to be.
    pub(crate) fn replied(&mut self, sent: Binding, reply: Option<&[u8]>) -> Option<Output> {
        let anew = match reply.map(control::outcome) {
            Some(Ok((Status::NotLeader, text))) => {
                self.refused(sent, core::str::from_utf8(text).unwrap_or(""))
            }
            Some(_) => {
                self.failures = 0;
                false
            }
            None => {
                self.failures += 1;
                (self.several_known || self.failures >= PATIENCE) && self.failed(sent)
            }
        };
        anew.then(|| self.connect())
    }

    /// Returns true if the link is bound to all coordinators.
    pub(crate) fn is_to_all(&self) -> bool {
        !self.to_leader
    }

    /// Binds the link to all coordinators again, another one first.
    fn turn(&mut self) -> bool {
        let [_, _, ..] = self.all[..] else {
            // The one locator was left for a leader that does not answer.
            let is_other = self.all.first().is_some_and(|only| *only != self.bound);
            if is_other {
                (self.bound, self.to_leader) = (self.all.concat(), false);
                self.binding.0 = self.binding.0.wrapping_add(1);
            }
            return is_other;
        };
        self.first = (self.first + 1) % self.all.len();
        let (behind, front) = self.all.split_at(self.first);
        (self.bound, self.to_leader) = ([front, behind].concat().join(";"), false);
        self.binding.0 = self.binding.0.wrapping_add(1);
        true
    }
}

/// Splits a list of locators at each `;`, except after a backslash or within quotes.
pub(crate) fn split(locators: &str) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    locators
        .split(move |c| {
            let separates = c == ';' && !quoted && !escaped;
            quoted ^= c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            separates
        })
        .map(str::trim)
        .filter(|locator| !locator.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link(0);

    #[test]
    fn a_server_has_patience_with_the_locators_of_one_coordinator() {
        let mut link = Coordinators::new(LINK, "a:;b:");
        let lost = |link: &mut Coordinators| link.replied(link.binding(), None).is_some();
        assert!(!lost(&mut link) && !lost(&mut link));
        assert!(link.replied(link.binding(), Some(&control::done())).is_none());
        assert!(!lost(&mut link) && !lost(&mut link), "a reply came between");
        assert!(lost(&mut link));
        assert_eq!(link.bound.as_str(), "b:;a:");
        // There are several: each may be the one that is paused.
        assert!(link.refused(link.binding(), "\n"));
        assert!(lost(&mut link));
    }

    #[test]
    fn a_failure_turns_the_list_and_a_leader_takes_its_place() {
        let mut link = Coordinators::new(LINK, "a:;b:;c:");
        let first = link.binding();
        assert!(link.failed(first));
        assert_eq!(link.bound.as_str(), "b:;c:;a:");
        assert!(!link.failed(first), "that call belonged to the binding before");
        assert!(link.refused(link.binding(), "a:\n"), "it has not noticed that a is silent");
        assert_eq!(link.bound.as_str(), "c:;a:;b:");
        assert!(link.refused(link.binding(), "b:\n"));
        assert_eq!(link.bound.as_str(), "b:");
        assert!(link.refused(link.binding(), "b:\n"), "it leads no more, and says so late");
        assert_eq!(link.bound.as_str(), "a:;b:;c:");
        assert!(link.refused(link.binding(), "\nno etcd"), "it knows none");
        assert_eq!((link.bound.as_str(), link.why()), ("b:;c:;a:", "no etcd"));
    }

    #[test]
    fn a_lone_locator_is_left_for_a_leader_alone() {
        let mut link = Coordinators::new(LINK, "a:");
        assert!(!link.failed(link.binding()) && !link.refused(link.binding(), "\n"));
        assert_eq!((link.bound.as_str(), link.binding()), ("a:", Binding(0)));
        assert!(link.refused(link.binding(), "b:x;b:y"));
        assert!(link.failed(link.binding()));
        assert_eq!(link.bound.as_str(), "a:");
        assert!(!link.failed(link.binding()));
    }
}
