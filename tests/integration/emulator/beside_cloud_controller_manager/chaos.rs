//! Chaos: three controllers beside the real cloud-controller-manager, with faults of ARM, killed and frozen leaders, a Node
//! that headgate cannot decode, and `Local` Services that share the pool of all Services. `make chaos` runs it for
//! `CHAOS_SECONDS` (1,800).
//!
//! It checks two things. No rule that has a backend loses its last one by a write of headgate, and one that lost it because its endpoints
//! moved gets one back. At the end, without signals and faults, nothing is `Down`, the shared Lease is free and the ledger is empty.

use k8s_openapi::api::core::v1::ConfigMap;

use super::*;

const DEFAULT_SECONDS: u64 = 1800;
/// The nodes that serve; the next one is [`UNDECODABLE`].
const NODES: u8 = 6;
/// A Node whose time the API server accepts and most clients cannot represent.
const UNDECODABLE: &str = "node-7";
/// The time until what was planned from an earlier state of the endpoints has been written: reads, an operation, and retries of it.
const IN_FLIGHT: Duration = Duration::from_secs(15);
/// A rule whose endpoints moved to a node that is `Down` is served again after that at the latest, whatever the faults.
const REPAIR_TIMEOUT: Duration = Duration::from_mins(6);
/// A write that ARM ignored is repeated after up to 5 min.
const CALM_TIMEOUT: Duration = Duration::from_mins(7);
/// The ledger keeps an entry for 5 min after its `Down` was given back.
const LEDGER_TIMEOUT: Duration = Duration::from_mins(8);
const ACTION_INTERVAL: Duration = Duration::from_millis(1500);
/// Signals that may be taken back, so that no rule may lose its last backend for them.
const SIGNALS: [&str; 3] = [
    "karpenter.sh/disrupted",
    "ToBeDeletedByClusterAutoscaler",
    "headgate.dev/maintenance",
];

/// Faults of ARM for headgate's requests, of which most leave open how an operation ended.
fn faults() -> Vec<Value> {
    let rule = |method: &str, path: &str, times: u32, action: Value| json!({"match": {"method": method, "path": path, "caller": "^headgate"}, "times": times, "action": action});
    let error = |code: &str| json!({"code": code, "message": "An error occurred.", "details": []});
    vec![
        rule(
            "GET",
            "/operations/",
            2,
            json!({"answer": {"status": 200, "text": "<html>"}}),
        ),
        rule("GET", "/operations/", 2, json!({"answer": {"status": 401}})),
        rule("GET", "/operations/", 2, json!({"answer": {"status": 410}})),
        rule("GET", "/operations/", 2, json!({"cut": "before"})),
        rule("GET", "/operations/", 1, json!({"stall": "5s"})),
        rule(
            "PUT",
            "",
            2,
            json!({"answer": {"status": 409, "body": {"error": error("ConflictingConcurrentWriteNotAllowed")}}}),
        ),
        rule("PUT", "", 2, json!({"answer": {"status": 503}})),
        rule(
            "PUT",
            "",
            1,
            json!({"operation": "fail", "effect": "lost", "error": error("OperationTimedOut")}),
        ),
        rule(
            "PUT",
            "",
            1,
            json!({"operation": "fail", "effect": "lost", "error": error("")}),
        ),
        rule("PUT", "", 1, json!({"operation": "cancel", "effect": "lost"})),
        rule("PUT", "", 1, json!({"operation": "succeed", "effect": "lost"})),
        rule("PUT", "", 1, json!({"cut": "after"})),
        rule("PUT", "", 1, json!({"answer": {"code": "PreconditionFailed"}})),
        rule("PUT", "", 1, json!({"answer": {"code": "AnotherOperationInProgress"}})),
        rule("PUT", "", 1, json!({"answer": {"status": 429}})),
        rule(
            "GET",
            "",
            2,
            json!({"answer": {"code": "SubscriptionRequestsThrottled", "retryAfter": 2}}),
        ),
        rule("GET", "/msi/token", 2, json!({"answer": {"status": 500}})),
    ]
}

/// A `Local` Service: where its endpoints are, and when they changed.
#[derive(Clone, Debug)]
struct LocalService {
    name: String,
    port: u16,
    nodes: BTreeSet<String>,
    changed_at: Instant,
}

