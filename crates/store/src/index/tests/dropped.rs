//! Clients that still know an index that another client has dropped.

use super::*;

/// The client that drops an index ends when it has removed some of the nodes. A client that still
/// knew the index went from the root again and again.
#[test]
fn a_way_through_the_rest_of_a_dropped_index_ends() {
    let mut world = World::new(1);
    let [one, two, three] = [world.client(0), world.client(0), world.client(0)];
    world.only(create(&one, "first", FIRST, 100));
    for n in 0..20 {
        let (key, value) = (alloc::format!("{n}"), alloc::format!("{n:02}"));
        let write = Change::Write(value.as_bytes(), None);
        world.only(of(&one).change(key.as_bytes(), write, ANY)).unwrap();
    }
    for client in [&two, &three] {
        assert_eq!(world.only(all(client, "first", Range::prefix(b""), 5)).len(), 20);
    }
    world.only(of(&one).drop_index("first")).unwrap();
    let is_below = |key: &[u8]| index_of_node(key).is_some() && key != node_key((0, ROOT));
    world.store.borrow_mut().objects.retain(|(_, key), _| !is_below(key));
    let mut context = Context::from_waker(Waker::noop());
    let mut look_up = Box::pin(async { of(&two).look_up("first", Range::prefix(b""), 5).await });
    let mut polls = (0..1_000).map(|_| look_up.as_mut().poll(&mut context));
    let found = polls.find_map(|poll| if let Poll::Ready(it) = poll { Some(it) } else { None });
    assert_eq!(found, Some(Err(Error::NoIndex("first".into()))));
    let mut change =
        Box::pin(async { of(&three).change(b"k", Change::Write(b"x", None), ANY).await });
    let mut polls = (0..1_000).map(|_| change.as_mut().poll(&mut context));
    assert!(polls.any(|poll| poll.is_ready()));
    world.only(clean(&three));
    world.check();
}

/// The client that drops an index ends before it has removed the nodes. Others change no entries of
/// it any more. A client that still knew the index found what its leaves had at that time.
#[test]
fn a_look_up_does_not_use_the_leaves_of_a_dropped_index() {
    let mut world = World::new(1);
    let [one, two] = [world.client(0), world.client(0)];
    world.only(create(&one, "first", FIRST, 100));
    let change = |world: &mut World, key: &[u8]| {
        world.only(of(&one).change(key, Change::Write(b"a", None), ANY)).unwrap();
    };
    change(&mut world, b"before");
    assert_eq!(world.only(all(&two, "first", Range::prefix(b""), 5)).len(), 1);
    world.only(of(&one).drop_index("first")).unwrap();
    change(&mut world, b"behind");
    let dropped = world.only(of(&two).look_up("first", Range::prefix(b""), 5));
    assert_eq!(dropped, Err(Error::NoIndex("first".into())));
    world.only(create(&one, "first", FIRST, 100));
    assert_eq!(world.only(all(&two, "first", Range::prefix(b""), 5)).len(), 2);
    world.only(clean(&two));
    world.check();
}

/// The client that drops an index removes a node above the leaves while another one builds the
/// index. That one knew the node: it found a leaf without room, could not split it, and tried for
/// ever.
#[test]
fn a_builder_of_a_dropped_index_ends() {
    for polls in 0..20 {
        let mut world = World::new(1);
        let [one, two] = [world.client(0), world.client(0)];
        for n in 0..400 {
            let (key, value) = (alloc::format!("{n}"), alloc::format!("{n:03}"));
            let object = (Version(n), value.into_bytes());
            world.store.borrow_mut().objects.insert((TABLE, key.into_bytes()), object);
        }
        world.store.borrow_mut().versions = 400;
        let mut building = world.only(of(&two).create("first", FIRST, 100)).unwrap();
        let level = |(_, bytes): &Seen| Node::parse(bytes).unwrap().level;
        let root = (NODES, node_key((0, ROOT)).to_vec());
        let mut context = Context::from_waker(Waker::noop());
        let mut build = Box::pin(async { of(&two).build(&mut building).await });
        while level(&world.store.borrow().objects[&root]) < 2 {
            assert!(build.as_mut().poll(&mut context).is_pending());
        }
        for _ in 0..polls {
            assert!(build.as_mut().poll(&mut context).is_pending());
        }
        world.only(of(&one).drop_index("first")).unwrap();
        let is_kept = |key: &[u8], seen: &Seen| index_of_node(key).is_none() || level(seen) != 1;
        world.store.borrow_mut().objects.retain(|(_, key), seen| is_kept(key, seen));
        let mut polls = (0..10_000).map(|_| build.as_mut().poll(&mut context));
        let built = polls.find_map(|poll| if let Poll::Ready(it) = poll { Some(it) } else { None });
        assert_eq!(built, Some(Err(Error::NoIndex("first".into()))));
    }
}
