//! The client's knowledge of the locations of data: tables, their tablets, and the links to
//! servers.
//!
//! Invariants: the tablets of a table are sorted and cover all hashes, so that a look-up always
//! finds one. Peer 0 is the coordinator.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use hashbrown::HashMap;
use sprat_proto::time::MS;
use sprat_proto::{Instant, Rng};

use super::op::Op;
use crate::hash::KeyHasher;
use crate::leading::split;
use crate::message::Status;
use crate::message::control::{self, TabletState};
use crate::types::{HashKey, KeyHash, TableId};

/// The longest of the first pause before the client asks again for tablets that servers recover, in
/// nanoseconds. The shortest is half of it.
const FIRST_REFRESH_PAUSE_NS: u64 = 10 * MS;

/// The owner of a tablet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// The server with this number owns the tablet.
    Peer(u32),
    /// The tablet is lost: no server has its data any more.
    Lost,
    /// The coordinator has assigned the tablet to a server, which has not taken it yet.
    Pending,
    /// The tablet's server crashed, and other servers recover its data.
    Recovering,
    /// The server that owns the tablet has no locator for the client's transports. The text is
    /// the error for the program.
    Unreachable(Box<str>),
}

#[derive(Debug)]
pub(super) struct Tablet {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) owner: Owner,
}

#[derive(Debug)]
pub(super) struct Table {
    pub(super) id: TableId,
    pub(super) hasher: KeyHasher,
    /// The tablets of the table; empty until the client knows them.
    pub(super) tablets: Vec<Tablet>,
    /// The slot of the client's request for the table's tablets, if one is in progress.
    pub(super) asking: Option<u32>,
    /// The operations that wait for the table's tablets.
    pub(super) parked: VecDeque<Op>,
    /// While servers recover tablets of the table, the time at which the client asks for the
    /// tablets again, and the longest pause before it. All operations of the table share them, so
    /// that a client with many operations asks as rarely as one with few.
    pub(super) refresh_at: Instant,
    refresh_pause_ns: u64,
}

impl Table {
    /// Sets the next time at which the client asks for tablets that servers recover. The pauses
    /// grow to `max_ns`; half of a pause is random, as those of retries.
    pub(super) fn set_refresh(&mut self, now: Instant, rng: &mut Rng, max_ns: u64) {
        let recovering = self.tablets.iter().any(|tablet| tablet.owner == Owner::Recovering);
        let longer_ns = (2 * self.refresh_pause_ns).max(FIRST_REFRESH_PAUSE_NS).min(max_ns);
        self.refresh_pause_ns = if recovering { longer_ns } else { 0 };
        let half_ns = self.refresh_pause_ns / 2;
        self.refresh_at = now.after(half_ns + rng.below(half_ns + 1));
    }

