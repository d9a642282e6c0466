//! Broken worlds: the one fault of each is named, and nothing in a whole one.

use std::sync::Arc;
use std::time::Duration;

use headgate_azure::{DenyAssignment, Permission, TokenClaims};
use headgate_controller::admin_state::AdminStateMode;
use headgate_controller::pool::LoadBalancerView;
use headgate_test_kubernetes::assert_contains;
use serde_json::{Value, json};

use super::azure::{Configuration, LoadBalancers, Permissions, Seen};
use super::finding::State;
use super::rights::{Account, needed};
use super::*;
use crate::agent::Role;
use crate::config::{ConditionSource, NoticeSource, ServiceHealth};
use crate::report::{Detail, Report as _};

mod worlds;

const GROUP: &str = "/subscriptions/s/resourceGroups/nodes";
const UID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";
const RULE: &str = "a0f8fad5bd9cb469fa16570867728950-TCP-443";

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A load balancer with one rule, whose probe is `probe`; a pool has these entries.
fn load_balancer(probe: &Value, entries: &Value) -> Arc<LoadBalancerView> {
    let id = format!("{GROUP}/providers/Microsoft.Network/loadBalancers/kubernetes");
    let mut rule = json!({"name": RULE, "properties": {"backendAddressPool": {"id": format!("{id}/backendAddressPools/kubernetes")}}});
    if !probe.is_null() {
        rule["properties"]["probe"] = json!({"id": format!("{id}/probes/p")});
    }
    let document = json!({"id": id, "properties": {
        "loadBalancingRules": [rule], "probes": [{"name": "p", "properties": probe}],
        "backendAddressPools": [{"name": "kubernetes", "properties": {"loadBalancerBackendAddresses": entries}}]}});
    Arc::new(LoadBalancerView::new(&document).unwrap())
}

fn healthz() -> Value {
    json!({"protocol": "Http", "port": 10456, "requestPath": "/healthz"})
}

fn addresses() -> Value {
    json!([{"name": "n1", "properties": {"ipAddress": "10.0.0.4"}}])
}

fn service(name: &str, uid: &str, spec: &Value) -> ServiceObject {
    let mut object = json!({"metadata": {"namespace": "default", "name": name, "uid": uid}, "spec": spec});
    object["spec"]["type"] = json!("LoadBalancer");
    from(object)
}

fn daemon_set(namespace: &str, name: &str, template: &Value) -> Workload {
    let status = json!({"currentNumberScheduled": 2, "desiredNumberScheduled": 2, "numberMisscheduled": 0, "numberReady": 2,
        "updatedNumberScheduled": 2});
    let object = json!({"metadata": {"namespace": namespace, "name": name}, "spec": {"selector": {}, "template": template}, "status": status});
    Workload::from(from::<k8s_openapi::api::apps::v1::DaemonSet>(object))
}

fn deployment(namespace: &str, name: &str, template: &Value) -> Workload {
    let object = json!({"metadata": {"namespace": namespace, "name": name}, "spec": {"selector": {}, "replicas": 2, "template": template},
        "status": {"readyReplicas": 2, "updatedReplicas": 2}});
    Workload::from(from::<k8s_openapi::api::apps::v1::Deployment>(object))
}

/// The pods of a component of headgate.
fn ours(component: &str, arguments: &[&str]) -> Value {
    json!({"metadata": {"labels": {"app.kubernetes.io/name": "headgate", "app.kubernetes.io/component": component},
            "annotations": {"cluster-autoscaler.kubernetes.io/enable-ds-eviction": "false"}},
        "spec": {"serviceAccountName": format!("headgate-{component}"), "hostNetwork": true,
            "containers": [{"name": "headgate", "image": "registry.test/headgate:1.0.0", "args": arguments}]}})
}

fn program(image: &str, command: &[&str]) -> Value {
    json!({"spec": {"containers": [{"name": "c", "image": image, "command": command}]}})
}

