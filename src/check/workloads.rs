//! Deployments, `DaemonSets` and `StatefulSets`, reduced to what checks read, and those of headgate itself. Pure.

use std::collections::{BTreeMap, BTreeSet};

use headgate_core::telemetry::first_names;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Container, PodTemplateSpec, Probe};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::finding::Finding;
use super::rights::Account;
use super::{Found, World};
use crate::agent::Role;

const NAME_LABEL: &str = "app.kubernetes.io/name";
const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
/// Cluster Autoscaler evicts the pods of a `DaemonSet` with the value `true`, and without it where a flag says so.
const EVICTION_ANNOTATION: &str = "cluster-autoscaler.kubernetes.io/enable-ds-eviction";

/// A workload, as far as checks read it.
#[derive(Clone, Debug, Default)]
pub(super) struct Workload {
    /// `deployment`, `daemonset` or `statefulset`.
    pub(super) kind: &'static str,
    pub(super) namespace: String,
    pub(super) name: String,
    /// Of its pods.
    pub(super) labels: BTreeMap<String, String>,
    /// Of its pods.
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) service_account: String,
    pub(super) is_on_host_network: bool,
    /// With the sidecars.
    pub(super) containers: Vec<ContainerSpec>,
    pub(super) pods: PodCounts,
}

/// A container of a workload's pods.
#[derive(Clone, Debug, Default)]
pub(super) struct ContainerSpec {
    pub(super) image: String,
    /// `command` and `args`.
    pub(super) command: Vec<String>,
    pub(super) probes: Vec<HttpProbe>,
}

/// An HTTP probe of a container.
#[derive(Clone, Debug)]
pub(super) struct HttpProbe {
    /// `livenessProbe`, `readinessProbe` or `startupProbe`.
    pub(super) kind: &'static str,
    /// Empty for the pod's own address.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) path: String,
}

/// The pods of a workload, by its status.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PodCounts {
    pub(super) desired: i32,
    pub(super) updated: i32,
    pub(super) ready: i32,
}

impl Workload {
    fn new(kind: &'static str, metadata: ObjectMeta, template: PodTemplateSpec, pods: PodCounts) -> Self {
        let pod = template.spec.unwrap_or_default();
        // Sidecars: kubelet probes and restarts them as it does containers.
        let mut sidecars = pod.init_containers.unwrap_or_default();
        sidecars.retain(|container| container.restart_policy.as_deref() == Some("Always"));
        let (labels, annotations) = template
            .metadata
            .map(|metadata| (metadata.labels, metadata.annotations))
            .unwrap_or_default();
        Self {
            kind,
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            labels: labels.unwrap_or_default(),
            annotations: annotations.unwrap_or_default(),
            service_account: pod.service_account_name.unwrap_or_default(),
            is_on_host_network: pod.host_network.unwrap_or_default(),
            containers: pod
                .containers
                .into_iter()
                .chain(sidecars)
                .map(ContainerSpec::new)
                .collect(),
            pods,
        }
    }

    /// Such as `deployment/kube-system/headgate-controller`.
    pub(super) fn object(&self) -> String {
        format!("{}/{}/{}", self.kind, self.namespace, self.name)
    }

    fn has_label(&self, label: &str, value: &str) -> bool {
        self.labels.get(label).is_some_and(|found| found == value)
    }

    /// Whether it is a part of headgate.
    pub(super) fn is_headgate(&self) -> bool {
        self.has_label(NAME_LABEL, "headgate")
    }

    /// Whether it is this component of headgate: `agent`, `controller` or `hold`.
    pub(super) fn is_component(&self, component: &str) -> bool {
        self.is_headgate() && self.has_label(COMPONENT_LABEL, component)
    }

    /// Whether a container runs this program, by the first word of its command or the last part of its image's name.
    pub(super) fn runs(&self, program: &str) -> bool {
        self.containers.iter().any(|container| container.runs(program))
    }

    /// The account of headgate's agents, controllers or pods that delay Karpenter.
    pub(super) fn account(&self) -> Option<Account> {
        let words = || self.containers.iter().flat_map(|container| &container.command);
        let role = if self.is_component("controller") {
            Some(Role::Controller)
        } else if self.is_component("hold") {
            None
        } else if !self.is_component("agent") {
            return None;
        } else if words().any(|word| word == "--role=agent") {
            Some(Role::Agent)
        } else {
            Some(Role::All)
        };
        Some(Account {
            namespace: self.namespace.clone(),
            name: self.service_account.clone(),
            role,
            has_azure: words().any(|word| word.starts_with("--azure-config-")),
        })
    }
}

impl From<Deployment> for Workload {
    fn from(object: Deployment) -> Self {
        let (spec, status) = (object.spec.unwrap_or_default(), object.status.unwrap_or_default());
        let pods = PodCounts {
            desired: spec.replicas.unwrap_or(1),
            updated: status.updated_replicas.unwrap_or_default(),
            ready: status.ready_replicas.unwrap_or_default(),
        };
        Self::new("deployment", object.metadata, spec.template, pods)
    }
}

impl From<DaemonSet> for Workload {
    fn from(object: DaemonSet) -> Self {
        let (spec, status) = (object.spec.unwrap_or_default(), object.status.unwrap_or_default());
        let pods = PodCounts {
            desired: status.desired_number_scheduled,
            updated: status.updated_number_scheduled.unwrap_or_default(),
            ready: status.number_ready,
        };
        Self::new("daemonset", object.metadata, spec.template, pods)
    }
}

