//! Plans for the balance of tables: the moves after which each server has an equal share of the key
//! hashes, and the part of a load after whose move two servers have more equal loads.
//!
//! A plan moves as few hashes as possible: a server gives no more than it has above its share, and
//! one that has less gets no more than it lacks.

use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::message::migration::WHOLE;
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

/// Returns the number of hashes that a server has.
fn held(tablets: &[Owned], server: ServerId) -> u128 {
    tablets.iter().filter(|tablet| tablet.server == server).map(Owned::len).sum()
}

/// Returns the one of `servers` that lacks the most hashes of its equal share, if it lacks more
/// than half of it: a server that has joined.
#[must_use]
pub fn needy(tablets: &[Owned], servers: &[ServerId]) -> Option<ServerId> {
    let half = ALL.checked_div(servers.len() as u128)? / 2;
    let all = servers.iter().map(|&server| (held(tablets, server), server));
    all.min().filter(|(held, _)| *held < half).map(|(_, server)| server)
}

/// Returns true if the owner of a range is not [`needy`] without it.
#[must_use]
pub fn can_spare(tablets: &[Owned], servers: &[ServerId], range: Owned) -> bool {
    let half = ALL.checked_div(servers.len() as u128).map(|share| share / 2);
    half.is_some_and(|half| held(tablets, range.server) >= half + range.len())
}

/// Returns the moves by which each of `servers` gets an equal share of the hashes in `tablets`, in
/// any order. A tablet of another server goes away from it. Each move is within one tablet.
#[must_use]
pub fn plan(tablets: &[Owned], servers: &[ServerId]) -> Vec<Owned> {
    moves(tablets, servers, |_| true)
}

/// Returns the moves by which one of `servers` gets an equal share of the hashes in `tablets`.
#[must_use]
pub fn plan_for(tablets: &[Owned], servers: &[ServerId], server: ServerId) -> Vec<Owned> {
    moves(tablets, servers, |to| to == server)
}

/// Returns the moves by which those of `servers` that are to get any get what they lack.
fn moves(
    tablets: &[Owned],
    servers: &[ServerId],
    is_to_get: impl Fn(ServerId) -> bool,
) -> Vec<Owned> {
    let Some(share) = ALL.checked_div(servers.len() as u128) else { return Vec::new() };
    let mut lacking: Vec<_> = servers
        .iter()
        .map(|&server| (share.saturating_sub(held(tablets, server)), server))
        .filter(|&(lack, server)| lack >= ALL / LEAST && is_to_get(server))
        .collect();
    let mut surplus: Vec<_> = servers
        .iter()
        .map(|&server| (server, held(tablets, server).saturating_sub(share)))
        .collect();
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

/// A server and its load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// The server that has the load.
    pub server: ServerId,
    /// The accesses to the server's objects in a second.
    pub rate: u64,
    /// True if the server has memory for objects of other servers.
    pub has_room: bool,
}

/// The hottest and the least loaded server, whose loads are clearly apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// The hottest server.
    pub hot: Load,
    /// The least loaded server that has room.
    pub cold: Load,
}

/// Returns the gap between the loads of servers, if the hottest one has at least `hot_rate` and is
/// a quarter above the average.
#[must_use]
pub fn gap(loads: &[Load], hot_rate: u64) -> Option<Gap> {
    let hot = *loads.iter().max_by_key(|load| (load.rate, load.server))?;
    let with_room = loads.iter().filter(|load| load.has_room);
    let cold = *with_room.min_by_key(|load| (load.rate, Reverse(load.server)))?;
    let sum: u128 = loads.iter().map(|load| u128::from(load.rate)).sum();
    let is_clear = u128::from(hot.rate) * loads.len() as u128 * 4 > sum * 5;
    let is_hot = hot.rate >= hot_rate && hot.server != cold.server;
    (is_clear && is_hot).then_some(Gap { hot, cold })
}

impl Gap {
    /// Returns the difference of the loads.
    fn width(&self) -> u64 {
        self.hot.rate.saturating_sub(self.cold.rate)
    }

    /// Returns the part of the hottest server's load after whose move both have the same, of
    /// [`WHOLE`].
    #[must_use]
    pub fn wanted(&self) -> u16 {
        let part = u128::from(self.width() / 2) * u128::from(WHOLE);
        (part / u128::from(self.hot.rate.max(1))) as u16
    }

