//! The servers that can hold replicas of a master's log: the coordinator's server list, as the
//! master knows it.
//!
//! Invariants: one request for the list is in progress at a time. The list is taken whole: a page
//! of another version than the first one is read again from the start at the next renewal. A master
//! that has opened a replica here before the first page was asked for, and that the list does not
//! name, was given up: a server is in the list before it knows its id, and no id comes back.

use alloc::borrow::ToOwned as _;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::node::machine::{Link, Output};
use sprat_proto::rpc::{Payload, RpcError};
use sprat_proto::time::{MS, SECOND};
use sprat_proto::{Instant, Rng};

use crate::backup::{Outbox, Posted};
use crate::master::links::{self, COORDINATOR};
use crate::master::membership::CALL_NS;
use crate::message::control::{ListServers, ServerPage, ServerState};
use crate::message::ring::{MAX_OFFER, Ring};
use crate::objects::segment::Position;
use crate::site::{Common, OwnedSite};
use crate::types::ServerId;

/// The pause before a failed request for the server list is repeated.
const AGAIN_NS: u64 = 100 * MS;
/// The time for which a master opens no replica on a backup that has failed.
const AVOIDED_NS: u64 = SECOND;
/// The most masters with replicas here that the last list does not name. More are not noticed.
const MOST_UNLISTED: usize = 1024;
/// The number of random candidates among which the one with the fewest replicas is chosen.
const DRAWN: usize = 3;

/// A server that can hold replicas.
#[derive(Debug)]
struct Backup {
    server: ServerId,
    locator: String,
    site: OwnedSite,
    /// True if this master's link to the server is connected.
    linked: bool,
    /// The number of replicas of this master's log on the server.
    replicas: u32,
    /// The time before which the master opens no replica on the server.
    not_before: Instant,
    /// The time from which on the server may free the replicas of this master's log that an earlier
    /// life of it has left; never if there are none.
    clean_at: Instant,
    ring: RingTo,
}

/// The state of a master's ring for posted writes to a backup.
#[derive(Debug)]
enum RingTo {
    /// The master asks the backup for a ring, from this time on.
    Wanted(Instant),
    /// The question is on its way, or the two share no memory: writes have replies.
    None,
    Open(Box<dyn Outbox>),
}

/// The state of a master's posted writes.
#[derive(Debug, Default)]
pub(super) struct Posts {
    /// True if the master may post writes.
    pub(super) allowed: bool,
    /// The ring that a backup has offered, until it is taken.
    pub(super) offered: Option<(ServerId, String)>,
    /// The end of the durable part of the log after posted writes, until it is taken.
    pub(super) durable: Option<Position>,
    /// The number of posted writes.
    pub(super) count: u64,
}

impl Posts {
    /// Takes a backup's reply to the question for a ring.
    pub(super) fn offer(&mut self, backup: ServerId, reply: &[u8]) {
        let ring = Ring::parse(reply).ok().filter(|ring| ring.offer.len() <= MAX_OFFER);
        self.offered = ring.map(|ring| (backup, ring.offer.to_owned()));
    }
}

/// The servers that can hold replicas of this master's log.
#[derive(Debug, Default)]
pub(super) struct Backups {
    list: Vec<Backup>,
    /// The version of the list, and the version that the coordinator named last.
    version: u64,
    newest: u64,
    /// The request for the list that is in progress, and the version that it will give.
    asked: Option<(u64, u64)>,
    /// The servers of the pages that have arrived.
    pages: Vec<(ServerId, String, OwnedSite)>,
    next: u32,
    due: Instant,
    unlinked: Vec<Link>,
    /// The servers of the last list, crashed ones included.
    known: BTreeSet<ServerId>,
    /// True if the list was not taken by [`Self::take_news`].
    is_new: bool,
    /// The masters with replicas here that the last list does not name.
    unlisted: BTreeSet<ServerId>,
    /// Those that the list in progress names unless they were given up.
    judged: BTreeSet<ServerId>,
    /// Those that were given up, until they are taken.
    given_up: Vec<ServerId>,
    /// The servers of the pages that have arrived, crashed ones included.
    seen: BTreeSet<ServerId>,
    /// The site of this server.
    site: OwnedSite,
    /// This server, if it may hold replicas of its own log.
    own: Option<ServerId>,
}

