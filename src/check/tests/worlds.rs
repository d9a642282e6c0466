//! The table of broken worlds.

use headgate_core::node::KnownSignal;
use std::collections::BTreeMap;

use super::*;

/// A world that differs from a whole one in one fault.
struct Broken {
    break_it: fn(&mut World),
    id: &'static str,
    state: State,
    /// Empty for none.
    object: &'static str,
    /// A part of what is found.
    what: &'static str,
}

fn azure(world: &mut World) -> &mut AzureWorld {
    world.azure.as_mut().unwrap()
}

fn show(world: &mut World, probe: &Value, entries: &Value) {
    azure(world).load_balancers = Some(Ok(LoadBalancers {
        found: vec![load_balancer(probe, entries)],
        others: Vec::new(),
    }));
}

fn lacks(world: &mut World, role: Role, right: &str) {
    let settings = &world.settings;
    let accounts = world.accounts.as_mut().unwrap();
    let found = accounts
        .iter_mut()
        .find(|rights| rights.account.role == Some(role))
        .unwrap();
    let mut needed = needed(settings, &found.account);
    needed.retain(|known| known.to_string() == right);
    assert_eq!(needed.len(), 1, "{right}");
    found.missing = Ok(needed);
}

fn workload<'a>(world: &'a mut World, name: &str) -> &'a mut Workload {
    let workloads = world.workloads.as_mut().unwrap();
    workloads.iter_mut().find(|workload| workload.name == name).unwrap()
}

fn all_but(action: &str) -> Vec<Permission> {
    vec![Permission {
        actions: vec!["*".to_owned()],
        not_actions: vec![action.to_owned()],
    }]
}