/// A cluster with Azure in which all is well.
fn whole() -> World {
    let mut settings = Settings::default();
    settings.out_of_load_balancers.source = ConditionSource::AdminState;
    settings.cluster_autoscaler_delay = Some(Duration::from_mins(2));
    let everything = || {
        vec![Permission {
            actions: vec!["*".to_owned()],
            not_actions: Vec::new(),
        }]
    };
    let account = |role| AccountRights {
        account: account(role),
        missing: Ok(Vec::new()),
    };
    World {
        settings,
        server: Ok(Server {
            version: "v1.36.3".to_owned(),
            major: 1,
            minor: 36,
        }),
        served: Ok(cluster::KINDS.iter().map(cluster::Kind::full_name).collect()),
        accounts: Ok(vec![account(Role::Agent), account(Role::Controller)]),
        nodes: Ok(vec![from(
            json!({"metadata": {"name": "n1", "annotations": {"delay-deletion.cluster-autoscaler.kubernetes.io/headgate": ""}}}),
        )]),
        services: Ok(vec![
            service(
                "web",
                UID,
                &json!({"externalTrafficPolicy": "Cluster", "ports": [{"port": 443}]}),
            ),
            service(
                "shop",
                "1",
                &json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32000, "ports": [{"port": 443}]}),
            ),
        ]),
        workloads: Ok(whole_workloads()),
        azure: Some(Ok(AzureWorld {
            configuration: Configuration {
                group: GROUP.to_owned(),
                network: Some(format!("{GROUP}/providers/Microsoft.Network/virtualNetworks/v")),
                cluster_name: "kubernetes".to_owned(),
                pool_type: headgate_azure::BackendPoolType::NodeIp,
            },
            seen: Ok(Seen {
                token: TokenClaims {
                    object_id: "me".to_owned(),
                    client_id: "app".to_owned(),
                },
                permissions: Ok(Permissions {
                    group: everything(),
                    network: everything(),
                }),
                deny_assignments: Ok(Vec::new()),
                load_balancers: Ok(LoadBalancers {
                    found: vec![load_balancer(&healthz(), &addresses())],
                    others: Vec::new(),
                }),
            }),
        })),
    }
}

fn whole_workloads() -> Vec<Workload> {
    vec![
        daemon_set("kube-system", "headgate", &ours("agent", &["agent", "--role=agent"])),
        deployment(
            "kube-system",
            "headgate-controller",
            &ours("controller", &["agent", "--role=controller", "--azure-config-file=/a"]),
        ),
        daemon_set("kube-system", "headgate-hold", &ours("hold", &["hold"])),
        daemon_set(
            "kube-system",
            "kube-proxy",
            &program("registry.test/kube-proxy:v1.36.3", &["/usr/local/bin/kube-proxy"]),
        ),
        deployment(
            "kube-system",
            "cluster-autoscaler",
            &program(
                "registry.test/cluster-autoscaler:v1.36.1",
                &["./cluster-autoscaler", "--v=4"],
            ),
        ),
        deployment(
            "karpenter",
            "karpenter",
            &program("public.test/karpenter/controller:1.9.1@sha256:0", &[]),
        ),
        deployment(
            "default",
            "web",
            &json!({"spec": {"containers": [{"name": "c", "image": "web", "ports": [{"name": "http", "containerPort": 10456}],
                "livenessProbe": {"httpGet": {"path": "/healthz", "port": "http"}}}]}}),
        ),
    ]
}

fn account(role: Role) -> Account {
    Account {
        namespace: "kube-system".to_owned(),
        name: format!("headgate-{}", role.as_str()),
        role: Some(role),
        has_azure: role == Role::Controller,
    }
}

