//! Nodes: how one is decoded ([`NodeObject`]) and read ([`Node`]), its drain signals and since when they count ([`SignalPeriods`]), the
//! index of all Nodes, and the report of the own Node, which is remembered across a restart.
//!
//! Invariants: a report stays in use until a newer observation replaces it, through an unreachable API server, a
//! deleted Node and a restart. Taints match by key, never by value or effect. What
//! `/healthz` answers because of a report is up to `headgate-health`. [`Signal`] is the place to add a signal.

mod deletion_delay;
mod hold;
mod marker;
mod matcher;
mod metrics;
mod names;
mod node;
mod node_index;
mod object;
mod remembered_state;
mod report;
mod signal;
mod signal_periods;
mod spot_notice;
mod termination_hold;
mod traffic;
mod watch;

pub use deletion_delay::{
    DelayState, DelayTarget, DeletionDelay, DeletionDelayMetrics, DeletionDelayTask, delay_deletion,
};
pub use hold::{HOLD_TTL, NodeHold, ObservedHold};
pub use marker::{MARKER_NO_SIGNAL, MARKER_TTL, MarkerCondition, MarkerFact, MarkerState, MarkerStatus, expire_marker};
pub use matcher::{BuiltInSignal, ConditionMatcher, KeyMatcher, SignalMatcher, SignalRules};
pub use metrics::Metrics;
pub use names::{
    CANDIDATE_TAINT, DELETION_DELAY_ANNOTATION, DRAINING_TAINT, EVICTION_TAINT_VALUE, EXCLUDE_LABEL, HOLD_ANNOTATION,
    MAINTENANCE_TAINT, MARKER_CONDITION, OUT_OF_SERVICE_TAINT, SPOT_NOTICE_ANNOTATION,
};
pub use node::{Condition, Node, NodeReader};
pub use node_index::{Claimed, NodeIndex};
pub use object::{AddressObject, ConditionObject, NodeObject, Taint};
pub use remembered_state::{RememberedState, RememberedStateError, store_reports};
pub use report::{NodeObjectState, NodeReport, Source};
pub use signal::{DEFAULT_SIGNAL_TAINTS, Signal, SignalExplanation};
pub use signal_periods::{DEBOUNCE, ENDED_PERIOD_TTL, PendingSignal, PeriodChange, SignalPeriod, SignalPeriods};
pub use spot_notice::recorded_not_before;
pub use termination_hold::{HoldOutcome, ReleaseReason, hold_termination, release_reason};
pub use traffic::{NodeTraffic, TrafficByNode, Unproved};
pub use watch::watch_own_node;
