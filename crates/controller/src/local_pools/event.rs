//! Events on Services, with the reasons and messages of cloud-provider-azure's accepted design (pull request 10417); that of a retry is from
//! its implementation (10635). Of a final failure they also say when headgate tries again.

use headgate_core::telemetry::words;

use headgate_core::service::NamespacedName;

words! {
    /// The reason of an event.
    pub enum EventReason {
        /// A PUT succeeded. Normal.
        Updated = "LoadBalancerBackendPoolUpdated",
        /// An attempt failed and another one follows. Warning.
        Retrying = "LoadBalancerBackendPoolUpdateRetrying",
        /// The update was dropped. Warning.
        Failed = "LoadBalancerBackendPoolUpdateFailed",
    }
}

impl EventReason {
    /// Whether the event's type is `Warning`; otherwise it is `Normal`.
    pub fn is_warning(self) -> bool {
        self != Self::Updated
    }
}

/// An event to record on a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceEvent {
    /// The namespace and name of the Service.
    pub service: NamespacedName,
    /// The reason of the Kubernetes event.
    pub reason: EventReason,
    /// The note of the Kubernetes event.
    pub message: String,
}

pub(crate) fn updated_message() -> String {
    "Load balancer backend pool updated successfully".to_owned()
}

pub(crate) fn retrying_message(error: &str) -> String {
    format!("Backend pool update failed, will retry: {}.", without_period(error))
}

pub(crate) fn terminal_message(error: &str) -> String {
    format!(
        "Backend pool update failed (non-retriable): {}. It is tried again in 5 min, or after an endpoint change for the \
         Service.",
        without_period(error)
    )
}

pub(crate) fn exhausted_message(retries: u32, error: &str) -> String {
    format!(
        "Backend pool update failed after {retries} retries: {}. To retrigger, cause an endpoint change for the Service \
         (e.g., restart or scale a backing pod). Otherwise it is tried again in 5 min.",
        without_period(error)
    )
}

/// ARM's messages may end with a period of their own.
fn without_period(error: &str) -> &str {
    error.trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_and_messages() {
        for (reason, text, is_warning) in [
            (EventReason::Updated, "LoadBalancerBackendPoolUpdated", false),
            (EventReason::Retrying, "LoadBalancerBackendPoolUpdateRetrying", true),
            (EventReason::Failed, "LoadBalancerBackendPoolUpdateFailed", true),
        ] {
            assert_eq!((reason.as_str(), reason.is_warning()), (text, is_warning));
        }
        assert_eq!(updated_message(), "Load balancer backend pool updated successfully");
        assert_eq!(retrying_message("E"), "Backend pool update failed, will retry: E.");
        assert_eq!(
            terminal_message("E"),
            "Backend pool update failed (non-retriable): E. It is tried again in 5 min, or after an endpoint change for the \
             Service."
        );
        assert_eq!(retrying_message("E."), "Backend pool update failed, will retry: E.");
        assert_eq!(
            exhausted_message(3, "E"),
            "Backend pool update failed after 3 retries: E. To retrigger, cause an endpoint change for the Service (e.g., \
             restart or scale a backing pod). Otherwise it is tried again in 5 min."
        );
    }
}
