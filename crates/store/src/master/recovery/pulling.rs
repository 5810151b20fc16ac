//! A master that serves a tablet as the source of a migration: pages of objects and changes are
//! pulled from it and replayed.
//!
//! Invariants: pages are replayed in their order. Some are asked for ahead, so that neither server
//! waits for the other. After a failure, all pages from the first missing one on are asked for
//! again. The source closes the tablet when few changes are left, and not before.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::{Link, Output};
use sprat_proto::rpc::{Payload, RpcError};
use sprat_proto::time::{MS, SECOND};

use super::fed::{Fed, TICK_BYTES};
use crate::master::links;
use crate::master::membership::CALL_NS;
use crate::message::Status;
use crate::message::migration::{MOST_AHEAD, Migrate, PAGE, Page, Progress, PullTablet};
use crate::objects::entry::Entries;
use crate::objects::log::Full;
use crate::objects::memory::Memory;
use crate::objects::partition::{Partition, Stopped};
use crate::objects::tablet::Tablet;
use crate::types::ServerId;

/// The pause after a request that had no answer, or for which the source is busy.
const AGAIN_NS: u64 = 20 * MS;
/// The time without an answer after which the source counts as silent, in nanoseconds.
const SILENT_NS: u64 = 10 * SECOND;

/// The number of a page that was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked(u64);

/// A tablet that is pulled from its owner.
#[derive(Debug)]
pub(super) struct Pulling {
    migration: u64,
    source: ServerId,
    locator: String,
    linked: bool,
    tablet: Tablet,
    /// The number of the next page to ask for, and of the next one to replay.
    next: u64,
    wanted: u64,
    /// The number of the attempt to get pages, and its first page.
    attempt: u64,
    from: u64,
    /// The number of pages that may be asked for ahead. One at first after a failure, since
    /// requests that overtake each other fail again, and more with each page that arrives.
    window: u64,
    /// The number of requests in progress.
    in_progress: u64,
    close: bool,
    /// The replies that wait, by number of the page.
    received: BTreeMap<u64, Vec<u8>>,
    /// True after a failure, until no request is in progress: then the pages from the first one
    /// that is missing on are asked for again.
    goes_back: bool,
    /// The reply that is replayed now, and the position in its entries.
    replaying: Option<(Vec<u8>, Entries)>,
    /// True if the last page is replayed, or is replayed now.
    complete: bool,
    /// The time of the first failure since the last answer.
    failing_since: Option<Instant>,
    not_before: Instant,
    /// True if the source refuses, does not answer, or sends pages that are damaged.
    given_up: bool,
}

impl Pulling {
    pub(super) fn new(order: &Migrate<'_>, tablet: Tablet) -> Self {
        Self {
            migration: order.migration,
            source: order.source,
            locator: order.data.into(),
            linked: false,
            tablet,
            next: 1,
            wanted: 1,
            attempt: 1,
            from: 1,
            window: 1,
            in_progress: 0,
            close: false,
            received: BTreeMap::new(),
            goes_back: false,
            replaying: None,
            complete: false,
            failing_since: None,
            not_before: Instant::ZERO,
            given_up: false,
        }
    }

    /// Returns the time before which no request is sent.
    pub(super) fn not_before(&self) -> Instant {
        self.not_before
    }

    /// Returns the link to the source, if it is connected.
    pub(super) fn links(&self) -> Vec<Link> {
        self.linked.then_some(self.link()).into_iter().collect()
    }

    fn link(&self) -> Link {
        links::source(self.source)
    }

    /// Returns the request for the next page, or the order to connect the link that it needs.
    pub(super) fn next(
        &mut self,
        now: Instant,
        cluster: u64,
        tag: u64,
    ) -> Option<(Output, Option<Asked>)> {
        if self.goes_back && self.in_progress == 0 {
            self.goes_back = false;
            self.received.clear();
            (self.next, self.from) = (self.wanted, self.wanted);
            self.attempt += 1;
        }
        let is_far = self.next >= self.wanted + self.window;
        if self.complete || self.given_up || self.goes_back || is_far {
            return None;
        }
        let link = self.link();
        if !core::mem::replace(&mut self.linked, true) {
            return Some((Output::Connect { link, locator: self.locator.clone() }, None));
        }
        let Self { migration, source, next: page, attempt, from, close, .. } = *self;
        (self.next, self.in_progress) = (page + 1, self.in_progress + 1);
        let Tablet { table, first, last } = self.tablet;
        let message = PullTablet {
            cluster,
            source,
            migration,
            table,
            first,
            last,
            page,
            attempt,
            from,
            close,
        };
        let message = message.emit();
        let (message, deadline) = (message.into(), now.after(CALL_NS));
        Some((Output::Call { link, tag, message, deadline }, Some(Asked(page))))
    }

    /// Takes the result of a request.
    pub(super) fn take(
        &mut self,
        now: Instant,
        Asked(page): Asked,
        result: Result<Payload<'_>, RpcError>,
    ) {
        self.in_progress -= 1;
        let reply = result.map_err(|_| Status::Retry);
        match reply.and_then(|reply| Ok((Page::parse(&reply)?.progress, reply))) {
            // What comes behind a failure is not in order.
            Ok(_) if self.goes_back => {}
            Ok((progress, reply)) => {
                self.failing_since = None;
                self.close |= progress == Progress::Near;
                self.received.insert(page, reply.into_vec());
                self.window = (self.window + 1).min(MOST_AHEAD);
            }
            Err(Status::Retry | Status::NotServing)
                if now.since(*self.failing_since.get_or_insert(now)) < SILENT_NS =>
            {
                (self.goes_back, self.window) = (true, 1);
                self.not_before = now.after(AGAIN_NS);
            }
            _ => self.given_up = true,
        }
    }

    /// Replays some bytes of a page. Returns the progress.
    pub(super) fn replay(
        &mut self,
        partition: &mut Partition,
        memory: &mut Memory,
    ) -> Result<Fed, Full> {
        if self.given_up {
            return Ok(Fed::Lacking);
        }
        let Some((reply, entries)) = &mut self.replaying else {
            let next = self.received.remove(&self.wanted).filter(|_| !self.complete);
            self.replaying = next.map(|reply| (reply, Entries::default()));
            if let Some((reply, _)) = &self.replaying {
                self.wanted += 1;
                let progress = Page::parse(reply).map(|page| page.progress);
                self.complete = progress == Ok(Progress::Complete);
            }
            return Ok(match self.replaying {
                Some(_) => Fed::More,
                None if self.complete => Fed::All,
                None => Fed::Waiting,
            });
        };
        let bytes = &reply[Page::HEAD..];
        match memory.replay(partition, (PAGE, bytes.len()), bytes, entries, TICK_BYTES) {
            Ok(()) if entries.at() >= bytes.len() => self.replaying = None,
            Ok(()) => {}
            Err(Stopped::Full) => return Err(Full::NoSegment),
            Err(Stopped::Damaged) => self.given_up = true,
        }
        Ok(Fed::More)
    }
}