/// With Azure.
const BROKEN: &[Broken] = &[
    Broken {
        break_it: |world| {
            world.server = Ok(Server {
                version: "v1.29.14".to_owned(),
                major: 1,
                minor: 29,
            });
        },
        id: "api-server",
        state: State::Failure,
        object: "",
        what: "v1.29.14 is older than 1.30",
    },
    Broken {
        break_it: |world| {
            world.settings.maintenance.enabled = true;
            world
                .served
                .as_mut()
                .unwrap()
                .remove("headgate.dev/v1alpha1/evacuations");
        },
        id: "api-kinds",
        state: State::Failure,
        object: "headgate.dev/v1alpha1/evacuations",
        what: "does not serve evacuations",
    },
    Broken {
        break_it: |world| {
            world
                .served
                .as_mut()
                .unwrap()
                .remove("admissionregistration.k8s.io/v1/validatingadmissionpolicies");
        },
        id: "api-kinds",
        state: State::Failure,
        object: "admissionregistration.k8s.io/v1/validatingadmissionpolicies",
        what: "does not serve",
    },
    Broken {
        break_it: |world| world.nodes = Err("nodes is forbidden".to_owned()),
        id: "nodes",
        state: State::Failure,
        object: "",
        what: "nodes is forbidden",
    },
    Broken {
        break_it: |world| lacks(world, Role::Agent, "patch nodes"),
        id: "rights",
        state: State::Failure,
        object: "serviceaccount/kube-system/headgate-agent",
        what: "may not patch nodes, which delayTermination.clusterAutoscaler needs",
    },
    Broken {
        break_it: |world| {
            lacks(
                world,
                Role::Controller,
                "update leases.coordination.k8s.io headgate-leader in kube-system",
            );
        },
        id: "rights",
        state: State::Failure,
        object: "serviceaccount/kube-system/headgate-controller",
        what: "headgate-leader",
    },
    Broken {
        break_it: |world| {
            let account = Account {
                name: "headgate-hold".to_owned(),
                role: None,
                ..account(Role::Agent)
            };
            let missing = Ok(needed(&world.settings, &account).into_iter().take(1).collect());
            let accounts = world.accounts.as_mut().unwrap();
            accounts.push(AccountRights { account, missing });
        },
        id: "rights",
        state: State::Failure,
        object: "serviceaccount/kube-system/headgate-hold",
        what: "may not list nodes, which delayTermination.karpenter needs",
    },
    Broken {
        break_it: |world| world.accounts = Err("subjectaccessreviews is forbidden".to_owned()),
        id: "rights",
        state: State::Warning,
        object: "",
        what: "subjectaccessreviews is forbidden",
    },
    Broken {
        break_it: |world| workload(world, "headgate").pods.ready = 1,
        id: "installation",
        state: State::Failure,
        object: "daemonset/kube-system/headgate",
        what: "of 2 pods 1 are ready",
    },
    Broken {
        break_it: |world| workload(world, "headgate").annotations.clear(),
        id: "installation",
        state: State::Warning,
        object: "daemonset/kube-system/headgate",
        what: "may evict the agent",
    },
    Broken {
        break_it: |world| workload(world, "headgate").containers[0].image = "registry.test/headgate:0.9.0".to_owned(),
        id: "versions",
        state: State::Warning,
        object: "",
        what: "daemonset/kube-system/headgate has registry.test/headgate:0.9.0",
    },
    Broken {
        break_it: |world| world.workloads = Err("daemonsets is forbidden".to_owned()),
        id: "installation",
        state: State::Warning,
        object: "",
        what: "daemonsets is forbidden",
    },
    Broken {
        break_it: |world| {
            *azure(world) = AzureWorld {
                configuration: Err("/a: tenantId is missing".to_owned()),
                token: None,
                permissions: None,
                deny_assignments: None,
                load_balancers: None,
            };
        },
        id: "azure-config",
        state: State::Failure,
        object: "",
        what: "tenantId is missing",
    },
    Broken {
        break_it: |world| {
            let azure = azure(world);
            azure.token = Some(Err("no token: invalid_client (401): AADSTS7000215".to_owned()));
            (azure.permissions, azure.deny_assignments, azure.load_balancers) = (None, None, None);
        },
        id: "azure-token",
        state: State::Failure,
        object: "",
        what: "AADSTS7000215",
    },
    Broken {
        break_it: |world| {
            azure(world).permissions.as_mut().unwrap().as_mut().unwrap().group =
                all_but("Microsoft.Network/loadBalancers/backendAddressPools/write");
        },
        id: "azure-role",
        state: State::Failure,
        object: GROUP,
        what: "may not Microsoft.Network/loadBalancers/backendAddressPools/write",
    },
    Broken {
        break_it: |world| {
            azure(world).permissions.as_mut().unwrap().as_mut().unwrap().network = all_but("*/joinLoadBalancer/action");
        },
        id: "azure-role",
        state: State::Failure,
        object: "/subscriptions/s/resourceGroups/nodes/providers/Microsoft.Network/virtualNetworks/v",
        what: "joinLoadBalancer/action",
    },
    Broken {
        break_it: |world| azure(world).configuration.as_mut().unwrap().network = None,
        id: "azure-role",
        state: State::Warning,
        object: "",
        what: "the virtual network of the nodes is not known",
    },
    Broken {
        break_it: |world| azure(world).permissions = Some(Err("ARM answered 403: AuthorizationFailed".to_owned())),
        id: "azure-role",
        state: State::Warning,
        object: "",
        what: "AuthorizationFailed",
    },
    Broken {
        break_it: |world| azure(world).deny_assignments = Some(Ok(vec![locked()])),
        id: "deny-assignments",
        state: State::Failure,
        object: GROUP,
        what: "\"locked\" refuses writes of pools",
    },
    Broken {
        break_it: |world| {
            let (found, others) = (Vec::new(), vec!["mycluster".to_owned()]);
            azure(world).load_balancers = Some(Ok(LoadBalancers { found, others }));
        },
        id: "load-balancers",
        state: State::Failure,
        object: "",
        what: "no load balancer is named kubernetes or kubernetes-internal; /subscriptions/s/resourceGroups/nodes has: mycluster",
    },
    Broken {
        break_it: |world| azure(world).load_balancers = Some(Err("ARM answered 404: ResourceGroupNotFound".to_owned())),
        id: "load-balancers",
        state: State::Failure,
        object: "",
        what: "ResourceGroupNotFound",
    },
    Broken {
        break_it: |world| {
            let interface = "/subscriptions/s/resourceGroups/nodes/providers/Microsoft.Network/networkInterfaces/n/ipConfigurations/c";
            show(
                world,
                &healthz(),
                &json!([{"name": "x", "properties": {"networkInterfaceIPConfiguration": {"id": interface}}}]),
            );
        },
        id: "pools",
        state: State::Warning,
        object: "pool/kubernetes/kubernetes",
        what: "1 of 1 entries are network interfaces",
    },
    Broken {
        break_it: |world| show(world, &Value::Null, &addresses()),
        id: "rules",
        state: State::Failure,
        object: "service/default/web",
        what: "has no health probe",
    },
    Broken {
        break_it: |world| show(world, &json!({"protocol": "Tcp", "port": 30080}), &addresses()),
        id: "probes",
        state: State::Warning,
        object: "service/default/web",
        what: "its probe Tcp :30080 does not reach headgate: only admin states take nodes out (rules a0f8fad5bd9cb469fa16570867728950-TCP-443)",
    },
    Broken {
        break_it: |world| {
            show(
                world,
                &json!({"protocol": "Http", "port": 10456, "requestPath": "/"}),
                &addresses(),
            );
        },
        id: "probes",
        state: State::Failure,
        object: "service/default/web",
        what: "gets 404",
    },
    // It was a Local Service before.
    Broken {
        break_it: |world| {
            world.settings.service_health = ServiceHealth::Path;
            let path = "/healthz/services/default/web";
            show(
                world,
                &json!({"protocol": "Http", "port": 10456, "requestPath": path}),
                &addresses(),
            );
        },
        id: "probes",
        state: State::Failure,
        object: "service/default/web",
        what: "gets 404",
    },
    Broken {
        break_it: |world| show(world, &json!({"protocol": "Tcp", "port": 10456}), &addresses()),
        id: "probes",
        state: State::Failure,
        object: "service/default/web",
        what: "no signal fails it",
    },
    Broken {
        break_it: |world| world.services = Err("services is forbidden".to_owned()),
        id: "probes",
        state: State::Warning,
        object: "",
        what: "services is forbidden",
    },
    Broken {
        break_it: |world| world.settings.service_health = ServiceHealth::NodePorts,
        id: "local-services",
        state: State::Failure,
        object: "service/default/shop",
        what: "kube-proxy owns its health check node port 32000",
    },
    Broken {
        break_it: |world| {
            deletes_after(world, "1m", &[]);
            world.settings.admin_state.mode = AdminStateMode::Observe;
        },
        id: "local-services",
        state: State::Failure,
        object: "service/default/shop",
        what: "keeps sending to a node with signals",
    },
    Broken {
        break_it: |world| {
            let web = workload(world, "web");
            web.is_on_host_network = true;
        },
        id: "liveness-probes",
        state: State::Failure,
        object: "deployment/default/web",
        what: "its livenessProbe asks headgate's :10456/healthz",
    },
    Broken {
        break_it: |world| {
            let get = json!({"host": "127.0.0.1", "path": "/healthz?verbose", "port": 10456});
            let sidecar = json!({"name": "s", "restartPolicy": "Always", "livenessProbe": {"httpGet": get}});
            let once = json!({"name": "once", "livenessProbe": {"httpGet": get}});
            let template = json!({"spec": {"containers": [{"name": "c"}], "initContainers": [once, sidecar]}});
            world
                .workloads
                .as_mut()
                .unwrap()
                .push(daemon_set("default", "proxy", &template));
        },
        id: "liveness-probes",
        state: State::Failure,
        object: "daemonset/default/proxy",
        what: "its livenessProbe asks headgate's :10456/healthz",
    },
    Broken {
        break_it: |world| world.settings.cluster_autoscaler_delay = None,
        id: "autoscalers",
        state: State::Warning,
        object: "deployment/kube-system/cluster-autoscaler",
        what: "deletes a node 5s after its taint",
    },
    // Nothing but its time would end the delay.
    Broken {
        break_it: |world| world.settings.signals.disabled = [KnownSignal::ClusterAutoscaler].into(),
        id: "autoscalers",
        state: State::Warning,
        object: "deployment/kube-system/cluster-autoscaler",
        what: "deletes a node 5s after its taint",
    },
    // One second for open connections.
    Broken {
        break_it: |world| deletes_after(world, "6s", &["azure:///subscriptions/s", "aws:///eu-west-1a/i-0"]),
        id: "autoscalers",
        state: State::Warning,
        object: "deployment/kube-system/cluster-autoscaler",
        what: "deletes a node 6s after its taint, not 15s or more: the load balancer takes up to 5s to notice a 503",
    },
    Broken {
        break_it: |world| deletes_after(world, "29s", &["", "aws:///eu-west-1a/i-0"]),
        id: "autoscalers",
        state: State::Warning,
        object: "deployment/kube-system/cluster-autoscaler",
        what: "deletes a node 29s after its taint, not 30s or more: the load balancer takes up to 20s to notice a 503",
    },
    Broken {
        break_it: |world| deletes_after(world, "33s", &["gce://project/zone/name"]),
        id: "autoscalers",
        state: State::Warning,
        object: "deployment/kube-system/cluster-autoscaler",
        what: "deletes a node 33s after its taint, not 34s or more: the load balancer takes up to 24s to notice a 503",
    },
    Broken {
        break_it: |world| {
            workload(world, "cluster-autoscaler").containers[0]
                .command
                .push("--max-bulk-soft-taint-count=0".to_owned());
        },
        id: "autoscalers",
        state: State::Failure,
        object: "deployment/kube-system/cluster-autoscaler",
        what: "sets no soft taints",
    },
    Broken {
        break_it: |world| {
            let command = &mut workload(world, "cluster-autoscaler").containers[0].command;
            command.extend(["--node-deletion-delay-timeout", "1m0s"].map(str::to_owned));
        },
        id: "autoscalers",
        state: State::Warning,
        object: "deployment/kube-system/cluster-autoscaler",
        what: "ends every delay after 1m (--node-deletion-delay-timeout), before delayTermination.clusterAutoscaler of 2m",
    },
    Broken {
        break_it: |world| {
            world
                .workloads
                .as_mut()
                .unwrap()
                .retain(|workload| workload.name != "headgate-hold");
        },
        id: "autoscalers",
        state: State::Warning,
        object: "deployment/karpenter/karpenter",
        what: "terminates an empty node at once",
    },
    Broken {
        break_it: |world| {
            let annotations = json!({"delay-deletion.cluster-autoscaler.kubernetes.io/other": "x"});
            world.nodes = Ok(vec![from(
                json!({"metadata": {"name": "n1", "annotations": annotations}}),
            )]);
        },
        id: "annotations",
        state: State::Warning,
        object: "node/n1",
        what: "delay-deletion.cluster-autoscaler.kubernetes.io/other delays Cluster Autoscaler on n1",
    },
];

