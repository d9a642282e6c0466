//! What owns a pod, read on demand: its ReplicaSet and Deployment; the restart of the one that was read.

use headgate_kubernetes::{Decoded, split_list};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::api::names::{RESTARTED_AT_ANNOTATION, RESTARTED_FOR_ANNOTATION};
use crate::controller::writer::{WriteError, Writer};
use crate::rollout::facts::{AutoscalerFacts, DeploymentFacts, ReplicaSetFacts, successor_problem};
use crate::rollout::record::Record;
use crate::snapshot::PodFacts;

/// Objects that a list reads at most.
const LIST_LIMIT: u32 = 500;
/// Pods of a Deployment among which a successor is looked for.
const POD_LIMIT: u32 = 50;

/// The owners of a pod.
pub(super) struct Workload {
    namespace: String,
    /// `None` if it is gone.
    pub(super) replica_set: Option<ReplicaSetFacts>,
    /// `None` if it is gone, or if the ReplicaSet has none.
    pub(super) deployment: Option<DeploymentFacts>,
    /// The labels by which the Deployment selects its pods.
    selector: String,
}

impl Workload {
    /// Reads what owns a pod. Reads nothing where that is no ReplicaSet.
    pub(super) async fn read(writer: &Writer, pod: &PodFacts) -> Result<Self, WriteError> {
        let mut workload = Self {
            namespace: pod.namespace.clone(),
            replica_set: None,
            deployment: None,
            selector: String::new(),
        };
        let Some(owner) = pod.owner.as_ref().filter(|owner| owner.is_apps("ReplicaSet")) else {
            return Ok(workload);
        };
        let Some(object) = get::<ReplicaSet>(writer, &pod.namespace, &owner.name).await? else {
            return Ok(workload);
        };
        let replica_set = ReplicaSetFacts::from(&object);
        let of = replica_set.owner.clone().filter(|owner| owner.is_apps("Deployment"));
        workload.replica_set = Some(replica_set);
        if let Some(of) = of
            && let Some(object) = get::<Deployment>(writer, &pod.namespace, &of.name).await?
        {
            workload.deployment = Some(DeploymentFacts::from(&object));
            let selector = object.spec.unwrap_or_default().selector;
            let labels = selector.match_labels.unwrap_or_default();
            let labels: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            workload.selector = labels.join(",");
        }
        Ok(workload)
    }

    /// The autoscalers of the Deployment.
    pub(super) async fn autoscalers(&self, writer: &Writer) -> Result<Vec<AutoscalerFacts>, WriteError> {
        let Some(deployment) = &self.deployment else {
            return Ok(Vec::new());
        };
        let api = Api::<Decoded<HorizontalPodAutoscaler>>::namespaced(writer.client.clone(), &self.namespace);
        let listed = writer.read(api.list(&ListParams::default().limit(LIST_LIMIT))).await?;
        let (all, _) = split_list(listed);
        Ok(all
            .iter()
            .filter_map(|one| AutoscalerFacts::of_deployment(one, &deployment.name))
            .collect())
    }

    /// Why a pod of another ReplicaSet of the Deployment is not Ready, in words.
    pub(super) async fn successor_problem(&self, writer: &Writer) -> Result<Option<String>, WriteError> {
        let (Some(replica_set), false) = (&self.replica_set, self.selector.is_empty()) else {
            return Ok(None);
        };
        let api = Api::<Decoded<Pod>>::namespaced(writer.client.clone(), &self.namespace);
        let params = ListParams::default().labels(&self.selector).limit(POD_LIMIT);
        let (pods, _) = split_list(writer.read(api.list(&params)).await?);
        Ok(pods.iter().find_map(|pod| successor_problem(pod, &replica_set.uid)))
    }

    /// Restarts the rollout as `kubectl rollout restart` does, with the record of it, if the Deployment is as it was read.
    pub(super) async fn restart(&self, writer: &Writer, record: &Record, now: Timestamp) -> Result<(), WriteError> {
        let Some(deployment) = &self.deployment else {
            return Err(WriteError::Gone);
        };
        let annotations = json!({RESTARTED_AT_ANNOTATION: now.to_string(),
            RESTARTED_FOR_ANNOTATION: record.to_annotation()});
        let change = json!({
            "metadata": {"uid": deployment.uid, "resourceVersion": deployment.resource_version},
            "spec": {"template": {"metadata": {"annotations": annotations}}},
        });
        let api = Api::<Decoded<Deployment>>::namespaced(writer.client.clone(), &self.namespace);
        let (params, patch) = (PatchParams::default(), Patch::Merge(&change));
        writer
            .send(api.patch(&deployment.name, &params, &patch))
            .await
            .map(drop)
    }
}

async fn get<K>(writer: &Writer, namespace: &str, name: &str) -> Result<Option<K>, WriteError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Default
        + DeserializeOwned,
{
    let api = Api::<Decoded<K>>::namespaced(writer.client.clone(), namespace);
    let read = async { api.get_opt(name).await?.map(Decoded::into_object).transpose() };
    writer.read(read).await
}
