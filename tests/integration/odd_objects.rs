//! Mutated objects of each kind that headgate reads, through the real kube-apiserver: what it accepts is decoded or skipped, and hides
//! no other object. `HEADGATE_MUTATIONS` sets the number of mutations of each kind.

use headgate_core::node::NodeObject;
use headgate_kubernetes::{Decoded, split_list};
use headgate_maintenance::api::{Evacuation, NodeMaintenance};
use headgate_test_kubernetes::own_cluster;
use hyper::Request;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ObjectList;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::maintenance::apply_kinds;

/// Mutations of each kind in CI.
const MUTATIONS: usize = 150;
const TIMES: [&str; 9] = [
    "9999-12-31T23:59:59Z",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-23:59",
    "0000-01-01T00:00:00Z",
    "0000-01-01T00:00:00+23:59",
    "0001-01-01T00:00:00Z",
    "2016-12-31T23:59:60Z",
    "2026-01-02T03:04:05x5Z",
    "2026-01-02T03:04:05+24:59",
];

/// What becomes of the mutations of one kind.
#[derive(Debug, Default)]
struct Counts {
    sent: usize,
    accepted: usize,
    repaired: usize,
    skipped: usize,
}

/// What becomes of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Decoded,
    Repaired,
    Skipped,
}

/// Objects of one kind: what makes the first one, and whether it has a status that is written for itself.
struct Sample {
    path: &'static str,
    object: Value,
    has_status: bool,
}

fn request(method: &str, path: &str, body: &Value) -> Request<Vec<u8>> {
    let request = Request::builder().method(method).uri(path);
    let request = request.header("Content-Type", "application/json");
    request.body(body.to_string().into_bytes()).unwrap()
}

fn samples() -> Vec<Sample> {
    const NOW: &str = "2026-01-02T03:04:05Z";
    let sample = |path, object: Value, has_status| Sample {
        path,
        object,
        has_status,
    };
    let condition =
        |kind: &str| json!({"type": kind, "status": "True", "reason": "R", "message": "m", "lastTransitionTime": NOW});
    let selector = json!({"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["one"]}]}]});
    let template = json!({"name": "c", "image": "i"});
    vec![
        sample(
            "/api/v1/nodes",
            json!({"apiVersion": "v1", "kind": "Node", "spec": {"providerID": "azure:///a", "unschedulable": true,
                "taints": [{"key": "k", "value": "v", "effect": "NoSchedule", "timeAdded": NOW}]},
                "status": {"conditions": [condition("Ready")], "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "capacity": {"cpu": "1"}, "images": [{"names": ["a"], "sizeBytes": 1}]}}),
            true,
        ),
        sample(
            "/api/v1/namespaces/default/services",
            json!({"apiVersion": "v1", "kind": "Service", "spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local",
                "ports": [{"port": 80, "targetPort": 8080}], "selector": {"a": "b"}},
                "status": {"conditions": [condition("C")], "loadBalancer": {"ingress": [{"ip": "10.0.0.9"}]}}}),
            true,
        ),
        sample(
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true}, "nodeName": "one"}],
                "ports": [{"name": "p", "port": 80, "protocol": "TCP"}]}),
            false,
        ),
        sample(
            "/api/v1/namespaces/default/pods",
            json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [template], "nodeName": "one",
                "automountServiceAccountToken": false, "tolerations": [{"operator": "Exists"}]},
                "status": {"phase": "Running", "startTime": NOW, "conditions": [condition("Ready")]}}),
            true,
        ),
        sample(
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
            json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": {"minAvailable": 1,
                "selector": {"matchLabels": {"a": "b"}}}, "status": {"disruptionsAllowed": 1, "currentHealthy": 1,
                "desiredHealthy": 1, "expectedPods": 1, "disruptedPods": {"p": NOW}, "conditions": [condition("C")]}}),
            true,
        ),
        sample(
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"holderIdentity": "a",
                "leaseDurationSeconds": 15, "leaseTransitions": 1, "acquireTime": "2026-01-02T03:04:05.000000Z",
                "renewTime": "2026-01-02T03:04:05.000000Z"}}),
            false,
        ),
        sample(
            "/api/v1/namespaces/default/events",
            json!({"apiVersion": "v1", "kind": "Event", "involvedObject": {"kind": "Node", "name": "one"}, "reason": "R",
                "message": "m", "type": "Normal", "firstTimestamp": NOW, "lastTimestamp": NOW, "count": 1}),
            false,
        ),
        sample(
            "/api/v1/namespaces/default/configmaps",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}),
            false,
        ),
        sample(
            "/apis/headgate.dev/v1alpha1/nodemaintenances",
            json!({"apiVersion": "headgate.dev/v1alpha1", "kind": "NodeMaintenance", "spec": {"nodeSelector": selector, "stage": "Drain"},
                "status": {"observedGeneration": 1, "stageStatuses": [{"name": "Cordon", "startTimestamp": NOW}], "selectedNodes": 1,
                "nodeStatuses": [{"nodeRef": {"name": "one"}, "loadBalancer": {"state": "Pending", "waitStartTime": NOW},
                "blockers": [{"podRef": {"namespace": "a", "name": "b"}, "reason": "Terminating", "message": "m", "firstObservedTime": NOW}]}],
                "conditions": [condition("Drained")]}}),
            true,
        ),
        sample(
            "/apis/headgate.dev/v1alpha1/namespaces/default/evacuations",
            json!({"apiVersion": "headgate.dev/v1alpha1", "kind": "Evacuation", "spec": {"podRef": {"name": "p", "uid": "u"},
                "progressDeadlineSeconds": 600}, "status": {"activeEvacuatorClass": "a", "evacuationProgressTimestamp": NOW,
                "expectedEvacuationFinishTime": NOW, "message": "m", "conditions": [condition("Invalid")]}}),
            true,
        ),
    ]
}

