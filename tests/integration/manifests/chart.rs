//! The Helm chart: that it refuses values that cannot work (`values`), what each profile switches on (`profiles`), that every value is
//! documented (`readme`), that the page's commands lead from a bare cluster to the first `Down` (`newcomer`), and that it can be installed, upgraded, rolled back and deleted on a real API server (`release`). All with the
//! real helm.

use super::rendering::{chart, helm, merged, profile, rendered, template, tools, values_file};
use super::{SOON, only, stdout_of, text};
use serde_json::{Value, json};

mod newcomer;
mod profiles;
mod readme;
mod release;
mod values;

/// The labels of all objects of the chart.
const LABELS: [&str; 7] = [
    "app.kubernetes.io/component",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/name",
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/version",
    "helm.sh/chart",
];

/// The profile `aks` with azure.json in a Secret.
fn aks() -> Value {
    json!({"profile": "aks", "azure": {"existingSecret": "headgate-azure"}})
}
