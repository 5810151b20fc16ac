//! The choice of the objects of a transaction, and the transfer of a balance between accounts.

use std::collections::HashSet;

use sprat_proto::Rng;

use crate::fail::Fail;
use crate::ycsb::zipf::{Zipf, uniform};

/// The most that an account gives or takes in one transfer.
const MOST: u64 = 10;

/// The objects of each table that a client chooses from.
#[derive(Clone, Debug)]
pub(super) enum Among {
    /// All objects, each as often as the others.
    All,
    /// The objects that no other of this number of clients uses.
    Own(u64),
    /// All objects, some of them more often than others.
    Popular(Zipf),
}

impl Among {
    /// Returns the numbers of the objects that a client with this number, from 0 on, chooses from:
    /// the first one, and their count.
    fn range(&self, objects: u64, client: u64) -> (u64, u64) {
        match self {
            Self::All | Self::Popular(_) => (0, objects),
            Self::Own(clients) => {
                let each = objects / clients.max(&1);
                (client * each, each)
            }
        }
    }
}

/// The choice of the objects of each transaction of a client.
#[derive(Clone, Debug)]
pub(super) struct Draw {
    pub(super) among: Among,
    /// Number of tables.
    pub(super) tables: usize,
    /// Number of objects of each table.
    pub(super) objects: u64,
    /// Number of tables that the objects of one transaction are in.
    pub(super) span: usize,
    /// Number of objects of one transaction.
    pub(super) count: usize,
}

impl Draw {
    /// Fails if the tables have too few objects, or the transactions too many tables.
    pub(super) fn check(&self) -> Result<(), Fail> {
        if self.span > self.tables {
            let Self { span, tables, .. } = self;
            return Err(Fail::usage(format!(
                "a transaction cannot span {span} servers if there are {tables}"
            ))
            .next(format!("choose --span {tables} or less, or more with --servers")));
        }
        let (_, choice) = self.among.range(self.objects, 0);
        let needed = self.count.div_ceil(self.span) as u64;
        if choice < needed {
            return Err(Fail::usage(format!(
                "each client chooses among {choice} objects on a server, and a transaction needs \
                 {needed}"
            ))
            .next("choose more with --objects, or fewer with --transaction-objects"));
        }
        Ok(())
    }

    /// Chooses the objects of a transaction of a client: their tables and numbers. No object comes
    /// twice, and the tables take turns.
    pub(super) fn next(&mut self, client: u64, rng: &mut Rng) -> Vec<(usize, u64)> {
        let mut tables: Vec<usize> = (0..self.tables).collect();
        // The first tables are those of the transaction, in random order.
        for at in 0..self.span {
            tables.swap(at, at + rng.below((self.tables - at) as u64) as usize);
        }
        let (first, choice) = self.among.range(self.objects, client);
        let mut taken = HashSet::new();
        let mut one = |number: usize| {
            let table = tables[number % self.span];
            let mut at = match &mut self.among {
                Among::All | Among::Own(_) => rng.below(choice),
                Among::Popular(zipf) => zipf.item(choice, uniform(rng)),
            };
            while !taken.insert((table, at)) {
                at = (at + 1) % choice;
            }
            (table, first + at)
        };
        (0..self.count).map(&mut one).collect()
    }
}

/// Moves random amounts between the first account and the others. The sum stays.
pub(super) fn transfer(balances: &mut [i64], rng: &mut Rng) {
    let Some((first, others)) = balances.split_first_mut() else { return };
    for other in others {
        let amount = rng.below(2 * MOST + 1) as i64 - MOST as i64;
        *other += amount;
        *first -= amount;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn draw(among: Among, span: usize, count: usize) -> Draw {
        Draw { among, tables: 4, objects: 30, span, count }
    }

    #[test]
    fn no_object_comes_twice_and_the_tables_take_turns() {
        let mut rng = Rng::seeded(1);
        for among in [Among::All, Among::Own(2), Among::Popular(Zipf::new(30))] {
            for (span, count) in [(1, 1), (1, 15), (3, 5), (4, 60)] {
                let mut draw = draw(among.clone(), span, count);
                draw.check().expect("there are enough objects");
                for _ in 0..100 {
                    let objects = draw.next(1, &mut rng);
                    let different: HashSet<_> = objects.iter().collect();
                    assert_eq!((objects.len(), different.len()), (count, count));
                    let tables: HashSet<usize> = objects.iter().map(|(table, _)| *table).collect();
                    assert_eq!(tables.len(), span.min(count));
                    assert!(objects.iter().all(|&(table, object)| table < 4 && object < 30));
                }
            }
        }
    }

    #[test]
    fn clients_with_objects_of_their_own_share_none() {
        let (mut rng, mut draw) = (Rng::seeded(1), draw(Among::Own(3), 4, 4));
        let mut owners = HashMap::new();
        for client in (0..3).cycle().take(1000) {
            for object in draw.next(client, &mut rng) {
                assert_eq!(*owners.entry(object).or_insert(client), client);
            }
        }
        assert_eq!(owners.len(), 4 * 30, "each object has a client");
    }

    #[test]
    fn popular_objects_come_often() {
        let (mut rng, mut draw) = (Rng::seeded(1), draw(Among::Popular(Zipf::new(30)), 4, 1));
        let first = (0..1000).filter(|_| draw.next(0, &mut rng)[0].1 == 0).count();
        assert!((200..300).contains(&first), "a share of 1 / ζ(30): {first}");
    }

    #[test]
    fn too_few_objects_or_servers_are_an_error() {
        let error = draw(Among::All, 5, 1).check().expect_err("five of four servers");
        assert!(error.to_string().contains("--servers"), "{error}");
        for wrong in [draw(Among::All, 1, 31), draw(Among::Own(31), 4, 1)] {
            let error = wrong.check().expect_err("too few objects");
            assert!(error.to_string().contains("--objects"), "{error}");
        }
        assert!(draw(Among::Own(30), 4, 4).check().is_ok());
    }

    #[test]
    fn a_transfer_keeps_the_sum() {
        let mut rng = Rng::seeded(1);
        let mut balances = [100; 5];
        for _ in 0..1000 {
            let before = balances;
            transfer(&mut balances, &mut rng);
            assert_eq!(balances.iter().sum::<i64>(), 500);
            let moved = before[1..].iter().zip(&balances[1..]).all(|(a, b)| (a - b).abs() <= 10);
            assert!(moved, "{before:?} {balances:?}");
        }
        assert_ne!(balances, [100; 5]);
    }
}
