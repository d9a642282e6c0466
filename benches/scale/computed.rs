//! 100,000 Nodes, computed from this run: every figure is in proportion to what was measured, and nobody has measured it.

use serde::Serialize;

use crate::measuring::figures::{float, rounded};
use crate::recording::Usage;
use crate::report::{Conditions, Phase};

const NODES: f64 = 100_000.0;
/// After so long each agent lists its own Node and watches it anew.
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
    let usage = |name: &str| phases.iter().find(|phase| phase.name == name).map(|phase| &phase.usage);
    let mut all = requests();
    if let Some(rest) = usage("at rest") {
        all.extend(memory(conditions, rest));
    }
    if let Some(churn) = usage("churn") {
        all.extend(updates(churn));
        let signals = phases
            .iter()
            .find(|phase| phase.name == "churn")
            .and_then(|phase| phase.signals.as_ref());
        if let Some(signals) = signals.filter(|_| churn.arm_puts > 0) {
            let puts = float(churn.arm_puts as u64) / float(signals.signals.max(1) as u64);
            all.push(figure("PUTs of one signal and its end, in this run", puts, "", "churn"));
            let most = ARM_WRITES / puts;
            all.push(figure(
                "signals at which ARM's limit stops that",
                most,
                "a second",
                "1,000 writes in 5 minutes",
            ));
        }
    }
    all.extend(writes());
    let ledger = phases
        .iter()
        .find_map(|phase| phase.ledger)
        .filter(|ledger| ledger.entries > 0);
    if let Some(ledger) = ledger {
        let each = float(ledger.bytes as u64) / float(ledger.entries as u64);
        all.push(figure("bytes of a ledger entry", each, "", "taint of three tenths"));
        let most = LEDGER_BYTES / each;
        let from = "a ledger of at most 1,000,000 bytes";
        all.push(figure("pool entries that can be Down at the same time", most, "", from));
    }
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
            "lists of 100,000 agents",
            renewals,
            "a second",
            "one of the own Node in 290 s",
        ),
        figure("new watches of 100,000 agents", renewals, "a second", "the same"),
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

fn memory(conditions: &Conditions, rest: &Usage) -> Vec<Computed> {
    let (Some(leader), Some(other)) = (&rest.leader, &rest.other_controller) else {
        return Vec::new();
    };
    // A controller that does not lead knows no Nodes.
    let base = other.resident_mebibytes;
    let each = (leader.resident_mebibytes - base) / float(conditions.nodes as u64);
    let most = (MEMORY_LIMIT - base) / each;
    vec![
        figure(
            "leader's memory for a Node, with its pool entries",
            each * 1024.0,
            "KiB",
            "leader less other controller, at rest: Services and the rest are in it, so too much for few Nodes",
        ),
        figure("leader's memory", base + each * NODES, "MiB", "the same in proportion"),
        figure(
            "Nodes at which the chart's limit of 256 MiB stops a leader",
            most,
            "",
            "the same in proportion",
        ),
    ]
}

/// What updates of kubelets cost the leader.
fn updates(churn: &Usage) -> Vec<Computed> {
    let Some(leader) = churn.leader.as_ref().filter(|_| churn.node_updates_per_second > 0.0) else {
        return Vec::new();
    };
    let updates = churn.node_updates_per_second * churn.seconds;
    let (bytes, processor) = (leader.received_mebibytes / updates, leader.cpu_seconds / updates);
    let rate = NODES / STATUS_PERIOD;
    let from = "churn, everything counted for its Node updates, at one status in 300 s";
    vec![
        figure(
            "leader receives from the API server at rest, at most",
            bytes * rate,
            "MiB/s",
            from,
        ),
        figure(
            "leader's processor time at rest, at most",
            processor * rate * 100.0,
            "% of a core",
            from,
        ),
        figure(
            "Node updates at which one core is full",
            1.0 / processor,
            "a second",
            "churn",
        ),
    ]
}

/// Where ARM's limit stops pools that always have a change to write.
fn writes() -> Vec<Computed> {
    let pools = NODES / POOL_ENTRIES;
    let mut all = vec![figure(
        "pools of 5,000 entries, for one entry of each Node",
        pools,
        "",
        "Azure's limit of a pool",
    )];
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
