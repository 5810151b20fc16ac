//! Runs tests of the module `rpc` over every transport that needs no privilege.

use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use sprat::rpc::{Call, Client, RpcError, Server, Stop};

const LONG: Duration = Duration::from_secs(20);

/// A server in a thread of its own, which ends when this value is dropped.
struct Running {
    at: String,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start<F>(locator: &str, service: F) -> Self
    where
        F: FnMut(Call<'_>) -> Option<Vec<u8>> + Send + 'static,
    {
        let mut server = Server::listen(&[locator], service).unwrap();
        let (at, stop) = (server.locators(), server.stop());
        Self { at, stop, thread: Some(std::thread::spawn(move || server.run())) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        let ended = self.thread.take().map(JoinHandle::join);
        // A second panic would abort the program and take all other tests along.
        assert!(
            matches!(ended, Some(Ok(()))) || std::thread::panicking(),
            "the server of the test panicked"
        );
    }
}

fn echo(call: Call<'_>) -> Option<Vec<u8>> {
    Some(call.payload.into_vec())
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn sizes_come_back_whole(locator: &str) {
    let server = Running::start(locator, echo);
    let mut client = Client::new().unwrap();
    let session = client.connect(&server.at).unwrap();
    for len in [0, 1, 63, 64, 65, 100, 1_000, 8_000, 65_000, 65_536, 1_000_000, 16 << 20] {
        assert!(client.call(session, &pattern(len), LONG).unwrap() == pattern(len), "{len} bytes");
    }
}

fn many_requests_at_once(locator: &str) {
    let server = Running::start(locator, echo);
    let mut client = Client::new().unwrap();
    // More are in progress than a server's turn takes.
    let sessions: Vec<_> = (0..24).map(|_| client.connect(&server.at).unwrap()).collect();
    let mut want = std::collections::HashMap::new();
    for i in 0..500_usize {
        let request = [i.to_be_bytes().to_vec(), pattern(i * 13 % 3_000)].concat();
        let rpc = client.start(sessions[i % sessions.len()], &request, LONG);
        want.insert(rpc, request);
    }
    while !want.is_empty() {
        client.turn_and_rest();
        while let Some((rpc, outcome)) = client.completed() {
            assert_eq!(outcome.unwrap(), want.remove(&rpc).expect("one outcome for each request"));
        }
    }
}

fn replies_may_come_later_and_from_another_thread(locator: &str) {
    let (give, take) = std::sync::mpsc::channel();
    let mut server = Server::listen(&[locator], move |call: Call<'_>| {
        give.send((call.caller, call.payload.into_vec())).unwrap();
        None
    })
    .unwrap();
    let (at, stop, replier) = (server.locators(), server.stop(), server.replier());
    let serving = std::thread::spawn(move || server.run());
    let replying = std::thread::spawn(move || {
        // Answers in the opposite order, once both have come.
        let both: Vec<_> = take.iter().take(2).collect();
        for (caller, request) in both.into_iter().rev() {
            replier.reply(caller, request);
        }
    });
    let mut client = Client::new().unwrap();
    let session = client.connect(&at).unwrap();
    let (a, b) = (client.start(session, b"a", LONG), client.start(session, b"b", LONG));
    assert_eq!(client.wait(a).unwrap(), b"a");
    assert_eq!(client.wait(b).unwrap(), b"b");
    replying.join().unwrap();
    stop.stop();
    serving.join().unwrap();
}

fn deadlines_end_requests_without_an_answer(locator: &str) {
    let server =
        Running::start(locator, |call| (call.payload.len() == 1).then(|| b"first".to_vec()));
    let mut client = Client::new().unwrap();
    let session = client.connect(&server.at).unwrap();
    assert_eq!(client.call(session, b"1", LONG).unwrap(), b"first");
    let error = client.call(session, b"never answered", Duration::from_millis(30)).unwrap_err();
    assert_eq!(error, RpcError::Deadline { maybe_executed: true });
    assert_eq!(client.call(session, b"1", LONG).unwrap(), b"first", "the session goes on");
}

fn cancelled_requests_end_at_once(locator: &str) {
    let server =
        Running::start(locator, |call| (call.payload.len() == 1).then(|| b"first".to_vec()));
    let mut client = Client::new().unwrap();
    let session = client.connect(&server.at).unwrap();
    assert_eq!(client.call(session, b"1", LONG).unwrap(), b"first");
    let sent = client.start(session, b"never answered", LONG);
    client.turn();
    for rpc in [sent, client.start(session, b"not even sent yet", LONG)] {
        client.cancel(rpc);
        assert_eq!(client.wait(rpc).unwrap_err(), RpcError::Cancelled);
    }
    assert_eq!(client.call(session, b"1", LONG).unwrap(), b"first", "the session goes on");
}

fn a_restarted_server_is_found_again(locator: &str) {
    let server = Running::start(locator, echo);
    let at = server.at.clone();
    let mut client = Client::new().unwrap();
    let session = client.connect(&at).unwrap();
    assert_eq!(client.call(session, b"before", LONG).unwrap(), b"before");
    drop(server);
    let _server = Running::start(&at, echo);
    // What was not executed may be sent again; the first attempts may meet the old session.
    let mut attempts = 0;
    let reply = loop {
        match client.call(session, b"after", LONG) {
            Ok(reply) => break reply,
            Err(e) => assert!(attempts < 1_000, "{e}"),
        }
        attempts += 1;
    };
    assert_eq!(reply, b"after");
}

/// Waits for a reply that comes only once the client is ready to sleep, so that only the client's
/// descriptor can report it.
fn a_loop_of_the_program_is_woken(locator: &str) {
    let (give, take) = std::sync::mpsc::channel();
    let mut server = Server::listen(&[locator], move |call: Call<'_>| {
        give.send(call.caller).unwrap();
        None
    })
    .unwrap();
    let (at, stop, replier) = (server.locators(), server.stop(), server.replier());
    let serving = std::thread::spawn(move || server.run());
    let mut client = Client::new().unwrap();
    let descriptor = client.descriptor().unwrap();
    let session = client.connect(&at).unwrap();
    for round in 0..3 {
        let rpc = client.start(session, b"a request", LONG);
        let caller = loop {
            client.turn();
            if let Ok(caller) = take.try_recv() {
                break caller;
            }
        };
        while client.prepare_to_sleep().is_none() {
            while client.turn() {}
        }
        replier.reply(caller, vec![round]);
        let reply = loop {
            let mut fds = [PollFd::new(&descriptor, PollFlags::IN)];
            assert_eq!(poll(&mut fds, None).unwrap(), 1);
            // A transport may be woken for less than a whole reply.
            while client.turn() {}
            if let Some((ended, outcome)) = client.completed() {
                assert_eq!(ended, rpc);
                break outcome.unwrap().to_vec();
            }
            while client.prepare_to_sleep().is_none() {
                while client.turn() {}
            }
        };
        assert_eq!(reply, [round]);
    }
    stop.stop();
    serving.join().unwrap();
}

/// Sends requests to a server that answers none before all have come. They are more than one
/// connection carries.
fn lanes_carry_more_than_one_connection_does(locator: &str) {
    const REQUESTS: usize = 32;
    let mut callers = Vec::new();
    let (give, take) = std::sync::mpsc::channel();
    let mut server = Server::listen(&[locator], move |call: Call<'_>| {
        callers.push(call.caller);
        if callers.len() == REQUESTS {
            give.send(std::mem::take(&mut callers)).unwrap();
        }
        None
    })
    .unwrap();
    let (at, stop, replier) = (server.locators(), server.stop(), server.replier());
    let serving = std::thread::spawn(move || server.run());
    let replying = std::thread::spawn(move || {
        for caller in take.iter().next().expect("all requests come") {
            replier.reply(caller, b"all are here".to_vec());
        }
    });
    let mut client = Client::builder().lanes(4).build().unwrap();
    let session = client.connect(&at).unwrap();
    for _ in 0..REQUESTS {
        client.start(session, b"one of many", LONG);
    }
    let mut replies = 0;
    while replies < REQUESTS {
        client.turn_and_rest();
        while let Some((_, outcome)) = client.completed() {
            assert_eq!(outcome.unwrap(), b"all are here");
            replies += 1;
        }
    }
    client.close(session);
    replying.join().unwrap();
    stop.stop();
    serving.join().unwrap();
}

