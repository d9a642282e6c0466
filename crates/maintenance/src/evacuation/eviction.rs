//! What the Eviction API answers, and when to call it again.

use std::time::Duration;

use headgate_core::telemetry::words;

/// The pause after the first failed eviction of a pod. It doubles with each further failure.
const FIRST_PAUSE: Duration = Duration::from_secs(10);

/// The longest pause: 15 minutes, as in KEP-4563.
const LONGEST_PAUSE: Duration = Duration::from_mins(15);

/// What an eviction came to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum EvictionOutcome {
    /// The pod terminates, or is gone already.
    Accepted,
    /// There is another pod of that name.
    OtherPod,
    /// The API server rejected the eviction, or did not answer.
    Failed {
        /// The kind of failure, a label value of metrics.
        reason: EvictionFailure,
        /// Why, in the words of the API server.
        message: String,
    },
}

words! {
    /// Why an eviction failed.
    #[derive(Hash, Ord, PartialOrd)]
    pub enum EvictionFailure {
        /// A PodDisruptionBudget allows no disruption. It may allow one later.
        DisruptionBudget = "disruption_budget",
        /// Several PodDisruptionBudgets select the pod. Only a change of theirs helps.
        MultipleDisruptionBudgets = "multiple_disruption_budgets",
        /// The API server limits its requests.
        TooManyRequests = "too_many_requests",
        /// The right to evict is missing, or admission refuses.
        Forbidden = "forbidden",
        /// Anything else, the connection included.
        Other = "other",
    }
}

/// The answer to an eviction with the pod's UID as precondition, by its HTTP status, the causes in the `Status` object,
/// and its message.
pub fn classify(code: u16, causes: &[&str], message: &str) -> EvictionOutcome {
    let reason = match code {
        200..=299 | 404 => return EvictionOutcome::Accepted,
        // Without this text another writer was faster, of the pod or of its budget.
        409 if message.contains("UID") && message.to_ascii_lowercase().contains("precondition") => {
            return EvictionOutcome::OtherPod;
        }
        429 if causes.contains(&"DisruptionBudget") => EvictionFailure::DisruptionBudget,
        429 => EvictionFailure::TooManyRequests,
        // kube-apiserver gives this one no reason.
        500 if message.contains("more than one PodDisruptionBudget") => EvictionFailure::MultipleDisruptionBudgets,
        403 => EvictionFailure::Forbidden,
        _ => EvictionFailure::Other,
    };
    EvictionOutcome::Failed {
        reason,
        message: message.chars().take(1024).collect(),
    }
}

/// How long to pause after so many failed evictions of a pod; from the counter in its status, so that a new leader does not
/// begin anew.
pub fn pause(failures: i32) -> Duration {
    match u32::try_from(failures) {
        Ok(0) | Err(_) => Duration::ZERO,
        Ok(failures) => FIRST_PAUSE
            .saturating_mul(2_u32.saturating_pow(failures - 1))
            .min(LONGEST_PAUSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_distinguished() {
        // The messages of kube-apiserver 1.36.
        let room = "Cannot evict pod as it would violate the pod's disruption budget.";
        let several =
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        for (code, causes, message, expected) in [
            (201, &[][..], "", Ok(())),
            (200, &[], "", Ok(())),
            (404, &[], "pods \"web\" not found", Ok(())),
            (429, &["DisruptionBudget"], room, Err(EvictionFailure::DisruptionBudget)),
            (429, &[], "too many requests", Err(EvictionFailure::TooManyRequests)),
            (500, &[], several, Err(EvictionFailure::MultipleDisruptionBudgets)),
            (500, &[], "etcdserver: leader changed", Err(EvictionFailure::Other)),
            (403, &[], "pods \"web\" is forbidden", Err(EvictionFailure::Forbidden)),
            (503, &[], "", Err(EvictionFailure::Other)),
            (
                409,
                &[],
                "Operation cannot be fulfilled on pods \"web\"",
                Err(EvictionFailure::Other),
            ),
            (
                409,
                &[],
                "Precondition failed: ResourceVersion in precondition: 1, ResourceVersion in object meta: 2",
                Err(EvictionFailure::Other),
            ),
        ] {
            let outcome = match classify(code, causes, message) {
                EvictionOutcome::Accepted => Ok(()),
                EvictionOutcome::Failed { reason, message: kept } => {
                    assert_eq!(kept, message);
                    Err(reason)
                }
                EvictionOutcome::OtherPod => panic!("{code} {message}"),
            };
            assert_eq!(outcome, expected, "{code} {message}");
        }
        for message in [
            "the UID in the precondition (a) does not match the UID in record (b).",
            "StorageError: invalid object, Code: 4, AdditionalErrorMsg: Precondition failed: UID in precondition: a, UID in object meta: b",
        ] {
            assert_eq!(classify(409, &[], message), EvictionOutcome::OtherPod, "{message}");
        }
    }

    #[test]
    fn pauses_double_up_to_a_quarter_of_an_hour() {
        let seconds: Vec<_> = (-1..9).map(|failures| pause(failures).as_secs()).collect();
        assert_eq!(seconds, [0, 0, 10, 20, 40, 80, 160, 320, 640, 900]);
        assert_eq!(pause(i32::MAX).as_secs(), 900);
    }
}
