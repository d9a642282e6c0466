//! Values that cannot work are refused before anything is installed, and every value has an effect.

use headgate_test_kubernetes::assert_contains;
use serde_json::{Value, json};

use super::{aks, chart, helm, merged, only, profile, rendered, stdout_of, template, tools, values_file};

#[test]
fn helm_lint_accepts_the_chart() {
    let all = json!({"profile": "aks", "azure": {"existingSecret": "a"}, "serviceHealthChecks": "Path", "maintenance": {"enabled": true},
        "podMonitor": {"enabled": true}, "prometheusRule": {"enabled": true}, "dashboards": {"enabled": true}});
    for values in [json!({}), all] {
        let mut lint = helm(&["lint", "--strict", "--quiet"]);
        lint.arg(chart()).arg("--values").arg(values_file(&values));
        let output = lint.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    }
}

/// Values in YAML, here below a base, and the words with which they are refused, one pair on each line.
fn assert_refused(base: &Value, table: &str) {
    for line in table.trim().lines() {
        let (values, words) = line.split_once(" → ").expect(line);
        let values = merged(base.clone(), serde_yaml::from_str(values).expect(line));
        let output = template("kube-system", &values, &[]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(words), "{line}: {errors}");
    }
}

#[test]
fn values_that_cannot_work_are_refused_by_name() {
    let table = r#"
imgae: {} → imgae
image: {digest: "sha256:1"} → digest
agent: {maxSurge: 0} → maxSurge
agent: {maxSurge: "0%"} → maxSurge
agent: {terminationGracePeriodSeconds: 5} → terminationGracePeriodSeconds
serviceHealthChecks: "on" → serviceHealthChecks
prometheusRule: {runbookBase: "docs/"} → runbookBase
profile: gke → profile
connections: {enabled: "yes"} → enabled
signals: {cordon: true} → cordon
signals: {cordon: soon} → cordon
signals: {cordon: 61m} → cordon
signals: {cordon: 3600001ms} → cordon
{maintenance: {enabled: true, automatic: [{cause: shutdown, timeout: ""}]}} → timeout
azure: {workloadIdentity: pod} → workloadIdentity
agent: {securityContext: {privileged: "no"}} → privileged
controller: {affinity: {nodeAfinity: {}}} → nodeAfinity
settings: {adminState: {mode: dry-run}} → mode
settings: {adminstate: {mode: Observe}} → adminstate
settings: {outOfLoadBalancers: {failedProbes: 0}} → failedProbes
uninstall: {timeout: soon} → timeout
uninstall: {timeout: 1500m} → timeout
{profile: aks, azure: {existingSecret: Azure_Config}} → existingSecret
{profile: aks, azure: {configSecret: "-azure"}} → configSecret
imagePullSecrets: [{nmae: registry}] → imagePullSecrets
agent: {priorityClassName: Very High} → priorityClassName
"#;
    assert_refused(&json!({}), table);
    for longest in ["1440m", "86400s"] {
        rendered("kube-system", &json!({"uninstall": {"timeout": longest}}), &[]);
    }
}