macro_rules! over {
    ($name:ident, $locator:expr) => {
        mod $name {
            fn locator(test: &str) -> String {
                let unique = format!("{}-{}", test.replace("::", "."), std::process::id());
                $locator.replace("TEST", &unique)
            }

            over!(@ sizes_come_back_whole, many_requests_at_once,
                replies_may_come_later_and_from_another_thread,
                deadlines_end_requests_without_an_answer, cancelled_requests_end_at_once,
                a_restarted_server_is_found_again, a_loop_of_the_program_is_woken,
                lanes_carry_more_than_one_connection_does);
        }
    };
    (@ $($test:ident),*) => {
        $(
            #[test]
            fn $test() {
                super::$test(&locator(stringify!($test)));
            }
        )*
    };
}

over!(udp, "fast+udp:host=127.0.0.1,port=0");
over!(udp_unchecked, "fast+udp:host=127.0.0.1,port=0,crc=off");
over!(shm, "fast+shm:name=TEST");
over!(memif, "fast+memif:socket=/tmp/sprat-TEST.memif,host=10.77.0.1,port=7");
over!(shmnet, "fast+shmnet:name=TEST-net,host=10.77.0.1,port=7");
over!(memif_unchecked, "fast+memif:socket=/tmp/sprat-TEST.unchecked,host=10.77.0.1,port=7,crc=off");
over!(shmnet_unchecked, "fast+shmnet:name=TEST-unchecked,host=10.77.0.1,port=7,crc=off");
over!(
    bond,
    "fast+bond:dev=/tmp/sprat-TEST.a,with=/tmp/sprat-TEST.b,of=memif,host=10.77.0.1,port=7"
);
over!(tcp, "tcp:host=127.0.0.1,port=0");
over!(rdma, "rdma:host=127.0.0.1,port=0");
over!(utcp_shmnet, "utcp+shmnet:name=TEST-utcp,host=10.77.0.1,port=7");
over!(utcp_memif, "utcp+memif:socket=/tmp/sprat-TEST.utcp,host=10.77.0.1,port=0");
over!(rdma_shmnet, "rdma+shmnet:name=TEST-rdma,host=10.77.0.1,port=7");

