//! Proof that the admission policies are in force which bound what headgate's `ServiceAccounts` may do with their rights.
//!
//! Helm creates policies after the roles, and an API server before 1.30 has none of the kind, so a right may come without its limits. Each
//! canary is a dry run of a write that a policy refuses and RBAC may grant; the proof is the refusal. A refusal by RBAC is as good: what
//! is not granted needs no limit. A user that is no `ServiceAccount`, an administrator in a sandbox, is bound by no policy of headgate.
//! When to prove it, and what waits for it, is left to the caller.

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

/// The name of what a canary would write.
const CANARY: &str = "headgate-policy-canary";

/// A write that a policy refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Canary {
    /// A label of the Node of this name: `headgate-nodes`.
    Node(String),
    /// A Lease of a foreign name in `kube-system`: `headgate-leader`.
    Lease,
}

impl Canary {
    /// The name of the policy.
    pub fn policy(&self) -> &'static str {
        match self {
            Self::Node(_) => "headgate-nodes",
            Self::Lease => "headgate-leader",
        }
    }

    async fn is_refused(&self, client: &Client) -> Result<bool, kube::Error> {
        let sent = match self {
            Self::Node(name) => {
                let label = json!({"metadata": {"labels": {format!("headgate.dev/{CANARY}"): "true"}}});
                let params = PatchParams {
                    dry_run: true,
                    ..PatchParams::default()
                };
                let nodes = Api::<Node>::all(client.clone());
                nodes
                    .patch_metadata(name, &params, &Patch::Merge(label))
                    .await
                    .map(drop)
            }
            Self::Lease => {
                let lease = Lease {
                    metadata: kube::api::ObjectMeta {
                        name: Some(CANARY.to_owned()),
                        ..Default::default()
                    },
                    spec: None,
                };
                let params = PostParams {
                    dry_run: true,
                    ..PostParams::default()
                };
                let leases = Api::<Lease>::namespaced(client.clone(), "kube-system");
                leases.create(&params, &lease).await.map(drop)
            }
        };
        match sent {
            Ok(()) => Ok(false),
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// The policies among those of the canaries that are not in force for this client's user; empty if all are, or none is about the user.
///
/// # Errors
/// When the API server cannot be asked, or answers neither with success nor with 403.
pub async fn missing_policies(client: &Client, canaries: &[Canary]) -> Result<Vec<&'static str>, kube::Error> {
    let review = Api::<SelfSubjectReview>::all(client.clone());
    let review = review
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await?;
    let user = review.status.and_then(|status| status.user_info?.username);
    if !user.unwrap_or_default().starts_with("system:serviceaccount:") {
        return Ok(Vec::new());
    }
    let mut missing = Vec::new();
    for canary in canaries {
        if !canary.is_refused(client).await? {
            missing.push(canary.policy());
        }
    }
    Ok(missing)
}
