//! The hardened overlay: its two kinds of pods, that a real cluster schedules the controllers
//! apart and away from signalled nodes, and how Pod Security judges them.

use headgate::config::Settings;
use headgate_test_kubernetes::{eventually, is_kubernetes_1_30, met, own_control_plane};
use serde_json::{Value, json};

use super::apply::{PODS, in_folder, node, ready, with_controllers};
use super::caller::{ApiRequest, Caller};
use super::rendering::{self, folder, hardened_with_identity, leading_agents};
use super::{SOON, assert_says, base, only, render, stdout_of};

fn hardened() -> Vec<Value> {
    render(&folder(&rendering::hardened()))
}

fn words(value: &Value) -> Vec<String> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn the_hardened_daemonset_differs_from_base_only_in_its_role() {
    let (plain, hardened) = (base(), hardened());
    let mut expected = only(&plain, "DaemonSet").clone();
    expected["metadata"]["labels"]["headgate.dev/role"] = json!("agent");
    let arguments = &mut expected["spec"]["template"]["spec"]["containers"][0]["args"];
    arguments.as_array_mut().unwrap().push(json!("--role=agent"));
    assert_eq!(only(&hardened, "DaemonSet"), &expected);
}

#[test]
fn each_workload_sets_its_role_with_valid_arguments() {
    for (values, kind, role) in [
        (json!({}), "DaemonSet", "all"),
        (leading_agents(), "DaemonSet", "all"),
        (hardened_with_identity(), "DaemonSet", "agent"),
        (hardened_with_identity(), "Deployment", "controller"),
    ] {
        let objects = render(&folder(&values));
        let workload = only(&objects, kind);
        assert_eq!(workload["metadata"]["labels"]["headgate.dev/role"], role, "{values}");
        let arguments = words(&workload["spec"]["template"]["spec"]["containers"][0]["args"]);
        let roles: Vec<&str> = arguments
            .iter()
            .filter_map(|word| word.strip_prefix("--role="))
            .collect();
        assert_eq!(roles.first().copied().unwrap_or("all"), role, "{values}");
        let line = ["/headgate".to_owned()].into_iter().chain(arguments);
        let line = line.chain(["--node-name=n".to_owned()]);
        let parsed = headgate::cli::definition().try_get_matches_from(line);
        parsed.unwrap_or_else(|error| panic!("{values} {kind}: {error}"));
    }
}

