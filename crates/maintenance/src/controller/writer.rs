//! One write to the API server: the permit, the time limit, and what its answer means.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_kubernetes::Decoded;
use headgate_kubernetes::leader::{PermitError, Term};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Status;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::events::MaintenanceEvents;
use super::grace_periods::GracePeriodCut;
use super::metrics::{Metrics, Outcome};
use crate::api::{Evacuation, EvacuationStatus};
use crate::evacuation::eviction::{EvictionFailure, EvictionOutcome, classify};
use crate::snapshot::PodFacts;

/// The longest message in the status of an Evacuation, and in a condition of it, as its definition has them.
const MAX_MESSAGE_BYTES: usize = 4000;
const MAX_CONDITION_MESSAGE_BYTES: usize = 32_768;
/// Limit of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a write did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WriteError {
    /// The object is not the one that was read. The next turn reads it again.
    #[error("the object has changed since it was read")]
    Conflict,
    /// The object does not exist.
    #[error("the object does not exist")]
    Gone,
    /// The API server refused.
    #[error("the API server refused: {0}")]
    Refused(String),
    /// Nothing may be sent now.
    #[error(transparent)]
    NotPermitted(#[from] PermitError),
    /// No answer, or one that cannot be used.
    #[error("{0}")]
    Failed(String),
}

impl WriteError {
    fn of(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(status),
            error => Self::Failed(headgate_core::telemetry::error_chain(error)),
        }
    }

    fn of_status(status: &Status) -> Self {
        match status.code {
            404 => Self::Gone,
            409 => Self::Conflict,
            401 | 403 | 422 => Self::Refused(status.message.clone()),
            code => Self::Failed(format!("{code}: {}", status.message)),
        }
    }

    /// The label of the metric.
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Self::Conflict | Self::Gone => Outcome::Conflict,
            Self::Refused(_) => Outcome::Refused,
            Self::NotPermitted(_) => Outcome::NotPermitted,
            Self::Failed(_) => Outcome::Failed,
        }
    }
}

/// Sends writes in a term.
#[derive(Clone)]
pub(super) struct Writer {
    pub(super) client: Client,
    pub(super) term: Term,
    pub(super) metrics: Metrics,
    /// Where events are queued.
    pub(super) events: MaintenanceEvents,
    pub(super) clock: Clock,
}

