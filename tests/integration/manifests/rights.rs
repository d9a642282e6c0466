//! The agent with a token bound to its Pod, as kubelet would mount it: the shipped permissions
//! suffice for its work, allow nothing more, and each of them is needed.

use std::net::{SocketAddr, TcpListener};
use std::process::Command;

use headgate_kubernetes::{EventKind, EventSink, service_reference};
use headgate_sandbox::control_plane::ControlPlane;
use headgate_test_kubernetes::{create_node, eventually, met, own_control_plane_with};
use serde_json::{Value, json};

use super::SOON;
use super::caller::{ApiRequest, Caller, agent_on, install};
use super::rendering::without_kube_proxy;
use crate::harness::agent::Agent;
use crate::harness::{AgentOptions, http, own_address};

const TAINT: &str = "ToBeDeletedByClusterAutoscaler";
pub(super) const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const CLUSTER_ROLE: &str = "clusterroles/headgate";
const ROLE: &str = "namespaces/default/roles/headgate";

pub(super) fn node(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

async fn set_taint(administrator: &Caller, name: &str, taints: Value) {
    administrator
        .merge(&node(name), json!({"spec": {"taints": taints}}))
        .await;
}

async fn answers(agent: &Agent, status: u16) {
    eventually(SOON, &format!("/healthz answers {status} from the watch"), async || {
        let answer = agent.healthz().await;
        met(
            answer.status == status && answer.json()["source"] == "watch",
            format!("{} {}", answer.status, answer.text()),
        )
    })
    .await;
}

pub(super) fn events_in(namespace: &str) -> String {
    format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events")
}

/// The events that `headgate` has written about an object of this name.
async fn events_of(administrator: &Caller, namespace: &str, name: &str) -> Vec<Value> {
    let events = administrator.get(&events_in(namespace)).await;
    let ours =
        |event: &&Value| event["reportingController"] == "headgate.dev/agent" && event["regarding"]["name"] == name;
    events["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(ours)
        .cloned()
        .collect()
}

async fn log_says(agent: &Agent, words: &str) {
    eventually(SOON, words, async || {
        let log = agent.log();
        met(log.contains(words), log)
    })
    .await;
}

/// Waits until the request gets `status`; RBAC changes take a moment.
pub(super) async fn wait_for_status(caller: &Caller, ask: ApiRequest, status: u16) {
    eventually(SOON, &format!("{status} to {} {}", ask.method, ask.path), async || {
        let (answer, body) = caller.ask(&ask).await;
        met(answer == status, body)
    })
    .await;
}

/// A port that another process uses.
fn taken() -> (TcpListener, SocketAddr) {
    let address = own_address();
    (TcpListener::bind(address).unwrap(), address)
}

#[tokio::test]
async fn permissions_of_an_agent_suffice_allow_nothing_more_and_are_all_needed() {
    // Only where the API server has no streaming lists, an agent lists its own Node.
    let arguments = vec!["--feature-gates=WatchList=false".to_owned()];
    let control_plane = own_control_plane_with(arguments).await;
    let administrator = Caller::administrator(&control_plane);
    install(&administrator.kubeconfig, &json!({}));
    an_agent_token_cannot_change_nodes(&control_plane, &administrator).await;
    a_pod_token_has_every_permission_that_the_agent_needs(&control_plane, &administrator).await;
    headgate_why_needs_permission_to_get_nodes(&control_plane, &administrator).await;
    an_agent_without_list_and_watch_permission_misses_its_taint(&control_plane, &administrator).await;
    // Events about Nodes, with a role in `default`.
    events_need_permission_in_their_namespace(&control_plane, &administrator, ROLE, "default").await;

    install(&administrator.kubeconfig, &without_kube_proxy());
    service_health_needs_each_permission_of_its_component(&control_plane, &administrator).await;
    counting_connections_needs_to_list_and_watch_services(&control_plane, &administrator).await;
    // Events about Services, wherever they are.
    events_need_permission_in_their_namespace(&control_plane, &administrator, CLUSTER_ROLE, "kube-system").await;
    control_plane.stop().await;
}

async fn a_pod_token_has_every_permission_that_the_agent_needs(control_plane: &ControlPlane, administrator: &Caller) {
    let name = create_node(&administrator.client, "rights").await;
    let caller = agent_on(control_plane, &name).await;
    wait_for_status(&caller, ApiRequest::get("/api/v1/nodes"), 200).await;

    let (stranger, address) = taken();
    let options = AgentOptions::new(&name, &caller.kubeconfig).healthz(address);
    let event = async {
        let event = eventually(SOON, "an event", async || {
            events_of(administrator, "default", &name)
                .await
                .pop()
                .ok_or_else(|| "none".to_owned())
        })
        .await;
        drop(stranger);
        event
    };
    let (agent, event) = tokio::join!(options.start(), event);
    assert_eq!(
        (&event["reason"], &event["reportingInstance"]),
        (&json!("FailedToStartHealthServer"), &json!(name))
    );
    answers(&agent, 200).await;
    set_taint(administrator, &name, json!([{"key": TAINT, "effect": "NoSchedule"}])).await;
    answers(&agent, 503).await;
    set_taint(administrator, &name, json!([])).await;
    answers(&agent, 200).await;
    for (reason, words) in [
        (
            "NodeSignalled",
            "The node has signals: ToBeDeletedByClusterAutoscaler; /healthz answers 503.",
        ),
        (
            "NodeSignalsEnded",
            "The node has no signal any more; /healthz answers 200.",
        ),
    ] {
        eventually(SOON, reason, async || {
            let events = events_of(administrator, "default", &name).await;
            let is_found = |event: &&Value| event["reason"] == reason && event["note"].to_string().contains(words);
            let found: Vec<&Value> = events.iter().filter(is_found).collect();
            match found[..] {
                [event] if event["type"] == "Normal" && event["action"] == "AnswerProbes" => Ok(()),
                _ => Err(format!("{events:?}")),
            }
        })
        .await;
    }
    assert!(!agent.log().contains("orbidden"), "{}", agent.log());
    drop(agent);
}

/// Changes of a Node, whichever it is.
const FORBIDDEN_CHANGES: &str = r#"
merge NODE {metadata: {labels: {a: b}}} → cannot patch resource "nodes"
merge NODE {spec: {unschedulable: true}} → cannot patch resource "nodes"
merge NODE/status {status: {phase: Running}} → cannot patch resource "nodes/status"
delete NODE → cannot delete resource "nodes"
"#;

async fn an_agent_token_cannot_change_nodes(control_plane: &ControlPlane, administrator: &Caller) {
    let own = create_node(&administrator.client, "own").await;
    let other = create_node(&administrator.client, "other").await;
    let caller = agent_on(control_plane, &own).await;
    wait_for_status(&caller, ApiRequest::get("/api/v1/nodes"), 200).await;

    let before = administrator.get("/api/v1/nodes").await;
    for name in [&own, &other] {
        for (ask, words) in ApiRequest::refusals(&FORBIDDEN_CHANGES.replace("NODE", &node(name))) {
            caller.refused(&ask, &[words]).await;
        }
        let whole = ApiRequest::put(&node(name), administrator.get(&node(name)).await);
        caller.refused(&whole, &["cannot update resource \"nodes\""]).await;
    }
    assert_eq!(administrator.get("/api/v1/nodes").await["items"], before["items"]);

    // Apart from every user's permissions, these are all, in any namespace.
    for (namespace, events) in [("default", true), ("kube-system", false)] {
        let review = json!({"spec": {"namespace": namespace}});
        let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
        let mut rules = caller.post(path, review).await["status"]["resourceRules"].clone();
        let rules = rules.as_array_mut().unwrap();
        rules.retain(|rule| !is_every_users(rule));
        rules.sort_by_key(ToString::to_string);
        let mut expected = vec![json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]})];
        if events {
            expected
                .push(json!({"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]}));
        }
        expected.sort_by_key(ToString::to_string);
        assert_eq!(rules, &expected, "{namespace}");
    }
}

/// Whether a rule is one that Kubernetes gives every user; that about trust bundles from 1.37 on.
pub(super) fn is_every_users(rule: &Value) -> bool {
    let resource = rule["resources"][0].as_str().unwrap();
    resource.starts_with("selfsubject") || resource == "clustertrustbundles"
}

/// Removes one verb from a role's rule about a resource, or about the object of this name; returns the previous rules.
pub(super) async fn remove_verb(
    administrator: &Caller,
    role: &str,
    (resource, name): (&str, Option<&str>),
    verb: &str,
) -> Value {
    let path = format!("{RBAC}/{role}");
    let rules = administrator.get(&path).await["rules"].clone();
    let mut fewer = rules.as_array().unwrap().clone();
    let names = name.map_or(Value::Null, |name| json!([name]));
    let about = |rule: &&mut Value| {
        rule["resources"] == json!([resource])
            && rule["resourceNames"] == names
            && rule["verbs"].as_array().unwrap().contains(&json!(verb))
    };
    let found = fewer.iter_mut().find(about).unwrap();
    found["verbs"].as_array_mut().unwrap().retain(|other| other != verb);
    fewer.retain(|rule| rule["verbs"] != json!([]));
    assert_ne!(rules, json!(fewer));
    administrator.merge(&path, json!({"rules": fewer})).await;
    rules
}

pub(super) async fn restore_rules(administrator: &Caller, role: &str, rules: Value) {
    administrator
        .merge(&format!("{RBAC}/{role}"), json!({"rules": rules}))
        .await;
}

/// `kubectl exec` in its Pod runs `headgate why` with the same rights.
async fn headgate_why_needs_permission_to_get_nodes(control_plane: &ControlPlane, administrator: &Caller) {
    let name = create_node(&administrator.client, "why").await;
    let caller = agent_on(control_plane, &name).await;
    let why = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
        command.args(["why", &name, "--statusz", "http://127.0.0.1:1/statusz"]);
        command.env("KUBECONFIG", &caller.kubeconfig).output().unwrap()
    };
    wait_for_status(&caller, ApiRequest::get(&node(&name)), 200).await;
    let output = why();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rules = remove_verb(administrator, CLUSTER_ROLE, ("nodes", None), "get").await;
    wait_for_status(&caller, ApiRequest::get(&node(&name)), 403).await;
    let output = why();
    restore_rules(administrator, CLUSTER_ROLE, rules).await;
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("cannot get resource \"nodes\""), "{stderr}");
}

