//! Echoes by `sprat::rpc` between a client and a server in one thread.

use std::hint::black_box;
use std::time::Duration;

use sprat::rpc::{Call, Client, Replied, RpcError, Server, Service, Session};

use crate::turns::{Failure, OPERATIONS, Progress, SIZE, locator, meanwhile};

const TIMEOUT: Duration = Duration::from_secs(10);
/// Number of sessions that carry many operations.
const SESSIONS: usize = 8;

struct Answer;

impl Service for Answer {
    fn request(&mut self, call: Call<'_>, reply: &mut Vec<u8>) -> Replied {
        reply.extend_from_slice(&call.payload);
        Replied::Idempotent
    }
}

pub(crate) fn run() -> Result<(), Failure> {
    let mut server = Server::listen(&[&locator("echo")], Answer)?;
    let mut client = Client::new()?;
    let at = server.locators();
    let (request, mut reply) = ([b'e'; SIZE], Vec::with_capacity(SIZE));
    let connect = || -> Result<Vec<Session>, Failure> {
        (0..SESSIONS)
            .map(|_| {
                let session = client.connect(&at)?;
                client.call_into(session, &request, TIMEOUT, &mut reply)?;
                Ok(session)
            })
            .collect()
    };
    let sessions = meanwhile(|| _ = server.turn(), connect)?;
    for _ in 0..OPERATIONS {
        one_echo(&mut client, sessions[0], &request, &mut reply, || _ = server.turn())?;
    }
    // Buffers and tables grow in a first round that is not counted.
    for counted in [false, true] {
        let mut progress = Progress::default();
        while progress.goes_on() {
            let before = progress.ended;
            if counted {
                echo_client(&mut client, &sessions, &request, &mut progress)?;
                (before..progress.ended).for_each(echo_ended);
                echo_server(&mut server);
            } else {
                turn(&mut client, &sessions, &request, &mut progress)?;
                server.turn();
            }
        }
    }
    Ok(())
}

#[inline(never)]
fn one_echo(
    client: &mut Client,
    session: Session,
    request: &[u8],
    reply: &mut Vec<u8>,
    server: impl FnMut(),
) -> Result<(), RpcError> {
    client.call_meanwhile(session, request, TIMEOUT, reply, server)
}

#[inline(never)]
fn echo_client(
    client: &mut Client,
    sessions: &[Session],
    request: &[u8],
    progress: &mut Progress,
) -> Result<(), RpcError> {
    turn(client, sessions, request, progress)
}

#[inline(always)]
fn turn(
    client: &mut Client,
    sessions: &[Session],
    request: &[u8],
    progress: &mut Progress,
) -> Result<(), RpcError> {
    while let Some(i) = progress.next() {
        client.start(sessions[i as usize % sessions.len()], request, TIMEOUT);
    }
    client.turn();
    while let Some((_, outcome)) = client.completed() {
        assert_eq!(outcome?.len(), request.len(), "an echo has the request's length");
        progress.ended += 1;
    }
    Ok(())
}

#[inline(never)]
fn echo_server(server: &mut Server<Answer>) {
    server.turn();
}

#[inline(never)]
fn echo_ended(number: u64) {
    black_box((number, "echo"));
}
