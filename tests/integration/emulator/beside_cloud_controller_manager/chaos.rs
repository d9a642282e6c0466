//! Long chaos: three controllers beside the real cloud-controller-manager, with what `crate::chaos::schedule` draws from a seed: faults of
//! ARM, processes that are killed or stand still, clocks that jump, kube-apiserver frozen, restarted and restored from a copy of etcd,
//! Nodes that go and come again, one that headgate cannot decode, and `Local` Services that share the pool of all Services. `make chaos`
//! runs it.
//!
//! Each round of disturbances ends in calm: without signals and faults nothing stays `Down`, and a signal acts. Then the history of the
//! round is checked (`crate::chaos`). At the end the shared Lease is free and the ledger has nothing that is `Down`.
//!
//! Clocks stay wrong in calm, and are right at the begin of each round and at the end. Connections are open all the time (`data_plane`).

use headgate_test_kubernetes::number_from;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;

use self::data_plane::DataPlane;
use self::disturbances::Chaos;
use self::observer::Shared;
use super::super::cloud_controller_manager::{Controller as OperatorClient, with_version};
use super::*;
use crate::chaos::connections::pool_writes;
use crate::chaos::history::{Event, LEDGER, SHARED_LEASE, What, carried_over, ledger_entries};
use crate::chaos::report::Report;
use crate::chaos::rules::{World, downs_of};
use crate::chaos::writes::lost_by_restores;
use crate::chaos::{check, panics, schedule};

mod data_plane;
mod disturbances;
mod faults;
mod machine_clock;
mod observer;
mod undecodable;

const DEFAULT_MINUTES: u64 = 30;
/// The disturbances between two calms.
const ROUND: Duration = Duration::from_mins(4);
/// The nodes that serve; the next one is [`UNDECODABLE`].
const NODES: u8 = 6;
/// A Node whose time the API server accepts and most clients cannot represent.
const UNDECODABLE: &str = "node-7";
/// A write that ARM ignored is repeated after up to 5 min.
const CALM_TIMEOUT: Duration = Duration::from_mins(7);
/// For one signal in calm, also where its Node leads.
const SIGNAL_TIMEOUT: Duration = Duration::from_mins(2);
/// The ledger keeps an entry for 5 min after its `Down` was given back.
const LEDGER_TIMEOUT: Duration = Duration::from_mins(8);
/// A run of this length waits for an empty ledger.
const LONG_RUN: u64 = 10 * 60;
/// A small disturbance that comes later than this is left out.
const MAX_DELAY: Duration = Duration::from_secs(3);
/// Signals that may be taken back, so that no rule may lose its last backend for them.
const SIGNALS: [&str; 3] = [
    "karpenter.sh/disrupted",
    "ToBeDeletedByClusterAutoscaler",
    "headgate.dev/maintenance",
];

fn node_name(number: u8) -> String {
    format!("node-{number}")
}

impl Chaos {
    /// The disturbances of a round.
    async fn disturb(&mut self, steps: &[schedule::Step]) {
        let began = Instant::now();
        self.correct_clocks().await;
        for step in steps {
            let at = began + Duration::from_millis(step.milliseconds);
            sleep(at.saturating_duration_since(Instant::now())).await;
            self.recover(false).await;
            let is_late = at.elapsed() > MAX_DELAY;
            if is_late
                && matches!(
                    step.action,
                    schedule::Action::Signal { .. } | schedule::Action::Fault { .. }
                )
            {
                self.report.not_carried_out += 1;
                continue;
            }
            self.carry_out(step.action).await;
            self.check_processes();
        }
    }

    /// Waits until the `Down` entries are as expected; otherwise that is a violation.
    async fn wait_for_downs(
        &mut self,
        limit: Duration,
        what: &str,
        is_expected: impl Fn(&BTreeSet<String>) -> bool,
    ) -> Duration {
        let began = Instant::now();
        loop {
            let downs = downs_of(&self.shared.load_balancers().await);
            if is_expected(&downs) {
                return began.elapsed();
            }
            if began.elapsed() > limit {
                let text = format!("{what}: not within {limit:?}; Down are {downs:?}");
                self.shared.add_violation("calm", text).await;
                return began.elapsed();
            }
            self.recover(true).await;
            sleep(SAMPLE_INTERVAL).await;
        }
    }

