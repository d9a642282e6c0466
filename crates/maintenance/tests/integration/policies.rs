//! Who may do what, by the admission policies.

use std::path::PathBuf;

use headgate_test_kubernetes::{Cluster, assert_contains, eventually, met, scratch};
use kube::Client;
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::cluster::{EVACUATIONS, MAINTENANCES, SOON, cluster, judge, repository, request, request_as, succeeded};

/// May write the kinds, and delete the nodes `n-0` to `n-19` and the pod `web`.
const SOME: &str = "some-nodes";
/// May write the kinds, and delete all nodes and pods.
const ALL: &str = "all-nodes";
/// May write the kinds.
const NONE: &str = "no-nodes";
/// May write the kinds.
const CONTROLLER: &str = "system:serviceaccount:kube-system:headgate-controller";

/// May delete all pods.
const OTHER_CONTROLLER: &str = "system:serviceaccount:other:headgate-controller";

/// What else the controllers may change: Deployments and Machines.
const OTHERS: [&str; 5] = [
    "headgate-deployments",
    "headgate-machines",
    "headgate-automatic",
    "headgate-cluster-api",
    "headgate-rollout",
];

/// A file with the objects about maintenances whose kinds begin with this.
fn shipped(kind: &str) -> PathBuf {
    let text = std::fs::read_to_string(repository("manifests/everything/headgate.yaml")).unwrap();
    let objects = serde_yaml::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap());
    let ours = objects.filter(|object| {
        let is_of_maintenances = object["metadata"]["labels"]["app.kubernetes.io/component"] == "maintenance";
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        is_of_maintenances && object["kind"].as_str().unwrap_or_default().starts_with(kind) && !OTHERS.contains(&name)
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": ours.collect::<Vec<_>>()});
    let file = scratch("shipped").join("objects.json");
    std::fs::write(&file, list.to_string()).unwrap();
    file
}

/// The cluster with the policies in force and the users' rights.
async fn guarded() -> &'static Cluster {
    static READY: OnceCell<()> = OnceCell::const_new();
    let cluster = cluster().await;
    READY
        .get_or_init(|| async {
            let policies = shipped("ValidatingAdmissionPolicy");
            succeeded(&cluster.kubectl().args(["apply", "-f"]).arg(policies).output().unwrap());
            let client = cluster.client();
            let kinds = json!({"apiGroups": ["headgate.dev"], "resources": ["*"], "verbs": ["*"]});
            let delete = |resource: &str| json!({"apiGroups": [""], "resources": [resource], "verbs": ["delete"]});
            let delete_named = |resource: &str, names: &[String]| {
                let mut rule = delete(resource);
                rule["resourceNames"] = json!(names);
                rule
            };
            let nodes: Vec<_> = (0..20).map(|n| format!("n-{n}")).collect();
            let some = [delete_named("nodes", &nodes), delete_named("pods", &["web".to_owned()])];
            let all = [delete("nodes"), delete("pods")];
            for (user, rules) in [(NONE, &[][..]), (CONTROLLER, &[]), (ALL, &all), (SOME, &some)] {
                let rules = [std::slice::from_ref(&kinds), rules].concat();
                grant(&client, user, &rules).await;
            }
            eventually(SOON, "the policies are in force", async || {
                for (path, object) in [
                    (MAINTENANCES, maintenance("probe", &[])),
                    (EVACUATIONS, evacuation("probe")),
                ] {
                    match request_as(&client, NONE, "POST", &format!("{path}?dryRun=All"), Some(&object)).await {
                        Err(refusal) if refusal.message.contains("needs the right") => {}
                        other => return Err(format!("{other:?}")),
                    }
                }
                // Other rights than those of a user need a moment as well.
                let object = maintenance("probe", &[]);
                let path = format!("{MAINTENANCES}?dryRun=All");
                let answer = request_as(&client, ALL, "POST", &path, Some(&object)).await;
                answer.map(drop).map_err(|refusal| refusal.message)
            })
            .await;
        })
        .await;
    cluster
}

async fn grant(client: &Client, user: &str, rules: &[Value]) {
    let name = user.replace(':', "-");
    let role = json!({"metadata": {"name": name}, "rules": rules});
    post(client, &format!("{RBAC}/clusterroles"), &role).await;
    bind(client, &name, user).await;
}

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// Binds a `ClusterRole` to a user.
async fn bind(client: &Client, role: &str, user: &str) {
    let binding = json!({"metadata": {"name": format!("{role}-test")},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]});
    post(client, &format!("{RBAC}/clusterrolebindings"), &binding).await;
}

