//! A leader with a token bound to its Pod, from each overlay that can lead: the shipped
//! permissions suffice for its requests and the election, allow nothing more, and each of them is needed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use headgate_core::clock::Clock;
use headgate_kubernetes::leader::{CandidatePlacement, LeaderElectionConfig, LeaderElector, candidate_identity};
use headgate_sandbox::control_plane::ControlPlane;
use headgate_test_kubernetes::{create_node, is_kubernetes_1_30, own_control_plane};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::caller::{AGENT, Account, ApiRequest, CONTROLLER, Caller, acting_on, apply};
use super::leader_updates::a_leader_writes_nothing_else_into_its_objects;
use super::rendering::{folder, folder_in, hardened, hardened_with_identity, leading_agents, merged, on_nodes};
use super::rights::{RBAC, events_in, is_every_users, node, remove_verb, restore_rules, wait_for_status};
use super::{SOON, overlay_of};

pub(super) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
pub(super) const MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";
const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
pub(super) const OWN: &str = "headgate-leader";
pub(super) const LOCK: &str = "aks-managed-resource-locker";
pub(super) const LEDGER: &str = "headgate-admin-state";

/// A request of a leader, and the permission that it needs.
pub(super) struct Right {
    /// The role with the permission, below [`RBAC`].
    role: String,
    resource: &'static str,
    /// The resource names that the permission is limited to.
    name: Option<&'static str>,
    verb: &'static str,
    pub(super) ask: ApiRequest,
    /// The status code for a caller with the permission.
    pub(super) answer: u16,
}

impl Right {
    pub(super) fn new(
        role: &str,
        what: (&'static str, Option<&'static str>),
        verb: &'static str,
        ask: ApiRequest,
    ) -> Self {
        Self {
            role: role.to_owned(),
            resource: what.0,
            name: what.1,
            verb,
            ask,
            answer: 200,
        }
    }

    pub(super) fn answered(self, answer: u16) -> Self {
        Self { answer, ..self }
    }
}

/// Objects as a leader creates them.
pub(super) fn new_objects(node: &str) -> [ApiRequest; 3] {
    let named = |path: &str, name: &str, body: Value| {
        let mut body = body;
        body["metadata"] = json!({"name": name});
        ApiRequest::post(path, body)
    };
    [
        named(
            LEASES,
            OWN,
            json!({"spec": {"holderIdentity": format!("{node}_1"), "leaseDurationSeconds": 15}}),
        ),
        named(
            LEASES,
            LOCK,
            json!({"spec": {"holderIdentity": "headgate", "leaseDurationSeconds": 15}}),
        ),
        named(MAPS, LEDGER, json!({"data": {"ledger.json": "{\"pools\": {}}"}})),
    ]
}

/// Every request of a leader to the API server, once its objects exist.
async fn rights(administrator: &Caller, account: Account, name: &str) -> Vec<Right> {
    let role = "namespaces/kube-system/roles/headgate-leader";
    let mut rights = Vec::new();
    for (path, resource, name, verbs) in [
        (LEASES, "leases", OWN, ["get", "update"].as_slice()),
        (LEASES, "leases", LOCK, &["get", "list", "watch", "update"]),
        (MAPS, "configmaps", LEDGER, &["get", "update"]),
    ] {
        let object = format!("{path}/{name}");
        let selected = format!("{path}?fieldSelector=metadata.name%3D{name}");
        for &verb in verbs {
            let ask = match verb {
                "get" => ApiRequest::get(&object),
                "list" => ApiRequest::get(&selected),
                "watch" => ApiRequest::get(&format!("{selected}&watch=true&timeoutSeconds=1")),
                _ => ApiRequest::put(&object, administrator.get(&object).await).dry_run(),
            };
            rights.push(Right::new(role, (resource, Some(name)), verb, ask));
        }
    }
    for ask in new_objects(name) {
        let resource = if ask.path == LEASES { "leases" } else { "configmaps" };
        // The objects exist already.
        rights.push(Right::new(role, (resource, None), "create", ask).answered(409));
    }
    let role = format!("clusterroles/{}", account.name);
    for (verb, ask) in [
        ("get", ApiRequest::get(&node(name))),
        ("list", ApiRequest::get("/api/v1/nodes?limit=1")),
        ("watch", ApiRequest::get("/api/v1/nodes?watch=true&timeoutSeconds=1")),
    ] {
        rights.push(Right::new(&role, ("nodes", None), verb, ask));
    }
    let selects_services = !is_kubernetes_1_30(&administrator.client).await;
    rights.extend(rights_for_services(selects_services));
    let (role, namespace) = if account == CONTROLLER {
        // An event about a Service is in its namespace.
        (role, "kube-public")
    } else {
        (format!("namespaces/default/roles/{}", account.name), "default")
    };
    let events = events_in(namespace);
    // With the permission, these requests are answered 422 and 404; without it, 403.
    let create = ApiRequest::post(&events, json!({}));
    rights.push(Right::new(&role, ("events", None), "create", create).answered(422));
    let patch = ApiRequest::merge(&format!("{events}/nothing"), json!({}));
    rights.push(Right::new(&role, ("events", None), "patch", patch).answered(404));
    if account == CONTROLLER {
        rights.extend(rights_for_other_nodes(account, name));
    }
    rights
}

