//! `headgate azure-emulator`: flags in, an ARM emulator on listeners, an exit code out.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use headgate_azure_emulator::{AdminStateNone, ListenError, Options, Settings};
use headgate_sandbox::Interrupts;
use tokio::runtime::Builder;

use super::{EXIT_RUNTIME, EXIT_SETTINGS, duration, fail};

/// Emulate the part of Azure Resource Manager that load balancers need, for tests and trials
///
/// Serves load balancers and whatever else of Microsoft.Network and Microsoft.Compute a seed file or its
/// clients put there, with etags, long-running operations and throttling as Azure has them; tokens for
/// client secrets, workload identity and managed identity; IMDS with Scheduled Events. Microsoft's own
/// clients work against it. Faults, the clock of operations and a journal of every request are at hand
/// under /emulator/v1 of the control address.
///
/// docs/azure-emulator.md has examples, and says of each behaviour how sure it is. It keeps no files and
/// ends with SIGTERM or Ctrl-C. Not for anything that matters: whoever reaches it may do everything.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Address of ARM, token endpoints and IMDS over plain HTTP; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value_t = loopback(0))]
    listen: SocketAddr,

    /// Address of the same over TLS, with a certificate made at the start
    #[arg(long, value_name = "ADDRESS")]
    tls_listen: Option<SocketAddr>,

    /// File for the certificate of the authority that signed it, which clients are to trust
    #[arg(long, value_name = "FILE", requires = "tls_listen")]
    tls_ca_file: Option<PathBuf>,

    /// Address of the control API
    #[arg(long, value_name = "ADDRESS", default_value_t = loopback(0))]
    control_listen: SocketAddr,

    /// File with what there is at the start, JSON or YAML: {"resources": [ARM documents, each with its id]}
    #[arg(long, value_name = "FILE")]
    seed: Option<PathBuf>,

    /// Time from an accepted write to the end of its operation
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = delay)]
    operation_delay: Duration,

    /// Retry-After of an operation in progress; what Azure sends is not recorded, 10 fits what was seen
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=Settings::MAX_POLL_RETRY_AFTER_SECONDS))]
    poll_retry_after: u64,

    /// Items on a page of a list
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    page_size: u16,

    /// How an admin state that was set back to None is shown; which one Azure does is not recorded
    #[arg(long, value_enum, default_value_t)]
    admin_state_none: AdminStateNone,

    /// File the bound addresses are written to: {"arm": "127.0.0.1:1", "armTls": "127.0.0.1:2", "control": "127.0.0.1:3"}
    #[arg(long, value_name = "FILE")]
    addresses_file: Option<PathBuf>,
}

fn delay(text: &str) -> Result<Duration, String> {
    let most = Settings::MAX_OPERATION_DELAY;
    Some(duration(text)?)
        .filter(|delay| *delay <= most)
        .ok_or_else(|| format!("give at most {}h", most.as_secs() / 3600))
}

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    headgate_telemetry::install_logs();
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
            admin_state_none: arguments.admin_state_none,
            ..Settings::default()
        },
    };
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(EXIT_RUNTIME, &anyhow::Error::new(error).context("starting the runtime")),
    };
    let ran = runtime.block_on(async {
        let mut interrupts = Interrupts::listen().map_err(ListenError::System)?;
        headgate_azure_emulator::run(options, interrupts.next()).await
    });
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ ListenError::Seed(_)) => fail(EXIT_SETTINGS, &error.into()),
        Err(error) => fail(EXIT_RUNTIME, &error.into()),
    }
}
