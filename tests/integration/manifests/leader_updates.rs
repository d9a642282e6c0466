//! What the policy `headgate-leader` lets a leader write into its Leases and the ledger, with nothing but the shipped rights, both where
//! the leader runs in the `DaemonSet` and where it is apart.

use headgate_test_kubernetes::eventually;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::SOON;
use super::caller::{ApiRequest, Caller};
use super::leader::{LEASES, LEDGER, LOCK, MAPS, OWN, new_objects};
use super::leader_policy::refused;

/// One of the leader's objects.
struct Object<'a> {
    path: String,
    administrator: &'a Caller,
    leader: &'a Caller,
}

impl Object<'_> {
    /// An update, as `change` makes it of what is there; the API server keeps its `managedFields`.
    async fn update(&self, change: impl FnOnce(&mut Value)) -> ApiRequest {
        let mut object = self.administrator.get(&self.path).await;
        object["metadata"]["managedFields"].take();
        change(&mut object);
        ApiRequest::put(&self.path, object)
    }

    /// The leader may write the change.
    async fn allows(&self, change: impl FnOnce(&mut Value)) {
        self.leader.done(&self.update(change).await).await;
    }

    /// The leader may not, for this reason.
    async fn refuses(&self, change: impl FnOnce(&mut Value), words: &str) {
        refused(self.leader, &self.update(change).await, words).await.unwrap();
    }

    /// Somebody else writes the change.
    async fn change(&self, change: impl FnOnce(&mut Value)) {
        self.administrator.done(&self.update(change).await).await;
    }
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
async fn metadata_is_refused(object: &Object<'_>) {
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}]);
    let foreign = json!({"example.com/a": "b"});
    let long = json!({"headgate.dev/nodes": "1".repeat(1024)});
    let many = (0..17).map(|number| (format!("headgate.dev/{number}"), json!("")));
    let many = Value::Object(many.collect());
    let mut cases = vec![
        ("labels", json!({"a": "b"}), "metadata.labels"),
        ("finalizers", json!(["example.com/keep"]), "metadata.finalizers"),
        ("ownerReferences", owner, "metadata.ownerReferences"),
        ("annotations", foreign, "the annotations example.com/a"),
        ("managedFields", json!([{}]), "may not remove metadata.managedFields"),
    ];
    if !object.path.ends_with(LOCK) {
        cases.push(("annotations", long, "at most 16 annotations"));
        cases.push(("annotations", many, "at most 16 annotations"));
    }
    for (key, value, words) in cases {
        object.refuses(metadata(key, value), words).await;
    }
}

/// `leader` is the one of the Node `own`; the objects of another leader are replaced.
pub(super) async fn a_leader_writes_nothing_else_into_its_objects(administrator: &Caller, own: &str, leader: &Caller) {
    for ask in new_objects(own) {
        let name = ask.body["metadata"]["name"].as_str().unwrap();
        administrator.delete(&format!("{}/{name}", ask.path)).await;
        administrator.done(&ask).await;
    }
    let object = |path: String| Object {
        path,
        administrator,
        leader,
    };
    let election = object(format!("{LEASES}/{OWN}"));
    let ask = election
        .update(metadata("labels", json!({"not": "yet"})))
        .await
        .dry_run();
    eventually(SOON, "role and policy are in force", async || {
        refused(leader, &ask, "metadata.labels").await
    })
    .await;
    the_election_is_held_in_the_own_nodes_name_and_for_a_bounded_time(&election, own).await;
    let lock = object(format!("{LEASES}/{LOCK}"));
    the_shared_lease_is_held_under_one_name_for_a_bounded_time_and_not_taken_from_its_holder(&lock).await;
    the_ledger_stays_a_ledger_of_bounded_size(&object(format!("{MAPS}/{LEDGER}"))).await;
}

async fn the_election_is_held_in_the_own_nodes_name_and_for_a_bounded_time(election: &Object<'_>, own: &str) {
    let ours = json!(format!("{own}_2"));
    metadata_is_refused(election).await;
    let name = "only under a name that begins with its own Node and _";
    let time = "for 1 to 60 seconds";
    for (changes, words) in [
        (json!({"holderIdentity": "other_1"}), name),
        (json!({"holderIdentity": format!("{own}1")}), name),
        (json!({"holderIdentity": "_1"}), name),
        (json!({"holderIdentity": ours, "leaseDurationSeconds": 61}), time),
        (json!({"leaseDurationSeconds": i32::MAX}), time),
        (json!({"leaseDurationSeconds": null}), time),
    ] {
        election.refuses(spec(changes), words).await;
    }
    // Another one's hold can be ended and taken over, since CEL has no clock, but not prolonged.
    let foreign = spec(json!({"holderIdentity": "other_1", "renewTime": in_seconds(-5)}));
    election.change(foreign).await;
    let renewal = spec(json!({"renewTime": in_seconds(0)}));
    election.refuses(renewal, name).await;
    for changes in [
        json!({"holderIdentity": ours, "leaseDurationSeconds": 15, "leaseTransitions": 7,
            "acquireTime": in_seconds(0), "renewTime": in_seconds(0)}),
        json!({"renewTime": in_seconds(1)}),
        json!({"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": in_seconds(2)}),
    ] {
        election.allows(spec(changes)).await;
    }
    let annotations = json!({"headgate.dev/nodes": "7", "headgate.dev/failed-terms": "1"});
    election.allows(metadata("annotations", annotations)).await;
}

