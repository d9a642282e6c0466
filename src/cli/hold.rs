//! `headgate hold`: keeps its pod until the node has left its load balancers, so that Karpenter does not terminate the instance before.
//!
//! Until SIGTERM the process does nothing and sends no request. Exit codes: 0 the instance need not be held any more, 1 the timeout is
//! over, and the node has not left its load balancers.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use headgate_agent::own_node::{HoldOutcome, hold_termination};
use headgate_core::clock::Clock;
use headgate_kubernetes::{EventKind, EventSink, api_server};
use kube::Client;

use super::agent::{kubeconfig, node_name};
use super::signals::Termination;
use super::{Failure, block_on, duration_up_to};

/// The longest `--timeout`. The help has it, too.
const MAX_TIMEOUT: Duration = Duration::from_hours(1);
const TIMED_OUT: EventKind = EventKind::warning("TerminationHoldTimedOut", "HoldTermination");

/// Keep this pod after SIGTERM until its node has left its load balancers, so that Karpenter waits with the instance
///
/// Karpenter terminates an instance once the pods on it that do not tolerate karpenter.sh/disrupted are gone. Run this
/// command in such a pod on each node (delayTermination.karpenter of the chart). It ends when the Node has the condition
/// headgate.dev/OutOfLoadBalancers=True and no condition that says that connections still pass through it, at once if nothing removes the
/// node, and after --timeout otherwise.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Name of the Node that this pod runs on
    #[arg(long, env = "NODE_NAME", value_name = "NAME", value_parser = node_name)]
    node_name: String,

    /// How long to go on after SIGTERM, at most 1h; less than the pod's terminationGracePeriodSeconds
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_TIMEOUT), default_value = "110s")]
    timeout: Duration,

    /// Kubeconfig file [default: the one in $KUBECONFIG, else the Pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    headgate_core::telemetry::install_logs(headgate_core::telemetry::LogFormat::default());
    block_on(async {
        let kubeconfig = kubeconfig(arguments.kubeconfig.as_ref()).map_err(Failure::settings)?;
        let config = api_server::load_config(kubeconfig.as_deref()).await;
        let config = config.map_err(Failure::settings)?;
        let client = api_server::build_lazy_client(&config, api_server::Program::Agent).map_err(Failure::settings)?;
        let mut terminate = Termination::new(&[]).map_err(Failure::runtime)?;
        tracing::info!(
            version = headgate_core::telemetry::VERSION,
            node = arguments.node_name,
            timeout = ?arguments.timeout,
            "waiting for SIGTERM"
        );
        terminate.received().await;
        tokio::select! {
            held = hold(client, arguments) => held.map_err(Failure::runtime),
            () = terminate.received() => Err(Failure::runtime(anyhow::anyhow!(
                "a second signal ended the process before the node had left its load balancers"
            ))),
        }
    })
}

/// Waits until the instance need not be held; fails, with an event on the Node, when the timeout is over.
async fn hold(client: Client, arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { node_name, timeout, .. } = arguments;
    tracing::info!(
        node = node_name,
        ?timeout,
        "SIGTERM received; Karpenter waits with the instance"
    );
    let (uid, waits_for) = match hold_termination(client.clone(), node_name, *timeout, Clock::System).await {
        HoldOutcome::Released(reason) => {
            tracing::info!(
                node = node_name,
                reason = reason.as_str(),
                "pod ends; Karpenter no longer waits with the instance"
            );
            return Ok(());
        }
        HoldOutcome::TimedOut { uid, waits_for } => (uid, waits_for),
    };
    let waits_for = waits_for.unwrap_or_else(|| "the Node is not known".to_owned());
    let text = format!(
        "headgate no longer holds the instance of the node after {} s, which has not left its load balancers with all its connections: \
         {waits_for}",
        timeout.as_secs()
    );
    let (events, _) = EventSink::new(client, node_name.clone());
    events.write(events.own_node(uid.as_deref()), TIMED_OUT, &*text).await;
    anyhow::bail!(text)
}
