//! The controllers that own a Service's Pods, by their owner references, and how they replace them.
//!
//! Of a `ReplicaSet` only the metadata is read: it says whether a Deployment owns it. Controllers of other kinds are not
//! known, and neither is how they replace Pods.

use std::collections::BTreeMap;

use headgate_budget::rollout::Rollout;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::core::PartialObjectMeta;
use kube::{Api, Client};

use super::cluster::list;

/// All controllers of a cluster.
pub(super) struct Controllers {
    pub(super) deployments: Vec<Deployment>,
    daemon_sets: Vec<DaemonSet>,
    stateful_sets: Vec<StatefulSet>,
    replica_sets: Vec<PartialObjectMeta<ReplicaSet>>,
}

/// What owns Pods of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Owner {
    kind: String,
    uid: String,
}

/// What owns the Pods of a Service, each with the number of its Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Owners(BTreeMap<Owner, u32>);

impl Owners {
    /// Of these Pods.
    pub(super) fn of<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Self {
        let mut owners = BTreeMap::new();
        for reference in pods.into_iter().filter_map(|pod| controller(&pod.metadata)) {
            let owner = Owner {
                kind: reference.kind.clone(),
                uid: reference.uid.clone(),
            };
            *owners.entry(owner).or_default() += 1;
        }
        Self(owners)
    }
}

/// The controller of an object, if it is one of Kubernetes' own.
fn controller(object: &ObjectMeta) -> Option<&OwnerReference> {
    let mut references = object.owner_references.iter().flatten();
    references.find(|reference| reference.controller == Some(true) && reference.api_version.starts_with("apps/"))
}

impl Controllers {
    /// Lists them.
    ///
    /// # Errors
    /// A text that says what cannot be listed.
    pub(super) async fn read(client: &Client) -> Result<Self, String> {
        let (deployments, daemon_sets, stateful_sets, replica_sets) = futures::try_join!(
            list(Api::all(client.clone()), ""),
            list(Api::all(client.clone()), ""),
            list(Api::all(client.clone()), ""),
            list(Api::all(client.clone()), ""),
        )?;
        Ok(Self {
            deployments,
            daemon_sets,
            stateful_sets,
            replica_sets,
        })
    }

    /// How these owners replace Pods: of several the one that has most of them away at once.
    pub(super) fn rollout(&self, owners: &Owners) -> Option<Rollout> {
        let known = owners.0.iter().filter_map(|(owner, pods)| self.of(owner, *pods));
        known.max_by_key(|rollout| (rollout.max_unavailable, rollout.max_surge))
    }

    fn of(&self, owner: &Owner, pods: u32) -> Option<Rollout> {
        let is = |object: &ObjectMeta| object.uid.as_ref() == Some(&owner.uid);
        match owner.kind.as_str() {
            "DaemonSet" => {
                let set = self.daemon_sets.iter().find(|set| is(&set.metadata))?;
                Some(Rollout::of_daemon_set(set, pods))
            }
            "StatefulSet" => {
                let set = self.stateful_sets.iter().find(|set| is(&set.metadata))?;
                Some(Rollout::of_stateful_set(set))
            }
            "ReplicaSet" => {
                let set = self.replica_sets.iter().find(|set| is(&set.metadata))?;
                self.of_replica_set(&set.metadata)
            }
            _ => None,
        }
    }