async fn post(client: &Client, path: &str, object: &Value) {
    request(client, "POST", path, Some(object)).await.unwrap();
}

/// Checks a request of a user. `refused` is part of the message of the refusal, or empty for none.
async fn check(client: &Client, user: &str, (method, path): (&str, &str), body: Option<&Value>, refused: &str) {
    let answer = request_as(client, user, method, path, body).await;
    let body = body.map(ToString::to_string).unwrap_or_default();
    judge(answer.as_ref(), refused, &format!("{user} {method} {path} {body}"));
}

const EACH: &str = "needs the right to delete each of its nodes";

/// Of nodes by name, or without names of all Linux nodes.
fn maintenance(name: &str, nodes: &[&str]) -> Value {
    let by_label = json!([{"matchExpressions": [{"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}]}]);
    let by_name = nodes
        .iter()
        .map(|node| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}));
    let terms = if nodes.is_empty() { by_label } else { by_name.collect() };
    json!({"apiVersion": "headgate.dev/v1alpha1", "kind": "NodeMaintenance", "metadata": {"name": name},
        "spec": {"stage": "Drain", "nodeSelector": {"nodeSelectorTerms": terms}}})
}

fn evacuation(pod: &str) -> Value {
    json!({"apiVersion": "headgate.dev/v1alpha1", "kind": "Evacuation", "metadata": {"name": format!("uid-{pod}")},
        "spec": {"podRef": {"name": pod, "uid": "uid"}}})
}

#[tokio::test]
async fn a_maintenance_needs_the_right_to_delete_its_nodes() {
    let client = guarded().await.client();
    let named: Vec<_> = (0..20).map(|n| format!("n-{n}")).collect();
    let named: Vec<_> = named.iter().map(String::as_str).collect();
    let with_other = |at: usize| {
        let mut nodes = named[..16].to_vec();
        nodes[at] = "other";
        nodes
    };
    let all = "needs the right to delete all nodes";
    let mut rows: Vec<(&str, Vec<&str>, &str)> = vec![
        (NONE, vec!["n-0"], EACH),
        (NONE, vec![], all),
        (SOME, vec!["n-0"], ""),
        (SOME, named[..2].to_vec(), ""),
        (SOME, named[..3].to_vec(), ""),
        (SOME, named[..16].to_vec(), ""),
        (SOME, named[..17].to_vec(), all),
        (SOME, vec!["other"], EACH),
        (SOME, vec![], all),
        (ALL, vec!["n-0", "other"], ""),
        (ALL, named.clone(), ""),
        (ALL, vec![], ""),
        (CONTROLLER, vec!["n-0"], EACH),
    ];
    rows.extend((0..16).map(|at| (SOME, with_other(at), EACH)));
    for (number, (user, nodes, refused)) in rows.into_iter().enumerate() {
        let object = maintenance(&format!("by-right-{number}"), &nodes);
        let path = format!("{MAINTENANCES}?dryRun=All");
        let answer = request_as(&client, user, "POST", &path, Some(&object)).await;
        judge(answer.as_ref(), refused, &format!("{user} {nodes:?}"));
    }
    let mut half = maintenance("half", &["n-0"]);
    let term = json!({"matchExpressions": [{"key": "pool", "operator": "Exists"}]});
    let terms = &mut half["spec"]["nodeSelector"]["nodeSelectorTerms"];
    terms.as_array_mut().unwrap().push(term);
    check(&client, SOME, ("POST", MAINTENANCES), Some(&half), all).await;
}

#[tokio::test]
async fn changes_and_deletions_need_the_right_as_well() {
    let client = guarded().await.client();
    let names: Vec<_> = (0..16).map(|number| format!("n-{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    for (name, nodes) in [
        ("kept", &["n-0", "other"][..]),
        ("mine", &["n-0", "n-1"]),
        ("large", &names),
    ] {
        post(&client, MAINTENANCES, &maintenance(name, nodes)).await;
    }
    let [kept, mine, large] = ["kept", "mine", "large"].map(|name| format!("{MAINTENANCES}/{name}"));
    // As `headgate undrain` of one node.
    let without_one = json!({"spec": maintenance("", &names[1..])["spec"]});
    let reason = json!({"spec": {"reason": "disk"}});
    let finalizer = json!({"metadata": {"finalizers": ["headgate.dev/maintenance-completion"]}});
    let automatic = json!({"metadata": {"labels": {"headgate.dev/automatic": "preempt"}}});
    let owner =
        json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n-0", "uid": "u"}]}});
    let narrower = json!({"spec": maintenance("", &["n-0"])["spec"]});
    let wider = json!({"spec": maintenance("", &["n-0", "other"])["spec"]});
    for (user, method, path, patch, refused) in [
        (NONE, "PATCH", &mine, &reason, EACH),
        // As a migration of stored objects sends it, or a tool that labels its objects.
        (NONE, "PATCH", &mine, &json!({}), ""),
        (NONE, "PATCH", &mine, &json!({"metadata": {"labels": {"a": "b"}}}), ""),
        (NONE, "PATCH", &mine, &finalizer, EACH),
        // With both, headgate would take it for its own, and delete it.
        (NONE, "PATCH", &mine, &automatic, EACH),
        (NONE, "PATCH", &mine, &owner, EACH),
        (SOME, "PATCH", &mine, &reason, ""),
        (SOME, "PATCH", &kept, &reason, EACH),
        (SOME, "PATCH", &kept, &narrower, EACH),
        (SOME, "PATCH", &mine, &wider, EACH),
        (SOME, "PATCH", &mine, &narrower, ""),
        (SOME, "PATCH", &large, &without_one, ""),
        (ALL, "DELETE", &large, &Value::Null, ""),
        (SOME, "DELETE", &kept, &Value::Null, EACH),
        (CONTROLLER, "DELETE", &mine, &Value::Null, EACH),
        (SOME, "DELETE", &mine, &Value::Null, ""),
        (ALL, "DELETE", &kept, &Value::Null, ""),
    ] {
        let body = patch.is_object().then_some(patch);
        check(&client, user, (method, path), body, refused).await;
    }
}

#[tokio::test]
async fn the_controller_may_change_finalizers_and_complete() {
    let client = guarded().await.client();
    post(&client, MAINTENANCES, &maintenance("controlled", &[])).await;
    let path = format!("{MAINTENANCES}/controlled");
    let only = "may change only its own finalizer";
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "gone", "uid": "u"}]);
    let finalizers = json!({"metadata": {"finalizers": ["headgate.dev/maintenance-completion"]}});
    for (patch, refused) in [
        (finalizers, ""),
        (json!({"spec": {"reason": "x"}}), only),
        (json!({"spec": {"dryRun": true}}), "dryRun cannot be switched on"),
        (json!({"spec": {"loadBalancer": {"confirmation": "BestEffort"}}}), only),
        (json!({"metadata": {"labels": {"a": "b"}}}), only),
        (json!({"metadata": {"annotations": {"a": "b"}}}), only),
        (json!({"metadata": {"ownerReferences": owner}}), only),
        (json!({"metadata": {"finalizers": ["example.com/other"]}}), only),
        (json!({"spec": maintenance("", &["n-0"])["spec"]}), only),
        (json!({"spec": {"stage": "Complete"}}), ""),
        (json!({"metadata": {"finalizers": null}}), ""),
    ] {
        check(&client, CONTROLLER, ("PATCH", &path), Some(&patch), refused).await;
    }
    let status = json!({"status": {"selectedNodes": 1}});
    check(
        &client,
        CONTROLLER,
        ("PATCH", &format!("{path}/status")),
        Some(&status),
        "",
    )
    .await;
    request(&client, "DELETE", &path, None).await.unwrap();
}

#[tokio::test]
async fn an_evacuation_needs_the_right_to_delete_its_pod() {
    let client = guarded().await.client();
    let path = |pod: &str| format!("{EVACUATIONS}/uid-{pod}");
    let instigator =
        |name: &str| json!({"metadata": {"finalizers": [format!("evacuation.headgate.dev/instigator_{name}")]}});
    let (label, status) = (
        json!({"metadata": {"labels": {"a": "b"}}}),
        json!({"status": {"message": "working"}}),
    );
    let no_finalizer = json!({"metadata": {"finalizers": []}});
    // The garbage collector deletes an object whose owner is gone.
    let owner = json!({"metadata": {"ownerReferences": [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "5b3f8a9e-0000-4000-8000-000000000000"}]}});
    let refused = "needs the right to delete its pod";
    for (user, method, path, body, refused) in [
        (NONE, "POST", EVACUATIONS.to_owned(), Some(evacuation("web")), refused),
        (SOME, "POST", EVACUATIONS.to_owned(), Some(evacuation("db")), refused),
        (SOME, "POST", EVACUATIONS.to_owned(), Some(evacuation("web")), ""),
        (ALL, "POST", EVACUATIONS.to_owned(), Some(evacuation("db")), ""),
        (NONE, "PATCH", path("web"), Some(instigator("a")), refused),
        (SOME, "PATCH", path("web"), Some(instigator("a")), ""),
        (NONE, "PATCH", path("web"), Some(instigator("b")), refused),
        (NONE, "PATCH", path("web"), Some(label), ""),
        (NONE, "PATCH", path("web"), Some(no_finalizer.clone()), refused),
        (SOME, "PATCH", path("web"), Some(no_finalizer), ""),
        (NONE, "PATCH", path("web"), Some(owner.clone()), refused),
        (SOME, "PATCH", path("web"), Some(owner), ""),
        (SOME, "PATCH", path("db"), Some(instigator("a")), refused),
        (NONE, "PATCH", format!("{}/status", path("web")), Some(status), ""),
        (SOME, "DELETE", path("db"), None, refused),
        (NONE, "DELETE", path("web"), None, refused),
        (SOME, "DELETE", path("web"), None, ""),
        (ALL, "DELETE", path("db"), None, ""),
    ] {
        check(&client, user, (method, &path), body.as_ref(), refused).await;
    }
}

