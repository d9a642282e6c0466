//! A maintenance by headgate's own controllers: a `NodeMaintenance` instead of a taint, or the one that they create for a node
//! that Azure evicts; and the Pod that they evict.
//!
//! The drill plays kubelet: it deletes the Pod's object once its process has ended.

use std::time::Duration;

use headgate_maintenance::api::{LoadBalancerGate, NodeMaintenance, NodeMaintenanceSpec, Stage, definitions};
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::{Cluster, ClusterError, POLL_INTERVAL, answered};
use crate::azure;
use crate::strategy::HeadgatePart;

const NAMESPACE: &str = "default";
/// The names of the maintenance, the Pod and its account.
const NAME: &str = "drill";
const MANAGER: &str = "headgate-drill";
/// kubelet's grace period for the Pod; the drill ends the process itself.
const GRACE_SECONDS: i64 = 600;
/// Between two looks at the Pod that is to be evicted.
const EVICTION_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Beyond the drain time, how long the controllers may take until they evict the Pod, or to undo a maintenance.
const CONTROLLERS_TIMEOUT: Duration = Duration::from_mins(2);

/// How headgate's controllers drain a node.
#[derive(Clone, Copy, Debug)]
pub struct MaintenanceSettings {
    /// From the load balancer's confirmation to the eviction of the Pod, really; rounded up to whole seconds.
    pub drain: Duration,
}

impl MaintenanceSettings {
    fn drain_seconds(&self) -> i32 {
        #[expect(clippy::cast_possible_truncation, reason = "an option of an hour at most")]
        let seconds = self.drain.as_secs_f64().ceil() as i32;
        seconds
    }
}

impl Cluster {
    /// Creates the kinds and the Pod.
    pub(super) async fn prepare_maintenance(&self) -> Result<(), ClusterError> {
        if !self.runs_maintenance() {
            return Ok(());
        }
        let kinds = Api::<CustomResourceDefinition>::all(self.client.clone());
        for kind in definitions() {
            let name = kind.name_any();
            let (parameters, patch) = (PatchParams::apply(MANAGER).force(), Patch::Apply(&kind));
            let applied = kinds.patch(&name, &parameters, &patch);
            answered(format!("create CustomResourceDefinition {name}"), applied).await?;
        }
        let maintenances = Api::<NodeMaintenance>::all(self.client.clone());
        let served = async {
            while maintenances.list(&ListParams::default()).await.is_err() {
                sleep(POLL_INTERVAL).await;
            }
        };
        self.within("the API server serves NodeMaintenances", served).await?;
        self.create_pod().await
    }

