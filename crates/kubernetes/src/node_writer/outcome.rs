//! What becomes of a write of a Node, and the metric that counts it.

use headgate_core::telemetry::{MetricTable, words};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::intent::NodeField;

words! {
    /// The label `outcome` of the metric.
    #[derive(PartialOrd, Ord)]
    pub(super) enum Outcome {
        /// The Node had changed since it was read.
        Conflict = "conflict",
        /// The API server was not reachable.
        Connection = "connection",
        /// A failure of another kind.
        Error = "error",
        /// The Node does not exist, or is another one of this name.
        Gone = "gone",
        /// The term had ended, or was not sure to last, before the write was sent.
        NotPermitted = "not_permitted",
        /// The credentials lack the right, or a policy or the API server's validation refuses the write.
        Refused = "refused",
        /// The API server did not answer in time.
        Timeout = "timeout",
        /// The Node has the value.
        Written = "written",
    }
}

/// Why a Node does not have the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub(super) struct Failure {
    pub(super) outcome: Outcome,
    pub(super) error: String,
    /// Whether a Node that has changed since it was read would be answered the same: the test of a JSON patch has no status code of its own.
    pub(super) may_be_outdated: bool,
    /// Whether a request that writes failed, and not the read before it.
    is_of_write: bool,
    /// Whether the API server has too much to do, or stops.
    is_overload: bool,
}

impl Failure {
    pub(super) fn new(outcome: Outcome, error: impl Into<String>) -> Self {
        let error = error.into();
        Self {
            outcome,
            error,
            may_be_outdated: false,
            is_of_write: false,
            is_overload: false,
        }
    }

    /// The same of a request that writes.
    pub(super) fn of_write(self) -> Self {
        Self {
            is_of_write: true,
            ..self
        }
    }

    /// Whether it may be due to one field alone of those that were written together, as with an admission webhook that refuses, fails or
    /// hangs.
    pub(super) fn may_be_of_one_field(&self) -> bool {
        let is_answer = matches!(self.outcome, Outcome::Refused | Outcome::Error | Outcome::Timeout);
        self.is_of_write && !self.is_overload && is_answer
    }

    /// The same for a Node that has changed since it was read.
    pub(super) fn outdated(self) -> Self {
        Self::new(Outcome::Conflict, self.error)
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        let outcome = match &error {
            kube::Error::Api(status) => match status.code {
                404 => Outcome::Gone,
                409 => Outcome::Conflict,
                401 | 403 | 422 => Outcome::Refused,
                _ => Outcome::Error,
            },
            kube::Error::HyperError(_) | kube::Error::Service(_) => Outcome::Connection,
            _ => Outcome::Error,
        };
        let is_code = |codes: &[u16]| matches!(&error, kube::Error::Api(status) if codes.contains(&status.code));
        Self {
            may_be_outdated: is_code(&[422]),
            is_overload: is_code(&[429, 503]),
            ..Self::new(outcome, headgate_core::telemetry::error_chain(&error))
        }
    }
}

/// The counter of writes of Nodes. Clones share it.
#[derive(Clone, Debug)]
pub struct NodeWriteMetrics {
    writes: Family<[(&'static str, &'static str); 2], Counter>,
}

impl NodeWriteMetrics {
    /// Registers the counter.
    pub fn register(registry: &mut Registry) -> Self {
        let writes = MetricTable::from(registry).metric(
            "headgate_node_writes",
            "Attempts to write a field of a Node that was not as it should be, by field and outcome",
        );
        let metrics = Self { writes };
        for (field, outcome) in NodeField::ALL
            .into_iter()
            .flat_map(|field| Outcome::ALL.map(|outcome| (field, outcome)))
        {
            drop(metrics.of(field, outcome));
        }
        metrics
    }

    pub(super) fn count(&self, field: NodeField, outcome: Outcome) {
        self.of(field, outcome).inc();
    }

    fn of(&self, field: NodeField, outcome: Outcome) -> Counter {
        let labels = [("field", field.as_str()), ("outcome", outcome.as_str())];
        self.writes.get_or_create_owned(&labels)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_answer_has_a_meaning() {
        let message = "the server rejected our request due to an error in our request";
        for (code, expected) in [
            (401, Outcome::Refused),
            (403, Outcome::Refused),
            (404, Outcome::Gone),
            (409, Outcome::Conflict),
            (422, Outcome::Refused),
            (429, Outcome::Error),
            (500, Outcome::Error),
            (503, Outcome::Error),
        ] {
            let status = json!({"status": "Failure", "code": code, "message": message});
            let error = kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()));
            let failure = Failure::from(error);
            assert_eq!(failure.outcome, expected, "{code}");
            assert_eq!(failure.may_be_outdated, code == 422, "{code}");
            let may_be_of_one_field = failure.of_write().may_be_of_one_field();
            assert_eq!(may_be_of_one_field, !matches!(code, 404 | 409 | 429 | 503), "{code}");
        }
    }
}
