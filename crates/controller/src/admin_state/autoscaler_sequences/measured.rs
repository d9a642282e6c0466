//! The measured sequences: every write to the Node in its order and at its time, and what follows from it. Runs whose writes to the Node
//! differ in nothing but their times are one sequence, which names all of them and has the times of one: how soon the rest follows decides
//! nothing once a node has a signal. kube-controller-manager's taint follows 12 to 69 ms after the cordon; where its time was not noted,
//! it is 30 ms here.

/// The taint that announces the deletion.
pub(super) const HARD: &str = "ToBeDeletedByClusterAutoscaler";
/// The taint of a candidate.
pub(super) const SOFT: &str = "DeletionCandidateOfClusterAutoscaler";
/// kube-controller-manager's taint of a cordoned node.
pub(super) const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// Karpenter's taint.
pub(super) const DISRUPTED: &str = "karpenter.sh/disrupted";

/// One write to the Node; several in one request are several writes at the same time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Write {
    Taint(&'static str),
    Untaint(&'static str),
    Cordon(bool),
    Delete,
    /// Karpenter's taint and its label, in one patch.
    TaintAndLabel,
    Label,
    /// The Node object is gone.
    Gone,
    /// Nothing is written; time passes.
    Nothing,
}
use Write::{Cordon, Delete, Gone, Label, Nothing, Taint, TaintAndLabel, Untaint};

/// Time, writes, status of `/healthz`, admin state of the entry once the plan is written.
pub(super) type Step = (i64, &'static [Write], u16, &'static str);

/// The name of a run and its steps.
pub(super) type Sequence = (&'static str, &'static [Step]);

pub(super) const SEQUENCES: &[Sequence] = &[
    (
        "cluster-autoscaler a1: empty node; a2: one pod to move; b1, b2: with --node-delete-delay-after-taint=30s, gone after 30 and 35 s; \
         c1, c2, d1, e2, g1, i1: with annotations, which no signal reads, gone after 5 to 125 s",
        &[
            (-8050, &[Taint(SOFT)], 200, "None"),
            (0, &[Taint(HARD), Cordon(true)], 503, "Down"),
            (40, &[Taint(UNSCHEDULABLE)], 503, "Down"),
            (5008, &[Gone], 503, "Down"),
        ],
    ),
    (
        "cluster-autoscaler a4: without the cordon",
        &[
            (-8060, &[Taint(SOFT)], 200, "None"),
            (0, &[Taint(HARD)], 503, "Down"),
            (5009, &[Gone], 503, "Down"),
        ],
    ),
    (
        "cluster-autoscaler: soft taint withdrawn",
        &[
            (-8050, &[Taint(SOFT)], 200, "None"),
            (-2000, &[Untaint(SOFT)], 200, "None"),
        ],
    ),
    (
        "cluster-autoscaler f1: rollback, a PDB appears during the delay",
        &[
            (-8100, &[Taint(SOFT)], 200, "None"),
            (0, &[Taint(HARD), Cordon(true)], 503, "Down"),
            (25, &[Taint(UNSCHEDULABLE)], 503, "Down"),
            (5017, &[Untaint(HARD), Cordon(false)], 200, "Down"),
            (5025, &[Untaint(UNSCHEDULABLE)], 200, "Down"),
            (6016, &[Nothing], 200, "Down"),
            (6017, &[Nothing], 200, "None"),
            (6086, &[Untaint(SOFT)], 200, "None"),
        ],
    ),
    (
        "cluster-autoscaler f2: rollback after evictions failed for 2 min",
        &[
            (-8100, &[Taint(SOFT)], 200, "None"),
            (0, &[Taint(HARD), Cordon(true)], 503, "Down"),
            (69, &[Taint(UNSCHEDULABLE)], 503, "Down"),
            (125_853, &[Untaint(HARD), Cordon(false)], 200, "Down"),
            (126_853, &[Untaint(UNSCHEDULABLE)], 200, "None"),
        ],
    ),
    (
        "cluster-autoscaler f3: rollback of a node that an operator had cordoned",
        &[
            (-9000, &[Cordon(true), Taint(UNSCHEDULABLE)], 200, "None"),
            (-8100, &[Taint(SOFT)], 200, "None"),
            (0, &[Taint(HARD)], 503, "Down"),
            (5021, &[Untaint(HARD), Cordon(false)], 200, "Down"),
            (6021, &[Untaint(UNSCHEDULABLE)], 200, "None"),
        ],
    ),
    (
        "cluster-autoscaler h1: killed and restarted",
        &[
            (-8100, &[Taint(SOFT)], 200, "None"),
            (0, &[Taint(HARD), Cordon(true)], 503, "Down"),
            (7451, &[Untaint(HARD), Cordon(false)], 200, "Down"),
            (8451, &[Nothing], 200, "None"),
        ],
    ),
    (
        "karpenter k4, k12, 1.9.1 o3: empty node, consolidation; k8, 1.9.1 o4: underutilized node; gone after 0.1 to 20 s",
        &[
            (0, &[Taint(DISRUPTED)], 503, "Down"),
            (89, &[Delete], 503, "Down"),
            (100, &[Label], 503, "Down"),
            (5182, &[Gone], 503, "Down"),
        ],
    ),
    (
        "karpenter k5, k6: replaced by a cheaper node",
        &[
            (0, &[Taint(DISRUPTED)], 503, "Down"),
            (2106, &[Delete], 503, "Down"),
            (2115, &[Label], 503, "Down"),
            (7462, &[Gone], 503, "Down"),
        ],
    ),
    (
        "karpenter k10, k3, 1.9.1 o1: kubectl delete nodeclaim, empty node; k1: with two pods; k2, k11, 1.9.1 o2: kubectl delete node",
        &[
            (0, &[Delete], 503, "Down"),
            (16, &[TaintAndLabel], 503, "Down"),
            (4279, &[Gone], 503, "Down"),
        ],
    ),
    (
        "karpenter k9: the replacement never registers",
        &[
            (0, &[Taint(DISRUPTED)], 503, "Down"),
            (9057, &[Untaint(DISRUPTED)], 200, "Down"),
            (10_057, &[Nothing], 200, "None"),
        ],
    ),
    (
        "karpenter k7: kubectl delete node, a PDB allows no eviction for 15 s",
        &[
            (0, &[Delete], 503, "Down"),
            (27, &[TaintAndLabel], 503, "Down"),
            (15_000, &[Nothing], 503, "Down"),
            (23_165, &[Gone], 503, "Down"),
        ],
    ),
];
