//! headgate's controllers beside Azure's real cloud-controller-manager: both write the same pools, one after the other under the
//! Lease `aks-managed-resource-locker`. `make cloud-controller-manager` runs the story, `make measure-holds` the
//! measurement in `holds`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use headgate_sandbox::process::{Process, last_log_lines};
use headgate_test_kubernetes::{eventually, own_cluster, own_control_plane_with, scratch, set_taints};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::real_cloud_controller_manager::{CLUSTER, Fixture, SUBSCRIPTION};
use crate::harness::{objects, settings_file};

mod chaos;
mod holds;

const LOCK: &str = "aks-managed-resource-locker";
const TAINT: &str = "headgate.dev/maintenance";
/// The node with the signal.
const DRAINED: &str = "node-1";
const ROUNDS: usize = 20;
/// The round in which the leader is killed.
const KILL_ROUND: usize = 10;
/// Between two looks at the pools.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
/// For how long the node may be in a pool without `Down` while cloud-controller-manager does not hold the Lease.
const MAX_EXPOSURE: Duration = Duration::from_secs(1);
/// From the death of a leader until another one has set what is missing: 22 s, and its first list and write.
const SUCCESSION_TIMEOUT: Duration = Duration::from_secs(30);
/// For everything that follows a change, on a busy machine.
const SETTLE_TIMEOUT: Duration = Duration::from_mins(3);

/// A headgate controller as a child process.
struct Controller {
    process: Process,
    node: String,
}

impl Controller {
    fn start(fixture: &Fixture, kubeconfig: &Path, node: &str) -> Self {
        let several = json!([{"name": CLUSTER, "primaryVMSet": "agents"}]);
        Self::start_with(fixture, kubeconfig, node, &several, &[])
    }

    /// The same with these `multipleStandardLoadBalancerConfigurations` and variables of the environment.
    fn start_with(
        fixture: &Fixture,
        kubeconfig: &Path,
        node: &str,
        several: &Value,
        environment: &[(&str, OsString)],
    ) -> Self {
        let directory = scratch("controller");
        let settings = directory.join("settings.yaml");
        let text = settings_file(&format!("azure: {{clusterName: {CLUSTER}}}\n"));
        std::fs::write(&settings, text).unwrap();
        // cloud-controller-manager's, but for the identity, which is in the seed.
        let azure = json!({
            "resourceManagerEndpoint": format!("http://{}", fixture.emulator.arm), "tenantId": "7e4a0000-0000-4000-8000-000000000001",
            "aadClientId": "c11e0000-0000-4000-8000-000000000002", "aadClientSecret": "a secret",
            "subscriptionId": SUBSCRIPTION.rsplit('/').next(), "resourceGroup": "cluster", "location": "eastus",
            "loadBalancerSku": "standard", "loadBalancerBackendPoolConfigurationType": "nodeIP",
            "multipleStandardLoadBalancerConfigurations": several, "userAgent": format!("headgate/test ({node})"),
        });
        let azure_file = directory.join("azure.json");
        std::fs::write(&azure_file, azure.to_string()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
        command.current_dir(&directory).env_remove("KUBECONFIG");
        command.envs(environment.iter().cloned());
        command.args(["agent", "--role=controller", "--node-name", node]);
        command.args(["--metrics-bind-address", "127.0.0.1:0"]);
        for (flag, file) in [
            ("--kubeconfig", kubeconfig.to_owned()),
            ("--config", settings),
            ("--azure-config-file", azure_file),
        ] {
            command.arg(flag).arg(file);
        }
        let process = Process::start("headgate", command, &directory.join("log")).unwrap();
        Self {
            process,
            node: node.to_owned(),
        }
    }

    fn log(&self) -> String {
        last_log_lines(self.process.log())
    }
}

/// Who held the shared Lease, and from when to when.
#[derive(Clone, Debug)]
struct Hold {
    holder: String,
    began: Instant,
    ended: Option<Instant>,
}

/// The holds of the shared Lease, as a watch shows them.
struct Holds {
    holds: Arc<Mutex<Vec<Hold>>>,
    _task: AbortOnDropHandle<()>,
}

impl Holds {
    fn watch(client: Client) -> Self {
        let holds = Arc::<Mutex<Vec<Hold>>>::default();
        let shared = Arc::clone(&holds);
        let task = tokio::spawn(async move {
            let leases = Api::<Lease>::namespaced(client, "kube-system");
            let config = watcher::Config::default().fields(&format!("metadata.name={LOCK}"));
            let mut events = watcher(leases, config).applied_objects().boxed();
            while let Some(event) = events.next().await {
                let Ok(lease) = event else { continue };
                let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
                let (now, mut holds) = (Instant::now(), shared.lock().unwrap());
                if let Some(hold) = holds.last_mut().filter(|hold| hold.ended.is_none()) {
                    if hold.holder == holder {
                        continue;
                    }
                    hold.ended = Some(now);
                }
                if !holder.is_empty() {
                    holds.push(Hold {
                        holder,
                        began: now,
                        ended: None,
                    });
                }
            }
        });
        Self {
            holds,
            _task: AbortOnDropHandle::new(task),
        }
    }

