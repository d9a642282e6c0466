//! Maintenances on the real API server, with a token of the controllers and the rights that `maintenance.enabled` ships: they
//! suffice for a whole maintenance, each is needed, and the policy allows a cordon and own conditions to no other account.

use std::sync::Arc;

use headgate_controller::pool::read_node;
use headgate_core::clock::Clock;
use headgate_core::node::{NodeDetail, NodeReader, NodeTraffic, TrafficByNode};
use headgate_kubernetes::leader::{CandidatePlacement, LeaderElectionConfig, LeaderElector, Term, candidate_identity};
use headgate_kubernetes::{NodeWriteMetrics, TermAccess, TermStores, WatchReporter};
use headgate_maintenance::automatic::AutomaticMaintenances;
use headgate_maintenance::controller::{LoadBalancerSource, MaintenanceContext, Metrics, run};
use headgate_sandbox::control_plane::ControlPlane;
use headgate_test_kubernetes::{create_node, event_sink, eventually, met, series_value};
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::SOON;
use super::caller::{Account, ApiRequest, CONTROLLER, Caller, acting_on};
use super::leader::{Right, is_needed, scene};
use super::rendering::{folder, hardened_with_identity, merged};
use super::rights::{node, wait_for_status};

pub(super) const MAINTENANCES: &str = "/apis/headgate.dev/v1alpha1/nodemaintenances";
const EVACUATIONS: &str = "/apis/headgate.dev/v1alpha1/namespaces/kube-system/evacuations";
pub(super) const PODS: &str = "/api/v1/namespaces/kube-system/pods";
const BUDGETS: &str = "/apis/policy/v1/namespaces/kube-system/poddisruptionbudgets";
const UPGRADE_STATUS: &str = "kubernetes.azure.com/upgrade-status";
const ROLE: &str = "clusterroles/headgate-maintenance";

/// Controllers that act on maintenances with these values below `maintenance`, a leader's token, and a node to drain.
pub(super) async fn maintained(more: Value) -> (ControlPlane, Caller, Caller, String, String) {
    let values = merged(
        json!({"maintenance": {"enabled": true, "keepCRDs": false}}),
        json!({"maintenance": more}),
    );
    let folder = folder(&merged(hardened_with_identity(), values));
    let (control_plane, administrator, own, leader) = scene(&folder, CONTROLLER).await;
    let drained = create_node(&administrator.client, "drained").await;
    for path in [MAINTENANCES, EVACUATIONS] {
        wait_for_status(&leader, ApiRequest::get(&format!("{path}?limit=1")), 200).await;
    }
    let cordon = json!({"spec": {"unschedulable": true}});
    let cordon = ApiRequest::merge(&node(&drained), cordon).dry_run();
    wait_for_status(&leader, cordon, 200).await;
    (control_plane, administrator, leader, own, drained)
}

/// A pod without a grace period on a node that has no kubelet.
pub(super) async fn create_pod(administrator: &Caller, name: &str, on: &str, owner: Value) -> Value {
    let pod = json!({"metadata": {"name": name, "labels": {"app": name}, "ownerReferences": owner},
        "spec": {"nodeName": on, "serviceAccountName": CONTROLLER.name, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "none"}]}});
    administrator.post(PODS, pod).await
}

/// What kubelet reports of a pod that runs.
pub(super) async fn runs(administrator: &Caller, name: &str) {
    let ready = json!({"type": "Ready", "status": "True"});
    let status = json!({"status": {"phase": "Running", "conditions": [ready]}});
    administrator.merge(&format!("{PODS}/{name}/status"), status).await;
}

/// A budget, and what its controller reports.
pub(super) async fn create_budget(administrator: &Caller, name: &str, app: &str, allowed: i32) {
    let budget =
        json!({"metadata": {"name": name}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}});
    administrator.post(BUDGETS, budget).await;
    allow(administrator, name, allowed).await;
}

async fn allow(administrator: &Caller, name: &str, allowed: i32) {
    let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 1 + allowed,
        "desiredHealthy": 1, "expectedPods": 1 + allowed}});
    administrator.merge(&format!("{BUDGETS}/{name}/status"), status).await;
}

pub(super) fn maintenance(name: &str, stage: &str, of: &str) -> Value {
    let term = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [of]}]});
    json!({"apiVersion": "headgate.dev/v1alpha1", "kind": "NodeMaintenance", "metadata": {"name": name},
        "spec": {"nodeSelector": {"nodeSelectorTerms": [term]}, "stage": stage, "loadBalancer": {"connectionsDrainSeconds": 2}}})
}