    /// That of its Deployment, or its own where nothing owns it.
    fn of_replica_set(&self, set: &ObjectMeta) -> Option<Rollout> {
        let mut references = set.owner_references.iter().flatten();
        if !references.any(|reference| reference.controller == Some(true)) {
            return Some(Rollout::of_replica_set(set.name.as_deref().unwrap_or_default()));
        }
        let owner = controller(set).filter(|owner| owner.kind == "Deployment")?;
        let mut deployments = self.deployments.iter();
        let deployment = deployments.find(|deployment| deployment.metadata.uid.as_ref() == Some(&owner.uid))?;
        Some(Rollout::of_deployment(deployment))
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn read<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn owned_by(kind: &str, name: &str, api: &str) -> Value {
        json!([{"apiVersion": api, "kind": kind, "name": name, "uid": format!("{kind}-{name}"), "controller": true}])
    }

    fn meta(kind: &str, name: &str, owners: &Value) -> Value {
        json!({"name": name, "uid": format!("{kind}-{name}"), "ownerReferences": owners})
    }

    fn controllers() -> Controllers {
        let set = |name: &str, owners: Value| read(json!({"metadata": meta("ReplicaSet", name, &owners)}));
        Controllers {
            deployments: vec![read(json!({"metadata": meta("Deployment", "web", &Value::Null),
                "spec": {"replicas": 8, "selector": {}, "template": {}}}))],
            daemon_sets: vec![read(json!({"metadata": meta("DaemonSet", "envoy", &Value::Null),
                "spec": {"selector": {}, "template": {}, "updateStrategy": {"rollingUpdate": {"maxUnavailable": "100%"}}}}))],
            stateful_sets: vec![read(json!({"metadata": meta("StatefulSet", "db", &Value::Null),
                "spec": {"replicas": 3, "serviceName": "db", "selector": {}, "template": {}}}))],
            replica_sets: vec![
                set("web-1", owned_by("Deployment", "web", "apps/v1")),
                set("bare", Value::Null),
                set("canary", owned_by("Rollout", "canary", "argoproj.io/v1alpha1")),
                set("orphan", owned_by("Deployment", "deleted", "apps/v1")),
            ],
        }
    }

    /// The rollout of a Service whose Pods these own.
    fn rollout(owners: &[(&str, &str)]) -> Option<(String, u32, u32)> {
        let pod = |(kind, name): &(&str, &str)| -> Pod {
            read(json!({"metadata": {"ownerReferences": owned_by(kind, name, "apps/v1")}}))
        };
        let pods: Vec<Pod> = owners.iter().map(pod).collect();
        let found = controllers().rollout(&Owners::of(&pods))?;
        Some((found.controller, found.max_unavailable, found.max_surge))
    }

    #[test]
    fn pods_are_replaced_as_their_controller_does_it() {
        let expected = |controller: &str, away: u32, surge: u32| Some((controller.to_owned(), away, surge));
        for (owner, found) in [
            (("ReplicaSet", "web-1"), expected("Deployment web", 2, 2)),
            (("ReplicaSet", "bare"), expected("ReplicaSet bare", 0, 0)),
            (("ReplicaSet", "canary"), None),
            (("ReplicaSet", "orphan"), None),
            (("ReplicaSet", "missing"), None),
            (("DaemonSet", "envoy"), expected("DaemonSet envoy", 1, 0)),
            (("StatefulSet", "db"), expected("StatefulSet db", 1, 0)),
            (("Job", "db"), None),
        ] {
            assert_eq!(rollout(&[owner]), found, "{owner:?}");
        }
        assert_eq!(rollout(&[]), None, "Pods without a controller");
    }

    #[test]
    fn of_several_controllers_the_one_with_most_pods_away_counts() {
        let pods = [("StatefulSet", "db"), ("ReplicaSet", "bare"), ("ReplicaSet", "web-1")];
        assert_eq!(rollout(&pods), Some(("Deployment web".to_owned(), 2, 2)));
        let envoys = [("DaemonSet", "envoy"); 3];
        assert_eq!(rollout(&envoys), Some(("DaemonSet envoy".to_owned(), 3, 0)), "its Pods");
    }

    #[test]
    fn only_controllers_of_kubernetes_count() {
        let owners = owned_by("StatefulSet", "db", "apps.kruise.io/v1beta1");
        let pod: Pod = read(json!({"metadata": {"ownerReferences": owners}}));
        assert_eq!(Owners::of([&pod]), Owners::default());
        let mut owners = owned_by("StatefulSet", "db", "apps/v1");
        owners[0]["controller"] = json!(false);
        let pod: Pod = read(json!({"metadata": {"ownerReferences": owners}}));
        assert_eq!(controllers().rollout(&Owners::of([&pod])), None, "no controller of it");
    }
}
