//! Fuzzes the coordinator's state in etcd: no values of its keys, and no results of its requests,
//! panic. The first byte of each step chooses the result, the next one the length of its value.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sprat_proto::{Instant, Rng};
use sprat_store::etcd::{EtcdState, Failure, Keys, Op, Pair, Reply, Request, is_turn};

fuzz_target!(|script: &[u8]| {
    let Some(keys) = Keys::new("fuzz") else { return };
    let mut now = Instant::from_ns(1);
    let mut state = EtcdState::new(now, keys, "tcp:me".to_owned(), Rng::seeded(1));
    let (mut rest, mut turns) = (script, 0);
    while let [choice, len, more @ ..] = rest {
        let value = &more[..more.len().min(usize::from(*len))];
        rest = &more[value.len()..];
        now = now.after(u64::from(*choice) << 20);
        state.tick(now);
        if choice % 7 == 0 {
            state.persist(turns, 1, vec![(value.to_vec(), value.to_vec())], vec![]);
        }
        // A reply may lead to the next request at once, and so on.
        for _ in 0..8 {
            let Some((id, request)) = state.output(now) else { break };
            let Request::Txn(txn) = request else { continue };
            state.response(now, id, result(*choice, value, &txn.then, &txn.otherwise));
        }
        while let Some(written) = state.event() {
            turns += u64::from(is_turn(&written));
        }
        assert!(state.deadline() > Instant::ZERO);
    }
});

/// Returns the result of a transaction with these operations.
fn result(choice: u8, value: &[u8], then: &[Op], otherwise: &[Op]) -> Result<Reply, Failure> {
    let (succeeded, modified) = (choice % 2 == 0, i64::from(choice / 16));
    let pairs = |op: &Op| match op {
        Op::Get { from, .. } => {
            Some(vec![Pair { key: from.clone(), value: value.to_vec(), modified }])
        }
        _ => None,
    };
    let ops = if succeeded { then } else { otherwise };
    match choice % 16 {
        14 => Err(Failure::Unknown("?".to_owned())),
        15 => Err(Failure::Refused("full".to_owned())),
        _ => {
            let read = ops.iter().filter_map(pairs).collect();
            Ok(Reply { succeeded, revision: modified, read })
        }
    }
}