pub(super) async fn is_gone(administrator: &Caller, path: &str) {
    wait_for_status(administrator, ApiRequest::get(path), 404).await;
}

/// Waits until an object is as expected.
pub(super) async fn until(administrator: &Caller, what: &str, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    eventually(SOON, what, async || {
        let (_, object) = administrator.ask(&ApiRequest::get(path)).await;
        if is_so(&object) {
            Ok(object)
        } else {
            Err(object.to_string())
        }
    })
    .await
}

fn conditions(object: &Value) -> Vec<String> {
    let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let mut kinds: Vec<_> = all
        .iter()
        .filter(|condition| condition["status"] == "True")
        .map(|condition| condition["type"].as_str().unwrap().to_owned())
        .collect();
    kinds.sort();
    kinds
}

/// Whether a Node has nothing of a maintenance.
pub(super) async fn is_as_before(administrator: &Caller, name: &str) {
    let left = administrator.get(&node(name)).await;
    assert_eq!(
        (&left["spec"]["unschedulable"], &left["spec"]["taints"]),
        (&Value::Null, &Value::Null),
        "{left}"
    );
    assert_eq!(
        left["metadata"]["annotations"]["headgate.dev/unschedulable-before-maintenance"],
        Value::Null
    );
    assert!(!conditions(&left).iter().any(|kind| kind != "Ready"), "{left}");
    assert_eq!(left["metadata"]["labels"][UPGRADE_STATUS], Value::Null);
}

/// A leader with the token, whose term runs the controllers.
pub(super) struct Leader {
    _task: AbortOnDropHandle<()>,
    registry: Registry,
    load_balancers: watch::Sender<Arc<TrafficByNode>>,
}

impl Leader {
    pub(super) fn start(leader: &Caller, own: &str) -> Self {
        Self::start_with(leader, own, AutomaticMaintenances::default())
    }

    /// The same with maintenances that it creates by itself.
    pub(super) fn start_with(leader: &Caller, own: &str, automatic: AutomaticMaintenances) -> Self {
        let clock = Clock::System;
        let mut registry = Registry::default();
        let load_balancers = watch::Sender::<Arc<TrafficByNode>>::default();
        let metrics = Metrics::register(&mut registry);
        let reader = NodeReader {
            detail: NodeDetail::Maintenance,
            ..NodeReader::default()
        };
        let node_writes = NodeWriteMetrics::register(&mut registry);
        let access = {
            let (client, clock, metrics) = (leader.client.clone(), clock.clone(), metrics.clone());
            move || {
                let reader = reader.clone();
                let reporter = |resource| WatchReporter::new(resource, metrics.watch_errors(), clock.clone());
                TermAccess {
                    client: client.clone(),
                    clock: clock.clone(),
                    read_node: move |node| read_node(node, &reader),
                    node_reporter: reporter("nodes"),
                    service_reporter: reporter("services"),
                    node_writes: node_writes.clone(),
                }
            }
        };
        let context = {
            let (client, clock) = (leader.client.clone(), clock.clone());
            let events = event_sink(client.clone(), own);
            let load_balancers = load_balancers.subscribe();
            move |stores: TermStores| MaintenanceContext {
                nodes: stores.nodes,
                services: stores.services,
                node_intents: stores.intents,
                client: client.clone(),
                events: events.clone(),
                metrics: metrics.clone(),
                clock: clock.clone(),
                load_balancers: LoadBalancerSource::Reads(load_balancers.clone()),
                max_concurrent_nodes: None,
                automatic: automatic.clone(),
                pauses_upgrades: true,
            }
        };
        let (client, identity) = (leader.client.clone(), candidate_identity(own));
        let config = LeaderElectionConfig::new(client, identity, CandidatePlacement::Replicas, clock);
        let elector = LeaderElector::new(config);
        let task = tokio::spawn(async move {
            let work = move |term: Term| {
                let (stores, run_stores) = term.stores(access());
                let context = context(stores);
                async move {
                    tokio::join!(run(term, context), run_stores);
                    Ok::<(), String>(())
                }
            };
            elector.run(CancellationToken::new(), work).await;
        });
        Self {
            _task: AbortOnDropHandle::new(task),
            registry,
            load_balancers,
        }
    }

