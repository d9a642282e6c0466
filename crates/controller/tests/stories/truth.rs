//! What is true in a story, whatever the leaders believe, and what must hold of each of their writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headgate_azure_emulator::Emulator;
use headgate_leader::Term;
use headgate_node::DEFAULT_SIGNAL_TAINTS;
use hyper::header::IF_MATCH;
use hyper::{Method, Request};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use super::world::{Spy, address};

/// A leader may act on what it knew so long ago: its term lasts 10 s without the API server, and a watch that
/// broke off is begun again with growing pauses, while the term is renewed.
const KNOWLEDGE: Duration = Duration::from_secs(75);

#[derive(Default)]
struct Known {
    /// By node: from when to when it had a signal.
    signals: BTreeMap<usize, Vec<(Instant, Option<Instant>)>>,
    /// Entries that some leader has sent as Down: pool's path and address.
    ours: BTreeSet<(String, String)>,
    puts: usize,
    wrong: Vec<String>,
}

/// What is true. Clones are the same.
#[derive(Clone)]
pub(crate) struct Truth {
    known: Arc<Mutex<Known>>,
    emulator: Emulator,
}

/// What only ARM writes, or is compared by itself.
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

/// A document without what is not compared.
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
        (
            entry["properties"]["ipAddress"].as_str().unwrap_or_default().to_owned(),
            state,
        )
    };
    list.into_iter().map(entry).collect()
}

impl Truth {
    pub(crate) fn new(emulator: Emulator) -> Self {
        Self {
            known: Arc::default(),
            emulator,
        }
    }

    /// The node has these taints from now on.
    pub(crate) fn node(&self, node: usize, taints: &[&str]) {
        let signalled = taints.iter().any(|key| DEFAULT_SIGNAL_TAINTS.contains(key));
        let mut known = self.known.lock().unwrap();
        let spans = known.signals.entry(node).or_default();
        match spans.last_mut() {
            Some((_, end @ None)) if !signalled => *end = Some(Instant::now()),
            Some((_, None)) => {}
            _ if signalled => spans.push((Instant::now(), None)),
            _ => {}
        }
    }

    fn node_of(&self, ip: &str) -> Option<usize> {
        let known = self.known.lock().unwrap();
        known
            .signals
            .keys()
            .copied()
            .find(|node| [false, true].iter().any(|v6| address(*node, *v6) == ip))
    }

    /// Whether it has a signal, or had one not longer ago than this.
    fn had_signal(&self, node: usize, within: Duration) -> bool {
        let known = self.known.lock().unwrap();
        known.signals[&node]
            .iter()
            .any(|(_, end)| end.is_none_or(|end| end.elapsed() <= within))
    }

    /// Looks at what a leader sends.
    pub(crate) fn spy(&self, terms: watch::Receiver<Option<Term>>) -> Spy {
        let truth = self.clone();
        Arc::new(move |request| {
            if request.method() == Method::PUT {
                truth.write(request, &terms);
            }
        })
    }

    fn wrong(&self, text: String) {
        self.known.lock().unwrap().wrong.push(text);
    }

    fn write(&self, request: &Request<bytes::Bytes>, terms: &watch::Receiver<Option<Term>>) {
        let path = request.uri().path().to_owned();
        self.known.lock().unwrap().puts += 1;
        if terms.borrow().as_ref().is_none_or(|term| term.permit().is_err()) {
            self.wrong(format!("{path} is written without a valid term"));
        }
        let if_match = request
            .headers()
            .get(IF_MATCH)
            .map(|etag| etag.to_str().unwrap().to_owned());
        let Some(before) = self.pool(&path) else {
            self.wrong(format!("{path} is written and is not there"));
            return;
        };
        let body: Value = serde_json::from_slice(request.body()).unwrap();
        let Some(if_match) = if_match else {
            self.wrong(format!("{path} is written without If-Match"));
            return;
        };
        if before["etag"] != *if_match {
            // It is refused.
            return;
        }
        if comparable(&before) != comparable(&body) {
            self.wrong(format!("{path}: more than admin states is changed: {before} to {body}"));
            return;
        }
        let mut changed = 0;
        for ((ip, from), (_, to)) in entries(&before).into_iter().zip(entries(&body)) {
            if from == to {
                continue;
            }
            changed += 1;
            let ours = (path.to_lowercase(), ip.clone());
            let Some(node) = self.node_of(&ip) else {
                self.wrong(format!("{path}: {ip} is nobody's"));
                continue;
            };
            match (from.as_str(), to.as_str()) {
                ("None", "Down") => {
                    if !self.had_signal(node, KNOWLEDGE) {
                        self.wrong(format!("{path}: {ip} is set Down, and node {node} had no signal"));
                    }
                    self.known.lock().unwrap().ours.insert(ours);
                }
                ("Down", "None") => {
                    if !self.known.lock().unwrap().ours.contains(&ours) {
                        self.wrong(format!("{path}: {ip} was somebody else's Down"));
                    }
                }
                _ => self.wrong(format!("{path}: {ip} is changed from {from} to {to}")),
            }
        }
        if changed == 0 {
            self.wrong(format!("{path} is written without a change"));
        }
    }

    /// A pool as it is.
    fn pool(&self, path: &str) -> Option<Value> {
        let request = Request::get("/emulator/v1/state").body(bytes::Bytes::new()).unwrap();
        let state: Value = serde_json::from_slice(self.emulator.control(&request).body()).unwrap();
        let (load_balancer, name) = path.rsplit_once("/backendAddressPools/")?;
        let resources = state["resources"].as_array()?;
        let found = resources.iter().find(|resource| {
            let id = resource["id"].as_str().unwrap_or_default();
            id.eq_ignore_ascii_case(load_balancer)
        })?;
        let pools = found["properties"]["backendAddressPools"].as_array()?;
        pools
            .iter()
            .find(|pool| {
                pool["name"]
                    .as_str()
                    .is_some_and(|known| known.eq_ignore_ascii_case(name))
            })
            .cloned()
    }

    /// Fails if something was wrong.
    pub(crate) fn assert_fine(&self, done: &[String]) {
        let wrong = self.known.lock().unwrap().wrong.clone();
        assert!(wrong.is_empty(), "{}\nafter:\n{}", wrong.join("\n"), done.join("\n"));
    }

    /// How many writes there were, and how many there may be: each thing that happens may need each pool written
    /// once, and a fault each of them a few times more.
    pub(crate) fn puts(&self, happened: usize) -> (usize, usize) {
        (self.known.lock().unwrap().puts, 3 * (2 + 5 * happened))
    }
}

/// What must hold when everything has come to rest.
pub(crate) fn check_at_rest(truth: &Truth, pools: &[(&str, &str)]) {
    for (load_balancer, name) in pools {
        let path = format!("{}/backendAddressPools/{name}", super::world::id_of(load_balancer));
        let pool = truth.pool(&path).unwrap();
        for (ip, state) in entries(&pool) {
            let Some(node) = truth.node_of(&ip) else { continue };
            let signalled = truth.had_signal(node, Duration::ZERO);
            let ours = truth
                .known
                .lock()
                .unwrap()
                .ours
                .contains(&(path.to_lowercase(), ip.clone()));
            match (signalled, state.as_str()) {
                (true, "None") => panic!("{path}: {ip} is not Down, and node {node} has a signal"),
                (false, "Down") if ours => panic!("{path}: {ip} is still Down, and node {node} has no signal"),
                _ => {}
            }
        }
    }
}
