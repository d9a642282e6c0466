//! The control plane of a strategy, chosen when the drill runs.

use std::time::Duration;

use headgate_azure_emulator::Settings;
use headgate_sandbox::assets::Assets;
use serde_json::json;

use super::{DrillError, KubeProxyPart, NegativeControl, Options};
use crate::cluster::{Cluster, ClusterSettings, DeletionDelaySettings, KubeProxySettings, MaintenanceSettings};
use crate::control_plane::ControlPlane;
use crate::scenario::Scenario;
use crate::strategy::{HeadgatePart, Plan};

/// kube-proxy's default for the shortest time between two changes of its rules.
const MIN_SYNC_PERIOD: Duration = Duration::from_secs(1);
/// Between two looks of Cluster Autoscaler at the annotations that delay a deletion; the first comes as long after the drain.
const DELETION_DELAY_INTERVAL: Duration = Duration::from_secs(5);

impl ControlPlane {
    /// The control plane of a strategy: strategies without agents need none.
    pub(super) async fn start(options: &Options, plan: &Plan) -> Result<Self, DrillError> {
        let is_real = options.kube_proxy == KubeProxyPart::Real && plan.kube_proxy_may_be_real;
        if !plan.headgate.runs_agents() && !is_real {
            return Ok(Self::none(options.nodes));
        }
        let negative_control = options
            .negative_control
            .filter(|_| plan.headgate == HeadgatePart::AdminState);
        let mut arm_faults = options.arm_fault.clone();
        if negative_control == Some(NegativeControl::ArmRefuses) {
            arm_faults.push(json!({"match": {"method": "PUT"}, "action": {"answer": {"status": 403}}}));
        }
        let settings = ClusterSettings {
            program: options.program.clone(),
            assets: Assets::find(options.assets.as_deref())?,
            nodes: options.nodes,
            headgate: plan.headgate,
            polls_scheduled_events: options.scenario == Scenario::Spot,
            policy: plan.forwarding.policy,
            kube_proxy: is_real.then(|| KubeProxySettings {
                min_sync_period: options.speed().real(MIN_SYNC_PERIOD),
            }),
            maintenance: MaintenanceSettings {
                drain: options.speed().real(options.delete_delay),
            },
            deletion_delay: plan.holds_deletion.then(|| DeletionDelaySettings {
                interval: options.speed().real(DELETION_DELAY_INTERVAL),
                timeout: options.speed().real(options.node_deletion_delay_timeout),
            }),
            notice: options.speed().real(options.notice),
            probe: plan.probe,
            azure: Settings {
                poll_retry_after: whole_seconds(options.speed().real(options.poll_retry_after)),
                ..options.azure_settings.clone().unwrap_or_default()
            },
            pool_members: options.pool_members,
            deleted_machines: options.deleted_machines,
            other_writer: options.other_writer.map(|interval| options.speed().real(interval)),
            arm_faults,
            negative_control,
        };
        Ok(Self::Cluster(Box::new(Cluster::start(settings).await?)))
    }
}

/// HTTP has `Retry-After` in whole seconds, rounded up here.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_of_http_are_whole_and_never_too_few() {
        let seconds = |millis: u64| whole_seconds(Duration::from_millis(millis));
        assert_eq!([0, 1, 999, 1000, 1001, 10_000].map(seconds), [0, 1, 1, 1, 2, 10]);
    }
}
