//! Health probes: whether those of load balancers reach headgate, and whether a container's wrongly do. Pure.
//!
//! The rules of Azure's load balancers show what is probed. Where Azure is not configured, the annotations of the Services are all that is
//! known.

use std::collections::{BTreeMap, BTreeSet};

use headgate_controller::admin_state::AdminStateMode;
use headgate_controller::local_pools::{base_name, is_rule_of};
use headgate_controller::pool::{ProbeTarget, Rule};
use headgate_core::service::{ServiceObject, ServicePort};
use headgate_core::telemetry::first_names;

use super::azure;
use super::finding::{Finding, State};
use super::{Found, World};
use crate::config::{ServiceHealth, Settings};

/// Names that a finding has at most.
const MAX_NAMES: usize = 5;
/// The beginning of the paths at which headgate answers about Services.
const SERVICES_PATH: &str = "/healthz/services/";
/// What becomes of a probe of such a path where headgate does not answer about the rule's own Service.
const GETS_404: &str = "gets 404 unless serviceHealthChecks is Path and the path names the Service itself, with externalTrafficPolicy: Local: \
                        the whole backend goes down";
/// What gives ports that are not of TCP a probe on Azure, where annotations do not.
const PROBE_OTHER_PROTOCOLS: &str = "set clusterServiceLoadBalancerHealthProbeMode: shared, or externalTrafficPolicy: Local: otherwise \
                                     cloud-provider-azure gives UDP and SCTP ports no probe";
/// What points the probe of any port on AWS.
const ANNOTATE_AWS: &str = "AWS: service.beta.kubernetes.io/aws-load-balancer-healthcheck-port, …-protocol and …-path";
/// The port of kube-proxy's health server, which shared probes use by default.
const KUBE_PROXY_PORT: u16 = 10256;

/// A rule of a load balancer, and whose it is.
struct OwnedRule<'a> {
    load_balancer: &'a str,
    rule: &'a Rule,
    service: Option<&'a ServiceObject>,
}

impl OwnedRule<'_> {
    fn object(&self) -> String {
        match self.service {
            Some(service) => object(service),
            None => format!("loadBalancer/{}", self.load_balancer),
        }
    }
}

fn object(service: &ServiceObject) -> String {
    let metadata = &service.metadata;
    let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
    format!("service/{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default())
}

/// The rules of the cluster's load balancers; `None` if they were not read.
fn rules(world: &World) -> Option<Vec<OwnedRule<'_>>> {
    let services = world.services.as_deref().unwrap_or_default();
    let names: Vec<_> = services
        .iter()
        .filter_map(|service| Some((base_name(service.metadata.uid.as_deref()?)?, service)))
        .collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for load_balancer in azure::load_balancers(world)? {
        for rule in load_balancer.pools.iter().flat_map(|pool| &pool.rules) {
            if seen.insert((load_balancer.id.name(), &rule.name)) {
                let owner = names.iter().find(|(base, _)| is_rule_of(&rule.name, base));
                found.push(OwnedRule {
                    load_balancer: load_balancer.id.name(),
                    rule,
                    service: owner.map(|(_, service)| *service),
                });
            }
        }
    }
    Some(found)
}

/// Findings of which each is about several rules of one object.
#[derive(Default)]
struct ByObject(BTreeMap<String, Vec<(Finding, Vec<String>)>>);

impl ByObject {
    fn add(&mut self, rule: &OwnedRule<'_>, finding: Finding) {
        let findings = self.0.entry(rule.object()).or_default();
        match findings.iter_mut().find(|(known, _)| *known == finding) {
            Some((_, names)) => names.push(rule.rule.name.clone()),
            None => findings.push((finding, vec![rule.rule.name.clone()])),
        }
    }

    fn into_findings(self) -> Vec<Finding> {
        let found = self.0.into_iter().flat_map(|(object, findings)| {
            findings.into_iter().map(move |(finding, rules)| {
                let what = format!("{} (rules {})", finding.what, first_names(rules, MAX_NAMES));
                Finding { what, ..finding }.about(&*object)
            })
        });
        found.collect()
    }
}

