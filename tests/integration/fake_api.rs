//! The behaviour of the Kubernetes API that headgate relies on: the same cases against the fake and against the real
//! kube-apiserver.

use std::pin::pin;
use std::time::Duration;

use futures::TryStreamExt as _;
use headgate_test_kubernetes::{FakeApi, control_plane, is_kubernetes_1_30};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent, WatchParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

/// Runs each case against both servers. The name of the case is the name of its objects.
macro_rules! on_both {
    ($($case:ident)*) => {
        mod on_the_fake {
            use super::*;

            $(#[tokio::test(start_paused = true)]
            async fn $case() {
                let fake = FakeApi::default();
                super::$case(fake.client().0, &stringify!($case).replace('_', "-")).await;
            })*
        }

        mod on_kube_apiserver {
            use super::*;

            $(#[tokio::test]
            async fn $case() {
                super::$case(control_plane().client(), &stringify!($case).replace('_', "-")).await;
            })*
        }
    };
}

mod evictions;
mod generations;
mod leases;
mod watches;

const NAMESPACE: &str = "kube-system";

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        other => panic!("{other}"),
    }
}

fn parse<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// The requests for one resource. Each returns the object, or the status code of the error.
struct Requests<K>(Api<K>);

impl<K> Requests<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    async fn create(&self, value: Value) -> Result<K, u16> {
        let created = self.0.create(&PostParams::default(), &parse(value)).await;
        created.map_err(|error| code(&error))
    }

    async fn replace(&self, object: &K) -> Result<K, u16> {
        let replaced = self.0.replace(&object.name_any(), &PostParams::default(), object).await;
        replaced.map_err(|error| code(&error))
    }

    async fn merge(&self, name: &str, value: Value) -> Result<K, u16> {
        let patched = self.0.patch(name, &PatchParams::default(), &Patch::Merge(value)).await;
        patched.map_err(|error| code(&error))
    }

    async fn json(&self, name: &str, value: Value) -> Result<K, u16> {
        let patch = Patch::<()>::Json(parse(value));
        let patched = self.0.patch(name, &PatchParams::default(), &patch).await;
        patched.map_err(|error| code(&error))
    }

    async fn delete(&self, name: &str, params: &DeleteParams) -> Result<(), u16> {
        let deleted = self.0.delete(name, params).await;
        deleted.map(drop).map_err(|error| code(&error))
    }

    /// The type and `resourceVersion` of the first `count` events of a watch from this version, or of all events if the
    /// watch ends before.
    async fn watched(&self, params: &WatchParams, version: &str, count: usize) -> Vec<(&'static str, String)> {
        let mut events = pin!(self.0.watch(params, version).await.unwrap());
        let mut seen = Vec::new();
        while seen.len() < count {
            let event = timeout(Duration::from_secs(10), events.try_next()).await;
            seen.push(match event.expect("an event arrives").unwrap() {
                Some(WatchEvent::Added(object)) => ("added", resource_version(&object)),
                Some(WatchEvent::Modified(object)) => ("modified", resource_version(&object)),
                Some(WatchEvent::Deleted(object)) => ("deleted", resource_version(&object)),
                Some(WatchEvent::Error(status)) => ("error", status.code.to_string()),
                Some(WatchEvent::Bookmark(_)) => continue,
                None => return seen,
            });
        }
        seen
    }
}

fn resource_version<K: Resource>(object: &K) -> String {
    object.resource_version().unwrap()
}

fn config_maps(client: Client) -> Requests<ConfigMap> {
    Requests(Api::namespaced(client, NAMESPACE))
}

fn config_map(name: &str, text: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"text": text}})
}

fn by_name(name: &str) -> WatchParams {
    WatchParams::default().fields(&format!("metadata.name={name}"))
}

async fn an_object_is_created_once(client: Client, name: &str) {
    let maps = config_maps(client);
    assert!(maps.0.get_opt(name).await.unwrap().is_none());
    let created = maps.create(config_map(name, "1")).await.unwrap();
    assert!(created.uid().is_some() && created.resource_version().is_some());
    assert!(created.creation_timestamp().is_some());
    assert_eq!(created.namespace().as_deref(), Some(NAMESPACE));
    assert_eq!(maps.create(config_map(name, "2")).await.unwrap_err(), 409);
    assert_eq!(maps.0.get(name).await.unwrap(), created);
}

async fn a_name_is_required_or_generated(client: Client, name: &str) {
    let maps = config_maps(client);
    assert_eq!(maps.create(json!({"data": {}})).await.unwrap_err(), 422);
    let generated = json!({"metadata": {"generateName": format!("{name}-")}});
    let [one, other] = [
        maps.create(generated.clone()).await.unwrap(),
        maps.create(generated).await.unwrap(),
    ];
    assert!(one.name_any().starts_with(&format!("{name}-")) && one.name_any() != other.name_any());
    let elsewhere = json!({"metadata": {"name": name, "namespace": "default"}});
    assert_eq!(maps.create(elsewhere).await.unwrap_err(), 400);
}