    /// Ends all disturbances, and waits until nothing is `Down` but what a restore made nobody's.
    async fn calm_down(&mut self) {
        self.recover(true).await;
        self.cluster.fixture.control("DELETE", "faults", &Value::Null).await;
        let began = Instant::now();
        while !(self.has_recovered() && self.signalled.is_empty()) {
            self.recover(true).await;
            for node in self.signalled.clone() {
                self.set_signal(&node, None).await;
            }
            assert!(began.elapsed() < SETTLE_TIMEOUT, "Nodes cannot be written");
            sleep(SAMPLE_INTERVAL).await;
        }
        self.shared.read_logs().await;
        let mut history = self.shared.history.lock().unwrap().clone();
        history.sort_by_key(|event| event.begin);
        let excused = lost_by_restores(&history);
        let took = self
            .wait_for_downs(CALM_TIMEOUT, "everything is given back", |downs| {
                downs.is_subset(&excused)
            })
            .await;
        self.report.longest_seconds_to_calm = self.report.longest_seconds_to_calm.max(took.as_secs());
        if !excused.is_empty() {
            sleep(Duration::from_secs(20)).await;
            self.give_back_as_operator().await;
        }
    }

    /// Sets back what a restore of etcd left `Down` without a ledger entry.
    async fn give_back_as_operator(&mut self) {
        let left = downs_of(&self.shared.load_balancers().await).len();
        self.report.downs_left_by_restores += left as u64;
        if left == 0 {
            return;
        }
        let arm = OperatorClient::start(self.cluster.fixture.emulator.arm).await;
        eventually(SETTLE_TIMEOUT, "the operator has given everything back", async || {
            for load_balancer in self.shared.load_balancers().await {
                let id = load_balancer["id"].as_str().unwrap();
                for pool in load_balancer["properties"]["backendAddressPools"].as_array().unwrap() {
                    let path = format!("{id}/backendAddressPools/{}", pool["name"].as_str().unwrap());
                    let mut document = arm.read(&path).await;
                    let etag = document["etag"].as_str().unwrap().to_owned();
                    let addresses = document["properties"]["loadBalancerBackendAddresses"].as_array_mut();
                    for address in addresses.into_iter().flatten() {
                        address["properties"]["adminState"] = "None".into();
                    }
                    // Another writer may come first.
                    arm.send("PUT", &with_version(&path), Some(&etag), &document).await;
                }
            }
            sleep(Duration::from_secs(2)).await;
            let downs = downs_of(&self.shared.load_balancers().await);
            downs.is_empty().then_some(()).ok_or(format!("{downs:?}"))
        })
        .await;
    }

    /// In calm, gives one node a signal and takes it back. In between the endpoints of a `Local` Service move there, for which the node must
    /// serve again, and away.
    async fn measure_signal(&mut self) {
        let Some((node, address)) = self.spare_node().await else {
            self.report.not_carried_out += 1;
            return;
        };
        let is_down = |downs: &BTreeSet<String>| downs.iter().any(|entry| entry.ends_with(&format!(" {address}")));
        self.set_signal(&node, Some(TAINT)).await;
        let what = format!("the entries of {node} are Down");
        let took = self.wait_for_downs(SIGNAL_TIMEOUT, &what, is_down).await;
        keep_longest(&mut self.report.longest_milliseconds_to_down, took);
        if let Some(before) = self.move_endpoints(BTreeSet::from([node.clone()])).await {
            let what = format!("{node} is back in service with the only endpoint");
            let is_served = |downs: &BTreeSet<String>| !is_down(downs);
            let took = self.wait_for_downs(SIGNAL_TIMEOUT, &what, is_served).await;
            keep_longest(&mut self.report.longest_milliseconds_to_service, took);
            if self.move_endpoints(before).await.is_some() {
                let what = format!("the entries of {node} are Down without an endpoint");
                self.wait_for_downs(SIGNAL_TIMEOUT, &what, is_down).await;
                self.report.moves_in_calm += 1;
            } else {
                self.report.not_carried_out += 1;
            }
        } else {
            self.report.not_carried_out += 1;
        }
        self.set_signal(&node, None).await;
        let what = format!("the entries of {node} are given back");
        let took = self.wait_for_downs(SIGNAL_TIMEOUT, &what, BTreeSet::is_empty).await;
        keep_longest(&mut self.report.longest_milliseconds_to_restore, took);
        self.report.signals_in_calm += 1;
    }

    /// Checks the history of a round, and keeps of it only what the next one begins with.
    async fn check_history(&mut self) {
        self.shared.read_logs().await;
        let mut history = std::mem::take(&mut *self.shared.history.lock().unwrap());
        history.sort_by_key(|event| event.begin);
        let findings = check(&history);
        let report = &mut self.report;
        report.late_puts += findings.late_puts;
        report.puts_after_restore += findings.puts_after_restore;
        report.lease_writes_by_wrong_clocks += findings.lease_writes_by_wrong_clocks;
        report.checked_operations += findings.operations;
        report.violations.extend(findings.violations);
        self.pool_writes
            .extend(pool_writes(&history, CLUSTER, (Instant::now(), Timestamp::now())));
        for event in &history {
            match &event.what {
                What::Arm(request) if request.is_write && request.is_headgate => {
                    report.puts += 1;
                    report.accepted_puts += u64::from(request.change.is_some());
                }
                What::Arm(request) if request.is_write => {
                    report.puts_of_others += u64::from(request.change.is_some());
                }
                What::Lease(request) if request.is_write => report.lease_writes += 1,
                _ => {}
            }
        }
        self.shared.history.lock().unwrap().extend(carried_over(history));
        report.violations.append(&mut self.shared.violations.lock().unwrap());
        let observations = self.shared.observations.lock().unwrap();
        report.samples = observations.samples;
        report.entries_set_down = observations.downs;
        report.most_down_at_once = observations.most_down;
        report.local_rules = observations.local_rules;
    }

