//! A cluster whose processes crash and start again, and what its stories wait for.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use futures::future::{LocalBoxFuture, join_all, pending};
use headgate_controller::admin_state::Policy;
use headgate_kubernetes::leader::Term;
use headgate_test_kubernetes::{FakeApi, FaultPoints};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::super::invariants::{Invariants, check_final_state};
use super::super::rows::cluster::TestCluster;
use super::super::world::{Leader, SECOND, Spy, World, two_load_balancers};

/// Longer than the longest backoff after a terminal error, and than the interval between resyncs.
const MAX_WAIT: Duration = Duration::from_mins(8);
/// How long an end state must last: longer than what is delayed, and than the interval between lists.
const LASTS: Duration = Duration::from_secs(40);
/// Until the invariants know that no Node was created lately.
const SETTLED: Duration = Duration::from_secs(80);
const NODES: usize = 3;
const POOLS: [(&str, &str); 3] = [
    ("kubernetes", "kubernetes"),
    ("kubernetes", "kubernetes-IPv6"),
    ("kubernetes-internal", "kubernetes"),
];

type Terms = watch::Receiver<Option<Term>>;

/// A Pod of the controllers.
#[derive(Clone)]
pub(super) struct Replica {
    /// Its instances are `name-1`, `name-2` and so on.
    pub(super) name: &'static str,
    pub(super) policy: Policy,
    /// The acts of the story in which it runs; at their end it stops as by SIGTERM.
    pub(super) acts: RangeInclusive<u8>,
}

pub(super) struct Stage {
    pub(super) cluster: TestCluster,
    pub(super) invariants: Invariants,
    /// Whether each crash deletes the ledger.
    pub(super) loses_ledger: bool,
    /// The pools at the beginning, but for their admin states, which alone may change.
    members: Vec<Value>,
    act: watch::Sender<u8>,
}

impl Stage {
    /// Three nodes in three pools; `change` changes the settings of leaders.
    pub(super) async fn new(points: &FaultPoints, change: impl FnOnce(&mut World)) -> Self {
        let mut cluster = TestCluster::without_leader(NODES, &two_load_balancers(NODES)).await;
        change(&mut cluster.world);
        let invariants = Invariants::new(cluster.world.emulator.clone(), cluster.world.guard.minimum_in_service);
        for number in 1..=NODES {
            invariants.set_taints(number, &[]);
        }
        sleep(SETTLED).await;
        cluster.fake.inject(points);
        Self {
            members: invariants.members(),
            cluster,
            invariants,
            loses_ledger: false,
            act: watch::Sender::new(0),
        }
    }

    /// Changes the taints of nodes at once.
    pub(super) fn taint(&self, numbers: &[usize], keys: &[&str]) {
        for number in numbers {
            self.cluster.taint(*number, keys);
            self.invariants.set_taints(*number, keys);
        }
    }

    pub(super) fn begin_act(&self, act: u8) {
        self.act.send_replace(act);
    }

    /// Runs the processes while the script runs.
    pub(super) async fn play(&self, processes: Vec<LocalBoxFuture<'_, ()>>, script: impl Future<Output = ()>) {
        let processes = async {
            join_all(processes).await;
            pending::<()>().await;
        };
        tokio::select! {
            () = processes => {}
            () = script => {}
        }
        self.invariants.assert_held(&[]);
        // Also by a process that no spy watches.
        assert_eq!(
            self.invariants.members(),
            self.members,
            "more than admin states is changed"
        );
        let puts = self.cluster.puts();
        assert!(
            puts.iter().all(|put| put.if_match.is_some()),
            "a write without If-Match"
        );
    }

    /// A Pod of the controllers, whose writes keep the invariants.
    pub(super) async fn run(&self, replica: Replica) {
        let after_crash = || {
            if self.loses_ledger {
                let name = "headgate-admin-state";
                self.cluster.fake.delete::<ConfigMap>("kube-system", name);
            }
        };
        let spy = |terms| self.invariants.spy(terms);
        let cluster = (&self.cluster.fake, &self.cluster.world);
        run_replica(cluster, replica, self.act.subscribe(), spy, after_crash).await;
    }

    pub(super) async fn until(&self, what: &str, is_so: impl Fn(&TestCluster) -> bool) {
        until(
            &format!("{what}; Down are"),
            || is_so(&self.cluster),
            || format!("{:?}", self.cluster.down()),
        )
        .await;
    }

    /// Waits until these nodes, and no others, are `Down` in every pool.
    pub(super) async fn until_down(&self, names: &[&str]) {
        let names: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let what = if names.is_empty() {
            "nothing Down".to_owned()
        } else {
            format!("{names:?} Down")
        };
        self.until(&what, |cluster| cluster.down().values().all(|down| *down == names))
            .await;
    }

    /// Checks that the state is that of the signals, and lasts.
    pub(super) async fn until_calm(&self) {
        let before = self.cluster.down();
        sleep(LASTS).await;
        assert_eq!(self.cluster.down(), before, "the end state does not last");
        check_final_state(&self.cluster.world, &self.invariants, &POOLS, NODES).await;
    }
}

/// Waits until something is so, in virtual time.
pub(super) async fn until(what: &str, is_so: impl Fn() -> bool, shown: impl Fn() -> String) {
    let started = Instant::now();
    while !is_so() {
        assert!(
            started.elapsed() < MAX_WAIT,
            "not within {MAX_WAIT:?}: {what} {}",
            shown()
        );
        sleep(SECOND).await;
    }
}

/// Runs a replica: it starts again after each crash, until its acts are over.
pub(super) async fn run_replica(
    (fake, world): (&FakeApi, &World),
    replica: Replica,
    acts: watch::Receiver<u8>,
    spy: impl Fn(Terms) -> Spy,
    after_crash: impl Fn(),
) {
    let (first, last) = replica.acts.into_inner();
    let begun = async |act: u8| {
        // The sender outlives the replica.
        let _ = acts.clone().wait_for(|current| *current >= act).await;
    };
    begun(first).await;
    for number in 1.. {
        let (client, line) = fake.client();
        let name = format!("{}-{number}", replica.name);
        world
            .points
            .lock()
            .unwrap()
            .extend(line.points().map(|points| (name.clone(), points)));
        let mut leader = Leader::start_with_spy(world, client, &name, replica.policy, &spy).await;
        let is_over = tokio::select! {
            () = line.crashed() => false,
            () = begun(last + 1) => true,
        };
        if is_over {
            tokio::select! {
                () = line.crashed() => {}
                () = leader.stop() => {}
            }
            return;
        }
        drop(leader);
        after_crash();
        sleep(SECOND).await;
    }
}
