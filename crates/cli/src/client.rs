//! The client of the cluster that a command names.

use sprat_bench::fail::Fail;
use sprat_bench::store::Store;

use crate::args::Cluster;

/// A client of this cluster. Whether it is there shows with the first operation.
pub(crate) fn connect(cluster: &Cluster) -> Result<Store, Fail> {
    Store::over(&cluster.at.coordinator, &cluster.transport)
}
