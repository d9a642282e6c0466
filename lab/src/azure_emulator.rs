//! `headgate-lab azure-emulator`: runs an ARM emulator until a signal stops it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use headgate::cli::{Failure, build_runtime, duration_up_to};
use headgate_azure_emulator::{ListenError, Options, Settings};
use headgate_sandbox::Interrupts;

/// Emulate the part of Azure Resource Manager that load balancers need, for tests and trials
///
/// Serves load balancers and other resources of Microsoft.Network and Microsoft.Compute that a seed file or
/// a client creates, with etags, long-running operations and throttling like Azure's; tokens for client
/// secrets, workload identity and managed identity; IMDS with Scheduled Events. Microsoft's own clients work
/// with it. The control address has faults, the clock of operations and a journal of every request under
/// /emulator/v1.
///
/// lab/azure-emulator/README.md has examples, and the evidence for each behaviour. The emulator keeps no files and
/// ends with SIGTERM or Ctrl-C. It has no access control: use it for tests only.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Address of ARM, token endpoints and IMDS over plain HTTP; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS", default_value_t = loopback(0))]
    listen: SocketAddr,

    /// Address of the same over TLS, with a certificate that is created at the start
    #[arg(long, value_name = "ADDRESS")]
    tls_listen: Option<SocketAddr>,

    /// File that gets the certificate of the authority that signed it, for clients to trust
    #[arg(long, value_name = "FILE", requires = "tls_listen")]
    tls_ca_file: Option<PathBuf>,

    /// Address of the control API
    #[arg(long, value_name = "ADDRESS", default_value_t = loopback(0))]
    control_listen: SocketAddr,

    /// File with the resources at the start, JSON or YAML: {"resources": [ARM documents, each with its id]}
    #[arg(long, value_name = "FILE")]
    seed: Option<PathBuf>,

    /// Time from an accepted write to the end of its operation, at most 24h
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1s",
        value_parser = duration_up_to(Settings::MAX_OPERATION_DELAY)
    )]
    operation_delay: Duration,

    /// Retry-After of a running operation; Azure's value is not recorded, 10 fits what was observed
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=Settings::MAX_POLL_RETRY_AFTER_SECONDS))]
    poll_retry_after: u64,

    /// Items on each page of a list
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    page_size: u16,

    /// File that gets the bound addresses: {"arm": "127.0.0.1:1", "armTls": "127.0.0.1:2", "control": "127.0.0.1:3"}
    #[arg(long, value_name = "FILE")]
    addresses_file: Option<PathBuf>,
}

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    headgate_core::telemetry::install_logs(headgate_core::telemetry::LogFormat::default());
    let options = Options {
        listen: arguments.listen,
        tls_listen: arguments.tls_listen,
        tls_ca_file: arguments.tls_ca_file.clone(),
        control_listen: arguments.control_listen,
        seed: arguments.seed.clone(),
        addresses_file: arguments.addresses_file.clone(),
        settings: Settings {
            operation_delay: arguments.operation_delay,
            poll_retry_after: arguments.poll_retry_after,
            page_size: arguments.page_size.into(),
            ..Settings::default()
        },
    };
    let outcome = build_runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen().map_err(ListenError::System)?;
        headgate_azure_emulator::run(options, interrupts.next()).await
    });
    outcome.map_err(|error| match error {
        error @ ListenError::Seed(_) => Failure::settings(error),
        error => Failure::runtime(error),
    })
}
