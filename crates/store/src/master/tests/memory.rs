//! Tests of a master whose memory is full, or needs constant cleaning.

use super::*;

/// Sends an increment and returns its reply. The test answers the master's requests about leases
/// meanwhile.
fn increment(rig: &mut Rig, rng: &mut Rng, once: Once, key: u8, amount: i64) -> Vec<u8> {
    let amount = Amount::Integer(amount);
    let request = Increment { target: TARGET, once, amount, key: &[key; 100] };
    match rig.send(&request.emit()) {
        Ok(reply) => reply,
        Err(waiting) => {
            while let Some((_, question)) = rig.calls.last() {
                let asked = CheckLease::parse(question).unwrap().leases.len();
                let valid_ns = (0..asked).map(|_| 1000 + rng.below(5000)).collect();
                rig.answer(Opcode::CheckLease, LeaseTimes { valid_ns }.emit());
            }
            rig.replies.remove(&waiting).unwrap()
        }
    }
}

/// Clients repeat requests, reorder them and lose replies, in a memory that needs constant
/// cleaning: each increment counts once.
#[test]
fn every_increment_counts_once() {
    /// An increment without an acknowledged answer: its key, its amount, and the first answer.
    type Open = (u8, i64, Option<Vec<u8>>);

    for seed in 0..8 {
        let mut rng = Rng::seeded(seed);
        let mut rig = Rig::small();
        let clients: Vec<u64> = (1..=4).collect();
        let mut next: BTreeMap<u64, u64> = clients.iter().map(|&c| (c, 1)).collect();
        // Mutations without an acknowledged answer by client and rpc.
        let mut open = BTreeMap::<(u64, u64), Open>::new();
        let mut sums = [0i64; 5];
        for _ in 0..4000 {
            let client = clients[rng.below(4) as usize];
            let outstanding = open.range((client, 0)..=(client, u64::MAX)).count();
            let rpc = if outstanding < 6 && rng.chance(500_000) {
                let rpc = next[&client];
                next.insert(client, rpc + 1);
                open.insert((client, rpc), (rng.below(5) as u8, rng.below(100) as i64, None));
                rpc
            } else {
                match open.range((client, 0)..=(client, u64::MAX)).nth(rng.below(6) as usize) {
                    Some((&(_, rpc), _)) => rpc,
                    None => continue,
                }
            };
            let ack = open.range((client, 0)..).next().map_or(0, |(&(_, rpc), _)| rpc - 1);
            let (key, amount, answer) = open.get(&(client, rpc)).cloned().unwrap();
            let reply = increment(&mut rig, &mut rng, once(client, rpc, ack), key, amount);
            rig.pass(rng.below(100));
            if reply == data::head(Status::Retry) {
                continue;
            }
            let (_, sum) = increment_reply(&reply).unwrap();
            match answer {
                Some(answer) => assert_eq!(reply, answer, "a repetition gets the same answer"),
                None => {
                    sums[usize::from(key)] += amount;
                    assert_eq!(i64::from_be_bytes(sum), sums[usize::from(key)]);
                    open.get_mut(&(client, rpc)).unwrap().2 = Some(reply);
                }
            }
            // The client stops repeating the request at some time after the reply.
            if rng.chance(400_000) {
                open.retain(|&(c, r), (_, _, answer)| c != client || r != rpc || answer.is_none());
            }
        }
        for (key, sum) in sums.into_iter().enumerate() {
            assert_eq!(
                rig.read(&[key as u8; 100]).unwrap().1,
                alloc::format!("{sum}").into_bytes()
            );
        }
        assert!(rig.master.cleaner.cleaned() > 10, "{}", rig.master.cleaner.cleaned());
    }
}

#[test]
fn full_memory_says_so_and_recovers_by_removals() {
    let mut rig =
        Rig::serving(Config { log_bytes: 32 << 12, segment_bytes: 1 << 12, ..Config::default() });
    rig.master.memory.results.extend(LeaseId(1), Instant::NEVER);
    let (mut rpc, mut keys) = (1, 0u64);
    loop {
        match rig.write(once(1, rpc, rpc - 1), &keys.to_be_bytes(), &[1; 100]) {
            Ok(_) => (rpc, keys) = (rpc + 1, keys + 1),
            Err(Status::Retry) => {}
            Err(Status::NoSpace) => break,
            Err(status) => panic!("{status:?}"),
        }
    }
    let log = &rig.master.memory().log;
    let full = log.live_bytes() * 100 / log.live_limit();
    assert!((88..=100).contains(&full), "{full} %");
    for n in 0..keys {
        let remove =
            Remove { target: TARGET, once: once(1, rpc, rpc - 1), key: &n.to_be_bytes() }.emit();
        let done = (0..100).any(|_| mutation_reply(&rig.ask(remove.clone())).is_ok());
        assert!(done, "{n} of {keys}");
        rpc += 1;
    }
    assert!(rig.write(once(1, rpc, rpc - 1), b"new", &[1; 100]).is_ok());
}
