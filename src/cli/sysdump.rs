//! `headgate sysdump`.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use jiff::Timestamp;
use tokio::time::Instant;

use crate::sysdump::{Bundle, collect};

use super::cluster::{AgentArguments, ClusterArguments};
use super::{Failure, azure, block_on, duration_up_to, print};

/// The longest `--timeout`. The help has it, too.
const MAX_TIMEOUT: Duration = Duration::from_hours(1);

/// Collect in one archive what shows what headgate did: statuses, logs, events, Nodes, settings, versions, check
///
/// Reads no Secret, and cuts URLs, tokens and settings that may be secret; look through the archive before you give it away. Its
/// contents.txt lists what is missing. Needs the rights of headgate status, list on events, and get on pods/log and ConfigMaps.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The archive, which must not exist [default: headgate-sysdump-TIME.tar.gz in this directory]
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// How long all of it may take, at most 1h
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_TIMEOUT), default_value = "1m")]
    timeout: Duration,

    #[command(flatten)]
    cluster: ClusterArguments,

    #[command(flatten)]
    agents: AgentArguments,

    #[command(flatten)]
    azure: azure::AzureArguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let settings = arguments.azure.settings()?;
    let now = Timestamp::now();
    let name = format!("headgate-sysdump-{}", now.strftime("%Y%m%dT%H%M%SZ"));
    let bundle: Bundle = block_on(async {
        let client = arguments.cluster.client().await?;
        let (access, deadline) = (arguments.agents.access(), Instant::now() + arguments.timeout);
        Ok(Box::pin(collect(&client, &access, &settings, deadline, now)).await)
    })?;
    let path = arguments
        .file
        .clone()
        .unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
    let about = || format!("the archive {}", path.display());
    write(&bundle, &path, &name, now)
        .with_context(about)
        .map_err(Failure::runtime)?;
    let mut lines = vec![format!("{}: {} files", path.display(), bundle.files())];
    let missing = bundle.missing().iter();
    lines.extend(missing.map(|(what, why)| format!("missing: {what}: {why}")));
    let text = lines.join("\n") + "\n";
    print(headgate_core::telemetry::escape_lines(&text).as_bytes())
}

/// Writes a new file that others cannot read.
fn write(bundle: &Bundle, path: &Path, name: &str, now: Timestamp) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    bundle.write(io::BufWriter::new(file), name, now)
}