#[tokio::test]
async fn roles_for_people_and_evacuators_allow_what_they_are_for() {
    const EVACUATOR: &str = "headgate-evacuator";
    const VIEW: &str = "headgate-nodemaintenances-view";
    const ADMIN: &str = "headgate-nodemaintenances-admin";
    const PODS: &str = "headgate-evacuations-view";
    let cluster = guarded().await;
    let rbac = shipped("ClusterRole");
    succeeded(&cluster.kubectl().args(["apply", "-f"]).arg(rbac).output().unwrap());
    let client = cluster.client();
    for role in [EVACUATOR, VIEW, ADMIN, PODS] {
        bind(&client, role, role).await;
    }
    let role = format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/{PODS}");
    let labels = request(&client, "GET", &role, None).await.unwrap()["metadata"]["labels"].clone();
    for to in ["view", "edit", "admin"] {
        assert_eq!(labels[format!("rbac.authorization.k8s.io/aggregate-to-{to}")], "true");
    }
    post(&client, EVACUATIONS, &evacuation("roles")).await;
    let own = format!("{EVACUATIONS}/uid-roles");
    let status = format!("{EVACUATIONS}/uid-roles/status");
    let (message, label) = (
        json!({"status": {"message": "working"}}),
        json!({"metadata": {"labels": {"a": "b"}}}),
    );
    eventually(SOON, "the roles are in force", async || {
        let answer = request_as(&client, EVACUATOR, "PATCH", &status, Some(&message)).await;
        answer.map(drop).map_err(|refusal| refusal.message)
    })
    .await;
    let new = maintenance("roles", &["n-0"]);
    for (user, method, path, body, refused) in [
        (EVACUATOR, "GET", EVACUATIONS, None, ""),
        (EVACUATOR, "PATCH", &own, Some(&label), "cannot patch resource"),
        (EVACUATOR, "GET", MAINTENANCES, None, "cannot list resource"),
        (PODS, "GET", EVACUATIONS, None, ""),
        (PODS, "PATCH", &*status, Some(&message), "cannot patch resource"),
        (VIEW, "GET", MAINTENANCES, None, ""),
        (VIEW, "POST", MAINTENANCES, Some(&new), "cannot create resource"),
        (ADMIN, "GET", MAINTENANCES, None, ""),
        (ADMIN, "POST", MAINTENANCES, Some(&new), EACH),
    ] {
        check(&client, user, (method, path), body, refused).await;
    }
}