/// A rule of the load balancer as one sample shows it.
#[derive(Clone, Debug, Default, PartialEq)]
struct RuleSample {
    /// The members that would serve it, were they not `Down`.
    candidates: BTreeSet<String>,
    /// Those that are not.
    serving: BTreeSet<String>,
}

/// What the samples showed.
#[derive(Debug, Default)]
struct Observations {
    samples: usize,
    last: BTreeMap<String, RuleSample>,
    empty_since: BTreeMap<String, Instant>,
    most_down: usize,
    downs: usize,
    was_down: BTreeSet<String>,
    violations: Vec<String>,
}

impl Observations {
    fn sample(&mut self, load_balancers: &[Value], services: &[LocalService]) {
        self.samples += 1;
        let pools = pools_of(load_balancers);
        let down = |(pool, members): (&String, &BTreeMap<String, bool>)| {
            let down = members.iter().filter(|(_, is_down)| **is_down);
            down.map(|(member, _)| format!("{pool}/{member}")).collect::<Vec<_>>()
        };
        let is_down: BTreeSet<_> = pools.iter().flat_map(down).collect();
        self.downs += is_down.difference(&self.was_down).count();
        self.most_down = self.most_down.max(is_down.len());
        self.was_down = is_down;
        let now = Instant::now();
        let rules = rules_of(load_balancers, &pools, services);
        for (name, (rule, changed_at)) in &rules {
            if !rule.serving.is_empty() || rule.candidates.is_empty() {
                self.empty_since.remove(name);
                continue;
            }
            let had_backend = self.last.get(name).is_some_and(|last| !last.serving.is_empty());
            let is_settled = changed_at.is_none_or(|at| now.duration_since(at) > IN_FLIGHT);
            if had_backend && is_settled {
                self.violations.push(format!(
                    "{name} lost its last backend: {rule:?}, before {:?}",
                    self.last[name]
                ));
            }
            let since = *self.empty_since.entry(name.clone()).or_insert(now);
            if now.duration_since(since) > REPAIR_TIMEOUT {
                self.violations
                    .push(format!("{name} has no backend for {REPAIR_TIMEOUT:?}: {rule:?}"));
                self.empty_since.insert(name.clone(), now);
            }
        }
        self.empty_since.retain(|name, _| rules.contains_key(name));
        self.last = rules.into_iter().map(|(name, (rule, _))| (name, rule)).collect();
    }
}

/// The rules by name, with the last change of their endpoints. The undecodable Node counts as no backend: headgate does not know it.
fn rules_of(
    load_balancers: &[Value],
    pools: &Pools,
    services: &[LocalService],
) -> BTreeMap<String, (RuleSample, Option<Instant>)> {
    let mut found = BTreeMap::new();
    for load_balancer in load_balancers {
        let children = |kind: &str| {
            load_balancer["properties"][kind]
                .as_array()
                .cloned()
                .unwrap_or_default()
        };
        let last = |id: &Value| {
            let id = id.as_str().unwrap_or_default();
            id.rsplit('/').next().unwrap_or_default().to_owned()
        };
        let probes: BTreeMap<String, Value> = children("probes")
            .into_iter()
            .map(|probe| (last(&probe["name"]), probe["properties"]["port"].clone()))
            .collect();
        for rule in children("loadBalancingRules") {
            let pool = last(&rule["properties"]["backendAddressPool"]["id"]);
            let probe = probes.get(&last(&rule["properties"]["probe"]["id"]));
            let port = probe.and_then(Value::as_u64);
            let service = services.iter().find(|service| port == Some(u64::from(service.port)));
            let members = pools.get(&pool).into_iter().flatten();
            let is_candidate =
                |member: &str| member != UNDECODABLE && service.is_none_or(|service| service.nodes.contains(member));
            let candidates = members.filter(|(member, _)| is_candidate(member));
            let mut sample = RuleSample::default();
            for (member, is_down) in candidates {
                sample.candidates.insert(member.clone());
                if !is_down {
                    sample.serving.insert(member.clone());
                }
            }
            let changed_at = service.map(|service| service.changed_at);
            found.insert(last(&rule["name"]), (sample, changed_at));
        }
    }
    found
}

/// What the disturbances did.
#[derive(Debug, Default)]
struct Counts {
    signals: usize,
    moves: usize,
    services: usize,
    ports: usize,
    faults: usize,
    kills: usize,
    freezes: usize,
}