/// Without Azure.
const BROKEN_WITHOUT_AZURE: &[Broken] = &[
    Broken {
        break_it: |world| {
            let container = &mut workload(world, "headgate-controller").containers[0];
            container.command.push("--azure-config-file=/a".to_owned());
        },
        id: "azure-config",
        state: State::Warning,
        object: "",
        what: "this command was given none: role, pools and probes of load balancers were not checked",
    },
    Broken {
        break_it: |world| world.services.as_mut().unwrap()[0].metadata.annotations = None,
        id: "probes",
        state: State::Warning,
        object: "service/default/web",
        what: "no annotation points its probe at :10456/healthz",
    },
    // Both probe TCP then, which no signal fails.
    Broken {
        break_it: |world| {
            web_annotations(world).remove("service.beta.kubernetes.io/port_443_health-probe_protocol");
        },
        id: "probes",
        state: State::Warning,
        object: "service/default/web",
        what: "no annotation points its probe at :10456/healthz over HTTP",
    },
    Broken {
        break_it: |world| *web_annotations(world) = of_aws(&[]),
        id: "probes",
        state: State::Warning,
        object: "service/default/web",
        what: "no annotation points its probe at :10456/healthz over HTTP",
    },
    // `appProtocol` wins over the annotation of the whole Service.
    Broken {
        break_it: |world| of_azure(world, "tcp", GENERAL),
        id: "probes",
        state: State::Warning,
        object: "service/default/web",
        what: "no annotation points its probe at :10456/healthz over HTTP",
    },
    // The port has no TLS.
    Broken {
        break_it: |world| {
            let key = "service.beta.kubernetes.io/port_443_health-probe_protocol";
            web_annotations(world).insert(key.to_owned(), "https".to_owned());
        },
        id: "probes",
        state: State::Warning,
        object: "service/default/web",
        what: "no annotation points its probe at :10456/healthz over HTTP",
    },
    Broken {
        break_it: |world| *web_annotations(world) = of_aws(&[("protocol", "HTTPS")]),
        id: "probes",
        state: State::Warning,
        object: "service/default/web",
        what: "no annotation points its probe at :10456/healthz over HTTP",
    },
    Broken {
        break_it: |world| {
            world.settings.service_health = ServiceHealth::Path;
            *web_annotations(world) = of_aws(&[("protocol", "http"), ("path", "/healthz/services/default/web")]);
        },
        id: "probes",
        state: State::Failure,
        object: "service/default/web",
        what: "gets 404",
    },
    Broken {
        break_it: |world| {
            world.settings.service_health = ServiceHealth::Path;
            let spec =
                json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32000, "ports": [{"port": 443}]});
            let mut shop = service("shop", "1", &spec);
            let annotations = [("path", "/healthz/services/default/shop"), ("protocol", "TCP")];
            shop.metadata.annotations = Some(of_aws(&annotations));
            world.services = Ok(vec![shop]);
        },
        id: "local-services",
        state: State::Failure,
        object: "service/default/shop",
        what: "kube-proxy answers its health check node port 32000",
    },
    Broken {
        break_it: |world| {
            let spec =
                json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32000, "ports": [{"port": 443}]});
            world.services = Ok(vec![service("shop", "1", &spec)]);
        },
        id: "local-services",
        state: State::Failure,
        object: "service/default/shop",
        what: "kube-proxy answers its health check node port 32000",
    },
];

