//! `sprat recover`: lets a blocked recovery go on without what is lost for good.

use clap::Args;
use sprat::kv::{Loss, Range, SegmentRange, ServerId, TableInfo};
use sprat_bench::fail::Fail;
use sprat_bench::out;
use sprat_bench::text::bytes;

use super::status::number_of;
use crate::options::{Cluster, server_id};

/// Recover a crashed server whose data is partly lost.
///
/// The recovery of a crashed server is blocked while replicas of segments of its log are missing:
/// none of its tables serves, for any object may be an old one. If a server with these replicas
/// comes back, the recovery goes on by itself. This command is for replicas that are lost for good.
///
/// Without --accept-loss it says what would be lost, and changes nothing. With it the recovery goes
/// on with the segments that exist, and the loss is for good:
/// objects in lost segments are gone, or are found as they were before their last writes;
/// objects that were removed can be there again, if the record of the removal is lost;
/// a client that repeats a request whose reply it did not get can execute it a second time.
/// Versions do not go back: later writes get versions above all that were lost.
#[derive(Args, Debug)]
#[command(
    verbatim_doc_comment,
    after_help = "Examples:
  sprat status                            which server is blocked, and why
  sprat recover 2.1                       what would be lost
  sprat recover 2.1 --accept-loss"
)]
pub(crate) struct Recover {
    #[command(flatten)]
    at: Cluster,
    /// The crashed server, as sprat status names it.
    #[arg(value_name = "SERVER", value_parser = server_id)]
    server: ServerId,
    /// Let the recovery go on without what is lost.
    #[arg(long)]
    accept_loss: bool,
}

/// Runs `sprat recover`.
pub(crate) fn run(args: &Recover) -> Result<(), Fail> {
    let mut store = args.at.connect()?;
    let (server, accept) = (args.server, args.accept_loss);
    let tables = store.tables()?;
    let loss = store.accept_loss(server, accept)?;
    out::print(human_text(server, &loss, &tables, accept))?;
    if accept {
        return Ok(());
    }
    Err(Fail::new(format!("nothing was changed: the recovery of server {server} is blocked")).next(
        format!(
            "start the servers that have the replicas, or: sprat recover {server} --accept-loss"
        ),
    ))
}

fn human_text(server: ServerId, loss: &Loss, tables: &[TableInfo], accepted: bool) -> String {
    let mut text = if accepted {
        format!("The recovery of server {server} goes on. Of its log these parts are lost:\n")
    } else {
        format!("The recovery of server {server} would lose these parts of its log:\n")
    };
    if loss.head {
        text += "  the end of the log, with the latest changes; how many is unknown\n";
    }
    if loss.segments > 0 {
        let ranges = |range: &SegmentRange| match (range.first.0, range.last.0) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        };
        let ranges = loss.lost.iter().map(ranges).collect::<Vec<_>>().join(", ");
        let segments = number_of(loss.segments as usize, "segment");
        text += &format!("  {segments} with {}: {ranges}\n", bytes(loss.bytes));
    }
    for damaged in &loss.damaged {
        let (segment, backup) = (damaged.segment.0, damaged.backup);
        text += &format!("  the replica of segment {segment} on server {backup} is damaged\n");
    }
    let kept = number_of(loss.kept_segments as usize, "segment");
    text += &format!("{kept} with {} are left.\n", bytes(loss.kept_bytes));
    if loss.tablets > 0 {
        text += "Objects of these tables may be lost or old, by first and last key hash:\n";
    }
    for &Range { table, first, last } in &loss.ranges {
        let named = tables.iter().find(|info| info.table == table);
        let name = named
            .map_or_else(|| format!("table {}", table.0), |info| out::name(info.name.as_bytes()));
        text += &format!("  {name} {first:016x}-{last:016x}\n");
    }
    if loss.tablets as usize > loss.ranges.len() {
        text += &format!("  and {} more tablets\n", loss.tablets as usize - loss.ranges.len());
    }
    text
}

#[cfg(test)]
mod tests {
    use sprat::kv::{DamagedReplica, SegmentId, TableDurability, TableId};

    use super::*;

    #[test]
    fn a_server_is_named_as_the_status_does() {
        assert_eq!(server_id("2.1"), Ok(ServerId { index: 2, generation: 1 }));
        for wrong in ["", "2", "2.", ".1", "2.1.1", "x.1", "-2.1", "4294967296.1"] {
            assert!(server_id(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_loss_is_told_in_full() {
        let server = ServerId { index: 2, generation: 1 };
        let segments =
            |first, last| SegmentRange { first: SegmentId(first), last: SegmentId(last) };
        let backup = ServerId { index: 3, generation: 1 };
        let mut loss = Loss {
            head: true,
            segments: 4,
            bytes: 4096,
            lost: vec![segments(1, 3), segments(7, 7)],
            damaged: vec![DamagedReplica { backup, segment: SegmentId(7) }],
            kept_segments: 1,
            kept_bytes: 100,
            tablets: 3,
            ranges: vec![Range { table: TableId(1), first: 0, last: 15 }],
        };
        let info = TableInfo {
            table: TableId(1),
            name: "t".to_owned(),
            tablets: 1,
            lost: 0,
            unheard: 0,
            recovering: 1,
            durability: TableDurability::Cluster,
        };
        let told = human_text(server, &loss, &[info], false);
        for part in [
            "The recovery of server 2.1 would lose",
            "the end of the log",
            "  4 segments with 4.10 KB: 1-3, 7\n",
            "  the replica of segment 7 on server 3.1 is damaged\n",
            "1 segment with 100 B are left.\n",
            "  t 0000000000000000-000000000000000f\n",
            "  and 2 more tablets\n",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        (loss.head, loss.segments) = (false, 0);
        let told = human_text(server, &loss, &[], true);
        assert!(told.contains("2.1 goes on") && !told.contains("the end of"), "{told}");
        assert!(told.contains("  table 1 00"), "{told}");
    }
}