struct Chaos {
    cluster: Cluster,
    controllers: Vec<Controller>,
    /// The process that is stopped, and until when.
    frozen: Option<(usize, Instant)>,
    random: fastrand::Rng,
    services: Vec<LocalService>,
    created: usize,
    signalled: BTreeSet<String>,
    faults: std::iter::Cycle<std::vec::IntoIter<Value>>,
    counts: Counts,
}

fn node_name(number: u8) -> String {
    format!("node-{number}")
}

impl Chaos {
    fn any_node(&mut self) -> String {
        node_name(self.random.u8(1..=NODES))
    }

    async fn create_local_service(&mut self, nodes: &[&str]) {
        self.created += 1;
        let name = format!("local-{}", self.created);
        self.cluster.create_service(&name, "Local", nodes).await;
        let services = Api::<Service>::namespaced(self.cluster.client.clone(), "default");
        let port = services.get(&name).await.unwrap().spec.unwrap().health_check_node_port;
        self.services.push(LocalService {
            name,
            port: port.unwrap().try_into().unwrap(),
            nodes: nodes.iter().map(|&node| node.to_owned()).collect(),
            changed_at: Instant::now(),
        });
        self.counts.services += 1;
    }

    /// Adds a node to the Service's endpoints, or removes one of several.
    async fn move_endpoint(&mut self) {
        let index = self.random.usize(..self.services.len());
        let node = self.any_node();
        let service = &mut self.services[index];
        if service.nodes.len() > 2 || service.nodes.contains(&node) && service.nodes.len() > 1 {
            service.nodes.pop_first();
        } else {
            service.nodes.insert(node);
        }
        service.changed_at = Instant::now();
        let endpoint = |(number, node)| json!({"addresses": [format!("10.244.0.{}", number + 1)], "nodeName": node});
        let endpoints: Vec<Value> = service.nodes.iter().enumerate().map(endpoint).collect();
        let slices = Api::<EndpointSlice>::namespaced(self.cluster.client.clone(), "default");
        let patch = Patch::Merge(json!({"endpoints": endpoints}));
        let slice = format!("{}-1", service.name);
        slices.patch(&slice, &PatchParams::default(), &patch).await.unwrap();
        self.counts.moves += 1;
    }

    async fn set_signal(&mut self, node: &str, signal: Option<&str>) {
        let taints = signal.map(|key| json!([{"key": key, "effect": "NoSchedule"}]));
        let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
        let nodes = Api::<Node>::all(self.cluster.client.clone());
        nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
        if signal.is_some() {
            self.signalled.insert(node.to_owned());
        } else {
            self.signalled.remove(node);
        }
        self.counts.signals += 1;
    }

    async fn disturb(&mut self) {
        match self.random.u8(..16) {
            0..8 => {
                let node = self.any_node();
                let signal = *self.random.choice(&SIGNALS).unwrap();
                let ends = self.signalled.contains(&node);
                self.set_signal(&node, (!ends).then_some(signal)).await;
            }
            8..11 => self.move_endpoint().await,
            11 => {
                self.cluster.change_ports().await;
                self.counts.ports += 1;
            }
            12 if self.services.len() > 3 => {
                let service = self.services.remove(1);
                self.cluster.delete_service(&service.name).await;
            }
            12 => {
                let node = self.any_node();
                self.create_local_service(&[&node]).await;
            }
            _ => {
                let rule = self.faults.next().expect("the faults repeat");
                self.cluster.fixture.control("POST", "faults", &rule).await;
                self.counts.faults += 1;
            }
        }
    }

    /// Kills the leader and starts another controller in its place.
    async fn kill_leader(&mut self) {
        let leader = self.cluster.leader().await;
        let is_leader = |one: &Controller| leader.starts_with(&format!("{}_", one.node));
        let Some(index) = self.controllers.iter().position(is_leader) else {
            return;
        };
        if self.frozen.is_some_and(|(frozen, _)| frozen == index) {
            return;
        }
        let node = self.controllers[index].node.clone();
        self.controllers[index].process.signal(Signal::SIGKILL);
        self.controllers[index] = self.start_controller(&node);
        self.counts.kills += 1;
    }

