//! What the policy `headgate-leader` lets a leader write into its Leases and the ledger, with nothing but the shipped rights, both where
//! the leader runs in the `DaemonSet` and where it is apart.

use headgate_test_kubernetes::eventually;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::SOON;
use super::caller::{ApiRequest, Caller};
use super::leader::{LEASES, LEDGER, LOCK, MAPS, OWN, new_objects};
use super::leader_policy::refused;

/// An update of an object, as `change` makes it of what is there; the API server keeps its `managedFields`.
async fn update(administrator: &Caller, path: &str, change: impl FnOnce(&mut Value)) -> ApiRequest {
    let mut object = administrator.get(path).await;
    object["metadata"]["managedFields"].take();
    change(&mut object);
    ApiRequest::put(path, object)
}

/// The time in this many seconds, as a Lease has it.
fn in_seconds(seconds: i64) -> Value {
    let time = Timestamp::now() + SignedDuration::from_secs(seconds);
    json!(format!("{time:.6}"))
}

/// Changes of the spec of a Lease.
fn spec(changes: Value) -> impl Fn(&mut Value) {
    move |lease| {
        for (key, value) in changes.as_object().unwrap() {
            if value.is_null() {
                lease["spec"].as_object_mut().unwrap().remove(key);
            } else {
                lease["spec"][key] = value.clone();
            }
        }
    }
}

/// Changes of the metadata of any object.
fn metadata(key: &'static str, value: Value) -> impl Fn(&mut Value) {
    move |object| object["metadata"][key] = value.clone()
}

/// What the policy holds against the metadata of each of the three objects.
async fn metadata_is_refused(administrator: &Caller, leader: &Caller, path: &str) {
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}]);
    let long = json!({"headgate.dev/nodes": "1".repeat(1024)});
    let many = (0..17).map(|number| (format!("headgate.dev/{number}"), json!("")));
    let many = Value::Object(many.collect());
    let mut cases = vec![
        ("labels", json!({"a": "b"}), "metadata.labels"),
        ("finalizers", json!(["example.com/keep"]), "metadata.finalizers"),
        ("ownerReferences", owner, "metadata.ownerReferences"),
        (
            "annotations",
            json!({"example.com/a": "b"}),
            "the annotations example.com/a",
        ),
        ("managedFields", json!([{}]), "may not remove metadata.managedFields"),
    ];
    if !path.ends_with(LOCK) {
        cases.push(("annotations", long, "at most 16 annotations"));
        cases.push(("annotations", many, "at most 16 annotations"));
    }
    for (key, value, words) in cases {
        let ask = update(administrator, path, metadata(key, value)).await;
        refused(leader, &ask, words).await.unwrap();
    }
}

/// `leader` is the one of the Node `own`; the objects of another leader are replaced.
pub(super) async fn a_leader_writes_nothing_else_into_its_objects(administrator: &Caller, own: &str, leader: &Caller) {
    for ask in new_objects(own) {
        let name = ask.body["metadata"]["name"].as_str().unwrap();
        administrator.delete(&format!("{}/{name}", ask.path)).await;
        administrator.done(&ask).await;
    }
    let path = format!("{LEASES}/{OWN}");
    let ask = update(administrator, &path, metadata("labels", json!({"not": "yet"}))).await;
    let ask = ApiRequest {
        path: format!("{path}?dryRun=All"),
        ..ask
    };
    eventually(SOON, "role and policy are in force", async || {
        refused(leader, &ask, "metadata.labels").await
    })
    .await;
    the_election_is_held_in_the_own_nodes_name_and_for_a_bounded_time(administrator, own, leader).await;
    the_shared_lease_is_held_under_one_name_for_a_bounded_time_and_not_taken_from_its_holder(administrator, leader)
        .await;
    the_ledger_stays_a_ledger_of_bounded_size(administrator, leader).await;
}

