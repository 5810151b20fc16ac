//! Changes of objects together with their entries by one operation, as a server makes them.

use super::*;
use crate::btree::change::{self, Edited, Nodes, Object};

/// The nodes of the store, of which a server has some.
struct Near<'s> {
    objects: &'s BTreeMap<(TableId, Vec<u8>), Seen>,
    is_near: &'s dyn Fn() -> bool,
    random: u64,
}

impl<'s> Nodes<'s> for Near<'s> {
    type Place = ();

    fn expect(&self, _: impl Iterator<Item = [u8; 10]>) {}

    fn node(&self, key: &[u8]) -> Result<((), &'s [u8]), Status> {
        let seen = self.objects.get(&(NODES, key.to_vec())).filter(|_| (self.is_near)());
        seen.map(|(_, bytes)| ((), &bytes[..])).ok_or(Status::OtherLeaf)
    }

    fn absent(&self, key: &[u8]) -> Result<(), Status> {
        let exists = self.objects.contains_key(&(NODES, key.to_vec()));
        if exists { Err(Status::OtherLeaf) } else { Ok(()) }
    }

    fn check(&self, (): &()) -> Result<(), Status> {
        if (self.is_near)() { Ok(()) } else { Err(Status::OtherLeaf) }
    }

    fn random(&self) -> u64 {
        self.random
    }
}

impl Store {
    /// Changes an object together with its entries, as a server does.
    pub(super) fn change(
        &mut self,
        part: &TransactionPart<'_>,
        is_near: &dyn Fn() -> bool,
    ) -> Result<Changed, client::Error> {
        let &TransactionPart { key, rules, change, .. } = part;
        let name = (TABLE, key.to_vec());
        let before = self.objects.get(&name);
        let version = before.map_or(Version(0), |seen| seen.0);
        if let Err(why) = rules.check(version) {
            return Err(match why {
                Status::ObjectDoesntExist => client::Error::ObjectDoesntExist,
                Status::ObjectExists => client::Error::ObjectExists(version),
                _ => client::Error::WrongVersion(version),
            });
        }
        let after = if let Planned::Write(value, _) = change { Some(value) } else { None };
        let before = before.map(|(_, value)| &value[..]);
        let catalog = self.objects.get(&(NODES, catalog_key(0).to_vec()));
        let mut out = vec![];
        let edited = match catalog {
            None => Ok(vec![]),
            Some((_, catalog)) => {
                let random = Rng::seeded(self.versions).u64();
                let nodes = Near { objects: &self.objects, is_near, random };
                let object = Object { key, before, after };
                change::change(&nodes, catalog, object, usize::MAX, &mut out)
            }
        };
        let Ok(edited) = edited else { return Ok(Changed::Undone) };
        self.whole += 1;
        let is_new = |it: &&Edited<()>| !self.objects.contains_key(&(NODES, it.key.to_vec()));
        self.splits += edited.iter().filter(is_new).count() as u64;
        for Edited { key, bytes, .. } in edited {
            self.versions += 1;
            self.objects
                .insert((NODES, key.to_vec()), (Version(self.versions), out[bytes].to_vec()));
        }
        self.versions += 1;
        let new = Version(self.versions);
        match after {
            Some(value) => {
                self.objects.insert(name, (new, value.to_vec()));
                Ok(Changed::Done(new))
            }
            None => {
                self.objects.remove(&name);
                Ok(Changed::Done(version))
            }
        }
    }
}