/// A cluster without Azure in which all is well.
fn whole_without_azure() -> World {
    let mut world = whole();
    world.azure = None;
    for workload in world.workloads.as_mut().unwrap() {
        for container in &mut workload.containers {
            container.command.retain(|word| !word.starts_with("--azure-config-"));
        }
    }
    world.settings.out_of_load_balancers.source = ConditionSource::FailedProbes;
    let annotated = json!({"namespace": "default", "name": "web", "uid": UID, "annotations": {
        "service.beta.kubernetes.io/port_443_health-probe_protocol": "http",
        "service.beta.kubernetes.io/port_443_health-probe_port": "10456",
        "service.beta.kubernetes.io/port_443_health-probe_request-path": "/healthz"}});
    let spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Cluster", "ports": [{"port": 443}]});
    world.services = Ok(vec![from(json!({"metadata": annotated, "spec": spec}))]);
    world
}

fn wrong(world: &World) -> Vec<Finding> {
    let mut found = find(world);
    found.retain(|finding| finding.state != State::Ok);
    found
}

#[test]
fn nothing_is_found_in_a_whole_world() {
    for world in [whole(), whole_without_azure()] {
        assert_eq!(wrong(&world), []);
        let report = CheckReport::new(&world, jiff::Timestamp::UNIX_EPOCH);
        assert_eq!((report.failures, report.warnings), (0, 0));
        // Each check that concerns the world says that all is well.
        println!("{}", report.text(Detail::Narrow));
    }
    let mut before = whole();
    before
        .workloads
        .as_mut()
        .unwrap()
        .retain(|workload| !workload.is_headgate() && workload.name != "karpenter");
    before.accounts = Ok(Vec::new());
    assert_eq!(wrong(&before), [], "before the installation");
}

