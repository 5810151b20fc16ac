//! Tests of a client's operations on tables, lists and named servers.

use super::*;
use crate::durability::Durability;
use crate::durability::TableDurability;
use crate::site::Site;

#[test]
fn tables_are_created_looked_up_and_dropped() {
    let mut s = Script::new();
    let key = TableKey { cluster: CLUSTER, table: T, hash_key: HASH_KEY }.emit();
    s.client.create_table("a", 3, s.far());
    let create = s.call();
    let request = CreateTable::parse(&create.request).unwrap();
    assert_eq!((request.name, request.span), ("a", 3));
    // Whether it was executed or not: asking again is safe, the name sees to that.
    s.respond(&create, Err(RpcError::MaybeExecuted));
    s.tick();
    let create = s.call();
    let done = s.reply(&create, key.clone()).unwrap();
    assert!(matches!(done.outcome, Ok(Answer::Table(T))));

    s.client.table("a", s.far());
    let look = s.call();
    assert_eq!(GetTable::parse(&look.request).unwrap().name, "a");
    s.reply(&look, no(Status::Retry));
    s.tick();
    let look = s.call();
    assert!(matches!(s.reply(&look, key.clone()).unwrap().outcome, Ok(Answer::Table(T))));
    s.client.table("b", s.far());
    let look = s.call();
    assert_eq!(s.error(&look, no(Status::TableDoesntExist)), Error::TableDoesntExist);
    s.client.create_table("b", 1, s.far());
    let create = s.call();
    assert_eq!(s.error(&create, no(Status::TooFewServers)), Error::TooFewServers);
    s.client.create_table("b", 1, s.far());
    let create = s.call();
    let full = Error::Refused { status: Status::NoSpace, text: "because".into() };
    assert_eq!(s.error(&create, no(Status::NoSpace)), full);

    // A drop looks up the id of the table first, so that its repetition cannot drop a later table
    // of that name.
    s.client.drop_table("a", s.far());
    let look = s.call();
    assert!(s.reply(&look, key).is_none());
    for _ in 0..3 {
        let drop = s.call();
        let request = DropTable::parse(&drop.request).unwrap();
        assert_eq!((request.table, request.name), (T, "a"));
        s.respond(&drop, Err(RpcError::MaybeExecuted));
        s.tick();
    }
    let drop = s.call();
    assert!(matches!(s.reply(&drop, control::done()).unwrap().outcome, Ok(Answer::Dropped)));
    s.client.drop_table("a", s.far());
    let look = s.call();
    assert_eq!(s.error(&look, no(Status::TableDoesntExist)), Error::TableDoesntExist);
}

#[test]
fn lists_are_collected_page_by_page() {
    let mut s = Script::new();
    s.client.list_tables(s.far());
    for (after, more) in [(0, true), (5, false)] {
        let ask = s.call();
        assert_eq!(ListTables::parse(&ask.request).unwrap().after, TableId(after));
        let tables = vec![Table {
            table: TableId(after + 5),
            tablets: 2,
            lost: 1,
            unheard: 1,
            recovering: 3,
            durability: TableDurability::Async,
            name: "a",
        }];
        match s.reply(&ask, TablePage { more, tables }.emit()) {
            None => assert!(more),
            Some(done) => {
                let Ok(Answer::Tables(tables)) = done.outcome else { panic!() };
                assert_eq!(tables.iter().map(|table| table.table.0).collect::<Vec<_>>(), [5, 10]);
                let TableInfo { tablets, lost, unheard, recovering, .. } = tables[1];
                assert_eq!((tablets, lost, unheard, recovering), (2, 1, 1, 3));
                assert_eq!(tables[1].name, "a");
            }
        }
    }
    s.client.list_servers(s.far());
    for (from, next) in [(0, 4), (4, 0)] {
        let ask = s.call();
        assert_eq!(ListServers::parse(&ask.request).unwrap().from, from);
        let server = Server {
            server: ServerId { index: from + 3, generation: 1 },
            state: ServerState::Up,
            tablets: 2,
            usage: Usage { used_bytes: 1, capacity_bytes: 2, objects: 3, accesses: 4 },
            rate: 5,
            replicas: 4,
            durability: Durability::Disk,
            site: Site::default(),
            control: "c",
            data: "d",
            blocked: "e",
        };
        match s.reply(&ask, ServerPage { next, servers: vec![server] }.emit()) {
            None => assert_ne!(next, 0),
            Some(done) => {
                let Ok(Answer::Servers(servers)) = done.outcome else { panic!() };
                assert_eq!(
                    servers.iter().map(|server| server.server.index).collect::<Vec<_>>(),
                    [3, 7]
                );
                let ServerInfo { control, data, blocked, replicas, durability, .. } = &servers[0];
                assert_eq!((*replicas, *durability), (4, Durability::Disk));
                assert_eq!((&control[..], &data[..], &blocked[..]), ("c", "d", "e"));
            }
        }
    }
}

#[test]
fn an_enumeration_goes_through_all_tablets() {
    let mut s = Script::new();
    s.map = tablets(&[("fast:a", TabletState::Normal), ("fast:b", TabletState::Normal)]);
    let mut cursor = Some(Cursor::default());
    let half = 1u64 << 63;
    for (at, first, last, within, next) in [
        ("fast:a", 0, half - 1, 0, 77),
        ("fast:a", 0, half - 1, 77, 0),
        ("fast:b", half, u64::MAX, 0, 0),
    ] {
        s.client.enumerate(T, cursor.unwrap(), s.far());
        let call = s.object_call();
        assert_eq!(s.links[call.link as usize], at);
        let request = Enumerate::parse(&call.request).unwrap();
        assert_eq!((request.first, request.last, request.cursor), (first, last, within));
        let mut reply = objects_head(1, next).to_vec();
        reply.extend(object_head(1, Version(4), 2, None));
        reply.extend(b"kvv");
        let done = s.reply(&call, reply).unwrap();
        let Ok(Answer::Page(page)) = done.outcome else { panic!() };
        let objects: Vec<_> = page.objects().collect();
        assert_eq!(
            objects,
            [Listed { key: b"k", version: Version(4), value: b"vv", lifetime: None }]
        );
        cursor = page.next;
    }
    assert_eq!(cursor, None);
}

#[test]
fn echo_and_stats_go_to_the_server_that_is_named() {
    let mut s = Script::new();
    let peer = s.client.peer("tcp:x;fast:x").unwrap();
    s.client.echo(peer, b"hello", s.far());
    let call = s.call();
    assert_eq!(s.links[call.link as usize], "fast:x;tcp:x");
    let done = s.reply(&call, [&data::head(Status::Ok)[..], b"hello"].concat()).unwrap();
    let Ok(Answer::Bytes(bytes)) = done.outcome else { panic!() };
    assert_eq!(&bytes[..], b"hello");
    s.client.stats(PeerId::COORDINATOR, s.far());
    let call = s.call();
    assert_eq!(call.link, 0);
    let done = s.reply(&call, [&data::head(Status::Ok)[..], b"{}"].concat()).unwrap();
    let Ok(Answer::Bytes(bytes)) = done.outcome else { panic!() };
    assert_eq!(bytes.into_vec(), b"{}");
}