async fn the_election_is_held_in_the_own_nodes_name_and_for_a_bounded_time(
    administrator: &Caller,
    own: &str,
    leader: &Caller,
) {
    let path = format!("{LEASES}/{OWN}");
    let ours = json!(format!("{own}_2"));
    metadata_is_refused(administrator, leader, &path).await;
    let name = "only under a name that begins with its own Node and _";
    for (changes, words) in [
        (json!({"holderIdentity": "other_1"}), name),
        (json!({"holderIdentity": format!("{own}1")}), name),
        (json!({"holderIdentity": "_1"}), name),
        (
            json!({"holderIdentity": ours, "leaseDurationSeconds": 61}),
            "for 1 to 60 seconds",
        ),
        (json!({"leaseDurationSeconds": i32::MAX}), "for 1 to 60 seconds"),
        (json!({"leaseDurationSeconds": null}), "for 1 to 60 seconds"),
    ] {
        let ask = update(administrator, &path, spec(changes)).await;
        refused(leader, &ask, words).await.unwrap();
    }
    // Another one's hold can be ended and taken over, since CEL has no clock, but not prolonged.
    let foreign = spec(json!({"holderIdentity": "other_1", "renewTime": in_seconds(-5)}));
    administrator.done(&update(administrator, &path, foreign).await).await;
    let renewal = update(administrator, &path, spec(json!({"renewTime": in_seconds(0)}))).await;
    refused(leader, &renewal, name).await.unwrap();
    for changes in [
        json!({"holderIdentity": ours, "leaseDurationSeconds": 15, "leaseTransitions": 7,
            "acquireTime": in_seconds(0), "renewTime": in_seconds(0)}),
        json!({"renewTime": in_seconds(1)}),
        json!({"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": in_seconds(2)}),
    ] {
        leader.done(&update(administrator, &path, spec(changes)).await).await;
    }
    let annotations = json!({"headgate.dev/nodes": "7", "headgate.dev/failed-terms": "1"});
    let ask = update(administrator, &path, metadata("annotations", annotations)).await;
    leader.done(&ask).await;
}

async fn the_shared_lease_is_held_under_one_name_for_a_bounded_time_and_not_taken_from_its_holder(
    administrator: &Caller,
    leader: &Caller,
) {
    let path = format!("{LEASES}/{LOCK}");
    let hold = json!({"holderIdentity": "headgate", "acquireTime": in_seconds(0), "renewTime": in_seconds(0)});
    leader.done(&update(administrator, &path, spec(hold)).await).await;
    metadata_is_refused(administrator, leader, &path).await;
    let future = "more than 5 min in the future";
    for (changes, words) in [
        (json!({"holderIdentity": "x"}), "only under the name headgate"),
        (json!({"leaseDurationSeconds": i32::MAX}), "for 1 to 900 seconds"),
        (json!({"leaseDurationSeconds": null}), "for 1 to 900 seconds"),
        (json!({"leaseTransitions": 7}), "spec.leaseTransitions"),
        (json!({"renewTime": in_seconds(600)}), future),
        (json!({"renewTime": null}), future),
    ] {
        let ask = update(administrator, &path, spec(changes)).await;
        refused(leader, &ask, words).await.unwrap();
    }
    for (writer, allowed) in [("headgate", true), ("cloud-controller-manager", false)] {
        let annotations = json!({"aks-managed-resource-locker-previous-holder": writer});
        let ask = update(administrator, &path, metadata("annotations", annotations)).await;
        if allowed {
            leader.done(&ask).await;
        } else {
            refused(leader, &ask, "previous-holder").await.unwrap();
        }
    }
    forged_times_have_no_effect(administrator, leader, &path, future).await;

    let held_by = |seconds| {
        spec(json!({"holderIdentity": "ccm", "leaseDurationSeconds": 1200, "renewTime": in_seconds(seconds)}))
    };
    administrator
        .done(&update(administrator, &path, held_by(-1100)).await)
        .await;
    let release = || spec(json!({"holderIdentity": ""}));
    let take = || spec(json!({"holderIdentity": "headgate", "acquireTime": in_seconds(0), "renewTime": in_seconds(0)}));
    forge(administrator, leader, &path, "headgate", "2099-01-01T00:00:00Z").await;
    for ask in [
        update(administrator, &path, release()).await,
        update(administrator, &path, take()).await,
    ] {
        refused(leader, &ask, "its hold has not expired").await.unwrap();
    }
    let renewal = update(administrator, &path, spec(json!({"renewTime": in_seconds(0)}))).await;
    refused(leader, &renewal, "only under the name headgate").await.unwrap();
    administrator
        .done(&update(administrator, &path, held_by(-1210)).await)
        .await;
    leader.done(&update(administrator, &path, take()).await).await;
    leader.done(&update(administrator, &path, release()).await).await;

    // Without any managedFields the API server's time is not known, which must not stop a leader.
    let cleared = update(administrator, &path, metadata("managedFields", json!([{}]))).await;
    administrator.done(&cleared).await;
    leader.done(&update(administrator, &path, take()).await).await;
}

