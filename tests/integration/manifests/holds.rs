//! The hold on a Node, the annotation `headgate.dev/hold`, and the record of a cordon: the leader of the hardened overlay may write them with
//! the shipped rights, and the policy `headgate-node-annotations` refuses them to every other user, whatever RBAC grants; all but kubelets may remove them.

use headgate_test_kubernetes::{create_node, eventually, met, own_control_plane};
use serde_json::{Value, json};

use super::SOON;
use super::caller::{AGENT, ApiRequest, CONTROLLER, Caller, acting_on, install};
use super::rendering::hardened;
use super::rights::{node, wait_for_status};

const HOLD: &str = "headgate.dev/hold";
const CORDON: &str = "headgate.dev/unschedulable-before-maintenance";

fn annotated(path: &str, value: &Value) -> ApiRequest {
    ApiRequest::merge(path, json!({"metadata": {"annotations": {HOLD: value}}}))
}

/// Whether a policy refused.
async fn refused(caller: &Caller, ask: &ApiRequest) -> Result<(), String> {
    let (status, body) = caller.ask(ask).await;
    let message = body["message"].as_str().unwrap_or_default();
    // Both policies refuse the record of a cordon to an agent; one of them is named.
    let words = ["'headgate-node-annotations'", "only where it runs maintenances"];
    met(
        [403, 422].contains(&status) && words.iter().any(|known| message.contains(known)),
        format!("{} {} {}: {status} {body}", ask.method, ask.path, ask.body),
    )
}

#[tokio::test]
async fn only_the_leaders_own_account_writes_holds() {
    let control_plane = own_control_plane().await;
    let administrator = Caller::administrator(&control_plane);
    install(&administrator.kubeconfig, &hardened());
    let name = create_node(&administrator.client, "holds").await;
    let path = node(&name);
    let leader = acting_on(&control_plane, CONTROLLER, &name).await;
    let trial = annotated(&path, &json!("x")).dry_run();
    eventually(SOON, "the policy is in force", async || {
        refused(&administrator, &trial).await
    })
    .await;
    // With the shipped rights, on a Node that is not its own.
    let other = node(&create_node(&administrator.client, "held").await);
    wait_for_status(&leader, annotated(&other, &json!("{}")), 200).await;
    leader.done(&annotated(&path, &json!("{}"))).await;
    // A late write of an earlier leader names a version that another write has replaced since.
    let read = leader.get(&path).await;
    let in_version = |version: &Value| {
        let metadata =
            json!({"uid": read["metadata"]["uid"], "resourceVersion": version, "annotations": {HOLD: "late"}});
        ApiRequest::merge(&path, json!({"metadata": metadata}))
    };
    leader.done(&annotated(&path, &json!("of the next leader"))).await;
    let (status, body) = leader.ask(&in_version(&read["metadata"]["resourceVersion"])).await;
    assert_eq!(status, 409, "{body}");
    assert_eq!(
        leader.get(&path).await["metadata"]["annotations"][HOLD],
        "of the next leader"
    );
    eventually(SOON, "a write of the present version is admitted", async || {
        let version = &leader.get(&path).await["metadata"]["resourceVersion"];
        let (status, body) = leader.ask(&in_version(version)).await;
        (status == 200).then_some(()).ok_or_else(|| body.to_string())
    })
    .await;

    let rule = json!({"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["*"]});
    administrator.grant(rule, &[AGENT]).await;
    let agent = acting_on(&control_plane, AGENT, &name).await;
    let allowed = ApiRequest::merge(&path, json!({"metadata": {"annotations": {"headgate.dev/a": "b"}}}));
    wait_for_status(&agent, allowed.dry_run(), 200).await;
    let unbound = administrator.token(CONTROLLER.namespace, CONTROLLER.name, None).await;
    let unbound = Caller::with_token(&control_plane, &unbound).await;
    for (caller, who) in [(&administrator, "administrator"), (&agent, "agent")] {
        for key in [HOLD, CORDON, "headgate.dev/upgrade-paused"] {
            let ask = ApiRequest::merge(&path, json!({"metadata": {"annotations": {key: "false"}}}));
            refused(caller, &ask)
                .await
                .unwrap_or_else(|error| panic!("{who}: {error}"));
        }
    }
    // A stale one can be removed, but not by the node's own kubelet, and not while another one is set.
    let swapped = json!({"metadata": {"annotations": {HOLD: null, CORDON: "false"}}});
    refused(&administrator, &ApiRequest::merge(&path, swapped))
        .await
        .unwrap();
    let kubelet = ("system:node:".to_owned() + &name, "system:nodes");
    let kubelet = administrator.impersonating(&kubelet.0, &[kubelet.1]).await;
    refused(&kubelet, &annotated(&path, &Value::Null)).await.unwrap();
    administrator.done(&annotated(&path, &Value::Null)).await;
    // Annotations can be changed along with the status, too.
    refused(&administrator, &annotated(&format!("{path}/status"), &json!("x")))
        .await
        .unwrap();
    // The policy `headgate-nodes` refuses it, too.
    unbound.refused(&annotated(&path, &json!("x")), &[]).await;
    let created = ApiRequest::post(
        "/api/v1/nodes",
        json!({"metadata": {"name": "born-held", "annotations": {HOLD: "{}"}}}),
    );
    refused(&administrator, &created).await.unwrap();

    // Every other write of the Node is admitted.
    administrator
        .merge(&path, json!({"metadata": {"labels": {"a": "b"}}}))
        .await;
    administrator
        .merge(&format!("{path}/status"), json!({"metadata": {"labels": {"a": "c"}}}))
        .await;
    leader.done(&annotated(&path, &Value::Null)).await;
    administrator.delete(&path).await;
    control_plane.stop().await;
}