impl From<StatefulSet> for Workload {
    fn from(object: StatefulSet) -> Self {
        let (spec, status) = (object.spec.unwrap_or_default(), object.status.unwrap_or_default());
        let pods = PodCounts {
            desired: spec.replicas.unwrap_or(1),
            updated: status.updated_replicas.unwrap_or_default(),
            ready: status.ready_replicas.unwrap_or_default(),
        };
        Self::new("statefulset", object.metadata, spec.template, pods)
    }
}

impl ContainerSpec {
    fn new(container: Container) -> Self {
        let ports = container.ports.unwrap_or_default();
        let port = |port: IntOrString| match port {
            IntOrString::Int(port) => port,
            IntOrString::String(name) => {
                let named = ports.iter().find(|port| port.name.as_deref() == Some(&name));
                named.map_or_else(|| name.parse().unwrap_or_default(), |port| port.container_port)
            }
        };
        let http = |kind, probe: Option<Probe>| {
            let get = probe?.http_get?;
            Some(HttpProbe {
                kind,
                host: get.host.unwrap_or_default(),
                port: port(get.port).try_into().unwrap_or_default(),
                path: get.path.unwrap_or_default(),
            })
        };
        let probes = [
            http("livenessProbe", container.liveness_probe),
            http("readinessProbe", container.readiness_probe),
            http("startupProbe", container.startup_probe),
        ];
        Self {
            image: container.image.unwrap_or_default(),
            command: [container.command, container.args]
                .into_iter()
                .flatten()
                .flatten()
                .collect(),
            probes: probes.into_iter().flatten().collect(),
        }
    }

    fn runs(&self, program: &str) -> bool {
        let command = self.command.first().map_or("", |word| last_part(word));
        command == program || last_part(self.image_name()) == program
    }

    /// The image without tag and digest.
    pub(super) fn image_name(&self) -> &str {
        let image = self.image.split('@').next().unwrap_or_default();
        match image.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => name,
            _ => image,
        }
    }

    /// The tag of the image; empty without one.
    pub(super) fn tag(&self) -> &str {
        let image = self.image.split('@').next().unwrap_or_default();
        image.get(self.image_name().len() + 1..).unwrap_or_default()
    }

    /// The value of a flag, in the forms `--flag=VALUE` and `--flag VALUE`.
    pub(super) fn flag(&self, flag: &str) -> Option<&str> {
        let mut words = self
            .command
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, word)| word.starts_with('-'));
        words.find_map(|(index, word)| match word.split_once('=') {
            Some((name, value)) => (name.trim_start_matches('-') == flag).then_some(value),
            None if word.trim_start_matches('-') == flag => self.command.get(index + 1).map(String::as_str),
            None => None,
        })
    }
}

fn last_part(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

pub(super) fn check_installation(world: &World) -> Found {
    let workloads = world.workloads.as_ref().map_err(|error| {
        Finding::warning(
            format!("Deployments, DaemonSets and StatefulSets are not known: {error}"),
            "run `headgate check` as a user who may list deployments, daemonsets and statefulsets in all namespaces",
        )
    })?;
    let ours: Vec<_> = workloads.iter().filter(|workload| workload.is_headgate()).collect();
    if ours.is_empty() {
        return Ok(vec![Finding::ok(
            "no DaemonSet and no Deployment is headgate's: it is not installed yet",
        )]);
    }
    let mut findings = Vec::new();
    for workload in &ours {
        let PodCounts {
            desired,
            updated,
            ready,
        } = workload.pods;
        if ready < desired || updated < desired {
            let what = format!("of {desired} pods {ready} are ready and {updated} run the present version");
            let name = format!("{}/{}", workload.kind, workload.name);
            let do_ = format!(
                "wait for it, or look why: kubectl -n {} rollout status {name}; kubectl -n {0} describe {name}",
                workload.namespace
            );
            findings.push(Finding::failure(what, do_).about(workload.object()));
        }
        let evictable = workload
            .annotations
            .get(EVICTION_ANNOTATION)
            .is_none_or(|value| value != "false");
        if workload.is_component("agent") && evictable {
            let what = "Cluster Autoscaler may evict the agent from a node that it removes, so that probes are refused and not answered";
            let do_ = format!("annotate its pods with {EVICTION_ANNOTATION}: \"false\"");
            findings.push(Finding::warning(what, do_).about(workload.object()));
        }
    }
    let names: Vec<_> = ours.iter().map(|workload| workload.object()).collect();
    Finding::or_ok(findings, format!("all pods are ready: {}", names.join(", ")))
}

pub(super) fn check_versions(world: &World) -> Found {
    let Ok(workloads) = &world.workloads else {
        return Ok(Vec::new());
    };
    let mut images: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for workload in workloads.iter().filter(|workload| workload.is_headgate()) {
        for container in &workload.containers {
            images.entry(&container.image).or_default().insert(workload.object());
        }
    }
    let mut all = images.keys();
    match (all.next(), all.next()) {
        (None, _) => Ok(Vec::new()),
        (Some(image), None) => Ok(vec![Finding::ok(format!("every part runs {image}"))]),
        _ => {
            let parts = images
                .iter()
                .map(|(image, objects)| format!("{} has {image}", first_names(objects, 3)));
            let what = format!("the parts of headgate differ in their image: {}", first_names(parts, 5));
            Err(Finding::warning(what, "give all of them the same version"))
        }
    }
}
