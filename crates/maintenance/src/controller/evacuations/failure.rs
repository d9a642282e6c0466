//! What a failed eviction, or deletion of a pod of a DaemonSet, leaves in the status of its Evacuation.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::api::{Evacuation, EvacuationStatus};
use crate::evacuation::eviction::EvictionFailure;

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
    let before = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == EVICTION_FAILED);
    let since = before.map(|condition| condition.last_transition_time.clone());
    status.conditions.retain(|condition| condition.type_ != EVICTION_FAILED);
    status.conditions.push(Condition {
        type_: EVICTION_FAILED.to_owned(),
        status: "True".to_owned(),
        reason: condition_reason(reason).to_owned(),
        message: message.clone(),
        last_transition_time: since.unwrap_or(Time(now)),
        observed_generation: evacuation.metadata.generation,
    });
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
