//! Carries the disturbances out.

use headgate_sandbox::control_plane::{ControlPlane, EtcdSnapshot};
use jiff::Timestamp;
use tokio::time::timeout;

use super::super::*;
use super::machine_clock::MachineClock;
use super::observer::Shared;
use super::{NODES, SIGNALS, UNDECODABLE, faults, node_name};
use crate::chaos::connections::PoolWrite;
use crate::chaos::history::{Event, What, pools_of};
use crate::chaos::report::Report;
use crate::chaos::rules::{LocalService, downs_of};
use crate::chaos::schedule::Action;

/// Limit of one request to kube-apiserver.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// So many Nodes stay when others are deleted for a while.
const MIN_NODES: usize = 4;

pub(super) struct Chaos {
    pub(super) cluster: Cluster,
    pub(super) control_plane: ControlPlane,
    pub(super) controllers: Vec<Controller>,
    /// Of the controllers' machines, in their order.
    clocks: Vec<MachineClock>,
    pub(super) shared: Arc<Shared>,
    pub(super) report: Report,
    /// The logs of all controllers, also of those that were killed.
    pub(super) logs: Vec<PathBuf>,
    pub(super) signalled: BTreeSet<String>,
    /// Processes that stand still: since when, and until when.
    frozen: Vec<(usize, Timestamp, Instant)>,
    apiserver_frozen_until: Option<Instant>,
    /// The numbers in the addresses of the Nodes that exist.
    addresses: BTreeMap<String, u8>,
    /// Nodes that are deleted, when they come back, and with which number.
    returning: Vec<(Instant, String, u8)>,
    last_number: u8,
    created_services: usize,
    /// A request failed that may have had an effect.
    is_world_unknown: bool,
    /// The last copy of etcd, when it was begun, and the ledger then.
    snapshot: Option<(EtcdSnapshot, Timestamp, BTreeSet<String>)>,
    /// To the pool of all nodes, of rounds that were checked.
    pub(super) pool_writes: Vec<PoolWrite>,
}

impl Chaos {
    pub(super) fn new(cluster: Cluster, control_plane: ControlPlane, shared: Arc<Shared>, report: Report) -> Self {
        let addresses = (1..=NODES).map(|number| (node_name(number), number)).collect();
        let chaos = Self {
            cluster,
            control_plane,
            controllers: Vec::new(),
            clocks: Vec::new(),
            shared,
            report,
            logs: Vec::new(),
            signalled: BTreeSet::new(),
            frozen: Vec::new(),
            apiserver_frozen_until: None,
            addresses,
            returning: Vec::new(),
            last_number: NODES + 1,
            created_services: 0,
            is_world_unknown: false,
            snapshot: None,
            pool_writes: Vec::new(),
        };
        chaos.nodes_changed();
        chaos
    }

    /// Tells the observer of the Nodes, and that headgate may not know them yet.
    fn nodes_changed(&self) {
        let mut world = self.shared.world.lock().unwrap();
        let address = |(name, number): (&String, &u8)| (format!("127.0.0.{number}"), name.clone());
        world.nodes = self.addresses.iter().map(address).collect();
        world.changed_at = Instant::now();
    }

