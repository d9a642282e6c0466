//! What each profile switches on, that one value switches each of it off, and that no node has a credential of Azure.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{LABELS, aks, helm, merged, only, profile, rendered, stdout_of, template};
use crate::manifests::{repository, settings};

/// The files of values, one for each way to install.
const FILES: [&str; 5] = ["healthz", "azure", "aks", "everything", "no-azure"];

fn ci(name: &str) -> PathBuf {
    repository(&format!("charts/headgate/ci/{name}-values.yaml"))
}

/// What helm renders from a file of values and more.
fn with(name: &str, more: Value) -> Vec<Value> {
    rendered("kube-system", &merged(profile(name), more), &[])
}

fn has(objects: &[Value], kind: &str, name: &str) -> bool {
    objects
        .iter()
        .any(|object| object["kind"] == kind && object["metadata"]["name"] == name)
}

/// The settings, which the program accepts.
fn settings_of(objects: &[Value]) -> Value {
    let mut maps = objects.iter().filter(|object| object["kind"] == "ConfigMap");
    let text = maps.find_map(|map| map["data"]["settings.yaml"].as_str()).unwrap();
    settings::in_effect(text);
    let mut settings: Value = serde_yaml::from_str(text).unwrap();
    for key in ["apiVersion", "kind"] {
        assert!(settings.as_object_mut().unwrap().remove(key).is_some(), "{text}");
    }
    settings
}

/// A `DaemonSet` by its name.
fn daemonset<'a>(objects: &'a [Value], name: &str) -> &'a Value {
    let mut found = objects.iter().filter(|object| object["kind"] == "DaemonSet");
    found.find(|object| object["metadata"]["name"] == name).unwrap()
}

/// The pod templates, with the names of their objects.
fn pods(objects: &[Value]) -> Vec<(String, Value)> {
    let templates = objects.iter().filter_map(|object| {
        let template = object["spec"].get("template")?;
        Some((
            format!("{} {}", object["kind"], object["metadata"]["name"]),
            template.clone(),
        ))
    });
    templates.collect()
}

fn kubelet_shutdown() -> Value {
    json!({"signal": "kubelet-shutdown", "for": ["health", "adminState"]})
}

fn cordon(after: &str) -> Value {
    json!({"signal": "cordon", "after": after, "for": ["adminState"]})
}

/// What protects in Azure: the settings, and the objects with the rights.
fn protection(cluster: &str) -> Value {
    let settings = json!({"outOfLoadBalancers": {"source": "AdminState"}, "delayTermination": {"clusterAutoscaler": "2m"},
        "evictionNotices": ["ScheduledEvents"], "connections": {"count": true}, "signals": {"extra": [kubelet_shutdown()]}});
    match cluster {
        "" => settings,
        name => merged(settings, json!({"azure": {"clusterName": name}})),
    }
}

#[test]
fn each_profile_switches_on_what_protects() {
    let healthz = with("healthz", json!({}));
    assert_eq!(settings_of(&healthz), json!({}));
    assert!(!has(&healthz, "Deployment", "headgate-controller"));

    let azure = with("azure", json!({}));
    assert_eq!(settings_of(&azure), protection("my-cluster"));
    let aks = with("aks", json!({}));
    let signals = json!({"signals": {"extra": [kubelet_shutdown(), cordon("10s")]}});
    assert_eq!(settings_of(&aks), merged(protection(""), signals));
    for objects in [&azure, &aks] {
        assert_eq!(only(objects, "Deployment")["spec"]["replicas"], 2);
        for (kind, name) in [
            ("DaemonSet", "headgate-hold"),
            ("ClusterRole", "headgate-out-of-load-balancers"),
            ("ClusterRole", "headgate-spot"),
            ("ClusterRole", "headgate-delay-deletion"),
            ("NetworkPolicy", "headgate-controller"),
            ("Secret", "headgate-azure"),
        ] {
            assert!(has(objects, kind, name), "{kind} {name}");
        }
        let containers = &daemonset(objects, "headgate")["spec"]["template"]["spec"]["containers"];
        assert_eq!(containers[1]["name"], "connections");
        assert!(
            !has(objects, "CustomResourceDefinition", "nodemaintenances.headgate.dev"),
            "maintenances delete pods"
        );
    }
}

