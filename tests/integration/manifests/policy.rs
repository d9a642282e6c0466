//! The policy `headgate-nodes` with a role that grants every verb on Nodes: what it allows and
//! what it rejects, for each account.

use headgate_kubernetes::{Canary, missing_policies};
use headgate_sandbox::control_plane::ControlPlane;
use headgate_test_kubernetes::{eventually, is_kubernetes_1_30, met, own_control_plane};
use serde_json::{Value, json};

use super::SOON;
use super::caller::{AGENT, Account, ApiRequest, CONTROLLER, Caller, acting_on, agent_on, install};

const N1: &str = "/api/v1/nodes/n1";
const PLAIN: &str = "/api/v1/nodes/plain";

/// Two foreign taints, in their order on n1.
fn others() -> [Value; 2] {
    [
        json!({"key": "example.com/a", "value": "x", "effect": "NoSchedule"}),
        json!({"key": "example.com/b", "effect": "PreferNoSchedule"}),
    ]
}

fn taint(key: &str, effect: &str) -> Value {
    json!({"key": key, "effect": effect})
}

/// n1 has labels, annotations and taints; n2 is cordoned; n3 has headgate's taint with `NoExecute`; plain is empty.
async fn create_nodes(administrator: &Caller) {
    let draining = taint("cloudprovider.azure.microsoft.com/draining", "NoExecute");
    for (name, spec) in [
        (
            "n1",
            json!({"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"], "providerID": "azure:///n1",
                "taints": others()}),
        ),
        ("n2", json!({"unschedulable": true})),
        (
            "n3",
            json!({"taints": [taint("node.kubernetes.io/out-of-service", "NoExecute"), draining]}),
        ),
    ] {
        let metadata = json!({"name": name, "labels": {"kubernetes.io/hostname": name},
            "annotations": {"node.alpha.kubernetes.io/ttl": "0"}, "finalizers": ["example.com/keep"]});
        administrator
            .post("/api/v1/nodes", json!({"metadata": metadata, "spec": spec}))
            .await;
    }
    let plain = json!({"metadata": {"name": "plain"}});
    administrator.post("/api/v1/nodes", plain).await;
}

/// Grants every verb on Nodes to the service accounts `headgate`, `headgate-controller`, `other`, and `headgate`
/// in another namespace.
async fn grant_everything(administrator: &Caller) {
    let other = Account { name: "other", ..AGENT };
    let elsewhere = Account {
        namespace: "default",
        ..AGENT
    };
    for Account { namespace, name } in [other, CONTROLLER, elsewhere] {
        let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        administrator.post(&accounts, json!({"metadata": {"name": name}})).await;
    }
    let rule = json!({"apiGroups": [""], "resources": ["nodes", "nodes/status", "nodes/proxy"], "verbs": ["*"]});
    administrator.grant(rule, &[AGENT, CONTROLLER, other, elsewhere]).await;
}

/// Asserts that the policy rejects the request with this message.
async fn refused(caller: &Caller, ask: ApiRequest, words: &str) {
    let (status, body) = caller.ask(&ask).await;
    let message = body["message"].as_str().unwrap_or_default();
    let context = format!("{} {} {}: {status} {message}", ask.method, ask.path, ask.body);
    assert_eq!(status, 403, "{context}");
    // Two policies refuse the record of a cordon; one of them is named.
    let is_of_hold = words.starts_with("headgate.dev/unschedulable") && message.contains("'headgate-hold'");
    assert!(
        (message.contains("'headgate-nodes'") || is_of_hold) && message.contains(words),
        "not {words:?}: {context}"
    );
}

#[tokio::test]
async fn the_node_policy_holds_whatever_rbac_grants() {
    let control_plane = own_control_plane().await;
    let administrator = Caller::administrator(&control_plane);
    install(&administrator.kubeconfig, &json!({}));
    create_nodes(&administrator).await;
    grant_everything(&administrator).await;
    let agent = agent_on(&control_plane, "n1").await;
    let controller = acting_on(&control_plane, CONTROLLER, "n1").await;
    let ask = ApiRequest::merge(
        &format!("{N1}?dryRun=All"),
        json!({"metadata": {"labels": {"not": "yet"}}}),
    );
    eventually(SOON, "role and policy are in force", async || {
        let (_, body) = agent.ask(&ask).await;
        let message = body["message"].as_str().unwrap_or("it was allowed");
        met(message.contains("'headgate-nodes'"), message)
    })
    .await;
    a_policy_about_labels_does_not_hide_the_proof(&administrator, &controller).await;
    the_node_policy_rejects_every_other_change(&administrator, &agent, &controller).await;
    the_node_policy_allows_headgate_taints_and_annotations(&administrator, &agent, &controller).await;
    the_node_policy_allows_the_marker_on_the_own_node_or_for_the_controllers(&administrator, &agent, &controller).await;
    the_node_policy_requires_a_pod_bound_token_and_ignores_other_users(&control_plane, &administrator, &agent).await;
    control_plane.stop().await;
}