    fn all(&self) -> Vec<Hold> {
        self.holds.lock().unwrap().clone()
    }

    /// The durations of the holds of headgate, or of the others, that ended since `began`; in order of length.
    fn durations(&self, is_headgate: bool, began: Instant) -> Vec<Duration> {
        let holds = self.all().into_iter();
        let of_holder = holds.filter(|hold| hold.began >= began && (hold.holder == "headgate") == is_headgate);
        let mut durations: Vec<_> = of_holder
            .filter_map(|hold| Some(hold.ended?.duration_since(hold.began)))
            .collect();
        durations.sort();
        durations
    }

    fn is_held_by_others(&self) -> bool {
        let holds = self.holds.lock().unwrap();
        holds
            .last()
            .is_some_and(|hold| hold.ended.is_none() && hold.holder != "headgate")
    }
}

/// The pools and their members, with `Down` or not.
type Pools = BTreeMap<String, BTreeMap<String, bool>>;

/// Whether the drained node is `Down`, or not, in the cluster's own pool, and in every other pool that has it.
fn is_everywhere(pools: &Pools, is_down: bool) -> bool {
    let in_pool = |members: &BTreeMap<String, bool>| members.get(DRAINED).copied();
    pools.get(CLUSTER).and_then(in_pool) == Some(is_down)
        && pools.values().filter_map(in_pool).all(|found| found == is_down)
}

fn pools_of(load_balancers: &[Value]) -> Pools {
    let mut found = Pools::new();
    for load_balancer in load_balancers {
        let pools = load_balancer["properties"]["backendAddressPools"].as_array();
        for pool in pools.into_iter().flatten() {
            let members = pool["properties"]["loadBalancerBackendAddresses"].as_array();
            let member = |address: &Value| {
                let name = address["name"].as_str().unwrap_or_default().to_owned();
                (name, address["properties"]["adminState"] == "Down")
            };
            let members = members.into_iter().flatten().map(member).collect();
            found.insert(pool["name"].as_str().unwrap_or_default().to_owned(), members);
        }
    }
    found
}

/// A cluster with cloud-controller-manager and Services.
struct Cluster {
    fixture: Fixture,
    client: Client,
    kubeconfig: PathBuf,
    /// The ports of the Service `web`.
    ports: BTreeSet<u16>,
}

impl Cluster {
    async fn start(client: Client, kubeconfig: &Path, operation_delay: &str) -> Self {
        let fixture = Fixture::start_with_delay(client.clone(), kubeconfig, operation_delay).await;
        Self {
            fixture,
            client,
            kubeconfig: kubeconfig.to_owned(),
            ports: BTreeSet::from([80]),
        }
    }