    /// Returns true if a move of this part of the hottest server's load, of [`WHOLE`], makes the
    /// higher load of both servers lower by an eighth of the gap at least. The target then has at
    /// most as much more than the source as a half of the gap was: the move back never makes
    /// anything lower, even if the rates are somewhat wrong.
    #[must_use]
    pub fn narrows(&self, part: u16) -> bool {
        let heat = u128::from(self.hot.rate) * u128::from(part) / u128::from(WHOLE);
        let width = u128::from(self.width());
        heat * 8 > width && heat * 4 < width * 3
    }
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
    fn only_a_server_that_lacks_more_than_half_is_needy() {
        let at = |first: u64, last: u64, server| Owned { first, last, server: id(server) };
        let half = 1 << 63;
        let tablets =
            [at(0, half - 1, 0), at(half, half + half / 2 - 1, 0), at(3 << 62, u64::MAX, 1)];
        let two = [id(0), id(1)];
        assert_eq!(needy(&tablets, &two), None, "half of its share is enough");
        assert_eq!(needy(&tablets, &[id(0), id(1), id(2)]), Some(id(2)));
        assert_eq!(needy(&whole(0), &[]), None);
        assert!(can_spare(&tablets, &two, at(0, half - 1, 0)));
        assert!(!can_spare(&tablets, &two, at(3 << 62, 3 << 62, 1)), "not one key");
        let moves = plan_for(&tablets, &[id(0), id(1), id(2)], id(2));
        assert!(!moves.is_empty() && moves.iter().all(|to| to.server == id(2)));
        let after = apply(&tablets, &moves);
        let share = ALL / 3;
        assert!(held(&after, id(2)).abs_diff(share) < ALL / LEAST * 2);
        assert_eq!(held(&after, id(1)), 1 << 62, "nothing else changes");
    }

    fn load(server: u32, rate: u64) -> Load {
        Load { server: id(server), rate, has_room: true }
    }

    #[test]
    fn a_gap_is_between_a_hot_server_and_the_least_loaded_one() {
        let loads = [load(0, 100), load(1, 40), load(2, 60)];
        let found = gap(&loads, 100).unwrap();
        assert_eq!((found.hot.server, found.cold.server), (id(0), id(1)));
        assert_eq!(found.wanted(), 30 * WHOLE / 100);
        assert_eq!(gap(&loads, 101), None, "it is not hot");
        assert_eq!(gap(&[load(0, 100), load(1, 60)], 1), None, "it is not clear");
        assert!(gap(&[load(0, 100), load(1, 59)], 1).is_some());
        assert_eq!(gap(&[], 0), None);
        assert_eq!(gap(&[load(0, 100)], 1), None, "alone");
        let full = [load(0, 100), Load { has_room: false, ..load(1, 0) }, load(2, 20)];
        assert_eq!(gap(&full, 1).unwrap().cold.server, id(2));
        assert_eq!(gap(&full[..2], 1), None, "the other one is full");
        let most = Gap { hot: load(0, u64::MAX), cold: load(1, 0) };
        assert!(most.wanted() == WHOLE / 2 - 1 && most.narrows(WHOLE / 2));
        assert!(!most.narrows(u16::MAX));
    }

    /// Whatever part moves, the higher load of both becomes lower, and the part does not move back.
    #[test]
    fn a_move_is_never_undone() {
        let mut rng = Rng::seeded(8);
        let mut moved = 0;
        for _ in 0..10_000 {
            let of_both = [load(0, rng.below(1 << 20)), load(1, rng.below(1 << 20))];
            let part = rng.below(u64::from(WHOLE) + 1) as u16;
            let Some(gap) = gap(&of_both, 1).filter(|gap| gap.narrows(part)) else { continue };
            moved += 1;
            let heat = gap.hot.rate * u64::from(part) / u64::from(WHOLE);
            let (hot, cold) = (gap.hot.rate - heat, gap.cold.rate + heat);
            assert!(hot.max(cold) < gap.hot.rate);
            // The rates are off by a tenth.
            let Some(back) = super::gap(&[load(0, hot - hot / 10), load(1, cold + cold / 10)], 1)
            else {
                continue;
            };
            let part = (heat * u64::from(WHOLE) / back.hot.rate) as u16;
            assert!(back.hot.server == id(0) || !back.narrows(part), "{gap:?} {heat}");
        }
        assert!(moved > 1000, "{moved}");
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