async fn the_shared_lease_is_held_under_one_name_for_a_bounded_time_and_not_taken_from_its_holder(lock: &Object<'_>) {
    let take = || spec(json!({"holderIdentity": "headgate", "acquireTime": in_seconds(0), "renewTime": in_seconds(0)}));
    lock.allows(take()).await;
    metadata_is_refused(lock).await;
    let future = "more than 5 min in the future";
    for (changes, words) in [
        (json!({"holderIdentity": "x"}), "only under the name headgate"),
        (json!({"leaseDurationSeconds": i32::MAX}), "for 1 to 900 seconds"),
        (json!({"leaseDurationSeconds": null}), "for 1 to 900 seconds"),
        (json!({"leaseTransitions": 7}), "spec.leaseTransitions"),
        (json!({"renewTime": in_seconds(600)}), future),
        (json!({"renewTime": null}), future),
    ] {
        lock.refuses(spec(changes), words).await;
    }
    let previous = |holder: &str| {
        let annotations = json!({"aks-managed-resource-locker-previous-holder": holder});
        metadata("annotations", annotations)
    };
    lock.allows(previous("headgate")).await;
    lock.refuses(previous("cloud-controller-manager"), "previous-holder")
        .await;
    forged_times_have_no_effect(lock, future).await;

    let held_by = |seconds| {
        spec(json!({"holderIdentity": "ccm", "leaseDurationSeconds": 1200, "renewTime": in_seconds(seconds)}))
    };
    lock.change(held_by(-1100)).await;
    let release = || spec(json!({"holderIdentity": ""}));
    forge(lock, "headgate", "2099-01-01T00:00:00Z").await;
    lock.refuses(release(), "its hold has not expired").await;
    lock.refuses(take(), "its hold has not expired").await;
    let renewal = spec(json!({"renewTime": in_seconds(0)}));
    lock.refuses(renewal, "only under the name headgate").await;
    lock.change(held_by(-1210)).await;
    lock.allows(take()).await;
    lock.allows(release()).await;

    // Without any managedFields the API server's time is not known, which must not stop a leader.
    lock.change(metadata("managedFields", json!([{}]))).await;
    lock.allows(take()).await;
}

/// Writes an entry of `managedFields` for `renewTime` by hand, and changes nothing else.
async fn forge(lock: &Object<'_>, manager: &str, time: &str) {
    for fields in [json!({}), json!({"f:x": {}}), json!({".": {}, "f:x": {}})] {
        for operation in ["Update", "Apply"] {
            let entry = json!({"manager": manager, "operation": operation, "apiVersion": "coordination.k8s.io/v1",
                "time": time, "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:renewTime": fields}}});
            lock.allows(metadata("managedFields", json!([entry]))).await;
        }
    }
}

/// Neither in the future, which would lift the limit, nor in the past, which would refuse every renewal.
async fn forged_times_have_no_effect(lock: &Object<'_>, future: &str) {
    for (manager, time) in [
        ("forged", "2099-01-01T00:00:00Z"),
        ("forged", "2020-01-01T00:00:00Z"),
        ("unknown", "2099-01-01T00:00:00Z"),
        ("unknown", "2020-01-01T00:00:00Z"),
    ] {
        forge(lock, manager, time).await;
        let renew = |seconds| spec(json!({"renewTime": in_seconds(seconds)}));
        lock.refuses(renew(600), future).await;
        lock.allows(renew(0)).await;
    }
}

async fn the_ledger_stays_a_ledger_of_bounded_size(ledger: &Object<'_>) {
    metadata_is_refused(ledger).await;
    let words = "only the key ledger.json";
    for (key, value) in [
        ("data", json!({"ledger.json": "{}", "other": ""})),
        ("data", json!({"ledger.json": "x".repeat(1_000_001)})),
        ("data", json!({"ledger.json": "{}", "verify.json": "{}"})),
        ("binaryData", json!({"other": "AAAA"})),
        ("immutable", json!(true)),
    ] {
        ledger.refuses(|map| map[key] = value, words).await;
    }
    for text in ["{\"pools\": {}}".to_owned(), "x".repeat(1_000_000)] {
        let data = json!({"ledger.json": text});
        ledger.allows(|map| map["data"] = data).await;
    }
    // As `headgate verify` of an administrator leaves its key behind, and whoever keeps a backup.
    let data = json!({"ledger.json": "{}", "verify.json": "{}", "ledger.json.old": "{}"});
    let change = |map: &mut Value| {
        map["data"] = data;
        map["binaryData"] = json!({"x": "AAAA"});
    };
    ledger.change(change).await;
    let text = json!("{\"pools\": {}}");
    ledger.allows(|map| map["data"]["ledger.json"] = text).await;
    ledger
        .refuses(|map| map["data"]["verify.json"] = json!("{} "), words)
        .await;
    let annotations = json!({"headgate.dev/generation": "7"});
    ledger.allows(metadata("annotations", annotations)).await;
}
