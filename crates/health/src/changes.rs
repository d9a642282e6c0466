//! When the verdict changed: logged for operators, remembered for metrics and `/statusz`.

use std::time::Duration;

use headgate_clock::Clock;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::sleep;

use super::verdict::Inputs;

/// A verdict can change by time alone, when a pending update becomes late.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// When each path's answer last changed, or was first known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastChange {
    /// The change of `/healthz`.
    pub healthz: Timestamp,
    /// The change of `/livez`.
    pub livez: Timestamp,
}

/// Follows the inputs for ever, logs each change of verdict and publishes its time.
pub async fn follow(mut inputs: Inputs, times: watch::Sender<Option<LastChange>>, clock: Clock) {
    let mut before: Option<(bool, bool)> = None;
    loop {
        let verdict = inputs.verdict(clock.now());
        let now = (verdict.healthz(), verdict.livez());
        if before != Some(now) {
            let at = verdict.at.wall;
            let signals = verdict.signals.join(", ");
            tracing::info!(
                healthz = now.0,
                livez = now.1,
                signals,
                source = verdict.source.as_str(),
                "the verdict"
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
        let more = tokio::select! {
            changed = inputs.node.changed() => changed.is_ok(),
            changed = inputs.proxy.changed() => changed.is_ok(),
            changed = inputs.stopping.changed() => changed.is_ok(),
            changed = inputs.notices.changed() => changed.is_ok(),
            () = sleep(LOOK_INTERVAL) => true,
        };
        if !more {
            // A sender is gone: the process is stopping. The timer alone would spin for ever.
            return;
        }
    }
}
