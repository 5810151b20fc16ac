//! A seeded run in which servers crash and join, calls fail, and the coordinator restarts.

use super::*;

/// Each hash has one owner at any time. A server that got OK for tablets is their owner as long as
/// it is up. At the end all tablets have an owner that is up.
#[test]
fn recoveries_end_whatever_fails() {
    for seed in 0..60 {
        run(seed);
    }
}

fn run(seed: u64) {
    let mut rng = Rng::seeded(seed);
    let mut w = World::new(config());
    let names: Vec<_> = (0..12).map(|i| i.to_string()).collect();
    let mut next = 0;
    let mut join = |w: &mut World| {
        let id = w.join(&names[next]);
        next += 1;
        id
    };
    let keeper = join(&mut w);
    let mut up = BTreeSet::from([keeper, join(&mut w), join(&mut w)]);
    let a = w.create("a", 3).unwrap();
    let mut told: BTreeMap<(u64, u64), ServerId> = BTreeMap::new();
    // All logs are on the first server, which stays.
    for id in up.clone() {
        w.put_log("0", id);
    }
    for _ in 0..40 {
        w.failing = rng.below(500_000) as u32;
        w.seed = Rng::seeded(rng.u64());
        match rng.below(8) {
            0 if up.len() < 4 && next_left(&w) => {
                let id = join(&mut w);
                w.put_log("0", id);
                up.insert(id);
            }
            1 if up.len() > 1 => {
                let gone = *up.iter().nth(1 + rng.below(up.len() as u64 - 1) as usize).unwrap();
                up.remove(&gone);
                told.retain(|_, owner| *owner != gone);
                w.leave(gone);
            }
            2 => w.restart(),
            3 => {
                w.failing = 0;
                w.disk_full = true;
                end_one(&mut w, &mut rng, &mut told);
                w.disk_full = false;
            }
            _ => end_one(&mut w, &mut rng, &mut told),
        }
        let live = live(&w, &up);
        let live: Vec<_> = live.iter().map(String::as_str).collect();
        w.pass(rng.below(SECOND), &live);
        let owners = owners(&w, a);
        for (range, owner) in &told {
            assert_eq!(owners.get(range), Some(owner), "seed {seed}: {range:?} in {owners:?}");
        }
    }
    w.failing = 0;
    for _ in 0..40 {
        end_one(&mut w, &mut rng, &mut told);
        w.pass(SECOND / 2, &["0"]);
        let live = live(&w, &up);
        live.iter().for_each(|name| drop(w.renew(name)));
    }
    let all_up = owners(&w, a).values().all(|owner| w.coordinator.servers.up(*owner).is_some());
    assert!(all_up, "seed {seed}: {:?}", owners(&w, a));
    assert_eq!(w.coordinator.recoveries.counts().0, 0, "seed {seed}");
}

fn next_left(w: &World) -> bool {
    w.masters.len() < 12
}

fn live(w: &World, up: &BTreeSet<ServerId>) -> Vec<String> {
    let live = w.masters.iter().filter(|(_, m)| up.contains(&m.id));
    live.map(|(name, _)| name.clone()).collect()
}

/// Returns the owner of each tablet on the disk, which must cover each hash once.
fn owners(w: &World, table: TableId) -> BTreeMap<(u64, u64), ServerId> {
    let record = &w.disk[&Key::Table(table.0).emit()];
    let table: durable::Table<'_> = durable::decode(record).unwrap();
    let mut next = Some(0);
    for tablet in &table.tablets {
        assert_eq!(next, Some(tablet.first));
        next = tablet.last.checked_add(1);
    }
    assert_eq!(next, None);
    table.tablets.iter().map(|t| ((t.first, t.last), t.server)).collect()
}

/// A random server that has an order reports its end, perhaps twice.
fn end_one(w: &mut World, rng: &mut Rng, told: &mut BTreeMap<(u64, u64), ServerId>) {
    let with_order = w.masters.iter().filter(|(_, m)| m.alive && m.recoverer.order.is_some());
    let names: Vec<_> = with_order.map(|(name, _)| name.clone()).collect();
    if names.is_empty() {
        return;
    }
    let name = &names[rng.below(names.len() as u64) as usize];
    let ending = [Ending::Done, Ending::Done, Ending::Full, Ending::Lacking];
    let ending = ending[rng.below(4) as usize];
    let (number, ended) = w.order(name).unwrap();
    for _ in 0..1 + rng.below(2) {
        let request = w.end_request(name, ending, number as u32);
        let asked = w.ask(request);
        let reply = w.replies.get(&asked).map(|reply| outcome(reply).unwrap().0);
        if ending == Ending::Done && reply == Some(Status::Ok) {
            for range in &ended.tablets {
                told.insert((range.first, range.last), w.masters[name].id);
            }
        }
    }
}
