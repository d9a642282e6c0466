//! The names that objects in a cluster carry: groups, finalizers, annotations, taints, classes.
//!
//! Finalizers, annotations and evacuator classes are spelled as in KEP-4212 and the first shape of KEP-4563, so that an
//! evacuator written for them needs no change. The kinds are in headgate's own group, because CRDs in `*.k8s.io` groups
//! need an approval.

/// The API group of both kinds.
pub const GROUP: &str = "headgate.dev";

/// The only served version.
pub const VERSION: &str = "v1alpha1";

/// On a [`NodeMaintenance`](crate::api::NodeMaintenance) from the time its stage is not `Idle` until `Complete` has run.
pub const COMPLETION_FINALIZER: &str = "nodemaintenance.k8s.io/maintenance-completion";

/// Each instigator of an Evacuation has one finalizer with this prefix on it.
pub const INSTIGATOR_FINALIZER_PREFIX: &str = "evacuation.coordination.k8s.io/instigator_";

/// The finalizer of the NodeMaintenance controller on the Evacuations it wants.
pub const INSTIGATOR_FINALIZER: &str = "evacuation.coordination.k8s.io/instigator_nodemaintenance.k8s.io";

/// On an Evacuation as long as its pod exists and its evacuator forbids cancellation.
pub const PROTECTION_FINALIZER: &str = "evacuation.coordination.k8s.io/evacuation-protection";

/// A pod's annotation with this prefix and a class registers an evacuator; its value is `PRIORITY` or `PRIORITY/ROLE`.
pub const EVACUATOR_ANNOTATION_PREFIX: &str = "evacuation.coordination.k8s.io/priority_";

/// The class that removes pods of DaemonSets. headgate's leader implements it.
pub const DAEMON_SET_EVACUATOR: &str = "daemonset.apps.k8s.io";

/// The class that has a Deployment start a replacement before a pod leaves that a budget protects. headgate's leader implements it.
/// Its prefix keeps it apart from classes of annotations, which cannot contain a slash.
pub const ROLLOUT_EVACUATOR: &str = "headgate.dev/rollout";

/// The priority of [`ROLLOUT_EVACUATOR`]: after the evacuators of the pod's annotations.
pub const ROLLOUT_PRIORITY: i32 = 0;

/// The annotation by which a Deployment allows that headgate restarts its rollout; its value is `Allow`.
pub const ROLLOUT_ANNOTATION: &str = "headgate.dev/rollout";

/// The annotation of a Deployment's pod template with the UIDs of the maintenances for which headgate restarted the rollout, separated
/// by commas. It is written with the restart, so there is never one without the other.
pub const RESTARTED_FOR_ANNOTATION: &str = "headgate.dev/restarted-for";

/// The annotation of a pod template by which `kubectl rollout restart` starts a rollout.
pub const RESTARTED_AT_ANNOTATION: &str = "kubectl.kubernetes.io/restartedAt";

/// The condition of an Evacuation that says whether the rollout of the pod's Deployment was restarted for it, and why not.
pub const ROLLOUT_RESTARTED_CONDITION: &str = "RolloutRestarted";

/// The role of the evacuator that created the pod.
pub const CONTROLLER_ROLE: &str = "controller";

/// The priority of the `controller` role, and of no other.
pub const CONTROLLER_PRIORITY: i32 = 10_000;

/// The annotation that kubelet sets on the mirror of a static pod.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// How long an evacuator may go without progress, for Evacuations of maintenances: 30 minutes, as in KEP-4212.
pub const PROGRESS_DEADLINE_SECONDS: i32 = 1800;

/// The most nodes a maintenance may select. The status has one entry for each, and an object has to stay below 1.5 MiB.
pub const MAX_NODES: usize = 500;

/// The most blockers that the status shows for one node.
pub const MAX_BLOCKERS: usize = 5;