impl Writer {
    /// Sends a write with a permit, and counts its outcome.
    pub(super) async fn send<T>(&self, request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, WriteError> {
        let outcome = self.read(request).await;
        let label = outcome.as_ref().map_or_else(WriteError::outcome, |_| Outcome::Done);
        self.metrics.count_write(label);
        outcome
    }

    /// Sends a request that is part of a write, such as the read before it.
    pub(super) async fn read<T>(&self, request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, WriteError> {
        drop(self.term.permit()?);
        match timeout(REQUEST_TIMEOUT, request).await {
            Ok(answer) => answer.map_err(|error| WriteError::of(&error)),
            Err(_) => Err(WriteError::Failed(format!(
                "no answer within {} s",
                REQUEST_TIMEOUT.as_secs()
            ))),
        }
    }

    pub(super) fn evacuations(&self, namespace: &str) -> Api<Decoded<Evacuation>> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Replaces the status of an Evacuation that has not changed since it was read.
    pub(super) async fn write_evacuation_status(
        &self,
        evacuation: &Evacuation,
        status: EvacuationStatus,
    ) -> Result<Evacuation, WriteError> {
        let (namespace, name) = (evacuation.namespace().unwrap_or_default(), evacuation.name_any());
        let mut changed = evacuation.clone();
        changed.status = Some(bounded(status));
        let api = self.evacuations(&namespace);
        let (params, changed) = (PostParams::default(), Decoded::Object(changed));
        let write = async { api.replace_status(&name, &params, &changed).await?.into_object() };
        self.send(write).await
    }

    /// Merges a change into an Evacuation that has not changed since it was read.
    pub(super) async fn patch_evacuation(
        &self,
        evacuation: &Evacuation,
        mut change: Value,
    ) -> Result<Evacuation, WriteError> {
        let (namespace, name) = (evacuation.namespace().unwrap_or_default(), evacuation.name_any());
        change["metadata"]["resourceVersion"] = json!(evacuation.resource_version());
        change["metadata"]["uid"] = json!(evacuation.uid());
        let api = self.evacuations(&namespace);
        let (params, patch) = (PatchParams::default(), Patch::Merge(&change));
        let write = async { api.patch(&name, &params, &patch).await?.into_object() };
        self.send(write).await
    }

    /// Replaces the finalizers of an Evacuation that has not changed since it was read.
    pub(super) async fn set_evacuation_finalizers(
        &self,
        evacuation: &Evacuation,
        finalizers: &[String],
    ) -> Result<(), WriteError> {
        let change = json!({"metadata": {"finalizers": finalizers}});
        self.patch_evacuation(evacuation, change).await.map(drop)
    }

    /// Deletes an Evacuation where it is not being deleted, and removes these finalizers from it. It has not changed since it
    /// was read, so no instigator that came later loses it.
    pub(super) async fn delete_evacuation(
        &self,
        evacuation: &Evacuation,
        remove_finalizers: &[String],
    ) -> Result<(), WriteError> {
        let mut present = evacuation.clone();
        if evacuation.metadata.deletion_timestamp.is_none() {
            let params = DeleteParams::default().preconditions(Preconditions {
                uid: evacuation.uid(),
                resource_version: evacuation.resource_version(),
            });
            let api = self.evacuations(&evacuation.namespace().unwrap_or_default());
            // It stays while it has finalizers.
            match self.send(api.delete(&evacuation.name_any(), &params)).await?.left() {
                Some(Decoded::Object(deleted)) => present = deleted,
                // What is left of it is written once it can be read.
                Some(Decoded::Undecodable(_)) | None => return Ok(()),
            }
        }
        let removed: BTreeSet<_> = remove_finalizers.iter().collect();
        let has = present.finalizers();
        let left: Vec<_> = has
            .iter()
            .filter(|finalizer| !removed.contains(finalizer))
            .cloned()
            .collect();
        if left.len() == has.len() {
            return Ok(());
        }
        match self.set_evacuation_finalizers(&present, &left).await {
            // With its last finalizer it is gone.
            Ok(()) | Err(WriteError::Gone) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Evicts one pod and no other of its name.
    pub(super) async fn evict(
        &self,
        pod: &PodFacts,
        cut: Option<GracePeriodCut>,
    ) -> Result<EvictionOutcome, PermitError> {
        let (namespace, name, uid) = (&pod.namespace, &pod.name, &pod.uid);
        let mut eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}}});
        if let Some(cut) = cut {
            eviction["deleteOptions"]["gracePeriodSeconds"] = json!(cut.seconds);
        }
        let pods = Api::<Decoded<Pod>>::namespaced(self.client.clone(), namespace);
        // `Api::evict` sends `delete_options`, which the API server ignores, and with it the UID.
        let params = PostParams::default();
        let request = pods.create_subresource::<_, Value>("eviction", name, &params, &eviction);
        drop(self.term.permit()?);
        let failed = |message| EvictionOutcome::Failed {
            reason: EvictionFailure::Other,
            message,
        };
        let outcome = match timeout(REQUEST_TIMEOUT, request).await {
            Ok(Ok(_)) => EvictionOutcome::Accepted,
            Ok(Err(kube::Error::Api(status))) => {
                let details = status.details.as_ref();
                let causes: Vec<_> = details
                    .into_iter()
                    .flat_map(|details| details.causes.iter().map(|cause| cause.reason.as_str()))
                    .collect();
                classify(status.code, &causes, &status.message)
            }
            Ok(Err(error)) => failed(headgate_core::telemetry::error_chain(&error)),
            Err(_) => failed(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs())),
        };
        self.metrics.count_eviction(&outcome);
        Ok(outcome)
    }

    /// Deletes one pod and no other of its name.
    pub(super) async fn delete_pod(&self, pod: &PodFacts, cut: Option<GracePeriodCut>) -> Result<(), WriteError> {
        let (namespace, name) = (&pod.namespace, &pod.name);
        let mut params = DeleteParams::default().preconditions(Preconditions {
            uid: Some(pod.uid.clone()),
            resource_version: None,
        });
        params.grace_period_seconds = cut.map(|cut| cut.seconds);
        let pods = Api::<Decoded<Pod>>::namespaced(self.client.clone(), namespace);
        match self.send(pods.delete(name, &params)).await {
            Ok(_) | Err(WriteError::Gone) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Cuts the messages of a status to their bound. An answer of the API server may be longer.
fn bounded(mut status: EvacuationStatus) -> EvacuationStatus {
    let of_conditions = status.conditions.iter_mut().map(|condition| &mut condition.message);
    let of_conditions = of_conditions.map(|message| (message, MAX_CONDITION_MESSAGE_BYTES));
    for (message, limit) in of_conditions.chain([(&mut status.message, MAX_MESSAGE_BYTES)]) {
        message.truncate(message.floor_char_boundary(limit));
    }
    status
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

    use super::*;

    #[test]
    fn messages_are_cut_to_their_bound() {
        let condition = |message: &str| Condition {
            type_: "EvictionFailed".to_owned(),
            status: "True".to_owned(),
            reason: "Forbidden".to_owned(),
            message: message.to_owned(),
            observed_generation: None,
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
        };
        for (cut, limit) in [(0, 4000), (1, 32_768)] {
            let fits = "é".repeat(limit / 2);
            for (message, expected) in [
                ("", ""),
                (&fits, &fits),
                (&format!("{fits}a"), &fits),
                (&format!("a{fits}"), &format!("a{}", &fits[2..])),
            ] {
                let status = bounded(EvacuationStatus {
                    message: message.to_owned(),
                    conditions: vec![condition(message)],
                    ..EvacuationStatus::default()
                });
                let found = [status.message.as_str(), &status.conditions[0].message];
                assert_eq!(found[cut], expected, "{limit}");
            }
        }
    }

    #[test]
    fn each_answer_has_a_meaning() {
        for (code, message, expected) in [
            (404, "not found", WriteError::Gone),
            (409, "the object has been modified", WriteError::Conflict),
            (
                422,
                "spec is invalid",
                WriteError::Refused("spec is invalid".to_owned()),
            ),
            (403, "forbidden", WriteError::Refused("forbidden".to_owned())),
            (500, "etcd", WriteError::Failed("500: etcd".to_owned())),
        ] {
            let status = Status::failure(message, "").with_code(code);
            assert_eq!(WriteError::of_status(&status), expected, "{code} {message}");
        }
    }
}