#[test]
fn one_value_switches_each_feature_off() {
    let before = with("aks", json!({}));
    let names = |objects: &[Value]| -> Vec<String> {
        let names = objects
            .iter()
            .filter(|object| object["kind"] != "ConfigMap")
            .map(|object| format!("{} {}", object["kind"], object["metadata"]["name"]).replace('"', ""));
        names.collect()
    };
    // Each with the part of the settings that goes and the objects that go.
    let table = "
{delayTermination: {clusterAutoscaler: false, karpenter: false}, outOfLoadBalancers: {enabled: false}} → /outOfLoadBalancers → ClusterRole headgate-out-of-load-balancers, ClusterRoleBinding headgate-out-of-load-balancers
delayTermination: {clusterAutoscaler: false} → /delayTermination → ClusterRole headgate-delay-deletion, ClusterRoleBinding headgate-delay-deletion
delayTermination: {karpenter: false} → none → DaemonSet headgate-hold, ServiceAccount headgate-hold
settings: {adminState: {mode: Observe}} → none → DaemonSet headgate-hold, ServiceAccount headgate-hold
evictionNotices: {enabled: false} → /evictionNotices → ClusterRole headgate-spot, ClusterRoleBinding headgate-spot
connections: {enabled: false} → /connections → none
signals: {kubeletShutdown: false, cordon: false} → /signals → none
networkPolicy: {enabled: false} → none → NetworkPolicy headgate-controller
";
    for line in table.trim().lines() {
        let [values, setting, gone] = line.split(" → ").collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let after = with("aks", serde_yaml::from_str(values).expect(line));
        for object in gone.split(", ").filter(|gone| *gone != "none") {
            assert!(names(&before).iter().any(|name| name == object), "{object}");
            assert!(!names(&after).iter().any(|name| name == object), "{line}: {object}");
        }
        if setting != "none" {
            assert!(settings_of(&before).pointer(setting).is_some(), "{setting}");
            assert_eq!(settings_of(&after).pointer(setting), None, "{line}");
        }
    }
    // The condition alone is enough: what waits for it goes with it.
    let after = with("aks", json!({"outOfLoadBalancers": {"enabled": false}}));
    assert!(!has(&after, "DaemonSet", "headgate-hold"));
    assert_eq!(settings_of(&after).pointer("/delayTermination"), None);
}

#[test]
fn signals_of_a_profile_are_added_to_the_users() {
    let extra = |values: Value| settings_of(&with("aks", values))["signals"]["extra"].clone();
    let taint = json!({"taint": "example.com/a", "for": ["health"]});
    let own = json!({"settings": {"signals": {"disabled": ["spot"], "extra": [taint]}}});
    assert_eq!(
        settings_of(&with("aks", own))["signals"],
        json!({"disabled": ["spot"], "extra": [taint, kubelet_shutdown(), cordon("10s")]})
    );
    // What the user says of a signal counts.
    let own = json!({"settings": {"signals": {"extra": [cordon("1m")]}}});
    assert_eq!(extra(own), json!([cordon("1m"), kubelet_shutdown()]));
    let own = json!({"settings": {"signals": {"disabled": ["kubelet-shutdown"]}}});
    assert_eq!(extra(own), json!([cordon("10s")]));
    let one = json!({"signals": {"cordon": false}});
    assert_eq!(extra(one), json!([kubelet_shutdown()]));
    let one = json!({"signals": {"kubeletShutdown": false, "cordon": "30s"}});
    assert_eq!(extra(one), json!([cordon("30s")]));
}

