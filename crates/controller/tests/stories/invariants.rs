//! The real state of a random run, whatever its leaders have observed, and the invariants of each write.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use headgate_azure_emulator::{Emulator, Settings, pools_in};
use headgate_core::node::DEFAULT_SIGNAL_TAINTS;
use headgate_core::settings::IntOrPercent;
use headgate_kubernetes::leader::Term;
use hyper::header::IF_MATCH;
use hyper::{Method, Request};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use super::assumptions::node_of_entry;
use super::guard::is_healthy;
use super::random::PROBE_ONLY_LABEL;
use super::world::{Spy, World, address, is_own};

/// How old the observations of a leader may be: a broken watch is restarted with backoff while the term is renewed, and without
/// the API server a term lasts 10 s.
const MAX_OBSERVATION_AGE: Duration = Duration::from_secs(75);

#[derive(Default)]
struct State {
    /// By node: whether it has a taint that is a signal, and whether it is cordoned.
    causes: BTreeMap<usize, (bool, bool)>,
    /// By node: start and end of each signal. A cordon is one from its start, although it must last.
    signals: BTreeMap<usize, Vec<(Instant, Option<Instant>)>>,
    /// By node: until when it had a signal that is not revocable, or may have been away; `None` if it has one now.
    terminal: BTreeMap<usize, Option<Instant>>,
    /// The entries that a leader has set `Down`: path of the pool, address.
    owned: BTreeSet<(String, String)>,
    /// The same where `If-Match` was ignored and another writer may have set it meanwhile, with the number of the write: path of the
    /// pool, address.
    overwritten: Vec<(usize, (String, String))>,
    /// The entries of each version of a pool that was there while a leader asked: path of the pool, etag.
    versions: BTreeMap<(String, String), Vec<(String, String)>>,
    puts: usize,
    /// Whether an entry stays `Down` while its node has the signal.
    keeps_signalled_down: bool,
    /// The terms of all leaders, also of former ones.
    terms: Vec<watch::Receiver<Option<Term>>>,
    violations: Vec<String>,
}

impl State {
    /// Starts or ends the node's signal, by its causes.
    fn update_spans(&mut self, node: usize) {
        let signalled = self
            .causes
            .get(&node)
            .is_some_and(|(tainted, cordoned)| *tainted || *cordoned);
        let spans = self.signals.entry(node).or_default();
        match spans.last_mut() {
            Some((_, end @ None)) if !signalled => *end = Some(Instant::now()),
            Some((_, None)) => {}
            _ if signalled => spans.push((Instant::now(), None)),
            _ => {}
        }
    }
}

/// The real state. Clones share it.
#[derive(Clone)]
pub(crate) struct Invariants {
    state: Arc<Mutex<State>>,
    emulator: Emulator,
    minimum_in_service: IntOrPercent,
}

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Fields that only ARM writes, and the admin state, which is checked by itself.
const NOT_COMPARED: [&str; 11] = [
    "etag",
    "type",
    "provisioningState",
    "adminState",
    "backendIPConfigurations",
    "loadBalancingRules",
    "outboundRule",
    "outboundRules",
    "inboundNatRules",
    "networkInterfaceIPConfiguration",
    "inboundNatRulesPortMapping",
];

/// The address of an entry, or the name of one with an interface.
fn key_of(entry: &Value) -> String {
    let address = entry["properties"]["ipAddress"].as_str();
    address
        .or_else(|| entry["name"].as_str())
        .unwrap_or_default()
        .to_owned()
}

/// A document without the fields that are not compared.
pub(crate) fn comparable(document: &Value) -> Value {
    match document {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| !NOT_COMPARED.contains(&name.as_str()));
            kept.map(|(name, value)| (name.clone(), comparable(value))).collect()
        }
        Value::Array(items) => items.iter().map(comparable).collect(),
        other => other.clone(),
    }
}