async fn an_agent_without_list_and_watch_permission_misses_its_taint(
    control_plane: &ControlPlane,
    administrator: &Caller,
) {
    for (verb, question) in [
        ("list", "/api/v1/nodes?limit=1"),
        ("watch", "/api/v1/nodes?watch=true&timeoutSeconds=1"),
    ] {
        let name = create_node(&administrator.client, verb).await;
        let caller = agent_on(control_plane, &name).await;
        wait_for_status(&caller, ApiRequest::get(question), 200).await;
        let rules = remove_verb(administrator, CLUSTER_ROLE, ("nodes", None), verb).await;
        wait_for_status(&caller, ApiRequest::get(question), 403).await;

        let agent = AgentOptions::new(&name, &caller.kubeconfig).start().await;
        log_says(&agent, &format!("cannot {verb} resource \\\"nodes\\\"")).await;
        set_taint(administrator, &name, json!([{"key": TAINT, "effect": "NoSchedule"}])).await;
        let metrics = "headgate_node_watch_errors_total{reason=\"forbidden\"} ";
        let refusals = async || {
            let text = agent.metrics().await;
            let count = text.lines().find_map(|line| line.strip_prefix(metrics));
            count.unwrap().parse::<u64>().unwrap()
        };
        let so_far = refusals().await;
        eventually(SOON, "refused once more since", async || {
            let now = refusals().await;
            met(now > so_far, now)
        })
        .await;
        assert_eq!(agent.healthz().await.status, 200, "{verb}: it knows no better");
        assert_eq!(agent.log().matches("watch failed").count(), 1, "{}", agent.log());
        assert_eq!(agent.statusz().await["node"]["watchError"]["reason"], "forbidden");
        restore_rules(administrator, CLUSTER_ROLE, rules).await;
        answers(&agent, 503).await;
    }
}