    /// Returns the table's tablet with a hash, or `None` if the tablets are not known. Calls `hash`
    /// only if there are several tablets.
    #[inline]
    pub(super) fn tablet(&self, hash: impl FnOnce(&KeyHasher) -> KeyHash) -> Option<&Tablet> {
        match &self.tablets[..] {
            [only] => Some(only),
            tablets => {
                let hash = hash(&self.hasher);
                let after = tablets.partition_point(|tablet| tablet.first <= hash.0);
                tablets.get(after.checked_sub(1)?)
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Peer {
    /// The locators of the server, the best first.
    locators: String,
    /// True if the link to the server is connected.
    pub(super) bound: bool,
    /// The reason why the server could not be reached, until it has replied again.
    pub(super) why: Option<Box<str>>,
    /// True if that is the answer of a coordinator: none leads.
    pub(super) leaderless: bool,
}

impl Peer {
    fn new(locators: String) -> Self {
        Self { locators, bound: false, why: None, leaderless: false }
    }

    pub(super) fn locators(&self) -> &str {
        &self.locators
    }
}

#[derive(Debug)]
pub(super) struct Routes {
    transports: Vec<String>,
    pub(super) tables: Vec<Table>,
    by_id: HashMap<u64, u32>,
    /// The index of the table that was used last. Most programs use one table many times in a row.
    last: u32,
    pub(super) peers: Vec<Peer>,
}

impl Routes {
    pub(super) fn new(transports: Vec<String>) -> Self {
        Self {
            transports,
            tables: Vec::new(),
            by_id: HashMap::new(),
            last: 0,
            // The client itself knows the locators of the coordinators.
            peers: Vec::from([Peer::new(String::new())]),
        }
    }

    /// Returns the index of a table in `tables`.
    #[inline]
    pub(super) fn table(&mut self, id: TableId) -> u32 {
        match self.tables.get(self.last as usize) {
            Some(table) if table.id == id => self.last,
            _ => {
                self.last = self.find_table(id);
                self.last
            }
        }
    }

    fn find_table(&mut self, id: TableId) -> u32 {
        let tables = &mut self.tables;
        *self.by_id.entry(id.0).or_insert_with(|| {
            tables.push(Table {
                id,
                hasher: HashKey::default().into(),
                tablets: Vec::new(),
                asking: None,
                parked: VecDeque::new(),
                refresh_at: Instant::ZERO,
                refresh_pause_ns: 0,
            });
            tables.len() as u32 - 1
        })
    }

    /// Takes the tablets of a table from the coordinator's reply.
    ///
    /// # Errors
    /// [`Status::BadFormat`] if the tablets do not cover all hashes.
    pub(super) fn learn(
        &mut self,
        table: u32,
        answer: &control::Tablets<'_>,
    ) -> Result<(), Status> {
        let mut next = Some(0);
        for tablet in &answer.tablets {
            if Some(tablet.first) != next || tablet.last < tablet.first {
                return Err(Status::BadFormat);
            }
            next = tablet.last.checked_add(1);
        }
        if next.is_some() {
            return Err(Status::BadFormat);
        }
        let tablets = answer.tablets.iter().map(|tablet| {
            let owner = match tablet.state {
                TabletState::Lost => Owner::Lost,
                TabletState::Taking => Owner::Pending,
                TabletState::Recovering => Owner::Recovering,
                TabletState::Normal => match self.peer(tablet.data) {
                    Ok(peer) => Owner::Peer(peer),
                    Err(text) => Owner::Unreachable(text),
                },
            };
            Tablet { first: tablet.first, last: tablet.last, owner }
        });
        let tablets = tablets.collect();
        let table = &mut self.tables[table as usize];
        table.hasher = answer.hash_key.into();
        table.tablets = tablets;
        Ok(())
    }

    /// Returns the number of the server that has an object, if it is known.
    fn owner_of(&mut self, (table, key): (TableId, &[u8])) -> Option<u32> {
        let table = self.table(table) as usize;
        match self.tables[table].tablet(|hasher| hasher.hash(key))?.owner {
            Owner::Peer(peer) => Some(peer),
            _ => None,
        }
    }

    /// Returns true if the server of an object has all of `table`, or `None` if that is not known.
    pub(super) fn is_beside(&mut self, of: (TableId, &[u8]), table: TableId) -> Option<bool> {
        let owner = self.owner_of(of)?;
        let table = self.table(table) as usize;
        let tablets = &self.tables[table].tablets;
        let is_known = !tablets.is_empty();
        is_known.then(|| tablets.iter().all(|tablet| tablet.owner == Owner::Peer(owner)))
    }

    /// Returns the index of the first of `among` that is on the server of an object, if that is
    /// known.
    pub(super) fn nearest(
        &mut self,
        of: (TableId, &[u8]),
        among: &[(TableId, &[u8])],
    ) -> Option<usize> {
        let owner = self.owner_of(of)?;
        among.iter().position(|&object| self.owner_of(object) == Some(owner))
    }

    /// Returns the number of the server at the usable ones of `locators`.
    ///
    /// # Errors
    /// The text of [`Error::NoTransport`](super::error::Error::NoTransport) if none is usable.
    pub(super) fn peer(&mut self, locators: &str) -> Result<u32, Box<str>> {
        let usable = choose(locators, &self.transports);
        if usable.is_empty() {
            let wanted = self.transports.join(", ");
            let text = format!("the server listens at {locators:?}, and this client uses {wanted}");
            return Err(text.into());
        }
        if let Some(known) = self.peers.iter().skip(1).position(|peer| peer.locators == usable) {
            return Ok(known as u32 + 1);
        }
        self.peers.push(Peer::new(usable));
        Ok(self.peers.len() as u32 - 1)
    }
}

/// Returns the usable locators, the best first: those of the first of `transports`, then those of
/// the next. If `transports` is empty, all are usable, in the server's order.
fn choose(locators: &str, transports: &[String]) -> String {
    let usable: Vec<&str> = if transports.is_empty() {
        split(locators).collect()
    } else {
        let of = |wanted| split(locators).filter(move |locator| protocol(locator) == wanted);
        transports.iter().flat_map(of).collect()
    };
    usable.join(";")
}

fn protocol(locator: &str) -> &str {
    locator.split(':').next().unwrap_or("").trim()
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn transports_that_are_wanted_are_used_in_their_order() {
        let list = r#"tcp:host=h,port=1; fast+shm:name="a;b";fast+udp:host=h\;x,port=2;"#;
        let transports =
            |names: &[&str]| names.iter().map(|&name| name.into()).collect::<Vec<String>>();
        let two = r#"fast+shm:name="a;b";tcp:host=h,port=1"#;
        assert_eq!(choose(list, &transports(&["fast+shm", "tcp"])), two);
        assert_eq!(choose(list, &transports(&["x", "fast+udp"])), r"fast+udp:host=h\;x,port=2");
        assert_eq!(choose(list, &transports(&["fast"])), "");
        let all = r#"tcp:host=h,port=1;fast+shm:name="a;b";fast+udp:host=h\;x,port=2"#;
        assert_eq!(choose(list, &[]), all);
        assert_eq!(choose(" ; ", &[]), "");
        let mut routes = Routes::new(transports(&["x", "y"]));
        let Err(text) = routes.peer("tcp:port=1") else { panic!() };
        assert_eq!(&*text, r#"the server listens at "tcp:port=1", and this client uses x, y"#);
        assert_eq!(routes.peer("x:a"), Ok(1));
        assert_eq!(routes.peer("tcp:port=1;y:b"), Ok(2));
        assert_eq!(routes.peer("x:a"), Ok(1));
    }

    #[test]
    fn every_hash_has_its_tablet() {
        let mut routes = Routes::new(vec![]);
        let table = routes.table(TableId(7));
        let server = crate::types::ServerId::default();
        let part = |first, last, data| control::Tablet {
            first,
            last,
            server,
            state: TabletState::Normal,
            data,
        };
        let answer = |tablets| control::Tablets { cluster: 1, hash_key: HashKey([1; 16]), tablets };
        let mut check = |tablets: Vec<_>| routes.learn(table, &answer(tablets));
        assert_eq!(check(vec![]), Err(Status::BadFormat));
        assert_eq!(check(vec![part(0, u64::MAX - 1, "a")]), Err(Status::BadFormat));
        assert_eq!(check(vec![part(1, u64::MAX, "a")]), Err(Status::BadFormat));
        assert_eq!(check(vec![part(0, 9, "a"), part(9, u64::MAX, "b")]), Err(Status::BadFormat));
        assert_eq!(
            check(vec![part(0, u64::MAX, "a"), part(0, u64::MAX, "a")]),
            Err(Status::BadFormat)
        );
        assert_eq!(check(vec![part(0, u64::MAX, "a")]), Ok(()));
        assert_eq!(
            check(vec![part(0, 9, "a"), part(10, 19, "b"), part(20, u64::MAX, "a")]),
            Ok(())
        );
        let table = &routes.tables[table as usize];
        for (hash, peer) in [(0, 1), (9, 1), (10, 2), (19, 2), (20, 1), (u64::MAX, 1)] {
            assert_eq!(table.tablet(|_| KeyHash(hash)).unwrap().owner, Owner::Peer(peer), "{hash}");
        }
        assert_eq!(routes.table(TableId(7)), 0);
        assert_eq!(routes.table(TableId(8)), 1);
        assert!(routes.tables[1].tablet(|_| KeyHash(0)).is_none());
    }

    #[test]
    fn the_nearest_object_is_on_the_same_server() {
        let mut routes = Routes::new(vec![]);
        let half = 1 << 63;
        let part = |first, last, data| control::Tablet {
            first,
            last,
            server: crate::types::ServerId::default(),
            state: TabletState::Normal,
            data,
        };
        let hash_key = HashKey([1; 16]);
        for (table, tablets) in [
            (1, vec![part(0, u64::MAX, "a")]),
            (2, vec![part(0, half - 1, "a"), part(half, u64::MAX, "b")]),
        ] {
            let at = routes.table(TableId(table));
            let answer = control::Tablets { cluster: 1, hash_key, tablets };
            routes.learn(at, &answer).unwrap();
        }
        let hasher = KeyHasher::from(hash_key);
        let keys: Vec<[u8; 1]> = (0..8).map(|key| [key]).collect();
        let all: Vec<(TableId, &[u8])> = keys.iter().map(|key| (TableId(2), &key[..])).collect();
        let on_a = keys.iter().position(|key| hasher.hash(key).0 < half);
        let on_b = keys.iter().position(|key| hasher.hash(key).0 >= half);
        assert!(on_a.is_some() && on_b.is_some(), "8 keys on both servers");
        assert_eq!(routes.nearest((TableId(1), b"k"), &all), on_a);
        assert_eq!(routes.nearest(all[on_b.unwrap()], &all), on_b);
        assert_eq!(routes.nearest((TableId(3), b"k"), &all), None, "its tablets are not known");
        assert_eq!(routes.nearest(all[0], &[(TableId(3), b"k")]), None);
        // The first table is on one server as a whole, and the second one is not.
        assert_eq!(routes.is_beside(all[on_a.unwrap()], TableId(1)), Some(true));
        assert_eq!(routes.is_beside(all[on_b.unwrap()], TableId(1)), Some(false));
        assert_eq!(routes.is_beside((TableId(1), b"k"), TableId(2)), Some(false));
        assert_eq!(routes.is_beside((TableId(1), b"k"), TableId(3)), None);
        assert_eq!(routes.is_beside((TableId(3), b"k"), TableId(1)), None);
    }
}