#[test]
fn no_node_has_a_credential_of_azure() {
    let webhook = json!({"azure": {"workloadIdentity": "webhook"}});
    let secret = json!({"azure": {"existingSecret": "own", "configSecret": "azure-cloud-provider"}});
    for (name, more) in [
        ("azure", json!({})),
        ("aks", json!({})),
        ("everything", json!({})),
        ("aks", webhook),
        ("aks", secret),
    ] {
        let objects = with(name, more.clone());
        for daemonset in objects.iter().filter(|object| object["kind"] == "DaemonSet") {
            let text = daemonset.to_string();
            for credential in [
                "azure.json",
                "AzureAD",
                "azure-token",
                "headgate-azure",
                "own",
                "azure-cloud-provider",
                "azure.workload.identity/use",
                "checksum/azure",
            ] {
                assert!(
                    !text.contains(&format!("{credential}\"")) && !text.contains(&format!("/{credential}")),
                    "{name} {more}: {credential}"
                );
            }
            for part in ["azure-config-file", "AZURE_"] {
                assert!(!text.contains(part), "{name} {more}: {part}");
            }
        }
        let container = &daemonset(&objects, "headgate")["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(
            container["args"],
            json!(["agent", "--config=/etc/headgate/settings.yaml", "--role=agent"])
        );
        let accounts = objects.iter().filter(|object| object["kind"] == "ServiceAccount");
        for account in accounts.filter(|account| account["metadata"]["name"] != "headgate-controller") {
            let annotations = account["metadata"]["annotations"].to_string();
            assert!(!annotations.contains("azure"), "{account}");
        }
        // The controllers have it.
        let controller = only(&objects, "Deployment").to_string();
        assert!(controller.contains("--azure-config-file=/etc/headgate/azure.json"));
    }
}

