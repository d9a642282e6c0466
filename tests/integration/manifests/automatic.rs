//! A maintenance that the leader creates for a node that is taken, with a token of the controllers and the rights of
//! `maintenance.automatic`: they suffice, each is needed, and the policy allows no other maintenance.

use headgate_maintenance::automatic::{AutomaticMaintenances, Cause};
use headgate_test_kubernetes::eventually;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::SOON;
use super::caller::{ApiRequest, CONTROLLER, Caller};
use super::leader::{Right, is_needed};
use super::maintenance::{
    Leader, MAINTENANCES, PODS, create_pod, is_as_before, is_gone, maintained, maintenance, until,
};
use super::rights::{node, remove_verb, restore_rules, wait_for_status};

const ROLE: &str = "clusterroles/headgate-automatic";

/// A maintenance of a Node as the leader creates it.
async fn automatic(administrator: &Caller, name: &str, of: &str) -> Value {
    let uid = administrator.get(&node(of)).await["metadata"]["uid"].clone();
    let mut object = maintenance(name, "Drain", of);
    object["metadata"]["labels"] = json!({"headgate.dev/automatic": "preempt"});
    object["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": of, "uid": uid}]);
    object["spec"]["deadline"] = json!("2099-01-01T00:00:00Z");
    object
}

#[tokio::test]
async fn permissions_of_the_component_suffice_for_a_node_that_is_taken_and_its_policy_allows_no_more() {
    let (control_plane, administrator, caller, own, drained) = maintained(json!({"automatic": ["preempt"]})).await;
    each_permission_is_needed(&administrator, &caller, &drained).await;
    the_policy_allows_no_other_maintenance(&administrator, &caller, &own, &drained).await;
    a_node_is_taken_and_given_back(&administrator, &caller, &own, &drained).await;
    control_plane.stop().await;
}

async fn each_permission_is_needed(administrator: &Caller, caller: &Caller, drained: &str) {
    let object = automatic(administrator, "mine", drained).await;
    let create = ApiRequest::post(MAINTENANCES, object.clone()).dry_run();
    let right = Right::new(ROLE, ("nodemaintenances", None), "create", create.clone());
    is_needed(administrator, caller, right.answered(201)).await;
    administrator.post(MAINTENANCES, object).await;
    let path = format!("{MAINTENANCES}/mine");
    let delete = ApiRequest::delete(&path).dry_run();
    let right = Right::new(ROLE, ("nodemaintenances", None), "delete", delete.clone());
    is_needed(administrator, caller, right).await;
    let rules = remove_verb(administrator, ROLE, ("nodemaintenances", None), "automate").await;
    for refused in [&create, &delete] {
        let words = "needs the right to delete each of its nodes";
        eventually(SOON, words, async || caller.is_refused(refused, &[words]).await).await;
    }
    restore_rules(administrator, ROLE, rules).await;
    let another = ApiRequest::post(MAINTENANCES, automatic(administrator, "another", drained).await);
    wait_for_status(caller, another.dry_run(), 201).await;
    wait_for_status(caller, delete, 200).await;
    // Its deadline follows the notice.
    let later = json!({"spec": {"deadline": "2099-01-01T00:10:00Z"}});
    caller.done(&ApiRequest::merge(&path, later).dry_run()).await;
    administrator.delete(&path).await;
    is_gone(administrator, &path).await;
}

