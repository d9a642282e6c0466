//! What a failed eviction, or deletion of a pod of a DaemonSet, leaves in the status of its Evacuation.

use jiff::Timestamp;

use crate::api::{Evacuation, EvacuationStatus};
use crate::evacuation::eviction::EvictionFailure;
use crate::plan::conditions::Conditions;

/// The condition about the last failed eviction.
const EVICTION_FAILED: &str = "EvictionFailed";

/// The status after a failed eviction.
pub(in crate::controller) fn failed_status(
    evacuation: &Evacuation,
    reason: EvictionFailure,
    message: String,
    now: Timestamp,
) -> EvacuationStatus {
    let mut status = evacuation.status.clone().unwrap_or_default();
    status.failed_eviction_counter = status.failed_eviction_counter.saturating_add(1);
    let generation = evacuation.metadata.generation;
    let mut conditions = Conditions::new(&status.conditions, generation, now).keep_others();
    conditions.set(EVICTION_FAILED, true, condition_reason(reason), message.clone());
    status.conditions = conditions.finish();
    status.message = message;
    status
}

fn condition_reason(failure: EvictionFailure) -> &'static str {
    match failure {
        EvictionFailure::DisruptionBudget => "DisruptionBudget",
        EvictionFailure::MultipleDisruptionBudgets => "MultipleDisruptionBudgets",
        EvictionFailure::TooManyRequests => "TooManyRequests",
        EvictionFailure::Forbidden => "Forbidden",
        EvictionFailure::Other => "Other",
    }
}