    fn start_controller(&self, node: &str) -> Controller {
        Controller::start_with(&self.cluster.fixture, &self.cluster.kubeconfig, node, &json!([]))
    }

    /// Stops the leader's process for longer than its Lease lasts, without its knowledge.
    async fn freeze_leader(&mut self) {
        let leader = self.cluster.leader().await;
        let is_leader = |one: &Controller| leader.starts_with(&format!("{}_", one.node));
        if let Some(index) = self.controllers.iter().position(is_leader) {
            self.controllers[index].process.signal(Signal::SIGSTOP);
            self.frozen = Some((index, Instant::now() + Duration::from_secs(25)));
            self.counts.freezes += 1;
        }
    }

    fn thaw(&mut self, is_due: impl Fn(Instant) -> bool) {
        if let Some((index, until)) = self.frozen.filter(|(_, until)| is_due(*until)) {
            let _ = until;
            self.controllers[index].process.signal(Signal::SIGCONT);
            self.frozen = None;
        }
    }

    fn check_controllers(&mut self) {
        for controller in &mut self.controllers {
            if let Some(end) = controller.process.try_wait() {
                panic!("a controller has ended: {end}");
            }
        }
    }
}

/// Gives a Node a time of the year 9999 in its `managedFields` and in a condition, as any writer of it can.
async fn make_undecodable(client: &Client, name: &str) {
    const TIME: &str = "9999-12-31T23:59:59Z";
    let managed = json!([{"manager": "chaos", "operation": "Update", "apiVersion": "v1", "time": TIME,
        "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:annotations": {"f:first": {}}}}}]);
    let read = async || {
        let request = hyper::Request::get(format!("/api/v1/nodes/{name}")).body(Vec::new());
        client.request::<Value>(request.unwrap()).await.unwrap()
    };
    // The entry of a manager stays only if its field exists already and does not change.
    for (path, annotation, managed, is_kept) in [
        ("", "first", Value::Null, false),
        ("", "second", managed, true),
        ("/status", "second", Value::Null, true),
    ] {
        let mut node = read().await;
        node["metadata"]["annotations"][annotation] = "1".into();
        if !managed.is_null() {
            node["metadata"]["managedFields"] = managed;
        }
        node["status"]["conditions"][0]["lastHeartbeatTime"] = TIME.into();
        let request = hyper::Request::put(format!("/api/v1/nodes/{name}{path}"));
        let request = request
            .header("content-type", "application/json")
            .body(node.to_string().into_bytes());
        let stored: Value = client.request(request.unwrap()).await.unwrap();
        let is_stored = stored["metadata"]["managedFields"].to_string().contains(TIME);
        assert_eq!(is_stored, is_kept, "{stored}");
    }
    assert_eq!(read().await["status"]["conditions"][0]["lastHeartbeatTime"], TIME);
}