fn entries(pool: &Value) -> Vec<(String, String)> {
    let list = pool["properties"]["loadBalancerBackendAddresses"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let entry = |entry: Value| {
        let state = entry["properties"]["adminState"].as_str().unwrap_or("None").to_owned();
        (key_of(&entry), state)
    };
    list.into_iter().map(entry).collect()
}

impl Invariants {
    pub(crate) fn new(emulator: Emulator, minimum_in_service: IntOrPercent) -> Self {
        Self {
            state: Arc::default(),
            emulator,
            minimum_in_service,
        }
    }

    /// From now on nothing is given back while its node has a signal: nothing but signals decides, and none comes again after its end.
    pub(crate) fn keep_signalled_down(&self) {
        self.state.lock().unwrap().keeps_signalled_down = true;
    }

    /// Records that the node has these taints from now on.
    pub(crate) fn set_taints(&self, node: usize, taints: &[&str]) {
        let signalled = taints.iter().any(|key| DEFAULT_SIGNAL_TAINTS.contains(key));
        let is_terminal = taints.contains(&OUT_OF_SERVICE);
        let mut state = self.state.lock().unwrap();
        let terminal = state.terminal.entry(node).or_insert_with(|| Some(Instant::now()));
        *terminal = match *terminal {
            _ if is_terminal => None,
            None => Some(Instant::now()),
            until => until,
        };
        state.causes.entry(node).or_default().0 = signalled;
        state.update_spans(node);
    }

    /// Records that the node is cordoned from now on, or is not.
    pub(crate) fn set_cordoned(&self, node: usize, is_cordoned: bool) {
        let mut state = self.state.lock().unwrap();
        state.causes.entry(node).or_default().1 = is_cordoned;
        state.update_spans(node);
    }

    /// Records that the Node is created again: leaders may still know the old one.
    pub(crate) fn set_replaced(&self, node: usize) {
        self.set_cordoned(node, false);
        self.state.lock().unwrap().terminal.insert(node, Some(Instant::now()));
    }

    fn node_of(&self, ip: &str) -> Option<usize> {
        let state = self.state.lock().unwrap();
        let mut nodes = state.signals.keys().copied();
        let by_interface = node_of_entry(ip);
        nodes.find(|node| by_interface == Some(*node) || [false, true].iter().any(|v6| address(*node, *v6) == ip))
    }

    /// Whether the node has a signal, or had one within this time.
    fn had_signal(&self, node: usize, within: Duration) -> bool {
        let state = self.state.lock().unwrap();
        state.signals[&node]
            .iter()
            .any(|(_, end)| end.is_none_or(|end| end.elapsed() <= within))
    }

    /// Whether the guard may keep the node in service, as each leader has observed by now.
    fn is_revocable(&self, node: usize) -> bool {
        let state = self.state.lock().unwrap();
        let terminal = state.terminal.get(&node).copied().flatten();
        terminal.is_some_and(|until| until.elapsed() > MAX_OBSERVATION_AGE)
    }

    /// Checks each write of a leader.
    pub(crate) fn spy(&self, terms: watch::Receiver<Option<Term>>) -> Spy {
        let invariants = self.clone();
        self.state.lock().unwrap().terms.push(terms.clone());
        Arc::new(move |request| {
            invariants.keep_versions();
            if request.method() == Method::PUT {
                invariants.write(request, &terms);
            }
        })
    }

    /// Checks the sender of each write of a leader that may change more than admin states.
    pub(crate) fn sender_spy(&self, terms: watch::Receiver<Option<Term>>) -> Spy {
        let invariants = self.clone();
        self.state.lock().unwrap().terms.push(terms.clone());
        Arc::new(move |request| {
            if request.method() == Method::PUT {
                invariants.check_sender(request, &terms);
            }
        })
    }

    /// All pools as the emulator has them, but for their admin states.
    pub(crate) fn members(&self) -> Vec<Value> {
        self.pools().iter().map(comparable).collect()
    }

    fn violation(&self, text: String) {
        self.state.lock().unwrap().violations.push(text);
    }

    /// Checks that the only leader that may write sends this, on the condition that what it has read is still there. Returns the etag.
    fn check_sender(&self, request: &Request<bytes::Bytes>, terms: &watch::Receiver<Option<Term>>) -> Option<String> {
        let path = request.uri().path();
        if terms.borrow().as_ref().is_none_or(|term| term.permit().is_err()) {
            self.violation(format!("{path} is written without a valid term"));
        }
        let writers = self.writers();
        if writers > 1 {
            self.violation(format!("{path} is written while {writers} leaders may write"));
        }
        let if_match = request.headers().get(IF_MATCH);
        if if_match.is_none() {
            self.violation(format!("{path} is written without If-Match"));
        }
        if_match.map(|etag| etag.to_str().unwrap().to_owned())
    }

    fn write(&self, request: &Request<bytes::Bytes>, terms: &watch::Receiver<Option<Term>>) {
        let path = request.uri().path().to_owned();
        self.state.lock().unwrap().puts += 1;
        let if_match = self.check_sender(request, terms);
        let Some(before) = self.pool(&path) else {
            self.violation(format!("{path} is written and is not there"));
            return;
        };
        let body: Value = serde_json::from_slice(request.body()).unwrap();
        let Some(if_match) = if_match else { return };
        if before["etag"] != *if_match {
            let version = (path.to_lowercase(), if_match);
            let planned_from = self.state.lock().unwrap().versions.get(&version).cloned();
            let planned_from = planned_from.filter(|_| self.is_if_match_ignored());
            self.overwrite(&path, &planned_from.unwrap_or_else(|| entries(&before)), &body);
            return;
        }
        if comparable(&before) != comparable(&body) {
            self.violation(format!("{path}: more than admin states is changed: {before} to {body}"));
            return;
        }
        let mut changed = 0;
        let mut revocable_downs = Vec::new();
        for ((ip, from), (_, to)) in entries(&before).into_iter().zip(entries(&body)) {
            if from == to {
                continue;
            }
            changed += 1;
            let owned = (path.to_lowercase(), ip.clone());
            let Some(node) = self.node_of(&ip) else {
                self.violation(format!("{path}: {ip} belongs to no node"));
                continue;
            };
            match (from.as_str(), to.as_str()) {
                ("None", "Down") => {
                    if !self.had_signal(node, MAX_OBSERVATION_AGE) {
                        self.violation(format!("{path}: {ip} is set Down, and node {node} had no signal"));
                    }
                    self.state.lock().unwrap().owned.insert(owned);
                    revocable_downs.extend(Some(node).filter(|node| self.is_revocable(*node)));
                }
                ("Down", "None") => {
                    let state = self.state.lock().unwrap();
                    let is_own =
                        state.owned.contains(&owned) || state.overwritten.iter().any(|(_, entry)| *entry == owned);
                    drop(state);
                    if !is_own {
                        self.violation(format!("{path}: {ip} is a foreign Down"));
                    }
                    let is_kept = self.state.lock().unwrap().keeps_signalled_down;
                    if is_kept && self.had_signal(node, Duration::ZERO) {
                        self.violation(format!("{path}: {ip} is given back, and node {node} has a signal"));
                    }
                }
                _ => self.violation(format!("{path}: {ip} is changed from {from} to {to}")),
            }
        }
        let after = entries(&body);
        let up = after.iter().filter(|(_, state)| state != "Down").count();
        let minimum = self.minimum_in_service.rounded_up(after.len());
        if !revocable_downs.is_empty() && up < minimum {
            self.violation(format!(
                "{path}: nodes {revocable_downs:?} are set Down, and {up} of {minimum} entries stay in service"
            ));
        }
        if changed == 0 {
            self.violation(format!("{path} is written without a change"));
        }
    }

    fn is_if_match_ignored(&self) -> bool {
        let settings = self.emulator.send_control("GET", "settings", &Value::Null).unwrap();
        let mut deviations = settings["deviations"].as_array().into_iter().flatten();
        deviations.any(|deviation| deviation == "ifMatchIgnored")
    }

    /// A write that was planned from an old read: ARM rejects it, unless it ignores `If-Match`. If it accepts it, each new `Down` is the
    /// leader's own, also where another writer has set it meanwhile: `known` are the entries of that read.
    fn overwrite(&self, path: &str, known: &[(String, String)], body: &Value) {
        for (key, state) in entries(body) {
            let is_new = state == "Down" && !known.contains(&(key.clone(), state));
            if is_new
                && self
                    .node_of(&key)
                    .is_some_and(|node| self.had_signal(node, MAX_OBSERVATION_AGE))
            {
                let mut state = self.state.lock().unwrap();
                let number = state.puts;
                state.overwritten.push((number, (path.to_lowercase(), key)));
            }
        }
    }

    /// The entries that leaders have set `Down`, given the status of the answer to each write, if it had one.
    fn owned(&self, answers: &[Option<u64>]) -> BTreeSet<(String, String)> {
        let state = self.state.lock().unwrap();
        assert_eq!(answers.len(), state.puts, "answers to writes");
        let is_accepted = |number: usize| answers[number - 1].is_none_or(|status| status < 300);
        let accepted = state.overwritten.iter().filter(|(number, _)| is_accepted(*number));
        accepted.map(|(_, entry)| entry).chain(&state.owned).cloned().collect()
    }

    /// The number of leaders that may write now.
    fn writers(&self) -> usize {
        let state = self.state.lock().unwrap();
        let may_write =
            |terms: &&watch::Receiver<Option<Term>>| terms.borrow().as_ref().is_some_and(|term| term.permit().is_ok());
        state.terms.iter().filter(may_write).count()
    }

    /// All pools as the emulator has them.
    fn pools(&self) -> Vec<Value> {
        let state = self.emulator.send_control("GET", "state", &Value::Null).unwrap();
        pools_in(&state).cloned().collect()
    }

    /// A pool as the emulator has it.
    fn pool(&self, path: &str) -> Option<Value> {
        let is_it = |pool: &Value| pool["id"].as_str().is_some_and(|id| id.eq_ignore_ascii_case(path));
        self.pools().into_iter().find(is_it)
    }

    fn keep_versions(&self) {
        let pools = self.pools();
        let versions = &mut self.state.lock().unwrap().versions;
        for pool in pools {
            let text = |field: &str| pool[field].as_str().unwrap_or_default().to_owned();
            versions.insert((text("id").to_lowercase(), text("etag")), entries(&pool));
        }
    }

    /// Fails if a write violated an invariant.
    pub(crate) fn assert_held(&self, done: &[String]) {
        let violations = self.state.lock().unwrap().violations.clone();
        assert!(
            violations.is_empty(),
            "{}\nafter:\n{}",
            violations.join("\n"),
            done.join("\n")
        );
    }

    /// Fails if a write of a run that ends so violated an invariant, or if its end fails.
    pub(crate) async fn judge(&self, steps: &[String], settings: &Settings, end: impl Future<Output = ()>) {
        let ended = AssertUnwindSafe(end).catch_unwind().await;
        self.assert_held(steps);
        if let Err(panic) = ended {
            println!("{settings:?}\n{}", steps.join("\n"));
            resume_unwind(panic);
        }
    }

    /// The number of writes, and its limit: each step may need one write of each pool, and a fault a few more.
    pub(crate) fn puts(&self, happened: usize) -> (usize, usize) {
        (self.state.lock().unwrap().puts, 3 * (2 + 5 * happened))
    }
}

/// What a node does once nothing changes any more.
struct FinalNode {
    /// Whether it has no signal that says that its machine is about to end.
    is_alive: bool,
    /// Whether its agent would answer 200.
    is_healthy: bool,
    /// Whether it has the signal that only agents follow.
    is_probe_only: bool,
}

/// Checks the final state, once nothing changes any more: `Down` are the entries of nodes with a signal, apart from those that the
/// guard needs to keep the minimum in service; and these are in service by their probes, too.
pub(crate) async fn check_final_state(world: &World, invariants: &Invariants, pools: &[(&str, &str)], nodes: usize) {
    let mut finals = BTreeMap::new();
    for number in 1..=nodes {
        let found = Api::<Node>::all(world.client.clone())
            .get_opt(&format!("node-{number}"))
            .await;
        let Some(node) = found.unwrap() else { continue };
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let is_alive = !taints.iter().any(|taint| taint.key == OUT_OF_SERVICE);
        let is_healthy = is_healthy(world, number).await;
        let labels = node.metadata.labels.unwrap_or_default();
        let is_probe_only = labels.contains_key(PROBE_ONLY_LABEL);
        finals.insert(
            number,
            FinalNode {
                is_alive,
                is_healthy,
                is_probe_only,
            },
        );
    }
    // No spy watches `headgate restore`, which sets nothing `Down`.
    let is_watched = |put: &Value| is_own(put) && put["userAgent"] != "headgate/restore";
    let puts = world.puts().into_iter().filter(is_watched);
    let answers: Vec<_> = puts.map(|put| put["status"].as_u64()).collect();
    let owned = invariants.owned(&answers);
    for (load_balancer, name) in pools {
        let path = super::world::pool_path(load_balancer, name);
        let pool = invariants.pool(&path).unwrap();
        let minimum = world.guard.minimum_in_service.rounded_up(entries(&pool).len());
        let (mut serving, mut held, mut up, mut lost) = (0, 0, 0, 0);
        // Entries with a signal that only agents follow. The hold may be for another pool of the node.
        let mut covered = 0;
        for (ip, state) in entries(&pool) {
            let Some(node) = invariants.node_of(&ip) else { continue };
            let Some(known) = finals.get(&node) else { continue };
            let signalled = invariants.had_signal(node, Duration::ZERO);
            let owned = owned.contains(&(path.to_lowercase(), ip.clone()));
            match (signalled, state.as_str()) {
                (true, "None") if known.is_alive && known.is_healthy => held += 1,
                (true, "None") => panic!("{path}: {ip} is not Down, and node {node} has a signal"),
                // The guard may choose an entry that another writer has set `Up`, which stays so in any case.
                (true, "Up") if known.is_alive && known.is_healthy => up += 1,
                (false, "Down") if owned => panic!("{path}: {ip} is still Down, and node {node} has no signal"),
                (false, "None" | "Up") if known.is_probe_only && known.is_alive && known.is_healthy => covered += 1,
                (false, "None" | "Up") if known.is_probe_only => lost += usize::from(known.is_alive),
                (false, "None" | "Up") => serving += 1,
                (true, "Down") if known.is_alive && owned => lost += 1,
                _ => {}
            }
        }
        let needed = minimum.saturating_sub(serving);
        assert!(
            held <= needed,
            "{path}: {held} held back, {needed} needed, {serving} serve"
        );
        assert!(
            held + up + covered >= needed || lost == 0,
            "{path}: {held} held back, {covered} covered, {needed} needed, {lost} are alive and out"
        );
    }
}
