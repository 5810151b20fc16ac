//! `sprat echo`: the RPC server that measurements of echoes start.

use clap::Args;
use sprat::internals::transports::Options;
use sprat::rpc::{Call, ServerBuilder, Service};
use sprat::trace::TraceRing;
use sprat_bench::fail::Fail;
use sprat_bench::perf::echo::EchoService;
use sprat_bench::process::{self, StopSignals};

use super::serve::listening;

/// Run an RPC server that answers each request with the same bytes.
#[derive(Args, Debug)]
pub(crate) struct Echo {
    /// Locator to listen at; several with `;`.
    #[arg(short = 'L', long = "locators")]
    locators: String,
    /// Allow an address other than loopback.
    #[arg(long)]
    insecure_network: bool,
    /// Record tracepoints of requests.
    #[arg(long, alias = "marks")]
    tracepoints: bool,
    /// Answer with the number of requests executed so far instead.
    #[arg(long)]
    tally: bool,
}

/// Runs `sprat echo`.
pub(crate) fn run(args: &Echo) -> Result<(), Fail> {
    if !args.tally {
        return serve(args, EchoService);
    }
    let mut executed = 0_u64;
    serve(args, move |_: Call<'_>| {
        executed += 1;
        Some(executed.to_be_bytes().to_vec())
    })
}

fn serve(args: &Echo, service: impl Service) -> Result<(), Fail> {
    process::allow_files();
    let signals = StopSignals::catch()?;
    let trace = args.tracepoints.then(TraceRing::new);
    let options = Options::default().insecure_network(args.insecure_network).trace(trace);
    let server = ServerBuilder::default().options(options).listen(&[&args.locators], service);
    let mut server = server.map_err(|error| listening(&error))?;
    process::print_ready(&server.locators())?;
    let stop = server.stop();
    signals.then(move || stop.stop())?;
    server.run();
    Ok(())
}