/// Somebody else's policy, with the default reason.
async fn a_policy_about_labels_does_not_hide_the_proof(administrator: &Caller, controller: &Caller) {
    const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
    let (policies, bindings) = ("validatingadmissionpolicies", "validatingadmissionpolicybindings");
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]});
    let validation = json!({"expression": "object.metadata.?labels == oldObject.metadata.?labels"});
    let policy = json!({"metadata": {"name": "a-labels"}, "spec": {"failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]}, "validations": [validation]}});
    let binding =
        json!({"metadata": {"name": "a-labels"}, "spec": {"policyName": "a-labels", "validationActions": ["Deny"]}});
    administrator.post(&format!("{ADMISSION}/{policies}"), policy).await;
    administrator.post(&format!("{ADMISSION}/{bindings}"), binding).await;
    let label = ApiRequest::merge(
        &format!("{N1}?dryRun=All"),
        json!({"metadata": {"labels": {"not": "yet"}}}),
    );
    eventually(SOON, "the other policy is in force", async || {
        let (status, body) = administrator.ask(&label).await;
        met(status == 422, body)
    })
    .await;
    let canaries = [Canary::Node("n1".to_owned())];
    assert_eq!(missing_policies(&controller.client, &canaries).await.unwrap(), [""; 0]);
    for resource in [bindings, policies] {
        administrator.delete(&format!("{ADMISSION}/{resource}/a-labels")).await;
    }
    eventually(SOON, "the other policy has ended", async || {
        let (status, body) = administrator.ask(&label).await;
        met(status == 200, body)
    })
    .await;
}

fn annotation(key: &str, value: &Value) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

async fn the_node_policy_allows_headgate_taints_and_annotations(
    administrator: &Caller,
    agent: &Caller,
    controller: &Caller,
) {
    let draining = taint("cloudprovider.azure.microsoft.com/draining", "NoSchedule");
    let maintenance = taint("headgate.dev/maintenance", "NoSchedule");
    let version = administrator.get(N1).await["metadata"]["resourceVersion"].clone();
    for ask in [
        ApiRequest::json(
            N1,
            json!([{"op": "test", "path": "/metadata/resourceVersion", "value": version},
                {"op": "add", "path": "/spec/taints/-", "value": draining}]),
        ),
        ApiRequest::json(
            N1,
            json!([{"op": "add", "path": "/spec/taints/0", "value": maintenance}]),
        ),
        ApiRequest::json(
            N1,
            json!([{"op": "replace", "path": "/spec/taints/0/value", "value": "changed"}]),
        ),
        ApiRequest::json(
            N1,
            json!([{"op": "remove", "path": "/spec/taints/3"}, {"op": "remove", "path": "/spec/taints/0"}]),
        ),
        ApiRequest::merge(N1, annotation("headgate.dev/admin-state", &json!("Down"))),
        ApiRequest::merge(N1, annotation("headgate.dev/admin-state", &Value::Null)),
        ApiRequest::json(
            N1,
            json!([{"op": "add", "path": "/spec/taints/2", "value": draining},
                {"op": "add", "path": "/metadata/annotations/headgate.dev~1notice", "value": "e1"}]),
        ),
        ApiRequest::apply(
            N1,
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"annotations": {"headgate.dev/applied": "1"}}}),
        ),
    ] {
        agent.done(&ask).await;
    }
    let mut whole = administrator.get(N1).await;
    whole["metadata"]["annotations"]["headgate.dev/put"] = json!("1");
    let left = agent.done(&ApiRequest::put(N1, whole)).await;
    let [a, b] = others();
    assert_eq!(left["spec"]["taints"], json!([a, b, draining]));

    // Only the controllers write other Nodes. headgate's taint with NoExecute may stay or be removed.
    for ask in [
        ApiRequest::merge("/api/v1/nodes/n3", annotation("headgate.dev/x", &json!("1"))),
        ApiRequest::json("/api/v1/nodes/n3", json!([{"op": "remove", "path": "/spec/taints/1"}])),
        ApiRequest::merge(
            PLAIN,
            json!({"spec": {"taints": [taint("headgate.dev/maintenance", "PreferNoSchedule")]}}),
        ),
    ] {
        refused(agent, ask.clone(), "only its own Node").await;
        controller.done(&ask).await;
    }
}