pub(super) fn check_rules(world: &World) -> Found {
    let Some(rules) = rules(world) else {
        return Ok(Vec::new());
    };
    let mut findings = ByObject::default();
    for rule in rules.iter().filter(|rule| rule.rule.probe.is_none()) {
        let what = "has no health probe: neither signals nor the admin state Down stop its new connections";
        let name = &rule.rule.name;
        let finding = if name.contains("-UDP-") || name.contains("-SCTP-") {
            Finding::warning(what, PROBE_OTHER_PROTOCOLS)
        } else {
            let do_ = "give the rule a probe; cloud-provider-azure adds one to each TCP port unless an annotation turns it off \
                       (service.beta.kubernetes.io/port_PORT_no_probe_rule)";
            Finding::failure(what, do_)
        };
        findings.add(rule, finding);
    }
    Finding::or_ok(
        findings.into_findings(),
        format!("{} load-balancing rules have a probe", rules.len()),
    )
}

pub(super) fn check_services(world: &World) -> Found {
    let services = world.services.as_ref().map_err(|error| {
        Finding::warning(
            format!("the Services are not known: {error}"),
            "run `headgate check` as a user who may list services in all namespaces",
        )
    })?;
    if world.azure.is_none() {
        return by_annotations(services, &world.settings);
    }
    let Some(rules) = rules(world) else {
        return Ok(Vec::new());
    };
    let mut findings = ByObject::default();
    for rule in &rules {
        if let Some(finding) = probe_finding(rule, &world.settings) {
            findings.add(rule, finding);
        }
    }
    Finding::or_ok(
        findings.into_findings(),
        "the probes of all rules reach headgate or a node port of their Service",
    )
}

/// What is wrong with the probe of a rule. Those of Local Services at their node ports have a check of their own.
fn probe_finding(rule: &OwnedRule<'_>, settings: &Settings) -> Option<Finding> {
    let port = settings.healthz_bind_address.port();
    let probe = rule.rule.probe.as_ref()?;
    let path = probe.path.as_deref().unwrap_or_default();
    let shown = format!("{} :{}{path}", probe.protocol, probe.port);
    let is_local = rule.service.is_some_and(ServiceObject::is_local);
    match ProbeTarget::from_rule(rule.rule, port) {
        ProbeTarget::Headgate | ProbeTarget::NoProbe => None,
        ProbeTarget::Elsewhere
            if is_local
                && rule
                    .service
                    .is_some_and(|service| service.spec.health_check_node_port == probe.port) =>
        {
            None
        }
        ProbeTarget::Elsewhere if settings.admin_state.mode == AdminStateMode::Enforce => Some(Finding::warning(
            format!("its probe {shown} does not reach headgate: only admin states take nodes out"),
            annotate(port),
        )),
        ProbeTarget::Elsewhere => Some(Finding::failure(
            format!(
                "its probe {shown} does not reach headgate, and adminState.mode is not Enforce: no signal takes nodes out"
            ),
            annotate(port),
        )),
        ProbeTarget::PortOnly
            if settings.service_health == ServiceHealth::Path
                && asks_about_service(&probe.protocol, path, rule.service) =>
        {
            None
        }
        ProbeTarget::PortOnly => Some(Finding::failure(
            format!(
                "its probe {shown} reaches headgate's port, but {}",
                wrong_probe(&probe.protocol, path)
            ),
            annotate(port),
        )),
    }
}

/// Whether the probe asks about the health of the rule's own Service, if the rule is one's.
fn asks_about_service(protocol: &str, path: &str, service: Option<&ServiceObject>) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    let is_own = |service: &ServiceObject| service.is_local() && path == own_path(service);
    protocol.eq_ignore_ascii_case("http") && path.starts_with(SERVICES_PATH) && service.is_none_or(is_own)
}

/// What becomes of a probe of headgate's port other than `/healthz`.
fn wrong_probe(protocol: &str, path: &str) -> &'static str {
    if protocol.eq_ignore_ascii_case("https") {
        "the port has no TLS: the whole backend goes down"
    } else if path.starts_with(SERVICES_PATH) {
        GETS_404
    } else if protocol.eq_ignore_ascii_case("http") && path != "/livez" {
        "gets 404: the whole backend goes down"
    } else {
        "no signal fails it"
    }
}

fn annotate(port: u16) -> String {
    format!(
        "annotate the Service for each of its TCP ports PORT: service.beta.kubernetes.io/port_PORT_health-probe_protocol: http, \
         …_health-probe_port: \"{port}\", …_health-probe_request-path: /healthz"
    )
}

