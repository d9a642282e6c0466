//! The ledger's `ConfigMap`, as far as the election needs it: where it exists, a leader may have led.
//!
//! Invariant: it is created before the Lease, so that a Lease deleted under its holder leaves a ledger behind. What it contains is
//! left to the work of a term.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The name of the ledger, in the namespace of the Lease.
pub const LEDGER_NAME: &str = "headgate-admin-state";

/// The ledger as it is created: without entries.
pub fn new_ledger() -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(LEDGER_NAME.to_owned()),
            // Not the label `name` of the installed objects: who deletes these by label must not delete the ledger.
            labels: Some(BTreeMap::from([
                ("app.kubernetes.io/managed-by".to_owned(), "headgate".to_owned()),
                ("app.kubernetes.io/component".to_owned(), "ledger".to_owned()),
            ])),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    }
}
