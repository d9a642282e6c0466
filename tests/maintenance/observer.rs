//! Follows all objects and the load balancers while the rows run, for the rules that hold in every row (`rules`).

mod rules;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::cluster::Cluster;
use crate::follow::follow;
use crate::{http, seed};

pub(crate) use rules::traces;

/// Between two reads of the emulated load balancers; far less than `connectionsDrainSeconds`.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The keys of the journal's page that is read with each poll.
const PAGE: usize = 1000;

/// What was seen.
#[derive(Default)]
struct Seen {
    /// For each node, when its admin states changed: from this read on it was Down everywhere, or not.
    down: BTreeMap<String, Vec<(Timestamp, bool)>>,
    /// When headgate's reads of load balancers were answered.
    reads: Vec<Timestamp>,
    journal: u64,
    /// The last state of each pod, by UID.
    pods: BTreeMap<String, Value>,
    /// The first state of each Evacuation, by UID.
    evacuations: BTreeMap<String, Value>,
    /// Nodes of events `LoadBalancerNotConfirmed`, with the time at which each was seen.
    not_confirmed: Vec<(String, Timestamp)>,
    /// Namespaces whose pods the test deletes.
    ignored: BTreeSet<String>,
    /// Namespaces in which headgate restarts rollouts, which delete pods that Deployments own.
    rolled: BTreeSet<String>,
    /// Budgets that had what they want at some time.
    satisfied: BTreeSet<String>,
    violations: Vec<String>,
    changes: u64,
    /// When the traces on each node changed, and what they were then.
    traces: BTreeMap<String, Vec<(Timestamp, Vec<String>)>>,
}

pub(crate) struct Observer {
    seen: Rc<RefCell<Seen>>,
    tasks: RefCell<JoinSet<()>>,
}

impl Observer {
    /// Starts to follow. The tasks end with the observer.
    pub(crate) fn start(cluster: &Rc<Cluster>) -> Rc<Self> {
        let seen = Rc::new(RefCell::new(Seen::default()));
        let mut tasks = JoinSet::new();
        for (group, version, kind) in [
            ("", "v1", "Pod"),
            ("", "v1", "Node"),
            ("policy", "v1", "PodDisruptionBudget"),
            ("headgate.dev", "v1alpha1", "NodeMaintenance"),
            ("headgate.dev", "v1alpha1", "Evacuation"),
            ("events.k8s.io", "v1", "Event"),
        ] {
            let (seen, client) = (seen.clone(), cluster.client.clone());
            tasks.spawn_local(async move {
                follow(client, group, version, kind, |object| {
                    seen.borrow_mut().see(kind, object);
                })
                .await;
            });
        }
        let (control, polled) = (cluster.emulator.control, seen.clone());
        tasks.spawn_local(async move {
            loop {
                let after = polled.borrow().journal;
                let before = Timestamp::now();
                let state = http::get(control, "/emulator/v1/state").await;
                let journal = format!("/emulator/v1/journal?after={after}&limit={PAGE}&method=GET");
                let journal = http::get(control, &journal).await;
                if let (Ok(state), Ok(journal)) = (state, journal) {
                    polled.borrow_mut().poll(before, &state.json(), &journal.json());
                }
                sleep(POLL_INTERVAL).await;
            }
        });
        Rc::new(Self {
            seen,
            tasks: RefCell::new(tasks),
        })
    }

    pub(crate) fn is_down(&self, node: &str) -> bool {
        let seen = self.seen.borrow();
        seen.down
            .get(node)
            .and_then(|all| all.last())
            .is_some_and(|(_, is_down)| *is_down)
    }

    pub(crate) fn ignore_deletions_in(&self, namespace: &str) {
        self.seen.borrow_mut().ignored.insert(namespace.to_owned());
    }

    pub(crate) fn allow_rollouts_in(&self, namespace: &str) {
        self.seen.borrow_mut().rolled.insert(namespace.to_owned());
    }

    /// What maintenances, and others, left on a node, and since when.
    pub(crate) fn traces(&self, node: &str) -> String {
        let seen = self.seen.borrow();
        seen.traces
            .get(node)
            .map(|all| format!("{node}: {all:?}"))
            .unwrap_or_default()
    }

    /// How many changes of Nodes, maintenances and Evacuations were seen.
    pub(crate) fn changes(&self) -> u64 {
        self.seen.borrow().changes
    }

    /// What broke a rule.
    pub(crate) fn violations(&self) -> Vec<String> {
        let seen = self.seen.borrow();
        let mut violations = seen.violations.clone();
        violations.extend(rules::evacuations_after_the_load_balancers(&seen));
        violations
    }

    pub(crate) fn summary(&self) -> String {
        let seen = self.seen.borrow();
        let (evacuations, pods, reads) = (seen.evacuations.len(), seen.pods.len(), seen.reads.len());
        format!(
            "followed {pods} pods, {evacuations} Evacuations and {reads} reads of load balancers; no rule was broken"
        )
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.tasks.borrow_mut().abort_all();
    }
}

impl Seen {
    fn see(&mut self, kind: &str, object: Value) {
        if ["Node", "NodeMaintenance", "Evacuation"].contains(&kind) {
            self.changes += 1;
        }
        match kind {
            "Pod" => {
                if !self
                    .rolled
                    .contains(object["metadata"]["namespace"].as_str().unwrap_or_default())
                {
                    self.violations.extend(rules::removal(&object, &self.ignored));
                }
                self.pods.insert(uid(&object), object);
            }
            "Node" => {
                let history = self
                    .traces
                    .entry(object["metadata"]["name"].as_str().unwrap_or_default().to_owned())
                    .or_default();
                let traces = traces(&object);
                if history.last().map(|(_, last)| last) != Some(&traces) {
                    history.push((Timestamp::now(), traces));
                }
            }
            "Evacuation" => {
                self.evacuations.entry(uid(&object)).or_insert(object);
            }
            "PodDisruptionBudget" => {
                let violation = rules::budget(&object, &self.ignored, &mut self.satisfied);
                self.violations.extend(violation);
            }
            "Event" if object["reason"] == "LoadBalancerNotConfirmed" => {
                let node = object["note"]
                    .as_str()
                    .and_then(rules::node_of_note)
                    .unwrap_or_default();
                self.not_confirmed.push((node.to_owned(), Timestamp::now()));
            }
            _ => {}
        }
    }

    fn poll(&mut self, now: Timestamp, state: &Value, journal: &Value) {
        let down = rules::down(state);
        for node in seed::nodes() {
            let is_down = down.contains(node);
            let history = self.down.entry(node.to_owned()).or_default();
            if history.last().map(|(_, last)| *last) != Some(is_down) {
                history.push((now, is_down));
            }
        }
        self.journal = journal["next"].as_u64().unwrap_or(self.journal);
        self.reads.extend(rules::reads(journal));
    }
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}
