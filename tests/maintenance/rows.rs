//! The rows: one for each case in which maintenances must hold their promises.

mod dry_run;
mod ends;
mod evacuators;
mod gates;
mod nodes;
mod plans;
mod pods;
mod rollouts;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

use crate::scene::Scene;

/// The only node of its pool, which the guard keeps in service.
pub(crate) const GUARDED: &str = "guarded";
/// The node whose pool cannot be written.
pub(crate) const STUBBORN: &str = "stubborn";
/// The nodes of the two controllers.
pub(crate) const LEADERS: [&str; 2] = ["leader-1", "leader-2"];

#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) nodes: &'static [&'static str],
    /// Those of its nodes that the row creates.
    pub(crate) joins: &'static [&'static str],
    /// Whether it runs once more while the leader is killed.
    pub(crate) survives_kills: bool,
    pub(crate) run: fn(Scene) -> LocalBoxFuture<'static, ()>,
}

impl Row {
    /// Its namespace, and the value of the label `row` of its nodes.
    pub(crate) fn namespace(&self) -> String {
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        };
        self.name.chars().map(plain).take(50).collect()
    }
}

const fn row(name: &'static str, nodes: &'static [&'static str], run: fn(Scene) -> LocalBoxFuture<'static, ()>) -> Row {
    Row {
        name,
        nodes,
        joins: &[],
        survives_kills: false,
        run,
    }
}

const fn killed(row: Row) -> Row {
    Row {
        survives_kills: true,
        ..row
    }
}

#[rustfmt::skip]
pub(crate) const ROWS: &[Row] = &[
    killed(row("the worked example with three maintenances", &["one", "two", "three", "four"],
        |scene| plans::worked_example(scene).boxed_local())),
    killed(row("a PDB without room that later gains room", &["room-1", "room-2"],
        |scene| pods::budget_gains_room(scene).boxed_local())),
    killed(row("single replicas behind PDBs are replaced first", &["single-1", "single-2"],
        |scene| rollouts::single_replicas(scene).boxed_local())),
    Row { joins: &["broken-2"], ..row("a successor that does not start", &["broken-1", "broken-2"],
        |scene| rollouts::broken_successor(scene).boxed_local()) },
    row("two PDBs on a pod", &["two-budgets-1", "two-budgets-2"], |scene| pods::two_budgets(scene).boxed_local()),
    killed(row("DaemonSets plain and tolerating everything", &["daemons-1"],
        |scene| pods::daemon_sets(scene).boxed_local())),
    row("bare pods", &["bare-1"], |scene| pods::bare(scene).boxed_local()),
    row("pods stuck terminating", &["stuck-1"], |scene| pods::stuck_terminating(scene).boxed_local()),
    Row { joins: &["joining-2"], ..row("a node joining", &["joining-1", "joining-2"],
        |scene| nodes::joining(scene).boxed_local()) },
    row("a node deleted", &["deleted-1", "deleted-2"], |scene| nodes::deleted(scene).boxed_local()),
    row("a node NotReady during the drain", &["not-ready-1"], |scene| nodes::not_ready(scene).boxed_local()),
    row("a third-party evacuator registered by annotation", &["third-party-1"],
        |scene| evacuators::third_party(scene).boxed_local()),
    row("a foreign finalizer", &["foreign-1"], |scene| evacuators::foreign_finalizer(scene).boxed_local()),
    row("a plain finalizer that stays after its pod", &["plain-1"],
        |scene| evacuators::plain_finalizer(scene).boxed_local()),
    row("Forbid", &["forbid-1"], |scene| evacuators::forbid(scene).boxed_local()),
    killed(row("cancellation in each stage", &["cancel-1", "cancel-2", "cancel-3", "cancel-4", "cancel-5"],
        |scene| ends::cancelled_in_each_stage(scene).boxed_local())),
    row("a dry run", &["dry-1", "dry-2"], |scene| dry_run::dry_run(scene).boxed_local()),
    row("a cordon and a taint of others stay", &["others-1"], |scene| ends::what_others_set(scene).boxed_local()),
    row("the leader on the drained node", &LEADERS, |scene| nodes::leader(scene).boxed_local()),
    row("the guard allows it", &[GUARDED], |scene| gates::guard(scene).boxed_local()),
    row("the policy allows it", &[STUBBORN, "in-service"], |scene| gates::policy(scene).boxed_local()),
];
