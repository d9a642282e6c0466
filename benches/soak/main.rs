//! A long run of one agent with every probe counted: 200 probes a second, half of them on new
//! connections, a taint that is added and removed every few seconds, an outage of the API server every few
//! minutes, and a scrape every few seconds.
//!
//! At the end the agent's counters equal the probes that were sent, memory and open files have not
//! grown, each verdict matched the taint, and no task was restarted. `make soak` runs it for
//! `SOAK_SECONDS`, by default one hour; it is not part of `cargo bench` or `cargo test`. The summary
//! goes to `target/headgate-bench/soak.json`.

#[path = "../measuring/conditions.rs"]
mod conditions;
#[path = "../measuring/output.rs"]
mod output;
#[path = "../measuring/soaking.rs"]
mod soaking;

mod expected_answer;
mod http;
mod probes;
mod scenario;
mod summary;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use headgate_sandbox::agents::AgentConfig;
use headgate_sandbox::assets::Assets;
use headgate_sandbox::control_plane::ControlPlane;
use headgate_sandbox::nodes;
use kube::Client;
use tokio::sync::watch;

use expected_answer::ExpectedAnswer;
use output::say;
use probes::ProbeCounts;
use summary::Summary;

/// Minimum duration: a shorter run shows nothing about memory and has no outage.
const LEAST_SECONDS: u64 = 60;

fn main() -> ExitCode {
    soaking::main(LEAST_SECONDS, run)
}

fn run(length: Duration) -> anyhow::Result<bool> {
    // Child processes end with the thread that starts them, so this thread starts all of them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let directory = tempfile::Builder::new().prefix("headgate-soak-").tempdir()?;
    let summary = runtime.block_on(soak(length, directory.path()))?;
    soaking::report(&summary, "soak.json")?;
    if !summary.course.good() {
        say(&format!("the logs are kept in {}", directory.keep().display()));
        return Ok(false);
    }
    Ok(true)
}

async fn soak(length: Duration, directory: &Path) -> anyhow::Result<Summary> {
    let mut control_plane = ControlPlane::start(Assets::find(None)?, directory).await?;
    let client = Client::try_from(control_plane.client_config())?;
    let (nodes, _) = nodes::register(&client, 1, "soak").await?;
    let node = nodes.into_iter().next().context("the Node")?.name;
    let config = AgentConfig {
        program: env!("CARGO_BIN_EXE_headgate").into(),
        node: node.clone(),
        kubeconfig: control_plane.kubeconfig().to_owned(),
        directory: directory.join("agent"),
        log: directory.join("headgate.log"),
        settings:
            "apiVersion: config.headgate.dev/v1alpha1\nkind: HeadgateConfiguration\nkubeProxyHealthzUrl: Disabled\n"
                .to_owned(),
        healthz: (Ipv4Addr::LOCALHOST, 0).into(),
        arguments: Vec::new(),
        environment: Vec::new(),
    };
    let mut agent = config.start().await?;
    let addresses = agent.addresses;
    let tasks = soaking::tasks(addresses.metrics).await?;
    say(&format!(
        "an agent answers at {} for {} s",
        addresses.healthz,
        length.as_secs()
    ));

    let (stop, stopped) = watch::channel(false);
    let expected_answer = Arc::new(ExpectedAnswer::default());
    let counts = Arc::new(ProbeCounts::new(Arc::clone(&expected_answer)));
    let probes = probes::start(addresses.healthz, &counts, &stopped);
    let scrape = move || metrics(addresses.metrics);
    let samples = tokio::spawn(soaking::sample(length, stopped.clone(), scrape, |metrics, series| {
        summary::value(metrics, series).unwrap_or_default()
    }));
    let result = tokio::select! {
        result = scenario::run(&mut control_plane, client, &node, length, &expected_answer, &counts) => result?,
        end = agent.process.wait_for_exit() => return Err(end.into()),
    };
    stop.send_replace(true);
    probes.join_all().await;
    let samples = samples.await?;
    let metrics = metrics(addresses.metrics).await?;
    let end = soaking::tasks(addresses.metrics).await?;
    let summary = Summary::new(length, &counts, &result, samples, &metrics, &[tasks, end]);
    agent.process.stop(Duration::from_secs(20)).await;
    control_plane.stop().await;
    Ok(summary)
}

async fn metrics(address: SocketAddr) -> anyhow::Result<String> {
    let (code, metrics) = http::get(address, "/metrics").await?;
    ensure!(code == 200, "it was answered {code}");
    Ok(metrics)
}