/// A key without a value, as where all lines below it are comments. Without one, an object is taken away, as Helm documents it.
#[test]
fn an_empty_value_is_its_default_or_refused_by_name() {
    let defaults: Value = serde_yaml::from_str(&super::text("charts/headgate/values.yaml")).unwrap();
    let mut given = Vec::new();
    for (name, value) in defaults.as_object().unwrap() {
        given.push((name.clone(), json!({name: null}), value));
        for (key, value) in value.as_object().into_iter().flatten() {
            // Without it, less is rendered, as Helm documents it.
            if value.as_object().is_none_or(serde_json::Map::is_empty) {
                given.push((format!("{name}.{key}"), json!({name: {key: null}}), value));
            }
        }
    }
    let mut empty = json!({});
    for (name, without, default) in given {
        if [json!(""), json!([]), json!({}), json!("auto"), json!(false)].contains(default) {
            empty = merged(empty, without);
        } else {
            for base in [json!({}), aks()] {
                assert_refused(&base, &format!("{without} → {name} is empty"));
            }
        }
    }
    for base in [json!({}), aks(), profile("everything")] {
        let with_empty = rendered("kube-system", &merged(empty.clone(), base.clone()), &[]);
        assert_eq!(with_empty, rendered("kube-system", &base, &[]));
    }
    let mut install = helm(&["install", "headgate", "--dry-run=client"]);
    let notes = stdout_of(install.arg(chart()).arg("--values").arg(values_file(&empty)));
    assert_contains!(notes, "at port 10456, path /healthz");
    let without_resources = json!({"agent": {"resources": null}});
    let objects = rendered("kube-system", &without_resources, &[]);
    let container = &only(&objects, "DaemonSet")["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["resources"], json!({"limits": {"memory": "64Mi"}}));
}

#[test]
fn values_that_contradict_each_other_are_refused_by_name() {
    let alone = "
settings: {maintenance: {enabled: true}} → settings.maintenance.enabled needs the value maintenance.enabled
settings: {evictionNotices: [NodeEvents, ScheduledEvents]} → settings.evictionNotices needs the value evictionNotices.enabled
settings: {serviceHealthChecks: Path} → settings.serviceHealthChecks needs the value serviceHealthChecks
settings: {connections: {count: true}} → settings.connections.count needs the value connections.enabled
{serviceHealthChecks: Path, settings: {serviceHealthChecks: NodePorts}} → settings.serviceHealthChecks needs the value serviceHealthChecks
settings: {outOfLoadBalancers: {source: AdminState}} → settings.outOfLoadBalancers.source contradicts the values profile and outOfLoadBalancers.enabled
settings: {delayTermination: {clusterAutoscaler: 2m}} → settings.delayTermination.clusterAutoscaler needs the value delayTermination.clusterAutoscaler
settings: {outOfLoadBalancers: {source: FailedProbes}} → settings.outOfLoadBalancers.source contradicts the values
{maintenance: {enabled: true}, outOfLoadBalancers: {enabled: false}} → maintenance.enabled needs outOfLoadBalancers.enabled
maintenance: {automatic: [preempt]} → maintenance.automatic needs maintenance.enabled
{maintenance: {enabled: true}, settings: {maintenance: {automatic: [preempt]}}} → settings.maintenance.automatic needs the value maintenance.automatic
maintenance: {rollout: true} → maintenance.rollout needs maintenance.enabled
azure: {tenantId: t} → profile healthz does not use azure.*: set profile to aks
";
    let with_azure = "
settings: {outOfLoadBalancers: {source: Disabled}} → settings.outOfLoadBalancers.source contradicts the values
settings: {azure: {configSecret: kube-system/other}} → settings.azure.configSecret needs the value azure.configSecret
{azure: {leaderOnNodes: true}, maintenance: {enabled: true}} → azure.leaderOnNodes excludes maintenance.enabled
{outOfLoadBalancers: {enabled: false}, delayTermination: {karpenter: true}} → delayTermination needs outOfLoadBalancers.enabled
{azure: {leaderOnNodes: true}, outOfLoadBalancers: {enabled: true}} → azure.leaderOnNodes excludes outOfLoadBalancers.enabled
azure: {workloadIdentity: webhook} → workloadIdentity webhook needs azure.clientId
";
    assert_refused(&json!({}), alone);
    assert_refused(&aks(), with_azure);
}

/// A selector of a workload cannot change, so the API server would refuse an upgrade halfway.
#[test]
fn labels_of_the_chart_stay_its_own() {
    let table = "
commonLabels: {app.kubernetes.io/component: edge} → commonLabels: the chart itself sets the label app.kubernetes.io/component
agent: {podLabels: {app.kubernetes.io/name: edge}} → agent.podLabels: the chart itself sets the label app.kubernetes.io/name
controller: {podLabels: {helm.sh/chart: edge}} → controller.podLabels: the chart itself sets the label helm.sh/chart
";
    assert_refused(&json!({}), table);
}

/// In each of these nobody may read the events.
#[test]
fn node_events_are_refused_without_controllers_that_lead() {
    let node_events = json!({"settings": {"evictionNotices": ["NodeEvents"]}});
    let words = "settings.evictionNotices: [NodeEvents] needs the controllers of a profile with Azure";
    assert_refused(&node_events, &format!("{{}} → {words}"));
    assert_refused(&node_events, &format!("maintenance: {{enabled: true}} → {words}"));
    let with_azure = merged(aks(), node_events);
    assert_refused(&with_azure, &format!("azure: {{leaderOnNodes: true}} → {words}"));
}

/// The policies and Azure's federated credential name the accounts, and `headgate status` finds the agents by their labels.
#[test]
fn names_of_workloads_are_the_users_and_those_of_accounts_and_policies_stay() {
    let of_workloads = [
        "ConfigMap",
        "DaemonSet",
        "Deployment",
        "Job",
        "NetworkPolicy",
        "Pod",
        "PodDisruptionBudget",
        "Secret",
    ];
    let of = |more: Value| rendered("kube-system", &merged(profile("everything"), more), &[]);
    let before = of(json!({}));
    for (more, prefix) in [
        (json!({"fullnameOverride": "gate"}), "gate"),
        (json!({"nameOverride": "door"}), "headgate-door"),
        (json!({"nameOverride": "head"}), "headgate"),
        (json!({"nameOverride": "a", "fullnameOverride": "b"}), "b"),
    ] {
        let after = of(more);
        assert_eq!(after.len(), before.len());
        for (before, after) in before.iter().zip(&after) {
            let (before_name, name) = (
                before["metadata"]["name"].as_str().unwrap(),
                after["metadata"]["name"].as_str().unwrap(),
            );
            assert_eq!(before["metadata"]["labels"], after["metadata"]["labels"], "{name}");
            let is_of_workload = of_workloads.contains(&before["kind"].as_str().unwrap());
            let expected = if is_of_workload {
                before_name.replacen("headgate", prefix, 1)
            } else {
                before_name.to_owned()
            };
            assert_eq!(name, expected, "{}", before["kind"]);
        }
        let job = only(&after, "Job")["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
        assert_contains!(job, format!("--workload=deployment/{prefix}-controller"));
        let volumes = only(&after, "Deployment")["spec"]["template"]["spec"]["volumes"].to_string();
        let secret = format!("\"{prefix}-azure\"");
        assert_contains!(volumes, secret, format!("\"{prefix}-settings-"));
    }
}

#[test]
fn maintenances_are_installed_without_azure() {
    let values = json!({"maintenance": {"enabled": true}});
    let objects = rendered("kube-system", &values, &[]);
    let controller = &only(&objects, "Deployment")["spec"]["template"]["spec"];
    assert_eq!(
        controller["containers"][0]["args"],
        json!(["agent", "--config=/etc/headgate/settings.yaml", "--role=controller"])
    );
    let settings = only(&objects, "ConfigMap")["metadata"]["name"].clone();
    assert!(
        settings.as_str().unwrap().starts_with("headgate-settings-"),
        "{settings}"
    );
    assert_eq!(
        controller["volumes"][0],
        json!({"name": "settings", "configMap": {"name": settings}})
    );
    let named = |kind: &str, name: &str| {
        let found = objects
            .iter()
            .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("no {kind} {name}"))
    };
    // It stands for election, and agents write the condition of their own Nodes.
    let binding = named("RoleBinding", "headgate-leader");
    assert_eq!(binding["subjects"][0]["name"], "headgate-controller");
    named("ClusterRole", "headgate-out-of-load-balancers");
    let of_azure = [
        "aks-managed-resource-locker",
        "endpointslices",
        "\"events\"],\"verbs\":[\"list\"",
    ];
    let roles = objects
        .iter()
        .filter(|object| object["kind"].as_str().unwrap().ends_with("Role"));
    let roles = roles.map(Value::to_string).collect::<String>();
    assert_eq!(of_azure.map(|what| roles.contains(what)), [false; 3]);
    named("ValidatingAdmissionPolicy", "headgate-leader");
    named("CustomResourceDefinition", "nodemaintenances.headgate.dev");
}

/// The settings win over the value, so the rights follow them.
#[test]
fn a_maintenance_for_a_machine_brings_its_rights_wherever_the_cause_is_named() {
    let machine = json!(["preempt", {"cause": "machine", "timeout": "5m"}]);
    for (value, settings, expected) in [
        (json!(["preempt"]), json!({}), false),
        (machine.clone(), json!({}), true),
        (json!(["preempt"]), json!({"automatic": machine}), true),
        (machine.clone(), json!({"automatic": ["preempt"]}), false),
        (machine.clone(), json!({"automatic": []}), false),
    ] {
        let values =
            json!({"maintenance": {"enabled": true, "automatic": value}, "settings": {"maintenance": settings}});
        let objects = rendered("kube-system", &values, &[]);
        let settings = only(&objects, "ConfigMap")["data"]["settings.yaml"].to_string();
        assert_eq!(settings.contains("machine"), expected, "{settings}");
        for (kind, name) in [
            ("ClusterRole", "headgate-cluster-api"),
            ("ClusterRoleBinding", "headgate-cluster-api"),
            ("ValidatingAdmissionPolicy", "headgate-machines"),
            ("ValidatingAdmissionPolicyBinding", "headgate-machines"),
        ] {
            let is_this = |object: &Value| object["kind"] == kind && object["metadata"]["name"] == name;
            assert_eq!(objects.iter().any(is_this), expected, "{kind} {name} of {values}");
        }
    }
}

#[test]
fn a_cluster_that_is_too_old_is_refused() {
    for (version, accepted) in [("1.29.9", false), ("1.30.0", true), ("v1.33.2-gke.100", true)] {
        let output = template("kube-system", &json!({}), &["--kube-version", version]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), accepted, "{version}: {errors}");
    }
}

