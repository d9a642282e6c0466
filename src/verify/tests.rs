//! Each assumption, on an emulator where it holds and on one where a switch turns it false.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headgate_azure::{
    ArmClient, ArmClientOptions, Credential, Endpoints, Identity, LoadBalancerId, Secret, TokenCache, Transport,
    TransportError,
};
use headgate_azure_emulator::{AdminStateNone, Deviation, Deviations, Emulator, Settings};
use headgate_controller::admin_state::{SoleWriterRequest, run_as_sole_writer};
use headgate_controller::pool::EntryKey;
use headgate_core::clock::Clock;
use headgate_test_kubernetes::FakeApi;
use hyper::{Request, Response};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::service_fn;

use super::report::{Verdict, VerifyReport};
use super::session::{Plan, Target};
use super::targets::Named;
use super::{ASSUMPTIONS, VerifyRequest, verify};
use crate::check::role_actions;

mod connections;

const BASE: &str = "http://127.0.0.1:1";
const LOAD_BALANCER: &str =
    "/subscriptions/0000-secret/resourceGroups/rg/providers/Microsoft.Network/loadBalancers/scratch";
const SPARE: &str = "10.0.0.9";

/// An emulator with a scratch load balancer of two pools, and a fake API server for the ledger.
struct World {
    emulator: Emulator,
    arm: ArmClient,
    kubernetes: FakeApi,
    clock: Clock,
}

/// A load balancer whose pools have the same entries: addresses, or network interfaces.
fn resources(is_of_interfaces: bool) -> Vec<Value> {
    let pool_id = |pool: &str| format!("{LOAD_BALANCER}/backendAddressPools/{pool}");
    let addresses = |pool: &str| match (is_of_interfaces, pool) {
        (true, _) => json!([]),
        (false, "one") => json!([{"name": "a", "properties": {"ipAddress": "10.0.0.4"}}]),
        (false, _) => json!([{"name": "a", "properties": {"ipAddress": "10.0.0.4"}},
            {"name": "b", "properties": {"ipAddress": "10.0.0.5"}}]),
    };
    let pools = ["one", "two"].map(|pool| {
        json!({"name": pool, "properties": {"drainPeriodInSeconds": 30, "virtualNetwork": {"id": "nodes"},
            "loadBalancerBackendAddresses": addresses(pool)}})
    });
    let load_balancer = json!({"id": LOAD_BALANCER, "location": "westeurope", "sku": {"name": "Standard"},
        "properties": {"backendAddressPools": pools}});
    let memberships = ["one", "two"].map(|pool| json!({"id": pool_id(pool)}));
    let interface = json!({
        "id": "/subscriptions/0000-secret/resourceGroups/rg/providers/Microsoft.Network/networkInterfaces/nic", "location": "westeurope",
        "properties": {"ipConfigurations": [{"name": "c", "properties": {"privateIPAddress": "10.0.0.4",
            "loadBalancerBackendAddressPools": memberships}}]}});
    if is_of_interfaces {
        vec![load_balancer, interface]
    } else {
        vec![load_balancer]
    }
}

impl World {
    async fn new(is_of_interfaces: bool, settings: Settings, clock: Clock) -> Self {
        let role: Vec<_> = role_actions().collect();
        let seed =
            json!({"resources": resources(is_of_interfaces), "authorization": {"permissions": [{"actions": role}]}});
        let emulator = Emulator::new(settings, serde_json::from_value(seed).unwrap(), clock.clone(), 1).unwrap();
        let server = emulator.clone();
        let transport = Transport::new(service_fn(move |request: Request<Bytes>| {
            let emulator = server.clone();
            async move {
                let (mut parts, body) = request.into_parts();
                parts.uri = parts.uri.path_and_query().unwrap().as_str().parse().unwrap();
                let answer: Result<Response<Bytes>, _> = emulator.call(Request::from_parts(parts, body), BASE).await;
                answer.map_err(|error| TransportError::Connection(error.to_string()))
            }
        }));
        let endpoints = Endpoints::discover(&transport, BASE, None).await.unwrap();
        let credential = Credential::ClientSecret {
            client_id: "client".to_owned(),
            secret: Secret::new("secret"),
        };
        let identity = Identity::new(&credential, Some("tenant"), &endpoints, BASE).unwrap();
        let tokens = TokenCache::new(identity, transport.clone(), clock.clone());
        let options = ArmClientOptions {
            endpoints,
            rate_limits: None,
            user_agent: None,
        };
        Self {
            emulator,
            arm: ArmClient::new(options, transport, Arc::new(tokens), clock.clone()),
            kubernetes: FakeApi::default(),
            clock,
        }
    }