#[tokio::test]
async fn no_rule_is_emptied_and_nothing_is_left() {
    let seconds = std::env::var("CHAOS_SECONDS").map_or(DEFAULT_SECONDS, |text| text.parse().unwrap());
    let seed = std::env::var("CHAOS_SEED").map_or(1, |text| text.parse().unwrap());
    let (control_plane, client) = own_cluster().await;
    let fixture = Fixture::start_with(client.clone(), control_plane.kubeconfig(), "400ms", json!([])).await;
    let cluster = Cluster {
        fixture,
        client: client.clone(),
        kubeconfig: control_plane.kubeconfig().to_owned(),
        ports: BTreeSet::from([80]),
    };
    for number in 1..=NODES + 1 {
        cluster.fixture.add_node(number).await;
    }
    make_undecodable(&client, UNDECODABLE).await;
    cluster.create_service("web", "Cluster", &["node-1", "node-2"]).await;
    let mut chaos = Chaos {
        cluster,
        controllers: Vec::new(),
        frozen: None,
        random: fastrand::Rng::with_seed(seed),
        services: Vec::new(),
        created: 0,
        signalled: BTreeSet::new(),
        faults: faults().into_iter().cycle(),
        counts: Counts::default(),
    };
    // Its only endpoint is on one node, all the time but for moves.
    chaos.create_local_service(&["node-1"]).await;
    let is_complete = |pools: &Pools| {
        pools
            .get(CLUSTER)
            .is_some_and(|pool| pool.len() == usize::from(NODES) + 1)
    };
    chaos.cluster.wait_for_pools("all nodes in one pool", is_complete).await;
    for node in ["node-1", "node-2", "node-3"] {
        let controller = chaos.start_controller(node);
        chaos.controllers.push(controller);
    }
    chaos.cluster.until_led(&chaos.controllers).await;

    let (began, mut observed) = (Instant::now(), Observations::default());
    let length = Duration::from_secs(seconds);
    let (mut act_at, mut kill_at, mut freeze_at) =
        (began, began + Duration::from_secs(90), began + Duration::from_secs(200));
    let mut say_at = began;
    while began.elapsed() < length {
        let now = Instant::now();
        if now >= act_at {
            chaos.disturb().await;
            act_at = now + ACTION_INTERVAL;
        }
        if now >= kill_at {
            chaos.kill_leader().await;
            kill_at = now + Duration::from_secs(210);
        }
        if now >= freeze_at {
            chaos.freeze_leader().await;
            freeze_at = now + Duration::from_mins(4);
        }
        chaos.thaw(|until| now >= until);
        chaos.check_controllers();
        let load_balancers = chaos.cluster.fixture.resources("loadBalancers").await;
        observed.sample(&load_balancers, &chaos.services);
        if now >= say_at {
            println!(
                "{} s: {:?}; {} samples, {} entries became Down, {} at most at once; rules without a backend: {:?}; violations: {}",
                began.elapsed().as_secs(),
                chaos.counts,
                observed.samples,
                observed.downs,
                observed.most_down,
                observed.empty_since.keys(),
                observed.violations.len(),
            );
            say_at = now + Duration::from_mins(1);
        }
        sleep(SAMPLE_INTERVAL).await;
    }
    chaos.thaw(|_| true);
    chaos.cluster.fixture.control("DELETE", "faults", &Value::Null).await;
    for node in chaos.signalled.clone() {
        chaos.set_signal(&node, None).await;
    }
    let calm_at = Instant::now();
    let is_given_back = |pools: &Pools| pools.values().all(|members| members.values().all(|is_down| !is_down));
    eventually(CALM_TIMEOUT, "everything is given back", async || {
        let pools = chaos.cluster.pools().await;
        is_given_back(&pools).then_some(()).ok_or(format!("{pools:?}"))
    })
    .await;
    let given_back = calm_at.elapsed();
    eventually(
        LEDGER_TIMEOUT,
        "the ledger is empty, and the shared Lease free",
        async || {
            let maps = Api::<ConfigMap>::namespaced(client.clone(), "kube-system");
            let map = maps
                .get_opt("headgate-admin-state")
                .await
                .map_err(|error| error.to_string())?;
            let text = map.and_then(|map| map.data?.remove("ledger.json")).unwrap_or_default();
            let ledger: Value = serde_json::from_str(&text).unwrap_or_default();
            let entries = ledger["pools"].as_object().map_or(0, serde_json::Map::len);
            let leases = Api::<Lease>::namespaced(client.clone(), "kube-system");
            let lease = leases.get_opt(LOCK).await.map_err(|error| error.to_string())?;
            let holder = lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default();
            (entries == 0 && holder.is_empty())
                .then_some(())
                .ok_or(format!("{entries} pools in {text}, held by {holder:?}"))
        },
    )
    .await;
    chaos.check_controllers();
    println!(
        "{} s of chaos with seed {seed}: {:?}; {} samples, {} entries became Down, {} at most at once; everything was given back after {given_back:?}, \
         and the ledger empty after {:?}; violations: {:?}",
        length.as_secs(),
        chaos.counts,
        observed.samples,
        observed.downs,
        observed.most_down,
        calm_at.elapsed(),
        observed.violations,
    );
    let log = chaos.controllers[0].log();
    assert_eq!(
        observed.violations,
        Vec::<String>::new(),
        "the log of one controller:\n{log}"
    );
    assert!(
        observed.downs as u64 >= seconds / 60,
        "headgate set too few entries Down to prove anything; the log:\n{log}"
    );
    let names: Vec<_> = chaos
        .services
        .iter()
        .map(|service| service.name.as_str())
        .chain(["web"])
        .collect();
    chaos.cluster.delete_everything(&names).await;
    drop(chaos.controllers);
    chaos.cluster.fixture.emulator.stop().await;
    control_plane.stop().await;
}
