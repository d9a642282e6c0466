//! What happened to each node, and when, as watches and probes of the test show it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;

/// A step in the removal of a node; in the order of the printed table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// The soft taint of Cluster Autoscaler.
    Candidate,
    /// The annotation of headgate.
    Delayed,
    /// The first signal: the hard taint, Karpenter's taint, or the deletion.
    Signal,
    /// `deletionTimestamp`.
    Deleting,
    /// Karpenter's label.
    Excluded,
    /// `/healthz` answers 503.
    Unhealthy,
    /// headgate's PUT arrives.
    Put,
    /// The pool shows `Down`.
    Down,
    /// The Node has the condition `headgate.dev/OutOfLoadBalancers`.
    Out,
    /// The annotation is removed.
    Undelayed,
    /// The pod of the hold gets SIGTERM.
    HoldStopping,
    /// The pod of the hold is gone.
    HoldGone,
    /// The instance is terminated.
    Terminated,
    /// The Node is gone.
    Gone,
    /// The last signal has ended.
    SignalEnded,
    /// `/healthz` answers 200 again.
    HealthyAgain,
    /// The pool shows the node without `Down` again.
    Up,
    /// `/healthz` answered 200 for the first time; not printed.
    Healthy,
}

impl Step {
    const ALL: [(Self, &'static str); 17] = [
        (Self::Candidate, "soft taint"),
        (Self::Delayed, "annotation"),
        (Self::Signal, "signal"),
        (Self::Deleting, "deletionTimestamp"),
        (Self::Excluded, "label"),
        (Self::Unhealthy, "503"),
        (Self::Put, "PUT"),
        (Self::Down, "Down shown"),
        (Self::Out, "marker"),
        (Self::Undelayed, "annotation removed"),
        (Self::HoldStopping, "hold: SIGTERM"),
        (Self::HoldGone, "hold: pod gone"),
        (Self::Terminated, "terminated"),
        (Self::Gone, "Node gone"),
        (Self::SignalEnded, "signal ended"),
        (Self::HealthyAgain, "200"),
        (Self::Up, "Up shown"),
    ];
}

/// The first time of each step, by node. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Timelines(Arc<Mutex<BTreeMap<String, BTreeMap<Step, Timestamp>>>>);

impl Timelines {
    /// Records a step now, if it is the first of its kind.
    pub(super) fn record(&self, node: &str, step: Step) {
        self.record_at(node, step, Timestamp::now());
    }

    pub(super) fn record_at(&self, node: &str, step: Step, at: Timestamp) {
        let mut all = self.0.lock().unwrap();
        all.entry(node.to_owned()).or_default().entry(step).or_insert(at);
    }

    /// Whether a step was recorded.
    pub(super) fn has(&self, node: &str, step: Step) -> bool {
        self.at(node, step).is_some()
    }

    pub(super) fn at(&self, node: &str, step: Step) -> Option<Timestamp> {
        self.0.lock().unwrap().get(node)?.get(&step).copied()
    }

    /// The time from the first signal to a step; negative before it.
    pub(super) fn after_signal(&self, node: &str, step: Step) -> Option<f64> {
        let signal = self.at(node, Step::Signal)?;
        Some(self.at(node, step)?.duration_since(signal).as_secs_f64())
    }

    /// Whether the first step was recorded no later than the second.
    #[track_caller]
    pub(super) fn assert_order(&self, node: &str, first: Step, second: Step) {
        let (first_at, second_at) = (self.at(node, first), self.at(node, second));
        assert!(
            first_at.is_some() && second_at.is_some() && first_at <= second_at,
            "{first:?} is not before {second:?}:\n{}",
            self.row("", node)
        );
    }

    /// A row of the printed table: seconds after the first signal.
    pub(super) fn row(&self, case: &str, node: &str) -> String {
        let steps = Step::ALL.iter().filter_map(|(step, name)| {
            let seconds = self.after_signal(node, *step)?;
            Some(format!("{name} {seconds:.2}"))
        });
        format!("| {case} | {} |", steps.collect::<Vec<_>>().join(", "))
    }
}

/// Prints a row, which the documentation has.
pub(super) fn print(row: &str) {
    println!("{row}");
}

/// How often probes and the pool are looked at.
pub(super) const SAMPLE_INTERVAL: Duration = Duration::from_millis(25);