/// The requests by which a leader knows the nodes that serve Local Services.
fn rights_for_services(selects_services: bool) -> Vec<Right> {
    let role = "clusterroles/headgate-leader";
    let mut rights = Vec::new();
    let services = if selects_services {
        "/api/v1/services?fieldSelector=spec.type%3DLoadBalancer&"
    } else {
        "/api/v1/services?"
    };
    for (path, resource) in [
        (services, "services"),
        ("/apis/discovery.k8s.io/v1/endpointslices?", "endpointslices"),
    ] {
        for (verb, query) in [("list", "limit=1"), ("watch", "watch=true&timeoutSeconds=1")] {
            let ask = ApiRequest::get(&format!("{path}{query}"));
            rights.push(Right::new(role, (resource, None), verb, ask));
        }
    }
    rights
}

/// The requests of the features that write other Nodes.
fn rights_for_other_nodes(account: Account, name: &str) -> Vec<Right> {
    let mut rights = Vec::new();
    let selected =
        "/api/v1/namespaces/default/events?fieldSelector=reason%3DPreemptScheduled%2CinvolvedObject.kind%3DNode";
    let watch = format!("{selected}&watch=true&timeoutSeconds=1");
    let role = format!("namespaces/default/roles/{}", account.name);
    for (verb, ask) in [("list", ApiRequest::get(selected)), ("watch", ApiRequest::get(&watch))] {
        rights.push(Right::new(&role, ("events", None), verb, ask));
    }
    let role = format!("clusterroles/{}", account.name);
    let record = json!({"metadata": {"annotations": {"headgate.dev/spot-notice": "{}"}}});
    let patch = ApiRequest::merge(&node(name), record).dry_run();
    rights.push(Right::new(&role, ("nodes", None), "patch", patch));
    rights
}

/// A control plane with a folder applied, the administrator, a Node, and the leader's account.
pub(super) async fn scene(folder: &Path, account: Account) -> (ControlPlane, Caller, String, Caller) {
    let control_plane = own_control_plane().await;
    let administrator = Caller::administrator(&control_plane);
    apply(&administrator.kubeconfig, folder);
    let name = create_node(&administrator.client, "leader").await;
    let leader = acting_on(&control_plane, account, &name).await;
    (control_plane, administrator, name, leader)
}

/// The folders whose pods can lead, each with its account.
fn ways_to_lead() -> [(PathBuf, Account); 3] {
    let elsewhere = Account {
        namespace: "headgate",
        ..AGENT
    };
    let moved = overlay_of(
        &folder_in("headgate", &merged(hardened(), on_nodes())),
        "resources: [\"@\", namespace.yaml]\n",
        &[(
            "namespace.yaml",
            "{apiVersion: v1, kind: Namespace, metadata: {name: headgate}}\n",
        )],
    );
    [
        (folder(&leading_agents()), AGENT),
        (folder(&hardened_with_identity()), CONTROLLER),
        (moved, elsewhere),
    ]
}