#[test]
fn a_missing_value_is_named_with_an_example() {
    let ids = ["tenantId", "subscriptionId", "resourceGroup", "clientId"];
    for cluster in ["azure", "aks"] {
        for id in ids {
            let mut values = profile(cluster);
            values["azure"].as_object_mut().unwrap().remove(id);
            refused(
                &values,
                &[&format!("profile {cluster} needs azure.{id}"), "--set azure."],
            );
        }
        let all = ids.map(|id| format!("azure.{id}"));
        refused(
            &json!({"profile": cluster}),
            &all.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    }
    let mut unnamed = profile("azure");
    unnamed["azure"].as_object_mut().unwrap().remove("clusterName");
    refused(
        &unnamed,
        &[
            "profile azure needs azure.clusterName",
            "--set azure.clusterName=my-cluster",
        ],
    );
    // Where a Secret has the values, nothing is missing.
    for more in [
        json!({"existingSecret": "a"}),
        json!({"configSecret": "azure-cloud-provider"}),
        json!({"config": {"tenantId": "t", "subscriptionId": "s", "resourceGroup": "r", "useManagedIdentityExtension": true}}),
    ] {
        rendered("kube-system", &json!({"profile": "aks", "azure": more}), &[]);
    }
}

fn refused(values: &Value, named: &[&str]) {
    let output = template("kube-system", values, &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{values}");
    for name in named {
        assert!(errors.contains(name), "{values}: {name}: {errors}");
    }
}

/// As install.md has it: flags, and no file.
#[test]
fn five_values_on_the_command_line_install_aks() {
    let mut command = helm(&["template", "headgate"]);
    command.arg(super::chart()).args(["--namespace", "kube-system"]);
    for value in [
        "profile=aks",
        "image.repository=registry.example.com/headgate",
        "azure.tenantId=00000000-0000-0000-0000-000000000001",
        "azure.subscriptionId=00000000-0000-0000-0000-000000000002",
        "azure.resourceGroup=MC_group_cluster_region",
        "azure.clientId=00000000-0000-0000-0000-000000000003",
    ] {
        command.args(["--set", value]);
    }
    let mut file = helm(&["template", "headgate"]);
    file.arg(super::chart())
        .args(["--namespace", "kube-system", "--values"]);
    assert_eq!(stdout_of(&mut command), stdout_of(file.arg(ci("aks"))));
}

#[test]
fn monitoring_objects_follow_the_kinds_of_the_api_server() {
    let operator = [
        "monitoring.coreos.com/v1/PodMonitor",
        "monitoring.coreos.com/v1/PrometheusRule",
    ];
    let managed = ["azmonitoring.coreos.com/v1/PodMonitor"];
    for (name, kinds, monitors, rules) in [
        ("aks", vec![], vec![], 0),
        ("aks", operator.to_vec(), vec!["monitoring.coreos.com/v1"], 2),
        ("azure", managed.to_vec(), vec!["azmonitoring.coreos.com/v1"], 0),
        (
            "aks",
            [&operator[..], &managed[..]].concat(),
            vec!["monitoring.coreos.com/v1", "azmonitoring.coreos.com/v1"],
            2,
        ),
        ("healthz", operator.to_vec(), vec![], 0),
        // Asked for without a look at the API server.
        ("everything", vec![], vec!["monitoring.coreos.com/v1"], 2),
    ] {
        let flags: Vec<&str> = kinds.iter().flat_map(|kind| ["--api-versions", *kind]).collect();
        let objects = rendered("kube-system", &profile(name), &flags);
        let found = objects.iter().filter(|object| object["kind"] == "PodMonitor");
        let found: Vec<&Value> = found.map(|object| &object["apiVersion"]).collect();
        assert_eq!(found, monitors, "{name} {kinds:?}");
        let found = objects.iter().filter(|object| object["kind"] == "PrometheusRule");
        let found: Vec<String> = found.map(ToString::to_string).collect();
        assert_eq!(found.len(), rules, "{name} {kinds:?}");
        assert!(
            !found.concat().contains("runbook_url"),
            "no link without a base: {found:?}"
        );
        if name != "healthz" {
            let readers = only(&objects, "NetworkPolicy")["spec"]["ingress"][0]["from"].to_string();
            assert_eq!(
                readers.contains("ama-metrics"),
                kinds.iter().any(|kind| kind.starts_with("azmonitoring")),
                "{readers}"
            );
        }
    }
    let off = merged(
        profile("aks"),
        json!({"podMonitor": {"enabled": false}, "prometheusRule": {"enabled": false}}),
    );
    let flags: Vec<&str> = operator.iter().flat_map(|kind| ["--api-versions", *kind]).collect();
    for object in rendered("kube-system", &off, &flags) {
        assert!(!["PodMonitor", "PrometheusRule"].contains(&object["kind"].as_str().unwrap()));
    }
}

#[test]
fn all_objects_have_the_labels_of_the_release_and_the_common_ones() {
    for name in FILES {
        let objects = with(name, json!({"commonLabels": {"team": "edge"}}));
        for object in &objects {
            let labels = &object["metadata"]["labels"];
            for label in LABELS.iter().chain(&["team"]) {
                assert!(labels[*label].is_string(), "{name}: {label}: {}", object["metadata"]);
            }
        }
        for (pod, template) in pods(&objects) {
            let labels = &template["metadata"]["labels"];
            assert_eq!(labels["team"], "edge", "{name}: {pod}");
            assert_eq!(labels["app.kubernetes.io/instance"], "headgate", "{name}: {pod}");
        }
    }
}

#[test]
fn all_containers_state_their_ephemeral_storage() {
    for name in FILES {
        for (pod, template) in pods(&with(name, json!({}))) {
            for container in template["spec"]["containers"].as_array().unwrap() {
                for kind in ["requests", "limits"] {
                    let storage = &container["resources"][kind]["ephemeral-storage"];
                    assert!(storage.is_string(), "{name}: {pod}: {container}");
                }
            }
        }
    }
}

#[test]
fn values_for_pods_reach_agents_and_controllers() {
    let volume = json!({"name": "certificates", "configMap": {"name": "certificates"}});
    let mount = json!({"name": "certificates", "mountPath": "/certificates"});
    let of_pod = json!({"extraArgs": ["--log-format=json"], "extraVolumes": [volume], "extraVolumeMounts": [mount],
        "affinity": {"podAffinity": {}}, "podSecurityContext": {"fsGroup": 7}, "securityContext": {"runAsUser": 8}});
    let objects = rendered(
        "kube-system",
        &merged(
            aks(),
            json!({"agent": of_pod, "controller": merged(of_pod.clone(), json!({"topologySpreadConstraints": []})),
                "proxy": {"https": "http://proxy:3128", "exclude": "10.0.0.0/8"}, "notifications": {"secretName": "chat"},
                "podMonitor": {"enabled": true, "interval": "15s", "scrapeTimeout": "5s", "relabelings": [{"action": "labeldrop"}],
                    "metricRelabelings": [{"action": "keep"}]},
                "prometheusRule": {"enabled": true, "interval": "1m"}}),
        ),
        &["--no-hooks"],
    );
    for workload in [daemonset(&objects, "headgate"), only(&objects, "Deployment")] {
        let pod = &workload["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let arguments = container["args"].as_array().unwrap();
        assert_eq!(arguments.last().unwrap(), "--log-format=json");
        assert!(pod["volumes"].as_array().unwrap().contains(&volume));
        assert!(container["volumeMounts"].as_array().unwrap().contains(&mount));
        assert!(pod["affinity"]["podAffinity"].is_object());
        assert_eq!(
            (
                &pod["securityContext"]["fsGroup"],
                &container["securityContext"]["runAsUser"]
            ),
            (&json!(7), &json!(8))
        );
        let environment = container["env"].as_array().unwrap();
        assert!(environment.contains(&json!({"name": "HTTPS_PROXY", "value": "http://proxy:3128"})));
        assert!(environment.contains(&json!({"name": "NO_PROXY", "value": "10.0.0.0/8"})));
        let webhook = json!({"name": "webhook", "secret": {"secretName": "chat", "optional": true}});
        assert!(pod["volumes"].as_array().unwrap().contains(&webhook));
    }
    let deployment = only(&objects, "Deployment");
    assert_eq!(
        deployment["spec"]["template"]["spec"].get("topologySpreadConstraints"),
        None
    );
    assert_eq!(
        settings_of(&objects)["notifications"],
        json!({"urlFile": "/etc/headgate-webhook/url"})
    );
    let endpoint = &only(&objects, "PodMonitor")["spec"]["podMetricsEndpoints"][0];
    assert_eq!(
        (
            &endpoint["interval"],
            &endpoint["scrapeTimeout"],
            &endpoint["metricRelabelings"]
        ),
        (&json!("15s"), &json!("5s"), &json!([{"action": "keep"}]))
    );
    let relabelings = endpoint["relabelings"].as_array().unwrap();
    assert_eq!(
        (relabelings.len(), &relabelings[4]),
        (5, &json!({"action": "labeldrop"}))
    );
    for rules in objects.iter().filter(|object| object["kind"] == "PrometheusRule") {
        assert_eq!(rules["spec"]["groups"][0]["interval"], "1m");
    }
}

#[test]
fn helm_test_runs_headgate_check_as_the_pods_that_may_lead() {
    for (name, account, is_leader) in [("healthz", "headgate", false), ("aks", "headgate-controller", true)] {
        let objects = with(name, json!({}));
        let pod = only(&objects, "Pod");
        assert_eq!(pod["metadata"]["annotations"]["helm.sh/hook"], "test");
        assert_eq!(pod["spec"]["serviceAccountName"], account);
        let container = &pod["spec"]["containers"][0];
        let arguments: Vec<String> = serde_json::from_value(container["args"].clone()).unwrap();
        assert_eq!(arguments[0], "check");
        let file = "--azure-config-file=/etc/headgate/azure.json".to_owned();
        assert_eq!(arguments.contains(&file), is_leader, "{arguments:?}");
        let line = ["/headgate".to_owned()].into_iter().chain(arguments);
        headgate::cli::definition().try_get_matches_from(line).unwrap();
        let volumes = pod["spec"]["volumes"].to_string();
        assert_eq!(volumes.contains("azure-token"), is_leader, "{volumes}");
    }
}

/// `helm test` has the leader's credentials, and without a place for its Job `helm uninstall` would never succeed.
#[test]
fn pods_of_hooks_run_where_the_controllers_may() {
    let values =
        json!({"nodeSelector": {"pool": "trusted"}, "extraTolerations": [{"key": "dedicated", "operator": "Exists"}]});
    let objects = with("aks", json!({"controller": values.clone()}));
    let controller = &only(&objects, "Deployment")["spec"]["template"]["spec"];
    for pod in [
        &only(&objects, "Pod")["spec"],
        &only(&objects, "Job")["spec"]["template"]["spec"],
    ] {
        assert_eq!(pod["nodeSelector"], controller["nodeSelector"]);
        // A node that has a controller may run it.
        assert_eq!(
            pod["affinity"],
            json!({"nodeAffinity": controller["affinity"]["nodeAffinity"]})
        );
        let tolerations = pod["tolerations"].as_array().unwrap();
        let of_control_plane =
            json!({"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"});
        for needed in [&values["extraTolerations"][0], &of_control_plane] {
            assert!(tolerations.contains(needed), "{tolerations:?}");
        }
    }
    // Without controllers, those of the agents' nodes.
    let everything = json!({"operator": "Exists"});
    for (selector, tolerates) in [(json!({}), false), (json!({"pool": "edge"}), true)] {
        let objects = with("healthz", json!({"agent": {"nodeSelector": selector}}));
        let pod = &only(&objects, "Pod")["spec"];
        let found = pod["tolerations"].as_array().unwrap();
        assert_eq!(found.contains(&everything), tolerates, "{found:?}");
    }
}