async fn service_health_needs_each_permission_of_its_component(control_plane: &ControlPlane, administrator: &Caller) {
    let spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 80}]});
    let service = json!({"metadata": {"name": "local"}, "spec": spec});
    administrator.post("/api/v1/namespaces/default/services", service).await;
    for (group, resource) in [("/api/v1", "services"), ("/apis/discovery.k8s.io/v1", "endpointslices")] {
        for verb in ["list", "watch"] {
            let question = format!("{group}/{resource}?timeoutSeconds=1&watch={}", verb == "watch");
            let name = create_node(&administrator.client, &format!("{resource}-{verb}")).await;
            let caller = agent_on(control_plane, &name).await;
            wait_for_status(&caller, ApiRequest::get(&question), 200).await;
            let settings = "kubeProxyHealthzUrl: Disabled\nserviceHealthChecks: Path\n";
            let options = AgentOptions::new(&name, &caller.kubeconfig).settings(settings);
            let agent = options.start().await;
            let followed = async || {
                let text = agent.metrics().await;
                met(
                    text.lines().any(|line| line == "headgate_service_health_services 1"),
                    text,
                )
            };
            eventually(SOON, "Services are followed", followed).await;
            assert!(!agent.log().contains("watch failed"), "{}", agent.log());
            agent.kill().await;

            let rules = remove_verb(administrator, CLUSTER_ROLE, (resource, None), verb).await;
            wait_for_status(&caller, ApiRequest::get(&question), 403).await;
            let agent = options.start().await;
            log_says(&agent, &format!("cannot {verb} resource \\\"{resource}\\\"")).await;
            restore_rules(administrator, CLUSTER_ROLE, rules).await;
        }
    }
}