#[test]
fn values_reach_the_objects() {
    let values = json!({
        "image": {"repository": "localhost:5000/headgate", "digest": format!("sha256:{}", "a".repeat(64)), "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "settings": {"metricsBindAddress": "[::]:9999", "adminState": {"mode": "Observe"}},
        "agent": {"maxSurge": "10%", "extraEnv": [{"name": "A", "value": "b"}], "podLabels": {"l": "1"}, "podAnnotations": {"a": "1"},
            "nodeSelector": {"pool": "x"}, "resources": {"limits": {"memory": "1Gi"}}},
        "controller": {"replicas": 3, "extraTolerations": [{"key": "system"}]},
        "profile": "aks", "azure": {"existingSecret": "headgate-azure"}, "outOfLoadBalancers": {"enabled": false},
        "evictionNotices": {"enabled": false}, "connections": {"enabled": false}, "signals": {"kubeletShutdown": false, "cordon": false},
        "podMonitor": {"enabled": true, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": true, "runbookBase": "https://git.example.com/headgate/"},
        "networkPolicy": {"ingressFrom": [{"podSelector": {}}]},
    });
    let objects = rendered("kube-system", &values, &["--no-hooks"]);
    let daemonset = only(&objects, "DaemonSet");
    assert_eq!(daemonset["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"], "10%");
    let (template, deployment) = (&daemonset["spec"]["template"], only(&objects, "Deployment"));
    assert_eq!(
        (
            &template["metadata"]["labels"]["l"],
            &template["metadata"]["annotations"]["a"]
        ),
        (&json!("1"), &json!("1"))
    );
    for pod in [&template["spec"], &deployment["spec"]["template"]["spec"]] {
        let container = &pod["containers"][0];
        let image = format!("localhost:5000/headgate@sha256:{}", "a".repeat(64));
        assert_eq!(
            (&container["image"], &container["imagePullPolicy"]),
            (&json!(image), &json!("Always"))
        );
        assert_eq!(pod["imagePullSecrets"], json!([{"name": "registry"}]));
    }
    let pod = &template["spec"];
    assert_eq!(pod["nodeSelector"], json!({"kubernetes.io/os": "linux", "pool": "x"}));
    let container = &pod["containers"][0];
    assert_eq!(container["env"][4], json!({"name": "A", "value": "b"}));
    assert_eq!(
        container["resources"]["limits"],
        json!({"memory": "1Gi", "ephemeral-storage": "512Mi"})
    );
    assert_eq!(deployment["spec"]["replicas"], 3);
    let controller = &deployment["spec"]["template"]["spec"];
    assert_eq!(
        controller["tolerations"].as_array().unwrap().last().unwrap(),
        &json!({"key": "system"})
    );
    assert_eq!(controller["containers"][0]["ports"][0]["containerPort"], 9999);
    let monitor = only(&objects, "PodMonitor");
    assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
    assert!(monitor.to_string().contains(":9999") && !monitor.to_string().contains("10457"));
    let rules = objects.iter().filter(|object| object["kind"] == "PrometheusRule");
    let rules: Vec<String> = rules.map(ToString::to_string).collect();
    assert_eq!(rules.len(), 2);
    assert!(
        rules[0].contains("\"https://git.example.com/headgate/docs/reference/runbooks.md#headgate"),
        "{rules:?}"
    );
    assert!(!rules.concat().contains("\"docs/"), "every link is absolute: {rules:?}");
    let policy = only(&objects, "NetworkPolicy");
    assert_eq!(policy["spec"]["ingress"][0]["from"], json!([{"podSelector": {}}]));
    assert!(policy.to_string().contains("9999") && !policy.to_string().contains("10457"));
    let settings = only(&objects, "ConfigMap")["data"]["settings.yaml"].as_str().unwrap();
    let settings: Value = serde_yaml::from_str(settings).unwrap();
    assert_eq!(
        settings,
        json!({"apiVersion": "config.headgate.dev/v1alpha1", "kind": "HeadgateConfiguration",
            "metricsBindAddress": "[::]:9999", "adminState": {"mode": "Observe"}})
    );
}

#[test]
fn ports_are_those_that_the_program_listens_on() {
    for (address, metrics, health) in [
        ("0.0.0.0", 10457, 10456),
        ("127.0.0.1", 10457, 10456),
        ("[::]", 10457, 10456),
        ("::1", 10457, 10456),
        ("0.0.0.0:10300", 10300, 10300),
        ("[::1]:10300", 10300, 10300),
    ] {
        let values = merged(aks(), json!({"settings": {"metricsBindAddress": address}}));
        let objects = rendered("kube-system", &values, &["--no-hooks"]);
        let controller = &only(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(controller["ports"][0]["containerPort"], metrics, "{address}");
        let mut install = helm(&["install", "headgate", "--dry-run=client"]);
        let values = values_file(&json!({"settings": {"healthzBindAddress": address}}));
        let notes = stdout_of(install.arg(chart()).arg("--values").arg(values));
        assert_contains!(notes, format!("at port {health}, path /healthz"));
    }
}

/// A pod keeps the name of its settings, so one of before a change never reads those of after it.
#[test]
fn changed_settings_and_credentials_roll_the_pods_that_read_them() {
    let with = |probes: u32, tenant: &str| {
        let values = json!({"profile": "aks", "delayTermination": {"karpenter": false},
            "azure": {"tenantId": tenant, "subscriptionId": "s", "resourceGroup": "r", "clientId": "c"}, "settings": {"outOfLoadBalancers": {"failedProbes": probes}}});
        let objects = rendered("kube-system", &values, &["--no-hooks"]);
        let name = only(&objects, "ConfigMap")["metadata"]["name"]
            .as_str()
            .unwrap()
            .to_owned();
        let of = |kind| {
            let template = only(&objects, kind)["spec"]["template"].clone();
            assert!(template["spec"]["volumes"].to_string().contains(&name), "{template}");
            template
        };
        (of("DaemonSet"), of("Deployment"))
    };
    let (agent, controller) = with(3, "a");
    assert_eq!(with(3, "a"), (agent.clone(), controller.clone()));
    let other = with(4, "a");
    assert!(other.0 != agent && other.1 != controller);
    let other = with(3, "b");
    assert!(
        other.0 == agent && other.1 != controller,
        "only the controllers have the Secret"
    );
}

#[test]
fn a_packaged_chart_becomes_an_oci_artefact() {
    let directory = headgate_test_kubernetes::scratch("package");
    let mut package = helm(&["package", "--destination"]);
    stdout_of(package.arg(&directory).arg(chart()));
    let archive = directory.join(format!("headgate-{}.tgz", env!("CARGO_PKG_VERSION")));
    let layout = directory.join("oci");
    let mut write = std::process::Command::new(tools().join("chart-oci-layout"));
    let reference = stdout_of(write.arg(&archive).arg(&layout));
    let read = |name: &str| std::fs::read(layout.join(name)).unwrap();
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        let bytes = read(&format!("blobs/sha256/{digest}"));
        assert_eq!(
            u64::try_from(bytes.len()).unwrap(),
            descriptor["size"].as_u64().unwrap()
        );
        bytes
    };
    let marker: Value = serde_json::from_slice(&read("oci-layout")).unwrap();
    assert_eq!(marker["imageLayoutVersion"], "1.0.0");
    let index: Value = serde_json::from_slice(&read("index.json")).unwrap();
    let [manifest] = index["manifests"].as_array().unwrap().as_slice() else {
        panic!("{index}")
    };
    assert!(
        reference.trim().ends_with(manifest["digest"].as_str().unwrap()),
        "{reference}"
    );
    let manifest: Value = serde_json::from_slice(&blob(manifest)).unwrap();
    assert_eq!(
        manifest["config"]["mediaType"],
        "application/vnd.cncf.helm.config.v1+json"
    );
    let config: Value = serde_json::from_slice(&blob(&manifest["config"])).unwrap();
    assert_eq!(
        (&config["name"], &config["version"]),
        (&json!("headgate"), &json!(env!("CARGO_PKG_VERSION")))
    );
    let [layer] = manifest["layers"].as_array().unwrap().as_slice() else {
        panic!("{manifest}")
    };
    assert_eq!(
        layer["mediaType"],
        "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
    );
    assert_eq!(blob(layer), std::fs::read(&archive).unwrap());
    // What a registry would serve installs the same objects.
    let copy = directory.join("copy.tgz");
    std::fs::write(&copy, blob(layer)).unwrap();
    let of = |path: &std::path::Path| stdout_of(helm(&["template", "headgate"]).arg(path));
    assert_eq!(of(&copy), of(&chart()));
}