    /// Asks for the node's maintenance.
    pub(super) async fn begin_maintenance(&self, node: usize) -> Result<(), ClusterError> {
        if !self.runs_maintenance() {
            return Ok(());
        }
        let is_the_node = NodeSelectorRequirement {
            key: "metadata.name".to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![azure::name(node)]),
        };
        let spec = NodeMaintenanceSpec {
            node_selector: NodeSelector {
                node_selector_terms: vec![NodeSelectorTerm {
                    match_fields: Some(vec![is_the_node]),
                    match_expressions: None,
                }],
            },
            stage: Stage::Drain,
            reason: "drill".to_owned(),
            load_balancer: LoadBalancerGate {
                connections_drain_seconds: self.settings.maintenance.drain_seconds(),
                ..LoadBalancerGate::default()
            },
            ..NodeMaintenanceSpec::default()
        };
        let maintenances = Api::<NodeMaintenance>::all(self.client.clone());
        let (parameters, maintenance) = (PatchParams::apply(MANAGER), NodeMaintenance::new(NAME, spec));
        let patch = Patch::Apply(&maintenance);
        let applied = maintenances.patch(NAME, &parameters, &patch);
        answered(format!("create NodeMaintenance {NAME}"), applied)
            .await
            .map(drop)
    }

    /// Returns once the controllers have evicted the Pod, and how long it may take to end.
    pub(super) async fn wait_until_evicted(&self) -> Result<Option<Duration>, ClusterError> {
        let pods = self.pods();
        let evicted = async {
            loop {
                match pods.get_opt(NAME).await {
                    Ok(Some(pod)) if pod.metadata.deletion_timestamp.is_none() => {}
                    Ok(Some(pod)) => return pod.metadata.deletion_grace_period_seconds,
                    Ok(None) => return None,
                    // The API server is asked again.
                    Err(_) => {}
                }
                sleep(EVICTION_POLL_INTERVAL).await;
            }
        };
        let grace = self.within("headgate's controllers evict the Pod", evicted).await?;
        Ok(grace.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or_default())))
    }

    /// What kubelet does once the Pod's process has ended.
    pub(super) async fn remove_pod(&self) -> Result<(), ClusterError> {
        if !self.runs_maintenance() {
            return Ok(());
        }
        let pods = self.pods();
        let now = DeleteParams::default().grace_period(0);
        match answered(format!("delete Pod {NAME}"), pods.delete(NAME, &now)).await {
            Err(ClusterError::Api { source, .. }) if is_not_found(&source) => Ok(()),
            deleted => deleted.map(drop),
        }
    }

    /// Ends the maintenance, and waits until the controllers have undone it. One of their own ends with its signal.
    pub(super) async fn end_maintenance(&self) -> Result<(), ClusterError> {
        if !self.runs_maintenance() {
            return Ok(());
        }
        let maintenances = Api::<NodeMaintenance>::all(self.client.clone());
        let parameters = DeleteParams::default();
        match answered(
            format!("delete NodeMaintenance {NAME}"),
            maintenances.delete(NAME, &parameters),
        )
        .await
        {
            Err(ClusterError::Api { source, .. }) if is_not_found(&source) => {}
            deleted => drop(deleted?),
        }
        let undone = async {
            while !matches!(maintenances.get_opt(NAME).await, Ok(None)) {
                sleep(POLL_INTERVAL).await;
            }
        };
        self.within("headgate's controllers undo the maintenance", undone).await
    }

    /// Brings the Pod back once there is no maintenance that would evict it.
    pub(super) async fn restore_pod(&self) -> Result<(), ClusterError> {
        if !self.runs_maintenance() {
            return Ok(());
        }
        let maintenances = Api::<NodeMaintenance>::all(self.client.clone());
        let ended = async {
            while !matches!(maintenances.list(&ListParams::default()).await, Ok(list) if list.items.is_empty()) {
                sleep(POLL_INTERVAL).await;
            }
        };
        self.within("headgate's controllers end their maintenances", ended)
            .await?;
        self.remove_pod().await?;
        self.create_pod().await
    }

    async fn create_pod(&self) -> Result<(), ClusterError> {
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), NAMESPACE);
        let parameters = PatchParams::apply(MANAGER).force();
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME}});
        let account = Patch::Apply(account);
        let applied = accounts.patch(NAME, &parameters, &account);
        answered(format!("create ServiceAccount {NAME}"), applied).await?;
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME}, "spec": {
            "nodeName": azure::name(0), "serviceAccountName": NAME, "terminationGracePeriodSeconds": GRACE_SECONDS,
            "containers": [{"name": "server", "image": "none"}]}});
        let (pods, pod) = (self.pods(), Patch::Apply(pod));
        let applied = pods.patch(NAME, &parameters, &pod);
        answered(format!("create Pod {NAME}"), applied).await.map(drop)
    }

    fn runs_maintenance(&self) -> bool {
        self.settings.headgate == HeadgatePart::MaintenanceControllers
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn within<T>(&self, what: &'static str, waiting: impl Future<Output = T>) -> Result<T, ClusterError> {
        let bound = CONTROLLERS_TIMEOUT + self.settings.maintenance.drain;
        timeout(bound, waiting).await.map_err(|_| ClusterError::NotYet {
            what,
            waited: bound,
            logs: self.logs.clone(),
        })
    }
}

fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_not_found())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drain_time_is_rounded_up() {
        let seconds = |millis| {
            let drain = Duration::from_millis(millis);
            MaintenanceSettings { drain }.drain_seconds()
        };
        assert_eq!([0, 1, 3000, 3001].map(seconds), [0, 1, 3, 4]);
    }
}