fn condition(kind: &str, status: &str) -> Value {
    json!({"status": {"conditions": [{"type": kind, "status": status, "reason": "Test", "message": "m",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
}

/// Changes that are rejected on n1 and other Nodes, each with its message.
fn forbidden_changes(n1: &Value) -> Vec<(ApiRequest, &'static str)> {
    let [a, b] = others();
    let merge = |change: Value| ApiRequest::merge(N1, change);
    let (edit, status) = (
        |operation: Value| ApiRequest::json(N1, json!([operation])),
        |change: Value| ApiRequest::merge(&format!("{N1}/status"), change),
    );
    let metadata = |field: &str, value: Value| json!({"metadata": {field: value}});
    let labels = |labels: Value| metadata("labels", labels);
    let taints = |taints: Value| json!({"spec": {"taints": taints}});
    let add = |taint: Value| json!({"op": "add", "path": "/spec/taints/-", "value": taint});
    let maintenance = taint("headgate.dev/maintenance", "NoSchedule");
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"});
    let mut cordoned = n1.clone();
    cordoned["spec"]["unschedulable"] = json!(true);
    let applied = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"labels": {"applied": "1"}}});
    let addresses = json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.9.9.9"}]}});
    let on_n2 = labels(json!({"foo": "bar"}));
    let cordon_of_n2 = json!({"spec": {"unschedulable": null}});
    let recorded = annotation("headgate.dev/unschedulable-before-maintenance", &json!("false"));
    let both = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"unschedulable": true}});
    let ranges = json!({"spec": {"podCIDR": "10.250.0.0/24", "podCIDRs": ["10.250.0.0/24"]}});
    let own_and_other = json!({"headgate.dev/x": "1", "node.alpha.kubernetes.io/ttl": "9"});
    let replaced = json!({"op": "replace", "path": "/spec/taints/0/value", "value": "y"});
    vec![
        (merge(labels(json!({"foo": "bar"}))), "not metadata.labels"),
        (
            merge(labels(json!({"kubernetes.io/hostname": null}))),
            "not metadata.labels",
        ),
        (ApiRequest::merge("/api/v1/nodes/n2", on_n2), "not metadata.labels"),
        (
            merge(labels(json!({"kubernetes.azure.com/upgrade-status": "paused"}))),
            "only where it runs maintenances",
        ),
        (merge(metadata("finalizers", Value::Null)), "not metadata.finalizers"),
        (
            merge(metadata("ownerReferences", json!([owner]))),
            "not metadata.ownerReferences",
        ),
        (
            ApiRequest::strategic(N1, json!({"spec": {"unschedulable": true}})),
            "not spec.unschedulable",
        ),
        (
            ApiRequest::strategic("/api/v1/nodes/n2", cordon_of_n2),
            "not spec.unschedulable",
        ),
        (merge(recorded), "headgate.dev/unschedulable-before-maintenance"),
        (merge(both), "not metadata.labels, spec.unschedulable"),
        // In either order.
        (ApiRequest::merge(PLAIN, ranges), "not spec.podCIDR"),
        (
            ApiRequest::merge(PLAIN, json!({"spec": {"providerID": "azure:///x"}})),
            "not spec.providerID",
        ),
        (ApiRequest::put(N1, cordoned), "not spec.unschedulable"),
        (ApiRequest::apply(N1, applied), "not metadata.labels"),
        (merge(annotation("example.com/x", &json!("1"))), "not example.com/x"),
        (
            merge(annotation("node.alpha.kubernetes.io/ttl", &Value::Null)),
            "not node.alpha",
        ),
        (
            merge(metadata("annotations", own_and_other)),
            "headgate.dev/*, not node.alpha.kubernetes.io/ttl",
        ),
        (
            merge(annotation("headgate.devil/x", &json!("1"))),
            "not headgate.devil/x",
        ),
        (merge(metadata("annotations", Value::Null)), "not node.alpha"),
        (
            edit(json!({"op": "remove", "path": "/spec/taints/0"})),
            "would become [example.com/b",
        ),
        (merge(taints(json!([maintenance]))), "would become []"),
        (merge(taints(Value::Null)), "would become []"),
        (edit(replaced), "would become [example.com/a=y:NoSchedule"),
        (
            merge(taints(json!([b, a]))),
            "would become [example.com/b=:PreferNoSchedule, example.com/a",
        ),
        (
            edit(add(taint("node.kubernetes.io/out-of-service", "NoExecute"))),
            "the taints cloudprovider.azure.microsoft.com/draining, headgate.dev/maintenance; the others were",
        ),
        (
            edit(add(taint("headgate.dev/maintenance", "NoExecute"))),
            "the effect NoExecute",
        ),
        (
            status(json!({"status": {"capacity": {"cpu": "99"}}})),
            "in the status of a Node, not status.",
        ),
        (status(addresses), "not status.addresses"),
        (
            ApiRequest::strategic(&format!("{N1}/status"), condition("Ready", "True")),
            "not status.conditions of others",
        ),
        (
            status(condition("headgate.dev/Other", "True")),
            "not status.conditions of others",
        ),
        (status(labels(json!({"a": "b"}))), "not metadata.labels"),
        (
            status(annotation("headgate.dev/x", &json!("1"))),
            "not metadata.annotations",
        ),
        (ApiRequest::delete(N1), "refused: DELETE nodes"),
        (ApiRequest::delete("/api/v1/nodes"), "refused: DELETE nodes"),
        (
            ApiRequest::post("/api/v1/nodes", json!({"metadata": {"name": "created"}})),
            "refused: CREATE nodes",
        ),
        (
            ApiRequest::get(&format!("{N1}/proxy/healthz")),
            "refused: CONNECT nodes/proxy",
        ),
    ]
}

