//! The policy of overlays with a leader, with roles that grant more than the shipped ones: which Leases and `ConfigMap`s each
//! account may create. `leader_updates` has what an update may write.

use headgate_test_kubernetes::{create_node, eventually, own_control_plane};
use serde_json::{Value, json};

use super::SOON;
use super::caller::{AGENT, Account, ApiRequest, CONTROLLER, Caller, acting_on, install};
use super::leader::{LEASES, MAPS, new_objects};
use super::rendering::hardened;

const OTHER: Account = Account {
    namespace: "kube-system",
    name: "other",
};

fn named(path: &str, metadata: &Value) -> ApiRequest {
    ApiRequest::post(path, json!({"metadata": metadata}))
}

/// Sent as a dry run, because the policy may not be enforced yet.
fn dry_run(path: &str, metadata: &Value) -> ApiRequest {
    named(path, metadata).dry_run()
}

/// Whether the policy rejected the request.
pub(super) async fn refused(caller: &Caller, ask: &ApiRequest, words: &str) -> Result<(), String> {
    caller.is_refused(ask, &["'headgate-leader'", words]).await
}

/// Waits until roles and policies are in force for a caller. Returns a request that they refuse.
pub(super) async fn in_force(caller: &Caller) -> ApiRequest {
    let foreign = dry_run(LEASES, &json!({"name": "kube-scheduler"}));
    eventually(SOON, "role and policy are in force", async || {
        refused(caller, &foreign, "these leases").await
    })
    .await;
    foreign
}

#[tokio::test]
async fn the_leader_policy_allows_creating_its_leases_and_config_map_only() {
    let control_plane = own_control_plane().await;
    let administrator = Caller::administrator(&control_plane);
    install(&administrator.kubeconfig, &hardened());
    let accounts = "/api/v1/namespaces/kube-system/serviceaccounts";
    administrator.done(&named(accounts, &json!({"name": OTHER.name}))).await;
    let rule = json!({"apiGroups": ["", "coordination.k8s.io"], "resources": ["leases", "configmaps"], "verbs": ["*"]});
    administrator.grant(rule, &[AGENT, CONTROLLER, OTHER]).await;
    let here = create_node(&administrator.client, "policy").await;

    let elsewhere = |path: &str| path.replace("kube-system", "default");
    let leases = "these leases, in kube-system: headgate-leader, aks-managed-resource-locker";
    let maps = "these configmaps, in kube-system: headgate-admin-state";
    let bad = [
        (dry_run(LEASES, &json!({"name": "kube-scheduler"})), leases),
        (dry_run(LEASES, &json!({"name": "headgate-admin-state"})), leases),
        (dry_run(LEASES, &json!({"generateName": "headgate-leader"})), leases),
        (dry_run(&elsewhere(LEASES), &json!({"name": "headgate-leader"})), leases),
        (dry_run(MAPS, &json!({"name": "coredns-custom"})), maps),
        (dry_run(MAPS, &json!({"name": "headgate-leader"})), maps),
        (
            dry_run(&elsewhere(MAPS), &json!({"name": "headgate-admin-state"})),
            maps,
        ),
    ];
    for account in [AGENT, CONTROLLER] {
        let caller = acting_on(&control_plane, account, &here).await;
        in_force(&caller).await;
        for (ask, words) in &bad {
            refused(&caller, ask, words).await.unwrap();
        }
        let unbound = administrator.token(account.namespace, account.name, None).await;
        let unbound = Caller::with_token(&control_plane, &unbound).await;
        for ask in new_objects(&here) {
            refused(&unbound, &ask, "bound to a Pod on a node").await.unwrap();
            caller.done(&ask).await;
            let name = ask.body["metadata"]["name"].as_str().unwrap();
            administrator.delete(&format!("{}/{name}", ask.path)).await;
        }
    }
    let token = administrator.token(OTHER.namespace, OTHER.name, None).await;
    let other = Caller::with_token(&control_plane, &token).await;
    for (ask, _) in &bad {
        other.done(ask).await;
    }
    control_plane.stop().await;
}