/// Cluster Autoscaler with this delay and no annotation, on Nodes with these provider IDs.
fn deletes_after(world: &mut World, delay: &str, provider_ids: &[&str]) {
    world.settings.cluster_autoscaler_delay = None;
    let flag = format!("--node-delete-delay-after-taint={delay}");
    workload(world, "cluster-autoscaler").containers[0].command.push(flag);
    let node = |id: &&str| from(json!({"metadata": {"name": "n"}, "spec": {"providerID": id}}));
    world.nodes = Ok(provider_ids.iter().map(node).collect());
}

#[test]
fn a_delay_for_a_probe_and_open_connections_is_enough() {
    for (delay, provider_id) in [
        ("15s", "azure:///subscriptions/s"),
        ("15s", "kind://docker/kind/n"),
        ("30s", "aws:///eu-west-1a/i-0"),
        ("34s", "gce://project/zone/name"),
    ] {
        let mut world = whole();
        deletes_after(&mut world, delay, &[provider_id]);
        assert_eq!(wrong(&world), [], "{delay} {provider_id}");
    }
}

fn web_annotations(world: &mut World) -> &mut BTreeMap<String, String> {
    let web = &mut world.services.as_mut().unwrap()[0];
    web.metadata.annotations.as_mut().unwrap()
}

