//! A simulated etcd: a linearizable store of keys, behind a network that delays and loses requests
//! and replies.
//!
//! Always: each request is executed at one moment, at most once, perhaps long after its sender has
//! given it up. Not here: the network, which [`crate::world`] plays, and the requests' sense.

use std::collections::BTreeMap;

use sprat_store::etcd::{Compare, Failure, Is, Op, Pair, Reply, Request, Txn};

/// The result of a request to a simulated etcd.
pub type Outcome = Result<Reply, Failure>;

/// The faults between simulated hosts and the simulated etcd.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The probability that a request, or a reply, is lost, in parts per million.
    pub drop_ppm: u32,
    /// The probability that a request, or a reply, is late, in parts per million.
    pub late_ppm: u32,
    /// The longest delay of a message, and of a late one, in nanoseconds.
    pub delay_ns: (u64, u64),
}

impl Default for Options {
    fn default() -> Self {
        Self { drop_ppm: 0, late_ppm: 0, delay_ns: (2_000_000, 2_000_000_000) }
    }
}

/// A simulated etcd.
#[derive(Debug, Default)]
pub struct Etcd {
    keys: BTreeMap<Vec<u8>, (Vec<u8>, i64)>,
    revision: i64,
    /// True if the simulated etcd is full: it refuses to set keys.
    pub full: bool,
}

impl Etcd {
    /// Returns the value of a key of the simulated etcd.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.keys.get(key).map(|(value, _)| &value[..])
    }

    /// Removes all keys of the simulated etcd.
    pub fn empty(&mut self) {
        self.keys.clear();
        self.revision += 1;
    }

    /// Executes a request.
    ///
    /// # Errors
    /// [`Failure::Refused`] if the simulated etcd is full and the request sets a key.
    ///
    /// # Panics
    /// If a transaction is larger than a real etcd allows.
    pub fn execute(&mut self, request: &Request) -> Outcome {
        let Request::Txn(txn) = request else {
            return Ok(Reply { succeeded: true, revision: self.revision, read: Vec::new() });
        };
        let Txn { compares, then, otherwise } = txn;
        assert!(then.len() <= 128 && otherwise.len() <= 128, "too many operations");
        if self.full && then.iter().any(|op| matches!(op, Op::Put { .. })) {
            return Err(Failure::Refused("etcdserver: mvcc: database space exceeded".to_owned()));
        }
        let succeeded = compares.iter().all(|compare| self.holds(compare));
        let ops = if succeeded { then } else { otherwise };
        let changes = ops.iter().any(|op| !matches!(op, Op::Get { .. }));
        self.revision += i64::from(changes);
        let (mut read, mut bytes) = (Vec::new(), 0);
        for op in ops {
            match op {
                Op::Put { key, value } => {
                    bytes += key.len() + value.len();
                    self.keys.insert(key.clone(), (value.clone(), self.revision));
                }
                Op::Delete { from, end } => {
                    let gone: Vec<_> = self.range(from, end).map(|(key, _)| key.clone()).collect();
                    gone.iter().for_each(|key| drop(self.keys.remove(key)));
                }
                Op::Get { from, end, limit } => {
                    let pair = |(key, (value, at)): (&Vec<u8>, &(Vec<u8>, i64))| Pair {
                        key: key.clone(),
                        value: value.clone(),
                        modified: *at,
                    };
                    read.push(self.range(from, end).take(*limit as usize).map(pair).collect());
                }
            }
        }
        assert!(bytes <= 3 << 19, "a transaction of {bytes} bytes");
        Ok(Reply { succeeded, revision: self.revision, read })
    }

    fn range<'e>(
        &'e self,
        from: &'e [u8],
        end: &'e [u8],
    ) -> impl Iterator<Item = (&'e Vec<u8>, &'e (Vec<u8>, i64))> {
        let is_in = move |key: &[u8]| if end.is_empty() { key == from } else { key < end };
        self.keys.range(from.to_vec()..).take_while(move |(key, _)| is_in(key))
    }

    fn holds(&self, compare: &Compare) -> bool {
        let found = self.keys.get(&compare.key);
        match &compare.is {
            Is::Modified(at) => found.map_or(0, |(_, modified)| *modified) == *at,
            Is::Value(value) => found.is_some_and(|(found, _)| found == value),
        }
    }
}