    async fn create_service(&self, name: &str, policy: &str, nodes: &[&str]) {
        let service = json!({"metadata": {"name": name}, "spec": {
            "type": "LoadBalancer", "externalTrafficPolicy": policy, "ipFamilies": ["IPv4"], "ports": [{"name": "p80", "port": 80}]}});
        let services = Api::<Service>::namespaced(self.client.clone(), "default");
        objects::create(&services, service).await;
        let endpoint = |(number, node)| json!({"addresses": [format!("10.244.0.{}", number + 1)], "nodeName": node});
        let endpoints: Vec<Value> = nodes.iter().enumerate().map(endpoint).collect();
        let slice = json!({"metadata": {"name": format!("{name}-1"), "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "", "port": 80}]});
        let slices = Api::<EndpointSlice>::namespaced(self.client.clone(), "default");
        objects::create(&slices, slice).await;
    }

    async fn delete_service(&self, name: &str) {
        let services = Api::<Service>::namespaced(self.client.clone(), "default");
        services.delete(name, &DeleteParams::default()).await.unwrap();
        let slices = Api::<EndpointSlice>::namespaced(self.client.clone(), "default");
        let slice = format!("{name}-1");
        slices.delete(&slice, &DeleteParams::default()).await.unwrap();
    }

    /// Adds or removes a port of the Service `web`; cloud-controller-manager reconciles the Service then.
    async fn change_ports(&mut self) {
        if !self.ports.remove(&443) {
            self.ports.insert(443);
        }
        let port = |port: &u16| json!({"name": format!("p{port}"), "port": port});
        let ports: Vec<Value> = self.ports.iter().map(port).collect();
        let services = Api::<Service>::namespaced(self.client.clone(), "default");
        objects::merge(&services, "web", json!({"spec": {"ports": ports}})).await;
    }

    async fn set_taint(&self, is_set: bool) {
        let taints = if is_set {
            json!([{"key": TAINT, "effect": "NoSchedule"}])
        } else {
            json!([])
        };
        set_taints(&self.client, DRAINED, taints).await;
    }

    async fn pools(&self) -> Pools {
        pools_of(&self.fixture.resources("loadBalancers").await)
    }

    async fn wait_for_pools(&self, what: &str, is_expected: impl Fn(&Pools) -> bool) {
        eventually(SETTLE_TIMEOUT, what, async || {
            let pools = self.pools().await;
            if is_expected(&pools) {
                return Ok(());
            }
            let log = last_log_lines(self.fixture.manager.log());
            Err(format!("{pools:?}; the log of cloud-controller-manager:\n{log}"))
        })
        .await;
    }

    /// The ports of the Service `web` that the load balancer has.
    async fn written_ports(&self) -> BTreeSet<u16> {
        let load_balancers = self.fixture.resources("loadBalancers").await;
        let rules = load_balancers.iter().flat_map(|found| {
            found["properties"]["loadBalancingRules"]
                .as_array()
                .into_iter()
                .flatten()
        });
        let ports = rules.filter_map(|rule| u16::try_from(rule["properties"]["frontendPort"].as_u64()?).ok());
        ports.collect()
    }

    async fn leader(&self) -> String {
        let leases = Api::<Lease>::namespaced(self.client.clone(), "kube-system");
        let found = leases.get_opt("headgate-leader").await.unwrap();
        let holder = found.and_then(|lease| lease.spec?.holder_identity);
        holder.unwrap_or_default()
    }

    async fn until_led(&self, controllers: &[Controller]) {
        eventually(SETTLE_TIMEOUT, "a leader", async || {
            let leader = self.leader().await;
            let is_alive = controllers
                .iter()
                .any(|one| leader.starts_with(&format!("{}_", one.node)));
            is_alive.then_some(()).ok_or(leader)
        })
        .await;
    }

    /// How many times cloud-controller-manager found the Lease held by headgate, and how many reconciles failed because of that.
    fn lock_failures(&self) -> (usize, usize) {
        let log = std::fs::read_to_string(self.fixture.manager.log()).unwrap();
        let count = |is_counted: fn(&str) -> bool| log.lines().filter(|line| is_counted(line)).count();
        (
            count(|line| line.contains("failed to acquire lease") && line.contains("has not expired yet")),
            count(|line| line.contains("error processing service") && line.contains("fail to lock azure resources")),
        )
    }

    async fn delete_everything(&self, services: &[&str]) {
        for name in services {
            self.delete_service(name).await;
        }
        let api = Api::<Service>::namespaced(self.client.clone(), "default");
        eventually(SETTLE_TIMEOUT, "everything is gone", async || {
            for kind in ["loadBalancers", "publicIPAddresses"] {
                let left = self.fixture.resources(kind).await;
                if !left.is_empty() {
                    let log = last_log_lines(self.fixture.manager.log());
                    return Err(format!("{left:?}; the log of cloud-controller-manager:\n{log}"));
                }
            }
            for name in services {
                if let Some(found) = api.get_opt(name).await.map_err(|error| error.to_string())? {
                    return Err(format!("{found:?}"));
                }
            }
            Ok(())
        })
        .await;
    }
}

/// For how long the drained node was in a pool without `Down` while cloud-controller-manager did not hold the Lease.
#[derive(Debug, Default)]
struct Exposure {
    /// When it began at the earliest, for each pool: at the sample before the first that shows it.
    since: BTreeMap<String, Instant>,
    longest: Duration,
    /// Longer than a second, with the pool.
    violations: Vec<(String, Duration)>,
    /// No leader is expected to write until then.
    excused_until: Option<Instant>,
    samples: usize,
    sampled_at: Option<Instant>,
    other_downs: BTreeSet<String>,
}

impl Exposure {
    fn sample(&mut self, pools: &Pools, is_held_by_others: bool) {
        let now = Instant::now();
        let sampled_at = self.sampled_at.replace(now).unwrap_or(now);
        self.samples += 1;
        let is_excused = is_held_by_others || self.excused_until.is_some_and(|until| now < until);
        for (pool, members) in pools {
            for (member, is_down) in members {
                if *is_down && member != DRAINED {
                    self.other_downs.insert(format!("{pool}/{member}"));
                }
            }
            if is_excused || members.get(DRAINED) != Some(&false) {
                self.since.remove(pool);
                continue;
            }
            let since = *self.since.entry(pool.clone()).or_insert(sampled_at);
            let exposed = now.duration_since(since);
            self.longest = self.longest.max(exposed);
            if exposed > MAX_EXPOSURE {
                self.violations.push((pool.clone(), exposed));
            }
        }
        self.since.retain(|pool, _| pools.contains_key(pool));
    }
}

/// Looks at the pools for so long.
async fn watch_exposure(cluster: &Cluster, holds: &Holds, exposure: &mut Exposure, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        // A hold that begins between the two looks excuses nothing, one that ends there excuses one sample.
        let was_held = holds.is_held_by_others();
        let pools = cluster.pools().await;
        exposure.sample(&pools, was_held || holds.is_held_by_others());
        sleep(SAMPLE_INTERVAL).await;
    }
}

#[tokio::test]
async fn controllers_keep_a_drained_node_down_while_services_and_nodes_change() {
    let (control_plane, client) = own_cluster().await;
    let mut cluster = Cluster::start(client.clone(), control_plane.kubeconfig(), "30ms").await;
    for number in 1..=3 {
        cluster.fixture.add_node(number).await;
    }
    cluster.create_service("web", "Cluster", &["node-1", "node-2"]).await;
    cluster
        .wait_for_pools("all nodes", |pools| {
            pools.get(CLUSTER).is_some_and(|pool| pool.len() == 3)
        })
        .await;
    let holds = Holds::watch(client.clone());
    let kubeconfig = cluster.kubeconfig.clone();
    let mut controllers: Vec<_> = ["node-2", "node-3"]
        .iter()
        .map(|node| Controller::start(&cluster.fixture, &kubeconfig, node))
        .collect();
    cluster.until_led(&controllers).await;
    cluster.set_taint(true).await;
    let is_down = |pools: &Pools| is_everywhere(pools, true);
    cluster.wait_for_pools("the node is Down", is_down).await;

    let (began, mut exposure) = (Instant::now(), Exposure::default());
    let mut services = vec!["web".to_owned()];
    for round in 0..ROUNDS {
        if round == KILL_ROUND {
            let leader = cluster.leader().await;
            let position = controllers
                .iter()
                .position(|one| leader.starts_with(&format!("{}_", one.node)));
            let killed = controllers.remove(position.expect("one of them leads"));
            killed.process.signal(Signal::SIGKILL);
            exposure.excused_until = Some(Instant::now() + SUCCESSION_TIMEOUT);
        }
        match round % 4 {
            0 => {
                // A pool of its own, in which cloud-controller-manager puts the node without an admin state.
                let name = format!("local-{round}");
                cluster.create_service(&name, "Local", &[DRAINED, "node-2"]).await;
                services.push(name);
            }
            1 => cluster.change_ports().await,
            2 => cluster.fixture.add_node(u8::try_from(4 + round / 4).unwrap()).await,
            _ => {
                let name = services.pop().filter(|name| name != "web").expect("a Local Service");
                cluster.delete_service(&name).await;
            }
        }
        let time = if round == KILL_ROUND {
            SUCCESSION_TIMEOUT + Duration::from_secs(2)
        } else {
            Duration::from_secs(4)
        };
        watch_exposure(&cluster, &holds, &mut exposure, time).await;
    }
    watch_exposure(&cluster, &holds, &mut exposure, Duration::from_secs(15)).await;
    cluster.wait_for_pools("the node is Down in the end", is_down).await;
    let (lock_failures, failed_reconciles) = cluster.lock_failures();
    let (ours, others) = (holds.durations(true, began), holds.durations(false, began));
    println!(
        "{ROUNDS} rounds in {:?}: exposed for {:?} at most ({} samples); {} holds of headgate, the longest {:?}; {} holds of \
         cloud-controller-manager, which found the Lease held {lock_failures} times; {failed_reconciles} reconciles failed because of that",
        began.elapsed(),
        exposure.longest,
        exposure.samples,
        ours.len(),
        ours.last(),
        others.len(),
    );
    let log = controllers[0].log();
    assert!(
        ours.len() >= ROUNDS / 4,
        "the node enters a new pool in every fourth round; its log:\n{log}"
    );
    assert_eq!(exposure.violations, [], "its log:\n{log}");
    assert_eq!(exposure.other_downs, BTreeSet::new(), "its log:\n{log}");

    cluster.set_taint(false).await;
    let is_given_back = |pools: &Pools| {
        is_everywhere(pools, false) && pools.values().all(|members| members.values().all(|is_down| !is_down))
    };
    cluster.wait_for_pools("everything is given back", is_given_back).await;
    let left: Vec<_> = services.iter().map(String::as_str).collect();
    cluster.delete_everything(&left).await;
    drop(controllers);
    cluster.fixture.emulator.stop().await;
    control_plane.stop().await;
}