    pub(super) fn observe_out(&self, node: &str) {
        let since = Timestamp::from_second(Timestamp::now().as_second()).unwrap();
        self.load_balancers.send_modify(|all| {
            Arc::make_mut(all).insert(node.to_owned(), NodeTraffic::Out { since: Some(since) });
        });
    }

    pub(super) fn metric(&self, series: &str) -> u64 {
        series_value(&self.registry, series)
    }
}

#[tokio::test]
async fn permissions_of_the_controllers_suffice_for_a_maintenance_and_are_all_needed() {
    let (control_plane, administrator, caller, own, drained) = maintained(json!({})).await;
    a_maintenance_runs(&administrator, &caller, &own, &drained).await;
    each_permission_is_needed_and_the_policy_allows_no_more(&control_plane, &administrator, &caller, &drained).await;
    control_plane.stop().await;
}

/// The owner of a pod of a `DaemonSet`.
fn of_daemon_set() -> Value {
    json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d-uid", "controller": true}])
}

/// A whole maintenance, from the cordon to its deletion.
async fn a_maintenance_runs(administrator: &Caller, caller: &Caller, own: &str, drained: &str) {
    let none = json!([]);
    create_pod(administrator, "web", drained, none.clone()).await;
    create_pod(administrator, "log", drained, of_daemon_set()).await;
    for name in ["blocked", "twice"] {
        create_pod(administrator, name, drained, none.clone()).await;
        runs(administrator, name).await;
    }
    create_pod(administrator, "elsewhere", own, none).await;
    create_budget(administrator, "blocked", "blocked", 0).await;
    for name in ["twice-1", "twice-2"] {
        create_budget(administrator, name, "twice", 1).await;
    }
    let leader = Leader::start(caller, own);
    administrator
        .post(MAINTENANCES, maintenance("m", "Drain", drained))
        .await;

    // Cordoned and tainted; nothing leaves before the load balancers are confirmed.
    let found = until(administrator, "the taint", &node(drained), |node| {
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        taints.iter().any(|taint| taint["key"] == "headgate.dev/maintenance")
    })
    .await;
    assert_eq!(found["spec"]["unschedulable"], true);
    until(administrator, "the label for AKS", &node(drained), |node| {
        node["metadata"]["labels"][UPGRADE_STATUS] == "paused"
    })
    .await;
    until(administrator, "the conditions of the Node", &node(drained), |node| {
        conditions(node).contains(&"DrainInProgress".to_owned())
    })
    .await;
    assert_eq!(administrator.get(EVACUATIONS).await["items"], json!([]));
    leader.observe_out(drained);

    // Refusals of both kinds, in the words of the API server.
    for (name, reason) in [("blocked", "DisruptionBudget"), ("twice", "MultipleDisruptionBudgets")] {
        eventually(SOON, reason, async || {
            let all = administrator.get(EVACUATIONS).await;
            let all = all["items"].as_array().unwrap().clone();
            let own = all.iter().find(|one| one["spec"]["podRef"]["name"] == name);
            let found = own.map(|one| one["status"]["conditions"][0]["reason"].clone());
            met(found == Some(json!(reason)), format!("{own:?}"))
        })
        .await;
    }
    is_gone(administrator, &format!("{PODS}/web")).await;
    let path = format!("{MAINTENANCES}/m");
    until(administrator, "the blockers", &path, |object| {
        let blockers = object["status"]["nodeStatuses"][0]["blockers"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let mut reasons: Vec<_> = blockers.iter().map(|blocker| blocker["reason"].clone()).collect();
        reasons.sort_by_key(ToString::to_string);
        reasons == [json!("DisruptionBudget"), json!("MultipleDisruptionBudgets")]
    })
    .await;
    administrator.get(&format!("{PODS}/log")).await;

    // Room lets them go, then the pod of the DaemonSet.
    allow(administrator, "blocked", 1).await;
    administrator.delete(&format!("{BUDGETS}/twice-2")).await;
    for name in ["blocked", "twice", "log"] {
        is_gone(administrator, &format!("{PODS}/{name}")).await;
    }
    until(administrator, "drained", &path, |object| {
        conditions(object) == ["Accepted", "Drained", "LoadBalancerOut", "Progressing"]
    })
    .await;
    administrator.get(&format!("{PODS}/elsewhere")).await;

    // Its deletion ends it, and leaves nothing.
    administrator.delete(&path).await;
    is_gone(administrator, &path).await;
    is_as_before(administrator, drained).await;
    for refused in [
        "headgate_maintenance_writes_total{outcome=\"refused\"}",
        "headgate_node_writes_total{field=\"maintenance\",outcome=\"refused\"}",
        "headgate_node_writes_total{field=\"maintenance_conditions\",outcome=\"refused\"}",
        "headgate_node_writes_total{field=\"upgrade_status\",outcome=\"refused\"}",
    ] {
        assert_eq!(leader.metric(refused), 0, "{refused}");
    }
    assert_eq!(
        leader.metric("headgate_maintenance_evictions_total{outcome=\"accepted\"}"),
        3
    );
    let events = administrator
        .get("/apis/events.k8s.io/v1/namespaces/default/events")
        .await;
    let events = events["items"].as_array().unwrap().clone();
    for reason in ["MaintenanceStageStarted", "NodesDrained", "MaintenanceCompleted"] {
        let about = |event: &Value| event["reason"] == reason && event["regarding"]["name"] == "m";
        assert!(events.iter().any(about), "no {reason} in {events:?}");
    }
}

/// Every request of the maintenance controllers, beside those of a leader.
async fn rights(administrator: &Caller, drained: &str) -> Vec<Right> {
    administrator
        .post(MAINTENANCES, maintenance("m", "Idle", drained))
        .await;
    create_pod(administrator, "log", drained, of_daemon_set()).await;
    let pod = create_pod(administrator, "web", drained, json!([])).await;
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let evacuation = |name: &str| {
        json!({"apiVersion": "headgate.dev/v1alpha1", "kind": "Evacuation", "metadata": {"name": format!("{uid}-{name}")},
            "spec": {"podRef": {"name": name, "uid": uid}, "progressDeadlineSeconds": 1800}})
    };
    administrator.post(EVACUATIONS, evacuation("web")).await;
    let mut rights = Vec::new();
    let mut add = |resource: &'static str, verb: &'static str, ask: ApiRequest| {
        let (ask, answer) = match verb {
            "get" | "list" | "watch" => (ask, 200),
            "create" => (ask.dry_run(), 201),
            _ => (ask.dry_run(), 200),
        };
        rights.push(Right::new(ROLE, (resource, None), verb, ask).answered(answer));
    };
    let all_evacuations = "/apis/headgate.dev/v1alpha1/evacuations";
    let (all_budgets, all_pods) = ("/apis/policy/v1/poddisruptionbudgets", "/api/v1/pods");
    for (resource, path) in [
        ("nodemaintenances", MAINTENANCES),
        ("evacuations", all_evacuations),
        ("poddisruptionbudgets", all_budgets),
        ("pods", all_pods),
    ] {
        add(resource, "list", ApiRequest::get(&format!("{path}?limit=1")));
        let watch = format!("{path}?watch=true&timeoutSeconds=1");
        add(resource, "watch", ApiRequest::get(&watch));
    }
    let (m, e) = (format!("{MAINTENANCES}/m"), format!("{EVACUATIONS}/{uid}-web"));
    let finalizer = json!({"metadata": {"finalizers": ["headgate.dev/maintenance-completion"]}});
    add("nodemaintenances", "patch", ApiRequest::merge(&m, finalizer));
    let ask = ApiRequest::put(&format!("{m}/status"), administrator.get(&m).await);
    add("nodemaintenances/status", "update", ask);
    add(
        "evacuations",
        "create",
        ApiRequest::post(EVACUATIONS, evacuation("new")),
    );
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    add("evacuations", "patch", ApiRequest::merge(&e, label));
    add("evacuations", "delete", ApiRequest::delete(&e));
    let ask = ApiRequest::put(&format!("{e}/status"), administrator.get(&e).await);
    add("evacuations/status", "update", ask);
    let condition = json!({"status": {"conditions": [{"type": "Drained", "status": "True"}]}});
    let ask = ApiRequest::strategic(&format!("{}/status", node(drained)), condition);
    add("nodes/status", "patch", ask);
    let web = format!("{PODS}/web");
    add("pods", "get", ApiRequest::get(&web));
    add("pods", "delete", ApiRequest::delete(&format!("{PODS}/log")));
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web"}});
    let ask = ApiRequest::post(&format!("{web}/eviction"), eviction);
    add("pods/eviction", "create", ask);
    rights
}

/// A user with all rights on maintenances other than the controllers neither writes a status nor completes one.
async fn status_and_stage_are_the_controllers_own(control_plane: &ControlPlane, administrator: &Caller, drained: &str) {
    let path = format!("{MAINTENANCES}/own");
    administrator
        .post(MAINTENANCES, maintenance("own", "Idle", drained))
        .await;
    let foreign = Account {
        namespace: "default",
        name: CONTROLLER.name,
    };
    let account = json!({"metadata": {"name": foreign.name}});
    administrator
        .post("/api/v1/namespaces/default/serviceaccounts", account)
        .await;
    let rule = json!({"apiGroups": ["headgate.dev"], "resources": ["nodemaintenances"], "verbs": ["*"]});
    administrator.grant(rule, &[foreign]).await;
    let foreign = acting_on(control_plane, foreign, drained).await;
    wait_for_status(&foreign, ApiRequest::get(&path), 200).await;

    let state = ApiRequest::merge(&format!("{path}/status"), json!({"status": {"drainMessage": "forged"}}));
    let complete = ApiRequest::merge(&path, json!({"spec": {"stage": "Complete"}}));
    for (caller, ask, words) in [
        (
            administrator,
            &state,
            "only headgate's controllers may write the status",
        ),
        (&foreign, &complete, "needs the right to delete each of its nodes"),
    ] {
        eventually(SOON, words, async || caller.is_refused(ask, &[words]).await).await;
    }
    administrator.delete(&path).await;
}

/// Changes of a Node.
const FORBIDDEN_CHANGES: &str = r#"
merge NODE {metadata: {labels: {a: b}}} → metadata.labels
merge NODE {metadata: {labels: {a: b, kubernetes.azure.com/upgrade-status: paused}}} → metadata.labels
merge NODE/status {status: {capacity: {cpu: "99"}}} → status.capacity
strategic NODE/status {status: {conditions: [{type: Ready, status: "False"}]}} → status.conditions
merge NODE/status {metadata: {annotations: {headgate.dev/x: "1"}}} → metadata.annotations
"#;

async fn each_permission_is_needed_and_the_policy_allows_no_more(
    control_plane: &ControlPlane,
    administrator: &Caller,
    leader: &Caller,
    drained: &str,
) {
    for right in rights(administrator, drained).await {
        is_needed(administrator, leader, right).await;
    }

    // The policy: a cordon and own conditions, and nothing else of a Node.
    let path = node(drained);
    for (ask, words) in ApiRequest::refusals(&FORBIDDEN_CHANGES.replace("NODE", &path)) {
        leader.refused(&ask.dry_run(), &[words]).await;
    }
    let pod = ApiRequest::delete(&format!("{PODS}/web")).dry_run();
    leader.refused(&pod, &["only those of DaemonSets"]).await;
    let unbound = administrator.token(CONTROLLER.namespace, CONTROLLER.name, None).await;
    let unbound = Caller::with_token(control_plane, &unbound).await;
    let web = format!("{PODS}/web/eviction");
    let mut eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web"}});
    let ask = ApiRequest::post(&web, eviction.clone()).dry_run();
    let bound = "with a token that is bound to a Pod";
    unbound.refused(&ask, &[bound]).await;
    let uid = administrator.get(&format!("{PODS}/web")).await["metadata"]["uid"].clone();
    let evacuation = format!("{EVACUATIONS}/{}-web", uid.as_str().unwrap());
    let finalizers = json!({"metadata": {"finalizers": ["evacuation.headgate.dev/instigator_another"]}});
    let status = administrator.get(&evacuation).await;
    for ask in [
        ApiRequest::merge(&evacuation, finalizers),
        ApiRequest::put(&format!("{evacuation}/status"), status),
    ] {
        unbound.refused(&ask.dry_run(), &[bound]).await;
    }
    // An eviction is of one pod, and no other of its name.
    eviction["deleteOptions"] = json!({"preconditions": {"uid": "another"}});
    let (answer, body) = leader.ask(&ApiRequest::post(&web, eviction)).await;
    assert_eq!(answer, 409, "{body}");

    status_and_stage_are_the_controllers_own(control_plane, administrator, drained).await;

    // Without the right to the statuses of maintenances there is no right to cordon.
    let role = format!("{}/{ROLE}", super::rights::RBAC);
    administrator.merge(&role, json!({"rules": []})).await;
    let cordon = ApiRequest::merge(&path, json!({"spec": {"unschedulable": true}}));
    wait_for_status(leader, cordon.dry_run(), 403).await;
}