async fn a_replacement_has_the_current_version_or_none(client: Client, name: &str) {
    let maps = config_maps(client);
    let first = maps.create(config_map(name, "1")).await.unwrap();
    let mut second = first.clone();
    second.data = Some([("text".to_owned(), "2".to_owned())].into());
    let second = maps.replace(&second).await.unwrap();
    assert_ne!(resource_version(&second), resource_version(&first));
    assert_eq!(maps.replace(&first).await.unwrap_err(), 409, "an old version");
    let mut another = second.clone();
    another.meta_mut().uid = Some("00000000-0000-0000-0000-000000000000".to_owned());
    assert_eq!(maps.replace(&another).await.unwrap_err(), 409, "another object");
    let third = maps.replace(&parse(config_map(name, "3"))).await.unwrap();
    assert_eq!(third.uid(), first.uid());
    assert_eq!(third.data.unwrap()["text"], "3");
}

async fn a_missing_object_is_not_replaced(client: Client, name: &str) {
    let maps = config_maps(client.clone());
    assert_eq!(maps.replace(&parse(config_map(name, "1"))).await.unwrap_err(), 404);
    let gone = maps.create(config_map(name, "1")).await.unwrap();
    maps.delete(name, &DeleteParams::default()).await.unwrap();
    let expected = if is_kubernetes_1_30(&client).await { 409 } else { 404 };
    assert_eq!(maps.replace(&gone).await.unwrap_err(), expected);
}

async fn an_unchanged_object_gets_no_new_version(client: Client, name: &str) {
    let maps = config_maps(client);
    let created = maps.create(config_map(name, "1")).await.unwrap();
    let same = maps.replace(&created).await.unwrap();
    assert_eq!(resource_version(&same), resource_version(&created));
    let same = maps.merge(name, json!({"data": {"text": "1"}})).await.unwrap();
    assert_eq!(resource_version(&same), resource_version(&created));
}

async fn a_merge_patch_is_applied(client: Client, name: &str) {
    let maps = config_maps(client);
    assert_eq!(maps.merge(name, json!({"data": {"a": "1"}})).await.unwrap_err(), 404);
    let created = maps.create(config_map(name, "1")).await.unwrap();
    let patch = json!({"metadata": {"annotations": {"a": "b"}}, "data": {"text": null, "other": "2"}});
    let patched = maps.merge(name, patch).await.unwrap();
    assert_eq!(patched.annotations()["a"], "b");
    let data = json!(patched.data);
    assert_eq!(data, json!({"other": "2"}));
    let version = |version: String| json!({"metadata": {"resourceVersion": version}, "data": {"other": "3"}});
    let stale = version(resource_version(&created));
    assert_eq!(maps.merge(name, stale).await.unwrap_err(), 409);
    maps.merge(name, version(resource_version(&patched))).await.unwrap();
}

async fn a_json_patch_is_applied(client: Client, name: &str) {
    let maps = config_maps(client);
    let test = |version: &str| json!({"op": "test", "path": "/metadata/resourceVersion", "value": version});
    let add = |text: &str| json!({"op": "add", "path": "/data/more", "value": text});
    assert_eq!(maps.json(name, json!([add("1")])).await.unwrap_err(), 404);
    let created = maps.create(config_map(name, "1")).await.unwrap();
    let version = resource_version(&created);
    let patched = maps.json(name, json!([test(&version), add("1")])).await.unwrap();
    assert_eq!(json!(patched.data), json!({"text": "1", "more": "1"}));
    let stale = json!([test(&version), add("2")]);
    assert_eq!(
        maps.json(name, stale).await.unwrap_err(),
        422,
        "a test operation that fails"
    );
    let nothing = json!([{"op": "remove", "path": "/data/nothing"}]);
    assert_eq!(maps.json(name, nothing).await.unwrap_err(), 422, "a missing path");
    assert_eq!(maps.0.get(name).await.unwrap(), patched);
}

async fn a_deletion_may_require_a_version(client: Client, name: &str) {
    let maps = config_maps(client);
    let old = maps.create(config_map(name, "1")).await.unwrap();
    let new = maps.merge(name, json!({"data": {"text": "2"}})).await.unwrap();
    let preconditions = |map: &ConfigMap| {
        DeleteParams::default().preconditions(Preconditions {
            resource_version: map.resource_version(),
            uid: map.uid(),
        })
    };
    assert_eq!(maps.delete(name, &preconditions(&old)).await.unwrap_err(), 409);
    maps.delete(name, &preconditions(&new)).await.unwrap();
    assert_eq!(maps.delete(name, &preconditions(&new)).await.unwrap_err(), 404);
}