/// Points the probe of the Service `web` at headgate by these annotations, beside that of its port, and gives its port an `appProtocol`.
fn of_azure(world: &mut World, app_protocol: &str, annotations: &[(&str, &str)]) {
    const PORT: &[(&str, &str)] = &[("port_443_health-probe_port", "10456")];
    let all = PORT.iter().chain(annotations);
    let named = all.map(|(key, value)| (format!("service.beta.kubernetes.io/{key}"), (*value).to_owned()));
    *web_annotations(world) = named.collect();
    world.services.as_mut().unwrap()[0].spec.ports[0].app_protocol = app_protocol.to_owned();
}

/// Annotations of AWS for a probe of headgate's port, with these changes.
fn of_aws(changes: &[(&str, &str)]) -> BTreeMap<String, String> {
    let all = [("port", "10456"), ("path", "/healthz")].iter().chain(changes);
    let annotations = all.map(|(key, value)| {
        let key = format!("service.beta.kubernetes.io/aws-load-balancer-healthcheck-{key}");
        (key, (*value).to_owned())
    });
    annotations.collect()
}

fn locked() -> DenyAssignment {
    DenyAssignment::from_document(&json!({"properties": {"denyAssignmentName": "locked", "scope": GROUP,
        "permissions": [{"actions": ["*"], "notActions": ["*/read"]}],
        "principals": [{"id": "00000000-0000-0000-0000-000000000000", "type": "SystemDefined"}], "excludePrincipals": []}}))
}