/// The same from annotations, where nothing shows what load balancers probe.
fn by_annotations(services: &[ServiceObject], settings: &Settings) -> Found {
    let port = settings.healthz_bind_address.port();
    let cluster = || {
        services
            .iter()
            .filter(|service| service.is_load_balancer() && !service.is_local())
    };
    let findings = cluster().filter_map(|service| {
        let others = unannotated_ports(service, port, |path| path.starts_with(SERVICES_PATH));
        // Where these are all of its ports, nothing points at it.
        if others.is_some_and(|others| others.len() < service.spec.ports.len()) {
            let what = format!("its probe reaches headgate's port, but {GETS_404}");
            return Some(Finding::failure(what, "point the probe at the path /healthz").about(object(service)));
        }
        if port == KUBE_PROXY_PORT {
            return None;
        }
        if let Some(others) = unannotated_ports(service, port, |path| path == "/healthz") {
            let what = format!(
                "its ports {} have no health probe on Azure, so nodes with signals keep getting their traffic",
                others.join(", ")
            );
            let finding = Finding::warning(what, format!("Azure: {PROBE_OTHER_PROTOCOLS}; {ANNOTATE_AWS}; elsewhere configure the load balancer"));
            return (!others.is_empty()).then(|| finding.about(object(service)));
        }
        let what = format!(
            "no annotation points its probe at :{port}/healthz over HTTP: unless its load balancer probes that by itself, nodes with signals keep \
             getting its connections"
        );
        let do_ = format!(
            "Azure, for TCP: service.beta.kubernetes.io/port_PORT_health-probe_port, …_protocol and …_request-path; {ANNOTATE_AWS}; elsewhere \
             configure the load balancer"
        );
        Some(Finding::warning(what, do_).about(object(service)))
    });
    let number = cluster().count();
    Finding::or_ok(
        findings.collect(),
        format!("the probes of {number} Services are pointed at headgate"),
    )
}

/// Whether the annotations of Azure, for every TCP port, or of AWS point at the port and such a path over HTTP: the ports whose probes they
/// do not change, `None` if they do not. No signal fails a TCP probe.
/// Without a protocol AWS probes a Local Service over HTTP, and others over TCP. Azure takes a port's annotation, then its `appProtocol`, then
/// the annotation of the Service, and else TCP; the path from the port's annotation or that of the Service.
fn unannotated_ports(service: &ServiceObject, port: u16, is_path: impl Fn(&str) -> bool) -> Option<Vec<String>> {
    let annotations = service.metadata.annotations.as_ref();
    let value = |key: &str| {
        let value = annotations.and_then(|all| all.get(&format!("service.beta.kubernetes.io/{key}")));
        value.map(String::as_str)
    };
    let port = port.to_string();
    let is_pointed = |number: Option<&str>, protocol: Option<&str>, path: Option<&str>| {
        number == Some(&port)
            && protocol.is_some_and(|protocol| protocol.trim().eq_ignore_ascii_case("http"))
            && path.is_some_and(|path| is_path(path.split('?').next().unwrap_or_default()))
    };
    let azure = |of: &ServicePort| {
        let own = |key: &str| value(&format!("port_{}_health-probe_{key}", of.port));
        let general = |key: &str| value(&format!("azure-load-balancer-health-probe-{key}"));
        let app_protocol = Some(&*of.app_protocol).filter(|name| !name.is_empty());
        let protocol = own("protocol").or(app_protocol).or_else(|| general("protocol"));
        let path = own("request-path").or_else(|| general("request-path"));
        is_pointed(own("port"), protocol, path)
    };
    let aws = |key: &str| value(&format!("aws-load-balancer-healthcheck-{key}"));
    let aws_protocol = aws("protocol").or(service.is_local().then_some("http"));
    if is_pointed(aws("port"), aws_protocol, aws("path")) {
        return Some(Vec::new());
    }
    let (tcp, others): (Vec<_>, Vec<_>) = service
        .spec
        .ports
        .iter()
        .partition(|port| matches!(&*port.protocol, "TCP" | ""));
    let names = others.iter().map(|port| format!("{} {}", port.protocol, port.port));
    tcp.into_iter().all(azure).then(|| names.collect())
}