/// Runs the real elector: acquires the Lease, leads, stops and releases the Lease.
async fn leads(administrator: &Caller, leader: &Caller, name: &str) {
    let (client, identity) = (leader.client.clone(), candidate_identity(name));
    let config = LeaderElectionConfig::new(client, identity, CandidatePlacement::Replicas, Clock::System);
    let elector = LeaderElector::new(config);
    let mut terms = elector.terms();
    let stop = CancellationToken::new();
    let work = |term: headgate_kubernetes::leader::Term| async move {
        term.handover_requested().await;
        Ok::<(), String>(())
    };
    let led = async {
        let won = terms.wait_for(Option::is_some);
        tokio::time::timeout(SOON, won).await.unwrap().unwrap();
        let held = administrator.get(&format!("{LEASES}/{OWN}")).await;
        assert!(
            held["spec"]["holderIdentity"].as_str().unwrap().starts_with(name),
            "{held}"
        );
        stop.cancel();
    };
    tokio::join!(elector.run(stop.clone(), work), led);
    let released = administrator.get(&format!("{LEASES}/{OWN}")).await;
    assert_eq!(released["spec"]["holderIdentity"], "", "{released}");
}

/// Removes the permission, with which the request succeeds and without which it is refused, and gives it back.
pub(super) async fn is_needed(administrator: &Caller, leader: &Caller, right: Right) {
    wait_for_status(leader, right.ask.clone(), right.answer).await;
    let rules = remove_verb(administrator, &right.role, (right.resource, right.name), right.verb).await;
    wait_for_status(leader, right.ask.clone(), 403).await;
    let words = format!("cannot {} resource \"{}\"", right.verb, right.resource);
    leader.refused(&right.ask, &[&words]).await;
    restore_rules(administrator, &right.role, rules).await;
    wait_for_status(leader, right.ask, right.answer).await;
}

