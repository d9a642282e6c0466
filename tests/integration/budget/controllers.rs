//! Controllers of Pods beside the real kube-apiserver, which defaults and validates how they replace Pods.

use std::collections::BTreeMap;

use headgate_sandbox::nodes;
use headgate_test_kubernetes::own_cluster;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::{advises, budget, create, create_pod, create_service, json_of, restricted};
use crate::harness::{objects, stdout_of};

/// A controller's specification for Pods of this application, on the host's network with a port there or not.
fn spec(app: &str, host_network: bool, more: &Value) -> Value {
    let ports = json!([{"containerPort": 8080, "hostPort": host_network.then_some(8080)}]);
    let mut spec = json!({"selector": {"matchLabels": {"app": app}}, "template": {"metadata": {"labels": {"app": app}},
        "spec": {"hostNetwork": host_network, "containers": [{"name": "c", "image": "none", "ports": ports}]}}});
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    spec
}

/// The owner references of what such an object controls.
fn owned_by(kind: &str, object: &impl kube::ResourceExt) -> Value {
    json!([{"apiVersion": "apps/v1", "kind": kind, "name": object.name_any(), "uid": object.uid().unwrap(),
        "controller": true}])
}

/// A Service of type `LoadBalancer` for each kind of controller, with its Pods. Returns whether the API server kept the
/// `maxUnavailable` of a `StatefulSet`.
async fn populate(client: &Client) -> bool {
    nodes::register(client, 3, "controllers").await.unwrap();
    create::<ServiceAccount>(client, json!({"metadata": {"name": "web"}})).await;
    let object = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
    let replicas = |count: u32| json!({"replicas": count});

    // maxUnavailable of a StatefulSet is beta, and off by default in Kubernetes 1.36: the API server drops the field then.
    let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "34%"}});
    let more = json!({"replicas": 3, "serviceName": "db", "updateStrategy": rolling});
    let db = create::<StatefulSet>(client, object("db", spec("db", false, &more))).await;
    let queue = create::<StatefulSet>(client, object("queue", spec("queue", false, &replicas(3)))).await;
    let bare = create::<ReplicaSet>(client, object("bare", spec("bare", false, &replicas(2)))).await;
    let web = create::<Deployment>(client, object("web", spec("web", false, &replicas(6)))).await;
    let mut revision = object("web-1", spec("web", false, &replicas(6)));
    revision["metadata"]["ownerReferences"] = owned_by("Deployment", &web);
    let revision = create::<ReplicaSet>(client, revision).await;
    let rolling = json!({"rollingUpdate": {"maxUnavailable": "10%"}});
    let more = json!({"updateStrategy": rolling});
    let proxy = create::<DaemonSet>(client, object("proxy", spec("proxy", true, &more))).await;
    let status = json!({"status": {"desiredNumberScheduled": 12, "currentNumberScheduled": 12, "numberMisscheduled": 0,
        "numberReady": 12}});
    let sets = Api::<DaemonSet>::namespaced(client.clone(), "default");
    objects::merge_status(&sets, "proxy", status).await;
    for (app, owners, host_network) in [
        ("db", owned_by("StatefulSet", &db), false),
        ("queue", owned_by("StatefulSet", &queue), false),
        ("bare", owned_by("ReplicaSet", &bare), false),
        ("web", owned_by("ReplicaSet", &revision), false),
        ("proxy", owned_by("DaemonSet", &proxy), true),
        ("single", json!([]), false),
    ] {
        create_service(client, app, "LoadBalancer", Some("Local"), json!({})).await;
        let pre_stop = json!({"sleep": {"seconds": 20}});
        for node in ["node-1", "node-2"] {
            create_pod(client, app, node, host_network, pre_stop.clone(), &owners).await;
        }
    }
    let strategy = db.spec.and_then(|spec| spec.update_strategy?.rolling_update);
    strategy.is_some_and(|rolling| rolling.max_unavailable.is_some())
}

#[tokio::test]
async fn each_kind_of_controller_has_its_way_to_replace_pods() {
    let (control_plane, client) = own_cluster().await;
    let is_kept = Box::pin(populate(&client)).await;
    let away = if is_kept { 2 } else { 1 };
    let kubeconfig = restricted(&control_plane, &client).await;

    let services = json_of(budget(&kubeconfig, &["-o", "json"]));
    let services: BTreeMap<_, _> = services
        .iter()
        .map(|service| (service["service"].as_str().unwrap(), service))
        .collect();
    let rollout = |controller: &str, away: u32, surge: u32| json!({"controller": controller, "maxUnavailable": away, "maxSurge": surge});
    for (service, expected) in [
        ("default/db", rollout("StatefulSet db", away, 0)),
        ("default/queue", rollout("StatefulSet queue", 1, 0)),
        ("default/bare", rollout("ReplicaSet bare", 0, 0)),
        ("default/web", rollout("Deployment web", 1, 2)),
        ("default/proxy", rollout("DaemonSet proxy", 2, 0)),
        ("default/single", Value::Null),
    ] {
        assert_eq!(services[service]["rollout"], expected, "{service}: {services:#?}");
    }
    for (service, words) in [
        ("default/bare", "ReplicaSet bare replaces no Pod by itself"),
        ("default/proxy", "DaemonSet proxy replaces up to 2 Pods at once"),
    ] {
        assert!(advises(services[service], words), "{words} in {}", services[service]);
    }
    let text = stdout_of(budget(&kubeconfig, &["--service", "default/db"]));
    let line = format!("StatefulSet db: maxUnavailable {away}, maxSurge 0.");
    assert!(text.contains(&line), "{text}");
}