    /// A request to kube-apiserver; `None` if it failed, as it may.
    async fn request<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Option<T> {
        if self.apiserver_frozen_until.is_some() {
            return None;
        }
        timeout(REQUEST_TIMEOUT, request).await.ok()?.ok()
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.cluster.client.clone(), "default")
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.cluster.client.clone())
    }

    fn any_node(&self, number: usize) -> Option<String> {
        let names: Vec<_> = self.addresses.keys().collect();
        Some((*names.get(number.checked_rem(names.len())?)?).clone())
    }

    /// Starts a controller on a machine of its own.
    pub(super) fn add_controller(&mut self, node: &str) {
        let mut clock = MachineClock::new();
        self.shared.add(clock.set(node, 0));
        self.clocks.push(clock);
        let controller = self.start_controller(self.controllers.len(), node);
        self.controllers.push(controller);
    }

    fn start_controller(&mut self, index: usize, node: &str) -> Controller {
        let clock = &mut self.clocks[index];
        let (fixture, kubeconfig) = (&self.cluster.fixture, &self.cluster.kubeconfig);
        let controller = Controller::start_with(fixture, kubeconfig, node, &json!([]), &clock.environment());
        clock.started(controller.process.id());
        self.logs.push(controller.process.log().to_owned());
        controller
    }

    /// The leader's position, as the Lease has it.
    async fn leader(&self) -> Option<usize> {
        let leases = Api::<Lease>::namespaced(self.cluster.client.clone(), "kube-system");
        let lease = self.request(leases.get("headgate-leader")).await?;
        let holder = lease.spec?.holder_identity?;
        self.position(|node| holder.starts_with(&format!("{node}_")))
    }

    fn position(&self, is_meant: impl Fn(&str) -> bool) -> Option<usize> {
        self.controllers.iter().position(|one| is_meant(&one.node))
    }

    async fn follower(&self, which: usize) -> Option<usize> {
        let leader = self.leader().await?;
        let followers: Vec<_> = (0..self.controllers.len()).filter(|index| *index != leader).collect();
        followers.get(which.checked_rem(followers.len())?).copied()
    }

    /// Carries it out; counts it, or that it could not be.
    pub(super) async fn carry_out(&mut self, action: Action) {
        if self.attempt(action).await.is_some() {
            *self.report.disturbances.entry(action.name()).or_default() += 1;
        } else {
            self.report.not_carried_out += 1;
        }
    }

    async fn attempt(&mut self, action: Action) -> Option<()> {
        match action {
            Action::Signal { node, signal } => {
                let node = self.any_node(node)?;
                let signal = SIGNALS[signal % SIGNALS.len()];
                let ends = self.signalled.contains(&node);
                self.set_signal(&node, (!ends).then_some(signal)).await
            }
            Action::MoveEndpoint { service, node } => self.move_endpoint(service, node).await,
            Action::ChangePorts => self.change_ports().await,
            Action::ChangeServices { node } => self.change_services(node).await,
            Action::Fault { rule } => {
                let rules = faults::faults();
                let rule = &rules[rule % rules.len()];
                self.cluster.fixture.control("POST", "faults", rule).await;
                Some(())
            }
            Action::JumpClock { controller, seconds } => {
                self.jump_clock(controller, seconds);
                Some(())
            }
            Action::KillLeader => {
                let leader = self.leader().await;
                self.kill(leader?).await
            }
            Action::KillFollower { which } => {
                let follower = self.follower(which).await;
                self.kill(follower?).await
            }
            Action::FreezeLeader { seconds } => {
                let leader = self.leader().await;
                self.freeze(leader?, seconds)
            }
            Action::FreezeFollower { which, seconds } => {
                let follower = self.follower(which).await;
                self.freeze(follower?, seconds)
            }
            Action::FreezeApiServer { seconds } => {
                self.control_plane.signal_apiserver(Signal::SIGSTOP);
                self.apiserver_frozen_until = Some(Instant::now() + Duration::from_secs(seconds));
                Some(())
            }
            Action::RestartApiServer { seconds } => self.restart_apiserver(seconds).await,
            Action::Snapshot => self.take_snapshot().await,
            Action::Restore => self.restore().await,
            Action::RestartCloudControllerManager => {
                let kubeconfig = self.cluster.kubeconfig.clone();
                self.cluster.fixture.restart_manager(&kubeconfig).await;
                Some(())
            }
            Action::RecreateNode { node, seconds, moves } => self.delete_node(node, seconds, moves).await,
        }
    }

    pub(super) async fn set_signal(&mut self, node: &str, signal: Option<&str>) -> Option<()> {
        let taints = signal.map_or(json!([]), |key| json!([{"key": key, "effect": "NoSchedule"}]));
        let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
        self.request(self.nodes().patch(node, &PatchParams::default(), &patch))
            .await?;
        if signal.is_some() {
            self.signalled.insert(node.to_owned());
        } else {
            self.signalled.remove(node);
        }
        Some(())
    }

    pub(super) async fn create_local_service(&mut self, nodes: &[&str]) -> Option<()> {
        self.created_services += 1;
        let name = format!("local-{}", self.created_services);
        let service = json!({"metadata": {"name": name}, "spec": {
            "type": "LoadBalancer", "externalTrafficPolicy": "Local", "ipFamilies": ["IPv4"], "ports": [{"name": "p80", "port": 80}]}});
        let service = serde_json::from_value(service).unwrap();
        let created: Service = self
            .request(self.api().create(&PostParams::default(), &service))
            .await?;
        let slice = json!({"metadata": {"name": format!("{name}-1"), "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4", "endpoints": endpoints(nodes.iter().copied()), "ports": [{"name": "", "port": 80}]});
        let slice = serde_json::from_value(slice).unwrap();
        let slice = self
            .request(self.api::<EndpointSlice>().create(&PostParams::default(), &slice))
            .await;
        let port = created.spec?.health_check_node_port?.try_into().ok()?;
        self.is_world_unknown |= slice.is_none();
        let nodes = nodes.iter().map(|&node| node.to_owned());
        self.shared.world.lock().unwrap().services.push(LocalService {
            name,
            port,
            nodes: nodes.collect(),
            changed_at: Instant::now(),
        });
        Some(())
    }

    async fn change_services(&mut self, node: usize) -> Option<()> {
        let services = self.shared.world.lock().unwrap().services.clone();
        if services.len() <= 3 && self.snapshot.is_none() {
            let node = self.any_node(node)?;
            return self.create_local_service(&[&node]).await;
        }
        let name = services.get(1).filter(|_| services.len() > 3)?.name.clone();
        self.request(self.api::<Service>().delete(&name, &DeleteParams::default()))
            .await?;
        self.shared
            .world
            .lock()
            .unwrap()
            .services
            .retain(|service| service.name != name);
        let slice = format!("{name}-1");
        self.request(self.api::<EndpointSlice>().delete(&slice, &DeleteParams::default()))
            .await;
        Some(())
    }

    /// Adds a node to the Service's endpoints, or removes one of several.
    async fn move_endpoint(&mut self, service: usize, node: usize) -> Option<()> {
        let node = self.any_node(node)?;
        let (name, nodes) = {
            let mut world = self.shared.world.lock().unwrap();
            let index = service.checked_rem(world.services.len())?;
            let service = &mut world.services[index];
            if service.nodes.len() > 2 || service.nodes.contains(&node) && service.nodes.len() > 1 {
                service.nodes.pop_first();
            } else {
                service.nodes.insert(node);
            }
            service.changed_at = Instant::now();
            (service.name.clone(), service.nodes.clone())
        };
        self.write_endpoints(&name, &nodes).await
    }

    /// Moves the endpoints of the `Local` Service that has always been there; gives the nodes that they were on.
    pub(super) async fn move_endpoints(&mut self, nodes: BTreeSet<String>) -> Option<BTreeSet<String>> {
        let (name, before) = {
            let mut world = self.shared.world.lock().unwrap();
            let service = world.services.first_mut()?;
            service.changed_at = Instant::now();
            (
                service.name.clone(),
                std::mem::replace(&mut service.nodes, nodes.clone()),
            )
        };
        self.write_endpoints(&name, &nodes).await?;
        Some(before)
    }

    async fn write_endpoints(&mut self, service: &str, nodes: &BTreeSet<String>) -> Option<()> {
        let patch = Patch::Merge(json!({"endpoints": endpoints(nodes.iter().map(String::as_str))}));
        let slice = format!("{service}-1");
        let slices = self.api::<EndpointSlice>();
        let done = self
            .request(slices.patch(&slice, &PatchParams::default(), &patch))
            .await;
        self.is_world_unknown |= done.is_none();
        done.map(drop)
    }

    /// Adds or removes a port of the Service `web`; cloud-controller-manager reconciles the Service then.
    async fn change_ports(&mut self) -> Option<()> {
        if !self.cluster.ports.remove(&443) {
            self.cluster.ports.insert(443);
        }
        let port = |port: &u16| json!({"name": format!("p{port}"), "port": port});
        let ports: Vec<Value> = self.cluster.ports.iter().map(port).collect();
        let patch = Patch::Merge(json!({"spec": {"ports": ports}}));
        let services = self.api::<Service>();
        self.request(services.patch("web", &PatchParams::default(), &patch))
            .await
            .map(drop)
    }

    /// Kills a controller and starts another one in its place.
    async fn kill(&mut self, index: usize) -> Option<()> {
        if self.frozen.iter().any(|(frozen, ..)| *frozen == index) {
            return None;
        }
        let node = self.controllers[index].node.clone();
        self.controllers[index].process.signal(Signal::SIGKILL);
        self.controllers[index].process.wait(REQUEST_TIMEOUT).await;
        self.controllers[index] = self.start_controller(index, &node);
        Some(())
    }

    /// Makes the clock of a controller's machine jump.
    fn jump_clock(&mut self, index: usize, seconds: i64) {
        let clock = &mut self.clocks[index];
        let event = clock.set(&self.controllers[index].node, clock.ahead_seconds() + seconds);
        self.shared.add(event);
        let largest = &mut self.report.largest_clock_jump_seconds;
        *largest = seconds.unsigned_abs().max(*largest);
    }

    /// Makes all clocks right, as a time service does.
    pub(super) async fn correct_clocks(&mut self) {
        for controller in 0..self.clocks.len() {
            let seconds = -self.clocks[controller].ahead_seconds();
            if seconds != 0 {
                self.carry_out(Action::JumpClock { controller, seconds }).await;
            }
        }
    }

    /// Stops a process without its knowledge.
    fn freeze(&mut self, index: usize, seconds: u64) -> Option<()> {
        if self.frozen.iter().any(|(frozen, ..)| *frozen == index) {
            return None;
        }
        let until = Instant::now() + Duration::from_secs(seconds);
        self.frozen.push((index, Timestamp::now(), until));
        self.controllers[index].process.signal(Signal::SIGSTOP);
        Some(())
    }

    /// Lets go on what has stood still for long enough, and creates the Nodes again that are due; all of them at the end.
    pub(super) async fn recover(&mut self, is_end: bool) {
        let is_due = |until: Instant| is_end || Instant::now() >= until;
        for (index, begin, until) in std::mem::take(&mut self.frozen) {
            if is_due(until) {
                let what = What::Frozen(self.controllers[index].node.clone());
                self.shared.add(Event {
                    begin,
                    end: Timestamp::now(),
                    what,
                });
                self.controllers[index].process.signal(Signal::SIGCONT);
            } else {
                self.frozen.push((index, begin, until));
            }
        }
        if self.apiserver_frozen_until.is_some_and(is_due) {
            self.thaw_apiserver();
        }
        if self.is_world_unknown {
            self.is_world_unknown = self.read_world().await.is_none();
        }
        for (until, name, number) in std::mem::take(&mut self.returning) {
            if !is_due(until) || self.create_node(&name, number).await.is_none() {
                self.returning.push((until, name, number));
            }
        }
    }

    pub(super) fn has_recovered(&self) -> bool {
        self.frozen.is_empty() && self.returning.is_empty() && !self.is_world_unknown
    }

    fn thaw_apiserver(&mut self) {
        if self.apiserver_frozen_until.take().is_some() {
            self.control_plane.signal_apiserver(Signal::SIGCONT);
            self.nodes_changed();
        }
    }

    fn apiserver_stopped(&self, begin: Timestamp) {
        let what = What::ApiServerStopped;
        self.shared.add(Event {
            begin,
            end: Timestamp::now(),
            what,
        });
        self.nodes_changed();
    }

    async fn restart_apiserver(&mut self, seconds: u64) -> Option<()> {
        self.thaw_apiserver();
        let begin = Timestamp::now();
        if seconds.is_multiple_of(2) {
            self.control_plane.stop_apiserver().await;
        } else {
            self.control_plane.kill_apiserver().await;
        }
        sleep(Duration::from_secs(seconds)).await;
        self.control_plane
            .start_apiserver()
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        self.apiserver_stopped(begin);
        Some(())
    }

    /// The ledger as it was written last.
    async fn ledger(&self) -> BTreeSet<String> {
        self.shared.read_logs().await;
        let history = self.shared.history.lock().unwrap();
        let writes = history.iter().filter_map(|event| match &event.what {
            What::Ledger(entries) => Some((event.end, entries.keys().cloned().collect())),
            _ => None,
        });
        writes
            .max_by_key(|(end, _)| *end)
            .map(|(_, entries): (_, BTreeSet<String>)| entries)
            .unwrap_or_default()
    }

    async fn take_snapshot(&mut self) -> Option<()> {
        self.thaw_apiserver();
        // Right after the copy is made, the ledger is written again.
        let (begin, ledger) = (Timestamp::now(), self.ledger().await);
        let snapshot = self.control_plane.snapshot_etcd().await;
        let snapshot = snapshot.unwrap_or_else(|error| panic!("{error}"));
        self.apiserver_stopped(begin);
        self.snapshot = Some((snapshot, begin, ledger));
        Some(())
    }

    /// Puts etcd's data back, and restarts cloud-controller-manager, whose watches would wait for versions of the future.
    async fn restore(&mut self) -> Option<()> {
        let (snapshot, taken_at, kept) = self.snapshot.take()?;
        self.thaw_apiserver();
        let begin = Timestamp::now();
        let restored = self.control_plane.restore_etcd(&snapshot).await;
        restored.unwrap_or_else(|error| panic!("{error}"));
        let mut lost = downs_of(&self.shared.load_balancers().await);
        self.shared.read_logs().await;
        for event in self.shared.history.lock().unwrap().iter() {
            match &event.what {
                What::Ledger(entries) if event.end >= taken_at => lost.extend(entries.keys().cloned()),
                _ => {}
            }
        }
        lost.retain(|entry| !kept.contains(entry));
        let what = What::Restored(lost);
        self.shared.add(Event {
            begin,
            end: Timestamp::now(),
            what,
        });
        let kubeconfig = self.cluster.kubeconfig.clone();
        self.cluster.fixture.restart_manager(&kubeconfig).await;
        self.is_world_unknown = self.read_world().await.is_none();
        Some(())
    }

    async fn delete_node(&mut self, node: usize, seconds: u64, moves: bool) -> Option<()> {
        let name = self.any_node(node).filter(|_| self.addresses.len() > MIN_NODES)?;
        self.request(self.nodes().delete(&name, &DeleteParams::default()))
            .await?;
        let number = self.addresses.remove(&name)?;
        self.signalled.remove(&name);
        let number = if moves { self.next_number() } else { number };
        let until = Instant::now() + Duration::from_secs(seconds);
        self.returning.push((until, name, number));
        self.nodes_changed();
        Some(())
    }

    /// The next number of an address that no Node has had for long.
    fn next_number(&mut self) -> u8 {
        self.last_number = if self.last_number >= 250 {
            NODES + 2
        } else {
            self.last_number + 1
        };
        self.last_number
    }

    async fn create_node(&mut self, name: &str, number: u8) -> Option<()> {
        let node = headgate_sandbox::nodes::ready_node(name, number, "integration");
        self.request(self.nodes().create(&PostParams::default(), &node)).await?;
        self.addresses.insert(name.to_owned(), number);
        self.nodes_changed();
        Some(())
    }

    /// Reads what there is, as after a restore, and plans to create the Nodes that are missing.
    async fn read_world(&mut self) -> Option<()> {
        // Typed lists would fail at the Node that cannot be decoded.
        let request = hyper::Request::get("/api/v1/nodes").body(Vec::new()).unwrap();
        let nodes = self.request(self.cluster.client.request::<Value>(request)).await?;
        let services = self
            .request(self.api::<Service>().list(&kube::api::ListParams::default()))
            .await?;
        let slices = self
            .request(self.api::<EndpointSlice>().list(&kube::api::ListParams::default()))
            .await?;
        let (mut found, mut signalled) = (BTreeMap::new(), BTreeSet::new());
        for node in nodes["items"].as_array().into_iter().flatten() {
            let name = node["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let address = node["status"]["addresses"][0]["address"].as_str().unwrap_or_default();
            let number = address.rsplit('.').next().and_then(|number| number.parse().ok());
            if node["spec"]["taints"]
                .as_array()
                .is_some_and(|taints| !taints.is_empty())
            {
                signalled.insert(name.clone());
            }
            if let Some(number) = number.filter(|_| name != UNDECODABLE) {
                found.insert(name, number);
            }
        }
        let now = Instant::now();
        let missing = (1..=NODES).map(node_name).filter(|name| !found.contains_key(name));
        self.returning = missing
            .map(|name| {
                (
                    now,
                    name.clone(),
                    self.addresses.get(&name).copied().unwrap_or_default(),
                )
            })
            .collect();
        for index in 0..self.returning.len() {
            if self.returning[index].2 == 0 {
                self.returning[index].2 = self.next_number();
            }
        }
        (self.addresses, self.signalled) = (found, signalled);
        let nodes_of = |name: &str| {
            let slice = slices
                .iter()
                .find(|slice| slice.metadata.name == Some(format!("{name}-1")));
            let endpoints = slice.into_iter().flat_map(|slice| slice.endpoints.iter());
            endpoints.filter_map(|endpoint| endpoint.node_name.clone()).collect()
        };
        let mut local = Vec::new();
        for service in &services {
            let (Some(name), Some(spec)) = (&service.metadata.name, &service.spec) else {
                continue;
            };
            if name == "web" {
                let ports = spec.ports.iter().flatten();
                self.cluster.ports = ports.filter_map(|port| port.port.try_into().ok()).collect();
            }
            let port = spec.health_check_node_port.and_then(|port| port.try_into().ok());
            local.extend(port.map(|port| LocalService {
                name: name.clone(),
                port,
                nodes: nodes_of(name),
                changed_at: now,
            }));
        }
        self.shared.world.lock().unwrap().services = local;
        self.nodes_changed();
        Some(())
    }

    /// A node in a pool without which each Service has an endpoint on another such node, with its address.
    pub(super) async fn spare_node(&self) -> Option<(String, String)> {
        let load_balancers = self.shared.load_balancers().await;
        let pools = load_balancers.iter().filter_map(pools_of).flatten();
        let members: BTreeSet<String> = pools.flat_map(|(_, members)| members.into_keys()).collect();
        let world = self.shared.world.lock().unwrap();
        let in_pool = || world.nodes.iter().filter(|(address, _)| members.contains(*address));
        let is_spare = |node: &String| {
            let is_served =
                |nodes: &BTreeSet<String>| in_pool().any(|(_, other)| other != node && nodes.contains(other));
            let mut services = world.services.iter();
            services.all(|service| service.nodes.is_empty() || is_served(&service.nodes))
        };
        let found = in_pool().find(|(_, node)| is_spare(node));
        found.map(|(address, node)| (node.clone(), address.clone()))
    }

    pub(super) fn check_processes(&mut self) {
        let controllers = self.controllers.iter_mut().map(|controller| &mut controller.process);
        for process in controllers.chain([&mut self.cluster.fixture.manager]) {
            if let Some(end) = process.try_wait() {
                panic!("{end}");
            }
        }
    }
}

fn endpoints<'a>(nodes: impl Iterator<Item = &'a str>) -> Value {
    let endpoint = |(number, node)| json!({"addresses": [format!("10.244.0.{}", number + 1)], "nodeName": node});
    nodes.enumerate().map(endpoint).collect()
}