pub(super) fn check_local_services(world: &World) -> Found {
    let Ok(services) = &world.services else {
        return Ok(Vec::new());
    };
    let local: Vec<_> = services
        .iter()
        .filter(|service| service.is_load_balancer() && service.is_local() && service.spec.health_check_node_port != 0)
        .collect();
    if local.is_empty() {
        return Ok(vec![Finding::ok(
            "there are no Services of type LoadBalancer with externalTrafficPolicy: Local",
        )]);
    }
    let workloads = world.workloads.as_deref().unwrap_or_default();
    let has_kube_proxy = workloads.iter().any(|workload| workload.runs("kube-proxy"));
    let opens_ports = world.settings.service_health == ServiceHealth::NodePorts;
    let finding = |service: &&ServiceObject| {
        let port = service.spec.health_check_node_port;
        if opens_ports && has_kube_proxy {
            let what = format!("kube-proxy owns its health check node port {port}, so headgate cannot open it");
            let do_ = "set serviceHealthChecks: Path, and point the Service's HTTP probe at headgate's port and the path \
                       /healthz/services/NAMESPACE/NAME; nodePorts is for nodes without kube-proxy";
            return Some(Finding::failure(what, do_).about(object(service)));
        }
        if opens_ports || is_drained_by_admin_states(world) {
            return None;
        }
        let owner = if has_kube_proxy {
            "kube-proxy"
        } else {
            "another process"
        };
        if let Some(others) = ports_not_probed_at_path(service, &world.settings) {
            let what = format!(
                "its ports {} keep getting connections on a node with signals until its last endpoint there is gone: {owner} answers its health \
                 check node port {port}, and cloud-provider-azure gives UDP and SCTP ports no other probe",
                others.join(", ")
            );
            let do_ = format!(
                "Azure: let admin states take nodes out: adminState.mode Enforce; {ANNOTATE_AWS}, with serviceHealthChecks: Path"
            );
            let finding = Finding::warning(what, do_);
            return (!others.is_empty()).then(|| finding.about(object(service)));
        }
        let what = format!(
            "keeps sending to a node with signals until its last endpoint there is gone: {owner} answers its health check node port {port}"
        );
        let do_ = "set serviceHealthChecks: Path and point the Service's HTTP probe at headgate's port and the path \
                   /healthz/services/NAMESPACE/NAME; on Azure admin states do it instead";
        Some(Finding::failure(what, do_).about(object(service)))
    };
    let findings = local.iter().filter_map(finding).collect();
    Finding::or_ok(
        findings,
        format!(
            "{} Services with externalTrafficPolicy: Local drain with their nodes",
            local.len()
        ),
    )
}

/// Whether the leader takes nodes out of the pools of Local Services. Where the load balancers cannot be read, another check says so.
fn is_drained_by_admin_states(world: &World) -> bool {
    world.azure.is_some() && world.settings.admin_state.mode == AdminStateMode::Enforce
}

/// The ports that are not probed at the Service's path; `None` if a port of TCP, which could be, is not.
fn ports_not_probed_at_path(service: &ServiceObject, settings: &Settings) -> Option<Vec<String>> {
    let port = settings.healthz_bind_address.port();
    let is_path = |path: &str| path == own_path(service);
    let others = unannotated_ports(service, port, is_path);
    others.filter(|others| settings.service_health == ServiceHealth::Path || others.len() == service.spec.ports.len())
}

/// Where headgate answers about the Service.
fn own_path(service: &ServiceObject) -> String {
    let metadata = &service.metadata;
    let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
    format!(
        "{SERVICES_PATH}{}/{}",
        namespace.unwrap_or_default(),
        name.unwrap_or_default()
    )
}

pub(super) fn check_liveness(world: &World) -> Found {
    let Ok(workloads) = &world.workloads else {
        return Ok(Vec::new());
    };
    let port = world.settings.healthz_bind_address.port();
    let mut findings = Vec::new();
    for workload in workloads {
        for probe in workload.containers.iter().flat_map(|container| &container.probes) {
            // Without a host it is the pod's address, which is the node's on the host network only.
            let is_of_node = workload.is_on_host_network || !probe.host.is_empty();
            let is_healthz = probe.path.split('?').next() == Some("/healthz");
            if !is_of_node || !is_healthz || probe.port != port {
                continue;
            }
            let what = format!(
                "its {} asks headgate's :{port}/healthz, which fails on every node with a signal",
                probe.kind
            );
            let do_ = format!("ask :{port}/livez, which no signal fails");
            let state = if probe.kind == "livenessProbe" {
                State::Failure
            } else {
                State::Warning
            };
            findings.push(Finding::failure(what, do_).with_state(state).about(workload.object()));
        }
    }
    Finding::or_ok(findings, format!("no container is probed at :{port}/healthz"))
}
