//! The numbers of a master's links to other processes.
//!
//! They are dense, since the node keeps an entry for each number up to the largest one in use.

use sprat_proto::node::machine::Link;

use crate::types::ServerId;

/// The link to the coordinator.
pub const COORDINATOR: Link = Link(0);
/// The number of links to other masters for transactions.
pub(super) const FOR_TRANSACTIONS: u32 = 4;
/// The number of the first link that belongs to a server of the cluster.
const OF_SERVERS: u32 = 1 + FOR_TRANSACTIONS;

/// Returns a link to another master for transactions. There are [`FOR_TRANSACTIONS`].
pub(super) const fn for_transactions(number: u32) -> Link {
    Link(1 + number)
}

/// Returns the link to a backup of this master.
pub(super) const fn backup(server: ServerId) -> Link {
    Link(OF_SERVERS + 2 * server.index)
}

/// Returns the link to a server that this master reads a log or a tablet from.
pub(super) const fn source(server: ServerId) -> Link {
    Link(OF_SERVERS + 2 * server.index + 1)
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_link_has_a_number_of_its_own() {
        let servers = (0..100).map(|index| ServerId { index, generation: 7 });
        let of_servers = servers.flat_map(|server| [backup(server), source(server)]);
        let others = (0..FOR_TRANSACTIONS).map(for_transactions).chain([COORDINATOR]);
        let all: BTreeSet<u32> = of_servers.chain(others).map(|link| link.0).collect();
        assert_eq!(
            all.into_iter().collect::<alloc::vec::Vec<_>>(),
            (0..205).collect::<alloc::vec::Vec<_>>()
        );
        let last = ServerId { index: ServerId::MAX_INDEX, generation: 7 };
        assert_eq!(source(last).0, 2 * ServerId::MAX_INDEX + 6);
    }
}
