//! Figures for 100,000 Nodes, in proportion to what this run measured. None of them is measured. Each Node is in as many pools as in the run.

use serde::Serialize;

use crate::measuring::figures::{float, rounded};
use crate::recording::Usage;
use crate::report::{Conditions, LedgerSize, Phase};
use crate::scenario::LOAD_BALANCERS;

const NODES: f64 = 100_000.0;
/// After so long each agent watches its own Node anew, which lists it.
const WATCH_PERIOD: f64 = 290.0;
/// Between two status updates of a kubelet without changes, and between two renewals of its Lease.
const STATUS_PERIOD: f64 = 300.0;
const LEASE_PERIOD: f64 = 10.0;
/// The chart's limit of memory of a controller, in MiB.
const MEMORY_LIMIT: f64 = 256.0;
/// ARM's limit of writes, for a second.
const ARM_WRITES: f64 = 1000.0 / 300.0;
/// Azure's limit of entries of a pool.
const POOL_ENTRIES: f64 = 5000.0;
/// The most that the ledger may have.
const LEDGER_BYTES: f64 = 1_000_000.0;
/// What the ledger has of one entry with a key and a time of its own: an address, and a network interface.
const LONE_LEDGER_ENTRIES: [&str; 2] = [
    r#"[{"down 2026-11-21T10:00:00Z":[10]},["10.224.10.100"]],"#,
    r#"[{"down 2026-11-21T10:00:00Z":[10]},["name:00001388-0000-4000-8000-000000000000"]],"#,
];

/// One computed figure.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Computed {
    pub(crate) figure: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// What it follows from.
    pub(crate) from: &'static str,
}

/// Computes all that the phases allow.
pub(crate) fn computed(conditions: &Conditions, phases: &[Phase]) -> Vec<Computed> {
    let phase = |name: &str| phases.iter().find(|phase| phase.name == name);
    let usage = |name: &str| phase(name).map(|phase| &phase.usage);
    let all_entries = float(LOAD_BALANCERS as u64) * float(conditions.nodes as u64).min(POOL_ENTRIES);
    let entries = all_entries / float(conditions.nodes as u64);
    let mut all = requests();
    if let Some(rest) = usage("at rest") {
        all.extend(memory(conditions, rest, usage("churn")));
        all.extend(updates(rest));
    }
    all.extend(writes(entries));
    all.extend(ledger(phases.iter().find_map(|phase| phase.ledger)));
    all
}

fn figure(figure: impl Into<String>, value: f64, unit: &'static str, from: &'static str) -> Computed {
    Computed {
        figure: figure.into(),
        value: rounded(value),
        unit,
        from,
    }
}

/// What agents and kubelets ask of the API server.
fn requests() -> Vec<Computed> {
    let renewals = NODES / WATCH_PERIOD;
    vec![
        figure(
            "new watches of 100,000 agents",
            renewals,
            "a second",
            "one of the own Node in 290 s, which lists it",
        ),
        figure(
            "Lease requests of 100,000 agents",
            0.0,
            "a second",
            "an agent has no Lease",
        ),
        figure(
            "renewals of Leases by 100,000 kubelets, for comparison",
            NODES / LEASE_PERIOD,
            "a second",
            "one in 10 s",
        ),
    ]
}

fn memory(conditions: &Conditions, rest: &Usage, churn: Option<&Usage>) -> Vec<Computed> {
    let (Some(leader), Some(other)) = (&rest.leader, &rest.other_controller) else {
        return Vec::new();
    };
    // A controller that does not lead knows no Nodes.
    let base = other.resident_mebibytes;
    let each = (leader.resident_mebibytes - base) / float(conditions.nodes as u64);
    let mut all = vec![
        figure(
            "leader's memory for a Node, with its pool entries",
            each * 1024.0,
            "KiB",
            "leader less other controller, at rest: Services and the rest are in it, so too much for few Nodes",
        ),
        figure(
            "leader's memory at rest",
            base + each * NODES,
            "MiB",
            "the same in proportion",
        ),
    ];
    if let Some(churn) = churn.and_then(|churn| churn.leader.as_ref()) {
        // Of documents of pools, of which ten are written at a time however many there are.
        let growth = churn.peak_mebibytes - leader.resident_mebibytes;
        all.push(figure(
            "leader's memory in churn",
            base + each * NODES + growth,
            "MiB",
            "the same, and what this run's had more at the peak of churn than at rest",
        ));
        all.push(figure(
            "Nodes at which the chart's limit of 256 MiB stops that",
            (MEMORY_LIMIT - base - growth) / each,
            "",
            "the same",
        ));
    }
    all
}

/// What updates of kubelets cost the leader.
fn updates(rest: &Usage) -> Vec<Computed> {
    let Some(leader) = rest.leader.as_ref().filter(|_| rest.node_updates_per_second > 0.0) else {
        return Vec::new();
    };
    let updates = rest.node_updates_per_second * rest.seconds;
    let (bytes, processor) = (leader.received_mebibytes / updates, leader.cpu_seconds / updates);
    let rate = NODES / STATUS_PERIOD;
    let from = "at rest, everything counted for its Node updates, at one status in 300 s";
    vec![
        figure(
            "leader receives from the API server at rest",
            bytes * rate,
            "MiB/s",
            from,
        ),
        figure(
            "leader's processor time at rest",
            processor * rate * 100.0,
            "% of a core",
            from,
        ),
        figure(
            "Node updates at which one core is full",
            1.0 / processor,
            "a second",
            "at rest",
        ),
    ]
}

/// Where ARM's limit stops signals, and pools that always have a change to write. Each Node has so many entries.
fn writes(entries: f64) -> Vec<Computed> {
    let (pools, puts) = (entries * NODES / POOL_ENTRIES, 2.0 * entries);
    let mut all = vec![
        figure(
            "pools of 5,000 entries",
            pools,
            "",
            "this run's entries of a Node, Azure's limit of a pool",
        ),
        figure(
            "PUTs of one signal and its end",
            puts,
            "",
            "two for each entry of the Node, none written with another's",
        ),
        figure(
            "signals at which ARM's limit stops that",
            ARM_WRITES / puts,
            "a second",
            "1,000 writes in 5 minutes",
        ),
    ];
    for operation in [1.0, 5.0, 10.0] {
        all.push(figure(
            format!("PUTs of so many pools without a pause, an operation takes {operation:.0} s"),
            pools / operation,
            "a second",
            "one operation at a time for each pool; ARM allows 3.3",
        ));
        all.push(figure(
            format!("pools at which ARM's limit stops that, an operation takes {operation:.0} s"),
            (ARM_WRITES * operation).floor(),
            "",
            "1,000 writes in 5 minutes",
        ));
    }
    all
}

/// Where the ledger is full.
fn ledger(measured: Option<LedgerSize>) -> Vec<Computed> {
    let most = |what: &'static str, bytes: f64, from| figure(what, LEDGER_BYTES / bytes, "", from);
    let alone: usize = LONE_LEDGER_ENTRIES.iter().map(|text| text.len()).sum();
    let alone = float(alone as u64) / float(LONE_LEDGER_ENTRIES.len() as u64);
    let mut all = vec![most(
        "Nodes with one pool entry each that can be Down at the same time, one by one",
        alone,
        "a ledger of at most 1,000,000 bytes, each entry with a key and a time of its own",
    )];
    if let Some(ledger) = measured.filter(|ledger| ledger.entries > 0) {
        all.push(most(
            "pool entries of this run's Nodes that can be Down at the same time, together",
            float(ledger.bytes as u64) / float(ledger.entries as u64),
            "taint of three tenths, in proportion",
        ));
    }
    all
}