/// The rules for a caller in a namespace, without those of every authenticated caller.
async fn rules(caller: &Caller, namespace: &str) -> Vec<String> {
    let review = json!({"spec": {"namespace": namespace}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let rules = caller.post(path, review).await["status"]["resourceRules"].clone();
    let mut own: Vec<String> = rules
        .as_array()
        .unwrap()
        .iter()
        .filter(|rule| !is_every_users(rule))
        .map(|rule| {
            let words = |key: &str| {
                let list = rule[key].as_array().cloned().unwrap_or_default();
                let words: Vec<_> = list.iter().map(|word| word.as_str().unwrap().to_owned()).collect();
                words.join(",")
            };
            format!("{} {} {}", words("verbs"), words("resources"), words("resourceNames"))
        })
        .collect();
    own.sort();
    own
}

#[tokio::test]
async fn permissions_of_a_leader_suffice_are_all_needed_and_are_all() {
    let leading = [
        "create configmaps ",
        "create leases ",
        "get,list,watch,update leases aks-managed-resource-locker",
        "get,update configmaps headgate-admin-state",
        "get,update leases headgate-leader",
    ];
    let plain = ["get,list,watch nodes "];
    let events = ["create,patch events ", "get,list,watch nodes "];
    // Any leader counts the nodes that serve Local Services.
    let services = ["list,watch endpointslices ", "list,watch services "];
    let leading_agent = [plain[0], services[0], services[1]];
    // Only the controllers may write other Nodes, and read the events that they act on.
    let controller = [
        "create,patch events ",
        "get,list,watch nodes ",
        "list,watch endpointslices ",
        "list,watch services ",
        "patch nodes ",
    ];
    for (folder, account) in ways_to_lead() {
        let (control_plane, administrator, name, leader) = scene(&folder, account).await;
        wait_for_status(&leader, ApiRequest::get(&format!("{LEASES}/{OWN}")), 404).await;
        leads(&administrator, &leader, &name).await;
        for object in [format!("{LEASES}/{OWN}"), format!("{MAPS}/{LEDGER}")] {
            administrator.delete(&object).await;
        }
        for ask in new_objects(&name) {
            leader.done(&ask).await;
        }
        for right in rights(&administrator, account, &name).await {
            is_needed(&administrator, &leader, right).await;
        }
        let everywhere = if account == CONTROLLER {
            &controller[..]
        } else {
            &leading_agent
        };
        let own = leading.iter().chain(everywhere).collect::<BTreeSet<_>>();
        assert!(rules(&leader, "kube-system").await.iter().eq(own), "{account:?}");
        let in_default = if account == CONTROLLER {
            controller
                .iter()
                .chain(&["list,watch events "])
                .collect::<BTreeSet<_>>()
        } else {
            events.iter().chain(&services).collect()
        };
        assert!(rules(&leader, "default").await.iter().eq(in_default), "{account:?}");
        assert!(rules(&leader, "headgate").await.iter().eq(everywhere), "{account:?}");
        if account == CONTROLLER {
            let agent = acting_on(&control_plane, AGENT, &name).await;
            assert_eq!(rules(&agent, "kube-system").await, plain);
            assert_eq!(rules(&agent, "default").await, events);
            refused_to_a_hardened_agent(&administrator, &agent, &name).await;
        }
        if account.namespace == "kube-system" {
            a_leader_writes_nothing_else_into_its_objects(&administrator, &name, &leader).await;
        }
        control_plane.stop().await;
    }
}

/// The agent may write neither the leader's Leases and `ConfigMap` nor any Node.
async fn refused_to_a_hardened_agent(administrator: &Caller, agent: &Caller, own: &str) {
    let other = create_node(&administrator.client, "other").await;
    let all = rights(administrator, AGENT, own).await;
    let theirs = all.into_iter().filter(|right| right.role.ends_with("headgate-leader"));
    let mut asks: Vec<ApiRequest> = theirs.map(|right| right.ask).collect();
    assert_eq!(asks.len(), 15);
    for path in [
        format!("{LEASES}/{OWN}"),
        format!("{LEASES}/{LOCK}"),
        format!("{MAPS}/{LEDGER}"),
    ] {
        asks.push(ApiRequest::merge(
            &path,
            json!({"metadata": {"annotations": {"a": "b"}}}),
        ));
        asks.push(ApiRequest::delete(&path));
    }
    asks.push(ApiRequest::get(&format!("{SECRETS}/headgate-azure")));
    for name in [own, &other] {
        let annotations = json!({"metadata": {"annotations": {"headgate.dev/x": "1"}}});
        asks.push(ApiRequest::merge(&node(name), annotations));
        asks.push(ApiRequest::merge(&node(name), json!({"spec": {"taints": []}})));
    }
    for ask in asks {
        agent.refused(&ask, &[]).await;
    }
}

#[tokio::test]
async fn reading_the_azure_config_secret_needs_its_own_role() {
    let secret = json!({"azure": {"configSecret": "azure-cloud-provider"}});
    let no_file = merged(secret.clone(), json!({"azure": {"existingSecret": ""}}));
    for (values, account) in [
        (merged(merged(hardened(), on_nodes()), no_file), AGENT),
        (merged(hardened(), secret), CONTROLLER),
    ] {
        let (control_plane, administrator, name, leader) = scene(&folder(&values), account).await;
        for secret in ["azure-cloud-provider", "another"] {
            let body = json!({"metadata": {"name": secret}, "stringData": {"cloud-config": "{}"}});
            administrator.post(SECRETS, body).await;
        }
        let wanted = format!("{SECRETS}/azure-cloud-provider");
        wait_for_status(&leader, ApiRequest::get(&wanted), 200).await;
        for (ask, verb) in [
            (ApiRequest::get(&format!("{SECRETS}/another")), "get"),
            (ApiRequest::get(SECRETS), "list"),
            (ApiRequest::merge(&wanted, json!({"stringData": {"a": "b"}})), "patch"),
        ] {
            leader.refused(&ask, &[&format!("cannot {verb}")]).await;
        }
        if account == CONTROLLER {
            let agent = acting_on(&control_plane, AGENT, &name).await;
            assert_eq!(agent.ask(&ApiRequest::get(&wanted)).await.0, 403);
        }
        // Its rule is the last one.
        let role = format!("{RBAC}/namespaces/kube-system/roles/headgate-leader");
        let mut rules = administrator.get(&role).await["rules"].clone();
        let last = rules.as_array_mut().unwrap().pop().unwrap();
        assert_eq!(last["resources"], json!(["secrets"]));
        administrator.merge(&role, json!({"rules": rules})).await;
        wait_for_status(&leader, ApiRequest::get(&wanted), 403).await;
        control_plane.stop().await;
    }
}
