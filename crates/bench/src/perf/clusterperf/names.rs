//! The names of ClusterPerf's tests that `sprat bench` has beside `basic` and the throughputs.

/// A test of RAMCloud's ClusterPerf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Name {
    /// Measures reads of an object that does not exist.
    ReadNotFound,
    /// Measures reads of objects whose keys have several lengths.
    ReadVaryingKeyLength,
    /// Measures writes of objects whose keys have several lengths.
    WriteVaryingKeyLength,
    /// Measures the distribution of the times of reads of one object.
    ReadDist,
    /// Measures the distribution of the times of reads of random objects.
    ReadDistRandom,
    /// Measures the distribution of the times of writes of random objects.
    WriteDistRandom,
    /// Measures the distribution of the times of reads under a workload of YCSB.
    ReadDistWorkload,
    /// Measures the distribution of the times of updates under a workload of YCSB.
    WriteDistWorkload,
    /// Measures operations a second of a server under a workload of YCSB.
    WorkloadThroughput,
    /// Measures reads of several sizes, alone and all at the same time.
    ReadInterference,
    /// Measures writes of several sizes, alone and all at the same time.
    WriteInterference,
    /// Measures a write that waits for replicas, behind one that does not.
    WriteAsyncSync,
    /// Measures reads of one object by several clients at the same time.
    ReadLoaded,
    /// Measures reads by several clients of objects on several servers.
    ReadRandom,
    /// Measures reads of 80 objects in one operation by several clients.
    MultiReadThroughput,
    /// Measures reads in one operation of one object from each of several servers.
    MultiReadOneObjectPerMaster,
    /// Measures reads in one operation of many objects from each of several servers.
    MultiReadGeneral,
    /// Measures reads in one operation of many objects from several servers, in random order.
    MultiReadGeneralRandom,
    /// Measures reads in one operation of which more and more go to another server.
    MultiReadColocation,
    /// Measures the bandwidth of clients that each read a large object from another server.
    NetBandwidth,
    /// Measures reads of every client from every server, and that each of them succeeds.
    ReadAllToAll,
    /// Measures echoes of sizes from a distribution, offered at a rate.
    EchoWorkload,
    /// Measures the time until several clients have read a written object.
    Broadcast,
    /// Measures writes and look-ups with an index, by the number of objects.
    IndexBasic,
    /// Measures ordered scans by the number of their objects.
    IndexRange,
    /// Measures writes and look-ups by the number of indexes.
    IndexMultiple,
    /// Measures look-ups a second by the number of servers that hold the index.
    IndexScalability,
    /// Measures the distribution of the times of look-ups.
    IndexReadDist,
    /// Measures the distribution of the times of indexed writes.
    IndexWriteDist,
    /// Measures transfers between the same accounts, and checks the sum of these.
    TransactionCollision,
    /// Measures commits a second and aborts of clients that use the same popular objects.
    TransactionContention,
    /// Measures the distribution of the times of transactions on random objects.
    TransactionDistRandom,
    /// Measures commits a second of clients that use objects of their own.
    TransactionThroughput,
}

impl Name {
    /// Returns the test's name in ClusterPerf, which begins the names of its results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadNotFound => "readNotFound",
            Self::ReadVaryingKeyLength => "readVaryingKeyLength",
            Self::WriteVaryingKeyLength => "writeVaryingKeyLength",
            Self::ReadDist => "readDist",
            Self::ReadDistRandom => "readDistRandom",
            Self::WriteDistRandom => "writeDistRandom",
            Self::ReadDistWorkload => "readDistWorkload",
            Self::WriteDistWorkload => "writeDistWorkload",
            Self::WorkloadThroughput => "workloadThroughput",
            Self::ReadInterference => "readInterference",
            Self::WriteInterference => "writeInterference",
            Self::WriteAsyncSync => "writeAsyncSync",
            Self::ReadLoaded => "readLoaded",
            Self::ReadRandom => "readRandom",
            Self::MultiReadThroughput => "multiReadThroughput",
            Self::MultiReadOneObjectPerMaster => "multiRead_oneObjectPerMaster",
            Self::MultiReadGeneral => "multiRead_general",
            Self::MultiReadGeneralRandom => "multiRead_generalRandom",
            Self::MultiReadColocation => "multiRead_colocation",
            Self::NetBandwidth => "netBandwidth",
            Self::ReadAllToAll => "readAllToAll",
            Self::EchoWorkload => "echo_workload",
            Self::Broadcast => "broadcast",
            Self::IndexBasic => "indexBasic",
            Self::IndexRange => "indexRange",
            Self::IndexMultiple => "indexMultiple",
            Self::IndexScalability => "indexScalability",
            Self::IndexReadDist => "indexReadDist",
            Self::IndexWriteDist => "indexWriteDist",
            Self::TransactionCollision => "transaction_collision",
            Self::TransactionContention => "transactionContention",
            Self::TransactionDistRandom => "transactionDistRandom",
            Self::TransactionThroughput => "transactionThroughput",
        }
    }

    /// True if the test needs several servers, which it starts itself.
    #[must_use]
    pub const fn starts_servers(self) -> bool {
        matches!(
            self,
            Self::ReadRandom
                | Self::MultiReadOneObjectPerMaster
                | Self::MultiReadGeneral
                | Self::MultiReadGeneralRandom
                | Self::MultiReadColocation
                | Self::NetBandwidth
                | Self::ReadAllToAll
                | Self::IndexScalability
                | Self::TransactionCollision
                | Self::TransactionContention
                | Self::TransactionDistRandom
                | Self::TransactionThroughput
        )
    }
}