    /// Waits until the shared Lease is free and the ledger has nothing `Down`; after a long run, nothing at all.
    async fn wait_for_end(&self) {
        let is_long = self.report.seconds >= LONG_RUN;
        let client = &self.cluster.client;
        eventually(
            LEDGER_TIMEOUT,
            "the ledger is settled, and the shared Lease free",
            async || {
                let maps = Api::<ConfigMap>::namespaced(client.clone(), "kube-system");
                let map = maps.get_opt(LEDGER).await.map_err(|error| error.to_string())?;
                let text = map.and_then(|map| map.data?.remove("ledger.json")).unwrap_or_default();
                let is_settled = ledger_entries(&text).is_empty()
                    || !is_long && !text.contains("\"down ") && !text.contains("\"intended ");
                let leases = Api::<Lease>::namespaced(client.clone(), "kube-system");
                let lease = leases.get_opt(LOCK).await.map_err(|error| error.to_string())?;
                let holder = lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default();
                (is_settled && holder.is_empty())
                    .then_some(())
                    .ok_or(format!("{text}, held by {holder:?}"))
            },
        )
        .await;
    }

    /// Each panic of a controller is a violation, whatever came of it.
    async fn check_panics(&self) {
        for path in &self.logs {
            let log = std::fs::read(path).unwrap();
            for line in panics(&String::from_utf8_lossy(&log)) {
                self.shared.add_violation("panics", line.to_owned()).await;
            }
        }
    }

    /// Writes the report, and after a violation the logs.
    fn write_report(&self, directory: &Path) {
        let name = format!("seed-{}", self.report.seed);
        std::fs::write(directory.join(format!("{name}.md")), self.report.to_markdown()).unwrap();
        let json = serde_json::to_vec_pretty(&self.report).unwrap();
        std::fs::write(directory.join(format!("{name}.json")), json).unwrap();
        if self.report.violations.is_empty() {
            return;
        }
        let logs = self
            .logs
            .iter()
            .map(PathBuf::as_path)
            .chain([self.cluster.fixture.manager.log()]);
        for (number, log) in logs.enumerate() {
            std::fs::copy(log, directory.join(format!("{name}-{number}.log"))).unwrap();
        }
    }
}

fn keep_longest(milliseconds: &mut u64, took: Duration) {
    *milliseconds = (*milliseconds).max(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
}

/// `target/chaos`, with the disturbances of all rounds, one a line.
fn report_directory(seed: u64, rounds: u64, length: Duration) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("chaos");
    std::fs::create_dir_all(&directory).unwrap();
    let mut text = String::new();
    for round in 0..rounds {
        for step in schedule::round(seed, round, length) {
            text += &json!({"round": round, "milliseconds": step.milliseconds, "action": step.action}).to_string();
            text.push('\n');
        }
    }
    let file = directory.join(format!("seed-{seed}-disturbances.jsonl"));
    std::fs::write(&file, text).unwrap();
    println!("seed {seed}; the disturbances: {}", file.display());
    directory
}

/// The control plane with an audit log, and the path of the log.
async fn audited_control_plane() -> (headgate_sandbox::control_plane::ControlPlane, PathBuf) {
    let directory = scratch("audit");
    let (policy, log) = (directory.join("policy.yaml"), directory.join("log"));
    std::fs::write(&policy, observer::AUDIT_POLICY).unwrap();
    let arguments = [("policy-file", &policy), ("log-path", &log)];
    let arguments = arguments.map(|(flag, file)| format!("--audit-{flag}={}", file.display()));
    (own_control_plane_with(arguments.to_vec()).await, log)
}

