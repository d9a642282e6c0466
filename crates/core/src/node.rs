//! Nodes: how one is decoded ([`NodeObject`]) and read ([`Node`]), its drain signals and since when they count ([`SignalPeriods`]), the
//! index of all Nodes, and the report of the own Node.
//!
//! Invariants: a report stays in use until a newer observation replaces it, through an unreachable API server, a
//! deleted Node and a restart. Taints match by key, never by value or effect. What
//! `/healthz` answers because of a report is up to `headgate_agent::health`. [`Signal`] is the place to add a signal.

mod hold;
mod known_signals;
mod marker;
mod matcher;
mod names;
mod node_index;
mod object;
mod reader;
mod report;
mod signal;
mod signal_periods;
mod spot_notice;
mod traffic;

pub use hold::{HOLD_TTL, NodeHold, ObservedHold};
pub use known_signals::{Effect, ExtraSignal, KnownSignal, SignalSettings};
pub use marker::{
    MARKER_LAST_SERVING, MARKER_NO_SIGNAL, MARKER_TTL, MAX_MARKER_MESSAGE_BYTES, MarkerCondition, MarkerFact,
    MarkerStatus,
};
pub use matcher::{ConditionMatcher, KeyMatcher, SignalMatcher, SignalRules};
pub use names::{
    AUTOSCALER_ANNOTATIONS, AUTOSCALER_TAINT, CANDIDATE_TAINT, CLUSTER_API_ANNOTATIONS, CONNECTIONS_CONDITION,
    CORDON_ANNOTATION, DELETION_DELAY_ANNOTATION, DRAINING_TAINT, EVICTION_TAINT_VALUE, EXCLUDE_LABEL, HOLD_ANNOTATION,
    KARPENTER_TAINT, MAINTENANCE_CONDITIONS, MAINTENANCE_TAINT, MARKER_CONDITION, OUT_OF_SERVICE_TAINT,
    SCALE_DOWN_ANNOTATION, SPOT_NOTICE_ANNOTATION, UPGRADE_PAUSED_ANNOTATION, UPGRADE_STATUS_LABEL,
};
pub use node_index::{Claimed, NodeIndex};
pub use object::{AddressObject, ConditionObject, NodeObject, Taint};
pub use reader::{Condition, Node, NodeDetail, NodeReader};
pub use report::{NodeObjectState, NodeReport, RememberedNode, Source};
pub use signal::{DEFAULT_SIGNAL_TAINTS, Signal, SignalExplanation};
pub use signal_periods::{DEBOUNCE, ENDED_PERIOD_TTL, PendingSignal, PeriodChange, SignalPeriod, SignalPeriods};
pub use spot_notice::{AzureNotice, RecordedNotice};
pub use traffic::{NodeTraffic, TrafficByNode, Unproved};
