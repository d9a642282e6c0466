//! Memory with per-Service health: 2,000 Services of type `LoadBalancer` with the policy `Local`, each with one
//! EndpointSlice. No budget is set for it. kube-proxy keeps the same Services and opens their ports; it has to go
//! before an agent can open them in its place.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context as _;
use futures::{TryStreamExt as _, stream};
use headgate::sandbox::process::Process;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Map, Value, json};

use super::memory::{memory, raw};
use crate::cpu;
use crate::figures::{mebibytes, rounded};
use crate::memory::Memory;
use crate::report::{Beside, Budget, Check, Row};
use crate::world::{Server, World, get, image_binary};

const SERVICES: usize = 2000;
/// Endpoints of each Service: the first on this node, every other on a node of its own.
const ENDPOINTS: usize = 10;
/// Slices whose local endpoint turns not ready, so that counts change.
const CHANGES: usize = 1000;
/// Requests to the API server at once.
const AT_ONCE: usize = 16;
/// How long it may take until all Services are answered for: kube-proxy writes its rules first.
const KNOWN: Duration = Duration::from_mins(3);
/// Time for the last change to be dealt with.
const SETTLING: Duration = Duration::from_secs(5);
/// How long an agent is left alone, to see what it costs then.
const IDLE: Duration = Duration::from_secs(10);
/// How long it may take to stop.
const STOPPING: Duration = Duration::from_secs(20);

/// What was measured of one mode.
struct Measured {
    mode: &'static str,
    listed: Memory,
    changed: Memory,
    idle_cpu_percent: f64,
}

impl Measured {
    /// The largest of both times.
    fn largest(&self, field: impl Fn(&Memory) -> u64) -> f64 {
        mebibytes(field(&self.listed).max(field(&self.changed)))
    }

    fn raw(&self) -> Value {
        json!({
            "afterList": raw(self.listed),
            "afterChanges": raw(self.changed),
            "idleCpuPercent": rounded(self.idle_cpu_percent),
        })
    }
}

pub(super) async fn measure(world: &mut World) -> anyhow::Result<Row> {
    let without = memory(world.kube_proxy)?;
    let objects = Objects::new(world);
    let port = objects.create().await?;
    answers(port, "/")
        .await
        .context("kube-proxy on the last Service's port")?;
    let off = mode(world, &objects, "off", None).await?;
    let at_path = "/healthz/services/default/web-1999";
    let path = mode(world, &objects, "path", Some((None, at_path))).await?;
    let kube_proxy = memory(world.kube_proxy)?;
    world.stop_kube_proxy().await;
    let node_ports = mode(world, &objects, "nodePorts", Some((Some(port), "/"))).await?;

    let peer = mebibytes(kube_proxy.resident);
    let mut checks = Vec::new();
    for (measured, figures) in [
        (&path, ["path: resident", "path: anonymous"]),
        (&node_ports, ["nodePorts: resident", "nodePorts: anonymous"]),
        (&off, ["off: resident", "off: anonymous"]),
    ] {
        let resident = measured.largest(|memory| memory.resident);
        let beside = Beside::one("kube-proxy", resident, peer);
        checks.push(Check::new(figures[0], resident, "MiB", Some(beside), Budget::None));
        let anonymous = measured.largest(|memory| memory.anonymous);
        checks.push(Check::new(figures[1], anonymous, "MiB", None, Budget::None));
    }
    let modes: Map<String, Value> = [&off, &path, &node_ports]
        .map(|measured| (measured.mode.to_owned(), measured.raw()))
        .into_iter()
        .collect();
    Ok(Row {
        checks,
        raw: json!({
            "isImageBinary": image_binary().is_file(),
            "services": SERVICES,
            "endpointsOfEach": ENDPOINTS,
            "changes": CHANGES,
            "headgate": modes,
            "kubeProxy": {"withoutServices": raw(without), "withServices": raw(kube_proxy)},
        }),
    })
}