/// The pointers to all values of an object.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(members) => members.iter().map(|(name, value)| (name.clone(), value)).collect(),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(index, value)| (index.to_string(), value))
            .collect(),
        _ => Vec::new(),
    };
    for (name, child) in children {
        let pointer = format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
        pointers(child, &pointer, found);
        found.push(pointer);
    }
}

/// Changes one value, or adds an entry of `managedFields`.
fn mutate(object: &mut Value, random: &mut fastrand::Rng) {
    let mut all = Vec::new();
    pointers(object, "", &mut all);
    if random.u8(..8) == 0 {
        // The manager keeps the field, as the request changes another one.
        let mut fields = json!({"f:metadata": {"f:annotations": {"f:time": {}}}});
        if random.bool() {
            let depth = random.usize(1..120);
            fields["f:status"] = (0..depth).fold(json!({}), |inner, _| json!({"f:a": inner}));
        }
        let entry = json!({"manager": "x", "operation": "Update", "apiVersion": "v1", "time": random.choice(TIMES).unwrap(),
            "fieldsType": "FieldsV1", "fieldsV1": fields});
        object["metadata"]["annotations"]["a"] = json!("b");
        object["metadata"]["managedFields"] = json!([entry]);
        return;
    }
    let at = random.choice(&all).unwrap();
    let value = object.pointer_mut(at).unwrap();
    let is_time = value.as_str().is_some_and(|text| text.starts_with("2026-"));
    *value = match random.u8(..if is_time { 4 } else { 16 }) {
        0..=4 => json!(random.choice(TIMES).unwrap()),
        5 => Value::Null,
        6 => json!(0),
        7 => json!(-1),
        8 => json!(i32::MAX),
        9 => json!(i64::MAX),
        10 => json!(true),
        11 => json!([]),
        12 => json!({}),
        13 => json!(""),
        14 => json!("x".repeat(5000)),
        _ => json!("\u{0000}\u{ffff}None"),
    };
}

/// What becomes of an item of this kind. The ones beside it are always decoded.
fn decode<K>(accepted: &Value, anchor: &Value) -> Outcome
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned,
{
    let text = json!({"metadata": {}, "items": [anchor, accepted, anchor]}).to_string();
    let list: ObjectList<Decoded<K>> = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let (objects, undecodable) = split_list(list);
    for item in &undecodable {
        println!("  {} {item}", K::kind(&()));
    }
    assert!(objects.len() >= 2, "{undecodable:?}");
    if serde_json::from_str::<K>(&accepted.to_string()).is_ok() {
        Outcome::Decoded
    } else if undecodable.is_empty() {
        Outcome::Repaired
    } else {
        Outcome::Skipped
    }
}

