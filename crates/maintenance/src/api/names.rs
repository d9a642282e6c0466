//! The names that objects in a cluster carry: groups, finalizers, annotations, taints, classes.
//!
//! headgate writes names under `headgate.dev` only: `*.k8s.io` is reserved for Kubernetes itself. The spellings of KEP-4212 and of the first
//! shape of KEP-4563 are read as well, so that an evacuator or an instigator written for them needs no change.

/// The API group of both kinds.
pub const GROUP: &str = "headgate.dev";

/// The only served version.
pub const VERSION: &str = "v1alpha1";

/// On a [`NodeMaintenance`](crate::api::NodeMaintenance) from the time its stage is not `Idle` until `Complete` has run.
pub const COMPLETION_FINALIZER: &str = "headgate.dev/maintenance-completion";

/// The finalizer of the NodeMaintenance controller on the Evacuations it wants.
pub const INSTIGATOR_FINALIZER: &str = "evacuation.headgate.dev/instigator_nodemaintenance.headgate.dev";

/// On an Evacuation as long as its pod exists and its evacuator forbids cancellation.
pub const PROTECTION_FINALIZER: &str = "evacuation.headgate.dev/evacuation-protection";

/// A pod's annotation with one of these prefixes and a class registers an evacuator; its value is `PRIORITY` or `PRIORITY/ROLE`. The
/// first is headgate's spelling, and counts where a class is registered by both.
pub const EVACUATOR_ANNOTATION_PREFIXES: [&str; 2] = [
    "evacuation.headgate.dev/priority_",
    "evacuation.coordination.k8s.io/priority_",
];

/// The label of an Evacuation that has the name of its pod's node, where that fits.
pub(crate) const NODE_LABEL: &str = "headgate.dev/node";

/// The class that removes pods of DaemonSets. headgate's leader implements it.
pub const DAEMON_SET_EVACUATOR: &str = "headgate.dev/daemonset";

/// Each instigator of an Evacuation has one finalizer with one of these prefixes on it.
const INSTIGATOR_FINALIZER_PREFIXES: [&str; 2] = [
    "evacuation.headgate.dev/instigator_",
    "evacuation.coordination.k8s.io/instigator_",
];

/// Whether a finalizer is [`COMPLETION_FINALIZER`], in either spelling.
pub fn is_completion_finalizer(finalizer: &str) -> bool {
    [COMPLETION_FINALIZER, "nodemaintenance.k8s.io/maintenance-completion"].contains(&finalizer)
}

/// Whether a finalizer is that of an instigator of an Evacuation.
pub fn is_instigator_finalizer(finalizer: &str) -> bool {
    INSTIGATOR_FINALIZER_PREFIXES
        .iter()
        .any(|prefix| finalizer.starts_with(prefix))
}

/// Whether a finalizer is [`PROTECTION_FINALIZER`], in either spelling.
pub fn is_protection_finalizer(finalizer: &str) -> bool {
    [
        PROTECTION_FINALIZER,
        "evacuation.coordination.k8s.io/evacuation-protection",
    ]
    .contains(&finalizer)
}

/// Whether an evacuator class is [`DAEMON_SET_EVACUATOR`], in either spelling.
pub(crate) fn is_daemon_set_evacuator(class: &str) -> bool {
    [DAEMON_SET_EVACUATOR, "daemonset.apps.k8s.io"].contains(&class)
}

/// The class that an annotation of a pod registers, and the position of its spelling in [`EVACUATOR_ANNOTATION_PREFIXES`].
pub fn evacuator_class(annotation: &str) -> Option<(usize, &str)> {
    let mut prefixes = EVACUATOR_ANNOTATION_PREFIXES.into_iter().enumerate();
    prefixes.find_map(|(spelling, prefix)| Some((spelling, annotation.strip_prefix(prefix)?)))
}

/// The class that has a Deployment start a replacement before a pod leaves that a budget protects. headgate's leader implements it.
/// Its prefix keeps it apart from classes of annotations, which cannot contain a slash.
pub(crate) const ROLLOUT_EVACUATOR: &str = "headgate.dev/rollout";

/// The priority of [`ROLLOUT_EVACUATOR`]: after the evacuators of the pod's annotations.
pub(crate) const ROLLOUT_PRIORITY: i32 = 0;

/// The annotation by which a Deployment allows that headgate restarts its rollout; its value is `Allow`.
pub(crate) const ROLLOUT_ANNOTATION: &str = "headgate.dev/rollout";

/// The annotation of a Deployment's pod template with the UIDs of the maintenances for which headgate restarted the rollout, separated
/// by commas. It is written with the restart, so there is never one without the other.
pub const RESTARTED_FOR_ANNOTATION: &str = "headgate.dev/restarted-for";

/// The annotation of a pod template by which `kubectl rollout restart` starts a rollout.
pub const RESTARTED_AT_ANNOTATION: &str = "kubectl.kubernetes.io/restartedAt";

/// The condition of an Evacuation that says whether the rollout of the pod's Deployment was restarted for it, and why not.
pub(crate) const ROLLOUT_RESTARTED_CONDITION: &str = "RolloutRestarted";

/// The role of the evacuator that created the pod.
pub(crate) const CONTROLLER_ROLE: &str = "controller";

/// The priority of the `controller` role, and of no other.
pub(crate) const CONTROLLER_PRIORITY: i32 = 10_000;

/// The label of a NodeMaintenance that headgate created for a node that is taken; its value is the cause.
pub const AUTOMATIC_LABEL: &str = "headgate.dev/automatic";

/// The annotation that kubelet sets on the mirror of a static pod.
pub(crate) const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// How long an evacuator may go without progress, for Evacuations of maintenances: 30 minutes, as in KEP-4212.
pub(crate) const PROGRESS_DEADLINE_SECONDS: i32 = 1800;

/// The most nodes that one maintenance has at once; others wait. The status has one entry for each, and an object has to stay below 1.5 MiB.
pub const MAX_NODES: usize = 500;

/// The longest message in the status about one node or one pod.
pub const MAX_MESSAGE_BYTES: usize = 256;

/// The status lists blockers while it is shorter than this: an object has to stay below 1.5 MiB, with its spec.
pub const MAX_STATUS_BYTES: usize = 512 * 1024;

/// Targets of a node that are longer than this are in `status.targetSets`.
pub(crate) const MAX_NODE_TARGETS_BYTES: usize = 256;

/// The most blockers that the status shows for one node.
pub(crate) const MAX_BLOCKERS: usize = 5;