async fn the_node_policy_allows_the_marker_on_the_own_node_or_for_the_controllers(
    administrator: &Caller,
    agent: &Caller,
    controller: &Caller,
) {
    let marker = "headgate.dev/OutOfLoadBalancers";
    // Another component's condition stays.
    administrator
        .done(&ApiRequest::strategic(
            &format!("{N1}/status"),
            condition("Ready", "True"),
        ))
        .await;
    for status in ["False", "True", "Unknown"] {
        let ask = ApiRequest::strategic(&format!("{N1}/status"), condition(marker, status));
        agent.done(&ask).await;
        controller.done(&ask).await;
    }
    agent
        .done(&ApiRequest::strategic(
            &format!("{N1}/status"),
            condition("headgate.dev/ConnectionsDrained", "False"),
        ))
        .await;
    let conditions = administrator.get(N1).await["status"]["conditions"].clone();
    assert_eq!(conditions.as_array().unwrap().len(), 3, "{conditions}");
    let other = ApiRequest::strategic("/api/v1/nodes/n2/status", condition(marker, "True"));
    refused(agent, other.clone(), "only its own Node").await;
    controller.done(&other).await;
    let mut long = condition(marker, "True");
    long["status"]["conditions"][0]["message"] = json!("x".repeat(3000));
    refused(
        agent,
        ApiRequest::strategic(&format!("{N1}/status"), long),
        "at most 2,048",
    )
    .await;
    // A longer condition of somebody else stops no write.
    let connections = || condition("headgate.dev/ConnectionsDrained", "False");
    let mut left = connections();
    left["status"]["conditions"][0]["message"] = json!("x".repeat(3000));
    administrator
        .done(&ApiRequest::strategic(&format!("{N1}/status"), left))
        .await;
    for own in [condition(marker, "True"), connections()] {
        agent.done(&ApiRequest::strategic(&format!("{N1}/status"), own)).await;
    }
}

async fn the_node_policy_rejects_every_other_change(administrator: &Caller, agent: &Caller, controller: &Caller) {
    let before = administrator.get("/api/v1/nodes").await;
    for caller in [agent, controller] {
        for (ask, words) in forbidden_changes(&administrator.get(N1).await) {
            refused(caller, ask, words).await;
        }
    }
    assert_eq!(administrator.get("/api/v1/nodes").await["items"], before["items"]);
}

async fn the_node_policy_requires_a_pod_bound_token_and_ignores_other_users(
    control_plane: &ControlPlane,
    administrator: &Caller,
    agent: &Caller,
) {
    let ours = || ApiRequest::merge(N1, annotation("headgate.dev/x", &json!("1")));
    let uid = administrator.get(N1).await["metadata"]["uid"].clone();
    let nowhere = administrator.pod(AGENT, "headgate-nowhere", None).await;
    let mut bounds = vec![None, Some(nowhere)];
    // 1.30 grants no tokens that are bound to a Node.
    if !is_kubernetes_1_30(&administrator.client).await {
        bounds.push(Some(
            json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid}),
        ));
    }
    for bound in bounds {
        let token = administrator.token("kube-system", "headgate", bound).await;
        let caller = Caller::with_token(control_plane, &token).await;
        refused(&caller, ours(), "bound to a Pod on a node").await;
        caller.get(N1).await;
    }
    let token = administrator.token("default", "headgate", None).await;
    let elsewhere = Caller::with_token(control_plane, &token).await;
    refused(&elsewhere, ours(), "bound to a Pod on a node").await;
    let token = administrator.token(CONTROLLER.namespace, CONTROLLER.name, None).await;
    let controller = Caller::with_token(control_plane, &token).await;
    refused(&controller, ours(), "bound to a Pod on a node").await;

    let token = administrator.token("kube-system", "other", None).await;
    let other = Caller::with_token(control_plane, &token).await;
    let theirs = json!({"metadata": {"labels": {"other": "1"}}, "spec": {"unschedulable": true}});
    for caller in [&other, administrator] {
        caller.merge(N1, theirs.clone()).await;
    }

    agent.done(&ours()).await;
    let controller = acting_on(control_plane, CONTROLLER, "n2").await;
    controller.done(&ours()).await;
}