/// What becomes of an object, by the types that headgate has for the kind.
fn outcome(kind: &str, accepted: &Value, anchor: &Value) -> Outcome {
    match kind {
        "Node" => decode::<Node>(accepted, anchor).max(decode::<NodeObject>(accepted, anchor)),
        "Service" => decode::<Service>(accepted, anchor),
        "EndpointSlice" => decode::<EndpointSlice>(accepted, anchor),
        "Pod" => decode::<Pod>(accepted, anchor),
        "PodDisruptionBudget" => decode::<PodDisruptionBudget>(accepted, anchor),
        "Lease" => decode::<Lease>(accepted, anchor),
        "Event" => decode::<Event>(accepted, anchor),
        "ConfigMap" => decode::<ConfigMap>(accepted, anchor),
        "NodeMaintenance" => decode::<NodeMaintenance>(accepted, anchor),
        "Evacuation" => decode::<Evacuation>(accepted, anchor),
        other => panic!("{other}"),
    }
}

/// Creates the object with its status.
async fn create(client: &Client, sample: &Sample) -> Value {
    let mut object = sample.object.clone();
    object["metadata"]["name"] = json!(if sample.path.ends_with("evacuations") {
        "u-p"
    } else {
        "odd"
    });
    object["metadata"]["annotations"] = json!({"time": TIMES[0]});
    let mut stored: Value = client.request(request("POST", sample.path, &object)).await.unwrap();
    if sample.has_status {
        stored["status"] = object["status"].clone();
        let name = stored["metadata"]["name"].as_str().unwrap();
        let path = format!("{}/{name}/status", sample.path);
        stored = client.request(request("PUT", &path, &stored)).await.unwrap();
    }
    stored
}

async fn mutate_objects(client: &Client, sample: &Sample, mutations: usize, random: &mut fastrand::Rng) -> Counts {
    let anchor = create(client, sample).await;
    let (name, kind) = (
        anchor["metadata"]["name"].as_str().unwrap(),
        sample.object["kind"].as_str().unwrap(),
    );
    let mut counts = Counts::default();
    for _ in 0..mutations {
        let mut object = anchor.clone();
        mutate(&mut object, random);
        let subresource = if sample.has_status && random.bool() {
            "/status"
        } else {
            ""
        };
        let path = format!("{}/{name}{subresource}?dryRun=All", sample.path);
        counts.sent += 1;
        // The API server refuses many.
        let Ok(accepted) = client.request::<Value>(request("PUT", &path, &object)).await else {
            continue;
        };
        counts.accepted += 1;
        match outcome(kind, &accepted, &anchor) {
            Outcome::Decoded => {}
            Outcome::Repaired => counts.repaired += 1,
            Outcome::Skipped => counts.skipped += 1,
        }
    }
    println!("{kind}: {counts:?}");
    counts
}

#[tokio::test]
async fn what_the_api_server_accepts_is_decoded_or_skipped() {
    let mutations = std::env::var("HEADGATE_MUTATIONS")
        .ok()
        .and_then(|text| text.parse().ok());
    let (control_plane, client) = own_cluster().await;
    apply_kinds(&control_plane, &client).await;
    // Pods need it, and no controller creates it here.
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let _: Value = client.request(request("POST", accounts, &account)).await.unwrap();
    let mut random = fastrand::Rng::with_seed(26);
    let mut repaired = 0;
    for sample in samples() {
        let counts = mutate_objects(&client, &sample, mutations.unwrap_or(MUTATIONS), &mut random).await;
        assert!(counts.accepted > 0, "{counts:?}");
        // Kubernetes' own kinds have no value but times that their types cannot hold.
        if !sample.path.contains("headgate.dev") {
            assert_eq!(counts.skipped, 0, "{}", sample.path);
        }
        repaired += counts.repaired;
    }
    assert!(repaired > 0, "no mutation was odd");
    control_plane.stop().await;
}
