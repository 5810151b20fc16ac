//! Fuzzes the messages of membership, tables and leases: no bytes panic, and a message that parses
//! is written back as the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sprat_store::message::control::{self, *};
use sprat_store::message::damage::*;
use sprat_store::message::migration::{
    FindTablet, Found, Hot, HotRange, ListMigrations, MergeTablets, Migrate, MigrationPage,
    MoveTablet, Moving, Page, PullTablet, SplitTablet,
};
use sprat_store::message::recovery::*;
use sprat_store::message::ring::*;
use sprat_store::message::transaction::{FindOwner, Owner, Resolve, Resolved};

macro_rules! same {
    ($bytes:expr, $($message:ident)*) => { $(
        if let Ok(message) = $message::parse($bytes) {
            assert_eq!(message.emit(), $bytes, "{message:?}");
        }
    )* };
}

fuzz_target!(|bytes: &[u8]| {
    let _ = control::opcode(bytes);
    same!(bytes, Enlist RenewServer RenewClient CheckLease CreateTable DropTable GetTable ListTables
        GetTablets ListServers GetLeader HintCrashed SetHead TakeTablet Ping DropTablet);
    same!(bytes, ListReplicas ReadReplica FreeReplicas FreeLeftReplicas Recover RecoveryEnded
        ReplicaDamaged OpenRing);
    same!(bytes, SplitTablet MergeTablets MoveTablet ListMigrations Migrate PullTablet FindTablet);
    same!(bytes, FindOwner Resolve HotRange);
    let _ = Page::parse(bytes);
    let _ = control::outcome(bytes);
    let _ = control::failure_text(bytes);
    replies(bytes);
});

/// Parses the bytes as every kind of reply whose two reserved bytes are zero. Replies are written
/// with zeros there, and the parser ignores these bytes.
fn replies(bytes: &[u8]) {
    if bytes.get(2..4) == Some(&[0, 0]) {
        same!(bytes, Leader Enlisted Renewed Leased LeaseTimes TableKey TablePage Tablets ServerPage
            ReplicaPage Recovering Ring Moving MigrationPage Found Hot Owner
            Resolved);
    }
}
