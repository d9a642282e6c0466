//! What becomes of a write of a Node, and the metric that counts it.

use headgate_core::telemetry::words;
use kube::core::Status;
use prometheus_client::encoding::EncodeLabelSet;
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
}

impl Failure {
    pub(super) fn new(outcome: Outcome, error: impl Into<String>) -> Self {
        let error = error.into();
        Self { outcome, error }
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        let outcome = match &error {
            kube::Error::Api(status) => match status.code {
                404 => Outcome::Gone,
                409 => Outcome::Conflict,
                422 if is_failed_test(status) => Outcome::Conflict,
                401 | 403 | 422 => Outcome::Refused,
                _ => Outcome::Error,
            },
            kube::Error::HyperError(_) | kube::Error::Service(_) => Outcome::Connection,
            _ => Outcome::Error,
        };
        Self::new(outcome, headgate_core::telemetry::error_chain(&error))
    }
}

/// Whether the test of a JSON patch failed, which has no reason of its own. kube-apiserver has the text in a cause.
fn is_failed_test(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut texts = causes.map(|cause| &cause.message).chain([&status.message]);
    texts.any(|text| {
        ["testing value", "testing path", "test failed", "did not match"]
            .iter()
            .any(|words| text.contains(words))
    })
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    field: &'static str,
    outcome: &'static str,
}

/// The counter of writes of Nodes. Clones share it.
#[derive(Clone, Debug)]
pub struct NodeWriteMetrics {
    writes: Family<WriteLabels, Counter>,
}

impl NodeWriteMetrics {
    /// Registers the counter.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            writes: Family::default(),
        };
        for (field, outcome) in NodeField::ALL
            .into_iter()
            .flat_map(|field| Outcome::ALL.map(|outcome| (field, outcome)))
        {
            drop(metrics.of(field, outcome));
        }
        registry.register(
            "headgate_node_writes",
            "Attempts to write a field of a Node that was not as it should be, by field and outcome",
            metrics.writes.clone(),
        );
        metrics
    }

    pub(super) fn count(&self, field: NodeField, outcome: Outcome) {
        self.of(field, outcome).inc();
    }

    fn of(&self, field: NodeField, outcome: Outcome) -> Counter {
        let labels = WriteLabels {
            field: field.as_str(),
            outcome: outcome.as_str(),
        };
        self.writes.get_or_create(&labels).clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_answer_has_a_meaning() {
        let message = "the server rejected our request due to an error in our request";
        let cause = "testing value /metadata/resourceVersion failed: test failed";
        for (code, causes, expected) in [
            (401, json!([]), Outcome::Refused),
            (403, json!([]), Outcome::Refused),
            (404, json!([]), Outcome::Gone),
            (409, json!([]), Outcome::Conflict),
            (422, json!([{"message": cause}]), Outcome::Conflict),
            (422, json!([{"message": "spec is invalid"}]), Outcome::Refused),
            (500, json!([]), Outcome::Error),
        ] {
            let status = json!({"status": "Failure", "code": code, "message": message, "details": {"causes": causes}});
            let error = kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()));
            assert_eq!(Failure::from(error).outcome, expected, "{code} {causes}");
        }
    }
}
