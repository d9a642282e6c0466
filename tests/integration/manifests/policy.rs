//! The policy `headgate-nodes` with a role that grants every verb on Nodes: what it allows and
//! what it rejects, for each account.

use headgate_kubernetes::{Canary, missing_policies};
use headgate_sandbox::control_plane::ControlPlane;
use headgate_test_kubernetes::{eventually, is_kubernetes_1_30, met, own_control_plane};
use serde_json::{Value, json};

use super::SOON;
use super::caller::{AGENT, Account, ApiRequest, CONTROLLER, Caller, acting_on, agent_on, install};

const N1: &str = "/api/v1/nodes/n1";
/// A change that this policy refuses to headgate.
const LABEL: &str = r#"merge /api/v1/nodes/n1?dryRun=All {metadata: {labels: {not: "yet"}}}"#;
/// Changes of the own Node, one after the other.
const ALLOWED_CHANGES: &str = r#"
json /api/v1/nodes/n1 [{op: test, path: /metadata/resourceVersion, value: VERSION}, {op: add, path: /spec/taints/-, value: {key: cloudprovider.azure.microsoft.com/draining, effect: NoSchedule}}]
json /api/v1/nodes/n1 [{op: add, path: /spec/taints/0, value: {key: headgate.dev/maintenance, effect: NoSchedule}}]
json /api/v1/nodes/n1 [{op: replace, path: /spec/taints/0/value, value: changed}]
json /api/v1/nodes/n1 [{op: remove, path: /spec/taints/3}, {op: remove, path: /spec/taints/0}]
merge /api/v1/nodes/n1 {metadata: {annotations: {headgate.dev/admin-state: Down}}}
merge /api/v1/nodes/n1 {metadata: {annotations: {headgate.dev/admin-state: null}}}
json /api/v1/nodes/n1 [{op: add, path: /spec/taints/2, value: {key: cloudprovider.azure.microsoft.com/draining, effect: NoSchedule}}, {op: add, path: /metadata/annotations/headgate.dev~1notice, value: e1}]
apply /api/v1/nodes/n1 {apiVersion: v1, kind: Node, metadata: {annotations: {headgate.dev/applied: "1"}}}
"#;
/// Changes of other Nodes; headgate's taint with `NoExecute` may stay or be removed.
const CHANGES_OF_OTHERS: [&str; 3] = [
    r#"merge /api/v1/nodes/n3 {metadata: {annotations: {headgate.dev/x: "1"}}}"#,
    "json /api/v1/nodes/n3 [{op: remove, path: /spec/taints/1}]",
    "merge /api/v1/nodes/plain {spec: {taints: [{key: headgate.dev/maintenance, effect: PreferNoSchedule}]}}",
];

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
    let whole = json!({"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"], "providerID": "azure:///n1",
        "taints": others()});
    let out_of_service = taint("node.kubernetes.io/out-of-service", "NoExecute");
    let draining = taint("cloudprovider.azure.microsoft.com/draining", "NoExecute");
    for (name, spec) in [
        ("n1", whole),
        ("n2", json!({"unschedulable": true})),
        ("n3", json!({"taints": [out_of_service, draining]})),
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
    let mut answer = caller.is_refused(&ask, &["'headgate-nodes'", words]).await;
    // Two policies refuse the record of a cordon; one of them is named.
    if answer.is_err() && words.starts_with("headgate.dev/unschedulable") {
        answer = caller.is_refused(&ask, &["'headgate-node-annotations'", words]).await;
    }
    answer.unwrap();
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
    let ask = ApiRequest::parse(LABEL);
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
    let label = ApiRequest::parse(LABEL);
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

async fn the_node_policy_allows_headgate_taints_and_annotations(
    administrator: &Caller,
    agent: &Caller,
    controller: &Caller,
) {
    let version = administrator.get(N1).await["metadata"]["resourceVersion"].to_string();
    for line in ALLOWED_CHANGES.trim().lines() {
        agent.done(&ApiRequest::parse(&line.replace("VERSION", &version))).await;
    }
    let mut whole = administrator.get(N1).await;
    whole["metadata"]["annotations"]["headgate.dev/put"] = json!("1");
    let left = agent.done(&ApiRequest::put(N1, whole)).await;
    let [a, b] = others();
    let draining = taint("cloudprovider.azure.microsoft.com/draining", "NoSchedule");
    assert_eq!(left["spec"]["taints"], json!([a, b, draining]));
    for ask in CHANGES_OF_OTHERS.map(ApiRequest::parse) {
        refused(agent, ask.clone(), "only its own Node").await;
        controller.done(&ask).await;
    }
}

fn condition(kind: &str, status: &str) -> Value {
    json!({"status": {"conditions": [{"type": kind, "status": status, "reason": "Test", "message": "m",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
}

/// Changes that are rejected on n1 and other Nodes, each with its message.
const FORBIDDEN_CHANGES: &str = r#"
merge /api/v1/nodes/n1 {metadata: {labels: {foo: bar}}} → not metadata.labels
merge /api/v1/nodes/n1 {metadata: {labels: {kubernetes.io/hostname: null}}} → not metadata.labels
merge /api/v1/nodes/n2 {metadata: {labels: {foo: bar}}} → not metadata.labels
merge /api/v1/nodes/n1 {metadata: {labels: {kubernetes.azure.com/upgrade-status: paused}}} → only where it runs maintenances
merge /api/v1/nodes/n1 {metadata: {finalizers: null}} → not metadata.finalizers
merge /api/v1/nodes/n1 {metadata: {ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: x, uid: x}]}} → not metadata.ownerReferences
strategic /api/v1/nodes/n1 {spec: {unschedulable: true}} → not spec.unschedulable
strategic /api/v1/nodes/n2 {spec: {unschedulable: null}} → not spec.unschedulable
merge /api/v1/nodes/n1 {metadata: {annotations: {headgate.dev/unschedulable-before-maintenance: "false"}}} → headgate.dev/unschedulable-before-maintenance
merge /api/v1/nodes/n1 {metadata: {labels: {a: b}}, spec: {unschedulable: true}} → not metadata.labels, spec.unschedulable
merge /api/v1/nodes/plain {spec: {podCIDR: 10.250.0.0/24, podCIDRs: [10.250.0.0/24]}} → not spec.podCIDR
merge /api/v1/nodes/plain {spec: {providerID: "azure:///x"}} → not spec.providerID
apply /api/v1/nodes/n1 {apiVersion: v1, kind: Node, metadata: {labels: {applied: "1"}}} → not metadata.labels
merge /api/v1/nodes/n1 {metadata: {annotations: {example.com/x: "1"}}} → not example.com/x
merge /api/v1/nodes/n1 {metadata: {annotations: {node.alpha.kubernetes.io/ttl: null}}} → not node.alpha
merge /api/v1/nodes/n1 {metadata: {annotations: {headgate.dev/x: "1", node.alpha.kubernetes.io/ttl: "9"}}} → headgate.dev/*, not node.alpha.kubernetes.io/ttl
merge /api/v1/nodes/n1 {metadata: {annotations: {headgate.devil/x: "1"}}} → not headgate.devil/x
merge /api/v1/nodes/n1 {metadata: {annotations: null}} → not node.alpha
json /api/v1/nodes/n1 [{op: remove, path: /spec/taints/0}] → would become [example.com/b
merge /api/v1/nodes/n1 {spec: {taints: [{key: headgate.dev/maintenance, effect: NoSchedule}]}} → would become []
merge /api/v1/nodes/n1 {spec: {taints: null}} → would become []
json /api/v1/nodes/n1 [{op: replace, path: /spec/taints/0/value, value: "y"}] → would become [example.com/a=y:NoSchedule
merge /api/v1/nodes/n1 {spec: {taints: [{key: example.com/b, effect: PreferNoSchedule}, {key: example.com/a, value: x, effect: NoSchedule}]}} → would become [example.com/b=:PreferNoSchedule, example.com/a
json /api/v1/nodes/n1 [{op: add, path: /spec/taints/-, value: {key: node.kubernetes.io/out-of-service, effect: NoExecute}}] → the taints cloudprovider.azure.microsoft.com/draining, headgate.dev/maintenance; the others were
json /api/v1/nodes/n1 [{op: add, path: /spec/taints/-, value: {key: headgate.dev/maintenance, effect: NoExecute}}] → the effect NoExecute
merge /api/v1/nodes/n1/status {status: {capacity: {cpu: "99"}}} → in the status of a Node, not status.
merge /api/v1/nodes/n1/status {status: {addresses: [{type: InternalIP, address: 10.9.9.9}]}} → not status.addresses
merge /api/v1/nodes/n1/status {metadata: {labels: {a: b}}} → not metadata.labels
merge /api/v1/nodes/n1/status {metadata: {annotations: {headgate.dev/x: "1"}}} → not metadata.annotations
delete /api/v1/nodes/n1 → refused: DELETE nodes
delete /api/v1/nodes → refused: DELETE nodes
post /api/v1/nodes {metadata: {name: created}} → refused: CREATE nodes
get /api/v1/nodes/n1/proxy/healthz → refused: CONNECT nodes/proxy
"#;

/// These, and those with a whole Node or a whole condition.
fn forbidden_changes(n1: &Value) -> Vec<(ApiRequest, &'static str)> {
    let mut cordoned = n1.clone();
    cordoned["spec"]["unschedulable"] = json!(true);
    let (status, others) = (format!("{N1}/status"), "not status.conditions of others");
    let (ready, other) = (condition("Ready", "True"), condition("headgate.dev/Other", "True"));
    let mut changes = ApiRequest::refusals(FORBIDDEN_CHANGES);
    changes.push((ApiRequest::put(N1, cordoned), "not spec.unschedulable"));
    changes.push((ApiRequest::strategic(&status, ready), others));
    changes.push((ApiRequest::merge(&status, other), others));
    changes
}

async fn the_node_policy_allows_the_marker_on_the_own_node_or_for_the_controllers(
    administrator: &Caller,
    agent: &Caller,
    controller: &Caller,
) {
    let marker = "headgate.dev/OutOfLoadBalancers";
    // Another component's condition stays.
    let own = format!("{N1}/status");
    administrator.strategic(&own, condition("Ready", "True")).await;
    for status in ["False", "True", "Unknown"] {
        let ask = ApiRequest::strategic(&own, condition(marker, status));
        agent.done(&ask).await;
        controller.done(&ask).await;
    }
    let connections = || condition("headgate.dev/ConnectionsDrained", "False");
    agent.strategic(&own, connections()).await;
    let conditions = administrator.get(N1).await["status"]["conditions"].clone();
    assert_eq!(conditions.as_array().unwrap().len(), 3, "{conditions}");
    let other = ApiRequest::strategic("/api/v1/nodes/n2/status", condition(marker, "True"));
    refused(agent, other.clone(), "only its own Node").await;
    controller.done(&other).await;
    let mut long = condition(marker, "True");
    long["status"]["conditions"][0]["message"] = json!("x".repeat(3000));
    refused(agent, ApiRequest::strategic(&own, long), "at most 2,048").await;
    // A longer condition of somebody else stops no write.
    let mut left = connections();
    left["status"]["conditions"][0]["message"] = json!("x".repeat(3000));
    administrator.strategic(&own, left).await;
    for allowed in [condition(marker, "True"), connections()] {
        agent.strategic(&own, allowed).await;
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
    let ours = || ApiRequest::parse(r#"merge /api/v1/nodes/n1 {metadata: {annotations: {headgate.dev/x: "1"}}}"#);
    let uid = administrator.get(N1).await["metadata"]["uid"].clone();
    let nowhere = administrator.pod(AGENT, "headgate-nowhere", None).await;
    let mut bounds = vec![None, Some(nowhere)];
    // 1.30 grants no tokens that are bound to a Node.
    if !is_kubernetes_1_30(&administrator.client).await {
        let node = json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid});
        bounds.push(Some(node));
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