    fn control(&self, method: &str, path: &str, body: &Value) -> Value {
        self.emulator.send_control(method, path, body).unwrap()
    }

    /// The entries of all pools, with their admin states.
    fn entries(&self) -> Vec<(String, String, Option<String>)> {
        let state = self.control("GET", "state", &Value::Null);
        let is_ours = |found: &&Value| found["id"] == LOAD_BALANCER;
        let found = state["resources"].as_array().unwrap().iter().find(is_ours).unwrap();
        let pools = found["properties"]["backendAddressPools"].as_array().unwrap();
        let entries = pools.iter().flat_map(|pool| {
            let entries = pool["properties"]["loadBalancerBackendAddresses"].as_array().unwrap();
            let text = |value: &Value| value.as_str().map(str::to_owned);
            entries.iter().map(move |entry| {
                let state = text(&entry["properties"]["adminState"]).filter(|state| state != "None");
                (text(&pool["name"]).unwrap(), text(&entry["name"]).unwrap(), state)
            })
        });
        entries.collect()
    }

    /// What the ledger of this command has.
    fn ledger(&self) -> Value {
        let object = self.kubernetes.peek::<ConfigMap>("kube-system", "headgate-admin-state");
        let text = object.and_then(|object| object.data?.get("verify.json").cloned());
        text.map_or(Value::Null, |text| {
            serde_json::from_str::<Value>(&text).unwrap()["entries"].clone()
        })
    }

    async fn run(&self, plan: Plan, interrupted: CancellationToken) -> VerifyReport {
        let request = VerifyRequest {
            arm: self.arm.clone(),
            plan,
            shows_ids: false,
            started_at: Timestamp::UNIX_EPOCH,
            interrupted,
        };
        let writer = SoleWriterRequest {
            client: self.kubernetes.client().0,
            is_of_cluster: false,
            lease_timeout: Duration::from_secs(1),
            clock: self.clock.clone(),
        };
        let work = move |writer| verify(request.clone(), writer);
        run_as_sole_writer(writer, std::future::pending(), work).await.unwrap()
    }
}

fn plan(is_of_interfaces: bool) -> Plan {
    let load_balancer = LoadBalancerId::parse(LOAD_BALANCER).unwrap();
    let entry = EntryKey::from_text(if is_of_interfaces { "name:rg_nicc" } else { "10.0.0.4" });
    let target = |pool: &str| Target {
        pool: load_balancer.pool(pool).unwrap(),
        entry: entry.clone(),
    };
    Plan {
        named: Named {
            first: target("one"),
            second: Some(target("two")),
            load_balancer,
        },
        spare: (!is_of_interfaces).then(|| SPARE.parse().unwrap()),
        frontend: None,
        observe: Duration::from_secs(2),
        quiet: Duration::from_millis(500),
    }
}

fn clock() -> Clock {
    Clock::anchored("2026-01-02T03:04:05Z".parse().unwrap())
}

fn with_verdict(report: &VerifyReport, verdict: Verdict) -> BTreeSet<&'static str> {
    let rows = report.answers.iter().filter(|row| row.verdict == verdict);
    rows.map(|row| row.id).collect()
}

/// What turns an assumption false.
enum Switch {
    Nothing,
    Deviation(Deviation),
    ShownNone,
    /// What the emulator does to requests with this method and path.
    Fault(&'static str, &'static str, Value),
}

const PUT_POOL: &str = "/backendAddressPools/";

