//! Processor time of decisions and encoding, as pure calls on one thread: no sockets, no other task.
//!
//! The documents are the emulator's answers. Counted is what the leader does from 1,000 events of Nodes to four bodies
//! of PUTs: the Nodes' target states, a plan of each load balancer when the signals come and one after the read under the
//! ARM Lease, the changes, the ledger's text, the documents' text. Reading the answers is shown beside it.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use headgate_azure::{Etag, PoolDraft};
use headgate_controller::admin_state::{AdminStateMode, ForeignDown};
use headgate_controller::admin_state::{
    GuardInputs, GuardSettings, HeldEntries, Ledger, LedgerChange, LedgerEntry, LedgerStage, PlanInputs, Policy,
    TargetStates, plan,
};
use headgate_controller::pool::{ClusterNode, InterfaceCache, LoadBalancerView, PoolEdit, read_node};
use headgate_core::clock::Clock;
use headgate_core::node::{NodeReader, SignalSettings};
use serde_json::{Value, json};

use crate::azure::Azure;
use crate::documents::{SIGNAL, Shape, node};
use crate::measuring::cpu_time;
use crate::measuring::figures::{float, mebibytes, millis, rounded};
use crate::measuring::report::{Budget, Check, Row};

const SHAPE: Shape = Shape::LARGE;
const TAINTED: usize = 1000;
const ROUNDS: u32 = 20;
const POLICY: Policy = Policy {
    mode: AdminStateMode::Enforce,
    foreign_down: ForeignDown::Keep,
};

/// Processor time by step.
#[derive(Clone, Copy, Debug, Default)]
struct CpuTimes {
    targets: Duration,
    published: Duration,
    plans: Duration,
    applied: Duration,
    ledger: Duration,
    encoded: Duration,
    parsed: Duration,
    viewed: Duration,
    dropped: Duration,
}

impl CpuTimes {
    fn decision(&self) -> Duration {
        self.targets + self.published + self.plans
    }

    fn encoding(&self) -> Duration {
        self.applied + self.ledger + self.encoded
    }

    fn reading(&self) -> Duration {
        self.parsed + self.viewed + self.dropped
    }
}

/// Runs a step and adds its processor time.
fn spend<T>(on: &mut Duration, work: impl FnOnce() -> T) -> anyhow::Result<T> {
    let before = cpu_time::thread()?;
    let done = work();
    *on += cpu_time::thread()?.saturating_sub(before);
    Ok(done)
}

pub(super) async fn measure() -> anyhow::Result<Row> {
    let azure = Azure::start(SHAPE).await?;
    let mut answers = Vec::new();
    for name in SHAPE.names() {
        answers.push((name, Bytes::from(azure.load_balancer(name).await?)));
    }
    azure.stop().await;
    let received: usize = answers.iter().map(|(_, answer)| answer.len()).sum();
    let events: Vec<Value> = (0..SHAPE.nodes).map(|number| object(number, false)).collect();
    let tainted: Vec<Value> = (0..TAINTED).map(|number| object(number, true)).collect();
    // The first round is a warm-up.
    round(&answers, &events, &tainted, &mut CpuTimes::default())?;
    let (mut spent, mut written) = (CpuTimes::default(), 0);
    for _ in 0..ROUNDS {
        written = round(&answers, &events, &tainted, &mut spent)?;
    }
    let each = |time: Duration| millis(time / ROUNDS);
    let check = |figure, time, budget| Check::new(figure, each(time), "ms", None, budget);
    let bytes = |figure, count: usize| Check::new(figure, mebibytes(count as u64), "MiB", None, Budget::None);
    Ok(Row {
        checks: vec![
            check(
                "decision and encoding",
                spent.decision() + spent.encoding(),
                Budget::Most(100.0),
            ),
            check("decision", spent.decision(), Budget::None),
            check("encoding", spent.encoding(), Budget::None),
            check("reading the 4 documents once", spent.reading(), Budget::None),
            bytes("the 4 documents read", received),
            bytes("the 4 documents written", written),
        ],
        raw: json!({
            "rounds": ROUNDS, "tainted": TAINTED, "entries": SHAPE.nodes, "pools": SHAPE.all_pools(),
            "milliseconds": {
                "targets": rounded(each(spent.targets)), "publishing": rounded(each(spent.published)),
                "plans": rounded(each(spent.plans)), "applying": rounded(each(spent.applied)),
                "ledger": rounded(each(spent.ledger)), "encoding": rounded(each(spent.encoded)),
                "parsing": rounded(each(spent.parsed)), "views": rounded(each(spent.viewed)),
                "dropping": rounded(each(spent.dropped)),
            },
            "nodesReadMicroseconds": rounded(each(spent.targets) * 1e3 / float(TAINTED as u64)),
        }),
    })
}

