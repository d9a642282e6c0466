//! Looks from outside: samples of the load balancers, the emulator's journal, and kube-apiserver's audit log.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::super::super::real_cloud_controller_manager::{CLUSTER, resources};
use crate::chaos::Violation;
use crate::chaos::connections::Backends;
use crate::chaos::history::{Event, from_audit, from_journal};
use crate::chaos::rules::{Observations, World};
use crate::harness::http;

const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
const JOURNAL_INTERVAL: Duration = Duration::from_millis(500);
/// A request that has been open for so long belongs to a caller that is gone.
const OPEN_REQUEST_TIMEOUT: SignedDuration = SignedDuration::from_secs(30);

/// Events that a violation shows.
const CONTEXT_EVENTS: usize = 40;

/// What the observer and the disturbances share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) world: Mutex<World>,
    pub(super) observations: Mutex<Observations>,
    pub(super) history: Mutex<Vec<Event>>,
    pub(super) violations: Mutex<Vec<Violation>>,
    /// Of the pool of all nodes, as the last sample shows it.
    pub(super) backends: watch::Sender<Backends>,
    emulator: SocketAddr,
    audit_log: PathBuf,
    positions: tokio::sync::Mutex<Positions>,
}

/// How far journal and audit log have been read.
#[derive(Debug, Default)]
struct Positions {
    journal: u64,
    audit: u64,
}

impl Shared {
    pub(super) fn new(world: World, emulator: SocketAddr, audit_log: &Path) -> Arc<Self> {
        Arc::new(Self {
            world: Mutex::new(world),
            observations: Mutex::default(),
            history: Mutex::default(),
            violations: Mutex::default(),
            backends: watch::Sender::default(),
            emulator,
            audit_log: audit_log.to_owned(),
            positions: tokio::sync::Mutex::default(),
        })
    }

    pub(super) fn add(&self, event: Event) {
        self.history.lock().unwrap().push(event);
    }

    /// Adds a violation with what the history has last.
    pub(super) async fn add_violation(&self, invariant: &'static str, text: String) {
        self.read_logs().await;
        let text = format!("{text}; seen at {}", Timestamp::now());
        println!("violation: {text}");
        let history = self.history.lock().unwrap();
        let first = history.len().saturating_sub(CONTEXT_EVENTS);
        let violation = Violation {
            invariant,
            text,
            context: history[first..].to_vec(),
        };
        self.violations.lock().unwrap().push(violation);
    }

    pub(super) async fn load_balancers(&self) -> Vec<Value> {
        resources(self.emulator, "loadBalancers").await
    }

    /// Reads what is new in the journal and in the audit log.
    pub(super) async fn read_logs(&self) {
        let mut positions = self.positions.lock().await;
        while self.read_journal(&mut positions.journal).await {}
        self.read_audit_log(&mut positions.audit);
    }

    /// Reads a page of the journal, up to the first request that is still open; returns whether there may be more.
    async fn read_journal(&self, position: &mut u64) -> bool {
        let path = format!("journal?after={position}&limit=1000&path=/loadBalancers/");
        let page = http::control(self.emulator, "GET", &path, &Value::Null).await;
        assert_eq!(page["dropped"], 0, "the journal is read too seldom");
        let entries = page["entries"].as_array().unwrap();
        let mut history = self.history.lock().unwrap();
        for entry in entries {
            if entry["completed"].is_null() {
                let arrived: Timestamp = entry["arrived"].as_str().unwrap().parse().unwrap();
                if Timestamp::now().duration_since(arrived) < OPEN_REQUEST_TIMEOUT {
                    return false;
                }
            }
            *position = entry["sequence"].as_u64().unwrap();
            history.extend(from_journal(entry));
        }
        *position = page["next"].as_u64().unwrap();
        entries.len() >= 100
    }

    fn read_audit_log(&self, position: &mut u64) {
        let Ok(mut file) = std::fs::File::open(&self.audit_log) else {
            return;
        };
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(*position)).unwrap();
        file.read_to_end(&mut text).unwrap();
        let complete = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        *position += complete as u64;
        let lines = text[..complete].split(|byte| *byte == b'\n');
        // kube-apiserver may be killed while it writes a line.
        let events = lines.filter_map(|line| from_audit(&serde_json::from_slice(line).ok()?));
        self.history.lock().unwrap().extend(events);
    }

    /// Looks until it is aborted.
    pub(super) fn observe(self: &Arc<Self>) -> JoinHandle<()> {
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let mut read_at = Instant::now();
            loop {
                let load_balancers = shared.load_balancers().await;
                let now = Instant::now();
                let world = shared.world.lock().unwrap().clone();
                let backends = Backends::of(&load_balancers, CLUSTER, &world.nodes);
                shared.backends.send_if_modified(|known| {
                    let is_changed = *known != backends;
                    *known = backends;
                    is_changed
                });
                let emptied = {
                    let mut observations = shared.observations.lock().unwrap();
                    observations.sample(&load_balancers, &world, now);
                    std::mem::take(&mut observations.violations)
                };
                for text in emptied {
                    shared.add_violation("rules", text).await;
                }
                if now >= read_at {
                    shared.read_logs().await;
                    read_at = now + JOURNAL_INTERVAL;
                }
                sleep(SAMPLE_INTERVAL).await;
            }
        })
    }
}

/// The policy of the audit log: all requests for Leases and `ConfigMaps` in `kube-system` but watches and lists, with bodies.
pub(super) const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: RequestResponse
  namespaces: [kube-system]
  verbs: [get, create, update, patch, delete]
  resources:
  - {group: coordination.k8s.io, resources: [leases]}
  - {group: '', resources: [configmaps]}
- level: None
";
