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
            let delete = |resource: &str, names: &Value| {
                let mut rule = json!({"apiGroups": [""], "resources": [resource], "verbs": ["delete"]});
                if names.is_array() {
                    rule["resourceNames"] = names.clone();
                }
                rule
            };
            let nodes: Vec<_> = (0..20).map(|n| format!("n-{n}")).collect();
            for (user, rules) in [
                (NONE, vec![kinds.clone()]),
                (CONTROLLER, vec![kinds.clone()]),
                (
                    ALL,
                    vec![
                        kinds.clone(),
                        delete("nodes", &Value::Null),
                        delete("pods", &Value::Null),
                    ],
                ),
                (
                    SOME,
                    vec![kinds, delete("nodes", &json!(nodes)), delete("pods", &json!(["web"]))],
                ),
            ] {
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
                match request_as(
                    &client,
                    ALL,
                    "POST",
                    &format!("{MAINTENANCES}?dryRun=All"),
                    Some(&object),
                )
                .await
                {
                    Ok(_) => Ok(()),
                    Err(refusal) => Err(refusal.message),
                }
            })
            .await;
        })
        .await;
    cluster
}

async fn grant(client: &Client, user: &str, rules: &[Value]) {
    let name = user.replace(':', "-");
    let role = json!({"metadata": {"name": name}, "rules": rules});
    let binding = json!({"metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]});
    let group = "/apis/rbac.authorization.k8s.io/v1";
    request(client, "POST", &format!("{group}/clusterroles"), Some(&role))
        .await
        .unwrap();
    request(client, "POST", &format!("{group}/clusterrolebindings"), Some(&binding))
        .await
        .unwrap();
}

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
    let each = "needs the right to delete each of its nodes";
    let all = "needs the right to delete all nodes";
    let mut rows: Vec<(&str, Vec<&str>, &str)> = vec![
        (NONE, vec!["n-0"], each),
        (NONE, vec![], all),
        (SOME, vec!["n-0"], ""),
        (SOME, named[..2].to_vec(), ""),
        (SOME, named[..3].to_vec(), ""),
        (SOME, named[..16].to_vec(), ""),
        (SOME, named[..17].to_vec(), all),
        (SOME, vec!["other"], each),
        (SOME, vec![], all),
        (ALL, vec!["n-0", "other"], ""),
        (ALL, named.clone(), ""),
        (ALL, vec![], ""),
        (CONTROLLER, vec!["n-0"], each),
    ];
    rows.extend((0..16).map(|at| (SOME, with_other(at), each)));
    for (number, (user, nodes, refused)) in rows.into_iter().enumerate() {
        let object = maintenance(&format!("by-right-{number}"), &nodes);
        let path = format!("{MAINTENANCES}?dryRun=All");
        let answer = request_as(&client, user, "POST", &path, Some(&object)).await;
        judge(answer.as_ref(), refused, &format!("{user} {nodes:?}"));
    }
    let mut half = maintenance("half", &["n-0"]);
    let term = json!({"matchExpressions": [{"key": "pool", "operator": "Exists"}]});
    half["spec"]["nodeSelector"]["nodeSelectorTerms"]
        .as_array_mut()
        .unwrap()
        .push(term);
    let answer = request_as(&client, SOME, "POST", MAINTENANCES, Some(&half)).await;
    judge(answer.as_ref(), all, "one term without a name");
}

#[tokio::test]
async fn changes_and_deletions_need_the_right_as_well() {
    let client = guarded().await.client();
    request(
        &client,
        "POST",
        MAINTENANCES,
        Some(&maintenance("kept", &["n-0", "other"])),
    )
    .await
    .unwrap();
    request(
        &client,
        "POST",
        MAINTENANCES,
        Some(&maintenance("mine", &["n-0", "n-1"])),
    )
    .await
    .unwrap();
    let (kept, mine) = (format!("{MAINTENANCES}/kept"), format!("{MAINTENANCES}/mine"));
    let names: Vec<_> = (0..16).map(|number| format!("n-{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    request(&client, "POST", MAINTENANCES, Some(&maintenance("large", &names)))
        .await
        .unwrap();
    let large = format!("{MAINTENANCES}/large");
    // As `headgate undrain` of one node.
    let without_one = json!({"spec": maintenance("", &names[1..])["spec"]});
    let reason = json!({"spec": {"reason": "disk"}});
    let each = "needs the right to delete each of its nodes";
    let finalizer = json!({"metadata": {"finalizers": ["headgate.dev/maintenance-completion"]}});
    let owner =
        json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n-0", "uid": "u"}]}});
    let narrower = json!({"spec": maintenance("", &["n-0"])["spec"]});
    let wider = json!({"spec": maintenance("", &["n-0", "other"])["spec"]});
    for (user, method, path, patch, refused) in [
        (NONE, "PATCH", &mine, &reason, each),
        // As a migration of stored objects sends it, or a tool that labels its objects.
        (NONE, "PATCH", &mine, &json!({}), ""),
        (NONE, "PATCH", &mine, &json!({"metadata": {"labels": {"a": "b"}}}), ""),
        (NONE, "PATCH", &mine, &finalizer, each),
        // With both, headgate would take it for its own, and delete it.
        (
            NONE,
            "PATCH",
            &mine,
            &json!({"metadata": {"labels": {"headgate.dev/automatic": "preempt"}}}),
            each,
        ),
        (NONE, "PATCH", &mine, &owner, each),
        (SOME, "PATCH", &mine, &reason, ""),
        (SOME, "PATCH", &kept, &reason, each),
        (SOME, "PATCH", &kept, &narrower, each),
        (SOME, "PATCH", &mine, &wider, each),
        (SOME, "PATCH", &mine, &narrower, ""),
        (SOME, "PATCH", &large, &without_one, ""),
        (ALL, "DELETE", &large, &Value::Null, ""),
        (SOME, "DELETE", &kept, &Value::Null, each),
        (CONTROLLER, "DELETE", &mine, &Value::Null, each),
        (SOME, "DELETE", &mine, &Value::Null, ""),
        (ALL, "DELETE", &kept, &Value::Null, ""),
    ] {
        let body = patch.is_object().then_some(patch);
        let answer = request_as(&client, user, method, path, body).await;
        judge(answer.as_ref(), refused, &format!("{user} {method} {path} {patch}"));
    }
}

#[tokio::test]
async fn the_controller_may_change_finalizers_and_complete() {
    let client = guarded().await.client();
    request(&client, "POST", MAINTENANCES, Some(&maintenance("controlled", &[])))
        .await
        .unwrap();
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
        let answer = request_as(&client, CONTROLLER, "PATCH", &path, Some(&patch)).await;
        judge(answer.as_ref(), refused, &patch.to_string());
    }
    let status = json!({"status": {"selectedNodes": 1}});
    let answer = request_as(&client, CONTROLLER, "PATCH", &format!("{path}/status"), Some(&status)).await;
    judge(answer.as_ref(), "", "the status");
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
        (
            NONE,
            "PATCH",
            path("web"),
            Some(json!({"metadata": {"finalizers": []}})),
            refused,
        ),
        (
            SOME,
            "PATCH",
            path("web"),
            Some(json!({"metadata": {"finalizers": []}})),
            "",
        ),
        (NONE, "PATCH", path("web"), Some(owner.clone()), refused),
        (SOME, "PATCH", path("web"), Some(owner), ""),
        (SOME, "PATCH", path("db"), Some(instigator("a")), refused),
        (NONE, "PATCH", format!("{}/status", path("web")), Some(status), ""),
        (SOME, "DELETE", path("db"), None, refused),
        (NONE, "DELETE", path("web"), None, refused),
        (SOME, "DELETE", path("web"), None, ""),
        (ALL, "DELETE", path("db"), None, ""),
    ] {
        let answer = request_as(&client, user, method, &path, body.as_ref()).await;
        judge(answer.as_ref(), refused, &format!("{user} {method} {path}"));
    }
}

/// Binds a `ClusterRole` of the component to a user of its name.
async fn bind(client: &Client, role: &str) {
    let binding = json!({"metadata": {"name": format!("{role}-test")},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": role}]});
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    request(client, "POST", path, Some(&binding)).await.unwrap();
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
        bind(&client, role).await;
    }
    let role = format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/{PODS}");
    let labels = request(&client, "GET", &role, None).await.unwrap()["metadata"]["labels"].clone();
    for to in ["view", "edit", "admin"] {
        assert_eq!(labels[format!("rbac.authorization.k8s.io/aggregate-to-{to}")], "true");
    }
    request(&client, "POST", EVACUATIONS, Some(&evacuation("roles")))
        .await
        .unwrap();
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
    let each = "needs the right to delete each of its nodes";
    for (user, method, path, body, refused) in [
        (EVACUATOR, "GET", EVACUATIONS, None, ""),
        (
            EVACUATOR,
            "PATCH",
            &*format!("{EVACUATIONS}/uid-roles"),
            Some(&label),
            "cannot patch resource",
        ),
        (EVACUATOR, "GET", MAINTENANCES, None, "cannot list resource"),
        (PODS, "GET", EVACUATIONS, None, ""),
        (PODS, "PATCH", &*status, Some(&message), "cannot patch resource"),
        (VIEW, "GET", MAINTENANCES, None, ""),
        (VIEW, "POST", MAINTENANCES, Some(&new), "cannot create resource"),
        (ADMIN, "GET", MAINTENANCES, None, ""),
        (ADMIN, "POST", MAINTENANCES, Some(&new), each),
    ] {
        let answer = request_as(&client, user, method, path, body).await;
        judge(answer.as_ref(), refused, &format!("{user} {method} {path}"));
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
    for (term, warns) in [
        (expression("kubernetes.io/hostname", "Exists"), true),
        (expression("kubernetes.io/os", "Exists"), true),
        (expression("pool", "Exists"), false),
        (expression("pool", "DoesNotExist"), false),
        (
            maintenance("", &["n-0"])["spec"]["nodeSelector"]["nodeSelectorTerms"][0].clone(),
            false,
        ),
    ] {
        let mut object = maintenance("warned", &["n-0"]);
        object["spec"]["nodeSelector"]["nodeSelectorTerms"]
            .as_array_mut()
            .unwrap()
            .push(term.clone());
        let directory = std::env::temp_dir().join(format!("headgate-warned-{}", std::process::id()));
        std::fs::write(&directory, object.to_string()).unwrap();
        let output = cluster
            .kubectl()
            .args(["create", "--dry-run=server", "-f"])
            .arg(&directory)
            .output()
            .unwrap();
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