impl Backups {
    pub(super) fn new(site: OwnedSite, own: bool) -> Self {
        Self { site, own: own.then(ServerId::default), ..Self::default() }
    }

    /// Returns true if the server may get a replica. This one gets its own only if no other process
    /// is up. Other shards of its process get none, for they end when it does.
    fn may_hold(&self, backup: &Backup) -> bool {
        let is_apart = |backup: &Backup| backup.site.common(&self.site) != Common::Process;
        if self.own == Some(backup.server) {
            !self.list.iter().any(|other| other.server != backup.server && is_apart(other))
        } else {
            is_apart(backup)
        }
    }

    /// Returns the servers that may get a replica of a segment now: those that `suits` accepts, and
    /// that are in no process with one at `taken`.
    fn candidates<'b>(
        &'b self,
        now: Instant,
        taken: &'b [&OwnedSite],
        suits: impl Fn(ServerId) -> bool + 'b,
    ) -> impl Iterator<Item = (usize, &'b Backup)> {
        let all = self.list.iter().enumerate();
        all.filter(move |(_, backup)| {
            let is_with = |site: &&OwnedSite| site.common(&backup.site) == Common::Process;
            backup.not_before <= now
                && suits(backup.server)
                && self.may_hold(backup)
                && !taken.iter().any(is_with)
        })
    }

    /// Returns the sites of those of `servers` that are in the list.
    fn sites(&self, servers: &[ServerId]) -> Vec<&OwnedSite> {
        let there = self.list.iter().filter(|backup| servers.contains(&backup.server));
        there.map(|backup| &backup.site).collect()
    }

    /// Records the version of the coordinator's server list.
    pub(super) fn announce(&mut self, version: u64) {
        self.newest = version;
    }

    /// Returns the request for the server list, if it is due.
    pub(super) fn call(&mut self, now: Instant, tag: u64) -> Option<Output> {
        if !self.is_due() || now < self.due {
            return None;
        }
        self.asked = Some((tag, self.newest));
        if self.next == 0 {
            self.judged.append(&mut self.unlisted);
            self.pages.clear();
            self.seen.clear();
        }
        let message = ListServers { from: self.next }.emit().into();
        Some(Output::Call { link: COORDINATOR, tag, message, deadline: now.after(CALL_NS) })
    }

    /// Returns true if the server list has to be read.
    fn is_due(&self) -> bool {
        let unjudged = !self.unlisted.is_empty() || !self.judged.is_empty();
        self.asked.is_none() && (self.version != self.newest || unjudged)
    }

    /// Returns the time of the next request for the server list.
    pub(super) fn deadline(&self) -> Instant {
        if self.is_due() { self.due } else { Instant::NEVER }
    }

    /// Records that `master` has opened a replica here.
    pub(super) fn meet(&mut self, master: ServerId) {
        if !self.known.contains(&master) && self.unlisted.len() < MOST_UNLISTED {
            self.unlisted.insert(master);
        }
    }

    pub(super) fn is_asked(&self, tag: u64) -> bool {
        self.asked.is_some_and(|(asked, _)| asked == tag)
    }

    /// Takes a page of the server list. Returns the servers that have left the list, after the last
    /// page.
    pub(super) fn page(
        &mut self,
        now: Instant,
        me: ServerId,
        result: Result<Payload<'_>, RpcError>,
    ) -> Vec<ServerId> {
        let Some((_, version)) = self.asked.take() else { return Vec::new() };
        let page = result.ok();
        let Some(page) = page.as_ref().and_then(|page| ServerPage::parse(page).ok()) else {
            (self.next, self.due) = (0, now.after(AGAIN_NS));
            return Vec::new();
        };
        self.seen.extend(page.servers.iter().map(|server| server.server));
        let up = page.servers.iter().filter(|server| server.state == ServerState::Up);
        // Another server may have this one's place already: the cluster has given this one up, and
        // the link to that place leads here.
        let others = up.filter(|server| server.server.index != me.index);
        let backups = others.filter(|server| server.site.role.is_backup());
        let backups = backups.map(|s| (s.server, s.data.into(), s.site.to_owned()));
        self.pages.extend(backups);
        self.next = if version == self.newest { page.next } else { 0 };
        if self.next > 0 || version != self.newest {
            return Vec::new();
        }
        if self.own.is_some() {
            self.own = Some(me);
            self.pages.push((me, String::new(), self.site.clone()));
        }
        let is_first = core::mem::replace(&mut self.version, version) == 0;
        (self.known, self.is_new) = (core::mem::take(&mut self.seen), true);
        let judged = core::mem::take(&mut self.judged);
        self.given_up.extend(judged.difference(&self.known));
        self.replace(is_first)
    }

    /// Returns the servers of a list that was read since the last call, crashed ones included, and
    /// the masters with replicas here that it showed as given up.
    pub(super) fn take_news(&mut self) -> Option<(&BTreeSet<ServerId>, Vec<ServerId>)> {
        let is_new = core::mem::take(&mut self.is_new);
        is_new.then(|| (&self.known, core::mem::take(&mut self.given_up)))
    }

    /// Takes the new list. Returns the servers that are no longer in it. No server of the first
    /// list had an earlier life that has seen this master.
    fn replace(&mut self, is_first: bool) -> Vec<ServerId> {
        let pages = core::mem::take(&mut self.pages);
        let (kept, gone): (Vec<_>, Vec<_>) = core::mem::take(&mut self.list)
            .into_iter()
            .partition(|old| pages.iter().any(|(server, ..)| *server == old.server));
        self.list = kept;
        for (server, locator, site) in pages {
            if !self.list.iter().any(|backup| backup.server == server) {
                let (linked, replicas, not_before) = (false, 0, Instant::ZERO);
                let clean_at = if is_first { Instant::NEVER } else { Instant::ZERO };
                let ring = RingTo::Wanted(Instant::ZERO);
                self.list.push(Backup {
                    server,
                    locator,
                    site,
                    linked,
                    replicas,
                    not_before,
                    clean_at,
                    ring,
                });
            }
        }
        let links =
            gone.iter().filter(|backup| backup.linked).map(|backup| links::backup(backup.server));
        self.unlinked.extend(links);
        gone.into_iter().map(|backup| backup.server).collect()
    }

    /// Returns the next order to unbind the link to a server that has left the list.
    pub(super) fn unlink(&mut self) -> Option<Output> {
        self.unlinked.pop().map(|link| Output::Disconnect { link })
    }

    /// Returns the order to bind the link to `server`, unless it is bound.
    pub(super) fn connect(&mut self, server: ServerId) -> Option<Output> {
        let backup = self.backup(server)?;
        let locator = backup.locator.clone();
        let linked = core::mem::replace(&mut backup.linked, true);
        (!linked).then_some(Output::Connect { link: links::backup(server), locator })
    }

    /// Returns true if `server` is in the list.
    pub(super) fn has(&self, server: ServerId) -> bool {
        self.list.iter().any(|backup| backup.server == server)
    }

    /// Chooses a backup for a new replica, and counts the replica. Of the servers that `suits`
    /// accepts, those with the least in common with this server and with `others`, which have the
    /// other replicas, are candidates. Of some of them the one with the fewest replicas is chosen.
    pub(super) fn choose(
        &mut self,
        now: Instant,
        rng: &mut Rng,
        others: &[ServerId],
        suits: impl Fn(ServerId) -> bool,
    ) -> Option<ServerId> {
        let taken = self.sites(others);
        let with_mine = || taken.iter().copied().chain([&self.site]);
        let common = |backup: &Backup| with_mine().map(|site| site.common(&backup.site)).max();
        let all = self.candidates(now, &taken, suits);
        let all: Vec<_> = all.map(|(index, backup)| (index, common(backup))).collect();
        let least = all.iter().map(|(_, common)| *common).min()?;
        let of_least = all.into_iter().filter(|(_, common)| *common == least);
        let mut left: Vec<_> = of_least.map(|(index, _)| index).collect();
        let mut drawn = Vec::new();
        while drawn.len() < DRAWN && !left.is_empty() {
            drawn.push(left.swap_remove(rng.below(left.len() as u64) as usize));
        }
        let best = drawn.into_iter().min_by_key(|&index| self.list[index].replicas)?;
        self.list[best].replicas += 1;
        Some(self.list[best].server)
    }

    /// Returns true if [`Self::choose`] would return a server.
    pub(super) fn can_choose(
        &self,
        now: Instant,
        others: &[ServerId],
        suits: impl Fn(ServerId) -> bool,
    ) -> bool {
        self.candidates(now, &self.sites(others), suits).next().is_some()
    }

    /// Returns the next server that may have left replicas, and the time of the next call to it.
    pub(super) fn next_to_clean(&self) -> Option<(ServerId, Instant)> {
        let left = self.list.iter().map(|backup| (backup.server, backup.clean_at));
        left.filter(|(_, at)| *at != Instant::NEVER).min_by_key(|(_, at)| *at)
    }

    /// Sets the time of the next call to `server` about the replicas that it may have left.
    pub(super) fn clean_again(&mut self, server: ServerId, at: Instant) {
        if let Some(backup) = self.backup(server) {
            backup.clean_at = at;
        }
    }

    fn backup(&mut self, server: ServerId) -> Option<&mut Backup> {
        self.list.iter_mut().find(|backup| backup.server == server)
    }

    /// Returns the next server to ask for a ring, and considers it asked. Otherwise returns the
    /// time at which there is one.
    pub(super) fn next_to_share(&mut self, now: Instant) -> Result<ServerId, Instant> {
        let wanted = |backup: &Backup| match backup.ring {
            RingTo::Wanted(at) if backup.linked && self.own != Some(backup.server) => at,
            _ => Instant::NEVER,
        };
        let next = self.list.iter().map(wanted).enumerate().min_by_key(|(_, at)| *at);
        match next {
            Some((index, at)) if at <= now => {
                self.list[index].ring = RingTo::None;
                Ok(self.list[index].server)
            }
            next => Err(next.map_or(Instant::NEVER, |(_, at)| at)),
        }
    }

    /// Sets the ring for posted writes to `server`.
    pub(super) fn set_ring(&mut self, server: ServerId, ring: Option<Box<dyn Outbox>>) {
        if let Some(backup) = self.backup(server) {
            backup.ring = ring.map_or(RingTo::None, RingTo::Open);
        }
    }

    /// Pushes a write into the ring of `server`. Returns false, and nothing was written, if that is
    /// not possible.
    pub(super) fn post(&mut self, server: ServerId, parts: [&[u8]; 2]) -> bool {
        let Some(backup) = self.backup(server) else { return false };
        let RingTo::Open(ring) = &mut backup.ring else { return false };
        match ring.post(parts) {
            Posted::Done => return true,
            Posted::Full => {}
            Posted::Closed => backup.ring = RingTo::None,
        }
        false
    }

    /// Forgets the ring of a server, which may give another one from this time on.
    pub(super) fn want_ring(&mut self, server: ServerId, at: Instant) {
        if let Some(backup) = self.backup(server) {
            backup.ring = RingTo::Wanted(at);
        }
    }

    /// Forgets the ring of the server of a link that cannot be reached, or with which a session has
    /// ended. Returns the server.
    pub(super) fn unreachable(&mut self, to: Link) -> Option<ServerId> {
        let backup = self.list.iter_mut().find(|backup| links::backup(backup.server) == to)?;
        if !matches!(backup.ring, RingTo::Wanted(_)) {
            backup.ring = RingTo::Wanted(Instant::ZERO);
        }
        Some(backup.server)
    }

    /// Records that a replica on `server` is gone.
    pub(super) fn lost(&mut self, server: ServerId) {
        if let Some(backup) = self.backup(server) {
            backup.replicas = backup.replicas.saturating_sub(1);
        }
    }

    /// Opens no replica on `server` for a while: it has refused a write, or has not answered.
    pub(super) fn avoid(&mut self, now: Instant, server: ServerId) {
        if let Some(backup) = self.backup(server) {
            backup.not_before = now.after(AVOIDED_NS);
        }
    }
}
