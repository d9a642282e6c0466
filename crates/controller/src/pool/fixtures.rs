//! Pools, edits of them, and refusals of ARM, for tables.

use std::sync::Arc;
use std::time::Duration;

use headgate_azure::{AdminState, ArmError, ErrorBody, LoadBalancerId, Pool, PoolId};
use hyper::StatusCode;
use serde_json::{Value, json};

use super::{AdminStateChange, ClusterNode, EntryKey, PoolEdit};

pub(crate) const LOAD_BALANCER: &str =
    "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/loadBalancers/lb";

pub(crate) fn pool_id(name: &str) -> PoolId {
    LoadBalancerId::parse(LOAD_BALANCER).unwrap().pool(name).unwrap()
}

/// The pool `p` with this entry.
pub(super) fn pool_of(entry: &Value) -> Pool {
    Pool {
        id: pool_id("p"),
        etag: None,
        document: json!({"properties": {"loadBalancerBackendAddresses": [entry]}}),
    }
}

/// An edit of the first entry of a pool, if any.
pub(super) fn edit(pool: &str, to: Option<AdminState>) -> PoolEdit {
    let change = |to| AdminStateChange {
        index: 0,
        key: EntryKey::from_text("10.0.0.1"),
        node: Arc::new(ClusterNode::default()),
        to,
    };
    PoolEdit {
        pool: pool_id(pool),
        admin_states: to.map(change).into_iter().collect(),
        members: None,
    }
}

/// The answer to a request that had no effect. `retry_after` is in seconds.
pub(crate) fn refused(status: u16, code: &str, retry_after: Option<u64>) -> ArmError {
    ArmError::ErrorResponse {
        status: StatusCode::from_u16(status).unwrap(),
        error: ErrorBody {
            code: code.to_owned(),
            ..ErrorBody::default()
        },
        retry_after: retry_after.map(Duration::from_secs),
        may_have_applied: false,
    }
}
