//! The table of broken worlds.

use headgate_core::node::KnownSignal;
use headgate_core::service::ServicePort;
use std::collections::BTreeMap;

use super::*;

/// What breaks a whole world, and the row of the report that shows it: mark, check, object, and a part of what is found.
type Broken = (fn(&mut World), &'static str);

fn azure(world: &mut World) -> &mut AzureWorld {
    world.azure.as_mut().unwrap().as_mut().unwrap()
}

fn seen(world: &mut World) -> &mut Seen {
    azure(world).seen.as_mut().unwrap()
}

pub(super) fn show(world: &mut World, probe: &Value, entries: &Value) {
    seen(world).load_balancers.as_mut().unwrap().found = vec![load_balancer(probe, entries)];
}

/// A probe of headgate's port.
fn probe(protocol: &str, path: &str) -> Value {
    json!({"protocol": protocol, "port": 10456, "requestPath": path})
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
    (
        |world| {
            world.server = Ok(Server {
                version: "v1.29.14".to_owned(),
                major: 1,
                minor: 29,
            });
        },
        "✗ api-server - v1.29.14 is older than 1.30",
    ),
    (
        |world| {
            world.settings.maintenance.enabled = true;
            let served = world.served.as_mut().unwrap();
            served.remove("headgate.dev/v1alpha1/evacuations");
        },
        "✗ api-kinds headgate.dev/v1alpha1/evacuations does not serve evacuations",
    ),
    (
        |world| {
            let served = world.served.as_mut().unwrap();
            served.remove("admissionregistration.k8s.io/v1/validatingadmissionpolicies");
        },
        "✗ api-kinds admissionregistration.k8s.io/v1/validatingadmissionpolicies does not serve",
    ),
    (
        |world| world.nodes = Err("nodes is forbidden".to_owned()),
        "✗ nodes - nodes is forbidden",
    ),
    (
        |world| lacks(world, Role::Agent, "patch nodes"),
        "✗ rights serviceaccount/kube-system/headgate-agent may not patch nodes, which delayTermination.clusterAutoscaler needs",
    ),
    (
        |world| {
            lacks(
                world,
                Role::Controller,
                "update leases.coordination.k8s.io headgate-leader in kube-system",
            );
        },
        "✗ rights serviceaccount/kube-system/headgate-controller headgate-leader",
    ),
    (
        |world| {
            let account = Account {
                name: "headgate-hold".to_owned(),
                role: None,
                ..account(Role::Agent)
            };
            let missing = Ok(needed(&world.settings, &account).into_iter().take(1).collect());
            let accounts = world.accounts.as_mut().unwrap();
            accounts.push(AccountRights { account, missing });
        },
        "✗ rights serviceaccount/kube-system/headgate-hold may not list nodes, which delayTermination.karpenter needs",
    ),
    (
        |world| world.accounts = Err("subjectaccessreviews is forbidden".to_owned()),
        "! rights - subjectaccessreviews is forbidden",
    ),
    (
        |world| workload(world, "headgate").pods.ready = 1,
        "✗ installation daemonset/kube-system/headgate of 2 pods 1 are ready",
    ),
    (
        |world| workload(world, "headgate").annotations.clear(),
        "! installation daemonset/kube-system/headgate may evict the agent",
    ),
    (
        |world| workload(world, "headgate").containers[0].image = "registry.test/headgate:0.9.0".to_owned(),
        "! versions - daemonset/kube-system/headgate has registry.test/headgate:0.9.0",
    ),
    (
        |world| world.workloads = Err("daemonsets is forbidden".to_owned()),
        "! installation - daemonsets is forbidden",
    ),
    (
        |world| world.azure = Some(Err("/a: tenantId is missing".to_owned())),
        "✗ azure-config - tenantId is missing",
    ),
    (
        |world| azure(world).seen = Err("no token: invalid_client (401): AADSTS7000215".to_owned()),
        "✗ azure-token - AADSTS7000215",
    ),
    (
        |world| {
            let permissions = seen(world).permissions.as_mut().unwrap();
            permissions.group = all_but("Microsoft.Network/loadBalancers/backendAddressPools/write");
        },
        "✗ azure-role /subscriptions/s/resourceGroups/nodes may not Microsoft.Network/loadBalancers/backendAddressPools/write",
    ),
    (
        |world| seen(world).permissions.as_mut().unwrap().network = all_but("*/joinLoadBalancer/action"),
        "✗ azure-role /subscriptions/s/resourceGroups/nodes/providers/Microsoft.Network/virtualNetworks/v joinLoadBalancer/action",
    ),
    (
        |world| azure(world).configuration.network = None,
        "! azure-role - the virtual network of the nodes is not known",
    ),
    (
        |world| seen(world).permissions = Err("ARM answered 403: AuthorizationFailed".to_owned()),
        "! azure-role - AuthorizationFailed",
    ),
    (
        |world| seen(world).deny_assignments = Ok(vec![locked()]),
        "✗ deny-assignments /subscriptions/s/resourceGroups/nodes \"locked\" refuses writes of pools",
    ),
    (
        |world| {
            let (found, others) = (Vec::new(), vec!["mycluster".to_owned()]);
            seen(world).load_balancers = Ok(LoadBalancers { found, others });
        },
        "✗ load-balancers - no load balancer is named kubernetes or kubernetes-internal; /subscriptions/s/resourceGroups/nodes has: mycluster",
    ),
    (
        |world| seen(world).load_balancers = Err("ARM answered 404: ResourceGroupNotFound".to_owned()),
        "✗ load-balancers - ResourceGroupNotFound",
    ),
    (
        |world| {
            let interface = "/subscriptions/s/resourceGroups/nodes/providers/Microsoft.Network/networkInterfaces/n/ipConfigurations/c";
            show(
                world,
                &healthz(),
                &json!([{"name": "x", "properties": {"networkInterfaceIPConfiguration": {"id": interface}}}]),
            );
        },
        "! pools pool/kubernetes/kubernetes 1 of 1 entries are network interfaces",
    ),
    (
        |world| show(world, &Value::Null, &addresses()),
        "✗ rules service/default/web has no health probe",
    ),
    (
        |world| {
            show(world, &Value::Null, &addresses());
            let view = &mut seen(world).load_balancers.as_mut().unwrap().found[0];
            let pool = &mut Arc::get_mut(view).unwrap().pools[0];
            Arc::get_mut(pool).unwrap().rules[0].name = RULE.replace("TCP-443", "UDP-53");
        },
        "! rules service/default/web has no health probe",
    ),
    (
        |world| show(world, &json!({"protocol": "Tcp", "port": 30080}), &addresses()),
        "! probes service/default/web its probe Tcp :30080 does not reach headgate: only admin states take nodes out (rules a0f8fad5bd9cb469fa16570867728950-TCP-443)",
    ),
    (
        |world| show(world, &probe("Http", "/"), &addresses()),
        "✗ probes service/default/web gets 404",
    ),
    // It was a Local Service before.
    (
        |world| {
            world.settings.service_health = ServiceHealth::Path;
            show(world, &probe("Http", "/healthz/services/default/web"), &addresses());
        },
        "✗ probes service/default/web gets 404",
    ),
    (
        |world| show(world, &json!({"protocol": "Tcp", "port": 10456}), &addresses()),
        "✗ probes service/default/web no signal fails it",
    ),
    (
        |world| world.services = Err("services is forbidden".to_owned()),
        "! probes - services is forbidden",
    ),
    (
        |world| world.settings.service_health = ServiceHealth::NodePorts,
        "✗ local-services service/default/shop kube-proxy owns its health check node port 32000",
    ),
    (
        |world| {
            deletes_after(world, "1m", &[]);
            world.settings.admin_state.mode = AdminStateMode::Observe;
        },
        "✗ local-services service/default/shop keeps sending to a node with signals",
    ),
    (
        |world| workload(world, "web").is_on_host_network = true,
        "✗ liveness-probes deployment/default/web its livenessProbe asks headgate's :10456/healthz",
    ),
    (
        |world| {
            let get = json!({"host": "127.0.0.1", "path": "/healthz?verbose", "port": 10456});
            let sidecar = json!({"name": "s", "restartPolicy": "Always", "livenessProbe": {"httpGet": get}});
            let once = json!({"name": "once", "livenessProbe": {"httpGet": get}});
            let template = json!({"spec": {"containers": [{"name": "c"}], "initContainers": [once, sidecar]}});
            let workloads = world.workloads.as_mut().unwrap();
            workloads.push(daemon_set("default", "proxy", &template));
        },
        "✗ liveness-probes daemonset/default/proxy its livenessProbe asks headgate's :10456/healthz",
    ),
    (
        |world| world.settings.cluster_autoscaler_delay = None,
        "! autoscalers deployment/kube-system/cluster-autoscaler deletes a node 5s after its taint",
    ),
    // Nothing but its time would end the delay.
    (
        |world| world.settings.signals.disabled = [KnownSignal::ClusterAutoscaler].into(),
        "! autoscalers deployment/kube-system/cluster-autoscaler deletes a node 5s after its taint",
    ),
    // One second for open connections.
    (
        |world| deletes_after(world, "6s", &["azure:///subscriptions/s", "aws:///eu-west-1a/i-0"]),
        "! autoscalers deployment/kube-system/cluster-autoscaler deletes a node 6s after its taint, not 15s or more: the load balancer takes up to 5s to notice a 503",
    ),
    (
        |world| deletes_after(world, "29s", &["", "aws:///eu-west-1a/i-0"]),
        "! autoscalers deployment/kube-system/cluster-autoscaler deletes a node 29s after its taint, not 30s or more: the load balancer takes up to 20s to notice a 503",
    ),
    (
        |world| deletes_after(world, "33s", &["gce://project/zone/name"]),
        "! autoscalers deployment/kube-system/cluster-autoscaler deletes a node 33s after its taint, not 34s or more: the load balancer takes up to 24s to notice a 503",
    ),
    (
        |world| {
            workload(world, "cluster-autoscaler").containers[0]
                .command
                .push("--max-bulk-soft-taint-count=0".to_owned());
        },
        "✗ autoscalers deployment/kube-system/cluster-autoscaler sets no soft taints",
    ),
    (
        |world| {
            let command = &mut workload(world, "cluster-autoscaler").containers[0].command;
            command.extend(["--node-deletion-delay-timeout", "1m0s"].map(str::to_owned));
        },
        "! autoscalers deployment/kube-system/cluster-autoscaler ends every delay after 1m (--node-deletion-delay-timeout), before delayTermination.clusterAutoscaler of 2m",
    ),
    (
        |world| {
            let workloads = world.workloads.as_mut().unwrap();
            workloads.retain(|workload| workload.name != "headgate-hold");
        },
        "! autoscalers deployment/karpenter/karpenter terminates an empty node at once",
    ),
    (
        |world| {
            let annotations = json!({"delay-deletion.cluster-autoscaler.kubernetes.io/other": "x"});
            world.nodes = Ok(vec![from(
                json!({"metadata": {"name": "n1", "annotations": annotations}}),
            )]);
        },
        "! annotations node/n1 delay-deletion.cluster-autoscaler.kubernetes.io/other delays Cluster Autoscaler on n1",
    ),
];

/// Without Azure.
const BROKEN_WITHOUT_AZURE: &[Broken] = &[
    (
        |world| {
            let container = &mut workload(world, "headgate-controller").containers[0];
            container.command.push("--azure-config-file=/a".to_owned());
        },
        "! azure-config - this command was given none: role, pools and probes of load balancers were not checked",
    ),
    (
        |world| world.services.as_mut().unwrap()[0].metadata.annotations = None,
        "! probes service/default/web no annotation points its probe at :10456/healthz",
    ),
    // Both probe TCP then, which no signal fails.
    (
        |world| {
            web_annotations(world).remove("service.beta.kubernetes.io/port_443_health-probe_protocol");
        },
        "! probes service/default/web no annotation points its probe at :10456/healthz over HTTP",
    ),
    (
        |world| *web_annotations(world) = of_aws(&[]),
        "! probes service/default/web no annotation points its probe at :10456/healthz over HTTP",
    ),
    // `appProtocol` wins over the annotation of the whole Service.
    (
        |world| of_azure(world, "tcp", GENERAL),
        "! probes service/default/web no annotation points its probe at :10456/healthz over HTTP",
    ),
    // The port has no TLS.
    (
        |world| {
            let key = "service.beta.kubernetes.io/port_443_health-probe_protocol";
            web_annotations(world).insert(key.to_owned(), "https".to_owned());
        },
        "! probes service/default/web no annotation points its probe at :10456/healthz over HTTP",
    ),
    // cloud-provider-azure gives this port no probe, whatever is annotated.
    (
        |world| world.services.as_mut().unwrap()[0].spec.ports.push(udp_port()),
        "! probes service/default/web its ports UDP 53 have no health probe",
    ),
    (
        |world| world.services.as_mut().unwrap()[0].spec.ports = vec![udp_port()],
        "! probes service/default/web its ports UDP 53 have no health probe",
    ),
    (
        |world| *web_annotations(world) = of_aws(&[("protocol", "HTTPS")]),
        "! probes service/default/web no annotation points its probe at :10456/healthz over HTTP",
    ),
    (
        |world| {
            world.settings.service_health = ServiceHealth::Path;
            *web_annotations(world) = of_aws(&[("protocol", "http"), ("path", "/healthz/services/default/web")]);
        },
        "✗ probes service/default/web gets 404",
    ),
    (
        |world| {
            world.settings.service_health = ServiceHealth::Path;
            let spec =
                json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32000, "ports": [{"port": 443}]});
            let mut shop = service("shop", "1", &spec);
            let annotations = [("path", "/healthz/services/default/shop"), ("protocol", "TCP")];
            shop.metadata.annotations = Some(of_aws(&annotations));
            world.services = Ok(vec![shop]);
        },
        "✗ local-services service/default/shop kube-proxy answers its health check node port 32000",
    ),
    (
        |world| {
            let spec =
                json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32000, "ports": [{"port": 443}]});
            world.services = Ok(vec![service("shop", "1", &spec)]);
        },
        "✗ local-services service/default/shop kube-proxy answers its health check node port 32000",
    ),
    // Nor another one than that of the health check node port.
    (
        |world| {
            world.settings.service_health = ServiceHealth::Path;
            let spec = &mut world.services.as_mut().unwrap()[0].spec;
            spec.external_traffic_policy = "Local".to_owned();
            spec.health_check_node_port = 32000;
            spec.ports.push(udp_port());
            let key = "service.beta.kubernetes.io/port_443_health-probe_request-path";
            web_annotations(world).insert(key.to_owned(), "/healthz/services/default/web".to_owned());
        },
        "! local-services service/default/web its ports UDP 53 keep getting connections",
    ),
    (
        |world| {
            let spec = json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32000,
                "ports": [{"port": 53, "protocol": "UDP"}]});
            world.services = Ok(vec![service("dns", "1", &spec)]);
        },
        "! local-services service/default/dns its ports UDP 53 keep getting connections",
    ),
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

fn udp_port() -> ServicePort {
    from(json!({"protocol": "UDP", "port": 53}))
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
    for (mut world, (break_it, row)) in all {
        break_it(&mut world);
        let found = wrong(&world);
        let [finding] = &found[..] else {
            panic!("{row}: {found:#?}");
        };
        let object = finding.object.as_deref().unwrap_or("-");
        let shown = format!("{} {} {object} {}", finding.state.mark(), finding.id, finding.what);
        let words: Vec<_> = row.splitn(4, ' ').collect();
        let (start, what) = (words[..3].join(" "), words[3]);
        assert!(
            shown.starts_with(&format!("{start} ")) && finding.what.contains(what),
            "{row}: {finding:#?}"
        );
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
        show(&mut world, &probe(protocol, path), &addresses());
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
    shop.spec.ports.push(udp_port());
    let path = ("path", "/healthz/services/default/shop");
    for annotations in [of_aws(&[path]), of_aws(&[("protocol", "http"), path])] {
        shop.metadata.annotations = Some(annotations);
        world.services = Ok(vec![shop.clone()]);
        assert_eq!(wrong(&world), []);
    }
}