/// Runs one flood; returns the bytes of all bodies.
fn round(
    answers: &[(&str, Bytes)],
    events: &[Value],
    tainted: &[Value],
    spent: &mut CpuTimes,
) -> anyhow::Result<usize> {
    let (clock, interfaces) = (Clock::System, InterfaceCache::default());
    let mut desired = TargetStates::default();
    for event in events {
        desired.apply(read(event)?, clock.now());
    }
    let news: Vec<ClusterNode> = tainted.iter().map(read).collect::<anyhow::Result<_>>()?;
    spend(&mut spent.targets, || {
        for node in news {
            desired.apply(node, clock.now());
        }
    })?;
    let published = spend(&mut spent.published, || Arc::new(desired.clone()))?;
    let (mut book, mut written) = (Ledger::default(), 0);
    for (_, answer) in answers {
        let document: Value = spend(&mut spent.parsed, || serde_json::from_slice(answer))??;
        let (view, mut pools) = spend(&mut spent.viewed, || view(&document, answer))??;
        let now = clock.now();
        let held = HeldEntries::new();
        let inputs = PlanInputs {
            interfaces: &interfaces,
            targets: &published,
            ledger: &book,
            policy: POLICY,
            guard: GuardInputs {
                settings: &GuardSettings::DISABLED,
                held: &held,
                services: None,
            },
            is_configured: true,
            now,
        };
        let plan = || plan(&view, &inputs);
        drop(spend(&mut spent.plans, plan)?);
        let edits = spend(&mut spent.plans, plan)?.edits;
        let edit: &PoolEdit = edits.first().context("an edit")?;
        ensure!(
            edits.len() == 1 && edit.admin_states.len() == TAINTED,
            "not what was to be planned"
        );
        let mut pool = pools.swap_remove(0);
        spend(&mut spent.applied, || edit.apply(&mut pool))?;
        let record = LedgerEntry {
            stage: LedgerStage::Intended,
            since: clock.now().wall,
        };
        let text = spend(&mut spent.ledger, || {
            for change in &edit.admin_states {
                book.apply(LedgerChange::new(&edit.pool, &change.key, Some(record)));
            }
            serde_json::to_vec(&book)
        })?;
        black_box(text?);
        let body = spend(&mut spent.encoded, || serde_json::to_vec(&pool.put_body()))??;
        written += body.len();
        spend(&mut spent.dropped, || drop((view, pool, edits)))?;
    }
    Ok(written)
}

fn object(number: usize, tainted: bool) -> Value {
    let mut object = node(number);
    object["metadata"]["uid"] = format!("0b0b0b0b-0b0b-0b0b-0b0b-{number:012}").into();
    object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    if tainted {
        object["spec"]["taints"] = json!([{"key": SIGNAL, "effect": "NoExecute"}]);
    }
    object
}

fn read(object: &Value) -> anyhow::Result<ClusterNode> {
    let reader = NodeReader {
        rules: SignalSettings::default().admin_state(),
        health_rules: SignalSettings::default().health(),
        ..NodeReader::default()
    };
    Ok(read_node(serde_json::from_value(object.clone())?, &reader))
}

fn view(document: &Value, text: &Bytes) -> anyhow::Result<(LoadBalancerView, Vec<PoolDraft>)> {
    let view = LoadBalancerView::new(document).map_err(anyhow::Error::msg)?;
    let pools = PoolDraft::all_of(text, &view.id, Etag::new("W/\"bench\"").as_ref())?;
    Ok((view, pools))
}