/// `connections.enabled` grants the same as `serviceHealthChecks` for Services.
async fn counting_connections_needs_to_list_and_watch_services(control_plane: &ControlPlane, administrator: &Caller) {
    for verb in ["list", "watch"] {
        let question = format!("/api/v1/services?timeoutSeconds=1&watch={}", verb == "watch");
        let name = create_node(&administrator.client, &format!("connections-{verb}")).await;
        let taints =
            json!({"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoSchedule"}]}});
        let path = format!("/api/v1/nodes/{name}");
        administrator.merge(&path, taints).await;
        let caller = agent_on(control_plane, &name).await;
        let settings = "kubeProxyHealthzUrl: Disabled\nconnections: {count: true}\n";
        let options = AgentOptions::new(&name, &caller.kubeconfig).settings(settings);
        let says = async |agent: &Agent, text: &str| {
            let seen = async || {
                let statusz = http::get(agent.metrics_address(), "/statusz").await.unwrap().text();
                met(statusz.contains(text), statusz)
            };
            eventually(SOON, "what is known of the connections", seen).await;
        };
        wait_for_status(&caller, ApiRequest::get(&question), 200).await;
        let agent = options.start().await;
        // There is no counter here.
        says(&agent, "no counter has reported").await;
        assert!(!agent.log().contains("watch failed"), "{}", agent.log());
        agent.kill().await;

        let rules = remove_verb(administrator, CLUSTER_ROLE, ("services", None), verb).await;
        wait_for_status(&caller, ApiRequest::get(&question), 403).await;
        let agent = options.start().await;
        log_says(&agent, &format!("cannot {verb} resource \\\"services\\\"")).await;
        if verb == "list" {
            says(&agent, "Services cannot be listed").await;
        }
        restore_rules(administrator, CLUSTER_ROLE, rules).await;
    }
}

async fn events_need_permission_in_their_namespace(
    control_plane: &ControlPlane,
    administrator: &Caller,
    role: &str,
    namespace: &str,
) {
    let name = create_node(&administrator.client, "events").await;
    let caller = agent_on(control_plane, &name).await;
    let (writer, _) = EventSink::new(caller.client.clone(), name.clone());
    let writer = writer.merged();
    let write = async |note: &str| {
        let about = match namespace {
            "default" => writer.own_node(None),
            _ => service_reference(namespace, &name, "u"),
        };
        writer.write(about, EventKind::warning("Tested", "Test"), note).await;
        let count = |event: Value| {
            (
                event["note"].as_str().unwrap().to_owned(),
                event["series"]["count"].as_i64(),
            )
        };
        let events = events_of(administrator, namespace, &name).await;
        events.into_iter().map(count).collect::<Vec<_>>()
    };
    let events = events_in(namespace);
    // With the permission, these requests are answered 422 and 404; without it, 403.
    let create = || ApiRequest::post(&events, json!({}));
    let patch = || ApiRequest::merge(&format!("{events}/nothing"), json!({}));
    wait_for_status(&caller, create(), 422).await;

    let rules = remove_verb(administrator, role, ("events", None), "create").await;
    wait_for_status(&caller, create(), 403).await;
    assert_eq!(write("first").await, []);
    restore_rules(administrator, role, rules).await;
    wait_for_status(&caller, create(), 422).await;
    assert_eq!(write("first").await, [("first".to_owned(), None)]);

    let rules = remove_verb(administrator, role, ("events", None), "patch").await;
    wait_for_status(&caller, patch(), 403).await;
    assert_eq!(write("again").await, [("first".to_owned(), None)]);
    restore_rules(administrator, role, rules).await;
    wait_for_status(&caller, patch(), 404).await;
    // The event's count grows; there is no second event.
    assert_eq!(write("again").await, [("first".to_owned(), Some(2))]);
}