#[test]
fn every_finding_says_what_to_do() {
    let mut world = whole();
    worlds::show(&mut world, &Value::Null, &addresses());
    let report = CheckReport::new(&world, jiff::Timestamp::UNIX_EPOCH);
    let text = report.text(Detail::Narrow);
    assert_contains!(text, "✗   rules", "service/default/web", "→ give the rule a probe");
    assert!(text.ends_with("1 failure, 0 warnings.\n"), "{text}");
    assert_eq!(report.names(), ["service/default/web"]);
    let json = serde_json::to_value(&report).unwrap();
    let failed = json["findings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|finding| finding["state"] == "failure")
        .unwrap();
    assert_eq!(
        (&failed["id"], &failed["object"]),
        (&json!("rules"), &json!("service/default/web"))
    );
    assert!(failed["do"].is_string() && failed["what"].is_string());
}

#[test]
fn long_lists_are_cut_in_the_narrow_text() {
    let mut world = whole_without_azure();
    let services = (0..30).map(|number| service(&format!("s{number:02}"), "1", &json!({"ports": [{"port": 1}]})));
    world.services = Ok(services.collect());
    let report = CheckReport::new(&world, jiff::Timestamp::UNIX_EPOCH);
    let text = report.text(Detail::Narrow);
    assert!(
        text.contains("service/default/s09") && !text.contains("service/default/s10"),
        "{text}"
    );
    assert_contains!(text, "20 more of probes are not shown; -o wide has all.");
    assert!(report.text(Detail::Wide).contains("service/default/s29"));
}

#[test]
fn rights_follow_from_settings_and_role() {
    let has = |settings: &Settings, role, right: &str| {
        needed(settings, &account(role))
            .iter()
            .any(|known| known.to_string() == right)
    };
    let mut settings = Settings::default();
    for (role, right, expected) in [
        (Role::Agent, "watch nodes", true),
        (Role::Agent, "patch nodes", false),
        (Role::Agent, "create events.events.k8s.io in default", true),
        (
            Role::Agent,
            "update leases.coordination.k8s.io headgate-leader in kube-system",
            false,
        ),
        (
            Role::Controller,
            "update leases.coordination.k8s.io headgate-leader in kube-system",
            true,
        ),
        (Role::Controller, "create events.events.k8s.io", true),
        (Role::Controller, "delete pods", false),
    ] {
        assert_eq!(has(&settings, role, right), expected, "{role:?} {right}");
    }
    settings.azure.eviction_notices = [NoticeSource::NodeEvents].into();
    for (role, expected) in [(Role::Agent, false), (Role::All, true), (Role::Controller, true)] {
        assert_eq!(has(&settings, role, "list events in default"), expected, "{role:?}");
    }
    settings.azure.eviction_notices = [NoticeSource::ScheduledEvents].into();
    settings.maintenance.enabled = true;
    settings.service_health = ServiceHealth::Path;
    assert!(has(&settings, Role::Agent, "patch nodes"));
    assert!(has(&settings, Role::Agent, "list endpointslices.discovery.k8s.io"));
    assert!(has(&settings, Role::Controller, "create pods/eviction"));
    assert!(!has(
        &settings,
        Role::Controller,
        "automate nodemaintenances.headgate.dev"
    ));
    settings.maintenance.automatic.causes = [(headgate_maintenance::automatic::Cause::Machine, None)].into();
    assert!(has(
        &settings,
        Role::Controller,
        "automate nodemaintenances.headgate.dev"
    ));
    assert!(has(&settings, Role::Controller, "patch machines.cluster.x-k8s.io"));
    // For maintenances alone, a controller leads without Azure; another process does not.
    for (role, expected) in [(Role::Agent, false), (Role::All, false), (Role::Controller, true)] {
        let without_azure = Account {
            has_azure: false,
            ..account(role)
        };
        let needed = needed(&settings, &without_azure);
        for right in [
            "get leases.coordination.k8s.io headgate-leader in kube-system",
            "update leases.coordination.k8s.io headgate-leader in kube-system",
            "create leases.coordination.k8s.io in kube-system",
            "watch services",
        ] {
            // Agents list them for `serviceHealthChecks`.
            let expected = expected || right.starts_with("watch") && role.answers_probes();
            let is_needed = needed.iter().any(|known| known.to_string() == right);
            assert_eq!(is_needed, expected, "{role:?} {right}");
        }
        let slices = needed.iter().any(|known| known.resource == "endpointslices");
        assert_eq!(slices, role.answers_probes(), "{role:?}: those of agents alone");
        let of_azure = needed.iter().find(|known| known.resource == "configmaps");
        assert_eq!(of_azure, None, "{role:?} without load balancers");
    }
    settings.admin_state.mode = AdminStateMode::Disabled;
    settings.azure.config_secret = Some("kube-system/azure".parse().unwrap());
    assert!(has(&settings, Role::All, "get secrets azure in kube-system"));
    let hold = Account {
        role: None,
        ..account(Role::Agent)
    };
    let rights = needed(&settings, &hold);
    let rights: Vec<_> = rights.iter().map(ToString::to_string).collect();
    assert_eq!(
        rights,
        ["list nodes", "watch nodes", "create events.events.k8s.io in default"]
    );
}

#[test]
fn accounts_are_the_own_one_in_a_pod_and_those_of_workloads_elsewhere() {
    let world = whole();
    let workloads = world.workloads.unwrap();
    let names = |user: &str, workloads: &[Workload]| {
        let found = rights::accounts(user, workloads, &Settings::default());
        found
            .into_iter()
            .map(|account| (account.name, account.role))
            .collect::<Vec<_>>()
    };
    let all = [
        ("headgate-agent".to_owned(), Some(Role::Agent)),
        ("headgate-controller".to_owned(), Some(Role::Controller)),
        ("headgate-hold".to_owned(), None),
    ];
    assert_eq!(names("admin", &workloads), all);
    assert_eq!(names("system:serviceaccount:default:test", &workloads), all);
    assert_eq!(
        names("system:serviceaccount:kube-system:headgate-controller", &workloads),
        all[1..2]
    );
    assert_eq!(
        names("system:serviceaccount:x:headgate", &[]),
        [("headgate".to_owned(), Some(Role::Agent))]
    );
    assert_eq!(names("admin", &[]), []);
}