#[test]
fn the_fault_of_each_broken_world_is_named_and_nothing_else() {
    let with: Vec<_> = BROKEN.iter().map(|broken| (whole(), broken)).collect();
    let without = BROKEN_WITHOUT_AZURE
        .iter()
        .map(|broken| (whole_without_azure(), broken));
    let all: Vec<_> = with.into_iter().chain(without).collect();
    assert!(all.len() >= 20);
    for (mut world, broken) in all {
        (broken.break_it)(&mut world);
        let found = wrong(&world);
        let [finding] = &found[..] else {
            panic!("{}: {found:#?}", broken.what);
        };
        let object = finding.object.as_deref().unwrap_or_default();
        assert_eq!(
            (finding.id, finding.state, object),
            (broken.id, broken.state, broken.object),
            "{finding:#?}"
        );
        assert!(finding.what.contains(broken.what), "{finding:#?}");
        assert!(finding.do_.as_ref().is_some_and(|do_| !do_.is_empty()));
    }
}

/// Azure's annotations for all ports of a Service.
const GENERAL: &[(&str, &str)] = &[
    ("azure-load-balancer-health-probe-protocol", "http"),
    ("azure-load-balancer-health-probe-request-path", "/healthz"),
];

#[test]
fn probes_of_azure_are_pointed_at_headgate_for_a_port_or_for_all() {
    let path = ("port_443_health-probe_request-path", "/healthz");
    let protocol = ("port_443_health-probe_protocol", "Http");
    let others = [
        ("azure-load-balancer-health-probe-protocol", "tcp"),
        ("azure-load-balancer-health-probe-request-path", "/"),
    ];
    for (app_protocol, annotations) in [
        ("", GENERAL),
        ("HTTP", GENERAL),
        ("http", &[path]),
        ("tcp", &[protocol, GENERAL[1]]),
        ("https", &[protocol, path, others[0], others[1]]),
    ] {
        let mut world = whole_without_azure();
        of_azure(&mut world, app_protocol, annotations);
        assert_eq!(wrong(&world), [], "{app_protocol:?} {annotations:?}");
    }
}

#[test]
fn a_local_service_is_probed_at_its_own_path() {
    let mut world = whole();
    world.settings.service_health = ServiceHealth::Path;
    let spec = json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32001, "ports": [{"port": 443}]});
    world.services.as_mut().unwrap()[0] = service("web", UID, &spec);
    for (protocol, path, wrong_probes) in [
        ("Http", "/healthz/services/default/web?from=lb", 0),
        ("Http", "/healthz/services/default/shop", 1),
        ("Https", "/healthz/services/default/web", 1),
    ] {
        let probe = json!({"protocol": protocol, "port": 10456, "requestPath": path});
        show(&mut world, &probe, &addresses());
        assert_eq!(wrong(&world).len(), wrong_probes, "{protocol} {path}");
    }
}

#[test]
fn probes_of_aws_are_pointed_at_headgate_over_http() {
    let mut world = whole_without_azure();
    for protocol in ["http", "HTTP"] {
        *web_annotations(&mut world) = of_aws(&[("protocol", protocol)]);
        assert_eq!(wrong(&world), [], "{protocol}");
    }
    world.settings.service_health = ServiceHealth::Path;
    let spec = json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32000, "ports": [{"port": 443}]});
    let mut shop = service("shop", "1", &spec);
    let path = ("path", "/healthz/services/default/shop");
    for annotations in [of_aws(&[path]), of_aws(&[("protocol", "http"), path])] {
        shop.metadata.annotations = Some(annotations);
        world.services = Ok(vec![shop.clone()]);
        assert_eq!(wrong(&world), []);
    }
}
