//! What says that a node goes away, and who notices.

/// What a Node carries that says it goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// The Node gets the taint `ToBeDeletedByClusterAutoscaler`.
    AutoscalerTaint,
    /// The Node gets the soft taint `DeletionCandidateOfClusterAutoscaler`.
    AutoscalerCandidate,
    /// The Node gets the taint `karpenter.sh/disrupted`.
    KarpenterTaint,
    /// The Node gets a `metadata.deletionTimestamp`.
    Deletion,
    /// The Node gets the taint `headgate.dev/maintenance`.
    MaintenanceTaint,
    /// Azure announces the machine's eviction in Scheduled Events. Agents that poll them taint their Node.
    SpotNotice,
    /// An operator creates a `NodeMaintenance` for the Node; headgate's controllers do the rest.
    NodeMaintenance,
}

impl Signal {
    /// Whether it says that the node goes away; a candidate of cluster-autoscaler may stay.
    pub(crate) const fn is_drain_signal(self) -> bool {
        !matches!(self, Self::AutoscalerCandidate)
    }

    /// Whether a controller of a cloud deregisters the node: those of AWS and GKE do so at an autoscaler's taint, and at
    /// deletion.
    pub(crate) const fn is_seen_by_cloud_controllers(self) -> bool {
        matches!(self, Self::AutoscalerTaint | Self::KarpenterTaint | Self::Deletion)
    }

    /// Whether kube-proxy's `/healthz` turns 503 (KEP-3836): only at cluster-autoscaler's taint and at deletion.
    pub(crate) const fn is_seen_by_kube_proxy(self) -> bool {
        matches!(self, Self::AutoscalerTaint | Self::Deletion)
    }

    /// The key and effect of the taint that the drill sets; none for a deletion or an announcement.
    pub const fn taint(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::AutoscalerTaint => Some(("ToBeDeletedByClusterAutoscaler", "NoSchedule")),
            Self::AutoscalerCandidate => Some(("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule")),
            Self::KarpenterTaint => Some(("karpenter.sh/disrupted", "NoSchedule")),
            Self::MaintenanceTaint => Some(("headgate.dev/maintenance", "NoSchedule")),
            Self::Deletion | Self::SpotNotice | Self::NodeMaintenance => None,
        }
    }
}