/// One mode, in an agent of its own. `last` is where it answers for the last Service.
async fn mode(
    world: &World,
    objects: &Objects,
    mode: &'static str,
    last: Option<(Option<SocketAddr>, &str)>,
) -> anyhow::Result<Measured> {
    let (process, agent): (Process, Server) = world.start_with(mode, &format!("serviceHealth: {mode}\n")).await?;
    if let Some((port, path)) = last {
        let known = answers(port.unwrap_or(agent.healthz), path).await;
        known.with_context(|| format!("the agent with serviceHealth: {mode}"))?;
    }
    tokio::time::sleep(SETTLING).await;
    let listed = memory(agent)?;
    let stat = agent.process.to_string();
    let used = cpu::used(&stat)?;
    tokio::time::sleep(IDLE).await;
    let idle_cpu_percent = 100.0 * (cpu::used(&stat)? - used) / IDLE.as_secs_f64();
    for ready in [false, true] {
        objects.change(ready).await?;
    }
    tokio::time::sleep(SETTLING).await;
    let changed = memory(agent)?;
    process.stop(STOPPING).await;
    Ok(Measured {
        mode,
        listed,
        changed,
        idle_cpu_percent,
    })
}

/// Waits until a Service is answered for with 200.
async fn answers(server: SocketAddr, path: &str) -> anyhow::Result<()> {
    let mut last = String::new();
    let asked = async {
        loop {
            last = get(server, path).await.unwrap_or_else(|error| error.to_string());
            if last.starts_with("HTTP/1.1 200") || last.starts_with("HTTP/1.0 200") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let known = tokio::time::timeout(KNOWN, asked).await;
    known.with_context(|| format!("{server} does not answer {path} with 200: {last}"))
}

/// The Services and their slices.
struct Objects {
    services: Api<Service>,
    slices: Api<EndpointSlice>,
    node: String,
}

impl Objects {
    fn new(world: &World) -> Self {
        Self {
            services: Api::default_namespaced(world.client()),
            slices: Api::default_namespaced(world.client()),
            node: world.node().to_owned(),
        }
    }

    /// Creates all; gives the last Service's own port.
    async fn create(&self) -> anyhow::Result<SocketAddr> {
        let numbers = stream::iter((0..SERVICES).map(anyhow::Ok));
        numbers
            .try_for_each_concurrent(AT_ONCE, async |number| {
                let slice = serde_json::from_value(self.slice(number, true))?;
                self.slices.create(&PostParams::default(), &slice).await?;
                let service = json!({"metadata": {"name": format!("web-{number}")}, "spec": {"type": "LoadBalancer",
                    "externalTrafficPolicy": "Local", "allocateLoadBalancerNodePorts": false, "ports": [{"port": 80}]}});
                let service = serde_json::from_value(service)?;
                self.services.create(&PostParams::default(), &service).await?;
                Ok(())
            })
            .await
            .context("creating Services")?;
        let last = self.services.get(&format!("web-{}", SERVICES - 1)).await?;
        let port = last.spec.and_then(|spec| spec.health_check_node_port);
        let port = port
            .and_then(|port| u16::try_from(port).ok())
            .context("a healthCheckNodePort")?;
        Ok((Ipv4Addr::LOCALHOST, port).into())
    }

    /// The local endpoints of some Services turn ready or not.
    async fn change(&self, ready: bool) -> anyhow::Result<()> {
        let numbers = stream::iter((0..CHANGES / 2).map(anyhow::Ok));
        numbers
            .try_for_each_concurrent(AT_ONCE, async |number| {
                let endpoints = json!({"endpoints": self.slice(number, ready)["endpoints"]});
                let name = format!("web-{number}-1");
                self.slices
                    .patch(&name, &PatchParams::default(), &Patch::Merge(endpoints))
                    .await?;
                Ok(())
            })
            .await
            .context("changing EndpointSlices")
    }

    fn slice(&self, number: usize, ready: bool) -> Value {
        let endpoint = |place: usize| {
            let node = if place == 0 {
                self.node.clone()
            } else {
                format!("node-{place}")
            };
            json!({"addresses": [format!("10.{}.{}.{}", 64 + number / 250, number % 250, place + 1)], "nodeName": node,
                "conditions": {"ready": ready || place > 0, "serving": ready || place > 0, "terminating": false},
                "targetRef": {"kind": "Pod", "namespace": "default", "name": format!("web-{number}-5f6d8b7c9-{place}"),
                    "uid": "0b0b0b0b-0b0b-0b0b-0b0b-0b0b0b0b0b0b"}})
        };
        let endpoints: Vec<Value> = (0..ENDPOINTS).map(endpoint).collect();
        json!({"metadata": {"name": format!("web-{number}-1"), "labels": {"kubernetes.io/service-name": format!("web-{number}")}},
            "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "", "port": 80, "protocol": "TCP"}]})
    }
}