/// Clients and servers that disagree on checksums. A client that sends them to a server without
/// them soon learns that the server does not answer. A client that connects through one socket, or
/// one end of a shared memory, both with and without them gets an error at once.
#[test]
fn checksums_are_agreed_on_by_the_locator() {
    let socket = format!("/tmp/sprat-minds-{}", std::process::id());
    agree_on_checksums(&format!("fast+memif:socket={socket},host=10.77.0.1,port=7,crc=off"));
    agree_on_checksums("fast+udp:host=127.0.0.1,port=0,crc=off");
}

fn agree_on_checksums(at: &str) {
    let server = Running::start(at, echo);
    let (off, on) = (server.at.clone(), server.at.replace(",crc=off", ""));
    assert!(off.contains(",crc=off"), "the server says so: {off}");
    let mut client = Client::new().unwrap();
    let session = client.connect(&off).unwrap();
    assert_eq!(client.call(session, b"without", LONG).unwrap(), b"without");
    let refused = client.connect(&on).expect_err("another mind").to_string();
    assert!(refused.ends_with("calls here have crc=off, not crc=on"), "{refused}");
    let mut other = Client::new().unwrap();
    let session = other.connect(&on).unwrap();
    assert_eq!(other.call(session, b"with", LONG), Err(RpcError::NotExecuted));
}
