//! Memory with health answers for Services: 2,000 Services of type `LoadBalancer` and policy `Local`, each with one
//! EndpointSlice. There is no budget. kube-proxy keeps the same Services and opens their ports; it has to stop
//! before an agent can open them in its place.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context as _;
use futures::{TryStreamExt as _, stream};
use headgate_sandbox::process::Process;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};

use super::memory::memory;
use crate::measuring::cpu_time;
use crate::measuring::figures::{mebibytes, rounded};
use crate::measuring::memory::Memory;
use crate::measuring::report::{Budget, Check, PeerComparison, Row};
use crate::measuring::services::{self, AT_ONCE, ENDPOINTS, SERVICES, slice};
use crate::world::{Server, World, get, image_binary};

/// Slices whose local endpoint turns not ready, so that counts change.
const CHANGES: usize = 1000;
/// Time within which all Services must be served; kube-proxy writes its rules first.
const KNOWN: Duration = Duration::from_mins(3);
/// Time for the last change to take effect.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which an idle agent is measured.
const IDLE: Duration = Duration::from_secs(10);
/// Time within which it must stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// The figures of one mode.
struct Measured {
    mode: &'static str,
    listed: Memory,
    changed: Memory,
    idle_cpu_percent: f64,
}

impl Measured {
    /// The larger memory of the two measurements.
    fn largest(&self, field: impl Fn(&Memory) -> u64) -> f64 {
        mebibytes(field(&self.listed).max(field(&self.changed)))
    }

    fn raw(&self) -> Value {
        json!({
            "afterList": self.listed.raw(),
            "afterChanges": self.changed.raw(),
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
    let off = mode(world, &objects, "Disabled", None).await?;
    let at_path = "/healthz/services/default/web-1999";
    let path = mode(world, &objects, "Path", Some((None, at_path))).await?;
    let kube_proxy = memory(world.kube_proxy)?;
    world.stop_kube_proxy().await;
    let node_ports = mode(world, &objects, "NodePorts", Some((Some(port), "/"))).await?;

    let peer = mebibytes(kube_proxy.resident);
    let mut checks = Vec::new();
    for (measured, figures) in [
        (&path, ["path: resident", "path: anonymous"]),
        (&node_ports, ["nodePorts: resident", "nodePorts: anonymous"]),
        (&off, ["off: resident", "off: anonymous"]),
    ] {
        let resident = measured.largest(|memory| memory.resident);
        let beside = PeerComparison::one("kube-proxy", resident, peer);
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
            "kubeProxy": {"withoutServices": without.raw(), "withServices": kube_proxy.raw()},
        }),
    })
}

/// Measures one mode in a new agent. `last` is the address of its answers about the last Service.
async fn mode(
    world: &World,
    objects: &Objects,
    mode: &'static str,
    last: Option<(Option<SocketAddr>, &str)>,
) -> anyhow::Result<Measured> {
    let (process, agent): (Process, Server) = world
        .start_with(mode, &format!("serviceHealthChecks: {mode}\n"))
        .await?;
    if let Some((port, path)) = last {
        let known = answers(port.unwrap_or(agent.healthz), path).await;
        known.with_context(|| format!("the agent with serviceHealthChecks: {mode}"))?;
    }
    tokio::time::sleep(SETTLE_TIMEOUT).await;
    let listed = memory(agent)?;
    let used = cpu_time::process(agent.process)?;
    tokio::time::sleep(IDLE).await;
    let used = cpu_time::process(agent.process)?.saturating_sub(used);
    let idle_cpu_percent = 100.0 * used.div_duration_f64(IDLE);
    for ready in [false, true] {
        objects.change(ready).await?;
    }
    tokio::time::sleep(SETTLE_TIMEOUT).await;
    let changed = memory(agent)?;
    process.stop(STOP_TIMEOUT).await;
    Ok(Measured {
        mode,
        listed,
        changed,
        idle_cpu_percent,
    })
}

/// Waits until the answer about a Service is 200.
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

    /// Creates all objects; returns the last Service's node port.
    async fn create(&self) -> anyhow::Result<SocketAddr> {
        let client = self.services.clone().into_client();
        services::create(&client, |place| self.node(place)).await?;
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
                let endpoints = json!({"endpoints": slice(number, |place| self.node(place), ready)["endpoints"]});
                let name = format!("web-{number}-1");
                self.slices
                    .patch(&name, &PatchParams::default(), &Patch::Merge(endpoints))
                    .await?;
                Ok(())
            })
            .await
            .context("changing EndpointSlices")
    }

    /// The node of the endpoint with this index.
    fn node(&self, place: usize) -> String {
        if place == 0 {
            self.node.clone()
        } else {
            format!("node-{place}")
        }
    }
}