async fn a_finalizer_delays_the_deletion(client: Client, name: &str) {
    let maps = config_maps(client);
    let mut held = config_map(name, "1");
    held["metadata"]["finalizers"] = json!(["headgate.dev/test"]);
    let created = maps.create(held).await.unwrap();
    sleep(Duration::from_secs(2)).await;
    let younger = maps.create(config_map(&format!("{name}-2"), "1")).await.unwrap();
    maps.delete(name, &DeleteParams::default()).await.unwrap();
    let deleted = maps.0.get(name).await.unwrap().metadata;
    // In whole seconds, and of one clock.
    for time in [younger.creation_timestamp(), deleted.deletion_timestamp] {
        let age = time.unwrap().0.duration_since(created.creation_timestamp().unwrap().0);
        assert!(age.subsec_nanos() == 0 && (2..20).contains(&age.as_secs()), "{age}");
    }
    maps.merge(name, json!({"metadata": {"finalizers": null}}))
        .await
        .unwrap();
    assert!(maps.0.get_opt(name).await.unwrap().is_none());
    let seen = maps.watched(&by_name(name), &resource_version(&created), 2).await;
    assert_eq!([seen[0].0, seen[1].0], ["modified", "deleted"]);
}

async fn a_config_map_of_more_than_a_mebibyte_is_refused(client: Client, name: &str) {
    let maps = config_maps(client);
    let text = |bytes| "x".repeat(bytes);
    maps.create(config_map(name, &text(1024 * 1024))).await.unwrap();
    let larger = config_map(name, &text(1024 * 1024 + 1));
    assert_eq!(maps.replace(&parse(larger)).await.unwrap_err(), 422);
}

async fn string_data_of_a_secret_is_stored_as_data(client: Client, name: &str) {
    let secrets = Requests::<Secret>(Api::namespaced(client, NAMESPACE));
    let secret = json!({"metadata": {"name": name}, "stringData": {"a": "text"}, "data": {"b": "Ynl0ZXM="}});
    secrets.create(secret).await.unwrap();
    let kept = secrets.0.get(name).await.unwrap();
    assert!(kept.string_data.is_none());
    let data = kept.data.unwrap();
    assert_eq!((&*data["a"].0, &*data["b"].0), (&b"text"[..], &b"bytes"[..]));
}

async fn a_node_and_its_status_are_written_separately(client: Client, name: &str) {
    let nodes = Requests::<Node>(Api::all(client));
    let node = json!({"metadata": {"name": name}, "spec": {"unschedulable": true}, "status": {"nodeInfo": null}});
    let created = nodes.create(node).await.unwrap();
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z",
        "lastHeartbeatTime": "2026-01-02T03:04:05Z", "reason": "r", "message": "m"}]}, "spec": {"unschedulable": null}});
    let params = PatchParams::default();
    let patched = nodes.0.patch_status(name, &params, &Patch::Merge(ready)).await.unwrap();
    assert_eq!(
        patched.spec.as_ref().unwrap().unschedulable,
        Some(true),
        "only the status is written"
    );
    let conditions = |node: &Node| node.status.clone().unwrap().conditions.unwrap_or_default();
    assert_eq!(conditions(&patched).len(), 1);
    let mut other = patched.clone();
    other.status = created.status.clone();
    other.spec.get_or_insert_default().unschedulable = None;
    let replaced = nodes.replace(&other).await.unwrap();
    assert_eq!(conditions(&replaced).len(), 1, "the status is unchanged");
    assert_ne!(replaced.spec.unwrap_or_default().unschedulable, Some(true));
    nodes.delete(name, &DeleteParams::default()).await.unwrap();
    assert!(nodes.0.get_opt(name).await.unwrap().is_none());
}

async fn an_event_requires_its_fields(client: Client, name: &str) {
    let events = Requests::<Event>(Api::namespaced(client, "default"));
    let event = json!({"metadata": {"name": name}, "eventTime": "2026-01-02T03:04:05.000001Z", "action": "Test",
        "reason": "Tested", "type": "Normal", "note": "n", "reportingController": "headgate.dev/test", "reportingInstance": "i",
        "regarding": {"kind": "Node", "name": "n", "apiVersion": "v1"}});
    for (field, value) in [
        ("action", Value::Null),
        ("reason", Value::Null),
        ("type", json!("Other")),
        ("reportingController", Value::Null),
        ("reportingInstance", Value::Null),
    ] {
        let mut wrong = event.clone();
        wrong[field] = value;
        assert_eq!(events.create(wrong).await.err(), Some(422), "{field}");
    }
    let elsewhere = Requests::<Event>(Api::namespaced(events.0.clone().into_client(), "kube-public"));
    assert_eq!(
        elsewhere.create(event.clone()).await.err(),
        Some(422),
        "a Node's event elsewhere"
    );
    events.create(event).await.unwrap();
    let series = json!({"series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:06.000001Z"}});
    let patched = events.merge(name, series).await.unwrap();
    assert_eq!(patched.series.unwrap().count, 2);
}

on_both! {
    an_object_is_created_once
    a_name_is_required_or_generated
    a_replacement_has_the_current_version_or_none
    a_missing_object_is_not_replaced
    an_unchanged_object_gets_no_new_version
    a_merge_patch_is_applied
    a_json_patch_is_applied
    a_deletion_may_require_a_version
    a_finalizer_delays_the_deletion
    a_config_map_of_more_than_a_mebibyte_is_refused
    string_data_of_a_secret_is_stored_as_data
    a_node_and_its_status_are_written_separately
    an_event_requires_its_fields
}
