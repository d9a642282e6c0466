//! Changes of the verdict: logged, and their times published for metrics and `/statusz`.

use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_core::telemetry::warn_if;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::sleep;

use super::verdict::VerdictInputs;

/// Time between two evaluations without a change of the inputs: kube-proxy's health can change by time alone.
const EVALUATION_INTERVAL: Duration = Duration::from_secs(1);

/// The time of each path's last change, or of its first evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastChange {
    /// The time for `/healthz`.
    pub healthz: Timestamp,
    /// The time for `/livez`.
    pub livez: Timestamp,
}

/// Logs and publishes each change of the verdict until a sender of the inputs is dropped.
pub async fn publish_verdict_changes(
    mut inputs: VerdictInputs,
    times: watch::Sender<Option<LastChange>>,
    clock: Clock,
) {
    let mut before: Option<(bool, bool)> = None;
    loop {
        let verdict = inputs.verdict(clock.now());
        let now = (verdict.is_healthz_ok(), verdict.is_livez_ok());
        if before != Some(now) {
            let at = verdict.at.wall;
            let signals = verdict.signals.join(", ");
            warn_if!(
                !now.1,
                healthz = now.0,
                livez = now.1,
                signals,
                source = verdict.source.as_str(),
                "health verdict changed"
            );
            times.send_modify(|time| {
                let last = time.get_or_insert(LastChange { healthz: at, livez: at });
                if before.is_some_and(|before| before.0 != now.0) {
                    last.healthz = at;
                }
                if before.is_some_and(|before| before.1 != now.1) {
                    last.livez = at;
                }
            });
            before = Some(now);
        }
        let is_running = tokio::select! {
            changed = inputs.node.changed() => changed.is_ok(),
            changed = inputs.proxy.changed() => changed.is_ok(),
            changed = inputs.notices.changed() => changed.is_ok(),
            () = sleep(EVALUATION_INTERVAL) => true,
        };
        if !is_running {
            // A sender was dropped, so the process stops.
            return;
        }
    }
}