/// Nodes, a Service of all nodes and a `Local` one, and three controllers.
async fn start(seed: u64) -> Chaos {
    let (control_plane, audit_log) = audited_control_plane().await;
    let client = Client::try_from(control_plane.client_config()).unwrap();
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
    undecodable::make_undecodable(&client, UNDECODABLE).await;
    cluster.create_service("web", "Cluster", &["node-1", "node-2"]).await;
    let world = World {
        services: Vec::new(),
        nodes: BTreeMap::new(),
        changed_at: Instant::now(),
    };
    let shared = Shared::new(world, cluster.fixture.emulator.control, &audit_log);
    let report = Report {
        seed,
        ..Report::default()
    };
    let mut chaos = Chaos::new(cluster, control_plane, shared, report);
    // Its only endpoint is on one node, all the time but for moves.
    chaos.create_local_service(&["node-1"]).await.expect("a Local Service");
    let is_complete = |pools: &Pools| {
        pools
            .get(CLUSTER)
            .is_some_and(|pool| pool.len() == usize::from(NODES) + 1)
    };
    chaos.cluster.wait_for_pools("all nodes in one pool", is_complete).await;
    for number in 1..=schedule::CONTROLLERS {
        chaos.add_controller(&format!("node-{number}"));
    }
    chaos.cluster.until_led(&chaos.controllers).await;
    for controller in &chaos.controllers {
        machine_clock::assert_is_faked(controller.process.id());
    }
    chaos
}

#[tokio::test]
async fn invariants_hold_through_all_disturbances() {
    let length = Duration::from_secs(60 * number_from("CHAOS_MINUTES").unwrap_or(DEFAULT_MINUTES));
    let seed = number_from("CHAOS_SEED").unwrap_or(1);
    let round_length = ROUND.min(length);
    let directory = report_directory(seed, length.as_secs().div_ceil(round_length.as_secs()), round_length);
    let mut chaos = start(seed).await;
    let observer = chaos.shared.observe();
    let data_plane = DataPlane::start(&chaos.shared, seed).await;
    let began = Instant::now();
    while began.elapsed() < length {
        let steps = schedule::round(seed, chaos.report.rounds, round_length);
        chaos.disturb(&steps).await;
        chaos.calm_down().await;
        chaos.measure_signal().await;
        assert!(!observer.is_finished(), "the observer has failed");
        assert!(data_plane.is_running(), "the load balancer has failed");
        chaos.check_history().await;
        chaos.check_processes();
        chaos.report.rounds += 1;
        chaos.report.seconds = began.elapsed().as_secs();
        chaos.write_report(&directory);
        println!(
            "{} s, {} rounds: {} PUTs, {} requests checked, {} violations; to Down in calm {} ms at most",
            chaos.report.seconds,
            chaos.report.rounds,
            chaos.report.puts,
            chaos.report.checked_operations,
            chaos.report.violations.len(),
            chaos.report.longest_milliseconds_to_down,
        );
    }
    chaos.correct_clocks().await;
    chaos.wait_for_end().await;
    // The last writes, which give nothing back any more, are in no round.
    chaos.check_history().await;
    let (connections, violations) = data_plane.stop(std::mem::take(&mut chaos.pool_writes)).await;
    chaos.report.connections = connections;
    for text in violations {
        chaos.shared.add_violation("connections", text).await;
    }
    chaos.check_panics().await;
    chaos
        .report
        .violations
        .append(&mut chaos.shared.violations.lock().unwrap());
    observer.abort();
    chaos.write_report(&directory);
    println!("{}", chaos.report.to_markdown());
    assert!(
        chaos.report.violations.is_empty(),
        "{} violations: {}",
        chaos.report.violations.len(),
        directory.display()
    );
    let least = chaos.report.seconds / 60;
    assert!(
        chaos.report.entries_set_down >= least && chaos.report.accepted_puts >= least,
        "headgate set too few entries Down to prove anything"
    );
    assert!(chaos.report.local_rules > 0, "no rule was matched to its Local Service");
    assert!(
        length < ROUND || chaos.report.signals_in_calm > 0,
        "no signal was given in calm"
    );
    assert!(
        length < ROUND || chaos.report.moves_in_calm > 0,
        "no endpoint moved to a node with a signal in calm, and away"
    );
    assert!(chaos.report.puts_of_others > 0, "no other writer was accepted");
    assert!(
        chaos.report.checked_operations > 0,
        "no request for a Lease was checked"
    );
    // The last write of each is kept.
    let history = chaos.shared.history.lock().unwrap().clone();
    let is_shared = |event: &Event| matches!(&event.what, What::Lease(request) if request.lease == SHARED_LEASE);
    assert!(history.iter().any(is_shared), "no write of the shared Lease was seen");
    let is_ledger = |event: &Event| matches!(event.what, What::Ledger(_));
    assert!(history.iter().any(is_ledger), "no write of the ledger was seen");
    assert!(
        length < ROUND || connections.outlived_down > 0,
        "no connection ran through a node that was Down"
    );
    assert!(
        length < ROUND || chaos.report.lease_writes_by_wrong_clocks > 0,
        "no leader had a wrong clock"
    );
    chaos.cluster.fixture.emulator.stop().await;
    drop(chaos.controllers);
    chaos.control_plane.stop().await;
}
