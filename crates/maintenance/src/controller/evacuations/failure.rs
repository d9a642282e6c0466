//! What a failed eviction, or deletion of a pod of a DaemonSet, leaves in the status of its Evacuation.

use jiff::Timestamp;

use crate::api::{Evacuation, EvacuationStatus};
use crate::evacuation::eviction::EvictionFailure;
use crate::plan::conditions::{Conditions, find};

/// The condition about the last failed eviction.
const EVICTION_FAILED: &str = "EvictionFailed";

/// The failures that end once budgets have room.
pub(super) const BUDGET_FAILURES: [EvictionFailure; 2] = [
    EvictionFailure::DisruptionBudget,
    EvictionFailure::MultipleDisruptionBudgets,
];

/// Whether the status says that the last failed eviction waits for budgets.
pub(super) fn waits_for_budget(evacuation: &Evacuation) -> bool {
    let conditions = evacuation.status.as_ref().map(|status| status.conditions.as_slice());
    let failed = find(conditions.unwrap_or_default(), EVICTION_FAILED);
    failed.is_some_and(|one| BUDGET_FAILURES.map(condition_reason).contains(&one.reason.as_str()))
}

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