#[tokio::test]
async fn the_controller_deletes_only_pods_of_daemon_sets() {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    let client = guarded().await.client();
    let account = json!({"metadata": {"name": "default"}});
    // No controller makes it.
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    drop(request(&client, "POST", accounts, Some(&account)).await);
    let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]});
    grant(&client, OTHER_CONTROLLER, &[rule]).await;
    let only = "delete only those of DaemonSets";
    for (name, owner, refused) in [
        ("bare", json!([]), only),
        ("of-replica-set", owner("apps/v1", "ReplicaSet"), only),
        ("of-another", owner("apps.kruise.io/v1alpha1", "DaemonSet"), only),
        ("of-daemon-set", owner("apps/v1", "DaemonSet"), ""),
    ] {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "ownerReferences": owner},
            "spec": {"containers": [{"name": "a", "image": "a"}]}});
        request(&client, "POST", PODS, Some(&pod)).await.unwrap();
        let path = format!("{PODS}/{name}?gracePeriodSeconds=0");
        eventually(SOON, "the right is in force", async || {
            match request_as(&client, OTHER_CONTROLLER, "DELETE", &path, None).await {
                Ok(_) if refused.is_empty() => Ok(()),
                Err(answer) if !refused.is_empty() && answer.message.contains(refused) => Ok(()),
                other => Err(format!("{name}: {other:?}")),
            }
        })
        .await;
    }
}