#[test]
fn two_controllers_are_spread_and_have_least_privilege() {
    let objects = hardened();
    let deployment = only(&objects, "Deployment");
    let labels = json!({"app.kubernetes.io/name": "headgate", "app.kubernetes.io/component": "controller"});
    let apart = json!([{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels},
        "matchLabelKeys": ["pod-template-hash"]}]);
    assert_says(
        deployment,
        &json!({"metadata": {"namespace": "kube-system"}, "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": {"metadata": {"labels": labels}, "spec": {
                "serviceAccountName": "headgate-controller",
                "priorityClassName": "system-cluster-critical",
                "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}},
            }},
        }}),
    );
    let spread = &deployment["spec"]["template"]["spec"]["topologySpreadConstraints"];
    assert_eq!(spread.as_array().unwrap().len(), 1);
    assert_says(
        &spread[0],
        &json!({"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": labels}}),
    );
    assert_says(
        only(&objects, "PodDisruptionBudget"),
        &json!({"spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}}}),
    );

    // Apart from the network and the arguments above, the pod equals one of the DaemonSet.
    let (pod, agent) = (
        &deployment["spec"]["template"]["spec"],
        &only(&objects, "DaemonSet")["spec"]["template"]["spec"],
    );
    for key in ["hostNetwork", "hostPID", "hostIPC", "initContainers"] {
        assert_eq!(pod.get(key), None, "{key}");
    }
    for key in ["securityContext", "nodeSelector", "dnsPolicy", "enableServiceLinks"] {
        assert_eq!(pod[key], agent[key], "{key}");
    }
    let (container, of_agent) = (&pod["containers"][0], &agent["containers"][0]);
    assert_eq!(pod["containers"].as_array().unwrap().len(), 1);
    for key in [
        "securityContext",
        "startupProbe",
        "readinessProbe",
        "livenessProbe",
        "volumeMounts",
        "image",
        "env",
    ] {
        assert_eq!(container[key], of_agent[key], "{key}");
    }
    assert_eq!(container["resources"]["limits"].get("cpu"), None);
    assert_eq!(container["ports"][0]["containerPort"], headgate::config::METRICS_PORT);
}

#[test]
fn controllers_tolerate_no_drain_signal() {
    let objects = hardened();
    let pod = &only(&objects, "Deployment")["spec"]["template"]["spec"];
    let signals = Settings::default().signals;
    let matchers = [signals.health().matchers, signals.admin_state().matchers].concat();
    let mut keys: Vec<String> = matchers.iter().map(ToString::to_string).collect();
    keys.push("node.kubernetes.io/unschedulable".to_owned());
    for toleration in pod["tolerations"].as_array().unwrap() {
        let key = toleration["key"].as_str().expect("not everything");
        assert!(!keys.iter().any(|signal| signal == key), "{key}");
    }
}

/// The Nodes of the controllers that are scheduled and not terminating.
async fn controllers(administrator: &Caller) -> Vec<(String, Value)> {
    let path = format!("{PODS}?labelSelector=app.kubernetes.io/component%3Dcontroller");
    let pods = administrator.get(&path).await["items"].as_array().unwrap().clone();
    let mut found: Vec<(String, Value)> = pods
        .into_iter()
        .filter(|pod| pod["metadata"].get("deletionTimestamp").is_none())
        .filter_map(|pod| Some((pod["spec"]["nodeName"].as_str()?.to_owned(), pod)))
        .collect();
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    found
}

async fn on_nodes(administrator: &Caller, nodes: &[&str]) -> Vec<Value> {
    eventually(SOON, &format!("controllers on {nodes:?}"), async || {
        let found = controllers(administrator).await;
        if found.iter().map(|(node, _)| node).eq(nodes) {
            Ok(found.into_iter().map(|(_, pod)| pod).collect())
        } else {
            Err(format!("{:?}", found.iter().map(|(node, _)| node).collect::<Vec<_>>()))
        }
    })
    .await
}

/// Evicts a Pod; returns the status. The administrator's client would retry for minutes.
async fn evict(drainer: &Caller, pod: &Value) -> u16 {
    let name = pod["metadata"]["name"].as_str().unwrap();
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name},
        "deleteOptions": {"gracePeriodSeconds": 0}});
    let ask = ApiRequest::post(&format!("{PODS}/{name}/eviction"), eviction);
    drainer.ask(&ask).await.0
}

/// Where no second node can take one, an upgrade still reaches the controller that leads.
async fn the_only_controller_is_replaced(administrator: &Caller) {
    let before = on_nodes(administrator, &["n1"]).await.remove(0);
    ready(administrator, &before).await;
    let annotations = json!({"example.com/settings": "newer"});
    let change = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
    let path = "/apis/apps/v1/namespaces/kube-system/deployments/headgate-controller";
    administrator.merge(path, change).await;
    eventually(SOON, "a newer pod beside the earlier one", async || {
        let found = controllers(administrator).await;
        let newer = (found.iter()).find(|(_, pod)| pod["metadata"]["annotations"]["example.com/settings"] == "newer");
        match newer {
            Some((_, pod)) => {
                ready(administrator, pod).await;
                Ok(())
            }
            None => Err(format!("{:?}", found.iter().map(|(node, _)| node).collect::<Vec<_>>())),
        }
    })
    .await;
    eventually(SOON, "the earlier one ends", async || {
        let found = controllers(administrator).await;
        let is_left = (found.iter()).any(|(_, pod)| pod["metadata"]["uid"] == before["metadata"]["uid"]);
        met(found.len() == 1 && !is_left, found.len())
    })
    .await;
}