/// Writes an entry of `managedFields` for `renewTime` by hand, and changes nothing else.
async fn forge(administrator: &Caller, leader: &Caller, path: &str, manager: &str, time: &str) {
    for fields in [json!({}), json!({"f:x": {}}), json!({".": {}, "f:x": {}})] {
        for operation in ["Update", "Apply"] {
            let entry = json!({"manager": manager, "operation": operation, "apiVersion": "coordination.k8s.io/v1",
                "time": time, "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:renewTime": fields}}});
            leader
                .done(&update(administrator, path, metadata("managedFields", json!([entry]))).await)
                .await;
        }
    }
}

/// Neither in the future, which would lift the limit, nor in the past, which would refuse every renewal.
async fn forged_times_have_no_effect(administrator: &Caller, leader: &Caller, path: &str, future: &str) {
    for (manager, time) in [
        ("forged", "2099-01-01T00:00:00Z"),
        ("forged", "2020-01-01T00:00:00Z"),
        ("unknown", "2099-01-01T00:00:00Z"),
        ("unknown", "2020-01-01T00:00:00Z"),
    ] {
        forge(administrator, leader, path, manager, time).await;
        let renew = |seconds| spec(json!({"renewTime": in_seconds(seconds)}));
        let ask = update(administrator, path, renew(600)).await;
        refused(leader, &ask, future).await.unwrap();
        leader.done(&update(administrator, path, renew(0)).await).await;
    }
}

async fn the_ledger_stays_a_ledger_of_bounded_size(administrator: &Caller, leader: &Caller) {
    let path = format!("{MAPS}/{LEDGER}");
    metadata_is_refused(administrator, leader, &path).await;
    let words = "only the key ledger.json";
    for (key, value) in [
        ("data", json!({"ledger.json": "{}", "other": ""})),
        ("data", json!({"ledger.json": "x".repeat(1_000_001)})),
        ("data", json!({"ledger.json": "{}", "verify.json": "{}"})),
        ("binaryData", json!({"other": "AAAA"})),
        ("immutable", json!(true)),
    ] {
        let ask = update(administrator, &path, |map| map[key] = value).await;
        refused(leader, &ask, words).await.unwrap();
    }
    for text in ["{\"pools\": {}}".to_owned(), "x".repeat(1_000_000)] {
        let data = json!({"ledger.json": text});
        leader
            .done(&update(administrator, &path, |map| map["data"] = data).await)
            .await;
    }
    // As `headgate verify` of an administrator leaves its key behind, and whoever keeps a backup.
    let data = json!({"ledger.json": "{}", "verify.json": "{}", "ledger.json.old": "{}"});
    let ask = update(administrator, &path, |map| {
        map["data"] = data;
        map["binaryData"] = json!({"x": "AAAA"});
    });
    administrator.done(&ask.await).await;
    let ledger = json!("{\"pools\": {}}");
    leader
        .done(&update(administrator, &path, |map| map["data"]["ledger.json"] = ledger).await)
        .await;
    let ask = update(administrator, &path, |map| map["data"]["verify.json"] = json!("{} ")).await;
    refused(leader, &ask, words).await.unwrap();
    let annotations = json!({"headgate.dev/generation": "7"});
    leader
        .done(&update(administrator, &path, metadata("annotations", annotations)).await)
        .await;
}
