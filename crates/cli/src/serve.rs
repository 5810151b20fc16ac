//! The processes that serve: a coordinator, a server, an echo. Each says where it listens as soon as it does, and runs
//! until SIGINT or SIGTERM.

use sprat::rpc::{Call, Server};

use crate::args;
use crate::fail::Fail;
use crate::process;

/// Answers every request with its own bytes.
pub(crate) fn echo(args: &args::Echo) -> Result<(), Fail> {
    let answer = |call: Call<'_>| Some(call.payload.into_vec());
    let mut server = Server::listen(&[&args.locators], answer).map_err(|error| listening(&error))?;
    process::say_ready(&server.locators())?;
    let stop = server.stop();
    process::on_stop(move || stop.stop())?;
    server.run();
    Ok(())
}

/// Why nothing can be served, and what to do about it.
fn listening(error: &std::io::Error) -> Fail {
    let fail = Fail::new(format!("cannot listen at {error}"));
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            fail.next("another process serves there: end it, or choose another port or name")
        }
        std::io::ErrorKind::PermissionDenied => fail.next("choose an address and a port that you may use"),
        _ => fail,
    }
}