#[tokio::test]
async fn controllers_are_scheduled_apart_on_unsignalled_nodes_and_evicted_one_by_one() {
    let (mut control_plane, administrator) = with_controllers().await;
    control_plane.start_scheduler().unwrap();
    let linux = |zone: &str| json!({"kubernetes.io/os": "linux", "topology.kubernetes.io/zone": zone});
    let taint = |key: &str, effect: &str| json!({"taints": [{"key": key, "effect": effect}]});
    let labelled = |name: &str, zone| {
        let mut labels = linux(zone);
        labels["kubernetes.io/hostname"] = json!(name);
        labels
    };
    for (name, zone, spec) in [
        ("n1", "z1", taint("CriticalAddonsOnly", "NoSchedule")),
        ("n2", "z1", taint("headgate.dev/maintenance", "NoSchedule")),
        ("n3", "z2", taint("ToBeDeletedByClusterAutoscaler", "NoSchedule")),
    ] {
        node(&administrator, name, labelled(name, zone), spec).await;
    }
    stdout_of(&mut in_folder(
        &administrator,
        &["apply"],
        &folder(&hardened_with_identity()),
    ));
    // Agents run on every Node; one controller is pending, because two must not share a Node.
    eventually(SOON, "three agents", async || {
        let path = format!("{PODS}?labelSelector=app.kubernetes.io/component%3Dagent");
        let pods = administrator.get(&path).await["items"].as_array().unwrap().clone();
        let placed = pods.iter().filter(|pod| pod["spec"]["nodeName"].is_string()).count();
        met(placed == 3, placed)
    })
    .await;
    on_nodes(&administrator, &["n1"]).await;
    eventually(SOON, "the other one is refused a place", async || {
        let path = format!("{PODS}?fieldSelector=spec.nodeName%3D");
        let pods = administrator.get(&path).await["items"].as_array().unwrap().clone();
        let conditions: Vec<_> = pods.iter().map(|pod| pod["status"]["conditions"][0].clone()).collect();
        match &conditions[..] {
            [condition] if condition["reason"] == "Unschedulable" => Ok(()),
            _ => Err(format!("{conditions:?}")),
        }
    })
    .await;

    // 1.30 ignores `matchLabelKeys`.
    if !is_kubernetes_1_30(&administrator.client).await {
        the_only_controller_is_replaced(&administrator).await;
    }

    node(&administrator, "n4", labelled("n4", "z2"), json!({})).await;
    let pods = on_nodes(&administrator, &["n1", "n4"]).await;
    assert_eq!(pods[0]["spec"]["priority"], 2_000_000_000, "system-cluster-critical");
    for pod in &pods {
        ready(&administrator, pod).await;
    }
    let budget = "/apis/policy/v1/namespaces/kube-system/poddisruptionbudgets/headgate-controller";
    eventually(SOON, "one may go", async || {
        let status = administrator.get(budget).await["status"].clone();
        met(status["disruptionsAllowed"] == 1, status)
    })
    .await;
    // n4 is cordoned and drained. The budget protects the other controller while the first one's successor is pending.
    let cordon = json!({"spec": {"unschedulable": true, "taints": [
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}});
    administrator.merge("/api/v1/nodes/n4", cordon).await;
    let drainer = Caller::with(control_plane.kubeconfig()).await;
    assert_eq!(evict(&drainer, &pods[1]).await, 201);
    eventually(SOON, "no more may go", async || {
        let status = administrator.get(budget).await["status"].clone();
        met(status["disruptionsAllowed"] == 0, status)
    })
    .await;
    assert_eq!(evict(&drainer, &pods[0]).await, 429);
    node(&administrator, "n5", labelled("n5", "z2"), json!({})).await;
    let pods = on_nodes(&administrator, &["n1", "n5"]).await;
    ready(&administrator, &pods[1]).await;
    eventually(SOON, "the other one may go", async || {
        match evict(&administrator, &pods[0]).await {
            201 => Ok(()),
            status => Err(status.to_string()),
        }
    })
    .await;
    control_plane.stop().await;
}

#[tokio::test]
async fn pod_security_restricted_admits_controllers_and_rejects_agents_for_host_network() {
    let control_plane = own_control_plane().await;
    let administrator = Caller::administrator(&control_plane);
    let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    let namespace = json!({"metadata": {"name": "restricted", "labels": labels}});
    administrator.post("/api/v1/namespaces", namespace).await;
    let objects = render(&folder(&hardened_with_identity()));
    let path = "/api/v1/namespaces/restricted/pods";
    for (kind, complaint) in [
        ("Deployment", None),
        ("DaemonSet", Some("host namespaces (hostNetwork=true)")),
    ] {
        let mut pod = only(&objects, kind)["spec"]["template"].clone();
        pod["metadata"]["name"] = json!(kind.to_lowercase());
        let account = pod["spec"]["serviceAccountName"].clone();
        let accounts = "/api/v1/namespaces/restricted/serviceaccounts";
        administrator
            .post(accounts, json!({"metadata": {"name": account}}))
            .await;
        // Without a quota, system priority classes are allowed in every namespace.
        let (status, body) = administrator.ask(&ApiRequest::post(path, pod)).await;
        match complaint {
            None => assert_eq!(status, 201, "{body}"),
            Some(words) => {
                let message = body["message"].as_str().unwrap();
                let (_, complaints) = message.split_once("\"restricted:latest\": ").unwrap();
                assert_eq!((status, complaints.trim()), (403, words));
            }
        }
    }
    control_plane.stop().await;
}