fn owner(version: &str, kind: &str) -> Value {
    json!([{"apiVersion": version, "kind": kind, "name": "o", "uid": "o", "controller": true}])
}

#[tokio::test]
async fn a_selector_of_all_nodes_is_warned_of() {
    let cluster = guarded().await;
    let expression = |key: &str, operator: &str| json!({"matchExpressions": [{"key": key, "operator": operator}]});
    let named = maintenance("", &["n-0"]);
    for (term, warns) in [
        (expression("kubernetes.io/hostname", "Exists"), true),
        (expression("kubernetes.io/os", "Exists"), true),
        (expression("pool", "Exists"), false),
        (expression("pool", "DoesNotExist"), false),
        (named["spec"]["nodeSelector"]["nodeSelectorTerms"][0].clone(), false),
    ] {
        let mut object = maintenance("warned", &["n-0"]);
        let terms = &mut object["spec"]["nodeSelector"]["nodeSelectorTerms"];
        terms.as_array_mut().unwrap().push(term.clone());
        let directory = std::env::temp_dir().join(format!("headgate-warned-{}", std::process::id()));
        std::fs::write(&directory, object.to_string()).unwrap();
        let mut kubectl = cluster.kubectl();
        let create = kubectl.args(["create", "--dry-run=server", "-f"]).arg(&directory);
        let output = create.output().unwrap();
        std::fs::remove_file(&directory).unwrap();
        let warned = String::from_utf8_lossy(&output.stderr).contains("matches every node of the cluster");
        assert!(output.status.success(), "{term}: {output:?}");
        assert_eq!(warned, warns, "{term}: {output:?}");
    }
}

/// By the real kubectl, which prints warnings of the API server.
#[tokio::test]
async fn who_changes_the_cordon_of_a_maintenance_is_warned() {
    let cluster = guarded().await;
    let client = cluster.client();
    let annotations = |is_ours: bool| {
        if is_ours {
            json!({"headgate.dev/unschedulable-before-maintenance": "false"})
        } else {
            json!({})
        }
    };
    for (name, is_ours) in [("maintained", true), ("cordoned", false)] {
        let node =
            json!({"metadata": {"name": name, "annotations": annotations(is_ours)}, "spec": {"unschedulable": true}});
        request(&client, "POST", "/api/v1/nodes", Some(&node)).await.unwrap();
    }
    let kubectl = |arguments: &[&str]| {
        let output = cluster.kubectl().args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    eventually(SOON, "the policy is in force", async || {
        let warned = kubectl(&["uncordon", "maintained", "--dry-run=server"]);
        met(warned.contains("Warning: "), warned)
    })
    .await;
    let warned = kubectl(&["uncordon", "maintained"]);
    assert_contains!(
        warned,
        "node maintained is under maintenance: headgate cordons it again"
    );
    let warned = kubectl(&["cordon", "maintained"]);
    assert_contains!(warned, "this cordon does not outlast the maintenance");
    for arguments in [
        ["cordon", "maintained"].as_slice(),
        &["label", "node", "maintained", "a=b"],
        &["uncordon", "cordoned"],
        &["cordon", "cordoned"],
        // The end of a maintenance.
        &[
            "patch",
            "node",
            "maintained",
            "--type=merge",
            "-p",
            r#"{"metadata":{"annotations":{"headgate.dev/unschedulable-before-maintenance":null}},"spec":{"unschedulable":false}}"#,
        ],
    ] {
        assert_eq!(kubectl(arguments), "", "{arguments:?}");
    }
    for name in ["maintained", "cordoned"] {
        request(&client, "DELETE", &format!("/api/v1/nodes/{name}"), None)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn the_expressions_are_type_checked_without_a_warning() {
    let client = guarded().await.client();
    for name in [
        "headgate-nodemaintenances",
        "headgate-nodemaintenances-status",
        "headgate-nodemaintenances-all-nodes",
        "headgate-nodemaintenances-cordons",
        "headgate-evacuations",
        "headgate-pods",
    ] {
        let path = format!("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{name}");
        let policy = request(&client, "GET", &path, None).await.unwrap();
        assert_eq!(
            policy["status"]["typeChecking"]["expressionWarnings"],
            Value::Null,
            "{name}"
        );
    }
}
