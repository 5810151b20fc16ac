//! The last checks of the indexes of a world, after all faults and changes: each index has exactly
//! the entries of the objects, and no node of a dropped index is left.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use sprat_proto::time::SECOND;
use sprat_store::client::Cursor;
use sprat_store::index::{Error, Objects as _, State};
use sprat_store::types::Version;

use super::task::{Task, key_bytes, key_of};
use super::tasks::{INDEXES, KEYS, Keys};

/// The most tries of the last checks.
const MOST_TRIES: u32 = 100;

/// The most levels of nodes of a tree in all worlds.
pub(super) static LEVELS: AtomicU64 = AtomicU64::new(0);

/// The objects of the table of the nodes: their keys, versions and values.
type Nodes = BTreeMap<Vec<u8>, (Version, Vec<u8>)>;
/// An entry of an index: the index key, and the object.
type Entry = (Vec<u8>, u64);

/// Returns the entries of a leaf.
fn entries_of(leaf: &[u8]) -> Vec<Entry> {
    let word = |at: usize| u32::from_be_bytes(leaf[at..][..4].try_into().expect("four bytes"));
    let count = usize::from(u16::from_be_bytes([leaf[2], leaf[3]]));
    let entry = |i: usize| {
        let at = word(4 + 4 * i) as usize;
        let (index_key, key) =
            (usize::from(leaf[at]) << 8 | usize::from(leaf[at + 1]), word(at + 2));
        let (first, second) = leaf[at + 6..][..index_key + key as usize].split_at(index_key);
        (first.to_vec(), key_of(second))
    };
    (0..count).map(entry).collect()
}

/// Checks that the entries of some indexes are the ones that are expected.
fn compare(what: &str, actual: &[Vec<Entry>], expected: &[Vec<Entry>]) {
    for (actual, expected) in actual.iter().zip(expected) {
        let text =
            |(key, object): &Entry| format!("{:?} of {object}", String::from_utf8_lossy(key));
        let more: Vec<_> = actual.iter().filter(|it| !expected.contains(it)).map(text).collect();
        let less: Vec<_> = expected.iter().filter(|it| !actual.contains(it)).map(text).collect();
        assert!(more.is_empty() && less.is_empty(), "{what}: {more:?} too much, {less:?} missing");
        assert_eq!(actual, expected, "{what}");
    }
    assert_eq!(actual.len(), expected.len(), "{what}: the number of indexes");
}

/// Checks that the leaves of all nodes have exactly these entries of each index.
fn check_nodes(nodes: &Nodes, mut expected: Vec<Vec<Entry>>) {
    let mut actual: BTreeMap<u8, Vec<Entry>> = BTreeMap::new();
    for (key, (_, node)) in nodes.iter().filter(|(key, _)| key[0] == b'n') {
        LEVELS.fetch_max(u64::from(node[0]) + 1, Ordering::Relaxed);
        let entries = actual.entry(key[1]).or_default();
        if node[0] == 0 {
            // The others are also changed without their entries.
            entries.extend(entries_of(node).into_iter().filter(|(_, object)| *object < KEYS));
        }
    }
    let mut actual: Vec<Vec<Entry>> = actual.into_values().collect();
    actual.iter_mut().for_each(|entries| entries.sort_unstable());
    actual.sort_unstable();
    expected.sort_unstable();
    compare("the entries of all leaves", &actual, &expected);
}

impl Task {
    /// Makes the last checks, by a client that knows no node.
    pub(super) async fn check_all(self) {
        // The transactions of programs that have ended are decided by then.
        self.wait(3 * SECOND).await;
        *self.shared.state.borrow_mut() = State::default();
        for tries in 1..MOST_TRIES {
            match self.try_to_check_all().await {
                Ok(true) => return,
                Ok(false) | Err(Error::Store(_)) => _ = self.pause(tries).await,
                Err(error) => panic!("{error:?}"),
            }
        }
        panic!("the objects and the nodes still change");
    }

    /// Makes the last checks. Returns false if something has changed meanwhile.
    async fn try_to_check_all(&self) -> Result<bool, Error> {
        self.create(0).await?;
        let mut known = Vec::new();
        for index in self.indexes().list().await? {
            let number = INDEXES.iter().position(|(name, _)| *name == index.name);
            known.push(number.expect("a known name"));
        }
        for &index in &known {
            // The program that began to create it may have ended.
            assert!(self.create(index).await?);
        }
        self.clean().await?;
        let (before, nodes) = (self.read_all().await?, self.nodes().await?);
        if (&before, &nodes) != (&self.read_all().await?, &self.nodes().await?) {
            return Ok(false);
        }
        let mut expected = Vec::new();
        for &index in &known {
            let mut of_index = Vec::new();
            for (key, object) in (0..).zip(&before) {
                let Some((_, value)) = object else { continue };
                let own = key_bytes(key);
                of_index.extend(INDEXES[index].1.key_of(&own, value).map(|it| (it.to_vec(), key)));
            }
            of_index.sort_unstable();
            expected.push(of_index);
        }
        // Look-ups remove entries that have no object.
        check_nodes(&nodes, expected.clone());
        let mut found = Vec::new();
        for &index in &known {
            let all = self.find(index, &Keys(Vec::new(), None), 1000).await?;
            let entries = all.into_iter().map(|it| (it.index_key, key_of(&it.key)));
            found.push(entries.filter(|(_, key)| *key < KEYS).collect::<Vec<Entry>>());
        }
        compare("the objects that look-ups find", &found, &expected);
        Ok(true)
    }

    /// Lists the table of the nodes.
    async fn nodes(&self) -> Result<Nodes, Error> {
        let (mut nodes, mut next) = (Nodes::new(), Some(Cursor::default()));
        while let Some(from) = next {
            let (page, rest) = self.scan(self.tables().1, from).await?;
            nodes.extend(page.into_iter().map(|(key, version, value)| (key, (version, value))));
            next = rest;
        }
        Ok(nodes)
    }
}