async fn the_policy_allows_no_other_maintenance(administrator: &Caller, caller: &Caller, own: &str, drained: &str) {
    let object = automatic(administrator, "mine", drained).await;
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut object = object.clone();
        change(&mut object);
        object
    };
    let other = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [own]}]});
    let linux = json!({"matchExpressions": [{"key": "kubernetes.io/os", "operator": "Exists"}]});
    let selecting = |terms: Value| changed(&|one| one["spec"]["nodeSelector"]["nodeSelectorTerms"] = terms.clone());
    for (what, object) in [
        ("no label", changed(&|one| one["metadata"]["labels"] = Value::Null)),
        (
            "no owner",
            changed(&|one| one["metadata"]["ownerReferences"] = Value::Null),
        ),
        ("no deadline", changed(&|one| one["spec"]["deadline"] = Value::Null)),
        ("another stage", changed(&|one| one["spec"]["stage"] = json!("Cordon"))),
        ("another node", selecting(json!([other]))),
        (
            "two nodes",
            selecting(json!([object["spec"]["nodeSelector"]["nodeSelectorTerms"][0], other])),
        ),
        ("all nodes", selecting(json!([linux]))),
    ] {
        let ask = ApiRequest::post(MAINTENANCES, object).dry_run();
        let (status, body) = caller.ask(&ask).await;
        assert_eq!(status, 403, "{what}: {body}");
    }
    // Somebody's own.
    administrator
        .post(MAINTENANCES, maintenance("theirs", "Idle", drained))
        .await;
    let path = format!("{MAINTENANCES}/theirs");
    let deadline = json!({"deadline": "2099-01-01T00:00:00Z"});
    let label = json!({"labels": {"headgate.dev/automatic": "preempt"}});
    for refused in [
        ApiRequest::delete(&path),
        ApiRequest::merge(&path, json!({"spec": deadline})),
        ApiRequest::merge(&path, json!({"metadata": label, "spec": deadline})),
    ] {
        caller.refused(&refused.dry_run(), &[]).await;
    }
    administrator.delete(&path).await;
    is_gone(administrator, &path).await;
}

async fn a_node_is_taken_and_given_back(administrator: &Caller, caller: &Caller, own: &str, drained: &str) {
    create_pod(administrator, "web", drained, json!([])).await;
    let pod = json!({"metadata": {"name": "slow", "labels": {"app": "slow"}},
        "spec": {"nodeName": drained, "serviceAccountName": CONTROLLER.name, "terminationGracePeriodSeconds": 3600,
            "containers": [{"name": "c", "image": "none"}]}});
    administrator.post(PODS, pod).await;
    let automatic = AutomaticMaintenances {
        causes: [(Cause::Preempt, None)].into(),
    };
    let leader = Leader::start_with(caller, own, automatic);
    let at = Timestamp::now() + SignedDuration::from_mins(10);
    let record = json!({"eventId": "e", "notBefore": at.to_string(), "bootId": "b"}).to_string();
    let taint =
        json!({"key": "cloudprovider.azure.microsoft.com/draining", "value": "spot-eviction", "effect": "NoSchedule"});
    let change =
        json!({"metadata": {"annotations": {"headgate.dev/spot-notice": record}}, "spec": {"taints": [taint]}});
    administrator.merge(&node(drained), change).await;
    let path = format!("{MAINTENANCES}/automatic-{drained}");
    let created = until(administrator, "the maintenance", &path, |object| {
        object["spec"]["stage"] == "Drain"
    })
    .await;
    let deadline: Timestamp = created["spec"]["deadline"].as_str().unwrap().parse().unwrap();
    assert!(
        deadline.duration_since(at).abs() <= SignedDuration::from_secs(1),
        "{deadline} {at}"
    );
    leader.observe_out(drained);
    is_gone(administrator, &format!("{PODS}/web")).await;
    let told = until(administrator, "the other pod is told", &format!("{PODS}/slow"), |pod| {
        pod["metadata"]["deletionGracePeriodSeconds"].is_number()
    })
    .await;
    let grace = told["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap();
    assert!((1..600).contains(&grace), "{grace}");

    let given_back = json!({"spec": {"taints": null}});
    administrator.merge(&node(drained), given_back).await;
    is_gone(administrator, &path).await;
    is_as_before(administrator, drained).await;
    assert_eq!(
        leader.metric("headgate_maintenance_writes_total{outcome=\"refused\"}"),
        0
    );
}
