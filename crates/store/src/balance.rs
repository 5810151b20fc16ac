//! Plans for the balance of a table: the moves after which each server has an equal share of the
//! key hashes.
//!
//! A plan moves as few hashes as possible: a server gives no more than it has above its share, and
//! one that has less gets no more than it lacks.

use alloc::vec::Vec;

use crate::types::ServerId;

/// The part of all hashes below which a difference from the equal share does not pay for a move:
/// one in this many.
const LEAST: u128 = 1 << 10;
/// The number of hashes of a table.
const ALL: u128 = 1 << 64;

/// A range of key hashes and its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owned {
    /// The first key hash of the range.
    pub first: u64,
    /// The last key hash of the range.
    pub last: u64,
    /// The server that owns the range.
    pub server: ServerId,
}

impl Owned {
    fn len(&self) -> u128 {
        u128::from(self.last - self.first) + 1
    }
}

/// Returns the moves by which each of `servers` gets an equal share of the hashes in `tablets`, in
/// any order. A tablet of another server goes away from it. Each move is within one tablet.
#[must_use]
pub fn plan(tablets: &[Owned], servers: &[ServerId]) -> Vec<Owned> {
    let Some(share) = ALL.checked_div(servers.len() as u128) else { return Vec::new() };
    let held = |server: ServerId| {
        tablets.iter().filter(|tablet| tablet.server == server).map(Owned::len).sum::<u128>()
    };
    let mut lacking: Vec<_> = servers
        .iter()
        .map(|&server| (share.saturating_sub(held(server)), server))
        .filter(|&(lack, _)| lack >= ALL / LEAST)
        .collect();
    let mut surplus: Vec<_> =
        servers.iter().map(|&server| (server, held(server).saturating_sub(share))).collect();
    let mut moves = Vec::new();
    'tablets: for tablet in tablets {
        let mut left = *tablet;
        let of_owner = surplus.iter_mut().find(|(server, _)| *server == tablet.server);
        // A server that is not in the list gives everything.
        let is_leaving = of_owner.is_none();
        let mut all = tablet.len();
        let above = of_owner.map_or(&mut all, |(_, above)| above);
        while let Some((lack, to)) = lacking.last_mut() {
            let len = (*lack).min(*above).min(left.len());
            if len < ALL / LEAST {
                break;
            }
            // The end of the tablet moves, so that its start stays where it is.
            let first = left.last - (len - 1) as u64;
            moves.push(Owned { first, last: left.last, server: *to });
            (*lack, *above) = (*lack - len, *above - len);
            if *lack < ALL / LEAST {
                lacking.pop();
            }
            if first == left.first {
                continue 'tablets;
            }
            left.last = first - 1;
        }
        if is_leaving {
            // Nothing stays there, however little it is.
            moves.push(Owned { server: servers[0], ..left });
        }
    }
    moves
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use sprat_proto::Rng;

    use super::*;

    fn id(index: u32) -> ServerId {
        ServerId { index, generation: 1 }
    }

    fn whole(server: u32) -> Vec<Owned> {
        vec![Owned { first: 0, last: u64::MAX, server: id(server) }]
    }

    /// Makes the moves of a plan.
    fn apply(tablets: &[Owned], moves: &[Owned]) -> Vec<Owned> {
        let mut all = tablets.to_vec();
        for to in moves {
            let within = |owned: &Owned| owned.first <= to.first && to.last <= owned.last;
            let at = all.iter().position(within).expect("each move is within one tablet");
            let from = all.remove(at);
            assert_ne!(from.server, to.server);
            if from.first < to.first {
                all.push(Owned { last: to.first - 1, ..from });
            }
            if to.last < from.last {
                all.push(Owned { first: to.last + 1, ..from });
            }
            all.push(*to);
        }
        all
    }

    #[test]
    fn a_new_server_gets_its_share() {
        let moves = plan(&whole(0), &[id(0), id(1)]);
        assert_eq!(moves, [Owned { first: 1 << 63, last: u64::MAX, server: id(1) }]);
        assert_eq!(plan(&apply(&whole(0), &moves), &[id(0), id(1)]), []);
        assert_eq!(plan(&whole(0), &[id(0)]), []);
        assert_eq!(plan(&whole(0), &[]), []);
        assert_eq!(plan(&whole(0), &[id(1)]).len(), 1, "all of it leaves a server that goes");
    }

    #[test]
    fn each_server_has_its_share_after_any_plan() {
        let mut rng = Rng::seeded(7);
        for _ in 0..500 {
            let mut tablets = whole(rng.below(6) as u32);
            for _ in 0..rng.below(12) {
                let last = tablets.pop().unwrap();
                let at = last.first + rng.below((last.last - last.first).max(1));
                tablets.push(Owned { last: at, ..last });
                if at < last.last {
                    let server = id(rng.below(6) as u32);
                    tablets.push(Owned { first: at + 1, last: last.last, server });
                }
            }
            let servers: Vec<_> = (0..1 + rng.below(5) as u32).map(id).collect();
            let after = apply(&tablets, &plan(&tablets, &servers));
            let all: u128 = after.iter().map(Owned::len).sum();
            assert_eq!(all, ALL);
            assert!(after.iter().all(|o| servers.contains(&o.server)), "nothing stays elsewhere");
            let slack = ALL / LEAST * 16;
            for &server in &servers {
                let held: u128 = after.iter().filter(|o| o.server == server).map(Owned::len).sum();
                let share = ALL / servers.len() as u128;
                assert!(held.abs_diff(share) <= slack, "{tablets:?} {servers:?} {after:?}");
            }
        }
    }
}