/// Each switch, whether the pools are of interfaces, and which assumptions are reported false.
fn rows() -> Vec<(Switch, bool, &'static [&'static str])> {
    let refused = || json!({"answer": {"status": 400, "body": {"error": {"code": "NotSupported", "message": "No."}}}});
    let lost = || json!({"operation": "succeed", "effect": "lost"});
    let forbidden = || json!({"answer": {"code": "AuthorizationFailed"}});
    vec![
        (Switch::Nothing, false, &[]),
        (Switch::Nothing, true, &[]),
        (Switch::Fault("PUT", PUT_POOL, refused()), false, &["write-addresses"]),
        (Switch::Fault("PUT", PUT_POOL, refused()), true, &["write-interfaces"]),
        (Switch::Fault("PUT", PUT_POOL, lost()), false, &["write-addresses"]),
        (
            Switch::Deviation(Deviation::IfMatchIgnored),
            false,
            &["if-match-addresses"],
        ),
        (
            Switch::Deviation(Deviation::IfMatchIgnored),
            true,
            &["if-match-interfaces"],
        ),
        // It reads load balancers, as the leader does.
        (
            Switch::Deviation(Deviation::LoadBalancersHideAdminStates),
            false,
            &["write-addresses"],
        ),
        (
            Switch::Deviation(Deviation::LoadBalancersHideAdminStates),
            true,
            &["write-interfaces"],
        ),
        (Switch::ShownNone, false, &["restored-state"]),
        (Switch::Deviation(Deviation::PoolsHaveOwnEtags), false, &["etags"]),
        (
            Switch::Deviation(Deviation::PoolsStaySucceeded),
            false,
            &["pools-updating"],
        ),
        (
            Switch::Fault("GET", "/operations/", forbidden()),
            false,
            &["operation-status", "role"],
        ),
        (
            Switch::Deviation(Deviation::SecondWriteRefused),
            false,
            &["second-write"],
        ),
        (
            Switch::Deviation(Deviation::SupersededChangesLost),
            false,
            &["superseded-members", "superseded-states"],
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn an_assumption_holds_until_a_switch_turns_it_false() {
    let mut falsified = BTreeSet::new();
    for (number, (switch, is_of_interfaces, expected)) in rows().into_iter().enumerate() {
        let mut settings = Settings {
            operation_delay: Duration::from_secs(2),
            ..Settings::default()
        };
        match &switch {
            Switch::Deviation(deviation) => settings.deviations = Deviations::only(*deviation),
            Switch::ShownNone => settings.admin_state_none = AdminStateNone::Shown,
            Switch::Nothing | Switch::Fault(..) => {}
        }
        let world = World::new(is_of_interfaces, settings, clock()).await;
        if let Switch::Fault(method, path, action) = &switch {
            let rule = json!({"match": {"method": method, "path": path}, "action": action});
            world.control("POST", "faults", &rule);
        }
        let before = world.entries();
        let report = world.run(plan(is_of_interfaces), CancellationToken::new()).await;
        let text = report.markdown();
        let expected: BTreeSet<&str> = expected.iter().copied().collect();
        assert_eq!(with_verdict(&report, Verdict::False), expected, "row {number}: {text}");
        assert_eq!(report.ended_early, None, "row {number}: {text}");
        assert_eq!(
            (report.not_restored.len(), report.falsified()),
            (0, expected.len()),
            "row {number}: {text}"
        );
        assert_eq!(world.entries(), before, "row {number}");
        assert!(
            world.ledger().as_array().is_none_or(Vec::is_empty),
            "row {number}: {}",
            world.ledger()
        );
        for secret in ["0000-secret", "scratch", "10.0.0."] {
            assert!(!text.contains(secret), "row {number}: {text}");
            assert!(
                !serde_json::to_string(&report).unwrap().contains(secret),
                "row {number}"
            );
        }
        if matches!(
            switch,
            Switch::Deviation(Deviation::IfMatchIgnored | Deviation::PoolsHaveOwnEtags)
        ) {
            let holds = with_verdict(&report, Verdict::Holds);
            assert!(holds.contains("restored-state"), "row {number}: {text}");
        }
        if matches!(switch, Switch::Nothing) {
            let kind = if is_of_interfaces { "-addresses" } else { "-interfaces" };
            let of_other = |id: &str| id.ends_with(kind) || id.ends_with("-connections");
            let open = |id: &str| of_other(id) || is_of_interfaces && id == "superseded-members";
            let asked = ASSUMPTIONS
                .iter()
                .map(|assumption| assumption.id)
                .filter(|id| !open(id));
            assert_eq!(
                with_verdict(&report, Verdict::Holds),
                asked.collect::<BTreeSet<_>>(),
                "{text}"
            );
        }
        falsified.extend(expected);
    }
    let by_traffic = ["new-connections", "established-connections"];
    let all = ASSUMPTIONS.iter().map(|assumption| assumption.id);
    let others: BTreeSet<_> = all.filter(|id| !by_traffic.contains(id)).collect();
    assert_eq!(falsified, others, "every assumption has a switch");
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_at_any_time_leaves_everything_as_it_was() {
    let second = Duration::from_secs(1);
    // How long an operation takes, and how far reads lag.
    for (operation_delay, read_lag) in [
        (second * 2, Duration::ZERO),
        (second * 2, second * 2),
        (second / 2, second * 2),
    ] {
        for interrupted_after in 0..14 {
            let row = format!("{operation_delay:?} {read_lag:?} {interrupted_after} s");
            let settings = Settings {
                operation_delay,
                read_lag,
                ..Settings::default()
            };
            let world = World::new(false, settings, clock()).await;
            let before = world.entries();
            let interrupted = CancellationToken::new();
            let interrupt = async {
                tokio::time::sleep(second * interrupted_after + Duration::from_millis(300)).await;
                let entries = world.entries();
                interrupted.cancel();
                entries
            };
            let (report, at_interrupt) = tokio::join!(world.run(plan(false), interrupted.clone()), interrupt);
            let text = report.markdown();
            assert_eq!(
                (world.entries(), report.not_restored.len()),
                (before, 0),
                "{row}: {text}"
            );
            let is_finished = report
                .answers
                .iter()
                .any(|row| row.id == "role" && row.verdict == Verdict::Holds);
            let ended = report.ended_early.as_deref() == Some("interrupted");
            assert!(is_finished != ended, "{row}: {text}");
            if interrupted_after == 0 {
                assert!(
                    at_interrupt.iter().any(|(.., state)| state.is_some()),
                    "{row}: {at_interrupt:?}"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_another_writer_set_down_is_left_alone() {
    // The entry itself, and a member with the address that is to be added.
    for (first, second, words) in [
        ("Down", "None", "admin state of another writer"),
        ("None", "Down", "--spare-address"),
    ] {
        let world = World::new(false, Settings::default(), clock()).await;
        let entry = |name: &str, address: &str, state: &str| json!({"name": name, "properties": {"ipAddress": address, "adminState": state}});
        let rule = json!({"match": {"method": "GET", "path": "/loadBalancers/scratch$"}, "times": 1, "action": {"write": {
            "path": format!("{LOAD_BALANCER}/backendAddressPools/one"),
            "merge": {"properties": {"loadBalancerBackendAddresses": [entry("a", "10.0.0.4", first), entry("b", SPARE, second)]}}}}});
        world.control("POST", "faults", &rule);
        let report = world.run(plan(false), CancellationToken::new()).await;
        let why = report.ended_early.unwrap_or_default();
        assert!(why.contains(words), "{why}");
        let of_pool =
            |(pool, entry, state): (String, String, Option<String>)| (pool == "one").then_some((entry, state));
        let state = |text: &str| (text == "Down").then(|| text.to_owned());
        let expected = [("a".to_owned(), state(first)), ("b".to_owned(), state(second))];
        assert_eq!(
            world.entries().into_iter().filter_map(of_pool).collect::<Vec<_>>(),
            expected,
            "{words}"
        );
    }
}

/// Reads may come from a replica that lags behind the one that has shown the `Down`.
#[tokio::test(start_paused = true)]
async fn reads_from_before_the_down_do_not_pass_for_a_restored_state() {
    // Reads before the write with the old etag, before the one that sets the entry back, and after that.
    const STALE: usize = 4;
    const BEFORE: usize = 5;
    const AFTER: usize = 6;
    for (admin_state_none, skip, times, expected) in [
        (AdminStateNone::Omitted, STALE, 1, Verdict::Holds),
        (AdminStateNone::Omitted, BEFORE, 1, Verdict::Holds),
        (AdminStateNone::Shown, BEFORE, 2, Verdict::False),
        (AdminStateNone::Omitted, AFTER, 2, Verdict::Holds),
        (AdminStateNone::Shown, AFTER, 1, Verdict::False),
        // Longer than reads may lag.
        (AdminStateNone::Shown, AFTER, 32, Verdict::NotDecided),
    ] {
        let settings = Settings {
            admin_state_none,
            ..Settings::default()
        };
        let world = World::new(false, settings, clock()).await;
        let id = LoadBalancerId::parse(LOAD_BALANCER).unwrap();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(1);
        let stale = world.arm.get_load_balancer(&id, |_| (), deadline).await.unwrap();
        let stale: Value = serde_json::from_slice(stale.text.as_bytes()).unwrap();
        let rule = json!({"match": {"method": "GET", "path": "/loadBalancers/scratch$"}, "skip": skip, "times": times,
            "action": {"answer": {"status": 200, "body": stale}}});
        world.control("POST", "faults", &rule);
        let report = world.run(plan(false), CancellationToken::new()).await;
        let has = with_verdict(&report, expected);
        assert!(has.contains("restored-state"), "{skip} {times}: {}", report.markdown());
        let holds = with_verdict(&report, Verdict::Holds);
        assert!(
            holds.contains("if-match-addresses"),
            "{skip} {times}: {}",
            report.markdown()
        );
    }
}
