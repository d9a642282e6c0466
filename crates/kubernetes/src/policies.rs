//! Proof that the admission policies are in force which bound what headgate's `ServiceAccounts` may do with their rights.
//!
//! Helm creates policies after the roles, and an API server before 1.30 has none of the kind, so a right may come without its limits. Each
//! canary is a dry run of a write that a policy refuses and RBAC may grant; the proof is the refusal that names the policy. A refusal by RBAC
//! is as good: what is not granted needs no limit. A refusal by somebody else's rule proves nothing. A user that is no `ServiceAccount`, an
//! administrator in a sandbox, is bound by no policy of headgate.
//! When to prove it, and what waits for it, is left to the caller.

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Status;
use kube::{Api, Client};
use serde_json::json;

/// The name of what a canary would write.
const CANARY: &str = "headgate-policy-canary";

/// A write that a policy refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Canary {
    /// An annotation of the Node of this name, because other policies judge labels: `headgate-nodes`.
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
                let annotation = json!({"metadata": {"annotations": {CANARY: "true"}}});
                let params = PatchParams {
                    dry_run: true,
                    ..PatchParams::default()
                };
                let nodes = Api::<Node>::all(client.clone());
                nodes
                    .patch_metadata(name, &params, &Patch::Merge(annotation))
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
            Err(kube::Error::Api(status)) if is_proof(&status, self.policy()) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// Whether the policy refuses, with whatever code, or an authorizer.
fn is_proof(status: &Status, policy: &str) -> bool {
    let (_, cause) = status.message.split_once(" is forbidden: ").unwrap_or_default();
    cause.starts_with(&format!("ValidatingAdmissionPolicy '{policy}' "))
        || status.code == 403 && cause.starts_with("User \"")
}

/// The policies among those of the canaries that are not in force for this client's user; empty if all are, or none is about the user.
///
/// # Errors
/// When the API server cannot be asked, or answers neither with success nor with a refusal by the policy or RBAC.
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

#[cfg(test)]
mod tests {
    use hyper::{Method, Request, Response};
    use kube::client::Body;
    use tower::service_fn;

    use super::*;

    /// An API server that answers the dry run like this.
    fn client(code: u16, message: String) -> Client {
        let answer = move |request: Request<Body>| {
            let (code, body) = if request.method() == Method::POST {
                let user = json!({"username": "system:serviceaccount:kube-system:headgate"});
                (201, json!({"metadata": {}, "status": {"userInfo": user}}))
            } else if code == 200 {
                let found =
                    json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "n"}});
                (code, found)
            } else {
                let failure = json!({"status": "Failure", "message": message, "reason": "", "code": code});
                (code, failure)
            };
            let body = Body::from(body.to_string().into_bytes());
            async move { Response::builder().status(code).body(body) }
        };
        Client::new(service_fn(answer), "default")
    }

    #[tokio::test]
    async fn only_a_refusal_by_the_policy_or_by_rbac_is_a_proof() {
        let by_policy = |name: &str| {
            format!(
                "nodes \"n\" is forbidden: ValidatingAdmissionPolicy '{name}' with binding 'headgate-nodes' denied request: no"
            )
        };
        let user = "User \"system:serviceaccount:kube-system:headgate\" cannot patch resource \"nodes\"";
        let by_rbac = format!("nodes \"n\" is forbidden: {user} in API group \"\" at the cluster scope");
        let (own, other) = (by_policy("headgate-nodes"), by_policy("other"));
        let both = format!("{other} {own} {user}");
        let by_webhook = "admission webhook \"other\" denied the request: no";
        for (code, message, proved) in [
            (200, "", Some(false)),
            (403, own.as_str(), Some(true)),
            (422, &own, Some(true)),
            (403, &by_rbac, Some(true)),
            (403, &other, None),
            (422, &other, None),
            (403, &both, None),
            (403, "nodes \"n\" is forbidden: not yet ready to handle request", None),
            (403, by_webhook, None),
            (400, by_webhook, None),
            (500, "Internal error occurred: failed calling webhook \"other\"", None),
        ] {
            let client = client(code, message.to_owned());
            let missing = missing_policies(&client, &[Canary::Node("n".to_owned())]).await;
            let missing = missing.ok().map(|missing| missing.is_empty());
            assert_eq!(missing, proved, "{code} {message}");
        }
    }
}
