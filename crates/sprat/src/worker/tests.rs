//! A worker, its links and its races, over real sockets of this machine.

use sprat_proto::rpc::{Payload, Slice, Slices};

use super::*;
use crate::doors::Options;

/// A machine that says what the test wants.
#[derive(Debug, Default)]
struct Script {
    says: Vec<Output>,
    failed: Vec<u64>,
}

impl Slices for Script {
    fn bytes(&self, _: Slice) -> &[u8] {
        &[]
    }
}

impl Machine for Script {
    fn request(&mut self, _: Instant, _: Caller, _: Payload<'_>, _: Instant) -> Option<Message> {
        None
    }

    fn response(&mut self, _: Instant, tag: u64, result: Result<Payload<'_>, RpcError>) {
        assert!(result.is_err(), "nobody is there");
        self.failed.push(tag);
    }

    fn output(&mut self, _: Instant) -> Option<Output> {
        self.says.pop()
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn tick(&mut self, _: Instant) -> bool {
        false
    }
}

#[test]
fn a_link_bound_anew_closes_its_old_session() {
    // Sockets that nobody reads: whoever calls them waits.
    let silent = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let sockets = [silent(), silent()];
    let mut worker =
        Worker::new(Script::default(), Doors::new(Options::default()), None, Clock::new()).unwrap();
    for (tag, socket) in (0..).zip(&sockets) {
        let port = socket.local_addr().unwrap().port();
        let (link, message) = (Link(0), vec![1; 8].into());
        let call = Output::Call { link, tag, message, deadline: Instant::NEVER };
        let connect =
            Output::Connect { link, locator: format!("fast+udp:host=127.0.0.1,port={port}") };
        worker.machine.says = vec![call, connect];
        worker.unsent = true;
        worker.turn();
        assert!(worker.machine.says.is_empty() && worker.machine.failed.is_empty());
    }
    worker.doors.all_due();
    worker.turn();
    assert_eq!(
        worker.machine.failed,
        [0],
        "what was called on the old session has ended, and nothing else"
    );
    assert!(worker.links.session(Link(0)).is_some());
}
